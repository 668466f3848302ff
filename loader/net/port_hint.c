// SPDX-License-Identifier: BSD-2-Clause
/*
 * Finds the process that uses a port: the socket's inode in /proc/net, then the process that has
 * it open.
 */
#include "port_hint.h"

#include <stdio.h>
#include <string.h>

#include "util/process.h"

#define TCP_LISTENING	0x0a
#define UDP_UNCONNECTED 0x07

/* The inode of the socket with this port in a table like /proc/net/tcp; 0 = there is none. */
static unsigned long find_inode(const char *table, unsigned int state, unsigned int port)
{
	unsigned int local, has;
	unsigned long inode, found = 0;
	char line[512];
	FILE *f = fopen(table, "re");

	while (f && !found && fgets(line, sizeof(line), f))
		if (sscanf(line,
			   " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*u %*u "
			   "%lu",
			   &local, &has, &inode) == 3 &&
		    local == port && has == state)
			found = inode;
	if (f)
		fclose(f);
	return found;
}

static bool is_socket(void *socket, pid_t pid, const char *fd, const char *target)
{
	return !strcmp(target, socket);
}

/* "redis-server (process 12)", or nothing. */
static void find_process(unsigned long inode, char *text, size_t len)
{
	char socket[64], path[64], name[32];
	pid_t pid;
	FILE *f;

	snprintf(socket, sizeof(socket), "socket:[%lu]", inode);
	pid = process_with_file(is_socket, socket);
	if (!pid)
		return;
	snprintf(path, sizeof(path), "/proc/%ld/comm", (long)pid);
	f = fopen(path, "re");
	if (f && fgets(name, sizeof(name), f)) {
		name[strcspn(name, "\n")] = '\0';
		snprintf(text, len, "%s (process %ld)", name, (long)pid);
	}
	if (f)
		fclose(f);
}

void port_hint(char *text, size_t len, bool tcp, unsigned int port)
{
	const char *const tables[] = { tcp ? "/proc/self/net/tcp" : "/proc/self/net/udp",
				       tcp ? "/proc/self/net/tcp6" : "/proc/self/net/udp6" };
	unsigned long inode = 0;
	char who[64] = "another process";

	for (int i = 0; i < 2 && !inode; i++)
		inode = find_inode(tables[i], tcp ? TCP_LISTENING : UDP_UNCONNECTED, port);
	if (inode)
		find_process(inode, who, sizeof(who));
	snprintf(text, len, ": %s has it; stop that, or set another `port` (--port N)", who);
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * Finds the process that uses a port: the socket's inode in /proc/net, then the process that has
 * it open.
 */
#include "port_hint.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Whether the process has this socket open. */
static bool has_socket(const char *pid, const char *socket)
{
	char path[PATH_MAX], target[64];
	const struct dirent *entry;
	bool found = false;
	ssize_t len;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	d = opendir(path);
	while (d && !found && (entry = readdir(d))) {
		snprintf(path, sizeof(path), "/proc/%s/fd/%s", pid, entry->d_name);
		len = readlink(path, target, sizeof(target) - 1);
		target[len > 0 ? len : 0] = '\0';
		found = !strcmp(target, socket);
	}
	if (d)
		closedir(d);
	return found;
}

/* "redis-server (process 12)", or nothing. */
static bool find_process(unsigned long inode, char *text, size_t len)
{
	char socket[64], path[PATH_MAX], name[32] = "";
	const struct dirent *entry;
	DIR *d = opendir("/proc");
	bool found = false;
	FILE *f;

	snprintf(socket, sizeof(socket), "socket:[%lu]", inode);
	while (d && !found && (entry = readdir(d))) {
		if (!isdigit((unsigned char)entry->d_name[0]) || !has_socket(entry->d_name, socket))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/comm", entry->d_name);
		f = fopen(path, "re");
		found = f && fgets(name, sizeof(name), f);
		if (f)
			fclose(f);
		name[strcspn(name, "\n")] = '\0';
		if (found)
			snprintf(text, len, "%s (process %.16s)", name, entry->d_name);
	}
	if (d)
		closedir(d);
	return found;
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

// SPDX-License-Identifier: BSD-2-Clause
/*
 * Whose is an XDP program of xkv that does not use our maps?  Who has pinned its maps, or has them
 * open, goes on with them; where nobody does the program is an orphan, whose writes are lost.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf_impl.h"

#define BPFFS	    "/sys/fs/bpf"
#define DEPTH_MAX   5 /* of directories with pins */
#define INDEX_NAME  "/xkv_index"
#define NUMBER_TEXT "0123456789"

/* Is the map that is pinned here one that the program uses? */
static bool uses_pinned(int prog_fd, const char *path)
{
	struct bpf_map_info info = {};
	struct map_ids ids = { .count = 1 };
	__u32 len = sizeof(info);
	int fd = bpf_obj_get(path);
	bool uses;

	if (fd < 0)
		return false;
	uses = !bpf_obj_get_info_by_fd(fd, &info, &len);
	ids.id[0] = info.id;
	close(fd);
	return uses && prog_uses(prog_fd, &ids);
}

/* Looks for the pins of the program's maps in `path`, a buffer of PATH_MAX, and below it. */
static bool find_pins(int prog_fd, char *path, unsigned int depth)
{
	size_t len = strlen(path);
	const struct dirent *entry;
	bool found;
	DIR *d;

	if (len + sizeof(INDEX_NAME) + NAME_MAX >= PATH_MAX)
		return false;
	strcpy(path + len, INDEX_NAME);
	found = uses_pinned(prog_fd, path);
	path[len] = '\0';
	d = !found && depth < DEPTH_MAX ? opendir(path) : NULL;
	while (d && !found && (entry = readdir(d))) {
		if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
			continue;
		snprintf(path + len, PATH_MAX - len, "/%s", entry->d_name);
		found = find_pins(prog_fd, path, depth + 1);
		if (!found)
			path[len] = '\0';
	}
	if (d)
		closedir(d);
	return found;
}

/* Is this descriptor of a process, /proc/N/fdinfo/M, a map that the program uses? */
static bool is_used_map(int prog_fd, const char *path)
{
	struct map_ids ids = { .count = 1 };
	FILE *file = fopen(path, "re");
	char line[128];
	bool found = false;

	while (file && !found && fgets(line, sizeof(line), file))
		found = sscanf(line, "map_id: %u", &ids.id[0]) == 1;
	if (file)
		fclose(file);
	return found && prog_uses(prog_fd, &ids);
}

static bool has_open(int prog_fd, const char *pid)
{
	char path[64 + 2 * NAME_MAX], what[64];
	const struct dirent *entry;
	bool found = false;
	ssize_t len;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	d = opendir(path);
	while (d && !found && (entry = readdir(d))) {
		snprintf(path, sizeof(path), "/proc/%s/fd/%s", pid, entry->d_name);
		len = readlink(path, what, sizeof(what) - 1);
		what[len < 0 ? 0 : len] = '\0';
		snprintf(path, sizeof(path), "/proc/%s/fdinfo/%s", pid, entry->d_name);
		found = !strcmp(what, "anon_inode:bpf-map") && is_used_map(prog_fd, path);
	}
	if (d)
		closedir(d);
	return found;
}

/* The process that has a map of the program open, but for this one; 0 = none. */
static unsigned int find_process(int prog_fd)
{
	const struct dirent *entry;
	DIR *d = opendir("/proc");
	unsigned int pid = 0;

	while (d && !pid && (entry = readdir(d)))
		if (strspn(entry->d_name, NUMBER_TEXT) == strlen(entry->d_name) &&
		    strtol(entry->d_name, NULL, 10) != getpid() && has_open(prog_fd, entry->d_name))
			pid = (unsigned int)strtol(entry->d_name, NULL, 10);
	if (d)
		closedir(d);
	return pid;
}

bool owner_find(int prog_fd, struct owner *o)
{
	*o = (struct owner){ .pins = BPFFS };
	if (find_pins(prog_fd, o->pins, 0))
		return true;
	o->pins[0] = '\0';
	o->pid = find_process(prog_fd);
	return o->pid;
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * Who owns an XDP program of xkv that does not use our maps?  The process that has its maps open,
 * or the directory with their pins; without either, the program is an orphan, whose writes are
 * lost.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf_impl.h"
#include "util/process.h"

#define BPFFS	   "/sys/fs/bpf"
#define DEPTH_MAX  5 /* of directories with pins */
#define INDEX_NAME "/xkv_index"

/* Is the map that is pinned here one that the program uses? */
static bool uses_pinned(int prog_fd, const char *path)
{
	struct map_ids ids = {};

	ids_add_pinned(&ids, path);
	return ids.count && prog_uses(prog_fd, &ids);
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

/* Is this file of another process a map that the program uses?  /proc/N/fdinfo/M says which. */
static bool is_used_map(void *prog_fd, pid_t pid, const char *fd, const char *target)
{
	struct map_ids ids = { .count = 1 };
	char path[64], line[128];
	bool found = false;
	FILE *file;

	if (pid == getpid() || strcmp(target, "anon_inode:bpf-map"))
		return false;
	snprintf(path, sizeof(path), "/proc/%ld/fdinfo/%.16s", (long)pid, fd);
	file = fopen(path, "re");
	while (file && !found && fgets(line, sizeof(line), file))
		found = sscanf(line, "map_id: %u", &ids.id[0]) == 1;
	if (file)
		fclose(file);
	return found && prog_uses(*(int *)prog_fd, &ids);
}

bool owner_find(int prog_fd, struct owner *o)
{
	*o = (struct owner){ .pins = BPFFS };
	if (find_pins(prog_fd, o->pins, 0))
		return true;
	o->pins[0] = '\0';
	o->pid = (unsigned int)process_with_file(is_used_map, &prog_fd);
	return o->pid;
}

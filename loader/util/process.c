// SPDX-License-Identifier: BSD-2-Clause
#include "process.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

bool process_has_file(pid_t pid, process_file_fn *fn, void *arg)
{
	char path[64], target[64];
	const struct dirent *entry;
	bool found = false;
	ssize_t len;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%ld/fd", (long)pid);
	d = opendir(path);
	while (d && !found && (entry = readdir(d))) {
		len = readlinkat(dirfd(d), entry->d_name, target, sizeof(target) - 1);
		target[len > 0 ? len : 0] = '\0';
		found = len > 0 && fn(arg, pid, entry->d_name, target);
	}
	if (d)
		closedir(d);
	return found;
}

pid_t process_with_file(process_file_fn *fn, void *arg)
{
	const struct dirent *entry;
	DIR *d = opendir("/proc");
	pid_t pid = 0;

	while (d && !pid && (entry = readdir(d))) {
		pid = (pid_t)strtol(entry->d_name, NULL, 10); /* 0: not a process */
		if (pid && !process_has_file(pid, fn, arg))
			pid = 0;
	}
	if (d)
		closedir(d);
	return pid;
}

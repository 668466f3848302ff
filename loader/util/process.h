/* SPDX-License-Identifier: BSD-2-Clause */
/* Which process has a file open?  Searches /proc, as far as this process may read it. */
#ifndef XKV_PROCESS_H
#define XKV_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * Is it this file: descriptor `fd` of process `pid`, where /proc/PID/fd/FD links to `target`
 * ("socket:[123]", "anon_inode:bpf-map", a path), of which up to 63 bytes are given?
 */
typedef bool process_file_fn(void *arg, pid_t pid, const char *fd, const char *target);

/* Has the process a file open for which `fn` says so?  Thread safe. */
bool process_has_file(pid_t pid, process_file_fn *fn, void *arg);
/* The first process that has a file open for which `fn` says so; 0 = none.  Thread safe. */
pid_t process_with_file(process_file_fn *fn, void *arg);

#endif

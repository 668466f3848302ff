/* SPDX-License-Identifier: BSD-2-Clause */
/* How much memory there is for us: of the machine, and of the cgroups that we are in. */
#ifndef XKV_MACHINE_H
#define XKV_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Is so little memory left that the store must not grow?  The machine keeps a twentieth of its
 * memory; each cgroup with a limit (version 1 or 2, the one we are in and all above it) a twentieth
 * of that, and at least what a restart and a save take: what the kernel gives away for pages it
 * cannot take back, and who is over such a limit is killed.
 */
bool memory_is_short(void);

/* Bytes that the machine has, or the smallest limit of a cgroup that we are in. */
uint64_t memory_whole(void);

/* The same with the files of /proc and of cgroups below `root`: for tests. */
bool memory_is_short_below(const char *root);
uint64_t memory_whole_below(const char *root);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * CPUs and memory of the machine, as far as this process may use them.  Thread safe; each call
 * reads the files of /proc and of the cgroups again.
 */
#ifndef XKV_MACHINE_H
#define XKV_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Is so little memory left that the store must not grow by `more` bytes, or at all?  A twentieth of
 * the machine's memory is kept free; for each cgroup with a limit (version 1 or 2, including all
 * parents) a twentieth of the limit, and at least the memory that a restart and a save need.  The
 * kernel cannot reclaim the pages of the store, and kills processes of a cgroup that exceeds its
 * limit.
 */
bool memory_is_short(uint64_t more);

/* The part of a cgroup's memory that is kept free for other uses than the store. */
uint64_t memory_reserve(uint64_t whole);

/* The machine's memory in bytes, or the smallest limit of a cgroup if that is less. */
uint64_t memory_whole(void);

/* CPUs that this process may run on (taskset, cpusets): 1 or more. */
unsigned int cpus_usable(void);

/* With files of /proc and cgroups below the directory `root`: for tests. */
bool memory_is_short_below(const char *root, uint64_t more);

#endif

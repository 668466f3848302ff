/* SPDX-License-Identifier: BSD-2-Clause */
/* Files that a save would replace, and that must not be lost, get a second name. */
#ifndef XKV_ASIDE_H
#define XKV_ASIDE_H

#include <limits.h>

/*
 * Gives the file `name` in a directory the name `name.suffix` too, or `name.suffix.1` and so on:
 * the first that is free, or that it has already.  By a hard link, or a copy where the file system
 * has none.  When this returns 0 it is on the disk, and `kept` is the name; else -errno, and
 * nothing has changed.
 */
int aside_keep(int dir_fd, const char *name, const char *suffix, char kept[NAME_MAX + 1]);

/* The same, and takes the first name away. */
int aside_move(int dir_fd, const char *name, const char *suffix, char kept[NAME_MAX + 1]);

#endif

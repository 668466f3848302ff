/* SPDX-License-Identifier: BSD-2-Clause */
/* Gives a second name to a file that the next save would replace and that must not be lost. */
#ifndef XKV_ASIDE_H
#define XKV_ASIDE_H

#include <limits.h>

/*
 * Gives the file `name` in the directory `dir_fd` a second name: `name.suffix`, or `name.suffix.1`
 * and so on, the first one that is free or that is this file (or a copy of it) already.  Makes a
 * hard link, or a copy if the file system refuses links.  0, and the durable second name in `kept`;
 * or -errno, and the directory is unchanged.  One thread at a time for a directory.
 */
int aside_keep(int dir_fd, const char *name, const char *suffix, char kept[NAME_MAX + 1]);

/*
 * The same, but always a copy: for a file that keeps its first name for long, and may be written to
 * under that name.
 */
int aside_copy(int dir_fd, const char *name, const char *suffix, char kept[NAME_MAX + 1]);

/* As aside_keep(), and removes the first name. */
int aside_move(int dir_fd, const char *name, const char *suffix, char kept[NAME_MAX + 1]);

#endif

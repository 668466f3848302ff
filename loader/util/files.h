/* SPDX-License-Identifier: BSD-2-Clause */
/* Files and directories. */
#ifndef XKV_FILES_H
#define XKV_FILES_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Writes all of it at this offset.  0 or -errno. */
int file_write(int fd, const char *bytes, size_t len, uint64_t at);

/*
 * Opens a file that an operator names, to read it from its beginning to its end: a regular file, or
 * what a shell makes of <(COMMAND).  A named FIFO or a device might never end, and would hold up
 * a start, or all clients: NULL, and file_error() has the words for `errno`.
 */
FILE *file_open(const char *path);

/*
 * Opens, or with O_CREAT makes, a regular file of ours; a FIFO that lies in its place would hold up
 * open(), read() or write().  Its descriptor or -errno, for which file_error() has the words.
 */
int file_openat(int dir_fd, const char *name, int flags);

/* Why a file could not be opened or read. */
const char *file_error(int error);

#define FILE_WHOLE UINT64_MAX

/*
 * Copies the first `bytes` of a file, or all of it, to a file of this name in a directory, and
 * syncs it.  `flags`: O_TRUNC, or O_EXCL.  0 or -errno; then an incomplete copy stays.
 */
int file_copy(int from, uint64_t bytes, int dir_fd, const char *name, int flags);

/* Syncs the name of this file or directory, which is in the directory above. */
int directory_sync_name(const char *path);

/* The number of entries of a directory; -1: it cannot be read. */
int directory_count(const char *path);

#endif

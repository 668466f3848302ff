/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The manifest of an append-only file, as Redis 7 has it: which files, in which order, are the log.
 *
 *	file appendonly.aof.2.base.rdb seq 2 type b		all keys at some time
 *	file appendonly.aof.3.incr.aof seq 3 type i		what has changed since
 *	file appendonly.aof.1.base.rdb seq 1 type h		not needed any more
 *
 * One of xkvd begins with the CRC-32C of all lines that follow, a comment to Redis:
 *
 *	#XKV:manifest 9ae0daaf
 *
 * It is replaced at once, so at each moment the files that it names are a whole log.
 */
#ifndef XKV_MANIFEST_H
#define XKV_MANIFEST_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct manifest_file {
	char name[NAME_MAX + 1]; /* in the same directory */
	uint64_t seq;
	char type; /* 'b', 'i', 'h' */
};

struct manifest {
	struct manifest_file *file; /* owned; in their order: base, increments */
	unsigned int count;
	bool restored; /* a line #XKV:restored: of --restore-until, and nobody has served it yet */
};

/*
 * Reads the file.  0; -ENOENT: there is none; -EBADMSG, -ENOMEM or -errno, with a sentence that
 * names `path`, which the file is called in messages.
 */
int manifest_read(struct manifest *m, int dir_fd, const char *name, const char *path, char *err,
		  size_t err_len);

/*
 * Replaces the file, durably.  All that it names has to be on the disk.  0; or -errno, and the old
 * one is in force.  *unsynced: the new one is, but after a power cut it may be the old one again.
 */
int manifest_write(const struct manifest *m, int dir_fd, const char *name, bool *unsynced);

/* Adds a file at the end.  0 or -ENOMEM. */
int manifest_add(struct manifest *m, const char *name, uint64_t seq, char type);
/* The file of this type with the greatest number, NULL = there is none. */
const struct manifest_file *manifest_newest(const struct manifest *m, char type);
/* The greatest number of a file of this type, 0 = there is none. */
uint64_t manifest_last(const struct manifest *m, char type);
/* The first file of this type, NULL = there is none. */
const struct manifest_file *manifest_find(const struct manifest *m, char type);
void manifest_free(struct manifest *m);

#endif

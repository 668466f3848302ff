/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * All keys of the store as an RDB file: a snapshot (snapshot.h), or the base of the write log
 * (writelog.h).  The walk goes on beside traffic: the file has each key that existed during all of
 * it, with a value that it had meanwhile.
 */
#ifndef XKV_IMAGE_H
#define XKV_IMAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/store.h"

struct image {
	int fd;
	uint8_t number[STORE_DATABASES]; /* how clients call databases, by stored number */
	const void *functions;		 /* records of libraries (rdb.h) */
	size_t functions_len;
	/*
	 * It is the base of a log: says so, and has entries that have expired and are still there,
	 * because a change in the log may refer to them.
	 */
	bool is_base;
	const atomic_bool *stop; /* becomes true: -ECANCELED */
	_Atomic uint64_t *keys;	 /* that have been written so far */
	bool walk_failed;	 /* out: the error is one of store_scan() */
};

/* Writes it, without fsync.  0 or -errno. */
int image_write(struct image *im, struct store *st, struct store_ctx *ctx);

#endif

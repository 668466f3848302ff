/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * All keys of the store as an RDB file.  A snapshot (snapshot.h) has those of one moment
 * (store/cut.h).  The base of the write log (writelog.h) need not: it has each key that existed
 * during the whole walk, with a value that it had meanwhile.  And it has entries that have expired
 * and are still there, because a change in the log may refer to them.
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
	bool compress; /* rdbcompression */
	bool base;
	/*
	 * cut_user.moment, with the image; it sets `number`, and may set the other two.  NULL: the
	 * keys are of no moment.
	 */
	uint64_t (*moment)(void *image);
	uint8_t number[STORE_DATABASES]; /* how clients call databases, by stored number */
	const void *functions;		 /* records of libraries (rdb.h) */
	size_t functions_len;
	const atomic_bool *stop; /* becomes true: -ECANCELED */
	_Atomic uint64_t *keys;	 /* that have been written so far */
	bool walk_failed;	 /* out: the error is one of store_scan() */
};

/* Writes it, without fsync.  0 or -errno, of store_cut() as well. */
int image_write(struct image *im, struct store *st, struct store_ctx *ctx);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fills the store from files, before clients can reach it: for snapshots and the write log.  One
 * thread reads the file and hands on operations; threads on all CPUs execute them, many in a system
 * call.  All operations of a key are one thread's, in their order.
 */
#ifndef XKV_FILL_H
#define XKV_FILL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/store.h"

struct config;
struct fill_worker;

#define FILL_WORKERS 8 /* at most: one reader does not keep more of them busy */

struct fill {
	struct store *st;
	const struct config *cfg;
	struct store_ctx *ctx; /* for the reader's own operations, after fill_wait() */
	unsigned int workers;
	struct fill_worker *worker[FILL_WORKERS];
	pthread_mutex_t lock;	  /* for `lifted`, and setting what follows */
	bool lifted;		  /* the store's limit differs from maxmemory */
	atomic_int error;	  /* the first that an operation has met, ... */
	uint64_t error_at;	  /* ... and its offset in the file */
	_Atomic uint64_t refused; /* operations that a condition has kept from being done */
};

/* 0, or -errno with a sentence. */
int fill_begin(struct fill *f, struct store *st, const struct config *cfg, char *err,
	       size_t err_len);
/* Does not wait for what was added: fill_wait() does. */
void fill_end(struct fill *f);

/*
 * Has an operation executed in a database, soon; its key and value are copied.  `at`: its offset in
 * the file.  Tries again what is busy.  As in Redis, maxmemory does not limit what is loaded, only
 * later writes.  What leaves the store as it is (no such key, a condition, no number) is no error.
 * 0, or the error of this operation or an earlier one.
 */
int fill_add(struct fill *f, unsigned int db, const struct store_op *op, uint64_t at);

/* Waits until all that was added is done.  0, or the first error. */
int fill_wait(struct fill *f);

/* The clause of a message that says what to do about an error of it; "" = nothing known. */
const char *fill_remedy(int error);
/* The sentence for the first error, which it returns. */
int fill_fail(const struct fill *f, const char *file, char *err, size_t err_len);

/*
 * Removes the keys of a load that failed, or during which an earlier xkvd was killed: they are a
 * part of files that may have changed since.  0, or -errno with a sentence.
 */
int fill_remove_rest(struct store *st, char *err, size_t err_len);
/* The same of what the first pass has set, with its sentence: the files will be read anew. */
int fill_start_over(struct store *st, char *err, size_t err_len);

#endif

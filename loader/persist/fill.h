/* SPDX-License-Identifier: BSD-2-Clause */
/* Fills the store from files, before clients can reach it: for snapshots and the write log. */
#ifndef XKV_FILL_H
#define XKV_FILL_H

#include <stdbool.h>
#include <stddef.h>

#include "store/store.h"

struct config;

struct fill {
	struct store *st;
	const struct config *cfg;
	struct store_ctx *ctx;
	bool lifted; /* the store's limit differs from maxmemory */
};

/* 0, or -errno with a sentence. */
int fill_begin(struct fill *f, struct store *st, const struct config *cfg, char *err,
	       size_t err_len);
void fill_end(struct fill *f);

/*
 * As store_do(); tries again what is busy.  As in Redis, maxmemory does not limit what is loaded,
 * only later writes.
 */
int fill_do(struct fill *f, const struct store_op *op, struct store_entry *out);

/* The clause of a message that says what to do about an error of it; "" = nothing known. */
const char *fill_remedy(int error);

/*
 * Removes the keys of a load that failed, or during which an earlier xkvd was killed: they are a
 * part of files that may have changed since.  0, or -errno with a sentence.
 */
int fill_remove_rest(struct store *st, char *err, size_t err_len);

#endif

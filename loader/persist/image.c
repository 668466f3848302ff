// SPDX-License-Identifier: BSD-2-Clause
#include "image.h"

#include <errno.h>

#include "rdb.h"

#define SCAN_COUNT 1024

struct walk {
	const struct image *im;
	struct rdb_writer *w;
	uint64_t keys;
};

static int write_key(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	struct walk *walk = arg;

	rdb_write_select(walk->w, walk->im->number[entry->db]);
	rdb_write_key(walk->w, key, key_len, entry->value, entry->value_len, entry->expire_ms);
	atomic_store_explicit(walk->im->keys, ++walk->keys, memory_order_relaxed);
	return atomic_load(walk->im->stop) ? -ECANCELED : rdb_writer_error(walk->w);
}

static void write_head(const struct image *im, struct rdb_writer *w, struct store *st)
{
	struct store_database db;

	store_database(st, 0, &db);
	rdb_write_header(w, db.keys, store_memory(st));
	if (im->is_base)
		rdb_write_base_mark(w);
	for (unsigned int i = 1; i < STORE_DATABASES; i++) {
		store_database(st, i, &db);
		if (db.keys)
			rdb_write_database(w, i, db.keys, db.expiring);
	}
	rdb_write_functions(w, im->functions, im->functions_len);
}

int image_write(struct image *im, struct store *st, struct store_ctx *ctx)
{
	struct walk walk = { .im = im, .w = rdb_writer_new(im->fd) };
	uint64_t cursor = 0;
	int ret, written;

	im->walk_failed = false;
	if (!walk.w)
		return -ENOMEM;
	write_head(im, walk.w, st);
	do {
		ret = im->is_base ? store_scan_all(ctx, &cursor, SCAN_COUNT, write_key, &walk)
				  : store_scan(ctx, &cursor, SCAN_COUNT, true, write_key, &walk);
	} while (!ret && cursor);
	written = ret ? rdb_writer_error(walk.w) : rdb_write_end(walk.w);
	rdb_writer_free(walk.w);
	im->walk_failed = ret && !written;
	return written ? written : ret;
}

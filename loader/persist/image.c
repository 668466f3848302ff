// SPDX-License-Identifier: BSD-2-Clause
#include "image.h"

#include <errno.h>

#include "rdb.h"
#include "store/cut.h"

#define SCAN_COUNT 1024

struct walk {
	struct image *im;
	struct store *st;
	struct rdb_writer *w;
	bool has_head;
	uint64_t keys;
};

static void write_head(struct walk *walk)
{
	const struct image *im = walk->im;
	struct store_database db;

	if (walk->has_head)
		return;
	walk->has_head = true;
	store_database(walk->st, 0, &db);
	rdb_write_header(walk->w, db.keys, store_memory(walk->st));
	if (im->base)
		rdb_write_base_mark(walk->w);
	for (unsigned int i = 1; i < STORE_DATABASES; i++) {
		store_database(walk->st, i, &db);
		if (db.keys)
			rdb_write_database(walk->w, i, db.keys, db.expiring);
	}
	rdb_write_functions(walk->w, im->functions, im->functions_len);
}

static int write_key(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	struct walk *walk = arg;

	write_head(walk);
	rdb_write_select(walk->w, walk->im->number[entry->db]);
	rdb_write_key(walk->w, key, key_len, entry->value, entry->value_len, entry->expire_ms);
	atomic_store_explicit(walk->im->keys, ++walk->keys, memory_order_relaxed);
	return atomic_load(walk->im->stop) ? -ECANCELED : rdb_writer_error(walk->w);
}

static uint64_t take_moment(void *arg)
{
	struct walk *walk = arg;

	return walk->im->moment(walk->im);
}

static int walk_all(struct store_ctx *ctx, struct walk *walk)
{
	uint64_t cursor = 0;
	int ret;

	do {
		ret = store_scan_all(ctx, &cursor, SCAN_COUNT, write_key, walk);
	} while (!ret && cursor);
	return ret;
}

int image_write(struct image *im, struct store *st, struct store_ctx *ctx)
{
	struct walk walk = { .im = im, .st = st, .w = rdb_writer_new(im->fd, im->compress) };
	const struct cut_user user = { take_moment, write_key, &walk, im->base };
	int ret, written;

	im->walk_failed = false;
	if (!walk.w)
		return -ENOMEM;
	ret = im->moment ? store_cut(ctx, &user) : walk_all(ctx, &walk);
	write_head(&walk);
	written = ret ? rdb_writer_error(walk.w) : rdb_write_end(walk.w);
	rdb_writer_free(walk.w);
	im->walk_failed = ret && !written;
	return written ? written : ret;
}

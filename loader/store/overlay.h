/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The reads and writes of a transaction so far: the entries that it sees, with its own changes.
 * Used by the thread of its context only.
 */
#ifndef XKV_STORE_OVERLAY_H
#define XKV_STORE_OVERLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/layout.h"
#include "feed.h"
#include "lookup.h"
#include "store.h"

/* Enough for a transaction of some dozens of keys; a larger one allocates more. */
#define OVERLAY_BUCKETS 256
#define OVERLAY_ROOM	8192 /* bytes of entries */
#define OVERLAY_PARTS	64

/* A key as the transaction sees it. */
struct overlay_entry {
	struct overlay_entry *next;   /* in its bucket */
	struct overlay_entry *before; /* of all */
	uint64_t fingerprint;
	uint64_t expected;	/* the version in the store, 0 = none, XKV_TXN_ANY = not read yet */
	struct witness witness; /* when it was first read */
	enum xkv_txn_action action;
	bool exists;	/* it may have expired */
	bool has_value; /* `value` is known; false if only the expiry was read, or changed */
	bool read_own;	/* store_txn_reads_own(), since it was changed last */
	bool outdated;	/* the same, but it was changed after that */
	uint64_t expire_ms, version;
	void *value; /* owned */
	size_t value_len, key_len;
	void *long_key; /* owned; NULL if it is not long: else `key` is its stored form */
	size_t long_len;
	uint8_t db;	/* stored number */
	uint64_t key[]; /* padded with zeros */
};

/* One that is committed. */
struct overlay_part {
	uint64_t order; /* see txn.c */
	struct overlay_entry *entry;
};

struct overlay {
	struct overlay_entry **bucket, *last; /* `buckets` of them, owned unless they are `few` */
	size_t buckets;			      /* a power of two */
	struct overlay_entry *few[OVERLAY_BUCKETS];
	struct overlay_part few_parts[OVERLAY_PARTS];
	uint64_t retired; /* memory.units_retired at its begin */
	const struct store *st;
	size_t count, bytes; /* of entries, and of their values and long keys */
	size_t huge;	     /* bytes of huge values, which are not in `bytes` */
	uint64_t now_ms;     /* of its start: entries that it has seen do not expire meanwhile */
	uint64_t version;    /* of the last change: odd, unlike those of the store */
	int error;	     /* why it cannot be committed: see store_txn_error() */
	void *old;	     /* the value that an operation has replaced and returned; owned */
	bool listens;	     /* somebody listens to the change feed: */
	struct feed_change *told; /* the changes so far; owned; their keys are the entries' */
	unsigned int told_count, told_room;
	size_t room_used;
	uint64_t room[OVERLAY_ROOM / 8]; /* of the first entries; others are allocated */
};

/* Begins with an empty overlay, in the memory of an earlier one.  NULL without memory. */
struct overlay *overlay_begin(struct store_ctx *ctx);
/* Forgets its entries, and what they own. */
void overlay_end(struct overlay *o);

/* Reads an entry from the store: the arguments and result of store_do(). */
typedef int overlay_read_fn(struct store_ctx *ctx, const struct store_op *op,
			    struct store_entry *out);

/*
 * The entry of a key, read from the store if it is not known yet, with its value if `value`.  0,
 * -ECANCELED (it has changed since it was first read), -ENOMEM, or an error of `read`.
 */
int overlay_get(struct store_ctx *ctx, struct overlay *o, const void *key, size_t key_len,
		bool value, overlay_read_fn *read, struct overlay_entry **out);

/* The entry of a key that the transaction knows, or NULL. */
struct overlay_entry *overlay_find(const struct store_ctx *ctx, const struct overlay *o,
				   const void *key, size_t key_len);

/* Its key as clients name it. */
const void *overlay_key(const struct overlay_entry *e, size_t *key_len);

/* Notes an operation, or store_txn_note(), for listeners, if there are any. */
void overlay_tell(struct overlay *o, const struct overlay_entry *e, struct feed_change change);

/* Executes an operation on the overlay: as store_do(). */
int overlay_do(struct store_ctx *ctx, struct overlay *o, const struct store_op *op,
	       overlay_read_fn *read, struct store_entry *out);

#endif

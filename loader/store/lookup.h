/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Look-ups without a BPF program: xkvd reads index and slots through mapped memory, by the rules
 * for all readers (docs/design.md, "Look-ups in user space").  A contended look-up is left to the
 * engine, which waits for writers.
 *
 * A context is used by one thread at a time.  Functions take pages_lock, for reading.
 */
#ifndef XKV_STORE_LOOKUP_H
#define XKV_STORE_LOOKUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store.h"

static inline bool lookup_takes(const struct store_op *op)
{
	return XKV_IS_READ(op->opcode);
}

/*
 * A look-up's result, a hit or a miss, is valid as long as *word is `was`: the seq of the entry's
 * slot, or the head of the bucket that a missing key would be in.  NULL: unknown.  Usable while
 * memory.units_retired is unchanged since before the look-up.
 */
struct witness {
	const __u64 *word;
	uint64_t was;
};

/*
 * Executes a GET, TTL or TOUCH with a valid key, as store_do().  0 and *out, whose value is in
 * ctx->large; -ENOENT; -ENOMEM; or -EAGAIN: nothing was counted, the engine has to execute it.
 * Sets ctx->witness.
 */
int lookup(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out);

/* The same, with the fingerprint of the key. */
int lookup_hashed(struct store_ctx *ctx, const struct store_op *op, uint64_t fingerprint,
		  struct store_entry *out);

/*
 * Prefetches the cache lines of the first LOOKUP_AHEAD of these operations together; otherwise each
 * waits for its bucket, and then for its slot.  Returns how many, and the fingerprints of their
 * keys (of an invalid key, any number).
 */
#define LOOKUP_AHEAD 32
unsigned int lookup_ahead(struct store_ctx *ctx, const struct store_op *ops, unsigned int count,
			  uint64_t fingerprints[LOOKUP_AHEAD]);

/*
 * Has an entry with this expiry (0 = none) expired?  By the clock that BPF reads, so that both
 * front ends agree.
 */
bool lookup_expired(const struct store *st, uint64_t expire_ms);

/* Is it still valid?  The caller holds the pages. */
bool witness_holds(const struct witness *w);

/*
 * Gives the entry of a key, if it has the version `now`, version and use of one that is carried
 * over.  0 or -EAGAIN.
 */
struct carried;
int lookup_stamp(struct store *st, const struct carried *e, uint64_t now);

/* store_usage() of a stored key, padded with zeros; or -EAGAIN. */
int lookup_usage(struct store_ctx *ctx, const uint64_t *key, size_t key_len,
		 struct store_usage *out);

/*
 * The version of a key of `db` (stored number), 0 if it does not exist; does not count as a use.  0
 * or -EAGAIN.  `key` is padded with zeros.
 */
int lookup_version(struct store *st, uint8_t db, const uint64_t *key, size_t key_len,
		   uint64_t *version);

#endif

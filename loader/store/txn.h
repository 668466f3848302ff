/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Transactions: several operations that take effect together, or not at all, also for clients that
 * XDP serves.
 *
 * Between store_txn_begin() and its end, the operations of a context (store_do(), store_run()) are
 * not executed on the store, but on copies of the entries that they read (optimistic concurrency
 * control).  store_txn_commit() makes all changes at once if nothing that was read has changed
 * since; else the caller starts again.  Walks, counts and flushes do not take part: they act on the
 * store as it is.
 *
 * Threads and errors as in store.h.
 */
#ifndef XKV_STORE_TXN_H
#define XKV_STORE_TXN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/layout.h"

struct store_ctx;

/* Most keys that a transaction may read or write, and most bytes of values and long keys. */
#define STORE_TXN_KEYS	XKV_TXN_KEYS
#define STORE_TXN_BYTES (256U << 20)
/* For huge values: enough to rename one, if the machine has the memory. */
#define STORE_TXN_HUGE (1U << 30)

/* How many keys the transaction has read or written so far. */
unsigned int store_txn_keys(const struct store_ctx *ctx);

/* Begins a transaction; the context has none.  0 or -ENOMEM. */
int store_txn_begin(struct store_ctx *ctx);

/*
 * The transaction depends on `key` having this version, 0 = not existing.  0, -ECANCELED (it has
 * another), or an error of reading.
 */
int store_txn_expect(struct store_ctx *ctx, const void *key, size_t key_len, uint64_t version);

/*
 * Why the transaction can no longer be committed, as store_txn_commit() would return it: further
 * reads may be inconsistent.  0 if there is no reason yet, or no transaction.
 */
int store_txn_error(const struct store_ctx *ctx);

/*
 * Adds a note, which is not a change but is reported in order with the transaction's changes, with
 * `what` FEED_NOTE (feed.h).
 */
void store_txn_note(struct store_ctx *ctx, const void *key, size_t key_len, uint8_t cause);

/*
 * Ends the transaction.  0 if all changes took effect, else none did:
 *   -ECANCELED an entry that it has read was changed meanwhile: start again
 *   -E2BIG     more than STORE_TXN_KEYS keys, STORE_TXN_BYTES or STORE_TXN_HUGE
 *   -EFBIG     the records of its changes do not fit the change feed
 *   -EAGAIN    it lacks room, and waits: store_waits_as()
 *   -ENOSPC, -EBUSY, -ENOMEM
 */
int store_txn_commit(struct store_ctx *ctx);

/*
 * A client that tracks reads `key`.  True: the transaction has changed the key, so the value that
 * is read takes effect with its commit.
 */
bool store_txn_reads_own(struct store_ctx *ctx, const void *key, size_t key_len);

/*
 * store_txn_commit(), which before it returns 0 calls `fn` for each key that was read in this way.
 * `outdated`: the transaction has changed it again.  If it was read after its last change, later
 * changes have `position` in the change feed, or a higher one; else that is 0.
 */
typedef void store_own_read_fn(void *arg, const void *key, size_t key_len, bool outdated,
			       uint64_t position);
int store_txn_commit_reads(struct store_ctx *ctx, store_own_read_fn *fn, void *arg);

/*
 * Ends the transaction without its changes.  0 if all its reads were valid at one point in time,
 * else an error as above.  Notes (store_txn_note()) are reported.
 */
int store_txn_drop(struct store_ctx *ctx);

/* Ends the transaction, if there is one, without a change, and without checking its reads. */
void store_txn_abort(struct store_ctx *ctx);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The store as xkvd sees it.  This is the only user-space code that calls the
 * BPF operations and that knows pages and slots; everything above it (RESP, UDP
 * fallback, snapshots, expiry) goes through these functions.
 *
 * Threads: a `struct store_ctx` belongs to one thread at a time; different
 * contexts may be used at once.  The functions that take a context may block for the
 * time of one BPF run, and for some tens of milliseconds when the store has to
 * grow by pages.
 *
 * Errors are negative errno values:
 *   -ENOENT    no such key, or it has expired
 *   -ECANCELED the condition (XKV_NX, XKV_XX, XKV_CAS) does not hold
 *   -ENOSPC    the store is full (max-keys, or no memory for pages)
 *   -EBUSY     contended beyond a bound; nothing was changed
 *   -EMSGSIZE  key or value too long
 *   -EDOM      INCR: the value is not a number
 *   -ERANGE    INCR: the sum would be out of range
 *   -EINVAL    an argument is out of range
 * Anything else is a failed system call.
 */
#ifndef XKV_STORE_H
#define XKV_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "bpf/proto.h"

struct store;
struct store_ctx;

/* One entry as a reader gets it.  `value` stays valid until the next call with the same context. */
struct store_entry {
	const void *value;  /* NULL = there is none, or it was not asked for */
	size_t value_len;   /* bytes, 0..XKV_VALUE_MAX */
	uint64_t expire_ms; /* Unix time in milliseconds, 0 = never */
	uint64_t version;
	int64_t number;     /* INCR: the sum; APPEND: the new length */
};

/*
 * An operation on one key, as bpf/proto.h has them.  What it points to stays as it is until it is
 * done.
 */
struct store_op {
	uint8_t opcode; /* XKV_OP_GET, SET, DELETE, EXPIRE, INCR, APPEND, TTL or TOUCH */
	/* XKV_NX, XKV_XX, XKV_KEEPTTL, XKV_CAS, XKV_RETURN, where the opcode knows them */
	uint8_t flags;
	const void *key;
	size_t key_len;
	const void *value; /* SET, APPEND */
	size_t value_len;
	int64_t amount;     /* INCR */
	/* SET, EXPIRE: Unix time in milliseconds, 0 = never; a past one: nobody sees it any more */
	uint64_t expire_ms;
	uint64_t version;   /* with XKV_CAS: SET, DELETE, EXPIRE, INCR, APPEND */
	bool expired;       /* DELETE: only an entry that has expired, of which nobody else hears */
};

/* A context for the calling thread, NULL with errno set when all are taken. */
struct store_ctx *store_ctx_get(struct store *st);
void store_ctx_put(struct store_ctx *ctx);

/*
 * Does one operation, whatever the size of the values.  0 or an error; *out is what is there
 * afterwards, with the value that GET reads or that XKV_RETURN asks for (the old
 * one, also when XKV_NX was in its way), and all zero where there is none.
 */
int store_do(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out);

/*
 * Does many operations in this order, as store_do() would, but with few system
 * calls.  `done` hears of each in turn; it must not use this context, and what it gets is
 * valid during the call only.  Operations of others may come between.
 */
typedef void store_done_fn(void *arg, unsigned int op, int ret, const struct store_entry *out);
void store_run(struct store_ctx *ctx, const struct store_op *ops, unsigned int count,
	       store_done_fn *done, void *arg);

/* ---- single operations ---- */

/* Reads `key`.  0 and *out, or -ENOENT, -EBUSY, -EMSGSIZE. */
static inline int store_get(struct store_ctx *ctx, const void *key, size_t key_len,
			    struct store_entry *out)
{
	struct store_op op = { .opcode = XKV_OP_GET, .key = key, .key_len = key_len };

	return store_do(ctx, &op, out);
}

/* Reads what store_get() does but for the value; counts as an access only if `touch`. */
static inline int store_touch(struct store_ctx *ctx, const void *key, size_t key_len, bool touch,
			      struct store_entry *out)
{
	struct store_op op = {
		.opcode = touch ? XKV_OP_TOUCH : XKV_OP_TTL, .key = key, .key_len = key_len
	};

	return store_do(ctx, &op, out);
}

/*
 * Sets `key`.  `flags` are XKV_NX, XKV_XX, XKV_KEEPTTL, XKV_CAS (with `version`).  With `old` not
 * NULL the replaced value is returned there (old->value NULL if there was none), also when
 * -ECANCELED comes back because of XKV_NX.  0 or an error.
 */
static inline int store_set(struct store_ctx *ctx, const void *key, size_t key_len,
			    const void *value, size_t value_len, unsigned int flags,
			    uint64_t version, uint64_t expire_ms, struct store_entry *old)
{
	struct store_entry unused;
	struct store_op op = {
		.opcode = XKV_OP_SET,
		.flags = (uint8_t)(flags | (old ? XKV_RETURN : 0)),
		.key = key,
		.key_len = key_len,
		.value = value,
		.value_len = value_len,
		.expire_ms = expire_ms,
		.version = version,
	};

	return store_do(ctx, &op, old ? old : &unused);
}

/* Deletes `key`; with `old` not NULL returns what it held.  0, -ENOENT, -EBUSY. */
static inline int store_delete(struct store_ctx *ctx, const void *key, size_t key_len,
			       struct store_entry *old)
{
	struct store_entry unused;
	struct store_op op = {
		.opcode = XKV_OP_DELETE,
		.flags = old ? XKV_RETURN : 0,
		.key = key,
		.key_len = key_len,
	};

	return store_do(ctx, &op, old ? old : &unused);
}

/* Changes the expiry: Unix time in milliseconds, 0 = never.  0, -ENOENT, -EBUSY. */
static inline int store_expire(struct store_ctx *ctx, const void *key, size_t key_len,
			       uint64_t expire_ms)
{
	struct store_entry unused;
	struct store_op op = {
		.opcode = XKV_OP_EXPIRE, .key = key, .key_len = key_len, .expire_ms = expire_ms
	};

	return store_do(ctx, &op, &unused);
}

/*
 * Adds `amount` to the number that is the value of `key`, 0 if there is none.  0, -EDOM, -ERANGE,
 * -EBUSY, -ENOSPC.
 */
static inline int store_incr(struct store_ctx *ctx, const void *key, size_t key_len,
			     int64_t amount, int64_t *sum)
{
	struct store_entry out;
	struct store_op op = {
		.opcode = XKV_OP_INCR, .key = key, .key_len = key_len, .amount = amount
	};
	int ret = store_do(ctx, &op, &out);

	*sum = out.number;
	return ret;
}

/*
 * Appends to the value of `key`, or makes it.  0, -EMSGSIZE (the value would become too long),
 * -EBUSY, -ENOSPC.
 */
static inline int store_append(struct store_ctx *ctx, const void *key, size_t key_len,
			       const void *value, size_t value_len, uint64_t *new_len)
{
	struct store_entry out;
	struct store_op op = {
		.opcode = XKV_OP_APPEND,
		.key = key,
		.key_len = key_len,
		.value = value,
		.value_len = value_len,
	};
	int ret = store_do(ctx, &op, &out);

	*new_len = (uint64_t)out.number;
	return ret;
}

/* ---- all of it ---- */

/*
 * Walks the keys, a bucket of the index at a time.  Start with *cursor = 0;
 * call until it is 0 again.  Every key that exists for the whole walk is
 * reported exactly once, a key that comes or goes meanwhile at most once (the
 * index never rehashes).  About `count` keys a call; `fn` gets each live key
 * with its entry (`value` only if `values`; valid during the call only) and returns 0
 * to go on, else the walk ends with that value.  `fn` must not use this context.
 * 0, the value of `fn`, or an error: -EBUSY if a key could not be read for seconds.
 */
typedef int store_scan_fn(void *arg, const void *key, size_t key_len,
			  const struct store_entry *entry);
int store_scan(struct store_ctx *ctx, uint64_t *cursor, unsigned int count, bool values,
	       store_scan_fn *fn, void *arg);

/*
 * Deletes about `count` keys, or looks for them in some buckets, as store_scan() does: call with
 * *cursor = 0, and until it is 0 again, to delete everything that is there at the first call.  What
 * is inserted meanwhile may go or stay.  0 or an error.
 */
int store_flush_some(struct store_ctx *ctx, uint64_t *cursor, unsigned int count);
/* All of it in one call. */
int store_flush(struct store_ctx *ctx);

/* What goes when memory is short; the names are Redis' maxmemory-policy. */
enum store_policy {
	STORE_NOEVICTION,
	STORE_ALLKEYS_LRU,
	STORE_ALLKEYS_LFU,
	STORE_ALLKEYS_RANDOM,
	STORE_VOLATILE_LRU,
	STORE_VOLATILE_LFU,
	STORE_VOLATILE_RANDOM,
	STORE_VOLATILE_TTL,
};

/* Limits store_memory() to `maxmemory` bytes, 0 = no limit.  Takes effect with the next insert. */
void store_limit(struct store *st, uint64_t maxmemory, enum store_policy policy);
/*
 * Until that is called again: allows one page more than there are, and evicts nothing.  For what
 * has to be taken in any case.
 */
void store_limit_lift(struct store *st);

/* Bytes of kernel memory that the store takes with nothing in it but one page. */
uint64_t store_memory_least(const struct store *st);

/* Keys in the store, expired ones that were not yet removed included. */
uint64_t store_count(const struct store *st);
/* Keys with an expiry, as the last whole turn of store_expire_cycle() has met them. */
uint64_t store_expiring(const struct store *st);
/* What those had left on average, in milliseconds. */
uint64_t store_avg_ttl(const struct store *st);
/* Keys that the index was made for. */
uint64_t store_max_keys(const struct store *st);
/* Bytes of kernel memory: index, pages, tables. */
uint64_t store_memory(const struct store *st);
/* Does maxmemory allow no further page?  Then -ENOSPC comes of that. */
bool store_at_limit(const struct store *st);
/* Sum over all CPUs of the counter with this name (see bpf/layout.h), 0 if there is none. */
uint64_t store_counter(const struct store *st, const char *name);
/* Calls fn for every counter, in the order of bpf/layout.h. */
void store_counters(const struct store *st, void (*fn)(void *arg, const char *name, uint64_t value),
		    void *arg);

/*
 * Operations of the UDP protocol that had a result: in the driver since the maps were made, and
 * here.
 */
void store_udp_operations(const struct store *st, uint64_t *driver, uint64_t *here);

/*
 * Whether requests of the UDP protocol that would change something are answered XKV_READ_ONLY, by
 * both front ends.
 */
void store_refuse_writes(struct store *st, bool refuse);

/* Says who has sent the datagrams that come next: sessions are proven for an address. */
void store_sender(struct store_ctx *ctx, const struct sockaddr *from);

/*
 * Runs one request of the UDP protocol that XDP passed up, whatever it needs:
 * waits out contention, grows the store.  `req` and `reply` must not overlap;
 * the reply has at most `reply_max` bytes (<= XKV_PAYLOAD_MAX4), and where a longer
 * one than `reply_allowed` would be due, it asks for padding instead.  Returns
 * the bytes of the reply, 0 if there must be none, or an error.
 */
int store_datagram(struct store_ctx *ctx, const void *req, size_t req_len, void *reply,
		   size_t reply_max, size_t reply_allowed);

/*
 * Removes up to `max_slots` expired entries, or looks at some tens of times as
 * many that stay, and goes on there the next time.  Costs next to nothing where no key has
 * an expiry.  Returns how many it removed.
 */
unsigned int store_expire_cycle(struct store_ctx *ctx, unsigned int max_slots);
/*
 * Is there nothing for it to do?  The last whole turn met no key with an expiry, and none came
 * since.
 */
bool store_expiry_rests(const struct store *st);

/* Unix time in milliseconds, by the clock that expiry is judged by. */
uint64_t store_now_ms(const struct store *st);

#endif

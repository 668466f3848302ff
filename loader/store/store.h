/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The store, for the rest of xkvd.  Only loader/store calls the BPF operations and knows pages and
 * slots; everything else (RESP, the UDP slow path, snapshots, expiry) uses these functions.
 *
 * Threads: a `struct store_ctx` is used by one thread at a time; different contexts may be used at
 * the same time.  Functions that take a `struct store` are thread safe.  Functions that take a
 * context may block for one run of a BPF program, and for up to 5 s if the store needs memory that
 * has to be freed first.  Lengths are in bytes, times in milliseconds of Unix time unless noted.
 * Keys and values passed in stay the caller's.  Errors are negative errno values:
 *   -ENOENT    no such key, or it has expired
 *   -ECANCELED the condition (XKV_NX, XKV_XX, XKV_CAS) does not hold
 *   -ENOSPC    the store is full (max-keys, or no memory for pages)
 *   -EBUSY     contended beyond a bound; nothing was changed
 *   -EMSGSIZE  key or value too long
 *   -EDOM      INCR: the value is not a number
 *   -ERANGE    INCR: the sum would be out of range
 *   -EINVAL    an argument is out of range
 *   -ENOMEM    xkvd has no memory for a large value
 * Any other value is the error of a failed system call.
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

/* An entry.  `value` points to memory of the context, valid until the next call with it. */
struct store_entry {
	const void *value;  /* NULL if the key has none, or it was not requested */
	size_t value_len;   /* bytes, 0..XKV_HUGE_MAX */
	uint64_t expire_ms; /* Unix time in milliseconds, 0 = never */
	uint64_t version;
	int64_t number; /* INCR: the sum; APPEND: the new length; a part: the whole length */
	uint8_t db;	/* of a walk: the stored number of its database (store_numbers()) */
};

/*
 * Keys may have up to XKV_LONG_KEY_MAX bytes, or none.  UDP clients can use keys of 1 to
 * XKV_KEY_MAX; the others are long keys (longkey.h).
 *
 * An operation on one key (bpf/proto.h).  Key and value must not change until it has been executed.
 */
struct store_op {
	uint8_t opcode; /* XKV_OP_GET, SET, DELETE, EXPIRE, INCR, APPEND, TTL or TOUCH */
	/* XKV_NX, XKV_XX, XKV_KEEPTTL, XKV_CAS, XKV_RETURN, where the opcode allows them */
	uint8_t flags;
	const void *key;
	size_t key_len;
	const void *value; /* SET, APPEND */
	size_t value_len;
	int64_t amount; /* INCR */
	/* SET, EXPIRE: Unix ms, 0 = never; a time in the past removes the key for readers */
	uint64_t expire_ms;
	uint64_t version; /* with XKV_CAS: SET, DELETE, EXPIRE, INCR, APPEND */
	/* GET: only these bytes of the value, as in GETRANGE, after the `head` */
	bool part;
	int64_t first, last;
	size_t head;
	bool expired;  /* DELETE: only if the entry has expired; counts as an expiry */
	uint8_t cause; /* for listeners of the change feed (feed.h), 0 = the opcode */
};

/* Takes a free context.  NULL with errno EAGAIN if all are taken.  Thread safe. */
struct store_ctx *store_ctx_get(struct store *st);
/* Returns a context, or does nothing for NULL.  Entries that point into it become invalid. */
void store_ctx_put(struct store_ctx *ctx);

/*
 * Executes one operation, with values of any size up to XKV_HUGE_MAX.  0 or an error.  *out
 * describes the entry afterwards: the value that GET reads, or the old value if XKV_RETURN is set
 * (also when XKV_NX refused the operation); all zero if there is no entry.
 */
int store_do(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out);

/*
 * Takes over the memory of a huge value that an operation of this context has just read: *room
 * bytes, which the caller frees with free().  NULL: the caller has to copy it.
 */
char *store_value_take(struct store_ctx *ctx, const struct store_entry *e, size_t *room);

/* The longest value that APPEND makes, at most XKV_HUGE_MAX and at least XKV_VALUE_MAX. */
void store_append_limit(struct store *st, size_t most);

/*
 * Prefetches the cache lines of the first of these operations, up to 32, together; otherwise each
 * waits for its own.  Uses only their keys.
 */
void store_prefetch(struct store_ctx *ctx, const struct store_op *ops, unsigned int count);

/*
 * Executes `count` operations in order, like store_do(), with as few system calls as possible.
 * Calls done(arg, number, result, entry) for each; it must not use this context, and the entry is
 * valid during the call only.  Together they are not atomic: operations of other threads and of XDP
 * may come in between.
 */
typedef void store_done_fn(void *arg, unsigned int op, int ret, const struct store_entry *out);
void store_run(struct store_ctx *ctx, const struct store_op *ops, unsigned int count,
	       store_done_fn *done, void *arg);

/*
 * The client for whom the next changes of this context are made, 0 = unknown; the records in the
 * change feed have it.
 */
void store_origin(struct store_ctx *ctx, uint16_t origin);

/* While it is on, GETs of this context do not count as uses for eviction; off at first. */
void store_no_touch(struct store_ctx *ctx, bool on);

/* ---- databases ---- */

/*
 * A key is identified by its database and its bytes.  Clients call databases by numbers less than
 * STORE_DATABASES.  Entries have stored numbers, which store_swap() does not change.
 */
#define STORE_DATABASES 256

/*
 * Selects the database of the context's next operations; 0 in a new context.  After store_swap(),
 * even before store_swaps_end(), this is the exchanged one.
 */
void store_select(struct store_ctx *ctx, unsigned int db);

/*
 * The stored number of the selected database, and back: for operations that have to continue with
 * the same keys in spite of store_swap().
 */
uint8_t store_selected(const struct store_ctx *ctx);
void store_reselect(struct store_ctx *ctx, uint8_t stored);

/* The clients' present numbers of the databases, by stored number. */
void store_numbers(const struct store *st, uint8_t number[STORE_DATABASES]);
/* The same for one of them. */
unsigned int store_number(const struct store *st, uint8_t stored);

/*
 * Exchanges two databases.  store_swaps_end() makes all exchanges since its last call take effect,
 * for all clients at once.  That takes some milliseconds; false: nothing was exchanged.  In between
 * only a thread with exclusive use of the store may execute operations.  One thread at a time.
 */
void store_swap(struct store *st, unsigned int a, unsigned int b);
bool store_swaps_end(struct store *st);

/*
 * Has each database be what the one of the number before[it] was, for all clients at once.  For a
 * load, beside which clients select databases: until this they see none of its exchanges.
 */
void store_arrange(struct store *st, const uint8_t before[STORE_DATABASES]);

/* UDP clients may use databases 0 .. count - 1. */
void store_databases(struct store *st, unsigned int count);

struct store_database {
	uint64_t keys; /* including expired ones that have not been removed yet */
	/* with an expiry, and their average time to live when store_expire_cycle() met them */
	uint64_t expiring, avg_ttl_ms;
};
void store_database(const struct store *st, unsigned int db, struct store_database *out);

/* ---- single operations ---- */

/* Reads `key`.  0 and *out, or -ENOENT, -EBUSY, -EMSGSIZE. */
static inline int store_get(struct store_ctx *ctx, const void *key, size_t key_len,
			    struct store_entry *out)
{
	struct store_op op = { .opcode = XKV_OP_GET, .key = key, .key_len = key_len };

	return store_do(ctx, &op, out);
}

/*
 * Reads expiry and version of `key`, not its value.  Counts as an access for eviction only if
 * `touch`.  0 and *out, or -ENOENT, -EBUSY, -EMSGSIZE.
 */
static inline int store_touch(struct store_ctx *ctx, const void *key, size_t key_len, bool touch,
			      struct store_entry *out)
{
	struct store_op op = { .opcode = touch ? XKV_OP_TOUCH : XKV_OP_TTL,
			       .key = key,
			       .key_len = key_len };

	return store_do(ctx, &op, out);
}

/*
 * Sets `key`.  `flags` are XKV_NX, XKV_XX, XKV_KEEPTTL, XKV_CAS (with `version`).  If `old` is not
 * NULL it gets the previous value (old->value is NULL if there was none), also when XKV_NX makes
 * the function return -ECANCELED.  0 or an error.
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

/* Deletes `key`.  If `old` is not NULL it gets the deleted entry.  0, -ENOENT, -EBUSY. */
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

/* Changes the expiry of `key` (Unix ms, 0 = never).  0, -ENOENT, -EBUSY. */
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
 * Adds `amount` to the decimal number that is the value of `key`; a missing key counts as 0.  0 and
 * *sum, or -EDOM, -ERANGE, -EBUSY, -ENOSPC.
 */
static inline int store_incr(struct store_ctx *ctx, const void *key, size_t key_len, int64_t amount,
			     int64_t *sum)
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
 * Appends to the value of `key`, or sets it if the key is missing.  0 and *new_len in bytes, or
 * -EMSGSIZE (the value would become too long), -EBUSY, -ENOSPC.
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

/* ---- the whole store ---- */

/*
 * Walks the keys, one bucket of the index after the other.  Start with *cursor = 0 and call until
 * it is 0 again.  A key that exists during the whole walk is reported exactly once, a key that is
 * inserted or deleted meanwhile at most once (the index is never resized).  A call reports about
 * `count` keys.  `fn` gets each live key with its entry (`value` only if `values`), valid during
 * the call only; it must not use this context, and ends the walk by returning other than 0.
 * 0, the value of `fn`, -ENOMEM, or -EBUSY if a key could not be read for seconds.
 */
typedef int store_scan_fn(void *arg, const void *key, size_t key_len,
			  const struct store_entry *entry);
int store_scan(struct store_ctx *ctx, uint64_t *cursor, unsigned int count, bool values,
	       store_scan_fn *fn, void *arg);

/* The same with values, including entries that have expired but are not removed yet. */
int store_scan_all(struct store_ctx *ctx, uint64_t *cursor, unsigned int count, store_scan_fn *fn,
		   void *arg);

/* The same in their stored form, without values: for those who remove keys. */
int store_scan_stored(struct store_ctx *ctx, uint64_t *cursor, unsigned int count,
		      store_scan_fn *fn, void *arg);

/*
 * The same for the keys of the selected database, without values, up to the cursor `end`.  It skips
 * keys of other databases, so a call may report none; it ends at once if the database is empty.
 */
int store_scan_db(struct store_ctx *ctx, uint64_t *cursor, uint64_t end, unsigned int count,
		  store_scan_fn *fn, void *arg);

/* Cursors of store_scan() are less than this; a random one is a random place to begin. */
uint64_t store_scan_end(const struct store *st);

/*
 * The size of the entry of `key` and how often it is used; not an access.  0 or -ENOENT, -EBUSY,
 * -EMSGSIZE.
 */
#define STORE_UNRECORDED (-1)
struct store_usage {
	uint64_t bytes; /* of its slot */
	/*
	 * With an LFU policy.  8 and more: 8 for each doubling of the recent uses, estimated from
	 * samples (hot-sample-rate).  Below 8, for keys without a sample: the measure that eviction
	 * uses.  STORE_UNRECORDED: uses are not recorded.
	 */
	int frequency;
};
int store_usage(struct store_ctx *ctx, const void *key, size_t key_len, struct store_usage *out);

/* A sampled key (hot-sample-rate). */
struct store_hot {
	char text[64]; /* the first bytes of the key */
	size_t text_len;
	int key_len; /* -1: more than XKV_KEY_MAX */
	unsigned int database;
	uint64_t reads, writes; /* estimated, and halved each minute */
};
/* The most used ones first, `count` at most, to `out`.  How many, or -errno. */
int store_hottest(const struct store *st, struct store_hot *out, unsigned int count);

/*
 * Deletes about `count` keys of the next buckets, with a cursor as store_scan() has: those of the
 * selected database, or of all.  Called until *cursor is 0 again it has deleted all keys that
 * existed at the first call; keys that are inserted meanwhile may remain.  0 or an error.
 */
int store_flush_some(struct store_ctx *ctx, uint64_t *cursor, unsigned int count, bool all);
/* The same for all keys in one call, which may take long. */
int store_flush(struct store_ctx *ctx);

/* Which entries are evicted when memory is short, named as in Redis' maxmemory-policy. */
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

/*
 * Limits store_memory() to `maxmemory` bytes, 0 = no limit.  Takes effect with the next insert.
 * Concurrent calls of this and of store_limit_lift() are not allowed.
 */
void store_limit(struct store *st, uint64_t maxmemory, enum store_policy policy);
/*
 * No limit and no eviction until the next store_limit(): for the keys of a snapshot, which must be
 * stored whatever the limit.
 */
void store_limit_lift(struct store *st);

/* The store is about to have so many bytes more: memory is made ready ahead.  0 = not any more. */
void store_expect(struct store *st, uint64_t bytes);

/* Bytes of kernel memory that an empty store uses, with its first page. */
uint64_t store_memory_least(const struct store *st);

/* Number of keys, including expired ones that have not been removed yet. */
uint64_t store_count(const struct store *st);
/* Number of keys that the index was sized for. */
uint64_t store_max_keys(const struct store *st);
/* Bytes of kernel memory in use: index, pages, tables. */
uint64_t store_memory(const struct store *st);
/* Its parts, which add up to it. */
#define STORE_PARTS 7
struct store_part {
	const char *name; /* static */
	uint64_t bytes;
};
void store_parts(const struct store *st, struct store_part parts[STORE_PARTS]);
/* A size class: a slot is for one entry. */
struct store_class {
	uint32_t slot_bytes; /* 0: large values, each in as many bytes as it needs */
	uint64_t spans, slots, free, bytes;
	uint64_t wanted; /* how often none was free */
};
/* The class with this number, from 0 on.  False: there is none. */
bool store_class(const struct store *st, unsigned int number, struct store_class *out);
/*
 * Would another page exceed maxmemory, or did a huge value?  If so, that is the reason for an
 * -ENOSPC.
 */
bool store_at_limit(const struct store *st);
/* Sum over all CPUs of the counter with this name (bpf/layout.h), 0 if the name is unknown. */
uint64_t store_counter(const struct store *st, const char *name);
/*
 * Calls fn for every counter, in the order of enum xkv_counter, with its sums over all CPUs for
 * each front end (enum xkv_frontend).
 */
typedef void store_counter_fn(void *arg, unsigned int number, const char *name,
			      const uint64_t frontend[2]);
void store_counters(const struct store *st, store_counter_fn *fn, void *arg);

/* Calls fn(arg, cpu, sum) for each CPU on which the driver has answered datagrams. */
void store_replies(const struct store *st, void (*fn)(void *arg, unsigned int cpu, uint64_t count),
		   void *arg);

/*
 * Number of UDP operations that had a result: *driver in XDP since the maps were made, *here in
 * xkvd since its start.
 */
void store_udp_operations(const struct store *st, uint64_t *driver, uint64_t *here);

/*
 * Makes XDP and xkvd refuse changes over UDP with XKV_READ_ONLY, or accept them again.
 */
void store_refuse_writes(struct store *st, bool refuse);

/*
 * Changes over UDP go to an upstream, or to the store again.  XDP leaves them to xkvd, where
 * store_datagram() answers those that the upstream cannot make (XKV_READ_ONLY).
 */
void store_writes_up(struct store *st, bool up);

/*
 * XDP leaves changes over UDP, and copies of earlier ones, to store_datagram(), so that their
 * replies can wait for the disk; or executes changes itself again.
 */
void store_writes_durable(struct store *st, bool durable);

/*
 * Is there a write log?  XDP leaves requests with XKV_F_DURABLE to store_datagram(); without a log
 * both refuse them (XKV_NO_LOG).
 */
void store_is_logged(struct store *st, bool logged);

/*
 * The store is a cache, whose entries are valid until then (since boot, monotonic), 1: not now; 0:
 * it is not a cache.  After that time XDP answers nothing from it.
 */
void store_lease(struct store *st, uint64_t until_ns);
bool store_is_cache(const struct store *st);

/*
 * Makes XDP leave changes to store_datagram(), so that they cannot repeatedly change keys that a
 * transaction of so many keys has read: for at most 10 ms plus 3 us for each key, and never for
 * more than a fifth of the time.  Ending a hold ends those of other transactions, too.
 */
void store_hold_writes(struct store *st, bool hold, unsigned int keys);

/*
 * By default, a transaction that needs much room in a full store blocks its thread until the room
 * is made.  With `who` (0: default) it fails with -EAGAIN instead; the caller asks
 * store_room_waits(who) each time that `told` was called, and starts again when that is false.
 * From the first failure until store_room_done(who), room may be kept for it.
 */
void store_waits_as(struct store_ctx *ctx, uint64_t who);
bool store_room_waits(struct store *st, uint64_t who);
/* Returns whether it had its turn, so that others may have theirs. */
bool store_room_done(struct store *st, uint64_t who);
/*
 * `told` is called by a thread of the store, under a lock: it should only wake a thread.  NULL:
 * transactions do not wait in this way.
 */
typedef void store_room_fn(void *arg);
void store_room_tell(struct store *st, store_room_fn *told, void *arg);

/* Sets the client address of the next datagrams: a session is proven for one address. */
void store_sender(struct store_ctx *ctx, const struct sockaddr *from);

/*
 * Executes one UDP request that XDP passed up.  Retries when contended, and adds memory if
 * necessary.  `req` and `reply` must not overlap.  The reply has at most `reply_max` bytes
 * (<= XKV_PAYLOAD_MAX4); if it would have more than `reply_allowed`, it asks the client to pad its
 * request instead.  Returns the length of the reply in bytes, 0 if none may be sent, or an error.
 */
int store_datagram(struct store_ctx *ctx, const void *req, size_t req_len, void *reply,
		   size_t reply_max, size_t reply_allowed);

/*
 * Did store_datagram() just return 0 because the first operation is a change that the upstream has
 * to make?  With ONCE, its copies are dropped until store_record() has kept its reply: so it is
 * made at most once, also if xkvd is killed meanwhile.
 */
bool store_goes_up(const struct store_ctx *ctx);
void store_record(struct store_ctx *ctx, const void *req, size_t req_len, const void *reply,
		  size_t reply_len);

/*
 * Removes expired entries: up to `max_slots`, or fewer when it has examined some tens of times as
 * many slots.  The next call continues from there.  Costs next to nothing while no key has an
 * expiry.  Returns the number of removed entries.  One thread only.
 */
unsigned int store_expire_cycle(struct store_ctx *ctx, unsigned int max_slots);
/*
 * Has store_expire_cycle() nothing to do?  True if its last complete round met no key with an
 * expiry, and no key got one since.
 */
bool store_expiry_rests(const struct store *st);

/* Unix time in milliseconds, from the clock that expiry is compared with. */
uint64_t store_now_ms(const struct store *st);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The store as xkvd sees it.  This is the only user-space code that calls the
 * BPF operations and that knows pages and slots; everything above it (RESP, UDP
 * fallback, snapshots, expiry) goes through these functions.
 *
 * Threads: a `struct store_lane` belongs to one thread at a time; different
 * lanes may be used at once.  The functions that take a lane may block for the
 * time of one BPF run, and for some tens of milliseconds when the store has to
 * grow by pages.
 *
 * Errors are negative errno values:
 *   -ENOENT    no such key, or it has expired
 *   -ECANCELED the condition (XKV_NX, XKV_XX, XKV_CAS) does not hold
 *   -ENOSPC    the store is full (max-keys, or no memory for pages)
 *   -EBUSY     contended beyond a bound; nothing was changed
 *   -EMSGSIZE  key or value too long
 *   -EINVAL    an argument is out of range
 * Anything else is a failed system call.
 */
#ifndef XKV_STORE_H
#define XKV_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../bpf/proto.h"

struct store;
struct store_lane;

/* One entry as a reader gets it.  `value` stays valid until the next call with the same lane. */
struct store_entry {
	const void *value;
	size_t value_len;   /* bytes, 0..XKV_VALUE_MAX */
	uint64_t expire_ms; /* Unix time in milliseconds, 0 = never */
	uint64_t version;
};

/* A lane for the calling thread, NULL with errno set when all are taken. */
struct store_lane *store_lane_get(struct store *st);
void store_lane_put(struct store_lane *lane);

/* Reads `key`.  0 and *out, or -ENOENT, -EBUSY, -EMSGSIZE. */
int store_get(struct store_lane *lane, const void *key, size_t key_len, struct store_entry *out);

/*
 * Sets `key`.  `flags` are XKV_NX, XKV_XX, XKV_KEEPTTL, XKV_CAS (with `version`).
 * `expire_ms` is Unix time in milliseconds, 0 = never; in the past means the
 * entry is gone at once.  With `old` not NULL the replaced value is returned
 * there (old->value NULL if there was none), also when -ECANCELED comes back
 * because of XKV_NX.  0 or an error.
 */
int store_set(struct store_lane *lane, const void *key, size_t key_len, const void *value,
	      size_t value_len, unsigned int flags, uint64_t version, uint64_t expire_ms,
	      struct store_entry *old);

/* Deletes `key`; with `old` not NULL returns what it held.  0, -ENOENT, -EBUSY. */
int store_delete(struct store_lane *lane, const void *key, size_t key_len,
		 struct store_entry *old);

/* Changes the expiry: Unix time in milliseconds, 0 = never.  0, -ENOENT, -EBUSY. */
int store_expire(struct store_lane *lane, const void *key, size_t key_len, uint64_t expire_ms);

/*
 * Walks the keys, a bucket of the index at a time.  Start with *cursor = 0;
 * call until it is 0 again.  Every key that exists for the whole walk is
 * reported exactly once, a key that comes or goes meanwhile at most once (the
 * index never rehashes).  About `count` keys a call; `fn` gets each live key
 * with its entry (`value` only if `values`; valid during the call only) and returns 0
 * to go on, else the walk ends with that value.  `fn` must not use this lane.
 * 0, the value of `fn`, or an error.
 */
typedef int store_scan_fn(void *arg, const void *key, size_t key_len,
			  const struct store_entry *entry);
int store_scan(struct store_lane *lane, uint64_t *cursor, unsigned int count, bool values,
	       store_scan_fn *fn, void *arg);

/* Deletes everything that is there when it is called.  0 or an error. */
int store_flush(struct store_lane *lane);

/* Keys in the store, expired ones that were not yet removed included. */
uint64_t store_count(const struct store *st);
/* Keys with an expiry, as the last whole turn of store_expire_cycle() has met them. */
uint64_t store_expiring(const struct store *st);
/* Greatest number of keys. */
uint64_t store_max_keys(const struct store *st);
/* Bytes of kernel memory: index elements and table, pages, near, scratch. */
uint64_t store_memory(const struct store *st);
/* Sum over all CPUs of the counter with this name (see bpf/layout.h), 0 if there is none. */
uint64_t store_counter(const struct store *st, const char *name);
/* Calls fn for every counter, in the order of bpf/layout.h. */
void store_counters(const struct store *st, void (*fn)(void *arg, const char *name, uint64_t value),
		    void *arg);

/*
 * Runs one request of the UDP protocol that XDP passed up, whatever it needs:
 * waits out contention, grows the store.  `req` and `reply` must not overlap;
 * the reply has at most `reply_max` bytes (<= XKV_PAYLOAD_MAX4), and where a longer
 * one than `reply_allowed` would be due, it asks for padding instead.  Returns
 * the bytes of the reply, 0 if there must be none, or an error.
 */
int store_datagram(struct store_lane *lane, const void *req, size_t req_len, void *reply,
		   size_t reply_max, size_t reply_allowed);

/*
 * Removes up to `max_slots` expired entries, or looks at some tens of times as
 * many that stay, and goes on there the next time.  Costs next to nothing where no key has
 * an expiry.  Returns how many it removed.
 */
unsigned int store_expire_cycle(struct store_lane *lane, unsigned int max_slots);

/* Unix time in milliseconds, by the clock that expiry is judged by. */
uint64_t store_now_ms(const struct store *st);

#endif

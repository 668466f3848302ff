/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The dedup cache: a request with XKV_F_ONCE is executed once, however often it arrives.
 *
 * A client draws a session and numbers its requests; id % XKV_ONCE_SLOTS selects the slot of a
 * request, as in NFS 4.1 (RFC 8881, 2.10.6).  The server keeps the last request of each slot with
 * its reply.  A request with the same id is answered from there; one with an older id is a delayed
 * copy, and is dropped.
 *
 * Records are not reassigned for a minute, so invented sessions could occupy all of them.
 * Therefore some are reserved for proven sessions: the client draws the first bytes, and the server
 * returns the last ones, a keyed hash of these and the client's address, which only a receiver at
 * that address learns.  This needs no state in the server.  In addition each source has a limited
 * share of records.
 */
#ifndef XKV_ONCE_BPF_H
#define XKV_ONCE_BPF_H

#include "siphash.h"
#include "store.bpf.h"

#define PROOF_MASK ((1ULL << (8 * XKV_SESSION_PROOF)) - 1)

/* Milliseconds since boot: unlike the time of day it is not stepped. */
static __always_inline __u64 once_clock(void)
{
	return bpf_ktime_get_boot_ns() / 1000000;
}

/* The offset of the session in a request with XKV_F_ONCE. */
static __always_inline __u32 session_off(struct xkv_frame *f)
{
	struct xkv_hdr *hdr = (struct xkv_hdr *)f->in;

	return sizeof(*hdr) + (hdr->flags & XKV_F_TOKEN ? XKV_TOKEN_BYTES : 0);
}

/* The session of a request, as a number. */
static __always_inline __u64 session_of(struct xkv_frame *f)
{
	return bpf_be64_to_cpu(IN(f, session_off(f)));
}

/* The session with the proof for the sender's address in its last bytes. */
static __always_inline __u64 session_proven(struct xkv_frame *f, const struct xkv_secret *s,
					    __u64 session)
{
	__u64 word[SIPHASH_WORDS] = { f->source[0], f->source[1], session & ~PROOF_MASK };

	return (session & ~PROOF_MASK) | (siphash(word, s->session) & PROOF_MASK);
}

/* The holder of the request's record: see struct xkv_once. */
static __always_inline __u32 once_holder(struct xkv_frame *f, const struct xkv_secret *s)
{
	__u64 session = session_of(f), net = f->source[0];
	__u32 source = hash_end(hash_word(net, &s->word[2]), net, 0, s) & ~XKV_ONCE_PROVEN;

	return source | (session_proven(f, s, session) == session ? XKV_ONCE_PROVEN : 0);
}

static __always_inline __u32 once_set_of(const struct xkv_secret *s, __u64 session, __u64 slot)
{
	__u64 products = hash_word(session, &s->word[0]) + hash_word(slot, &s->word[1]);

	return hash_end(products, session + slot, 0, s) & (XKV_ONCE_SETS - 1);
}

static __always_inline bool once_lock(struct xkv_once *o)
{
	__u64 lock = READ(o->lock);

	return !(lock & 1) && __sync_val_compare_and_swap(&o->lock, lock, lock + 1) == lock;
}

static __always_inline void once_unlock(struct xkv_once *o)
{
	smp_mb_writes();
	WRITE(o->lock, o->lock + 1);
}

/* The record that this request has locked. */
static __always_inline struct xkv_once *once_of(struct xkv_frame *f)
{
	__u32 place = f->once - 1, set = place / XKV_ONCE_WAYS;
	struct xkv_once_set *s = bpf_map_lookup_elem(&xkv_once, &set);

	return f->once && s ? &s->way[place & (XKV_ONCE_WAYS - 1)] : NULL;
}

enum once { ONCE_NEW, ONCE_REPEATED, ONCE_UNKEPT, ONCE_DROP, ONCE_FULL };

/* Compares the request with the locked record of its slot. */
static __always_inline int once_compare(struct xkv_frame *f, struct xkv_once *o, __u64 id)
{
	if ((__s64)(id - o->id) > 0) {
		o->id = id;
		return ONCE_NEW;
	}
	if (o->id != id)
		return ONCE_DROP;
	o->used_ms = once_clock();
	if (!o->len || o->len > XKV_ONCE_REPLY)
		return ONCE_UNKEPT;
	for (int i = 0; i < XKV_ONCE_REPLY / 8; i++)
		f->out_word[i] = o->reply[i];
	f->out_len = o->len;
	return ONCE_REPEATED;
}

/* Is the record free for another session?  Another CPU may have used it after `now`. */
static __always_inline bool once_is_free(const struct xkv_once *o, __u64 now)
{
	return !READ(o->session) || (__s64)(now - READ(o->used_ms)) > XKV_ONCE_MS;
}

/* The record of a session's slot, or NULL. */
static __always_inline struct xkv_once *once_find(struct xkv_once_set *set, __u64 session, __u64 id,
						  __u32 *way)
{
	struct xkv_once *o;

	for (__u32 i = XKV_ONCE_WAYS; i > 0; i--) {
		o = &set->way[i - 1];
		*way = i - 1;
		if (READ(o->session) == session && !((READ(o->id) ^ id) & (XKV_ONCE_SLOTS - 1)))
			return o;
	}
	return NULL;
}

/* Number of records in the set that this holder has. */
static __always_inline __u32 once_held(const struct xkv_once_set *set, __u32 holder, __u64 now)
{
	__u32 held = 0;

	for (__u32 i = 0; i < XKV_ONCE_WAYS; i++)
		held += READ(set->way[i].holder) == holder && !once_is_free(&set->way[i], now);
	return held;
}

/* Locks a record for a new session, or NULL.  Proven sessions prefer the reserved ones. */
static __always_inline struct xkv_once *once_take(struct xkv_once_set *set, __u32 holder, __u32 *way)
{
	__u32 ways = holder & XKV_ONCE_PROVEN ? XKV_ONCE_WAYS : XKV_ONCE_UNPROVEN_WAYS;
	__u64 now = once_clock();
	struct xkv_once *o;

	if (once_held(set, holder, now) >= XKV_ONCE_PER_SOURCE)
		return NULL;
	for (__u32 i = XKV_ONCE_WAYS; i > 0; i--) {
		o = &set->way[i - 1];
		*way = i - 1;
		if (i > ways || !once_is_free(o, now) || !once_lock(o))
			continue;
		if (once_is_free(o, now)) {
			o->holder = holder;
			return o;
		}
		once_unlock(o);
	}
	return NULL;
}

/*
 * Assigns the locked record to the session.  False if the session has another one by now: two
 * copies of a request that are processed at the same time may both find none.  Each publishes its
 * own before it looks for others, so at least one of them backs off.
 */
static __always_inline bool once_claim(struct xkv_once_set *set, struct xkv_once *mine, __u32 way,
				       __u64 session, __u64 id)
{
	bool alone = true;

	mine->id = id - XKV_ONCE_SLOTS;
	__sync_lock_test_and_set(&mine->session, session); /* also a full barrier */
	for (__u32 i = 0; i < XKV_ONCE_WAYS; i++)
		if (i != way && READ(set->way[i].session) == session &&
		    !((READ(set->way[i].id) ^ id) & (XKV_ONCE_SLOTS - 1)))
			alone = false;
	if (!alone)
		WRITE(mine->session, 0);
	return alone;
}

/*
 * No record was free.  False if another copy of the request may have just taken one: a client that
 * is told that there is no room relies on the request not having been executed.
 */
static __always_inline bool once_is_full(struct xkv_once_set *set, __u64 session, __u64 id)
{
	bool full = true;

	for (__u32 i = 0; i < XKV_ONCE_WAYS; i++)
		if ((READ(set->way[i].lock) & 1) ||
		    (READ(set->way[i].session) == session &&
		     !((READ(set->way[i].id) ^ id) & (XKV_ONCE_SLOTS - 1))))
			full = false;
	return full;
}

/* ONCE_NEW: the request is to be executed; its record stays locked until once_end(). */
__noinline int once_begin(struct xkv_frame *f)
{
	struct xkv_secrets *s = secrets();
	struct xkv_once_set *set;
	__u64 session, id;
	struct xkv_once *o;
	bool taken = false;
	__u32 number, way = 0;
	int what;

	if (!f || !s)
		return ONCE_DROP;
	session = IN(f, session_off(f));
	id = bpf_be64_to_cpu(((struct xkv_hdr *)f->in)->id);
	number = once_set_of(&s->hash, session, id & (XKV_ONCE_SLOTS - 1));
	set = bpf_map_lookup_elem(&xkv_once, &number);
	if (!set)
		return ONCE_DROP;
	o = once_find(set, session, id, &way);
	if (!o) {
		o = once_take(set, once_holder(f, &s->hash), &way);
		taken = o != NULL;
	}
	if (!o)
		return once_is_full(set, session, id) ? ONCE_FULL : ONCE_DROP;
	if (!taken && !once_lock(o))
		return ONCE_DROP; /* another copy is in progress */
	what = ONCE_DROP;
	if (taken ? once_claim(set, o, way, session, id) :
		    o->session == session && !((o->id ^ id) & (XKV_ONCE_SLOTS - 1)))
		what = once_compare(f, o, id);
	if (what == ONCE_NEW)
		f->once = number * XKV_ONCE_WAYS + way + 1;
	else
		once_unlock(o);
	return what;
}

/* Records the reply in `out` if the request was done; if not, its next copy counts as new. */
__noinline int once_end(struct xkv_frame *f, int done)
{
	struct xkv_once *o;

	if (!f)
		return 0;
	o = once_of(f);
	f->once = 0;
	if (!o)
		return 0;
	o->used_ms = once_clock();
	if (!done)
		o->id -= XKV_ONCE_SLOTS;
	o->len = done && f->out_len <= XKV_ONCE_REPLY ? f->out_len : 0;
	for (int i = 0; i < XKV_ONCE_REPLY / 8; i++)
		o->reply[i] = f->out_word[i];
	once_unlock(o);
	return 0;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The dedup cache: a request with XKV_F_ONCE is executed once, however often it arrives.
 *
 * A client draws a session and numbers its requests; id % XKV_DEDUP_SLOTS selects the slot of a
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
#ifndef XKV_DEDUP_BPF_H
#define XKV_DEDUP_BPF_H

#include "siphash.h"
#include "store.bpf.h"

#define PROOF_MASK ((1ULL << (8 * XKV_SESSION_PROOF)) - 1)

/* Milliseconds since boot: unlike the time of day it is not stepped. */
static __always_inline __u64 dedup_clock(void)
{
	return bpf_ktime_get_boot_ns() / 1000000;
}

/* The offset of the session in a request with XKV_F_ONCE. */
static __always_inline __u32 session_off(struct xkv_request *rq)
{
	struct xkv_hdr *hdr = (struct xkv_hdr *)rq->in;

	return sizeof(*hdr) + (hdr->flags & XKV_F_TOKEN ? XKV_TOKEN_BYTES : 0);
}

/* The session of a request, as a number. */
static __always_inline __u64 session_of(struct xkv_request *rq)
{
	return bpf_be64_to_cpu(IN(rq, session_off(rq)));
}

/* The session with the proof for the sender's address in its last bytes. */
static __always_inline __u64 session_proven(struct xkv_request *rq, const struct xkv_secret *s,
					    __u64 session)
{
	__u64 word[SIPHASH_WORDS] = { rq->source[0], rq->source[1], session & ~PROOF_MASK };

	return (session & ~PROOF_MASK) | (siphash(word, s->session) & PROOF_MASK);
}

/* The holder of the request's record: see struct xkv_dedup. */
static __always_inline __u32 dedup_holder(struct xkv_request *rq, const struct xkv_secret *s)
{
	__u64 session = session_of(rq), net = rq->source[0];
	__u32 source = hash_end(hash_word(net, &s->word[2]), net, 0, 0, s) & ~XKV_DEDUP_PROVEN;

	return source | (session_proven(rq, s, session) == session ? XKV_DEDUP_PROVEN : 0);
}

static __always_inline __u32 dedup_set_of(const struct xkv_secret *s, __u64 session, __u64 slot)
{
	__u64 products = hash_word(session, &s->word[0]) + hash_word(slot, &s->word[1]);

	return hash_end(products, session + slot, 0, 0, s) & (XKV_DEDUP_SETS - 1);
}

static __always_inline bool dedup_lock(struct xkv_dedup *o)
{
	__u64 lock = READ_ONCE(o->lock);

	return !(lock & 1) && EXCHANGE(session, &o->lock, lock, lock + 1);
}

static __always_inline void dedup_unlock(struct xkv_dedup *o)
{
	smp_wmb();
	WRITE_ONCE(o->lock, o->lock + 1);
}

/* The record that this request has locked. */
static __always_inline struct xkv_dedup *dedup_of(struct xkv_request *rq)
{
	__u32 place = rq->dedup - 1, set = place / XKV_DEDUP_WAYS;
	struct xkv_dedup_set *s = bpf_map_lookup_elem(&xkv_once, &set);

	return rq->dedup && s ? &s->way[place & (XKV_DEDUP_WAYS - 1)] : NULL;
}

enum dedup { DEDUP_NEW, DEDUP_REPEATED, DEDUP_UNKEPT, DEDUP_DROP, DEDUP_FULL };

/* Compares the request with the locked record of its slot. */
static __always_inline int dedup_compare(struct xkv_request *rq, struct xkv_dedup *o, __u64 id)
{
	if ((__s64)(id - o->id) > 0) {
		o->id = id;
		return DEDUP_NEW;
	}
	if (o->id != id)
		return DEDUP_DROP;
	if (o->len == XKV_DEDUP_OPEN)
		return rq->flags & XKV_REQUEST_ANSWER ? DEDUP_NEW : DEDUP_DROP;
	o->used_ms = dedup_clock();
	if (!o->len || o->len > XKV_DEDUP_REPLY)
		return DEDUP_UNKEPT;
	for (int i = 0; i < XKV_DEDUP_REPLY / 8; i++)
		rq->out_word[i] = o->reply[i];
	rq->out_len = o->len;
	return DEDUP_REPEATED;
}

/* Is the record free for another session?  Another CPU may have used it after `now`. */
static __always_inline bool dedup_is_free(const struct xkv_dedup *o, __u64 now)
{
	return !READ_ONCE(o->session) || (__s64)(now - READ_ONCE(o->used_ms)) > XKV_DEDUP_MS;
}

/* The record of a session's slot, or NULL. */
static __always_inline struct xkv_dedup *dedup_find(struct xkv_dedup_set *set, __u64 session,
						    __u64 id, __u32 *way)
{
	struct xkv_dedup *o;

	for (__u32 i = XKV_DEDUP_WAYS; i > 0; i--) {
		o = &set->way[i - 1];
		*way = i - 1;
		if (READ_ONCE(o->session) == session &&
		    !((READ_ONCE(o->id) ^ id) & (XKV_DEDUP_SLOTS - 1)))
			return o;
	}
	return NULL;
}

/*
 * Number of records in the set that this holder has and that are not free.  Without branches: the
 * verifier would follow each number that is possible so far.
 */
static __always_inline __u32 dedup_held(const struct xkv_dedup_set *set, __u32 holder, __u64 now)
{
	__u64 held = 0, session, other, old;

	for (__u32 i = 0; i < XKV_DEDUP_WAYS; i++) {
		session = READ_ONCE(set->way[i].session);
		other = READ_ONCE(set->way[i].holder) ^ holder;
		old = XKV_DEDUP_MS - (now - READ_ONCE(set->way[i].used_ms));
		held += ((session | -session) & (other - 1) & ~old) >> 63;
	}
	return held;
}

/* Locks a record for a new session, or NULL.  Proven sessions prefer the reserved ones. */
static __always_inline struct xkv_dedup *dedup_take(struct xkv_dedup_set *set, __u32 holder,
						    __u32 *way)
{
	__u32 ways = holder & XKV_DEDUP_PROVEN ? XKV_DEDUP_WAYS : XKV_DEDUP_UNPROVEN_WAYS;
	__u64 now = dedup_clock();
	struct xkv_dedup *o;

	if (dedup_held(set, holder, now) >= XKV_DEDUP_PER_SOURCE)
		return NULL;
	for (__u32 i = XKV_DEDUP_WAYS; i > 0; i--) {
		o = &set->way[i - 1];
		*way = i - 1;
		if (i > ways || !dedup_is_free(o, now) || !dedup_lock(o))
			continue;
		if (dedup_is_free(o, now)) {
			o->holder = holder;
			return o;
		}
		dedup_unlock(o);
	}
	return NULL;
}

/*
 * Assigns the locked record to the session.  False if the session has another one by now: two
 * copies of a request that are processed at the same time may both find none.  Each publishes its
 * own before it looks for others, so at least one of them backs off.
 */
static __always_inline bool dedup_claim(struct xkv_dedup_set *set, struct xkv_dedup *mine,
					__u32 way, __u64 session, __u64 id)
{
	bool alone = true;

	mine->id = id - XKV_DEDUP_SLOTS;
	__sync_lock_test_and_set(&mine->session, session); /* also a full barrier */
	for (__u32 i = 0; i < XKV_DEDUP_WAYS; i++)
		if (i != way && READ_ONCE(set->way[i].session) == session &&
		    !((READ_ONCE(set->way[i].id) ^ id) & (XKV_DEDUP_SLOTS - 1)))
			alone = false;
	if (!alone)
		WRITE_ONCE(mine->session, 0);
	return alone;
}

/*
 * No record was free.  False if another copy of the request may have just taken one: a client that
 * is told that there is no room relies on the request not having been executed.
 */
static __always_inline bool dedup_is_full(struct xkv_dedup_set *set, __u64 session, __u64 id)
{
	bool full = true;

	for (__u32 i = 0; i < XKV_DEDUP_WAYS; i++)
		if ((READ_ONCE(set->way[i].lock) & 1) ||
		    (READ_ONCE(set->way[i].session) == session &&
		     !((READ_ONCE(set->way[i].id) ^ id) & (XKV_DEDUP_SLOTS - 1))))
			full = false;
	return full;
}

/* ONCE_NEW: the request is to be executed; its record stays locked until dedup_end(). */
__noinline int dedup_begin(struct xkv_request *rq)
{
	struct xkv_secrets *s = secrets();
	struct xkv_dedup_set *set;
	__u64 session, id;
	struct xkv_dedup *o;
	bool taken = false;
	__u32 number, way = 0;
	int what;

	if (!rq || !s)
		return DEDUP_DROP;
	session = IN(rq, session_off(rq));
	id = bpf_be64_to_cpu(((struct xkv_hdr *)rq->in)->id);
	number = dedup_set_of(&s->hash, session, id & (XKV_DEDUP_SLOTS - 1));
	set = bpf_map_lookup_elem(&xkv_once, &number);
	if (!set)
		return DEDUP_DROP;
	o = dedup_find(set, session, id, &way);
	if (!o) {
		o = dedup_take(set, dedup_holder(rq, &s->hash), &way);
		taken = o != NULL;
	}
	if (!o)
		return dedup_is_full(set, session, id) ? DEDUP_FULL : DEDUP_DROP;
	if (!taken && !dedup_lock(o))
		return DEDUP_DROP; /* another copy is in progress */
	what = DEDUP_DROP;
	if (taken ? dedup_claim(set, o, way, session, id)
		  : o->session == session && !((o->id ^ id) & (XKV_DEDUP_SLOTS - 1)))
		what = dedup_compare(rq, o, id);
	if (what == DEDUP_NEW)
		rq->dedup = number * XKV_DEDUP_WAYS + way + 1;
	else
		dedup_unlock(o);
	return what;
}

enum dedup_ends {
	DEDUP_UNDONE, /* its next copy counts as new */
	DEDUP_DONE,   /* the reply is in `out` */
	DEDUP_OPEN,   /* the reply comes later: until then, possibly for ever, copies are dropped */
};

__noinline int dedup_end(struct xkv_request *rq, int how)
{
	struct xkv_dedup *o;

	if (!rq)
		return 0;
	o = dedup_of(rq);
	rq->dedup = 0;
	if (!o)
		return 0;
	o->used_ms = dedup_clock();
	if (how == DEDUP_UNDONE)
		o->id -= XKV_DEDUP_SLOTS;
	o->len = how == DEDUP_DONE && rq->out_len <= XKV_DEDUP_REPLY ? rq->out_len : 0;
	if (how == DEDUP_OPEN)
		o->len = XKV_DEDUP_OPEN;
	for (int i = 0; i < XKV_DEDUP_REPLY / 8; i++)
		o->reply[i] = rq->out_word[i];
	dedup_unlock(o);
	return 0;
}

#endif

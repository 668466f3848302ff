/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The commit point: every change of an entry goes through change_prepare() and change_commit(), and
 * only there a version is drawn.
 *
 *   lock              the entry's slot, by its seq; for a key that does not exist, its bucket
 *   change_prepare()  may refuse: the entry is as it was, and the operation stops as busy
 *   write             value and expiry; the index, if the entry gets a first slot, another, or none
 *   change_commit()   draws the version and publishes the slot; cannot fail
 *   change_cancel()   instead, if the index could not be changed: nothing took effect
 *
 * While the change feed (feed.bpf.h) has readers, prepare reserves room for a record, and commit
 * fills it in, before the slot is published.  For a snapshot, prepare writes the old entry.  A
 * change of a key is prepared only after the previous one has taken effect, so records are in that
 * order.
 *
 * Relocation is not a change: the entry keeps its version.
 */
#ifndef XKV_COMMIT_BPF_H
#define XKV_COMMIT_BPF_H

#include "feed.bpf.h"

/* A change from its preparation to its end. */
struct change {
	struct xkv_request *rq;
	enum xkv_change what;
	__u64 ref;	       /* of the slot that has the entry after the change; */
	struct xkv_slot *slot; /* of one that is removed, before */
	__u64 record;	       /* its position in the feed, with flags; 0 = there is none */
	__u64 frees;	       /* slot that is freed when the record has been read, or 0 */
	__u32 opcode;	       /* 0 = that of the request, with its flags */
	__u32 flags;	       /* XKV_FEED_GONE, of the record */
};

/* The receiver of changes: the feed, except in a test (tests/packet/commits.bpf.c). */
#ifdef COMMIT_LISTENER
static bool listener_prepare(struct change *c, __u64 old, __u32 value_len);
static void listener_commit(const struct change *c, __u64 version);
static void listener_cancel(const struct change *c);
#else
static __always_inline bool listener_prepare(struct change *c, __u64 old, __u32 value_len)
{
	struct xkv_config *cfg = config();
	__u64 record;

	if (!cfg || !cfg->feed)
		return true;
	record = feed_prepare(c->rq->fingerprint, old, c->what, c->slot->key_len, value_len);
	if (record == FEED_NO_ROOM)
		return false;
	c->record = record;
	return true;
}

/* The cause in the record.  The fast path does not fill in the request's opcode. */
static __always_inline __u64 change_cause(const struct change *c)
{
	const struct xkv_request *rq = c->rq;

	if (c->opcode)
		return feed_cause(c->opcode, 0, 0);
	return feed_cause(rq->cause ? rq->cause : rq->opcode, rq->op_flags & 0xff, rq->origin);
}

static __always_inline void listener_commit(const struct change *c, __u64 version)
{
	__u64 kind;

	if (!c->record)
		return;
	kind = feed_kind(c->what, c->record, FRONTEND(c->rq)) | c->flags << 8;
	feed_write(c->record, c->ref, version, kind | change_cause(c), c->frees);
}

static __always_inline void listener_cancel(const struct change *c)
{
	if (c->record)
		feed_cancel(c->record, feed_bytes(c->what, c->slot->key_len, c->slot->value_len,
						  c->record & XKV_FEED_LEAN));
}
#endif

/* A new version: even, and never used before for any slot and key.  0 on failure. */
static __always_inline __u64 new_version(struct xkv_request *rq)
{
	__u32 frontend = FRONTEND(rq), cpu = bpf_get_smp_processor_id() & (XKV_VERSION_CPUS - 1);
	struct xkv_tally *t = tally(frontend);
	struct xkv_config *cfg = config();
	__u64 least;

	if (!t || !cfg)
		return 0;
	least = READ_ONCE(cfg->version_least);
	if (t->version < least) /* perhaps further, if another program of xkvd does so, too */
		__sync_fetch_and_add(&t->version, least - t->version);
	return ((add_one(&t->version, frontend) * XKV_VERSION_CPUS + cpu) * XKV_FRONTENDS +
		frontend) *
	       2;
}

/* Counts the keys of databases other than 0. */
static __always_inline void count_key(const struct change *c)
{
	__u32 db = c->slot->db;
	struct xkv_database *d;

	if (!db || (c->what != XKV_CHANGE_CREATE && c->what < XKV_CHANGE_DELETE))
		return;
	d = bpf_map_lookup_elem(&xkv_databases, &db);
	if (d)
		__sync_fetch_and_add(&d->keys, c->what == XKV_CHANGE_CREATE ? 1 : -1);
}

/* The access field of a new entry, with a random age.  The hashed version is the random number. */
static __always_inline __u16 access_new(struct xkv_config *cfg, __u64 version)
{
	__u32 random = version * 0x9e3779b97f4a7c15ULL >> 48; /* 2^64 / golden ratio */

	return cfg ? cfg->access - (random * cfg->access_spread >> 16) : 0;
}

/*
 * May the entry be changed?  The caller has locked it, in the slot `old`, or 0 if there is none
 * yet; its value will have `value_len` bytes, or has, if it is removed.  False: it stays as it is.
 */
static __always_inline bool change_prepare(struct change *c, struct xkv_request *rq,
					   enum xkv_change what, __u64 ref, struct xkv_slot *slot,
					   __u64 old, __u32 value_len)
{
	*c = (struct change){ .rq = rq, .what = what, .ref = ref, .slot = slot };
	return listener_prepare(c, old, value_len);
}

/*
 * The change will free the slot of the entry.  If its value is too large for a record, an unread
 * record may refer to it: then the slot is freed only when this change's record has been read.
 */
static __always_inline void change_frees(struct change *c, __u64 ref, struct xkv_slot *slot)
{
	c->frees = c->record && slot->value_len > XKV_FEED_INLINE ? ref : 0;
}

/*
 * The change takes effect, and the entry is unlocked; a removed entry stays locked until its slot
 * is freed.  Returns the version: for a removed entry its last one.
 */
static __always_inline __u64 change_commit(const struct change *c)
{
	bool removed = c->what >= XKV_CHANGE_DELETE;
	__u64 version = removed ? c->rq->seq : new_version(c->rq);

	if (c->what == XKV_CHANGE_CREATE)
		c->slot->access = access_new(config(), version);
	count_key(c);
	listener_commit(c, version);
	if (!removed)
		unlock(c->slot, version);
	return version;
}

/* The change has taken effect: frees its slot. */
static __always_inline void change_done(const struct change *c, __u64 ref)
{
	if (!c->frees)
		slot_give(ref);
}

/* The change is cancelled; the caller unlocks the entry. */
static __always_inline void change_cancel(const struct change *c)
{
	listener_cancel(c);
}

/*
 * An entry is relocated.  If its value is too large for a record, the old slot stays unchanged
 * until the records that refer to it have been read.  False: no room for the record that frees it.
 */
static __always_inline bool move_prepare(struct change *c, struct xkv_request *rq,
					 struct xkv_slot *old)
{
	struct xkv_config *cfg = config();

	*c = (struct change){ .rq = rq, .what = XKV_FEED_MOVE, .ref = rq->ref, .slot = old };
	if (!cfg || !cfg->feed || old->value_len <= XKV_FEED_INLINE)
		return true;
	c->record = feed_reserve(feed_bytes(XKV_FEED_MOVE, 0, 0, 0));
	c->frees = c->record ? rq->ref : 0;
	return c->record;
}

static __always_inline void move_commit(const struct change *c, __u64 version)
{
	if (c->record)
		feed_write(c->record, c->ref, version, feed_kind(XKV_FEED_MOVE, 0, 0), c->frees);
}

static __always_inline void move_cancel(const struct change *c)
{
	if (c->record)
		feed_cancel(c->record, feed_bytes(XKV_FEED_MOVE, 0, 0, 0));
}

#endif

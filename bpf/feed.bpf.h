/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The change feed: a ring that every change writes a record into (struct xkv_feed, bpf/layout.h),
 * while it has readers in user space.
 *
 * There is one ring for all CPUs.  Room is reserved while the entry is locked, so the records of a
 * key are in the order of its changes, and those of a transaction, which reserves once, are
 * together.  One ring per CPU would need a shared counter to restore that order: the same contended
 * cache line as `head`.  tests/formal/model/feed.pml is the proof.
 *
 * Not BPF_MAP_TYPE_RINGBUF: its records have a size that the verifier knows, and do not leave the
 * function that reserved them, so those of a transaction could not be reserved together.
 */
#ifndef XKV_FEED_BPF_H
#define XKV_FEED_BPF_H

#include "store.bpf.h"

static __always_inline struct xkv_feed *feed(void)
{
	__u32 zero = 0;
	void *map = bpf_map_lookup_elem(&xkv_feed, &zero);

	return map ? bpf_map_lookup_elem(map, &zero) : NULL;
}

/* The offset of a record in `data`; the lowest bits of its position may be flags. */
static __always_inline __u32 feed_offset(__u64 at)
{
	return at & (XKV_FEED_BYTES - 8);
}

/*
 * Does the record of such a change have a value, or refer to one?  That of a long key always has:
 * the key is in it.
 */
static __always_inline bool feed_has_value(__u32 what, __u32 key_len, __u64 lean)
{
	return (what <= XKV_CHANGE_OVERWRITE && !lean) || what == XKV_FEED_BEFORE ||
	       key_len == XKV_KEY_LONG;
}

/* Bytes of a record, which is LEAN or not. */
static __always_inline __u32 feed_bytes(__u32 what, __u32 key_len, __u32 value_len, __u64 lean)
{
	if (!feed_has_value(what, key_len, lean) || value_len > XKV_FEED_INLINE)
		value_len = 0;
	return sizeof(struct xkv_feed_record) + XKV_PADDED(key_len) + XKV_PADDED(value_len);
}

/* The last argument but one of feed_write(); a position may have these two flags. */
static __always_inline __u64 feed_kind(__u32 what, __u64 at, __u32 frontend)
{
	return what | (at & (XKV_FEED_MORE | XKV_FEED_LEAN)) << 8 | (__u64)frontend << 16;
}

/* Added to it: why the change was made. */
static __always_inline __u64 feed_cause(__u64 cause, __u64 op_flags, __u64 origin)
{
	return cause << 24 | op_flags << 32 | origin << 48;
}

/* Is there room for so many bytes after those that were taken? */
static __always_inline bool feed_has_room(struct xkv_feed *f, __u64 taken, __u64 bytes)
{
	return taken + bytes - READ_ONCE(f->tail) <= XKV_FEED_BYTES;
}

/*
 * Takes bytes, unless there is no room.  Bytes that were taken can be reserved, since `head`
 * advances only by taken bytes; on failure they are given back.  No number of CPUs makes it fail,
 * since there is no compare-and-exchange.  In a full ring `taken` does not change: others' records
 * may still fit.
 */
static __always_inline bool feed_take(struct xkv_feed *f, __u64 bytes)
{
	if (!feed_has_room(f, READ_ONCE(f->taken), bytes))
		return false;
	if (feed_has_room(f, __sync_fetch_and_add(&f->taken, bytes), bytes))
		return true;
	__sync_fetch_and_add(&f->taken, -bytes);
	return false;
}

/*
 * Is there a reader, a log, that must miss nothing even while xkvd is down, and needs all values?
 */
static __always_inline bool feed_has_log(const struct xkv_feed *f)
{
	for (int i = 0; i < XKV_FEED_READERS; i++)
		if (READ_ONCE(f->reader[i].name[0]) &&
		    !(READ_ONCE(f->reader[i].flags) & XKV_READER_ENDS))
			return true;
	return false;
}

/*
 * There is no room: if no reader needs the records without xkvd, switches the feed off.  The order
 * of the two stores matters: a reader that finds the feed off also finds that it was given up, and
 * discards what it has read from slots meanwhile (loader/store/feed.c).
 */
static __always_inline void feed_give_up(struct xkv_feed *f)
{
	struct xkv_config *cfg = config();

	if (!cfg || (__s64)(bpf_ktime_get_ns() - READ_ONCE(f->alive_ns)) < XKV_FEED_ALIVE_NS)
		return;
	if (feed_has_log(f))
		return;
	__sync_fetch_and_add(&f->given_up, 1);
	WRITE_ONCE(cfg->feed, 0);
}

/* Reserves room for records: their position, which is never 0.  0 if there is no room. */
__noinline __u64 feed_reserve(__u64 bytes)
{
	struct xkv_feed *f = feed();

	if (!f)
		return 0;
	if (feed_take(f, bytes))
		return __sync_fetch_and_add(&f->head, bytes);
	__sync_fetch_and_add(&f->refused, 1);
	feed_give_up(f);
	return 0;
}

/*
 * Fills in the record at a position that was reserved, with key and value of the slot `ref`, which
 * is locked.  `kind` is feed_kind()'s, and feed_cause()'s.
 */
__noinline int feed_write(__u64 at, __u64 ref, __u64 version, __u64 kind, __u64 frees)
{
	__u32 what = kind & 0xff, key_len, value_len;
	struct xkv_feed_record *r, head = {};
	struct xkv_feed *f = feed();
	struct xkv_config *cfg;
	struct xkv_slot *slot;
	bool has_value;

	if (!f)
		return 0;
	r = (struct xkv_feed_record *)&f->data[feed_offset(at)];
	r->version = version; /* first what is in registers: the chain of calls leaves 32 bytes */
	r->frees = frees;
	slot = slot_at(ref);
	cfg = config();
	if (!slot)
		return 0;
	key_len = what == XKV_FEED_MOVE ? 0 : slot->key_len;
	has_value = feed_has_value(what, key_len, kind >> 8 & XKV_FEED_LEAN);
	value_len = has_value ? slot->value_len : 0;
	head.bytes = feed_bytes(what, key_len, value_len, kind >> 8 & XKV_FEED_LEAN);
	head.what = what;
	head.flags = kind >> 8;
	head.key_len = key_len;
	head.frontend = kind >> 16;
	r->expire_ms = slot->expire_ms;
	r->ref = value_len > XKV_FEED_INLINE ? ref : 0;
	r->value_len = value_len;
	r->cause = kind >> 24;
	r->op_flags = kind >> 32;
	r->origin = kind >> 48;
	r->db = slot->db;
	r->number = cfg ? number_of(cfg, slot->db) : slot->db;
	copy_words((__u64 *)(r + 1), (const __u64 *)(slot + 1), (head.bytes - sizeof(*r)) / 8,
		   KEY_WORDS + VALUE_WORDS);
	smp_wmb();
	WRITE_ONCE(r->first_word, head.first_word);
	return 0;
}

/* ---- what a change replaces, for a snapshot (loader/store/cut.h) ------------- */

static __always_inline __u32 feed_bytes_before(const struct xkv_slot *old)
{
	return feed_bytes(XKV_FEED_BEFORE, old->key_len, old->value_len, 0);
}

/* Would a snapshot lose the locked entry, if it changes now? */
static __always_inline bool feed_wants(const struct xkv_config *cfg, __u64 fingerprint,
				       const struct xkv_slot *old)
{
	return cfg->feed & XKV_RECORD_BEFORE && old->seq < READ_ONCE(cfg->cut_version) &&
	       (fingerprint & cfg->bucket_mask) >= READ_ONCE(cfg->cut_bucket);
}

/*
 * The records that a change needs, as flags of its position: XKV_FEED_MORE: its own, XKV_FEED_PAIR:
 * that of the old entry, too.  The slot of a large value is freed by a record.
 */
static __always_inline __u64 feed_needs(const struct xkv_config *cfg, __u64 fingerprint,
					const struct xkv_slot *old)
{
	if (old && feed_wants(cfg, fingerprint, old))
		return XKV_FEED_MORE | XKV_FEED_PAIR;
	if (cfg->feed & XKV_RECORD_ALL || (old && old->value_len > XKV_FEED_INLINE))
		return XKV_FEED_MORE;
	return 0;
}

/* Are records LEAN, since no reader needs values? */
static __always_inline __u64 feed_lean(const struct xkv_config *cfg)
{
	return (cfg->feed & (XKV_RECORD_ALL | XKV_RECORD_KEYS)) == XKV_RECORD_ALL ? 0
										  : XKV_FEED_LEAN;
}

/* Writes the old entry, which is in the locked slot `ref`. */
static __always_inline void feed_write_before(__u64 at, __u64 ref, const struct xkv_slot *old)
{
	feed_write(at, ref, old->seq & ~1ULL, feed_kind(XKV_FEED_BEFORE, 0, 0), 0);
}

#define FEED_NO_ROOM (~0ULL)

/*
 * Reserves the records of a change of one entry, which is in the locked slot `old`, or 0, and
 * writes that of the old entry.  This is after the record of the change, so it is not read before
 * the change is committed.  Returns the position of the latter, with flags; 0: no record.
 */
__noinline __u64 feed_prepare(__u64 fingerprint, __u64 old, __u64 what, __u64 key_len,
			      __u64 value_len)
{
	struct xkv_slot *before = old ? slot_at(old) : NULL;
	struct xkv_config *cfg = config();
	__u64 needs, lean, at;
	__u32 bytes;

	needs = cfg ? feed_needs(cfg, fingerprint, before) : 0;
	if (!needs)
		return 0;
	lean = feed_lean(cfg);
	bytes = feed_bytes(what, key_len, value_len, lean);
	if (!(needs & XKV_FEED_PAIR) || !before) {
		at = feed_reserve(bytes);
		return at ? at | lean : FEED_NO_ROOM;
	}
	at = feed_reserve(bytes + feed_bytes_before(before));
	if (!at)
		return FEED_NO_ROOM;
	feed_write_before(at + bytes, old, before);
	return at | lean | XKV_FEED_PAIR;
}

/* ---- what does not take place ------------------------------------------------ */

static __always_inline void feed_void(struct xkv_feed *f, __u64 at, __u32 bytes)
{
	struct xkv_feed_record head = { .bytes = bytes, .what = XKV_FEED_NOTHING };

	WRITE_ONCE(*(__u64 *)&f->data[feed_offset(at)], head.first_word);
}

/* Marks a reserved record as no change, after the one that was written after it. */
__noinline int feed_cancel(__u64 at, __u32 bytes)
{
	struct xkv_feed *f = feed();
	__u64 behind;

	if (!f)
		return 0;
	if (at & XKV_FEED_PAIR) {
		behind = (at & ~7ULL) + bytes;
		feed_void(f, behind, *(__u32 *)&f->data[feed_offset(behind)]);
	}
	feed_void(f, at, bytes);
	return 0;
}

#endif

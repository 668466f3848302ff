/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Hot keys: one use of a key in many is noted in xkv_hot, for people to see which are used most.
 *
 * The distance from one sample to the next is drawn, evenly from one to twice the mean less one, so
 * that traffic with a period of its own is sampled like any other.  What is left of it stands in
 * the frame: one for each CPU in XDP, and one for each frame of xkvd's.
 */
#ifndef XKV_HOT_BPF_H
#define XKV_HOT_BPF_H

#include "ops.bpf.h"

/* Counts a use of a key: is this one to be noted? */
static __always_inline bool hot_is_due(struct xkv_frame *f, struct xkv_config *cfg)
{
	__s64 left = f->hot_left - cfg->hot_step;

	f->hot_left = left;
	return left <= 0;
}

/*
 * Halves the counts as often as that should have been done since the last time.  One CPU does; what
 * others add meanwhile may be lost.
 */
static __always_inline void hot_age(struct xkv_hot *hot, __u64 now)
{
	__u64 last = READ(hot->halved), times = now - last;

	if (!times || __sync_val_compare_and_swap(&hot->halved, last, now) != last)
		return;
	if (times > 63)
		times = 63;
	hot->reads >>= times;
	hot->writes >>= times;
	hot->bytes >>= times;
}

/*
 * Adds a use to what is known of the key at hand.  A key that is new to the map is not looked up
 * again, so that those that come once leave before those that came twice.
 */
static __always_inline void hot_add(struct xkv_frame *f, const struct xkv_hot_key *key,
				    const struct xkv_hot *use)
{
	struct xkv_hot *hot = bpf_map_lookup_elem(&xkv_hot, key);

	if (!hot) {
		bpf_map_update_elem(&xkv_hot, key, use, BPF_NOEXIST);
		return;
	}
	hot_age(hot, use->halved);
	__sync_fetch_and_add(&hot->reads, use->reads);
	__sync_fetch_and_add(&hot->writes, use->writes);
	__sync_fetch_and_add(&hot->bytes, use->bytes);
	WRITE(hot->last_seen, use->last_seen);
}

/*
 * A use of the key at hand is due: draws the distance of the next one, and notes this one with the
 * weight of all that it stands for.  The first that a frame meets is not noted: nothing was drawn
 * for it.  Nor is what xkvd loads before it serves.
 */
__noinline int hot_note(struct xkv_frame *f, __u32 written, __u32 bytes)
{
	struct xkv_config *cfg = config();
	struct xkv_hot_key key = {};
	struct xkv_hot use = {};
	__u64 step, weight;
	bool first;

	if (!f || !cfg)
		return 0;
	step = READ(cfg->hot_step);
	first = f->hot_left <= -(__s64)step;
	f->hot_left = 1 + ((2 * XKV_HOT_ONE - step) >> 32) * bpf_get_prandom_u32();
	if (first || !step || cfg->magic != XKV_LAYOUT_MAGIC)
		return 0;
	weight = XKV_HOT_ONE / step;
	use.reads = written ? 0 : weight;
	use.writes = written ? weight : 0;
	use.bytes = bytes * weight;
	use.last_seen = now_ms(f) / 1000;
	use.halved = bpf_ktime_get_boot_ns() / READ(cfg->hot_half_ns);
	key.len = f->key_len;
	for (__u32 at = 0; at < XKV_HOT_TEXT; at += 8) {
		if (at >= key.len)
			break;
		*(__u64 *)&key.text[at] = IN(f, f->key_off + at);
	}
	hot_add(f, &key, &use);
	return 0;
}

/* Counts a use of the key at hand. */
static __always_inline void hot_used(struct xkv_frame *f, struct xkv_config *cfg, bool written,
				     __u32 bytes)
{
	if (hot_is_due(f, cfg))
		hot_note(f, written, bytes);
}

#endif

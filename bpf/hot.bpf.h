/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Hot keys: a sample of the uses of keys is recorded in xkv_hot, to show which are used most.
 *
 * The distance between samples is random, uniform from one to twice the mean less one, so periodic
 * traffic is sampled like any other.  The countdown is in the request: one per CPU in XDP, and one
 * per request of xkvd.
 */
#ifndef XKV_HOT_BPF_H
#define XKV_HOT_BPF_H

#include "ops.bpf.h"

/* Counts a use of a key: is this one to be sampled? */
static __always_inline bool hot_is_due(struct xkv_request *rq, struct xkv_config *cfg)
{
	__s64 left = rq->hot_left - cfg->hot_step;

	rq->hot_left = left;
	return left <= 0;
}

/*
 * Halves the counts once for each period since the last time.  Only one CPU does; concurrent
 * additions of others may be lost.
 */
static __always_inline void hot_age(struct xkv_hot *hot, __u64 now)
{
	__u64 last = READ_ONCE(hot->halved), times = now - last;

	if (!times || __sync_val_compare_and_swap(&hot->halved, last, now) != last)
		return;
	xkv_hot_halve(hot, times);
}

/*
 * Adds a sample of the current key.  A new key is not looked up after it was inserted, so the LRU
 * evicts keys that were seen once before those that were seen twice.
 */
static __always_inline void hot_add(struct xkv_request *rq, const struct xkv_hot_key *key,
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
	WRITE_ONCE(hot->last_seen, use->last_seen);
}

/*
 * Draws the distance to the next sample, and records this use of the current key, weighted by the
 * sample rate.  The first use that a request context meets is not recorded, since its distance was
 * not random; nor are the keys that xkvd loads before it serves.
 */
__noinline int hot_note(struct xkv_request *rq, __u32 written, __u32 bytes)
{
	struct xkv_config *cfg = config();
	struct xkv_hot_key key = {};
	struct xkv_hot use = {};
	__u64 step, weight;
	bool first;

	if (!rq || !cfg)
		return 0;
	step = READ_ONCE(cfg->hot_step);
	first = rq->hot_left <= -(__s64)step;
	rq->hot_left = 1 + ((2 * XKV_HOT_ONE - step) >> 32) * bpf_get_prandom_u32();
	if (first || !step || cfg->magic != XKV_LAYOUT_MAGIC)
		return 0;
	weight = XKV_HOT_ONE / step;
	use.reads = written ? 0 : weight;
	use.writes = written ? weight : 0;
	use.bytes = bytes * weight;
	use.last_seen = now_ms(rq) / 1000;
	use.halved = bpf_ktime_get_boot_ns() / READ_ONCE(cfg->hot_half_ns);
	key.len = rq->key_len;
	key.db = rq->db;
	for (__u32 at = 0; at < XKV_HOT_TEXT; at += 8) {
		if (at >= key.len)
			break;
		*(__u64 *)&key.text[at] = IN(rq, rq->key_off + at);
	}
	if (key.len == XKV_KEY_LONG) /* of the digest, since many may begin alike */
		*(__u64 *)&key.text[XKV_HOT_BEGIN] = IN(rq, rq->key_off + XKV_HOT_DIGEST);
	hot_add(rq, &key, &use);
	return 0;
}

/* Counts a use of the current key. */
static __always_inline void hot_used(struct xkv_request *rq, struct xkv_config *cfg, bool written,
				     __u32 bytes)
{
	if (hot_is_due(rq, cfg))
		hot_note(rq, written, bytes);
}

#endif

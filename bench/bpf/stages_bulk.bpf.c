// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The stages of batched mode (bench/experiments/stages.py, docs/performance.md), as stages.bpf.c
 * has those of single packets: cumulative programs, which run the store's own functions on the
 * maps of a running store, except for its notes and its DEVMAP, and end by sending the packet back.
 *
 * At ingress, without the queue:
 *
 *   batched_parse     form of the request, headers, address, port, sender
 *   batched_note      key copied and hashed, checksum verified, note written.  One stage: a single
 *                     loop over the key copies, hashes and sums.
 *
 * With the whole of ingress (`ingress`, pinned under the name of the other one), in the queue:
 *
 *   batched_redirect  finds the packet's note
 *   batched_bucket    the first run of a queue loads all buckets, and finds all tags
 *   batched_slot      it loads all slots, too
 *   batched_find      compares the key with that in the slot
 *   batched_value     GET: copies the value into the packet; SET: into the slot
 *   batched           the reply's headers and checksum, counters; the fast path only, as `whole`
 *
 * Packets are queued always, whatever `batch` says: xkvd knows nothing of this DEVMAP.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <stddef.h>

#include "bpf/bulk.bpf.h"
#include "swap.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

enum stage { REDIRECT, BUCKET, SLOT, FIND, VALUE, WHOLE };

/* ---- ingress -------------------------------------------------------------- */

/* The same as in bulk_ingress(), up to the note. */
static __always_inline int look_at(struct xdp_md *ctx, bool note)
{
	struct packet p = { .data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	struct xkv_config *cfg = config();
	struct xkv_bulk *b = bulk();
	struct form f;

	if (!b || !cfg || cfg->magic != XKV_LAYOUT_MAGIC || !has_form(&f, &p, cfg) ||
	    !bulk_admits(&p, cfg) || !length_is_right(ctx, &p, cfg) ||
	    (note && !note_request(ctx, note_at(b, b->noted), &p, cfg, &f)))
		return XDP_PASS;
	return send_back(ctx);
}

SEC("xdp")
int batched_parse(struct xdp_md *ctx)
{
	return look_at(ctx, false);
}

SEC("xdp")
int batched_note(struct xdp_md *ctx)
{
	return look_at(ctx, true);
}

SEC("xdp")
int ingress(struct xdp_md *ctx)
{
	struct xkv_bulk *b = bulk();

	if (b && b->phase != BULK)
		bulk_phase(b, BULK, ~0U);
	return bulk_ingress(ctx) == REDIRECTED ? XDP_REDIRECT : XDP_PASS;
}

/* ---- the queue ------------------------------------------------------------ */

/* The part of bulk_prefetch() before the slots. */
__noinline int load_buckets(void)
{
	struct xkv_config *cfg = config();
	struct xkv_bulk *b = bulk();

	if (b && cfg)
		probe_noted(b, cfg);
	return 0;
}

static __always_inline void load_noted(struct xkv_bulk *b, enum stage last)
{
	if (last >= SLOT)
		bulk_prefetch();
	else if (last == BUCKET)
		load_buckets();
	b->touched = b->noted;
}

/* The part of bulk_get() up to the value. */
static __always_inline bool copy_value_out(struct xdp_md *ctx, struct xkv_request *rq,
					   struct xkv_config *cfg, const struct xkv_note *n,
					   struct xkv_slot *slot, __u64 seq)
{
	__u64 expire_ms = READ_ONCE(slot->expire_ms);
	__u32 value_len = value_len_of(slot);
	struct packet p;

	if (!bulk_resize(ctx, rq, n, &p, value_len, expire_ms))
		return false;
	write_header(&p, n->id, 1, FAST_REPLY_LEN + XKV_PADDED(value_len));
	return write_entry((__u64 *)(p.udp + 1) + 2, p.end, rq, cfg, slot, n->key_len, value_len,
			   expire_ms, XKV_OP_GET, seq) != GONE;
}

static __noinline bool find_noted(struct xdp_md *ctx, struct xkv_request *rq,
				  struct xkv_config *cfg, const struct xkv_note *n, bool value)
{
	struct xkv_slot *slot;
	struct packet p;
	__u64 seq;

	slot = bulk_find(n, &seq);
	if (!slot || !value)
		return slot;
	if (n->opcode == XKV_OP_GET)
		return copy_value_out(ctx, rq, cfg, n, slot, seq);
	return bulk_locate(ctx, &p) && bulk_write(&p, n, cfg, rq, slot, seq);
}

/* Sends the packet back; a request, whose first word was the mark, as what is no reply. */
static __always_inline int send_noted(struct xdp_md *ctx, bool request)
{
	void *data = (void *)(long)ctx->data;

	if (data + FRAME_HDR + 8 > (void *)(long)ctx->data_end)
		return XDP_DROP;
	if (request)
		FRAME_U64(data, FRAME_HDR) = 0;
	swap_addresses(data);
	return XDP_PASS;
}

/* Executes the stages of the queue up to `last`: see xkv_bulk_xdp() and serve_noted(). */
static __always_inline int run_noted(struct xdp_md *ctx, enum stage last)
{
	struct xkv_config *cfg = config();
	struct xkv_bulk *b = bulk();
	struct xkv_request *rq;
	struct xkv_note *n;
	__u32 zero = 0;
	int why;

	rq = bpf_map_lookup_elem(&xkv_frames, &zero);
	if (!rq || !cfg || !b || b->served == b->noted)
		return XDP_DROP;
	n = note_at(b, b->served);
	if (!has_mark(ctx, n))
		return XDP_DROP;
	if ((__s32)(b->served++ - b->touched) >= 0)
		load_noted(b, last);
	if (last == WHOLE) {
		why = n->opcode == XKV_OP_GET ? bulk_get(ctx, rq, cfg, n)
					      : bulk_set(ctx, rq, cfg, n);
		count_many(XKV_C_replies, 1);
		return why == XKV_C_replies ? XDP_PASS : XDP_DROP;
	}
	if (last >= FIND && !find_noted(ctx, rq, cfg, n, last == VALUE))
		return XDP_DROP;
	return send_noted(ctx, last != VALUE || n->opcode != XKV_OP_GET);
}

#define STAGE(name, last)                                                                          \
	SEC("xdp/devmap")                                                                          \
	int name(struct xdp_md *ctx)                                                               \
	{                                                                                          \
		return run_noted(ctx, last);                                                       \
	}

STAGE(batched_redirect, REDIRECT)
STAGE(batched_bucket, BUCKET)
STAGE(batched_slot, SLOT)
STAGE(batched_find, FIND)
STAGE(batched_value, VALUE)
STAGE(batched, WHOLE)

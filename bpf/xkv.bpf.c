// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * xkv in the NIC driver.  A packet goes through these stages:
 *
 *   parse        is it UDP to our port and address?   (packet.bpf.h)
 *   admit        may its sender be answered?
 *   load         copies the payload, verifies the checksum
 *   plain        the fast path of most requests       (plain.bpf.h, gets.bpf.h)
 *   request_run  all others                           (request.bpf.h, ops.bpf.h, store.bpf.h)
 *   reply        turns the packet around
 *
 * A stage returns CONTINUE, or the counter that says why the packet leaves the pipeline.  A packet
 * that is neither answered nor dropped goes to the kernel's stack unchanged.
 *
 * The two syscall programs are the other front end: xkvd runs them on requests and slots in memory
 * that it shares with them.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <stddef.h>

#include "entries.bpf.h"
#include "gets.bpf.h"
#include "plain.bpf.h"
#include "request.bpf.h"
#include "slots.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* ---- the reply ----------------------------------------------------------- */

/*
 * Copies the reply, `len` bytes in whole words, into the packet; returns the sum of its 16-bit
 * words.
 */
static __always_inline __u64 copy_out_frame(struct packet *p, struct xkv_frame *f, __u32 len)
{
	__u64 *to = (__u64 *)(p->udp + 1), word, sum = 0;

	for (__u32 i = 0; i < XKV_FRAME_BYTES / 8; i++) {
		if (i * 8 >= len || (void *)(to + 1) > p->end)
			break;
		word = f->out_word[i];
		*to++ = word;
		sum += HALVES(word);
	}
	return sum;
}

/* Restores a packet that goes to the stack: its length, and its payload if that was overwritten. */
static __always_inline int put_back(struct xdp_md *ctx, struct xkv_frame *f)
{
	__u32 len = f->req_len;

	if (resize(ctx, 0, f->length))
		return XKV_C_drop_internal;
	OPAQUE(len);
	if (f->torn && bpf_xdp_store_bytes(ctx, f->payload_off, f->in, FRAME_LEN(len)))
		return XKV_C_drop_internal;
	return f->stop - 1;
}

/* Makes the packet the reply in `out`. */
__noinline int reply(struct xdp_md *ctx, struct xkv_frame *f)
{
	struct packet p;
	__u32 len, offset;

	if (!f)
		return XKV_C_drop_internal;
	len = f->out_len;
	offset = f->payload_off;
	if (stretch(ctx, f, len)) {
		/*
		 * The kept reply to a repeated change cannot be replaced by another: xkvd has room
		 * for it.
		 */
		if (!f->done) {
			f->stop = XKV_C_pass_too_large + 1;
			return put_back(ctx, f);
		}
		ask_for_padding(f);
		len = f->out_len;
		if (resize(ctx, offset, len))
			return XKV_C_drop_internal;
	}
	if (locate(ctx, f, &p) != CONTINUE)
		return XKV_C_drop_internal;
	swap_headers(&p, f, len, copy_out_frame(&p, f, len));
	return XKV_C_replies;
}

/* ---- the programs -------------------------------------------------------- */

/*
 * The reply may be longer than the request, and only resizing the packet shows whether the driver
 * has room for that.  This must be known before anything is changed: a packet whose request may
 * both change something and get a longer reply is resized first; if that fails, the reply is
 * limited to the length of the request.  A single GET changes nothing, and the reply to a single
 * change without XKV_RETURN is never longer than its request.
 */
static __always_inline void find_room(struct xdp_md *ctx, struct xkv_frame *f)
{
	struct xkv_hdr *hdr = (struct xkv_hdr *)f->in;
	__u32 first = session_off(f) + (hdr->flags & XKV_F_ONCE ? XKV_SESSION_BYTES : 0);
	struct xkv_op *op;

	OPAQUE(first); /* keeps the mask, which the compiler knows to be redundant */
	op = (struct xkv_op *)&IN(f, first);
	f->reply_room = f->reply_allowed;
	if (hdr->count <= 1 && !(op->flags & XKV_RETURN))
		return;
	if ((int)(f->payload_off + f->reply_allowed) > packet_length(ctx) &&
	    resize(ctx, f->payload_off, f->reply_allowed))
		f->reply_room = f->req_len;
}

/* Records the source address, for requests with a session. */
__noinline int find_source(struct xdp_md *ctx, struct xkv_frame *f)
{
	struct packet p;

	if (!f || locate(ctx, f, &p) != CONTINUE)
		return XKV_C_drop_internal;
	f->source[1] = 0;
	if (p.ip4)
		f->source[0] = p.ip4->saddr;
	else if (p.ip6)
		__builtin_memcpy(f->source, &p.ip6->saddr, sizeof(f->source));
	return CONTINUE;
}

/* The fast path. */
static __always_inline int plain(struct xdp_md *ctx, struct xkv_frame *f)
{
	switch (f->in[PLAIN_OPCODE]) {
	case XKV_OP_GET:
		return ((struct xkv_hdr *)f->in)->count == 1 ? get_plain(ctx, f) : gets_plain(ctx, f);
	case XKV_OP_SET:
		return set_plain(ctx, f);
	case XKV_OP_SCAN:
		return gets_plain(ctx, f);
	}
	return CONTINUE;
}

static __always_inline int serve(struct xdp_md *ctx, struct xkv_config *cfg)
{
	struct packet p = { .data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	struct xkv_frame *f;
	__u32 zero = 0;
	int why;

	why = parse(&p, cfg);
	if (why == CONTINUE)
		why = admit(&p, cfg);
	if (why != CONTINUE)
		return is_unseen(why) ? unseen_source(ctx, why) : why;
	f = bpf_map_lookup_elem(&xkv_frames, &zero);
	if (!f)
		return XKV_C_pass_not_ready;
	why = frame_begin(&p, cfg, f);
	if (why == CONTINUE)
		why = load(ctx, f);
	if (why == CONTINUE)
		why = plain(ctx, f);
	if (why != CONTINUE)
		return why;
	if (((struct xkv_hdr *)f->in)->flags & XKV_F_ONCE)
		find_source(ctx, f);
	find_room(ctx, f);
	return request_run(f, 0) == VERDICT_REPLY ? reply(ctx, f) : put_back(ctx, f);
}

SEC("xdp")
int xkv_xdp(struct xdp_md *ctx)
{
	struct xkv_config *cfg = config();
	struct xkv_counters *c = counters(XKV_DOOR_XDP);
	__u32 why;

	if (!cfg || !c)
		return XDP_PASS;
	why = cfg->magic == XKV_LAYOUT_MAGIC ? serve(ctx, cfg) : XKV_C_pass_not_ready;
	OPAQUE(why); /* the compiler knows the ranges of the functions, the verifier does not */
	if (why < XKV_COUNTER_COUNT)
		((__u64 *)c)[why]++;
	if (why == XKV_C_replies)
		return XDP_TX;
	if (why >= XKV_C_drop_foreign && why <= XKV_C_drop_internal)
		return XDP_DROP;
	return XDP_PASS;
}

/*
 * Does xkvd have to complete this request before later ones run?  They may be about the same key.
 */
static __always_inline bool needs_xkvd(struct xkv_frame *f)
{
	struct xkv_result *r = (struct xkv_result *)(f->out + sizeof(struct xkv_hdr));

	return f->stop || r->status == XKV_TOO_LARGE;
}

/*
 * Runs requests of xkv_batch, in order; those that had stopped continue.  Sets args->count to the
 * number that were run; the last of these may need xkvd.
 */
SEC("syscall")
int xkv_run(struct xkv_batch_args *args)
{
	__u32 index, count = args->count;
	struct xkv_frame *f;

	for (__u32 i = 0; i < XKV_BATCH_FRAMES; i++) {
		if (i >= count)
			break;
		index = args->first + i;
		f = bpf_map_lookup_elem(&xkv_batch, &index);
		if (!f)
			return -EINVAL;
		f->verdict = request_run(f, f->stop != 0);
		args->count = i + 1;
		if (needs_xkvd(f))
			break;
	}
	return 0;
}

/* Slots for xkvd: see slots.bpf.h. */
SEC("syscall")
int xkv_slots(struct xkv_slots_args *args)
{
	struct xkv_frame *f;
	__u32 index = args->frame;
	__u64 ref;

	if (args->cmd == XKV_SLOTS_LINK)
		return slots_link(args);
	if (args->cmd == XKV_SLOTS_FILTER)
		return slots_filter(args);
	f = bpf_map_lookup_elem(&xkv_batch, &index);
	if (!f)
		return args->cmd == XKV_SLOTS_FREE ? slot_give(args->first) : -EINVAL;
	if (args->cmd == XKV_SLOTS_ALLOC)
		return slots_alloc(f, args->class);
	if (args->cmd == XKV_SLOTS_CHAIN)
		return slots_chain(args, f);
	ref = f->prefilled;
	f->prefilled = 0;
	return ref ? slot_give(ref) : 0;
}

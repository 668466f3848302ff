// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * xkv in the NIC driver.  A packet goes through these stages:
 *
 *   parse        is it UDP to our port and address?   (packet.bpf.h)
 *   admit        may its sender be answered?
 *   load         copies the payload, verifies the checksum
 *   fast_path    the fast path of most requests       (fast.bpf.h, multiget.bpf.h)
 *   request_run  all others                           (request.bpf.h, ops.bpf.h, atomic.bpf.h)
 *   reply        turns the packet around
 *
 * A stage returns CONTINUE, or the counter that says why the packet leaves the pipeline.  A packet
 * that is neither answered nor dropped goes to the kernel's stack unchanged.
 *
 * The syscall programs are the other front end: xkvd runs them on requests, slots and transactions
 * in memory that it shares with them.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <stddef.h>

#include "bulk.bpf.h"
#include "entries.bpf.h"
#include "multiget.bpf.h"
#include "fast.bpf.h"
#include "request.bpf.h"
#include "slots.bpf.h"
#include "txn.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* ---- the reply ----------------------------------------------------------- */

/* Restores a packet that goes to the stack: its length, and its payload if that was overwritten. */
static __always_inline int restore_packet(struct xdp_md *ctx, struct xkv_request *rq)
{
	__u32 len = rq->req_len;

	if (resize(ctx, 0, rq->length))
		return XKV_C_drop_internal;
	barrier_var(len);
	if (rq->overwritten && bpf_xdp_store_bytes(ctx, rq->payload_off, rq->in, FRAME_LEN(len)))
		return XKV_C_drop_internal;
	return rq->stop - 1;
}

/* Turns the packet into the reply in `out`. */
__noinline int reply(struct xdp_md *ctx, struct xkv_request *rq)
{
	struct packet p;
	__u32 len, offset;
	__u64 sum;

	if (!rq)
		return XKV_C_drop_internal;
	len = rq->out_len;
	offset = rq->payload_off;
	if (grow_for_reply(ctx, rq, len)) {
		/*
		 * The kept reply to a repeated change cannot be replaced by another: xkvd has room
		 * for it.
		 */
		if (!rq->done) {
			rq->stop = XKV_C_pass_too_large + 1;
			return restore_packet(ctx, rq);
		}
		ask_for_padding(rq);
		len = rq->out_len;
		if (resize(ctx, offset, len))
			return XKV_C_drop_internal;
	}
	if (locate(ctx, rq, &p) != CONTINUE)
		return XKV_C_drop_internal;
	sum = copy_to_packet((__u64 *)(p.udp + 1), rq->out_word, p.end, value_words(len));
	if (locate(ctx, rq, &p) != CONTINUE)
		return XKV_C_drop_internal;
	swap_headers(&p, rq->address_sum, len, sum);
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
static __always_inline void reserve_reply_room(struct xdp_md *ctx, struct xkv_request *rq)
{
	struct xkv_hdr *hdr = (struct xkv_hdr *)rq->in;
	__u32 first = session_off(rq) + (hdr->flags & XKV_F_ONCE ? XKV_SESSION_BYTES : 0);
	struct xkv_op *op;

	barrier_var(first); /* keeps the mask, which the compiler knows to be redundant */
	op = (struct xkv_op *)&IN(rq, first);
	rq->reply_room = rq->reply_allowed;
	if (hdr->count <= 1 && !(op->flags & XKV_RETURN))
		return;
	if ((int)(rq->payload_off + rq->reply_allowed) > packet_length(ctx) &&
	    resize(ctx, rq->payload_off, rq->reply_allowed))
		rq->reply_room = rq->req_len;
}

/* Records the source address, for requests with a session. */
__noinline int find_source(struct xdp_md *ctx, struct xkv_request *rq)
{
	struct packet p;

	if (!rq || locate(ctx, rq, &p) != CONTINUE)
		return XKV_C_drop_internal;
	rq->source[1] = 0;
	if (p.ip4)
		rq->source[0] = p.ip4->saddr;
	else if (p.ip6)
		__builtin_memcpy(rq->source, &p.ip6->saddr, sizeof(rq->source));
	return CONTINUE;
}

/* The fast path. */
static __always_inline int fast_path(struct xdp_md *ctx, struct xkv_request *rq)
{
	switch (rq->in[FAST_OPCODE_OFF]) {
	case XKV_OP_GET:
		return ((struct xkv_hdr *)rq->in)->count == 1 ? fast_get(ctx, rq)
							      : fast_multiget(ctx, rq);
	case XKV_OP_SET:
		return fast_set(ctx, rq);
	case XKV_OP_SCAN:
		return fast_multiget(ctx, rq);
	}
	return CONTINUE;
}

/*
 * Parses and admits a packet, and begins its request.  A separate function: its variables are not
 * on the stack of the later stages, and the verifier follows these once.
 */
__noinline int begin_request(struct xdp_md *ctx)
{
	struct packet p = { .data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	struct xkv_config *cfg = config();
	struct xkv_request *rq;
	__u32 zero = 0;
	int why;

	if (!cfg)
		return XKV_C_pass_not_ready;
	why = parse(&p, cfg);
	/* of a cache: its lease has expired */
	if (why == CONTINUE && cfg->lease_ns && bpf_ktime_get_ns() >= cfg->lease_ns)
		why = XKV_C_pass_not_ready;
	if (why == CONTINUE)
		why = admit(&p.hosts);
	if (why != CONTINUE)
		return is_unseen(why) ? unseen_source(ctx, why) : why;
	rq = bpf_map_lookup_elem(&xkv_frames, &zero);
	return rq ? request_init(&p, cfg, rq) : XKV_C_pass_not_ready;
}

static __always_inline int serve(struct xdp_md *ctx)
{
	int why = begin_request(ctx);
	struct xkv_request *rq;
	__u32 zero = 0;

	if (why != CONTINUE)
		return why;
	rq = bpf_map_lookup_elem(&xkv_frames, &zero);
	if (!rq)
		return XKV_C_pass_not_ready;
	why = load(ctx, rq);
	if (why == CONTINUE)
		why = fast_path(ctx, rq);
	if (why != CONTINUE)
		return why;
	if (((struct xkv_hdr *)rq->in)->flags & XKV_F_ONCE)
		find_source(ctx, rq);
	reserve_reply_room(ctx, rq);
	return request_run(rq, 0) == VERDICT_REPLY ? reply(ctx, rq) : restore_packet(ctx, rq);
}

SEC("xdp")
int xkv_xdp(struct xdp_md *ctx)
{
	struct xkv_config *cfg = config();
	struct xkv_counters *c = counters(XKV_FRONTEND_XDP);
	__u32 why;

	if (!cfg || !c)
		return XDP_PASS;
	if (cfg->batch && !bulk_rests(cfg) && bulk_ingress(ctx) == REDIRECTED)
		return XDP_REDIRECT;
	why = cfg->magic == XKV_LAYOUT_MAGIC ? serve(ctx) : XKV_C_pass_not_ready;
	/* the compiler knows the ranges of the functions, the verifier does not */
	barrier_var(why);
	if (why < XKV_STATISTIC_COUNT)
		((__u64 *)c)[why]++;
	if (why == XKV_C_replies)
		return XDP_TX;
	if (why >= XKV_C_drop_foreign && why <= XKV_C_drop_internal)
		return XDP_DROP;
	if (why == XKV_C_pass_not_udp || is_unseen(why))
		bpf_tail_call(ctx, &xkv_doors, 0);
	return XDP_PASS;
}

/* A request of the fast path that could not be served there; it cannot be passed on. */
static __always_inline int bulk_general(struct xdp_md *ctx, struct xkv_request *rq, __u32 at)
{
	int why = bulk_restore(ctx, rq, at);

	if (why != CONTINUE)
		return why;
	if (request_run(rq, 0) != VERDICT_REPLY)
		return XKV_C_drop_internal;
	bulk_answered(rq);
	return reply(ctx, rq);
}

/* A packet in the queue: turns it into the reply to its noted request. */
static __always_inline int serve_noted(struct xdp_md *ctx, struct xkv_bulk *b)
{
	struct xkv_config *cfg = config();
	struct xkv_request *rq;
	__u32 zero = 0, at = b->served++;
	struct xkv_note *n;
	int why;

	if ((__s32)(at - b->touched) >= 0)
		bulk_prefetch();
	rq = bpf_map_lookup_elem(&xkv_frames, &zero);
	if (!rq || !cfg)
		return XKV_C_drop_internal;
	rq->now_ms = 0; /* still that of another packet */
	n = note_at(b, at);
	why = n->opcode == XKV_OP_GET ? bulk_get(ctx, rq, cfg, n) : bulk_set(ctx, rq, cfg, n);
	return why == CONTINUE ? bulk_general(ctx, rq, at) : why;
}

SEC("xdp/devmap")
int xkv_bulk_xdp(struct xdp_md *ctx)
{
	struct xkv_counters *c = counters(XKV_FRONTEND_XDP);
	struct xkv_bulk *b = bulk();
	__u32 why;

	if (!b || !c)
		return XDP_DROP;
	if ((b->served == b->noted || !has_mark(ctx, note_at(b, b->served))) && !bulk_skip(ctx))
		return bulk_foreign(ctx, b);
	why = serve_noted(ctx, b);
	barrier_var(why);
	if (why < XKV_STATISTIC_COUNT)
		((__u64 *)c)[why]++;
	return why == XKV_C_replies ? XDP_PASS : XDP_DROP;
}

/*
 * Does xkvd have to complete this request before later ones run?  They may be about the same key.
 */
static __always_inline bool needs_xkvd(struct xkv_request *rq)
{
	struct xkv_result *r = (struct xkv_result *)(rq->out + sizeof(struct xkv_hdr));

	return rq->stop || r->status == XKV_TOO_LARGE;
}

/*
 * Runs requests of xkv_batch, in order; those that had stopped continue.  Sets args->count to the
 * number that were run; the last of these may need xkvd.
 */
static __always_inline int run_requests(struct xkv_requests_args *args)
{
	__u32 index, count = args->count;
	struct xkv_request *rq;

	for (__u32 i = 0; i < XKV_CONTEXT_REQUESTS; i++) {
		if (i >= count)
			break;
		index = args->first + i;
		rq = bpf_map_lookup_elem(&xkv_batch, &index);
		if (!rq)
			return -EINVAL;
		rq->context = index / XKV_CONTEXT_REQUESTS;
		rq->verdict = request_run(rq, rq->stop != 0);
		args->count = i + 1;
		if (needs_xkvd(rq))
			break;
	}
	return 0;
}

/* Slots for xkvd: see slots.bpf.h. */
static __always_inline int run_slots(struct xkv_slots_args *args)
{
	struct xkv_request *rq;
	__u32 index = args->request;
	__u64 ref;

	if (args->cmd == XKV_SLOTS_LINK)
		return slots_link(args);
	if (args->cmd == XKV_SLOTS_FILTER)
		return slots_filter(args);
	if (args->cmd == XKV_SLOTS_FEED)
		return slots_feed(args->first);
	if (args->cmd == XKV_SLOTS_COUNT)
		return slots_count(args);
	rq = bpf_map_lookup_elem(&xkv_batch, &index);
	if (!rq)
		return args->cmd == XKV_SLOTS_FREE ? slot_give(args->first) : -EINVAL;
	if (args->cmd == XKV_SLOTS_ALLOC)
		return slots_alloc(rq, args->class);
	if (args->cmd == XKV_SLOTS_CHAIN)
		return slots_chain(args, rq);
	ref = rq->prefilled;
	rq->prefilled = 0;
	return ref ? slot_give(ref) : 0;
}

/* The keys of a transaction, in xkv_txn: see txn.bpf.h. */
static __always_inline int run_txn(struct xkv_txn_args *args)
{
	struct xkv_txn_args a = *args;

	a.outcome = XKV_TXN_DONE;
	if (a.cmd == XKV_TXN_COMMIT)
		txn_commit(&a);
	else
		txn_slots(&a);
	args->outcome = a.outcome;
	args->no_slot = a.no_slot;
	return 0;
}

/* One program for all: what they have in common is verified once when xkvd starts. */
SEC("syscall")
int xkv_run(struct xkv_run_args *args)
{
	if (args->what == XKV_RUN_REQUESTS)
		return run_requests(&args->requests);
	if (args->what == XKV_RUN_SLOTS)
		return run_slots(&args->slots);
	return args->what == XKV_RUN_TXN ? run_txn(&args->txn) : -EINVAL;
}

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Requests over TCP, answered in the driver, on connections that the kernel has made (bpf/tcp.h).
 *
 *   xkv_tcp_xdp   from the client: answers a request, or translates the segment for the kernel;
 *                 called by xkv_xdp for what is not UDP
 *   xkv_tcp_out   to the client: translates what the kernel sends              (tc, egress)
 *   xkv_tcp_ack   an answer whose request acknowledged data of the kernel comes here: a copy is
 *                 sent, and the rest becomes that acknowledgement              (tc, ingress)
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <stddef.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>

#include "atomic.bpf.h"
#include "flow.bpf.h"
#include "resp.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* ---- from the client --------------------------------------------------------- */

/* What is known of a segment that may be a request. */
struct request {
	struct xkv_request *rq;
	struct xkv_owner *owner;
	struct resp_command command;
	bool known; /* there is a command that may be answered here */
	int sum;    /* SEGMENT_...: its checksum */
};

/* Is this a segment in which a request may be, and nothing else that the kernel has to know? */
static __always_inline bool is_candidate(const struct segment *s)
{
	return s->len && (s->flags & ~TCP_PSH) == TCP_ACK && !s->ecn_ce &&
	       s->header == TCP_HEADER + (s->stamps ? TCP_STAMPS : 0);
}

/* May this command be answered for this connection? */
static __always_inline bool is_armed(const struct xkv_flow *f, const struct xkv_owner *owner,
				     __u32 command)
{
	__u32 zero = 0;
	struct xkv_owner *all = bpf_map_lookup_elem(&xkv_owners, &zero);

	return all && owner->id == f->id && READ_ONCE(owner->armed) >> command & 1 &&
	       owner->epoch == READ_ONCE(all->epoch);
}

/* Keeps the reply, `len` bytes of `out` from `from` on, with its sum. */
__noinline int keep_reply(struct xkv_flow *f, struct xkv_request *rq, __u32 from, __u32 len)
{
	__u64 sum = 0, word;

	if (!f || !rq)
		return 0;
	for (__u32 i = 0; i < XKV_TCP_REPLY_MAX / 8 + 1; i++) {
		if (i * 8 + 8 > len)
			break;
		word = LE64(text_word(rq, from + i * 8));
		f->reply[i] = word;
		sum += HALVES(word);
	}
	word = LE64(low_bytes(text_word(rq, from + (len & ~7U)), len & 7));
	f->reply[len / 8 & 255] = word;
	sum += HALVES(word);
	f->reply_sum = sum_of_halves(sum);
	return 0;
}

/* Makes the packet one of `want` bytes, whose content is written after. */
static __always_inline bool make_size(struct xdp_md *ctx, int want)
{
	int have = packet_length(ctx);

	return want == have || !bpf_xdp_adjust_tail(ctx, want - have) ||
	       !bpf_xdp_adjust_head(ctx, have - want);
}

/*
 * Sends the kept reply in a packet that has its size.  It acknowledges the request, and nothing
 * behind it.
 */
__noinline int send_reply(struct xdp_md *ctx, struct xkv_flow *f, struct segment *s, __u32 now)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct answer a;
	__u32 len, off;

	if (!f || !s)
		return XDP_DROP;
	len = f->reply_len;
	a.to = s;
	a.seq = f->reply_seq;
	a.ack = request_end(f);
	a.window = f->window >> (f->server_scale & 15);
	a.len = len;
	a.sum = f->reply_sum;
	a.stamp = stamp_now(f, now);
	a.echo = s->stamp;
	if (!answer_write(data, end, &a, TCP_PSH | TCP_ACK, false))
		return XDP_DROP;
	off = answer_headers(s);
	barrier_var(len);
	if (bpf_xdp_store_bytes(ctx, off, f->reply, FRAME_LEN(len)))
		return XDP_DROP;
	return XDP_TX;
}

static __always_inline int repeat_reply(struct xdp_md *ctx, struct xkv_flow *f, struct segment *s,
					__u32 now)
{
	if (!make_size(ctx, answer_headers(s) + f->reply_len)) {
		tcp_count(XKV_TCP_C_drop_resize);
		return XDP_DROP;
	}
	f->repeated_ms = now;
	tcp_count(XKV_TCP_C_repeated);
	return send_reply(ctx, f, s, now);
}

#define NOT_ANSWERED (-1)

/*
 * Answers the request, if that is possible: what becomes of the packet.  Nothing is changed if not,
 * neither in the store nor in the packet.
 */
static __always_inline int serve(struct xdp_md *ctx, struct xkv_flow *f, struct segment *s,
				 struct request *r, __u32 now)
{
	struct xkv_config *cfg = config();
	int outcome, text;
	bool sized;

	if (!cfg || resp_operation(r->rq, &r->command)) {
		tcp_count(XKV_TCP_C_pass_other);
		return NOT_ANSWERED;
	}
	outcome = resp_execute(r->rq, cfg, r->owner);
	text = outcome < 0 ? -1 : resp_encode(r->rq, r->command.command, r->owner->resp3);
	if (text < 0) {
		tcp_count(XKV_TCP_C_pass_store);
		return NOT_ANSWERED;
	}
	sized = reply_fits(f, s, text & 0xffff) &&
		make_size(ctx, answer_headers(s) + (text & 0xffff));
	if (!sized && resp_is_read(&r->command)) {
		tcp_count(XKV_TCP_C_pass_window);
		return NOT_ANSWERED;
	}
	barrier_var(outcome);
	count(r->rq, outcome);
	keep_reply(f, r->rq, text >> 16, text & 0xffff);
	flow_advance(f, s, text & 0xffff, now);
	r->owner->used_ns = bpf_ktime_get_ns();
	r->owner->requests++;
	tcp_count(XKV_TCP_C_requests);
	if (!sized) {
		/* It was executed: the client repeats the request, and gets this reply. */
		tcp_count(XKV_TCP_C_drop_resize);
		return XDP_DROP;
	}
	outcome = send_reply(ctx, f, s, now);
	return outcome == XDP_TX && f->ack_owed ? XDP_PASS : outcome;
}

/* The same with the rules before it. */
static __always_inline int try_serve(struct xdp_md *ctx, struct xkv_flow *f, struct segment *s,
				     struct request *r, __u32 now)
{
	int why;

	if (!r->known) {
		if (s->len)
			tcp_count(XKV_TCP_C_pass_other);
		return NOT_ANSWERED;
	}
	if (!is_armed(f, r->owner, r->command.command)) {
		tcp_count(XKV_TCP_C_pass_unarmed);
		return NOT_ANSWERED;
	}
	why = flow_refuses(f, s, READ_ONCE(r->owner->position));
	if (why < 0 && !reply_fits(f, s, RESP_SMALL_REPLY))
		why = XKV_TCP_C_pass_window;
	if (why < 0)
		return serve(ctx, f, s, r, now);
	tcp_count(why);
	return NOT_ANSWERED;
}

/* Translates a segment for the kernel. */
__noinline int to_kernel(struct xdp_md *ctx, struct xkv_flow *f, struct segment *s)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp;
	__u64 sum;

	if (!f || !s || flow_is_plain(f))
		return 0;
	tcp = tcp_header(s, data, end);
	if (!tcp)
		return 0;
	sum = renumber(s, tcp, s->seq - f->eaten, ack_to_kernel(f, s->ack));
	sum += translate_blocks(s, f, tcp, end, false) + (__u16)~tcp->check;
	tcp->check = ~fold(sum);
	return 0;
}

/* Handles a segment of a flow, which is locked: an action of XDP. */
static __always_inline int from_client(struct xdp_md *ctx, struct xkv_flow *f, struct segment *s,
				       struct request *r)
{
	__u32 now = milliseconds();
	int action;

	if (r->sum != SEGMENT_RIGHT) {
		tcp_count(XKV_TCP_C_pass_checksum);
		if (r->sum == SEGMENT_UNKNOWN)
			note_unknown(f, s);
	} else if (f->ready) {
		note_ack(f, s);
		if (misses_reply(f, s, now))
			return repeat_reply(ctx, f, s, now);
		if (is_about_reply(f, s)) {
			tcp_count(XKV_TCP_C_swallowed);
			return XDP_DROP;
		}
		action = try_serve(ctx, f, s, r, now);
		if (action != NOT_ANSWERED)
			return action;
	}
	if (r->sum == SEGMENT_RIGHT)
		note_up(f, s);
	to_kernel(ctx, f, s);
	return XDP_PASS;
}

/* Of the segment that a CPU is working on in XDP. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct segment);
} xkv_segment SEC(".maps");

__noinline int segment_parse(struct xdp_md *ctx, struct segment *s)
{
	if (!s)
		return false;
	return parse_segment(s, (void *)(long)ctx->data, (void *)(long)ctx->data_end, false);
}

SEC("xkv_tcp")
int xkv_tcp_xdp(struct xdp_md *ctx)
{
	struct request r = {};
	struct xkv_flow *f;
	struct segment *s;
	__u32 zero = 0, owner;
	int action;

	s = bpf_map_lookup_elem(&xkv_segment, &zero);
	if (!s || !segment_parse(ctx, s) || s->flags & TCP_SYN)
		return XDP_PASS;
	f = bpf_map_lookup_elem(&xkv_flows, &s->key);
	if (!f)
		return XDP_PASS;
	r.rq = bpf_map_lookup_elem(&xkv_frames, &zero);
	if (!r.rq)
		return XDP_PASS;
	owner = f->owner;
	r.owner = bpf_map_lookup_elem(&xkv_owners, &owner);
	r.sum = segment_load(ctx, s, r.rq);
	r.known = r.sum == SEGMENT_RIGHT && r.owner && is_candidate(s) &&
		  !resp_split(r.rq, s->len) && resp_command(r.rq, &r.command);
	if (!flow_lock(f)) {
		tcp_count(XKV_TCP_C_drop_busy);
		return XDP_DROP;
	}
	action = from_client(ctx, f, s, &r);
	flow_unlock(f);
	return action;
}

/* ---- to the client ----------------------------------------------------------- */

/* Makes a segment on its way to the client an acknowledgement from there.  False: no memory. */
static __always_inline bool become_ack(struct __sk_buff *skb, struct answer *a)
{
	return !bpf_skb_change_tail(skb, answer_headers(a->to), 0) &&
	       answer_write((void *)(long)skb->data, (void *)(long)skb->data_end, a, TCP_ACK, true);
}

/*
 * The client has acknowledged this data, in a request that the driver has eaten, but the kernel
 * does not know: the segment becomes that acknowledgement.
 */
static __always_inline int acknowledge(struct __sk_buff *skb, struct answer *a)
{
	tcp_count(XKV_TCP_C_self_acked);
	return become_ack(skb, a) ? bpf_redirect(skb->ifindex, BPF_F_INGRESS) : TC_ACT_SHOT;
}

static __always_inline void acknowledge_old(const struct xkv_flow *f, const struct segment *s,
					    struct answer *a)
{
	a->seq = s->ack;
	a->ack = injected_at(f);
	a->window = f->client_window;
	a->stamp = s->echo;
	a->echo = s->stamp;
}

/* Translates a segment of the kernel, whose flow is locked; returns the change of its sum. */
static __always_inline __u64 to_client(struct __sk_buff *skb, struct xkv_flow *f,
				       const struct segment *s)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 seq = seq_to_client(f, s), ack = ack_to_client(f, s);
	struct tcphdr *tcp = tcp_header(s, data, end);

	note_sent(f, s, seq);
	if (!tcp || flow_is_plain(f))
		return 0;
	return renumber(s, tcp, seq, ack) + translate_blocks(s, f, tcp, end, true);
}

static __always_inline int change_sum(struct __sk_buff *skb, __u32 at, __u64 change)
{
	if (!change)
		return TC_ACT_UNSPEC;
	change = sum_of_halves(change);
	return bpf_l4_csum_replace(skb, at, 0, change, 0) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

SEC("tc")
int xkv_tcp_out(struct __sk_buff *skb)
{
	struct segment s;
	struct answer a = { .to = &s };
	struct xkv_flow *f;
	__u64 change = 0;
	bool old;

	if (skb->mark == XKV_TCP_MARK) {
		skb->mark = 0;
		return TC_ACT_UNSPEC;
	}
	if (!parse_segment(&s, (void *)(long)skb->data, (void *)(long)skb->data_end, true))
		return TC_ACT_UNSPEC;
	if (s.flags & TCP_SYN) {
		/* Another connection between these ports: nothing of the last one is left. */
		bpf_map_delete_elem(&xkv_flows, &s.key);
		return TC_ACT_UNSPEC;
	}
	f = bpf_map_lookup_elem(&xkv_flows, &s.key);
	if (!f)
		return TC_ACT_UNSPEC;
	if (!flow_lock(f)) {
		tcp_count(XKV_TCP_C_drop_busy);
		return TC_ACT_SHOT;
	}
	if (!f->ready)
		flow_begin(f, skb, &s);
	old = is_old(f, &s);
	if (old)
		acknowledge_old(f, &s, &a);
	else
		change = to_client(skb, f, &s);
	flow_unlock(f);
	if (old)
		return acknowledge(skb, &a);
	return change_sum(skb, s.tcp_off + offsetof(struct tcphdr, check), change);
}

/* ---- both -------------------------------------------------------------------- */

/* Takes the acknowledgement that the kernel is owed.  False: none is. */
static __always_inline bool take_owed(struct xkv_flow *f, const struct segment *s, struct answer *a)
{
	if (!f->ack_owed || s->seq != f->reply_seq)
		return false;
	f->ack_owed = 0;
	a->seq = f->owed_seq;
	a->ack = f->owed_ack;
	a->window = f->client_window;
	a->stamp = f->owed_stamp;
	a->echo = f->owed_echo;
	return true;
}

SEC("tc")
int xkv_tcp_ack(struct __sk_buff *skb)
{
	struct segment s;
	struct answer a = { .to = &s };
	struct xkv_flow *f;
	bool owed;

	/* An answer has the client's address as its destination. */
	if (skb->pkt_type != PACKET_OTHERHOST ||
	    !parse_segment(&s, (void *)(long)skb->data, (void *)(long)skb->data_end, true))
		return TC_ACT_UNSPEC;
	f = bpf_map_lookup_elem(&xkv_flows, &s.key);
	if (!f || !flow_lock(f))
		return TC_ACT_UNSPEC;
	owed = take_owed(f, &s, &a);
	flow_unlock(f);
	if (!owed)
		return TC_ACT_UNSPEC;
	skb->mark = XKV_TCP_MARK;
	bpf_clone_redirect(skb, skb->ifindex, 0); /* if that fails the request is repeated */
	skb->mark = 0;
	tcp_count(XKV_TCP_C_acks);
	return become_ack(skb, &a) && !bpf_skb_change_type(skb, PACKET_HOST) ? TC_ACT_UNSPEC
									     : TC_ACT_SHOT;
}

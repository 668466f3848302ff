// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Requests over TCP, answered in the driver, on connections that the kernel has made (bpf/tcp.h).
 *
 *   xkv_tcp_xdp   from the client: answers a request, or translates the segment for the kernel;
 *                 called by xkv_xdp for what is not UDP
 *   xkv_tcp_out   to the client: translates what the kernel sends              (tc, egress)
 *   xkv_tcp_ack   an answer comes here if the packet was too small for it, or if its request
 *                 acknowledged data of the kernel: then a copy is sent, and the rest becomes that
 *                 acknowledgement                                              (tc, ingress)
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <stddef.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>

#define FRONTEND(rq) XKV_FRONTEND_XDP

#include "flow.bpf.h"
#include "resp.bpf.h"
#include "stray.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* ---- from the client --------------------------------------------------------- */

/* The segment that a CPU is working on in XDP, and its commands. */
struct work {
	struct segment s;
	struct resp r;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct work);
} xkv_tcp_work SEC(".maps");

enum { SEGMENT_WRONG, SEGMENT_RIGHT, SEGMENT_UNKNOWN };

/* The description of a segment that may be a request. */
struct request {
	struct xkv_request *rq;
	struct xkv_owner *owner;
	struct resp *r;
	__u64 ns;   /* when it came */
	bool known; /* it has commands that may be answered here, and nothing else */
	int sum;    /* SEGMENT_...: its checksum */
};

/* May this segment have requests, and nothing else that the kernel has to know? */
static __always_inline bool is_candidate(const struct segment *s)
{
	return s->len && s->len <= XKV_REQUEST_BYTES && (s->flags & ~TCP_PSH) == TCP_ACK &&
	       !s->ecn_ce && s->header == TCP_HEADER + (s->stamps ? TCP_STAMPS : 0);
}

/* May these commands be answered for this connection? */
static __always_inline bool is_armed(const struct xkv_flow *f, const struct xkv_owner *owner,
				     __u32 which)
{
	__u32 zero = 0;
	struct xkv_owner *all = bpf_map_lookup_elem(&xkv_owners, &zero);

	return all && owner->id == f->id && !(which & ~READ_ONCE(owner->armed)) &&
	       owner->epoch == READ_ONCE(all->epoch);
}

/* ---- the kept reply ---------------------------------------------------------- */

/* The sum of bytes that begin at an odd place. */
static __always_inline __u32 sum_at_odd(__u32 sum)
{
	return (sum & 0x00ff00ff) << 8 | (sum >> 8 & 0x00ff00ff);
}

static __always_inline void put_reply(struct xkv_flow *f, __u32 at, __u64 word)
{
	__u64 *to = (void *)f->reply + (at & TEXT_MASK);

	barrier_var(to); /* else it is stored byte by byte */
	*to = word;
}

/* Appends `len` bytes of `out` to the reply, which has `at` bytes. */
__noinline int append_reply(struct xkv_flow *f, struct xkv_request *rq, __u32 from, __u32 len,
			    __u32 at)
{
	__u64 sum = 0, word;
	__u32 part, whole = len & ~7U;

	if (!f || !rq)
		return 0;
	for (__u32 i = 0; i < XKV_TCP_REPLY_MAX; i += 8) {
		if (i >= whole)
			break;
		word = LE64(word_at(rq->out, from + i));
		put_reply(f, at + i, word);
		sum += HALVES(word);
	}
	word = LE64(low_bytes(word_at(rq->out, from + whole), len & 7));
	put_reply(f, at + whole, word);
	sum += HALVES(word);
	part = sum_of_halves(sum);
	sum = (at ? f->reply_sum : 0ULL) + (at & 1 ? sum_at_odd(part) : part);
	f->reply_sum = sum_of_halves(sum);
	return 0;
}

/* Appends the values of `keys` results to the reply, which has `len` bytes; returns its length. */
__noinline int append_values(struct xkv_flow *f, struct xkv_request *rq, __u32 keys, __u32 resp3,
			     __u32 len)
{
	__u32 value = RESP_VALUE, text, bytes, open = 0, has;

	if (!f || !rq)
		return 0;
	for (__u32 i = 0; i < RESP_WORDS_MAX; i++) {
		if (i >= keys)
			break;
		has = OUT_BYTE(rq, value - sizeof(struct xkv_result) +
					   offsetof(struct xkv_result, flags));
		text = resp_piece(rq, value, i ? 0 : keys, open, resp3);
		bytes = text & 0xffff;
		append_reply(f, rq, text >> 16, bytes, len);
		len += bytes;
		value = XKV_PADDED((text >> 16) + bytes) + sizeof(struct xkv_result);
		open = has & XKV_HAS_VALUE;
	}
	if (!open)
		return len;
	text = PUT_SHORT(rq, "\r\n");
	append_reply(f, rq, text >> 16, text & 0xffff, len);
	return len + (text & 0xffff);
}

/* Moves `len` bytes of the kept reply to its beginning; returns their sum. */
__noinline __u32 move_reply(struct xkv_flow *f, __u32 from, __u32 len)
{
	__u32 whole = len & ~7U;
	__u64 sum = 0, word;

	if (!f)
		return 0;
	for (__u32 i = 0; i < XKV_TCP_REPLY_MAX; i += 8) {
		if (i >= whole)
			break;
		word = LE64(word_at(f->reply, from + i));
		put_reply(f, i, word);
		sum += HALVES(word);
	}
	word = LE64(low_bytes(word_at(f->reply, from + whole), len & 7));
	if (from)
		put_reply(f, whole, word);
	sum += HALVES(word);
	return sum_of_halves(sum);
}

/*
 * The client has acknowledged the first bytes: the rest becomes the kept reply.  The kernel's view
 * of its place does not change.
 */
__noinline int trim_reply(struct xkv_flow *f, __u32 bytes)
{
	if (!f || bytes >= f->reply_len)
		return 0;
	f->reply_seq += bytes;
	f->reply_len -= bytes;
	f->reply_sum = move_reply(f, bytes, f->reply_len);
	f->repeated_ms--; /* not yet */
	return 0;
}

static __always_inline __u32 part_sum(struct xkv_flow *f, __u32 len)
{
	return len == f->reply_len ? f->reply_sum : move_reply(f, 0, len);
}

/*
 * How many bytes of the kept reply fit a segment: less than all if the path's limit has become
 * smaller.  Only the last part acknowledges the request: a client that misses a part repeats the
 * request, and gets it.
 */
static __always_inline __u32 reply_part(const struct xkv_flow *f)
{
	return f->reply_len <= f->mss ? f->reply_len : f->mss;
}

/* Resizes the packet to `want` bytes, whose content is written afterwards. */
static __always_inline bool make_size(struct xdp_md *ctx, int want)
{
	int have = packet_length(ctx);

	return want == have || !bpf_xdp_adjust_tail(ctx, want - have) ||
	       !bpf_xdp_adjust_head(ctx, have - want);
}

/*
 * Sends the kept reply, or its first part.  It acknowledges the request, and nothing after it.  If
 * the packet cannot be made long enough, only the headers go to xkv_tcp_ack, which can do so.
 */
__noinline int send_reply(struct xdp_md *ctx, struct xkv_flow *f, struct segment *s, __u32 now)
{
	struct answer a = { .to = s };
	__u32 len, off;
	bool whole;

	if (!f || !s)
		return XDP_DROP;
	off = answer_headers(s);
	len = reply_part(f);
	whole = make_size(ctx, off + len);
	if (!whole && !make_size(ctx, off)) {
		tcp_count(XKV_TCP_C_drop_resize);
		return XDP_DROP;
	}
	a.seq = f->reply_seq;
	a.ack = len == f->reply_len ? request_end(f) : f->request_seq;
	a.window = f->window >> (f->server_scale & 15);
	a.len = whole ? len : 0;
	a.sum = whole ? part_sum(f, len) : 0;
	a.stamp = stamp_now(f, now);
	a.echo = s->stamp;
	if (!answer_write((void *)(long)ctx->data, (void *)(long)ctx->data_end, &a,
			  TCP_PSH | TCP_ACK, false))
		return XDP_DROP;
	if (len != f->reply_len)
		tcp_count(XKV_TCP_C_pieces);
	if (!whole)
		return XDP_PASS;
	barrier_var(len);
	if (bpf_xdp_store_bytes(ctx, off, f->reply, FRAME_LEN(len)))
		return XDP_DROP;
	return XDP_TX;
}

/* ---- from the client --------------------------------------------------------- */

/*
 * Copies the commands, and verifies the checksum of the segment.  SEGMENT_UNKNOWN: only the kernel
 * can verify it, since the segment is not in one piece, or was merged by GRO, which does not update
 * the sum of the pseudo header.
 */
__noinline int load_text(struct xdp_md *ctx, struct segment *s, struct resp *r)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp;
	void *payload;
	__u64 sum, pseudo;
	__u32 len;

	if (!s || !r)
		return SEGMENT_WRONG;
	tcp = tcp_header(s, data, end);
	len = s->len;
	if (!tcp)
		return SEGMENT_WRONG;
	if (len > XKV_TCP_FRAME_MAX)
		return SEGMENT_UNKNOWN;
	payload = (void *)tcp + (s->header & 63);
	barrier_var(payload);
	if (payload + len > end)
		return SEGMENT_UNKNOWN;
	if (len <= XKV_REQUEST_BYTES) {
		r->len = len;
		sum = copy_payload(r->text, payload, end, len);
		r->text[(len / 8 & (XKV_REQUEST_WORDS - 1)) + 1] = 0;
	} else {
		sum = bytes_sum(payload, end, len);
	}
	pseudo = s->address_sum + bpf_htons(s->header + len);
	if (fold(sum + header_sum(tcp, s->header, end) + pseudo) == 0xffff)
		return SEGMENT_RIGHT;
	return tcp->check == fold(pseudo) ? SEGMENT_UNKNOWN : SEGMENT_WRONG;
}

/* Executes the commands in order while that is possible here: how many bytes the replies have. */
static __always_inline int serve_all(struct xkv_flow *f, struct xkv_request *rq, struct resp *r)
{
	__u32 len = 0;
	int text;

	if (!f || !rq || !r)
		return 0;
	r->done = 0;
	for (__u32 i = 0; i < RESP_COMMANDS_MAX; i++) {
		if (i >= r->count)
			break;
		text = resp_serve(r, rq, i, r->room - len);
		if (text < 0)
			break;
		if (text == RESP_VALUES) {
			len = append_values(f, rq, r->command[i].keys, r->resp3, len);
		} else {
			append_reply(f, rq, text >> 16, text & 0xffff, len);
			len += text & 0xffff;
		}
		r->done = i + 1;
	}
	return len;
}

/* Counts a command that was answered in `ns`; those about several keys have counted operations. */
__noinline int count_command(struct xkv_request *rq, struct resp *r, __u32 i, __u64 ns)
{
	struct xkv_tcp_stats *stats = tcp_stats();
	struct resp_command *c;
	__u32 outcome, which;

	if (!rq || !r || !stats)
		return 0;
	c = &r->command[i & (RESP_COMMANDS_MAX - 1)];
	outcome = c->outcome;
	which = c->command;
	barrier_var(outcome);
	barrier_var(which);
	if (!c->keys)
		count(rq, outcome);
	if (which >= XKV_TCP_COMMAND_COUNT)
		return 0;
	stats->count[XKV_TCP_C_extra] += c->extra;
	stats->command[which].calls++;
	stats->command[which].failed += c->failed;
	stats->command[which].ns += ns;
	return 0;
}

/* Counts the commands of so many bytes that were answered in `ns`, with replies of `len`. */
__noinline int count_served(struct xkv_request *rq, struct resp *r, __u64 ns, __u32 bytes,
			    __u32 len)
{
	struct xkv_tcp_stats *stats = tcp_stats();

	if (!rq || !r || !stats || !r->done)
		return 0;
	ns /= r->done;
	for (__u32 i = 0; i < RESP_COMMANDS_MAX; i++) {
		if (i >= r->done)
			break;
		count_command(rq, r, i, ns);
	}
	stats->count[XKV_TCP_C_segments]++;
	stats->count[XKV_TCP_C_requests] += r->done;
	stats->bytes_in += bytes;
	stats->bytes_out += len;
	return 0;
}

#define NOT_ANSWERED (-1)

/* The sum of the text from `at` on, which zeros follow. */
__noinline __u32 text_sum(struct resp *r, __u32 at)
{
	__u64 sum = 0;

	if (!r)
		return 0;
	for (__u32 i = 0; i < XKV_REQUEST_BYTES; i += 8) {
		if (at + i >= r->len)
			break;
		sum += HALVES(LE64(word_at(r->text, at + i)));
	}
	return sum_of_halves(sum);
}

/* Takes the first bytes of the payload out of the packet; the headers stay as they are. */
static __always_inline bool cut_payload(struct xdp_md *ctx, struct segment *s, struct resp *r,
					__u32 bytes)
{
	__u32 size = s->tcp_off + s->header;
	void *headers = r->command;

	barrier_var(size);
	if (bpf_xdp_load_bytes(ctx, 0, headers, HEADERS_LEN(size)) ||
	    bpf_xdp_adjust_head(ctx, bytes))
		return false;
	barrier_var(size);
	return !bpf_xdp_store_bytes(ctx, 0, headers, HEADERS_LEN(size));
}

/*
 * Only the first commands of a segment were answered: the rest becomes a segment of its own, which
 * is passed up.  The reply to the first ones is sent when the client notices the gap, which is when
 * xkvd's reply arrives.  False: the packet is unchanged, or lost.
 */
__noinline int keep_rest(struct xdp_md *ctx, struct segment *s, struct resp *r, __u32 eaten)
{
	void *data, *end;
	struct packet p;
	struct tcphdr *tcp;

	if (!s || !r || !cut_payload(ctx, s, r, eaten))
		return false;
	s->seq += eaten;
	s->len -= eaten;
	if (locate_at(ctx, s->tcp_off - (s->ip4 ? sizeof(*p.ip4) : sizeof(*p.ip6)), s->ip4, &p) !=
	    CONTINUE)
		return false;
	if (p.ip4) {
		p.ip4->tot_len = bpf_htons(sizeof(*p.ip4) + s->header + s->len);
		p.ip4->check = 0;
		p.ip4->check = ~fold(ip4_sum(p.ip4));
	} else if (p.ip6) {
		p.ip6->payload_len = bpf_htons(s->header + s->len);
	}
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	tcp = tcp_header(s, data, end);
	if (!tcp)
		return false;
	tcp->seq = bpf_htonl(s->seq);
	tcp->check = 0;
	tcp->check = ~fold(header_sum(tcp, s->header, end) + text_sum(r, eaten) + s->address_sum +
			   bpf_htons(s->header + s->len));
	return true;
}

/* Commands were answered with `len` bytes: records that, and returns how many bytes they had. */
static __always_inline __u32 served(struct xkv_flow *f, struct segment *s, struct request *q,
				    __u32 len)
{
	struct xkv_owner *owner = q->owner;
	__u32 last = q->r->done - 1, eaten;

	barrier_var(last);
	last &= RESP_COMMANDS_MAX - 1;
	eaten = q->r->command[last].end;
	flow_advance(f, s, eaten, len, milliseconds(q->ns));
	owner->last = q->r->command[last].command;
	owner->requests += q->r->done;
	owner->used_ns = bpf_ktime_get_ns();
	count_served(q->rq, q->r, owner->used_ns - q->ns, eaten, len);
	return eaten;
}

/*
 * Answers the request, if possible, and returns the packet's action.  If not, nothing is changed,
 * neither in the store nor in the packet.
 */
static __always_inline int serve(struct xdp_md *ctx, struct xkv_flow *f, struct segment *s,
				 struct request *q)
{
	struct xkv_owner *owner = q->owner;
	struct resp *r = q->r;
	__u32 now = milliseconds(q->ns), eaten;
	int len, action;

	r->db = owner->db;
	r->resp3 = owner->resp3;
	r->no_touch = owner->no_touch;
	len = serve_all(f, q->rq, r);
	if (!r->done || (r->done < r->count && !r->changes)) {
		if (r->count > 1 && r->why == XKV_TCP_C_pass_window)
			f->too_long = s->len;
		tcp_count(r->why);
		return NOT_ANSWERED;
	}
	if (s->len >= f->too_long && r->count > 1)
		f->too_long = 0;
	eaten = served(f, s, q, len);
	if (r->done < r->count && keep_rest(ctx, s, r, eaten)) {
		tcp_count(XKV_TCP_C_partial);
		f->ack_owed = 0;
		f->repeated_ms--; /* not yet */
		return NOT_ANSWERED;
	}
	action = send_reply(ctx, f, s, now);
	return action == XDP_TX && f->ack_owed ? XDP_PASS : action;
}

/* The same with the rules before it. */
static __always_inline int try_serve(struct xdp_md *ctx, struct xkv_flow *f, struct segment *s,
				     struct request *q)
{
	int why;

	if (!q->known) {
		if (s->len)
			tcp_count(XKV_TCP_C_pass_other);
		return NOT_ANSWERED;
	}
	if (!is_armed(f, q->owner, q->r->which)) {
		tcp_count(XKV_TCP_C_pass_unarmed);
		return NOT_ANSWERED;
	}
	why = flow_refuses(f, s, READ_ONCE(q->owner->position));
	q->r->room = reply_room(f, s);
	if (why < 0 && q->r->room < RESP_SMALL_REPLY)
		why = XKV_TCP_C_pass_window;
	if (why < 0)
		return serve(ctx, f, s, q);
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
	sum += put_stamp(s, tcp, end, ECHO_AT, echo_to_kernel(f, s->echo));
	sum += translate_blocks(s, f, tcp, end, false) + (__u16)~tcp->check;
	tcp->check = ~fold(sum);
	return 0;
}

/* Handles a segment of a flow, which is locked: an action of XDP. */
static __always_inline int from_client(struct xdp_md *ctx, struct xkv_flow *f, struct segment *s,
				       struct request *q)
{
	__u32 now = milliseconds(q->ns), unacked = f->unacked;
	int action;

	if (q->sum != SEGMENT_RIGHT) {
		tcp_count(XKV_TCP_C_pass_checksum);
		if (q->sum == SEGMENT_UNKNOWN)
			note_unknown(f, s);
	} else if (f->ready) {
		if (note_ack(f, s))
			trim_reply(f, s->ack - f->reply_seq);
		if (misses_reply(f, s, now)) {
			f->repeated_ms = now;
			tcp_count(XKV_TCP_C_repeated);
			return send_reply(ctx, f, s, now);
		}
		if (is_about_reply(f, s) || (unacked && is_no_news(f, s))) {
			tcp_count(XKV_TCP_C_swallowed);
			return XDP_DROP;
		}
		action = try_serve(ctx, f, s, q);
		if (action != NOT_ANSWERED)
			return action;
	}
	if (q->sum == SEGMENT_RIGHT)
		note_up(f, s);
	to_kernel(ctx, f, s);
	return XDP_PASS;
}

/*
 * Has the packet all bytes that its IP header names?  If not, the kernel drops it.  A fragment may
 * end within the header of TCP.
 */
static __always_inline bool is_whole(struct xdp_md *ctx, const struct segment *s)
{
	return s->parts || s->tcp_off + s->header + s->len <= bpf_xdp_get_buff_len(ctx);
}

__noinline int segment_parse(struct xdp_md *ctx, struct segment *s)
{
	if (!s)
		return false;
	return parse_segment(s, (void *)(long)ctx->data, (void *)(long)ctx->data_end, false);
}

/* Does it belong to another connection, which has no flow yet? */
static __always_inline bool is_first(const struct segment *s)
{
	return (s->flags & (TCP_SYN | TCP_RST)) == TCP_SYN;
}

/* A packet that is not an answerable segment: it is passed up, with the kernel's numbers. */
static __always_inline int pass_stray(struct xdp_md *ctx, struct segment *s)
{
	__u32 now = milliseconds(bpf_ktime_get_ns());
	int action = XDP_PASS;
	struct xkv_flow *f;
	__u32 owner;

	if (!stray_segment(ctx, s)) {
		if (s->parts)
			return XDP_DROP;
		stray_error(ctx, s);
		return XDP_PASS;
	}
	f = is_first(s) || !is_whole(ctx, s) ? NULL : bpf_map_lookup_elem(&xkv_flows, &s->key);
	if (!f)
		return XDP_PASS;
	if (!flow_lock(f))
		return XDP_DROP;
	f->in_parts |= s->parts;
	if (s->len && misses_reply(f, s, now)) {
		/* It may never come again in one piece. */
		tcp_count(XKV_TCP_C_repeated);
		action = send_reply(ctx, f, s, now);
	} else {
		note_unknown(f, s);
		to_kernel(ctx, f, s);
	}
	owner = f->owner;
	note_passed(f, bpf_map_lookup_elem(&xkv_owners, &owner));
	flow_unlock(f);
	return action;
}

/* Was this made by xkv_tcp_out?  With generic XDP it arrives here once more. */
static __always_inline bool is_own(const struct segment *s)
{
	return s->urgent == XKV_TCP_OWN && s->flags == TCP_ACK && !s->len;
}

SEC("xkv_tcp")
int xkv_tcp_xdp(struct xdp_md *ctx)
{
	struct request q = {};
	struct xkv_flow *f;
	struct segment *s;
	struct work *w;
	__u32 zero = 0, owner;
	int action;

	w = bpf_map_lookup_elem(&xkv_tcp_work, &zero);
	if (!w)
		return XDP_PASS;
	s = &w->s;
	if (!segment_parse(ctx, s))
		return pass_stray(ctx, s);
	if (is_first(s) || is_own(s) || !is_whole(ctx, s))
		return XDP_PASS;
	f = bpf_map_lookup_elem(&xkv_flows, &s->key);
	if (!f)
		return XDP_PASS;
	q.rq = bpf_map_lookup_elem(&xkv_frames, &zero);
	if (!q.rq)
		return XDP_PASS;
	q.r = &w->r;
	q.ns = bpf_ktime_get_ns();
	owner = f->owner;
	q.owner = bpf_map_lookup_elem(&xkv_owners, &owner);
	q.r->most = pipeline_most(f);
	q.sum = load_text(ctx, s, q.r);
	q.known = q.sum == SEGMENT_RIGHT && q.owner && is_candidate(s) && resp_parse_all(q.r);
	if (!flow_lock(f)) {
		tcp_count(XKV_TCP_C_drop_busy);
		return XDP_DROP;
	}
	action = from_client(ctx, f, s, &q);
	note_passed(f, q.owner);
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
	a->urgent = XKV_TCP_OWN;
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
	return renumber(s, tcp, seq, ack) + translate_blocks(s, f, tcp, end, true) +
	       put_stamp(s, tcp, end, STAMP_AT, stamp_to_client(bpf_ntohl(s->stamp)));
}

static __always_inline int change_sum(struct __sk_buff *skb, __u32 at, __u64 change)
{
	if (!change)
		return TC_ACT_UNSPEC;
	change = sum_of_halves(change);
	return bpf_l4_csum_replace(skb, at, 0, change, 0) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

static __always_inline bool parse_sent(struct __sk_buff *skb, struct segment *s)
{
	if (parse_segment(s, (void *)(long)skb->data, (void *)(long)skb->data_end, true))
		return true;
	__builtin_memset(s, 0, sizeof(*s)); /* kernel 6.1 wants all of an argument set */
	return stray_sent(skb, s);
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
	if (!parse_sent(skb, &s))
		return TC_ACT_UNSPEC;
	if (s.flags & TCP_SYN) {
		/* Another connection between these ports: deletes the flow of the previous one. */
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
	if (s.len)
		note_mss(f, skb);
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
static __always_inline bool take_owed(struct xkv_flow *f, struct answer *a)
{
	if (!f->ack_owed)
		return false;
	f->ack_owed = 0;
	a->seq = f->owed_seq;
	a->ack = f->owed_ack;
	a->window = f->kernel_window = f->client_window;
	a->stamp = f->owed_stamp;
	a->echo = echo_to_kernel(f, f->owed_echo);
	a->len = a->sum = 0;
	return true;
}

/* Appends the kept reply to headers that XDP has made.  False: no memory. */
static __always_inline bool grow_reply(struct __sk_buff *skb, struct xkv_flow *f, struct segment *s)
{
	struct answer a = { .to = s };
	__u32 len = reply_part(f), off = answer_headers(s);

	a.seq = s->seq;
	a.ack = s->ack;
	a.window = s->window;
	a.stamp = s->stamp;
	a.echo = s->echo;
	a.len = len;
	a.sum = part_sum(f, len);
	if (bpf_skb_change_tail(skb, off + len, 0))
		return false;
	segment_turn(s);
	if (!answer_write((void *)(long)skb->data, (void *)(long)skb->data_end, &a,
			  TCP_PSH | TCP_ACK, false))
		return false;
	segment_turn(s);
	barrier_var(len);
	tcp_count(XKV_TCP_C_grown);
	return !bpf_skb_store_bytes(skb, off, f->reply, FRAME_LEN(len), 0);
}

/*
 * Reached because XDP could not make the packet long enough, or because the kernel has to get an
 * acknowledgement beside the reply, or both.
 */
static __always_inline int send_answer(struct __sk_buff *skb, struct segment *s, struct answer *a,
				       bool owed)
{
	skb->mark = XKV_TCP_MARK;
	if (!owed)
		return bpf_redirect(skb->ifindex, 0);
	bpf_clone_redirect(skb, skb->ifindex, 0); /* if that fails the request is repeated */
	skb->mark = 0;
	tcp_count(XKV_TCP_C_acks);
	return become_ack(skb, a) && !bpf_skb_change_type(skb, PACKET_HOST) ? TC_ACT_UNSPEC
									    : TC_ACT_SHOT;
}

SEC("tc")
int xkv_tcp_ack(struct __sk_buff *skb)
{
	struct segment s;
	struct answer a = { .to = &s };
	struct xkv_flow *f;
	bool owed, grown = true;

	/* An answer has the client's address as its destination. */
	if (skb->pkt_type != PACKET_OTHERHOST ||
	    !parse_segment(&s, (void *)(long)skb->data, (void *)(long)skb->data_end, true))
		return TC_ACT_UNSPEC;
	f = bpf_map_lookup_elem(&xkv_flows, &s.key);
	if (!f || !flow_lock(f))
		return TC_ACT_UNSPEC;
	if (s.seq != f->reply_seq) {
		flow_unlock(f);
		return TC_ACT_UNSPEC;
	}
	if (!s.len)
		grown = grow_reply(skb, f, &s);
	owed = take_owed(f, &a);
	flow_unlock(f);
	return grown || owed ? send_answer(skb, &s, &a, owed) : TC_ACT_SHOT;
}

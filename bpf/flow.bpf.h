/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows: the two views of a connection (bpf/tcp.h), and the rules for what the driver may answer.
 *
 * The rules, and what happens without them (each was tested under loss, duplicates, corruption and
 * reordering in both directions):
 *  - A request is eaten only if it is the next byte that the client sends: what the kernel holds
 *    out of order would lie at a wrong place.
 *  - ... if all that was sent to the client is acknowledged, and xkvd has read and answered all
 *    that went up (xkv_owner.position).  So at most one injected reply is under way.
 *  - ... and if its checksums are right: an owner that is armed would answer noise.
 *  - ... and if its time stamp is not before the last one: it may be a copy from before the numbers
 *    wrapped (PAWS, RFC 7323).
 *  - A reply is kept until it is acknowledged.  It alone acknowledges its request, so a client that
 *    misses it repeats the request, and gets the same bytes: the driver needs no timer.
 *  - While it is not acknowledged, the kernel's pure acknowledgements do not acknowledge its
 *    request.
 *  - Once something was answered, the client gets time stamps of the future: a segment that reaches
 *    it without being translated (the program was taken off, the route has changed) is an old copy
 *    to it (PAWS), and not data at a wrong place.
 */
#ifndef XKV_FLOW_BPF_H
#define XKV_FLOW_BPF_H

#include "segment.bpf.h"

#define FLOW_TRIES     1024	  /* to lock a flow: a request is executed meanwhile */
#define FAR	       (1U << 26) /* beyond what the client may send ahead, before that is known */
#define PIPELINE_TRIAL 64	  /* segments of a flow between two */
#define ANCHOR_MAX     (5U << 28) /* comparisons with the last reply hold for 2^31 bytes */
#define ANCHOR	       (1U << 30) /* no window is as large: what is as old is acknowledged */
#define STAMP_SHIFT    (1U << 30) /* twelve days */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, XKV_FLOWS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct xkv_flow_key);
	__type(value, struct xkv_flow);
} xkv_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, XKV_OWNERS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct xkv_owner);
} xkv_owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct xkv_tcp_stats);
} xkv_tcp_counters SEC(".maps");

static __always_inline struct xkv_tcp_stats *tcp_stats(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&xkv_tcp_counters, &zero);
}

static __always_inline void tcp_count(__u32 which)
{
	struct xkv_tcp_stats *stats = tcp_stats();

	if (stats && which < XKV_TCP_COUNTER_COUNT)
		stats->count[which]++;
}

/*
 * Both programs of a flow may run at the same time, on different CPUs.  False: the other one takes
 * long.
 */
__noinline int flow_lock(struct xkv_flow *f)
{
	for (int i = 0; f && i < FLOW_TRIES; i++)
		if (!__sync_val_compare_and_swap(&f->lock, 0, 1))
			return true;
	return false;
}

static __always_inline void flow_unlock(struct xkv_flow *f)
{
	smp_wmb();
	barrier();
	WRITE_ONCE(f->lock, 0);
}

/* Of a clock that time stamps and repeats go by. */
static __always_inline __u32 milliseconds(__u64 ns)
{
	return ns / 1000000;
}

static __always_inline bool flow_is_plain(const struct xkv_flow *f)
{
	return !f->answered;
}

/* ---- from one view to the other --------------------------------------------- */

static __always_inline __u32 reply_end(const struct xkv_flow *f)
{
	return f->reply_seq + f->reply_len;
}

static __always_inline __u32 request_end(const struct xkv_flow *f)
{
	return f->request_seq + f->request_len;
}

/*
 * The kernel's view of an acknowledgement.  All replies before the last are acknowledged, so only
 * that one has a beginning and an end that count.
 */
static __always_inline __u32 ack_to_kernel(const struct xkv_flow *f, __u32 ack)
{
	if (!BEFORE(ack, reply_end(f)))
		return ack - f->injected;
	if (BEFORE(f->reply_seq, ack))
		ack = f->reply_seq;
	return ack - (f->injected - f->reply_len);
}

/* The kernel's view of the place where the last reply was injected. */
static __always_inline __u32 injected_at(const struct xkv_flow *f)
{
	return f->reply_seq - (f->injected - f->reply_len);
}

/* The client's view of an edge of a block that the kernel has received. */
static __always_inline __u32 edge_to_client(const struct xkv_flow *f, __u32 edge, bool right)
{
	__u32 eaten_at = f->request_seq - (f->eaten - f->request_len);
	__s32 after = edge - eaten_at;

	return edge + (after < 0 || (right && !after) ? f->eaten - f->request_len : f->eaten);
}

/*
 * Translates the blocks of selective acknowledgements behind the time stamps; returns by how much
 * the sum of the header has changed.
 */
static __always_inline __u64 translate_blocks(const struct segment *s, const struct xkv_flow *f,
					      struct tcphdr *tcp, void *end, bool to_client)
{
	__u32 at = s->stamps ? TCP_STAMPS : 0, count;
	__be32 *first = option_at(tcp, s->header, end, at), *left, *right, old[2];
	__u64 change = 0;

	if (!first || (*first & bpf_htonl(SACK_MASK)) != bpf_htonl(SACK_FIRST))
		return 0;
	count = ((bpf_ntohl(*first) & 0xff) - 2) / 8;
	for (__u32 i = 0; i < SACKS_MAX; i++) {
		left = option_at(tcp, s->header, end, at + 4 + 8 * i);
		right = option_at(tcp, s->header, end, at + 8 + 8 * i);
		if (i >= count || !left || !right)
			break;
		old[0] = *left;
		old[1] = *right;
		*left = bpf_htonl(to_client ? edge_to_client(f, bpf_ntohl(old[0]), false)
					    : ack_to_kernel(f, bpf_ntohl(old[0])));
		*right = bpf_htonl(to_client ? edge_to_client(f, bpf_ntohl(old[1]), true)
					     : ack_to_kernel(f, bpf_ntohl(old[1])));
		change += (__u64)(__u32)~old[0] + *left + (__u32)~old[1] + *right;
	}
	return change;
}

/* The client's view of a time stamp of the kernel. */
static __always_inline __be32 stamp_to_client(__u32 stamp)
{
	return bpf_htonl(stamp + STAMP_SHIFT);
}

/* The kernel's view of its time stamp that the client echoes: one from before may be among them. */
static __always_inline __be32 echo_to_kernel(const struct xkv_flow *f, __be32 echo)
{
	__u32 stamp = bpf_ntohl(echo);
	bool shifted = f->answered && (__s32)(stamp - f->stamp_last) > (__s32)STAMP_SHIFT / 2;

	return shifted ? bpf_htonl(stamp - STAMP_SHIFT) : echo;
}

/* Sets a time stamp, or its echo; returns by how much the sum of the header has changed. */
static __always_inline __u64 put_stamp(const struct segment *s, struct tcphdr *tcp, void *end,
				       __u32 at, __be32 stamp)
{
	__be32 *word = option_at(tcp, s->header, end, at), old;

	if (!s->stamps || !word)
		return 0;
	old = *word;
	*word = stamp;
	return (__u64)(__u32)~old + stamp;
}

/* Sets the numbers of a segment; returns by how much the sum of its header has changed. */
static __always_inline __u64 renumber(const struct segment *s, struct tcphdr *tcp, __u32 seq,
				      __u32 ack)
{
	__be32 old_seq = tcp->seq, old_ack = tcp->ack_seq;

	tcp->seq = bpf_htonl(seq);
	if (s->flags & TCP_ACK)
		tcp->ack_seq = bpf_htonl(ack);
	return (__u64)(__u32)~old_seq + tcp->seq + (__u32)~old_ack + tcp->ack_seq;
}

/* ---- from the client --------------------------------------------------------- */

/* The bytes that the kernel may hold after the next byte: no more than it has offered. */
static __always_inline __u32 ahead_most(const struct xkv_flow *f)
{
	return f->ready ? 2 * f->window + 65536 : FAR;
}

/* The kernel believes no acknowledgement from elsewhere either: it may be forged. */
static __always_inline bool is_in_window(const struct xkv_flow *f, const struct segment *s)
{
	__u32 end = s->seq + s->len + 1; /* a probe is one byte before the window */

	return !BEFORE(end, request_end(f)) && !BEFORE(f->client_next + ahead_most(f), s->seq);
}

/*
 * Notes what a segment acknowledges.  True: a part of the kept reply, so it is time for the next
 * one.
 */
static __always_inline bool note_ack(struct xkv_flow *f, const struct segment *s)
{
	f->client_window = s->window;
	if (!f->unacked || !(s->flags & TCP_ACK) || !is_in_window(f, s))
		return false;
	if (!BEFORE(s->ack, reply_end(f)) && !BEFORE(f->server_next, s->ack))
		f->unacked = 0;
	return f->unacked && s->ack - f->reply_seq - 1 < f->reply_len - 1;
}

/* Does the client lack the reply that was injected? */
static __always_inline bool misses_reply(const struct xkv_flow *f, const struct segment *s,
					 __u32 now)
{
	if (!f->unacked || s->flags & TCP_RST)
		return false;
	if (s->len)
		return BEFORE(s->seq, request_end(f)) && request_end(f) - s->seq < FAR;
	return !(s->flags & TCP_FIN) && s->ack == f->reply_seq && now != f->repeated_ms;
}

/*
 * Does the segment only report that the reply is missing?  The kernel must not take that for a loss
 * of its own data.
 */
static __always_inline bool is_about_reply(const struct xkv_flow *f, const struct segment *s)
{
	return f->unacked && !s->len && s->flags == TCP_ACK && s->ack == f->reply_seq &&
	       s->header > TCP_HEADER + (s->stamps ? TCP_STAMPS : 0);
}

static __always_inline bool is_from_before(const struct xkv_flow *f, const struct segment *s)
{
	return s->stamps && BEFORE(bpf_ntohl(s->stamp), f->client_stamp);
}

/*
 * Does the segment, which has acknowledged a reply, tell the kernel nothing?  To a firewall that
 * tracks connections, many of them would be repeats of one acknowledgement, after which it forgets
 * an idle connection within minutes.  But the client's answer to what the kernel sends, a keepalive
 * say, shows that the client is there.  If the kernel has sent nothing, it knows all that is
 * acknowledged: what a request has acknowledged it has got, or is owed.
 */
static __always_inline bool is_no_news(const struct xkv_flow *f, const struct segment *s)
{
	return !s->len && s->flags == TCP_ACK && !s->ecn_ce &&
	       s->header == TCP_HEADER + (f->has_stamps ? TCP_STAMPS : 0) &&
	       s->stamps == !!f->has_stamps && s->seq == f->client_next &&
	       s->ack == f->server_next && s->window == f->kernel_window && !f->kernel_sent &&
	       !f->ack_owed && !is_from_before(f, s);
}

/* Why a request cannot be answered now, or -1. */
static __always_inline int flow_refuses(const struct xkv_flow *f, const struct segment *s,
					__u64 position)
{
	if (f->in_parts || f->unacked || s->seq != f->client_next || s->ack != f->server_next ||
	    s->stamps != !!f->has_stamps || is_from_before(f, s))
		return XKV_TCP_C_pass_order;
	if ((__u32)(position >> 32) != s->seq - f->eaten - f->client_first ||
	    (__u32)position != ack_to_kernel(f, s->ack) - f->server_first)
		return XKV_TCP_C_pass_unarmed;
	return -1;
}

/* How many bytes the client can receive now, in a segment. */
static __always_inline __u32 reply_room(const struct xkv_flow *f, const struct segment *s)
{
	__u32 window = s->window << (f->client_scale & 15);

	return window < f->mss ? window : f->mss;
}

/*
 * Like the last one, a pipeline of that many bytes probably has replies that do not fit: it is
 * tried only from time to time.
 */
static __always_inline __u32 pipeline_most(struct xkv_flow *f)
{
	return f->too_long && ++f->skipped % PIPELINE_TRIAL ? f->too_long : ~0U;
}

/* The time stamp of a segment that is sent now: it never goes back. */
static __always_inline __be32 stamp_now(struct xkv_flow *f, __u32 now)
{
	__u32 stamp = now + f->stamp_offset;

	if (BEFORE(stamp, f->stamp_last))
		stamp = f->stamp_last;
	f->stamp_last = stamp;
	return stamp_to_client(stamp);
}

/* The first bytes of a segment are eaten, and a reply of `len` bytes takes their place. */
static __always_inline void flow_advance(struct xkv_flow *f, const struct segment *s, __u32 eaten,
					 __u32 len, __u32 now)
{
	__u32 acked = ack_to_kernel(f, s->ack);

	f->ack_owed = acked != f->kernel_acked;
	if (f->ack_owed)
		f->kernel_sent = 0; /* what it sends until it gets that is news */
	f->owed_seq = s->seq - f->eaten;
	f->owed_ack = f->kernel_acked = acked;
	f->owed_stamp = s->stamp;
	f->owed_echo = s->echo;
	f->answered = 1;
	f->request_seq = s->seq;
	f->request_len = eaten;
	f->client_stamp = bpf_ntohl(s->stamp);
	f->reply_seq = s->ack;
	f->reply_len = len;
	f->eaten += eaten;
	f->injected += len;
	f->client_next = request_end(f);
	f->server_next = reply_end(f);
	f->unacked = 1;
	f->repeated_ms = now;
}

static __always_inline void note_client_next(struct xkv_flow *f, const struct segment *s)
{
	__u32 end = s->seq + s->len + (s->flags & TCP_FIN);

	if (!f->client_seen ||
	    (BEFORE(f->client_next, end) && end - f->client_next < ahead_most(f)))
		f->client_next = end;
	f->client_seen = 1;
	if (f->eaten && !f->unacked && f->client_next - request_end(f) > ANCHOR_MAX) {
		f->request_seq = f->client_next - ANCHOR;
		f->request_len = 0;
	}
}

/*
 * A segment that cannot be verified here, but that the kernel may accept: records only facts that
 * restrict, or that were exactly expected.
 */
static __always_inline void note_unknown(struct xkv_flow *f, const struct segment *s)
{
	if (f->unacked && s->flags & TCP_ACK && s->ack == f->server_next)
		f->unacked = 0;
	f->kernel_sent = 1; /* it may know another window now */
	note_client_next(f, s);
}

/* xkvd compares that with what it reads. */
static __always_inline void note_passed(const struct xkv_flow *f, struct xkv_owner *owner)
{
	if (!owner || owner->id != f->id)
		return;
	WRITE_ONCE(owner->passed, f->client_next - f->eaten - f->client_first);
	WRITE_ONCE(owner->in_parts, f->in_parts);
}

/* Notes a segment that goes up to the kernel. */
static __always_inline void note_up(struct xkv_flow *f, const struct segment *s)
{
	bool newest = s->seq == f->client_next && s->ack == f->server_next && !is_from_before(f, s);
	__u32 acked;

	if (newest && s->stamps)
		f->client_stamp = bpf_ntohl(s->stamp);
	note_client_next(f, s);
	f->kernel_window = s->window;
	f->kernel_sent = !newest; /* else it may know another window */
	acked = ack_to_kernel(f, s->ack);
	if (f->ready && s->flags & TCP_ACK && BEFORE(f->kernel_acked, acked))
		f->kernel_acked = acked;
}

/* ---- from the kernel --------------------------------------------------------- */

/* Each address of a socket is read at its place: the verifier refuses a pointer to either one. */
static __always_inline bool is_same(__u32 a, __u32 b)
{
	barrier_var(a);
	return a == b;
}

/*
 * Has the sender's socket the ports and addresses of the segment?  Behind NAT on this host
 * (REDIRECT) a connection may have on the wire those of another one's socket, which has the flow.
 */
static __always_inline bool is_flow_of(const struct bpf_sock *sk, const struct segment *s)
{
	const __u32 *client = (const __u32 *)s->key.client, *server = (const __u32 *)s->key.server;

	if (sk->dst_port != s->key.client_port || bpf_htons(sk->src_port) != s->key.server_port)
		return false;
	if (s->ip4)
		return is_same(sk->dst_ip4, client[0]) && is_same(sk->src_ip4, server[0]);
	return is_same(sk->dst_ip6[0], client[0]) && is_same(sk->dst_ip6[1], client[1]) &&
	       is_same(sk->dst_ip6[2], client[2]) && is_same(sk->dst_ip6[3], client[3]) &&
	       is_same(sk->src_ip6[0], server[0]) && is_same(sk->src_ip6[1], server[1]) &&
	       is_same(sk->src_ip6[2], server[2]) && is_same(sk->src_ip6[3], server[3]);
}

/*
 * The first segment that the kernel sends shows its numbers, and how many bytes were sent before.
 */
static __always_inline void flow_begin(struct xkv_flow *f, struct __sk_buff *skb,
				       const struct segment *s)
{
	struct bpf_sock *sk = skb->sk;
	struct bpf_tcp_sock *tp;
	__u32 end = s->seq + s->len;

	if (!sk)
		return;
	sk = bpf_sk_fullsock(sk);
	if (!sk || !is_flow_of(sk, s))
		return;
	tp = bpf_tcp_sock(sk);
	if (!tp || s->flags & (TCP_FIN | TCP_RST))
		return;
	f->client_first = tp->rcv_nxt - (__u32)tp->bytes_received;
	f->server_first = tp->snd_una - (__u32)tp->bytes_acked;
	if (!f->client_seen || BEFORE(f->client_next, tp->rcv_nxt))
		f->client_next = tp->rcv_nxt;
	f->client_seen = 1;
	f->server_next = BEFORE(end, tp->snd_nxt) ? tp->snd_nxt : end;
	f->kernel_acked = tp->snd_una;
	f->client_stamp = bpf_ntohl(s->echo);
	f->reply_seq = f->server_first;
	f->request_seq = f->client_first;
	f->ready = 1;
}

/* Replies are no longer than the kernel's segments, whose size may change with the path. */
static __always_inline void note_mss(struct xkv_flow *f, struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct bpf_tcp_sock *tp;
	__u32 mss;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	tp = sk ? bpf_tcp_sock(sk) : NULL;
	if (!tp || tp->mss_cache == f->kernel_mss)
		return;
	f->kernel_mss = mss = tp->mss_cache;
	f->mss = mss < XKV_TCP_REPLY_MAX ? mss : XKV_TCP_REPLY_MAX;
}

/* Notes a segment that is sent to the client, with its sequence number there. */
static __always_inline void note_sent(struct xkv_flow *f, const struct segment *s, __u32 seq)
{
	__u32 end = seq + s->len + (s->flags & TCP_FIN), now = milliseconds(bpf_ktime_get_ns());
	__u32 stamp = bpf_ntohl(s->stamp);

	f->kernel_sent = 1;
	if (BEFORE(f->server_next, end))
		f->server_next = end;
	if (f->injected && f->server_next - reply_end(f) > ANCHOR_MAX) {
		f->reply_seq = f->server_next - ANCHOR;
		f->reply_len = f->unacked = f->ack_owed = 0;
	}
	if (!(s->flags & TCP_RST))
		f->window = s->window << (f->server_scale & 15);
	if (!s->stamps)
		return;
	if (!f->stamp_offset || (__s32)(stamp - now - f->stamp_offset) > 0)
		f->stamp_offset = stamp - now;
	if (BEFORE(f->stamp_last, stamp) || !f->stamp_last)
		f->stamp_last = stamp;
}

/* Is this old data of the kernel, which the client has acknowledged to the driver? */
static __always_inline bool is_old(const struct xkv_flow *f, const struct segment *s)
{
	return f->injected && BEFORE(s->seq, injected_at(f)) && (s->len || s->flags & TCP_FIN);
}

static __always_inline __u32 seq_to_client(const struct xkv_flow *f, const struct segment *s)
{
	if (f->injected && BEFORE(s->seq, injected_at(f)))
		return s->seq + (f->injected - f->reply_len);
	return s->seq + f->injected;
}

static __always_inline __u32 ack_to_client(const struct xkv_flow *f, const struct segment *s)
{
	__u32 ack = s->ack + f->eaten;

	/*
	 * Data may acknowledge it: the kernel repeats data until the client has everything before
	 * it.
	 */
	if (!f->unacked || s->len || s->flags & TCP_FIN)
		return ack;
	ack -= f->request_len;
	return BEFORE(f->request_seq, ack) ? f->request_seq : ack;
}

#endif

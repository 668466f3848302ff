/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets of a connection that are not whole segments of its client: fragments, segments with IP
 * options or of more than 64 KiB, and ICMP errors about segments to the client.  None are answered
 * here, but their numbers are the client's, and have to be translated for the kernel.  What the
 * kernel sends may have options or such a length, too.
 */
#ifndef XKV_STRAY_BPF_H
#define XKV_STRAY_BPF_H

#include "flow.bpf.h"

#define IP_OFFSET    0x1fff
#define IP_MORE	     0x2000
#define IP6_OFFSET   0xfff8
#define IP6_MORE     1
#define TCP_QUOTED   8	 /* bytes of a TCP header that an error quotes at least */
#define TCP_OFF_MOST 127 /* tcp_header() */

/* ---- segments ---------------------------------------------------------------- */

/* The sum of a header of IPv4 with options; none if it is not all there. */
static __always_inline __u64 options_sum(const struct iphdr *ip, void *end)
{
	const __be32 *word = (const __be32 *)ip;
	__u64 sum = 0;

	for (__u32 i = 0; i < 15; i++) {
		if (i >= ip->ihl || (void *)(word + 1) > end)
			break;
		sum += *word++;
	}
	return sum;
}

/*
 * What the length of an IP header means in a packet of `whole` bytes: 0 if the kernel has made a
 * segment that is too long for it (BIG TCP), which goes on from `first` to the end.
 */
static __always_inline __u32 ip_length(__be16 len, const struct packet *p, const void *first,
				       __u32 whole)
{
	long off = first - p->data;

	barrier_var(off); /* else it is computed in 32 bits, of pointers */
	return !len && whole > 0xffff ? whole - off : bpf_ntohs(len);
}

static __always_inline bool stray_ip4(struct segment *s, struct packet *p, void *cursor,
				      __u32 whole, bool sent)
{
	struct iphdr *ip = cursor;
	__u32 header, total;

	if ((void *)(ip + 1) > p->end || ip->version != 4 || ip->ihl < 5 ||
	    ip->protocol != IPPROTO_TCP || ip->frag_off & bpf_htons(IP_OFFSET) ||
	    fold(options_sum(ip, p->end)) != 0xffff)
		return false;
	header = ip->ihl * 4;
	total = ip_length(ip->tot_len, p, ip, whole);
	if (total < header)
		return false;
	s->parts = !!(ip->frag_off & bpf_htons(IP_MORE));
	p->ip4 = ip;
	p->hosts.source[0] = ip->saddr;
	p->hosts.dest[0] = ip->daddr;
	barrier_var(header);
	return parse_tcp(s, p, cursor + (header & 63), total - header, sent);
}

/* The bytes of an extension header before that of TCP; -1: there is another one. */
static __always_inline int stray_extension(struct segment *s, const struct ipv6hdr *ip)
{
	const __be16 *word = (const __be16 *)(ip + 1);
	const __u8 *byte = (const __u8 *)word;

	if (ip->nexthdr == IPPROTO_TCP)
		return 0;
	if (*byte != IPPROTO_TCP)
		return -1;
	if (ip->nexthdr == IPPROTO_FRAGMENT) {
		s->parts = !!(word[1] & bpf_htons(IP6_MORE));
		return word[1] & bpf_htons(IP6_OFFSET) ? -1 : 8;
	}
	return ip->nexthdr == IPPROTO_HOPOPTS || ip->nexthdr == IPPROTO_ROUTING ||
			       ip->nexthdr == IPPROTO_DSTOPTS
		       ? 8 + byte[1] * 8
		       : -1;
}

static __always_inline bool stray_ip6(struct segment *s, struct packet *p, void *cursor,
				      __u32 whole, bool sent)
{
	struct ipv6hdr *ip = cursor;
	__u32 len;
	int header;

	if ((void *)(ip + 1) + 8 > p->end || ip->version != 6)
		return false;
	header = stray_extension(s, ip);
	len = ip_length(ip->payload_len, p, ip + 1, whole);
	if (header < 0 || (__u32)header > len ||
	    (__u32)header > TCP_OFF_MOST - sizeof(*ip) - sizeof(*p->eth) - VLAN_DEPTH * 4)
		return false;
	p->ip6 = ip;
	__builtin_memcpy(p->hosts.source, &ip->saddr, sizeof(p->hosts.source));
	__builtin_memcpy(p->hosts.dest, &ip->daddr, sizeof(p->hosts.dest));
	barrier_var(header);
	return parse_tcp(s, p, (void *)(ip + 1) + (header & 127), len - header, sent);
}

/*
 * Parses a segment that parse_segment() does not, in a packet of `whole` bytes.  The header of IPv4
 * has to be right: a damaged one looks like a fragment, and the kernel drops it.  False: it is not
 * one; or, if s->parts is set, its first fragment lacks the numbers, which no host sends.
 */
static __always_inline bool parse_stray(struct segment *s, void *data, void *end, __u32 whole,
					bool sent)
{
	struct packet p = { .data = data, .end = end };
	void *cursor;

	s->parts = false;
	if (parse_link(&p, &cursor, false) != CONTINUE || !parse_tags(s, data, cursor, end))
		return false;
	if (p.hosts.proto == bpf_htons(ETH_P_IP))
		return stray_ip4(s, &p, cursor, whole, sent);
	return p.hosts.proto == bpf_htons(ETH_P_IPV6) && stray_ip6(s, &p, cursor, whole, sent);
}

__noinline int stray_segment(struct xdp_md *ctx, struct segment *s)
{
	return s && parse_stray(s, (void *)(long)ctx->data, (void *)(long)ctx->data_end,
				bpf_xdp_get_buff_len(ctx), false);
}

/* The same of one that the kernel sends. */
__noinline int stray_sent(struct __sk_buff *skb, struct segment *s)
{
	return s &&
	       parse_stray(s, (void *)(long)skb->data, (void *)(long)skb->data_end, skb->len, true);
}

/* ---- errors ------------------------------------------------------------------- */

/* The kernel's header needs those of libc. */
struct icmp {
	__u8 type, code;
	__be16 check;
	__be32 rest;
};

enum {
	ICMP_UNREACHABLE = 3,
	ICMP_TOO_LONG = 4, /* a code of it */
	ICMP_TIME_OVER = 11,
	ICMP_PARAMETER = 12,
	ICMP6_TOO_LONG = 2,
	ICMP6_ERRORS_END = 128,
};

/* An ICMP error that quotes a segment to a client. */
struct told {
	__be16 *check;	/* its own checksum */
	__be32 *seq;	/* that is quoted */
	__u32 mtu;	/* limit of the packet size; 0 = another error */
	__u32 off, len; /* where it is, and its bytes */
	__u64 outer;	/* the sum of what its checksum covers outside of it */
};

static __always_inline bool quoted(struct segment *s, struct told *t, const struct packet *p,
				   struct tcphdr *tcp)
{
	if ((void *)tcp + TCP_QUOTED > p->end)
		return false;
	t->seq = &tcp->seq;
	s->ip4 = p->ip4 != NULL;
	parse_key(s, p, tcp, true);
	return true;
}

static __always_inline bool told4(struct segment *s, struct told *t, struct packet *p, void *cursor)
{
	struct iphdr *ip = cursor, *sent;
	struct icmp *icmp = (void *)(ip + 1);

	sent = (void *)(icmp + 1);
	if ((void *)(sent + 1) > p->end || ip->version != 4 || ip->ihl != 5 ||
	    ip->protocol != IPPROTO_ICMP || ip->frag_off & bpf_htons(IP_FRAGMENT) ||
	    fold(ip4_sum(ip)) != 0xffff || sent->version != 4 || sent->ihl != 5 ||
	    sent->protocol != IPPROTO_TCP || sent->frag_off & bpf_htons(IP_OFFSET))
		return false;
	if (icmp->type != ICMP_UNREACHABLE && icmp->type != ICMP_TIME_OVER &&
	    icmp->type != ICMP_PARAMETER)
		return false;
	if (icmp->type == ICMP_UNREACHABLE && icmp->code == ICMP_TOO_LONG)
		t->mtu = bpf_ntohl(icmp->rest) & 0xffff;
	t->check = &icmp->check;
	t->off = (void *)icmp - p->data;
	t->len = bpf_ntohs(ip->tot_len) - sizeof(*ip);
	p->ip4 = sent;
	p->hosts.source[0] = sent->saddr;
	p->hosts.dest[0] = sent->daddr;
	return quoted(s, t, p, (void *)(sent + 1));
}

static __always_inline bool told6(struct segment *s, struct told *t, struct packet *p, void *cursor)
{
	struct ipv6hdr *ip = cursor, *sent;
	struct icmp *icmp = (void *)(ip + 1);

	sent = (void *)(icmp + 1);
	if ((void *)(sent + 1) > p->end || ip->version != 6 || ip->nexthdr != IPPROTO_ICMPV6 ||
	    icmp->type >= ICMP6_ERRORS_END || sent->version != 6 || sent->nexthdr != IPPROTO_TCP)
		return false;
	if (icmp->type == ICMP6_TOO_LONG)
		t->mtu = bpf_ntohl(icmp->rest);
	t->check = &icmp->check;
	t->off = (void *)icmp - p->data;
	t->len = bpf_ntohs(ip->payload_len);
	__builtin_memcpy(p->hosts.source, &ip->saddr, sizeof(p->hosts.source));
	__builtin_memcpy(p->hosts.dest, &ip->daddr, sizeof(p->hosts.dest));
	t->outer = address_sum(p, IPPROTO_ICMPV6) + ip->payload_len;
	p->ip6 = sent;
	__builtin_memcpy(p->hosts.source, &sent->saddr, sizeof(p->hosts.source));
	__builtin_memcpy(p->hosts.dest, &sent->daddr, sizeof(p->hosts.dest));
	return quoted(s, t, p, (void *)(sent + 1));
}

/*
 * The kernel's view of the quoted number.  Within a reply in flight it is the byte that the kernel
 * sends next; within an acknowledged one it is a byte that the kernel does not wait for.
 */
static __always_inline __u32 quoted_to_kernel(const struct xkv_flow *f, __u32 seq)
{
	return f->unacked ? ack_to_kernel(f, seq) : seq - f->injected;
}

/* Is the quoted segment in flight, as far as is known here?  The kernel requires the same. */
static __always_inline bool is_under_way(const struct xkv_flow *f, __u32 seq)
{
	return f->ready && BEFORE(seq, f->server_next) &&
	       !BEFORE(quoted_to_kernel(f, seq), f->kernel_acked);
}

/*
 * The path to the client has a smaller limit: replies become shorter, also a kept one.  So do the
 * kernel's segments, as it gets the error, too; it may know better later (note_mss()).
 */
static __always_inline void obey_mtu(struct xkv_flow *f, const struct segment *s, __u32 mtu)
{
	__u32 headers = (s->ip4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) + TCP_HEADER +
			(f->has_stamps ? TCP_STAMPS : 0);
	__u32 mss = mtu > headers + XKV_TCP_MSS_MIN ? mtu - headers : XKV_TCP_MSS_MIN;

	if (mss < f->mss)
		f->mss = mss;
}

/* Is the checksum of an error right?  Else the kernel drops it. */
__noinline int told_truly(struct xdp_md *ctx, __u32 off, __u32 len, __u64 outer)
{
	void *icmp = (void *)(long)ctx->data + (off & 127), *end = (void *)(long)ctx->data_end;

	barrier_var(icmp);
	if (len > XKV_TCP_FRAME_MAX || icmp + len > end)
		return false;
	return fold(outer + bytes_sum(icmp, end, len)) == 0xffff;
}

/* An error about a segment that was sent.  If it was a reply, the kernel also learns the limit. */
__noinline int stray_error(struct xdp_md *ctx, struct segment *s)
{
	struct packet p = { .data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	struct xkv_flow_key key;
	struct told t = {};
	struct xkv_flow *f;
	void *cursor;
	__be32 old;

	if (!s || parse_link(&p, &cursor, false) != CONTINUE)
		return 0;
	if (p.hosts.proto == bpf_htons(ETH_P_IP)
		    ? !told4(s, &t, &p, cursor)
		    : p.hosts.proto != bpf_htons(ETH_P_IPV6) || !told6(s, &t, &p, cursor))
		return 0;
	key = s->key; /* kernel 6.1 takes no argument of a function */
	f = bpf_map_lookup_elem(&xkv_flows, &key);
	if (!f)
		return 0;
	if (t.mtu && !told_truly(ctx, t.off, t.len, t.outer))
		t.mtu = 0;
	if (!flow_lock(f))
		return 0;
	old = *t.seq;
	if (t.mtu && is_under_way(f, bpf_ntohl(old)))
		obey_mtu(f, s, t.mtu);
	if (!flow_is_plain(f)) {
		tcp_count(XKV_TCP_C_errors);
		*t.seq = bpf_htonl(quoted_to_kernel(f, bpf_ntohl(old)));
		*t.check = ~fold((__u64)(__u32)~old + *t.seq + (__u16) ~*t.check);
	}
	flow_unlock(f);
	return 0;
}

#endif

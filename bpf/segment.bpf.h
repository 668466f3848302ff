/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP segments: parsing, checksums, and making segments.
 */
#ifndef XKV_SEGMENT_BPF_H
#define XKV_SEGMENT_BPF_H

#include <linux/tcp.h>

#include "packet.bpf.h"
#include "tcp.h"

#define TCP_FIN	   0x01
#define TCP_SYN	   0x02
#define TCP_RST	   0x04
#define TCP_PSH	   0x08
#define TCP_ACK	   0x10
#define TCP_FLAGS  0xfff
#define TCP_HEADER 20
#define TCP_STAMPS 12 /* bytes of options, with their padding */
#define STAMP_AT   4  /* the places of the two in there */
#define ECHO_AT	   8
/* No operation twice, then time stamps; as all stacks send them with data. */
#define STAMPS_FIRST 0x0101080a
/* The same before selective acknowledgements, without their length. */
#define SACK_FIRST 0x01010500
#define SACK_MASK  0xffffff00
#define SACKS_MAX  4
#define ECN_CE	   3

/* Before a becomes b, where numbers wrap. */
#define BEFORE(a, b) ((__s32)((a) - (b)) < 0)

/* A sum of 32-bit words, with end-around carry: its 16-bit words have the same sum. */
static __always_inline __u32 sum_of_halves(__u64 sum)
{
	sum = HALVES(sum);
	return HALVES(sum);
}

/*
 * The description of a segment, without pointers: these do not survive a change of its size, nor a
 * call.
 */
struct segment {
	struct xkv_flow_key key;
	__u64 address_sum; /* of addresses and protocol */
	__u32 tags;	   /* of VLANs, at most VLAN_DEPTH */
	__u32 tag[VLAN_DEPTH];
	__u32 tcp_off;	   /* where its header is */
	__u32 header, len; /* bytes of that, and after it */
	__u32 seq, ack;
	__u32 window; /* as on the wire, host byte order */
	__u32 urgent; /* pointer, whatever the flags */
	__be32 stamp, echo;
	__u8 to[ETH_ALEN], from[ETH_ALEN];
	__u16 flags; /* with the reserved bits */
	__u8 ip4;    /* else IPv6 */
	__u8 parts;  /* it is the first fragment of one */
	__u8 stamps;
	__u8 ecn_ce;
};

/* The TCP header of a segment, again; NULL if it is not there. */
static __always_inline struct tcphdr *tcp_header(const struct segment *s, void *data, void *end)
{
	__u32 off = s->tcp_off;
	struct tcphdr *tcp;

	barrier_var(off);
	tcp = data + (off & 127);
	barrier_var(tcp);
	return (void *)(tcp + 1) <= end ? tcp : NULL;
}

/* The word of the options at `at`, a multiple of 4. */
static __always_inline __be32 *option_at(struct tcphdr *tcp, __u32 header, void *end, __u32 at)
{
	__be32 *word = (__be32 *)((void *)(tcp + 1) + (at & 63));

	barrier_var(word);
	return (void *)(word + 1) <= end && at + 4 <= header - TCP_HEADER ? word : NULL;
}

static __always_inline void parse_stamps(struct segment *s, struct tcphdr *tcp, void *end)
{
	__be32 *first = option_at(tcp, s->header, end, 0);
	__be32 *value = option_at(tcp, s->header, end, STAMP_AT);
	__be32 *echo = option_at(tcp, s->header, end, ECHO_AT);

	s->stamps = first && value && echo && *first == bpf_htonl(STAMPS_FIRST);
	s->stamp = s->stamps && value ? *value : 0;
	s->echo = s->stamps && echo ? *echo : 0;
}

static __always_inline void parse_key(struct segment *s, const struct packet *p,
				      const struct tcphdr *tcp, bool sent)
{
	s->key.client[0] = sent ? p->hosts.dest[0] : p->hosts.source[0];
	s->key.client[1] = sent ? p->hosts.dest[1] : p->hosts.source[1];
	s->key.server[0] = sent ? p->hosts.source[0] : p->hosts.dest[0];
	s->key.server[1] = sent ? p->hosts.source[1] : p->hosts.dest[1];
	s->key.client_port = sent ? tcp->dest : tcp->source;
	s->key.server_port = sent ? tcp->source : tcp->dest;
	s->key.zero = 0;
	s->address_sum = address_sum(p, IPPROTO_TCP);
}

/* Keeps the tags of VLANs, which end where `cursor` is. */
static __always_inline bool parse_tags(struct segment *s, void *data, void *cursor, void *end)
{
	__u32 *tag = data + 2 * ETH_ALEN;
	long bytes = cursor - data - sizeof(struct ethhdr);

	barrier_var(bytes);
	s->tags = bytes / sizeof(*tag);
	if (!s->tags)
		return true;
	if ((void *)(tag + VLAN_DEPTH) > end)
		return false;
	for (__u32 i = 0; i < VLAN_DEPTH; i++)
		s->tag[i] = tag[i];
	return true;
}

/*
 * Parses the TCP header at `cursor`, of a segment that has `ip_payload` bytes.  A first fragment
 * (s->parts) need not have all of it.
 */
static __always_inline bool parse_tcp(struct segment *s, const struct packet *p, void *cursor,
				      __u32 ip_payload, bool sent)
{
	struct tcphdr *tcp = cursor;
	void *end = p->end;

	if ((void *)(tcp + 1) > end)
		return false;
	s->ip4 = p->ip4 != NULL;
	s->tcp_off = cursor - p->data;
	s->header = tcp->doff * 4;
	if (s->header < TCP_HEADER || (s->header > ip_payload && !s->parts))
		return false;
	s->len = s->header < ip_payload ? ip_payload - s->header : 0;
	s->seq = bpf_ntohl(tcp->seq);
	s->ack = bpf_ntohl(tcp->ack_seq);
	s->window = bpf_ntohs(tcp->window);
	s->urgent = bpf_ntohs(tcp->urg_ptr);
	s->flags = bpf_ntohs(((__be16 *)tcp)[6]) & TCP_FLAGS;
	s->ecn_ce = p->ip4   ? (p->ip4->tos & 3) == ECN_CE
		    : p->ip6 ? (p->ip6->flow_lbl[0] >> 4 & 3) == ECN_CE
			     : 0;
	__builtin_memcpy(s->to, p->eth->h_dest, ETH_ALEN);
	__builtin_memcpy(s->from, p->eth->h_source, ETH_ALEN);
	parse_stamps(s, tcp, end);
	parse_key(s, p, tcp, sent);
	return true;
}

/*
 * Parses the segment between `data` and `end`.  `sent`: it is on its way to the client.  False if
 * it is not one, or cannot belong to a flow.
 */
static __always_inline bool parse_segment(struct segment *s, void *data, void *end, bool sent)
{
	struct packet p = { .data = data, .end = end };
	__u32 ip_payload = 0;
	void *cursor;

	s->parts = false;
	return parse_link(&p, &cursor, false) == CONTINUE && parse_tags(s, data, cursor, end) &&
	       parse_ip(&p, &cursor, &ip_payload, IPPROTO_TCP) == CONTINUE &&
	       parse_tcp(s, &p, cursor, ip_payload, sent);
}

static __always_inline __u64 header_sum(struct tcphdr *tcp, __u32 header, void *end)
{
	__be32 *word = (__be32 *)tcp;
	__u64 sum = 0;

	for (__u32 i = 0; i < 15; i++) {
		if (i * 4 >= header || (void *)(word + 1) > end)
			break;
		sum += *word++;
	}
	return sum;
}

/* The sum of up to XKV_TCP_FRAME_MAX bytes. */
static __always_inline __u64 bytes_sum(const __u8 *first, const void *end, __u32 len)
{
	const __u64 *word = (const __u64 *)first;
	__u64 sum = 0;

	for (__u32 i = 0; i < XKV_TCP_FRAME_MAX / 8; i++) {
		if (i >= len / 8 || (const void *)(word + 1) > end)
			break;
		sum += HALVES(*word);
		word++;
	}
	barrier_var(word);
	return sum + HALVES(last_word((const __u8 *)word, end, len & 7));
}

/* ---- segments that are made ------------------------------------------------- */

/* A segment to make in the place of another one, back to its sender. */
struct answer {
	const struct segment *to;
	__u32 seq, ack, window;
	__u32 len, sum; /* of its payload */
	__u32 urgent;	/* pointer, whatever the flags */
	__be32 stamp, echo;
};

/* The bytes of its headers. */
static __always_inline __u32 answer_headers(const struct segment *to)
{
	return sizeof(struct ethhdr) + to->tags * sizeof(to->tag[0]) +
	       (to->ip4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) + TCP_HEADER +
	       (to->stamps ? TCP_STAMPS : 0);
}

static __always_inline void answer_ip6(struct ipv6hdr *ip, const __u64 *source, const __u64 *dest,
				       __u32 tcp_len)
{
	*(__be32 *)ip = bpf_htonl(6U << 28);
	ip->payload_len = bpf_htons(tcp_len);
	ip->nexthdr = IPPROTO_TCP;
	ip->hop_limit = HOPS;
	__builtin_memcpy(&ip->saddr, source, 2 * sizeof(*source));
	__builtin_memcpy(&ip->daddr, dest, 2 * sizeof(*dest));
}

/* Writes the TCP header at `word`; false: there is no room. */
static __always_inline bool answer_tcp(__be32 *word, void *end, const struct answer *a, __u32 flags,
				       bool sent)
{
	const struct segment *to = a->to;
	__u32 header = TCP_HEADER + (to->stamps ? TCP_STAMPS : 0);
	__be16 client = to->key.client_port, server = to->key.server_port;
	__u64 sum;

	if ((void *)(word + 5) > end)
		return false;
	((__be16 *)word)[0] = sent ? client : server;
	((__be16 *)word)[1] = sent ? server : client;
	word[1] = bpf_htonl(a->seq);
	word[2] = bpf_htonl(a->ack);
	word[3] = bpf_htonl(header / 4 << 28 | flags << 16 | (a->window & 0xffff));
	word[4] = bpf_htonl(a->urgent & 0xffff);
	sum = to->address_sum + bpf_htons(header + a->len) + a->sum + client + server + word[1] +
	      word[2] + word[3] + word[4];
	if (to->stamps) {
		if ((void *)(word + 8) > end)
			return false;
		word[5] = bpf_htonl(STAMPS_FIRST);
		word[6] = a->stamp;
		word[7] = a->echo;
		sum += (__u64)word[5] + word[6] + word[7];
	}
	*(__u16 *)&word[4] = (__u16)~fold(sum);
	return true;
}

/* Writes the link's header; returns where that of IP is, or NULL: there is no room. */
static __always_inline void *answer_link(void *data, void *end, const struct segment *to)
{
	__u32 tags = to->tags * sizeof(to->tag[0]), *tag = data + 2 * ETH_ALEN;
	struct ethhdr *eth = data;
	__be16 *type;

	if ((void *)(tag + VLAN_DEPTH) > end)
		return NULL;
	__builtin_memcpy(eth->h_dest, to->from, ETH_ALEN);
	__builtin_memcpy(eth->h_source, to->to, ETH_ALEN);
	for (__u32 i = 0; i < VLAN_DEPTH; i++)
		if (i < to->tags)
			tag[i] = to->tag[i];
	barrier_var(tags);
	type = data + 2 * ETH_ALEN + (tags & 15);
	barrier_var(type);
	if ((void *)(type + 1) > end)
		return NULL;
	*type = to->ip4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	return type + 1;
}

/*
 * Writes the headers into a packet that has the size.  `sent`: the other segment was on its way to
 * the client.  False: there is no room.
 */
static __always_inline bool answer_write(void *data, void *end, const struct answer *a, __u32 flags,
					 bool sent)
{
	const struct segment *to = a->to;
	__u32 tcp_len = TCP_HEADER + (to->stamps ? TCP_STAMPS : 0) + a->len;
	const __u64 *source = sent ? to->key.client : to->key.server;
	const __u64 *dest = sent ? to->key.server : to->key.client;
	void *ip = answer_link(data, end, to);

	if (!ip || ip + sizeof(struct iphdr) > end)
		return false;
	if (to->ip4) {
		write_ip4(ip, source[0], dest[0], tcp_len, IPPROTO_TCP);
		return answer_tcp(ip + sizeof(struct iphdr), end, a, flags, sent);
	}
	if (ip + sizeof(struct ipv6hdr) > end)
		return false;
	answer_ip6(ip, source, dest, tcp_len);
	return answer_tcp(ip + sizeof(struct ipv6hdr), end, a, flags, sent);
}

/* Exchanges the addresses of the link, so that an answer goes where `s` goes. */
static __always_inline void segment_turn(struct segment *s)
{
	__u8 kept[ETH_ALEN];

	__builtin_memcpy(kept, s->to, ETH_ALEN);
	__builtin_memcpy(s->to, s->from, ETH_ALEN);
	__builtin_memcpy(s->from, kept, ETH_ALEN);
}

#endif

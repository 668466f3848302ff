/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets: parsing, admission, checksums, and the headers of a reply.
 *
 * Stages that access the payload are global functions, which the verifier checks one by one; what
 * they need to know of the packet is in the request.
 */
#ifndef XKV_PACKET_BPF_H
#define XKV_PACKET_BPF_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include "store.bpf.h"

/* A stage returns CONTINUE, or the counter that says why the packet leaves the pipeline. */
#define CONTINUE    (-1)
#define VLAN_DEPTH  2
#define VLAN_VID    0xfff
#define IP_FRAGMENT 0x3fff /* more fragments, or an offset */
#define HOPS	    64

struct vlan_hdr {
	__be16 tci;
	__be16 proto;
};

/* From whom to whom a packet is.  Without padding: the verifier wants to see all bytes written. */
struct hosts {
	__u64 source[2], dest[2]; /* IPv4: in source[0] and dest[0] */
	__u64 from, to;		  /* mac_bits() */
	__u32 link;		  /* XKV_LINK_... */
	__u32 current;		  /* index of the rules: read once, for all stages */
	__u32 port;		  /* of the source */
	__u32 proto;		  /* in network byte order */
};

/* The results of the stages for a packet. */
struct packet {
	void *data, *end;
	struct ethhdr *eth;
	struct iphdr *ip4; /* one of these two */
	struct ipv6hdr *ip6;
	struct udphdr *udp;
	struct hosts hosts;
	__u32 ip_off; /* of the IP header: 14, 18 or 22 */
	__u32 payload_len;
};

/* ---- parsing ------------------------------------------------------------- */

/* A MAC address from a word of 8 bytes; the last two are discarded. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define MAC_BITS(word) ((word) << 16)
#else
#define MAC_BITS(word) ((word) >> 16)
#endif

static __always_inline __u64 mac_bits(const void *mac)
{
	return MAC_BITS(*(const __u64 *)mac);
}

static __always_inline bool is_group(__u64 mac_bits)
{
	return ((__u8 *)&mac_bits)[2] & 1;
}

static __always_inline void link_found(struct packet *p, struct ethhdr *eth)
{
	p->eth = eth;
	p->hosts.to = mac_bits(eth->h_dest);
	p->hosts.from = mac_bits(eth->h_source);
	p->hosts.proto = eth->h_proto;
}

static __always_inline int parse_link(struct packet *p, void **cursor, bool groups)
{
	struct ethhdr *eth = p->data;
	struct vlan_hdr *vlan;
	__u32 vid;

	if ((void *)(eth + 1) > p->end)
		return XKV_C_pass_short;
	if (!groups && (eth->h_dest[0] & 1))
		return XKV_C_pass_group; /* broadcast, multicast: never a source address */
	link_found(p, eth);
	*cursor = eth + 1;
	for (int i = 0; i < VLAN_DEPTH; i++) {
		if (p->hosts.proto != bpf_htons(ETH_P_8021Q) &&
		    p->hosts.proto != bpf_htons(ETH_P_8021AD))
			break;
		vlan = *cursor;
		if ((void *)(vlan + 1) > p->end)
			return XKV_C_pass_short;
		vid = bpf_ntohs(vlan->tci) & VLAN_VID;
		vid = XKV_LINK_TAG(p->hosts.proto == bpf_htons(ETH_P_8021AD), vid);
		p->hosts.link = XKV_LINK_IN(p->hosts.link, vid);
		p->hosts.proto = vlan->proto;
		*cursor = vlan + 1;
	}
	if (p->hosts.proto == bpf_htons(ETH_P_8021Q) || p->hosts.proto == bpf_htons(ETH_P_8021AD))
		return XKV_C_pass_vlan_depth;
	return CONTINUE;
}

static __always_inline __u16 fold(__u64 sum)
{
	__u32 half;

	sum += sum >> 32 | sum << 32; /* upper half: sum of both halves, with end-around carry */
	half = sum >> 32;
	half += half >> 16 | half << 16;
	return half >> 16;
}

static __always_inline __u64 ip4_sum(struct iphdr *ip)
{
	__u32 *word = (__u32 *)ip;

	return (__u64)word[0] + word[1] + word[2] + word[3] + word[4];
}

/* `protocol`: what the packet has to carry, UDP or TCP. */
static __always_inline int parse_ip4(struct packet *p, void **cursor, __u32 *ip_payload,
				     __u8 protocol)
{
	struct iphdr *ip = *cursor;
	__u32 total;

	if ((void *)(ip + 1) > p->end)
		return XKV_C_pass_short;
	total = bpf_ntohs(ip->tot_len);
	if (ip->version != 4 || ip->ihl < 5 || total < sizeof(*ip))
		return XKV_C_pass_ip_header;
	if (ip->ihl != 5)
		return XKV_C_pass_ip_options;
	if (ip->protocol != protocol)
		return XKV_C_pass_not_udp;
	if (ip->frag_off & bpf_htons(IP_FRAGMENT))
		return XKV_C_pass_ip_fragment;
	if (fold(ip4_sum(ip)) != 0xffff)
		return XKV_C_pass_ip_header;
	p->ip4 = ip;
	p->hosts.source[0] = ip->saddr;
	p->hosts.dest[0] = ip->daddr;
	*cursor = ip + 1;
	*ip_payload = total - sizeof(*ip);
	return CONTINUE;
}

static __always_inline int parse_ip6(struct packet *p, void **cursor, __u32 *ip_payload,
				     __u8 protocol)
{
	struct ipv6hdr *ip = *cursor;

	if ((void *)(ip + 1) > p->end)
		return XKV_C_pass_short;
	if (ip->version != 6)
		return XKV_C_pass_ip_header;
	switch (ip->nexthdr) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_FRAGMENT:
	case IPPROTO_DSTOPTS:
	case IPPROTO_AH:
		return XKV_C_pass_ip6_extension;
	}
	if (ip->nexthdr != protocol)
		return XKV_C_pass_not_udp;
	p->ip6 = ip;
	__builtin_memcpy(p->hosts.source, &ip->saddr, sizeof(p->hosts.source));
	__builtin_memcpy(p->hosts.dest, &ip->daddr, sizeof(p->hosts.dest));
	*cursor = ip + 1;
	*ip_payload = bpf_ntohs(ip->payload_len);
	return CONTINUE;
}

static __always_inline int parse_ip(struct packet *p, void **cursor, __u32 *ip_payload,
				    __u8 protocol)
{
	if (p->hosts.proto == bpf_htons(ETH_P_IP))
		return parse_ip4(p, cursor, ip_payload, protocol);
	if (p->hosts.proto == bpf_htons(ETH_P_IPV6))
		return parse_ip6(p, cursor, ip_payload, protocol);
	return XKV_C_pass_ethertype;
}

static __always_inline int parse_udp(struct packet *p, void *cursor, __u32 ip_payload,
				     struct xkv_rules *rules)
{
	struct udphdr *udp = cursor;
	__u32 len;

	if ((void *)(udp + 1) > p->end)
		return XKV_C_pass_short;
	if (udp->dest != rules->port)
		return XKV_C_pass_port;
	len = bpf_ntohs(udp->len);
	if (len < sizeof(*udp) || len > ip_payload)
		return XKV_C_pass_length;
	p->udp = udp;
	p->payload_len = len - sizeof(*udp);
	p->hosts.port = udp->source;
	return CONTINUE;
}

static __always_inline int parse(struct packet *p, struct xkv_config *cfg)
{
	void *cursor;
	__u32 ip_payload = 0;
	int why = parse_link(p, &cursor, false);

	p->hosts.current = READ_ONCE(cfg->current);
	if (why != CONTINUE)
		return why;
	p->ip_off = cursor - p->data;
	why = parse_ip(p, &cursor, &ip_payload, IPPROTO_UDP);
	return why != CONTINUE ? why
			       : parse_udp(p, cursor, ip_payload, rules_of(cfg, p->hosts.current));
}

/* ---- admission ------------------------------------------------------------ */

static __always_inline bool is_v4(const struct hosts *h)
{
	return h->proto == bpf_htons(ETH_P_IP);
}

/* 1 if a bit is set, else 0.  Without a branch, both ways of which the verifier would follow. */
static __always_inline __u64 any_bit(__u64 word)
{
	__u64 negative = -word;

	barrier_var(negative); /* else it is compiled to a branch */
	return (word | negative) >> 63;
}

/*
 * An address may be listed several times: with each MAC that frames for it are sent to.  As the
 * stack requires, the link-layer address must be ours, too.
 */
static __always_inline int is_for_us(struct hosts *h, struct xkv_rules *rules)
{
	__u64 differ, elsewhere = 1;
	bool v4 = is_v4(h);

	for (__u32 i = 0; v4 && i < XKV_LOCAL_MAX && i < rules->local4_count; i++) {
		differ = (rules->local4[i].addr ^ (__be32)h->dest[0]) |
			 (rules->local4[i].link ^ h->link);
		if (!(differ | (mac_bits(rules->local4[i].mac) ^ h->to)))
			return CONTINUE;
		elsewhere &= any_bit(differ);
	}
	for (__u32 i = 0; !v4 && i < XKV_LOCAL_MAX && i < rules->local6_count; i++) {
		differ = (rules->local6[i].addr[0] ^ h->dest[0]) |
			 (rules->local6[i].addr[1] ^ h->dest[1]) |
			 (rules->local6[i].link ^ h->link);
		if (!(differ | (mac_bits(rules->local6[i].mac) ^ h->to)))
			return CONTINUE;
		elsewhere &= any_bit(differ);
	}
	if (!elsewhere)
		return XKV_C_pass_mac;
	return h->link ? XKV_C_pass_vlan : XKV_C_pass_not_local;
}

static __always_inline bool allowed4(struct xkv_rules *rules, __u64 addr)
{
	for (__u32 i = 0; i < XKV_ALLOW_MAX && i < rules->allow4_count; i++)
		if (((__be32)addr & rules->allow4[i].mask) == rules->allow4[i].net)
			return true;
	return false;
}

static __always_inline bool allowed6(struct xkv_rules *rules, const __u64 *addr)
{
	for (__u32 i = 0; i < XKV_ALLOW_MAX && i < rules->allow6_count; i++)
		if ((addr[0] & rules->allow6[i].mask[0]) == rules->allow6[i].net[0] &&
		    (addr[1] & rules->allow6[i].mask[1]) == rules->allow6[i].net[1])
			return true;
	return false;
}

/*
 * Impossible sources: a reply would go to a group, to no host or to ourselves.  On links without
 * addresses both are zero.
 */
static __always_inline bool impossible_mac(const struct hosts *h)
{
	return is_group(h->from) || (h->from ? h->from == h->to : h->to != 0);
}

static __always_inline bool impossible4(struct xkv_rules *rules, __be32 addr)
{
	__u8 first = bpf_ntohl(addr) >> 24;

	for (__u32 i = 0; i < XKV_LOCAL_MAX && i < rules->local4_count; i++)
		if (rules->local4[i].addr == addr || rules->local4[i].network == addr ||
		    rules->local4[i].broadcast == addr)
			return true;
	return first == 0 || first == 127 || first >= 224;
}

static __always_inline bool impossible6(struct xkv_rules *rules, const __u64 *addr)
{
	for (__u32 i = 0; i < XKV_LOCAL_MAX && i < rules->local6_count; i++)
		if (rules->local6[i].addr[0] == addr[0] && rules->local6[i].addr[1] == addr[1])
			return true;
	return (addr[0] & bpf_cpu_to_be64(0xffULL << 56)) == bpf_cpu_to_be64(0xffULL << 56) ||
	       (!addr[0] && (addr[1] == 0 || addr[1] == bpf_cpu_to_be64(1)));
}

static __always_inline bool impossible(struct hosts *h, struct xkv_rules *rules)
{
	return impossible_mac(h) ||
	       (is_v4(h) ? impossible4(rules, h->source[0]) : impossible6(rules, h->source));
}

/*
 * Packets to other hosts (we may be a bridge or a router, the NIC may be promiscuous) go on to the
 * stack, whoever sent them; sources are checked after that.  A separate function, which the
 * verifier follows once, not for each path to it.
 */
__noinline int admit(struct hosts *h)
{
	struct xkv_config *cfg = config();
	struct xkv_rules *rules;
	int why;

	if (!h || !cfg)
		return XKV_C_pass_not_ready;
	rules = rules_of(cfg, h->current);
	why = is_for_us(h, rules);
	if (why != CONTINUE)
		return why;
	if (!h->port || impossible(h, rules))
		return XKV_C_drop_source;
	if (is_v4(h) ? allowed4(rules, h->source[0]) : allowed6(rules, h->source))
		return CONTINUE;
	return rules->foreign_drop ? XKV_C_drop_foreign : XKV_C_pass_foreign;
}

/* The same of one that is passed before its source is checked, because of `why`. */
__noinline int admit_unseen(struct hosts *h, int why)
{
	struct xkv_config *cfg = config();
	struct xkv_rules *rules;
	int ours;

	if (!h || !cfg)
		return why;
	rules = rules_of(cfg, h->current);
	ours = is_for_us(h, rules);
	if (ours != CONTINUE && (why != XKV_C_pass_group || ours != XKV_C_pass_mac))
		return why;
	return impossible(h, rules) ? XKV_C_drop_source : why;
}

/* Is the packet passed before its source was checked, to a stack that may deliver it to xkvd? */
static __always_inline bool is_unseen(int why)
{
	return why == XKV_C_pass_ip6_extension || why == XKV_C_pass_ip_options ||
	       why == XKV_C_pass_ip_fragment || why == XKV_C_pass_group;
}

static __always_inline bool parse_addresses(struct packet *p, void *cursor)
{
	struct ipv6hdr *ip6 = cursor;
	struct iphdr *ip4 = cursor;

	if (p->hosts.proto == bpf_htons(ETH_P_IP) && (void *)(ip4 + 1) <= p->end) {
		p->hosts.source[0] = ip4->saddr;
		p->hosts.dest[0] = ip4->daddr;
		return true;
	}
	if (p->hosts.proto != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > p->end)
		return false;
	__builtin_memcpy(p->hosts.source, &ip6->saddr, sizeof(p->hosts.source));
	__builtin_memcpy(p->hosts.dest, &ip6->daddr, sizeof(p->hosts.dest));
	return true;
}

/*
 * Checks the source of a packet that is_unseen().  It parses the headers again, so that other
 * packets have no extra cost.  The stack rejects impossible IPv4 sources itself, but not IPv6 ones.
 */
__noinline int unseen_source(struct xdp_md *ctx, int why)
{
	struct packet p = { .data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	struct xkv_config *cfg = config();
	void *cursor;

	if (!cfg || parse_link(&p, &cursor, true) != CONTINUE || !parse_addresses(&p, cursor))
		return why;
	p.hosts.current = READ_ONCE(cfg->current);
	return admit_unseen(&p.hosts, why);
}

/* ---- payload and checksum ------------------------------------------------ */

#define HALVES(word) ((0xffffffff & (word)) + ((word) >> 32))

/*
 * Sums up the 32-bit halves of words with one instruction per word less than HALVES(): the sum of
 * the lower halves is the sum of the words less 2^32 times the sum of the upper halves.
 */
struct halves {
	__u64 words, upper;
};

static __always_inline void halves_add(struct halves *h, __u64 word)
{
	h->words += word;
	h->upper += word >> 32;
}

static __always_inline __u64 halves_sum(const struct halves *h)
{
	return h->words - (h->upper << 32) + h->upper;
}

/* The sum of addresses and protocol: it stays the same when source and destination are swapped. */
static __always_inline __u64 address_sum(const struct packet *p, __u8 protocol)
{
	return (__u64)bpf_htons(protocol) + HALVES(p->hosts.source[0]) +
	       HALVES(p->hosts.source[1]) + HALVES(p->hosts.dest[0]) + HALVES(p->hosts.dest[1]);
}

/*
 * The sum of the pseudo header, given that of addresses and protocol, and of the UDP header without
 * its checksum.
 */
static __always_inline __u64 udp_sum(__u64 address_sum, __be16 source, __be16 dest, __be16 len)
{
	return address_sum + source + dest + len + len;
}

/* Initialises the request with what later stages need to know of the packet. */
static __always_inline int request_init(struct packet *p, struct xkv_config *cfg,
					struct xkv_request *rq)
{
	__u32 len = p->payload_len;

	if (len < sizeof(struct xkv_hdr))
		return XKV_C_pass_not_xkv;
	if (len > XKV_REQUEST_BYTES - 8 || (void *)(p->udp + 1) + len > p->end)
		return XKV_C_pass_length;
	rq->ip_off = p->ip_off;
	rq->payload_off = (void *)(p->udp + 1) - p->data;
	rq->length = p->end - p->data;
	rq->ip4 = p->ip4 != NULL;
	rq->address_sum = address_sum(p, IPPROTO_UDP);
	rq->overwritten = 0;
	rq->flags = 0;
	rq->now_ms = 0;
	rq->rules = p->hosts.current;
	rq->req_len = len;
	rq->reply_max = rq->ip4 ? cfg->payload4 : cfg->payload6;
	rq->reply_allowed = rq->reply_max;
	if (!rules_of(cfg, p->hosts.current)->trusted && XKV_REPLY_FACTOR * len < rq->reply_max)
		rq->reply_allowed = XKV_REPLY_FACTOR * len;
	return CONTINUE;
}

/*
 * A length in 1..2048, bounded by a mask for the verifier: a comparison could be moved by the
 * compiler to where older verifiers do not use it.
 */
/* clang-format 14 takes `(len) - 1` for a cast. */
/* clang-format off */
#define FRAME_LEN(len) ((((len) - 1) & (XKV_REQUEST_WORDS * 8 - 1)) + 1)
#define HEADERS_LEN(len) ((((len) - 1) & 127) + 1) /* Ethernet to UDP: 42 to 70 */
/* clang-format on */

#define COPY_WORD(to, from, i, sum)                                                                \
	do {                                                                                       \
		__u64 w = (from)[i];                                                               \
		(to)[i] = w;                                                                       \
		halves_add(sum, w);                                                                \
	} while (0)

/*
 * Copies words, four per iteration, into or out of a packet that ends at `end`, and returns the sum
 * of their halves.  The pointer into the packet continues as the one that was compared with `end`:
 * the verifier has no bounds for any other.  The last words are found from the beginning again: so
 * it follows these once, not for each number of iterations.
 */
static __always_inline __u64 copy_summed(__u64 *to, const __u64 *from, bool out, const void *end,
					 __u32 words)
{
	__u32 whole = words & ~3U, last = words & 3;
	__u64 *next, *other, *first_to = to;
	const __u64 *first_from = from;
	struct halves sum = { 0 };

	barrier_var(whole);
	for (; words >= 4; words -= 4) {
		next = (out ? to : (__u64 *)from) + 4;
		other = (out ? (__u64 *)from : to) + 4;
		barrier_var(next);
		if ((void *)next > end)
			break;
		COPY_WORD(to, from, 0, &sum);
		COPY_WORD(to, from, 1, &sum);
		COPY_WORD(to, from, 2, &sum);
		COPY_WORD(to, from, 3, &sum);
		barrier_var(other);
		to = out ? next : other;
		from = out ? other : next;
	}
	to = first_to + whole;
	from = first_from + whole;
	for (__u32 rest = 0; rest < 3; rest++) {
		next = (out ? to : (__u64 *)from) + 1;
		other = (out ? (__u64 *)from : to) + 1;
		barrier_var(next);
		if (rest >= last || (void *)next > end)
			break;
		COPY_WORD(to, from, 0, &sum);
		barrier_var(other);
		to = out ? next : other;
		from = out ? other : next;
	}
	return halves_sum(&sum);
}

/* Static, since it takes pointers; not inlined, so that the loop has all registers. */
static __noinline __u64 copy_from_packet(__u64 *to, const __u64 *from, const void *end, __u32 words)
{
	return copy_summed(to, from, false, end, words);
}

/* The bytes after the last whole word of the payload, zero-padded. */
static __always_inline __u64 last_word(const __u8 *byte, const void *end, __u32 bytes)
{
	__u64 word = 0;

	for (__u32 i = 0; i < 7; i++) {
		if (i >= bytes || (const void *)(byte + 1) > end)
			break;
		word |= (__u64)*byte++ << (8 * i);
	}
	return LE64(word);
}

/*
 * Copies a payload into a request's `in` or `out`, zero-padded to a word, and returns the sum of
 * its 16-bit words.  By words, not by a helper: the CPU can forward them to later loads of words.
 */
static __always_inline __u64 copy_payload(__u64 *to, __u8 *payload, const void *end, __u32 len)
{
	__u8 *last = payload + (len & (XKV_REQUEST_WORDS * 8 - 8));
	__u64 sum, word;

	sum = copy_from_packet(to, (__u64 *)payload, end, len / 8 & (XKV_REQUEST_WORDS - 1));
	word = len & 7 ? last_word(last, end, len & 7) : 0;
	to[(len >> 3) & (XKV_REQUEST_WORDS - 1)] = word;
	return sum + HALVES(word);
}

/* Finds the headers, for each stage again: pointers into the packet do not survive a resize. */
static __always_inline int locate_at(struct xdp_md *ctx, __u32 ip_off, __u32 ip4, struct packet *p)
{
	void *ip;

	p->data = (void *)(long)ctx->data;
	p->end = (void *)(long)ctx->data_end;
	p->eth = p->data;
	p->ip4 = NULL;
	p->ip6 = NULL;
	if (p->data + sizeof(*p->eth) > p->end)
		return XKV_C_drop_internal;
	barrier_var(ip_off);
	ip = p->data + (ip_off & 31);
	/*
	 * barrier_var: else the branch is duplicated, and older verifiers explore impossible
	 * combinations
	 */
	if (ip4) {
		p->ip4 = ip;
		p->udp = (void *)(p->ip4 + 1);
		barrier_var(p->udp);
	} else {
		p->ip6 = ip;
		p->udp = (void *)(p->ip6 + 1);
		barrier_var(p->udp);
	}
	if ((void *)(p->udp + 1) > p->end)
		return XKV_C_drop_internal;
	return CONTINUE;
}

static __always_inline int locate(struct xdp_md *ctx, struct xkv_request *rq, struct packet *p)
{
	return locate_at(ctx, rq->ip_off, rq->ip4, p);
}

/* The sum of pseudo header and UDP header. */
static __always_inline __u64 headers_sum(struct packet *p, __u64 address_sum)
{
	return udp_sum(address_sum, p->udp->source, p->udp->dest, p->udp->len) + p->udp->check;
}

/* Is the checksum right, with a payload of this sum?  Over IPv4 there may be none. */
static __always_inline bool checksum_is_right(struct packet *p, __u64 address_sum, __u64 sum)
{
	if (!p->udp->check)
		return p->ip4 != NULL;
	return fold(headers_sum(p, address_sum) + sum) == 0xffff;
}

/*
 * Copies the payload into the request and verifies its checksum.  No pointer into the packet is
 * used after the copy: the verifier knows more of it after each iteration, and would follow what
 * comes then for each number of them.
 */
static __always_inline int copy_and_verify(struct packet *p, struct xkv_request *rq)
{
	__u64 sum = headers_sum(p, rq->address_sum);
	__u32 check = p->udp->check;

	sum += copy_payload(rq->in_word, (__u8 *)(p->udp + 1), p->end, rq->req_len);
	if (!check)
		return rq->ip4 ? CONTINUE : XKV_C_pass_checksum;
	return fold(sum) == 0xffff ? CONTINUE : XKV_C_pass_checksum;
}

/* ---- the reply ----------------------------------------------------------- */

/* By 16-bit words: compilers copy the fields of a packed structure byte by byte. */
static __always_inline void swap_link(struct ethhdr *eth)
{
	__u16 *half = (__u16 *)eth, kept;

	for (int i = 0; i < ETH_ALEN / 2; i++) {
		kept = half[i];
		half[i] = half[i + ETH_ALEN / 2];
		half[i + ETH_ALEN / 2] = kept;
	}
}

/* Words are summed before they are stored: a load spanning several stores would stall on them. */
static __always_inline void write_ip4(struct iphdr *ip, __be32 source, __be32 dest,
				      __u32 ip_payload, __u32 protocol)
{
	__be32 *word = (__be32 *)ip;
	__be32 version_length = bpf_htonl(0x45000000 | (sizeof(*ip) + ip_payload));
	__be32 dont_fragment = bpf_htonl(0x4000); /* then the id may be 0 (RFC 6864) */
	__be32 hops_protocol = bpf_htonl(HOPS << 24 | protocol << 16);

	word[0] = version_length;
	word[1] = dont_fragment;
	word[2] = hops_protocol;
	ip->check = ~fold((__u64)version_length + dont_fragment + hops_protocol + source + dest);
	ip->saddr = source;
	ip->daddr = dest;
}

static __always_inline void swap_ip6(struct ipv6hdr *ip, __u32 ip_payload)
{
	struct in6_addr addr = ip->saddr;

	ip->saddr = ip->daddr;
	ip->daddr = addr;
	ip->payload_len = bpf_htons(ip_payload);
	ip->hop_limit = HOPS;
	ip->flow_lbl[0] = ip->flow_lbl[1] = ip->flow_lbl[2] = 0;
	ip->priority = 0;
}

/* Swaps addresses and ports, and sets lengths and checksums; `sum` is the payload's. */
static __always_inline void swap_headers(struct packet *p, __u64 address_sum, __u32 len, __u64 sum)
{
	__be16 source = p->udp->source, dest = p->udp->dest;
	__u32 udp_len = sizeof(struct udphdr) + len;
	__u16 check;

	swap_link(p->eth);
	if (p->ip4)
		write_ip4(p->ip4, p->ip4->daddr, p->ip4->saddr, udp_len, IPPROTO_UDP);
	else if (p->ip6)
		swap_ip6(p->ip6, udp_len);
	check = ~fold(udp_sum(address_sum, source, dest, bpf_htons(udp_len)) + sum);
	p->udp->source = dest;
	p->udp->dest = source;
	p->udp->len = bpf_htons(udp_len);
	p->udp->check = check ? check : 0xffff;
}

/* As one value: the verifier does not track the difference of two pointers in parts. */
static __always_inline int packet_length(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	long length = end - data;

	barrier_var(length);
	return length;
}

/* Resizes the packet for a payload of `len` bytes. */
static __always_inline int resize(struct xdp_md *ctx, __u32 offset, __u32 len)
{
	int have = packet_length(ctx);
	int want = offset + len;

	return want == have ? 0 : bpf_xdp_adjust_tail(ctx, want - have);
}

/*
 * Resizes the packet for a reply.  If the driver has no tailroom, the headers move into the
 * headroom, and the payload starts where they ended.
 */
static __always_inline int grow_for_reply(struct xdp_md *ctx, struct xkv_request *rq, __u32 len)
{
	__u32 offset = rq->payload_off;
	void *headers = &rq->in[SCRATCH];
	int more = offset + len - packet_length(ctx);

	if (!resize(ctx, offset, len))
		return 0;
	barrier_var(offset);
	if (more < 0 || bpf_xdp_load_bytes(ctx, 0, headers, HEADERS_LEN(offset)) ||
	    bpf_xdp_adjust_head(ctx, -more))
		return -1;
	barrier_var(offset);
	return bpf_xdp_store_bytes(ctx, 0, headers, HEADERS_LEN(offset));
}

#endif

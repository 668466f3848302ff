// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * xkv in the NIC driver.  A packet goes through these stages, top to bottom:
 *
 *   parse_link, parse_ip4 / parse_ip6, parse_udp   is it UDP to our port and address?
 *   admit                                          may its sender be answered?
 *   load                                           whole, and the checksum is right?
 *   request_run  (request.bpf.h, ops.bpf.h, store.bpf.h)
 *   reply                                          turn the frame around
 *
 * A stage returns CONTINUE or the counter of the reason why the packet leaves
 * here.  Nothing is written to the packet before it is certain that it goes
 * back as a reply; all else goes up to the kernel's stack as it came.
 *
 * The two syscall programs are the other door: xkvd runs them on frames and
 * slots in memory that it shares with them.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>

#include "request.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define CONTINUE (-1)
#define VLAN_DEPTH 2
#define IP_FRAGMENT 0x3fff /* more fragments, or an offset */
#define HOPS 64

struct vlan_hdr {
	__be16 tci;
	__be16 proto;
};

/* What the stages find out about a packet. */
struct packet {
	void *data, *end;
	struct ethhdr *eth;
	struct iphdr *ip4; /* one of the two */
	struct ipv6hdr *ip6;
	struct udphdr *udp;
	__u64 source[2], dest[2]; /* IPv4: in source[0] and dest[0] */
	__u32 payload_len;
	__be16 proto;
};

/* ---- parsing ------------------------------------------------------------- */

static __always_inline int parse_link(struct packet *p, void **cursor)
{
	struct ethhdr *eth = p->data;
	struct vlan_hdr *vlan;

	if ((void *)(eth + 1) > p->end)
		return XKV_C_pass_short;
	if (eth->h_dest[0] & 1)
		return XKV_C_pass_group; /* broadcast, multicast: never a source address */
	p->eth = eth;
	p->proto = eth->h_proto;
	*cursor = eth + 1;
	for (int i = 0; i < VLAN_DEPTH; i++) {
		if (p->proto != bpf_htons(ETH_P_8021Q) && p->proto != bpf_htons(ETH_P_8021AD))
			break;
		vlan = *cursor;
		if ((void *)(vlan + 1) > p->end)
			return XKV_C_pass_short;
		p->proto = vlan->proto;
		*cursor = vlan + 1;
	}
	if (p->proto == bpf_htons(ETH_P_8021Q) || p->proto == bpf_htons(ETH_P_8021AD))
		return XKV_C_pass_vlan_depth;
	return CONTINUE;
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline __u64 ip4_sum(struct iphdr *ip)
{
	__u32 *word = (__u32 *)ip;

	return (__u64)word[0] + word[1] + word[2] + word[3] + word[4];
}

static __always_inline int parse_ip4(struct packet *p, void **cursor, __u32 *ip_payload)
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
	if (ip->protocol != IPPROTO_UDP)
		return XKV_C_pass_not_udp;
	if (ip->frag_off & bpf_htons(IP_FRAGMENT))
		return XKV_C_pass_ip_fragment;
	if (fold(ip4_sum(ip)) != 0xffff)
		return XKV_C_pass_ip_header;
	p->ip4 = ip;
	p->source[0] = ip->saddr;
	p->dest[0] = ip->daddr;
	*cursor = ip + 1;
	*ip_payload = total - sizeof(*ip);
	return CONTINUE;
}

static __always_inline int parse_ip6(struct packet *p, void **cursor, __u32 *ip_payload)
{
	struct ipv6hdr *ip = *cursor;

	if ((void *)(ip + 1) > p->end)
		return XKV_C_pass_short;
	if (ip->version != 6)
		return XKV_C_pass_ip_header;
	switch (ip->nexthdr) {
	case IPPROTO_UDP:
		break;
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_FRAGMENT:
	case IPPROTO_DSTOPTS:
	case IPPROTO_AH:
		return XKV_C_pass_ip6_extension;
	default:
		return XKV_C_pass_not_udp;
	}
	p->ip6 = ip;
	__builtin_memcpy(p->source, &ip->saddr, sizeof(p->source));
	__builtin_memcpy(p->dest, &ip->daddr, sizeof(p->dest));
	*cursor = ip + 1;
	*ip_payload = bpf_ntohs(ip->payload_len);
	return CONTINUE;
}

static __always_inline int parse_udp(struct packet *p, void *cursor, __u32 ip_payload,
				     struct xkv_config *cfg)
{
	struct udphdr *udp = cursor;
	__u32 len;

	if ((void *)(udp + 1) > p->end)
		return XKV_C_pass_short;
	if (udp->dest != cfg->port)
		return XKV_C_pass_port;
	len = bpf_ntohs(udp->len);
	if (len < sizeof(*udp) || len > ip_payload)
		return XKV_C_pass_length;
	p->udp = udp;
	p->payload_len = len - sizeof(*udp);
	return CONTINUE;
}

static __always_inline int parse(struct packet *p, struct xkv_config *cfg)
{
	void *cursor;
	__u32 ip_payload = 0;
	int why = parse_link(p, &cursor);

	if (why != CONTINUE)
		return why;
	if (p->proto == bpf_htons(ETH_P_IP))
		why = parse_ip4(p, &cursor, &ip_payload);
	else if (p->proto == bpf_htons(ETH_P_IPV6))
		why = parse_ip6(p, &cursor, &ip_payload);
	else
		return XKV_C_pass_ethertype;
	return why != CONTINUE ? why : parse_udp(p, cursor, ip_payload, cfg);
}

/* ---- who may be answered ------------------------------------------------- */

static __always_inline bool local4(struct xkv_config *cfg, __u64 addr)
{
	for (__u32 i = 0; i < XKV_LOCAL_MAX && i < READ(cfg->local4_count); i++)
		if (cfg->local4[i] == (__be32)addr)
			return true;
	return false;
}

static __always_inline bool local6(struct xkv_config *cfg, const __u64 *addr)
{
	for (__u32 i = 0; i < XKV_LOCAL_MAX && i < READ(cfg->local6_count); i++)
		if (cfg->local6[i][0] == addr[0] && cfg->local6[i][1] == addr[1])
			return true;
	return false;
}

static __always_inline bool allowed4(struct xkv_config *cfg, __u64 addr)
{
	for (__u32 i = 0; i < XKV_ALLOW_MAX && i < READ(cfg->allow4_count); i++)
		if (((__be32)addr & cfg->allow4[i].mask) == cfg->allow4[i].net)
			return true;
	return false;
}

static __always_inline bool allowed6(struct xkv_config *cfg, const __u64 *addr)
{
	for (__u32 i = 0; i < XKV_ALLOW_MAX && i < READ(cfg->allow6_count); i++)
		if ((addr[0] & cfg->allow6[i].mask[0]) == cfg->allow6[i].net[0] &&
		    (addr[1] & cfg->allow6[i].mask[1]) == cfg->allow6[i].net[1])
			return true;
	return false;
}

/* An address that nobody can have: a reply would go to many, to nobody or to ourselves. */
static __always_inline bool impossible4(__be32 addr)
{
	__u8 first = bpf_ntohl(addr) >> 24;

	return first == 0 || first == 127 || first >= 224;
}

static __always_inline bool impossible6(const __u64 *addr)
{
	return (addr[0] & bpf_cpu_to_be64(0xffULL << 56)) == bpf_cpu_to_be64(0xffULL << 56) ||
	       (!addr[0] && (addr[1] == 0 || addr[1] == bpf_cpu_to_be64(1)));
}

/*
 * Packets to other hosts (a bridge, a router, a promiscuous NIC) go on to the
 * stack; only then is the sender looked at.
 */
static __always_inline int admit(struct packet *p, struct xkv_config *cfg)
{
	bool v4 = p->proto == bpf_htons(ETH_P_IP), allowed;

	if (v4 ? !local4(cfg, p->dest[0]) : !local6(cfg, p->dest))
		return XKV_C_pass_not_local;
	if (!p->udp->source || (v4 ? impossible4(p->source[0]) : impossible6(p->source)) ||
	    (v4 ? local4(cfg, p->source[0]) : local6(cfg, p->source)))
		return XKV_C_drop_source;
	allowed = v4 ? allowed4(cfg, p->source[0]) : allowed6(cfg, p->source);
	if (allowed)
		return CONTINUE;
	return cfg->foreign_drop ? XKV_C_drop_foreign : XKV_C_pass_foreign;
}

/* ---- payload and checksum ------------------------------------------------ */

#define HALVES(word) (((word) & 0xffffffff) + ((word) >> 32))

/* Sum of the 16-bit words of in (or out) up to len, which is padded with zeros to 8 bytes. */
__noinline __u64 frame_sum(struct xkv_frame *f, int out, __u32 len)
{
	__u32 words = (len + 7) / 8, base = out ? XKV_FRAME_WORDS : 0;
	__u64 sum = 0, *w;

	if (!f)
		return 0;
	/* `out` stands right behind `in`; four words a turn, since the turn costs more than they do */
	for (__u32 i = 0; i < XKV_FRAME_BYTES / 8; i += 4) {
		if (i >= words)
			break;
		w = &f->in_word[base + i];
		sum += HALVES(w[0]);
		if (i + 1 < words)
			sum += HALVES(w[1]);
		if (i + 2 < words)
			sum += HALVES(w[2]);
		if (i + 3 < words)
			sum += HALVES(w[3]);
	}
	return sum;
}

/* Of the pseudo header and the UDP header less its checksum. */
static __always_inline __u64 udp_sum(struct packet *p, __be16 udp_len)
{
	__u64 sum = (__u64)bpf_htons(IPPROTO_UDP) + udp_len + udp_len;

	for (int i = 0; i < 2; i++) {
		sum += (p->source[i] & 0xffffffff) + (p->source[i] >> 32);
		sum += (p->dest[i] & 0xffffffff) + (p->dest[i] >> 32);
	}
	return sum + p->udp->source + p->udp->dest;
}

/*
 * A length that is known to be 1..2048, in a form that the verifier sees: a
 * comparison would do, but compilers move it to where older verifiers lose sight of it.
 */
#define FRAME_LEN(len) ((((len) - 1) & (XKV_FRAME_WORDS * 8 - 1)) + 1)
#define HEADERS_LEN(len) ((((len) - 1) & 127) + 1) /* Ethernet to UDP: 42 to 70 */

/* Copies the payload into the frame and checks it. */
static __always_inline int load(struct xdp_md *ctx, struct packet *p, struct xkv_frame *f)
{
	__u32 offset = (void *)(p->udp + 1) - p->data, len = p->payload_len;
	__u64 sum;

	if (len < sizeof(struct xkv_hdr))
		return XKV_C_pass_not_xkv;
	if (len > XKV_FRAME_BYTES - 8 || (void *)(p->udp + 1) + len > p->end)
		return XKV_C_pass_length;
	OPAQUE(len);
	IN(f, len) = 0;
	if (bpf_xdp_load_bytes(ctx, offset, f->in, FRAME_LEN(len)))
		return XKV_C_pass_length;
	if (!p->udp->check)
		return p->ip4 ? CONTINUE : XKV_C_pass_checksum;
	sum = udp_sum(p, p->udp->len) + p->udp->check + frame_sum(f, 0, len);
	return fold(sum) == 0xffff ? CONTINUE : XKV_C_pass_checksum;
}

/* ---- the reply ----------------------------------------------------------- */

static __always_inline void swap_link(struct ethhdr *eth)
{
	__u8 mac[ETH_ALEN];

	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
}

static __always_inline void swap_ip4(struct iphdr *ip, __u32 ip_payload)
{
	__be32 addr = ip->saddr;

	ip->saddr = ip->daddr;
	ip->daddr = addr;
	ip->tot_len = bpf_htons(sizeof(*ip) + ip_payload);
	ip->ttl = HOPS;
	ip->id = 0;
	ip->frag_off = bpf_htons(0x4000); /* do not fragment: then id may be 0 (RFC 6864) */
	ip->tos = 0;
	ip->check = 0;
	ip->check = ~fold(ip4_sum(ip));
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

/* Turns addresses and ports around and sets lengths and checksums. */
static __always_inline void swap_headers(struct packet *p, struct xkv_frame *f)
{
	__u32 udp_len = sizeof(struct udphdr) + f->out_len;
	__be16 port = p->udp->source;
	__u16 check;

	swap_link(p->eth);
	if (p->ip4)
		swap_ip4(p->ip4, udp_len);
	else if (p->ip6)
		swap_ip6(p->ip6, udp_len);
	p->udp->source = p->udp->dest;
	p->udp->dest = port;
	p->udp->len = bpf_htons(udp_len);
	check = ~fold(udp_sum(p, p->udp->len) + frame_sum(f, 1, f->out_len));
	p->udp->check = check ? check : 0xffff;
}

/* Gives the packet the length that a payload of `len` bytes needs. */
static __always_inline int resize(struct xdp_md *ctx, __u32 offset, __u32 len)
{
	int have = (void *)(long)ctx->data_end - (void *)(long)ctx->data;
	int want = offset + len;

	return want == have ? 0 : bpf_xdp_adjust_tail(ctx, want - have);
}

/* The packet is of another size now: takes its pointers anew. The headers have not changed. */
static __always_inline int reparse(struct xdp_md *ctx, struct packet *p)
{
	void *cursor;
	__u32 unused;
	int why;

	p->data = (void *)(long)ctx->data;
	p->end = (void *)(long)ctx->data_end;
	p->ip4 = NULL;
	p->ip6 = NULL;
	why = parse_link(p, &cursor);
	if (why != CONTINUE)
		return why;
	why = p->proto == bpf_htons(ETH_P_IP) ? parse_ip4(p, &cursor, &unused) :
						parse_ip6(p, &cursor, &unused);
	if (why != CONTINUE)
		return why;
	p->udp = cursor;
	return (void *)(p->udp + 1) > p->end ? XKV_C_pass_short : CONTINUE;
}

/*
 * Makes the packet longer at its front: its headers, `offset` bytes, move up.  Where
 * a driver has no room behind the packet it still has some before it.
 */
static __always_inline int grow_head(struct xdp_md *ctx, struct xkv_frame *f, __u32 offset, int more)
{
	void *headers = &f->in[OTHER_KEY];

	OPAQUE(offset);
	if (bpf_xdp_load_bytes(ctx, 0, headers, HEADERS_LEN(offset)) ||
	    bpf_xdp_adjust_head(ctx, -more))
		return -1;
	OPAQUE(offset);
	return bpf_xdp_store_bytes(ctx, 0, headers, HEADERS_LEN(offset));
}

static __always_inline int reply(struct xdp_md *ctx, struct packet *p, struct xkv_frame *f,
				 __u32 offset)
{
	int have = (void *)(long)ctx->data_end - (void *)(long)ctx->data;
	__u32 len = f->out_len;
	int more = offset + len - have;

	if (resize(ctx, offset, len) && (more < 0 || grow_head(ctx, f, offset, more))) {
		ask_for_padding(f);
		len = f->out_len;
		if (resize(ctx, offset, len))
			return XKV_C_drop_internal;
	}
	OPAQUE(len);
	if (bpf_xdp_store_bytes(ctx, offset, f->out, FRAME_LEN(len)) ||
	    reparse(ctx, p) != CONTINUE)
		return XKV_C_drop_internal;
	swap_headers(p, f);
	return XKV_C_replies;
}

/* ---- the programs -------------------------------------------------------- */

/*
 * The reply may be longer than the request, and whether the driver has room for
 * that shows only when the packet is made longer.  It has to be known before
 * anything is changed, so a request that may both change something and get more
 * than it brought is made long enough first, or else gets only what fits.  A
 * single GET may simply fail, a single change without XKV_RETURN gets less than it brought.
 */
static __always_inline void find_room(struct xdp_md *ctx, struct xkv_frame *f, __u32 offset)
{
	struct xkv_hdr *hdr = (struct xkv_hdr *)f->in;
	__u32 first = sizeof(*hdr) + (hdr->flags & XKV_F_TOKEN ? XKV_TOKEN_BYTES : 0);
	struct xkv_op *op = (struct xkv_op *)&IN(f, first);
	int have = (void *)(long)ctx->data_end - (void *)(long)ctx->data;

	f->reply_room = f->reply_allowed;
	if (hdr->count <= 1 && !(op->flags & XKV_RETURN))
		return;
	if ((int)(offset + f->reply_allowed) > have && resize(ctx, offset, f->reply_allowed))
		f->reply_room = f->req_len;
}

static __always_inline int serve(struct xdp_md *ctx, struct xkv_config *cfg)
{
	struct packet p = { .data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	__u32 zero = 0, offset, length;
	struct xkv_frame *f;
	int why, verdict;

	why = parse(&p, cfg);
	if (why == CONTINUE)
		why = admit(&p, cfg);
	if (why != CONTINUE)
		return why;
	f = bpf_map_lookup_elem(&xkv_frames, &zero);
	if (!f)
		return XKV_C_pass_not_ready;
	why = load(ctx, &p, f);
	if (why != CONTINUE)
		return why;

	offset = (void *)(p.udp + 1) - p.data;
	length = p.end - p.data;
	f->flags = 0;
	f->req_len = p.payload_len;
	f->reply_max = p.ip4 ? cfg->payload4 : cfg->payload6;
	f->reply_allowed = f->reply_max;
	if (!cfg->trusted && XKV_REPLY_FACTOR * f->req_len < f->reply_max)
		f->reply_allowed = XKV_REPLY_FACTOR * f->req_len;
	find_room(ctx, f, offset);
	verdict = request_run(f, 0);
	if (verdict == VERDICT_REPLY)
		return reply(ctx, &p, f, offset);
	/* as it came */
	if (resize(ctx, 0, length))
		return XKV_C_drop_internal;
	return f->stop - 1;
}

SEC("xdp")
int xkv_xdp(struct xdp_md *ctx)
{
	struct xkv_config *cfg = config();
	struct xkv_counters *c = counters();
	int why;

	if (!cfg || !c)
		return XDP_PASS;
	if (cfg->magic != XKV_LAYOUT_MAGIC) {
		count(c, XKV_C_pass_not_ready);
		return XDP_PASS;
	}
	why = serve(ctx, cfg);
	count(c, why);
	if (why == XKV_C_replies)
		return XDP_TX;
	if (why >= XKV_C_drop_foreign && why <= XKV_C_drop_internal)
		return XDP_DROP;
	return XDP_PASS;
}

/* Runs the requests in some frames of xkv_batch.  A frame that has stopped goes on. */
SEC("syscall")
int xkv_run(struct xkv_batch_args *args)
{
	struct xkv_frame *f;
	__u32 index;

	for (__u32 i = 0; i < XKV_BATCH_FRAMES; i++) {
		if (i >= args->count)
			break;
		index = args->first + i;
		f = bpf_map_lookup_elem(&xkv_batch, &index);
		if (!f)
			return -EINVAL;
		f->verdict = request_run(f, f->stop != 0);
	}
	return 0;
}

static __always_inline int slots_link(struct xkv_slots_args *args)
{
	struct xkv_slot *last = slot_at(args->last);
	struct xkv_class *c = class_at(args->class);
	__u32 number = XKV_REF_PAGE(args->first), zero = 0;
	void *inner = bpf_map_lookup_elem(&xkv_pages, &number);
	struct xkv_page *page = inner ? bpf_map_lookup_elem(inner, &zero) : NULL;

	if (!last || !c || !page || page->linked)
		return -EINVAL;
	if (list_push(c, args->first, last, args->count))
		return -EBUSY;
	page->linked = 1;
	return 0;
}

/*
 * Free slots for xkvd: links a new page into its class, takes a slot for a large
 * value, gives one back.  Each is one run, so that xkvd may be killed at any time
 * without a slot being lost: what it has taken stands in its frame.
 */
SEC("syscall")
int xkv_slots(struct xkv_slots_args *args)
{
	struct xkv_frame *f;
	__u32 index = args->frame;
	__u64 ref;

	if (args->cmd == XKV_SLOTS_LINK)
		return slots_link(args);
	f = bpf_map_lookup_elem(&xkv_batch, &index);
	if (!f)
		return args->cmd == XKV_SLOTS_FREE ? slot_give(args->first) : -EINVAL;
	if (args->cmd == XKV_SLOTS_FREE) {
		ref = f->prefilled;
		f->prefilled = 0;
		return ref ? slot_give(ref) : 0;
	}
	if (f->prefilled)
		return -EBUSY;
	ref = slot_take(args->class);
	if (!ref)
		return -ENOSPC;
	if (ref == ~0ULL)
		return -EBUSY;
	f->prefilled = ref;
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Attached to the client's device while xkv-bench runs with --transport xdp.  Redirects replies of
 * the server to ports of the load to the AF_XDP socket of their queue, and passes all other packets
 * (ARP, other connections) up to the kernel.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "xsk.h"

const volatile __be32 server_ip;
const volatile __be16 server_port;

__u64 unclaimed; /* replies on queues without a socket; about */

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, XSK_QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* 1 for the ports that the load sends from; by port number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u8);
} ports SEC(".maps");

/* Is this a datagram from the server to a port of the load? */
static __always_inline int is_reply(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	__u32 port;
	__u8 *ours;

	if ((void *)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4 ||
	    ip->ihl != 5 || ip->protocol != IPPROTO_UDP || ip->saddr != server_ip ||
	    udp->source != server_port || ip->frag_off & bpf_htons(0x3fff))
		return 0;
	port = bpf_ntohs(udp->dest);
	ours = bpf_map_lookup_elem(&ports, &port);
	return ours && *ours;
}

SEC("xdp")
int xkv_bench_xsk(struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index;

	if (!is_reply(ctx))
		return XDP_PASS;
	if (!bpf_map_lookup_elem(&sockets, &queue)) {
		unclaimed++;
		return XDP_PASS;
	}
	return bpf_redirect_map(&sockets, queue, XDP_PASS);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Functions of the baseline servers: the check whether a frame is for them, exchange of addresses
 * with as few loads and stores as possible, and replies with all fields at fixed offsets.  For BPF
 * only.
 */
#ifndef BENCH_SWAP_H
#define BENCH_SWAP_H

#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>

#include "frame.h"

const volatile __u16 server_port = 0; /* network byte order */

/* The only check of the baselines: without it, they would answer ARP and other packets, too. */
static __always_inline int to_server(void *data)
{
	return FRAME_U16(data, 12) == bpf_htons(ETH_P_IP) &&
	       FRAME_U16(data, FRAME_UDP + 2) == server_port;
}

/* Exchanges MAC addresses, IPv4 addresses and UDP ports; no checksum changes by that. */
static __always_inline void swap_addresses(void *data)
{
	__u32 mac = FRAME_U32(data, 0), ip = FRAME_U32(data, FRAME_IP + 12);
	__u16 mac_tail = FRAME_U16(data, 4), port = FRAME_U16(data, FRAME_UDP);

	FRAME_U32(data, 0) = FRAME_U32(data, 6);
	FRAME_U16(data, 4) = FRAME_U16(data, 10);
	FRAME_U32(data, 6) = mac;
	FRAME_U16(data, 10) = mac_tail;
	FRAME_U32(data, FRAME_IP + 12) = FRAME_U32(data, FRAME_IP + 16);
	FRAME_U32(data, FRAME_IP + 16) = ip;
	FRAME_U16(data, FRAME_UDP) = FRAME_U16(data, FRAME_UDP + 2);
	FRAME_U16(data, FRAME_UDP + 2) = port;
}

/* Does to a frame what the echo baseline does. */
static __always_inline int send_back(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;

	if (data + FRAME_HDR > (void *)(long)ctx->data_end)
		return XDP_DROP;
	swap_addresses(data);
	return XDP_TX;
}

/* The IPv4 checksum (RFC 1624) after the total length went from `from` to `to`. */
static __always_inline void set_ip_length(void *data, __u16 from, __u16 to)
{
	__u32 sum = (__u16)~FRAME_U16(data, FRAME_IP + 10);

	sum += (__u16)~bpf_htons(from) + bpf_htons(to);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	FRAME_U16(data, FRAME_IP + 10) = ~sum;
	FRAME_U16(data, FRAME_IP + 2) = bpf_htons(to);
}

/* Turns the request at `data`, of `from` bytes, into a reply of `to` bytes; constants both. */
static __always_inline int fixed_reply(void *data, __u32 from, __u32 to, __u8 status)
{
	swap_addresses(data);
	set_ip_length(data, from - FRAME_IP, to - FRAME_IP);
	FRAME_U16(data, FRAME_UDP + 4) = bpf_htons(to - FRAME_UDP);
	FRAME_U16(data, FRAME_UDP + 6) = 0;
	FRAME_U8(data, FRAME_HDR + 3) = XKV_F_REPLY;
	FRAME_U16(data, FRAME_HDR + 6) = bpf_htons(to - FRAME_HDR);
	FRAME_U8(data, FRAME_OP + 1) = status;
	FRAME_U8(data, FRAME_OP + 2) = 0;
	FRAME_U32(data, FRAME_OP + 4) = bpf_htonl(to - FRAME_SHORT_BYTES);
	return XDP_TX;
}

#endif

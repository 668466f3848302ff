/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the two baseline servers share: which frames are theirs, and the
 * exchange of the addresses, in as few loads and stores as the layout allows.
 * For BPF only.
 */
#ifndef BENCH_SWAP_H
#define BENCH_SWAP_H

#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>

#include "frame.h"

const volatile __u16 server_port = 0; /* network byte order */

/* The one check that a program without checks needs to leave ARP and the like alone. */
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

#endif

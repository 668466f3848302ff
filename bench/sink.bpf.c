// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The frame loop's sink, on the client's veth: counts what comes back to the
 * generator's port by its status and drops it.  Everything else (ARP, the
 * sockets of the namespace) passes, so the bed stays usable while it is attached.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "frame.h"

const volatile __u16 generator_port = 0; /* network byte order */

/* Set for verification sweeps: sum up every reply, as a network stack would. */
__u32 verify_checksum;

struct sink_line count[FRAME_CPUS];

/* The one's complement sum of `bytes` (constant, a multiple of 4 below 512) at `from`. */
static __always_inline __s64 sum(void *from, __u32 bytes, __s64 seed)
{
	return bpf_csum_diff(NULL, 0, from, bytes, seed);
}

/* Whether the UDP checksum holds; `bytes` is the frame's length as a constant. */
static __always_inline int checksum_ok(void *data, __u32 bytes)
{
	__u32 udp_bytes = bytes - FRAME_UDP;
	__s64 s;

	if (!FRAME_U16(data, FRAME_UDP + 6)) /* IPv4 allows it: no checksum */
		return 1;
	s = bpf_htonl(IPPROTO_UDP << 16 | udp_bytes);
	s = sum(data + FRAME_IP + 12, 8, s);
	s = sum(data + FRAME_UDP, udp_bytes, s);
	s = (s & 0xffff) + (s >> 16 & 0xffff) + (s >> 32 & 0xffff);
	s = (s & 0xffff) + (s >> 16);
	return s == 0xffff;
}

static __always_inline int classify_hit(void *data, void *end)
{
	if (data + FRAME_HIT_BYTES > end) {
		/* No value: the answer to a SET. */
		if (verify_checksum && !checksum_ok(data, FRAME_SHORT_BYTES))
			return SINK_WRONG;
		return FRAME_U8(data, FRAME_OP) == XKV_OP_GET ? SINK_WRONG : SINK_HIT;
	}
	if (FRAME_U64(data, FRAME_REPLY_VALUE + FRAME_DIGITS) != FRAME_U64(data, FRAME_ID))
		return SINK_WRONG;
	if (verify_checksum && !checksum_ok(data, FRAME_HIT_BYTES))
		return SINK_WRONG;
	return SINK_HIT;
}

static __always_inline int classify(void *data, void *end)
{
	if (!(FRAME_U8(data, FRAME_HDR + 3) & XKV_F_REPLY))
		return SINK_ECHO;
	if (FRAME_U8(data, FRAME_HDR + 5)) /* no operation was looked at */
		return SINK_OTHER;
	switch (FRAME_U8(data, FRAME_OP + 1)) {
	case XKV_OK:
		return classify_hit(data, end);
	case XKV_MISS:
		return SINK_MISS;
	default:
		return SINK_OTHER;
	}
}

SEC("xdp")
int sink(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 cpu = bpf_get_smp_processor_id();

	if (data + FRAME_SHORT_BYTES > end || cpu >= FRAME_CPUS)
		return XDP_PASS;
	if (FRAME_U16(data, 12) != bpf_htons(ETH_P_IP) ||
	    FRAME_U8(data, FRAME_IP + 9) != IPPROTO_UDP ||
	    FRAME_U16(data, FRAME_UDP + 2) != generator_port)
		return XDP_PASS;
	count[cpu].count[classify(data, end) & 7]++;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The frame loop's sink, on the client's veth: counts the results that come back
 * to the generator's port by their status and drops them.  Everything else (ARP, the
 * sockets of the namespace) passes, so the bed stays usable while it is attached.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "frame.h"

const volatile __u16 generator_port = 0; /* network byte order */

/* How many operations a request has. */
__u32 asked FRAME_LINE;

/* Set for verification sweeps: sum up every reply, as a network stack would. */
__u32 verify_checksum;

struct sink_line count[FRAME_CPUS];

/* Whether the UDP checksum holds.  Datagrams of the protocol are multiples of 8 bytes. */
static __noinline int checksum_ok(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 sum = bpf_htons(IPPROTO_UDP);
	__u32 bytes;

	if (data + FRAME_HDR > end)
		return 0;
	if (!FRAME_U16(data, FRAME_UDP + 6)) /* IPv4 allows it: no checksum */
		return 1;
	bytes = bpf_ntohs(FRAME_U16(data, FRAME_UDP + 4));
	sum += FRAME_U16(data, FRAME_UDP + 4);
	sum += FRAME_U32(data, FRAME_IP + 12) + (__u64)FRAME_U32(data, FRAME_IP + 16);
	for (__u32 i = 0; i < (FRAME_MAX - FRAME_UDP) / 8 && i < bytes / 8; i++) {
		void *at = data + FRAME_UDP + 8 * i;

		if (at + 8 > end)
			return 0;
		sum += FRAME_U32(at, 0) + (__u64)FRAME_U32(at, 4);
	}
	for (int i = 0; i < 4; i++)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/*
 * What a reply holds: how many results of each kind, and the sum of its values' digits.
 * In a map and not on the stack: the verifier would follow each way to count up to eight.
 */
struct tally {
	__u64 hits, misses, others;
	__u64 gets; /* of the hits, those that have to have a value */
	__u64 digits;
} FRAME_LINE;

static struct tally tally[FRAME_CPUS];

/* Adds the result at `at`.  Returns where the next one starts. */
static __always_inline __u32 add_result(struct tally *t, void *data, void *end, __u32 at)
{
	void *r = data + (at & 0x7ff);

	at += sizeof(struct xkv_result);
	if (r + sizeof(struct xkv_result) > end)
		return at;
	if (FRAME_U8(r, 1) == XKV_MISS)
		t->misses++;
	else if (FRAME_U8(r, 1) != XKV_OK)
		t->others++;
	else
		t->hits++;
	if (FRAME_U8(r, 1) != XKV_OK || FRAME_U8(r, 0) != XKV_OP_GET)
		return at;
	t->gets++;
	if (r + sizeof(struct xkv_result) + FRAME_DIGITS + 8 <= end)
		t->digits += FRAME_U64(r, sizeof(struct xkv_result) + FRAME_DIGITS);
	return at + FRAME_VALUE_SIZE;
}

static __always_inline void count_results(struct sink_line *line, struct tally *t, __u32 ops)
{
	if (!(t->hits + t->misses + t->others)) /* no operation was looked at */
		t->others = ops;
	if (t->hits < ops) { /* the id says nothing about some of the keys */
		t->others += t->hits;
		t->hits = 0;
	}
	line->count[SINK_HIT] += t->hits;
	line->count[SINK_MISS] += t->misses;
	line->count[SINK_OTHER] += t->others;
}

static __always_inline void count_reply(struct xdp_md *ctx, struct sink_line *line,
					struct tally *t)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 ops = asked, at = FRAME_OP;

	if (data + FRAME_OP > end)
		return;
	if (!(FRAME_U8(data, FRAME_HDR + 3) & XKV_F_REPLY)) {
		line->count[SINK_ECHO] += ops;
		return;
	}
	*t = (struct tally){ 0 };
	for (__u32 i = 0; i < FRAME_OPS_MAX && i < FRAME_U8(data, FRAME_HDR + 4); i++)
		at = add_result(t, data, end, at);
	if ((t->gets == ops && t->digits != FRAME_U64(data, FRAME_ID)) ||
	    (verify_checksum && !checksum_ok(ctx)))
		line->count[SINK_WRONG] += ops;
	else
		count_results(line, t, ops);
}

SEC("xdp")
int sink(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 cpu = bpf_get_smp_processor_id();

	if (data + FRAME_OP > end || cpu >= FRAME_CPUS)
		return XDP_PASS;
	if (FRAME_U16(data, 12) != bpf_htons(ETH_P_IP) ||
	    FRAME_U8(data, FRAME_IP + 9) != IPPROTO_UDP ||
	    FRAME_U16(data, FRAME_UDP + 2) != generator_port)
		return XDP_PASS;
	count_reply(ctx, &count[cpu], &tally[cpu]);
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

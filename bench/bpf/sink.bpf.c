// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The sink of the frame loop, on the client's veth: counts the results in replies to the
 * generator's port by status and drops the frames.  Other packets (ARP, sockets of the namespace)
 * are passed up, so that the test bed stays usable.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "frame.h"

const volatile __u16 generator_port = 0; /* network byte order */

/* How many results a request has, and the bytes of each value. */
__u32 asked FRAME_LINE;
__u32 value_size;

/* Set for verification: check the checksum of every reply, as a network stack would. */
__u32 verify_checksum;

struct sink_line count[FRAME_CPUS];

/* Is the UDP checksum correct?  Lengths of datagrams of the protocol are multiples of 8 bytes. */
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
 * The results of a reply, counted by kind, and the keys of its values.  In a map instead of the
 * stack, where the verifier would follow all combinations of counts.
 */
struct tally {
	__u64 at; /* offset of the next result */
	__u64 hits, misses, others;
	__u64 gets;   /* of the hits, those of GETs */
	__u64 digits; /* sum over their values */
	__u64 next;   /* digits of the key that a SCAN comes to next, as a number */
	__u64 scans;  /* results of a SCAN */
	__u64 wrong;  /* not 0: a value is of another key or another size */
} FRAME_LINE;

static struct tally tally[FRAME_CPUS];

/*
 * Increments a number of eight digits, all bytes at once: adding 0xc6 turns '9' into 0xff, so that
 * a carry continues to the next byte and leaves 0, which is replaced by '0'.
 */
static __always_inline __u64 count_up(__u64 digits)
{
	__u64 sum = digits + 0xc6c6c6c6c6c6c6c6 + 1;
	__u64 carried = (~sum & 0x8080808080808080) >> 7;

	return sum + carried * 0xf6 - 0xc6c6c6c6c6c6c6c6;
}

/* Checks whose value it is: for a SCAN each value, for GETs only the sum of all. */
static __always_inline void add_value(struct tally *t, __u64 digits, __u8 opcode)
{
	if (opcode == XKV_OP_SCAN) {
		t->wrong |= digits ^ bpf_cpu_to_be64(t->next);
	} else {
		t->gets++;
		t->digits += digits;
	}
}

static __always_inline void read_result(struct tally *t, void *data, void *end)
{
	void *r = data + (t->at & 0x7ff);
	__u8 opcode, status;
	__u64 digits = 0;

	t->at += sizeof(struct xkv_result);
	if (r + sizeof(struct xkv_result) > end)
		return;
	opcode = FRAME_U8(r, 0);
	status = FRAME_U8(r, 1);
	if (status == XKV_MISS)
		t->misses++;
	else if (status != XKV_OK)
		t->others++;
	else
		t->hits++;
	if (status == XKV_OK && (opcode == XKV_OP_GET || opcode == XKV_OP_SCAN)) {
		if (r + sizeof(struct xkv_result) + FRAME_DIGITS + 8 <= end)
			digits = FRAME_U64(r, sizeof(struct xkv_result) + FRAME_DIGITS);
		add_value(t, digits, opcode);
		t->wrong |= FRAME_U32(r, 4) ^ bpf_htonl(value_size);
		t->at += XKV_PADDED(value_size);
	}
	if (opcode == XKV_OP_SCAN) {
		t->scans++;
		t->next = count_up(t->next);
	}
}

/* Not static, so that the verifier checks it once, instead of on each path through the results. */
__noinline int add_result(struct xdp_md *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if (cpu < FRAME_CPUS)
		read_result(&tally[cpu], (void *)(long)ctx->data, (void *)(long)ctx->data_end);
	return 0;
}

static __always_inline void count_results(struct sink_line *line, struct tally *t, __u32 ops)
{
	if (!(t->hits + t->misses + t->others)) /* no operation was looked at */
		t->others = ops;
	if (!t->scans && t->hits < ops) { /* the id verifies complete replies only */
		t->others += t->hits;
		t->hits = 0;
	}
	line->count[SINK_HIT] += t->hits;
	line->count[SINK_MISS] += t->misses;
	line->count[SINK_OTHER] += t->others;
}

static __always_inline void count_reply(struct xdp_md *ctx, struct sink_line *line, struct tally *t)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 ops = asked, results;
	__u64 id;

	if (data + FRAME_OP > end)
		return;
	if (!(FRAME_U8(data, FRAME_HDR + 3) & XKV_F_REPLY)) {
		line->count[SINK_ECHO] += ops;
		return;
	}
	id = FRAME_U64(data, FRAME_ID);
	*t = (struct tally){ .at = FRAME_OP, .next = bpf_be64_to_cpu(id) };
	results = FRAME_U8(data, FRAME_HDR + 4);
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < FRAME_RESULTS_MAX && i < results; i++)
		add_result(ctx);
	if (t->wrong || (t->gets == ops && t->digits != id) ||
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

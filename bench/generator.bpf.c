// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The frame loop's generator.  BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES runs
 * it on a recycled frame, which still holds what server and sink left in it, so
 * it writes every byte of a request; XDP_TX then sends the frame out of the
 * client's veth.  Recycled frames keep the length that the server gave them, too,
 * unless this program changes its own view of it: so frames come with FRAME_ROOM
 * bytes, and each is cut to its length.  The keys come from a table that user space fills, so that
 * a draw costs one load whatever the distribution is.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "frame.h"

/* Digits of the keys to ask for, in order; frames.c fills it for a distribution. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FRAME_TABLE_SIZE);
	__type(key, __u32);
	__type(value, __u64);
} table SEC(".maps");

/* Requests with all that does not vary, and the sums of their UDP checksum over it. */
__u64 get_template[FRAME_SET_BYTES / 8 + 1];
__u64 set_template[FRAME_SET_BYTES / 8 + 1];
__u64 get_sum, set_sum;

/* Entries in use: a run starts over when it has sent so many. */
__u64 table_used = FRAME_TABLE_SIZE;

struct generator_line line[FRAME_CPUS];

static __always_inline __u64 sum16(__u64 digits)
{
	return (digits & 0xffff) + (digits >> 16 & 0xffff) + (digits >> 32 & 0xffff) +
	       (digits >> 48);
}

static __always_inline __u16 checksum(__u64 sum)
{
	__u16 folded;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	folded = ~sum;
	return folded ? folded : 0xffff; /* 0 would say "no checksum" */
}

static __always_inline int write_get(struct xdp_md *ctx, __u64 digits)
{
	void *data;

	if (bpf_xdp_adjust_tail(ctx, FRAME_GET_BYTES - FRAME_ROOM))
		return XDP_ABORTED;
	data = (void *)(long)ctx->data;
	if (data + FRAME_GET_BYTES > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
#pragma unroll
	for (int i = 0; i < FRAME_GET_BYTES / 8; i++)
		FRAME_U64(data, 8 * i) = get_template[i];
	FRAME_U64(data, FRAME_ID) = digits;
	FRAME_U64(data, FRAME_KEY + FRAME_DIGITS) = digits;
	FRAME_U16(data, FRAME_UDP + 6) = checksum(get_sum + 2 * sum16(digits));
	return XDP_TX;
}

static __always_inline int write_set(struct xdp_md *ctx, __u64 digits)
{
	void *data;

	if (bpf_xdp_adjust_tail(ctx, FRAME_SET_BYTES - FRAME_ROOM))
		return XDP_ABORTED;
	data = (void *)(long)ctx->data;
	if (data + FRAME_SET_BYTES > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
#pragma unroll
	for (int i = 0; i < FRAME_SET_BYTES / 8; i++)
		FRAME_U64(data, 8 * i) = set_template[i];
	FRAME_U16(data, FRAME_SET_BYTES - 2) = set_template[FRAME_SET_BYTES / 8];
	FRAME_U64(data, FRAME_ID) = digits;
	FRAME_U64(data, FRAME_KEY + FRAME_DIGITS) = digits;
	FRAME_U64(data, FRAME_REQUEST_VALUE + FRAME_DIGITS) = digits;
	FRAME_U16(data, FRAME_UDP + 6) = checksum(set_sum + 3 * sum16(digits));
	return XDP_TX;
}

SEC("xdp")
int generator(struct xdp_md *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	__u32 slot;
	__u64 *digits;

	if (cpu >= FRAME_CPUS)
		return XDP_ABORTED;
	if (line[cpu].position >= table_used)
		line[cpu].position = 0;
	slot = line[cpu].position++;
	digits = bpf_map_lookup_elem(&table, &slot);
	if (!digits)
		return XDP_ABORTED;
	if (*digits & FRAME_SET_BIT)
		return write_set(ctx, *digits & ~FRAME_SET_BIT);
	return write_get(ctx, *digits);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

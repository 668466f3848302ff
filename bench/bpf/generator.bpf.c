// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The generator of the frame loop.  BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES runs it on
 * recycled frames, which still contain what server and sink wrote: so it writes every byte of a
 * request.  XDP_TX then sends the frame out of the client's veth.  A recycled frame also keeps the
 * length that the server gave it, unless this program changes the length, too: so frames start with
 * FRAME_ROOM bytes, and each is cut to its length.  Keys are read from a table that user space
 * fills, so that a key costs one load with any distribution.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "frame.h"

/* Digits of the keys to request, in order; filled by generator_fill() in user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FRAME_TABLE_SIZE);
	__type(key, __u32);
	__type(value, __u64);
} table SEC(".maps");

/* Templates of requests: [0] GETs, [1] SETs. */
struct generator_template request[2] FRAME_LINE;

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
	return folded ? folded : 0xffff; /* 0 would mean no checksum */
}

/* The next entry of this CPU; 0, which is no digits, if there is none. */
static __always_inline __u64 draw(__u32 cpu)
{
	__u32 slot;
	__u64 *digits;

	if (line[cpu].position >= table_used)
		line[cpu].position = 0;
	slot = line[cpu].position++;
	digits = bpf_map_lookup_elem(&table, &slot);
	return digits ? *digits : 0;
}

/* Copies the template in whole blocks; what exceeds the request is cut off later. */
static __always_inline bool copy_template(void *data, void *end, const struct generator_template *t)
{
	for (__u32 i = 0; i < FRAME_BLOCKS && i * FRAME_BLOCK < t->bytes; i++) {
		void *to = data + i * FRAME_BLOCK;

		if (to + FRAME_BLOCK > end)
			return false;
#pragma unroll
		for (int j = 0; j < FRAME_BLOCK / 8; j++)
			FRAME_U64(to, 8 * j) = t->frame[i][j];
	}
	return true;
}

/* Stores the digits at a place that varies.  Returns their sum, or 0 beyond the frame. */
static __always_inline __u64 put_digits(void *data, void *end, __u32 at, __u64 digits)
{
	void *to = data + (at & 0x7ff);

	if (to + 8 > end)
		return 0;
	FRAME_U64(to, 0) = digits;
	return sum16(digits);
}

static __always_inline int write_request(struct xdp_md *ctx, const struct generator_template *t,
					 __u32 cpu, __u64 digits)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 at = FRAME_KEY + FRAME_DIGITS;
	__u64 id = 0, sum = t->sum;

	if (data + FRAME_GET_BYTES > end || !copy_template(data, end, t))
		return XDP_ABORTED;
	for (__u32 i = 0; i < FRAME_OPS_MAX && i < t->ops; i++, at += t->op_bytes) {
		if (i)
			digits = draw(cpu) & ~FRAME_SET_BIT;
		sum += put_digits(data, end, at, digits);
		if (t->value)
			sum += put_digits(data, end, at + t->value, digits);
		id += digits;
	}
	FRAME_U64(data, FRAME_ID) = id;
	FRAME_U16(data, FRAME_UDP + 6) = checksum(sum + sum16(id));
	return bpf_xdp_adjust_tail(ctx, t->bytes - FRAME_ROOM) ? XDP_ABORTED : XDP_TX;
}

/* The first draw decides for the whole datagram whether it asks or sets. */
SEC("xdp")
int generator(struct xdp_md *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	__u64 digits;

	if (cpu >= FRAME_CPUS)
		return XDP_ABORTED;
	digits = draw(cpu);
	if (!digits)
		return XDP_ABORTED;
	return write_request(ctx, &request[!!(digits & FRAME_SET_BIT)], cpu,
			     digits & ~FRAME_SET_BIT);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

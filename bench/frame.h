/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The frames of the frame loop: one Ethernet/IPv4/UDP datagram that carries one
 * operation on a 16-byte key with a 128-byte value.  The generator, the sink,
 * the baselines and the user-space side (frames.c) all take the offsets from here.
 *
 * Keys are "key:0000" and eight decimal digits.  The digits are the only bytes
 * that differ between two requests: they stand in the request id, at the end of
 * the key and, in a SET, in the value, which starts with its key.  So a frame is
 * a copy of a template and three stores, its UDP checksum is the template's sum
 * and the digits' sum a few times over, and the sink can tell from the id alone
 * whether the value in a reply belongs to the key that was asked for.
 *
 * Fields are read and written through the pointer types below rather than
 * through a packed struct, which clang for BPF would access byte by byte.
 */
#ifndef BENCH_FRAME_H
#define BENCH_FRAME_H

#include <linux/types.h>

#include "../bpf/proto.h"

#define FRAME_KEY_SIZE 16
#define FRAME_VALUE_SIZE 128
#define FRAME_KEYS_MAX 100000000U /* eight digits */

/* Offsets from the start of the Ethernet header. */
#define FRAME_IP 14
#define FRAME_UDP 34
#define FRAME_HDR 42
#define FRAME_ID (FRAME_HDR + 8)
#define FRAME_OP (FRAME_HDR + 16) /* struct xkv_op in a request, struct xkv_result in a reply */
#define FRAME_KEY (FRAME_OP + 24)
#define FRAME_REQUEST_VALUE (FRAME_KEY + FRAME_KEY_SIZE)
#define FRAME_REPLY_VALUE (FRAME_OP + 24)
#define FRAME_DIGITS 8 /* of the key, and of a value: where the eight digits start */

#define FRAME_GET_BYTES (FRAME_KEY + FRAME_KEY_SIZE)
#define FRAME_SET_BYTES (FRAME_REQUEST_VALUE + FRAME_VALUE_SIZE)
#define FRAME_ROOM (FRAME_SET_BYTES + 2) /* what the generator gets; longer than any request */
#define FRAME_HIT_BYTES (FRAME_REPLY_VALUE + FRAME_VALUE_SIZE)
#define FRAME_SHORT_BYTES (FRAME_OP + 24) /* a reply without a value */

/* Digits in a table entry are ASCII, so the top bit of the first is free: it asks for a SET. */
#define FRAME_SET_BIT 0x80ULL

/* Entries of the generator's table of keys; a power of two. */
#define FRAME_TABLE_SIZE (1U << 22)

#define FRAME_CPUS 256

#define FRAME_U8(data, off) (*(__u8 *)((data) + (off)))
#define FRAME_U16(data, off) (*(__u16 *)((data) + (off)))
#define FRAME_U32(data, off) (*(__u32 *)((data) + (off)))
#define FRAME_U64(data, off) (*(__u64 *)((data) + (off)))

/* What the sink counts, one line of counters for each CPU. */
enum sink_count {
	SINK_HIT,   /* GET answered with the right value, or SET, DELETE answered with XKV_OK */
	SINK_MISS,  /* XKV_MISS */
	SINK_OTHER, /* any other status */
	SINK_ECHO,  /* came back as a request: the echo server */
	SINK_WRONG, /* a GET's value is not that key's, or the UDP checksum is wrong */
	SINK_COUNTS,
};

struct sink_line {
	__u64 count[8];
};

struct generator_line {
	__u64 position; /* in the table; grows without bound */
	__u64 unused[7];
};

_Static_assert(SINK_COUNTS <= 8, "sink_line");

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The frames of the frame loop: one Ethernet/IPv4/UDP datagram that carries one
 * or more operations of one kind on keys of one size with values of one size.  The
 * generator, the sink, the baselines and the user-space side (frames.c) all take
 * the offsets from here.  The baselines know one GET or SET, 16-byte keys and
 * 128-byte values only.
 *
 * Keys are "key:", four digits of a range, eight of a number, then '-' up to their
 * size.  Each size of values has a range of its own, "0000" the first one, so that
 * one store holds keys that differ in the size of their values alone.  The eight
 * digits are the only bytes that differ between two requests: they stand in each
 * key and, in a SET, in the value, which starts with its key; the request id is
 * their sum over all operations.  So a frame is a copy of a template and some
 * stores, its UDP checksum is the template's sum and those of the digits, and the
 * sink can tell from the id alone whether the values in a reply belong to the
 * keys that were asked for: they have the same sum, or, of a SCAN, are the numbers
 * from its key on.
 *
 * Fields are read and written through the pointer types below rather than
 * through a packed struct, which clang for BPF would access byte by byte.
 */
#ifndef BENCH_FRAME_H
#define BENCH_FRAME_H

#include <linux/types.h>

#include "bpf/proto.h"

#define FRAME_KEY_SIZE 16
#define FRAME_VALUE_SIZE 128	    /* the baselines' */
#define FRAME_VALUE_MIN	 32	    /* smaller ones do not tell their key (entry.h) */
#define FRAME_KEYS_MAX	 100000000U /* eight digits: the keys of a range */

/* Offsets from the start of the Ethernet header. */
#define FRAME_IP 14
#define FRAME_UDP 34
#define FRAME_HDR 42
#define FRAME_ID (FRAME_HDR + 8)
#define FRAME_OP (FRAME_HDR + 16) /* struct xkv_op or, in a reply, struct xkv_result */
#define FRAME_KEY (FRAME_OP + 24)
#define FRAME_REQUEST_VALUE (FRAME_KEY + FRAME_KEY_SIZE)
#define FRAME_REPLY_VALUE (FRAME_OP + 24)
#define FRAME_DIGITS 8 /* of the key, and of a value: where the eight digits start */

#define FRAME_GET_BYTES (FRAME_KEY + FRAME_KEY_SIZE)
#define FRAME_SET_BYTES (FRAME_REQUEST_VALUE + FRAME_VALUE_SIZE)
#define FRAME_MAX (FRAME_HDR + XKV_PAYLOAD_MAX4)
#define FRAME_BLOCK 64 /* bytes that the generator writes at a time */
#define FRAME_BLOCKS ((FRAME_MAX + FRAME_BLOCK - 1) / FRAME_BLOCK)
/* What the generator gets: longer than any request. */
#define FRAME_ROOM (FRAME_BLOCKS * FRAME_BLOCK + 2)
#define FRAME_OPS_MAX 8 /* of a request; SETs with values of 128 bytes that fit a datagram */
/* Results of a SCAN that fit a datagram. */
#define FRAME_RESULTS(value_size)                                                                  \
	((XKV_PAYLOAD_MAX4 - sizeof(struct xkv_hdr)) /                                             \
	 (sizeof(struct xkv_result) + XKV_PADDED(value_size)))
#define FRAME_RESULTS_MAX FRAME_RESULTS(FRAME_VALUE_MIN)
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

/* What the sink counts: operations, one line of counters for each CPU. */
enum sink_count {
	SINK_HIT,   /* key read with the right value, or SET, DELETE answered with XKV_OK */
	SINK_MISS,  /* XKV_MISS */
	SINK_OTHER, /* any other status, or a hit in a reply with fewer hits than keys */
	SINK_ECHO,  /* came back as a request: the echo server */
	SINK_WRONG, /* a value is not that key's, or the UDP checksum is wrong */
	SINK_COUNTS,
};

/*
 * A line is two cache lines, which is what the prefetcher fetches at once: what one CPU
 * writes stays away from what the others write or read.
 */
#define FRAME_LINE __attribute__((aligned(128)))

struct sink_line {
	__u64 count[SINK_COUNTS];
} FRAME_LINE;

struct generator_line {
	__u64 position; /* in the table */
} FRAME_LINE;

/* A request with zeros for digits, and where the digits go. */
struct generator_template {
	__u64 sum;   /* of what does not vary, for the UDP checksum */
	__u32 bytes; /* of the frame, padding included */
	__u32 ops;
	__u32 op_bytes; /* from an operation to the next */
	__u32 value;    /* from the digits of a SET's key to those of its value, 0 in a GET */
	__u64 frame[FRAME_BLOCKS][FRAME_BLOCK / 8];
};

#endif

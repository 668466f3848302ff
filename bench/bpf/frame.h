/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The frames of the frame loop: an Ethernet/IPv4/UDP datagram with one or more operations of the
 * same kind, on keys of one size with values of one size.  Generator, sink, baselines and the
 * user-space side all use the offsets defined here.  The baselines support a single GET or
 * SET with a 16-byte key and a 128-byte value only.
 *
 * A key is "key:", four digits of a range, eight digits of a number, then '-' up to its size.  Each
 * size of values has a range of its own, beginning with "0000", so that a store can have keys that
 * differ only in the sizes of their values.  The eight digits are the only bytes that differ
 * between two requests: in each key and, in a SET, in the value, which starts with its key.  The
 * request id is the sum of the digits over all operations.  So the generator copies a template,
 * stores the digits, and adds their sum to the checksum of the template.  And the sink can verify
 * the values of a reply with the id: their digits have the same sum or, for a SCAN, are the
 * consecutive numbers from the id on.
 *
 * Fields are accessed through the macros below instead of a packed struct, which clang for BPF
 * would access byte by byte.
 */
#ifndef BENCH_FRAME_H
#define BENCH_FRAME_H

#include <linux/types.h>

#include "bpf/proto.h"

#define FRAME_KEY_SIZE	 16
#define FRAME_VALUE_SIZE 128	    /* of the baselines */
#define FRAME_VALUE_MIN	 32	    /* smaller values do not contain the key (entry.h) */
#define FRAME_KEYS_MAX	 100000000U /* in a range: eight digits */

/* Offsets from the start of the Ethernet header. */
#define FRAME_IP	    14
#define FRAME_UDP	    34
#define FRAME_HDR	    42
#define FRAME_ID	    (FRAME_HDR + 8)
#define FRAME_OP	    (FRAME_HDR + 16) /* struct xkv_op or, in a reply, struct xkv_result */
#define FRAME_KEY	    (FRAME_OP + 24)
#define FRAME_REQUEST_VALUE (FRAME_KEY + FRAME_KEY_SIZE)
#define FRAME_REPLY_VALUE   (FRAME_OP + 24)
#define FRAME_DIGITS	    8 /* of the key, and of a value: where the eight digits start */

#define FRAME_GET_BYTES (FRAME_KEY + FRAME_KEY_SIZE)
#define FRAME_SET_BYTES (FRAME_REQUEST_VALUE + FRAME_VALUE_SIZE)
#define FRAME_MAX	(FRAME_HDR + XKV_PAYLOAD_MAX4)
#define FRAME_BLOCK	64 /* bytes that the generator writes at a time */
#define FRAME_BLOCKS	((FRAME_MAX + FRAME_BLOCK - 1) / FRAME_BLOCK)
/* Length of the frames that the generator gets: longer than any request. */
#define FRAME_ROOM    (FRAME_BLOCKS * FRAME_BLOCK + 2)
#define FRAME_OPS_MAX 8 /* of a request: as many SETs with values of 128 bytes fit a datagram */
/* The number of results of a SCAN that fit a datagram. */
#define FRAME_RESULTS(value_size)                                                                  \
	((XKV_PAYLOAD_MAX4 - sizeof(struct xkv_hdr)) /                                             \
	 (sizeof(struct xkv_result) + XKV_PADDED(value_size)))
#define FRAME_RESULTS_MAX FRAME_RESULTS(FRAME_VALUE_MIN)
#define FRAME_HIT_BYTES	  (FRAME_REPLY_VALUE + FRAME_VALUE_SIZE)
#define FRAME_SHORT_BYTES (FRAME_OP + 24) /* a reply without a value */

/* The digits of a table entry are ASCII; the top bit of the first one, else 0, means a SET. */
#define FRAME_SET_BIT 0x80ULL

/* Entries of the generator's table of keys; a power of two. */
#define FRAME_TABLE_SIZE (1U << 22)

#define FRAME_CPUS 256

#define FRAME_U8(data, off)  (*(__u8 *)((data) + (off)))
#define FRAME_U16(data, off) (*(__u16 *)((data) + (off)))
#define FRAME_U32(data, off) (*(__u32 *)((data) + (off)))
#define FRAME_U64(data, off) (*(__u64 *)((data) + (off)))

/* The counters of the sink, per CPU, in operations. */
enum sink_count {
	SINK_HIT,   /* a GET with the right value, or a SET or DELETE with XKV_OK */
	SINK_MISS,  /* XKV_MISS */
	SINK_OTHER, /* any other status, or a hit in a reply with fewer hits than keys */
	SINK_ECHO,  /* the request itself: sent back by the echo server */
	SINK_WRONG, /* the value of another key, or a wrong UDP checksum */
	SINK_COUNTS,
};

/*
 * Alignment of per-CPU data: two cache lines, as the prefetcher fetches pairs of lines, so that
 * CPUs do not write lines that others use.
 */
#define FRAME_LINE __attribute__((aligned(128)))

struct sink_line {
	__u64 count[SINK_COUNTS];
} FRAME_LINE;

struct generator_line {
	__u64 position; /* in the table of keys */
} FRAME_LINE;

/* A request with zeros in place of digits, and the positions of the digits. */
struct generator_template {
	__u64 sum;   /* of the constant part, for the UDP checksum */
	__u32 bytes; /* length of the frame, including padding */
	__u32 ops;
	__u32 op_bytes; /* offset from an operation to the next */
	__u32 value;	/* SET: offset from the digits of the key to those of the value; GET: 0 */
	__u64 frame[FRAME_BLOCKS][FRAME_BLOCK / 8];
};

#endif

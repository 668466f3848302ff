/* SPDX-License-Identifier: BSD-2-Clause */
/* Replies of xkv's UDP protocol, read step by step: for protocol_xkv.c and its test. */
#ifndef BENCH_PROTOCOL_XKV_H
#define BENCH_PROTOCOL_XKV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A reply while it is read. */
struct xkv_reply {
	const uint8_t *at, *end;
	uint64_t id;
	unsigned int count;  /* results that are still to come */
	unsigned int status; /* of the header */
};

/* Reads the header of a datagram.  False if it is not a reply of this protocol. */
bool xkv_reply_open(struct xkv_reply *r, const uint8_t *buf, size_t len);

struct xkv_answer {
	unsigned int opcode, status;
	uint32_t number; /* value_len; with XKV_PAD the bytes to pad to */
	const uint8_t *value;
	uint32_t value_len; /* bytes that are there */
};

/* Reads the next result; call it r->count times.  False if it is cut off. */
bool xkv_reply_next(struct xkv_reply *r, struct xkv_answer *out);

#endif

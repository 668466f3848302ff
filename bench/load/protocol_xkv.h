/* SPDX-License-Identifier: BSD-2-Clause */
/* Parser of replies of xkv's UDP protocol, for protocol_xkv.c and its test.  Thread safe. */
#ifndef BENCH_PROTOCOL_XKV_H
#define BENCH_PROTOCOL_XKV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The position in a reply; points into the caller's buffer. */
struct xkv_reply {
	const uint8_t *at, *end;
	uint64_t id;
	unsigned int count;  /* results that were not read yet */
	unsigned int status; /* of the header */
};

/* Reads the header of a datagram.  False if it is not a reply of this protocol. */
bool xkv_reply_open(struct xkv_reply *r, const uint8_t *buf, size_t len);

struct xkv_answer {
	unsigned int opcode, status;
	uint32_t number; /* value_len; with XKV_PAD the bytes to pad to */
	const uint8_t *value;
	uint32_t value_len; /* bytes of `value` */
};

/* Reads the next result; to be called r->count times.  False if it is truncated. */
bool xkv_reply_next(struct xkv_reply *r, struct xkv_answer *out);

#endif

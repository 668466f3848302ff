/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Requests and replies of xkv's UDP protocol as the load generator needs them,
 * and the keys and values that it uses.
 *
 * Key number n is "key:" and n in decimal with leading zeros to 16 bytes (or to
 * the key size, if that is less), then '-' up to the key size.  Both sizes belong
 * to the number.  A value of 32 bytes or more is made from the key and a nonce
 * that is new for each SET:
 *
 *     first 16 bytes of the key (or all) | nonce, 8 | words from the nonce ... | sum of key and nonce, 8
 *
 * so a value that was torn, cut, mixed with another or stored under another key
 * does not check.  Shorter ones depend on the key alone.
 */
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"

#define WIRE_MAX 2048 /* bytes; room for any datagram of the protocol and then some */
#define WIRE_OPS_MAX 60

struct wire_op {
	uint32_t key;
	bool set;
};

/*
 * Encodes `n` operations into `buf` (WIRE_MAX bytes) and pads the datagram with
 * zeros to at least `pad` bytes.  Returns its length.
 */
size_t wire_request(const struct options *o, uint8_t *buf, uint64_t id, const struct wire_op *op,
		    unsigned int n, uint64_t nonce, unsigned int pad);

/*
 * Encodes the SET of a key as a Redis command into `buf` (WIRE_MAX bytes); the same key
 * always gets the same value.  Returns its length.
 */
size_t wire_resp_set(const struct options *o, uint8_t *buf, uint32_t key);

/* Bytes of a key, and of its value: at most what a SET's datagram over IPv4 has room for. */
unsigned int wire_key_size(const struct options *o, uint32_t key);
unsigned int wire_value_size(const struct options *o, uint32_t key);

/* Encodes a PING.  Returns its length. */
size_t wire_ping(const struct options *o, uint8_t *buf, uint64_t id);

/* A reply while it is read. */
struct wire_reply {
	const uint8_t *at, *end;
	uint64_t id;
	unsigned int count;  /* results that are still to come */
	unsigned int status; /* of the header */
};

/* Reads the header of a datagram.  False if it is not a reply of this protocol. */
bool wire_reply_open(struct wire_reply *r, const uint8_t *buf, size_t len);

struct wire_result {
	unsigned int opcode, status;
	uint32_t number; /* value_len; with XKV_PAD the bytes to pad to */
	const uint8_t *value;
	uint32_t value_len; /* bytes that are there */
};

/* Reads the next result; call it r->count times.  False if it is cut off. */
bool wire_reply_next(struct wire_reply *r, struct wire_result *out);

/* Whether `value` is one that a SET of this key may have stored. */
bool wire_value_ok(const struct options *o, uint32_t key, const uint8_t *value, uint32_t len);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The keys and values of the load generator, the same for all protocols.
 *
 * Key number n is "key:" and the number (n + --first-key) in decimal, with leading zeros up to 16
 * bytes (or the key size, if that is less), then '-' up to the key size.  The number determines the
 * sizes of key and value.  A value of 32 bytes or more is made from the key and a nonce that
 * differs for each SET:
 *
 *     first 16 bytes of the key | nonce, 8 bytes | words made from the nonce | checksum, 8 bytes
 *
 * The checksum covers key and nonce, so that a value that is torn, truncated, mixed with another or
 * stored under another key is detected.  Shorter values depend on the key only.  Functions are
 * thread safe; sizes are in bytes.
 */
#ifndef BENCH_ENTRY_H
#define BENCH_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "options.h"

#define ENTRY_DIGITS_MAX 12 /* of a key number */

/* Size of a key, and of its value, limited to what a SET's datagram over IPv4 can hold. */
unsigned int entry_key_size(const struct options *o, uint32_t key);
unsigned int entry_value_size(const struct options *o, uint32_t key);

/* Write a key, or a value of it, without padding.  Return the number of bytes. */
unsigned int entry_write_key(const struct options *o, uint8_t *to, uint32_t key);
unsigned int entry_write_value(const struct options *o, uint8_t *to, uint32_t key, uint64_t nonce);

/* Are these bytes the key with this number? */
bool entry_key_is(const struct options *o, uint32_t key, const uint8_t *bytes, uint32_t len);

/* Is `value` one that a SET of this key may have stored? */
bool entry_value_ok(const struct options *o, uint32_t key, const uint8_t *value, uint32_t len);

/* The number of different keys, if the smallest has `key_size` bytes. */
uint64_t entry_names(unsigned int key_size);

#endif

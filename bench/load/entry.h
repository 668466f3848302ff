/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The keys and values that the load generator uses, whatever the protocol.
 *
 * Key number n is "key:" and n, counted from --first-key, in decimal with leading zeros
 * to 16 bytes (or to the key size, if that is less), then '-' up to the key size.  Both
 * sizes belong to the number.  A value of 32 bytes or more is made from the key and a nonce
 * that is new for each SET:
 *
 *     first 16 bytes of the key (or all) | nonce, 8 | words from the nonce ... | sum of key and
 * nonce, 8
 *
 * so a value that was torn, cut, mixed with another or stored under another key
 * does not check.  Shorter ones depend on the key alone.
 */
#ifndef BENCH_ENTRY_H
#define BENCH_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "options.h"

#define ENTRY_DIGITS_MAX 12 /* of a key number: its first 16 bytes end there */

/* Bytes of a key, and of its value: at most what a SET's datagram over IPv4 has room for. */
unsigned int entry_key_size(const struct options *o, uint32_t key);
unsigned int entry_value_size(const struct options *o, uint32_t key);

/* Write a key, or a value of it, without padding.  Return the bytes written. */
unsigned int entry_write_key(const struct options *o, uint8_t *to, uint32_t key);
unsigned int entry_write_value(const struct options *o, uint8_t *to, uint32_t key, uint64_t nonce);

/* Whether these bytes are the key of this number. */
bool entry_key_is(const struct options *o, uint32_t key, const uint8_t *bytes, uint32_t len);

/* Whether `value` is one that a SET of this key may have stored. */
bool entry_value_ok(const struct options *o, uint32_t key, const uint8_t *value, uint32_t len);

/* How many keys have a name, if the smallest has `key_size` bytes. */
uint64_t entry_names(unsigned int key_size);

#endif

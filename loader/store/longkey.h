/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Long keys: those that do not fit an entry.  bpf/layout.h describes their stored form; these
 * functions make and read it.
 *
 * All functions are thread safe, as long as each context is used by one thread.
 */
#ifndef XKV_STORE_LONGKEY_H
#define XKV_STORE_LONGKEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/layout.h"
#include "store.h"

/* The stored form of a long key, padded with zeros. */
struct stored_key {
	uint64_t word[XKV_HASH_WORDS];
};
struct stored_key long_key(const void *key, size_t key_len);

/* Writes the head of a long key to `at`.  Returns where the value begins. */
void *long_head_put(void *at, const void *key, size_t key_len);

/*
 * The length of the long key whose entry has this value of `value_len` bytes, to `key_len`.  False
 * if it has no head, so no xkvd has written it.
 */
bool long_head_get(const void *value, size_t value_len, size_t *key_len);

/* Puts a long key together from its stored form and the value: key_len bytes to `key`. */
void long_key_get(void *key, size_t key_len, const void *stored, const void *value);

/* Executes an operation on a stored key: arguments and result are those of store_do(). */
typedef int long_entry_fn(struct store_ctx *ctx, const struct store_op *op,
			  struct store_entry *out);

/* store_do() for a long key, on the store itself, by means of `entry`. */
int long_do(struct store_ctx *ctx, const struct store_op *op, long_entry_fn *entry,
	    struct store_entry *out);

#endif

// SPDX-License-Identifier: BSD-2-Clause
#include "longkey.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/sha.h>

#include "impl.h"
#include "util/text.h"

/* ---- the stored form ------------------------------------------------------- */

struct stored_key long_key(const void *key, size_t key_len)
{
	struct stored_key stored = { 0 };
	unsigned char *at = (unsigned char *)stored.word;

	if (key_len)
		memcpy(at, key, key_len < XKV_LONG_BEGIN ? key_len : XKV_LONG_BEGIN);
	SHA256(key, key_len, at + XKV_LONG_BEGIN);
	return stored;
}

void *long_head_put(void *at, const void *key, size_t key_len)
{
	struct xkv_long_head *head = at;

	head->key_len = htole32((uint32_t)key_len);
	if (key_len > XKV_LONG_BEGIN)
		memcpy(head->rest, (const char *)key + XKV_LONG_BEGIN, key_len - XKV_LONG_BEGIN);
	return (char *)at + xkv_long_head_bytes(key_len);
}

bool long_head_get(const void *value, size_t value_len, size_t *key_len)
{
	const struct xkv_long_head *head = value;

	if (value_len < sizeof(*head))
		return false;
	*key_len = le32toh(head->key_len);
	return *key_len <= XKV_LONG_KEY_MAX && xkv_is_long(*key_len) &&
	       xkv_long_head_bytes(*key_len) <= value_len;
}

void long_key_get(void *key, size_t key_len, const void *stored, const void *value)
{
	const struct xkv_long_head *head = value;
	size_t begin = key_len < XKV_LONG_BEGIN ? key_len : XKV_LONG_BEGIN;

	memcpy(key, stored, begin);
	memcpy((char *)key + begin, head->rest, key_len - begin);
}

/* ---- operations ------------------------------------------------------------ */

/* What an operation on a long key is about. */
struct long_op {
	struct store_ctx *ctx;
	long_entry_fn *entry;
	const struct store_op *op;
	struct stored_key key;
	size_t head;
};

/* Executes an operation with the stored key, and takes the head from the value that it reads. */
static int longkey_run(const struct long_op *l, struct store_op op, struct store_entry *out)
{
	int ret;

	op.key = l->key.word;
	op.key_len = XKV_KEY_LONG;
	op.head = l->head;
	ret = l->entry(l->ctx, &op, out);
	if (!out->value)
		return ret;
	if ((op.part ? (size_t)out->number : out->value_len) < l->head)
		return -EIO;
	if (op.part) {
		out->number -= (int64_t)l->head;
		return ret;
	}
	out->value = (const char *)out->value + l->head;
	out->value_len -= l->head;
	return ret;
}

/* SET of a value that consists of two parts. */
static int set(const struct long_op *l, struct store_op op, const void *first, size_t first_len,
	       const void *second, size_t second_len, struct store_entry *out)
{
	size_t len = l->head + first_len + second_len;
	char *whole, *at;
	int ret;

	if (first_len + second_len > (second ? l->ctx->st->append_most : XKV_HUGE_MAX))
		return -EMSGSIZE;
	whole = malloc(len);
	if (!whole)
		return -ENOMEM;
	at = long_head_put(whole, l->op->key, l->op->key_len);
	if (first_len)
		memcpy(at, first, first_len);
	if (second_len)
		memcpy(at + first_len, second, second_len);
	op.value = whole;
	op.value_len = len;
	ret = longkey_run(l, op, out);
	free(whole);
	return ret;
}

/* Writes what INCR or APPEND makes of `old` if that is still the entry. */
static int replace(const struct long_op *l, const struct store_entry *old, bool exists,
		   struct store_entry *out)
{
	const struct store_op *op = l->op;
	size_t had = exists ? old->value_len : 0;
	struct store_op change = {
		.opcode = XKV_OP_SET,
		.flags = exists ? XKV_CAS | XKV_KEEPTTL : XKV_NX,
		.version = exists ? old->version : 0,
		.cause = op->cause ? op->cause : op->opcode,
	};
	char text[TEXT_NUMBER_MAX];
	int64_t number = (int64_t)(had + op->value_len);
	int ret;

	if (op->opcode == XKV_OP_APPEND) {
		ret = set(l, change, old->value, had, op->value, op->value_len, out);
	} else {
		ret = text_add_i64(exists ? old->value : NULL, had, op->amount, &number);
		ret = ret ?: set(l, change, text, text_from_i64(text, number), NULL, 0, out);
	}
	out->number = number;
	return ret;
}

/* INCR and APPEND, which the engine cannot do behind a head: read, and replaced. */
static int change(const struct long_op *l, struct store_entry *out)
{
	const struct store_op *op = l->op, get = { .opcode = XKV_OP_GET };
	struct store_entry old;
	bool exists;
	int ret;

	for (unsigned int i = 0; i < l->ctx->st->busy_tries; i++) {
		l->ctx->for_change = true;
		ret = longkey_run(l, get, &old);
		l->ctx->for_change = false;
		if (ret && ret != -ENOENT)
			return ret;
		exists = !ret;
		ret = condition_error(op, exists, exists ? old.version : 0);
		if (ret && exists)
			*out = (struct store_entry){ .expire_ms = old.expire_ms,
						     .version = old.version };
		if (ret)
			return ret;
		ret = replace(l, &old, exists, out);
		if (ret != -ECANCELED && ret != -ENOENT)
			return ret;
	}
	return -EBUSY;
}

int long_do(struct store_ctx *ctx, const struct store_op *op, long_entry_fn *entry,
	    struct store_entry *out)
{
	const struct long_op l = { .ctx = ctx,
				   .entry = entry,
				   .op = op,
				   .key = long_key(op->key, op->key_len),
				   .head = xkv_long_head_bytes(op->key_len) };

	switch (op->opcode) {
	case XKV_OP_SET:
		return set(&l, *op, op->value, op->value_len, NULL, 0, out);
	case XKV_OP_INCR:
	case XKV_OP_APPEND:
		return change(&l, out);
	default:
		return longkey_run(&l, *op, out);
	}
}

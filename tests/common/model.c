// SPDX-License-Identifier: BSD-2-Clause
/* The reference model of the store: see model.h. */
#include "model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/layout.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "fixture.h"

#define CHAIN_KEYS ((XKV_CHAIN_MAX + 1) * XKV_WAYS)
#define SLACK_MS   5000 /* how exactly a far time is compared */
#define VERSIONS   (1U << 20)

struct key keys[KEYS];
static uint64_t versions[VERSIONS]; /* a hash table of all that were seen */

/* A version that was just given must be even and new. */
static void fresh_version(uint64_t v)
{
	uint64_t at = v * 0x9e3779b97f4a7c15ULL >> 44;

	assert_true(v && !(v & 1));
	for (; versions[at % VERSIONS]; at++)
		assert_int_not_equal(versions[at % VERSIONS], v);
	versions[at % VERSIONS] = v;
}

static unsigned int keys_in(const struct xkv_bucket *bucket)
{
	unsigned int n = 0;

	for (int i = 0; i < KEYS; i++)
		n += keys[i].there && keys[i].bucket == bucket;
	return n;
}

/* The value that the model has from now on; the one before stays readable until the next. */
static void set_value(struct key *k, size_t keep, const void *value, size_t len)
{
	uint8_t *new = malloc(keep + len + 1);

	assert_non_null(new);
	if (keep)
		memcpy(new, k->value, keep);
	if (len)
		memcpy(new + keep, value, len);
	free(k->old);
	k->old = k->value;
	k->value = new;
	k->value_len = keep + len;
}

bool alive(const struct key *k)
{
	return k->there && (!k->expire_ms || k->expire_ms > store_now_ms(bed.st));
}

static uint64_t left_of(uint64_t expire_ms)
{
	uint64_t now = store_now_ms(bed.st);

	return expire_ms > now ? expire_ms - now : 0;
}

uint64_t expiry_asked(const struct operation *op)
{
	if (!op->ttl || (op->flags & XKV_ABSTTL))
		return op->ttl;
	return store_now_ms(bed.st) + op->ttl;
}

static void give_value(struct forecast *f, const struct key *k)
{
	f->r.value = k->value;
	f->r.value_len = k->value_len;
}

static void model_get(const struct key *k, const struct operation *op, size_t room,
		      struct forecast *f)
{
	bool value = op->opcode != XKV_OP_TTL && op->opcode != XKV_OP_TOUCH;

	if (!alive(k)) {
		f->end = MISSED;
		f->r.status = XKV_MISS;
		return;
	}
	f->r.version = k->version;
	if (value && 24 + XKV_PADDED(k->value_len) > room) {
		f->end = NO_FIT;
		f->r.status = XKV_TOO_LARGE;
		f->r.value_len = k->value_len;
		return;
	}
	if (value)
		give_value(f, k);
	f->expire_ms = k->expire_ms;
}

uint8_t condition(const struct key *k, const struct operation *op, bool exists)
{
	if (op->flags & XKV_CAS)
		return !exists ? XKV_MISS : k->version == op->version ? XKV_OK : XKV_NOT_STORED;
	if (((op->flags & XKV_NX) && exists) || ((op->flags & XKV_XX) && !exists))
		return XKV_NOT_STORED;
	return XKV_OK;
}

/* The number that a value is, in the form that Redis' string2ll() takes. */
static bool parse_number(const uint8_t *value, size_t len, __int128 *n)
{
	size_t digits = len - (len && value[0] == '-');
	const uint8_t *at = value + len - digits;

	if (!len || len > 20 || !digits || (at[0] == '0' && len > 1))
		return false;
	*n = 0;
	for (size_t i = 0; i < digits; i++) {
		if (at[i] < '0' || at[i] > '9')
			return false;
		*n = *n * 10 + (at[i] - '0');
	}
	if (at > value)
		*n = -*n;
	return *n >= INT64_MIN && *n <= INT64_MAX;
}

/* The new value.  False: it cannot be, for the reason in the result. */
static bool model_value(struct key *k, const struct operation *op, bool exists, struct forecast *f)
{
	size_t keep = exists && op->opcode == XKV_OP_APPEND ? k->value_len : 0;
	__int128 n = 0;
	char text[32];

	if (op->opcode != XKV_OP_INCR) {
		if (keep + op->value_len > XKV_VALUE_MAX) {
			f->r.status = XKV_TOO_LARGE;
			f->r.value_len = keep + op->value_len;
			return false;
		}
		set_value(k, keep, op->value, op->value_len);
		put_be(f->number, 8, k->value_len);
		return true;
	}
	if (exists && !parse_number(k->value, k->value_len, &n))
		f->r.status = XKV_NOT_NUMBER;
	n += (int64_t)get_be(op->value, 8);
	if (f->r.status == XKV_OK && (n < INT64_MIN || n > INT64_MAX))
		f->r.status = XKV_OVERFLOW;
	if (f->r.status != XKV_OK)
		return false;
	put_be(f->number, 8, (uint64_t)n);
	set_value(k, 0, text, (size_t)snprintf(text, sizeof(text), "%ld", (long)n));
	return true;
}

static void model_store(struct key *k, const struct operation *op, struct forecast *f)
{
	bool exists = alive(k), keep = op->opcode != XKV_OP_SET || (op->flags & XKV_KEEPTTL);

	if (!model_value(k, op, exists, f)) {
		f->r.version = f->expire_ms = 0;
		return;
	}
	k->expire_ms = keep && exists ? k->expire_ms : keep ? 0 : expiry_asked(op);
	k->there = true;
	f->expire_ms = k->expire_ms;
	f->changes_version = true;
	if (op->opcode != XKV_OP_SET) {
		f->r.value = f->number;
		f->r.value_len = 8;
	}
}

static void model_insert(struct key *k, const struct operation *op, struct forecast *f)
{
	f->r.status = condition(k, op, false);
	if (f->r.status != XKV_OK)
		return;
	if (keys_in(k->bucket) == CHAIN_KEYS) {
		f->end = FULL;
		f->r.status = XKV_NO_MEMORY;
		return;
	}
	model_store(k, op, f);
}

static void model_write(struct key *k, const struct operation *op, size_t room, struct forecast *f)
{
	bool exists = alive(k);

	if (op->opcode != XKV_OP_SET && room < 24 + 8) {
		f->end = NO_FIT;
		return;
	}
	if (!k->there) {
		model_insert(k, op, f);
		return;
	}
	if ((op->flags & XKV_RETURN) && exists) {
		model_get(k, op, room, f);
		if (f->end == NO_FIT)
			return;
	}
	f->r.status = condition(k, op, exists);
	f->expire_ms = exists ? k->expire_ms : 0;
	f->r.version = exists ? k->version : 0;
	if (f->r.status == XKV_OK)
		model_store(k, op, f);
}

/* May a DELETE or EXPIRE go on? */
static bool model_change(const struct key *k, const struct operation *op, struct forecast *f)
{
	f->r.status = condition(k, op, alive(k));
	if (!alive(k))
		f->r.status = XKV_MISS;
	if (f->r.status == XKV_NOT_STORED) {
		f->r.version = k->version;
		f->expire_ms = k->expire_ms;
	}
	return f->r.status == XKV_OK;
}

static void model_delete(struct key *k, const struct operation *op, size_t room, struct forecast *f)
{
	if (!model_change(k, op, f))
		return;
	if (op->flags & XKV_RETURN) {
		model_get(k, op, room, f);
		if (f->end == NO_FIT)
			return;
	}
	f->r.version = 0;
	f->expire_ms = 0;
	k->there = false;
}

static void model_expire(struct key *k, const struct operation *op, struct forecast *f)
{
	if (!model_change(k, op, f))
		return;
	k->expire_ms = f->expire_ms = expiry_asked(op);
	f->changes_version = true;
}

void model_run(struct key *k, const struct operation *op, size_t room, struct forecast *f)
{
	*f = (struct forecast){ .end = DONE, .r = { .opcode = op->opcode } };
	switch (op->opcode) {
	case XKV_OP_GET:
	case XKV_OP_TTL:
	case XKV_OP_TOUCH:
		model_get(k, op, room, f);
		break;
	case XKV_OP_SET:
	case XKV_OP_INCR:
	case XKV_OP_APPEND:
		model_write(k, op, room, f);
		break;
	case XKV_OP_DELETE:
		model_delete(k, op, room, f);
		break;
	case XKV_OP_EXPIRE:
		model_expire(k, op, f);
		break;
	}
}

static bool near_to(uint64_t a, uint64_t b)
{
	return a > b ? a - b < SLACK_MS : b - a < SLACK_MS;
}

void note_version(struct key *k, const struct forecast *f, uint64_t version)
{
	if (!f->changes_version) {
		assert_int_equal(version, f->r.version);
		return;
	}
	fresh_version(version);
	k->version = version;
}

size_t check_result(struct key *k, uint8_t flags, const struct forecast *f, const uint8_t *p,
		    size_t at)
{
	bool has = p[at + 2] & XKV_HAS_VALUE;
	uint64_t ttl = RESULT_TTL(p, at), left = left_of(f->expire_ms);

	assert_int_equal(p[at], f->r.opcode);
	if (p[at + 1] != f->r.status)
		print_error("opcode %u, flags %02x: status %u, expected %u\n", p[at], flags,
			    p[at + 1], f->r.status);
	assert_int_equal(p[at + 1], f->r.status);
	assert_int_equal(has, f->r.value != NULL);
	assert_int_equal(RESULT_VALUE_LEN(p, at), f->r.value_len);
	if (has)
		assert_memory_equal(p + at + 24, f->r.value, f->r.value_len);
	assert_true(near_to(ttl, left) && !ttl == !left);
	note_version(k, f, RESULT_VERSION(p, at));
	return at + 24 + (has ? XKV_PADDED(f->r.value_len) : 0);
}

void check_entry(const struct key *k)
{
	struct store_entry e;
	int ret = store_get(bed.ctx, k->byte, k->len, &e);

	assert_int_equal(ret, alive(k) ? 0 : -ENOENT);
	if (ret)
		return;
	assert_int_equal(e.value_len, k->value_len);
	assert_memory_equal(e.value, k->value, k->value_len);
	assert_true(k->expire_ms ? near_to(e.expire_ms, k->expire_ms) : !e.expire_ms);
	assert_int_equal(e.version, k->version);
}

void model_reset(void)
{
	for (int i = 0; i < KEYS; i++) {
		free(keys[i].value);
		free(keys[i].old);
	}
	memset(keys, 0, sizeof(keys));
	memset(versions, 0, sizeof(versions));
}

// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 4 */
/*
 * Long keys: each is a key of its own, whatever others begin like it; what walks, listeners and
 * clean-up see of them; and that UDP cannot reach one.  That operations on them mean the same as on
 * short ones, test_overlay.c shows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/store/feed.h"
#include "loader/store/impl.h"
#include "loader/store/longkey.h"
#include "loader/store/store.h"
#include "loader/store/txn.h"
#include "ask.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

/* A key is so many bytes of this, the last of them another one. */
static char text[XKV_LONG_KEY_MAX + 1];

static const void *key_of(size_t len, char last)
{
	static char keys[4][XKV_LONG_KEY_MAX + 1];
	static unsigned int next;
	char *key = keys[next++ % 4];

	memcpy(key, text, sizeof(text));
	if (len)
		key[len - 1] = last;
	return key;
}

/* The lengths at which something changes, and the least long ones. */
static const size_t lengths[] = { 0,   251, 252, 253, 254, 255,	 256,
				  257, 300, 511, 512, 513, 4096, XKV_LONG_KEY_MAX };
#define LENGTHS (sizeof(lengths) / sizeof(lengths[0]))

static void is_missing(const void *key, size_t len)
{
	struct store_entry e;

	assert_int_equal(store_get(bed.ctx, key, len, &e), -ENOENT);
}

/* ---- one by one ------------------------------------------------------------ */

static void test_lengths(void **state)
{
	char value[16];

	for (size_t i = 0; i < LENGTHS; i++) {
		snprintf(value, sizeof(value), "%zu", lengths[i]);
		put_bytes(key_of(lengths[i], 'a'), lengths[i], value, strlen(value), 0);
	}
	for (size_t i = 0; i < LENGTHS; i++) {
		snprintf(value, sizeof(value), "%zu", lengths[i]);
		holds_bytes(key_of(lengths[i], 'a'), lengths[i], value, strlen(value));
		if (lengths[i])
			is_missing(key_of(lengths[i], 'b'), lengths[i]);
	}
	assert_int_equal(store_count(bed.st), LENGTHS);
}

static void test_too_long(void **state)
{
	struct store_entry e;
	size_t len = XKV_LONG_KEY_MAX + 1;

	assert_int_equal(store_get(bed.ctx, text, len, &e), -EMSGSIZE);
	assert_int_equal(store_set(bed.ctx, text, len, "1", 1, 0, 0, 0, NULL), -EMSGSIZE);
	assert_int_equal(store_txn_begin(bed.ctx), 0);
	assert_int_equal(store_set(bed.ctx, text, len, "1", 1, 0, 0, 0, NULL), -EMSGSIZE);
	assert_int_equal(store_txn_commit(bed.ctx), 0);
}

/* A long key takes nothing away from its value. */
static void largest(size_t key_len, size_t most, bool txn)
{
	static const uint8_t bytes[5 << 20];
	const void *key = key_of(key_len, 'a');
	uint64_t len;

	store_append_limit(bed.st, most);
	if (txn)
		assert_int_equal(store_txn_begin(bed.ctx), 0);
	assert_int_equal(store_set(bed.ctx, key, key_len, bytes, XKV_HUGE_MAX + 1UL, 0, 0, 0, NULL),
			 -EMSGSIZE);
	is_missing(key, key_len);
	assert_int_equal(store_set(bed.ctx, key, key_len, bytes, most, 0, 0, 0, NULL), 0);
	holds_bytes(key, key_len, bytes, most);
	assert_int_equal(store_append(bed.ctx, key, key_len, "1", 1, &len), -EMSGSIZE);
	assert_int_equal(store_append(bed.ctx, key, key_len, "", 0, &len), 0);
	assert_int_equal(len, most);
	if (txn)
		assert_int_equal(store_txn_commit(bed.ctx), 0);
	holds_bytes(key, key_len, bytes, most);
	assert_int_equal(store_delete(bed.ctx, key, key_len, NULL), 0);
}

static void test_largest_values(void **state)
{
	for (int txn = 0; txn < 2; txn++) {
		for (size_t most = XKV_VALUE_MAX; most <= 5 * XKV_VALUE_MAX; most += 4 << 20) {
			largest(0, most, txn);
			largest(251, most, txn);
			largest(XKV_LONG_KEY_MAX, most, txn);
		}
	}
	store_append_limit(bed.st, XKV_HUGE_MAX);
}

/* What INCR and APPEND read, of long keys and of large values, is no read and no use. */
static void test_reads_of_changes(void **state)
{
	uint64_t hits, misses, len;
	int64_t sum;

	put("large", zeros, 100000, 0);
	put_bytes(key_of(300, 'a'), 300, "1", 1, 0);
	hits = store_counter(bed.st, "get_hits");
	misses = store_counter(bed.st, "get_misses");
	for (int i = 0; i < 10; i++) {
		assert_int_equal(store_incr(bed.ctx, key_of(300, 'a'), 300, 1, &sum), 0);
		assert_int_equal(store_append(bed.ctx, key_of(400, 'a'), 400, "1", 1, &len), 0);
		assert_int_equal(store_append(bed.ctx, "large", 5, zeros, 2000, &len), 0);
	}
	assert_int_equal(sum, 11);
	assert_int_equal(len, 120000);
	assert_int_equal(store_counter(bed.st, "get_hits"), hits);
	assert_int_equal(store_counter(bed.st, "get_misses"), misses);
}

/* The stored form of a key is, as bytes, a long key like any other. */
static void test_stored_form_as_a_key(void **state)
{
	const void *key = key_of(300, 'a');
	struct stored_key stored = long_key(key, 300);

	put_bytes(key, 300, "1", 1, 0);
	is_missing(stored.word, XKV_KEY_LONG);
	put_bytes(stored.word, XKV_KEY_LONG, "2", 1, 0);
	holds_bytes(key, 300, "1", 1);
	holds_bytes(stored.word, XKV_KEY_LONG, "2", 1);
}

static void test_databases(void **state)
{
	const void *key = key_of(300, 'a');

	put_bytes(key, 300, "0", 1, 0);
	store_select(bed.ctx, 1);
	is_missing(key, 300);
	put_bytes(key, 300, "1", 1, 0);
	store_select(bed.ctx, 0);
	holds_bytes(key, 300, "0", 1);
	store_select(bed.ctx, 1);
	holds_bytes(key, 300, "1", 1);
	store_select(bed.ctx, 0);
}

static void test_usage(void **state)
{
	struct store_usage usage;

	assert_int_equal(store_usage(bed.ctx, text, 5000, &usage), -ENOENT);
	assert_int_equal(store_usage(bed.ctx, text, XKV_LONG_KEY_MAX + 1, &usage), -EMSGSIZE);
	put_bytes(text, 5000, "1", 1, 0);
	assert_int_equal(store_usage(bed.ctx, text, 5000, &usage), 0);
	assert_in_range(usage.bytes, 5000, 8192);
}

/* Neither front end of UDP takes a key of that length. */
static void test_not_by_udp(void **state)
{
	struct stored_key stored = long_key(key_of(300, 'a'), 300);
	static const uint8_t opcodes[] = { XKV_OP_GET, XKV_OP_SET, XKV_OP_DELETE, XKV_OP_TTL };
	struct reply r;

	put_bytes(key_of(300, 'a'), 300, "1", 1, 0);
	for (enum frontend f = DRIVER; f < FRONTENDS; f++)
		for (size_t i = 0; i < sizeof(opcodes); i++) {
			struct operation op = op_on(opcodes[i], stored.word, XKV_KEY_LONG);

			ask_op(f, &op, &r);
			assert_int_equal(r.result[0].status, XKV_BAD_KEY);
		}
	holds_bytes(key_of(300, 'a'), 300, "1", 1);
}

/* ---- walks ----------------------------------------------------------------- */

/* Which of the lengths a walk has met, as bits, and how many other keys. */
struct met {
	bool values;
	unsigned int lengths, others;
};

static int meet(void *arg, const void *key, size_t key_len, const struct store_entry *e)
{
	struct met *m = arg;

	for (size_t i = 0; i < LENGTHS; i++)
		if (lengths[i] == key_len) {
			assert_memory_equal(key, key_of(key_len, 'a'), key_len);
			assert_int_equal(e->value_len, i * 1000);
			assert_int_equal(!e->value, !m->values);
			if (e->value)
				assert_memory_equal(e->value, zeros, e->value_len);
			assert_false(m->lengths & 1U << i);
			m->lengths |= 1U << i;
			return 0;
		}
	m->others++;
	return 0;
}

static void put_all(uint64_t expire_ms)
{
	for (size_t i = 0; i < LENGTHS; i++)
		put_bytes(key_of(lengths[i], 'a'), lengths[i], zeros, i * 1000, expire_ms);
	put_text("short", "1");
}

static void test_walks(void **state)
{
	put_all(0);
	for (int values = 0; values < 2; values++) {
		struct met m = { .values = values };
		uint64_t cursor = 0;

		do {
			assert_int_equal(store_scan(bed.ctx, &cursor, 10, values, meet, &m), 0);
		} while (cursor);
		assert_int_equal(m.lengths, (1U << LENGTHS) - 1);
		assert_int_equal(m.others, 1);
	}
	assert_int_equal(store_flush(bed.ctx), 0);
	assert_int_equal(store_count(bed.st), 0);
}

static void test_expiry(void **state)
{
	put_all(store_now_ms(bed.st) + 1);
	wait_until(store_now_ms(bed.st) + 1);
	for (size_t i = 0; i < LENGTHS; i++)
		is_missing(key_of(lengths[i], 'a'), lengths[i]);
	assert_int_equal(expire_all(), LENGTHS);
	assert_int_equal(store_count(bed.st), 1);
}

/* ---- the change feed -------------------------------------------------------- */

static struct feed_reader *reader;

static void next_is(enum xkv_change what, size_t len, const char *value, size_t value_len)
{
	struct feed_change got;

	assert_int_equal(feed_next(reader, &got), 1);
	assert_int_equal(got.what, what);
	assert_int_equal(got.key_len, len);
	assert_memory_equal(got.key, key_of(len, 'a'), len);
	assert_int_equal(!got.value, !value);
	if (value)
		assert_memory_equal(got.value, value, value_len);
	assert_int_equal(got.value_len, value ? value_len : 0);
}

/* What happens to an entry, and its records.  The value is large if `len` is. */
static void life(size_t key_len, size_t len, bool values)
{
	const void *key = key_of(key_len, 'a');
	const char *zero = values ? (const char *)zeros : NULL;
	uint64_t later = store_now_ms(bed.st) + 60000;
	struct stored_key stored = long_key(key, key_len);
	uint64_t ref;

	put_bytes(key, key_len, zeros, len, 0);
	next_is(XKV_CHANGE_CREATE, key_len, zero, len);
	put_bytes(key, key_len, zeros, len / 2, 0);
	next_is(XKV_CHANGE_OVERWRITE, key_len, zero, len / 2);
	assert_int_equal(store_expire(bed.ctx, key, key_len, later), 0);
	assert_int_equal(store_delete(bed.ctx, key, key_len, NULL), 0);
	put_bytes(key, key_len, zeros, len, 0); /* perhaps where it was before */
	next_is(XKV_CHANGE_EXPIRY, key_len, NULL, 0);
	next_is(XKV_CHANGE_DELETE, key_len, NULL, 0);
	next_is(XKV_CHANGE_CREATE, key_len, zero, len);
	ref = bed_ref(&bed, bed_slot(&bed, stored.word, XKV_KEY_LONG));
	assert_true(evict_entry(bed.ctx, ref));
	next_is(XKV_CHANGE_EVICT, key_len, NULL, 0);
	put_bytes(key, key_len, zeros, len, store_now_ms(bed.st) + 1);
	wait_until(store_now_ms(bed.st) + 1);
	assert_int_equal(expire_all(), 1);
	next_is(XKV_CHANGE_CREATE, key_len, zero, len);
	next_is(XKV_CHANGE_EXPIRE, key_len, NULL, 0);
}

/* A transaction changes three keys, of which the last is deleted. */
static void together(size_t len)
{
	put_bytes(key_of(300, 'a'), 300, zeros, len, 0);
	next_is(XKV_CHANGE_CREATE, 300, NULL, len);
	assert_int_equal(store_txn_begin(bed.ctx), 0);
	put_bytes(key_of(400, 'a'), 400, zeros, len, 0);
	put_bytes("short", 5, zeros, len, 0);
	assert_int_equal(store_delete(bed.ctx, key_of(300, 'a'), 300, NULL), 0);
	assert_int_equal(store_txn_commit(bed.ctx), 0);
	for (int left = 3; left; left--) {
		struct feed_change got;

		assert_int_equal(feed_next(reader, &got), 1);
		assert_int_equal(got.more, left > 1);
		assert_int_equal(got.what,
				 got.key_len == 300 ? XKV_CHANGE_DELETE : XKV_CHANGE_CREATE);
		if (got.key_len != 5)
			assert_memory_equal(got.key, key_of(got.key_len, 'a'), got.key_len);
	}
	assert_int_equal(store_flush(bed.ctx), 0);
	while (feed_next(reader, &(struct feed_change){ 0 }))
		;
}

static void test_feed(void **state)
{
	bool resumed;

	for (int values = 1; values >= 0; values--) {
		assert_int_equal(feed_open(bed.st, "test", &reader, &resumed), 0);
		if (!values)
			feed_keys_only(reader);
		for (size_t i = 0; i < LENGTHS; i++) {
			life(lengths[i], 10, values);
			life(lengths[i], 100000, values);
		}
		if (!values) {
			together(10);
			together(100000);
		}
		feed_close(reader);
	}
}

/* What a transaction has done is told with the key that it named. */
static void on_commit(void *arg, const struct feed_change *changes, unsigned int count,
		      bool recorded)
{
	unsigned int *told = arg;

	for (unsigned int i = 0; i < count; i++) {
		assert_int_equal(changes[i].key_len, 300);
		assert_memory_equal(changes[i].key, key_of(300, 'a'), 300);
	}
	*told += count;
}

static void test_told_at_commit(void **state)
{
	unsigned int told = 0;
	bool resumed;

	assert_int_equal(feed_open(bed.st, "test", &reader, &resumed), 0);
	feed_on_commit(bed.st, on_commit, &told);
	assert_int_equal(store_txn_begin(bed.ctx), 0);
	put_bytes(key_of(300, 'a'), 300, "1", 1, 0);
	assert_int_equal(store_delete(bed.ctx, key_of(300, 'a'), 300, NULL), 0);
	assert_int_equal(store_txn_commit(bed.ctx), 0);
	assert_int_equal(told, 2);
	feed_on_commit(bed.st, NULL, NULL);
	feed_close(reader);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		CASE(test_lengths),
		CASE(test_too_long),
		CASE(test_largest_values),
		CASE(test_reads_of_changes),
		CASE(test_stored_form_as_a_key),
		CASE(test_databases),
		CASE(test_usage),
		CASE(test_not_by_udp),
		CASE(test_walks),
		CASE(test_expiry),
		CASE(test_feed),
		CASE(test_told_at_commit),
	};

	memset(text, 'k', sizeof(text));
	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("long keys", tests, ask_begin, close_bed);
}

// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 6 */
/*
 * One operation at a time: what it replies, what it leaves in the store, and where it is passed on
 * to xkvd.
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
#include <unistd.h>

#include "bpf/layout.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "exchange.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

/* Results and operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

/* ---- GET and SET --------------------------------------------------------- */

/* Every length of value that fits, in through one front end and out through both. */
static void test_value_lengths(void **state)
{
	size_t room = XKV_PAYLOAD_MAX4 - 16 - 24 - 8, last = 0;
	struct payload req;
	bool moved;

	for (size_t len = 0; len <= room; len++) {
		req = REQUEST(XKV_OP_SET, KEY("k"), .value = pattern(0) + len % 7,
			      .value_len = len);
		moved = class_of(len) != class_of(last);
		answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
			COUNTS(!len    ? XKV_C_inserts
			       : moved ? XKV_C_moves
				       : XKV_C_overwrites));
		last = len;
		holds("k", pattern(0) + len % 7, len);
		shape &= ~1U; /* IPv4: the larger of the two */
		req = REQUEST(XKV_OP_GET, KEY("k"));
		answers(&req,
			RESULTS({ XKV_OP_GET, 0, pattern(0) + len % 7, len, .version = version }),
			COUNTS(XKV_C_get_hits));
	}
	account();
	for (size_t len = room; len > 0; len = len * 3 / 4) { /* and back */
		req = REQUEST(XKV_OP_SET, KEY("k"), .value = pattern(0), .value_len = len);
		moved = class_of(len) != class_of(last);
		answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
			COUNTS(moved ? XKV_C_moves : XKV_C_overwrites));
		last = len;
		holds("k", pattern(0), len);
	}
}

/* Keys of every length, with every byte, each the beginning of the next. */
static void test_key_lengths(void **state)
{
	static const uint8_t zero[256];
	struct payload req;
	char value[16];

	for (size_t len = 1; len <= XKV_KEY_MAX; len++) {
		snprintf(value, sizeof(value), "%zu", len);
		req = REQUEST(XKV_OP_SET, .key = pattern(0), .key_len = len, VALUE(value));
		answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
		req = REQUEST(XKV_OP_SET, .key = zero, .key_len = len, VALUE(value));
		answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	}
	for (size_t len = 1; len <= XKV_KEY_MAX; len++) {
		snprintf(value, sizeof(value), "%zu", len);
		req = REQUEST(XKV_OP_GET, .key = pattern(0), .key_len = len);
		answers(&req, RESULTS({ XKV_OP_GET, 0, value, strlen(value), .version = ANY }),
			COUNTS(XKV_C_get_hits));
		req = REQUEST(XKV_OP_GET, .key = zero, .key_len = len);
		answers(&req, RESULTS({ XKV_OP_GET, 0, value, strlen(value), .version = ANY }),
			COUNTS(XKV_C_get_hits));
	}
	assert_int_equal(store_count(bed.st), 2 * XKV_KEY_MAX);
}

/* A reply just fits, and with one byte more it does not. */
static void test_reply_limit(void **state)
{
	struct payload req = REQUEST(XKV_OP_GET, KEY("k"));
	struct packet_spec s;

	for (unsigned int v6 = 0; v6 < 2; v6++) {
		size_t most = v6 ? 1408 : 1432;

		s = packet_plain(v6, &req);
		put("k", pattern(0), most, 0);
		spec_answers(&s, 0, RESULTS({ XKV_OP_GET, 0, pattern(0), most, .version = ANY }),
			     COUNTS(XKV_C_get_hits));
		put("k", pattern(0), most + 1, 0);
		passes(&s, XKV_C_pass_too_large);
	}
	for (size_t len = 1433; len < XKV_VALUE_MAX; len *= 3) {
		static uint8_t large[XKV_VALUE_MAX];

		put("k", large, len, 0);
		goes_up(&req, XKV_C_pass_too_large);
		xkvd_answers(&req, XKV_PAYLOAD_MAX4,
			     RESULTS({ XKV_OP_GET, XKV_TOO_LARGE, NULL, len, .version = ANY }),
			     COUNTS(XKV_C_op_too_large));
	}
}

/* The other front end knows no such limit: every length around it comes back whole. */
static void test_around_the_limit(void **state)
{
	struct payload req = REQUEST(XKV_OP_GET, KEY("k"));
	struct store_entry old;

	for (size_t len = 1100; len < 2100; len++) {
		put("k", pattern(0), len, 0);
		holds("k", pattern(0), len);
		assert_int_equal(store_set(bed.ctx, "k", 1, "x", 1, 0, 0, 0, &old), 0);
		assert_int_equal(old.value_len, len);
		assert_memory_equal(old.value, pattern(0), len);
		put("k", pattern(0), len, 0);
		if (len > 1432)
			goes_up(&req, XKV_C_pass_too_large);
		assert_int_equal(store_delete(bed.ctx, "k", 1, &old), 0);
		assert_int_equal(old.value_len, len);
		assert_memory_equal(old.value, pattern(0), len);
	}
}

static void test_misses(void **state)
{
	struct payload req = REQUEST(XKV_OP_GET, KEY("nobody"));

	goes_up(&req, XKV_C_pass_miss);
	xkvd_answers(&req, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_GET, XKV_MISS }),
		     COUNTS(XKV_C_get_misses));
	bed.c->miss_reply = 1;
	answers(&req, RESULTS({ XKV_OP_GET, XKV_MISS }), COUNTS(XKV_C_get_misses));
	answers(&req, RESULTS({ XKV_OP_GET, XKV_MISS }), COUNTS(XKV_C_get_misses));
}

static void test_conditions(void **state)
{
	struct payload req;
	uint64_t v;

	req = REQUEST(XKV_OP_SET, XKV_XX, KEY("a"), VALUE("1"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED }), COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_CAS, KEY("a"), VALUE("1"), .version = 2);
	answers(&req, RESULTS({ XKV_OP_SET, XKV_MISS }), COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_NX, KEY("a"), VALUE("1"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	v = version;
	req = REQUEST(XKV_OP_SET, XKV_NX, KEY("a"), VALUE("2"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED, .version = v }),
		COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_CAS, KEY("a"), VALUE("2"), .version = v + 2);
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED, .version = v }),
		COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_CAS, KEY("a"), VALUE("2")); /* version 0 is no wildcard */
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED, .version = v }),
		COUNTS(XKV_C_not_stored));
	holds_text("a", "1");
	req = REQUEST(XKV_OP_SET, XKV_CAS | XKV_XX, KEY("a"), VALUE("3"), .version = v);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	assert_int_not_equal(v, version);
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED, .version = version }),
		COUNTS(XKV_C_not_stored));
	holds_text("a", "3");
	req = REQUEST(XKV_OP_SET, XKV_XX, KEY("a"), VALUE("4"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	holds_text("a", "4");
}

static void test_delete(void **state)
{
	struct payload req = REQUEST(XKV_OP_DELETE, KEY("a"));
	uint64_t v;

	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	put_text("a", "1");
	answers(&req, RESULTS({ XKV_OP_DELETE }), COUNTS(XKV_C_deletes));
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	put_text("a", "1");
	v = version_of("a");
	req = REQUEST(XKV_OP_DELETE, XKV_CAS, KEY("a"), .version = v + 2);
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_NOT_STORED, .version = v }),
		COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_DELETE, XKV_CAS | XKV_RETURN, KEY("a"), .version = v + 2);
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_NOT_STORED, .version = v }),
		COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_DELETE, XKV_CAS | XKV_RETURN, KEY("a"), .version = v);
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, "1", 1 }), COUNTS(XKV_C_deletes));
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	put("a", "", 0, 0);
	req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("a"));
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, "", 0 }), COUNTS(XKV_C_deletes));
	assert_int_equal(store_count(bed.st), 0);
	assert_int_equal(bed_index_count(&bed), 0);
}

/* RETURN gives the old value of any length; one that does not fit leaves all as it was. */
static void test_return(void **state)
{
	size_t lens[] = { 0, 1, 7, 8, 9, 100, 1407, 1408 };
	struct payload req;

	for (size_t i = 0; i < 8; i++) {
		put("a", pattern(0), lens[i], 0);
		req = REQUEST(XKV_OP_SET, XKV_NX | XKV_RETURN, KEY("a"), VALUE("new"));
		answers(&req,
			RESULTS({ XKV_OP_SET, XKV_NOT_STORED, pattern(0), lens[i],
				  .version = ANY }),
			COUNTS(XKV_C_not_stored));
		req = REQUEST(XKV_OP_SET, XKV_RETURN, KEY("a"), VALUE("new"));
		answers(&req, RESULTS({ XKV_OP_SET, 0, pattern(0), lens[i], .version = ANY }),
			COUNTS(class_of(3) == class_of(lens[i]) ? XKV_C_overwrites : XKV_C_moves));
		holds_text("a", "new");
		put("a", pattern(0), lens[i], 0);
		req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("a"));
		answers(&req, RESULTS({ XKV_OP_DELETE, 0, pattern(0), lens[i] }),
			COUNTS(XKV_C_deletes));
	}
	put("a", pattern(0), 1433, 0);
	version = version_of("a");
	req = REQUEST(XKV_OP_SET, XKV_RETURN, KEY("a"), VALUE("new"));
	goes_up(&req, XKV_C_pass_too_large);
	xkvd_answers(&req, XKV_PAYLOAD_MAX4,
		     RESULTS({ XKV_OP_SET, XKV_TOO_LARGE, NULL, 1433, .version = version }),
		     COUNTS(XKV_C_op_too_large));
	req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("a"));
	goes_up(&req, XKV_C_pass_too_large);
	holds("a", pattern(0), 1433);
	assert_int_equal(version_of("a"), version);
}

/* ---- time ---------------------------------------------------------------- */

static void test_ttl(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, KEY("a"), VALUE("1"), .ttl = 500), req;
	uint64_t begin = store_now_ms(bed.st);

	answers(&set, RESULTS({ XKV_OP_SET, 0, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_inserts, XKV_C_ttls_given));
	assert_in_range(RESULT_TTL(out.frame + packet_payload_at(false, 0), 16), 1, 500);
	req = REQUEST(XKV_OP_GET, KEY("a"));
	for (uint64_t left = 501, now; store_now_ms(bed.st) < begin + 20; left = now) {
		shape = 0;
		answers(&req, RESULTS({ XKV_OP_GET, 0, "1", 1, .ttl = ANY, .version = ANY }),
			COUNTS(XKV_C_get_hits));
		now = RESULT_TTL(out.frame + packet_payload_at(false, 0), 16);
		assert_true(now <= left);
	}
	wait_until(store_now_ms(bed.st) + 500);
	goes_up(&req, XKV_C_pass_miss);
	is_gone("a");
	req = REQUEST(XKV_OP_DELETE, KEY("a"));
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("a"));
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	req = REQUEST(XKV_OP_EXPIRE, KEY("a"), .ttl = 1000);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, XKV_MISS }), COUNTS(XKV_C_op_misses));
}

/* An entry that has expired is none: for NX, XX, CAS, KEEPTTL and RETURN. */
static void test_expired_conditions(void **state)
{
	struct payload req;
	uint64_t v;

	put("a", "1", 1, 1000);
	v = bed_slot(&bed, "a", 1)->seq;
	req = REQUEST(XKV_OP_SET, XKV_XX | XKV_RETURN, KEY("a"), VALUE("2"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED }), COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_CAS, KEY("a"), VALUE("2"), .version = v);
	answers(&req, RESULTS({ XKV_OP_SET, XKV_MISS }), COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_NX | XKV_KEEPTTL | XKV_RETURN, KEY("a"), VALUE("2"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	holds_text("a", "2");
	assert_int_equal(store_count(bed.st), 1);
}

static void test_expire(void **state)
{
	struct payload req, get = REQUEST(XKV_OP_GET, KEY("a"));
	uint64_t v;

	req = REQUEST(XKV_OP_EXPIRE, KEY("a"), .ttl = 1000);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	put_text("a", "1");
	v = version_of("a");
	req = REQUEST(XKV_OP_EXPIRE, KEY("a"), .ttl = 100000);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .ttl = 100000, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	assert_int_not_equal(v, version);
	answers(&get, RESULTS({ XKV_OP_GET, 0, "1", 1, .ttl = ANY, .version = version }),
		COUNTS(XKV_C_get_hits));
	req = REQUEST(XKV_OP_SET, XKV_KEEPTTL, KEY("a"), VALUE("22"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_overwrites, XKV_C_ttls_given));
	req = REQUEST(XKV_OP_SET, XKV_KEEPTTL, KEY("a"), .value = pattern(0), .value_len = 700);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_moves, XKV_C_ttls_given));
	req = REQUEST(XKV_OP_EXPIRE, KEY("a")); /* keep for ever */
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .version = ANY }), COUNTS(XKV_C_expiry_changes));
	answers(&get, RESULTS({ XKV_OP_GET, 0, pattern(0), 700, .version = version }),
		COUNTS(XKV_C_get_hits));
	req = REQUEST(XKV_OP_EXPIRE, XKV_ABSTTL, KEY("a"), .ttl = store_now_ms(bed.st) - 1000);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	goes_up(&get, XKV_C_pass_miss);
	assert_int_equal(store_count(bed.st), 1);
}

/* With CAS it is for one version; another one is named, and stays as it is. */
static void test_expire_cas(void **state)
{
	uint64_t at = store_now_ms(bed.st) + 100000, v;
	struct payload req;

	req = REQUEST(XKV_OP_EXPIRE, XKV_CAS, KEY("a"), .ttl = 1000, .version = 2);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	put("a", "1", 1, at);
	v = version_of("a");
	req = REQUEST(XKV_OP_EXPIRE, XKV_CAS, KEY("a"), .version = v + 2);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, XKV_NOT_STORED, .ttl = ANY, .version = v }),
		COUNTS(XKV_C_not_stored));
	assert_int_equal(bed_slot(&bed, "a", 1)->expire_ms, at);
	req = REQUEST(XKV_OP_EXPIRE, XKV_CAS, KEY("a"), .version = v);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .version = ANY }), COUNTS(XKV_C_expiry_changes));
	assert_true(version_of("a") != v && !bed_slot(&bed, "a", 1)->expire_ms);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, XKV_NOT_STORED, .version = version }),
		COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_EXPIRE, XKV_CAS | XKV_ABSTTL, KEY("a"), .ttl = at,
		      .version = version_of("a"));
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	assert_int_equal(bed_slot(&bed, "a", 1)->expire_ms, at);
	holds_text("a", "1");
	put("a", "1", 1, 1000); /* expired: there is no version of it */
	v = bed_slot(&bed, "a", 1)->seq;
	req = REQUEST(XKV_OP_EXPIRE, XKV_CAS, KEY("a"), .version = v);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, XKV_MISS }), COUNTS(XKV_C_op_misses));
}

/* The longest times, which must not wrap into the past. */
static void test_long_ttl(void **state)
{
	static const uint64_t beyond[] = { XKV_TTL_MAX + 1, 1ULL << 62, INT64_MAX, UINT64_MAX };
	struct payload req = REQUEST(XKV_OP_SET, KEY("a"), VALUE("1"), .ttl = XKV_TTL_MAX);

	answers(&req, RESULTS({ XKV_OP_SET, 0, .ttl = XKV_TTL_MAX, .version = ANY }),
		COUNTS(XKV_C_inserts, XKV_C_ttls_given));
	holds_text("a", "1");
	req = REQUEST(XKV_OP_EXPIRE, KEY("a"), .ttl = XKV_TTL_MAX);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .ttl = XKV_TTL_MAX, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	req = REQUEST(XKV_OP_SET, XKV_ABSTTL, KEY("a"), VALUE("2"), .ttl = XKV_TTL_MAX);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_overwrites, XKV_C_ttls_given));
	holds_text("a", "2");
	for (size_t i = 0; i < 4; i++) {
		req = REQUEST(XKV_OP_SET, XKV_ABSTTL, KEY("a"), VALUE("3"), .ttl = beyond[i]);
		answers(&req, RESULTS({ XKV_OP_SET, XKV_BAD_REQUEST }),
			COUNTS(XKV_C_op_bad_request));
		holds_text("a", "2");
	}
}

static void test_expire_cycle(void **state)
{
	uint64_t before[XKV_COUNTER_COUNT];
	struct payload req = REQUEST(XKV_OP_SET, XKV_ABSTTL, KEY("a"), VALUE("1"), .ttl = 1000);

	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
		COUNTS(XKV_C_inserts, XKV_C_ttls_given));
	put_text("b", "2");
	bed_counters(&bed, before);
	assert_int_equal(expire_all(), 1);
	count_check(before, COUNTS(XKV_C_expires));
	assert_int_equal(store_count(bed.st), 1);
	assert_int_equal(bed_index_count(&bed), 1);
}

/* What has expired and was not yet removed goes with FLUSHALL too. */
static void test_flush(void **state)
{
	put("a", "1", 1, 1000);
	put("b", "2", 1, 0);
	put("c", "3", 1, store_now_ms(bed.st) + 100000);
	assert_int_equal(store_flush(bed.ctx), 0);
	assert_int_equal(store_count(bed.st), 0);
	assert_int_equal(bed_index_count(&bed), 0);
}

/* The earliest times: 1 ms after the epoch is as expired as any other. */
static void test_earliest_time(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, XKV_ABSTTL, KEY("a"), VALUE("1"), .ttl = 1), req;

	answers(&set, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
		COUNTS(XKV_C_inserts, XKV_C_ttls_given));
	req = REQUEST(XKV_OP_GET, KEY("a"));
	goes_up(&req, XKV_C_pass_miss);
	assert_int_equal(store_count(bed.st), 1);
	req = REQUEST(XKV_OP_SET, KEY("a"), VALUE("2"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	assert_int_equal(store_count(bed.st), 1);
	req = REQUEST(XKV_OP_EXPIRE, XKV_ABSTTL, KEY("a"), .ttl = 1);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	assert_int_equal(expire_all(), 1);
	assert_int_equal(store_count(bed.st), 0);
	assert_int_equal(bed_index_count(&bed), 0);
}

/* ---- INCR, APPEND, TTL, TOUCH, SCAN -------------------------------------- */

static struct payload incr(const char *key, int64_t amount, unsigned int flags, uint64_t v)
{
	uint8_t value[8];

	put_be(value, 8, (uint64_t)amount);
	return REQUEST(XKV_OP_INCR, (uint8_t)flags, KEY(key), .value = value, .value_len = 8,
		       .version = v);
}

static void answers_number(const struct payload *req, int64_t number, const int *counters)
{
	uint8_t value[8];

	put_be(value, 8, (uint64_t)number);
	answers(req, RESULTS({ req->byte[16], 0, value, 8, .version = ANY }), counters);
}

static void test_incr(void **state)
{
	static const struct {
		const char *value;
		int64_t amount;
		const char *sum; /* NULL: overflow, "": not a number */
	} t[] = {
		{ "0", 0, "0" },
		{ "9", 1, "10" },
		{ "-1", 1, "0" },
		{ "0", -1, "-1" },
		{ "99999999", 1, "100000000" },
		{ "9223372036854775806", 1, "9223372036854775807" },
		{ "-9223372036854775807", -1, "-9223372036854775808" },
		{ "-9223372036854775808", INT64_MAX, "-1" },
		{ "9223372036854775807", INT64_MIN, "-1" },
		{ "-9223372036854775808", 0, "-9223372036854775808" },
		{ "9223372036854775807", 1, NULL },
		{ "-9223372036854775808", -1, NULL },
		{ "1", INT64_MAX, NULL },
		{ "-1", INT64_MIN, NULL },
		{ "9223372036854775808", 0, "" },
		{ "-9223372036854775809", 0, "" },
		{ "18446744073709551616", 0, "" },
		{ "99999999999999999999", 0, "" },
		{ "100000000000000000000", 0, "" },
		{ "", 0, "" },
		{ "-", 0, "" },
		{ "-0", 0, "" },
		{ "00", 0, "" },
		{ "01", 0, "" },
		{ "+1", 0, "" },
		{ " 1", 0, "" },
		{ "1 ", 0, "" },
		{ "1.0", 0, "" },
		{ "0x1", 0, "" },
		{ "--1", 0, "" },
	};
	struct payload req;
	bool moved;

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		put_text("n", t[i].value);
		req = incr("n", t[i].amount, 0, 0);
		if (t[i].sum && *t[i].sum) {
			moved = class_of(strlen(t[i].value)) != class_of(strlen(t[i].sum));
			answers_number(&req, strtoll(t[i].sum, NULL, 10),
				       COUNTS(moved ? XKV_C_moves : XKV_C_overwrites));
			holds_text("n", t[i].sum);
			continue;
		}
		answers(&req, RESULTS({ XKV_OP_INCR, t[i].sum ? XKV_NOT_NUMBER : XKV_OVERFLOW }),
			COUNTS(XKV_C_not_number));
		holds_text("n", t[i].value);
	}
}

static void test_incr_conditions(void **state)
{
	struct payload req = incr("n", 5, XKV_XX, 0);
	uint64_t v;

	answers(&req, RESULTS({ XKV_OP_INCR, XKV_NOT_STORED }), COUNTS(XKV_C_not_stored));
	req = incr("n", 5, XKV_CAS, 2);
	answers(&req, RESULTS({ XKV_OP_INCR, XKV_MISS }), COUNTS(XKV_C_not_stored));
	req = incr("n", -5, 0, 0);
	answers_number(&req, -5, COUNTS(XKV_C_inserts));
	v = version;
	req = incr("n", 7, XKV_CAS | XKV_XX, v + 2);
	answers(&req, RESULTS({ XKV_OP_INCR, XKV_NOT_STORED, .version = v }),
		COUNTS(XKV_C_not_stored));
	req = incr("n", 7, XKV_CAS | XKV_XX, v);
	answers_number(&req, 2, COUNTS(XKV_C_overwrites));
	put("n", "41", 2, store_now_ms(bed.st) + 100000); /* keeps the expiry */
	req = incr("n", 1, 0, 0);
	answers(&req, RESULTS({ XKV_OP_INCR, 0, "\0\0\0\0\0\0\0*", 8, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_overwrites, XKV_C_ttls_given));
	put("n", "41", 2, 1000); /* an expired one is none */
	req = incr("n", 1, 0, 0);
	answers_number(&req, 1, COUNTS(XKV_C_overwrites));
}

/* A value in every length is made out of two, in each position of a word, in place and by a move.
 */
static void test_append(void **state)
{
	struct payload req;
	size_t len = 0;
	bool moved;

	for (size_t add = 1; len + add <= XKV_PAYLOAD_MAX4 - 16 - 24;
	     len += add, add = (add + 2) % 19) {
		req = REQUEST(XKV_OP_APPEND, KEY("k"), .value = pattern(0) + len, .value_len = add);
		moved = class_of(len) != class_of(len + add);
		answers_number(&req, (int64_t)(len + add),
			       COUNTS(!len    ? XKV_C_inserts
				      : moved ? XKV_C_moves
					      : XKV_C_overwrites));
		holds("k", pattern(0), len + add);
		account();
	}
	req = REQUEST(XKV_OP_APPEND, XKV_XX, KEY("no"), VALUE("1"));
	answers(&req, RESULTS({ XKV_OP_APPEND, XKV_NOT_STORED }), COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_APPEND, XKV_CAS, KEY("no"), VALUE("1"), .version = 2);
	answers(&req, RESULTS({ XKV_OP_APPEND, XKV_MISS }), COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_APPEND, KEY("no"), VALUE(""));
	answers_number(&req, 0, COUNTS(XKV_C_inserts));
	holds_text("no", "");
}

/* Has xkvd append ten bytes, which make so many. */
static void xkvd_appends(const struct payload *req, int64_t number)
{
	uint8_t value[8];

	put_be(value, 8, (uint64_t)number);
	goes_up(req, XKV_C_pass_too_large);
	xkvd_answers(req, XKV_PAYLOAD_MAX4,
		     RESULTS({ XKV_OP_APPEND, 0, value, 8, .ttl = ANY, .version = ANY }),
		     COUNTS(XKV_C_moves, XKV_C_ttls_given));
}

/*
 * A value that is longer than a datagram is appended by xkvd; one over the limit is refused.
 */
static void test_append_too_large(void **state)
{
	static uint8_t large[XKV_VALUE_MAX];
	struct payload req = REQUEST(XKV_OP_APPEND, KEY("k"), VALUE("0123456789"));
	uint64_t at = store_now_ms(bed.st) + 100000;

	put("k", pattern(0), 1462, 0);
	answers_number(&req, 1472,
		       COUNTS(class_of(1462) == class_of(1472) ? XKV_C_overwrites : XKV_C_moves));
	memcpy(large, pattern(0), 1472);
	memcpy(large + 1472, "0123456789", 10);
	put("k", large, 1472, at);
	xkvd_appends(&req, 1482);
	holds("k", large, 1482);
	assert_int_equal(bed_slot(&bed, "k", 1)->expire_ms, at);
	memset(large, 0, sizeof(large));
	put("k", large, sizeof(large) - 10, at);
	memcpy(large + sizeof(large) - 10, "0123456789", 10);
	xkvd_appends(&req, XKV_VALUE_MAX);
	holds("k", large, sizeof(large));
	answers(&req, RESULTS({ XKV_OP_APPEND, XKV_TOO_LARGE, NULL, XKV_VALUE_MAX + 10 }),
		COUNTS(XKV_C_op_too_large));
	req = REQUEST(XKV_OP_APPEND, XKV_CAS, KEY("k"), VALUE("0123456789"), .version = 2);
	answers(&req, RESULTS({ XKV_OP_APPEND, XKV_NOT_STORED, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_not_stored));
	holds("k", large, sizeof(large));
}

/* What there is without the value; only TOUCH is an access. */
static void test_ttl_touch(void **state)
{
	struct payload ttl = REQUEST(XKV_OP_TTL, KEY("k")), touch = REQUEST(XKV_OP_TOUCH, KEY("k"));
	struct xkv_slot *slot;

	goes_up(&ttl, XKV_C_pass_miss);
	goes_up(&touch, XKV_C_pass_miss);
	xkvd_answers(&ttl, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_TTL, XKV_MISS }),
		     COUNTS(XKV_C_get_misses));
	put("k", pattern(0), 4000, store_now_ms(bed.st) + 100000); /* of any size */
	slot = bed_slot(&bed, "k", 1);
	bed.c->track = XKV_TRACK_TIME;
	bed.c->access = 777;
	slot->access = 1;
	answers(&ttl, RESULTS({ XKV_OP_TTL, 0, .ttl = ANY, .version = slot->seq }),
		COUNTS(XKV_C_get_hits));
	assert_int_equal(slot->access, 1);
	answers(&touch, RESULTS({ XKV_OP_TOUCH, 0, .ttl = ANY, .version = slot->seq }),
		COUNTS(XKV_C_get_hits));
	assert_int_equal(slot->access, 777);
	bed.c->track = XKV_TRACK_NOTHING;
	bed.c->access = 0;
	assert_int_equal(store_expire(bed.ctx, "k", 1, 0), 0);
	answers(&ttl, RESULTS({ XKV_OP_TTL, 0, .version = slot->seq }), COUNTS(XKV_C_get_hits));
}

static struct payload scan(const char *key, unsigned int keys)
{
	struct payload req = REQUEST(XKV_OP_SCAN, KEY(key));

	req.byte[16 + 3] = (uint8_t)keys;
	return req;
}

static void test_scan(void **state)
{
	struct payload req = scan("k08", 5);

	put_text("k08", "eight");
	put_text("k09", "");
	put_text("k11", "eleven");
	put_text("k100", "no");
	answers(&req,
		RESULTS({ XKV_OP_SCAN, 0, "eight", 5, .version = ANY },
			{ XKV_OP_SCAN, 0, "", 0, .version = ANY }),
		COUNTS(XKV_C_get_hits, XKV_C_get_hits)); /* the miss ends the reply */
	req = scan("k10", 3);
	goes_up(&req, XKV_C_pass_miss);
	xkvd_answers(&req, XKV_PAYLOAD_MAX4,
		     RESULTS({ XKV_OP_SCAN, XKV_MISS },
			     { XKV_OP_SCAN, 0, "eleven", 6, .version = ANY },
			     { XKV_OP_SCAN, XKV_MISS }),
		     COUNTS(XKV_C_get_misses, XKV_C_get_hits, XKV_C_get_misses));
	bed.c->miss_reply = 1;
	answers(&req,
		RESULTS({ XKV_OP_SCAN, XKV_MISS }, { XKV_OP_SCAN, 0, "eleven", 6, .version = ANY },
			{ XKV_OP_SCAN, XKV_MISS }),
		COUNTS(XKV_C_get_misses, XKV_C_get_hits, XKV_C_get_misses));
	req = scan("k98", 9); /* there is no key behind k99 */
	answers(&req, RESULTS({ XKV_OP_SCAN, XKV_MISS }, { XKV_OP_SCAN, XKV_MISS }),
		COUNTS(XKV_C_get_misses, XKV_C_get_misses));
	req = scan("nodigit", 1);
	answers(&req, RESULTS({ XKV_OP_SCAN, XKV_MISS }), COUNTS(XKV_C_get_misses));
	/* among others: what is asked for behind it comes behind it */
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_SET, KEY("k10"), VALUE("ten")));
	request_add(&req, OP(XKV_OP_SCAN, KEY("k09")));
	req.byte[16 + 24 + 8 + 8 + 3] = 3;
	request_add(&req, OP(XKV_OP_PING, 0));
	answers(&req,
		RESULTS({ XKV_OP_SET, 0, .version = ANY },
			{ XKV_OP_SCAN, 0, "", 0, .version = ANY },
			{ XKV_OP_SCAN, 0, "ten", 3, .version = ANY },
			{ XKV_OP_SCAN, 0, "eleven", 6, .version = ANY }, PONG),
		COUNTS(XKV_C_inserts, XKV_C_get_hits, XKV_C_get_hits, XKV_C_get_hits, XKV_C_pings));
}

/* ---- what cannot be done here -------------------------------------------- */

/* A request for an entry that is locked is passed on; it is served once the lock is free. */
static void test_locked(void **state)
{
	struct payload reqs[] = { REQUEST(XKV_OP_GET, KEY("a")),
				  REQUEST(XKV_OP_EXPIRE, KEY("a"), .ttl = 9),
				  REQUEST(XKV_OP_SET, KEY("a"), VALUE("2")),
				  REQUEST(XKV_OP_SET, XKV_NX, KEY("a"), VALUE("2")),
				  REQUEST(XKV_OP_SET, KEY("a"), .value = pattern(0),
					  .value_len = 900),
				  REQUEST(XKV_OP_DELETE, KEY("a")) },
		       req;
	uint64_t before[XKV_COUNTER_COUNT];
	struct xkv_slot *slot;
	struct store_entry e;

	put_text("a", "1");
	slot = bed_slot(&bed, "a", 1);
	slot->seq |= 1;
	for (size_t i = 0; i < sizeof(reqs) / sizeof(reqs[0]); i++) {
		goes_up(&reqs[i], XKV_C_pass_busy);
		goes_up(&reqs[i], XKV_C_pass_busy);
	}
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_PING, 0));
	request_add(&req, OP(XKV_OP_GET, KEY("a")));
	answers(&req, RESULTS(PONG), COUNTS(XKV_C_pings));
	bed_counters(&bed, before);
	bed_impatient(&bed, true);
	assert_int_equal(store_get(bed.ctx, "a", 1, &e), -EBUSY);
	bed_impatient(&bed, false);
	count_check(before, COUNTS(XKV_C_op_busy));
	slot->seq &= ~1ULL;
	holds_text("a", "1");
	answers(&reqs[2], RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
}

/*
 * No room behind the packet for the largest reply: what fits the request's own
 * bytes is done; where not even the first result does, padding is asked for that makes
 * it fit.  (The room is there; we claim to need more.)
 */
static void test_no_room(void **state)
{
	struct payload req;

	put("a", pattern(0), 40, 0);
	bed.c->payload4 = bed.c->payload6 = 60000;
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_GET, KEY("a")));
	request_add(&req, OP(XKV_OP_DELETE, KEY("a")));
	for (int i = 0; i < 12; i++)
		answers(&req, RESULTS({ XKV_OP_GET, 0, pattern(0), 40, .version = ANY }),
			COUNTS(XKV_C_get_hits));
	put("a", pattern(0), 41, 0);
	for (int i = 0; i < 12; i++)
		answers(&req, RESULTS({ XKV_OP_GET, XKV_PAD, NULL, 88, .version = ANY }),
			COUNTS(XKV_C_op_pad));
	req = REQUEST(XKV_OP_SET, XKV_RETURN, KEY("a"), VALUE("v"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_PAD, NULL, 88, .version = ANY }),
		COUNTS(XKV_C_op_pad));
	holds("a", pattern(0), 41);
	request_pad(&req, 88 - req.len, 0);
	answers(&req, RESULTS({ XKV_OP_SET, 0, pattern(0), 41, .version = ANY }),
		COUNTS(XKV_C_moves));
	req = REQUEST(XKV_OP_GET, KEY("a")); /* asks for room when it knows how much */
	answers(&req, RESULTS({ XKV_OP_GET, 0, "v", 1, .version = ANY }), COUNTS(XKV_C_get_hits));
	req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("a"));
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, "v", 1 }), COUNTS(XKV_C_deletes));
}

/*
 * The head of a free list never repeats: between the read and the compare-and-swap of one program
 * others may have made the same slot the first again, with another one behind it (the ABA problem).
 */
static void test_list_tag(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, KEY("a"), VALUE("1"));
	struct payload del = REQUEST(XKV_OP_DELETE, KEY("a"));
	const struct xkv_class *c = &bed.classes[bed.c->class_of[XKV_SLOT_NEED(1, 1) / 8]];
	const __u64 *head = &c->list[0].head[c->which & 1];
	uint64_t before, ref = *head & XKV_REF_MASK;

	for (int i = 0; i < 100; i++) {
		before = *head;
		answers(&set, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
		answers(&del, RESULTS({ XKV_OP_DELETE }), COUNTS(XKV_C_deletes));
		assert_int_equal(*head & XKV_REF_MASK, ref);
		assert_true(*head != before);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_value_lengths), CASE(test_key_lengths),
		CASE(test_reply_limit),	  CASE(test_around_the_limit),
		CASE(test_misses),	  CASE(test_conditions),
		CASE(test_delete),	  CASE(test_return),
		CASE(test_ttl),		  CASE(test_expired_conditions),
		CASE(test_expire),	  CASE(test_expire_cas),
		CASE(test_long_ttl),	  CASE(test_expire_cycle),
		CASE(test_flush),	  CASE(test_earliest_time),
		CASE(test_incr),	  CASE(test_incr_conditions),
		CASE(test_append),	  CASE(test_append_too_large),
		CASE(test_ttl_touch),	  CASE(test_scan),
		CASE(test_locked),	  CASE(test_no_room),
		CASE(test_list_tag),
	};

	return bed_begin(argc, argv) ?: BOTH_WAYS("operations", tests, exchange_begin);
}

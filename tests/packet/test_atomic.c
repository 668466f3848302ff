// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 6 */
/* ATOMIC datagrams in XDP: what they reply, what they leave in the store, what stops them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/layout.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "exchange.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

/* Results and operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

static const uint8_t one[8] = { 0, 0, 0, 0, 0, 0, 0, 1 };

#define AMOUNT(bytes) .value = (bytes), .value_len = 8
#define ATOMIC(...)                                                                                \
	atomic((const struct operation[]){ __VA_ARGS__ },                                          \
	       sizeof((const struct operation[]){ __VA_ARGS__ }) / sizeof(struct operation))

static struct payload atomic(const struct operation *op, size_t n)
{
	struct payload p;

	request_begin(&p, ID, NULL);
	p.byte[3] |= XKV_F_ATOMIC;
	for (size_t i = 0; i < n; i++)
		request_add(&p, &op[i]);
	return p;
}

/* Nothing was done, and the result says at which operation. */
static void aborts(const struct payload *req, struct result why, int counter)
{
	struct packet_spec s = next_shape(req);

	spec_answers(&s, XKV_ABORTED, &why, 1, COUNTS(counter, XKV_C_atomic_aborted));
}

/* The entries that most cases begin with; `aborts` cases leave them as they are. */
static uint64_t before_a, before_n;

static void given(void)
{
	put_text("a", "old");
	put_text("n", "41");
	before_a = version_of("a");
	before_n = version_of("n");
	bed.c->miss_reply = 1;
}

static void unchanged(void)
{
	holds_text("a", "old");
	holds_text("n", "41");
	assert_int_equal(version_of("a"), before_a);
	assert_int_equal(version_of("n"), before_n);
	is_gone("new");
	assert_int_equal(store_count(bed.st), 2);
	account();
}

/* ---- what is done --------------------------------------------------------- */

static void test_every_operation(void **state)
{
	uint64_t later = store_now_ms(bed.st) + 1000000;
	struct payload req;

	given();
	put_text("s", "abc");
	put_text("gone", "bye");
	put_text("t", "tick");
	put("late", "x", 1, later);
	req = ATOMIC({ XKV_OP_SET, XKV_RETURN, KEY("a"), VALUE("new") },
		     { XKV_OP_SET, XKV_NX, KEY("new"), VALUE("1") },
		     { XKV_OP_INCR, KEY("n"), AMOUNT(one) }, { XKV_OP_INCR, KEY("m"), AMOUNT(one) },
		     { XKV_OP_APPEND, KEY("s"), VALUE("de") },
		     { XKV_OP_DELETE, XKV_RETURN, KEY("gone") }, { XKV_OP_DELETE, KEY("none") },
		     { XKV_OP_EXPIRE, KEY("late") }, { XKV_OP_EXPIRE, KEY("never"), .ttl = 9 },
		     { XKV_OP_GET, KEY("t") }, { XKV_OP_GET, KEY("missing") },
		     { XKV_OP_TTL, KEY("t") }, { XKV_OP_TOUCH, KEY("t") },
		     { XKV_OP_CHECK, KEY("t"), .version = version_of("t") },
		     { XKV_OP_CHECK, KEY("absent") });
	answers(&req,
		RESULTS({ XKV_OP_SET, 0, "old", 3, .version = ANY },
			{ XKV_OP_SET, 0, .version = ANY },
			{ XKV_OP_INCR, 0, "\0\0\0\0\0\0\0\x2a", 8, .version = ANY },
			{ XKV_OP_INCR, 0, "\0\0\0\0\0\0\0\1", 8, .version = ANY },
			{ XKV_OP_APPEND, 0, "\0\0\0\0\0\0\0\5", 8, .version = ANY },
			{ XKV_OP_DELETE, 0, "bye", 3 }, { XKV_OP_DELETE, XKV_MISS },
			{ XKV_OP_EXPIRE, 0, .version = ANY }, { XKV_OP_EXPIRE, XKV_MISS },
			{ XKV_OP_GET, 0, "tick", 4, .version = version_of("t") },
			{ XKV_OP_GET, XKV_MISS }, { XKV_OP_TTL, 0, .version = version_of("t") },
			{ XKV_OP_TOUCH, 0, .version = version_of("t") },
			{ XKV_OP_CHECK, 0, .version = version_of("t") }, { XKV_OP_CHECK }),
		COUNTS(XKV_C_overwrites, XKV_C_inserts, XKV_C_overwrites, XKV_C_inserts,
		       XKV_C_overwrites, XKV_C_deletes, XKV_C_op_misses, XKV_C_expiry_changes,
		       XKV_C_op_misses, XKV_C_get_hits, XKV_C_get_misses, XKV_C_get_hits,
		       XKV_C_get_hits, XKV_C_checks, XKV_C_checks, XKV_C_atomic_done));
	holds_text("a", "new");
	holds_text("new", "1");
	holds_text("n", "42");
	holds_text("m", "1");
	holds_text("s", "abcde");
	is_gone("gone");
	assert_int_equal(entry_of("late", 4).expire_ms, 0);
	holds_text("t", "tick");
}

/* The version of a result is that of its own entry. */
static void test_versions(void **state)
{
	struct payload req =
		ATOMIC({ XKV_OP_SET, KEY("a"), VALUE("1") }, { XKV_OP_SET, KEY("b"), VALUE("2") },
		       { XKV_OP_EXPIRE, KEY("n"), .ttl = 1000000 });
	const uint8_t *reply;

	given();
	shape = 0;
	answers(&req,
		RESULTS({ XKV_OP_SET, 0, .version = ANY }, { XKV_OP_SET, 0, .version = ANY },
			{ XKV_OP_EXPIRE, 0, .version = ANY, .ttl = ANY }),
		COUNTS(XKV_C_overwrites, XKV_C_inserts, XKV_C_expiry_changes, XKV_C_ttls_given,
		       XKV_C_atomic_done));
	reply = out.frame + packet_payload_at(false, 0) + sizeof(struct xkv_hdr);
	assert_int_equal(RESULT_VERSION(reply, 0), version_of("a"));
	assert_int_equal(RESULT_VERSION(reply, 24), version_of("b"));
	assert_int_equal(RESULT_VERSION(reply, 48), version_of("n"));
	assert_true(version_of("a") != version_of("b"));
}

/* Each length of value, from each to each class: in its slot, or in another one. */
static void test_value_lengths(void **state)
{
	struct payload req;
	uint64_t later;

	given();
	for (size_t len = 0; len <= 600; len += 7) {
		later = store_now_ms(bed.st) + 1000000;
		put("k", pattern(1), len * 37 % 601, later);
		req = ATOMIC({ XKV_OP_SET, XKV_KEEPTTL, KEY("k"), .value = pattern(0) + len % 7,
			       .value_len = len },
			     { XKV_OP_APPEND, KEY("s"), .value = pattern(0), .value_len = len });
		put_text("s", "abc");
		answers(&req,
			RESULTS({ XKV_OP_SET, 0, .version = ANY, .ttl = ANY },
				{ XKV_OP_APPEND, 0,
				  (uint8_t[]){ 0, 0, 0, 0, 0, 0, (len + 3) >> 8, (len + 3) & 255 },
				  8, .version = ANY }),
			COUNTS(XKV_C_overwrites, XKV_C_overwrites, XKV_C_ttls_given,
			       XKV_C_atomic_done));
		holds("k", pattern(0) + len % 7, len);
		assert_int_equal(entry_of("k", 1).expire_ms, later);
		assert_int_equal(entry_of("s", 1).value_len, len + 3);
		assert_memory_equal(entry_of("s", 1).value, "abc", 3);
		assert_memory_equal((const char *)entry_of("s", 1).value + 3, pattern(0), len);
	}
}

/* An entry that has expired does not exist, and its slot is used again. */
static void test_expired(void **state)
{
	uint64_t past = store_now_ms(bed.st) - 1;
	struct payload req;

	given();
	put("w", "111", 3, past);
	put("i", "5", 1, past);
	put("p", "xyz", 3, past);
	put("d", "1", 1, past);
	put("e", "1", 1, past);
	put("g", "1", 1, past);
	put("c", "1", 1, past);
	req = ATOMIC({ XKV_OP_SET, XKV_NX | XKV_RETURN, KEY("w"), VALUE("2") },
		     { XKV_OP_INCR, KEY("i"), AMOUNT(one) },
		     { XKV_OP_APPEND, KEY("p"), VALUE("q") }, { XKV_OP_DELETE, KEY("d") },
		     { XKV_OP_EXPIRE, KEY("e"), .ttl = 5000 }, { XKV_OP_GET, KEY("g") },
		     { XKV_OP_CHECK, KEY("c") });
	answers(&req,
		RESULTS({ XKV_OP_SET, 0, .version = ANY },
			{ XKV_OP_INCR, 0, "\0\0\0\0\0\0\0\1", 8, .version = ANY },
			{ XKV_OP_APPEND, 0, "\0\0\0\0\0\0\0\1", 8, .version = ANY },
			{ XKV_OP_DELETE, XKV_MISS }, { XKV_OP_EXPIRE, XKV_MISS },
			{ XKV_OP_GET, XKV_MISS }, { XKV_OP_CHECK }),
		COUNTS(XKV_C_overwrites, XKV_C_overwrites, XKV_C_overwrites, XKV_C_op_misses,
		       XKV_C_op_misses, XKV_C_get_misses, XKV_C_checks, XKV_C_atomic_done));
	holds_text("w", "2");
	holds_text("i", "1");
	holds_text("p", "q");
	assert_int_equal(expire_all(), 4);
}

/* As many as a datagram holds; and all of them in one bucket, with one tag. */
static void many(void)
{
	struct operation op[45];
	struct result r[45];
	int counted[46];
	char key[45][4];
	struct payload req;

	for (unsigned int i = 0; i < 45; i++) {
		snprintf(key[i], sizeof(key[i]), "%u", i);
		if (i % 3)
			put_text(key[i], "1");
		op[i] = (struct operation){ i % 3 == 1 ? XKV_OP_GET : XKV_OP_SET, KEY(key[i]) };
		r[i] = (struct result){ op[i].opcode, 0, .version = ANY };
		if (i % 3 == 1)
			r[i] = (struct result){ XKV_OP_GET, 0, "1", 1, .version = ANY };
		counted[i] = i % 3 == 0	  ? XKV_C_inserts
			     : i % 3 == 1 ? XKV_C_get_hits
					  : XKV_C_overwrites;
	}
	counted[45] = XKV_C_atomic_done;
	req = atomic(op, 45);
	for (int round = 0; round < 2; round++) {
		struct packet_spec s = packet_plain(false, &req);
		int counts[64], n = 0;

		for (int i = 0; i < 46; i++)
			counts[n++] = round && counted[i] == XKV_C_inserts ? XKV_C_overwrites
									   : counted[i];
		for (int chained = round ? 0 : (int)bed_chain_count(&bed); chained < 0; chained++)
			counts[n++] = XKV_C_chained;
		counts[n] = NOTHING;
		spec_answers(&s, 0, r, 45, counts);
	}
	for (unsigned int i = 0; i < 45; i++)
		holds_text(key[i], i % 3 == 1 ? "1" : "");
	account();
}

static void test_many(void **state)
{
	many();
}

/* ---- two reads and more -------------------------------------------------- */

/* The fast path serves GETs that all hit; what misses takes the other one. */
static void test_reads(void **state)
{
	struct payload req;

	given();
	req = ATOMIC({ XKV_OP_GET, KEY("a") }, { XKV_OP_GET, KEY("n") }, { XKV_OP_GET, KEY("a") });
	answers(&req,
		RESULTS({ XKV_OP_GET, 0, "old", 3, .version = before_a },
			{ XKV_OP_GET, 0, "41", 2, .version = before_n },
			{ XKV_OP_GET, 0, "old", 3, .version = before_a }),
		COUNTS(XKV_C_get_hits, XKV_C_get_hits, XKV_C_get_hits, XKV_C_atomic_done));
	req = ATOMIC({ XKV_OP_GET, KEY("a") });
	answers(&req, RESULTS({ XKV_OP_GET, 0, "old", 3, .version = before_a }),
		COUNTS(XKV_C_get_hits, XKV_C_atomic_done));
	req = ATOMIC({ XKV_OP_GET, KEY("a") }, { XKV_OP_GET, KEY("none") });
	answers(&req,
		RESULTS({ XKV_OP_GET, 0, "old", 3, .version = before_a }, { XKV_OP_GET, XKV_MISS }),
		COUNTS(XKV_C_get_hits, XKV_C_get_misses, XKV_C_atomic_done));
	bed.c->miss_reply = 0;
	goes_up(&req, XKV_C_pass_miss);
	unchanged();
}

/* ---- what is not done ---------------------------------------------------- */

#define SETS                                                                                       \
	{ XKV_OP_SET, KEY("a"), VALUE("changed") },                                                \
	{                                                                                          \
		XKV_OP_SET, KEY("new"), VALUE("1")                                                 \
	}
#define BEHIND                                                                                     \
	{                                                                                          \
		XKV_OP_INCR, KEY("n"), AMOUNT(one)                                                 \
	}

/* The condition that fails is that of operation 2; what stands before and behind is not done. */
static void test_conditions(void **state)
{
	struct payload req;

	given();
	put_text("c", "here");
	before_n = version_of("n");
	struct {
		struct operation op;
		struct result why;
	} cases[] = {
		{ { XKV_OP_SET, XKV_NX, KEY("c"), VALUE("1") },
		  { XKV_OP_SET, XKV_NOT_STORED, .version = version_of("c") } },
		{ { XKV_OP_SET, XKV_NX | XKV_RETURN, KEY("c"), VALUE("1") },
		  { XKV_OP_SET, XKV_NOT_STORED, .version = version_of("c") } },
		{ { XKV_OP_SET, XKV_XX, KEY("x"), VALUE("1") }, { XKV_OP_SET, XKV_NOT_STORED } },
		{ { XKV_OP_SET, XKV_CAS, KEY("c"), VALUE("1"), .version = 2 },
		  { XKV_OP_SET, XKV_NOT_STORED, .version = version_of("c") } },
		{ { XKV_OP_SET, XKV_CAS, KEY("x"), VALUE("1"), .version = 2 },
		  { XKV_OP_SET, XKV_MISS } },
		{ { XKV_OP_INCR, XKV_XX, KEY("x"), AMOUNT(one) }, { XKV_OP_INCR, XKV_NOT_STORED } },
		{ { XKV_OP_APPEND, XKV_CAS, KEY("c"), VALUE("1"), .version = 2 },
		  { XKV_OP_APPEND, XKV_NOT_STORED, .version = version_of("c") } },
		{ { XKV_OP_DELETE, XKV_CAS, KEY("c"), .version = 2 },
		  { XKV_OP_DELETE, XKV_NOT_STORED, .version = version_of("c") } },
		{ { XKV_OP_EXPIRE, XKV_CAS, KEY("c"), .version = 2, .ttl = 1 },
		  { XKV_OP_EXPIRE, XKV_NOT_STORED, .version = version_of("c") } },
		{ { XKV_OP_CHECK, KEY("c"), .version = 2 },
		  { XKV_OP_CHECK, XKV_NOT_STORED, .version = version_of("c") } },
		{ { XKV_OP_CHECK, KEY("c") },
		  { XKV_OP_CHECK, XKV_NOT_STORED, .version = version_of("c") } },
		{ { XKV_OP_CHECK, KEY("x"), .version = 2 }, { XKV_OP_CHECK, XKV_NOT_STORED } },
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		cases[i].why.index = 2;
		req = ATOMIC(SETS, cases[i].op, BEHIND);
		aborts(&req, cases[i].why, XKV_C_not_stored);
	}
	req = ATOMIC(SETS, { XKV_OP_DELETE, XKV_CAS, KEY("x"), .version = 2 }, BEHIND);
	aborts(&req, (struct result){ XKV_OP_DELETE, XKV_MISS, .index = 2 }, XKV_C_op_misses);
	holds_text("c", "here");
	assert_int_equal(store_delete(bed.ctx, "c", 1, NULL), 0);
	unchanged();
}

static void test_no_number(void **state)
{
	struct payload req = ATOMIC(SETS, { XKV_OP_INCR, KEY("word"), AMOUNT(one) });

	given();
	put_text("word", "word");
	aborts(&req, (struct result){ XKV_OP_INCR, XKV_NOT_NUMBER, .index = 2 }, XKV_C_not_number);
	put_text("word", "9223372036854775807");
	aborts(&req, (struct result){ XKV_OP_INCR, XKV_OVERFLOW, .index = 2 }, XKV_C_not_number);
	assert_int_equal(store_delete(bed.ctx, "word", 4, NULL), 0);
	unchanged();
}

/* Requests that contradict the format. */
static void test_bad_requests(void **state)
{
	struct operation pings[] = { { XKV_OP_PING }, { XKV_OP_SESSION }, { 99, KEY("x") } };
	struct payload req;

	given();
	for (unsigned int i = 0; i < 3; i++) {
		req = ATOMIC(SETS, pings[i]);
		aborts(&req,
		       (struct result){ pings[i].opcode, i < 2 ? XKV_BAD_REQUEST : XKV_BAD_OPCODE,
					.index = 2 },
		       i < 2 ? XKV_C_op_bad_request : XKV_C_op_bad_opcode);
	}
	req = ATOMIC(SETS, { XKV_OP_SCAN, KEY("k1"), .keys = 2 });
	aborts(&req, (struct result){ XKV_OP_SCAN, XKV_BAD_REQUEST, .index = 2 },
	       XKV_C_op_bad_request);
	req = ATOMIC({ XKV_OP_SCAN, KEY("k1"), .keys = 2 });
	aborts(&req, (struct result){ XKV_OP_SCAN, XKV_BAD_REQUEST }, XKV_C_op_bad_request);
	req = ATOMIC({ XKV_OP_SET, .value = "", .value_len = 0 });
	aborts(&req, (struct result){ XKV_OP_SET, XKV_BAD_KEY }, XKV_C_op_bad_key);
	req = ATOMIC(SETS);
	req.byte[4]++; /* says that there is one more */
	aborts(&req, (struct result){ 0, XKV_BAD_REQUEST, .index = 2 }, XKV_C_op_bad_request);
	req.byte[4] = XKV_ATOMIC_MAX + 1;
	header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
	req = REQUEST(XKV_OP_CHECK, KEY("a"), .version = before_a);
	answers(&req, RESULTS({ XKV_OP_CHECK, XKV_BAD_REQUEST }), COUNTS(XKV_C_op_bad_request));
	unchanged();
}

/* A key that changes may be there once. */
static void test_repeated_keys(void **state)
{
	struct operation twice[][2] = {
		{ { XKV_OP_SET, KEY("a"), VALUE("1") }, { XKV_OP_SET, KEY("a"), VALUE("2") } },
		{ { XKV_OP_GET, KEY("a") }, { XKV_OP_SET, KEY("a"), VALUE("2") } },
		{ { XKV_OP_DELETE, KEY("new") }, { XKV_OP_SET, KEY("new"), VALUE("2") } },
		{ { XKV_OP_SET, KEY("new"), VALUE("2") }, { XKV_OP_GET, KEY("new") } },
		{ { XKV_OP_EXPIRE, KEY("a") }, { XKV_OP_CHECK, KEY("a"), .version = 2 } },
	};
	struct payload req;

	given();
	for (size_t i = 0; i < sizeof(twice) / sizeof(twice[0]); i++) {
		req = ATOMIC(twice[i][0], BEHIND, twice[i][1]);
		aborts(&req, (struct result){ twice[i][1].opcode, XKV_BAD_REQUEST, .index = 2 },
		       XKV_C_op_bad_request);
	}
	unchanged();
	req = ATOMIC({ XKV_OP_TTL, KEY("a") }, BEHIND,
		     { XKV_OP_CHECK, KEY("a"), .version = before_a });
	answers(&req,
		RESULTS({ XKV_OP_TTL, 0, .version = before_a },
			{ XKV_OP_INCR, 0, "\0\0\0\0\0\0\0\x2a", 8, .version = ANY },
			{ XKV_OP_CHECK, 0, .version = before_a }),
		COUNTS(XKV_C_get_hits, XKV_C_overwrites, XKV_C_checks, XKV_C_atomic_done));
}

/* All results have to fit: the padding that is asked for is enough for all. */
static void test_padding(void **state)
{
	struct payload req;

	given();
	put("b", pattern(0), 200, 0);
	put("c", pattern(0), 200, 0);
	bed.c->rules[bed.c->current & 1].trusted = 0;
	req = ATOMIC(BEHIND, { XKV_OP_GET, KEY("b") }, { XKV_OP_GET, KEY("c") });
	/* 16 + 32 + 2 * 224 = 496 bytes; a third, rounded up to 8, are 168; the request has 120 */
	aborts(&req, (struct result){ XKV_OP_GET, XKV_PAD, NULL, 168, .index = 2 }, XKV_C_op_pad);
	holds_text("n", "41");
	request_pad(&req, 168 - req.len, 0);
	answers(&req,
		RESULTS({ XKV_OP_INCR, 0, "\0\0\0\0\0\0\0\x2a", 8, .version = ANY },
			{ XKV_OP_GET, 0, pattern(0), 200, .version = ANY },
			{ XKV_OP_GET, 0, pattern(0), 200, .version = ANY }),
		COUNTS(XKV_C_overwrites, XKV_C_get_hits, XKV_C_get_hits, XKV_C_atomic_done));
}

/* The same where the packet cannot be made longer. */
static void test_no_room(void **state)
{
	struct payload req;

	given();
	put("b", pattern(0), 200, 0);
	bed.c->payload4 = bed.c->payload6 = 60000;
	req = ATOMIC({ XKV_OP_GET, KEY("b") }, BEHIND);
	aborts(&req, (struct result){ XKV_OP_INCR, XKV_PAD, NULL, 272, .index = 1 }, XKV_C_op_pad);
	holds_text("n", "41");
	req = ATOMIC({ XKV_OP_SET, XKV_RETURN, KEY("b"), VALUE("1") });
	aborts(&req, (struct result){ XKV_OP_SET, XKV_PAD, NULL, 240 }, XKV_C_op_pad);
	holds("b", pattern(0), 200);
}

/* What fits no datagram is not returned, nor appended to; it may be replaced. */
static void test_large(void **state)
{
	static uint8_t large[XKV_VALUE_MAX];
	struct payload req;
	uint64_t was;

	given();
	put("big", large, 5000, 0);
	was = version_of("big");
	req = ATOMIC(SETS, { XKV_OP_GET, KEY("big") });
	aborts(&req,
	       (struct result){ XKV_OP_GET, XKV_TOO_LARGE, NULL, 5000, .version = was, .index = 2 },
	       XKV_C_op_too_large);
	req = ATOMIC(SETS, { XKV_OP_DELETE, XKV_RETURN, KEY("big") });
	aborts(&req,
	       (struct result){ XKV_OP_DELETE, XKV_TOO_LARGE, NULL, 5000, .version = was,
				.index = 2 },
	       XKV_C_op_too_large);
	req = ATOMIC(SETS, { XKV_OP_APPEND, KEY("big"), VALUE("1") });
	aborts(&req, (struct result){ XKV_OP_APPEND, XKV_TOO_LARGE, NULL, 5001, .index = 2 },
	       XKV_C_op_too_large);
	put("b1", large, 700, 0);
	put("b2", large, 800, 0);
	req = ATOMIC({ XKV_OP_GET, KEY("b1") }, { XKV_OP_GET, KEY("b2") });
	aborts(&req,
	       (struct result){ XKV_OP_GET, XKV_TOO_LARGE, NULL, 800, .version = version_of("b2"),
				.index = 1 },
	       XKV_C_op_too_large);
	req = ATOMIC({ XKV_OP_SET, KEY("big"), VALUE("small") }, { XKV_OP_TTL, KEY("b1") });
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }, { XKV_OP_TTL, 0, .version = ANY }),
		COUNTS(XKV_C_overwrites, XKV_C_get_hits, XKV_C_atomic_done));
	holds_text("big", "small");
	holds_text("a", "old");
	is_gone("new");
}

/* Over IPv4, the GETs of two values leave no room for the result of the last operation. */
static void aborts_full(const struct operation *last, struct result why)
{
	struct payload req = ATOMIC({ XKV_OP_GET, KEY("b1") }, { XKV_OP_GET, KEY("b2") }, *last);
	struct packet_spec s = packet_plain(false, &req);

	why.index = 2;
	spec_answers(&s, XKV_ABORTED, &why, 1, COUNTS(XKV_C_op_too_large, XKV_C_atomic_aborted));
}

static void test_full(void **state)
{
	static uint8_t large[XKV_VALUE_MAX];

	given();
	put("b1", large, 700, 0);
	put("b2", large, 688, 0);
	aborts_full(&(struct operation){ XKV_OP_GET, KEY("no") },
		    (struct result){ XKV_OP_GET, XKV_TOO_LARGE });
	aborts_full(&(struct operation){ XKV_OP_SET, KEY("a"), VALUE("2") },
		    (struct result){ XKV_OP_SET, XKV_TOO_LARGE });
	aborts_full(&(struct operation){ XKV_OP_INCR, KEY("n"), AMOUNT(one) },
		    (struct result){ XKV_OP_INCR, XKV_TOO_LARGE, NULL, 8, .version = before_n });
	holds_text("a", "old");
	holds_text("n", "41");
}

static void test_read_only(void **state)
{
	struct payload req = ATOMIC({ XKV_OP_GET, KEY("a") }, BEHIND);

	given();
	bed.c->read_only = 1;
	aborts(&req, (struct result){ XKV_OP_INCR, XKV_READ_ONLY, .index = 1 }, XKV_C_op_read_only);
	req = ATOMIC({ XKV_OP_GET, KEY("a") }, { XKV_OP_CHECK, KEY("n"), .version = before_n });
	answers(&req,
		RESULTS({ XKV_OP_GET, 0, "old", 3, .version = before_a },
			{ XKV_OP_CHECK, 0, .version = before_n }),
		COUNTS(XKV_C_get_hits, XKV_C_checks, XKV_C_atomic_done));
	bed.c->read_only = 0;
	unchanged();
}

/* The reply waits for the disk, which is xkvd's to do; who only reads need not wait. */
static void test_durable(void **state)
{
	struct payload req = ATOMIC({ XKV_OP_GET, KEY("a") }, BEHIND);

	given();
	store_writes_durable(bed.st, true);
	for (int i = 0; i < 10; i++)
		goes_up(&req, XKV_C_pass_durable);
	unchanged();
	store_refuse_writes(bed.st, true);
	aborts(&req, (struct result){ XKV_OP_INCR, XKV_READ_ONLY, .index = 1 }, XKV_C_op_read_only);
	store_refuse_writes(bed.st, false);
	unchanged();
	xkvd_answers(&req, XKV_PAYLOAD_MAX4,
		     RESULTS({ XKV_OP_GET, 0, "old", 3, .version = before_a },
			     { XKV_OP_INCR, 0, "\0\0\0\0\0\0\0\x2a", 8, .version = ANY }),
		     COUNTS(XKV_C_get_hits, XKV_C_overwrites, XKV_C_atomic_done));
	req = ATOMIC({ XKV_OP_GET, KEY("a") }, { XKV_OP_GET, KEY("n") });
	answers(&req,
		RESULTS({ XKV_OP_GET, 0, "old", 3, .version = before_a },
			{ XKV_OP_GET, 0, "42", 2, .version = ANY }),
		COUNTS(XKV_C_get_hits, XKV_C_get_hits, XKV_C_atomic_done));
	store_writes_durable(bed.st, false);
}

struct watch {
	const struct xkv_slot *slot;
	bool locked, end;
};

static void *watch_lock(void *arg)
{
	struct watch *w = arg;

	while (!__atomic_load_n(&w->end, __ATOMIC_ACQUIRE))
		w->locked |= __atomic_load_n(&w->slot->seq, __ATOMIC_RELAXED) & 1;
	return NULL;
}

/* Nothing is locked meanwhile: the transaction that holds writes back would have to wait. */
static void test_writes_held(void **state)
{
	struct payload req = ATOMIC({ XKV_OP_GET, KEY("a") }, BEHIND);
	static struct watch w;
	pthread_t thread;

	given();
	w.slot = bed_slot(&bed, "n", 1);
	assert_int_equal(pthread_create(&thread, NULL, watch_lock, &w), 0);
	store_hold_writes(bed.st, true, 0);
	bed.c->held_until_ns = UINT64_MAX; /* longer than xkvd would */
	for (int i = 0; i < 3000; i++)
		goes_up(&req, XKV_C_pass_busy);
	store_hold_writes(bed.st, false, 0);
	__atomic_store_n(&w.end, true, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	assert_false(w.locked);
	unchanged();
}

static void test_token(void **state)
{
	struct payload req = ATOMIC(BEHIND), with;
	uint8_t token[XKV_TOKEN_BYTES] = "0123456789abcde";

	given();
	bed.c->rules[bed.c->current & 1].auth = XKV_AUTH_TOKEN;
	memcpy(bed_token(&bed), token, sizeof(token));
	header_answers(&req, XKV_NOAUTH, XKV_C_error_auth);
	request_begin(&with, ID, token);
	with.byte[3] |= XKV_F_ATOMIC;
	request_add(&with, OP(XKV_OP_GET, KEY("a")));
	request_add(&with, OP(XKV_OP_GET, KEY("n")));
	answers(&with,
		RESULTS({ XKV_OP_GET, 0, "old", 3, .version = before_a },
			{ XKV_OP_GET, 0, "41", 2, .version = before_n }),
		COUNTS(XKV_C_get_hits, XKV_C_get_hits, XKV_C_atomic_done));
	unchanged();
}

/* ---- locks --------------------------------------------------------------- */

/*
 * A lock that somebody holds, of a slot or a bucket: the datagram goes up, and all that it has
 * locked, taken and reserved is free again.
 */
static void test_locked(void **state)
{
	struct payload writes = ATOMIC(SETS, { XKV_OP_DELETE, KEY("d") }, BEHIND),
		       reads = ATOMIC({ XKV_OP_GET, KEY("a") }, { XKV_OP_GET, KEY("n") });
	struct xkv_bucket *b;
	struct xkv_slot *slot;

	given();
	put_text("d", "1");
	slot = bed_slot(&bed, "n", 1);
	slot->seq |= 1;
	goes_up(&writes, XKV_C_pass_busy);
	goes_up(&reads, XKV_C_pass_busy);
	slot->seq &= ~1ULL;
	b = bed_bucket(&bed, "d", 1);
	b->head |= XKV_BUCKET_LOCK;
	goes_up(&writes, XKV_C_pass_busy);
	answers(&reads,
		RESULTS({ XKV_OP_GET, 0, "old", 3, .version = before_a },
			{ XKV_OP_GET, 0, "41", 2, .version = before_n }),
		COUNTS(XKV_C_get_hits, XKV_C_get_hits, XKV_C_atomic_done));
	b->head &= ~XKV_BUCKET_LOCK;
	holds_text("d", "1");
	is_gone("new");
	assert_int_equal(version_of("a"), before_a);
	account();
	answers(&writes,
		RESULTS({ XKV_OP_SET, 0, .version = ANY }, { XKV_OP_SET, 0, .version = ANY },
			{ XKV_OP_DELETE },
			{ XKV_OP_INCR, 0, "\0\0\0\0\0\0\0\x2a", 8, .version = ANY }),
		COUNTS(XKV_C_overwrites, XKV_C_inserts, XKV_C_deletes, XKV_C_overwrites,
		       XKV_C_atomic_done));
}

/* A key that has to be missing is missing until the end: its bucket gets locked. */
static void test_absence_is_locked(void **state)
{
	struct operation absent[] = { { XKV_OP_CHECK, KEY("x") },
				      { XKV_OP_GET, KEY("x") },
				      { XKV_OP_DELETE, KEY("x") },
				      { XKV_OP_EXPIRE, KEY("x"), .ttl = 5 } };
	struct xkv_bucket *b;
	struct payload req;

	given();
	b = bed_bucket(&bed, "x", 1);
	b->head |= XKV_BUCKET_LOCK;
	for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++) {
		req = ATOMIC({ XKV_OP_SET, KEY("a"), VALUE("changed") }, absent[i]);
		goes_up(&req, XKV_C_pass_busy);
	}
	req = ATOMIC({ XKV_OP_GET, KEY("a") }, { XKV_OP_GET, KEY("x") }); /* no fast path */
	goes_up(&req, XKV_C_pass_busy);
	b->head &= ~XKV_BUCKET_LOCK;
	unchanged();
}

/* ---- one bucket ---------------------------------------------------------- */

static void test_one_bucket(void **state)
{
	struct payload req;

	open_one_bucket();
	bed.c->miss_reply = 1;
	req = ATOMIC({ XKV_OP_SET, KEY("1"), VALUE("1") }, { XKV_OP_SET, KEY("2"), VALUE("2") },
		     { XKV_OP_GET, KEY("3") }, { XKV_OP_SET, KEY("4"), VALUE("4") });
	answers(&req,
		RESULTS({ XKV_OP_SET, 0, .version = ANY }, { XKV_OP_SET, 0, .version = ANY },
			{ XKV_OP_GET, XKV_MISS }, { XKV_OP_SET, 0, .version = ANY }),
		COUNTS(XKV_C_inserts, XKV_C_inserts, XKV_C_get_misses, XKV_C_inserts,
		       XKV_C_atomic_done));
	req = ATOMIC({ XKV_OP_DELETE, KEY("1") }, { XKV_OP_SET, KEY("2"), VALUE("two") },
		     { XKV_OP_SET, KEY("3"), .value = pattern(0), .value_len = 300 },
		     { XKV_OP_SET, XKV_NX, KEY("4"), VALUE("four") });
	aborts(&req,
	       (struct result){ XKV_OP_SET, XKV_NOT_STORED, .version = version_of("4"),
				.index = 3 },
	       XKV_C_not_stored);
	is_gone("3");
	holds_text("1", "1");
	req = ATOMIC({ XKV_OP_DELETE, KEY("1") }, { XKV_OP_SET, KEY("2"), VALUE("two") },
		     { XKV_OP_SET, KEY("3"), .value = pattern(0), .value_len = 300 },
		     { XKV_OP_GET, KEY("4") });
	answers(&req,
		RESULTS({ XKV_OP_DELETE }, { XKV_OP_SET, 0, .version = ANY },
			{ XKV_OP_SET, 0, .version = ANY },
			{ XKV_OP_GET, 0, "4", 1, .version = ANY }),
		COUNTS(XKV_C_deletes, XKV_C_overwrites, XKV_C_inserts, XKV_C_get_hits,
		       XKV_C_atomic_done));
	is_gone("1");
	holds("3", pattern(0), 300);
	req = ATOMIC({ XKV_OP_SET, KEY("5"), VALUE("1") }, { XKV_OP_SET, KEY("5"), VALUE("1") });
	aborts(&req, (struct result){ XKV_OP_SET, XKV_BAD_REQUEST, .index = 1 },
	       XKV_C_op_bad_request);
}

/* New keys need overflow buckets; if one cannot be had, all are taken back. */
static void test_chains(void **state)
{
	struct operation op[20];
	struct payload req;
	char key[20][4];

	open_one_bucket();
	for (unsigned int i = 0; i < 20; i++) {
		snprintf(key[i], sizeof(key[i]), "%u", i);
		op[i] = (struct operation){ XKV_OP_SET, KEY(key[i]), VALUE(key[i]) };
	}
	op[19] = (struct operation){ XKV_OP_SET, XKV_XX, KEY(key[19]), VALUE("1") };
	req = atomic(op, 20);
	aborts(&req, (struct result){ XKV_OP_SET, XKV_NOT_STORED, .index = 19 }, XKV_C_not_stored);
	req = atomic(op, 19);
	assert_int_equal(verdict_of(&req, &out), 3 /* XDP_TX */);
	for (unsigned int i = 0; i < 19; i++)
		holds_text(key[i], key[i]);
	assert_int_equal(bed_chain_count(&bed), 2);
	account();
	for (unsigned int i = 0; i < 19; i++)
		op[i] = (struct operation){ XKV_OP_DELETE, KEY(key[i]) };
	req = atomic(op, 19);
	assert_int_equal(verdict_of(&req, &out), 3 /* XDP_TX */);
	assert_int_equal(bed_index_count(&bed), 0);
	assert_int_equal(bed_chain_count(&bed), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_every_operation),
		CASE(test_versions),
		CASE(test_value_lengths),
		CASE(test_expired),
		CASE(test_many),
		CASE(test_reads),
		CASE(test_conditions),
		CASE(test_no_number),
		CASE(test_bad_requests),
		CASE(test_repeated_keys),
		CASE(test_padding),
		CASE(test_no_room),
		CASE(test_large),
		CASE(test_full),
		CASE(test_writes_held),
		CASE(test_read_only),
		CASE(test_durable),
		CASE(test_token),
		CASE(test_locked),
		CASE(test_absence_is_locked),
		OWN(test_one_bucket),
		OWN(test_chains),
	};

	return bed_begin(argc, argv) ?: BOTH_WAYS("atomic", tests, exchange_begin);
}

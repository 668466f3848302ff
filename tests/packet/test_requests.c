// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 3 */
/*
 * Requests as such: their header, malformed operations, several operations in one, those that are
 * done only once, and the examples of tests/vectors.txt.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <linux/bpf.h>

#include "bpf/layout.h"
#include "bpf/siphash.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "exchange.h"
#include "fixture.h"
#include "packet.h"
#include "vectors.h"
#include "xdpbed.h"

/* Results and operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

/* ---- headers ------------------------------------------------------------- */

static void test_header(void **state)
{
	struct payload good = ping(), req;

	for (unsigned int bit = 0; bit < 16; bit++) { /* another magic is not ours */
		req = good;
		req.byte[bit / 8] ^= (uint8_t)(1 << bit % 8);
		goes_up(&req, XKV_C_pass_not_xkv);
	}
	for (unsigned int v = 0; v < 256; v++) {
		req = good;
		req.byte[2] = (uint8_t)v;
		if (v != XKV_VERSION)
			header_answers(&req, XKV_BAD_VERSION, XKV_C_error_version);
	}
	for (unsigned int db = bed.c->databases; db < 256; db++) {
		req = good;
		req.byte[5] = (uint8_t)db;
		header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
	}
	req = good;
	req.byte[4] = 0;
	header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
	req.byte[4] = 255; /* promises more than is there */
	answers(&req, RESULTS(PONG), COUNTS(XKV_C_pings));
}

static void test_header_flags(void **state)
{
	struct payload good = ping(), req;
	struct packet_spec s;

	request_pad(&good, 16, 0);
	for (unsigned int flags = 1; flags < 256; flags++) {
		if (flags == XKV_F_ATOMIC || flags == (XKV_F_ATOMIC | XKV_F_DURABLE))
			continue;
		req = good;
		req.byte[3] = (uint8_t)flags;
		if (flags & XKV_F_REPLY) {
			s = next_shape(&req);
			drops(&s, XKV_C_drop_reply_flag);
		} else if (flags == XKV_F_DURABLE) {
			header_answers(&req, XKV_NO_LOG, XKV_C_error_request);
		} else { /* a token there is, but no room for it in header.length */
			header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
		}
	}
}

/* header.length against what is there: shorter, longer, odd. */
static void test_header_length(void **state)
{
	struct payload good = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("world")), req;

	request_pad(&good, 16, 0);
	for (unsigned int len = 0; len < 200; len++) {
		req = good;
		put_be(req.byte + 6, 2, len);
		if (len < 40 || len > good.len || len % 8)
			header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
		else if (len < 56)
			answers(&req, RESULTS({ XKV_OP_SET, XKV_BAD_REQUEST }),
				COUNTS(XKV_C_op_bad_request));
		else
			answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
				COUNTS(len == 56 ? XKV_C_inserts : XKV_C_overwrites));
	}
	put_be(req.byte + 6, 2, 0xfff8);
	header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
}

static void test_token(void **state)
{
	uint8_t token[XKV_TOKEN_BYTES] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
	struct payload with, without = ping(), req;

	request_begin(&with, ID, token);
	request_add(&with, OP(XKV_OP_PING, 0));
	answers(&with, RESULTS(PONG), COUNTS(XKV_C_pings)); /* open: ignored */

	memcpy(bed_token(&bed), token, sizeof(token));
	bed.rules->auth = XKV_AUTH_TOKEN;
	answers(&with, RESULTS(PONG), COUNTS(XKV_C_pings));
	header_answers(&without, XKV_NOAUTH, XKV_C_error_auth);
	for (unsigned int bit = 0; bit < 128; bit++) {
		req = with;
		req.byte[16 + bit / 8] ^= (uint8_t)(1 << bit % 8);
		header_answers(&req, XKV_NOAUTH, XKV_C_error_auth);
	}
	req = with;
	put_be(req.byte + 6, 2, 48); /* cut short: no room for token and operation */
	header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);

	bed.rules->auth = XKV_AUTH_CLOSED;
	header_answers(&with, XKV_NOAUTH, XKV_C_error_auth);
	header_answers(&without, XKV_NOAUTH, XKV_C_error_auth);
	req = with;
	req.byte[2] = 9; /* the version comes first */
	header_answers(&req, XKV_BAD_VERSION, XKV_C_error_version);
}

/* ---- malformed operations ------------------------------------------------ */

static void refuses(const struct payload *req, uint8_t status)
{
	int counter = status == XKV_BAD_KEY	 ? XKV_C_op_bad_key
		      : status == XKV_BAD_OPCODE ? XKV_C_op_bad_opcode
						 : XKV_C_op_bad_request;

	answers(req, RESULTS({ req->byte[16], status }), COUNTS(counter));
}

static void test_opcodes(void **state)
{
	struct payload req;

	for (unsigned int code = 0; code < 256; code++) {
		req = REQUEST((uint8_t)code, KEY("key"));
		if (!code || code > XKV_OP_CHECK)
			refuses(&req, XKV_BAD_OPCODE);
	}
}

/* An operation with nothing wrong about it. */
static struct payload plain_operation(uint8_t code)
{
	struct payload req = REQUEST(code, .key = "key7", .key_len = code == XKV_OP_PING ? 0 : 4,
				     .value = "12345678", .value_len = code == XKV_OP_INCR ? 8 : 0);

	if (code == XKV_OP_SCAN)
		req.byte[16 + 3] = 2;
	return req;
}

/* Every opcode with every byte of flags: taken or refused as the protocol says. */
static void test_flags(void **state)
{
	static const uint8_t known[] = {
		[XKV_OP_SET] = 0x3f,
		[XKV_OP_DELETE] = XKV_CAS | XKV_RETURN,
		[XKV_OP_EXPIRE] = XKV_CAS | XKV_ABSTTL,
		[XKV_OP_INCR] = XKV_XX | XKV_CAS,
		[XKV_OP_APPEND] = XKV_XX | XKV_CAS,
		[XKV_OP_SCAN] = 0,
	};
	struct payload req;
	bool bad;

	for (unsigned int code = XKV_OP_PING; code <= XKV_OP_SCAN; code++) {
		for (unsigned int flags = 0; flags < 256; flags++) {
			bad = flags & ~(unsigned int)known[code];
			if ((flags & XKV_NX) && (flags & (XKV_XX | XKV_CAS)))
				bad = true;
			if (!bad)
				continue;
			req = plain_operation((uint8_t)code);
			req.byte[16 + 1] = (uint8_t)flags;
			refuses(&req, XKV_BAD_REQUEST);
		}
	}
	assert_int_equal(store_count(bed.st), 0);
}

/* A field of the operation set to something that it must not be. */
static void refuses_field(uint8_t code, unsigned int at, unsigned int bytes, uint64_t value)
{
	struct payload req = plain_operation(code);

	put_be(req.byte + 16 + at, bytes, value);
	refuses(&req, XKV_BAD_REQUEST);
}

static void test_bad_fields(void **state)
{
	struct payload req;

	for (uint8_t code = XKV_OP_PING; code <= XKV_OP_SCAN; code++) {
		if (code == XKV_OP_SCAN) {
			refuses_field(code, 3, 1, 0);
			refuses_field(code, 3, 1, XKV_SCAN_MAX + 1);
			refuses_field(code, 3, 1, 255);
		} else {
			refuses_field(code, 3, 1, 1);
		}
		refuses_field(code, 16, 8, 2); /* a version, but no CAS */
		if (code == XKV_OP_INCR) {
			refuses_field(code, 4, 4, 0);
			refuses_field(code, 4, 4, 7);
			refuses_field(code, 4, 4, 9);
		} else if (code != XKV_OP_SET && code != XKV_OP_APPEND) {
			refuses_field(code, 4, 4, 1);
		}
		if (code == XKV_OP_SET || code == XKV_OP_EXPIRE) {
			refuses_field(code, 8, 8, XKV_TTL_MAX + 1);
			refuses_field(code, 8, 8, UINT64_MAX);
		} else {
			refuses_field(code, 8, 8, 1);
		}
	}
	req = REQUEST(XKV_OP_SCAN, KEY("nodigit")); /* of one key it needs none, of two it does */
	req.byte[16 + 3] = 2;
	refuses(&req, XKV_BAD_REQUEST);
	req = REQUEST(XKV_OP_SET, XKV_KEEPTTL, KEY("key"), .ttl = 1);
	refuses(&req, XKV_BAD_REQUEST);
	req = REQUEST(XKV_OP_PING, 0, KEY("key"));
	refuses(&req, XKV_BAD_REQUEST);
	assert_int_equal(store_count(bed.st), 0);
}

static void test_bad_keys(void **state)
{
	static const size_t lens[] = { 0, 251, 252, 253, 254, 255 };
	struct payload req;

	for (uint8_t code = XKV_OP_GET; code <= XKV_OP_SCAN; code++) {
		for (size_t i = 0; i < 6; i++) {
			req = REQUEST(code, .key = pattern(0), .key_len = lens[i]);
			refuses(&req, XKV_BAD_KEY);
		}
		req = REQUEST(code, KEY("0123456789")); /* one that header.length cuts off */
		put_be(req.byte + 6, 2, req.len - 8);
		refuses(&req, XKV_BAD_REQUEST);
	}
}

/* Any byte behind key or value that is not zero. */
static void test_dirty_padding(void **state)
{
	struct payload good, req;

	for (size_t len = 1; len <= 24; len++) {
		good = REQUEST(XKV_OP_SET, .key = pattern(0), .key_len = len, .value = pattern(0),
			       .value_len = len);
		for (size_t i = len; i < XKV_PADDED(len); i++) {
			req = good;
			req.byte[40 + i] = 1;
			refuses(&req, XKV_BAD_REQUEST);
			req = good;
			req.byte[40 + XKV_PADDED(len) + i] = 0x80;
			refuses(&req, XKV_BAD_REQUEST);
		}
		answers(&good, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	}
}

static void test_bad_value_len(void **state)
{
	static const uint32_t lens[] = { 9,	     16,	 1472,	     1473,
					 1480,	     0xffff,	 0x10000000, 0x7fffffff,
					 0x80000000, 0xfffffff8, 0xffffffff };
	struct payload req;

	for (size_t i = 0; i < sizeof(lens) / 4; i++) {
		req = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("world"));
		put_be(req.byte + 16 + 4, 4, lens[i]);
		refuses(&req, XKV_BAD_REQUEST);
	}
	is_gone("hello");
}

/* ---- exactly once --------------------------------------------------------- */

#define SESSION 0x1122334455667788ULL

static struct payload once(uint64_t session, uint64_t id, const struct operation *op)
{
	struct payload req;

	request_begin(&req, id, NULL);
	req.byte[3] = XKV_F_ONCE;
	put_be(req.byte + req.len, 8, session);
	req.len += 8;
	request_add(&req, op);
	return req;
}

static void refuses_once(const struct payload *req)
{
	answers(req, RESULTS({ req->byte[24], XKV_BAD_REQUEST }), COUNTS(XKV_C_op_bad_request));
}

/* What the secret makes of a session for the sender of the next packet, said once more. */
static const uint8_t *session_for(uint64_t session)
{
	static uint8_t proven[8];
	__u64 word[3] = { 0, 0, session & ~0xffffffULL };
	struct packet_spec s;

	packet_default(&s, shape & 1);
	memcpy(word, s.src, s.v6 ? 16 : 4); /* (of a little-endian machine) */
	put_be(proven, 8, word[2] | (siphash(word, bed.secrets->hash.session) & 0xffffff));
	return proven;
}

/* A repetition gets the reply of the first time, whatever has happened since. */
static void test_once(void **state)
{
	uint8_t one[8] = { 0, 0, 0, 0, 0, 0, 0, 1 }, two[8] = { 0, 0, 0, 0, 0, 0, 0, 2 };
	const struct operation *op = OP(XKV_OP_INCR, KEY("n"), .value = one, .value_len = 8);
	struct payload first = once(SESSION, 101, op), req;
	struct packet_spec s;
	uint64_t v;

	answers(&first, RESULTS({ XKV_OP_INCR, 0, one, 8, .version = ANY }), COUNTS(XKV_C_inserts));
	v = version;
	for (int i = 0; i < 3; i++)
		answers(&first, RESULTS({ XKV_OP_INCR, 0, one, 8, .version = v }),
			COUNTS(XKV_C_once_repeated));
	xkvd_answers(&first, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_INCR, 0, one, 8, .version = v }),
		     COUNTS(XKV_C_once_repeated)); /* by whichever front end */
	req = once(SESSION, 109, op);		   /* the next in this slot */
	answers(&req, RESULTS({ XKV_OP_INCR, 0, two, 8, .version = ANY }),
		COUNTS(XKV_C_overwrites));
	s = next_shape(&first); /* a copy that was on its way for long */
	drops(&s, XKV_C_drop_repeated);
	holds_text("n", "2");
	req = once(SESSION + 1, 101, OP(XKV_OP_SET, KEY("n"), VALUE("other")));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	req = once(0, 1, op); /* nobody's */
	header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
	req = once(SESSION, 117, op);
	req.byte[4] = 2;
	header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
}

/* A reply that is too long to be kept: the repetition at least does nothing. */
static void test_once_long(void **state)
{
	struct payload req = once(SESSION, 201, OP(XKV_OP_DELETE, XKV_RETURN, KEY("k")));

	put("k", pattern(0), 48, 0); /* 16 + 24 + 48 just is not */
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, pattern(0), 48 }), COUNTS(XKV_C_deletes));
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, pattern(0), 48 }), COUNTS(XKV_C_once_repeated));
	put("k", pattern(0), 49, 0);
	req = once(SESSION, 209, OP(XKV_OP_DELETE, XKV_RETURN, KEY("k")));
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, pattern(0), 49 }), COUNTS(XKV_C_deletes));
	put("k", pattern(0), 49, 0);
	header_answers(&req, XKV_REPEATED, XKV_C_once_repeated);
	holds("k", pattern(0), 49);
}

/* A request that is passed on was not done: the front end that gets it next does it, once. */
static void test_once_goes_up(void **state)
{
	struct payload req = once(SESSION, 301, OP(XKV_OP_APPEND, KEY("k"), VALUE("1")));
	struct xkv_slot *slot;

	put_text("k", "0");
	slot = bed_slot(&bed, "k", 1);
	slot->seq |= 1;
	goes_up(&req, XKV_C_pass_busy);
	goes_up(&req, XKV_C_pass_busy);
	slot->seq &= ~1ULL;
	answers(&req, RESULTS({ XKV_OP_APPEND, 0, "\0\0\0\0\0\0\0\2", 8, .version = ANY }),
		COUNTS(XKV_C_overwrites));
	answers(&req, RESULTS({ XKV_OP_APPEND, 0, "\0\0\0\0\0\0\0\2", 8, .version = ANY }),
		COUNTS(XKV_C_once_repeated));
	holds_text("k", "01");
}

/* The driver must not give the reply of a change that the disk may not have. */
static void test_once_durable(void **state)
{
	struct payload req = once(SESSION, 351, OP(XKV_OP_APPEND, KEY("k"), VALUE("1"))), next;

	put_text("k", "0");
	store_writes_durable(bed.st, true);
	goes_up(&req, XKV_C_pass_durable);
	xkvd_answers(&req, XKV_PAYLOAD_MAX4,
		     RESULTS({ XKV_OP_APPEND, 0, "\0\0\0\0\0\0\0\2", 8, .version = ANY }),
		     COUNTS(XKV_C_overwrites));
	store_refuse_writes(bed.st, true); /* the disk is late by now */
	goes_up(&req, XKV_C_pass_durable);
	xkvd_answers(&req, XKV_PAYLOAD_MAX4,
		     RESULTS({ XKV_OP_APPEND, 0, "\0\0\0\0\0\0\0\2", 8, .version = ANY }),
		     COUNTS(XKV_C_once_repeated));
	next = once(SESSION, 359, OP(XKV_OP_APPEND, KEY("k"), VALUE("2")));
	goes_up(&next, XKV_C_pass_durable);
	xkvd_answers(&next, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_APPEND, XKV_READ_ONLY }),
		     COUNTS(XKV_C_op_read_only));
	store_refuse_writes(bed.st, false);
	store_writes_durable(bed.st, false);
	answers(&next, RESULTS({ XKV_OP_APPEND, XKV_READ_ONLY }), COUNTS(XKV_C_once_repeated));
	holds_text("k", "01");
}

/* Who asks for that gets every reply from xkvd, which can wait for the disk. */
static void test_durable(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, KEY("k"), VALUE("1")), req;
	struct payload reads = REQUEST(XKV_OP_GET, KEY("k"));

	put_text("k", "0");
	set.byte[3] = reads.byte[3] = XKV_F_DURABLE;
	for (int i = 0; i < 10; i++)
		header_answers(&set, XKV_NO_LOG, XKV_C_error_request);
	bed.c->logged = 1;
	for (int i = 0; i < 10; i++) {
		goes_up(&set, XKV_C_pass_durable);
		goes_up(&reads, XKV_C_pass_durable);
	}
	xkvd_answers(&set, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
		     COUNTS(XKV_C_overwrites));
	xkvd_answers(&reads, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_GET, 0, "1", 1, .version = ANY }),
		     COUNTS(XKV_C_get_hits));
	req = once(SESSION, 367, OP(XKV_OP_APPEND, KEY("k"), VALUE("2")));
	req.byte[3] |= XKV_F_DURABLE;
	for (int i = 0; i < 2; i++) {
		goes_up(&req, XKV_C_pass_durable);
		xkvd_answers(&req, XKV_PAYLOAD_MAX4,
			     RESULTS({ XKV_OP_APPEND, 0, "\0\0\0\0\0\0\0\2", 8, .version = ANY }),
			     COUNTS(i ? XKV_C_once_repeated : XKV_C_overwrites));
	}
	request_begin(&req, ID, NULL);
	req.byte[3] = XKV_F_ATOMIC | XKV_F_DURABLE;
	request_add(&req, OP(XKV_OP_SET, KEY("k"), VALUE("3")));
	goes_up(&req, XKV_C_pass_durable);
	holds_text("k", "12");
}

/* What changes nothing is done each time, and leaves no record. */
static void test_once_reads(void **state)
{
	static const struct xkv_dedup_set none[XKV_DEDUP_SETS];
	const struct operation *op = OP(XKV_OP_SESSION, 0);
	struct payload req = once(SESSION, 401, OP(XKV_OP_GET, KEY("k")));

	memset(bed.once, 0, sizeof(none));
	goes_up(&req, XKV_C_pass_miss);
	for (int i = 0; i < 2; i++) {
		put_text("k", i ? "1" : "2");
		answers(&req, RESULTS({ XKV_OP_GET, 0, i ? "1" : "2", 1, .version = ANY }),
			COUNTS(XKV_C_get_hits));
	}
	req = once(SESSION, 401, OP(XKV_OP_PING, 0));
	answers(&req, RESULTS({ XKV_OP_PING, 0 }), COUNTS(XKV_C_pings));
	req = once(SESSION, 401, op);
	answers(&req, RESULTS({ XKV_OP_SESSION, 0, session_for(SESSION), 8 }),
		COUNTS(XKV_C_sessions));
	assert_memory_equal(bed.once, none, sizeof(none));
	req = REQUEST(XKV_OP_SESSION, 0); /* without a session there is nothing to prove */
	refuses(&req, XKV_BAD_REQUEST);
	req = once(0xffffff, 402, op); /* that is all proof */
	refuses_once(&req);
	req = once(SESSION, 403, OP(XKV_OP_SESSION, 0, KEY("k")));
	refuses_once(&req);
	req = once(SESSION, 404, op);
	req.byte[24 + 1] = XKV_NX;
	refuses_once(&req);
}

/* Sessions until a set has no room: then nothing is done. */
static void test_once_full(void **state)
{
	struct xkv_dedup_set *set = bed.once;
	struct payload req;
	int tries = 0;

	do {
		assert_true(tries++ < XKV_DEDUP_SETS * XKV_DEDUP_WAYS);
		req = once(0xabc000 + (uint64_t)tries, 1, OP(XKV_OP_SET, KEY("k"), VALUE("1")));
		assert_int_equal(verdict_of(&req, &out), XDP_TX);
	} while (out.frame[packet_payload_at(false, 0) + 5] != XKV_NO_SESSION);
	header_answers(&req, XKV_NO_SESSION, XKV_C_error_once);
	account();
	for (int i = 0; i < XKV_DEDUP_SETS; i++) /* a minute later */
		for (int way = 0; way < XKV_DEDUP_WAYS; way++)
			if (set[i].way[way].session)
				set[i].way[way].used_ms -= XKV_DEDUP_MS + 1000;
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = version }), COUNTS(XKV_C_once_repeated));
	memset(set, 0, XKV_DEDUP_SETS * sizeof(*set));
}

/* ---- several operations -------------------------------------------------- */

static void test_batch(void **state)
{
	struct payload req;

	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_SET, KEY("a"), VALUE("one")));
	request_add(&req, OP(XKV_OP_GET, KEY("a")));
	request_add(&req,
		    OP(XKV_OP_SET, XKV_RETURN, KEY("a"), VALUE("two two two two two two two")));
	request_add(&req, OP(XKV_OP_EXPIRE, KEY("a"), .ttl = 5000));
	request_add(&req, OP(XKV_OP_DELETE, XKV_RETURN, KEY("a")));
	request_add(&req, OP(XKV_OP_DELETE, KEY("a")));
	request_add(&req, OP(XKV_OP_PING, 0));
	for (int i = 0; i < 12; i++)
		answers(&req,
			RESULTS({ XKV_OP_SET, 0, .version = ANY },
				{ XKV_OP_GET, 0, "one", 3, .version = ANY },
				{ XKV_OP_SET, 0, "one", 3, .version = ANY },
				{ XKV_OP_EXPIRE, 0, .ttl = 5000, .version = ANY },
				{ XKV_OP_DELETE, 0, "two two two two two two two", 27 },
				{ XKV_OP_DELETE, XKV_MISS }, PONG),
			COUNTS(XKV_C_inserts, XKV_C_get_hits, XKV_C_moves, XKV_C_expiry_changes,
			       XKV_C_ttls_given, XKV_C_deletes, XKV_C_op_misses, XKV_C_pings));
	assert_int_equal(store_count(bed.st), 0);
}

/* As many as there is room for, also in a datagram that is larger than a reply may be. */
static void test_many_pings(void **state)
{
	static const struct {
		bool v6;
		unsigned int asked, answered;
	} t[] = { { false, 60, 60 }, { false, 63, 60 }, { true, 58, 58 },
		  { true, 59, 59 },  { true, 60, 59 },	{ true, 63, 59 } };
	struct result pong[63];
	int counters[64];
	struct packet_spec s;
	struct payload req;

	for (size_t i = 0; i < 6; i++) {
		request_begin(&req, ID, NULL);
		for (unsigned int n = 0; n < t[i].asked; n++) {
			request_add(&req, OP(XKV_OP_PING, 0));
			pong[n] = (struct result)PONG;
			counters[n] = XKV_C_pings;
		}
		counters[t[i].answered] = NOTHING;
		s = packet_plain(t[i].v6, &req);
		spec_answers(&s, 0, pong, t[i].answered, counters);
	}
}

/* An operation that XDP leaves to xkvd ends the reply before it; what follows is not done. */
static void test_partial_miss(void **state)
{
	struct payload req;

	put_text("a", "1");
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_GET, KEY("a")));
	request_add(&req, OP(XKV_OP_GET, KEY("b")));
	request_add(&req, OP(XKV_OP_DELETE, KEY("a")));
	for (int i = 0; i < 12; i++)
		answers(&req, RESULTS({ XKV_OP_GET, 0, "1", 1, .version = ANY }),
			COUNTS(XKV_C_get_hits));
	holds_text("a", "1");
	bed.c->miss_reply = 1;
	answers(&req,
		RESULTS({ XKV_OP_GET, 0, "1", 1, .version = ANY }, { XKV_OP_GET, XKV_MISS },
			{ XKV_OP_DELETE }),
		COUNTS(XKV_C_get_hits, XKV_C_get_misses, XKV_C_deletes));
	bed.c->miss_reply = 0;
	request_begin(&req, ID, NULL); /* the first: all of it goes up, as it came */
	request_add(&req, OP(XKV_OP_GET, KEY("b")));
	request_add(&req, OP(XKV_OP_SET, KEY("b"), VALUE("2")));
	for (int i = 0; i < 12; i++)
		goes_up(&req, XKV_C_pass_miss);
	is_gone("b");
	xkvd_answers(&req, XKV_PAYLOAD_MAX4,
		     RESULTS({ XKV_OP_GET, XKV_MISS }, { XKV_OP_SET, 0, .version = ANY }),
		     COUNTS(XKV_C_get_misses, XKV_C_inserts));
}

/* A value that no longer fits ends the reply before it. */
static void test_partial_full(void **state)
{
	struct payload req;
	struct packet_spec s;

	put("a", pattern(0), 600, 0);
	put("b", pattern(0) + 1, 768, 0);
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_GET, KEY("a")));
	request_add(&req, OP(XKV_OP_GET, KEY("b")));
	request_add(&req, OP(XKV_OP_SET, KEY("a"), VALUE("never")));
	s = packet_plain(false, &req);
	/* 16 + 24 + 600 + 24 + 768 + 24 is 1456: the third fits too */
	spec_answers(&s, 0,
		     RESULTS({ XKV_OP_GET, 0, pattern(0), 600, .version = ANY },
			     { XKV_OP_GET, 0, pattern(0) + 1, 768, .version = ANY },
			     { XKV_OP_SET, 0, .version = ANY }),
		     COUNTS(XKV_C_get_hits, XKV_C_get_hits, XKV_C_moves));
	put("a", pattern(0), 600, 0);
	put("b", pattern(0) + 1, 792, 0);
	spec_answers(&s, 0,
		     RESULTS({ XKV_OP_GET, 0, pattern(0), 600, .version = ANY },
			     { XKV_OP_GET, 0, pattern(0) + 1, 792, .version = ANY }),
		     COUNTS(XKV_C_get_hits, XKV_C_get_hits));
	holds("a", pattern(0), 600); /* no room for its result: not done */
	put("b", pattern(0) + 1, 817, 0);
	spec_answers(&s, 0, RESULTS({ XKV_OP_GET, 0, pattern(0), 600, .version = ANY }),
		     COUNTS(XKV_C_get_hits));
	put("a", pattern(0), 1433, 0); /* the first is too large for any: up */
	passes(&s, XKV_C_pass_too_large);
}

/* What is refused ends the reply; what came before it is done. */
static void test_partial_refused(void **state)
{
	struct payload req;

	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_SET, KEY("a"), VALUE("1")));
	request_add(&req, OP(99, 0));
	request_add(&req, OP(XKV_OP_SET, KEY("b"), VALUE("2")));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }, { 99, XKV_BAD_OPCODE }),
		COUNTS(XKV_C_inserts, XKV_C_op_bad_opcode));
	is_gone("b");
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_PING, 0));
	request_add(&req, OP(XKV_OP_SET, KEY("b"), VALUE("2")));
	for (size_t len = req.len - 8; len > 40; len -= 8) { /* the second is cut off */
		put_be(req.byte + 6, 2, len);
		if (len >= 64)
			answers(&req, RESULTS(PONG, { XKV_OP_SET, XKV_BAD_REQUEST }),
				COUNTS(XKV_C_pings, XKV_C_op_bad_request));
		else
			answers(&req, RESULTS(PONG), COUNTS(XKV_C_pings));
	}
	is_gone("b");
}

/* ---- tests/vectors.txt --------------------------------------------------- */

static void vector_config(const char *word)
{
	if (strcmp(word, "miss=reply") == 0) {
		bed.c->miss_reply = 1;
	} else if (strcmp(word, "limited") == 0) {
		bed.rules->trusted = 0;
	} else if (strcmp(word, "log") == 0) {
		bed.c->logged = 1;
	} else if (strcmp(word, "closed") == 0) {
		bed.rules->auth = XKV_AUTH_CLOSED;
	} else {
		assert_true(strncmp(word, "token=", 6) == 0 && strlen(word) == 6 + 32);
		for (int i = 0; i < 16; i++) {
			char byte[3] = { word[6 + 2 * i], word[7 + 2 * i], 0 };

			((uint8_t *)bed_token(&bed))[i] = (uint8_t)strtoul(byte, NULL, 16);
		}
		bed.rules->auth = XKV_AUTH_TOKEN;
	}
}

/* Of the vector that is run: each run has one of its own. */
static uint64_t vector_session;

/* Puts the version, and into a reply what may be any byte, where the vector leaves it open. */
static void vector_fill(const struct vector_bytes *b, uint8_t *to, uint64_t v,
			const uint8_t *actual, size_t actual_len)
{
	unsigned int at = 0;

	memcpy(to, b->byte, b->len);
	for (size_t i = 0; i < b->len; i++) {
		if (b->kind[i] == VECTOR_VERSION)
			to[i] = (uint8_t)(v >> (56 - 8 * (at++ & 7)));
		else if (b->kind[i] == VECTOR_SESSION)
			to[i] = (uint8_t)(vector_session >> (56 - 8 * (at++ & 7)));
		else if (b->kind[i] == VECTOR_ANY && i < actual_len)
			to[i] = actual[i];
	}
}

static void vector_after(const struct vector *v)
{
	const struct vector_entry *e;
	struct store_entry got;
	int ret;

	for (unsigned int i = 0; i < v->afters; i++) {
		e = &v->after[i];
		ret = store_get(bed.ctx, e->key, e->key_len, &got);
		assert_int_equal(ret, e->has_value ? 0 : -ENOENT);
		if (!e->has_value)
			continue;
		assert_int_equal(got.value_len, e->value_len);
		assert_memory_equal(got.value, e->value, e->value_len);
	}
}

static uint64_t vector_given(const struct vector *v)
{
	struct store_entry got = { .version = 0 };
	const struct vector_entry *e;
	uint64_t ttl;

	expire_all();
	assert_int_equal(store_flush(bed.ctx), 0);
	/* a source has two records in a set: sessions of earlier vectors may be there by chance */
	memset(bed.once, 0, XKV_DEDUP_SETS * sizeof(*bed.once));
	bed_configure(&bed);
	for (unsigned int i = 0; i < v->configs; i++)
		vector_config(v->config[i]);
	for (unsigned int i = 0; i < v->givens; i++) {
		e = &v->given[i];
		ttl = e->ttl_ms ? store_now_ms(bed.st) + e->ttl_ms : 0;
		assert_int_equal(store_set(bed.ctx, e->key, e->key_len, e->value, e->value_len, 0,
					   0, ttl, NULL),
				 0);
	}
	if (v->givens)
		assert_int_equal(store_get(bed.ctx, v->given[0].key, v->given[0].key_len, &got), 0);
	return got.version;
}

/* What xkvd says to a request that went up: the vector's reply, or nothing. */
static void vector_xkvd(const struct vector *v, const uint8_t *req, uint64_t first)
{
	size_t allowed = bed.rules->trusted ? XKV_PAYLOAD_MAX4 : 3 * v->request.len;
	uint8_t reply[XKV_PAYLOAD_MAX4], want[VECTOR_BYTES];
	int len = store_datagram(bed.ctx, req, v->request.len, reply, sizeof(reply), allowed);

	assert_true(len >= 0);
	vector_fill(&v->reply, want, first, reply, (size_t)len);
	same_bytes(reply, (size_t)len, want, v->has_reply ? v->reply.len : 0);
}

/* One request of a vector; `first`: the version of its first entry. */
static void vector_request_run(const struct vector *v, uint64_t first, bool v6, unsigned int tags)
{
	static const int verdicts[] = {
		[VECTOR_TX] = XDP_TX, [VECTOR_PASS] = XDP_PASS, [VECTOR_DROP] = XDP_DROP
	};
	uint8_t frame[PACKET_MAX], want[PACKET_MAX], req[VECTOR_BYTES], reply[VECTOR_BYTES];
	size_t at = packet_payload_at(v6, tags), len;
	struct packet_spec s, answer;

	vector_fill(&v->request, req, first, NULL, 0);
	packet_default(&s, v6);
	s.tags = tags;
	s.payload = req;
	s.len = v->request.len;
	len = packet_build(&s, frame);
	assert_true(bed_run(&bed, frame, len, &out));
	if (out.verdict != verdicts[v->verdict])
		print_error("vector %s\n", v->name);
	assert_int_equal(out.verdict, verdicts[v->verdict]);
	if (v->verdict == VECTOR_PASS) {
		same_bytes(out.frame, out.len, frame, len);
		vector_xkvd(v, req, first);
	} else if (v->verdict == VECTOR_TX) {
		vector_fill(&v->reply, reply, first, out.frame + at,
			    out.len > at ? out.len - at : 0);
		answer = packet_answer(&s, reply, v->reply.len);
		same_bytes(out.frame, out.len, want, packet_build(&answer, want));
	}
	vector_after(v);
}

/* A vector of so many requests, over IPv4 and IPv6, with all numbers of tags. */
static void vector_run(const struct vector *v, unsigned int requests)
{
	size_t len = strlen(v->name);
	uint64_t first;

	vector_running = v->name;
	for (unsigned int i = 0; i < 6; i++) {
		if (i % 2 && len > 3 && strcmp(v->name + len - 3, "-v4") == 0)
			continue;
		/* cannot go up in batched mode: see passes() */
		if (bed_batched && !i && v->verdict == VECTOR_PASS)
			continue;
		first = vector_given(v);
		vector_session++;
		for (unsigned int n = 0; n < requests; n++)
			vector_request_run(&v[n], first, i % 2, i / 2);
	}
	vector_running = NULL;
}

static void test_vectors(void **state)
{
	static struct vector v[VECTOR_REQUESTS];
	unsigned int n = 0, requests;
	struct vector_file f;

	vectors_open(&f);
	for (; (requests = vectors_read(&f, v)); n++)
		vector_run(v, requests);
	vectors_close(&f);
	assert_true(n > 50);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_header),	    CASE(test_header_flags), CASE(test_header_length),
		CASE(test_token),	    CASE(test_opcodes),	     CASE(test_flags),
		CASE(test_bad_fields),	    CASE(test_bad_keys),     CASE(test_dirty_padding),
		CASE(test_bad_value_len),   CASE(test_once),	     CASE(test_once_long),
		CASE(test_once_goes_up),    CASE(test_once_durable), CASE(test_durable),
		CASE(test_once_reads),	    CASE(test_once_full),    CASE(test_batch),
		CASE(test_many_pings),	    CASE(test_partial_miss), CASE(test_partial_full),
		CASE(test_partial_refused), CASE(test_vectors),
	};

	return bed_begin(argc, argv) ?: BOTH_WAYS("requests", tests, exchange_begin);
}

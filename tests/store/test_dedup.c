// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 4 */
/* Requests that are done only once: the dedup cache, sessions, and what floods may do to them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <linux/bpf.h>

#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "ask.h"
#include "fixture.h"
#include "packet.h"
#include "random.h"
#include "xdpbed.h"

#define SESSION 0x5e5510115e551011ULL

/* Asks an INCR of "n" by 1 as request `id` of a session. */
static void ask_once(enum frontend frontend, uint64_t session, uint64_t id, struct reply *r)
{
	struct operation op = incr("n", 1, 1);
	struct payload p = once_request(session, id, &op);

	ask(frontend, &p, r);
}

static void counts_to(enum frontend frontend, uint64_t session, uint64_t id, int64_t n)
{
	struct reply r;

	ask_once(frontend, session, id, &r);
	assert_false(r.dropped);
	assert_int_equal(r.count, 1);
	assert_int_equal(number(&r), n);
}

static void is_dropped(enum frontend frontend, uint64_t session, uint64_t id)
{
	uint64_t before = count_of(XKV_C_drop_repeated);
	struct reply r;

	ask_once(frontend, session, id, &r);
	assert_true(r.dropped);
	assert_int_equal(count_of(XKV_C_drop_repeated), before + (frontend == DRIVER));
}

static void header_only(enum frontend frontend, uint64_t session, uint64_t id, uint8_t status)
{
	struct reply r;

	ask_once(frontend, session, id, &r);
	assert_false(r.dropped);
	assert_int_equal(r.status, status);
}

/* Through whichever front end it comes again. */
static void test_once(void **state)
{
	uint64_t repeated = count_of(XKV_C_once_repeated);

	for (enum frontend first = 0; first < FRONTENDS; first++) {
		for (enum frontend second = 0; second < FRONTENDS; second++) {
			uint64_t session = SESSION + first * 2 + second;

			put_text("n", "41");
			counts_to(first, session, 80, 42);
			counts_to(second, session, 80, 42);
			counts_to(first, session, 80, 42);
			counts_to(second, session, 88, 43);
			is_dropped(first, session, 80); /* came late */
			is_dropped(second, session, 8);
			counts_to(first, session, 88, 43);
			counts_to(first, session, 1000 * 8, 44);
			is_dropped(second, session, 88);
			holds_text("n", "44");
		}
	}
	assert_int_equal(count_of(XKV_C_once_repeated) - repeated, 4 * 3);
}

/* All of a reply comes again, also where the entry is another one by now. */
static void test_once_same_bytes(void **state)
{
	struct operation ops[] = {
		{ .opcode = XKV_OP_SET,
		  TEXT("k"),
		  .value = "new",
		  .value_len = 3,
		  .ttl = 50000,
		  .flags = XKV_RETURN },
		incr("k", 1, 1),
		{ .opcode = XKV_OP_EXPIRE, TEXT("none"), .ttl = 1000000 },
		{ .opcode = XKV_OP_EXPIRE, TEXT("k"), .ttl = 1000000 },
		append("k", 1, "0", 1),
		{ .opcode = XKV_OP_DELETE, TEXT("k"), .flags = XKV_RETURN },
		{ .opcode = XKV_OP_DELETE, TEXT("k") },
		{ .opcode = XKV_OP_PING },
		{ .opcode = 99, TEXT("k") },
		{ .opcode = XKV_OP_SET, TEXT("k"), .flags = XKV_NX | XKV_XX },
	};
	struct reply first, again;
	struct payload p;

	for (size_t i = 0; i < 2 * sizeof(ops) / sizeof(ops[0]); i++) {
		put_text("k", "41");
		p = once_request(SESSION, 8 * (i + 1), &ops[i / 2]);
		ask(i % FRONTENDS, &p, &first);
		assert_false(first.dropped);
		put_text("k", "something else");
		ask((i + 1) % FRONTENDS, &p, &again);
		assert_int_equal(again.len, first.len);
		assert_memory_equal(again.byte, first.byte, first.len);
		holds_text("k", "something else");
	}
}

/* Eight requests may be under way at once, in any order. */
static void test_once_slots(void **state)
{
	for (uint64_t round = 0; round < 24; round += 8) {
		for (uint64_t i = 0; i < 8; i++)
			counts_to(i % FRONTENDS, SESSION, round + i * 3 % 8,
				  (int64_t)(round + i + 1));
		for (uint64_t i = 0; i < 8; i++)
			counts_to(DRIVER, SESSION, round + i * 3 % 8, (int64_t)(round + i + 1));
	}
	for (uint64_t i = 0; i < 16; i++)
		is_dropped(DRIVER, SESSION, i);
	/* ids go round */
	put_text("n", "0");
	counts_to(DRIVER, SESSION + 1, UINT64_MAX - 7, 1);
	counts_to(DRIVER, SESSION + 1, 0, 2);
	counts_to(DRIVER, SESSION + 1, 8, 3);
	is_dropped(DRIVER, SESSION + 1, UINT64_MAX - 7);
}

/*
 * A source has two records in a set.  That three of these come to one set, under a secret that is
 * drawn for each run, happens once in 15,000 runs; of 100 it was once in 25.
 */
#define ONCE_SESSIONS 12

/* The same id in another session is another request; and without a session everything is. */
static void test_once_sessions(void **state)
{
	struct operation op = incr("n", 1, 1);
	struct reply r;
	struct payload p;

	for (uint64_t i = 1; i <= ONCE_SESSIONS; i++)
		counts_to(i % FRONTENDS, i << 56 | i, 80, (int64_t)i);
	for (uint64_t i = 1; i <= ONCE_SESSIONS; i++)
		counts_to(DRIVER, i << 56 | i, 80, (int64_t)i);
	p = once_request(0, 80, &op);
	for (int i = 1; i <= 3; i++) {
		ask(DRIVER, &p, &r);
		assert_int_equal(number(&r), ONCE_SESSIONS + i);
	}
}

/* Replies of up to 88 bytes are kept, header and all. */
static void test_once_too_long(void **state)
{
	struct operation op = op_on(XKV_OP_DELETE, "k", 1);
	uint64_t id = 0;
	struct payload p;
	struct reply r;

	op.flags = XKV_RETURN;
	for (size_t len = 40; len < 60; len++) {
		for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
			put_bytes("k", 1, pattern(0), len, 0);
			p = once_request(SESSION, id += 8, &op);
			ask(frontend, &p, &r);
			assert_int_equal(r.result[0].value_len, len);
			put_bytes("k", 1, "again", 5, 0);
			ask(!frontend, &p, &r);
			assert_int_equal(r.status, len > 48 ? XKV_REPEATED : 0);
			if (len <= 48)
				assert_memory_equal(r.value[0], pattern(0), len);
			holds_text("k", "again");
		}
	}
}

/* A request that XDP cannot do is done once, whichever front end does it in the end. */
static void test_once_passed(void **state)
{
	struct operation op = incr("n", 1, 1);
	struct payload p = once_request(SESSION, 80, &op);
	struct xkv_slot *slot;
	struct outcome out;
	struct packet_spec s;
	struct reply first, r;
	uint8_t frame[PACKET_MAX];
	size_t len;

	put_text("n", "41");
	counts_to(DRIVER, SESSION, 72, 42); /* a request before it, whose record it takes */
	slot = bed_slot(&bed, "n", 1);
	s = packet_plain(false, &p);
	len = packet_build(&s, frame);
	slot->seq |= 1; /* somebody is writing it */
	for (int i = 0; i < 3; i++) {
		assert_true(bed_run(&bed, frame, len, &out));
		assert_int_equal(out.verdict, XDP_PASS);
		assert_int_equal(out.len, len);
		assert_memory_equal(out.frame, frame, len);
	}
	slot->seq &= ~1ULL;
	ask(DAEMON, &p, &first); /* the first copy, from the socket */
	assert_int_equal(number(&first), 43);
	ask(DRIVER, &p, &r); /* the client's repetition */
	assert_int_equal(number(&r), 43);
	ask(DAEMON, &p, &r); /* the other copies that went up */
	assert_int_equal(number(&r), 43);
	assert_memory_equal(r.byte, first.byte, first.len);
	is_dropped(DAEMON, SESSION, 72);
	holds_text("n", "43");
}

/*
 * xkvd has to try twice, and between its tries another copy is done: it answers as to any
 * repetition, and is at its end.
 */
static void test_once_stopped(void **state)
{
	struct operation op = incr("n", 1, 1);
	struct payload p = once_request(SESSION, 80, &op);
	struct xkv_request *f = bed_frame(&bed);
	struct xkv_slot *slot;
	struct reply r;

	put_text("n", "41");
	memset(f, 0, offsetof(struct xkv_request, in));
	f->flags = XKV_REQUEST_XKVD;
	f->req_len = (uint32_t)p.len;
	f->reply_max = f->reply_allowed = f->reply_room = DATAGRAM;
	memcpy(f->in, p.byte, p.len);
	slot = bed_slot(&bed, "n", 1);
	slot->seq |= 1;
	assert_int_equal(bed_run_frame(&bed), 0);
	assert_int_equal(f->verdict, VERDICT_PASS);
	assert_int_equal(f->stop, XKV_C_pass_busy + 1);
	slot->seq &= ~1ULL;
	ask(DRIVER, &p, &r);
	assert_int_equal(number(&r), 42);
	assert_int_equal(bed_run_frame(&bed), 0);
	assert_int_equal(f->verdict, VERDICT_REPLY);
	assert_int_equal(f->stop, 0);
	assert_int_equal(f->out_len, r.len);
	assert_memory_equal(f->out, r.byte, r.len);
	holds_text("n", "42");
}

/* An APPEND that xkvd has to finish keeps its place in the session: its copies get what it got. */
static void test_once_append_large(void **state)
{
	struct operation op = append("k", 1, "xy", 2);
	struct payload p;
	struct reply first, r;
	int64_t len = 1471;

	put_bytes("k", 1, pattern(0), (size_t)len, 0);
	for (uint64_t id = 80; id < 160; id += 8) {
		p = once_request(SESSION, id, &op);
		ask(id % 16 ? DRIVER : DAEMON, &p, &first);
		assert_int_equal(number(&first), len += 2);
		for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
			ask(frontend, &p, &r);
			assert_true(r.len == first.len && !memcmp(r.byte, first.byte, r.len));
		}
	}
	assert_int_equal(entry_of("k", 1).value_len, len);
	put_bytes("k", 1, zeros, XKV_VALUE_MAX, 0); /* what is refused stays so */
	p = once_request(SESSION, 160, &op);
	ask(DRIVER, &p, &r);
	assert_int_equal(r.result[0].status, XKV_TOO_LARGE);
	put_bytes("k", 1, "small", 5, 0);
	ask(DAEMON, &p, &r);
	assert_int_equal(r.result[0].status, XKV_TOO_LARGE);
	holds_text("k", "small");
}

/* The reply has the length of a large old value instead; nothing is set; copies get the same. */
static void test_once_return_large(void **state)
{
	struct operation op = {
		.opcode = XKV_OP_SET, .flags = XKV_RETURN, TEXT("k"), .value = "new", .value_len = 3
	};
	struct payload p = once_request(SESSION, 80, &op);
	struct reply r;

	put_bytes("k", 1, zeros, 5000, 0);
	for (int i = 0; i < 2 * FRONTENDS; i++) {
		ask(i % FRONTENDS, &p, &r);
		assert_int_equal(r.result[0].status, XKV_TOO_LARGE);
		assert_int_equal(r.result[0].value_len, 5000);
		assert_null(r.value[0]);
	}
	assert_int_equal(entry_of("k", 1).value_len, 5000);
}

/*
 * A request that was passed on and not yet done, and a late copy of the one before it: that
 * one must not be done again, and gets no reply of another request.
 */
static void test_once_not_done(void **state)
{
	struct operation op = append("large", 5, "x", 1);
	struct payload p = once_request(SESSION, 88, &op);
	struct outcome out;
	struct reply r;

	put_bytes("large", 5, zeros, 5000, 0);
	counts_to(DRIVER, SESSION, 80, 1);
	assert_int_equal(verdict_of(&p, &out), XDP_PASS);
	ask_once(DRIVER, SESSION, 80, &r);
	assert_true(r.dropped || r.status == XKV_REPEATED);
	holds_text("n", "1");
	ask(DAEMON, &p, &r);
	assert_int_equal(number(&r), 5001);
	is_dropped(DRIVER, SESSION, 80);
}

/* The record of a session's request. */
static struct xkv_dedup *record_of(uint64_t session)
{
	for (unsigned int i = 0; i < XKV_DEDUP_SETS * XKV_DEDUP_WAYS; i++) {
		struct xkv_dedup *o = &bed.once[i / XKV_DEDUP_WAYS].way[i % XKV_DEDUP_WAYS];

		if (o->session == htobe64(session))
			return o;
	}
	return NULL;
}

/* What comes to a slot while a request of it is being worked on is dropped, copy or not. */
static void test_once_under_way(void **state)
{
	struct xkv_dedup *o;

	counts_to(DRIVER, SESSION, 80, 1);
	o = record_of(SESSION);
	assert_non_null(o);
	assert_false(o->lock & 1);
	o->lock++;
	is_dropped(DRIVER, SESSION, 80);
	is_dropped(DAEMON, SESSION, 80);
	is_dropped(DRIVER, SESSION, 88);
	counts_to(DRIVER, SESSION, 81, 2); /* others are not concerned */
	o->lock++;
	counts_to(DRIVER, SESSION, 88, 3);
}

/* Sessions until there is no room for one.  Its number; those before it were given an id each. */
static uint64_t fill_table(uint64_t from)
{
	uint64_t session = from;
	struct reply r;

	for (;; session++) {
		ask_once(session % 64 ? DRIVER : DAEMON, session, 80, &r);
		assert_false(r.dropped);
		if (r.status)
			break;
		assert_int_equal(number(&r), session - from + 1);
	}
	assert_int_equal(r.status, XKV_NO_SESSION);
	return session;
}

/* When there is no room for a record, nothing is done, and no other record is lost. */
static void test_once_full(void **state)
{
	uint64_t last = fill_table(1), refusals = count_of(XKV_C_error_once);
	char text[24];

	/* a set takes two of a source; there were three, by chance after some hundreds */
	assert_in_range(last, 3, XKV_DEDUP_SETS * XKV_DEDUP_WAYS);
	header_only(DRIVER, last, 80, XKV_NO_SESSION);
	header_only(DAEMON, last, 80, XKV_NO_SESSION);
	assert_int_equal(count_of(XKV_C_error_once) - refusals, 2);
	for (uint64_t session = 1; session < last; session++)
		counts_to(DRIVER, session, 80, (int64_t)session);
	snprintf(text, sizeof(text), "%" PRIu64, last - 1);
	holds_text("n", text);
}

/* Repeats the requests whose records stand in these ways of their sets. */
static void use_records(unsigned int from, unsigned int to)
{
	for (unsigned int i = 0; i < XKV_DEDUP_SETS * XKV_DEDUP_WAYS; i++) {
		struct xkv_dedup *o = &bed.once[i / XKV_DEDUP_WAYS].way[i % XKV_DEDUP_WAYS];
		uint64_t session = be64toh(o->session);

		if (session && i % XKV_DEDUP_WAYS >= from && i % XKV_DEDUP_WAYS < to)
			counts_to(DRIVER, session, 80, (int64_t)session);
	}
}

/* So long ago was what the records say. */
static void age_records(uint64_t ms)
{
	for (unsigned int i = 0; i < XKV_DEDUP_SETS * XKV_DEDUP_WAYS; i++)
		bed.once[i / XKV_DEDUP_WAYS].way[i % XKV_DEDUP_WAYS].used_ms -= ms;
}

/* A record is kept for 60 s after its last use; after that it is reused when one is needed. */
static void test_once_expires(void **state)
{
	uint64_t last = fill_table(1);

	age_records(59000);
	header_only(DRIVER, last, 80, XKV_NO_SESSION);
	use_records(0, XKV_DEDUP_WAYS);
	age_records(59000);
	header_only(DRIVER, last, 80, XKV_NO_SESSION);
	use_records(0, XKV_DEDUP_UNPROVEN_WAYS - 1);
	age_records(1200);
	counts_to(DRIVER, last, 80, (int64_t)last); /* in the place of the one that was not used */
	use_records(0, XKV_DEDUP_WAYS);
	age_records(3600000);
	counts_to(DRIVER, last, 80, (int64_t)last); /* nobody needed it */
}

/* A step of the wall clock neither makes the records old nor keeps them young. */
static void test_once_when_the_clock_is_stepped(void **state)
{
	uint64_t last = fill_table(1);

	for (int i = 0; i < 2; i++) {
		pass_time(i ? -7200000 : 3600000);
		header_only(DRIVER, last, 80, XKV_NO_SESSION);
		use_records(0, XKV_DEDUP_WAYS);
	}
	age_records(61000);
	counts_to(DRIVER, last, 80, (int64_t)last);
}

/* ---- sessions ---------------------------------------------------------------- */

/* The session that the server makes of what the sender has drawn. */
static uint64_t proven(enum frontend frontend, uint64_t drawn)
{
	struct operation op = { .opcode = XKV_OP_SESSION };
	struct payload p = once_request(drawn, next_id++, &op);
	struct reply r;

	ask(frontend, &p, &r);
	assert_int_equal(r.count, 1);
	assert_int_equal(r.result[0].opcode, XKV_OP_SESSION);
	assert_int_equal(r.result[0].status, XKV_OK);
	assert_int_equal(r.result[0].value_len, 8);
	return get_be(r.value[0], 8);
}

/* Both front ends say the same, to each address something else. */
static void test_session(void **state)
{
	unsigned int same = 0;

	for (uint64_t i = 1; i <= 100; i++) {
		uint64_t drawn = i << 40 | 0x123456, here;

		source = htonl(CLIENT);
		here = proven(i % FRONTENDS, drawn);
		assert_true(here >> 24 == drawn >> 24);
		assert_true(proven(!(i % FRONTENDS), drawn + 1) == here);
		assert_true(proven(DRIVER, here) == here);
		source = htonl(CLIENT + 1);
		same += proven(i % FRONTENDS, drawn) == here;
	}
	assert_true(same <= 1); /* by chance */
}

/* Records that are used, by whether their sessions are proven. */
static unsigned int records(bool are_proven)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < XKV_DEDUP_SETS * XKV_DEDUP_WAYS; i++) {
		struct xkv_dedup *o = &bed.once[i / XKV_DEDUP_WAYS].way[i % XKV_DEDUP_WAYS];

		n += o->session && !(o->holder & XKV_DEDUP_PROVEN) == !are_proven;
	}
	return n;
}

#define FLOOD 60000

/*
 * So many changes with sessions by chance, from one source or from many.  How many of them had no
 * room.
 */
static unsigned int flood(unsigned int requests, unsigned int sources)
{
	struct operation op = incr("flood", 5, 1);
	in_addr_t mine = source;
	unsigned int refusals = 0;
	struct payload p;
	struct reply r;

	for (unsigned int i = 0; i < requests; i++) {
		source = htonl(CLIENT + 2 + i % sources);
		p = once_request(random_u64() | 1, random_u64(), &op);
		ask(i % 64 ? DRIVER : DAEMON, &p, &r);
		assert_false(r.dropped);
		refusals += r.status == XKV_NO_SESSION;
	}
	source = mine;
	return refusals;
}

/*
 * New clients, which have their sessions proven, again where there is no room, and write: as libxkv
 * does it.
 */
static void clients_write(unsigned int clients, int64_t n)
{
	struct reply r;
	uint64_t session;
	unsigned int tries;

	for (unsigned int i = 0; i < clients; i++) {
		tries = 0;
		do {
			assert_true(tries++ < 8);
			session = proven(i % 8 ? DRIVER : DAEMON, random_u64() | 1ULL << 40);
			ask_once(i % 8 ? DRIVER : DAEMON, session, 8, &r);
		} while (r.status == XKV_NO_SESSION);
		assert_int_equal(number(&r), ++n);
		counts_to(DRIVER, session, 8, n);
		counts_to(DRIVER, session, 16, ++n);
		is_dropped(DRIVER, session, 8);
	}
}

/* PINGs and reads with sessions by chance leave nothing behind. */
static void test_flood_of_reads(void **state)
{
	struct operation ops[] = { { .opcode = XKV_OP_PING },	 op_on(XKV_OP_GET, "n", 1),
				   op_on(XKV_OP_TTL, "n", 1),	 op_on(XKV_OP_TOUCH, "n", 1),
				   { .opcode = XKV_OP_SESSION }, op_on(99, "n", 1) };
	struct payload p;
	struct reply r;

	put_text("n", "0");
	for (unsigned int i = 0; i < FLOOD; i++) {
		p = once_request(random_u64() | 1ULL << 40, i, &ops[i % 6]);
		ask(DRIVER, &p, &r);
		assert_false(r.dropped);
		assert_int_equal(r.result[0].status, i % 6 == 5 ? XKV_BAD_OPCODE : XKV_OK);
	}
	assert_int_equal(records(false) + records(true), 0);
	counts_to(DRIVER, SESSION, 8, 1);
}

/* One source takes its share, and others, and proven sessions of its own, have theirs. */
static void test_flood_of_one_source(void **state)
{
	struct reply r;
	unsigned int refused = 0;

	assert_true(flood(FLOOD, 1) > FLOOD / 2);
	assert_in_range(records(false), 1, XKV_DEDUP_SETS * XKV_DEDUP_PER_SOURCE);
	put_text("n", "0");
	for (uint64_t i = 1; i <= 100; i++) { /* clients that know nothing of proofs */
		ask_once(DRIVER, random_u64() | 1, 8, &r);
		refused += r.status == XKV_NO_SESSION;
	}
	assert_in_range(refused, 0, 10); /* two of them in one set */
	put_text("n", "0");
	source = htonl(CLIENT + 2); /* that of the flood */
	clients_write(100, 0);
}

/* Sources by the thousand take what is there for all, and no more. */
static void test_flood_of_many_sources(void **state)
{
	uint64_t older = proven(DRIVER, SESSION);

	counts_to(DRIVER, older, 8, 1);
	counts_to(DRIVER, SESSION, 8, 2); /* of a client that knows nothing of proofs */
	flood(FLOOD, 250);
	assert_true(records(false) > XKV_DEDUP_SETS * XKV_DEDUP_UNPROVEN_WAYS * 9 / 10);
	assert_in_range(records(true), 1, 3); /* but the one, by chance only */
	counts_to(DRIVER, older, 8, 1);	      /* nobody loses what he has */
	counts_to(DRIVER, SESSION, 8, 2);
	clients_write(1000, 2);
	counts_to(DRIVER, older, 16, 2003);
}

/* A source that receives what it asks for gets its share as well, and no more. */
static void test_flood_of_proven(void **state)
{
	unsigned int refusals = 0;
	struct reply r;

	source = htonl(CLIENT + 1);
	for (unsigned int i = 0; i < FLOOD / 2; i++) {
		ask_once(DRIVER, proven(DRIVER, random_u64() | 1ULL << 40), 8, &r);
		refusals += r.status == XKV_NO_SESSION;
	}
	assert_true(refusals > FLOOD / 4);
	assert_in_range(records(true), XKV_DEDUP_SETS, XKV_DEDUP_SETS * XKV_DEDUP_PER_SOURCE);
	flood(FLOOD, 250);
	put_text("n", "0");
	source = htonl(CLIENT);
	clients_write(1000, 0);
}

/* A request that was captured on the wire changes nothing when it is replayed, by any source. */
static void test_replays(void **state)
{
	uint64_t session = proven(DRIVER, SESSION);
	struct reply r;

	for (uint64_t id = 8; id <= 8 * 100; id += 8)
		counts_to(id % 64 ? DRIVER : DAEMON, session, id, (int64_t)id / 8);
	source = htonl(CLIENT + 1);
	for (uint64_t id = 8; id <= 8 * 100; id += 8) {
		ask_once(id % 64 ? DRIVER : DAEMON, session, id, &r);
		assert_true(id == 800 ? number(&r) == 100 : r.dropped);
	}
	holds_text("n", "100");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_once),
		CASE(test_once_same_bytes),
		CASE(test_once_slots),
		CASE(test_once_sessions),
		CASE(test_once_too_long),
		CASE(test_once_append_large),
		CASE(test_once_return_large),
		CASE(test_once_passed),
		CASE(test_once_stopped),
		CASE(test_once_not_done),
		CASE(test_once_under_way),
		CASE(test_once_full),
		CASE(test_once_expires),
		CASE(test_once_when_the_clock_is_stepped),
		CASE(test_session),
		CASE(test_flood_of_reads),
		CASE(test_flood_of_one_source),
		CASE(test_flood_of_many_sources),
		CASE(test_flood_of_proven),
		CASE(test_replays),
	};

	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("dedup", tests, ask_begin, close_bed);
}

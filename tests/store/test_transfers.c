// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 8 */
/* tests/run: firm */
/* ATOMIC datagrams through both front ends: the same replies, done once, and side by side. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "ask.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

#define SESSION	    0x5e5510115e551011ULL
#define VALUE(text) .value = (text), .value_len = strlen(text)
#define AMOUNT(at)  .value = (at), .value_len = 8
#define ATOMIC(id, session, ...)                                                                   \
	atomic_request(id, session, (const struct operation[]){ __VA_ARGS__ },                     \
		       sizeof((const struct operation[]){ __VA_ARGS__ }) /                         \
			       sizeof(struct operation))

static const uint8_t one[8] = { 0, 0, 0, 0, 0, 0, 0, 1 };

static struct payload atomic_request(uint64_t id, uint64_t session, const struct operation *op,
				     size_t n)
{
	struct payload p;

	begin(&p, id, session);
	p.byte[3] |= XKV_F_ATOMIC;
	for (size_t i = 0; i < n; i++)
		request_add(&p, &op[i]);
	return p;
}

static void aborted(const struct reply *r, unsigned int index, uint8_t status)
{
	assert_int_equal(r->status, XKV_ABORTED);
	assert_int_equal(r->result[0].index, index);
	assert_int_equal(r->result[0].status, status);
}

/* ---- both front ends ------------------------------------------------------- */

static void test_same_replies(void **state)
{
	static const struct operation cas = {
		.opcode = XKV_OP_SET, .flags = XKV_CAS, TEXT("a"), VALUE("x"), .version = 2
	};
	struct reply r[FRONTENDS];
	struct payload p;

	for (enum frontend f = 0; f < FRONTENDS; f++) {
		put_text("a", "1");
		put_text("n", "41");
		put_text("d", "1");
		p = ATOMIC(7, 0, { .opcode = XKV_OP_SET, TEXT("a"), VALUE("2") },
			   { .opcode = XKV_OP_INCR, TEXT("n"), AMOUNT(one) },
			   { .opcode = XKV_OP_DELETE, .flags = XKV_RETURN, TEXT("d") },
			   { .opcode = XKV_OP_APPEND, TEXT("new"), VALUE("abc") },
			   { .opcode = XKV_OP_EXPIRE, TEXT("none"), .ttl = 5 },
			   { .opcode = XKV_OP_CHECK, TEXT("absent") });
		ask(f, &p, &r[f]);
		assert_int_equal(r[f].count, 6);
		assert_int_equal(r[f].result[0].version, version_of("a"));
		assert_int_equal(r[f].result[1].version, version_of("n"));
		assert_int_equal(get_be(r[f].value[1], 8), 42);
		assert_memory_equal(r[f].value[2], "1", 1);
		assert_int_equal(get_be(r[f].value[3], 8), 3);
		assert_int_equal(r[f].result[4].status, XKV_MISS);
		assert_int_equal(r[f].result[5].status, XKV_OK);
		holds_text("a", "2");
		holds_text("n", "42");
		holds_text("new", "abc");
		is_gone("d");
		p = ATOMIC(8, 0, { .opcode = XKV_OP_INCR, TEXT("n"), AMOUNT(one) }, cas);
		ask(f, &p, &r[f]);
		aborted(&r[f], 1, XKV_NOT_STORED);
		assert_int_equal(r[f].result[0].version, version_of("a"));
		holds_text("n", "42");
		assert_int_equal(store_delete(bed.ctx, "new", 3, NULL), 0);
	}
}

/* The driver finds no free slot: xkvd adds memory, and does it all. */
static void test_no_slot(void **state)
{
	struct payload p =
		ATOMIC(1, 0, { .opcode = XKV_OP_INCR, TEXT("n"), AMOUNT(one) },
		       { .opcode = XKV_OP_SET, TEXT("s"), .value = zeros, .value_len = 1100 },
		       { .opcode = XKV_OP_SET, TEXT("t"), .value = zeros, .value_len = 40 });
	struct reply r;

	open_bed(MAX_KEYS);
	put_text("n", "1");
	ask(DRIVER, &p, &r);
	assert_true(r.passed);
	assert_int_equal(r.status, XKV_OK);
	assert_int_equal(r.count, 3);
	holds_text("n", "2");
	holds("s", zeros, 1100);
	holds("t", zeros, 40);
	account();
	ask(DRIVER, &p, &r);
	assert_false(r.passed);
	holds_text("n", "3");
}

/* There is none: nothing is done, and what the operations before it have taken is free again. */
static void test_no_memory(void **state)
{
	struct payload p =
		ATOMIC(1, SESSION, { .opcode = XKV_OP_INCR, TEXT("n"), AMOUNT(one) },
		       { .opcode = XKV_OP_SET, TEXT("t"), VALUE("2") },
		       { .opcode = XKV_OP_SET, TEXT("s"), .value = zeros, .value_len = 1300 });
	struct reply r;

	open_bed(MAX_KEYS);
	put_text("n", "1");
	bed.st->no_slot = no_room;
	ask(DAEMON, &p, &r);
	bed.st->no_slot = slots_grow;
	aborted(&r, 2, XKV_NO_MEMORY);
	holds_text("n", "1");
	is_gone("t");
	account();
}

/* A lock is held for longer than xkvd waits. */
static void test_busy(void **state)
{
	struct payload p = ATOMIC(1, 0, { .opcode = XKV_OP_INCR, TEXT("n"), AMOUNT(one) },
				  { .opcode = XKV_OP_SET, TEXT("new"), VALUE("2") },
				  { .opcode = XKV_OP_GET, TEXT("a") });
	struct xkv_slot *slot;
	struct reply r;

	put_text("n", "1");
	put_text("a", "1");
	slot = bed_slot(&bed, "a", 1);
	slot->seq |= 1;
	bed_impatient(&bed, true);
	ask(DRIVER, &p, &r);
	bed_impatient(&bed, false);
	slot->seq &= ~1ULL;
	assert_true(r.passed);
	aborted(&r, 2, XKV_BUSY);
	holds_text("n", "1");
	is_gone("new");
}

/* ---- only once ------------------------------------------------------------- */

static void test_once(void **state)
{
	struct reply r, again;
	struct payload p;

	for (int way = 0; way < 4; way++) {
		enum frontend first = way & 1, second = way >> 1;

		put_text("n", "0");
		put_text("m", "0");
		p = ATOMIC(80, SESSION + way, { .opcode = XKV_OP_GET, TEXT("other") },
			   { .opcode = XKV_OP_INCR, TEXT("n"), AMOUNT(one) });
		ask(first, &p, &r);
		assert_int_equal(r.count, 2);
		put_text("other", "changed");
		ask(second, &p, &again);
		assert_int_equal(again.len, r.len);
		assert_memory_equal(again.byte, r.byte, r.len);
		assert_int_equal(store_delete(bed.ctx, "other", 5, NULL), 0);
		holds_text("n", "1");
		p = ATOMIC(88, SESSION + way, { .opcode = XKV_OP_INCR, TEXT("n"), AMOUNT(one) },
			   { .opcode = XKV_OP_INCR, TEXT("m"), AMOUNT(one) },
			   { .opcode = XKV_OP_CHECK, TEXT("x") });
		ask(first, &p, &r); /* 104 bytes: too long to be kept */
		assert_int_equal(r.count, 3);
		ask(second, &p, &r);
		assert_int_equal(r.status, XKV_REPEATED);
		holds_text("n", "2");
		holds_text("m", "1");
		p = ATOMIC(96, SESSION + way, { .opcode = XKV_OP_INCR, TEXT("n"), AMOUNT(one) },
			   { .opcode = XKV_OP_CHECK, TEXT("m") });
		ask(first, &p, &r);
		aborted(&r, 1, XKV_NOT_STORED);
		assert_int_equal(store_delete(bed.ctx, "m", 1, NULL), 0);
		ask(second, &p, &r); /* its condition would hold now */
		aborted(&r, 1, XKV_NOT_STORED);
		holds_text("n", "2");
	}
}

/* One that stopped in the driver has not been done, and xkvd does it. */
static void test_once_goes_up(void **state)
{
	struct payload p =
		ATOMIC(80, SESSION, { .opcode = XKV_OP_INCR, TEXT("n"), AMOUNT(one) },
		       { .opcode = XKV_OP_SET, TEXT("s"), .value = zeros, .value_len = 1200 });
	struct reply r;

	open_bed(MAX_KEYS);
	put_text("n", "1");
	ask(DRIVER, &p, &r);
	assert_true(r.passed);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(r.count, 2);
		holds_text("n", "2");
		ask(i & 1 ? DRIVER : DAEMON, &p, &r);
	}
}

/* What was done before writes were refused is answered as it was then. */
static void test_once_read_only(void **state)
{
	struct reply r, again;
	struct payload p;

	for (int way = 0; way < 4; way++) {
		enum frontend first = way & 1, second = way >> 1;

		put_text("n", "1");
		p = ATOMIC(104, SESSION + way, { .opcode = XKV_OP_INCR, TEXT("n"), AMOUNT(one) });
		ask(first, &p, &r);
		assert_int_equal(r.status, XKV_OK);
		bed.st->cfg->read_only = 1;
		ask(second, &p, &again);
		assert_int_equal(again.len, r.len);
		assert_memory_equal(again.byte, r.byte, r.len);
		p = ATOMIC(112, SESSION + way, { .opcode = XKV_OP_INCR, TEXT("n"), AMOUNT(one) });
		ask(first, &p, &r);
		aborted(&r, 0, XKV_READ_ONLY);
		bed.st->cfg->read_only = 0;
		holds_text("n", "2");
	}
}

/* Reads are executed each time. */
static void test_once_reads(void **state)
{
	struct payload p = ATOMIC(80, SESSION, { .opcode = XKV_OP_GET, TEXT("a") },
				  { .opcode = XKV_OP_CHECK, TEXT("x") });
	struct reply r;

	put_text("a", "1");
	for (int i = 0; i < 4; i++) {
		put_text("a", i & 1 ? "1" : "2");
		ask(i & 1, &p, &r);
		assert_int_equal(r.count, 2);
		assert_memory_equal(r.value[0], i & 1 ? "1" : "2", 1);
	}
}

/* ---- side by side ---------------------------------------------------------- */

#define ACCOUNTS  40 /* so many that reading them takes time */
#define EACH	  1000
#define TRANSFERS 8000

static atomic_uint running;
static atomic_uint reads, wrong;

static char account_name[ACCOUNTS][4];

/* Moves money between accounts, in XDP or in xkvd. */
static void *transfer(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	enum frontend frontend = (uintptr_t)arg;
	uint8_t amount[8], back[8];
	struct payload p;
	struct reply r;

	for (unsigned int i = 0; ctx && i < TRANSFERS; i++) {
		unsigned int from = i * 7 % ACCOUNTS,
			     to = (from + 1 + i / 5 % (ACCOUNTS - 1)) % ACCOUNTS;

		put_be(amount, 8, i % 9);
		put_be(back, 8, -(uint64_t)(i % 9));
		p = ATOMIC(i, 0, { .opcode = XKV_OP_INCR, TEXT(account_name[from]), AMOUNT(back) },
			   { .opcode = XKV_OP_INCR, TEXT(account_name[to]), AMOUNT(amount) });
		ask_as(ctx, frontend, &p, &r);
	}
	store_ctx_put(ctx);
	atomic_fetch_sub(&running, 1);
	return NULL;
}

static int64_t sum_of(const struct reply *r)
{
	char text[24];
	int64_t sum = 0;

	for (unsigned int i = 0; i < ACCOUNTS; i++) {
		snprintf(text, sizeof(text), "%.*s", (int)r->result[i].value_len,
			 (const char *)r->value[i]);
		sum += strtoll(text, NULL, 10);
	}
	return sum;
}

/* Reads all accounts, on the fast path of XDP, on its other one, and in xkvd. */
static void read_accounts(unsigned int way)
{
	struct operation op[ACCOUNTS + 1];
	struct payload p;
	struct reply r;

	for (unsigned int i = 0; i < ACCOUNTS; i++)
		op[i] = op_on(XKV_OP_GET, account_name[i], 3);
	op[ACCOUNTS] = op_on(XKV_OP_CHECK, "none", 4);
	p = atomic_request(1, 0, op, ACCOUNTS + (way == 1));
	ask(way == 2 ? DAEMON : DRIVER, &p, &r);
	if (r.status)
		return;
	atomic_fetch_add(&reads, 1);
	atomic_fetch_add(&wrong, sum_of(&r) != ACCOUNTS * EACH);
}

static void test_bank(void **state)
{
	pthread_t thread[2];

	for (unsigned int i = 0; i < ACCOUNTS; i++) {
		snprintf(account_name[i], sizeof(account_name[i]), "a%02u", i % 100);
		put_text(account_name[i], "1000");
	}
	bed_xdp(&bed);
	atomic_store(&running, 2);
	atomic_store(&reads, 0);
	atomic_store(&wrong, 0);
	for (uintptr_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, transfer, (void *)i), 0);
	for (unsigned int i = 0; atomic_load(&running); i++)
		read_accounts(i % 3);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	read_accounts(0);
	assert_true(reads > 0);
	assert_int_equal(wrong, 0);
	account();
}

static _Atomic bool seen; /* both keys there, and both gone */

/* Both keys come and go together, with values of all sizes, until the reader has seen both. */
static void *toggle(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	struct payload p;
	struct reply r;

	for (unsigned int i = 0; ctx && (i < TRANSFERS || (!seen && i < 1000 * TRANSFERS)); i++) {
		size_t len = i * 31 % 500;

		if (i % 3)
			p = ATOMIC(i, 0,
				   { .opcode = XKV_OP_SET,
				     TEXT("x"),
				     .value = zeros,
				     .value_len = len },
				   { .opcode = XKV_OP_SET,
				     TEXT("y"),
				     .value = zeros,
				     .value_len = len });
		else
			p = ATOMIC(i, 0, { .opcode = XKV_OP_DELETE, TEXT("y") },
				   { .opcode = XKV_OP_DELETE, TEXT("x") });
		ask_as(ctx, i & 1 ? DRIVER : DAEMON, &p, &r);
	}
	store_ctx_put(ctx);
	atomic_fetch_sub(&running, 1);
	return NULL;
}

static void test_both_or_neither(void **state)
{
	struct payload p = ATOMIC(1, 0, { .opcode = XKV_OP_GET, TEXT("x") },
				  { .opcode = XKV_OP_GET, TEXT("y") });
	unsigned int there = 0, gone = 0, torn = 0;
	pthread_t thread;
	struct reply r;

	bed.c->miss_reply = 1;
	bed_xdp(&bed);
	atomic_store(&running, 1);
	seen = false;
	assert_int_equal(pthread_create(&thread, NULL, toggle, NULL), 0);
	for (unsigned int i = 0; atomic_load(&running); i++) {
		ask(i & 1 ? DRIVER : DAEMON, &p, &r);
		if (r.status)
			continue;
		there += !r.result[0].status;
		gone += r.result[0].status == XKV_MISS;
		torn += r.result[0].status != r.result[1].status ||
			r.result[0].value_len != r.result[1].value_len;
		seen = there && gone;
	}
	pthread_join(thread, NULL);
	assert_int_equal(torn, 0);
	assert_true(seen);
	account();
}

static int setup_one_bucket(void **state)
{
	open_masked_bed(0, ~0ULL);
	return 0;
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		CASE(test_same_replies),
		cmocka_unit_test_teardown(test_no_slot, ask_begin),
		cmocka_unit_test_teardown(test_no_memory, ask_begin),
		CASE(test_busy),
		CASE(test_once),
		cmocka_unit_test_teardown(test_once_goes_up, ask_begin),
		CASE(test_once_read_only),
		CASE(test_once_reads),
		CASE(test_bank),
		CASE(test_both_or_neither),
		cmocka_unit_test_setup_teardown(test_bank, setup_one_bucket, ask_begin),
		cmocka_unit_test_setup_teardown(test_both_or_neither, setup_one_bucket, ask_begin),
	};

	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("transfers", tests, ask_begin, close_bed);
}

// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 4 */
/*
 * INCR, APPEND and the conditions of changes, through both front ends, against what plain C makes
 * of the same values; versions and the clock; writes that are refused after a failed snapshot.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include <bpf/bpf.h>

#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "loader/store/open.h"
#include "ask.h"
#include "fixture.h"
#include "model.h"
#include "packet.h"
#include "random.h"
#include "xdpbed.h"

/* ---- the clock ------------------------------------------------------------- */

static volatile sig_atomic_t delays;

static void delay(int number)
{
	nanosleep(&(struct timespec){ .tv_nsec = 600000000 }, NULL);
	delays++;
}

/* What xkvd tells the engine of its clock does not depend on how long it took to find out. */
static void test_clock_of_who_is_held_up(void **state)
{
	uint64_t offset = bed.c->tai_offset_ms;
	sig_atomic_t before;

	delays = 0;
	signal(SIGALRM, delay);
	while (delays < 5 && bed.c->tai_offset_ms == offset) {
		before = delays;
		setitimer(ITIMER_REAL, &(struct itimerval){ .it_value.tv_usec = 50 }, NULL);
		while (delays == before && bed.c->tai_offset_ms == offset)
			store_clock(bed.st);
	}
	signal(SIGALRM, SIG_IGN);
	assert_int_equal(bed.c->tai_offset_ms, offset);
}

/* ---- versions --------------------------------------------------------------- */

#define FASTEST 8 /* writes of a CPU in a microsecond, on average over the life of the maps */

static uint64_t first_at(time_t sec, long nsec)
{
	uint64_t number = 0;

	assert_int_equal(version_first(&(struct timespec){ sec, nsec }, &number), 0);
	assert_true(number > 0 && number < 1ULL << 52);
	return number;
}

/* Maps that are made anew start behind all that the ones before can have drawn. */
static void test_versions_do_not_come_back(void **state)
{
	const time_t since = 1735689600, last = since + 16 * 365 * 86400L;
	struct xkv_tally *each = bed.each_tally;
	struct timespec now;
	uint32_t frontend = 0;
	uint64_t before;

	for (time_t at = since; at < last; at += 86400 * 300 + 1) {
		assert_true(first_at(at, 1000) - first_at(at, 0) >= FASTEST);
		assert_true(first_at(at + 3600, 0) - first_at(at, 0) >= FASTEST * 3600000000ULL);
	}
	/* the clock tells no such time: then not the same number each time */
	for (time_t at = 0; at < 3; at++)
		assert_true(first_at(at, 0) != first_at(at, 0));
	assert_true(first_at(since - 1, 999999999) != first_at(since - 1, 999999999));
	assert_true(first_at(since + 18 * 365 * 86400L, 0) !=
		    first_at(since + 18 * 365 * 86400L, 0));
	/* and that is what this store began with, for each CPU and front end */
	clock_gettime(CLOCK_REALTIME, &now);
	before = first_at(now.tv_sec - 3600, 0);
	for (; frontend < XKV_FRONTENDS; frontend++) {
		assert_int_equal(bpf_map_lookup_elem(bed.bpf.map[BPF_TALLY], &frontend, each), 0);
		for (unsigned int cpu = 0; cpu < bed.cpus; cpu++)
			assert_in_range(each[cpu].version, before, first_at(now.tv_sec + 1, 0));
	}
}

/* ---- INCR ----------------------------------------------------------------- */

/* A text is a number if it is what this number is printed as. */
static bool is_number(const char *text, size_t len, int64_t *n)
{
	char printed[24];
	__int128 value = 0;

	if (!len || len > 20)
		return false;
	for (size_t i = text[0] == '-'; i < len; i++)
		value = value * 10 + (text[i] - '0');
	value = text[0] == '-' ? -value : value;
	if (value > INT64_MAX || value < INT64_MIN)
		return false;
	*n = (int64_t)value;
	snprintf(printed, sizeof(printed), "%" PRId64, *n);
	return strlen(printed) == len && !memcmp(printed, text, len);
}

/* INCR of a text, through one front end, compared with what is right. */
static void check_incr(enum frontend frontend, const char *text, size_t len, int64_t amount)
{
	uint64_t expire_ms = below(2) ? store_now_ms(bed.st) + 1000000 : 0;
	struct operation op = incr("n", 1, amount);
	struct store_entry before, after;
	int64_t old, sum;
	struct reply r;
	char want[24];

	put_bytes("n", 1, text, len, expire_ms);
	before = entry_of("n", 1);
	ask_op(frontend, &op, &r);
	if (!is_number(text, len, &old)) {
		refused(&r, XKV_NOT_NUMBER);
	} else if (__builtin_add_overflow(old, amount, &sum)) {
		refused(&r, XKV_OVERFLOW);
	} else {
		assert_true(number(&r) == sum);
		snprintf(want, sizeof(want), "%" PRId64, sum);
		text = want;
		len = strlen(want);
	}
	after = entry_of("n", 1);
	assert_int_equal(after.value_len, len);
	assert_memory_equal(after.value, text, len);
	assert_int_equal(after.expire_ms, expire_ms);
	assert_int_equal(after.version != before.version, r.result[0].status == XKV_OK);
	if (r.result[0].status == XKV_OK)
		assert_true(after.version == r.result[0].version && !r.result[0].ttl == !expire_ms);
}

/* Texts at all borders, with amounts at all borders. */
static void test_incr_texts(void **state)
{
	/* clang-format off */
	static const char *const texts[] = {
		"0", "1", "-1", "9", "10", "-10", "99999999", "100000000", "-99999999",
		"9999999999999999",
		"9223372036854775806", "9223372036854775807", "9223372036854775808",
		"-9223372036854775807", "-9223372036854775808", "-9223372036854775809",
		"9223372036854775800", "9999999999999999999", "18446744073709551615",
		"18446744073709551616", "18446744073709551617", "99999999999999999999",
		"-99999999999999999999", "-9999999999999999999", "100000000000000000000",
		"-0", "-", "--1", "+1", "01", "00", "-01", "", " 1", "1 ", "1\n", "1.0", "1e3",
		"0x10",
		"abc", "1a", "a1", "1-", "12/", "12:", "/", ":", "000000000000000000001",
		"12345678a", "1234567812345678a", "\xef\xbc\x91", "\x80", "-\xff",
	};
	static const int64_t amounts[] = { 0, 1, -1, 7, -7, 10, -10, INT64_MAX, INT64_MIN,
					   INT64_MAX - 1, INT64_MIN + 1, 1LL << 62, -(1LL << 62) };
	/* clang-format on */

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		for (size_t j = 0; j < sizeof(amounts) / sizeof(amounts[0]); j++)
			check_incr((i + j) % FRONTENDS, texts[i], strlen(texts[i]), amounts[j]);
	for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
		check_incr(frontend, "1\0", 2, 1);
		check_incr(frontend, "\0", 1, 1);
		check_incr(frontend, "1\0\0\0\0\0\0\0", 8, 1);
		for (size_t len = 20; len < 2000; len += 61)
			check_incr(frontend, (const char *)pattern(0), len, 1);
	}
}

/* A number with any count of digits, one of its characters perhaps replaced. */
static void test_incr_random(void **state)
{
	char text[32];
	int64_t n, amount;

	for (int i = 0; i < 20000; i++) {
		n = (int64_t)(random_u64() >> below(64));
		amount = (int64_t)(random_u64() >> below(64));
		snprintf(text, sizeof(text), "%" PRId64, below(2) ? n : -(n & INT64_MAX));
		if (!below(4))
			text[below(strlen(text))] = "0123456789-+ x"[below(14)];
		check_incr(below(FRONTENDS), text, strlen(text),
			   below(2) ? amount : -(amount & INT64_MAX));
	}
}

/*
 * Numbers that get longer and shorter move from slot to slot, under keys of all lengths;
 * others stay as they are.
 */
static void test_incr_classes(void **state)
{
	static const int64_t steps[] = {
		9, 1, 89, 1, 9999989, 1, 90000000 - 1, 1, INT64_MAX - 100000090
	};
	char key[XKV_KEY_MAX], text[24];
	struct operation op;
	struct reply r;
	int64_t n;

	memset(key, 'k', sizeof(key));
	for (size_t len = 1; len <= XKV_KEY_MAX; len++) {
		n = 0;
		for (int i = 0; i < 18; i++) {
			int64_t step = i < 9 ? steps[i] : -steps[17 - i];

			op = incr(key, len, step);
			ask_op(below(FRONTENDS), &op, &r);
			n += step;
			assert_true(number(&r) == n);
		}
		assert_true(!n);
		op = incr(key, len, (int64_t)len - 100);
		ask_op(DRIVER, &op, &r);
	}
	for (size_t len = 1; len <= XKV_KEY_MAX; len++) {
		snprintf(text, sizeof(text), "%d", (int)len - 100);
		holds_bytes(key, len, text, strlen(text));
	}
}

/* A key that is not there, or not there any more, counts as 0 and does not expire. */
static void test_incr_missing(void **state)
{
	struct operation op = incr("n", 1, -5);
	struct reply r;

	for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
		for (int expired = 0; expired < 2; expired++) {
			store_delete(bed.ctx, "n", 1, NULL);
			if (expired)
				put_bytes("n", 1, "41", 2, 1000);
			op.flags = XKV_XX;
			ask_op(frontend, &op, &r);
			refused(&r, XKV_NOT_STORED);
			op.flags = XKV_CAS;
			op.version = 2;
			ask_op(frontend, &op, &r);
			refused(&r, XKV_MISS);
			op.flags = XKV_XX | XKV_CAS;
			ask_op(frontend, &op, &r);
			refused(&r, XKV_MISS);
			op.flags = 0;
			op.version = 0;
			ask_op(frontend, &op, &r);
			assert_true(number(&r) == -5);
			assert_true(!r.result[0].ttl && r.result[0].version);
			assert_true(!entry_of("n", 1).expire_ms);
			holds_text("n", "-5");
		}
	}
}

/* What was expired and no number does not matter; and 0 plus an amount cannot overflow. */
static void test_incr_expired_text(void **state)
{
	struct operation op = incr("n", 1, INT64_MIN);
	struct reply r;

	put_bytes("n", 1, "text", 4, 1000);
	ask_op(DRIVER, &op, &r);
	assert_true(number(&r) == INT64_MIN);
	holds_text("n", "-9223372036854775808");
}

/* The version decides: CAS with EXPIRE and DELETE. */
static void test_conditions_of_changes(void **state)
{
	struct operation op = op_on(XKV_OP_EXPIRE, "n", 1);
	struct store_entry e;
	struct reply r;

	put_bytes("n", 1, "5", 1, store_now_ms(bed.st) + 1000000);
	op.flags = XKV_CAS;
	for (unsigned int i = 0; i < 2 * FRONTENDS; i++) {
		op.opcode = i < FRONTENDS ? XKV_OP_EXPIRE : XKV_OP_DELETE;
		e = entry_of("n", 1);
		op.version = e.version + 2;
		ask_op(i % FRONTENDS, &op, &r);
		assert_int_equal(r.result[0].status, XKV_NOT_STORED);
		assert_true(r.result[0].version == e.version && !r.result[0].ttl == !e.expire_ms);
		assert_true(entry_of("n", 1).version == e.version);
		op.version = e.version;
		ask_op(i % FRONTENDS, &op, &r);
		assert_int_equal(r.result[0].status, XKV_OK);
		ask_op(i % FRONTENDS, &op, &r);
		assert_int_equal(r.result[0].status,
				 op.opcode == XKV_OP_DELETE ? XKV_MISS : XKV_NOT_STORED);
		if (op.opcode == XKV_OP_DELETE)
			put_text("n", "5");
		else
			assert_true(!entry_of("n", 1).expire_ms);
	}
}

/* CAS and XX with INCR and APPEND: the version decides. */
static void test_conditions(void **state)
{
	struct operation ops[2] = { incr("n", 1, 1), append("n", 1, "0", 1) };
	struct store_entry e;
	struct reply r;

	for (unsigned int i = 0; i < 4; i++) {
		struct operation *op = &ops[i / 2];

		put_text("n", "5");
		e = entry_of("n", 1);
		op->flags = XKV_CAS;
		op->version = e.version + 2;
		ask_op(i % FRONTENDS, op, &r);
		assert_int_equal(r.result[0].status, XKV_NOT_STORED);
		assert_true(r.result[0].version == e.version && !r.value[0]);
		holds_text("n", "5");
		op->version = e.version;
		ask_op(i % FRONTENDS, op, &r);
		assert_int_equal(number(&r), i / 2 ? 2 : 6);
		op->flags = XKV_XX | XKV_CAS; /* has changed by now */
		ask_op(i % FRONTENDS, op, &r);
		assert_int_equal(r.result[0].status, XKV_NOT_STORED);
		op->flags = XKV_XX;
		op->version = 0;
		ask_op(i % FRONTENDS, op, &r);
		assert_int_equal(number(&r), i / 2 ? 3 : 7);
		holds_text("n", i / 2 ? "500" : "7");
	}
}

/* ---- APPEND --------------------------------------------------------------- */

/* What stands before and behind the entry at hand in its page must stay. */
static void neighbours(const char *key, size_t len, bool check)
{
	char other[XKV_KEY_MAX + 1];

	memcpy(other, key, len);
	for (char c = 'A'; c < 'E'; c++) {
		other[0] = c;
		if (check)
			holds_bytes(other, len, pattern(1), 40);
		else
			put_bytes(other, len, pattern(1), 40, 0);
	}
}

/* APPEND of `more` bytes to `old`, none: the key is not there. */
static void check_append(enum frontend frontend, const char *key, size_t key_len, int old,
			 size_t more)
{
	struct operation op = append(key, key_len, pattern(1), more);
	uint64_t version = 0, expire_ms = 0;
	uint8_t want[4096];
	struct reply r;

	store_delete(bed.ctx, key, key_len, NULL);
	if (old >= 0) {
		expire_ms = below(2) ? store_now_ms(bed.st) + 1000000 : 0;
		put_bytes(key, key_len, pattern(0), (size_t)old, expire_ms);
		version = entry_of(key, key_len).version;
		memcpy(want, pattern(0), (size_t)old);
	}
	old = old < 0 ? 0 : old;
	memcpy(want + old, pattern(1), more);
	ask_op(frontend, &op, &r);
	assert_int_equal(number(&r), (size_t)old + more);
	assert_true(!r.result[0].ttl == !expire_ms);
	assert_true(r.result[0].version == entry_of(key, key_len).version);
	assert_true(r.result[0].version != version);
	holds_bytes(key, key_len, want, (size_t)old + more);
}

/* All that a byte can be shifted by. */
static void test_append_alignments(void **state)
{
	for (int old = -1; old <= 40; old++)
		for (size_t more = 0; more <= 40; more++)
			check_append((old + 1 + more) % FRONTENDS, "key", 3, old, more);
}

/* Keys of all lengths, in the midst of others. */
static void test_append_keys(void **state)
{
	static const struct {
		int old;
		size_t more;
	} lengths[] = { { 0, 1 }, { 1, 7 },  { 5, 1 },	{ 7, 1 },    { 7, 2 },
			{ 8, 8 }, { 39, 1 }, { 40, 1 }, { 33, 100 }, { 100, 3 } };
	char key[XKV_KEY_MAX];

	memset(key, 'k', sizeof(key));
	for (size_t len = 1; len <= XKV_KEY_MAX; len++) {
		neighbours(key, len, false);
		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
			check_append(DRIVER, key, len, lengths[i].old, lengths[i].more);
		neighbours(key, len, true);
	}
}

/* Every slot of a page filled to its last byte, and each one appended to as far as it goes. */
static void test_append_neighbours(void **state)
{
	struct operation op;
	struct reply r;
	char key[8];

	for (int i = 0; i < 1000; i++) {
		snprintf(key, sizeof(key), "k%03d", i);
		put_bytes(key, 4, pattern(0), (size_t)i % 8, 0);
	}
	for (int i = 0; i < 1000; i++) {
		snprintf(key, sizeof(key), "k%03d", i);
		op = append(key, 4, pattern(0) + i % 8, 8 - (size_t)i % 8);
		ask_op(DRIVER, &op, &r);
		assert_false(r.passed);
		assert_int_equal(number(&r), 8);
	}
	for (int i = 0; i < 1000; i++) {
		snprintf(key, sizeof(key), "k%03d", i);
		holds_bytes(key, 4, pattern(0), 8);
	}
}

/* Around the length from which on xkvd does it, by its own means. */
static void test_append_large(void **state)
{
	static const int old[] = { 0,	 1,    7,    8,	   100,	 1000, 1399, 1400,
				   1424, 1471, 1472, 1473, 1600, 2000, 2600 };
	static const size_t more[] = { 0, 1, 7, 8, 9, 72, 73, 400 };
	size_t room = DATAGRAM - 16 - 24 - 8, rest;

	for (size_t i = 0; i < FRONTENDS * sizeof(old) / sizeof(old[0]); i++) {
		size_t len = (size_t)old[i / FRONTENDS];

		for (size_t j = 0; j < sizeof(more) / sizeof(more[0]); j++)
			check_append(i % FRONTENDS, "key", 3, (int)len, more[j]);
		rest = len < DATAGRAM ? DATAGRAM - len : 0;
		check_append(i % FRONTENDS, "key", 3, (int)len, rest < room ? rest : room);
		check_append(i % FRONTENDS, "key", 3, (int)len, rest + 1 < room ? rest + 1 : room);
		check_append(i % FRONTENDS, "key", 3, (int)len, room);
	}
}

/* What would be more than the store holds stays as it is. */
static void test_append_limit(void **state)
{
	struct operation op = append("key", 3, "xy", 2);
	struct reply r;

	for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
		put_bytes("key", 3, zeros, XKV_VALUE_MAX - 3, 0);
		ask_op(frontend, &op, &r);
		assert_int_equal(number(&r), XKV_VALUE_MAX - 1);
		ask_op(frontend, &op, &r);
		assert_int_equal(r.result[0].status, XKV_TOO_LARGE);
		assert_null(r.value[0]);
		assert_int_equal(r.result[0].value_len, XKV_VALUE_MAX + 1);
		assert_int_equal(entry_of("key", 3).value_len, XKV_VALUE_MAX - 1);
	}
}

/* From nothing to 1 MiB, by datagrams. */
static void test_append_far(void **state)
{
	static uint8_t want[XKV_VALUE_MAX];
	size_t len = 0, more;
	struct operation op;
	struct reply r;

	while (len < sizeof(want)) {
		more = 1 + below(1400);
		more = more < sizeof(want) - len ? more : sizeof(want) - len;
		op = append("key", 3, pattern(len & 1), more);
		memcpy(want + len, op.value, more);
		len += more;
		ask_op(below(FRONTENDS), &op, &r);
		assert_int_equal(number(&r), len);
	}
	holds_bytes("key", 3, want, sizeof(want));
}

/*
 * Large ones and small ones, of the same key and of others, in one datagram to xkvd: each has its
 * own slot.
 */
static void test_append_many(void **state)
{
	struct operation ops[] = {
		append("a", 1, pattern(1), 100),
		{ .opcode = XKV_OP_SET, TEXT("b"), .value = "new", .value_len = 3 },
		append("a", 1, "x", 1),
		{ .opcode = XKV_OP_APPEND,
		  .flags = XKV_CAS,
		  TEXT("c"),
		  .value = "y",
		  .value_len = 1,
		  .version = 2 },
		append("b", 1, "er", 2),
		{ .opcode = XKV_OP_INCR, TEXT("n"), .value = "\0\0\0\0\0\0\0\1", .value_len = 8 },
		append("c", 1, "z", 1),
		{ .opcode = XKV_OP_DELETE, TEXT("a") },
		append("a", 1, "first", 5),
	};
	static const uint64_t numbers[] = { 1500, 0, 1501, 0, 5, 42, 3001, 0, 5 };
	unsigned int count = sizeof(ops) / sizeof(ops[0]);
	struct payload p;
	struct reply r;

	put_bytes("a", 1, pattern(0), 1400, 0);
	put_bytes("b", 1, pattern(0), 1400, 0);
	put_bytes("c", 1, pattern(0), 3000, 0);
	put_text("n", "41");
	begin(&p, next_id++, 0);
	for (unsigned int i = 0; i < count; i++)
		request_add(&p, &ops[i]);
	ask(DAEMON, &p, &r);
	assert_int_equal(r.count, count);
	for (unsigned int i = 0; i < count; i++) {
		assert_int_equal(r.result[i].status, i == 3 ? XKV_NOT_STORED : XKV_OK);
		assert_int_equal(r.value[i] ? get_be(r.value[i], 8) : 0, numbers[i]);
	}
	holds_text("a", "first");
	holds_text("b", "newer");
	assert_int_equal(entry_of("c", 1).value_len, 3001);
}

/* An expired value does not come back, and its expiry neither. */
static void test_append_expired(void **state)
{
	struct operation op = append("key", 3, "new", 3);
	struct reply r;

	for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
		put_bytes("key", 3, "old", 3, 1000);
		op.flags = XKV_XX;
		ask_op(frontend, &op, &r);
		refused(&r, XKV_NOT_STORED);
		op.flags = 0;
		ask_op(frontend, &op, &r);
		assert_int_equal(number(&r), 3);
		assert_true(!r.result[0].ttl);
		holds_text("key", "new");
	}
}

/* A byte after the other: every length, in place and moving. */
static void test_append_grows(void **state)
{
	struct operation op;
	struct reply r;

	for (size_t len = 0; len < 600; len++) {
		op = append("key", 3, pattern(0) + len, 1);
		ask_op(len % 3 ? DRIVER : DAEMON, &op, &r);
		assert_int_equal(number(&r), len + 1);
		if (len % 50 == 0)
			holds_bytes("key", 3, pattern(0), len + 1);
	}
	holds_bytes("key", 3, pattern(0), 600);
}

/* ---- a model of all changes ------------------------------------------------ */

#define MODEL_KEYS 24

/* An operation through a front end, and what the reference model expects of it. */
static void model_ask(enum frontend frontend, struct key *k, const struct operation *op)
{
	struct forecast f;
	struct reply r;

	model_run(k, op, DATAGRAM - sizeof(struct xkv_hdr), &f);
	ask_op(frontend, op, &r);
	assert_int_equal(check_result(k, op->flags, &f, r.byte, sizeof(struct xkv_hdr)), r.len);
}

/* A text, often a number. */
static struct operation model_set(const struct key *k, char text[24])
{
	struct operation op = op_on(XKV_OP_SET, k->byte, k->len);

	op.value = pattern(0);
	op.value_len = below(3) ? below(64) : below(1400);
	if (below(2)) {
		snprintf(text, 24, "%" PRId64, (int64_t)(random_u64() >> below(64)));
		op.value = text;
		op.value_len = strlen(text);
	}
	return op;
}

static void model_change(enum frontend frontend, struct key *k)
{
	struct operation op;
	char text[24];

	switch (below(10)) {
	case 0:
		op = model_set(k, text);
		break;
	case 1 ... 3:
		op = incr(k->byte, k->len, (int64_t)below(1ULL << 40) - (1LL << 39));
		break;
	case 4 ... 7:
		op = append(k->byte, k->len, pattern(1), below(20));
		break;
	case 8:
		op = op_on(XKV_OP_DELETE, k->byte, k->len);
		break;
	default:
		return;
	}
	model_ask(frontend, k, &op);
}

static void model_look(enum frontend frontend, struct key *k)
{
	static const uint8_t opcodes[] = { XKV_OP_GET, XKV_OP_TTL, XKV_OP_TOUCH };
	struct operation op;

	for (size_t i = 0; i < sizeof(opcodes); i++) {
		op = op_on(opcodes[i], k->byte, k->len);
		model_ask(frontend, k, &op);
	}
}

/* Changes of all kinds in any order, through both front ends, on a few keys. */
static void test_model(void **state)
{
	model_reset();
	for (int i = 0; i < MODEL_KEYS; i++) {
		keys[i].len = (size_t)snprintf((char *)keys[i].byte, sizeof(keys[i].byte), "%.*s%d",
					       i * 7 % 20, "aaaaaaaaaaaaaaaaaaaa", i);
		keys[i].bucket = bed_bucket(&bed, keys[i].byte, keys[i].len);
	}
	for (int i = 0; i < 30000; i++) {
		struct key *k = &keys[below(MODEL_KEYS)];

		model_change(below(3) ? DRIVER : DAEMON, k);
		model_look((enum frontend)below(FRONTENDS), k);
		for (unsigned int n = 0; i % 1000 == 0 && n < MODEL_KEYS; n++)
			model_look(DRIVER, &keys[n]);
	}
	model_reset();
}

/* ---- after a failed snapshot --------------------------------------------- */

/* Asks one operation of both front ends: it is refused, whatever the key is. */
static void read_only_refuses(struct operation op)
{
	struct reply r;

	for (enum frontend frontend = DRIVER; frontend < FRONTENDS; frontend++) {
		ask_op(frontend, &op, &r);
		assert_false(r.passed);
		refused(&r, XKV_READ_ONLY);
	}
}

static void test_read_only(void **state)
{
	struct operation set = op_on(XKV_OP_SET, "k", 1), set_if = set,
			 get = op_on(XKV_OP_GET, "k", 1);
	struct payload p;
	struct reply r;

	put_text("k", "old!");
	set.value = "new!";
	set.value_len = set_if.value_len = 4;
	set_if.value = set.value;
	set_if.flags = XKV_XX; /* the slow path, too */
	store_refuse_writes(bed.st, true);
	read_only_refuses(set);
	read_only_refuses(set_if);
	read_only_refuses(incr("k", 1, 1));
	read_only_refuses(incr("none", 4, 1));
	read_only_refuses(append("k", 1, "x", 1));
	read_only_refuses(op_on(XKV_OP_DELETE, "k", 1));
	read_only_refuses(op_on(XKV_OP_DELETE, "none", 4));
	read_only_refuses(op_on(XKV_OP_EXPIRE, "k", 1));
	/* what is behind it is done */
	for (enum frontend frontend = DRIVER; frontend < FRONTENDS; frontend++) {
		begin(&p, next_id++, 0);
		request_add(&p, &set);
		request_add(&p, &get);
		ask(frontend, &p, &r);
		assert_int_equal(r.count, 2);
		refused(&r, XKV_READ_ONLY);
		assert_int_equal(r.result[1].status, XKV_OK);
		assert_memory_equal(r.value[1], "old!", 4);
	}
	put_text("xkvd's own", "is done");
	holds_text("xkvd's own", "is done");
	store_refuse_writes(bed.st, false);
	ask_op(DRIVER, &set, &r);
	assert_int_equal(r.result[0].status, XKV_OK);
	holds_text("k", "new!");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_clock_of_who_is_held_up),
		CASE(test_versions_do_not_come_back),
		CASE(test_incr_texts),
		CASE(test_incr_random),
		CASE(test_incr_classes),
		CASE(test_incr_missing),
		CASE(test_incr_expired_text),
		CASE(test_conditions),
		CASE(test_conditions_of_changes),
		CASE(test_append_alignments),
		CASE(test_append_keys),
		CASE(test_append_neighbours),
		CASE(test_append_large),
		CASE(test_append_limit),
		CASE(test_append_far),
		CASE(test_append_many),
		CASE(test_append_expired),
		CASE(test_append_grows),
		CASE(test_model),
		CASE(test_read_only),
	};

	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("changes", tests, ask_begin, close_bed);
}

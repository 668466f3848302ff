/* SPDX-License-Identifier: BSD-2-Clause */
/* tests/run: seconds 11 */
/*
 * INCR, APPEND, TTL, TOUCH, SCAN, and requests that are done only once: packets in,
 * packets out.  What is right is said here a second time, in plain C.
 *
 * Every request can come through both front ends: as a frame into the XDP program
 * (and where that passes it on, to xkvd's side of the store), or to that side at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include <bpf/bpf.h>
#include <linux/bpf.h>

#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "loader/store/open.h"
#include "packet.h"
#include "xdpbed.h"

#define MAX_KEYS 4096
#define DATAGRAM XKV_PAYLOAD_MAX4
#define RESULTS_MAX 64
#define CLIENT 0x0a4d0002 /* 10.77.0.2; others in its network are allowed, too */

static struct bed bed;
static _Thread_local in_addr_t source; /* that requests come from */

/* ---- asking --------------------------------------------------------------- */

enum frontend { DRIVER, DAEMON, FRONTENDS };

/* What came back, in host byte order. */
struct reply {
	bool passed;  /* by the driver, to xkvd */
	bool dropped; /* there is none */
	uint8_t status;
	unsigned int count;
	struct xkv_result result[RESULTS_MAX];
	const uint8_t *value[RESULTS_MAX]; /* NULL if the result has none */
	size_t len;
	uint8_t byte[PACKET_MAX];
};

/* Takes a reply apart, and insists on what the format promises. */
static void decode(struct reply *r, const struct payload *req)
{
	size_t at = sizeof(struct xkv_hdr);
	struct xkv_result *res;

	assert_true(r->len >= at && r->len <= DATAGRAM);
	assert_int_equal(get_be(r->byte, 4), 0x584b0101);
	assert_int_equal(get_be(r->byte + 6, 2), r->len);
	assert_memory_equal(r->byte + 8, req->byte + 8, 8);
	r->count = r->byte[4];
	r->status = r->byte[5];
	assert_true(r->count <= RESULTS_MAX && !r->count == !!r->status);
	for (unsigned int i = 0; i < r->count; i++) {
		res = &r->result[i];
		assert_true(at + sizeof(*res) <= r->len);
		memcpy(res, r->byte + at, sizeof(*res));
		res->value_len = (uint32_t)get_be(r->byte + at + 4, 4);
		res->ttl = get_be(r->byte + at + 8, 8);
		res->version = get_be(r->byte + at + 16, 8);
		at += sizeof(*res);
		r->value[i] = res->flags & XKV_HAS_VALUE ? r->byte + at : NULL;
		at += r->value[i] ? XKV_PADDED(res->value_len) : 0;
	}
	assert_int_equal(at, r->len);
}

/* Has xkvd's side answer. */
static void ask_daemon(struct store_ctx *ctx, const struct payload *req, struct reply *r)
{
	struct sockaddr_in from = { .sin_family = AF_INET, .sin_addr.s_addr = source };
	int len;

	store_sender(ctx, (struct sockaddr *)&from);
	len = store_datagram(ctx, req->byte, req->len, r->byte, DATAGRAM, DATAGRAM);

	assert_true(len >= 0);
	r->len = (size_t)len;
	r->dropped = !len;
}

/* Has the driver answer; what it passes on is passed on unchanged. */
static void ask_driver(struct store_ctx *ctx, const struct payload *req, struct reply *r)
{
	size_t at = packet_payload_at(false, 0), len;
	uint8_t frame[PACKET_MAX];
	struct packet_spec s;
	struct outcome out;

	packet_default(&s, false);
	memcpy(s.src, &source, sizeof(source));
	s.payload = req->byte;
	s.len = req->len;
	len = packet_build(&s, frame);
	assert_true(bed_run(&bed, frame, len, &out));
	r->passed = out.verdict == XDP_PASS;
	r->dropped = out.verdict == XDP_DROP;
	if (r->passed) {
		assert_int_equal(out.len, len);
		assert_memory_equal(out.frame, frame, len);
		ask_daemon(ctx, req, r);
	} else if (!r->dropped) {
		assert_int_equal(out.verdict, XDP_TX);
		assert_null(packet_complaint(out.frame, out.len));
		r->len = get_be(out.frame + at + 6, 2);
		memcpy(r->byte, out.frame + at, r->len);
	}
}

static void ask_as(struct store_ctx *ctx, enum frontend frontend, const struct payload *req,
		   struct reply *r)
{
	memset(r, 0, offsetof(struct reply, byte));
	if (!source)
		source = htonl(CLIENT);
	if (frontend == DRIVER)
		ask_driver(ctx, req, r);
	else
		ask_daemon(ctx, req, r);
	if (!r->dropped)
		decode(r, req);
}

static void ask(enum frontend frontend, const struct payload *req, struct reply *r)
{
	ask_as(bed.ctx, frontend, req, r);
}

/* ---- requests ------------------------------------------------------------- */

static uint64_t next_id = 1;

static void begin(struct payload *p, uint64_t id, uint64_t session)
{
	request_begin(p, id, NULL);
	if (!session)
		return;
	p->byte[3] |= XKV_F_ONCE;
	put_be(p->byte + p->len, 8, session);
	p->len += XKV_SESSION_BYTES;
}

static struct payload once_request(uint64_t session, uint64_t id, const struct operation *op)
{
	struct payload p;

	begin(&p, id, session);
	request_add(&p, op);
	return p;
}

/* Asks one operation; its result is r->result[0]. */
static void ask_op(enum frontend frontend, const struct operation *op, struct reply *r)
{
	struct payload p = once_request(0, next_id++, op);

	ask(frontend, &p, r);
	assert_int_equal(r->count, 1);
	assert_int_equal(r->result[0].opcode, op->opcode);
}

#define TEXT(text) .key = (text), .key_len = strlen(text)

static struct operation op_on(uint8_t opcode, const void *key, size_t key_len)
{
	return (struct operation){ .opcode = opcode, .key = key, .key_len = key_len };
}

static struct operation incr(const void *key, size_t key_len, int64_t amount)
{
	static uint8_t wire[8];
	struct operation op = op_on(XKV_OP_INCR, key, key_len);

	put_be(wire, 8, (uint64_t)amount);
	op.value = wire;
	op.value_len = sizeof(wire);
	return op;
}

static struct operation append(const void *key, size_t key_len, const void *value, size_t value_len)
{
	struct operation op = op_on(XKV_OP_APPEND, key, key_len);

	op.value = value;
	op.value_len = value_len;
	return op;
}

static struct payload scan(const char *key, unsigned int keys)
{
	struct operation op = op_on(XKV_OP_SCAN, key, strlen(key));
	struct payload p = once_request(0, next_id++, &op);

	p.byte[sizeof(struct xkv_hdr) + 3] = (uint8_t)keys;
	return p;
}

/* The number that comes with the result of an INCR or APPEND. */
static int64_t number(const struct reply *r)
{
	assert_int_equal(r->result[0].status, XKV_OK);
	assert_non_null(r->value[0]);
	assert_int_equal(r->result[0].value_len, 8);
	return (int64_t)get_be(r->value[0], 8);
}

/* A result that says why not, and nothing else. */
static void refused(const struct reply *r, uint8_t status)
{
	const struct xkv_result *res = &r->result[0];

	assert_int_equal(res->status, status);
	assert_null(r->value[0]);
	assert_true(!res->value_len && !res->ttl && !res->version);
}

/* ---- the store behind it -------------------------------------------------- */

static void put(const void *key, size_t key_len, const void *value, size_t len, uint64_t expire_ms)
{
	assert_int_equal(store_set(bed.ctx, key, key_len, value, len, 0, 0, expire_ms, NULL), 0);
}

static void put_text(const char *key, const char *text)
{
	put(key, strlen(key), text, strlen(text), 0);
}

static struct store_entry entry(const void *key, size_t key_len)
{
	struct store_entry e;

	assert_int_equal(store_get(bed.ctx, key, key_len, &e), 0);
	return e;
}

static void holds(const void *key, size_t key_len, const void *value, size_t len)
{
	struct store_entry e = entry(key, key_len);

	assert_int_equal(e.value_len, len);
	assert_memory_equal(e.value, value, len);
}

static void holds_text(const char *key, const char *text)
{
	holds(key, strlen(key), text, strlen(text));
}

static uint64_t count_of(unsigned int counter)
{
	uint64_t sum[XKV_COUNTER_COUNT];

	bed_counters(&bed, sum);
	return sum[counter];
}

/* Moves the store's clock. */
static void pass_time(int64_t ms)
{
	bed.c->tai_offset_ms -= (uint64_t)ms;
}

/* Bytes that tell their place; two of the same offset and other seed differ. */
static const uint8_t *pattern(unsigned int seed)
{
	static uint8_t byte[2][4096];

	for (size_t i = 0; i < sizeof(byte[0]); i++)
		byte[seed & 1][i] = (uint8_t)(i * 7 + i / 256 + 1 + seed * 101);
	return byte[seed & 1];
}

static const uint8_t large[XKV_VALUE_MAX];

static uint64_t dice_state = 88172645463325252ULL;

static uint64_t dice(uint64_t sides)
{
	dice_state ^= dice_state << 13;
	dice_state ^= dice_state >> 7;
	dice_state ^= dice_state << 17;
	return dice_state % sides;
}

static int group_setup(void **state)
{
	const char *why = bed_open(&bed, MAX_KEYS);

	(void)state;
	if (why)
		print_error("%s\n", why);
	else
		maintenance_stop(bed.st); /* slots stay where they are */
	return why ? -1 : 0;
}

static int group_teardown(void **state)
{
	(void)state;
	bed_close(&bed);
	return 0;
}

static uint64_t offset_before;

static int setup(void **state)
{
	(void)state;
	bed_configure(&bed);
	source = htonl(CLIENT);
	offset_before = bed.c->tai_offset_ms;
	memset(bed.once, 0, XKV_DEDUP_SETS * sizeof(*bed.once));
	return store_flush(bed.ctx);
}

/* Whatever a case did, no slot is lost and none is written over. */
static int teardown(void **state)
{
	const char *why;

	(void)state;
	bed.c->tai_offset_ms = offset_before;
	bed.c->track = XKV_TRACK_NOTHING;
	why = bed_account(&bed);
	if (why)
		print_error("%s\n", why);
	return why ? -1 : 0;
}

/* ---- the clock ------------------------------------------------------------- */

static volatile sig_atomic_t delays;

static void delay(int number)
{
	(void)number;
	nanosleep(&(struct timespec){ .tv_nsec = 600000000 }, NULL);
	delays++;
}

/* What xkvd tells the engine of its clock does not depend on how long it took to find out. */
static void test_clock_of_who_is_held_up(void **state)
{
	uint64_t offset = bed.c->tai_offset_ms;
	sig_atomic_t before;

	(void)state;
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
	struct xkv_counters *each = bed.each_cpu;
	struct timespec now;
	uint32_t frontend = 0;
	uint64_t before;

	(void)state;
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
		assert_int_equal(bpf_map_lookup_elem(bed.bpf.map[BPF_COUNTERS], &frontend, each),
				 0);
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
	uint64_t expire_ms = dice(2) ? store_now_ms(bed.st) + 1000000 : 0;
	struct operation op = incr("n", 1, amount);
	struct store_entry before, after;
	int64_t old, sum;
	struct reply r;
	char want[24];

	put("n", 1, text, len, expire_ms);
	before = entry("n", 1);
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
	after = entry("n", 1);
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

	(void)state;
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

	(void)state;
	for (int i = 0; i < 20000; i++) {
		n = (int64_t)(dice(UINT64_MAX) >> dice(64));
		amount = (int64_t)(dice(UINT64_MAX) >> dice(64));
		snprintf(text, sizeof(text), "%" PRId64, dice(2) ? n : -(n & INT64_MAX));
		if (!dice(4))
			text[dice(strlen(text))] = "0123456789-+ x"[dice(14)];
		check_incr(dice(FRONTENDS), text, strlen(text),
			   dice(2) ? amount : -(amount & INT64_MAX));
	}
}

/*
 * Numbers that get longer and shorter move from slot to slot, under keys of all lengths;
 * others stay as they are.
 */
static void test_incr_classes(void **state)
{
	static const int64_t steps[] = { 9, 1, 89, 1, 9999989, 1, 90000000 - 1, 1,
					 INT64_MAX - 100000090 };
	char key[XKV_KEY_MAX], text[24];
	struct operation op;
	struct reply r;
	int64_t n;

	(void)state;
	memset(key, 'k', sizeof(key));
	for (size_t len = 1; len <= XKV_KEY_MAX; len++) {
		n = 0;
		for (int i = 0; i < 18; i++) {
			int64_t step = i < 9 ? steps[i] : -steps[17 - i];

			op = incr(key, len, step);
			ask_op(dice(FRONTENDS), &op, &r);
			n += step;
			assert_true(number(&r) == n);
		}
		assert_true(!n);
		op = incr(key, len, (int64_t)len - 100);
		ask_op(DRIVER, &op, &r);
	}
	for (size_t len = 1; len <= XKV_KEY_MAX; len++) {
		snprintf(text, sizeof(text), "%d", (int)len - 100);
		holds(key, len, text, strlen(text));
	}
}

/* A key that is not there, or not there any more, counts as 0 and does not expire. */
static void test_incr_missing(void **state)
{
	struct operation op = incr("n", 1, -5);
	struct reply r;

	(void)state;
	for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
		for (int expired = 0; expired < 2; expired++) {
			store_delete(bed.ctx, "n", 1, NULL);
			if (expired)
				put("n", 1, "41", 2, 1000);
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
			assert_true(!entry("n", 1).expire_ms);
			holds_text("n", "-5");
		}
	}
}

/* What was expired and no number does not matter; and 0 plus an amount cannot overflow. */
static void test_incr_expired_text(void **state)
{
	struct operation op = incr("n", 1, INT64_MIN);
	struct reply r;

	(void)state;
	put("n", 1, "text", 4, 1000);
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

	(void)state;
	put("n", 1, "5", 1, store_now_ms(bed.st) + 1000000);
	op.flags = XKV_CAS;
	for (unsigned int i = 0; i < 2 * FRONTENDS; i++) {
		op.opcode = i < FRONTENDS ? XKV_OP_EXPIRE : XKV_OP_DELETE;
		e = entry("n", 1);
		op.version = e.version + 2;
		ask_op(i % FRONTENDS, &op, &r);
		assert_int_equal(r.result[0].status, XKV_NOT_STORED);
		assert_true(r.result[0].version == e.version && !r.result[0].ttl == !e.expire_ms);
		assert_true(entry("n", 1).version == e.version);
		op.version = e.version;
		ask_op(i % FRONTENDS, &op, &r);
		assert_int_equal(r.result[0].status, XKV_OK);
		ask_op(i % FRONTENDS, &op, &r);
		assert_int_equal(r.result[0].status,
				 op.opcode == XKV_OP_DELETE ? XKV_MISS : XKV_NOT_STORED);
		if (op.opcode == XKV_OP_DELETE)
			put_text("n", "5");
		else
			assert_true(!entry("n", 1).expire_ms);
	}
}

/* CAS and XX with INCR and APPEND: the version decides. */
static void test_conditions(void **state)
{
	struct operation ops[2] = { incr("n", 1, 1), append("n", 1, "0", 1) };
	struct store_entry e;
	struct reply r;

	(void)state;
	for (unsigned int i = 0; i < 4; i++) {
		struct operation *op = &ops[i / 2];

		put_text("n", "5");
		e = entry("n", 1);
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
			holds(other, len, pattern(1), 40);
		else
			put(other, len, pattern(1), 40, 0);
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
		expire_ms = dice(2) ? store_now_ms(bed.st) + 1000000 : 0;
		put(key, key_len, pattern(0), (size_t)old, expire_ms);
		version = entry(key, key_len).version;
		memcpy(want, pattern(0), (size_t)old);
	}
	old = old < 0 ? 0 : old;
	memcpy(want + old, pattern(1), more);
	ask_op(frontend, &op, &r);
	assert_int_equal(number(&r), (size_t)old + more);
	assert_true(!r.result[0].ttl == !expire_ms);
	assert_true(r.result[0].version == entry(key, key_len).version);
	assert_true(r.result[0].version != version);
	holds(key, key_len, want, (size_t)old + more);
}

/* All that a byte can be shifted by. */
static void test_append_alignments(void **state)
{
	(void)state;
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

	(void)state;
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

	(void)state;
	for (int i = 0; i < 1000; i++) {
		snprintf(key, sizeof(key), "k%03d", i);
		put(key, 4, pattern(0), (size_t)i % 8, 0);
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
		holds(key, 4, pattern(0), 8);
	}
}

/* Around the length from which on xkvd does it, by its own means. */
static void test_append_large(void **state)
{
	static const int old[] = { 0,	 1,    7,    8,	   100,	 1000, 1399, 1400,
				   1424, 1471, 1472, 1473, 1600, 2000, 2600 };
	static const size_t more[] = { 0, 1, 7, 8, 9, 72, 73, 400 };
	size_t room = DATAGRAM - 16 - 24 - 8, rest;

	(void)state;
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

	(void)state;
	for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
		put("key", 3, large, XKV_VALUE_MAX - 3, 0);
		ask_op(frontend, &op, &r);
		assert_int_equal(number(&r), XKV_VALUE_MAX - 1);
		ask_op(frontend, &op, &r);
		assert_int_equal(r.result[0].status, XKV_TOO_LARGE);
		assert_null(r.value[0]);
		assert_int_equal(r.result[0].value_len, XKV_VALUE_MAX + 1);
		assert_int_equal(entry("key", 3).value_len, XKV_VALUE_MAX - 1);
	}
}

/* From nothing to 1 MiB, by datagrams. */
static void test_append_far(void **state)
{
	static uint8_t want[XKV_VALUE_MAX];
	size_t len = 0, more;
	struct operation op;
	struct reply r;

	(void)state;
	while (len < sizeof(want)) {
		more = 1 + dice(1400);
		more = more < sizeof(want) - len ? more : sizeof(want) - len;
		op = append("key", 3, pattern(len & 1), more);
		memcpy(want + len, op.value, more);
		len += more;
		ask_op(dice(FRONTENDS), &op, &r);
		assert_int_equal(number(&r), len);
	}
	holds("key", 3, want, sizeof(want));
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
		{ .opcode = XKV_OP_APPEND, .flags = XKV_CAS, TEXT("c"), .value = "y", .value_len = 1,
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

	(void)state;
	put("a", 1, pattern(0), 1400, 0);
	put("b", 1, pattern(0), 1400, 0);
	put("c", 1, pattern(0), 3000, 0);
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
	assert_int_equal(entry("c", 1).value_len, 3001);
}

/* An expired value does not come back, and its expiry neither. */
static void test_append_expired(void **state)
{
	struct operation op = append("key", 3, "new", 3);
	struct reply r;

	(void)state;
	for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
		put("key", 3, "old", 3, 1000);
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

	(void)state;
	for (size_t len = 0; len < 600; len++) {
		op = append("key", 3, pattern(0) + len, 1);
		ask_op(len % 3 ? DRIVER : DAEMON, &op, &r);
		assert_int_equal(number(&r), len + 1);
		if (len % 50 == 0)
			holds("key", 3, pattern(0), len + 1);
	}
	holds("key", 3, pattern(0), 600);
}

/* ---- a model of all changes ------------------------------------------------ */

#define MODEL_KEYS 24

struct model {
	bool exists;
	size_t len;
	uint8_t value[2048];
	uint64_t version;
};

static struct model model[MODEL_KEYS];

static void model_key(unsigned int i, char key[32], size_t *len)
{
	*len = (size_t)snprintf(key, 32, "%.*s%u", (int)(i * 7 % 20), "aaaaaaaaaaaaaaaaaaaa", i);
}

static void model_set(enum frontend frontend, struct model *m, const char *key, size_t key_len)
{
	struct operation op = op_on(XKV_OP_SET, key, key_len);
	char text[24];
	struct reply r;

	op.value = pattern(0);
	op.value_len = dice(3) ? dice(64) : dice(1400);
	if (dice(2)) {
		snprintf(text, sizeof(text), "%" PRId64, (int64_t)(dice(UINT64_MAX) >> dice(64)));
		op.value = text;
		op.value_len = strlen(text);
	}
	ask_op(frontend, &op, &r);
	assert_int_equal(r.result[0].status, XKV_OK);
	m->exists = true;
	m->len = op.value_len;
	memcpy(m->value, op.value, m->len);
	m->version = r.result[0].version;
}

static void model_incr(enum frontend frontend, struct model *m, const char *key, size_t key_len)
{
	int64_t amount = (int64_t)dice(1ULL << 40) - (1LL << 39), old = 0, sum;
	struct operation op = incr(key, key_len, amount);
	struct reply r;

	ask_op(frontend, &op, &r);
	if (m->exists && !is_number((char *)m->value, m->len, &old)) {
		refused(&r, XKV_NOT_NUMBER);
	} else if (__builtin_add_overflow(old, amount, &sum)) {
		refused(&r, XKV_OVERFLOW);
	} else {
		assert_true(number(&r) == sum);
		m->len = (size_t)snprintf((char *)m->value, sizeof(m->value), "%" PRId64, sum);
		m->exists = true;
		m->version = r.result[0].version;
	}
}

static void model_append(enum frontend frontend, struct model *m, const char *key, size_t key_len)
{
	size_t more = dice(20), old = m->exists ? m->len : 0;
	struct operation op = append(key, key_len, pattern(1), more);
	struct reply r;

	if (old + more > sizeof(m->value))
		return;
	ask_op(frontend, &op, &r);
	assert_int_equal(number(&r), old + more);
	memcpy(m->value + old, pattern(1), more);
	m->len = old + more;
	m->exists = true;
	m->version = r.result[0].version;
}

static void model_delete(enum frontend frontend, struct model *m, const char *key, size_t key_len)
{
	struct operation op = op_on(XKV_OP_DELETE, key, key_len);
	struct reply r;

	ask_op(frontend, &op, &r);
	assert_int_equal(r.result[0].status, m->exists ? XKV_OK : XKV_MISS);
	m->exists = false;
	m->version = 0;
}

static void model_check(enum frontend frontend, const struct model *m, const char *key,
			size_t key_len)
{
	struct operation op = op_on(XKV_OP_GET, key, key_len);
	struct reply r;

	for (int i = 0; i < 3; i++) {
		op.opcode = (uint8_t[]){ XKV_OP_GET, XKV_OP_TTL, XKV_OP_TOUCH }[i];
		ask_op(frontend, &op, &r);
		assert_int_equal(r.result[0].status, m->exists ? XKV_OK : XKV_MISS);
		assert_true(r.result[0].version == m->version);
		assert_int_equal(!r.value[0], !m->exists || i);
		if (!r.value[0])
			continue;
		assert_int_equal(r.result[0].value_len, m->len);
		assert_memory_equal(r.value[0], m->value, m->len);
	}
}

/* Changes of all kinds in any order, through both front ends, on a few keys. */
static void test_model(void **state)
{
	size_t len;
	char key[32];

	(void)state;
	memset(model, 0, sizeof(model));
	for (int i = 0; i < 30000; i++) {
		unsigned int n = (unsigned int)dice(MODEL_KEYS), what = (unsigned int)dice(10);
		enum frontend frontend = dice(3) ? DRIVER : DAEMON;

		model_key(n, key, &len);
		if (what < 1)
			model_set(frontend, &model[n], key, len);
		else if (what < 4)
			model_incr(frontend, &model[n], key, len);
		else if (what < 8)
			model_append(frontend, &model[n], key, len);
		else if (what < 9)
			model_delete(frontend, &model[n], key, len);
		model_check(dice(FRONTENDS), &model[n], key, len);
		if (i % 1000)
			continue;
		for (n = 0; n < MODEL_KEYS; n++) {
			model_key(n, key, &len);
			model_check(DRIVER, &model[n], key, len);
		}
	}
}

/* ---- TTL, TOUCH and what counts as an access ------------------------------- */

static void test_ttl(void **state)
{
	static const uint8_t opcodes[] = { XKV_OP_TTL, XKV_OP_TOUCH };
	struct operation op;
	struct reply r;

	(void)state;
	put("a", 1, pattern(0), 1400, 0);
	put("b", 1, "1", 1, store_now_ms(bed.st) + 50000);
	put("c", 1, "1", 1, 1000);
	put("d", 1, large, XKV_VALUE_MAX, 0);
	for (unsigned int i = 0; i < 4; i++) {
		enum frontend frontend = i % FRONTENDS;

		op = op_on(opcodes[i / 2], "a", 1);
		ask_op(frontend, &op, &r);
		assert_int_equal(r.result[0].status, XKV_OK);
		assert_true(!r.value[0] && !r.result[0].value_len && !r.result[0].ttl);
		assert_true(r.result[0].version == entry("a", 1).version);
		op.key = "b";
		ask_op(frontend, &op, &r);
		assert_int_equal(r.result[0].status, XKV_OK);
		assert_in_range(r.result[0].ttl, 1, 50000);
		op.key = "d";
		ask_op(frontend, &op, &r);
		assert_int_equal(r.result[0].status, XKV_OK);
		for (op.key = "c"; op.key; op.key = !strcmp(op.key, "c") ? "x" : NULL) {
			for (bed.c->miss_reply = 0; bed.c->miss_reply < 2; bed.c->miss_reply++) {
				ask_op(frontend, &op, &r);
				refused(&r, XKV_MISS);
				assert_int_equal(r.passed,
						 frontend == DRIVER && !bed.c->miss_reply);
			}
		}
	}
}

/* What an operation leaves in the entry's access. */
static uint16_t access_after(const struct operation *op, uint16_t before)
{
	struct xkv_slot *slot = bed_slot(&bed, op->key, op->key_len);
	struct reply r;

	assert_non_null(slot);
	slot->access = before;
	ask_op(DRIVER, op, &r);
	assert_false(r.passed);
	slot = bed_slot(&bed, op->key, op->key_len);
	assert_non_null(slot);
	return slot->access;
}

/* TTL leaves no trace; everything else that reads or writes is an access. */
static void test_access(void **state)
{
	static const enum xkv_track tracks[] = { XKV_TRACK_TIME, XKV_TRACK_FREQUENCY };
	struct operation get = op_on(XKV_OP_GET, "k1", 2), ttl = op_on(XKV_OP_TTL, "k1", 2),
			 touch = op_on(XKV_OP_TOUCH, "k1", 2), add = incr("k1", 2, 1),
			 join = append("k1", 2, "2", 1);
	struct payload p = scan("k1", 1);
	uint16_t before = 0x1203, used;
	struct reply r;

	(void)state;
	put_text("k1", "41");
	bed.c->access = 0x4448;
	bed.c->track = XKV_TRACK_NOTHING;
	assert_int_equal(access_after(&get, before), before);
	assert_int_equal(access_after(&touch, before), before);
	for (int i = 0; i < 2; i++) {
		bed.c->track = tracks[i];
		used = access_after(&get, before);
		assert_int_not_equal(used, before);
		assert_int_equal(access_after(&touch, before), used);
		assert_int_equal(access_after(&add, before), used);
		assert_int_equal(access_after(&join, before), used);
		assert_int_equal(access_after(&ttl, before), before);
		bed_slot(&bed, "k1", 2)->access = before;
		ask(DRIVER, &p, &r);
		assert_int_equal(bed_slot(&bed, "k1", 2)->access, used);
	}
}

/* A write that moves the entry to another slot is an access as much as one in place. */
static void test_access_moved(void **state)
{
	struct operation set = op_on(XKV_OP_SET, "k1", 2), join = append("k1", 2, pattern(0), 500);

	(void)state;
	put("big", 3, pattern(0), 1000, 0); /* so that there are slots of that size */
	put("mid", 3, pattern(0), 502, 0);
	put_text("k1", "41");
	bed.c->access = 777;
	bed.c->track = XKV_TRACK_TIME;
	assert_int_equal(access_after(&join, 5), 777);
	set.value = pattern(0);
	set.value_len = 1000;
	assert_int_equal(access_after(&set, 5), 777);
}

/* ---- SCAN ------------------------------------------------------------------ */

/* The key that follows, as a person would count. */
static void count_up(char *key)
{
	size_t at = strlen(key);

	while (at && key[at - 1] >= '0' && key[at - 1] <= '9') {
		if (key[--at] != '9') {
			key[at]++;
			return;
		}
		key[at] = '0';
	}
	*key = 0; /* was the last */
}

/* Is a result of several what GET would say of the key alone? */
static void check_read(const struct reply *r, unsigned int i, uint8_t opcode, const char *key)
{
	struct store_entry e = { .version = 0 };
	int ret = store_get(bed.ctx, key, strlen(key), &e);

	assert_int_equal(r->result[i].opcode, opcode);
	assert_int_equal(r->result[i].status, ret ? XKV_MISS : XKV_OK);
	assert_true(r->result[i].version == (ret ? 0 : e.version));
	assert_int_equal(!r->value[i], !!ret);
	if (ret)
		return;
	assert_int_equal(!r->result[i].ttl, !e.expire_ms);
	assert_int_equal(r->result[i].value_len, e.value_len);
	assert_memory_equal(r->value[i], e.value, e.value_len);
}

static void check_scanned(const struct reply *r, unsigned int i, const char *key)
{
	check_read(r, i, XKV_OP_SCAN, key);
}

/* Reads `keys` keys as a client does: goes on behind what was answered.  How many there were. */
static unsigned int scan_all(enum frontend frontend, const char *first, unsigned int keys,
			     unsigned int *requests)
{
	unsigned int read = 0, ask_for;
	char key[XKV_KEY_MAX + 1];
	struct payload p;
	struct reply r;

	snprintf(key, sizeof(key), "%s", first);
	for (*requests = 0; *key && read < keys; ++*requests) {
		ask_for = keys - read > XKV_SCAN_MAX ? XKV_SCAN_MAX : keys - read;
		p = scan(key, ask_for);
		ask(frontend, &p, &r);
		assert_in_range(r.count, 1, ask_for);
		for (unsigned int i = 0; i < r.count; i++) {
			assert_true(*key);
			check_scanned(&r, i, key);
			count_up(key);
		}
		read += r.count;
	}
	return read;
}

static void test_scan(void **state)
{
	unsigned int requests;
	char key[32];

	(void)state;
	for (int i = 0; i < 300; i++) {
		snprintf(key, sizeof(key), "item:%04d", i);
		if (i % 10 != 7)
			put(key, strlen(key), pattern(0), (size_t)i % 70,
			    i % 3 ? 0 : store_now_ms(bed.st) + 1000000);
	}
	put("item:0017", 9, "gone", 4, 1000);
	for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
		for (bed.c->miss_reply = 0; bed.c->miss_reply < 2; bed.c->miss_reply++) {
			assert_int_equal(scan_all(frontend, "item:0000", 300, &requests), 300);
			assert_in_range(requests, 10, 100);
			assert_int_equal(scan_all(frontend, "item:0295", 10, &requests), 10);
			assert_int_equal(scan_all(frontend, "item:0008", 4, &requests), 4);
			/* the first is not there: xkvd answers all, in one go */
			assert_int_equal(scan_all(frontend, "item:0297", 20, &requests), 20);
			assert_int_equal(requests, 1);
		}
	}
}

/* Where the counting ends. */
static void test_scan_end(void **state)
{
	char nines[XKV_KEY_MAX + 1];
	unsigned int requests;

	(void)state;
	bed.c->miss_reply = 1;
	for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
		assert_int_equal(scan_all(frontend, "k8", 100, &requests), 2);
		assert_int_equal(scan_all(frontend, "k9", 100, &requests), 1);
		assert_int_equal(scan_all(frontend, "k09", 100, &requests), 91);
		assert_int_equal(scan_all(frontend, "k98", 100, &requests), 2);
		assert_int_equal(scan_all(frontend, "1k7", 100, &requests), 3);
		assert_int_equal(scan_all(frontend, "9", 100, &requests), 1);
		assert_int_equal(scan_all(frontend, "0", 100, &requests), 10);
		assert_int_equal(scan_all(frontend, "99999998", 100, &requests), 2);
		assert_int_equal(scan_all(frontend, "0999999999999999998", 4, &requests), 4);
		for (size_t len = 1; len <= 32; len++) {
			memset(nines, '9', len);
			nines[len] = 0;
			assert_int_equal(scan_all(frontend, nines, 3, &requests), 1);
			nines[0] = '8';
			assert_int_equal(scan_all(frontend, nines, 3, &requests), len > 1 ? 3 : 2);
		}
	}
}

/* Carries of all lengths, in keys of all lengths. */
static void test_scan_keys(void **state)
{
	char key[XKV_KEY_MAX + 1];
	unsigned int requests;

	(void)state;
	bed.c->miss_reply = 1;
	for (size_t len = 2; len <= XKV_KEY_MAX; len++) {
		size_t digits = 1 + len % (len < 24 ? len - 1 : 23);

		memset(key, 'k', len);
		memset(key + len - digits, '9', digits);
		key[len] = 0;
		key[len - digits] = '4';
		put(key, len, pattern(0), len % 30, 0);
		key[len - 1] = '7';
		assert_int_equal(scan_all(len % FRONTENDS, key, 5, &requests), digits > 1 ? 5 : 3);
	}
}

/* What fits a datagram, byte for byte; the reply is as full as it can be. */
static void test_scan_full(void **state)
{
	struct payload p;
	struct reply r;
	char key[8];

	(void)state;
	for (size_t len = 0; len < 1500; len = len * 5 / 4 + 1) {
		size_t each = 24 + XKV_PADDED(len), fit = (DATAGRAM - 16) / each;

		for (int i = 0; i < 64; i++) {
			snprintf(key, sizeof(key), "k%02d", i);
			put(key, 3, pattern(0), len, 0);
		}
		for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
			p = scan("k00", 64);
			ask(frontend, &p, &r);
			if (fit) {
				assert_int_equal(r.count, fit < 60 ? fit : 60);
				assert_false(r.passed);
			} else { /* none does: its length, and the others in the same way */
				assert_int_equal(r.count, 60);
				assert_int_equal(r.result[0].status, XKV_TOO_LARGE);
				assert_int_equal(r.result[0].value_len, len);
			}
		}
	}
}

/*
 * Padding takes the place where the next keys are made: as many fit the reply as without, whatever
 * their length.
 */
static void test_scan_padded(void **state)
{
	char key[XKV_KEY_MAX + 1];
	struct payload p;
	struct reply r;

	(void)state;
	for (size_t len = 8; len <= XKV_KEY_MAX; len += len < 248 ? 8 : 2) {
		memset(key, 'k', len);
		key[len] = 0;
		for (int i = 0; i < 100; i++) {
			snprintf(key + len - 2, 3, "%02d", i);
			put(key, len, pattern(i % 7), 8, 0);
		}
		memcpy(key + len - 2, "00", 2);
		for (size_t pad = 0; pad <= DATAGRAM - 16 - 24 - XKV_PADDED(len); pad += 8)
			for (int again = 0; again < 2; again++) { /* knowing how many fit */
				p = scan(key, 100);
				request_pad(&p, pad, 0xff);
				ask(DRIVER, &p, &r);
				assert_false(r.passed);
				assert_int_equal(r.count, (DATAGRAM - 16) / 32);
				for (unsigned int i = 0; i < r.count; i++) {
					snprintf(key + len - 2, 3, "%02d", i);
					check_read(&r, i, XKV_OP_SCAN, key);
				}
				memcpy(key + len - 2, "00", 2);
			}
	}
}

/* Hits and misses are counted key by key. */
static void test_scan_counters(void **state)
{
	struct payload p = scan("k1", 5);
	uint64_t hits, misses;
	struct reply r;

	(void)state;
	bed.c->miss_reply = 1;
	put_text("k1", "a");
	put_text("k3", "c");
	hits = count_of(XKV_C_get_hits);
	misses = count_of(XKV_C_get_misses);
	ask(DRIVER, &p, &r);
	assert_int_equal(r.count, 5);
	assert_int_equal(count_of(XKV_C_get_hits) - hits, 2);
	assert_int_equal(count_of(XKV_C_get_misses) - misses, 3);
}

/* Asks for n of the keys of test_gets() at once.  The key after i is i + step. */
static void gets(unsigned int first, unsigned int step, unsigned int n)
{
	size_t len = sizeof(struct xkv_hdr);
	struct operation op[RESULTS_MAX];
	char key[RESULTS_MAX][16];
	unsigned int missing = 0;
	struct payload p;
	struct reply r;

	begin(&p, next_id++, 0);
	for (unsigned int i = 0; i < n; i++) {
		struct store_entry e = { .version = 0 };

		snprintf(key[i], sizeof(key[i]), "gets:%u", (first + i * step) % 100);
		op[i] = op_on(XKV_OP_GET, key[i], strlen(key[i]));
		request_add(&p, &op[i]);
		missing += !!store_get(bed.ctx, key[i], strlen(key[i]), &e);
		len += 24 + XKV_PADDED(e.value_len);
	}
	ask(DRIVER, &p, &r);
	for (unsigned int i = 0; i < r.count; i++)
		check_read(&r, i, XKV_OP_GET, key[i]);
	if (len <= DATAGRAM && (!missing || bed.c->miss_reply || r.passed))
		assert_int_equal(r.count, n);
	assert_true(r.count > 0);
	assert_true(r.passed <= (missing && !bed.c->miss_reply));
}

/*
 * GETs whose keys are looked for together, with keys that collide and without, there and not there.
 */
static void test_gets(void **state)
{
	static const uint64_t mask[] = { ~0ULL, 0xffULL << 40 | 1, 3 };
	char key[16];

	(void)state;
	for (size_t m = 0; m < sizeof(mask) / sizeof(*mask); m++) {
		bed.c->fingerprint_mask = mask[m];
		for (unsigned int i = 0; i < 100; i++) {
			snprintf(key, sizeof(key), "gets:%u", i);
			if (i % 9 != 8)
				put(key, strlen(key), pattern(i % 7), i * 31 % 250,
				    i % 5 ? 0 : store_now_ms(bed.st) + 1000000);
		}
		put("gets:17", 7, "gone", 4, 1000);
		for (bed.c->miss_reply = 0; bed.c->miss_reply < 2; bed.c->miss_reply++)
			for (unsigned int first = 0; first < 100; first++)
				for (unsigned int n = 1; n < 24; n++)
					gets(first, 1 + n % 7, n);
		for (unsigned int i = 0; i < 100; i++) {
			snprintf(key, sizeof(key), "gets:%u", i);
			put(key, strlen(key), "", 0, 0); /* what has expired cannot be deleted */
			store_delete(bed.ctx, key, strlen(key), NULL);
		}
	}
	bed.c->fingerprint_mask = ~0ULL;
}

/* SCANs and others in one datagram: what is answered is right, and nothing behind it was done. */
static void test_scan_batch(void **state)
{
	struct operation set = op_on(XKV_OP_SET, "done", 4);
	struct payload p;
	struct reply r;
	char key[8];

	(void)state;
	for (int i = 0; i < 10; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		put(key, 2, pattern(0), 200, 0);
	}
	p = scan("k2", 2);
	request_add(&p, &(struct operation){ .opcode = XKV_OP_SCAN, TEXT("k8") });
	p.byte[p.len - 32 + 3] = 9; /* two of them exist */
	request_add(&p, &set);
	ask(DRIVER, &p, &r);
	assert_int_equal(r.count, 5);
	check_scanned(&r, 0, "k2");
	check_scanned(&r, 1, "k3");
	check_scanned(&r, 2, "k8");
	check_scanned(&r, 3, "k9");
	assert_int_equal(r.result[4].opcode, XKV_OP_SET);
	holds_text("done", "");
	store_delete(bed.ctx, "done", 4, NULL);
	p = scan("k0", 8); /* six fit */
	request_add(&p, &set);
	ask(DRIVER, &p, &r);
	assert_int_equal(r.count, 6);
	assert_int_equal(store_get(bed.ctx, "done", 4, &(struct store_entry){ 0 }), -ENOENT);
}

/* ---- once ------------------------------------------------------------------ */

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

	(void)state;
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
		{ .opcode = XKV_OP_SET, TEXT("k"), .value = "new", .value_len = 3, .ttl = 50000,
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

	(void)state;
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
	(void)state;
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

/* A source has two records in a set.  That three of these come to one set, under a secret that is drawn
 * for each run, happens once in 15,000 runs; of 100 it was once in 25. */
#define ONCE_SESSIONS 12

/* The same id in another session is another request; and without a session everything is. */
static void test_once_sessions(void **state)
{
	struct operation op = incr("n", 1, 1);
	struct reply r;
	struct payload p;

	(void)state;
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

	(void)state;
	op.flags = XKV_RETURN;
	for (size_t len = 40; len < 60; len++) {
		for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
			put("k", 1, pattern(0), len, 0);
			p = once_request(SESSION, id += 8, &op);
			ask(frontend, &p, &r);
			assert_int_equal(r.result[0].value_len, len);
			put("k", 1, "again", 5, 0);
			ask(!frontend, &p, &r);
			assert_int_equal(r.status, len > 48 ? XKV_REPEATED : 0);
			if (len <= 48)
				assert_memory_equal(r.value[0], pattern(0), len);
			holds_text("k", "again");
		}
	}
}

/* A request that the driver cannot do: whoever does it in the end, it is done once. */
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

	(void)state;
	put_text("n", "41");
	counts_to(DRIVER, SESSION, 72, 42); /* a request before it, whose record it takes */
	slot = bed_slot(&bed, "n", 1);
	packet_default(&s, false);
	s.payload = p.byte;
	s.len = p.len;
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

	(void)state;
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

	(void)state;
	put("k", 1, pattern(0), (size_t)len, 0);
	for (uint64_t id = 80; id < 160; id += 8) {
		p = once_request(SESSION, id, &op);
		ask(id % 16 ? DRIVER : DAEMON, &p, &first);
		assert_int_equal(number(&first), len += 2);
		for (enum frontend frontend = 0; frontend < FRONTENDS; frontend++) {
			ask(frontend, &p, &r);
			assert_true(r.len == first.len && !memcmp(r.byte, first.byte, r.len));
		}
	}
	assert_int_equal(entry("k", 1).value_len, len);
	put("k", 1, large, XKV_VALUE_MAX, 0); /* what is refused stays so */
	p = once_request(SESSION, 160, &op);
	ask(DRIVER, &p, &r);
	assert_int_equal(r.result[0].status, XKV_TOO_LARGE);
	put("k", 1, "small", 5, 0);
	ask(DAEMON, &p, &r);
	assert_int_equal(r.result[0].status, XKV_TOO_LARGE);
	holds_text("k", "small");
}

/* A large old value is not given, its length is; nothing was set, and copies hear the same. */
static void test_once_return_large(void **state)
{
	struct operation op = { .opcode = XKV_OP_SET, .flags = XKV_RETURN, TEXT("k"),
				.value = "new", .value_len = 3 };
	struct payload p = once_request(SESSION, 80, &op);
	struct reply r;

	(void)state;
	put("k", 1, large, 5000, 0);
	for (int i = 0; i < 2 * FRONTENDS; i++) {
		ask(i % FRONTENDS, &p, &r);
		assert_int_equal(r.result[0].status, XKV_TOO_LARGE);
		assert_int_equal(r.result[0].value_len, 5000);
		assert_null(r.value[0]);
	}
	assert_int_equal(entry("k", 1).value_len, 5000);
}

/*
 * A request that was passed on and not yet done, and a late copy of the one before it: that
 * one must not be done again, and gets nothing that is somebody else's.
 */
static void test_once_not_done(void **state)
{
	struct operation op = append("large", 5, "x", 1);
	struct payload p = once_request(SESSION, 88, &op);
	struct packet_spec s;
	struct outcome out;
	uint8_t frame[PACKET_MAX];
	struct reply r;

	(void)state;
	put("large", 5, large, 5000, 0);
	counts_to(DRIVER, SESSION, 80, 1);
	packet_default(&s, false);
	s.payload = p.byte;
	s.len = p.len;
	assert_true(bed_run(&bed, frame, packet_build(&s, frame), &out));
	assert_int_equal(out.verdict, XDP_PASS);
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

	(void)state;
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

/* When there is no room, nothing is done, and nobody loses what he has. */
static void test_once_full(void **state)
{
	uint64_t last = fill_table(1), refusals = count_of(XKV_C_error_once);
	char text[24];

	(void)state;
	/* a set of four is the first of 4,096 to get a fifth after some 1,000 of them */
	assert_in_range(last, 50, XKV_DEDUP_SETS * XKV_DEDUP_WAYS);
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

/* A record is kept for 60 s after its last use, and then only given away when somebody needs it. */
static void test_once_expires(void **state)
{
	uint64_t last = fill_table(1);

	(void)state;
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

	(void)state;
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

	(void)state;
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
		p = once_request(dice(UINT64_MAX) | 1, dice(UINT64_MAX), &op);
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
			session = proven(i % 8 ? DRIVER : DAEMON, dice(UINT64_MAX) | 1ULL << 40);
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
	struct operation ops[] = { { .opcode = XKV_OP_PING },	   op_on(XKV_OP_GET, "n", 1),
				   op_on(XKV_OP_TTL, "n", 1),	   op_on(XKV_OP_TOUCH, "n", 1),
				   { .opcode = XKV_OP_SESSION }, op_on(99, "n", 1) };
	struct payload p;
	struct reply r;

	(void)state;
	put_text("n", "0");
	for (unsigned int i = 0; i < FLOOD; i++) {
		p = once_request(dice(UINT64_MAX) | 1ULL << 40, i, &ops[i % 6]);
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

	(void)state;
	assert_true(flood(FLOOD, 1) > FLOOD / 2);
	assert_in_range(records(false), 1, XKV_DEDUP_SETS * XKV_DEDUP_PER_SOURCE);
	put_text("n", "0");
	for (uint64_t i = 1; i <= 100; i++) { /* clients that know nothing of proofs */
		ask_once(DRIVER, dice(UINT64_MAX) | 1, 8, &r);
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

	(void)state;
	counts_to(DRIVER, older, 8, 1);
	counts_to(DRIVER, SESSION, 8, 2); /* of a client that knows nothing of proofs */
	flood(FLOOD, 250);
	assert_true(records(false) > XKV_DEDUP_SETS * XKV_DEDUP_UNPROVEN_WAYS * 9 / 10);
	assert_in_range(records(true), 1, 3); /* but the one, by chance only */
	counts_to(DRIVER, older, 8, 1); /* nobody loses what he has */
	counts_to(DRIVER, SESSION, 8, 2);
	clients_write(1000, 2);
	counts_to(DRIVER, older, 16, 2003);
}

/* A source that receives what it asks for gets its share as well, and no more. */
static void test_flood_of_proven(void **state)
{
	unsigned int refusals = 0;
	struct reply r;

	(void)state;
	source = htonl(CLIENT + 1);
	for (unsigned int i = 0; i < FLOOD / 2; i++) {
		ask_once(DRIVER, proven(DRIVER, dice(UINT64_MAX) | 1ULL << 40), 8, &r);
		refusals += r.status == XKV_NO_SESSION;
	}
	assert_true(refusals > FLOOD / 4);
	assert_in_range(records(true), XKV_DEDUP_SETS, XKV_DEDUP_SETS * XKV_DEDUP_PER_SOURCE);
	flood(FLOOD, 250);
	put_text("n", "0");
	source = htonl(CLIENT);
	clients_write(1000, 0);
}

/* What was heard on the wire does nothing when it is sent again, by whomever. */
static void test_replays(void **state)
{
	uint64_t session = proven(DRIVER, SESSION);
	struct reply r;

	(void)state;
	for (uint64_t id = 8; id <= 8 * 100; id += 8)
		counts_to(id % 64 ? DRIVER : DAEMON, session, id, (int64_t)id / 8);
	source = htonl(CLIENT + 1);
	for (uint64_t id = 8; id <= 8 * 100; id += 8) {
		ask_once(id % 64 ? DRIVER : DAEMON, session, id, &r);
		assert_true(id == 800 ? number(&r) == 100 : r.dropped);
	}
	holds_text("n", "100");
}

/* ---- a look inside ----------------------------------------------------------- */

/* All that a file beside the maps prints. */
static char *printed(const char *name)
{
	char path[200], *text = NULL, part[5000];
	size_t len = 0, got;
	FILE *to = open_memstream(&text, &len), *from;

	snprintf(path, sizeof(path), "%s/%s", bed.pin_dir, name);
	from = fopen(path, "r");
	assert_non_null(from);
	assert_non_null(to);
	while ((got = fread(part, 1, sizeof(part), from)))
		fwrite(part, 1, got, to);
	assert_false(ferror(from));
	fclose(from);
	fclose(to);
	return text;
}

/* Prints `dump`, and expects these lines, but for the number of the version. */
static void dumps(const char *want)
{
	char *text = printed("dump"), *to = text;

	for (const char *from = text; (*to = *from++);) {
		if (to - text >= 11 && !memcmp(to - 10, "\"version\":\"", 11))
			from += strspn(from, "0123456789");
		to++;
	}
	assert_string_equal(text, want);
	free(text);
}

#define META ",\"ttl_ms\":null,\"version\":\"\"}\n"

static void dump_is(const char *key, size_t key_len, const char *value, size_t len,
		    const char *want)
{
	assert_int_equal(store_flush(bed.ctx), 0);
	put(key, key_len, value, len, 0);
	dumps(want);
}

/* Text as it is, UTF-8 included; all else in base64. */
static void test_dump(void **state)
{
	char *text;

	(void)state;
	dumps("");
	dump_is("k", 1, "v", 1, "{\"key\":\"k\",\"value\":\"v\",\"value_len\":1" META);
	dump_is("k", 1, "", 0, "{\"key\":\"k\",\"value\":\"\",\"value_len\":0" META);
	dump_is("\"\\\n", 3, "\r\tx", 3,
		"{\"key\":\"\\\"\\\\\\n\",\"value\":\"\\r\\tx\",\"value_len\":3" META);
	dump_is("gr\xc3\xbc\xc3\x9f", 6, "\xe2\x82\xac\xf0\x9f\x98\x80", 7,
		"{\"key\":\"gr\xc3\xbc\xc3\x9f\",\"value\":\"\xe2\x82\xac\xf0\x9f\x98\x80\","
		"\"value_len\":7" META);
	dump_is("\xff", 1, "\0", 1,
		"{\"key\":{\"base64\":\"/w==\"},\"value\":{\"base64\":\"AA==\"},\"value_len\":1" META);
	dump_is("a\x01", 2, "ab\xc3", 3,
		"{\"key\":{\"base64\":\"YQE=\"},\"value\":{\"base64\":\"YWLD\"},\"value_len\":3" META);
	/* too long, a surrogate, beyond the last character */
	dump_is("\xc0\x80", 2, "\xed\xa0\x80", 3,
		"{\"key\":{\"base64\":\"wIA=\"},\"value\":{\"base64\":\"7aCA\"},\"value_len\":3" META);
	dump_is("\xe0\x80\x80", 3, "\xf4\x90\x80\x80", 4,
		"{\"key\":{\"base64\":\"4ICA\"},\"value\":{\"base64\":\"9JCAgA==\"},\"value_len\":4" META);
	put("k", 1, "v", 1, store_now_ms(bed.st) + 99000);
	text = printed("dump");
	assert_non_null(strstr(text, "\"value\":\"v\",\"value_len\":1,\"ttl_ms\":9"));
	free(text);
	pass_time(100000);
	text = printed("dump");
	assert_null(strstr(text, "\"v\""));
	free(text);
}

/* What a datagram holds is whole, and of all else that much. */
static void test_dump_long(void **state)
{
	static const size_t lens[] = { 1471, 1472, 1473, 5000, XKV_VALUE_MAX };
	static char value[XKV_VALUE_MAX];
	char key[250], want[4000];
	int len;

	(void)state;
	memset(value, 'x', sizeof(value));
	memset(key, 'k', sizeof(key));
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		len = lens[i] < 1472 ? (int)lens[i] : 1472;
		snprintf(want, sizeof(want),
			 "{\"key\":\"%.*s\",\"value\":\"%.*s\",\"value_len\":%zu%s" META, 250, key,
			 len, value, lens[i], lens[i] > 1472 ? ",\"value_truncated\":true" : "");
		dump_is(key, 250, value, lens[i], want);
	}
}

static unsigned int lines_of(const char *text, const char *with)
{
	unsigned int n = 0;

	for (; (text = strstr(text, with)); text++)
		n++;
	return n;
}

/*
 * A chain of which not all fits what the kernel keeps for one: no error, and the rest is counted.
 */
static void test_dump_of_a_long_chain(void **state)
{
	static char value[1400];
	char key[250], *text;
	unsigned int left;

	(void)state;
	memset(key, 0xff, sizeof(key));
	memset(value, '"', sizeof(value));
	bed.c->fingerprint_mask = 0xff0000000000ULL; /* one bucket */
	for (int i = 0; i < 100; i++) {
		key[0] = (char)i;
		put(key, sizeof(key), value, sizeof(value), 0);
	}
	text = printed("dump");
	assert_true(sscanf(strstr(text, "{\"left_out\":"), "{\"left_out\":%u}", &left) == 1);
	assert_int_equal(lines_of(text, "\"key\":") + left, 100);
	assert_true(left < 95 && lines_of(text, "value_truncated") > 0);
	free(text);
	text = printed("entries");
	assert_true(sscanf(strstr(text, "\n("), "\n(%u more", &left) == 1);
	assert_int_equal(lines_of(text, "1400 bytes") + left, 100);
	free(text);
	assert_int_equal(store_flush(bed.ctx), 0);
	bed.c->fingerprint_mask = ~0ULL;
}

/*
 * What a reader may find that stands on a bucket which has left its chain, and is something else by
 * now: references to entries of other buckets, to slots that are free, to nothing.
 */
static void test_dump_shows_no_ghosts(void **state)
{
	struct xkv_bucket *own, *other;
	uint64_t entry = 0;
	char *text;

	(void)state;
	put_text("key", "value");
	own = bed_bucket(&bed, "key", 3);
	other = &bed.index[(own - bed.index + 1) & bed.c->bucket_mask];
	for (int way = 0; way < XKV_WAYS; way++)
		entry |= own->entry[way];
	other->entry[0] = entry;
	other->entry[1] = entry & XKV_REF_MASK;
	other->entry[2] = ~0ULL;
	own->entry[6] = entry ^ 1ULL << 63;
	for (int json = 0; json < 2; json++) {
		text = printed(json ? "dump" : "entries");
		assert_int_equal(lines_of(text, "\n"), 1);
		free(text);
	}
	memset(other->entry, 0, sizeof(other->entry));
	own->entry[6] = 0;
}

/* ---- from two sides at once ------------------------------------------------ */

#define RACES 4096

struct racer {
	int cpu;
	struct store_ctx *ctx;
	int64_t got[RACES]; /* 0: no answer, -1: another one than it has to be */
	bool refused[RACES];
};

static atomic_uint arrived;
static uint64_t race_session;

/* The session and id of a race: one new record each, of eight in a session. */
static uint64_t session_of(uint64_t race)
{
	return race_session + race / 8;
}

static uint64_t id_of(uint64_t race)
{
	return 8 + race % 8;
}

static void run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void start_racers(struct racer racers[2], pthread_t threads[2], void *(*run)(void *))
{
	atomic_store(&arrived, 0);
	for (int i = 0; i < 2; i++) {
		racers[i].cpu = i;
		racers[i].ctx = store_ctx_get(bed.st);
		assert_non_null(racers[i].ctx);
		assert_int_equal(pthread_create(&threads[i], NULL, run, &racers[i]), 0);
	}
}

static void join_racers(struct racer racers[2], pthread_t threads[2])
{
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		store_ctx_put(racers[i].ctx);
	}
}

/* Both leave at the same moment, if both have a CPU. */
static void meet(unsigned int number)
{
	atomic_fetch_add(&arrived, 1);
	for (int spin = 1; atomic_load(&arrived) < 2 * number; spin++)
		if (spin % 10000 == 0)
			sched_yield();
}

/* INCR and APPEND of one key each, as fast as it goes. */
static void *hammer(void *arg)
{
	struct racer *me = arg;
	struct operation ops[2] = {
		{ .opcode = XKV_OP_INCR, TEXT("n"), .value = "\0\0\0\0\0\0\0\1", .value_len = 8 },
		append("text", 4, me->cpu ? "b" : "a", 1),
	};
	struct payload p;
	struct reply r;

	run_on(me->cpu);
	for (uint64_t i = 0; i < RACES; i++) {
		p = once_request(0, i, &ops[i % 8 == 7]);
		ask_as(me->ctx, (i + (uint64_t)me->cpu) % 4 ? DRIVER : DAEMON, &p, &r);
		me->refused[i] = r.dropped || r.result[0].status;
	}
	return NULL;
}

/* No step is lost, and none is done twice. `before`: bytes that there are to append to. */
static void check_hammered(size_t before)
{
	static struct racer racers[2];
	pthread_t threads[2];
	unsigned int a = 0, b = 0;
	struct store_entry e;

	if (before)
		put("text", 4, large, before, 0);
	start_racers(racers, threads, hammer);
	join_racers(racers, threads);
	for (int i = 0; i < RACES; i++)
		assert_false(racers[0].refused[i] || racers[1].refused[i]);
	e = entry("text", 4);
	for (size_t i = 0; i < e.value_len; i++) {
		a += ((const char *)e.value)[i] == 'a';
		b += ((const char *)e.value)[i] == 'b';
	}
	assert_int_equal(a, RACES / 8);
	assert_int_equal(b, RACES / 8);
	assert_int_equal(e.value_len, before + a + b);
	holds_text("n", "7168"); /* 2 * 4096 * 7 / 8 */
}

static void test_race(void **state)
{
	(void)state;
	check_hammered(0);
}

/* The same where xkvd joins what is appended. */
static void test_race_large(void **state)
{
	(void)state;
	check_hammered(2000);
}

/* Takes the expiry of each race's key away, if it has one: what PERSIST does. */
static void *persist(void *arg)
{
	struct racer *me = arg;
	struct operation op;
	struct payload p;
	struct reply r;

	run_on(me->cpu);
	for (uint64_t i = 0; i < RACES; i++) {
		enum frontend frontend = (i + (uint64_t)me->cpu) % 4 ? DRIVER : DAEMON;

		meet((unsigned int)i + 1);
		do { /* until the version has stood still between the two */
			op = op_on(XKV_OP_TTL, &i, sizeof(i));
			p = once_request(0, i, &op);
			ask_as(me->ctx, frontend, &p, &r);
			if (r.result[0].status || !r.result[0].ttl)
				break;
			op.opcode = XKV_OP_EXPIRE;
			op.flags = XKV_CAS;
			op.version = r.result[0].version;
			p = once_request(0, i, &op);
			ask_as(me->ctx, frontend, &p, &r);
		} while (r.result[0].status == XKV_NOT_STORED);
		me->refused[i] = r.result[0].status;
		me->got[i] = r.result[0].opcode == XKV_OP_EXPIRE && !r.result[0].status;
	}
	return NULL;
}

/* Of two that take an expiry away at once, exactly one does. */
static void test_persist_race(void **state)
{
	static struct racer racers[2];
	pthread_t threads[2];
	unsigned int won = 0;

	(void)state;
	for (uint64_t i = 0; i < RACES; i++)
		put(&i, sizeof(i), "v", 1, store_now_ms(bed.st) + 1000000);
	start_racers(racers, threads, persist);
	join_racers(racers, threads);
	for (uint64_t i = 0; i < RACES; i++) {
		assert_false(racers[0].refused[i] || racers[1].refused[i]);
		assert_int_equal(racers[0].got[i] + racers[1].got[i], 1);
		assert_true(!entry(&i, sizeof(i)).expire_ms);
		won += racers[0].got[i] != 0;
	}
	print_message("%u of %d won by the first\n", won, RACES);
}

#define GETS_KEYS 8

/*
 * Overwrites the keys of a datagram of GETs, with values that are one byte again and again, as many
 * as it says.
 */
static void *overwrite(void *arg)
{
	struct racer *me = arg;
	char key[] = "race:0";
	uint8_t value[250];

	run_on(me->cpu);
	for (unsigned int i = 0; !atomic_load(&arrived); i++) {
		uint8_t byte = (uint8_t)(i / GETS_KEYS % sizeof(value));

		key[5] = (char)('0' + i % GETS_KEYS);
		memset(value, byte, sizeof(value));
		assert_int_equal(store_set(me->ctx, key, 6, value, byte, 0, 0, 0, NULL), 0);
	}
	return NULL;
}

static void check_whole(const struct reply *r, unsigned int i)
{
	assert_int_equal(r->result[i].status, XKV_OK);
	for (unsigned int at = 0; at < r->result[i].value_len; at++)
		assert_int_equal(r->value[i][at], r->result[i].value_len);
}

/* GETs that are answered together while their keys are written: each value is whole. */
static void test_gets_race(void **state)
{
	static struct racer racer = { .cpu = 1 };
	struct operation op[GETS_KEYS];
	char key[GETS_KEYS][8];
	unsigned int whole = 0;
	pthread_t thread;
	struct payload p;
	struct reply r;

	(void)state;
	begin(&p, next_id++, 0);
	for (int i = 0; i < GETS_KEYS; i++) {
		snprintf(key[i], sizeof(key[i]), "race:%d", i);
		put(key[i], 6, "", 0, 0);
		op[i] = op_on(XKV_OP_GET, key[i], 6);
		request_add(&p, &op[i]);
	}
	atomic_store(&arrived, 0);
	racer.ctx = store_ctx_get(bed.st);
	assert_non_null(racer.ctx);
	assert_int_equal(pthread_create(&thread, NULL, overwrite, &racer), 0);
	run_on(0);
	for (int n = 0; n < 8 * RACES; n++) {
		ask(DRIVER, &p, &r);
		for (unsigned int i = 0; i < r.count; i++)
			if (r.result[i].status != XKV_BUSY)
				check_whole(&r, i);
		whole += r.count == GETS_KEYS;
	}
	atomic_store(&arrived, 1);
	assert_int_equal(pthread_join(thread, NULL), 0);
	store_ctx_put(racer.ctx);
	assert_true(whole > 0);
}

static struct operation raced; /* that both send */

static void *race(void *arg)
{
	struct racer *me = arg;
	struct payload p;
	struct reply r;

	run_on(me->cpu);
	for (uint64_t i = 0; i < RACES; i++) {
		p = once_request(session_of(i), id_of(i), &raced);
		meet((unsigned int)i + 1);
		ask_as(me->ctx, (i + (uint64_t)me->cpu) % 4 ? DRIVER : DAEMON, &p, &r);
		me->refused[i] = r.status == XKV_NO_SESSION;
		me->got[i] = r.dropped || r.status ? 0 : -1;
		if (me->got[i] && r.value[0])
			me->got[i] = (int64_t)get_be(r.value[0], 8);
	}
	return NULL;
}

/*
 * Two copies of each request, one on each CPU: each is done once, and who is answered gets the
 * same.  Both may be dropped, when both look for a place for a new record; a third copy helps.
 * Who is told that there is no room may rely on it that nothing was done.
 */
static unsigned int check_once_race(void)
{
	static struct racer racers[2];
	unsigned int both = 0, none = 0, done = 0;
	pthread_t threads[2];
	struct payload p;
	struct reply r;

	race_session = dice(UINT64_MAX) | 1;
	start_racers(racers, threads, race);
	join_racers(racers, threads);
	for (unsigned int i = 0; i < RACES; i++) {
		int64_t a = racers[0].got[i], b = racers[1].got[i];

		assert_true(a >= 0 && b >= 0);
		if (a && b)
			assert_int_equal(a, b);
		if (racers[0].refused[i] || racers[1].refused[i])
			assert_true(!a && !b);
		both += a && b;
		none += !a && !b;
		p = once_request(session_of(i), id_of(i), &raced);
		ask(DRIVER, &p, &r);
		if (r.status) {
			assert_true(!a && !b);
			assert_int_equal(r.status, XKV_NO_SESSION);
			continue;
		}
		assert_true(number(&r) == a || number(&r) == b || (!a && !b));
		done++;
	}
	print_message("%u of %d were answered twice, %u not at first, %u had no room\n", both,
		      RACES, none, RACES - done);
	return done;
}

static void test_once_race(void **state)
{
	unsigned int done;
	char text[24];

	(void)state;
	raced = (struct operation){ .opcode = XKV_OP_INCR, TEXT("n"),
				    .value = "\0\0\0\0\0\0\0\1", .value_len = 8 };
	done = check_once_race();
	snprintf(text, sizeof(text), "%u", done);
	holds_text("n", text);
}

/* The same where it is xkvd that does it, in several steps. */
static void test_once_race_large(void **state)
{
	unsigned int done;

	(void)state;
	put("text", 4, large, 2000, 0);
	raced = append("text", 4, "x", 1);
	done = check_once_race();
	assert_int_equal(entry("text", 4).value_len, 2000 + done);
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

	(void)state;
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

/* ---- */

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

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
		CASE(test_ttl),
		CASE(test_access),
		CASE(test_access_moved),
		CASE(test_scan),
		CASE(test_scan_end),
		CASE(test_scan_keys),
		CASE(test_scan_full),
		CASE(test_scan_padded),
		CASE(test_scan_counters),
		CASE(test_scan_batch),
		CASE(test_gets),
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
		CASE(test_dump),
		CASE(test_dump_long),
		CASE(test_dump_of_a_long_chain),
		CASE(test_dump_shows_no_ghosts),
		CASE(test_race),
		CASE(test_race_large),
		CASE(test_persist_race),
		CASE(test_once_race),
		CASE(test_gets_race),
		CASE(test_once_race_large),
	};
	int status = bed_begin(argc, argv);

	return status ? status :
			cmocka_run_group_tests_name("ops", tests, group_setup, group_teardown);
}

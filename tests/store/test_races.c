// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 5 */
/* tests/run: firm */
/*
 * Two threads that change the same keys at once, through both front ends: nothing is lost, and
 * nothing is done twice.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "ask.h"
#include "fixture.h"
#include "packet.h"
#include "random.h"
#include "xdpbed.h"

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
		put_bytes("text", 4, zeros, before, 0);
	start_racers(racers, threads, hammer);
	join_racers(racers, threads);
	for (int i = 0; i < RACES; i++)
		assert_false(racers[0].refused[i] || racers[1].refused[i]);
	e = entry_of("text", 4);
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
	check_hammered(0);
}

/* The same where xkvd joins what is appended. */
static void test_race_large(void **state)
{
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

	for (uint64_t i = 0; i < RACES; i++)
		put_bytes(&i, sizeof(i), "v", 1, store_now_ms(bed.st) + 1000000);
	start_racers(racers, threads, persist);
	join_racers(racers, threads);
	for (uint64_t i = 0; i < RACES; i++) {
		assert_false(racers[0].refused[i] || racers[1].refused[i]);
		assert_int_equal(racers[0].got[i] + racers[1].got[i], 1);
		assert_true(!entry_of(&i, sizeof(i)).expire_ms);
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

	begin(&p, next_id++, 0);
	for (int i = 0; i < GETS_KEYS; i++) {
		snprintf(key[i], sizeof(key[i]), "race:%d", i);
		put_bytes(key[i], 6, "", 0, 0);
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
 * Two copies of each request, one on each CPU: each is done once, and each reply is the
 * same.  Both may be dropped, when both look for a place for a new record; a third copy helps.
 * A reply that there is no room means that nothing was done.
 */
static unsigned int check_once_race(void)
{
	static struct racer racers[2];
	unsigned int both = 0, none = 0, done = 0;
	pthread_t threads[2];
	struct payload p;
	struct reply r;

	race_session = random_u64() | 1;
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

	raced = (struct operation){
		.opcode = XKV_OP_INCR, TEXT("n"), .value = "\0\0\0\0\0\0\0\1", .value_len = 8
	};
	done = check_once_race();
	snprintf(text, sizeof(text), "%u", done);
	holds_text("n", text);
}

/* The same where it is xkvd that does it, in several steps. */
static void test_once_race_large(void **state)
{
	unsigned int done;

	put_bytes("text", 4, zeros, 2000, 0);
	raced = append("text", 4, "x", 1);
	done = check_once_race();
	assert_int_equal(entry_of("text", 4).value_len, 2000 + done);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_race),      CASE(test_race_large), CASE(test_persist_race),
		CASE(test_once_race), CASE(test_gets_race),  CASE(test_once_race_large),
	};

	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("races", tests, ask_begin, close_bed);
}

// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 8 */
/*
 * Making room: nothing is refused for want of memory while there is memory, or may be made by
 * eviction, and no more is evicted than that takes.  Each case opens a store of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "loader/store/feed.h"
#include "loader/store/impl.h"
#include "loader/store/store.h"
#include "loader/store/txn.h"
#include "loader/util/clock.h"
#include "ask.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

#define THREADS 4

static uint8_t value[20000];

static int setup(void **state)
{
	open_bed(MAX_KEYS);
	memset(value, 'v', sizeof(value));
	return 0;
}

static int set_in(struct store_ctx *ctx, const char *prefix, unsigned int n, size_t len)
{
	char key[32];

	snprintf(key, sizeof(key), "%s%u", prefix, n);
	return store_set(ctx, key, strlen(key), value, len, 0, 0, 0, NULL);
}

static int set(const char *prefix, unsigned int n, size_t len)
{
	return set_in(bed.ctx, prefix, n, len);
}

static bool exists(const char *prefix, unsigned int n)
{
	struct store_entry e;
	char key[32];

	snprintf(key, sizeof(key), "%s%u", prefix, n);
	return !store_touch(bed.ctx, key, strlen(key), false, &e);
}

/* Sets keys until the class of their size has so many free slots. */
static unsigned int leave_free(const char *prefix, size_t len, unsigned int left)
{
	unsigned int class = class_of(len), n = 0;

	do
		assert_int_equal(set(prefix, n++, len), 0);
	while (bed.classes[class].list[0].free > left);
	assert_int_equal(bed.classes[class].list[0].free, left);
	return n;
}

/* From now on there are only the slots that are free. */
static void no_more_units(void)
{
	pthread_mutex_lock(&bed.st->mem.units_lock);
	for (uint32_t page, first; units_take(bed.st, 1, &page, &first);)
		;
	pthread_mutex_unlock(&bed.st->mem.units_lock);
	bed.st->maxmemory = 1;
}

static void limit(unsigned int pages, enum store_policy policy)
{
	while (bed.st->mem.pages_used < pages)
		assert_true(pages_add(bed.st, pages - bed.st->mem.pages_used) > 0);
	store_limit(bed.st, store_memory(bed.st), policy);
}

static void one_bucket(void)
{
	bed.c->fingerprint_mask = 0;
}

/* An operation of the datagram: APPEND of one byte. */
static void add_append(struct payload *p, const char *key)
{
	request_add(p,
		    &(struct operation){
			    .opcode = XKV_OP_APPEND, TEXT(key), .value = value, .value_len = 1 });
}

/* ---- operations ------------------------------------------------------------ */

/* An ATOMIC datagram gives back what it took when it stops, so it needs all its slots at once. */
static void test_atomic_of_one_class(void **state)
{
	char key[16][16];
	struct payload p;
	struct reply r;

	for (unsigned int left = 1; left < 5; left++) {
		leave_free("same", 16, left);
		begin(&p, 1, 0);
		p.byte[3] |= XKV_F_ATOMIC;
		for (unsigned int i = 0; i < 16; i++) {
			snprintf(key[i], sizeof(key[i]), "new%u-%u", left, i);
			request_add(&p, &(struct operation){ .opcode = XKV_OP_SET,
							     TEXT(key[i]),
							     .value = value,
							     .value_len = 16 });
		}
		ask(DAEMON, &p, &r);
		assert_int_equal(r.status, XKV_OK);
		assert_int_equal(r.count, 16);
	}
	account();
}

/* Each key of a datagram grows into a class that has no free slot. */
static void test_each_operation_has_its_tries(void **state)
{
	char key[32][16], more[32];
	unsigned int keys = 0;
	struct payload p;
	struct reply r;

	for (int atomic = 0; atomic < 2; atomic++) {
		keys = 0;
		for (size_t len = 8; len < 1400 && keys < 28; len += 8)
			if (class_of(len) != class_of(len + 1)) {
				snprintf(key[keys], sizeof(key[0]), "%c%u", 'a' + atomic, keys);
				snprintf(more, sizeof(more), "more than %zu.", len);
				put(key[keys++], value, len, 0);
				leave_free(more, len + 1, 0);
			}
		assert_true(keys > 20);
		begin(&p, 2, 0);
		p.byte[3] |= atomic ? XKV_F_ATOMIC : 0;
		for (unsigned int i = 0; i < keys; i++)
			add_append(&p, key[i]);
		ask(DAEMON, &p, &r);
		assert_int_equal(r.status, XKV_OK);
		assert_int_equal(r.count, keys);
		for (unsigned int i = 0; i < keys; i++)
			assert_int_equal(r.result[i].status, XKV_OK);
	}
	account();
}

/* The bucket of the first key is full; the second one only needs a slot. */
static void test_a_refused_operation_is_one(void **state)
{
	struct payload p;
	struct reply r;

	one_bucket();
	for (unsigned int n = 0; n < (XKV_CHAIN_MAX + 1) * XKV_WAYS; n++)
		assert_int_equal(set("k", n, 2), 0);
	begin(&p, 3, 0);
	request_add(&p,
		    &(struct operation){
			    .opcode = XKV_OP_SET, TEXT("more"), .value = value, .value_len = 1 });
	request_add(&p,
		    &(struct operation){
			    .opcode = XKV_OP_SET, TEXT("k3"), .value = value, .value_len = 600 });
	ask(DAEMON, &p, &r);
	assert_int_equal(r.count, 2);
	assert_int_equal(r.result[0].status, XKV_NO_MEMORY);
	assert_int_equal(r.result[1].status, XKV_OK);
	holds("k3", value, 600);
}

/* An entry and its chain bucket get slots of larger classes, which have one each. */
static void test_spare_classes(void **state)
{
	unsigned int middle = class_of(1400), large = class_of(2000), keys = 0;

	one_bucket();
	assert_int_equal(set("large", 0, 2000), 0);
	assert_int_equal(store_delete(bed.ctx, "large0", 6, NULL), 0);
	for (; keys < XKV_WAYS; keys++)
		assert_int_equal(set("key", keys, 1400), 0);
	no_more_units();
	assert_int_equal(set("n", 1, 1), 0);
	for (keys++; keys < 2 * XKV_WAYS; keys++)
		assert_int_equal(set("key", keys, 2000), 0);
	assert_int_equal(bed.classes[middle].list[0].free, 1);
	assert_int_equal(bed.classes[large].list[0].free, 1);
	assert_int_equal(set("n", 2, 1), 0);
	account();
}

/* So many slots cannot be had: that is said at once, not after trying for as long as may be. */
static void test_atomic_without_room(void **state)
{
	size_t len[2] = { 1000, 1400 };
	unsigned int n = 0;
	char key[32][16];
	struct payload p;
	struct reply r;
	uint64_t begin_ms;

	limit(2, STORE_NOEVICTION);
	bed_maintenance(&bed, true);
	begin(&p, 60, 0);
	p.byte[3] |= XKV_F_ATOMIC;
	for (unsigned int i = 0; i < 32; i++) {
		while (class_of(len[i % 2]) == class_of(len[i % 2] + 1))
			len[i % 2]++;
		snprintf(key[i], sizeof(key[i]), "atomic%u", i);
		put(key[i], value, len[i % 2], 0);
		add_append(&p, key[i]);
	}
	while (!set("full", n, 100))
		n++;
	for (unsigned int i = 0; i < 300; i++) {
		snprintf(key[0], sizeof(key[0]), "full%u", i);
		assert_int_equal(store_delete(bed.ctx, key[0], strlen(key[0]), NULL), 0);
	}
	begin_ms = monotonic_ms();
	ask(DAEMON, &p, &r);
	assert_true(monotonic_ms() - begin_ms < GROW_WAIT_MS / 2);
	bed_maintenance(&bed, false);
	account();
}

/* Each operation finds the key locked: the datagram as a whole waits once. */
static void test_busy_once(void **state)
{
	uint64_t begin_ns, one = 0, all = 0;
	struct xkv_slot *slot;
	struct payload p;
	struct reply r;

	put_text("k", "v");
	slot = bed_slot(&bed, "k", 1);
	slot->seq |= 1;
	for (unsigned int ops = 1; ops <= 40; ops += 39) {
		begin(&p, 4 + ops, 0);
		for (unsigned int i = 0; i < ops; i++)
			request_add(&p, &(struct operation){ .opcode = XKV_OP_DELETE, TEXT("k") });
		begin_ns = monotonic_ns();
		ask(DAEMON, &p, &r);
		*(ops == 1 ? &one : &all) = monotonic_ns() - begin_ns;
		assert_int_equal(r.count, ops);
		for (unsigned int i = 0; i < ops; i++)
			assert_int_equal(r.result[i].status, XKV_BUSY);
	}
	slot->seq &= ~1ULL;
	assert_true(all < 10 * one);
}

/* ---- transactions ---------------------------------------------------------- */

static int set_in_txn(const char *prefix, unsigned int from, unsigned int to, size_t len)
{
	assert_int_equal(store_txn_begin(bed.ctx), 0);
	for (unsigned int n = from; n < to; n++)
		assert_int_equal(set(prefix, n, len), 0);
	return store_txn_commit(bed.ctx);
}

/* As a single operation does. */
static void test_transaction_takes_a_larger_class(void **state)
{
	leave_free("a", 16, 0);
	put("b", value, 40, 0);
	assert_int_not_equal(class_of(16), class_of(40));
	no_more_units();
	assert_int_equal(set("single", 0, 16), 0);
	assert_int_equal(set_in_txn("together", 0, 10, 16), 0);
	assert_true(exists("together", 9));
	account();
}

/* There is a slot for the entry, and none for its chain bucket; then one of a larger class. */
static void test_no_slot_for_a_chain_bucket(void **state)
{
	for (int larger = 0; larger < 2; larger++) {
		open_bed(MAX_KEYS);
		one_bucket();
		if (larger) {
			assert_int_equal(set("large", 0, 600), 0);
			assert_int_equal(store_delete(bed.ctx, "large0", 6, NULL), 0);
		}
		for (unsigned int n = 0; n < XKV_WAYS; n++)
			assert_int_equal(set("key", n, 16), 0);
		no_more_units();
		assert_int_equal(set_in_txn("new", 0, 1, 16), larger ? 0 : -ENOSPC);
		account();
	}
}

/* What is kept for the next transaction serves for a chain bucket of this one. */
static void test_hand_is_for_chain_buckets(void **state)
{
	size_t len = sizeof(struct xkv_chain) - XKV_SLOT_NEED(8, 0);
	unsigned int keys;

	one_bucket();
	assert_int_equal(set_in_txn("hand", 0, 14, len), 0);
	keys = 14 + leave_free("same", len, 0);
	for (; keys % XKV_WAYS; keys++)
		assert_int_equal(set("other", keys, 1), 0);
	no_more_units();
	assert_int_equal(set_in_txn("new", 0, 1, len), 0);
	account();
}

static void told(void *arg)
{
}

/* As a command that lets others run until there is its room. */
static int set_in_turn(const char *prefix, unsigned int keys, size_t len)
{
	int ret;

	store_waits_as(bed.ctx, 1);
	while ((ret = set_in_txn(prefix, 0, keys, len)) == -EAGAIN)
		while (store_room_waits(bed.st, 1))
			usleep(1000);
	store_waits_as(bed.ctx, 0);
	store_room_done(bed.st, 1);
	return ret;
}

/*
 * The room that was kept for a transaction is counted once: with what lacks for its chain buckets
 * it would else be more than the store has, so that all entries go, and that in vain.
 */
static void test_room_that_was_waited_for(void **state)
{
	unsigned int keys;

	limit(2, STORE_ALLKEYS_LRU);
	store_room_tell(bed.st, told, NULL);
	bed_maintenance(&bed, true);
	keys = bed.st->mem.pages_used * XKV_PAGE_BYTES / XKV_SLOT_NEED(12, 300) * 6 / 10;
	for (unsigned int n = 0; n < 2 * keys; n++)
		assert_int_equal(set("old", n, 300), 0);
	for (unsigned int round = 0; round < 4; round++) {
		char prefix[] = { 'a' + round, 0 };

		assert_int_equal(set_in_turn(prefix, keys, 300), 0);
	}
	assert_true(store_count(bed.st) > keys * 6 / 5);
	store_room_tell(bed.st, NULL, NULL);
	bed_maintenance(&bed, false);
	account();
}

/* ---- eviction -------------------------------------------------------------- */

/* Where slots have several units and few are free, the oldest entries go, not the newest. */
static void test_the_oldest_go(void **state)
{
	unsigned int n, there = 0;

	limit(8, STORE_ALLKEYS_LRU);
	bed_maintenance(&bed, true);
	for (n = 0; !store_counter(bed.st, "evictions"); n++)
		assert_int_equal(set("key", n, 3000), 0);
	for (unsigned int end = n + 1000; n < end; n++)
		assert_int_equal(set("key", n, 3000), 0);
	bed_maintenance(&bed, false);
	for (unsigned int i = n - 500; i < n; i++)
		there += exists("key", i);
	assert_true(there > 490);
	account();
}

static atomic_bool stop;

/* Reads the feed a little later than changes are made. */
static void *read_slowly(void *arg)
{
	struct feed_reader *reader = arg;
	struct feed_change change;

	while (!atomic_load(&stop)) {
		usleep(20000);
		while (feed_next(reader, &change) > 0)
			;
		feed_trim(bed.st);
	}
	return NULL;
}

/* The slots of large values are free only when the reader has read that they were evicted. */
static void test_evicting_waits_for_readers(void **state)
{
	struct feed_reader *reader = NULL;
	uint64_t before, evicted;
	unsigned int n = 0;
	pthread_t thread;
	bool resumed;

	limit(8, STORE_NOEVICTION);
	while (!set("key", n, 3000))
		n++;
	assert_int_equal(feed_open(bed.st, "slow", &reader, &resumed), 0);
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, read_slowly, reader), 0);
	store_limit(bed.st, store_memory(bed.st), STORE_ALLKEYS_RANDOM);
	before = store_counter(bed.st, "evictions");
	for (unsigned int i = 0; i < 20; i++)
		assert_int_equal(set("new", i, 3000), 0);
	evicted = store_counter(bed.st, "evictions") - before;
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	feed_close(reader);
	assert_in_range(evicted, 20, n / 4);
	account();
}

static void *write_new_keys(void *arg)
{
	uint64_t end = monotonic_ms() + 1000, refused = 0;
	struct store_ctx *ctx = store_ctx_get(bed.st);
	char prefix[16];

	snprintf(prefix, sizeof(prefix), "t%u.", (unsigned int)(uintptr_t)arg);
	for (unsigned int n = 0; monotonic_ms() < end; n++)
		refused += set_in(ctx, prefix, n, 14000) != 0;
	store_ctx_put(ctx);
	return (void *)(uintptr_t)refused;
}

/* What one has made room for another may take; there is room for all of them. */
static void test_threads_at_the_limit(void **state)
{
	pthread_t thread[THREADS];
	void *refused;

	limit(6, STORE_ALLKEYS_LRU);
	bed_maintenance(&bed, true);
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, write_new_keys, (void *)i), 0);
	for (unsigned int i = 0; i < THREADS; i++) {
		pthread_join(thread[i], &refused);
		assert_null(refused);
	}
	bed_maintenance(&bed, false);
	account();
}

#define ROOM(name) cmocka_unit_test_setup_teardown(name, setup, close_bed)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		ROOM(test_atomic_of_one_class),
		ROOM(test_each_operation_has_its_tries),
		ROOM(test_a_refused_operation_is_one),
		ROOM(test_atomic_without_room),
		ROOM(test_busy_once),
		ROOM(test_spare_classes),
		ROOM(test_transaction_takes_a_larger_class),
		ROOM(test_no_slot_for_a_chain_bucket),
		ROOM(test_hand_is_for_chain_buckets),
		ROOM(test_room_that_was_waited_for),
		ROOM(test_the_oldest_go),
		ROOM(test_evicting_waits_for_readers),
		ROOM(test_threads_at_the_limit),
	};
	int skip = bed_begin(argc, argv);

	return skip ? skip : cmocka_run_group_tests_name("room", tests, NULL, NULL);
}

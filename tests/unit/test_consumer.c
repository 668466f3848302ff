// SPDX-License-Identifier: BSD-2-Clause
/*
 * A consumer of the change feed (loader/events/consumer.h): this one counts changes by database.
 * What is handed on, in which order, again and how often, and by its thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>

#include "loader/events/consumer.h"
#include "loader/store/store.h"
#include "userstore.h"

#define DATABASES 3

struct census {
	unsigned int changes[DATABASES];
	unsigned int all; /* atomic */
	unsigned int rounds, gaps;
	unsigned int enough; /* so many changes end a round; 0 = never */
	uint64_t position, last;
	enum consumed says;
};

static bool on_change(void *arg, const struct feed_change *c)
{
	struct census *n = arg;

	assert_true(c->number < DATABASES);
	assert_true(n->says == CONSUMED_AGAIN || c->position > n->last);
	n->last = c->position;
	n->changes[c->number]++;
	return __atomic_add_fetch(&n->all, 1, __ATOMIC_RELAXED) != n->enough;
}

static void on_gap(void *arg)
{
	((struct census *)arg)->gaps++;
}

static enum consumed on_end(void *arg, uint64_t position)
{
	struct census *n = arg;

	n->rounds++;
	n->position = position;
	return n->says;
}

static const struct consumer_type counting = {
	.ends_with_xkvd = true,
	.keys_only = true,
	.change = on_change,
	.gap = on_gap,
	.end = on_end,
};

static struct store *store;
static struct consumer *consumer;
static struct census census;

static void write_keys(unsigned int db, unsigned int count)
{
	struct store_ctx *ctx = store_ctx_get(store);

	assert_non_null(ctx);
	store_select(ctx, db);
	for (unsigned int i = 0; i < count; i++)
		assert_int_equal(store_set(ctx, &i, sizeof(i), "value", 5, 0, 0, 0, NULL), 0);
	store_ctx_put(ctx);
}

static int set_up(void **state)
{
	bool resumed;

	census = (struct census){ 0 };
	store = userstore_new();
	assert_non_null(store);
	write_keys(0, 1); /* before it listens */
	assert_int_equal(consumer_open(store, "census", &counting, &census, &consumer, &resumed),
			 0);
	assert_false(resumed);
	return 0;
}

static int tear_down(void **state)
{
	consumer_close(consumer, false);
	assert_int_equal(census.gaps, 0);
	userstore_free(store);
	return 0;
}

static void test_counts_by_database(void **state)
{
	write_keys(0, 5);
	write_keys(2, 7);
	assert_int_equal(census.all, 0);
	consumer_round(consumer);
	assert_int_equal(census.changes[0], 5);
	assert_int_equal(census.changes[1], 0);
	assert_int_equal(census.changes[2], 7);
	assert_true(census.position > census.last);
	assert_true(feed_is_read(store, feed_head(store)));
}

/* What is still needed stays in the ring; what is handed on again comes from its start. */
static void test_says_what_it_needs(void **state)
{
	write_keys(1, 4);
	census.says = CONSUMED_PART;
	consumer_round(consumer);
	assert_int_equal(census.all, 4);
	assert_false(feed_is_read(store, feed_head(store)));
	write_keys(1, 1);
	consumer_round(consumer);
	assert_int_equal(census.all, 5);
	census.says = CONSUMED_AGAIN;
	consumer_round(consumer);
	consumer_round(consumer);
	assert_int_equal(census.all, 10);
	census.says = CONSUMED;
	census.last = 0;
	consumer_round(consumer);
	assert_int_equal(census.all, 15);
	assert_true(feed_is_read(store, feed_head(store)));
}

static void test_has_enough(void **state)
{
	write_keys(0, 5);
	census.enough = 2;
	consumer_round(consumer);
	assert_in_range(census.all, 2, 3);
	consumer_round(consumer);
	assert_int_equal(census.all, 5);
}

static unsigned int all_so_far(void)
{
	return __atomic_load_n(&census.all, __ATOMIC_RELAXED);
}

static void test_thread(void **state)
{
	assert_int_equal(consumer_start(consumer), 0);
	write_keys(0, 3000); /* several rounds */
	for (int ms = 0; ms < 60000 && all_so_far() < 3000; ms++) {
		consumer_wake(consumer);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	consumer_stop(consumer);
	assert_int_equal(census.all, 3000);
	assert_true(census.rounds > 2);
	write_keys(0, 1);
	assert_int_equal(census.all, 3000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_counts_by_database, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_says_what_it_needs, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_has_enough, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_thread, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

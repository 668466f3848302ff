/* SPDX-License-Identifier: BSD-2-Clause */
/* The load generator's histogram: the bounds of its error, percentiles, merging. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../bench/dist.h"
#include "../bench/hist.h"

static struct hist *new_hist(void)
{
	struct hist *h = calloc(1, sizeof(*h));

	assert_non_null(h);
	return h;
}

static void buckets_cover_every_value_once(void **state)
{
	(void)state;
	assert_int_equal(hist_bucket(0), 0);
	for (unsigned int i = 0; i + 1 < HIST_BUCKETS; i++) {
		uint64_t top = hist_bucket_max(i);

		if (top >= HIST_MAX_NS)
			break;
		assert_int_equal(hist_bucket(top), i);
		assert_int_equal(hist_bucket(top + 1), i + 1);
	}
	assert_true(hist_bucket(HIST_MAX_NS) < HIST_BUCKETS);
	assert_int_equal(hist_bucket(UINT64_MAX), hist_bucket(HIST_MAX_NS));
}

static void error_is_at_most_one_in_128(void **state)
{
	struct rng rng;

	(void)state;
	rng_seed(&rng, 1);
	for (int i = 0; i < 1000000; i++) {
		/* All magnitudes alike. */
		uint64_t ns = rng_next(&rng) >> (28 + rng_below(&rng, 36));
		uint64_t top;

		if (ns > HIST_MAX_NS)
			continue;
		top = hist_bucket_max(hist_bucket(ns));
		assert_true(top >= ns);
		assert_true((top - ns) * 128 <= ns);
		if (ns < 256)
			assert_int_equal(top, ns);
	}
}

static void percentiles_of_known_values(void **state)
{
	struct hist *h = new_hist();

	(void)state;
	for (uint64_t ns = 1; ns <= 100; ns++)
		hist_record(h, ns);
	assert_int_equal(hist_percentile(h, 0), 1);
	assert_int_equal(hist_percentile(h, 50), 50);
	assert_int_equal(hist_percentile(h, 99), 99);
	assert_int_equal(hist_percentile(h, 99.9), 100);
	assert_int_equal(hist_percentile(h, 100), 100);
	assert_int_equal(h->min, 1);
	assert_int_equal(h->max, 100);
	assert_true(hist_mean(h) == 50.5);
	free(h);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void percentiles_match_a_sorted_list(void **state)
{
	static const double percent[] = { 1, 50, 90, 99, 99.9, 100 };
	enum { N = 100000 };
	uint64_t *all = malloc(N * sizeof(*all));
	struct hist *h = new_hist();
	struct rng rng;

	(void)state;
	assert_non_null(all);
	rng_seed(&rng, 2);
	for (int i = 0; i < N; i++) {
		all[i] = rng_next(&rng) >> (30 + rng_below(&rng, 20));
		hist_record(h, all[i]);
	}
	qsort(all, N, sizeof(*all), compare);
	for (size_t i = 0; i < sizeof(percent) / sizeof(percent[0]); i++) {
		uint64_t want = all[(size_t)(percent[i] / 100 * N + 0.5) - 1];
		uint64_t got = hist_percentile(h, percent[i]);

		assert_true(got >= want);
		assert_true((got - want) * 128 <= want);
	}
	assert_int_equal(hist_percentile(h, 100), all[N - 1]);
	free(all);
	free(h);
}

static void merge_equals_recording_in_one(void **state)
{
	struct hist *one = new_hist(), *a = new_hist(), *b = new_hist();
	struct rng rng;

	(void)state;
	rng_seed(&rng, 3);
	for (int i = 0; i < 10000; i++) {
		uint64_t ns = rng_next(&rng) >> 40;

		hist_record(one, ns);
		hist_record(i % 3 ? a : b, ns);
	}
	hist_merge(a, b);
	assert_memory_equal(a, one, sizeof(*one));
	hist_subtract(a, b);
	assert_int_equal(a->total, 10000 - 3334);
	hist_merge(a, b);
	assert_memory_equal(a->count, one->count, sizeof(one->count));
	/* Nothing comes of an empty one, not even its minimum of 0. */
	memset(b, 0, sizeof(*b));
	hist_merge(a, b);
	assert_int_equal(a->min, one->min);
	free(one);
	free(a);
	free(b);
}

static void empty_and_too_long(void **state)
{
	struct hist *h = new_hist();

	(void)state;
	assert_int_equal(hist_percentile(h, 99), 0);
	assert_true(hist_mean(h) == 0);
	hist_record(h, UINT64_MAX);
	assert_int_equal(hist_percentile(h, 50), HIST_MAX_NS);
	assert_int_equal(h->max, HIST_MAX_NS);
	free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(buckets_cover_every_value_once),
		cmocka_unit_test(error_is_at_most_one_in_128),
		cmocka_unit_test(percentiles_of_known_values),
		cmocka_unit_test(percentiles_match_a_sorted_list),
		cmocka_unit_test(merge_equals_recording_in_one),
		cmocka_unit_test(empty_and_too_long),
	};

	return cmocka_run_group_tests_name("histogram", tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* The load generator's histogram: the bounds of its error, percentiles, merging. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/dist.h"
#include "bench/load/hdr.h"
#include "bench/load/hist.h"

static struct hist *new_hist(void)
{
	struct hist *h = calloc(1, sizeof(*h));

	assert_non_null(h);
	return h;
}

static void many_at_once_are_as_many_one_by_one(void **state)
{
	struct hist *once = new_hist(), *each = new_hist();

	for (uint64_t ns = 1; ns < 4 * HIST_MAX_NS; ns *= 3) {
		hist_record_many(once, ns, 5);
		for (int i = 0; i < 5; i++)
			hist_record(each, ns);
	}
	assert_memory_equal(once, each, sizeof(*once));
	free(once);
	free(each);
}

static void buckets_cover_every_value_once(void **state)
{
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

	assert_int_equal(hist_percentile(h, 99), 0);
	assert_true(hist_mean(h) == 0);
	hist_record(h, UINT64_MAX);
	assert_int_equal(hist_percentile(h, 50), HIST_MAX_NS);
	assert_int_equal(h->max, HIST_MAX_NS);
	free(h);
}

/* The lines of HdrHistogram's format, read back as its plotter does: four numbers each. */
static void percentiles_as_text(void **state)
{
	struct hist *h = new_hist();
	char *text = NULL, *line, *save = NULL;
	size_t size;
	FILE *to = open_memstream(&text, &size);
	double last_value = 0, last_percentile = -1, last_count = 0, mean, deviation;
	int lines = 0;

	assert_non_null(to);
	for (uint64_t us = 1; us <= 10000; us++)
		hist_record(h, us * 1000);
	assert_int_equal(hdr_write(to, h), 0);
	fclose(to);
	line = strtok_r(text, "\n", &save);
	assert_string_equal(line, "       Value     Percentile TotalCount 1/(1-Percentile)");
	while ((line = strtok_r(NULL, "\n", &save)) && *line != '#') {
		double value, percentile, count, inverse;
		int fields = sscanf(line, "%lf %lf %lf %lf", &value, &percentile, &count, &inverse);

		assert_true(fields == 4 || percentile == 1);
		assert_true(value >= last_value && count >= last_count);
		assert_true(percentile > last_percentile && count >= percentile * 10000);
		assert_true(value >= count && value <= count * 1.008); /* the n-th value is n us */
		if (fields == 4)
			assert_true(fabs(inverse * (1 - percentile) - 1) < 0.01);
		last_value = value;
		last_percentile = percentile;
		last_count = count;
		lines++;
	}
	assert_in_range(lines, 35, 50); /* 5 for each half of the way, until the last bucket */
	assert_true(last_value == 10000 && last_percentile == 1 && last_count == 10000);
	assert_int_equal(sscanf(line, "#[Mean    = %lf, StdDeviation   = %lf]", &mean, &deviation),
			 2);
	assert_true(fabs(mean - 5000.5) < 0.001 && fabs(deviation - 2886.75) < 1);
	line = strtok_r(NULL, "\n", &save);
	assert_string_equal(line, "#[Max     =    10000.000, Total count    =        10000]");
	free(text);
	free(h);
}

static void nothing_as_text(void **state)
{
	struct hist *h = new_hist();
	char *text = NULL;
	size_t size;
	FILE *to = open_memstream(&text, &size);

	assert_non_null(to);
	assert_int_equal(hdr_write(to, h), 0);
	fclose(to);
	assert_non_null(strstr(text, "Total count    =            0]"));
	free(text);
	hist_record(h, 0);
	to = open_memstream(&text, &size);
	assert_non_null(to);
	assert_int_equal(hdr_write(to, h), 0);
	fclose(to);
	assert_non_null(strstr(text, "       0.000 1.000000000000          1\n"));
	free(text);
	free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_at_once_are_as_many_one_by_one),
		cmocka_unit_test(buckets_cover_every_value_once),
		cmocka_unit_test(error_is_at_most_one_in_128),
		cmocka_unit_test(percentiles_of_known_values),
		cmocka_unit_test(percentiles_match_a_sorted_list),
		cmocka_unit_test(merge_equals_recording_in_one),
		cmocka_unit_test(empty_and_too_long),
		cmocka_unit_test(percentiles_as_text),
		cmocka_unit_test(nothing_as_text),
	};

	return cmocka_run_group_tests_name("histogram", tests, NULL, NULL);
}

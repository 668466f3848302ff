// SPDX-License-Identifier: BSD-2-Clause
/* The load generator: distributions of keys, and sizes of keys and values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "bench/common/dist.h"
#include "bench/common/sizes.h"
#include "draws.h"

#define DRAWS 2000000

static struct dist new_dist(const char *text, uint32_t keys)
{
	struct dist d;
	char err[200];

	assert_int_equal(dist_parse(&d, text, err, sizeof(err)), 0);
	dist_init(&d, keys);
	return d;
}

/* How often each rank came. */
static uint32_t *draw(const struct dist *d, uint64_t seed)
{
	uint32_t *count = calloc(d->keys, sizeof(*count));
	struct rng rng;

	assert_non_null(count);
	rng_seed(&rng, seed);
	for (int i = 0; i < DRAWS; i++) {
		uint32_t rank = dist_rank(d, &rng);

		assert_true(rank < d->keys);
		count[rank]++;
	}
	return count;
}

static void zipf_has_the_right_shares(void **state)
{
	struct dist d = new_dist("zipf:0.99", 1000000);
	uint32_t *count = draw(&d, 1);
	double sum = 0, top = 0, want = 0;

	for (uint32_t i = 1; i <= d.keys; i++)
		sum += pow(i, -0.99);
	near(d.zeta, sum, 1e-9);
	/* The first two are exact, the next ones as far off as dist.h says. */
	near(count[0] / (double)DRAWS, 1 / sum, 0.02);
	near(count[1] / (double)DRAWS, pow(2, -0.99) / sum, 0.02);
	near(count[2] / (double)DRAWS, 1.2 * pow(3, -0.99) / sum, 0.03);
	near(count[9] / (double)DRAWS, pow(10, -0.99) / sum, 0.08);
	for (int i = 0; i < 2000; i++) {
		top += count[i] / (double)DRAWS;
		want += pow(i + 1, -0.99) / sum;
	}
	near(top, want, 0.02);
	free(count);
}

static void uniform_and_hot_are_flat(void **state)
{
	struct dist uniform = new_dist("uniform", 1000), hot = new_dist("hot:100", 1000);
	uint32_t *u = draw(&uniform, 2), *h = draw(&hot, 3);

	for (int i = 0; i < 1000; i++) {
		near(u[i], DRAWS / 1000, 0.15);
		if (i < 100)
			near(h[i], DRAWS / 100, 0.05);
		else
			assert_int_equal(h[i], 0);
	}
	free(u);
	free(h);
}

/* Exact for any exponent of 1 and more; 1 itself is where its formulas have a gap. */
static void steep_zipf_has_the_right_shares(void **state)
{
	static const char *const theta[] = { "zipf:1", "zipf:1.2", "zipf:2" };

	for (size_t t = 0; t < sizeof(theta) / sizeof(theta[0]); t++) {
		struct dist d = new_dist(theta[t], 100000);
		uint32_t *count = draw(&d, 4 + t);
		double sum = 0, exponent = strtod(theta[t] + 5, NULL), top = 0, want = 0;

		for (uint32_t i = 1; i <= d.keys; i++)
			sum += pow(i, -exponent);
		for (int i = 0; i < 1000; i++) {
			if (i < 5)
				near(count[i] / (double)DRAWS, pow(i + 1, -exponent) / sum, 0.03);
			top += count[i] / (double)DRAWS;
			want += pow(i + 1, -exponent) / sum;
		}
		near(top, want, 0.01);
		free(count);
	}
}

/* A fifth of the keys gets four fifths of the draws, evenly, and the others the rest. */
static void hotspot_has_the_right_shares(void **state)
{
	struct dist d = new_dist("hotspot:20:80", 1000);
	uint32_t *count = draw(&d, 5);

	for (int i = 0; i < 1000; i++)
		near(count[i], i < 200 ? DRAWS * 0.8 / 200 : DRAWS * 0.2 / 800, 0.25);
	free(count);
}

static void spread_is_a_permutation(void **state)
{
	static const uint32_t sizes[] = { 1, 2, 3, 4, 5, 6, 10, 100, 2000, 65536, 99991, 1000000 };

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		struct dist d = new_dist("zipf:0.5", sizes[s]);
		uint8_t *seen = calloc(sizes[s], 1);

		assert_non_null(seen);
		for (uint32_t i = 0; i < sizes[s]; i++) {
			uint32_t key = dist_spread(&d, i);

			assert_true(key < sizes[s]);
			assert_int_equal(seen[key]++, 0);
		}
		free(seen);
	}
}

static void distributions_are_validated(void **state)
{
	static const char *const bad[] = {
		"",	    "zipf",	      "zipf:",		"zipf:0",	  "zipf:11",
		"zipf:-1",  "zipf:x",	      "zipf:nan",	"hot:0",	  "hot:-1",
		"hot:1x",   "normal",	      "uniform ",	"hotspot:20",	  "hotspot:0:80",
		"latest:1", "hotspot:20:80x", "hotspot:20:101", "hotspot:100:80", "sequential:",
	};
	struct dist d;
	char err[200];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		err[0] = 0;
		assert_int_equal(dist_parse(&d, bad[i], err, sizeof(err)), -EINVAL);
		assert_true(err[0]);
	}
}

/* The reference output of xoshiro256++ for the state 1, 2, 3, 4. */
static void random_numbers_are_xoshiro(void **state)
{
	static const uint64_t want[] = { 41943041, 58720359, 3588806011781223, 3591011842654386 };
	struct rng rng = { { 1, 2, 3, 4 } };

	for (int i = 0; i < 4; i++)
		assert_int_equal(rng_next(&rng), want[i]);
}

static void sizes_are_validated(void **state)
{
	static const char *const bad[] = { "",	    "7",     "251",    "20-",  "-20",	"45-20",
					   "7-9",   "20x",   "20-3x",  "ETC",  "etc ",	"1e2",
					   "8-251", "20- 9", "20--30", "8 -9", "8-9-10" };
	struct sizes s;
	char err[200];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		err[0] = 0;
		if (!sizes_parse(&s, bad[i], SIZES_KEY, 8, 250, err, sizeof(err)))
			fail_msg("accepted: %s", bad[i]);
		assert_true(err[0]);
	}
	assert_int_equal(sizes_parse(&s, "8-250", SIZES_KEY, 8, 250, err, sizeof(err)), 0);
	assert_int_equal(s.min, 8);
	assert_int_equal(s.max, 250);
}

static void fixed_and_uniform_sizes(void **state)
{
	struct sizes fixed = new_sizes("128", SIZES_VALUE);
	struct sizes etc = new_sizes("etc", SIZES_KEY);
	uint32_t count[46] = { 0 };

	for (uint64_t i = 0; i < 260000; i++) {
		unsigned int size = sizes_of(&etc, i);

		assert_int_equal(sizes_of(&fixed, i), 128);
		assert_in_range(size, 20, 45);
		assert_int_equal(size, sizes_of(&etc, i)); /* belongs to the number */
		count[size]++;
	}
	for (int size = 20; size <= 45; size++)
		near(count[size], 10000, 0.05);
}

/* The share of values up to some sizes, and the mean, are those of the distribution. */
static void etc_values_are_pareto(void **state)
{
	static const unsigned int upto[] = { 10, 50, 168, 400, 1000, 1399 };
	struct sizes etc = new_sizes("etc", SIZES_VALUE);
	double k = 0.348238, sigma = 214.476, sum = 0, below[6] = { 0 };

	for (uint64_t i = 0; i < DRAWS; i++) {
		unsigned int size = sizes_of(&etc, i);

		assert_in_range(size, 1, 1400);
		sum += size;
		for (int j = 0; j < 6; j++)
			below[j] += size <= upto[j];
	}
	for (int j = 0; j < 6; j++)
		near(below[j] / DRAWS, 1 - pow(1 + k * upto[j] / sigma, -1 / k), 0.01);
	near(sum / DRAWS, sigma / (1 - k) * (1 - pow(1 + k * 1400 / sigma, 1 - 1 / k)) + 0.5,
	     0.005);
}

static int by_size(const void *a, const void *b)
{
	return (int)*(const unsigned int *)a - (int)*(const unsigned int *)b;
}

static void twitter_values_are_lognormal(void **state)
{
	struct sizes twitter = new_sizes("twitter", SIZES_VALUE);
	struct sizes keys = new_sizes("twitter", SIZES_KEY);
	static unsigned int size[100000];
	double sum = 0;

	for (uint64_t i = 0; i < 100000; i++) {
		size[i] = sizes_of(&twitter, i);
		assert_in_range(size[i], 1, 1400);
		sum += sizes_of(&keys, i);
	}
	qsort(size, 100000, sizeof(size[0]), by_size);
	near(size[25000], 100, 0.03);
	near(size[50000], 230, 0.03);
	near(size[75000], 230 * 2.3, 0.03);
	near(sum / 100000, 38, 0.01);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(zipf_has_the_right_shares),
		cmocka_unit_test(steep_zipf_has_the_right_shares),
		cmocka_unit_test(uniform_and_hot_are_flat),
		cmocka_unit_test(hotspot_has_the_right_shares),
		cmocka_unit_test(spread_is_a_permutation),
		cmocka_unit_test(distributions_are_validated),
		cmocka_unit_test(random_numbers_are_xoshiro),
		cmocka_unit_test(sizes_are_validated),
		cmocka_unit_test(fixed_and_uniform_sizes),
		cmocka_unit_test(etc_values_are_pareto),
		cmocka_unit_test(twitter_values_are_lognormal),
	};

	return cmocka_run_group_tests_name("distributions", tests, NULL, NULL);
}

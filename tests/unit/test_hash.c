/* SPDX-License-Identifier: BSD-2-Clause */
/* The hash of keys: what users name their keys must not show in buckets and tags. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "bpf/layout.h"
#include "bpf/siphash.h"

#define KEYS	(1U << 20)
#define BUCKETS (1U << 18)

static struct xkv_secret secret;

static int draw_secret(void **state)
{
	if (getrandom(&secret, sizeof(secret), 0) != sizeof(secret))
		return -1;
	secret.mix[0] |= 1;
	secret.mix[1] |= 1;
	return 0;
}

static uint64_t hash(const void *key, size_t len)
{
	return hash_key(key, (uint32_t)len, 0, &secret);
}

/* Keys as users make them: each puts number i into the buffer and returns the length. */
static size_t decimal(char *key, uint32_t i)
{
	return (size_t)sprintf(key, "%u", i);
}

static size_t of_16(char *key, uint32_t i)
{
	return (size_t)sprintf(key, "key:%012u", i);
}

static size_t two_numbers(char *key, uint32_t i)
{
	return (size_t)sprintf(key, "%08x%08x", i % 1024, i / 1024);
}

static size_t counter(char *key, uint32_t i)
{
	memcpy(key, &i, sizeof(i));
	memset(key + sizeof(i), 0, sizeof(i));
	return 2 * sizeof(i);
}

static size_t pages(char *key, uint32_t i)
{
	uint64_t address = (uint64_t)i << 12;

	memcpy(key, &address, sizeof(address));
	return sizeof(address);
}

static size_t longest(char *key, uint32_t i)
{
	memset(key, 'x', XKV_KEY_MAX);
	memcpy(key + XKV_KEY_MAX - sizeof(i), &i, sizeof(i));
	return XKV_KEY_MAX;
}

static size_t single_bits(char *key, uint32_t i)
{
	for (uint32_t bit = 0; bit < 20; bit++)
		key[bit] = (char)((i >> bit & 1) << (bit & 7));
	return 20;
}

static int order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static unsigned int doubles(uint64_t *word)
{
	unsigned int count = 0;

	qsort(word, KEYS, sizeof(*word), order);
	for (uint32_t i = 1; i < KEYS; i++)
		count += word[i] == word[i - 1];
	return count;
}

/* By how many standard deviations the buckets are filled otherwise than by chance. */
static double bias(const uint64_t *word)
{
	static unsigned int filled[BUCKETS];
	double mean = (double)KEYS / BUCKETS, chi2 = 0;

	memset(filled, 0, sizeof(filled));
	for (uint32_t i = 0; i < KEYS; i++)
		filled[word[i] & (BUCKETS - 1)]++;
	for (uint32_t i = 0; i < BUCKETS; i++)
		chi2 += (filled[i] - mean) * (filled[i] - mean) / mean;
	return (chi2 - (BUCKETS - 1)) / sqrt(2.0 * (BUCKETS - 1));
}

static void keys_spread(size_t (*make)(char *, uint32_t))
{
	static uint64_t word[KEYS];
	char key[XKV_KEY_MAX + 1];

	for (uint32_t i = 0; i < KEYS; i++)
		word[i] = hash(key, make(key, i));
	/* ten deviations: never by chance */
	assert_true(fabs(bias(word)) < 10);
	/* bucket and tag together have 42 bits: 0.125 of 2^20 keys are expected to meet, and 20
	 * never do */
	for (uint32_t i = 0; i < KEYS; i++)
		word[i] = (word[i] & ~XKV_REF_MASK) | (word[i] & (BUCKETS - 1));
	assert_in_range(doubles(word), 0, 20);
}

#define SPREAD(kind)                                                                               \
	static void kind##_keys_spread(void **state)                                               \
	{                                                                                          \
		(void)state;                                                                       \
		keys_spread(kind);                                                                 \
	}
SPREAD(decimal)
SPREAD(of_16)
SPREAD(two_numbers)
SPREAD(counter)
SPREAD(pages)
SPREAD(longest)
SPREAD(single_bits)

/* Zeros at the end, which padding looks like, make another key. */
static void length_counts(void **state)
{
	char key[XKV_KEY_MAX] = { 'k' };
	uint64_t all[XKV_KEY_MAX];

	for (size_t len = 1; len <= XKV_KEY_MAX; len++) {
		all[len - 1] = hash(key, len);
		for (size_t before = 0; before < len - 1; before++)
			assert_true(all[before] != all[len - 1]);
	}
}

/* A factor that is 0 for all keys takes the other half of the word out of NH's sum. */
static void keys_spread_without_a_factor(void **state)
{
	struct xkv_secret drawn = secret;

	secret.word[0].high = 0; /* as that half of the keys */
	keys_spread(counter);
	secret = drawn;
}

/* Other secrets, other buckets: who knows those of one store knows nothing of another's. */
static void secret_counts(void **state)
{
	uint64_t before = hash("key", 3);

	assert_int_equal(draw_secret(state), 0);
	assert_true(hash("key", 3) != before);
}

/* The reference's vector: bytes 0 to 23 under a key of bytes 0 to 15. */
static void siphash_is_right(void **state)
{
	const __u64 key[2] = { 0x0706050403020100, 0x0f0e0d0c0b0a0908 };
	const __u64 word[3] = { key[0], key[1], 0x1716151413121110 };

	assert_true(siphash(word, key) == 0xb8ad50c6f649af94);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(decimal_keys_spread),
		cmocka_unit_test(of_16_keys_spread),
		cmocka_unit_test(two_numbers_keys_spread),
		cmocka_unit_test(counter_keys_spread),
		cmocka_unit_test(pages_keys_spread),
		cmocka_unit_test(longest_keys_spread),
		cmocka_unit_test(single_bits_keys_spread),
		cmocka_unit_test(length_counts),
		cmocka_unit_test(keys_spread_without_a_factor),
		cmocka_unit_test(secret_counts),
		cmocka_unit_test(siphash_is_right),
	};

	return cmocka_run_group_tests(tests, draw_secret, NULL);
}

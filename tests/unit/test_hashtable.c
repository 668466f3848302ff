/* SPDX-License-Identifier: BSD-2-Clause */
/* Hash tables, and the hash of names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "loader/util/hashtable.h"

#define ENTRIES 100000

struct item {
	struct hashtable_entry entry;
	unsigned int value;
};

static struct item items[ENTRIES];

/* The items come in pairs of one hash. */
static uint64_t hash_of(unsigned int value)
{
	return value / 2 * 0x9e3779b97f4a7c15ULL;
}

static struct item *find(const struct hashtable *t, unsigned int value)
{
	struct hashtable_entry *e = hashtable_find(t, hash_of(value));

	while (e && ((struct item *)e)->value != value)
		e = hashtable_find_next(e);
	return (struct item *)e;
}

static void test_entries(void **state)
{
	struct hashtable t = { 0 };
	size_t largest;

	assert_null(find(&t, 0));
	for (unsigned int i = 0; i < ENTRIES; i++) {
		items[i].value = i;
		assert_int_equal(hashtable_insert(&t, &items[i].entry, hash_of(i)), 0);
		assert_int_equal(t.count, i + 1);
	}
	largest = t.size;
	assert_true(largest >= ENTRIES);
	for (unsigned int i = 0; i < ENTRIES; i++)
		assert_ptr_equal(find(&t, i), &items[i]);
	for (unsigned int i = 0; i < ENTRIES; i += 2)
		hashtable_remove(&t, &items[i].entry);
	for (unsigned int i = 0; i < ENTRIES; i++)
		assert_ptr_equal(find(&t, i), i % 2 ? &items[i] : NULL);
	for (unsigned int i = 1; i < ENTRIES; i += 2)
		hashtable_remove(&t, &items[i].entry);
	assert_int_equal(t.count, 0);
	assert_true(t.size < largest / 1000);
	hashtable_free(&t);
	assert_null(find(&t, 1));
}

/* The vectors of the reference implementation: bytes 0, 1, 2... and such a key. */
static void test_hash(void **state)
{
	static const struct {
		size_t len;
		uint64_t hash;
	} vectors[] = {
		{ 0, 0x726fdb47dd0e0e31 }, { 1, 0x74f839c593dc67fd },  { 7, 0xab0200f58b01d137 },
		{ 8, 0x93f5f5799a932462 }, { 15, 0xa129ca6149be45e5 },
	};
	const uint64_t key[2] = { 0x0706050403020100, 0x0f0e0d0c0b0a0908 };
	unsigned char bytes[16];

	for (unsigned int i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)i;
	for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++)
		assert_int_equal(hashtable_hash(key, bytes, vectors[i].len), vectors[i].hash);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_entries),
		cmocka_unit_test(test_hash),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

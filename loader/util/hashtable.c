/* SPDX-License-Identifier: BSD-2-Clause */
#include "hashtable.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/siphash.h"

#define SLOTS_MIN 16

static void push(struct hashtable *t, struct hashtable_entry *e)
{
	struct hashtable_entry **slot = &t->slots[e->hash & (t->size - 1)];

	e->next = *slot;
	*slot = e;
}

static bool resize(struct hashtable *t, size_t size)
{
	struct hashtable old = *t;
	struct hashtable_entry **slots = calloc(size, sizeof(struct hashtable_entry *));

	if (!slots)
		return false;
	t->slots = slots;
	t->size = size;
	for (size_t i = 0; i < old.size; i++)
		for (struct hashtable_entry *e = old.slots[i], *next; e; e = next) {
			next = e->next;
			push(t, e);
		}
	free(old.slots);
	return true;
}

static struct hashtable_entry *with_hash(struct hashtable_entry *e, uint64_t hash)
{
	while (e && e->hash != hash)
		e = e->next;
	return e;
}

struct hashtable_entry *hashtable_find(const struct hashtable *t, uint64_t hash)
{
	return t->size ? with_hash(t->slots[hash & (t->size - 1)], hash) : NULL;
}

struct hashtable_entry *hashtable_find_next(const struct hashtable_entry *e)
{
	return with_hash(e->next, e->hash);
}

int hashtable_insert(struct hashtable *t, struct hashtable_entry *e, uint64_t hash)
{
	/* Without memory for more slots the chains get longer. */
	if (t->count == t->size && !resize(t, t->size ? 2 * t->size : SLOTS_MIN) && !t->size)
		return -ENOMEM;
	e->hash = hash;
	push(t, e);
	t->count++;
	return 0;
}

void hashtable_remove(struct hashtable *t, struct hashtable_entry *e)
{
	struct hashtable_entry **at = &t->slots[e->hash & (t->size - 1)];

	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	t->count--;
	if (t->size > SLOTS_MIN && t->count < t->size / 8)
		resize(t, t->size / 2);
}

void hashtable_free(struct hashtable *t)
{
	free(t->slots);
	*t = (struct hashtable){ 0 };
}

uint64_t hashtable_hash(const uint64_t key[2], const void *bytes, size_t len)
{
	__u64 v[4] = { key[0] ^ 0x736f6d6570736575ULL, key[1] ^ 0x646f72616e646f6dULL,
		       key[0] ^ 0x6c7967656e657261ULL, key[1] ^ 0x7465646279746573ULL };
	const unsigned char *at = bytes;

	for (size_t rest = len;; rest -= 8, at += 8) {
		uint64_t word = rest < 8 ? (uint64_t)len << 56 : 0;

		if (rest)
			memcpy(&word, at, rest < 8 ? rest : 8);
		v[3] ^= word;
		siphash_rounds(v, 2);
		v[0] ^= word;
		if (rest < 8)
			break;
	}
	v[2] ^= 0xff;
	siphash_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A hash table of entries that belong to the caller, which embeds struct hashtable_entry in them
 * and compares them itself:
 *
 *	for (e = hashtable_find(&t, hash); e; e = hashtable_find_next(e))
 *		if (is_wanted(e))
 *
 * It grows and shrinks with the number of entries.  A table of zero bytes is an empty one.  No
 * locking.
 */
#ifndef XKV_HASHTABLE_H
#define XKV_HASHTABLE_H

#include <stddef.h>
#include <stdint.h>

struct hashtable_entry {
	struct hashtable_entry *next;
	uint64_t hash;
};

struct hashtable {
	struct hashtable_entry **slots; /* owned */
	size_t size, count;		/* of slots: a power of two, or 0; and of entries */
};

/* The first entry of this hash, and the next one of the same hash; NULL = none. */
struct hashtable_entry *hashtable_find(const struct hashtable *t, uint64_t hash);
struct hashtable_entry *hashtable_find_next(const struct hashtable_entry *e);

/* 0 or -ENOMEM. */
int hashtable_insert(struct hashtable *t, struct hashtable_entry *e, uint64_t hash);
/* `e` has to be in the table. */
void hashtable_remove(struct hashtable *t, struct hashtable_entry *e);
/* Forgets all entries. */
void hashtable_free(struct hashtable *t);

/* SipHash-2-4 of bytes that clients choose: with a secret key they cannot make hashes collide. */
uint64_t hashtable_hash(const uint64_t key[2], const void *bytes, size_t len);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the cases of one program share: a store with the XDP program on it (xdpbed.h), and entries
 * that they put into it and look for, behind the back of the front ends.  For cmocka: what is not
 * as it should be fails the case.
 */
#ifndef XKV_TEST_FIXTURE_H
#define XKV_TEST_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

#include "loader/store/store.h"
#include "xdpbed.h"

#define MAX_KEYS 4096 /* of a store that cases share */

extern struct bed bed; /* the store of the case that runs */

/* Opens a store for so many keys; one that is open is closed first. */
void open_bed(unsigned int max_keys);

/*
 * The same, where only these bits of a fingerprint count, and of these only those of the bucket;
 * with slots for each size class that a datagram can fill.
 */
void open_masked_bed(uint64_t fingerprint_mask, uint64_t bucket_mask);

/*
 * Runs a group of cases on a store that serves packets one by one, and, without sanitizers, which
 * do not see BPF, on one in batched mode.
 */
#ifdef __SANITIZE_ADDRESS__
#define BATCHED(run) 0
#else
#define BATCHED(run) ((bed_batched = true) ? (run) : 0)
#endif
#define BOTH_WAYS(name, tests, begin)                                                              \
	(cmocka_run_group_tests_name(name, tests, begin, close_bed) +                              \
	 BATCHED(cmocka_run_group_tests_name(name ", batched", tests, begin, close_bed)))

/* Teardown of a case, or of a group of them, that opens a store. */
int close_bed(void **state);

/* Every slot is accounted for: see bed_account(). */
void account(void);

/* Removes all that has expired, and returns how much. */
unsigned int expire_all(void);

/* Waits until the store's clock is past this time. */
void wait_until(uint64_t ms);

/* For bed.st->no_slot: there is no memory. */
int no_room(struct store *st, unsigned int class, unsigned int units, uint64_t *until_ms);

/* A counter, summed over the CPUs. */
uint64_t count_of(unsigned int counter);

/* The size class of an entry with such a value, and a key of up to 8 bytes. */
unsigned int class_of(size_t value_len);

/*
 * The length of a value, from `least` bytes on, that with a key of so many bytes fills the smallest
 * slot for it to the end.
 */
size_t exact_fit(size_t key_len, size_t least);

/*
 * Bytes that tell their offset; those of an odd seed differ from those of an even one.  Each thread
 * has its own.
 */
#define PATTERN_BYTES 4096
const uint8_t *pattern(unsigned int seed);

/* Entries.  `expire_ms` is a time of the store's clock, 0: never. */
void put(const char *key, const void *value, size_t len, uint64_t expire_ms);
void put_text(const char *key, const char *text);
void put_bytes(const void *key, size_t key_len, const void *value, size_t len, uint64_t expire_ms);

/* The entry of a key; its value is valid until the next operation. */
struct store_entry entry_of(const void *key, size_t key_len);
uint64_t version_of(const char *key);
void holds(const char *key, const void *value, size_t len);
void holds_text(const char *key, const char *text);
void holds_bytes(const void *key, size_t key_len, const void *value, size_t len);
void is_gone(const char *key);

/* What the XDP program makes of a request that comes as a plain frame: its verdict. */
int verdict_of(const struct payload *req, struct outcome *out);

#endif

// SPDX-License-Identifier: BSD-2-Clause
/* One store for the cases of a program, and entries in it: see fixture.h. */
#include "fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <string.h>

#include <linux/bpf.h>

struct bed bed;

void open_bed(unsigned int max_keys)
{
	const char *why;

	bed_close(&bed);
	why = bed_open(&bed, max_keys);
	if (why)
		print_error("%s\n", why);
	assert_null(why);
}

void open_masked_bed(uint64_t fingerprint_mask, uint64_t bucket_mask)
{
	open_bed(MAX_KEYS);
	bed.c->fingerprint_mask = fingerprint_mask;
	bed.c->bucket_mask &= bucket_mask;
	assert_true(bed_warm(&bed));
}

int close_bed(void **state)
{
	bed_close(&bed);
	return 0;
}

void account(void)
{
	const char *why = bed_account(&bed);

	if (why)
		print_error("%s\n", why);
	assert_null(why);
}

unsigned int expire_all(void)
{
	/* to the end of the turn over the pages that is under way */
	unsigned int removed = store_expire_cycle(bed.ctx, UINT32_MAX / 64);

	return removed + store_expire_cycle(bed.ctx, UINT32_MAX / 64); /* and a whole one */
}

void wait_until(uint64_t ms)
{
	while (store_now_ms(bed.st) <= ms + 1)
		sched_yield();
}

int no_room(struct store *st, unsigned int class, unsigned int units, uint64_t *until_ms)
{
	return -ENOSPC;
}

uint64_t count_of(unsigned int counter)
{
	uint64_t sum[XKV_COUNTER_COUNT];

	bed_counters(&bed, sum);
	return sum[counter];
}

unsigned int class_of(size_t value_len)
{
	return bed.c->class_of[XKV_SLOT_NEED(1, value_len) / 8];
}

size_t exact_fit(size_t key_len, size_t least)
{
	size_t need = XKV_SLOT_NEED(key_len, least);

	return XKV_PADDED(least) + bed.classes[bed.c->class_of[need / 8]].slot_bytes - need;
}

const uint8_t *pattern(unsigned int seed)
{
	static _Thread_local uint8_t byte[2][PATTERN_BYTES];

	for (size_t i = 0; i < PATTERN_BYTES; i++)
		byte[seed & 1][i] = (uint8_t)(i * 7 + i / 256 + 1 + seed * 101);
	return byte[seed & 1];
}

void put_bytes(const void *key, size_t key_len, const void *value, size_t len, uint64_t expire_ms)
{
	assert_int_equal(store_set(bed.ctx, key, key_len, value, len, 0, 0, expire_ms, NULL), 0);
}

void put(const char *key, const void *value, size_t len, uint64_t expire_ms)
{
	put_bytes(key, strlen(key), value, len, expire_ms);
}

void put_text(const char *key, const char *text)
{
	put(key, text, strlen(text), 0);
}

struct store_entry entry_of(const void *key, size_t key_len)
{
	struct store_entry e;

	assert_int_equal(store_get(bed.ctx, key, key_len, &e), 0);
	return e;
}

uint64_t version_of(const char *key)
{
	return entry_of(key, strlen(key)).version;
}

void holds_bytes(const void *key, size_t key_len, const void *value, size_t len)
{
	struct store_entry e = entry_of(key, key_len);

	assert_int_equal(e.value_len, len);
	assert_memory_equal(e.value, value, len);
}

void holds(const char *key, const void *value, size_t len)
{
	holds_bytes(key, strlen(key), value, len);
}

void holds_text(const char *key, const char *text)
{
	holds(key, text, strlen(text));
}

void is_gone(const char *key)
{
	struct store_entry e;

	assert_int_equal(store_get(bed.ctx, key, strlen(key), &e), -ENOENT);
}

int verdict_of(const struct payload *req, struct outcome *out)
{
	uint8_t frame[PACKET_MAX];
	struct packet_spec s = packet_plain(false, req);

	assert_true(bed_run(&bed, frame, packet_build(&s, frame), out));
	if (bed_batched && out->verdict == XDP_TX &&
	    out->frame[packet_payload_at(false, 0) + 17] == XKV_BUSY)
		out->verdict = XDP_PASS; /* the client tries again, and that goes up */
	return out->verdict;
}

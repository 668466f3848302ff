/* SPDX-License-Identifier: BSD-2-Clause */
/* tests/run: seconds 8 */
/* Entries that are larger than a page, in pages with tails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf/layout.h"
#include "bpf/sizes.h"
#include "loader/store/feed.h"
#include "loader/store/impl.h"
#include "loader/store/store.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

#define MIB  (1UL << 20)
#define MOST (9 * MIB)

static unsigned char *bytes; /* MOST, of which no two pages are the same */

static int begin(void **state)
{
	bytes = malloc(MOST);
	for (size_t i = 0; i < MOST / 8; i++)
		((uint64_t *)bytes)[i] = i * 0x9e3779b97f4a7c15;
	return 0;
}

static int end(void **state)
{
	free(bytes);
	return 0;
}

static int setup(void **state)
{
	open_bed(65536);
	return 0;
}

/* Pages that have a tail, and whether one of them is in use. */
static unsigned int tails(unsigned int *in_use)
{
	unsigned int count = 0;

	*in_use = 0;
	for (unsigned int i = 0; i < bed.st->mem.pages; i++) {
		count += bed.st->mem.tail[i] != 0;
		*in_use += bed.st->mem.tail[i] && !bed.st->mem.units_free[i];
	}
	return count;
}

static void has_tails(unsigned int all, unsigned int used)
{
	unsigned int in_use;

	assert_int_equal(tails(&in_use), all);
	assert_int_equal(in_use, used);
}

/* Gives back what no slot is in: the free ones in the list, too. */
static void give_back(void)
{
	drain_large(bed.ctx);
	drain_run(bed.ctx);
	pages_remove_huge(bed.st);
}

static int set(const char *key, size_t len)
{
	return store_set(bed.ctx, key, strlen(key), bytes, len, 0, 0, 0, NULL);
}

static void has_part(const char *key, int64_t first, int64_t last, const void *want, size_t len)
{
	struct store_op op = { .opcode = XKV_OP_GET,
			       .key = key,
			       .key_len = strlen(key),
			       .part = true,
			       .first = first,
			       .last = last };
	struct store_entry e;

	assert_int_equal(store_do(bed.ctx, &op, &e), 0);
	assert_int_equal(e.value_len, len);
	assert_memory_equal(e.value, want, len);
}

/* Around the largest entry of a page, and around the ends of pages of a tail. */
static void test_sizes(void **state)
{
	static const size_t ends[] = { XKV_SLOT_MAX, XKV_SLOT_MAX + XKV_PAGE_BYTES,
				       XKV_SLOT_MAX + 3UL * XKV_PAGE_BYTES };

	for (unsigned int i = 0; i < 3; i++)
		for (size_t need = ends[i] - 16; need <= ends[i] + 16; need += 8) {
			size_t len = need - XKV_SLOT_NEED(3, 0);

			for (size_t less = 0; less < 8; less += 7) {
				assert_int_equal(set("key", len - less), 0);
				holds_bytes("key", 3, bytes, len - less);
				has_tails(need > XKV_SLOT_MAX, need > XKV_SLOT_MAX);
				has_part("key", -5, -1, bytes + len - less - 5, 5);
				has_part("key", 7, 11, bytes + 7, 5);
				has_part("key", (int64_t)(len - less), -1, "", 0);
				assert_int_equal(store_delete(bed.ctx, "key", 3, NULL), 0);
				give_back();
				has_tails(0, 0);
			}
		}
	account();
}

static void test_changes(void **state)
{
	const size_t len = 3 * MIB;
	struct store_entry old;
	uint64_t now;

	assert_int_equal(set("a", len), 0);
	assert_int_equal(store_append(bed.ctx, "a", 1, bytes + len, 2 * MIB, &now), 0);
	assert_int_equal(now, len + 2 * MIB);
	holds_bytes("a", 1, bytes, len + 2 * MIB);
	assert_int_equal(store_expire(bed.ctx, "a", 1, store_now_ms(bed.st) + 100000), 0);
	holds_bytes("a", 1, bytes, len + 2 * MIB);
	assert_int_equal(store_set(bed.ctx, "a", 1, "x", 1, 0, 0, 0, &old), 0);
	assert_int_equal(old.value_len, len + 2 * MIB);
	assert_memory_equal(old.value, bytes, old.value_len);
	assert_int_equal(store_append(bed.ctx, "a", 1, bytes, len, &now), 0);
	assert_int_equal(store_delete(bed.ctx, "a", 1, &old), 0);
	assert_int_equal(old.value_len, len + 1);
	assert_memory_equal((const char *)old.value + 1, bytes, len);
	give_back();
	has_tails(0, 0);
	account();
}

/* The free slot of the one before, if it has as many pages. */
static void test_memory_is_used_again(void **state)
{
	for (int i = 0; i < 6; i++)
		assert_int_equal(set("a", 5 * MIB + (size_t)i), 0);
	has_tails(2, 2);
	assert_int_equal(set("a", 3 * MIB), 0);
	has_tails(3, 3);
	give_back();
	has_tails(1, 1);
	holds_bytes("a", 1, bytes, 3 * MIB);
	account();
}

/* A buffer for a huge value is not kept. */
static void test_buffers(void **state)
{
	assert_int_equal(set("a", 8 * MIB), 0);
	assert_int_equal(set("b", 3), 0);
	holds_bytes("a", 1, bytes, 8 * MIB);
	assert_true(bed.ctx->large.room >= 8 * MIB);
	holds_bytes("b", 1, bytes, 3);
	assert_int_equal(bed.ctx->large.room, XKV_SLOT_MAX);
}

static void adopt(void)
{
	assert_null(bed_adopt(&bed));
	assert_null(bed_account(&bed));
}

/* What an xkvd that was killed had made is found, or freed. */
static void test_adopting(void **state)
{
	struct xkv_request *rq;
	uint32_t number = 0;

	assert_int_equal(set("a", 5 * MIB), 0);
	assert_int_equal(set("b", 3 * MIB), 0);
	adopt();
	holds_bytes("a", 1, bytes, 5 * MIB);
	holds_bytes("b", 1, bytes, 3 * MIB);
	has_tails(2, 2);
	/* a page that nobody has used yet */
	assert_int_equal(page_add_huge(bed.st, xkv_units(7 * MIB)), 0);
	adopt();
	has_tails(3, 2);
	/* a slot in hand */
	rq = bed.ctx->request;
	assert_int_equal(span_take_large(bed.st, rq, xkv_units(7 * MIB)), 0);
	adopt();
	give_back();
	has_tails(2, 2);
	/* a page whose tail was not put yet, or was removed already: one like others */
	assert_int_equal(page_add_huge(bed.st, xkv_units(7 * MIB)), 0);
	while (bed.st->mem.tail[number] != xkv_tail_pages(xkv_units(7 * MIB)))
		number++;
	assert_int_equal(bpf_map_delete_elem(bed.st->bpf.map[BPF_TAILS], &number), 0);
	adopt();
	has_tails(2, 2);
	assert_int_equal(bed.st->mem.units_free[number], XKV_UNITS - 1);
	holds_bytes("a", 1, bytes, 5 * MIB);
}

/* Of the memory that a huge value has left, others can be made. */
static void test_small_ones_after_a_huge_one(void **state)
{
	char key[16];
	int ret = 0;

	assert_int_equal(set("a", 8 * MIB), 0);
	store_limit(bed.st, store_memory(bed.st), STORE_NOEVICTION);
	for (int i = 0; !ret; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		ret = store_set(bed.ctx, key, strlen(key), bytes, 1000, 0, 0, 0, NULL);
	}
	assert_int_equal(ret, -ENOSPC);
	assert_int_equal(set("b", 3 * MIB), -ENOSPC);
	assert_int_equal(store_delete(bed.ctx, "a", 1, NULL), 0);
	assert_int_equal(set("b", 3 * MIB), 0);
	for (int i = 0; i < 1000; i++) {
		snprintf(key, sizeof(key), "l%d", i);
		assert_int_equal(store_set(bed.ctx, key, strlen(key), bytes, 1000, 0, 0, 0, NULL),
				 0);
	}
	account();
}

/* A store without a slot of the right size makes one, instead of keeping 8 MiB for 1,000 bytes. */
static void test_a_small_one_over_a_huge_one(void **state)
{
	assert_int_equal(set("a", 8 * MIB), 0);
	assert_int_equal(set("b", 8 * MIB), 0);
	assert_int_equal(store_set(bed.ctx, "a", 1, bytes, 1000, 0, 0, 0, NULL), 0);
	assert_int_equal(store_set(bed.ctx, "b", 1, bytes, 1, 0, 0, 0, NULL), 0);
	holds_bytes("a", 1, bytes, 1000);
	holds_bytes("b", 1, bytes, 1);
	account();
}

/* Small ones are evicted for a huge value, but not for one that can never be stored. */
static void test_eviction(void **state)
{
	uint64_t limit = store_memory_least(bed.st) + 4 * XKV_PAGE_COST, count;
	char key[16];

	store_limit(bed.st, limit, STORE_ALLKEYS_RANDOM);
	for (int i = 0; i < 6000; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		assert_int_equal(store_set(bed.ctx, key, strlen(key), bytes, 1000, 0, 0, 0, NULL),
				 0);
	}
	count = store_count(bed.st);
	assert_int_equal(set("never", 9 * MIB), -ENOSPC);
	assert_int_equal(store_count(bed.st), count);
	assert_int_equal(set("a", 7 * MIB), 0);
	assert_true(store_memory(bed.st) <= limit);
	assert_int_equal(set("b", 7 * MIB), 0); /* and "a" for this one */
	assert_true(store_memory(bed.st) <= limit);
	holds_bytes("b", 1, bytes, 7 * MIB);
	is_gone("a");
	account();
}

static atomic_bool ends;

static void *write_values(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	static unsigned char value[5 << 20];

	for (unsigned int i = 0; !ends; i++) {
		memset(value, (int)i, sizeof(value));
		assert_int_equal(store_set(ctx, "k", 1, value, (i % 3 + 2) * MIB, 0, 0, 0, NULL),
				 0);
		if (i % 7 == 0)
			store_delete(ctx, "k", 1, NULL);
	}
	store_ctx_put(ctx);
	return NULL;
}

/* A reader sees one whole value, or none. */
static void test_reads_beside_writes(void **state)
{
	struct store_entry e;
	unsigned int found = 0;
	pthread_t writer;

	bed_maintenance(&bed, true);
	ends = false;
	assert_int_equal(pthread_create(&writer, NULL, write_values, NULL), 0);
	for (unsigned int i = 0; i < 20000 && found < 100; i++) {
		int ret = store_get(bed.ctx, "k", 1, &e);
		const char *at = e.value;

		if (ret == -ENOENT || ret == -EBUSY) {
			usleep(200);
			continue;
		}
		assert_int_equal(ret, 0);
		assert_int_equal(e.value_len % MIB, 0);
		assert_memory_equal(at, at + 1, e.value_len - 1); /* all bytes are the same */
		found++;
	}
	ends = true;
	pthread_join(writer, NULL);
	bed_maintenance(&bed, false);
	assert_true(found);
	give_back();
	account();
}

/* A slot that the feed refers to stays until that was read. */
static void test_feed(void **state)
{
	struct feed_reader *log, *told;
	struct feed_change c;
	bool resumed;

	assert_int_equal(feed_open(bed.st, "log", &log, &resumed), 0);
	assert_int_equal(feed_open(bed.st, "told", &told, &resumed), 0);
	feed_ends_with_xkvd(told);
	assert_int_equal(set("a", 5 * MIB), 0);
	assert_int_equal(set("a", 3 * MIB), 0);
	assert_int_equal(store_delete(bed.ctx, "a", 1, NULL), 0);
	give_back();
	has_tails(2, 2);
	for (int i = 0; i < 2; i++) {
		struct feed_reader *r = i ? told : log;

		assert_int_equal(feed_next(r, &c), 1);
		assert_int_equal(c.value_len, 5 * MIB);
		assert_memory_equal(c.value, bytes, 5 * MIB);
		assert_int_equal(feed_next(r, &c), 1);
		assert_int_equal(c.value_len, 3 * MIB);
		assert_memory_equal(c.value, bytes, 3 * MIB);
		assert_int_equal(feed_next(r, &c), 1);
		assert_int_equal(c.what, XKV_CHANGE_DELETE);
		assert_int_equal(feed_next(r, &c), 0);
	}
	feed_trim(bed.st);
	give_back();
	has_tails(0, 0);
	feed_close(log);
	feed_close(told);
}

int main(int argc, char **argv)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, close_bed)
	const struct CMUnitTest tests[] = {
		CASE(test_sizes),
		CASE(test_changes),
		CASE(test_memory_is_used_again),
		CASE(test_buffers),
		CASE(test_adopting),
		CASE(test_small_ones_after_a_huge_one),
		CASE(test_a_small_one_over_a_huge_one),
		CASE(test_eviction),
		CASE(test_reads_beside_writes),
		CASE(test_feed),
	};

	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("huge values", tests, begin, end);
}

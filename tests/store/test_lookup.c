// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 4 */
/*
 * Look-ups in user space (loader/store/lookup.h): what they find, and what they leave to the
 * engine; alone, and beside threads that change, move and take away what they read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "loader/store/lookup.h"
#include "ask.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

#define MASKED(test, setup) cmocka_unit_test_setup_teardown(test, setup, ask_begin)
#define KEYS		    100 /* in one bucket at most 119 */

static int look(uint8_t opcode, const char *key, struct store_entry *e)
{
	struct store_op op = { .opcode = opcode, .key = key, .key_len = strlen(key) };

	bed.ctx->request[0].hot_left = INT64_MAX; /* not a sample */
	return lookup(bed.ctx, &op, e);
}

static int get(const char *key, struct store_entry *e)
{
	return look(XKV_OP_GET, key, e);
}

/* Key number i, of 2 to 250 bytes. */
static const char *key_of(unsigned int i)
{
	static char key[XKV_KEY_MAX + 1];

	snprintf(key, sizeof(key), "%0*u", (int)(2 + i * 37 % 249), i);
	return key;
}

static size_t len_of(unsigned int i)
{
	static const size_t len[] = { 0, 1, 7, 8, 100, 1472, 4000 };

	return len[i % 7];
}

/* Puts the even keys; looks for all. */
static void check_finds(void)
{
	struct store_entry e;

	for (unsigned int i = 0; i < KEYS; i += 2)
		put(key_of(i), pattern(i / 2), len_of(i / 2), i % 8 ? 0 : INT64_MAX);
	for (unsigned int i = 0; i < KEYS; i++) {
		assert_int_equal(get(key_of(i), &e), i % 2 ? -ENOENT : 0);
		if (i % 2)
			continue;
		assert_int_equal(e.value_len, len_of(i / 2));
		assert_memory_equal(e.value, pattern(i / 2), e.value_len);
		assert_int_equal(e.expire_ms, i % 8 ? 0 : XKV_TTL_MAX);
		assert_true(e.version == version_of(key_of(i)));
	}
	put("large", zeros, XKV_VALUE_MAX, 0);
	assert_int_equal(get("large", &e), 0);
	assert_int_equal(e.value_len, XKV_VALUE_MAX);
	assert_memory_equal(e.value, zeros, XKV_VALUE_MAX);
	assert_int_equal(look(XKV_OP_TTL, "large", &e), 0);
	assert_true(!e.value && !e.value_len && e.version == version_of("large"));
}

static void test_finds(void **state)
{
	check_finds();
}

static void test_finds_in_chains(void **state)
{
	check_finds();
	assert_true(bed_chain_count(&bed) > 0);
}

static void test_finds_among_collisions(void **state)
{
	check_finds();
}

#define OPS 300

struct got {
	int ret[OPS];
	uint64_t first[OPS]; /* byte of the value; how often it was called, above */
};

static void on_got(void *arg, unsigned int op, int ret, const struct store_entry *e)
{
	struct got *g = arg;

	g->ret[op] = ret;
	g->first[op] += 256 + (e->value_len ? *(const uint8_t *)e->value : 0);
}

/*
 * More operations than are looked up side by side: of each ten a SET, a GET of the same key, one of
 * a missing key, a value that is too large for a request, and two that are not found as they are: a
 * long key, and one that is not valid.
 */
static void test_runs_of_operations(void **state)
{
	char key[OPS][8], value[OPS][8], long_key[XKV_KEY_MAX + 1] = { 0 };
	struct store_op op[OPS];
	static struct got g;

	memset(&g, 0, sizeof(g));
	bed.ctx->request[0].hot_left = INT64_MAX;
	put("large", zeros, 20000, 0);
	put_bytes(long_key, sizeof(long_key), "L", 1, 0);
	for (int i = 0; i < OPS; i++) {
		snprintf(key[i], sizeof(key[i]), "k%d", i / 2);
		snprintf(value[i], sizeof(value[i]), "%c", 'a' + i / 10 % 26);
		op[i] = (struct store_op){ .opcode = i % 10 ? XKV_OP_GET : XKV_OP_SET,
					   .key = i % 10 == 3 ? "large" : key[i],
					   .key_len = i % 10 == 3 ? 5 : strlen(key[i]),
					   .value = i % 10 ? NULL : value[i],
					   .value_len = i % 10 ? 0 : 1 };
		if (i % 10 == 5)
			op[i].key_len = XKV_LONG_KEY_MAX + 1;
		if (i % 10 == 6) {
			op[i].key = long_key;
			op[i].key_len = sizeof(long_key);
		}
	}
	store_run(bed.ctx, op, OPS, on_got, &g);
	for (int i = 0; i < OPS; i++) {
		bool there = i % 10 == 1 || i % 10 == 3 || i % 10 == 6;
		uint8_t first = i % 10 == 3 ? 0 : i % 10 == 6 ? 'L' : (uint8_t)value[i][0];

		assert_int_equal(g.ret[i], i % 10 == 5	      ? -EMSGSIZE
					   : i % 10 && !there ? -ENOENT
							      : 0);
		assert_int_equal(g.first[i], 256 + (there ? first : 0));
	}
}

static void test_expired(void **state)
{
	struct store_entry e;
	uint64_t key[1] = { 'a' }, version;

	put("a", "1", 1, store_now_ms(bed.st) + 60000);
	assert_int_equal(get("a", &e), 0);
	assert_int_equal(lookup_version(bed.st, 0, key, 1, &version), 0);
	assert_true(version && version == e.version);
	pass_time(120000); /* by the clock that BPF has */
	assert_int_equal(get("a", &e), -ENOENT);
	assert_true(!e.value && !e.version && !e.expire_ms);
	assert_int_equal(look(XKV_OP_TOUCH, "a", &e), -ENOENT);
	assert_int_equal(lookup_version(bed.st, 0, key, 1, &version), 0);
	assert_int_equal(version, 0);
	pass_time(-120000);
}

/* A locked slot may have any key of its tag; a bucket is read whether it is locked or not. */
static void test_locked(void **state)
{
	uint64_t key[1] = { 'n' }, version;
	struct store_entry e;
	struct xkv_slot *slot;

	put_text("a", "1");
	put_text("b", "2");
	slot = bed_slot(&bed, "a", 1);
	bed_bucket(&bed, "a", 1)->head |= XKV_BUCKET_LOCK;
	assert_int_equal(get("a", &e), 0);
	assert_int_equal(get("n", &e), -ENOENT);
	bed_bucket(&bed, "a", 1)->head &= ~XKV_BUCKET_LOCK;
	slot->seq |= 1;
	assert_int_equal(get("a", &e), -EAGAIN);
	assert_int_equal(get("n", &e), -EAGAIN);
	assert_int_equal(lookup_version(bed.st, 0, key, 1, &version), -EAGAIN);
	assert_int_equal(get("b", &e), 0);
	slot->seq &= ~1ULL;
	assert_int_equal(get("a", &e), 0);
	assert_int_equal(get("n", &e), -ENOENT);
}

/* A header that is being changed may have any length; nothing behind the page is read. */
static void test_lengths_of_garbage(void **state)
{
	struct store_entry e;
	struct xkv_slot *slot;

	put_text("a", "1");
	slot = bed_slot(&bed, "a", 1);
	slot->value_len = XKV_VALUE_HUGE;
	assert_int_equal(get("a", &e), -EAGAIN);
	slot->value_len = XKV_VALUE_HUGE - 1;
	assert_int_equal(get("a", &e), -EAGAIN);
	slot->value_len = 1;
	assert_int_equal(get("a", &e), 0);
}

static void test_counts(void **state)
{
	uint64_t hits = count_of(XKV_C_get_hits), misses = count_of(XKV_C_get_misses);
	struct xkv_slot *slot;
	struct store_entry e;

	put_text("a", "1");
	for (int i = 0; i < 3; i++)
		assert_int_equal(get("a", &e), 0);
	assert_int_equal(look(XKV_OP_TTL, "a", &e), 0);
	assert_int_equal(get("none", &e), -ENOENT);
	slot = bed_slot(&bed, "a", 1);
	slot->seq |= 1;
	assert_int_equal(get("a", &e), -EAGAIN);
	slot->seq &= ~1ULL;
	for (int settled = 0; settled < 2; settled++) { /* count_of() settles */
		assert_int_equal(store_counter(bed.st, "get_hits"), hits + 4);
		assert_int_equal(store_counter(bed.st, "get_misses"), misses + 1);
		assert_int_equal(count_of(XKV_C_get_hits), hits + 4);
		assert_int_equal(count_of(XKV_C_get_misses), misses + 1);
	}
}

static void test_marks_use(void **state)
{
	struct store_entry e;
	struct xkv_slot *slot;

	put_text("a", "1");
	slot = bed_slot(&bed, "a", 1);
	for (uint32_t track = XKV_TRACK_NOTHING; track <= XKV_TRACK_FREQUENCY; track++) {
		bed.c->track = track;
		bed.c->access = 80 * XKV_LFU_TICK;
		slot->access = 8;
		assert_int_equal(look(XKV_OP_TTL, "a", &e), 0);
		assert_int_equal(slot->access, 8);
		assert_int_equal(get("a", &e), 0);
		assert_int_equal(slot->access, track == XKV_TRACK_NOTHING ? 8
					       : track == XKV_TRACK_TIME  ? 640
									  : 641);
		slot->access = 8;
		assert_int_equal(look(XKV_OP_TOUCH, "a", &e), 0);
		assert_int_equal(slot->access != 8, track != XKV_TRACK_NOTHING);
	}
}

/* By a client that wants that, in user space and by the engine; TOUCH does all the same. */
static void test_reads_without_use(void **state)
{
	struct store_op op = { .opcode = XKV_OP_GET, .key = "a", .key_len = 1 };
	struct xkv_slot *slot;
	struct store_entry e;

	put_text("a", "1");
	slot = bed_slot(&bed, "a", 1);
	bed.c->track = XKV_TRACK_TIME;
	bed.c->access = 80;
	store_no_touch(bed.ctx, true);
	for (int engine = 0; engine < 2; engine++) {
		bed.c->hot_step = engine ? XKV_HOT_ONE / 100 : 0;
		bed.ctx->request->hot_left = 1; /* the next one is sampled, by the engine */
		slot->access = 8;
		assert_int_equal(lookup(bed.ctx, &op, &e), engine ? -EAGAIN : 0);
		assert_int_equal(store_do(bed.ctx, &op, &e), 0);
		assert_int_equal(slot->access, 8);
		assert_int_equal(store_touch(bed.ctx, "a", 1, true, &e), 0);
		assert_int_equal(slot->access, 80);
	}
	bed.c->hot_step = 0;
	store_no_touch(bed.ctx, false);
	slot->access = 8;
	assert_int_equal(store_do(bed.ctx, &op, &e), 0);
	assert_int_equal(slot->access, 80);
}

/* What is to be sampled is left to the engine, which draws the distance to the next sample. */
static void test_samples(void **state)
{
	struct xkv_request *rq = bed.ctx->request;
	struct store_op op = { .opcode = XKV_OP_GET, .key = "a", .key_len = 1 };
	struct store_entry e;

	put_text("a", "1");
	bed.c->hot_step = XKV_HOT_ONE / 100;
	rq->hot_left = 2 * (int64_t)bed.c->hot_step + 1;
	assert_int_equal(lookup(bed.ctx, &op, &e), 0);
	assert_int_equal(lookup(bed.ctx, &op, &e), 0);
	assert_int_equal(rq->hot_left, 1);
	assert_int_equal(lookup(bed.ctx, &op, &e), -EAGAIN);
	assert_int_equal(store_get(bed.ctx, "a", 1, &e), 0);
	assert_true(rq->hot_left > 0 && rq->hot_left != 1);
	bed.c->hot_step = 0;
}

/* ---- beside others ----------------------------------------------------------- */

static atomic_bool stop;
static atomic_uint events; /* what the other thread has done */

/*
 * Starts `run`, and looks for the key until that has done so much: it is there all the time, and
 * its value is whole.
 */
static void look_beside(void *(*run)(void *), const char *key, unsigned int wanted)
{
	unsigned int found = 0, left = 0;
	struct store_entry e;
	pthread_t thread;
	uint8_t first;
	int ret;

	atomic_store(&stop, false);
	atomic_store(&events, 0);
	assert_int_equal(pthread_create(&thread, NULL, run, NULL), 0);
	while (atomic_load(&events) < wanted) {
		ret = get(key, &e);
		left += ret == -EAGAIN;
		found += !ret;
		assert_int_not_equal(ret, -ENOENT);
		if (ret)
			continue;
		first = *(const uint8_t *)e.value;
		assert_int_equal(e.value_len, 8 + first);
		for (size_t i = 1; i < e.value_len; i++)
			if (((const uint8_t *)e.value)[i] != first)
				fail_msg("half of a value");
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	print_message("%u found, %u left to the engine\n", found, left);
	assert_true(found > 0);
	account();
}

static int put_round(struct store_ctx *ctx, const char *key, unsigned int round)
{
	uint8_t value[8 + 255];

	memset(value, (int)(round % 256), sizeof(value));
	return store_set(ctx, key, strlen(key), value, 8 + round % 256, 0, 0, 0, NULL);
}

/* Overwrites the key with values of all sizes, so that it changes its class, too. */
static void *overwrite(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);

	for (unsigned int i = 0; ctx && !atomic_load(&stop); i++)
		events += !put_round(ctx, "key", i * 7);
	store_ctx_put(ctx);
	return NULL;
}

static void test_beside_overwriting(void **state)
{
	put_round(bed.ctx, "key", 0);
	look_beside(overwrite, "key", 20000);
}

/* Makes the chain in front of the key longer and shorter; its buckets become other things. */
static void *come_and_go(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	char key[8];

	for (unsigned int i = 0; ctx && !atomic_load(&stop); i++) {
		snprintf(key, sizeof(key), "%u", i % 61);
		if (i / 61 % 2)
			store_delete(ctx, key, strlen(key), NULL);
		else
			put_round(ctx, key, i);
		events++;
	}
	store_ctx_put(ctx);
	return NULL;
}

static void test_beside_chains(void **state)
{
	char key[8];

	for (int i = 0; i < 20; i++) {
		snprintf(key, sizeof(key), "%u", i);
		put_round(bed.ctx, key, 1);
	}
	put_round(bed.ctx, "key", 3); /* stands behind them */
	look_beside(come_and_go, "key", 20000);
}

/*
 * Empties spans, so that entries move, and gives pages without any back.  What is moved back and
 * forth has a class of its own.
 */
static void *relocate(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	unsigned int class = class_of(8 + 200);
	char key[16];

	for (unsigned int i = 0; ctx && !atomic_load(&stop); i++) {
		for (int n = 0; n < 300; n++) {
			snprintf(key, sizeof(key), "more%d", n);
			if (i % 2)
				store_delete(ctx, key, strlen(key), NULL);
			else
				put_round(ctx, key, 200);
		}
		bed_drain(&bed, ctx, class, 4);
		for (uint32_t page = 0; page < bed.st->mem.pages; page++)
			if (bed.st->mem.page[page])
				events += !page_remove(bed.st, page);
		pages_add(bed.st, 1);
	}
	store_ctx_put(ctx);
	return NULL;
}

static void test_beside_relocation(void **state)
{
	put_round(bed.ctx, "key", 200);
	look_beside(relocate, "key", 5);
}

static int setup_chains(void **state)
{
	open_masked_bed(~0ULL, 0);
	return 0;
}

/* All keys have the same tag, and so the same bucket. */
static int setup_same_tag(void **state)
{
	open_masked_bed(0, ~0ULL);
	return 0;
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		CASE(test_finds),
		MASKED(test_finds_in_chains, setup_chains),
		MASKED(test_finds_among_collisions, setup_same_tag),
		CASE(test_runs_of_operations),
		MASKED(test_runs_of_operations, setup_same_tag),
		CASE(test_expired),
		MASKED(test_locked, setup_same_tag),
		CASE(test_lengths_of_garbage),
		CASE(test_counts),
		CASE(test_marks_use),
		CASE(test_reads_without_use),
		CASE(test_samples),
		MASKED(test_beside_overwriting, setup_same_tag),
		MASKED(test_beside_chains, setup_chains),
		CASE(test_beside_relocation),
	};

	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("look-ups", tests, ask_begin, close_bed);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Hot keys: which uses are counted, as what, and how well samples find the keys used most. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <bpf/bpf.h>
#include <linux/bpf.h>

#include "bench/common/dist.h"
#include "client/hot.h"
#include "loader/store/impl.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

/* ---- asking --------------------------------------------------------------- */

static int driver(const struct payload *req)
{
	struct outcome out;

	return verdict_of(req, &out);
}

static void ask(const struct payload *req)
{
	assert_int_equal(driver(req), XDP_TX);
}

/* A request of one operation. */
static struct payload one(struct operation op)
{
	struct payload p;

	request_begin(&p, 1, NULL);
	request_add(&p, &op);
	return p;
}

#define OP(code, k, ...)                                                                           \
	one((struct operation){ code, .key = (k), .key_len = strlen(k), __VA_ARGS__ })

/* ---- what was noted -------------------------------------------------------- */

static struct hot_list look(void)
{
	struct hot_list list;
	char err[256];

	assert_int_equal(hot_read(bed.pin_dir, &list, err, sizeof(err)), 0);
	return list;
}

static void forget(void)
{
	struct hot_list list = look();

	for (size_t i = 0; i < list.count; i++)
		assert_int_equal(bpf_map_delete_elem(bed.bpf.map[BPF_HOT], &list.entry[i].key), 0);
	hot_free(&list);
}

/*
 * One use in `rate` is noted from now on, by the requests of this CPU and of the context's first
 * operation, and nothing is known yet.  They draw when they first meet a use, and what they drew
 * before is used up first.
 */
static void sample(unsigned int rate)
{
	struct payload req = OP(XKV_OP_TTL, "first");
	struct store_entry e;

	bed.c->hot_step = rate ? XKV_HOT_ONE / rate : 0;
	for (unsigned int i = 0; i < 2 * rate + 2 && rate < 10; i++) {
		ask(&req);
		store_touch(bed.ctx, "first", 5, false, &e);
	}
	forget();
}

/* The uses of a key that were noted. */
static struct xkv_hot use_of(const void *key, size_t len)
{
	struct xkv_hot_key k = { .len = len };
	struct xkv_hot use = {};

	memcpy(k.text, key, len < XKV_HOT_TEXT ? len : XKV_HOT_TEXT);
	if (bpf_map_lookup_elem(bed.bpf.map[BPF_HOT], &k, &use))
		assert_int_equal(errno, ENOENT);
	return use;
}

static void noted(const char *key, uint64_t reads, uint64_t writes, uint64_t bytes)
{
	struct xkv_hot use = use_of(key, strlen(key));

	assert_int_equal(use.reads, reads);
	assert_int_equal(use.writes, writes);
	assert_int_equal(use.bytes, bytes);
}

static void nothing_noted(void)
{
	struct hot_list list = look();

	assert_int_equal(list.count, 0);
	hot_free(&list);
}

static int setup(void **state)
{
	bed_configure(&bed);
	bed.c->miss_reply = 1;
	bed.c->hot_half_ns = 1ULL << 62; /* nothing fades while a test looks at it */
	sample(1);
	return 0;
}

/* ---- tests ---------------------------------------------------------------- */

static void test_driver(void **state)
{
	char value[100] = "x";
	struct payload req;
	struct hot_list list;
	struct timespec now;

	put("plain", value, 100, 0);
	forget();
	req = OP(XKV_OP_GET, "plain");
	ask(&req);
	ask(&req);
	noted("plain", 2, 0, 208);
	req = OP(XKV_OP_SET, "plain", .value = value, .value_len = 100); /* in place */
	ask(&req);
	noted("plain", 2, 1, 312);
	/* the slow path; and one that changes nothing */
	req = OP(XKV_OP_SET, "plain", .value = value, .value_len = 100, .flags = XKV_XX);
	ask(&req);
	req = OP(XKV_OP_SET, "plain", .value = value, .value_len = 100, .flags = XKV_NX);
	ask(&req);
	req = OP(XKV_OP_TTL, "plain");
	ask(&req);
	req = OP(XKV_OP_APPEND, "plain", .value = value, .value_len = 4);
	ask(&req);
	noted("plain", 3, 4, 312 + 208 + 8);
	req = OP(XKV_OP_DELETE, "plain");
	ask(&req);
	req = OP(XKV_OP_GET, "plain");
	ask(&req);
	noted("plain", 4, 5, 528);
	request_begin(&req, 1, NULL);
	request_add(&req, &(struct operation){ .opcode = XKV_OP_PING });
	ask(&req);
	list = look();
	assert_int_equal(list.count, 1);
	clock_gettime(CLOCK_REALTIME, &now); /* time() may be a tick behind */
	assert_in_range(list.entry[0].use.last_seen, now.tv_sec - 60, now.tv_sec);
	hot_free(&list);
}

/* Both ways of many reads: each key counts. */
static void test_driver_many(void **state)
{
	struct payload req;

	for (int again = 0; again < 2; again++) {
		sample(1);
		put("m:1", "12345678", 8, 0);
		put("m:2", "12345678", 8, 0);
		forget();
		request_begin(&req, 1, NULL);
		if (again) /* the slow path */
			request_add(&req, &(struct operation){ .opcode = XKV_OP_PING });
		for (char key[] = "m:1"; key[2] <= '3'; key[2]++)
			request_add(&req,
				    &(struct operation){ XKV_OP_GET, .key = key, .key_len = 3 });
		ask(&req);
		noted("m:1", 1, 0, 8);
		noted("m:2", 1, 0, 8);
		noted("m:3", 1, 0, 0);
		req = OP(XKV_OP_SCAN, "m:1", .keys = 3);
		request_pad(&req, 200, 0);
		ask(&req);
		noted("m:1", 2, 0, 16);
		noted("m:3", 2, 0, 0);
	}
}

/* What the driver passes on counts once, where it is done. */
static void test_passed(void **state)
{
	struct payload req = OP(XKV_OP_GET, "gone");
	uint8_t reply[XKV_PAYLOAD_MAX4];
	size_t room = sizeof(reply);

	bed.c->miss_reply = 0;
	assert_int_equal(driver(&req), XDP_PASS);
	nothing_noted();
	assert_true(store_datagram(bed.ctx, req.byte, req.len, reply, room, room) > 0);
	noted("gone", 1, 0, 0);
}

static void test_daemon(void **state)
{
	static char large[100001];
	struct store_entry e;
	int64_t sum;

	put("d", "1", 1, 0);
	assert_int_equal(store_get(bed.ctx, "d", 1, &e), 0);
	assert_int_equal(store_incr(bed.ctx, "d", 1, 5, &sum), 0);
	noted("d", 1, 2, 24);
	put("large", large, sizeof(large), 0);
	assert_int_equal(store_get(bed.ctx, "large", 5, &e), 0);
	noted("large", 1, 1, 2 * 100008);
	assert_int_equal(store_delete(bed.ctx, "large", 5, NULL), 0);
	noted("large", 1, 2, 2 * 100008);
}

/* xkvd's own work is no use of a key, nor is what it loads before it serves. */
static void test_own_work(void **state)
{
	struct store_op expired = {
		.opcode = XKV_OP_DELETE, .key = "own", .key_len = 3, .expired = true
	};
	struct store_entry e;

	assert_int_equal(store_set(bed.ctx, "own", 3, "1", 1, 0, 0, 1, NULL), 0);
	forget();
	assert_int_equal(store_do(bed.ctx, &expired, &e), 0);
	nothing_noted();
	bed.c->magic = 0;
	put("own", "1", 1, 0);
	nothing_noted();
	bed.c->magic = XKV_LAYOUT_MAGIC;
	put("own", "1", 1, 0);
	noted("own", 0, 1, 8);
}

/* The first 64 bytes are the text, but the length counts, too. */
static void test_keys(void **state)
{
	char key[XKV_KEY_MAX];
	struct store_entry e;

	memset(key, 'k', sizeof(key));
	store_touch(bed.ctx, key, 64, true, &e);
	store_touch(bed.ctx, key, 65, true, &e);
	store_touch(bed.ctx, key, XKV_KEY_MAX, true, &e);
	key[XKV_KEY_MAX - 1] = 'x'; /* nobody can tell it from the one before */
	store_touch(bed.ctx, key, XKV_KEY_MAX, true, &e);
	store_touch(bed.ctx, "a", 1, true, &e);
	store_touch(bed.ctx, "a\0\0", 3, true, &e);
	assert_int_equal(use_of(key, 64).reads, 1);
	assert_int_equal(use_of(key, 65).reads, 1);
	assert_int_equal(use_of(key, XKV_KEY_MAX).reads, 2);
	assert_int_equal(use_of("a", 1).reads, 1);
	assert_int_equal(use_of("a\0\0", 3).reads, 1);
}

/* Of long keys, which may begin alike, a part of the digest counts; the empty key is one. */
static void test_long_keys(void **state)
{
	char key[1000];
	struct store_entry e;
	struct hot_list list;
	size_t rows = 0;

	memset(key, 'k', sizeof(key));
	for (size_t len = 991; len <= 1000; len++)
		store_touch(bed.ctx, key, len, true, &e);
	store_touch(bed.ctx, "", 0, true, &e);
	list = look();
	for (size_t i = 0; i < list.count; i++) {
		assert_int_equal(list.entry[i].key.len, XKV_KEY_LONG);
		assert_int_equal(list.entry[i].use.reads, 1);
		rows += list.entry[i].key.text[0] == 'k';
	}
	assert_int_equal(rows, 10);
	assert_int_equal(list.count, 11);
	hot_free(&list);
}

/* Changes take effect at once, and what was noted before has the weight that it had. */
static void test_rate(void **state)
{
	struct payload req = OP(XKV_OP_GET, "rate");
	struct hot_list list;
	struct xkv_hot use;

	ask(&req);
	sample(0);
	for (int i = 0; i < 100; i++)
		ask(&req);
	nothing_noted();
	list = look();
	assert_int_equal(list.sample_rate, 0);
	hot_free(&list);
	sample(1);
	ask(&req);
	noted("rate", 1, 0, 0);
	bed.c->hot_step = XKV_HOT_ONE / 1000;
	for (int i = 0; i < 100000; i++)
		ask(&req);
	use = use_of("rate", 4);
	assert_int_equal(use.reads % 1000, 1);
	assert_in_range(use.reads, 75000, 125000); /* 100 samples, give or take 6 */
	list = look();
	assert_int_equal(list.sample_rate, 1000);
	hot_free(&list);
}

/* Keys that are used in turns, at the very distance of the samples: all of them are noted alike. */
static void test_periodic(void **state)
{
	struct payload req[8];
	char key[] = "0";

	sample(8);
	for (int i = 0; i < 8; i++, key[0]++)
		req[i] = OP(XKV_OP_GET, key);
	for (int i = 0; i < 16000; i++)
		ask(&req[i % 8]);
	for (key[0] = '0'; key[0] < '8'; key[0]++)
		assert_in_range(use_of(key, 1).reads, 1000, 3000); /* 250 samples of 8 are 2000 */
}

static uint64_t up_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* What was noted three periods ago counts an eighth, whoever looks at it. */
static void test_halved(void **state)
{
	struct xkv_hot old = { .reads = 8000, .writes = 800, .bytes = 80, .last_seen = 1 };
	struct xkv_hot_key key = { .text = "old", .len = 3 };
	struct payload req = OP(XKV_OP_GET, "old");
	struct hot_list list;

	bed.c->hot_half_ns = up_ns() / 7 * 2; /* now is in the middle of the period behind three */
	bpf_map_update_elem(bed.bpf.map[BPF_HOT], &key, &old, BPF_ANY);
	list = look();
	assert_int_equal(list.entry[0].use.reads, 1000);
	assert_int_equal(list.entry[0].use.bytes, 10);
	hot_free(&list);
	ask(&req);
	noted("old", 1001, 100, 10);
	assert_true(use_of("old", 3).last_seen > 1);
	old.reads = old.writes = ~0ULL;
	bed.c->hot_half_ns = up_ns() / 141 * 2; /* 70: shifts by more than there are bits */
	bpf_map_update_elem(bed.bpf.map[BPF_HOT], &key, &old, BPF_ANY);
	ask(&req);
	noted("old", 2, 1, 0);
}

static void test_seconds(void **state)
{
	const uint64_t half = 60000000000, at = 100 * half;

	assert_float_equal(hot_seconds(at, at, half), 0, 0);
	assert_float_equal(hot_seconds(at + 30000000000, at, half), 30, 1e-3);
	assert_float_equal(hot_seconds(at + half / 2, at - half / 3, half), 30 + 20. / 2, 1e-3);
	assert_float_equal(hot_seconds(at, at - half, half), 60, 1e-3);
	assert_float_equal(hot_seconds(at + 30000000000, 0, half), 30 + 60, 1e-3);
	assert_float_equal(hot_seconds(at, at + 1, half), 0, 0);
}

static void test_refused(void **state)
{
	struct hot_list list;
	char err[256];

	assert_int_equal(hot_read("/sys/fs/bpf/none", &list, err, sizeof(err)), -ENOENT);
	assert_non_null(strstr(err, "cannot open /sys/fs/bpf/none/xkv_config"));
	bed.c->layout++;
	assert_int_equal(hot_read(bed.pin_dir, &list, err, sizeof(err)), -EPROTO);
	bed.c->layout--;
	assert_non_null(strstr(err, "layout"));
}

#define ZIPF_KEYS    100000
#define ZIPF_SAMPLES 10000
#define ZIPF_RATE    64
#define BATCH	     32
#define TOP	     10

/* A datagram with the next keys of the load, whose true counts are taken. */
static struct payload zipf_request(const struct dist *d, struct rng *rng, unsigned int *count)
{
	char key[16];
	struct payload p;
	uint32_t number;

	request_begin(&p, 1, NULL);
	for (int i = 0; i < BATCH; i++) {
		number = dist_next(d, rng);
		count[number]++;
		snprintf(key, sizeof(key), "key:%08u", number);
		request_add(&p, &(struct operation){ XKV_OP_GET, .key = key, .key_len = 12 });
	}
	return p;
}

/* How many keys of the load were used more often than this one. */
static unsigned int rank_of(const struct xkv_hot_key *key, const unsigned int *count)
{
	unsigned int number = (unsigned int)strtoul(key->text + 4, NULL, 10), rank = 0;

	for (unsigned int i = 0; i < ZIPF_KEYS; i++)
		rank += count[i] > count[number];
	return rank;
}

/*
 * Zipf 0.99: 10,000 samples, ten million uses at the default rate, know eight of the ten keys that
 * were used most.
 */
static void test_top_ten(void **state)
{
	unsigned int *count = calloc(ZIPF_KEYS, sizeof(*count)), found = 0;
	struct hot_list list;
	struct payload req;
	struct dist d;
	struct rng rng;
	char err[128];
	unsigned long first;
	double share;

	assert_non_null(count);
	assert_int_equal(dist_parse(&d, "zipf:0.99", err, sizeof(err)), 0);
	dist_init(&d, ZIPF_KEYS);
	rng_seed(&rng, 1);
	sample(ZIPF_RATE);
	for (int i = 0; i < ZIPF_SAMPLES * ZIPF_RATE / BATCH; i++) {
		req = zipf_request(&d, &rng, count);
		ask(&req);
	}
	list = look();
	assert_true(list.count > TOP && list.count <= XKV_HOT_KEYS);
	for (int i = 0; i < TOP; i++)
		found += rank_of(&list.entry[i].key, count) < TOP;
	first = strtoul(list.entry[0].key.text + 4, NULL, 10);
	share = (double)list.entry[0].use.reads / count[first];
	print_message("%u of the true top ten; the first with %.2f times its uses\n", found, share);
	assert_true(found >= 8);
	assert_true(share > 0.7 && share < 1.3);
	hot_free(&list);
	free(count);
}

/* ---- the group ------------------------------------------------------------- */

/* The frames of the driver are one for each CPU. */
static int stay_on_this_cpu(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(sched_getcpu(), &set);
	return sched_setaffinity(0, sizeof(set), &set);
}

static int group_setup(void **state)
{
	open_bed(1000);
	return stay_on_this_cpu();
}

#define CASE(test) cmocka_unit_test_setup(test, setup)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_driver),    CASE(test_driver_many), CASE(test_passed),
		CASE(test_daemon),    CASE(test_own_work),    CASE(test_keys),
		CASE(test_long_keys), CASE(test_rate),	      CASE(test_periodic),
		CASE(test_halved),    CASE(test_seconds),     CASE(test_refused),
		CASE(test_top_ten),
	};

	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("hot", tests, group_setup, close_bed);
}

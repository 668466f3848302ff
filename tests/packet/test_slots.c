// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 20 */
/*
 * Stores that are short of slots or of places in a bucket.  Each case opens a store of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <linux/bpf.h>

#include "bpf/layout.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "loader/util/clock.h"
#include "exchange.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

/* Results and operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

/*
 * A class that has no slot yet, nor any of the next three: SET goes up, and once
 * there is a page, comes through.  xkvd adds one when it answers, and soon
 * after by itself; so each class is met here for the first time.
 */
static void test_no_slot(void **state)
{
	struct payload req = REQUEST(XKV_OP_SET, KEY("a"), VALUE("1"));
	uint64_t begin;

	open_bed(MAX_KEYS);
	goes_up(&req, XKV_C_pass_no_slot);
	assert_int_equal(bed_index_count(&bed), 0);
	xkvd_answers(&req, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
		     COUNTS(XKV_C_inserts));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	/* a move that finds no slot changes nothing */
	req = REQUEST(XKV_OP_SET, KEY("a"), .value = pattern(0), .value_len = 200);
	goes_up(&req, XKV_C_pass_no_slot);
	holds_text("a", "1");
	account();
	xkvd_answers(&req, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
		     COUNTS(XKV_C_moves));
	/* in the middle of a request it ends the reply */
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_PING, 0));
	request_add(&req, OP(XKV_OP_SET, KEY("a"), .value = pattern(0), .value_len = 500));
	answers(&req, RESULTS(PONG), COUNTS(XKV_C_pings));
	holds("a", pattern(0), 200);
	/* the maintenance thread alone makes the slot */
	req = REQUEST(XKV_OP_SET, KEY("a"), .value = pattern(0), .value_len = 1000);
	goes_up(&req, XKV_C_pass_no_slot);
	bed_maintenance(&bed, true);
	begin = store_now_ms(bed.st);
	while (verdict_of(&req, &out) == XDP_PASS)
		assert_true(store_now_ms(bed.st) < begin + 5000);
	holds("a", pattern(0), 1000);
}

/* A page that the kernel refuses leaves nothing behind that walks and readers could meet. */
static void test_page_refused(void **state)
{
	static const uint8_t large[XKV_VALUE_MAX];
	int pages;

	open_bed(MAX_KEYS);
	put("a", large, sizeof(large), 0);
	assert_int_equal(bed.st->mem.pages_used, 1);
	pages = bed.st->bpf.map[BPF_PAGES];
	bed.st->bpf.map[BPF_PAGES] = -1;
	assert_int_equal(store_set(bed.ctx, "b", 1, large, sizeof(large), 0, 0, 0, NULL), -ENOSPC);
	bed.st->bpf.map[BPF_PAGES] = pages;
	assert_int_equal(bed.st->mem.pages, 1);
	assert_int_equal(bed.st->mem.pages_used, 1);
	assert_null(bed.st->mem.page[1]);
	account();
	put("b", large, sizeof(large), 0);
	assert_int_equal(bed.st->mem.pages_used, 2);
	holds("b", large, sizeof(large));
	account();
}

/*
 * A program was interrupted between taking the last slot and counting it: the class is empty all
 * the same, and gets a span.
 */
static void test_free_count_lags(void **state)
{
	static const uint8_t large[20000];
	unsigned int class;

	open_bed(MAX_KEYS);
	class = bed.c->class_of[XKV_SLOT_NEED(1, 100) / 8];
	bed.classes[class].list[0].free = 3;
	put("a", pattern(0), 100, 0);
	holds("a", pattern(0), 100);
	bed.classes[class].list[0].free -= 3;
	account();
	bed.classes[XKV_CLASS_LARGE].list[0].free = 3;
	put("b", large, sizeof(large), 0);
	bed.classes[XKV_CLASS_LARGE].list[0].free -= 3;
	account();
}

/* A request that waits for a span which is never made gives up at its deadline. */
static void test_wait_ends(void **state)
{
	enum { WAIT_MS = 100 };
	uint64_t begin, until_ms = 0;
	unsigned int class = 0;

	open_bed(MAX_KEYS);
	pthread_mutex_lock(&bed.st->mem.units_lock);
	for (uint32_t page, first; units_take(bed.st, 1, &page, &first);)
		;
	pthread_mutex_unlock(&bed.st->mem.units_lock);
	bed.st->maxmemory = 1;
	begin = monotonic_ms();
	assert_int_equal(slots_grow(bed.st, class, 1, &until_ms), -ENOSPC);
	assert_in_range(until_ms, begin + GROW_WAIT_MS, monotonic_ms() + GROW_WAIT_MS);
	bed_maintained(&bed, true); /* by nobody */
	begin = monotonic_ms();
	until_ms = begin + WAIT_MS;
	assert_int_equal(slots_grow(bed.st, class, 1, &until_ms), -ENOSPC);
	assert_in_range(monotonic_ms() - begin, WAIT_MS - 1, 100 * WAIT_MS);
	begin = monotonic_ms();
	assert_int_equal(slots_grow(bed.st, class, 1, &until_ms), -ENOSPC); /* the same request */
	assert_in_range(monotonic_ms() - begin, 0, GROW_WAIT_MS / 2);
	bed_maintained(&bed, false);
}

/* xkvd was killed while it made a span, or freed one: units without an owner are free again. */
static void test_adopt_spans(void **state)
{
	struct xkv_unit *unit;
	uint64_t before, *guard;

	open_bed(MAX_KEYS);
	put_text("key", "value");
	before = units_free(bed.st);
	unit = ((struct xkv_page *)bed.st->mem.page[0])->unit;
	unit[100] = (struct xkv_unit){ .first = 100, .class = 3, .state = XKV_SPAN_NEW };
	unit[101] = (struct xkv_unit){ .first = 100 };
	unit[203] = (struct xkv_unit){ .first = 200 }; /* not named to its end */
	unit[300] = (struct xkv_unit){
		.first = 300, .class = XKV_CLASS_LARGE, .state = XKV_SPAN_DRAINING, .parked = 1
	};
	guard = (uint64_t *)((char *)unit + 301 * XKV_UNIT_BYTES) - 1;
	*guard = XKV_GUARD; /* of a checking build */
	assert_null(bed_adopt(&bed));
	assert_int_equal(units_free(bed.st), before - 1);
	assert_int_equal(drain_run(bed.ctx), 1);
	assert_int_equal(units_free(bed.st), before);
	holds("key", "value", 5);
	account();
}

/* Where only a larger class has a slot, that one serves; a smaller value stays where it is. */
static void test_larger_class(void **state)
{
	struct payload req;

	open_bed(MAX_KEYS);
	put("b", pattern(0), 100, 0); /* need: 24 + 8 + 104 */
	req = REQUEST(XKV_OP_SET, KEY("a"), .value = pattern(0), .value_len = 80);
	assert_int_not_equal(class_of(80), class_of(100));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	assert_int_equal(bed_slot(&bed, "a", 1)->class, bed_slot(&bed, "b", 1)->class);
	holds("a", pattern(0), 80);
	account();
	req = REQUEST(XKV_OP_SET, KEY("b"), VALUE("1"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	holds_text("b", "1");
	account();
	req = REQUEST(XKV_OP_DELETE, KEY("a"));
	answers(&req, RESULTS({ XKV_OP_DELETE }), COUNTS(XKV_C_deletes));
}

/* Makes one more key of a number, "k0", "k1" and so on, with its own name as its value. */
static struct payload set_numbered(char key[16], int number)
{
	snprintf(key, 16, "k%d", number);
	return REQUEST(XKV_OP_SET, KEY(key), VALUE(key));
}

/*
 * An index for 16 keys: many more fit, until a bucket has no room any more.  Then that key goes
 * up, is refused there, and all else still works.
 */
static void test_full(void **state)
{
	int keys = 0, most = 4 * (XKV_CHAIN_MAX + 1) * XKV_WAYS;
	struct payload req, more;
	char key[16];

	open_bed(16);
	warm();
	assert_int_equal(bed.bpf.buckets, 4);
	do
		more = set_numbered(key, keys++);
	while (verdict_of(&more, &out) == XDP_TX);
	assert_int_equal(out.verdict, XDP_PASS);
	assert_in_range(keys, most / 2, most); /* the buckets fill up evenly */
	goes_up(&more, XKV_C_pass_full);
	xkvd_answers(&more, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, XKV_NO_MEMORY }),
		     COUNTS(XKV_C_op_no_memory));
	assert_int_equal(store_set(bed.ctx, key, strlen(key), "1", 1, 0, 0, 0, NULL), -ENOSPC);
	assert_int_equal(bed_index_count(&bed), keys - 1);
	account();
	req = REQUEST(XKV_OP_SET, KEY("k3"), VALUE("2"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	req = REQUEST(XKV_OP_SET, KEY("k3"), .value = pattern(0), .value_len = 1000);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_moves));
	holds("k3", pattern(0), 1000);
	for (int i = 0; i < keys - 1; i++) { /* one of the same bucket makes room */
		snprintf(key, sizeof(key), "k%d", i);
		if (bed_bucket(&bed, key, strlen(key)) !=
		    bed_bucket(&bed, more.byte + 40, more.byte[18]))
			continue;
		req = REQUEST(XKV_OP_DELETE, KEY(key));
		answers(&req, RESULTS({ XKV_OP_DELETE }), COUNTS(XKV_C_deletes));
		break;
	}
	answers(&more, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	account();
}

/* ---- one bucket for all --------------------------------------------------- */

#define BUCKET_KEYS ((XKV_CHAIN_MAX + 1) * XKV_WAYS)

/* Inserts keys from..to - 1 into a chain that has `from` keys and no gaps. */
static void fill_bucket(int from, int to)
{
	struct payload req;
	char key[16];

	for (int i = from; i < to; i++) {
		req = set_numbered(key, i);
		answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
			i && i % XKV_WAYS == 0 ? COUNTS(XKV_C_inserts, XKV_C_chained)
					       : COUNTS(XKV_C_inserts));
		assert_int_equal(bed_chain_count(&bed), i / XKV_WAYS);
		if (i % XKV_WAYS == 0)
			account();
	}
}

static void delete_numbered(int number, bool unchains)
{
	struct payload req;
	char key[16];

	snprintf(key, sizeof(key), "k%d", number);
	req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY(key));
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, key, strlen(key) }),
		unchains ? COUNTS(XKV_C_deletes, XKV_C_unchained) : COUNTS(XKV_C_deletes));
}

static void numbered_hold(int from, int to)
{
	char key[16];

	for (int i = from; i < to; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		holds_text(key, key);
	}
}

/* Keys with one fingerprint live side by side, as many as a chain has room for; the next one is
 * refused. */
static void test_one_bucket(void **state)
{
	struct payload req;
	char key[16];

	open_one_bucket();
	fill_bucket(0, BUCKET_KEYS);
	assert_int_equal(bed_index_count(&bed), BUCKET_KEYS);
	assert_int_equal(bed_chain_count(&bed), XKV_CHAIN_MAX);
	numbered_hold(0, BUCKET_KEYS);
	req = set_numbered(key, BUCKET_KEYS);
	goes_up(&req, XKV_C_pass_full);
	xkvd_answers(&req, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, XKV_NO_MEMORY }),
		     COUNTS(XKV_C_op_no_memory));
	assert_int_equal(store_set(bed.ctx, key, strlen(key), pattern(0), 4096, 0, 0, 0, NULL),
			 -ENOSPC);
	account();
	req = REQUEST(XKV_OP_GET, KEY(key));
	goes_up(&req, XKV_C_pass_miss);
	req = REQUEST(XKV_OP_DELETE, KEY(key));
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	req = REQUEST(XKV_OP_SET, XKV_XX, KEY(key), VALUE("9"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED }), COUNTS(XKV_C_not_stored));
	/* the last one of the chain can all that the first one can */
	req = REQUEST(XKV_OP_GET, KEY("k118"));
	answers(&req, RESULTS({ XKV_OP_GET, 0, "k118", 4, .version = ANY }),
		COUNTS(XKV_C_get_hits));
	req = REQUEST(XKV_OP_SET, XKV_NX, KEY("k118"), VALUE("9"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED, .version = ANY }),
		COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_XX | XKV_RETURN, KEY("k118"), VALUE("9"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, "k118", 4, .version = ANY }),
		COUNTS(XKV_C_overwrites));
	req = REQUEST(XKV_OP_EXPIRE, KEY("k118"), .ttl = 100000);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .ttl = 100000, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	req = REQUEST(XKV_OP_SET, XKV_KEEPTTL, KEY("k118"), .value = pattern(0), .value_len = 500);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_moves, XKV_C_ttls_given));
	holds("k118", pattern(0), 500);
	numbered_hold(0, BUCKET_KEYS - 1);
}

/* A place that became free is taken again; a bucket that became empty leaves the chain, wherever it
 * stands. */
static void test_chain_shrinks(void **state)
{
	static const int buckets[] = { 2, 1, 4,
				       3 }; /* in the middle, the first, the last, the only one */
	int left = 4;
	struct payload req;
	char key[16];

	open_one_bucket();
	fill_bucket(0, 5 * XKV_WAYS);
	delete_numbered(3, false);
	delete_numbered(10, false);
	req = set_numbered(key, 100);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	req = set_numbered(key, 101);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	assert_int_equal(bed_chain_count(&bed), 4);
	delete_numbered(101, false); /* it took the place of k10 */
	req = set_numbered(key, 10);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	for (size_t i = 0; i < 4; i++) {
		for (int way = 0; way < XKV_WAYS; way++)
			delete_numbered(buckets[i] * XKV_WAYS + way, way == XKV_WAYS - 1);
		assert_int_equal(bed_chain_count(&bed), --left);
		account();
		for (size_t other = i + 1; other < 4; other++)
			numbered_hold(buckets[other] * XKV_WAYS, (buckets[other] + 1) * XKV_WAYS);
	}
	numbered_hold(0, 3);
	holds_text("k100", "k100");
	numbered_hold(4, 7);
	for (int i = 0; i < XKV_WAYS; i++) /* the first bucket is empty, and has no chain to lose */
		delete_numbered(i == 3 ? 100 : i, false);
	assert_int_equal(bed_index_count(&bed), 0);
	fill_bucket(0, 3 * XKV_WAYS); /* and all over again */
}

/* Expired entries leave the chain as deleted ones do. */
static void test_chain_expires(void **state)
{
	uint64_t before[XKV_COUNTER_COUNT], after[XKV_COUNTER_COUNT];
	char key[16];

	open_one_bucket();
	for (int i = 0; i < 3 * XKV_WAYS; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		put(key, key, strlen(key), i / XKV_WAYS == 1 ? 1000 : 0);
	}
	bed_counters(&bed, before);
	assert_int_equal(expire_all(), XKV_WAYS);
	bed_counters(&bed, after);
	assert_int_equal(after[XKV_C_expires] - before[XKV_C_expires], XKV_WAYS);
	assert_int_equal(after[XKV_C_unchained] - before[XKV_C_unchained], 1);
	assert_int_equal(bed_chain_count(&bed), 1);
	numbered_hold(0, XKV_WAYS);
	numbered_hold(2 * XKV_WAYS, 3 * XKV_WAYS);
}

/* The slot for a further bucket may be what is missing: the SET goes up, and nothing is half done.
 */
static void test_chain_no_slot(void **state)
{
	struct payload req;
	char key[16];

	open_bed(MAX_KEYS);
	bed.c->fingerprint_mask = 0;
	put("warm", "1", 1, 0);
	assert_int_equal(store_delete(bed.ctx, "warm", 4, NULL), 0);
	fill_bucket(0, XKV_WAYS);
	req = set_numbered(key, XKV_WAYS);
	goes_up(&req, XKV_C_pass_no_slot);
	goes_up(&req, XKV_C_pass_no_slot);
	is_gone(key);
	account();
	xkvd_answers(&req, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
		     COUNTS(XKV_C_inserts, XKV_C_chained));
	numbered_hold(0, XKV_WAYS + 1);
}

/*
 * The entry and its chain bucket need a slot of the same class, which has one: xkvd gets another
 * one for the bucket.
 */
static void test_chain_of_the_same_class(void **state)
{
	size_t len = sizeof(struct xkv_chain) - XKV_SLOT_NEED(8, 0);
	unsigned int class, keys = 0;
	char key[16];

	open_bed(MAX_KEYS);
	bed.c->fingerprint_mask = 0;
	class = bed.c->class_of[sizeof(struct xkv_chain) / 8];
	do {
		snprintf(key, sizeof(key), "same%u", keys++);
		put(key, pattern(0), len, 0);
	} while (bed.classes[class].list[0].free != 1);
	for (; keys % XKV_WAYS; keys++) { /* a full bucket */
		snprintf(key, sizeof(key), "other%u", keys);
		put(key, key, strlen(key), 0);
	}
	assert_int_equal(bed.classes[class].list[0].free, 1);
	put("the last", pattern(0), len, 0);
	holds("the last", pattern(0), len);
	account();
}

/* While a bucket is locked, only requests that have to change it, too, are passed on. */
static void test_locked_bucket(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, KEY("a"), VALUE("2")),
		       get = REQUEST(XKV_OP_GET, KEY("a")),
		       expire = REQUEST(XKV_OP_EXPIRE, KEY("a"), .ttl = 100000),
		       insert = REQUEST(XKV_OP_SET, KEY("b"), VALUE("2")),
		       move = REQUEST(XKV_OP_SET, KEY("a"), .value = pattern(0), .value_len = 900),
		       del = REQUEST(XKV_OP_DELETE, KEY("a"));
	uint64_t before[XKV_COUNTER_COUNT];
	struct xkv_bucket *bucket;

	open_one_bucket();
	put_text("a", "1");
	bucket = bed_bucket(&bed, "a", 1);
	bucket->head |= XKV_BUCKET_LOCK;
	answers(&get, RESULTS({ XKV_OP_GET, 0, "1", 1, .version = ANY }), COUNTS(XKV_C_get_hits));
	answers(&set, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	answers(&expire, RESULTS({ XKV_OP_EXPIRE, 0, .ttl = 100000, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	goes_up(&insert, XKV_C_pass_busy);
	goes_up(&move, XKV_C_pass_busy);
	goes_up(&del, XKV_C_pass_busy);
	bed_counters(&bed, before);
	bed_impatient(&bed, true);
	assert_int_equal(store_delete(bed.ctx, "a", 1, NULL), -EBUSY);
	bed_impatient(&bed, false);
	count_check(before, COUNTS(XKV_C_op_busy));
	holds_text("a", "2");
	bucket->head &= ~XKV_BUCKET_LOCK;
	account();
	answers(&insert, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	answers(&move, RESULTS({ XKV_OP_SET, 0, .ttl = 0, .version = ANY }), COUNTS(XKV_C_moves));
	answers(&del, RESULTS({ XKV_OP_DELETE }), COUNTS(XKV_C_deletes));
	holds_text("b", "2");
}

/* ---- several free lists of a class -------------------------------------------- */

#define LISTS	    8
#define LIST_VALUE  100 /* bytes */
#define LIST_TURNS  2000
#define LIST_KEYS   40 /* of a thread */
#define LIST_KEYLEN 6

static void list_key(char key[16], char who, unsigned int n)
{
	snprintf(key, 16, "%c%05u", who, n);
}

/* SET by the driver or by xkvd: was it done?  The value tells the key. */
static bool list_set(struct store_ctx *ctx, bool driver, char who, unsigned int n)
{
	static _Thread_local struct outcome done;
	uint8_t value[LIST_VALUE] = { 0 };
	struct payload req;
	char key[16];

	list_key(key, who, n);
	memcpy(value, key, LIST_KEYLEN);
	if (!driver)
		return !store_set(ctx, key, LIST_KEYLEN, value, sizeof(value), 0, 0, 0, NULL);
	request_begin(&req, ID, NULL);
	request_add(&req, &(struct operation){ .opcode = XKV_OP_SET,
					       .key = key,
					       .key_len = LIST_KEYLEN,
					       .value = value,
					       .value_len = sizeof(value) });
	return verdict_of(&req, &done) == XDP_TX;
}

static bool list_holds(struct store_ctx *ctx, char who, unsigned int n)
{
	struct store_entry e;
	char key[16];

	list_key(key, who, n);
	return !store_get(ctx, key, LIST_KEYLEN, &e) && e.value_len == LIST_VALUE &&
	       !memcmp(e.value, key, LIST_KEYLEN);
}

static bool list_delete(struct store_ctx *ctx, char who, unsigned int n)
{
	char key[16];

	list_key(key, who, n);
	return !store_delete(ctx, key, LIST_KEYLEN, NULL);
}

/* The only list that has slots of a class; there has to be one. */
static unsigned int only_list(const struct xkv_class *c)
{
	unsigned int found = XKV_LISTS;

	for (unsigned int i = 0; i < XKV_LISTS; i++) {
		if (!c->list[i].free)
			continue;
		assert_int_equal(found, XKV_LISTS);
		found = i;
	}
	assert_int_not_equal(found, XKV_LISTS);
	return found;
}

/* While nobody uses them: the slots of one list are another's. */
static void move_list(struct xkv_class *c, unsigned int from, unsigned int to)
{
	struct xkv_list moved = c->list[from];

	if (from == to)
		return;
	c->list[from] = c->list[to];
	c->list[to] = moved;
}

/* A store with slots of one class, and no memory for more.  Returns the class. */
static struct xkv_class *open_lists(void)
{
	struct xkv_class *c;

	open_bed(MAX_KEYS);
	bed.c->list_mask = LISTS - 1;
	assert_true(list_set(bed.ctx, false, 'a', 0));
	assert_true(list_delete(bed.ctx, 'a', 0));
	bed.st->no_slot = no_room;
	c = &bed.classes[bed.c->class_of[XKV_SLOT_NEED(LIST_KEYLEN, LIST_VALUE) / 8]];
	return c;
}

/* Whatever list free slots are in, each is found, handed out once, and given to the own. */
static void test_each_list(void **state)
{
	struct xkv_class *c = open_lists();
	uint64_t slots = 0;
	cpu_set_t all, one;
	int last = 0;

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		last = CPU_ISSET(cpu, &all) ? cpu : last;
	CPU_ZERO(&one);
	CPU_SET(last, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	while (list_set(bed.ctx, false, 'a', (unsigned int)slots))
		slots++;
	assert_in_range(slots, 2 * LISTS, MAX_KEYS);
	for (unsigned int n = 0; n < slots; n++)
		assert_true(list_delete(bed.ctx, 'a', n));
	for (unsigned int list = 0; list < LISTS; list++) {
		move_list(c, only_list(c), list);
		for (unsigned int n = 0; n < slots; n++) {
			assert_int_equal(c->list[list].free, slots - n);
			assert_true(list_set(bed.ctx, n & 1, 'a', n));
		}
		assert_int_equal(xkv_class_free(c), 0);
		assert_false(list_set(bed.ctx, false, 'b', 0));
		assert_false(list_set(bed.ctx, true, 'b', 0));
		for (unsigned int n = 0; n < slots; n++)
			assert_true(list_holds(bed.ctx, 'a', n));
		account();
		for (unsigned int n = 0; n < slots; n++)
			assert_true(list_delete(bed.ctx, 'a', n));
		assert_int_equal(only_list(c), last & (LISTS - 1));
		assert_int_equal(xkv_class_free(c), slots);
		account();
	}
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

/* Sets keys and deletes them, on a CPU of its own if there is one. */
static void *take_and_give(void *arg)
{
	unsigned int who = (unsigned int)(uintptr_t)arg;
	struct store_ctx *ctx = store_ctx_get(bed.st);
	bool well = ctx;

	for (unsigned int turn = 0; well && turn < LIST_TURNS; turn++) {
		unsigned int have = 0;

		while (have < LIST_KEYS && list_set(ctx, false, (char)('a' + who), have))
			have++;
		for (unsigned int n = 0; well && n < have; n++)
			well = list_holds(ctx, (char)('a' + who), n) &&
			       list_delete(ctx, (char)('a' + who), n);
		if (turn % 16 == who) /* the lists change places under their users */
			bed.c->list_mask = turn & 16 ? LISTS - 1 : 1;
	}
	store_ctx_put(ctx);
	return well ? NULL : "an entry was lost, or had another's value";
}

/* Threads take from one another's lists and give back: nothing is lost, nor had twice. */
static void test_lists_of_many(void **state)
{
	struct xkv_class *c = open_lists();
	uint64_t slots = xkv_class_free(c);
	pthread_t thread[4];
	void *failed;

	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, take_and_give, (void *)i), 0);
	for (unsigned int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(thread[i], &failed), 0);
		if (failed)
			print_error("%s\n", (const char *)failed);
		assert_null(failed);
	}
	bed.c->list_mask = LISTS - 1;
	assert_int_equal(xkv_class_free(c), slots);
	account();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		OWN(test_no_slot),	 OWN(test_page_refused),  OWN(test_free_count_lags),
		OWN(test_wait_ends),	 OWN(test_adopt_spans),	  OWN(test_larger_class),
		OWN(test_full),		 OWN(test_one_bucket),	  OWN(test_chain_shrinks),
		OWN(test_chain_expires), OWN(test_chain_no_slot), OWN(test_chain_of_the_same_class),
		OWN(test_locked_bucket), OWN(test_each_list),	  OWN(test_lists_of_many),
	};

	return bed_begin(argc, argv) ?: BOTH_WAYS("slots", tests, NULL);
}

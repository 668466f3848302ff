/* SPDX-License-Identifier: BSD-2-Clause */
/* tests/run: seconds 28 */
/*
 * Memory under pressure: spans and units that are short, in pieces, or about to be of another size,
 * on a store of a few pages whose maintenance the test does itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bpf/layout.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "loader/store/txn.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

static char value[XKV_VALUE_MAX];

static int setup(void **state)
{
	open_bed(65536);
	memset(value, 'v', sizeof(value));
	return 0;
}

static int set(const char *prefix, unsigned int n, size_t len)
{
	char key[32];

	snprintf(key, sizeof(key), "%s%u", prefix, n);
	return store_set(bed.ctx, key, strlen(key), value, len, 0, 0, 0, NULL);
}

static int drop(const char *prefix, unsigned int n)
{
	char key[32];

	snprintf(key, sizeof(key), "%s%u", prefix, n);
	return store_delete(bed.ctx, key, strlen(key), NULL);
}

/* So many pages, and no more. */
static void limit_pages(unsigned int pages)
{
	store_limit(bed.st, 0, STORE_NOEVICTION);
	while (bed.st->mem.pages_used < pages)
		assert_true(pages_add(bed.st, pages - bed.st->mem.pages_used) > 0);
	store_limit(bed.st, store_memory(bed.st), STORE_NOEVICTION);
}

/* Sets keys of this size until there is no room: how many. */
static unsigned int fill(const char *prefix, size_t len)
{
	unsigned int n = 0;
	int ret;

	for (ret = 0; !ret; n++)
		ret = set(prefix, n, len);
	assert_int_equal(ret, -ENOSPC);
	return n - 1;
}

static struct span span_of(const char *key)
{
	uint64_t ref = bed_ref(&bed, bed_slot(&bed, key, strlen(key)));
	struct span s;

	assert_true(span_of_ref(bed.st, ref, &s));
	return s;
}

/* ---- xkvd is killed ------------------------------------------------------ */

static atomic_bool seen_empty, watch_ends;

static void *watcher(void *arg)
{
	struct xkv_request *f = arg;

	while (!atomic_load(&watch_ends))
		if (!__atomic_load_n(&f->prefilled, __ATOMIC_RELAXED))
			atomic_store(&seen_empty, true);
	return NULL;
}

/* At no instant of making a request does the frame forget the slot that it holds. */
static void test_prefilled_stays(void **state)
{
	struct xkv_request *f = bed.ctx->request;
	pthread_t thread;

	f->prefilled = 1;
	atomic_store(&seen_empty, false);
	atomic_store(&watch_ends, false);
	assert_int_equal(pthread_create(&thread, NULL, watcher, f), 0);
	for (int i = 0; i < 500000; i++)
		request_make(bed.ctx, 0, XKV_OP_SET, 0, "key", 3);
	atomic_store(&watch_ends, true);
	pthread_join(thread, NULL);
	f->prefilled = 0;
	assert_false(atomic_load(&seen_empty));
}

/* ---- what units were used for before --------------------------------------- */

/* In a span that is being made stands what its units held before: no orphans of another size. */
static void test_new_span_is_nobodys(void **state)
{
	struct xkv_unit *unit;
	struct xkv_slot *slot;

	assert_int_equal(set("key", 0, 5), 0);
	unit = ((struct xkv_page *)bed.st->mem.page[0])->unit;
	slot = (struct xkv_slot *)((char *)unit + 100 * XKV_UNIT_BYTES);
	*slot = (struct xkv_slot){ .seq = 1, .class = 2 | XKV_CLASS_ORPHAN };
	unit[100] = (struct xkv_unit){ .first = 100, .class = 3, .state = XKV_SPAN_NEW };
	bed.st->drain.orphans_seen = ~0ULL;
	free_orphans(bed.st);
	assert_int_equal(slot->class, 2 | XKV_CLASS_ORPHAN);
	unit[100] = (struct xkv_unit){ 0 };
	account();
}

struct forgery {
	struct store_ctx *ctx;
	char name[2][8];
	struct xkv_slot *slot[2], before;
	int forged, wrong;
};

/*
 * While the walk does not hold the pages, the other key moves, and a client's value takes its
 * units: any bytes.
 */
static int forge(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	struct forgery *f = arg;
	int other;

	if (key_len == 5 && entry->value_len == 5 && !memcmp(entry->value, "false", 5))
		f->wrong++;
	if (f->forged >= 0)
		return 0;
	other = !memcmp(key, f->name[0], key_len);
	f->forged = other;
	assert_int_equal(store_set(f->ctx, f->name[other], 5, value, 500, 0, 0, 0, NULL), 0);
	f->before = *f->slot[other];
	memcpy((char *)(f->slot[other] + 1) + 8, "false", 5);
	f->slot[other]->key_len = 5;
	f->slot[other]->value_len = 5;
	f->slot[other]->expire_ms = 0;
	f->slot[other]->seq = 2;
	bed.st->mem.units_retired++;
	return 0;
}

static void test_walk_over_units_that_were_freed(void **state)
{
	struct forgery f = { .ctx = store_ctx_get(bed.st), .forged = -1 };
	uint64_t cursor = 0;

	bed.c->bucket_mask = 63;
	snprintf(f.name[0], sizeof(f.name[0]), "k%04d", 0);
	for (int i = 1; i < 10000; i++) { /* in whose bucket another falls */
		snprintf(f.name[1], sizeof(f.name[1]), "k%04d", i);
		if (bed_bucket(&bed, f.name[1], 5) == bed_bucket(&bed, f.name[0], 5))
			break;
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(store_set(f.ctx, f.name[i], 5, "right", 5, 0, 0, 0, NULL), 0);
		f.slot[i] = bed_slot(&bed, f.name[i], 5);
	}
	do {
		assert_int_equal(store_scan(bed.ctx, &cursor, 1000, true, forge, &f), 0);
	} while (cursor);
	assert_true(f.forged >= 0);
	assert_int_equal(f.wrong, 0);
	*f.slot[f.forged] = f.before;
	store_ctx_put(f.ctx);
	account();
}

/* ---- one size waits for another -------------------------------------------- */

/*
 * A span drains, and others take the slots that its entries were to move to.  It waits for room;
 * another class has plenty, which serves the requests, and the span, too.
 */
static void test_draining_does_not_block_others(void **state)
{
	unsigned int many;
	struct span s;

	limit_pages(1);
	assert_int_equal(set("few", 0, 1000), 0);
	many = fill("many", 300);
	fill("few.", 1000);
	s = span_of("few0");
	drain_begin(bed.st, &s);
	assert_int_equal(drain_run(bed.ctx), 0);
	for (unsigned int n = 0; n < many; n += 2)
		assert_int_equal(drop("many", n), 0);
	assert_int_equal(set("other", 0, 5000), 0);
	drain_run(bed.ctx);
	assert_int_equal(bed.st->drain.count, 0);
	account();
}

/*
 * What was deleted while a span drained was parked.  If there is no room for the rest of the span,
 * it stays in use, and a new key finds the slot.
 */
static void test_draining_is_given_up(void **state)
{
	struct xkv_unit *head;
	unsigned int many;
	struct span s;

	limit_pages(1);
	many = fill("many", 300);
	s = span_of("many0");
	head = span_head(&s);
	drain_begin(bed.st, &s);
	for (unsigned int n = 0; n < 3; n++)
		assert_int_equal(drop("many", n), 0);
	assert_int_equal(head->parked, 3);
	assert_int_equal(drain_run(bed.ctx), 0);
	assert_int_equal(head->state, XKV_SPAN_LINKED);
	assert_int_equal(head->parked, 0);
	assert_int_equal(fill("new", 300), 3);
	assert_int_equal(store_count(bed.st), many);
	account();
}

/* xkvd was killed when it had given some of the parked slots back, but not all. */
static void test_giving_up_goes_on(void **state)
{
	struct xkv_slot *slot;
	unsigned int many;
	struct span s;

	limit_pages(1);
	many = fill("many", 300);
	s = span_of("many0");
	slot = bed_slot(&bed, "many0", 5);
	drain_begin(bed.st, &s);
	assert_int_equal(drop("many", 0), 0);
	assert_int_equal(slot->key_len, XKV_KEY_PARKED);
	span_head(&s)->state = XKV_SPAN_LINKED;
	bed.st->drain.count = 0;
	assert_int_equal(drop("many", 1), 0);
	span_head(&s)->parked = 2;
	account(); /* nothing is lost meanwhile */
	assert_int_equal(drain_adopt(bed.st), 0);
	assert_int_equal(span_head(&s)->parked, 0);
	assert_int_equal(fill("new", 300), 2);
	assert_int_equal(store_count(bed.st), many);
	account();
}

/*
 * All memory is in slots of one size.  A new key may need a chain bucket, too, which is much
 * smaller: two keys less are room enough.
 */
static void test_chain_bucket_in_a_larger_slot(void **state)
{
	unsigned int rest = 0;

	bed.c->bucket_mask = 1023;
	limit_pages(1);
	fill("many", 300);
	for (unsigned int n = 0; n < 400; n++) {
		while (!set("rest", rest, 50)) /* all that is free */
			rest++;
		assert_int_equal(drop("many", 2 * n), 0);
		assert_int_equal(drop("many", 2 * n + 1), 0);
		assert_int_equal(set("new", n, 300), 0);
	}
	account();
}

/* The first span of this class that a chain bucket stands in. */
static bool span_with_chain(unsigned int class, struct span *s)
{
	struct slot_cursor hand = { 0 };

	for (; cursor_span(bed.st, &hand, s); hand.unit += s->units, hand.slot = 0)
		for (unsigned int i = 0; s->class == class && i < s->slots; i++)
			if (span_slot(s, i)->key_len == XKV_KEY_CHAIN)
				return true;
	return false;
}

/*
 * A chain bucket stands in a slot for entries.  The span of that slot can be emptied: there are
 * others of its size.
 */
static void test_spare_slots_can_be_emptied(void **state)
{
	unsigned int many, rest = 0, class = class_for(bed.st, XKV_SLOT_NEED(8, 300));
	uint64_t heads[XKV_CLASSES_TRIED][2];
	struct span s;

	bed.c->bucket_mask = 1023;
	limit_pages(1);
	many = fill("many", 300);
	for (unsigned int n = 0; n < 100; n++) {
		while (!set("rest", rest, 50))
			rest++;
		assert_int_equal(drop("many", 2 * n), 0);
		assert_int_equal(drop("many", 2 * n + 1), 0);
		assert_int_equal(set("new", n, 300), 0);
	}
	assert_true(span_with_chain(class, &s));
	for (unsigned int n = 200; n < many; n += 4)
		assert_int_equal(drop("many", n), 0);
	assert_true(span_with_chain(class, &s));
	class = class_for(bed.st, sizeof(struct xkv_chain));
	for (unsigned int i = 0; i < XKV_CLASSES_TRIED; i++) { /* none has any */
		heads[i][0] = bed.classes[class + i].list[0].head[0];
		heads[i][1] = bed.classes[class + i].list[0].head[1];
		bed.classes[class + i].list[0].head[0] = bed.classes[class + i].list[0].head[1] = 0;
	}
	assert_true(drain_begin(bed.st, &s));
	assert_int_equal(drain_run(bed.ctx), s.units);
	for (unsigned int i = 0; i < XKV_CLASSES_TRIED; i++) {
		bed.classes[class + i].list[0].head[0] = heads[i][0];
		bed.classes[class + i].list[0].head[1] = heads[i][1];
	}
	account();
}

/*
 * A large value that finds no room elsewhere is not copied again and again: its span is in use, as
 * before.
 */
static void test_large_value_is_given_up(void **state)
{
	struct span s;

	limit_pages(1);
	fill("some", 200000);
	s = span_of("some0");
	assert_true(drain_begin(bed.st, &s));
	assert_int_equal(drain_run(bed.ctx), 0);
	assert_int_equal(bed.st->drain.count, 0);
	assert_int_equal(span_head(&s)->state, XKV_SPAN_LINKED);
	assert_int_equal(drop("some", 0), 0);
	assert_int_equal(set("other", 0, 200000), 0);
	account();
}

/* A free slot of a large value whose span cannot be emptied now is left where it is. */
static void test_draining_large_ends(void **state)
{
	struct span s;

	assert_int_equal(set("some", 0, 20000), 0);
	s = span_of("some0");
	assert_int_equal(drop("some", 0), 0);
	span_head(&s)->state = XKV_SPAN_NEW;
	alarm(10);
	assert_int_equal(drain_large(bed.ctx), -ENOMEM);
	alarm(0);
	span_head(&s)->state = XKV_SPAN_LINKED;
	assert_int_equal(drain_large(bed.ctx), 0);
	assert_int_equal(bed.st->drain.count, 1);
	drain_run(bed.ctx);
	account();
}

/* ---- units in a row -------------------------------------------------------- */

#define SCATTERED 8 /* free units, of the smallest classes */

/*
 * Free units lie one by one between others: slots that need some in a row find room all the same.
 */
static void test_room_for_slots_of_several_units(void **state)
{
	unsigned int keep = class_for(bed.st, XKV_SLOT_NEED(8, 136)), kept = 0, chains = 0;
	struct span s;

	limit_pages(1);
	for (unsigned int class = 0; class < SCATTERED; class ++) {
		assert_int_equal(
			set("s", class, bed.st->classes[class].slot_bytes - XKV_SLOT_NEED(8, 0)),
			0);
		assert_int_equal(bed.st->mem.class[class].units, 1);
		do
			assert_int_equal(set("keep", kept++, 136), 0);
		while (!class_is_empty(bed.st, keep));
	}
	fill("rest", 136);
	for (unsigned int class = 0; class < SCATTERED; class ++) {
		assert_int_equal(drop("s", class), 0);
		bed_drain(&bed, bed.ctx, class, 1);
		chains += span_with_chain(class, &s); /* the hash is another one in each run */
	}
	assert_in_range(chains, 0, 1);
	assert_int_equal(units_free(bed.st), SCATTERED - chains);
	assert_int_equal(set("other", 0, 15000), 0);
	account();
}

/*
 * Half of the store is free, between large values that lie everywhere: the largest one finds room
 * all the same.
 */
static void test_room_between_large_values(void **state)
{
	unsigned int count;

	limit_pages(4);
	count = fill("some", 20000);
	for (unsigned int n = 0; n < count; n += 2)
		assert_int_equal(drop("some", n), 0);
	for (unsigned int n = 0; n < 2; n++)
		assert_int_equal(set("largest", n, XKV_VALUE_MAX), 0);
	for (unsigned int n = 1; n < count; n += 2)
		assert_int_equal(drop("some", n), 0);
	account();
}

/*
 * Half of the values go, at random, of a store that is full of them: nearly all of their room is
 * found by larger ones.
 */
static void test_room_in_pieces(void **state)
{
	unsigned int count = 0, larger = 0, units = 50;
	uint64_t free;

	limit_pages(8);
	srand(5);
	while (!set("some", count, 17000 + rand() % 60000))
		count++;
	for (unsigned int n = 0; n < count; n++)
		if (rand() & 1)
			assert_int_equal(drop("some", n), 0);
	drain_large(bed.ctx);
	drain_run(bed.ctx);
	free = units_free(bed.st);
	bed.st->maint.compact_failed.ms = 0; /* no pause, however long the first values took */
	while (!set("larger", larger, units * XKV_UNIT_BYTES - 100))
		larger++;
	assert_true(larger * units > free * 4 / 5);
	account();
}

/*
 * A store full of small entries: the largest value gets its units by eviction, within few grace
 * periods.
 */
static void test_room_by_eviction(void **state)
{
	uint64_t before;

	limit_pages(4);
	store_limit(bed.st, bed.st->maxmemory, STORE_ALLKEYS_LRU);
	for (unsigned int n = 0; n < 4 * XKV_PAGE_BYTES / 160; n++)
		assert_int_equal(set("small", n, 100), 0);
	before = bed.st->mem.units_retired;
	for (unsigned int n = 0; n < 3; n++)
		assert_int_equal(set("largest", n, XKV_VALUE_MAX), 0);
	assert_in_range(bed.st->mem.units_retired - before, 1, 50); /* a release each */
	account();
}

/* ---- waiting for room ------------------------------------------------------------- */

static void *wait_for_units(void *arg)
{
	uint64_t until_ms = 0;

	return (void *)(intptr_t)slots_grow(bed.st, XKV_CLASS_LARGE, (uintptr_t)arg, &until_ms);
}

/* Two wait together: that there is no room for the larger value is no answer to the other. */
static void test_waiting_for_less(void **state)
{
	struct need *n = &bed.st->maint.need[XKV_CLASS_LARGE];
	pthread_t larger, smaller;
	bool posted = false;
	void *ret;

	limit_pages(1);
	assert_int_equal(set("some", 0, 20000), 0);
	fill("more", 1000);
	assert_int_equal(drop("some", 0), 0);
	bed_maintained(&bed, true);
	assert_int_equal(pthread_create(&larger, NULL, wait_for_units, (void *)200), 0);
	assert_int_equal(pthread_create(&smaller, NULL, wait_for_units, (void *)5), 0);
	while (!posted) {
		pthread_mutex_lock(&bed.st->maint.need_lock);
		posted = n->posted == 2;
		pthread_mutex_unlock(&bed.st->maint.need_lock);
		sched_yield();
	}
	while (pthread_tryjoin_np(smaller, &ret)) {
		maintenance_serve(bed.st);
		sched_yield();
	}
	assert_int_equal((intptr_t)ret, 0);
	pthread_join(larger, &ret); /* the answer may be for less room: then it would ask again */
	bed_maintained(&bed, false);
}

/* ---- slots in hand --------------------------------------------------------- */

/* What a transaction has kept for the next one is memory for others when there is no more. */
static void test_hand_is_memory(void **state)
{
	unsigned int many = XKV_TXN_HAND + 4;

	limit_pages(1);
	fill("key", 100);
	for (unsigned int n = 0; n < many; n++)
		assert_int_equal(drop("key", 100 + n), 0);
	assert_int_equal(store_txn_begin(bed.ctx), 0);
	for (unsigned int n = 0; n < XKV_TXN_HAND; n++)
		assert_int_equal(set("key", n, 100), 0);
	assert_int_equal(store_txn_commit(bed.ctx), 0);
	assert_true(bed.st->txn_key[0].prefilled);
	assert_int_equal(fill("new", 100), many);
	account();
}

/* What found no span to drain is tried again when slots became free, not by each refused write. */
static void test_refused_writes_do_not_walk(void **state)
{
	uint64_t walks;

	limit_pages(2);
	fill("key", 100);
	assert_int_equal(set("no", 0, 100), -ENOSPC);
	walks = bed.st->maint.none.walks;
	for (unsigned int n = 0; n < 100; n++)
		assert_int_equal(set("no", n, 100), -ENOSPC);
	assert_int_equal(bed.st->maint.none.walks, walks);
	for (unsigned int n = 0; n < 5000; n++)
		assert_int_equal(drop("key", n), 0);
	assert_int_equal(set("other", 0, 2000), 0);
	assert_true(bed.st->maint.none.walks > walks);
	account();
}

/* ---- a load that begins --- */

/* Several pages are published with the lock. */
static void has_pages(unsigned int pages)
{
	unsigned int used = 0;

	while (used < pages) {
		sched_yield();
		pthread_mutex_lock(&bed.st->mem.units_lock);
		used = bed.st->mem.pages_used;
		pthread_mutex_unlock(&bed.st->mem.units_lock);
	}
	assert_int_equal(used, pages);
}

/* Memory is made before it is wanted, as much as is expected, and as maxmemory allows. */
static void test_memory_is_made_ahead(void **state)
{
	unsigned int begin = bed.st->mem.pages_used;

	limit_pages(begin + 2);
	store_expect(bed.st, 30 * XKV_PAGE_BYTES);
	bed_maintenance(&bed, true);
	has_pages(begin + 2);
	store_expect(bed.st, 6 * XKV_PAGE_BYTES);
	store_limit(bed.st, 0, STORE_NOEVICTION);
	has_pages(begin + 6);
	store_expect(bed.st, 100 * XKV_PAGE_BYTES); /* but no more than 32 at a time */
	has_pages(begin + 32);
	bed_maintenance(&bed, false);
	account();
}

/* ---- a lower limit --------------------------------------------------------- */

/* What is above a maxmemory that was lowered goes, without any write; what may not go stays. */
static void test_lower_limit(void **state)
{
	uint64_t begin, lower, count;

	limit_pages(2);
	lower = bed.st->maxmemory;
	limit_pages(4);
	for (unsigned int n = 0; n < 1800; n++)
		assert_int_equal(set("key", n, 4000), 0);
	count = store_count(bed.st);
	store_limit(bed.st, lower, STORE_VOLATILE_LRU);
	bed_maintenance(&bed, true);
	while (!store_counter(bed.st, "evictions") && bed.st->maint.large_quiet < 1)
		sched_yield();
	assert_int_equal(store_count(bed.st), count);
	store_limit(bed.st, lower, STORE_ALLKEYS_LRU);
	begin = store_now_ms(bed.st);
	while (store_memory(bed.st) > lower)
		assert_true(store_now_ms(bed.st) < begin + 10000);
	bed_maintenance(&bed, false);
	assert_in_range(store_count(bed.st), count / 4, count * 3 / 4);
	account();
}

/* Lowers the limit to `lower`, and waits until the store is below. */
static void shrinks_to(uint64_t lower)
{
	uint64_t begin = store_now_ms(bed.st);

	store_limit(bed.st, lower, STORE_ALLKEYS_LRU);
	bed_maintenance(&bed, true);
	while (store_memory(bed.st) > lower)
		assert_true(store_now_ms(bed.st) < begin + 20000);
	bed_maintenance(&bed, false);
	account();
}

/* Small entries, with or without a large value, again after an adoption and when all are gone. */
static void test_lower_limit_of_small_entries(void **state)
{
	uint64_t low, middle;

	limit_pages(4);
	low = bed.st->maxmemory;
	limit_pages(7);
	middle = bed.st->maxmemory;
	for (int large = 1; large >= 0; large--) {
		limit_pages(12);
		if (large)
			assert_int_equal(set("large", 0, 1000000), 0);
		fill("key", 50);
		shrinks_to(middle);
		assert_null(bed_adopt(&bed));
		shrinks_to(low);
		assert_int_equal(store_flush(bed.ctx), 0);
	}
}

/* Pages of two large values each, which fit nowhere else, although enough units are free in all. */
static void test_lower_limit_of_large_values(void **state)
{
	uint64_t lower;

	limit_pages(10);
	lower = bed.st->maxmemory;
	limit_pages(80);
	fill("large", 900000);
	shrinks_to(lower);
	assert_in_range(store_count(bed.st), 5, 20);
}

/* ---- expiry ---------------------------------------------------------------- */

/* The walk for expired keys rests while no key has an expiry, and goes on when one gets one. */
static void test_expiry_rests(void **state)
{
	assert_false(store_expiry_rests(bed.st));
	assert_int_equal(set("key", 0, 5), 0);
	for (int i = 0; i < 2; i++) /* a turn that met none, and one for what came meanwhile */
		store_expire_cycle(bed.ctx, 1000);
	assert_true(store_expiry_rests(bed.st));
	assert_int_equal(set("key", 1, 5), 0);
	assert_true(store_expiry_rests(bed.st));
	assert_int_equal(store_expire(bed.ctx, "key1", 4, store_now_ms(bed.st) + 1), 0);
	assert_false(store_expiry_rests(bed.st));
	while (store_count(bed.st) > 1)
		store_expire_cycle(bed.ctx, 1000);
	for (int i = 0; i < 2; i++)
		store_expire_cycle(bed.ctx, 1000);
	assert_true(store_expiry_rests(bed.st));
	account();
}

int main(int argc, char **argv)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, close_bed)
	const struct CMUnitTest tests[] = {
		CASE(test_prefilled_stays),
		CASE(test_new_span_is_nobodys),
		CASE(test_walk_over_units_that_were_freed),
		CASE(test_draining_does_not_block_others),
		CASE(test_draining_is_given_up),
		CASE(test_giving_up_goes_on),
		CASE(test_chain_bucket_in_a_larger_slot),
		CASE(test_spare_slots_can_be_emptied),
		CASE(test_large_value_is_given_up),
		CASE(test_draining_large_ends),
		CASE(test_room_for_slots_of_several_units),
		CASE(test_room_between_large_values),
		CASE(test_room_in_pieces),
		CASE(test_room_by_eviction),
		CASE(test_waiting_for_less),
		CASE(test_hand_is_memory),
		CASE(test_refused_writes_do_not_walk),
		CASE(test_memory_is_made_ahead),
		CASE(test_lower_limit),
		CASE(test_lower_limit_of_small_entries),
		CASE(test_lower_limit_of_large_values),
		CASE(test_expiry_rests),
	};

	return bed_begin(argc, argv) ?: cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}

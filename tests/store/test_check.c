// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 14 */
/*
 * Does `xkv check` find what it is there to find?  A store with chains is
 * damaged by hand in one way after the other; each has to be reported, and nothing
 * once it is mended.  And it has to be quiet about a store that is at work.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf/layout.h"
#include "client/check.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "loader/store/longkey.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

#define KEYS		 60 /* in one bucket and its chain */
#define WALKS		 3
#define BUSY_MS		 1000
#define BUSY_PATIENCE_MS 60000

static struct check_sums sums;

/* ---- the store ----------------------------------------------------------- */

static const char *name(unsigned int key)
{
	static char text[16];

	snprintf(text, sizeof(text), "key%u", key);
	return text;
}

static struct xkv_slot *key_slot(unsigned int key)
{
	return bed_slot(&bed, name(key), strlen(name(key)));
}

static struct xkv_bucket *home(void)
{
	return bed_bucket(&bed, "key0", 4);
}

/* The n-th bucket behind the first. */
static struct xkv_chain *chain_of(unsigned int n)
{
	struct xkv_bucket *bucket = home();
	struct xkv_chain *chain = NULL;

	for (; n; n--) {
		chain = (struct xkv_chain *)bed_slot_at(&bed, bucket->head & XKV_REF_MASK);
		assert_non_null(chain);
		bucket = &chain->bucket;
	}
	return chain;
}

static struct xkv_class *class_at(const struct xkv_slot *slot)
{
	return &bed.classes[slot->class & XKV_CLASS_MASK];
}

/* Where slots of a class are given to, and the first of them. */
static __u64 *list_of(const struct xkv_slot *slot)
{
	return &class_at(slot)->list[0].head[class_at(slot)->which & 1];
}

static struct xkv_slot *free_slot_of(const struct xkv_slot *slot)
{
	struct xkv_slot *first = bed_slot_at(&bed, *list_of(slot) & XKV_REF_MASK);

	assert_non_null(first);
	return first;
}

static int open_store(void **state)
{
	open_bed(MAX_KEYS);
	bed.c->bucket_mask = 0;
	for (unsigned int i = 0; i < KEYS; i++)
		put_text(name(i), "value");
	return 0;
}

/* ---- damage that can be mended ------------------------------------------- */

#define POKES 64

static struct {
	void *at;
	uint64_t old;
	size_t size;
} poked[POKES];
static unsigned int pokes;

static void poke(void *at, size_t size, uint64_t value)
{
	assert_true(pokes < POKES);
	poked[pokes].at = at;
	poked[pokes].size = size;
	memcpy(&poked[pokes++].old, at, size);
	memcpy(at, &value, size);
}

#define POKE(place, value) poke(&(place), sizeof(place), (value))

/* value_len and class share the last word of a slot's header. */
#define POKE_SIZE(slot, field, to)                                                                 \
	do {                                                                                       \
		struct xkv_slot poked_slot = *(slot);                                              \
		uint32_t *last = (uint32_t *)((slot) + 1) - 1;                                     \
		poked_slot.field = (to);                                                           \
		poke(last, sizeof(*last), *((uint32_t *)(&poked_slot + 1) - 1));                   \
	} while (0)

static void mend(void)
{
	while (pokes) {
		pokes--;
		memcpy(poked[pokes].at, &poked[pokes].old, poked[pokes].size);
	}
}

/* Takes the first slot off its list; `counted` as it should be. */
static struct xkv_slot *lose_slot(bool counted)
{
	struct xkv_slot *like = key_slot(0), *slot = free_slot_of(like);

	POKE(*list_of(like), slot->next);
	if (counted)
		POKE(class_at(like)->list[0].free, class_at(like)->list[0].free - 1);
	return slot;
}

static void damage_lost(void)
{
	lose_slot(true);
}

static void damage_miscounted(void)
{
	POKE(class_at(key_slot(0))->list[0].free, class_at(key_slot(0))->list[0].free + 1);
}

static void damage_tag(void)
{
	POKE(home()->entry[3], home()->entry[3] ^ 1ULL << 50);
}

static void damage_chain_tag(void)
{
	POKE(chain_of(3)->bucket.entry[6], chain_of(3)->bucket.entry[6] ^ 1ULL << 63);
}

static void damage_place(void)
{
	POKE(bed.index[5].entry[0], home()->entry[2]);
	POKE(home()->entry[2], 0);
}

static void damage_double_entry(void)
{
	POKE(home()->entry[0], home()->entry[1]);
}

static void damage_gone_entry(void)
{
	POKE(home()->entry[0], 0);
}

/* The same key in another slot: two entries, of which a reader would find one. */
static void damage_double_key(void)
{
	struct xkv_slot *from = key_slot(0), *to = lose_slot(true);
	struct xkv_bucket *last = &chain_of(KEYS / XKV_WAYS)->bucket;

	for (size_t i = 0; i < XKV_SLOT_NEED(4, 5) / 8; i++)
		POKE(((uint64_t *)to)[i], ((uint64_t *)from)[i]);
	POKE(to->seq, from->seq + 1000000);
	assert_int_equal(last->entry[XKV_WAYS - 1], 0);
	POKE(last->entry[XKV_WAYS - 1],
	     XKV_TAG(bed_fingerprint(&bed, "key0", 4)) | bed_ref(&bed, to));
}

static void give(struct xkv_slot *slot)
{
	POKE(slot->next, *list_of(slot) & XKV_REF_MASK);
	POKE(*list_of(slot), bed_ref(&bed, slot));
	POKE(class_at(slot)->list[0].free, class_at(slot)->list[0].free + 1);
}

static void damage_free_chain(void)
{
	give(&chain_of(2)->slot);
}

static void damage_free_live(void)
{
	give(key_slot(7));
}

static void damage_free_twice(void)
{
	struct xkv_slot *first = free_slot_of(key_slot(0));

	POKE(bed_slot_at(&bed, first->next)->next, bed_ref(&bed, first));
}

static void damage_free_orphan(void)
{
	struct xkv_slot *slot = free_slot_of(key_slot(0));

	POKE_SIZE(slot, class, slot->class | XKV_CLASS_ORPHAN);
}

static void damage_free_nowhere(void)
{
	POKE(free_slot_of(key_slot(0))->next, XKV_REF(XKV_PAGES_MAX - 1, 64));
}

static void damage_cut_chain(void)
{
	POKE(chain_of(KEYS / XKV_WAYS - 1)->bucket.head, 0);
}

static void damage_loop(void)
{
	POKE(chain_of(4)->bucket.head, home()->head & XKV_REF_MASK);
}

static void damage_chain_home(void)
{
	POKE(chain_of(1)->slot.home, 7);
}

static void damage_chain_live(void)
{
	POKE(chain_of(1)->slot.seq, chain_of(1)->slot.seq & ~1ULL);
}

static void damage_chain_kind(void)
{
	POKE(chain_of(1)->slot.key_len, 8);
}

static void damage_chain_empty(void)
{
	struct xkv_slot *like = &chain_of(1)->slot, *slot = free_slot_of(like);
	struct xkv_chain *last = chain_of(KEYS / XKV_WAYS), *more = (struct xkv_chain *)slot;

	POKE(*list_of(like), slot->next);
	POKE(class_at(like)->list[0].free, class_at(like)->list[0].free - 1);
	POKE(slot->key_len, XKV_KEY_CHAIN);
	POKE(slot->home, 0);
	POKE(more->bucket.head, 0);
	for (int way = 0; way < XKV_WAYS; way++)
		POKE(more->bucket.entry[way], 0);
	POKE(last->bucket.head, bed_ref(&bed, slot));
}

static void damage_locked_bucket(void)
{
	POKE(home()->head, home()->head | XKV_BUCKET_LOCK);
}

static void damage_locked_slot(void)
{
	POKE(key_slot(9)->seq, key_slot(9)->seq | 1);
}

/* Written over from the slot before. */
static void damage_version(void)
{
	POKE(key_slot(9)->seq, 0);
}

static void damage_free_version(void)
{
	POKE(free_slot_of(key_slot(0))->seq, 0);
}

static void damage_lengths(void)
{
	POKE_SIZE(key_slot(9), value_len, 1U << 19);
}

static void damage_padding(void)
{
	char *value = (char *)(key_slot(9) + 1) + 8;

	POKE(value[6], 'x');
}

static void damage_class(void)
{
	POKE_SIZE(key_slot(9), class, key_slot(9)->class + 1);
}

static void damage_reference(void)
{
	POKE(home()->entry[3], home()->entry[3] + 1);
}

static void damage_page(void)
{
	POKE(bed_span_of(&bed, key_slot(9))->class, XKV_CLASSES - 2);
}

static void damage_page_state(void)
{
	POKE(bed_span_of(&bed, key_slot(9))->state, XKV_SPAN_NEW);
}

static void damage_parked(void)
{
	POKE(bed_span_of(&bed, key_slot(9))->state, XKV_SPAN_DRAINING);
	POKE(bed_span_of(&bed, key_slot(9))->parked, 3);
}

static void damage_held(void)
{
	POKE(bed_frame(&bed)->prefilled, *list_of(key_slot(0)) & XKV_REF_MASK);
}

static void damage_repetition_lock(void)
{
	POKE(bed.once[17].way[1].lock, 5);
}

static void damage_repetition_twice(void)
{
	for (int way = 1; way < 3; way++) {
		POKE(bed.once[17].way[way].session, 77);
		POKE(bed.once[17].way[way].id, 8 * way + 3);
	}
}

static int mend_all(void **state)
{
	mend();
	return 0;
}

static const struct damage {
	void (*make)(void);
	const char *finds;
} damages[] = {
	{ damage_lost, "is lost: in use by nobody, and in no list" },
	{ damage_miscounted, "its lists have -1 slots more than it has counted" },
	{ damage_tag, "has another tag" },
	{ damage_chain_tag, "has another tag" },
	{ damage_place, "bucket 5: entry" },
	{ damage_place, "belongs to another bucket" },
	{ damage_double_entry, "refers to a slot that index has already" },
	{ damage_double_entry, "is live, but not in index" },
	{ damage_gone_entry, "is live, but not in index" },
	{ damage_gone_entry, "the counters say 60 keys, index has 59" },
	{ damage_double_key, "has a key that stands in this bucket twice" },
	{ damage_free_chain, "but it is in use" },
	{ damage_free_live, "but index has it" },
	{ damage_free_twice, "has no end" },
	{ damage_free_orphan, "but it is an orphan" },
	{ damage_free_nowhere, "has no slot at" },
	{ damage_cut_chain, "but not in its chain" },
	{ damage_cut_chain, "is live, but not in index" },
	{ damage_loop, "has no end" },
	{ damage_chain_home, "which belongs to another bucket" },
	{ damage_chain_live, "which is live" },
	{ damage_chain_kind, "which is no chain bucket" },
	{ damage_chain_empty, "which is empty" },
	{ damage_chain_empty, "the counters say 8 chain buckets, index has 9" },
	{ damage_locked_bucket, "bucket 0 is locked" },
	{ damage_locked_slot, "is locked or free" },
	{ damage_version, "has version 0" },
	{ damage_free_version, "but it is in use" },
	{ damage_lengths, "has lengths that do not fit its class" },
	{ damage_padding, "is not padded with zeros" },
	{ damage_class, "has the wrong class" },
	{ damage_reference, "refers to where no slot starts" },
	{ damage_page, "its span makes no sense" },
	{ damage_page_state, "was made, but its slots are in no list" },
	{ damage_parked, "are parked, but it has counted 3" },
	{ damage_held, "which a free list has already" },
	{ damage_repetition_lock, "is locked (5 times)" },
	{ damage_repetition_twice, "stands there twice" },
};

/* What the check says, to be freed. */
static char *check(unsigned int walks, int *ret)
{
	char *text = NULL;
	size_t len = 0;
	FILE *report = open_memstream(&text, &len);

	assert_non_null(report);
	*ret = check_store(bed.pin_dir, walks, &sums, report);
	check_print(&sums, report);
	fclose(report);
	return text;
}

static void finds(const char *what, int expected)
{
	int ret;
	char *text = check(WALKS, &ret);

	if (ret != expected || (what && !strstr(text, what)))
		print_error("expected '%s', and the check said:\n%s", what ? what : "", text);
	assert_int_equal(ret, expected);
	assert_true(!what || strstr(text, what));
	free(text);
}

static void test_sound(void **state)
{
	finds("; all accounted for\n", 0);
	assert_int_equal(sums.keys, KEYS);
	assert_int_equal(sums.chain, (KEYS - 1) / XKV_WAYS);
	assert_int_equal(sums.longest, sums.chain);
	assert_int_equal(sums.slots, sums.keys + sums.chain + sums.free);
	assert_true(sums.counted);
	assert_int_equal(sums.errors, 0);
}

static void test_damages(void **state)
{
	for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		damages[i].make();
		finds(damages[i].finds, 1);
		assert_true(sums.errors);
		mend();
		finds(NULL, 0);
	}
}

/* Lengths of a long key that no head can have: of a short key, and of more than the value has. */
static void test_long_key(void **state)
{
	static const uint32_t wrong[] = { 5, XKV_KEY_MAX, XKV_KEY_MAX + 7, XKV_LONG_KEY_MAX + 1 };
	static const char key[XKV_KEY_MAX + 1];
	struct stored_key stored = long_key(key, sizeof(key));
	uint32_t *key_len;

	put_bytes(key, sizeof(key), "value", 5, 0);
	key_len = (uint32_t *)((char *)(bed_slot(&bed, stored.word, XKV_KEY_LONG) + 1) +
			       XKV_PADDED(XKV_KEY_LONG));
	finds(NULL, 0);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		POKE(*key_len, htole32(wrong[i]));
		finds("has no head with its long key", 1);
		mend();
	}
	assert_int_equal(store_delete(bed.ctx, key, sizeof(key), NULL), 0);
	finds(NULL, 0);
}

static void count_inserts(int64_t by)
{
	uint32_t frontend = XKV_FRONTEND_XDP;

	assert_int_equal(bpf_map_lookup_elem(bed.bpf.map[BPF_TALLY], &frontend, bed.each_tally), 0);
	bed.each_tally[0].inserts += (uint64_t)by;
	assert_int_equal(bpf_map_update_elem(bed.bpf.map[BPF_TALLY], &frontend, bed.each_tally, 0),
			 0);
}

static void test_counters(void **state)
{
	count_inserts(1);
	finds("the counters say 61 keys, index has 60", 1);
	count_inserts(-1);
	finds(NULL, 0);
}

/* What is set aside for good reason is no error, and is named. */
static void test_set_aside(void **state)
{
	struct xkv_slot *slot = lose_slot(true);

	POKE_SIZE(slot, class, slot->class | XKV_CLASS_ORPHAN);
	finds("+ 1 orphans + 0 held", 0);
	POKE_SIZE(slot, class, slot->class & XKV_CLASS_MASK);
	POKE(bed_frame(&bed)->prefilled, bed_ref(&bed, slot));
	finds("+ 0 orphans + 1 held", 0);
	mend();
	POKE(key_slot(3)->expire_ms, 1000);
	finds("60 keys (1 expired)", 0);
	mend();
	slot = lose_slot(true); /* its span is being emptied */
	POKE(bed_span_of(&bed, slot)->state, XKV_SPAN_DRAINING);
	finds("is lost", 1);
	POKE(slot->key_len, XKV_KEY_PARKED);
	finds("are parked, but it has counted 0", 1);
	POKE(bed_span_of(&bed, slot)->parked, 1);
	finds("+ 1 parked", 0);
	/* given up: some may be back already */
	POKE(bed_span_of(&bed, slot)->state, XKV_SPAN_LINKED);
	POKE(bed_span_of(&bed, slot)->parked, 2);
	finds("+ 1 parked", 0);
	POKE(bed_span_of(&bed, slot)->parked, 0);
	finds("are parked, but it has counted 0", 1);
	mend();
	finds(NULL, 0);
}

/* So many errors that they are not listed one by one. */
static void test_many_errors(void **state)
{
	struct xkv_slot *like = key_slot(0);

	while (class_at(like)->list[0].free < 12000)
		assert_int_equal(span_carve(bed.st, like->class), 0);
	POKE(*list_of(like), 0);
	finds("... and ", 1);
	assert_true(sums.errors > 10000);
	mend();
	finds(NULL, 0);
}

static void test_cannot_look(void **state)
{
	char *text = NULL;
	size_t len = 0;
	FILE *report = open_memstream(&text, &len);

	assert_non_null(report);
	assert_int_equal(check_store("/sys/fs/bpf/xkv-test-none", 1, &sums, report), -ENOENT);
	fclose(report);
	assert_non_null(strstr(text, "cannot open /sys/fs/bpf/xkv-test-none/xkv_index: "));
	free(text);
	POKE(bed.c->layout, XKV_DATA_VERSION + 1);
	finds("this is for", -EPROTO);
	mend();
}

/* ---- a store at work ----------------------------------------------------- */

static atomic_bool busy_end;
static atomic_uint busy_pause_us; /* after each operation */

static void pause_a_while(void)
{
	unsigned int us = atomic_load(&busy_pause_us);

	if (us)
		usleep(us);
}

/* Inserts, moves and deletes keys in a few buckets, so that all that changes hands does so all the
 * time. */
static void *worker(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	unsigned int who = (unsigned int)(uintptr_t)arg;
	static const char value[3000];
	static char failed[2][64];
	int len, ret = ctx ? 0 : -1;
	char key[32];

	for (unsigned int turn = 0; !ret && !atomic_load(&busy_end); turn++) {
		len = snprintf(key, sizeof(key), "busy%u.%u", who, turn % 17);
		if (turn / 17 % 3 == 2)
			ret = store_delete(ctx, key, (size_t)len, NULL);
		else
			ret = store_set(ctx, key, (size_t)len, value,
					turn % 5 == 4 ? sizeof(value) : turn * 13 % 300, 0, 0, 0,
					NULL);
		pause_a_while();
		if (ret == -EBUSY) /* as it may be on a busy machine */
			ret = 0;
		if (ret)
			snprintf(failed[who], sizeof(failed[who]), "turn %u: %d", turn, ret);
	}
	store_ctx_put(ctx);
	return ret ? failed[who] : NULL;
}

/* In the place of the store's own thread: empties spans, so that they come and go. */
static void *drainer(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);

	bed.st->maint.ctx = ctx;
	while (ctx && !atomic_load(&busy_end)) {
		pause_a_while();
		for (unsigned int class = 0; class < bed.st->class_count; class ++) {
			maintenance_serve(bed.st);
			if (bed.st->mem.class[class].slots)
				bed_drain(&bed, ctx, class, 1);
		}
	}
	bed_maintained(&bed, false);
	store_ctx_put(ctx);
	return ctx ? NULL : "no context";
}

/*
 * What a lost slot is found by: that it is in no list or, once its span is emptied, that all others
 * are parked.  In between no two walks say the same.
 */
static unsigned int span_settled(const struct xkv_unit *span, unsigned int slots)
{
	unsigned int state = __atomic_load_n(&span->state, __ATOMIC_ACQUIRE) + 1U;
	uint32_t parked = __atomic_load_n(&span->parked, __ATOMIC_ACQUIRE);

	return state == XKV_SPAN_LINKED + 1 || parked + 1 == slots ? state : 0;
}

/*
 * Checks for a while, and until one had to find `expected`; `lost`: a slot that is, or NULL.  On a
 * machine so busy that no check reads all before it has changed, ever less is changed.
 */
static void busy_checks(const char *what, int expected, const struct xkv_slot *lost)
{
	const struct xkv_unit *span = lost ? bed_span_of(&bed, lost) : NULL;
	unsigned int slots = lost ? bed_span_slots(&bed, lost) : 0;
	uint64_t begin = store_now_ms(bed.st);
	bool had_to = false, has_to;

	while (!had_to || store_now_ms(bed.st) < begin + BUSY_MS) {
		unsigned int settled = span ? span_settled(span, slots) : 0;
		int ret;
		char *text = check(6, &ret);

		/*
		 * what is there in no walk is never reported; what is, by those that could read all
		 */
		has_to =
			!expected || (!sums.unread &&
				      (!span || (settled && settled == span_settled(span, slots))));
		if (has_to && (ret != expected || (what && !strstr(text, what))))
			print_error("%s", text);
		assert_true(!has_to || ret == expected);
		assert_true(!has_to || !what || strstr(text, what));
		free(text);
		had_to |= has_to;
		if (store_now_ms(bed.st) > begin + BUSY_MS)
			atomic_fetch_add(&busy_pause_us, 200);
		assert_true(store_now_ms(bed.st) < begin + BUSY_PATIENCE_MS);
	}
	atomic_store(&busy_pause_us, 0);
}

/* As an operation does it, so that nobody moves it meanwhile. */
static struct xkv_slot *lock_slot(unsigned int key)
{
	struct xkv_slot *slot;
	__u64 seq;

	do {
		slot = key_slot(key);
		seq = slot->seq & ~1ULL;
	} while (!__atomic_compare_exchange_n(&slot->seq, &seq, seq | 1, false, __ATOMIC_SEQ_CST,
					      __ATOMIC_SEQ_CST));
	return slot;
}

/* Never cries wolf; and finds what is lost all the same. */
static void test_busy(void **state)
{
	struct xkv_slot *slot;
	static void *(*const work[])(void *) = { worker, worker, drainer };
	pthread_t thread[3];
	void *failed;
	uint64_t ref;

	/* a slot that nobody else can take meanwhile */
	assert_int_equal(bed_slots(&bed, &(struct xkv_slots_args){ .cmd = XKV_SLOTS_ALLOC,
								   .class = key_slot(0)->class }),
			 0);
	atomic_store(&busy_end, false);
	bed_maintained(&bed, true);
	for (uintptr_t i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, work[i], (void *)i), 0);
	busy_checks(NULL, 0, NULL);
	ref = bed_frame(&bed)->prefilled;
	bed_frame(&bed)->prefilled = 0;
	busy_checks(NULL, 1, bed_slot_at(&bed, ref));
	bed_frame(&bed)->prefilled = ref;
	slot = lock_slot(20);
	busy_checks("is locked or free", 1, NULL);
	__atomic_fetch_and(&slot->seq, ~1ULL, __ATOMIC_SEQ_CST);
	atomic_store(&busy_end, true);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(pthread_join(thread[i], &failed), 0);
		if (failed)
			fail_msg("thread %d failed: %s", i, (char *)failed);
	}
	assert_int_equal(bed_slots(&bed, &(struct xkv_slots_args){ .cmd = XKV_SLOTS_FREE }), 0);
	finds("; all accounted for\n", 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sound),
		cmocka_unit_test_teardown(test_damages, mend_all),
		cmocka_unit_test_teardown(test_long_key, mend_all),
		cmocka_unit_test(test_counters),
		cmocka_unit_test_teardown(test_set_aside, mend_all),
		cmocka_unit_test_teardown(test_many_errors, mend_all),
		cmocka_unit_test_teardown(test_cannot_look, mend_all),
		cmocka_unit_test_teardown(test_busy, mend_all),
	};

	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("check", tests, open_store, close_bed);
}

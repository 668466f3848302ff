// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 6 */
/*
 * What xkvd alone asks of the engine: evictions, entries that move to another slot, spans that are
 * drained, and the second half of a large APPEND.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bpf/layout.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "exchange.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

/* Results and operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

/* ---- what only xkvd asks for ---------------------------------------------- */

/* Runs a request as xkvd does, with more flags for the frame; the result's status. */
static uint8_t engine(const struct payload *req, uint32_t flags, uint64_t prefilled)
{
	struct xkv_request *f = bed_frame(&bed);

	memset(f, 0, offsetof(struct xkv_request, in));
	f->flags = XKV_REQUEST_XKVD | XKV_REQUEST_TRUSTED | flags;
	f->reply_max = f->reply_allowed = f->reply_room = XKV_REQUEST_BYTES;
	f->req_len = (uint32_t)req->len;
	f->prefilled = prefilled;
	memcpy(f->in, req->byte, req->len);
	assert_int_equal(bed_run_frame(&bed), 0);
	assert_int_equal(f->verdict, VERDICT_REPLY);
	assert_int_equal(f->done, 1);
	return f->out[16 + 1];
}

static void test_eviction(void **state)
{
	struct payload req = REQUEST(XKV_OP_DELETE, KEY("a")), cas;
	uint64_t before[XKV_COUNTER_COUNT];

	put_text("a", "1");
	bed_counters(&bed, before);
	assert_int_equal(engine(&req, XKV_REQUEST_EVICT, 0), XKV_OK);
	count_check(before, COUNTS(XKV_C_evictions));
	assert_int_equal(engine(&req, XKV_REQUEST_EVICT, 0), XKV_MISS);
	put("a", "1", 1, 1000); /* one that has expired may go that way too */
	cas = REQUEST(XKV_OP_DELETE, XKV_CAS, KEY("a"), .version = 2);
	assert_int_equal(engine(&cas, XKV_REQUEST_EVICT, 0), XKV_NOT_STORED);
	bed_counters(&bed, before);
	assert_int_equal(engine(&req, XKV_REQUEST_EVICT, 0), XKV_OK);
	count_check(before, COUNTS(XKV_C_evictions));
	assert_int_equal(store_count(bed.st), 0);
}

/* What an eviction of up to 256 entries costs, of which `there` are there to be found. */
static uint64_t eviction_us(unsigned int there)
{
	struct timespec begin, end;

	bed.st->evict.failed_ms = 0;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
	assert_int_equal(evict(bed.ctx, 256, true), there);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
	return (end.tv_sec - begin.tv_sec) * 1000000 + (end.tv_nsec - begin.tv_nsec) / 1000;
}

/*
 * Fewer than are wanted, among many slots: one look through all of them finds them, and others
 * none.
 */
static void test_eviction_of_few(void **state)
{
	uint64_t none, one = UINT64_MAX;

	open_bed(MAX_KEYS);
	for (int i = 0; i < 16; i++)
		assert_int_equal(span_carve(bed.st, 0), 0);
	put("stays", "1", 1, 0);
	store_limit(bed.st, 1, STORE_VOLATILE_TTL);
	none = eviction_us(0);
	/* the best of some: an emulated CPU may stand still meanwhile */
	for (int i = 0; i < 10 && one > 10 * none + 1000; i++) {
		put("goes", "1", 1, 1000000);
		one = eviction_us(1);
	}
	assert_in_range(one, 1, 10 * none + 1000);
	assert_int_equal(store_count(bed.st), 1);
	account();
}

/* A slot for the frame, of another page if all that are left are parked. */
static void take_slot(unsigned int class)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_ALLOC, .class = class };
	int ret = bed_slots(&bed, &args);

	if (ret == -ENOSPC) {
		assert_int_equal(bed_grow(&bed, class), 0);
		ret = bed_slots(&bed, &args);
	}
	assert_int_equal(ret, 0);
}

/* Copies the entry of a key into another slot and has it moved there. */
static uint8_t relocate(const char *key, uint64_t v)
{
	struct payload req = REQUEST(XKV_OP_SET, XKV_CAS, KEY(key), .version = v);
	const struct xkv_slot *old = bed_slot(&bed, key, strlen(key));
	struct xkv_slot *slot;
	uint64_t ref;

	take_slot(old->class);
	ref = bed_frame(&bed)->prefilled;
	slot = bed_slot_at(&bed, ref);
	slot->key_len = old->key_len;
	slot->value_len = old->value_len;
	memcpy(slot + 1, old + 1, XKV_SLOT_NEED(old->key_len, old->value_len) - sizeof(*slot));
	return engine(&req, XKV_REQUEST_PREFILL | XKV_REQUEST_RELOCATE, ref);
}

static void free_slot(void)
{
	assert_int_equal(bed_slots(&bed, &(struct xkv_slots_args){ .cmd = XKV_SLOTS_FREE }), 0);
}

/* Goes through the free lists of a class twice, so that none of a draining page stays in any. */
static void filter_lists(unsigned int class)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_FILTER, .class = class };

	for (int turn = 0; turn < 2; turn++) {
		args.count = 1; /* the lists change places */
		do {
			assert_int_equal(bed_slots(&bed, &args), 0);
		} while (args.count && !(args.count = 0));
	}
}

/* The entry is the same in another slot: version, expiry and access stay. */
static void test_relocate(void **state)
{
	struct payload req = REQUEST(XKV_OP_GET, KEY("a"));
	uint64_t before[XKV_COUNTER_COUNT], v;
	struct xkv_slot *old;

	open_bed(MAX_KEYS);
	warm();
	put("a", pattern(0), 100, store_now_ms(bed.st) + 100000);
	v = version_of("a");
	old = bed_slot(&bed, "a", 1);
	old->access = 1234;
	assert_int_equal(relocate("a", v), XKV_NOT_STORED); /* its span stays */
	free_slot();
	account();
	bed_span_of(&bed, old)->state = XKV_SPAN_DRAINING;
	filter_lists(old->class);
	account();
	assert_int_equal(relocate("a", v + 2), XKV_NOT_STORED); /* somebody has written it since */
	free_slot();
	bed_counters(&bed, before);
	assert_int_equal(relocate("a", v), XKV_OK);
	count_check(before, COUNTS(XKV_C_relocations));
	assert_ptr_not_equal(bed_slot(&bed, "a", 1), old);
	assert_int_equal(bed_slot(&bed, "a", 1)->access, 1234);
	assert_int_equal(bed_span_of(&bed, old)->parked, bed_span_slots(&bed, old));
	answers(&req, RESULTS({ XKV_OP_GET, 0, pattern(0), 100, .ttl = ANY, .version = v }),
		COUNTS(XKV_C_get_hits));
}

/* A span with live entries, chain buckets and free slots is emptied down to the last slot. */
static void test_drain(void **state)
{
	unsigned int class, slots;
	struct xkv_unit *span;
	struct xkv_slot *slot;
	struct span whole;
	char key[16];
	uint64_t ref;

	open_one_bucket();
	class = bed.c->class_of[sizeof(struct xkv_chain) / 8];
	/* entries as large as a chain bucket, so that both stand in one span */
	for (int i = 0; i < 3 * XKV_WAYS; i++) {
		snprintf(key, sizeof(key), "k%02d", i);
		put(key, pattern(0), sizeof(struct xkv_chain) - sizeof(*slot) - 8, 0);
	}
	assert_int_equal(bed_chain_count(&bed), 2);
	span = bed_span_of(&bed, bed_slot(&bed, "k00", 3));
	slots = bed_span_slots(&bed, bed_slot(&bed, "k00", 3));
	ref = bed_ref(&bed, bed_slot(&bed, "k00", 3));
	assert_true(span_of_ref(bed.st, ref, &whole));
	span->state = XKV_SPAN_DRAINING;
	filter_lists(class);
	account();
	assert_int_equal(span->parked, slots - 3 * XKV_WAYS - 2);
	for (int i = 0; i < 3 * XKV_WAYS; i += 2) {
		snprintf(key, sizeof(key), "k%02d", i);
		assert_int_equal(relocate(key, version_of(key)), XKV_OK);
	}
	for (int i = 1; i < 3 * XKV_WAYS; i += 2) { /* or goes by itself */
		snprintf(key, sizeof(key), "k%02d", i);
		assert_int_equal(store_delete(bed.ctx, key, 3, NULL), 0);
	}
	account();
	assert_int_equal(span->parked, slots - 2);
	for (uint32_t i = 0; i < slots; i++) {
		slot = bed_slot_at(&bed, span_ref(&whole, i));
		if (slot->key_len != XKV_KEY_CHAIN)
			continue;
		take_slot(class);
		assert_int_equal(
			bed_slots(&bed, &(struct xkv_slots_args){ .cmd = XKV_SLOTS_CHAIN,
								  .first = bed_ref(&bed, slot) }),
			0);
		account();
	}
	assert_int_equal(span->parked, slots);
	for (int i = 0; i < 3 * XKV_WAYS; i += 2) {
		snprintf(key, sizeof(key), "k%02d", i);
		holds(key, pattern(0), sizeof(struct xkv_chain) - sizeof(*slot) - 8);
	}
}

/*
 * At the limit the class of a draining span has no other slot: its last entries, and a chain
 * bucket, go into slots of the next classes, and the span goes.
 */
static void test_drain_to_larger_class(void **state)
{
	const size_t len = sizeof(struct xkv_chain) - sizeof(struct xkv_slot) - 8;
	uint32_t page, first, last = 0;
	unsigned int class;
	char key[16];

	open_bed(MAX_KEYS);
	bed.c->fingerprint_mask = 0;
	class = bed.c->class_of[sizeof(struct xkv_chain) / 8];
	for (int i = 0; i <= XKV_WAYS; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		put(key, pattern(0), len, 0);
	}
	assert_int_equal(bed_chain_count(&bed), 1);
	store_limit(bed.st, 1, STORE_NOEVICTION);
	while (units_take(bed.st, 1, &page, &first))
		last = first;
	assert_int_equal(bed_grow(&bed, class + 3), -ENOSPC);
	assert_int_equal(bed_drain(&bed, bed.ctx, class, 1), 0); /* nowhere to go */
	units_give(bed.st, 0, last, 1);
	assert_int_equal(bed_grow(&bed, class + 3), 0);
	assert_int_equal(bed_drain(&bed, bed.ctx, class, 1), 1);
	assert_int_equal(bed.st->mem.class[class].slots, 0);
	for (int i = 0; i <= XKV_WAYS; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		holds(key, pattern(0), len);
	}
	account();
}

/*
 * xkvd was killed when it held slots, in any requests of any contexts: the next one gives them
 * back.
 */
static void test_adopt_prefilled(void **state)
{
	static const unsigned int frames[] = { 1, XKV_CONTEXT_REQUESTS - 1,
					       XKV_CONTEXT_REQUESTS + 3,
					       XKV_CONTEXTS * XKV_CONTEXT_REQUESTS - 1 };
	const size_t n = sizeof(frames) / sizeof(frames[0]);
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_ALLOC };
	uint64_t free;

	open_bed(MAX_KEYS);
	put_text("key", "value");
	args.class = bed_slot(&bed, "key", 3)->class;
	free = bed.classes[args.class].list[0].free;
	for (size_t i = 0; i < n; i++) {
		args.request = frames[i];
		assert_int_equal(slots_run(bed.st, &args), 0);
	}
	assert_int_equal(bed.classes[args.class].list[0].free, free - n);
	assert_null(bed_adopt(&bed));
	assert_int_equal(bed.classes[args.class].list[0].free, free);
	for (size_t i = 0; i < n; i++)
		assert_true(!bed.batch[frames[i]].prefilled);
	holds_text("key", "value");
	account();
}

/*
 * Has xkvd's part of an APPEND done: its text behind the entry's value, in a slot that the frame
 * has.
 */
static void join_in_frame(const char *key, const char *text)
{
	struct xkv_request *f = bed_frame(&bed);
	const struct xkv_slot *old = bed_slot(&bed, key, strlen(key));
	size_t at = XKV_PADDED(strlen(key)), len = strlen(text);
	struct xkv_slot *slot;

	assert_int_equal(f->stop, XKV_C_pass_too_large + 1);
	take_slot(old->class + 1);
	slot = bed_slot_at(&bed, f->prefilled);
	slot->key_len = old->key_len;
	slot->value_len = (uint32_t)(old->value_len + len);
	memcpy(slot + 1, old + 1, at + old->value_len);
	memcpy((uint8_t *)(slot + 1) + at + old->value_len, text, XKV_PADDED(len));
	f->joined = f->seq;
	f->flags |= XKV_REQUEST_PREFILL;
}

/*
 * The entry expires when xkvd has joined the two parts of a large APPEND, and before they are
 * published: then there is no old part.  With time left the joined value is what is published.
 */
static void test_append_expires_while_joined(void **state)
{
	const char text[8] = "end", *const key = "key";
	struct payload req = REQUEST(XKV_OP_APPEND, KEY("key"), VALUE("end"));
	struct xkv_request *f = bed_frame(&bed);
	uint8_t whole[3003];

	memcpy(whole, pattern(0), 3000);
	memcpy(whole + 3000, "end", 3);
	for (int expires = 0; expires < 2; expires++) {
		put(key, pattern(0), 3000, store_now_ms(bed.st) + 3600 * 1000);
		memset(f, 0, offsetof(struct xkv_request, in));
		f->flags = XKV_REQUEST_XKVD | XKV_REQUEST_TRUSTED;
		f->reply_max = f->reply_allowed = f->reply_room = XKV_REQUEST_BYTES;
		f->req_len = (uint32_t)req.len;
		memcpy(f->in, req.byte, req.len);
		assert_int_equal(bed_run_frame(&bed), 0);
		join_in_frame(key, text);
		bed.c->tai_offset_ms -= expires ? 7200 * 1000 : 0;
		assert_int_equal(bed_run_frame(&bed), 0);
		assert_int_equal(f->verdict, VERDICT_REPLY);
		assert_int_equal(f->out[16 + 1], XKV_OK);
		assert_int_equal(!!f->prefilled, expires);
		if (expires)
			holds(key, "end", 3);
		else
			holds(key, whole, sizeof(whole));
		bed.c->tai_offset_ms += expires ? 7200 * 1000 : 0;
		free_slot();
		assert_int_equal(store_delete(bed.ctx, key, 3, NULL), 0);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_eviction),	   CASE(test_append_expires_while_joined),
		OWN(test_eviction_of_few), OWN(test_relocate),
		OWN(test_drain),	   OWN(test_drain_to_larger_class),
		OWN(test_adopt_prefilled),
	};

	return bed_begin(argc, argv) ?: BOTH_WAYS("relocate", tests, exchange_begin);
}

// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 8 */
/* tests/run: plain test_moment_beside_large_transactions */
/*
 * The change feed: each change has its record, in order, none is lost, and what is read is what the
 * store was at that moment.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loader/store/cut.h"
#include "loader/store/feed.h"
#include "loader/store/impl.h"
#include "loader/store/store.h"
#include "loader/store/txn.h"
#include "loader/util/clock.h"
#include "loader/util/hashtable.h"
#include "ask.h"
#include "fixture.h"
#include "packet.h"
#include "random.h"
#include "xdpbed.h"

static struct feed_reader *reader;
static struct feed_change got;

/* All that were opened: those of an xkvd that is killed are never closed. */
static struct feed_reader *opened[128];
static unsigned int opened_count;

static struct feed_reader *listen_as(const char *name, bool resumes)
{
	struct feed_reader *r = NULL;
	bool resumed;

	assert_int_equal(feed_open(bed.st, name, &r, &resumed), 0);
	assert_int_equal(resumed, resumes);
	assert_true(opened_count < sizeof(opened) / sizeof(opened[0]));
	opened[opened_count++] = r;
	return r;
}

/* Loading the programs takes seconds: one store for all cases. */
static int begin_group(void **state)
{
	open_bed(MAX_KEYS);
	return 0;
}

static int setup(void **state)
{
	bed_configure(&bed);
	if (store_flush(bed.ctx))
		return -1;
	assert_true(bed_warm(&bed));
	reader = listen_as("test", false);
	return 0;
}

static int teardown(void **state)
{
	struct feed_change change;

	while (reader && feed_next(reader, &change) > 0)
		;
	feed_close(reader);
	reader = NULL;
	assert_false(bed.c->feed);
	account();
	return 0;
}

/* ---- expectations ---------------------------------------------------------- */

static void next_is(enum xkv_change what, const char *key)
{
	assert_int_equal(feed_next(reader, &got), 1);
	assert_int_equal(got.what, what);
	assert_int_equal(got.key_len, strlen(key));
	assert_memory_equal(got.key, key, got.key_len);
	if (what > XKV_CHANGE_OVERWRITE)
		assert_null(got.value);
}

static void next_has(enum xkv_change what, const char *key, const void *value, size_t len)
{
	next_is(what, key);
	assert_int_equal(got.value_len, len);
	assert_memory_equal(got.value, value, len);
}

static void nothing_more(void)
{
	assert_int_equal(feed_next(reader, &got), 0);
}

static void ask_is(enum frontend frontend, const struct operation *op, uint8_t status)
{
	struct reply r;

	ask_op(frontend, op, &r);
	assert_false(r.passed);
	assert_int_equal(r.result[0].status, status);
}

static void set_by(enum frontend frontend, const char *key, const void *value, uint32_t len)
{
	struct operation op = { .opcode = XKV_OP_SET, TEXT(key), .value = value, .value_len = len };

	ask_is(frontend, &op, XKV_OK);
}

/* ---- why ------------------------------------------------------------------ */

static void next_is_by(enum xkv_change what, uint8_t cause, uint8_t op_flags)
{
	next_is(what, "key");
	assert_int_equal(got.cause, cause);
	assert_int_equal(got.op_flags & op_flags, op_flags);
}

/* Each record says which operation it was, also those of the fast path. */
static void test_causes(void **state)
{
	struct operation op;

	for (enum frontend f = DRIVER; f < FRONTENDS; f++) {
		set_by(f, "key", "1", 1);
		next_is_by(XKV_CHANGE_CREATE, XKV_OP_SET, 0);
		op = incr("key", 3, 3);
		ask_is(f, &op, XKV_OK);
		next_is_by(XKV_CHANGE_OVERWRITE, XKV_OP_INCR, 0);
		op = append("key", 3, pattern(0), 300);
		ask_is(f, &op, XKV_OK);
		next_is_by(XKV_CHANGE_OVERWRITE, XKV_OP_APPEND, 0);
		set_by(f, "key", pattern(0), 300);
		next_is_by(XKV_CHANGE_OVERWRITE, XKV_OP_SET, 0);
		op = (struct operation){ .opcode = XKV_OP_SET, .flags = XKV_KEEPTTL, TEXT("key") };
		ask_is(f, &op, XKV_OK);
		next_is_by(XKV_CHANGE_OVERWRITE, XKV_OP_SET, XKV_KEEPTTL);
		op = op_on(XKV_OP_EXPIRE, "key", 3);
		op.ttl = 100000;
		ask_is(f, &op, XKV_OK);
		next_is_by(XKV_CHANGE_EXPIRY, XKV_OP_EXPIRE, 0);
		op = op_on(XKV_OP_DELETE, "key", 3);
		ask_is(f, &op, XKV_OK);
		next_is_by(XKV_CHANGE_DELETE, XKV_OP_DELETE, 0);
		nothing_more();
	}
}

/* An overwritten entry had expired, in the same slot (also by the fast path) or in another one. */
static void test_gone(void **state)
{
	const uint32_t len[] = { 1, 300 };

	for (enum frontend f = DRIVER; f < FRONTENDS; f++) {
		for (unsigned int i = 0; i < 2; i++) {
			put("key", "1", 1, store_now_ms(bed.st) + 1);
			assert_int_equal(feed_next(reader, &got), 1);
			wait_until(store_now_ms(bed.st) + 1);
			set_by(f, "key", pattern(0), len[i]);
			next_is_by(XKV_CHANGE_OVERWRITE, XKV_OP_SET, 0);
			assert_true(got.gone);
			set_by(f, "key", pattern(0), len[i]);
			next_is_by(XKV_CHANGE_OVERWRITE, XKV_OP_SET, 0);
			assert_false(got.gone);
		}
	}
}

/* What xkvd says of its own changes: a cause, and for whom. */
static void test_own_causes(void **state)
{
	struct store_op op = {
		.opcode = XKV_OP_SET, .key = "key", .key_len = 3, .value = "1", .value_len = 1
	};
	struct store_entry e;

	op.cause = XKV_CAUSE_OTHER + 5;
	store_origin(bed.ctx, 77);
	assert_int_equal(store_do(bed.ctx, &op, &e), 0);
	next_is_by(XKV_CHANGE_CREATE, XKV_CAUSE_OTHER + 5, 0);
	assert_int_equal(got.origin, 77);
	store_origin(bed.ctx, 0);
	assert_int_equal(store_flush(bed.ctx), 0);
	next_is_by(XKV_CHANGE_DELETE, XKV_CAUSE_FLUSH, 0);
	assert_int_equal(got.origin, 0);
	put("key", noise(100000), 100000, 0);
	next_is(XKV_CHANGE_CREATE, "key");
	op = (struct store_op){ .opcode = XKV_OP_APPEND,
				.key = "key",
				.key_len = 3,
				.value = noise(3000),
				.value_len = 3000 };
	assert_int_equal(store_do(bed.ctx, &op, &e), 0);
	next_is_by(XKV_CHANGE_OVERWRITE, XKV_OP_APPEND, 0); /* although it becomes a SET */
}

/* What a transaction consisted of, and that its records say only that there was one. */
struct committed {
	unsigned int calls, count;
	bool recorded;
	struct feed_change change[8];
};

static void on_commit(void *arg, const struct feed_change *changes, unsigned int count,
		      bool recorded)
{
	struct committed *c = arg;

	assert_in_range(count, 0, 8);
	c->calls++;
	c->count = count;
	c->recorded = recorded;
	if (count)
		memcpy(c->change, changes, count * sizeof(*changes));
}

static void test_committed(void **state)
{
	struct committed c = { 0 };
	struct store_entry e;
	int64_t sum;

	feed_on_commit(bed.st, on_commit, &c);
	assert_int_equal(store_txn_begin(bed.ctx), 0);
	store_set(bed.ctx, "key", 3, "1", 1, 0, 0, 0, NULL);
	store_incr(bed.ctx, "key", 3, 1, &sum);
	store_delete(bed.ctx, "never", 5, NULL);
	store_txn_note(bed.ctx, "key", 3, XKV_CAUSE_OTHER);
	assert_int_equal(store_txn_commit(bed.ctx), 0);
	assert_int_equal(c.calls, 1);
	assert_int_equal(c.count, 3);
	assert_true(c.recorded);
	assert_int_equal(c.change[0].what, XKV_CHANGE_CREATE);
	assert_int_equal(c.change[1].what, XKV_CHANGE_OVERWRITE);
	assert_int_equal(c.change[1].cause, XKV_OP_INCR);
	assert_int_equal(c.change[2].what, FEED_NOTE);
	next_is_by(XKV_CHANGE_CREATE, XKV_CAUSE_TXN, 0);
	nothing_more();
	assert_int_equal(store_txn_begin(bed.ctx), 0);
	store_set(bed.ctx, "new", 3, "1", 1, 0, 0, 0, NULL);
	store_delete(bed.ctx, "new", 3, NULL);
	store_txn_abort(bed.ctx);
	assert_int_equal(c.calls, 1);
	assert_int_equal(store_txn_begin(bed.ctx), 0);
	store_set(bed.ctx, "new", 3, "1", 1, 0, 0, 0, NULL);
	store_delete(bed.ctx, "new", 3, &e);
	assert_int_equal(store_txn_commit(bed.ctx), 0);
	assert_int_equal(c.count, 2);
	assert_false(c.recorded); /* nothing is left of it */
	nothing_more();
	feed_on_commit(bed.st, NULL, NULL);
}

/* ---- one change, one record ------------------------------------------------- */

static void test_each_change(void **state)
{
	struct operation op;
	struct reply r;

	for (enum frontend f = DRIVER; f < FRONTENDS; f++) {
		set_by(f, "key", "value", 5);
		next_has(XKV_CHANGE_CREATE, "key", "value", 5);
		assert_int_equal(got.version, version_of("key"));
		assert_int_equal(got.expire_ms, 0);
		assert_int_equal(got.frontend, f == DRIVER ? XKV_FRONTEND_XDP : XKV_FRONTEND_XKVD);
		set_by(f, "key", "other", 5);
		next_has(XKV_CHANGE_OVERWRITE, "key", "other", 5);
		set_by(f, "key", pattern(1), 500);
		next_has(XKV_CHANGE_OVERWRITE, "key", pattern(1), 500);
		assert_int_equal(got.version, version_of("key"));
		set_by(f, "key", "12", 2);
		next_has(XKV_CHANGE_OVERWRITE, "key", "12", 2);
		op = incr("key", 3, 30);
		ask_is(f, &op, XKV_OK);
		next_has(XKV_CHANGE_OVERWRITE, "key", "42", 2);
		op = append("key", 3, "ab", 2);
		ask_is(f, &op, XKV_OK);
		next_has(XKV_CHANGE_OVERWRITE, "key", "42ab", 4);
		op = op_on(XKV_OP_EXPIRE, "key", 3);
		op.ttl = 100000;
		ask_is(f, &op, XKV_OK);
		next_is(XKV_CHANGE_EXPIRY, "key");
		assert_int_equal(got.expire_ms, entry_of("key", 3).expire_ms);
		assert_int_equal(got.version, version_of("key"));
		op = op_on(XKV_OP_DELETE, "key", 3);
		ask_is(f, &op, XKV_OK);
		next_is(XKV_CHANGE_DELETE, "key");
		ask_op(f, &op, &r); /* changes nothing */
		nothing_more();
	}
}

static void test_expiry_and_eviction(void **state)
{
	struct slot_copy copy;
	uint64_t ref;

	put("short", "1", 1, store_now_ms(bed.st) + 1);
	next_has(XKV_CHANGE_CREATE, "short", "1", 1);
	wait_until(store_now_ms(bed.st) + 1);
	assert_int_equal(expire_all(), 1);
	next_is(XKV_CHANGE_EXPIRE, "short");
	put_text("old", "1");
	next_is(XKV_CHANGE_CREATE, "old");
	ref = bed_ref(&bed, bed_slot(&bed, "old", 3));
	assert_true(slot_copy(bed.st, ref, &copy, NULL));
	store_limit(bed.st, 0, STORE_ALLKEYS_LRU);
	assert_true(evict_entry(bed.ctx, ref));
	next_is(XKV_CHANGE_EVICT, "old");
	put_text("a", "1");
	assert_int_equal(store_flush(bed.ctx), 0);
	next_is(XKV_CHANGE_CREATE, "a");
	next_is(XKV_CHANGE_DELETE, "a");
	nothing_more();
}

/* Together, and nothing of one that is aborted. */
static void test_transaction(void **state)
{
	uint64_t expire_ms = store_now_ms(bed.st) + 100000;

	put_text("old", "1");
	put_text("kept", "1");
	put_text("gone", "2");
	for (int i = 0; i < 3; i++)
		next_is(XKV_CHANGE_CREATE, i == 0 ? "old" : i == 1 ? "kept" : "gone");
	for (int commit = 0; commit < 2; commit++) {
		assert_int_equal(store_txn_begin(bed.ctx), 0);
		store_set(bed.ctx, "old", 3, "3", 1, 0, 0, 0, NULL);
		store_set(bed.ctx, "new", 3, noise(3000), 3000, 0, 0, 0, NULL);
		store_expire(bed.ctx, "kept", 4, expire_ms);
		store_delete(bed.ctx, "gone", 4, NULL);
		store_delete(bed.ctx, "never", 5, NULL);
		if (commit)
			assert_int_equal(store_txn_commit(bed.ctx), 0);
		else
			store_txn_abort(bed.ctx);
	}
	for (int left = 3; left >= 0; left--) {
		assert_int_equal(feed_next(reader, &got), 1);
		assert_int_equal(got.more, left > 0);
	}
	nothing_more();
	holds_text("old", "3");
}

/* The operations of an ATOMIC datagram. */
static void test_atomic_datagram(void **state)
{
	struct operation set = { .opcode = XKV_OP_SET, TEXT("a"), .value = "1", .value_len = 1 };
	struct operation incr_b = incr("b", 1, 5);
	struct payload req;
	struct reply r;

	for (enum frontend f = DRIVER; f < FRONTENDS; f++) {
		begin(&req, next_id++, 0);
		req.byte[3] |= XKV_F_ATOMIC;
		request_add(&req, &set);
		request_add(&req, &incr_b);
		ask(f, &req, &r);
		assert_int_equal(r.status, XKV_OK);
		assert_int_equal(r.count, 2);
		next_has(f ? XKV_CHANGE_OVERWRITE : XKV_CHANGE_CREATE, "a", "1", 1);
		assert_true(got.more);
		next_has(f ? XKV_CHANGE_OVERWRITE : XKV_CHANGE_CREATE, "b", f ? "10" : "5",
			 f ? 2 : 1);
		assert_false(got.more);
		nothing_more();
	}
}

/* One that is made when nobody listens any more writes nowhere. */
static void test_transaction_without_readers(void **state)
{
	uint64_t head;

	for (int listened = 1; listened >= 0; listened--) {
		assert_int_equal(store_txn_begin(bed.ctx), 0);
		store_set(bed.ctx, "a", 1, "1", 1, 0, 0, 0, NULL);
		store_set(bed.ctx, "b", 1, "2", 1, 0, 0, 0, NULL);
		head = bed.st->feed.ring->head;
		assert_int_equal(store_txn_commit(bed.ctx), 0);
		assert_int_equal(bed.st->feed.ring->head > head, listened);
		if (!listened)
			break;
		feed_close(reader);
		assert_int_equal(bed.st->feed.ring->tail, bed.st->feed.ring->head);
	}
	for (size_t i = 0; i < sizeof(bed.st->feed.ring->data); i++)
		assert_int_equal(bed.st->feed.ring->data[i], 0);
	reader = listen_as("test", false);
}

/* ---- no room ----------------------------------------------------------------- */

/* Changes by the driver until one goes up: how many. */
static uint64_t fill_ring(void)
{
	uint64_t written = 0;
	struct operation op;
	struct reply r = { 0 };

	for (int rest = 0; rest < 2; rest++) {
		op = (struct operation){ .opcode = XKV_OP_SET,
					 TEXT("key"),
					 .value = pattern(1),
					 .value_len = rest ? 0 : 1000 };
		for (ask_op(DRIVER, &op, &r); !r.passed && r.result[0].status == XKV_OK;
		     ask_op(DRIVER, &op, &r))
			written++;
	}
	return written;
}

/* A write that waits for a reader of the ring, which does not come, is refused. */
static void nobody_makes_room(void)
{
	bed_impatient(&bed, true);
	assert_int_equal(store_delete(bed.ctx, "key", 3, NULL), -EBUSY);
	assert_int_equal(store_txn_begin(bed.ctx), 0);
	assert_int_equal(store_delete(bed.ctx, "key", 3, NULL), 0);
	assert_int_equal(store_txn_commit(bed.ctx), -EBUSY);
	bed_impatient(&bed, false);
}

/* A change that finds no room goes up from XDP, waits in xkvd, and goes on when there is room. */
static void test_full_ring(void **state)
{
	uint64_t written = 0, read = 0, unread, refused;

	for (int lap = 0; lap < 3; lap++) {
		written += fill_ring();
		assert_true(written > XKV_FEED_BYTES / 2000);
		if (!lap)
			nobody_makes_room();
		feed_load(bed.st, &unread, &refused);
		assert_true(unread > XKV_FEED_BYTES - 200 && refused > 3);
		assert_int_equal(bed.st->feed.ring->taken, bed.st->feed.ring->head);
		while (feed_next(reader, &got) > 0) {
			read++;
			assert_true(got.value_len == 1000 || !got.value_len);
			assert_memory_equal(got.value, pattern(1), got.value_len);
		}
		assert_int_equal(read, written);
		assert_int_equal(feed_trim(bed.st), unread);
	}
}

static bool is_written(void)
{
	struct operation op = { .opcode = XKV_OP_SET, TEXT("key") };
	struct reply r = { 0 };

	ask_op(DRIVER, &op, &r);
	return !r.passed && r.result[0].status == XKV_OK;
}

/* The first write that finds no room may still be refused when the ring is given up. */
static bool is_refused(void)
{
	(void)is_written();
	return !is_written();
}

/* Fills the ring, the first record refers to a large value, and xkvd is not seen any more. */
static void fill_and_stand_still(void)
{
	static uint8_t value[XKV_FEED_INLINE + 1];

	put("large", value, sizeof(value), 0);
	fill_ring();
	feed_ends_with_xkvd(reader); /* not before: to fill it may take long */
	bed.st->feed.ring->alive_ns = 0;
}

/* A ring that is full is given up if nobody misses it without xkvd, and xkvd is not seen. */
static void test_given_up(void **state)
{
	struct feed_reader *log = listen_as("log", false);
	static uint8_t other[XKV_FEED_INLINE + 1] = "other";
	struct feed_change change;

	fill_and_stand_still();
	assert_true(is_refused()); /* the log needs it */
	while (feed_next(log, &change) > 0)
		;
	feed_close(log);
	bed.st->feed.ring->alive_ns = monotonic_ns() + 60000000000;
	assert_true(is_refused());
	bed.st->feed.ring->alive_ns = 0;
	assert_false(is_refused());
	assert_false(bed.c->feed);
	assert_int_equal(store_delete(bed.ctx, "large", 5, NULL), 0);
	put("other", other, sizeof(other), 0); /* perhaps in the slot that the first record has */
	assert_int_equal(feed_next(reader, &got), -ESTALE);
	nothing_more();
	assert_true(bed.c->feed);
	assert_true(feed_trim(bed.st) > XKV_FEED_BYTES - 2000);
	set_by(DRIVER, "a", "1", 1);
	next_has(XKV_CHANGE_CREATE, "a", "1", 1);
	nothing_more();
}

/* Writes into a full ring whenever records are made, of an xkvd that at first is not seen. */
#define STOPS 3
static atomic_bool begun_again;
static void *write_meanwhile(void *arg)
{
	for (int i = 0; !begun_again && i < 100;) {
		if (!__atomic_load_n(&bed.c->feed, __ATOMIC_ACQUIRE))
			continue;
		if (i++ < STOPS)
			__atomic_store_n(&bed.st->feed.ring->alive_ns, 0, __ATOMIC_RELEASE);
		(void)is_written();
	}
	return NULL;
}

/* xkvd stands still again while it begins again: that ends, whatever is written meanwhile. */
static void test_given_up_again(void **state)
{
	pthread_t writer;
	uint64_t before;

	fill_and_stand_still();
	assert_false(is_refused());
	before = feed_given_up(bed.st);
	begun_again = false;
	assert_int_equal(pthread_create(&writer, NULL, write_meanwhile, NULL), 0);
	assert_int_equal(feed_next(reader, &got), -ESTALE);
	begun_again = true;
	pthread_join(writer, NULL);
	while (feed_next(reader, &got)) /* given up once more, after it had begun */
		;
	assert_true(feed_given_up(bed.st) - before <= 2 * STOPS);
	nothing_more();
	feed_trim(bed.st);
	set_by(DRIVER, "a", "1", 1);
	next_has(XKV_CHANGE_CREATE, "a", "1", 1);
}

/* The next xkvd's reader has missed changes, though its place was never closed. */
static void test_given_up_and_killed(void **state)
{
	fill_and_stand_still();
	assert_false(is_refused());
	assert_null(bed_adopt(&bed));
	assert_false(bed.c->feed);
	reader = listen_as("test", false);
	feed_adopted(bed.st);
	nothing_more();
	set_by(DRIVER, "a", "1", 1);
	next_has(XKV_CHANGE_CREATE, "a", "1", 1);
}

static void test_two_readers(void **state)
{
	struct feed_reader *slow = listen_as("slow", false), *none = NULL;
	struct feed_change change;
	bool resumed;

	assert_int_equal(feed_open(bed.st, "slow", &none, &resumed), -EEXIST);
	put_text("a", "1");
	put_text("b", "1");
	next_is(XKV_CHANGE_CREATE, "a");
	next_is(XKV_CHANGE_CREATE, "b");
	nothing_more();
	assert_int_equal(feed_trim(bed.st), 0);
	assert_int_equal(feed_next(slow, &change), 1);
	assert_memory_equal(change.key, "a", 1);
	assert_int_equal(feed_next(slow, &change), 1);
	assert_true(feed_trim(bed.st) > 0); /* the first: the second is not finished */
	assert_memory_equal(change.key, "b", 1);
	feed_close(slow);
	put_text("c", "1");
	next_is(XKV_CHANGE_CREATE, "c");
}

/* Who begins to listen may wait for programs: what was read is given back meanwhile. */
static void test_trimmed_while_others_begin(void **state)
{
	put_text("a", "1");
	next_is(XKV_CHANGE_CREATE, "a");
	nothing_more();
	pthread_mutex_lock(&bed.st->feed.opening);
	assert_true(feed_trim(bed.st) > 0);
	pthread_mutex_unlock(&bed.st->feed.opening);
}

/* What a reader holds is in the ring until it says so, also for the next xkvd. */
static void test_held(void **state)
{
	struct feed_reader *held = listen_as("held", false);
	struct feed_change change;
	uint64_t reached;

	feed_hold(held);
	put_text("a", "1");
	put_text("b", "1");
	assert_int_equal(feed_next(held, &change), 1);
	assert_int_equal(change.position, feed_position(held));
	assert_int_equal(feed_next(held, &change), 1);
	reached = feed_reached(held);
	assert_int_equal(feed_next(held, &change), 0);
	feed_again(held);
	assert_int_equal(feed_next(held, &change), 1);
	assert_memory_equal(change.key, "a", 1);
	while (feed_next(reader, &got) > 0)
		;
	assert_int_equal(feed_trim(bed.st), 0);
	feed_done(held);
	assert_true(feed_trim(bed.st) > 0);
	assert_true(change.position < feed_position(held));

	assert_null(bed_adopt(&bed));
	reader = listen_as("test", true);
	held = listen_as("held", true);
	feed_adopted(bed.st);
	feed_hold(held);
	assert_false(feed_seek(held, reached + 8)); /* beyond the end */
	assert_true(feed_seek(held, reached));
	put_text("c", "1");
	assert_int_equal(feed_next(held, &change), 1);
	assert_memory_equal(change.key, "c", 1);
	feed_leave(held);
	put_text("d", "1");
	held = listen_as("held", true);
	assert_int_equal(feed_next(held, &change), 1);
	assert_memory_equal(change.key, "c", 1); /* was not done */
	feed_close(held);
}

/* ---- large values ------------------------------------------------------------- */

#define LARGE 100000

static uint64_t ref_of(const char *key)
{
	return bed_ref(&bed, bed_slot(&bed, key, strlen(key)));
}

/* Each value is read as it was, whatever has become of its slot's entry since. */
static void test_large_values(void **state)
{
	static uint8_t value[3][LARGE];
	uint64_t ref;

	for (int i = 0; i < 3; i++)
		memcpy(value[i], noise(LARGE), LARGE);
	put("key", value[0], LARGE, 0);
	ref = ref_of("key");
	put("key", value[1], LARGE, 0);
	set_by(DRIVER, "key", "small", 5);
	assert_int_equal(store_delete(bed.ctx, "key", 3, NULL), 0);
	put("key", value[2], LARGE, 0);
	assert_int_not_equal(ref_of("key"), ref); /* not free yet */
	assert_int_equal(store_txn_begin(bed.ctx), 0);
	store_set(bed.ctx, "key", 3, "tiny", 4, 0, 0, 0, NULL);
	assert_int_equal(store_txn_commit(bed.ctx), 0);
	account();
	next_has(XKV_CHANGE_CREATE, "key", value[0], LARGE);
	next_has(XKV_CHANGE_OVERWRITE, "key", value[1], LARGE);
	next_has(XKV_CHANGE_OVERWRITE, "key", "small", 5);
	next_is(XKV_CHANGE_DELETE, "key");
	next_has(XKV_CHANGE_CREATE, "key", value[2], LARGE);
	next_has(XKV_CHANGE_OVERWRITE, "key", "tiny", 4);
	nothing_more();
	feed_trim(bed.st);
	account();
}

/* A value that just does not fit a record is not overwritten in its slot. */
static void test_slot_that_is_referred_to(void **state)
{
	static uint8_t value[XKV_FEED_INLINE + 1];
	char key[XKV_KEY_MAX + 1] = "key";
	size_t len = 3;

	memcpy(value, noise(sizeof(value)), sizeof(value));
	/* the length of a key with which both are in one class */
	while (class_for(bed.st, XKV_SLOT_NEED(len, XKV_FEED_INLINE - 8)) !=
	       class_for(bed.st, XKV_SLOT_NEED(len, sizeof(value))))
		key[len++] = 'k';
	put(key, value, sizeof(value), 0);
	put(key, pattern(1), XKV_FEED_INLINE - 8, 0);
	put(key, pattern(2), XKV_FEED_INLINE - 8, 0);
	next_has(XKV_CHANGE_CREATE, key, value, sizeof(value));
	next_has(XKV_CHANGE_OVERWRITE, key, pattern(1), XKV_FEED_INLINE - 8);
	next_has(XKV_CHANGE_OVERWRITE, key, pattern(2), XKV_FEED_INLINE - 8);
}

static struct feed_reader *listen_for_before(void)
{
	struct feed_reader *before = listen_as("before", false);

	feed_ends_with_xkvd(before);
	bed.st->cfg->cut_bucket = 0;
	bed.st->cfg->cut_version = UINT64_MAX;
	assert_int_equal(feed_before(before), 0);
	return before;
}

/* What a change replaces is read from its slot, which is given back only after that. */
static void test_before(void **state)
{
	static uint8_t value[2][LARGE];
	struct feed_reader *before;
	struct feed_change change, old;

	for (int i = 0; i < 2; i++)
		memcpy(value[i], noise(LARGE), LARGE);
	put("key", value[0], LARGE, 0);
	before = listen_for_before();
	put("key", value[1], LARGE, 0);
	assert_int_equal(feed_next(before, &change), 1);
	assert_int_equal(change.what, XKV_CHANGE_OVERWRITE);
	assert_int_equal(feed_next(before, &old), 1);
	assert_int_equal(old.what, FEED_BEFORE);
	assert_int_equal(feed_position(before), change.position); /* its slot is not given back */
	assert_int_equal(old.value_len, LARGE);
	assert_memory_equal(old.value, value[0], LARGE);
	assert_int_equal(feed_next(before, &old), 0);
	assert_int_equal(feed_position(before), feed_head(bed.st));
	feed_close(before);
}

/* Relocation is no change, but the old slot stays until it was read. */
static void test_relocation(void **state)
{
	static uint8_t value[5000];
	struct store_ctx *ctx = store_ctx_get(bed.st);
	struct xkv_slot *slot;
	struct span span;

	memcpy(value, noise(sizeof(value)), sizeof(value));
	put("key", value, sizeof(value), 0);
	slot = bed_slot(&bed, "key", 3);
	assert_true(span_of_ref(bed.st, bed_ref(&bed, slot), &span));
	assert_true(drain_begin(bed.st, &span));
	assert_int_equal(bed_grow(&bed, slot->class), 0);
	bed_bucket(&bed, "key", 3)->head |= XKV_BUCKET_LOCK; /* it cannot be moved, at first */
	bed_impatient(&bed, true);
	drain_run(ctx);
	bed_impatient(&bed, false);
	bed_bucket(&bed, "key", 3)->head &= ~XKV_BUCKET_LOCK;
	assert_ptr_equal(bed_slot(&bed, "key", 3), slot);
	drain_run(ctx);
	assert_ptr_not_equal(bed_slot(&bed, "key", 3), slot);
	put("key", "x", 1, 0);
	next_has(XKV_CHANGE_CREATE, "key", value, sizeof(value));
	next_has(XKV_CHANGE_OVERWRITE, "key", "x", 1);
	nothing_more();
	feed_trim(bed.st);
	drain_run(ctx);
	store_ctx_put(ctx);
}

/* ---- xkvd is killed ------------------------------------------------------------ */

static void test_killed(void **state)
{
	listen_as("other", false);
	put("large", noise(LARGE), LARGE, 0);
	put_text("a", "1");
	assert_int_equal(store_delete(bed.ctx, "large", 5, NULL), 0);
	next_is(XKV_CHANGE_CREATE, "large");
	next_is(XKV_CHANGE_CREATE, "a"); /* perhaps it was not done with that */
	bed.st->feed.ring->trimmed = bed.st->feed.ring->tail; /* killed before it was filled */
	assert_null(bed_adopt(&bed));
	set_by(DRIVER, "b", "2", 1);
	reader = listen_as("test", true);
	feed_adopted(bed.st); /* "other" does not come back */
	next_is(XKV_CHANGE_CREATE, "a");
	next_is(XKV_CHANGE_DELETE, "large");
	next_has(XKV_CHANGE_CREATE, "b", "2", 1);
	nothing_more();
	assert_true(feed_trim(bed.st) > 0);
	account();
	assert_null(bed_adopt(&bed));
	reader = NULL;
	feed_adopted(bed.st);
	assert_false(bed.c->feed);
	set_by(DRIVER, "b", "3", 1);
	reader = listen_as("test", false);
	nothing_more();
}

/* Killed while a record was filled with zeros. */
static void test_killed_while_trimming(void **state)
{
	struct xkv_feed *ring = bed.st->feed.ring;
	struct xkv_feed_record *rec = (void *)(ring->data + (ring->tail & (XKV_FEED_BYTES - 1)));

	put_text("a", "1");
	put_text("b", "1");
	next_is(XKV_CHANGE_CREATE, "a");
	next_is(XKV_CHANGE_CREATE, "b");
	ring->trimmed = ring->tail + rec->bytes;
	memset(rec, 0, 16);
	assert_null(bed_adopt(&bed));
	reader = listen_as("test", true);
	feed_adopted(bed.st);
	next_is(XKV_CHANGE_CREATE, "b");
	nothing_more();
	feed_trim(bed.st);
}

/* ---- what was only read, and who writes it then ----------------------------------- */

#define ORDER_SECONDS 2

static _Atomic bool stop;

static void skip_under_tsan(void)
{
#ifdef __SANITIZE_THREAD__
	puts("SKIP: reports of races, also suppressed ones, take all of the time");
	skip();
#endif
}

/* Counts in a key. */
static void *count_thread(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	char text[16];

	for (unsigned int n = 1; !stop; n++) {
		snprintf(text, sizeof(text), "%u", n);
		store_set(ctx, "count", 5, text, strlen(text), 0, 0, 0, NULL);
	}
	store_ctx_put(ctx);
	return NULL;
}

/* Copies what the key has, in a transaction of xkvd's. */
static void *copy_thread(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	struct store_entry e;
	char text[16];

	while (!stop) {
		store_txn_begin(ctx);
		if (store_get(ctx, "count", 5, &e)) {
			store_txn_abort(ctx);
			continue;
		}
		memcpy(text, e.value, e.value_len);
		store_set(ctx, "copy", 4, text, e.value_len, 0, 0, 0, NULL);
		store_txn_commit(ctx);
	}
	store_ctx_put(ctx);
	return NULL;
}

/* The same, in an ATOMIC datagram. */
static void *datagram_thread(void *arg)
{
	struct operation get = { .opcode = XKV_OP_GET, TEXT("count") }, check = get, set;
	struct payload req;
	struct reply r;
	char text[16];

	check.opcode = XKV_OP_CHECK;
	set = (struct operation){ .opcode = XKV_OP_SET, TEXT("copy"), .value = text };
	while (!stop) {
		ask_op(DRIVER, &get, &r);
		if (r.passed || r.result[0].status != XKV_OK)
			continue;
		set.value_len = r.result[0].value_len;
		memcpy(text, r.value[0], set.value_len);
		check.version = r.result[0].version;
		begin(&req, next_id++, 0);
		req.byte[3] |= XKV_F_ATOMIC;
		request_add(&req, &check);
		request_add(&req, &set);
		ask(DRIVER, &req, &r);
	}
	return NULL;
}

struct order {
	char count[16];
	size_t len;
	unsigned int copies, wrong, replaced;
};

/* At each place of the feed a copy is of what the key has there. */
static void order_apply(struct order *o, const struct feed_change *c)
{
	if (!memcmp(c->key, "count", c->key_len)) {
		o->len = c->value_len;
		memcpy(o->count, c->value, o->len);
		return;
	}
	o->copies++;
	o->wrong += c->value_len != o->len || memcmp(c->value, o->count, o->len) != 0;
}

static void test_order_of_what_was_read(void **state)
{
	static void *(*const main_of[])(void *) = { count_thread, copy_thread, datagram_thread };
	struct feed_reader *before = listen_for_before();
	struct order o = { .len = 0 };
	struct feed_change old;
	pthread_t thread[3];

	skip_under_tsan();
	stop = false;
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, main_of[i], NULL), 0);
	for (uint64_t end = monotonic_ms() + ORDER_SECONDS * 1000; monotonic_ms() < end;) {
		while (feed_next(reader, &got) > 0)
			order_apply(&o, &got);
		while (feed_next(before, &old) > 0)
			o.replaced += old.what == FEED_BEFORE;
		feed_trim(bed.st);
	}
	stop = true;
	for (int i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	printf("# %u copies\n", o.copies);
	assert_int_equal(o.wrong, 0);
	assert_true(o.copies > 100 && o.replaced > 100);
	feed_close(before);
}

/* ---- the store, rebuilt from the feed ------------------------------------------- */

#define KEYS	300
#define SECONDS 2

struct mirror_entry {
	struct hashtable_entry e;
	char key[16];
	size_t key_len, value_len;
	uint64_t expire_ms, version;
	char *value;
};

struct mirror {
	struct hashtable table;
	uint64_t changes, transactions;
	const char *wrong;
	pthread_mutex_t lock; /* of reading; of what follows, too */
	uint64_t cut_at;      /* a moment, whose entries are to be copied; 0 = none */
	struct mirror *copy;  /* to here */
	_Atomic bool last;    /* nothing changes any more: ends when all was read */
};

static const uint64_t siphash_key[2] = { 1, 2 };

static struct mirror_entry *mirror_find(struct mirror *m, const void *key, size_t len)
{
	struct hashtable_entry *e =
		hashtable_find(&m->table, hashtable_hash(siphash_key, key, len));
	struct mirror_entry *entry;

	for (; e; e = hashtable_find_next(e)) {
		entry = (struct mirror_entry *)e;
		if (entry->key_len == len && !memcmp(entry->key, key, len))
			return entry;
	}
	return NULL;
}

static void mirror_put(struct mirror *m, struct mirror_entry *entry, const struct feed_change *c)
{
	if (!entry) {
		entry = calloc(1, sizeof(*entry));
		memcpy(entry->key, c->key, c->key_len);
		entry->key_len = c->key_len;
		hashtable_insert(&m->table, &entry->e,
				 hashtable_hash(siphash_key, c->key, c->key_len));
	}
	if (c->value) {
		entry->value = realloc(entry->value, c->value_len + 1);
		memcpy(entry->value, c->value, c->value_len);
		entry->value_len = c->value_len;
	}
	entry->expire_ms = c->expire_ms;
	entry->version = c->version;
}

static void mirror_remove(struct mirror *m, struct mirror_entry *entry)
{
	hashtable_remove(&m->table, &entry->e);
	free(entry->value);
	free(entry);
}

/* A change must fit to what was there before: order, and none is lost or told twice. */
static void mirror_apply(struct mirror *m, const struct feed_change *c)
{
	struct mirror_entry *entry = mirror_find(m, c->key, c->key_len);

	m->changes++;
	m->transactions += c->more;
	if (c->what == XKV_CHANGE_CREATE && entry)
		m->wrong = "created twice";
	else if (c->what != XKV_CHANGE_CREATE && !entry)
		m->wrong = "changed without having been created";
	else if (c->what >= XKV_CHANGE_DELETE && entry->version != c->version)
		m->wrong = "removed with another version";
	else if (c->what >= XKV_CHANGE_DELETE)
		mirror_remove(m, entry);
	else
		mirror_put(m, entry, c);
}

static void mirror_copy(struct mirror *to, const struct mirror *m)
{
	for (size_t i = 0; i < m->table.size; i++)
		for (struct hashtable_entry *e = m->table.slots[i]; e; e = e->next) {
			const struct mirror_entry *from = (const struct mirror_entry *)e;
			struct mirror_entry *entry = malloc(sizeof(*entry));

			*entry = *from;
			entry->value = malloc(from->value_len + 1);
			memcpy(entry->value, from->value, from->value_len);
			hashtable_insert(&to->table, &entry->e, e->hash);
		}
}

/* The next change; if it is the first one after a moment, what was before it is copied. */
static int mirror_next(struct mirror *m)
{
	struct feed_change c;
	int ret;

	pthread_mutex_lock(&m->lock);
	ret = feed_next(reader, &c);
	if (m->cut_at && (ret > 0 ? c.position : feed_reached(reader)) >= m->cut_at) {
		mirror_copy(m->copy, m);
		m->cut_at = 0;
	}
	if (ret > 0)
		mirror_apply(m, &c);
	pthread_mutex_unlock(&m->lock);
	return ret;
}

static void *mirror_thread(void *arg)
{
	struct mirror *m = arg;
	bool last;
	int ret;

	do {
		last = m->last;
		while ((ret = mirror_next(m)) > 0 && !m->wrong)
			;
		if (ret < 0)
			m->wrong = strerror(-ret);
		feed_trim(bed.st);
		sched_yield();
	} while (!last && !m->wrong);
	return NULL;
}

static void key_of(char key[16], unsigned int n)
{
	snprintf(key, 16, "key%u", n % KEYS);
}

/* Changes by the driver's front end: small values.  What it passes up is run with bed.ctx. */
static void *driver_thread(void *arg)
{
	unsigned int n = (uintptr_t)arg;
	struct operation op;
	struct reply r;
	char key[16];

	while (!stop) {
		n = n * 1103515245 + 12345;
		key_of(key, n >> 8);
		op = (struct operation){ .opcode = n & 0x80000 ? XKV_OP_SET : XKV_OP_DELETE,
					 TEXT(key) };
		if (op.opcode == XKV_OP_SET) {
			op.value = pattern(n & 1);
			op.value_len = n >> 20 & 1023;
			op.ttl = n & 0x40000 ? 20 : 0;
		}
		ask_op(DRIVER, &op, &r);
	}
	return NULL;
}

/* By xkvd: large values, transactions, evictions. */
static void daemon_turn(struct store_ctx *ctx, unsigned int n)
{
	char key[16], other[16];
	struct xkv_slot *slot;

	key_of(key, n >> 8);
	key_of(other, n >> 17);
	switch (n >> 28) {
	case 0 ... 3:
		store_set(ctx, key, strlen(key), zeros, n >> 16 & 0xffff, 0, 0, 0, NULL);
		break;
	case 4 ... 6:
		store_txn_begin(ctx);
		store_set(ctx, key, strlen(key), pattern(1), n & 0xfff, 0, 0, 0, NULL);
		store_set(ctx, other, strlen(other), pattern(0), 9, 0, 0, 0, NULL);
		store_txn_commit(ctx);
		break;
	case 7 ... 9:
		store_append(ctx, key, strlen(key), pattern(0), n & 0xfff, &(uint64_t){ 0 });
		break;
	case 10:
		slot = bed_slot(&bed, key, strlen(key));
		if (slot)
			evict_entry(ctx, bed_ref(&bed, slot));
		break;
	case 11:
		store_expire(ctx, key, strlen(key), store_now_ms(bed.st) + (n & 63));
		break;
	default:
		store_delete(ctx, key, strlen(key), NULL);
	}
}

static void *daemon_thread(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	unsigned int n = (uintptr_t)arg;

	while (!stop) {
		n = n * 1664525 + 1013904223;
		daemon_turn(ctx, n);
	}
	store_ctx_put(ctx);
	return NULL;
}

/* ---- and cuts of it ---------------------------------------------------------------- */

struct cutter {
	bool expired; /* wanted, too */
	struct mirror *mirror, expected;
	struct store_ctx *ctx;
	uint64_t begin_ms, moment_ms;
	unsigned int cuts, keys;
	const char *wrong;
};

static uint64_t moment(void *arg)
{
	struct cutter *c = arg;
	uint64_t at;

	pthread_mutex_lock(&c->mirror->lock);
	c->mirror->copy = &c->expected;
	c->mirror->cut_at = at = feed_head(bed.st);
	c->moment_ms = store_now_ms(bed.st);
	pthread_mutex_unlock(&c->mirror->lock);
	return at; /* the mirror may have passed it, and forgotten it, by now */
}

/* Each change of the mirror comes soon after that of the store. */
static bool copied(struct cutter *c)
{
	bool is;

	pthread_mutex_lock(&c->mirror->lock);
	is = !c->mirror->cut_at;
	pthread_mutex_unlock(&c->mirror->lock);
	return is;
}

static int cut_key(void *arg, const void *key, size_t key_len, const struct store_entry *e)
{
	struct cutter *c = arg;
	struct mirror_entry *entry;

	while (!copied(c) && !c->mirror->wrong)
		sched_yield();
	entry = mirror_find(&c->expected, key, key_len);
	if (!entry)
		c->wrong = "a key that was not there, or twice";
	else if (entry->version != e->version || entry->expire_ms != e->expire_ms ||
		 entry->value_len != e->value_len ||
		 memcmp(entry->value, e->value, e->value_len) != 0)
		c->wrong = "an entry of another moment";
	else if (!c->expired && e->expire_ms && e->expire_ms <= c->begin_ms)
		c->wrong = "an entry that had expired";
	if (c->wrong)
		return -1;
	mirror_remove(&c->expected, entry);
	c->keys++;
	return 0;
}

/* What is left had expired and was not wanted, or is missing. */
static void cut_compare(struct cutter *c)
{
	struct hashtable *t = &c->expected.table;

	for (size_t i = 0; i < t->size; i++)
		for (struct hashtable_entry *e = t->slots[i], *next; e; e = next) {
			struct mirror_entry *entry = (struct mirror_entry *)e;

			next = e->next;
			if (!c->wrong &&
			    (c->expired || !entry->expire_ms || entry->expire_ms > c->moment_ms))
				c->wrong = "an entry is missing";
			free(entry->value);
			free(entry);
		}
	hashtable_free(t);
	memset(t, 0, sizeof(*t));
}

static void *cutter_thread(void *arg)
{
	struct cutter *c = arg;
	struct cut_user user = { moment, cut_key, c, false };
	int ret;

	while (!stop && !c->wrong) {
		user.expired = c->expired = c->cuts % 2;
		c->begin_ms = store_now_ms(bed.st);
		ret = store_cut(c->ctx, &user);
		while (!copied(c) && !c->mirror->wrong)
			sched_yield();
		if (ret && !c->wrong)
			c->wrong = strerror(-ret);
		cut_compare(c);
		c->cuts++;
	}
	return NULL;
}

static int compare(void *arg, const void *key, size_t key_len, const struct store_entry *e)
{
	struct mirror *m = arg;
	struct mirror_entry *entry = mirror_find(m, key, key_len);

	if (!entry || entry->version != e->version || entry->expire_ms != e->expire_ms ||
	    entry->value_len != e->value_len || memcmp(entry->value, e->value, e->value_len))
		m->wrong = "an entry of the store differs";
	else
		mirror_remove(m, entry);
	return 0;
}

/* Expired entries are removed first: a walk does not show them. */
static void compare_all(struct mirror *m)
{
	uint64_t cursor = 0;

	assert_null(m->wrong);
	printf("# %" PRIu64 " changes\n", m->changes);
	assert_true(m->changes > 1000);
	assert_true(m->transactions > 10);
	do {
		assert_int_equal(store_scan(bed.ctx, &cursor, 100, true, compare, m), 0);
	} while (cursor);
	assert_null(m->wrong);
	assert_int_equal(m->table.count, 0);
	hashtable_free(&m->table);
}

static void test_rebuilt(void **state)
{
	struct mirror m = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct cutter cutter = { .mirror = &m };
	struct store_ctx *ctx;
	pthread_t thread[5];

	skip_under_tsan();
	ctx = store_ctx_get(bed.st);
	stop = false;
	bed.st->maint.ctx = ctx;
	bed_maintained(&bed, true);
	assert_int_equal(pthread_create(&thread[0], NULL, mirror_thread, &m), 0);
	assert_int_equal(pthread_create(&thread[1], NULL, driver_thread, (void *)1), 0);
	assert_int_equal(pthread_create(&thread[2], NULL, daemon_thread, (void *)2), 0);
	assert_int_equal(pthread_create(&thread[3], NULL, daemon_thread, (void *)3), 0);
	cutter.ctx = store_ctx_get(bed.st);
	assert_int_equal(pthread_create(&thread[4], NULL, cutter_thread, &cutter), 0);
	for (uint64_t end = monotonic_ms() + SECONDS * 1000; monotonic_ms() < end;)
		for (unsigned int class = 0; class < bed.st->class_count; class ++) {
			maintenance_serve(bed.st);
			bed_drain(&bed, ctx, class, 1);
			store_expire_cycle(ctx, 1000);
		}
	stop = true;
	bed_maintained(&bed, false);
	for (int i = 1; i < 5; i++)
		pthread_join(thread[i], NULL);
	m.last = true; /* a cut waits for the mirror until its end */
	pthread_join(thread[0], NULL);
	store_ctx_put(cutter.ctx);
	printf("# %u cuts of %u keys\n", cutter.cuts, cutter.keys);
	assert_string_equal(cutter.wrong ? cutter.wrong : "", "");
	assert_true(cutter.cuts > 3 && cutter.keys > 100);
	store_ctx_put(ctx);
	wait_until(store_now_ms(bed.st) + 64);
	expire_all();
	while (feed_next(reader, &got) > 0)
		mirror_apply(&m, &got);
	compare_all(&m);
}

/* ---- a moment beside a transaction that leaves nothing of what it replaces ------------ */

enum {
	MANY = 65000, /* keys whose old entries do not fit the feed together */
	MANY_BYTES = 60,
	ROUNDS = 8,
	MOMENT_MS = 50, /* within which a cut has begun, and waits to choose its moment */
};

/* A transaction of all of them, by a context of its own.  Values of zeros, but for their ends. */
static void set_many(struct store_ctx *ctx, int round)
{
	char key[16], value[MANY_BYTES] = { 0 };

	value[sizeof(value) - 1] = (char)round;
	assert_int_equal(store_txn_begin(ctx), 0);
	for (int i = 0; i < MANY; i++) {
		snprintf(key, sizeof(key), "%08d", i);
		store_set(ctx, key, 8, value, sizeof(value), 0, 0, 0, NULL);
	}
	assert_int_equal(store_txn_commit(ctx), 0);
}

struct many {
	struct store_ctx *ctx;
	int round;
	unsigned int of[2]; /* of this round, and of the one before */
	int ret;
};

static void *set_many_thread(void *arg)
{
	const struct many *m = arg;

	set_many(m->ctx, m->round);
	return NULL;
}

static uint64_t head_now(void *arg)
{
	return feed_head(bed.st);
}

static int count_many(void *arg, const void *key, size_t key_len, const struct store_entry *e)
{
	struct many *m = arg;

	m->of[0] += ((const char *)e->value)[MANY_BYTES - 1] == (char)m->round;
	m->of[1] += ((const char *)e->value)[MANY_BYTES - 1] == (char)(m->round - 1);
	return 0;
}

static void *cut_many_thread(void *arg)
{
	struct many *m = arg;
	const struct cut_user user = { head_now, count_many, m, false };
	struct store_ctx *ctx = store_ctx_get(bed.st);

	m->ret = store_cut(ctx, &user);
	store_ctx_put(ctx);
	return NULL;
}

/* The moment is chosen as soon as the transaction has said that it leaves nothing. */
static void cut_beside(struct many *m)
{
	uint64_t spoilt = feed_spoilt(bed.st);
	pthread_t cutter, writer;

	pthread_mutex_lock(&bed.st->swap.lock);
	assert_int_equal(pthread_create(&cutter, NULL, cut_many_thread, m), 0);
	while (!(bed.st->cfg->feed & XKV_RECORD_BEFORE))
		sched_yield();
	usleep(1000 * MOMENT_MS); /* it waits for us */
	assert_int_equal(pthread_create(&writer, NULL, set_many_thread, m), 0);
	while (feed_spoilt(bed.st) == spoilt)
		;
	pthread_mutex_unlock(&bed.st->swap.lock);
	pthread_join(writer, NULL);
	pthread_join(cutter, NULL);
}

static void test_moment_beside_large_transactions(void **state)
{
	struct many m = { .round = 1 };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	puts("SKIP: an instant that a slow build misses");
	skip();
#endif
	feed_close(reader);
	reader = NULL;
	bed_maintenance(&bed, true);
	m.ctx = store_ctx_get(bed.st);
	set_many(m.ctx, 0);
	for (; m.round <= ROUNDS; m.round++) {
		m.of[0] = m.of[1] = 0;
		cut_beside(&m);
		if (m.ret == -EAGAIN)
			continue;
		assert_int_equal(m.ret, 0);
		assert_int_equal(m.of[0] + m.of[1], MANY);
		assert_true(!m.of[0] || !m.of[1]);
	}
	bed_maintenance(&bed, false);
	store_ctx_put(m.ctx);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_causes),
		TEST(test_gone),
		TEST(test_own_causes),
		TEST(test_committed),
		TEST(test_each_change),
		TEST(test_expiry_and_eviction),
		TEST(test_transaction),
		TEST(test_atomic_datagram),
		TEST(test_transaction_without_readers),
		TEST(test_full_ring),
		TEST(test_given_up),
		TEST(test_given_up_again),
		TEST(test_given_up_and_killed),
		TEST(test_trimmed_while_others_begin),
		TEST(test_held),
		TEST(test_two_readers),
		TEST(test_large_values),
		TEST(test_slot_that_is_referred_to),
		TEST(test_before),
		TEST(test_relocation),
		TEST(test_killed),
		TEST(test_killed_while_trimming),
		TEST(test_order_of_what_was_read),
		TEST(test_rebuilt),
		TEST(test_moment_beside_large_transactions),
	};
	int skip = bed_begin(argc, argv);

	return skip ? skip : BOTH_WAYS("feed", tests, begin_group);
}

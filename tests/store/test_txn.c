// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 4 */
/*
 * Transactions of the store: all changes or none, what a transaction sees, conflicts, memory that
 * runs out, and an xkvd that is killed.
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

#include "loader/store/store.h"
#include "loader/store/txn.h"
#include "loader/store/impl.h"
#include "loader/util/clock.h"
#include "ask.h"
#include "fixture.h"
#include "packet.h"
#include "random.h"
#include "xdpbed.h"

static void txn(void)
{
	assert_int_equal(store_txn_begin(bed.ctx), 0);
}

static int commit(void)
{
	return store_txn_commit(bed.ctx);
}

/* While the test holds a lock that the transaction needs. */
static int commit_held(void)
{
	int ret;

	bed_impatient(&bed, true);
	ret = commit();
	bed_impatient(&bed, false);
	return ret;
}

static int set(const char *key, const char *value)
{
	return store_set(bed.ctx, key, strlen(key), value, strlen(value), 0, 0, 0, NULL);
}

static int del(const char *key)
{
	return store_delete(bed.ctx, key, strlen(key), NULL);
}

/* The value that the context sees. */
static void sees(const char *key, const char *value)
{
	struct store_entry e;

	assert_int_equal(store_get(bed.ctx, key, strlen(key), &e), 0);
	assert_int_equal(e.value_len, strlen(value));
	assert_memory_equal(e.value, value, e.value_len);
}

/* Another client's SET, in XDP. */
static void other_sets(const char *key, const char *value)
{
	struct operation op = {
		.opcode = XKV_OP_SET, TEXT(key), .value = value, .value_len = strlen(value)
	};
	struct reply r;

	ask_op(DRIVER, &op, &r);
	assert_int_equal(r.result[0].status, XKV_OK);
}

static int setup_chains(void **state)
{
	open_masked_bed(~0ULL, 1);
	return 0;
}

/* ---- what it sees, and does ------------------------------------------------ */

static void test_all_at_once(void **state)
{
	uint64_t keys = store_count(bed.st), version;

	put_text("old", "1");
	put_text("gone", "2");
	version = version_of("old");
	txn();
	assert_int_equal(set("old", "3"), 0);
	assert_int_equal(set("new", "4"), 0);
	assert_int_equal(del("gone"), 0);
	assert_int_equal(del("gone"), -ENOENT);
	assert_int_equal(del("never"), -ENOENT);
	assert_int_equal(store_expire(bed.ctx, "old", 3, store_now_ms(bed.st) + 100000), 0);
	sees("old", "3");
	sees("new", "4");
	assert_int_equal(commit(), 0);
	sees("old", "3");
	sees("new", "4");
	is_gone("gone");
	assert_true(version_of("old") != version);
	assert_true(entry_of("old", 3).expire_ms > store_now_ms(bed.st));
	assert_int_equal(entry_of("new", 3).expire_ms, 0);
	assert_int_equal(store_count(bed.st), keys + 2);
	account();
}

static void test_abort_leaves_all_as_it_was(void **state)
{
	put_text("old", "1");
	txn();
	set("old", "3");
	set("new", "4");
	store_txn_abort(bed.ctx);
	holds_text("old", "1");
	is_gone("new");
	account();
}

/* Without its changes, but what it has read was true together. */
static void test_dropped(void **state)
{
	struct store_entry e;

	put_text("a", "1");
	put_text("b", "1");
	for (int change = 0; change < 2; change++) {
		txn();
		sees("a", "1");
		sees("b", "1");
		assert_int_equal(store_get(bed.ctx, "new", 3, &e), -ENOENT);
		set("b", "2");
		set("new", "2");
		set("blind", "2");
		if (change)
			other_sets("a", "3");
		assert_int_equal(store_txn_drop(bed.ctx), change ? -ECANCELED : 0);
		is_gone("new");
		is_gone("blind");
		holds_text("b", "1");
	}
	account();
}

static void test_blind_writes(void **state)
{
	put_text("a", "1");
	txn();
	set("a", "2");
	set("b", "2");
	set("c", "2");
	del("c");
	other_sets("a", "3");
	other_sets("b", "3");
	other_sets("c", "3");
	assert_int_equal(commit(), 0); /* as if all had come after the others */
	holds_text("a", "2");
	holds_text("b", "2");
	is_gone("c");
	account();
}

/* The search for expired entries has to know of each expiry that is given. */
static void test_expiry_is_counted(void **state)
{
	uint64_t ttls = count_of(XKV_C_ttls_given);

	put_text("a", "1");
	txn();
	assert_int_equal(store_expire(bed.ctx, "a", 1, store_now_ms(bed.st) + 100000), 0);
	set("b", "1");
	assert_int_equal(commit(), 0);
	assert_int_equal(count_of(XKV_C_ttls_given), ttls + 1);
	txn();
	set("b", "2");
	assert_int_equal(store_expire(bed.ctx, "b", 1, store_now_ms(bed.st) + 100000), 0);
	assert_int_equal(commit(), 0);
	assert_int_equal(count_of(XKV_C_ttls_given), ttls + 2);
}

/* A key does not become one that was never used because it is overwritten. */
static void test_use_is_kept(void **state)
{
	put_text("a", "1");
	bed_slot(&bed, "a", 1)->access = 77;
	txn();
	set("a", "2");
	assert_int_equal(commit(), 0);
	assert_int_equal(bed_slot(&bed, "a", 1)->access, 77);
}

static void test_expiry_alone(void **state)
{
	struct store_entry e;

	put_text("a", "value");
	txn();
	assert_int_equal(store_expire(bed.ctx, "a", 1, store_now_ms(bed.st) + 100000), 0);
	sees("a", "value");
	assert_int_equal(store_expire(bed.ctx, "none", 4, 0), -ENOENT);
	assert_int_equal(commit(), 0);
	e = entry_of("a", 1);
	assert_true(e.expire_ms > store_now_ms(bed.st));
	txn();
	assert_int_equal(store_expire(bed.ctx, "a", 1, 1), 0);
	assert_int_equal(store_get(bed.ctx, "a", 1, &e), -ENOENT);
	assert_int_equal(commit(), 0);
	is_gone("a");
}

/* What expires between reading and the commit has changed, even if nobody has removed it. */
static void test_expires_before_the_commit(void **state)
{
	struct store_entry e;

	for (int written = 0; written < 3; written++) {
		assert_int_equal(store_set(bed.ctx, "a", 1, "1", 1, 0, 0,
					   store_now_ms(bed.st) + 60000, NULL),
				 0);
		txn();
		sees("a", "1");
		set("b", "1");
		if (written == 1)
			set("a", "2");
		if (written == 2)
			assert_int_equal(store_expire(bed.ctx, "a", 1, 0), 0);
		pass_time(120000);
		assert_int_equal(commit(), -ECANCELED);
		is_gone("b");
		is_gone("a");
		txn(); /* read as absent, though its slot is still there */
		assert_int_equal(store_get(bed.ctx, "a", 1, &e), -ENOENT);
		set("b", "1");
		assert_int_equal(commit(), 0);
		holds_text("b", "1");
		del("b");
		expire_all();
		pass_time(-120000);
	}
	account();
}

/* An expiry that the protocol cannot express is limited as outside of transactions. */
static void test_latest_expiry(void **state)
{
	txn();
	assert_int_equal(store_set(bed.ctx, "a", 1, "1", 1, 0, 0, INT64_MAX, NULL), 0);
	set("b", "1");
	assert_int_equal(store_expire(bed.ctx, "b", 1, INT64_MAX), 0);
	assert_int_equal(entry_of("a", 1).expire_ms, XKV_TTL_MAX);
	assert_int_equal(commit(), 0);
	assert_int_equal(entry_of("a", 1).expire_ms, XKV_TTL_MAX);
	assert_int_equal(entry_of("b", 1).expire_ms, XKV_TTL_MAX);
}

#define BESIDE (4 * XKV_TXN_HAND) /* keys of a length; every other one gives its slot away */

/* A key of `len` bytes, in letters that tell it from the others. */
static char *key_of_length(size_t len, unsigned int n)
{
	static char key[XKV_KEY_MAX];

	memset(key, 'k', len);
	for (size_t i = 0; i < len && i < 2; i++, n /= 16)
		key[i] = (char)('a' + n % 16);
	return key;
}

static void set_empty(size_t len, unsigned int n)
{
	assert_int_equal(store_set(bed.ctx, key_of_length(len, n), len, NULL, 0, 0, 0, 0, NULL), 0);
}

/* An entry that fills its slot exactly leaves the entries beside it as they were. */
static void test_exact_fits(void **state)
{
	uint64_t version[BESIDE];

	for (size_t len = 2; len <= XKV_KEY_MAX; len++) {
		for (unsigned int n = 0; n < BESIDE; n++)
			set_empty(len, n);
		for (unsigned int n = 0; n < BESIDE; n++)
			version[n] = entry_of(key_of_length(len, n), len).version;
		for (unsigned int n = 0; n < BESIDE; n += 2)
			assert_int_equal(store_delete(bed.ctx, key_of_length(len, n), len, NULL),
					 0);
		txn();
		for (unsigned int n = 0; n < BESIDE; n += 2)
			set_empty(len, n);
		assert_int_equal(commit(), 0);
		for (unsigned int n = 1; n < BESIDE; n += 2)
			assert_int_equal(entry_of(key_of_length(len, n), len).version, version[n]);
	}
	account();
}

struct got {
	int ret[80];
	size_t len[80];
	char first[80];
};

static void on_got(void *arg, unsigned int op, int ret, const struct store_entry *e)
{
	struct got *g = arg;

	g->ret[op] = ret;
	g->len[op] = e->value ? e->value_len : 0;
	g->first[op] = e->value_len ? *(const char *)e->value : 0;
}

/* Operations in a batch read together what they need; each sees what those before it did. */
static void test_batch(void **state)
{
	static char key[80][8];
	struct store_op op[80];
	static struct got g;

	for (int i = 0; i < 80; i++) {
		snprintf(key[i], sizeof(key[i]), "k%d", i / 4);
		op[i] = (struct store_op){ .opcode = i % 4 == 2 ? XKV_OP_DELETE : XKV_OP_GET,
					   .key = key[i],
					   .key_len = strlen(key[i]) };
		if (i % 4 == 0 && i % 5)
			assert_int_equal(store_set(bed.ctx, key[i], strlen(key[i]),
						   i % 3 ? "1" : (const void *)zeros,
						   i % 3 ? 1 : 100000, 0, 0, 0, NULL),
					 0);
	}
	op[7].key_len = XKV_LONG_KEY_MAX + 1;
	txn();
	set("k2", "22");
	store_run(bed.ctx, op, 80, on_got, &g);
	assert_int_equal(g.ret[7], -EMSGSIZE);
	for (int i = 0; i < 80; i++) {
		bool there = i / 4 * 4 % 5 && i % 4 < 2;
		size_t len = i / 4 == 2 ? 2 : i / 4 * 4 % 3 ? 1 : 100000;

		if (i == 7)
			continue;
		assert_int_equal(g.ret[i], there || (i % 4 == 2 && i / 4 * 4 % 5) ? 0 : -ENOENT);
		assert_int_equal(g.len[i], there ? len : 0);
		assert_int_equal(g.first[i], there && len == 1 ? '1' : there && len == 2 ? '2' : 0);
	}
	assert_int_equal(commit(), 0);
	for (int i = 0; i < 20; i++)
		is_gone(key[i * 4]);
	account();
}

/* ---- conflicts --------------------------------------------------------------- */

static void test_read_key_was_changed(void **state)
{
	struct store_ctx *other = store_ctx_get(bed.st);
	struct store_entry e;

	put_text("a", "1");
	txn();
	sees("a", "1");
	set("b", "1");
	other_sets("a", "1");
	assert_int_equal(commit(), -ECANCELED);
	is_gone("b");
	txn();
	assert_int_equal(store_get(bed.ctx, "c", 1, &e), -ENOENT);
	set("b", "1");
	other_sets("c", "1");
	assert_int_equal(commit(), -ECANCELED);
	is_gone("b");
	txn();
	sees("a", "1");
	sees("c", "1");
	other_sets("c", "2");
	assert_int_equal(commit(), -ECANCELED); /* it only reads, but not at one point in time */
	txn();
	sees("a", "1");
	set("b", "1");
	assert_int_equal(store_delete(other, "a", 1, NULL), 0);
	assert_int_equal(commit(), -ECANCELED);
	is_gone("b");
	store_ctx_put(other);
	account();
}

static void test_written_key_was_changed(void **state)
{
	struct store_ctx *other = store_ctx_get(bed.st);
	int64_t sum;

	put_text("n", "1");
	txn();
	assert_int_equal(store_incr(bed.ctx, "n", 1, 5, &sum), 0);
	assert_int_equal(sum, 6);
	set("other", "1");
	other_sets("n", "100");
	assert_int_equal(commit(), -ECANCELED);
	holds_text("n", "100");
	is_gone("other");
	txn();
	assert_int_equal(store_incr(bed.ctx, "n", 1, 5, &sum), 0);
	assert_int_equal(store_delete(other, "n", 1, NULL), 0);
	assert_int_equal(commit(), -ECANCELED);
	is_gone("n");
	store_ctx_put(other);
	account();
}

static void test_expected_version(void **state)
{
	uint64_t version;

	put_text("a", "1");
	version = version_of("a");
	txn();
	assert_int_equal(store_txn_expect(bed.ctx, "a", 1, version), 0);
	assert_int_equal(store_txn_expect(bed.ctx, "none", 4, 0), 0);
	assert_int_equal(store_txn_expect(bed.ctx, "a", 1, 0), -ECANCELED);
	assert_int_equal(store_txn_expect(bed.ctx, "a", 1, version + 2), -ECANCELED);
	assert_int_equal(store_txn_expect(bed.ctx, "none", 4, version), -ECANCELED);
	set("b", "1");
	other_sets("none", "1");
	assert_int_equal(commit(), -ECANCELED);
	is_gone("b");
}

/* ---- failures on the way ------------------------------------------------------ */

/* A lock that is held: nothing was changed, and all that was locked is free again. */
static void test_a_lock_is_held(void **state)
{
	struct xkv_bucket *b;
	struct xkv_slot *slot;
	char key[16];

	for (int i = 0; i < 30; i++) {
		snprintf(key, sizeof(key), "old%d", i);
		put_text(key, "1");
	}
	slot = bed_slot(&bed, "old7", 4);
	b = bed_bucket(&bed, "old3", 4);
	for (int held = 0; held < 2; held++) {
		txn();
		for (int i = 0; i < 30; i++) {
			snprintf(key, sizeof(key), i % 2 ? "old%d" : "new%d", i);
			set(key, "2");
		}
		if (held)
			b->head |= XKV_BUCKET_LOCK;
		else
			slot->seq |= 1;
		assert_int_equal(commit_held(), -EBUSY);
		if (held)
			b->head &= ~XKV_BUCKET_LOCK;
		else
			slot->seq &= ~1ULL;
		for (int i = 0; i < 30; i++) {
			snprintf(key, sizeof(key), "old%d", i);
			holds_text(key, "1");
			snprintf(key, sizeof(key), "new%d", i);
			is_gone(key);
		}
		account();
	}
}

/*
 * An absent key has no version: its bucket is locked for as long as it has to be absent, whether
 * it was read or is to be deleted.
 */
static void test_absent_keys_are_locked(void **state)
{
	struct xkv_bucket *b;
	struct store_entry e;

	b = bed_bucket(&bed, "none", 4);
	for (int blind = 0; blind < 2; blind++) {
		txn();
		set("a", "1");
		if (blind)
			assert_int_equal(set("none", "1") + del("none"), 0);
		else
			assert_int_equal(store_get(bed.ctx, "none", 4, &e), -ENOENT);
		b->head |= XKV_BUCKET_LOCK;
		assert_int_equal(commit_held(), -EBUSY);
		b->head &= ~XKV_BUCKET_LOCK;
		is_gone("a");
		is_gone("none");
	}
	account();
}

/* Keys with the same tag in one bucket, which look like the ones that are already locked. */
static void test_same_tag(void **state)
{
	struct store_entry e;

	put_text("a", "1");
	put_text("b", "1");
	put_text("c", "1");
	for (int round = 0; round < 2; round++) {
		txn();
		set("a", "2");
		set("new", "2");
		set("b", "2");
		assert_int_equal(store_get(bed.ctx, "none", 4, &e), -ENOENT);
		assert_int_equal(store_expire(bed.ctx, "c", 1, store_now_ms(bed.st) + 100000), 0);
		set("newer", "2");
		set("never", "2");
		del("never");
		assert_int_equal(commit(), 0);
		holds_text("a", "2");
		holds_text("b", "2");
		holds_text("c", "1");
		holds_text("new", "2");
		holds_text("newer", "2");
		is_gone("never");
		is_gone("none");
	}
	account();
}

/* What is reserved in chains goes away again, with the overflow buckets that were made for it. */
static void test_reserved_keys_go_away(void **state)
{
	unsigned int chains = bed_chain_count(&bed), keys = bed_index_count(&bed);
	struct xkv_bucket *last = NULL;
	char key[16];

	for (int i = 0; i < 40; i++) {
		struct xkv_bucket *b;

		snprintf(key, sizeof(key), "many%d", i);
		b = bed_bucket(&bed, key, strlen(key));
		last = b > last ? b : last;
	}
	for (int round = 0; round < 2; round++) {
		txn();
		for (int i = 0; i < 40; i++) {
			snprintf(key, sizeof(key), "many%d", i);
			set(key, "2");
		}
		last->head |= XKV_BUCKET_LOCK; /* of two: the first has got all its entries */
		assert_int_equal(commit_held(), -EBUSY);
		last->head &= ~XKV_BUCKET_LOCK;
		assert_int_equal(bed_index_count(&bed), keys);
		assert_int_equal(bed_chain_count(&bed), chains);
		account();
	}
}

static void test_deleted_from_chains(void **state)
{
	unsigned int chains = bed_chain_count(&bed);
	char key[16];

	for (int deleted = 0; deleted < 2; deleted++) {
		txn();
		for (int i = 0; i < 40; i++) {
			snprintf(key, sizeof(key), "many%d", i);
			if (deleted)
				assert_int_equal(del(key), 0);
			else
				set(key, "1");
		}
		assert_int_equal(commit(), 0);
		assert_int_equal(bed_chain_count(&bed) > chains, !deleted);
		account();
	}
}

/* More overflow buckets than there are free slots for them, all in one transaction. */
static void test_many_new_chains(void **state)
{
	char key[16];

	txn();
	for (int i = 0; i < 1000; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		set(key, "value");
	}
	assert_int_equal(commit(), 0);
	for (int i = 0; i < 1000; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		holds_text(key, "value");
	}
	account();
}

/* The same when no slot is free that an overflow bucket fits in: the commit has spares made. */
static void test_new_chains_without_slots(void **state)
{
	unsigned int class = bed.c->class_of[sizeof(struct xkv_chain) / 8], before;
	size_t len = 0;
	char key[16];

	while (class_of(len) != class)
		len++;
	for (int i = 0; bed.classes[class].list[0].free; i++) {
		snprintf(key, sizeof(key), "f%d", i);
		put(key, zeros, len, 0);
	}
	before = bed_chain_count(&bed);
	txn();
	for (int i = 0; i < 1000; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		set(key, "");
	}
	assert_int_equal(commit(), 0);
	assert_true(bed_chain_count(&bed) > before + 64);
	holds_text("k999", "");
	account();
}

/* Keys that are read as absent are in the same buckets as keys that are written. */
static void test_absent_keys_beside_new_ones(void **state)
{
	struct store_entry e;
	char key[16];

	txn();
	for (int i = 0; i < 200; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		if (i % 3)
			set(key, "value");
		else
			assert_int_equal(store_get(bed.ctx, key, strlen(key), &e), -ENOENT);
	}
	assert_int_equal(commit(), 0);
	holds_text("k199", "value");
	is_gone("k198");
	account();
}

static int setup_same_tag(void **state)
{
	open_masked_bed(0, ~0ULL);
	return 0;
}

static int setup_longer_index(void **state)
{
	open_masked_bed(~0ULL, 127);
	return 0;
}

static int setup_short_index(void **state)
{
	open_masked_bed(~0ULL, 31);
	return 0;
}

static void test_too_many_keys(void **state)
{
	char key[16];

	for (int over = 0; over < 2; over++) {
		txn();
		for (int i = 0; i < STORE_TXN_KEYS + over; i++) {
			snprintf(key, sizeof(key), "k%d", i);
			set(key, "value");
		}
		assert_int_equal(commit(), over ? -E2BIG : 0);
	}
	holds_text("k65535", "value");
	is_gone("k65536");
	account();
}

/* The second time it is the slot of a large value that is missing. */
static void test_memory_runs_out(void **state)
{
	uint64_t count;
	char key[16];

	put_text("a", "1");
	count = store_count(bed.st);
	bed.st->no_slot = no_room;
	for (size_t len = 1000; len <= 1000000; len *= 1000) {
		txn();
		set("a", "2");
		for (size_t i = 0; i < 1000000 / len + 3; i++) {
			snprintf(key, sizeof(key), "more%zu", i);
			assert_int_equal(
				store_set(bed.ctx, key, strlen(key), zeros, len, 0, 0, 0, NULL), 0);
		}
		assert_int_equal(commit(), -ENOSPC);
		holds_text("a", "1");
		assert_int_equal(store_count(bed.st), count);
		account();
	}
	bed.st->no_slot = slots_grow;
}

/* ---- xkvd is killed ------------------------------------------------------------ */

/* Slots that were taken, and not published, come back; also one that was being handed over. */
static void test_killed_with_slots(void **state)
{
	struct xkv_txn_args args = { .cmd = XKV_TXN_TAKE, .count = 3 };
	struct store_ctx *other;

	assert_true(bed_warm(&bed));
	for (unsigned int i = 0; i < 3; i++)
		bed.st->txn_key[i] = (struct xkv_txn_key){ .action = XKV_TXN_PUT, .class = i };
	assert_int_equal(commit_run(bed.st, &args), 0);
	assert_int_equal(args.outcome, XKV_TXN_DONE);
	other = store_ctx_get(bed.st);
	assert_non_null(other);
	assert_int_equal(request_take_slot(other, 0, 100000), 0);
	bed.st->txn_key[3].prefilled = other->request[0].prefilled; /* not yet cleared */
	assert_null(bed_adopt(&bed));
	for (unsigned int i = 0; i < bed.st->txn_room; i++)
		assert_int_equal(bed.st->txn_key[i].prefilled, 0);
	account();
}

/* ---- side by side --------------------------------------------------------------- */

#define NUMBERS 4
#define TURNS	3000

static atomic_bool stop;

/* Increments of the numbers, by another thread; how many is returned. */
static void *disturb(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	uintptr_t done = 0;
	int64_t sum;
	char key[8];

	for (unsigned int i = 0; ctx && !stop; i++) {
		snprintf(key, sizeof(key), "n%u", i % NUMBERS);
		done += !store_incr(ctx, key, strlen(key), 1, &sum);
	}
	store_ctx_put(ctx);
	return (void *)done;
}

static int64_t number_in(const char *key)
{
	struct store_entry e;
	char text[24] = "";

	assert_int_equal(store_get(bed.ctx, key, strlen(key), &e), 0);
	assert_true(e.value_len < sizeof(text));
	memcpy(text, e.value, e.value_len);
	return strtoll(text, NULL, 10);
}

/* Moves what a number has become to the sum, in one transaction.  How often that was in vain. */
static unsigned int move_to_sum(const char *key)
{
	unsigned int conflicts = 0;
	int64_t sum;
	int ret;

	do {
		txn();
		assert_int_equal(store_incr(bed.ctx, "sum", 3, number_in(key), &sum), 0);
		set(key, "0");
		ret = commit();
		conflicts += ret == -ECANCELED;
	} while (ret == -ECANCELED);
	assert_int_equal(ret, 0);
	return conflicts;
}

/* Every increment of the other thread is in the sum in the end, once. */
static void test_side_by_side(void **state)
{
	unsigned int conflicts = 0;
	pthread_t thread;
	char key[8];
	void *done;

	for (int i = 0; i < NUMBERS; i++) {
		snprintf(key, sizeof(key), "n%d", i);
		put_text(key, "0");
	}
	put_text("sum", "0");
	stop = false;
	assert_int_equal(pthread_create(&thread, NULL, disturb, NULL), 0);
	for (unsigned int i = 0; i < TURNS || (!conflicts && i < 1000 * TURNS); i++) {
		snprintf(key, sizeof(key), "n%u", i % NUMBERS);
		conflicts += move_to_sum(key);
	}
	stop = true;
	pthread_join(thread, &done);
	for (int i = 0; i < NUMBERS; i++) {
		snprintf(key, sizeof(key), "n%d", i);
		move_to_sum(key);
	}
	assert_true(conflicts > 0);
	assert_int_equal(number_in("sum"), (uintptr_t)done);
	account();
}

#define ROUNDS 600
#define WIDTH  900 /* more keys: they take time between the steps of a commit */

enum against { OVERWRITTEN, EXPIRES, CREATED, DELETED_BLINDLY, KINDS };

static const char *const raced[KINDS] = { "x", "x", "made", "gone" };
static atomic_uint arrived;
static _Atomic uint64_t took_ns; /* by the last transaction */

/* Both go on at the same moment, if both have a CPU. */
static void meet(unsigned int number)
{
	atomic_fetch_add(&arrived, 1);
	for (int spin = 1; atomic_load(&arrived) < 2 * number; spin++)
		if (spin % 10000 == 0)
			sched_yield();
}

/* Changes a key, and then reads another one: was that still as before the transaction? */
static void *change_then_read(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	bool *before = arg;
	struct store_entry e;
	uint64_t end;

	for (unsigned int i = 0; ctx && i < ROUNDS; i++) {
		const char *key = raced[i % KINDS];

		meet(2 * i + 1);
		end = monotonic_ns() + took_ns / 101 * (i * 37 % 101); /* at any time of it */
		while (monotonic_ns() < end)
			;
		if (store_set(ctx, key, strlen(key), "2", 1, 0, 0, 0, NULL) ||
		    store_get(ctx, "y", 1, &e))
			break;
		before[i] = e.value_len == 1;
		meet(2 * i + 2);
	}
	store_ctx_put(ctx);
	return NULL;
}

static void write_many(void)
{
	char key[16];

	for (int i = 0; i < WIDTH; i++) {
		snprintf(key, sizeof(key), "width%d", i);
		set(key, "1");
	}
}

/* The transaction of a round; the result of its commit. */
static int change_against(enum against kind)
{
	struct store_entry e;
	const char *key = raced[kind];

	txn();
	if (kind == DELETED_BLINDLY)
		assert_int_equal(set(key, "1") + del(key), 0);
	else if (store_get(bed.ctx, key, strlen(key), &e) != (kind == CREATED ? -ENOENT : 0) ||
		 (kind < CREATED && memcmp(e.value, "1", 1)))
		return store_txn_abort(bed.ctx), -ECANCELED; /* the other was faster */
	if (kind == EXPIRES && store_expire(bed.ctx, key, strlen(key), INT64_MAX))
		return store_txn_abort(bed.ctx), -ECANCELED;
	write_many();
	set("y", "22");
	return commit();
}

/*
 * Somebody changes a key that the transaction reads or deletes, and then reads what it writes.  Who
 * sees that as it was before was earlier: so the transaction has to see that change, or undo it.
 */
static void test_single_operations_beside(void **state)
{
	static bool before[ROUNDS];
	unsigned int earlier = 0, done = 0;
	pthread_t thread;
	uint64_t start;
	int ret;

	atomic_store(&arrived, 0);
	txn();
	write_many();
	assert_int_equal(commit(), 0);
	put_text("x", "1");
	put_text("y", "1");
	assert_int_equal(pthread_create(&thread, NULL, change_then_read, before), 0);
	for (unsigned int i = 0; i < ROUNDS; i++) {
		meet(2 * i + 1);
		start = monotonic_ns();
		ret = change_against(i % KINDS);
		took_ns = monotonic_ns() - start;
		meet(2 * i + 2);
		if (ret)
			assert_int_equal(ret, -ECANCELED);
		else if (before[i] && i % KINDS == DELETED_BLINDLY)
			is_gone("gone");
		else
			assert_false(before[i]);
		earlier += before[i];
		done += !ret;
		put_text("x", "1");
		put_text("y", "1");
		del("made");
		del("gone");
	}
	pthread_join(thread, NULL);
	assert_true(earlier && done);
	account();
}

/* ---- without changes -------------------------------------------------------------- */

/* Does the program have to validate what was only read?  It gets the keys from commit(). */
static bool runs_program(int expected)
{
	struct xkv_txn_key *k = &bed.st->txn_key[0];

	k->expected = XKV_TXN_ANY;
	assert_int_equal(commit(), expected);
	return k->expected != XKV_TXN_ANY;
}

/* A transaction that only reads is validated without the program, if nothing was touched. */
static void test_reads_alone(void **state)
{
	struct xkv_bucket *b = bed_bucket(&bed, "none", 4);
	struct xkv_slot *slot;
	struct store_entry e;
	struct reply r;

	put_text("a", "1");
	put_text("c", "1");
	slot = bed_slot(&bed, "c", 1);
	for (int change = 0; change < 4; change++) {
		txn();
		sees("a", "1");
		sees("c", "1");
		assert_int_equal(store_get(bed.ctx, "none", 4, &e), -ENOENT);
		assert_int_equal(store_get(bed.ctx, "never", 5, &e), -ENOENT);
		if (change == 1) /* being changed */
			b->head |= XKV_BUCKET_LOCK;
		if (change == 2) { /* it came, and went */
			other_sets("none", "1");
			ask_op(DRIVER, &(struct operation){ XKV_OP_DELETE, TEXT("none") }, &r);
			assert_int_equal(r.result[0].status, XKV_OK);
		}
		if (change == 3) /* locked, perhaps for nothing */
			slot->seq |= 1;
		bed_impatient(&bed, true);
		assert_int_equal(runs_program(change == 1 || change == 3 ? -EBUSY : 0), change > 0);
		bed_impatient(&bed, false);
		b->head &= ~XKV_BUCKET_LOCK;
		slot->seq &= ~1UL;
	}
	assert_int_equal(store_expire(bed.ctx, "c", 1, store_now_ms(bed.st) + 1000000), 0);
	txn();
	sees("a", "1");
	sees("c", "1");
	bed.c->tai_offset_ms -= 2000000; /* "c" expires */
	assert_int_equal(commit(), -ECANCELED);
	bed.c->tai_offset_ms += 2000000;
	txn();
	sees("a", "1");
	assert_int_equal(store_get(bed.ctx, "none", 4, &e), -ENOENT);
	other_sets("none", "1");
	assert_int_equal(commit(), -ECANCELED);
	txn();
	sees("a", "1");
	sees("none", "1");
	del("c");
	other_sets("a", "1");
	assert_int_equal(commit(), -ECANCELED);
	holds_text("c", "1");
}

/* In turns `one` exists and `two`, and `x` says which. */
static void *alternate(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	atomic_uint *done = arg;

	while (ctx && !stop) {
		for (int second = 0; second < 2; second++) {
			if (store_txn_begin(ctx) ||
			    store_set(ctx, second ? "two" : "one", 3, "1", 1, 0, 0, 0, NULL))
				break;
			store_delete(ctx, second ? "one" : "two", 3, NULL);
			store_set(ctx, "x", 1, second ? "2" : "1", 1, 0, 0, 0, NULL);
			*done += !store_txn_commit(ctx);
		}
	}
	store_ctx_put(ctx);
	return NULL;
}

static bool there(const char *key)
{
	struct store_entry e;

	return !store_get(bed.ctx, key, strlen(key), &e);
}

/* Exactly one of two keys exists at any time, and another key says which: readers see that. */
static void test_reads_beside_transactions(void **state)
{
	atomic_uint done = 0;
	unsigned int seen = 0;
	struct store_entry e;
	pthread_t thread;
	bool one, two;
	char x;

	put_text("one", "1");
	put_text("x", "1");
	stop = false;
	assert_int_equal(pthread_create(&thread, NULL, alternate, &done), 0);
	for (unsigned int i = 0; i < 20000 || seen < 2000 || !done; i++) {
		txn();
		one = i % 3 == 1 ? false : there("one");
		two = i % 3 == 2 ? false : there("two");
		if (store_get(bed.ctx, "x", 1, &e)) {
			store_txn_abort(bed.ctx);
			continue;
		}
		x = *(const char *)e.value;
		if (commit())
			continue;
		seen++;
		if (i % 3 != 1)
			assert_int_equal(one, x == '1');
		if (i % 3 != 2)
			assert_int_equal(two, x == '2');
	}
	stop = true;
	pthread_join(thread, NULL);
	assert_true(done > 0);
	account();
}

/* ---- slots in hand ------------------------------------------------------------------ */

static unsigned int in_hand(void)
{
	unsigned int slots = 0;

	for (unsigned int i = 0; i < bed.st->txn_room; i++)
		slots += bed.st->txn_key[i].prefilled != 0;
	return slots;
}

/* What one transaction leaves is used by the next, if it fits; and belongs to nobody twice. */
static void test_slots_in_hand(void **state)
{
	uint64_t ref;

	put_text("a", "1");
	txn();
	set("a", "2");
	ref = bed_ref(&bed, bed_slot(&bed, "a", 1));
	assert_int_equal(commit(), 0);
	assert_int_equal(bed.st->txn_key[0].prefilled, ref); /* which the entry has left */
	account();
	txn();
	set("a", "3");
	assert_int_equal(commit(), 0);
	assert_int_equal(bed_ref(&bed, bed_slot(&bed, "a", 1)), ref);
	for (size_t len = 100; len <= 100000; len *= 10) { /* of other classes, and a large one */
		txn();
		assert_int_equal(store_set(bed.ctx, "a", 1, zeros, len, 0, 0, 0, NULL), 0);
		set("new", "1");
		assert_int_equal(commit(), 0);
		assert_int_equal(entry_of("a", 1).value_len, len);
		holds_text("new", "1");
		account();
	}
	txn();
	write_many();
	assert_int_equal(commit(), 0);
	assert_in_range(in_hand(), 1, XKV_TXN_HAND);
	account();
}

/* A span is emptied though one of its slots is in hand; and the next xkvd frees what is left. */
static void test_hand_is_given_back(void **state)
{
	uint64_t ref;
	struct span s;

	put_text("a", "1");
	txn();
	set("a", "2");
	assert_int_equal(commit(), 0);
	ref = bed.st->txn_key[0].prefilled;
	assert_true(span_of_ref(bed.st, ref, &s));
	assert_true(drain_begin(bed.st, &s));
	for (int tries = 0; tries < 10 && span_of_ref(bed.st, ref, &s); tries++)
		drain_run(bed.ctx);
	assert_false(span_of_ref(bed.st, ref, &s));
	holds_text("a", "2");
	account();
	txn();
	set("a", "3");
	assert_int_equal(commit(), 0);
	assert_true(in_hand() > 0);
	assert_null(bed_adopt(&bed));
	assert_int_equal(in_hand(), 0);
	account();
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		CASE(test_all_at_once),
		CASE(test_abort_leaves_all_as_it_was),
		CASE(test_dropped),
		CASE(test_blind_writes),
		CASE(test_expiry_is_counted),
		CASE(test_use_is_kept),
		CASE(test_expiry_alone),
		CASE(test_expires_before_the_commit),
		CASE(test_latest_expiry),
		CASE(test_exact_fits),
		CASE(test_batch),
		CASE(test_read_key_was_changed),
		CASE(test_written_key_was_changed),
		CASE(test_expected_version),
		CASE(test_a_lock_is_held),
		CASE(test_absent_keys_are_locked),
		cmocka_unit_test_setup_teardown(test_same_tag, setup_same_tag, ask_begin),
		cmocka_unit_test_setup_teardown(test_reserved_keys_go_away, setup_chains,
						ask_begin),
		cmocka_unit_test_setup_teardown(test_deleted_from_chains, setup_chains, ask_begin),
		cmocka_unit_test_setup_teardown(test_many_new_chains, setup_short_index, ask_begin),
		cmocka_unit_test_setup_teardown(test_new_chains_without_slots, setup_longer_index,
						ask_begin),
		cmocka_unit_test_setup_teardown(test_absent_keys_beside_new_ones, setup_short_index,
						ask_begin),
		CASE(test_too_many_keys),
		CASE(test_memory_runs_out),
		CASE(test_killed_with_slots),
		CASE(test_side_by_side),
		CASE(test_reads_alone),
		CASE(test_reads_beside_transactions),
		CASE(test_slots_in_hand),
		CASE(test_hand_is_given_back),
		CASE(test_single_operations_beside),
		cmocka_unit_test_setup_teardown(test_single_operations_beside, setup_short_index,
						ask_begin),
	};

	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("transactions", tests, ask_begin, close_bed);
}

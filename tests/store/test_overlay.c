// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 3 */
/*
 * What operations mean inside a transaction (loader/store/overlay.c), and on long keys
 * (loader/store/longkey.c): the same as on the store and on short ones.  Random ones are executed
 * on both, and all that is told of them is compared; with keys of each length, and values that are
 * empty or fill their slots to the end.  XKV_MODEL_SEED repeats a run.  And what makes a
 * transaction fail before its commit.
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

#include "loader/store/store.h"
#include "loader/store/txn.h"
#include "ask.h"
#include "fixture.h"
#include "packet.h"
#include "random.h"
#include "xdpbed.h"

/* ---- both sides --------------------------------------------------------------- */

#define NAMES	    5
#define LONGEST	    300
#define BATCH	    4
#define ROUNDS	    1040     /* transactions */
#define SAME_LENGTH 4	     /* rounds in which the keys have one length */
#define TURNS	    8	     /* batches in each, at most */
#define FAR_MS	    10000000 /* does not come during the test */

enum { STORE, OTHER, SIDES };

/* In what the two sides differ. */
struct difference {
	size_t key_len[SIDES]; /* of the other side EACH */
	bool txn;	       /* the other side is in a transaction */
	uint32_t largest;      /* value */
};

#define EACH SIZE_MAX /* key_len: each from 0 to XKV_KEY_MAX and some more */

static const struct difference *difference;

/* What was told of an operation. */
struct told {
	int ret;
	struct store_entry entry; /* `value` is a copy, owned */
};

struct side {
	struct store_ctx *ctx;
	char name[NAMES][LONGEST]; /* keys; the empty one is the first of its side only */
	size_t len[NAMES];
	uint64_t version[NAMES], before[NAMES]; /* the last one that was told, the one before it */
	struct told told[BATCH];
};

static struct side sides[SIDES];

static void on_done(void *arg, unsigned int op, int ret, const struct store_entry *e)
{
	struct told *t = (struct told *)arg + op;

	*t = (struct told){ ret, *e };
	if (!e->value)
		return;
	t->entry.value = malloc(e->value_len + 1);
	assert_non_null(t->entry.value);
	memcpy((void *)t->entry.value, e->value, e->value_len);
}

/* An operation on a name, before it is one on a key of each side. */
struct step {
	struct store_op op;
	unsigned int name;
	bool stale; /* CAS: the version before the last */
};

static void run_on(struct side *s, const struct step *steps, unsigned int count)
{
	struct store_op op[BATCH];

	for (unsigned int i = 0; i < count; i++) {
		unsigned int name = steps[i].name;

		op[i] = steps[i].op;
		op[i].key = s->name[name];
		op[i].key_len = s->len[name];
		if (op[i].flags & XKV_CAS)
			op[i].version = steps[i].stale ? s->before[name] : s->version[name];
	}
	store_run(s->ctx, op, count, on_done, s->told);
}

/* A version is the one that was told before, another one, or none. */
static int kind_of_version(const struct side *s, unsigned int name, uint64_t version)
{
	return !version ? 0 : version == s->version[name] ? 1 : 2;
}

/* Other errors say nothing of the entry. */
static bool describes(const struct told *t)
{
	return !t->ret || t->ret == -ECANCELED;
}

/* The result of a change that has expired at once does not tell when. */
static uint64_t expiry_to_come(const struct store_entry *e)
{
	return e->expire_ms > store_now_ms(bed.st) ? e->expire_ms : 0;
}

static void compare(const struct step *step, unsigned int at)
{
	const struct store_entry *a = &sides[STORE].told[at].entry,
				 *b = &sides[OTHER].told[at].entry;

	assert_int_equal(sides[STORE].told[at].ret, sides[OTHER].told[at].ret);
	if (!describes(&sides[STORE].told[at]))
		return;
	if (!sides[STORE].told[at].ret || step->op.opcode == XKV_OP_SET)
		assert_int_equal(!a->value, !b->value);
	if (a->value && b->value) {
		assert_int_equal(a->value_len, b->value_len);
		assert_memory_equal(a->value, b->value, a->value_len);
	}
	assert_int_equal(expiry_to_come(a), expiry_to_come(b));
	assert_int_equal(a->number, b->number);
	assert_int_equal(kind_of_version(&sides[STORE], step->name, a->version),
			 kind_of_version(&sides[OTHER], step->name, b->version));
}

static void note_versions(const struct step *step, unsigned int at)
{
	for (int i = 0; i < SIDES; i++) {
		struct side *s = &sides[i];
		uint64_t version = describes(&s->told[at]) ? s->told[at].entry.version : 0;

		free((void *)s->told[at].entry.value);
		if (version && version != s->version[step->name]) {
			s->before[step->name] = s->version[step->name];
			s->version[step->name] = version;
		}
	}
}

/* ---- random operations --------------------------------------------------------- */

static uint64_t random_expiry(void)
{
	switch (below(6)) {
	case 0:
		return store_now_ms(bed.st) + FAR_MS;
	case 1:
		return store_now_ms(bed.st) - 1;
	case 2:
		return INT64_MAX;
	}
	return 0;
}

/* A value that ends where the slot of its key does, in a transaction or without one. */
static size_t random_fit(void)
{
	size_t len = sides[OTHER].len[NAMES - 1], least = below(200) & ~7UL;

	if (!xkv_is_long(len))
		return exact_fit(len, least);
	len = xkv_long_head_bytes(len);
	return exact_fit(XKV_KEY_LONG, XKV_PADDED(len) + least) - len;
}

static void random_value(struct store_op *op, bool large)
{
	static const char *const numbers[] = { "0", "17", "-9223372036854775808", "x", "" };

	if (below(2)) {
		op->value = numbers[below(5)];
		op->value_len = strlen(op->value);
		return;
	}
	op->value_len = !below(4)	     ? random_fit()
			: !large || below(8) ? below(200)
			: below(8)	     ? 100000
					     : difference->largest;
	op->value = noise((uint32_t)below(100)) + below(XKV_VALUE_MAX - op->value_len + 1);
}

static uint8_t random_flags(uint8_t opcode, bool large)
{
	static const uint8_t condition[] = {
		XKV_NX, XKV_XX, XKV_CAS, XKV_CAS, 0, 0, 0, 0
	}; /* XX: writes only */
	bool writes = opcode == XKV_OP_SET || opcode == XKV_OP_INCR || opcode == XKV_OP_APPEND;
	uint8_t flags = 0;

	if (writes || ((opcode == XKV_OP_DELETE || opcode == XKV_OP_EXPIRE) && below(2)))
		flags = condition[writes ? below(8) : 2 + below(4)];
	if (opcode != XKV_OP_SET) /* it alone has NX */
		flags &= ~XKV_NX;
	if ((opcode == XKV_OP_SET || opcode == XKV_OP_DELETE) && !large && !below(3))
		flags |= XKV_RETURN;
	if (opcode == XKV_OP_SET && !below(4))
		flags |= XKV_KEEPTTL;
	return flags;
}

static struct step random_step(void)
{
	static const uint8_t opcode[] = { XKV_OP_GET,	 XKV_OP_TTL,	XKV_OP_TOUCH, XKV_OP_SET,
					  XKV_OP_SET,	 XKV_OP_DELETE, XKV_OP_INCR,  XKV_OP_INCR,
					  XKV_OP_APPEND, XKV_OP_EXPIRE };
	struct step s = { .name = below(NAMES), .stale = !below(4) };
	/* of a large value that is returned, the store tells the version that it had */
	bool large = s.name == NAMES - 1;
	struct store_op *op = &s.op;

	do
		op->opcode = opcode[below(sizeof(opcode))];
	while (op->opcode == XKV_OP_APPEND && !large);
	op->flags = random_flags(op->opcode, large);
	if (op->opcode == XKV_OP_SET || op->opcode == XKV_OP_APPEND)
		random_value(op, large);
	if ((op->opcode == XKV_OP_SET && !(op->flags & XKV_KEEPTTL)) || op->opcode == XKV_OP_EXPIRE)
		op->expire_ms = random_expiry();
	op->amount = below(4) ? (int64_t)below(100) - 50 : INT64_MAX;
	return s;
}

static void do_both(const struct step *steps, unsigned int count)
{
	for (int i = 0; i < SIDES; i++)
		run_on(&sides[i], steps, count);
	for (unsigned int i = 0; i < count; i++)
		compare(&steps[i], i);
	for (unsigned int i = 0; i < count; i++)
		note_versions(&steps[i], i);
}

/* The versions of the store: those of a transaction are its own. */
static void read_all(void)
{
	for (unsigned int name = 0; name < NAMES; name++) {
		struct step step = { .op = { .opcode = XKV_OP_GET }, .name = name };

		for (int i = 0; i < SIDES; i++)
			sides[i].version[name] = 0;
		do_both(&step, 1);
		for (int i = 0; i < SIDES; i++)
			sides[i].before[name] = 0;
	}
}

/* Keys of this length, but one that is shorter: see struct side. */
static void name_keys(struct side *s, size_t len)
{
	for (unsigned int name = 0; name < NAMES; name++) {
		s->len[name] = len || !name ? len : 1;
		memset(s->name[name], 'k', LONGEST);
		if (s->len[name])
			s->name[name][s->len[name] - 1] =
				(char)('0' + name + (s == &sides[OTHER]) * NAMES);
	}
}

/* Keys of the next length, none of which is there. */
static void next_length(unsigned int round)
{
	assert_int_equal(store_flush(bed.ctx), 0);
	name_keys(&sides[OTHER], round / SAME_LENGTH % (XKV_KEY_MAX + 8));
}

static void test_operations_mean_the_same(void **state)
{
	const char *seed = getenv("XKV_MODEL_SEED");
	struct step steps[BATCH];

	random_state = seed ? strtoull(seed, NULL, 0) : store_now_ms(bed.st);
	print_message("XKV_MODEL_SEED=%llu\n", (unsigned long long)random_state);
	for (unsigned int round = 0; round < ROUNDS; round++) {
		if (difference->key_len[OTHER] == EACH && round % SAME_LENGTH == 0)
			next_length(round);
		read_all();
		if (difference->txn)
			assert_int_equal(store_txn_begin(sides[OTHER].ctx), 0);
		for (uint64_t turns = 1 + below(TURNS); turns; turns--) {
			unsigned int count = below(3) ? 1 : 1 + below(BATCH);

			for (unsigned int i = 0; i < count; i++)
				steps[i] = random_step();
			do_both(steps, count);
		}
		if (difference->txn)
			assert_int_equal(store_txn_commit(sides[OTHER].ctx), 0);
	}
	read_all();
	account();
}

static int setup_sides(void **state)
{
	if (ask_setup(state))
		return -1;
	difference = *state;
	sides[STORE].ctx = store_ctx_get(bed.st);
	sides[OTHER].ctx = bed.ctx;
	for (int i = 0; i < SIDES; i++)
		if (difference->key_len[i] != EACH)
			name_keys(&sides[i], difference->key_len[i]);
	return sides[STORE].ctx ? 0 : -1;
}

static int teardown_sides(void **state)
{
	store_txn_abort(bed.ctx);
	store_ctx_put(sides[STORE].ctx);
	return ask_teardown(state);
}

/* ---- what fails before the commit ------------------------------------------------ */

/* A key that could not be read: the transaction is not committed without it. */
static void test_unreadable_key(void **state)
{
	struct store_entry e;
	struct xkv_slot *slot;

	put_text("a", "1");
	slot = bed_slot(&bed, "a", 1);
	assert_int_equal(store_txn_begin(bed.ctx), 0);
	assert_int_equal(store_set(bed.ctx, "b", 1, "1", 1, 0, 0, 0, NULL), 0);
	slot->seq |= 1;
	assert_int_equal(store_get(bed.ctx, "a", 1, &e), -EBUSY);
	slot->seq &= ~1ULL;
	assert_int_equal(store_get(bed.ctx, "a", 1, &e), -EBUSY); /* whatever it would find now */
	assert_int_equal(store_txn_commit(bed.ctx), -EBUSY);
	is_gone("b");
}

/* Its expiry is read, and then its value, which somebody has changed meanwhile. */
static void test_changed_between_two_reads(void **state)
{
	struct store_ctx *other = store_ctx_get(bed.st);
	struct store_entry e;

	for (int deleted = 0; deleted < 2; deleted++) {
		put_text("a", "1");
		assert_int_equal(store_txn_begin(bed.ctx), 0);
		assert_int_equal(store_touch(bed.ctx, "a", 1, false, &e), 0);
		if (deleted)
			assert_int_equal(store_delete(other, "a", 1, NULL), 0);
		else
			assert_int_equal(store_set(other, "a", 1, "2", 1, 0, 0, 0, NULL), 0);
		assert_int_equal(store_get(bed.ctx, "a", 1, &e), -EBUSY);
		assert_int_equal(store_set(bed.ctx, "b", 1, "1", 1, 0, 0, 0, NULL), 0);
		assert_int_equal(store_txn_commit(bed.ctx), -ECANCELED);
		is_gone("b");
	}
	store_ctx_put(other);
}

/* The time stands still in a transaction: what it has seen does not expire in the middle of it. */
static void test_time_stands_still(void **state)
{
	struct store_entry e;
	uint64_t end, ms = 100;

	do { /* until it is read before it expires */
		store_txn_abort(bed.ctx);
		end = store_now_ms(bed.st) + ms;
		ms *= 2;
		assert_int_equal(store_set(bed.ctx, "a", 1, "1", 1, 0, 0, end, NULL), 0);
		assert_int_equal(store_txn_begin(bed.ctx), 0);
	} while (store_get(bed.ctx, "a", 1, &e));
	wait_until(end);
	assert_int_equal(store_get(bed.ctx, "a", 1, &e), 0);
	assert_int_equal(store_txn_commit(bed.ctx), 0);
	assert_int_equal(store_get(bed.ctx, "a", 1, &e), -ENOENT);
}

#define SAME(what, how)                                                                            \
	{                                                                                          \
		"the same: " what, test_operations_mean_the_same, setup_sides, teardown_sides,     \
			(void *)(how)                                                              \
	}

int main(int argc, char *argv[])
{
	static const struct difference transaction = { { 2, 2 }, true, XKV_VALUE_MAX };
	static const struct difference long_keys = { { 2, 300 }, false, 200000 };
	static const struct difference both = { { 251, 251 }, true, XKV_VALUE_MAX };
	static const struct difference each = { { 2, EACH }, true, 20000 };
	const struct CMUnitTest tests[] = {
		SAME("transactions", &transaction),
		SAME("long keys", &long_keys),
		SAME("long keys in transactions", &both),
		SAME("keys of each length in transactions", &each),
		CASE(test_unreadable_key),
		CASE(test_changed_between_two_reads),
		CASE(test_time_stands_still),
	};

	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("overlay", tests, ask_begin, close_bed);
}

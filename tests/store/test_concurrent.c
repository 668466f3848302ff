// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: slow */
/* tests/run: seconds 25 */
/* tests/run: firm */
/*
 * Readers beside writers: entries that are overwritten, change their slot, stand in chains that
 * shrink, or in spans that are emptied, are never missed and never torn.
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

#include <linux/bpf.h>

#include "bpf/layout.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "fixture.h"
#include "packet.h"
#include "random.h"
#include "xdpbed.h"

/* Operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define FAR_MS 1000000 /* a time that does not come during the test */

#define TORN_LEN 1400
#define ENOUGH	 1000 /* reads, or what a case counts, for it to have been a test */

/* Threads race for a second, `make check-long`: four; on a busy machine until there was enough. */
static uint64_t race_ms(void)
{
	return getenv("XKV_TEST_LONG") ? 4000 : 1000;
}

static bool races_on(uint64_t begin, uint64_t count)
{
	uint64_t ms = store_now_ms(bed.st) - begin;

	return ms < race_ms() || (count <= ENOUGH && ms < 20 * race_ms());
}

static atomic_bool torn_end;

/* Writes one key over and over, each time with one byte all through. */
static void *torn_writer(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	uint8_t value[TORN_LEN];
	uintptr_t failed = !ctx;

	for (unsigned int i = 0; !failed && !atomic_load(&torn_end); i++) {
		memset(value, (int)(i & 0xff), sizeof(value));
		failed = store_set(ctx, "k", 1, value, sizeof(value), 0, 0, 0, NULL) != 0;
	}
	store_ctx_put(ctx);
	return (void *)failed;
}

/*
 * A reader in XDP gets whole values, however fast the other front end changes them, or lets them
 * pass.
 */
static void test_torn(void **state)
{
	struct operation op = { .opcode = XKV_OP_GET, .key = "k", .key_len = 1 };
	size_t at = packet_payload_at(false, 0) + 40, len, hits = 0;
	static struct outcome out;
	uint8_t frame[PACKET_MAX];
	struct packet_spec spec;
	struct payload req;
	pthread_t writer;
	uint64_t begin;
	void *failed;

	open_masked_bed(~0ULL, ~0ULL);
	assert_int_equal(store_set(bed.ctx, "k", 1, noise(0), 1, 0, 0, 0, NULL), 0);
	request_begin(&req, 1, NULL);
	request_add(&req, &op);
	spec = packet_plain(false, &req);
	len = packet_build(&spec, frame);
	atomic_store(&torn_end, false);
	assert_int_equal(pthread_create(&writer, NULL, torn_writer, NULL), 0);
	begin = store_now_ms(bed.st);
	while (races_on(begin, hits)) {
		if (!bed_run(&bed, frame, len, &out) || out.verdict != XDP_TX)
			continue;
		hits++;
		if (out.len == at + TORN_LEN &&
		    (packet_complaint(out.frame, out.len) ||
		     memcmp(out.frame + at, out.frame + at + 1, TORN_LEN - 1)))
			break;
	}
	atomic_store(&torn_end, true);
	assert_int_equal(pthread_join(writer, &failed), 0);
	assert_null(failed);
	assert_true(hits > ENOUGH);
	assert_true(out.verdict != XDP_TX || out.len != at + TORN_LEN ||
		    !memcmp(out.frame + at, out.frame + at + 1, TORN_LEN - 1));
	account();
}

/* ---- moves: an entry that changes its slot is never away ---------------- */

static _Atomic bool moves_end;
static int moving; /* keys */

/* Overwrites the keys with values of two size classes in turn, so that they move all the time. */
static void *mover(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	const char *failed = ctx ? NULL : "no context";
	static const char large[500];

	for (unsigned int turn = 0; !failed && !atomic_load(&moves_end); turn++)
		for (char key = 'a'; key < 'a' + moving; key++)
			if (store_set(ctx, &key, 1, large, turn & 1 ? sizeof(large) : 20, 0, 0, 0,
				      NULL))
				failed = "a SET failed";
	store_ctx_put(ctx);
	return (void *)failed;
}

/* Two writers and a reader. */
static void moves(uint64_t fingerprint_mask, uint64_t bucket_mask, int n)
{
	uint64_t begin, misses = 0, gets = 0;
	struct store_entry entry;
	pthread_t writer[2];
	void *failed;

	moving = n;
	open_masked_bed(fingerprint_mask, bucket_mask);
	for (char key = 'a'; key < 'a' + moving; key++)
		assert_int_equal(store_set(bed.ctx, &key, 1, "", 0, 0, 0, 0, NULL), 0);
	atomic_store(&moves_end, false);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&writer[i], NULL, mover, NULL), 0);
	begin = store_now_ms(bed.st);
	while (races_on(begin, gets))
		for (char key = 'a'; key < 'a' + moving; key++, gets++) {
			misses += store_get(bed.ctx, &key, 1, &entry) == -ENOENT;
			misses += store_expire(bed.ctx, &key, 1, 0) == -ENOENT;
		}
	atomic_store(&moves_end, true);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(writer[i], &failed), 0);
		assert_null(failed);
	}
	assert_true(gets > ENOUGH);
	assert_int_equal(misses, 0);
	assert_int_equal(store_count(bed.st), n);
	account();
}

static void test_moves(void **state)
{
	moves(~0ULL, ~0ULL, 16);
}

/* All keys in one bucket and its chain. */
static void test_moves_in_a_chain(void **state)
{
	moves(~0ULL, 0, 20);
}

/* And all of one tag. */
static void test_moves_alike(void **state)
{
	moves(0, 0, 20);
}

/* ---- chains: a key is never missed because a bucket leaves its chain ------ */

/*
 * Each of two writers has keys in generations.  It inserts those of the next one, with keys between
 * them that only fill buckets, publishes its number, and then deletes the older ones, whose buckets
 * leave the chain before those that are being read.
 */
#define CHURNERS 2

static _Atomic unsigned int generation[CHURNERS];

static size_t churn_key(char *key, unsigned int who, unsigned int turn, const char *what,
			unsigned int n)
{
	return (size_t)snprintf(key, 32, "%u.%u.%s%u", who, turn % 2, what, n);
}

static bool churn(struct store_ctx *ctx, unsigned int who, unsigned int turn, const char *what,
		  bool there)
{
	char key[32];
	size_t len;

	for (unsigned int n = 0; n < XKV_WAYS; n++) {
		len = churn_key(key, who, turn, what, n);
		if (there ? store_set(ctx, key, len, key, len, 0, 0, 0, NULL)
			  : store_delete(ctx, key, len, NULL))
			return false;
	}
	return true;
}

static void *churner(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	unsigned int who = (unsigned int)(uintptr_t)arg;
	bool well = ctx;

	for (unsigned int turn = 1; well && !atomic_load(&moves_end); turn++) {
		well = churn(ctx, who, turn, "gap", true) && churn(ctx, who, turn, "key", true);
		atomic_store(&generation[who], turn);
		well = well && churn(ctx, who, turn, "gap", false) &&
		       (turn == 1 || churn(ctx, who, turn - 1, "key", false));
	}
	store_ctx_put(ctx);
	return well ? NULL : "a SET or DELETE failed";
}

/* Did XDP answer with this value?  When it left it to xkvd, that has to know it. */
static bool xdp_gets(const char *key, size_t len, bool *passed)
{
	struct operation op = { .opcode = XKV_OP_GET, .key = key, .key_len = len };
	static struct outcome out;
	uint8_t frame[PACKET_MAX];
	struct packet_spec spec;
	struct payload req;

	request_begin(&req, 1, NULL);
	request_add(&req, &op);
	spec = packet_plain(false, &req);
	if (!bed_run(&bed, frame, packet_build(&spec, frame), &out))
		return false;
	*passed = out.verdict == XDP_PASS;
	return *passed ||
	       (out.verdict == XDP_TX && out.frame[packet_payload_at(false, 0) + 17] == XKV_OK &&
		!memcmp(out.frame + packet_payload_at(false, 0) + 40, key, len));
}

/* Looks for a key that has to be there as long as the generation is the one before and after it. */
static unsigned int missed(unsigned int who, unsigned int n, uint64_t *gets)
{
	unsigned int turn = atomic_load(&generation[who]);
	struct store_entry entry;
	bool ok, passed;
	char key[32];
	size_t len;

	if (!turn)
		return 0;
	len = churn_key(key, who, turn, "key", n);
	ok = xdp_gets(key, len, &passed);
	if (passed)
		ok = !store_get(bed.ctx, key, len, &entry) && entry.value_len == len &&
		     !memcmp(entry.value, key, len);
	*gets += !passed;
	return !ok && atomic_load(&generation[who]) == turn;
}

static void chains(uint64_t fingerprint_mask)
{
	uint64_t begin, misses = 0, gets = 0, c[XKV_COUNTER_COUNT];
	pthread_t writer[CHURNERS];
	void *failed;

	open_masked_bed(fingerprint_mask, 0);
	bed.c->miss_reply = 1;
	for (char key = 'a'; key < 'a' + XKV_WAYS; key++) /* all else is in the chain */
		assert_int_equal(store_set(bed.ctx, &key, 1, "", 0, 0, 0, 0, NULL), 0);
	atomic_store(&moves_end, false);
	for (uintptr_t who = 0; who < CHURNERS; who++) {
		atomic_store(&generation[who], 0);
		assert_int_equal(pthread_create(&writer[who], NULL, churner, (void *)who), 0);
	}
	begin = store_now_ms(bed.st);
	for (unsigned int n = 0; races_on(begin, gets); n++)
		for (unsigned int who = 0; who < CHURNERS; who++)
			misses += missed(who, n % XKV_WAYS, &gets);
	atomic_store(&moves_end, true);
	for (int who = 0; who < CHURNERS; who++) {
		assert_int_equal(pthread_join(writer[who], &failed), 0);
		assert_null(failed);
	}
	bed_counters(&bed, c);
	assert_true(gets > ENOUGH);
	assert_true(c[XKV_C_unchained] > 100);
	assert_int_equal(misses, 0);
	account();
}

static void test_chains(void **state)
{
	chains(~0ULL);
}

static void test_chains_alike(void **state)
{
	chains(0);
}

/* ---- chains: a bucket that has left is something else by the time a reader comes to it ---- */

/*
 * The hardest case for a reader: it has read the reference to a bucket, and has still to compare
 * the seven keys of the bucket before (long ones, alike but for their ends) when that one leaves
 * the chain and its slot becomes an entry, in the next operation of the same datagram.  That
 * entry's bytes look like the end of a chain with nothing in it.
 */
#define REUSE_KEY_LEN XKV_KEY_MAX
#define REUSE_FIXED   (2 * XKV_WAYS)

static uint8_t reuse_keys[REUSE_FIXED + 2 * XKV_WAYS][REUSE_KEY_LEN];
static uint8_t reuse_end[8]; /* a key of another bucket that begins with a reference to nothing */

static uint8_t *reuse_key(unsigned int turn, unsigned int n)
{
	return reuse_keys[REUSE_FIXED + turn % 2 * XKV_WAYS + n];
}

static void reuse_make_keys(void)
{
	unsigned int n = 0;

	for (uint64_t i = 0; n < REUSE_FIXED + 2 * XKV_WAYS; i++) {
		memset(reuse_keys[n], 'k', REUSE_KEY_LEN);
		put_be(reuse_keys[n] + REUSE_KEY_LEN - 8, 8, i);
		n += bed_fingerprint(&bed, reuse_keys[n], REUSE_KEY_LEN) == 0;
	}
	memset(reuse_end, 0, sizeof(reuse_end));
	while (bed_fingerprint(&bed, reuse_end, sizeof(reuse_end)) == 0)
		reuse_end[7]++;
}

/* Runs these operations as one datagram: the first status, -1 if not all were done. */
static int reuse_run(const struct operation *op, unsigned int n)
{
	static _Thread_local struct outcome out;
	uint8_t frame[PACKET_MAX];
	struct packet_spec spec;
	struct payload req;

	request_begin(&req, 1, NULL);
	for (unsigned int i = 0; i < n; i++)
		request_add(&req, &op[i]);
	spec = packet_plain(false, &req);
	if (!bed_run(&bed, frame, packet_build(&spec, frame), &out) || out.verdict != XDP_TX ||
	    out.frame[packet_payload_at(false, 0) + 4] != n)
		return -1;
	return out.frame[packet_payload_at(false, 0) + 17];
}

static struct operation reuse_op(uint8_t opcode, const void *key, size_t len)
{
	static const uint8_t nothing[sizeof(struct xkv_chain)];
	struct operation op = { .opcode = opcode, .key = key, .key_len = len };

	if (opcode == XKV_OP_SET && len == sizeof(reuse_end)) {
		op.value = nothing;
		op.value_len = sizeof(struct xkv_chain) - sizeof(struct xkv_slot) - len;
	}
	return op;
}

static bool reuse_one(uint8_t opcode, const void *key)
{
	struct operation op = reuse_op(opcode, key, REUSE_KEY_LEN);

	for (int tries = 0; tries < 1000; tries++) /* the reader's own call may be in the way */
		if (reuse_run(&op, 1) == XKV_OK)
			return true;
	return false;
}

/*
 * What a walk in xkvd reads of a bucket that has just left its chain may be a client's bytes:
 * references to anywhere, and slots that say of themselves that they go on beyond their page.
 */
static void test_references_that_are_none(void **state)
{
	static const uint8_t bytes[XKV_VALUE_MAX];
	struct large value = { 0 };
	struct xkv_slot *slot, *forged;
	struct slot_copy copy;
	uint64_t ref;

	open_masked_bed(~0ULL, ~0ULL);
	assert_int_equal(store_set(bed.ctx, "k", 1, bytes, XKV_VALUE_MAX, 0, 0, 0, NULL), 0);
	slot = bed_slot(&bed, "k", 1);
	assert_true(slot_copy(bed.st, bed_ref(&bed, slot), &copy, &value));
	ref = XKV_REF(XKV_REF_PAGE(bed_ref(&bed, slot)), 0);
	assert_null(slot_of(bed.st, XKV_REF(XKV_PAGES_MAX, 64)));
	assert_null(slot_of(bed.st, ref | (XKV_PAGE_BYTES - 8) >> 3));
	assert_null(slot_of(bed.st, ref | (XKV_PAGE_BYTES - XKV_SLOT_WINDOW + 8) >> 3));
	/* behind the only slot of the page, where nobody writes */
	ref |= (XKV_PAGE_BYTES - XKV_SLOT_WINDOW) >> 3;
	forged = slot_of(bed.st, ref);
	assert_non_null(forged);
	*forged = (struct xkv_slot){
		.seq = 2, .key_len = 8, .value_len = 1000, .class = XKV_CLASS_LARGE
	};
	assert_true(slot_copy(bed.st, ref, &copy, &value));
	forged->value_len = XKV_SLOT_WINDOW - 24;
	assert_false(slot_copy(bed.st, ref, &copy, &value));
	forged->value_len = XKV_VALUE_MAX;
	assert_false(slot_copy(bed.st, ref, &copy, &value));
	forged->value_len = XKV_VALUE_HUGE; /* in a page without a tail */
	xkv_huge_page(forged)->huge = XKV_HUGE_MAX;
	assert_false(slot_copy(bed.st, ref, &copy, &value));
	xkv_huge_page(forged)->huge = ~0U;
	assert_false(slot_copy(bed.st, ref, &copy, &value));
	xkv_huge_page(forged)->huge = 0;
	memset(forged, 0, sizeof(*forged));
	large_free(&value);
}

/*
 * XDP is never interrupted by itself, and its frame is one for each CPU; BPF_PROG_RUN
 * in two threads on one CPU could be.  So each has its own.
 */
static bool own_cpu(const cpu_set_t *all, unsigned int which)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, all) && !which--)
			CPU_SET(cpu, &one);
	return CPU_COUNT(&one) && !pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
}

static void *reuser(void *arg)
{
	struct operation last[2];
	bool well = own_cpu(arg, 1);

	for (unsigned int turn = 1; well && !atomic_load(&moves_end); turn++) {
		for (unsigned int n = 0; well && n < XKV_WAYS; n++)
			well = reuse_one(XKV_OP_SET, reuse_key(turn, n));
		atomic_store(&generation[0], turn);
		for (unsigned int n = 0; well && n < XKV_WAYS - 1; n++)
			well = reuse_one(XKV_OP_DELETE, reuse_key(turn - 1, n));
		last[0] = reuse_op(XKV_OP_DELETE, reuse_key(turn - 1, XKV_WAYS - 1), REUSE_KEY_LEN);
		last[1] = reuse_op(XKV_OP_SET, reuse_end, sizeof(reuse_end));
		well = well && reuse_run(last, 2) == XKV_OK;
		last[1].opcode = XKV_OP_DELETE;
		last[1].value_len = 0;
		well = well && reuse_run(&last[1], 1) == XKV_OK;
	}
	return well ? NULL : "an operation was not done";
}

static void test_chain_bucket_reused(void **state)
{
	uint64_t begin, misses = 0, gets = 0, c[XKV_COUNTER_COUNT];
	pthread_t writer;
	cpu_set_t all;
	void *failed;

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	if (CPU_COUNT(&all) < 2) {
		puts("SKIP: one CPU only");
		skip();
	}
	open_masked_bed(1, ~0ULL);
	reuse_make_keys();
	bed.c->miss_reply = 1;
	for (unsigned int i = 0; i < REUSE_FIXED + XKV_WAYS; i++) /* with those of turn 0 */
		assert_true(reuse_one(XKV_OP_SET, reuse_keys[i]));
	atomic_store(&moves_end, false);
	atomic_store(&generation[0], 0);
	assert_int_equal(pthread_create(&writer, NULL, reuser, &all), 0);
	assert_true(own_cpu(&all, 0));
	begin = store_now_ms(bed.st);
	for (unsigned int n = 0; races_on(begin, gets); n++, gets++) {
		unsigned int turn = atomic_load(&generation[0]);
		struct operation op =
			reuse_op(XKV_OP_GET, reuse_key(turn, n % XKV_WAYS), REUSE_KEY_LEN);

		misses += reuse_run(&op, 1) == XKV_MISS && atomic_load(&generation[0]) == turn;
	}
	atomic_store(&moves_end, true);
	assert_int_equal(pthread_join(writer, &failed), 0);
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
	assert_null(failed);
	bed_counters(&bed, c);
	assert_true(gets > ENOUGH && c[XKV_C_unchained] > 100);
	assert_int_equal(misses, 0);
	account();
}

/* ---- one key, inserted by several at once --------------------------------- */

#define RIVALS 2

static struct {
	_Atomic unsigned int round, ready, won, wrong;
	_Atomic bool over;
	uint64_t begin_ms;
} race;

/* Waits for the others, hot, so that all go on at the same moment.  The last one says whether it is
 * over. */
static bool race_meet(unsigned int turn)
{
	if (atomic_fetch_add(&race.ready, 1) == RIVALS - 1) {
		atomic_store(&race.ready, 0);
		if (turn % 4 == 0)
			atomic_store(&race.over, !races_on(race.begin_ms, turn));
		atomic_store(&race.round, turn);
	}
	for (unsigned int spins = 0; atomic_load(&race.round) < turn; spins++)
		if (spins > 1000)
			sched_yield();
	return !atomic_load(&race.over);
}

/* Each round has a key, which one of them inserts and one of them deletes. */
static void *rival(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	unsigned int turn = 0;
	char key[32];

	do {
		size_t len = (size_t)snprintf(key, sizeof(key), "race%u", turn % 1000);

		race_meet(++turn);
		atomic_fetch_add(&race.won,
				 !store_set(ctx, key, len, key, len, XKV_NX, 0, 0, NULL));
		race_meet(++turn);
		atomic_fetch_add(&race.wrong, atomic_load(&race.won) != 1);
		race_meet(++turn);
		atomic_fetch_sub(&race.won, !store_delete(ctx, key, len, NULL));
	} while (race_meet(++turn));
	store_ctx_put(ctx);
	return NULL;
}

/*
 * In the first bucket and far behind it: an insert has to look for the key again under the lock of
 * the bucket.
 */
static void test_rivals(void **state)
{
	pthread_t thread[RIVALS];
	char key[16];

	open_masked_bed(~0ULL, 0);
	for (int i = 0; i < 6 * XKV_WAYS; i++)
		assert_int_equal(store_set(bed.ctx, key,
					   (size_t)snprintf(key, sizeof(key), "fill%d", i), "", 0,
					   0, 0, 0, NULL),
				 0);
	memset(&race, 0, sizeof(race));
	race.begin_ms = store_now_ms(bed.st);
	for (int i = 0; i < RIVALS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, rival, NULL), 0);
	for (int i = 0; i < RIVALS; i++)
		pthread_join(thread[i], NULL);
	assert_true(atomic_load(&race.round) > ENOUGH);
	assert_int_equal(atomic_load(&race.wrong), 0);
	assert_int_equal(atomic_load(&race.won), 0);
	assert_int_equal(store_count(bed.st), 6 * XKV_WAYS);
	account();
}

/* ---- spans that are emptied under all of it ------------------------------- */

#define STEADY 200 /* keys that nobody changes */

static uint64_t steady_version[STEADY];

/* Values of many size classes, so that each page that is emptied has some of them. */
static size_t steady_len(unsigned int n)
{
	return n % 20 == 19 ? 30000 : n * 37 % 1300;
}

static size_t steady_key(char *key, unsigned int n)
{
	return (size_t)snprintf(key, 32, "steady%u", n);
}

static void steady_write(void)
{
	struct store_entry entry;
	char key[32];

	for (unsigned int n = 0; n < STEADY; n++) {
		size_t len = steady_key(key, n);

		assert_int_equal(store_set(bed.ctx, key, len, noise(n), steady_len(n), 0, 0,
					   n % 3 ? 0 : store_now_ms(bed.st) + FAR_MS, NULL),
				 0);
		assert_int_equal(store_get(bed.ctx, key, len, &entry), 0);
		steady_version[n] = entry.version;
	}
}

/* Is the key there with its value, and as its first version still? */
static bool steady_is_there(unsigned int n)
{
	struct store_entry entry;
	char key[32];
	size_t len = steady_key(key, n);

	return !store_get(bed.ctx, key, len, &entry) && entry.value_len == steady_len(n) &&
	       !memcmp(entry.value, noise(n), entry.value_len) &&
	       entry.version == steady_version[n] && !entry.expire_ms == !!(n % 3);
}

/* Changes keys of its own all the time: inserts, overwrites, moves, deletions, expiry. */
static void *changer(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	unsigned int who = (unsigned int)(uintptr_t)arg;
	const char *failed = ctx ? NULL : "no context";
	char key[32];

	for (unsigned int turn = 0; !failed && !atomic_load(&moves_end); turn++) {
		size_t len = (size_t)snprintf(key, sizeof(key), "changes%u.%u", who, turn % 101);
		int ret;

		if (turn / 101 % 3 == 2)
			ret = store_delete(ctx, key, len, NULL);
		else
			ret = store_set(ctx, key, len, noise(turn), turn * 7919 % 2000, 0, 0,
					turn % 4 ? 0 : store_now_ms(bed.st) + FAR_MS, NULL);
		if (ret)
			failed = "a SET or DELETE failed";
	}
	store_ctx_put(ctx);
	return (void *)failed;
}

/*
 * In the place of the store's own thread: empties spans of all classes, over and over, also the
 * only one that a class has.
 */
static void *drainer(void *arg)
{
	struct store_ctx *ctx = store_ctx_get(bed.st);
	_Atomic uint64_t *units = arg;

	bed.st->maint.ctx = ctx;
	while (ctx && !atomic_load(&moves_end))
		for (unsigned int class = 0; class < bed.st->class_count; class ++) {
			maintenance_serve(bed.st);
			*units += bed_drain(&bed, ctx, class, 1);
		}
	bed_maintained(&bed, false);
	store_ctx_put(ctx);
	return NULL;
}

static void drains(uint64_t bucket_mask)
{
	uint64_t begin, wrong = 0, gets = 0, c[XKV_COUNTER_COUNT];
	pthread_t writer[2], drain;
	_Atomic uint64_t units = 0;
	void *failed;

	open_masked_bed(~0ULL, bucket_mask);
	steady_write();
	atomic_store(&moves_end, false);
	for (uintptr_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&writer[i], NULL, changer, (void *)i), 0);
	bed_maintained(&bed, true);
	assert_int_equal(pthread_create(&drain, NULL, drainer, &units), 0);
	begin = store_now_ms(bed.st);
	while (store_now_ms(bed.st) < begin + 2 * race_ms() || races_on(begin, units))
		for (unsigned int n = 0; n < STEADY; n++, gets++)
			wrong += !steady_is_there(n);
	atomic_store(&moves_end, true);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(writer[i], &failed), 0);
		assert_null(failed);
	}
	assert_int_equal(pthread_join(drain, NULL), 0);
	bed_counters(&bed, c);
	assert_true(units > ENOUGH);
	assert_true(c[XKV_C_relocations] > 200);
	assert_true(gets > ENOUGH);
	assert_int_equal(wrong, 0);
	account();
}

static void test_drains(void **state)
{
	drains(~0ULL);
}

/* Chain buckets are moved out of the spans too. */
static void test_drains_with_chains(void **state)
{
	drains(7);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_torn, close_bed),
		cmocka_unit_test_teardown(test_moves, close_bed),
		cmocka_unit_test_teardown(test_moves_in_a_chain, close_bed),
		cmocka_unit_test_teardown(test_moves_alike, close_bed),
		cmocka_unit_test_teardown(test_chains, close_bed),
		cmocka_unit_test_teardown(test_chains_alike, close_bed),
		cmocka_unit_test_teardown(test_references_that_are_none, close_bed),
		cmocka_unit_test_teardown(test_chain_bucket_reused, close_bed),
		cmocka_unit_test_teardown(test_rivals, close_bed),
		cmocka_unit_test_teardown(test_drains, close_bed),
		cmocka_unit_test_teardown(test_drains_with_chains, close_bed),
	};

	return bed_begin(argc, argv)
		       ?: cmocka_run_group_tests_name("concurrent", tests, NULL, NULL);
}

// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 20 */
/* tests/run: firm */
/*
 * Random operations through every front end (XDP, the datagrams that xkvd answers, the calls of
 * loader/store/store.h, alone and in a transaction), one after the other, against the reference
 * model.  Keys have all lengths; values are often empty, or fill their slots to the end.  With
 * fingerprints cut down to one, four and many values, and with one bucket for all of them, so that
 * keys stand in chains and chains get full; and deletions of keys of one chain in every order.
 * XKV_MODEL_SEED and XKV_MODEL_ROUNDS repeat a run or make it longer.
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

#include <linux/bpf.h>

#include "bpf/layout.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "loader/store/txn.h"
#include "fixture.h"
#include "model.h"
#include "packet.h"
#include "random.h"
#include "xdpbed.h"

/* Operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define OPS_MAX 6	/* of a datagram */
#define ROUNDS	40000	/* of each case; a round has 1 to OPS_MAX operations */
#define FAR_MS	1000000 /* a time that does not come during the test */
#define SMALL	1400	/* values that fit any reply */

/* ---- random operations --------------------------------------------------- */

struct step {
	struct key *k;
	struct operation op;
	uint8_t value[24]; /* of INCR, and of a SET of a number */
};

static uint64_t random_ttl(uint8_t *flags)
{
	switch (below(8)) {
	case 0:
		return FAR_MS + below(FAR_MS);
	case 1:
		*flags |= XKV_ABSTTL;
		return store_now_ms(bed.st) + FAR_MS + below(FAR_MS);
	case 2:
		*flags |= XKV_ABSTTL; /* past */
		return below(2) ? store_now_ms(bed.st) - 1 - below(100000) : 2 + below(1000);
	}
	return 0;
}

static size_t random_len(size_t key_len)
{
	switch (below(8)) {
	case 0:
		return below(SMALL + 1);
	case 1:
		return below(300);
	case 2:
		return 0;
	case 3:
		return exact_fit(key_len, below(below(4) ? 40 : 300));
	}
	return below(40);
}

static int64_t random_number(void)
{
	uint64_t n = random_u64() >> below(64);

	return (int64_t)(below(2) ? n : -n);
}

static void random_value(struct step *s)
{
	struct operation *op = &s->op;
	size_t most = XKV_PAYLOAD_MAX6 - 48 - XKV_PADDED(op->key_len);

	if (op->opcode == XKV_OP_INCR) {
		put_be(s->value, 8, (uint64_t)random_number());
		op->value_len = 8;
	} else if (op->opcode == XKV_OP_SET && !below(4)) {
		op->value_len = (size_t)snprintf((char *)s->value, sizeof(s->value), "%ld",
						 (long)random_number());
	} else {
		op->value_len = random_len(op->key_len);
		if (op->value_len > most)
			op->value_len = most;
		op->value = noise((uint32_t)random_u64());
	}
}

static bool writes(const struct operation *op)
{
	return op->opcode == XKV_OP_SET || op->opcode == XKV_OP_INCR || op->opcode == XKV_OP_APPEND;
}

static uint8_t random_flags(uint8_t opcode)
{
	static const uint8_t set[] = { 0, XKV_NX,      XKV_XX, XKV_CAS, XKV_CAS, 0,
				       0, XKV_KEEPTTL, 0,      0,	0,	 XKV_CAS | XKV_XX };
	uint8_t flags = 0;

	switch (opcode) {
	case XKV_OP_SET:
		flags = set[below(12)];
		break;
	case XKV_OP_INCR:
	case XKV_OP_APPEND:
		flags = set[below(12)] & (XKV_XX | XKV_CAS);
		break;
	case XKV_OP_DELETE:
	case XKV_OP_EXPIRE:
		flags = below(3) ? 0 : XKV_CAS;
		break;
	}
	if ((opcode == XKV_OP_SET || opcode == XKV_OP_DELETE) && !below(3))
		flags |= XKV_RETURN;
	return flags;
}

static void random_step(struct step *s)
{
	static const uint8_t codes[] = {
		XKV_OP_GET,    XKV_OP_GET,    XKV_OP_GET,    XKV_OP_SET,    XKV_OP_SET,
		XKV_OP_SET,    XKV_OP_SET,    XKV_OP_SET,    XKV_OP_DELETE, XKV_OP_DELETE,
		XKV_OP_DELETE, XKV_OP_EXPIRE, XKV_OP_EXPIRE, XKV_OP_INCR,   XKV_OP_INCR,
		XKV_OP_APPEND, XKV_OP_APPEND, XKV_OP_TTL,    XKV_OP_TOUCH,
	};
	struct operation *op = &s->op;

	*s = (struct step){ .k = &keys[below(KEYS)] };
	op->opcode = codes[below(sizeof(codes))];
	op->key = s->k->byte;
	op->key_len = s->k->len;
	op->flags = random_flags(op->opcode);
	op->value = s->value;
	if (writes(op))
		random_value(s);
	if (op->opcode == XKV_OP_EXPIRE || (op->opcode == XKV_OP_SET && !(op->flags & XKV_KEEPTTL)))
		op->ttl = random_ttl(&op->flags);
	if (op->flags & XKV_CAS)
		op->version = below(3) ? s->k->version : random_u64();
}

/* ---- the front ends ----------------------------------------------------------- */

/* The request as xkvd would get it after XDP has let it pass, or from a client that XDP never saw.
 */
static void through_xkvd(struct step *s)
{
	struct payload req;
	uint8_t reply[XKV_PAYLOAD_MAX4];
	struct forecast f;
	int len;

	model_run(s->k, &s->op, sizeof(reply) - 16, &f);
	request_begin(&req, random_u64(), NULL);
	request_add(&req, &s->op);
	len = store_datagram(bed.ctx, req.byte, req.len, reply, sizeof(reply), sizeof(reply));
	assert_true(len >= 40);
	assert_int_equal(check_result(s->k, s->op.flags, &f, reply, 16), len);
}

/* Is this an APPEND that the driver leaves to xkvd? */
static bool joins_too_much(const struct key *k, const struct operation *op)
{
	size_t len = k->value_len + op->value_len;

	return op->opcode == XKV_OP_APPEND && alive(k) && k->value_len && len > XKV_PAYLOAD_MAX4 &&
	       len <= XKV_VALUE_MAX && condition(k, op, true) == XKV_OK;
}

/* A datagram of one or several operations through XDP. */
static void through_xdp(struct step *s, unsigned int n)
{
	static struct outcome out;
	uint8_t frame[PACKET_MAX];
	struct packet_spec spec;
	struct forecast f;
	struct payload req;
	size_t len, at, head, done = 0;
	bool v6 = below(2);

	packet_default(&spec, v6);
	spec.tags = below(3);
	head = packet_payload_at(v6, spec.tags);
	request_begin(&req, random_u64(), NULL);
	for (unsigned int i = 0; i < n; i++)
		request_add(&req, &s[i].op);
	spec.payload = req.byte;
	spec.len = req.len;
	len = packet_build(&spec, frame);
	assert_true(bed_run(&bed, frame, len, &out));
	if (out.verdict == XDP_TX)
		assert_null(packet_complaint(out.frame, out.len));
	for (at = 16; done < n; done++) {
		size_t room = (v6 ? XKV_PAYLOAD_MAX6 : XKV_PAYLOAD_MAX4) - at;

		if (room < 24 || joins_too_much(s[done].k, &s[done].op))
			break;
		model_run(s[done].k, &s[done].op, room, &f);
		if (f.end != DONE)
			break;
		assert_int_equal(out.verdict, XDP_TX);
		at = check_result(s[done].k, s[done].op.flags, &f, out.frame + head, at);
	}
	if (done) {
		assert_int_equal(out.frame[head + 4], done);
		assert_int_equal(out.len, head + at);
		return;
	}
	assert_int_equal(out.verdict, XDP_PASS);
	assert_int_equal(out.len, len);
	assert_memory_equal(out.frame, frame, len);
	through_xkvd(s);
}

/* As through_xdp(), with as many operations as fit. */
static void through_xdp_many(void)
{
	struct step s[OPS_MAX];
	size_t len = 16;
	unsigned int n = 0, want = 2 + below(OPS_MAX - 1);

	for (; n < want; n++) {
		random_step(&s[n]);
		if (s[n].op.flags &
		    XKV_CAS) /* the version may be another by then: known either way */
			s[n].op.version = 2;
		len += 24 + XKV_PADDED(s[n].op.key_len) + XKV_PADDED(s[n].op.value_len);
		if (len > XKV_PAYLOAD_MAX6)
			break;
	}
	if (n)
		through_xdp(s, n);
}

static int status_errno(uint8_t status)
{
	return status == XKV_OK		 ? 0
	       : status == XKV_MISS	 ? -ENOENT
	       : status == XKV_NO_MEMORY ? -ENOSPC
					 : -ECANCELED;
}

static int call(struct step *s, struct store_entry *old)
{
	const struct operation *op = &s->op;
	uint64_t expire_ms = expiry_asked(op);
	struct store_entry got;

	switch (op->opcode) {
	case XKV_OP_GET:
		return store_get(bed.ctx, op->key, op->key_len, &got);
	case XKV_OP_SET:
		return store_set(bed.ctx, op->key, op->key_len, op->value, op->value_len,
				 op->flags & (XKV_NX | XKV_XX | XKV_KEEPTTL | XKV_CAS), op->version,
				 expire_ms, op->flags & XKV_RETURN ? old : NULL);
	case XKV_OP_DELETE:
		return store_delete(bed.ctx, op->key, op->key_len,
				    op->flags & XKV_RETURN ? old : NULL);
	default:
		return store_expire(bed.ctx, op->key, op->key_len, expire_ms);
	}
}

/* The result is as foretold; that there is no room shows at the end of a transaction. */
static void check_call(const struct step *s, const struct forecast *f, int ret, bool txn,
		       const struct store_entry *old)
{
	bool full = f->r.status == XKV_NO_MEMORY;

	assert_int_equal(ret, txn && full ? 0 : status_errno(f->r.status));
	if ((s->op.flags & XKV_RETURN) && (!ret || ret == -ECANCELED)) {
		assert_int_equal(old->value != NULL, f->r.value != NULL);
		assert_int_equal(old->value_len, f->r.value_len);
		if (old->value)
			assert_memory_equal(old->value, f->r.value, f->r.value_len);
	}
	if (txn)
		assert_int_equal(store_txn_commit(bed.ctx), full ? -ENOSPC : 0);
}

/* What the call has changed is seen by the next look at the entry, from which the new version is
 * learnt. */
static void through_calls(struct step *s, bool txn)
{
	struct store_entry old = { 0 }, e;
	struct forecast f;
	int ret;

	if (s->op.opcode == XKV_OP_DELETE || s->op.opcode == XKV_OP_EXPIRE)
		s->op.flags &= (uint8_t)~XKV_CAS; /* the calls have none */
	if (s->op.opcode > XKV_OP_EXPIRE) {
		through_xkvd(s); /* there are no calls for these */
		return;
	}
	if ((s->op.flags & XKV_RETURN) && (s->op.flags & XKV_CAS) && s->k->value_len > SMALL)
		s->op.flags &= (uint8_t)~XKV_RETURN; /* not offered together for large values */
	if (s->op.opcode == XKV_OP_SET && !below(50)) {
		s->op.value_len = below(50) ? below(20000) : XKV_VALUE_MAX - below(100);
		s->op.value = noise((uint32_t)random_u64());
	}
	model_run(s->k, &s->op, SIZE_MAX / 2, &f);
	if (txn)
		assert_int_equal(store_txn_begin(bed.ctx), 0);
	ret = call(s, &old);
	check_call(s, &f, ret, txn, &old);
	if (f.changes_version && alive(s->k)) {
		assert_int_equal(store_get(bed.ctx, s->k->byte, s->k->len, &e), 0);
		note_version(s->k, &f, e.version);
	} else if (f.changes_version) {
		s->k->version = bed_slot(&bed, s->k->byte, s->k->len)->seq;
	}
	check_entry(s->k);
}

/* ---- running it ---------------------------------------------------------- */

/* Short ones, so that several fit a datagram, and one of each length. */
static size_t key_len(unsigned int i)
{
	return i < KEYS - XKV_KEY_MAX ? 1 + below(60) : i - (KEYS - XKV_KEY_MAX) + 1;
}

static void make_keys(void)
{
	model_reset();
	for (int i = 0; i < KEYS; i++) {
		struct key *k = &keys[i];

		k->len = i < 8 ? i + 1U : i < 12 ? XKV_KEY_MAX - (i & 1U) : key_len(i);
		for (size_t j = 0; j < k->len; j++)
			k->byte[j] = (uint8_t)random_u64();
		k->byte[0] = (uint8_t)i; /* no two alike */
		if (i >= 12 && i < 20) /* alike when padded, or up to the end of the shorter one */
			memcpy(k->byte, keys[i - 12].byte, keys[i - 12].len);
		if (i >= 12 && i < 19) {
			k->len = keys[i - 12].len + 1;
			k->byte[k->len - 1] = 0;
		} else if (i == 19) {
			k->len = keys[7].len + 5;
		}
		k->bucket = bed_bucket(&bed, k->byte, k->len);
	}
}

static void expire_keys(void)
{
	expire_all();
	for (int i = 0; i < KEYS; i++)
		keys[i].there = alive(&keys[i]);
}

static void check_all(void)
{
	unsigned int there = 0;

	for (int i = 0; i < KEYS; i++) {
		check_entry(&keys[i]);
		there += keys[i].there;
	}
	assert_int_equal(store_count(bed.st), there);
	assert_int_equal(bed_index_count(&bed), there);
	account();
}

static void one_round(void)
{
	struct step s;

	random_step(&s);
	switch (below(5)) {
	case 0:
		through_xdp(&s, 1);
		break;
	case 1:
		through_xdp_many();
		break;
	case 2:
	case 3:
		through_calls(&s, below(2));
		break;
	default:
		through_xkvd(&s);
	}
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

static void flush(void)
{
	assert_int_equal(store_flush(bed.ctx), 0);
	for (int i = 0; i < KEYS; i++)
		keys[i].there = false;
	assert_int_equal(bed_chain_count(&bed), 0);
	check_all();
}

static void model(uint64_t fingerprint_mask, uint64_t bucket_mask)
{
	uint64_t rounds = number("XKV_MODEL_ROUNDS", ROUNDS), c[XKV_COUNTER_COUNT];

	random_state = number("XKV_MODEL_SEED", 1) ^ fingerprint_mask ^ bucket_mask << 32;
	open_masked_bed(fingerprint_mask, bucket_mask);
	make_keys();
	for (uint64_t i = 1; i <= rounds; i++) {
		one_round();
		if (i % 1000 == 0)
			expire_keys();
		if (i % 2000 == 0)
			check_all();
		if (i % 8000 == 0)
			flush();
	}
	check_all();
	bed_counters(&bed, c);
	if (!(fingerprint_mask & bucket_mask) &&
	    rounds >= ROUNDS) /* what it was for has happened */
		assert_true(c[XKV_C_op_no_memory] && c[XKV_C_pass_full] && c[XKV_C_unchained]);
}

static int teardown(void **state)
{
	model_reset();
	return close_bed(state);
}

static void test_model(void **state)
{
	model(~0ULL, ~0ULL);
}

static void test_model_four(void **state)
{
	model(3, ~0ULL);
}

static void test_model_one(void **state)
{
	model(0, ~0ULL);
}

static void test_model_one_bucket(void **state)
{
	model(~0ULL, 0);
}

/* ---- every order --------------------------------------------------------- */

/* Each order has a bucket of its own, with a chain behind it, and keys that all have one tag. */
#define ORDER_KEYS (ORDER * XKV_WAYS)
#define ORDER	   5   /* buckets of the chain, the first included */
#define ORDERS	   120 /* of 5 */
#define ORDER_MASK 0x7fULL

/* The n-th permutation. */
static void permutation(unsigned int n, unsigned int *order)
{
	bool used[ORDER] = { false };
	unsigned int pick, left;

	for (unsigned int i = 0; i < ORDER; i++) {
		pick = n % (ORDER - i);
		n /= ORDER - i;
		for (left = 0; used[left] || pick; left++)
			pick -= !used[left];
		used[left] = true;
		order[i] = left;
	}
}

/* Keys that share this fingerprint, and with it only with each other. */
static void find_keys(uint64_t fingerprint)
{
	unsigned int found = 0;

	model_reset();
	for (unsigned int i = 0; found < ORDER_KEYS; i++) {
		struct key *k = &keys[found];

		k->len = (size_t)snprintf((char *)k->byte, sizeof(k->byte), "key %u", i);
		k->bucket = bed_bucket(&bed, k->byte, k->len);
		found += bed_fingerprint(&bed, k->byte, k->len) == fingerprint;
	}
	memset(&keys[ORDER_KEYS], 0, sizeof(keys[0]));
}

/* One operation without conditions through XDP or the calls, with all keys looked at after it. */
static void order_step(unsigned int which, uint8_t opcode, size_t len)
{
	struct step s = { .k = &keys[which] };

	s.op = (struct operation){
		.opcode = opcode,
		.key = s.k->byte,
		.key_len = s.k->len,
		.value = opcode == XKV_OP_SET ? noise((uint32_t)random_u64()) : NULL,
		.value_len = opcode == XKV_OP_SET ? len : 0,
	};
	if (below(2))
		through_xdp(&s, 1);
	else
		through_calls(&s, below(2));
	for (unsigned int i = 0; i < ORDER_KEYS; i++)
		check_entry(&keys[i]);
}

/* The keys that stand in one bucket of the chain, which was filled in their order. */
static void bucket_steps(unsigned int bucket, uint8_t opcode, size_t len)
{
	for (unsigned int way = 0; way < XKV_WAYS; way++)
		order_step(bucket * XKV_WAYS + way, opcode, len);
}

static void test_every_order(void **state)
{
	unsigned int order[ORDER], chain;

	random_state = number("XKV_MODEL_SEED", 1);
	open_masked_bed(ORDER_MASK, ~0ULL);
	for (unsigned int n = 0; n < ORDERS; n++) {
		permutation(n, order);
		find_keys(n);
		for (unsigned int i = 0; i < ORDER; i++)
			bucket_steps(i, XKV_OP_SET, 10);
		chain = bed_chain_count(&bed);
		assert_int_equal(chain, ORDER - 1);
		for (unsigned int i = 0; i < ORDER; i++) /* overwritten, some moved */
			bucket_steps(order[i], XKV_OP_SET, n & 1 ? 12 : 300);
		for (unsigned int i = 0; i < ORDER; i++) {
			bucket_steps(order[i], XKV_OP_DELETE, 0);
			chain -= order[i] != 0;
			assert_int_equal(bed_chain_count(&bed), chain);
		}
		for (unsigned int i = ORDER; i-- > 0;)
			bucket_steps(order[i], XKV_OP_SET, 70);
		for (unsigned int i = 0; i < ORDER_KEYS;
		     i += 2) /* leave gaps, and no bucket empty */
			order_step(i, XKV_OP_DELETE, 0);
		for (unsigned int i = 0; i < ORDER; i += 2)
			order_step(order[i] * XKV_WAYS + order[i] % 2, XKV_OP_SET, 20);
		account();
		for (unsigned int i = 0; i < ORDER_KEYS; i++)
			order_step(i, XKV_OP_DELETE, 0);
		assert_int_equal(bed_chain_count(&bed), 0);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_every_order, teardown),
		cmocka_unit_test_teardown(test_model, teardown),
		cmocka_unit_test_teardown(test_model_four, teardown),
		cmocka_unit_test_teardown(test_model_one, teardown),
		cmocka_unit_test_teardown(test_model_one_bucket, teardown),
	};

	return bed_begin(argc, argv) ?: cmocka_run_group_tests_name("model", tests, NULL, NULL);
}

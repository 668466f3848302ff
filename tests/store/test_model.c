// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 45 */
/*
 * Random operations through every front end (XDP, the datagrams that xkvd answers,
 * the calls of loader/store/store.h), one after the other, against a model of the store
 * in a few lines.  With fingerprints cut down to one, four and many values, and with one
 * bucket for all of them, so that keys stand in chains and chains get full; and deletions
 * of keys of one chain in every order.  XKV_MODEL_SEED and XKV_MODEL_ROUNDS repeat a run or
 * make it longer.
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
#include "packet.h"
#include "xdpbed.h"

/* Operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define KEYS	   320 /* more than a chain has room for, though only some are there at a time */
#define CHAIN_KEYS ((XKV_CHAIN_MAX + 1) * XKV_WAYS)
#define OPS_MAX	   6	   /* of a datagram */
#define ROUNDS	   40000   /* of each case; a round has 1 to OPS_MAX operations */
#define FAR_MS	   1000000 /* a time that does not come during the test */
#define SLACK_MS   5000	   /* how exactly a far time is compared */
#define SMALL	   1400	   /* values that fit any reply */
#define VERSIONS   (1U << 20)

static struct bed bed;
static uint64_t random_state;

static uint64_t random_u64(void)
{
	uint64_t z = (random_state += 0x9e3779b97f4a7c15ULL); /* splitmix64 */

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
	return z ^ z >> 31;
}

static unsigned int below(unsigned int n)
{
	return (unsigned int)(random_u64() % n);
}

/* ---- the model ----------------------------------------------------------- */

struct key {
	uint8_t byte[XKV_KEY_MAX];
	size_t len;
	const struct xkv_bucket *bucket;
	bool there; /* in index, perhaps expired */
	uint8_t *value, *old;
	size_t value_len;
	uint64_t expire_ms; /* 0 = never */
	uint64_t version;
};

static struct key keys[KEYS];
static uint64_t versions[VERSIONS]; /* a hash table of all that were seen */

/* A version that was just given must be even and new. */
static void fresh_version(uint64_t v)
{
	uint64_t at = v * 0x9e3779b97f4a7c15ULL >> 44;

	assert_true(v && !(v & 1));
	for (; versions[at % VERSIONS]; at++)
		assert_int_not_equal(versions[at % VERSIONS], v);
	versions[at % VERSIONS] = v;
}

/* Bytes that are never twice the same. */
static const uint8_t *value_of(uint32_t seed)
{
	static uint8_t noise[XKV_VALUE_MAX + 4096];

	if (!noise[0])
		for (size_t i = 0; i < sizeof(noise); i++)
			noise[i] = (uint8_t)(random_u64() | !i);
	return noise + seed % 4096;
}

static unsigned int keys_in(const struct xkv_bucket *bucket)
{
	unsigned int n = 0;

	for (int i = 0; i < KEYS; i++)
		n += keys[i].there && keys[i].bucket == bucket;
	return n;
}

/* The value that the model has from now on; the one before stays readable until the next. */
static void set_value(struct key *k, size_t keep, const void *value, size_t len)
{
	uint8_t *new = malloc(keep + len + 1);

	assert_non_null(new);
	if (keep)
		memcpy(new, k->value, keep);
	if (len)
		memcpy(new + keep, value, len);
	free(k->old);
	k->old = k->value;
	k->value = new;
	k->value_len = keep + len;
}

static bool alive(const struct key *k)
{
	return k->there && (!k->expire_ms || k->expire_ms > store_now_ms(bed.st));
}

enum end { DONE, MISSED, FULL, NO_FIT };

/* What an operation shall do: how it ends, and its result if DONE. */
struct forecast {
	enum end end;
	struct result r;
	bool changes_version;
	uint64_t expire_ms;
	uint8_t number[8]; /* that INCR and APPEND return */
};

static uint64_t left_of(uint64_t expire_ms)
{
	uint64_t now = store_now_ms(bed.st);

	return expire_ms > now ? expire_ms - now : 0;
}

static uint64_t expiry_asked(const struct operation *op)
{
	if (!op->ttl || (op->flags & XKV_ABSTTL))
		return op->ttl;
	return store_now_ms(bed.st) + op->ttl;
}

static void give_value(struct forecast *f, const struct key *k)
{
	f->r.value = k->value;
	f->r.value_len = k->value_len;
}

static void model_get(const struct key *k, const struct operation *op, size_t room,
		      struct forecast *f)
{
	bool value = op->opcode != XKV_OP_TTL && op->opcode != XKV_OP_TOUCH;

	if (!alive(k)) {
		f->end = MISSED;
		f->r.status = XKV_MISS;
		return;
	}
	f->r.version = k->version;
	if (value && 24 + XKV_PADDED(k->value_len) > room) {
		f->end = NO_FIT;
		f->r.status = XKV_TOO_LARGE;
		f->r.value_len = k->value_len;
		return;
	}
	if (value)
		give_value(f, k);
	f->expire_ms = k->expire_ms;
}

static uint8_t condition(const struct key *k, const struct operation *op, bool exists)
{
	if (op->flags & XKV_CAS)
		return !exists ? XKV_MISS : k->version == op->version ? XKV_OK : XKV_NOT_STORED;
	if (((op->flags & XKV_NX) && exists) || ((op->flags & XKV_XX) && !exists))
		return XKV_NOT_STORED;
	return XKV_OK;
}

/* The number that a value is, in the form that Redis' string2ll() takes. */
static bool parse_number(const uint8_t *value, size_t len, __int128 *n)
{
	size_t digits = len - (len && value[0] == '-');
	const uint8_t *at = value + len - digits;

	if (!len || len > 20 || !digits || (at[0] == '0' && len > 1))
		return false;
	*n = 0;
	for (size_t i = 0; i < digits; i++) {
		if (at[i] < '0' || at[i] > '9')
			return false;
		*n = *n * 10 + (at[i] - '0');
	}
	if (at > value)
		*n = -*n;
	return *n >= INT64_MIN && *n <= INT64_MAX;
}

/* The new value.  False: it cannot be, for the reason in the result. */
static bool model_value(struct key *k, const struct operation *op, bool exists, struct forecast *f)
{
	size_t keep = exists && op->opcode == XKV_OP_APPEND ? k->value_len : 0;
	__int128 n = 0;
	char text[32];

	if (op->opcode != XKV_OP_INCR) {
		if (keep + op->value_len > XKV_VALUE_MAX) {
			f->r.status = XKV_TOO_LARGE;
			f->r.value_len = keep + op->value_len;
			return false;
		}
		set_value(k, keep, op->value, op->value_len);
		put_be(f->number, 8, k->value_len);
		return true;
	}
	if (exists && !parse_number(k->value, k->value_len, &n))
		f->r.status = XKV_NOT_NUMBER;
	n += (int64_t)get_be(op->value, 8);
	if (f->r.status == XKV_OK && (n < INT64_MIN || n > INT64_MAX))
		f->r.status = XKV_OVERFLOW;
	if (f->r.status != XKV_OK)
		return false;
	put_be(f->number, 8, (uint64_t)n);
	set_value(k, 0, text, (size_t)snprintf(text, sizeof(text), "%ld", (long)n));
	return true;
}

static void model_store(struct key *k, const struct operation *op, struct forecast *f)
{
	bool exists = alive(k), keep = op->opcode != XKV_OP_SET || (op->flags & XKV_KEEPTTL);

	if (!model_value(k, op, exists, f)) {
		f->r.version = f->expire_ms = 0;
		return;
	}
	k->expire_ms = keep && exists ? k->expire_ms : keep ? 0 : expiry_asked(op);
	k->there = true;
	f->expire_ms = k->expire_ms;
	f->changes_version = true;
	if (op->opcode != XKV_OP_SET) {
		f->r.value = f->number;
		f->r.value_len = 8;
	}
}

static void model_insert(struct key *k, const struct operation *op, struct forecast *f)
{
	f->r.status = condition(k, op, false);
	if (f->r.status != XKV_OK)
		return;
	if (keys_in(k->bucket) == CHAIN_KEYS) {
		f->end = FULL;
		f->r.status = XKV_NO_MEMORY;
		return;
	}
	model_store(k, op, f);
}

static void model_write(struct key *k, const struct operation *op, size_t room, struct forecast *f)
{
	bool exists = alive(k);

	if (op->opcode != XKV_OP_SET && room < 24 + 8) {
		f->end = NO_FIT;
		return;
	}
	if (!k->there) {
		model_insert(k, op, f);
		return;
	}
	if ((op->flags & XKV_RETURN) && exists) {
		model_get(k, op, room, f);
		if (f->end == NO_FIT)
			return;
	}
	f->r.status = condition(k, op, exists);
	f->expire_ms = exists ? k->expire_ms : 0;
	f->r.version = exists ? k->version : 0;
	if (f->r.status == XKV_OK)
		model_store(k, op, f);
}

/* May a DELETE or EXPIRE go on? */
static bool model_change(const struct key *k, const struct operation *op, struct forecast *f)
{
	f->r.status = condition(k, op, alive(k));
	if (!alive(k))
		f->r.status = XKV_MISS;
	if (f->r.status == XKV_NOT_STORED) {
		f->r.version = k->version;
		f->expire_ms = k->expire_ms;
	}
	return f->r.status == XKV_OK;
}

static void model_delete(struct key *k, const struct operation *op, size_t room, struct forecast *f)
{
	if (!model_change(k, op, f))
		return;
	if (op->flags & XKV_RETURN) {
		model_get(k, op, room, f);
		if (f->end == NO_FIT)
			return;
	}
	f->r.version = 0;
	f->expire_ms = 0;
	k->there = false;
}

static void model_expire(struct key *k, const struct operation *op, struct forecast *f)
{
	if (!model_change(k, op, f))
		return;
	k->expire_ms = f->expire_ms = expiry_asked(op);
	f->changes_version = true;
}

static void model_run(struct key *k, const struct operation *op, size_t room, struct forecast *f)
{
	*f = (struct forecast){ .end = DONE, .r = { .opcode = op->opcode } };
	switch (op->opcode) {
	case XKV_OP_GET:
	case XKV_OP_TTL:
	case XKV_OP_TOUCH:
		model_get(k, op, room, f);
		break;
	case XKV_OP_SET:
	case XKV_OP_INCR:
	case XKV_OP_APPEND:
		model_write(k, op, room, f);
		break;
	case XKV_OP_DELETE:
		model_delete(k, op, room, f);
		break;
	case XKV_OP_EXPIRE:
		model_expire(k, op, f);
		break;
	}
}

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

static size_t random_len(void)
{
	switch (below(8)) {
	case 0:
		return below(SMALL + 1);
	case 1:
		return below(300);
	case 2:
		return 0;
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
		op->value_len = random_len();
		if (op->value_len > most)
			op->value_len = most;
		op->value = value_of((uint32_t)random_u64());
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

static bool near_to(uint64_t a, uint64_t b)
{
	return a > b ? a - b < SLACK_MS : b - a < SLACK_MS;
}

static void note_version(struct step *s, const struct forecast *f, uint64_t version)
{
	if (!f->changes_version) {
		assert_int_equal(version, f->r.version);
		return;
	}
	fresh_version(version);
	s->k->version = version;
}

/* Compares the result at `at` of a reply with the forecast. Returns where the next one begins. */
static size_t check_result(struct step *s, const struct forecast *f, const uint8_t *p, size_t at)
{
	bool has = p[at + 2] & XKV_HAS_VALUE;
	uint64_t ttl = RESULT_TTL(p, at), left = left_of(f->expire_ms);

	assert_int_equal(p[at], f->r.opcode);
	if (p[at + 1] != f->r.status)
		print_error("opcode %u, flags %02x: status %u, expected %u\n", p[at], s->op.flags,
			    p[at + 1], f->r.status);
	assert_int_equal(p[at + 1], f->r.status);
	assert_int_equal(has, f->r.value != NULL);
	assert_int_equal(RESULT_VALUE_LEN(p, at), f->r.value_len);
	if (has)
		assert_memory_equal(p + at + 24, f->r.value, f->r.value_len);
	assert_true(near_to(ttl, left) && !ttl == !left);
	note_version(s, f, RESULT_VERSION(p, at));
	return at + 24 + (has ? XKV_PADDED(f->r.value_len) : 0);
}

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
	assert_int_equal(check_result(s, &f, reply, 16), len);
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
		at = check_result(&s[done], &f, out.frame + head, at);
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

static void check_entry(const struct key *k)
{
	struct store_entry e;
	int ret = store_get(bed.ctx, k->byte, k->len, &e);

	assert_int_equal(ret, alive(k) ? 0 : -ENOENT);
	if (ret)
		return;
	assert_int_equal(e.value_len, k->value_len);
	assert_memory_equal(e.value, k->value, k->value_len);
	assert_true(k->expire_ms ? near_to(e.expire_ms, k->expire_ms) : !e.expire_ms);
	assert_int_equal(e.version, k->version);
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

/* What the call has changed is seen by the next look at the entry, from which the new version is
 * learnt. */
static void through_calls(struct step *s)
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
		s->op.value = value_of((uint32_t)random_u64());
	}
	model_run(s->k, &s->op, SIZE_MAX / 2, &f);
	ret = call(s, &old);
	assert_int_equal(ret, status_errno(f.r.status));
	if ((s->op.flags & XKV_RETURN) && (!ret || ret == -ECANCELED)) {
		assert_int_equal(old.value != NULL, f.r.value != NULL);
		assert_int_equal(old.value_len, f.r.value_len);
		if (old.value)
			assert_memory_equal(old.value, f.r.value, f.r.value_len);
	}
	if (f.changes_version && alive(s->k)) {
		assert_int_equal(store_get(bed.ctx, s->k->byte, s->k->len, &e), 0);
		note_version(s, &f, e.version);
	} else if (f.changes_version) {
		s->k->version = bed_slot(&bed, s->k->byte, s->k->len)->seq;
	}
	check_entry(s->k);
}

/* ---- running it ---------------------------------------------------------- */

static void account(void)
{
	const char *why = bed_account(&bed);

	if (why)
		print_error("%s\n", why);
	assert_null(why);
}

static void make_keys(void)
{
	memset(keys, 0, sizeof(keys));
	for (int i = 0; i < KEYS; i++) {
		struct key *k = &keys[i];

		k->len = i < 8 ? i + 1U : i < 12 ? XKV_KEY_MAX - (i & 1U) : 1 + below(60);
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

static void expire_all(void)
{
	store_expire_cycle(bed.ctx, UINT32_MAX / 64); /* to the end of a turn over the pages */
	store_expire_cycle(bed.ctx, UINT32_MAX / 64); /* and a whole one */
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
	switch (below(4)) {
	case 0:
		through_xdp(&s, 1);
		break;
	case 1:
		through_xdp_many();
		break;
	case 2:
		through_calls(&s);
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

/* A store in which only these bits of a fingerprint, and of these only those of the bucket, count.
 */
static void open_bed(uint64_t fingerprint_mask, uint64_t bucket_mask)
{
	const char *why = bed_open(&bed, 4096);

	if (why)
		print_error("%s\n", why);
	assert_null(why);
	bed.c->fingerprint_mask = fingerprint_mask;
	bed.c->bucket_mask &= bucket_mask;
	assert_true(bed_warm(&bed));
}

static void forget_keys(void)
{
	for (int i = 0; i < KEYS; i++) {
		free(keys[i].value);
		free(keys[i].old);
	}
	memset(keys, 0, sizeof(keys));
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
	open_bed(fingerprint_mask, bucket_mask);
	make_keys();
	memset(versions, 0, sizeof(versions));
	for (uint64_t i = 1; i <= rounds; i++) {
		one_round();
		if (i % 1000 == 0)
			expire_all();
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

static int close_bed(void **state)
{
	(void)state;
	bed_close(&bed);
	forget_keys();
	return 0;
}

static void test_model(void **state)
{
	(void)state;
	model(~0ULL, ~0ULL);
}

static void test_model_four(void **state)
{
	(void)state;
	model(3, ~0ULL);
}

static void test_model_one(void **state)
{
	(void)state;
	model(0, ~0ULL);
}

static void test_model_one_bucket(void **state)
{
	(void)state;
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

	forget_keys();
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
		.value = opcode == XKV_OP_SET ? value_of((uint32_t)random_u64()) : NULL,
		.value_len = opcode == XKV_OP_SET ? len : 0,
	};
	if (below(2))
		through_xdp(&s, 1);
	else
		through_calls(&s);
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

	(void)state;
	random_state = number("XKV_MODEL_SEED", 1);
	memset(versions, 0, sizeof(versions));
	open_bed(ORDER_MASK, ~0ULL);
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

/* ---- at once ------------------------------------------------------------- */

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

	(void)arg;
	for (unsigned int i = 0; !failed && !atomic_load(&torn_end); i++) {
		memset(value, (int)(i & 0xff), sizeof(value));
		failed = store_set(ctx, "k", 1, value, sizeof(value), 0, 0, 0, NULL) != 0;
	}
	store_ctx_put(ctx);
	return (void *)failed;
}

/* A reader in XDP gets whole values, however fast the other front end changes them, or lets them pass.
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

	(void)state;
	open_bed(~0ULL, ~0ULL);
	assert_int_equal(store_set(bed.ctx, "k", 1, value_of(0), 1, 0, 0, 0, NULL), 0);
	packet_default(&spec, false);
	request_begin(&req, 1, NULL);
	request_add(&req, &op);
	spec.payload = req.byte;
	spec.len = req.len;
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

	(void)arg;
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
	open_bed(fingerprint_mask, bucket_mask);
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
	(void)state;
	moves(~0ULL, ~0ULL, 16);
}

/* All keys in one bucket and its chain. */
static void test_moves_in_a_chain(void **state)
{
	(void)state;
	moves(~0ULL, 0, 20);
}

/* And all of one tag. */
static void test_moves_alike(void **state)
{
	(void)state;
	moves(0, 0, 20);
}

/* ---- chains: a key is never missed because a bucket leaves its chain ------ */

/*
 * Each of two writers has keys in generations.  It inserts those of the next one, with keys between
 * that only take place, tells the readers, and then deletes the older ones, whose
 * buckets leave the chain in front of those that are being read.
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

	packet_default(&spec, false);
	request_begin(&req, 1, NULL);
	request_add(&req, &op);
	spec.payload = req.byte;
	spec.len = req.len;
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

	open_bed(fingerprint_mask, 0);
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
	(void)state;
	chains(~0ULL);
}

static void test_chains_alike(void **state)
{
	(void)state;
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

	packet_default(&spec, false);
	request_begin(&req, 1, NULL);
	for (unsigned int i = 0; i < n; i++)
		request_add(&req, &op[i]);
	spec.payload = req.byte;
	spec.len = req.len;
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
	uint8_t *value = calloc(1, XKV_VALUE_MAX);
	struct xkv_slot *slot, *forged;
	struct slot_copy copy;
	uint64_t ref;

	(void)state;
	open_bed(~0ULL, ~0ULL);
	assert_non_null(value);
	assert_int_equal(store_set(bed.ctx, "k", 1, value, XKV_VALUE_MAX, 0, 0, 0, NULL), 0);
	slot = bed_slot(&bed, "k", 1);
	assert_true(slot_copy(bed.st, bed_ref(&bed, slot), &copy, value));
	ref = XKV_REF(XKV_REF_PAGE(bed_ref(&bed, slot)), 0);
	assert_null(slot_of(bed.st, XKV_REF(XKV_PAGES_MAX, 64)));
	assert_null(slot_of(bed.st, ref | (XKV_PAGE_BYTES - 8) >> 3));
	assert_null(slot_of(bed.st, ref | (XKV_PAGE_BYTES - XKV_SLOT_WINDOW + 8) >> 3));
	/* behind the only slot of the page, where nobody writes */
	ref |= (XKV_PAGE_BYTES - XKV_SLOT_WINDOW) >> 3;
	forged = slot_of(bed.st, ref);
	assert_non_null(forged);
	*forged = (struct xkv_slot){ .seq = 2, .key_len = 8, .value_len = 1000,
				     .class = XKV_CLASS_LARGE };
	assert_true(slot_copy(bed.st, ref, &copy, value));
	forged->value_len = XKV_SLOT_WINDOW - 24;
	assert_false(slot_copy(bed.st, ref, &copy, value));
	forged->value_len = XKV_VALUE_MAX;
	assert_false(slot_copy(bed.st, ref, &copy, value));
	memset(forged, 0, sizeof(*forged));
	free(value);
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

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	if (CPU_COUNT(&all) < 2) {
		puts("SKIP: one CPU only");
		skip();
	}
	open_bed(1, ~0ULL);
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
	uint64_t end_ms;
} race;

/* Waits for the others, hot, so that all go on at the same moment.  The last one says whether it is
 * over. */
static bool race_meet(unsigned int turn)
{
	if (atomic_fetch_add(&race.ready, 1) == RIVALS - 1) {
		atomic_store(&race.ready, 0);
		if (turn % 4 == 0)
			atomic_store(&race.over, store_now_ms(bed.st) > race.end_ms);
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

	(void)arg;
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

/* In the first bucket and far behind it: who inserts has to look there once more when nobody else
 * can. */
static void test_rivals(void **state)
{
	pthread_t thread[RIVALS];
	char key[16];

	(void)state;
	open_bed(~0ULL, 0);
	for (int i = 0; i < 6 * XKV_WAYS; i++)
		assert_int_equal(store_set(bed.ctx, key,
					   (size_t)snprintf(key, sizeof(key), "fill%d", i), "", 0,
					   0, 0, 0, NULL),
				 0);
	memset(&race, 0, sizeof(race));
	race.end_ms = store_now_ms(bed.st) + 2 * race_ms();
	for (int i = 0; i < RIVALS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, rival, NULL), 0);
	for (int i = 0; i < RIVALS; i++)
		pthread_join(thread[i], NULL);
	assert_true(atomic_load(&race.round) > 1000);
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

		assert_int_equal(store_set(bed.ctx, key, len, value_of(n), steady_len(n), 0, 0,
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
	       !memcmp(entry.value, value_of(n), entry.value_len) &&
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
			ret = store_set(ctx, key, len, value_of(turn), turn * 7919 % 2000, 0, 0,
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
	uintptr_t units = 0;

	(void)arg;
	bed.st->maint.ctx = ctx;
	while (ctx && !atomic_load(&moves_end))
		for (unsigned int class = 0; class < bed.st->class_count; class ++) {
			maintenance_serve(bed.st);
			units += bed_drain(&bed, ctx, class, 1);
		}
	bed_maintained(&bed, false);
	store_ctx_put(ctx);
	return (void *)units;
}

static void drains(uint64_t bucket_mask)
{
	uint64_t begin, wrong = 0, gets = 0, c[XKV_COUNTER_COUNT];
	pthread_t writer[2], drain;
	void *failed, *units;

	open_bed(~0ULL, bucket_mask);
	steady_write();
	atomic_store(&moves_end, false);
	for (uintptr_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&writer[i], NULL, changer, (void *)i), 0);
	bed_maintained(&bed, true);
	assert_int_equal(pthread_create(&drain, NULL, drainer, NULL), 0);
	begin = store_now_ms(bed.st);
	while (store_now_ms(bed.st) < begin + 2 * race_ms())
		for (unsigned int n = 0; n < STEADY; n++, gets++)
			wrong += !steady_is_there(n);
	atomic_store(&moves_end, true);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(writer[i], &failed), 0);
		assert_null(failed);
	}
	assert_int_equal(pthread_join(drain, &units), 0);
	bed_counters(&bed, c);
	assert_true((uintptr_t)units > 100);
	assert_true(c[XKV_C_relocations] > 200);
	assert_true(gets > ENOUGH);
	assert_int_equal(wrong, 0);
	account();
}

static void test_drains(void **state)
{
	(void)state;
	drains(~0ULL);
}

/* Chain buckets are moved out of the spans too. */
static void test_drains_with_chains(void **state)
{
	(void)state;
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
		cmocka_unit_test_teardown(test_every_order, close_bed),
		cmocka_unit_test_teardown(test_model, close_bed),
		cmocka_unit_test_teardown(test_model_four, close_bed),
		cmocka_unit_test_teardown(test_model_one, close_bed),
		cmocka_unit_test_teardown(test_model_one_bucket, close_bed),
	};
	int status = bed_begin(argc, argv);

	return status ? status : cmocka_run_group_tests_name("model", tests, NULL, NULL);
}

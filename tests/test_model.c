// SPDX-License-Identifier: BSD-2-Clause
/*
 * Random operations through every door (XDP, the datagrams that xkvd answers,
 * the calls of loader/store.h), one after the other, against a model of the store
 * in a few lines.  With fingerprints cut down to one, four and many values,
 * so that keys step aside for each other; and deletions of colliding keys in every
 * order.  XKV_MODEL_SEED and XKV_MODEL_ROUNDS repeat a run or make it longer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <linux/bpf.h>

#include "../bpf/layout.h"
#include "../loader/store.h"
#include "packet.h"
#include "xdpbed.h"

/* Operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define KEYS	 48
#define OPS_MAX	 6	 /* of a datagram */
#define ROUNDS	 40000	 /* of each case; a round has 1 to OPS_MAX operations */
#define FAR_MS	 1000000 /* a time that does not come during the test */
#define SLACK_MS 5000	 /* how exactly a far time is compared */
#define SMALL	 1400	 /* values that fit any reply */
#define VERSIONS (1U << 20)

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
	unsigned int group; /* keys with one fingerprint: the first of them */
	bool listed;	    /* has a place in index, perhaps as a tomb */
	bool there;	    /* no tomb */
	bool marked;	    /* another one stepped aside for it */
	uint32_t seed;	    /* of its value */
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

static const uint8_t *value_of(uint32_t seed, size_t len)
{
	static uint8_t noise[XKV_VALUE_MAX + 4096];

	if (!noise[0])
		for (size_t i = 0; i < sizeof(noise); i++)
			noise[i] = (uint8_t)(random_u64() | !i);
	(void)len;
	return noise + seed % 4096;
}

static unsigned int group_size(unsigned int group)
{
	unsigned int n = 0;

	for (int i = 0; i < KEYS; i++)
		n += keys[i].listed && keys[i].group == group;
	return n;
}

static bool alive(const struct key *k)
{
	return k->there && (!k->expire_ms || k->expire_ms > store_now_ms(bed.st));
}

enum end { DONE, MISSED, BUSY_END, NO_FIT };

/* What an operation shall do: how it ends, and its result if DONE. */
struct forecast {
	enum end end;
	struct result r;
	bool changes_version;
	uint64_t expire_ms;
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

static void mark_group(unsigned int group)
{
	for (int i = 0; i < KEYS; i++)
		if (keys[i].listed && keys[i].group == group)
			keys[i].marked = true;
}

static void give_value(struct forecast *f, const struct key *k)
{
	f->r.value = value_of(k->seed, k->value_len);
	f->r.value_len = k->value_len;
}

static void model_get(const struct key *k, size_t room, struct forecast *f)
{
	if (!alive(k)) {
		f->end = MISSED;
		f->r.status = XKV_MISS;
		return;
	}
	f->r.version = k->version;
	if (24 + XKV_PADDED(k->value_len) > room) {
		f->end = NO_FIT;
		f->r.status = XKV_TOO_LARGE;
		f->r.value_len = k->value_len;
		return;
	}
	give_value(f, k);
	f->expire_ms = k->expire_ms;
}

static void model_store(struct key *k, const struct operation *op, uint32_t seed,
			struct forecast *f)
{
	bool keep = (op->flags & XKV_KEEPTTL) && k->listed && alive(k);

	k->expire_ms = keep ? k->expire_ms : expiry_asked(op);
	k->listed = k->there = true;
	k->seed = seed;
	k->value_len = op->value_len;
	f->expire_ms = k->expire_ms;
	f->changes_version = true;
}

static void model_insert(struct key *k, const struct operation *op, uint32_t seed,
			 struct forecast *f)
{
	if (op->flags & XKV_CAS) {
		f->r.status = XKV_MISS;
		return;
	}
	if (op->flags & XKV_XX) {
		f->r.status = XKV_NOT_STORED;
		return;
	}
	mark_group(k->group);
	if (group_size(k->group) == XKV_PROBES) {
		f->end = BUSY_END;
		f->r.status = XKV_BUSY;
		return;
	}
	k->marked = false;
	model_store(k, op, seed, f);
}

static uint8_t condition(const struct key *k, const struct operation *op, bool exists)
{
	if (op->flags & XKV_CAS)
		return !exists ? XKV_MISS : k->version == op->version ? XKV_OK : XKV_NOT_STORED;
	if (((op->flags & XKV_NX) && exists) || ((op->flags & XKV_XX) && !exists))
		return XKV_NOT_STORED;
	return XKV_OK;
}

static void model_set(struct key *k, const struct operation *op, uint32_t seed, size_t room,
		      struct forecast *f)
{
	bool exists = alive(k);

	if (!k->listed) {
		model_insert(k, op, seed, f);
		return;
	}
	if ((op->flags & XKV_RETURN) && exists) {
		model_get(k, room, f);
		if (f->end == NO_FIT)
			return;
	}
	f->r.status = condition(k, op, exists);
	f->expire_ms = exists ? k->expire_ms : 0;
	f->r.version = exists ? k->version : 0;
	if (f->r.status == XKV_OK)
		model_store(k, op, seed, f);
}

static void model_delete(struct key *k, const struct operation *op, size_t room, struct forecast *f)
{
	if (!alive(k)) {
		f->r.status = XKV_MISS;
		return;
	}
	if ((op->flags & XKV_CAS) && op->version != k->version) {
		f->r.status = XKV_NOT_STORED;
		f->r.version = k->version;
		f->expire_ms = k->expire_ms;
		return;
	}
	if (op->flags & XKV_RETURN) {
		model_get(k, room, f);
		if (f->end == NO_FIT)
			return;
	}
	f->r.version = 0;
	f->expire_ms = 0;
	k->there = false;
	k->listed = k->marked;
}

static void model_expire(struct key *k, const struct operation *op, struct forecast *f)
{
	if (!alive(k)) {
		f->r.status = XKV_MISS;
		return;
	}
	k->expire_ms = f->expire_ms = expiry_asked(op);
	f->changes_version = true;
}

static struct forecast model_run(struct key *k, const struct operation *op, uint32_t seed,
				 size_t room)
{
	struct forecast f = { .end = DONE, .r = { .opcode = op->opcode } };

	switch (op->opcode) {
	case XKV_OP_GET:
		model_get(k, room, &f);
		break;
	case XKV_OP_SET:
		model_set(k, op, seed, room, &f);
		break;
	case XKV_OP_DELETE:
		model_delete(k, op, room, &f);
		break;
	case XKV_OP_EXPIRE:
		model_expire(k, op, &f);
		break;
	}
	return f;
}

/* ---- random operations --------------------------------------------------- */

struct step {
	struct key *k;
	struct operation op;
	uint32_t seed;
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

static struct step random_step(void)
{
	static const uint8_t flags[] = { 0,	  0,	   0,		XKV_NX,		 XKV_XX,
					 XKV_CAS, XKV_CAS, XKV_KEEPTTL, XKV_CAS | XKV_XX };
	static const uint8_t codes[] = { XKV_OP_GET, XKV_OP_GET,    XKV_OP_SET,	   XKV_OP_SET,
					 XKV_OP_SET, XKV_OP_DELETE, XKV_OP_DELETE, XKV_OP_EXPIRE };
	struct step s = { .k = &keys[below(KEYS)], .seed = (uint32_t)random_u64() };
	struct operation *op = &s.op;

	op->opcode = codes[below(8)];
	op->key = s.k->byte;
	op->key_len = s.k->len;
	if (op->opcode == XKV_OP_SET) {
		op->flags = flags[below(9)];
		if (!(op->flags & XKV_KEEPTTL))
			op->ttl = random_ttl(&op->flags);
		op->value_len = random_len();
		if (op->value_len > XKV_PAYLOAD_MAX6 - 48 - XKV_PADDED(op->key_len))
			op->value_len = XKV_PAYLOAD_MAX6 - 48 - XKV_PADDED(op->key_len);
		op->value = value_of(s.seed, op->value_len);
	}
	if (op->opcode == XKV_OP_DELETE && !below(3))
		op->flags = XKV_CAS;
	if (op->opcode == XKV_OP_EXPIRE)
		op->ttl = random_ttl(&op->flags);
	if ((op->opcode == XKV_OP_SET || op->opcode == XKV_OP_DELETE) && !below(3))
		op->flags |= XKV_RETURN;
	if (op->flags & XKV_CAS)
		op->version = below(3) ? s.k->version : random_u64();
	return s;
}

/* ---- the doors ----------------------------------------------------------- */

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
	struct forecast f = model_run(s->k, &s->op, s->seed, sizeof(reply) - 16);
	int len;

	request_begin(&req, random_u64(), NULL);
	request_add(&req, &s->op);
	len = store_datagram(bed.lane, req.byte, req.len, reply, sizeof(reply), sizeof(reply));
	assert_true(len >= 40);
	assert_int_equal(check_result(s, &f, reply, 16), len);
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

		if (room < 24)
			break;
		f = model_run(s[done].k, &s[done].op, s[done].seed, room);
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
	if (f.end != BUSY_END || !below(200)) /* xkvd tries for a while before it says busy */
		through_xkvd(s);
}

/* As through_xdp(), with as many operations as fit. */
static void through_xdp_many(void)
{
	struct step s[OPS_MAX];
	size_t len = 16;
	unsigned int n = 0, want = 2 + below(OPS_MAX - 1);

	for (; n < want; n++) {
		s[n] = random_step();
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
	return status == XKV_OK	    ? 0
	       : status == XKV_MISS ? -ENOENT
	       : status == XKV_BUSY ? -EBUSY
				    : -ECANCELED;
}

static void check_entry(const struct key *k)
{
	struct store_entry e;
	int ret = store_get(bed.lane, k->byte, k->len, &e);

	assert_int_equal(ret, alive(k) ? 0 : -ENOENT);
	if (ret)
		return;
	assert_int_equal(e.value_len, k->value_len);
	assert_memory_equal(e.value, value_of(k->seed, k->value_len), k->value_len);
	assert_true(k->expire_ms ? near_to(e.expire_ms, k->expire_ms) : !e.expire_ms);
	assert_int_equal(e.version, k->version);
}

/* A new key for which there is no place. */
static bool will_be_busy(const struct step *s)
{
	return s->op.opcode == XKV_OP_SET && !(s->op.flags & (XKV_XX | XKV_CAS)) && !s->k->listed &&
	       group_size(s->k->group) == XKV_PROBES;
}

static int call(struct step *s, struct store_entry *old)
{
	const struct operation *op = &s->op;
	uint64_t expire_ms = expiry_asked(op);
	struct store_entry got;

	switch (op->opcode) {
	case XKV_OP_GET:
		return store_get(bed.lane, op->key, op->key_len, &got);
	case XKV_OP_SET:
		return store_set(bed.lane, op->key, op->key_len, op->value, op->value_len,
				 op->flags & (XKV_NX | XKV_XX | XKV_KEEPTTL | XKV_CAS), op->version,
				 expire_ms, op->flags & XKV_RETURN ? old : NULL);
	case XKV_OP_DELETE:
		return store_delete(bed.lane, op->key, op->key_len,
				    op->flags & XKV_RETURN ? old : NULL);
	default:
		return store_expire(bed.lane, op->key, op->key_len, expire_ms);
	}
}

/* What the call has changed is seen by the next look at the entry, from which the new version is
 * learnt. */
static void through_calls(struct step *s)
{
	struct store_entry old = { 0 }, e;
	struct forecast f;
	int ret;

	if (s->op.opcode == XKV_OP_DELETE)
		s->op.flags &= XKV_RETURN; /* the call has no CAS */
	if ((s->op.flags & XKV_RETURN) && (s->op.flags & XKV_CAS) && s->k->value_len > SMALL)
		s->op.flags &= (uint8_t)~XKV_RETURN; /* not offered together for large values */
	if (s->op.opcode == XKV_OP_SET && !below(50)) {
		s->op.value_len = below(50) ? below(20000) : XKV_VALUE_MAX - below(100);
		s->op.value = value_of(s->seed, s->op.value_len);
	}
	if (will_be_busy(s) && below(200))
		return; /* it tries for a while before it says so */
	f = model_run(s->k, &s->op, s->seed, SIZE_MAX / 2);
	ret = call(s, &old);
	assert_int_equal(ret, status_errno(f.r.status));
	if ((s->op.flags & XKV_RETURN) && (!ret || ret == -ECANCELED)) {
		assert_int_equal(old.value != NULL, f.r.value != NULL);
		assert_int_equal(old.value_len, f.r.value_len);
		if (old.value)
			assert_memory_equal(old.value, f.r.value, f.r.value_len);
	}
	if (f.changes_version && alive(s->k)) {
		assert_int_equal(store_get(bed.lane, s->k->byte, s->k->len, &e), 0);
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
		k->group = (unsigned int)i;
		for (int j = i - 1; j >= 0; j--)
			if (bed_fingerprint(&bed, keys[j].byte, keys[j].len) ==
			    bed_fingerprint(&bed, k->byte, k->len))
				k->group = keys[j].group;
	}
}

/* Expired entries go, and an expired one that others stepped aside for becomes a tomb. */
static void expire_all(void)
{
	store_expire_cycle(bed.lane, UINT32_MAX / 64); /* to the end of a turn over the pages */
	store_expire_cycle(bed.lane, UINT32_MAX / 64); /* and a whole one */
	for (int i = 0; i < KEYS; i++) {
		if (!keys[i].there || alive(&keys[i]))
			continue;
		keys[i].there = false;
		keys[i].listed = keys[i].marked;
	}
}

static void check_all(void)
{
	unsigned int there = 0, listed = 0;

	for (int i = 0; i < KEYS; i++) {
		check_entry(&keys[i]);
		there += keys[i].there;
		listed += keys[i].listed;
	}
	assert_int_equal(store_count(bed.st), there);
	assert_int_equal(bed_index_count(&bed), listed);
	account();
}

static void one_round(void)
{
	struct step s = random_step();

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
		if (!will_be_busy(&s))
			through_xkvd(&s);
	}
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

static void open_bed_for(unsigned int max_keys, uint64_t fingerprint_mask)
{
	const char *why = bed_open(&bed, max_keys);

	if (why)
		print_error("%s\n", why);
	assert_null(why);
	bed.c->fingerprint_mask = fingerprint_mask;
	for (size_t len = 0; len <= XKV_PAYLOAD_MAX4; len += 8) { /* a page for each class */
		assert_int_equal(store_set(bed.lane, "w", 1, value_of(0, len), len, 0, 0, 0, NULL),
				 0);
		assert_int_equal(store_delete(bed.lane, "w", 1, NULL), 0);
	}
}

static void open_bed(uint64_t fingerprint_mask)
{
	open_bed_for(4096, fingerprint_mask);
}

static void model(uint64_t fingerprint_mask)
{
	uint64_t rounds = number("XKV_MODEL_ROUNDS", ROUNDS);

	random_state = number("XKV_MODEL_SEED", 1) ^ fingerprint_mask;
	open_bed(fingerprint_mask);
	make_keys();
	memset(versions, 0, sizeof(versions));
	for (uint64_t i = 1; i <= rounds; i++) {
		one_round();
		if (i % 1000 == 0)
			expire_all();
		if (i % 2000 == 0)
			check_all();
	}
	check_all();
}

static int close_bed(void **state)
{
	(void)state;
	bed_close(&bed);
	return 0;
}

static void test_model(void **state)
{
	(void)state;
	model(~0ULL);
}

static void test_model_four(void **state)
{
	(void)state;
	model(3);
}

static void test_model_one(void **state)
{
	(void)state;
	model(0);
}

/* ---- every order --------------------------------------------------------- */

#define ORDER_KEYS 5
#define ORDERS	   120 /* of 5 keys */
#define ORDER_MASK 0x3ffULL

/* The n-th permutation. */
static void permutation(unsigned int n, unsigned int *order)
{
	bool used[ORDER_KEYS] = { false };
	unsigned int pick, left;

	for (unsigned int i = 0; i < ORDER_KEYS; i++) {
		pick = n % (ORDER_KEYS - i);
		n /= ORDER_KEYS - i;
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

	memset(keys, 0, sizeof(keys));
	for (unsigned int i = 0; found < ORDER_KEYS; i++) {
		struct key *k = &keys[found];

		k->len = (size_t)snprintf((char *)k->byte, sizeof(k->byte), "key %u", i);
		found += bed_fingerprint(&bed, k->byte, k->len) == fingerprint;
	}
}

/* One operation without conditions through XDP or the calls, with all keys looked at after it. */
static void order_step(unsigned int which, uint8_t opcode, size_t len)
{
	struct step s = { .k = &keys[which], .seed = (uint32_t)random_u64() };

	s.op = (struct operation){ .opcode = opcode,
				   .key = s.k->byte,
				   .key_len = s.k->len,
				   .value = opcode == XKV_OP_SET ? value_of(s.seed, len) : NULL,
				   .value_len = opcode == XKV_OP_SET ? len : 0 };
	if (below(2))
		through_xdp(&s, 1);
	else
		through_calls(&s);
	for (unsigned int i = 0; i < ORDER_KEYS; i++)
		check_entry(&keys[i]);
}

static void test_every_order(void **state)
{
	unsigned int order[ORDER_KEYS];

	(void)state;
	random_state = number("XKV_MODEL_SEED", 1);
	memset(versions, 0, sizeof(versions));
	open_bed(ORDER_MASK);
	for (unsigned int n = 0; n < ORDERS; n++) {
		permutation(n, order);
		find_keys(n);
		for (unsigned int i = 0; i < ORDER_KEYS; i++)
			order_step(i, XKV_OP_SET, 10);
		for (unsigned int i = 0; i < ORDER_KEYS; i++) /* overwritten, some moved */
			order_step(order[i], XKV_OP_SET, n & 1 ? 12 : 300);
		for (unsigned int i = 0; i < ORDER_KEYS; i++)
			order_step(order[i], XKV_OP_DELETE, 0);
		for (unsigned int i = ORDER_KEYS; i-- > 0;)
			order_step(order[i], XKV_OP_SET, 70);
		for (unsigned int i = 0; i < ORDER_KEYS; i += 2)
			order_step(order[i], XKV_OP_DELETE, 0);
		account();
	}
}

/* ---- at once ------------------------------------------------------------- */

#define TORN_MS	 2000
#define TORN_LEN 1400

static atomic_bool torn_end;

/* Writes one key over and over, each time with one byte all through. */
static void *torn_writer(void *arg)
{
	struct store_lane *lane = store_lane_get(bed.st);
	uint8_t value[TORN_LEN];
	uintptr_t failed = !lane;

	(void)arg;
	for (unsigned int i = 0; !failed && !atomic_load(&torn_end); i++) {
		memset(value, (int)(i & 0xff), sizeof(value));
		failed = store_set(lane, "k", 1, value, sizeof(value), 0, 0, 0, NULL) != 0;
	}
	store_lane_put(lane);
	return (void *)failed;
}

/* A reader in XDP gets whole values, however fast the other door changes them, or lets them pass.
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
	open_bed(~0ULL);
	assert_int_equal(store_set(bed.lane, "k", 1, value_of(0, 1), 1, 0, 0, 0, NULL), 0);
	packet_default(&spec, false);
	request_begin(&req, 1, NULL);
	request_add(&req, &op);
	spec.payload = req.byte;
	spec.len = req.len;
	len = packet_build(&spec, frame);
	atomic_store(&torn_end, false);
	assert_int_equal(pthread_create(&writer, NULL, torn_writer, NULL), 0);
	begin = store_now_ms(bed.st);
	while (store_now_ms(bed.st) < begin + TORN_MS) {
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
	assert_true(hits > 100);
	assert_true(out.verdict != XDP_TX || out.len != at + TORN_LEN ||
		    !memcmp(out.frame + at, out.frame + at + 1, TORN_LEN - 1));
	account();
}

/* ---- moves: an entry that changes its slot is never away ---------------- */

#define MOVES_MS 2000

static _Atomic bool moves_end;
static int moving; /* keys */

/* Overwrites the keys with values of two size classes in turn, so that they move all the time. */
static void *mover(void *arg)
{
	struct store_lane *lane = store_lane_get(bed.st);
	const char *failed = lane ? NULL : "no lane";
	static const char large[500];

	(void)arg;
	for (unsigned int turn = 0; !failed && !atomic_load(&moves_end); turn++)
		for (char key = 'a'; key < 'a' + moving; key++)
			if (store_set(lane, &key, 1, large, turn & 1 ? sizeof(large) : 20, 0, 0, 0, NULL))
				failed = "a SET failed";
	store_lane_put(lane);
	return (void *)failed;
}

/* Two writers and a reader; with a fingerprint of no bits all keys collide as well. */
static void moves(uint64_t mask, int n)
{
	uint64_t begin, misses = 0, gets = 0;
	struct store_entry entry;
	pthread_t writer[2];
	void *failed;

	moving = n;
	open_bed_for(n, mask); /* so few buckets that keys share them */
	for (char key = 'a'; key < 'a' + moving; key++)
		assert_int_equal(store_set(bed.lane, &key, 1, "", 0, 0, 0, 0, NULL), 0);
	atomic_store(&moves_end, false);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&writer[i], NULL, mover, NULL), 0);
	begin = store_now_ms(bed.st);
	while (store_now_ms(bed.st) < begin + MOVES_MS)
		for (char key = 'a'; key < 'a' + moving; key++, gets++) {
			misses += store_get(bed.lane, &key, 1, &entry) == -ENOENT;
			misses += store_expire(bed.lane, &key, 1, 0) == -ENOENT;
		}
	atomic_store(&moves_end, true);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(writer[i], &failed), 0);
		assert_null(failed);
	}
	assert_true(gets > 1000);
	assert_int_equal(misses, 0);
	assert_int_equal(store_count(bed.st), n);
	account();
}

static void test_moves(void **state)
{
	(void)state;
	moves(~0ULL, 16);
}

static void test_moves_that_collide(void **state)
{
	(void)state;
	moves(0, 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_torn, close_bed),
		cmocka_unit_test_teardown(test_moves, close_bed),
		cmocka_unit_test_teardown(test_moves_that_collide, close_bed),
		cmocka_unit_test_teardown(test_every_order, close_bed),
		cmocka_unit_test_teardown(test_model, close_bed),
		cmocka_unit_test_teardown(test_model_four, close_bed),
		cmocka_unit_test_teardown(test_model_one, close_bed),
	};
	const char *why = bed_cannot_run();

	if (why) {
		printf("SKIP: %s\n", why);
		return 77;
	}
	return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}

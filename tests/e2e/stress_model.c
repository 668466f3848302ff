// SPDX-License-Identifier: BSD-2-Clause
/*
 * The judge of the stress test: see stress_model.h for the rules.
 *
 * All shared fields are sequentially consistent atomics.  Writers note the time of
 * sending before they send and the acknowledgement after they have it, readers
 * take `before` first and look at a version's times last, so whatever is missing from
 * the notes makes the judge milder, never unjust.
 */
#include "stress_model.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MESSAGES    10
#define KEY_BITS    12 /* of the number of a key in its values, ... */
#define WRITER_BITS 7  /* ... and of who has written them */

const char *const kind_names[KINDS] = { "steady", "shared",  "churn",	"expiring",
					"large",  "counter", "private", "strict" };

uint64_t stress_seed;
_Atomic uint64_t stress_failures, stress_unjudged;
_Atomic bool stress_stop;

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

/* SplitMix64 (Steele, Lea, Flood): every bit of the result depends on every bit of x. */
uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static void raise_to(_Atomic uint64_t *at, uint64_t value)
{
	uint64_t old = atomic_load(at);

	while (old < value && !atomic_compare_exchange_weak(at, &old, value))
		;
}

int key_init(struct key *k, enum kind kind, uint32_t number, int owner, uint32_t size,
	     uint32_t ring)
{
	/* Lengths around the words that the store copies, and one of the longest. */
	static const uint8_t lengths[] = { 16, 24, 31, 17, 40, 23, 64, 100, 16, 250 };
	int used;

	if (number >> KEY_BITS || (owner > 0 && owner >> WRITER_BITS))
		return -E2BIG; /* values could not tell whose they are */
	k->kind = kind;
	k->number = number;
	k->owner = owner;
	k->size = size;
	k->name_len = size > 1100 ? 16 : lengths[number % sizeof(lengths)];
	used = snprintf(k->name, sizeof(k->name), "s:%.4s:%u:", kind_names[kind], number);
	for (int i = used; i < k->name_len; i++)
		k->name[i] = 'a' + mix(stress_seed + number * 256 + i) % 26;
	k->ring_mask = ring - 1;
	k->ring = calloc(ring, sizeof(*k->ring));
	k->alive_until = 0;
	k->dead_after = FOREVER;
	return k->ring ? 0 : -ENOMEM;
}

/* ---- values -------------------------------------------------------------- */

/*
 *   63       51 50                19 18     12 11         0
 *  +-----------+--------------------+---------+------------+
 *  |   check   |      version       | writer  |    key     |
 *  +-----------+--------------------+---------+------------+
 */
static unsigned int key_in(uint64_t first)
{
	return first & ((1 << KEY_BITS) - 1);
}

static unsigned int writer_in(uint64_t first)
{
	return first >> KEY_BITS & ((1 << WRITER_BITS) - 1);
}

static uint32_t version_in(uint64_t first)
{
	return first >> (KEY_BITS + WRITER_BITS);
}

static uint64_t first_word(uint32_t key, unsigned int writer, uint32_t version, size_t len)
{
	unsigned int bits = KEY_BITS + WRITER_BITS;
	uint64_t word = (uint64_t)version << bits | (uint64_t)writer << KEY_BITS | key;

	return word | mix(mix(word ^ stress_seed) + len) << (bits + 32);
}

static bool check_is_right(uint64_t first, size_t len)
{
	return first == first_word(key_in(first), writer_in(first), version_in(first), len);
}

static uint64_t word_at(uint64_t first, size_t i)
{
	return i ? mix(first + i * 0xd1342543de82ef95ULL) : first;
}

void value_fill(const struct key *k, unsigned int writer, uint32_t version, void *value, size_t len)
{
	uint64_t first = first_word(k->number, writer, version, len), word;
	size_t part;

	for (size_t i = 0; i * 8 < len; i++) {
		word = word_at(first, i);
		part = len - i * 8 < 8 ? len - i * 8 : 8;
		memcpy((char *)value + i * 8, &word, part);
	}
}

/* Offset of the first byte that does not follow from the first word, -1 if all do. */
static long first_torn_byte(const char *value, size_t len)
{
	uint64_t first, word;
	size_t part;

	memcpy(&first, value, sizeof(first));
	for (size_t i = 1; i * 8 < len; i++) {
		word = word_at(first, i);
		part = len - i * 8 < 8 ? len - i * 8 : 8;
		if (memcmp(value + i * 8, &word, part))
			return (long)(i * 8);
	}
	return -1;
}

/* ---- failures ------------------------------------------------------------ */

static void describe_value(const struct got *g)
{
	uint64_t first;

	if (!g->value || g->len < sizeof(first)) {
		fprintf(stderr, "  got: %s of %zu bytes\n", g->value ? "a value" : "no value",
			g->len);
		return;
	}
	memcpy(&first, g->value, sizeof(first));
	fprintf(stderr,
		"  got: header %016" PRIx64
		" = key %u, writer %u, version %u, check %s; %zu bytes, "
		"first torn byte %ld\n",
		first, key_in(first), writer_in(first), version_in(first),
		check_is_right(first, g->len) ? "right" : "wrong", g->len,
		first_torn_byte(g->value, g->len));
}

void fail_key(struct key *k, const struct got *g, const char *format, ...)
{
	static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
	uint64_t settled = atomic_load(&k->settled_version);
	va_list args;

	if (atomic_fetch_add(&stress_failures, 1) >= MESSAGES)
		return;
	pthread_mutex_lock(&one_at_a_time);
	va_start(args, format);
	fprintf(stderr, "FAILED (seed %" PRIu64 "): %s key %u '%.*s', %s, worker %d: ", stress_seed,
		kind_names[k->kind], k->number, k->name_len < 40 ? k->name_len : 40, k->name,
		g->frontend, g->worker);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	describe_value(g);
	fprintf(stderr,
		"  known: version %" PRIu64 " settled (key %u), versions up to %" PRIu64
		" issued, now %" PRIu64 "\n",
		settled, k->number, atomic_load(&k->issued), now_ns());
	pthread_mutex_unlock(&one_at_a_time);
	atomic_store(&stress_stop, true);
}

/* ---- writers ------------------------------------------------------------- */

uint32_t history_issue(struct key *k, uint64_t *sent)
{
	uint32_t version = atomic_fetch_add(&k->issued, 1) + 1;
	struct version_times *t = &k->ring[version & k->ring_mask];

	*sent = now_ns();
	atomic_store(&t->version, 0);
	atomic_store(&t->sent, *sent);
	atomic_store(&t->acked, 0);
	atomic_store(&t->version, version);
	return version;
}

static void settle_set(struct key *k, uint32_t version, uint64_t sent)
{
	raise_to(&k->settled_set, sent);
	if (atomic_load(&k->settled) < sent)
		atomic_store(&k->settled_version, version);
	raise_to(&k->settled, sent);
}

static void end_version(struct key *k, uint32_t version, uint64_t acked)
{
	struct version_times *t = &k->ring[version & k->ring_mask];

	if (atomic_load(&t->version) == version)
		atomic_store(&t->acked, acked);
}

void history_acked(struct key *k, uint32_t version, uint64_t sent)
{
	end_version(k, version, now_ns());
	settle_set(k, version, sent);
}

void history_refused(struct key *k, uint32_t version)
{
	end_version(k, version, REFUSED);
}

void history_lost(struct key *k, uint32_t version)
{
	end_version(k, version, now_ns());
}

void count_issue(struct key *k, uint32_t count)
{
	raise_to(&k->issued, count);
}

void count_acked(struct key *k, uint32_t count)
{
	raise_to(&k->settled, count);
}

void delete_begin(struct key *k, uint64_t *sent)
{
	atomic_fetch_add(&k->deletes, 1);
	*sent = now_ns();
}

void delete_end(struct key *k, uint64_t sent, bool deleted)
{
	raise_to(&k->last_delete, now_ns());
	if (deleted)
		raise_to(&k->settled, sent);
	atomic_fetch_sub(&k->deletes, 1);
}

void life_begin(struct key *k)
{
	atomic_fetch_add(&k->changes, 1);
}

void life_end(struct key *k, uint64_t alive_until, uint64_t dead_after)
{
	atomic_store(&k->alive_until, alive_until);
	atomic_store(&k->dead_after, dead_after);
	atomic_fetch_add(&k->changes, 1);
}

/* ---- readers ------------------------------------------------------------- */

void before_read(struct key *k, struct before *b)
{
	b->issued = atomic_load(&k->issued);
	b->settled_version = atomic_load(&k->settled_version);
	b->settled_set = atomic_load(&k->settled_set);
	b->settled = atomic_load(&k->settled);
	b->changes = atomic_load(&k->changes);
	b->sent = now_ns();
}

/* Is what we know of the time to live the same as when the request was sent? */
static bool life_is_known(struct key *k, const struct before *b)
{
	return k->kind == EXPIRING && !(b->changes & 1) && atomic_load(&k->changes) == b->changes;
}

static void judge_life(struct key *k, const struct before *b, const struct got *g)
{
	uint64_t dead_after = atomic_load(&k->dead_after);

	if (k->kind != EXPIRING && g->has_ttl && g->ttl_ms)
		fail_key(k, g, "a key that does not expire has %" PRIu64 " ms to live", g->ttl_ms);
	if (life_is_known(k, b) && dead_after < b->sent)
		fail_key(k, g, "read %" PRIu64 " us after it had expired",
			 (b->sent - dead_after) / 1000);
}

static bool judge_content(struct key *k, const struct got *g, uint32_t *version)
{
	uint64_t first;
	long torn;

	if (g->len < sizeof(first)) {
		fail_key(k, g, "no writer wrote a value of %zu bytes", g->len);
		return false;
	}
	memcpy(&first, g->value, sizeof(first));
	*version = version_in(first);
	torn = first_torn_byte(g->value, g->len);
	if (!check_is_right(first, g->len) || torn >= 0) {
		fail_key(k, g, "a torn value: byte %ld of %zu belongs to another one", torn,
			 g->len);
		return false;
	}
	if (key_in(first) != k->number) {
		fail_key(k, g, "a foreign value: it belongs to key %u", key_in(first));
		return false;
	}
	if (k->size && g->len != k->size) {
		fail_key(k, g, "no writer wrote %zu bytes under this key", g->len);
		return false;
	}
	if (!*version || *version > atomic_load(&k->issued)) {
		fail_key(k, g, "a version from the future");
		return false;
	}
	return true;
}

/* COUNTER: the version is the count, and settled the least that it can be. */
static void judge_count(struct key *k, const struct before *b, const struct got *g,
			uint32_t version)
{
	if (version < b->settled)
		fail_key(k, g, "the counter is %u, but had been %" PRIu64, version, b->settled);
	raise_to(&k->settled, version);
}

uint32_t judge_value(struct key *k, const struct before *b, const struct got *g)
{
	uint64_t sent, acked;
	struct version_times *t;
	uint32_t version;

	if (!judge_content(k, g, &version))
		return 0;
	judge_life(k, b, g);
	if (k->kind == COUNTER) {
		judge_count(k, b, g, version);
		return version;
	}
	t = &k->ring[version & k->ring_mask];
	sent = atomic_load(&t->sent);
	acked = atomic_load(&t->acked);
	if (atomic_load(&t->version) != version) {
		if (version + (uint64_t)k->ring_mask <= b->issued)
			fail_key(k, g,
				 "a stale value: %" PRIu64 " versions behind when it was asked for",
				 b->issued - version);
		else
			atomic_fetch_add(&stress_unjudged, 1);
		return version;
	}
	if (acked == REFUSED)
		fail_key(k, g, "a value whose SET was refused");
	else if (acked && acked < b->settled)
		fail_key(k, g,
			 "a stale value: acknowledged %" PRIu64
			 " us before a later write (version %" PRIu64
			 " or a DELETE) was sent, which was done %" PRIu64
			 " us before this was asked for",
			 (b->settled - acked) / 1000, b->settled_version,
			 (b->sent - b->settled) / 1000);
	settle_set(k, version, sent);
	return version;
}

void judge_miss(struct key *k, const struct before *b, const struct got *g)
{
	uint64_t deletes, last_delete;

	if (k->kind == EXPIRING) {
		if (life_is_known(k, b) && atomic_load(&k->alive_until) > now_ns())
			fail_key(k, g, "is missing %" PRIu64 " us before it expires",
				 (atomic_load(&k->alive_until) - now_ns()) / 1000);
		return;
	}
	if (k->kind == COUNTER && b->settled)
		fail_key(k, g, "the counter is missing");
	deletes = atomic_load(&k->deletes);
	last_delete = atomic_load(&k->last_delete);
	if (k->kind != COUNTER && !deletes && b->settled_set > last_delete)
		fail_key(k, g, "is missing, though version %" PRIu64 " was written and not deleted",
			 b->settled_version);
}

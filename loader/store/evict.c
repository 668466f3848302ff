// SPDX-License-Identifier: BSD-2-Clause
/*
 * Eviction: which entries are removed when memory is short.
 *
 * Reads, in XDP too, update the slot's `access` field.  The maintenance thread examines slots
 * through mapped memory, which costs a cache miss each and no system call.  A random sample gives
 * the score below which the worst share of the entries lies; then a cursor (like the hand of CLOCK)
 * moves over the pages and evicts all entries with such a score.  So entries are chosen among all,
 * not among the five that Redis samples for each eviction.
 *
 * The clock counts inserts, because the age of a cache entry is relative to how fast the store
 * turns over.  It fits every load, stands still while nothing is inserted (reads then write
 * nothing), and cannot wrap around before an entry is evicted.
 *
 *   lru     `access` is the clock at the last use.  A new entry starts with a random age, up to
 *           half the age at which entries are evicted: entries that are used only once (by a scan,
 *           for example) are evicted sooner.
 *   lfu     the clock, and in the lower 3 bits the number of ticks in which the entry was used,
 *           less one for each LFU_LEASE ticks without a use.
 *   ttl     the time of expiry.
 *   random  a random number.
 *
 * docs/benchmarks.md compares the hit ratios with those of Redis.
 */
#include <endian.h>
#include <stdlib.h>
#include <time.h>

#include "impl.h"
#include "util/clock.h"

#define RUNS	   64  /* a sample consists of so many runs, at random places, ... */
#define RUN_SLOTS  16  /* ... of so many neighbouring slots */
#define ROUNDS	   64  /* of sampling and sweeping in one call of evict() */
#define LRU_WORST  8   /* lru and others: the worst eighth is evicted first */
#define LFU_WORST  16  /* lfu: the worst sixteenth */
#define LRU_TICKS  128 /* clock ticks in which as many keys are inserted as the store has */
#define LFU_TICKS  16
#define RETRY_MS   100	/* pause after a search that found nothing, while no candidate is added */
#define PAGE_LOOKS 1536 /* slots examined per page and sample: an eighth of a page, or more */

/* xorshift64 (Marsaglia 2003): has to be fast, not unpredictable. */
static uint64_t draw(struct store *st)
{
	st->evict.random ^= st->evict.random << 13;
	st->evict.random ^= st->evict.random >> 7;
	return st->evict.random ^= st->evict.random << 17;
}

/* ---- policies ------------------------------------------------------------ */

static bool only_volatile(unsigned int policy)
{
	return policy == STORE_VOLATILE_LRU || policy == STORE_VOLATILE_LFU ||
	       policy == STORE_VOLATILE_RANDOM || policy == STORE_VOLATILE_TTL;
}

static enum xkv_track track_of(unsigned int policy)
{
	switch (policy) {
	case STORE_ALLKEYS_LRU:
	case STORE_VOLATILE_LRU:
		return XKV_TRACK_TIME;
	case STORE_ALLKEYS_LFU:
	case STORE_VOLATILE_LFU:
		return XKV_TRACK_FREQUENCY;
	}
	return XKV_TRACK_NOTHING;
}

/* What entries record, and the clock for it: store_limit() may change both meanwhile. */
static unsigned int tracked(const struct store *st)
{
	return __atomic_load_n(&st->cfg->track, __ATOMIC_RELAXED);
}

static uint16_t clock_of(const struct store *st)
{
	return __atomic_load_n(&st->cfg->access, __ATOMIC_RELAXED);
}

void store_limit(struct store *st, uint64_t maxmemory, enum store_policy policy)
{
	unsigned int track = maxmemory ? track_of(policy) : XKV_TRACK_NOTHING;

	st->maxmemory = maxmemory;
	st->policy = policy;
	if (tracked(st) == track)
		return;
	__atomic_store_n(&st->cfg->track, XKV_TRACK_NOTHING, __ATOMIC_RELAXED);
	__atomic_store_n(&st->cfg->access, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&st->cfg->access_spread, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&st->cfg->track, track, __ATOMIC_RELEASE);
}

void store_limit_lift(struct store *st)
{
	store_limit(st, 0, STORE_NOEVICTION);
}

/* Entries with a low score are evicted first. */
static int64_t score(struct store *st, const struct xkv_slot *slot)
{
	uint16_t access = __atomic_load_n(&slot->access, __ATOMIC_RELAXED);
	uint16_t age = clock_of(st) - access;

	switch (tracked(st)) {
	case XKV_TRACK_TIME:
		return -(int64_t)age;
	case XKV_TRACK_FREQUENCY:
		age = XKV_LFU_AGE(clock_of(st), access);
		return (int64_t)(access & XKV_LFU_COUNT) * XKV_LFU_LEASE - age;
	}
	return st->policy == STORE_VOLATILE_TTL ? (int64_t)slot->expire_ms
						: (int64_t)(draw(st) >> 32);
}

bool evict_may(const struct store *st, uint64_t expire_ms)
{
	return st->maxmemory && st->policy != STORE_NOEVICTION &&
	       (expire_ms || !only_volatile(st->policy));
}

bool evict_by_frequency(const struct store *st)
{
	return track_of(st->policy) == XKV_TRACK_FREQUENCY;
}

unsigned int evict_frequency(const struct store *st, uint16_t access)
{
	unsigned int count = access & XKV_LFU_COUNT;
	unsigned int lost = XKV_LFU_AGE(clock_of(st), access) / XKV_LFU_LEASE;

	return tracked(st) == XKV_TRACK_FREQUENCY && count > lost ? count - lost : 0;
}

static bool is_candidate(const struct store *st, const struct xkv_slot *slot)
{
	return !(__atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) & 1) &&
	       (slot->expire_ms || !only_volatile(st->policy));
}

/* ---- the clock ----------------------------------------------------------- */

void evict_tick(struct store *st)
{
	unsigned int track = tracked(st);
	unsigned int per_turn = track == XKV_TRACK_TIME ? LRU_TICKS : LFU_TICKS;
	uint64_t inserts, step;

	if (track == XKV_TRACK_NOTHING)
		return;
	inserts = store_counter(st, "inserts");
	step = store_count(st) / per_turn + 1;
	if (inserts - st->evict.clock_inserts < step)
		return;
	__atomic_fetch_add(&st->cfg->access,
			   (inserts - st->evict.clock_inserts) / step *
				   (track == XKV_TRACK_TIME ? 1 : XKV_LFU_TICK),
			   __ATOMIC_RELAXED);
	st->evict.clock_inserts = inserts - (inserts - st->evict.clock_inserts) % step;
}

/* ---- the sample ---------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

/* Scores of neighbouring slots, which cost fewer cache and TLB misses than scattered ones. */
static unsigned int sample_run(struct store *st, int64_t *found)
{
	uint32_t page = draw(st) % st->mem.pages, unit = draw(st) % XKV_UNITS;
	unsigned int first, n = 0;
	struct span s;

	if (!span_of_unit(st, page, unit, &s))
		return 0;
	first = (uint64_t)(unit - s.first) * s.slots / s.units;
	for (unsigned int i = first; i < first + RUN_SLOTS && i < s.slots; i++)
		if (is_candidate(st, span_slot(&s, i)))
			found[n++] = score(st, span_slot(&s, i));
	return n;
}

/* The highest score of the worst share of the entries, estimated from a sample. */
static int64_t threshold(struct store *st)
{
	unsigned int n = 0, share = tracked(st) == XKV_TRACK_FREQUENCY ? LFU_WORST : LRU_WORST;
	int64_t found[RUNS * RUN_SLOTS];

	for (int i = 0; i < RUNS; i++)
		n += sample_run(st, found + n);
	if (!n)
		return INT64_MAX; /* few candidates, if any: evict all that the cursor meets */
	qsort(found, n, sizeof(*found), ascending);
	if (tracked(st) == XKV_TRACK_TIME)
		__atomic_store_n(&st->cfg->access_spread, -found[n / share] / 2, __ATOMIC_RELAXED);
	return found[n / share];
}

/* ---- the cursor ---------------------------------------------------------- */

static unsigned int evict_run(struct store_ctx *ctx, unsigned int requests)
{
	unsigned int gone = 0;

	if (!requests || requests_run(ctx, requests))
		return 0;
	for (unsigned int i = 0; i < requests; i++)
		gone += request_result(ctx, i)->status == XKV_OK;
	return gone;
}

/* Writes a request that evicts the entry of the slot if it keeps its current version. */
static bool evict_slot(struct store_ctx *ctx, uint64_t ref, unsigned int nr)
{
	struct slot_copy copy;
	struct xkv_op *op;

	if (!slot_copy(ctx->st, ref, &copy, NULL))
		return false;
	op = request_make(ctx, nr, XKV_OP_DELETE, copy.db, copy.key, copy.key_len);
	op->flags = XKV_CAS;
	op->version = htobe64(copy.seq);
	ctx->request[nr].flags |= XKV_REQUEST_EVICT;
	ctx->st->evict.large += copy.value_len > XKV_FEED_INLINE;
	return true;
}

bool evict_entry(struct store_ctx *ctx, uint64_t ref)
{
	return evict_slot(ctx, ref, 0) && evict_run(ctx, 1);
}

/*
 * Moves the cursor over up to *looks slots, and writes requests that evict entries with a score of
 * at most `worst`.  Returns the number of requests.
 */
static unsigned int sweep(struct store_ctx *ctx, int64_t worst, unsigned int want,
			  unsigned int *looks)
{
	struct store *st = ctx->st;
	unsigned int requests = 0;
	struct span s;

	while (*looks && requests < want && requests < XKV_CONTEXT_REQUESTS) {
		--*looks; /* so that the loop ends if there is no span at all */
		if (!cursor_span(st, &st->evict.cursor, &s))
			continue;
		++*looks;
		while (*looks && st->evict.cursor.slot < s.slots && requests < want &&
		       requests < XKV_CONTEXT_REQUESTS) {
			unsigned int i = st->evict.cursor.slot++;

			--*looks;
			if (is_candidate(st, span_slot(&s, i)) &&
			    score(st, span_slot(&s, i)) <= worst)
				requests += evict_slot(ctx, span_ref(&s, i), requests);
		}
	}
	return requests;
}

/* Number of looks that take the cursor once over all slots. */
static unsigned int looks_at_all(const struct store *st)
{
	unsigned int looks = 1;

	for (unsigned int class = 0; class < XKV_CLASSES; class ++)
		looks += st->mem.class[class].slots;
	return looks;
}

/* A counter that increases when an entry is added that may be evicted. */
static uint64_t candidates_made(const struct store *st)
{
	return store_counter(st, only_volatile(st->policy) ? "ttls_given" : "inserts");
}

/* CPU time of this thread: the cost of a search, without the time it was not running. */
static uint64_t cpu_ms(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return used.tv_sec * 1000ULL + used.tv_nsec / 1000000;
}

/*
 * Has a search just failed?  Without a pause each refused write would search the whole store again;
 * with it, searching takes at most a tenth of the time.  If a candidate was added since, a search
 * for a waiting write succeeds and is made at once; a background call still waits for half the time
 * that a search takes.
 */
static bool failed_recently(const struct store *st, uint64_t made, bool background)
{
	uint64_t since = monotonic_ms() - st->evict.failed_ms, took = st->evict.failed_took_ms;

	if (made == st->evict.failed_made)
		return since < RETRY_MS + 10 * took;
	return background && since < took / 2;
}

unsigned int evict(struct store_ctx *ctx, unsigned int want, bool background)
{
	struct store *st = ctx->st;
	unsigned int gone = 0, looks, requests;
	uint64_t start = cpu_ms(), made;
	int64_t worst;

	if (st->policy == STORE_NOEVICTION || !st->mem.pages)
		return 0;
	made = candidates_made(st);
	if (failed_recently(st, made, background))
		return 0;
	evict_tick(st);
	for (int round = 0; round < ROUNDS && gone < want; round++) {
		pages_hold(st);
		worst = threshold(st);
		/* then sample again: evicting the worst entries has moved the threshold */
		looks = worst == INT64_MAX ? looks_at_all(st) : st->mem.pages_used * PAGE_LOOKS;
		pages_release(st);
		while (looks && gone < want) {
			pages_hold(st);
			requests = sweep(ctx, worst, want - gone, &looks);
			pages_release(st);
			gone += evict_run(ctx, requests);
		}
		if (worst == INT64_MAX)
			break; /* all candidates have been evicted */
	}
	if (!gone) {
		st->evict.failed_ms = monotonic_ms();
		st->evict.failed_took_ms = cpu_ms() - start;
		st->evict.failed_made = made;
	}
	return gone;
}

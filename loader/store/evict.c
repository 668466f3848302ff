// SPDX-License-Identifier: BSD-2-Clause
/*
 * Eviction: which entries go when memory is short.
 *
 * Reads (in XDP, too) leave a trace in the slot's `access`; here slots are looked at through mapped
 * memory, which costs a cache miss each and no system call.  A sample says which score the worst
 * share of the entries has; then a cursor (as CLOCK's hand) goes over the pages and evicts whatever
 * is as bad as that.  So the choice is made among all entries, not among the five that Redis draws
 * for each eviction.
 *
 * Time is counted in inserts: how often the store has turned over is what age means to a cache.  So
 * the clock fits every load, stands still (and reads write nothing) while nothing is inserted, and
 * cannot come round before an entry is evicted.
 *
 *   lru     `access` is the clock of the last use.  A new entry begins with an age by chance, up to half of
 *           that at which entries go: what is used once only, as in a scan, goes sooner.
 *   lfu     the clock, and in the lower 3 bits in how many of its ticks the entry was used, less one
 *           for each LFU_LEASE ticks without.
 *   ttl     the time of expiry.      random  none.
 *
 * docs/benchmarks.md has the hit ratios beside Redis'.
 */
#include <endian.h>
#include <stdlib.h>
#include <time.h>

#include "impl.h"
#include "util/clock.h"

#define RUNS 64          /* of neighbouring slots, each at a place by chance, make a sample */
#define RUN_SLOTS 16
#define ROUNDS 64        /* of sampling and sweeping in one call */
#define LRU_WORST 8      /* the cursor takes the oldest eighth, ... */
#define LFU_WORST 16     /* ... the least used sixteenth */
#define LRU_TICKS 128    /* of the clock while the store turns over */
#define LFU_TICKS 16
/* before it is tried again when there was nothing to evict, and nothing came */
#define BARREN_MS 100
/* slots that the cursor passes with one threshold, for each page: an eighth or more of them */
#define PAGE_LOOKS 1536

/* xorshift64: which slots are looked at has to be fast, not unforeseeable (Marsaglia 2003). */
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
	store_limit(st, store_memory(st) + XKV_PAGE_COST, STORE_NOEVICTION);
}

/* The lower, the sooner it goes. */
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
	return st->policy == STORE_VOLATILE_TTL ? (int64_t)slot->expire_ms :
						  (int64_t)(draw(st) >> 32);
}

bool evict_may(const struct store *st, uint64_t expire_ms)
{
	return st->maxmemory && st->policy != STORE_NOEVICTION &&
	       (expire_ms || !only_volatile(st->policy));
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

/* Scores of some slots in a row: a page read on for a bit costs less than as many jumps. */
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

/* The score that the worst share of the entries has. */
static int64_t threshold(struct store *st)
{
	unsigned int n = 0, share = tracked(st) == XKV_TRACK_FREQUENCY ? LFU_WORST : LRU_WORST;
	int64_t found[RUNS * RUN_SLOTS];

	for (int i = 0; i < RUNS; i++)
		n += sample_run(st, found + n);
	if (!n)
		return INT64_MAX; /* few, if any: take what the cursor meets */
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

/* Writes a request that evicts the entry of the slot, as it is now. */
static bool evict_slot(struct store_ctx *ctx, uint64_t ref, unsigned int nr)
{
	struct slot_copy copy;
	struct xkv_op *op;

	if (!slot_copy(ctx->st, ref, &copy, NULL))
		return false;
	op = request_make(ctx, nr, XKV_OP_DELETE, copy.key, copy.key_len);
	op->flags = XKV_CAS;
	op->version = htobe64(copy.seq);
	ctx->request[nr].flags |= XKV_REQUEST_EVICT;
	return true;
}

bool evict_entry(struct store_ctx *ctx, uint64_t ref)
{
	return evict_slot(ctx, ref, 0) && evict_run(ctx, 1);
}

/*
 * Moves the cursor over up to `looks` slots, until there is no room for more requests: how many it
 * wrote.
 */
static unsigned int sweep(struct store_ctx *ctx, int64_t worst, unsigned int want,
			  unsigned int *looks)
{
	struct store *st = ctx->st;
	unsigned int requests = 0;
	struct span s;

	while (*looks && requests < want && requests < XKV_BATCH_REQUESTS) {
		--*looks; /* also where there is no span at all */
		if (!cursor_span(st, &st->evict.cursor, &s))
			continue;
		++*looks;
		while (*looks && st->evict.cursor.slot < s.slots && requests < want &&
		       requests < XKV_BATCH_REQUESTS) {
			unsigned int i = st->evict.cursor.slot++;

			--*looks;
			if (is_candidate(st, span_slot(&s, i)) &&
			    score(st, span_slot(&s, i)) <= worst)
				requests += evict_slot(ctx, span_ref(&s, i), requests);
		}
	}
	return requests;
}

/* Looks that take the cursor once over all slots. */
static unsigned int whole_turn(const struct store *st)
{
	unsigned int looks = 1;

	for (unsigned int class = 0; class < XKV_CLASSES; class ++)
		looks += st->mem.class[class].slots;
	return looks;
}

/* Moves when there is something more that may go. */
static uint64_t candidates_made(const struct store *st)
{
	return store_counter(st, only_volatile(st->policy) ? "ttls_given" : "inserts");
}

/* Of this thread: what a look costs, not how long it was kept waiting. */
static uint64_t cpu_ms(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return used.tv_sec * 1000ULL + used.tv_nsec / 1000000;
}

/*
 * Was there nothing to evict just now?  Each refused write would look through the whole store
 * again: a tenth of the time.  If something that may go has come since, a background call still
 * waits for half as long as a look takes; a write that would be refused does not: it is there to be
 * found, and found only once.
 */
static bool is_barren(const struct store *st, uint64_t made, bool background)
{
	uint64_t since = monotonic_ms() - st->evict.barren_ms, took = st->evict.barren_took_ms;

	if (made == st->evict.barren_made)
		return since < BARREN_MS + 10 * took;
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
	if (is_barren(st, made, background))
		return 0;
	evict_tick(st);
	for (int round = 0; round < ROUNDS && gone < want; round++) {
		pages_hold(st);
		worst = threshold(st);
		/* as many as there are of the worst, on average; then their share is another */
		looks = worst == INT64_MAX ? whole_turn(st) : st->mem.pages_used * PAGE_LOOKS;
		pages_release(st);
		while (looks && gone < want) {
			pages_hold(st);
			requests = sweep(ctx, worst, want - gone, &looks);
			pages_release(st);
			gone += evict_run(ctx, requests);
		}
		if (worst == INT64_MAX)
			break; /* all that may go has gone */
	}
	if (!gone) {
		st->evict.barren_ms = monotonic_ms();
		st->evict.barren_took_ms = cpu_ms() - start;
		st->evict.barren_made = made;
	}
	return gone;
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * The thread that keeps slots free ahead of need, so that inserts in XDP find one: by new pages
 * while memory allows it, then by eviction; and that gives pages back which are not needed.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "log.h"
#include "store_impl.h"

#define PERIOD_MS 20
#define DRAIN_PERIODS 50 /* pages are given back once a second, ... */
#define DRAIN_SHARE 4    /* ... of a class that has more than a quarter of its slots free while it grows, */
#define DRAIN_AT_ONCE 16 /* so many at once */
#define QUIET_LOOKS 5    /* seconds in which a class did not grow: all but its reserve goes */
#define GROWTH_SHARE 16  /* it grows when it takes more than so large a part of a page in a second: for less its reserve lasts */
#define IDLE_LOOKS 60    /* a minute without an entry, and the last page of a class goes, too */
#define EVICT_AT_ONCE 256

struct slots {
	uint64_t per_page, all, free;
};

static struct slots slots_of(const struct store *st, unsigned int class)
{
	const struct xkv_class *c = &st->classes[class];
	struct slots s = { .per_page = page_slots(c->slot_bytes) };
	int64_t free = __atomic_load_n(&c->free, __ATOMIC_RELAXED);

	s.all = s.per_page * st->class_pages[class];
	s.free = free > 0 ? free : 0;
	return s;
}

/* Not in the lists: also what is parked in draining pages. */
static uint64_t used(const struct slots *s)
{
	return s->all > s->free ? s->all - s->free : 0;
}

static uint64_t clamp(uint64_t x, uint64_t low, uint64_t high)
{
	return x < low ? low : x > high ? high : x;
}

static bool is_quiet(const struct store *st, unsigned int class)
{
	return st->class_quiet[class] >= QUIET_LOOKS;
}

/*
 * An eighth more than the class has, so that filling the store takes few waits and little is left over.  One where
 * it did not grow: the others would be given back some seconds later, and made again for the next insert.
 */
static unsigned int pages_wanted(const struct store *st, unsigned int class)
{
	return is_quiet(st, class) ? 1 : clamp(st->class_pages[class] / 8, 1, PAGES_AT_ONCE);
}

/* ---- somebody waits ------------------------------------------------------ */

/* Takes a page from a class that can spare one.  True if one was given back. */
static bool take_from_others(struct store *st, unsigned int class)
{
	for (unsigned int other = 0; other < st->class_count; other++) {
		struct slots s = slots_of(st, other);

		if (other != class && st->class_pages[other] && s.free >= s.per_page &&
		    drain_pages(st->keeper_lane, other, 1))
			return true;
	}
	return false;
}

/*
 * Gets free slots for the class where memory allows no further page: from others that have too many, or by
 * eviction, which goes over all classes; what is freed elsewhere is worth a page in the end.
 */
static int make_room(struct store *st, unsigned int class, bool ahead)
{
	uint64_t per_page = slots_of(st, class).per_page;
	unsigned int want = clamp(per_page / 16, 1, EVICT_AT_ONCE), gone;
	uint64_t most = store_count(st) + EVICT_AT_ONCE, evicted = 0;
	int ret;

	while (!slots_of(st, class).free) {
		if (take_from_others(st, class)) {
			pthread_mutex_lock(&st->grow_lock);
			ret = pages_add(st, class, 1);
			pthread_mutex_unlock(&st->grow_lock);
			if (!ret)
				break;
			continue; /* one is not enough where more than maxmemory is taken: by a snapshot, or since it was lowered */
		}
		gone = evict(st->keeper_lane, want, ahead);
		evicted += gone;
		if (!gone || evicted > most)
			return -ENOSPC;
	}
	return 0;
}

int pages_grow(struct store *st, unsigned int class)
{
	int ret = 0;

	if (class >= st->class_count)
		return -EINVAL;
	pthread_mutex_lock(&st->grow_lock);
	if (!slots_of(st, class).free) {
		ret = pages_add(st, class, pages_wanted(st, class));
		st->class_quiet[class] = 0;
	}
	pthread_mutex_unlock(&st->grow_lock);
	if (ret != -ENOSPC)
		return ret;
	pthread_mutex_lock(&st->keeper_lock);
	ret = make_room(st, class, false);
	pthread_mutex_unlock(&st->keeper_lock);
	return ret;
}

/* ---- ahead of need ------------------------------------------------------- */

/*
 * Slots of a class that XDP uses which are to be free.  While it grows: an eighth, at most two pages; later a quarter
 * of a page, enough until it is seen to grow again.  At least one: who overwrites a large value takes its slot before
 * he gives one back.
 * At the limit free slots are memory that holds nothing: as many as the last period took, twice.
 */
static uint64_t reserve(struct store *st, unsigned int class, const struct slots *s)
{
	uint64_t taken = st->class_free[class] > s->free ? st->class_free[class] - s->free : 0;

	if (!st->at_limit)
		return is_quiet(st, class) ? clamp(s->per_page / 4, 1, s->per_page) :
					     clamp(s->all / 8, s->per_page / 4, 2 * s->per_page);
	return clamp(2 * taken, s->all / 256 + 1, s->all / 8 + 1);
}

/* Slots that the class is short of. */
static uint64_t shortage(struct store *st, unsigned int class)
{
	uint64_t wanted = __atomic_load_n(&st->classes[class].wanted, __ATOMIC_RELAXED), keep;
	struct slots s = slots_of(st, class);
	bool was_empty = wanted != st->class_wanted[class];

	st->class_wanted[class] = wanted;
	if (was_empty && !s.free) {
		st->class_quiet[class] = 0;
		return s.all / 64 + 1;
	}
	if (!st->class_pages[class] || st->classes[class].slot_bytes > XKV_SLOT_WINDOW)
		return 0;
	keep = reserve(st, class, &s);
	return s.free < keep ? keep - s.free : 0;
}

static void keep_ahead(struct store *st, unsigned int class)
{
	uint64_t want = shortage(st, class);
	int ret = 0;

	if (want) {
		pthread_mutex_lock(&st->grow_lock);
		ret = pages_add(st, class, pages_wanted(st, class));
		pthread_mutex_unlock(&st->grow_lock);
		st->at_limit = ret == -ENOSPC;
	}
	if (ret == -ENOSPC && st->policy != STORE_NOEVICTION) {
		want = shortage(st, class); /* by what is kept at the limit */
		if (want)
			evict(st->keeper_lane, want, true);
		if (!slots_of(st, class).free)
			make_room(st, class, true);
	}
	st->class_free[class] = slots_of(st, class).free;
}

/* ---- giving back --------------------------------------------------------- */

/* Counts the looks at which the class had not grown. */
static void look_for_growth(struct store *st, unsigned int class)
{
	struct slots s = slots_of(st, class);
	bool grows = used(&s) > st->class_looked[class] + s.per_page / GROWTH_SHARE;

	st->class_quiet[class] = grows ? 0 : st->class_quiet[class] + 1;
}

/* Free slots that a class may keep: many while it grows, as pages are made some at once; no more than the reserve when it has stopped. */
static uint64_t allowance(struct store *st, unsigned int class, const struct slots *s)
{
	return is_quiet(st, class) ? reserve(st, class, s) : s->all / DRAIN_SHARE;
}

/* Pages of a class that it can do without.  The last one is kept for a while: its entries may come again. */
static unsigned int surplus(struct store *st, unsigned int class)
{
	struct slots s = slots_of(st, class);
	uint64_t keep = allowance(st, class, &s);

	if (!st->class_pages[class])
		return 0;
	st->class_idle[class] = s.free >= s.all ? st->class_idle[class] + 1 : 0;
	if (st->class_idle[class] > IDLE_LOOKS)
		return st->class_pages[class];
	if (st->class_idle[class])
		return st->class_pages[class] - 1;
	return s.free < keep + s.per_page ? 0 : (s.free - keep) / s.per_page;
}

/* What is too much at two looks in a row goes. */
static void give_back(struct store *st, unsigned int class)
{
	unsigned int now, before = st->class_surplus[class];
	struct slots s;

	look_for_growth(st, class);
	now = surplus(st, class);
	st->class_surplus[class] = now;
	now = now < before ? now : before;
	if (now || drain_is_pending(st, class))
		drain_pages(st->keeper_lane, class, now < DRAIN_AT_ONCE ? now : DRAIN_AT_ONCE);
	s = slots_of(st, class); /* what was given back just now is no growth */
	st->class_looked[class] = used(&s);
}

/* ---- the thread ---------------------------------------------------------- */

static void keep(struct store *st, unsigned int period)
{
	evict_tick(st);
	if (period % DRAIN_PERIODS == 0)
		free_orphans(st);
	for (unsigned int class = 0; class < st->class_count; class++) {
		keep_ahead(st, class);
		if (period % DRAIN_PERIODS == 0)
			give_back(st, class);
	}
}

static void *keeper(void *arg)
{
	struct store *st = arg;
	struct timespec until;

	pthread_mutex_lock(&st->keeper_lock);
	for (unsigned int period = 1; !st->stopping; period++) {
		keep(st, period);
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += PERIOD_MS * 1000000L;
		if (until.tv_nsec >= 1000000000L) {
			until.tv_sec++;
			until.tv_nsec -= 1000000000L;
		}
		pthread_cond_timedwait(&st->wake, &st->keeper_lock, &until);
	}
	pthread_mutex_unlock(&st->keeper_lock);
	return NULL;
}

int keeper_start(struct store *st)
{
	int ret;

	st->random = store_now_ms(st) | 1;
	st->keeper_lane = store_lane_get(st);
	if (!st->keeper_lane)
		return -errno;
	ret = -pthread_create(&st->keeper, NULL, keeper, st);
	st->keeper_runs = !ret;
	return ret;
}

void keeper_stop(struct store *st)
{
	if (!st->keeper_runs)
		return;
	pthread_mutex_lock(&st->keeper_lock);
	st->stopping = true;
	pthread_cond_signal(&st->wake);
	pthread_mutex_unlock(&st->keeper_lock);
	pthread_join(st->keeper, NULL);
	st->keeper_runs = false;
	store_lane_put(st->keeper_lane);
}

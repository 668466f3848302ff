// SPDX-License-Identifier: BSD-2-Clause
/*
 * The maintenance thread.  It keeps free slots in reserve, so that inserts in XDP find one: from
 * new spans and pages while memory allows it, then by eviction.  It returns memory that is not
 * needed.  And it serves requests that found no free slot: they wait for this thread, up to a
 * deadline, instead of changing pages and spans themselves.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "impl.h"
#include "util/clock.h"
#include "util/log.h"

#define PERIOD_MS 20
/* returning memory */
#define RETURN_PERIODS 50 /* once a second */
#define RETURN_SHARE   4  /* a growing class may keep a quarter of its slots free */
#define RETURN_PAGES   4  /* at once */
#define RETURN_UNITS   (2 * RETURN_PAGES * XKV_UNITS) /* drained at once: requests may be waiting */
#define PAGE_TRIES     8  /* pages examined for one that can be emptied */
#define RUN_TRIES      4  /* runs of units examined for one that can be emptied for a value */
#define UNITS_KEPT     64 /* free units that are not returned */
/* growth */
#define GROWTH_SHARE  16 /* a class grows if a sixteenth of its slots or more is taken a second */
#define QUIET_LOOKS   5	 /* seconds without growth, after which only the reserve is kept */
#define GROWTH_PAGES  8	 /* most pages at once, without a load */
#define AHEAD_SHARE   4	 /* of a load: a quarter of the pages in use are made ahead, if not more */
#define RESERVE_PAGES 2	 /* most pages of free slots in reserve, in a class that grows */
/* making room for a waiting request */
#define EVICT_AT_ONCE 64   /* entries, ... */
#define EVICT_SHARE   64   /* ... but at most such a part of all */
#define LARGER	      4	   /* spans of more than so many times the wanted units are drained last */
#define READER_US     200  /* between looks whether a reader of the change feed has read on */
#define ROOM_MS	      100  /* for one class, before requests of other classes have their turn */
#define PAGE_BACK_MS  50   /* to give a page back, at most */
#define OWED_MS	      1000 /* how long units for a large value are left to the request that waits */
#define STEP_UNITS    1024 /* freed at once for who lets others run meanwhile: 4 MiB */
#define SPARE_PERIODS 10   /* how long spare_class stays set, so that the waiting request sees it */
#define COMPACT_MS    1000 /* pause after a failed compact(), while no unit is taken or freed */
#define COMPACT_SHARE 10   /* pause in any case, as a multiple of the time it took */
#define REFUSED_MS    60000 /* between two log lines about refused writes */

static struct timespec to_timespec(uint64_t ms)
{
	return (struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
}

/* ---- slots of a class ---------------------------------------------------- */

struct slots {
	uint64_t all, free;
	uint64_t per_page; /* slots that fit a page */
};

static struct slots slots_of(const struct store *st, unsigned int class)
{
	const struct xkv_class *c = &st->classes[class];
	int64_t free = xkv_class_free(c);

	return (struct slots){
		.all = st->mem.class[class].slots,
		.free = free > 0 ? free : 0,
		.per_page = XKV_PAGE_BYTES / c->slot_bytes,
	};
}

/*
 * Free slots that are promised to waiters; units, for large values.  Counted twice they would be
 * more than there are: nothing would be reclaimed for others, and all entries evicted in vain.
 */
static unsigned int promised(const struct store *st, unsigned int class)
{
	unsigned int promised = st->maint.promised[class], kept = st->maint.room.kept[class];

	if (!st->maint.room.claimed)
		return promised + kept;
	return promised > kept ? promised : kept;
}

/* Slots that are not in the free lists, including those parked in draining spans. */
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
	return st->maint.class[class].quiet >= QUIET_LOOKS;
}

/*
 * Pages that a load still needs, as far as they are made ahead of it.  The kernel waits a grace
 * period for each pages_add(): threads that fill the store would wait with it, again and again.
 * What is expected is the size of files, in which values may be compressed.
 */
static unsigned int pages_lacking(struct store *st)
{
	uint64_t ahead = atomic_load(&st->maint.expected) / XKV_PAGE_BYTES;
	uint64_t share = st->mem.pages_used / AHEAD_SHARE, free;

	if (!ahead)
		return 0;
	ahead = clamp(ahead > share ? ahead : share, 1, PAGES_AT_ONCE);
	free = units_free(st) / XKV_UNITS;
	return free < ahead ? ahead - free : 0;
}

void store_expect(struct store *st, uint64_t bytes)
{
	atomic_store(&st->maint.expected, bytes);
}

static bool is_growing(const struct store *st)
{
	for (unsigned int class = 0; class < st->class_count; class ++)
		if (st->mem.class[class].slots && !is_quiet(st, class))
			return true;
	return false;
}

/*
 * Pages to add: an eighth of those in use while the store grows, so that filling it takes few waits
 * for the kernel and little memory is left unused.
 */
static unsigned int pages_wanted(struct store *st)
{
	unsigned int lacking = pages_lacking(st);

	if (lacking)
		return lacking;
	return is_growing(st) ? clamp(st->mem.pages_used / 8, 1, GROWTH_PAGES) : 1;
}

/* ---- reclaiming: free slots become free units ----------------------------- */

struct candidate {
	struct span span;
	unsigned int fullness;
	bool too_large; /* draining it moves far more than is wanted */
	bool held; /* a transaction has slots of it, and waits for others: it cannot be emptied */
};

static int emptiest_first(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->too_large != y->too_large)
		return x->too_large - y->too_large;
	return (x->fullness > y->fullness) - (x->fullness < y->fullness);
}

/*
 * The spans of classes whose surplus is at least the span's slots, in allocated memory; NULL if
 * there are none.
 */
static struct candidate *find_candidates(struct store *st, const uint64_t surplus[XKV_CLASSES],
					 uint64_t want, size_t *count)
{
	struct candidate *c = NULL, *more;
	struct slot_cursor cursor = { 0 };
	size_t room = 0;
	struct span s;

	*count = 0;
	for (; cursor_span(st, &cursor, &s); cursor.unit += s.units, cursor.slot = 0) {
		if (s.slots > surplus[s.class] || s.class == XKV_CLASS_LARGE ||
		    __atomic_load_n(&span_head(&s)->state, __ATOMIC_ACQUIRE) != XKV_SPAN_LINKED)
			continue;
		if (*count == room) {
			room = room ? room * 2 : 64;
			more = realloc(c, room * sizeof(*c));
			if (!more)
				break;
			c = more;
		}
		c[(*count)++] = (struct candidate){ .span = s,
						    .fullness = span_fullness(&s),
						    .too_large = s.units > LARGER * want };
	}
	return c;
}

static int by_place(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->span.page != y->span.page)
		return x->span.page < y->span.page ? -1 : 1;
	return x->span.first < y->span.first ? -1 : x->span.first > y->span.first;
}

/* `held` of candidates that are in their order of place. */
static void find_held(const struct store *st, struct candidate *c, size_t count)
{
	struct candidate of, *held;

	for (unsigned int i = 0; i < st->txn_room; i++) {
		uint64_t ref = __atomic_load_n(&st->txn_key[i].prefilled, __ATOMIC_RELAXED);

		if (!ref || !span_of_ref(st, ref, &of.span))
			continue;
		held = bsearch(&of, c, count, sizeof(*c), by_place);
		if (held)
			held->held = true;
	}
}

/*
 * Would find_candidates() find no span, as the last time?  No class has more surplus than then, and
 * no span was made or released.  Each refused write would walk over all pages otherwise.
 */
static bool finds_none(const struct store *st, const uint64_t surplus[XKV_CLASSES])
{
	uint64_t changed = __atomic_load_n(&st->mem.spans_changed, __ATOMIC_RELAXED);

	if (!st->maint.none.known || st->maint.none.spans_changed != changed)
		return false;
	for (unsigned int class = 0; class < XKV_CLASSES; class ++)
		if (surplus[class] > st->maint.none.surplus[class])
			return false;
	return true;
}

/*
 * Starts to drain the emptiest spans, of each class up to its surplus, until they have `most`
 * units.  Returns the number of units.
 */
static unsigned int drain_surplus(struct store *st, uint64_t surplus[XKV_CLASSES],
				  unsigned int most)
{
	unsigned int units = 0;
	struct candidate *c;
	size_t count;

	if (finds_none(st, surplus))
		return 0;
	st->maint.none.spans_changed = __atomic_load_n(&st->mem.spans_changed, __ATOMIC_RELAXED);
	memcpy(st->maint.none.surplus, surplus, sizeof(st->maint.none.surplus));
	st->maint.none.walks++;
	c = find_candidates(st, surplus, most, &count);
	st->maint.none.known = !count;
	if (count) {
		find_held(st, c, count);
		qsort(c, count, sizeof(*c), emptiest_first);
	}
	for (size_t i = 0; i < count && units < most; i++) {
		if (c[i].held || c[i].span.slots > surplus[c[i].span.class])
			continue;
		surplus[c[i].span.class] -= c[i].span.slots;
		units += c[i].span.units;
		drain_begin(st, &c[i].span);
	}
	free(c);
	return units;
}

/*
 * Clears the surplus of classes with draining spans: the entries of those need the free slots.
 * Other classes may have the memory that such a class waits for.
 */
static void reserve_for_draining(const struct store *st, uint64_t surplus[XKV_CLASSES])
{
	for (size_t i = 0; i < st->drain.count; i++)
		surplus[st->drain.spans[i].class] = 0;
}

/*
 * Drains spans of classes that have free slots, but for the one that waits for more of them
 * (XKV_CLASS_LARGE: none does).  Returns the number of freed units.
 */
static unsigned int reclaim(struct store *st, unsigned int waiting, unsigned int want)
{
	uint64_t surplus[XKV_CLASSES] = { 0 };

	for (unsigned int class = 0; class < st->class_count; class ++) {
		struct slots s = slots_of(st, class);
		uint64_t keep = s.all / 256 + 1 + promised(st, class);

		surplus[class] = s.free > keep ? s.free - keep : 0;
	}
	if (!class_is_empty(st, XKV_CLASS_LARGE))
		drain_large(st->maint.ctx);
	surplus[waiting] = 0;
	reserve_for_draining(st, surplus);
	drain_surplus(st, surplus, want);
	return st->drain.count ? drain_run(st->maint.ctx) : 0;
}

/* ---- pages that can be emptied --------------------------------------------- */

/* Units that are taken to find out whether something would fit, and freed again. */
struct trial {
	struct {
		uint32_t page, first, units;
	} taken[XKV_UNITS];
	unsigned int count;
};

static bool trial_take(struct store *st, struct trial *t, unsigned int units)
{
	uint32_t page = 0, first = 0;

	if (!units_take(st, units, &page, &first))
		return false;
	t->taken[t->count].page = page;
	t->taken[t->count].first = first;
	t->taken[t->count++].units = units;
	return true;
}

static void trial_end(struct store *st, struct trial *t)
{
	while (t->count--)
		units_give(st, t->taken[t->count].page, t->taken[t->count].first,
			   t->taken[t->count].units);
}

/*
 * Do the spans in units first .. end - 1 fit elsewhere, each large value, and each slot of several
 * units, in neighbouring units, and then `spare` more neighbouring units?  What does not fit would
 * be evicted when it is moved.  The caller holds units_lock and has taken the free units of the
 * range.
 */
static bool fits_elsewhere(struct store *st, uint32_t page, uint32_t first, uint32_t end,
			   unsigned int spare)
{
	struct trial t = { .count = 0 };
	uint64_t small = 0, free = 0;
	unsigned int least;
	struct span s;
	bool fits = !spare || trial_take(st, &t, spare);

	for (uint32_t unit = first; fits && unit < end; unit++) {
		if (!span_of_unit(st, page, unit, &s))
			continue;
		least = s.class == XKV_CLASS_LARGE ? s.units : span_least(s.slot_bytes);
		if (least == 1)
			small += s.units;
		for (unsigned int got = 0; least > 1 && fits && got < s.units; got += least)
			fits = trial_take(st, &t, least);
		unit = s.first + s.units - 1;
	}
	for (uint32_t number = 0; number < st->mem.pages; number++)
		free += st->mem.tail[number] ? 0 : st->mem.units_free[number];
	trial_end(st, &t);
	return fits && small <= free;
}

/* Can these units of a page be emptied, with `spare` neighbouring free units left elsewhere? */
static bool can_be_emptied(struct store *st, uint32_t page, uint32_t first, unsigned int units,
			   unsigned int spare)
{
	bool own[XKV_UNITS], fits;

	pthread_mutex_lock(&st->mem.units_lock);
	for (uint32_t unit = first; unit < first + units; unit++)
		own[unit] = unit_take(st, page, unit);
	fits = fits_elsewhere(st, page, first, first + units, spare);
	for (uint32_t unit = first; unit < first + units; unit++)
		if (own[unit])
			units_give(st, page, unit, 1);
	pthread_mutex_unlock(&st->mem.units_lock);
	return fits;
}

/* Of the pages that can be emptied, the one with most free units.  False also for the only page. */
static bool emptiest_page(struct store *st, unsigned int spare, uint32_t *page)
{
	unsigned int below = XKV_UNITS, most;

	if (st->mem.pages_used < 2)
		return false;
	for (int i = 0; i < PAGE_TRIES; i++, below = most) {
		most = 0;
		for (uint32_t number = 0; number < st->mem.pages; number++)
			if (st->mem.page[number] && !st->mem.tail[number] &&
			    st->mem.units_free[number] < below &&
			    st->mem.units_free[number] > most) {
				most = st->mem.units_free[number];
				*page = number;
			}
		if (!most || can_be_emptied(st, *page, 1, XKV_UNITS - 1, spare))
			return most;
	}
	return false;
}

/* ---- large values: neighbouring units ------------------------------------- */

#define NEVER 1000000 /* cost of a unit that cannot be emptied */

/*
 * Cost of emptying a unit.  NEVER for a unit of a large value with at least `units` units, which
 * would need as many neighbouring units elsewhere.
 */
static unsigned int unit_cost(const struct store *st, uint32_t page, uint32_t at,
			      unsigned int units)
{
	const struct xkv_unit *unit = ((struct xkv_page *)st->mem.page[page])->unit;
	uint32_t first = unit[at].first;

	if (unit_is_free(st, page, at))
		return 0;
	if (unit[first].class != XKV_CLASS_LARGE)
		return 1;
	/* copying a large value takes longer than evicting entries */
	if (evict_may(st, 0) ||
	    (first + units - 1 < XKV_UNITS && unit[first + units - 1].first == first))
		return NEVER;
	return 1;
}

/*
 * The cheapest `units` neighbouring units of a page to empty, of those that cost `floor` or more:
 * *first, and their cost.  It includes all units of their spans, which are emptied as a whole.
 */
static unsigned int cheapest_run(const struct store *st, uint32_t page, unsigned int units,
				 unsigned int floor, uint32_t *first)
{
	const struct xkv_unit *unit = ((struct xkv_page *)st->mem.page[page])->unit;
	unsigned int upto[XKV_UNITS + 1] = { 0 }, end[XKV_UNITS + 1] = { 0 }, best = NEVER;

	for (uint32_t i = 1; i < XKV_UNITS; i++)
		upto[i + 1] = upto[i] + unit_cost(st, page, i, units);
	for (uint32_t i = XKV_UNITS - 1; i; i--)
		end[i] = unit[i].first && i + 1 < XKV_UNITS && unit[i + 1].first == unit[i].first
				 ? end[i + 1]
				 : i + 1;
	for (uint32_t i = 1; i + units <= XKV_UNITS; i++) {
		uint32_t begin = unit[i].first ? unit[i].first : i;
		unsigned int cost = upto[end[i + units - 1]] - upto[begin];

		if (cost >= floor && cost < best) {
			best = cost;
			*first = i;
		}
	}
	return best;
}

/*
 * The same over all pages; `more`: but those that have such a run.  Costs NEVER or more if there
 * are none.
 */
static unsigned int cheapest(const struct store *st, unsigned int units, bool more,
			     unsigned int floor, uint32_t *page, uint32_t *first)
{
	unsigned int least = NEVER, cost;
	uint32_t at;

	for (uint32_t number = 0; number < st->mem.pages; number++) {
		if (!st->mem.page[number] || st->mem.tail[number] ||
		    st->mem.units_free[number] + least <= units)
			continue; /* a used unit costs at least 1, so none is cheaper here */
		if (more && !cheapest_run(st, number, units, 0, &at))
			continue;
		cost = cheapest_run(st, number, units, floor, &at);
		if (cost < least) {
			least = cost;
			*page = number;
			*first = at;
		}
	}
	return least;
}

static bool try_compact(struct store *st, unsigned int units, bool more)
{
	unsigned int cost = 0;
	uint32_t page, first;

	for (int i = 0; i < RUN_TRIES; i++, cost++) {
		cost = cheapest(st, units, more, cost, &page, &first);
		if (cost >= NEVER)
			break;
		if (can_be_emptied(st, page, first, units, 0))
			return drain_range(st->maint.ctx, page, first, units);
	}
	return !more && emptiest_page(st, 0, &page) &&
	       drain_range(st->maint.ctx, page, 1, XKV_UNITS - 1);
}

/*
 * Has compact() just failed for as many units or fewer?  Without a pause each refused write would
 * move entries and wait for a grace period; with it, compacting takes at most a tenth of the time,
 * and less while no unit is freed or taken.
 */
static bool compact_failed_recently(const struct store *st, unsigned int units, uint64_t free)
{
	uint64_t since = monotonic_ms() - st->maint.compact_failed.ms;

	if (!st->maint.compact_failed.ms || units < st->maint.compact_failed.units)
		return false;
	return since < COMPACT_SHARE * st->maint.compact_failed.took_ms ||
	       (free == st->maint.compact_failed.free && since < COMPACT_MS);
}

/*
 * Makes `units` neighbouring units free, if that many are free in total: relocates the entries
 * between some of them or, if those fit nowhere, all entries of a page.  True on success.  With
 * `runs`: in a page that has not as many yet, so that fewer of these are lacking.
 */
static bool compact(struct store *st, unsigned int units, const unsigned int *runs)
{
	unsigned int lack = runs ? units_lacking(st, runs) : 0;
	uint64_t begin = monotonic_ms(), free = units_free(st);

	/* few free units are worth a grace period only if nothing can be evicted instead */
	if (free < (evict_may(st, 0) ? 2 * units : units) ||
	    compact_failed_recently(st, units, free))
		return false;
	if (try_compact(st, units, runs) && (!runs || units_lacking(st, runs) < lack))
		return true;
	st->maint.compact_failed.ms = monotonic_ms();
	st->maint.compact_failed.took_ms = st->maint.compact_failed.ms - begin;
	st->maint.compact_failed.units = units;
	st->maint.compact_failed.free = units_free(st);
	return false;
}

/* ---- requests that wait for a slot --------------------------------------- */

bool class_has(struct store *st, unsigned int class, unsigned int count)
{
	while (class_is_empty(st, class) || (count > 1 && slots_of(st, class).free < count))
		if (span_carve(st, class))
			return false;
	return true;
}

/*
 * What requests wait for: slots of a class, or units for a large value; or for all those large
 * values, of which the largest has `count` units.
 */
struct wanted {
	unsigned int class, count;
	const unsigned int *runs; /* room_want.runs; NULL = for one large value */
	unsigned int step;	  /* most units to free at once */
};

static bool is_available(struct store *st, const struct wanted *w)
{
	uint32_t page, first;
	bool found;

	if (w->class != XKV_CLASS_LARGE)
		return class_has(st, w->class, w->count);
	if (w->runs)
		return !units_lacking(st, w->runs);
	pthread_mutex_lock(&st->mem.units_lock);
	found = units_take(st, w->count, &page, &first);
	if (found)
		units_give(st, page, first, xkv_page_units(w->count));
	pthread_mutex_unlock(&st->mem.units_lock);
	return found;
}

/* Logs that writes are refused, at most once a minute. */
static void log_refusal(struct store *st)
{
	uint64_t now = monotonic_ms();

	if (st->maint.refused_ms && now - st->maint.refused_ms < REFUSED_MS)
		return;
	st->maint.refused_ms = now;
	if (store_at_limit(st))
		log_warning("no memory: writes are refused, as maxmemory (%llu bytes) is taken and "
			    "the policy finds nothing to evict",
			    (unsigned long long)st->maxmemory);
	else
		log_warning("no memory: writes are refused, as the machine, or "
			    "a cgroup that xkvd is in, has no more memory to give");
}

/* Units for so many slots of a class at once, or for a large value and those that follow it. */
static unsigned int units_for(const struct store *st, const struct wanted *w)
{
	unsigned int bytes = st->classes[w->class].slot_bytes, least = w->count, units;

	if (w->class == XKV_CLASS_LARGE) {
		units = w->runs ? st->maint.room.kept[w->class] : st->maint.promised[w->class];
	} else {
		least = span_least(bytes);
		units = xkv_units((size_t)w->count * bytes);
	}
	return clamp(units, least, w->step > least ? w->step : least);
}

/* Neighbouring units to make free: of a page as many as all large values take, or this one. */
static unsigned int units_together(const struct store *st, const struct wanted *w,
				   unsigned int units)
{
	unsigned int most = (XKV_UNITS - 1) / w->count * w->count;

	if (w->class != XKV_CLASS_LARGE)
		return units;
	return clamp(promised(st, w->class), w->count, most);
}

/* How many of `count` entries are in so many units, on average. */
static uint64_t entries_in(const struct store *st, uint64_t count, uint64_t units)
{
	uint64_t all = 0;

	for (unsigned int i = 0; i < XKV_CLASSES; i++)
		all += st->mem.class[i].units;
	return all ? count * units / all : 1;
}

/*
 * How many entries to evict to free `units` units, given the average size of the entries.  For a
 * large value, or many slots, all at once, because spans that are drained together share a grace
 * period.
 */
static unsigned int entries_for(const struct store *st, bool at_once, unsigned int units)
{
	uint64_t count = store_count(st), most = EVICT_AT_ONCE;

	if (at_once)
		most = clamp(count / EVICT_SHARE, EVICT_AT_ONCE, ~0U);
	return clamp(entries_in(st, count, units), clamp(count / EVICT_SHARE, 1, EVICT_AT_ONCE),
		     most);
}

/*
 * If no slot of a class can be had, lets the engine take one of a larger class that has free slots,
 * because entries were deleted or evicted there.  Chain buckets may need this when all memory is in
 * slots for entries.  False if no larger class has a free slot.
 */
static bool set_spare_class(struct store *st, unsigned int class)
{
	unsigned int spare = class + 1;

	while (spare < st->class_count && class_is_empty(st, spare))
		spare++;
	if (class == XKV_CLASS_LARGE || spare >= st->class_count)
		return false;
	st->cfg->spare_class = spare;
	st->maint.spare_periods = SPARE_PERIODS;
	return true;
}

/* Clears it after some periods: the right class may have free slots by then. */
static void clear_spare_class(struct store *st)
{
	if (st->maint.spare_periods && !--st->maint.spare_periods)
		st->cfg->spare_class = 0;
}

/*
 * The slots of large values that were evicted are free only when all readers of the change feed
 * have read of that: to evict more meanwhile would be in vain.  False if they have.
 */
static bool wait_for_readers(struct store *st, uint64_t evicted)
{
	bool waits = !feed_is_read(st, evicted);

	if (waits)
		usleep(READER_US);
	return waits;
}

/*
 * Were units made free for a large value whose request has not come back for them?  On a busy
 * machine that takes some time; reserves that took them meanwhile would make it wait again.
 */
static bool units_are_owed(const struct store *st)
{
	return st->mem.large_taken == st->maint.owed_at && monotonic_ms() < st->maint.owed_until_ms;
}

/*
 * Gets free slots, or units for a large value: from new pages, from what is kept for the next
 * transaction, from classes that have free slots, or by eviction.  0, -ENOSPC, or -EAGAIN if it is
 * not done at until_ms.
 */
static int maintenance_make_room(struct store *st, const struct wanted *w, uint64_t until_ms)
{
	unsigned int units = units_for(st, w), together = units_together(st, w, units);
	bool at_once = w->class == XKV_CLASS_LARGE || w->count > EVICT_AT_ONCE;
	uint64_t most = store_count(st) + EVICT_AT_ONCE, evicted = 0, told = 0, large;
	unsigned int gone;

	for (;;) {
		if (is_available(st, w))
			return 0;
		if (monotonic_ms() >= until_ms)
			return -EAGAIN;
		if (pages_add(st, pages_wanted(st)) > 0) {
			st->maint.at_limit = false;
			continue;
		}
		st->maint.at_limit = true;
		if (feed_trim(st) && is_available(st, w))
			return 0;
		if (txn_free_hand(st->maint.ctx) || reclaim(st, w->class, units) ||
		    (!units_are_owed(st) && pages_remove_huge(st)) || wait_for_readers(st, told) ||
		    compact(st, together, w->runs))
			continue;
		large = st->evict.large;
		gone = evict(st->maint.ctx, entries_for(st, at_once, units), false);
		evicted += gone;
		if (st->evict.large != large)
			told = feed_head(st);
		if (!gone || evicted > most)
			break;
	}
	return is_available(st, w) ? 0 : -ENOSPC; /* reclaim() may have freed it since */
}

/* For requests that wait for it: then a slot of a larger class will do, too. */
static int class_make_room(struct store *st, unsigned int class, unsigned int count,
			   uint64_t until_ms)
{
	int ret = maintenance_make_room(
		st, &(struct wanted){ .class = class, .count = count, .step = ~0U }, until_ms);

	if (ret == -ENOSPC && !set_spare_class(st, class))
		log_refusal(st);
	return ret;
}

int room_step(struct store *st, const struct room_want *want, uint64_t until_ms)
{
	struct wanted w = { .step = STEP_UNITS };
	int ret = 0;

	for (; w.class < st->class_count && !ret; w.class ++) {
		w.count = want->slots[w.class];
		if (w.count)
			ret = maintenance_make_room(st, &w, until_ms);
	}
	w = (struct wanted){ XKV_CLASS_LARGE, room_longest(want), want->runs, STEP_UNITS };
	if (!ret && w.count)
		ret = maintenance_make_room(st, &w, until_ms);
	/* no writer has taken the slots that were drained: see maintenance_reserve() */
	for (unsigned int class = 0; class < st->class_count; class ++)
		st->maint.class[class].free_before = slots_of(st, class).free;
	return ret;
}

static bool shrink(struct store *st);

/* Can a page with such a tail ever be had? */
static bool can_have_huge(const struct store *st, uint64_t bytes)
{
	return !st->maxmemory || store_memory_least(st) + bytes <= st->maxmemory;
}

/*
 * Gets a page with a tail for a huge entry: below maxmemory after pages were given back that are
 * not needed, and then by eviction.  0, -ENOSPC or -EAGAIN, as class_make_room().
 */
static int huge_make_room(struct store *st, unsigned int units, uint64_t until_ms)
{
	uint64_t bytes = (1 + xkv_tail_pages(units)) * XKV_PAGE_COST, told = 0, large;
	const struct wanted w = { .class = XKV_CLASS_LARGE, .count = units };
	bool gained = true;

	while (gained && can_have_huge(st, bytes)) {
		if (is_available(st, &w) || !page_add_huge(st, units)) {
			st->maint.huge_refused = false;
			return 0;
		}
		if (monotonic_ms() >= until_ms)
			return -EAGAIN;
		feed_trim(st);
		txn_free_hand(st->maint.ctx);
		large = st->evict.large;
		st->maint.wanted = bytes;
		gained = wait_for_readers(st, told) || shrink(st);
		st->maint.wanted = 0;
		if (st->evict.large != large)
			told = feed_head(st);
	}
	st->maint.huge_refused = st->maxmemory && store_memory(st) + bytes > st->maxmemory;
	log_refusal(st);
	return -ENOSPC;
}

static int need_room(struct store *st, unsigned int class, unsigned int count, uint64_t until_ms)
{
	return class == XKV_CLASS_LARGE && xkv_tail_pages(count)
		       ? huge_make_room(st, count, until_ms)
		       : class_make_room(st, class, count, until_ms);
}

/* Serves the waiting requests of a class.  Called with need_lock, which it releases meanwhile. */
static void serve_need(struct store *st, unsigned int class)
{
	struct need *n = &st->maint.need[class];
	uint64_t ticket = n->posted;
	unsigned int count = n->count;
	int ret;

	n->count = 0;
	pthread_mutex_unlock(&st->maint.need_lock);
	ret = need_room(st, class, count, monotonic_ms() + ROOM_MS);
	pthread_mutex_lock(&st->maint.need_lock);
	if (ret == -EAGAIN && monotonic_ms() < n->until_ms) {
		n->count = n->count > count ? n->count : count;
		st->maint.need_any = true; /* continues after the other classes had their turn */
		return;
	}
	if (!ret && class == XKV_CLASS_LARGE) {
		st->maint.owed_at = st->mem.large_taken;
		st->maint.owed_until_ms = monotonic_ms() + OWED_MS;
	}
	n->result = ret == -EAGAIN ? -ENOSPC : ret;
	n->tried = count;
	n->served = ticket;
	pthread_cond_broadcast(&st->maint.need_served);
}

static void serve_needs(struct store *st)
{
	st->maint.need_any = false;
	for (unsigned int class = 0; class < XKV_CLASSES; class ++)
		if (st->maint.need[class].served != st->maint.need[class].posted)
			serve_need(st, class);
}

void maintenance_serve(struct store *st)
{
	pthread_mutex_lock(&st->maint.need_lock);
	if (st->maint.need_any)
		serve_needs(st);
	pthread_mutex_unlock(&st->maint.need_lock);
}

/*
 * Posts a need to the maintenance thread and waits for the result.  Called with need_lock.
 * -ETIMEDOUT: not served before until_ms.
 */
static int need_post(struct store *st, struct need *n, unsigned int count, uint64_t until_ms)
{
	struct timespec until = to_timespec(until_ms);
	uint64_t ticket = ++n->posted;
	int ret = 0;

	if (n->count < count)
		n->count = count;
	if (n->until_ms < until_ms)
		n->until_ms = until_ms;
	st->maint.need_any = true;
	pthread_cond_signal(&st->maint.need_posted);
	while (n->served < ticket && !ret && !st->maint.stopping)
		ret = pthread_cond_timedwait(&st->maint.need_served, &st->maint.need_lock, &until);
	return n->served < ticket ? -ETIMEDOUT : n->result;
}

/*
 * Waits until the maintenance thread has served this need.  Posts it again if the thread failed to
 * get more than this request needs, for another request.
 */
static int need_wait(struct store *st, unsigned int class, unsigned int count, uint64_t until_ms)
{
	struct need *n = &st->maint.need[class];
	int ret;

	pthread_mutex_lock(&st->maint.need_lock);
	do
		ret = need_post(st, n, count, until_ms);
	while (ret == -ENOSPC && n->tried > count);
	pthread_mutex_unlock(&st->maint.need_lock);
	return ret == -ETIMEDOUT ? -ENOSPC : ret;
}

/* For a huge entry many pages may have to be given back, each of which takes a grace period. */
static uint64_t wait_for_huge(unsigned int class, unsigned int count)
{
	return class == XKV_CLASS_LARGE ? (uint64_t)xkv_tail_pages(count) * PAGE_BACK_MS : 0;
}

int slots_grow(struct store *st, unsigned int class, unsigned int count, uint64_t *until_ms)
{
	if (class >= st->class_count && class != XKV_CLASS_LARGE)
		return -EINVAL;
	if (class != XKV_CLASS_LARGE && class_is_empty(st, class))
		st->maint.class[class].quiet = 0;
	if (is_available(st, &(struct wanted){ .class = class, .count = count }))
		return 0;
	if (!*until_ms)
		*until_ms = monotonic_ms() + GROW_WAIT_MS + wait_for_huge(class, count);
	if (!st->maint.runs)
		return need_room(st, class, count, *until_ms) ? -ENOSPC : 0;
	return need_wait(st, class, count, *until_ms);
}

/* ---- free slots in reserve ----------------------------------------------- */

/*
 * How many slots of a class that XDP uses are to be free.  An eighth while the class grows; later a
 * 32nd, which lasts until renewed growth is detected.  At least one: an overwrite with a value of
 * another size takes the new slot before it frees the old one.  At the memory limit, where free
 * slots are wasted memory: twice as many as the last period took.
 */
static uint64_t maintenance_reserve(const struct store *st, unsigned int class,
				    const struct slots *s)
{
	uint64_t before = st->maint.class[class].free_before;
	uint64_t taken = before > s->free ? before - s->free : 0;

	if (st->maint.at_limit)
		return clamp(2 * taken, s->all / 256 + 1, s->all / 8 + 1);
	if (is_quiet(st, class))
		return clamp(s->all / 32, 1, s->per_page / 4 + 1);
	return clamp(s->all / 8, 1, RESERVE_PAGES * s->per_page + 1);
}

/* Slots that the reserve of the class lacks. */
static uint64_t shortage(const struct store *st, unsigned int class)
{
	struct slots s = slots_of(st, class);
	uint64_t keep;

	if (!s.all || st->classes[class].slot_bytes > XKV_SLOT_WINDOW)
		return 0;
	keep = maintenance_reserve(st, class, &s);
	return s.free < keep ? keep - s.free : 0;
}

/* Has the BPF code found the class empty since the last call, and is it still empty? */
static bool was_empty(struct store *st, unsigned int class)
{
	uint64_t wanted = __atomic_load_n(&st->classes[class].wanted, __ATOMIC_RELAXED);
	bool moved = wanted != st->maint.class[class].wanted;

	st->maint.class[class].wanted = wanted;
	return moved && class_is_empty(st, class);
}

/* Bytes above maxmemory, after that was lowered, or if a huge entry had the memory it waits for. */
static uint64_t over_limit(const struct store *st)
{
	uint64_t limit = st->maxmemory, memory = store_memory(st) + st->maint.wanted;

	return limit && memory > limit ? memory - limit : 0;
}

/*
 * Adds a span, in a new page if necessary.  Not above a limit that was lowered, where shrink() made
 * the free units to return them: reserves come from eviction there.
 */
static int grow(struct store *st, unsigned int class)
{
	int ret;

	if (st->maint.at_limit && (units_are_owed(st) || st->maint.room.who))
		return -ENOSPC;
	if (over_limit(st) && evict_may(st, 0))
		return -ENOSPC;
	ret = span_carve(st, class);
	if (ret != -ENOSPC)
		return ret;
	ret = pages_add(st, pages_wanted(st));
	st->maint.at_limit = ret == -ENOSPC;
	return ret < 0 ? ret : span_carve(st, class);
}

static void replenish(struct store *st, unsigned int class)
{
	int ret = 0;

	if (was_empty(st, class)) {
		st->maint.class[class].quiet = 0;
		ret = grow(st, class);
	}
	while (!ret && shortage(st, class))
		ret = grow(st, class);
	if (ret == -ENOSPC && st->policy != STORE_NOEVICTION) {
		uint64_t want = shortage(st, class); /* smaller now that at_limit is set */

		if (want || class_is_empty(st, class))
			evict(st->maint.ctx, clamp(want, 1, ~0U), true);
	}
	st->maint.class[class].free_before = slots_of(st, class).free;
}

/* ---- returning memory ---------------------------------------------------- */

/* Counts the calls since the class grew. */
static void update_growth(struct store *st, unsigned int class)
{
	struct slots s = slots_of(st, class);
	bool grows = used(&s) > st->maint.class[class].used_before + s.all / GROWTH_SHARE;

	st->maint.class[class].quiet = grows ? 0 : st->maint.class[class].quiet + 1;
	st->maint.class[class].used_before = used(&s);
}

/*
 * Free slots that a class may keep: a share of all while it grows, else only its reserve.
 */
static uint64_t allowance(const struct store *st, unsigned int class, const struct slots *s)
{
	if (!is_quiet(st, class))
		return s->all / RETURN_SHARE;
	return used(s) ? maintenance_reserve(st, class, s) : 0;
}

/* Free slots above the allowance in this call and in the one before. */
static uint64_t surplus_of(struct store *st, unsigned int class)
{
	uint64_t before = st->maint.class[class].surplus, now = 0, keep;
	struct slots s = slots_of(st, class);

	keep = allowance(st, class, &s) + promised(st, class);
	if (s.free > keep)
		now = s.free - keep;
	st->maint.class[class].surplus = now;
	return now < before ? now : before;
}

/* Resets the size of the largest recent value if no large value was stored for some time. */
static void update_large(struct store *st)
{
	uint64_t taken = st->mem.large_taken;

	st->maint.large_quiet = taken != st->maint.large_seen ? 0 : st->maint.large_quiet + 1;
	st->maint.large_seen = taken;
	if (st->maint.large_quiet >= QUIET_LOOKS)
		st->mem.large_units = 0;
}

/* Returns pages to the kernel while at least a page's worth of units is free and not needed. */
static void return_pages(struct store *st)
{
	bool over = over_limit(st);
	uint64_t keep = 0, free = units_free(st);
	unsigned int given = 0, spare = over ? 0 : st->mem.large_units;
	uint32_t page = 0;

	if (is_growing(st) && !over)
		keep = st->mem.pages_used * (XKV_UNITS / 8);
	keep = (keep > UNITS_KEPT ? keep : UNITS_KEPT) + promised(st, XKV_CLASS_LARGE);
	for (; given < RETURN_PAGES && free >= keep + XKV_UNITS; given++, free -= XKV_UNITS - 1)
		/* the next large value must still find its units */
		if (!emptiest_page(st, spare, &page) ||
		    !drain_range(st->maint.ctx, page, 1, XKV_UNITS - 1) || page_remove(st, page))
			break;
	if (given)
		log_debug("%u pages given back", given);
}

static void return_memory(struct store *st)
{
	uint64_t surplus[XKV_CLASSES] = { 0 };

	for (unsigned int class = 0; class < st->class_count; class ++) {
		update_growth(st, class);
		surplus[class] = surplus_of(st, class);
	}
	drain_large(st->maint.ctx);
	reserve_for_draining(st, surplus);
	drain_surplus(st, surplus, RETURN_UNITS);
	if (st->drain.count)
		drain_run(st->maint.ctx);
	update_large(st);
	if (!units_are_owed(st))
		pages_remove_huge(st);
	return_pages(st);
}

/* Logs what holds the store above maxmemory, at most once a minute. */
static void log_over_limit(struct store *st, uint64_t over)
{
	uint64_t now = monotonic_ms();

	if (st->maint.over_ms && now - st->maint.over_ms < REFUSED_MS)
		return;
	st->maint.over_ms = now;
	log_warning(
		"the store is %llu bytes above maxmemory (%llu bytes): %s; it has %llu keys and "
		"%llu free units of 4 KiB, and %zu spans are being emptied",
		(unsigned long long)over, (unsigned long long)st->maxmemory,
		st->policy == STORE_NOEVICTION ? "maxmemory-policy is noeviction"
					       : "the policy finds nothing to evict",
		(unsigned long long)store_count(st), (unsigned long long)units_free(st),
		st->drain.count);
}

/* For a huge entry much has to go: in pieces that would take as many grace periods. */
static unsigned int to_evict(const struct store *st, unsigned int units)
{
	if (!st->maint.wanted)
		return entries_for(st, true, units);
	return clamp(entries_in(st, store_count(st), over_limit(st) / XKV_UNIT_BYTES), 1, ~0U);
}

/*
 * Evicts entries and returns pages while the store exceeds maxmemory, as many at a time as
 * return_pages() can return.  Units that reclaim() frees are progress only if more are free
 * afterwards: the entries of the drained spans may have taken as many.  If no page can be emptied,
 * entries are evicted however many units are free, since large values need neighbouring ones.
 * False if there was no progress.
 */
static bool shrink(struct store *st)
{
	uint64_t over = over_limit(st), free = units_free(st), want;
	unsigned int before = st->mem.pages_used;
	bool gained;

	if (!over)
		return false;
	if (st->policy == STORE_NOEVICTION && !st->maint.wanted) {
		log_over_limit(st, over);
		return false;
	}
	st->maint.at_limit = true;
	want = clamp((over - 1) / XKV_PAGE_COST + 1, 1, RETURN_PAGES) * XKV_UNITS + UNITS_KEPT;
	want = free < want ? want - free : XKV_UNITS;
	/* free slots are reclaimed only if entries can be evicted when writers need slots again */
	if (evict_may(st, 0) || st->maint.wanted)
		reclaim(st, XKV_CLASS_LARGE, want);
	gained = units_free(st) > free;
	pages_remove_huge(st);
	return_pages(st);
	if (gained || st->mem.pages_used < before)
		return true;
	if (evict(st->maint.ctx, to_evict(st, want), !st->maint.wanted))
		return true;
	if (!st->maint.wanted)
		log_over_limit(st, over);
	return false;
}

/* ---- the thread ---------------------------------------------------------- */

static void maintain(struct store *st, unsigned int period)
{
	counters_settle(st);
	evict_tick(st);
	clear_spare_class(st);
	if (pages_lacking(st))
		pages_add(st, pages_wanted(st));
	for (unsigned int class = 0; class < st->class_count; class ++)
		replenish(st, class);
	if (st->maint.shrinks || period % RETURN_PERIODS == 0)
		st->maint.shrinks = shrink(st);
	if (period % RETURN_PERIODS)
		return;
	free_orphans(st);
	return_memory(st);
	txn_keys_trim(st);
}

/* A step for who lets others run meanwhile; nonzero if the period is over. */
static int make_wanted(struct store *st, const struct timespec *until)
{
	pthread_mutex_unlock(&st->maint.need_lock);
	room_make(st);
	pthread_mutex_lock(&st->maint.need_lock);
	return monotonic_ms() >= until->tv_sec * 1000ULL + until->tv_nsec / 1000000;
}

static void *maintenance_main(void *arg)
{
	struct store *st = arg;
	struct timespec until;
	int ret;

	pthread_mutex_lock(&st->maint.need_lock);
	for (unsigned int period = 1; !st->maint.stopping; period++) {
		pthread_mutex_unlock(&st->maint.need_lock);
		maintain(st, period);
		until = to_timespec(monotonic_ms() + PERIOD_MS);
		pthread_mutex_lock(&st->maint.need_lock);
		for (ret = 0; !ret && !st->maint.stopping;) {
			if (st->maint.need_any)
				serve_needs(st);
			if (st->maint.room.wanted)
				ret = make_wanted(st, &until);
			else
				ret = pthread_cond_timedwait(&st->maint.need_posted,
							     &st->maint.need_lock, &until);
		}
	}
	pthread_mutex_unlock(&st->maint.need_lock);
	return NULL;
}

int maintenance_start(struct store *st)
{
	int ret;

	st->evict.random = store_now_ms(st) | 1;
	st->maint.ctx = store_ctx_get(st);
	if (!st->maint.ctx)
		return -errno;
	st->cfg->spare_class = 0;
	st->maint.stopping = false;
	st->maint.runs = true;
	ret = -pthread_create(&st->maint.thread, NULL, maintenance_main, st);
	st->maint.runs = !ret;
	return ret;
}

void maintenance_stop(struct store *st)
{
	if (!st->maint.runs)
		return;
	pthread_mutex_lock(&st->maint.need_lock);
	st->maint.stopping = true;
	pthread_cond_signal(&st->maint.need_posted);
	pthread_cond_broadcast(&st->maint.need_served);
	pthread_mutex_unlock(&st->maint.need_lock);
	pthread_join(st->maint.thread, NULL);
	st->maint.runs = false;
	store_ctx_put(st->maint.ctx);
}

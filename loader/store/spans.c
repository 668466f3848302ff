// SPDX-License-Identifier: BSD-2-Clause
/*
 * Spans: the use of a page's units (drawn in bpf/layout.h).
 *
 * The slots of a new span are chained to each other before anything refers to them; then one run of
 * slots_link() links the chain into the free list of its class and marks the span as LINKED.  xkvd
 * may be killed between any two of these steps: no slot of a NEW span was ever in use, so
 * spans_adopt() frees its units, unless the slot of a large value is recorded in a request.
 *
 * A new span of a class has an eighth of the class's units, so that a small store wastes little
 * memory and a large one grows in few steps.
 */
#include <errno.h>
#include <string.h>

#include "guards.h"
#include "impl.h"

#define GROWTH_SHARE 8	/* the next span has an eighth of the class's units */
#define WASTE_SHARE  8	/* at most an eighth of a span is wasted, ... */
#define SMALLEST_MAX 16 /* ... if a span of so many units achieves that */

/* ---- finding spans ------------------------------------------------------- */

/* Number of slots of `slot_bytes` bytes in `units` units, the first of which is `first`. */
static unsigned int span_slots(uint32_t first, unsigned int units, uint32_t slot_bytes)
{
	unsigned int whole = units * XKV_UNIT_BYTES / slot_bytes;
	unsigned int reachable =
		(XKV_PAGE_BYTES - XKV_SLOT_WINDOW - first * XKV_UNIT_BYTES) / slot_bytes + 1;

	return whole < reachable ? whole : reachable;
}

static void span_describe(const struct store *st, char *base, uint32_t page, uint32_t first,
			  struct span *s)
{
	const struct xkv_unit *unit = ((struct xkv_page *)base)->unit;

	*s = (struct span){ .page = page,
			    .first = first,
			    .base = base,
			    .class = unit[first].class };
	while (first + s->units < XKV_UNITS && unit[first + s->units].first == first)
		s->units++;
	if (s->class == XKV_CLASS_LARGE) {
		s->tail = st->mem.tail[page];
		s->slot_bytes = s->units * XKV_UNIT_BYTES + s->tail * XKV_PAGE_BYTES;
		s->slots = 1;
	} else if (s->class < st->class_count) { /* the class exists */
		s->slot_bytes = st->classes[s->class].slot_bytes;
		s->slots = span_slots(first, s->units, s->slot_bytes);
	}
}

bool span_of_unit(const struct store *st, uint32_t page, uint32_t unit, struct span *out)
{
	char *base = page < XKV_PAGES_MAX ? st->mem.page[page] : NULL;
	uint32_t first;

	if (!base || !unit || unit >= XKV_UNITS)
		return false;
	first = __atomic_load_n(&((struct xkv_page *)base)->unit[unit].first, __ATOMIC_ACQUIRE);
	/* span_name() sets `first` of the first unit last: only then is the span complete */
	if (!first || __atomic_load_n(&((struct xkv_page *)base)->unit[first].first,
				      __ATOMIC_ACQUIRE) != first)
		return false;
	span_describe(st, base, page, first, out);
	return true;
}

/* The first span of a page that begins at or after `unit`. */
static bool span_find(const struct store *st, uint32_t page, uint32_t unit, struct span *out)
{
	for (unit = unit ? unit : 1; unit < XKV_UNITS; unit++)
		if (span_of_unit(st, page, unit, out)) {
			if (out->first >= unit)
				return true;
			unit = out->first + out->units - 1;
		}
	return false;
}

/* The slots of a NEW span may still contain data of the units' previous use. */
static bool spans_is_new(const struct span *s)
{
	return __atomic_load_n(&span_head(s)->state, __ATOMIC_ACQUIRE) == XKV_SPAN_NEW;
}

bool cursor_span(const struct store *st, struct slot_cursor *h, struct span *out)
{
	for (; h->page < st->mem.pages; h->page++, h->unit = h->slot = 0)
		while (st->mem.page[h->page] && span_find(st, h->page, h->unit, out)) {
			if (out->first != h->unit)
				h->slot = 0;
			h->unit = out->first;
			if (h->slot < out->slots && !spans_is_new(out))
				return true;
			h->unit += out->units;
			h->slot = 0;
		}
	*h = (struct slot_cursor){ 0 };
	return false;
}

/* ---- making spans -------------------------------------------------------- */

/*
 * Assigns units to a new span; its first unit last, so that no reader sees an incomplete span.  The
 * caller holds units_lock.
 */
static void span_name(struct store *st, uint32_t page, uint32_t first, unsigned int units,
		      unsigned int class)
{
	struct xkv_unit *unit = ((struct xkv_page *)st->mem.page[page])->unit;

	for (uint32_t i = first + units - 1; i > first; i--)
		__atomic_store_n(&unit[i].first, first, __ATOMIC_RELAXED);
	unit[first].class = class;
	unit[first].state = XKV_SPAN_NEW;
	unit[first].parked = 0;
	__atomic_store_n(&unit[first].first, first, __ATOMIC_RELEASE);
}

unsigned int span_least(uint32_t slot_bytes)
{
	unsigned int best = xkv_units(slot_bytes), least = ~0U;

	for (unsigned int units = best; units <= SMALLEST_MAX; units++) {
		unsigned int over = units * XKV_UNIT_BYTES % slot_bytes / units;

		if (over < least) {
			least = over;
			best = units;
		}
		if (over <= XKV_UNIT_BYTES / WASTE_SHARE)
			break;
	}
	return best;
}

/* Number of units for the next span of a class. */
static unsigned int units_wanted(const struct store *st, unsigned int class)
{
	uint32_t slot_bytes = st->classes[class].slot_bytes;
	unsigned int least = span_least(slot_bytes);
	uint64_t units = st->mem.class[class].units / GROWTH_SHARE;
	uint64_t most = st->mem.pages_used * (uint64_t)XKV_UNITS / SPAN_STORE_SHARE;

	if (most > XKV_SPAN_UNITS_MAX)
		most = XKV_SPAN_UNITS_MAX;
	if (units > most)
		units = most;
	/* only as many as the slots that fit into them need */
	units = xkv_span_units(units, slot_bytes);
	return units > least ? units : least;
}

/* Chains the slots of a span that nothing refers to yet. */
static void span_fill(const struct span *s)
{
	for (unsigned int i = 0; i < s->slots; i++) {
		struct xkv_slot *slot = span_slot(s, i);

		slot->seq = 1;
		slot->class = s->class;
		slot->key_len = 0;
		slot->next = span_ref(s, i + 1);
	}
	guards_set(s);
}

static void count_span(struct store *st, const struct span *s, bool more)
{
	int64_t sign = more ? 1 : -1;

	st->mem.class[s->class].spans += sign;
	st->mem.class[s->class].slots += sign * s->slots;
	st->mem.class[s->class].units += sign * (s->units + (int64_t)s->tail * XKV_UNITS);
	__atomic_fetch_add(&st->mem.spans_changed, 1, __ATOMIC_RELAXED);
}

/* The free list of a class with the fewest slots. */
static unsigned int shortest_list(const struct store *st, unsigned int class)
{
	const struct xkv_list *list = st->classes[class].list;
	unsigned int least = 0;

	for (unsigned int i = 1; i <= st->cfg->list_mask; i++)
		if ((int64_t)list[i].free < (int64_t)list[least].free)
			least = i;
	return least;
}

/* Links the slots of a span into a free list of its class. */
static int span_link(struct store *st, const struct span *s)
{
	struct xkv_slots_args args = {
		.cmd = XKV_SLOTS_LINK,
		.class = s->class,
		.request = shortest_list(st, s->class),
		.count = s->slots,
		.first = span_ref(s, 0),
		.last = span_ref(s, s->slots - 1),
	};
	int ret;

	do
		ret = slots_run(st, &args);
	while (ret == -EBUSY); /* another thread changed the list: one of them always succeeds */
	return ret;
}

/*
 * Makes a NEW span with chained slots, of `units` units, or of fewer, but at least `least`, if no
 * page has as many neighbouring free units.  False if there are too few.  Of a huge entry the page
 * has the tail for the rest of the units.
 */
static bool span_make(struct store *st, unsigned int class, unsigned int units, unsigned int least,
		      struct span *s)
{
	uint32_t page, first;
	bool taken;

	pthread_mutex_lock(&st->mem.units_lock);
	while (!(taken = units_take(st, units, &page, &first)) && units > least)
		units = units / 2 > least ? units / 2 : least;
	if (taken) {
		units = xkv_page_units(units);
		span_name(st, page, first, units, class);
		span_describe(st, st->mem.page[page], page, first, s);
		count_span(st, s, true);
	}
	pthread_mutex_unlock(&st->mem.units_lock);
	if (taken)
		span_fill(s);
	return taken;
}

int span_carve(struct store *st, unsigned int class)
{
	struct span s;

	if (!span_make(st, class, units_wanted(st, class),
		       span_least(st->classes[class].slot_bytes), &s))
		return -ENOSPC;
	return span_link(st, &s);
}

/* ---- large values -------------------------------------------------------- */

/* Takes a free slot of a deleted large value, if it has the right size. */
static bool reuse_large(struct store *st, struct xkv_request *rq, unsigned int units)
{
	struct xkv_slots_args args = {
		.cmd = XKV_SLOTS_ALLOC,
		.class = XKV_CLASS_LARGE,
		.request = rq - st->requests,
	};
	struct span s;

	if (class_is_empty(st, XKV_CLASS_LARGE) || slots_run(st, &args))
		return false;
	if (span_of_ref(st, rq->prefilled, &s) && s.tail == xkv_tail_pages(units) &&
	    (s.tail || s.units == units))
		return true;
	args.cmd = XKV_SLOTS_FREE;
	slots_run(st, &args);
	return false;
}

/* The slot is recorded in the request before its span becomes LINKED, so it cannot be lost. */
int span_take_large(struct store *st, struct xkv_request *rq, unsigned int units)
{
	struct span s;

	st->mem.large_taken++;
	if (st->mem.large_units < units && !xkv_tail_pages(units))
		st->mem.large_units = units;
	if (reuse_large(st, rq, units))
		return 0;
	if (!span_make(st, XKV_CLASS_LARGE, units, units, &s))
		return -ENOSPC;
	__atomic_store_n(&rq->prefilled, span_ref(&s, 0), __ATOMIC_RELEASE);
	__atomic_store_n(&span_head(&s)->state, XKV_SPAN_LINKED, __ATOMIC_RELEASE);
	return 0;
}

/* ---- releasing spans ----------------------------------------------------- */

/* The last unit first: if xkvd is killed meanwhile, a smaller span is left, which is empty, too. */
static void span_unname(struct store *st, const struct span *s)
{
	struct xkv_unit *unit = ((struct xkv_page *)st->mem.page[s->page])->unit;

	for (uint32_t i = s->first + s->units - 1; i >= s->first; i--)
		__atomic_store_n(&unit[i].first, 0, __ATOMIC_RELEASE);
}

void spans_release(struct store *st, const struct span *spans, size_t count)
{
	pthread_rwlock_wrlock(&st->mem.pages_lock);
	pthread_mutex_lock(&st->mem.units_lock);
	st->mem.units_retired++;
	for (size_t i = 0; i < count; i++) {
		guards_drop(&spans[i]);
		span_unname(st, &spans[i]);
		count_span(st, &spans[i], false);
		units_give(st, spans[i].page, spans[i].first, spans[i].units);
	}
	pthread_mutex_unlock(&st->mem.units_lock);
	pthread_rwlock_unlock(&st->mem.pages_lock);
}

/* ---- adopting ------------------------------------------------------------ */

bool is_prefilled(const struct store *st, uint64_t ref)
{
	for (int i = 0; i < XKV_CONTEXTS * XKV_CONTEXT_REQUESTS; i++)
		if (st->requests[i].prefilled == ref)
			return true;
	return false;
}

static bool span_is_sane(const struct span *s)
{
	return s->slots && span_head(s)->state <= XKV_SPAN_DRAINING;
}

int spans_adopt(struct store *st, uint32_t page)
{
	struct xkv_unit *unit = ((struct xkv_page *)st->mem.page[page])->unit;
	struct span s;

	for (uint32_t at = 1; at < XKV_UNITS; at += s.units) {
		s.units = 1;
		if (!span_of_unit(st, page, at, &s)) {
			unit[at].first = 0; /* of a span that was not complete */
			units_give(st, page, at, 1);
			continue;
		}
		if (s.first != at || !span_is_sane(&s))
			return -EINVAL;
		if (unit[at].state == XKV_SPAN_NEW && is_prefilled(st, span_ref(&s, 0)))
			unit[at].state = XKV_SPAN_LINKED;
		count_span(st, &s, true);
		guards_adopt(&s);
		if (unit[at].state == XKV_SPAN_NEW)
			spans_release(st, &s, 1);
		else if (unit[at].state == XKV_SPAN_DRAINING)
			drain_begin(st, &s);
	}
	return 0;
}

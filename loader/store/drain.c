// SPDX-License-Identifier: BSD-2-Clause
/*
 * Draining spans while traffic runs, so that their units can be used for another size class, or
 * their page returned to the kernel.
 *
 * Slots of a span that is marked as DRAINING are parked when they become free, instead of entering
 * the free lists (bpf/store.bpf.h: park()).  xkvd relocates the entries and chain buckets, and
 * filters the free slots out of the lists.  When all slots are parked, nothing refers to them: the
 * units are free after a grace period for XDP programs, and after the pages_lock for xkvd itself.
 *
 * If there is no room for the entries, the span is given up: it becomes LINKED again, and after a
 * grace period, when no program parks slots in it any more, the parked slots enter the free lists.
 *
 * xkvd may be killed at any time: the state and the number of parked slots are in the page.
 */
#include <errno.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <bpf/bpf.h>

#include "impl.h"
#include "util/grace.h"
#include "util/log.h"

#define SAMPLES	   64	/* slots examined to estimate how full a span is */
#define PASSES	   8	/* over the spans in one call; slots that are still in use then wait */
#define LIST_TRIES 1000 /* to pop from a contended free list */

static bool is_live(const struct xkv_slot *slot)
{
	return !(__atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) & 1);
}

/* ---- relocating entries -------------------------------------------------- */

/* Takes a slot of a class into the context's request.  0, -ENOSPC, or -EBUSY. */
static int take_slot_of(struct store_ctx *ctx, unsigned int class)
{
	struct xkv_slots_args args = {
		.cmd = XKV_SLOTS_ALLOC,
		.class = class,
		.request = ctx->first,
	};
	int ret = -EBUSY;

	for (int i = 0; i < LIST_TRIES && ret == -EBUSY && !ctx->request->prefilled; i++)
		ret = slots_run(ctx->st, &args);
	return ret;
}

/* Takes a slot in a new span. */
static int make_slot(struct store_ctx *ctx, unsigned int class, size_t need)
{
	int ret;

	if (class == XKV_CLASS_LARGE)
		return span_take_large(ctx->st, ctx->request, xkv_units(need));
	ret = span_carve(ctx->st, class);
	return ret ? ret : take_slot_of(ctx, class);
}

/*
 * Takes a slot for `need` bytes.  If its class has none, a slot of the next larger classes will do,
 * as in the engine: else a span might never become empty.  An entry in a much larger slot
 * (config.spare_class) may as a last resort get another slot of that class, `own`.
 */
static int take_slot(struct store_ctx *ctx, size_t need, unsigned int own)
{
	unsigned int class = class_for(ctx->st, need), end = class + XKV_CLASSES_TRIED;
	int ret = -ENOSPC;

	request_unprefill(ctx, 0); /* of an earlier failure */
	if (class != XKV_CLASS_LARGE)
		ret = take_slot_of(ctx, class);
	if (ret == -ENOSPC)
		ret = make_slot(ctx, class, need);
	while (ret == -ENOSPC && ++class < end && class < ctx->st->class_count)
		ret = take_slot_of(ctx, class);
	if (ret == -ENOSPC && own >= end && own < ctx->st->class_count)
		ret = take_slot_of(ctx, own);
	return ret;
}

/*
 * Relocates the entry of a slot, or evicts it if there is no room and the policy allows it.  0 also
 * if a writer changed the slot meanwhile: the next pass tries again.  -ENOSPC if it has to stay.
 */
static int move_entry(struct store_ctx *ctx, uint64_t ref, unsigned int class)
{
	struct store *st = ctx->st;
	struct slot_copy copy;
	struct xkv_op *op;
	bool read;
	int ret;

	pages_hold(st);
	read = slot_copy(st, ref, &copy, &ctx->large);
	pages_release(st);
	if (!read)
		return copy.no_memory ? -ENOMEM : 0;
	ret = take_slot(ctx, XKV_SLOT_NEED(copy.key_len, copy.value_len), class);
	if (ret == -ENOSPC && st->maint.at_limit && evict_may(st, copy.expire_ms)) {
		evict_entry(ctx, ref); /* writers took the free slots first */
		return 0;
	}
	if (ret)
		return ret;
	slot_fill(slot_of(st, ctx->request->prefilled), copy.db, copy.key, copy.key_len,
		  ctx->large.bytes, copy.value_len);
	op = request_make(ctx, 0, XKV_OP_SET, copy.db, copy.key, copy.key_len);
	op->flags = XKV_CAS;
	op->version = htobe64(copy.seq);
	ctx->request->flags |= XKV_REQUEST_PREFILL | XKV_REQUEST_RELOCATE;
	ret = requests_run(ctx, 1);
	request_unprefill(ctx, 0); /* if it was not published */
	return ret;
}

/* Moves a chain bucket to another slot.  0 also if it is gone or locked; or -ENOSPC. */
static int move_chain(struct store_ctx *ctx, uint64_t ref, unsigned int class)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_CHAIN,
				       .request = ctx->first,
				       .first = ref };
	int ret = take_slot(ctx, sizeof(struct xkv_chain), class);

	if (ret)
		return ret;
	ret = slots_run(ctx->st, &args);
	request_unprefill(ctx, 0);
	return ret == -ENOENT || ret == -EBUSY ? 0 : ret;
}

static int move_all(struct store_ctx *ctx, const struct span *s)
{
	int ret = 0;

	for (unsigned int i = 0; i < s->slots && !ret; i++) {
		struct xkv_slot *slot = span_slot(s, i);

		if (is_live(slot))
			ret = move_entry(ctx, span_ref(s, i), s->class);
		else if (slot->key_len == XKV_KEY_CHAIN)
			ret = move_chain(ctx, span_ref(s, i), s->class);
	}
	return ret;
}

void free_orphans(struct store *st)
{
	uint64_t orphans = store_counter(st, "orphans");
	struct slot_cursor cursor = { 0 };
	struct span s;

	if (orphans == st->drain.orphans_seen)
		return;
	st->drain.orphans_seen = orphans;
	for (; cursor_span(st, &cursor, &s); cursor.unit += s.units, cursor.slot = 0)
		for (unsigned int i = 0; i < s.slots; i++)
			if (!is_live(span_slot(&s, i)) &&
			    (span_slot(&s, i)->class & XKV_CLASS_ORPHAN))
				slot_free(st, span_ref(&s, i));
}

/* Examines all free slots of a class once: parks those of draining spans. */
static int filter(struct store *st, unsigned int class)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_FILTER, .class = class, .count = 1 };
	int ret;

	do {
		ret = slots_run(st, &args);
		if (ret || !args.count)
			return ret;
		args.count = 0; /* swap the two lists of the class in the first run only */
	} while (1);
}

/* ---- slots that nobody has ------------------------------------------------- */

/* Marks all slots that are free or in somebody's hand; or frees those that are still marked. */
static uint64_t seek(struct store *st, bool again)
{
	struct slot_cursor cursor = { 0 };
	uint64_t found = 0;
	struct span s;

	for (; cursor_span(st, &cursor, &s); cursor.unit += s.units, cursor.slot = 0)
		for (unsigned int i = 0; i < s.slots; i++) {
			uint8_t *mark = &span_slot(&s, i)->key_len, none = 0;

			if (is_live(span_slot(&s, i)))
				continue;
			if (!again)
				__atomic_compare_exchange_n(mark, &none, XKV_KEY_SOUGHT, false,
							    __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
			else if (__atomic_load_n(mark, __ATOMIC_SEQ_CST) == XKV_KEY_SOUGHT)
				found += !slot_free(st, span_ref(&s, i));
		}
	return found;
}

/*
 * The filter takes the mark off all slots that are in a list, and who has had one in hand ends
 * before the second grace period does: it has written an entry there, or given the slot back.
 */
int slots_seek(struct store *st)
{
	uint64_t found;
	int ret;

	seek(st, false);
	ret = grace_wait();
	for (unsigned int class = 0; class < XKV_CLASSES && !ret; class ++)
		ret = filter(st, class);
	if (!ret)
		ret = grace_wait();
	found = seek(st, true);
	log_notice("%llu slots that had been in hand are free again", (unsigned long long)found);
	return ret;
}

/* ---- the list of draining spans ------------------------------------------ */

/* `parked` exceeds the slots if an xkvd was killed while it freed units of this span. */
static bool is_empty(const struct span *s)
{
	return __atomic_load_n(&span_head(s)->parked, __ATOMIC_ACQUIRE) >= s->slots;
}

static bool is_draining(const struct span *s)
{
	return __atomic_load_n(&span_head(s)->state, __ATOMIC_ACQUIRE) == XKV_SPAN_DRAINING;
}

bool drain_begin(struct store *st, const struct span *s)
{
	size_t room = st->drain.room ? st->drain.room * 2 : 64;
	uint8_t linked = XKV_SPAN_LINKED;
	struct span *more;

	if (st->drain.count == st->drain.room) {
		more = realloc(st->drain.spans, room * sizeof(*more));
		if (!more)
			return false; /* the span stays in use */
		st->drain.spans = more;
		st->drain.room = room;
	}
	/* not a span that is NEW: its slots are not linked yet */
	if (!__atomic_compare_exchange_n(&span_head(s)->state, &linked, XKV_SPAN_DRAINING, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) &&
	    linked != XKV_SPAN_DRAINING)
		return false;
	st->drain.spans[st->drain.count++] = *s;
	return true;
}

/* Parks the free slots of the spans and relocates their entries.  0, -ENOSPC or -errno. */
static int drain_pass(struct store_ctx *ctx)
{
	bool filtered[XKV_CLASSES] = { false };
	struct store *st = ctx->st;
	int ret = 0;

	for (size_t i = 0; i < st->drain.count && !ret; i++) {
		const struct span *s = &st->drain.spans[i];

		if (is_empty(s))
			continue;
		if (!filtered[s->class])
			ret = filter(st, s->class);
		filtered[s->class] = true;
	}
	for (size_t i = 0; i < st->drain.count && (!ret || ret == -ENOSPC); i++) {
		int moved = is_empty(&st->drain.spans[i]) ? 0 : move_all(ctx, &st->drain.spans[i]);

		ret = moved ? moved : ret; /* after -ENOSPC: other sizes may have room */
	}
	return ret;
}

/* Moves the empty spans to the front of the list, and returns their number. */
static size_t drain_sort(struct store *st)
{
	size_t empty = 0;
	struct span s;

	for (size_t i = 0; i < st->drain.count; i++) {
		if (!is_empty(&st->drain.spans[i]))
			continue;
		s = st->drain.spans[empty];
		st->drain.spans[empty++] = st->drain.spans[i];
		st->drain.spans[i] = s;
	}
	return empty;
}

/* Sets the state of the spans from number `from` on. */
static void set_states(struct store *st, size_t from, enum xkv_span_state state)
{
	for (size_t i = from; i < st->drain.count; i++)
		__atomic_store_n(&span_head(&st->drain.spans[i])->state, state, __ATOMIC_SEQ_CST);
}

/*
 * Frees the parked slots of a span that is LINKED again; the caller has waited until no program can
 * park there.  Slots that cannot be pushed because of contention stay parked until the span drains
 * the next time.
 */
static void unpark(struct store *st, const struct span *s)
{
	uint32_t left = 0;

	for (unsigned int i = 0; i < s->slots; i++)
		if (!is_live(span_slot(s, i)) && span_slot(s, i)->key_len == XKV_KEY_PARKED)
			left += slot_free(st, span_ref(s, i)) != 0;
	__atomic_store_n(&span_head(s)->parked, left, __ATOMIC_RELEASE);
}

/* The same for all spans of the list; empties the list. */
static void unpark_all(struct store *st)
{
	for (size_t i = 0; i < st->drain.count; i++)
		unpark(st, &st->drain.spans[i]);
	st->drain.count = 0;
}

/* Frees the units of the first `count` spans of the list, and returns the number of units. */
static unsigned int release_first(struct store *st, size_t count)
{
	unsigned int units = 0;

	for (size_t i = 0; i < count; i++)
		units += st->drain.spans[i].units;
	spans_release(st, st->drain.spans, count);
	st->drain.count -= count;
	memmove(st->drain.spans, st->drain.spans + count,
		st->drain.count * sizeof(*st->drain.spans));
	return units;
}

unsigned int drain_run(struct store_ctx *ctx)
{
	struct store *st = ctx->st;
	unsigned int units;
	int ret = 0;
	bool given_up;
	size_t empty;

	txn_free_hand(ctx); /* some of it may be in these spans */
	empty = drain_sort(st);
	for (int pass = 0; pass < PASSES && empty < st->drain.count && !ret; pass++) {
		ret = drain_pass(ctx);
		empty = drain_sort(st);
	}
	given_up = ret == -ENOSPC && empty < st->drain.count;
	if (!empty && !given_up)
		return 0;
	if (given_up)
		set_states(st, empty, XKV_SPAN_LINKED);
	if (grace_wait()) {
		if (given_up)
			set_states(st, empty, XKV_SPAN_DRAINING);
		return 0;
	}
	units = release_first(st, empty); /* takes pages_lock: waits for xkvd's programs, too */
	if (given_up)
		unpark_all(st);
	log_debug("%u units freed, %zu spans are still being emptied", units, st->drain.count);
	return units;
}

int drain_adopt(struct store *st)
{
	struct slot_cursor cursor = { 0 };
	bool waited = false;
	struct span s;
	int ret;

	for (; cursor_span(st, &cursor, &s); cursor.unit += s.units, cursor.slot = 0) {
		if (is_draining(&s) || !__atomic_load_n(&span_head(&s)->parked, __ATOMIC_ACQUIRE))
			continue;
		ret = waited ? 0 : grace_wait();
		if (ret)
			return ret;
		waited = true;
		unpark(st, &s);
	}
	return 0;
}

/* ---- choosing spans ------------------------------------------------------ */

unsigned int span_fullness(const struct span *s)
{
	unsigned int step = s->slots / SAMPLES + 1, live = 0, seen = 0;

	for (unsigned int i = 0; i < s->slots; i += step, seen++)
		live += is_live(span_slot(s, i)) || span_slot(s, i)->key_len == XKV_KEY_CHAIN;
	return live * 1024 / seen;
}

/*
 * Pops each free slot into the request and frees it again, which parks it now that its span drains.
 * While a slot is in the request no other thread uses its span.  Stops at the first span that
 * cannot drain: its slot would be popped again and again.
 */
int drain_large(struct store_ctx *ctx)
{
	struct store *st = ctx->st;
	bool drains = true;
	struct span s;
	int ret = 0;

	while (drains) {
		ret = take_slot_of(ctx, XKV_CLASS_LARGE);
		if (ret)
			return ret == -ENOSPC ? 0 : ret;
		drains = span_of_ref(st, ctx->request->prefilled, &s) && drain_begin(st, &s);
		request_unprefill(ctx, 0);
	}
	return -ENOMEM;
}

/*
 * Takes the free units of a range, so that no entry is relocated into the range that is being
 * emptied.  reserved[unit]: the unit was taken.
 */
static void units_reserve(struct store *st, uint32_t page, uint32_t first, unsigned int units,
			  bool reserved[XKV_UNITS])
{
	pthread_mutex_lock(&st->mem.units_lock);
	for (uint32_t unit = first; unit < first + units; unit++)
		reserved[unit] = unit_take(st, page, unit);
	pthread_mutex_unlock(&st->mem.units_lock);
}

static bool units_unreserve(struct store *st, uint32_t page, uint32_t first, unsigned int units,
			    const bool reserved[XKV_UNITS])
{
	bool all = true;

	pthread_mutex_lock(&st->mem.units_lock);
	for (uint32_t unit = first; unit < first + units; unit++) {
		if (reserved[unit])
			units_give(st, page, unit, 1);
		all = all && unit_is_free(st, page, unit);
	}
	pthread_mutex_unlock(&st->mem.units_lock);
	return all;
}

bool drain_range(struct store_ctx *ctx, uint32_t page, uint32_t first, unsigned int units)
{
	bool reserved[XKV_UNITS] = { false };
	struct store *st = ctx->st;
	uint32_t at = first;
	struct span s;

	units_reserve(st, page, first, units, reserved);
	while (at < first + units) {
		if (!span_of_unit(st, page, at, &s)) {
			at++;
			continue;
		}
		if (!is_draining(&s))
			drain_begin(st, &s);
		at = s.first + s.units;
	}
	drain_run(ctx);
	return units_unreserve(st, page, first, units, reserved);
}

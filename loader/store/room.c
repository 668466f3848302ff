// SPDX-License-Identifier: BSD-2-Clause
/*
 * Room for a change that needs much of it, made while other clients are served: the change asks for
 * room, lets others run, and starts again when the maintenance thread has made the room.  One
 * change has its turn at a time.  Its room is not given to other large changes, and not returned to
 * the kernel, until it is done.  Single writes may take some of it meanwhile; then the change makes
 * the missing room as it would without all this.
 */
#include <errno.h>
#include <string.h>

#include "impl.h"
#include "util/clock.h"

#define STEP_MS 20    /* before requests that wait for a slot have their turn */
#define MOST_MS 15000 /* for all of it */

void room_add(const struct store *st, struct room_want *want, size_t need)
{
	unsigned int class = class_for(st, need);

	if (class == XKV_CLASS_LARGE)
		want->runs[xkv_units(need)]++;
	else
		want->slots[class]++;
}

/* Units for all large values, and for the largest; 0 if there are none. */
static unsigned int room_units(const struct room_want *want)
{
	unsigned int units = 0;

	for (unsigned int n = 1; n < XKV_UNITS; n++)
		units += want->runs[n] * n;
	return units;
}

unsigned int room_longest(const struct room_want *want)
{
	unsigned int n = XKV_UNITS - 1;

	while (n && !want->runs[n])
		n--;
	return n;
}

/* Would it not fit the empty store?  Then nothing need be evicted in vain. */
static bool is_too_much(const struct store *st, const struct room_want *want)
{
	uint64_t bytes = (uint64_t)room_units(want) * XKV_UNIT_BYTES;

	for (unsigned int class = 0; class < st->class_count; class ++)
		bytes += (uint64_t)want->slots[class] * st->classes[class].slot_bytes;
	return st->maxmemory && bytes > st->maxmemory;
}

/* `others`: beside the room that is kept for another one. */
static bool is_there(struct store *st, const struct room_want *want, bool others)
{
	const struct room *r = &st->maint.room;

	for (unsigned int class = 0; class < st->class_count; class ++)
		if (want->slots[class] &&
		    !class_has(st, class, want->slots[class] + (others ? r->kept[class] : 0)))
			return false;
	return !room_longest(want) ||
	       (!(others && r->kept[XKV_CLASS_LARGE]) && !units_lacking(st, want->runs));
}

/* Called with need_lock. */
static void room_start(struct store *st, uint64_t who, const struct room_want *want)
{
	struct room *r = &st->maint.room;

	r->who = who;
	r->want = *want;
	r->wanted = true;
	r->until_ms = monotonic_ms() + MOST_MS;
	for (unsigned int class = 0; class < st->class_count; class ++)
		r->kept[class] = want->slots[class];
	r->kept[XKV_CLASS_LARGE] = room_units(want);
	pthread_cond_signal(&st->maint.need_posted);
}

int room_ask(struct store_ctx *ctx, const struct room_want *want)
{
	struct store *st = ctx->st;
	struct room *r = &st->maint.room;
	uint64_t who = ctx->waits_as;
	bool mine, others, in_vain;

	if (is_too_much(st, want))
		return -ENOSPC;
	if (!who || (store_at_limit(st) && st->policy == STORE_NOEVICTION))
		return 0;
	pthread_mutex_lock(&st->maint.need_lock);
	mine = r->who == who;
	others = r->who && !mine;
	in_vain = !r->told || (mine && r->failed);
	pthread_mutex_unlock(&st->maint.need_lock);
	if (in_vain || is_there(st, want, others))
		return 0;
	pthread_mutex_lock(&st->maint.need_lock);
	if (!r->wanted && (!r->who || mine))
		room_start(st, who, want);
	pthread_mutex_unlock(&st->maint.need_lock);
	return -EAGAIN;
}

void room_claim(struct store_ctx *ctx)
{
	struct room *r = &ctx->st->maint.room;

	if (!ctx->waits_as)
		return;
	pthread_mutex_lock(&ctx->st->maint.need_lock);
	if (r->who == ctx->waits_as)
		r->claimed = true;
	pthread_mutex_unlock(&ctx->st->maint.need_lock);
}

void room_make(struct store *st)
{
	struct room *r = &st->maint.room;
	int ret = room_step(st, &r->want, monotonic_ms() + STEP_MS);

	pthread_mutex_lock(&st->maint.need_lock);
	if (ret != -EAGAIN || !r->who || monotonic_ms() >= r->until_ms) {
		r->wanted = false;
		r->failed = ret;
		if (r->told)
			r->told(r->arg);
	}
	pthread_mutex_unlock(&st->maint.need_lock);
}

/* ---- the interface ----------------------------------------------------------- */

void store_room_tell(struct store *st, store_room_fn *told, void *arg)
{
	pthread_mutex_lock(&st->maint.need_lock);
	st->maint.room.arg = arg;
	st->maint.room.told = told;
	pthread_mutex_unlock(&st->maint.need_lock);
}

void store_waits_as(struct store_ctx *ctx, uint64_t who)
{
	ctx->waits_as = who;
}

bool store_room_waits(struct store *st, uint64_t who)
{
	const struct room *r = &st->maint.room;
	bool waits;

	pthread_mutex_lock(&st->maint.need_lock);
	waits = r->wanted || (r->who && r->who != who);
	pthread_mutex_unlock(&st->maint.need_lock);
	return waits;
}

bool store_room_done(struct store *st, uint64_t who)
{
	struct room *r = &st->maint.room;
	bool had;

	pthread_mutex_lock(&st->maint.need_lock);
	had = r->who == who;
	if (had) {
		r->who = 0;
		r->failed = false;
		for (unsigned int class = 0; class < XKV_CLASSES; class ++)
			r->kept[class] = 0;
	}
	pthread_mutex_unlock(&st->maint.need_lock);
	return had;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Active expiry: 2 % of one CPU, or 25 % while a good part of what is looked at has expired.
 */
#include "housekeeping_impl.h"
#include "util/clock.h"

#define EXPIRY_PERIOD	   0.1
#define EXPIRY_SLICE	   0.002
#define EXPIRY_BUSY_PERIOD 0.01
#define EXPIRY_BUSY_SLICE  0.0025
#define EXPIRY_SLOTS	   512 /* looked at in one call */

/*
 * Looks at about a tenth of the store, for a bounded time.  If more than a tenth of the slots that
 * were looked at had expired, the next look is soon.
 */
static void on_expiry(struct ev_loop *loop, ev_timer *w, int events)
{
	struct server *s = ((struct housekeeping *)w->data)->srv;
	bool was_busy = w->repeat < EXPIRY_PERIOD, busy = false;
	uint64_t keys = store_count(s->store), slots = keys / 10 + EXPIRY_SLOTS;
	double end = monotonic_seconds() + (was_busy ? EXPIRY_BUSY_SLICE : EXPIRY_SLICE);

	worker_take_all(s->worker[0]);
	if (!keys || s->expiry_off || s->busy)
		return;
	for (uint64_t seen = 0; busy || seen < slots; seen += EXPIRY_SLOTS) {
		unsigned int removed = store_expire_cycle(s->worker[0]->ctx, EXPIRY_SLOTS);

		busy = removed > EXPIRY_SLOTS / 10;
		if (monotonic_seconds() >= end || store_expiry_rests(s->store))
			break;
	}
	if (busy == was_busy)
		return;
	w->repeat = busy ? EXPIRY_BUSY_PERIOD : EXPIRY_PERIOD;
	ev_timer_again(loop, w);
}

void expiry_begin(struct housekeeping *h)
{
	ev_timer_init(&h->expiry, on_expiry, EXPIRY_PERIOD, EXPIRY_PERIOD);
	h->expiry.data = h;
	ev_timer_start(h->srv->loop, &h->expiry);
}

void expiry_end(struct housekeeping *h)
{
	ev_timer_stop(h->srv->loop, &h->expiry);
}

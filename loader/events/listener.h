/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Somebody in xkvd who is told of all changes of the store, of both front ends: a consumer of the
 * change feed (consumer.h) that queues the changes for another thread, that of the event loop.
 *
 * It never waits for the loop.  The locks that both take are held for the exchange of two
 * queues, and while either of them reads.  If the queue is full, the thread goes on reading, and
 * the changes are lost, which listener_gap() tells.  So a command that waits in the loop for room
 * in the ring of the feed never waits for the loop itself, however full the queue is; and changes
 * by XDP do not wait for a loop that is busy with a long script.
 *
 * What opens and closes a listener, and calls listener_next(), is one thread.
 */
#ifndef XKV_EVENTS_LISTENER_H
#define XKV_EVENTS_LISTENER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/feed.h"

#define LISTENER_QUEUE_BYTES (32U << 20) /* of changes that wait for the loop */

struct listener;

/* Called by the listener's thread when there is something for the loop; must not wait. */
typedef void listener_wake_fn(void *arg);

/*
 * Begins to listen: every change that begins after the call has returned is told.  NULL and errno.
 * Waits for grace periods, some ten milliseconds, as does listener_free().
 */
struct listener *listener_new(struct store *st, listener_wake_fn *wake, void *arg);
/* Ends it.  NULL is ignored. */
void listener_free(struct listener *l);

/*
 * Reads at once what has changed so far, and not only when the thread does: so it can be told
 * before the replies to the commands that have made the changes.  Up to 1,024 changes, and none
 * behind one that is still being made.
 */
void listener_catch_up(struct listener *l);

/*
 * The next change, without its value, valid until the next call; NULL if there is none.  All with a
 * position below listener_reached() as it was before the call are told before NULL is.
 */
const struct feed_change *listener_next(struct listener *l);
/* All changes with a lower position were read, and queued.  Grows. */
uint64_t listener_reached(const struct listener *l);
/* Wakes the loop when listener_reached() is at least this. */
void listener_await(struct listener *l, uint64_t position);
/* Were changes lost before the next one?  True once for each gap. */
bool listener_gap(struct listener *l);

/* Changes told so far, and of these lost. */
void listener_counts(const struct listener *l, uint64_t *told, uint64_t *lost);

#endif

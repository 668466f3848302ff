/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A listener gets all changes of the store, of both front ends: it is a consumer of the change feed
 * (consumer.h) that queues the changes for the thread of the event loop.
 *
 * It never waits for the loop.  The locks that both take are held only to exchange two queues, and
 * while either of them reads.  If the queue is full, the thread goes on reading, and changes are
 * lost, which listener_gap() reports.  So a command that waits in the loop for room in the ring
 * never waits for the loop itself, however full the queue is; and changes by XDP do not wait for a
 * loop that is busy with a long script.
 *
 * One thread opens and closes the listener and calls listener_next().
 */
#ifndef XKV_EVENTS_LISTENER_H
#define XKV_EVENTS_LISTENER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/feed.h"

#define LISTENER_QUEUE_BYTES (32U << 20) /* of changes that wait for the loop */

struct listener;

/* Called by the listener's thread when the loop has something to read; must not wait. */
typedef void listener_wake_fn(void *arg);

/*
 * Begins to listen: the listener gets every change that begins after the call has returned.  NULL
 * and errno.  Waits for grace periods, some ten milliseconds, as does listener_free().
 */
struct listener *listener_new(struct store *st, listener_wake_fn *wake, void *arg);
/* Ends it.  NULL is ignored. */
void listener_free(struct listener *l);

/*
 * Reads the changes so far at once, instead of when the thread does, so that they can be reported
 * before the replies to the commands that made them.  Up to 1,024 changes, and none after one that
 * is still in progress.
 */
void listener_catch_up(struct listener *l);

/*
 * The next change, without its value, valid until the next call; NULL if there is none.  NULL is
 * returned only after all changes with a position below listener_reached() before the call.
 */
const struct feed_change *listener_next(struct listener *l);
/* All changes with a lower position were read, and queued.  Only grows. */
uint64_t listener_reached(const struct listener *l);
/* Wakes the loop when listener_reached() is at least this. */
void listener_await(struct listener *l, uint64_t position);
/* Were changes lost before the next one?  True once for each gap. */
bool listener_gap(struct listener *l);

/* Changes so far, and how many of them were lost. */
void listener_counts(const struct listener *l, uint64_t *told, uint64_t *lost);

#endif

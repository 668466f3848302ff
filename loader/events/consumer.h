/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A consumer of the change feed (store/feed.h): a name, a position, and functions that its own
 * thread calls with each change of the store, of both front ends.  Each consumer has its own reader
 * and thread, so one that has to wait (for a slow disk) does not delay the others.
 *
 * The thread must not change the store, nor wait for a thread that does: a change may be waiting
 * for the room that the consumer frees in the ring.
 */
#ifndef XKV_EVENTS_CONSUMER_H
#define XKV_EVENTS_CONSUMER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/feed.h"

struct consumer;

/* The state of the changes that were handed on since the last CONSUMED. */
enum consumed {
	CONSUMED,	/* they are no longer needed */
	CONSUMED_PART,	/* still needed: they stay in the ring, and later ones come first */
	CONSUMED_AGAIN, /* they have to be handed on again */
};

/* All but begin() and after() must be there. */
struct consumer_type {
	/* may the feed be given up without xkvd (feed_ends_with_xkvd()), and are values wanted? */
	bool ends_with_xkvd, keys_only;
	/* Before a round: may changes be handed on now?  NULL: always. */
	bool (*begin)(void *arg);
	/* A change, valid during the call.  False: enough for this round. */
	bool (*change)(void *arg, const struct feed_change *c);
	/* Changes were lost that came before the next one (feed_next(): -ESTALE). */
	void (*gap)(void *arg);
	/* A round ends: all changes with a position below this have been handed on. */
	enum consumed (*end)(void *arg, uint64_t position);
	/* By the thread only, after a round with so many changes.  NULL: nothing. */
	void (*after)(void *arg, unsigned int changes);
};

/*
 * Opens a reader; its changes are handed on once consumer_start() was called.  `name`, *resumed and
 * the result are those of feed_open().
 */
int consumer_open(struct store *st, const char *name, const struct consumer_type *type, void *arg,
		  struct consumer **out, bool *resumed);
/* 0 or -errno. */
int consumer_start(struct consumer *c);
/* Ends the thread, if it runs.  NULL is ignored. */
void consumer_stop(struct consumer *c);
/*
 * The same, and closes the reader; with `keep` changes that were not handed on stay in the ring.
 * NULL is ignored.
 */
void consumer_close(struct consumer *c, bool keep);

/* One round in the calling thread. */
void consumer_round(struct consumer *c);
/* Makes the thread begin its next round at once. */
void consumer_wake(struct consumer *c);
/* The reader: before consumer_start(), or in one of the functions above. */
struct feed_reader *consumer_reader(struct consumer *c);

#endif

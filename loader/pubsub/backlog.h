/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The last keyspace events, with positions, so that who reads them (EVENTS, `xkv events`) can go on
 * where it has ended.  Kept while notify-keyspace-events wants events, in notify-backlog-size
 * bytes: who is too slow, or away for too long, loses the oldest, and is told so.  Used with all
 * locks.
 *
 * Positions grow by one from event to event.  The first one is the Unix time in microseconds: so
 * those of an earlier xkvd are lower, and are not taken for others.
 */
#ifndef XKV_PUBSUB_BACKLOG_H
#define XKV_PUBSUB_BACKLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/worker.h"

struct kept_event {
	uint64_t time_ms;  /* Unix time at which it was told of */
	const char *event; /* static; NULL: events were lost here */
	unsigned int database;
	uint32_t key_len;
	char key[];
};

/* Zero-filled: nothing is kept. */
struct backlog {
	char *bytes;	 /* events behind one another, none across the end; owned; NULL: off */
	uint64_t *begin; /* by position % `slots`: where it begins, counting all bytes; owned */
	size_t size, slots;
	uint64_t end;	      /* of the newest */
	uint64_t first, next; /* positions: of the oldest that is kept, and of the next one */
	bool grown;	      /* since backlog_wake() */
	struct waiters waiters;
};

/* Keeps events in so many bytes; 0: none.  Another size than before forgets all. */
void backlog_resize(struct backlog *b, size_t size);
/* `event` NULL: events were lost. */
void backlog_add(struct backlog *b, unsigned int database, const char *event, const void *key,
		 size_t key_len);
/* Has those that wait look again, if there is something new. */
void backlog_wake(struct backlog *b);

#endif

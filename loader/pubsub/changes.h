/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Hands the changes of the store, made by RESP clients or by those that XDP serves, to keyspace
 * events (notify.c) and CLIENT TRACKING (tracking.c), in the order of the change feed.  While
 * somebody wants changes, there is a listener (events/listener.h).  Used with all locks
 * (net/worker.h).
 *
 * A transaction is reported as the commands that it consists of: its records in the feed only say
 * when.  The same holds for what is no change (a read of a key that does not exist).
 */
#ifndef XKV_COMMANDS_CHANGES_H
#define XKV_COMMANDS_CHANGES_H

#include <ev.h>
#include <sys/queue.h>

#include "pubsub/backlog.h"
#include "store/feed.h"

struct caller;
struct listener;
struct metrics;
struct server;
struct worker;

/* Causes of changes (store_op.cause) for which the opcode is not enough. */
enum cause {
	CAUSE_NONE = XKV_CAUSE_OTHER, /* no event */
	CAUSE_NEW,		      /* the key is new, even if it existed, and no other event */
	CAUSE_RENAME_FROM,
	CAUSE_RENAME_TO,
	CAUSE_MOVE_FROM,
	CAUSE_MOVE_TO,
	CAUSE_COPY_TO,
	CAUSE_RESTORE,
	CAUSE_SETRANGE,
	CAUSE_SETBIT,
	CAUSE_INCRBYFLOAT,
	CAUSE_PFADD,
	CAUSE_MISS,
};

TAILQ_HEAD(told_list, told);

/* One per server. */
struct changes {
	struct server *srv;
	struct listener *listener; /* owned; NULL: nobody wants changes */
	unsigned int unwanted;	   /* seconds for which nobody has wanted any */
	ev_async woken;
	struct told_list told; /* to be told in order with the feed; owned */
	unsigned int notify;   /* enum notify, in force for what is told next */
	unsigned int asked;    /* the same, as it was configured last */
	bool of_all;	       /* any key may have changed: clients that track are to be told */
	bool in_txn;	       /* the last record was of a transaction that goes on */
	uint64_t lost;	       /* by listeners that are gone */
	struct backlog backlog;
};

/* When the server starts, when its configuration has changed, and every second. */
void changes_start(struct server *s);
/* False: they are wanted, but cannot be listened to yet. */
bool changes_follow(struct server *s);
void changes_second(struct server *s);
void changes_free(struct changes *ch);

/* Tells of the changes that the commands of this round have made, before they are replied to. */
void changes_before_replies(struct worker *w);

/* A command found no entry for a key that it reads: told in order with its changes. */
void changes_miss(struct caller *c, const void *key, size_t key_len);

/*
 * Has clients that track told, by the loop and not within a command, which may be a part of EXEC:
 * that any key may have changed, by FLUSHALL or SWAPDB; and that the table of keys is full.
 */
void changes_of_all(struct server *s);
void changes_table_full(struct server *s);

/*
 * Positions in the feed: changes before *reached are known to have taken effect; of those before
 * *head some may just do.
 */
void changes_positions(const struct server *s, uint64_t *reached, uint64_t *head);

/* For INFO. */
void changes_metrics(struct metrics *m, const struct server *s);

/* notify.c: publishes the events that belong to a change, those that are wanted (enum notify). */
void notify_change(struct server *s, unsigned int wanted, const struct feed_change *change);

#endif

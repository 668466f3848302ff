/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Hands the changes of the store, by RESP clients or by XDP, to keyspace events (notify.c) and
 * CLIENT TRACKING (tracking.c), in the order of the change feed.  While changes are needed, there
 * is a listener (events/listener.h).  Used with all locks (net/worker.h).
 *
 * 
 *
 * A transaction is reported as the commands that it consists of: its records in the feed only give
 * the position.  The same holds for events without a change (a read of a key that does not exist).
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
	struct listener *listener; /* owned; NULL: changes are not needed */
	unsigned int unwanted;	   /* seconds for which none were needed */
	ev_async woken;
	struct told_list told; /* to be reported in order with the feed; owned */
	unsigned int notify;   /* enum notify, in force for the next changes */
	unsigned int asked;    /* the same, as it was configured last */
	bool of_all;	       /* any key may have changed: clients that track have to be told */
	bool in_txn;	       /* the last record was of a transaction that goes on */
	uint64_t lost;	       /* by listeners that are gone */
	struct backlog backlog;
};

/* When the server starts, when its configuration has changed, and every second. */
void changes_start(struct server *s);
/* From now on changes are those of clients. */
void changes_loaded(struct server *s);
/* False: changes are needed, but the listener could not be opened yet. */
bool changes_follow(struct server *s);
void changes_second(struct server *s);
void changes_free(struct changes *ch);

/* Reports the changes by commands of this round, before their replies are sent. */
void changes_before_replies(struct worker *w);

/* A command found no entry for a key that it reads: reported in order with its changes. */
void changes_miss(struct caller *c, const void *key, size_t key_len);

/*
 * Makes the loop tell clients that track that any key may have changed (FLUSHALL, SWAPDB), or that
 * the table of keys is full; not within a command, which may be part of EXEC.
 */
void changes_of_all(struct server *s);
void changes_table_full(struct server *s);

/*
 * Positions in the feed: changes before *reached have taken effect; some of those before *head may
 * still be in progress.
 */
void changes_positions(const struct server *s, uint64_t *reached, uint64_t *head);

/* For INFO. */
void changes_metrics(struct metrics *m, const struct server *s);

/* notify.c: publishes the configured events (enum notify) for a change. */
void notify_change(struct server *s, unsigned int wanted, const struct feed_change *change);

#endif

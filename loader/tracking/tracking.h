/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * CLIENT TRACKING: clients that cache values are told of their changes, by RESP clients or by XDP.
 * Rules, replies and messages are those of Redis 7.0.
 *
 * A key is entered in the table before it is read, with the head of the change feed: a change whose
 * record is after that position may have come after the read, so it is reported; the read has seen
 * earlier ones.  But a new entry gets its record before the index refers to it, and a read that
 * found nothing may have been between the two: its position is that of the listener.  All of it is
 * used with the lock of the server (net/worker.h).
 */
#ifndef XKV_COMMANDS_TRACKING_H
#define XKV_COMMANDS_TRACKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "util/hashtable.h"

struct caller;
struct command;
struct feed_change;
struct metrics;
struct resp_arg;
struct server;

enum tracking_flags {
	TRACKING_ON = 1,
	TRACKING_BCAST = 2,
	TRACKING_OPTIN = 4,
	TRACKING_OPTOUT = 8,
	TRACKING_NOLOOP = 16,
	TRACKING_CACHING = 32, /* CLIENT CACHING was given for the next command */
	TRACKING_BROKEN = 64,  /* the client that it redirects to is gone */
};

LIST_HEAD(follower_list, follower);

/* Settings of a client; all zero: it does not track. */
struct tracking {
	unsigned int flags;
	uint16_t origin;   /* of its changes, if they are not reported to itself; 0 = none */
	uint64_t redirect; /* ID of the client that is told instead, 0 = none */
	struct follower_list prefixes; /* BCAST; owned */
	unsigned int prefix_count;
	size_t prefix_bytes; /* as if it were the only client */
	struct caller *caller;
	LIST_ENTRY(tracking) link; /* tracked_keys.clients */
};

TAILQ_HEAD(tracked_list, tracked);
TAILQ_HEAD(prefix_list, key_prefix);
struct prefix_length;
LIST_HEAD(tracking_clients, tracking);

/* The table of keys and readers; one per server. */
struct tracked_keys {
	struct hashtable keys;
	struct tracked_list oldest;    /* the same; owned */
	struct tracked_list forgotten; /* in no table any more, freed bit by bit; owned */
	struct hashtable prefixes;     /* owned */
	struct prefix_list changed;    /* clients that have to be told of keys */
	struct prefix_length *lengths; /* that prefixes have, the shortest first; owned */
	unsigned int length_count, length_room;
	struct tracking_clients clients;
	unsigned int client_count;
	size_t items;	      /* pairs of key and client */
	size_t bytes, peak;   /* of keys and readers; the maximum since memory was returned */
	size_t changed_bytes; /* of the keys to report for prefixes */
	uint64_t secret[2];
	uint16_t last_origin;
	bool ready;
};

/* Does any client track? */
bool tracking_wanted(const struct server *s);
/*
 * Before a command is executed: notes the keys that it reads, and the origin of its changes.  A
 * command with many keys notes each key itself before it reads it, if tracking_follows() says so
 * when it begins.
 */
void tracking_before(struct caller *c, const struct command *cmd, unsigned int argc,
		     const struct resp_arg *argv);
bool tracking_follows(struct caller *c, unsigned int argc);
void tracking_read(struct caller *c, const struct resp_arg *key);
/* The client's next command has been executed. */
void tracking_after(struct caller *c, const struct command *cmd);
/* Of store_txn_commit_reads(), by the client `arg`. */
void tracking_own_read(void *arg, const void *key, size_t key_len, bool outdated,
		       uint64_t position);
/* A read, after tracking_before(), has found a key. */
void tracking_found(struct caller *c, const void *key, size_t key_len);

/*
 * By the loop, not within a command: a change, in the order of the feed; and the end of several,
 * when the table is trimmed to its limit.  False: that takes longer; call again.
 */
void tracking_change(struct server *s, const struct feed_change *change);
bool tracking_changes_end(struct server *s);
/* The same: all keys are gone, or changes were lost, so no cached value is valid any more. */
void tracking_forget_all(struct server *s);

/* Returns memory that the table has not used for long. */
void tracking_second(struct server *s);

/* Ends tracking for a client, without a message. */
void tracking_end(struct caller *c);
void tracking_free(struct tracked_keys *t);

/* For INFO: of the clients, and of the table. */
unsigned int tracking_clients(const struct server *s);
void tracking_metrics(struct metrics *m, const struct server *s);

#endif

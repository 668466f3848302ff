/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Pub/sub: clients subscribe to channels, to patterns of channels, and to shard channels, and get
 * messages that are published there (caller_message()).  All of it is used with the lock of the
 * server (net/worker.h).
 */
#ifndef XKV_COMMANDS_PUBSUB_H
#define XKV_COMMANDS_PUBSUB_H

#include "net/session.h"
#include "util/hashtable.h"

struct caller;
struct command;
struct server;

TAILQ_HEAD(topics, topic);
TAILQ_HEAD(held_messages, held_message);

/* All subscriptions; one per server. */
struct pubsub {
	struct {
		struct hashtable names;
		struct topics list;	/* the oldest first; owned */
	} topics[TOPIC_KINDS];		/* those with subscribers */
	struct hashtable subscriptions; /* by client and topic */
	uint64_t key[2];		/* of the hashes */
	struct held_messages held;	/* see pubsub_hold(); owned */
	size_t held_bytes;
	unsigned int holds;
	bool ready;
};

/*
 * Sends a message to all subscribers of a channel, and to those of patterns that match it.  Returns
 * how many receive it, a client with several subscriptions more than once.
 *
 * May be called by any part of the daemon in the loop's thread: it frees no client, and one whose
 * outbox is too long is closed later.  Within a command it must not come between two parts of a
 * reply to the same client.
 */
unsigned int pubsub_publish(struct server *s, const void *channel, size_t channel_len,
			    const void *message, size_t len);

/*
 * Messages published from now on wait for pubsub_release(), which sends or drops them: for
 * transactions, which may be repeated, and commands that still have to reply.  May be nested: the
 * outermost one sends.  `since` is the result of pubsub_hold(), perhaps NULL.
 */
struct held_message *pubsub_hold(struct server *s);
void pubsub_release(struct server *s, const struct held_message *since, bool send);
/*
 * While other clients are served in the middle: their messages are sent.  Returns a value for
 * pubsub_resume().
 */
unsigned int pubsub_suspend(struct server *s);
void pubsub_resume(struct server *s, unsigned int holds);

/* How many channels, patterns or shard channels have subscribers. */
size_t pubsub_topics(const struct server *s, enum topic_kind kind);

/* Calls fn for each subscription until it returns false.  Returns whether it never did. */
typedef bool pubsub_each_fn(void *arg, enum topic_kind kind, const char *name, size_t len);
bool pubsub_each(const struct caller *c, pubsub_each_fn *fn, void *arg);

/* Ends all subscriptions of a client, without messages to it. */
void pubsub_leave(struct caller *c);
/* Is the client a subscriber in RESP2, and this none of the commands that such a client may use? */
bool pubsub_refuses(const struct caller *c, const struct command *cmd);
/* Frees what is left when no client is. */
void pubsub_free(struct pubsub *p);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A session: the state that a client sets by commands (AUTH, HELLO, CLIENT, MULTI, SUBSCRIBE), and
 * its outbox.
 * It knows no socket; the byte stream is stream.h.
 */
#ifndef XKV_SESSION_H
#define XKV_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>

#include "protocol/reply.h"

struct acl_user;
struct command;

/* CLIENT REPLY SKIP, until the next command has ended. */
enum reply_skip { SKIP_NONE, SKIP_NEXT, SKIP_THIS };

/* What a client can subscribe to (pubsub/pubsub.c). */
enum topic_kind { TOPIC_CHANNEL, TOPIC_PATTERN, TOPIC_SHARD, TOPIC_KINDS };
TAILQ_HEAD(subscriptions, subscription);

struct session {
	struct reply reply; /* to be sent, in the protocol that HELLO chose */
	struct reply held;  /* messages that wait for the reply of an unfinished command */
	bool composing;	    /* its reply is being composed, and may be dropped: the same */
	enum reply_skip skip;
	bool authenticated;
	const struct acl_user *user; /* NULL = the default one; acl/acl.h */
	bool no_evict;		     /* CLIENT NO-EVICT */
	bool no_touch;		     /* CLIENT NO-TOUCH */
	bool monitor;		     /* has sent MONITOR: gets all commands */
	unsigned int db;	     /* that SELECT chose */
	bool multi;		     /* has sent MULTI: commands are queued until EXEC or DISCARD */
	char *name, *lib_name, *lib_version; /* owned, NULL = none */
	const struct command *last;	     /* executed; NULL = none */
	struct {
		struct subscriptions list; /* the oldest first; owned by pubsub/pubsub.c */
		unsigned int count;
	} subscribed[TOPIC_KINDS];
	size_t subscription_memory; /* bytes, as if it were the only subscriber */
};

/* `limit` of the outbox in bytes, 0 = none. */
void session_init(struct session *s, bool authenticated, size_t limit);
void session_free(struct session *s);
/* What RESET does.  The outbox and the name and version of the client library stay. */
void session_reset(struct session *s, bool authenticated);
/* Has it subscribed to anything? */
bool session_is_subscriber(const struct session *s);
/* Bytes that the session has allocated. */
size_t session_memory(const struct session *s);

#endif

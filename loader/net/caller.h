/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A caller has commands executed: it has a session, which commands read and change, and the call
 * that is being executed.  Commands get their caller as their context; they know nothing of the
 * bytes of a request or of a reply.
 *
 * A client (client.h) is a caller with a connection.  A caller may also have none (caller_new(),
 * caller_run()), for commands that xkvd itself executes.
 *
 * A caller belongs to one worker, which uses it under its own lock; other workers need all locks
 * (worker.h).
 */
#ifndef XKV_CALLER_H
#define XKV_CALLER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "connection.h"
#include "executor.h"
#include "protocol/resp.h"
#include "session.h"
#include "worker.h"

/* execution pauses when so many bytes are unsent */
#define PAUSE_ABOVE (1 << 20)

/* The command that is being executed, or an unfinished one. */
struct call {
	unsigned int argc;
	const struct resp_arg *argv; /* arguments; they may move between two slices of it */
	char *bytes;		     /* the command as it came, in the caller's protocol */
	size_t len;		     /* of that */
	size_t pending;		     /* `len`, and the bytes after it */
};

/* What a caller with a connection does differently. */
struct caller_kind {
	/* It is about to get a message that is not a reply of a command. */
	void (*before_message)(struct caller *c);
	/* Its outbox has new bytes to send. */
	void (*wake)(struct caller *c);
	/*
	 * It got replies of commands that were executed elsewhere.  The caller may be gone
	 * afterwards.
	 */
	void (*answered)(struct caller *c);
	/* Its suspended call can continue: executor.resume() soon. */
	void (*resume)(struct caller *c);
	/* Closes it; the caller may be gone afterwards, unless its command is running. */
	void (*close)(struct caller *c);
	/* "127.0.0.1:1" of the other end, or of ours; a path of a Unix socket. */
	void (*address)(const struct caller *c, bool peer, char text[ADDRESS_TEXT]);
	/* Is the other end on this machine? */
	bool (*is_local)(const struct caller *c);
};

struct caller {
	const struct caller_kind *kind;
	struct server *srv;
	struct worker *worker;
	uint64_t id; /* of a client; 0 = it is none */
	struct session session;
	struct call call;
	unsigned int ran;	     /* enum run_flags of the last command */
	bool closing;		     /* executes nothing more; closed when its replies are sent */
	bool dead;		     /* closed at the end of the round */
	bool unsent;		     /* its round ends together with others: worker.unsent */
	LIST_ENTRY(caller) monitors; /* those that have sent MONITOR; of pubsub/ */
	LIST_ENTRY(caller) waiting;  /* of `waiters`, if it `waits` */
	bool waits;		     /* its call is unfinished, and is not to be resumed yet */
	bool blocks; /* possibly for ever: ends when its client has sent everything */
	/* executor.caller_bytes, used by database/ only */
	_Alignas(max_align_t) char commands[];
};

/* Of zero-filled memory, with executor.caller_bytes behind it. */
void caller_init(struct caller *c, struct worker *w, const struct caller_kind *kind);

/* One without a connection, which may execute everything.  NULL: no memory. */
struct caller *caller_new(struct worker *w);
void caller_free(struct caller *c);
/*
 * Executes a command of such a caller to its end, however long that takes, and appends its reply to
 * session.reply, which the owner of the caller empties.  `call` and its bytes must not change
 * meanwhile.  Not within a command of another caller.
 */
void caller_run(struct caller *c, const struct call *call);

/*
 * Suspends the unfinished call of a client: it is not resumed before waiters_wake(), and later
 * commands of the client wait.  Other clients go on.  Meanwhile the client may be closed
 * (executor.cancel() ends the wait).  Not within EXEC or a script.
 */
void caller_wait(struct caller *c, struct waiters *w);
/*
 * The same for commands that block, in Redis' sense: as there, a client that sends no more is
 * closed.
 */
void caller_block(struct caller *c, struct waiters *w);
/* Ends the wait, if the caller waits, without resuming its call. */
void caller_wait_no_more(struct caller *c);
/* Resumes the calls of all that wait there; each may wait again. */
void waiters_wake(struct waiters *w);

/*
 * Sends a caller a message that is not a reply (pub/sub, MONITOR), outside or inside of any
 * client's turn:
 *
 *	struct reply *r = caller_message(to);
 *	reply_...(r, ...);
 *	caller_message_end(to);
 *
 * A message is never put into a reply: it waits until a long command is finished, and a command
 * that sends one to its own caller does so before or after its reply.  Exceeding the limit of the
 * outbox closes the client, but not before the event loop runs again.
 */
struct reply *caller_message(struct caller *to);
void caller_message_end(struct caller *to);

/* Where a command of this caller replies. */
static inline struct reply *reply_to(struct caller *c)
{
	return &c->session.reply;
}

static inline bool caller_needs_auth(const struct caller *c)
{
	return !c->session.authenticated && c->worker->executor->requires_auth();
}

#endif

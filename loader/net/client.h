/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A client of the RESP front end: a byte stream (stream.h), a session with its outbox (session.h),
 * and what decides when it is read from, executed and closed.  Commands get it as their context:
 * they read and change the session and reply to it; of the stream they only read.
 *
 * A client belongs to one worker.  Who has the lock of the server (worker.h) may use it.
 */
#ifndef XKV_CLIENT_H
#define XKV_CLIENT_H

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "executor.h"
#include "flows.h"
#include "server_state.h"
#include "session.h"
#include "stream.h"
#include "worker.h"

/* bytes that wait to be sent at which execution pauses */
#define PAUSE_ABOVE (1 << 20)

struct client {
	TAILQ_ENTRY(client) link;    /* worker.clients, by last activity */
	TAILQ_ENTRY(client) turn;    /* of `queued` */
	TAILQ_ENTRY(client) sends;   /* worker.unsent */
	LIST_ENTRY(client) monitors; /* those that have sent MONITOR; of commands/ */
	struct server *srv;
	struct worker *worker;
	uint64_t id;
	struct hashtable_entry by_id; /* server.ids */
	double since, active;	      /* by monotonic_seconds() */
	double over_since;	      /* when its output passed the soft limit; 0 = it does not */
	size_t memory; /* bytes that it takes, as they are counted in worker.client_memory */
	struct stream stream;
	struct flow flow;
	struct session session;
	unsigned int ran; /* enum run_flags of the last command */
	/*
	 * monotonic ns: when a long command first found that the client has hung up; 0 = not, or
	 * not yet
	 */
	uint64_t hung_up;
	/* has commands left to execute, and waits here for its turn; NULL = not */
	struct turns *queued;
	bool unsent;  /* its round ends with those of others: worker.unsent */
	bool reads;   /* waits for its turn to read what the connection has taken from the socket */
	bool paused;  /* has commands left to execute, and must read replies first */
	bool closing; /* executes nothing more; closed when its replies are sent */
	bool dead;    /* closed at the end of the round */
	bool away;    /* its worker has left the lock for a call about it */
	bool uncounted; /* it was closed by another worker: its own will see to the rest */
	/* executor.client_bytes, used by commands/ only */
	_Alignas(max_align_t) char commands[];
};

/* Takes over the connection; closes it if there is no memory. */
void client_new(struct worker *w, struct connection conn);
/* By its worker.  Not for the client whose command is being executed: it is marked `dead`. */
void client_free(struct client *c);
/* The same for any other client: at once, or, if it is another worker's, soon. */
void client_close(struct client *c);

/*
 * Has the client been active since then (monotonic_seconds()), also by commands that the driver has
 * answered?
 */
bool client_was_used(struct client *c, double since);
/* When it was active last, by monotonic_seconds(). */
double client_active(const struct client *c);

/* Executes waiting commands of one client for one round, or resumes one. */
void client_turn(struct client *c);
/* Sends the replies of a round.  May free the client. */
void client_end_round(struct client *c);

/*
 * Sends a client something that none of its commands has asked for (messages of
 * pub/sub, MONITOR), from outside or inside of any client's turn:
 *
 *	struct reply *r = client_message(to);
 *	reply_...(r, ...);
 *	client_message_end(to);
 *
 * A message is never put into a reply: it waits until a long command is finished, and a command
 * that sends one to its own client does so before or after its reply.  What exceeds the limit of
 * the outbox closes the client, but not before the event loop runs again.
 */
struct reply *client_message(struct client *to);
void client_message_end(struct client *to);

/*
 * Every second: closes clients whose output is beyond the soft limit for too long, reads again from
 * those that had to wait for memory, and gives free memory back to the system.
 */
void clients_tend_memory(struct worker *w);
/* Gives all free memory back to the system. */
void clients_trim_memory(struct worker *w);
/* Sends to each client what can be sent without waiting. */
void clients_flush(struct worker *w);

/* The clients of all workers: the one behind `c`, the first for NULL; NULL = that was the last. */
struct client *client_next(const struct server *s, const struct client *c);
/* The client of this ID, NULL: there is none, or it is being closed. */
struct client *client_by_id(const struct server *s, uint64_t id);

/* Where a command of this client replies. */
static inline struct reply *reply_to(struct client *c)
{
	return &c->session.reply;
}

static inline bool client_needs_auth(const struct client *c)
{
	return !c->session.authenticated && c->worker->executor->requires_auth();
}

#endif

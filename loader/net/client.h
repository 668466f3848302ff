/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A client of the RESP front end: a caller (caller.h) with a byte stream (stream.h), and the state
 * that decides when to read from it, execute its commands and close it.  Commands know only its
 * caller.
 *
 * A client belongs to one worker, which uses it under its own lock; other workers need all locks
 * (worker.h).
 */
#ifndef XKV_CLIENT_H
#define XKV_CLIENT_H

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caller.h"
#include "flows.h"
#include "server_state.h"
#include "stream.h"

struct client {
	TAILQ_ENTRY(client) link;     /* worker.clients, by last activity */
	TAILQ_ENTRY(client) turn;     /* of `queued` */
	TAILQ_ENTRY(client) sends;    /* worker.unsent */
	struct hashtable_entry by_id; /* server.ids */
	double since, active;	      /* by monotonic_seconds() */
	double over_since;	      /* when its output passed the soft limit; 0 = it does not */
	size_t memory;	/* bytes that it takes, as they are counted in worker.client_memory */
	size_t waiting; /* of these, what was in its outboxes */
	struct stream stream;
	struct flow flow;
	/*
	 * monotonic ns: when it was first found that the client may have hung up while it was owed
	 * a reply; 0 = not, or not yet
	 */
	uint64_t hung_up;
	/* has commands left to execute, and waits here for its turn; NULL = not */
	struct turns *queued;
	/*
	 * Its replies are sent when the log is on disk up to this position; none of its commands is
	 * executed meanwhile.  0: they need not wait, or their round has not ended.
	 */
	uint64_t held_until;
	bool delayed;	    /* a turn of it came meanwhile */
	bool wrote;	    /* a command of this round may have changed something */
	bool reads;	    /* waits for a turn to read bytes that the connection holds already */
	bool sends_no_more; /* it has shut down its sending side, and still gets its replies */
	bool paused;	    /* has commands left to execute, and must read replies first */
	bool away;	    /* its worker has released its lock during a call about it */
	bool uncounted;	    /* it was closed, but not freed: its worker will free it */
	struct caller caller;
};

/* Takes over the connection; closes it if there is no memory. */
void client_new(struct worker *w, struct connection conn);
/*
 * To another worker; neither has a thread yet.  A client that has something to execute, to wait for
 * or to be told stays where it is.
 */
void client_move(struct client *c, struct worker *to);
/* By its worker.  Not for the client whose command is being executed: it is marked `dead`. */
void client_free(struct client *c);

/* The client of this caller; NULL: it is not a client's. */
struct client *client_of(const struct caller *c);

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
 * Every second: closes clients whose output exceeds the soft limit for too long, and those that
 * have hung up with replies outstanding; reads again from those that had to wait for memory, and
 * returns free memory to the system.
 */
void clients_tend_memory(struct worker *w);
/*
 * Sets server.longest and its error, by the configuration: proto-max-bulk-len, or what fits in
 * maxmemory-clients.  A client would be closed in the middle of a longer argument, and not know
 * why.
 */
void clients_limit_arguments(struct server *s);
/* Returns all free memory to the system. */
void clients_trim_memory(struct worker *w);
/* Sends each client as much as possible without waiting. */
void clients_flush(struct worker *w);

/*
 * Iterates over the clients of all workers: the one after `c`, the first for NULL; NULL at the end.
 */
struct caller *client_next(const struct server *s, const struct caller *c);
/* The client with this ID; NULL: there is none, or it is being closed. */
struct caller *client_by_id(const struct server *s, uint64_t id);

#endif

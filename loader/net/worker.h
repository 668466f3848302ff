/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A worker is a thread's event loop with the clients that it serves, and the state that they share
 * (the read buffer, the store context, the slice of time for long commands, counters).  The state
 * of the process is in server_state.h.
 *
 * Each worker has a lock, which it holds except while its loop waits for events.  Under its own
 * lock a worker reads from its clients, executes their plain commands (each about one key, and with
 * no effect except on the store: database/commands.c has the rule), and sends the replies; other
 * workers do the same meanwhile.  Everything else needs all locks (worker_take_all()), so one
 * worker at a time does it, which may use the state of the process and the clients of other
 * workers, which it wakes (worker_wake()).  In other files "the lock of the server" means all
 * locks.
 *
 * Under its own lock a worker uses its loop, clients, callers, store context and counters.  Of
 * other state it may read what is changed under all locks only, and use what is documented as
 * thread safe.
 *
 * Locks are given back, and taken again, between two events, before a command that needs all, and
 * in calls that read or send the bytes of a client, or take milliseconds for a TLS handshake
 * (worker_leave()).  Only the worker itself frees its clients.
 */
#ifndef XKV_WORKER_H
#define XKV_WORKER_H

#include <ev.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "handshake.h"
#include "protocol/reply.h"
#include "stats.h"

#define READ_BYTES 65536

struct caller;
struct client;
struct executor;
struct server;
struct store_ctx;

TAILQ_HEAD(client_list, client);

/* Clients that wait for their turn. */
struct turns {
	struct client_list clients;
	unsigned int count;
};

/* Callers whose calls wait for the same event (caller.h).  Zero-filled: there are none. */
LIST_HEAD(waiters, caller);

/* CLIENT PAUSE */
struct pause {
	uint64_t until_ns; /* monotonic; 0 = there is none */
	bool all;	   /* not only commands that write */
	ev_timer end;
	struct waiters waiters;
};

enum locks { HOLDS_NOTHING, HOLDS_OWN, HOLDS_ALL };

struct worker {
	struct server *srv;
	pthread_mutex_t own; /* not used by a single worker */
	enum locks holds;
	uint64_t alone_ns;	    /* monotonic: since when it has all */
	struct ev_loop *loop;	    /* owned */
	struct store_ctx *ctx;	    /* owned */
	char *read_buffer;	    /* READ_BYTES; owned */
	size_t read_used;	    /* bytes of it that queued operations refer to */
	struct client_list clients; /* by last activity, the oldest first; owned */
	unsigned int client_count;
	struct handshakes handshakes; /* of connections that are not clients yet */
	size_t client_memory;	      /* bytes that the clients take */
	size_t client_memory_peak;    /* since memory was returned to the system */
	struct turns ready, working;  /* the latter: with a command in progress */
	/* clients that wait for the disk (client.held_until), then those whose round has to end */
	struct client_list unsent;
	unsigned int unsent_count; /* the latter */
	bool hurries;		   /* thread_hurries() */
	size_t unsent_bytes;	   /* about what they have to send */
	ev_prepare ends;	   /* ends these rounds before the loop waits */
	ev_check turns;		   /* gives each waiting client its turn */
	ev_idle no_wait;	   /* keeps the loop from sleeping while some are waiting */
	ev_timer second;
	ev_async wake; /* ends a wait */
	pthread_t thread;
	bool runs; /* it has a thread of its own */
	struct pause pause;
	uint64_t slice_end; /* monotonic ns: when long commands have used up this round's time */
	/*
	 * monotonic ns, as last read: at the beginning of a client's round, and whenever the time
	 * that commands took was measured
	 */
	uint64_t now_ns;
	uint64_t messages;    /* sent to clients, or other work that takes as long; only grows */
	uint64_t stat[STATS]; /* only grow */
	struct durations datagrams; /* of the first worker: passed up by the driver */
	struct error_counts errors; /* since CONFIG RESETSTAT */
	const struct executor *executor;
	/* executor.worker_bytes, used by database/ only */
	_Alignas(max_align_t) char commands[];
};

/* Makes the event loop and the store context.  NULL and errno if that fails. */
struct worker *worker_new(struct server *srv);
void worker_close_clients(struct worker *w);
/* After its clients.  `w` may be NULL. */
void worker_free(struct worker *w);

/* Starts the threads of all workers but the first, and ends them.  0 or an error of errno. */
int workers_start(struct server *s);
void workers_end(struct server *s);

/* The worker that serves the fewest clients. */
struct worker *worker_least(const struct server *s);

/*
 * Wakes the worker's thread, so that it handles changes that another worker has made to its loop or
 * its clients.
 */
void worker_wake(struct worker *w);

/*
 * Takes all locks, until the next worker_leave() or the end of the event.  Returns whether other
 * workers may have run before it had them: they may have added to outboxes, and marked clients
 * `dead`.  Queued operations were executed before.  Not within a command.
 */
bool worker_take_all(struct worker *w);

/* Has it all locks, or is it the only worker? */
bool worker_is_alone(const struct worker *w);

/*
 * Lets other workers run during a system call for a client of this worker, if this one has all
 * locks, another one waits for them, or the call `takes_long`; worker_return() takes the worker's
 * own lock again.  Otherwise as worker_take_all().
 */
void worker_leave(struct worker *w, bool takes_long);
void worker_return(struct worker *w);

/*
 * Queues a client for a turn.  Clients with a long command in progress share one slice of time per
 * round.
 */
void worker_enqueue(struct worker *w, struct client *c, bool long_command);
void worker_dequeue(struct worker *w, struct client *c);

/* Executes the operations that clients have queued in their turns.  Not within a command. */
void worker_flush(struct worker *w);

/*
 * Ends a client's round before the loop waits again.  Replies are sent when all ready clients have
 * had their turn, or many bytes wait: a peer that the first reply wakes up then finds more.
 */
void worker_send(struct worker *w, struct client *c);
void worker_unsend(struct worker *w, struct client *c);

/*
 * Postpones commands for `ms`; a pause that is in force may become longer and stricter.  The
 * executor decides for each command, and makes it wait for `waiters`.
 */
void workers_pause(struct server *s, uint64_t ms, bool all);
/* Ends a pause: commands that it has held back are executed. */
void workers_unpause(struct server *s);

/*
 * Workers were added beside the first one, and none has a thread yet: they pause as it does, and
 * get their shares of its clients.
 */
void workers_share(struct server *s);

/*
 * In the middle of a command of `c`: handles events that have arrived, except those of `c` itself
 * and those that use the store context.  The executor has to refuse commands that would use it.
 */
void worker_yield(struct caller *c);

/* Whether long commands have time left in this round of the loop.  Reads the clock. */
bool worker_slice_left(const struct worker *w);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the event loop (server.c), the clients (client.c) and the commands
 * (commands/) share.  Nothing outside these includes it; main() sees server.h.
 */
#ifndef XKV_CLIENT_H
#define XKV_CLIENT_H

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "connection.h"
#include "reply.h"
#include "resp.h"
#include "server_state.h"
#include "worker.h"

/* The longest command before AUTH, and a pipeline beside it; what a stranger may have us keep. */
#define CLIENT_TEXT_MAX 256 /* bytes of a client's name, and of its library's name and version */
#define UNAUTH_INPUT_MAX (RESP_UNAUTH_ARGS * RESP_UNAUTH_BULK + 2 * READ_BYTES)

struct client;
struct command;
struct found;

/* What the store did of what a command has queued; `note` is the command's own. */
typedef void command_end_fn(struct client *c, unsigned int note, int ret,
			    const struct store_entry *e);

/*
 * Operations that commands of one client have asked for, in its turn, and that are still to be
 * run, together.  Each may return a value of 1 MiB: that many more may stand unsent than
 * PAUSE_ABOVE says.
 */
#define QUEUE_OPS 32
struct queue {
	unsigned int count;
	struct store_op op[QUEUE_OPS]; /* keys and values stand in the client's input */
	struct {
		command_end_fn *end;
		unsigned int note;
	} then[QUEUE_OPS];
};

/*
 * A command that may take longer than others shall wait (commands/work.c): `step` does a slice of
 * it in each turn of its client, and returns whether it is done.  Until then it stands at the front
 * of the client's input, and what is behind it waits.
 */
typedef bool command_step_fn(struct client *c);
/* Queues what a command does about the key at `arg`, which was its argument `index`. */
typedef void command_key_fn(struct client *c, const struct resp_arg *arg, unsigned int index,
			    unsigned int argc);

struct work {
	command_step_fn *step; /* NULL = no command is in progress */
	const char *base;      /* where the command stood when it was parsed: the input moves */
	command_key_fn *key;   /* of a command about many keys: `stride` arguments each, */
	unsigned int stride, checked, at; /* up to where they were checked, and queued */
	uint64_t cursor;     /* of a walk over the store, */
	struct found *found; /* and what it found; owned */
};

/* What was read and not yet executed. */
struct input {
	char *data;
	size_t pos, len, cap;
	bool shared; /* data is the server's read buffer */
};

struct client {
	TAILQ_ENTRY(client) link; /* server.clients, by last activity */
	TAILQ_ENTRY(client) turn; /* of `queued` */
	struct server *srv;
	struct worker *worker;
	ev_io readable, writable;
	struct connection conn;
	uint64_t id;
	double since, active; /* by monotonic_seconds() */
	size_t memory; /* bytes that it takes, as they stand in server.client_memory */
	/*
	 * ns, monotonic: when it was seen to send no more, while long commands kept us from
	 * reading; 0 = not
	 */
	uint64_t hung_up;
	struct input in;
	struct resp_parser parser;
	struct work work;
	struct reply reply;
	const struct command *last;
	int64_t tally; /* of a command about several keys: those that count so far, */
	int failure;   /* and its first error */
	char *name, *lib_name, *lib_version; /* owned, NULL = none */
	bool authenticated;
	bool no_evict; /* CLIENT NO-EVICT */
	bool multi;   /* has sent MULTI: nothing is executed until EXEC or DISCARD */
	/* has commands left to execute, and waits here for its turn; NULL = not */
	struct turns *queued;
	bool paused;  /* has commands left to execute, and must read replies first */
	bool closing; /* executes nothing more; closed when its replies are sent */
	bool dead;    /* closed at the end of the round */
};

/* client.c */
/* Takes over the connected, non-blocking socket `fd`; closes it if there is no memory. */
void client_new(struct worker *w, int fd);
void client_free(struct client *c);
/*
 * Executes queued commands of one client for one round, or goes on with the one in progress, and
 * sends its replies.
 */
void client_turn(struct client *c);
/*
 * Every second: goes on reading from clients that had to wait for memory, and gives what is free
 * back to the system.
 */
void clients_tend_memory(struct worker *w);
/* Gives all memory that is free back to the system. */
void clients_trim_memory(struct worker *w);
/* Sends to each client what its socket takes without waiting. */
void clients_flush(struct worker *w);
/* commands/work.c */
#define PAUSE_ABOVE (1 << 20) /* unsent bytes at which execution pauses */
/* Makes the command that is being executed one in progress. */
struct work *work_begin(struct client *c, command_step_fn *step);
/*
 * Goes on with the command in progress, if there is one and there is time.  True if none is left.
 */
bool work_go_on(struct client *c);
/*
 * Whether what it has us do takes its time, and is to be given up since nobody waits for the
 * replies.
 */
bool work_is_abandoned(struct client *c);
/* Whether the command that was executed last may have taken its time. */
bool work_was_long(const struct client *c);
/* Forgets the command in progress. */
void work_end(struct client *c);

/* Where commands reply. */
static inline struct reply *reply_to(struct client *c)
{
	return &c->reply;
}

static inline bool client_needs_auth(const struct client *c)
{
	return !c->authenticated && c->srv->cfg->requirepass[0];
}

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the event loop (server.c), the clients (client.c) and the commands
 * share.  Nothing outside these includes it; main() sees server.h.
 */
#ifndef XKV_CLIENT_H
#define XKV_CLIENT_H

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "resp.h"
#include "server.h"

#define MAX_LISTENERS 64
#define READ_BYTES    65536
/* The longest command before AUTH, and a pipeline beside it; what a stranger may have us keep. */
#define UNAUTH_INPUT_MAX (RESP_UNAUTH_ARGS * RESP_UNAUTH_BULK + 2 * READ_BYTES)
#define ADDRESS_TEXT  80 /* an IPv6 address with zone, brackets and port */

struct client;
struct command;

/* What the store did of what a command has queued; `note` is the command's own. */
typedef void command_end_fn(struct client *c, unsigned int note, int ret,
			    const struct store_entry *e);

/*
 * Operations that commands of one client have asked for, in its turn, and that are still to be
 * run, together.  Each may return a value of 1 MiB: that many more may stand unsent than PAUSE_ABOVE says.
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

/* What was read and not yet executed. */
struct input {
	char *data;
	size_t pos, len, cap;
	bool shared; /* data is the server's read buffer */
};

struct client {
	TAILQ_ENTRY(client) link; /* server.clients, by last activity */
	TAILQ_ENTRY(client) turn; /* server.ready, if queued */
	struct server *srv;
	ev_io readable, writable;
	int fd;
	uint64_t id;
	ev_tstamp since, active;
	struct input in;
	struct resp_parser parser;
	struct reply out;
	const struct command *last;
	int64_t tally; /* of a command about several keys: those that count so far, */
	int failure;   /* and its first error */
	char *name, *lib_name, *lib_version; /* owned, NULL = none */
	bool authenticated;
	bool multi;   /* has sent MULTI: nothing is executed until EXEC or DISCARD */
	bool queued;  /* has commands left to execute, and waits for its turn */
	bool paused;  /* has commands left to execute, and must read replies first */
	bool closing; /* executes nothing more; closed when its replies are sent */
	bool dead;    /* closed at the end of the round */
};

TAILQ_HEAD(client_list, client);

struct server_stats {
	uint64_t connections, rejected, commands, protocol_errors;
	uint64_t output_closed, query_closed, bytes_in, bytes_out;
	/* The store counts these, for both doors; here is what CONFIG RESETSTAT found. */
	uint64_t old_hits, old_misses, old_expired, old_evicted;
};

struct extra; /* a watcher of server_add_fd() or server_add_timer() */

struct server {
	struct server_options opt;
	struct config *cfg;
	struct store *store;
	struct store_lane *lane;
	struct ev_loop *loop;
	ev_io listeners[MAX_LISTENERS];
	unsigned int listener_count;
	ev_timer accept_pause, second, expiry;
	ev_signal on_term, on_int, on_usr1, on_hup;
	ev_io snapshot_done;
	ev_check turns;	 /* gives each queued client its turn */
	ev_idle no_wait; /* keeps the loop from sleeping while some are queued */
	struct extra *extras;
	struct client_list clients, ready;
	unsigned int client_count;
	uint64_t next_id;
	char *read_buffer; /* READ_BYTES, used by one client at a time */
	struct queue queue; /* empty between two turns */
	struct server_stats stats;
	ev_tstamp started;
	uint64_t memory_peak; /* bytes of the store, as info_note_memory() has seen them */
	bool followed;	/* listeners are being added: those that are there are no surprise */
	bool stopping;	/* nothing is executed any more */
	ev_tstamp signalled; /* when SIGTERM or SIGINT came and saving failed, 0 = never */
};

/* server.c */
enum shutdown_save { SHUTDOWN_BY_RULES, SHUTDOWN_SAVE, SHUTDOWN_NOSAVE };
/* Saves and ends the loop; false (and the server goes on) if saving failed and not `force`. */
bool server_shutdown(struct server *s, enum shutdown_save save, bool force);

/* client.c */
/* Takes over the connected, non-blocking socket `fd`; closes it if there is no memory. */
void client_new(struct server *s, int fd);
void client_free(struct client *c);
/* Executes queued commands of one client for one round, and sends its replies. */
void client_turn(struct client *c);
/* Sends what the socket takes without waiting. */
void client_flush(struct client *c);
/* Writes "address:port" of the peer, or of our side. */
void client_address(const struct client *c, bool peer, char text[ADDRESS_TEXT]);
static inline bool client_needs_auth(const struct client *c)
{
	return !c->authenticated && c->srv->cfg->requirepass[0];
}

#endif

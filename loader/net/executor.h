/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How net/ has commands executed, and all that it knows of them.  database/ implements it
 * (commands_executor()), main() passes it to server_new(): main -> net -> executor -> database ->
 * store, and no include goes the other way but those of database/ to the headers of net/.
 *
 * All of it is called by the thread of the caller's worker, with its own lock (worker.h); run() and
 * resume() take all locks if the command needs them, cancel() is called with all.
 */
#ifndef XKV_EXECUTOR_H
#define XKV_EXECUTOR_H

#include <stdbool.h>
#include <stddef.h>

#include "flows.h"

struct caller;
struct resp_arg;
struct server;
struct worker;

/* What the last command of a client is like. */
enum run_flags {
	RUN_UNFINISHED = 1, /* to be resumed */
	RUN_LONG = 2,	    /* may have taken long */
	RUN_WRITES = 4,	    /* is to be finished even if the client hangs up */
	RUN_MAY_WRITE = 8,  /* a script, or EXEC */
};

struct executor {
	/* Bytes of zero-filled memory for database/ in each caller, each worker and the server. */
	size_t caller_bytes, worker_bytes, server_bytes;
	/*
	 * Executes the caller's call and replies to its session, or queues it.  Returns enum
	 * run_flags.  While it is RUN_UNFINISHED, what the caller has sent behind it waits; its
	 * words may move, but only between two calls.
	 */
	unsigned int (*run)(struct caller *c);
	/* Replies to a command with an argument beyond proto-max-bulk-len, which was not kept. */
	void (*refuse_long)(struct caller *c);
	/* Continues an unfinished command while worker_slice_left(); returns as run(). */
	unsigned int (*resume)(struct caller *c);
	/*
	 * A turn of the client ends.  If its input `stays` as it is until flush(), what it has
	 * queued may wait for what other clients of its worker queue, until others may run: what
	 * these execute (CLIENT PAUSE, CLIENT KILL) would be replied before.  Returns whether
	 * something waits.
	 */
	bool (*end_turn)(struct caller *c, bool stays);
	/* Executes what is queued and replies: before input may move, or a client is freed. */
	void (*flush)(struct worker *w);
	/* The replies of a round are about to be sent. */
	void (*before_replies)(struct worker *w);
	/* The client is being closed: forgets it, and its unfinished command, if there is one. */
	void (*cancel)(struct caller *c);
	/*
	 * Its client sends no more: are there replies to come that it may wait for?  NULL: there
	 * are none but that of its call.  caller_kind.answered() is called when they have come.
	 * `ends`: all that it has sent was executed.
	 */
	bool (*owes)(struct caller *c, bool ends);
	/* Bytes that the unfinished command has allocated. */
	size_t (*memory)(struct caller *c);
	/* Frees what database/ has allocated for the server, which has no clients any more. */
	void (*server_free)(struct server *s);
	/* Must a client that has not authenticated do so? */
	bool (*requires_auth)(void);
	/* Lets a caller that is no client execute everything. */
	void (*trust)(struct caller *c);
	/* What may the driver answer for the client, as it is now? */
	struct flow_rights (*driver_rights)(struct caller *c);
	/* The server has its workers, and a configuration. */
	void (*start)(struct server *s);
	/* Samples what INFO reports as peak and per second; called every second. */
	void (*sample)(struct server *s);
};

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How net/ has commands executed; it knows nothing else of them.  database/ implements it
 * (commands_executor()), main() passes it to server_new(): main -> net -> executor -> database ->
 * store, and the only includes in the other direction are those of net/'s headers by database/.
 *
 * All of it is called by the thread of the caller's worker, under its own lock (worker.h); run()
 * and resume() take all locks if the command needs them, cancel() is called with all.
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

/* Properties of the last command of a client. */
enum run_flags {
	RUN_UNFINISHED = 1, /* to be resumed */
	RUN_LONG = 2,	    /* may have taken long */
	RUN_WRITES = 4,	    /* has to be finished even if the client hangs up */
	RUN_MAY_WRITE = 8,  /* a script, or EXEC */
};

struct executor {
	/* Bytes of zero-filled memory for database/ in each caller, each worker and the server. */
	size_t caller_bytes, worker_bytes, server_bytes;
	/*
	 * Executes the caller's call and replies to its session, or queues it.  Returns enum
	 * run_flags.  While it is RUN_UNFINISHED, the caller's later commands wait; its arguments
	 * may move, but only between two calls.
	 */
	unsigned int (*run)(struct caller *c);
	/*
	 * Replies to a command with an argument longer than server.longest, which was not kept.
	 * Returns as run().
	 */
	unsigned int (*refuse_long)(struct caller *c);
	/* Continues an unfinished command while worker_slice_left(); returns as run(). */
	unsigned int (*resume)(struct caller *c);
	/*
	 * A turn of the client ends.  If its input `stays` unchanged until flush(), its queued
	 * operations may wait for those of other clients of its worker, but not until other workers
	 * run: their commands (CLIENT PAUSE, CLIENT KILL) would be replied first.  Returns whether
	 * something waits.
	 */
	bool (*end_turn)(struct caller *c, bool stays);
	/* Executes queued operations and replies: before input moves, or a client is freed. */
	void (*flush)(struct worker *w);
	/* The replies of a round are about to be sent. */
	void (*before_replies)(struct worker *w);
	/* The client is being closed: forgets it, and its unfinished command, if there is one. */
	void (*cancel)(struct caller *c);
	/*
	 * Its client sends no more: are there replies to come that it may wait for?  NULL: only
	 * that of its call.  caller_kind.answered() is called when they have arrived.  `ends`: all
	 * its commands were executed.
	 */
	bool (*owes)(struct caller *c, bool ends);
	/* Bytes that the unfinished command has allocated. */
	size_t (*memory)(struct caller *c);
	/* Frees what database/ has allocated for the server, which has no clients any more. */
	void (*server_free)(struct server *s);
	/* Must a client that has not authenticated do so? */
	bool (*requires_auth)(void);
	/* Lets a caller that is not a client execute everything. */
	void (*trust)(struct caller *c);
	/* What may the driver answer for the client in its present state? */
	struct flow_rights (*driver_rights)(struct caller *c);
	/* The server has its workers, and a configuration. */
	void (*start)(struct server *s);
	/* The data is loaded, and all workers are there: server_loaded(). */
	void (*loaded)(struct server *s);
	/* Samples what INFO reports as peak and per second; called every second. */
	void (*sample)(struct server *s);
};

#endif

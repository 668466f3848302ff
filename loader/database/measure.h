/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures commands: counts, times and percentiles for INFO, slow ones for SLOWLOG and LATENCY.
 *
 * The clock is read once for each batch of commands, not for each command: when the queue of
 * operations was run, before and after a command that may take long, and at the end of a client's
 * round if it leaves nothing queued.  The commands of a batch share its time by the number of their
 * operations, and a command that waited in a pipeline has the mean of its batch.  The beginning of
 * a round is the time that the client was read from, which net/ knows already; for a batch of
 * several clients it is the last one's.
 *
 * All of it is used by a worker under its own lock (net/worker.h), except sums over all workers.
 */
#ifndef XKV_COMMANDS_MEASURE_H
#define XKV_COMMANDS_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "net/stats.h"
#include "protocol/reply.h"

struct caller;
struct command;
struct server;
struct worker;

#define COMMAND_IDS	320 /* commands and subcommands, at most */
#define BATCH_COMMANDS	64
#define TRIED_COMMANDS	32
#define LATENCY_SAMPLES 160 /* kept of an event, as in Redis */

struct command_stats {
	uint64_t calls, rejected, failed, ns;
	uint64_t times[TIME_BUCKETS]; /* calls by their duration: see time_bucket() */
};

/* A command of the present batch. */
struct measured {
	struct caller *caller;
	const struct command *cmd;
	const char *start;   /* in the client's input */
	size_t input;	     /* bytes of the input from there on */
	uint64_t ns;	     /* so far */
	unsigned int weight; /* 1 + its operations in this batch */
	bool failed;	     /* replied an error */
};

struct slow_entry;
TAILQ_HEAD(slow_entries, slow_entry);

/* The latest first. */
struct slowlog {
	struct slow_entries entries;
	unsigned int count;
	uint64_t next_id;
};

struct latency_sample {
	int64_t time; /* Unix time in seconds */
	uint32_t ms;  /* the worst of that second */
};

enum latency_event { LATENCY_COMMAND, LATENCY_FAST_COMMAND, LATENCY_EVENTS };

struct latency_series {
	struct latency_sample sample[LATENCY_SAMPLES];
	unsigned int count; /* samples so far; number n is at n % LATENCY_SAMPLES */
	uint32_t max_ms;    /* since LATENCY RESET */
};

struct measure {
	unsigned int count;	  /* commands of the batch */
	bool running;		  /* the last of them has not returned yet */
	uint64_t errors;	  /* worker.errors.total, as far as it was attributed to commands */
	bool trying;		  /* they are parts of a try, and count if it succeeds: ... */
	unsigned int tried_count; /* ... up to TRIED_COMMANDS; more count at once */
	struct measured tried[TRIED_COMMANDS];
	struct measured batch[BATCH_COMMANDS];
	struct command_stats stats[COMMAND_IDS];
};

/* A command begins, or continues after it has taken `ns` before. */
void measure_begin(struct caller *c, const struct command *cmd, uint64_t ns);
/*
 * The same, for a command that is not at the start of the client's input; `text`: the command in
 * RESP, static.
 */
void measure_begin_text(struct caller *c, const struct command *cmd, const char *text);
/* Does a command run, and has not returned yet? */
bool measure_runs(struct worker *w);
/* It has returned; an unfinished one keeps its time in its progress. */
void measure_end(struct caller *c);
/* Sets the command that runs aside while others are executed in the middle of it; and back. */
struct measured measure_suspend(struct caller *c);
void measure_resume(struct caller *c, const struct measured *command);
/* Counts a command that was measured so. */
void measure_finish(const struct measured *m);
/* It was refused before it began. */
void measure_rejected(struct caller *c, const struct command *cmd);
/* The command that runs queues an operation.  Returns its number, for measure_errors(). */
unsigned int measure_operation(struct caller *c);
/* Attributes the errors that were replied since the last call to the command of this number. */
void measure_errors(struct caller *c, unsigned int number);
/* The errors that commands of this client's worker have replied, those of its present try too. */
uint64_t measure_errors_total(const struct caller *c);
/* A try begins. */
void measure_try(struct worker *w);
/* A try (command_atomic()) is over; its replies are sent, with these errors, or NULL: dropped. */
void measure_tried(struct caller *c, const struct error_counts *errors);
/* Must the batch end before another command begins?  Then queued operations have to be executed. */
bool measure_is_full(struct worker *w);
/* Ends the batch: reads the clock and divides the time. */
void measure_batch(struct worker *w);
/* The same, unless nothing but the command that runs is in it. */
void measure_others(struct worker *w);
/* The errors that were replied by all workers. */
struct error_counts measure_errors_of(const struct server *s);
/* CONFIG RESETSTAT. */
void measure_reset(struct worker *w);

/* slowlog.c: keeps a command that took so long.  Its arguments are read again from `start`. */
void slowlog_add(const struct measured *m);
/* Forgets all but the latest `count`. */
void slowlog_trim(struct slowlog *log, unsigned int count);

/* latency.c: records it as an event. */
void latency_add(const struct measured *m);

#endif

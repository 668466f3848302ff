/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The infrastructure of commands.  Each has one row of commands.def and one function, in the files
 * by topic of commands/, acl/, pubsub/, script/ and tracking/, which share this header: the queue
 * of operations; read, modify, write (update.c); long commands (long.c); transactions (multi.c,
 * group.c).
 */
#ifndef XKV_DATABASE_H
#define XKV_DATABASE_H

#include <errno.h>
#include <stdio.h>

#include "pubsub/changes.h"
#include "database/commands.h"
#include "database/measure.h"
#include "net/caller.h"
#include "net/server_state.h"
#include "pubsub/pubsub.h"
#include "tracking/tracking.h"
#include "util/arena.h"
#include "util/range.h"
#include "util/text.h"

/*
 * The version reported to clients: the newest whose commands and options about strings are all
 * implemented.  Replies and error texts are those of 7.0 (docs/compatibility.md).
 */
#define REDIS_VERSION	  "7.4.0"
#define REDIS_VERSION_NUM 0x070400

/* Most arguments of a command without a list of keys, which is not done in slices. */
#define PLAIN_ARGS_MAX 1024

#define COMMAND_NAME_MAX 34 /* bytes of "command|subcommand" with its NUL */

/* argv[0] is the command's name (argv[1] the subcommand's). */
typedef void command_fn(struct caller *c, unsigned int argc, const struct resp_arg *argv);

/*
 * CMD_APART: a command in a transaction may be executed again, or be undone.  One that acts on the
 * whole store, or that changes anything but keys, cannot be part of it: EXEC commits the commands
 * before it, and executes it once.  Scripts may call only those that read.
 */
enum command_flags {
	CMD_WRITE = 0x01,
	CMD_READONLY = 0x02,
	CMD_DENYOOM = 0x04,
	CMD_ADMIN = 0x08,
	CMD_NOSCRIPT = 0x10,
	CMD_LOADING = 0x20,
	CMD_STALE = 0x40,
	CMD_FAST = 0x80,
	CMD_NO_AUTH = 0x100, /* may be called before AUTH */
	CMD_QUEUES = 0x200, /* uses command_queue(); the replies of others come after queued ones */
	CMD_ANY_ARGS = 0x400,  /* takes more than PLAIN_ARGS_MAX, without CMD_QUEUES */
	CMD_NO_MULTI = 0x800,  /* not after MULTI */
	CMD_APART = 0x1000,    /* is no part of a transaction */
	CMD_PUBSUB = 0x2000,   /* as in Redis; its keys are channels */
	CMD_BUSY = 0x4000,     /* may be called while a script of another client runs */
	CMD_ALONE = 0x8000,    /* needs all locks although it is about one key: net/worker.h */
	CMD_MOVABLE = 0x10000, /* also has keys elsewhere: COMMAND GETKEYS finds them */
};

/* What a command does with a key, in Redis' words. */
enum key_use {
	KEY_RO = 0x01,
	KEY_RW = 0x02,
	KEY_OW = 0x04,
	KEY_RM = 0x08,
	KEY_ACCESS = 0x10,
	KEY_UPDATE = 0x20,
	KEY_INSERT = 0x40,
	KEY_DELETE = 0x80,
	KEY_NOT_KEY = 0x100,  /* it is a channel */
	KEY_VARIABLE = 0x200, /* depends on the arguments */
};

/* As commands.def describes it. */
struct command {
	const char *name; /* lower case; NULL ends a table */
	command_fn *fn;
	int arity; /* words, the name included; negative: at least so many */
	unsigned int flags;
	int first, last,
		step; /* positions of the keys, 0 = none; a negative `last` counts from the end */
	unsigned int first_use, rest_use; /* enum key_use: of the key at `first`, and the others */
	const char *group, *since, *complexity, *summary, *arguments, *syntax;
	unsigned int also, never;  /* ACL_...: categories that do not follow from flags and group */
	const struct command *sub; /* subcommands, NULL = none */
};

#define COMMAND(name, fn, ...) command_fn fn;
#define CONTAINER(...)
#define HELP(...)
#define END
#include "database/commands.def"

/*
 * Is it about to be disconnected because its replies are too long?  Then its commands are skipped.
 */
static inline bool is_dropped(const struct caller *c)
{
	return c->session.reply.out.failed;
}

/* --- the queue --- */

/* Replies with the result of a queued operation; `note` is as given to command_queue(). */
typedef void command_end_fn(struct caller *c, unsigned int note, int ret,
			    const struct store_entry *e);

/*
 * Operations of commands that are still to be run, together; one queue per worker.  They may be of
 * several clients, which had their turns one after the other and have the same set-up of the store
 * context.  Each may return a value of 1 MiB, so outboxes may exceed PAUSE_ABOVE by that.
 */
#define QUEUE_OPS 32

/* A command that was sent after MULTI. */
struct queued {
	struct queued *next;
	const struct command *cmd;
	unsigned int argc;
	struct resp_arg argv[]; /* and the bytes that they point to */
};

/* Those of a transaction, in their order. */
struct queued_list {
	struct queued *first, *last;
	unsigned int count;
	struct arena memory; /* that they are in */
};

/*
 * EXECs that wait to be executed together (group.c), of one client or several with the same set-up
 * of the store context.
 */
struct exec_group {
	unsigned int count, keys;
	unsigned int alone; /* EXECs that do not wait, after a conflict */
	struct waiting_exec {
		struct caller *caller;
		const struct command *cmd; /* EXEC */
		struct queued_list queued; /* owned */
		struct reply reply;	   /* of EXEC, until the transaction is committed */
		bool multi;		   /* to be replied after it: the OK of MULTI ... */
		unsigned int queued_after; /* ... and so many QUEUED */
	} exec[QUEUE_OPS];
};

struct queue {
	unsigned int count;
	struct store_op op[QUEUE_OPS]; /* keys and values are in the client's input */
	struct {
		struct caller *caller;
		command_end_fn *end;
		unsigned int note;
		unsigned int number; /* of the command, for measure_errors() */
	} then[QUEUE_OPS];
	struct exec_group group; /* empty if there are operations */
	uint64_t changer; /* ID of the last client that may have changed something in this round */
	struct measure measure;
};

static inline struct queue *queue_of(const struct caller *c)
{
	return (struct queue *)c->worker->commands;
}

/* --- for the whole server --- */

/* State shared by the commands of all clients of all workers. */
struct shared {
	struct pubsub pubsub;
	struct changes changes;
	struct tracked_keys tracked;
	uint64_t watch_secret[2]; /* multi.c: of the tables of watched keys; 0 = not yet drawn */
	LIST_HEAD(monitors, caller) monitors;
	struct interpreter *lua;	 /* script.c; owned, NULL = not yet made */
	uint64_t scripts_evicted;	 /* before the last SCRIPT FLUSH */
	struct functions *functions;	 /* function.c; owned, NULL = not yet made */
	struct script_run *script;	 /* that is being executed; NULL = none */
	struct examination *examination; /* doctor.c; owned, NULL = not yet made */
	struct slowlog slowlog;
	struct latency_series latency[LATENCY_EVENTS];
	struct xkv_tcp_stats driver_base; /* driver.c: counters at CONFIG RESETSTAT */
	uint64_t driver_requests;	  /* the same, of all xkvds */
};

static inline struct shared *shared_of(const struct server *s)
{
	return (struct shared *)s->commands;
}

/*
 * Most commands are one operation of the store and a reply with its result.  They queue the
 * operation, and `end` replies later, so that the operations of a pipeline are run together.  `op`
 * is copied; its pointers must be to arguments of the command.
 */
void command_queue(struct caller *c, const struct store_op *op, command_end_fn *end,
		   unsigned int note);
/* Runs the queue.  Needed before anything else replies or uses the store. */
void commands_flush(struct caller *c);
/* reply_to() for a reply at once, after those of queued operations. */
struct reply *reply_now(struct caller *c);

/* databases.c: what SELECT does, for the next commands of the client. */
void client_select(struct caller *c, unsigned int db);
/* Makes all SWAPDBs since the last call take effect at once, after a grace period. */
void databases_swapped(struct caller *c);

/* --- long commands --- */

/*
 * A command that may take long is executed in slices: `step` does one in each turn of its client,
 * and returns whether the command is done.  Until then it is unfinished (net/executor.h).
 */
typedef bool command_step_fn(struct caller *c);
/* Queues a command's operation on the key at `arg`, which was its argument `index`. */
typedef void command_key_fn(struct caller *c, const struct resp_arg *arg, unsigned int index,
			    unsigned int argc);

/* The state of a command about several keys, or of an unfinished one; one per client. */
struct progress {
	int64_t tally;	       /* of a command about several keys: how many count so far */
	int failure;	       /* its first error */
	command_step_fn *step; /* NULL = no command is unfinished */
	command_key_fn *key;   /* of a command about many keys, with `stride` arguments each */
	unsigned int stride;
	bool tracks;		  /* each key is noted before it is read: tracking_read() */
	unsigned int checked, at; /* arguments before these were checked, and queued or done */
	enum topic_kind topics;	  /* of SUBSCRIBE and its relatives */
	bool subscribes;
	uint64_t cursor;   /* of a walk over the store */
	uint8_t stored;	   /* store_selected() when it began: SWAPDB does not change its keys */
	bool all;	   /* FLUSHALL: the keys of all databases */
	uint64_t ns;	   /* time that it has taken so far */
	uint64_t saves;	   /* of SAVE: those that had ended before */
	uint64_t position; /* of WAITAOF: in the change feed, that the log has to reach */
	uint64_t end_ns;   /* monotonic: when its wait ends, 0 = never */
	enum { NOT_UNBLOCKED, UNBLOCKED_TIMEOUT, UNBLOCKED_ERROR } unblocked;
	struct found *found; /* what it found; owned */
	struct lcs *lcs;     /* of LCS; owned */
};

STAILQ_HEAD(held_line_list, held_line);

/* monitor.c: lines that wait for the end of a try of a transaction. */
struct held_lines {
	struct held_line_list list; /* owned */
	size_t bytes;
};

/* multi.c: what a client has sent since MULTI, and watches; one per client. */
struct transaction {
	struct queued_list queued;		   /* owned */
	TAILQ_HEAD(watched_list, watched) watched; /* owned; initialized with the first one */
	struct hashtable watched_keys;		   /* the same */
	unsigned int watched_count;
	size_t watched_bytes;	  /* that they take */
	unsigned int swaps;	  /* places of SWAPDB among them */
	unsigned int keys;	  /* of its commands; a queued one has at least one */
	bool failed;		  /* a command was refused: EXEC will not execute the others */
	bool writes;		  /* one of the commands does */
	bool alone;		  /* one of the commands keeps EXEC out of a group */
	bool apart;		  /* one of the commands is no part of a transaction */
	bool pause_stops;	  /* CLIENT PAUSE WRITE holds back one of the commands */
	bool lost;		  /* EXEC must fail: see transaction_found(), transactions_swap() */
	struct held_lines *lines; /* of a try that may be repeated; else NULL */
	bool runs;		  /* commands are being executed together */
	bool in_exec;		  /* the reply of EXEC is not yet complete */
	bool killed;		  /* by SCRIPT KILL, a script of it: it is not tried again */
	bool may_wait;		  /* the command may start again: room_begin() */
	uint64_t room_ns;	  /* monotonic: since when it has waited for room, 0 = it has not */
	bool has_slot, crosses;	  /* in an emulated cluster: has `slot`; keys have several */
	unsigned int slot;
};

/* What is kept for each caller. */
struct client_state {
	struct progress progress;
	struct transaction transaction;
	struct tracking tracking;
};

static inline struct progress *progress_of(struct caller *c)
{
	return &((struct client_state *)c->commands)->progress;
}

static inline struct transaction *transaction_of(struct caller *c)
{
	return &((struct client_state *)c->commands)->transaction;
}

static inline struct tracking *tracking_of(struct caller *c)
{
	return &((struct client_state *)c->commands)->tracking;
}

/* Makes the command that is being executed an unfinished one. */
struct progress *long_begin(struct caller *c, command_step_fn *step);
/* Does another slice of the unfinished command. */
void long_continue(struct caller *c);
/* Forgets the unfinished command, if there is one. */
void long_end(struct caller *c);

/*
 * Calls `key` for each of the keys from argv[1] on, with `stride` arguments each, after all of them
 * were checked: all at one point in time, unless there are more keys than a transaction may have,
 * or the replies are so long that they should be made as the client reads them.
 */
void command_keys(struct caller *c, unsigned int argc, const struct resp_arg *argv,
		  unsigned int stride, command_key_fn *key);

/* --- transactions --- */

/*
 * Executes `fn` so that all changes that it makes take effect at once, if it returns true; if it
 * returns false, none.  Called again, whatever it has returned, if another client changed a key
 * that it has read; only the last replies count.  Inside of EXEC it is part of that transaction,
 * and must return true once it has changed anything.  0, or an error: of store_txn_commit(), or if
 * `fn` returns one, which it must not inside of EXEC.  Then nothing was replied, and nothing
 * changed.  REPLIED: the same, and the command starts again: room_wait().
 */
typedef int command_atomic_fn(struct caller *c, void *arg);
int command_atomic(struct caller *c, command_atomic_fn *fn, void *arg);
/* The same; the error is replied. */
void command_run_atomic(struct caller *c, command_atomic_fn *fn, void *arg);

/* Executes a command to its end for another one, EXEC or a script. */
void command_call(struct caller *c, const struct command *cmd, unsigned int argc,
		  const struct resp_arg *argv);

/* After MULTI: queues the command, or refuses it, and replies.  False: it is to be executed. */
bool transaction_queues(struct caller *c, const struct command *cmd, unsigned int argc,
			const struct resp_arg *argv);
/* Does the command change keys?  EXEC does if one of the queued commands does. */
bool command_writes(struct caller *c, const struct command *cmd);
/* Forgets queued commands and watched keys. */
void transaction_end(struct caller *c);
/*
 * A command of the client has found or created this key of database `db`, or failed after that.  If
 * the key was missing when it was watched, EXEC must fail even if it is missing again: versions do
 * not show that it existed in between.
 */
void transaction_found(struct caller *c, unsigned int db, const void *key, size_t key_len);
/*
 * SWAPDB is about to exchange two databases: this changes watched keys that exist in one of them.
 * After a second SWAPDB their versions would not show that.
 */
void transactions_swap(struct caller *c, unsigned int a, unsigned int b);
size_t transaction_memory(const struct transaction *t);

/* Executes a command for EXEC; *now: monotonic_ns() when it begins, then when it has ended. */
void queued_run(struct caller *c, const struct queued *q, uint64_t *now);
/*
 * Returns the first key of each command, up to `room`, for store_prefetch(): a command with several
 * keys prefetches them itself.  Returns how many.
 */
unsigned int queued_keys(const struct queued_list *queued, struct store_op *out, unsigned int room);
void queued_free(struct queued_list *queued);
/* Moves the commands out of the transaction to another owner. */
void queued_forget(struct transaction *t);

/*
 * Composes the following replies separately, because they may be dropped; returns the reply so far,
 * for compose_end(), which returns the part.
 */
struct reply compose_begin(struct caller *c, struct error_counts *errors);
struct reply compose_end(struct caller *c, const struct reply *outer);

/* --- waiting for room (room.c) --- */

/* From here to the end of the command, commits of the caller's command may wait. */
void room_begin(struct caller *c);
/* The rest of the command can no longer be started again. */
void room_end(struct caller *c);
/* The command has to wait, and is started again later: it ends now, without an effect. */
void room_wait(struct caller *c);
/* Before it is started again: does it go on waiting? */
bool room_is_awaited(struct caller *c);
/* The command has ended, or will not be started again. */
void room_done(struct caller *c);

/* --- group commit (group.c) --- */

/*
 * Takes the command if it is an EXEC that can wait for others; commands_flush() executes it.  If
 * false, it is to be executed alone.
 */
bool group_takes(struct caller *c, const struct command *cmd);
/* Executes the waiting EXECs; there is at least one. */
void group_run(struct worker *w);
/* Replies to MULTI, and to a command that is queued, after those of waiting EXECs. */
void group_reply_multi(struct caller *c);
void group_reply_queued(struct caller *c);

/* "get" or "config|get", in `text` or static. */
const char *command_full_name(const struct command *cmd, char text[COMMAND_NAME_MAX]);
/* A number less than COMMAND_IDS; and back, NULL above the last one. */
unsigned int command_id(const struct command *cmd);
const struct command *command_by_id(unsigned int id);

/* The command or subcommand of a call that begins at argv[0]; NULL if there is none. */
const struct command *command_find(unsigned int argc, const struct resp_arg *argv);
bool command_arity_ok(const struct command *cmd, unsigned int argc);

/* script.c: the error of commands while a script of another client takes long. */
const char *script_busy(const struct caller *c);

/* getkeys.c: what a command does with a key, in Redis' words, as a set. */
void reply_key_use(struct reply *r, unsigned int use);

/* Do its keys follow their number?  Those are the commands that run scripts. */
static inline bool command_counts_keys(const struct command *cmd)
{
	return !cmd->first && cmd->first_use;
}

/* Does it read keys that are made from patterns: SORT with BY or GET? */
bool command_reads_patterns(const struct command *cmd, unsigned int argc,
			    const struct resp_arg *argv);

/*
 * Calls fn for each key, argument `at`, with enum key_use, until it returns false.  Returns whether
 * it never did.
 */
typedef bool command_key_use_fn(void *arg, unsigned int at, unsigned int use);
bool command_each_key(const struct command *cmd, unsigned int argc, const struct resp_arg *argv,
		      command_key_use_fn *fn, void *arg);

/* docs.c: what COMMAND DOCS says of a command, and of its subcommands. */
void reply_docs(struct reply *r, const struct command *cmd);
/* Replies that a subcommand of `command` does not take so many arguments. */
void reply_subcommand_usage(struct caller *c, const char *command,
			    const struct resp_arg *subcommand);
/* Its arguments as HELP shows them, each behind a blank, in `text`. */
const char *command_syntax(const struct command *cmd, char *text, size_t size);

/* refused.c: why a command of Redis that is not in the table is missing; NULL if not known. */
const char *missing_reason(const struct resp_arg *name);

/* cluster.c: the hash slot of a key, as in Redis: of what is between { and }, if there is any. */
#define CLUSTER_SLOTS 16384
unsigned int cluster_slot(const char *key, size_t len);
/* getkeys.c: are all keys of a call in one slot? */
bool command_in_one_slot(const struct command *cmd, unsigned int argc, const struct resp_arg *argv);
/* keyspace.c: walk over the store, and reply how many keys are in a slot, or some of them. */
void slot_count_keys(struct caller *c, unsigned int slot);
void slot_list_keys(struct caller *c, unsigned int slot, uint64_t most);

/* admin.c: a client as CLIENT INFO has it, malloc()ed, its names cut at `most`; NULL: no memory. */
char *client_info(struct caller *c, int most);

/* wait.c: CLIENT UNBLOCK of a client that waits in WAITAOF or EVENTS; false: it does not. */
bool command_unblock(struct caller *c, bool error);

/* slowlog.c: is an argument a password, which must not be shown? */
bool command_arg_is_secret(const struct command *cmd, const struct resp_arg *argv, unsigned int i);

/* monitor.c: tells the clients that monitor of a command that was executed. */
void monitor_tell(struct caller *c, unsigned int db, const struct command *cmd, unsigned int argc,
		  const struct resp_arg *argv);
/* Tells them of the commands of a try that is over, or of nothing, if it will be repeated. */
void monitor_release(struct caller *c, bool send);
/* Ends MONITOR; no effect if the client does not monitor. */
void monitor_end(struct caller *c);

/*
 * client_control.c: does CLIENT PAUSE WRITE hold back such a command?  As in Redis also PUBLISH,
 * and scripts that may write.
 */
bool client_pause_stops(struct caller *c, const struct command *cmd, const struct resp_arg *argv);
/* Does CLIENT PAUSE hold this command back? */
bool client_postpones(struct caller *c, const struct command *cmd, const struct resp_arg *argv);
/* CLIENT REPLY SKIP: around a command; the end has no effect while the command is unfinished. */
void client_skip_begin(struct caller *c);
void client_skip_end(struct caller *c);

/* measure.c: a command that was executed by another one, for `ns`. */
void measure_inner(struct caller *c, const struct command *cmd, uint64_t ns, bool failed);
/* Of all workers; and sections of INFO. */
struct metrics;
struct histogram;
void command_stats_sum(const struct server *s, unsigned int id, struct command_stats *sum);
void commandstats_section(struct metrics *m, struct server *s);
/* Operations over UDP, where a metric has all commands. */
void commandstats_udp(struct metrics *m, uint64_t driver, uint64_t xkvd);
void latencystats_section(struct metrics *m, struct server *s);
void errorstats_section(struct metrics *m, struct server *s);
struct histogram histogram_of(uint64_t count, uint64_t ns, const uint64_t times[TIME_BUCKETS]);
/* slowlog.c, latency.c: figures of /metrics only. */
void slowlog_metrics(struct metrics *m, struct server *s);
void latency_metrics(struct metrics *m, struct server *s);

/*
 * A reply of many lines: a stream to write it to, NULL if an error was replied instead; and its
 * end, which replies with the text and frees it.
 */
FILE *reply_collect(struct caller *c, char **text, size_t *len);
void reply_collected(struct caller *c, FILE *file, char **text, size_t *len);

/* State of an optimistic operation that other clients may force to repeat; zero at first. */
struct tries {
	unsigned int count;
	uint64_t end_ns;   /* monotonic: set after the first try */
	unsigned int keys; /* that the last try has used, if they are many */
	bool holds;	   /* clients over UDP may be held back: see store_hold_writes() */
};

/* May it be tried, or tried again?  Counts the try. */
bool tries_left(struct caller *c, struct tries *t);
/* After the last one. */
void tries_end(struct caller *c, struct tries *t);

/*
 * Read, modify, write: reads the key (its value only if `value`), calls `decide`, and writes what
 * it decides if the entry has not changed since it was read; else repeats all of it.
 *
 * `decide` fills in opcode, value and expiry of the write and returns 1.  If it returns 0 or an
 * error, nothing is written, and that is returned.  It may be called several times; its arguments
 * are valid during the call only.  Not called if there is no key: -ENOENT is returned.  Otherwise
 * returns 0, or an error of the store.
 */
typedef int command_update_fn(struct caller *c, void *arg, const struct store_entry *e,
			      struct store_op *write);
int command_update(struct caller *c, const struct resp_arg *key, bool value,
		   command_update_fn *decide, void *arg);

/*
 * An error of command_update_fn and command_change_fn for which the function has replied; of
 * command_update(), also that the command begins again: command_run_alone().
 */
#define REPLIED (-EALREADY)

/*
 * Ends a command that has had no effect yet and conflicts while other workers run; it starts again
 * in a later turn, alone.  False: it is alone already.
 */
bool command_run_alone(struct caller *c);
/* Ends the command; when it is resumed, it starts again with all locks. */
void command_run_later(struct caller *c);
/* Was it ended so? */
bool command_runs_later(struct caller *c);

/* A copy of a key's value, to be changed. */
struct value {
	unsigned char *bytes;	/* not NULL; owned by command_change() */
	size_t len, room, most; /* `most`: proto-max-bulk-len */
	bool exists;		/* whether the key exists; if not, the value is empty */
	uint8_t cause;		/* set by `change`: enum cause of what it does, 0 = SET or DEL */
};

enum change_outcome {
	CHANGE_NOTHING,
	CHANGE_VALUE,	/* writes the value; the expiry stays */
	CHANGE_REPLACE, /* writes the value, without expiry */
	CHANGE_DELETE,
};

/*
 * Makes the value `len` bytes long; further bytes are 0.  0, -EMSGSIZE (more than `most`) or
 * -ENOMEM.
 */
int value_resize(struct value *v, size_t len);

/*
 * Reads the key, if it exists, calls `change` with a copy of the value, and does what it returns if
 * the entry has not changed since it was read; else repeats all of it.  `change` returns enum
 * change_outcome or an error, and may use the store.  On false the error was replied.
 */
typedef int command_change_fn(struct caller *c, void *arg, struct value *v);
bool command_change(struct caller *c, const struct resp_arg *key, command_change_fn *change,
		    void *arg);

/* As store_touch() and store_do(), in the client's database; notes what they find or make. */
int command_touch(struct caller *c, const struct resp_arg *key, bool uses, struct store_entry *e);
int command_store(struct caller *c, const struct store_op *op);

/*
 * Reads a key, now; e->value is NULL if it does not exist.  Valid until the store is used again.
 * On false the error was replied.
 */
bool command_read(struct caller *c, const struct resp_arg *key, struct store_entry *e);
/* The same of a part of the value, as GETRANGE names it. */
bool command_read_part(struct caller *c, const struct resp_arg *key, int64_t first, int64_t last,
		       struct store_entry *e);
/* Replies the value of an entry that was just read; a huge one is not copied. */
void command_reply_value(struct caller *c, const struct store_entry *e);

/* An operation that sets the expiry of a key (Unix ms, 0 = never); one in the past deletes it. */
struct store_op expiry_op(struct caller *c, const struct resp_arg *key, uint64_t expire_ms);

/* Replies with the text for an error of the store. */
void reply_store_error(struct caller *c, int error);
/* The error for a write while writes are refused; it stays until the thread's next call. */
const char *write_refusal(const struct server *s);

/* Reply 1 or 0, and the value or null. */
command_end_fn end_yes_no, end_value;

/* Check an argument; on false the error was replied. */
bool check_key(struct caller *c, const struct resp_arg *key);
bool check_integer(struct caller *c, const struct resp_arg *arg, int64_t *out);
/* Reads the number of a database; `error` is the reply if it is not a number, or NULL. */
bool check_database(struct caller *c, const struct resp_arg *arg, const char *error,
		    unsigned int *out);

/* Whether an argument is this word, in any case. */
static inline bool arg_is(const struct resp_arg *arg, const char *word)
{
	return text_is(arg->ptr, arg->len, word);
}

/* Bytes of an argument to be shown in an error: up to a NUL, as in Redis, and `most`. */
static inline int arg_shown(const struct resp_arg *arg, size_t most)
{
	return (int)strnlen(arg->ptr, arg->len < most ? arg->len : most);
}

/*
 * Checks an offset in bits, or, if `unit` is not 0, "#" and one in units of so many bits.  On false
 * the error was replied.
 */
bool check_bit_offset(struct caller *c, const struct resp_arg *arg, unsigned int unit,
		      uint64_t *out);

/* --- doctor.c --- */

/* Waits for its thread, if there is one.  NULL is taken. */
void examination_free(struct examination *e);

/* INFO (info.c): the text of the named sections, all of the default ones if none is; malloc()ed. */
char *info_text(struct server *s, unsigned int argc, const struct resp_arg *argv, size_t *len);
/* Bytes, as INFO and MEMORY report them. */
struct memory_figures {
	uint64_t used, peak;	  /* of the store */
	uint64_t empty, data;	  /* of `used`: what an empty store takes, and the rest */
	uint64_t rss;		  /* of the process; includes the store, which it maps */
	uint64_t heap, heap_used; /* of the daemon's allocator */
};
struct memory_figures memory_figures(struct server *s);
/* Samples memory, for its peak, and operations, for their rate; to be called every second or so. */
void info_sample(struct server *s);

/* The keys that a walk has found (keyspace.c); both take NULL. */
void found_free(struct found *f);
size_t found_memory(const struct found *f);

/* LCS (range.c); both take NULL. */
void lcs_free(struct lcs *l);
size_t lcs_memory(const struct lcs *l);

/*
 * driver.c: has a command of this caller no effect but on its keys and the reply, so that it may be
 * executed anywhere?
 */
bool caller_is_plain(struct caller *c);
/* The commands that the driver may answer for the client in its present state. */
struct flow_rights driver_rights(struct caller *c);
/* From the next request on, xkvd answers all clients, until each has sent a command. */
void driver_take_back(struct server *s);
/* Before anything else of driver.c. */
void driver_prepare(void);
/* CONFIG RESETSTAT. */
void driver_reset(struct server *s);
/* Commands that the driver has answered since, which the store has counted, too. */
uint64_t driver_requests(const struct server *s);
/*
 * Since xkvd's start, or CONFIG RESETSTAT: the calls of the command with this number, and the
 * errors of all, which have the code ERR.
 */
struct xkv_tcp_calls driver_calls(const struct server *s, unsigned int id);
uint64_t driver_errors(const struct server *s);
/* The last command that it has answered for a client after that time; NULL = none. */
const struct command *driver_last(const struct server *s, const struct flow *f, double since);

/* object.c: DEBUG OBJECT */
void debug_object(struct caller *c, const struct resp_arg *key);

#endif

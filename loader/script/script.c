/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * EVAL, EVALSHA, SCRIPT.  A script is a transaction of the store: it sees its own writes, they take
 * effect together when it ends, and if it fails none does.  If somebody else has changed a key that
 * it had read, it is executed again.
 */
#include <errno.h>
#include <string.h>

#include "database/database.h"
#include "script.h"
#include "store/txn.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/text.h"

static const char unkillable[] =
	"UNKILLABLE Sorry the script already executed write commands against the dataset. You can "
	"either wait the script termination or kill the server in a hard way using the SHUTDOWN "
	"NOSAVE command.";

/* A run of a script, and the interpreter for it. */
struct execution {
	struct interpreter *lua;
	struct script_run *run;
	const struct resp_arg *text; /* compiled first if the script is not known; NULL: it is */
	unsigned int flags;	     /* enum script_flags */
	bool read_only;		     /* run by EVAL_RO, EVALSHA_RO or FCALL_RO */
};

/* The interpreter of scripts, made when it is needed; NULL, and the error was replied. */
static struct interpreter *interpreter(struct caller *c)
{
	struct shared *shared = shared_of(c->srv);

	if (!shared->lua)
		shared->lua = interpreter_new();
	if (!shared->lua)
		reply_error(reply_to(c), "ERR no memory for the Lua interpreter");
	return shared->lua;
}

/* --- others, while a script takes long --- */

const char *script_busy(const struct caller *c)
{
	return shared_of(c->srv)->script->function
		       ? "BUSY Redis is busy running a script. You can only call FUNCTION KILL or "
			 "SHUTDOWN NOSAVE."
		       : "BUSY Redis is busy running a script. You can only call SCRIPT KILL or "
			 "SHUTDOWN NOSAVE.";
}

/* Serves other clients.  Their commands set up the store context for themselves. */
static void serve_others(struct caller *c)
{
	struct measured command = measure_suspend(c);
	uint8_t db = store_selected(c->worker->ctx);
	unsigned int holds = pubsub_suspend(c->srv);

	store_hold_writes(c->srv->store, false, 0); /* not for so long */
	worker_yield(c);
	pubsub_resume(c->srv, holds);
	store_reselect(c->worker->ctx, db);
	store_no_touch(c->worker->ctx, c->session.no_touch);
	store_origin(c->worker->ctx, tracking_of(c)->origin);
	measure_resume(c, &command);
}

const char *script_yield(struct script_run *run)
{
	struct caller *c = run->caller;
	uint64_t now = monotonic_ns();

	if (c && store_txn_error(c->worker->ctx) == -ECANCELED)
		return "BUSY what the script has read has changed"; /* not replied: it runs again */
	if (run->end_ns && now >= run->end_ns)
		run->ended = "ERR FUNCTION LOAD timeout";
	if (run->ended || now < run->busy_ns)
		return run->ended;
	if (!run->slow)
		log_repeated("slow script: %s KILL ends it. It is %s",
			     run->function ? "FUNCTION" : "SCRIPT", run->name);
	run->slow = true;
	if (!c->srv->stopping)
		serve_others(c);
	if (c->srv->stopping)
		run->ended = "ERR the server is shutting down";
	return run->ended;
}

bool script_clean_up(struct script_run *run)
{
	struct caller *c = run->caller;

	if (c && run->slow && !c->srv->stopping)
		serve_others(c);
	return !c || !c->srv->stopping;
}

bool script_count_keys(struct caller *c, unsigned int argc, int64_t keys, struct script_run *run)
{
	if (keys > (int64_t)argc - 3) {
		reply_error(reply_to(c), "ERR Number of keys can't be greater than number of args");
		return false;
	}
	if (keys < 0) {
		reply_error(reply_to(c), "ERR Number of keys can't be negative");
		return false;
	}
	run->keys = (unsigned int)keys;
	run->args = argc - 3 - run->keys;
	return true;
}

static bool keys_and_args(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			  struct script_run *run)
{
	int64_t keys;

	*run = (struct script_run){ .argv = argv + 3 };
	return check_integer(c, &argv[2], &keys) && script_count_keys(c, argc, keys, run);
}

/* --- the first line: #!lua flags=no-writes,... --- */

const char *const script_flag_names[SCRIPT_FLAGS] = { "no-writes", "allow-oom", "allow-stale",
						      "no-cluster", "allow-cross-slot-keys" };

/* Adds flags that are named, with commas between them.  False: one is unknown, in `error`. */
static bool take_flags(char *names, size_t len, unsigned int *flags, char *error, size_t error_len)
{
	char *end = names + len, *comma;
	unsigned int i;

	for (bool more = len; more; names = comma + 1) {
		comma = memchr(names, ',', (size_t)(end - names));
		more = comma;
		comma = comma ? comma : end;
		for (i = 0; i < SCRIPT_FLAGS; i++)
			if (strlen(script_flag_names[i]) == (size_t)(comma - names) &&
			    memcmp(script_flag_names[i], names, (size_t)(comma - names)) == 0)
				break;
		if (i == SCRIPT_FLAGS) {
			snprintf(error, error_len, "ERR Unexpected flag in script shebang: %.*s",
				 (int)(comma - names), names);
			return false;
		}
		*flags |= 1U << i;
	}
	return true;
}

/* Reads the words of a first line, which are changed.  False, and the reason is in `error`. */
static bool read_words(char *at, char *end, unsigned int *flags, char *error, size_t error_len)
{
	size_t len;
	char *word;
	int more = text_next_word(&at, end, &word, &len);

	if (more > 0 && (len != 5 || memcmp(word, "#!lua", len) != 0)) {
		snprintf(error, error_len, "ERR Unexpected engine in script shebang: %.*s",
			 (int)len, word);
		return false;
	}
	while (more > 0 && (more = text_next_word(&at, end, &word, &len)) > 0) {
		if (len < 6 || memcmp(word, "flags=", 6) != 0) {
			snprintf(error, error_len, "ERR Unknown lua shebang option: %.*s", (int)len,
				 word);
			return false;
		}
		if (!take_flags(word + 6, len - 6, flags, error, error_len))
			return false;
	}
	if (more < 0)
		snprintf(error, error_len, "ERR Invalid engine in script shebang");
	return !more;
}

/* Removes a first line that begins with #!, but not its newline: errors have line numbers. */
static bool take_shebang(struct resp_arg *text, unsigned int *flags, char *error, size_t error_len)
{
	char line[512], *end;
	size_t len;

	*flags = 0;
	if (text->len < 2 || memcmp(text->ptr, "#!", 2) != 0)
		return true;
	end = memchr(text->ptr, '\n', text->len);
	len = end ? (size_t)(end - text->ptr) : text->len;
	if (!end || len >= sizeof(line) || memchr(text->ptr, '\0', len)) {
		snprintf(error, error_len, "ERR Invalid script shebang");
		return false;
	}
	memcpy(line, text->ptr, len);
	*flags = SCRIPT_HAS_FLAGS;
	*text = (struct resp_arg){ .ptr = end, .len = text->len - len };
	return read_words(line, line + len, flags, error, error_len);
}

/* --- running --- */

/* Compiles the script, unless it is known.  On false the error was replied. */
static bool script_load(struct caller *c, struct execution *e, bool keep)
{
	struct resp_arg text = *e->text;
	char error[1024];

	if (interpreter_knows(e->lua, e->run->name, &e->flags) ||
	    (take_shebang(&text, &e->flags, error, sizeof(error)) &&
	     interpreter_load(e->lua, e->run, &text, e->flags, keep, error, sizeof(error))))
		return true;
	reply_error(reply_to(c), "%s", error);
	return false;
}

/* Why a script with such flags is not executed; NULL = it is. */
static const char *refused(const struct caller *c, unsigned int flags, bool read_only)
{
	if (!(flags & SCRIPT_HAS_FLAGS))
		return NULL;
	if (flags & SCRIPT_NO_CLUSTER && c->srv->cfg->cluster)
		return "ERR Can not run script on cluster, 'no-cluster' flag is set.";
	if (flags & SCRIPT_NO_WRITES)
		return NULL;
	if (c->srv->writes_refused)
		return write_refusal(c->srv);
	if (read_only)
		return "ERR Can not execute a script with write flag using *_ro command.";
	return NULL;
}

static int script_execute(struct caller *c, void *arg)
{
	struct execution *e = arg;
	const char *why = e->run->ended; /* not NULL: ended in an earlier try */

	if (!why && e->text && !script_load(c, e, false))
		return false;
	if (!why)
		why = refused(c, e->flags, e->read_only);
	if (why) {
		reply_error(reply_to(c), "%s", why);
		return false;
	}
	e->run->read_only = e->read_only || e->flags & SCRIPT_NO_WRITES;
	e->run->wrote = false;
	return interpreter_run(e->lua, e->run);
}

/* Calls `fn` as a transaction; if it takes long, others are served. */
static void run_slowly(struct caller *c, command_atomic_fn *fn, struct execution *e)
{
	struct script_run *run = e->run;
	uint64_t slice_end = c->worker->slice_end;
	unsigned int db = c->session.db;
	uint64_t busy_ns = (uint64_t)c->srv->cfg->busy_threshold * 1000000;
	struct shared *shared = shared_of(c->srv);

	run->caller = c;
	run->start_ns = monotonic_ns();
	run->busy_ns = busy_ns ? run->start_ns + busy_ns : UINT64_MAX;
	c->worker->slice_end = UINT64_MAX; /* long commands are not done in slices */
	shared->script = run;
	command_run_atomic(c, fn, e);
	shared->script = NULL;
	client_select(c, db); /* a script's SELECT is for the script */
	c->worker->slice_end = slice_end;
}

void script_run(struct caller *c, struct interpreter *lua, struct script_run *run,
		unsigned int flags, bool read_only)
{
	run_slowly(c, script_execute, &(struct execution){ lua, run, NULL, flags, read_only });
}

static void eval(struct caller *c, unsigned int argc, const struct resp_arg *argv, bool read_only)
{
	char sha[SCRIPT_SHA_TEXT];
	struct interpreter *lua;
	struct script_run run;

	if (!keys_and_args(c, argc, argv, &run))
		return;
	lua = interpreter(c);
	if (!lua)
		return;
	interpreter_sha(lua, &argv[1], sha);
	run.name = sha;
	run_slowly(c, script_execute, &(struct execution){ lua, &run, &argv[1], 0, read_only });
}

void cmd_eval(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	eval(c, argc, argv, false);
}

void cmd_eval_ro(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	eval(c, argc, argv, true);
}

/* Reads a SHA in upper or lower case.  False: the argument is none. */
static bool take_sha(const struct resp_arg *arg, char sha[SCRIPT_SHA_TEXT])
{
	if (arg->len != SCRIPT_SHA_TEXT - 1)
		return false;
	for (size_t i = 0; i < arg->len; i++) {
		char c = arg->ptr[i];

		sha[i] = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
	}
	sha[arg->len] = '\0';
	return true;
}

static void evalsha(struct caller *c, unsigned int argc, const struct resp_arg *argv,
		    bool read_only)
{
	char sha[SCRIPT_SHA_TEXT];
	struct interpreter *lua;
	struct script_run run;
	unsigned int flags;

	if (!keys_and_args(c, argc, argv, &run))
		return;
	lua = interpreter(c);
	if (!lua)
		return;
	run.name = sha;
	if (!take_sha(&argv[1], sha) || !interpreter_knows(lua, sha, &flags))
		reply_error(reply_to(c), "NOSCRIPT No matching script. Please use EVAL.");
	else
		script_run(c, lua, &run, flags, read_only);
}

void cmd_evalsha(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	evalsha(c, argc, argv, false);
}

void cmd_evalsha_ro(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	evalsha(c, argc, argv, true);
}

static unsigned int flags_of_call(struct caller *c, const struct command *cmd,
				  const struct resp_arg *argv)
{
	struct interpreter *lua = shared_of(c->srv)->lua;
	char sha[SCRIPT_SHA_TEXT], error[128];
	struct resp_arg text = argv[1];
	unsigned int flags = 0;

	if (cmd->fn == cmd_fcall || cmd->fn == cmd_fcall_ro)
		return function_flags(c, &text);
	if (cmd->fn == cmd_eval || cmd->fn == cmd_eval_ro)
		return take_shebang(&text, &flags, error, sizeof(error)) ? flags : 0;
	return lua && take_sha(&text, sha) && interpreter_knows(lua, sha, &flags) ? flags : 0;
}

bool script_may_write(struct caller *c, const struct command *cmd, const struct resp_arg *argv)
{
	unsigned int flags = flags_of_call(c, cmd, argv);

	if (flags & SCRIPT_HAS_FLAGS)
		return !(flags & SCRIPT_NO_WRITES);
	return cmd->fn == cmd_eval || cmd->fn == cmd_evalsha || cmd->fn == cmd_fcall;
}

/* --- SCRIPT --- */

static int load_and_keep(struct caller *c, void *arg)
{
	struct execution *e = arg;

	if (!script_load(c, e, true))
		return false;
	interpreter_keep(e->lua, e->run->name);
	reply_text(reply_to(c), e->run->name);
	return true;
}

void cmd_script_load(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct interpreter *lua = interpreter(c);
	char sha[SCRIPT_SHA_TEXT];
	struct script_run run = { .name = sha };

	if (!lua)
		return;
	interpreter_sha(lua, &argv[2], sha);
	run_slowly(c, load_and_keep, &(struct execution){ lua, &run, &argv[2], 0, false });
}

void cmd_script_exists(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct interpreter *lua = interpreter(c);
	char sha[SCRIPT_SHA_TEXT];

	if (!lua)
		return;
	reply_array(reply_to(c), argc - 2);
	for (unsigned int i = 2; i < argc; i++)
		reply_int(reply_to(c),
			  take_sha(&argv[i], sha) && interpreter_knows(lua, sha, NULL));
}

void cmd_script_flush(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct shared *shared = shared_of(c->srv);

	if (argc > 3 || (argc == 3 && !arg_is(&argv[2], "sync") && !arg_is(&argv[2], "async"))) {
		reply_error(reply_to(c), "ERR SCRIPT FLUSH only support SYNC|ASYNC option");
		return;
	}
	shared->scripts_evicted += interpreter_evicted(shared->lua);
	interpreter_free(shared->lua);
	shared->lua = NULL;
	reply_ok(reply_to(c));
}

void script_kill(struct caller *c, bool function)
{
	struct script_run *run = shared_of(c->srv)->script;

	if (!run) {
		reply_error(reply_to(c), "NOTBUSY No scripts in execution right now.");
	} else if (run->wrote && transaction_of(run->caller)->in_exec) {
		/* EXEC would commit the commands before the script with a part of what it wrote */
		reply_error(reply_to(c), "%s", unkillable);
	} else if (function != (run->function != 0)) {
		reply_error(reply_to(c), "%s", script_busy(c));
	} else {
		run->ended = "ERR Script killed by user with SCRIPT KILL...";
		transaction_of(run->caller)->killed = transaction_of(run->caller)->in_exec;
		reply_ok(reply_to(c));
	}
}

void cmd_script_kill(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	script_kill(c, false);
}

void cmd_script_debug(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (arg_is(&argv[2], "no"))
		reply_ok(reply_to(c));
	else if (arg_is(&argv[2], "yes") || arg_is(&argv[2], "sync"))
		reply_error(reply_to(c), "ERR the debugger of scripts is not supported");
	else
		reply_error(reply_to(c), "ERR Use SCRIPT DEBUG YES/SYNC/NO");
}

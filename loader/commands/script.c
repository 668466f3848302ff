/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * EVAL, EVALSHA, SCRIPT.  A script is a transaction of the store: it sees its own writes, they take
 * effect together when it ends, and if it fails none does.  If somebody else has changed a key that
 * it had read, it is executed again.
 */
#include <string.h>

#include "impl.h"
#include "interpreter.h"
#include "util/clock.h"

struct eval {
	char sha[SCRIPT_SHA_TEXT];
	struct script_run run;
};

/* The worker's interpreter, made when it is needed; NULL, and the error was replied. */
static struct interpreter *interpreter(struct client *c)
{
	struct queue *q = queue_of(c);

	if (!q->lua)
		q->lua = interpreter_new();
	if (!q->lua)
		reply_error(reply_to(c), "ERR no memory for the Lua interpreter");
	return q->lua;
}

static bool execute(struct client *c, void *arg)
{
	const struct eval *e = arg;

	return interpreter_run(queue_of(c)->lua, &e->run);
}

static bool keys_and_args(struct client *c, unsigned int argc, const struct resp_arg *argv,
			  struct script_run *run)
{
	int64_t keys;

	if (!check_integer(c, &argv[2], &keys))
		return false;
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
	run->argv = argv + 3;
	return true;
}

/* Compiles the script, unless it is known.  On false the error was replied. */
static bool load(struct client *c, struct interpreter *lua, const char *sha,
		 const struct resp_arg *text)
{
	char error[512];

	if (interpreter_knows(lua, sha) ||
	    interpreter_load(lua, sha, text->ptr, text->len, error, sizeof(error)))
		return true;
	reply_error(reply_to(c), "%s", error);
	return false;
}

static void run(struct client *c, struct eval *e, bool read_only)
{
	uint64_t slice_end = c->worker->slice_end;
	unsigned int db = c->session.db;
	uint64_t max_ns = (uint64_t)c->srv->cfg->busy_threshold * 1000000;

	e->run.client = c;
	e->run.sha = e->sha;
	e->run.read_only = read_only;
	e->run.end_ns = max_ns ? monotonic_ns() + max_ns : UINT64_MAX;
	c->worker->slice_end = UINT64_MAX; /* long commands are not done in slices */
	command_run_atomic(c, execute, e);
	client_select(c, db); /* a script's SELECT is for the script */
	c->worker->slice_end = slice_end;
}

static void eval(struct client *c, unsigned int argc, const struct resp_arg *argv, bool read_only)
{
	struct eval e = { .sha = "" };
	struct interpreter *lua;

	if (!keys_and_args(c, argc, argv, &e.run))
		return;
	lua = interpreter(c);
	if (!lua)
		return;
	script_sha(argv[1].ptr, argv[1].len, e.sha);
	if (load(c, lua, e.sha, &argv[1]))
		run(c, &e, read_only);
}

void cmd_eval(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	eval(c, argc, argv, false);
}

void cmd_eval_ro(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	eval(c, argc, argv, true);
}

/* False: it is none that could be known. */
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

static void evalsha(struct client *c, unsigned int argc, const struct resp_arg *argv,
		    bool read_only)
{
	struct eval e = { .sha = "" };
	struct interpreter *lua;

	if (!keys_and_args(c, argc, argv, &e.run))
		return;
	lua = interpreter(c);
	if (!lua)
		return;
	if (!take_sha(&argv[1], e.sha) || !interpreter_knows(lua, e.sha))
		reply_error(reply_to(c), "NOSCRIPT No matching script. Please use EVAL.");
	else
		run(c, &e, read_only);
}

void cmd_evalsha(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	evalsha(c, argc, argv, false);
}

void cmd_evalsha_ro(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	evalsha(c, argc, argv, true);
}

/* --- SCRIPT --- */

void cmd_script_load(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	struct interpreter *lua = interpreter(c);
	char sha[SCRIPT_SHA_TEXT];

	(void)argc;
	if (!lua)
		return;
	script_sha(argv[2].ptr, argv[2].len, sha);
	if (load(c, lua, sha, &argv[2]))
		reply_text(reply_to(c), sha);
}

void cmd_script_exists(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	struct interpreter *lua = interpreter(c);
	char sha[SCRIPT_SHA_TEXT];

	if (!lua)
		return;
	reply_array(reply_to(c), argc - 2);
	for (unsigned int i = 2; i < argc; i++)
		reply_int(reply_to(c), take_sha(&argv[i], sha) && interpreter_knows(lua, sha));
}

void cmd_script_flush(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	struct queue *q = queue_of(c);

	if (argc > 3 || (argc == 3 && !arg_is(&argv[2], "sync") && !arg_is(&argv[2], "async"))) {
		reply_error(reply_to(c), "ERR SCRIPT FLUSH only support SYNC|ASYNC option");
		return;
	}
	interpreter_free(q->lua);
	q->lua = NULL;
	reply_ok(reply_to(c));
}

void cmd_script_kill(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	(void)argc;
	(void)argv;
	reply_error(reply_to(c), "NOTBUSY No scripts in execution right now.");
}

void cmd_script_debug(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	(void)argc;
	if (arg_is(&argv[2], "no"))
		reply_ok(reply_to(c));
	else if (arg_is(&argv[2], "yes") || arg_is(&argv[2], "sync"))
		reply_error(reply_to(c), "ERR the debugger of scripts is not supported");
	else
		reply_error(reply_to(c), "ERR Use SCRIPT DEBUG YES/SYNC/NO");
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* SLOWLOG: the latest commands that took slowlog-log-slower-than or longer. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "database/database.h"
#include "util/metrics.h"

/* As in Redis: what is kept of a command. */
#define KEPT_ARGS  32
#define KEPT_BYTES 128
#define KEPT_NAME  256 /* Redis keeps all of it */

struct slow_entry {
	TAILQ_ENTRY(slow_entry) link;
	uint64_t id, us;
	int64_t time; /* Unix time in seconds */
	char peer[ADDRESS_TEXT];
	char name[KEPT_NAME + 1];
	unsigned int argc;
	struct {
		char *text; /* owned */
		size_t len;
	} arg[KEPT_ARGS];
};

static struct slowlog *slowlog_of(const struct caller *c)
{
	return &shared_of(c->srv)->slowlog;
}

static void entry_free(struct slow_entry *e)
{
	for (unsigned int i = 0; i < e->argc; i++)
		free(e->arg[i].text);
	free(e);
}

void slowlog_trim(struct slowlog *log, unsigned int count)
{
	struct slow_entry *e;

	while (log->count > count) {
		e = TAILQ_LAST(&log->entries, slow_entries);
		TAILQ_REMOVE(&log->entries, e, link);
		log->count--;
		entry_free(e);
	}
}

/* --- adding --- */

/* A password must not be shown: of AUTH, HELLO, ACL SETUSER and CONFIG SET. */
bool command_arg_is_secret(const struct command *cmd, const struct resp_arg *argv, unsigned int i)
{
	char name[64];

	if (cmd->fn == cmd_auth)
		return i >= 1;
	if (cmd->fn == cmd_acl_setuser)
		return i >= 2;
	if (cmd->fn == cmd_hello)
		return (i >= 3 && arg_is(&argv[i - 1], "auth")) ||
		       (i >= 4 && arg_is(&argv[i - 2], "auth"));
	if (cmd->fn != cmd_config_set || i < 3 || i % 2 == 0)
		return false;
	snprintf(name, sizeof(name), "%.*s", (int)argv[i - 1].len, argv[i - 1].ptr);
	return config_is_secret(name);
}

static void slowlog_keep(struct slow_entry *e, const char *text, size_t len)
{
	char *copy = malloc(len + 1); /* malloc(0) may be NULL */

	if (!copy)
		return;
	memcpy(copy, text, len);
	e->arg[e->argc].text = copy;
	e->arg[e->argc++].len = len;
}

static void keep_arg(struct slow_entry *e, const struct resp_arg *arg)
{
	char text[KEPT_BYTES + 40];
	int len;

	if (arg->len <= KEPT_BYTES) {
		slowlog_keep(e, arg->ptr, arg->len);
		return;
	}
	memcpy(text, arg->ptr, KEPT_BYTES);
	len = snprintf(text + KEPT_BYTES, sizeof(text) - KEPT_BYTES, "... (%zu more bytes)",
		       arg->len - KEPT_BYTES);
	slowlog_keep(e, text, KEPT_BYTES + (size_t)len);
}

static void keep_args(struct slow_entry *e, const struct command *cmd, unsigned int argc,
		      const struct resp_arg *argv)
{
	char more[64];

	for (unsigned int i = 0; i < argc; i++) {
		if (i == KEPT_ARGS - 1 && argc > KEPT_ARGS) {
			snprintf(more, sizeof(more), "... (%u more arguments)", argc - i);
			slowlog_keep(e, more, strlen(more));
			return;
		}
		if (command_arg_is_secret(cmd, argv, i))
			slowlog_keep(e, "(redacted)", strlen("(redacted)"));
		else
			keep_arg(e, &argv[i]);
	}
}

/*
 * The parser may have gone on to other commands since: this one is parsed again.  Not so a line
 * (an inline command), which parsing has changed, and commands that EXEC executes: of those only
 * the name is kept.
 */
static void keep_command(struct slow_entry *e, const struct measured *m)
{
	struct resp_limits limits = { .max_bulk = m->caller->srv->cfg->proto_max_bulk_len };
	char *start = (char *)(uintptr_t)m->start, name[COMMAND_NAME_MAX];
	struct resp_parser parser = { 0 };

	if (start && m->input && *start == '*' &&
	    resp_parse(&parser, start, m->input, &limits) == RESP_COMMAND) {
		keep_args(e, m->cmd, parser.argc, parser.argv);
	} else {
		command_full_name(m->cmd, name);
		slowlog_keep(e, name, strlen(name));
	}
	resp_parser_free(&parser);
}

void slowlog_add(const struct measured *m)
{
	static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER; /* with a worker's own lock */
	struct caller *c = m->caller;
	struct slowlog *log = slowlog_of(c);
	struct slow_entry *e = calloc(1, sizeof(*e));

	if (!e)
		return;
	e->us = m->ns / 1000;
	e->time = time(NULL);
	c->kind->address(c, true, e->peer);
	snprintf(e->name, sizeof(e->name), "%s", c->session.name ? c->session.name : "");
	keep_command(e, m);
	pthread_mutex_lock(&adding);
	if (!log->count)
		TAILQ_INIT(&log->entries);
	e->id = log->next_id++;
	TAILQ_INSERT_HEAD(&log->entries, e, link);
	log->count++;
	slowlog_trim(log, c->srv->cfg->slowlog_max_len);
	pthread_mutex_unlock(&adding);
}

/* --- SLOWLOG --- */

static void reply_entry(struct reply *r, const struct slow_entry *e)
{
	reply_array(r, 6);
	reply_int(r, (int64_t)e->id);
	reply_int(r, e->time);
	reply_int(r, (int64_t)e->us);
	reply_array(r, e->argc);
	for (unsigned int i = 0; i < e->argc; i++)
		reply_bulk(r, e->arg[i].text, e->arg[i].len);
	reply_text(r, e->peer);
	reply_text(r, e->name);
}

void cmd_slowlog_get(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct slowlog *log = slowlog_of(c);
	const struct slow_entry *e = NULL;
	int64_t count = 10;

	if (argc > 3) {
		reply_subcommand_usage(c, "SLOWLOG", &argv[1]);
		return;
	}
	if (argc == 3 && (!text_to_i64(argv[2].ptr, argv[2].len, &count) || count < -1)) {
		reply_error(reply_to(c), "ERR count should be greater than or equal to -1");
		return;
	}
	if (count < 0 || count > log->count)
		count = log->count;
	reply_array(reply_to(c), (size_t)count);
	for (int64_t i = 0; i < count; i++) {
		e = e ? TAILQ_NEXT(e, link) : TAILQ_FIRST(&log->entries);
		reply_entry(reply_to(c), e);
	}
}

void cmd_slowlog_len(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_int(reply_to(c), slowlog_of(c)->count);
}

void cmd_slowlog_reset(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	slowlog_trim(slowlog_of(c), 0);
	reply_ok(reply_to(c));
}

/* clang-format off */
void slowlog_metrics(struct metrics *m, struct server *s)
{
	const struct slowlog *log = &shared_of(s)->slowlog;
	const struct slow_entry *last = TAILQ_FIRST(&log->entries);
	const struct figure figures[] = {
		{ NULL, GAUGE(log->count), "redis_slowlog_length", "entries of the slow log" },
		{ NULL, GAUGE(last ? last->id : 0), "redis_slowlog_last_id", "number of the latest entry of the slow log" },
		{ NULL, REAL(last ? (double)last->us / 1e6 : 0, 6), "redis_last_slow_execution_duration_seconds", "time that the latest slow command took" },
	};

	metrics_show(m, NULL, NULL, figures);
}

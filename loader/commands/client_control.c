/* SPDX-License-Identifier: BSD-2-Clause */
/* CLIENT PAUSE, UNPAUSE, REPLY and UNBLOCK: what holds back commands or replies. */
#include <string.h>

#include "database/database.h"
#include "net/client.h"
#include "script/script.h"

/* --- PAUSE --- */

bool client_pause_stops(struct caller *c, const struct command *cmd, const struct resp_arg *argv)
{
	if (command_counts_keys(cmd))
		return script_may_write(c, cmd, argv);
	return cmd->flags & CMD_WRITE || cmd->fn == cmd_publish || cmd->fn == cmd_spublish ||
	       (cmd->fn == cmd_exec && transaction_of(c)->pause_stops);
}

bool client_postpones(struct caller *c, const struct command *cmd, const struct resp_arg *argv)
{
	const struct pause *p = &c->worker->pause;

	/* Operations over UDP are not held back: their clients would repeat them. */
	return p->until_ns && c->id && (p->all || client_pause_stops(c, cmd, argv));
}

void cmd_client_pause(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	bool write = argc == 4 && arg_is(&argv[3], "write");
	int64_t ms;

	if (argc > 4)
		reply_subcommand_usage(c, "CLIENT", &argv[1]);
	else if (argc == 4 && !write && !arg_is(&argv[3], "all"))
		reply_error(reply_to(c), "ERR CLIENT PAUSE mode must be WRITE or ALL");
	else if (!text_to_i64(argv[2].ptr, argv[2].len, &ms) || ms > INT64_MAX / 1000000 / 2)
		reply_error(reply_to(c), "ERR timeout is not an integer or out of range");
	else if (ms < 0)
		reply_error(reply_to(c), "ERR timeout is negative");
	else {
		workers_pause(c->srv, (uint64_t)ms, !write);
		driver_take_back(c->srv);
		reply_ok(reply_to(c));
	}
}

void cmd_client_unpause(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	workers_unpause(c->srv);
	reply_ok(reply_to(c));
}

/* --- REPLY --- */

void client_skip_begin(struct caller *c)
{
	if (c->session.skip != SKIP_NEXT)
		return;
	commands_flush(c);
	c->session.skip = SKIP_THIS;
	c->session.reply.muted = true;
}

void client_skip_end(struct caller *c)
{
	if (c->session.skip != SKIP_THIS || progress_of(c)->step)
		return;
	commands_flush(c);
	c->session.skip = SKIP_NONE;
	c->session.reply.muted = false;
}

void cmd_client_reply(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct session *s = &c->session;

	if (arg_is(&argv[2], "on")) {
		if (s->skip == SKIP_THIS) /* SKIP in the same EXEC is for what follows */
			s->skip = SKIP_NONE;
		s->reply.muted = false;
		reply_ok(reply_to(c));
	} else if (arg_is(&argv[2], "off")) {
		s->skip = SKIP_NONE;
		s->reply.muted = true;
	} else if (!arg_is(&argv[2], "skip")) {
		reply_error(reply_to(c), "ERR syntax error");
	} else if (!s->reply.muted || s->skip == SKIP_THIS) {
		s->skip = SKIP_NEXT;
		s->reply.muted = false;
	}
}

/* --- UNBLOCK --- */

void cmd_client_unblock(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct caller *who;
	int64_t id;

	if (argc > 4)
		reply_subcommand_usage(c, "CLIENT", &argv[1]);
	else if (argc == 4 && !arg_is(&argv[3], "timeout") && !arg_is(&argv[3], "error"))
		reply_error(reply_to(c), "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR");
	else if (check_integer(c, &argv[2], &id)) {
		who = client_by_id(c->srv, (uint64_t)id);
		reply_int(reply_to(c),
			  who && command_unblock(who, argc == 4 && arg_is(&argv[3], "error")));
	}
}

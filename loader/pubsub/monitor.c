/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * MONITOR: sends clients each command that another client has executed over TCP.  As in Redis,
 * commands that fail are among them, those that were not executed (unknown, wrong number of
 * arguments) and administrative ones are not.  A transaction is shown when it is committed, so of
 * one that is repeated only the last try, unless it is very long.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "database/database.h"
#include "net/client.h"

#define HELD_MAX (4 << 20) /* bytes of lines of a try: beyond that, they are sent before its end */

/* A line about a command of a transaction that is not committed yet. */
struct held_line {
	STAILQ_ENTRY(held_line) link;
	char *text; /* owned */
};

void cmd_monitor(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (transaction_of(c)->in_exec) {
		reply_error(reply_to(c), "ERR MONITOR isn't allowed for DENY BLOCKING client");
		return;
	}
	if (c->session.monitor)
		return; /* as in Redis: no reply */
	c->session.monitor = true;
	driver_take_back(c->srv);
	LIST_INSERT_HEAD(&shared_of(c->srv)->monitors, c, monitors);
	reply_ok(reply_to(c));
}

void monitor_end(struct caller *c)
{
	if (c->session.monitor)
		LIST_REMOVE(c, monitors);
	c->session.monitor = false;
}

/* In quotes, with nothing in it that could be taken for a line end or a quote. */
static void print_quoted(FILE *out, const char *bytes, size_t len)
{
	static const char plain[] = "\\\"\n\r\t\a\b", letters[] = "\\\"nrtab";

	putc('"', out);
	for (size_t i = 0; i < len; i++) {
		const char *at = bytes[i] ? strchr(plain, bytes[i]) : NULL;

		if (at)
			fprintf(out, "\\%c", letters[at - plain]);
		else if (bytes[i] >= ' ' && bytes[i] <= '~')
			putc(bytes[i], out);
		else
			fprintf(out, "\\x%02x", (unsigned char)bytes[i]);
	}
	putc('"', out);
}

/* The line about a command, malloc()ed; NULL if there is no memory. */
static char *line_of(struct caller *c, unsigned int db, const struct command *cmd,
		     unsigned int argc, const struct resp_arg *argv)
{
	char *text = NULL, peer[ADDRESS_TEXT + 5];
	struct timeval now;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	gettimeofday(&now, NULL);
	c->kind->address(c, true, peer);
	if (client_of(c) && connection_is_unix(&client_of(c)->stream.conn))
		snprintf(peer, sizeof(peer), "unix:%s", c->srv->cfg->unixsocket);
	fprintf(out, "%lld.%06ld [%u %s]", (long long)now.tv_sec, (long)now.tv_usec, db, peer);
	for (unsigned int i = 0; i < argc; i++) {
		putc(' ', out);
		if (command_arg_is_secret(cmd, argv, i))
			print_quoted(out, "(redacted)", strlen("(redacted)"));
		else
			print_quoted(out, argv[i].ptr, argv[i].len);
	}
	if (!fclose(out))
		return text;
	free(text);
	return NULL;
}

static void monitor_write(struct server *s, const char *line)
{
	struct reply encoded, *r;
	struct caller *to;

	reply_init(&encoded, PROTOCOL_RESP2, 0); /* in RESP3 it is the same */
	reply_status(&encoded, line);
	LIST_FOREACH(to, &shared_of(s)->monitors, monitors)
	{
		if (to->closing || to->dead)
			continue;
		r = caller_message(to);
		if (!r->muted)
			reply_copy(r, &encoded);
		caller_message_end(to);
	}
	reply_free(&encoded);
}

/* Takes the line, unless it is to be told at once. */
static bool monitor_hold(struct held_lines *lines, char *line)
{
	struct held_line *h;

	if (!lines || lines->bytes > HELD_MAX)
		return false;
	h = malloc(sizeof(*h));
	if (!h)
		return false;
	h->text = line;
	STAILQ_INSERT_TAIL(&lines->list, h, link);
	lines->bytes += sizeof(*h) + strlen(line);
	return true;
}

void monitor_tell(struct caller *c, unsigned int db, const struct command *cmd, unsigned int argc,
		  const struct resp_arg *argv)
{
	char *line;

	if (cmd->flags & CMD_ADMIN)
		return;
	line = line_of(c, db, cmd, argc, argv);
	if (!line || monitor_hold(transaction_of(c)->lines, line))
		return;
	if (transaction_of(c)->lines)
		monitor_release(c, true); /* the lines before it */
	if (c->session.monitor)
		commands_flush(c); /* its reply comes before the line about it */
	monitor_write(c->srv, line);
	free(line);
}

void monitor_release(struct caller *c, bool send)
{
	struct held_lines *lines = transaction_of(c)->lines;
	struct held_line *h;

	while ((h = STAILQ_FIRST(&lines->list))) {
		STAILQ_REMOVE_HEAD(&lines->list, link);
		if (send)
			monitor_write(c->srv, h->text);
		free(h->text);
		free(h);
	}
	lines->bytes = 0;
}

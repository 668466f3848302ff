/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * MONITOR: clients that are told of each command that another client has executed over TCP.  As in
 * Redis, commands that fail are among them, those that were not executed (unknown, wrong number of
 * arguments) and administrative ones are not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "impl.h"

void cmd_monitor(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	(void)argc;
	(void)argv;
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

void monitor_end(struct client *c)
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
static char *line_of(struct client *c, unsigned int db, const struct command *cmd,
		     unsigned int argc, const struct resp_arg *argv)
{
	char *text = NULL, peer[ADDRESS_TEXT + 5];
	struct timeval now;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	gettimeofday(&now, NULL);
	connection_address(&c->stream.conn, true, peer);
	if (connection_is_unix(&c->stream.conn))
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

void monitor_tell(struct client *c, unsigned int db, const struct command *cmd, unsigned int argc,
		  const struct resp_arg *argv)
{
	struct client *to;
	char *line;

	if (cmd->flags & CMD_ADMIN)
		return;
	line = line_of(c, db, cmd, argc, argv);
	if (c->session.monitor)
		commands_flush(c); /* its reply comes before the line about it */
	LIST_FOREACH(to, &shared_of(c->srv)->monitors, monitors)
	{
		if (to->closing || !line)
			continue;
		reply_status(client_message(to), line);
		client_message_end(to);
	}
	free(line);
}

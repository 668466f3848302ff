/* SPDX-License-Identifier: BSD-2-Clause */
/* DEBUG, for tests: refused unless enable-debug-command allows it, as in Redis. */
#include "database/database.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Keeps all TCP clients waiting, which is what it is for; the driver goes on. */
static void debug_sleep(struct caller *c, const struct resp_arg *arg)
{
	char text[64] = "";
	double seconds;
	struct timespec t;

	memcpy(text, arg->ptr, arg->len < sizeof(text) ? arg->len : sizeof(text) - 1);
	seconds = strtod(text, NULL);
	if (seconds > 0 && seconds < 1e9) {
		t.tv_sec = (time_t)seconds;
		t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
		while (nanosleep(&t, &t) && errno == EINTR)
			; /* by the timer of scripts */
	}
	reply_ok(reply_to(c));
}

static void debug_set_active_expire(struct caller *c, const struct resp_arg *arg)
{
	char text[24] = "";

	memcpy(text, arg->ptr, arg->len < sizeof(text) ? arg->len : sizeof(text) - 1);
	c->srv->expiry_off = atoi(text) == 0;
	reply_ok(reply_to(c));
}

static const struct {
	const char *name;
	void (*fn)(struct caller *c, const struct resp_arg *arg);
} subcommands[] = {
	{ "object", debug_object },
	{ "set-active-expire", debug_set_active_expire },
	{ "sleep", debug_sleep },
};

#define SUBCOMMANDS (sizeof(subcommands) / sizeof(subcommands[0]))

static void debug_help(struct caller *c)
{
	static const char *const lines[] = {
		"DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
		"OBJECT <key>",
		"    Show low level info about `key` and associated value.",
		"SET-ACTIVE-EXPIRE <0|1>",
		"    Setting it to 0 disables expiring keys in background when they are not",
		"    accessed (otherwise the Redis behavior). Setting it to 1 reenables back the",
		"    default.",
		"SLEEP <seconds>",
		"    Stop the server for <seconds>. Decimals allowed.",
		"HELP",
		"    Prints this help.",
	};

	reply_array(reply_to(c), sizeof(lines) / sizeof(lines[0]));
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		reply_status(reply_to(c), lines[i]);
}

static bool is_allowed(const struct caller *c)
{
	enum protected_configs who = c->srv->cfg->debug_command;

	return who == PROTECTED_YES || (who == PROTECTED_LOCAL && c->kind->is_local(c));
}

void cmd_debug(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (!is_allowed(c)) {
		reply_error(reply_to(c),
			    "ERR DEBUG command not allowed. If the enable-debug-command option is "
			    "set to \"local\", you can run it from a local connection, otherwise "
			    "you need to set this option in the configuration file, and then "
			    "restart the server.");
		return;
	}
	if (argc == 2 && arg_is(&argv[1], "help")) {
		debug_help(c);
		return;
	}
	for (unsigned int i = 0; argc == 3 && i < SUBCOMMANDS; i++)
		if (arg_is(&argv[1], subcommands[i].name)) {
			subcommands[i].fn(c, &argv[2]);
			return;
		}
	reply_subcommand_usage(c, "DEBUG", &argv[1]);
}

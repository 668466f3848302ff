/* SPDX-License-Identifier: BSD-2-Clause */
/* COMMAND GETKEYS and GETKEYSANDFLAGS, and what a command does with its keys. */
#include <string.h>

#include "impl.h"

#define FLAGS_MAX 4

/* Flags of the keys of commands for which the general rule does not hold, as in Redis' table. */
static const struct {
	const char *names; /* each with blanks around it */
	const char *flags[FLAGS_MAX];
} key_flags[] = {
	{ " set ", { "RW", "access", "update", "variable_flags" } },
	{ " setnx msetnx ", { "OW", "insert" } },
	{ " setex psetex mset restore bitop ", { "OW", "update" } },
	{ " append pfadd ", { "RW", "insert" } },
	{ " del unlink ", { "RM", "delete" } },
	{ " getdel ", { "RW", "access", "delete" } },
	{ " expire pexpire expireat pexpireat persist setrange ", { "RW", "update" } },
	{ " sort ", { "RO", "access" } }, /* what it writes is its destination */
	{ " strlen exists touch type watch ", { "RO" } },
	{ " pfcount ", { "RW", "access" } },
	{ " rename renamenx ",
	  { "RW", "access", "delete" } }, /* of the first; see flags_of_call() */
	{ " copy ", { "RO", "access" } },
	{ " pfmerge ", { "RW", "access", "insert" } },
};

const char *const *command_key_flags(const struct command *cmd)
{
	static const char *const reads[FLAGS_MAX] = { "RO", "access" },
				 *const looks[FLAGS_MAX] = { "RO" },
				 *const changes[FLAGS_MAX] = { "RW", "access", "update" };
	const size_t len = strlen(cmd->name);

	for (size_t i = 0; i < sizeof(key_flags) / sizeof(key_flags[0]); i++) {
		const char *at = strstr(key_flags[i].names, cmd->name);

		for (; at; at = strstr(at + 1, cmd->name))
			if (at[-1] == ' ' && at[len] == ' ')
				return key_flags[i].flags;
	}
	if (!(cmd->flags & CMD_READONLY))
		return changes;
	return cmd->first > 1 ? looks : reads; /* OBJECT and MEMORY do not read the value */
}

/*
 * What a call does with the key that is argument `at`.  SET reads the old value only with GET;
 * BITOP and PFMERGE have a destination before the keys that they read, RENAME and COPY behind it.
 */
static const char *const *flags_of_call(const struct command *cmd, unsigned int argc,
					const struct resp_arg *argv, int at)
{
	static const char *const overwrites[FLAGS_MAX] = { "OW", "update" },
				 *const inserts[FLAGS_MAX] = { "OW", "insert" },
				 *const swaps[FLAGS_MAX] = { "RW", "access", "update" },
				 *const reads[FLAGS_MAX] = { "RO", "access" };

	if ((cmd->fn == cmd_bitop || cmd->fn == cmd_pfmerge) && at > cmd->first)
		return reads;
	if ((cmd->fn == cmd_rename || cmd->fn == cmd_renamenx || cmd->fn == cmd_copy) &&
	    at > cmd->first)
		return cmd->fn == cmd_renamenx ? inserts : overwrites;
	if (cmd->fn != cmd_set)
		return command_key_flags(cmd);
	for (unsigned int i = 3; i < argc; i++)
		if (arg_is(&argv[i], "get"))
			return swaps;
	return overwrites;
}

void reply_key_flags(struct reply *r, const char *const *flags)
{
	size_t n = 0;

	while (n < FLAGS_MAX && flags[n])
		n++;
	reply_set(r, n);
	for (size_t i = 0; i < n; i++)
		reply_status(r, flags[i]);
}

/* The command whose call begins at argv[0], with keys; NULL, and the error was replied. */
static const struct command *called(struct client *c, unsigned int argc,
				    const struct resp_arg *argv)
{
	const struct command *cmd = command_find(argc, argv);

	if (!cmd)
		reply_error(reply_to(c), "ERR Invalid command specified");
	else if (!cmd->first)
		reply_error(reply_to(c), "ERR The command has no key arguments");
	else if (!command_arity_ok(cmd, argc))
		reply_error(reply_to(c), "ERR Invalid number of arguments specified for command");
	else
		return cmd;
	return NULL;
}

static void reply_key(struct client *c, const struct resp_arg *key, const char *const *flags)
{
	if (flags)
		reply_array(reply_to(c), 2);
	reply_bulk(reply_to(c), key->ptr, key->len);
	if (flags)
		reply_key_flags(reply_to(c), flags);
}

/* SORT's destination stands among its options. */
static const struct resp_arg *sort_store(const struct command *cmd, unsigned int argc,
					 const struct resp_arg *argv)
{
	const struct resp_arg *store = NULL;

	for (unsigned int i = 2; cmd->fn == cmd_sort && i + 1 < argc; i++)
		if (arg_is(&argv[i], "store"))
			store = &argv[i + 1];
	return store;
}

bool command_in_one_slot(const struct command *cmd, unsigned int argc, const struct resp_arg *argv)
{
	const struct resp_arg *store = sort_store(cmd, argc, argv);
	int last = cmd->last < 0 ? (int)argc + cmd->last : cmd->last;
	unsigned int slot;

	if (!cmd->first || (last <= cmd->first && !store))
		return true; /* one key, or a list of none */
	slot = cluster_slot(argv[cmd->first].ptr, argv[cmd->first].len);
	for (int i = cmd->first + cmd->step; i <= last; i += cmd->step)
		if (cluster_slot(argv[i].ptr, argv[i].len) != slot)
			return false;
	return !store || cluster_slot(store->ptr, store->len) == slot;
}

static void getkeys(struct client *c, unsigned int argc, const struct resp_arg *argv, bool flags)
{
	static const char *const overwrites[FLAGS_MAX] = { "OW", "update" };
	const struct command *cmd = called(c, argc, argv);
	const struct resp_arg *store;
	int last;

	if (!cmd)
		return;
	store = sort_store(cmd, argc, argv);
	last = cmd->last < 0 ? (int)argc + cmd->last : cmd->last;
	reply_array(reply_to(c), (size_t)((last - cmd->first) / cmd->step + 1 + (store != NULL)));
	for (int i = cmd->first; i <= last; i += cmd->step)
		reply_key(c, &argv[i], flags ? flags_of_call(cmd, argc, argv, i) : NULL);
	if (store)
		reply_key(c, store, flags ? overwrites : NULL);
}

void cmd_command_getkeys(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	getkeys(c, argc - 2, argv + 2, false);
}

void cmd_command_getkeysandflags(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	getkeys(c, argc - 2, argv + 2, true);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* The keys of a command, what it does with each, and COMMAND GETKEYS and GETKEYSANDFLAGS. */
#include <string.h>

#include "database/database.h"

/* Does BITFIELD only read?  Not if it is not understood. */
static bool bitfield_reads(unsigned int argc, const struct resp_arg *argv)
{
	for (unsigned int i = 2; i < argc;) {
		if (arg_is(&argv[i], "get") && i + 2 < argc)
			i += 3;
		else if (arg_is(&argv[i], "overflow") && i + 1 < argc)
			i += 2;
		else
			return false;
	}
	return true;
}

/*
 * What a call does with the key that is argument `at`.  SET reads the old value only with GET, and
 * BITFIELD may only read.
 */
static unsigned int use_of_call(const struct command *cmd, unsigned int argc,
				const struct resp_arg *argv, int at)
{
	bool gets = cmd->fn != cmd_set;

	if (cmd->fn == cmd_bitfield && bitfield_reads(argc, argv))
		return KEY_RO | KEY_ACCESS;
	for (unsigned int i = 3; i < argc && !gets; i++)
		gets = arg_is(&argv[i], "get");
	if (!gets)
		return KEY_OW | KEY_UPDATE;
	return (at == cmd->first ? cmd->first_use : cmd->rest_use) & ~(unsigned int)KEY_VARIABLE;
}

void reply_key_use(struct reply *r, unsigned int use)
{
	static const char *const names[] = {
		"RO",	  "RW",	    "OW",     "RM",	 "access",
		"update", "insert", "delete", "not_key", "variable_flags"
	};

	reply_set(r, (size_t)__builtin_popcount(use));
	for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (use >> i & 1)
			reply_status(r, names[i]);
}

static bool each_script_key(const struct command *cmd, unsigned int argc,
			    const struct resp_arg *argv, command_key_use_fn *fn, void *arg)
{
	int64_t keys;

	if (argc < 3 || !text_to_i64(argv[2].ptr, argv[2].len, &keys) || keys > (int64_t)argc - 3)
		return true; /* an error, not of its keys */
	for (unsigned int at = 3; (int64_t)at < 3 + keys; at++)
		if (!fn(arg, at, cmd->first_use))
			return false;
	return true;
}

/* SORT's destination is among its options: see sort_options().  0 = there is none. */
static unsigned int sort_store(const struct command *cmd, unsigned int argc,
			       const struct resp_arg *argv)
{
	unsigned int store = 0;

	for (unsigned int i = 2; cmd->fn == cmd_sort && i + 1 < argc; i++) {
		if (arg_is(&argv[i], "store"))
			store = ++i;
		else if (arg_is(&argv[i], "by") || arg_is(&argv[i], "get"))
			i++;
		else if (arg_is(&argv[i], "limit"))
			i += 2;
	}
	return store;
}

bool command_reads_patterns(const struct command *cmd, unsigned int argc,
			    const struct resp_arg *argv)
{
	for (unsigned int i = 2; i + 1 < argc; i++)
		if ((cmd->fn == cmd_sort || cmd->fn == cmd_sort_ro) &&
		    (arg_is(&argv[i], "get") ||
		     (arg_is(&argv[i], "by") && memchr(argv[i + 1].ptr, '*', argv[i + 1].len))))
			return true;
	return false;
}

bool command_each_key(const struct command *cmd, unsigned int argc, const struct resp_arg *argv,
		      command_key_use_fn *fn, void *arg)
{
	int last = cmd->last < 0 ? (int)argc + cmd->last : cmd->last;
	unsigned int store;

	if (command_counts_keys(cmd))
		return each_script_key(cmd, argc, argv, fn, arg);
	if (!cmd->first || cmd->flags & CMD_PUBSUB)
		return true;
	for (int at = cmd->first; at <= last; at += cmd->step)
		if (!fn(arg, (unsigned int)at, use_of_call(cmd, argc, argv, at)))
			return false;
	store = sort_store(cmd, argc, argv);
	return !store || fn(arg, store, KEY_OW | KEY_UPDATE);
}

/* --- the slot of the keys --- */

bool command_in_one_slot(const struct command *cmd, unsigned int argc, const struct resp_arg *argv)
{
	unsigned int store = sort_store(cmd, argc, argv);
	int last = cmd->last < 0 ? (int)argc + cmd->last : cmd->last;
	unsigned int slot;

	if (!cmd->first || (last <= cmd->first && !store))
		return true; /* one key, or a list of none */
	slot = cluster_slot(argv[cmd->first].ptr, argv[cmd->first].len);
	for (int i = cmd->first + cmd->step; i <= last; i += cmd->step)
		if (cluster_slot(argv[i].ptr, argv[i].len) != slot)
			return false;
	return !store || cluster_slot(argv[store].ptr, argv[store].len) == slot;
}

/* --- COMMAND GETKEYS --- */

/* The command whose call begins at argv[0], with keys; NULL, and the error was replied. */
static const struct command *called(struct caller *c, unsigned int argc,
				    const struct resp_arg *argv)
{
	const struct command *cmd = command_find(argc, argv);

	if (!cmd)
		reply_error(reply_to(c), "ERR Invalid command specified");
	else if (!cmd->first_use || cmd->flags & CMD_PUBSUB)
		reply_error(reply_to(c), "ERR The command has no key arguments");
	else if (!command_arity_ok(cmd, argc))
		reply_error(reply_to(c), "ERR Invalid number of arguments specified for command");
	else if (cmd->fn == cmd_pfmerge && argc == 2) /* as Redis, which expects sources */
		reply_error(reply_to(c), "ERR Invalid arguments specified for command");
	else
		return cmd;
	return NULL;
}

struct found_keys {
	const struct resp_arg *argv;
	struct reply text;
	size_t count;
	bool flags; /* show them, too */
};

static bool add_key(void *arg, unsigned int at, unsigned int use)
{
	struct found_keys *found = arg;

	if (found->flags)
		reply_array(&found->text, 2);
	reply_bulk(&found->text, found->argv[at].ptr, found->argv[at].len);
	if (found->flags)
		reply_key_use(&found->text, use);
	found->count++;
	return true;
}

static void getkeys(struct caller *c, unsigned int argc, const struct resp_arg *argv, bool flags)
{
	const struct command *cmd = called(c, argc, argv);
	struct found_keys found = { .argv = argv, .flags = flags };

	if (!cmd)
		return;
	reply_part(&found.text, reply_to(c));
	command_each_key(cmd, argc, argv, add_key, &found);
	reply_array(reply_to(c), found.count);
	reply_splice(reply_to(c), &found.text);
}

void cmd_command_getkeys(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	getkeys(c, argc - 2, argv + 2, false);
}

void cmd_command_getkeysandflags(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	getkeys(c, argc - 2, argv + 2, true);
}

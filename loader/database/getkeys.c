/* SPDX-License-Identifier: BSD-2-Clause */
/* The keys of a command, what it does with each, and COMMAND GETKEYS and GETKEYSANDFLAGS. */
#include <string.h>

#include "database/database.h"

/* Flags of the keys of commands for which the general rule does not hold, as in Redis' table. */
static const struct {
	const char *names; /* each with blanks around it */
	const char *flags[KEY_FLAGS_MAX];
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
	{ " pfcount pfdebug ", { "RW", "access" } },
	{ " rename renamenx ",
	  { "RW", "access", "delete" } }, /* of the first; see flags_of_call() */
	{ " copy ", { "RO", "access" } },
	{ " pfmerge ", { "RW", "access", "insert" } },
};

static const char *const *find_key_flags(const struct command *cmd)
{
	static const char *const reads[KEY_FLAGS_MAX] = { "RO", "access" },
				 *const looks[KEY_FLAGS_MAX] = { "RO" },
				 *const changes[KEY_FLAGS_MAX] = { "RW", "access", "update" },
				 *const channels[KEY_FLAGS_MAX] = { "not_key" };
	const size_t len = strlen(cmd->name);

	if (cmd->flags & CMD_PUBSUB)
		return channels;
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

const char *const *command_key_flags(const struct command *cmd)
{
	static const char *const *known[COMMAND_IDS];
	const char *const **at = &known[command_id(cmd)];

	if (!*at)
		*at = find_key_flags(cmd);
	return *at;
}

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
 * BITFIELD may only read; BITOP and PFMERGE have a destination before the keys that they read,
 * RENAME and COPY behind it.
 */
static const char *const *flags_of_call(const struct command *cmd, unsigned int argc,
					const struct resp_arg *argv, int at)
{
	static const char *const overwrites[KEY_FLAGS_MAX] = { "OW", "update" },
				 *const inserts[KEY_FLAGS_MAX] = { "OW", "insert" },
				 *const swaps[KEY_FLAGS_MAX] = { "RW", "access", "update" },
				 *const reads[KEY_FLAGS_MAX] = { "RO", "access" };

	if ((cmd->fn == cmd_bitop || cmd->fn == cmd_pfmerge) && at > cmd->first)
		return reads;
	if ((cmd->fn == cmd_rename || cmd->fn == cmd_renamenx || cmd->fn == cmd_copy) &&
	    at > cmd->first)
		return cmd->fn == cmd_renamenx ? inserts : overwrites;
	if (cmd->fn == cmd_bitfield && bitfield_reads(argc, argv))
		return reads;
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

	while (n < KEY_FLAGS_MAX && flags[n])
		n++;
	reply_set(r, n);
	for (size_t i = 0; i < n; i++)
		reply_status(r, flags[i]);
}

bool command_runs_script(const struct command *cmd)
{
	return cmd->fn == cmd_eval || cmd->fn == cmd_eval_ro || cmd->fn == cmd_evalsha ||
	       cmd->fn == cmd_evalsha_ro || cmd->fn == cmd_fcall || cmd->fn == cmd_fcall_ro;
}

static bool each_script_key(const struct command *cmd, unsigned int argc,
			    const struct resp_arg *argv, command_key_use_fn *fn, void *arg)
{
	int64_t keys;

	if (argc < 3 || !text_to_i64(argv[2].ptr, argv[2].len, &keys) || keys > (int64_t)argc - 3)
		return true; /* an error, not of its keys */
	for (unsigned int at = 3; (int64_t)at < 3 + keys; at++)
		if (!fn(arg, at, command_key_flags(cmd)))
			return false;
	return true;
}

/* SORT's destination stands among its options: see sort_options().  0 = there is none. */
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

bool command_each_key(const struct command *cmd, unsigned int argc, const struct resp_arg *argv,
		      command_key_use_fn *fn, void *arg)
{
	static const char *const overwrites[KEY_FLAGS_MAX] = { "OW", "update" };
	int last = cmd->last < 0 ? (int)argc + cmd->last : cmd->last;
	unsigned int store;

	if (command_runs_script(cmd))
		return each_script_key(cmd, argc, argv, fn, arg);
	if (!cmd->first || cmd->flags & CMD_PUBSUB)
		return true;
	for (int at = cmd->first; at <= last; at += cmd->step)
		if (!fn(arg, (unsigned int)at, flags_of_call(cmd, argc, argv, at)))
			return false;
	store = sort_store(cmd, argc, argv);
	return !store || fn(arg, store, overwrites);
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
	else if ((!cmd->first && !command_runs_script(cmd)) || cmd->flags & CMD_PUBSUB)
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

static bool add_key(void *arg, unsigned int at, const char *const *flags)
{
	struct found_keys *found = arg;

	if (found->flags)
		reply_array(&found->text, 2);
	reply_bulk(&found->text, found->argv[at].ptr, found->argv[at].len);
	if (found->flags)
		reply_key_flags(&found->text, flags);
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

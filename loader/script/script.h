/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by scripts and functions (script.c), and the interface of functions to other rooms. */
#ifndef XKV_COMMANDS_SCRIPT_H
#define XKV_COMMANDS_SCRIPT_H

#include "interpreter.h"

struct command;
struct shared;

/* Fills in keys and arguments behind the number of keys.  On false the error was replied. */
bool script_count_keys(struct caller *c, unsigned int argc, int64_t keys, struct script_run *run);

/*
 * Executes a script or a function with such enum script_flags as a transaction, and replies.  The
 * caller has filled in name, function, keys and arguments.
 */
void script_run(struct caller *c, struct interpreter *lua, struct script_run *run,
		unsigned int flags, bool read_only);

/* May a call of a script or a function write?  By its declared flags, or by the command. */
bool script_may_write(struct caller *c, const struct command *cmd, const struct resp_arg *argv);
/* enum script_flags of a function; 0: there is none of this name. */
unsigned int function_flags(struct caller *c, const struct resp_arg *name);

/* SCRIPT KILL, FUNCTION KILL. */
void script_kill(struct caller *c, bool function);

struct function_figures {
	unsigned int libraries, functions;
	size_t memory; /* bytes of their interpreter */
};
/* Not const: reads the functions of the snapshot, if that is not yet done. */
struct function_figures function_figures(struct shared *shared);
/* Forgets all functions. */
void functions_free(struct shared *shared);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A Lua 5.1 interpreter with the library `redis` and the globals of Redis 7.0.  A server has one
 * for scripts and one for libraries of functions, each made when it is needed.  Scripts cannot
 * change anything that a later script sees, except through the store, and reach neither files nor
 * the system.
 *
 * Used with all locks (net/worker.h).
 */
#ifndef XKV_COMMANDS_INTERPRETER_H
#define XKV_COMMANDS_INTERPRETER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "protocol/resp.h"

struct caller;
struct interpreter;

#define SCRIPT_SHA_TEXT 41 /* 40 hexadecimal digits and a NUL */

/* NULL without memory. */
struct interpreter *interpreter_new(void);
/* `lua` may be NULL. */
void interpreter_free(struct interpreter *lua);

/* The name of a script for EVALSHA. */
void script_sha(const void *text, size_t len, char sha[SCRIPT_SHA_TEXT]);

/* The same; cached for the last text. */
void interpreter_sha(struct interpreter *lua, const struct resp_arg *text,
		     char sha[SCRIPT_SHA_TEXT]);

/* Flags that a script or a function declares. */
enum script_flags {
	SCRIPT_NO_WRITES = 1,
	SCRIPT_ALLOW_OOM = 2,	/* no effect: writes that do not fit fail anyway */
	SCRIPT_ALLOW_STALE = 4, /* no effect: there are no replicas */
	SCRIPT_NO_CLUSTER = 8,
	SCRIPT_ALLOW_CROSS_SLOT = 16, /* no effect: a script may use keys of several slots */
	SCRIPT_FLAGS = 5,	      /* the number of those above */
	SCRIPT_HAS_FLAGS = 32,	      /* a function, or a script that begins with #! */
};
extern const char *const script_flag_names[SCRIPT_FLAGS];

/* Is it known?  Its flags are in `flags`; if that is not NULL it counts as used. */
bool interpreter_knows(struct interpreter *lua, const char *sha, unsigned int *flags);
/* Keeps a script that is known until SCRIPT FLUSH. */
void interpreter_keep(struct interpreter *lua, const char *sha);

/* A run of a script that is known. */
struct script_run {
	struct caller *caller;	 /* NULL: a library is being loaded */
	const char *name;	 /* of a function, or the SHA of a script */
	int function;		 /* struct function.ref, 0 = a script */
	unsigned int keys, args; /* of argv */
	const struct resp_arg *argv;
	bool read_only;	   /* may not call commands that write */
	uint64_t start_ns; /* monotonic */
	uint64_t busy_ns;  /* monotonic: when others are served while it runs */
	uint64_t end_ns;   /* monotonic: when a library that is being loaded is ended, 0 = never */
	bool slow;	   /* they are */
	bool wrote;	   /* has called a command that writes */
	const char *ended; /* why it is ended; NULL = it may go on */
};

/*
 * Serves other clients if the script takes long.  Returns why it has to end (it was killed, or a
 * key that it has read has changed), NULL if it may go on.
 */
const char *script_yield(struct script_run *run);
/* Serves other clients if it took long, while its memory is freed.  False: no longer useful. */
bool script_clean_up(struct script_run *run);

/*
 * Compiles a script, which is run->name, and keeps it with its flags: until SCRIPT FLUSH (`keep`),
 * or until it makes room for others.  False, and the reason is in `error`.
 */
bool interpreter_load(struct interpreter *lua, struct script_run *run, const struct resp_arg *text,
		      unsigned int flags, bool keep, char *error, size_t error_len);

/* Executes it and replies to the client.  False: with an error. */
bool interpreter_run(struct interpreter *lua, struct script_run *run);

/* A function of a library. */
struct function {
	char *name, *description; /* owned; the latter NULL = none */
	unsigned int flags;
	int ref; /* of its code, in the interpreter */
};

/* A library of functions. */
struct library {
	TAILQ_ENTRY(library) link;
	char *name, *text;	    /* owned */
	size_t len;		    /* of the text */
	struct function *functions; /* owned */
	unsigned int count;
};

/* May it be the name of a library, or of a function? */
bool function_name_ok(const char *name, size_t len);
/*
 * Executes the body of a library, which registers its functions.  False, and the reason is in
 * `error`; library_free() is needed also then.
 */
bool interpreter_load_library(struct interpreter *lua, struct library *lib,
			      const struct resp_arg *body, char *error, size_t error_len);
/* Frees the library and its functions.  `lua` and `lib` may be NULL. */
void library_free(struct interpreter *lua, struct library *lib);

size_t interpreter_memory(const struct interpreter *lua);
unsigned int interpreter_scripts(const struct interpreter *lua);
/* Scripts that made room for others. */
uint64_t interpreter_evicted(const struct interpreter *lua);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* What interpreter.c and lua_redis.c (the library `redis`, and replies) share. */
#ifndef XKV_COMMANDS_LUA_IMPL_H
#define XKV_COMMANDS_LUA_IMPL_H

#include <lua5.1/lauxlib.h>
#include <lua5.1/lua.h>
#include <lua5.1/lualib.h>

#include "impl.h"
#include "interpreter.h"

struct interpreter {
	lua_State *state;
	size_t memory; /* bytes that `state` has allocated */
	unsigned int scripts;
	const struct script_run *run; /* NULL = none */
	uint64_t end_ns;	      /* monotonic: when the run is ended */
	enum protocol resp;	      /* of replies that the script sees: redis.setresp() */
	struct reply reply;	      /* of the script */
	struct reply called;	      /* of the command that it calls */
};

/* The interpreter that a C function was called by. */
struct interpreter *lua_of(lua_State *L);
/* Pushes an error of ours: a table with the text in `err`. */
void lua_push_error(lua_State *L, const char *text);
/* Adds the library `redis` to the table on top. */
void lua_add_redis(lua_State *L);
/* Replies the value on top, and pops it. */
void lua_reply_value(lua_State *L, struct reply *r);

#endif

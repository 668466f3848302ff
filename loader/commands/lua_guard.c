/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Functions of Lua's libraries that could write to shared tables, exhaust the stack, or run in C
 * for seconds, where no hook ends them: each is called behind a guard that looks at its arguments.
 */
#include <string.h>

#include "lua_impl.h"

#define PATTERN_MAX 10000 /* bytes: matching takes about 200 bytes of stack for each */
#define SHIFT_MAX   1000  /* how far before its first element a table may be inserted into */

/* Called as the guarded function itself, whose name errors therefore have. */
static int call_guarded(lua_State *L)
{
	return lua_tocfunction(L, lua_upvalueindex(2))(L);
}

/* Written raw, a proxy would get elements that later scripts see. */
static int guard_insert(lua_State *L)
{
	lua_check_writable(L, 1);
	if (lua_gettop(L) == 3 && (int)lua_tointeger(L, 2) < -SHIFT_MAX)
		return luaL_argerror(L, 2, "position out of bounds");
	return call_guarded(L);
}

static int guard_rep(lua_State *L)
{
	if (lua_type(L, 1) == LUA_TSTRING && !lua_objlen(L, 1) && lua_isnumber(L, 2)) {
		lua_settop(L, 1);
		return 1;
	}
	return call_guarded(L);
}

/* The matcher calls itself for each item of a pattern. */
static int guard_pattern(lua_State *L)
{
	if (lua_type(L, 2) == LUA_TSTRING && lua_objlen(L, 2) > PATTERN_MAX &&
	    strpbrk(lua_tostring(L, 2), "^$*+?.([%-"))
		return luaL_error(L, "pattern too complex");
	return call_guarded(L);
}

static int guard_find(lua_State *L)
{
	return lua_toboolean(L, 4) ? call_guarded(L) : guard_pattern(L);
}

/* A new coroutine has a count of instructions of its own, after which its hook is called. */
static int guard_coroutine(lua_State *L)
{
	lua_check_time(L);
	return call_guarded(L);
}

/* Replaces the function `name` of the table on top; its upvalue stays the first. */
static void guard(lua_State *L, const char *name, lua_CFunction with)
{
	lua_getfield(L, -1, name);
	if (!lua_getupvalue(L, -1, 1))
		lua_pushnil(L);
	lua_insert(L, -2);
	lua_pushcclosure(L, with, 2);
	lua_setfield(L, -2, name);
}

void lua_guard_libraries(lua_State *L)
{
	static const struct {
		const char *library, *name;
		lua_CFunction with;
	} guards[] = {
		{ "table", "insert", guard_insert },

		{ "string", "rep", guard_rep },
		{ "string", "find", guard_find },
		{ "string", "match", guard_pattern },
		{ "string", "gmatch", guard_pattern },
		{ "string", "gfind", guard_pattern },
		{ "string", "gsub", guard_pattern },
		{ "coroutine", "create", guard_coroutine },
		{ "coroutine", "wrap", guard_coroutine },
	};

	for (size_t i = 0; i < sizeof(guards) / sizeof(guards[0]); i++) {
		lua_getglobal(L, guards[i].library);
		guard(L, guards[i].name, guards[i].with);
		lua_pop(L, 1);
	}
}

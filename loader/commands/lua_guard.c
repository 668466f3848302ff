/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Functions of Lua's libraries that could write to shared tables, exhaust the stack, or run in C
 * for seconds, where no hook ends them: each is called behind a guard that looks at its arguments.
 */
#include <stdint.h>
#include <string.h>

#include "lua_impl.h"

#define PATTERN_MAX   10000 /* bytes: matching takes about 200 bytes of stack for each */
#define SHIFT_MAX     1000  /* how far before its first element a table may be inserted into */
#define ENCODE_MAX    (512UL << 20) /* bytes of a text in JSON, each character taking 6 */
#define ENCODE_KEEP   (1UL << 20)   /* buffers for more are not kept for the next script */
#define DEPTH_DEFAULT 1000	    /* of tables in tables, in cjson */
#define SPARSE_RATIO  10	    /* the largest of cjson.encode_sparse_array() */
#define SPARSE_SAFE   10000
#define CJSON	      "xkv cjson"

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

/* The library negates the number of digits, which has no positive counterpart (CVE-2024-31449). */
static int guard_tohex(lua_State *L)
{
	if (lua_isnumber(L, 2) && (uint32_t)(int64_t)lua_tonumber(L, 2) == (uint32_t)INT32_MIN) {
		lua_pushinteger(L, -8);
		lua_replace(L, 2);
	}
	return call_guarded(L);
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

/* --- cjson, which ends the process if it has no memory for a text --- */

struct encoding {
	struct interpreter *lua;
	size_t bytes; /* at most as many are needed */
	int depth;
};

static void add_bytes(lua_State *L, struct encoding *e, size_t bytes)
{
	e->bytes += bytes;
	if (e->bytes > ENCODE_MAX)
		luaL_error(L, "Cannot serialise, the text could be too long");
}

static void add_value(lua_State *L, struct encoding *e);

/* An array has elements up to the largest index, unless there are too few of them. */
static void add_table(lua_State *L, struct encoding *e)
{
	double last = 0, count = 0;

	lua_check_time(L);
	if ((++e->depth > DEPTH_DEFAULT && !e->lua->cjson_used) || !lua_checkstack(L, 4))
		luaL_error(L, "Cannot serialise, excessive nesting (%d)", e->depth);
	lua_pushnil(L);
	while (lua_next(L, -2)) {
		if (lua_type(L, -2) == LUA_TNUMBER && lua_tonumber(L, -2) > last)
			last = lua_tonumber(L, -2);
		count++;
		add_value(L, e);
		lua_pop(L, 1);
		add_bytes(L, e, 40 + (lua_type(L, -1) == LUA_TSTRING ? 6 * lua_objlen(L, -1) : 0));
	}
	if (last <= count * SPARSE_RATIO || last <= SPARSE_SAFE)
		add_bytes(L, e, 5 * (size_t)last);
	e->depth--;
}

static void add_value(lua_State *L, struct encoding *e)
{
	add_bytes(L, e, 40 + (lua_type(L, -1) == LUA_TSTRING ? 6 * lua_objlen(L, -1) : 0));
	if (lua_type(L, -1) == LUA_TTABLE)
		add_table(L, e);
}

static int guard_encode(lua_State *L)
{
	struct encoding e = { .lua = lua_of(L) };

	if (lua_gettop(L) != 1)
		return call_guarded(L);
	add_value(L, &e);
	e.lua->cjson_used |= e.bytes > ENCODE_KEEP;
	return call_guarded(L);
}

/* What one script sets is not for the next. */
static int guard_setting(lua_State *L)
{
	lua_of(L)->cjson_used = true;
	return call_guarded(L);
}

static int guard_sparse(lua_State *L)
{
	if (lua_isnumber(L, 2) && (lua_tointeger(L, 2) < 1 || lua_tointeger(L, 2) > SPARSE_RATIO))
		return luaL_argerror(L, 2, "expected integer between 1 and 10");
	if (lua_isnumber(L, 3) && lua_tointeger(L, 3) > SPARSE_SAFE)
		return luaL_argerror(L, 3, "expected integer between 0 and 10000");
	return guard_setting(L);
}

/* It is kept: without it an error would leak the text. */
static int guard_keep_buffer(lua_State *L)
{
	lua_settop(L, 0);
	return call_guarded(L);
}

/* cjson.new(): the same one, as each would keep a long buffer. */
static int same_cjson(lua_State *L)
{
	lua_getglobal(L, "cjson");
	return 1;
}

int luaopen_cjson(lua_State *L);

/* Pushes the library as it is at first. */
static void new_cjson(lua_State *L)
{
	static const char *const settings[] = { "encode_max_depth", "decode_max_depth",
						"encode_number_precision", "encode_invalid_numbers",
						"decode_invalid_numbers" };

	lua_pushcfunction(L, luaopen_cjson);
	lua_call(L, 0, 1);
	guard(L, "encode", guard_encode);
	guard(L, "encode_sparse_array", guard_sparse);
	guard(L, "encode_keep_buffer", guard_keep_buffer);
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		guard(L, settings[i], guard_setting);
	lua_pushcfunction(L, same_cjson);
	lua_setfield(L, -2, "new");
}

void lua_reset_cjson(lua_State *L)
{
	lua_getfield(L, LUA_REGISTRYINDEX, CJSON);
	new_cjson(L);
	lua_pushnil(L);
	while (lua_next(L, -2)) {
		lua_pushvalue(L, -2);
		lua_insert(L, -2);
		lua_rawset(L, -5);
	}
	lua_pop(L, 2);
	lua_of(L)->cjson_used = false;
}

void lua_open_cjson(lua_State *L)
{
	lua_newtable(L);
	lua_pushvalue(L, -1);
	lua_setfield(L, LUA_REGISTRYINDEX, CJSON);
	lua_setglobal(L, "cjson");
	lua_reset_cjson(L);
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
		{ "bit", "tohex", guard_tohex },
		{ "coroutine", "create", guard_coroutine },
		{ "coroutine", "wrap", guard_coroutine },
	};

	for (size_t i = 0; i < sizeof(guards) / sizeof(guards[0]); i++) {
		lua_getglobal(L, guards[i].library);
		guard(L, guards[i].name, guards[i].with);
		lua_pop(L, 1);
	}
}

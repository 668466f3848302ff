/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Functions of the library `table` that look at the clock: a table may have millions of elements,
 * of which no hook sees that they are moved, looked at, or handed to a function written in C.
 * Semantics and errors are those of Lua 5.1.
 */
#include "lua_impl.h"

#define ELEMENTS  4096 /* between two looks at the clock */
#define SHIFT_MAX 1000 /* how far before its first element a table may be inserted into */

/* The number of elements. */
static int check_table(lua_State *L)
{
	luaL_checktype(L, 1, LUA_TTABLE);
	return (int)lua_objlen(L, 1);
}

/* Looks at the clock now and then, before element `i`. */
static void at_element(lua_State *L, int i)
{
	if (i % ELEMENTS == 0)
		lua_check_time(L);
	lua_look(L);
}

/* Written raw, a proxy would get elements that later scripts see. */
static int table_insert(lua_State *L)
{
	int end = check_table(L) + 1, at = end;

	lua_check_writable(L, 1);
	if (lua_gettop(L) == 3)
		at = luaL_checkint(L, 2);
	else if (lua_gettop(L) != 2)
		return luaL_error(L, "wrong number of arguments to 'insert'");
	if (at < -SHIFT_MAX)
		return luaL_argerror(L, 2, "position out of bounds");
	for (int i = at > end ? at : end; i > at; i--) {
		at_element(L, i);
		lua_rawgeti(L, 1, i - 1);
		lua_rawseti(L, 1, i);
	}
	lua_rawseti(L, 1, at);
	return 0;
}

static int table_remove(lua_State *L)
{
	int end = check_table(L), at = luaL_optint(L, 2, end);

	if (at < 1 || at > end)
		return 0;
	lua_rawgeti(L, 1, at);
	for (int i = at; i < end; i++) {
		at_element(L, i);
		lua_rawgeti(L, 1, i + 1);
		lua_rawseti(L, 1, i);
	}
	lua_pushnil(L);
	lua_rawseti(L, 1, end);
	return 1;
}

static void add_element(lua_State *L, luaL_Buffer *b, int i)
{
	at_element(L, i);
	lua_rawgeti(L, 1, i);
	if (!lua_isstring(L, -1))
		luaL_error(L, "invalid value (%s) at index %d in table for 'concat'",
			   luaL_typename(L, -1), i);
	luaL_addvalue(b);
}

static int table_concat(lua_State *L)
{
	size_t len;
	const char *between = luaL_optlstring(L, 2, "", &len);
	int end = check_table(L), i = luaL_optint(L, 3, 1), last = luaL_optint(L, 4, end);
	luaL_Buffer b;

	luaL_buffinit(L, &b);
	for (; i < last; i++) {
		add_element(L, &b, i);
		luaL_addlstring(&b, between, len);
	}
	if (i == last)
		add_element(L, &b, i);
	luaL_pushresult(&b);
	lua_check_time(L);
	return 1;
}

/* Calls the function, argument 2, with key and value on top, which stay.  True: a result. */
static bool call_with(lua_State *L)
{
	lua_pushvalue(L, 2);
	lua_pushvalue(L, -3);
	lua_pushvalue(L, -3);
	lua_call(L, 2, 1);
	if (!lua_isnil(L, -1))
		return true;
	lua_pop(L, 1);
	return false;
}

static int table_foreach(lua_State *L)
{
	luaL_checktype(L, 1, LUA_TTABLE);
	luaL_checktype(L, 2, LUA_TFUNCTION);
	lua_pushnil(L);
	for (int i = 1; lua_next(L, 1); i++) {
		at_element(L, i);
		if (call_with(L))
			return 1;
		lua_pop(L, 1);
	}
	return 0;
}

static int table_maxn(lua_State *L)
{
	lua_Number most = 0;

	luaL_checktype(L, 1, LUA_TTABLE);
	lua_pushnil(L);
	for (int i = 1; lua_next(L, 1); i++) {
		at_element(L, i);
		lua_pop(L, 1);
		if (lua_type(L, -1) == LUA_TNUMBER && lua_tonumber(L, -1) > most)
			most = lua_tonumber(L, -1);
	}
	lua_pushnumber(L, most);
	return 1;
}

static int table_foreachi(lua_State *L)
{
	int count = check_table(L);

	luaL_checktype(L, 2, LUA_TFUNCTION);
	for (int i = 1; i <= count; i++) {
		at_element(L, i);
		lua_pushinteger(L, i);
		lua_rawgeti(L, 1, i);
		if (call_with(L))
			return 1;
		lua_pop(L, 2);
	}
	return 0;
}

void lua_own_tables(lua_State *L)
{
	static const luaL_Reg functions[] = {
		{ "insert", table_insert },
		{ "remove", table_remove },
		{ "concat", table_concat },
		{ "foreach", table_foreach },
		{ "foreachi", table_foreachi },
		{ "maxn", table_maxn },
		{ NULL, NULL },
	};

	luaL_register(L, LUA_TABLIBNAME, functions);
	lua_pop(L, 1);
}

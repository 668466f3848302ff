/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Functions of Lua's libraries that could write to shared tables, exhaust the stack, or run in C
 * for seconds, where no hook ends them: each is called behind a guard that looks at its arguments.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include "lua_impl.h"

#define ARGUMENT_MAX  (16UL << 20) /* bytes of texts that a function reads at once */
#define COMPARISONS   256	   /* of table.sort() between two looks at the clock */
#define REPEATS	      10000	   /* of string.rep() between two looks at the clock */
#define ENCODE_MAX    (32UL << 20) /* bytes of a JSON text if each character took 6 */
#define ENCODE_VALUES 300000	   /* values in such a text */
#define ENCODE_KEEP   (1UL << 20)  /* longer buffers are not kept for the next script */
#define DECODE_VALUES (1UL << 20)  /* values in a JSON text that is decoded, estimated */
#define DEPTH_DEFAULT 1000	   /* nesting of tables in cjson */
#define TABLE_LARGE   4096	   /* entries from which on a table is checked for collisions */
#define SPARSE_RATIO  10	   /* the largest of cjson.encode_sparse_array() */
#define SPARSE_SAFE   10000
#define CJSON	      "xkv cjson"

/*
 * Called in place of the guarded function, so errors have that one's name.  Checks the clock: the
 * hook counts instructions, and would do so only after many calls that each take long.
 */
static int call_guarded(lua_State *L)
{
	int results = lua_tocfunction(L, lua_upvalueindex(2))(L);

	lua_check_time(L);
	return results;
}

/* Limits the length of all arguments together, since the function cannot be interrupted. */
static int guard_long(lua_State *L)
{
	size_t len = 0;

	for (int i = 1; i <= lua_gettop(L); i++) {
		len += lua_type(L, i) == LUA_TSTRING ? lua_objlen(L, i) : 0;
		if (len > ARGUMENT_MAX)
			return luaL_argerror(L, i, "string too long");
	}
	return call_guarded(L);
}

/* Replaces Lua's, which takes seconds to repeat a short text very often. */
static int string_rep(lua_State *L)
{
	size_t len;
	const char *text = luaL_checklstring(L, 1, &len);
	int count = luaL_checkint(L, 2);
	luaL_Buffer b;

	if (count > 0 && len > LUA_MEMORY_MAX / (size_t)count) {
		lua_pushliteral(L, "not enough memory");
		return lua_error(L);
	}
	luaL_buffinit(L, &b);
	for (int i = 0; len && i < count; i++) {
		luaL_addlstring(&b, text, len);
		lua_look(L);
		if (i % REPEATS == 0)
			lua_check_time(L);
	}
	luaL_pushresult(&b);
	lua_check_time(L);
	return 1;
}

/* One that counts comparisons.  Its upvalue is the script's function; nil: the operator <. */
static int compare(lua_State *L)
{
	struct interpreter *lua = lua_of(L);
	bool less;

	if (++lua->comparisons % COMPARISONS == 0)
		lua_check_time(L);
	lua_look(L);
	if (lua_isnil(L, lua_upvalueindex(1))) {
		less = lua_lessthan(L, 1, 2);
	} else {
		lua_pushvalue(L, lua_upvalueindex(1));
		lua_insert(L, 1);
		lua_call(L, 2, 1);
		less = lua_toboolean(L, -1);
	}
	if (lua->run->ended) /* strcoll() */
		lua_check_time(L);
	lua_pushboolean(L, less);
	return 1;
}

bool lua_is_comparison(lua_State *L, lua_Debug *at)
{
	bool is = lua_getinfo(L, "f", at) && lua_tocfunction(L, -1) == compare;

	lua_pop(L, 1);
	return is;
}

static int guard_sort(lua_State *L)
{
	luaL_checktype(L, 1, LUA_TTABLE);
	if (!lua_isnoneornil(L, 2))
		luaL_checktype(L, 2, LUA_TFUNCTION);
	lua_settop(L, 2);
	lua_pushcclosure(L, compare, 1);
	return call_guarded(L);
}

/* The library negates the number of digits, which overflows for the smallest (CVE-2024-31449). */
static int guard_tohex(lua_State *L)
{
	if (lua_isnumber(L, 2) && (uint32_t)(int64_t)lua_tonumber(L, 2) == (uint32_t)INT32_MIN) {
		lua_pushinteger(L, -8);
		lua_replace(L, 2);
	}
	return guard_long(L);
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

/* Guards all functions of the table on top that have no guard yet. */
static void guard_all(lua_State *L, lua_CFunction with)
{
	lua_pushnil(L);
	while (lua_next(L, -2)) {
		bool function = lua_iscfunction(L, -1) && lua_tocfunction(L, -1) != guard_tohex;
		const char *name = lua_tostring(L, -2);

		lua_pop(L, 1);
		if (!function)
			continue;
		lua_pushvalue(L, -2);
		guard(L, name, with);
		lua_pop(L, 1);
	}
}

/* --- cjson, which ends the process if it has no memory for a text --- */

struct encoding {
	struct interpreter *lua;
	size_t bytes; /* at most as many are needed */
	unsigned int values;
	int depth;
};

static void add_bytes(lua_State *L, struct encoding *e, size_t bytes)
{
	e->bytes += bytes;
	if (e->bytes > ENCODE_MAX || ++e->values > ENCODE_VALUES)
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
		lua_look(L);
		add_value(L, e);
		lua_pop(L, 1);
		add_bytes(L, e, 40 + (lua_type(L, -1) == LUA_TSTRING ? 6 * lua_objlen(L, -1) : 0));
	}
	if (count > TABLE_LARGE && lua_keys_collide(e->lua))
		luaL_error(L, "Cannot serialise, the keys of a table collide");
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

/* Notes that settings were changed: they are restored before the next script. */
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

/* Ignores the argument: the buffer is always kept, as without it an error would leak the text. */
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

/* Estimates the number of values in a JSON text from its commas and opening brackets. */
static size_t count_values(const char *text, size_t len)
{
	size_t count = 1;

	for (size_t i = 0; i < len; i++)
		count += text[i] == ',' || text[i] == '[' || text[i] == '{';
	return count;
}

/*
 * The library leaks its buffer, which is as long as the text, if it gets no memory for a value or
 * its script is ended.  It calls strbuf_new() and strbuf_free() through the dynamic linker, which
 * finds these here before its own.
 */
void *strbuf_new(size_t len);
void strbuf_free(void *buffer);
static _Thread_local void *decode_buffer;

void *strbuf_new(size_t len)
{
	static void *(*of_library)(size_t);

	if (!of_library)
		of_library = dlsym(RTLD_NEXT, "strbuf_new");
	decode_buffer = of_library(len);
	return decode_buffer;
}

void strbuf_free(void *buffer)
{
	static void (*of_library)(void *);

	if (!of_library)
		of_library = dlsym(RTLD_NEXT, "strbuf_free");
	if (buffer == decode_buffer)
		decode_buffer = NULL;
	of_library(buffer);
}

static int guard_decode(lua_State *L)
{
	const char *text;
	int failed;
	size_t len;

	if (lua_gettop(L) != 1 || lua_type(L, 1) != LUA_TSTRING)
		return guard_long(L);
	text = lua_tolstring(L, 1, &len);
	if (len > ARGUMENT_MAX)
		return luaL_argerror(L, 1, "string too long");
	if (count_values(text, len) > DECODE_VALUES)
		return luaL_error(L, "Too many values to decode");
	lua_pushvalue(L, lua_upvalueindex(1));
	lua_pushcclosure(L, lua_tocfunction(L, lua_upvalueindex(2)), 1);
	lua_insert(L, 1);
	failed = lua_pcall(L, 1, LUA_MULTRET, 0);
	if (decode_buffer)
		strbuf_free(decode_buffer);
	if (failed) {
		lua_check_time(L); /* it may have been ended */
		luaL_where(L, 1);
		lua_insert(L, -2);
		lua_concat(L, 2);
		return lua_error(L);
	}
	lua_check_time(L);
	return lua_gettop(L);
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
	guard(L, "decode", guard_decode);
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
		{ "table", "sort", guard_sort },      { "string", "rep", string_rep },
		{ "string", "find", call_guarded },   { "string", "match", call_guarded },
		{ "string", "gmatch", call_guarded }, { "string", "gsub", call_guarded },
		{ "string", "format", guard_long },   { "string", "reverse", guard_long },
		{ "string", "lower", guard_long },    { "string", "upper", guard_long },
		{ "string", "sub", call_guarded },    { "string", "byte", call_guarded },
		{ "string", "char", guard_long },     { "_G", "next", call_guarded },
		{ "bit", "tohex", guard_tohex },
	};

	static const char *const libraries[] = { "cmsgpack", "struct", "math", "bit" };

	for (size_t i = 0; i < sizeof(guards) / sizeof(guards[0]); i++) {
		lua_getglobal(L, guards[i].library);
		guard(L, guards[i].name, guards[i].with);
		lua_pop(L, 1);
	}
	for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
		lua_getglobal(L, libraries[i]);
		guard_all(L, guard_long);
		lua_pop(L, 1);
	}
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Libraries of functions: redis.register_function(), and the other globals that a library sees
 * while it is loaded.  Afterwards its functions see the globals of scripts: all code of libraries
 * shares one table of globals, a proxy that shows the one or the other.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lua_impl.h"
#include "util/clock.h"

#define CHUNK_NAME  "@user_function"
#define ENVIRONMENT "xkv environment" /* in the registry: what libraries see as their globals */
#define LOAD_NS	    500000000	      /* that a library may take to register its functions */

static int library_fail(lua_State *L, const char *text)
{
	lua_push_error(L, text);
	return lua_error(L);
}

/* --- redis.register_function() --- */

bool function_name_ok(const char *name, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)name[i]) && name[i] != '_')
			return false;
	return len;
}

/* The flags in the table on top. */
static unsigned int take_flags(lua_State *L)
{
	unsigned int flags = 0, i;

	for (int n = 1;; n++) {
		lua_rawgeti(L, -1, n);
		if (lua_isnil(L, -1))
			break;
		for (i = 0; i < SCRIPT_FLAGS; i++)
			if (lua_isstring(L, -1) &&
			    strcasecmp(lua_tostring(L, -1), script_flag_names[i]) == 0)
				break;
		if (i == SCRIPT_FLAGS)
			library_fail(L, "ERR unknown flag given");
		flags |= 1U << i;
		lua_pop(L, 1);
	}
	lua_pop(L, 1);
	return flags;
}

/* Where the arguments are on the stack. */
enum slot { NAME = 2, DESCRIPTION, CALLBACK, SLOTS = CALLBACK };

/* Checks the value on top, an argument of this name.  Where it belongs, 0: nowhere. */
static int check_named(lua_State *L, const char *name, unsigned int *flags)
{
	if (strcasecmp(name, "function_name") == 0) {
		if (!lua_isstring(L, -1))
			library_fail(
				L,
				"ERR function_name argument given to redis.register_function must "
				"be a string");
		return NAME;
	}
	if (strcasecmp(name, "description") == 0) {
		if (!lua_isstring(L, -1))
			library_fail(
				L,
				"ERR description argument given to redis.register_function must be "
				"a string");
		return DESCRIPTION;
	}
	if (strcasecmp(name, "callback") == 0) {
		if (!lua_isfunction(L, -1))
			library_fail(
				L,
				"ERR callback argument given to redis.register_function must be a "
				"function");
		return CALLBACK;
	}
	if (strcasecmp(name, "flags") != 0)
		library_fail(L, "ERR unknown argument given to redis.register_function");
	if (!lua_istable(L, -1))
		library_fail(L, "ERR flags argument to redis.register_function must be a table "
				"representing function flags");
	*flags = take_flags(L);
	return 0;
}

/* register_function{function_name=, callback=, description=, flags=} */
static void take_table(lua_State *L, unsigned int *flags)
{
	const char *name;
	int slot;

	if (!lua_istable(L, 1))
		library_fail(L,
			     "ERR calling redis.register_function with a single argument is only "
			     "applicable to Lua table (representing named arguments).");
	lua_settop(L, SLOTS);
	lua_pushnil(L);
	while (lua_next(L, 1)) {
		lua_pushvalue(L, -2); /* lua_next() needs a number as it is */
		lua_insert(L, -2);
		name = lua_tostring(L, -2);
		if (!name)
			library_fail(
				L,
				"ERR named argument key given to redis.register_function is not a "
				"string");
		slot = check_named(L, name, flags);
		if (slot)
			lua_replace(L, slot);
		else
			lua_pop(L, 1);
		lua_pop(L, 1);
	}
	if (lua_isnil(L, NAME))
		library_fail(L, "ERR redis.register_function must get a function name argument");
	if (lua_isnil(L, CALLBACK))
		library_fail(L, "ERR redis.register_function must get a callback argument");
}

/* register_function(name, callback) */
static void take_two(lua_State *L)
{
	if (!lua_isstring(L, 1))
		library_fail(L, "ERR first argument to redis.register_function must be a string");
	if (!lua_isfunction(L, 2))
		library_fail(L,
			     "ERR second argument to redis.register_function must be a function");
	lua_pushnil(L);
	lua_insert(L, 1);
	lua_pushnil(L);
	lua_insert(L, DESCRIPTION);
}

static const struct function *library_find(const struct library *lib, const char *name)
{
	for (unsigned int i = 0; i < lib->count; i++)
		if (strcasecmp(lib->functions[i].name, name) == 0)
			return &lib->functions[i];
	return NULL;
}

/* Adds the function whose arguments are in their slots. */
static void library_register(lua_State *L, struct library *lib, unsigned int flags)
{
	const char *description = lua_tostring(L, DESCRIPTION);
	struct function f = { .flags = flags | SCRIPT_HAS_FLAGS }, *functions;

	lua_pushvalue(L, CALLBACK);
	f.ref = luaL_ref(L, LUA_REGISTRYINDEX); /* no error of Lua is raised below */
	functions = reallocarray(lib->functions, lib->count + 1, sizeof(*functions));
	if (functions)
		lib->functions = functions;
	f.name = strdup(lua_tostring(L, NAME));
	f.description = description ? strdup(description) : NULL;
	if (functions && f.name && (f.description || !description)) {
		functions[lib->count++] = f;
		return;
	}
	free(f.name);
	free(f.description);
	luaL_unref(L, LUA_REGISTRYINDEX, f.ref);
	library_fail(L, "ERR out of memory");
}

static int register_function(lua_State *L)
{
	struct library *lib = lua_of(L)->loading;
	int args = lua_gettop(L);
	unsigned int flags = 0;
	const char *name;
	size_t len;

	if (!lib)
		return library_fail(
			L, "ERR redis.register_function can only be called on FUNCTION LOAD "
			   "command");
	if (args < 1 || args > 2)
		return library_fail(L, "ERR wrong number of arguments to redis.register_function");
	if (args == 1)
		take_table(L, &flags);
	else
		take_two(L);
	name = lua_tolstring(L, NAME, &len);
	if (!function_name_ok(name, len))
		return library_fail(L, "ERR Library names can only contain letters, numbers, or "
				       "underscores(_) and must be at least one character long");
	if (library_find(lib, name))
		return library_fail(L, "ERR Function already exists in the library");
	library_register(L, lib, flags);
	return 0;
}

/* --- loading --- */

/* Pushes what a library sees while it is loaded: `redis`, with little in it. */
static void push_loading_globals(lua_State *L)
{
	lua_newtable(L);
	lua_newtable(L);
	lua_pushcfunction(L, register_function);
	lua_setfield(L, -2, "register_function");
	lua_add_redis_log(L);
	lua_refuse_unknown(L);
	lua_protect(L);
	lua_setfield(L, -2, "redis");
	lua_refuse_unknown(L);
	lua_protect(L);
}

/* Pushes the table of globals of all libraries, which is made when it is needed first. */
static void push_environment(lua_State *L)
{
	lua_getfield(L, LUA_REGISTRYINDEX, ENVIRONMENT);
	if (!lua_isnil(L, -1))
		return;
	lua_pop(L, 1);
	lua_newtable(L);
	lua_protect(L);
	lua_pushvalue(L, -1);
	lua_setfield(L, LUA_REGISTRYINDEX, ENVIRONMENT);
}

/* Makes the environment show the globals on top, and pops them. */
static int show_globals(lua_State *L)
{
	push_environment(L);
	/* lua_getmetatable() is not bound by __metatable */
	lua_getmetatable(L, -1);
	lua_pushvalue(L, -3);
	lua_setfield(L, -2, "__index");
	lua_pop(L, 3);
	return 0;
}

static int run_library(lua_State *L)
{
	const struct resp_arg *body = lua_touserdata(L, 1);

	push_loading_globals(L);
	show_globals(L);
	if (lua_load_text(L, body->ptr, body->len, CHUNK_NAME)) {
		const char *why = lua_of(L)->run->ended;

		lua_pushfstring(L, "Error compiling function: %s", why ? why : lua_tostring(L, -1));
		return lua_error(L);
	}
	push_environment(L);
	lua_setfenv(L, -2);
	lua_sethook(L, lua_time_hook, LUA_MASKCOUNT, LUA_CHECK_EVERY);
	lua_tick(L);
	if (!lua_pcall(L, 0, 0, 0))
		return 0;
	lua_sethook(L, NULL, 0, 0);
	if (lua_istable(L, -1)) {
		lua_getfield(L, -1, "err");
		lua_pushfstring(L, "Error registering functions: %s", lua_tostring(L, -1));
	} else if (lua_of(L)->run->ended) { /* it got no more memory */
		lua_pushfstring(L, "Error registering functions: %s", lua_of(L)->run->ended);
	} else {
		lua_pushfstring(L, "Error registering functions: ERR %s", lua_tostring(L, -1));
	}
	return lua_error(L);
}

static int show_all(lua_State *L)
{
	lua_push_globals(L);
	return show_globals(L);
}

bool interpreter_load_library(struct interpreter *lua, struct library *lib,
			      const struct resp_arg *body, char *error, size_t error_len)
{
	struct script_run run = { .busy_ns = UINT64_MAX, .end_ns = monotonic_ns() + LOAD_NS };
	bool loaded;

	lua->run = &run;
	lua->loading = lib;
	loaded = !lua_cpcall(lua->state, run_library, (void *)(uintptr_t)body);
	lua_tick(NULL);
	lua_sethook(lua->state, NULL, 0, 0);
	lua->loading = NULL;
	lua->run = NULL;
	if (!loaded) {
		const char *why = lua_tostring(lua->state, -1);

		snprintf(error, error_len, "ERR %s", why ? why : "unknown error");
	} else if (!lib->count) {
		snprintf(error, error_len, "ERR No functions registered");
	}
	lua_settop(lua->state, 0);
	if (!loaded)
		lua_collect(lua->state, 0);
	if (lua_cpcall(lua->state, show_all, NULL)) {
		snprintf(error, error_len, "ERR out of memory");
		loaded = false;
	}
	lua_settop(lua->state, 0);
	return loaded && lib->count;
}

static int unref_functions(lua_State *L)
{
	const struct library *lib = lua_touserdata(L, 1);

	for (unsigned int i = 0; i < lib->count; i++)
		luaL_unref(L, LUA_REGISTRYINDEX, lib->functions[i].ref);
	return 0;
}

void library_free(struct interpreter *lua, struct library *lib)
{
	if (!lib)
		return;
	if (lua && lua_cpcall(lua->state, unref_functions, lib))
		lua_settop(lua->state, 0);
	for (unsigned int i = 0; i < lib->count; i++) {
		free(lib->functions[i].name);
		free(lib->functions[i].description);
	}
	free(lib->functions);
	free(lib->name);
	free(lib->text);
	free(lib);
}

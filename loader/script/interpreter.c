/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The interpreter: its memory, its globals, its limits, and the scripts that it knows.
 *
 * Every call of the Lua API that may fail is made in protected mode.  Globals and libraries are
 * seen through proxies that cannot be written to, so no script leaves anything behind; what Redis
 * refuses (files, bytecode, environments) is not there.
 */
#include "interpreter.h"

#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

#include "lua_impl.h"
#include "util/machine.h"

#define CHUNK_NAME  "@user_script"
#define SCRIPTS	    "xkv scripts" /* in the registry: compiled scripts by their SHA */
#define FLAGS	    "xkv flags"	  /* flags of scripts by their SHA */
#define CACHED	    "xkv cached"  /* struct cached of scripts that may be evicted, by their SHA */
#define GLOBALS	    "xkv globals" /* what scripts see as their globals */
#define GC_ABOVE    (16 << 20)	  /* growth since the last full collection that causes the next */
#define UNPACK_MAX  8000	  /* as Lua: LUAI_MAXCSTACK */
#define CACHED_MAX  500		  /* scripts of EVAL that are kept, as in Redis 7.4 */
#define CACHED_FEW  16		  /* so few scripts are not worth a full collection */
#define LOAD_PIECE  1024 /* bytes of a text that are compiled between two looks at the clock */
#define GC_STEP	    64	 /* KiB of work between two looks at the clock */
#define GC_PERIOD   50	 /* scripts between two steps of the collector, each of so many KiB */
#define REPLY_ERROR "xkv reply error"

static int reply_run_error(lua_State *L);

/* ---- globals --------------------------------------------------------------- */

struct interpreter *lua_of(lua_State *L)
{
	void *lua;

	lua_getallocf(L, &lua); /* the argument of lua_allocate() */
	return lua;
}

#define READONLY "Attempt to modify a readonly table"

static int refuse_write(lua_State *L)
{
	return luaL_error(L, READONLY);
}

void lua_check_writable(lua_State *L, int index)
{
	if (!luaL_getmetafield(L, index, "__newindex"))
		return;
	if (lua_tocfunction(L, -1) == refuse_write) {
		lua_pushliteral(L, READONLY); /* as in Redis, without the line */
		lua_error(L);
	}
	lua_pop(L, 1);
}

static int refuse_unknown(lua_State *L)
{
	const char *name = lua_tostring(L, 2);

	return luaL_error(L, "Script attempted to access nonexistent global variable '%s'",
			  name ? name : "(not a name)");
}

void lua_protect(lua_State *L)
{
	lua_newtable(L);
	lua_newtable(L);
	lua_pushvalue(L, -3);
	lua_setfield(L, -2, "__index");
	lua_pushcfunction(L, refuse_write);
	lua_setfield(L, -2, "__newindex");
	lua_pushboolean(L, false);
	lua_setfield(L, -2, "__metatable");
	lua_setmetatable(L, -2);
	lua_remove(L, -2);
}

void lua_refuse_unknown(lua_State *L)
{
	lua_newtable(L);
	lua_pushcfunction(L, refuse_unknown);
	lua_setfield(L, -2, "__index");
	lua_setmetatable(L, -2);
}

void lua_push_globals(lua_State *L)
{
	lua_getfield(L, LUA_REGISTRYINDEX, GLOBALS);
}

/* The part of a text that is not yet compiled. */
struct text {
	const char *at;
	size_t left;
};

/* Checks the clock before each piece, as some texts take quadratic time to compile. */
static const char *next_piece(lua_State *L, void *arg, size_t *len)
{
	struct text *t = arg;
	const char *piece = t->at;

	if (lua_of(L)->run)
		lua_check_time(L);
	*len = t->left < LOAD_PIECE ? t->left : LOAD_PIECE;
	t->at += *len;
	t->left -= *len;
	return piece;
}

int lua_load_text(lua_State *L, const char *text, size_t len, const char *name)
{
	return lua_load(L, next_piece, &(struct text){ text, len }, name);
}

/* Text only: bytecode could break out of the interpreter. */
static int load_text(lua_State *L, const char *text, size_t len, const char *name)
{
	if (len && text[0] == LUA_SIGNATURE[0]) {
		lua_pushnil(L);
		lua_pushliteral(L, "attempt to load a binary chunk");
		return 2;
	}
	lua_pushstring(L, name); /* the reference that keeps Lua's copy of the name alive */
	if (!lua_load_text(L, text, len, name)) {
		lua_getfield(L, LUA_REGISTRYINDEX, GLOBALS);
		lua_setfenv(L, -2);
		return 1;
	}
	lua_pushnil(L);
	lua_insert(L, -2);
	return 2;
}

static int global_loadstring(lua_State *L)
{
	size_t len;
	const char *text = luaL_checklstring(L, 1, &len);

	int results = load_text(L, text, len, luaL_optstring(L, 2, text));

	lua_check_time(L);
	return results;
}

/* load(function): the pieces that it returns are joined first. */
static int global_load(lua_State *L)
{
	const char *name = luaL_optstring(L, 2, "=(load)"), *text;
	luaL_Buffer all;
	size_t len;

	luaL_checktype(L, 1, LUA_TFUNCTION);
	luaL_buffinit(L, &all);
	for (;;) {
		lua_check_time(L);
		lua_pushvalue(L, 1);
		lua_call(L, 0, 1);
		if (lua_isnil(L, -1) || (lua_isstring(L, -1) && !lua_objlen(L, -1)))
			break;
		if (!lua_isstring(L, -1))
			return luaL_error(L, "reader function must return a string");
		luaL_addvalue(&all);
	}
	lua_pop(L, 1);
	luaL_pushresult(&all);
	text = lua_tolstring(L, -1, &len);
	return load_text(L, text, len, name);
}

static int global_rawset(lua_State *L)
{
	luaL_checktype(L, 1, LUA_TTABLE);
	luaL_checkany(L, 3);
	lua_check_writable(L, 1);
	lua_settop(L, 3);
	lua_rawset(L, 1);
	return 1;
}

/* Lua's own computes the number of results in 32 bits (CVE-2025-46817). */
static int global_unpack(lua_State *L)
{
	int64_t first, last;

	luaL_checktype(L, 1, LUA_TTABLE);
	first = luaL_optint(L, 2, 1);
	last = luaL_opt(L, luaL_checkint, 3, (int)lua_objlen(L, 1));
	if (first > last)
		return 0;
	if (last - first >= UNPACK_MAX || !lua_checkstack(L, (int)(last - first + 1)))
		return luaL_error(L, "too many results to unpack");
	for (int64_t i = first; i <= last; i++) {
		lua_look(L);
		lua_rawgeti(L, 1, (int)i);
	}
	return (int)(last - first + 1);
}

/* Without what would outlast the script: the collector cannot be stopped or tuned. */
static int global_collectgarbage(lua_State *L)
{
	const char *what = luaL_optstring(L, 1, "collect");

	if (strcmp(what, "count") == 0)
		lua_pushnumber(L, lua_gc(L, LUA_GCCOUNT, 0) + lua_gc(L, LUA_GCCOUNTB, 0) / 1024.);
	else
		lua_pushinteger(L, 0);
	if (strcmp(what, "collect") == 0)
		lua_collect(L, 0);
	lua_check_time(L);
	return 1;
}

/* As in Redis, the error of a command is caught as its text. */
static int global_pcall(lua_State *L)
{
	bool failed;

	luaL_checkany(L, 1);
	failed = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
	if (failed && lua_istable(L, -1)) {
		lua_getfield(L, -1, "err");
		if (lua_isstring(L, -1))
			lua_replace(L, -2);
		else
			lua_pop(L, 1);
	}
	lua_pushboolean(L, !failed);
	lua_insert(L, 1);
	return lua_gettop(L);
}

/*
 * Calls the handler after the function has ended, not where the error was raised, as Lua does:
 * there, for an error that the hook has raised, it would run without a hook, perhaps forever.
 */
static int global_xpcall(lua_State *L)
{
	bool failed;

	luaL_checkany(L, 2);
	lua_settop(L, 2);
	lua_insert(L, 1);
	failed = lua_pcall(L, 0, LUA_MULTRET, 0);
	if (failed) {
		lua_pushvalue(L, 1);
		lua_insert(L, 2);
		if (lua_pcall(L, 1, 1, 0)) {
			lua_pushliteral(L, "error in error handling");
			lua_replace(L, -2);
		}
	}
	lua_pushboolean(L, !failed);
	lua_replace(L, 1);
	return lua_gettop(L);
}

static void open_library(lua_State *L, const char *name, lua_CFunction open)
{
	lua_pushcfunction(L, open);
	lua_pushstring(L, name);
	lua_call(L, 1, 0);
}

int luaopen_bit(lua_State *L);

static void open_libraries(lua_State *L)
{
	open_library(L, "", luaopen_base);
	open_library(L, LUA_TABLIBNAME, luaopen_table);
	open_library(L, LUA_STRLIBNAME, luaopen_string);
	open_library(L, LUA_MATHLIBNAME, luaopen_math);
	lua_open_cjson(L);
	open_library(L, "bit", luaopen_bit);
	open_library(L, "struct", lua_open_struct);
	open_library(L, "cmsgpack", lua_open_cmsgpack);
	lua_own_patterns(L);
	lua_own_tables(L);
	lua_own_coroutines(L);
	lua_guard_libraries(L);
	lua_own_random(L);
}

/* The table of globals: what is named here, and nothing else. */
static void make_globals(lua_State *L)
{
	static const char *const functions[] = {
		"assert",   "error",	"gcinfo",	"getmetatable", "ipairs",
		"next",	    "pairs",	"rawequal",	"rawget",	"select",
		"tonumber", "tostring", "setmetatable", "type",		"_VERSION",
	};
	static const char *const libraries[] = { "string", "table",  "math",	 "bit",
						 "cjson",  "struct", "cmsgpack", "coroutine" };
	static const luaL_Reg ours[] = { { "collectgarbage", global_collectgarbage },
					 { "load", global_load },
					 { "loadstring", global_loadstring },
					 { "pcall", global_pcall },
					 { "rawset", global_rawset },
					 { "unpack", global_unpack },
					 { "xpcall", global_xpcall },
					 { NULL, NULL } };

	lua_newtable(L);
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		lua_getglobal(L, functions[i]);
		lua_setfield(L, -2, functions[i]);
	}
	for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
		lua_getglobal(L, libraries[i]);
		lua_protect(L);
		lua_setfield(L, -2, libraries[i]);
	}
	for (const luaL_Reg *f = ours; f->name; f++) {
		lua_pushcfunction(L, f->func);
		lua_setfield(L, -2, f->name);
	}
	lua_newtable(L);
	lua_add_redis(L);
	lua_protect(L);
	lua_setfield(L, -2, "redis");
}

static int set_up(lua_State *L)
{
	open_libraries(L);
	/* compiled bytecode could be changed before it is loaded again */
	lua_getglobal(L, "string");
	lua_pushnil(L);
	lua_setfield(L, -2, "dump");
	lua_pushliteral(L, "");
	lua_getmetatable(L, -1);
	lua_pushboolean(L, false);
	lua_setfield(L, -2, "__metatable");
	make_globals(L);
	lua_refuse_unknown(L);
	lua_pushvalue(L, -1);
	lua_replace(L, LUA_GLOBALSINDEX); /* where KEYS and ARGV are set */
	lua_protect(L);
	lua_pushvalue(L, -1);
	lua_setfield(L, LUA_REGISTRYINDEX, GLOBALS);
	lua_setglobal(L, "_G");
	lua_newtable(L);
	lua_setfield(L, LUA_REGISTRYINDEX, SCRIPTS);
	lua_newtable(L);
	lua_setfield(L, LUA_REGISTRYINDEX, FLAGS);
	lua_newtable(L);
	lua_setfield(L, LUA_REGISTRYINDEX, CACHED);
	lua_pushcfunction(L, reply_run_error);
	lua_setfield(L, LUA_REGISTRYINDEX, REPLY_ERROR);
	return 0;
}

/* A script that came with EVAL: it may be evicted. */
struct cached {
	TAILQ_ENTRY(cached) link;
	char sha[SCRIPT_SHA_TEXT];
};

struct interpreter *interpreter_new(void)
{
	struct interpreter *lua = calloc(1, sizeof(*lua));

	if (!lua)
		return NULL;
	TAILQ_INIT(&lua->cached);
	lua->spared = memory_reserve(memory_whole()) / 4;
	lua->state = lua_newstate(lua_allocate, lua);
	if (lua->state && !lua_cpcall(lua->state, set_up, lua))
		return lua;
	interpreter_free(lua);
	return NULL;
}

void interpreter_free(struct interpreter *lua)
{
	struct cached *e;

	if (!lua)
		return;
	while ((e = TAILQ_FIRST(&lua->cached))) {
		TAILQ_REMOVE(&lua->cached, e, link);
		free(e);
	}
	if (lua->state)
		lua_close(lua->state);
	free(lua);
}

size_t interpreter_memory(const struct interpreter *lua)
{
	return lua ? lua->memory : 0;
}

unsigned int interpreter_scripts(const struct interpreter *lua)
{
	return lua ? lua->scripts : 0;
}

uint64_t interpreter_evicted(const struct interpreter *lua)
{
	return lua ? lua->evicted : 0;
}

/* ---- scripts --------------------------------------------------------------- */

void script_sha(const void *text, size_t len, char sha[SCRIPT_SHA_TEXT])
{
	static const char digit[] = "0123456789abcdef";
	unsigned char digest[SHA_DIGEST_LENGTH];

	SHA1(text, len, digest);
	for (int i = 0; i < SHA_DIGEST_LENGTH; i++) {
		*sha++ = digit[digest[i] >> 4];
		*sha++ = digit[digest[i] & 15];
	}
	*sha = '\0';
}

void interpreter_sha(struct interpreter *lua, const struct resp_arg *text,
		     char sha[SCRIPT_SHA_TEXT])
{
	if (text->len > LAST_MAX) {
		script_sha(text->ptr, text->len, sha);
		return;
	}
	if (!*lua->last_sha || text->len != lua->last_len ||
	    memcmp(text->ptr, lua->last, text->len) != 0) {
		script_sha(text->ptr, text->len, lua->last_sha);
		memcpy(lua->last, text->ptr, text->len);
		lua->last_len = text->len;
	}
	memcpy(sha, lua->last_sha, SCRIPT_SHA_TEXT);
}

/* Arguments and results of looking up, loading or forgetting a script. */
struct known {
	const char *sha;
	const struct resp_arg *text;
	unsigned int flags;
	bool found;
	bool stays;	       /* forget_script(): keep the script, but never evict it */
	struct cached *cached; /* NULL: it is never evicted */
};

static int ask_script(lua_State *L)
{
	struct known *k = lua_touserdata(L, 1);

	lua_getfield(L, LUA_REGISTRYINDEX, SCRIPTS);
	lua_getfield(L, -1, k->sha);
	k->found = !lua_isnil(L, -1);
	lua_getfield(L, LUA_REGISTRYINDEX, FLAGS);
	lua_getfield(L, -1, k->sha);
	k->flags = (unsigned int)lua_tointeger(L, -1);
	lua_getfield(L, LUA_REGISTRYINDEX, CACHED);
	lua_getfield(L, -1, k->sha);
	k->cached = lua_touserdata(L, -1);
	return 0;
}

bool interpreter_knows(struct interpreter *lua, const char *sha, unsigned int *flags)
{
	struct known k = { .sha = sha };

	lua_cpcall(lua->state, ask_script, &k);
	lua_settop(lua->state, 0);
	if (flags)
		*flags = k.flags;
	if (k.cached && flags) { /* it is used */
		TAILQ_REMOVE(&lua->cached, k.cached, link);
		TAILQ_INSERT_TAIL(&lua->cached, k.cached, link);
	}
	return k.found;
}

/* Sets entries of a script to nil, which takes no memory: the keys are there. */
static int forget_script(lua_State *L)
{
	static const char *const tables[] = { CACHED, FLAGS, SCRIPTS };
	const struct known *k = lua_touserdata(L, 1);

	for (size_t i = 0; i < (k->stays ? 1 : 3); i++) {
		lua_getfield(L, LUA_REGISTRYINDEX, tables[i]);
		lua_pushnil(L);
		lua_setfield(L, -2, k->sha);
	}
	return 0;
}

/* Forgets a script, or, if it `stays`, makes it one that is never evicted. */
static bool interpreter_forget(struct interpreter *lua, const char *sha, bool stays)
{
	struct known k = { .sha = sha, .stays = stays };
	int failed;

	lua->unlimited = true;
	failed = lua_cpcall(lua->state, forget_script, &k);
	lua->unlimited = false;
	lua_settop(lua->state, 0);
	return !failed;
}

static void uncache(struct interpreter *lua, struct cached *e)
{
	TAILQ_REMOVE(&lua->cached, e, link);
	lua->cached_count--;
	free(e);
}

void interpreter_keep(struct interpreter *lua, const char *sha)
{
	struct known k = { .sha = sha };

	lua_cpcall(lua->state, ask_script, &k);
	lua_settop(lua->state, 0);
	if (k.cached && interpreter_forget(lua, sha, true))
		uncache(lua, k.cached);
}

/* Evicts all but so many of the scripts that came with EVAL, those not used for longest first. */
static void evict(struct interpreter *lua, unsigned int most)
{
	struct cached *e;

	while (lua->cached_count > most) {
		e = TAILQ_FIRST(&lua->cached);
		if (!interpreter_forget(lua, e->sha, false))
			return;
		uncache(lua, e);
		lua->scripts--;
		lua->evicted++;
	}
}

/* Evicts scripts until those that are kept take at most half of the memory: runs need the rest. */
static void interpreter_make_room(struct interpreter *lua)
{
	evict(lua, CACHED_MAX - 1);
	if (lua->memory <= LUA_MEMORY_MAX / 2 || lua->cached_count < CACHED_FEW)
		return;
	evict(lua, lua->cached_count / 2);
	lua_collect(lua->state, 0);
	lua->kept = lua->memory;
}

static int load_script(lua_State *L)
{
	const struct known *k = lua_touserdata(L, 1);

	if (k->text->len && k->text->ptr[0] == LUA_SIGNATURE[0])
		return luaL_error(L, "attempt to load a binary chunk");
	lua_getfield(L, LUA_REGISTRYINDEX, SCRIPTS);
	lua_pushliteral(L, CHUNK_NAME); /* anchored while it is compiled (CVE-2025-49844) */
	if (lua_load_text(L, k->text->ptr, k->text->len, CHUNK_NAME))
		return lua_error(L);
	lua_getfield(L, LUA_REGISTRYINDEX, GLOBALS);
	lua_setfenv(L, -2);
	lua_getfield(L, LUA_REGISTRYINDEX, FLAGS);
	lua_pushinteger(L, (lua_Integer)k->flags);
	lua_setfield(L, -2, k->sha);
	lua_getfield(L, LUA_REGISTRYINDEX, CACHED);
	if (k->cached)
		lua_pushlightuserdata(L, k->cached);
	else
		lua_pushnil(L);
	lua_setfield(L, -2, k->sha);
	lua_pop(L, 2);
	lua_setfield(L, -3, k->sha);
	return 0;
}

/* Loads a script; out of memory, evicts all that can be and tries again.  0, or Lua's error. */
static int load_known(struct interpreter *lua, struct known *k)
{
	int ret = lua_cpcall(lua->state, load_script, k);

	if (ret != LUA_ERRMEM || !lua->cached_count)
		return ret;
	lua_settop(lua->state, 0);
	evict(lua, 0);
	lua_collect(lua->state, 0);
	lua->kept = lua->memory;
	return lua_cpcall(lua->state, load_script, k);
}

/* Why the script on top cannot be compiled, in `error`. */
static void describe_load(const struct interpreter *lua, char *error, size_t error_len)
{
	const char *text = lua_tostring(lua->state, -1);

	if (lua->run->ended)
		snprintf(error, error_len, "%s", lua->run->ended);
	else
		snprintf(error, error_len, "ERR Error compiling script (new function): %s",
			 text ? text : "what was read before has changed");
}

bool interpreter_load(struct interpreter *lua, struct script_run *run, const struct resp_arg *text,
		      unsigned int flags, bool keep, char *error, size_t error_len)
{
	struct known k = { .sha = run->name, .text = text, .flags = flags };
	bool failed;

	lua->run = run;
	lua_tick(lua->state);
	if (!keep) {
		k.cached = calloc(1, sizeof(*k.cached)); /* without memory it stays */
		interpreter_make_room(lua);
	}
	failed = load_known(lua, &k);
	lua_tick(NULL);
	lua_sethook(lua->state, NULL, 0, 0); /* if it was ended */
	if (failed)
		describe_load(lua, error, error_len);
	lua->run = NULL;
	lua_settop(lua->state, 0);
	if (failed) {
		if (interpreter_forget(lua, k.sha, false))
			free(k.cached);
		return false;
	}
	lua->scripts++;
	if (k.cached) {
		memcpy(k.cached->sha, k.sha, SCRIPT_SHA_TEXT);
		TAILQ_INSERT_TAIL(&lua->cached, k.cached, link);
		lua->cached_count++;
	}
	return true;
}

/* ---- running --------------------------------------------------------------- */

/* The next collection is due when half of the memory that is free now has been used. */
static void set_mark(struct interpreter *lua)
{
	lua->collect_at = lua->memory + (LUA_MEMORY_MAX - lua->memory) / 2;
	if (lua->memory > LUA_MEMORY_MAX)
		lua->collect_at = LUA_MEMORY_MAX;
	if (lua->collect_at < LUA_MEMORY_MAX / 2)
		lua->collect_at = LUA_MEMORY_MAX / 2;
}

/*
 * Lua 5.1 collects when memory has doubled since the last collection, and not when an allocation
 * fails; so a script could use only half of its memory.  This collects earlier.
 */
static void collect_early(lua_State *L)
{
	struct interpreter *lua = lua_of(L);

	for (int cycles = 0; cycles < 2; lua_check_time(L))
		cycles += lua_collect(L, GC_STEP);
	set_mark(lua);
}

void lua_time_hook(lua_State *L, lua_Debug *where)
{
	lua_check_time(L);
	if (lua_of(L)->memory > lua_of(L)->collect_at)
		collect_early(L);
	if (lua_gethookcount(L) == 1) /* lua_tick() */
		lua_sethook(L, lua_time_hook, LUA_MASKCOUNT, LUA_CHECK_EVERY);
}

/* Ends a script again at each line, should it catch the error; also around a coroutine. */
void lua_check_time(lua_State *L)
{
	struct interpreter *lua = lua_of(L);
	const char *why;

	lua_due = false;
	why = script_yield(lua->run);
	if (!why)
		return;
	lua_sethook(L, lua_time_hook, LUA_MASKLINE | LUA_MASKCOUNT, 1000);
	lua_sethook(lua->state, lua_time_hook, LUA_MASKLINE | LUA_MASKCOUNT, 1000);
	lua_push_error(L, why);
	lua_error(L);
}

bool lua_has_to_end(lua_State *L)
{
	lua_due = false;
	return script_yield(lua_of(L)->run);
}

/* Turns any error into a table with `err`, `source` and `line`. */
static int describe_error(lua_State *L)
{
	lua_Debug at;
	const char *text;
	int last = 2;

	if (!lua_istable(L, 1)) {
		text = lua_isnil(L, 1) ? "nil" : lua_tostring(L, 1);
		lua_newtable(L);
		lua_pushfstring(L, "ERR %s", text ? text : "(error object is not a string)");
		lua_setfield(L, -2, "err");
		lua_replace(L, 1);
	}
	if (lua_getstack(L, 1, &at) && lua_is_comparison(L, &at))
		last++; /* Lua's own sort() has no such call */
	for (int level = 1; level <= last && lua_getstack(L, level, &at); level++) {
		if (!lua_getinfo(L, "Sl", &at) || *at.what == 'C')
			continue;
		lua_pushstring(L, at.source);
		lua_setfield(L, 1, "source");
		lua_pushinteger(L, at.currentline);
		lua_setfield(L, 1, "line");
		break;
	}
	lua_settop(L, 1);
	return 1;
}

static void push_list(lua_State *L, unsigned int count, const struct resp_arg *argv)
{
	lua_createtable(L, (int)count, 0);
	for (unsigned int i = 0; i < count; i++) {
		lua_pushlstring(L, argv[i].ptr, argv[i].len);
		lua_rawseti(L, -2, (int)i + 1);
	}
}

/* Pushes a function with keys and arguments, or a script, which has them as globals. */
static int push_code(lua_State *L, const struct script_run *run)
{
	if (run->function)
		lua_rawgeti(L, LUA_REGISTRYINDEX, run->function);
	push_list(L, run->keys, run->argv);
	push_list(L, run->args, run->argv + run->keys);
	if (run->function)
		return 2;
	lua_setglobal(L, "ARGV");
	lua_setglobal(L, "KEYS");
	lua_getfield(L, LUA_REGISTRYINDEX, SCRIPTS);
	lua_getfield(L, -1, run->name);
	lua_remove(L, -2);
	return 0;
}

/* Leaves the reply in lua->reply. */
static int run_protected(lua_State *L)
{
	struct interpreter *lua = lua_touserdata(L, 1);
	int args;

	if (lua->cjson_used)
		lua_reset_cjson(L);
	lua_settop(L, 0);
	lua_tick(L);
	lua_pushcfunction(L, describe_error);
	args = push_code(L, lua->run);
	lua_sethook(L, lua_time_hook, LUA_MASKCOUNT, LUA_CHECK_EVERY);
	if (lua_pcall(L, args, 1, 1))
		return lua_error(L);
	reply_part(&lua->reply, reply_to(lua->run->caller));
	lua_reply_value(L, &lua->reply);
	return 0;
}

/* The field as text.  It stays on the stack, the only reference to a number's text. */
static const char *interpreter_field(lua_State *L, const char *name)
{
	lua_pushstring(L, name);
	lua_rawget(L, 1);
	return lua_tostring(L, -1);
}

/* Replies the error that is its argument. */
static int reply_run_error(lua_State *L)
{
	const struct interpreter *lua = lua_of(L);
	struct reply *r = reply_to(lua->run->caller);
	/* a script that is ended gets no more memory, either: the error is then why it was ended */
	const char *text = lua->run->ended, *source = NULL, *line = NULL;

	if (lua_istable(L, -1)) {
		text = text ? text : interpreter_field(L, "err");
		source = interpreter_field(L, "source");
		line = interpreter_field(L, "line");
	} else if (!text) {
		text = lua_tostring(L, -1); /* out of memory, an error in the error handler */
		reply_error(r, "ERR %s%s script: %s", text ? text : "unknown error",
			    lua->alike ? ": Lua 5.1 hashes too many keys of a table alike" : "",
			    lua->run->name);
		return 0;
	}
	if (source && line)
		reply_error(r, "%s script: %s, on %s:%s.", text ? text : "ERR unknown error",
			    lua->run->name, source, line);
	else
		reply_error(r, "%s script: %s", text ? text : "ERR unknown error", lua->run->name);
	return 0;
}

static int run_collector(lua_State *L)
{
	int *step = lua_touserdata(L, 1);
	const struct interpreter *lua = lua_of(L);

	if (*step) {
		*step = lua_gc(L, LUA_GCSTEP, *step);
		return 0;
	}
	if (lua->memory < GC_ABOVE) {
		lua_gc(L, LUA_GCCOLLECT, 0);
		return 0;
	}
	for (int cycles = 0; cycles < 2;) { /* the first may have begun before garbage was made */
		cycles += lua_gc(L, LUA_GCSTEP, GC_STEP);
		if (lua->run && !script_clean_up(lua->run))
			break;
	}
	return 0;
}

bool lua_collect(lua_State *L, int step)
{
	struct interpreter *lua = lua_of(L);
	int top = lua_gettop(L);

	lua->unlimited = true;
	if (lua_cpcall(L, run_collector, &step))
		log_debug("the collector of Lua has not ended: out of memory");
	lua->unlimited = false;
	lua_settop(L, top);
	return step;
}

/* Collects all garbage after a script that has left much, else a step of it now and then. */
static void collect(struct interpreter *lua)
{
	if (lua->memory > lua->kept + GC_ABOVE) {
		lua_collect(lua->state, 0);
		lua->kept = lua->memory;
	} else if (++lua->runs == GC_PERIOD) {
		lua_collect(lua->state, GC_PERIOD);
		lua->runs = 0;
	}
}

bool interpreter_run(struct interpreter *lua, struct script_run *run)
{
	lua_State *L = lua->state;
	bool failed;

	lua->run = run;
	lua->resp = PROTOCOL_RESP2;
	lua->alike = false;
	if (!run->function)
		lua->table_count = 0; /* large tables of earlier scripts are garbage */
	set_mark(lua);
	failed = lua_cpcall(L, run_protected, lua);
	lua_tick(NULL);
	lua_sethook(L, NULL, 0, 0);
	if (failed) {
		reply_free(&lua->reply);
		lua_collect(L, 0);
		lua_getfield(L, LUA_REGISTRYINDEX, REPLY_ERROR); /* allocates nothing */
		lua_insert(L, -2);
		if (lua_pcall(L, 1, 0, 0))
			reply_error(reply_to(run->caller), "ERR the script ran out of memory");
	} else if (run->ended) { /* the script caught that error, and returned */
		reply_free(&lua->reply);
		reply_error(reply_to(run->caller), "%s", run->ended);
		failed = true;
	} else {
		reply_splice(reply_to(run->caller), &lua->reply);
	}
	reply_free(&lua->called); /* if there was no memory to read it */
	lua_settop(L, 0);
	collect(lua);
	lua->run = NULL;
	return !failed;
}

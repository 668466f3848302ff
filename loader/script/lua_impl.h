/* SPDX-License-Identifier: BSD-2-Clause */
/* What interpreter.c and lua_redis.c (the library `redis`, and replies) share. */
#ifndef XKV_COMMANDS_LUA_IMPL_H
#define XKV_COMMANDS_LUA_IMPL_H

#include <lua5.1/lauxlib.h>
#include <lua5.1/lua.h>
#include <lua5.1/lualib.h>
#include <signal.h>

#include "database/database.h"
#include "interpreter.h"

#define LUA_CHECK_EVERY 1000	      /* instructions between two looks at the clock */
#define LAST_MAX	4096	      /* bytes of a script whose SHA is remembered */
#define LUA_MEMORY_MAX	(256UL << 20) /* bytes that all scripts and their values may take */
/*
 * The largest size in bytes of a text, of a table's array, or of its other entries: an instruction
 * or an uninterruptible function takes milliseconds for one.
 */
#define LUA_BLOCK_MAX  (32UL << 20)
#define LUA_TABLES_MAX 820 /* so many tables of 8,192 entries fit LUA_MEMORY_MAX */

/* The entries of a large table; their number is 2^order. */
struct lua_nodes {
	const void *at;
	unsigned int order;
};

struct interpreter {
	lua_State *state;
	size_t memory;		  /* bytes that `state` has allocated */
	size_t allocated;	  /* bytes since the last look at the clock */
	size_t spared;		  /* bytes that it may take even if the machine's memory is short */
	size_t seen;		  /* `memory` when it was last found that memory is not short */
	size_t collect_at;	  /* `memory` from which on a script's garbage is collected */
	unsigned int comparisons; /* of table.sort() */
	unsigned int scripts;
	TAILQ_HEAD(cached_list, cached)
	cached; /* of EVAL, the one that was not used for longest first */
	unsigned int cached_count;
	uint64_t evicted;	 /* scripts */
	struct script_run *run;	 /* NULL = none */
	struct library *loading; /* that registers its functions; NULL = none */
	bool cjson_used;	 /* cjson has settings of a script, or a long buffer */
	unsigned int runs;	 /* since the last step of the collector */
	bool unlimited;		 /* the limit of memory is suspended */
	size_t kept;		 /* memory after the last full collection */
	enum protocol resp;	 /* of replies that the script sees: redis.setresp() */
	size_t last_len;	 /* the script that was last asked for */
	char last[LAST_MAX], last_sha[SCRIPT_SHA_TEXT];
	struct reply reply;  /* of the script */
	struct reply called; /* of the last command that it called */
	bool alike;	     /* a table was refused memory because its keys collide */
	unsigned int table_count;
	struct lua_nodes tables[LUA_TABLES_MAX]; /* the large tables of the running script */
};

/* The interpreter that has called a C function. */
struct interpreter *lua_of(lua_State *L);
/* Serves other clients if the script takes long; raises an error if it has to end. */
void lua_check_time(lua_State *L);
/* Serves other clients likewise.  Returns whether the script has to end. */
bool lua_has_to_end(lua_State *L);
/* Have 10 ms passed since the clock was checked?  Set by a timer while a script runs. */
extern _Thread_local volatile sig_atomic_t lua_due;

/* Checks the clock if that is due: for loops whose steps may each walk a long chain. */
static inline void lua_look(lua_State *L)
{
	if (lua_due)
		lua_check_time(L);
}

/* The allocator of an interpreter, which is its argument. */
void *lua_allocate(void *arg, void *block, size_t old, size_t new);
/* Is there a large table whose keys were chosen to collide? */
bool lua_keys_collide(const struct interpreter *lua);

/* As luaL_loadbuffer(), but checks the clock, and fails with its error. */
int lua_load_text(lua_State *L, const char *text, size_t len, const char *name);

/*
 * Collects garbage: all of it, or `step` KiB of work.  In protected mode: the collector allocates,
 * and without memory Lua would end the process.  The stack stays.  True: a cycle has ended.
 */
bool lua_collect(lua_State *L, int step);
/* Raises an error if the value is a proxy that cannot be written to, of a library for instance. */
void lua_check_writable(lua_State *L, int index);
/* Puts guards before functions of the libraries, which are globals (lua_guard.c). */
void lua_guard_libraries(lua_State *L);
/* Is this call a comparison of table.sort() by its guard? */
bool lua_is_comparison(lua_State *L, lua_Debug *at);
/*
 * Replaces the pattern functions of the global `string` by ones that check the clock
 * (lua_pattern.c).
 */
void lua_own_patterns(lua_State *L);
/* Replaces functions of the global `table` by ones that check the clock (lua_table.c). */
void lua_own_tables(lua_State *L);
/*
 * Replaces functions of the global `coroutine` by ones that track which coroutine runs
 * (lua_tick.c).
 */
void lua_own_coroutines(lua_State *L);
/* Makes the hook of the running coroutine be called every 10 ms; NULL: no script runs. */
void lua_tick(lua_State *L);
/* Makes it be called at the next instruction. */
void lua_call_hook(void);
/* Gives the global `math` the random numbers of Redis (lua_random.c). */
void lua_own_random(lua_State *L);
/* Makes the global `cjson`, and makes it again as it was, if a script has changed it. */
void lua_open_cjson(lua_State *L);
void lua_reset_cjson(lua_State *L);
/* Make the globals `struct` and `cmsgpack`, and push them. */
int lua_open_struct(lua_State *L);
int lua_open_cmsgpack(lua_State *L);
/* Pushes an error of ours: a table with the text in `err`. */
void lua_push_error(lua_State *L, const char *text);
/* Replaces the table on top by a proxy that is read through, but not written to. */
void lua_protect(lua_State *L);
/* Makes the table on top raise an error if a name is read that it does not have. */
void lua_refuse_unknown(lua_State *L);
/* Pushes what scripts see as their globals. */
void lua_push_globals(lua_State *L);
/* As a hook: lua_check_time(). */
void lua_time_hook(lua_State *L, lua_Debug *where);
/* Adds the part of `redis` that a library may use while it is loaded to the table on top. */
void lua_add_redis_log(lua_State *L);
/* Adds the library `redis` to the table on top. */
void lua_add_redis(lua_State *L);
/* Replies the value on top, and pops it. */
void lua_reply_value(lua_State *L, struct reply *r);

#endif

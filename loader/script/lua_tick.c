/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A timer that calls a script's hook at its next instruction, since each of the instructions that
 * the hook counts may compare or join texts of megabytes.  A hook may be set by a signal handler.
 *
 * A hook belongs to a coroutine: coroutine.resume() and wrap() are ours, to know which one runs.
 * Semantics and errors are those of Lua 5.1.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lua_impl.h"
#include "util/log.h"

#define TICK_SIGNAL SIGVTALRM
#define TICK_NS	    10000000
#define IDLE_TICKS  100 /* ticks without a script after which the timer is stopped */

/* Of a thread that runs scripts. */
struct ticker {
	timer_t timer;
	bool made;
	volatile sig_atomic_t ticks, idle;
	lua_State *volatile running; /* NULL: no script */
};

static _Thread_local struct ticker ticker;
_Thread_local volatile sig_atomic_t lua_due;

static void set_timer(long ns)
{
	const struct timespec every = { .tv_nsec = ns };

	timer_settime(ticker.timer, 0, &(struct itimerspec){ every, every }, NULL);
	ticker.ticks = ns != 0;
}

void lua_call_hook(void)
{
	if (ticker.running)
		lua_sethook(ticker.running, lua_time_hook, LUA_MASKCOUNT, 1);
}

static void on_tick(int number)
{
	int error = errno;

	lua_call_hook();
	lua_due = ticker.running != NULL;
	ticker.idle = ticker.running ? 0 : ticker.idle + 1;
	if (ticker.idle >= IDLE_TICKS)
		set_timer(0);
	errno = error;
}

/* Threads beside the first one block all signals. */
static bool make_timer(void)
{
	struct sigaction action = { .sa_handler = on_tick, .sa_flags = SA_RESTART };
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = TICK_SIGNAL };
	sigset_t signals;

	event._sigev_un._tid = gettid();
	sigemptyset(&signals);
	sigaddset(&signals, TICK_SIGNAL);
	return !sigaction(TICK_SIGNAL, &action, NULL) &&
	       !timer_create(CLOCK_MONOTONIC, &event, &ticker.timer) &&
	       !pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
}

/*
 * Lua compares texts piece by piece, from one zero byte to the next; a text may have millions.  So
 * the clock is checked here: liblua is linked dynamically, and finds this function before that of
 * the C library.  A script that has to end gets a wrong result, and is ended by the hook.
 */
int strcoll(const char *a, const char *b)
{
	if (lua_due && ticker.running && lua_has_to_end(ticker.running))
		return -1;
	return *a && *b ? strcmp(a, b) : (unsigned char)*a - (unsigned char)*b;
}

void lua_tick(lua_State *L)
{
	ticker.running = L;
	lua_due = false;
	if (!L || ticker.ticks)
		return;
	if (!ticker.made) {
		ticker.made = true;
		if (!make_timer()) {
			log_warning("no timer for scripts: %s", strerror(errno));
			return;
		}
	}
	ticker.idle = 0;
	set_timer(TICK_NS);
}

/* Why the coroutine cannot be resumed; NULL: it can. */
static const char *not_suspended(lua_State *L, lua_State *co)
{
	lua_Debug at;

	if (L == co)
		return "running";
	if (lua_status(co) == LUA_YIELD)
		return NULL;
	if (lua_status(co))
		return "dead";
	if (lua_getstack(co, 0, &at))
		return "normal";
	return lua_gettop(co) ? NULL : "dead";
}

/* Resumes it with the arguments on top.  The number of results, or -1: an error is on top. */
static int tick_resume(lua_State *L, lua_State *co, int args)
{
	const char *why = not_suspended(L, co);
	int status, results;

	if (!lua_checkstack(co, args))
		luaL_error(L, "too many arguments to resume");
	if (why) {
		lua_pushfstring(L, "cannot resume %s coroutine", why);
		return -1;
	}
	lua_xmove(L, co, args);
	lua_setlevel(L, co);
	lua_tick(co);
	status = lua_resume(co, args);
	lua_tick(L);
	results = status && status != LUA_YIELD ? 1 : lua_gettop(co);
	if (!lua_checkstack(L, results + 1))
		luaL_error(L, "too many results to resume");
	lua_xmove(co, L, results);
	return status && status != LUA_YIELD ? -1 : results;
}

static int coroutine_resume(lua_State *L)
{
	lua_State *co = lua_tothread(L, 1);
	int results;

	luaL_argcheck(L, co, 1, "coroutine expected");
	results = tick_resume(L, co, lua_gettop(L) - 1);
	lua_pushboolean(L, results >= 0);
	results = results < 0 ? 1 : results;
	lua_insert(L, -1 - results);
	return results + 1;
}

/* What coroutine.wrap() returns; its upvalue is the coroutine. */
static int wrapped(lua_State *L)
{
	int results = tick_resume(L, lua_tothread(L, lua_upvalueindex(1)), lua_gettop(L));

	if (results >= 0)
		return results;
	if (lua_isstring(L, -1)) {
		luaL_where(L, 1);
		lua_insert(L, -2);
		lua_concat(L, 2);
	}
	return lua_error(L);
}

static int coroutine_create(lua_State *L)
{
	lua_State *co;

	luaL_argcheck(L, lua_isfunction(L, 1) && !lua_iscfunction(L, 1), 1,
		      "Lua function expected");
	lua_check_time(L);
	co = lua_newthread(L);
	lua_pushvalue(L, 1);
	lua_xmove(L, co, 1);
	return 1;
}

static int coroutine_wrap(lua_State *L)
{
	coroutine_create(L);
	lua_pushcclosure(L, wrapped, 1);
	return 1;
}

void lua_own_coroutines(lua_State *L)
{
	static const luaL_Reg functions[] = {
		{ "create", coroutine_create },
		{ "resume", coroutine_resume },
		{ "wrap", coroutine_wrap },
		{ NULL, NULL },
	};

	luaL_register(L, LUA_COLIBNAME, functions);
	lua_pop(L, 1);
}

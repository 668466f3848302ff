// SPDX-License-Identifier: BSD-2-Clause
/* math.random() and math.randomseed() of scripts: lrand48(3), with the numbers that Redis has. */
#include <math.h>
#include <stdlib.h>

#include "lua_impl.h"

/*
 * As in Redis 7 all scripts draw from one sequence, which begins with the process, and which a
 * script may set.  By the thread that runs scripts.
 */
static unsigned short state[3] = { 0x330e, 0xabcd, 0x1234 };

static int math_random(lua_State *L)
{
	lua_Number r = (lua_Number)(nrand48(state) % INT32_MAX) / INT32_MAX;
	int args = lua_gettop(L), low = 1, high;

	if (args > 2)
		return luaL_error(L, "wrong number of arguments");
	if (!args) {
		lua_pushnumber(L, r);
		return 1;
	}
	if (args == 2)
		low = luaL_checkint(L, 1);
	high = luaL_checkint(L, args);
	luaL_argcheck(L, low <= high, args, "interval is empty");
	lua_pushnumber(L, floor(r * ((lua_Number)high - low + 1)) + low);
	return 1;
}

static int math_randomseed(lua_State *L)
{
	unsigned int seed = (unsigned int)luaL_checkint(L, 1);

	state[0] = 0x330e; /* as srand48() does */
	state[1] = (unsigned short)seed;
	state[2] = (unsigned short)(seed >> 16);
	return 0;
}

void lua_own_random(lua_State *L)
{
	lua_getglobal(L, LUA_MATHLIBNAME);
	lua_pushcfunction(L, math_random);
	lua_setfield(L, -2, "random");
	lua_pushcfunction(L, math_randomseed);
	lua_setfield(L, -2, "randomseed");
	lua_pop(L, 1);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Random patterns, texts and replacements: find, match, gmatch and gsub of scripts have the results
 * and the errors of Lua's own.  XKV_FUZZ_SEED, XKV_FUZZ_PATTERNS.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "loader/script/lua_impl.h"

/* Few characters, so that much matches; patterns are made of pieces, some of them malformed. */
static const char compare[] =
	"local theirs, ours, count, seed = ...\n"
	"local pieces = {'a', 'b', '.', '%a', '%d', '%A', '%.', '%s', '%w', '%z', '[ab]', '[^a]',\n"
	"  '[a-c]', '[%d.]', '[]]', '[^]]', '[a-]', '[-a]', '[%]', '(', ')', '(a)', '(.-)', '()',\n"
	"  '%1', '%2', '%b()', '%bab', '%b', '%f[a]', '%f[^%w]', '%f', '^', '$', '%', '[', ']',\n"
	"  'a*', 'a+', 'a-', 'a?', '.*', '.-', '.+', '.?', '[ab]*', '[ab]-', '(a*)', '-', '*', '1'}\n"
	"local chars = {'a', 'a', 'b', 'c', '1', '(', ')', '.', ' ', '\\0', ']', '-', '\\200'}\n"
	"local swaps = {'x', '%0', '%1', '%2', '%%', '%', '<%1>', '', 5, {a = 'A', b = false, aa = 1},\n"
	"  function(a, b) return b end, function(a) return a and #tostring(a) end,\n"
	"  function() return {} end, type, true}\n"
	"local starts = {1, 2, 0, -1, -3, 5, 100, -100}\n"
	"math.randomseed(seed)\n"
	"local function pick(list) return list[math.random(#list)] end\n"
	"local function join(list, most)\n"
	"  local t = {}\n"
	"  for i = 1, math.random(0, most) do t[i] = pick(list) end\n"
	"  return table.concat(t)\n"
	"end\n"
	"local function all(text, pattern, gmatch)\n"
	"  local t = {}\n"
	"  for a, b, c in gmatch(text, pattern) do\n"
	"    t[#t + 1] = tostring(a) .. '|' .. tostring(b) .. '|' .. tostring(c)\n"
	"  end\n"
	"  return table.concat(t, ';')\n"
	"end\n"
	"local function show(...)\n"
	"  local t = {n = select('#', ...), ...}\n"
	"  for i = 1, t.n do t[i] = type(t[i]) .. ':' .. tostring(t[i]) end\n"
	"  return table.concat(t, ',')\n"
	"end\n"
	"local found = 0\n"
	"for i = 1, count do\n"
	"  local text, pattern = join(chars, 12), join(pieces, 5)\n"
	"  local start, swap, plain = pick(starts), pick(swaps), math.random(8) == 1\n"
	"  local function run(lib)\n"
	"    return show(pcall(lib.find, text, pattern, start, plain)),\n"
	"      show(pcall(lib.match, text, pattern, start)),\n"
	"      show(pcall(all, text, pattern, lib.gmatch)),\n"
	"      show(pcall(lib.gsub, text, pattern, swap, math.random(4) == 1 and 1 or nil))\n"
	"  end\n"
	"  math.randomseed(seed + i)\n"
	"  local a = {run(theirs)}\n"
	"  math.randomseed(seed + i)\n"
	"  local b = {run(ours)}\n"
	"  for n = 1, 4 do\n"
	"    if a[n] ~= b[n] then\n"
	"      error(string.format('%q, %q, %s, %s: %s, not %s', text, pattern, start,\n"
	"            tostring(swap), b[n], a[n]))\n"
	"    end\n"
	"  end\n"
	"  if a[1]:sub(1, 19) == 'boolean:true,number' then found = found + 1 end\n"
	"end\n"
	"return found\n";

static void *allocate(void *arg, void *block, size_t old, size_t new)
{
	if (new)
		return realloc(block, new);
	free(block);
	return NULL;
}

/* Pushes a table with the functions of `string`. */
static void push_copy(lua_State *L)
{
	static const char *const names[] = { "find", "match", "gmatch", "gsub" };

	lua_newtable(L);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		lua_getglobal(L, LUA_STRLIBNAME);
		lua_getfield(L, -1, names[i]);
		lua_setfield(L, -3, names[i]);
		lua_pop(L, 1);
	}
}

static long setting(const char *name, long otherwise)
{
	const char *value = getenv(name);

	return value ? strtol(value, NULL, 10) : otherwise;
}

static void test_same_as_lua(void **state)
{
	struct script_run run = { .busy_ns = UINT64_MAX };
	struct interpreter lua = { .run = &run };
	lua_State *L = lua_newstate(allocate, &lua);
	long count = setting("XKV_FUZZ_PATTERNS", getenv("XKV_TEST_LONG") ? 2000000 : 40000);
	long seed = setting("XKV_FUZZ_SEED", 1);

	assert_non_null(L);
	luaL_openlibs(L);
	assert_int_equal(luaL_loadstring(L, compare), 0);
	push_copy(L);
	lua_own_patterns(L);
	push_copy(L);
	lua_pushnumber(L, (lua_Number)count);
	lua_pushnumber(L, (lua_Number)seed);
	if (lua_pcall(L, 4, 1, 0))
		fail_msg("seed %ld: %s", seed, lua_tostring(L, -1));
	print_message("%ld patterns from seed %ld, %ld found\n", count, seed,
		      (long)lua_tonumber(L, -1));
	assert_true(lua_tonumber(L, -1) > (lua_Number)count / 20);
	lua_close(L);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_same_as_lua) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* The library `redis` of scripts: calls of commands, and values as replies and back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "acl/acl.h"
#include "lua_impl.h"
#include "store/txn.h"
#include "util/log.h"

#define DEPTH_MAX 1000	/* nesting of tables that are replied */
#define FEW_ARGS  16	/* arguments of a command on the C stack; more are in Lua's memory */
#define FEW_BYTES 512	/* bytes of a reply on the C stack; longer ones are in Lua's memory */
#define MEMBERS	  16384 /* members of a map that are counted between two looks at the clock */

void lua_push_error(lua_State *L, const char *text)
{
	lua_newtable(L);
	lua_pushstring(L, text);
	lua_setfield(L, -2, "err");
}

/* ---- from Lua to a reply ---------------------------------------------------- */

static void reply_any(lua_State *L, struct reply *r, int depth);

/* Has the table on top a field of this type?  If so, pushes it. */
static bool has_field(lua_State *L, const char *name, int type)
{
	lua_pushstring(L, name);
	lua_rawget(L, -2);
	if (lua_type(L, -1) == type)
		return true;
	lua_pop(L, 1);
	return false;
}

static void reply_lua_map(lua_State *L, struct reply *r, bool map, int depth)
{
	size_t count = 0;

	lua_pushnil(L);
	while (lua_next(L, -2)) {
		if (++count % MEMBERS == 0)
			lua_check_time(L);
		lua_pop(L, 1);
	}
	(map ? reply_map : reply_set)(r, count);
	lua_pushnil(L);
	while (lua_next(L, -2)) {
		lua_pushvalue(L, -2);
		reply_any(L, r, depth);
		if (map)
			reply_any(L, r, depth);
		else
			lua_pop(L, 1);
	}
}

static void reply_lua_array(lua_State *L, struct reply *r, int depth)
{
	int count = 0;

	for (;; count++) {
		lua_rawgeti(L, -1, count + 1);
		if (lua_isnil(L, -1))
			break;
		lua_pop(L, 1);
	}
	lua_pop(L, 1);
	reply_array(r, (size_t)count);
	for (int i = 1; i <= count; i++) {
		lua_rawgeti(L, -1, i);
		reply_any(L, r, depth);
	}
}

static void reply_verbatim_field(lua_State *L, struct reply *r)
{
	const char *text;
	size_t len = 0;

	if (!has_field(L, "string", LUA_TSTRING)) {
		reply_null(r);
		return;
	}
	text = lua_tolstring(L, -1, &len);
	reply_verbatim(r, text, len);
	lua_pop(L, 1);
}

static void reply_number_field(lua_State *L, struct reply *r)
{
	size_t len;
	const char *text = lua_tolstring(L, -1, &len);

	reply_big_number(r, text, len);
}

/* A status; line ends in it become blanks. */
static void reply_line(lua_State *L, struct reply *r)
{
	lua_pushstring(L, luaL_gsub(L, luaL_gsub(L, lua_tostring(L, -1), "\r", " "), "\n", " "));
	reply_status(r, lua_tostring(L, -1));
	lua_pop(L, 3);
}

/* A table: what one of its fields says that it is, or an array. */
static void reply_table(lua_State *L, struct reply *r, int depth)
{
	if (has_field(L, "err", LUA_TSTRING)) {
		reply_error(r, "%s", lua_tostring(L, -1));
	} else if (has_field(L, "ok", LUA_TSTRING)) {
		reply_line(L, r);
	} else if (has_field(L, "double", LUA_TNUMBER)) {
		reply_double(r, lua_tonumber(L, -1));
	} else if (has_field(L, "map", LUA_TTABLE)) {
		reply_lua_map(L, r, true, depth);
	} else if (has_field(L, "set", LUA_TTABLE)) {
		reply_lua_map(L, r, false, depth);
	} else if (has_field(L, "big_number", LUA_TSTRING)) {
		reply_number_field(L, r);
	} else if (has_field(L, "verbatim_string", LUA_TTABLE)) {
		reply_verbatim_field(L, r);
	} else {
		reply_lua_array(L, r, depth);
		return;
	}
	lua_pop(L, 1);
}

static void reply_any(lua_State *L, struct reply *r, int depth)
{
	const char *text;
	size_t len;

	if (depth > DEPTH_MAX || !lua_checkstack(L, 6))
		luaL_error(L, "reached lua stack limit");
	if (r->out.failed || r->out.bytes > LUA_MEMORY_MAX)
		luaL_error(L, "the reply is too large");
	switch (lua_type(L, -1)) {
	case LUA_TSTRING:
		text = lua_tolstring(L, -1, &len);
		reply_bulk(r, text, len);
		break;
	case LUA_TNUMBER:
		reply_int(r, (int64_t)lua_tonumber(L, -1));
		break;
	case LUA_TBOOLEAN:
		if (lua_of(L)->resp == PROTOCOL_RESP3)
			reply_bool(r, lua_toboolean(L, -1));
		else if (lua_toboolean(L, -1))
			reply_int(r, 1);
		else
			reply_null(r);
		break;
	case LUA_TTABLE:
		lua_check_time(L); /* one table may occur in others very often */
		reply_table(L, r, depth + 1);
		break;
	default:
		reply_null(r);
	}
	lua_pop(L, 1);
}

void lua_reply_value(lua_State *L, struct reply *r)
{
	reply_any(L, r, 0);
}

/* ---- from a reply to Lua ---------------------------------------------------- */

/* Replies in RESP, as they were encoded for us, so they are complete and correct. */
struct text {
	const char *at;
};

static void push_reply(lua_State *L, struct text *t);

/* The rest of a line, which follows the type. */
static size_t lua_redis_take_line(struct text *t, const char **line)
{
	const char *end = strstr(t->at, "\r\n");
	size_t len = (size_t)(end - t->at);

	*line = t->at;
	t->at = end + 2;
	return len;
}

static void push_field(lua_State *L, const char *name, const char *text, size_t len)
{
	lua_newtable(L);
	lua_pushlstring(L, text, len);
	lua_setfield(L, -2, name);
}

static void push_bulk(lua_State *L, struct text *t, long len)
{
	if (len < 0) {
		lua_pushboolean(L, false);
		return;
	}
	lua_pushlstring(L, t->at, (size_t)len);
	t->at += len + 2;
}

static void push_items(lua_State *L, struct text *t, long count)
{
	if (count < 0) {
		lua_pushboolean(L, false);
		return;
	}
	lua_createtable(L, (int)count, 0);
	for (long i = 1; i <= count; i++) {
		push_reply(L, t);
		lua_rawseti(L, -2, (int)i);
	}
}

/* {map={...}} or {set={...}} */
static void push_pairs(lua_State *L, struct text *t, long count, bool map)
{
	lua_newtable(L);
	lua_newtable(L);
	for (long i = 0; i < count; i++) {
		push_reply(L, t);
		if (map)
			push_reply(L, t);
		else
			lua_pushboolean(L, true);
		lua_rawset(L, -3);
	}
	lua_setfield(L, -2, map ? "map" : "set");
}

static void push_verbatim(lua_State *L, struct text *t, long len)
{
	lua_newtable(L);
	push_field(L, "format", t->at, 3);
	lua_pushlstring(L, t->at + 4, (size_t)len - 4);
	lua_setfield(L, -2, "string");
	lua_setfield(L, -2, "verbatim_string");
	t->at += len + 2;
}

static void push_reply(lua_State *L, struct text *t)
{
	char type = *t->at++;
	const char *line;
	size_t len = lua_redis_take_line(t, &line);
	long number = strtol(line, NULL, 10);

	luaL_checkstack(L, 6, "the reply is too deep");
	switch (type) {
	case '+':
		push_field(L, "ok", line, len);
		break;
	case '-':
		push_field(L, "err", line, len);
		break;
	case ':':
		lua_pushnumber(L, (lua_Number)strtoll(line, NULL, 10));
		break;
	case '$':
		push_bulk(L, t, number);
		break;
	case '=':
		push_verbatim(L, t, number);
		break;
	case '*':
		push_items(L, t, number);
		break;
	case '%':
	case '~':
		push_pairs(L, t, number, type == '%');
		break;
	case '#':
		lua_pushboolean(L, *line == 't');
		break;
	case ',':
		lua_newtable(L);
		lua_pushnumber(L, strtod(line, NULL));
		lua_setfield(L, -2, "double");
		break;
	default:
		lua_pushnil(L);
	}
}

/* Pushes all that the command has replied. */
static void push_called(lua_State *L, struct interpreter *lua)
{
	size_t bytes = lua->called.out.bytes;
	char few[FEW_BYTES], *text = bytes < sizeof(few) ? few : lua_newuserdata(L, bytes + 1);
	struct text t = { .at = text };

	*outbox_flatten(&lua->called.out, text) = '\0';
	reply_free(&lua->called);
	if (*t.at)
		push_reply(L, &t);
	else
		lua_pushnil(L);
	if (text != few)
		lua_remove(L, -2);
}

/* ---- redis.call() ------------------------------------------------------------- */

static int redis_fail(lua_State *L, bool raise, const char *text)
{
	lua_push_error(L, text);
	return raise ? lua_error(L) : 1;
}

/* The arguments as strings, which stay on the stack.  False: one is neither string nor number. */
static bool take_args(lua_State *L, unsigned int argc, struct resp_arg *argv)
{
	char text[64];

	for (unsigned int i = 0; i < argc; i++) {
		int at = (int)i + 1;

		if (lua_type(L, at) == LUA_TNUMBER) {
			snprintf(text, sizeof(text), "%.17g", lua_tonumber(L, at));
			lua_pushstring(L, text);
			lua_replace(L, at);
		}
		if (lua_type(L, at) != LUA_TSTRING)
			return false;
		argv[i].ptr = (char *)(uintptr_t)lua_tolstring(L, at, &argv[i].len);
	}
	return true;
}

/* What the client's user may not do; NULL: it may. */
static const char *denied(const struct interpreter *lua, const struct command *cmd,
			  unsigned int argc, const struct resp_arg *argv)
{
	struct caller *c = lua->run->caller;

	if (acl_user_of(c)->unlimited)
		return NULL;
	switch (acl_check_client(c, ACL_SCRIPT, cmd, argc, argv)) {
	case ACL_OK:
		return NULL;
	case ACL_DENIED_KEY:
		return "ERR The user executing the script can't access at least one of the keys "
		       "mentioned in the command arguments";
	case ACL_DENIED_CHANNEL:
		return "ERR The user executing the script can't publish to the channel mentioned "
		       "in the command";
	default:
		return "ERR The user executing the script can't run this command or subcommand";
	}
}

/* Why a script may not call the command; NULL: it may. */
static const char *refusal(const struct interpreter *lua, const struct command *cmd,
			   unsigned int argc, const struct resp_arg *argv)
{
	const char *why;

	if (!cmd)
		return "ERR Unknown Redis command called from script";
	if (!command_arity_ok(cmd, argc))
		return "ERR Wrong number of args calling Redis command from script";
	if ((cmd->flags & CMD_NOSCRIPT) || !cmd->fn)
		return "ERR This Redis command is not allowed from script";
	why = denied(lua, cmd, argc, argv);
	if (why)
		return why;
	if (lua->run->read_only && client_pause_stops(lua->run->caller, cmd, argv))
		return "ERR Write commands are not allowed from read-only scripts.";
	if ((cmd->flags & CMD_APART) && !(cmd->flags & CMD_READONLY))
		return "ERR This command is not allowed from script: it could not be undone";
	if (lua->run->caller->srv->writes_refused && (cmd->flags & CMD_WRITE))
		return write_refusal(lua->run->caller->srv);
	return NULL;
}

/* Calls no function of Lua: its errors are long jumps, which would skip the clean-up. */
static void call_command(struct interpreter *lua, const struct command *cmd, unsigned int argc,
			 const struct resp_arg *argv)
{
	struct caller *c = lua->run->caller;
	struct reply outer = c->session.reply;

	reply_free(&lua->called);
	reply_init(&c->session.reply, lua->resp, LUA_MEMORY_MAX); /* the client does not see it */
	c->session.reply.errors = outer.errors;
	command_call(c, cmd, argc, argv);
	lua->called = c->session.reply;
	c->session.reply = outer;
}

static int call(lua_State *L, bool raise)
{
	struct interpreter *lua = lua_of(L);
	unsigned int argc = (unsigned int)lua_gettop(L);
	struct resp_arg few[FEW_ARGS], *argv;
	const struct command *cmd;
	const char *why;

	if (!argc)
		return redis_fail(
			L, raise,
			"ERR Please specify at least one argument for this redis lib call");
	argv = argc <= FEW_ARGS ? few : lua_newuserdata(L, argc * sizeof(*argv));
	if (!take_args(L, argc, argv))
		return redis_fail(
			L, raise,
			"ERR Lua redis lib command arguments must be strings or integers");
	cmd = command_find(argc, argv);
	why = refusal(lua, cmd, argc, argv);
	if (why)
		return redis_fail(L, raise, why);
	lua->run->wrote |= cmd->flags & CMD_WRITE;
	call_command(lua, cmd, argc, argv);
	/* a conflict ends the script; and the hook does not see the time of long commands */
	if (store_txn_error(lua->run->caller->worker->ctx) == -ECANCELED ||
	    !(cmd->flags & (CMD_FAST | CMD_QUEUES)))
		lua_check_time(L);
	if (lua->called.out.failed)
		return redis_fail(L, raise, "ERR the reply is too large for a script");
	push_called(L, lua);
	if (!raise || !lua_istable(L, -1) || !has_field(L, "err", LUA_TSTRING))
		return 1;
	lua_pop(L, 1);
	return lua_error(L);
}

static int redis_call(lua_State *L)
{
	return call(L, true);
}

static int redis_pcall(lua_State *L)
{
	return call(L, false);
}

/* ---- the rest ----------------------------------------------------------------- */

static int single_field(lua_State *L, const char *name)
{
	if (lua_gettop(L) != 1 || lua_type(L, 1) != LUA_TSTRING)
		return redis_fail(L, false, "ERR wrong number or type of arguments");
	lua_newtable(L);
	lua_insert(L, 1);
	lua_setfield(L, 1, name);
	return 1;
}

/* The text of an error reply, with or without its '-'.  A single word gets the code ERR. */
static int redis_error_reply(lua_State *L)
{
	if (lua_gettop(L) == 1 && lua_type(L, 1) == LUA_TSTRING) {
		const char *text = lua_tostring(L, 1);

		lua_pushfstring(L, "%s%s", strchr(text, ' ') ? "" : "ERR ", text + (*text == '-'));
		lua_remove(L, 1);
	}
	return single_field(L, "err");
}

static int redis_status_reply(lua_State *L)
{
	return single_field(L, "ok");
}

static int redis_sha1hex(lua_State *L)
{
	char sha[SCRIPT_SHA_TEXT];
	const char *text;
	size_t len;

	if (lua_gettop(L) != 1)
		return redis_fail(L, true, "ERR wrong number of arguments");
	text = lua_tolstring(L, 1, &len);
	script_sha(text ? text : "", text ? len : 0, sha);
	lua_pushstring(L, sha);
	lua_check_time(L);
	return 1;
}

static int redis_log(lua_State *L)
{
	int level = (int)lua_tointeger(L, 1), last = lua_gettop(L);

	if (last < 2)
		return redis_fail(L, true, "ERR redis.log() requires two arguments or more.");
	if (lua_type(L, 1) != LUA_TNUMBER)
		return redis_fail(L, true, "ERR First argument must be a number (log level).");
	if (level < LOG_LEVEL_DEBUG || level > LOG_LEVEL_WARNING)
		return redis_fail(L, true, "ERR Invalid debug level.");
	lua_pushliteral(L, "");
	for (int i = 2; i <= last; i++) {
		if (i > 2)
			lua_pushliteral(L, " ");
		lua_pushstring(L, lua_tostring(L, i) ? lua_tostring(L, i) : "");
		lua_concat(L, i > 2 ? 3 : 2);
	}
	log_write((enum log_level)level, "script: %s", lua_tostring(L, -1));
	return 0;
}

static int redis_setresp(lua_State *L)
{
	lua_Integer version = lua_tointeger(L, 1);

	if (lua_gettop(L) != 1)
		return redis_fail(L, true, "ERR redis.setresp() requires one argument.");
	if (version != PROTOCOL_RESP2 && version != PROTOCOL_RESP3)
		return redis_fail(L, true, "ERR RESP version must be 2 or 3.");
	lua_of(L)->resp = (enum protocol)version;
	return 0;
}

/* redis.acl_check_cmd(): may the client's user execute the command? */
static int redis_acl_check_cmd(lua_State *L)
{
	unsigned int argc = (unsigned int)lua_gettop(L), at;
	const struct command *cmd;
	struct resp_arg *argv;

	if (!argc)
		return redis_fail(
			L, true,
			"ERR Please specify at least one argument for this redis lib call");
	argv = lua_newuserdata(L, argc * sizeof(*argv));
	if (!take_args(L, argc, argv))
		return redis_fail(
			L, true, "ERR Lua redis lib command arguments must be strings or integers");
	cmd = command_find(argc, argv);
	if (!cmd || !command_arity_ok(cmd, argc))
		return redis_fail(L, true, "ERR Invalid command passed to redis.acl_check_cmd()");
	lua_pushboolean(L, acl_check(acl_user_of(lua_of(L)->run->caller), cmd, argc, argv, &at) ==
				   ACL_OK);
	return 1;
}

static int replies_true(lua_State *L)
{
	lua_pushboolean(L, true);
	return 1;
}

static int replies_false(lua_State *L)
{
	lua_pushboolean(L, false);
	return 1;
}

static int replies_nothing(lua_State *L)
{
	return 0;
}

struct constant {
	const char *name;
	int value;
};

static void add_constants(lua_State *L, const struct constant *constants, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		lua_pushinteger(L, constants[i].value);
		lua_setfield(L, -2, constants[i].name);
	}
}

void lua_add_redis_log(lua_State *L)
{
	static const struct constant constants[] = {
		{ "LOG_DEBUG", LOG_LEVEL_DEBUG },	    { "LOG_VERBOSE", LOG_LEVEL_VERBOSE },
		{ "LOG_NOTICE", LOG_LEVEL_NOTICE },	    { "LOG_WARNING", LOG_LEVEL_WARNING },
		{ "REDIS_VERSION_NUM", REDIS_VERSION_NUM },
	};

	lua_pushcfunction(L, redis_log);
	lua_setfield(L, -2, "log");
	add_constants(L, constants, sizeof(constants) / sizeof(constants[0]));
	lua_pushliteral(L, REDIS_VERSION);
	lua_setfield(L, -2, "REDIS_VERSION");
}

void lua_add_redis(lua_State *L)
{
	static const luaL_Reg functions[] = {
		{ "call", redis_call },
		{ "pcall", redis_pcall },
		{ "error_reply", redis_error_reply },
		{ "status_reply", redis_status_reply },
		{ "sha1hex", redis_sha1hex },
		{ "setresp", redis_setresp },
		{ "acl_check_cmd", redis_acl_check_cmd },
		{ "replicate_commands", replies_true },
		{ "breakpoint", replies_false },
		{ "debug", replies_nothing },
		{ "set_repl", replies_nothing },
		{ NULL, NULL },
	};
	static const struct constant constants[] = {
		{ "REPL_NONE", 0 },    { "REPL_AOF", 1 }, { "REPL_SLAVE", 2 },
		{ "REPL_REPLICA", 2 }, { "REPL_ALL", 3 },
	};

	for (const luaL_Reg *f = functions; f->name; f++) {
		lua_pushcfunction(L, f->func);
		lua_setfield(L, -2, f->name);
	}
	add_constants(L, constants, sizeof(constants) / sizeof(constants[0]));
	lua_add_redis_log(L);
}

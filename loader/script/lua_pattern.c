/* SPDX-License-Identifier: MIT */
/*
 * string.find, match, gmatch and gsub, whose time is looked at while they match: Lua's own matcher
 * takes exponential time for some patterns, and no hook ends it.
 *
 * Semantics and errors are those of Lua 5.1's lstrlib.c, from which the matcher is derived:
 * Copyright (C) 1994-2012 Lua.org, PUC-Rio.  Permission is granted, free of charge, to deal in it
 * without restriction, provided that this notice is included.  It comes without warranty.
 */
#include <ctype.h>
#include <string.h>

#include "lua_impl.h"

#define PATTERN_MAX 10000	/* bytes: matching takes about 200 bytes of stack for each */
#define STEPS	    1024	/* between two looks at the clock */
#define FIND_PIECE  (1UL << 20) /* bytes that are searched between two looks at the clock */
#define SPECIALS    "^$*+?.([%-"

enum { UNFINISHED = -1, POSITION = -2 }; /* lengths of captures */

struct matcher {
	lua_State *L;
	const char *start, *end; /* of the text */
	unsigned int steps;
	int level; /* captures so far */
	struct {
		const char *at;
		ptrdiff_t len;
	} capture[LUA_MAXCAPTURES];
};

static const char *match(struct matcher *m, const char *s, const char *p);

static void step(struct matcher *m)
{
	if (++m->steps % STEPS == 0)
		lua_check_time(m->L);
}

static int check_capture(struct matcher *m, int c)
{
	c -= '1';
	if (c < 0 || c >= m->level || m->capture[c].len == UNFINISHED)
		return luaL_error(m->L, "invalid capture index");
	return c;
}

static const char *class_end(struct matcher *m, const char *p)
{
	switch (*p++) {
	case '%':
		if (!*p)
			luaL_error(m->L, "malformed pattern (ends with '%%')");
		return p + 1;
	case '[':
		p += *p == '^';
		do { /* the first one may be a ']' */
			if (!*p)
				luaL_error(m->L, "malformed pattern (missing ']')");
			if (*p++ == '%' && *p)
				p++;
		} while (*p != ']');
		return p + 1;
	default:
		return p;
	}
}

static bool in_class(int c, int class)
{
	bool in;

	switch (tolower(class)) {
	case 'a':
		in = isalpha(c);
		break;
	case 'c':
		in = iscntrl(c);
		break;
	case 'd':
		in = isdigit(c);
		break;
	case 'l':
		in = islower(c);
		break;
	case 'p':
		in = ispunct(c);
		break;
	case 's':
		in = isspace(c);
		break;
	case 'u':
		in = isupper(c);
		break;
	case 'w':
		in = isalnum(c);
		break;
	case 'x':
		in = isxdigit(c);
		break;
	case 'z':
		in = !c;
		break;
	default:
		return class == c;
	}
	return islower(class) ? in : !in;
}

/* `last` is at the ']'. */
static bool in_set(unsigned char c, const char *p, const char *last)
{
	bool in = true;

	if (p[1] == '^') {
		in = false;
		p++;
	}
	while (++p < last) {
		if (*p == '%') {
			p++;
			if (in_class(c, (unsigned char)*p))
				return in;
		} else if (p[1] == '-' && p + 2 < last) {
			p += 2;
			if ((unsigned char)p[-2] <= c && c <= (unsigned char)*p)
				return in;
		} else if ((unsigned char)*p == c) {
			return in;
		}
	}
	return !in;
}

static bool one(struct matcher *m, const char *s, const char *p, const char *ep)
{
	unsigned char c;

	step(m);
	if (s >= m->end)
		return false;
	c = (unsigned char)*s;
	switch (*p) {
	case '.':
		return true;
	case '%':
		return in_class(c, (unsigned char)p[1]);
	case '[':
		return in_set(c, p, ep - 1);
	default:
		return (unsigned char)*p == c;
	}
}

static const char *match_balance(struct matcher *m, const char *s, const char *p)
{
	int open = 1;

	if (!p[0] || !p[1])
		luaL_error(m->L, "unbalanced pattern");
	if (*s != *p)
		return NULL;
	while (++s < m->end) {
		step(m);
		if (*s == p[1]) {
			if (--open == 0)
				return s + 1;
		} else if (*s == p[0]) {
			open++;
		}
	}
	return NULL;
}

static const char *max_expand(struct matcher *m, const char *s, const char *p, const char *ep)
{
	ptrdiff_t i = 0;

	while (one(m, s + i, p, ep))
		i++;
	for (; i >= 0; i--) {
		const char *res = match(m, s + i, ep + 1);

		if (res)
			return res;
	}
	return NULL;
}

static const char *min_expand(struct matcher *m, const char *s, const char *p, const char *ep)
{
	for (;;) {
		const char *res = match(m, s, ep + 1);

		if (res)
			return res;
		if (!one(m, s, p, ep))
			return NULL;
		s++;
	}
}

static const char *start_capture(struct matcher *m, const char *s, const char *p, int what)
{
	const char *res;

	if (m->level >= LUA_MAXCAPTURES)
		luaL_error(m->L, "too many captures");
	m->capture[m->level].at = s;
	m->capture[m->level].len = what;
	m->level++;
	res = match(m, s, p);
	if (!res)
		m->level--;
	return res;
}

static const char *end_capture(struct matcher *m, const char *s, const char *p)
{
	int i = m->level - 1;
	const char *res;

	while (i >= 0 && m->capture[i].len != UNFINISHED)
		i--;
	if (i < 0)
		luaL_error(m->L, "invalid pattern capture");
	m->capture[i].len = s - m->capture[i].at;
	res = match(m, s, p);
	if (!res)
		m->capture[i].len = UNFINISHED;
	return res;
}

static const char *match_capture(struct matcher *m, const char *s, int c)
{
	int i = check_capture(m, c);
	size_t len = (size_t)m->capture[i].len; /* of a position: larger than any text */

	if ((size_t)(m->end - s) < len || memcmp(m->capture[i].at, s, len) != 0)
		return NULL;
	for (size_t n = 0; n < len; n += 256)
		step(m);
	return s + len;
}

/* %f: a set begins here. */
static bool at_frontier(struct matcher *m, const char *s, const char *p, const char **ep)
{
	unsigned char before = s == m->start ? 0 : (unsigned char)s[-1];

	if (*p != '[')
		luaL_error(m->L, "missing '[' after '%%f' in pattern");
	*ep = class_end(m, p);
	return !in_set(before, p, *ep - 1) && in_set((unsigned char)*s, p, *ep - 1);
}

/* An item that begins with '%' and is no class.  False: it is one. */
static bool match_escape(struct matcher *m, const char **s, const char **p)
{
	char c = (*p)[1];

	if (c == 'b') {
		*s = match_balance(m, *s, *p + 2);
		*p += 4;
	} else if (c == 'f') {
		*s = at_frontier(m, *s, *p + 2, p) ? *s : NULL;
	} else if (isdigit((unsigned char)c)) {
		*s = match_capture(m, *s, (unsigned char)c);
		*p += 2;
	} else {
		return false;
	}
	return true;
}

/* Where the match of the pattern `p` that begins at `s` ends; NULL: there is none. */
static const char *match(struct matcher *m, const char *s, const char *p)
{
	for (;;) {
		const char *ep, *res;

		step(m);
		if (*p == '(')
			return p[1] == ')' ? start_capture(m, s, p + 2, POSITION)
					   : start_capture(m, s, p + 1, UNFINISHED);
		if (*p == ')')
			return end_capture(m, s, p + 1);
		if (!*p)
			return s;
		if (*p == '$' && !p[1])
			return s == m->end ? s : NULL;
		if (*p == '%' && match_escape(m, &s, &p)) {
			if (!s)
				return NULL;
			continue;
		}
		ep = class_end(m, p);
		if (*ep == '*')
			return max_expand(m, s, p, ep);
		if (*ep == '-')
			return min_expand(m, s, p, ep);
		if (*ep == '?') {
			res = one(m, s, p, ep) ? match(m, s + 1, ep + 1) : NULL;
			if (res)
				return res;
			p = ep + 1;
			continue;
		}
		if (!one(m, s, p, ep))
			return NULL;
		s++;
		if (*ep == '+')
			return max_expand(m, s, p, ep);
		p = ep;
	}
}

static void push_capture(struct matcher *m, int i, const char *s, const char *e)
{
	if (i >= m->level) {
		if (i)
			luaL_error(m->L, "invalid capture index");
		lua_pushlstring(m->L, s, (size_t)(e - s)); /* the whole match */
		return;
	}
	if (m->capture[i].len == UNFINISHED)
		luaL_error(m->L, "unfinished capture");
	if (m->capture[i].len == POSITION)
		lua_pushinteger(m->L, m->capture[i].at - m->start + 1);
	else
		lua_pushlstring(m->L, m->capture[i].at, (size_t)m->capture[i].len);
}

static int push_captures(struct matcher *m, const char *s, const char *e)
{
	int count = !m->level && s ? 1 : m->level;

	luaL_checkstack(m->L, count, "too many captures");
	for (int i = 0; i < count; i++)
		push_capture(m, i, s, e);
	return count;
}

static void check_pattern(lua_State *L, const char *p, size_t len)
{
	if (len > PATTERN_MAX && strpbrk(p, SPECIALS))
		luaL_error(L, "pattern too complex");
}

static int find_plain(lua_State *L, const char *s, size_t init, size_t len, const char *p,
		      size_t p_len)
{
	size_t piece = p_len > FIND_PIECE ? p_len : FIND_PIECE, from = init;
	const char *at = NULL;

	for (; !at && len - from >= p_len; from += piece) {
		size_t left = len - from, most = piece + p_len - 1;

		at = memmem(s + from, left < most ? left : most, p, p_len);
		lua_check_time(L);
		if (left <= piece)
			break;
	}
	if (!at) {
		lua_pushnil(L);
		return 1;
	}
	lua_pushinteger(L, at - s + 1);
	lua_pushinteger(L, at - s + (ptrdiff_t)p_len);
	return 2;
}

static int find_or_match(lua_State *L, bool find)
{
	size_t len, p_len;
	const char *s = luaL_checklstring(L, 1, &len), *p = luaL_checklstring(L, 2, &p_len);
	struct matcher m = { .L = L, .start = s, .end = s + len };
	ptrdiff_t init = luaL_optinteger(L, 3, 1);
	bool anchor = *p == '^';

	init += init < 0 ? (ptrdiff_t)len + 1 : 0;
	init = init <= 0 ? 0 : init - 1;
	init = (size_t)init > len ? (ptrdiff_t)len : init;
	if (find && (lua_toboolean(L, 4) || !strpbrk(p, SPECIALS)))
		return find_plain(L, s, (size_t)init, len, p, p_len);
	check_pattern(L, p, p_len);
	p += anchor;
	s += init;
	do {
		const char *e;

		m.level = 0;
		e = match(&m, s, p);
		if (!e)
			continue;
		if (!find)
			return push_captures(&m, s, e);
		lua_pushinteger(L, s - m.start + 1);
		lua_pushinteger(L, e - m.start);
		return push_captures(&m, NULL, NULL) + 2;
	} while (s++ < m.end && !anchor);
	lua_pushnil(L);
	return 1;
}

static int string_find(lua_State *L)
{
	return find_or_match(L, true);
}

static int string_match(lua_State *L)
{
	return find_or_match(L, false);
}

/* Upvalues: text, pattern, where the search goes on. */
static int next_match(lua_State *L)
{
	size_t len;
	const char *s = lua_tolstring(L, lua_upvalueindex(1), &len);
	const char *p = lua_tostring(L, lua_upvalueindex(2)), *e;
	struct matcher m = { .L = L, .start = s, .end = s + len };

	for (s += lua_tointeger(L, lua_upvalueindex(3)); s <= m.end; s++) {
		m.level = 0;
		e = match(&m, s, p);
		if (!e)
			continue;
		lua_pushinteger(L, e - m.start + (e == s));
		lua_replace(L, lua_upvalueindex(3));
		lua_check_time(L);
		return push_captures(&m, s, e);
	}
	return 0; /* not found */
}

static int string_gmatch(lua_State *L)
{
	size_t len;
	const char *p;

	luaL_checkstring(L, 1);
	p = luaL_checklstring(L, 2, &len);
	check_pattern(L, p, len);
	lua_settop(L, 2);
	lua_pushinteger(L, 0);
	lua_pushcclosure(L, next_match, 3);
	return 1;
}

/* A replacement that is a text: %0 to %9 in it are captures. */
static void add_text(struct matcher *m, luaL_Buffer *b, const char *s, const char *e)
{
	size_t len;
	const char *text = lua_tolstring(m->L, 3, &len);

	for (size_t i = 0; i < len; i++) {
		step(m);
		if (text[i] != '%') {
			luaL_addchar(b, text[i]);
			continue;
		}
		i++;
		if (!isdigit((unsigned char)text[i])) {
			luaL_addchar(b, text[i]);
		} else if (text[i] == '0') {
			luaL_addlstring(b, s, (size_t)(e - s));
		} else {
			push_capture(m, text[i] - '1', s, e);
			luaL_addvalue(b);
		}
	}
}

static void add_replacement(struct matcher *m, luaL_Buffer *b, const char *s, const char *e)
{
	lua_State *L = m->L;

	switch (lua_type(L, 3)) {
	case LUA_TFUNCTION:
		lua_pushvalue(L, 3);
		lua_call(L, push_captures(m, s, e), 1);
		break;
	case LUA_TTABLE:
		push_capture(m, 0, s, e);
		lua_gettable(L, 3);
		break;
	default:
		add_text(m, b, s, e);
		return;
	}
	if (!lua_toboolean(L, -1)) {
		lua_pop(L, 1);
		lua_pushlstring(L, s, (size_t)(e - s)); /* as it was */
	} else if (!lua_isstring(L, -1)) {
		luaL_error(L, "invalid replacement value (a %s)", luaL_typename(L, -1));
	}
	luaL_addvalue(b);
}

static int string_gsub(lua_State *L)
{
	size_t len, p_len;
	const char *s = luaL_checklstring(L, 1, &len), *p = luaL_checklstring(L, 2, &p_len), *e;
	struct matcher m = { .L = L, .start = s, .end = s + len };
	int type = lua_type(L, 3), max = luaL_optint(L, 4, (int)len + 1), count = 0;
	bool anchor = *p == '^';
	luaL_Buffer b;

	luaL_argcheck(L,
		      type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TFUNCTION ||
			      type == LUA_TTABLE,
		      3, "string/function/table expected");
	check_pattern(L, p, p_len);
	luaL_buffinit(L, &b);
	p += anchor;
	while (count < max) {
		m.level = 0;
		e = match(&m, s, p);
		if (e) {
			count++;
			add_replacement(&m, &b, s, e);
		}
		if (e && e > s)
			s = e;
		else if (s < m.end)
			luaL_addchar(&b, *s++);
		else
			break;
		if (anchor)
			break;
	}
	luaL_addlstring(&b, s, (size_t)(m.end - s));
	luaL_pushresult(&b);
	lua_pushinteger(L, count);
	return 2;
}

void lua_own_patterns(lua_State *L)
{
	static const luaL_Reg functions[] = {
		{ "find", string_find },
		{ "match", string_match },
		{ "gmatch", string_gmatch },
		{ "gsub", string_gsub },
		{ NULL, NULL },
	};

	lua_getglobal(L, LUA_STRLIBNAME);
	for (const luaL_Reg *f = functions; f->name; f++) {
		lua_pushcfunction(L, f->func);
		lua_setfield(L, -2, f->name);
	}
	lua_pop(L, 1);
}

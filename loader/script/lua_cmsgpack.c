/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The library `cmsgpack` of scripts: values to MessagePack and back, as Redis offers it.  The
 * packages of the distributions (lua-messagepack, lua-mpack) choose other encodings for the same
 * values, so that servers would disagree about the bytes that scripts store.
 */
#include <math.h>
#include <string.h>

#include "lua_impl.h"

#define DEPTH_MAX   16	  /* of tables that are packed; those below are nil */
#define CHECK_EVERY 65536 /* values between two looks at the clock */
#define TABLE_SLOTS 4	  /* of the stack that one level of tables takes */
#define TOO_MANY    "too many return values at once; use unpack_one or unpack_limit instead."

/* --- pack --- */

/* Bytes that grow; they are a userdata at `slot`, so an error does not leak them. */
struct packing {
	lua_State *L;
	int slot;
	unsigned char *bytes;
	size_t len, room;
	unsigned int values;
};

static unsigned char *grow(struct packing *p, size_t more)
{
	if (p->room - p->len < more) {
		size_t room = 2 * (p->len + more);
		unsigned char *bytes = lua_newuserdata(p->L, room);

		if (p->len)
			memcpy(bytes, p->bytes, p->len);
		lua_replace(p->L, p->slot);
		p->bytes = bytes;
		p->room = room;
	}
	p->len += more;
	return p->bytes + p->len - more;
}

/* A type, and `value` in `size` bytes, the highest first. */
static void pack_put(struct packing *p, unsigned char type, uint64_t value, unsigned int size)
{
	unsigned char *at = grow(p, 1 + size);

	*at = type;
	for (unsigned int i = size; i; i--, value >>= 8)
		at[i] = (unsigned char)value;
}

/* A number of items: in the type itself, or in 2 or 4 bytes behind one. */
static void put_count(struct packing *p, unsigned char fixed, unsigned char type, size_t count)
{
	if (count < 16)
		pack_put(p, (unsigned char)(fixed | count), 0, 0);
	else if (count <= UINT16_MAX)
		pack_put(p, type, count, 2);
	else
		pack_put(p, type + 1, count, 4);
}

static void pack_string(struct packing *p)
{
	size_t len;
	const char *text = lua_tolstring(p->L, -1, &len);

	if (len < 32)
		pack_put(p, (unsigned char)(0xa0 | len), 0, 0);
	else if (len <= UINT8_MAX)
		pack_put(p, 0xd9, len, 1);
	else if (len <= UINT16_MAX)
		pack_put(p, 0xda, len, 2);
	else
		pack_put(p, 0xdb, len, 4);
	memcpy(grow(p, len), text, len);
}

static void pack_integer(struct packing *p, int64_t n)
{
	unsigned int order = 0; /* the fewest of 1, 2, 4, 8 bytes, as a power of 2 */

	if (n >= -32 && n <= 127) {
		pack_put(p, (unsigned char)n, 0, 0);
		return;
	}
	while (order < 3 && (n >= 0 ? n >> (8 << order) != 0 : n >> ((8 << order) - 1) != -1))
		order++;
	pack_put(p, (unsigned char)((n >= 0 ? 0xcc : 0xd0) + order), (uint64_t)n, 1U << order);
}

static void pack_number(struct packing *p)
{
	lua_Number number = lua_tonumber(p->L, -1);
	union {
		double d;
		uint64_t bits;
	} whole = { .d = number };
	union {
		float f;
		uint32_t bits;
	} half;

	if (number >= (lua_Number)INT64_MIN && number < -(lua_Number)INT64_MIN &&
	    number == floor(number)) {
		pack_integer(p, (int64_t)number);
		return;
	}
	half.f = (float)number;
	if ((double)half.f == number)
		pack_put(p, 0xca, half.bits, 4);
	else
		pack_put(p, 0xcb, whole.bits, 8);
}

static void pack_value(struct packing *p, int depth);

/* Are the keys of the table on top 1 to `count`?  Counts them. */
static bool is_array(lua_State *L, size_t *count)
{
	lua_Number key, last = 0;
	bool array = true;

	*count = 0;
	lua_pushnil(L);
	while (lua_next(L, -2)) {
		lua_pop(L, 1);
		if (++*count % CHECK_EVERY == 0)
			lua_check_time(L);
		lua_look(L);
		key = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : 0;
		array &= key >= 1 && key == floor(key);
		last = key > last ? key : last;
	}
	return array && last == (lua_Number)*count;
}

static void pack_table(struct packing *p, int depth)
{
	lua_State *L = p->L;
	size_t count;

	luaL_checkstack(L, TABLE_SLOTS, "in function cmsgpack.pack");
	if (is_array(L, &count)) {
		put_count(p, 0x90, 0xdc, count);
		for (size_t i = 1; i <= count; i++) {
			lua_rawgeti(L, -1, (int)i);
			pack_value(p, depth);
		}
		return;
	}
	put_count(p, 0x80, 0xde, count);
	lua_pushnil(L);
	while (lua_next(L, -2)) {
		lua_pushvalue(L, -2);
		pack_value(p, depth);
		pack_value(p, depth);
	}
}

/* Packs the value on top, and pops it.  What MessagePack has no type for is nil. */
static void pack_value(struct packing *p, int depth)
{
	if (++p->values % CHECK_EVERY == 0)
		lua_check_time(p->L);
	lua_look(p->L);
	switch (lua_type(p->L, -1)) {
	case LUA_TSTRING:
		pack_string(p);
		break;
	case LUA_TNUMBER:
		pack_number(p);
		break;
	case LUA_TBOOLEAN:
		pack_put(p, lua_toboolean(p->L, -1) ? 0xc3 : 0xc2, 0, 0);
		break;
	case LUA_TTABLE:
		if (depth < DEPTH_MAX) {
			pack_table(p, depth + 1);
			break;
		}
		/* fall through */
	default:
		pack_put(p, 0xc0, 0, 0);
	}
	lua_pop(p->L, 1);
}

static int cmsgpack_pack(lua_State *L)
{
	struct packing p = { .L = L };
	int count = lua_gettop(L);

	if (!count)
		return luaL_argerror(L, 0, "MessagePack pack needs input.");
	luaL_checkstack(L, 3, "in function cmsgpack.pack");
	lua_pushnil(L);
	p.slot = lua_gettop(L);
	for (int i = 1; i <= count; i++) {
		lua_pushvalue(L, i);
		pack_value(&p, 0);
	}
	lua_pushlstring(L, (char *)p.bytes, p.len);
	return 1;
}

/* --- unpack --- */

struct unpacking {
	lua_State *L;
	const unsigned char *at;
	size_t left;
	unsigned int values;
};

static const unsigned char *msgpack_take(struct unpacking *u, size_t len)
{
	if (u->left < len)
		luaL_error(u->L, "Missing bytes in input.");
	u->at += len;
	u->left -= len;
	return u->at - len;
}

static uint64_t msgpack_take_number(struct unpacking *u, unsigned int size)
{
	const unsigned char *bytes = msgpack_take(u, size);
	uint64_t value = 0;

	for (unsigned int i = 0; i < size; i++)
		value = value << 8 | bytes[i];
	return value;
}

static int64_t take_signed(struct unpacking *u, unsigned int size)
{
	unsigned int shift = 64 - 8 * size;

	return (int64_t)(msgpack_take_number(u, size) << shift) >> shift;
}

static lua_Number take_float(struct unpacking *u, unsigned int size)
{
	union {
		double d;
		uint64_t bits;
	} whole;
	union {
		float f;
		uint32_t bits;
	} half;

	whole.bits = msgpack_take_number(u, size);
	half.bits = (uint32_t)whole.bits;
	return size == sizeof(double) ? whole.d : (lua_Number)half.f;
}

static void unpack_string(struct unpacking *u, size_t len)
{
	const unsigned char *text = msgpack_take(u, len);

	lua_pushlstring(u->L, (const char *)text, len);
}

static void unpack_value(struct unpacking *u);

/* The table grows with what is there, not with the number that is announced. */
static void unpack_table(struct unpacking *u, size_t count, bool map)
{
	luaL_checkstack(u->L, TABLE_SLOTS, TOO_MANY);
	lua_newtable(u->L);
	for (size_t i = 1; i <= count; i++) {
		if (map)
			unpack_value(u);
		else
			lua_pushnumber(u->L, (lua_Number)i);
		unpack_value(u);
		lua_rawset(u->L, -3);
	}
}

/* The types that are a whole byte; their last bits are the size of what follows, a power of 2. */
static void unpack_typed(struct unpacking *u, unsigned char type)
{
	lua_State *L = u->L;

	switch (type) {
	case 0xc0:
		lua_pushnil(L);
		break;
	case 0xc2:
	case 0xc3:
		lua_pushboolean(L, type == 0xc3);
		break;
	case 0xca:
	case 0xcb:
		lua_pushnumber(L, take_float(u, type == 0xca ? 4 : 8));
		break;
	case 0xcc ... 0xcf:
		/* one beyond 2^63 is negative, as in Redis */
		lua_pushnumber(L, (lua_Number)(int64_t)msgpack_take_number(u, 1U << (type - 0xcc)));
		break;
	case 0xd0 ... 0xd3:
		lua_pushnumber(L, (lua_Number)take_signed(u, 1U << (type - 0xd0)));
		break;
	case 0xd9 ... 0xdb:
		unpack_string(u, msgpack_take_number(u, 1U << (type - 0xd9)));
		break;
	case 0xdc:
	case 0xdd:
		unpack_table(u, msgpack_take_number(u, type == 0xdc ? 2 : 4), false);
		break;
	case 0xde:
	case 0xdf:
		unpack_table(u, msgpack_take_number(u, type == 0xde ? 2 : 4), true);
		break;
	default:
		luaL_error(L, "Bad data format in input.");
	}
}

/* Pushes the next value.  The caller has made room for it on the stack. */
static void unpack_value(struct unpacking *u)
{
	unsigned char type = *msgpack_take(u, 1);

	if (++u->values % CHECK_EVERY == 0)
		lua_check_time(u->L);
	lua_look(u->L);
	if (type < 0x80 || type >= 0xe0)
		lua_pushnumber(u->L, (signed char)type);
	else if (type < 0x90)
		unpack_table(u, type & 0xf, true);
	else if (type < 0xa0)
		unpack_table(u, type & 0xf, false);
	else if (type < 0xc0)
		unpack_string(u, type & 0x1f);
	else
		unpack_typed(u, type);
}

/*
 * Pushes `limit` values from `offset` on, and before them where the next one begins, -1 if there is
 * none.  All values, without that, if both are 0.
 */
static int unpack_some(lua_State *L, lua_Integer limit, lua_Integer offset)
{
	struct unpacking u = { .L = L };
	bool all = !limit && !offset;
	size_t len;
	int count;

	u.at = (const unsigned char *)luaL_checklstring(L, 1, &len);
	lua_settop(L, 1);
	if (offset < 0 || limit < 0)
		return luaL_error(L, "Invalid request to unpack with offset of %d and limit of %d.",
				  (int)offset, (int)len);
	if ((size_t)offset > len)
		return luaL_error(L, "Start offset %d greater than input length %d.", (int)offset,
				  (int)len);
	u.at += offset;
	u.left = len - (size_t)offset;
	for (count = 0; u.left && (all || count < limit); count++) {
		luaL_checkstack(L, 2, TOO_MANY);
		unpack_value(&u);
	}
	if (all)
		return count;
	lua_pushinteger(L, u.left ? (lua_Integer)(len - u.left) : -1);
	lua_insert(L, 2);
	return count + 1;
}

static int cmsgpack_unpack(lua_State *L)
{
	return unpack_some(L, 0, 0);
}

static int cmsgpack_unpack_one(lua_State *L)
{
	return unpack_some(L, 1, luaL_optinteger(L, 2, 0));
}

static int cmsgpack_unpack_limit(lua_State *L)
{
	return unpack_some(L, luaL_checkinteger(L, 2), luaL_optinteger(L, 3, 0));
}

int lua_open_cmsgpack(lua_State *L)
{
	static const luaL_Reg functions[] = { { "pack", cmsgpack_pack },
					      { "unpack", cmsgpack_unpack },
					      { "unpack_one", cmsgpack_unpack_one },
					      { "unpack_limit", cmsgpack_unpack_limit },
					      { NULL, NULL } };

	luaL_register(L, "cmsgpack", functions);
	lua_pushliteral(L, "cmsgpack");
	lua_setfield(L, -2, "_NAME");
	return 1;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The library `struct` of scripts: values to bytes and back, by a format, as Redis offers it.  No
 * package of the distributions has it.
 */
#include <ctype.h>
#include <endian.h>
#include <limits.h>
#include <string.h>

#include "lua_impl.h"

#define INTEGER_MAX   32    /* bytes */
#define ALIGN_DEFAULT 8	    /* of "!" without a number */
#define CHECK_EVERY   65536 /* options between two looks at the clock */

/* A format, as it is read. */
struct format {
	lua_State *L;
	const char *at;
	unsigned int options; /* how many were read */
	bool big;	      /* the byte order */
	size_t align;	      /* the largest */
	size_t total;	      /* where the next option's bytes are */
	char option;
	size_t size; /* bytes of the option */
};

static void format_begin(struct format *f, lua_State *L)
{
	*f = (struct format){
		.L = L, .at = luaL_checkstring(L, 1), .big = BYTE_ORDER == BIG_ENDIAN, .align = 1
	};
}

/* A number behind an option; `otherwise` if there is none. */
static size_t lua_struct_take_number(struct format *f, size_t otherwise)
{
	size_t number = 0;

	if (!isdigit((unsigned char)*f->at))
		return otherwise;
	while (isdigit((unsigned char)*f->at)) {
		number = number * 10 + (size_t)(*f->at++ - '0');
		if (number > INT_MAX)
			luaL_error(f->L, "integral size overflow");
	}
	return number;
}

static size_t option_size(struct format *f)
{
	size_t size;

	switch (f->option) {
	case 'b':
	case 'B':
	case 'x':
		return 1;
	case 'h':
	case 'H':
		return sizeof(short);
	case 'l':
	case 'L':
	case 'T':
		return sizeof(long);
	case 'f':
		return sizeof(float);
	case 'd':
		return sizeof(double);
	case 'c':
		return lua_struct_take_number(f, 1);
	case 'i':
	case 'I':
		size = lua_struct_take_number(f, sizeof(int));
		if (size > INTEGER_MAX)
			luaL_error(f->L, "integral size %d is larger than limit of %d", (int)size,
				   INTEGER_MAX);
		return size;
	default:
		return 0;
	}
}

/* Reads the next option and its size.  The bytes before it that align it; false at the end. */
static bool next_option(struct format *f, size_t *padding)
{
	size_t align;

	f->option = *f->at;
	if (!f->option)
		return false;
	f->at++;
	if (++f->options % CHECK_EVERY == 0)
		lua_check_time(f->L);
	f->size = option_size(f);
	align = f->size < f->align ? f->size : f->align;
	*padding =
		f->size && f->option != 'c' ? (align - (f->total & (align - 1))) & (align - 1) : 0;
	f->total += *padding;
	return true;
}

/* An option that has no value. */
static void control(struct format *f)
{
	size_t align;

	switch (f->option) {
	case ' ':
		break;
	case '>':
	case '<':
		f->big = f->option == '>';
		break;
	case '!':
		align = lua_struct_take_number(f, ALIGN_DEFAULT);
		if (!align || align & (align - 1))
			luaL_error(f->L, "alignment %d is not a power of 2", (int)align);
		f->align = align;
		break;
	default:
		luaL_argerror(f->L, 1,
			      lua_pushfstring(f->L, "invalid format option '%c'", f->option));
	}
}

static void swap(char *bytes, size_t size)
{
	for (size_t i = 0; i < size / 2; i++) {
		char byte = bytes[i];

		bytes[i] = bytes[size - 1 - i];
		bytes[size - 1 - i] = byte;
	}
}

/* --- pack --- */

/* In the machine's byte order, or in the other one. */
static void put_bytes(const struct format *f, luaL_Buffer *b, char *bytes)
{
	if (f->big != (BYTE_ORDER == BIG_ENDIAN))
		swap(bytes, f->size);
	luaL_addlstring(b, bytes, f->size);
}

static void put_integer(const struct format *f, luaL_Buffer *b, lua_Number number)
{
	uint64_t value = number < 0 ? (uint64_t)(int64_t)number : (uint64_t)number;
	char bytes[INTEGER_MAX];

	for (size_t i = 0; i < f->size; i++, value >>= 8)
		bytes[i] = (char)(value & 0xff);
	if (f->big)
		swap(bytes, f->size);
	luaL_addlstring(b, bytes, f->size);
}

/* A string; `next` is the argument after it, which an error names, as in Redis. */
static void put_string(struct format *f, luaL_Buffer *b, int next)
{
	size_t len;
	const char *text = luaL_checklstring(f->L, next - 1, &len);

	if (!f->size)
		f->size = len;
	luaL_argcheck(f->L, len >= f->size, next, "string too short");
	luaL_addlstring(b, text, f->size);
	if (f->option == 's') {
		luaL_addchar(b, '\0');
		f->size++;
	}
}

static int struct_pack(lua_State *L)
{
	size_t padding;
	struct format f;
	luaL_Buffer b;
	int arg = 2;
	double d;
	float s;

	format_begin(&f, L);
	lua_pushnil(L); /* between the arguments and what the buffer keeps on the stack */
	luaL_buffinit(L, &b);
	for (; next_option(&f, &padding); f.total += f.size) {
		while (padding--)
			luaL_addchar(&b, '\0');
		if (f.option == 'x') {
			luaL_addchar(&b, '\0');
		} else if (strchr("bBhHlLTiI", f.option)) {
			put_integer(&f, &b, luaL_checknumber(L, arg++));
		} else if (f.option == 'f') {
			s = (float)luaL_checknumber(L, arg++);
			put_bytes(&f, &b, (char *)&s);
		} else if (f.option == 'd') {
			d = luaL_checknumber(L, arg++);
			put_bytes(&f, &b, (char *)&d);
		} else if (f.option == 'c' || f.option == 's') {
			put_string(&f, &b, ++arg);
		} else {
			control(&f);
		}
	}
	luaL_pushresult(&b);
	return 1;
}

/* --- unpack --- */

/* The low 64 bits; a signed one is extended. */
static lua_Number get_integer(const struct format *f, const char *bytes)
{
	unsigned int shift = f->size && f->size < 8 ? 64 - 8 * (unsigned int)f->size : 0;
	uint64_t value = 0;

	for (size_t i = 0; i < f->size; i++)
		value = value << 8 | (unsigned char)bytes[f->big ? i : f->size - 1 - i];
	if (islower((unsigned char)f->option))
		return (lua_Number)((int64_t)(value << shift) >> shift);
	return (lua_Number)value;
}

static lua_Number get_float(const struct format *f, const char *bytes)
{
	char copy[sizeof(double)];
	double d;
	float s;

	memcpy(copy, bytes, f->size);
	if (f->big != (BYTE_ORDER == BIG_ENDIAN))
		swap(copy, f->size);
	memcpy(f->size == sizeof(d) ? (void *)&d : (void *)&s, copy, f->size);
	return f->size == sizeof(d) ? d : (lua_Number)s;
}

static void check_data(const struct format *f, size_t len)
{
	luaL_argcheck(f->L, f->size <= len && f->total <= len - f->size, 2,
		      "data string too short");
}

/* Takes the result before it, a number, as its size. */
static void take_size(struct format *f, int *results, size_t len)
{
	lua_Number size;

	if (!*results || !lua_isnumber(f->L, -1))
		luaL_error(f->L, "format 'c0' needs a previous size");
	size = lua_tonumber(f->L, -1);
	f->size = size >= 0 && size <= (lua_Number)len ? (size_t)size : SIZE_MAX;
	check_data(f, len);
	lua_pop(f->L, 1);
	--*results;
}

/* The length of a string that ends with a NUL, without it. */
static size_t text_size(const struct format *f, const char *data, size_t len)
{
	const char *end = memchr(data + f->total, '\0', len - f->total);

	if (!end)
		luaL_error(f->L, "unfinished string in data");
	return (size_t)(end - data) - f->total;
}

/* Pushes the value of an option, if it has one. */
static void get_value(struct format *f, const char *data, size_t len, int *results)
{
	const char *at = data + f->total;

	if (f->option == 'x')
		return;
	if (strchr("bBhHlLTiI", f->option)) {
		lua_pushnumber(f->L, get_integer(f, at));
	} else if (f->option == 'f' || f->option == 'd') {
		lua_pushnumber(f->L, get_float(f, at));
	} else if (f->option == 'c') {
		if (!f->size)
			take_size(f, results, len);
		lua_pushlstring(f->L, at, f->size);
	} else if (f->option == 's') {
		f->size = text_size(f, data, len);
		lua_pushlstring(f->L, at, f->size++);
	} else {
		control(f);
		return;
	}
	++*results;
}

static int struct_unpack(lua_State *L)
{
	size_t len, padding;
	lua_Integer begin;
	const char *data;
	int results = 0;
	struct format f;

	format_begin(&f, L);
	data = luaL_checklstring(L, 2, &len);
	begin = luaL_optinteger(L, 3, 1);
	luaL_argcheck(L, begin != 0, 3, "offset must be 1 or greater");
	f.total = (size_t)(begin - 1);
	lua_settop(L, 2);
	for (; next_option(&f, &padding); f.total += f.size) {
		check_data(&f, len);
		luaL_checkstack(L, 2, "too many results");
		get_value(&f, data, len, &results);
	}
	lua_pushinteger(L, (lua_Integer)f.total + 1);
	return results + 1;
}

static int struct_size(lua_State *L)
{
	struct format f;
	size_t padding;

	format_begin(&f, L);
	for (; next_option(&f, &padding); f.total += f.size) {
		if (f.option == 's')
			luaL_argerror(L, 1, "option 's' has no fixed size");
		if (f.option == 'c' && !f.size)
			luaL_argerror(L, 1, "option 'c0' has no fixed size");
		if (!isalnum((unsigned char)f.option))
			control(&f);
	}
	lua_pushinteger(L, (lua_Integer)f.total);
	return 1;
}

int lua_open_struct(lua_State *L)
{
	static const luaL_Reg functions[] = { { "pack", struct_pack },
					      { "unpack", struct_unpack },
					      { "size", struct_size },
					      { NULL, NULL } };

	luaL_register(L, "struct", functions);
	return 1;
}

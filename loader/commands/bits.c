/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Values as arrays of bits.  Bit 0 is the highest one of the first byte.  What is behind the end of
 * a value, or of a key that does not exist, is 0.
 */
#include "database/database.h"

#include <string.h>

/* --- one bit --- */

bool check_bit_offset(struct caller *c, const struct resp_arg *arg, unsigned int unit,
		      uint64_t *out)
{
	bool in_units = unit && arg->len && arg->ptr[0] == '#';
	int64_t offset;

	if (text_to_i64(arg->ptr + in_units, arg->len - in_units, &offset) && offset >= 0 &&
	    !__builtin_mul_overflow(offset, in_units ? (int64_t)unit : 1, &offset) &&
	    (uint64_t)offset / 8 < c->srv->cfg->proto_max_bulk_len) {
		*out = (uint64_t)offset;
		return true;
	}
	reply_error(reply_to(c), "ERR bit offset is not an integer or out of range");
	return false;
}

static unsigned int bit_mask(uint64_t offset)
{
	return 0x80U >> offset % 8;
}

struct set_bit {
	uint64_t offset;
	bool on, was;
};

static int set_bit(struct caller *c, void *arg, struct value *v)
{
	struct set_bit *x = arg;
	bool grows = x->offset / 8 >= v->len;
	int ret = grows ? value_resize(v, x->offset / 8 + 1) : 0;
	unsigned char *byte;

	if (ret)
		return ret;
	byte = &v->bytes[x->offset / 8];
	x->was = *byte & bit_mask(x->offset);
	if (x->was == x->on && !grows)
		return CHANGE_NOTHING;
	v->cause = CAUSE_SETBIT;
	*byte = (unsigned char)(x->on ? *byte | bit_mask(x->offset) : *byte & ~bit_mask(x->offset));
	return CHANGE_VALUE;
}

void cmd_setbit(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct set_bit x = { 0 };
	int64_t bit;

	if (!check_key(c, &argv[1]) || !check_bit_offset(c, &argv[2], 0, &x.offset))
		return;
	if (!text_to_i64(argv[3].ptr, argv[3].len, &bit) || bit < 0 || bit > 1) {
		reply_error(reply_to(c), "ERR bit is not an integer or out of range");
		return;
	}
	x.on = bit;
	if (command_change(c, &argv[1], set_bit, &x))
		reply_int(reply_to(c), x.was);
}

void cmd_getbit(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_entry e;
	uint64_t offset;

	if (!check_key(c, &argv[1]) || !check_bit_offset(c, &argv[2], 0, &offset) ||
	    !command_read_part(c, &argv[1], (int64_t)(offset / 8), (int64_t)(offset / 8), &e))
		return;
	reply_int(reply_to(c), e.value_len && *(const unsigned char *)e.value & bit_mask(offset));
}

/* --- ranges of bits --- */

/* The unit of a range, BYTE or BIT. */
static bool range_unit(struct caller *c, const struct resp_arg *arg, bool *bits)
{
	*bits = arg_is(arg, "bit");
	if (*bits || arg_is(arg, "byte"))
		return true;
	reply_error(reply_to(c), "ERR syntax error");
	return false;
}

/* Turns a range of bytes or bits of a value into one of bits; whether anything is in it. */
static bool range_of_bits(int64_t *first, int64_t *last, size_t len, bool bits)
{
	if (!range_resolve(first, last, (int64_t)(bits ? len * 8 : len)))
		return false;
	if (!bits) {
		*first *= 8;
		*last = *last * 8 + 7;
	}
	return true;
}

/* The bits of byte `at` that are in a range of bits. */
static unsigned int mask_within(int64_t at, int64_t first, int64_t last)
{
	unsigned int mask = 0xff;

	if (at == first / 8)
		mask &= 0xffU >> first % 8;
	if (at == last / 8)
		mask &= 0xff00U >> (last % 8 + 1);
	return mask;
}

static uint64_t word_at(const unsigned char *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	return word;
}

static int64_t count_bits(const unsigned char *bytes, int64_t first, int64_t last)
{
	int64_t at = first / 8, end = last / 8, n;

	n = __builtin_popcount(bytes[at] & mask_within(at, first, last));
	if (at == end)
		return n;
	n += __builtin_popcount(bytes[end] & mask_within(end, first, last));
	for (at++; at + 8 <= end; at += 8)
		n += __builtin_popcountll(word_at(bytes + at));
	for (; at < end; at++)
		n += __builtin_popcount(bytes[at]);
	return n;
}

/* The position of the first bit in the range that is `bit`, -1 = none is. */
static int64_t find_bit(const unsigned char *bytes, int64_t first, int64_t last, bool bit)
{
	unsigned int flip = bit ? 0 : 0xff, byte;

	for (int64_t at = first / 8; at <= last / 8; at++) {
		while (at + 8 <= last / 8 && word_at(bytes + at) == (bit ? 0 : UINT64_MAX))
			at += 8;
		byte = (bytes[at] ^ flip) & mask_within(at, first, last);
		if (byte)
			return at * 8 + __builtin_clz(byte) - 24;
	}
	return -1;
}

void cmd_bitcount(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	int64_t first = 0, last = -1;
	struct store_entry e;
	bool bits = false;

	if (!check_key(c, &argv[1]) || !command_read(c, &argv[1], &e))
		return;
	if (!e.value) { /* then Redis does not look at the range */
		reply_int(reply_to(c), 0);
		return;
	}
	if (argc == 3 || argc > 5) {
		reply_error(reply_to(c), "ERR syntax error");
		return;
	}
	if (argc > 3 && (!check_integer(c, &argv[2], &first) || !check_integer(c, &argv[3], &last)))
		return;
	if (argc > 3 && range_is_backward(first, last)) {
		reply_int(reply_to(c), 0);
		return;
	}
	if (argc == 5 && !range_unit(c, &argv[4], &bits))
		return;
	if (range_of_bits(&first, &last, e.value_len, bits))
		reply_int(reply_to(c), count_bits(e.value, first, last));
	else
		reply_int(reply_to(c), 0);
}

/* BITPOS's range.  On false the error was replied. */
static bool find_range(struct caller *c, unsigned int argc, const struct resp_arg *argv,
		       int64_t *first, int64_t *last, bool *bits)
{
	if (argc > 6) {
		reply_error(reply_to(c), "ERR syntax error");
		return false;
	}
	return (argc < 4 || check_integer(c, &argv[3], first)) &&
	       (argc < 6 || range_unit(c, &argv[5], bits)) &&
	       (argc < 5 || check_integer(c, &argv[4], last));
}

void cmd_bitpos(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	int64_t bit, first = 0, last = -1, at = -1;
	struct store_entry e;
	bool bits = false;

	if (!check_key(c, &argv[1]) || !check_integer(c, &argv[2], &bit))
		return;
	if (bit != 0 && bit != 1) {
		reply_error(reply_to(c), "ERR The bit argument must be 1 or 0.");
		return;
	}
	if (!command_read(c, &argv[1], &e))
		return;
	if (!e.value) { /* then Redis does not look at the range */
		reply_int(reply_to(c), bit ? -1 : 0);
		return;
	}
	if (!find_range(c, argc, argv, &first, &last, &bits))
		return;
	if (range_of_bits(&first, &last, e.value_len, bits)) {
		at = find_bit(e.value, first, last, bit);
		if (at < 0 && !bit && argc < 5)
			at = last + 1; /* without an end, there are zeros behind the value */
	}
	reply_int(reply_to(c), at);
}

/* --- BITOP --- */

enum bit_op { BIT_AND, BIT_OR, BIT_XOR, BIT_NOT };

struct combine {
	enum bit_op op;
	const struct resp_arg *sources;
	unsigned int count;
	size_t len; /* of the result */
};

#define COMBINED_MAX (1U << 30) /* bytes of all sources, half a second */

/* Combines the first bytes of `to` with others. */
static void combine_bytes(enum bit_op op, unsigned char *restrict to,
			  const unsigned char *restrict from, size_t len)
{
	switch (op) {
	case BIT_AND:
		for (size_t i = 0; i < len; i++)
			to[i] &= from[i];
		break;
	case BIT_OR:
		for (size_t i = 0; i < len; i++)
			to[i] |= from[i];
		break;
	case BIT_XOR:
		for (size_t i = 0; i < len; i++)
			to[i] ^= from[i];
		break;
	case BIT_NOT:
		for (size_t i = 0; i < len; i++)
			to[i] = (unsigned char)~from[i];
	}
}

/*
 * One source after the other.  If the key is among them it may be another value than the one in
 * `v`; but then it has been changed, and nothing is written.
 */
static int combine(struct caller *c, void *arg, struct value *v)
{
	struct combine *x = arg;
	struct store_entry e;
	int ret = value_resize(v, 0);
	size_t bytes = 0;

	for (unsigned int i = 0; i < x->count && !ret; i++) {
		enum bit_op op = i || x->op == BIT_NOT ? x->op : BIT_OR; /* into zeros: a copy */

		if (!command_read(c, &x->sources[i], &e))
			return REPLIED;
		bytes += e.value_len;
		if (bytes > COMBINED_MAX) {
			reply_error(reply_to(c), "ERR values of more than 1 GiB together");
			return REPLIED;
		}
		if (e.value_len > v->len)
			ret = value_resize(v, e.value_len);
		if (ret)
			return ret;
		combine_bytes(op, v->bytes, e.value, e.value_len);
		if (op == BIT_AND)
			memset(v->bytes + e.value_len, 0, v->len - e.value_len);
	}
	x->len = v->len;
	return ret ? ret : v->len ? CHANGE_REPLACE : CHANGE_DELETE;
}

static bool combine_op(struct caller *c, unsigned int argc, const struct resp_arg *argv,
		       enum bit_op *op)
{
	static const char *const names[] = { "and", "or", "xor", "not" };

	for (*op = BIT_AND; *op <= BIT_NOT && !arg_is(&argv[1], names[*op]);)
		++*op;
	if (*op > BIT_NOT)
		reply_error(reply_to(c), "ERR syntax error");
	else if (*op == BIT_NOT && argc != 4)
		reply_error(reply_to(c), "ERR BITOP NOT must be called with a single source key.");
	else
		return true;
	return false;
}

void cmd_bitop(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct combine x = { .sources = &argv[3], .count = argc - 3 };

	if (!combine_op(c, argc, argv, &x.op))
		return;
	for (unsigned int i = 2; i < argc; i++)
		if (!check_key(c, &argv[i]))
			return;
	if (command_change(c, &argv[2], combine, &x))
		reply_int(reply_to(c), (int64_t)x.len);
}

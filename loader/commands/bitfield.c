/* SPDX-License-Identifier: BSD-2-Clause */
/* BITFIELD: integers of 1 to 64 bits anywhere in a value, several operations as one change. */
#include "database/database.h"

#include <stdlib.h>

enum field_opcode { FIELD_GET, FIELD_SET, FIELD_INCRBY };
enum field_overflow { OVERFLOW_WRAP, OVERFLOW_SAT, OVERFLOW_FAIL };

struct field_op {
	enum field_opcode opcode;
	enum field_overflow overflow;
	bool is_signed;
	unsigned int bits;
	uint64_t offset; /* of its highest bit */
	int64_t operand;
	int64_t result;
	bool failed; /* of an overflow: the result is null */
};

struct fields {
	struct field_op *ops; /* owned */
	unsigned int count;
	bool writes;
	size_t bytes_needed; /* by the operations that write */
};

/* --- parsing --- */

/* A type: "i" or "u", and the number of bits. */
static bool field_type(struct caller *c, const struct resp_arg *arg, struct field_op *op)
{
	int64_t bits;

	op->is_signed = arg->len && arg->ptr[0] == 'i';
	if (arg->len && (op->is_signed || arg->ptr[0] == 'u') &&
	    text_to_i64(arg->ptr + 1, arg->len - 1, &bits) && bits >= 1 &&
	    bits <= (op->is_signed ? 64 : 63)) {
		op->bits = (unsigned int)bits;
		return true;
	}
	reply_error(reply_to(c), "ERR Invalid bitfield type. Use something like i16 u8. Note that "
				 "u64 is not supported but i64 is.");
	return false;
}

static bool overflow_type(struct caller *c, const struct resp_arg *arg, enum field_overflow *type)
{
	static const char *const names[] = { "wrap", "sat", "fail" };

	for (unsigned int i = 0; i < 3; i++) {
		if (arg_is(arg, names[i])) {
			*type = (enum field_overflow)i;
			return true;
		}
	}
	reply_error(reply_to(c), "ERR Invalid OVERFLOW type specified");
	return false;
}

/* Parses an operation at argv[at] into the next place.  Returns its words, 0 = error, replied. */
static unsigned int field_operation(struct caller *c, unsigned int argc,
				    const struct resp_arg *argv, unsigned int at, struct fields *f)
{
	static const struct {
		const char *name;
		unsigned int words;
	} names[] = { { "get", 3 }, { "set", 4 }, { "incrby", 4 } };
	struct field_op *op = &f->ops[f->count];
	unsigned int i = 0;

	while (i < 3 && !arg_is(&argv[at], names[i].name))
		i++;
	if (i == 3 || argc - at < names[i].words) {
		reply_error(reply_to(c), "ERR syntax error");
		return 0;
	}
	op->opcode = (enum field_opcode)i;
	if (!field_type(c, &argv[at + 1], op) ||
	    !check_bit_offset(c, &argv[at + 2], op->bits, &op->offset))
		return 0;
	if (op->opcode != FIELD_GET) {
		size_t end = (op->offset + op->bits + 7) / 8;

		f->writes = true;
		f->bytes_needed = end > f->bytes_needed ? end : f->bytes_needed;
		if (!check_integer(c, &argv[at + 3], &op->operand))
			return 0;
	}
	f->count++;
	return names[i].words;
}

static bool fields_parse(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			 struct fields *f)
{
	enum field_overflow overflow = OVERFLOW_WRAP;

	for (unsigned int i = 2, words; i < argc; i += words) {
		words = 2;
		if (arg_is(&argv[i], "overflow") && i + 1 < argc) {
			if (!overflow_type(c, &argv[i + 1], &overflow))
				return false;
			continue;
		}
		f->ops[f->count].overflow = overflow;
		words = field_operation(c, argc, argv, i, f);
		if (!words)
			return false;
	}
	return true;
}

/* --- execution --- */

/* The lowest bits of a number as a field of the operation's type. */
static int64_t field_from(const struct field_op *op, uint64_t number)
{
	unsigned int above = 64 - op->bits;

	return op->is_signed ? (int64_t)(number << above) >> above
			     : (int64_t)(number << above >> above);
}

static int64_t field_get(const struct field_op *op, const unsigned char *bytes, size_t len)
{
	uint64_t number = 0;

	for (uint64_t at = op->offset; at < op->offset + op->bits; at++)
		number = number << 1 | (at / 8 < len && bytes[at / 8] & 0x80U >> at % 8);
	return field_from(op, number);
}

static void field_put(const struct field_op *op, unsigned char *bytes, int64_t value)
{
	uint64_t number = (uint64_t)value << (64 - op->bits);

	for (uint64_t at = op->offset; at < op->offset + op->bits; at++, number <<= 1) {
		unsigned int mask = 0x80U >> at % 8, byte = bytes[at / 8];

		bytes[at / 8] = (unsigned char)(number >> 63 ? byte | mask : byte & ~mask);
	}
}

/* The number as the operation's overflow has it in the field; false if it refuses. */
static bool field_fit(const struct field_op *op, __int128 number, int64_t *out)
{
	__int128 most = ((__int128)1 << (op->bits - op->is_signed)) - 1;
	__int128 least = op->is_signed ? -most - 1 : 0;
	bool fits = number >= least && number <= most;

	if (fits || op->overflow == OVERFLOW_WRAP)
		*out = field_from(op, (uint64_t)number);
	else
		*out = (int64_t)(number < least ? least : most);
	return fits || op->overflow != OVERFLOW_FAIL;
}

/* Executes a SET or INCRBY; returns whether it changed a bit. */
static bool field_write(struct field_op *op, unsigned char *bytes, size_t len)
{
	int64_t old = field_get(op, bytes, len), now;
	__int128 number;

	if (op->opcode == FIELD_INCRBY)
		number = (__int128)old + op->operand;
	else
		number = op->is_signed ? op->operand : (__int128)(uint64_t)op->operand;
	op->failed = !field_fit(op, number, &now);
	if (op->failed)
		return false;
	op->result = op->opcode == FIELD_SET ? old : now;
	field_put(op, bytes, now);
	return now != old;
}

static int change_fields(struct caller *c, void *arg, struct value *v)
{
	struct fields *f = arg;
	bool changed = f->bytes_needed > v->len;
	int ret = changed ? value_resize(v, f->bytes_needed) : 0;

	if (ret)
		return ret;
	for (unsigned int i = 0; i < f->count; i++) {
		struct field_op *op = &f->ops[i];

		if (op->opcode == FIELD_GET)
			op->result = field_get(op, v->bytes, v->len);
		else
			changed |= field_write(op, v->bytes, v->len);
	}
	v->cause = CAUSE_SETBIT;
	return changed ? CHANGE_VALUE : CHANGE_NOTHING;
}

static bool read_fields(struct caller *c, const struct resp_arg *key, struct fields *f)
{
	struct store_entry e;

	if (!command_read(c, key, &e))
		return false;
	for (unsigned int i = 0; i < f->count; i++)
		f->ops[i].result = field_get(&f->ops[i], e.value, e.value_len);
	return true;
}

static void reply_fields(struct caller *c, const struct fields *f)
{
	reply_array(reply_to(c), f->count);
	for (unsigned int i = 0; i < f->count; i++) {
		if (f->ops[i].failed)
			reply_null(reply_to(c));
		else
			reply_int(reply_to(c), f->ops[i].result);
	}
}

static void bitfield(struct caller *c, unsigned int argc, const struct resp_arg *argv,
		     bool may_write)
{
	struct fields f = { .ops = calloc(argc, sizeof(*f.ops)) };
	bool done = false;

	if (!f.ops)
		reply_store_error(c, -ENOMEM);
	else if (!check_key(c, &argv[1]) || !fields_parse(c, argc, argv, &f))
		;
	else if (!f.writes)
		done = read_fields(c, &argv[1], &f);
	else if (may_write)
		done = command_change(c, &argv[1], change_fields, &f);
	else
		reply_error(reply_to(c), "ERR BITFIELD_RO only supports the GET subcommand");
	if (done)
		reply_fields(c, &f);
	free(f.ops);
}

void cmd_bitfield(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	bitfield(c, argc, argv, true);
}

void cmd_bitfield_ro(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	bitfield(c, argc, argv, false);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* PFADD, PFCOUNT, PFMERGE, PFDEBUG: counting different elements, about (hll.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hll.h"

#define DIRECT_ELEMENTS 32	   /* of a PFADD that is not done in slices */
#define ADDED_AT_ONCE	16384	   /* elements, some 2 ms */
#define ADDED_BYTES	(16 << 20) /* of these */

static int reply_damaged(struct caller *c)
{
	reply_error(reply_to(c), "INVALIDOBJ Corrupted HLL object detected");
	return REPLIED;
}

static bool check_hll(struct caller *c, const void *bytes, size_t len)
{
	if (hll_is_one(bytes, len))
		return true;
	reply_error(reply_to(c), "WRONGTYPE Key is not a valid HyperLogLog string value.");
	return false;
}

/* --- PFADD --- */

struct elements {
	const struct resp_arg *args;
	unsigned int count;
	bool changed;
};

static int add_elements(struct caller *c, void *arg, struct value *v)
{
	struct elements *x = arg;
	int ret;

	x->changed = !v->exists;
	if (v->exists && !check_hll(c, v->bytes, v->len))
		return REPLIED;
	ret = v->exists ? 0 : hll_init(v);
	for (unsigned int i = 0; i < x->count && ret >= 0; i++) {
		ret = hll_add(v, x->args[i].ptr, x->args[i].len);
		x->changed |= ret > 0;
	}
	if (ret < 0)
		return ret == -EINVAL ? reply_damaged(c) : ret;
	if (!x->changed)
		return CHANGE_NOTHING;
	hll_invalidate_cache(v->bytes);
	v->cause = CAUSE_PFADD;
	return CHANGE_VALUE;
}

/* Adds some of many elements: adding them in several changes has the same result. */
static bool add_step(struct caller *c)
{
	const struct resp_arg *argv = c->call.argv;
	struct progress *p = progress_of(c);
	struct elements x = { .args = &argv[p->at] };
	size_t bytes = 0;

	while (p->at < c->call.argc && x.count < ADDED_AT_ONCE && bytes < ADDED_BYTES) {
		bytes += argv[p->at++].len;
		x.count++;
	}
	if (!command_change(c, &argv[1], add_elements, &x))
		return true;
	p->tally |= x.changed;
	if (p->at < c->call.argc)
		return false;
	reply_int(reply_to(c), p->tally);
	return true;
}

void cmd_pfadd(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct elements x = { .args = &argv[2], .count = argc - 2 };

	if (argc > DIRECT_ELEMENTS && !transaction_of(c)->runs) {
		if (check_key(c, &argv[1]))
			long_begin(c, add_step)->at = 2;
		return;
	}
	if (check_key(c, &argv[1]) && command_change(c, &argv[1], add_elements, &x))
		reply_int(reply_to(c), x.changed);
}

/* --- PFCOUNT --- */

/* Reads a key's registers into others.  On false the error was replied. */
static bool merge_key(struct caller *c, const struct resp_arg *key,
		      uint8_t registers[HLL_REGISTERS], struct store_entry *e)
{
	if (!command_read(c, key, e))
		return false;
	if (!e->value)
		return true;
	if (!check_hll(c, e->value, e->value_len))
		return false;
	if (!hll_merge(registers, e->value, e->value_len))
		return true;
	reply_damaged(c);
	return false;
}

/* Writes an estimate into the value that it was made from, if that is still the same. */
static void cache_estimate(struct caller *c, const struct resp_arg *key,
			   const struct store_entry *e, uint64_t estimate)
{
	struct store_op set = {
		.opcode = XKV_OP_SET,
		.flags = XKV_CAS | XKV_KEEPTTL,
		.key = key->ptr,
		.key_len = key->len,
		.value_len = e->value_len,
		.version = e->version,
		.cause = CAUSE_NONE,
	};
	struct store_entry unused;
	void *copy;

	if (c->srv->writes_refused || c->srv->writes_wait || c->worker->pause.until_ns)
		return;
	copy = malloc(e->value_len);
	if (!copy)
		return; /* it will be computed again */
	memcpy(copy, e->value, e->value_len);
	hll_set_cache(copy, estimate);
	set.value = copy;
	store_do(c->worker->ctx, &set, &unused);
	free(copy);
}

static void count_one(struct caller *c, const struct resp_arg *key)
{
	uint8_t registers[HLL_REGISTERS] = { 0 };
	struct store_entry e;
	uint64_t estimate = 0;

	if (!command_read(c, key, &e))
		return;
	if (e.value && !check_hll(c, e.value, e.value_len))
		return;
	if (e.value && !hll_cached(e.value, &estimate)) {
		if (hll_merge(registers, e.value, e.value_len)) {
			reply_damaged(c);
			return;
		}
		estimate = hll_estimate(registers);
		cache_estimate(c, key, &e, estimate);
	}
	reply_int(reply_to(c), (int64_t)estimate);
}

static void count_union(struct caller *c, unsigned int count, const struct resp_arg *keys)
{
	uint8_t registers[HLL_REGISTERS] = { 0 };
	struct store_entry e;

	for (unsigned int i = 0; i < count; i++)
		if (!merge_key(c, &keys[i], registers, &e))
			return;
	reply_int(reply_to(c), (int64_t)hll_estimate(registers));
}

void cmd_pfcount(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	for (unsigned int i = 1; i < argc; i++)
		if (!check_key(c, &argv[i]))
			return;
	if (argc == 2)
		count_one(c, &argv[1]);
	else
		count_union(c, argc - 1, &argv[1]);
}

/* --- PFMERGE --- */

struct sources {
	const struct resp_arg *to, *keys;
	unsigned int count;
};

/* Raises the registers of `v` to those given. */
static int raise_all(struct value *v, const uint8_t registers[HLL_REGISTERS], bool dense)
{
	int ret = v->exists ? 0 : hll_init(v);

	if (!ret && dense)
		ret = hll_to_dense(v);
	for (unsigned int i = 0; i < HLL_REGISTERS && ret >= 0; i++)
		if (registers[i])
			ret = hll_raise(v, i, registers[i]);
	return ret < 0 ? ret : 0;
}

static int merge_sources(struct caller *c, void *arg, struct value *v)
{
	uint8_t registers[HLL_REGISTERS] = { 0 };
	const struct sources *x = arg;
	struct store_entry e;
	bool dense = false;
	int ret;

	if (v->exists && !check_hll(c, v->bytes, v->len))
		return REPLIED;
	if (v->exists && hll_merge(registers, v->bytes, v->len))
		return reply_damaged(c);
	if (!v->exists)
		changes_miss(c, x->to->ptr, x->to->len);
	/* one dense source makes the result dense, as in Redis */
	for (unsigned int i = 0; i < x->count; i++) {
		if (!merge_key(c, &x->keys[i], registers, &e))
			return REPLIED;
		dense |= e.value && hll_encoding(e.value) == HLL_DENSE;
	}
	ret = raise_all(v, registers, dense);
	if (ret)
		return ret == -EINVAL ? reply_damaged(c) : ret;
	hll_invalidate_cache(v->bytes);
	v->cause = CAUSE_PFADD;
	return CHANGE_VALUE;
}

void cmd_pfmerge(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct sources x = { .to = &argv[1], .keys = &argv[2], .count = argc - 2 };

	for (unsigned int i = 1; i < argc; i++)
		if (!check_key(c, &argv[i]))
			return;
	if (command_change(c, &argv[1], merge_sources, &x))
		reply_ok(reply_to(c));
}

/* --- PFDEBUG --- */

struct debug {
	const struct resp_arg *subcommand;
	bool registers; /* GETREG, else TODENSE */
	bool converted;
	uint8_t value[HLL_REGISTERS];
};

/* The runs of a sparse one as text: z and Z are of zeros, v has a value and a length. */
static int reply_runs(struct caller *c, const struct value *v)
{
	char *text = malloc(v->len * 16);
	size_t at = 0, used = 0;
	struct hll_run run;

	if (!text)
		return -ENOMEM;
	while (hll_next_run(v->bytes, v->len, &at, &run)) {
		if (run.value)
			used += (size_t)sprintf(text + used, "v:%u,%u ", run.value, run.len);
		else
			used += (size_t)sprintf(text + used, "%c:%u ", run.is_long ? 'Z' : 'z',
						run.len);
	}
	reply_bulk(reply_to(c), text, used ? used - 1 : 0);
	free(text);
	return REPLIED;
}

/* GETREG and TODENSE make it dense, the others reply at once. */
static int debug_value(struct caller *c, void *arg, struct value *v)
{
	struct debug *x = arg;
	bool sparse;
	int ret;

	if (!v->exists) {
		reply_error(reply_to(c), "ERR The specified key does not exist");
		return REPLIED;
	}
	if (!check_hll(c, v->bytes, v->len))
		return REPLIED;
	sparse = hll_encoding(v->bytes) == HLL_SPARSE;
	x->registers = arg_is(x->subcommand, "getreg");
	if (x->registers || arg_is(x->subcommand, "todense")) {
		x->converted = sparse;
		ret = hll_to_dense(v);
		if (ret)
			return ret == -EINVAL ? reply_damaged(c) : ret;
		memset(x->value, 0, sizeof(x->value));
		hll_merge(x->value, v->bytes, v->len);
		return sparse ? CHANGE_VALUE : CHANGE_NOTHING;
	}
	if (arg_is(x->subcommand, "encoding"))
		reply_status(reply_to(c), sparse ? "sparse" : "dense");
	else if (arg_is(x->subcommand, "decode") && sparse)
		return reply_runs(c, v);
	else if (arg_is(x->subcommand, "decode"))
		reply_error(reply_to(c), "ERR HLL encoding is not sparse");
	else
		reply_error(reply_to(c), "ERR Unknown PFDEBUG subcommand '%.*s'",
			    (int)x->subcommand->len, x->subcommand->ptr);
	return REPLIED;
}

void cmd_pfdebug(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct debug x = { .subcommand = &argv[1] };

	if (!check_key(c, &argv[2]) || !command_change(c, &argv[2], debug_value, &x))
		return;
	if (!x.registers) {
		reply_int(reply_to(c), x.converted);
		return;
	}
	reply_array(reply_to(c), HLL_REGISTERS);
	for (unsigned int i = 0; i < HLL_REGISTERS; i++)
		reply_int(reply_to(c), x.value[i]);
}

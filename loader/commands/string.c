/* SPDX-License-Identifier: BSD-2-Clause */
/* Commands that read and write values. */
#include "database/database.h"

#include <errno.h>
#include <string.h>

#include "store/txn.h"

/* --- reading --- */

/* A `note` other than 0: the first of an array of that length. */
void end_value(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	if (note)
		reply_array(reply_to(c), note);
	if (ret && ret != -ENOENT && ret != -ECANCELED)
		reply_store_error(c, ret);
	else if (e->value)
		command_reply_value(c, e);
	else
		reply_null(reply_to(c));
}

static void queue_get(struct caller *c, const struct resp_arg *key, command_end_fn *end,
		      unsigned int note)
{
	struct store_op op = { .opcode = XKV_OP_GET, .key = key->ptr, .key_len = key->len };

	command_queue(c, &op, end, note);
}

void cmd_get(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (check_key(c, &argv[1]))
		queue_get(c, &argv[1], end_value, 0);
}

static void mget_key(struct caller *c, const struct resp_arg *arg, unsigned int index,
		     unsigned int argc)
{
	queue_get(c, arg, end_value, index == 1 ? argc - 1 : 0);
}

void cmd_mget(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	command_keys(c, argc, argv, 1, mget_key);
}

static void end_length(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	if (ret && ret != -ENOENT)
		reply_store_error(c, ret);
	else
		reply_int(reply_to(c), e->number);
}

void cmd_strlen(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_op op = { .opcode = XKV_OP_GET,
			       .key = argv[1].ptr,
			       .key_len = argv[1].len,
			       .part = true,
			       .first = 1 }; /* up to 0: nothing but the length is read */

	if (check_key(c, &argv[1]))
		command_queue(c, &op, end_length, 0);
}

/* --- SET --- */

enum ttl_unit { TTL_NONE, TTL_EX, TTL_PX, TTL_EXAT, TTL_PXAT };

struct set_options {
	unsigned int flags; /* XKV_NX, XKV_XX, XKV_KEEPTTL */
	enum ttl_unit unit;
	const struct resp_arg *ttl;
	bool get, persist;
};

/*
 * Parses a time to live among the options; `next` is the following word, NULL at the end.  Returns
 * how many words were used, 0 = syntax error.
 */
static unsigned int ttl_option(struct set_options *o, const struct resp_arg *word,
			       const struct resp_arg *next)
{
	static const struct {
		const char *name;
		enum ttl_unit unit;
	} units[] = {
		{ "ex", TTL_EX }, { "px", TTL_PX }, { "exat", TTL_EXAT }, { "pxat", TTL_PXAT }
	};

	for (unsigned int i = 0; i < 4; i++) {
		if (!arg_is(word, units[i].name))
			continue;
		if (!next || (o->flags & XKV_KEEPTTL) || o->persist ||
		    (o->unit && o->unit != units[i].unit))
			return 0;
		o->unit = units[i].unit;
		o->ttl = next;
		return 2;
	}
	return 0;
}

/* One word of SET's options, as ttl_option(). */
static unsigned int set_option(struct set_options *o, const struct resp_arg *word,
			       const struct resp_arg *next)
{
	if (arg_is(word, "nx") && !(o->flags & XKV_XX)) {
		o->flags |= XKV_NX;
		return 1;
	}
	if (arg_is(word, "xx") && !(o->flags & XKV_NX)) {
		o->flags |= XKV_XX;
		return 1;
	}
	if (arg_is(word, "get")) {
		o->get = true;
		return 1;
	}
	if (arg_is(word, "keepttl") && !o->unit) {
		o->flags |= XKV_KEEPTTL;
		return 1;
	}
	return ttl_option(o, word, next);
}

static unsigned int getex_option(struct set_options *o, const struct resp_arg *word,
				 const struct resp_arg *next)
{
	if (!arg_is(word, "persist") || o->unit)
		return ttl_option(o, word, next);
	o->persist = true;
	return 1;
}

/* Parses all options from argv[first] on.  On false the error was replied. */
typedef unsigned int option_fn(struct set_options *o, const struct resp_arg *word,
			       const struct resp_arg *next);
static bool string_parse_options(struct caller *c, unsigned int argc, const struct resp_arg *argv,
				 unsigned int first, option_fn *option, struct set_options *o)
{
	for (unsigned int i = first, taken; i < argc; i += taken) {
		taken = option(o, &argv[i], i + 1 < argc ? &argv[i + 1] : NULL);
		if (!taken) {
			reply_error(reply_now(c), "ERR syntax error");
			return false;
		}
	}
	return true;
}

/* Turns a client's TTL into Unix time in milliseconds. */
static bool expiry_from(struct caller *c, const char *command, enum ttl_unit unit,
			const struct resp_arg *arg, uint64_t *expire_ms)
{
	bool seconds = unit == TTL_EX || unit == TTL_EXAT;
	bool relative = unit == TTL_EX || unit == TTL_PX;
	int64_t ttl, now = (int64_t)store_now_ms(c->srv->store);

	if (!check_integer(c, arg, &ttl))
		return false;
	if (ttl <= 0 || (seconds && ttl > INT64_MAX / 1000))
		goto invalid;
	if (seconds)
		ttl *= 1000;
	if (relative && ttl > INT64_MAX - now)
		goto invalid;
	*expire_ms = (uint64_t)(relative ? ttl + now : ttl);
	return true;
invalid:
	reply_error(reply_now(c), "ERR invalid expire time in '%s' command", command);
	return false;
}

/* OK, or null if a condition did not hold. */
static void end_ok(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	if (!ret)
		reply_ok(reply_to(c));
	else if (ret == -ECANCELED)
		reply_null(reply_to(c));
	else
		reply_store_error(c, ret);
}

static void queue_set(struct caller *c, const struct resp_arg *key, const struct resp_arg *value,
		      unsigned int flags, uint64_t expire_ms, command_end_fn *end)
{
	struct store_op op = {
		.opcode = XKV_OP_SET,
		.flags = (uint8_t)flags,
		.key = key->ptr,
		.key_len = key->len,
		.value = value->ptr,
		.value_len = value->len,
		.expire_ms = expire_ms,
	};

	command_queue(c, &op, end, 0);
}

static void end_silently(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
}

/* An entry whose expiry is in the past is removed now, not by active expiry some time later. */
static void queue_removal(struct caller *c, const struct resp_arg *key)
{
	struct store_op op = {
		.opcode = XKV_OP_DELETE, .key = key->ptr, .key_len = key->len, .expired = true
	};

	command_queue(c, &op, end_silently, 0);
}

static void set_with_options(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct set_options o = { 0 };
	uint64_t expire_ms = 0;

	if (!string_parse_options(c, argc, argv, 3, set_option, &o))
		return;
	if (o.unit && !expiry_from(c, "set", o.unit, o.ttl, &expire_ms))
		return;
	if (o.get)
		queue_set(c, &argv[1], &argv[2], o.flags | XKV_RETURN, expire_ms, end_value);
	else
		queue_set(c, &argv[1], &argv[2], o.flags, expire_ms, end_ok);
	if (expire_ms && expire_ms <= store_now_ms(c->srv->store))
		queue_removal(c, &argv[1]);
}

void cmd_set(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (!check_key(c, &argv[1]))
		return;
	if (argc > 3)
		set_with_options(c, argc, argv);
	else
		queue_set(c, &argv[1], &argv[2], 0, 0, end_ok);
}

void cmd_setnx(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (check_key(c, &argv[1]))
		queue_set(c, &argv[1], &argv[2], XKV_NX, 0, end_yes_no);
}

/* SETEX and PSETEX: key, TTL, value. */
static void set_expiring(struct caller *c, const char *command, enum ttl_unit unit,
			 const struct resp_arg *argv)
{
	uint64_t expire_ms;

	if (check_key(c, &argv[1]) && expiry_from(c, command, unit, &argv[2], &expire_ms))
		queue_set(c, &argv[1], &argv[3], 0, expire_ms, end_ok);
}

void cmd_setex(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	set_expiring(c, "setex", TTL_EX, argv);
}

void cmd_psetex(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	set_expiring(c, "psetex", TTL_PX, argv);
}

void cmd_getset(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (check_key(c, &argv[1]))
		queue_set(c, &argv[1], &argv[2], XKV_RETURN, 0, end_value);
}

void cmd_getdel(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_op op = { .opcode = XKV_OP_DELETE,
			       .flags = XKV_RETURN,
			       .key = argv[1].ptr,
			       .key_len = argv[1].len };

	if (check_key(c, &argv[1]))
		command_queue(c, &op, end_value, 0);
}

struct getex {
	const struct resp_arg *key;
	const struct set_options *options;
	bool timed; /* expire_ms was computed from the options */
	uint64_t expire_ms;
	struct reply value; /* of the entry that is given the expiry */
};

static int getex_decide(struct caller *c, void *arg, const struct store_entry *e,
			struct store_op *write)
{
	struct getex *x = arg;
	const struct set_options *o = x->options;

	/* only here: without a key, Redis does not check the time */
	if (!x->timed && o->unit && !expiry_from(c, "getex", o->unit, o->ttl, &x->expire_ms))
		return REPLIED;
	x->timed = true;
	reply_free(&x->value);
	reply_part(&x->value, reply_to(c));
	reply_bulk(&x->value, e->value, e->value_len);
	if (!e->expire_ms && !x->expire_ms)
		return 0;
	*write = expiry_op(c, x->key, x->expire_ms);
	return 1;
}

static void get_and_expire(struct caller *c, const struct resp_arg *key,
			   const struct set_options *o)
{
	struct getex x = { .key = key, .options = o };
	struct store_entry none = { 0 };
	int ret;

	reply_part(&x.value, reply_to(c));
	ret = command_update(c, key, true, getex_decide, &x);
	if (!ret) {
		reply_splice(reply_to(c), &x.value);
		return;
	}
	reply_free(&x.value);
	if (ret == -ENOENT)
		changes_miss(c, key->ptr, key->len);
	if (ret != REPLIED)
		end_value(c, 0, ret, &none);
}

void cmd_getex(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct set_options o = { 0 };

	if (!check_key(c, &argv[1]) || !string_parse_options(c, argc, argv, 2, getex_option, &o))
		return;
	if (o.unit || o.persist)
		get_and_expire(c, &argv[1], &o);
	else
		queue_get(c, &argv[1], end_value, 0);
}

static void end_mset_key(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	if (!progress_of(c)->failure)
		progress_of(c)->failure = ret;
}

static void end_mset(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	end_mset_key(c, note, ret, e);
	end_ok(c, note, progress_of(c)->failure, e);
	progress_of(c)->failure = 0;
}

static void mset_key(struct caller *c, const struct resp_arg *arg, unsigned int index,
		     unsigned int argc)
{
	queue_set(c, &arg[0], &arg[1], 0, 0, index + 2 < argc ? end_mset_key : end_mset);
}

void cmd_mset(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (argc % 2 == 0)
		reply_error(reply_now(c), "ERR wrong number of arguments for 'mset' command");
	else
		command_keys(c, argc, argv, 2, mset_key);
}

static int set_all_new(struct caller *c, void *arg)
{
	const struct call *call = arg;
	struct store_op set = { .opcode = XKV_OP_SET };
	struct store_entry e;
	int ret = -ENOENT;

	for (unsigned int i = 1; i < call->argc && ret == -ENOENT; i += 2)
		ret = command_touch(c, &call->argv[i], false, &e);
	if (ret == -ENOENT)
		ret = 0;
	else if (!ret)
		ret = -ECANCELED;
	for (unsigned int i = 1; i < call->argc && !ret; i += 2) {
		set.key = call->argv[i].ptr;
		set.key_len = call->argv[i].len;
		set.value = call->argv[i + 1].ptr;
		set.value_len = call->argv[i + 1].len;
		ret = command_store(c, &set);
	}
	end_yes_no(c, 0, ret, &e);
	return !ret;
}

void cmd_msetnx(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct call call = { .argc = argc, .argv = argv };

	if (argc % 2 == 0) {
		reply_error(reply_to(c), "ERR wrong number of arguments for 'msetnx' command");
		return;
	}
	if (argc / 2 > STORE_TXN_KEYS) {
		reply_store_error(c, -E2BIG);
		return;
	}
	for (unsigned int i = 1; i < argc; i += 2)
		if (!check_key(c, &argv[i]))
			return;
	command_run_atomic(c, set_all_new, &call);
}

/* --- numbers, and appending --- */

static void end_number(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	if (ret)
		reply_store_error(c, ret);
	else
		reply_int(reply_to(c), e->number);
}

static void increment(struct caller *c, const struct resp_arg *key, int64_t amount)
{
	struct store_op op = {
		.opcode = XKV_OP_INCR, .key = key->ptr, .key_len = key->len, .amount = amount
	};

	command_queue(c, &op, end_number, 0);
}

void cmd_incr(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (check_key(c, &argv[1]))
		increment(c, &argv[1], 1);
}

void cmd_decr(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	if (check_key(c, &argv[1]))
		increment(c, &argv[1], -1);
}

void cmd_incrby(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	int64_t amount;

	if (check_key(c, &argv[1]) && check_integer(c, &argv[2], &amount))
		increment(c, &argv[1], amount);
}

void cmd_decrby(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	int64_t amount;

	if (!check_key(c, &argv[1]) || !check_integer(c, &argv[2], &amount))
		return;
	if (amount == INT64_MIN)
		reply_error(reply_now(c), "ERR decrement would overflow");
	else
		increment(c, &argv[1], -amount);
}

void cmd_append(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_op op = {
		.opcode = XKV_OP_APPEND,
		.key = argv[1].ptr,
		.key_len = argv[1].len,
		.value = argv[2].ptr,
		.value_len = argv[2].len,
	};

	if (check_key(c, &argv[1]))
		command_queue(c, &op, end_number, 0);
}

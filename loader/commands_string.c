/* SPDX-License-Identifier: BSD-2-Clause */
/* Commands that read and write values. */
#include "commands.h"

#include <errno.h>
#include <string.h>

/* --- reading --- */

static void get_one(struct client *c, const struct resp_arg *key)
{
	struct store_entry e;
	int ret = store_get(c->srv->lane, key->ptr, key->len, &e);

	if (ret && ret != -ENOENT) {
		reply_store_error(c, ret);
		return;
	}
	if (ret)
		reply_null(&c->out);
	else
		reply_bulk(&c->out, e.value, e.value_len);
}

void cmd_get(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	(void)argc;
	if (check_key(c, &argv[1]))
		get_one(c, &argv[1]);
}

void cmd_mget(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	if (!check_keys(c, argv, argc, 1))
		return;
	reply_array(&c->out, argc - 1);
	for (unsigned int i = 1; i < argc && !c->out.failed; i++)
		get_one(c, &argv[i]);
}

void cmd_strlen(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_entry e;
	int ret;

	(void)argc;
	if (!check_key(c, &argv[1]))
		return;
	ret = store_get(c->srv->lane, argv[1].ptr, argv[1].len, &e);
	if (ret && ret != -ENOENT) {
		reply_store_error(c, ret);
		return;
	}
	reply_int(&c->out, ret ? 0 : (int64_t)e.value_len);
}

/* --- SET --- */

enum ttl_unit { TTL_NONE, TTL_EX, TTL_PX, TTL_EXAT, TTL_PXAT };

struct set_options {
	unsigned int flags; /* XKV_NX, XKV_XX, XKV_KEEPTTL */
	enum ttl_unit unit;
	const struct resp_arg *ttl;
	bool get;
};

/* One word of SET's options; `next` is what follows it, NULL at the end. Returns the words taken, 0
 * = bad. */
static unsigned int set_option(struct set_options *o, const struct resp_arg *word,
			       const struct resp_arg *next)
{
	static const struct {
		const char *name;
		enum ttl_unit unit;
	} units[] = {
		{ "ex", TTL_EX }, { "px", TTL_PX }, { "exat", TTL_EXAT }, { "pxat", TTL_PXAT }
	};

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
	for (unsigned int i = 0; i < 4; i++) {
		if (!arg_is(word, units[i].name))
			continue;
		if (!next || (o->flags & XKV_KEEPTTL) || (o->unit && o->unit != units[i].unit))
			return 0;
		o->unit = units[i].unit;
		o->ttl = next;
		return 2;
	}
	return 0;
}

/* Turns a client's TTL into Unix time in milliseconds. */
static bool expiry_from(struct client *c, const char *command, enum ttl_unit unit,
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
	reply_error(&c->out, "ERR invalid expire time in '%s' command", command);
	return false;
}

static void reply_old(struct client *c, const struct store_entry *old)
{
	if (old->value)
		reply_bulk(&c->out, old->value, old->value_len);
	else
		reply_null(&c->out);
}

static void set_with_options(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	struct set_options o = { 0 };
	struct store_entry old = { 0 };
	uint64_t expire_ms = 0;
	int ret;

	for (unsigned int i = 3, taken; i < argc; i += taken) {
		taken = set_option(&o, &argv[i], i + 1 < argc ? &argv[i + 1] : NULL);
		if (!taken) {
			reply_error(&c->out, "ERR syntax error");
			return;
		}
	}
	if (o.unit && !expiry_from(c, "set", o.unit, o.ttl, &expire_ms))
		return;
	ret = store_set(c->srv->lane, argv[1].ptr, argv[1].len, argv[2].ptr, argv[2].len, o.flags,
			0, expire_ms, o.get ? &old : NULL);
	if (ret && ret != -ECANCELED)
		reply_store_error(c, ret);
	else if (o.get)
		reply_old(c, &old);
	else if (ret)
		reply_null(&c->out);
	else
		reply_raw(&c->out, "+OK\r\n", 5);
}

void cmd_set(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	int ret;

	if (!check_key(c, &argv[1]) || !check_value(c, &argv[2]))
		return;
	if (argc > 3) {
		set_with_options(c, argc, argv);
		return;
	}
	ret = store_set(c->srv->lane, argv[1].ptr, argv[1].len, argv[2].ptr, argv[2].len, 0, 0, 0,
			NULL);
	if (ret)
		reply_store_error(c, ret);
	else
		reply_raw(&c->out, "+OK\r\n", 5);
}

void cmd_setnx(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	int ret;

	(void)argc;
	if (!check_key(c, &argv[1]) || !check_value(c, &argv[2]))
		return;
	ret = store_set(c->srv->lane, argv[1].ptr, argv[1].len, argv[2].ptr, argv[2].len, XKV_NX, 0,
			0, NULL);
	if (ret && ret != -ECANCELED)
		reply_store_error(c, ret);
	else
		reply_int(&c->out, !ret);
}

/* SETEX and PSETEX: key, TTL, value. */
static void set_expiring(struct client *c, const char *command, enum ttl_unit unit,
			 const struct resp_arg *argv)
{
	uint64_t expire_ms;
	int ret;

	if (!check_key(c, &argv[1]) || !check_value(c, &argv[3]) ||
	    !expiry_from(c, command, unit, &argv[2], &expire_ms))
		return;
	ret = store_set(c->srv->lane, argv[1].ptr, argv[1].len, argv[3].ptr, argv[3].len, 0, 0,
			expire_ms, NULL);
	if (ret)
		reply_store_error(c, ret);
	else
		reply_raw(&c->out, "+OK\r\n", 5);
}

void cmd_setex(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	(void)argc;
	set_expiring(c, "setex", TTL_EX, argv);
}

void cmd_psetex(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	(void)argc;
	set_expiring(c, "psetex", TTL_PX, argv);
}

void cmd_getset(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_entry old = { 0 };
	int ret;

	(void)argc;
	if (!check_key(c, &argv[1]) || !check_value(c, &argv[2]))
		return;
	ret = store_set(c->srv->lane, argv[1].ptr, argv[1].len, argv[2].ptr, argv[2].len, 0, 0, 0,
			&old);
	if (ret)
		reply_store_error(c, ret);
	else
		reply_old(c, &old);
}

void cmd_getdel(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_entry old = { 0 };
	int ret;

	(void)argc;
	if (!check_key(c, &argv[1]))
		return;
	ret = store_delete(c->srv->lane, argv[1].ptr, argv[1].len, &old);
	if (ret && ret != -ENOENT) {
		reply_store_error(c, ret);
		return;
	}
	if (ret)
		reply_null(&c->out);
	else
		reply_bulk(&c->out, old.value, old.value_len);
}

void cmd_mset(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	if (argc % 2 == 0) {
		reply_error(&c->out, "ERR wrong number of arguments for 'mset' command");
		return;
	}
	/* What can be refused is refused before the first key is set. */
	if (!check_keys(c, argv, argc, 2))
		return;
	for (unsigned int i = 2; i < argc; i += 2)
		if (!check_value(c, &argv[i]))
			return;
	for (unsigned int i = 1; i < argc; i += 2) {
		int ret = store_set(c->srv->lane, argv[i].ptr, argv[i].len, argv[i + 1].ptr,
				    argv[i + 1].len, 0, 0, 0, NULL);

		if (ret) {
			reply_store_error(c, ret);
			return;
		}
	}
	reply_raw(&c->out, "+OK\r\n", 5);
}

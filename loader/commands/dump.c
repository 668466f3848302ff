/* SPDX-License-Identifier: BSD-2-Clause */
/* DUMP and RESTORE: a value in the form that Redis reads and writes, too. */
#include <errno.h>
#include <stdlib.h>

#include "database/database.h"
#include "persist/rdb.h"

static void end_dump(struct caller *c, unsigned int note, int ret, const struct store_entry *e)
{
	void *dump;

	if (ret) {
		end_value(c, note, ret, e);
		return;
	}
	dump = malloc(RDB_DUMP_MAX(e->value_len));
	if (dump)
		reply_bulk_give(
			reply_to(c), dump,
			rdb_dump(dump, e->value, e->value_len, c->srv->cfg->rdbcompression));
	else
		reply_error(reply_to(c), "ERR out of memory");
}

void cmd_dump(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct store_op op = { .opcode = XKV_OP_GET, .key = argv[1].ptr, .key_len = argv[1].len };

	if (check_key(c, &argv[1]))
		command_queue(c, &op, end_dump, 0);
}

/* --- RESTORE --- */

struct restore {
	struct caller *c;
	const struct resp_arg *key;
	bool replace, absolute;
	bool idle, frequency; /* were given; there is nothing here to set them */
	uint64_t expire_ms;
};

/* An option with a number.  False: the error was replied. */
static bool usage_option(struct caller *c, const char *name, const struct resp_arg *arg,
			 int64_t max)
{
	int64_t value;

	if (!check_integer(c, arg, &value))
		return false;
	if (value >= 0 && value <= max)
		return true;
	reply_error(reply_to(c), "ERR Invalid %s value, must be >= 0%s", name,
		    max == 255 ? " and <= 255" : "");
	return false;
}

static bool restore_options(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			    struct restore *r)
{
	for (unsigned int i = 4; i < argc; i++) {
		bool more = i + 1 < argc;

		if (arg_is(&argv[i], "replace")) {
			r->replace = true;
		} else if (arg_is(&argv[i], "absttl")) {
			r->absolute = true;
		} else if (more && !r->frequency && arg_is(&argv[i], "idletime")) {
			if (!usage_option(c, "IDLETIME", &argv[++i], INT64_MAX))
				return false;
			r->idle = true;
		} else if (more && !r->idle && arg_is(&argv[i], "freq")) {
			if (!usage_option(c, "FREQ", &argv[++i], 255))
				return false;
			r->frequency = true;
		} else {
			reply_error(reply_to(c), "ERR syntax error");
			return false;
		}
	}
	return true;
}

static bool restore_expiry(struct caller *c, const struct resp_arg *arg, struct restore *r)
{
	uint64_t now = store_now_ms(c->srv->store);
	int64_t ttl;

	if (!check_integer(c, arg, &ttl))
		return false;
	if (ttl < 0 || (!r->absolute && ttl > INT64_MAX - (int64_t)now)) {
		reply_error(reply_to(c), "ERR Invalid TTL value, must be >= 0");
		return false;
	}
	r->expire_ms = (uint64_t)ttl + (ttl && !r->absolute ? now : 0);
	return true;
}

static bool dump_is_busy(struct caller *c, const struct restore *r)
{
	struct store_entry e;

	return !r->replace && !command_touch(c, r->key, false, &e);
}

/* What has expired already is not stored, as in Redis. */
static int store_restored(void *arg, const void *value, size_t len)
{
	const struct restore *r = arg;
	struct store_ctx *ctx = r->c->worker->ctx;
	struct store_op set;
	int ret;

	if (r->expire_ms && r->expire_ms <= store_now_ms(r->c->srv->store)) {
		ret = r->replace ? store_delete(ctx, r->key->ptr, r->key->len, NULL) : 0;
		return ret == -ENOENT ? 0 : ret;
	}
	set = (struct store_op){
		.opcode = XKV_OP_SET,
		.flags = r->replace ? 0 : XKV_NX,
		.key = r->key->ptr,
		.key_len = r->key->len,
		.value = value,
		.value_len = len,
		.expire_ms = r->expire_ms,
		.cause = CAUSE_RESTORE,
	};
	return command_store(r->c, &set);
}

static void reply_restored(struct caller *c, int ret, const char *what)
{
	switch (ret) {
	case 0:
		reply_ok(reply_to(c));
		break;
	case -ECANCELED:
		reply_error(reply_to(c), "BUSYKEY Target key name already exists.");
		break;
	case -EBADMSG:
		reply_error(reply_to(c), "ERR DUMP payload version or checksum are wrong");
		break;
	case -EINVAL:
		reply_error(reply_to(c), "ERR Bad data format");
		break;
	case -ENOTSUP:
		reply_error(reply_to(c), "ERR the payload is %s: xkv holds strings only", what);
		break;
	default:
		reply_store_error(c, ret);
	}
}

void cmd_restore(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct restore r = { .c = c, .key = &argv[1] };
	struct rdb_report rep;
	int ret;

	if (!check_key(c, &argv[1]) || !restore_options(c, argc, argv, &r))
		return;
	if (dump_is_busy(c, &r)) {
		reply_restored(c, -ECANCELED, NULL);
		return;
	}
	if (!restore_expiry(c, &argv[2], &r))
		return;
	ret = rdb_restore(argv[3].ptr, argv[3].len, store_restored, &r, &rep);
	reply_restored(c, ret, rep.text);
}

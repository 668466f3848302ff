/* SPDX-License-Identifier: BSD-2-Clause */
/* RENAME, RENAMENX and COPY: an entry under another key, with its expiry. */
#include <errno.h>
#include <string.h>

#include "impl.h"
#include "store/txn.h"

struct renaming {
	const struct resp_arg *from, *to;
	bool only_new; /* not if the other key exists */
	bool copy;     /* the entry stays where it was, too */
};

static int put(struct client *c, const struct renaming *r, const struct store_entry *e)
{
	struct store_op set = {
		.opcode = XKV_OP_SET,
		.key = r->to->ptr,
		.key_len = r->to->len,
		.value = e->value,
		.value_len = e->value_len,
		.expire_ms = e->expire_ms,
		.cause = r->copy ? CAUSE_COPY_TO : CAUSE_NEW,
	};
	struct store_op delete = {
		.opcode = XKV_OP_DELETE,
		.key = r->from->ptr,
		.key_len = r->from->len,
		.cause = CAUSE_RENAME_FROM,
	};
	struct store_entry unused;
	int ret = store_do(c->worker->ctx, &set, &unused);

	if (ret || r->copy)
		return ret;
	ret = store_do(c->worker->ctx, &delete, &unused);
	if (!ret)
		store_txn_note(c->worker->ctx, r->to->ptr, r->to->len, CAUSE_RENAME_TO);
	return ret;
}

static bool same_key(const struct renaming *r)
{
	return r->from->len == r->to->len && memcmp(r->from->ptr, r->to->ptr, r->to->len) == 0;
}

/* 0, -ENOENT, -ECANCELED (the other key exists), or an error of the store. */
static int move(struct client *c, const struct renaming *r)
{
	struct store_ctx *ctx = c->worker->ctx;
	struct store_entry e;
	int ret = store_touch(ctx, r->from->ptr, r->from->len, false, &e);

	if (ret)
		return ret;
	if (same_key(r))
		return r->only_new ? -ECANCELED : 0;
	if (r->only_new) {
		ret = store_touch(ctx, r->to->ptr, r->to->len, false, &e);
		if (ret != -ENOENT)
			return ret ? ret : -ECANCELED;
	}
	ret = store_get(ctx, r->from->ptr, r->from->len, &e);
	return ret ? ret : put(c, r, &e);
}

/* A transaction also if nothing changes: "both exist" has to be true of one point in time. */
static bool do_rename(struct client *c, void *arg)
{
	const struct renaming *r = arg;
	int ret = move(c, r);

	if (ret == -ENOENT)
		reply_error(reply_to(c), "ERR no such key");
	else if (ret && ret != -ECANCELED)
		reply_store_error(c, ret);
	else if (r->only_new)
		reply_int(reply_to(c), !ret);
	else
		reply_ok(reply_to(c));
	return !ret || ret == -ECANCELED;
}

static void rename_to(struct client *c, const struct resp_arg *argv, bool only_new)
{
	struct renaming r = { .from = &argv[1], .to = &argv[2], .only_new = only_new };

	if (check_key(c, r.from) && check_key(c, r.to))
		command_run_atomic(c, do_rename, &r);
}

void cmd_rename(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	(void)argc;
	rename_to(c, argv, false);
}

void cmd_renamenx(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	(void)argc;
	rename_to(c, argv, true);
}

/* --- COPY --- */

static bool do_copy(struct client *c, void *arg)
{
	const struct renaming *r = arg;
	int ret = move(c, r);

	if (ret == -ENOENT)
		changes_miss(c, r->from->ptr, r->from->len);
	if (ret && ret != -ENOENT && ret != -ECANCELED)
		reply_store_error(c, ret);
	else
		reply_int(reply_to(c), !ret);
	return !ret || ret == -ENOENT;
}

/* DB and REPLACE.  On false the error was replied. */
static bool copy_options(struct client *c, unsigned int argc, const struct resp_arg *argv,
			 struct renaming *r)
{
	int64_t db;

	for (unsigned int i = 3; i < argc; i++) {
		if (arg_is(&argv[i], "replace")) {
			r->only_new = false;
		} else if (arg_is(&argv[i], "db") && i + 1 < argc) {
			if (!check_integer(c, &argv[++i], &db))
				return false;
			if (db) {
				reply_error(reply_to(c), "ERR DB index is out of range");
				return false;
			}
		} else {
			reply_error(reply_to(c), "ERR syntax error");
			return false;
		}
	}
	return true;
}

void cmd_copy(struct client *c, unsigned int argc, const struct resp_arg *argv)
{
	struct renaming r = { .from = &argv[1], .to = &argv[2], .only_new = true, .copy = true };

	if (!check_key(c, r.from) || !check_key(c, r.to) || !copy_options(c, argc, argv, &r))
		return;
	if (same_key(&r))
		reply_error(reply_to(c), "ERR source and destination objects are the same");
	else
		command_run_atomic(c, do_copy, &r);
}

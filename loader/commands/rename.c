/* SPDX-License-Identifier: BSD-2-Clause */
/* RENAME, RENAMENX, COPY and MOVE: an entry under another key, with its expiry. */
#include <errno.h>
#include <string.h>

#include "database/database.h"
#include "store/txn.h"

struct renaming {
	const struct resp_arg *from, *to;
	unsigned int db; /* of `to` */
	bool only_new;	 /* not if the other key exists */
	bool copy;	 /* the entry stays where it was, too */
};

static int rename_put(struct caller *c, const struct renaming *r, const struct store_entry *e)
{
	struct store_ctx *ctx = c->worker->ctx;
	bool moves = r->db != c->session.db;
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
		.cause = moves ? CAUSE_MOVE_FROM : CAUSE_RENAME_FROM,
	};
	struct store_entry unused;
	int ret;

	store_select(ctx, r->db);
	ret = store_do(ctx, &set, &unused);
	store_select(ctx, c->session.db);
	if (!ret)
		transaction_found(c, r->db, r->to->ptr, r->to->len);
	if (ret || r->copy)
		return ret;
	ret = store_do(ctx, &delete, &unused);
	store_select(ctx, r->db);
	if (!ret)
		store_txn_note(ctx, r->to->ptr, r->to->len,
			       moves ? CAUSE_MOVE_TO : CAUSE_RENAME_TO);
	store_select(ctx, c->session.db);
	return ret;
}

static bool same_key(const struct caller *c, const struct renaming *r)
{
	return r->db == c->session.db && r->from->len == r->to->len &&
	       memcmp(r->from->ptr, r->to->ptr, r->to->len) == 0;
}

/* 0, -ENOENT, -ECANCELED (the other key exists), or an error of the store. */
static int move(struct caller *c, const struct renaming *r)
{
	struct store_ctx *ctx = c->worker->ctx;
	struct store_entry e;
	int ret = command_touch(c, r->from, false, &e);

	if (ret)
		return ret;
	if (same_key(c, r))
		return r->only_new ? -ECANCELED : 0;
	if (r->only_new) {
		store_select(ctx, r->db);
		ret = store_touch(ctx, r->to->ptr, r->to->len, false, &e);
		store_select(ctx, c->session.db);
		if (!ret)
			transaction_found(c, r->db, r->to->ptr, r->to->len);
		if (ret != -ENOENT)
			return ret ? ret : -ECANCELED;
	}
	ret = store_get(ctx, r->from->ptr, r->from->len, &e);
	return ret ? ret : rename_put(c, r, &e);
}

/* A transaction also if nothing changes: "both exist" has to be true of one point in time. */
static int do_rename(struct caller *c, void *arg)
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

static void rename_to(struct caller *c, const struct resp_arg *argv, bool only_new)
{
	struct renaming r = {
		.from = &argv[1], .to = &argv[2], .db = c->session.db, .only_new = only_new
	};

	if (check_key(c, r.from) && check_key(c, r.to))
		command_run_atomic(c, do_rename, &r);
}

void cmd_rename(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	rename_to(c, argv, false);
}

void cmd_renamenx(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	rename_to(c, argv, true);
}

/* --- COPY, MOVE --- */

/* On false the error was replied. */
static bool other_database(struct caller *c, const struct resp_arg *arg, unsigned int *db)
{
	if (!check_database(c, arg, NULL, db))
		return false;
	if (*db < c->srv->cfg->databases)
		return true;
	reply_error(reply_to(c), "ERR DB index is out of range");
	return false;
}

static int do_copy(struct caller *c, void *arg)
{
	const struct renaming *r = arg;
	int ret = move(c, r);

	if (ret == -ENOENT && r->copy) /* as Redis: MOVE writes, which is no miss */
		changes_miss(c, r->from->ptr, r->from->len);
	if (ret && ret != -ENOENT && ret != -ECANCELED)
		reply_store_error(c, ret);
	else
		reply_int(reply_to(c), !ret);
	return !ret || ret == -ENOENT;
}

/* DB and REPLACE.  On false the error was replied. */
static bool copy_options(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			 struct renaming *r)
{
	for (unsigned int i = 3; i < argc; i++) {
		if (arg_is(&argv[i], "replace")) {
			r->only_new = false;
		} else if (arg_is(&argv[i], "db") && i + 1 < argc) {
			if (!other_database(c, &argv[++i], &r->db))
				return false;
		} else {
			reply_error(reply_to(c), "ERR syntax error");
			return false;
		}
	}
	return true;
}

void cmd_copy(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct renaming r = { .from = &argv[1],
			      .to = &argv[2],
			      .db = c->session.db,
			      .only_new = true,
			      .copy = true };

	if (!check_key(c, r.from) || !check_key(c, r.to) || !copy_options(c, argc, argv, &r))
		return;
	if (c->srv->cfg->cluster && r.db)
		reply_error(reply_to(c),
			    "ERR Copying to another database is not allowed in cluster mode");
	else if (same_key(c, &r))
		reply_error(reply_to(c), "ERR source and destination objects are the same");
	else
		command_run_atomic(c, do_copy, &r);
}

void cmd_move(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct renaming r = { .from = &argv[1], .to = &argv[1], .only_new = true };

	if (c->srv->cfg->cluster) {
		reply_error(reply_to(c), "ERR MOVE is not allowed in cluster mode");
		return;
	}
	if (!check_key(c, r.from) || !other_database(c, &argv[2], &r.db))
		return;
	if (same_key(c, &r))
		reply_error(reply_to(c), "ERR source and destination objects are the same");
	else
		command_run_atomic(c, do_copy, &r);
}

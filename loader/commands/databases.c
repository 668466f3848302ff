/* SPDX-License-Identifier: BSD-2-Clause */
/* SELECT and SWAPDB. */
#include "database/database.h"

#include <stdint.h>

#include "persist/snapshot.h"

bool check_database(struct caller *c, const struct resp_arg *arg, const char *error,
		    unsigned int *out)
{
	int64_t db;

	if (error && (!text_to_i64(arg->ptr, arg->len, &db) || db < INT32_MIN || db > INT32_MAX)) {
		reply_error(reply_to(c), "ERR %s", error);
		return false;
	}
	if (!check_integer(c, arg, &db))
		return false;
	if (db < INT32_MIN || db > INT32_MAX) {
		reply_error(reply_to(c), "ERR value is out of range, value must between %d and %d",
			    INT32_MIN, INT32_MAX);
		return false;
	}
	*out = db < 0 ? UINT32_MAX : (unsigned int)db;
	return true;
}

void client_select(struct caller *c, unsigned int db)
{
	c->session.db = db;
	store_select(c->worker->ctx, db);
}

void cmd_select(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	unsigned int db;

	if (!check_database(c, &argv[1], NULL, &db))
		return;
	if (db && c->srv->cfg->cluster) {
		reply_error(reply_to(c), "ERR SELECT is not allowed in cluster mode");
	} else if (db >= c->srv->cfg->databases) {
		reply_error(reply_to(c), "ERR DB index is out of range");
	} else {
		client_select(c, db);
		reply_ok(reply_to(c));
	}
}

void databases_swapped(struct caller *c)
{
	if (!store_swaps_end(c->srv->store))
		return;
	changes_of_all(c->srv);
	changes_before_replies(c->worker); /* what is read from here on is not meant */
}

/* UDP clients see it at the same moment: they use the same numbers. */
void cmd_swapdb(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	unsigned int a, b;

	if (c->srv->cfg->cluster) {
		reply_error(reply_to(c), "ERR SWAPDB is not allowed in cluster mode");
		return;
	}
	if (!check_database(c, &argv[1], "invalid first DB index", &a) ||
	    !check_database(c, &argv[2], "invalid second DB index", &b))
		return;
	if (a >= c->srv->cfg->databases || b >= c->srv->cfg->databases) {
		reply_error(reply_to(c), "ERR DB index is out of range");
		return;
	}
	if (a != b) {
		transactions_swap(c, a, b);
		store_swap(c->srv->store, a, b);
	}
	if (!transaction_of(c)->in_exec)
		databases_swapped(c);
	snapshot_changed();
	store_select(c->worker->ctx, c->session.db);
	reply_ok(reply_to(c));
}

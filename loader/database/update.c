/* SPDX-License-Identifier: BSD-2-Clause */
/* Read, modify, write: commands that depend on what the key holds. */
#include "database/database.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/clock.h"

/*
 * While others change the key: after some tries, those that do so over UDP are held back, as much
 * as may be (store_hold_writes()): within TRIES_NS there is a hold of full length.  TCP clients of
 * other threads are not served meanwhile (command_run_alone()).  A command that reads many large
 * values takes long for each try.
 */
#define TRIES_FREE  4
#define TRIES_LEAST 16
#define TRIES_NS    200000000

bool tries_left(struct caller *c, struct tries *t)
{
	if (t->count == 1)
		t->end_ns = monotonic_ns() + TRIES_NS;
	if (t->count >= TRIES_LEAST && monotonic_ns() >= t->end_ns)
		return false;
	if (t->count++ >= TRIES_FREE && worker_is_alone(c->worker)) {
		t->holds = true;
		store_hold_writes(c->srv->store, true, t->keys); /* anew */
	}
	return true;
}

void tries_end(struct caller *c, struct tries *t)
{
	if (t->holds)
		store_hold_writes(c->srv->store, false, 0);
}

enum reads {
	READS_EXPIRY, /* of a key that exists */
	READS_VALUE,  /* of a key that exists */
	READS_ANY,    /* the value, or that there is no key */
};

/* One try.  -ECANCELED or -ENOENT of the write: the entry was changed in between. */
static int try_update(struct caller *c, const struct resp_arg *key, enum reads reads,
		      command_update_fn *decide, void *arg, bool *written)
{
	struct store_ctx *ctx = c->worker->ctx;
	struct store_entry e;
	struct store_op op = { 0 };
	bool found;
	int ret;

	*written = false;
	ret = reads == READS_EXPIRY ? store_touch(ctx, key->ptr, key->len, true, &e)
				    : store_get(ctx, key->ptr, key->len, &e);
	found = !ret;
	if (found)
		transaction_found(c, c->session.db, key->ptr, key->len);
	if (ret && (ret != -ENOENT || reads != READS_ANY))
		return ret;
	ret = decide(c, arg, &e, &op);
	if (ret <= 0)
		return ret;
	*written = true;
	op.flags |= found ? XKV_CAS : XKV_NX;
	op.version = e.version;
	op.key = key->ptr;
	op.key_len = key->len;
	return command_store(c, &op);
}

static int update(struct caller *c, const struct resp_arg *key, enum reads reads,
		  command_update_fn *decide, void *arg)
{
	struct tries tries = { 0 };
	bool written = true;
	int ret = -ECANCELED;

	commands_flush(c);
	while (written && (ret == -ECANCELED || ret == -ENOENT) && tries_left(c, &tries)) {
		if (tries.count > TRIES_FREE && command_run_alone(c))
			return REPLIED;
		ret = try_update(c, key, reads, decide, arg, &written);
	}
	tries_end(c, &tries);
	return written && (ret == -ECANCELED || ret == -ENOENT) ? -EBUSY : ret;
}

int command_update(struct caller *c, const struct resp_arg *key, bool value,
		   command_update_fn *decide, void *arg)
{
	return update(c, key, value ? READS_VALUE : READS_EXPIRY, decide, arg);
}

/* --- values --- */

int value_resize(struct value *v, size_t len)
{
	unsigned char *bytes;

	if (len > v->most)
		return -EMSGSIZE;
	if (len > v->room || !v->bytes) {
		bytes = realloc(v->bytes, len + 1); /* of 0 bytes it may be NULL */
		if (!bytes)
			return -ENOMEM;
		v->bytes = bytes;
		v->room = len;
	}
	if (len > v->len)
		memset(v->bytes + v->len, 0, len - v->len);
	v->len = len;
	return 0;
}

/* A copy of the value that was read, or its memory, if that is huge. */
static int value_set(struct caller *c, struct value *v, const struct store_entry *e)
{
	size_t room;
	char *taken = store_value_take(c->worker->ctx, e, &room);
	int ret;

	v->most = XKV_HUGE_MAX;
	if (taken) {
		free(v->bytes);
		v->bytes = (unsigned char *)taken;
		v->room = room;
		v->len = e->value_len;
	}
	ret = value_resize(v, e->value_len);
	if (!ret && !taken && e->value_len)
		memcpy(v->bytes, e->value, e->value_len);
	v->most = c->srv->cfg->proto_max_bulk_len;
	return ret;
}

struct changing {
	command_change_fn *change;
	void *arg;
	struct value value;
};

static int decide_change(struct caller *c, void *arg, const struct store_entry *e,
			 struct store_op *write)
{
	struct changing *x = arg;
	struct value *v = &x->value;
	int ret = value_set(c, v, e);

	if (ret)
		return ret;
	v->exists = e->value;
	v->cause = 0;
	ret = x->change(c, x->arg, v);
	if (ret <= 0 || (ret == CHANGE_DELETE && !v->exists))
		return ret < 0 ? ret : 0;
	*write = (struct store_op){
		.opcode = ret == CHANGE_DELETE ? XKV_OP_DELETE : XKV_OP_SET,
		.flags = ret == CHANGE_VALUE && v->exists ? XKV_KEEPTTL : 0,
		.cause = v->cause,
	};
	if (ret == CHANGE_DELETE)
		return 1;
	write->value = v->bytes;
	write->value_len = v->len;
	return 1;
}

bool command_change(struct caller *c, const struct resp_arg *key, command_change_fn *change,
		    void *arg)
{
	struct changing x = { .change = change, .arg = arg };
	int ret = update(c, key, READS_ANY, decide_change, &x);

	free(x.value.bytes);
	if (ret && ret != REPLIED)
		reply_store_error(c, ret);
	return !ret;
}

int command_touch(struct caller *c, const struct resp_arg *key, bool uses, struct store_entry *e)
{
	int ret = store_touch(c->worker->ctx, key->ptr, key->len, uses, e);

	if (!ret)
		transaction_found(c, c->session.db, key->ptr, key->len);
	return ret;
}

int command_store(struct caller *c, const struct store_op *op)
{
	struct store_entry unused;
	int ret = store_do(c->worker->ctx, op, &unused);

	if (!ret)
		transaction_found(c, c->session.db, op->key, op->key_len);
	return ret;
}

static bool read_now(struct caller *c, const struct store_op *op, struct store_entry *e)
{
	const struct resp_arg *key = &(struct resp_arg){ { (char *)op->key }, op->key_len };
	int ret;

	commands_flush(c);
	ret = store_do(c->worker->ctx, op, e);
	if (ret == -ENOENT)
		changes_miss(c, key->ptr, key->len);
	else if (ret)
		reply_store_error(c, ret);
	if (!ret) {
		tracking_found(c, key->ptr, key->len);
		transaction_found(c, c->session.db, key->ptr, key->len);
	}
	return !ret || ret == -ENOENT;
}

bool command_read(struct caller *c, const struct resp_arg *key, struct store_entry *e)
{
	struct store_op op = { .opcode = XKV_OP_GET, .key = key->ptr, .key_len = key->len };

	return read_now(c, &op, e);
}

bool command_read_part(struct caller *c, const struct resp_arg *key, int64_t first, int64_t last,
		       struct store_entry *e)
{
	struct store_op op = { .opcode = XKV_OP_GET,
			       .key = key->ptr,
			       .key_len = key->len,
			       .part = true,
			       .first = first,
			       .last = last };

	return read_now(c, &op, e);
}

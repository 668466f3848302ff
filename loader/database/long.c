/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Long commands: those that may keep others waiting (walks over the store, commands about many
 * keys) are done in slices.  In a round of the event loop, the long commands of all clients share
 * one slice, and the clients take turns (net/worker.c).  A command that is done so is not atomic;
 * its operations are.
 */
#include <errno.h>
#include <string.h>

#include "database/database.h"
#include "store/txn.h"

#define DIRECT_ARGS   64	/* of a command about several keys that is done at once */
#define SLICED_ABOVE  1024	/* keys: then one after the other rather than not at all */
#define CHECKS_A_LOOK 1024	/* arguments checked between two looks at the clock */
#define ATOMIC_BYTES  (4 << 20) /* longer replies are made as the client reads them */

_Static_assert(DIRECT_ARGS <= PLAIN_ARGS_MAX, "more arguments than these are refused before");

struct progress *long_begin(struct caller *c, command_step_fn *step)
{
	struct progress *p = progress_of(c);

	commands_flush(c);
	*p = (struct progress){ .step = step, .stored = store_selected(c->worker->ctx) };
	return p;
}

void long_end(struct caller *c)
{
	caller_wait_no_more(c);
	found_free(progress_of(c)->found);
	lcs_free(progress_of(c)->lcs);
	*progress_of(c) = (struct progress){ 0 };
}

void long_continue(struct caller *c)
{
	if (progress_of(c)->step(c))
		long_end(c);
}

/* --- many keys --- */

static bool many_step(struct caller *c)
{
	unsigned int argc = c->call.argc;
	struct progress *p = progress_of(c);

	/* All arguments are checked before the first key is changed. */
	for (; p->checked < argc; p->checked += p->stride) {
		if (p->checked % CHECKS_A_LOOK <= p->stride && !worker_slice_left(c->worker))
			return false;
		if (!check_key(c, &c->call.argv[p->checked]))
			return true;
	}
	while (p->at < argc && !c->session.reply.out.failed) {
		if (p->tracks)
			tracking_read(c, &c->call.argv[p->at]);
		p->key(c, &c->call.argv[p->at], p->at, argc);
		p->at += p->stride;
		if (queue_of(c)->count < QUEUE_OPS)
			continue;
		commands_flush(c); /* before the input may move */
		if (p->at < argc &&
		    (!worker_slice_left(c->worker) || c->session.reply.out.bytes > PAUSE_ABOVE))
			return false;
	}
	commands_flush(c);
	return true;
}

struct keys {
	unsigned int argc, stride;
	const struct resp_arg *argv;
	command_key_fn *key;
	bool bounded, tracks;
};

static int all_keys(struct caller *c, void *arg)
{
	const struct keys *k = arg;

	for (unsigned int i = 1; i < k->argc; i += k->stride)
		if (!check_key(c, &k->argv[i]))
			return false;
	for (unsigned int i = 1; i < k->argc && !c->session.reply.out.failed; i += k->stride) {
		if (k->tracks)
			tracking_read(c, &k->argv[i]);
		k->key(c, &k->argv[i], i, k->argc);
		if (k->bounded && c->session.reply.out.bytes > ATOMIC_BYTES)
			return -EMSGSIZE;
	}
	return true;
}

/* Calls `key` for each of the keys: in slices, if there are many. */
static void keys_in_slices(struct caller *c, unsigned int argc, const struct resp_arg *argv,
			   unsigned int stride, command_key_fn *key)
{
	struct keys k = { argc, stride, argv, key, .tracks = tracking_follows(c, argc) };
	struct progress *p;

	if (argc <= DIRECT_ARGS || transaction_of(c)->runs) {
		all_keys(c, &k);
		return;
	}
	p = long_begin(c, many_step);
	p->key = key;
	p->tracks = k.tracks;
	p->stride = stride;
	p->checked = p->at = 1;
}

/* Is a command that cannot be done at once, for this reason, done key by key? */
static bool is_sliced(const struct caller *c, int error, unsigned int count, unsigned int stride)
{
	bool evicts = c->srv->cfg->maxmemory_policy != STORE_NOEVICTION;

	switch (error) {
	case -EMSGSIZE: /* of the reply */
		return true;
	case -E2BIG: /* of what was read */
		return stride == 1;
	case -EFBIG: /* of the change feed */
		return count > SLICED_ABOVE;
	case -ENOSPC: /* or each key evicts entries in its turn */
		return count > SLICED_ABOVE && (stride == 1 || evicts);
	}
	return false;
}

void command_keys(struct caller *c, unsigned int argc, const struct resp_arg *argv,
		  unsigned int stride, command_key_fn *key)
{
	struct keys k = { argc,
			  stride,
			  argv,
			  key,
			  .bounded = !transaction_of(c)->runs,
			  .tracks = tracking_follows(c, argc) };
	unsigned int count = (argc - 1) / stride;
	int ret = -EMSGSIZE;

	if (count > 1 && count <= STORE_TXN_KEYS)
		ret = command_atomic(c, all_keys, &k);
	if (ret == REPLIED)
		return;
	if (ret && is_sliced(c, ret, count, stride))
		keys_in_slices(c, argc, argv, stride, key);
	else if (ret)
		reply_store_error(c, ret);
}

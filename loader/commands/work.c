/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Commands in progress: what may take longer than others shall wait (walks over the store, commands
 * about many keys) is done in slices.  All such commands of all clients share one slice in a round
 * of the event loop; which client has it goes round (server.c).  They are atomic no more than their
 * operations are.
 */
#include <string.h>

#include "commands.h"
#include "util/clock.h"

/* a client that hung up may have shut down its sending side only */
#define HANGUP_GRACE_NS 1000000000
#define DIRECT_ARGS	64	   /* of a command about several keys that is done at once */
#define CHECKS_A_LOOK	1024	   /* arguments checked between two looks at the clock */

_Static_assert(DIRECT_ARGS <= PLAIN_ARGS_MAX, "done at once, too");

struct work *work_begin(struct client *c, command_step_fn *step)
{
	commands_flush(c);
	c->work = (struct work){ .step = step, .base = c->in.data + c->in.pos };
	return &c->work;
}

void work_end(struct client *c)
{
	found_free(c->work.found);
	c->work = (struct work){ 0 };
}

bool work_go_on(struct client *c)
{
	if (!c->work.step)
		return true;
	if (!worker_slice_left(c->worker) || !c->work.step(c))
		return false;
	work_end(c);
	c->in.pos += c->parser.pos;
	return true;
}

bool work_was_long(const struct client *c)
{
	return c->last && !(c->last->flags & (CMD_FAST | CMD_QUEUES));
}

/*
 * What was asked to be written is written, as it is by Redis, which hears too late that the client
 * has gone.
 */
bool work_is_abandoned(struct client *c)
{
	enum peer_state peer;

	if (!(c->work.step || work_was_long(c)) || c->last->flags & CMD_WRITE)
		return false;
	peer = connection_peer(&c->conn);
	if (peer != PEER_SENDS_NO_MORE)
		return peer == PEER_GONE;
	if (!c->hung_up)
		c->hung_up = monotonic_ns();
	return monotonic_ns() - c->hung_up > HANGUP_GRACE_NS;
}

/* --- many keys --- */

static bool check_one(struct client *c, const struct resp_arg *arg, unsigned int stride)
{
	return check_key(c, arg) && (stride == 1 || check_value(c, arg + 1));
}

/* The arguments of one key, where they stand now. */
static void take_args(const struct client *c, unsigned int index, struct resp_arg arg[2])
{
	const char *now = c->in.data + c->in.pos;

	for (unsigned int i = 0; i < c->work.stride; i++) {
		const struct resp_arg *was = &c->parser.argv[index + i];

		arg[i].ptr = (char *)(uintptr_t)now + (was->ptr - c->work.base);
		arg[i].len = was->len;
	}
}

static bool many_step(struct client *c)
{
	unsigned int argc = c->parser.argc;
	struct work *w = &c->work;
	struct resp_arg arg[2];

	/* What can be refused is refused before the first key is touched. */
	for (; w->checked < argc; w->checked += w->stride) {
		if (w->checked % CHECKS_A_LOOK <= w->stride && !worker_slice_left(c->worker))
			return false;
		take_args(c, w->checked, arg);
		if (!check_one(c, arg, w->stride))
			return true;
	}
	while (w->at < argc && !c->reply.out.failed) {
		take_args(c, w->at, arg);
		w->key(c, arg, w->at, argc);
		w->at += w->stride;
		if (c->worker->queue->count < QUEUE_OPS)
			continue;
		commands_flush(c); /* before the input may move */
		if (w->at < argc &&
		    (!worker_slice_left(c->worker) || c->reply.out.bytes > PAUSE_ABOVE))
			return false;
	}
	commands_flush(c);
	return true;
}

void command_keys(struct client *c, unsigned int argc, const struct resp_arg *argv,
		  unsigned int stride, command_key_fn *key)
{
	if (argc > DIRECT_ARGS) {
		struct work *w = work_begin(c, many_step);

		w->key = key;
		w->stride = stride;
		w->checked = w->at = 1;
		return;
	}
	for (unsigned int i = 1; i < argc; i += stride)
		if (!check_one(c, &argv[i], stride))
			return;
	for (unsigned int i = 1; i < argc && !c->reply.out.failed; i += stride)
		key(c, &argv[i], i, argc);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Callers: what those that are connected and those that are not have in common. */
#include "caller.h"

#include <stdlib.h>
#include <string.h>

#include "server_state.h"

void caller_init(struct caller *c, struct worker *w, const struct caller_kind *kind)
{
	c->kind = kind;
	c->srv = w->srv;
	c->worker = w;
	session_init(&c->session, !w->executor->requires_auth(),
		     w->srv->cfg->output_limit[OUTPUT_NORMAL].hard);
	c->session.reply.errors = &w->errors;
}

/* --- calls that wait --- */

void caller_wait(struct caller *c, struct waiters *w)
{
	LIST_INSERT_HEAD(w, c, waiting);
	c->waits = true;
}

void caller_block(struct caller *c, struct waiters *w)
{
	caller_wait(c, w);
	c->blocks = true;
}

void caller_wait_no_more(struct caller *c)
{
	if (c->waits)
		LIST_REMOVE(c, waiting);
	c->waits = c->blocks = false;
}

void waiters_wake(struct waiters *w)
{
	struct caller *c;

	while ((c = LIST_FIRST(w))) {
		caller_wait_no_more(c);
		c->kind->resume(c);
	}
}

/* --- messages --- */

struct reply *caller_message(struct caller *to)
{
	struct session *s = &to->session;

	to->kind->before_message(to);
	if (!(to->ran & RUN_UNFINISHED) && !s->composing)
		return &s->reply;
	if (!s->held.out.head && !s->held.out.failed)
		reply_part(&s->held, &s->reply);
	s->held.errors = NULL;
	return &s->held;
}

void caller_message_end(struct caller *to)
{
	to->srv->running->messages++;
	to->kind->wake(to);
}

/* --- without a connection --- */

static void do_nothing(struct caller *c)
{
}

static void close_apart(struct caller *c)
{
	c->dead = true;
}

static void no_address(const struct caller *c, bool peer, char text[ADDRESS_TEXT])
{
	strcpy(text, "xkvd:0");
}

static bool is_local(const struct caller *c)
{
	return true;
}

static const struct caller_kind apart = {
	.before_message = do_nothing,
	.wake = do_nothing,
	.answered = do_nothing,
	.resume = do_nothing,
	.close = close_apart,
	.address = no_address,
	.is_local = is_local,
};

struct caller *caller_new(struct worker *w)
{
	struct caller *c = calloc(1, sizeof(*c) + w->executor->caller_bytes);

	if (!c)
		return NULL;
	caller_init(c, w, &apart);
	w->executor->trust(c);
	c->session.reply.out.limit = 0;
	return c;
}

void caller_free(struct caller *c)
{
	if (!c)
		return;
	worker_flush(c->worker);
	c->worker->executor->cancel(c);
	session_free(&c->session);
	free(c);
}

void caller_run(struct caller *c, const struct call *call)
{
	const struct executor *executor = c->worker->executor;
	uint64_t slice_end = c->worker->slice_end;

	c->call = *call;
	c->worker->slice_end = UINT64_MAX;
	c->ran = executor->run(c);
	while (c->ran & RUN_UNFINISHED)
		c->ran = executor->resume(c);
	executor->end_turn(c, false);
	c->worker->slice_end = slice_end;
	if (c->session.held.out.head || c->session.held.out.failed)
		reply_splice(&c->session.reply, &c->session.held);
}

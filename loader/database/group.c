/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Group commit: EXECs of a round, of several clients and several of one, become one transaction of
 * the store.  One after the other they would be as many runs of a BPF program.
 *
 * They are executed in order, and no client sees the changes of one without those of the others,
 * which is one of the orders that clients may expect.  If the transaction fails, each is executed
 * alone, with the tries and errors that it has then.  Only what is simple waits: operations on
 * keys, without WATCH.  Replies to what a client sends behind its EXEC wait, too: those of MULTI
 * and of commands that are queued are noted, all else has the EXECs executed first (reply_now()).
 */
#include <errno.h>

#include "database/database.h"
#include "store/txn.h"
#include "util/clock.h"

#define GROUP_BYTES (16 << 10) /* of the commands of an EXEC that waits: no large value */
#define ALONE	    64	       /* EXECs after a conflict: where there is one, others follow */

static const char exec_text[] = "*1\r\n$4\r\nEXEC\r\n"; /* for the slow log */

static struct exec_group *group_of(const struct worker *w)
{
	return &((struct queue *)w->commands)->group;
}

/* --- what waits --- */

static bool may_wait(struct caller *c)
{
	const struct transaction *t = transaction_of(c);

	return c->session.multi && t->queued.count && t->keys <= QUEUE_OPS &&
	       t->queued.memory.bytes <= GROUP_BYTES && !t->alone && !t->failed && !t->crosses &&
	       !t->watched_count && c->session.skip == SKIP_NONE && !tracking_of(c)->flags &&
	       LIST_EMPTY(&shared_of(c->srv)->monitors);
}

bool group_takes(struct caller *c, const struct command *cmd)
{
	struct exec_group *g = group_of(c->worker);
	struct transaction *t = transaction_of(c);

	if (cmd->fn != cmd_exec || !may_wait(c))
		return false;
	if (g->alone) {
		g->alone--;
		return false;
	}
	if (queue_of(c)->count || g->keys + t->keys > QUEUE_OPS)
		commands_flush(c);
	if (is_dropped(c)) {
		transaction_end(c);
		return true;
	}
	g->exec[g->count++] = (struct waiting_exec){ .caller = c, .cmd = cmd, .queued = t->queued };
	g->keys += t->keys;
	queued_forget(t);
	c->session.multi = false;
	c->session.last = cmd;
	return true;
}

/* The last EXEC of the client that waits, NULL = none does. */
static struct waiting_exec *last_of(struct caller *c)
{
	struct exec_group *g = group_of(c->worker);

	for (unsigned int i = g->count; i > 0; i--)
		if (g->exec[i - 1].caller == c)
			return &g->exec[i - 1];
	return NULL;
}

void group_reply_multi(struct caller *c)
{
	struct waiting_exec *x = last_of(c);

	if (x)
		x->multi = true;
	else
		reply_ok(queue_of(c)->count ? reply_now(c) : reply_to(c));
}

void group_reply_queued(struct caller *c)
{
	struct waiting_exec *x = last_of(c);

	if (x)
		x->queued_after++;
	else
		reply_status(queue_of(c)->count ? reply_now(c) : reply_to(c), "QUEUED");
}

/* --- executing it --- */

/* Executes the commands of one; its reply is kept. */
static void run_one(struct waiting_exec *x, struct error_counts *errors, uint64_t *now)
{
	struct caller *c = x->caller;
	struct transaction *t = transaction_of(c);
	bool multi = c->session.multi;
	struct reply outer = compose_begin(c, errors);

	c->session.multi = false;
	t->runs = t->in_exec = true;
	reply_array(reply_to(c), x->queued.count);
	for (const struct queued *q = x->queued.first; q; q = q->next)
		queued_run(c, q, now);
	t->runs = t->in_exec = false;
	c->session.multi = multi;
	x->reply = compose_end(c, &outer);
}

/* Does the client have to be disconnected for what the EXECs up to number `last` reply? */
static bool too_long(const struct waiting_exec *exec, unsigned int last)
{
	const struct caller *c = exec[last].caller;
	const struct outbox *out = &c->session.reply.out;
	size_t bytes = out->bytes;

	for (unsigned int i = 0; out->limit && i <= last; i++)
		bytes += exec[i].caller == c ? exec[i].reply.out.bytes : 0;
	return exec[last].reply.out.failed || (out->limit && bytes > out->limit);
}

/* 0, or an error, and nothing has changed. */
static int group_run_all(struct worker *w, struct waiting_exec *exec, unsigned int count)
{
	struct error_counts errors = { 0 };
	uint64_t now = monotonic_ns();
	bool failed = false;
	int ret = store_txn_begin(w->ctx);

	if (ret)
		return ret;
	measure_try(w);
	for (unsigned int i = 0; i < count && !failed; i++) {
		run_one(&exec[i], &errors, &now);
		failed = too_long(exec, i);
	}
	if (failed)
		store_txn_abort(w->ctx);
	ret = failed ? -EMSGSIZE : store_txn_commit(w->ctx);
	if (ret == -ECANCELED) {
		w->stat[STAT_CONFLICTS]++;
		group_of(w)->alone = ALONE;
	}
	measure_tried(exec[0].caller, ret ? NULL : &errors);
	return ret;
}

/* Executes the EXEC alone, as if it had not waited for others. */
static void run_alone(const struct waiting_exec *x)
{
	struct caller *c = x->caller;
	struct transaction *t = transaction_of(c), now = *t;
	bool multi = c->session.multi;

	queued_forget(t);
	t->queued = x->queued;
	c->session.multi = true;
	measure_begin_text(c, x->cmd, exec_text);
	cmd_exec(c, 0, NULL); /* which frees x->queued */
	measure_end(c);
	*t = now;
	c->session.multi = multi;
}

/* All are measured as one, which each has its share of. */
static bool run_together(struct worker *w, struct waiting_exec *exec, unsigned int count)
{
	struct measured share;
	int ret;

	measure_begin_text(exec[0].caller, exec[0].cmd, exec_text);
	ret = group_run_all(w, exec, count);
	share = measure_suspend(exec[0].caller);
	share.ns /= count;
	for (unsigned int i = 0; i < count && !ret; i++) {
		share.caller = exec[i].caller;
		measure_finish(&share);
	}
	return !ret;
}

/* What the client waits for up to its next EXEC, or up to now. */
static void reply(struct waiting_exec *x, bool committed)
{
	struct caller *c = x->caller;
	size_t before = c->session.reply.out.bytes;

	if (committed)
		reply_splice(&c->session.reply, &x->reply);
	else
		reply_free(&x->reply);
	if (committed || is_dropped(c))
		queued_free(&x->queued);
	else
		run_alone(x);
	if (x->multi)
		reply_ok(reply_to(c));
	for (unsigned int i = 0; i < x->queued_after; i++)
		reply_status(reply_to(c), "QUEUED");
	if (c->unsent)
		c->worker->unsent_bytes += c->session.reply.out.bytes - before;
}

static void prefetch(struct worker *w, const struct waiting_exec *exec, unsigned int count)
{
	struct store_op op[QUEUE_OPS];
	unsigned int keys = 0;

	for (unsigned int i = 0; i < count; i++)
		keys += queued_keys(&exec[i].queued, op + keys, QUEUE_OPS - keys);
	store_prefetch(w->ctx, op, keys);
}

static void run_group(struct worker *w, struct waiting_exec *exec, unsigned int count)
{
	bool committed;

	prefetch(w, exec, count);
	committed = run_together(w, exec, count);
	for (unsigned int i = 0; i < count; i++)
		reply(&exec[i], committed);
}

void group_run(struct worker *w)
{
	struct exec_group *g = group_of(w);
	struct caller *c = g->exec[0].caller;
	unsigned int count = g->count;
	struct measured outer;

	g->count = g->keys = 0; /* what it executes has what waits executed */
	if (!measure_runs(w)) {
		run_group(w, g->exec, count);
		return;
	}
	outer = measure_suspend(c);
	run_group(w, g->exec, count);
	measure_resume(c, &outer);
}

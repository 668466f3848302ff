/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Commands that are under way, and the order of their replies.
 *
 * What a client sends gets its replies in that order.  The bytes of a reply go to the client as
 * they come, if nothing is before it; else they wait in its `struct passed`.
 *
 * A barrier: a reply may say, to whoever learns of it, that something has changed.  It is held back
 * until a PING on the connection that is told of changes has come back: what the upstream has said
 * there before is known then.  While a reply is held back because its command may have changed
 * anything, so are all others, as they may tell of that as well.
 */
#include <stdlib.h>
#include <string.h>

#include "cache.h"

#define ORPHANED_FEW (32 << 20)

/* ---- clients that have got something ------------------------------------------ */

void passage_answered(struct passage *p)
{
	struct proxy *x = proxy_of(p->caller->srv);

	if (p->is_answered)
		return;
	p->is_answered = true;
	TAILQ_INSERT_TAIL(&x->answered, p, answered);
	ev_prepare_start(x->worker->loop, &x->ends);
}

static void send_answers(struct proxy *x)
{
	struct passage *p;

	while ((p = TAILQ_FIRST(&x->answered))) {
		TAILQ_REMOVE(&x->answered, p, answered);
		p->is_answered = false;
		p->caller->kind->answered(p->caller); /* may free it */
	}
}

/* ---- barriers ------------------------------------------------------------------ */

/* The PING to one node. */
struct post {
	struct request request;
	struct fence *fence;
};

static void post_reply(struct link *l, struct request *r, const char *bytes, size_t len, bool end)
{
	struct post *post = (struct post *)r;

	if (!end)
		return;
	if (!--post->fence->left)
		post->fence->done(post->fence);
	free(post);
}

/* The changes behind these replies will never be announced, so the cache is emptied. */
static void post_lost(struct link *l, struct request *r)
{
	cache_empty(((struct node *)l->arg)->proxy);
	post_reply(l, r, NULL, 0, true);
}

void fence_send(struct proxy *x, struct fence *f)
{
	static const struct request_kind kind = { post_reply, post_lost };
	struct post *post;
	struct node *n;

	f->left = 1;
	LIST_FOREACH(n, &x->nodes, each)
	{
		if (!n->up)
			continue;
		post = calloc(1, sizeof(*post));
		if (!post) {
			cache_empty(x);
			link_fail(&n->watch, "out of memory");
			continue;
		}
		post->request.kind = &kind;
		post->fence = f;
		f->left++;
		link_words(&n->watch, 1, (const char *[]){ "PING" });
		link_sent(&n->watch, &post->request);
		link_flush(&n->watch);
	}
	if (!--f->left)
		f->done(f);
}

/* A barrier was reached, or is not needed any more: these replies may go. */
static void release_all(struct passed_list *list)
{
	struct passed *q;

	while ((q = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, q, waits);
		passed_end(q);
	}
}

struct barrier {
	struct fence fence;
	struct passed_list list;
};

static void barrier_reached(struct fence *f)
{
	release_all(&((struct barrier *)f)->list);
	free(f);
}

static void send_barrier(struct proxy *x)
{
	struct barrier *b;

	if (TAILQ_EMPTY(&x->unordered))
		return;
	b = calloc(1, sizeof(*b));
	if (!b) {
		cache_empty(x);
		release_all(&x->unordered);
		return;
	}
	b->fence.done = barrier_reached;
	TAILQ_INIT(&b->list);
	TAILQ_CONCAT(&b->list, &x->unordered, waits);
	x->stats.barriers++;
	fence_send(x, &b->fence);
}

/* Before replies are sent, and the loop sleeps. */
static void on_ends(struct ev_loop *loop, ev_prepare *w, int events)
{
	struct proxy *x = w->data;

	ev_prepare_stop(loop, w);
	send_barrier(x);
	send_answers(x);
}

void passages_init(struct proxy *x)
{
	TAILQ_INIT(&x->answered);
	TAILQ_INIT(&x->unordered);
	LIST_INIT(&x->crowd);
	ev_prepare_init(&x->ends, on_ends);
	ev_set_priority(&x->ends, EV_MAXPRI); /* before the worker's own, which sends replies */
	x->ends.data = x;
}

/* ---- calls that wait ------------------------------------------------------------ */

unsigned int passage_wait(struct passage *p, unsigned int enough)
{
	p->enough = enough;
	caller_wait(p->caller, &p->waiters);
	return RUN_UNFINISHED;
}

void passage_wake(struct passage *p)
{
	if (p->caller->waits && !p->base_runs)
		waiters_wake(&p->waiters);
}

/* ---- replies -------------------------------------------------------------------- */

static void forget(struct passage *p, struct passed *q)
{
	TAILQ_REMOVE(&p->sent, q, order);
	p->count--;
	p->bytes -= q->bytes;
	if (!p->count)
		p->on = ON_NOTHING;
}

/* Gives the client what it may have of the first ones. */
static void settle(struct passage *p)
{
	struct passed *q;

	while ((q = TAILQ_FIRST(&p->sent)) && (q->ended || !q->barrier)) {
		outbox_splice(passage_out(p), &q->reply);
		if (!q->ended)
			break;
		forget(p, q);
		free(q);
	}
	passage_answered(p);
	if (p->count <= p->enough)
		passage_wake(p);
}

void passed_end(struct passed *q)
{
	q->ended = true;
	q->proxy->unnamed -= q->unnamed;
	if (q->passage) {
		settle(q->passage);
		return;
	}
	outbox_free(&q->reply);
	q->proxy->orphaned -= sizeof(*q) + q->bytes;
	if (q->proxy->orphaned <= ORPHANED_FEW)
		waiters_wake(&q->proxy->crowd);
	free(q);
}

void passed_complete(struct passed *q)
{
	struct proxy *x = q->proxy;

	guards_release(x, &q->guards);
	if (q->empties)
		cache_empty(x);
	if (!q->barrier || !x->up) {
		if (q->barrier)
			cache_empty(x);
		passed_end(q);
		return;
	}
	TAILQ_INSERT_TAIL(&x->unordered, q, waits);
	ev_prepare_start(x->worker->loop, &x->ends);
}

/*
 * May its reply, which begins to come, be newer than what is cached?  Than a fill that was sent
 * behind it, and executed before it; or than keys that a command was about to change whose own
 * reply is held back.
 */
static bool is_ahead(const struct passed *q)
{
	const struct proxy *x = q->proxy;

	for (uint64_t bits = q->reads; bits; bits &= bits - 1)
		if (x->last_fill[__builtin_ctzll(bits)] > q->after)
			return true;
	return x->unnamed;
}

static void note_refusal(struct passage *p, const struct passed *q, const char *bytes, size_t len)
{
	static const char aborted[] = "-EXECABORT";
	static const char demoted[] = "-READONLY"; /* another server may be the master by now */
	struct proxy *x = q->proxy;

	if (x->up && x->address.master[0] && !x->first->ping_ns && len >= sizeof(demoted) &&
	    !memcmp(bytes, demoted, sizeof(demoted) - 1))
		node_ping(x->first);
	if (q->begins)
		multi_refused(p);
	else if (q->finishes &&
		 (len < sizeof(aborted) || memcmp(bytes, aborted, sizeof(aborted) - 1)))
		p->strange = true; /* it goes on, or nobody knows */
}

static void passed_reply(struct link *l, struct request *r, const char *bytes, size_t len,
			 bool is_end)
{
	struct passed *q = (struct passed *)r;
	struct passage *p = q->passage;

	if (q->selects && !q->begun && p && bytes[0] == '+')
		p->caller->session.db = q->db;
	if (!q->begun && p && bytes[0] == '-')
		note_refusal(p, q, bytes, len);
	q->barrier |= !q->begun && is_ahead(q);
	q->begun = true;
	if (p && q == TAILQ_FIRST(&p->sent) && !q->barrier) {
		outbox_append(passage_out(p), bytes, len);
		passage_answered(p);
	} else if (p) {
		outbox_append(&q->reply, bytes, len);
	}
	if (is_end)
		passed_complete(q);
}

static void passed_lost(struct link *l, struct request *r)
{
	struct passed *q = (struct passed *)r;

	passed_is_lost(q, l);
	passed_end(q);
}

void passed_is_lost(struct passed *q, const struct link *l)
{
	struct reply reply;

	q->proxy->stats.lost += !l->ends; /* else its client has gone, and it with it */
	guards_release(q->proxy, &q->guards);
	if (q->passage && q->passage->own && l == &q->passage->own->link) {
		q->passage->own->lost_some = true; /* the client loses its connection, too */
	} else if (q->passage) {
		reply_init(&reply, PROTOCOL_RESP2, 0);
		if (!q->begun)
			reply_error(&reply,
				    UPSTREAM_ERROR " the connection to %s was lost (%s): whether "
						   "the command was executed is unknown",
				    l->address->text, l->why);
		else
			q->passage->caller->closing = true; /* in the middle of a reply */
		outbox_splice(&q->reply, &reply.out);
	}
}

struct passed *passed_new(struct proxy *x, struct passage *p, enum pass_on on)
{
	struct passed *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->proxy = x;
	q->passage = p;
	q->bytes = p->caller->call.len;
	TAILQ_INSERT_TAIL(&p->sent, q, order);
	if (!p->count)
		p->map = x->cluster.map;
	p->count++;
	p->bytes += q->bytes;
	p->on = on;
	return q;
}

void passed_forget(struct passed *q)
{
	forget(q->passage, q);
	free(q);
}

void passed_expects(struct passed *q)
{
	static const struct request_kind kind = { passed_reply, passed_lost };

	q->request.kind = &kind;
}

void pass_command(struct passed *q, struct node *n, struct link *to)
{
	const struct call *call = &q->passage->caller->call;
	enum pass_on on = q->passage->on;

	passed_expects(q);
	q->moves = n->proxy->cluster.is_one && on == ON_OWN && !passage_is_own(q->passage);
	if (on != ON_OWN || q->moves) {
		hop_send(n, on, to, call->argc, call->argv, &q->request);
		return;
	}
	link_call(to, call->argc, call->argv); /* what was said there is known there only */
	link_sent(to, &q->request);
}

/* ---- the end of a client ----------------------------------------------------------- */

void passage_leave(struct passage *p)
{
	struct passed *q;

	if (!p->started)
		return;
	caller_wait_no_more(p->caller);
	while ((q = TAILQ_FIRST(&p->sent))) {
		forget(p, q);
		if (q->ended) {
			outbox_free(&q->reply);
			free(q);
		} else {
			q->passage = NULL;
			q->proxy->orphaned += sizeof(*q) + q->bytes;
		}
	}
	if (p->is_answered)
		TAILQ_REMOVE(&proxy_of(p->caller->srv)->answered, p, answered);
	p->is_answered = false;
	own_free(p);
}

size_t passage_memory(const struct passage *p)
{
	size_t bytes = 0;
	const struct passed *q;

	if (!p->started)
		return 0;
	TAILQ_FOREACH(q, &p->sent, order)
		bytes += sizeof(*q) + q->bytes + q->reply.memory;
	return bytes + (p->own ? sizeof(*p->own) + p->own->link.out.memory : 0);
}

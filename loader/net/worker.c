/* SPDX-License-Identifier: BSD-2-Clause */
/* Workers: the event loop, turns of clients, and what is due every second. */
#include "worker.h"

#include <errno.h>
#include <stdlib.h>

#include "client.h"
#include "executor.h"
#include "server_state.h"
#include "util/clock.h"
#include "util/log.h"

#define SLICE_NS   1000000
#define UNSENT_MAX (256 << 10) /* bytes of replies that wait for other clients */

/* --- turns --- */

void worker_enqueue(struct worker *w, struct client *c, bool long_command)
{
	if (c->queued)
		return;
	c->queued = long_command ? &w->working : &w->ready;
	TAILQ_INSERT_TAIL(&c->queued->clients, c, turn);
	c->queued->count++;
	ev_idle_start(w->loop, &w->no_wait);
}

void worker_dequeue(struct worker *w, struct client *c)
{
	if (!c->queued)
		return;
	TAILQ_REMOVE(&c->queued->clients, c, turn);
	c->queued->count--;
	c->queued = NULL;
	if (!w->ready.count && !w->working.count)
		ev_idle_stop(w->loop, &w->no_wait);
}

/* --- ends of rounds --- */

static void end_rounds(struct worker *w)
{
	struct client *c;

	w->unsent_bytes = 0;
	/* its round goes on, and ends anew */
	if (w->busy)
		worker_unsend(w, w->busy);
	while ((c = TAILQ_FIRST(&w->unsent))) {
		worker_unsend(w, c);
		client_end_round(c);
	}
}

void worker_send(struct worker *w, struct client *c)
{
	if (!c->unsent)
		TAILQ_INSERT_TAIL(&w->unsent, c, sends);
	c->unsent = true;
	w->unsent_bytes += c->session.reply.out.bytes;
	if (w->unsent_bytes > UNSENT_MAX)
		end_rounds(w);
}

void worker_unsend(struct worker *w, struct client *c)
{
	if (c->unsent)
		TAILQ_REMOVE(&w->unsent, c, sends);
	c->unsent = false;
}

static void on_ends(struct ev_loop *loop, ev_prepare *watcher, int events)
{
	struct worker *w = watcher->data;

	(void)loop;
	(void)events;
	if (!TAILQ_EMPTY(&w->unsent))
		w->executor->before_replies(w);
	end_rounds(w);
}

bool worker_slice_left(const struct worker *w)
{
	return monotonic_ns() < w->slice_end;
}

/*
 * Each client that waits now gets one turn; one that is queued again meanwhile waits for the next
 * round.  Clients with long commands share a slice of time, whatever their number; the next round
 * starts with the first one that had no turn.
 */
static void on_turns(struct ev_loop *loop, ev_check *watcher, int events)
{
	struct worker *w = watcher->data;
	struct client *c;

	(void)loop;
	(void)events;
	for (unsigned int n = w->ready.count; n && (c = TAILQ_FIRST(&w->ready.clients)); n--)
		client_turn(c);
	w->slice_end = monotonic_ns() + SLICE_NS;
	for (unsigned int n = w->working.count;
	     n && worker_slice_left(w) && (c = TAILQ_FIRST(&w->working.clients)); n--)
		client_turn(c);
}

/* The client's command may be in the shared read buffer, so others get another one. */
void worker_yield(struct client *c)
{
	struct worker *w = c->worker;
	char *shared = w->read_buffer, *buffer = malloc(READ_BYTES);
	uint64_t slice_end = w->slice_end;

	if (!buffer)
		return;
	w->read_buffer = buffer;
	w->busy = c;
	ev_run(w->loop, EVRUN_NOWAIT);
	w->busy = NULL;
	w->read_buffer = shared;
	w->slice_end = slice_end;
	free(buffer);
}

static void on_no_wait(struct ev_loop *loop, ev_idle *w, int events)
{
	(void)loop;
	(void)w;
	(void)events;
}

/* --- pauses --- */

void worker_unpause(struct worker *w)
{
	struct client *c;

	ev_timer_stop(w->loop, &w->pause.end);
	w->pause.until_ns = 0;
	w->pause.all = false;
	TAILQ_FOREACH(c, &w->clients, link)
		if (c->ran & RUN_POSTPONED)
			worker_enqueue(w, c, false);
}

void worker_pause(struct worker *w, uint64_t ms, bool all)
{
	uint64_t now = monotonic_ns(), until = now + ms * 1000000;

	w->pause.all |= all;
	if (until <= w->pause.until_ns)
		return;
	w->pause.until_ns = until;
	ev_now_update(w->loop);
	ev_timer_stop(w->loop, &w->pause.end);
	ev_timer_set(&w->pause.end, (double)ms / 1000, 0.);
	ev_timer_start(w->loop, &w->pause.end);
}

static void on_pause_end(struct ev_loop *loop, ev_timer *watcher, int events)
{
	(void)loop;
	(void)events;
	worker_unpause(watcher->data);
}

/* --- every second --- */

static void close_idle_clients(struct worker *w)
{
	const struct server *s = w->srv;
	double limit = monotonic_seconds() - s->cfg->timeout;
	struct client *c, *next;

	for (c = TAILQ_FIRST(&w->clients); s->cfg->timeout && c && c->active < limit; c = next) {
		next = TAILQ_NEXT(c, link);
		if (c->unsent || c->ran & RUN_POSTPONED || c->session.monitor ||
		    session_is_subscriber(&c->session))
			continue; /* it waits for us, not we for it */
		log_verbose("closing idle client id %llu", (unsigned long long)c->id);
		client_free(c);
	}
}

static void on_second(struct ev_loop *loop, ev_timer *watcher, int events)
{
	struct worker *w = watcher->data;

	(void)loop;
	(void)events;
	if (w->busy)
		return;
	close_idle_clients(w);
	handshakes_tend(w);
	clients_tend_memory(w);
}

/* --- life --- */

static void init_watchers(struct worker *w)
{
	ev_prepare_init(&w->ends, on_ends);
	ev_check_init(&w->turns, on_turns);
	ev_idle_init(&w->no_wait, on_no_wait);
	ev_timer_init(&w->second, on_second, 1., 1.);
	ev_init(&w->pause.end, on_pause_end);
	w->ends.data = w->turns.data = w->second.data = w->pause.end.data = w;
	ev_prepare_start(w->loop, &w->ends);
	ev_check_start(w->loop, &w->turns);
	ev_timer_start(w->loop, &w->second);
}

struct worker *worker_new(struct server *srv)
{
	const struct executor *executor = srv->opt.executor;
	struct worker *w = calloc(1, sizeof(*w) + executor->worker_bytes);

	if (!w)
		return NULL;
	w->srv = srv;
	w->executor = executor;
	TAILQ_INIT(&w->clients);
	TAILQ_INIT(&w->unsent);
	handshakes_init(&w->handshakes);
	TAILQ_INIT(&w->ready.clients);
	TAILQ_INIT(&w->working.clients);
	w->read_buffer = malloc(READ_BYTES);
	w->loop = ev_loop_new(EVFLAG_NOENV);
	w->ctx = store_ctx_get(srv->store);
	if (!w->read_buffer || !w->loop || !w->ctx) {
		int error = errno;

		worker_free(w);
		errno = error;
		return NULL;
	}
	init_watchers(w);
	return w;
}

void worker_close_clients(struct worker *w)
{
	struct client *c;

	while ((c = TAILQ_FIRST(&w->clients)))
		client_free(c);
	handshakes_free(w);
}

void worker_free(struct worker *w)
{
	if (!w)
		return;
	if (w->loop)
		ev_loop_destroy(w->loop);
	if (w->ctx)
		store_ctx_put(w->ctx);
	outbox_cache_free();
	free(w->read_buffer);
	free(w);
}

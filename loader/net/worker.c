/* SPDX-License-Identifier: BSD-2-Clause */
/* Workers: the event loop, turns of clients, and what is due every second. */
#include "worker.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#include "client.h"
#include "executor.h"
#include "persist/writelog.h"
#include "server_state.h"
#include "udp.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"

#define SLICE_NS    1000000
#define STACK_BYTES (8 << 20)
#define STAND_BACK  1000 /* calls of sched_yield(), some 0.2 us each if no other thread is ready */
#define UNSENT_MAX  (256 << 10) /* bytes of replies that wait for other clients */

/* --- threads --- */

static _Thread_local struct worker *self;

/* Does a worker wait for all locks? */
static bool others_wait(const struct server *s)
{
	return __atomic_load_n(&s->waiting, __ATOMIC_RELAXED);
}

/*
 * After workers that want all locks: while workers are never idle, these would otherwise wait long
 * for the last one.
 */
static void take_own(struct worker *w)
{
	struct server *s = w->srv;

	if (others_wait(s)) {
		pthread_mutex_lock(&s->lock);
		pthread_mutex_lock(&w->own);
		pthread_mutex_unlock(&s->lock);
	} else {
		pthread_mutex_lock(&w->own);
	}
	w->holds = HOLDS_OWN;
}

static void worker_lock_all(struct worker *w)
{
	struct server *s = w->srv;

	__atomic_fetch_add(&s->waiting, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&s->lock);
	for (unsigned int i = 0; i < s->worker_count; i++)
		pthread_mutex_lock(&s->worker[i]->own);
	__atomic_fetch_sub(&s->waiting, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&s->taken, s->taken + 1, __ATOMIC_RELAXED);
	s->running = w;
	w->holds = HOLDS_ALL;
	w->alone_ns = monotonic_ns();
}

static void give_back(struct worker *w)
{
	struct server *s = w->srv;

	if (w->holds == HOLDS_ALL) {
		w->stat[STAT_ALONE_NS] += monotonic_ns() - w->alone_ns;
		s->running = NULL;
		for (unsigned int i = 0; i < s->worker_count; i++)
			if (s->worker[i] != w)
				pthread_mutex_unlock(&s->worker[i]->own);
		pthread_mutex_unlock(&s->lock);
	}
	w->holds = HOLDS_NOTHING;
	pthread_mutex_unlock(&w->own);
}

bool worker_is_alone(const struct worker *w)
{
	return w->srv->worker_count == 1 || w->holds == HOLDS_ALL;
}

bool worker_take_all(struct worker *w)
{
	if (worker_is_alone(w))
		return false;
	if (w->holds == HOLDS_OWN) {
		worker_flush(w);
		give_back(w);
	}
	worker_lock_all(w);
	return true;
}

void worker_leave(struct worker *w, bool takes_long)
{
	if (w->srv->worker_count == 1 || w->holds == HOLDS_NOTHING ||
	    (w->holds == HOLDS_OWN && !takes_long && !others_wait(w->srv)))
		return;
	worker_flush(w);
	give_back(w);
}

void worker_return(struct worker *w)
{
	if (w->srv->worker_count > 1 && w->holds == HOLDS_NOTHING)
		take_own(w);
}

/*
 * A worker whose clients always need all locks would have them again before anybody who waits for
 * them is awake: so it stands back once in a round, until another one had them.
 */
static void before_wait(struct ev_loop *loop)
{
	struct worker *w = ev_userdata(loop);
	struct server *s = w->srv;
	bool held_all = w->holds == HOLDS_ALL;
	uint64_t taken;

	if (s->worker_count > 1)
		worker_flush(w); /* of an event that came after on_ends() */
	if (w->unsent_count)
		ev_async_send(loop, &w->wake);
	if (s->worker_count == 1)
		return;
	taken = __atomic_load_n(&s->taken, __ATOMIC_RELAXED);
	give_back(w);
	for (int i = 0; held_all && i < STAND_BACK && others_wait(s); i++) {
		if (__atomic_load_n(&s->taken, __ATOMIC_RELAXED) != taken)
			return;
		sched_yield();
	}
}

static void after_wait(struct ev_loop *loop)
{
	worker_return(ev_userdata(loop));
}

void worker_wake(struct worker *w)
{
	if (w != w->srv->running && w != self)
		ev_async_send(w->loop, &w->wake);
}

static void on_wake(struct ev_loop *loop, ev_async *watcher, int events)
{
	struct worker *w = watcher->data;

	if (w->srv->ended)
		ev_break(loop, EVBREAK_ALL);
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;

	self = w;
	take_own(w);
	ev_run(w->loop, 0);
	give_back(w);
	outbox_cache_free();
	return NULL;
}

/* The stack is as large as a main thread's usually is: what guards scripts reckons with it. */
static int thread_start(struct worker *w)
{
	pthread_attr_t attr;
	int ret = pthread_attr_init(&attr);

	if (ret)
		return ret;
	ret = pthread_attr_setstacksize(&attr, STACK_BYTES);
	if (!ret)
		ret = pthread_create(&w->thread, &attr, worker_main, w);
	pthread_attr_destroy(&attr);
	w->runs = !ret;
	return ret;
}

/* Signals are for the first worker. */
int workers_start(struct server *s)
{
	sigset_t all, before;
	int ret = 0;

	if (s->worker_count == 1)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	self = s->worker[0];
	worker_take_all(self);
	for (unsigned int i = 1; i < s->worker_count && !ret; i++)
		ret = thread_start(s->worker[i]);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return ret;
}

void workers_end(struct server *s)
{
	if (s->worker_count == 1)
		return;
	worker_take_all(s->worker[0]);
	s->ended = true;
	for (unsigned int i = 1; i < s->worker_count; i++)
		worker_wake(s->worker[i]);
	give_back(s->worker[0]);
	for (unsigned int i = 1; i < s->worker_count; i++)
		if (s->worker[i]->runs)
			pthread_join(s->worker[i]->thread, NULL);
	s->running = s->worker[0];
}

/* --- turns --- */

/* While a script serves others, no command in progress can go on: turns of these are in vain. */
static bool has_turns(const struct worker *w)
{
	return w->ready.count || (w->working.count && !w->srv->busy);
}

void worker_enqueue(struct worker *w, struct client *c, bool long_command)
{
	if (c->queued)
		return;
	c->queued = long_command ? &w->working : &w->ready;
	TAILQ_INSERT_TAIL(&c->queued->clients, c, turn);
	c->queued->count++;
	if (!has_turns(w))
		return;
	ev_idle_start(w->loop, &w->no_wait);
	worker_wake(w);
}

void worker_dequeue(struct worker *w, struct client *c)
{
	if (!c->queued)
		return;
	TAILQ_REMOVE(&c->queued->clients, c, turn);
	c->queued->count--;
	c->queued = NULL;
	if (!has_turns(w))
		ev_idle_stop(w->loop, &w->no_wait);
}

/* The script is over: commands in progress go on, of all workers. */
static void after_script(struct worker *of)
{
	struct server *s = of->srv;

	worker_take_all(of);
	if (s->busy)
		return; /* the next one, meanwhile */
	s->yielded = false;
	for (unsigned int i = 0; i < s->worker_count; i++) {
		struct worker *w = s->worker[i];

		if (!has_turns(w))
			continue;
		ev_idle_start(w->loop, &w->no_wait);
		worker_wake(w);
	}
}

/* --- ends of rounds --- */

void worker_flush(struct worker *w)
{
	w->executor->flush(w);
	w->read_used = 0;
}

/*
 * Replies that have to wait for the disk do so each for the position that it has to have; those of
 * later rounds are behind, and wait for the same one or a later one.
 */
static void hold_unsent(struct worker *w, uint64_t position)
{
	struct client *c = position ? TAILQ_LAST(&w->unsent, client_list) : NULL;

	for (; c && !c->held_until; c = TAILQ_PREV(c, client_list, sends)) {
		c->held_until = position;
		w->unsent_count--;
	}
}

/* The first whose replies may be sent.  `writers`: only those wait that have changed something. */
static struct client *first_to_send(const struct worker *w, bool writers)
{
	struct client *c = TAILQ_FIRST(&w->unsent);

	if (!c || !c->held_until || writelog_is_synced(c->held_until))
		return c;
	while (c && (!writers || c->wrote))
		c = writers ? TAILQ_NEXT(c, sends) : NULL;
	return c;
}

/* While replies wait for the disk, what wakes this thread up is one of the short waits of each. */
static void hurry(struct worker *w)
{
	if (w->hurries != w->srv->replies_wait)
		thread_hurries(w->srv->replies_wait);
	w->hurries = w->srv->replies_wait;
}

static void end_rounds(struct worker *w)
{
	struct caller *busy = w->srv->busy;
	bool writers = false;
	struct client *c;

	w->unsent_bytes = 0;
	/* its round goes on, and ends anew */
	if (busy && busy->worker == w && client_of(busy))
		worker_unsend(w, client_of(busy));
	hurry(w);
	hold_unsent(w, writelog_awaits(w->unsent_count, &writers));
	while ((c = first_to_send(w, writers))) {
		worker_unsend(w, c);
		client_end_round(c);
	}
	if (w->srv->udp && w == w->srv->worker[0] && udp_send_held(w->srv->udp))
		ev_async_send(w->loop, &w->wake); /* the others have their turn first */
}

void worker_send(struct worker *w, struct client *c)
{
	if (!c->caller.unsent) {
		TAILQ_INSERT_TAIL(&w->unsent, c, sends);
		w->unsent_count++;
	}
	c->caller.unsent = true;
	w->unsent_bytes += c->caller.session.reply.out.bytes;
	if (w->unsent_bytes > UNSENT_MAX) {
		worker_flush(w);
		end_rounds(w);
	}
}

void worker_unsend(struct worker *w, struct client *c)
{
	if (c->caller.unsent) {
		TAILQ_REMOVE(&w->unsent, c, sends);
		w->unsent_count -= !c->held_until;
	}
	c->caller.unsent = false;
	c->held_until = 0;
}

static void on_ends(struct ev_loop *loop, ev_prepare *watcher, int events)
{
	struct worker *w = watcher->data;

	worker_flush(w);
	if (w->unsent_count)
		w->executor->before_replies(w);
	end_rounds(w);
	if (w->srv->yielded && !w->srv->busy)
		after_script(w);
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

	for (unsigned int n = w->ready.count; n && (c = TAILQ_FIRST(&w->ready.clients)); n--)
		client_turn(c);
	w->slice_end = monotonic_ns() + SLICE_NS;
	for (unsigned int n = w->working.count;
	     n && worker_slice_left(w) && (c = TAILQ_FIRST(&w->working.clients)); n--)
		client_turn(c);
}

/* The client's command may be in the shared read buffer, so others get another one. */
void worker_yield(struct caller *c)
{
	struct worker *w = c->worker;
	char *shared = w->read_buffer, *buffer = malloc(READ_BYTES);
	uint64_t slice_end = w->slice_end;
	size_t used = w->read_used;

	if (!buffer)
		return;
	w->read_buffer = buffer;
	w->read_used = 0;
	w->srv->busy = c;
	if (w->srv->flows)
		flows_take_back(w->srv->flows);
	w->srv->yielded = true;
	ev_run(w->loop, EVRUN_NOWAIT);
	worker_take_all(w);
	w->srv->busy = NULL;
	w->read_buffer = shared;
	w->read_used = used;
	w->slice_end = slice_end;
	free(buffer);
}

static void on_no_wait(struct ev_loop *loop, ev_idle *w, int events)
{
}

/* --- pauses --- */

static void unpause(struct worker *w)
{
	ev_timer_stop(w->loop, &w->pause.end);
	w->pause.until_ns = 0;
	w->pause.all = false;
	waiters_wake(&w->pause.waiters);
}

void workers_unpause(struct server *s)
{
	for (unsigned int i = 0; i < s->worker_count; i++)
		unpause(s->worker[i]);
}

static void postpone(struct worker *w, uint64_t ms, bool all)
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
	worker_wake(w);
}

void workers_pause(struct server *s, uint64_t ms, bool all)
{
	for (unsigned int i = 0; i < s->worker_count; i++)
		postpone(s->worker[i], ms, all);
}

static void on_pause_end(struct ev_loop *loop, ev_timer *watcher, int events)
{
	worker_take_all(watcher->data);
	if (!ev_is_active(watcher)) /* else it was made longer meanwhile */
		unpause(watcher->data);
}

/* --- when the data is loaded --- */

/* The worker that serves the fewest. */
struct worker *worker_least(const struct server *s)
{
	struct worker *least = s->worker[0];

	for (unsigned int i = 1; i < s->worker_count; i++)
		if (s->worker[i]->client_count + s->worker[i]->handshakes.count <
		    least->client_count + least->handshakes.count)
			least = s->worker[i];
	return least;
}

void workers_share(struct server *s)
{
	const struct pause *pause = &s->worker[0]->pause;
	uint64_t now = monotonic_ns();
	struct client *c, *next;

	for (unsigned int i = 1; i < s->worker_count && pause->until_ns > now; i++)
		postpone(s->worker[i], (pause->until_ns - now) / 1000000 + 1, pause->all);
	worker_flush(s->worker[0]);
	for (c = TAILQ_FIRST(&s->worker[0]->clients); c; c = next) {
		struct worker *least = worker_least(s);

		next = TAILQ_NEXT(c, link);
		if (least->client_count + 1 >= s->worker[0]->client_count)
			break;
		client_move(c, least);
	}
}

/* --- every second --- */

static void close_idle_clients(struct worker *w)
{
	const struct server *s = w->srv;
	double limit = monotonic_seconds() - s->cfg->timeout;
	struct client *c, *next;

	for (c = TAILQ_FIRST(&w->clients); s->cfg->timeout && c && c->active < limit; c = next) {
		next = TAILQ_NEXT(c, link);
		if (c->caller.unsent || c->caller.waits || c->caller.session.monitor ||
		    session_is_subscriber(&c->caller.session) || client_was_used(c, limit))
			continue; /* it waits for us, not we for it */
		log_verbose("closing idle client id %llu", (unsigned long long)c->caller.id);
		client_free(c);
	}
}

static void on_second(struct ev_loop *loop, ev_timer *watcher, int events)
{
	struct worker *w = watcher->data;

	worker_take_all(w);
	if (w->srv->busy)
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
	ev_async_init(&w->wake, on_wake);
	w->ends.data = w->turns.data = w->second.data = w->pause.end.data = w->wake.data = w;
	ev_set_userdata(w->loop, w);
	ev_set_loop_release_cb(w->loop, before_wait, after_wait);
	ev_async_start(w->loop, &w->wake);
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
	w->own = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
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

	while ((c = TAILQ_FIRST(&w->clients))) {
		c->stream.conn.transport->finish(&c->stream.conn);
		client_free(c);
	}
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
	pthread_mutex_destroy(&w->own);
	free(w->read_buffer);
	free(w);
}

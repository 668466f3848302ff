/* SPDX-License-Identifier: BSD-2-Clause */
/* Signals, and shutdown. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "housekeeping_impl.h"
#include "net/client.h"
#include "net/listen.h"
#include "net/udp.h"
#include "persist/snapshot.h"
#include "persist/writelog.h"
#include "util/clock.h"
#include "util/handed.h"
#include "util/log.h"

#define SECOND_SIGNAL_SECONDS 60
#define LEAVE_SECONDS	      0.05 /* without accepting clients, before the end of SIGUSR2 */

static void exit_at_once(int number)
{
	_exit(1);
}

/*
 * After the first signal the next one ends the process, even while a save keeps the loop from
 * running: therefore it is not handled by the loop.
 */
static void second_signal_exits(struct housekeeping *h, bool exits)
{
	struct ev_loop *loop = h->srv->loop;
	struct sigaction action = { .sa_handler = exit_at_once };

	if (!exits) {
		ev_signal_start(loop, &h->on_term);
		ev_signal_start(loop, &h->on_int);
		return;
	}
	ev_signal_stop(loop, &h->on_term);
	ev_signal_stop(loop, &h->on_int);
	if (sigaction(SIGTERM, &action, NULL) || sigaction(SIGINT, &action, NULL))
		log_warning("cannot catch a second signal: %s", strerror(errno));
}

static bool final_save(struct server *s)
{
	struct snapshot_info info;
	int ret;

	log_notice("saving the final snapshot before exiting");
	snapshot_cancel(); /* a background save would be older than this one */
	snapshot_wait();
	snapshot_reap();
	ret = snapshot_save(s->store, s->cfg);
	if (!ret)
		return true;
	snapshot_status(&info);
	log_warning("cannot save: %s", info.last_error[0] ? info.last_error : strerror(-ret));
	return false;
}

/* Executes accepted requests, ... */
static void finish_rounds(struct server *s)
{
	for (unsigned int i = 0; i < s->worker_count && !s->busy; i++)
		worker_flush(s->worker[i]);
}

/* ... and acknowledges them. */
void replies_send_last(struct server *s)
{
	if (s->udp && !s->busy)
		udp_finish(s->udp);
	if (!s->loading && !writelog_wait())
		return;
	for (unsigned int i = 0; i < s->worker_count && !s->busy; i++)
		clients_flush(s->worker[i]);
	while (s->udp && udp_send_held(s->udp))
		;
}

bool server_shutdown(struct server *s, enum shutdown_save save, bool force)
{
	bool wanted = save == SHUTDOWN_SAVE || (save == SHUTDOWN_BY_RULES && s->cfg->save_count);

	wanted &= !s->loading; /* the file is whole, the store is not */
	sockets_stop(s);
	if (s->opt.stopping)
		s->opt.stopping(s->opt.config_arg);
	finish_rounds(s);
	s->stopping = true;
	if (s->flows)
		flows_take_back(s->flows); /* what is written now would not be saved */
	replies_send_last(s);		   /* saving may take long */
	second_signal_exits(s->housekeeping, true);
	if (wanted)
		sd_notify(0, "STOPPING=1\nSTATUS=Saving the final snapshot");
	else
		snapshot_cancel();
	if (wanted && !final_save(s) && !force) {
		log_warning("not exiting, so that no data is lost; a second signal exits at once");
		sd_notify(0, "READY=1\nSTATUS=Saving failed, see the log");
		second_signal_exits(s->housekeeping, false);
		s->stopping = false;
		sockets_start(s);
		return false;
	}
	sd_notify(0, "STOPPING=1\nSTATUS=Exiting");
	s->ended = true;
	ev_break(s->loop, EVBREAK_ALL); /* has no effect while it waits */
	worker_wake(s->worker[0]);
	return true;
}

static void on_exit_signal(struct ev_loop *loop, ev_signal *w, int events)
{
	struct housekeeping *h = w->data;
	struct server *s = h->srv;

	worker_take_all(s->worker[0]);
	/* Long after a failed save, a signal counts as the first one again. */
	if (h->signalled > 0 && monotonic_seconds() - h->signalled < SECOND_SIGNAL_SECONDS) {
		log_warning("second signal: exiting at once");
		_exit(1);
	}
	h->signalled = monotonic_seconds();
	second_signal_exits(h, true); /* one that the loop catches now would be lost in a save */
	log_notice("received %s, shutting down", w->signum == SIGINT ? "SIGINT" : "SIGTERM");
	server_shutdown(s, SHUTDOWN_BY_RULES, false);
}

/*
 * Nothing is saved: the store and the sockets go on, and what is to be saved still is.  Functions
 * are in our memory, and else in the last snapshot only.
 */
static void hand_functions(void)
{
	size_t len;
	void *records = snapshot_functions(&len);

	if (records)
		handed_give(records, len);
	free(records);
}

static void on_leave(struct ev_loop *loop, ev_timer *w, int events)
{
	struct server *s = ((struct housekeeping *)w->data)->srv;

	worker_take_all(s->worker[0]);
	s->succeeded = true;
	server_shutdown(s, SHUTDOWN_NOSAVE, true);
	hand_functions();
}

/* Clients that have just connected get their first reply; the other xkvd accepts the next ones. */
static void on_successor_signal(struct ev_loop *loop, ev_signal *w, int events)
{
	struct housekeeping *h = w->data;

	worker_take_all(h->srv->worker[0]);
	log_notice("received SIGUSR2, another xkvd goes on");
	sockets_stop(h->srv);
	ev_timer_start(loop, &h->leave);
}

static void on_reopen_signal(struct ev_loop *loop, ev_signal *w, int events)
{
	struct server *s = ((struct housekeeping *)w->data)->srv;
	int ret = log_open(s->cfg->logfile);

	worker_take_all(s->worker[0]);
	if (ret)
		log_warning("cannot open %s again, writing to the old one: %s", s->cfg->logfile,
			    strerror(-ret));
	else
		log_notice("log opened again");
}

static void init_signal(struct housekeeping *h, ev_signal *w,
			void (*cb)(struct ev_loop *, ev_signal *, int), int number)
{
	sigset_t held;

	ev_signal_init(w, cb, number);
	w->data = h;
	ev_signal_start(h->srv->loop, w);
	/* Those that came while the store was opened are taken now (main.c). */
	sigemptyset(&held);
	sigaddset(&held, number);
	pthread_sigmask(SIG_UNBLOCK, &held, NULL);
}

void signals_begin(struct housekeeping *h)
{
	init_signal(h, &h->on_term, on_exit_signal, SIGTERM);
	init_signal(h, &h->on_int, on_exit_signal, SIGINT);
	init_signal(h, &h->on_usr1, on_reopen_signal, SIGUSR1);
	init_signal(h, &h->on_hup, on_reopen_signal, SIGHUP);
	signal(SIGPIPE, SIG_IGN); /* also where main() is another one, in tests */
}

void successor_begin(struct housekeeping *h)
{
	ev_timer_init(&h->leave, on_leave, LEAVE_SECONDS, 0);
	h->leave.data = h;
	init_signal(h, &h->on_usr2, on_successor_signal, SIGUSR2);
}

void signals_end(struct housekeeping *h)
{
	ev_signal *watchers[] = { &h->on_term, &h->on_int, &h->on_usr1, &h->on_usr2, &h->on_hup };

	for (unsigned int i = 0; i < sizeof(watchers) / sizeof(watchers[0]); i++)
		ev_signal_stop(h->srv->loop, watchers[i]);
	ev_timer_stop(h->srv->loop, &h->leave);
}

/* SPDX-License-Identifier: BSD-2-Clause */
#include "handshake.h"

#include <ev.h>
#include <math.h>
#include <stdlib.h>

#include "client.h"
#include "tls.h"
#include "util/clock.h"

#define SLICE_NS 2000000 /* some handshakes; one takes half a millisecond, with RSA two */

struct handshake {
	TAILQ_ENTRY(handshake) link;
	struct worker *worker;
	struct connection conn; /* owned */
	ev_io ready;
	double since; /* by monotonic_seconds() */
	bool runs;    /* in step(), which releases locks: no other code may touch it */
};

static void log_failure(struct worker *w, const struct connection *conn, const char *why)
{
	unsigned int events = log_rate(&w->handshakes.failures);
	char peer[ADDRESS_TEXT];

	if (!events)
		return;
	connection_address(conn, true, peer);
	log_warning("Error accepting a client connection: %s (addr=%s; %u such since the last "
		    "line)",
		    why, peer, events);
}

/* ---- life ---------------------------------------------------------------- */

void handshakes_init(struct handshakes *all)
{
	*all = (struct handshakes){ .count = 0 };
	TAILQ_INIT(&all->list);
}

/* Leaves the connection to the caller. */
static void handshake_forget(struct handshake *h)
{
	struct worker *w = h->worker;

	ev_io_stop(w->loop, &h->ready);
	TAILQ_REMOVE(&w->handshakes.list, h, link);
	w->handshakes.count--;
	free(h);
}

/* Sends what OpenSSL has to say about it, an alert; else the peer would only see a reset. */
static void handshake_fail(struct handshake *h, const char *why)
{
	struct connection conn = h->conn;

	h->worker->stat[STAT_TLS_FAILED]++;
	log_failure(h->worker, &conn, why);
	handshake_forget(h);
	conn.transport->finish(&conn);
	conn.transport->close(&conn);
}

/* Of a worker at most one runs. */
static struct handshake *oldest(const struct worker *w)
{
	struct handshake *h = TAILQ_FIRST(&w->handshakes.list);

	return h && h->runs ? TAILQ_NEXT(h, link) : h;
}

bool handshake_drop_oldest(struct worker *w, const char *why)
{
	struct handshake *h = oldest(w);

	if (h)
		handshake_fail(h, why);
	return h;
}

double handshakes_since(const struct worker *w)
{
	const struct handshake *h = oldest(w);

	return h ? h->since : HUGE_VAL;
}

void handshakes_tend(struct worker *w)
{
	double limit = monotonic_seconds() - w->srv->cfg->tls_handshake_timeout;
	struct handshake *h;

	while ((h = TAILQ_FIRST(&w->handshakes.list)) && h->since <= limit)
		handshake_fail(h, "the handshake has taken longer than tls-handshake-timeout");
}

void handshakes_free(struct worker *w)
{
	struct handshake *h;

	while ((h = TAILQ_FIRST(&w->handshakes.list))) {
		h->conn.transport->close(&h->conn);
		handshake_forget(h);
	}
}

/* ---- progress ------------------------------------------------------------ */

static bool slice_left(struct worker *w)
{
	struct handshakes *all = &w->handshakes;
	uint64_t now = monotonic_ns();

	if (all->round != ev_iteration(w->loop)) {
		all->round = ev_iteration(w->loop);
		all->slice_end = now + SLICE_NS;
	}
	return now < all->slice_end;
}

static void wait_for(struct handshake *h, int events)
{
	if ((h->ready.events & (EV_READ | EV_WRITE)) == events)
		return;
	ev_io_stop(h->worker->loop, &h->ready);
	ev_io_set(&h->ready, h->conn.fd, events);
	ev_io_start(h->worker->loop, &h->ready);
}

static void become_client(struct handshake *h)
{
	struct worker *w = h->worker;
	struct connection conn = h->conn;

	w->stat[STAT_TLS_HANDSHAKES]++;
	handshake_forget(h);
	client_new(w, conn);
}

/* A step takes milliseconds: others run meanwhile, also who wants all locks only then. */
static enum tls_step step(struct handshake *h)
{
	struct worker *w = h->worker;
	enum tls_step done;

	h->runs = true;
	worker_leave(w, true);
	done = tls_handshake(&h->conn);
	worker_return(w);
	if (done == TLS_DONE || done == TLS_FAILED)
		worker_take_all(w);
	h->runs = false;
	return done;
}

static void handshake_on_ready(struct ev_loop *loop, ev_io *io, int events)
{
	struct handshake *h = io->data;

	if (!slice_left(h->worker))
		return; /* it is still ready in the next round */
	switch (step(h)) {
	case TLS_DONE:
		become_client(h);
		break;
	case TLS_WANTS_READ:
		wait_for(h, EV_READ);
		break;
	case TLS_WANTS_WRITE:
		wait_for(h, EV_WRITE);
		break;
	case TLS_FAILED:
		handshake_fail(h, connection_error(&h->conn));
	}
}

void handshake_new(struct worker *w, struct connection conn, SSL_CTX *context)
{
	struct handshake *h = calloc(1, sizeof(*h));

	if (!h || tls_start(&conn, context)) {
		log_repeated("out of memory for a client");
		conn.transport->close(&conn);
		free(h);
		return;
	}
	if (w->handshakes.count >= HANDSHAKES_MAX)
		handshake_drop_oldest(w, "too many handshakes at a time");
	h->worker = w;
	h->conn = conn;
	h->since = monotonic_seconds();
	ev_io_init(&h->ready, handshake_on_ready, conn.fd, EV_READ);
	h->ready.data = h;
	ev_io_start(w->loop, &h->ready);
	TAILQ_INSERT_TAIL(&w->handshakes.list, h, link);
	w->handshakes.count++;
}

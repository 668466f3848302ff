/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * TLS handshakes in progress.  A connection becomes a client when its handshake is done; until then
 * it costs little, and gives way to others: a handshake may last `tls-handshake-timeout` seconds,
 * and of too many the oldest is closed.  All handshakes of a worker share a slice of time in each
 * round of the event loop.
 *
 * The caller holds the lock of the server (worker.h).
 */
#ifndef XKV_HANDSHAKE_H
#define XKV_HANDSHAKE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "connection.h"
#include "util/log.h"

#define HANDSHAKES_MAX 1024 /* of a worker */

struct handshake;
struct ssl_ctx_st; /* SSL_CTX */
struct worker;

TAILQ_HEAD(handshake_list, handshake);

struct handshakes {
	struct handshake_list list; /* the oldest first; owned */
	unsigned int count;
	unsigned int round; /* of the event loop, that slice_end is of */
	uint64_t slice_end; /* monotonic ns */
	struct log_rate failures;
};

void handshakes_init(struct handshakes *all);

/*
 * Takes over a TCP connection and makes it one with TLS; then, a client of the worker.  Closes it
 * if anything fails.
 */
void handshake_new(struct worker *w, struct connection conn, struct ssl_ctx_st *context);
/* Closes the oldest one.  False: there is none. */
bool handshake_drop_oldest(struct worker *w, const char *why);
/* When the oldest began, by monotonic_seconds(); HUGE_VAL if there is none. */
double handshakes_since(const struct worker *w);
/* Every second: closes those that have taken too long. */
void handshakes_tend(struct worker *w);
/* Closes all of them. */
void handshakes_free(struct worker *w);

#endif

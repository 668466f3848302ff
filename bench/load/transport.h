/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How requests and replies travel: one table of functions each, used by one
 * worker's thread.  A transport collects what is sent into batches and hands what
 * comes to the worker; it knows nothing of what the bytes mean.
 */
#ifndef BENCH_TRANSPORT_H
#define BENCH_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct client;
struct options;
struct worker;

struct server_address {
	struct sockaddr_storage addr;
	socklen_t len;
};

struct transport {
	const char *name;

	/* What the threads share, for transports that have such a thing: before the first open()
	 * and after the last close().  0 and *shared, or -errno after a sentence; stop() in both
	 * cases. */
	int (*start)(void **shared, const struct options *o, const struct server_address *server);
	void (*stop)(void *shared);
	/* What came of a choice that was left to the kernel. */
	const char *(*mode)(const void *shared);

	/* Opens w->client[0..w->clients-1] to the server; sets w->transport_state.  0, or -errno
	 * after a sentence; close() in both cases. */
	int (*open)(struct worker *w, const struct options *o, const struct server_address *server);
	void (*close)(struct worker *w);

	/* NULL, or called once, before the threads start, when all workers are open. */
	int (*settle)(struct worker *workers, unsigned int n);

	/* A place to write a request of this client into, at most `room` bytes; NULL if there is
	 * none now, and then not before flush(). */
	uint8_t *(*reserve)(struct worker *w, struct client *c, size_t room);
	/* What was reserved is `len` bytes long, and is to be sent. */
	void (*commit)(struct worker *w, struct client *c, size_t len);
	/* Sends what was committed. */
	void (*flush)(struct worker *w);

	/* Hands over what has come: worker_datagram(), worker_stream().  If nothing has, waits for
	 * up to `wait` ns; longer only if w->phase has no rate, and then SLICE_MS at most. */
	void (*receive)(struct worker *w, uint64_t wait);

	/* NULL, or called at the end of a phase: counts what was dropped on this side. */
	void (*finish)(struct worker *w);

	/* Streams: starts the client's connection anew. */
	void (*reset)(struct worker *w, struct client *c);
};

#define SLICE_MS 100 /* longest blind wait, so that signals and the end are seen in time */

extern const struct transport transport_udp, transport_tcp, transport_xdp;

/* The one that options and protocol ask for. */
const struct transport *transport_of(const struct options *o);

#endif

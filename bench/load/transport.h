/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The transports of the load generator.  Each is a table of functions, called by the thread of one
 * worker unless noted.  A transport sends requests in batches and passes received bytes to the
 * worker, without interpreting them.
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

	/*
	 * NULL, or start() and stop() state that all threads share, before the first open() and
	 * after the last close().  0 and *shared, or -errno after an error message; stop() has to
	 * be called in both cases.
	 */
	int (*start)(void **shared, const struct options *o, const struct server_address *server);
	void (*stop)(void *shared);
	/* The mode that the kernel chose, or NULL. */
	const char *(*mode)(const void *shared);

	/*
	 * Opens w->client[0..w->clients-1] to the server; sets w->transport_state.  0, or -errno
	 * after an error message; close() has to be called in both cases.
	 */
	int (*open)(struct worker *w, const struct options *o, const struct server_address *server);
	void (*close)(struct worker *w);

	/* NULL, or called once before the threads start, when all workers are open. */
	int (*settle)(struct worker *workers, unsigned int n);

	/*
	 * Memory for a request of this client, of `room` bytes.  NULL if there is none; then there
	 * will be none before flush().
	 */
	uint8_t *(*reserve)(struct worker *w, struct client *c, size_t room);
	/* Queues the reserved request, whose length is `len` bytes. */
	void (*commit)(struct worker *w, struct client *c, size_t len);
	/* Sends the queued requests. */
	void (*flush)(struct worker *w);

	/*
	 * Passes received data to worker_datagram() or worker_stream().  If there is none, waits
	 * for up to `wait` ns; possibly longer if w->phase has no rate, but SLICE_MS at most.
	 */
	void (*receive)(struct worker *w, uint64_t wait);

	/* NULL, or called at the end of a phase: counts replies that were dropped on this side. */
	void (*finish)(struct worker *w);

	/* Streams: reconnects the client. */
	void (*reset)(struct worker *w, struct client *c);
};

#define SLICE_MS 100 /* longest wait, after which a thread checks for signals and the end */

extern const struct transport transport_udp, transport_tcp, transport_xdp;

/* The transport for the options and their protocol. */
const struct transport *transport_of(const struct options *o);

#endif

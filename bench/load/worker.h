/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One thread of the load: its clients, the requests that they have out, and the
 * loop that sends, receives and gives up.
 *
 * Closed loop: each client has --depth requests out, and an answer makes room for
 * the next.  Open loop: requests are due at fixed distances in time.  One that
 * cannot be sent when it is due, because the thread is late or no request is free,
 * is sent as soon as it can be, none is left out, and its latency counts from when
 * it was due: a server that stalls is seen by all that wanted to ask it meanwhile.
 */
#ifndef BENCH_WORKER_H
#define BENCH_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "options.h"
#include "protocol.h"
#include "request.h"
#include "stats.h"
#include "transport.h"
#include "workload.h"

/* What the threads do together: load every key once, or run the workload. */
struct phase {
	const struct options *o;
	struct inserts *inserts;
	bool loading;
	uint64_t total;	      /* keys to load or operations to do, 0 = no limit */
	uint64_t taken;	      /* of them; atomic */
	uint64_t start_ns;    /* CLOCK_MONOTONIC: when the threads begin */
	uint64_t from_ns;     /* what is due earlier is warm-up and does not count */
	uint64_t end_ns;      /* 0 = no limit */
	double rate;	      /* open loop: requests/s of all threads; 0 = closed loop */
	unsigned int working; /* threads that are not yet done; atomic */
	uint64_t last_reply_ns;	      /* ns, about: the last reply to any thread; atomic */
	bool failed;	      /* a thread gave up, after a sentence; atomic */
};

struct worker {
	struct phase *phase;
	const struct protocol *protocol;
	const struct transport *transport;
	void *transport_state;
	void *transport_shared; /* by transport.start() */
	unsigned int number, workers;
	struct client *client;
	unsigned int clients;
	unsigned int depth; /* requests of a client */
	uint32_t *keys;	    /* of all requests */
	struct request *request;
	struct request_line free, out; /* `out`: in the order of their deadlines */
	struct workload workload;
	uint64_t now;	      /* ns; set by receive() and at the top of the loop */
	uint64_t dues;	      /* open loop: requests that were due before */
	double due;	      /* ns when the next one is */
	double gap;	      /* ns to the one after it */
	bool stopping;	      /* nothing new is sent */
	uint64_t last;	      /* ns: when the last request was over, answered or given up */
	unsigned int unanswered; /* given up since the last reply */
	uint64_t out_count;
	struct stats stats;
	struct stats ignored; /* warm-up's */
};

/*
 * Makes the requests of clients first .. first + clients - 1 and opens their transport.
 * 0, or -errno after a sentence; worker_close() in both cases.
 */
int worker_open(struct worker *w, const struct options *o, const struct server_address *server,
		unsigned int first, unsigned int clients);
void worker_close(struct worker *w);

/* Works on w->phase until it is over.  A pthread start routine. */
void *worker_main(void *worker);

/* For transports: a datagram came for a client (NULL: its id tells) ... */
void worker_datagram(struct worker *w, struct client *c, const uint8_t *buf, size_t len);
/* ... or a stream has these bytes; returns how many were used, -EBADMSG if they make no sense ...
 */
ssize_t worker_stream(struct worker *w, struct client *c, const uint8_t *buf, size_t len);
/* ... or a system call failed ... */
void worker_socket_error(struct worker *w, int err);
/* ... or a stream broke and whatever was out on it is lost. */
void worker_drop(struct worker *w, struct client *c);

/* Ends the phase with a sentence. */
void worker_fail(struct worker *w, const char *sentence);

uint64_t now_ns(void);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One thread of the load generator: its clients, their outstanding requests, and the loop that
 * sends, receives, and handles timeouts.
 *
 * Closed loop: each client has --depth outstanding requests and sends the next when one is
 * answered.  Open loop: requests are due at fixed intervals.  A request that cannot be sent when it
 * is due, because the thread is late or no request structure is free, is sent as soon as possible;
 * its latency is measured from the time when it was due, so that a stall of the server is seen in
 * the latency of all requests that were due meanwhile.
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

/* What all threads do: set every key once, or run the workload. */
struct phase {
	const struct options *o;
	struct inserts *inserts;
	bool loading;
	uint64_t total;		/* keys to set, or operations, 0 = no limit */
	uint64_t taken;		/* of these, assigned to a thread; atomic */
	uint64_t start_ns;	/* CLOCK_MONOTONIC: when the threads begin */
	uint64_t from_ns;	/* requests that are due before belong to the warm-up */
	uint64_t end_ns;	/* 0 = no limit */
	double rate;		/* open loop: requests/s of all threads; 0 = closed loop */
	unsigned int working;	/* threads that have not finished; atomic */
	uint64_t last_reply_ns; /* approximate time of the last reply to any thread; atomic */
	bool failed;		/* a thread gave up, after an error message; atomic */
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
	struct request_line free, out; /* `out`: outstanding, in the order of their deadlines */
	struct workload workload;
	uint64_t now;		 /* ns; set by receive() and at the top of the loop */
	uint64_t dues;		 /* open loop: number of requests that were due so far */
	double due;		 /* ns: when the next one is due */
	double gap;		 /* ns between two of them */
	bool stopping;		 /* no new requests are sent */
	uint64_t last;		 /* ns: when the last request was answered or given up */
	unsigned int unanswered; /* requests given up since the last reply */
	uint64_t out_count;
	struct stats stats;
	struct stats ignored; /* of the warm-up */
};

/*
 * Makes the requests of clients first .. first + clients - 1 and opens their transport.  0, or
 * -errno after an error message; worker_close() has to be called in both cases.
 */
int worker_open(struct worker *w, const struct options *o, const struct server_address *server,
		unsigned int first, unsigned int clients);
void worker_close(struct worker *w);

/* Works on w->phase until it is over.  A pthread start routine. */
void *worker_main(void *worker);

/* For transports: reports a datagram for a client (NULL: the client of the id), ... */
void worker_datagram(struct worker *w, struct client *c, const uint8_t *buf, size_t len);
/* ... bytes of a stream; returns how many were consumed, or -EBADMSG if they are invalid, ... */
ssize_t worker_stream(struct worker *w, struct client *c, const uint8_t *buf, size_t len);
/* ... the error of a system call, ... */
void worker_socket_error(struct worker *w, int err);
/* ... or a broken stream, whose outstanding requests are lost. */
void worker_drop(struct worker *w, struct client *c);

/* Prints an error message and ends the phase. */
void worker_fail(struct worker *w, const char *sentence);

/* The time of CLOCK_MONOTONIC, ns. */
uint64_t now_ns(void);

#endif

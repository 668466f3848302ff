/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One thread of the load: its clients, each a connected UDP socket with one
 * outstanding request, and the loop that serves them.
 */
#ifndef BENCH_WORKER_H
#define BENCH_WORKER_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "options.h"
#include "stats.h"
#include "wire.h"

/* What the threads do together: load every key once, or run the workload. */
struct phase {
	const struct options *o;
	bool loading;
	uint64_t total; /* keys to load or operations to do, 0 = no limit */
	uint64_t taken; /* of them; atomic */
	uint64_t end_ns; /* CLOCK_MONOTONIC, 0 = no limit */
	bool failed;     /* a thread gave up, after a sentence; atomic */
};

struct client {
	TAILQ_ENTRY(client) waiting; /* in the order of their deadlines */
	int fd;
	uint64_t id;    /* of the request that is out; upper 24 bits are the client's number */
	uint64_t since; /* ns: when the request was first sent */
	uint64_t until; /* ns: when it times out */
	unsigned int ops, pad, tries;
	struct wire_op op[WIRE_OPS_MAX]; /* not yet answered */
};

struct worker {
	struct phase *phase;
	struct client *client;
	unsigned int clients;
	struct rng rng;
	struct stats stats;
	TAILQ_HEAD(, client) waiting;
	uint8_t out[WIRE_MAX], in[WIRE_MAX];
};

/*
 * Opens `clients` sockets to the address.  `first` is the number of the first client.
 * 0, or -errno after a sentence; worker_close() in both cases.
 */
int worker_open(struct worker *w, const struct options *o, const struct sockaddr *addr,
		socklen_t addr_len, unsigned int first, unsigned int clients);
void worker_close(struct worker *w);

/* Works on w->phase until it is over.  A pthread start routine. */
void *worker_main(void *worker);

uint64_t now_ns(void);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A request of the load from its draw to its answer, and the client that makes it.
 *
 * An id tells a reply's request: 24 bits of the client's number, 30 of the try, 10 of the
 * request's place among its client's.  A repetition has an id of its own, so that a reply to
 * an earlier try is known to be late.
 */
#ifndef BENCH_REQUEST_H
#define BENCH_REQUEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define REQUEST_KEYS_MAX     100 /* of a batch or a scan's step */
#define REQUEST_PLACE_BITS   10
#define REQUEST_CLIENT_SHIFT 40
#define REQUEST_DEPTH_MAX    (1U << REQUEST_PLACE_BITS)

enum op {
	OP_GET,
	OP_SET,
	OP_DELETE,
	OP_SCAN, /* GETs of keys that are numbered one after the other */
	OP_RMW,	 /* a GET and, when it is answered, a SET of the same keys; never on the wire */
	OPS,
};

struct client;

struct request {
	TAILQ_ENTRY(request) line;  /* free ones, or those that are out in the order of deadlines */
	TAILQ_ENTRY(request) order; /* streams: those of the client in the order they were sent */
	struct client *client;
	uint64_t id;
	uint64_t since;	    /* ns: when it was first sent, or should have been (open loop) */
	uint64_t until;	    /* ns: when it times out */
	uint64_t rmw_since; /* ns: `since` of the GET before this SET; 0: not a SET of an OP_RMW */
	enum op op;
	bool out;	    /* sent, and neither answered nor given up */
	bool counts;	    /* is not of the warm-up */
	bool must;	    /* loading: what the server is too busy for is asked again */
	bool rmw;	    /* a SET of the same keys follows */
	bool insert;	    /* the keys are new: tell the workload when they are there */
	unsigned int first; /* keys that are answered: those stand in front */
	unsigned int keys;  /* that are not yet */
	unsigned int asked; /* of them, in what was sent last: by the protocol's encode() */
	unsigned int sent;  /* bytes of it; xkv only */
	unsigned int tries;
	uint32_t *key; /* first + keys of them; of a scan, only where it starts */
};

TAILQ_HEAD(request_line, request);

struct client {
	int fd;
	unsigned int number;
	unsigned int pad, scan_pad; /* xkv: bytes of payload that a request has at least */
	uint16_t port;		    /* AF_XDP: that it sends from, network byte order */
	bool dirty;		    /* streams: has bytes to send */
	struct request *request;    /* so many as --depth */
	struct request_line order;  /* streams: those that are out */
	struct stream *stream;	    /* streams: transport_tcp.c */
};

/* The i-th key that is not yet answered. */
static inline uint32_t request_key(const struct request *r, unsigned int i)
{
	return r->op == OP_SCAN ? r->key[0] + r->first + i : r->key[r->first + i];
}

/* The i-th of the keys that are not yet answered was; call it with rising i, then
 * request_answered(). */
static inline void request_settle(struct request *r, unsigned int i, unsigned int settled)
{
	uint32_t *key = r->key + r->first, t;

	if (r->op == OP_SCAN)
		return; /* its keys stand nowhere */
	t = key[i];
	key[i] = key[settled];
	key[settled] = t;
}

static inline void request_answered(struct request *r, unsigned int settled)
{
	r->first += settled;
	r->keys -= settled;
}

#endif

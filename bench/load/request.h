/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A request of the load generator, and the client that sends it.
 *
 * The id identifies the request of a reply: 24 bits for the client, 30 for the try, 10 for the
 * index of the request in its client.  Each repeat has a new id, so that a reply to an earlier try
 * is recognised as late.
 */
#ifndef BENCH_REQUEST_H
#define BENCH_REQUEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define REQUEST_KEYS_MAX     100 /* of a batch, or of one request of a scan */
#define REQUEST_PLACE_BITS   10
#define REQUEST_CLIENT_SHIFT 40
#define REQUEST_DEPTH_MAX    (1U << REQUEST_PLACE_BITS)

enum op {
	OP_GET,
	OP_SET,
	OP_DELETE,
	OP_SCAN, /* reads consecutively numbered keys */
	OP_RMW,	 /* read-modify-write: a GET and, after its reply, a SET of the same keys */
	OPS,
};

struct client;

struct request {
	TAILQ_ENTRY(request) line;  /* in worker.free, or in worker.out by deadline */
	TAILQ_ENTRY(request) order; /* streams: in client.order, by the time they were sent */
	struct client *client;
	uint64_t id;
	uint64_t since;	    /* ns: when it was first sent, or was due (open loop) */
	uint64_t until;	    /* ns: when it times out */
	uint64_t rmw_since; /* ns: `since` of the GET before this SET; 0: not a SET of an OP_RMW */
	enum op op;
	bool out;	    /* outstanding: sent, and neither answered nor given up */
	bool counts;	    /* not part of the warm-up */
	bool must;	    /* loading: repeat it if the server is busy */
	bool rmw;	    /* a SET of the same keys follows */
	bool insert;	    /* the keys are new: call workload_inserted() when they are set */
	unsigned int first; /* number of answered keys, which are first in `key` */
	unsigned int keys;  /* number of unanswered keys */
	unsigned int asked; /* of these, the number in the last datagram; set by encode() */
	unsigned int sent;  /* length of the last datagram; xkv only */
	unsigned int tries;
	uint32_t *key; /* first + keys elements; of a scan, only its first key */
};

TAILQ_HEAD(request_line, request);

struct client {
	int fd;
	unsigned int number;
	unsigned int pad, scan_pad; /* xkv: minimum payload of a request, bytes */
	uint16_t port;		    /* AF_XDP: source port, network byte order */
	bool dirty;		    /* streams: has bytes to send */
	struct request *request;    /* --depth of them */
	struct request_line order;  /* streams: the outstanding ones */
	struct stream *stream;	    /* streams: transport_tcp.c */
};

/* The i-th unanswered key. */
static inline uint32_t request_key(const struct request *r, unsigned int i)
{
	return r->op == OP_SCAN ? r->key[0] + r->first + i : r->key[r->first + i];
}

/*
 * Marks the i-th unanswered key as answered, where `settled` keys of the reply were so before.  To
 * be called with increasing i, then request_answered().
 */
static inline void request_settle(struct request *r, unsigned int i, unsigned int settled)
{
	uint32_t *key = r->key + r->first, t;

	if (r->op == OP_SCAN)
		return; /* answered in order; the keys of a scan are not stored */
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

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The protocols that the load speaks: one table of functions each, which make
 * requests and take replies and know nothing of sockets.  All functions are free of
 * state other than what they are given, and thread safe.
 *
 * Replies come from a server that may be broken or hostile: no length in them is
 * believed before it was compared with what is there.
 */
#ifndef BENCH_PROTOCOL_H
#define BENCH_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "options.h"
#include "request.h"
#include "stats.h"

#define DATAGRAM_MAX 2048 /* bytes; room for any datagram and then some */

/* What a reply meant for its request. */
enum outcome {
	AGAIN, /* r->keys keys of it are still to be asked for */
	DONE,
	BROKEN, /* it contradicts the protocol, and was counted as that */
};

struct protocol {
	const char *name;
	bool stream; /* over TCP: replies come in the order of the requests and have no id */

	/*
	 * Writes the request into `buf` (protocol_room() bytes for r->keys) and sets r->asked.
	 * The values of a SET are made of `nonce`.  Returns the length.
	 */
	size_t (*encode)(const struct options *o, uint8_t *buf, struct request *r, uint64_t nonce);

	/* Datagrams: the id that a reply carries.  False if it is no reply. */
	bool (*id)(const uint8_t *buf, size_t len, uint64_t *id);

	/* Streams: bytes of the reply to `r` that `buf` starts with, 0 if it is not yet
	 * complete, -EBADMSG if it can never be one. */
	ssize_t (*measure)(const struct request *r, const uint8_t *buf, size_t len);

	/* Counts what a reply says, and settles the keys that are answered. */
	enum outcome (*take)(const struct options *o, struct stats *s, struct request *r,
			     const uint8_t *buf, size_t len);

	/* A request that any server answers, in at most DATAGRAM_MAX bytes. */
	size_t (*ping)(const struct options *o, uint8_t *buf, uint64_t id);

	/* 1 if this answers the ping, 0 if not (yet), -errno after a sentence if it is a refusal.
	 */
	int (*pong)(const uint8_t *buf, size_t len, uint64_t id);
};

extern const struct protocol protocol_xkv, protocol_resp, protocol_memcached;

/* The one that the options name. */
const struct protocol *protocol_of(const struct options *o);

/* Bytes that encode() writes at most for a request with so many keys. */
size_t protocol_room(const struct protocol *p, unsigned int keys);

/* For the tables: count a value that came back, and check it if asked to. */
void protocol_value(const struct options *o, struct stats *s, uint32_t key, const uint8_t *value,
		    uint32_t len);

/* For the tables: count a reply that contradicts the protocol.  BROKEN. */
enum outcome protocol_broken(struct stats *s);

#endif

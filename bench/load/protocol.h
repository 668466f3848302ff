/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The protocols of the load generator.  Each is a table of functions that encode requests and parse
 * replies, independent of sockets.  The functions have no state of their own and are thread safe.
 *
 * The server may be broken or hostile: every length in a reply is checked against the bytes that
 * were received.
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

#define DATAGRAM_MAX 2048 /* bytes; more than any datagram has */

/* The result of parsing a reply. */
enum outcome {
	AGAIN, /* r->keys keys of the request were not answered and have to be requested again */
	DONE,
	REFUSED, /* all keys that were not answered are, with an error, which was counted */
	BROKEN,	 /* the reply violates the protocol, and was counted as such */
};

struct protocol {
	const char *name;
	bool stream; /* over TCP: replies arrive in the order of the requests and have no id */

	/*
	 * Writes the request into `buf` (protocol_room() bytes) and sets r->asked.
	 * `nonce` makes the values of a SET unique.  Returns the length in bytes.
	 */
	size_t (*encode)(const struct options *o, uint8_t *buf, struct request *r, uint64_t nonce);

	/* Datagrams: reads the id of a reply.  False if it is not a reply. */
	bool (*id)(const uint8_t *buf, size_t len, uint64_t *id);

	/*
	 * Streams: the length of the reply to `r` at the start of `buf`, 0 if it is not complete
	 * yet, -EBADMSG if it is not a valid reply.
	 */
	ssize_t (*measure)(const struct request *r, const uint8_t *buf, size_t len);

	/* Parses a complete reply: counts its results and settles the answered keys. */
	enum outcome (*take)(const struct options *o, struct stats *s, struct request *r,
			     const uint8_t *buf, size_t len);

	/* Writes a request that any server answers, of at most DATAGRAM_MAX bytes. */
	size_t (*ping)(const struct options *o, uint8_t *buf, uint64_t id);

	/*
	 * 1 if these bytes answer the ping, 0 if not (yet), -errno after an error message if the
	 * server refuses us.
	 */
	int (*pong)(const uint8_t *buf, size_t len, uint64_t id);
};

extern const struct protocol protocol_xkv, protocol_resp, protocol_memcached;

/* The protocol of the options. */
const struct protocol *protocol_of(const struct options *o);

/* Upper bound of the bytes that encode() writes for the request. */
size_t protocol_room(const struct protocol *p, const struct options *o, const struct request *r);

/* For implementations: counts a received value, and checks it with --verify. */
void protocol_value(const struct options *o, struct stats *s, uint32_t key, const uint8_t *value,
		    uint32_t len);

/* For implementations: counts a reply that violates the protocol.  Returns BROKEN. */
enum outcome protocol_broken(struct stats *s);

#endif

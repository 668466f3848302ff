/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A server on loopback that answers as the test at hand wants, and clients of it, for tests of
 * libxkv.  It builds replies from bpf/proto.h alone, independently of the library, which is only
 * used through its public header.
 */
#ifndef XKV_TEST_FAKESERVER_H
#define XKV_TEST_FAKESERVER_H

#include <stdatomic.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "bpf/proto.h"
#include "client/xkv.h"

struct datagram {
	size_t len;
	uint8_t byte[XKV_PAYLOAD_MAX4 + 1];
};

struct fake;
typedef void handler_fn(struct fake *f, const struct datagram *req);

struct fake {
	int fd, stop;
	unsigned int port;
	pthread_t thread;
	handler_fn *handler;
	struct sockaddr_storage client;
	socklen_t client_len;
	handler_fn *prove; /* of a SESSION, which the other does not get to see */
	atomic_uint received;
	/* for the handlers */
	struct datagram first, last, held, reply;
	const struct vector *vector;
	unsigned int limit;
	uint64_t value;
};

extern struct fake server; /* the one that start() starts */

/* The server begins to answer, at any port or at this one; its port is in server.port. */
void start_at(handler_fn *handler, int family, unsigned int port);
void start(handler_fn *handler);
void stop(void);

/* To the client that asked last. */
void send_bytes(struct fake *f, const struct datagram *d);

struct xkv_hdr *header(struct datagram *d);

/* A reply to `req`, and one result after the other; `value` NULL: it has none. */
void reply_begin(struct datagram *d, const struct datagram *req);
void reply_result(struct datagram *d, unsigned int opcode, unsigned int status, const void *value,
		  size_t len);

/* An operation of a request, as an independent reader finds it. */
struct found {
	struct xkv_op op;
	const uint8_t *key, *value;
	size_t value_len;
	uint64_t ttl, version;
};

/* All of these bytes are 0. */
bool zeros(const uint8_t *p, size_t len);

/* Reads the operation at *at; false if a struct xkv_cmd could not express it. */
bool read_op(const uint8_t *p, size_t len, size_t *at, struct found *o);

/* Where the session of a request is, if it has one, and where its operations start. */
size_t session_at(const uint8_t *p);
size_t ops_at(const uint8_t *p);

/* Proves a session: with the last three bytes "yes". */
void give_session(struct fake *f, const struct datagram *req);

/* The value that this server has under a key: the key, twice. */
size_t value_of(const struct found *o, uint8_t *value);

/* Builds a well-behaved reply to at most `limit` operations. */
void reply_to(struct datagram *d, const struct datagram *req, unsigned int limit);

/* The handler of a server that does all that it is asked for. */
void answer(struct fake *f, const struct datagram *req);

/* A client of the server.  close_once() ends both. */
struct xkv *open_with(const struct xkv_options *opts);
void close_once(struct xkv *h);

/* A timeout that a slow machine does not reach by chance. */
static const struct xkv_options patient = { .timeout_ms = 20000, .retry_ms = 20000 };
/* For what is meant to be repeated. */
static const struct xkv_options eager = { .timeout_ms = 20000, .retry_ms = 2, .retries = 1000 };

uint64_t now_ms(void);

void assert_value(const struct xkv_reply *r, const char *text);

/* GETs a key from a server that has value_of(). */
void get_ok(struct xkv *h, const char *key, struct xkv_reply *r);

/* For xkv_scan(): puts the reply into the struct xkv_cmd that *arg points to, and moves that on. */
int take_scanned(void *arg, const char *key, size_t key_len, const struct xkv_reply *reply);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* Where an upstream is, as the directive `upstream` says it:
 *
 *	redis://[[USER]:PASSWORD@]HOST[:PORT]		rediss:// with TLS
 *	unix://[[USER]:PASSWORD@]/PATH
 *	redis-sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/NAME	rediss-sentinel://
 *	redis-cluster://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]		rediss-cluster://
 *
 * With Sentinel the server is the master that has this name; user and password are for that.  Of a
 * cluster these are some of its nodes (seeds), which know the others.
 */
#ifndef XKV_UPSTREAM_ADDRESS_H
#define XKV_UPSTREAM_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

struct ssl_ctx_st;

#define UPSTREAM_HOST_MAX  255
#define UPSTREAM_WORD_MAX  511
#define UPSTREAM_ADDRESSES 8

struct upstream_endpoint {
	char host[UPSTREAM_HOST_MAX + 1], port[8];
};

struct upstream_address {
	bool is_unix, is_tls;
	bool is_cluster;
	char host[UPSTREAM_HOST_MAX + 1]; /* a name, an address, or the path of a Unix socket */
	char port[8];
	char user[UPSTREAM_WORD_MAX + 1], password[UPSTREAM_WORD_MAX + 1]; /* "" = none */
	char text[UPSTREAM_HOST_MAX + 16];  /* "HOST:PORT" or the path, for people */
	char master[UPSTREAM_WORD_MAX + 1]; /* its name, which Sentinels know; "" = none do */
	unsigned int endpoints;
	struct upstream_endpoint endpoint[UPSTREAM_ADDRESSES]; /* Sentinels, or seeds */
	/* of its user: */
	struct ssl_ctx_st *tls; /* of `is_tls` */
	unsigned int found;	/* addresses of the host (resolve.h) */
	unsigned int turn;	/* the one to try, modulo `found` */
	struct {
		struct sockaddr_storage addr;
		socklen_t len;
	} at[UPSTREAM_ADDRESSES];
};

/* Parses a URL.  NULL, or what is wrong with it: a sentence without its secrets. */
const char *upstream_address(const char *url, struct upstream_address *out);
/* The server is there now.  0, or -EINVAL: that is no address. */
int upstream_move(struct upstream_address *a, const char *host, const char *port);
/* Its password is the first line of this file.  False: it cannot be read, and errno says why. */
bool upstream_password(const char *path, struct upstream_address *a);

#endif

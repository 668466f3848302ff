// SPDX-License-Identifier: BSD-2-Clause
/* See probe.h. */
#include "probe.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "say.h"

#define PINGS 3

static int resolve(const struct options *o, const struct protocol *p, struct server_address *server)
{
	struct addrinfo hints = { .ai_socktype = p->stream ? SOCK_STREAM : SOCK_DGRAM }, *list;
	int err = getaddrinfo(o->host, o->port, &hints, &list);

	if (err) {
		say("host %s: %s", o->host, gai_strerror(err));
		return -EINVAL;
	}
	memcpy(&server->addr, list->ai_addr, list->ai_addrlen);
	server->len = list->ai_addrlen;
	freeaddrinfo(list);
	return 0;
}

static int nobody(const struct options *o, const struct protocol *p)
{
	say("nothing listens on %s port %s of %s: start the server, or give -h and -p",
	    p->stream ? "TCP" : "UDP", o->port, o->host);
	return -ECONNREFUSED;
}

/* As protocol.pong(); a stream's answer may come in pieces. */
static int take_pong(const struct options *o, const struct protocol *p, int fd, uint64_t id)
{
	uint8_t buf[DATAGRAM_MAX];
	size_t have = 0;
	int answered = 0;

	while (!answered && have < sizeof(buf)) {
		ssize_t n = recv(fd, buf + have, sizeof(buf) - have, 0);

		if (n < 0 && errno == ECONNREFUSED)
			return nobody(o, p);
		if (n <= 0)
			return 0;
		have = p->stream ? have + n : (size_t)n;
		answered = p->pong(buf, have, id);
		if (!p->stream)
			break;
	}
	return answered;
}

static int ping(const struct options *o, const struct protocol *p, int fd)
{
	uint8_t buf[DATAGRAM_MAX];
	int answered = 0;

	for (uint64_t id = 1; id <= PINGS && !answered && !interrupted; id++) {
		size_t len = p->ping(o, buf, id);

		/* A pending ICMP error is reported by whichever call comes first. */
		if (send(fd, buf, len, 0) < 0 && errno != ECONNREFUSED) {
			answered = -errno;
			say("cannot send to %s: %s", o->host, strerror(-answered));
			return answered;
		}
		answered = take_pong(o, p, fd, id);
	}
	if (!answered)
		say("no answer from %s port %s of %s to %d pings: does a server for --protocol %s "
		    "run there, and may this address ask it?",
		    p->stream ? "TCP" : "UDP", o->port, o->host, PINGS, p->name);
	return answered > 0 ? 0 : answered ? answered : -ETIMEDOUT;
}

/* --timeout is for all that may wait: to connect, to send and to receive. */
static int limit_waits(const struct options *o, int fd)
{
	struct timeval wait = { .tv_sec = o->timeout_ms / 1000,
				.tv_usec = o->timeout_ms % 1000 * 1000 };

	return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) ||
	       setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
}

/* Says why there is no connection. */
static void unreachable(const struct options *o, const struct protocol *p, int err)
{
	if (err == -ECONNREFUSED)
		nobody(o, p);
	else if (err == -EINPROGRESS) /* what connect() says of SO_SNDTIMEO */
		say("%s does not take a connection on TCP port %s within %u ms: is it too busy, "
		    "or a firewall in between?  --timeout says how long to wait",
		    o->host, o->port, o->timeout_ms);
	else
		say("cannot connect to %s: %s", o->host, strerror(-err));
}

int probe_server(const struct options *o, const struct protocol *p, struct server_address *server)
{
	int fd, err = resolve(o, p, server);

	if (err)
		return err;
	fd = socket(server->addr.ss_family, (p->stream ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC,
		    0);
	if (fd >= 0 && !limit_waits(o, fd) &&
	    !connect(fd, (struct sockaddr *)&server->addr, server->len)) {
		err = ping(o, p, fd);
	} else {
		err = -errno;
		unreachable(o, p, err);
	}
	if (fd >= 0)
		close(fd);
	return err;
}

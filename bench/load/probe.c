// SPDX-License-Identifier: BSD-2-Clause
/* See probe.h. */
#include "probe.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

#include "bench/common/message.h"

#define PINGS	    3
#define UNCONNECTED (-EINPROGRESS) /* error of connect() after SO_SNDTIMEO */
#define REFUSED	    (-EBADMSG)	   /* a server is there and refuses us; a message was printed */

/* 1, 0 if no answer came in time, or -errno; a stream's answer may come in pieces. */
static int take_pong(const struct protocol *p, int fd, uint64_t id)
{
	uint8_t buf[DATAGRAM_MAX];
	size_t have = 0;
	int answered = 0;

	while (!answered && have < sizeof(buf)) {
		ssize_t n = recv(fd, buf + have, sizeof(buf) - have, 0);

		if (n < 0 && errno == ECONNREFUSED)
			return -ECONNREFUSED;
		if (n <= 0)
			return 0;
		have = p->stream ? have + n : (size_t)n;
		answered = p->pong(buf, have, id);
		if (!p->stream)
			break;
	}
	return answered < 0 ? REFUSED : answered;
}

/* 0, or -errno: -ETIMEDOUT if no ping was answered. */
static int ping(const struct options *o, const struct protocol *p, int fd)
{
	uint8_t buf[DATAGRAM_MAX];
	int answered = 0;

	for (uint64_t id = 1; id <= PINGS && !answered && !interrupted; id++) {
		size_t len = p->ping(o, buf, id);

		/* A pending ICMP error is reported by whichever call comes first. */
		if (send(fd, buf, len, 0) < 0 && errno != ECONNREFUSED)
			return -errno;
		answered = take_pong(p, fd, id);
	}
	return answered > 0 ? 0 : answered ? answered : -ETIMEDOUT;
}

/* --timeout limits all calls that may block: connecting, sending, receiving. */
static int limit_waits(const struct options *o, int fd)
{
	struct timeval wait = { .tv_sec = o->timeout_ms / 1000,
				.tv_usec = o->timeout_ms % 1000 * 1000 };

	return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) ||
	       setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
}

/* 0 if a server answers at this address, or -errno. */
static int try_address(const struct options *o, const struct protocol *p,
		       const struct server_address *server)
{
	int err, fd = socket(server->addr.ss_family,
			     (p->stream ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (limit_waits(o, fd) || connect(fd, (struct sockaddr *)&server->addr, server->len))
		err = errno == ETIMEDOUT ? UNCONNECTED : -errno;
	else
		err = ping(o, p, fd);
	close(fd);
	return err;
}

/* Ranks errors by how far the server was reached. */
static unsigned int nearness(int err)
{
	static const int order[] = { UNCONNECTED, -ECONNREFUSED, -ETIMEDOUT, REFUSED, 0 };
	unsigned int i = sizeof(order) / sizeof(order[0]);

	while (i && order[i - 1] != err)
		i--;
	return i;
}

/*
 * Tries the addresses of the host until a server answers, even by refusing us: localhost may be ::1
 * first, and the server only listen on 127.0.0.1.  If none answers, reports the error of the
 * address that came nearest to an answer.
 */
static int try_all(const struct options *o, const struct protocol *p, const struct addrinfo *list,
		   struct server_address *server)
{
	int best = -EHOSTUNREACH;

	for (const struct addrinfo *a = list; a && !interrupted; a = a->ai_next) {
		int err;

		memcpy(&server->addr, a->ai_addr, a->ai_addrlen);
		server->len = a->ai_addrlen;
		err = try_address(o, p, server);
		if (a == list || nearness(err) > nearness(best))
			best = err;
		if (!err || err == REFUSED)
			break;
	}
	return best;
}

static void explain(const struct options *o, const struct protocol *p, int err)
{
	const char *layer = p->stream ? "TCP" : "UDP";

	if (err == -ECONNREFUSED)
		message("nothing listens on %s port %s of %s: start the server, or give -h and -p",
			layer, o->port, o->host);
	else if (err == UNCONNECTED)
		message("%s does not take a connection on TCP port %s within %u ms: is it too "
			"busy, or a firewall in between?  --timeout says how long to wait",
			o->host, o->port, o->timeout_ms);
	else if (err == -ETIMEDOUT)
		message("no answer from %s port %s of %s to %d pings: does a server for --protocol "
			"%s run there, and may this address ask it?",
			layer, o->port, o->host, PINGS, p->name);
	else if (err != REFUSED)
		message("cannot reach %s: %s", o->host, strerror(-err));
}

int probe_server(const struct options *o, const struct protocol *p, struct server_address *server)
{
	struct addrinfo hints = { .ai_socktype = p->stream ? SOCK_STREAM : SOCK_DGRAM }, *list;
	int err = getaddrinfo(o->host, o->port, &hints, &list);

	if (err) {
		message("host %s: %s", o->host, gai_strerror(err));
		return -EINVAL;
	}
	err = try_all(o, p, list, server);
	freeaddrinfo(list);
	if (err && !interrupted)
		explain(o, p, err);
	return err;
}

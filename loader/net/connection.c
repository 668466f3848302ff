/* SPDX-License-Identifier: BSD-2-Clause */
/* Connections of plain TCP and of Unix sockets. */
#include "connection.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "util/address.h"
#include "util/log.h"

#define DROPPED_BYTES 65536 /* in one call, of DROPPED_READS at most */
#define DROPPED_READS 64
#define TLS_MEMORY    (14 << 10) /* of an idle connection with OpenSSL 3.0 */

/* ---- the transports ------------------------------------------------------ */

static ssize_t socket_read(struct connection *conn, void *buffer, size_t len)
{
	return read(conn->fd, buffer, len);
}

static ssize_t socket_writev(struct connection *conn, const struct iovec *iov, int count)
{
	return writev(conn->fd, iov, count);
}

static void tcp_finish(struct connection *conn)
{
	shutdown(conn->fd, SHUT_WR);
	for (unsigned int i = 0; i < DROPPED_READS; i++)
		if (recv(conn->fd, NULL, DROPPED_BYTES, MSG_DONTWAIT | MSG_TRUNC) <= 0)
			break;
}

/* As tcp_finish(), but Unix sockets take no MSG_TRUNC. */
static void unix_finish(struct connection *conn)
{
	char dropped[4096];

	shutdown(conn->fd, SHUT_WR);
	for (unsigned int i = 0; i < DROPPED_READS; i++)
		if (recv(conn->fd, dropped, sizeof(dropped), MSG_DONTWAIT) <= 0)
			break;
}

static void socket_close(struct connection *conn)
{
	close(conn->fd);
	conn->fd = -1;
}

const struct transport transport_tcp = {
	.read = socket_read, .writev = socket_writev, .finish = tcp_finish, .close = socket_close
};

static const struct transport unix_socket = {
	.read = socket_read, .writev = socket_writev, .finish = unix_finish, .close = socket_close
};

static void pair_close(struct connection *conn)
{
	free(conn->peer);
	conn->peer = NULL;
	socket_close(conn);
}

static const struct transport pair = {
	.read = socket_read, .writev = socket_writev, .finish = unix_finish, .close = pair_close
};

void connection_tcp(struct connection *conn, int fd, unsigned int keepalive)
{
	int on = 1, idle = (int)keepalive, interval = idle / 3 ? idle / 3 : 1, count = 3;
	bool ok = !setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));

	if (keepalive)
		ok = ok && !setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) &&
		     !setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle)) &&
		     !setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval)) &&
		     !setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	if (!ok)
		log_verbose("cannot set TCP options of a client: %s", strerror(errno));
	*conn = (struct connection){ .transport = &transport_tcp, .fd = fd };
}

void connection_unix(struct connection *conn, int fd)
{
	*conn = (struct connection){ .transport = &unix_socket, .fd = fd };
}

bool connection_pair(struct connection *conn, int fd, const struct sockaddr_storage *peer)
{
	*conn = (struct connection){ .transport = &pair, .fd = fd };
	conn->peer = malloc(sizeof(*conn->peer));
	if (!conn->peer) {
		pair_close(conn);
		return false;
	}
	*conn->peer = *peer;
	return true;
}

void connection_resets(struct connection *conn)
{
	const struct linger reset = { .l_onoff = 1 };

	setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
}

size_t connection_memory(const struct connection *conn)
{
	return conn->ssl ? TLS_MEMORY + conn->held->len : 0;
}

const char *connection_error(const struct connection *conn)
{
	int error = conn->broken ? conn->broken : errno;

	return conn->error ? conn->error : strerror(error);
}

bool connection_is_unix(const struct connection *conn)
{
	return conn->transport == &unix_socket;
}

/* ---- the peer ------------------------------------------------------------ */

enum peer_state connection_peer(const struct connection *conn)
{
	struct pollfd p = { .fd = conn->fd, .events = POLLRDHUP };

	if (poll(&p, 1, 0) <= 0)
		return PEER_THERE;
	if (p.revents & (POLLERR | POLLHUP | POLLNVAL))
		return PEER_GONE;
	return conn->transport == &unix_socket || conn->transport == &pair ? PEER_SENDS_NO_MORE
									   : PEER_MAY_BE_GONE;
}

bool connection_is_local(const struct connection *conn)
{
	struct sockaddr_storage addr;
	socklen_t len = sizeof(addr);

	if (conn->peer)
		return address_is_loopback((struct sockaddr *)conn->peer);
	return !getpeername(conn->fd, (struct sockaddr *)&addr, &len) &&
	       (addr.ss_family == AF_UNIX || address_is_loopback((struct sockaddr *)&addr));
}

void connection_address(const struct connection *conn, bool peer, char text[ADDRESS_TEXT])
{
	struct sockaddr_storage addr = { .ss_family = AF_UNSPEC };
	socklen_t len = sizeof(addr);

	if (peer && conn->peer) {
		address_text((struct sockaddr *)conn->peer, text);
		return;
	}
	/* The peer's end of a Unix socket has no name. */
	peer &= !connection_is_unix(conn);
	if (peer ? getpeername(conn->fd, (struct sockaddr *)&addr, &len)
		 : getsockname(conn->fd, (struct sockaddr *)&addr, &len))
		addr.ss_family = AF_UNSPEC;
	address_text((struct sockaddr *)&addr, text);
}

void address_text(const struct sockaddr *addr, char text[ADDRESS_TEXT])
{
	char host[INET6_ADDRSTRLEN] = "?";
	unsigned int port = 0;

	if (addr->sa_family == AF_UNIX) {
		snprintf(text, ADDRESS_TEXT, "%s:0", ((const struct sockaddr_un *)addr)->sun_path);
		return;
	}
	if (addr->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)addr;

		inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		port = ntohs(in->sin_port);
	} else if (addr->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;

		bool mapped = IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr);

		inet_ntop(mapped ? AF_INET : AF_INET6, in6->sin6_addr.s6_addr + (mapped ? 12 : 0),
			  host, sizeof(host));
		port = ntohs(in6->sin6_port);
	}
	snprintf(text, ADDRESS_TEXT, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
}

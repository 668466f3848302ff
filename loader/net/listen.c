/* SPDX-License-Identifier: BSD-2-Clause */
/* Listening, and accepting clients. */
#include "listen.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "port_hint.h"
#include "server_state.h"
#include "tls.h"
#include "unix.h"
#include "util/handed.h"
#include "util/log.h"

#define ACCEPTS_A_ROUND 100
#define ACCEPT_PAUSE	0.5 /* seconds without accepting when file descriptors ran out */

/* --- accepting --- */

void sockets_start(struct server *s)
{
	for (unsigned int i = 0; i < s->socket_count; i++)
		ev_io_start(s->loop, &s->sockets[i].io);
}

void sockets_stop(struct server *s)
{
	for (unsigned int i = 0; i < s->socket_count; i++)
		ev_io_stop(s->loop, &s->sockets[i].io);
}

static void on_accept_pause_end(struct ev_loop *loop, ev_timer *w, int events)
{
	worker_take_all(((struct server *)w->data)->worker[0]);
	sockets_start(w->data);
}

/* A connection that cannot be accepted stays readable: without a pause the loop would spin. */
static void accept_pause(struct server *s, int error)
{
	log_repeated(
		"cannot accept a client: %s; pausing for %.1f s (raise the limit of open files)",
		strerror(error), ACCEPT_PAUSE);
	sockets_stop(s);
	ev_timer_set(&s->accept_pause, ACCEPT_PAUSE, 0.);
	ev_timer_start(s->loop, &s->accept_pause);
}

/* One log line for all connections that were refused since the last one. */
static void log_refused(struct server *s, const struct sockaddr *peer)
{
	unsigned int count = log_rate(&s->refused);
	char address[ADDRESS_TEXT];

	if (!count)
		return;
	address_text(peer, address);
	log_notice("refused %u TCP connection%s by address, the last from %s (`allow`, "
		   "`protected-mode`)",
		   count, count == 1 ? "" : "s", address);
}

/*
 * Sends the client an error and closes.  Best effort: if it cannot be sent, the client sees the
 * connection closed.  With TLS nothing can be said before a handshake, which is not worth its time.
 */
static void turn_away(const struct server_socket *l, struct connection *conn, const char *why)
{
	struct reply reply;
	struct iovec iov;

	l->srv->worker[0]->stat[STAT_REJECTED]++;
	if (l->kind == LISTEN_TLS) {
		conn->transport->close(conn);
		return;
	}
	reply_init(&reply, PROTOCOL_RESP2, 0);
	reply_error(&reply, "%s", why);
	if (conn->transport->writev(conn, &iov, outbox_iov(&reply.out, &iov, 1)) < 0)
		log_debug("a client that was turned away: %s", strerror(errno));
	conn->transport->finish(conn);
	conn->transport->close(conn);
	reply_free(&reply);
}

static void connection_of(struct connection *conn, const struct server_socket *l, int fd)
{
	if (l->kind == LISTEN_UNIX) {
		log_verbose("Accepted connection to %s", l->srv->cfg->unixsocket);
		connection_unix(conn, fd);
	} else {
		connection_tcp(conn, fd, l->srv->cfg->tcp_keepalive);
	}
}

/* Handshakes take the places that clients leave free, and are closed for newer connections. */
static bool listen_has_room(struct server *s)
{
	unsigned int clients = server_client_count(s), max = server_clients_max(s);
	struct worker *first = s->worker[0];

	if (clients >= max)
		return false;
	for (unsigned int i = 0; i < s->worker_count; i++)
		if (handshakes_since(s->worker[i]) < handshakes_since(first))
			first = s->worker[i];
	return clients + server_handshake_count(s) < max ||
	       handshake_drop_oldest(first, "maxclients is reached");
}

static void accepted(const struct server_socket *l, struct connection conn,
		     const struct sockaddr *peer)
{
	struct server *s = l->srv;
	struct worker *w = worker_least(s);
	const char *why = s->opt.refuse ? s->opt.refuse(s->opt.net_arg, peer) : NULL;

	if (why) {
		w->stat[STAT_REFUSED]++;
		log_refused(s, peer);
		turn_away(l, &conn, why);
	} else if (!listen_has_room(s)) {
		turn_away(l, &conn, "ERR max number of clients reached");
	} else if (l->kind == LISTEN_TLS) {
		handshake_new(w, conn, s->tls);
	} else {
		client_new(w, conn);
	}
	worker_wake(w);
}

void server_adopt(struct server *s, int fd, const struct sockaddr_storage *peer)
{
	const struct server_socket none = { .kind = LISTEN_UNIX, .srv = s };
	struct connection conn;

	worker_take_all(s->worker[0]);
	if (connection_pair(&conn, fd, peer))
		accepted(&none, conn, (const struct sockaddr *)peer);
}

static void on_connection(struct ev_loop *loop, ev_io *w, int events)
{
	struct server_socket *l = w->data;

	worker_take_all(l->srv->worker[0]);
	for (unsigned int i = 0; i < ACCEPTS_A_ROUND; i++) {
		struct sockaddr_storage peer;
		socklen_t len = sizeof(peer);
		struct connection conn;
		int fd = accept4(w->fd, (struct sockaddr *)&peer, &len,
				 SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0) {
			connection_of(&conn, l, fd);
			accepted(l, conn, (struct sockaddr *)&peer);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
			accept_pause(l->srv, errno);
		if (errno != EINTR && errno != ECONNABORTED)
			return; /* EAGAIN, or an error of a connection that is gone (accept(2)) */
	}
}

/* --- listening --- */

static void add_socket(struct server *s, enum server_socket_kind kind, int fd)
{
	struct server_socket *l = &s->sockets[s->socket_count++];

	*l = (struct server_socket){ .kind = kind, .srv = s };
	ev_io_init(&l->io, on_connection, fd, EV_READ);
	l->io.data = l;
}

/*
 * Its clients inherit SO_OOBINLINE: a byte that is announced to be urgent is one as any other (RFC
 * 6093).  Else the kernel takes it out of the stream, after the driver has answered on the
 * connection (bpf/tcp.h) a wrong one.
 */
static int try_listen(struct server *s, enum server_socket_kind kind, const struct addrinfo *ai,
		      bool from_interface)
{
	int on = 1, ret, fd = handed_claim(SOCK_STREAM, ai->ai_addr, ai->ai_addrlen);
	bool bound = fd >= 0;

	if (!bound)
		fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	ret = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	      setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on));
	if (!ret && !bound && ai->ai_family == AF_INET6)
		ret = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	/* An IPv6 address of an interface that just came up may still be tentative. */
	if (!ret && from_interface)
		ret = ai->ai_family == AF_INET6
			      ? setsockopt(fd, IPPROTO_IPV6, IPV6_FREEBIND, &on, sizeof(on))
			      : setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof(on));
	if (!ret && !bound)
		ret = bind(fd, ai->ai_addr, ai->ai_addrlen);
	if (!ret)
		ret = listen(fd, (int)s->cfg->tcp_backlog);
	if (ret) {
		ret = -errno;
		close(fd);
		return ret;
	}
	add_socket(s, kind, fd);
	return 0;
}

/* Listens on one address; a leading '-' means that it may be missing. */
static int listen_on(struct server *s, enum server_socket_kind kind, const char *address,
		     bool from_interface, char *err, size_t err_len)
{
	unsigned int number = kind == LISTEN_TLS ? s->cfg->tls_port : s->cfg->port;
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
				  .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV };
	bool optional = address[0] == '-';
	const char *host = address + optional;
	char port[8], hint[160] = "";
	struct addrinfo *ai;
	int ret;

	if (s->socket_count == SERVER_SOCKETS_MAX) {
		snprintf(err, err_len, "more than %d addresses to listen on; name some with `bind`",
			 SERVER_SOCKETS_MAX);
		return -E2BIG;
	}
	if (strcmp(host, "*") == 0)
		host = "0.0.0.0";
	else if (strcmp(host, "::*") == 0)
		host = "::";
	snprintf(port, sizeof(port), "%u", number);
	ret = getaddrinfo(host, port, &hints, &ai);
	if (ret) {
		snprintf(err, err_len, "cannot listen on %s: %s", host, gai_strerror(ret));
		return -EINVAL;
	}
	ret = try_listen(s, kind, ai, from_interface);
	freeaddrinfo(ai);
	if (!ret) {
		log_verbose("listening on %s port %u", host, number);
		return 0;
	}
	if (optional && (ret == -EADDRNOTAVAIL || ret == -EAFNOSUPPORT || ret == -EPROTONOSUPPORT))
		return 0;
	if (ret == -EADDRINUSE && !s->following_addresses)
		port_hint(hint, sizeof(hint), true, number);
	if (ret == -EACCES)
		snprintf(hint, sizeof(hint), ": CAP_NET_BIND_SERVICE is needed below %u",
			 IPPORT_RESERVED);
	if (ret == -EADDRNOTAVAIL)
		snprintf(hint, sizeof(hint), ": no interface has it (bind -%s does without)", host);
	snprintf(err, err_len, "cannot listen on %s port %u: %s%s", host, number, strerror(-ret),
		 hint);
	return ret;
}

/* The addresses that the interface, or what it is a port of, has now. */
static int listen_on_interface(struct server *s, enum server_socket_kind kind, char *err,
			       size_t err_len)
{
	char address[NI_MAXHOST];
	struct ifaddrs *list;
	int ret = 0;

	if (getifaddrs(&list)) {
		ret = -errno;
		snprintf(err, err_len, "cannot list network addresses: %s", strerror(-ret));
		return ret;
	}
	for (struct ifaddrs *i = list; i && !ret; i = i->ifa_next) {
		int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;

		if ((family != AF_INET && family != AF_INET6) ||
		    !s->opt.listens(s->opt.net_arg, if_nametoindex(i->ifa_name)))
			continue;
		if (getnameinfo(i->ifa_addr,
				family == AF_INET ? sizeof(struct sockaddr_in)
						  : sizeof(struct sockaddr_in6),
				address, sizeof(address), NULL, 0, NI_NUMERICHOST))
			continue;
		if (strcmp(address, "127.0.0.1") != 0 && strcmp(address, "::1") != 0)
			ret = listen_on(s, kind, address, true, err, err_len);
		if (ret == -EADDRINUSE && s->following_addresses)
			ret = 0; /* by this server, already */
	}
	freeifaddrs(list);
	return ret;
}

bool sockets_follow(const struct server *s)
{
	return !s->cfg->bind_count && s->opt.listens;
}

/* On all addresses, at the port for TCP or TLS. */
static int listen_all(struct server *s, enum server_socket_kind kind, char *err, size_t err_len)
{
	static const char *const loopback[] = { "127.0.0.1", "-::1" };
	const struct config *cfg = s->cfg;
	unsigned int before = s->socket_count;
	int ret = 0;

	for (unsigned int i = 0; i < cfg->bind_count && !ret; i++)
		ret = listen_on(s, kind, cfg->bind[i], false, err, err_len);
	for (unsigned int i = 0; i < 2 && !cfg->bind_count && !ret; i++)
		ret = listen_on(s, kind, loopback[i], false, err, err_len);
	if (!ret && sockets_follow(s))
		ret = listen_on_interface(s, kind, err, err_len);
	if (!ret && s->socket_count == before) {
		snprintf(err, err_len, "none of the addresses of `bind` can be listened on");
		ret = -EADDRNOTAVAIL;
	}
	return ret;
}

static int listen_unix(struct server *s, char *err, size_t err_len)
{
	const struct config *cfg = s->cfg;
	int fd = unix_listen(cfg->unixsocket, cfg->unixsocketperm, (int)cfg->tcp_backlog, err,
			     err_len);

	if (fd >= 0)
		add_socket(s, LISTEN_UNIX, fd);
	return fd < 0 ? fd : 0;
}

static int listen_tls(struct server *s, char *err, size_t err_len)
{
	s->tls = tls_context_new(s->cfg, err, err_len);
	return s->tls ? listen_all(s, LISTEN_TLS, err, err_len) : -EINVAL;
}

int server_listen(struct server *s, char *err, size_t err_len)
{
	int ret = 0;

	/* The first one: there are always few enough sockets for it. */
	if (s->cfg->unixsocket[0])
		ret = listen_unix(s, err, err_len);
	if (!ret && s->cfg->tls_port)
		ret = listen_tls(s, err, err_len);
	if (!ret && s->cfg->port)
		ret = listen_all(s, LISTEN_TCP, err, err_len);
	return ret;
}

void sockets_close(struct server *s)
{
	while (s->socket_count) {
		struct server_socket *l = &s->sockets[--s->socket_count];

		ev_io_stop(s->loop, &l->io);
		close(l->io.fd);
		if (l->kind == LISTEN_UNIX && !s->succeeded)
			unix_remove(s->cfg->unixsocket);
	}
}

void server_follow_addresses(struct server *s)
{
	unsigned int before = s->socket_count;
	char err[256];

	if (!sockets_follow(s))
		return;
	s->following_addresses = true;
	if (listen_on_interface(s, LISTEN_TCP, err, sizeof(err)))
		log_warning("%s", err);
	if (s->tls && listen_on_interface(s, LISTEN_TLS, err, sizeof(err)))
		log_warning("%s", err);
	for (unsigned int i = before; i < s->socket_count; i++)
		ev_io_start(s->loop, &s->sockets[i].io);
}

void sockets_init(struct server *s)
{
	ev_init(&s->accept_pause, on_accept_pause_end);
	s->accept_pause.data = s;
}

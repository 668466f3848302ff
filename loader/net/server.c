/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What there is once per process: listeners, timers, signals, `save` rules, active expiry, and
 * shutdown.
 */
#include "server.h"

#include <errno.h>
#include <ifaddrs.h>
#include <malloc.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "executor.h"
#include "persist/snapshot.h"
#include "persist/writelog.h"
#include "port_hint.h"
#include "tls.h"
#include "unix.h"
#include "util/clock.h"
#include "util/files.h"
#include "util/log.h"
#include "util/machine.h"

#define ACCEPTS_A_ROUND 100
#define ACCEPT_PAUSE	0.5 /* seconds without accepting when file descriptors ran out */
#define FDS_RESERVE	32  /* snapshots, CONFIG REWRITE, programs: what is open at times */
#define FDS_UNKNOWN	128 /* open files where /proc does not tell */
#define SAVE_RETRY	5   /* seconds before a background save that failed is tried again */

/* Active expiry: 2 % of one CPU, or 25 % while a good part of what is looked at has expired. */
#define EXPIRY_PERIOD	   0.1
#define EXPIRY_SLICE	   0.002
#define EXPIRY_BUSY_PERIOD 0.01
#define EXPIRY_BUSY_SLICE  0.0025
#define EXPIRY_SLOTS	   512 /* looked at in one call */

struct extra {
	struct extra *next;
	struct server *srv;
	union {
		ev_io io;
		ev_timer timer;
	} w;
	bool is_timer;
	enum extra_use use;
	ev_check again;	 /* while cb has more to do ... */
	ev_idle no_wait; /* ... so that the loop does not wait */
	bool (*cb)(void *arg);
	void *arg;
};

/* Is worker_yield() called in the middle of a command, which uses the store context? */
static bool is_busy(const struct server *s)
{
	return s->busy;
}

/* --- accepting --- */

static void accept_start(struct server *s)
{
	for (unsigned int i = 0; i < s->listener_count; i++)
		ev_io_start(s->loop, &s->listeners[i].io);
}

static void accept_stop(struct server *s)
{
	for (unsigned int i = 0; i < s->listener_count; i++)
		ev_io_stop(s->loop, &s->listeners[i].io);
}

static void on_accept_pause_end(struct ev_loop *loop, ev_timer *w, int events)
{
	(void)loop;
	(void)events;
	worker_take_all(((struct server *)w->data)->worker[0]);
	accept_start(w->data);
}

/* A connection that cannot be accepted stays readable: without a pause the loop would spin. */
static void accept_pause(struct server *s, int error)
{
	log_warning(
		"cannot accept a client: %s; pausing for %.1f s (raise the limit of open files)",
		strerror(error), ACCEPT_PAUSE);
	accept_stop(s);
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
static void turn_away(const struct listener *l, struct connection *conn, const char *why)
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

static void connection_of(struct connection *conn, const struct listener *l, int fd)
{
	if (l->kind == LISTEN_UNIX) {
		log_verbose("Accepted connection to %s", l->srv->cfg->unixsocket);
		connection_unix(conn, fd);
	} else {
		connection_tcp(conn, fd, l->srv->cfg->tcp_keepalive);
	}
}

/* Handshakes take the room that clients leave, and give way to whoever comes later. */
static bool has_room(struct server *s)
{
	unsigned int clients = server_client_count(s), count = clients;
	struct worker *first = s->worker[0];

	if (clients >= s->cfg->maxclients)
		return false;
	for (unsigned int i = 0; i < s->worker_count; i++) {
		count += s->worker[i]->handshakes.count;
		if (handshakes_since(s->worker[i]) < handshakes_since(first))
			first = s->worker[i];
	}
	return count < s->cfg->maxclients || handshake_drop_oldest(first, "maxclients is reached");
}

/* The worker that serves the fewest. */
static struct worker *least_worker(struct server *s)
{
	struct worker *least = s->worker[0];

	for (unsigned int i = 1; i < s->worker_count; i++)
		if (s->worker[i]->client_count + s->worker[i]->handshakes.count <
		    least->client_count + least->handshakes.count)
			least = s->worker[i];
	return least;
}

static void accepted(const struct listener *l, int fd, const struct sockaddr *peer)
{
	struct server *s = l->srv;
	struct worker *w = least_worker(s);
	const char *why = s->opt.refuse ? s->opt.refuse(s->opt.net_arg, peer) : NULL;
	struct connection conn;

	connection_of(&conn, l, fd);
	if (why) {
		w->stat[STAT_REFUSED]++;
		log_refused(s, peer);
		turn_away(l, &conn, why);
	} else if (!has_room(s)) {
		turn_away(l, &conn, "ERR max number of clients reached");
	} else if (l->kind == LISTEN_TLS) {
		handshake_new(w, conn, s->tls);
	} else {
		client_new(w, conn);
	}
	worker_wake(w);
}

static void on_connection(struct ev_loop *loop, ev_io *w, int events)
{
	struct listener *l = w->data;

	(void)loop;
	(void)events;
	worker_take_all(l->srv->worker[0]);
	for (unsigned int i = 0; i < ACCEPTS_A_ROUND; i++) {
		struct sockaddr_storage peer;
		socklen_t len = sizeof(peer);
		int fd = accept4(w->fd, (struct sockaddr *)&peer, &len,
				 SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0) {
			accepted(l, fd, (struct sockaddr *)&peer);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
			accept_pause(l->srv, errno);
		if (errno != EINTR && errno != ECONNABORTED)
			return; /* EAGAIN, or an error of a connection that is gone (accept(2)) */
	}
}

/* --- listening --- */

static void add_listener(struct server *s, enum listener_kind kind, int fd)
{
	struct listener *l = &s->listeners[s->listener_count++];

	*l = (struct listener){ .kind = kind, .srv = s };
	ev_io_init(&l->io, on_connection, fd, EV_READ);
	l->io.data = l;
}

static int try_listen(struct server *s, enum listener_kind kind, const struct addrinfo *ai,
		      bool from_interface)
{
	int on = 1, ret, fd;

	fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	ret = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (!ret && ai->ai_family == AF_INET6)
		ret = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	/* An IPv6 address of an interface that just came up may still be tentative. */
	if (!ret && from_interface)
		ret = ai->ai_family == AF_INET6
			      ? setsockopt(fd, IPPROTO_IPV6, IPV6_FREEBIND, &on, sizeof(on))
			      : setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof(on));
	if (!ret)
		ret = bind(fd, ai->ai_addr, ai->ai_addrlen);
	if (!ret)
		ret = listen(fd, (int)s->cfg->tcp_backlog);
	if (ret) {
		ret = -errno;
		close(fd);
		return ret;
	}
	add_listener(s, kind, fd);
	return 0;
}

/* Listens on one address; a leading '-' means that it may be missing. */
static int listen_on(struct server *s, enum listener_kind kind, const char *address,
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

	if (s->listener_count == MAX_LISTENERS) {
		snprintf(err, err_len, "more than %d addresses to listen on; name some with `bind`",
			 MAX_LISTENERS);
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
static int listen_on_interface(struct server *s, enum listener_kind kind, char *err, size_t err_len)
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

static bool follows_addresses(const struct server *s)
{
	return !s->cfg->bind_count && s->opt.listens;
}

/* On all addresses, at the port for TCP or TLS. */
static int listen_all(struct server *s, enum listener_kind kind, char *err, size_t err_len)
{
	static const char *const loopback[] = { "127.0.0.1", "-::1" };
	const struct config *cfg = s->cfg;
	unsigned int before = s->listener_count;
	int ret = 0;

	for (unsigned int i = 0; i < cfg->bind_count && !ret; i++)
		ret = listen_on(s, kind, cfg->bind[i], false, err, err_len);
	for (unsigned int i = 0; i < 2 && !cfg->bind_count && !ret; i++)
		ret = listen_on(s, kind, loopback[i], false, err, err_len);
	if (!ret && follows_addresses(s))
		ret = listen_on_interface(s, kind, err, err_len);
	if (!ret && s->listener_count == before) {
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
		add_listener(s, LISTEN_UNIX, fd);
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

	/* The first one: there are always few enough listeners for it. */
	if (s->cfg->unixsocket[0])
		ret = listen_unix(s, err, err_len);
	if (!ret && s->cfg->tls_port)
		ret = listen_tls(s, err, err_len);
	if (!ret && s->cfg->port)
		ret = listen_all(s, LISTEN_TCP, err, err_len);
	return ret;
}

/* Also removes the file of a Unix socket. */
static void close_listeners(struct server *s)
{
	while (s->listener_count) {
		struct listener *l = &s->listeners[--s->listener_count];

		ev_io_stop(s->loop, &l->io);
		close(l->io.fd);
		if (l->kind == LISTEN_UNIX)
			unix_remove(s->cfg->unixsocket);
	}
}

void server_follow_addresses(struct server *s)
{
	unsigned int before = s->listener_count;
	char err[256];

	if (!follows_addresses(s))
		return;
	s->following_addresses = true;
	if (listen_on_interface(s, LISTEN_TCP, err, sizeof(err)))
		log_warning("%s", err);
	if (s->tls && listen_on_interface(s, LISTEN_TLS, err, sizeof(err)))
		log_warning("%s", err);
	for (unsigned int i = before; i < s->listener_count; i++)
		ev_io_start(s->loop, &s->listeners[i].io);
}

/* --- periodic work --- */

/*
 * Whether a rule requires a save.  While writes are refused one is due in any case: without changes
 * no rule would ever hold.
 */
static bool save_is_due(const struct server *s, const struct snapshot_info *info)
{
	uint64_t changes = snapshot_changes(s->store);
	double now = monotonic_seconds();

	if (!info->last_ok && now - info->tried_at <= SAVE_RETRY)
		return false;
	if (s->writes_refused)
		return true;
	for (unsigned int i = 0; i < s->cfg->save_count; i++) {
		const struct save_rule *rule = &s->cfg->save[i];

		if (changes < rule->changes || now - info->saved_at <= rule->seconds)
			continue;
		log_notice("%u changes in %u seconds. Saving...", rule->changes, rule->seconds);
		return true;
	}
	return false;
}

static void check_save_rules(struct server *s)
{
	struct snapshot_info info;
	int ret;

	snapshot_status(&info);
	if (!s->cfg->save_count || info.in_progress || !save_is_due(s, &info))
		return;
	ret = snapshot_bgsave(s->store, s->cfg);
	if (ret)
		log_warning("cannot save in the background: %s", strerror(-ret));
}

static void say_refused(const struct server *s, const char *save_error)
{
	if (!s->writes_refused)
		log_notice("writes are taken again");
	else if (s->log_error[0])
		log_warning("writes are refused until the write log can be written: %s",
			    s->log_error);
	else
		log_warning("writes are refused until a snapshot succeeds "
			    "(stop-writes-on-bgsave-error): %s",
			    save_error);
}

/* Over UDP they are also refused if replies have to wait for the disk: the driver cannot. */
void server_follow_saves(struct server *s)
{
	bool waited = s->replies_wait, refused = s->writes_refused;
	struct snapshot_info info;

	snapshot_status(&info);
	writelog_refuses(s->log_error);
	s->replies_wait = s->cfg->appendonly && s->cfg->appendfsync == APPENDFSYNC_ALWAYS;
	s->writes_refused =
		s->log_error[0] || (s->cfg->stop_writes && s->cfg->save_count && info.stop_writes);
	if (s->flows && s->writes_refused != refused)
		flows_take_back(s->flows);
	store_refuse_writes(s->store, s->writes_refused || s->replies_wait);
	waiters_wake(&s->log_waiters);
	if (s->writes_refused != refused)
		say_refused(s, info.last_error);
	if (s->replies_wait && !waited && s->cfg->interface[0])
		log_warning("appendfsync always: writes over UDP are refused (READ_ONLY), because "
			    "the driver cannot wait for the disk before it replies");
}

static void on_log_told(struct ev_loop *loop, ev_async *w, int events)
{
	struct server *s = w->data;

	(void)loop;
	(void)events;
	worker_take_all(s->worker[0]);
	server_follow_saves(s);
}

static void on_log_wait_end(struct ev_loop *loop, ev_timer *w, int events)
{
	struct server *s = w->data;

	(void)loop;
	(void)events;
	worker_take_all(s->worker[0]);
	waiters_wake(&s->log_waiters);
}

void server_wake_log_waiters(struct server *s, uint64_t at_ns)
{
	uint64_t now = monotonic_ns();
	double in = at_ns > now ? (double)(at_ns - now) / 1e9 : 0;

	ev_now_update(s->loop); /* it may have waited for long */
	if (ev_is_active(&s->log_wait_end) && ev_timer_remaining(s->loop, &s->log_wait_end) <= in)
		return;
	ev_timer_stop(s->loop, &s->log_wait_end);
	ev_timer_set(&s->log_wait_end, in, 0.);
	ev_timer_start(s->loop, &s->log_wait_end);
	worker_wake(s->worker[0]);
}

/* By any thread. */
static void log_tells(void *arg)
{
	struct server *s = arg;

	ev_async_send(s->loop, &s->log_told);
	for (unsigned int i = 0; i < s->worker_count; i++)
		ev_async_send(s->worker[i]->loop, &s->worker[i]->wake);
}

static void on_second(struct ev_loop *loop, ev_timer *w, int events)
{
	struct server *s = w->data;

	(void)loop;
	(void)events;
	worker_take_all(s->worker[0]);
	if (is_busy(s))
		return;
	check_save_rules(s);
	writelog_second();
	server_follow_saves(s);
	s->opt.executor->sample(s);
}

static void on_snapshot_done(struct ev_loop *loop, ev_io *w, int events)
{
	struct server *s = w->data;
	struct snapshot_info info;

	(void)loop;
	(void)events;
	worker_take_all(s->worker[0]);
	snapshot_reap();
	snapshot_status(&info);
	if (!info.last_ok)
		log_warning("background save failed: %s", info.last_error);
	server_follow_saves(s);
	waiters_wake(&s->saves);
}

/*
 * Looks at about a tenth of the store, for a bounded time.  If more than a tenth of the slots that
 * were looked at had expired, the next look is soon.
 */
static void on_expiry(struct ev_loop *loop, ev_timer *w, int events)
{
	struct server *s = w->data;
	bool was_busy = w->repeat < EXPIRY_PERIOD, busy = false;
	uint64_t keys = store_count(s->store), slots = keys / 10 + EXPIRY_SLOTS;
	double end = monotonic_seconds() + (was_busy ? EXPIRY_BUSY_SLICE : EXPIRY_SLICE);

	(void)events;
	worker_take_all(s->worker[0]);
	if (!keys || s->expiry_off || is_busy(s))
		return;
	for (uint64_t seen = 0; busy || seen < slots; seen += EXPIRY_SLOTS) {
		unsigned int removed = store_expire_cycle(s->worker[0]->ctx, EXPIRY_SLOTS);

		busy = removed > EXPIRY_SLOTS / 10;
		if (monotonic_seconds() >= end || store_expiry_rests(s->store))
			break;
	}
	if (busy == was_busy)
		return;
	w->repeat = busy ? EXPIRY_BUSY_PERIOD : EXPIRY_PERIOD;
	ev_timer_again(loop, w);
}

/* --- watchers that main() adds --- */

static void run_extra(struct extra *e)
{
	worker_take_all(e->srv->worker[0]);
	if (e->use == USES_CONTEXT && is_busy(e->srv))
		return;
	if (e->cb(e->arg)) {
		ev_check_start(e->srv->loop, &e->again);
		ev_idle_start(e->srv->loop, &e->no_wait);
	} else {
		ev_check_stop(e->srv->loop, &e->again);
		ev_idle_stop(e->srv->loop, &e->no_wait);
	}
}

static void on_extra_again(struct ev_loop *loop, ev_check *w, int events)
{
	(void)loop;
	(void)events;
	run_extra(w->data);
}

static void on_extra_io(struct ev_loop *loop, ev_io *w, int events)
{
	struct extra *e = w->data;

	(void)loop;
	(void)events;
	if (!ev_is_active(&e->again))
		run_extra(e);
}

static void on_extra_timer(struct ev_loop *loop, ev_timer *w, int events)
{
	(void)loop;
	(void)events;
	run_extra(w->data);
}

static void on_no_wait(struct ev_loop *loop, ev_idle *w, int events)
{
	(void)loop;
	(void)w;
	(void)events;
}

static struct extra *extra_new(struct server *s, enum extra_use use, bool (*cb)(void *arg),
			       void *arg)
{
	struct extra *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	ev_check_init(&e->again, on_extra_again);
	ev_idle_init(&e->no_wait, on_no_wait);
	e->again.data = e;
	e->srv = s;
	e->use = use;
	e->cb = cb;
	e->arg = arg;
	e->next = s->extras;
	s->extras = e;
	return e;
}

int server_add_fd(struct server *s, int fd, enum extra_use use, bool (*cb)(void *arg), void *arg)
{
	struct extra *e = extra_new(s, use, cb, arg);

	if (!e)
		return -ENOMEM;
	ev_io_init(&e->w.io, on_extra_io, fd, EV_READ);
	e->w.io.data = e;
	ev_io_start(s->loop, &e->w.io);
	return 0;
}

int server_add_timer(struct server *s, double seconds, enum extra_use use, bool (*cb)(void *arg),
		     void *arg)
{
	struct extra *e = extra_new(s, use, cb, arg);

	if (!e)
		return -ENOMEM;
	e->is_timer = true;
	ev_timer_init(&e->w.timer, on_extra_timer, seconds, seconds);
	e->w.timer.data = e;
	ev_timer_start(s->loop, &e->w.timer);
	return 0;
}

struct store_ctx *server_ctx(struct server *s)
{
	return s->worker[0]->ctx;
}

uint64_t *server_stat(struct server *s)
{
	return s->worker[0]->stat;
}

struct durations *server_datagrams(struct server *s)
{
	return &s->worker[0]->datagrams;
}

/* --- sums over the workers --- */

void server_stats(const struct server *s, uint64_t stat[STATS])
{
	for (unsigned int i = 0; i < STATS; i++) {
		stat[i] = 0;
		for (unsigned int n = 0; n < s->worker_count; n++)
			stat[i] += s->worker[n]->stat[i];
	}
	stat[STAT_HITS] = store_counter(s->store, "get_hits");
	stat[STAT_MISSES] = store_counter(s->store, "get_misses");
	stat[STAT_EXPIRED] = store_counter(s->store, "expires");
	stat[STAT_EVICTED] = store_counter(s->store, "evictions");
	store_udp_operations(s->store, &stat[STAT_UDP_DRIVER], &stat[STAT_UDP_XKVD]);
}

unsigned int server_client_count(const struct server *s)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < s->worker_count; i++)
		count += s->worker[i]->client_count;
	return count;
}

size_t server_client_memory(const struct server *s)
{
	size_t bytes = 0;

	for (unsigned int i = 0; i < s->worker_count; i++)
		bytes += __atomic_load_n(&s->worker[i]->client_memory, __ATOMIC_RELAXED);
	return bytes;
}

/* --- signals and shutdown --- */

#define SECOND_SIGNAL_SECONDS 60

static void exit_at_once(int number)
{
	(void)number;
	_exit(1);
}

/*
 * After the first signal the next one ends the process, even while a save keeps the loop from
 * running: therefore it is not handled by the loop.
 */
static void second_signal_exits(struct server *s, bool exits)
{
	struct sigaction action = { .sa_handler = exit_at_once };

	if (!exits) {
		ev_signal_start(s->loop, &s->on_term);
		ev_signal_start(s->loop, &s->on_int);
		return;
	}
	ev_signal_stop(s->loop, &s->on_term);
	ev_signal_stop(s->loop, &s->on_int);
	if (sigaction(SIGTERM, &action, NULL) || sigaction(SIGINT, &action, NULL))
		log_warning("cannot catch a second signal: %s", strerror(errno));
}

static bool final_save(struct server *s)
{
	struct snapshot_info info;
	int ret;

	log_notice("saving the final snapshot before exiting");
	snapshot_cancel(); /* a background save would be older than this one */
	snapshot_wait();
	snapshot_reap();
	ret = snapshot_save(s->store, s->cfg);
	if (!ret)
		return true;
	snapshot_status(&info);
	log_warning("cannot save: %s", info.last_error[0] ? info.last_error : strerror(-ret));
	return false;
}

/* What was accepted is done, ... */
static void finish_rounds(struct server *s)
{
	for (unsigned int i = 0; i < s->worker_count && !is_busy(s); i++)
		worker_flush(s->worker[i]);
}

/* ... and what was done is acknowledged. */
static void send_replies(struct server *s)
{
	if (!writelog_wait())
		return;
	for (unsigned int i = 0; i < s->worker_count && !is_busy(s); i++)
		clients_flush(s->worker[i]);
}

bool server_shutdown(struct server *s, enum shutdown_save save, bool force)
{
	bool wanted = save == SHUTDOWN_SAVE || (save == SHUTDOWN_BY_RULES && s->cfg->save_count);

	accept_stop(s);
	if (s->opt.stopping)
		s->opt.stopping(s->opt.config_arg);
	finish_rounds(s);
	s->stopping = true;
	if (s->flows)
		flows_take_back(s->flows); /* what is written now would not be saved */
	send_replies(s);		   /* saving may take long */
	second_signal_exits(s, true);
	if (wanted)
		sd_notify(0, "STOPPING=1\nSTATUS=Saving the final snapshot");
	else
		snapshot_cancel();
	if (wanted && !final_save(s) && !force) {
		log_warning("not exiting, so that no data is lost; a second signal exits at once");
		sd_notify(0, "READY=1\nSTATUS=Saving failed, see the log");
		second_signal_exits(s, false);
		s->stopping = false;
		accept_start(s);
		return false;
	}
	sd_notify(0, "STOPPING=1\nSTATUS=Exiting");
	s->ended = true;
	ev_break(s->loop, EVBREAK_ALL); /* has no effect while it waits */
	worker_wake(s->worker[0]);
	return true;
}

void server_stop(struct server *s)
{
	server_shutdown(s, SHUTDOWN_BY_RULES, false);
}

static void on_exit_signal(struct ev_loop *loop, ev_signal *w, int events)
{
	struct server *s = w->data;

	(void)loop;
	(void)events;
	worker_take_all(s->worker[0]);
	/* Long after a failed save, a signal counts as the first one again. */
	if (s->signalled > 0 && monotonic_seconds() - s->signalled < SECOND_SIGNAL_SECONDS) {
		log_warning("second signal: exiting at once");
		_exit(1);
	}
	s->signalled = monotonic_seconds();
	log_notice("received %s, shutting down", w->signum == SIGINT ? "SIGINT" : "SIGTERM");
	server_stop(s);
}

static void on_reopen_signal(struct ev_loop *loop, ev_signal *w, int events)
{
	struct server *s = w->data;
	int ret = log_open(s->cfg->logfile);

	(void)loop;
	(void)events;
	worker_take_all(s->worker[0]);
	if (ret)
		log_warning("cannot open %s again, writing to the old one: %s", s->cfg->logfile,
			    strerror(-ret));
	else
		log_notice("log opened again");
}

/* --- life --- */

static void init_signal(struct server *s, ev_signal *w,
			void (*cb)(struct ev_loop *, ev_signal *, int), int number)
{
	sigset_t held;

	ev_signal_init(w, cb, number);
	w->data = s;
	ev_signal_start(s->loop, w);
	/* Those that came while the store was opened are taken now (main.c). */
	sigemptyset(&held);
	sigaddset(&held, number);
	pthread_sigmask(SIG_UNBLOCK, &held, NULL);
}

static void init_watchers(struct server *s)
{
	ev_init(&s->accept_pause, on_accept_pause_end);
	ev_timer_init(&s->second, on_second, 1., 1.);
	ev_timer_init(&s->expiry, on_expiry, EXPIRY_PERIOD, EXPIRY_PERIOD);
	ev_async_init(&s->log_told, on_log_told);
	ev_init(&s->log_wait_end, on_log_wait_end);
	s->accept_pause.data = s->second.data = s->expiry.data = s->log_told.data = s;
	s->log_wait_end.data = s;
	ev_async_start(s->loop, &s->log_told);
	writelog_tell(log_tells, s);
	ev_timer_start(s->loop, &s->second);
	ev_timer_start(s->loop, &s->expiry);
	init_signal(s, &s->on_term, on_exit_signal, SIGTERM);
	init_signal(s, &s->on_int, on_exit_signal, SIGINT);
	init_signal(s, &s->on_usr1, on_reopen_signal, SIGUSR1);
	init_signal(s, &s->on_hup, on_reopen_signal, SIGHUP);
	if (snapshot_event_fd() >= 0) {
		ev_io_init(&s->snapshot_done, on_snapshot_done, snapshot_event_fd(), EV_READ);
		s->snapshot_done.data = s;
		ev_io_start(s->loop, &s->snapshot_done);
	}
	signal(SIGPIPE, SIG_IGN); /* also where main() is another one, in tests */
}

/* Without clients: what is open, and may be opened while they are there. */
static unsigned int count_fds_besides(const struct server *s)
{
	unsigned int listeners = follows_addresses(s) ? MAX_LISTENERS - s->listener_count : 0;
	int open = directory_count("/proc/self/fd") - 1; /* that directory's own */

	return (open < 0 ? FDS_UNKNOWN : (unsigned int)open) + listeners + FDS_RESERVE +
	       (s->cfg->http_port ? HTTP_CONNECTIONS : 0);
}

unsigned int server_clients_possible(const struct server *s, unsigned int wanted)
{
	rlim_t want = (rlim_t)wanted + s->fds_besides;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= want)
		return wanted;
	limit.rlim_max = limit.rlim_max > want ? limit.rlim_max : want;
	limit.rlim_cur = want;
	if (!setrlimit(RLIMIT_NOFILE, &limit))
		return wanted;
	/* Only root may raise the hard limit; every process may raise the soft one up to it. */
	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		if (setrlimit(RLIMIT_NOFILE, &limit) || getrlimit(RLIMIT_NOFILE, &limit))
			return wanted;
	}
	if (limit.rlim_cur >= want)
		return wanted;
	return limit.rlim_cur > s->fds_besides ? (unsigned int)limit.rlim_cur - s->fds_besides : 1;
}

int server_check(const struct config *cfg, char *err, size_t err_len)
{
	SSL_CTX *ctx = cfg->tls_port ? tls_context_new(cfg, err, err_len) : NULL;

	SSL_CTX_free(ctx);
	return cfg->tls_port && !ctx ? -EINVAL : 0;
}

/* Certificates are read before anything takes effect: the old ones stay if they are no good. */
static int prepare_tls(void *arg, const struct config *next, char *err, size_t err_len)
{
	struct server *s = arg;
	char why[512];

	if (!next->tls_port)
		return 0;
	s->tls_next = tls_context_new(next, why, sizeof(why));
	if (s->tls_next)
		return 0;
	log_warning("%s", why);
	snprintf(err, err_len, "Unable to update TLS configuration. Check server logs.");
	return -EINVAL;
}

static int apply(void *arg, const struct config *next, char *err, size_t err_len)
{
	struct server *s = arg;

	return s->opt.apply(s->opt.config_arg, next, err, err_len);
}

static void put_into_force(struct server *s, const struct config *next)
{
	s->cfg = next;
	s->opt.adopt(s->opt.config_arg, next); /* frees the one before */
}

int server_configure(struct server *s, const struct config_pair *pairs, unsigned int count,
		     unsigned int *failed, char *err, size_t err_len)
{
	const struct config_hooks hooks = { prepare_tls, s->opt.apply ? apply : NULL, s };
	const struct config *next;
	int ret = config_set_live(s->cfg, pairs, count, &hooks, &next, failed, err, err_len);

	if (ret) {
		SSL_CTX_free(s->tls_next);
		s->tls_next = NULL;
		return ret;
	}
	if (s->tls_next) {
		SSL_CTX_free(s->tls);
		s->tls = s->tls_next;
		s->tls_next = NULL;
		log_notice("new TLS connections get the certificate and settings as read now");
	}
	worker_wake(s->worker[0]); /* its loop may have other listeners and timers */
	put_into_force(s, next);
	log_set_level(next->loglevel);
	server_follow_saves(s);
	return 0;
}

/* One who has just added a user for a dashboard has to learn that, and how to get it back. */
static void say_udp(const char *user)
{
	if (!user)
		log_notice("UDP is open: no user closes it any more");
	else if (!strcmp(user, "default"))
		log_warning("UDP is closed for everybody: the user `default`, as which it acts, is "
			    "limited, and there is no udp-token");
	else
		log_warning(
			"UDP is closed for everybody: the user `%s` has rights to keys, and "
			"there is no udp-token (ACL SETUSER %s off, or resetkeys clearselectors, "
			"opens it)",
			user, user);
}

int server_close_udp(struct server *s, const char *user, char *err, size_t err_len)
{
	const struct config *next;
	int ret;

	if (!!user == s->cfg->closed_by_users)
		return 0;
	next = config_with_users(s->cfg, user, err, err_len);
	if (!next)
		return -EINVAL;
	ret = s->opt.apply ? s->opt.apply(s->opt.config_arg, next, err, err_len) : 0;
	if (ret) {
		config_free(next);
		return ret;
	}
	if (!next->udp_token_set && config_has_passwords(next) != config_has_passwords(s->cfg))
		say_udp(user);
	put_into_force(s, next);
	return 0;
}

/* When everything is open but clients. */
static int fit_open_files(struct server *s, char *err, size_t err_len)
{
	unsigned int possible, failed;
	char text[16];
	const struct config_pair lower = { "maxclients", text };

	s->fds_besides = count_fds_besides(s);
	possible = server_clients_possible(s, s->cfg->maxclients);
	if (possible >= s->cfg->maxclients)
		return 0;
	log_warning("maxclients lowered to %u: too few files may be open (ulimit -n); %u are for "
		    "other things",
		    possible, s->fds_besides);
	snprintf(text, sizeof(text), "%u", possible);
	return server_configure(s, &lower, 1, &failed, err, err_len);
}

/*
 * Buffers of clients are allocated and freed often: large ones by mmap(), so that they are given
 * back at once.  Few threads allocate, so two arenas are enough.
 */
static void tune_allocator(void)
{
	if (!mallopt(M_MMAP_THRESHOLD, 4 << 20) || !mallopt(M_TRIM_THRESHOLD, 8 << 20) ||
	    !mallopt(M_ARENA_MAX, 2))
		log_debug("the allocator takes no options");
}

/* One CPU is left to what else the kernel and xkvd do: packets, maintenance, snapshots. */
static unsigned int default_threads(void)
{
	unsigned int cpus = cpus_usable();

	return cpus > 1 ? cpus - 1 : 1;
}

void server_use_flows(struct server *s, struct flows *flows)
{
	s->flows = flows;
}

void server_reset_answered(struct server *s)
{
	const struct linger reset = { .l_onoff = 1 };
	struct caller *next;

	for (struct caller *c = s->flows ? client_next(s, NULL) : NULL; c; c = next) {
		next = client_next(s, c);
		if (c->dead || !flow_requests(s->flows, &client_of(c)->flow))
			continue;
		setsockopt(client_of(c)->stream.conn.fd, SOL_SOCKET, SO_LINGER, &reset,
			   sizeof(reset));
		if (c == s->busy)
			c->dead = true;
		else
			c->kind->close(c);
	}
}

struct server *server_new(const struct server_options *options, char *err, size_t err_len)
{
	struct server *s = calloc(1, sizeof(*s) + options->executor->server_bytes);
	unsigned int threads;

	if (!s) {
		snprintf(err, err_len, "out of memory");
		return NULL;
	}
	tune_allocator();
	s->opt = *options;
	s->cfg = options->cfg;
	s->store = options->store;
	s->lock = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
	if (s->cfg->io_threads > WORKERS_MAX)
		log_warning("io-threads: %u threads are used, not %u", WORKERS_MAX,
			    s->cfg->io_threads);
	threads = s->cfg->io_threads ?: default_threads();
	while (s->worker_count < threads && s->worker_count < WORKERS_MAX) {
		struct worker *w = worker_new(s);

		if (!w) {
			snprintf(err, err_len, "cannot make the event loop: %s", strerror(errno));
			server_free(s);
			return NULL;
		}
		s->worker[s->worker_count++] = w;
	}
	s->running = s->worker[0];
	s->loop = s->worker[0]->loop;
	/* An xkvd that was killed may have left them refused, or held. */
	server_follow_saves(s);
	store_hold_writes(s->store, false, 0);
	s->opt.executor->start(s);
	init_watchers(s);
	s->started = monotonic_seconds();
	s->memory_whole = memory_whole();
	for (size_t i = 0; i < sizeof(s->run_id) - 1; i++)
		s->run_id[i] = "0123456789abcdef"[arc4random_uniform(16)];
	return s;
}

/* So that another server of this process can have them. */
static void stop_signals(struct server *s)
{
	ev_signal *watchers[] = { &s->on_term, &s->on_int, &s->on_usr1, &s->on_hup };

	for (unsigned int i = 0; i < sizeof(watchers) / sizeof(watchers[0]); i++)
		if (ev_is_active(watchers[i]))
			ev_signal_stop(s->loop, watchers[i]);
}

static void free_extras(struct server *s)
{
	while (s->extras) {
		struct extra *e = s->extras;

		s->extras = e->next;
		ev_check_stop(s->loop, &e->again);
		ev_idle_stop(s->loop, &e->no_wait);
		if (e->is_timer)
			ev_timer_stop(s->loop, &e->w.timer);
		else
			ev_io_stop(s->loop, &e->w.io);
		free(e);
	}
}

void server_free(struct server *s)
{
	if (!s)
		return;
	writelog_tell(NULL, NULL);
	free_extras(s);
	stop_signals(s);
	close_listeners(s);
	SSL_CTX_free(s->tls);
	for (unsigned int i = 0; i < s->worker_count; i++)
		worker_close_clients(s->worker[i]);
	s->opt.executor->server_free(s);
	for (unsigned int i = 0; i < s->worker_count; i++)
		worker_free(s->worker[i]);
	hashtable_free(&s->ids);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

int server_run(struct server *s)
{
	char err[256];
	int ret;

	if (fit_open_files(s, err, sizeof(err))) {
		log_warning("%s", err);
		return 1;
	}
	ret = workers_start(s);
	if (ret)
		log_warning("cannot start all threads of io-threads: %s", strerror(ret));
	accept_start(s);
	sd_notify(0, "READY=1\nSTATUS=Serving");
	if (s->cfg->port)
		log_notice("ready to accept connections on port %u", s->cfg->port);
	if (s->cfg->tls_port)
		log_notice("ready to accept TLS connections on port %u", s->cfg->tls_port);
	if (s->cfg->unixsocket[0])
		log_notice("The server is now ready to accept connections at %s",
			   s->cfg->unixsocket);
	if (!ret)
		ev_run(s->loop, 0);
	workers_end(s);
	send_replies(s);
	snapshot_wait();
	snapshot_reap();
	if (s->cfg->unixsocket[0])
		log_notice("Removing the unix socket file.");
	close_listeners(s);
	log_notice("xkvd is now ready to exit, bye bye...");
	return -ret;
}

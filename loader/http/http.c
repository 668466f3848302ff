/* SPDX-License-Identifier: BSD-2-Clause */
/* The console, its commands, /metrics, /healthz and /readyz, with libmicrohttpd. */
#include "http.h"

#include <errno.h>
#include <stdio.h>

#ifdef XKV_HTTP

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "relay.h"
#include "util/clock.h"
#include "util/files.h"
#include "util/handed.h"
#include "util/log.h"
#include "util/thread.h"

#define BACKLOG		 16
#define CONNECTION_BYTES 16384 /* what a connection may take, its request's lines included */
#define REQUEST_SECONDS	 15    /* from one reply, or the connection, to the end of the next */
#define IDLE_SECONDS	 10
#define ACCEPT_PAUSE_MS	 100 /* when file descriptors have run out */
#define TEXT_SECONDS	 10  /* that a text, or commands, may take */
#define POLLED		 3   /* by http_main(), beside the replies */
#define SILENT_SECONDS	 10  /* without http_ready(): the event loop stands still */

#define PEM_MAX	   (1 << 20)
#define PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

/* The type of what goes to /command: one that a browser asks our leave for, which it never gets. */
#define RESP_TYPE "application/resp"

/* The page, from console.html. */
extern const char console_page[], console_page_end[];
__asm__(".pushsection .rodata\n"
	".global console_page, console_page_end\n"
	"console_page: .incbin \"loader/http/console.html\"\n"
	"console_page_end:\n"
	".popsection");

/* While it waits for a text, or for replies, its connection is suspended. */
enum wait { WAITS_NOT, WAITS, HAS_WAITED, HAS_WAITED_IN_VAIN };

/* A connection, and the request that it has now. */
struct visitor {
	TAILQ_ENTRY(visitor) link;
	struct MHD_Connection *connection;
	int fd;
	double since; /* it has come, has got a reply, or waits; by monotonic_seconds() */
	enum wait wait;
	enum metrics_format format; /* of the text that it waits for */
	struct relay *relay;	    /* its commands; NULL = it waits for a text, if it waits */
	enum relay_state replied;
};

/* Commands of a visitor, on their way to the server. */
struct newcomer {
	int fd;
	struct sockaddr_storage address;
};

TAILQ_HEAD(visitors, visitor);

struct http {
	struct MHD_Daemon *daemon;
	int listen_fd;
	int wake;   /* eventfd: a text is made, or it ends */
	int wanted; /* eventfd: http_make() is to be called */
	pthread_t thread;
	bool started;
	_Atomic bool ends;

	/* of the thread */
	struct visitors visitors; /* by `since` */
	unsigned int count;
	struct MHD_Response *console;
	struct MHD_Response *page[METRICS_FORMATS]; /* the last text; NULL: none, or no memory */
	bool asked;				    /* http_make() has not answered yet */

	/* of both threads, with the lock */
	pthread_mutex_t lock;
	http_text_fn *text;
	http_adopt_fn *adopt;
	void *arg;
	struct newcomer newcomer[HTTP_CONNECTIONS];
	unsigned int newcomers;
	bool wants;		    /* a text */
	enum metrics_format format; /* of what is asked for, and of `made` */
	char *made;
	size_t made_len;
	bool done;
	const char *why_not;
	double told_at; /* http_ready() */
};

/* ---- texts ------------------------------------------------------------------- */

static void http_tell(int fd)
{
	eventfd_write(fd, 1); /* fails at 2^64: it is readable then */
}

static void untell(int fd)
{
	eventfd_t value;

	eventfd_read(fd, &value);
}

static void let_in(struct http *h)
{
	struct newcomer n;

	for (;;) {
		pthread_mutex_lock(&h->lock);
		if (!h->newcomers) {
			pthread_mutex_unlock(&h->lock);
			return;
		}
		n = h->newcomer[--h->newcomers];
		pthread_mutex_unlock(&h->lock);
		h->adopt(h->arg, n.fd, &n.address);
	}
}

bool http_make(void *arg)
{
	enum metrics_format format;
	struct http *h = arg;
	size_t len = 0;
	char *text;
	bool wants;

	untell(h->wanted);
	let_in(h);
	pthread_mutex_lock(&h->lock);
	format = h->format;
	wants = h->wants;
	h->wants = false;
	pthread_mutex_unlock(&h->lock);
	if (!wants)
		return false;
	text = h->text(h->arg, format, &len);
	pthread_mutex_lock(&h->lock);
	h->made = text;
	h->made_len = len;
	h->done = true;
	pthread_mutex_unlock(&h->lock);
	http_tell(h->wake);
	return false;
}

/* Requests a text that connections wait for, unless one is being made. */
static void http_ask(struct http *h)
{
	struct visitor *v;

	TAILQ_FOREACH(v, &h->visitors, link)
		if (v->wait == WAITS && !v->relay)
			break;
	if (!v || h->asked)
		return;
	h->asked = true;
	pthread_mutex_lock(&h->lock);
	h->format = v->format;
	h->wants = true;
	pthread_mutex_unlock(&h->lock);
	http_tell(h->wanted);
}

static void http_resume(struct visitor *v, enum wait wait)
{
	v->wait = wait;
	MHD_resume_connection(v->connection);
}

/* Hands the text to all connections that wait for this format. */
static void take_text(struct http *h)
{
	struct MHD_Response *page = NULL;
	struct visitor *v;

	pthread_mutex_lock(&h->lock);
	if (!h->done) {
		pthread_mutex_unlock(&h->lock);
		return;
	}
	if (h->made)
		page = MHD_create_response_from_buffer(h->made_len, h->made, MHD_RESPMEM_MUST_FREE);
	if (!page)
		free(h->made);
	h->made = NULL;
	h->done = false;
	pthread_mutex_unlock(&h->lock);
	h->asked = false;
	if (page)
		MHD_add_response_header(page, MHD_HTTP_HEADER_CONTENT_TYPE,
					openmetrics_type(h->format));
	if (h->page[h->format])
		MHD_destroy_response(h->page[h->format]);
	h->page[h->format] = page;
	TAILQ_FOREACH(v, &h->visitors, link)
		if (v->wait == WAITS && !v->relay && v->format == h->format)
			http_resume(v, page ? HAS_WAITED : HAS_WAITED_IN_VAIN);
}

/* ---- requests ------------------------------------------------------------------ */

static enum MHD_Result reply_text(struct MHD_Connection *c, unsigned int status, const char *text,
				  enum MHD_ResponseMemoryMode mode)
{
	struct MHD_Response *r =
		MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, mode);
	enum MHD_Result ret;

	if (!r)
		return MHD_NO;
	MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; charset=utf-8");
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	ret = MHD_queue_response(c, status, r);
	MHD_destroy_response(r);
	return ret;
}

static enum MHD_Result reply(struct MHD_Connection *c, unsigned int status, const char *text)
{
	return reply_text(c, status, text, MHD_RESPMEM_PERSISTENT);
}

static struct MHD_Response *make_console(void)
{
	/* Nothing is loaded from elsewhere, sent elsewhere, or shown inside another page. */
	static const char policy[] =
		"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
		"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
		"frame-ancestors 'none'";
	struct MHD_Response *r = MHD_create_response_from_buffer(
		(size_t)(console_page_end - console_page), (void *)(uintptr_t)console_page,
		MHD_RESPMEM_PERSISTENT);

	if (!r)
		return NULL;
	MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/html; charset=utf-8");
	MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
	MHD_add_response_header(r, "Content-Security-Policy", policy);
	MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
	MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
	return r;
}

static const char *why_not_ready(struct http *h)
{
	const char *why;

	pthread_mutex_lock(&h->lock);
	why = h->why_not;
	if (!why && monotonic_seconds() - h->told_at > SILENT_SECONDS)
		why = "the event loop stands still\n";
	pthread_mutex_unlock(&h->lock);
	return why;
}

/* Its time begins anew. */
static void renew(struct http *h, struct visitor *v)
{
	v->since = monotonic_seconds();
	TAILQ_REMOVE(&h->visitors, v, link);
	TAILQ_INSERT_TAIL(&h->visitors, v, link);
}

static bool serves(struct http *h)
{
	bool yes;

	pthread_mutex_lock(&h->lock);
	yes = h->text;
	pthread_mutex_unlock(&h->lock);
	return yes;
}

static void wait_for_it(struct http *h, struct visitor *v)
{
	v->wait = WAITS;
	renew(h, v);
	MHD_suspend_connection(v->connection);
}

static enum MHD_Result reply_metrics(struct http *h, struct MHD_Connection *c, struct visitor *v)
{
	if (v->wait == HAS_WAITED)
		return MHD_queue_response(c, MHD_HTTP_OK, h->page[v->format]);
	if (v->wait == HAS_WAITED_IN_VAIN)
		return reply(c, MHD_HTTP_SERVICE_UNAVAILABLE,
			     "the figures could not be read in time\n");
	if (!serves(h))
		return reply(c, MHD_HTTP_SERVICE_UNAVAILABLE, "loading\n");
	v->format = openmetrics_accepted(
		MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT));
	wait_for_it(h, v);
	http_ask(h);
	return MHD_YES;
}

/* ---- commands ------------------------------------------------------------------ */

/*
 * Where a name is that an attacker may have, it may be his page that asks, after a change of its
 * address (DNS rebinding).  An address, or this machine's own name, cannot be an attacker's.
 */
static bool is_own_host(const char *host)
{
	static const char localhost[] = "localhost";
	char text[INET6_ADDRSTRLEN + 2];
	struct in6_addr address;
	bool v6 = host && host[0] == '[';
	size_t len;

	if (!host || (!strncasecmp(host, localhost, strlen(localhost)) &&
		      strchr(":", host[strlen(localhost)])))
		return true;
	host += v6;
	len = strcspn(host, v6 ? "]" : ":");
	if (len >= sizeof(text))
		return false;
	memcpy(text, host, len);
	text[len] = '\0';
	return inet_pton(v6 ? AF_INET6 : AF_INET, text, &address) == 1;
}

/* Before the body is read: why the request is refused; NULL = it is not. */
static const char *refused(struct http *h, struct MHD_Connection *c, unsigned int *status)
{
	const char *type =
		MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE);

	*status = MHD_HTTP_UNSUPPORTED_MEDIA_TYPE;
	if (!type || strcasecmp(type, RESP_TYPE))
		return "commands are of the Content-Type " RESP_TYPE "\n";
	*status = MHD_HTTP_FORBIDDEN;
	if (!MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION) &&
	    !is_own_host(MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST)))
		return "without user and password the host has to be an address or localhost\n";
	*status = MHD_HTTP_SERVICE_UNAVAILABLE;
	return serves(h) ? NULL : "loading\n";
}

/* A request that is refused before its end closes the connection: the rest is not read. */
static enum MHD_Result begin_commands(struct http *h, struct MHD_Connection *c, struct visitor *v)
{
	unsigned int status;
	const char *why = refused(h, c, &status);

	if (why)
		return reply(c, status, why);
	relay_free(v->relay);
	v->relay = relay_new();
	return v->relay ? MHD_YES : MHD_NO;
}

/* To the server, as a client at the visitor's address. */
static bool hand_over(struct http *h, const struct visitor *v, int fd)
{
	struct newcomer n = { .fd = fd };
	socklen_t len = sizeof(n.address);
	bool room = !getpeername(v->fd, (struct sockaddr *)&n.address, &len); /* else it has gone */

	pthread_mutex_lock(&h->lock);
	room &= h->newcomers < HTTP_CONNECTIONS; /* those that gave up may still be among them */
	if (room)
		h->newcomer[h->newcomers++] = n;
	pthread_mutex_unlock(&h->lock);
	if (room)
		http_tell(h->wanted);
	else
		close(fd);
	return room;
}

static enum MHD_Result execute(struct http *h, struct MHD_Connection *c, struct visitor *v)
{
	char *password = NULL;
	char *user = MHD_basic_auth_get_username_password(c, &password);
	int fd = relay_begin(v->relay, user, password ? password : "");

	if (password)
		explicit_bzero(password, strlen(password));
	MHD_free(user);
	MHD_free(password);
	if (fd < 0 || !hand_over(h, v, fd))
		return reply(c, MHD_HTTP_SERVICE_UNAVAILABLE, "too many commands at once\n");
	wait_for_it(h, v);
	return MHD_YES;
}

static unsigned int status_of_error(const char *error)
{
	if (!strncmp(error, "WRONGPASS ", 10) || !strncmp(error, "NOAUTH ", 7))
		return MHD_HTTP_UNAUTHORIZED;
	return strncmp(error, "DENIED ", 7) ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_FORBIDDEN;
}

static enum MHD_Result reply_replies(struct MHD_Connection *c, struct relay *relay)
{
	const char *why = relay_refused(relay);
	struct MHD_Response *r;
	enum MHD_Result ret;

	if (why)
		return reply_text(c, status_of_error(why), why, MHD_RESPMEM_MUST_COPY);
	r = MHD_create_response_from_buffer(relay->replies_len, relay->replies,
					    MHD_RESPMEM_MUST_FREE);
	if (!r)
		return MHD_NO;
	relay->replies = NULL;
	MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, RESP_TYPE);
	MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
	ret = MHD_queue_response(c, MHD_HTTP_OK, r);
	MHD_destroy_response(r);
	return ret;
}

static enum MHD_Result end_commands(struct http *h, struct MHD_Connection *c, struct visitor *v)
{
	if (v->relay->refused) /* said at the end: nothing can be replied in the middle of a body */
		return reply(c, MHD_HTTP_CONTENT_TOO_LARGE, "the commands are too long\n");
	if (v->wait == WAITS_NOT)
		return execute(h, c, v);
	if (v->wait == HAS_WAITED_IN_VAIN)
		return reply(c, MHD_HTTP_GATEWAY_TIMEOUT, "the commands take too long\n");
	if (v->replied == RELAY_DONE)
		return reply_replies(c, v->relay);
	return reply(c, MHD_HTTP_INTERNAL_SERVER_ERROR,
		     v->replied == RELAY_TOO_LONG ? "the replies are too long\n"
						  : "there is no memory for the replies\n");
}

/* Called for the head of a request, for each part of its body, at its end, and when resumed. */
static enum MHD_Result on_commands(struct http *h, struct MHD_Connection *c, struct visitor *v,
				   const char *body, size_t *body_len, void **seen)
{
	if (!*seen) {
		*seen = v;
		return begin_commands(h, c, v);
	}
	if (!*body_len)
		return end_commands(h, c, v);
	relay_take(v->relay, body, *body_len);
	*body_len = 0;
	return MHD_YES;
}

static void read_replies(struct visitor *v)
{
	v->replied = relay_read(v->relay);
	if (v->replied != RELAY_MORE)
		http_resume(v, HAS_WAITED);
}

/* ---- any request --------------------------------------------------------------- */

static struct visitor *visitor_of(struct MHD_Connection *c)
{
	return MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* Called for the head of a request, for each part of its body, at its end, and when resumed. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *path,
				  const char *method, const char *version, const char *body,
				  size_t *body_len, void **seen)
{
	struct http *h = arg;
	struct visitor *v = visitor_of(c);
	const char *why;

	if (!v)
		return MHD_NO;
	if (!strcmp(method, MHD_HTTP_METHOD_POST) && !strcmp(path, "/command"))
		return on_commands(h, c, v, body, body_len, seen);
	if (strcmp(method, MHD_HTTP_METHOD_GET) && strcmp(method, MHD_HTTP_METHOD_HEAD))
		return reply(c, MHD_HTTP_METHOD_NOT_ALLOWED,
			     "GET and HEAD, and POST of /command only\n");
	if (!*seen || *body_len) {
		*seen = v;
		*body_len = 0;
		return MHD_YES;
	}
	if (!strcmp(path, "/"))
		return MHD_queue_response(c, MHD_HTTP_OK, h->console);
	if (!strcmp(path, "/metrics"))
		return reply_metrics(h, c, v);
	if (!strcmp(path, "/healthz"))
		return reply(c, MHD_HTTP_OK, "ok\n");
	if (strcmp(path, "/readyz"))
		return reply(c, MHD_HTTP_NOT_FOUND,
			     "there are /, /metrics, /healthz and /readyz\n");
	why = why_not_ready(h);
	return why ? reply(c, MHD_HTTP_SERVICE_UNAVAILABLE, why) : reply(c, MHD_HTTP_OK, "ok\n");
}

static void on_answered(void *arg, struct MHD_Connection *c, void **seen,
			enum MHD_RequestTerminationCode code)
{
	struct http *h = arg;
	struct visitor *v = visitor_of(c);

	if (!v)
		return;
	v->wait = WAITS_NOT;
	relay_free(v->relay);
	v->relay = NULL;
	renew(h, v);
}

/* ---- connections ----------------------------------------------------------------- */

static void on_connection(void *arg, struct MHD_Connection *c, void **context,
			  enum MHD_ConnectionNotificationCode code)
{
	struct http *h = arg;
	struct visitor *v = *context;

	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		v = calloc(1, sizeof(*v));
		*context = v;
		if (!v)
			return;
		v->connection = c;
		v->fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
		v->since = monotonic_seconds();
		TAILQ_INSERT_TAIL(&h->visitors, v, link);
		h->count++;
	} else if (v) {
		TAILQ_REMOVE(&h->visitors, v, link);
		h->count--;
		*context = NULL;
		relay_free(v->relay);
		free(v);
	}
}

/*
 * Connections that wait for a text get no other one; the library closes the others when they run.
 */
static void drop_oldest(struct http *h)
{
	struct visitor *v;

	TAILQ_FOREACH(v, &h->visitors, link)
		if (v->wait != WAITS) {
			shutdown(v->fd, SHUT_RDWR);
			MHD_run(h->daemon);
			return;
		}
}

static void take_connections(struct http *h)
{
	for (unsigned int i = 0; i < BACKLOG; i++) {
		struct sockaddr_storage peer;
		socklen_t len = sizeof(peer);
		int fd = accept4(h->listen_fd, (struct sockaddr *)&peer, &len,
				 SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
			poll(NULL, 0, ACCEPT_PAUSE_MS); /* it stays readable */
		if (fd < 0)
			return;
		if (h->count == HTTP_CONNECTIONS)
			drop_oldest(h);
		if (h->count == HTTP_CONNECTIONS)
			close(fd);
		else /* closes it if that fails */
			MHD_add_connection(h->daemon, fd, (struct sockaddr *)&peer, len);
	}
}

/* Ends what takes too long, however slowly it goes on. */
static void tend(struct http *h)
{
	double now = monotonic_seconds();
	struct visitor *v;

	TAILQ_FOREACH(v, &h->visitors, link) {
		if (v->wait == WAITS && now - v->since > TEXT_SECONDS)
			http_resume(v, HAS_WAITED_IN_VAIN);
		else if (now - v->since > REQUEST_SECONDS)
			shutdown(v->fd, SHUT_RDWR);
	}
}

/* Fills in the descriptors to poll for connections that wait for replies; returns their number. */
static unsigned int poll_replies(const struct http *h, struct pollfd *fds)
{
	const struct visitor *v;
	unsigned int count = 0;

	TAILQ_FOREACH(v, &h->visitors, link)
		if (v->wait == WAITS && v->relay)
			fds[count++] = (struct pollfd){ .fd = v->relay->fd, .events = POLLIN };
	return count;
}

/* The visitors are the same as in poll_replies(). */
static void take_replies(struct http *h, const struct pollfd *fds)
{
	struct visitor *v;

	TAILQ_FOREACH(v, &h->visitors, link)
		if (v->wait == WAITS && v->relay && (fds++)->revents)
			read_replies(v);
}

static void *http_main(void *arg)
{
	struct http *h = arg;
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	struct pollfd fds[POLLED + HTTP_CONNECTIONS] = {
		{ .fd = h->wake, .events = POLLIN },
		{ .fd = h->listen_fd, .events = POLLIN },
		{ .fd = info->epoll_fd, .events = POLLIN },
	};

	while (!h->ends) {
		MHD_UNSIGNED_LONG_LONG wait;
		int timeout = 1000;

		if (MHD_get_timeout(h->daemon, &wait) == MHD_YES && wait < 1000)
			timeout = (int)wait;
		poll(fds, POLLED + poll_replies(h, fds + POLLED), timeout);
		if (fds[0].revents) {
			untell(h->wake);
			take_text(h);
			http_ask(h);
		}
		take_replies(h, fds + POLLED);
		if (fds[1].revents)
			take_connections(h);
		tend(h);
		MHD_run(h->daemon);
	}
	return NULL;
}

/* ---- life -------------------------------------------------------------------------- */

/* A socket that is bound there; -1 with errno. */
static int bind_to(const struct addrinfo *ai)
{
	int on = 1, fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) &&
	    !bind(fd, ai->ai_addr, ai->ai_addrlen))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static int listen_at(const struct config *cfg, char *err, size_t err_len)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
				  .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV };
	struct addrinfo *ai;
	int ret = 0, fd;
	char port[8];

	snprintf(port, sizeof(port), "%u", cfg->http_port);
	if (getaddrinfo(cfg->http_bind, port, &hints, &ai)) {
		snprintf(err, err_len, "http-bind: \"%s\" is not an IPv4 or IPv6 address",
			 cfg->http_bind);
		return -EINVAL;
	}
	fd = handed_claim(SOCK_STREAM, ai->ai_addr, ai->ai_addrlen);
	if (fd < 0)
		fd = bind_to(ai);
	if (fd < 0 || listen(fd, BACKLOG)) {
		ret = -errno;
		snprintf(err, err_len, "cannot listen on %s port %u (http-port): %s%s",
			 cfg->http_bind, cfg->http_port, strerror(-ret),
			 ret == -EADDRINUSE ? "; set another `http-port`" : "");
		if (fd >= 0)
			close(fd);
	}
	freeaddrinfo(ai);
	return ret ? ret : fd;
}

static void __attribute__((format(printf, 2, 0)))
log_library(void *arg, const char *format, va_list args)
{
	char text[256];

	vsnprintf(text, sizeof(text), format, args);
	text[strcspn(text, "\n")] = 0;
	log_debug("http: %s", text);
}

static struct MHD_Daemon *daemon_new(struct http *h, const struct MHD_OptionItem *tls)
{
	return MHD_start_daemon(
		MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME |
			MHD_USE_ERROR_LOG | (tls ? MHD_USE_TLS : 0),
		0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, log_library, NULL,
		MHD_OPTION_CONNECTION_LIMIT, (unsigned int)HTTP_CONNECTIONS,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned int)IDLE_SECONDS,
		MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_NOTIFY_COMPLETED,
		on_answered, h, tls ? MHD_OPTION_ARRAY : MHD_OPTION_END, tls, MHD_OPTION_END);
}

/* A file of PEM, malloc()ed; NULL with errno. */
static char *read_pem(const char *path)
{
	FILE *file = file_open(path);
	char *text = file ? calloc(1, PEM_MAX + 1) : NULL;
	size_t len = text ? fread(text, 1, PEM_MAX, file) : 0;
	int error = text && !ferror(file) ? ENODATA : errno;

	if (file)
		fclose(file);
	if (len)
		return text;
	free(text);
	errno = error;
	return NULL;
}

/*
 * With certificate and key of RESP, but with the library's own TLS.  Clients need no certificate:
 * they have passwords.
 */
static int start_with_tls(struct http *h, const struct config *cfg, char *err, size_t err_len)
{
	char *cert = read_pem(cfg->tls_cert_file);
	char *key = cert ? read_pem(cfg->tls_key_file) : NULL;
	const struct MHD_OptionItem tls[] = {
		{ MHD_OPTION_HTTPS_MEM_CERT, 0, cert },
		{ MHD_OPTION_HTTPS_MEM_KEY, 0, key },
		{ MHD_OPTION_HTTPS_KEY_PASSWORD, 0, (void *)(uintptr_t)cfg->tls_key_file_pass },
		{ MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)PRIORITIES },
		{ MHD_OPTION_END, 0, NULL },
	};

	if (!key)
		snprintf(err, err_len, "http-tls: cannot read %s: %s",
			 cert ? cfg->tls_key_file : cfg->tls_cert_file, file_error(errno));
	else if (!(h->daemon = daemon_new(h, tls)))
		snprintf(err, err_len, "http-tls: %s and %s are no certificate and its key",
			 cfg->tls_cert_file, cfg->tls_key_file);
	if (key)
		explicit_bzero(key, strlen(key));
	free(key);
	free(cert);
	return h->daemon ? 0 : -EINVAL;
}

int http_open(const struct config *cfg, struct http **out, char *err, size_t err_len)
{
	struct http *h;
	int ret = 0;

	*out = NULL;
	if (!cfg->http_port)
		return 0;
	h = calloc(1, sizeof(*h));
	if (!h) {
		snprintf(err, err_len, "not enough memory");
		return -ENOMEM;
	}
	TAILQ_INIT(&h->visitors);
	pthread_mutex_init(&h->lock, NULL);
	h->why_not = "loading\n";
	h->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	h->wanted = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	h->listen_fd = listen_at(cfg, err, err_len);
	if (h->listen_fd < 0)
		ret = h->listen_fd;
	if (!ret && h->wake >= 0 && h->wanted >= 0)
		h->console = make_console();
	if (h->console && cfg->http_tls)
		ret = start_with_tls(h, cfg, err, err_len);
	else if (h->console)
		h->daemon = daemon_new(h, NULL);
	if (h->daemon && !thread_without_signals(&h->thread, http_main, h))
		h->started = true;
	if (!ret && !h->started) {
		snprintf(err, err_len, "cannot start the thread of http-port: %s", strerror(errno));
		ret = -ENOMEM;
	}
	if (ret) {
		http_close(h);
		return ret;
	}
	log_notice("the console is at http%s://%s:%u/, metrics at /metrics",
		   cfg->http_tls ? "s" : "", cfg->http_bind, cfg->http_port);
	*out = h;
	return 0;
}

void http_close(struct http *h)
{
	struct visitor *v;

	if (!h)
		return;
	h->ends = true;
	if (h->started) {
		http_tell(h->wake);
		pthread_join(h->thread, NULL);
	}
	TAILQ_FOREACH(v, &h->visitors, link) /* the library ends no daemon with suspended ones */
		if (v->wait == WAITS)
			http_resume(v, HAS_WAITED_IN_VAIN);
	if (h->daemon)
		MHD_run(h->daemon); /* wakes them */
	if (h->daemon)
		MHD_stop_daemon(h->daemon);
	if (h->console)
		MHD_destroy_response(h->console);
	while (h->newcomers)
		close(h->newcomer[--h->newcomers].fd);
	for (unsigned int i = 0; i < METRICS_FORMATS; i++)
		if (h->page[i])
			MHD_destroy_response(h->page[i]);
	free(h->made);
	if (h->listen_fd >= 0)
		close(h->listen_fd);
	if (h->wake >= 0)
		close(h->wake);
	if (h->wanted >= 0)
		close(h->wanted);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

int http_fd(const struct http *h)
{
	return h->wanted;
}

void http_serve(struct http *h, http_text_fn *text, http_adopt_fn *adopt, void *arg)
{
	if (!h)
		return;
	pthread_mutex_lock(&h->lock);
	h->adopt = adopt;
	h->text = text;
	h->arg = arg;
	pthread_mutex_unlock(&h->lock);
}

void http_ready(struct http *h, const char *why_not)
{
	if (!h)
		return;
	pthread_mutex_lock(&h->lock);
	h->why_not = why_not;
	h->told_at = monotonic_seconds();
	pthread_mutex_unlock(&h->lock);
}

#else /* without libmicrohttpd */

int http_open(const struct config *cfg, struct http **out, char *err, size_t err_len)
{
	*out = NULL;
	if (!cfg->http_port)
		return 0;
	snprintf(err, err_len, "http-port: this xkvd was built without libmicrohttpd");
	return -ENOTSUP;
}

void http_close(struct http *h)
{
}

int http_fd(const struct http *h)
{
	return -1;
}

void http_serve(struct http *h, http_text_fn *text, http_adopt_fn *adopt, void *arg)
{
}

bool http_make(void *arg)
{
	return false;
}

void http_ready(struct http *h, const char *why_not)
{
}

#endif

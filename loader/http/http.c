/* SPDX-License-Identifier: BSD-2-Clause */
/* /metrics, /healthz and /readyz, with libmicrohttpd. */
#include "http.h"

#include <errno.h>
#include <stdio.h>

#ifdef XKV_HTTP

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

#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"

#define BACKLOG		 16
#define CONNECTION_BYTES 16384 /* what a connection may take, its request's lines included */
#define REQUEST_SECONDS	 15    /* from one reply, or the connection, to the end of the next */
#define IDLE_SECONDS	 10
#define ACCEPT_PAUSE_MS	 100 /* when file descriptors have run out */
#define TEXT_SECONDS	 10  /* that a text may take to be made */
#define SILENT_SECONDS	 10  /* without http_ready(): the event loop stands still */

/* While it waits for a text, its connection is suspended. */
enum wait { WAITS_NOT, WAITS, HAS_WAITED, HAS_WAITED_IN_VAIN };

/* A connection, and the request that it has now. */
struct visitor {
	TAILQ_ENTRY(visitor) link;
	struct MHD_Connection *connection;
	int fd;
	double since; /* it has come, has got a reply, or waits; by monotonic_seconds() */
	enum wait wait;
	enum metrics_format format; /* of the text that it waits for */
};

TAILQ_HEAD(visitors, visitor);

struct http {
	struct MHD_Daemon *daemon;
	int listener;
	int wake;   /* eventfd: a text is made, or it ends */
	int wanted; /* eventfd: http_make() is to be called */
	pthread_t thread;
	bool started;
	_Atomic bool ends;

	/* of the thread */
	struct visitors visitors; /* by `since` */
	unsigned int count;
	struct MHD_Response *page[METRICS_FORMATS]; /* the last text; NULL: none, or no memory */
	bool asked;				    /* http_make() has not answered yet */

	/* of both threads, with the lock */
	pthread_mutex_t lock;
	http_text_fn *text;
	void *arg;
	enum metrics_format format; /* of what is asked for, and of `made` */
	char *made;
	size_t made_len;
	bool done;
	const char *why_not;
	double told_at; /* http_ready() */
};

/* ---- texts ------------------------------------------------------------------- */

static void tell(int fd)
{
	eventfd_write(fd, 1); /* fails at 2^64: it is readable then */
}

static void untell(int fd)
{
	eventfd_t value;

	eventfd_read(fd, &value);
}

bool http_make(void *arg)
{
	enum metrics_format format;
	struct http *h = arg;
	char *text;
	size_t len = 0;

	untell(h->wanted);
	pthread_mutex_lock(&h->lock);
	format = h->format;
	pthread_mutex_unlock(&h->lock);
	text = h->text(h->arg, format, &len);
	pthread_mutex_lock(&h->lock);
	h->made = text;
	h->made_len = len;
	h->done = true;
	pthread_mutex_unlock(&h->lock);
	tell(h->wake);
	return false;
}

/* Asks for the text that somebody waits for, unless one is being made. */
static void ask(struct http *h)
{
	struct visitor *v;

	TAILQ_FOREACH(v, &h->visitors, link)
		if (v->wait == WAITS)
			break;
	if (!v || h->asked)
		return;
	h->asked = true;
	pthread_mutex_lock(&h->lock);
	h->format = v->format;
	pthread_mutex_unlock(&h->lock);
	tell(h->wanted);
}

static void resume(struct visitor *v, enum wait wait)
{
	v->wait = wait;
	MHD_resume_connection(v->connection);
}

/* What was made is there for all who wait for this format. */
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
		if (v->wait == WAITS && v->format == h->format)
			resume(v, page ? HAS_WAITED : HAS_WAITED_IN_VAIN);
}

/* ---- requests ------------------------------------------------------------------ */

static enum MHD_Result reply(struct MHD_Connection *c, unsigned int status, const char *text)
{
	struct MHD_Response *r = MHD_create_response_from_buffer(
		strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
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

static enum MHD_Result reply_metrics(struct http *h, struct MHD_Connection *c, struct visitor *v)
{
	bool serves;

	if (v->wait == HAS_WAITED)
		return MHD_queue_response(c, MHD_HTTP_OK, h->page[v->format]);
	if (v->wait == HAS_WAITED_IN_VAIN)
		return reply(c, MHD_HTTP_SERVICE_UNAVAILABLE,
			     "the figures could not be read in time\n");
	pthread_mutex_lock(&h->lock);
	serves = h->text;
	pthread_mutex_unlock(&h->lock);
	if (!serves)
		return reply(c, MHD_HTTP_SERVICE_UNAVAILABLE, "loading\n");
	v->format = openmetrics_accepted(
		MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT));
	v->wait = WAITS;
	renew(h, v);
	MHD_suspend_connection(c);
	ask(h);
	return MHD_YES;
}

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

	(void)version;
	(void)body;
	if (!v)
		return MHD_NO;
	if (strcmp(method, MHD_HTTP_METHOD_GET) && strcmp(method, MHD_HTTP_METHOD_HEAD))
		return reply(c, MHD_HTTP_METHOD_NOT_ALLOWED, "GET and HEAD only\n");
	if (!*seen || *body_len) {
		*seen = v;
		*body_len = 0;
		return MHD_YES;
	}
	if (!strcmp(path, "/metrics"))
		return reply_metrics(h, c, v);
	if (!strcmp(path, "/healthz"))
		return reply(c, MHD_HTTP_OK, "ok\n");
	if (strcmp(path, "/readyz"))
		return reply(c, MHD_HTTP_NOT_FOUND, "there are /metrics, /healthz and /readyz\n");
	why = why_not_ready(h);
	return why ? reply(c, MHD_HTTP_SERVICE_UNAVAILABLE, why) : reply(c, MHD_HTTP_OK, "ok\n");
}

static void on_answered(void *arg, struct MHD_Connection *c, void **seen,
			enum MHD_RequestTerminationCode code)
{
	struct http *h = arg;
	struct visitor *v = visitor_of(c);

	(void)seen;
	(void)code;
	if (!v)
		return;
	v->wait = WAITS_NOT;
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
		free(v);
	}
}

/* Those who wait for a text get no other one; the library closes the others when they run. */
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
		int fd = accept4(h->listener, (struct sockaddr *)&peer, &len,
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
			resume(v, HAS_WAITED_IN_VAIN);
		else if (now - v->since > REQUEST_SECONDS)
			shutdown(v->fd, SHUT_RDWR);
	}
}

static void *http_main(void *arg)
{
	struct http *h = arg;
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	struct pollfd fds[] = {
		{ .fd = h->wake, .events = POLLIN },
		{ .fd = h->listener, .events = POLLIN },
		{ .fd = info->epoll_fd, .events = POLLIN },
	};

	while (!h->ends) {
		MHD_UNSIGNED_LONG_LONG wait;
		int timeout = 1000;

		if (MHD_get_timeout(h->daemon, &wait) == MHD_YES && wait < 1000)
			timeout = (int)wait;
		poll(fds, 3, timeout);
		if (fds[0].revents) {
			untell(h->wake);
			take_text(h);
			ask(h);
		}
		if (fds[1].revents)
			take_connections(h);
		tend(h);
		MHD_run(h->daemon);
	}
	return NULL;
}

/* ---- life -------------------------------------------------------------------------- */

static int listen_at(const struct config *cfg, char *err, size_t err_len)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
				  .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV };
	int on = 1, fd, ret = 0;
	struct addrinfo *ai;
	char port[8];

	snprintf(port, sizeof(port), "%u", cfg->http_port);
	if (getaddrinfo(cfg->http_bind, port, &hints, &ai)) {
		snprintf(err, err_len, "http-bind: \"%s\" is not an IPv4 or IPv6 address",
			 cfg->http_bind);
		return -EINVAL;
	}
	fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(fd, ai->ai_addr, ai->ai_addrlen) || listen(fd, BACKLOG)) {
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

	(void)arg;
	vsnprintf(text, sizeof(text), format, args);
	text[strcspn(text, "\n")] = 0;
	log_debug("http: %s", text);
}

static struct MHD_Daemon *daemon_new(struct http *h)
{
	return MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET |
					MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG,
				0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER,
				log_library, NULL, MHD_OPTION_CONNECTION_LIMIT,
				(unsigned int)HTTP_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
				(size_t)CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
				(unsigned int)IDLE_SECONDS, MHD_OPTION_NOTIFY_CONNECTION,
				on_connection, h, MHD_OPTION_NOTIFY_COMPLETED, on_answered, h,
				MHD_OPTION_END);
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
	h->listener = listen_at(cfg, err, err_len);
	if (h->listener < 0)
		ret = h->listener;
	if (!ret && h->wake >= 0 && h->wanted >= 0)
		h->daemon = daemon_new(h);
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
	log_notice("metrics are at http://%s:%u/metrics", cfg->http_bind, cfg->http_port);
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
		tell(h->wake);
		pthread_join(h->thread, NULL);
	}
	TAILQ_FOREACH(v, &h->visitors, link) /* the library ends no daemon with suspended ones */
		if (v->wait == WAITS)
			resume(v, HAS_WAITED_IN_VAIN);
	if (h->daemon)
		MHD_run(h->daemon); /* they are told */
	if (h->daemon)
		MHD_stop_daemon(h->daemon);
	for (unsigned int i = 0; i < METRICS_FORMATS; i++)
		if (h->page[i])
			MHD_destroy_response(h->page[i]);
	free(h->made);
	if (h->listener >= 0)
		close(h->listener);
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

void http_serve(struct http *h, http_text_fn *text, void *arg)
{
	if (!h)
		return;
	pthread_mutex_lock(&h->lock);
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
	(void)h;
}

int http_fd(const struct http *h)
{
	(void)h;
	return -1;
}

void http_serve(struct http *h, http_text_fn *text, void *arg)
{
	(void)h;
	(void)text;
	(void)arg;
}

bool http_make(void *arg)
{
	(void)arg;
	return false;
}

void http_ready(struct http *h, const char *why_not)
{
	(void)h;
	(void)why_not;
}

#endif

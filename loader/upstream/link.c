/* SPDX-License-Identifier: BSD-2-Clause */
#include "link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/tls.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/text.h"

#define READ_SIZE     65536
#define READS_A_CALL  16
#define WRITE_VECTORS 64
#define PATIENCE      5.0 /* seconds for connecting and signing in */
#define KEEPALIVE     60
#define PUSH_MAX      (768U << 20)

/* ---- what is sent --------------------------------------------------------- */

static void append_count(struct outbox *o, char type, size_t number)
{
	char text[TEXT_NUMBER_MAX + 3] = { type };
	size_t len = 1 + text_from_u64(text + 1, number);

	text[len++] = '\r';
	text[len++] = '\n';
	outbox_append(o, text, len);
}

static void append_word(struct outbox *o, const char *word, size_t len)
{
	append_count(o, '$', len);
	outbox_append(o, word, len);
	outbox_append(o, "\r\n", 2);
}

void call_append(struct outbox *o, unsigned int argc, const struct resp_arg *argv)
{
	append_count(o, '*', argc);
	for (unsigned int i = 0; i < argc; i++)
		append_word(o, argv[i].ptr, argv[i].len);
}

void link_call(struct link *l, unsigned int argc, const struct resp_arg *argv)
{
	call_append(&l->out, argc, argv);
}

void link_words(struct link *l, unsigned int argc, const char *const *argv)
{
	append_count(&l->out, '*', argc);
	for (unsigned int i = 0; i < argc; i++)
		append_word(&l->out, argv[i], strlen(argv[i]));
}

void link_tell(struct link *l, unsigned int argc, const char *const *argv)
{
	link_words(l, argc, argv);
	link_expect_any(l);
}

void link_written(struct link *l)
{
	if (l->out.failed)
		link_fail(l, "out of memory");
	else if (l->state == LINK_UP)
		ev_prepare_start(l->loop, &l->flush);
}

void link_sent(struct link *l, struct request *r)
{
	if (STAILQ_EMPTY(&l->sent))
		l->waits_since_ns = monotonic_ns();
	STAILQ_INSERT_TAIL(&l->sent, r, next);
	link_written(l);
}

/* Sends what the socket takes. */
void link_flush(struct link *l)
{
	struct iovec iov[WRITE_VECTORS];
	ssize_t n;

	while (l->state == LINK_UP && l->out.bytes) {
		n = l->conn.transport->writev(&l->conn, iov,
					      outbox_iov(&l->out, iov, WRITE_VECTORS));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN)
			link_fail(l, connection_error(&l->conn));
		if (n < 0)
			break;
		outbox_sent(&l->out, (size_t)n);
	}
	if (l->state != LINK_UP)
		return;
	if (l->out.bytes) {
		ev_io_start(l->loop, &l->writable);
		return;
	}
	ev_io_stop(l->loop, &l->writable);
	if (l->ends)
		shutdown(l->conn.fd, SHUT_WR); /* fails where the upstream has closed it */
	if (l->events->drained)
		l->events->drained(l);
}

void link_end(struct link *l)
{
	l->ends = true;
	link_flush(l);
}

static void on_flush(struct ev_loop *loop, ev_prepare *w, int events)
{
	ev_prepare_stop(loop, w);
	link_flush(w->data);
}

/* ---- requests of our own --------------------------------------------------- */

/* One whose reply is of little interest. */
struct own_request {
	struct request request;
	bool may_fail;
	size_t len; /* of `text` */
	char text[128];
};

static void own_reply(struct link *l, struct request *r, const char *bytes, size_t len, bool end)
{
	struct own_request *own = (struct own_request *)r;
	size_t room = sizeof(own->text) - 1 - own->len;

	len = len < room ? len : room;
	memcpy(own->text + own->len, bytes, len);
	own->len += len;
	if (!end)
		return;
	own->text[own->len] = '\0';
	own->text[strcspn(own->text, "\r\n")] = '\0';
	if (own->text[0] == '-' && !own->may_fail) {
		snprintf(l->why, sizeof(l->why), "%s", own->text + 1);
		link_fail(l, l->why);
	}
	free(own);
}

static void own_lost(struct link *l, struct request *r)
{
	free(r);
}

static void expect(struct link *l, const struct request_kind *kind, bool may_fail)
{
	struct own_request *own = calloc(1, sizeof(*own));

	if (!own) {
		link_fail(l, "out of memory");
		return;
	}
	own->request.kind = kind;
	own->may_fail = may_fail;
	link_sent(l, &own->request);
}

static const struct request_kind expected = { own_reply, own_lost };

void link_expect_ok(struct link *l)
{
	expect(l, &expected, false);
}

void link_expect_any(struct link *l)
{
	expect(l, &expected, true);
}

/* The last reply of those that sign in. */
static void signed_in(struct link *l, struct request *r, const char *bytes, size_t len, bool end)
{
	bool failed = l->failed;

	own_reply(l, r, bytes, len, end);
	if (!end || failed || l->failed)
		return;
	l->ready = true;
	ev_timer_stop(l->loop, &l->patience);
	if (l->events->ready)
		l->events->ready(l);
}

static void sign_in(struct link *l)
{
	static const struct request_kind last = { signed_in, own_lost };
	const struct upstream_address *a = l->address;
	const char *user = a->user[0] ? a->user : "default";

	if (l->protocol == PROTOCOL_RESP3) {
		link_words(l, a->password[0] ? 5 : 2,
			   (const char *[]){ "HELLO", "3", "AUTH", user, a->password });
		link_expect_ok(l);
	} else if (a->password[0]) { /* without a user as old servers understand it, too */
		if (a->user[0])
			link_words(l, 3, (const char *[]){ "AUTH", user, a->password });
		else
			link_words(l, 2, (const char *[]){ "AUTH", a->password });
		link_expect_ok(l);
	}
	link_words(l, 1, (const char *[]){ "PING" }); /* LOADING, MASTERDOWN, NOAUTH */
	expect(l, &last, false);
}

/* ---- what comes ------------------------------------------------------------ */

static void take_push(struct link *l, const char *bytes, size_t len, bool end)
{
	char *whole;
	size_t size;

	outbox_append(&l->push, bytes, len);
	if (l->push.failed || l->push.bytes > PUSH_MAX)
		link_fail(l, "a push message is too long");
	if (!end || l->failed)
		return;
	size = l->push.bytes;
	whole = malloc(size);
	if (!whole) {
		link_fail(l, "out of memory");
		return;
	}
	outbox_flatten(&l->push, whole);
	outbox_free(&l->push);
	l->events->push(l, whole, size);
	free(whole);
}

/* A part of a reply. */
static void deliver(struct link *l, const char *bytes, size_t len, bool end)
{
	struct request *r = STAILQ_FIRST(&l->sent);

	if (l->type == '>' && l->events->push) {
		take_push(l, bytes, len, end);
	} else if (r && l->type != '>') {
		if (end)
			STAILQ_REMOVE_HEAD(&l->sent, next);
		r->kind->reply(l, r, bytes, len, end);
	} else if (l->raw && l->events->bytes) {
		l->events->bytes(l, bytes, len, end);
	} else if (l->type != '>') {
		link_fail(l, "it says what nobody has asked for");
	}
}

static void take(struct link *l, const char *bytes, size_t len)
{
	bool end;
	ssize_t n;

	l->waits_since_ns = monotonic_ns();
	for (size_t at = 0; at < len && !l->failed; at += (size_t)n) {
		if (!l->frames.left && !l->frames.line_len)
			l->type = bytes[at];
		n = frames_scan(&l->frames, bytes + at, len - at, &end);
		if (n < 0)
			link_fail(l, "it does not speak RESP");
		else
			deliver(l, bytes + at, (size_t)n, end);
	}
}

/* What a failure has to do, when nobody else is using the link. */
static void end(struct link *l)
{
	link_close(l);
	l->events->lost(l, l->why);
}

static void shake(struct link *l);

static void on_readable(struct ev_loop *loop, ev_io *w, int events)
{
	static char buffer[READ_SIZE]; /* of the only thread */
	struct link *l = w->data;
	ssize_t n;

	if (l->state == LINK_SHAKING)
		shake(l);
	for (unsigned int i = 0; i < READS_A_CALL && l->state == LINK_UP && !l->failed; i++) {
		n = l->conn.transport->read(&l->conn, buffer, sizeof(buffer));
		if (n > 0)
			take(l, buffer, (size_t)n);
		else if (!n)
			link_fail(l, "it has closed the connection");
		else if (errno != EAGAIN && errno != EINTR)
			link_fail(l, connection_error(&l->conn));
		if (n < (ssize_t)sizeof(buffer) && !l->conn.more)
			break;
	}
	if (l->failed)
		end(l);
	else if (l->conn.more) /* polling says nothing of it */
		ev_feed_event(loop, w, EV_READ);
}

/* ---- life ------------------------------------------------------------------ */

static void on_patience_end(struct ev_loop *loop, ev_timer *w, int events)
{
	struct link *l = w->data;

	if (!l->failed)
		link_fail(l,
			  l->state == LINK_UP ? "it does not answer" : "no connection within 5 s");
	end(l);
}

static void connected(struct link *l)
{
	l->state = LINK_UP;
	ev_io_stop(l->loop, &l->writable);
	ev_io_start(l->loop, &l->readable);
	link_flush(l);
}

/* Goes on with the handshake. */
static void shake(struct link *l)
{
	switch (tls_handshake(&l->conn)) {
	case TLS_DONE:
		connected(l);
		break;
	case TLS_FAILED:
		link_fail(l, connection_error(&l->conn));
		break;
	case TLS_WANTS_WRITE:
		ev_io_start(l->loop, &l->writable);
		break;
	case TLS_WANTS_READ:
		ev_io_stop(l->loop, &l->writable);
		ev_io_start(l->loop, &l->readable);
	}
}

static void begin_tls(struct link *l)
{
	if (tls_connect(&l->conn, l->address->tls, l->address->host)) {
		link_fail(l, "out of memory");
		return;
	}
	l->state = LINK_SHAKING;
	shake(l);
}

static void on_writable(struct ev_loop *loop, ev_io *w, int events)
{
	struct link *l = w->data;
	int error = 0;
	socklen_t len = sizeof(error);

	if (l->state == LINK_UP) {
		link_flush(l);
		return;
	}
	if (l->state == LINK_SHAKING) {
		shake(l);
		return;
	}
	if (getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &error, &len))
		error = errno;
	if (error)
		link_fail(l, strerror(error));
	else if (l->address->is_tls)
		begin_tls(l);
	else
		connected(l);
}

void link_init(struct link *l, struct ev_loop *loop, const struct upstream_address *address,
	       const struct link_events *events, void *arg)
{
	*l = (struct link){ .loop = loop, .address = address, .events = events, .arg = arg };
	l->conn.fd = -1;
	STAILQ_INIT(&l->sent);
	ev_init(&l->readable, on_readable);
	ev_init(&l->writable, on_writable);
	ev_init(&l->patience, on_patience_end);
	ev_prepare_init(&l->flush, on_flush);
	l->readable.data = l->writable.data = l->patience.data = l->flush.data = l;
}

static int connect_to(const struct sockaddr *addr, socklen_t len)
{
	int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error;

	if (fd < 0 || !connect(fd, addr, len) || errno == EINPROGRESS)
		return fd;
	error = errno;
	close(fd);
	errno = error;
	return -1;
}

static int connect_host(struct link *l)
{
	const struct upstream_address *a = l->address;
	int fd = -1;

	errno = EADDRNOTAVAIL; /* nobody has looked it up */
	for (unsigned int i = 0; i < a->found && fd < 0; i++)
		fd = connect_to((const struct sockaddr *)&a->at[(a->turn + i) % a->found].addr,
				a->at[(a->turn + i) % a->found].len);
	snprintf(l->why, sizeof(l->why), "%s", strerror(errno));
	return fd;
}

static int connect_path(struct link *l)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd;

	/* upstream_address() has seen that it fits */
	memcpy(addr.sun_path, l->address->host, sizeof(addr.sun_path) - 1);
	fd = connect_to((struct sockaddr *)&addr, sizeof(addr));
	snprintf(l->why, sizeof(l->why), "%s", strerror(errno));
	return fd;
}

void link_open(struct link *l, enum protocol protocol)
{
	int fd = l->address->is_unix ? connect_path(l) : connect_host(l);

	l->failed = fd < 0; /* its owner learns of that when it is back in the loop */
	l->protocol = protocol;
	l->ready = l->raw = false;
	l->frames = (struct frames){ 0 };
	l->state = LINK_CONNECTING;
	ev_timer_set(&l->patience, fd < 0 ? 0. : PATIENCE, 0.);
	ev_now_update(l->loop);
	ev_timer_start(l->loop, &l->patience);
	if (fd < 0)
		return;
	if (l->address->is_unix)
		connection_unix(&l->conn, fd);
	else
		connection_tcp(&l->conn, fd, KEEPALIVE);
	ev_io_set(&l->readable, fd, EV_READ);
	ev_io_set(&l->writable, fd, EV_WRITE);
	ev_io_start(l->loop, &l->writable);
	sign_in(l);
}

void link_close(struct link *l)
{
	struct request *r;

	if (l->state == LINK_CLOSED)
		return;
	l->state = LINK_CLOSED;
	l->ready = false;
	ev_io_stop(l->loop, &l->readable);
	ev_io_stop(l->loop, &l->writable);
	ev_timer_stop(l->loop, &l->patience);
	ev_prepare_stop(l->loop, &l->flush);
	if (l->conn.fd >= 0)
		l->conn.transport->close(&l->conn);
	outbox_free(&l->out);
	outbox_free(&l->push);
	l->out.failed = l->push.failed = false;
	while ((r = STAILQ_FIRST(&l->sent))) {
		STAILQ_REMOVE_HEAD(&l->sent, next);
		r->kind->lost(l, r);
	}
}

/* Closed when the loop comes round: its caller, and theirs, may be using it. */
void link_fail(struct link *l, const char *why)
{
	if (l->state == LINK_CLOSED || l->failed)
		return;
	if (why != l->why)
		snprintf(l->why, sizeof(l->why), "%s", why);
	l->failed = true;
	ev_timer_stop(l->loop, &l->patience);
	ev_timer_set(&l->patience, 0., 0.);
	ev_timer_start(l->loop, &l->patience);
}

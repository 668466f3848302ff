// SPDX-License-Identifier: BSD-2-Clause
/* TCP, one connection per client: requests are pipelined, replies arrive in the same order. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench/common/message.h"
#include "transport.h"
#include "worker.h"

#define EVENTS	    64
#define BUFFER_STEP (64 << 10)
#define REPLY_MAX   (16 << 20) /* bytes; longer than any valid reply */

struct buffer {
	uint8_t *data;
	size_t len, room;
	size_t done; /* of len: already sent */
};

struct stream {
	struct buffer out, in;
};

struct tcp {
	const struct options *o;
	struct server_address server;
	int epoll;	       /* -1 with a single client */
	struct client **dirty; /* those that have bytes to send */
	unsigned int dirties;
};

/* Room for `more` bytes behind those that are there. */
static bool grow(struct buffer *b, size_t more)
{
	size_t room = b->room ? b->room : BUFFER_STEP;
	uint8_t *data;

	if (b->room - b->len >= more)
		return true;
	while (room - b->len < more)
		room *= 2;
	data = realloc(b->data, room);
	if (!data)
		return false;
	b->data = data;
	b->room = room;
	return true;
}

static int connect_client(struct client *c, const struct options *o,
			  const struct server_address *server)
{
	unsigned int ms = o->timeout_ms < SLICE_MS ? o->timeout_ms : SLICE_MS;
	struct timeval slice = { .tv_usec = ms * 1000 };
	struct timeval wait = { .tv_sec = o->timeout_ms / 1000,
				.tv_usec = o->timeout_ms % 1000 * 1000 };
	int on = 1;

	c->fd = socket(server->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) ||
	    setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) ||
	    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof(slice)) ||
	    connect(c->fd, (const struct sockaddr *)&server->addr, server->len))
		return -errno;
	return 0;
}

/* Makes epoll wait for data, and with EPOLLOUT for room to send, too. */
static int watch(struct tcp *t, struct client *c, int op, uint32_t out)
{
	struct epoll_event ev = { .events = EPOLLIN | out, .data.ptr = c };

	return t->epoll < 0 || !epoll_ctl(t->epoll, op, c->fd, &ev) ? 0 : -errno;
}

static int open_clients(struct worker *w, struct tcp *t)
{
	for (unsigned int i = 0; i < w->clients; i++) {
		struct client *c = &w->client[i];
		int err;

		c->stream = calloc(1, sizeof(*c->stream));
		err = c->stream ? connect_client(c, t->o, &t->server) : -ENOMEM;
		if (!err)
			err = watch(t, c, EPOLL_CTL_ADD, 0);
		if (!err)
			continue;
		message("cannot connect client %u: %s%s", c->number, strerror(-err),
			err == -EMFILE ? "; raise the limit with ulimit -n" : "");
		return err;
	}
	return 0;
}

static int tcp_open(struct worker *w, const struct options *o, const struct server_address *server)
{
	struct tcp *t = calloc(1, sizeof(*t));

	w->transport_state = t;
	if (t)
		t->dirty = calloc(w->clients, sizeof(*t->dirty));
	if (!t || !t->dirty) {
		message("out of memory");
		return -ENOMEM;
	}
	t->o = o;
	t->server = *server;
	t->epoll = w->clients > 1 ? epoll_create1(EPOLL_CLOEXEC) : -1;
	if (w->clients > 1 && t->epoll < 0) {
		message("cannot watch the connections with epoll: %s", strerror(errno));
		return -errno;
	}
	return open_clients(w, t);
}

static void tcp_close(struct worker *w)
{
	struct tcp *t = w->transport_state;

	for (unsigned int i = 0; i < w->clients; i++) {
		struct client *c = &w->client[i];

		if (c->fd >= 0)
			close(c->fd);
		if (!c->stream)
			continue;
		free(c->stream->in.data);
		free(c->stream->out.data);
		free(c->stream);
	}
	if (!t)
		return;
	if (t->epoll >= 0 && w->clients > 1)
		close(t->epoll);
	free(t->dirty);
	free(t);
}

static uint8_t *tcp_reserve(struct worker *w, struct client *c, size_t room)
{
	struct buffer *out = &c->stream->out;

	return grow(out, room) ? out->data + out->len : NULL;
}

static void tcp_commit(struct worker *w, struct client *c, size_t len)
{
	struct tcp *t = w->transport_state;

	c->stream->out.len += len;
	if (!c->dirty)
		t->dirty[t->dirties++] = c;
	c->dirty = true;
}

/* Drops a broken connection and its outstanding requests. */
static void give_up(struct worker *w, struct client *c, int err)
{
	worker_socket_error(w, err);
	worker_drop(w, c);
	w->transport->reset(w, c);
}

/* True if bytes are left that the kernel has no room for. */
static bool send_client(struct worker *w, struct client *c)
{
	struct buffer *out = &c->stream->out;
	ssize_t n = send(c->fd, out->data + out->done, out->len - out->done,
			 MSG_DONTWAIT | MSG_NOSIGNAL);

	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		give_up(w, c, errno);
		return false;
	}
	out->done += n > 0 ? n : 0;
	if (out->done < out->len)
		return true;
	out->done = out->len = 0;
	return false;
}

static void tcp_flush(struct worker *w)
{
	struct tcp *t = w->transport_state;
	unsigned int left = 0;

	for (unsigned int i = 0; i < t->dirties; i++) {
		struct client *c = t->dirty[i];
		bool more = send_client(w, c);

		c->dirty = more;
		if (more) {
			t->dirty[left++] = c;
			/* If that fails, it is sent with the next reply. */
			(void)watch(t, c, EPOLL_CTL_MOD, EPOLLOUT);
		}
	}
	t->dirties = left;
}

/* Passes complete replies to the worker, and moves the rest to the front of the buffer. */
static void take_replies(struct worker *w, struct client *c)
{
	struct buffer *in = &c->stream->in;
	ssize_t used = worker_stream(w, c, in->data, in->len);

	if (used < 0 || (!used && in->len > REPLY_MAX)) {
		in->len = 0;
		give_up(w, c, EPROTO);
		return;
	}
	memmove(in->data, in->data + used, in->len - used);
	in->len -= used;
}

static void take_from(struct worker *w, struct client *c, int flags)
{
	struct buffer *in = &c->stream->in;
	ssize_t n;

	if (!grow(in, BUFFER_STEP / 2)) {
		worker_fail(w, "out of memory for replies");
		return;
	}
	n = recv(c->fd, in->data + in->len, in->room - in->len, flags);
	w->now = now_ns();
	if (n > 0) {
		in->len += n;
		take_replies(w, c);
	} else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
		give_up(w, c, n ? errno : ECONNRESET);
	}
}

/* One client needs no epoll: recv() itself waits, unless there is something to send, too. */
static void wait_for_one(struct worker *w, uint64_t wait)
{
	struct client *c = &w->client[0];
	struct timespec t = { wait / 1000000000, wait % 1000000000 };
	struct pollfd poll = { .fd = c->fd, .events = POLLIN | (c->dirty ? POLLOUT : 0) };
	bool blocking = wait && w->gap == 0 && !c->dirty;

	if (blocking || (ppoll(&poll, 1, &t, NULL) > 0 && poll.revents & ~POLLOUT))
		take_from(w, c, blocking ? 0 : MSG_DONTWAIT);
}

static void tcp_receive(struct worker *w, uint64_t wait)
{
	struct tcp *t = w->transport_state;
	struct timespec time = { wait / 1000000000, wait % 1000000000 };
	struct epoll_event event[EVENTS];
	int n;

	if (t->epoll < 0) {
		wait_for_one(w, wait);
		return;
	}
	n = epoll_pwait2(t->epoll, event, EVENTS, &time, NULL);
	for (int i = 0; i < n; i++) {
		struct client *c = event[i].data.ptr;

		if (event[i].events & ~EPOLLOUT)
			take_from(w, c, MSG_DONTWAIT);
		/* the next flush sends, and waits for EPOLLOUT again if needed */
		if (event[i].events & EPOLLOUT)
			(void)watch(t, c, EPOLL_CTL_MOD, 0);
	}
}

static void tcp_reset(struct worker *w, struct client *c)
{
	struct tcp *t = w->transport_state;
	int err;

	close(c->fd);
	c->stream->in.len = c->stream->out.len = c->stream->out.done = 0;
	err = connect_client(c, t->o, &t->server);
	if (!err)
		err = watch(t, c, EPOLL_CTL_ADD, 0);
	if (err)
		worker_fail(w, "the server closed a connection and takes no new one");
}

const struct transport transport_tcp = {
	.name = "tcp",
	.open = tcp_open,
	.close = tcp_close,
	.reserve = tcp_reserve,
	.commit = tcp_commit,
	.flush = tcp_flush,
	.receive = tcp_receive,
	.reset = tcp_reset,
};

// SPDX-License-Identifier: BSD-2-Clause
/* Connected UDP sockets, one per client; several datagrams per system call if possible. */
#include <errno.h>
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

#define SEND_BATCH   64
#define RECV_BATCH   32
#define EVENTS	     64
#define BUFFER_BYTES (4 << 20) /* of a socket with many requests out */

struct batch {
	struct mmsghdr msg[SEND_BATCH];
	struct iovec iov[SEND_BATCH];
	uint8_t data[SEND_BATCH][DATAGRAM_MAX];
};

struct udp {
	int epoll; /* -1 with a single client */
	unsigned int pending;
	struct client *to[SEND_BATCH];
	struct batch out, in;
};

static int open_client(struct client *c, const struct options *o,
		       const struct server_address *server)
{
	unsigned int ms = o->timeout_ms < SLICE_MS ? o->timeout_ms : SLICE_MS;
	struct timeval slice = { .tv_usec = ms * 1000 };
	int bytes = BUFFER_BYTES;

	c->fd = socket(server->addr.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof(slice)) ||
	    connect(c->fd, (const struct sockaddr *)&server->addr, server->len))
		return -errno;
	/* Enlarges the buffers as far as allowed.  Datagrams that do not fit count as lost. */
	if (o->depth > 1 && setsockopt(c->fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)))
		(void)setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
	return 0;
}

/* One client needs no epoll: recv() itself waits. */
static int watch(struct udp *u, struct worker *w)
{
	u->epoll = -1;
	if (w->clients == 1)
		return 0;
	u->epoll = epoll_create1(EPOLL_CLOEXEC);
	for (unsigned int i = 0; i < w->clients && u->epoll >= 0; i++) {
		struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &w->client[i] };

		if (epoll_ctl(u->epoll, EPOLL_CTL_ADD, w->client[i].fd, &ev))
			break;
		if (i + 1 == w->clients)
			return 0;
	}
	message("cannot watch the sockets with epoll: %s", strerror(errno));
	return -errno;
}

static int udp_open(struct worker *w, const struct options *o, const struct server_address *server)
{
	struct udp *u = calloc(1, sizeof(*u));

	w->transport_state = u;
	if (!u) {
		message("out of memory");
		return -ENOMEM;
	}
	for (int i = 0; i < SEND_BATCH; i++) {
		struct batch *both[] = { &u->out, &u->in };

		for (int j = 0; j < 2; j++) {
			struct batch *b = both[j];

			b->iov[i] = (struct iovec){ b->data[i], DATAGRAM_MAX };
			b->msg[i].msg_hdr.msg_iov = &b->iov[i];
			b->msg[i].msg_hdr.msg_iovlen = 1;
		}
	}
	for (unsigned int i = 0; i < w->clients; i++) {
		int err = open_client(&w->client[i], o, server);

		if (!err)
			continue;
		message("cannot open a socket for client %u: %s%s", w->client[i].number,
			strerror(-err), err == -EMFILE ? "; raise the limit with ulimit -n" : "");
		return err;
	}
	return watch(u, w);
}

static void udp_close(struct worker *w)
{
	struct udp *u = w->transport_state;

	for (unsigned int i = 0; i < w->clients; i++) {
		if (w->client[i].fd >= 0)
			close(w->client[i].fd);
	}
	if (u && u->epoll > 0)
		close(u->epoll);
	free(u);
}

static uint8_t *udp_reserve(struct worker *w, struct client *c, size_t room)
{
	struct udp *u = w->transport_state;

	return u->pending < SEND_BATCH ? u->out.data[u->pending] : NULL;
}

static void udp_commit(struct worker *w, struct client *c, size_t len)
{
	struct udp *u = w->transport_state;

	u->to[u->pending] = c;
	u->out.iov[u->pending++].iov_len = len;
}

/* A datagram that the kernel refuses to send is treated as lost. */
static void send_run(struct worker *w, struct udp *u, unsigned int from, unsigned int to)
{
	int fd = u->to[from]->fd;

	if (to - from == 1) {
		if (send(fd, u->out.data[from], u->out.iov[from].iov_len, 0) < 0)
			worker_socket_error(w, errno);
		return;
	}
	while (from < to) {
		int n = sendmmsg(fd, &u->out.msg[from], to - from, 0);

		if (n < 0)
			worker_socket_error(w, errno);
		from += n > 0 ? n : 1;
	}
}

static void udp_flush(struct worker *w)
{
	struct udp *u = w->transport_state;
	unsigned int from = 0;

	for (unsigned int i = 1; i <= u->pending; i++) {
		if (i < u->pending && u->to[i] == u->to[from])
			continue;
		send_run(w, u, from, i);
		from = i;
	}
	u->pending = 0;
}

static void count_failure(struct worker *w, ssize_t ret)
{
	if (ret < 0 && errno != EAGAIN && errno != EINTR)
		worker_socket_error(w, errno);
}

/* Takes what a socket has, once. */
static void take_from(struct worker *w, struct client *c, int flags)
{
	struct udp *u = w->transport_state;
	ssize_t n;

	if (w->depth == 1) {
		n = recv(c->fd, u->in.data[0], DATAGRAM_MAX, flags);
		w->now = now_ns();
		if (n >= 0)
			worker_datagram(w, c, u->in.data[0], n);
	} else {
		n = recvmmsg(c->fd, u->in.msg, RECV_BATCH, flags | MSG_WAITFORONE, NULL);
		w->now = now_ns();
		for (int i = 0; i < n; i++)
			worker_datagram(w, c, u->in.data[i], u->in.msg[i].msg_len);
	}
	count_failure(w, n);
}

static void wait_for_one(struct worker *w, uint64_t wait)
{
	struct client *c = &w->client[0];
	struct timespec t = { wait / 1000000000, wait % 1000000000 };
	struct pollfd poll = { .fd = c->fd, .events = POLLIN };

	if (w->gap > 0 && wait && ppoll(&poll, 1, &t, NULL) <= 0)
		return;
	take_from(w, c, w->gap > 0 || !wait ? MSG_DONTWAIT : 0);
}

static void udp_receive(struct worker *w, uint64_t wait)
{
	struct udp *u = w->transport_state;
	struct timespec t = { wait / 1000000000, wait % 1000000000 };
	struct epoll_event event[EVENTS];
	int n;

	if (u->epoll < 0) {
		wait_for_one(w, wait);
		return;
	}
	n = epoll_pwait2(u->epoll, event, EVENTS, &t, NULL);
	for (int i = 0; i < n; i++)
		take_from(w, event[i].data.ptr, MSG_DONTWAIT);
}

const struct transport transport_udp = {
	.name = "udp",
	.open = udp_open,
	.close = udp_close,
	.reserve = udp_reserve,
	.commit = udp_commit,
	.flush = udp_flush,
	.receive = udp_receive,
};

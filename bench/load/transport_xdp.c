// SPDX-License-Identifier: BSD-2-Clause
/*
 * AF_XDP: sends and receives frames on the device's queues, without the kernel's network stack.
 * Each thread has the sockets of its queues.  A client is a source port; an unused UDP socket is
 * bound to it, so that no other process gets the port and the kernel sends no ICMP errors.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_xdp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <xdp/xsk.h>

#include "bench/bpf/xsk.skel.h"
#include "bench/common/message.h"
#include "transport.h"
#include "worker.h"
#include "xdp.h"

#define FRAME_SIZE    XSK_UMEM__DEFAULT_FRAME_SIZE
#define RING	      XSK_RING
#define FRAMES	      (2 * RING) /* one half to receive into, one half to send from */
#define UMEM_BYTES    ((size_t)FRAMES * FRAME_SIZE)
#define RECV_BATCH    64	    /* frames returned to the kernel at once */
#define PROBE_NS      20000000ULL   /* to wait for an answer to a probe */
#define SETTLE_NS     2000000000ULL /* to look for better ports, for all clients together */
#define PROBES	      8		    /* ports to try, times the number of threads */
#define BUSY_TRIES    200	    /* to open a socket, for two seconds in total */
#define BUSY_SLEEP_US 10000
#define KICKS	      64 /* in copy mode a system call sends some 32 frames */

struct queue {
	unsigned int number;
	void *umem_bytes;
	struct xsk_umem *umem;
	struct xsk_socket *socket;
	struct xsk_ring_prod fill, tx;
	struct xsk_ring_cons comp, rx;
	uint64_t free[RING]; /* frames to send from */
	unsigned int frees;
	unsigned int pending; /* handed to the kernel and not yet sent */
	uint64_t overruns;    /* as far as they are counted */
};

struct thread {
	struct xdp *x;
	struct inbox *inbox;
	struct queue *queue;
	unsigned int queues;
	unsigned int next;			/* queue to send on */
	struct pollfd poll[XSK_QUEUES_MAX + 1]; /* the last one is the inbox's */
};

static int bind_port(struct xdp *x, struct client *c, const struct server_address *server,
		     unsigned int worker)
{
	struct sockaddr_in own;
	socklen_t len = sizeof(own);

	c->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)&server->addr, server->len) ||
	    getsockname(c->fd, (struct sockaddr *)&own, &len))
		return -errno;
	c->port = own.sin_port;
	x->path.source = own.sin_addr;
	return xdp_claim_port(x, c->port, c, worker);
}

static int bind_ports(struct worker *w, struct xdp *x, const struct server_address *server)
{
	for (unsigned int i = 0; i < w->clients; i++) {
		int err = bind_port(x, &w->client[i], server, w->number);

		if (!err)
			continue;
		message("cannot get a port for client %u: %s", w->client[i].number, strerror(-err));
		return err;
	}
	return 0;
}

static int open_umem(struct queue *q)
{
	struct xsk_umem_config config = { .fill_size = RING,
					  .comp_size = RING,
					  .frame_size = FRAME_SIZE };

	q->umem_bytes = mmap(NULL, UMEM_BYTES, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (q->umem_bytes == MAP_FAILED) {
		q->umem_bytes = NULL;
		return -errno;
	}
	return xsk_umem__create(&q->umem, q->umem_bytes, UMEM_BYTES, &q->fill, &q->comp, &config);
}

/* All frames of the first half wait for replies. */
static void fill_up(struct queue *q)
{
	__u32 at = 0;

	xsk_ring_prod__reserve(&q->fill, RING, &at);
	for (unsigned int i = 0; i < RING; i++) {
		*xsk_ring_prod__fill_addr(&q->fill, at + i) = (uint64_t)i * FRAME_SIZE;
		q->free[q->frees++] = (uint64_t)(RING + i) * FRAME_SIZE;
	}
	xsk_ring_prod__submit(&q->fill, RING);
}

static const char *mode_of(struct queue *q)
{
	struct xdp_options options = { 0 };
	socklen_t len = sizeof(options);

	if (getsockopt(xsk_socket__fd(q->socket), SOL_XDP, XDP_OPTIONS, &options, &len))
		return "unknown";
	return options.flags & XDP_OPTIONS_ZEROCOPY ? "zerocopy" : "copy";
}

static void close_queue(struct queue *q)
{
	if (q->socket)
		xsk_socket__delete(q->socket);
	if (q->umem)
		xsk_umem__delete(q->umem);
	if (q->umem_bytes)
		munmap(q->umem_bytes, UMEM_BYTES);
	q->socket = NULL;
	q->umem = NULL;
	q->umem_bytes = NULL;
}

static int open_socket(struct xdp *x, struct queue *q)
{
	static const __u16 flags[] = {
		[XDP_MODE_AUTO] = 0, [XDP_MODE_COPY] = XDP_COPY, [XDP_MODE_ZEROCOPY] = XDP_ZEROCOPY
	};
	struct xsk_socket_config config = { .rx_size = RING,
					    .tx_size = RING,
					    .libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD,
					    .bind_flags =
						    XDP_USE_NEED_WAKEUP | flags[x->o->xdp_mode] };
	int err = open_umem(q);

	if (!err)
		err = xsk_socket__create(&q->socket, x->o->interface, q->number, q->umem, &q->rx,
					 &q->tx, &config);
	if (!err)
		err = xsk_socket__update_xskmap(q->socket, bpf_map__fd(x->skel->maps.sockets));
	if (err)
		close_queue(q);
	return err;
}

static int open_queue(struct xdp *x, struct queue *q)
{
	int err = open_socket(x, q);

	/* the kernel frees the queue of a socket some time after that was closed */
	for (unsigned int i = 0; err == -EBUSY && i < BUSY_TRIES; i++) {
		usleep(BUSY_SLEEP_US);
		err = open_socket(x, q);
	}
	if (err) {
		message("cannot open an AF_XDP socket on queue %u of %s: %s%s", q->number,
			x->o->interface, strerror(-err),
			err == -EOPNOTSUPP ? "; the driver has no zero-copy, use --xdp-mode copy"
			: err == -EINVAL   ? "; is there such a queue?"
			: err == -EBUSY	   ? "; another process has one there"
					   : "");
		return err;
	}
	fill_up(q);
	if (!x->mode)
		x->mode = mode_of(q);
	return 0;
}

/* The queues are dealt out to the threads. */
static int open_queues(struct worker *w, struct thread *t)
{
	struct xdp *x = t->x;

	t->queue = calloc(x->queues, sizeof(*t->queue));
	if (!t->queue) {
		message("out of memory");
		return -ENOMEM;
	}
	for (unsigned int i = w->number; i < x->queues; i += w->workers) {
		struct queue *q = &t->queue[t->queues++];
		int err;

		q->number = x->queue[i];
		err = open_queue(x, q);
		if (err)
			return err;
		t->poll[t->queues - 1] =
			(struct pollfd){ .fd = xsk_socket__fd(q->socket), .events = POLLIN };
	}
	t->poll[t->queues] = (struct pollfd){ .fd = t->inbox->event, .events = POLLIN };
	return 0;
}

static int xdp_thread_open(struct worker *w, const struct options *o,
			   const struct server_address *server)
{
	struct thread *t = calloc(1, sizeof(*t));
	int err;

	w->transport_state = t;
	if (!t) {
		message("out of memory");
		return -ENOMEM;
	}
	t->x = w->transport_shared;
	t->inbox = &t->x->inbox[w->number];
	err = bind_ports(w, t->x, server);
	return err ? err : open_queues(w, t);
}

static void xdp_thread_close(struct worker *w)
{
	struct thread *t = w->transport_state;

	for (unsigned int i = 0; i < w->clients; i++) {
		if (w->client[i].fd >= 0)
			close(w->client[i].fd);
	}
	for (unsigned int i = 0; t && i < t->queues; i++)
		close_queue(&t->queue[i]);
	if (t)
		free(t->queue);
	free(t);
}

/* Reclaims the frames that were sent. */
static void reap(struct queue *q)
{
	__u32 at, n = xsk_ring_cons__peek(&q->comp, RING, &at);

	for (__u32 i = 0; i < n; i++)
		q->free[q->frees++] = *xsk_ring_cons__comp_addr(&q->comp, at + i);
	xsk_ring_cons__release(&q->comp, n);
	q->pending -= n;
}

static uint8_t *xdp_reserve(struct worker *w, struct client *c, size_t room)
{
	struct thread *t = w->transport_state;
	struct queue *q = &t->queue[t->next];

	if (!q->frees)
		reap(q);
	if (!q->frees)
		return NULL;
	return xsk_umem__get_data(q->umem_bytes, q->free[q->frees - 1]) + DATAGRAM_HEADERS;
}

static void xdp_commit(struct worker *w, struct client *c, size_t len)
{
	struct thread *t = w->transport_state;
	struct queue *q = &t->queue[t->next];
	uint64_t frame = q->free[--q->frees];
	struct xdp_desc *desc;
	__u32 at = 0;

	datagram_write(&t->x->path, c->port, xsk_umem__get_data(q->umem_bytes, frame), len);
	/* There are as many places as frames, so there is one. */
	xsk_ring_prod__reserve(&q->tx, 1, &at);
	desc = xsk_ring_prod__tx_desc(&q->tx, at);
	*desc = (struct xdp_desc){ .addr = frame, .len = DATAGRAM_HEADERS + len };
	xsk_ring_prod__submit(&q->tx, 1);
	q->pending++;
}

/* Notifies the kernel of frames to send, if it asks for that. */
static void kick(struct worker *w, struct queue *q)
{
	int fd = xsk_socket__fd(q->socket);

	for (int i = 0; i < KICKS && q->pending && xsk_ring_prod__needs_wakeup(&q->tx); i++) {
		ssize_t ret = sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0);

		if (ret < 0 && errno != EAGAIN && errno != EBUSY && errno != ENOBUFS &&
		    errno != EINTR) {
			worker_socket_error(w, errno);
			return;
		}
		reap(q);
		if (ret >= 0)
			return; /* the kernel has taken all frames */
	}
}

static void xdp_flush(struct worker *w)
{
	struct thread *t = w->transport_state;

	for (unsigned int i = 0; i < t->queues; i++) {
		if (t->queue[i].pending)
			kick(w, &t->queue[i]);
	}
	/* The next batch goes out on the next queue. */
	t->next = (t->next + 1) % t->queues;
}

static void take_frame(void *worker, const uint8_t *frame, size_t len)
{
	struct worker *w = worker;
	struct thread *t = w->transport_state;
	in_port_t port;
	int payload = datagram_read(frame, len, &port);
	struct client *c = payload >= 0 ? t->x->port[port].client : NULL;

	if (!c) {
		stat_add(&w->stats, STAT_FOREIGN, 1);
		return;
	}
	if (t->x->port[port].worker == w->number) {
		worker_datagram(w, c, frame + DATAGRAM_HEADERS, payload);
		return;
	}
	stat_add(&w->stats, STAT_HANDED_OVER, 1);
	if (!inbox_put(&t->x->inbox[t->x->port[port].worker], c, frame + DATAGRAM_HEADERS, payload))
		stat_add(&w->stats, STAT_OVERRUNS, 1);
}

/* Calls take() for some received frames of a queue, and returns them to the fill ring. */
static unsigned int take_queue(struct queue *q,
			       void (*take)(void *context, const uint8_t *frame, size_t len),
			       void *context)
{
	__u32 at, fill = 0, n = xsk_ring_cons__peek(&q->rx, RECV_BATCH, &at);

	if (n) {
		/* These frames came out of this ring, so there is room for them. */
		xsk_ring_prod__reserve(&q->fill, n, &fill);
		for (__u32 i = 0; i < n; i++) {
			const struct xdp_desc *desc = xsk_ring_cons__rx_desc(&q->rx, at + i);

			take(context, xsk_umem__get_data(q->umem_bytes, desc->addr), desc->len);
			*xsk_ring_prod__fill_addr(&q->fill, fill + i) =
				desc->addr - desc->addr % FRAME_SIZE;
		}
		xsk_ring_prod__submit(&q->fill, n);
		xsk_ring_cons__release(&q->rx, n);
	}
	if (xsk_ring_prod__needs_wakeup(&q->fill))
		(void)recvfrom(xsk_socket__fd(q->socket), NULL, 0, MSG_DONTWAIT, NULL, NULL);
	return n;
}

/* Receives all frames of a queue: if fewer were received than sent, the ring would overflow. */
static unsigned int empty_queue(struct worker *w, struct queue *q)
{
	unsigned int n, all = 0;

	do {
		n = take_queue(q, take_frame, w);
		all += n;
	} while (n == RECV_BATCH && all < RING);
	return all;
}

/* Processes datagrams that other threads received for this one. */
static unsigned int take_inbox(struct worker *w, struct inbox *in)
{
	unsigned int n;
	uint64_t events;

	if (!__atomic_load_n(&in->count, __ATOMIC_RELAXED))
		return 0;
	w->now = now_ns();
	pthread_mutex_lock(&in->lock);
	n = in->count;
	for (unsigned int i = 0; i < n; i++)
		worker_datagram(w, in->item[i].client, in->item[i].data, in->item[i].len);
	__atomic_store_n(&in->count, 0, __ATOMIC_RELAXED);
	if (read(in->event, &events, sizeof(events)) < 0 && errno != EAGAIN)
		worker_socket_error(w, errno);
	pthread_mutex_unlock(&in->lock);
	return n;
}

static unsigned int take_all(struct worker *w, struct thread *t)
{
	unsigned int n = take_inbox(w, t->inbox);

	for (unsigned int i = 0; i < t->queues; i++) {
		w->now = now_ns();
		n += empty_queue(w, &t->queue[i]);
	}
	return n;
}

static void xdp_receive(struct worker *w, uint64_t wait)
{
	struct thread *t = w->transport_state;
	struct timespec time = { wait / 1000000000, wait % 1000000000 };

	if (take_all(w, t) || !wait)
		return;
	if (ppoll(t->poll, t->queues + 1, &time, NULL) > 0)
		take_all(w, t);
}

/* Replies that the kernel had no place for on our queues. */
static void count_overruns(struct worker *w)
{
	struct thread *t = w->transport_state;

	for (unsigned int i = 0; i < t->queues; i++) {
		struct queue *q = &t->queue[i];
		struct xdp_statistics found = { 0 };
		socklen_t len = sizeof(found);
		uint64_t all;

		if (getsockopt(xsk_socket__fd(q->socket), SOL_XDP, XDP_STATISTICS, &found, &len)) {
			worker_socket_error(w, errno);
			continue;
		}
		/*
		 * the kernel counts replies without a free frame as dropped, too, but not those
		 * that found the ring full
		 */
		all = found.rx_dropped + found.rx_ring_full;
		stat_add(&w->stats, STAT_OVERRUNS, all - q->overruns);
		q->overruns = all;
	}
}

/* Sends a ping, to find out on which queue replies to a port arrive. */
struct probe {
	const struct protocol *protocol;
	in_port_t port;
	uint64_t id;
	bool answered;
};

static void take_answer(void *context, const uint8_t *frame, size_t len)
{
	struct probe *p = context;
	in_port_t port;
	int payload = datagram_read(frame, len, &port);
	uint64_t id;

	if (payload >= 0 && port == p->port &&
	    p->protocol->id(frame + DATAGRAM_HEADERS, payload, &id) && id == p->id)
		p->answered = true;
}

/* The thread whose queue the answer came on, or -1 if none came. */
static int send_probe(struct worker *workers, unsigned int n, unsigned int from, struct client *c)
{
	struct worker *w = &workers[from];
	struct thread *t = w->transport_state;
	struct probe p = { .protocol = w->protocol, .port = c->port, .id = c->port };
	uint8_t *buf = xdp_reserve(w, c, DATAGRAM_MAX);
	uint64_t end = now_ns() + PROBE_NS;

	if (!buf)
		return -1;
	xdp_commit(w, c, p.protocol->ping(t->x->o, buf, p.id));
	xdp_flush(w);
	while (now_ns() < end && !interrupted) {
		for (unsigned int i = 0; i < n; i++) {
			struct thread *to = workers[i].transport_state;

			for (unsigned int q = 0; q < to->queues; q++) {
				take_queue(&to->queue[q], take_answer, &p);
				if (p.answered)
					return i;
			}
		}
	}
	return -1;
}

/* Another port, with the old one still taken, so that it is not the same. */
static int change_port(struct worker *w, struct client *c)
{
	struct thread *t = w->transport_state;
	in_port_t port = c->port;
	int fd = c->fd, err = bind_port(t->x, c, &t->x->server, w->number);

	if (!err)
		err = xdp_claim_port(t->x, port, NULL, 0);
	close(fd);
	return err;
}

/*
 * The NIC distributes replies over the queues by a hash of addresses and ports.  Clients change
 * their ports until their replies arrive on a queue of their own thread, or the time is up.
 * Replies that still arrive elsewhere (also with NICs that distribute in another way) are passed to
 * the thread through its inbox.
 */
static int settle(struct worker *workers, unsigned int n)
{
	uint64_t end = now_ns() + SETTLE_NS;
	int err = 0;

	for (unsigned int i = 0; i < n && n > 1; i++) {
		for (unsigned int j = 0; j < workers[i].clients && !err; j++) {
			struct client *c = &workers[i].client[j];
			int at = send_probe(workers, n, i, c);

			for (unsigned int tries = 0; tries < PROBES * n && at >= 0 && !err &&
						     at != (int)i && now_ns() < end;
			     tries++) {
				err = change_port(&workers[i], c);
				at = err ? -1 : send_probe(workers, n, i, c);
			}
		}
	}
	if (err)
		message("cannot get another port for a client: %s", strerror(-err));
	return err;
}

static int xdp_start(void **shared, const struct options *o, const struct server_address *server)
{
	return xdp_open((struct xdp **)shared, o, server);
}

static void xdp_stop(void *shared)
{
	xdp_close(shared);
}

static const char *mode_name(const void *shared)
{
	return ((const struct xdp *)shared)->mode;
}

const struct transport transport_xdp = {
	.name = "xdp",
	.start = xdp_start,
	.stop = xdp_stop,
	.mode = mode_name,
	.open = xdp_thread_open,
	.settle = settle,
	.close = xdp_thread_close,
	.reserve = xdp_reserve,
	.commit = xdp_commit,
	.flush = xdp_flush,
	.receive = xdp_receive,
	.finish = count_overruns,
};

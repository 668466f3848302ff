// SPDX-License-Identifier: BSD-2-Clause
/* See worker.h. */
#include "worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "say.h"

#define SLICE_MS	100 /* longest blind wait, so that signals and the end are seen in time */
#define LOAD_TRIES	30  /* of a request while loading, before the thread gives up */
#define ID_CLIENT_SHIFT 40
#define EVENTS		64

/* What a datagram meant for the request that is out. */
enum outcome { WAIT, AGAIN, DONE };

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static bool phase_over(const struct phase *p)
{
	return interrupted || __atomic_load_n(&p->failed, __ATOMIC_RELAXED) ||
	       (p->end_ns && now_ns() >= p->end_ns);
}

static void fail(struct phase *p, const char *sentence)
{
	if (!__atomic_exchange_n(&p->failed, true, __ATOMIC_RELAXED))
		say("%s", sentence);
}

/* Takes up to `want` of what the phase has left; *first is the first of them. */
static unsigned int take(struct phase *p, unsigned int want, uint64_t *first)
{
	*first = 0;
	if (!p->total)
		return want;
	*first = __atomic_fetch_add(&p->taken, want, __ATOMIC_RELAXED);
	if (*first >= p->total)
		return 0;
	return p->total - *first < want ? p->total - *first : want;
}

/* As many as one datagram of SETs holds, with or without --batch. */
static unsigned int load_batch(const struct options *o)
{
	unsigned int n = (XKV_PAYLOAD_MAX6 - sizeof(struct xkv_hdr) - XKV_TOKEN_BYTES) /
			 options_op_bytes(&o->key_size[0], &o->value_size);

	return n > WIRE_OPS_MAX ? WIRE_OPS_MAX : n ? n : 1;
}

/* Draws the client's next operations.  False if the phase is over. */
static bool next_request(struct worker *w, struct client *c)
{
	const struct options *o = w->phase->o;
	struct ratio ratio = o->ratio[0];
	uint64_t first;

	if (phase_over(w->phase))
		return false;
	c->ops = take(w->phase, w->phase->loading ? load_batch(o) : o->batch[0], &first);
	c->tries = 0;
	for (unsigned int i = 0; i < c->ops; i++) {
		if (w->phase->loading) {
			c->op[i] = (struct wire_op){ .key = first + i, .set = true };
			continue;
		}
		c->op[i].key = dist_next(&o->dist[0], &w->rng);
		c->op[i].set = ratio.set && (!ratio.get ||
					     rng_below(&w->rng, ratio.set + ratio.get) < ratio.set);
	}
	return c->ops;
}

static void count_socket_error(struct worker *w, int err)
{
	stat_add(&w->stats, STAT_SOCKET, 1);
	if (err == EPERM || err == ENETUNREACH || err == EHOSTUNREACH || err == EMSGSIZE)
		fail(w->phase, strerror(err));
}

/*
 * Sends what is not yet answered.  A datagram that the kernel refuses counts as
 * lost on its way: its client waits for the timeout, as after any other loss.
 */
static void send_request(struct worker *w, struct client *c, bool first)
{
	size_t len = wire_request(w->phase->o, w->out, ++c->id, c->op, c->ops, rng_next(&w->rng),
				  c->pad);
	uint64_t now = now_ns();

	if (first)
		c->since = now;
	c->until = now + w->phase->o->timeout_ms * 1000000ULL;
	if (send(c->fd, w->out, len, 0) < 0)
		count_socket_error(w, errno);
}

static void check_value(struct worker *w, uint32_t key, const struct wire_result *r)
{
	stat_add(&w->stats, STAT_HITS, 1);
	if (w->phase->o->verify && !wire_value_ok(w->phase->o, key, r->value, r->value_len))
		stat_add(&w->stats, STAT_CORRUPT, 1);
}

/* Counts an operation's result.  True if the operation has to be asked for again. */
static bool take_result(struct worker *w, struct client *c, const struct wire_op *op,
			const struct wire_result *r)
{
	enum stat which = STAT_REFUSED;

	switch (r->status) {
	case XKV_OK:
		if (op->set)
			stat_add(&w->stats, STAT_SETS, 1);
		else
			check_value(w, op->key, r);
		stat_add(&w->stats, STAT_OPS, 1);
		return false;
	case XKV_MISS:
		which = op->set ? STAT_REFUSED : STAT_MISSES;
		stat_add(&w->stats, STAT_OPS, !op->set);
		break;
	case XKV_PAD:
		if (r->number > c->pad && r->number <= XKV_PAYLOAD_MAX4) {
			c->pad = r->number;
			return true;
		}
		break;
	case XKV_BUSY:
		which = STAT_BUSY;
		break;
	case XKV_NO_MEMORY:
		which = STAT_NO_MEMORY;
		break;
	case XKV_TOO_LARGE:
		which = STAT_TOO_LARGE;
		break;
	}
	stat_add(&w->stats, which, 1);
	/* While loading every key has to get in; the number of tries is bounded. */
	return w->phase->loading && which == STAT_BUSY;
}

/* Goes through the results; what has to be asked for again moves to the front of c->op. */
static enum outcome take_results(struct worker *w, struct client *c, struct wire_reply *r)
{
	unsigned int n = r->count, keep = 0, pad = c->pad;
	struct wire_result result;

	if (!n || n > c->ops) {
		stat_add(&w->stats, STAT_MALFORMED, 1);
		return DONE;
	}
	for (unsigned int i = 0; i < n; i++) {
		struct wire_op op = c->op[i];

		if (!wire_reply_next(r, &result) ||
		    result.opcode != (op.set ? XKV_OP_SET : XKV_OP_GET)) {
			stat_add(&w->stats, STAT_MALFORMED, 1);
			return DONE;
		}
		if (take_result(w, c, &op, &result))
			c->op[keep++] = op;
	}
	stat_add(&w->stats, STAT_PARTIAL, n < c->ops);
	stat_add(&w->stats, STAT_PADDED, c->pad > pad);
	memmove(&c->op[keep], &c->op[n], (c->ops - n) * sizeof(c->op[0]));
	c->ops = keep + c->ops - n;
	return c->ops ? AGAIN : DONE;
}

static enum outcome take_datagram(struct worker *w, struct client *c, size_t len)
{
	struct wire_reply r;

	if (!wire_reply_open(&r, w->in, len)) {
		stat_add(&w->stats, STAT_MALFORMED, 1);
		return WAIT;
	}
	if (r.id != c->id) {
		bool ours = r.id >> ID_CLIENT_SHIFT == c->id >> ID_CLIENT_SHIFT && r.id < c->id;

		stat_add(&w->stats, ours ? STAT_LATE : STAT_FOREIGN, 1);
		return WAIT;
	}
	if (r.status) {
		stat_add(&w->stats, STAT_REFUSED, c->ops);
		if (r.status == XKV_NOAUTH)
			fail(w->phase,
			     "the server wants another token: give its udp-token with --token");
		return DONE;
	}
	return take_results(w, c, &r);
}

/* While loading, a request is repeated, but not for ever. */
static enum outcome retry_load(struct worker *w, struct client *c)
{
	if (!w->phase->loading)
		return DONE;
	if (w->stats.count[STAT_NO_MEMORY]) {
		fail(w->phase, "the store is full: raise xkvd's maxmemory or max-keys, or lower --keys");
		return DONE;
	}
	if (++c->tries >= LOAD_TRIES) {
		fail(w->phase, "loading gave up: the server is busy or does not answer");
		return DONE;
	}
	return AGAIN;
}

static enum outcome on_timeout(struct worker *w, struct client *c)
{
	stat_add(&w->stats, STAT_TIMEOUTS, 1);
	return retry_load(w, c);
}

/* Receives one datagram of a client, if there is one. */
static enum outcome receive(struct worker *w, struct client *c, int flags)
{
	ssize_t len = recv(c->fd, w->in, sizeof(w->in), flags);
	enum outcome outcome;

	if (len < 0) {
		if (errno != EAGAIN && errno != EINTR)
			count_socket_error(w, errno);
		return WAIT;
	}
	outcome = take_datagram(w, c, len);
	if (outcome == DONE)
		hist_record(&w->stats.latency, now_ns() - c->since);
	if (w->phase->loading && outcome == AGAIN)
		outcome = retry_load(w, c);
	return outcome;
}

static bool late(const struct worker *w, const struct client *c)
{
	return interrupted || __atomic_load_n(&w->phase->failed, __ATOMIC_RELAXED) ||
	       now_ns() >= c->until;
}

/*
 * One client: plain blocking calls.  recv() returns at least every SLICE_MS (see
 * open_client()); a reply that is there already costs no more than with polling.
 */
static void run_one(struct worker *w)
{
	struct client *c = &w->client[0];

	while (next_request(w, c)) {
		enum outcome outcome = AGAIN;
		bool first = true;

		while (outcome != DONE) {
			if (outcome == AGAIN)
				send_request(w, c, first);
			first = false;
			outcome = receive(w, c, 0);
			if (outcome == WAIT && late(w, c))
				outcome = interrupted ? DONE : on_timeout(w, c);
		}
	}
}

/* Sends for a client of many, and puts it at the end of the line of deadlines. */
static void send_queued(struct worker *w, struct client *c, bool first)
{
	send_request(w, c, first);
	TAILQ_INSERT_TAIL(&w->waiting, c, waiting);
}

/* Takes a client to its next request, or out of the game. */
static void proceed(struct worker *w, struct client *c, enum outcome outcome)
{
	if (outcome == WAIT)
		return;
	TAILQ_REMOVE(&w->waiting, c, waiting);
	if (outcome == AGAIN)
		send_queued(w, c, false);
	else if (next_request(w, c))
		send_queued(w, c, true);
}

static void expire(struct worker *w)
{
	struct client *c;
	uint64_t now = now_ns();

	while ((c = TAILQ_FIRST(&w->waiting)) && c->until <= now && !interrupted)
		proceed(w, c, on_timeout(w, c));
}

/* Milliseconds until the first deadline, rounded up; at most SLICE_MS. */
static int patience(const struct worker *w)
{
	const struct client *c = TAILQ_FIRST(&w->waiting);
	uint64_t now = now_ns();

	if (c->until <= now)
		return 0;
	return c->until - now < SLICE_MS * 1000000ULL ? (c->until - now) / 1000000 + 1 : SLICE_MS;
}

static int watch_clients(struct worker *w)
{
	int fd = epoll_create1(EPOLL_CLOEXEC);

	for (unsigned int i = 0; i < w->clients && fd >= 0; i++) {
		struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &w->client[i] };

		if (epoll_ctl(fd, EPOLL_CTL_ADD, w->client[i].fd, &ev)) {
			close(fd);
			fd = -1;
		}
	}
	return fd;
}

static void run_many(struct worker *w)
{
	struct epoll_event event[EVENTS];
	int fd = watch_clients(w);

	if (fd < 0) {
		fail(w->phase, "cannot watch the sockets with epoll");
		return;
	}
	for (unsigned int i = 0; i < w->clients; i++) {
		if (next_request(w, &w->client[i]))
			send_queued(w, &w->client[i], true);
	}
	while (!TAILQ_EMPTY(&w->waiting) && !interrupted) {
		int n = epoll_wait(fd, event, EVENTS, patience(w));

		for (int i = 0; i < n; i++) {
			struct client *c = event[i].data.ptr;

			proceed(w, c, receive(w, c, MSG_DONTWAIT));
		}
		expire(w);
	}
	close(fd);
}

void *worker_main(void *worker)
{
	struct worker *w = worker;

	TAILQ_INIT(&w->waiting);
	if (w->clients == 1)
		run_one(w);
	else
		run_many(w);
	return NULL;
}

static int open_client(struct client *c, const struct options *o, const struct sockaddr *addr,
		       socklen_t addr_len)
{
	unsigned int ms = o->timeout_ms < SLICE_MS ? o->timeout_ms : SLICE_MS;
	struct timeval slice = { .tv_usec = ms * 1000 };

	c->fd = socket(addr->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof(slice)) ||
	    connect(c->fd, addr, addr_len))
		return -errno;
	return 0;
}

int worker_open(struct worker *w, const struct options *o, const struct sockaddr *addr,
		socklen_t addr_len, unsigned int first, unsigned int clients)
{
	memset(w, 0, sizeof(*w));
	w->client = calloc(clients, sizeof(*w->client));
	if (!w->client) {
		say("out of memory for %u clients", clients);
		return -ENOMEM;
	}
	rng_seed(&w->rng, mix64(o->seed) + first);
	for (; w->clients < clients; w->clients++) {
		struct client *c = &w->client[w->clients];
		int err = open_client(c, o, addr, addr_len);

		c->pad = o->pad;
		c->id = (uint64_t)(first + w->clients + 1) << ID_CLIENT_SHIFT;
		if (!err)
			continue;
		if (c->fd >= 0)
			close(c->fd);
		say("cannot open a socket for client %u: %s%s", first + w->clients + 1,
		    strerror(-err), err == -EMFILE ? "; raise the limit with ulimit -n" : "");
		return err;
	}
	return 0;
}

void worker_close(struct worker *w)
{
	for (unsigned int i = 0; i < w->clients; i++)
		close(w->client[i].fd);
	free(w->client);
	w->client = NULL;
	w->clients = 0;
}

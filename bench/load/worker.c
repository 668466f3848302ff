// SPDX-License-Identifier: BSD-2-Clause
/* See worker.h. */
#include "worker.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "bench/common/message.h"
#include "bench/common/sizes.h"

#define LOAD_TRIES 30  /* of a request while loading, before the thread gives up */
#define ISSUE_MAX  256 /* requests sent before replies are received */

/*
 * The server is considered gone after this multiple of the time that a request waits, but at least
 * a second, without a reply.  The time of the last reply has an accuracy of HEARD_NS.
 */
#define SILENCE		   3
#define SILENCE_MIN_MS	   1000
#define LAST_REPLY_STEP_NS 10000000

/* Unsent requests may be billions: their ages are recorded in groups, at most so many. */
#define UNSENT_AGES 65536

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

void worker_fail(struct worker *w, const char *sentence)
{
	if (!__atomic_exchange_n(&w->phase->failed, true, __ATOMIC_RELAXED))
		message("%s", sentence);
}

void worker_socket_error(struct worker *w, int err)
{
	stat_add(&w->stats, STAT_SOCKET, 1);
	if (err == EPERM || err == ENETUNREACH || err == EHOSTUNREACH || err == EMSGSIZE)
		worker_fail(w, strerror(err));
}

/* How long after the end requests are still sent that were due before. */
static bool time_is_up(const struct worker *w)
{
	uint64_t end = w->phase->end_ns;

	if (!end || w->now < end)
		return false;
	return w->gap == 0 || w->due >= end || w->now >= end + w->phase->o->timeout_ms * 1000000ULL;
}

static bool failed(const struct worker *w)
{
	return __atomic_load_n(&w->phase->failed, __ATOMIC_RELAXED);
}

static bool phase_over(const struct worker *w)
{
	return interrupted || failed(w) || time_is_up(w);
}

/* When a request was due: of a SET that ends an OP_RMW, when its GET was. */
static uint64_t due_ns(const struct request *r)
{
	return r->rmw_since ? r->rmw_since : r->since;
}

/* The statistics that this request is counted in. */
static struct stats *stats_of(struct worker *w, const struct request *r)
{
	return r->counts ? &w->stats : &w->ignored;
}

static uint64_t age(const struct worker *w, uint64_t since)
{
	return w->now > since ? w->now - since : 0;
}

/* Replies after the end do not count for rates: a server that is behind would seem to keep up. */
static bool after_end(const struct worker *w)
{
	return w->phase->end_ns && w->now > w->phase->end_ns;
}

/*
 * Assigns up to `want` keys of the phase, each with this cost, to the calling thread, and leaves a
 * rest that is too small for one key to other threads.  *first: the number of the first one.
 */
static uint64_t take_share(struct phase *p, uint64_t want, unsigned int cost, uint64_t *first)
{
	uint64_t n;

	*first = __atomic_load_n(&p->taken, __ATOMIC_RELAXED);
	if (!p->total)
		return want;
	do {
		n = (p->total - *first) / cost;
		n = n < want ? n : want;
	} while (n && !__atomic_compare_exchange_n(&p->taken, first, *first + n * cost, false,
						   __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	return n;
}

/* SETs of the largest entries that fit a datagram, with or without --batch; at least 1. */
static unsigned int sets_that_fit(const struct options *o)
{
	unsigned int n = (XKV_PAYLOAD_MAX6 - sizeof(struct xkv_hdr) - XKV_TOKEN_BYTES) /
			 sizes_set_bytes(o->key_size.max, o->value_size.max);

	return n > REQUEST_KEYS_MAX ? REQUEST_KEYS_MAX : n ? n : 1;
}

/* The keys that come next when all are loaded. */
static bool next_load(struct worker *w, struct request *r)
{
	uint64_t first;
	unsigned int n = take_share(w->phase, sets_that_fit(w->phase->o), 1, &first);

	r->op = OP_SET;
	r->rmw = r->insert = false;
	r->first = 0;
	r->keys = n;
	for (unsigned int i = 0; i < n; i++)
		r->key[i] = first + i;
	return n;
}

/* The last one has as many keys as there are operations left. */
static bool next_draw(struct worker *w, struct request *r)
{
	unsigned int n;
	uint64_t first;

	workload_draw_kind(&w->workload, r);
	n = r->op == OP_SCAN ? 1 : r->keys;
	if (r->counts)
		n = take_share(w->phase, n, r->rmw ? 2 : 1, &first);
	if (!n && r->rmw) { /* no room for a SET behind the GET */
		r->rmw = false;
		n = take_share(w->phase, 1, 1, &first);
	}
	if (n)
		workload_draw_keys(&w->workload, r, n);
	return n;
}

/* Makes a request with this due time.  False if the phase has no more. */
static bool next_request(struct worker *w, struct request *r, uint64_t due)
{
	r->tries = 0;
	r->rmw_since = 0;
	r->counts = due >= w->phase->from_ns;
	r->must = w->phase->loading;
	return r->must ? next_load(w, r) : next_draw(w, r);
}

/* An id that no earlier try of this request has. */
static uint64_t next_id(const struct request *r)
{
	uint64_t step = 1ULL << REQUEST_PLACE_BITS, client = 1ULL << REQUEST_CLIENT_SHIFT;

	return (r->id & ~(client - 1)) | ((r->id + step) & (client - 1));
}

/* Sends the unanswered keys of a request, for the first time or again. */
static void send_request(struct worker *w, struct request *r)
{
	const struct options *o = w->phase->o;
	size_t room = protocol_room(w->protocol, o, r), len;
	uint8_t *buf = w->transport->reserve(w, r->client, room);

	if (!buf) {
		w->transport->flush(w);
		buf = w->transport->reserve(w, r->client, room);
	}
	r->id = next_id(r);
	if (buf) { /* without memory the request counts as lost on its way */
		len = w->protocol->encode(o, buf, r, rng_next(&w->workload.rng));
		w->transport->commit(w, r->client, len);
	}
	if (!r->since)
		r->since = now_ns();
	r->until = w->now + o->timeout_ms * 1000000ULL;
	r->out = true;
	w->out_count++;
	TAILQ_INSERT_TAIL(&w->out, r, line);
	if (w->protocol->stream)
		TAILQ_INSERT_TAIL(&r->client->order, r, order);
}

/* Removes a request from those that wait for a reply. */
static void take_out(struct worker *w, struct request *r)
{
	r->out = false;
	w->out_count--;
	TAILQ_REMOVE(&w->out, r, line);
	if (w->protocol->stream)
		TAILQ_REMOVE(&r->client->order, r, order);
}

/* Ends a request, answered or not. */
static void release(struct worker *w, struct request *r)
{
	for (unsigned int i = 0; r->insert && i < r->first + r->keys; i++)
		workload_inserted(&w->workload, r->key[i]);
	TAILQ_INSERT_TAIL(&w->free, r, line);
}

/* Records the latency of a request that is answered or given up. */
static void record_latency(struct worker *w, struct stats *s, const struct request *r)
{
	uint64_t took = age(w, due_ns(r));

	hist_record(&s->latency, took);
	if (r->rmw || r->rmw_since)
		hist_record(&s->op[OP_RMW], took);
}

/* The operation was answered, and with it the request, except after the GET of an OP_RMW. */
static void record(struct worker *w, const struct request *r, enum outcome outcome)
{
	struct stats *s = stats_of(w, r);

	w->last = w->now;
	hist_record(&s->op[r->op], age(w, r->since));
	if (r->op == OP_SCAN && outcome == DONE) {
		stat_add(s, STAT_OPS, 1);
		stat_add(s, STAT_SCANS, 1);
	}
	if (r->rmw)
		return;
	record_latency(w, s, r);
	stat_add(s, STAT_REQUESTS, 1);
	stat_add(s, STAT_AFTER_END, after_end(w));
}

/* Updates the shared time of the last reply; seldom, as all threads write it. */
static void note_reply(struct worker *w)
{
	uint64_t last_reply_ns = __atomic_load_n(&w->phase->last_reply_ns, __ATOMIC_RELAXED);

	w->unanswered = 0;
	if (w->now > last_reply_ns + LAST_REPLY_STEP_NS)
		__atomic_store_n(&w->phase->last_reply_ns, w->now, __ATOMIC_RELAXED);
}

/* Has the server gone?  A load that is limited by requests only would never end. */
static void give_up_on_silence(struct worker *w)
{
	const struct phase *p = w->phase;
	uint64_t ms = SILENCE * (p->o->retries + 1ULL) * p->o->timeout_ms;
	uint64_t last_reply_ns = __atomic_load_n(&p->last_reply_ns, __ATOMIC_RELAXED);
	char line[80];

	ms = ms < SILENCE_MIN_MS ? SILENCE_MIN_MS : ms;
	if (p->loading || p->end_ns || ++w->unanswered < SILENCE ||
	    w->now < last_reply_ns + ms * 1000000)
		return;
	snprintf(line, sizeof(line), "no reply at all for %.1f s: the server is gone, or cut off",
		 (w->now - last_reply_ns) / 1e9);
	worker_fail(w, line);
}

static void lose(struct worker *w, struct request *r)
{
	struct stats *s = stats_of(w, r);

	w->last = w->now;
	hist_record(&s->op[r->op], age(w, r->since));
	record_latency(w, s, r);
	stat_add(s, STAT_LOST, 1);
	release(w, r);
	give_up_on_silence(w);
}

/* While loading, a request is repeated, but not for ever. */
static bool may_load_again(struct worker *w, struct request *r)
{
	if (++r->tries < LOAD_TRIES)
		return true;
	worker_fail(w, "loading gave up: the server is busy or does not answer");
	return false;
}

/* Ends loading if the store is full: it would refuse the remaining keys, too. */
static void end_if_full(struct worker *w)
{
	if (w->stats.count[STAT_NO_MEMORY])
		worker_fail(w, "the store is full: raise xkvd's maxmemory or max-keys, or lower "
			       "--keys");
}

/* Handles the outcome of a reply; the request is not in w->out. */
static void proceed(struct worker *w, struct request *r, enum outcome outcome, unsigned int keys)
{
	if (r->must)
		end_if_full(w);
	if (outcome == AGAIN && r->must && r->keys == keys && !may_load_again(w, r))
		outcome = BROKEN;
	if (outcome == AGAIN) {
		send_request(w, r);
		return;
	}
	if (outcome == BROKEN) {
		release(w, r);
		return;
	}
	record(w, r, outcome);
	if (!r->rmw) {
		release(w, r);
		return;
	}
	r->rmw = false;
	r->op = OP_SET;
	r->rmw_since = r->since;
	r->since = w->now;
	r->keys = r->first;
	r->first = 0;
	send_request(w, r);
}

static void answer(struct worker *w, struct request *r, const uint8_t *buf, size_t len)
{
	unsigned int keys = r->keys;
	struct stats *s = stats_of(w, r);
	uint64_t ops = s->count[STAT_OPS];
	enum outcome outcome = w->protocol->take(w->phase->o, s, r, buf, len);

	take_out(w, r);
	proceed(w, r, outcome, keys);
	if (after_end(w))
		stat_add(s, STAT_OPS_AFTER_END, s->count[STAT_OPS] - ops);
}

/* The client of this worker that an id belongs to, or NULL. */
static struct client *client_of(struct worker *w, uint64_t id)
{
	uint64_t number = id >> REQUEST_CLIENT_SHIFT, first = w->client[0].number;

	return number >= first && number < first + w->clients ? &w->client[number - first] : NULL;
}

void worker_datagram(struct worker *w, struct client *c, const uint8_t *buf, size_t len)
{
	uint64_t id, place;

	if (!w->protocol->id(buf, len, &id)) {
		stat_add(&w->stats, STAT_MALFORMED, 1);
		return;
	}
	note_reply(w);
	if (!c)
		c = client_of(w, id);
	place = id & (REQUEST_DEPTH_MAX - 1);
	if (c && place < w->depth) {
		struct request *r = &c->request[place];

		if (r->out && r->id == id) {
			answer(w, r, buf, len);
			return;
		}
		if ((id ^ r->id) >> REQUEST_CLIENT_SHIFT == 0) {
			stat_add(&w->stats, STAT_LATE, 1);
			return;
		}
	}
	stat_add(&w->stats, STAT_FOREIGN, 1);
}

ssize_t worker_stream(struct worker *w, struct client *c, const uint8_t *buf, size_t len)
{
	struct request *r;
	size_t used = 0;

	note_reply(w);
	while (used < len && (r = TAILQ_FIRST(&c->order))) {
		ssize_t n = w->protocol->measure(r, buf + used, len - used);

		if (n < 0)
			stat_add(&w->stats, STAT_MALFORMED, 1);
		if (n <= 0)
			return n < 0 ? n : (ssize_t)used;
		answer(w, r, buf + used, n);
		used += n;
	}
	if (used == len)
		return used;
	stat_add(&w->stats, STAT_FOREIGN, 1); /* a reply that nobody asked for */
	return -EBADMSG;
}

void worker_drop(struct worker *w, struct client *c)
{
	for (unsigned int i = 0; i < w->depth; i++) {
		struct request *r = &c->request[i];

		if (!r->out)
			continue;
		take_out(w, r);
		lose(w, r);
	}
	if (w->phase->loading)
		worker_fail(w,
			    "loading gave up: the server closed the connection or does not answer");
}

/* Repeats requests after the end, too: else those sent shortly before it might be lost. */
static bool may_retry(struct worker *w, struct request *r)
{
	if (failed(w))
		return false;
	return r->must ? may_load_again(w, r) : r->tries++ < w->phase->o->retries;
}

static void on_timeout(struct worker *w, struct request *r)
{
	struct stats *s = stats_of(w, r);

	stat_add(s, STAT_TIMEOUTS, 1);
	if (w->protocol->stream) { /* later bytes could not be matched with requests */
		worker_drop(w, r->client);
		w->transport->reset(w, r->client);
		return;
	}
	take_out(w, r);
	if (may_retry(w, r)) {
		stat_add(s, STAT_RETRIES, 1);
		send_request(w, r);
	} else {
		lose(w, r);
	}
}

static void expire(struct worker *w)
{
	struct request *r;

	while ((r = TAILQ_FIRST(&w->out)) && r->until <= w->now && !interrupted)
		on_timeout(w, r);
}

/* Due times of the threads alternate.  A product, since a sum would accumulate rounding errors. */
static double due_at(const struct worker *w, uint64_t dues)
{
	return w->phase->start_ns + w->gap * (dues + (double)w->number / w->workers);
}

/* May a request be sent now?  *since: when it was due, 0 in a closed loop. */
static bool is_due(struct worker *w, uint64_t *since)
{
	*since = 0;
	if (w->gap == 0)
		return true;
	if (w->due > w->now)
		return false;
	*since = w->due;
	w->due = due_at(w, ++w->dues);
	return true;
}

/* Counts requests that were due before the end but are not sent; with -n at most the rest. */
static void count_unsent(struct worker *w)
{
	double from = w->phase->from_ns, due = w->due;
	uint64_t n, some, first;

	if (due < from)
		due += ceil((from - due) / w->gap) * w->gap;
	if (due >= w->phase->end_ns)
		return;
	n = ceil((w->phase->end_ns - due) / w->gap);
	n = take_share(w->phase, n, w->phase->o->batch, &first);
	stat_add(&w->stats, STAT_UNSENT, n);
	for (some = n / UNSENT_AGES + 1; n; n -= some) {
		some = some < n ? some : n;
		hist_record_many(&w->stats.latency, age(w, due), some);
		due += some * w->gap;
	}
}

/* The thread sends no more requests, but still waits for replies. */
static void stop(struct worker *w)
{
	w->stopping = true;
	if (w->gap > 0 && time_is_up(w))
		count_unsent(w);
}

/* Sends requests, at most ISSUE_MAX.  False if more could be sent. */
static bool issue(struct worker *w)
{
	struct request *r;

	for (unsigned int i = 0; !w->stopping && (r = TAILQ_FIRST(&w->free)); i++) {
		uint64_t since;

		if (i == ISSUE_MAX)
			return false;
		if (phase_over(w)) {
			stop(w);
			return true;
		}
		if (!is_due(w, &since))
			return true;
		if (!next_request(w, r, since ? since : w->now)) {
			w->stopping = true;
			return true;
		}
		TAILQ_REMOVE(&w->free, r, line);
		r->since = since;
		send_request(w, r);
		if (since)
			hist_record(&stats_of(w, r)->lag, w->now - since);
	}
	return true;
}

/* How long the thread may wait for replies: until the next deadline or request. */
static uint64_t patience(const struct worker *w)
{
	const struct request *first = TAILQ_FIRST(&w->out);
	uint64_t until = w->now + SLICE_MS * 1000000ULL, end = w->phase->end_ns;

	if (first && first->until < until)
		until = first->until;
	if (!w->stopping && w->gap > 0 && !TAILQ_EMPTY(&w->free) && w->due < until)
		until = w->due;
	if (!w->stopping && end > w->now && end < until)
		until = end;
	return until > w->now ? until - w->now : 0;
}

static void start(struct worker *w)
{
	const struct phase *p = w->phase;
	struct timespec begin = { p->start_ns / 1000000000, p->start_ns % 1000000000 };

	/* Should a signal end it early, the loop sees that next. */
	(void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &begin, NULL);
	w->now = now_ns();
	w->stopping = false;
	w->last = 0;
	w->unanswered = 0;
	w->gap = p->rate > 0 ? 1e9 * w->workers / p->rate : 0;
	w->dues = 0;
	w->due = due_at(w, 0);
}

/* If a thread may receive replies for another one, all threads run until the last is done. */
static void receive_for_others(struct worker *w)
{
	__atomic_sub_fetch(&w->phase->working, 1, __ATOMIC_RELAXED);
	if (!w->transport->start)
		return;
	while (!interrupted && __atomic_load_n(&w->phase->working, __ATOMIC_RELAXED))
		w->transport->receive(w, 1000000);
}

static void run(struct worker *w)
{
	start(w);
	while (!interrupted) {
		bool all = issue(w);

		w->transport->flush(w);
		if (w->stopping && TAILQ_EMPTY(&w->out))
			break;
		w->transport->receive(w, all ? patience(w) : 0);
		w->now = now_ns();
		expire(w);
		if (phase_over(w) && !w->stopping)
			stop(w);
	}
	if (interrupted)
		w->last = w->now;
	receive_for_others(w);
	if (w->transport->finish)
		w->transport->finish(w);
}

static void pin(struct worker *w)
{
	const struct options *o = w->phase->o;
	cpu_set_t set;

	if (!o->pins)
		return;
	CPU_ZERO(&set);
	CPU_SET(o->pin[w->number % o->pins], &set);
	if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set))
		worker_fail(w, "--pin names a CPU that this process may not run on");
}

void *worker_main(void *worker)
{
	struct worker *w = worker;

	pin(w);
	/* Sleeps end when they should, not up to 50 us later. */
	prctl(PR_SET_TIMERSLACK, 1UL);
	run(w);
	return NULL;
}

static int make_requests(struct worker *w, const struct options *o)
{
	size_t n = (size_t)w->clients * w->depth, keys = sets_that_fit(o);

	if (keys < o->batch)
		keys = o->batch;
	w->request = calloc(n, sizeof(*w->request));
	w->keys = calloc(n * keys, sizeof(*w->keys));
	if (!w->request || !w->keys) {
		message("out of memory for %zu requests", n);
		return -ENOMEM;
	}
	for (unsigned int i = 0; i < w->clients; i++)
		w->client[i].request = &w->request[i * w->depth];
	/* neighbours in the list belong to different clients */
	for (size_t i = 0; i < n; i++) {
		struct client *c = &w->client[i % w->clients];
		size_t place = i / w->clients;
		struct request *r = &c->request[place];

		r->client = c;
		r->key = &w->keys[i * keys];
		r->id = (uint64_t)c->number << REQUEST_CLIENT_SHIFT | place;
		TAILQ_INSERT_TAIL(&w->free, r, line);
	}
	return 0;
}

int worker_open(struct worker *w, const struct options *o, const struct server_address *server,
		unsigned int first, unsigned int clients)
{
	TAILQ_INIT(&w->free);
	TAILQ_INIT(&w->out);
	w->protocol = protocol_of(o);
	w->depth = o->depth;
	w->client = calloc(clients, sizeof(*w->client));
	if (!w->client) {
		message("out of memory for %u clients", clients);
		return -ENOMEM;
	}
	w->clients = clients;
	for (unsigned int i = 0; i < clients; i++) {
		w->client[i].fd = -1;
		w->client[i].number = first + i + 1;
		w->client[i].pad = o->pad;
		TAILQ_INIT(&w->client[i].order);
	}
	if (make_requests(w, o))
		return -ENOMEM;
	w->transport = transport_of(o);
	return w->transport->open(w, o, server);
}

void worker_close(struct worker *w)
{
	if (w->transport)
		w->transport->close(w);
	free(w->request);
	free(w->keys);
	free(w->client);
	w->client = NULL;
	w->clients = 0;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One TCP client: reading, executing in rounds, replying, closing.
 *
 * Fairness: a round executes a bounded number of commands, writes a bounded number of bytes of
 * replies, and sends a bounded number of messages to others; the remaining commands wait for the
 * next turn, behind other clients.  If a client does not read its replies, execution pauses, but
 * its commands are still read: most client libraries write a whole pipeline before they read, and
 * would be blocked for ever.
 */
#include "client.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "executor.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/machine.h"

#define ROUND_COMMANDS 256
#define ROUND_OUTPUT   (256 << 10)
#define ROUND_MESSAGES 4096 /* to other clients */
#define ROUND_WRITE    (4 << 20)
#define RESUME_BELOW   (256 << 10) /* unsent bytes at which execution resumes after a pause */
#define READ_MAX       (1 << 20)   /* bytes read, and parsed, in one go */
#define WRITE_VECTORS  64
/* for a client of which TCP says only that it sends no more */
#define HANGUP_GRACE_NS 1000000000
/* bytes before AUTH: the longest command, and a pipeline beside it */
#define WAITING_INPUT_MAX (4 << 20) /* bytes */
#define UNAUTH_INPUT_MAX  (RESP_UNAUTH_ARGS * RESP_UNAUTH_BULK + 2 * READ_BYTES)
/* least value of maxmemory-clients in bytes, if it is a percentage */
#define SHARE_LEAST   (64ULL << 20)
#define ARGUMENT_REST (1ULL << 20) /* of maxmemory-clients, for all that is not one argument */
/* between two looks at how much memory is left */
#define LOOK_NS	   100000000
#define LOOK_BYTES (1 << 20)
/* of messages to a client, after which they are counted */
#define COUNT_BYTES (64 << 10)
/* bytes that clients must have freed before malloc_trim() is worth its time */
#define TRIM_ABOVE (4 << 20)

static struct outbox *outbox(struct client *c)
{
	return &c->caller.session.reply.out;
}

/* Each line of code that closes clients has a rate of its own: no reason hides another. */
#define log_closing(client, why)                                                                   \
	do {                                                                                       \
		char peer[ADDRESS_TEXT];                                                           \
                                                                                                   \
		connection_address(&(client)->stream.conn, true, peer);                            \
		log_repeated("closing client %s (id %llu): %s", peer,                              \
			     (unsigned long long)(client)->caller.id, why);                        \
	} while (0)

static const struct output_limit *output_limit(const struct client *c)
{
	const struct output_limit *limits = c->caller.srv->cfg->output_limit;

	return &limits[session_is_subscriber(&c->caller.session) ? OUTPUT_PUBSUB : OUTPUT_NORMAL];
}

/* Is one of its commands in the middle, with others being served: worker_yield()? */
static bool client_is_busy(const struct client *c)
{
	return c->caller.srv->busy == &c->caller;
}

/* --- execution --- */

static void protocol_error(struct client *c)
{
	char peer[ADDRESS_TEXT];

	worker_flush(c->caller.worker);
	connection_address(&c->stream.conn, true, peer);
	log_verbose("protocol error from client %s: %s", peer, c->stream.parser.error);
	c->caller.worker->stat[STAT_PROTOCOL_ERRORS]++;
	reply_error(reply_to(&c->caller), "ERR Protocol error: %s", c->stream.parser.error);
	c->caller.closing = true;
}

static bool may_execute(struct client *c)
{
	return !c->caller.closing && !c->caller.dead && !outbox(c)->failed &&
	       !c->caller.srv->stopping && !c->caller.waits;
}

/* Where the unfinished command is now: input moves. */
static void follow_input(struct client *c)
{
	struct call *call = &c->caller.call;

	resp_moved(&c->stream.parser, stream_command(&c->stream) - call->bytes);
	call->bytes = stream_command(&c->stream);
	call->pending = stream_pending(&c->stream);
}

/* The command is done with: its bytes, and replies that others had to be behind. */
static void end_command(struct client *c)
{
	c->stream.in.pos += c->stream.parser.pos;
	if (c->caller.session.held.out.head || c->caller.session.held.out.failed)
		reply_splice(&c->caller.session.reply, &c->caller.session.held);
}

/* Resumes the unfinished command, if there is one and there is time.  True: none is left. */
static bool finish_command(struct client *c)
{
	if (!(c->caller.ran & RUN_UNFINISHED))
		return true;
	if (!worker_slice_left(c->caller.worker))
		return false;
	follow_input(c);
	c->caller.ran = c->caller.worker->executor->resume(&c->caller);
	if (c->caller.ran & RUN_UNFINISHED)
		return false;
	end_command(c);
	return true;
}

static void run_command(struct client *c)
{
	struct resp_parser *p = &c->stream.parser;

	if (p->argc) {
		c->caller.call = (struct call){ p->argc, p->argv, stream_command(&c->stream),
						p->pos, stream_pending(&c->stream) };
		c->caller.worker->stat[STAT_COMMANDS]++;
		c->caller.ran = c->caller.worker->executor->run(&c->caller);
		c->wrote |= c->caller.ran & (RUN_WRITES | RUN_MAY_WRITE);
	}
	if (!(c->caller.ran & RUN_UNFINISHED))
		end_command(c);
}

/* Executes one command.  False if there is none, or none may be executed. */
static bool execute_one(struct client *c)
{
	struct resp_limits limits = { c->caller.srv->longest, caller_needs_auth(&c->caller) };

	switch (resp_parse(&c->stream.parser, stream_command(&c->stream),
			   stream_pending(&c->stream), &limits)) {
	case RESP_COMMAND:
		run_command(c);
		return true;
	case RESP_ERROR:
		protocol_error(c);
		return false;
	case RESP_NOMEM:
		log_closing(c, "out of memory");
		c->caller.dead = true;
		return false;
	case RESP_REFUSED:
		c->stream.in.pos += resp_forget(&c->stream.parser);
		c->caller.ran = c->caller.worker->executor->refuse_long(&c->caller);
		if (!(c->caller.ran & RUN_UNFINISHED))
			end_command(c);
		return true;
	case RESP_MORE:
		c->stream.in.pos += resp_forget(&c->stream.parser);
		break;
	}
	return false;
}

/* Gives the client a turn, behind those that wait already. */
static void queue(struct client *c)
{
	worker_enqueue(c->caller.worker, c, c->caller.ran & RUN_UNFINISHED);
}

/* Executes commands until the round is over.  False if there is none left that may be executed. */
static bool execute_some(struct client *c)
{
	uint64_t messages = c->caller.worker->messages;
	size_t start = outbox(c)->bytes;

	/* A command about many keys counts as several. */
	for (unsigned int n = 0; n < ROUND_COMMANDS; n += 1 + c->stream.parser.argc / 8) {
		if (!may_execute(c))
			return false;
		if (!finish_command(c))
			return true;
		if (!stream_pending(&c->stream) || !execute_one(c))
			return false;
		if (c->caller.waits)
			return false;
		if (outbox(c)->bytes > start + ROUND_OUTPUT ||
		    c->caller.worker->messages > messages + ROUND_MESSAGES ||
		    ((c->caller.ran & RUN_LONG) && !worker_slice_left(c->caller.worker)))
			break;
	}
	return stream_pending(&c->stream);
}

/*
 * What the client has queued waits for that of others if its input stays where it is: in the shared
 * buffer, of which the next client gets what is behind it.
 */
static void end_turn(struct client *c, bool more)
{
	const struct input *in = &c->stream.in;
	struct worker *w = c->caller.worker;

	if (w->executor->end_turn(&c->caller, in->shared && !more))
		w->read_used = (size_t)(in->data + in->len - w->read_buffer);
	else
		w->read_used = 0;
}

/* One round.  Leaves the client queued or paused if commands are left. */
static void client_execute(struct client *c)
{
	bool more;

	outbox(c)->limit = output_limit(c)->hard;
	more = execute_some(c);
	end_turn(c, more);
	if (!more)
		return;
	if (outbox(c)->bytes > PAUSE_ABOVE)
		c->paused = true;
	else
		queue(c);
}

/* --- memory --- */

static size_t memory_of(struct client *c)
{
	const struct executor *ex = c->caller.worker->executor;

	return sizeof(*c) + ex->caller_bytes + connection_memory(&c->stream.conn) +
	       stream_memory(&c->stream) + session_memory(&c->caller.session) +
	       ex->memory(&c->caller);
}

static size_t waiting(const struct client *c)
{
	return c->caller.session.reply.out.memory + c->caller.session.held.out.memory;
}

static void account(struct client *c, size_t memory)
{
	struct worker *w = c->caller.worker;

	if (c->uncounted)
		memory = 0;
	/* others read it meanwhile: server_client_memory() */
	__atomic_store_n(&w->client_memory, w->client_memory + memory - c->memory,
			 __ATOMIC_RELAXED);
	c->memory = memory;
	c->waiting = waiting(c);
	if (w->client_memory > w->client_memory_peak)
		w->client_memory_peak = w->client_memory;
}

/* It counts no longer, neither as a client nor with its memory. */
static void leave_counts(struct client *c)
{
	if (c->uncounted)
		return;
	c->uncounted = true;
	c->caller.worker->client_count--;
	account(c, 0);
}

bool server_memory_is_low(struct server *s)
{
	size_t bytes = server_client_memory(s) + s->tracked_bytes;
	uint64_t now = monotonic_ns();

	if (now - s->memory_seen_ns < LOOK_NS && bytes < s->memory_seen_at + LOOK_BYTES)
		return s->memory_short;
	s->memory_short = memory_is_short(0);
	s->memory_seen_ns = now;
	s->memory_seen_at = bytes;
	return s->memory_short;
}

/* maxmemory-clients in bytes. */
static uint64_t configured_limit(const struct server *s)
{
	const struct share *share = &s->cfg->maxmemory_clients;
	uint64_t whole = s->cfg->maxmemory ? s->cfg->maxmemory : s->memory_whole, limit;

	if (!share->percent)
		return share->bytes ? share->bytes : UINT64_MAX;
	limit = whole / 100 * share->percent;
	return limit > SHARE_LEAST ? limit : SHARE_LEAST;
}

void clients_limit_arguments(struct server *s)
{
	uint64_t limit = configured_limit(s), most = s->cfg->proto_max_bulk_len;

	if (limit > 2 * ARGUMENT_REST)
		limit -= ARGUMENT_REST;
	s->longest = limit < most ? limit : most;
	snprintf(s->too_long, sizeof(s->too_long),
		 "ERR invalid bulk length: longer than %s (%llu bytes)",
		 limit < most ? "maxmemory-clients allows" : "proto-max-bulk-len",
		 (unsigned long long)s->longest);
}

uint64_t server_spare_memory(const struct server *s)
{
	return memory_reserve(s->memory_whole) / 2;
}

/* Do they take so little that it does not matter how much memory is left? */
static bool take_little(const struct server *s, uint64_t bytes, uint64_t limit)
{
	return limit <= server_spare_memory(s) ||
	       bytes + s->tracked_bytes <= server_spare_memory(s);
}

/* What clients may take, besides what is remembered for them. */
static uint64_t memory_limit(struct server *s)
{
	uint64_t spare = server_spare_memory(s), limit = configured_limit(s);

	if (take_little(s, server_client_memory(s), limit) || !server_memory_is_low(s))
		return limit;
	return spare - (s->tracked_bytes < spare / 4 ? s->tracked_bytes : spare / 4);
}

struct caller *client_next(const struct server *s, const struct caller *c)
{
	const struct worker *of = c ? c->worker : NULL;
	struct client *next = c ? TAILQ_NEXT(client_of(c), link) : NULL;

	for (unsigned int i = 0; i < s->worker_count && !next; i++) {
		if (!of)
			next = TAILQ_FIRST(&s->worker[i]->clients);
		else if (s->worker[i] == of)
			of = NULL; /* those behind its own */
	}
	return next ? &next->caller : NULL;
}

static bool may_be_evicted(const struct client *c)
{
	return !c->caller.dead && !c->caller.session.no_evict && !client_is_busy(c);
}

/* The client that takes most memory; `bytes` is what all take that are not being closed. */
static struct client *largest_client(const struct server *s, uint64_t *bytes)
{
	struct client *largest = NULL, *each;

	*bytes = 0;
	for (struct caller *next = NULL; (next = client_next(s, next));) {
		each = client_of(next);
		*bytes += next->dead ? 0 : each->memory;
		if (may_be_evicted(each) && (!largest || each->memory > largest->memory))
			largest = each;
	}
	return largest;
}

static void close_client(struct caller *c);

static void evict(struct client *c, void (*close)(struct caller *))
{
	log_closing(c, "clients take more than maxmemory-clients, and it takes most");
	c->caller.srv->running->stat[STAT_EVICTED_CLIENTS]++;
	close(&c->caller);
}

/*
 * Closes the clients that take most memory, until all together are within the limit.  If many have
 * to go, each walk over all closes those with more than half of the largest one's.
 */
static void evict_clients(struct server *s, void (*close)(struct caller *))
{
	uint64_t limit = memory_limit(s), bytes;
	struct client *largest;
	struct caller *next;
	size_t least;

	while (server_client_memory(s) > limit) {
		largest = largest_client(s, &bytes);
		if (!largest || bytes <= limit)
			return;
		least = bytes - largest->memory > limit ? largest->memory / 2 : largest->memory;
		for (struct caller *c = client_next(s, NULL); c && bytes > limit; c = next) {
			next = client_next(s, c);
			if (!may_be_evicted(client_of(c)) || client_of(c)->memory < least)
				continue;
			bytes -= client_of(c)->memory;
			evict(client_of(c), close);
		}
	}
}

/* At the end of each event of a client: most of the time there is nothing to do. */
static void limit_memory(struct worker *w)
{
	struct server *s = w->srv;
	uint64_t limit = configured_limit(s), bytes = server_client_memory(s);

	if (take_little(s, bytes, limit) && bytes <= limit)
		return;
	worker_take_all(w);
	evict_clients(s, close_client);
}

/*
 * A client that does not read its replies is not read from while the clients take more than half of
 * maxmemory-clients.  Below that it is, because most libraries write all of a pipeline before they
 * read.  Nor is one that has sent much behind a command that waits, for an upstream or the disk.
 * A read that waits until the socket can be written to is tried again by on_writable(): that there
 * is something to read would keep the loop busy and help nothing.
 */
static void read_or_wait(struct client *c)
{
	struct server *s = c->caller.srv;

	if (c->paused)
		worker_take_all(c->caller.worker);
	if ((c->caller.closing && !c->stream.conn.write_needs_read) || c->sends_no_more ||
	    c->stream.conn.read_needs_write ||
	    (c->caller.waits && stream_pending(&c->stream) > WAITING_INPUT_MAX) ||
	    (c->paused && server_client_memory(s) > memory_limit(s) / 2)) {
		ev_io_stop(c->caller.worker->loop, &c->stream.readable);
		return;
	}
	ev_io_start(c->caller.worker->loop, &c->stream.readable);
	if (c->stream.conn.more && !c->queued) {
		c->reads = true;
		queue(c);
	}
}

void clients_trim_memory(struct worker *w)
{
	outbox_cache_free();
	malloc_trim(0);
	w->client_memory_peak = w->client_memory;
}

/* Whether output has been beyond the soft limit for too long; to be asked again and again. */
static bool passes_soft_limit(struct client *c)
{
	const struct output_limit *limit = output_limit(c);
	double now;

	if (!limit->soft || outbox(c)->bytes + c->caller.session.held.out.bytes < limit->soft) {
		c->over_since = 0;
		return false;
	}
	now = monotonic_seconds();
	if (c->over_since == 0)
		c->over_since = now;
	return now - c->over_since > limit->seconds;
}

/* Whether the client has to be closed because of what it leaves unread. */
static bool passes_output_limit(struct client *c)
{
	if (outbox(c)->failed)
		log_closing(c, "its output passes client-output-buffer-limit, or memory is short");
	else if (passes_soft_limit(c))
		log_closing(c, "its output passes the soft limit of client-output-buffer-limit");
	else
		return false;
	c->caller.worker->stat[STAT_OUTPUT_CLOSED]++;
	return true;
}

/* One that may have shut down its sending side only has a second. */
static bool has_gone(struct client *c)
{
	enum peer_state peer = connection_peer(&c->stream.conn);

	if (peer != PEER_MAY_BE_GONE)
		return peer == PEER_GONE;
	if (!c->hung_up)
		c->hung_up = monotonic_ns();
	return monotonic_ns() - c->hung_up > HANGUP_GRACE_NS;
}

void clients_tend_memory(struct worker *w)
{
	struct client *c, *next;

	for (c = TAILQ_FIRST(&w->clients); c; c = next) {
		next = TAILQ_NEXT(c, link);
		/* while there is something to send, that tells whether it has gone */
		if (passes_output_limit(c) ||
		    (c->sends_no_more && !outbox(c)->bytes && has_gone(c)))
			client_free(c);
		else if (!ev_is_active(&c->stream.readable))
			read_or_wait(c);
	}
	if (w->client_memory_peak - w->client_memory > TRIM_ABOVE)
		clients_trim_memory(w);
}

/* --- output --- */

/* Keeps worker.clients in the order of activity, for `timeout`. */
static void active_at(struct client *c, double when)
{
	c->active = when;
	TAILQ_REMOVE(&c->caller.worker->clients, c, link);
	TAILQ_INSERT_TAIL(&c->caller.worker->clients, c, link);
}

static void touch(struct client *c)
{
	c->caller.worker->now_ns = monotonic_ns();
	active_at(c, (double)c->caller.worker->now_ns / 1e9);
}

/* A peer that goes is not worth a line, nor a counter. */
static void note_failure(struct client *c)
{
	if (errno != EPROTO)
		return;
	c->caller.worker->stat[STAT_TLS_ERRORS]++;
	log_verbose("TLS ends client id %llu: %s", (unsigned long long)c->caller.id,
		    connection_error(&c->stream.conn));
}

/* With TLS, output may have to wait for input, and the other way round. */
static void write_or_wait(struct client *c)
{
	const struct connection *conn = &c->stream.conn;

	if ((outbox(c)->bytes && !conn->write_needs_read) || conn->read_needs_write)
		ev_io_start(c->caller.worker->loop, &c->stream.writable);
	else
		ev_io_stop(c->caller.worker->loop, &c->stream.writable);
}

/* One call; others may run meanwhile if `leave`.  As writev(). */
static ssize_t send_once(struct client *c, bool leave)
{
	struct connection *conn = &c->stream.conn;
	struct iovec iov[WRITE_VECTORS];
	int count = outbox_iov(outbox(c), iov, WRITE_VECTORS), error;
	ssize_t n;

	if (!leave)
		return conn->transport->writev(conn, iov, count);
	outbox(c)->sending = c->away = true;
	worker_leave(c->caller.worker, false);
	n = conn->transport->writev(conn, iov, count);
	error = errno;
	worker_return(c->caller.worker);
	errno = error;
	outbox(c)->sending = c->away = false;
	return n;
}

/* Sends what the socket takes without waiting. */
static void client_flush(struct client *c, bool leave)
{
	size_t total = 0;
	ssize_t n;

	if (leave && c->caller.unsent && c->caller.srv->replies_wait)
		return; /* a message is behind replies that wait */
	while (outbox(c)->bytes && !outbox(c)->failed && total < ROUND_WRITE) {
		n = send_once(c, leave);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			c->caller.dead |= errno != EAGAIN;
			note_failure(c);
			break;
		}
		outbox_sent(outbox(c), (size_t)n);
		total += (size_t)n;
		c->caller.worker->stat[STAT_WRITES]++;
	}
	c->caller.worker->stat[STAT_BYTES_OUT] += total;
	c->flow.written += (uint32_t)total;
	if (total)
		touch(c);
	write_or_wait(c);
}

void clients_flush(struct worker *w)
{
	struct client *c, *next;

	for (c = TAILQ_FIRST(&w->clients); c; c = next) {
		next = TAILQ_NEXT(c, link); /* sending moves the client to the end */
		if (c->away)
			continue;
		client_flush(c, false);
		ev_feed_event(w->loop, &c->stream.writable, EV_WRITE); /* a paused one goes on */
	}
	worker_wake(w);
}

/* What is left of the input leaves the shared buffer, which others read into. */
static void keep_input(struct client *c)
{
	if (c->caller.dead || stream_keep_rest(&c->stream))
		return;
	log_closing(c, "out of memory");
	c->caller.dead = true;
}

/* Are there replies to come from elsewhere?  `ends`: all that it has sent was executed. */
static bool is_owed(struct client *c, bool ends)
{
	const struct executor *ex = c->caller.worker->executor;

	return c->held_until || (c->caller.waits && !c->caller.blocks) ||
	       (ex->owes && ex->owes(&c->caller, ends));
}

/* Were all its commands executed?  The rest of the input is an incomplete command. */
static bool has_its_replies(struct client *c)
{
	return !c->queued && !c->paused && !c->caller.unsent && !(c->caller.ran & RUN_UNFINISHED) &&
	       !is_owed(c, true);
}

/* Ends the handling of each event of a client: closes it, or prepares it for the next event. */
static void client_settle(struct client *c)
{
	c->caller.dead |= passes_output_limit(c);
	keep_input(c);
	c->caller.closing |= c->sends_no_more && has_its_replies(c);
	if (c->caller.closing && !outbox(c)->bytes && !c->caller.dead) {
		c->stream.conn.transport->finish(&c->stream.conn);
		c->caller.dead = true;
	}
	if (c->caller.dead) {
		worker_take_all(c->caller.worker);
		client_free(c);
		return;
	}
	account(c, memory_of(c));
	read_or_wait(c);
	limit_memory(c->caller.worker); /* may free this client */
}

/*
 * Is there nothing left to be executed or said, but what its outbox holds?  What is to come of a
 * command that is passed by is no command, whatever it looks like.
 */
static bool is_at_rest(struct client *c)
{
	return !stream_pending(&c->stream) && resp_at_start(&c->stream.parser) && !c->paused &&
	       !c->caller.closing && !c->caller.dead && !c->queued &&
	       !(c->caller.ran & RUN_UNFINISHED) && !c->caller.session.held.out.head &&
	       !outbox(c)->failed;
}

/* From the next request on, the driver does not answer it. */
static void take_back(struct client *c)
{
	if (c->caller.srv->flows)
		flow_take_back(c->caller.srv->flows, &c->flow);
}

/* Lets the driver answer what comes next, if it may. */
static void publish(struct client *c)
{
	struct flows *flows = c->caller.srv->flows;
	struct flow_rights rights = { 0 };

	if (!flows || c->flow.unfit || c->stream.conn.transport != &transport_tcp)
		return;
	if (is_at_rest(c))
		rights = c->caller.worker->executor->driver_rights(&c->caller);
	if (rights.commands)
		flow_publish(flows, &c->flow, c->stream.conn.fd, outbox(c)->bytes, &rights);
	else
		take_back(c);
}

/* Its replies are sent together with those of other clients: client_end_round(). */
static void run_round(struct client *c)
{
	client_execute(c);
	keep_input(c);
	worker_send(c->caller.worker, c);
}

/* Execution resumes when little is unsent, which is known only after sending. */
void client_end_round(struct client *c)
{
	c->wrote = false;
	if (c->delayed)
		queue(c);
	c->delayed = false;
	publish(c);
	if (!c->caller.dead)
		client_flush(c, true);
	if (c->paused && outbox(c)->bytes < RESUME_BELOW) {
		c->paused = false;
		queue(c);
	}
	client_settle(c);
}

/*
 * Whether the client has hung up while its commands take long: then it does not wait for the
 * replies.  One that writes is finished nevertheless, as in Redis, which notices later that the
 * client has gone.
 */
static bool is_abandoned(struct client *c)
{
	return c->caller.ran & (RUN_UNFINISHED | RUN_LONG) && !(c->caller.ran & RUN_WRITES) &&
	       has_gone(c);
}

static void serve_input(struct client *c);

void client_turn(struct client *c)
{
	bool reads = c->reads;

	worker_dequeue(c->caller.worker, c);
	c->delayed = c->held_until;
	if (client_is_busy(c) || c->held_until)
		return;
	c->reads = false;
	if (c->caller.ran & RUN_UNFINISHED)
		touch(c);
	else
		c->caller.worker->now_ns = monotonic_ns();
	c->caller.dead |= is_abandoned(c);
	if (reads && !c->caller.dead)
		serve_input(c);
	else
		run_round(c);
}

/* --- events --- */

/*
 * One call.  Others may run meanwhile unless something waits, and there is little to do: to fill
 * what is left of the shared buffer.
 */
static ssize_t read_once(struct client *c, size_t len)
{
	struct connection *conn = &c->stream.conn;
	char *to = c->stream.in.data + c->stream.in.len;
	ssize_t n;
	int error;

	if (c->caller.worker->read_used && c->stream.in.shared && !conn->ssl)
		return conn->transport->read(conn, to, len);
	c->away = true;
	worker_leave(c->caller.worker, false);
	n = conn->transport->read(conn, to, len);
	error = errno;
	worker_return(c->caller.worker);
	errno = error;
	c->away = false;
	return n;
}

static bool receive(struct client *c)
{
	struct worker *w = c->caller.worker;
	struct server *s = c->caller.srv;
	size_t room;
	ssize_t n;

	if (stream_pending(&c->stream) >= s->cfg->query_buffer_limit) {
		log_closing(c, "its command passes client-query-buffer-limit");
		w->stat[STAT_QUERY_CLOSED]++;
		return false;
	}
	if (caller_needs_auth(&c->caller) && stream_pending(&c->stream) > UNAUTH_INPUT_MAX) {
		log_closing(c, "it sends much and has not authenticated");
		w->stat[STAT_QUERY_CLOSED]++;
		return false;
	}
	if (w->read_used > READ_BYTES / 2)
		worker_flush(w);
	if (!stream_make_room(&c->stream, w->read_buffer + w->read_used,
			      READ_BYTES - w->read_used)) {
		log_closing(c, "out of memory");
		return false;
	}
	room = c->stream.in.cap - c->stream.in.len;
	n = read_once(c, room < READ_MAX ? room : READ_MAX);
	if (n > 0) {
		c->stream.in.len += (size_t)n;
		w->stat[STAT_BYTES_IN] += (uint64_t)n;
		c->flow.read += (uint32_t)n;
		w->stat[STAT_READS]++;
		touch(c);
		if (!s->flows || !flow_bypassed(s->flows, &c->flow))
			return true;
		log_closing(c, "segments have gone by the driver, which has answered it");
		connection_resets(&c->stream.conn);
		return false;
	}
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n < 0)
		note_failure(c);
	c->sends_no_more = !n && connection_peer(&c->stream.conn) != PEER_GONE &&
			   (c->paused || outbox(c)->bytes || is_owed(c, false));
	return c->sends_no_more;
}

static void serve_input(struct client *c)
{
	if (!receive(c)) {
		c->caller.dead = true;
		client_settle(c);
	} else if (c->paused) {
		write_or_wait(c);
		client_settle(c);
	} else {
		run_round(c);
	}
}

static void on_readable(struct ev_loop *loop, ev_io *w, int events)
{
	struct client *c = w->data;

	if (c->queued || c->caller.unsent || client_is_busy(c))
		return; /* it is read from again after its turn, when its replies are sent */
	if (c->stream.conn.write_needs_read)
		client_flush(c, true);
	serve_input(c);
}

static void on_writable(struct ev_loop *loop, ev_io *w, int events)
{
	struct client *c = w->data;

	if (client_is_busy(c))
		return;
	client_flush(c, true);
	if (c->paused && outbox(c)->bytes < RESUME_BELOW) {
		c->paused = false;
		queue(c);
	}
	if (c->stream.conn.read_needs_write && !c->queued)
		serve_input(c);
	else
		client_settle(c);
}

/* --- the driver --- */

double client_active(const struct client *c)
{
	double used = c->caller.srv->flows
			      ? (double)flow_used_ns(c->caller.srv->flows, &c->flow) / 1e9
			      : 0;

	return used > c->active ? used : c->active;
}

bool client_was_used(struct client *c, double since)
{
	double used = client_active(c);

	if (used > c->active)
		active_at(c, used);
	return c->active >= since;
}

/* --- life --- */

/* One to one: the factor is odd. */
static uint64_t id_hash(uint64_t id)
{
	return id * 0x9e3779b97f4a7c15ULL;
}

struct caller *client_by_id(const struct server *s, uint64_t id)
{
	struct hashtable_entry *e =
		hashtable_find(&s->ids, id_hash(id)); /* no other has this hash */
	struct client *c = e ? (struct client *)((char *)e - offsetof(struct client, by_id)) : NULL;

	return c && !c->caller.dead ? &c->caller : NULL;
}

static void before_message(struct caller *to)
{
	struct client *c = client_of(to);

	take_back(c);
	to->session.reply.out.limit = output_limit(c)->hard;
}

/* Closed later: what is being done may have it in its hands. */
static void doom(struct caller *c)
{
	take_back(client_of(c));
	c->dead = true;
	outbox_give_up(&c->session.reply.out);
	outbox_give_up(&c->session.held.out);
	leave_counts(client_of(c));
	worker_enqueue(c->worker, client_of(c), false);
}

/* One script, or a change of a key that many have read, may send much before the round ends. */
static void count_message(struct client *c)
{
	if (waiting(c) < c->waiting + COUNT_BYTES)
		return;
	account(c, memory_of(c));
	evict_clients(c->caller.srv, doom);
}

static void wake(struct caller *to)
{
	count_message(client_of(to));
	ev_feed_event(to->worker->loop, &client_of(to)->stream.writable, EV_WRITE);
	worker_wake(to->worker);
}

static void answered(struct caller *c)
{
	count_message(client_of(c));
	worker_send(c->worker, client_of(c));
}

static void client_resume(struct caller *c)
{
	worker_enqueue(c->worker, client_of(c), true);
	worker_wake(c->worker);
}

static void address(const struct caller *c, bool peer, char text[ADDRESS_TEXT])
{
	connection_address(&client_of(c)->stream.conn, peer, text);
}

static bool is_local(const struct caller *c)
{
	return connection_is_local(&client_of(c)->stream.conn);
}

static const struct caller_kind client_kind = {
	.before_message = before_message,
	.wake = wake,
	.answered = answered,
	.resume = client_resume,
	.close = close_client,
	.address = address,
	.is_local = is_local,
};

struct client *client_of(const struct caller *c)
{
	return c->kind == &client_kind
		       ? (struct client *)((char *)c - offsetof(struct client, caller))
		       : NULL;
}

void client_new(struct worker *w, struct connection conn)
{
	struct server *s = w->srv;
	struct client *c = calloc(1, sizeof(*c) + w->executor->caller_bytes);
	uint64_t id = s->last_client_id + 1;

	if (!c || hashtable_insert(&s->ids, &c->by_id, id_hash(id))) {
		log_repeated("out of memory for a client");
		conn.transport->close(&conn);
		free(c);
		return;
	}
	caller_init(&c->caller, w, &client_kind);
	c->stream.conn = conn;
	c->caller.id = s->last_client_id = id;
	c->since = c->active = monotonic_seconds();
	ev_io_init(&c->stream.readable, on_readable, conn.fd, EV_READ);
	ev_io_init(&c->stream.writable, on_writable, conn.fd, EV_WRITE);
	c->stream.readable.data = c->stream.writable.data = c;
	TAILQ_INSERT_TAIL(&w->clients, c, link);
	account(c, memory_of(c));
	w->client_count++;
	w->stat[STAT_CONNECTIONS]++;
	read_or_wait(c);
}

/* May its watchers be started anew? */
static bool may_move(struct client *c)
{
	return is_at_rest(c) && !c->caller.waits && !c->caller.unsent && !c->held_until &&
	       !c->reads && !c->uncounted && !ev_is_pending(&c->stream.writable);
}

void client_move(struct client *c, struct worker *to)
{
	struct worker *from = c->caller.worker;
	ev_io *watcher[] = { &c->stream.readable, &c->stream.writable };
	size_t memory = c->memory;

	if (!may_move(c))
		return;
	account(c, 0);
	from->client_count--;
	TAILQ_REMOVE(&from->clients, c, link);
	c->caller.worker = to;
	TAILQ_INSERT_TAIL(&to->clients, c, link);
	to->client_count++;
	account(c, memory);
	for (int i = 0; i < 2; i++) {
		if (!ev_is_active(watcher[i]))
			continue;
		ev_io_stop(from->loop, watcher[i]);
		ev_io_start(to->loop, watcher[i]);
	}
}

static void close_client(struct caller *caller)
{
	struct client *c = client_of(caller);

	if (c->caller.worker == c->caller.srv->running) {
		client_free(c);
		return;
	}
	take_back(c);
	c->caller.worker->executor->cancel(&c->caller); /* to others it is gone now */
	c->caller.dead = true;
	leave_counts(c);
	worker_enqueue(c->caller.worker, c, false);
}

void client_free(struct client *c)
{
	struct worker *w = c->caller.worker;

	worker_flush(w);
	worker_dequeue(w, c);
	worker_unsend(w, c);
	ev_io_stop(w->loop, &c->stream.readable);
	ev_io_stop(w->loop, &c->stream.writable);
	TAILQ_REMOVE(&w->clients, c, link);
	hashtable_remove(&c->caller.srv->ids, &c->by_id);
	leave_counts(c);
	if (c->caller.srv->flows)
		flow_end(c->caller.srv->flows, &c->flow);
	c->stream.conn.transport->close(&c->stream.conn);
	w->executor->cancel(&c->caller);
	stream_free_input(&c->stream);
	session_free(&c->caller.session);
	free(c);
}

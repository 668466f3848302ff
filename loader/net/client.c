/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One TCP client: reading, executing in rounds, replying, closing.
 *
 * Memory: an idle client has neither a query nor a reply buffer.  Input is read into
 * one buffer that all clients share; only what is left of an incomplete
 * command moves into a buffer of the client's own.
 *
 * Fairness: a round executes a bounded number of commands and fills a bounded
 * number of bytes; what is left waits for the next turn, behind the others.
 * A client that does not read its replies is not executed further, but still
 * read: most client libraries write a whole pipeline before they read, and
 * would wait for us for ever.
 */
#include "client.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands/commands.h"
#include "util/clock.h"
#include "util/log.h"

#define ROUND_COMMANDS 256
#define ROUND_OUTPUT   (256 << 10)
#define ROUND_WRITE    (4 << 20)
#define RESUME_BELOW   (256 << 10) /* unsent bytes at which it goes on after PAUSE_ABOVE */
#define READ_MAX       (1 << 20)   /* bytes read, and parsed, in one go */
#define ROOM_MIN       (16 << 10)
#define ROOM_HINT_MAX  (2 << 20) /* a longer argument gets its memory as its bytes come */
#define WRITE_VECTORS  64
/* bytes of a buffer that is given back when most of it is free */
#define SHRINK_ABOVE   (256 << 10)
#define ARGV_KEEP      64	   /* arguments that a client at rest has room for */
/* bytes that maxmemory-clients is at least, if it is a percentage */
#define SHARE_LEAST    (64ULL << 20)
/* bytes that clients have freed, from which on it is worth while */
#define TRIM_ABOVE     (4 << 20)

static void log_closing(const struct client *c, const char *why)
{
	char peer[ADDRESS_TEXT];

	connection_address(&c->conn, true, peer);
	log_warning("closing client %s (id %llu): %s", peer, (unsigned long long)c->id, why);
}

/* --- input --- */

static void input_release(struct client *c)
{
	if (!c->in.shared)
		free(c->in.data);
	c->in = (struct input){ 0 };
}

/* Bytes to have room for, beyond the `rest` that is there. */
static size_t input_want(const struct client *c, size_t rest)
{
	size_t missing = resp_missing(&c->parser, rest);

	return missing > ROOM_MIN && missing <= ROOM_HINT_MAX ? missing : ROOM_MIN;
}

/* Gives most of a large buffer back that holds little. */
static void input_shrink(struct client *c, size_t rest)
{
	struct input *in = &c->in;
	size_t cap = rest + input_want(c, rest);
	char *data;

	if (in->cap <= SHRINK_ABOVE || in->cap / 4 < cap)
		return;
	memmove(in->data, in->data + in->pos, rest);
	in->pos = 0;
	in->len = rest;
	data = realloc(in->data, cap);
	if (data) {
		in->data = data;
		in->cap = cap;
	}
}

/* After a round: keeps the rest in a buffer of the client's own, or nothing at all. */
static bool input_keep(struct client *c)
{
	size_t rest = c->in.len - c->in.pos, cap;
	char *own;

	if (!rest) {
		input_release(c);
		if (c->parser.cap > ARGV_KEEP)
			resp_parser_free(&c->parser);
		return true;
	}
	if (!c->in.shared) {
		input_shrink(c, rest);
		return true;
	}
	cap = rest + input_want(c, rest);
	own = malloc(cap);
	if (!own)
		return false;
	memcpy(own, c->in.data + c->in.pos, rest);
	c->in = (struct input){ .data = own, .len = rest, .cap = cap };
	return true;
}

/*
 * Makes room to read into.  The rest moves to the front only if it is the
 * smaller part, and the buffer at least doubles when it grows, so every byte
 * moves a bounded number of times.
 */
static bool input_room(struct client *c)
{
	struct input *in = &c->in;
	size_t rest = in->len - in->pos, want = input_want(c, rest), cap;
	char *data;

	if (!in->data) {
		*in = (struct input){ c->worker->read_buffer, 0, 0, READ_BYTES, true };
		return true;
	}
	if (in->pos && in->pos >= rest) {
		memmove(in->data, in->data + in->pos, rest);
		in->pos = 0;
		in->len = rest;
	}
	if (in->cap - in->len >= want)
		return true;
	cap = in->len + want > in->cap * 2 ? in->len + want : in->cap * 2;
	data = realloc(in->data, cap);
	if (!data)
		return false;
	in->data = data;
	in->cap = cap;
	return true;
}

/* --- execution --- */

static void protocol_error(struct client *c)
{
	char peer[ADDRESS_TEXT];

	commands_flush(c);
	connection_address(&c->conn, true, peer);
	log_verbose("protocol error from client %s: %s", peer, c->parser.error);
	c->worker->stat[STAT_PROTOCOL_ERRORS]++;
	reply_error(&c->reply, "ERR Protocol error: %s", c->parser.error);
	c->closing = true;
}

static bool may_execute(const struct client *c)
{
	return !c->closing && !c->dead && !c->reply.out.failed && !c->srv->stopping;
}

/* Executes one command.  False if there is none, or none may be executed. */
static bool execute_one(struct client *c)
{
	struct input *in = &c->in;
	struct resp_limits limits = { c->srv->cfg->proto_max_bulk_len, client_needs_auth(c) };

	switch (resp_parse(&c->parser, in->data + in->pos, in->len - in->pos, &limits)) {
	case RESP_COMMAND:
		if (c->parser.argc)
			command_run(c, c->parser.argc, c->parser.argv);
		if (!c->work.step)
			in->pos += c->parser.pos;
		return true;
	case RESP_ERROR:
		protocol_error(c);
		return false;
	case RESP_NOMEM:
		log_closing(c, "out of memory");
		c->dead = true;
		return false;
	case RESP_MORE:
		break;
	}
	return false;
}

/* Lets the client have a turn, behind those that wait already. */
static void queue(struct client *c)
{
	worker_enqueue(c->worker, c, c->work.step);
}

/* Executes commands until the round is over.  False if there is none left that may be executed. */
static bool execute_some(struct client *c)
{
	size_t start = c->reply.out.bytes;

	/* A command about many keys counts as several. */
	for (unsigned int n = 0; n < ROUND_COMMANDS; n += 1 + c->parser.argc / 8) {
		if (!may_execute(c))
			return false;
		if (!work_go_on(c))
			return true;
		if (c->in.pos == c->in.len || !execute_one(c))
			return false;
		if (c->reply.out.bytes > start + ROUND_OUTPUT ||
		    (work_was_long(c) && !worker_slice_left(c->worker)))
			break;
	}
	return c->in.pos < c->in.len;
}

/* One round.  Leaves the client queued or paused if commands are left. */
static void execute(struct client *c)
{
	bool more;

	c->reply.out.limit = c->srv->cfg->client_output_limit;
	more = execute_some(c);
	commands_flush(c);
	if (!more)
		return;
	if (c->reply.out.bytes > PAUSE_ABOVE)
		c->paused = true;
	else
		queue(c);
}

/* --- memory --- */

static size_t text_memory(const char *text)
{
	return text ? strlen(text) + 1 : 0;
}

static size_t memory_of(const struct client *c)
{
	return sizeof(*c) + (c->in.shared ? 0 : c->in.cap) + c->reply.out.memory +
	       c->parser.cap * sizeof(*c->parser.argv) + found_memory(c->work.found) +
	       text_memory(c->name) + text_memory(c->lib_name) + text_memory(c->lib_version);
}

static void account(struct client *c, size_t memory)
{
	struct worker *w = c->worker;

	w->client_memory += memory - c->memory;
	c->memory = memory;
	if (w->client_memory > w->client_memory_peak)
		w->client_memory_peak = w->client_memory;
}

/* maxmemory-clients in bytes, 0 = no limit. */
static uint64_t memory_limit(const struct server *s)
{
	const struct share *share = &s->cfg->maxmemory_clients;
	uint64_t whole = s->cfg->maxmemory, limit;

	if (!share->percent)
		return share->bytes;
	if (!whole)
		whole = s->memory_whole;
	limit = whole / 100 * share->percent;
	return limit > SHARE_LEAST ? limit : SHARE_LEAST;
}

/* Closes the clients that take most, until all together are within the limit. */
static void evict_clients(struct worker *w)
{
	uint64_t limit = memory_limit(w->srv);

	while (limit && server_client_memory(w->srv) > limit) {
		struct client *each, *largest = NULL;

		TAILQ_FOREACH(each, &w->clients, link)
		if (!each->no_evict && (!largest || each->memory > largest->memory))
			largest = each;
		if (!largest)
			return;
		log_closing(largest, "clients take more than maxmemory-clients, and it takes most");
		w->stat[STAT_EVICTED_CLIENTS]++;
		client_free(largest);
	}
}

/*
 * One that does not read its replies is not read from either, once clients take half of what they
 * may.  Not before: most libraries write all of a pipeline before they read.
 */
static void read_or_wait(struct client *c)
{
	struct server *s = c->srv;
	uint64_t limit = c->paused ? memory_limit(s) : 0;

	if (c->closing || (limit && server_client_memory(s) > limit / 2))
		ev_io_stop(c->worker->loop, &c->readable);
	else
		ev_io_start(c->worker->loop, &c->readable);
}

void clients_trim_memory(struct worker *w)
{
	outbox_cache_free();
	malloc_trim(0);
	w->client_memory_peak = w->client_memory;
}

void clients_tend_memory(struct worker *w)
{
	struct client *c;

	TAILQ_FOREACH(c, &w->clients, link)
	if (!ev_is_active(&c->readable))
		read_or_wait(c);
	if (w->client_memory_peak - w->client_memory > TRIM_ABOVE)
		clients_trim_memory(w);
}

/* --- output --- */

/* Keeps server.clients in the order of activity, for `timeout`. */
static void touch(struct client *c)
{
	c->active = monotonic_seconds();
	TAILQ_REMOVE(&c->worker->clients, c, link);
	TAILQ_INSERT_TAIL(&c->worker->clients, c, link);
}

/* Sends what the socket takes without waiting. */
static void client_flush(struct client *c)
{
	struct iovec iov[WRITE_VECTORS];
	size_t total = 0;
	ssize_t n;

	while (c->reply.out.bytes && total < ROUND_WRITE) {
		n = c->conn.transport->writev(&c->conn, iov,
						outbox_iov(&c->reply.out, iov, WRITE_VECTORS));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			c->dead |= errno != EAGAIN;
			break;
		}
		outbox_sent(&c->reply.out, (size_t)n);
		total += (size_t)n;
	}
	c->worker->stat[STAT_BYTES_OUT] += total;
	if (total)
		touch(c);
	if (c->reply.out.bytes)
		ev_io_start(c->worker->loop, &c->writable);
	else
		ev_io_stop(c->worker->loop, &c->writable);
}

void clients_flush(struct worker *w)
{
	struct client *c, *next;

	for (c = TAILQ_FIRST(&w->clients); c; c = next) {
		next = TAILQ_NEXT(c, link); /* sending moves the client to the end */
		client_flush(c);
	}
}

/* The end of every event of a client: closes it, or makes it ready for the next. */
static void settle(struct client *c)
{
	if (c->reply.out.failed) {
		log_closing(c, "its replies pass client-output-buffer-limit, or memory is short");
		c->worker->stat[STAT_OUTPUT_CLOSED]++;
		c->dead = true;
	}
	if (!c->dead && !input_keep(c)) {
		log_closing(c, "out of memory");
		c->dead = true;
	}
	if (c->closing && !c->reply.out.bytes && !c->dead) {
		c->conn.transport->finish(&c->conn);
		c->dead = true;
	}
	if (c->dead) {
		client_free(c);
		return;
	}
	account(c, memory_of(c));
	read_or_wait(c);
	evict_clients(c->worker); /* perhaps this one */
}

/* Executing pauses and resumes by what is unsent; sending decides that. */
static void run_round(struct client *c)
{
	execute(c);
	if (!c->dead)
		client_flush(c);
	if (c->paused && c->reply.out.bytes < RESUME_BELOW) {
		c->paused = false;
		queue(c);
	}
	settle(c);
}

void client_turn(struct client *c)
{
	worker_dequeue(c->worker, c);
	if (c->work.step)
		touch(c);
	c->dead |= work_is_abandoned(c);
	run_round(c);
}

/* --- events --- */

static bool receive(struct client *c)
{
	struct server *s = c->srv;
	size_t room;
	ssize_t n;

	if (c->in.len - c->in.pos >= s->cfg->query_buffer_limit) {
		log_closing(c, "its command passes client-query-buffer-limit");
		c->worker->stat[STAT_QUERY_CLOSED]++;
		return false;
	}
	if (client_needs_auth(c) && c->in.len - c->in.pos > UNAUTH_INPUT_MAX) {
		log_closing(c, "it sends much and has not authenticated");
		c->worker->stat[STAT_QUERY_CLOSED]++;
		return false;
	}
	if (!input_room(c)) {
		log_closing(c, "out of memory");
		return false;
	}
	room = c->in.cap - c->in.len;
	n = c->conn.transport->read(&c->conn, c->in.data + c->in.len,
				    room < READ_MAX ? room : READ_MAX);
	if (n > 0) {
		c->in.len += (size_t)n;
		c->worker->stat[STAT_BYTES_IN] += (uint64_t)n;
		touch(c);
		return true;
	}
	return n < 0 && (errno == EAGAIN || errno == EINTR);
}

static void on_readable(struct ev_loop *loop, ev_io *w, int events)
{
	struct client *c = w->data;

	(void)loop;
	(void)events;
	if (c->queued)
		return; /* its turn comes before more is read */
	if (!receive(c)) {
		c->dead = true;
		settle(c);
	} else if (c->paused) {
		settle(c);
	} else {
		run_round(c);
	}
}

static void on_writable(struct ev_loop *loop, ev_io *w, int events)
{
	struct client *c = w->data;

	(void)loop;
	(void)events;
	client_flush(c);
	if (c->paused && c->reply.out.bytes < RESUME_BELOW) {
		c->paused = false;
		queue(c);
	}
	settle(c);
}

/* --- life --- */

void client_new(struct worker *w, int fd)
{
	struct server *s = w->srv;
	struct client *c = calloc(1, sizeof(*c));

	if (!c) {
		log_warning("out of memory for a client");
		close(fd);
		return;
	}
	c->srv = s;
	c->worker = w;
	connection_tcp(&c->conn, fd, s->cfg->tcp_keepalive);
	c->id = ++s->last_client_id;
	c->since = c->active = monotonic_seconds();
	c->authenticated = !s->cfg->requirepass[0];
	reply_init(&c->reply, PROTOCOL_RESP2, s->cfg->client_output_limit);
	ev_io_init(&c->readable, on_readable, fd, EV_READ);
	ev_io_init(&c->writable, on_writable, fd, EV_WRITE);
	c->readable.data = c->writable.data = c;
	ev_io_start(w->loop, &c->readable);
	TAILQ_INSERT_TAIL(&w->clients, c, link);
	account(c, memory_of(c));
	w->client_count++;
	w->stat[STAT_CONNECTIONS]++;
}

void client_free(struct client *c)
{
	struct worker *w = c->worker;

	worker_dequeue(w, c);
	ev_io_stop(w->loop, &c->readable);
	ev_io_stop(w->loop, &c->writable);
	TAILQ_REMOVE(&w->clients, c, link);
	w->client_count--;
	account(c, 0);
	c->conn.transport->close(&c->conn);
	work_end(c);
	input_release(c);
	resp_parser_free(&c->parser);
	reply_free(&c->reply);
	free(c->name);
	free(c->lib_name);
	free(c->lib_version);
	free(c);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Messages to clients that have not asked for them, between and behind replies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loader/acl/acl.h"
#include "loader/database/commands.h"
#include "loader/pubsub/pubsub.h"
#include "loader/net/client.h"
#include "loader/store/txn.h"
#include "userstore.h"

#define KEYS	(STORE_TXN_KEYS + 1)	/* of a command that is done in slices */
#define BYTES	(64 + (size_t)KEYS * 8) /* of it, and of its reply */
#define LIMIT	100000
#define ROUNDS	10000
#define MESSAGE "+news\r\n"
#define ABSENT	"$-1\r\n"

struct bed {
	struct config_builder builder;
	struct store *store;
	struct server *server;
	struct client *client;
	int fd; /* the client's end */
};

static int make(void **state)
{
	struct bed *b = calloc(1, sizeof(*b));
	struct server_options options = { .executor = commands_executor() };
	struct connection conn;
	int fds[2];
	char err[256];

	assert_int_equal(config_begin(&b->builder, NULL), 0);
	b->builder.cfg->output_limit[OUTPUT_NORMAL].hard = LIMIT;
	options.cfg = b->builder.cfg;
	options.store = b->store = userstore_new();
	b->server = server_new(&options, err, sizeof(err));
	assert_non_null(b->server);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	b->fd = fds[0];
	connection_unix(&conn, fds[1]);
	client_new(b->server->worker[0], conn);
	b->client = TAILQ_FIRST(&b->server->worker[0]->clients);
	*state = b;
	return 0;
}

static int take_down(void **state)
{
	struct bed *b = *state;

	server_free(b->server);
	userstore_free(b->store);
	config_abandon(&b->builder);
	close(b->fd);
	free(b);
	return 0;
}

static void round_of(struct bed *b)
{
	ev_run(b->server->loop, EVRUN_NOWAIT);
}

/* Runs the loop until the client has received `want`, and nothing else. */
static void expect(struct bed *b, const char *want, size_t len)
{
	char *got = malloc(len + 1);
	size_t have = 0;

	assert_non_null(got);
	for (int i = 0; i < ROUNDS && have < len; i++) {
		ssize_t n;

		round_of(b);
		n = read(b->fd, got + have, len + 1 - have);
		have += n > 0 ? (size_t)n : 0;
	}
	assert_int_equal(have, len);
	assert_memory_equal(got, want, len);
	free(got);
}

static void send_message(struct bed *b)
{
	reply_status(caller_message(&b->client->caller), "news");
	caller_message_end(&b->client->caller);
}

static void test_idle(void **state)
{
	struct bed *b = *state;

	send_message(b);
	send_message(b);
	expect(b, MESSAGE MESSAGE, 2 * strlen(MESSAGE));
}

/* The client sends it all, however much fits its socket at a time. */
static void send_all(struct bed *b, const char *bytes, size_t len)
{
	size_t sent = 0;

	for (int i = 0; i < ROUNDS && sent < len; i++) {
		ssize_t n = write(b->fd, bytes + sent, len - sent);

		sent += n > 0 ? (size_t)n : 0;
		round_of(b);
	}
	assert_int_equal(sent, len);
}

/*
 * The client begins a command that takes several turns and replies `want`, of BYTES at most.
 * Returns its length.
 */
static size_t begin_long_command(struct bed *b, char *want)
{
	char *command = malloc(BYTES);
	int len = sprintf(command, "*%d\r\n$4\r\nMGET\r\n", KEYS + 1);
	int expected = sprintf(want, "*%d\r\n", KEYS);

	b->builder.cfg->output_limit[OUTPUT_NORMAL].hard = BYTES;
	for (int i = 0; i < KEYS; i++) {
		len += sprintf(command + len, "$1\r\nk\r\n");
		expected += sprintf(want + expected, ABSENT);
	}
	send_all(b, command, (size_t)len);
	for (int i = 0; i < ROUNDS && !b->client->caller.ran; i++)
		round_of(b);
	assert_true(b->client->caller.ran & RUN_UNFINISHED);
	free(command);
	return (size_t)expected;
}

/* A command that is not finished replies first, whatever it has replied until then. */
static void test_unfinished(void **state)
{
	struct bed *b = *state;
	char *want = malloc(BYTES);
	size_t expected = begin_long_command(b, want);

	send_message(b);
	send_message(b);
	expected += (size_t)sprintf(want + expected, MESSAGE MESSAGE);
	expect(b, want, expected);
	send_message(b);
	expect(b, MESSAGE, strlen(MESSAGE));
	free(want);
}

/*
 * While a script of another client lets others be served, a command in progress does not keep the
 * loop from sleeping; when the script is over, it goes on.
 */
static void test_unfinished_beside_a_script(void **state)
{
	struct bed *b = *state;
	struct worker *w = b->server->worker[0];
	struct caller script = { .srv = b->server, .worker = w };
	char *want = malloc(BYTES);
	size_t expected = begin_long_command(b, want);

	assert_true(ev_is_active(&w->no_wait));
	for (int i = 0; i < ROUNDS && ev_is_active(&w->no_wait); i++)
		worker_yield(&script);
	assert_false(ev_is_active(&w->no_wait));
	worker_yield(&script);
	assert_false(ev_is_active(&w->no_wait));
	assert_true(b->client->caller.ran & RUN_UNFINISHED);
	ev_run(b->server->loop, EVRUN_ONCE);
	expect(b, want, expected);
	free(want);
}

/* A client that is sent more than it may leave unread is closed, but not at once. */
static void test_limit(void **state)
{
	struct bed *b = *state;
	char text[LIMIT / 2];

	memset(text, 'x', sizeof(text));
	for (int i = 0; i < 3; i++) {
		reply_bulk(caller_message(&b->client->caller), text, sizeof(text));
		caller_message_end(&b->client->caller);
	}
	assert_ptr_equal(TAILQ_FIRST(&b->server->worker[0]->clients), b->client);
	for (int i = 0; i < ROUNDS && server_client_count(b->server); i++)
		round_of(b);
	assert_int_equal(server_client_count(b->server), 0);
	assert_int_equal(read(b->fd, text, sizeof(text)), 0);
}

/* A client beyond the soft limit is closed when its seconds are over, but not if it catches up. */
static void test_soft_limit(void **state)
{
	const struct output_limit limit = { .hard = LIMIT, .soft = LIMIT / 4, .seconds = 100 };
	struct bed *b = *state;
	struct worker *w = b->server->worker[0];
	char text[LIMIT / 2], want[LIMIT / 2 + 16];
	int len = sprintf(want, "$%zu\r\n", sizeof(text)), small = 1;

	b->builder.cfg->output_limit[OUTPUT_NORMAL] = limit;
	assert_int_equal(
		setsockopt(b->client->stream.conn.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)),
		0);
	memset(text, 'x', sizeof(text));
	memcpy(want + len, text, sizeof(text));
	memcpy(want + len + sizeof(text), "\r\n", 2);
	for (int i = 0; i < 2; i++) {
		assert_true(b->client->over_since == 0);
		reply_bulk(caller_message(&b->client->caller), text, sizeof(text));
		caller_message_end(&b->client->caller);
		round_of(b);
		assert_true(b->client->over_since > 0);
		clients_tend_memory(w);
		assert_int_equal(server_client_count(b->server), 1);
		if (i == 0)
			expect(b, want, (size_t)len + sizeof(text) + 2);
	}
	b->client->over_since -= limit.seconds + 1;
	clients_tend_memory(w);
	assert_int_equal(server_client_count(b->server), 0);
}

static void publish(struct bed *b, const char *text, unsigned int receivers)
{
	assert_int_equal(pubsub_publish(b->server, "a", 1, text, 1), receivers);
}

/* What is published by something that fails is forgotten, the rest is sent when all has ended. */
static void test_held_messages(void **state)
{
	static const char subscribe[] = "SUBSCRIBE a\r\n",
			  confirmed[] = "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
			  both[] = "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n1\r\n"
				   "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n4\r\n";
	const struct held_message *outer, *inner;
	struct bed *b = *state;

	publish(b, "0", 0);
	assert_int_equal(write(b->fd, subscribe, strlen(subscribe)), strlen(subscribe));
	expect(b, confirmed, strlen(confirmed));
	outer = pubsub_hold(b->server);
	publish(b, "1", 1);
	inner = pubsub_hold(b->server);
	publish(b, "2", 1);
	publish(b, "3", 1);
	pubsub_release(b->server, inner, false);
	inner = pubsub_hold(b->server);
	publish(b, "4", 1);
	pubsub_release(b->server, inner, true);
	assert_int_equal(b->client->caller.session.reply.out.bytes, 0);
	pubsub_release(b->server, outer, true);
	expect(b, both, strlen(both));
}

/* Executes a command, and compares the reply. */
static void run(struct caller *c, const char *command, const char *want)
{
	const struct resp_limits limits = { .max_bulk = LIMIT };
	struct resp_parser parser = { 0 };
	char *bytes = strdup(command), *got;
	struct iovec iov[64];
	size_t len = 0;

	assert_int_equal(resp_parse(&parser, bytes, strlen(bytes), &limits), RESP_COMMAND);
	caller_run(c, &(struct call){ parser.argc, parser.argv, bytes, parser.pos, parser.pos });
	got = calloc(1, c->session.reply.out.bytes + 1);
	for (int n; (n = outbox_iov(&c->session.reply.out, iov, 64)) > 0;)
		for (int i = 0; i < n; i++) {
			memcpy(got + len, iov[i].iov_base, iov[i].iov_len);
			len += iov[i].iov_len;
			outbox_sent(&c->session.reply.out, iov[i].iov_len);
		}
	assert_string_equal(got, want);
	free(got);
	free(bytes);
	resp_parser_free(&parser);
}

/* What has no connection executes what it wants, beside clients who may not. */
static void test_without_a_client(void **state)
{
	struct bed *b = *state;
	struct caller *c = caller_new(b->server->worker[0]);
	char *command = malloc(64 + KEYS * 8), *want = malloc(64 + KEYS * 8);
	int len = sprintf(command, "*%d\r\n$4\r\nMGET\r\n", KEYS + 1);
	int expected = sprintf(want, "*%d\r\n", KEYS);

	assert_non_null(c);
	b->client->caller.session.authenticated = false;
	assert_int_equal(acl_set_default_password("secret"), 0);
	run(c, "CLIENT PAUSE 100000\r\n", "+OK\r\n");
	run(c, "SET k v EX 100\r\n", "+OK\r\n");
	run(c, "GET k\r\n", "$1\r\nv\r\n");
	run(c, "MULTI\r\n", "+OK\r\n");
	run(c, "INCR n\r\n", "+QUEUED\r\n");
	run(c, "GETDEL k\r\n", "+QUEUED\r\n");
	run(c, "EXEC\r\n", "*2\r\n:1\r\n$1\r\nv\r\n");
	run(c, "EVAL \"return redis.call('get', 'n')\" 0\r\n", "$1\r\n1\r\n");
	run(c, "SUBSCRIBE news\r\n", "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
	run(c, "UNSUBSCRIBE\r\n", "*3\r\n$11\r\nunsubscribe\r\n$4\r\nnews\r\n:0\r\n");
	for (int i = 0; i < KEYS; i++) {
		len += sprintf(command + len, "$1\r\nk\r\n");
		expected += sprintf(want + expected, ABSENT);
	}
	run(c, command, want);
	assert_int_equal(write(b->fd, "GET n\r\n", 7), 7);
	expect(b, "-NOAUTH Authentication required.\r\n", 34);
	assert_int_equal(acl_set_default_password(""), 0);
	caller_free(c);
	free(command);
	free(want);
}

/* When the data is loaded, workers are added: clients that are at rest are shared among them. */
static void test_workers_share_the_clients(void **state)
{
	struct bed *b = *state;
	struct server_options options = b->server->opt;
	int fds[2], peer[6];
	struct connection conn;
	struct client *told;
	unsigned int active = 0;
	char err[256];

	server_free(b->server);
	b->builder.cfg->io_threads = 3;
	options.loads = true;
	b->server = server_new(&options, err, sizeof(err));
	assert_non_null(b->server);
	assert_int_equal(b->server->worker_count, 1);
	for (int i = 0; i < 6; i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
		peer[i] = fds[0];
		connection_unix(&conn, fds[1]);
		client_new(b->server->worker[0], conn);
	}
	told = b->client = TAILQ_FIRST(&b->server->worker[0]->clients);
	send_message(b); /* not yet sent */
	assert_int_equal(server_loaded(b->server, err, sizeof(err)), 0);
	assert_int_equal(b->server->worker_count, 3);
	assert_ptr_equal(told->caller.worker, b->server->worker[0]);
	for (int i = 0; i < 3; i++) {
		struct worker *w = b->server->worker[i];
		struct client *c;
		size_t memory = 0;

		assert_int_equal(w->client_count, 2);
		TAILQ_FOREACH(c, &w->clients, link) {
			assert_ptr_equal(c->caller.worker, w);
			active += ev_is_active(&c->stream.readable);
			memory += c->memory;
		}
		assert_int_equal(w->client_memory, memory);
	}
	assert_int_equal(active, 6);
	for (int i = 0; i < 6; i++)
		close(peer[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_idle, make, take_down),
		cmocka_unit_test_setup_teardown(test_unfinished, make, take_down),
		cmocka_unit_test_setup_teardown(test_unfinished_beside_a_script, make, take_down),
		cmocka_unit_test_setup_teardown(test_limit, make, take_down),
		cmocka_unit_test_setup_teardown(test_soft_limit, make, take_down),
		cmocka_unit_test_setup_teardown(test_held_messages, make, take_down),
		cmocka_unit_test_setup_teardown(test_without_a_client, make, take_down),
		cmocka_unit_test_setup_teardown(test_workers_share_the_clients, make, take_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

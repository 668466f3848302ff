/* SPDX-License-Identifier: BSD-2-Clause */
/* Clients with TLS, whose sockets are full or empty at the wrong moments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loader/database/commands.h"
#include "loader/net/client.h"
#include "loader/net/tls.h"
#include "userstore.h"

#define ROUNDS 20000

struct bed {
	struct config_builder builder;
	struct store *store;
	struct server *server;
	struct worker *worker;
	SSL_CTX *ours, *theirs;
	SSL *peer; /* the client's end */
	int fd;
};

static char directory[] = "/tmp/xkv-test-XXXXXX", certificate[64], key[64];

static int make_certificate(void **state)
{
	char command[512];

	assert_non_null(mkdtemp(directory));
	snprintf(certificate, sizeof(certificate), "%s/crt", directory);
	snprintf(key, sizeof(key), "%s/key", directory);
	snprintf(command, sizeof(command),
		 "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 1 "
		 "-subj /CN=localhost -keyout %s -out %s 2>/dev/null",
		 key, certificate);
	assert_int_equal(system(command), 0);
	return 0;
}

static int remove_certificate(void **state)
{
	return unlink(certificate) || unlink(key) || rmdir(directory);
}

static void set(struct bed *b, const char *name, char *value)
{
	char err[256];

	assert_int_equal(config_set(&b->builder, name, 1, &value, err, sizeof(err)), 0);
}

/* The server's sending buffer is the smallest that there is. */
static int make(void **state)
{
	struct bed *b = calloc(1, sizeof(*b));
	struct server_options options = { .executor = commands_executor() };
	int fds[2], least = 1;
	struct connection conn;
	char err[256];

	assert_int_equal(config_begin(&b->builder, NULL), 0);
	set(b, "tls-cert-file", certificate);
	set(b, "tls-key-file", key);
	set(b, "tls-auth-clients", "no");
	options.cfg = b->builder.cfg;
	options.store = b->store = userstore_new();
	b->server = server_new(&options, err, sizeof(err));
	assert_non_null(b->server);
	b->worker = b->server->worker[0];
	b->ours = tls_context_new(options.cfg, err, sizeof(err));
	b->theirs = SSL_CTX_new(TLS_client_method());
	assert_true(b->ours && b->theirs);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &least, sizeof(least));
	b->fd = fds[0];
	connection_tcp(&conn, fds[1], 0);
	handshake_new(b->worker, conn, b->ours);
	b->peer = SSL_new(b->theirs);
	SSL_set_fd(b->peer, b->fd);
	SSL_set_connect_state(b->peer);
	*state = b;
	return 0;
}

static int take_down(void **state)
{
	struct bed *b = *state;

	server_free(b->server);
	userstore_free(b->store);
	config_abandon(&b->builder);
	SSL_free(b->peer);
	SSL_CTX_free(b->ours);
	SSL_CTX_free(b->theirs);
	close(b->fd);
	free(b);
	return 0;
}

static void round_of(struct bed *b)
{
	ev_run(b->server->loop, EVRUN_NOWAIT);
}

static struct client *connect_to(struct bed *b)
{
	for (int i = 0; i < ROUNDS && !b->worker->client_count; i++) {
		SSL_do_handshake(b->peer);
		round_of(b);
	}
	assert_int_equal(b->worker->handshakes.count, 0);
	assert_int_equal(b->worker->stat[STAT_TLS_HANDSHAKES], 1);
	return TAILQ_FIRST(&b->worker->clients);
}

static void send_text(struct bed *b, const char *text)
{
	size_t n;

	assert_int_equal(SSL_write_ex(b->peer, text, strlen(text), &n), 1);
}

/* Runs the loop until the peer has received `len` bytes. */
static void receive(struct bed *b, char *text, size_t len)
{
	size_t have = 0, n;

	for (int i = 0; i < ROUNDS && have < len; i++) {
		round_of(b);
		if (SSL_read_ex(b->peer, text + have, len - have, &n) == 1)
			have += n;
	}
	assert_int_equal(have, len);
}

static void test_a_handshake_byte_by_byte(void **state)
{
	struct bed *b = *state;
	char text[7], bytes[8192];
	BIO *in, *out;
	ssize_t n;

	assert_int_equal(BIO_new_bio_pair(&in, 0, &out, 0), 1);
	SSL_set_bio(b->peer, in, in);
	while (!b->worker->client_count) {
		SSL_do_handshake(b->peer);
		while (BIO_read(out, bytes, 1) == 1) {
			assert_int_equal(write(b->fd, bytes, 1), 1);
			round_of(b);
		}
		round_of(b);
		n = read(b->fd, bytes, sizeof(bytes));
		if (n > 0)
			assert_int_equal(BIO_write(out, bytes, (int)n), n);
	}
	send_text(b, "PING\r\n");
	n = BIO_read(out, bytes, sizeof(bytes));
	assert_int_equal(write(b->fd, bytes, (size_t)n), n);
	for (int i = 0; i < 10; i++)
		round_of(b);
	n = read(b->fd, bytes, sizeof(bytes));
	assert_true(n > 0);
	assert_int_equal(BIO_write(out, bytes, (int)n), n);
	assert_int_equal(SSL_read(b->peer, text, sizeof(text)), 7);
	assert_memory_equal(text, "+PONG\r\n", 7);
	BIO_free(out);
}

/* Asks for new keys until `conn` does not read any more, at most `count` times. */
static void want_keys(struct bed *b, const struct connection *conn, int count)
{
	for (int i = 0; i < count && !conn->read_needs_write; i++) {
		assert_int_equal(SSL_key_update(b->peer, SSL_KEY_UPDATE_REQUESTED), 1);
		assert_int_equal(SSL_do_handshake(b->peer), 1);
		round_of(b);
	}
}

static const struct transport *counted;
static unsigned int reads;

static ssize_t read_and_count(struct connection *conn, void *buffer, size_t len)
{
	reads++;
	return counted->read(conn, buffer, len);
}

/* From now on the connection's reads are counted. */
static void count_reads(struct connection *conn)
{
	static struct transport counting;

	counted = conn->transport;
	counting = *conn->transport;
	counting.read = read_and_count;
	conn->transport = &counting;
	reads = 0;
}

/*
 * A read has to write: the peer asks for new keys again and again, and does not read the answers.
 * The client waits until it can write, and only then reads on: until then the loop sleeps.
 */
static void test_a_read_that_writes(void **state)
{
	struct bed *b = *state;
	struct client *c = connect_to(b);
	struct connection *conn = &c->stream.conn;
	char text[7];

	want_keys(b, conn, 1000);
	assert_true(conn->read_needs_write);
	round_of(b); /* ends that of the client */
	assert_true(ev_is_active(&c->stream.writable));
	send_text(b, "PING\r\n");
	count_reads(conn);
	for (int i = 0; i < 10; i++)
		round_of(b);
	assert_int_equal(reads, 0);
	assert_int_equal(b->worker->stat[STAT_COMMANDS], 0);
	receive(b, text, sizeof(text));
	assert_memory_equal(text, "+PONG\r\n", 7);
	assert_false(conn->read_needs_write);
	assert_false(ev_is_active(&c->stream.writable));
}

/*
 * A write that has to read, which TLS without renegotiation does not know: it is tried again when
 * something can be read, and not, in vain, whenever something can be written.
 */
static ssize_t write_that_reads(struct connection *conn, const struct iovec *iov, int count)
{
	conn->write_needs_read = true;
	errno = EAGAIN;
	return -1;
}

static void test_a_write_that_reads(void **state)
{
	struct bed *b = *state;
	struct client *c = connect_to(b);
	struct connection *conn = &c->stream.conn;
	const struct transport *real = conn->transport;
	static struct transport strange;
	char text[7 + 12];

	strange = *real;
	strange.writev = write_that_reads;
	conn->transport = &strange;
	send_text(b, "PING\r\n");
	for (int i = 0; i < 10; i++)
		round_of(b);
	assert_int_equal(b->worker->stat[STAT_COMMANDS], 1);
	assert_false(ev_is_active(&c->stream.writable));
	conn->transport = real;
	send_text(b, "ECHO behind\r\n");
	receive(b, text, sizeof(text));
	assert_memory_equal(text, "+PONG\r\n$6\r\nbehind\r\n", sizeof(text));
}

enum { VALUE = 300000, REPLY = VALUE + 11 };

/* Stores `value`, whose bytes differ, as k. */
static void store_value(struct bed *b, char value[VALUE])
{
	char head[5];
	size_t n;

	for (size_t i = 0; i < VALUE; i++)
		value[i] = (char)(i * i / 7);
	send_text(b, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$300000\r\n");
	for (size_t at = 0; at < VALUE; round_of(b))
		if (SSL_write_ex(b->peer, value + at, VALUE - at < 9999 ? VALUE - at : 9999, &n) ==
		    1)
			at += n;
	send_text(b, "\r\n");
	receive(b, head, 5);
	assert_memory_equal(head, "+OK\r\n", 5);
}

static void is_reply(const char *text, const char *value)
{
	assert_memory_equal(text, "$300000\r\n", 9);
	assert_memory_equal(text + 9, value, VALUE);
}

/* Replies of many records go through a socket that takes a part of one at a time. */
static void test_replies_in_parts(void **state)
{
	struct bed *b = *state;
	char *value = malloc(VALUE), *text = malloc(2 * REPLY);

	connect_to(b);
	store_value(b, value);
	send_text(b, "GET k\r\nGET k\r\n");
	receive(b, text, 2 * REPLY);
	is_reply(text, value);
	is_reply(text + REPLY, value);
	free(value);
	free(text);
}

/*
 * The peer wants new keys while a record is sent in part: the answer is sent behind the record.
 * How much waits so is limited, and counted.
 */
static void test_new_keys_within_a_reply(void **state)
{
	struct bed *b = *state;
	struct client *c = connect_to(b);
	struct connection *conn = &c->stream.conn;
	char *value = malloc(VALUE), *text = malloc(REPLY + 7), last[7];
	size_t idle = connection_memory(conn), full;

	store_value(b, value);
	send_text(b, "GET k\r\n");
	for (int i = 0; i < ROUNDS && !conn->held->taken; i++)
		round_of(b);
	assert_int_not_equal(conn->held->taken, 0);
	assert_true(connection_memory(conn) > idle);
	want_keys(b, conn, 3);
	assert_false(conn->read_needs_write);
	send_text(b, "PING\r\n");
	want_keys(b, conn, 2000);
	assert_int_equal(b->worker->stat[STAT_COMMANDS], 3);
	assert_true(conn->read_needs_write);
	full = connection_memory(conn);
	assert_in_range(full - idle, 10000, 24000);
	send_text(b, "PING\r\n");
	receive(b, text, REPLY + 7);
	is_reply(text, value);
	assert_memory_equal(text + REPLY, "+PONG\r\n", 7);
	receive(b, last, 7);
	assert_memory_equal(last, "+PONG\r\n", 7);
	round_of(b);
	assert_int_equal(connection_memory(conn), idle);
	assert_null(conn->held->bytes);
	free(value);
	free(text);
}

/*
 * OpenSSL has taken more from the socket than a read takes of it: as many records as fit into its
 * buffer.  Nothing more comes, and they are served nevertheless.
 */
static void test_many_records_at_once(void **state)
{
	enum { COUNT = 200 };
	struct bed *b = *state;
	struct client *c = connect_to(b);
	char text[7 * COUNT];

	for (int i = 0; i < COUNT; i++)
		send_text(b, "PING\r\n");
	receive(b, text, sizeof(text));
	assert_int_equal(b->worker->stat[STAT_COMMANDS], COUNT);
	assert_false(c->stream.conn.more);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_handshake_byte_by_byte, make, take_down),
		cmocka_unit_test_setup_teardown(test_a_read_that_writes, make, take_down),
		cmocka_unit_test_setup_teardown(test_a_write_that_reads, make, take_down),
		cmocka_unit_test_setup_teardown(test_replies_in_parts, make, take_down),
		cmocka_unit_test_setup_teardown(test_new_keys_within_a_reply, make, take_down),
		cmocka_unit_test_setup_teardown(test_many_records_at_once, make, take_down),
	};

	return cmocka_run_group_tests(tests, make_certificate, remove_certificate);
}

// SPDX-License-Identifier: BSD-2-Clause
/* libxkv: its calls, addresses, arguments, tokens, and use by several threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <endian.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bpf/proto.h"
#include "client/xkv.h"
#include "fakeserver.h"

/* ---- numbers and scans ------------------------------------------------ */

/* Numbers that are none: without a value, of 7 bytes, with an error. */
static void handle_no_number(struct fake *f, const struct datagram *req)
{
	unsigned int opcode = req->byte[ops_at(req->byte)];

	for (int i = 0; i < 4; i++) {
		reply_begin(&f->reply, req);
		reply_result(&f->reply, opcode, i == 2 ? XKV_NOT_STORED : XKV_OK,
			     i ? "1234567" : NULL,
			     i == 1 ? 7
			     : i    ? 8
				    : 0);
		if (i < 3 || f->limit)
			send_bytes(f, &f->reply);
	}
}

static void test_no_number(void **state)
{
	struct xkv_options hasty = { .timeout_ms = 300 };
	struct xkv_reply r;
	struct xkv *h;

	start(handle_no_number);
	h = open_with(&hasty);
	assert_int_equal(XKV_E_PROTOCOL, xkv_incr(h, "k", 1, 1, 0, &r));
	assert_int_equal(XKV_E_PROTOCOL, xkv_append(h, "k", 1, "v", 1, 0, &r));
	server.limit = 1;
	assert_int_equal(0, xkv_append(h, "k", 1, "v", 1, 0, &r));
	assert_true(r.number == 0x3132333435363700);
	assert_null(r.value);
	close_once(h);
}

/*
 * Answers a SCAN with the keys themselves as values, `limit` at most, and as long as the reply
 * is not longer than f->value times the request.
 */
static void handle_scan(struct fake *f, const struct datagram *req)
{
	size_t at = ops_at(req->byte), most = f->value * req->len;
	struct found o;
	char key[XKV_KEY_MAX + 1];
	unsigned long number;
	size_t digits = 0;

	assert_int_equal(1, header((struct datagram *)req)->count);
	assert_true(read_op(req->byte, be16toh(header((struct datagram *)req)->length), &at, &o));
	assert_int_equal(XKV_OP_SCAN, o.op.opcode);
	assert_in_range(o.op.keys, 1, XKV_SCAN_MAX);
	memcpy(key, o.key, o.op.key_len);
	key[o.op.key_len] = 0;
	while (digits < 9 && digits < o.op.key_len &&
	       strchr("0123456789", key[o.op.key_len - digits - 1]))
		digits++;
	number = strtoul(key + o.op.key_len - digits, NULL, 10);
	reply_begin(&f->reply, req);
	for (unsigned int i = 0; i < o.op.keys && i < f->limit; i++) {
		snprintf(key + o.op.key_len - digits, digits + 1, "%0*lu", (int)digits, number + i);
		if (f->reply.len + 24 + XKV_PADDED(o.op.key_len) > (most < 1472 ? most : 1472))
			break;
		if ((number + i) % 7 == 3)
			reply_result(&f->reply, XKV_OP_SCAN, XKV_MISS, NULL, 0);
		else
			reply_result(&f->reply, XKV_OP_SCAN, XKV_OK, key, o.op.key_len);
	}
	send_bytes(f, &f->reply);
}

struct scanned {
	unsigned long next; /* number of the next key */
	unsigned int count, stop_at;
	const char *format; /* of a key */
};

static int check_scanned(void *arg, const char *key, size_t key_len, const struct xkv_reply *r)
{
	struct scanned *s = arg;
	char want[XKV_KEY_MAX + 1];

	snprintf(want, sizeof(want), s->format, s->next++);
	assert_string_equal(want, key);
	assert_int_equal(strlen(want), key_len);
	assert_int_equal((s->next - 1) % 7 == 3 ? XKV_E_MISS : 0, r->status);
	if (!r->status)
		assert_value(r, want);
	return ++s->count == s->stop_at ? 77 : 0;
}

/*
 * A server with numbered keys whose replies have at most `factor` times the bytes of the request.
 */
static struct xkv *open_numbered(unsigned int factor)
{
	start(handle_scan);
	server.limit = 255;
	server.value = factor;
	return open_with(&patient);
}

/* Scans `n` keys from `first` on; how many were seen. */
static unsigned int scan(struct xkv *h, const char *format, unsigned long first, size_t n,
			 unsigned int stop_at)
{
	struct scanned s = { .next = first, .format = format, .stop_at = stop_at };
	char key[XKV_KEY_MAX + 1];

	atomic_store(&server.received, 0);
	snprintf(key, sizeof(key), format, first);
	assert_int_equal(stop_at ? 77 : 0, xkv_scan(h, key, strlen(key), n, check_scanned, &s));
	return s.count;
}

static void test_scan(void **state)
{
	struct xkv *h = open_numbered(1000);

	assert_int_equal(5, scan(h, "k%lu", 1, 5, 0));
	assert_int_equal(1, atomic_load(&server.received));
	assert_int_equal(4, scan(h, "k%02lu", 8, 4, 0));   /* 08, 09, 10, 11 */
	assert_int_equal(2, scan(h, "k%02lu", 98, 50, 0)); /* and no more: 99 is the last */
	assert_int_equal(1, atomic_load(&server.received));
	assert_int_equal(1, scan(h, "%lu", 9, 50, 0));
	assert_int_equal(901, scan(h, "k%03lu", 99, 5000, 0));
	assert_int_equal(250, scan(h, "some:longer:key:%06lu", 999, 250, 0));
	server.limit = 1;
	assert_int_equal(30, scan(h, "k%03lu", 0, 30, 0));
	assert_int_equal(30, atomic_load(&server.received));
	server.limit = 255;
	assert_int_equal(17, scan(h, "k%03lu", 0, 100, 17)); /* as long as the caller likes it */
	close_once(h);
}

/* A reply that is kept short by the length of its request: the next ones are padded. */
static void test_scan_padded(void **state)
{
	struct xkv *h = open_numbered(3);

	assert_int_equal(100, scan(h, "k%03lu", 0, 100, 0));
	assert_int_equal(4, atomic_load(&server.received)); /* 4, then 45 each */
	assert_int_equal(1472, server.last.len);
	assert_int_equal(90, scan(h, "k%03lu", 0, 90, 0));
	assert_int_equal(2, atomic_load(&server.received));
	close_once(h);
}

/* ---- addresses, arguments, tokens, threads ---------------------------- */

static void test_ipv6(void **state)
{
	struct xkv_reply r;
	struct xkv *h;

	if (access("/proc/net/if_inet6", R_OK)) {
		puts("SKIP: no IPv6");
		skip();
	}
	start_at(answer, AF_INET6, 0);
	h = xkv_open("::1", server.port, &patient, NULL);
	assert_non_null(h);
	get_ok(h, "key", &r);
	assert_int_equal(1392, xkv_value_max(h, 3)); /* 1452 - 16 - 8 - 24 - 8 = 1396, by 8: 1392 */
	xkv_close(h);
	stop();
}

/* A name of which only the last address is served: the client finds it, and at once. */
static void test_name(void **state)
{
	struct addrinfo hints = { .ai_socktype = SOCK_DGRAM }, *all, *last;
	struct xkv_reply r;
	struct xkv *h;
	uint64_t began;
	int family;

	if (getaddrinfo("localhost", NULL, &hints, &all)) {
		puts("SKIP: localhost has no address");
		skip();
	}
	for (last = all; last->ai_next; last = last->ai_next)
		;
	family = last->ai_family;
	print_message("localhost has %s\n", last == all ? "one address only" : "several addresses");
	freeaddrinfo(all);
	start_at(answer, family, 0);
	h = xkv_open("localhost", server.port, &patient, NULL);
	assert_non_null(h);
	began = now_ms();
	get_ok(h, "key", &r);
	assert_true(now_ms() - began < 10000); /* the pause before a repeat would be 20 s */
	xkv_close(h);
	stop();
}

static void test_open_errors(void **state)
{
	struct xkv_options opts = { .payload_max = 100 };
	int err;

	assert_null(xkv_open("127.0.0.1", 0, NULL, &err));
	assert_int_equal(XKV_E_INVALID, err);
	assert_null(xkv_open("127.0.0.1", 65536, NULL, &err));
	assert_int_equal(XKV_E_INVALID, err);
	assert_null(xkv_open(NULL, 1, NULL, &err));
	assert_int_equal(XKV_E_INVALID, err);
	assert_null(xkv_open("127.0.0.1", 1, &opts, &err));
	assert_int_equal(XKV_E_INVALID, err);
	assert_null(xkv_open("no such host", 1, NULL, &err));
	assert_int_equal(XKV_E_HOST, err);
	assert_null(xkv_open("no such host", 1, NULL, NULL));
	xkv_close(NULL);
}

static void test_arguments(void **state)
{
	static const char value[2000];
	struct xkv_cmd two[2] = { { .command = XKV_CMD_PING }, { .command = 10 } };
	struct xkv_reply r;
	struct xkv *h;

	start(answer);
	h = open_with(&patient);
	assert_int_equal(1416, xkv_value_max(h, 3)); /* 1472 - 16 - 8 - 24 - 8 */
	assert_int_equal(0, xkv_value_max(h, 0));
	assert_int_equal(0, xkv_value_max(h, 251));
	assert_int_equal(XKV_E_TOO_LARGE, xkv_set(h, "key", 3, value, 1417, 0, 0, &r));
	assert_int_equal(1417, r.value_len);
	assert_int_equal(XKV_E_BAD_KEY, xkv_get(h, "", 0, &r));
	assert_int_equal(XKV_E_BAD_KEY, xkv_get(h, value, 251, &r));
	assert_int_equal(XKV_E_INVALID, xkv_get(h, NULL, 3, &r));
	assert_int_equal(XKV_E_INVALID, xkv_set(h, "k", 1, NULL, 3, 0, 0, NULL));
	assert_int_equal(XKV_E_INVALID, xkv_set(h, "k", 1, "v", 1, 0, XKV_NX | XKV_XX, NULL));
	assert_int_equal(XKV_E_INVALID, xkv_set(h, "k", 1, "v", 1, 1, XKV_KEEPTTL, NULL));
	assert_int_equal(XKV_E_INVALID, xkv_set(h, "k", 1, "v", 1, XKV_TTL_MAX + 1, 0, NULL));
	assert_int_equal(XKV_E_INVALID,
			 xkv_set(h, "k", 1, "v", 1, XKV_TTL_MAX + 1, XKV_ABSTTL, NULL));
	assert_int_equal(XKV_E_INVALID, xkv_delete(h, "k", 1, XKV_NX, NULL));
	assert_int_equal(XKV_E_INVALID, xkv_expire(h, "k", 1, 1, XKV_NX));
	assert_int_equal(XKV_E_INVALID, xkv_incr(h, "k", 1, 1, XKV_NX, NULL));
	assert_int_equal(XKV_E_INVALID, xkv_append(h, "k", 1, "v", 1, XKV_KEEPTTL, NULL));
	assert_int_equal(XKV_E_INVALID, xkv_append(h, "k", 1, NULL, 1, 0, NULL));
	assert_int_equal(XKV_E_TOO_LARGE, xkv_append(h, "k", 1, value, 1417, 0, NULL));
	assert_int_equal(XKV_E_BAD_KEY, xkv_ttl(h, "k", 0, NULL));
	assert_int_equal(XKV_E_INVALID, xkv_scan(h, "k1", 2, 1, NULL, NULL));
	assert_int_equal(XKV_E_INVALID, xkv_scan(h, "1k", 2, 1, take_scanned, NULL));
	assert_int_equal(XKV_E_BAD_KEY, xkv_scan(h, "", 0, 1, take_scanned, NULL));
	assert_int_equal(0, xkv_scan(h, "k1", 2, 0, take_scanned, NULL));
	assert_int_equal(XKV_E_INVALID, xkv_batch(h, two, 2));
	two[1] = (struct xkv_cmd){ .command = XKV_CMD_GET, .key = "k", .key_len = 1, .amount = 1 };
	assert_int_equal(XKV_E_INVALID, xkv_batch(h, two, 2));
	two[1] = (struct xkv_cmd){
		.command = XKV_CMD_INCR, .key = "k", .key_len = 1, .value = "1", .value_len = 1
	};
	assert_int_equal(XKV_E_INVALID, xkv_batch(h, two, 2));
	assert_int_equal(XKV_E_INVALID, two[0].reply.status);
	assert_int_equal(0, two[0].reply.sent);
	assert_int_equal(0, atomic_load(&server.received)); /* none of them went out */
	assert_int_equal(0, xkv_set(h, "key", 3, value, 1416, 0, 0, &r));
	assert_int_equal(1472, server.last.len);
	assert_int_equal(0, xkv_cas(h, "key", 3, value, 1, 5, 9, XKV_RETURN, NULL));
	assert_int_equal(XKV_CAS | XKV_RETURN, server.last.byte[ops_at(server.last.byte) + 1]);
	assert_int_equal(0, xkv_delete(h, "key", 3, 0, NULL));
	assert_int_equal(0, xkv_expire(h, "key", 3, 0, 0));
	two[1] = (struct xkv_cmd){
		.command = XKV_CMD_EXPIRE, .key = "k", .key_len = 1, .version = 9
	};
	assert_int_equal(XKV_E_INVALID, xkv_batch(h, two + 1, 1));
	two[1].flags = XKV_CAS | XKV_ABSTTL;
	assert_int_equal(0, xkv_batch(h, two + 1, 1));
	assert_int_equal(XKV_CAS | XKV_ABSTTL, server.last.byte[ops_at(server.last.byte) + 1]);
	assert_int_equal(9, server.last.byte[ops_at(server.last.byte) + 23]);
	assert_int_equal(0, xkv_ping(h));
	xkv_close(h);
	stop();
}

static void test_token(void **state)
{
	static const unsigned char token[XKV_TOKEN_BYTES] = "0123456789abcde";
	struct xkv_options opts = patient;
	struct xkv_reply r;
	struct xkv *h;

	start(answer);
	opts.token = token;
	h = open_with(&opts);
	assert_int_equal(1400, xkv_value_max(h, 3));
	get_ok(h, "key", &r);
	assert_int_equal(16 + 16 + 24 + 8, server.last.len);
	assert_int_equal(XKV_F_TOKEN, server.last.byte[3]);
	assert_memory_equal(token, server.last.byte + 16, 16);
	xkv_set_token(h, NULL);
	get_ok(h, "key", &r);
	assert_int_equal(0, server.last.byte[3]);
	assert_int_equal(16 + 24 + 8, server.last.len);
	xkv_close(h);
	stop();
}

/* The operation of the last datagram that the server has got. */
static struct found last_op(void)
{
	struct found o;
	size_t at = ops_at(server.last.byte);

	assert_true(read_op(server.last.byte, server.last.len, &at, &o));
	return o;
}

/* What add, replace and touch are short for. */
static void test_conditions(void **state)
{
	struct xkv_reply r;
	struct found o;
	struct xkv *h;

	start(answer);
	h = open_with(&patient);
	assert_int_equal(0, xkv_add(h, "key", 3, "value", 5, 1000, &r));
	o = last_op();
	assert_int_equal(XKV_OP_SET, o.op.opcode);
	assert_int_equal(XKV_NX, o.op.flags & (XKV_NX | XKV_XX | XKV_CAS));
	assert_int_equal(1000, o.ttl);
	assert_int_equal(5, o.value_len);
	assert_int_equal(0, xkv_replace(h, "key", 3, "value", 5, 0, NULL));
	o = last_op();
	assert_int_equal(XKV_OP_SET, o.op.opcode);
	assert_int_equal(XKV_XX, o.op.flags & (XKV_NX | XKV_XX | XKV_CAS));
	assert_int_equal(0, o.ttl);
	assert_int_equal(0, xkv_touch(h, "key", 3, &r));
	o = last_op();
	assert_int_equal(XKV_OP_TOUCH, o.op.opcode);
	assert_int_equal(0, o.value_len);
	close_once(h);
}

static void *hammer(void *arg)
{
	struct xkv *h = xkv_open("127.0.0.1", server.port, &eager, NULL);
	struct xkv_reply r;
	char key[32], want[64];
	intptr_t bad = !h;

	for (int i = 0; h && i < 1000; i++) {
		snprintf(key, sizeof(key), "%s-%d", (const char *)arg, i);
		snprintf(want, sizeof(want), "%s%s", key, key);
		bad += xkv_get(h, key, strlen(key), &r) || strcmp(want, r.value);
	}
	xkv_close(h);
	return (void *)bad;
}

static void test_threads(void **state)
{
	static char name[4][2] = { "a", "b", "c", "d" };
	pthread_t threads[4];
	void *bad;

	start(answer);
	for (int i = 0; i < 4; i++)
		assert_int_equal(0, pthread_create(&threads[i], NULL, hammer, name[i]));
	for (int i = 0; i < 4; i++) {
		assert_int_equal(0, pthread_join(threads[i], &bad));
		assert_null(bad);
	}
	stop();
}

/* ---- databases -------------------------------------------------------- */

#define DATABASES 4

/* A server with four databases; `value` is the one that the last request named. */
static void handle_databases(struct fake *f, const struct datagram *req)
{
	f->value = req->byte[5];
	if (f->value < DATABASES) {
		answer(f, req);
		return;
	}
	reply_begin(&f->reply, req);
	header(&f->reply)->status = XKV_BAD_REQUEST;
	send_bytes(f, &f->reply);
}

static void prove_databases(struct fake *f, const struct datagram *req)
{
	if (req->byte[5] < DATABASES)
		give_session(f, req);
	else
		handle_databases(f, req);
}

static struct xkv *open_database(unsigned int database)
{
	struct xkv_options opts = patient;

	start(handle_databases);
	server.prove = prove_databases;
	opts.database = database;
	return open_with(&opts);
}

/* Each kind of request is in the database. */
static void assert_all_in(struct xkv *h, unsigned int database)
{
	struct xkv_cmd cmds[] = {
		{ .command = XKV_CMD_GET, .key = "a", .key_len = 1 },
		{ .command = XKV_CMD_SET, .key = "b", .key_len = 1 },
	};
	struct xkv_reply r;

	get_ok(h, "key", &r);
	assert_int_equal(database, server.value);
	server.value = ~0ULL;
	assert_int_equal(0, xkv_set(h, "key", 3, "v", 1, 0, 0, &r));
	assert_int_equal(database, server.value);
	assert_int_equal(XKV_F_ONCE, server.last.byte[3]);
	server.value = ~0ULL;
	assert_int_equal(0, xkv_batch(h, cmds, 1));
	assert_int_equal(database, server.value);
	server.value = ~0ULL;
	assert_int_equal(0, xkv_atomic(h, cmds, 2, NULL));
	assert_int_equal(database, server.value);
}

static void test_database(void **state)
{
	struct xkv_options opts = { .database = XKV_DATABASE_MAX + 1 };
	struct xkv *h = open_database(3);
	int err = 0;

	assert_all_in(h, 3);
	assert_int_equal(0, xkv_select(h, 1));
	assert_all_in(h, 1);
	assert_int_equal(XKV_E_INVALID, xkv_select(h, XKV_DATABASE_MAX + 1));
	assert_all_in(h, 1);
	assert_int_equal(0, xkv_select(h, 0));
	assert_all_in(h, 0);
	close_once(h);
	assert_null(xkv_open("127.0.0.1", 1, &opts, &err));
	assert_int_equal(XKV_E_INVALID, err);
}

static void test_scan_in_a_database(void **state)
{
	struct xkv *h = open_numbered(1000);

	assert_int_equal(0, xkv_select(h, 3));
	assert_int_equal(5, scan(h, "k%lu", 1, 5, 0));
	assert_int_equal(3, server.last.byte[5]);
	close_once(h);
}

/* The server is not taken for one that is too old for ONCE: changes have it afterwards. */
static void test_no_database(void **state)
{
	struct xkv_cmd cmds[2] = {
		{ .command = XKV_CMD_GET, .key = "a", .key_len = 1 },
		{ .command = XKV_CMD_SET, .key = "b", .key_len = 1 },
	};
	struct xkv *h = open_database(DATABASES);

	for (int proven = 0; proven < 2; proven++) {
		assert_int_equal(XKV_E_NO_DATABASE, xkv_ping(h));
		assert_int_equal(XKV_E_NO_DATABASE, xkv_set(h, "k", 1, "v", 1, 0, 0, NULL));
		assert_int_equal(XKV_E_NO_DATABASE, xkv_batch(h, cmds, 2));
		assert_int_equal(XKV_E_NO_DATABASE, cmds[0].reply.status);
		assert_int_equal(XKV_E_NO_DATABASE, cmds[1].reply.status);
		assert_int_equal(XKV_E_NO_DATABASE, xkv_atomic(h, cmds, 2, NULL));
		assert_int_equal(0, xkv_select(h, DATABASES - 1));
		assert_all_in(h, DATABASES - 1); /* with a session from here on */
		assert_int_equal(0, xkv_select(h, DATABASES));
	}
	close_once(h);
}

/* ---- transactions ----------------------------------------------------- */

/* Nothing was done, because of operation `index`. */
static void abort_at(struct fake *f, const struct datagram *req, unsigned int opcode,
		     unsigned int status, unsigned int index, size_t len)
{
	reply_begin(&f->reply, req);
	reply_result(&f->reply, opcode, status, NULL, len);
	header(&f->reply)->status = XKV_ABORTED;
	f->reply.byte[sizeof(struct xkv_hdr) + 3] = (uint8_t)index;
	send_bytes(f, &f->reply);
}

/* Is busy, then wants a request of 200 bytes, and then does all of it. */
static void handle_transaction(struct fake *f, const struct datagram *req)
{
	assert_true(req->byte[3] & XKV_F_ATOMIC);
	if (!f->limit++)
		abort_at(f, req, XKV_OP_SET, XKV_BUSY, 0, 0);
	else if (req->len < 200)
		abort_at(f, req, XKV_OP_GET, XKV_PAD, 2, 200);
	else
		answer(f, req);
}

/* Results that an aborted transaction cannot have. */
static void handle_nonsense(struct fake *f, const struct datagram *req)
{
	abort_at(f, req, XKV_OP_GET, XKV_NOT_STORED, 3, 0);
	abort_at(f, req, XKV_OP_SET, XKV_NOT_STORED, 1, 0);
	abort_at(f, req, XKV_OP_GET, XKV_OK, 1, 0);
	abort_at(f, req, XKV_OP_GET, XKV_PAD, 1, 8);
}

/* Says that all is done, but one is not. */
static void handle_half_done(struct fake *f, const struct datagram *req)
{
	reply_begin(&f->reply, req);
	reply_result(&f->reply, XKV_OP_CHECK, XKV_OK, NULL, 0);
	reply_result(&f->reply, XKV_OP_GET, XKV_OK, "", 0);
	reply_result(&f->reply, XKV_OP_GET, ++f->limit & 1 ? XKV_TOO_LARGE : XKV_PAD, NULL, 1400);
	send_bytes(f, &f->reply);
}

static void test_atomic(void **state)
{
	struct xkv_options opts = { .timeout_ms = 20000, .retry_ms = 20000, .once = -1 };
	struct xkv_options hasty = { .timeout_ms = 300, .once = -1 };
	struct xkv_cmd cmds[48 + 1] = {
		{ .command = XKV_CMD_SET, .key = "a", .key_len = 1, .value = "1", .value_len = 1 },
		{ .command = XKV_CMD_GET, .key = "b", .key_len = 1 },
		{ .command = XKV_CMD_GET, .key = "c", .key_len = 1 },
	};
	size_t failed = 7;
	struct xkv *h;

	start(handle_transaction);
	h = open_with(&opts);
	assert_int_equal(0, xkv_atomic(h, cmds, 3, &failed));
	assert_int_equal(3, atomic_load(&server.received));
	assert_int_equal(7, failed);
	assert_value(&cmds[1].reply, "bb");
	assert_value(&cmds[2].reply, "cc");
	assert_int_equal(XKV_E_INVALID, xkv_atomic(h, cmds, 0, NULL));
	for (int i = 0; i < 49; i++)
		cmds[i] = (struct xkv_cmd){ .command = XKV_CMD_GET, .key = "b", .key_len = 1 };
	assert_int_equal(XKV_E_INVALID, xkv_atomic(h, cmds, 49, NULL));
	assert_int_equal(XKV_E_INVALID, cmds[48].reply.status);
	cmds[0].command = XKV_CMD_SET;
	cmds[0].value = server.first.byte; /* any */
	cmds[0].value_len = xkv_value_max(h, 1);
	assert_int_equal(XKV_E_TOO_LARGE, xkv_atomic(h, cmds, 2, NULL));
	assert_int_equal(XKV_E_TOO_LARGE, cmds[0].reply.status);
	assert_int_equal(XKV_E_TOO_LARGE, cmds[1].reply.status);
	cmds[0] = (struct xkv_cmd){ .command = XKV_CMD_PING };
	assert_int_equal(XKV_E_INVALID, xkv_atomic(h, cmds, 2, NULL));
	cmds[0] = (struct xkv_cmd){ .command = XKV_CMD_CHECK, .key = "a", .key_len = 1 };
	assert_int_equal(XKV_E_INVALID, xkv_batch(h, cmds, 2));
	assert_int_equal(3, atomic_load(&server.received));
	close_once(h);
	start(handle_nonsense);
	h = open_with(&hasty);
	assert_int_equal(XKV_E_PROTOCOL, xkv_atomic(h, cmds, 3, &failed));
	assert_int_equal(XKV_E_PROTOCOL, cmds[2].reply.status);
	close_once(h);
	start(handle_half_done);
	h = open_with(&hasty);
	for (int i = 0; i < 2; i++)
		assert_int_equal(XKV_E_PROTOCOL, xkv_atomic(h, cmds, 3, NULL));
	close_once(h);
}

static void test_strerror(void **state)
{
	assert_string_equal("success", xkv_strerror(0));
	for (int e = XKV_E_NO_LOG; e <= XKV_E_MISS; e++)
		assert_string_not_equal("unknown error", xkv_strerror(e));
	for (int e = XKV_E_NO_DATABASE; e <= XKV_E_TIMEOUT; e++)
		assert_string_not_equal("unknown error", xkv_strerror(e));
	assert_string_equal("unknown error", xkv_strerror(-1000));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_number),   cmocka_unit_test(test_scan),
		cmocka_unit_test(test_scan_padded), cmocka_unit_test(test_ipv6),
		cmocka_unit_test(test_name),	    cmocka_unit_test(test_open_errors),
		cmocka_unit_test(test_arguments),   cmocka_unit_test(test_token),
		cmocka_unit_test(test_conditions),  cmocka_unit_test(test_threads),
		cmocka_unit_test(test_atomic),	    cmocka_unit_test(test_database),
		cmocka_unit_test(test_no_database), cmocka_unit_test(test_scan_in_a_database),
		cmocka_unit_test(test_strerror),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

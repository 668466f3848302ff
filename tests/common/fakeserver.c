// SPDX-License-Identifier: BSD-2-Clause
/* A server that answers as a test wants: see fakeserver.h. */
#include "fakeserver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <endian.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ---- the server ------------------------------------------------------- */

struct fake server;

static bool asks_for_session(const struct datagram *req);

static void *serve(void *arg)
{
	struct fake *f = arg;
	struct pollfd pfd[2] = { { f->fd, POLLIN, 0 }, { f->stop, POLLIN, 0 } };
	struct datagram req;

	while (poll(pfd, 2, -1) > 0 && !pfd[1].revents) {
		ssize_t len;

		f->client_len = sizeof(f->client);
		len = recvfrom(f->fd, req.byte, sizeof(req.byte), 0, (struct sockaddr *)&f->client,
			       &f->client_len);
		if (len < 0)
			continue;
		req.len = (size_t)len;
		if (f->prove && asks_for_session(&req)) {
			f->prove(f, &req);
			continue;
		}
		atomic_fetch_add(&f->received, 1);
		f->last = req;
		if (atomic_load(&f->received) == 1)
			f->first = req;
		f->handler(f, &req);
	}
	return NULL;
}

static void listen_on(struct fake *f, int family, unsigned int port)
{
	struct sockaddr_in6 sin6 = { .sin6_family = AF_INET6,
				     .sin6_port = htons((uint16_t)port),
				     .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr_in sin = { .sin_family = AF_INET,
				   .sin_port = htons((uint16_t)port),
				   .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct sockaddr_storage bound;
	socklen_t len = sizeof(bound);
	int rc, one = 1;

	f->fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(f->fd >= 0);
	if (family == AF_INET6) {
		assert_int_equal(0,
				 setsockopt(f->fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)));
		rc = bind(f->fd, (struct sockaddr *)&sin6, sizeof(sin6));
	} else {
		rc = bind(f->fd, (struct sockaddr *)&sin, sizeof(sin));
	}
	assert_int_equal(0, rc);
	assert_int_equal(0, getsockname(f->fd, (struct sockaddr *)&bound, &len));
	f->port = ntohs(family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
					   : ((struct sockaddr_in *)&bound)->sin_port);
}

void start_at(handler_fn *handler, int family, unsigned int port)
{
	memset(&server, 0, sizeof(server));
	server.handler = handler;
	server.prove = give_session;
	server.stop = eventfd(0, EFD_CLOEXEC);
	assert_true(server.stop >= 0);
	listen_on(&server, family, port);
	assert_int_equal(0, pthread_create(&server.thread, NULL, serve, &server));
}

void start(handler_fn *handler)
{
	start_at(handler, AF_INET, 0);
}

void stop(void)
{
	uint64_t one = 1;

	assert_int_equal(sizeof(one), write(server.stop, &one, sizeof(one)));
	assert_int_equal(0, pthread_join(server.thread, NULL));
	close(server.fd);
	close(server.stop);
}

void send_bytes(struct fake *f, const struct datagram *d)
{
	sendto(f->fd, d->byte, d->len, 0, (struct sockaddr *)&f->client, f->client_len);
}

/* ---- building replies, independent of the library --------------------- */

struct xkv_hdr *header(struct datagram *d)
{
	return (struct xkv_hdr *)(void *)d->byte;
}

void reply_begin(struct datagram *d, const struct datagram *req)
{
	const struct xkv_hdr *asked = (const void *)req->byte;
	struct xkv_hdr hdr = { .magic = htobe16(XKV_MAGIC),
			       .version = XKV_VERSION,
			       .flags = XKV_F_REPLY,
			       .length = htobe16(sizeof(hdr)),
			       .id = asked->id };

	memset(d, 0, sizeof(*d));
	memcpy(d->byte, &hdr, sizeof(hdr));
	d->len = sizeof(hdr);
}

void reply_result(struct datagram *d, unsigned int opcode, unsigned int status, const void *value,
		  size_t len)
{
	struct xkv_result res = { .opcode = (uint8_t)opcode,
				  .status = (uint8_t)status,
				  .flags = value ? XKV_HAS_VALUE : 0,
				  .value_len = htobe32((uint32_t)len),
				  .version = htobe64(77) };

	assert_true(d->len + sizeof(res) + XKV_PADDED(value ? len : 0) <= sizeof(d->byte));
	memcpy(d->byte + d->len, &res, sizeof(res));
	d->len += sizeof(res);
	if (value) {
		memcpy(d->byte + d->len, value, len);
		d->len += XKV_PADDED(len);
	}
	header(d)->count++;
	header(d)->length = htobe16((uint16_t)d->len);
}

bool zeros(const uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (p[i])
			return false;
	return true;
}

bool read_op(const uint8_t *p, size_t len, size_t *at, struct found *o)
{
	size_t keys, values;

	if (len - *at < sizeof(o->op))
		return false;
	memcpy(&o->op, p + *at, sizeof(o->op));
	*at += sizeof(o->op);
	o->value_len = be32toh(o->op.value_len);
	o->ttl = be64toh(o->op.ttl);
	o->version = be64toh(o->op.version);
	keys = XKV_PADDED(o->op.key_len);
	if (o->value_len > len || keys + XKV_PADDED(o->value_len) > len - *at ||
	    (o->op.keys && o->op.opcode != XKV_OP_SCAN))
		return false;
	values = XKV_PADDED(o->value_len);
	o->key = p + *at;
	o->value = o->key + keys;
	*at += keys + values;
	return zeros(o->key + o->op.key_len, keys - o->op.key_len) &&
	       zeros(o->value + o->value_len, values - o->value_len);
}

size_t session_at(const uint8_t *p)
{
	return sizeof(struct xkv_hdr) + (p[3] & XKV_F_TOKEN ? XKV_TOKEN_BYTES : 0);
}

size_t ops_at(const uint8_t *p)
{
	return session_at(p) + (p[3] & XKV_F_ONCE ? XKV_SESSION_BYTES : 0);
}

static bool asks_for_session(const struct datagram *req)
{
	size_t at = ops_at(req->byte);

	return req->len >= at + sizeof(struct xkv_op) && req->byte[at] == XKV_OP_SESSION;
}

void give_session(struct fake *f, const struct datagram *req)
{
	struct datagram reply;
	uint8_t session[8];

	memcpy(session, req->byte + session_at(req->byte), sizeof(session));
	memcpy(session + 5, "yes", 3);
	reply_begin(&reply, req);
	reply_result(&reply, XKV_OP_SESSION, XKV_OK, session, sizeof(session));
	send_bytes(f, &reply);
}

size_t value_of(const struct found *o, uint8_t *value)
{
	memcpy(value, o->key, o->op.key_len);
	memcpy(value + o->op.key_len, o->key, o->op.key_len);
	return 2U * o->op.key_len;
}

void reply_to(struct datagram *d, const struct datagram *req, unsigned int limit)
{
	size_t at = ops_at(req->byte), len, end = be16toh(header((struct datagram *)req)->length);
	uint8_t value[2 * XKV_KEY_MAX];
	struct found o;

	assert_true(end <= req->len);
	reply_begin(d, req);
	for (unsigned int i = 0; i < limit && at < end; i++) {
		assert_true(read_op(req->byte, end, &at, &o));
		len = value_of(&o, value);
		if (d->len + 24 + XKV_PADDED(len) > XKV_PAYLOAD_MAX4)
			break;
		if (o.op.opcode == XKV_OP_INCR) /* the sum with 0 */
			reply_result(d, o.op.opcode, XKV_OK, o.value, o.value_len);
		else if (o.op.opcode == XKV_OP_APPEND)
			reply_result(d, o.op.opcode, XKV_OK, "\0\0\0\0\0\0\0", 8);
		else
			reply_result(d, o.op.opcode, XKV_OK,
				     o.op.opcode == XKV_OP_GET ? value : NULL,
				     o.op.opcode == XKV_OP_GET ? len : 0);
	}
}

void answer(struct fake *f, const struct datagram *req)
{
	reply_to(&f->reply, req, 255);
	send_bytes(f, &f->reply);
}

/* ---- clients ---------------------------------------------------------- */

struct xkv *open_with(const struct xkv_options *opts)
{
	int err = -1;
	struct xkv *h = xkv_open("127.0.0.1", server.port, opts, &err);

	assert_int_equal(0, err);
	assert_non_null(h);
	return h;
}

uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

void assert_value(const struct xkv_reply *r, const char *text)
{
	assert_non_null(r->value);
	assert_int_equal(strlen(text), r->value_len);
	assert_string_equal(text, r->value); /* the zero byte behind it included */
}

void get_ok(struct xkv *h, const char *key, struct xkv_reply *r)
{
	char want[2 * XKV_KEY_MAX + 1];

	snprintf(want, sizeof(want), "%s%s", key, key);
	assert_int_equal(0, xkv_get(h, key, strlen(key), r));
	assert_value(r, want);
}

int take_scanned(void *arg, const char *key, size_t key_len, const struct xkv_reply *reply)
{
	struct xkv_cmd **next = arg;

	(*next)++->reply = *reply;
	return 0;
}

void close_once(struct xkv *h)
{
	xkv_close(h);
	stop();
}

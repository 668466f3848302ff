/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libxkv against a server on loopback that answers as the test at hand wants:
 * with the replies of tests/vectors.txt, too late, twice, broken, not at all.
 * The library is only used through its public header.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bpf/proto.h"
#include "client/xkv.h"
#include "vectors.h"

/* ---- the server ------------------------------------------------------- */

struct datagram {
	size_t len;
	uint8_t byte[XKV_PAYLOAD_MAX4 + 1];
};

struct fake;
typedef void handler_fn(struct fake *f, const struct datagram *req);

struct fake {
	int fd, stop;
	unsigned int port;
	pthread_t thread;
	handler_fn *handler;
	struct sockaddr_storage client;
	socklen_t client_len;
	handler_fn *prove; /* of a SESSION, which the other does not get to see */
	atomic_uint received;
	/* for the handlers */
	struct datagram first, last, held, reply;
	const struct vector *vector;
	unsigned int limit;
	uint64_t value;
};

static struct fake server;

static bool asks_for_session(const struct datagram *req);
static void give_session(struct fake *f, const struct datagram *req);

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

static void start_at(handler_fn *handler, int family, unsigned int port)
{
	memset(&server, 0, sizeof(server));
	server.handler = handler;
	server.prove = give_session;
	server.stop = eventfd(0, EFD_CLOEXEC);
	assert_true(server.stop >= 0);
	listen_on(&server, family, port);
	assert_int_equal(0, pthread_create(&server.thread, NULL, serve, &server));
}

static void start(handler_fn *handler)
{
	start_at(handler, AF_INET, 0);
}

static void stop(void)
{
	uint64_t one = 1;

	assert_int_equal(sizeof(one), write(server.stop, &one, sizeof(one)));
	assert_int_equal(0, pthread_join(server.thread, NULL));
	close(server.fd);
	close(server.stop);
}

static void send_bytes(struct fake *f, const struct datagram *d)
{
	sendto(f->fd, d->byte, d->len, 0, (struct sockaddr *)&f->client, f->client_len);
}

/* ---- building replies, independent of the library --------------------- */

static struct xkv_hdr *header(struct datagram *d)
{
	return (struct xkv_hdr *)(void *)d->byte;
}

static void reply_begin(struct datagram *d, const struct datagram *req)
{
	const struct xkv_hdr *asked = (const void *)req->byte;
	struct xkv_hdr hdr = { htobe16(XKV_MAGIC),   XKV_VERSION, XKV_F_REPLY, 0, 0,
			       htobe16(sizeof(hdr)), asked->id };

	memset(d, 0, sizeof(*d));
	memcpy(d->byte, &hdr, sizeof(hdr));
	d->len = sizeof(hdr);
}

static void reply_result(struct datagram *d, unsigned int opcode, unsigned int status,
			 const void *value, size_t len)
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

/* An operation of a request, as an independent reader finds it. */
struct found {
	struct xkv_op op;
	const uint8_t *key, *value;
	size_t value_len;
	uint64_t ttl, version;
};

static bool zeros(const uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (p[i])
			return false;
	return true;
}

/* Reads the operation at *at; false if a struct xkv_cmd could not express it. */
static bool read_op(const uint8_t *p, size_t len, size_t *at, struct found *o)
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

/* Where the session of a request is, if it has one, and where its operations start. */
static size_t session_at(const uint8_t *p)
{
	return sizeof(struct xkv_hdr) + (p[3] & XKV_F_TOKEN ? XKV_TOKEN_BYTES : 0);
}

static size_t ops_at(const uint8_t *p)
{
	return session_at(p) + (p[3] & XKV_F_ONCE ? XKV_SESSION_BYTES : 0);
}

static bool asks_for_session(const struct datagram *req)
{
	size_t at = ops_at(req->byte);

	return req->len >= at + sizeof(struct xkv_op) && req->byte[at] == XKV_OP_SESSION;
}

/* Proves a session: with the last three bytes "yes". */
static void give_session(struct fake *f, const struct datagram *req)
{
	struct datagram reply;
	uint8_t session[8];

	memcpy(session, req->byte + session_at(req->byte), sizeof(session));
	memcpy(session + 5, "yes", 3);
	reply_begin(&reply, req);
	reply_result(&reply, XKV_OP_SESSION, XKV_OK, session, sizeof(session));
	send_bytes(f, &reply);
}

/* The value that this server has under a key: the key, twice. */
static size_t value_of(const struct found *o, uint8_t *value)
{
	memcpy(value, o->key, o->op.key_len);
	memcpy(value + o->op.key_len, o->key, o->op.key_len);
	return 2U * o->op.key_len;
}

/* Builds a well-behaved reply to at most `limit` operations. */
static void reply_to(struct datagram *d, const struct datagram *req, unsigned int limit)
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

static void answer(struct fake *f, const struct datagram *req)
{
	reply_to(&f->reply, req, 255);
	send_bytes(f, &f->reply);
}

/* ---- clients ---------------------------------------------------------- */

static struct xkv *open_with(const struct xkv_options *opts)
{
	int err = -1;
	struct xkv *h = xkv_open("127.0.0.1", server.port, opts, &err);

	assert_int_equal(0, err);
	assert_non_null(h);
	return h;
}

/* A timeout that a slow machine does not reach by chance. */
static const struct xkv_options patient = { .timeout_ms = 20000, .retry_ms = 20000 };
/* For what is meant to be repeated. */
static const struct xkv_options eager = { .timeout_ms = 20000, .retry_ms = 2, .retries = 1000 };

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void assert_value(const struct xkv_reply *r, const char *text)
{
	assert_non_null(r->value);
	assert_int_equal(strlen(text), r->value_len);
	assert_string_equal(text, r->value); /* the zero byte behind it included */
}

/* GETs a key from a server that has value_of(). */
static void get_ok(struct xkv *h, const char *key, struct xkv_reply *r)
{
	char want[2 * XKV_KEY_MAX + 1];

	snprintf(want, sizeof(want), "%s%s", key, key);
	assert_int_equal(0, xkv_get(h, key, strlen(key), r));
	assert_value(r, want);
}

/* ---- the vectors ------------------------------------------------------ */

#define ANY_BYTE 0x11 /* what stands for `..` and `vv` */

static size_t fill(uint8_t *to, const struct vector_bytes *b)
{
	for (size_t i = 0; i < b->len; i++)
		to[i] = b->kind[i] == VECTOR_BYTE ? b->byte[i] : ANY_BYTE;
	return b->len;
}

/* The first request gets the vector's reply, all others a header that refuses them. */
static void handle_vector(struct fake *f, const struct datagram *req)
{
	uint64_t id = header((struct datagram *)req)->id;

	reply_begin(&f->reply, req);
	header(&f->reply)->status = XKV_BAD_REQUEST;
	if (atomic_load(&f->received) == 1)
		f->reply.len = fill(f->reply.byte, &f->vector->reply);
	header(&f->reply)->id = id;
	send_bytes(f, &f->reply);
}

/* The amount of an INCR is no value in the library's commands. */
static bool take_amount(struct xkv_cmd *cmd, const struct found *o)
{
	uint64_t amount;

	if (o->value_len != sizeof(amount))
		return false;
	memcpy(&amount, o->value, sizeof(amount));
	cmd->amount = (int64_t)be64toh(amount);
	cmd->value = NULL;
	cmd->value_len = 0;
	return true;
}

/* The commands that a request consists of; 0 if no caller of the library could ask for it. */
static size_t commands_of(const struct datagram *req, struct xkv_cmd *cmds)
{
	const struct xkv_hdr *hdr = (const void *)req->byte;
	size_t at, n = 0;
	struct found o;

	if (req->len < sizeof(*hdr) || be16toh(hdr->magic) != XKV_MAGIC ||
	    hdr->version != XKV_VERSION || (hdr->flags & ~(XKV_F_TOKEN | XKV_F_ONCE)) ||
	    hdr->status || be16toh(hdr->length) != req->len)
		return 0;
	if ((hdr->flags & XKV_F_ONCE) &&
	    zeros(req->byte + session_at(req->byte), XKV_SESSION_BYTES))
		return 0;
	for (at = ops_at(req->byte); at < req->len; n++) {
		if (!read_op(req->byte, req->len, &at, &o) || o.op.opcode < XKV_OP_PING ||
		    o.op.opcode > XKV_OP_TOUCH)
			return 0;
		cmds[n] = (struct xkv_cmd){ .command = o.op.opcode,
					    .flags = o.op.flags,
					    .key = o.key,
					    .key_len = o.op.key_len,
					    .value = o.value,
					    .value_len = o.value_len,
					    .ttl_ms = o.ttl,
					    .version = o.version };
		if (o.op.opcode == XKV_OP_INCR && !take_amount(&cmds[n], &o))
			return 0;
		/* reads are repeated as they are */
		if ((hdr->flags & XKV_F_ONCE) && o.op.opcode == XKV_OP_GET)
			return 0;
	}
	return n == hdr->count ? n : 0;
}

/* Compares a result at *at with what the library made of it. */
static void check_result(const struct datagram *reply, size_t *at, const struct xkv_reply *r)
{
	struct xkv_result res;
	uint64_t number;
	size_t len;

	memcpy(&res, reply->byte + *at, sizeof(res));
	*at += sizeof(res);
	len = be32toh(res.value_len);
	assert_int_equal(-(int)res.status, r->status);
	assert_true(be64toh(res.ttl) == r->ttl_ms);
	assert_true(be64toh(res.version) == r->version);
	if ((res.opcode == XKV_OP_INCR || res.opcode == XKV_OP_APPEND) && res.status == XKV_OK) {
		memcpy(&number, reply->byte + *at, sizeof(number));
		assert_true((int64_t)be64toh(number) == r->number);
		assert_null(r->value);
	} else {
		assert_true(!r->number);
		assert_int_equal(len, r->value_len);
		assert_int_equal(!!(res.flags & XKV_HAS_VALUE), r->value != NULL);
		if (r->value)
			assert_memory_equal(reply->byte + *at, r->value, len);
	}
	*at += res.flags & XKV_HAS_VALUE ? XKV_PADDED(len) : 0;
}

/* Compares what the library made of the vector's reply with its bytes.  Returns how many results.
 */
static unsigned int check_results(const struct datagram *reply, const struct xkv_cmd *cmds)
{
	const struct xkv_hdr *hdr = (const void *)reply->byte;
	size_t at = sizeof(*hdr);

	for (unsigned int i = 0; i < hdr->count; i++) {
		if (reply->byte[at + 1] == XKV_PAD)
			return i;
		check_result(reply, &at, &cmds[i].reply);
	}
	assert_int_equal(at, reply->len);
	return hdr->count;
}

static struct xkv *open_for(const struct vector *v, const struct datagram *req)
{
	struct xkv_options opts = patient;

	server.vector = v;
	atomic_store(&server.received, 0);
	if (req->byte[3] & XKV_F_TOKEN)
		opts.token = req->byte + sizeof(struct xkv_hdr);
	opts.once = req->byte[3] & XKV_F_ONCE ? 0 : -1;
	return open_with(&opts);
}

/* Id and session are the library's choice. */
static void same_request(const struct datagram *want, const struct datagram *got)
{
	struct datagram d = *got;

	memcpy(d.byte + 8, want->byte + 8, 8);
	if (d.byte[3] & XKV_F_ONCE) {
		assert_int_equal(0, got->byte[15] % 8);
		assert_false(zeros(got->byte + session_at(got->byte), XKV_SESSION_BYTES));
		memcpy(d.byte + session_at(d.byte), want->byte + session_at(want->byte),
		       XKV_SESSION_BYTES);
	}
	assert_memory_equal(want->byte, d.byte, want->len);
}

/* A request that the library can be asked for: does it build just that, and understand the reply?
 */
static void run_whole(const struct vector *v, const struct datagram *req, struct xkv_cmd *cmds,
		      size_t n)
{
	struct xkv *h = open_for(v, req);
	struct datagram reply = { 0 };
	unsigned int results, got;
	int err;

	reply.len = fill(reply.byte, &v->reply);
	err = xkv_batch(h, cmds, n);
	got = atomic_load(&server.received);
	assert_int_equal(req->len, server.first.len);
	same_request(req, &server.first);
	results = check_results(&reply, cmds);
	if (header(&reply)->status == XKV_REPEATED) {
		assert_int_equal(0, err);
		assert_int_equal(XKV_E_REPEATED, cmds[0].reply.status);
	} else if (header(&reply)->status) {
		assert_int_equal(-(int)header(&reply)->status, err);
		assert_int_equal(1, got);
	} else if (results < n) {
		assert_int_equal(XKV_E_BAD_REQUEST,
				 err); /* of the second request, see handle_vector() */
		assert_int_equal(2, got);
		assert_memory_not_equal(server.first.byte + 8, server.last.byte + 8, 8);
	} else {
		assert_int_equal(0, err);
		assert_int_equal(1, got);
	}
	if (reply.byte[17] == XKV_PAD) {
		assert_int_equal(be32toh(*(uint32_t *)(void *)(reply.byte + 20)), server.last.len);
		assert_memory_equal(req->byte + 16, server.last.byte + 16, req->len - 16);
		assert_true(zeros(server.last.byte + req->len, server.last.len - req->len));
	}
	xkv_close(h);
}

static bool refuses(const struct vector_bytes *reply)
{
	return reply->len == 40 &&
	       (reply->byte[17] == XKV_BAD_REQUEST || reply->byte[17] == XKV_BAD_KEY);
}

/* A request that the server refuses: the library does not even send it. */
static void run_refused(const struct vector *v, const struct datagram *req, struct xkv_cmd *cmds,
			size_t n)
{
	struct xkv *h = open_for(v, req);
	int err = xkv_batch(h, cmds, n);

	assert_int_equal(v->reply.byte[17] == XKV_BAD_KEY ? XKV_E_BAD_KEY : XKV_E_INVALID, err);
	assert_int_equal(0, atomic_load(&server.received));
	xkv_close(h);
}

/* Another request with the same opcode gets the vector's reply: is the error understood? */
static void run_error(const struct vector *v, const struct datagram *req)
{
	unsigned int opcode = v->reply.len > 16 ? v->reply.byte[16] : XKV_OP_PING;
	struct xkv_cmd cmd = { .command = opcode };
	struct xkv *h;
	int err;

	if (opcode == XKV_OP_SESSION)
		return; /* the library asks by itself: see test_session */
	h = open_for(v, req);
	if (opcode != XKV_OP_PING) {
		cmd.key = "k";
		cmd.key_len = 1;
	}
	err = xkv_batch(h, &cmd, 1);
	assert_int_equal(v->reply.len > 16 ? 0 : -(int)v->reply.byte[5], err);
	assert_int_equal(-(int)v->reply.byte[v->reply.len > 16 ? 17 : 5], cmd.reply.status);
	xkv_close(h);
}

struct vector_sums {
	unsigned int whole, refused, errors, scans;
};

/* Keys that can be counted up to, the first included, if that are less than `most`. */
static unsigned int keys_left(const struct found *o, unsigned int most)
{
	unsigned int left = 0, weight = 1;

	for (size_t i = o->op.key_len; i && left < most; i--, weight *= 10) {
		if (o->key[i - 1] < '0' || o->key[i - 1] > '9')
			break;
		left += ('9' - o->key[i - 1]) * weight;
	}
	return left + 1 < most ? left + 1 : most;
}

static int take_scanned(void *arg, const char *key, size_t key_len, const struct xkv_reply *reply)
{
	struct xkv_cmd **next = arg;

	(void)key;
	(void)key_len;
	(*next)++->reply = *reply;
	return 0;
}

/* A request that is one SCAN. */
static void run_scan(const struct vector *v, struct datagram *req, const struct found *o)
{
	struct xkv_cmd cmds[XKV_SCAN_MAX], *next = cmds;
	struct xkv *h = open_for(v, req);
	struct datagram reply;
	unsigned int results;
	int err;

	reply.len = fill(reply.byte, &v->reply);
	results = header(&reply)->count;
	/* The values of up to 100 keys are valid until the handle is used again. */
	err = xkv_scan(h, o->key, o->op.key_len, o->op.keys, take_scanned, &next);
	req->byte[19] = (uint8_t)keys_left(o, o->op.keys); /* it does not ask for what cannot be */
	same_request(req, &server.first);
	assert_int_equal(results, next - cmds);
	assert_int_equal(results, check_results(&reply, cmds));
	assert_true(err == 0 || err == XKV_E_BAD_REQUEST);
	xkv_close(h);
}

static bool is_scan(const struct datagram *req, struct found *o)
{
	size_t at = sizeof(struct xkv_hdr);

	return req->len > at && !req->byte[3] && req->byte[4] == 1 &&
	       be16toh(header((struct datagram *)req)->length) == req->len &&
	       read_op(req->byte, req->len, &at, o) && o->op.opcode == XKV_OP_SCAN &&
	       !o->op.flags && !o->value_len && o->op.keys > 1;
}

static void run_vector(const struct vector *v, struct vector_sums *sums)
{
	struct xkv_cmd cmds[64];
	struct datagram req;
	struct found o;
	size_t n;

	req.len = fill(req.byte, &v->request);
	n = commands_of(&req, cmds);
	if (n && refuses(&v->reply)) {
		run_refused(v, &req, cmds, n);
		sums->refused++;
	} else if (n) {
		run_whole(v, &req, cmds, n);
		sums->whole++;
	} else if (is_scan(&req, &o) && !refuses(&v->reply)) {
		run_scan(v, &req, &o);
		sums->scans++;
	}
	if (v->reply.byte[16] == XKV_OP_SCAN)
		return;
	if (v->reply.len == 16 || (refuses(&v->reply) && v->reply.byte[4] == 1)) {
		run_error(v, &req);
		sums->errors++;
	}
}

static void test_vectors(void **state)
{
	static struct vector v[VECTOR_REQUESTS];
	struct vector_sums sums = { 0 };
	struct vector_file f;
	unsigned int n;

	(void)state;
	vectors_open(&f);
	start(handle_vector);
	while ((n = vectors_read(&f, v)))
		for (unsigned int i = 0; i < n; i++)
			if (v[i].has_reply)
				run_vector(&v[i], &sums);
	stop();
	vectors_close(&f);
	print_message("vectors: %u built and understood, %u refused before sending, %u errors, "
		      "%u scans\n",
		      sums.whole, sums.refused, sums.errors, sums.scans);
	assert_true(sums.whole >= 110 && sums.refused >= 30 && sums.errors >= 40 &&
		    sums.scans >= 10);
}

/* ---- a network that is not kind --------------------------------------- */

static void handle_loss(struct fake *f, const struct datagram *req)
{
	if (atomic_load(&f->received) > 3) {
		/* The repeats are the same datagram, id included. */
		assert_int_equal(f->first.len, req->len);
		assert_memory_equal(f->first.byte, req->byte, req->len);
		answer(f, req);
	}
}

static void test_loss(void **state)
{
	struct xkv_reply r;
	struct xkv *h;

	(void)state;
	start(handle_loss);
	h = open_with(&eager);
	get_ok(h, "key", &r);
	assert_true(r.sent >= 4);
	xkv_close(h);
	stop();
}

static void handle_twice(struct fake *f, const struct datagram *req)
{
	/* First the reply to the request before this one, again; then this one's, twice. */
	send_bytes(f, &f->held);
	answer(f, req);
	send_bytes(f, &f->reply);
	f->held = f->reply;
}

static void test_duplicates(void **state)
{
	struct xkv_reply r;
	struct xkv *h;
	char key[16];

	(void)state;
	start(handle_twice);
	h = open_with(&patient);
	for (int i = 0; i < 200; i++) {
		snprintf(key, sizeof(key), "key%d", i);
		get_ok(h, key, &r);
		assert_int_equal(1, r.sent);
	}
	xkv_close(h);
	stop();
}

/* The first request is answered when the second has come, before that one's answer. */
static void handle_late(struct fake *f, const struct datagram *req)
{
	if (atomic_load(&f->received) == 1) {
		reply_to(&f->held, req, 255);
		return;
	}
	send_bytes(f, &f->held);
	answer(f, req);
}

static void test_late(void **state)
{
	struct xkv_options hasty = { .timeout_ms = 30, .retries = -1 };
	struct xkv_reply r;
	int err, tries = 0;
	struct xkv *h;

	(void)state;
	start(handle_late);
	h = open_with(&hasty);
	assert_int_equal(XKV_E_TIMEOUT, xkv_get(h, "first", 5, &r));
	assert_int_equal(1, r.sent);
	assert_int_equal(XKV_E_TIMEOUT, r.status);
	/* The answer takes no time now; more tries cover a machine that stalls. */
	do {
		err = xkv_get(h, "second", 6, &r);
	} while (err == XKV_E_TIMEOUT && ++tries < 300);
	assert_int_equal(0, err);
	assert_value(&r, "secondsecond");
	xkv_close(h);
	stop();
}

/* A perfect reply, but from another port. */
static void send_from_elsewhere(struct fake *f, const struct datagram *req)
{
	struct datagram d;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	reply_begin(&d, req);
	reply_result(&d, XKV_OP_GET, XKV_OK, "forged", 6);
	assert_int_equal(
		d.len, sendto(fd, d.byte, d.len, 0, (struct sockaddr *)&f->client, f->client_len));
	close(fd);
}

/* The reply with one field changed, and with another value, by which it is seen if it is believed.
 */
static void send_changed(struct fake *f, size_t at, uint8_t xor)
{
	struct datagram d = f->reply;

	d.byte[40] ^= 0x20;
	d.byte[at] ^= xor;
	send_bytes(f, &d);
}

/* The reply with bytes behind its results, and with one result more than was asked for. */
static void send_extended(struct fake *f)
{
	struct datagram d = f->reply;

	d.byte[40] ^= 0x20;
	d.len += 8;
	header(&d)->length = htobe16((uint16_t)d.len);
	send_bytes(f, &d);
	d = f->reply;
	d.byte[40] ^= 0x20;
	reply_result(&d, XKV_OP_GET, XKV_OK, "more", 4);
	send_bytes(f, &d);
}

static void handle_foreign(struct fake *f, const struct datagram *req)
{
	static const struct {
		size_t at;
		uint8_t xor ;
	} changes[] = {
		{ 0, 1 },
		{ 1, 1 },
		{ 2, 3 },
		{ 3, XKV_F_REPLY }, /* magic, version, flags */
		{ 3, 0x80 },
		{ 4, 1 },
		{ 4, 2 }, /* flags, count 0, count 3 */
		{ 6, 1 },
		{ 7, 1 },
		{ 7, 8 },
		{ 7, 16 }, /* length */
		{ 8, 1 },
		{ 15, 1 }, /* id */
		{ 16, 1 },
		{ 19, 1 },
		{ 18, XKV_HAS_VALUE }, /* opcode, zero, flags */
		{ 20, 0xff },
		{ 22, 1 },
		{ 23, 0x20 }, /* value_len */
		{ 17, XKV_PAD },
		{ 17, XKV_MISS }, /* these have no value */
	};
	struct datagram empty = { .len = 0 };

	send_from_elsewhere(f, req);
	send_bytes(f, &empty);
	reply_to(&f->reply, req, 255);
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
		send_changed(f, changes[i].at, changes[i].xor);
	send_extended(f);
	send_bytes(f, req); /* the request itself, as an echo service would */
	send_bytes(f, &f->reply);
}

static void test_foreign(void **state)
{
	struct xkv_reply r;
	struct xkv *h;
	char key[16];

	(void)state;
	start(handle_foreign);
	h = open_with(&patient);
	for (int i = 0; i < 50; i++) {
		snprintf(key, sizeof(key), "key%d", i);
		get_ok(h, key, &r);
		assert_int_equal(1, r.sent);
	}
	xkv_close(h);
	stop();
}

/* Every beginning of the reply, then the whole. */
static void handle_truncated(struct fake *f, const struct datagram *req)
{
	struct datagram d;

	reply_to(&f->reply, req, 255);
	for (d = f->reply, d.len = 0; d.len < f->reply.len; d.len++)
		send_bytes(f, &d);
	send_bytes(f, &f->reply);
}

static void test_truncated(void **state)
{
	struct xkv_reply r;
	struct xkv *h;

	(void)state;
	start(handle_truncated);
	h = open_with(&patient);
	get_ok(h, "somekey", &r);
	assert_int_equal(1, r.sent);
	xkv_close(h);
	stop();
}

/* Only broken replies come: that is another error than silence. */
static void handle_broken(struct fake *f, const struct datagram *req)
{
	reply_to(&f->reply, req, 255);
	send_changed(f, 20, 0xff);
}

static void test_broken(void **state)
{
	struct xkv_options hasty = { .timeout_ms = 500 };
	struct xkv *h;

	(void)state;
	start(handle_broken);
	h = open_with(&hasty);
	assert_int_equal(XKV_E_PROTOCOL, xkv_get(h, "key", 3, NULL));
	xkv_close(h);
	stop();
}

/* A few random changes of a good reply each; then the good one, so that no round has to wait. */
static void handle_fuzz(struct fake *f, const struct datagram *req)
{
	struct datagram d;

	reply_to(&f->reply, req, 255);
	for (int i = 0; i < 4; i++) {
		d = f->reply;
		for (unsigned int n = 0; n < 1 + f->value % 3; n++) {
			f->value = f->value * 6364136223846793005ULL + 1442695040888963407ULL;
			/* The id stays, else all of this would only be foreign. */
			if ((f->value >> 33) % d.len / 8 != 1)
				d.byte[(f->value >> 33) % d.len] = (uint8_t)(f->value >> 56);
		}
		if (f->value & 1)
			d.len = (f->value >> 40) % (d.len + 1);
		send_bytes(f, &d);
	}
	send_bytes(f, &f->reply);
}

/* What comes out is up to the changes; that nothing is read out of bounds is up to the sanitizers.
 */
static void test_fuzz(void **state)
{
	struct xkv_cmd cmds[4];
	unsigned int good = 0;
	struct xkv *h;
	size_t sum = 0;

	(void)state;
	start(handle_fuzz);
	h = open_with(&eager);
	for (int i = 0; i < 5000; i++) {
		for (int j = 0; j < 4; j++)
			cmds[j] = (struct xkv_cmd){ .command = XKV_CMD_GET,
						    .key = "abcdefgh",
						    .key_len = (size_t)(1 + (i + j) % 8) };
		if (xkv_batch(h, cmds, 4))
			continue;
		for (int j = 0; j < 4; j++)
			for (size_t k = 0; cmds[j].reply.value && k < cmds[j].reply.value_len; k++)
				sum += ((const uint8_t *)cmds[j].reply.value)[k];
		good++;
	}
	print_message("fuzz: %u of 5000 batches went through, sum %zu\n", good, sum);
	assert_true(good > 1000);
	xkv_close(h);
	stop();
}

/* ---- partial replies, padding, datagrams ------------------------------ */

/* Counts the operations in f->value, and answers some of them. */
static void handle_partial(struct fake *f, const struct datagram *req)
{
	reply_to(&f->reply, req, f->limit);
	f->value += header(&f->reply)->count;
	send_bytes(f, &f->reply);
}

static void run_partial(unsigned int limit, unsigned int want)
{
	enum { N = 600 };
	static struct xkv_cmd cmds[N];
	static char keys[N][128];
	struct xkv *h = open_with(&patient);

	server.limit = limit;
	server.value = 0;
	atomic_store(&server.received, 0);
	for (int i = 0; i < N; i++) {
		/* Values of 210 bytes, more than a chunk of the library holds in all. */
		snprintf(keys[i], sizeof(keys[i]), "%0105d", i);
		cmds[i] =
			(struct xkv_cmd){ .command = XKV_CMD_GET, .key = keys[i], .key_len = 105 };
	}
	assert_int_equal(0, xkv_batch(h, cmds, N));
	for (int i = 0; i < N; i++) {
		assert_int_equal(0, cmds[i].reply.status);
		assert_int_equal(1, cmds[i].reply.sent);
		assert_int_equal(210, cmds[i].reply.value_len);
		assert_memory_equal(keys[i], cmds[i].reply.value, 105);
		assert_memory_equal(keys[i], (const char *)cmds[i].reply.value + 105, 105);
	}
	assert_int_equal(N, server.value); /* each was done once */
	assert_int_equal(want, atomic_load(&server.received));
	xkv_close(h);
}

static void test_partial(void **state)
{
	(void)state;
	start(handle_partial);
	run_partial(1, 600);
	run_partial(4, 150);
	run_partial(255, 100); /* six values of 240 bytes fit a reply */
	stop();
}

/* Each datagram as full as it can be, and none longer than the path allows. */
static void handle_full(struct fake *f, const struct datagram *req)
{
	if (req->len > f->limit)
		f->value++;
	answer(f, req);
}

static void test_datagrams(void **state)
{
	static struct xkv_cmd cmds[600];
	struct xkv *h;

	(void)state;
	start(handle_full);
	h = open_with(&patient);
	server.limit = 1472;
	for (int i = 0; i < 600; i++)
		cmds[i] = (struct xkv_cmd){ .command = XKV_CMD_PING };
	assert_int_equal(0, xkv_batch(h, cmds, 600));
	assert_int_equal(10, atomic_load(&server.received)); /* (1472 - 16) / 24 = 60 */
	xkv_close(h);

	h = open_with(&(struct xkv_options){ .timeout_ms = 20000, .payload_max = 600 });
	server.limit = 600;
	assert_int_equal(0, xkv_batch(h, cmds, 600));
	assert_int_equal(0, server.value);
	assert_int_equal(10 + 25, atomic_load(&server.received));
	assert_int_equal(0, xkv_batch(h, cmds, 0));
	xkv_close(h);
	stop();
}

/* xkvd's rule for sources that nobody allowed: at most three times the request. */
static void handle_pad(struct fake *f, const struct datagram *req)
{
	unsigned int n = 255;

	do
		reply_to(&f->reply, req, n);
	while (f->reply.len > 3 * req->len && n && (n = header(&f->reply)->count - 1));
	if (!n) {
		size_t want = XKV_PADDED((f->reply.len + 2) / 3);

		reply_begin(&f->reply, req);
		reply_result(&f->reply, XKV_OP_GET, XKV_PAD, NULL, want);
	}
	send_bytes(f, &f->reply);
}

static void test_pad(void **state)
{
	struct xkv_cmd cmds[20];
	struct xkv_reply r;
	struct xkv *h;
	char key[122];

	(void)state;
	memset(key, 'k', sizeof(key));
	key[121] = 0;
	start(handle_pad);
	h = open_with(&patient);
	get_ok(h, "short", &r);
	assert_int_equal(1, atomic_load(&server.received));
	server.limit = 0;
	get_ok(h, key, &r); /* 16 + 24 + 248 = 288 <= 3 * 168: fits */
	assert_int_equal(2, atomic_load(&server.received));
	for (int i = 0; i < 20; i++)
		cmds[i] = (struct xkv_cmd){ .command = XKV_CMD_GET, .key = key, .key_len = 121 };
	assert_int_equal(0, xkv_batch(h, cmds, 20));
	for (int i = 0; i < 20; i++)
		assert_int_equal(242, cmds[i].reply.value_len);
	xkv_close(h);
	stop();
}

/* GETs that need `value` bytes of request, whatever they ask for. */
static void handle_want(struct fake *f, const struct datagram *req)
{
	char value[400] = "v";

	reply_begin(&f->reply, req);
	if (req->byte[ops_at(req->byte)] != XKV_OP_GET)
		reply_result(&f->reply, req->byte[ops_at(req->byte)], XKV_OK, NULL, 0);
	else if (req->len < f->value)
		reply_result(&f->reply, XKV_OP_GET, XKV_PAD, NULL, f->value);
	else
		reply_result(&f->reply, XKV_OP_GET, XKV_OK, value, sizeof(value));
	send_bytes(f, &f->reply);
}

static void test_pad_remembered(void **state)
{
	static char ones[1000];
	struct xkv_reply r;
	struct xkv *h;

	(void)state;
	memset(ones, 0xff, sizeof(ones));
	start(handle_want);
	server.value = 152;
	h = open_with(&patient);
	/* Padding is zeros, whatever the datagram before held there. */
	assert_int_equal(0, xkv_set(h, "k", 1, ones, sizeof(ones), 0, 0, &r));
	atomic_store(&server.received, 0);
	assert_int_equal(0, xkv_get(h, "k", 1, &r));
	assert_int_equal(400, r.value_len);
	assert_int_equal(2, atomic_load(&server.received));
	assert_int_equal(152, server.last.len);
	assert_true(zeros(server.last.byte + 48, 152 - 48));
	assert_int_equal(0, xkv_get(h, "k", 1, &r));
	assert_int_equal(3, atomic_load(&server.received));
	server.value = 360; /* it wants more now */
	assert_int_equal(0, xkv_get(h, "k", 1, &r));
	assert_int_equal(5, atomic_load(&server.received));
	server.value = 1480; /* more than there can be */
	assert_int_equal(XKV_E_PAD, xkv_get(h, "k", 1, &r));
	xkv_close(h);
	stop();
}

/* A server that wants what it has got: the client must not ask for ever. */
static void handle_want_less(struct fake *f, const struct datagram *req)
{
	reply_begin(&f->reply, req);
	reply_result(&f->reply, XKV_OP_GET, XKV_PAD, NULL, req->len);
	send_bytes(f, &f->reply);
}

static void test_pad_endless(void **state)
{
	struct xkv *h;

	(void)state;
	start(handle_want_less);
	h = open_with(&patient);
	assert_int_equal(XKV_E_PROTOCOL, xkv_get(h, "k", 1, NULL));
	assert_int_equal(1, atomic_load(&server.received));
	xkv_close(h);
	stop();
}

/* PAD where there is no value, and PAD that is not the last result: both break the protocol. */
static void handle_pad_nonsense(struct fake *f, const struct datagram *req)
{
	unsigned int opcode = req->byte[16];

	reply_begin(&f->reply, req);
	reply_result(&f->reply, opcode, XKV_PAD, NULL, req->len + 8);
	if (opcode == XKV_OP_GET)
		reply_result(&f->reply, opcode, XKV_OK, "v", 1);
	send_bytes(f, &f->reply);
}

static void test_pad_nonsense(void **state)
{
	struct xkv_cmd get = { .command = XKV_CMD_GET, .key = "k", .key_len = 1 };
	struct xkv_cmd gets[2] = { get, get };
	struct xkv_options hasty = { .timeout_ms = 500 };
	struct xkv *h;

	(void)state;
	start(handle_pad_nonsense);
	h = open_with(&hasty);
	assert_int_equal(XKV_E_PROTOCOL, xkv_ping(h));
	assert_int_equal(XKV_E_PROTOCOL, xkv_batch(h, gets, 2));
	xkv_close(h);
	stop();
}

/* ---- done only once --------------------------------------------------- */

/* What identifies the last changes that the server has seen: it keeps no more than that. */
#define CHANGES 64

struct once {
	uint64_t session[CHANGES], id[CHANGES];
	unsigned int seen;
	unsigned int status; /* of a header that refuses, for this many more requests: */
	unsigned int refusals;
};

static struct once once;

/* Notes the change; it has to be one that can be recognised. */
static void note_change(const struct datagram *req)
{
	unsigned int i = once.seen++;

	assert_true(i < CHANGES);
	assert_true(req->byte[3] & XKV_F_ONCE);
	assert_int_equal(1, req->byte[4]);
	memcpy(&once.session[i], req->byte + session_at(req->byte), sizeof(once.session[i]));
	memcpy(&once.id[i], req->byte + 8, sizeof(once.id[i]));
	once.id[i] = be64toh(once.id[i]);
	assert_int_equal(0, once.id[i] % 8);
	assert_true(once.session[i]);
}

static void refuse(struct fake *f, const struct datagram *req, unsigned int status)
{
	reply_begin(&f->reply, req);
	header(&f->reply)->status = (uint8_t)status;
	send_bytes(f, &f->reply);
}

/* Refuses as many requests as `once` says, then answers. */
static void handle_refusals(struct fake *f, const struct datagram *req)
{
	if (req->byte[3] & XKV_F_ONCE)
		note_change(req);
	if (once.refusals && once.refusals--)
		refuse(f, req, once.status);
	else
		answer(f, req);
}

static struct xkv *open_once(handler_fn *handler, const struct xkv_options *opts,
			     unsigned int status, unsigned int refusals)
{
	once = (struct once){ .status = status, .refusals = refusals };
	start(handler);
	return open_with(opts);
}

static void close_once(struct xkv *h)
{
	xkv_close(h);
	stop();
}

/* How many copies of the last change have come. */
static unsigned int copies_seen(void)
{
	unsigned int n = 0;

	while (n < once.seen && once.id[once.seen - n - 1] == once.id[once.seen - 1])
		n++;
	return n;
}

/* Only from the third copy on a change is answered. */
static void handle_third(struct fake *f, const struct datagram *req)
{
	note_change(req);
	if (copies_seen() >= 3)
		answer(f, req);
}

/*
 * Copies of a change are the same datagram, and changes follow each other in one slot.  A machine
 * that stalls makes more copies.
 */
static void test_once(void **state)
{
	struct xkv *h = open_once(handle_third, &eager, 0, 0), *other = open_with(&eager);
	unsigned int first[4] = { 0 }, changes = 0;
	struct xkv_reply r;

	(void)state;
	assert_int_equal(0, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_true(r.sent >= 3);
	assert_int_equal(0, xkv_incr(h, "k", 1, -5, 0, &r));
	assert_int_equal(-5, r.number);
	assert_int_equal(0, xkv_persist(h, "k", 1));
	assert_int_equal(0, xkv_getdel(other, "k", 1, &r));
	xkv_close(other);
	close_once(h);
	for (unsigned int i = 0; i < once.seen; i++) {
		if (i && once.id[i] == once.id[i - 1]) {
			assert_true(once.session[i] == once.session[i - 1]);
			continue;
		}
		assert_true(changes < 4);
		first[changes++] = i;
	}
	assert_int_equal(4, changes);
	for (unsigned int i = 1; i < 4; i++) {
		assert_true(first[i] - first[i - 1] >= 3);
		assert_true((once.session[first[i]] == once.session[0]) == (i < 3));
	}
	assert_int_equal(once.id[first[1]], once.id[0] + 8);
	assert_int_equal(once.id[first[2]], once.id[first[1]] + 8);
}

/* A server that does not know the flag: from then on without it, and with its room. */
static void handle_old(struct fake *f, const struct datagram *req)
{
	f->value++;
	if (req->byte[3] & XKV_F_ONCE)
		refuse(f, req, XKV_BAD_REQUEST);
	else
		answer(f, req);
}

static void test_once_old_server(void **state)
{
	struct xkv *h = open_once(handle_old, &patient, 0, 0);
	struct xkv_cmd sets[3];
	struct xkv_reply r;

	(void)state;
	get_ok(h, "key", &r); /* reads do not tell */
	assert_int_equal(1416, xkv_value_max(h, 1));
	assert_int_equal(0, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_int_equal(1, r.sent);
	assert_int_equal(3, server.value);
	assert_int_equal(1424, xkv_value_max(h, 1));
	assert_int_equal(0, xkv_delete(h, "k", 1, 0, &r));
	assert_int_equal(4, server.value);
	for (int i = 0; i < 3; i++)
		sets[i] = (struct xkv_cmd){ .command = XKV_CMD_SET, .key = "k", .key_len = 1 };
	assert_int_equal(0, xkv_batch(h, sets, 3)); /* in one datagram */
	assert_int_equal(5, server.value);
	close_once(h);
}

static void test_once_off(void **state)
{
	struct xkv_options opts = patient;
	struct xkv *h;

	(void)state;
	start(answer);
	opts.once = 1;
	assert_null(xkv_open("127.0.0.1", server.port, &opts, NULL));
	opts.once = -1;
	h = open_with(&opts);
	assert_int_equal(1424, xkv_value_max(h, 1));
	assert_int_equal(0, xkv_append(h, "k", 1, "v", 1, 0, NULL));
	assert_int_equal(0, server.last.byte[3]);
	close_once(h);
}

/* Notes which commands came together. */
static char datagrams[64];

static void handle_note(struct fake *f, const struct datagram *req)
{
	size_t at = ops_at(req->byte), end = be16toh(header((struct datagram *)req)->length);
	struct found o;

	while (read_op(req->byte, end, &at, &o))
		snprintf(datagrams + strlen(datagrams), sizeof(datagrams) - strlen(datagrams),
			 "%u", o.op.opcode);
	strcat(datagrams, req->byte[3] & XKV_F_ONCE ? "! " : " ");
	answer(f, req);
}

/* In a batch, reads share datagrams and changes do not. */
static void test_once_batch(void **state)
{
	static const int commands[] = { 2, 8, 3, 2, 2, 6, 5, 1, 9 };
	struct xkv_cmd cmds[9];
	struct xkv_options opts = patient;
	struct xkv *h;

	(void)state;
	for (int i = 0; i < 9; i++)
		cmds[i] = (struct xkv_cmd){ .command = (enum xkv_command)commands[i],
					    .key = "k",
					    .key_len = commands[i] != XKV_CMD_PING };
	start(handle_note);
	h = open_with(&opts);
	assert_int_equal(0, xkv_batch(h, cmds, 9));
	assert_string_equal("28 3! 22 6! 5! 19 ", datagrams);
	xkv_close(h);
	*datagrams = 0;
	opts.once = -1;
	h = open_with(&opts);
	assert_int_equal(0, xkv_batch(h, cmds, 9));
	assert_string_equal("283226519 ", datagrams);
	close_once(h);
}

/* No room for this session: others may have some. */
static void test_no_session(void **state)
{
	struct xkv *h = open_once(handle_refusals, &patient, XKV_NO_SESSION, 7);
	struct xkv_reply r;

	(void)state;
	assert_int_equal(0, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_int_equal(1, r.sent);
	assert_int_equal(8, once.seen);
	for (int i = 1; i < 8; i++) {
		assert_true(once.session[i] != once.session[i - 1]);
		assert_true(once.id[i] > once.id[i - 1]);
	}
	assert_int_equal(0, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_true(once.session[8] == once.session[7]); /* that one is good */
	close_once(h);
}

static unsigned int asked; /* for sessions */

/* The third copy of what asks for a session is answered. */
static void prove_third(struct fake *f, const struct datagram *req)
{
	if (++asked % 3 == 0)
		give_session(f, req);
}

/* Before its first change a client has its session proven, and again when there is no room. */
static void test_session(void **state)
{
	struct xkv *h = open_once(handle_refusals, &eager, XKV_NO_SESSION, 0);
	struct xkv_reply r;

	(void)state;
	asked = 0;
	server.prove = prove_third;
	assert_int_equal(0, xkv_get(h, "k", 1, &r));
	assert_int_equal(0, asked); /* reads need none */
	for (int i = 0; i < 3; i++)
		assert_int_equal(0, xkv_incr(h, "k", 1, 1, 0, &r));
	assert_int_equal(3, asked);
	assert_int_equal(3, once.seen);
	for (int i = 0; i < 3; i++) {
		assert_true(once.session[i] == once.session[0]);
		assert_memory_equal((char *)&once.session[i] + 5, "yes", 3);
	}
	once.refusals = 1;
	assert_int_equal(0, xkv_incr(h, "k", 1, 1, 0, &r));
	assert_int_equal(6, asked);
	assert_true(once.session[4] != once.session[0]);
	assert_memory_equal((char *)&once.session[4] + 5, "yes", 3);
	close_once(h);
}

/* What a server answers that knows nothing of proofs, or of less. */
static void refuse_session(struct fake *f, const struct datagram *req)
{
	asked++;
	if (f->limit) {
		refuse(f, req, f->limit);
		return;
	}
	reply_begin(&f->reply, req);
	reply_result(&f->reply, XKV_OP_SESSION, XKV_BAD_OPCODE, NULL, 0);
	send_bytes(f, &f->reply);
}

/* Then a client has the session that it has drawn, if any. */
static void test_session_of_old_server(void **state)
{
	static const struct {
		unsigned int status, seen;
		int err;
	} cases[] = { { 0, 2, 0 },
		      { XKV_NO_SESSION, 2, 0 },
		      { XKV_BAD_REQUEST, 0, 0 },
		      { XKV_NOAUTH, 0, XKV_E_NOAUTH } };
	struct xkv_reply r;
	struct xkv *h;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		h = open_once(handle_refusals, &eager, 0, 0);
		asked = 0;
		server.limit = cases[i].status;
		server.prove = refuse_session;
		assert_int_equal(cases[i].err, xkv_incr(h, "k", 1, 1, 0, &r));
		assert_int_equal(cases[i].err, r.status);
		assert_true(!r.sent == !!cases[i].err);
		assert_int_equal(cases[i].err, xkv_incr(h, "k", 1, 1, 0, &r));
		assert_int_equal(cases[i].seen, once.seen);
		if (once.seen)
			assert_true(once.session[0] == once.session[1]);
		assert_int_equal(cases[i].err ? 2 : 1, asked);
		close_once(h);
	}
}

static void prove_nothing(struct fake *f, const struct datagram *req)
{
	(void)f;
	(void)req;
	asked++;
}

/* Without an answer nothing was done, and the caller can see that. */
static void test_session_timeout(void **state)
{
	const struct xkv_options opts = { .timeout_ms = 30, .retry_ms = 5 };
	struct xkv *h = open_once(handle_refusals, &opts, 0, 0);
	struct xkv_reply r;

	(void)state;
	asked = 0;
	server.prove = prove_nothing;
	assert_int_equal(XKV_E_TIMEOUT, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_int_equal(XKV_E_TIMEOUT, r.status);
	assert_int_equal(0, r.sent);
	assert_int_equal(0, once.seen);
	assert_true(asked >= 1);
	close_once(h);
}

/* No room for anybody: an error, unless a copy of the change would do no harm. */
static void test_no_session_left(void **state)
{
	struct xkv *h = open_once(handle_refusals, &patient, XKV_NO_SESSION, 1000);
	struct xkv_reply r;

	(void)state;
	assert_int_equal(XKV_E_NO_SESSION, xkv_incr(h, "k", 1, 1, 0, &r));
	assert_int_equal(XKV_E_NO_SESSION, r.status);
	assert_int_equal(8, once.seen);
	once.refusals = 8;
	once.seen = 0;
	assert_int_equal(0, xkv_cas(h, "k", 1, "v", 1, 0, 5, 0, &r));
	assert_int_equal(8, once.seen); /* the ninth was without a session */
	assert_int_equal(0, server.last.byte[3]);
	once.refusals = 0;
	assert_int_equal(0, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_int_equal(9, once.seen);
	close_once(h);
}

static void handle_second_refused(struct fake *f, const struct datagram *req)
{
	note_change(req);
	if (once.seen > 1)
		refuse(f, req, XKV_NO_SESSION);
}

/* The first copy may yet find room, and be done: nothing else must be sent in its place. */
static void test_no_session_late(void **state)
{
	struct xkv *h = open_once(handle_second_refused, &eager, 0, 0);
	struct xkv_reply r;

	(void)state;
	assert_int_equal(XKV_E_NO_SESSION, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_true(r.sent > 1);
	for (unsigned int i = 1; i < once.seen; i++) {
		assert_true(once.session[i] == once.session[0]);
		assert_true(once.id[i] == once.id[0]);
	}
	close_once(h);
}

/* Done before, and what it returned is lost: an error for that command, and the others go on. */
static void test_repeated(void **state)
{
	struct xkv *h = open_once(handle_refusals, &patient, XKV_REPEATED, 1);
	struct xkv_cmd cmds[2] = {
		{ .command = XKV_CMD_DELETE, .flags = XKV_RETURN, .key = "k", .key_len = 1 },
		{ .command = XKV_CMD_GET, .key = "k", .key_len = 1 },
	};
	struct xkv_reply r;

	(void)state;
	assert_int_equal(0, xkv_batch(h, cmds, 2));
	assert_int_equal(XKV_E_REPEATED, cmds[0].reply.status);
	assert_null(cmds[0].reply.value);
	assert_int_equal(0, cmds[1].reply.status);
	once.refusals = 1;
	assert_int_equal(XKV_E_REPEATED, xkv_getdel(h, "k", 1, &r));
	/* nobody can have done a read before */
	once.refusals = 1;
	assert_int_equal(XKV_E_REPEATED, xkv_get(h, "k", 1, &r));
	assert_int_equal(XKV_E_REPEATED, r.status);
	close_once(h);
}

/* BUSY as often as once.refusals says. */
static void handle_busy(struct fake *f, const struct datagram *req)
{
	unsigned int opcode = req->byte[ops_at(req->byte)];

	if (req->byte[3] & XKV_F_ONCE)
		note_change(req);
	if (!once.refusals || !once.refusals--) {
		answer(f, req);
		return;
	}
	reply_begin(&f->reply, req);
	reply_result(&f->reply, opcode, XKV_BUSY, NULL, 0);
	send_bytes(f, &f->reply);
}

/* That answer is the last for its id: the next try is a new request. */
static void test_busy(void **state)
{
	struct xkv_options hasty = { .timeout_ms = 100 };
	struct xkv *h = open_once(handle_busy, &patient, 0, 4);
	struct xkv_reply r;
	int err, tries = 0;

	(void)state;
	assert_int_equal(0, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_int_equal(1, r.sent);
	assert_int_equal(5, once.seen);
	for (int i = 1; i < 5; i++)
		assert_int_equal(once.id[i], once.id[i - 1] + 8);
	once.refusals = 3;
	get_ok(h, "key", &r);
	xkv_close(h);
	h = open_with(&hasty);
	once.refusals = UINT32_MAX;
	do { /* a machine that stalls lets the last answer come too late */
		once.seen = 0;
		err = xkv_set(h, "k", 1, "v", 1, 0, 0, &r);
	} while ((err == XKV_E_TIMEOUT || once.seen < 2) && ++tries < 100);
	assert_int_equal(XKV_E_BUSY, err);
	assert_in_range(once.seen, 2, 10); /* 1 + 2 + 4 + ... ms */
	close_once(h);
}

/* ---- numbers and scans ------------------------------------------------ */

/* Numbers that are none: without a value, of 7 bytes, with an error. */
static void handle_no_number(struct fake *f, const struct datagram *req)
{
	unsigned int opcode = req->byte[ops_at(req->byte)];

	for (int i = 0; i < 4; i++) {
		reply_begin(&f->reply, req);
		reply_result(&f->reply, opcode, i == 2 ? XKV_NOT_STORED : XKV_OK,
			     i ? "1234567" : NULL, i == 1 ? 7 : i ? 8 : 0);
		if (i < 3 || f->limit)
			send_bytes(f, &f->reply);
	}
}

static void test_no_number(void **state)
{
	struct xkv_options hasty = { .timeout_ms = 300 };
	struct xkv_reply r;
	struct xkv *h;

	(void)state;
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

	(void)state;
	assert_int_equal(5, scan(h, "k%lu", 1, 5, 0));
	assert_int_equal(1, atomic_load(&server.received));
	assert_int_equal(4, scan(h, "k%02lu", 8, 4, 0)); /* 08, 09, 10, 11 */
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

	(void)state;
	assert_int_equal(100, scan(h, "k%03lu", 0, 100, 0));
	assert_int_equal(4, atomic_load(&server.received)); /* 4, then 45 each */
	assert_int_equal(1472, server.last.len);
	assert_int_equal(90, scan(h, "k%03lu", 0, 90, 0));
	assert_int_equal(2, atomic_load(&server.received));
	close_once(h);
}

/* ---- nobody answers --------------------------------------------------- */

static void handle_silent(struct fake *f, const struct datagram *req)
{
	/* Noise must not keep a client waiting either. */
	for (int i = 0; i < 200; i++)
		send_bytes(f, req);
}

static void test_silent(void **state)
{
	struct xkv_options opts = { .timeout_ms = 1000, .retry_ms = 20, .retries = 3 };
	struct xkv_reply r;
	struct xkv *h;
	uint64_t began;

	(void)state;
	start(handle_silent);
	h = open_with(&opts);
	began = now_ms();
	assert_int_equal(XKV_E_TIMEOUT, xkv_get(h, "key", 3, &r));
	assert_in_range(now_ms() - began, 990, 8000);
	assert_int_equal(4, r.sent);
	assert_int_equal(4, atomic_load(&server.received));
	xkv_close(h);
	stop();
}

static void handle_nothing(struct fake *f, const struct datagram *req)
{
	(void)f;
	(void)req;
}

/* The first wait of a handle, and less than a millisecond: its socket has no limit yet. */
static void test_silent_shortly(void **state)
{
	struct xkv_options opts = { .timeout_ms = 1, .retries = -1 };
	struct xkv_reply r;
	struct xkv *h;

	(void)state;
	start(handle_nothing);
	h = open_with(&opts);
	alarm(20); /* it would wait for ever */
	assert_int_equal(XKV_E_TIMEOUT, xkv_get(h, "key", 3, &r));
	alarm(0);
	xkv_close(h);
	stop();
}

static pthread_t stopped;
static atomic_bool asleep, woken;

/* The client is kept from running, until more than its time is over. */
static void sleep_on(int signal)
{
	struct timespec ts = { 0, 1000000 };

	(void)signal;
	atomic_store(&asleep, true);
	while (!atomic_load(&woken))
		nanosleep(&ts, NULL);
}

/* Answers a client that does not run: with what others sent, and then its reply. */
static void handle_stopped(struct fake *f, const struct datagram *req)
{
	struct timespec ts = { 0, 1000000 }, over = { 0, 300000000 };

	nanosleep(&over, NULL); /* it waits by now */
	pthread_kill(stopped, SIGUSR1);
	while (!atomic_load(&asleep))
		nanosleep(&ts, NULL);
	for (int i = 0; i < 10; i++)
		send_bytes(f, req);
	answer(f, req);
	for (int i = 0; i < 4; i++)
		nanosleep(&over, NULL);
	atomic_store(&woken, true);
}

/* A client that is stopped while it waits, as by a debugger, and runs again when its time is up. */
static void test_stopped(void **state)
{
	struct xkv_options opts = { .timeout_ms = 1000, .retries = -1 };
	struct sigaction action = { .sa_handler = sleep_on }, old;
	struct xkv_reply r;
	struct xkv *h;

	(void)state;
	stopped = pthread_self();
	assert_int_equal(0, sigaction(SIGUSR1, &action, &old));
	start(handle_stopped);
	h = open_with(&opts);
	get_ok(h, "key", &r);
	assert_int_equal(1, r.sent);
	xkv_close(h);
	stop();
	assert_int_equal(0, sigaction(SIGUSR1, &old, NULL));
}

static void test_refused(void **state)
{
	struct xkv_options opts = { .timeout_ms = 20000, .retry_ms = 10, .retries = 4 };
	struct xkv_reply r;
	struct xkv *h;
	uint64_t began;

	(void)state;
	start(answer);
	h = open_with(&opts);
	get_ok(h, "key", &r);
	stop();
	began = now_ms();
	assert_int_equal(XKV_E_REFUSED, xkv_get(h, "key", 3, &r));
	assert_in_range(now_ms() - began, 100, 10000); /* 10 + 15 + 30 + 60 at least */
	assert_int_equal(5, r.sent);
	/* The handle outlives a restart of its server. */
	start_at(answer, AF_INET, server.port);
	get_ok(h, "key", &r);
	xkv_close(h);
	stop();
}

/* ---- addresses, arguments, tokens, threads ---------------------------- */

static void test_ipv6(void **state)
{
	struct xkv_reply r;
	struct xkv *h;

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
	start(answer);
	for (int i = 0; i < 4; i++)
		assert_int_equal(0, pthread_create(&threads[i], NULL, hammer, name[i]));
	for (int i = 0; i < 4; i++) {
		assert_int_equal(0, pthread_join(threads[i], &bad));
		assert_null(bad);
	}
	stop();
}

static void test_strerror(void **state)
{
	(void)state;
	assert_string_equal("success", xkv_strerror(0));
	for (int e = XKV_E_READ_ONLY; e <= XKV_E_MISS; e++)
		assert_string_not_equal("unknown error", xkv_strerror(e));
	for (int e = XKV_E_SYSTEM; e <= XKV_E_TIMEOUT; e++)
		assert_string_not_equal("unknown error", xkv_strerror(e));
	assert_string_equal("unknown error", xkv_strerror(-1000));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors),     cmocka_unit_test(test_loss),
		cmocka_unit_test(test_duplicates),  cmocka_unit_test(test_late),
		cmocka_unit_test(test_foreign),     cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_broken),      cmocka_unit_test(test_fuzz),
		cmocka_unit_test(test_partial),     cmocka_unit_test(test_datagrams),
		cmocka_unit_test(test_pad),         cmocka_unit_test(test_pad_remembered),
		cmocka_unit_test(test_pad_endless), cmocka_unit_test(test_pad_nonsense),
		cmocka_unit_test(test_session),     cmocka_unit_test(test_session_of_old_server),
		cmocka_unit_test(test_session_timeout),
		cmocka_unit_test(test_once),        cmocka_unit_test(test_once_old_server),
		cmocka_unit_test(test_once_off),    cmocka_unit_test(test_once_batch),
		cmocka_unit_test(test_no_session),  cmocka_unit_test(test_no_session_left),
		cmocka_unit_test(test_no_session_late),
		cmocka_unit_test(test_repeated),    cmocka_unit_test(test_busy),
		cmocka_unit_test(test_no_number),   cmocka_unit_test(test_scan),
		cmocka_unit_test(test_scan_padded),
		cmocka_unit_test(test_silent),      cmocka_unit_test(test_silent_shortly),
		cmocka_unit_test(test_stopped),     cmocka_unit_test(test_refused),
		cmocka_unit_test(test_ipv6),        cmocka_unit_test(test_name),
		cmocka_unit_test(test_open_errors), cmocka_unit_test(test_arguments),
		cmocka_unit_test(test_token),       cmocka_unit_test(test_threads),
		cmocka_unit_test(test_strerror),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

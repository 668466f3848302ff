// SPDX-License-Identifier: BSD-2-Clause
/* The front ends of the stress test: see stress_frontends.h. */
#include "stress_frontends.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#define ANSWER_MS    1000
#define SETTLE_MS    50
#define RESP_SECONDS 20
/* As long as any reply: for requests of several operations, which end where there is no room. */
#define LONG 1448

struct frontend {
	char host[64];
	uint16_t port;
	bool is_udp;
	size_t pad; /* bytes that a request for one value should have */
	/* UDP */
	int fd;
	size_t payload;
	uint64_t id;
	_Alignas(8) char out[2048], in[2048];
	/* RESP */
	redisContext *redis;
	redisReply *reply[WISHES_MAX];
};

const char *frontend_name(const struct frontend *d)
{
	return d->is_udp ? "UDP" : "RESP";
}

bool frontend_is_udp(const struct frontend *d)
{
	return d->is_udp;
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ULL + t.tv_nsec / 1000000;
}

static struct frontend *frontend_new(const char *host, uint16_t port, bool is_udp)
{
	struct frontend *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	snprintf(d->host, sizeof(d->host), "%s", host);
	d->port = port;
	d->is_udp = is_udp;
	d->fd = -1;
	return d;
}

/* ---- UDP ----------------------------------------------------------------- */

struct frontend *frontend_open_udp(const char *host, uint16_t port)
{
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(port) };
	bool is_six = strchr(host, ':');
	struct frontend *d = frontend_new(host, port, true);
	int ret;

	if (!d)
		return NULL;
	d->payload = is_six ? XKV_PAYLOAD_MAX6 : XKV_PAYLOAD_MAX4;
	d->fd = socket(is_six ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (is_six)
		ret = inet_pton(AF_INET6, host, &six.sin6_addr) == 1
			      ? connect(d->fd, (struct sockaddr *)&six, sizeof(six))
			      : -1;
	else
		ret = inet_pton(AF_INET, host, &four.sin_addr) == 1
			      ? connect(d->fd, (struct sockaddr *)&four, sizeof(four))
			      : -1;
	if (d->fd >= 0 && !ret) {
		d->id = (uint64_t)d->fd << 48 ^ now_ms() << 20;
		return d;
	}
	ret = errno;
	frontend_close(d);
	errno = ret;
	return NULL;
}

static size_t put_op(char *to, const struct wish *w)
{
	struct xkv_op op = {
		.opcode = w->op,
		.flags = w->flags,
		.key_len = w->key_len,
		.value_len = htonl(w->op == XKV_OP_SET ? w->value_len : 0),
		.ttl = htobe64(w->ttl_ms),
		.version = htobe64(w->version),
	};
	size_t key = XKV_PADDED(w->key_len), value = XKV_PADDED(ntohl(op.value_len));

	memset(to, 0, sizeof(op) + key + value);
	memcpy(to, &op, sizeof(op));
	memcpy(to + sizeof(op), w->key, w->key_len);
	if (value)
		memcpy(to + sizeof(op) + key, w->value, w->value_len);
	return sizeof(op) + key + value;
}

/* Sends the datagram in `out`.  An error that an earlier one has left behind comes up here. */
static bool send_out(struct frontend *d, size_t len)
{
	for (int i = 0; i < 3; i++)
		if (send(d->fd, d->out, len, 0) == (ssize_t)len)
			return true;
		else if (errno != ECONNREFUSED && errno != ENOBUFS)
			break;
	return false;
}

/*
 * Waits for the answer to one of the requests since the one with this number: its length, -1 if
 * none came.
 */
static ssize_t wait_answer_since(struct frontend *d, uint64_t first, int ms)
{
	const struct xkv_hdr *in = (struct xkv_hdr *)d->in;
	struct pollfd p = { .fd = d->fd, .events = POLLIN };
	uint64_t end = now_ms() + ms, now;
	ssize_t len;

	for (;;) {
		len = recv(d->fd, d->in, sizeof(d->in), MSG_DONTWAIT);
		if (len >= (ssize_t)sizeof(*in) && be64toh(in->id) - first <= d->id - first &&
		    in->magic == htons(XKV_MAGIC) && (in->flags & XKV_F_REPLY))
			return len;
		if (len >= 0)
			continue; /* late */
		if (errno != EAGAIN && errno != EINTR)
			return -1; /* refused: nobody listens on the port just now */
		now = now_ms();
		if (now >= end)
			return -1;
		poll(&p, 1, (int)(end - now));
	}
}

/* The same for the request in `out`. */
static ssize_t wait_answer(struct frontend *d, int ms)
{
	return wait_answer_since(d, d->id, ms);
}

/* Makes the request for some operations in `out`, of at least `pad` bytes: its length. */
static size_t udp_request(struct frontend *d, const struct wish *w, int n, size_t pad)
{
	struct xkv_hdr *hdr = (struct xkv_hdr *)d->out;
	size_t len = sizeof(*hdr);
	int i;

	for (i = 0; i < n; i++) {
		if (i && len + sizeof(struct xkv_op) + XKV_PADDED(w[i].key_len) +
					 XKV_PADDED(w[i].value_len) >
				 d->payload)
			break;
		len += put_op(d->out + len, &w[i]);
	}
	*hdr = (struct xkv_hdr){
		.magic = htons(XKV_MAGIC),
		.version = XKV_VERSION,
		.count = i,
		.length = htons(len),
		.id = htobe64(++d->id),
	};
	if (len >= pad)
		return len;
	memset(d->out + len, 0, pad - len);
	return pad;
}

/*
 * Bytes that the only result of an answer wants the request to have, 0 if it is not of that kind.
 */
static size_t padding_asked(const struct frontend *d, ssize_t got)
{
	const struct xkv_hdr *hdr = (const struct xkv_hdr *)d->in;
	const struct xkv_result *r = (const struct xkv_result *)(hdr + 1);

	if (got < (ssize_t)(sizeof(*hdr) + sizeof(*r)) || hdr->count != 1 || r->status != XKV_PAD)
		return 0;
	return ntohl(r->value_len) <= LONG ? ntohl(r->value_len) : 0;
}

static int udp_ask(struct frontend *d, const struct wish *w, int n, struct result *r)
{
	const struct xkv_hdr *hdr = (struct xkv_hdr *)d->in;
	size_t len = udp_request(d, w, n, n == 1 ? d->pad : LONG), at = sizeof(*hdr);
	const struct xkv_result *x;
	ssize_t got;
	int i;

	if (!send_out(d, len))
		return -1;
	got = wait_answer(d, ANSWER_MS);
	/* A single operation is asked again with the padding that it needs. */
	for (; got > 0 && n == 1 && padding_asked(d, got) > len; got = wait_answer(d, ANSWER_MS)) {
		d->pad = padding_asked(d, got); /* as clients do, for later requests too */
		len = udp_request(d, w, n, d->pad);
		if (!send_out(d, len))
			return -1;
	}
	for (i = 0; got >= 0 && i < hdr->count && at + sizeof(*x) <= (size_t)got; i++) {
		x = (const struct xkv_result *)(d->in + at);
		r[i] = (struct result){
			.status = x->status,
			.value_len = ntohl(x->value_len),
			.ttl_ms = be64toh(x->ttl),
			.version = be64toh(x->version),
		};
		at += sizeof(*x);
		if (!(x->flags & XKV_HAS_VALUE))
			continue;
		r[i].value = x + 1;
		at += XKV_PADDED(r[i].value_len);
		if (at > (size_t)got)
			break;
	}
	return got < 0 ? -1 : i;
}

/*
 * xkvd takes the packets of one socket in their order: an answer of xkvd to any request from now on
 * tells that it has had those before, however late it comes.  Two keys that do not exist are for
 * xkvd; in batched mode XDP answers a request for one.
 */
static bool udp_settle(struct frontend *d, double seconds)
{
	static const char never[] = "stress: a key that is never there";
	const struct wish one = { .op = XKV_OP_GET, .key = never, .key_len = sizeof(never) - 1 };
	const struct wish two[] = { one, one };
	uint64_t end = now_ms() + (uint64_t)(seconds * 1000), first = d->id + 1;

	while (now_ms() < end)
		if (send_out(d, udp_request(d, two, 2, 0)) &&
		    wait_answer_since(d, first, SETTLE_MS) >= 0)
			return true;
		else
			poll(NULL, 0, 5); /* refused at once while no xkvd runs */
	return false;
}

/* ---- RESP ---------------------------------------------------------------- */

static bool resp_connect(struct frontend *d)
{
	struct timeval timeout = { .tv_sec = RESP_SECONDS };

	redisFree(d->redis);
	d->redis = redisConnectWithTimeout(d->host, d->port, timeout);
	if (d->redis && !d->redis->err && !redisSetTimeout(d->redis, timeout))
		return true;
	redisFree(d->redis);
	d->redis = NULL;
	return false;
}

struct frontend *frontend_open_resp(const char *host, uint16_t port)
{
	struct frontend *d = frontend_new(host, port, false);

	if (d && !resp_connect(d)) {
		frontend_close(d);
		errno = ECONNREFUSED;
		return NULL;
	}
	return d;
}

static int append(redisContext *c, const struct wish *w)
{
	char ttl[24];
	const char *argv[6] = { "GET", w->key };
	size_t len[6] = { 3, w->key_len };
	int argc = 2;

	snprintf(ttl, sizeof(ttl), "%llu", (unsigned long long)w->ttl_ms);
	if (w->op == XKV_OP_SET) {
		argv[0] = "SET";
		argv[argc] = w->value;
		len[argc++] = w->value_len;
		if (w->flags & (XKV_NX | XKV_XX)) {
			argv[argc] = w->flags & XKV_NX ? "NX" : "XX";
			len[argc++] = 2;
		}
		if (w->ttl_ms) {
			argv[argc] = "PX";
			len[argc++] = 2;
			argv[argc] = ttl;
			len[argc++] = strlen(ttl);
		}
	} else if (w->op == XKV_OP_DELETE) {
		argv[0] = "DEL";
	} else if (w->op == XKV_OP_EXPIRE) {
		argv[0] = w->ttl_ms ? "PEXPIRE" : "PERSIST";
		len[0] = 7;
		argv[argc] = ttl;
		len[argc] = strlen(ttl);
		argc += w->ttl_ms > 0;
	}
	return redisAppendCommandArgv(c, argc, argv, len);
}

static void take_reply(const redisReply *reply, struct result *r)
{
	*r = (struct result){ .status = XKV_OK };
	switch (reply->type) {
	case REDIS_REPLY_STRING:
		r->value = reply->str;
		r->value_len = reply->len;
		break;
	case REDIS_REPLY_NIL:
		r->status = XKV_MISS; /* of SET: not stored */
		break;
	case REDIS_REPLY_INTEGER:
		r->status = reply->integer ? XKV_OK : XKV_MISS;
		break;
	case REDIS_REPLY_ERROR:
		fprintf(stderr, "stress: RESP answered '%s'\n", reply->str);
		r->status = XKV_BUSY;
		break;
	}
}

static void resp_forget(struct frontend *d)
{
	for (int i = 0; i < WISHES_MAX; i++) {
		freeReplyObject(d->reply[i]);
		d->reply[i] = NULL;
	}
}

static int resp_ask(struct frontend *d, const struct wish *w, int n, struct result *r)
{
	resp_forget(d);
	for (int i = 0; i < n; i++)
		if (!d->redis || append(d->redis, &w[i]) != REDIS_OK)
			return -1;
	for (int i = 0; i < n; i++) {
		if (redisGetReply(d->redis, (void **)&d->reply[i]) != REDIS_OK) {
			if (d->redis->err == REDIS_ERR_IO &&
			    (errno == EAGAIN || errno == ETIMEDOUT))
				fprintf(stderr, "stress: no answer from RESP in %d s\n",
					RESP_SECONDS);
			redisFree(d->redis);
			d->redis = NULL;
			return -1;
		}
		take_reply(d->reply[i], &r[i]);
		if (r[i].status == XKV_MISS && w[i].op == XKV_OP_SET)
			r[i].status = XKV_NOT_STORED;
	}
	return n;
}

/* A server that loads its snapshot accepts connections, but answers with errors. */
static bool resp_answers(struct frontend *d)
{
	redisReply *reply = redisCommand(d->redis, "EXISTS stress");
	bool ok = reply && reply->type == REDIS_REPLY_INTEGER;

	freeReplyObject(reply);
	return ok;
}

static bool resp_settle(struct frontend *d, double seconds)
{
	uint64_t end = now_ms() + (uint64_t)(seconds * 1000);

	do {
		if (resp_connect(d) && resp_answers(d))
			return true;
		poll(NULL, 0, 20);
	} while (now_ms() < end);
	return false;
}

/* ---- both ---------------------------------------------------------------- */

int frontend_ask(struct frontend *d, const struct wish *w, int n, struct result *r)
{
	return d->is_udp ? udp_ask(d, w, n, r) : resp_ask(d, w, n, r);
}

bool frontend_settle(struct frontend *d, double seconds)
{
	return d->is_udp ? udp_settle(d, seconds) : resp_settle(d, seconds);
}

void frontend_close(struct frontend *d)
{
	if (!d)
		return;
	resp_forget(d);
	redisFree(d->redis);
	if (d->fd >= 0)
		close(d->fd);
	free(d);
}

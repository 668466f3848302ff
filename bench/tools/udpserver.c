// SPDX-License-Identifier: BSD-2-Clause
/*
 * xkv-udpserver: a baseline, a store without BPF.  It answers GET, SET, SCAN and PING of
 * bpf/proto.h, also several in a datagram, from a hash table in user space through UDP sockets.
 * The difference to the XDP program is the cost of the kernel's network stack and of user space.
 * It has what makes such a server fast: a socket per thread (SO_REUSEPORT), many datagrams per
 * system call, striped locks.  It does not have what a server in a network needs: no tokens, no
 * expiry, no conditions, no limit of the length of replies to short requests.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <err.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/common/dist.h"
#include "bench/common/option.h"
#include "bpf/proto.h"

#define BATCH	    32	 /* datagrams of a system call */
#define STRIPES	    4096 /* locks; a power of two */
#define THREADS_MAX 256
#define KEYS_MAX    (1ULL << 30)
#define SOCKET_ROOM (4 << 20) /* bytes of datagrams that may wait in a socket */

/* ---- the table ------------------------------------------------------------- */

struct entry {
	struct entry *next;
	uint64_t version;
	uint32_t value_len, room; /* bytes of value: used, allocated */
	uint8_t key_len;
	uint8_t data[]; /* key, value */
};

static struct table {
	struct entry **bucket;
	uint64_t mask; /* buckets - 1; at least STRIPES - 1, so that a bucket has one lock */
	struct stripe {
		pthread_mutex_t lock; /* of the buckets whose low bits are the stripe's number */
		uint64_t changes;     /* makes versions that no other entry has */
	} stripe[STRIPES];
} table;

static void table_open(uint64_t keys)
{
	uint64_t buckets = STRIPES;

	while (buckets < keys)
		buckets *= 2;
	table.mask = buckets - 1;
	table.bucket = calloc(buckets, sizeof(*table.bucket));
	if (!table.bucket)
		err(1, "--keys %llu", (unsigned long long)keys);
	for (unsigned int i = 0; i < STRIPES; i++)
		pthread_mutex_init(&table.stripe[i].lock, NULL);
}

static uint64_t hash(const uint8_t *key, unsigned int len)
{
	uint64_t sum = len, word;

	for (; len >= 8; key += 8, len -= 8) {
		memcpy(&word, key, 8);
		sum = mix64(sum ^ word);
	}
	word = 0;
	memcpy(&word, key, len);
	return mix64(sum ^ word);
}

/* The pointer to the entry of a key, or the NULL pointer where it would be added. */
static struct entry **find(uint64_t sum, const uint8_t *key, unsigned int len)
{
	struct entry **at = &table.bucket[sum & table.mask];

	while (*at && ((*at)->key_len != len || memcmp((*at)->data, key, len)))
		at = &(*at)->next;
	return at;
}

static struct stripe *lock(uint64_t sum)
{
	struct stripe *s = &table.stripe[sum % STRIPES];

	pthread_mutex_lock(&s->lock);
	return s;
}

/* Makes *at an entry with room for the value.  False without memory; then *at is unchanged. */
static bool make_room(struct entry **at, const uint8_t *key, unsigned int key_len,
		      uint32_t value_len)
{
	bool is_new = !*at;
	struct entry *e;

	if (!is_new && (*at)->room >= value_len)
		return true;
	e = realloc(*at, sizeof(*e) + key_len + value_len);
	if (!e)
		return false;
	if (is_new) {
		e->next = NULL;
		e->key_len = key_len;
		memcpy(e->data, key, key_len);
	}
	e->room = value_len;
	*at = e;
	return true;
}

/* ---- a request ------------------------------------------------------------- */

struct request {
	const uint8_t *at, *end;
};

struct reply {
	uint8_t *start, *at, *end;
	unsigned int count;
};

/*
 * Appends a result, and returns the address for its value of value_len bytes.  NULL: no room.
 */
static uint8_t *add_result(struct reply *r, const struct xkv_result *head)
{
	uint32_t len = ntohl(head->value_len), padded = XKV_PADDED(len);
	uint8_t *value = r->at + sizeof(*head);

	if (r->count == 255 || (size_t)(r->end - r->at) < sizeof(*head) + padded)
		return NULL;
	memcpy(r->at, head, sizeof(*head));
	if (padded)
		memset(value + padded - 8, 0, 8);
	r->at = value + padded;
	r->count++;
	return value;
}

static bool add_status(struct reply *r, unsigned int opcode, unsigned int status, uint64_t version)
{
	struct xkv_result head = { .opcode = opcode,
				   .status = status,
				   .version = htobe64(version) };

	return add_result(r, &head);
}

static bool get(struct reply *r, unsigned int opcode, const uint8_t *key, unsigned int key_len)
{
	uint64_t sum = hash(key, key_len);
	struct stripe *s = lock(sum);
	const struct entry *e = *find(sum, key, key_len);
	uint8_t *value = NULL;

	if (e) {
		struct xkv_result head = { .opcode = opcode,
					   .flags = XKV_HAS_VALUE,
					   .value_len = htonl(e->value_len),
					   .version = htobe64(e->version) };

		value = add_result(r, &head);
		if (value)
			memcpy(value, e->data + key_len, e->value_len);
	}
	pthread_mutex_unlock(&s->lock);
	return e ? value != NULL : add_status(r, opcode, XKV_MISS, 0);
}

static bool set(struct reply *r, const uint8_t *key, unsigned int key_len, const uint8_t *value,
		uint32_t value_len)
{
	uint64_t sum = hash(key, key_len), version = 0;
	struct stripe *s = lock(sum);
	struct entry **at = find(sum, key, key_len);

	if (make_room(at, key, key_len, value_len)) {
		version = (++s->changes * STRIPES + sum % STRIPES) * 2;
		(*at)->version = version;
		(*at)->value_len = value_len;
		memcpy((*at)->data + key_len, value, value_len);
	}
	pthread_mutex_unlock(&s->lock);
	return add_status(r, XKV_OP_SET, version ? XKV_OK : XKV_NO_MEMORY, version);
}

/* Increments the number at the end of a key.  False after 99..9, or if there is no number. */
static bool next_key(uint8_t *key, unsigned int len)
{
	while (len-- && key[len] >= '0' && key[len] <= '9') {
		if (key[len]++ < '9')
			return true;
		key[len] = '0';
	}
	return false;
}

static bool scan(struct reply *r, const uint8_t *first, unsigned int key_len, unsigned int keys)
{
	uint8_t key[XKV_KEY_MAX];

	memcpy(key, first, key_len);
	do {
		if (!get(r, XKV_OP_SCAN, key, key_len))
			return false;
	} while (--keys && next_key(key, key_len));
	return true;
}

/* Does this server support the operation with its flags and fields? */
static unsigned int check(const struct xkv_op *op)
{
	switch (op->opcode) {
	case XKV_OP_PING:
		return op->key_len || op->value_len || op->keys ? XKV_BAD_REQUEST : XKV_OK;
	case XKV_OP_GET:
	case XKV_OP_SET:
	case XKV_OP_SCAN:
		break;
	default:
		return XKV_BAD_OPCODE;
	}
	if (!op->key_len || op->key_len > XKV_KEY_MAX)
		return XKV_BAD_KEY;
	if (op->flags || op->ttl || op->version || (op->value_len && op->opcode != XKV_OP_SET))
		return XKV_BAD_REQUEST;
	if (op->opcode == XKV_OP_SCAN)
		return op->keys && op->keys <= XKV_SCAN_MAX ? XKV_OK : XKV_BAD_REQUEST;
	return op->keys ? XKV_BAD_REQUEST : XKV_OK;
}

/* Executes the next operation.  False if it is the last one whose result fits, or does not fit. */
static bool next_op(struct request *q, struct reply *r)
{
	struct xkv_op op;
	const uint8_t *key = q->at + sizeof(op);
	uint32_t value_len;
	unsigned int status;
	size_t left = q->end - q->at;

	if (left < sizeof(op))
		return false;
	memcpy(&op, q->at, sizeof(op));
	status = check(&op);
	value_len = ntohl(op.value_len);
	left -= sizeof(op);
	if (!status && (value_len > left || XKV_PADDED(op.key_len) + XKV_PADDED(value_len) > left))
		status = XKV_BAD_REQUEST;
	if (status) {
		add_status(r, op.opcode, status, 0);
		return false;
	}
	q->at = key + XKV_PADDED(op.key_len) + XKV_PADDED(value_len);
	switch (op.opcode) {
	case XKV_OP_PING:
		return add_status(r, op.opcode, XKV_OK, 0);
	case XKV_OP_GET:
		return get(r, op.opcode, key, op.key_len);
	case XKV_OP_SCAN:
		return scan(r, key, op.key_len, op.keys);
	default:
		/* a SET must not be executed if its result does not fit */
		return (size_t)(r->end - r->at) >= sizeof(struct xkv_result) &&
		       set(r, key, op.key_len, key + XKV_PADDED(op.key_len), value_len);
	}
}

static size_t finish(struct reply *r, const struct xkv_hdr *request, unsigned int status)
{
	struct xkv_hdr hdr = { .magic = request->magic,
			       .version = XKV_VERSION,
			       .flags = XKV_F_REPLY,
			       .count = r->count,
			       .status = status,
			       .length = htons(r->at - r->start),
			       .id = request->id };

	memcpy(r->start, &hdr, sizeof(hdr));
	return r->at - r->start;
}

/* Writes the reply to a datagram into `out` (XKV_PAYLOAD_MAX4 bytes).  Its length; 0: no reply. */
static size_t answer(const uint8_t *in, size_t len, uint8_t *out)
{
	struct xkv_hdr hdr;
	struct reply r = { .start = out, .at = out + sizeof(hdr), .end = out + XKV_PAYLOAD_MAX4 };
	struct request q = { .at = in + sizeof(hdr) };
	size_t used;

	if (len < sizeof(hdr))
		return 0;
	memcpy(&hdr, in, sizeof(hdr));
	if (hdr.magic != htons(XKV_MAGIC) || hdr.flags & XKV_F_REPLY)
		return 0;
	used = ntohs(hdr.length);
	if (hdr.version != XKV_VERSION)
		return finish(&r, &hdr, XKV_BAD_VERSION);
	if (hdr.flags || hdr.status || !hdr.count || used % 8 || used > len ||
	    used < sizeof(hdr) + sizeof(struct xkv_op))
		return finish(&r, &hdr, XKV_BAD_REQUEST);
	q.end = in + used;
	for (unsigned int i = 0; i < hdr.count && next_op(&q, &r); i++)
		;
	return finish(&r, &hdr, XKV_OK);
}

/* ---- the threads ------------------------------------------------------------- */

struct mail {
	struct mmsghdr in[BATCH], out[BATCH];
	struct iovec in_bytes[BATCH], out_bytes[BATCH];
	struct sockaddr_storage from[BATCH];
	uint8_t request[BATCH][XKV_PAYLOAD_MAX4], reply[BATCH][XKV_PAYLOAD_MAX4];
};

static void mail_init(struct mail *m)
{
	memset(m, 0, sizeof(*m));
	for (unsigned int i = 0; i < BATCH; i++) {
		m->in_bytes[i] = (struct iovec){ m->request[i], sizeof(m->request[i]) };
		m->in[i].msg_hdr.msg_iov = &m->in_bytes[i];
		m->in[i].msg_hdr.msg_iovlen = 1;
		m->in[i].msg_hdr.msg_name = &m->from[i];
		m->out[i].msg_hdr.msg_iov = &m->out_bytes[i];
		m->out[i].msg_hdr.msg_iovlen = 1;
	}
}

/* Answers the received datagrams.  Returns the number of replies. */
static unsigned int answer_all(struct mail *m, unsigned int received)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < received; i++) {
		size_t len = answer(m->request[i], m->in[i].msg_len, m->reply[n]);

		if (!len)
			continue;
		m->out_bytes[n] = (struct iovec){ m->reply[n], len };
		m->out[n].msg_hdr.msg_name = &m->from[i];
		m->out[n].msg_hdr.msg_namelen = m->in[i].msg_hdr.msg_namelen;
		n++;
	}
	return n;
}

/* A reply that cannot be sent is lost, as any datagram may be. */
static void send_all(int fd, struct mail *m, unsigned int n)
{
	for (unsigned int done = 0; done < n;) {
		int sent = sendmmsg(fd, &m->out[done], n - done, 0);

		if (sent < 0 && errno == EINTR)
			continue;
		done += sent > 0 ? sent : 1;
	}
}

static void *serve(void *socket)
{
	int fd = *(int *)socket, n;
	struct mail *m = malloc(sizeof(*m));

	if (!m)
		err(1, "buffers of a thread");
	mail_init(m);
	for (;;) {
		for (unsigned int i = 0; i < BATCH; i++)
			m->in[i].msg_hdr.msg_namelen = sizeof(m->from[i]);
		n = recvmmsg(fd, m->in, BATCH, MSG_WAITFORONE, NULL);
		if (n < 0 && errno != EINTR)
			err(1, "recvmmsg");
		if (n > 0)
			send_all(fd, m, answer_all(m, n));
	}
	return NULL;
}

static struct options {
	const char *host, *port;
	unsigned int threads;
	uint64_t keys;
} opt = { .host = "127.0.0.1", .port = "6379", .threads = 1, .keys = 1000000 };

static int open_socket(void)
{
	struct addrinfo hints = { .ai_socktype = SOCK_DGRAM, .ai_flags = AI_PASSIVE }, *list;
	int one = 1, room = SOCKET_ROOM, fd, wrong = getaddrinfo(opt.host, opt.port, &hints, &list);

	if (wrong)
		errx(1, "%s port %s: %s", opt.host, opt.port, gai_strerror(wrong));
	fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)))
		err(1, "socket");
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) &&
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)))
		err(1, "SO_RCVBUF");
	if (bind(fd, list->ai_addr, list->ai_addrlen))
		err(1, "UDP port %s of %s", opt.port, opt.host);
	freeaddrinfo(list);
	return fd;
}

#define FIELD(member) .field = offsetof(struct options, member)

static const struct option_row rows[] = {
	{ "host", "HOST", 'h', option_text, FIELD(host),
	  .help = "address to listen on, default 127.0.0.1" },
	{ "port", "PORT", 'p', option_port, FIELD(port), .help = "UDP port, default 6379" },
	{ "threads", "N", 't', option_uint, FIELD(threads), .min = 1, .max = THREADS_MAX,
	  .help = "number of threads, 1 to 256, with a socket each; default 1" },
	{ "keys", "N", 'k', option_u64, FIELD(keys), .min = 1, .max = KEYS_MAX,
	  .help = "expected number of keys, sizes the table; default 1000000" },
	{ 0 },
};

static const char usage[] =
	"Usage: xkv-udpserver [OPTION]...\n"
	"A minimal user-space server of xkv's UDP protocol, a baseline for benchmarks only.\n";

int main(int argc, char **argv)
{
	static int fd[THREADS_MAX];
	pthread_t thread;
	int wrong = option_parse(rows, usage, &opt, argc, argv);

	if (wrong)
		return wrong < 0 ? 2 : 0;
	table_open(opt.keys);
	for (unsigned int i = 0; i < opt.threads; i++)
		fd[i] = open_socket();
	for (unsigned int i = 1; i < opt.threads; i++) {
		wrong = pthread_create(&thread, NULL, serve, &fd[i]);
		if (wrong)
			errx(1, "thread %u: %s", i + 1, strerror(wrong));
	}
	serve(&fd[0]);
	return 0;
}

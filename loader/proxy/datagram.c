/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Datagrams that read.  The driver answers what is cached; what it passes up is executed as ever.
 * If a key is missing then, the upstream is asked for it, and the datagram executed again.  So a
 * key is said to be missing when the upstream has said so; also one that is no string.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "database/database.h"
#include "datagram.h"
#include "net/udp.h"
#include "upstream/value.h"
#include "util/clock.h"

#define RESULTS_MAX 64 /* of a datagram: (XKV_PAYLOAD_MAX4 - a header) / a result, and some */
#define TRIES	    8  /* others may change a key again and again */

_Static_assert((XKV_PAYLOAD_MAX4 - sizeof(struct xkv_hdr)) / sizeof(struct xkv_result) <
		       RESULTS_MAX,
	       "bits of `absent`, too");

/* What a result is about. */
struct asked {
	bool reads; /* a key, that may be fetched */
	size_t len;
	char key[XKV_KEY_MAX];
};

struct datagram {
	struct fill_waiter waiter;
	struct proxy *proxy;
	struct udp_kept *kept; /* owned */
	unsigned int tries;
	uint64_t absent;    /* bits by result: the upstream has no such string */
	uint64_t fetched;   /* the same, in the order of what was asked for last */
	uint64_t elsewhere; /* the same: it is not cached, and has so many bytes: */
	uint32_t len[RESULTS_MAX];
};

/* ---- what is asked for ------------------------------------------------------------- */

/* The key with the next number; false: it was the last one. */
static bool next_key(char *key, size_t len)
{
	while (len--) {
		if (key[len] < '0' || key[len] > '9')
			return false;
		if (key[len]++ != '9')
			return true;
		key[len] = '0';
	}
	return false;
}

static void add_operation(struct asked *asked, unsigned int *count, const struct xkv_op *op,
			  const char *key)
{
	struct asked a = { .reads = XKV_IS_READ(op->opcode), .len = op->key_len };

	memcpy(a.key, key, op->key_len);
	for (unsigned int n = op->opcode == XKV_OP_SCAN ? op->keys : 1; n && *count < RESULTS_MAX;
	     n--) {
		asked[(*count)++] = a;
		if (!next_key(a.key, a.len))
			break;
	}
}

/* What each result of the reply is about, of a request that the engine has found to be right. */
static unsigned int parse(const char *request, size_t len, struct asked asked[RESULTS_MAX])
{
	const struct xkv_hdr *hdr = (const struct xkv_hdr *)request;
	size_t at = (size_t)((const char *)udp_first_op(request) - request);
	unsigned int count = 0;

	for (unsigned int i = 0; i < hdr->count && at + sizeof(struct xkv_op) <= len; i++) {
		struct xkv_op op;

		memcpy(&op, request + at, sizeof(op));
		at += sizeof(op);
		if (op.key_len > XKV_KEY_MAX || at + op.key_len > len)
			break;
		add_operation(asked, &count, &op, request + at);
		at += XKV_PADDED(op.key_len) + XKV_PADDED((size_t)ntohl(op.value_len));
	}
	return count;
}

/* Bits of the results that say that a key is missing, or (`all`) of all that are about one. */
static uint64_t missing(const char *request, size_t len, const char *reply, size_t reply_len,
			bool all, struct asked asked[RESULTS_MAX])
{
	const struct xkv_hdr *hdr = (const struct xkv_hdr *)reply;
	unsigned int count = parse(request, len, asked);
	size_t at = sizeof(*hdr);
	struct xkv_result r;
	uint64_t bits = 0;

	for (unsigned int i = 0;
	     i < count && i < hdr->count && udp_next_result(reply, reply_len, &at, &r); i++)
		if (asked[i].reads && (r.status == XKV_MISS || (all && r.status == XKV_OK)))
			bits |= 1ULL << i;
	return bits;
}

static bool is_believed(const struct proxy *x)
{
	return monotonic_ns() < x->lease_ns;
}

/* Without those that the cache knows to be missing. */
static uint64_t unknown(struct proxy *x, uint64_t bits, const struct asked asked[RESULTS_MAX])
{
	for (uint64_t rest = bits; rest; rest &= rest - 1) {
		unsigned int i = (unsigned int)__builtin_ctzll(rest);

		if (cache_lacks(x, asked[i].key, asked[i].len))
			bits &= ~(1ULL << i);
	}
	return bits;
}

static bool holds(void *arg, const char *request, size_t len, const char *reply, size_t reply_len)
{
	struct asked asked[RESULTS_MAX];
	bool believed = is_believed(arg);
	uint64_t bits = missing(request, len, reply, reply_len, !believed, asked);

	return believed ? unknown(arg, bits, asked) : bits;
}

/* ---- answering --------------------------------------------------------------------- */

static void forget(struct datagram *d)
{
	d->proxy->datagrams--;
	free(d->kept);
	free(d);
}

size_t datagram_reply(struct datagram_reply *r, const struct udp_kept *k, uint8_t status)
{
	size_t len = offsetof(struct datagram_reply, number);

	*r = (struct datagram_reply){
		.hdr = *(const struct xkv_hdr *)k->bytes,
		.result = { .opcode = udp_first_op(k->bytes)->opcode, .status = status },
	};
	r->hdr.flags = XKV_F_REPLY;
	r->hdr.count = 1;
	r->hdr.status = XKV_OK;
	r->hdr.length = htons(len);
	return len;
}

/* Replies that the client may try again: no upstream, or others change the key all the time. */
static void say_busy(struct datagram *d)
{
	struct asked asked[RESULTS_MAX];
	struct datagram_reply reply;

	if (parse(d->kept->bytes, d->kept->len, asked))
		udp_send(d->kept, (const char *)&reply, datagram_reply(&reply, d->kept, XKV_BUSY));
	forget(d);
}

static void go_on(struct datagram *d);

static void got(struct fill_waiter *w, const struct resp_value *v)
{
	struct datagram *d = (struct datagram *)w;
	unsigned int n = 0;

	if (!v || v->type != '*') {
		say_busy(d);
		return;
	}
	for (unsigned int i = 0; i < RESULTS_MAX; i++) {
		const struct resp_value *item;

		if (!(d->fetched >> i & 1))
			continue;
		item = value_item(v, n);
		if (item->type == '_')
			d->absent |= 1ULL << i;
		else if (w->unkept >> n & 1)
			d->elsewhere |= 1ULL << i;
		d->len[i] = (uint32_t)item->len;
		n++;
	}
	go_on(d);
}

/* What is not cached, so the engine has said MISS, is to be read over TCP. */
static void point_elsewhere(const struct datagram *d, char *reply, size_t len)
{
	size_t at = sizeof(struct xkv_hdr), from = at;
	struct xkv_result r;

	for (unsigned int i = 0; i < RESULTS_MAX && udp_next_result(reply, len, &at, &r); i++) {
		if (d->elsewhere >> i & 1 && r.status == XKV_MISS) {
			r.status = XKV_TOO_LARGE;
			r.value_len = htonl(d->len[i]);
			memcpy(reply + from, &r, sizeof(r));
		}
		from = at;
	}
}

/* Of a cluster those of one slot at a time: the first one's. */
static uint64_t together(uint64_t bits, const struct asked asked[RESULTS_MAX])
{
	const struct asked *first = &asked[__builtin_ctzll(bits)];
	unsigned int slot = cluster_slot(first->key, first->len);

	for (uint64_t rest = bits; rest; rest &= rest - 1) {
		unsigned int i = (unsigned int)__builtin_ctzll(rest);

		if (cluster_slot(asked[i].key, asked[i].len) != slot)
			bits &= ~(1ULL << i);
	}
	return bits;
}

static bool fetch(struct datagram *d, struct asked asked[RESULTS_MAX])
{
	static const char mget[] = "MGET";
	struct resp_arg argv[RESULTS_MAX + 1] = { { .ptr = (char *)(uintptr_t)mget, .len = 4 } };
	unsigned int argc = 1;

	if (d->proxy->cluster.is_one)
		d->fetched = together(d->fetched, asked);
	for (unsigned int i = 0; i < RESULTS_MAX; i++)
		if (d->fetched >> i & 1)
			argv[argc++] = (struct resp_arg){ { asked[i].key }, asked[i].len };
	return d->proxy->up && fill_send(d->proxy, argc, argv, &d->waiter);
}

static void go_on(struct datagram *d)
{
	struct asked asked[RESULTS_MAX];
	char reply[XKV_PAYLOAD_MAX4];
	size_t len = udp_execute(d->kept, reply);
	unsigned int most = d->proxy->cluster.is_one ? TRIES + RESULTS_MAX : TRIES;
	bool believed = is_believed(d->proxy) || d->tries; /* the upstream has just been asked */

	if (len)
		d->fetched = missing(d->kept->bytes, d->kept->len, reply, len, !believed, asked) &
			     ~(d->absent | d->elsewhere);
	if (len && believed)
		d->fetched = unknown(d->proxy, d->fetched, asked);
	if (!len) {
		forget(d);
	} else if (!d->fetched) {
		point_elsewhere(d, reply, len);
		udp_send(d->kept, reply, len);
		forget(d);
	} else if (d->tries++ == most || !fetch(d, asked)) {
		say_busy(d);
	}
}

static void kept(void *arg, struct udp_kept *k, bool up)
{
	struct proxy *x = arg;
	struct datagram *d;

	if (up) {
		change_send(x, k);
		return;
	}
	d = x->datagrams < DATAGRAMS_MAX ? calloc(1, sizeof(*d)) : NULL;
	if (!d) {
		free(k);
		return;
	}
	x->datagrams++;
	d->proxy = x;
	d->kept = k;
	d->waiter.got = got;
	d->waiter.late = true;
	x->stats.datagrams++;
	go_on(d);
}

void proxy_udp(struct server *s, struct udp *udp)
{
	if (!s->cfg->upstream[0])
		return;
	udp->holds = holds;
	udp->kept = kept;
	udp->hold_arg = proxy_of(s);
}

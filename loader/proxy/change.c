/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Changes that datagrams ask for (`write-through`): each goes up as the command that does the same,
 * and is answered when the upstream has answered.
 *
 * With ONCE it goes up once at most: its record in the dedup cache is open from before that until
 * the reply is there, and copies of it are dropped.  If the connection is lost meanwhile, or xkvd
 * is killed, nobody can say whether it was made: there is no reply, and the record stays open.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "datagram.h"
#include "net/udp.h"
#include "store/store.h"
#include "util/text.h"

#define WORDS_MAX 6  /* SET key value NX PX milliseconds */
#define TEXT_MAX  64 /* of a reply: what is looked at */

/* A change, and what the upstream says of it. */
struct change {
	struct request command, pttl;
	struct fence order;
	struct proxy *proxy;
	struct udp_kept *kept; /* owned */
	struct guards guards;
	struct xkv_op op; /* in our byte order */
	bool asks_ttl;
	unsigned int waits; /* for so many replies: their order is not certain in a cluster */
	bool lost;	    /* one of them was */
	struct said {
		size_t len;
		char text[TEXT_MAX];
	} said, left; /* the replies, as much as fits; the second one is that of PTTL */
};

/* ---- what goes up ------------------------------------------------------------------ */

struct words {
	unsigned int count;
	struct resp_arg word[WORDS_MAX];
	char number[TEXT_NUMBER_MAX + 1];
};

static void add(struct words *w, const char *text, size_t len)
{
	w->word[w->count++] = (struct resp_arg){ { (char *)(uintptr_t)text }, len };
}

static void add_word(struct words *w, const char *word)
{
	add(w, word, strlen(word));
}

static void add_number(struct words *w, int64_t number)
{
	add(w, w->number, text_from_i64(w->number, number));
}

static void set_words(struct words *w, const struct xkv_op *op, const char *value)
{
	add(w, value, op->value_len);
	if (op->flags & (XKV_NX | XKV_XX))
		add_word(w, op->flags & XKV_NX ? "NX" : "XX");
	if (op->flags & XKV_KEEPTTL)
		add_word(w, "KEEPTTL");
	if (!op->ttl)
		return;
	add_word(w, op->flags & XKV_ABSTTL ? "PXAT" : "PX");
	add_number(w, (int64_t)op->ttl);
}

/* The command that does what the operation asks for. */
static void words_of(struct words *w, const struct xkv_op *op, const char *key)
{
	const char *value = key + XKV_PADDED(op->key_len);
	uint64_t amount;

	w->count = 1;
	add(w, key, op->key_len);
	switch (op->opcode) {
	case XKV_OP_SET:
		w->word[0] = (struct resp_arg){ { "SET" }, 3 };
		set_words(w, op, value);
		break;
	case XKV_OP_DELETE:
		w->word[0] = (struct resp_arg){ { "DEL" }, 3 };
		break;
	case XKV_OP_EXPIRE:
		if (!op->ttl) {
			w->word[0] = (struct resp_arg){ { "PERSIST" }, 7 };
			break;
		}
		w->word[0] = op->flags & XKV_ABSTTL ? (struct resp_arg){ { "PEXPIREAT" }, 9 }
						    : (struct resp_arg){ { "PEXPIRE" }, 7 };
		add_number(w, (int64_t)op->ttl);
		break;
	case XKV_OP_INCR:
		w->word[0] = (struct resp_arg){ { "INCRBY" }, 6 };
		memcpy(&amount, value, sizeof(amount));
		add_number(w, (int64_t)be64toh(amount));
		break;
	default:
		w->word[0] = (struct resp_arg){ { "APPEND" }, 6 };
		add(w, value, op->value_len);
	}
}

/* ---- what comes back --------------------------------------------------------------- */

static void forget(struct change *c)
{
	guards_release(c->proxy, &c->guards);
	c->proxy->datagrams--;
	free(c->kept);
	free(c);
}

static void answer(const struct udp_kept *k, uint8_t status, uint64_t ttl, const int64_t *number)
{
	struct datagram_reply r;
	size_t len = datagram_reply(&r, k, status);

	r.result.ttl = htobe64(ttl);
	if (number) {
		r.result.flags = XKV_HAS_VALUE;
		r.result.value_len = htonl(sizeof(r.number));
		r.number = htobe64((uint64_t)*number);
		len += sizeof(r.number);
		r.hdr.length = htons(len);
	}
	if (((const struct xkv_hdr *)k->bytes)->flags & XKV_F_ONCE)
		udp_record(k, (const char *)&r, len);
	udp_send(k, (const char *)&r, len);
}

/* An error of the upstream: nothing was changed. */
static uint8_t status_of_error(const struct change *c)
{
	static const struct {
		const char *begins;
		uint8_t status;
	} known[] = {
		{ "-ERR value is not an integer", XKV_NOT_NUMBER },
		{ "-ERR increment or decrement would overflow", XKV_OVERFLOW },
		{ "-OOM", XKV_NO_MEMORY },
		{ "-LOADING", XKV_BUSY },
		{ "-BUSY", XKV_BUSY },
		{ "-TRYAGAIN", XKV_BUSY },
		{ "-CLUSTERDOWN", XKV_BUSY },
		{ "-MASTERDOWN", XKV_BUSY },
		{ "-MOVED", XKV_BUSY }, /* for so long that it was given up (hop.c), or: */
		{ "-" UPSTREAM_ERROR, XKV_BUSY },
	};

	if (!strncmp(c->said.text, "-WRONGTYPE", 10))
		return c->op.opcode == XKV_OP_INCR ? XKV_NOT_NUMBER : XKV_READ_ONLY;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strncmp(c->said.text, known[i].begins, strlen(known[i].begins)))
			return known[i].status;
	return XKV_READ_ONLY;
}

static bool number_of(const struct said *s, int64_t *number)
{
	return s->len > 3 && s->text[0] == ':' && text_to_i64(s->text + 1, s->len - 3, number);
}

/* What is left of a time to live that we have set. */
static uint64_t ttl_given(const struct change *c)
{
	uint64_t now = store_now_ms(c->proxy->srv->store);

	if (!(c->op.flags & XKV_ABSTTL) || !c->op.ttl)
		return c->op.ttl;
	return c->op.ttl > now ? c->op.ttl - now : 0;
}

/* All replies are there. */
static void finish(struct change *c)
{
	int64_t number = 0, left = -1;
	bool is_number = number_of(&c->said, &number);
	uint8_t status = XKV_OK;
	uint64_t ttl;

	number_of(&c->left, &left);
	ttl = !c->asks_ttl ? ttl_given(c) : left > 0 ? (uint64_t)left : 0;
	c->proxy->stats.changes++;
	switch (c->op.opcode) {
	case XKV_OP_SET:
		status = c->said.text[0] == '+' ? XKV_OK : XKV_NOT_STORED;
		break;
	case XKV_OP_DELETE:
		status = number ? XKV_OK : XKV_MISS;
		break;
	case XKV_OP_EXPIRE: /* PERSIST: 0 also of a key that did not expire */
		status = number || (c->asks_ttl && left >= -1) ? XKV_OK : XKV_MISS;
		break;
	}
	if (c->said.text[0] == '-')
		status = status_of_error(c);
	answer(c->kept, status, status == XKV_OK ? ttl : 0,
	       status == XKV_OK && is_number &&
			       (c->op.opcode == XKV_OP_INCR || c->op.opcode == XKV_OP_APPEND)
		       ? &number
		       : NULL);
	forget(c);
}

static void order_known(struct fence *f)
{
	finish((struct change *)((char *)f - offsetof(struct change, order)));
}

/*
 * A reply is there, or lost.  After the last one: if the command's was, nobody knows whether the
 * change was made.  As a reply (pass.c) it may tell of what commands have done that are held back.
 */
static void reply_ends(struct change *c, bool lost)
{
	c->lost |= lost;
	if (--c->waits)
		return;
	if (c->lost) {
		c->proxy->stats.changes_lost++;
		forget(c);
	} else if (!c->proxy->unnamed || !c->proxy->up) {
		finish(c);
	} else {
		c->order.done = order_known;
		fence_send(c->proxy, &c->order);
	}
}

static void hear(struct said *s, const char *bytes, size_t len)
{
	size_t room = sizeof(s->text) - 1 - s->len;

	len = len < room ? len : room;
	memcpy(s->text + s->len, bytes, len);
	s->len += len;
}

static void command_reply(struct link *l, struct request *r, const char *bytes, size_t len,
			  bool end)
{
	struct change *c = (struct change *)r;

	hear(&c->said, bytes, len);
	if (end)
		reply_ends(c, false);
}

static void command_lost(struct link *l, struct request *r)
{
	reply_ends((struct change *)r, true);
}

static struct change *of_pttl(struct request *r)
{
	return (struct change *)((char *)r - offsetof(struct change, pttl));
}

static void pttl_reply(struct link *l, struct request *r, const char *bytes, size_t len, bool end)
{
	hear(&of_pttl(r)->left, bytes, len);
	if (end)
		reply_ends(of_pttl(r), false);
}

static void pttl_lost(struct link *l, struct request *r)
{
	reply_ends(of_pttl(r), true);
}

/* ---- sending ------------------------------------------------------------------------- */

/* Is the time to live that the key has then not known here? */
static bool asks_ttl(const struct xkv_op *op)
{
	return op->opcode == XKV_OP_INCR || op->opcode == XKV_OP_APPEND ||
	       (op->opcode == XKV_OP_EXPIRE && !op->ttl) ||
	       (op->opcode == XKV_OP_SET && op->flags & XKV_KEEPTTL);
}

static void send_up(struct change *c, struct node *n, const char *key)
{
	static const struct request_kind command = { command_reply, command_lost },
					 pttl = { pttl_reply, pttl_lost };
	struct words w;

	words_of(&w, &c->op, key);
	c->command.kind = &command;
	c->pttl.kind = &pttl;
	hop_send(n, ON_SHARED, &n->shared[1], w.count, w.word, &c->command);
	if (c->asks_ttl)
		hop_send(n, ON_SHARED, &n->shared[1], 2,
			 (struct resp_arg[]){ { { "PTTL" }, 4 }, w.word[1] }, &c->pttl);
}

void change_send(struct proxy *x, struct udp_kept *k)
{
	const struct xkv_op *op = udp_first_op(k->bytes);
	const char *key = (const char *)(op + 1);
	struct node *n = x->first ?: cluster_owner(x, key, op->key_len);
	bool can = n && n->up && x->datagrams < DATAGRAMS_MAX;
	struct change *c = can ? calloc(1, sizeof(*c)) : NULL;

	if (!c || !guards_add(x, &c->guards, key, op->key_len)) {
		if (c)
			guards_release(x, &c->guards);
		answer(k, XKV_BUSY, 0, NULL);
		free(k);
		free(c);
		return;
	}
	x->datagrams++;
	c->proxy = x;
	c->kept = k;
	c->op = *op;
	c->op.value_len = ntohl(op->value_len);
	c->op.ttl = be64toh(op->ttl);
	c->asks_ttl = asks_ttl(&c->op);
	c->waits = 1 + c->asks_ttl;
	send_up(c, n, key);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fills: GET or MGET on the watch, and PTTL of each key that is to be kept.  Those who wait have
 * the reply as soon as it is there; it is kept when the last PTTL is, if it was not overtaken.
 *
 * What expires is kept for what it had left when the upstream was asked, so it is gone here first.
 */
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "store/store.h"
#include "upstream/value.h"
#include "util/text.h"

struct fill {
	struct request request; /* GET or MGET */
	struct proxy *proxy;
	struct fill_waiters waiters, late;
	uint64_t sent_ms;	 /* Unix time */
	const struct link *lost; /* NULL: it was not */
	bool single;		 /* GET */
	bool replied;
	struct outbox reply;
	char *bytes; /* of the reply; owned */
	const struct resp_value *value;
	unsigned int asked;	  /* keys */
	uint64_t unkept;	  /* bits of the first of these: they are not cached */
	unsigned int count, left; /* those to be kept, and replies to PTTL still to come */
	struct filled key[];
};

static void tell_all(struct fill_waiters *waiters, const struct fill *f)
{
	struct fill_waiter *w;

	while ((w = TAILQ_FIRST(waiters))) {
		TAILQ_REMOVE(waiters, w, next);
		w->unkept = f->unkept;
		w->lost = f->lost;
		w->got(w, f->value);
	}
}

static void forget(struct fill *f)
{
	tell_all(&f->late, f);
	value_free(f->value);
	outbox_free(&f->reply);
	free(f->bytes);
	free(f);
}

static void not_kept(struct fill *f, unsigned int index)
{
	if (index < 64)
		f->unkept |= 1ULL << index;
}

bool filled_is_here(const struct filled *k)
{
	return k->fill->replied;
}

/* Nothing more comes of this key. */
static void key_end(struct filled *k)
{
	struct fill *f = k->fill;

	if (k->key->filled == k)
		k->key->filled = NULL;
	cached_key_end(f->proxy, k->key);
	if (!--f->left && f->replied)
		forget(f);
}

/*
 * While a slot moves, others may create a key that is missing at the node that has not told us so.
 * The end of a move is seen, and its beginning, but not that it was cancelled and begun anew before
 * the nodes were asked again.
 */
static bool keep(struct filled *k, int64_t ttl)
{
	struct fill *f = k->fill;

	return (k->value || !cluster_moves(f->proxy, k->key->name, k->key->len)) &&
	       cache_keep(f->proxy, k, f->sent_ms, ttl);
}

static void ttl_reply(struct link *l, struct request *r, const char *bytes, size_t len, bool end)
{
	struct filled *k = (struct filled *)r;
	struct fill *f = k->fill;
	char text[TEXT_NUMBER_MAX + 4];
	int64_t ttl;

	outbox_append(&f->reply, bytes, len);
	if (!end)
		return;
	len = f->reply.bytes < sizeof(text) ? f->reply.bytes : 0;
	if (len)
		outbox_flatten(&f->reply, text);
	outbox_free(&f->reply);
	/* -1: it does not expire; -2: it is not there, or not any more */
	if (len > 3 && text[0] == ':' && text_to_i64(text + 1, len - 3, &ttl) && !k->overtaken &&
	    (k->value ? ttl >= -1 : ttl == -2 && f->value) && !keep(k, ttl))
		not_kept(f, k->index);
	key_end(k);
}

static void ttl_lost(struct link *l, struct request *r)
{
	key_end((struct filled *)r);
}

static const struct request_kind ttl_kind = { ttl_reply, ttl_lost };

/* Tells who waits. */
static void tell(struct fill *f)
{
	for (unsigned int i = 0; i < f->count; i++) {
		f->key[i].key->fills--;
		cached_key_end(f->proxy, f->key[i].key);
	}
	f->replied = true;
	tell_all(&f->waiters, f);
	if (!f->left)
		forget(f);
}

static bool is_item(const struct resp_value *v)
{
	return v->type == '$' || v->type == '_' || v->type == '-';
}

/* Is it what GET or MGET replies? */
static bool is_right(const struct fill *f)
{
	const struct resp_value *v = f->value;

	if (!v || v->type == '-' || f->single)
		return v && is_item(v);
	if (v->type != '*' || v->count != f->asked)
		return false;
	for (size_t i = 0; i < v->count; i++)
		if (!is_item(&v->items[i]))
			return false;
	return true;
}

/* Where the values of its keys are. */
static void find_values(struct fill *f)
{
	const struct resp_value *v = f->value;

	for (unsigned int i = 0; i < f->count; i++) {
		const struct resp_value *item = f->single ? v : value_item(v, f->key[i].index);

		if (item->type != '$')
			continue;
		f->key[i].value = item->text;
		f->key[i].len = item->len;
	}
}

static void fill_reply(struct link *l, struct request *r, const char *bytes, size_t len, bool end)
{
	struct fill *f = (struct fill *)r;

	outbox_append(&f->reply, bytes, len);
	if (!end)
		return;
	f->bytes = outbox_whole(&f->reply);
	if (f->bytes)
		f->value = value_parse(f->bytes, f->reply.bytes);
	outbox_free(&f->reply);
	f->reply.failed = false;
	if (is_right(f)) {
		find_values(f);
	} else {
		value_free(f->value);
		f->value = NULL;
		f->lost = l;
		link_fail(l, "a reply cannot be understood");
	}
	tell(f);
}

static void fill_lost(struct link *l, struct request *r)
{
	struct fill *f = (struct fill *)r;

	f->lost = l;
	for (unsigned int i = 0; i < f->count; i++)
		f->key[i].overtaken = true;
	tell(f);
}

static const struct request_kind fill_kind = { fill_reply, fill_lost };

/*
 * One for the same key is under way, and still true; and no later one is, which may be this
 * client's, and bring something newer to a command before this one.
 */
static bool join(struct proxy *x, unsigned int argc, const struct resp_arg *argv,
		 struct fill_waiter *w)
{
	struct cached_key *k = argc == 2 ? cached_key(x, argv[1].ptr, argv[1].len) : NULL;
	bool can = k && k->filled && !k->filled->overtaken && !k->filled->fill->replied &&
		   k->filled->fill->single && k->fills == 1;

	if (can)
		TAILQ_INSERT_TAIL(&k->filled->fill->waiters, w, next);
	else if (k)
		cached_key_end(x, k);
	return can;
}

/* Will this key be kept? */
static void add_key(struct fill *f, const struct resp_arg *arg, unsigned int index)
{
	struct proxy *x = f->proxy;
	struct filled *k = &f->key[f->count];
	struct cache_rule *rule;
	struct cached_key *key;

	if (!cache_wants(x, arg, &rule)) {
		not_kept(f, index);
		return;
	}
	key = cached_key(x, arg->ptr, arg->len);
	if (!key)
		return;
	*k = (struct filled){ .request.kind = &ttl_kind,
			      .fill = f,
			      .key = key,
			      .rule = rule,
			      .keeps = !key->writes && !key->filled,
			      .index = index };
	if (k->keeps)
		key->filled = k;
	key->fills++;
	x->last_fill[__builtin_ctzll(cache_bit(x, arg->ptr, arg->len))] = ++x->fills;
	f->count++;
	f->left += k->keeps;
}

/* PTTL of a key that is to be kept. */
static void ask_ttl(struct node *n, struct filled *k)
{
	if (k->keeps)
		hop_send(
			n, ON_WATCH, &n->watch, 2,
			(struct resp_arg[]){ { { "PTTL" }, 4 }, { { k->key->name }, k->key->len } },
			&k->request);
}

bool fill_send(struct proxy *x, unsigned int argc, const struct resp_arg *argv,
	       struct fill_waiter *w)
{
	struct node *n = x->first ?: cluster_owner(x, argv[1].ptr, argv[1].len);
	struct fill *f;

	if (!n || !n->up)
		return false;
	if (!w->late && join(x, argc, argv, w))
		return true;
	f = calloc(1, sizeof(*f) + (argc - 1) * sizeof(f->key[0]));
	if (!f)
		return false;
	f->request.kind = &fill_kind;
	f->proxy = x;
	f->single = argc == 2 && text_is(argv[0].ptr, argv[0].len, "get");
	f->asked = argc - 1;
	f->sent_ms = store_now_ms(x->srv->store);
	TAILQ_INIT(&f->waiters);
	TAILQ_INIT(&f->late);
	TAILQ_INSERT_TAIL(w->late ? &f->late : &f->waiters, w, next);
	for (unsigned int i = 1; i < argc; i++)
		add_key(f, &argv[i], i - 1);
	hop_send(n, ON_WATCH, &n->watch, argc, argv, &f->request);
	for (unsigned int i = 0; i < f->count; i++)
		ask_ttl(n, &f->key[i]);
	return true;
}

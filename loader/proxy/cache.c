/* SPDX-License-Identifier: BSD-2-Clause */
#include "cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "config/config.h"
#include "store/store.h"
#include "upstream/value.h"
#include "util/log.h"

#define FLUSH_PERIOD 0.005 /* seconds */
#define FLUSH_KEYS   512
#define SPARE_FIRST  1 /* numbers of databases that emptied caches get, and nobody can select */
#define ABSENT	     (STORE_DATABASES - 1) /* has keys that the upstream has not, without values */
#define ABSENT_SHARE 8			   /* of `max-keys`: so many of them at most */

/* ---- keys that something is under way about -------------------------------------- */

static struct cached_key *find(const struct proxy *x, const void *name, size_t len, uint64_t hash)
{
	for (struct hashtable_entry *h = hashtable_find(&x->keys, hash); h;
	     h = hashtable_find_next(h)) {
		struct cached_key *k = (struct cached_key *)h;

		if (k->len == len && !memcmp(k->name, name, len))
			return k;
	}
	return NULL;
}

struct cached_key *cached_key(struct proxy *x, const void *name, size_t len)
{
	uint64_t hash = hashtable_hash(x->keys_secret, name, len);
	struct cached_key *k = find(x, name, len, hash);

	if (k)
		return k;
	k = calloc(1, sizeof(*k) + len);
	if (!k || hashtable_insert(&x->keys, &k->by_name, hash)) {
		free(k);
		return NULL;
	}
	k->len = len;
	memcpy(k->name, name, len);
	return k;
}

void cached_key_end(struct proxy *x, struct cached_key *k)
{
	if (k->writes || k->fills || k->filled)
		return;
	hashtable_remove(&x->keys, &k->by_name);
	free(k);
}

/* ---- entries ----------------------------------------------------------------------- */

static struct store_ctx *store_in(struct proxy *x, unsigned int db)
{
	store_select(x->worker->ctx, db);
	return x->worker->ctx;
}

static uint64_t keys_in(const struct proxy *x, unsigned int db)
{
	struct store_database d;

	store_database(x->srv->store, db, &d);
	return d.keys;
}

bool cache_lacks(struct proxy *x, const void *name, size_t len)
{
	struct store_entry e;
	bool lacks = keys_in(x, ABSENT) && !store_get(store_in(x, ABSENT), name, len, &e);

	store_select(x->worker->ctx, 0);
	return lacks;
}

bool cache_read(struct proxy *x, const struct resp_arg *key, struct store_entry *e)
{
	if (x->worker->now_ns >= x->lease_ns)
		return false;
	if (!store_get(store_in(x, 0), key->ptr, key->len, e))
		return true;
	*e = (struct store_entry){ 0 };
	return cache_lacks(x, key->ptr, key->len);
}

static bool is_in(struct proxy *x, unsigned int db, const void *name, size_t len)
{
	struct store_entry e;
	int ret = store_touch(store_in(x, db), name, len, false, &e);

	return ret != -ENOENT && ret != -EMSGSIZE; /* who cannot say that it is not */
}

static bool is_there(struct proxy *x, const void *name, size_t len)
{
	return is_in(x, 0, name, len) || (keys_in(x, ABSENT) && is_in(x, ABSENT, name, len));
}

uint64_t cache_bit(const struct proxy *x, const void *name, size_t len)
{
	return 1ULL << (hashtable_hash(x->keys_secret, name, len) >> 58);
}

bool cache_asks(const struct proxy *x, const void *name, size_t len)
{
	struct cached_key *k = find(x, name, len, hashtable_hash(x->keys_secret, name, len));

	return k && k->fills;
}

bool cache_knows(struct proxy *x, const void *name, size_t len)
{
	struct cached_key *k = find(x, name, len, hashtable_hash(x->keys_secret, name, len));

	return (k && k->filled && !k->filled->overtaken) || is_there(x, name, len);
}

static void overtake(struct proxy *x, const struct cached_key *k)
{
	if (k->filled->overtaken)
		return;
	k->filled->overtaken = true;
	x->stats.overtaken++;
}

static void take_away(struct proxy *x, const void *name, size_t len)
{
	int ret = -ENOENT;

	if (is_in(x, 0, name, len))
		ret = store_delete(store_in(x, 0), name, len, NULL);
	else if (keys_in(x, ABSENT) && is_in(x, ABSENT, name, len))
		ret = store_delete(store_in(x, ABSENT), name, len, NULL);
	store_select(x->worker->ctx, 0);
	if (!ret)
		x->stats.dropped++;
	if (ret && ret != -ENOENT) /* contended: what cannot be taken away alone goes with all */
		cache_empty(x);
}

void cache_drop(struct proxy *x, const void *name, size_t len)
{
	struct cached_key *k = find(x, name, len, hashtable_hash(x->keys_secret, name, len));

	if (k && k->filled)
		overtake(x, k);
	take_away(x, name, len);
}

/*
 * The upstream says that it has changed.  A fill whose value is not here yet was executed later.
 * In front of a cluster it may have gone to another node since.
 */
static void announced(struct proxy *x, const void *name, size_t len)
{
	struct cached_key *k = find(x, name, len, hashtable_hash(x->keys_secret, name, len));

	if (k && k->filled && (x->cluster.is_one || filled_is_here(k->filled)))
		overtake(x, k);
	take_away(x, name, len);
}

static void empty(struct proxy *x, unsigned int db);

bool cache_keep(struct proxy *x, const struct filled *f, uint64_t since_ms, int64_t ttl_ms)
{
	int64_t limit = f->rule && f->rule->ttl_ms ? f->rule->ttl_ms
						   : (int64_t)x->srv->cfg->cache_ttl * 1000;
	unsigned int db = f->value ? 0 : ABSENT;
	uint64_t expire;
	int ret;

	if (!f->value && keys_in(x, ABSENT) >= store_max_keys(x->srv->store) / ABSENT_SHARE)
		empty(x, ABSENT);
	if (limit && (ttl_ms < 0 || limit < ttl_ms))
		ttl_ms = limit;
	expire = ttl_ms < 0 ? 0 : since_ms + (uint64_t)ttl_ms;
	ret = f->len > XKV_VALUE_MAX /* it would take the place of many others */
		      ? -EMSGSIZE
		      : store_set(store_in(x, db), f->key->name, f->key->len, f->value ?: "",
				  f->len, 0, 0, expire, NULL);
	store_select(x->worker->ctx, 0);
	if (ret)
		x->stats.unkept++;
	else
		x->stats.filled++;
	return !ret;
}

/* ---- emptying ----------------------------------------------------------------------- */

/* Frees what emptied caches have left. */
static void on_flush(struct ev_loop *loop, ev_timer *w, int events)
{
	struct proxy *x = w->data;
	struct store_ctx *ctx = x->worker->ctx;

	while (x->flushing < ABSENT && !keys_in(x, x->flushing)) {
		x->flushing++;
		x->flush_cursor = 0;
	}
	if (x->flushing == ABSENT) {
		ev_timer_stop(loop, w);
		return;
	}
	store_select(ctx, x->flushing);
	store_flush_some(ctx, &x->flush_cursor, FLUSH_KEYS, false);
	store_select(ctx, 0);
}

/*
 * The name of the database gets another one behind it, which is empty, for all readers at once: the
 * driver's and ours.  What it had is deleted later.
 */
static void empty(struct proxy *x, unsigned int db)
{
	unsigned int spare = SPARE_FIRST;

	if (!keys_in(x, db))
		return;
	while (spare < ABSENT && keys_in(x, spare))
		spare++;
	if (spare == ABSENT) {
		store_flush(x->worker->ctx);
		return;
	}
	store_swap(x->srv->store, db, spare);
	store_swaps_end(x->srv->store);
	x->flushing = SPARE_FIRST;
	x->flush_cursor = 0;
	ev_timer_again(x->worker->loop, &x->flush);
}

void cache_empty(struct proxy *x)
{
	for (size_t i = 0; i < x->keys.size; i++)
		for (struct hashtable_entry *h = x->keys.slots[i]; h; h = h->next) {
			struct cached_key *k = (struct cached_key *)h;

			if (k->filled)
				k->filled->overtaken = true;
		}
	x->stats.emptied += keys_in(x, 0) || keys_in(x, ABSENT);
	empty(x, 0);
	empty(x, ABSENT);
}

void cache_lease(struct proxy *x, uint64_t until_ns)
{
	x->lease_ns = until_ns;
	store_lease(x->srv->store, until_ns ?: 1);
}

/* ---- what the upstream announces ------------------------------------------------------ */

void cache_push(struct link *l, const char *frame, size_t len)
{
	struct proxy *x = ((struct node *)l->arg)->proxy;
	const struct resp_value *v = value_parse(frame, len), *keys;

	if (!v) {
		link_fail(l, "a push message cannot be understood");
		return;
	}
	keys = value_item(v, 1);
	if (value_is(value_item(v, 0), "invalidate")) {
		x->stats.announced += keys->count;
		for (size_t i = 0; i < keys->count; i++)
			announced(x, keys->items[i].text, keys->items[i].len);
		if (keys->type == '_') /* FLUSHALL, FLUSHDB, and the like */
			cache_empty(x);
	}
	value_free(v);
}

/* ---- commands that may change keys ------------------------------------------------------ */

bool guards_add(struct proxy *x, struct guards *g, const void *name, size_t len)
{
	unsigned int room = g->room ? 2 * g->room : 4;
	struct cached_key *k, **more;

	if (g->count == g->room) {
		more = realloc(g->key, room * sizeof(*more));
		if (!more)
			return false;
		g->key = more;
		g->room = room;
	}
	k = cached_key(x, name, len);
	if (!k)
		return false;
	k->writes++;
	g->key[g->count++] = k;
	cache_drop(x, name, len);
	return true;
}

void guards_release(struct proxy *x, struct guards *g)
{
	while (g->count) {
		struct cached_key *k = g->key[--g->count];

		k->writes--;
		cached_key_end(x, k);
	}
	free(g->key);
	*g = (struct guards){ 0 };
}

/* ---- life --------------------------------------------------------------------------------- */

void cache_start(struct proxy *x)
{
	if (getrandom(x->keys_secret, sizeof(x->keys_secret), 0) != sizeof(x->keys_secret))
		log_warning("no random numbers: keys could be chosen that slow the cache down");
	ev_timer_init(&x->flush, on_flush, FLUSH_PERIOD, FLUSH_PERIOD);
	x->flush.data = x;
	x->flushing = SPARE_FIRST;
	store_databases(x->srv->store, 1);
	cache_rules_init(x);
}

void cache_free(struct proxy *x)
{
	hashtable_free(&x->keys);
	cache_rules_free(x);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The cache of the upstream's strings, in database 0 of the store, and when its entries are valid.
 *
 * The upstream is asked on one connection, the watch, for a value (a fill, fill.c), and announces
 * there that it has changed (CLIENT TRACKING): so what it says of a key comes in the order in which
 * it was true.  An entry is true from its fill on, until it is announced that it is not.  A fill
 * is overtaken, and not kept, if that comes between its value and its expiry; and if a command that
 * may write the key passes meanwhile, on whatever connection: its entry is dropped before it is
 * sent.  Nobody may fill it until its reply is here, unless it goes by the watch as well.
 *
 * The lease says how long entries may be believed without a sign of life: a PING that has come back
 * on the watch proves that all is known that was announced before it was sent.
 */
#ifndef XKV_PROXY_CACHE_H
#define XKV_PROXY_CACHE_H

#include "proxy_impl.h"

struct resp_value;

/* A key that something is under way about; others have none. */
struct cached_key {
	struct hashtable_entry by_name;
	unsigned int writes;   /* commands under way that may change it */
	unsigned int fills;    /* without a reply that ask for it, kept or not */
	struct filled *filled; /* the fill that will keep it; NULL = none */
	size_t len;
	char name[];
};

/* A key of a fill. */
struct filled {
	struct request request; /* PTTL */
	struct fill *fill;
	struct cached_key *key;
	struct cache_rule *rule; /* NULL: none */
	bool keeps;		 /* the value is to be kept, ... */
	bool overtaken;		 /* ... no, it is not */
	unsigned int index;	 /* in the reply */
	const char *value;	 /* in that; NULL: there is none */
	size_t len;
};

/* One who waits for the reply of a fill. */
struct fill_waiter {
	TAILQ_ENTRY(fill_waiter) next;
	/* The reply; NULL: `lost` was.  Called once. */
	void (*got)(struct fill_waiter *w, const struct resp_value *v);
	const struct link *lost;
	bool late; /* not before what is kept is */
	uint64_t
		unkept; /* bits of those of the first 64 keys that are not cached: of `late` ones */
};
TAILQ_HEAD(fill_waiters, fill_waiter);

/* --- cache.c --- */

/* The key's, made if there is none.  NULL: no memory. */
struct cached_key *cached_key(struct proxy *x, const void *name, size_t len);
/* After its `writes`, `fills` or `filled` have changed: forgets it if there is nothing left. */
void cached_key_end(struct proxy *x, struct cached_key *k);
/* One of 64 bits for the key: others have the same. */
uint64_t cache_bit(const struct proxy *x, const void *name, size_t len);
/* Is it in the cache, or will it be? */
bool cache_knows(struct proxy *x, const void *name, size_t len);
/* Has the upstream been asked for it, and not answered yet? */
bool cache_asks(const struct proxy *x, const void *name, size_t len);
/* It is true no longer. */
void cache_drop(struct proxy *x, const void *name, size_t len);
/* Nothing is, from this moment on. */
void cache_empty(struct proxy *x);
/*
 * Keeps what a fill has brought, a value or that there is none, for `ttl_ms` from `since_ms` (Unix
 * time) on; -1 = for ever.  False: the store does not take it.
 */
bool cache_keep(struct proxy *x, const struct filled *f, uint64_t since_ms, int64_t ttl_ms);
/*
 * Reads an entry; one without a value (NULL) says that the upstream has no such key.  False: it is
 * not there, or must not be believed now.
 */
bool cache_read(struct proxy *x, const struct resp_arg *key, struct store_entry *e);
/* Is it known that there is no such key?  Whether that is to be believed now is not asked. */
bool cache_lacks(struct proxy *x, const void *name, size_t len);
/* May it be answered from the cache while the upstream is not there? */
bool cache_is_stale(struct proxy *x);

/* Entries may be believed until then (monotonic), by us and by the driver; 0: not any more. */
void cache_lease(struct proxy *x, uint64_t until_ns);
void cache_start(struct proxy *x);
void cache_free(struct proxy *x);
/* What the upstream announces. */
void cache_push(struct link *l, const char *frame, size_t len);

/* A command that may change a key goes up; later, it is done.  False: no memory. */
bool guards_add(struct proxy *x, struct guards *g, const void *name, size_t len);
void guards_release(struct proxy *x, struct guards *g);

/* --- rules.c --- */

void cache_rules_init(struct proxy *x);
void cache_rules_free(struct proxy *x);
/* Is this a key that is to be cached?  *rule is the one about it, or NULL. */
bool cache_wants(const struct proxy *x, const struct resp_arg *key, struct cache_rule **rule);

/* --- fill.c --- */

/*
 * Asks the upstream for the values of GET (one key) or MGET, and keeps those that it may.  `w` gets
 * the reply, also that of one that is under way already.  False: no memory.
 */
bool fill_send(struct proxy *x, unsigned int argc, const struct resp_arg *argv,
	       struct fill_waiter *w);

/* Has its value come?  The reply to PTTL has not. */
bool filled_is_here(const struct filled *k);

/* --- serve.c --- */

/* Is it a read that the cache can answer?  Then it was answered, or sent: *flags as route(). */
bool serve(struct proxy *x, struct passage *p, unsigned int *flags);

#endif

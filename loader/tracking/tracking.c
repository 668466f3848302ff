/* SPDX-License-Identifier: BSD-2-Clause */
#include "tracking/tracking.h"

#include <limits.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "database/database.h"
#include "net/client.h"
#include "store/txn.h"
#include "util/clock.h"
#include "util/metrics.h"

#define CHANNEL	      "__redis__:invalidate"
#define PREFIXES_MAX  1024	  /* of a client */
#define PREFIX_BYTES  (1 << 20)	  /* that they take */
#define CHANGED_BYTES (16U << 20) /* of keys that have changed, told of together */
#define TRIM_BYTES    (4U << 20)  /* of the table: from here on it is given back */
#define BLOCK_BYTES   24	  /* of a block of memory and of a slot of the table, besides */
#define NOTED_BEFORE  1025	  /* arguments of a command whose keys are noted before it */
#define TRIM_NS	      2000000	  /* at once, to bring the table to its limit */
#define FREED_AT_ONCE 1024	  /* keys that were forgotten, some 200 us */
#define FREED_SECOND  65536	  /* the same each second, while nobody tracks */

/* A client that has read a key. */
struct tracked_reader {
	uint64_t id;
	uint64_t from; /* changes at this position of the feed, and behind it, are told of */
	uint64_t head; /* if the read finds the key, those from here on; 0 = it has been read */
};

struct tracked {
	struct hashtable_entry entry;	/* tracked_keys.keys */
	TAILQ_ENTRY(tracked) link;	/* tracked_keys.oldest */
	struct tracked_reader *readers; /* owned; in the order of their IDs */
	unsigned int count, room;
	size_t len;
	char key[];
};

/* A key that has changed, to be told of together with others. */
struct changed {
	uint16_t origin;
	size_t len;
	char *key; /* owned */
};

/* BCAST PREFIX */
struct key_prefix {
	struct hashtable_entry entry; /* tracked_keys.prefixes */
	TAILQ_ENTRY(key_prefix) link; /* tracked_keys.changed, if it has `changed` */
	struct follower_list followers;
	struct changed *changed; /* owned */
	unsigned int count, room;
	size_t len;
	char text[];
};

struct prefix_length {
	size_t len;
	unsigned int count; /* prefixes of this length */
};

/* A client that follows a prefix. */
struct follower {
	LIST_ENTRY(follower) of_prefix, of_client;
	struct key_prefix *prefix;
	struct tracking *tracking;
};

static struct tracked_keys *keys_of(const struct server *s)
{
	return &shared_of(s)->tracked;
}

/* --- messages --- */

/* Also to a client that wants no replies. */
static struct reply *message_begin(struct caller *to, bool *muted)
{
	struct reply *r = caller_message(to);

	*muted = r->muted;
	r->muted = false;
	return r;
}

static void message_end(struct caller *to, struct reply *r, bool muted)
{
	r->muted = muted;
	caller_message_end(to);
}

static void tell_broken(struct tracking *t)
{
	struct reply *r;
	bool muted;

	t->flags |= TRACKING_BROKEN;
	if (t->caller->session.reply.protocol != PROTOCOL_RESP3)
		return;
	r = message_begin(t->caller, &muted);
	reply_push(r, 2);
	reply_text(r, "tracking-redir-broken");
	reply_int(r, (int64_t)t->redirect);
	message_end(t->caller, r, muted);
}

/* Whom to tell; NULL = nobody can be told. */
static struct caller *receiver(struct tracking *t)
{
	struct caller *to = t->caller;

	if (t->redirect) {
		to = client_by_id(to->srv, t->redirect);
		if (!to) {
			tell_broken(t);
			return NULL;
		}
	}
	if (to->closing || to->dead)
		return NULL;
	if (to->session.reply.protocol != PROTOCOL_RESP3 &&
	    !(t->redirect && session_is_subscriber(&to->session)))
		return NULL;
	return to;
}

/* Tells of some keys, all without `keys`. */
static void invalidate(struct tracking *t, const struct changed *keys, unsigned int count)
{
	struct caller *to = receiver(t);
	struct reply *r;
	bool muted;

	if (!to)
		return;
	r = message_begin(to, &muted);
	if (r->protocol == PROTOCOL_RESP3) {
		reply_push(r, 2);
		reply_text(r, "invalidate");
	} else {
		reply_push(r, 3);
		reply_text(r, "message");
		reply_text(r, CHANNEL);
	}
	if (keys)
		reply_array(r, count);
	else
		reply_null(r);
	for (unsigned int i = 0; i < count; i++)
		reply_bulk(r, keys[i].key, keys[i].len);
	message_end(to, r, muted);
}

/* --- the table --- */

static struct tracked *tracked_find(const struct tracked_keys *t, const void *key, size_t len)
{
	struct hashtable_entry *e = NULL;

	if (t->keys.count)
		e = hashtable_find(&t->keys, hashtable_hash(t->secret, key, len));
	for (; e; e = hashtable_find_next(e)) {
		struct tracked *k = (struct tracked *)e; /* its first member */

		if (k->len == len && memcmp(k->key, key, len) == 0)
			return k;
	}
	return NULL;
}

/* Without its readers. */
static size_t tracked_bytes(size_t len)
{
	return sizeof(struct tracked) + len + BLOCK_BYTES;
}

static struct tracked *tracked_new(struct tracked_keys *t, const void *key, size_t len)
{
	struct tracked *k = calloc(1, sizeof(*k) + len);

	if (!k)
		return NULL;
	k->len = len;
	memcpy(k->key, key, len);
	if (hashtable_insert(&t->keys, &k->entry, hashtable_hash(t->secret, key, len))) {
		free(k);
		return NULL;
	}
	TAILQ_INSERT_TAIL(&t->oldest, k, link);
	t->bytes += tracked_bytes(len);
	return k;
}

static void dispose(struct tracked_keys *t, struct tracked *k)
{
	t->bytes -= tracked_bytes(k->len) + k->room * sizeof(*k->readers);
	free(k->readers);
	free(k);
}

static void tracked_free(struct tracked_keys *t, struct tracked *k)
{
	hashtable_remove(&t->keys, &k->entry);
	TAILQ_REMOVE(&t->oldest, k, link);
	t->items -= k->count;
	dispose(t, k);
}

/* All at once; to free a million takes 0.2 s, so that is done later. */
static void forget_keys(struct tracked_keys *t)
{
	hashtable_free(&t->keys);
	t->items = 0;
	TAILQ_CONCAT(&t->forgotten, &t->oldest, link);
}

/* True: there are none left. */
static bool free_forgotten(struct tracked_keys *t, unsigned int most)
{
	struct tracked *k;

	while (most-- && (k = TAILQ_FIRST(&t->forgotten))) {
		TAILQ_REMOVE(&t->forgotten, k, link);
		dispose(t, k);
	}
	return TAILQ_EMPTY(&t->forgotten);
}

static size_t table_bytes(struct server *s)
{
	return s->tracked_bytes = keys_of(s)->bytes;
}

/* The place of a reader, or of the first one with a greater ID. */
static unsigned int reader_place(const struct tracked *k, uint64_t id)
{
	unsigned int first = 0, end = k->count, middle;

	if (end && k->readers[end - 1].id < id) /* the client that came last, mostly */
		return end;
	while (first < end) {
		middle = (first + end) / 2;
		if (k->readers[middle].id < id)
			first = middle + 1;
		else
			end = middle;
	}
	return first;
}

static struct tracked_reader *reader_find(const struct tracked *k, uint64_t id)
{
	unsigned int at = reader_place(k, id);

	return at < k->count && k->readers[at].id == id ? &k->readers[at] : NULL;
}

/* NULL: no memory. */
static struct tracked_reader *reader_new(struct tracked_keys *t, struct tracked *k, uint64_t id)
{
	unsigned int at = reader_place(k, id), room = k->room ? 2 * k->room : 1;
	struct tracked_reader *more;

	if (k->count == k->room) {
		more = reallocarray(k->readers, room, sizeof(*more));
		if (!more)
			return NULL;
		t->bytes += (room - k->room) * sizeof(*more);
		k->readers = more;
		k->room = room;
	}
	memmove(&k->readers[at + 1], &k->readers[at], (k->count - at) * sizeof(*k->readers));
	k->readers[at] = (struct tracked_reader){ .id = id };
	k->count++;
	t->items++;
	return &k->readers[at];
}

/* Is its reader to be told?  One that has another mode by now is not. */
static struct tracking *reader_tracks(const struct server *s, const struct tracked_reader *r)
{
	struct caller *c = client_by_id(s, r->id);
	unsigned int flags = c ? tracking_of(c)->flags : 0;

	return flags & TRACKING_ON && !(flags & TRACKING_BCAST) ? tracking_of(c) : NULL;
}

/* Tells the readers of a key for whom a change at `position` is one; they are none any more. */
static void tracked_changed(struct server *s, struct tracked *k, uint64_t position, uint16_t origin)
{
	const struct changed key = { 0, k->len, k->key };
	struct tracked_keys *t = keys_of(s);
	unsigned int kept = 0;

	for (unsigned int i = 0; i < k->count; i++) {
		struct tracking *x = reader_tracks(s, &k->readers[i]);

		if (x && k->readers[i].from > position)
			k->readers[kept++] = k->readers[i];
		else if (x && !(origin && x->origin == origin))
			invalidate(x, &key, 1);
	}
	t->items -= k->count - kept;
	k->count = kept;
	if (!kept)
		tracked_free(t, k);
}

/* If only the reserve is left, the table has a quarter of what clients may take of it. */
static uint64_t most_bytes(struct server *s)
{
	uint64_t most = s->cfg->tracking_max_bytes ? s->cfg->tracking_max_bytes : UINT64_MAX;
	uint64_t spare = server_spare_memory(s) / 4;

	return most > spare && s->tracked_bytes > spare && server_memory_is_low(s) ? spare : most;
}

static bool is_full(struct server *s)
{
	uint64_t max_keys = s->cfg->tracking_max_keys;

	return (max_keys && keys_of(s)->keys.count > max_keys) || table_bytes(s) > most_bytes(s);
}

/* Has a command, or a transaction, read so much that not even all is kept until its end? */
static bool is_overfull(struct server *s)
{
	return table_bytes(s) / 2 > most_bytes(s);
}

/* The client as a reader of the key; NULL: no memory, or no room. */
static struct tracked_reader *reader_get(struct caller *c, const void *key, size_t len,
					 bool *is_new)
{
	struct tracked_keys *t = keys_of(c->srv);
	struct tracked *k = tracked_find(t, key, len);
	struct tracked_reader *r = k ? reader_find(k, c->id) : NULL;

	*is_new = !r;
	if (r)
		return r;
	if (is_overfull(c->srv))
		return NULL;
	if (!k)
		k = tracked_new(t, key, len);
	r = k ? reader_new(t, k, c->id) : NULL;
	if (k && !k->count)
		tracked_free(t, k);
	if (r && is_full(c->srv))
		changes_table_full(c->srv);
	return r;
}

/* False: no memory, or no room. */
static bool enter(struct caller *c, const void *key, size_t len)
{
	struct tracked_reader *r;
	bool is_new;

	if (transaction_of(c)->runs && store_txn_reads_own(c->worker->ctx, key, len))
		return true; /* tracking_own_read() */
	r = reader_get(c, key, len, &is_new);
	/* within a transaction, the key may have been read before it is entered */
	if (r && is_new && !transaction_of(c)->runs)
		changes_positions(c->srv, &r->from, &r->head);
	return r;
}

void tracking_own_read(void *arg, const void *key, size_t key_len, bool outdated, uint64_t position)
{
	struct caller *c = arg;
	struct tracking *x = tracking_of(c);
	const struct changed changed = { 0, key_len, (char *)(uintptr_t)key };
	struct tracked_reader *r;
	bool is_new;

	if (!(x->flags & TRACKING_ON) || x->flags & TRACKING_BCAST)
		return; /* not any more */
	r = reader_get(c, key, key_len, &is_new);
	if (!r) {
		changes_of_all(c->srv); /* so that nobody keeps what it reads */
		return;
	}
	/* otherwise the transaction's own record tells of it */
	if (!position)
		return;
	if ((outdated || !is_new) && !x->origin) /* what had been read before it was changed */
		invalidate(x, &changed, 1);
	*r = (struct tracked_reader){ .id = c->id, .from = position };
}

void tracking_found(struct caller *c, const void *key, size_t key_len)
{
	struct tracked *k;
	struct tracked_reader *r;

	if (!(tracking_of(c)->flags & TRACKING_ON))
		return;
	k = tracked_find(keys_of(c->srv), key, key_len);
	r = k ? reader_find(k, c->id) : NULL;
	if (!r || !r->head)
		return;
	r->from = r->head;
	r->head = 0;
}

void tracking_forget_all(struct server *s)
{
	struct tracked_keys *t = keys_of(s);
	struct tracking *x;

	if (!t->ready)
		return;
	forget_keys(t);
	LIST_FOREACH(x, &t->clients, link)
	invalidate(x, NULL, 0);
}

/* --- prefixes --- */

/*
 * Of each length that prefixes have, a key has one beginning; so it meets as many prefixes as match
 * and looks for as many as there are lengths up to its own, whatever the number of prefixes.  The
 * hash goes on from one to the next: the bytes are the coefficients of a polynomial modulo a prime,
 * at a secret point, so that clients cannot make hashes collide.
 */
#define PRIME ((1ULL << 61) - 1)

static uint64_t hash_begin(const struct tracked_keys *t)
{
	return t->secret[1] >> 4;
}

static uint64_t hash_on(const struct tracked_keys *t, uint64_t hash, const char *bytes, size_t len)
{
	unsigned __int128 x;

	for (size_t i = 0; i < len; i++) {
		x = (unsigned __int128)hash * (t->secret[0] >> 4) + (unsigned char)bytes[i];
		hash = (uint64_t)(x & PRIME) + (uint64_t)(x >> 61);
		hash -= hash >= PRIME ? PRIME : 0;
	}
	return hash;
}

static struct key_prefix *prefix_find(const struct tracked_keys *t, uint64_t hash, const char *text,
				      size_t len)
{
	struct hashtable_entry *e = t->prefixes.count ? hashtable_find(&t->prefixes, hash) : NULL;

	for (; e; e = hashtable_find_next(e)) {
		struct key_prefix *p = (struct key_prefix *)e; /* its first member */

		if (p->len == len && memcmp(p->text, text, len) == 0)
			return p;
	}
	return NULL;
}

/* The place of a length, or of the first one that is greater. */
static struct prefix_length *length_place(const struct tracked_keys *t, size_t len)
{
	unsigned int first = 0, end = t->length_count, middle;

	while (first < end) {
		middle = (first + end) / 2;
		if (t->lengths[middle].len < len)
			first = middle + 1;
		else
			end = middle;
	}
	return t->lengths + first;
}

/* False: no memory. */
static bool length_add(struct tracked_keys *t, size_t len)
{
	unsigned int room = 2 * t->length_room + 8;
	struct prefix_length *at, *end, *more;

	if (t->length_count == t->length_room) {
		more = reallocarray(t->lengths, room, sizeof(*more));
		if (!more)
			return false;
		t->lengths = more;
		t->length_room = room;
	}
	at = length_place(t, len);
	end = t->lengths + t->length_count;
	if (at == end || at->len != len) {
		memmove(at + 1, at, (size_t)(end - at) * sizeof(*at));
		*at = (struct prefix_length){ len, 0 };
		t->length_count++;
	}
	at->count++;
	return true;
}

static void length_drop(struct tracked_keys *t, size_t len)
{
	struct prefix_length *at = length_place(t, len);

	if (--at->count)
		return;
	t->length_count--;
	memmove(at, at + 1, (size_t)(t->lengths + t->length_count - at) * sizeof(*at));
}

static void prefix_changed(struct server *s, struct key_prefix *p, const struct feed_change *c)
{
	struct changed *more;
	char *key = malloc(c->key_len + 1);

	if (key && p->count == p->room) {
		more = reallocarray(p->changed, 2 * p->room + 8, sizeof(*more));
		if (more) {
			p->changed = more;
			p->room = 2 * p->room + 8;
		}
	}
	if (!key || p->count == p->room) {
		free(key);
		tracking_forget_all(s);
		return;
	}
	memcpy(key, c->key, c->key_len);
	if (!p->count)
		TAILQ_INSERT_TAIL(&keys_of(s)->changed, p, link);
	p->changed[p->count++] = (struct changed){ c->origin, c->key_len, key };
	keys_of(s)->changed_bytes += c->key_len + sizeof(*more) + BLOCK_BYTES;
}

/* A key has changed: of each prefix that it has. */
static void prefixes_changed(struct server *s, const struct feed_change *c)
{
	struct tracked_keys *t = keys_of(s);
	uint64_t hash = hash_begin(t);
	const char *key = c->key;
	struct key_prefix *p;
	size_t at = 0, len;

	for (unsigned int i = 0; i < t->length_count && t->lengths[i].len <= c->key_len; i++) {
		len = t->lengths[i].len;
		hash = hash_on(t, hash, key + at, len - at);
		at = len;
		p = prefix_find(t, hash, key, len);
		if (p)
			prefix_changed(s, p, c);
	}
}

/* In the order of Redis' tree; the last of the same keys is the last change. */
static int by_key(const void *a, const void *b)
{
	const struct changed *x = a, *y = b;
	size_t len = x->len < y->len ? x->len : y->len;
	int order = memcmp(x->key, y->key, len);

	return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* Each key once, with one origin, or 0 if several have changed it. */
static unsigned int unite(struct changed *keys, unsigned int count)
{
	unsigned int kept = 0;

	qsort(keys, count, sizeof(*keys), by_key);
	for (unsigned int i = 0; i < count; i++) {
		if (kept && by_key(&keys[kept - 1], &keys[i]) == 0) {
			if (keys[kept - 1].origin != keys[i].origin)
				keys[kept - 1].origin = 0;
			free(keys[i].key);
		} else {
			keys[kept++] = keys[i];
		}
	}
	return kept;
}

/* Without those that the client itself has changed, if it wants so. */
static void tell_follower(struct tracking *x, const struct changed *keys, unsigned int count)
{
	struct changed *others;
	unsigned int n = 0;

	if (!x->origin) {
		invalidate(x, keys, count);
		return;
	}
	others = calloc(count, sizeof(*others));
	for (unsigned int i = 0; others && i < count; i++)
		if (keys[i].origin != x->origin)
			others[n++] = keys[i];
	if (n || !others)
		invalidate(x, others, n); /* without memory: all */
	free(others);
}

static void prefix_tell(struct key_prefix *p)
{
	struct follower *f;

	p->count = unite(p->changed, p->count);
	LIST_FOREACH(f, &p->followers, of_prefix)
	tell_follower(f->tracking, p->changed, p->count);
	while (p->count)
		free(p->changed[--p->count].key);
}

static void prefixes_tell(struct tracked_keys *t)
{
	struct key_prefix *p;

	while ((p = TAILQ_FIRST(&t->changed))) {
		TAILQ_REMOVE(&t->changed, p, link);
		prefix_tell(p);
	}
	t->changed_bytes = 0;
}

static struct key_prefix *prefix_get(struct tracked_keys *t, const char *text, size_t len)
{
	uint64_t hash = hash_on(t, hash_begin(t), text, len);
	struct key_prefix *p = prefix_find(t, hash, text, len);

	if (p)
		return p;
	p = calloc(1, sizeof(*p) + len);
	if (!p || !length_add(t, len)) {
		free(p);
		return NULL;
	}
	p->len = len;
	memcpy(p->text, text, len);
	LIST_INIT(&p->followers);
	if (!hashtable_insert(&t->prefixes, &p->entry, hash))
		return p;
	length_drop(t, len);
	free(p);
	return NULL;
}

static void prefix_drop(struct tracked_keys *t, struct key_prefix *p)
{
	if (!LIST_EMPTY(&p->followers))
		return;
	if (p->count)
		TAILQ_REMOVE(&t->changed, p, link);
	while (p->count)
		free(p->changed[--p->count].key);
	hashtable_remove(&t->prefixes, &p->entry);
	length_drop(t, p->len);
	free(p->changed);
	free(p);
}

static bool follow(struct tracked_keys *t, struct tracking *x, const char *text, size_t len)
{
	struct key_prefix *p = prefix_get(t, text, len);
	struct follower *f;

	if (!p)
		return false;
	LIST_FOREACH(f, &x->prefixes, of_client)
	if (f->prefix == p)
		return true;
	f = malloc(sizeof(*f));
	if (!f) {
		prefix_drop(t, p);
		return false;
	}
	*f = (struct follower){ .prefix = p, .tracking = x };
	LIST_INSERT_HEAD(&p->followers, f, of_prefix);
	LIST_INSERT_HEAD(&x->prefixes, f, of_client);
	x->prefix_count++;
	x->prefix_bytes += sizeof(*f) + sizeof(*p) + len;
	return true;
}

/* --- changes --- */

void tracking_change(struct server *s, const struct feed_change *c)
{
	struct tracked_keys *t = keys_of(s);
	struct tracked *k;

	/* of FLUSHALL, clients are told at its end */
	if (LIST_EMPTY(&t->clients) || (int)c->what == FEED_NOTE || c->cause == XKV_CAUSE_FLUSH)
		return;
	k = tracked_find(t, c->key, c->key_len);
	if (k)
		tracked_changed(s, k, c->position, c->origin);
	prefixes_changed(s, c);
	if (t->changed_bytes > CHANGED_BYTES)
		prefixes_tell(t);
}

/* Tells the readers of the keys that were entered first.  True: the table is within its limit. */
static bool tracking_trim(struct server *s)
{
	uint64_t until = is_full(s) ? monotonic_ns() + TRIM_NS : 0;
	struct tracked *k;

	for (unsigned int n = 1; is_full(s) && (k = TAILQ_FIRST(&keys_of(s)->oldest)); n++) {
		if (n % 64 == 0 && monotonic_ns() > until)
			return false;
		tracked_changed(s, k, UINT64_MAX, 0);
	}
	return true;
}

bool tracking_changes_end(struct server *s)
{
	struct tracked_keys *t = keys_of(s);
	bool done;

	if (!t->ready)
		return true;
	if (t->bytes > t->peak)
		t->peak = t->bytes;
	done = free_forgotten(t, FREED_AT_ONCE) && tracking_trim(s);
	prefixes_tell(t);
	return done;
}

void tracking_second(struct server *s)
{
	struct tracked_keys *t = keys_of(s);

	if (t->ready && LIST_EMPTY(&t->clients))
		free_forgotten(t, FREED_SECOND);
	if (t->peak < TRIM_BYTES || table_bytes(s) > t->peak / 2)
		return;
	malloc_trim(0);
	t->peak = t->bytes;
}

/* --- around commands --- */

void tracking_read(struct caller *c, const struct resp_arg *key)
{
	if (key->len <= XKV_LONG_KEY_MAX && tracking_of(c)->flags & TRACKING_ON &&
	    !enter(c, key->ptr, key->len))
		changes_of_all(c->srv); /* so that nobody keeps what it reads */
}

/* Is a change of the key queued?  A read that is noted before it would be told of it. */
static bool is_queued(struct caller *c, const struct resp_arg *key)
{
	const struct queue *q = queue_of(c);

	for (unsigned int i = 0; i < q->count; i++)
		if (XKV_IS_CHANGE(q->op[i].opcode) && q->op[i].key_len == key->len &&
		    !memcmp(q->op[i].key, key->ptr, key->len))
			return true;
	return false;
}

static bool enter_key(void *arg, unsigned int at, unsigned int use)
{
	const struct call *call = ((void **)arg)[1];

	if (is_queued(((void **)arg)[0], &call->argv[at]))
		commands_flush(((void **)arg)[0]);
	tracking_read(((void **)arg)[0], &call->argv[at]);
	return true;
}

/* Does it read, so that its keys are kept?  Of a script, the commands that it calls do. */
static bool keeps(unsigned int flags, const struct command *cmd)
{
	bool given = flags & TRACKING_CACHING;

	if (!(flags & TRACKING_ON) || flags & TRACKING_BCAST)
		return false;
	if ((flags & TRACKING_OPTIN && !given) || (flags & TRACKING_OPTOUT && given))
		return false;
	return cmd->flags & CMD_READONLY && !(cmd->flags & CMD_PUBSUB) && !command_counts_keys(cmd);
}

/* Of the command that is being executed, one whose keys are all its arguments. */
bool tracking_follows(struct caller *c, unsigned int argc)
{
	return argc > NOTED_BEFORE && keeps(tracking_of(c)->flags, c->session.last);
}

void tracking_before(struct caller *c, const struct command *cmd, unsigned int argc,
		     const struct resp_arg *argv)
{
	const struct tracking *x = tracking_of(c);
	struct call call = { .argc = argc, .argv = argv };
	void *arg[2] = { c, &call };

	store_origin(c->worker->ctx, x->origin);
	if (keeps(x->flags, cmd) &&
	    (argc <= NOTED_BEFORE || !(cmd->flags & CMD_QUEUES && cmd->last < 0)))
		command_each_key(cmd, argc, argv, enter_key, arg);
}

static bool is_about_client(const struct command *cmd)
{
	char text[COMMAND_NAME_MAX];

	return cmd && !strncmp(command_full_name(cmd, text), "client|", 7);
}

void tracking_after(struct caller *c, const struct command *cmd)
{
	struct tracking *x = tracking_of(c);

	if (x->flags & TRACKING_CACHING && !c->session.multi && !is_about_client(cmd))
		x->flags &= ~(unsigned int)TRACKING_CACHING;
}

/* --- life --- */

bool tracking_wanted(const struct server *s)
{
	return !LIST_EMPTY(&keys_of(s)->clients);
}

static bool tracking_prepare(struct tracked_keys *t)
{
	if (t->ready)
		return true;
	if (getrandom(t->secret, sizeof(t->secret), 0) != (ssize_t)sizeof(t->secret))
		return false;
	TAILQ_INIT(&t->oldest);
	TAILQ_INIT(&t->forgotten);
	TAILQ_INIT(&t->changed);
	LIST_INIT(&t->clients);
	return t->ready = true;
}

static void unfollow_all(struct tracked_keys *t, struct tracking *x)
{
	struct follower *f;

	while ((f = LIST_FIRST(&x->prefixes))) {
		LIST_REMOVE(f, of_prefix);
		LIST_REMOVE(f, of_client);
		prefix_drop(t, f->prefix);
		free(f);
	}
	x->prefix_count = 0;
	x->prefix_bytes = 0;
}

void tracking_end(struct caller *c)
{
	struct tracking *x = tracking_of(c);
	struct tracked_keys *t = keys_of(c->srv);

	if (!(x->flags & TRACKING_ON))
		return;
	unfollow_all(t, x);
	LIST_REMOVE(x, link);
	t->client_count--;
	*x = (struct tracking){ 0 };
	if (!LIST_EMPTY(&t->clients))
		return;
	forget_keys(t); /* nobody is to be told of these */
	changes_table_full(c->srv);
}

void tracking_free(struct tracked_keys *t)
{
	while (t->ready && !free_forgotten(t, UINT_MAX))
		;
	hashtable_free(&t->keys);
	hashtable_free(&t->prefixes);
	free(t->lengths);
}

/* Of nobody else: who has our origin is not told of our changes.  0: none is left. */
static uint16_t origin_new(struct tracked_keys *t)
{
	const struct tracking *x;

	for (unsigned int tries = 0; tries < UINT16_MAX; tries++) {
		if (!++t->last_origin)
			t->last_origin = 1;
		LIST_FOREACH(x, &t->clients, link)
		if (x->origin == t->last_origin)
			break;
		if (!x)
			return t->last_origin;
	}
	return 0;
}

/* --- CLIENT TRACKING --- */

struct wish {
	unsigned int flags;
	int64_t redirect;
	unsigned int prefix_count;
	const struct resp_arg *prefixes[PLAIN_ARGS_MAX];
};

static bool parse_redirect(struct caller *c, const struct resp_arg *id, struct wish *w)
{
	if (w->redirect) {
		reply_error(reply_to(c), "ERR A client can only redirect to a single other client");
		return false;
	}
	if (!check_integer(c, id, &w->redirect))
		return false;
	if (client_by_id(c->srv, (uint64_t)w->redirect))
		return true;
	reply_error(reply_to(c), "ERR The client ID you want redirect to does not exist");
	return false;
}

/* On false the error was replied. */
static bool parse_wish(struct caller *c, unsigned int argc, const struct resp_arg *argv,
		       struct wish *w)
{
	static const struct {
		const char *name;
		unsigned int flag;
	} words[] = { { "bcast", TRACKING_BCAST },
		      { "optin", TRACKING_OPTIN },
		      { "optout", TRACKING_OPTOUT },
		      { "noloop", TRACKING_NOLOOP } };
	unsigned int word;

	for (unsigned int i = 3; i < argc; i++) {
		for (word = 0; word < 4 && !arg_is(&argv[i], words[word].name); word++)
			;
		if (word < 4) {
			w->flags |= words[word].flag;
		} else if (arg_is(&argv[i], "redirect") && i + 1 < argc) {
			if (!parse_redirect(c, &argv[++i], w))
				return false;
		} else if (arg_is(&argv[i], "prefix") && i + 1 < argc) {
			w->prefixes[w->prefix_count++] = &argv[++i];
		} else {
			reply_error(reply_to(c), "ERR syntax error");
			return false;
		}
	}
	return true;
}

/* Why the options do not go together, or with what the client has; NULL = they do. */
static const char *contradiction(unsigned int had, const struct wish *w)
{
	if (!(w->flags & TRACKING_BCAST) && w->prefix_count)
		return "PREFIX option requires BCAST mode to be enabled";
	if (had && (had ^ w->flags) & TRACKING_BCAST)
		return "You can't switch BCAST mode on/off before disabling tracking for this "
		       "client, and then re-enabling it with a different mode.";
	if (w->flags & TRACKING_BCAST && w->flags & (TRACKING_OPTIN | TRACKING_OPTOUT))
		return "OPTIN and OPTOUT are not compatible with BCAST";
	if (w->flags & TRACKING_OPTIN && w->flags & TRACKING_OPTOUT)
		return "You can't specify both OPTIN mode and OPTOUT mode";
	if ((w->flags & TRACKING_OPTIN && had & TRACKING_OPTOUT) ||
	    (w->flags & TRACKING_OPTOUT && had & TRACKING_OPTIN))
		return "You can't switch OPTIN/OPTOUT mode before disabling tracking for this "
		       "client, and then re-enabling it with a different mode.";
	return NULL;
}

static bool overlap(const struct resp_arg *a, const char *text, size_t len)
{
	return memcmp(a->ptr, text, a->len < len ? a->len : len) == 0;
}

/* On false the error was replied. */
static bool few_prefixes(struct caller *c, const struct wish *w)
{
	size_t bytes = tracking_of(c)->prefix_bytes;

	for (unsigned int i = 0; i < w->prefix_count; i++) {
		bytes += w->prefixes[i]->len;
		if (w->prefixes[i]->len <= XKV_LONG_KEY_MAX)
			continue;
		reply_error(reply_to(c), "ERR a prefix of more than %d bytes is of no key",
			    XKV_LONG_KEY_MAX);
		return false;
	}
	if (tracking_of(c)->prefix_count + w->prefix_count <= PREFIXES_MAX && bytes <= PREFIX_BYTES)
		return true;
	reply_error(reply_to(c), "ERR a client can have %d prefixes, of 1 MiB together",
		    PREFIXES_MAX);
	return false;
}

/* Of a prefix that the client has, in place of the number of one that it wants. */
#define HAS_IT UINT16_MAX

/*
 * The first prefix that is wanted and overlaps another one; HAS_IT = there is none.  In order, all
 * that begin with a prefix follow it.
 */
static unsigned int first_overlap(const struct changed *sorted, unsigned int count)
{
	unsigned int first = HAS_IT, least, end;

	for (unsigned int i = 0; i < count; i = end) {
		least = sorted[i].origin;
		for (end = i + 1; end < count && sorted[end].len >= sorted[i].len &&
				  !memcmp(sorted[end].key, sorted[i].key, sorted[i].len);
		     end++)
			least = sorted[end].origin < least ? sorted[end].origin : least;
		if (end > i + 1 && least < first)
			first = least;
	}
	return first;
}

/* As many as the client has, and wants; `count` of them.  NULL: no memory. */
static struct changed *sort_prefixes(struct caller *c, const struct wish *w, unsigned int *count)
{
	struct changed *all;
	const struct follower *f;
	unsigned int n = 0;

	*count = tracking_of(c)->prefix_count + w->prefix_count;
	all = calloc(*count + 1, sizeof(*all));
	if (!all)
		return NULL;
	LIST_FOREACH(f, &tracking_of(c)->prefixes, of_client)
	all[n++] = (struct changed){ HAS_IT, f->prefix->len, f->prefix->text };
	for (unsigned int i = 0; i < w->prefix_count; i++)
		all[n++] = (struct changed){ (uint16_t)i, w->prefixes[i]->len,
					     (char *)(uintptr_t)w->prefixes[i]->ptr };
	qsort(all, n, sizeof(*all), by_key);
	return all;
}

static void reply_overlap(struct caller *c, const struct wish *w, unsigned int at)
{
	const struct resp_arg *a = w->prefixes[at], *b;
	const struct follower *f;

	LIST_FOREACH(f, &tracking_of(c)->prefixes, of_client)
	if (overlap(a, f->prefix->text, f->prefix->len)) {
		reply_error(reply_to(c),
			    "ERR Prefix '%.*s' overlaps with an existing prefix '%.*s'. Prefixes "
			    "for a single client must not overlap.",
			    (int)a->len, a->ptr, (int)f->prefix->len, f->prefix->text);
		return;
	}
	for (b = w->prefixes[++at]; !overlap(a, b->ptr, b->len);)
		b = w->prefixes[++at];
	reply_error(reply_to(c),
		    "ERR Prefix '%.*s' overlaps with another provided prefix '%.*s'. Prefixes for "
		    "a single client must not overlap.",
		    (int)a->len, a->ptr, (int)b->len, b->ptr);
}

/* Prefixes that overlap would tell of a key twice.  On false the error was replied. */
static bool check_prefixes(struct caller *c, const struct wish *w)
{
	unsigned int count, first;
	struct changed *sorted;

	if (!few_prefixes(c, w))
		return false;
	sorted = sort_prefixes(c, w, &count);
	if (!sorted) {
		reply_error(reply_to(c), "ERR out of memory");
		return false;
	}
	first = first_overlap(sorted, count);
	free(sorted);
	if (first == HAS_IT)
		return true;
	reply_overlap(c, w, first);
	return false;
}

/* False: no memory, or the change feed cannot be read; then the client does not track. */
static bool tracking_begin(struct caller *c, const struct wish *w)
{
	struct tracked_keys *t = keys_of(c->srv);
	struct tracking *x = tracking_of(c);
	bool done = tracking_prepare(t);

	if (!done)
		return false;
	if (!transaction_of(c)->in_exec)
		changes_before_replies(c->worker); /* which are not for this client */
	if (!(x->flags & TRACKING_ON)) {
		x->caller = c;
		LIST_INIT(&x->prefixes);
		LIST_INSERT_HEAD(&t->clients, x, link);
		t->client_count++;
	}
	x->flags = TRACKING_ON | w->flags;
	x->redirect = (uint64_t)w->redirect;
	if (!(w->flags & TRACKING_NOLOOP))
		x->origin = 0;
	else if (!x->origin)
		x->origin = origin_new(t);
	if (w->flags & TRACKING_BCAST && !w->prefix_count)
		done = follow(t, x, "", 0);
	for (unsigned int i = 0; done && i < w->prefix_count; i++)
		done = follow(t, x, w->prefixes[i]->ptr, w->prefixes[i]->len);
	if (done && changes_follow(c->srv))
		return true;
	tracking_end(c);
	return false;
}

void cmd_client_tracking(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct wish w = { 0 };
	const char *why;

	if (!parse_wish(c, argc, argv, &w))
		return;
	if (arg_is(&argv[2], "off")) {
		tracking_end(c);
		reply_ok(reply_to(c));
		return;
	}
	if (!arg_is(&argv[2], "on")) {
		reply_error(reply_to(c), "ERR syntax error");
		return;
	}
	why = contradiction(tracking_of(c)->flags, &w);
	if (why)
		reply_error(reply_to(c), "ERR %s", why);
	else if (!(w.flags & TRACKING_BCAST) || check_prefixes(c, &w)) {
		if (tracking_begin(c, &w))
			reply_ok(reply_to(c));
		else
			reply_error(reply_to(c), "ERR changes cannot be told of: see the log");
	}
}

void cmd_client_caching(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct tracking *x = tracking_of(c);
	bool yes = arg_is(&argv[2], "yes");

	if (!(x->flags & TRACKING_ON))
		reply_error(reply_to(c), "ERR CLIENT CACHING can be called only when the client is "
					 "in tracking mode with OPTIN or OPTOUT mode enabled");
	else if (!yes && !arg_is(&argv[2], "no"))
		reply_error(reply_to(c), "ERR syntax error");
	else if (yes && !(x->flags & TRACKING_OPTIN))
		reply_error(reply_to(c), "ERR CLIENT CACHING YES is only valid when tracking is "
					 "enabled in OPTIN mode.");
	else if (!yes && !(x->flags & TRACKING_OPTOUT))
		reply_error(reply_to(c), "ERR CLIENT CACHING NO is only valid when tracking is "
					 "enabled in OPTOUT mode.");
	else {
		x->flags |= TRACKING_CACHING;
		reply_ok(reply_to(c));
	}
}

/* -1 = it does not track. */
static int64_t redirect_of(const struct tracking *x)
{
	return x->flags & TRACKING_ON ? (int64_t)x->redirect : -1;
}

void cmd_client_getredir(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	reply_int(reply_to(c), redirect_of(tracking_of(c)));
}

static void reply_flags(struct reply *r, unsigned int flags)
{
	const char *words[6] = { flags & TRACKING_ON ? "on" : "off" };
	unsigned int n = 1;

	if (flags & TRACKING_BCAST)
		words[n++] = "bcast";
	if (flags & TRACKING_OPTIN)
		words[n++] = "optin";
	if (flags & TRACKING_OPTOUT)
		words[n++] = "optout";
	if (flags & TRACKING_CACHING)
		words[n++] = flags & TRACKING_OPTIN ? "caching-yes" : "caching-no";
	if (flags & TRACKING_NOLOOP)
		words[n++] = "noloop";
	if (flags & TRACKING_BROKEN)
		words[n++] = "broken_redirect";
	reply_set(r, n);
	for (unsigned int i = 0; i < n; i++)
		reply_text(r, words[i]);
}

/* The prefixes of a client, in Redis' order. */
static void reply_prefixes(struct reply *r, const struct tracking *x)
{
	struct changed *sorted;
	const struct follower *f;
	unsigned int n = 0;

	LIST_FOREACH(f, &x->prefixes, of_client)
	n++;
	sorted = calloc(n + 1, sizeof(*sorted));
	n = 0;
	LIST_FOREACH(f, &x->prefixes, of_client)
	if (sorted)
		sorted[n++] = (struct changed){ 0, f->prefix->len, f->prefix->text };
	if (n)
		qsort(sorted, n, sizeof(*sorted), by_key);
	reply_array(r, n);
	for (unsigned int i = 0; i < n; i++)
		reply_bulk(r, sorted[i].key, sorted[i].len);
	free(sorted);
}

void cmd_client_trackinginfo(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct tracking *x = tracking_of(c);
	struct reply *r = reply_to(c);

	reply_map(r, 3);
	reply_text(r, "flags");
	reply_flags(r, x->flags);
	reply_text(r, "redirect");
	reply_int(r, redirect_of(x));
	reply_text(r, "prefixes");
	reply_prefixes(r, x);
}

/* --- INFO --- */

unsigned int tracking_clients(const struct server *s)
{
	return keys_of(s)->client_count;
}

void tracking_metrics(struct metrics *m, const struct server *s)
{
	const struct tracked_keys *t = keys_of(s);

	/* clang-format off */
	const struct figure figures[] = {
		{ "tracking_total_keys", GAUGE(t->keys.count), "redis_tracking_total_keys", "keys that clients with CLIENT TRACKING have read" },
		{ "tracking_total_items", GAUGE(t->items), "redis_tracking_total_items", "pairs of a key that was read with CLIENT TRACKING and its reader" },
		{ "tracking_total_prefixes", GAUGE(t->prefixes.count), "redis_tracking_total_prefixes", "prefixes that clients track" },
		{ "tracking_total_bytes", GAUGE(t->bytes), "xkv_tracking_bytes", "memory of the keys and readers that CLIENT TRACKING remembers" },
	};
	/* clang-format on */
	metrics_show(m, NULL, NULL, figures);
}

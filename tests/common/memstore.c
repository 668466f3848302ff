/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An in-memory store behind the interface of loader/store/store.h: a chained hash
 * table with a fixed number of buckets and one mutex.  The table never grows,
 * which gives store_scan() the same promise as the BPF index: a walk by bucket
 * meets every key that stays exactly once.
 */
#include "memstore.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "loader/store/feed.h"
#include "loader/store/txn.h"

#define BUCKETS	     16384U
#define MAX_CONTEXTS 64U
#define ANY	     (-1) /* database */

enum counter { HITS, MISSES, INSERTS, OVERWRITES, DELETES, EXPIRES, EXPIRY_CHANGES, COUNTERS };

static const char *const counter_names[COUNTERS] = {
	"get_hits", "get_misses", "inserts", "overwrites", "deletes", "expires", "expiry_changes",
};

struct item {
	struct item *next;
	uint64_t expire_ms;
	uint64_t version;
	uint32_t value_len;
	uint32_t key_len;
	uint8_t db;	/* stored number */
	uint8_t data[]; /* key, then value */
};

struct store {
	pthread_mutex_t lock; /* over everything below */
	pthread_cond_t released;
	struct item *buckets[BUCKETS];
	uint64_t count;
	uint64_t bytes;
	uint64_t max_keys;
	uint64_t last_version;
	uint64_t advanced_ms;
	uint64_t counters[COUNTERS];
	uint8_t stored[STORE_DATABASES]; /* by the numbers of clients */
	unsigned int contexts;
	unsigned int sweep; /* bucket at which store_expire_cycle() goes on */
	bool hold;
	unsigned int fail_after, fail_count; /* SETs, see memstore_fail_sets() */
	int fail_err;
	struct record *records, **last; /* of the feed, while there is a reader; owned */
	uint64_t head;			/* position of the next record */
	bool listens;
};

/* Of the change feed. */
struct record {
	struct record *next;
	struct feed_change change;
	char key[];
};

struct store_ctx {
	struct store *st;
	void *value; /* what the last store_entry of this context points to */
	uint16_t origin;
	uint8_t db; /* stored number */
};

static void lock(const struct store *st)
{
	pthread_mutex_lock((pthread_mutex_t *)&st->lock);
}

static void unlock(const struct store *st)
{
	pthread_mutex_unlock((pthread_mutex_t *)&st->lock);
}

struct store *memstore_new(void)
{
	struct store *st = calloc(1, sizeof(*st));

	if (!st)
		return NULL;
	pthread_mutex_init(&st->lock, NULL);
	pthread_cond_init(&st->released, NULL);
	st->max_keys = 1U << 20;
	st->head = 1;
	st->last = &st->records;
	for (unsigned int db = 0; db < STORE_DATABASES; db++)
		st->stored[db] = (uint8_t)db;
	return st;
}

void memstore_free(struct store *st)
{
	if (!st)
		return;
	for (unsigned int i = 0; i < BUCKETS; i++) {
		for (struct item *it = st->buckets[i], *next; it; it = next) {
			next = it->next;
			free(it);
		}
	}
	pthread_cond_destroy(&st->released);
	pthread_mutex_destroy(&st->lock);
	free(st);
}

void memstore_set_max_keys(struct store *st, uint64_t max_keys)
{
	lock(st);
	st->max_keys = max_keys;
	unlock(st);
}

void memstore_advance(struct store *st, uint64_t ms)
{
	lock(st);
	st->advanced_ms += ms;
	unlock(st);
}

void memstore_hold_scans(struct store *st, bool hold)
{
	lock(st);
	st->hold = hold;
	pthread_cond_broadcast(&st->released);
	unlock(st);
}

void memstore_fail_sets(struct store *st, unsigned int after, unsigned int count, int err)
{
	lock(st);
	st->fail_after = after;
	st->fail_count = count;
	st->fail_err = err;
	unlock(st);
}

/* The error that a test has ordered for this SET, or 0. */
static int ordered_failure(struct store *st)
{
	if (!st->fail_count)
		return 0;
	if (st->fail_after) {
		st->fail_after--;
		return 0;
	}
	st->fail_count--;
	return st->fail_err;
}

struct store_ctx *store_ctx_get(struct store *st)
{
	struct store_ctx *ctx = calloc(1, sizeof(*ctx));

	if (!ctx)
		return NULL;
	lock(st);
	if (st->contexts == MAX_CONTEXTS) {
		unlock(st);
		free(ctx);
		errno = EAGAIN;
		return NULL;
	}
	st->contexts++;
	unlock(st);
	ctx->st = st;
	store_select(ctx, 0);
	return ctx;
}

void store_ctx_put(struct store_ctx *ctx)
{
	if (!ctx)
		return;
	lock(ctx->st);
	ctx->st->contexts--;
	unlock(ctx->st);
	free(ctx->value);
	free(ctx);
}

static uint64_t now_ms_locked(const struct store *st)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000 + st->advanced_ms;
}

static bool expired(const struct item *it, uint64_t now)
{
	return it->expire_ms && it->expire_ms <= now;
}

static unsigned int bucket_of(const void *key, size_t key_len)
{
	uint64_t h = 0xcbf29ce484222325; /* FNV-1a */

	for (size_t i = 0; i < key_len; i++)
		h = (h ^ ((const uint8_t *)key)[i]) * 0x100000001b3;
	return (unsigned int)((h ^ h >> 32) % BUCKETS);
}

static size_t item_size(const struct item *it)
{
	return sizeof(*it) + it->key_len + it->value_len;
}

/* Adds a record to the feed; of lost ones nobody is told. */
static void tell(struct store *st, struct feed_change c)
{
	struct record *r = st->listens ? malloc(sizeof(*r) + c.key_len) : NULL;

	if (!r)
		return;
	memcpy(r->key, c.key, c.key_len);
	c.key = r->key;
	c.number = (uint8_t)store_number(st, c.db);
	c.frontend = XKV_FRONTEND_XKVD;
	c.position = st->head++;
	r->change = c;
	r->next = NULL;
	*st->last = r;
	st->last = &r->next;
}

static void tell_removal(struct store *st, const struct item *it, enum xkv_change what,
			 uint8_t cause, uint16_t origin)
{
	tell(st, (struct feed_change){ .what = what,
				       .db = it->db,
				       .key = it->data,
				       .key_len = it->key_len,
				       .cause = cause,
				       .origin = origin });
}

static void tell_op(struct store_ctx *ctx, const struct store_op *op, enum xkv_change what,
		    uint64_t expire_ms)
{
	tell(ctx->st, (struct feed_change){ .what = what,
					    .db = ctx->db,
					    .key = op->key,
					    .key_len = op->key_len,
					    .expire_ms = expire_ms,
					    .cause = op->cause ? op->cause : op->opcode,
					    .op_flags = op->flags,
					    .origin = ctx->origin });
}

static void unlink_item(struct store *st, struct item **link, enum counter why)
{
	struct item *it = *link;

	if (why == EXPIRES)
		tell_removal(st, it, XKV_CHANGE_EXPIRE, 0, 0);
	*link = it->next;
	st->count--;
	st->bytes -= item_size(it);
	st->counters[why]++;
	free(it);
}

/* The link that points to the live item of `key`, or to NULL; removes it if it has expired. */
static struct item **find(struct store *st, uint8_t db, const void *key, size_t key_len)
{
	struct item **link = &st->buckets[bucket_of(key, key_len)];

	for (; *link; link = &(*link)->next) {
		if ((*link)->db != db || (*link)->key_len != key_len ||
		    memcmp((*link)->data, key, key_len) != 0)
			continue;
		if (!expired(*link, now_ms_locked(st)))
			return link;
		unlink_item(st, link, EXPIRES);
		while (*link)
			link = &(*link)->next;
		return link;
	}
	return link;
}

/* Copies what `it` holds into the context, so that it outlives the lock.  One byte more: malloc(0) may
 * be NULL. */
static int copy_out(struct store_ctx *ctx, const struct item *it, struct store_entry *out)
{
	void *copy = malloc(it->value_len + 1U);

	if (!copy)
		return -ENOMEM;
	memcpy(copy, it->data + it->key_len, it->value_len);
	free(ctx->value);
	ctx->value = copy;
	*out = (struct store_entry){
		.value = copy,
		.value_len = it->value_len,
		.expire_ms = it->expire_ms,
		.version = it->version,
	};
	return 0;
}

static struct item *item_new(uint8_t db, const void *key, size_t key_len, const void *value,
			     size_t value_len)
{
	struct item *it = malloc(sizeof(*it) + key_len + value_len);

	if (!it)
		return NULL;
	it->next = NULL;
	it->key_len = (uint32_t)key_len;
	it->db = db;
	it->value_len = (uint32_t)value_len;
	memcpy(it->data, key, key_len);
	if (value_len)
		memcpy(it->data + key_len, value, value_len);
	return it;
}

/* 0 if a write with these flags may go on over `was` (NULL = no such key). */
static int check_condition(const struct item *was, const struct store_op *op)
{
	if (op->flags & XKV_CAS)
		return !was ? -ENOENT : was->version == op->version ? 0 : -ECANCELED;
	if ((was && (op->flags & XKV_NX)) || (!was && (op->flags & XKV_XX)))
		return -ECANCELED;
	return 0;
}

/* Puts a new item where `link` is; the caller holds the lock and has checked the conditions. */
static int place(struct store_ctx *ctx, struct item **link, const struct store_op *op,
		 const void *value, size_t value_len, uint64_t expire_ms)
{
	struct store *st = ctx->st;
	struct item *was = *link, *it;

	if (!was && st->count >= st->max_keys)
		return -ENOSPC;
	it = item_new(ctx->db, op->key, op->key_len, value, value_len);
	if (!it)
		return -ENOMEM;
	it->expire_ms = expire_ms;
	if (was) {
		it->next = was->next;
		st->bytes -= item_size(was);
		free(was);
	} else {
		st->count++;
	}
	st->counters[was ? OVERWRITES : INSERTS]++;
	it->version = ++st->last_version;
	st->bytes += item_size(it);
	*link = it;
	return 0;
}

static int do_get(struct store_ctx *ctx, struct item *it, const struct store_op *op,
		  struct store_entry *out)
{
	int ret;

	ctx->st->counters[it ? HITS : MISSES]++;
	if (!it)
		return -ENOENT;
	ret = copy_out(ctx, it, out);
	if (op->opcode != XKV_OP_GET) {
		out->value = NULL;
		out->value_len = 0;
	}
	return ret;
}

static int do_set(struct store_ctx *ctx, struct item **link, const struct store_op *op,
		  struct store_entry *out)
{
	bool keep = *link && (op->flags & XKV_KEEPTTL);
	int ret = ordered_failure(ctx->st);

	if (!ret && (op->flags & XKV_RETURN) && *link)
		ret = copy_out(ctx, *link, out);
	if (!ret)
		ret = check_condition(*link, op);
	if (!ret)
		ret = place(ctx, link, op, op->value, op->value_len,
			    keep ? (*link)->expire_ms : op->expire_ms);
	return ret;
}

/* The number that is the value of `it`, in the one form that it is printed in. */
static bool number_of(const struct item *it, int64_t *out)
{
	char text[32] = "", printed[32];

	if (it->value_len >= sizeof(text))
		return false;
	memcpy(text, it->data + it->key_len, it->value_len);
	errno = 0;
	*out = strtoll(text, NULL, 10);
	snprintf(printed, sizeof(printed), "%" PRId64, *out);
	return !errno && strlen(printed) == it->value_len && !strcmp(printed, text);
}

static int do_incr(struct store_ctx *ctx, struct item **link, const struct store_op *op,
		   struct store_entry *out)
{
	const struct item *was = *link;
	char text[32];
	int64_t number = 0;
	int ret = check_condition(was, op);

	if (ret)
		return ret;
	if (was && !number_of(was, &number))
		return -EDOM;
	if (__builtin_add_overflow(number, op->amount, &number))
		return -ERANGE;
	ret = snprintf(text, sizeof(text), "%" PRId64, number);
	ret = place(ctx, link, op, text, (size_t)ret, was ? was->expire_ms : 0);
	out->number = number;
	return ret;
}

static int do_append(struct store_ctx *ctx, struct item **link, const struct store_op *op,
		     struct store_entry *out)
{
	const struct item *was = *link;
	size_t had = was ? was->value_len : 0, len = had + op->value_len;
	int ret = check_condition(was, op);
	char *value;

	if (!ret && len > XKV_VALUE_MAX)
		ret = -EMSGSIZE;
	if (ret)
		return ret;
	value = malloc(len + 1); /* malloc(0) may be NULL */
	if (!value)
		return -ENOMEM;
	if (had)
		memcpy(value, was->data + was->key_len, had);
	memcpy(value + had, op->value, op->value_len);
	ret = place(ctx, link, op, value, len, was ? was->expire_ms : 0);
	free(value);
	out->number = (int64_t)len;
	return ret;
}

static int do_delete(struct store_ctx *ctx, struct item **link, const struct store_op *op,
		     struct store_entry *out)
{
	/* what has expired went when it was looked for */
	int ret = *link && !op->expired ? check_condition(*link, op) : -ENOENT;

	if (!ret && (op->flags & XKV_RETURN))
		ret = copy_out(ctx, *link, out);
	if (!ret)
		unlink_item(ctx->st, link, DELETES);
	return ret;
}

static int do_expire(struct store *st, struct item *it, const struct store_op *op)
{
	int ret = it ? check_condition(it, op) : -ENOENT;

	if (ret)
		return ret;
	it->expire_ms = op->expire_ms;
	it->version = ++st->last_version;
	st->counters[EXPIRY_CHANGES]++;
	return 0;
}

static int run_locked(struct store_ctx *ctx, struct item **link, const struct store_op *op,
		      struct store_entry *out)
{
	switch (op->opcode) {
	case XKV_OP_GET:
	case XKV_OP_TTL:
	case XKV_OP_TOUCH:
		return do_get(ctx, *link, op, out);
	case XKV_OP_SET:
		return do_set(ctx, link, op, out);
	case XKV_OP_DELETE:
		return do_delete(ctx, link, op, out);
	case XKV_OP_EXPIRE:
		return do_expire(ctx->st, *link, op);
	case XKV_OP_INCR:
		return do_incr(ctx, link, op, out);
	case XKV_OP_APPEND:
		return do_append(ctx, link, op, out);
	}
	return -EINVAL;
}

static int do_locked(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out)
{
	struct item **link = find(ctx->st, ctx->db, op->key, op->key_len);
	enum xkv_change what = *link ? XKV_CHANGE_OVERWRITE : XKV_CHANGE_CREATE;
	int ret = run_locked(ctx, link, op, out);

	if (ret || op->opcode == XKV_OP_GET || op->opcode == XKV_OP_TTL ||
	    op->opcode == XKV_OP_TOUCH)
		return ret;
	if (op->opcode == XKV_OP_DELETE)
		tell_op(ctx, op, XKV_CHANGE_DELETE, 0);
	else
		tell_op(ctx, op, op->opcode == XKV_OP_EXPIRE ? XKV_CHANGE_EXPIRY : what,
			(*link)->expire_ms);
	return 0;
}

int store_do(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out)
{
	int ret;

	*out = (struct store_entry){ 0 };
	if (op->key_len > XKV_LONG_KEY_MAX || op->value_len > XKV_VALUE_MAX)
		return -EMSGSIZE;
	lock(ctx->st);
	ret = do_locked(ctx, op, out);
	unlock(ctx->st);
	return ret;
}

/*
 * Transactions: the RESP front end has one thread, and nobody else uses the store, so operations
 * between begin and commit are alone anyway.
 */
int store_txn_begin(struct store_ctx *ctx)
{
	(void)ctx;
	return 0;
}

int store_txn_expect(struct store_ctx *ctx, const void *key, size_t key_len, uint64_t version)
{
	struct store_entry e;
	int ret = store_touch(ctx, key, key_len, false, &e);

	if (ret && ret != -ENOENT)
		return ret;
	return (ret ? 0 : e.version) == version ? 0 : -ECANCELED;
}

int store_txn_commit(struct store_ctx *ctx)
{
	(void)ctx;
	return 0;
}

void store_txn_abort(struct store_ctx *ctx)
{
	(void)ctx;
}

int store_txn_drop(struct store_ctx *ctx)
{
	(void)ctx;
	return 0;
}

int store_txn_error(const struct store_ctx *ctx)
{
	(void)ctx;
	return 0;
}

void store_txn_note(struct store_ctx *ctx, const void *key, size_t key_len, uint8_t cause)
{
	lock(ctx->st);
	tell(ctx->st, (struct feed_change){ .what = FEED_NOTE,
					    .db = ctx->db,
					    .key = key,
					    .key_len = key_len,
					    .cause = cause });
	unlock(ctx->st);
}

void store_origin(struct store_ctx *ctx, uint16_t origin)
{
	ctx->origin = origin;
}

/* The change feed, with one reader. */
struct feed_reader {
	struct store *st;
	struct record *current; /* owned */
	uint64_t position;
};

static void drop_records(struct store *st)
{
	for (struct record *r = st->records, *next; r; r = next) {
		next = r->next;
		free(r);
	}
	st->records = NULL;
	st->last = &st->records;
}

int feed_open(struct store *st, const char *name, struct feed_reader **out, bool *resumed)
{
	struct feed_reader *r = calloc(1, sizeof(*r));

	(void)name;
	*resumed = false;
	if (!r)
		return -ENOMEM;
	lock(st);
	st->listens = true;
	r->st = st;
	r->position = st->head;
	unlock(st);
	*out = r;
	return 0;
}

void feed_ends_with_xkvd(struct feed_reader *r)
{
	(void)r;
}

uint64_t feed_given_up(const struct store *st)
{
	(void)st;
	return 0;
}

void feed_keys_only(struct feed_reader *r)
{
	(void)r;
}

int feed_next(struct feed_reader *r, struct feed_change *out)
{
	struct store *st = r->st;

	free(r->current);
	lock(st);
	r->current = st->records;
	r->position = r->current ? r->current->change.position : st->head;
	if (r->current) {
		st->records = r->current->next;
		if (!st->records)
			st->last = &st->records;
		*out = r->current->change;
	}
	unlock(st);
	return r->current != NULL;
}

uint64_t feed_position(const struct feed_reader *r)
{
	return r->position;
}

uint64_t feed_head(const struct store *st)
{
	uint64_t head;

	lock(st);
	head = st->head;
	unlock(st);
	return head;
}

void feed_on_commit(struct store *st, feed_commit_fn *fn, void *arg)
{
	(void)st;
	(void)fn;
	(void)arg;
}

void feed_close(struct feed_reader *r)
{
	if (!r)
		return;
	lock(r->st);
	r->st->listens = false;
	drop_records(r->st);
	unlock(r->st);
	free(r->current);
	free(r);
}

uint64_t feed_trim(struct store *st)
{
	(void)st;
	return 0;
}

void feed_load(struct store *st, uint64_t *unread, uint64_t *refused)
{
	(void)st;
	*unread = *refused = 0;
}

void feed_adopted(struct store *st)
{
	(void)st;
}

void store_prefetch(struct store_ctx *ctx, const struct store_op *ops, unsigned int count)
{
	(void)ctx;
	(void)ops;
	(void)count;
}

void store_run(struct store_ctx *ctx, const struct store_op *ops, unsigned int count,
	       store_done_fn *done, void *arg)
{
	struct store_entry out;
	int ret;

	for (unsigned int i = 0; i < count; i++) {
		ret = store_do(ctx, &ops[i], &out);
		done(arg, i, ret, &out);
	}
}

/* Copies the live items of one bucket into a list at *out, which the caller frees, on -ENOMEM too.
 */
static int copy_bucket(struct store *st, unsigned int b, struct item **out)
{
	uint64_t now;
	int ret = 0;

	*out = NULL;
	lock(st);
	while (st->hold)
		pthread_cond_wait(&st->released, &st->lock);
	now = now_ms_locked(st);
	for (const struct item *it = st->buckets[b]; it && !ret; it = it->next) {
		struct item *copy;

		if (expired(it, now))
			continue;
		copy = malloc(item_size(it));
		if (!copy) {
			ret = -ENOMEM;
			break;
		}
		memcpy(copy, it, item_size(it));
		copy->next = *out;
		*out = copy;
	}
	unlock(st);
	return ret;
}

/* Calls fn for the copied items until it returns non-zero; frees them all.  Returns what fn did. */
static int report(struct item *items, int db, bool values, store_scan_fn *fn, void *arg,
		  unsigned int *seen)
{
	int ret = 0;

	for (struct item *it = items, *next; it; it = next) {
		struct store_entry entry = {
			.value = values ? it->data + it->key_len : NULL,
			.value_len = it->value_len,
			.expire_ms = it->expire_ms,
			.version = it->version,
			.db = it->db,
		};

		next = it->next;
		if (!ret && fn && (db == ANY || it->db == db)) {
			ret = fn(arg, it->data, it->key_len, &entry);
			(*seen)++;
		}
		free(it);
	}
	return ret;
}

static int scan(struct store_ctx *ctx, uint64_t *cursor, uint64_t end, unsigned int count, int db,
		bool values, store_scan_fn *fn, void *arg)
{
	unsigned int seen = 0;

	if (*cursor >= BUCKETS) {
		*cursor = 0; /* not one of ours */
		return 0;
	}
	do {
		struct item *items;
		int ret = copy_bucket(ctx->st, (unsigned int)*cursor, &items);

		if (ret) {
			report(items, ANY, false, NULL, NULL, &seen);
			return ret;
		}
		*cursor = (*cursor + 1) % BUCKETS;
		ret = report(items, db, values, fn, arg, &seen);
		if (ret)
			return ret;
	} while (*cursor && *cursor < end && seen < count);
	return 0;
}

int store_scan(struct store_ctx *ctx, uint64_t *cursor, unsigned int count, bool values,
	       store_scan_fn *fn, void *arg)
{
	return scan(ctx, cursor, UINT64_MAX, count, ANY, values, fn, arg);
}

int store_scan_db(struct store_ctx *ctx, uint64_t *cursor, uint64_t end, unsigned int count,
		  store_scan_fn *fn, void *arg)
{
	return scan(ctx, cursor, end, count, ctx->db, false, fn, arg);
}

uint64_t store_scan_end(const struct store *st)
{
	(void)st;
	return BUCKETS;
}

int store_usage(struct store_ctx *ctx, const void *key, size_t key_len, struct store_usage *out)
{
	struct item **link;

	if (key_len > XKV_LONG_KEY_MAX)
		return -EMSGSIZE;
	lock(ctx->st);
	link = find(ctx->st, ctx->db, key, key_len);
	*out = (struct store_usage){ .bytes = *link ? item_size(*link) : 0 };
	unlock(ctx->st);
	return out->bytes ? 0 : -ENOENT;
}

int store_flush_some(struct store_ctx *ctx, uint64_t *cursor, unsigned int count, bool all)
{
	struct store *st = ctx->st;

	lock(st);
	for (unsigned int i = 0; i < count && *cursor < BUCKETS; i++, ++*cursor) {
		struct item **link = &st->buckets[*cursor];

		while (*link) {
			if (!all && (*link)->db != ctx->db) {
				link = &(*link)->next;
				continue;
			}
			tell_removal(st, *link, XKV_CHANGE_DELETE, XKV_CAUSE_FLUSH, 0);
			unlink_item(st, link, DELETES);
		}
	}
	unlock(st);
	*cursor %= BUCKETS;
	return 0;
}

int store_flush(struct store_ctx *ctx)
{
	uint64_t cursor = 0;

	return store_flush_some(ctx, &cursor, BUCKETS, true);
}

unsigned int store_expire_cycle(struct store_ctx *ctx, unsigned int max_slots)
{
	struct store *st = ctx->st;
	unsigned int removed = 0;

	lock(st);
	for (unsigned int b = 0, looked = 0; b < BUCKETS && looked < max_slots; b++) {
		struct item **link = &st->buckets[st->sweep];
		uint64_t now = now_ms_locked(st);

		while (*link) {
			looked++;
			if (expired(*link, now)) {
				unlink_item(st, link, EXPIRES);
				removed++;
			} else {
				link = &(*link)->next;
			}
		}
		st->sweep = (st->sweep + 1) % BUCKETS;
	}
	unlock(st);
	return removed;
}

bool store_expiry_rests(const struct store *st)
{
	(void)st;
	return false;
}

void store_select(struct store_ctx *ctx, unsigned int db)
{
	ctx->db = ctx->st->stored[db % STORE_DATABASES];
}

uint8_t store_selected(const struct store_ctx *ctx)
{
	return ctx->db;
}

void store_reselect(struct store_ctx *ctx, uint8_t stored)
{
	ctx->db = stored;
}

unsigned int store_number(const struct store *st, uint8_t stored)
{
	unsigned int db = 0;

	while (db < STORE_DATABASES - 1 && st->stored[db] != stored)
		db++;
	return db;
}

void store_numbers(const struct store *st, uint8_t number[STORE_DATABASES])
{
	lock(st);
	for (unsigned int db = 0; db < STORE_DATABASES; db++)
		number[st->stored[db]] = (uint8_t)db;
	unlock(st);
}

void store_swap(struct store *st, unsigned int a, unsigned int b)
{
	uint8_t was = st->stored[a];

	lock(st);
	st->stored[a] = st->stored[b];
	st->stored[b] = was;
	unlock(st);
}

void store_databases(struct store *st, unsigned int count)
{
	(void)st;
	(void)count;
}

void store_database(const struct store *st, unsigned int db, struct store_database *out)
{
	uint64_t now = store_now_ms(st), left = 0;

	*out = (struct store_database){ 0 };
	lock(st);
	for (unsigned int b = 0; b < BUCKETS; b++)
		for (const struct item *it = st->buckets[b]; it; it = it->next) {
			if (it->db != st->stored[db])
				continue;
			out->keys++;
			out->expiring += it->expire_ms != 0;
			left += it->expire_ms > now ? it->expire_ms - now : 0;
		}
	unlock(st);
	out->avg_ttl_ms = out->expiring ? left / out->expiring : 0;
}

/* Reads one 64-bit field under the lock. */
static uint64_t peek(const struct store *st, const uint64_t *field)
{
	uint64_t value;

	lock(st);
	value = *field;
	unlock(st);
	return value;
}

uint64_t store_count(const struct store *st)
{
	return peek(st, &st->count);
}

uint64_t store_max_keys(const struct store *st)
{
	return peek(st, &st->max_keys);
}

uint64_t store_memory(const struct store *st)
{
	return sizeof(*st) + peek(st, &st->bytes);
}

uint64_t store_memory_least(const struct store *st)
{
	return sizeof(*st);
}

/* Its limit is one of keys. */
void store_limit(struct store *st, uint64_t maxmemory, enum store_policy policy)
{
	(void)st;
	(void)maxmemory;
	(void)policy;
}

void store_limit_lift(struct store *st)
{
	(void)st;
}

bool store_at_limit(const struct store *st)
{
	(void)st;
	return false;
}

uint64_t store_counter(const struct store *st, const char *name)
{
	for (unsigned int i = 0; i < COUNTERS; i++) {
		if (strcmp(name, counter_names[i]) == 0)
			return peek(st, &st->counters[i]);
	}
	return 0;
}

void store_counters(const struct store *st, void (*fn)(void *arg, const char *name, uint64_t value),
		    void *arg)
{
	for (unsigned int i = 0; i < COUNTERS; i++)
		fn(arg, counter_names[i], peek(st, &st->counters[i]));
}

/* It has no requests of the UDP protocol. */
void store_udp_operations(const struct store *st, uint64_t *driver, uint64_t *here)
{
	(void)st;
	*driver = *here = 0;
}

void store_refuse_writes(struct store *st, bool refuse)
{
	(void)st;
	(void)refuse;
}

void store_no_touch(struct store_ctx *ctx, bool on)
{
	(void)ctx;
	(void)on;
}

void store_hold_writes(struct store *st, bool hold)
{
	(void)st;
	(void)hold;
}

void store_sender(struct store_ctx *ctx, const struct sockaddr *from)
{
	(void)ctx;
	(void)from;
}

int store_datagram(struct store_ctx *ctx, const void *req, size_t req_len, void *reply,
		   size_t reply_max, size_t reply_allowed)
{
	(void)ctx;
	(void)req;
	(void)req_len;
	(void)reply;
	(void)reply_max;
	(void)reply_allowed;
	return -ENOSYS;
}

uint64_t store_now_ms(const struct store *st)
{
	uint64_t now;

	lock(st);
	now = now_ms_locked(st);
	unlock(st);
	return now;
}

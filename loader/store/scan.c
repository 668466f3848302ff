// SPDX-License-Identifier: BSD-2-Clause
/*
 * Walks: over the keys, in the order of the buckets of the index (SCAN, KEYS, snapshots, FLUSHALL),
 * and over the slots, in the order of the pages (expiry).
 *
 * A key stays in its bucket as long as it exists, and the index is never resized: so a key that
 * exists during the whole walk is met exactly once, and the number of the next bucket is the whole
 * state of a cursor.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "impl.h"
#include "longkey.h"
#include "util/clock.h"

/*
 * What bounds a call, in buckets without a key that may be of the database.  So many are passed by
 * whatever was requested, a mebibyte of the index: some 100 us.
 */
#define BUCKETS_A_CALL 16384
#define BUCKETS_A_KEY  64      /* more for each requested key */
#define BYTES_A_CALL   4194304 /* of values, and what the last bucket has beyond that */
#define COST_READ      16      /* of a bucket whose keys are looked at */
#define SKIPS_A_KEY    16      /* keys of other databases that count as one, which bounds it, too */
#define COST_REMOVAL   32      /* of an expired entry, relative to ... */
#define COST_LOOK      1       /* ... examining an entry that stays */
/* how to wait for an entry that is locked, or changes all the time */
#define READ_WAIT_MS  2000 /* in total: the thread that holds the lock may not be running */
#define READ_YIELDS   1000 /* tries that yield the CPU; later ones sleep */
#define READ_SLEEP_US 50
#define BUCKET_KEYS   ((XKV_CHAIN_MAX + 1) * XKV_WAYS)

#define ANY (-1)

/* A copy of a bucket with its chain, and the keys of it that were met. */
struct walk {
	struct store *st;
	uint32_t bucket;
	unsigned int entries, seen;
	unsigned int skipped; /* keys of other databases */
	size_t bytes;	      /* of values that were reported */
	uint64_t entry[BUCKET_KEYS];
	/* the keys that were met, so that none is reported twice if the bucket is read again */
	uint64_t met[BUCKET_KEYS]; /* their hashes, which need not differ: bpf/hash.h */
	struct {
		uint64_t word[XKV_HASH_WORDS];
		uint8_t len, db;
	} met_key[BUCKET_KEYS];
	int db; /* stored number of the database whose keys are reported, or ANY */
	uint64_t db_mask, db_bits; /* of entries that may be of it */
	bool values;
	bool stored; /* long keys are reported in their stored form, with the head in the value */
	struct large value; /* of an entry, if `values` are requested */
	void *key;	    /* XKV_LONG_KEY_MAX bytes: a long key; allocated on first use, as is */
	void *head;	    /* XKV_LONG_HEAD_MAX bytes: what is in front of its value */
	bool no_memory;
};

static uint64_t scan_load(const __u64 *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static bool may_be_of_db(const struct walk *w, uint64_t entry)
{
	return entry && (entry & w->db_mask) == w->db_bits;
}

static void read_entries(struct walk *w, const struct xkv_bucket *b)
{
	for (int way = 0; way < XKV_WAYS && w->entries < BUCKET_KEYS; way++) {
		uint64_t entry = scan_load(&b->entry[way]);

		if (may_be_of_db(w, entry))
			w->entry[w->entries++] = entry;
	}
}

/* Reads the references of a bucket and its chain.  False: it changed meanwhile. */
static bool read_bucket(struct walk *w)
{
	const struct xkv_bucket *home = &w->st->index[w->bucket], *b = home;
	uint64_t head = scan_load(&home->head), next = head & XKV_REF_MASK;

	w->entries = 0;
	read_entries(w, home);
	for (int i = 0; next && i < XKV_CHAIN_MAX; i++) {
		const struct xkv_chain *chain = (const struct xkv_chain *)slot_of(w->st, next);

		if (!chain)
			return false;
		b = &chain->bucket;
		read_entries(w, b);
		next = scan_load(&b->head) & XKV_REF_MASK;
	}
	return !((scan_load(&home->head) ^ head) & XKV_BUCKET_COUNT);
}

/*
 * Have the references of the bucket changed since they were read?  A key may have been relocated,
 * and its old slot reused for another key of this bucket, before the slot was read.
 */
static bool has_changed(struct walk *w)
{
	uint64_t before[BUCKET_KEYS];
	unsigned int entries = w->entries;

	memcpy(before, w->entry, entries * sizeof(*before));
	return !read_bucket(w) || w->entries != entries ||
	       memcmp(before, w->entry, entries * sizeof(*before));
}

static bool has_expired(const struct store *st, uint64_t expire_ms)
{
	return expire_ms && expire_ms <= store_now_ms(st);
}

/* Was this key met in this bucket before?  Records it if not. */
static bool met_before(struct walk *w, uint64_t hash, const struct slot_copy *key)
{
	for (unsigned int i = 0; i < w->seen; i++)
		if (w->met[i] == hash && w->met_key[i].len == key->key_len &&
		    w->met_key[i].db == key->db &&
		    !memcmp(w->met_key[i].word, key->key, key->key_len))
			return true;
	if (w->seen < BUCKET_KEYS) {
		w->met[w->seen] = hash;
		w->met_key[w->seen].len = key->key_len;
		w->met_key[w->seen].db = key->db;
		memcpy(w->met_key[w->seen++].word, key->key, key->key_len);
	}
	return false;
}

enum entry_read { READ_ENTRY, READ_GONE, READ_AGAIN };

/* Makes room for a long key and its head.  False: no memory. */
static bool scan_make_room(struct walk *w)
{
	if (!w->key)
		w->key = malloc(XKV_LONG_KEY_MAX);
	if (!w->head)
		w->head = malloc(XKV_LONG_HEAD_MAX);
	w->no_memory = !w->key || !w->head;
	return !w->no_memory;
}

static bool copy_entry(struct walk *w, uint64_t ref, struct slot_copy *copy)
{
	bool copied = slot_copy(w->st, ref, copy, w->values ? &w->value : NULL);

	w->no_memory = copy->no_memory;
	if (!copied)
		return false;
	if (copy->key_len != XKV_KEY_LONG || w->stored)
		return true;
	return scan_make_room(w) && (w->values || slot_copy_head(w->st, ref, copy, w->head));
}

/*
 * Reads the entry behind a reference of the bucket.  READ_AGAIN: the slot does not hold a key of
 * this bucket (any more), so the bucket has to be read again.
 */
static int scan_read_entry(struct walk *w, uint64_t entry, struct slot_copy *copy, bool *met)
{
	const struct xkv_config *cfg = w->st->cfg;
	uint64_t hash, fingerprint;

	if (!copy_entry(w, entry & XKV_REF_MASK, copy))
		return READ_AGAIN;
	hash = key_hash(w->st, copy);
	fingerprint = hash & cfg->fingerprint_mask;
	if ((fingerprint & cfg->bucket_mask) != w->bucket || XKV_TAG(fingerprint ^ entry))
		return READ_AGAIN;
	*met = met_before(w, hash, copy);
	return READ_ENTRY;
}

/* Waits before a bucket is read again.  False after READ_WAIT_MS. */
static bool wait_for_writer(unsigned int tries, uint64_t *since)
{
	if (!tries)
		return true;
	if (tries < READ_YIELDS)
		return sched_yield() == 0;
	if (tries == READ_YIELDS)
		*since = monotonic_ms();
	usleep(READ_SLEEP_US);
	return monotonic_ms() - *since < READ_WAIT_MS;
}

/* Calls `fn` for an entry, of a long key without its head. */
static int scan_report(struct walk *w, const struct slot_copy *copy, store_scan_fn *fn, void *arg)
{
	const void *key = copy->key, *value = w->values ? w->value.bytes : w->head;
	size_t key_len = copy->key_len, head = 0;

	if (key_len == XKV_KEY_LONG && !w->stored) {
		if (!long_head_get(value, copy->value_len, &key_len))
			return -EIO;
		long_key_get(w->key, key_len, copy->key, value);
		key = w->key;
		head = xkv_long_head_bytes(key_len);
	}
	w->bytes += w->values ? copy->value_len : 0;
	return fn(arg, key, key_len,
		  &(struct store_entry){ .value = w->values ? w->value.bytes + head : NULL,
					 .value_len = copy->value_len - head,
					 .expire_ms = copy->expire_ms,
					 .version = copy->seq,
					 .db = copy->db });
}

/*
 * Reports the keys of a bucket.  Reads it again while it changes; -EBUSY if it never stops, since
 * leaving a key out would lose it from a snapshot.
 */
static int report_bucket(struct walk *w, bool expired_too, unsigned int *keys, store_scan_fn *fn,
			 void *arg)
{
	struct slot_copy copy;
	bool again = true, met;
	uint64_t since = 0, retired;
	int ret = 0;

	w->seen = 0;
	for (unsigned int tries = 0; again && !ret; tries++) {
		if (w->no_memory)
			return -ENOMEM;
		if (!wait_for_writer(tries, &since))
			return -EBUSY;
		pages_hold(w->st);
		retired = w->st->mem.units_retired;
		again = !read_bucket(w);
		for (unsigned int i = 0; i < w->entries && !ret; i++) {
			if (scan_read_entry(w, w->entry[i], &copy, &met) == READ_AGAIN) {
				again = true;
				continue;
			}
			if (w->db != ANY && copy.db != w->db) {
				*keys += ++w->skipped % SKIPS_A_KEY == 0;
				continue;
			}
			if (met || (!expired_too && has_expired(w->st, copy.expire_ms)))
				continue;
			/* `fn` may block, or wait for the maintenance thread to add a page */
			pages_release(w->st);
			ret = scan_report(w, &copy, fn, arg);
			pages_hold(w->st);
			++*keys;
			if (w->st->mem.units_retired != retired) {
				/* the other references may point into units that were reused */
				again = true;
				break;
			}
		}
		again = again || has_changed(w);
		pages_release(w->st);
	}
	return ret;
}

/* May the bucket have keys of the database, or a chain that has? */
static bool may_have_keys(const struct walk *w)
{
	const struct xkv_bucket *b = &w->st->index[w->bucket];
	bool may = scan_load(&b->head) & XKV_REF_MASK;

	for (int way = 0; way < XKV_WAYS; way++) /* without branches: most buckets are passed by */
		may |= may_be_of_db(w, scan_load(&b->entry[way]));
	return may;
}

static struct walk *walk_new(const struct store_ctx *ctx, int db, bool values)
{
	struct walk *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->st = ctx->st;
	w->db = db;
	if (db != ANY) {
		w->db_mask = ctx->st->cfg->fingerprint_mask & ~0ULL << XKV_HASH_DB_SHIFT;
		w->db_bits = (uint64_t)db << XKV_HASH_DB_SHIFT & w->db_mask;
	}
	w->values = values;
	return w;
}

static void walk_free(struct walk *w)
{
	large_free(&w->value);
	free(w->key);
	free(w->head);
	free(w);
}

/* What a walk reports. */
enum scan_of {
	SCAN_LIVE,
	SCAN_EXPIRED_TOO,
	SCAN_STORED, /* expired ones, too, in their stored form: of those who remove keys */
};

/* Looks at buckets before `end`. */
static int scan(struct store_ctx *ctx, uint64_t *cursor, uint64_t end, unsigned int count, int db,
		bool values, enum scan_of of, store_scan_fn *fn, void *arg)
{
	uint64_t budget = BUCKETS_A_CALL + (uint64_t)count * BUCKETS_A_KEY, spent = 0;
	struct walk *w = walk_new(ctx, db, values);
	unsigned int keys = 0;
	int ret = 0;

	if (!w)
		return -ENOMEM;
	if (end > ctx->st->bpf.buckets)
		end = ctx->st->bpf.buckets;
	w->stored = of == SCAN_STORED;
	while (!ret && *cursor < end && spent < budget && (!keys || keys < count) &&
	       w->bytes < BYTES_A_CALL) {
		w->bucket = (*cursor)++;
		spent++;
		if (may_have_keys(w)) {
			spent += COST_READ;
			ret = report_bucket(w, of != SCAN_LIVE, &keys, fn, arg);
		}
	}
	if (*cursor >= ctx->st->bpf.buckets)
		*cursor = 0;
	walk_free(w);
	return ret;
}

int store_scan(struct store_ctx *ctx, uint64_t *cursor, unsigned int count, bool values,
	       store_scan_fn *fn, void *arg)
{
	return scan(ctx, cursor, UINT64_MAX, count, ANY, values, SCAN_LIVE, fn, arg);
}

int store_scan_all(struct store_ctx *ctx, uint64_t *cursor, unsigned int count, store_scan_fn *fn,
		   void *arg)
{
	return scan(ctx, cursor, UINT64_MAX, count, ANY, true, SCAN_EXPIRED_TOO, fn, arg);
}

int store_scan_stored(struct store_ctx *ctx, uint64_t *cursor, unsigned int count,
		      store_scan_fn *fn, void *arg)
{
	return scan(ctx, cursor, UINT64_MAX, count, ANY, false, SCAN_STORED, fn, arg);
}

int store_scan_db(struct store_ctx *ctx, uint64_t *cursor, uint64_t end, unsigned int count,
		  store_scan_fn *fn, void *arg)
{
	/* of database 0 that takes as long as some buckets */
	if (!ctx->db || stored_keys(ctx->st, ctx->db))
		return scan(ctx, cursor, end, count, ctx->db, false, SCAN_LIVE, fn, arg);
	*cursor = 0;
	return 0;
}

uint64_t store_scan_end(const struct store *st)
{
	return st->bpf.buckets;
}

/* ---- FLUSHALL ------------------------------------------------------------ */

struct flush {
	struct store_ctx *ctx;
	unsigned int requests;
	uint64_t expire_ms[XKV_CONTEXT_REQUESTS]; /* of the entries, 0 = never */
	bool expired; /* an entry has, before its request was run, and is left */
	int ret;
};

static void flush_run(struct flush *f)
{
	if (f->requests && !f->ret)
		f->ret = requests_run(f->ctx, f->requests);
	for (unsigned int i = 0; i < f->requests && !f->ret; i++) {
		if (request_result(f->ctx, i)->status == XKV_BUSY)
			f->ret = -EBUSY;
		else if (request_result(f->ctx, i)->status == XKV_MISS &&
			 !(f->ctx->request[i].flags & XKV_REQUEST_EXPIRED) &&
			 has_expired(f->ctx->st, f->expire_ms[i]))
			f->expired = true;
	}
	f->requests = 0;
}

static int flush_one(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	struct flush *f = arg;

	request_make(f->ctx, f->requests, XKV_OP_DELETE, entry->db, key, key_len);
	f->ctx->request[f->requests].cause = XKV_CAUSE_FLUSH;
	if (has_expired(f->ctx->st, entry->expire_ms))
		f->ctx->request[f->requests].flags |= XKV_REQUEST_EXPIRED;
	f->expire_ms[f->requests++] = entry->expire_ms;
	if (f->requests == XKV_CONTEXT_REQUESTS)
		flush_run(f);
	return f->ret;
}

int store_flush_some(struct store_ctx *ctx, uint64_t *cursor, unsigned int count, bool all)
{
	struct flush f = { .ctx = ctx };
	uint64_t begin = *cursor;
	int ret;

	if (!all && ctx->db && !stored_keys(ctx->st, ctx->db)) {
		*cursor = 0;
		return 0;
	}
	do {
		f.expired = false;
		*cursor = begin;
		/* runs no requests, so flush_one() can use those of the context */
		ret = scan(ctx, cursor, UINT64_MAX, count, all ? ANY : ctx->db, false, SCAN_STORED,
			   flush_one, &f);
		flush_run(&f);
		ret = ret ? ret : f.ret;
	} while (!ret && f.expired);
	return ret;
}

int store_flush(struct store_ctx *ctx)
{
	uint64_t cursor = 0;
	int ret;

	do {
		ret = store_flush_some(ctx, &cursor, 4096, true);
	} while (!ret && cursor);
	return ret;
}

/* ---- expiry -------------------------------------------------------------- */

/* A counter that increases when an entry gets an expiry. */
static uint64_t ttls_given(const struct store *st)
{
	return store_counter(st, "ttls_given");
}

bool store_expiry_rests(const struct store *st)
{
	return st->sweep.idle && ttls_given(st) == st->sweep.given;
}

/* Examines one slot.  1 if its entry has expired and a request to delete it was written. */
static unsigned int sweep_slot(struct store_ctx *ctx, uint64_t ref, unsigned int nr, uint64_t now)
{
	struct xkv_slot *slot = slot_of(ctx->st, ref);
	uint64_t seq = scan_load(&slot->seq), expire_ms = slot->expire_ms;
	uint8_t db = slot->db;
	struct slot_copy copy;

	atomic_thread_fence(memory_order_acquire);
	if ((seq & 1) || !expire_ms || __atomic_load_n(&slot->seq, __ATOMIC_RELAXED) != seq)
		return 0;
	ctx->st->sweep.met++;
	ctx->st->sweep.db[db].met++;
	if (expire_ms > now)
		ctx->st->sweep.db[db].ttl_ms += (double)(expire_ms - now);
	if (expire_ms > now || !slot_copy(ctx->st, ref, &copy, NULL) || !copy.expire_ms ||
	    copy.expire_ms > now)
		return 0;
	request_make(ctx, nr, XKV_OP_DELETE, copy.db, copy.key, copy.key_len);
	ctx->request[nr].flags |= XKV_REQUEST_EXPIRED;
	return 1;
}

static unsigned int sweep_run(struct store_ctx *ctx, unsigned int requests)
{
	unsigned int removed = 0;

	if (!requests || requests_run(ctx, requests))
		return 0;
	for (unsigned int i = 0; i < requests; i++)
		removed += request_result(ctx, i)->status == XKV_OK;
	return removed;
}

/* Ends a round over all pages and begins the next. */
static void sweep_next_round(struct store *st)
{
	uint64_t given = ttls_given(st);

	for (unsigned int db = 0; db < XKV_DATABASES; db++) {
		uint64_t met = st->sweep.db[db].met;

		st->sweep.db[db].expiring = met;
		st->sweep.db[db].avg_ttl_ms =
			met ? (uint64_t)(st->sweep.db[db].ttl_ms / (double)met) : 0;
		st->sweep.db[db].met = 0;
		st->sweep.db[db].ttl_ms = 0;
	}
	st->sweep.idle = !st->sweep.met && given == st->sweep.given;
	st->sweep.given = given;
	st->sweep.met = 0;
}

/*
 * Examines slots of one span, at a cost of about `budget`, and adds requests that delete expired
 * entries.  Returns the cost, 0 at the end of a round.
 */
static unsigned int sweep_span(struct store_ctx *ctx, unsigned int budget, uint64_t now,
			       unsigned int *requests)
{
	struct store *st = ctx->st;
	unsigned int spent = 0, found;
	struct span s;

	pages_hold(st);
	if (cursor_span(st, &st->sweep.cursor, &s))
		while (st->sweep.cursor.slot < s.slots && spent < budget &&
		       *requests < XKV_CONTEXT_REQUESTS) {
			found = sweep_slot(ctx, span_ref(&s, st->sweep.cursor.slot++), *requests,
					   now);
			*requests += found;
			spent += found ? COST_REMOVAL : COST_LOOK;
		}
	pages_release(st);
	return spent;
}

unsigned int store_expire_cycle(struct store_ctx *ctx, unsigned int max_slots)
{
	unsigned int requests = 0, removed = 0, budget = max_slots * COST_REMOVAL, spent = 0, step;
	struct store *st = ctx->st;
	uint64_t now = store_now_ms(st);

	if (store_expiry_rests(st))
		return 0;
	st->sweep.idle = false;
	while (spent < budget) {
		step = sweep_span(ctx, budget - spent, now, &requests);
		if (!step) {
			sweep_next_round(st);
			break; /* one call does not walk a small store several times */
		}
		spent += step;
		if (requests == XKV_CONTEXT_REQUESTS) {
			removed += sweep_run(ctx, requests);
			requests = 0;
		}
	}
	return removed + sweep_run(ctx, requests);
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * Walks: over the keys by the buckets of `index` (SCAN, KEYS, snapshots, FLUSHALL),
 * and over the slots by pages (expiry).
 *
 * A key stays in its bucket for as long as it exists, and the index is never
 * resized; so a key that is there throughout is met exactly once, and the number of the
 * next bucket is a cursor without state.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "impl.h"
#include "util/clock.h"

#define EMPTY_BUCKETS 64   /* looked at for each key that was asked for, so that a call ends */
#define COST_REMOVAL 32    /* of an expired entry, against ... */
#define COST_LOOK 1        /* ... a look at one that stays */
/* for an entry that is locked, or changes all the time; its writer may have lost the CPU, ... */
#define READ_WAIT_MS 2000
#define READ_YIELDS 1000   /* ... for so many tries yielding is enough, ... */
#define READ_SLEEP_US 50   /* ... then there is a pause between them */
#define BUCKET_KEYS ((XKV_CHAIN_MAX + 1) * XKV_WAYS)

/* A bucket with its chain as it was at one moment, and what was reported of it. */
struct walk {
	struct store *st;
	uint32_t bucket;
	unsigned int entries, seen;
	uint64_t entry[BUCKET_KEYS];
	/* hashes of the keys that were met, for when the bucket changes */
	uint64_t met[BUCKET_KEYS];
	struct {
		uint64_t word[XKV_HASH_WORDS];
		uint8_t len;
	} met_key[BUCKET_KEYS]; /* two keys may have the same hash: bpf/hash.h */
	void *value;               /* XKV_VALUE_MAX bytes, if values are asked for */
};

static uint64_t load(const __u64 *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void take_entries(struct walk *w, const struct xkv_bucket *b)
{
	for (int way = 0; way < XKV_WAYS && w->entries < BUCKET_KEYS; way++) {
		uint64_t entry = load(&b->entry[way]);

		if (entry)
			w->entry[w->entries++] = entry;
	}
}

/* Reads the references of a bucket and its chain. False: it changed meanwhile. */
static bool take_bucket(struct walk *w)
{
	const struct xkv_bucket *home = &w->st->index[w->bucket], *b = home;
	uint64_t head = load(&home->head), next = head & XKV_REF_MASK;

	w->entries = 0;
	take_entries(w, home);
	for (int i = 0; next && i < XKV_CHAIN_MAX; i++) {
		const struct xkv_chain *chain = (const struct xkv_chain *)slot_of(w->st, next);

		if (!chain)
			return false;
		b = &chain->bucket;
		take_entries(w, b);
		next = load(&b->head) & XKV_REF_MASK;
	}
	return !((load(&home->head) ^ head) & XKV_BUCKET_COUNT);
}

/*
 * Does the bucket refer to something else than it did?  A key may have moved, and its old slot gone
 * to another key of this bucket, before it was read.
 */
static bool has_changed(struct walk *w)
{
	uint64_t before[BUCKET_KEYS];
	unsigned int entries = w->entries;

	memcpy(before, w->entry, entries * sizeof(*before));
	return !take_bucket(w) || w->entries != entries ||
	       memcmp(before, w->entry, entries * sizeof(*before));
}

static bool has_expired(const struct store *st, uint64_t expire_ms)
{
	return expire_ms && expire_ms <= store_now_ms(st);
}

/* Was this key met in this bucket before?  Remembers it. */
static bool met_before(struct walk *w, uint64_t hash, const struct slot_copy *key)
{
	for (unsigned int i = 0; i < w->seen; i++)
		if (w->met[i] == hash && w->met_key[i].len == key->key_len &&
		    !memcmp(w->met_key[i].word, key->key, key->key_len))
			return true;
	if (w->seen < BUCKET_KEYS) {
		w->met[w->seen] = hash;
		w->met_key[w->seen].len = key->key_len;
		memcpy(w->met_key[w->seen++].word, key->key, key->key_len);
	}
	return false;
}

enum entry_read { READ_ENTRY, READ_GONE, READ_AGAIN };

/*
 * Reads the entry that a reference of the bucket leads to.  AGAIN: its slot does not hold a key of
 * this bucket (any more), so what the bucket refers to now has to be looked at.
 */
static int read_entry(struct walk *w, uint64_t entry, struct slot_copy *copy, bool *met)
{
	const struct xkv_config *cfg = w->st->cfg;
	uint64_t hash, fingerprint;

	if (!slot_copy(w->st, entry & XKV_REF_MASK, copy, w->value))
		return READ_AGAIN;
	hash = key_hash(w->st, copy);
	fingerprint = hash & cfg->fingerprint_mask;
	if ((fingerprint & cfg->bucket_mask) != w->bucket || XKV_TAG(fingerprint ^ entry))
		return READ_AGAIN;
	*met = met_before(w, hash, copy);
	return READ_ENTRY;
}

/* Before a bucket is read once more.  False: it has been tried for too long. */
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

/*
 * Reports the keys of a bucket.  What changed under our eyes is read anew until it stands still;
 * -EBUSY if it never does: a walk that leaves a key out would be a snapshot without it.
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
		if (!wait_for_writer(tries, &since))
			return -EBUSY;
		pages_hold(w->st);
		retired = w->st->mem.units_retired;
		again = !take_bucket(w);
		for (unsigned int i = 0; i < w->entries && !ret; i++) {
			if (read_entry(w, w->entry[i], &copy, &met) == READ_AGAIN) {
				again = true;
				continue;
			}
			if (met || (!expired_too && has_expired(w->st, copy.expire_ms)))
				continue;
			/* `fn` may take its time, and may need a page */
			pages_release(w->st);
			ret = fn(arg, copy.key, copy.key_len,
				 &(struct store_entry){ .value = w->value,
							.value_len = copy.value_len,
							.expire_ms = copy.expire_ms,
							.version = copy.seq });
			pages_hold(w->st);
			++*keys;
			if (w->st->mem.units_retired != retired) {
				/* the other references may lead into units of another size */
				again = true;
				break;
			}
		}
		again = again || has_changed(w);
		pages_release(w->st);
	}
	return ret;
}

static int scan(struct store_ctx *ctx, uint64_t *cursor, unsigned int count, bool values,
		bool expired_too, store_scan_fn *fn, void *arg)
{
	uint64_t buckets = ctx->st->bpf.buckets,
		 end = *cursor + (uint64_t)count * EMPTY_BUCKETS + 1;
	struct walk *w = calloc(1, sizeof(*w));
	unsigned int keys = 0;
	int ret = 0;

	if (w)
		w->value = values ? malloc(XKV_VALUE_MAX) : NULL;
	if (!w || (values && !w->value)) {
		free(w);
		return -ENOMEM;
	}
	w->st = ctx->st;
	while (!ret && *cursor < buckets && *cursor < end && (!keys || keys < count)) {
		w->bucket = (*cursor)++;
		if (load(&w->st->index[w->bucket].head) & XKV_REF_MASK)
			ret = report_bucket(w, expired_too, &keys, fn, arg);
		else if (memcmp(&w->st->index[w->bucket].entry, (uint64_t[XKV_WAYS]){},
				sizeof(w->st->index->entry)))
			ret = report_bucket(w, expired_too, &keys, fn, arg);
	}
	if (*cursor >= buckets)
		*cursor = 0;
	free(w->value);
	free(w);
	return ret;
}

int store_scan(struct store_ctx *ctx, uint64_t *cursor, unsigned int count, bool values,
	       store_scan_fn *fn, void *arg)
{
	return scan(ctx, cursor, count, values, false, fn, arg);
}

/* ---- FLUSHALL ------------------------------------------------------------ */

struct flush {
	struct store_ctx *ctx;
	unsigned int requests;
	int ret;
};

static void flush_run(struct flush *f)
{
	if (f->requests && !f->ret)
		f->ret = requests_run(f->ctx, f->requests);
	for (unsigned int i = 0; i < f->requests && !f->ret; i++)
		if (request_result(f->ctx, i)->status == XKV_BUSY)
			f->ret = -EBUSY;
	f->requests = 0;
}

static int flush_one(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	struct flush *f = arg;

	request_make(f->ctx, f->requests, XKV_OP_DELETE, key, key_len);
	if (has_expired(f->ctx->st, entry->expire_ms))
		f->ctx->request[f->requests].flags |= XKV_REQUEST_EXPIRED;
	f->requests++;
	if (f->requests == XKV_BATCH_REQUESTS)
		flush_run(f);
	return f->ret;
}

int store_flush_some(struct store_ctx *ctx, uint64_t *cursor, unsigned int count)
{
	struct flush f = { .ctx = ctx };
	/* the walk itself runs no operations, so that the requests are ours meanwhile */
	int ret = scan(ctx, cursor, count, false, true, flush_one, &f);

	flush_run(&f);
	return ret ? ret : f.ret;
}

int store_flush(struct store_ctx *ctx)
{
	uint64_t cursor = 0;
	int ret;

	do {
		ret = store_flush_some(ctx, &cursor, 4096);
	} while (!ret && cursor);
	return ret;
}

/* ---- expiry -------------------------------------------------------------- */

uint64_t store_expiring(const struct store *st)
{
	return st->sweep.expiring;
}

uint64_t store_avg_ttl(const struct store *st)
{
	return st->sweep.avg_ttl_ms;
}

/* Moves when an entry got an expiry. */
static uint64_t sweep_news(const struct store *st)
{
	return store_counter(st, "ttls_given");
}

bool store_expiry_rests(const struct store *st)
{
	return st->sweep.idle && sweep_news(st) == st->sweep.given;
}

/* Looks at one slot.  1 if its entry has expired and a request to delete it was written. */
static unsigned int sweep_slot(struct store_ctx *ctx, uint64_t ref, unsigned int nr,
			       uint64_t now)
{
	struct xkv_slot *slot = slot_of(ctx->st, ref);
	uint64_t seq = load(&slot->seq), expire_ms = slot->expire_ms;
	struct slot_copy copy;

	atomic_thread_fence(memory_order_acquire);
	if ((seq & 1) || !expire_ms || __atomic_load_n(&slot->seq, __ATOMIC_RELAXED) != seq)
		return 0;
	ctx->st->sweep.met++;
	if (expire_ms > now)
		ctx->st->sweep.ttl_ms += (double)(expire_ms - now);
	if (expire_ms > now || !slot_copy(ctx->st, ref, &copy, NULL) || !copy.expire_ms ||
	    copy.expire_ms > now)
		return 0;
	request_make(ctx, nr, XKV_OP_DELETE, copy.key, copy.key_len);
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

/* A turn over all pages ends and the next begins. */
static void sweep_turn(struct store *st)
{
	uint64_t news = sweep_news(st);

	st->sweep.expiring = st->sweep.met;
	st->sweep.avg_ttl_ms = st->sweep.met ?
				 (uint64_t)(st->sweep.ttl_ms / (double)st->sweep.met) :
				 0;
	st->sweep.ttl_ms = 0;
	st->sweep.idle = !st->sweep.met && news == st->sweep.given;
	st->sweep.given = news;
	st->sweep.met = 0;
}

/*
 * Looks at slots of one span, for no more than `budget`: what it spent, 0 at the end of a turn.
 * Adds DELETEs to the requests.
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
		       *requests < XKV_BATCH_REQUESTS) {
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
			sweep_turn(st);
			break; /* a small store is not walked again and again in one call */
		}
		spent += step;
		if (requests == XKV_BATCH_REQUESTS) {
			removed += sweep_run(ctx, requests);
			requests = 0;
		}
	}
	return removed + sweep_run(ctx, requests);
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * Commits transactions: makes a key of the map xkv_txn from each entry of the overlay, takes and
 * fills the slots of those that are written, and has bpf/txn.bpf.h put them into the store.
 */
#include "txn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "impl.h"
#include "longkey.h"
#include "lookup.h"
#include "overlay.h"
#include "util/clock.h"
#include "util/log.h"

#define ROOM_TRIES   16			/* calls of no_slot() without a slot more */
#define EVICT_TRIES  8			/* those that may be in vain */
#define TAKE_WAIT_MS (4 * GROW_WAIT_MS) /* for all slots of a transaction */
#define BUSY_MS	     2000		/* of tries to commit many keys, each of which takes long */
#define SPARES_FIRST 32			/* or a share of the keys; doubled with each try */
#define SPARES_SHARE 32
#define SPARES_MOST  1024 /* or one for each key */

/* ---- the keys -------------------------------------------------------------- */

struct commit {
	struct store_ctx *ctx;
	struct overlay_part *part; /* `count` of them; the program needs them in order */
	unsigned int count;
	uint64_t bucket_mask;
	bool writes;
	bool puts;  /* it needs slots */
	bool large; /* among them of large values */
	bool last;  /* this is the last try */
};

static bool has_part(const struct overlay_entry *e)
{
	return e->action != XKV_TXN_CHECK || e->expected != XKV_TXN_ANY;
}

/* May the program have to lock its bucket?  See needs_bucket() in bpf/txn.bpf.h. */
static bool locks_bucket(const struct overlay_entry *e)
{
	return e->action >= XKV_TXN_DELETE || !e->expected;
}

/*
 * The program locks each bucket once: keys of one bucket are neighbours.  Those that need no bucket
 * come first.
 */
static uint64_t order_of(const struct commit *c, const struct overlay_entry *e)
{
	return (uint64_t)locks_bucket(e) << 63 | (e->fingerprint & c->bucket_mask);
}

static int by_order(const void *a, const void *b)
{
	const struct overlay_part *x = a, *y = b;

	return x->order < y->order ? -1 : x->order > y->order;
}

/* 0 or -ENOMEM. */
static int collect(struct commit *c, struct overlay *o)
{
	c->part = o->few_parts;
	if (o->count > OVERLAY_PARTS)
		c->part = malloc(o->count * sizeof(*c->part));
	if (!c->part)
		return -ENOMEM;
	for (struct overlay_entry *e = o->last; e; e = e->before) {
		if (!has_part(e))
			continue;
		c->part[c->count++] = (struct overlay_part){ order_of(c, e), e };
		c->writes |= e->action != XKV_TXN_CHECK;
		c->puts |= e->action == XKV_TXN_PUT;
	}
	return 0;
}

static size_t head_bytes(const struct overlay_entry *e)
{
	return e->long_key ? xkv_long_head_bytes(e->long_len) : 0;
}

static size_t slot_need(const struct overlay_entry *e)
{
	return XKV_SLOT_NEED(e->key_len, head_bytes(e) + e->value_len);
}

static void put_key(struct store *st, struct xkv_txn_key *k, const struct overlay_entry *e)
{
	k->expected = e->expected;
	k->fingerprint = e->fingerprint;
	k->expire_ms = e->expire_ms;
	k->action = e->action;
	k->class = e->action == XKV_TXN_PUT ? class_for(st, slot_need(e)) : 0;
	k->key_len = e->key_len;
	k->db = e->db;
	memset(k->key, 0, sizeof(k->key));
	memcpy(k->key, e->key, XKV_PADDED(e->key_len));
}

/* ---- slots ----------------------------------------------------------------- */

static int txn_run(struct store_ctx *ctx, enum xkv_txn_cmd cmd, unsigned int first,
		   unsigned int count, struct xkv_txn_args *args)
{
	*args = (struct xkv_txn_args){
		.cmd = cmd, .first = first, .count = count, .request = ctx->first
	};
	return commit_run(ctx->st, args);
}

/* Gives back what the next transaction has in hand from this place on: it is needed now. */
static int free_hand(struct store_ctx *ctx, unsigned int first)
{
	return first < XKV_TXN_HAND ? txn_free_slots(ctx, first, XKV_TXN_HAND - first) : 0;
}

/*
 * The slot of a large value is recorded in the request first.  If xkvd is killed before it is
 * there no longer, it is freed once: see txn_adopt().
 */
static int take_large(struct commit *c, struct xkv_txn_key *k, size_t need)
{
	struct xkv_request *rq = c->ctx->request;
	int ret = request_unprefill(c->ctx, 0);

	if (!ret)
		ret = request_take_slot(c->ctx, 0, need);
	if (ret)
		return ret;
	__atomic_store_n(&k->prefilled, rq->prefilled, __ATOMIC_RELEASE);
	__atomic_store_n(&rq->prefilled, 0, __ATOMIC_RELEASE);
	return 0;
}

static size_t large_need(const struct commit *c, unsigned int i)
{
	const struct xkv_txn_key *k = &c->ctx->st->txn_key[i];

	return k->action == XKV_TXN_PUT && k->class == XKV_CLASS_LARGE ? slot_need(c->part[i].entry)
								       : 0;
}

/* Those that are made for it alone do not count: see page_add_huge(). */
static unsigned int promised_units(const struct commit *c, unsigned int i)
{
	unsigned int units = xkv_units(large_need(c, i));

	return xkv_tail_pages(units) ? 0 : units;
}

/* The first of them makes room for all. */
static int take_all_large(struct commit *c)
{
	_Atomic unsigned int *units = &c->ctx->st->maint.promised[XKV_CLASS_LARGE];
	int ret = free_hand(c->ctx, c->count);
	size_t need;

	for (unsigned int i = 0; i < c->count; i++)
		*units += promised_units(c, i);
	room_claim(c->ctx);
	for (unsigned int i = 0; i < c->count && !ret; i++) {
		need = large_need(c, i);
		if (need)
			ret = take_large(c, &c->ctx->st->txn_key[i], need);
		*units -= promised_units(c, i);
	}
	*units = 0;
	return ret;
}

/* Has the key the slot that XKV_TXN_TAKE takes, if any? */
static bool has_slot(const struct store *st, const struct xkv_txn_key *k)
{
	return k->action != XKV_TXN_PUT ||
	       (k->prefilled && slot_of(st, k->prefilled)->class == k->class);
}

/* The first of these keys without one: XKV_TXN_TAKE has come so far. */
static unsigned int taken_up_to(const struct store *st, unsigned int first, unsigned int end)
{
	while (first < end &&
	       (st->txn_key[first].class == XKV_CLASS_LARGE || has_slot(st, &st->txn_key[first])))
		first++;
	return first;
}

/*
 * Where a class has no slot, nor can have one, a larger class will do, as for single operations
 * (bpf/store.bpf.h: slot_take_near()).  False if none has a free slot.
 */
static bool use_larger_class(struct store *st, unsigned int count, unsigned int class)
{
	unsigned int larger = st->cfg->spare_class;

	for (unsigned int i = XKV_CLASSES_TRIED - 1; i; i--)
		if (class + i < st->class_count && !class_is_empty(st, class + i))
			larger = class + i;
	if (larger <= class || class_is_empty(st, larger))
		return false;
	for (unsigned int i = 0; i < count; i++)
		if (!st->txn_key[i].prefilled && st->txn_key[i].class == class)
			st->txn_key[i].class = larger;
	return true;
}

/* How many of these keys lack a slot, by class. */
static void lacking(const struct store *st, unsigned int first, unsigned int end,
		    unsigned int count[XKV_CLASSES])
{
	memset(count, 0, XKV_CLASSES * sizeof(*count));
	for (; first < end; first++)
		count[st->txn_key[first].class] += !has_slot(st, &st->txn_key[first]);
}

/* Makes room for all of these keys that lack a slot of the class. */
static int no_slot(struct store *st, unsigned int class, unsigned int first, unsigned int end,
		   uint64_t *until_ms)
{
	unsigned int lack[XKV_CLASSES];

	lacking(st, first, end, lack);
	return st->no_slot(st, class, lack[class], until_ms);
}

/* A slot for each of these keys that is written.  0, -ENOSPC, -EBUSY or -errno. */
static int take_slots(struct store_ctx *ctx, unsigned int first, unsigned int count)
{
	uint64_t end_ms = monotonic_ms() + TAKE_WAIT_MS, until_ms = 0;
	unsigned int busy = 0, tries = 0, at = first, end = first + count;
	unsigned int failed = first, now;
	struct store *st = ctx->st;
	struct xkv_txn_args args;
	int ret;

	do {
		ret = txn_run(ctx, XKV_TXN_TAKE, at, end - at, &args);
		if (ret || args.outcome == XKV_TXN_DONE)
			return ret;
		now = taken_up_to(st, at, end);
		if (now > at) {
			tries = busy = 0;
			if (monotonic_ms() < end_ms) /* many slots may take longer than one */
				until_ms = 0;
		}
		at = now;
		if (args.outcome != XKV_C_pass_no_slot) {
			ret = wait_for_others(st, ++busy);
		} else if (++tries > ROOM_TRIES || free_hand(ctx, end)) {
			ret = -ENOSPC;
		} else if (no_slot(st, args.no_slot, at, end, &until_ms) &&
			   (first || !use_larger_class(st, count, args.no_slot))) {
			/* not even one more since; an eviction may find nothing for once */
			if (at == failed && (!st->policy || tries > EVICT_TRIES))
				ret = -ENOSPC;
			failed = at;
		}
	} while (!ret);
	return ret;
}

/* The places behind the keys, and behind those at which slots are kept. */
static unsigned int first_spare(const struct commit *c)
{
	return c->count > XKV_TXN_HAND ? c->count : XKV_TXN_HAND;
}

/*
 * Takes so many slots for chain buckets: new keys may need one each, and the store makes room only
 * for a class that has no free slot at all.  0, -ENOSPC, -EBUSY or -errno.
 */
static int take_spares(struct commit *c, unsigned int class, unsigned int count)
{
	unsigned int first = first_spare(c);
	struct store *st = c->ctx->st;
	int ret = txn_keys_grow(st, first + count);

	if (ret)
		return ret;
	for (unsigned int i = first; i < first + count; i++)
		st->txn_key[i] = (struct xkv_txn_key){ .action = XKV_TXN_PUT, .class = class };
	return take_slots(c->ctx, first, count);
}

/* To where the next run finds them. */
static int free_spares(struct commit *c, unsigned int count)
{
	return txn_free_slots(c->ctx, first_spare(c), count);
}

/* Have all keys a slot already, from the transaction before? */
static bool have_slots(const struct commit *c)
{
	const struct store *st = c->ctx->st;

	for (unsigned int i = 0; i < c->count; i++)
		if (!has_slot(st, &st->txn_key[i]))
			return false;
	return true;
}

/*
 * Room for many keys is made for all at once, before the first slot is taken: a span in which the
 * transaction holds one cannot be emptied, and of each that can the kernel takes some milliseconds.
 */
static void txn_make_room(struct commit *c)
{
	struct store *st = c->ctx->st;
	unsigned int lack[XKV_CLASSES];
	uint64_t until_ms = 0;

	lacking(st, 0, c->count, lack);
	for (unsigned int class = 0; class < st->class_count; class ++)
		st->maint.promised[class] = lack[class];
	room_claim(c->ctx);
	for (unsigned int class = 0; class < st->class_count; class ++)
		if (lack[class] && xkv_class_free(&st->classes[class]) < lack[class])
			st->no_slot(st, class, lack[class], &until_ms);
}

static void room_is_taken(struct store *st)
{
	for (unsigned int class = 0; class < st->class_count; class ++)
		st->maint.promised[class] = 0;
}

/* 0, -ENOSPC, -EBUSY or -errno. */
static int txn_take_all(struct commit *c)
{
	int ret = 0;

	if (!have_slots(c)) {
		if (c->count > XKV_TXN_HAND)
			txn_make_room(c);
		ret = take_slots(c->ctx, 0, c->count);
	}
	if (!ret && c->large)
		ret = take_all_large(c);
	return ret;
}

/* Is it to begin again when there is room for what it lacks?  Before the first slot is taken. */
static int ask_for_room(struct commit *c)
{
	struct room_want want = { 0 };
	bool any = false;

	if (c->count <= XKV_TXN_HAND && !c->large)
		return 0;
	for (unsigned int i = 0; i < c->count; i++)
		/* that for a huge one is made alone: see page_add_huge() */
		if (slot_need(c->part[i].entry) <= XKV_SLOT_MAX &&
		    !has_slot(c->ctx->st, &c->ctx->st->txn_key[i])) {
			room_add(c->ctx->st, &want, slot_need(c->part[i].entry));
			any = true;
		}
	return any ? room_ask(c->ctx, &want) : 0;
}

static void fill_slot(struct xkv_slot *slot, const struct overlay_entry *e)
{
	void *at;

	if (!e->long_key) {
		slot_fill(slot, e->db, e->key, e->key_len, e->value, e->value_len);
		return;
	}
	at = slot_fill(slot, e->db, e->key, e->key_len, NULL, head_bytes(e) + e->value_len);
	memcpy(long_head_put(at, e->long_key, e->long_len), e->value, e->value_len);
}

static void fill_slots(struct commit *c)
{
	struct store *st = c->ctx->st;

	for (unsigned int i = 0; i < c->count; i++)
		if (c->part[i].entry->action == XKV_TXN_PUT)
			fill_slot(slot_of(st, st->txn_key[i].prefilled), c->part[i].entry);
}

/* ---- the commit ------------------------------------------------------------ */

static void clear_state(struct commit *c)
{
	for (unsigned int i = 0; i < c->count; i++) {
		struct xkv_txn_key *k = &c->ctx->st->txn_key[i];

		k->ref = k->seq = k->record = 0;
		k->state = 0;
	}
}

/* The slots of all keys, with what they will hold.  0, -ENOSPC, -EBUSY or -errno. */
static int take_and_fill(struct commit *c)
{
	int ret = txn_take_all(c);

	if (!ret)
		fill_slots(c);
	return ret;
}

/*
 * No slot for a chain bucket: makes room for some, without what the next transaction has in hand.
 * At the limit before the keys have theirs, which they give back for that: spans in which they hold
 * slots are not emptied, so in vain ever more entries would be evicted.  If there is none to be
 * had, the last try takes slots of larger classes.
 */
static int make_room_for_buckets(struct commit *c, unsigned int class, unsigned int *spares)
{
	unsigned int count = *spares;
	bool before = store_at_limit(c->ctx->st);
	int ret = -ENOSPC, freed;

	if (!c->last)
		ret = before ? txn_free_slots(c->ctx, 0, first_spare(c))
			     : free_hand(c->ctx, c->count);
	if (ret)
		return ret;
	ret = count > SPARES_MOST && count > c->count ? -ENOSPC : take_spares(c, class, count);
	if (!ret && before)
		ret = take_and_fill(c);
	freed = free_spares(c, count);
	*spares *= 2;
	c->last = ret == -ENOSPC;
	if (c->last)
		ret = before ? take_and_fill(c) : 0;
	return ret ? ret : freed;
}

static int commit_keys(struct commit *c)
{
	unsigned int busy = 0, spares = SPARES_FIRST;
	struct xkv_txn_args args;
	uint64_t end_ms = 0;
	int ret;

	if (spares < c->count / SPARES_SHARE)
		spares = c->count / SPARES_SHARE;
	do {
		clear_state(c);
		c->ctx->request->flags = c->last ? XKV_REQUEST_LAST : 0;
		c->ctx->request->cause = XKV_CAUSE_TXN;
		c->ctx->request->origin = c->ctx->origin;
		ret = txn_run(c->ctx, XKV_TXN_COMMIT, 0, c->count, &args);
		if (ret || args.outcome == XKV_TXN_DONE)
			return ret;
		switch (args.outcome) {
		case XKV_TXN_CONFLICT:
			return -ECANCELED;
		case XKV_C_pass_no_slot:
			ret = make_room_for_buckets(c, args.no_slot, &spares);
			break;
		case XKV_C_pass_full:
			return -ENOSPC;
		case XKV_TXN_TOO_LONG:
			return -EFBIG;
		default:
			ret = wait_for_others(c->ctx->st, ++busy);
			if (busy == 1)
				end_ms = monotonic_ms() + BUSY_MS;
			else if (c->count > XKV_TXN_FIRST && monotonic_ms() > end_ms)
				ret = -EBUSY;
		}
	} while (!ret);
	return ret;
}

static int commit_locked(struct commit *c)
{
	struct store *st = c->ctx->st;
	int ret = txn_keys_grow(st, c->count);

	if (ret)
		return ret;
	qsort(c->part, c->count, sizeof(*c->part), by_order);
	for (unsigned int i = 0; i < c->count; i++) {
		put_key(st, &st->txn_key[i], c->part[i].entry);
		c->large |= st->txn_key[i].class == XKV_CLASS_LARGE;
	}
	ret = c->puts ? ask_for_room(c) : 0;
	if (!ret && c->puts)
		ret = take_and_fill(c);
	if (!ret)
		ret = commit_keys(c);
	if (c->count > XKV_TXN_HAND)
		room_is_taken(st);
	st->maint.room.claimed = false;
	if (ret && c->puts && txn_free_slots(c->ctx, 0, c->count))
		log_warning("slots of a transaction could not be freed");
	return ret;
}

/* ---- without changes --------------------------------------------------------- */

/* Of a key that the engine has read. */
static int has_version(struct store *st, const struct overlay_entry *e)
{
	uint64_t version;
	int ret;

	if (!e->expected) /* that it is missing now does not say that it was all the time */
		return -EAGAIN;
	ret = lookup_version(st, e->db, e->key, e->key_len, &version);
	if (ret)
		return ret;
	return version == e->expected ? 0 : -ECANCELED;
}

/*
 * A witness may have changed though the entry is the same: another key of the bucket came, or
 * somebody locked the slot and changed nothing.  So the program has to find out.
 */
static int check_witnesses(const struct commit *c)
{
	for (unsigned int i = 0; i < c->count; i++) {
		const struct overlay_entry *e = c->part[i].entry;

		if (!e->witness.word)
			continue;
		if (!witness_holds(&e->witness))
			return -EAGAIN;
		if (e->expected && lookup_expired(c->ctx->st, e->expire_ms))
			return -ECANCELED;
	}
	return 0;
}

/*
 * Is all that was read as it was when it was read?  Then all was true together between the last
 * read and now.  0, -ECANCELED, or -EAGAIN: the program has to find out.
 */
static int validate(const struct commit *c, uint64_t retired)
{
	struct store *st = c->ctx->st;
	int ret = 0;

	for (unsigned int i = 0; i < c->count && !ret; i++)
		if (!c->part[i].entry->witness.word)
			ret = has_version(st, c->part[i].entry);
	if (ret)
		return ret;
	pages_hold(st);
	ret = st->mem.units_retired == retired ? check_witnesses(c) : -EAGAIN;
	pages_release(st);
	return ret;
}

static int commit(struct store_ctx *ctx, struct overlay *o)
{
	struct commit c = { .ctx = ctx, .bucket_mask = ctx->st->cfg->bucket_mask };
	int ret = o->error ? o->error : collect(&c, o);

	if (!ret && c.writes)
		ret = -EAGAIN;
	else if (!ret && c.count > 1) /* a single key was read at one point in time */
		ret = validate(&c, o->retired);
	if (ret == -EAGAIN) {
		pthread_mutex_lock(&ctx->st->txn_lock);
		ret = commit_locked(&c);
		pthread_mutex_unlock(&ctx->st->txn_lock);
	}
	if (c.part != o->few_parts)
		free(c.part);
	return ret;
}

static bool has_changes(const struct overlay *o)
{
	for (const struct overlay_entry *e = o->last; e; e = e->before)
		if (e->action != XKV_TXN_CHECK)
			return true;
	return false;
}

/* ---- the interface --------------------------------------------------------- */

unsigned int store_txn_keys(const struct store_ctx *ctx)
{
	return ctx->txn->count;
}

int store_txn_begin(struct store_ctx *ctx)
{
	ctx->txn = overlay_begin(ctx);
	return ctx->txn ? 0 : -ENOMEM;
}

int store_txn_expect(struct store_ctx *ctx, const void *key, size_t key_len, uint64_t version)
{
	struct overlay_entry *e;
	int ret = overlay_get(ctx, ctx->txn, key, key_len, false, op_do, &e);

	if (ret)
		return ret;
	return e->expected == version ? 0 : -ECANCELED;
}

bool store_txn_reads_own(struct store_ctx *ctx, const void *key, size_t key_len)
{
	struct overlay_entry *e = ctx->txn ? overlay_find(ctx, ctx->txn, key, key_len) : NULL;

	if (!e || e->action == XKV_TXN_CHECK)
		return false;
	return e->read_own = true;
}

static void tell_own_reads(const struct store_ctx *ctx, store_own_read_fn *fn, void *arg)
{
	for (const struct overlay_entry *e = ctx->txn->last; e; e = e->before) {
		size_t len;
		const void *key = overlay_key(e, &len);

		if (e->read_own || e->outdated)
			fn(arg, key, len, e->outdated, e->read_own ? ctx->request->record : 0);
	}
}

int store_txn_commit_reads(struct store_ctx *ctx, store_own_read_fn *fn, void *arg)
{
	const struct feed *feed = &ctx->st->feed;
	int ret;

	ctx->request->record = 0; /* then, where its records end */
	ret = commit(ctx, ctx->txn);
	if (!ret && fn)
		tell_own_reads(ctx, fn, arg);
	if (!ret && feed->committed)
		feed->committed(feed->committed_arg, ctx->txn->told, ctx->txn->told_count,
				feed_records_all(ctx->st) && has_changes(ctx->txn));
	store_txn_abort(ctx);
	return ret;
}

int store_txn_commit(struct store_ctx *ctx)
{
	return store_txn_commit_reads(ctx, NULL, NULL);
}

/* Its changes are not reported, its notes are. */
static void tell_notes(const struct store_ctx *ctx)
{
	const struct feed *feed = &ctx->st->feed;
	struct overlay *o = ctx->txn;
	unsigned int notes = 0;

	for (unsigned int i = 0; i < o->told_count; i++)
		if ((int)o->told[i].what == FEED_NOTE)
			o->told[notes++] = o->told[i];
	if (feed->committed && notes)
		feed->committed(feed->committed_arg, o->told, notes, false);
}

int store_txn_drop(struct store_ctx *ctx)
{
	int ret;

	for (struct overlay_entry *e = ctx->txn->last; e; e = e->before)
		e->action = XKV_TXN_CHECK;
	ret = commit(ctx, ctx->txn);
	if (!ret)
		tell_notes(ctx);
	store_txn_abort(ctx);
	return ret;
}

int store_txn_error(const struct store_ctx *ctx)
{
	return ctx->txn ? ctx->txn->error : 0;
}

void store_txn_note(struct store_ctx *ctx, const void *key, size_t key_len, uint8_t cause)
{
	struct overlay_entry *e;

	if (ctx->txn->listens && !overlay_get(ctx, ctx->txn, key, key_len, false, op_do, &e))
		overlay_tell(ctx->txn, e,
			     (struct feed_change){ .what = FEED_NOTE, .cause = cause });
}

void store_txn_abort(struct store_ctx *ctx)
{
	if (ctx->txn)
		overlay_end(ctx->txn);
	ctx->txn = NULL;
}

int txn_adopt(struct store *st)
{
	for (unsigned int i = 0; i < st->txn_room; i++)
		if (is_prefilled(st, st->txn_key[i].prefilled))
			st->txn_key[i].prefilled = 0; /* see take_large() */
	return txn_free_slots(&st->ctx[0], 0, st->txn_room);
}

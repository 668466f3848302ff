// SPDX-License-Identifier: BSD-2-Clause
/*
 * Look-ups in mapped memory.  The steps, and the order of the loads, are those of lookup_find() and
 * op_get() in bpf/store.bpf.h and bpf/ops.bpf.h, where the reasons are.  The pages are held from
 * the first load of the index to the last of the slot: so no unit gets slots of another size and
 * no page is unmapped meanwhile, as the grace period prevents it for XDP.
 */
#include "lookup.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "carry.h"
#include "guards.h"
#include "impl.h"

#define TRIES	    4	/* as in BPF; then the engine has to do it */
#define AHEAD_BYTES 256 /* of a slot: header, key, and a value of some 200 bytes */
#define LINE_BYTES  64	/* of a cache; where they are longer, some are asked for twice */

/* A key, and the entry that was found. */
struct search {
	struct store *st;
	uint64_t fingerprint;
	uint32_t key_len;
	uint8_t db;
	uint64_t ref, seq;
	struct xkv_slot *slot;
	struct witness witness;
	const uint64_t *key; /* padded with zeros */
	/* a GET, and where the value goes; NULL: it is not read */
	const struct store_op *op;
	struct large *value;
};

/*
 * An overflow bucket that was freed meanwhile may hold another entry, whose words are followed like
 * references until the count of the home bucket tells: into any place of a page, guards included.
 */
static NO_GUARD uint64_t lookup_load(const __u64 *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Is *word, after all loads so far, still what it was? */
static bool still(const __u64 *word, uint64_t was)
{
	atomic_thread_fence(memory_order_acquire);
	return __atomic_load_n(word, __ATOMIC_RELAXED) == was;
}

static uint64_t fingerprint_of(const struct store *st, uint8_t db, const void *key, size_t key_len)
{
	return hash_key(key, (uint32_t)key_len, db, &st->secrets->hash) & st->cfg->fingerprint_mask;
}

static struct search search_for(struct store *st, uint64_t fingerprint, uint8_t db,
				const uint64_t *key, size_t key_len)
{
	return (struct search){ .st = st,
				.fingerprint = fingerprint,
				.db = db,
				.key = key,
				.key_len = (uint32_t)key_len };
}

static const struct xkv_bucket *home_of(const struct store *st, uint64_t fingerprint)
{
	return &st->index[fingerprint & st->cfg->bucket_mask];
}

/* ---- finding the slot ------------------------------------------------------ */

enum match { MATCH_OTHER, MATCH_SAME, MATCH_UNSTABLE };

static bool holds_key(const struct search *s, const struct xkv_slot *slot)
{
	const uint64_t *key = (const uint64_t *)(slot + 1);

	if (slot->id != XKV_KEY_ID(s->key_len, s->db))
		return false;
	for (uint32_t i = 0; i * 8 < s->key_len; i++)
		if (key[i] != s->key[i])
			return false;
	return true;
}

/* Does the slot of the index entry at `place` hold the key?  SAME sets ref, seq and slot. */
static enum match slot_match(struct search *s, const __u64 *place, uint64_t entry)
{
	struct xkv_slot *slot = slot_of(s->st, entry);
	uint64_t seq;
	bool same;

	if (!slot)
		return MATCH_UNSTABLE;
	seq = lookup_load(&slot->seq);
	if (seq & 1)
		return MATCH_UNSTABLE;
	same = holds_key(s, slot);
	if (!same && !still(place, entry))
		return MATCH_UNSTABLE; /* the key may have moved, and its slot been reused */
	if (!still(&slot->seq, seq))
		return MATCH_UNSTABLE;
	if (!same)
		return MATCH_OTHER;
	s->ref = entry & XKV_REF_MASK;
	s->seq = seq;
	s->slot = slot;
	return MATCH_SAME;
}

static enum match bucket_match(struct search *s, const struct xkv_bucket *b)
{
	enum match match, all = MATCH_OTHER;

	for (int way = 0; way < XKV_WAYS; way++) {
		uint64_t entry = lookup_load(&b->entry[way]);

		if (XKV_TAG(entry ^ s->fingerprint) || !entry)
			continue;
		match = slot_match(s, &b->entry[way], entry);
		if (match == MATCH_SAME)
			return match;
		if (match == MATCH_UNSTABLE)
			all = match;
	}
	return all;
}

/* The same for the overflow buckets, from the one that a head refers to. */
static enum match chain_match(struct search *s, uint64_t head)
{
	enum match match, all = MATCH_OTHER;

	for (int i = 0; i < XKV_CHAIN_MAX && (head & XKV_REF_MASK); i++) {
		const struct xkv_chain *chain = (const struct xkv_chain *)slot_of(s->st, head);

		if (!chain)
			return MATCH_UNSTABLE;
		head = lookup_load(&chain->bucket.head);
		match = bucket_match(s, &chain->bucket);
		if (match == MATCH_SAME)
			return match;
		if (match == MATCH_UNSTABLE)
			all = match;
	}
	return all;
}

static int found(struct search *s)
{
	s->witness = (struct witness){ &s->slot->seq, s->seq };
	return 0;
}

/* Finds the slot of the key: 0, -ENOENT, or -EAGAIN. */
static int lookup_find(struct search *s)
{
	const struct xkv_bucket *home = home_of(s->st, s->fingerprint);
	enum match match, behind;
	uint64_t head, now;

	for (int i = 0; i < TRIES; i++) {
		head = lookup_load(&home->head);
		match = bucket_match(s, home);
		if (match == MATCH_SAME)
			return found(s);
		behind = chain_match(s, head);
		atomic_thread_fence(memory_order_acquire);
		now = __atomic_load_n(&home->head, __ATOMIC_RELAXED);
		/* data from a bucket that was unlinked meanwhile is invalid */
		if ((now ^ head) & XKV_BUCKET_COUNT)
			continue;
		if (behind == MATCH_SAME)
			return found(s);
		if (match != MATCH_OTHER || behind != MATCH_OTHER)
			continue;
		/* if it is locked, a key may come before the count changes */
		s->witness = (struct witness){ &home->head, head & ~XKV_BUCKET_LOCK };
		return -ENOENT;
	}
	return -EAGAIN;
}

/* ---- reading the entry ----------------------------------------------------- */

bool lookup_expired(const struct store *st, uint64_t expire_ms)
{
	struct timespec now;

	if (!expire_ms)
		return false;
	clock_gettime(CLOCK_TAI, &now);
	return expire_ms <= (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000 -
				    __atomic_load_n(&st->cfg->tai_offset_ms, __ATOMIC_RELAXED);
}

/* Copies the value, or the part that is wanted.  0, -EAGAIN or -ENOMEM. */
static int lookup_read_value(const struct search *s, struct store_entry *out)
{
	const struct xkv_slot *slot = s->slot;
	size_t len = slot_value_len(s->st, s->ref, slot), from;

	if (!slot_lengths_fit(s->st, s->ref, slot->class, s->key_len, (uint32_t)len))
		return -EAGAIN;
	out->value_len = part_of(s->op, len, &from);
	out->number = s->op->part ? (int64_t)len : 0;
	out->value = large_room(s->value, out->value_len);
	if (!out->value)
		return -ENOMEM;
	memcpy(s->value->bytes, (const char *)(slot + 1) + XKV_PADDED(s->key_len) + from,
	       out->value_len);
	return 0;
}

/*
 * Reads the entry that was found, with its value if that is wanted.  0, -ENOENT (it has expired),
 * -EAGAIN (it was changed), or -ENOMEM.
 */
static int read_found(const struct search *s, struct store_entry *out)
{
	const struct xkv_slot *slot = s->slot;
	struct store_entry e = { .expire_ms = slot->expire_ms, .version = s->seq };
	int ret = s->value ? lookup_read_value(s, &e) : 0;

	if (ret)
		return ret;
	if (!still(&slot->seq, s->seq))
		return -EAGAIN;
	if (lookup_expired(s->st, e.expire_ms))
		return -ENOENT;
	*out = e;
	return 0;
}

/* Finds and reads.  The caller holds the pages. */
static int find_and_read(struct search *s, struct store_entry *out)
{
	int ret = -EAGAIN;

	for (int i = 0; i < TRIES && ret == -EAGAIN; i++) {
		ret = lookup_find(s);
		if (!ret)
			ret = read_found(s, out);
	}
	return ret;
}

/*
 * The only field of a live entry that xkvd writes.  By now the slot may be free, or another
 * entry's: then that one looks used.
 */
static void mark_access(const struct store *st, struct xkv_slot *slot)
{
	uint16_t old = __atomic_load_n(&slot->access, __ATOMIC_RELAXED);
	uint16_t now = __atomic_load_n(&st->cfg->access, __ATOMIC_RELAXED);
	uint16_t new = xkv_access_used(st->cfg->track, old, now);

	if (new != old)
		__atomic_store_n(&slot->access, new, __ATOMIC_RELAXED);
}

/* Only the thread of the context writes them; see lookups_uncounted(). */
static void count_one(_Atomic uint64_t *counter)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

int lookup_hashed(struct store_ctx *ctx, const struct store_op *op, uint64_t fingerprint,
		  struct store_entry *out)
{
	struct xkv_request *rq = ctx->request; /* has the countdown to the next sample */
	int64_t left = rq->hot_left - (ctx->for_change ? 0 : (int64_t)ctx->st->cfg->hot_step);
	bool value = op->opcode == XKV_OP_GET;
	uint64_t key[XKV_HASH_WORDS];
	struct search s;
	int ret;

	*out = (struct store_entry){ 0 };
	ctx->witness = (struct witness){ 0 };
	/* the engine records samples, in a map that has no mapping */
	if (left <= 0)
		return -EAGAIN;
	key[(op->key_len - 1) / 8] = 0;
	memcpy(key, op->key, op->key_len);
	s = search_for(ctx->st, fingerprint, ctx->db, key, op->key_len);
	s.op = op;
	s.value = value ? &ctx->large : NULL;
	pages_hold(ctx->st);
	ret = find_and_read(&s, out);
	if (!ret && (op->opcode == XKV_OP_TOUCH || (value && !ctx->no_touch && !ctx->for_change)))
		mark_access(ctx->st, s.slot);
	pages_release(ctx->st);
	if (ret == -EAGAIN || ret == -ENOMEM)
		return ret;
	ctx->witness = s.witness;
	rq->hot_left = left;
	if (!ctx->for_change)
		count_one(ret ? &ctx->misses : &ctx->hits);
	return ret;
}

int lookup(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out)
{
	return lookup_hashed(ctx, op, fingerprint_of(ctx->st, ctx->db, op->key, op->key_len), out);
}

/* The slot of the first entry with the key's tag: nearly always that of the key. */
static const struct xkv_slot *likely_slot(const struct store *st, uint64_t fingerprint)
{
	const struct xkv_bucket *home = home_of(st, fingerprint);
	uint64_t entry;

	for (int way = 0; way < XKV_WAYS; way++) {
		entry = __atomic_load_n(&home->entry[way], __ATOMIC_RELAXED);
		if (entry && !XKV_TAG(entry ^ fingerprint))
			return slot_of(st, entry);
	}
	return NULL;
}

unsigned int lookup_ahead(struct store_ctx *ctx, const struct store_op *ops, unsigned int count,
			  uint64_t fingerprints[LOOKUP_AHEAD])
{
	const struct store *st = ctx->st;
	const struct store_op *op;
	const char *slot;

	if (count > LOOKUP_AHEAD)
		count = LOOKUP_AHEAD;
	for (unsigned int i = 0; i < count; i++) {
		op = &ops[i];
		fingerprints[i] = xkv_is_long(op->key_len)
					  ? 0
					  : fingerprint_of(st, ctx->db, op->key, op->key_len);
		__builtin_prefetch(home_of(st, fingerprints[i]));
	}
	for (unsigned int i = 0; i < count; i++) {
		slot = (const char *)likely_slot(st, fingerprints[i]);
		for (size_t at = 0; slot && at < AHEAD_BYTES; at += LINE_BYTES)
			__builtin_prefetch(slot + at);
	}
	return count;
}

bool witness_holds(const struct witness *w)
{
	return still(w->word, w->was);
}

int lookup_usage(struct store_ctx *ctx, const uint64_t *key, size_t key_len,
		 struct store_usage *out)
{
	struct store *st = ctx->st;
	struct search s =
		search_for(st, fingerprint_of(st, ctx->db, key, key_len), ctx->db, key, key_len);
	struct store_entry now;
	struct span span;
	uint16_t access = 0;
	int ret;

	pages_hold(st);
	ret = find_and_read(&s, &now);
	if (!ret && !span_of_ref(st, s.ref, &span))
		ret = -EAGAIN;
	if (!ret) {
		out->bytes = span.slot_bytes;
		access = __atomic_load_n(&s.slot->access, __ATOMIC_RELAXED);
	}
	pages_release(st);
	if (ret == -EAGAIN)
		return ret;
	count_one(ret ? &ctx->misses : &ctx->hits);
	if (!ret)
		out->frequency = hot_frequency(st, ctx->db, key, key_len, access);
	return ret;
}

int lookup_stamp(struct store *st, const struct carried *e, uint64_t now)
{
	uint64_t fingerprint = fingerprint_of(st, e->db, e->key, e->key_len), seq;
	struct search s = search_for(st, fingerprint, e->db, e->key, e->key_len);
	int ret = -EAGAIN;

	pages_hold(st);
	for (int i = 0; i < TRIES && ret == -EAGAIN; i++) {
		ret = lookup_find(&s);
		if (ret)
			continue;
		seq = now;
		__atomic_store_n(&s.slot->access, e->access, __ATOMIC_RELAXED);
		/* one that is being relocated is locked, and found elsewhere then */
		if (!__atomic_compare_exchange_n(&s.slot->seq, &seq, e->version, false,
						 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			ret = -EAGAIN;
	}
	pages_release(st);
	return ret == -ENOENT ? 0 : ret; /* it has expired */
}

int lookup_version(struct store *st, uint8_t db, const uint64_t *key, size_t key_len,
		   uint64_t *version)
{
	struct search s = search_for(st, fingerprint_of(st, db, key, key_len), db, key, key_len);
	struct store_entry now;
	int ret;

	pages_hold(st);
	ret = find_and_read(&s, &now);
	pages_release(st);
	*version = ret ? 0 : now.version;
	return ret == -EAGAIN ? ret : 0;
}

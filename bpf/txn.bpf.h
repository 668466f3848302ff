/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Transactions: changes of up to XKV_TXN_KEYS keys that take effect together, or not at all.  xkvd
 * has read the keys, and has filled a slot for each that it writes (loader/store/txn.c); this is
 * the commit, in one run of a program:
 *
 *   find      every key, and compares its version
 *   lock      the slots of the keys that change
 *   reserve   locks the buckets whose entries change, or that have to lack a key; keys that are
 *             created get an entry, whose slot reads as busy
 *   record    room for all records is reserved in the change feed, if somebody listens
 *   validate  the keys that were only read have not changed since they were found
 *   apply     each change goes through the commit point; cannot fail
 *
 * The order is that of Silo (Tu et al., SOSP 2013): all that is written is locked before what is
 * read is validated, so transactions are serializable.  Records are in the feed in that order, too,
 * so no snapshot has one without those that it depends on: whoever changes what was read here locks
 * it after it was validated, and reserves later.  An absent key has no version that could be
 * validated; its bucket is locked instead.  All locks are tried a bounded number of times, and in
 * the order slots, buckets; what fails before `apply` is rolled back, and xkvd tries again.  While
 * a key is locked it reads as busy in every other operation.
 *
 * A commit of many keys takes a while from `find` to `lock`.  What is written without having been
 * read is not given up because others write it, too: it is locked as it is then.
 */
#ifndef XKV_TXN_BPF_H
#define XKV_TXN_BPF_H

#include "ops.bpf.h"

/* A key of the transaction that xkvd commits. */
static __always_inline struct xkv_txn_key *txn_key_at(__u32 index)
{
	__u32 chunk = (index - XKV_TXN_FIRST) / XKV_TXN_CHUNK, zero = 0;
	struct xkv_txn_chunk *at;
	void *map;

	if (index < XKV_TXN_FIRST)
		return bpf_map_lookup_elem(&xkv_txn, &index);
	map = bpf_map_lookup_elem(&xkv_txn_more, &chunk);
	at = map ? bpf_map_lookup_elem(map, &zero) : NULL;
	if (!at)
		return NULL;
	barrier_var(at); /* no sum before that: older verifiers reject one of a possible NULL */
	return &at->key[(index - XKV_TXN_FIRST) % XKV_TXN_CHUNK];
}

/* A key of a request's transaction: the one that xkvd commits, or the ATOMIC datagram itself. */
static __always_inline struct xkv_txn_key *txn_key(struct xkv_request *rq, __u32 index)
{
	if (!(rq->flags & XKV_REQUEST_ATOMIC))
		return txn_key_at(index);
	if (FRONTEND(rq) == XKV_FRONTEND_XDP)
		return bpf_map_lookup_elem(&xkv_atomic, &index);
	index += rq->context * XKV_ATOMIC_MAX;
	return bpf_map_lookup_elem(&xkv_atomic_xkvd, &index);
}

/* The request whose fields the functions of the store use for the current key of xkv_txn. */
static __always_inline struct xkv_request *txn_request(const struct xkv_txn_args *args)
{
	__u32 index = args->request;

	return bpf_map_lookup_elem(&xkv_batch, &index);
}

/* Makes a key the current one. */
static __always_inline void txn_load(struct xkv_request *rq, const struct xkv_txn_key *k)
{
	rq->key_off = k->key_off;
	rq->key_len = k->key_len;
	rq->fingerprint = k->fingerprint;
	if (rq->flags & XKV_REQUEST_ATOMIC)
		return;
	rq->db = k->db;
	__builtin_memcpy(rq->in_word, k->key, sizeof(k->key));
}

/* Does its bucket have to be locked?  If the index entry changes, or the key has to stay absent. */
static __always_inline bool needs_bucket(const struct xkv_txn_key *k)
{
	return !k->ref || k->action == XKV_TXN_PUT || k->action == XKV_TXN_DELETE;
}

/* Runs a stage for one key, and stops the stage unless it succeeds. */
#define TXN_STAGE(stage)                                                                           \
	static int stage##_one(__u32 index, struct xkv_txn_args *args)                             \
	{                                                                                          \
		args->outcome = stage(txn_request(args), index);                                   \
		return args->outcome != XKV_TXN_DONE;                                              \
	}

static __always_inline bool is_expected(const struct xkv_txn_key *k, __u64 version)
{
	return k->expected == XKV_TXN_ANY || k->expected == version;
}

/* ---- find, lock ---------------------------------------------------------- */

/*
 * Finds the key and compares its version; a key that has expired does not exist.  Nothing is locked
 * yet: find() would take a slot that this transaction has locked, of another key with the same tag,
 * for one that may get the key.  XKV_TXN_DONE, XKV_TXN_CONFLICT, or busy.
 */
__noinline int txn_find(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct xkv_slot *slot;
	__u64 expire_ms;
	int found;

	if (!rq || !k)
		return XKV_C_pass_busy;
	txn_load(rq, k);
	for (int i = 0; i < TRIES; i++) {
		found = find(rq);
		if (found == BUSY)
			return XKV_C_pass_busy;
		if (found == ABSENT)
			return is_expected(k, 0) ? XKV_TXN_DONE : XKV_TXN_CONFLICT;
		slot = slot_at(rq->ref);
		if (!slot)
			continue;
		expire_ms = READ_ONCE(slot->expire_ms);
		smp_rmb();
		if (READ_ONCE(slot->seq) != rq->seq)
			continue;
		k->ref = rq->ref;
		k->seq = rq->seq;
		return is_expected(k, expired(rq, expire_ms) ? 0 : rq->seq) ? XKV_TXN_DONE
									    : XKV_TXN_CONFLICT;
	}
	return XKV_C_pass_busy;
}

TXN_STAGE(txn_find)

/* Locks a slot with the current key; AGAIN: it changes meanwhile. */
__noinline int txn_lock_try(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct xkv_slot *slot = k ? slot_at(k->ref) : NULL;
	__u64 seq;

	if (!rq || !k || !slot)
		return XKV_C_pass_busy;
	if (!holds_key(&IN(rq, rq->key_off), rq->key_len, rq->db, slot, &seq))
		return seq & 1 ? AGAIN : XKV_C_pass_busy;
	if (!EXCHANGE(slot, &slot->seq, seq, seq | 1))
		return AGAIN;
	k->seq = seq;
	k->state = XKV_TXN_LOCKED;
	return XKV_TXN_DONE;
}

/*
 * Locks the slot of a key that was not read, and that was changed since it was found.  The key is
 * compared first: another one may use the slot now.  A slot that has the key and an even `seq` is
 * the one that the index refers to.
 */
__noinline int txn_lock_again(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	int outcome = AGAIN;

	if (!rq || !k)
		return XKV_C_pass_busy;
	txn_load(rq, k);
	for (int i = 0; i < TRIES && outcome == AGAIN; i++)
		outcome = txn_lock_try(rq, index);
	return outcome == AGAIN ? XKV_C_pass_busy : outcome;
}

/*
 * Locks the slot of a key that changes, unless it was changed since it was found.  (An ATOMIC
 * datagram has read the keys that it writes.)
 */
__noinline int txn_lock(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct xkv_slot *slot;

	if (!k)
		return XKV_C_pass_busy;
	if (k->action == XKV_TXN_CHECK || !k->ref)
		return XKV_TXN_DONE;
	slot = slot_at(k->ref);
	if (!slot)
		return XKV_C_pass_busy;
	if (!EXCHANGE(slot, &slot->seq, k->seq, k->seq | 1))
		return k->expected == XKV_TXN_ANY && !(rq->flags & XKV_REQUEST_ATOMIC)
			       ? txn_lock_again(rq, index)
			       : XKV_C_pass_busy;
	k->state = XKV_TXN_LOCKED;
	return XKV_TXN_DONE;
}

TXN_STAGE(txn_lock)

/* ---- reserve ------------------------------------------------------------- */

/*
 * Is the current key missing in a locked bucket?  Its entries stay, and so do the keys in their
 * slots, locked or not.
 */
__noinline int bucket_lacks_key(struct xkv_request *rq, struct xkv_bucket *b)
{
	struct xkv_slot *slot;
	__u64 entry;

	if (!rq || !b)
		return false;
	for (int way = 0; way < XKV_WAYS; way++) {
		entry = READ_ONCE(b->entry[way]);
		if ((entry ^ rq->fingerprint) >> XKV_REF_BITS || !entry)
			continue;
		slot = slot_at(entry);
		if (!slot || !key_differs(&IN(rq, rq->key_off), rq->key_len, rq->db, slot))
			return false;
	}
	return true;
}

/* The same for a bucket and its chain. */
static __always_inline bool txn_lacks_key(struct xkv_request *rq, struct xkv_bucket *home)
{
	struct xkv_bucket *b = home;
	struct xkv_chain *chain;

	for (int i = 0; i <= XKV_CHAIN_MAX; i++) {
		if (!bucket_lacks_key(rq, b))
			return false;
		if (!(b->head & XKV_REF_MASK))
			return true;
		chain = next_of(b->head);
		if (!chain)
			return false;
		b = &chain->bucket;
	}
	return false;
}

/* A key that was not found, in its locked bucket: gets an entry, if it is created. */
__noinline int txn_reserve(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct xkv_bucket *home;
	int outcome;

	if (!rq || !k)
		return XKV_C_pass_busy;
	txn_load(rq, k);
	home = home_of(config(), k->fingerprint);
	if (!home || !txn_lacks_key(rq, home))
		return XKV_C_pass_busy; /* it exists by now */
	if (k->action != XKV_TXN_PUT)
		return XKV_TXN_DONE;
	outcome = chain_add(rq, home, entry_of(rq, k->prefilled));
	if (outcome == XKV_TXN_DONE)
		k->state |= XKV_TXN_RESERVED;
	return outcome;
}

/* Locks the bucket of a key.  False: another CPU has locked it, or an earlier key has. */
__noinline int txn_lock_bucket(struct xkv_txn_key *k)
{
	struct xkv_bucket *home = k ? home_of(config(), k->fingerprint) : NULL;

	if (!home || !bucket_lock(home))
		return false;
	k->state |= XKV_TXN_BUCKET;
	return true;
}

static int txn_reserve_one(__u32 index, struct xkv_txn_args *args)
{
	struct xkv_request *rq = txn_request(args);
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct xkv_config *cfg = config();
	__u32 bucket;

	if (!k || !cfg || !rq)
		return 1;
	if (!needs_bucket(k))
		return 0;
	bucket = k->fingerprint & cfg->bucket_mask;
	if (args->bucket != bucket) {
		if (!txn_lock_bucket(k)) {
			args->outcome = XKV_C_pass_busy;
			return 1;
		}
		args->bucket = bucket;
	}
	if (k->ref)
		return 0;
	args->outcome = txn_reserve(rq, index);
	args->no_slot = rq->need;
	return args->outcome != XKV_TXN_DONE;
}

/* ---- record -------------------------------------------------------------- */

/* Does the key change, once all conditions hold? */
static __always_inline bool txn_changes(const struct xkv_txn_key *k)
{
	return k->action == XKV_TXN_PUT || (k->action != XKV_TXN_CHECK && k->ref);
}

/* Bytes of its record in the feed, which is LEAN or not. */
static __always_inline __u32 txn_record_bytes(const struct xkv_txn_key *k, __u64 lean)
{
	bool put = k->action == XKV_TXN_PUT;
	__u32 what = put ? XKV_CHANGE_CREATE : XKV_CHANGE_DELETE;
	struct xkv_slot *slot = slot_at(put ? k->prefilled : k->ref);

	return feed_bytes(what, k->key_len, slot ? slot->value_len : 0, lean);
}

/* The same with the old entry, if that is recorded, too. */
static __always_inline __u32 txn_bytes(const struct xkv_txn_key *k, __u64 lean)
{
	struct xkv_slot *old = k->record & XKV_FEED_PAIR ? slot_at(k->ref) : NULL;

	return txn_record_bytes(k, lean) + (old ? feed_bytes_before(old) : 0);
}

/* Finds the records that a key needs, and their size. */
__noinline int txn_measure(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct xkv_config *cfg = config();

	if (!k || !cfg)
		return XKV_TXN_DONE;
	k->record = 0;
	if (!txn_changes(k))
		return XKV_TXN_DONE;
	k->record = feed_needs(cfg, k->fingerprint, k->ref ? slot_at(k->ref) : NULL);
	if (rq->record & XKV_FEED_PAIR) /* without old entries: they are too large */
		k->record &= ~(__u64)XKV_FEED_PAIR;
	if (k->record)
		rq->record_bytes += txn_bytes(k, rq->record & XKV_FEED_LEAN);
	return XKV_TXN_DONE;
}

TXN_STAGE(txn_measure)

/* Gives a key the next place; its lowest bits are flags. */
__noinline int txn_place(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	__u32 bytes;

	if (!k || !k->record)
		return XKV_TXN_DONE;
	bytes = txn_bytes(k, rq->record & XKV_FEED_LEAN);
	rq->record_bytes -= bytes;
	k->record =
		rq->record | (k->record & XKV_FEED_PAIR) | (rq->record_bytes ? XKV_FEED_MORE : 0);
	rq->record += bytes;
	return XKV_TXN_DONE;
}

TXN_STAGE(txn_place)

/* Reserves the bytes that were measured.  XKV_TXN_DONE, or busy: no room. */
static __always_inline int txn_reserve_records(struct xkv_request *rq)
{
	__u64 lean = rq->record & XKV_FEED_LEAN, at;

	if (!rq->record_bytes)
		return XKV_TXN_DONE;
	at = feed_reserve(rq->record_bytes);
	rq->record = at | lean;
	return at ? XKV_TXN_DONE : XKV_C_pass_busy;
}

/* How it is recorded: LEAN: without values, PAIR: without old entries. */
static __always_inline void txn_measure_all(struct xkv_request *rq, struct xkv_txn_args *args,
					    __u64 how)
{
	rq->record = how;
	rq->record_bytes = 0;
	bpf_loop(args->count, txn_measure_one, args, 0);
}

/* Reserves all records of the transaction together, if the feed has readers. */
static __always_inline void txn_record(struct xkv_request *rq, struct xkv_txn_args *args)
{
	struct xkv_config *cfg = config();
	struct xkv_feed *f = feed();
	bool spoils = false;
	__u64 how;

	if (!cfg || !cfg->feed || !f)
		return;
	how = feed_lean(cfg);
	txn_measure_all(rq, args, how);
	if (rq->record_bytes > XKV_FEED_TXN && !how && !feed_has_log(f))
		txn_measure_all(rq, args, how = XKV_FEED_LEAN);
	if (rq->record_bytes > XKV_FEED_TXN_MOST && cfg->feed & XKV_RECORD_BEFORE) {
		spoils = true; /* the snapshot starts again, not the transaction */
		txn_measure_all(rq, args, how | XKV_FEED_PAIR);
	}
	rq->record &= ~(__u64)XKV_FEED_PAIR;
	args->outcome =
		rq->record_bytes > XKV_FEED_TXN_MOST ? XKV_TXN_TOO_LONG : txn_reserve_records(rq);
	/* after the reservation: a snapshot's moment between the two would miss it */
	if (spoils)
		__sync_fetch_and_add(&f->spoilt, 1);
	if (args->outcome == XKV_TXN_DONE && rq->record_bytes)
		bpf_loop(args->count, txn_place_one, args, 0);
}

/* The transaction fails: marks its reserved records as no change. */
__noinline int txn_void(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct xkv_feed *f = feed();
	struct xkv_slot *old;
	__u32 bytes;
	__u64 at;

	if (!k || !f || !k->record)
		return XKV_TXN_DONE;
	at = k->record & ~7ULL;
	bytes = txn_record_bytes(k, k->record & XKV_FEED_LEAN);
	old = k->record & XKV_FEED_PAIR ? slot_at(k->ref) : NULL;
	if (old)
		feed_void(f, at + bytes, feed_bytes_before(old));
	feed_void(f, at, bytes);
	k->record = 0;
	return XKV_TXN_DONE;
}

/* ---- validate ------------------------------------------------------------ */

/* Is a key that was only read unchanged since it was found? */
__noinline int txn_validate(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct xkv_slot *slot;

	if (!k)
		return XKV_C_pass_busy;
	if (k->action != XKV_TXN_CHECK || !k->ref)
		return XKV_TXN_DONE;
	slot = slot_at(k->ref);
	return slot && READ_ONCE(slot->seq) == k->seq ? XKV_TXN_DONE : XKV_C_pass_busy;
}

TXN_STAGE(txn_validate)

/* ---- apply --------------------------------------------------------------- */

/* Cannot fail: the record was reserved before. */
static __always_inline void txn_prepare(struct change *c, struct xkv_request *rq,
					const struct xkv_txn_key *k, enum xkv_change what,
					__u64 ref, struct xkv_slot *slot)
{
	struct xkv_slot *old = k->record & XKV_FEED_PAIR ? slot_at(k->ref) : NULL;
	__u64 at = k->record & ~7ULL;

	*c = (struct change){
		.rq = rq, .what = what, .ref = ref, .slot = slot, .record = k->record
	};
	if (old)
		feed_write_before(at + txn_record_bytes(k, k->record & XKV_FEED_LEAN), k->ref, old);
#ifdef COMMIT_LISTENER
	listener_prepare(c, k->ref, slot->value_len);
#endif
}

/* Replaces or removes the entry of the locked slot in the index, and frees the slot. */
static __always_inline void txn_swap(struct xkv_request *rq, struct xkv_txn_key *k, __u64 new)
{
	struct xkv_bucket *home = home_of(config(), k->fingerprint);
	__u64 left = home ? chain_swap(rq, home, entry_of(rq, k->ref), entry_of(rq, new)) : 0;

	if (left > 1)
		slot_give(left);
}

/*
 * The slot that is kept for the next transaction's key at this place: the one that the entry has
 * left, or a free one.  So taking it needs no run.  Slots of a draining span are not kept.
 */
static __always_inline void txn_keep(const struct change *c, struct xkv_txn_key *k, __u32 index,
				     struct xkv_slot *old)
{
	bool keeps = index < XKV_TXN_HAND && k->class != XKV_CLASS_LARGE &&
		     !(c->rq->flags & XKV_REQUEST_ATOMIC);
	__u64 ref;

	k->prefilled = 0;
	if (keeps && old && !c->frees && old->class == k->class && !is_draining(k->ref)) {
		old->key_len = 0;
		k->prefilled = k->ref;
		return;
	}
	if (old)
		change_done(c, k->ref);
	if (!keeps)
		return;
	ref = slot_take(k->class);
	if (ref != LIST_EMPTY && ref != LIST_BUSY)
		k->prefilled = ref;
}

/* These leave the version of the entry in k->seq. */
__noinline int txn_put(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct xkv_config *cfg = config();
	struct xkv_slot *slot, *old;
	struct change change;

	if (!rq || !k || !cfg)
		return 0;
	slot = slot_at(k->prefilled);
	old = k->ref ? slot_at(k->ref) : NULL;
	if (!slot)
		return 0;
	txn_load(rq, k);
	slot->expire_ms = k->expire_ms;
	if (k->expire_ms)
		ttl_given(rq);
	txn_prepare(&change, rq, k, old ? XKV_CHANGE_OVERWRITE : XKV_CHANGE_CREATE, k->prefilled,
		    slot);
	if (old) {
		change_frees(&change, k->ref, old);
		change_replaces(&change, old->expire_ms);
		slot->access = old->access;
		mark_access(cfg, slot);
		txn_swap(rq, k, k->prefilled);
	}
	k->seq = change_commit(&change);
	txn_keep(&change, k, index, old);
	count(rq, old ? XKV_C_overwrites : XKV_C_inserts);
	return 0;
}

__noinline int txn_delete(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct change change;
	struct xkv_slot *slot;

	if (!rq || !k)
		return 0;
	slot = slot_at(k->ref);
	if (!slot)
		return 0;
	txn_load(rq, k);
	rq->seq = k->seq;
	txn_prepare(&change, rq, k, XKV_CHANGE_DELETE, k->ref, slot);
	change_frees(&change, k->ref, slot);
	txn_swap(rq, k, 0);
	change_commit(&change);
	change_done(&change, k->ref);
	count(rq, XKV_C_deletes);
	return 0;
}

__noinline int txn_expire(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct change change;
	struct xkv_slot *slot;

	if (!rq || !k)
		return 0;
	slot = slot_at(k->ref);
	if (!slot)
		return 0;
	txn_load(rq, k);
	if (k->expire_ms)
		ttl_given(rq);
	txn_prepare(&change, rq, k, XKV_CHANGE_EXPIRY, k->ref, slot);
	slot->expire_ms = k->expire_ms;
	k->seq = change_commit(&change);
	count(rq, XKV_C_expiry_changes);
	return 0;
}

static __always_inline void txn_apply(struct xkv_request *rq, const struct xkv_txn_key *k,
				      __u32 index)
{
	if (k->action == XKV_TXN_PUT)
		txn_put(rq, index);
	else if (k->action == XKV_TXN_DELETE && k->ref)
		txn_delete(rq, index);
	else if (k->action == XKV_TXN_EXPIRE && k->ref)
		txn_expire(rq, index);
}

static int txn_apply_one(__u32 index, struct xkv_txn_args *args)
{
	struct xkv_request *rq = txn_request(args);
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;

	if (!k)
		return 1;
	txn_apply(rq, k, index);
	return 0;
}

/* ---- the end ------------------------------------------------------------- */

/* Removes a reserved entry from the index. */
static __always_inline void txn_unreserve(struct xkv_request *rq, struct xkv_txn_key *k)
{
	struct xkv_bucket *home;
	__u64 left;

	if (!(k->state & XKV_TXN_RESERVED))
		return;
	txn_load(rq, k);
	home = home_of(config(), k->fingerprint);
	left = home ? chain_swap(rq, home, entry_of(rq, k->prefilled), 0) : 0;
	if (left > 1)
		slot_give(left);
}

static __always_inline void txn_unlock_bucket(struct xkv_txn_key *k)
{
	struct xkv_bucket *home;

	home = k->state & XKV_TXN_BUCKET ? home_of(config(), k->fingerprint) : NULL;
	if (home)
		bucket_unlock(home);
}

static __always_inline void txn_unlock(struct xkv_txn_key *k)
{
	struct xkv_slot *slot = k->state & XKV_TXN_LOCKED ? slot_at(k->ref) : NULL;

	if (slot)
		unlock(slot, k->seq);
}

static int txn_void_one(__u32 index, struct xkv_txn_args *args)
{
	txn_void(txn_request(args), index);
	return 0;
}

static int txn_unreserve_one(__u32 index, struct xkv_txn_args *args)
{
	struct xkv_request *rq = txn_request(args);
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;

	if (!k)
		return 1;
	txn_unreserve(rq, k);
	return 0;
}

static int txn_unlock_bucket_one(__u32 index, struct xkv_txn_args *args)
{
	struct xkv_txn_key *k = txn_key_at(index);

	if (!k)
		return 1;
	txn_unlock_bucket(k);
	return 0;
}

static int txn_unlock_one(__u32 index, struct xkv_txn_args *args)
{
	struct xkv_txn_key *k = txn_key_at(index);

	if (!k)
		return 1;
	txn_unlock(k);
	return 0;
}

static __always_inline void txn_commit(struct xkv_txn_args *args)
{
	struct xkv_request *rq = txn_request(args);
	__u32 count = args->count;

	if (!rq)
		return;
	rq->flags = XKV_REQUEST_XKVD | (rq->flags & XKV_REQUEST_LAST);
	rq->now_ms = 0;
	args->bucket = ~0U;
	args->outcome = XKV_TXN_DONE;
	bpf_loop(count, txn_find_one, args, 0);
	if (args->outcome == XKV_TXN_DONE)
		bpf_loop(count, txn_lock_one, args, 0);
	if (args->outcome == XKV_TXN_DONE)
		bpf_loop(count, txn_reserve_one, args, 0);
	if (args->outcome == XKV_TXN_DONE)
		txn_record(rq, args);
	if (args->outcome == XKV_TXN_DONE) {
		bpf_loop(count, txn_validate_one, args, 0);
		if (args->outcome != XKV_TXN_DONE)
			bpf_loop(count, txn_void_one, args, 0);
	}
	if (args->outcome == XKV_TXN_DONE)
		bpf_loop(count, txn_apply_one, args, 0);
	else
		bpf_loop(count, txn_unreserve_one, args, 0);
	bpf_loop(count, txn_unlock_bucket_one, args, 0);
	if (args->outcome != XKV_TXN_DONE)
		bpf_loop(count, txn_unlock_one, args, 0);
}

/* ---- slots --------------------------------------------------------------- */

/* Has the key a slot that it cannot use? */
static __always_inline bool has_wrong_slot(const struct xkv_txn_key *k)
{
	struct xkv_slot *slot = k->prefilled ? slot_at(k->prefilled) : NULL;

	return slot && (k->action != XKV_TXN_PUT || slot->class != k->class);
}

static int txn_take_one(__u32 index, struct xkv_txn_args *args)
{
	__u32 at = args->first + index;
	struct xkv_txn_key *k = txn_key_at(at);
	__u64 ref;

	if (!k)
		return 1;
	if (has_wrong_slot(k)) {
		slot_give(k->prefilled);
		k->prefilled = 0;
	}
	if (k->action != XKV_TXN_PUT || k->prefilled || k->class == XKV_CLASS_LARGE)
		return 0;
	ref = slot_take(k->class);
	if (ref == LIST_EMPTY || ref == LIST_BUSY) {
		args->no_slot = k->class;
		args->outcome = ref == LIST_EMPTY ? XKV_C_pass_no_slot : XKV_C_pass_busy;
		return 1;
	}
	k->prefilled = ref;
	return 0;
}

static int txn_free_one(__u32 index, struct xkv_txn_args *args)
{
	__u32 at = args->first + index;
	struct xkv_txn_key *k = txn_key_at(at);
	__u64 ref;

	if (!k)
		return 1;
	ref = k->prefilled;
	k->prefilled = 0;
	if (ref)
		slot_give(ref);
	return 0;
}

static __always_inline void txn_slots(struct xkv_txn_args *args)
{
	if (args->cmd == XKV_TXN_TAKE)
		bpf_loop(args->count, txn_take_one, args, 0);
	else
		bpf_loop(args->count, txn_free_one, args, 0);
}

#endif

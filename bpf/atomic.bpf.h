/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ATOMIC datagrams: the operations of one datagram as a transaction, by the stages of txn.bpf.h.
 *
 *   parse     every operation; nothing of the store is looked at
 *   find      every key
 *   lock      the slots of the keys that are to be changed
 *   evaluate  conditions, and all results; a new value that needs another slot gets it, filled
 *   reserve   the buckets, if a key is created or removed, or has to stay missing
 *   validate  what was only read has not changed since it was found
 *   record    room for all records is reserved in the change feed, if somebody listens
 *   apply     cannot fail
 *
 * Reads are at the version that was found.  Keys that change are locked before they are evaluated,
 * so that only other reads have to be validated.  A conflict starts again with `find`; after TRIES
 * of them the datagram is passed up to xkvd, as it is if there is no free slot, and, without a try,
 * if it changes something while xkvd holds writes.  Only results are written before `apply`: until
 * then, no operation has an effect.
 */
#ifndef XKV_ATOMIC_BPF_H
#define XKV_ATOMIC_BPF_H

#include "request.bpf.h"
#include "txn.bpf.h"

/* Runs a stage for each operation, as rq->at, until one fails. */
static __always_inline int each_operation(struct xkv_request *rq,
					  int (*stage)(struct xkv_request *, __u32))
{
	int outcome = XKV_TXN_DONE;

	for (__u32 i = 0; i < XKV_ATOMIC_MAX; i++) {
		if (i >= rq->count)
			break;
		rq->at = i;
		outcome = stage(rq, i);
		if (outcome != XKV_TXN_DONE)
			break;
	}
	return outcome;
}

/* The operation that a key is of. */
static __always_inline struct xkv_op *operation_of(struct xkv_request *rq,
						   const struct xkv_txn_key *k)
{
	return (struct xkv_op *)&IN(rq, k->key_off - sizeof(struct xkv_op));
}

/* The current operation fails, and so do all: its result is the only one of the reply. */
static __always_inline int atomic_refuse(struct xkv_request *rq, __u8 status, __u32 value_len,
					 __u64 expire_ms, __u64 version, int outcome)
{
	rq->out_len = sizeof(struct xkv_hdr);
	put_result(rq, rq->opcode, status, 0, value_len, expire_ms, version);
	return outcome;
}

/* ---- parse --------------------------------------------------------------- */

/* What an operation does to its key; evaluation may change it. */
static __always_inline __u8 action_of(__u32 opcode)
{
	if (opcode == XKV_OP_DELETE)
		return XKV_TXN_DELETE;
	if (opcode == XKV_OP_EXPIRE)
		return XKV_TXN_EXPIRE;
	return XKV_IS_CHANGE(opcode) ? XKV_TXN_WRITE : XKV_TXN_CHECK;
}

/* Before anything is known of the key. */
static __always_inline void key_reset(struct xkv_txn_key *k, __u32 opcode)
{
	k->prefilled = k->ref = k->seq = k->record = 0;
	k->state = 0;
	k->action = action_of(opcode);
}

__noinline int atomic_parse(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	int outcome;

	if (!rq || !k)
		return XKV_C_pass_busy;
	if (rq->in_off + sizeof(struct xkv_op) > rq->end)
		return answer(rq, 0, XKV_BAD_REQUEST, XKV_C_op_bad_request);
	outcome = op_parse(rq);
	if (outcome >= 0)
		return outcome;
	key_fingerprint(rq);
	prefetch_head(home_of(config(), rq->fingerprint));
	key_reset(k, rq->opcode);
	k->expected = XKV_TXN_ANY;
	k->fingerprint = rq->fingerprint;
	k->key_len = rq->key_len;
	k->key_off = rq->key_off;
	if (k->action != XKV_TXN_CHECK)
		rq->stages |= XKV_ATOMIC_CHANGES;
	rq->in_off = rq->next_off;
	return XKV_TXN_DONE;
}

/* Are `key_len` bytes of the request the same in two places? */
__noinline int is_same_key(struct xkv_request *rq, __u32 one, __u32 other, __u32 key_len)
{
	__u64 differ = 0;

	if (!rq)
		return false;
	for (__u32 at = 0; at < KEY_WORDS * 8; at += 8) {
		if (at >= key_len || differ)
			break;
		differ = IN(rq, one + at) ^ IN(rq, other + at);
	}
	return !differ;
}

/* Are two operations about the same key, and does one of them change it? */
__noinline int atomic_collide(struct xkv_request *rq, __u32 one, __u32 other)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, one) : NULL, *l = rq ? txn_key(rq, other) : NULL;

	if (!rq || !k || !l || (k->action == XKV_TXN_CHECK && l->action == XKV_TXN_CHECK))
		return false;
	return k->fingerprint == l->fingerprint && k->key_len == l->key_len &&
	       is_same_key(rq, k->key_off, l->key_off, k->key_len);
}

/* Is an earlier operation about the same key, and does one of the two change it? */
__noinline int atomic_repeats(struct xkv_request *rq, __u32 index)
{
	for (__u32 i = 0; i < XKV_ATOMIC_MAX && i < index; i++)
		if (atomic_collide(rq, i, index))
			return true;
	return false;
}

/* Parses all operations, and refuses a second one about a key that changes. */
__noinline int atomic_begin(struct xkv_request *rq)
{
	int outcome = XKV_TXN_DONE;
	__u64 seen = 0, bit;

	if (!rq)
		return XKV_C_pass_busy;
	rq->in_off = session_off(rq);
	if (((struct xkv_hdr *)rq->in)->flags & XKV_F_ONCE)
		rq->in_off += XKV_SESSION_BYTES;
	rq->out_len = sizeof(struct xkv_hdr);
	rq->stages = 0;
	for (__u32 i = 0; i < XKV_ATOMIC_MAX; i++) {
		if (i >= rq->count)
			break;
		rq->at = i;
		outcome = atomic_parse(rq, i);
		if (outcome != XKV_TXN_DONE)
			break;
		bit = 1ULL << (rq->fingerprint >> 40 & 63);
		if ((seen & bit) && atomic_repeats(rq, i))
			return answer(rq, rq->opcode, XKV_BAD_REQUEST, XKV_C_op_bad_request);
		seen |= bit;
	}
	return outcome;
}

/* ---- evaluate ------------------------------------------------------------ */

/* Can a reply have a value of this size after the results so far?  Padding is checked later. */
static __always_inline bool value_fits(struct xkv_request *rq, __u32 value_len)
{
	return value_len <= VALUE_WORDS * 8 &&
	       rq->out_len + sizeof(struct xkv_result) + XKV_PADDED(value_len) <= rq->reply_max;
}

static __always_inline int too_large(struct xkv_request *rq, __u32 value_len, __u64 version)
{
	return atomic_refuse(rq, XKV_TOO_LARGE, value_len, 0, version, XKV_C_op_too_large);
}

/* GET, TTL, TOUCH or CHECK of a key that is missing. */
static __always_inline int read_missing(struct xkv_request *rq)
{
	int outcome;

	if (rq->opcode == XKV_OP_CHECK) {
		if (rq->version)
			return atomic_refuse(rq, XKV_NOT_STORED, 0, 0, 0, XKV_C_not_stored);
		answer(rq, XKV_OP_CHECK, XKV_OK, 0);
		return XKV_TXN_DONE;
	}
	outcome = op_miss(rq, rq->opcode, XKV_C_get_misses);
	return STOPS(outcome) ? outcome : XKV_TXN_DONE;
}

__noinline int atomic_read(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct xkv_config *cfg = config();
	struct xkv_slot *slot;
	__u64 expire_ms;
	__u32 value_len;
	bool value;

	if (!rq || !k || !cfg)
		return XKV_C_pass_busy;
	rq->stages |= XKV_ATOMIC_READS;
	if (!k->ref)
		return read_missing(rq);
	value = rq->opcode == XKV_OP_GET;
	slot = slot_at(k->ref);
	if (!slot)
		return XKV_C_pass_busy;
	expire_ms = READ_ONCE(slot->expire_ms);
	value_len = value ? value_len_of(slot) : 0;
	smp_rmb();
	if (READ_ONCE(slot->seq) != k->seq)
		return XKV_C_pass_busy;
	if (expired(rq, expire_ms))
		return read_missing(rq);
	if (rq->opcode == XKV_OP_CHECK && rq->version != k->seq)
		return atomic_refuse(rq, XKV_NOT_STORED, 0, expire_ms, k->seq, XKV_C_not_stored);
	if (!value_fits(rq, value_len))
		return too_large(rq, value_len, k->seq);
	copy_out(rq, WINDOW(slot), value_len);
	smp_rmb();
	if (READ_ONCE(slot->seq) != k->seq)
		return XKV_C_pass_busy;
	if (value || rq->opcode == XKV_OP_TOUCH)
		mark_access(cfg, slot);
	put_result(rq, rq->opcode, XKV_OK, value ? XKV_HAS_VALUE : 0, value_len, expire_ms, k->seq);
	return XKV_TXN_DONE;
}

/* DELETE or EXPIRE of a key that is missing: it is only read. */
static __always_inline int change_missing(struct xkv_request *rq, struct xkv_txn_key *k)
{
	if (rq->op_flags & XKV_CAS)
		return atomic_refuse(rq, XKV_MISS, 0, 0, 0, XKV_C_op_misses);
	txn_unlock(k); /* it exists, but has expired */
	k->state = 0;
	k->action = XKV_TXN_CHECK;
	rq->stages |= XKV_ATOMIC_READS;
	answer(rq, rq->opcode, XKV_MISS, 0);
	return XKV_TXN_DONE;
}

/* DELETE, EXPIRE */
__noinline int atomic_change(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct xkv_slot *slot;
	__u32 give = 0;

	if (!rq || !k)
		return XKV_C_pass_busy;
	slot = k->ref ? slot_at(k->ref) : NULL;
	if (!slot || expired(rq, slot->expire_ms))
		return change_missing(rq, k);
	if ((rq->op_flags & XKV_CAS) && k->seq != rq->version)
		return atomic_refuse(rq, XKV_NOT_STORED, 0, slot->expire_ms, k->seq,
				     XKV_C_not_stored);
	if (rq->opcode == XKV_OP_EXPIRE) {
		k->expire_ms = expiry_wanted(rq);
		put_result(rq, XKV_OP_EXPIRE, XKV_OK, 0, 0, k->expire_ms, 0);
		return XKV_TXN_DONE;
	}
	if (rq->op_flags & XKV_RETURN) {
		if (!value_fits(rq, slot->value_len))
			return too_large(rq, slot->value_len, k->seq);
		copy_old(rq);
		give = XKV_HAS_VALUE;
	}
	put_result(rq, XKV_OP_DELETE, XKV_OK, give, give ? slot->value_len : 0, 0, 0);
	return XKV_TXN_DONE;
}

/* The text of INCR's sum, from scratch space that the next one uses, too. */
static __always_inline void text_keep(struct xkv_request *rq, struct xkv_txn_key *k)
{
	k->text[0] = IN(rq, SCRATCH);
	k->text[1] = IN(rq, SCRATCH + 8);
	k->text[2] = IN(rq, SCRATCH + 16);
	k->text_len = rq->value_len;
}

static __always_inline void text_restore(struct xkv_request *rq, const struct xkv_txn_key *k)
{
	IN(rq, SCRATCH) = k->text[0];
	IN(rq, SCRATCH + 8) = k->text[1];
	IN(rq, SCRATCH + 16) = k->text[2];
	rq->value_off = SCRATCH;
	rq->value_len = k->text_len;
}

/* Where will the new value be?  In the key's slot, or in another one, filled here. */
__noinline int place_value(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	int outcome = XKV_C_pass_busy;
	struct xkv_slot *slot;
	__u64 ref;

	if (!rq || !k)
		return outcome;
	slot = k->ref ? slot_at(k->ref) : NULL;
	/* a record is reserved with the length of a value that is in a slot already */
	if (rq->stages & XKV_ATOMIC_FEED)
		slot = NULL;
	if (slot && stays_in_class(rq, slot))
		return XKV_TXN_DONE;
	ref = take_slot(rq, &outcome);
	if (!ref)
		return slot && outcome == XKV_C_pass_no_slot && fits_in_class(rq, slot)
			       ? XKV_TXN_DONE
			       : outcome;
	k->action = XKV_TXN_PUT;
	k->prefilled = ref;
	fill_slot(rq, ref, k->expire_ms);
	return XKV_TXN_DONE;
}

/* Does the old value fit the reply, if it is asked for?  It is copied there. */
static __always_inline bool old_fits(struct xkv_request *rq, bool exists, __u32 old_len)
{
	if (!returns_old(rq, exists))
		return true;
	if (!value_fits(rq, old_len))
		return false;
	copy_old(rq);
	return true;
}

/* The new value, from the operation and the old one: XKV_TXN_DONE, or why not. */
__noinline int new_value(struct xkv_request *rq, __u32 index, bool exists, __u32 old_len)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	int status;

	if (!rq || !k)
		return XKV_C_pass_busy;
	keep_old(rq, exists, old_len);
	status = has_to_be_joined(rq) ? XKV_TOO_LARGE : combine(rq, exists);
	if (status == XKV_TOO_LARGE)
		return too_large(rq, rq->keep + rq->value_len, 0);
	if (status != XKV_OK)
		return atomic_refuse(rq, status, 0, 0, 0, XKV_C_not_number);
	if (rq->opcode == XKV_OP_INCR)
		text_keep(rq, k);
	return XKV_TXN_DONE;
}

/* SET, INCR, APPEND */
__noinline int atomic_write(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	__u64 expire_ms = 0;
	struct xkv_slot *slot;
	__u32 old_len = 0;
	bool exists;
	int status;

	if (!rq || !k)
		return XKV_C_pass_busy;
	slot = k->ref ? slot_at(k->ref) : NULL;
	if (slot) {
		expire_ms = slot->expire_ms;
		old_len = slot->value_len;
	}
	exists = slot && !expired(rq, expire_ms);
	status = condition(rq, exists);
	if (status != XKV_OK)
		return atomic_refuse(rq, status, 0, exists ? expire_ms : 0, exists ? k->seq : 0,
				     XKV_C_not_stored);
	if (!old_fits(rq, exists, old_len))
		return too_large(rq, old_len, k->seq);
	if (rq->opcode != XKV_OP_SET && !value_fits(rq, 8))
		return too_large(rq, 8, k->seq);
	status = new_value(rq, index, exists, old_len);
	if (status != XKV_TXN_DONE)
		return status;
	k->expire_ms = (rq->op_flags & XKV_KEEPTTL) && exists ? expire_ms : expiry_wanted(rq);
	put_written(rq, returns_old(rq, exists), returns_old(rq, exists) ? old_len : 0,
		    k->expire_ms, 0, 0);
	return XKV_TXN_DONE;
}

/* Makes the operation of a key the current one. */
static __always_inline void operation_load(struct xkv_request *rq, const struct xkv_txn_key *k)
{
	rq->in_off = k->key_off - sizeof(struct xkv_op);
	op_fields(rq, operation_of(rq, k));
	rq->fingerprint = k->fingerprint;
	rq->ref = k->ref;
	rq->seq = k->seq;
	if (rq->opcode == XKV_OP_INCR || rq->opcode == XKV_OP_APPEND) {
		rq->op_flags |= XKV_KEEPTTL;
		rq->amount_off = rq->value_off;
	}
}

/* A cache cannot say that a key is missing, and its versions are not those of the data. */
static __always_inline bool is_check_of_cache(__u8 opcode)
{
	struct xkv_config *cfg = config();

	return cfg && cfg->lease_ns && opcode == XKV_OP_CHECK;
}

/*
 * The result of an operation, and what will be done to its key.  Writes are refused here, not when
 * they are parsed: a copy of an executed request gets its old reply.
 */
__noinline int atomic_evaluate(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	int outcome;

	if (!rq || !k)
		return XKV_C_pass_busy;
	operation_load(rq, k);
	k->result_off = rq->out_len;
	if ((XKV_IS_CHANGE(rq->opcode) || is_check_of_cache(rq->opcode)) &&
	    writes_stopped(rq) & (XKV_WRITES_REFUSED | XKV_WRITES_UP))
		outcome = atomic_refuse(rq, XKV_READ_ONLY, 0, 0, 0, XKV_C_op_read_only);
	else if (k->action == XKV_TXN_CHECK)
		outcome = atomic_read(rq, index);
	else if (k->action != XKV_TXN_WRITE)
		outcome = atomic_change(rq, index);
	else {
		outcome = atomic_write(rq, index);
		if (outcome == XKV_TXN_DONE)
			outcome = place_value(rq, index);
	}
	if (needs_bucket(k))
		rq->stages |= XKV_ATOMIC_BUCKETS;
	if (outcome == XKV_TXN_DONE && rq->out_len > rq->reply_max)
		return too_large(rq, 0, 0); /* a result without a value */
	return outcome;
}

/* Do all results fit the reply that this request may have? */
static __always_inline int atomic_room(struct xkv_request *rq)
{
	__u32 need = rq->out_len;

	if (need <= rq->reply_room && need <= rq->reply_allowed)
		return XKV_TXN_DONE;
	return atomic_refuse(rq, XKV_PAD, request_needed(rq, need), 0, 0, XKV_C_op_pad);
}

/* ---- reserve ------------------------------------------------------------- */

/* Is the bucket of an operation locked, and is it also the bucket of another operation? */
__noinline int atomic_share_bucket(struct xkv_request *rq, __u32 one, __u32 other)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, one) : NULL, *l = rq ? txn_key(rq, other) : NULL;
	struct xkv_config *cfg = config();

	return k && l && cfg && (k->state & XKV_TXN_BUCKET) &&
	       !((k->fingerprint ^ l->fingerprint) & cfg->bucket_mask);
}

/* Has an earlier operation locked the bucket of this one? */
__noinline int atomic_has_bucket(struct xkv_request *rq, __u32 index)
{
	for (__u32 i = 0; i < XKV_ATOMIC_MAX && i < index; i++)
		if (atomic_share_bucket(rq, i, index))
			return true;
	return false;
}

__noinline int atomic_reserve(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;

	if (!k)
		return XKV_C_pass_busy;
	if (!needs_bucket(k))
		return XKV_TXN_DONE;
	if (!txn_lock_bucket(k) && !atomic_has_bucket(rq, index))
		return XKV_C_pass_busy;
	return k->ref ? XKV_TXN_DONE : txn_reserve(rq, index);
}

/* ---- apply --------------------------------------------------------------- */

/* Writes the new value into the slot that the key has. */
__noinline int atomic_overwrite(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct change change;
	struct xkv_slot *slot;

	if (!k)
		return 0;
	slot = slot_at(k->ref);
	if (!slot)
		return 0;
	operation_load(rq, k);
	keep_old(rq, !expired(rq, slot->expire_ms), slot->value_len);
	if (rq->opcode == XKV_OP_INCR)
		text_restore(rq, k);
	if (k->expire_ms)
		ttl_given(rq);
	change_prepare(&change, rq, XKV_CHANGE_OVERWRITE, k->ref, slot, k->ref,
		       rq->keep + rq->value_len);
	overwrite(rq, slot, k->expire_ms, &change);
	k->seq = rq->version;
	count(rq, XKV_C_overwrites);
	return 0;
}

/* The counter of an operation that changed nothing. */
static __always_inline int read_outcome(__u8 opcode, __u8 status)
{
	if (opcode == XKV_OP_CHECK)
		return XKV_C_checks;
	if (XKV_IS_CHANGE(opcode))
		return XKV_C_op_misses;
	return status == XKV_OK ? XKV_C_get_hits : XKV_C_get_misses;
}

__noinline int atomic_apply(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;
	struct xkv_config *cfg = config();
	struct xkv_result *r;
	struct xkv_op *op;

	if (!rq || !k || !cfg)
		return XKV_TXN_DONE;
	r = (struct xkv_result *)&OUT(rq, k->result_off);
	op = operation_of(rq, k);
	rq->opcode = op->opcode; /* for the change feed */
	rq->op_flags = op->flags;
	if (k->action == XKV_TXN_WRITE)
		atomic_overwrite(rq, index);
	else
		txn_apply(rq, k, index);
	if (k->action == XKV_TXN_CHECK)
		count(rq, read_outcome(r->opcode, r->status));
	else if (k->action != XKV_TXN_DELETE)
		OUT(rq, k->result_off + 16) = bpf_cpu_to_be64(k->seq); /* the version */
	k->state &= XKV_TXN_BUCKET;
	if (hot_is_due(rq, cfg)) {
		txn_load(rq, k);
		hot_note(rq, XKV_IS_CHANGE(r->opcode),
			 XKV_PADDED(bpf_ntohl(XKV_IS_CHANGE(r->opcode) ? op->value_len
								       : r->value_len)));
	}
	return XKV_TXN_DONE;
}

/* ---- the end ------------------------------------------------------------- */

/* Undoes changes that were not applied, and unlocks all, so that the next try can begin. */
__noinline int atomic_end(struct xkv_request *rq, __u32 index)
{
	struct xkv_txn_key *k = rq ? txn_key(rq, index) : NULL;

	if (!rq || !k)
		return 0;
	txn_unreserve(rq, k);
	txn_unlock_bucket(k);
	txn_unlock(k);
	if (k->prefilled)
		slot_give(k->prefilled);
	key_reset(k, operation_of(rq, k)->opcode);
	return 0;
}

/* From the last operation to the first: the first operation of a bucket has locked it. */
static __always_inline void atomic_end_all(struct xkv_request *rq)
{
	__u32 count = rq->count;

	for (__u32 i = 1; i <= XKV_ATOMIC_MAX; i++) {
		if (i > count)
			break;
		atomic_end(rq, count - i);
	}
}

/* Reserves the records of all changes together. */
__noinline int atomic_record(struct xkv_request *rq)
{
	struct xkv_config *cfg = config();
	int outcome;

	if (!rq || !cfg)
		return XKV_C_pass_busy;
	rq->record = feed_lean(cfg);
	rq->record_bytes = 0;
	each_operation(rq, txn_measure);
	outcome = txn_reserve_records(rq);
	if (outcome == XKV_TXN_DONE && rq->record_bytes)
		each_operation(rq, txn_place);
	return outcome;
}

/* Are the keys that were only read unchanged?  Else there is nothing to record. */
__noinline int atomic_validate(struct xkv_request *rq)
{
	int outcome;
	__u32 at;

	if (!rq)
		return XKV_C_pass_busy;
	outcome = each_operation(rq, txn_validate);
	if (outcome == XKV_TXN_DONE)
		return outcome;
	at = rq->at;
	each_operation(rq, txn_void);
	rq->at = at;
	return outcome;
}

/* One try: XKV_TXN_DONE, XKV_C_pass_busy after a conflict, or another outcome that ends it. */
__noinline int atomic_try(struct xkv_request *rq)
{
	struct xkv_config *cfg = config();
	int outcome;

	if (!rq)
		return XKV_C_pass_busy;
	rq->out_len = sizeof(struct xkv_hdr);
	rq->stages = cfg && cfg->feed ? XKV_ATOMIC_FEED : 0;
	outcome = each_operation(rq, txn_find);
	if (outcome == XKV_TXN_DONE)
		outcome = each_operation(rq, txn_lock);
	if (outcome == XKV_TXN_DONE)
		outcome = each_operation(rq, atomic_evaluate);
	if (outcome == XKV_TXN_DONE)
		outcome = atomic_room(rq);
	if (outcome == XKV_TXN_DONE && (rq->stages & XKV_ATOMIC_BUCKETS))
		outcome = each_operation(rq, atomic_reserve);
	if (outcome == XKV_TXN_DONE && (rq->stages & XKV_ATOMIC_FEED))
		outcome = atomic_record(rq);
	if (outcome == XKV_TXN_DONE && (rq->stages & XKV_ATOMIC_READS))
		outcome = atomic_validate(rq);
	if (outcome == XKV_TXN_DONE)
		each_operation(rq, atomic_apply);
	if (outcome != XKV_TXN_DONE || (rq->stages & XKV_ATOMIC_BUCKETS))
		atomic_end_all(rq);
	return outcome;
}

/* Nothing was done, and the reply names the failed operation, and why. */
static __always_inline void atomic_abort(struct xkv_request *rq, int outcome)
{
	((struct xkv_result *)(rq->out + sizeof(struct xkv_hdr)))->index = rq->at;
	rq->done = 1;
	count(rq, outcome);
	count(rq, XKV_C_atomic_aborted);
	reply_header(rq, XKV_ABORTED);
}

/* Tries the operations that were parsed: XKV_TXN_DONE, or why not. */
static __always_inline int atomic_tries(struct xkv_request *rq)
{
	__u8 stopped = rq->stages & XKV_ATOMIC_CHANGES ? writes_stopped(rq) : 0;
	/* its locks would be in the way of the transaction that holds writes back */
	bool held = stopped == XKV_WRITES_HELD;
	int outcome = XKV_C_pass_busy;

	if (stopped & XKV_WRITES_DURABLE && !(stopped & XKV_WRITES_REFUSED))
		return XKV_C_pass_durable;
	for (int i = 0; i < TRIES && outcome == XKV_C_pass_busy && !held; i++)
		outcome = atomic_try(rq);
	barrier_var(outcome);
	return outcome;
}

/* The same: enum verdict. */
static __always_inline int atomic_commit(struct xkv_request *rq)
{
	int outcome = atomic_tries(rq);
	struct xkv_txn_key *k;

	if (outcome == XKV_TXN_DONE) {
		rq->done = rq->count;
		count(rq, XKV_C_atomic_done);
		reply_header(rq, XKV_OK);
		return VERDICT_REPLY;
	}
	if (STOPS(outcome) && (rq->flags & XKV_REQUEST_LAST)) {
		k = txn_key(rq, rq->at);
		rq->out_len = sizeof(struct xkv_hdr);
		outcome = answer_stopped(rq, k ? operation_of(rq, k)->opcode : 0, outcome);
	}
	if (STOPS(outcome)) {
		rq->stop = outcome + 1;
		return VERDICT_PASS;
	}
	atomic_abort(rq, outcome);
	return VERDICT_REPLY;
}

/* Runs an ATOMIC datagram whose header is right; from the beginning, if it has stopped. */
__noinline int atomic_run(struct xkv_request *rq)
{
	int outcome, verdict;

	if (!rq)
		return VERDICT_DROP;
	outcome = atomic_begin(rq);
	barrier_var(outcome);
	if (outcome != XKV_TXN_DONE) {
		atomic_abort(rq, outcome);
		return VERDICT_REPLY;
	}
	verdict = request_dedup(rq, rq->stages & XKV_ATOMIC_CHANGES);
	if (verdict != GO_ON)
		return verdict;
	verdict = atomic_commit(rq);
	if (rq->dedup)
		dedup_end(rq, verdict == VERDICT_REPLY ? DEDUP_DONE : DEDUP_UNDONE);
	return verdict;
}

#endif

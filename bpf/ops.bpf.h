/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The operations of the protocol, shared by both front ends: XDP runs them on the request of its
 * CPU, xkvd's syscall program on the requests of a batch.  `in` holds the request, `out` gets the
 * reply.
 *
 * Each operation returns its outcome as the counter to raise (enum xkv_counter).  Outcomes up to
 * XKV_C_pass_too_large mean that it could not be done here and that nothing was changed: the
 * request stops before it, and xkvd, or the client's next request, continues there.
 */
#ifndef XKV_OPS_BPF_H
#define XKV_OPS_BPF_H

#include "commit.bpf.h"
#include "condition.h"

/* Are misses, and values that are too large, answered here? */
#define ANSWERS_ALL(rq) ((rq)->flags & (XKV_REQUEST_XKVD | XKV_REQUEST_BULK))

#define STOPS(outcome) ((outcome) <= XKV_C_pass_too_large)
#define AGAIN	       (-2) /* lost a race: retry the look-up */

/* Unix time in milliseconds. */
static __always_inline __u64 now_ms(struct xkv_request *rq)
{
	struct xkv_config *cfg = config();

	if (!rq->now_ms && cfg)
		rq->now_ms = bpf_ktime_get_tai_ns() / 1000000 - cfg->tai_offset_ms;
	return rq->now_ms;
}

static __always_inline bool expired(struct xkv_request *rq, __u64 expire_ms)
{
	return expire_ms && expire_ms <= now_ms(rq);
}

/* The change overwrites an entry with this expiry: the record says whether it had expired. */
static __always_inline void change_replaces(struct change *c, __u64 expire_ms)
{
	c->flags = c->record && expired(c->rq, expire_ms) ? XKV_FEED_GONE : 0;
}

/* An entry with an expiry is written: without one, xkvd skips the search for expired entries. */
static __always_inline void ttl_given(struct xkv_request *rq)
{
	count(rq, XKV_C_ttls_given);
}

/* The expiry that the current operation asks for, as absolute time, 0 = never. */
static __always_inline __u64 expiry_wanted(struct xkv_request *rq)
{
	if (!rq->ttl)
		return 0;
	return rq->op_flags & XKV_ABSTTL ? rq->ttl : now_ms(rq) + rq->ttl;
}

/* The same, for an entry that gets it. */
static __always_inline __u64 expiry_asked(struct xkv_request *rq)
{
	if (rq->ttl)
		ttl_given(rq);
	return expiry_wanted(rq);
}

/* ---- results ------------------------------------------------------------- */

/* Appends a result; its value, of value_len bytes, is already in place after it. */
static __always_inline void put_result(struct xkv_request *rq, __u8 opcode, __u8 status, __u8 flags,
				       __u32 value_len, __u64 expire_ms, __u64 version)
{
	__u32 at = rq->out_len, room = flags & XKV_HAS_VALUE ? XKV_PADDED(value_len) : 0;
	struct xkv_result *r;
	__u64 left = 0;

	if (at > XKV_REQUEST_BYTES - sizeof(*r))
		return;
	if (expire_ms && expire_ms > now_ms(rq))
		left = expire_ms - now_ms(rq);
	barrier_var(at); /* keeps the mask: verifiers forget the comparison */
	r = (struct xkv_result *)&OUT(rq, at);
	r->opcode = opcode;
	r->status = status;
	r->flags = flags;
	r->index = 0;
	r->value_len = bpf_htonl(value_len);
	r->ttl = bpf_cpu_to_be64(left);
	r->version = bpf_cpu_to_be64(version);
	rq->out_len = at + sizeof(*r) + room;
}

static __always_inline int answer(struct xkv_request *rq, __u8 opcode, __u8 status, int outcome)
{
	put_result(rq, opcode, status, 0, 0, 0, 0);
	return outcome;
}

static __always_inline int answer_entry(struct xkv_request *rq, __u8 opcode, __u8 status,
					__u64 expire_ms, __u64 version, int outcome)
{
	put_result(rq, opcode, status, 0, 0, expire_ms, version);
	return outcome;
}

/* The bytes that a request needs, so that its reply may have `need`. */
static __always_inline __u32 request_needed(struct xkv_request *rq, __u32 need)
{
	if (need > rq->reply_allowed)
		need = XKV_PADDED((need + XKV_REPLY_FACTOR - 1) / XKV_REPLY_FACTOR);
	return need;
}

/* Does a value of this size fit the reply?  -1 if so, else the outcome, with its result. */
__noinline int value_room(struct xkv_request *rq, __u32 opcode, __u32 value_len, __u64 version)
{
	__u32 need;

	if (!rq)
		return XKV_C_pass_busy;
	need = rq->out_len + sizeof(struct xkv_result) + XKV_PADDED(value_len);
	if (value_len <= VALUE_WORDS * 8 && need <= rq->reply_room && need <= rq->reply_allowed)
		return -1;
	if (rq->done)
		return XKV_C_pass_too_large; /* the client's next request starts with this one */
	if (value_len <= VALUE_WORDS * 8 && need <= rq->reply_max) {
		put_result(rq, opcode, XKV_PAD, 0, request_needed(rq, need), 0, version);
		return XKV_C_op_pad;
	}
	if (!ANSWERS_ALL(rq))
		return XKV_C_pass_too_large;
	put_result(rq, opcode, XKV_TOO_LARGE, 0, value_len, 0, version);
	return XKV_C_op_too_large;
}

/* The value in a slot whose key has key_len bytes. */
static __always_inline __u64 *slot_value(struct xkv_slot *slot, __u32 key_len)
{
	return (__u64 *)(slot + 1) + (((key_len + 7) >> 3) & (2 * KEY_WORDS - 1));
}

/*
 * Copies the value of a slot to after the next result.  Global, as copy_value(): the verifier goes
 * through it once.
 */
__noinline int copy_out(struct xkv_request *rq, struct slot_window *slot, __u32 value_len)
{
	__u32 from, to;

	if (!rq || !slot)
		return 0;
	from = sizeof(struct xkv_slot) + XKV_PADDED(rq->key_len);
	to = rq->out_len + sizeof(struct xkv_result);
	for (__u32 i = 0; i < VALUE_WORDS * 8; i += 8) {
		if (i >= value_len)
			break;
		OUT(rq, to + i) = SLOT(slot, from + i);
	}
	return 0;
}

/* The same for the locked slot. */
static __always_inline void copy_old(struct xkv_request *rq)
{
	struct xkv_slot *slot = slot_at(rq->ref);

	if (slot)
		copy_out(rq, WINDOW(slot), slot->value_len);
}

/* Not inlined: the verifier would go through what follows once for each length of a key. */
static __noinline int copy_key(struct xkv_request *rq, struct xkv_slot *slot)
{
	__u32 from = rq->key_off, len = rq->key_len;
	__u64 *key = (__u64 *)(slot + 1);

	for (__u32 i = 0; i < KEY_WORDS; i++) {
		if (i * 8 >= len)
			break;
		key[i] = IN(rq, from + i * 8);
	}
	return 0;
}

/*
 * Appends the current value to the rq->keep bytes in the slot.  Each word of the result combines
 * the rest of one word with the beginning of the next.
 */
__noinline int append_value(struct xkv_request *rq, __u64 ref)
{
	struct xkv_slot *slot = slot_at(ref);
	__u32 from, len, to, shift;
	__u64 rest = 0, word;

	if (!rq || !slot)
		return 0;
	from = rq->value_off;
	len = rq->value_len;
	to = sizeof(*slot) + XKV_PADDED(rq->key_len) + (rq->keep & ~7U);
	shift = (rq->keep & 7) * 8;
	if (shift)
		rest = LE64(SLOT(slot, to));
	for (__u32 i = 0; i < VALUE_WORDS; i++) {
		if (i * 8 >= len)
			break;
		word = LE64(IN(rq, from + i * 8));
		SLOT(slot, to + i * 8) = LE64(rest | (word << (shift & 63)));
		rest = word >> 1 >> ((63 - shift) & 63); /* none for shift 0 */
	}
	/* the last word only if the value reaches it: another slot may begin there */
	if (len && (rq->keep & 7) + len > XKV_PADDED(len))
		SLOT(slot, to + XKV_PADDED(len)) = LE64(rest);
	return 0;
}

/* Words of a value, bounded even if its length is garbage. */
static __always_inline __u32 value_words(__u32 value_len)
{
	__u32 words = (value_len + 7) / 8;

	barrier_var(words); /* keeps the comparison */
	return words < VALUE_WORDS ? words : VALUE_WORDS;
}

/* Writes the current value into a slot that is locked, or not yet published. */
__noinline int copy_value(struct xkv_request *rq, struct slot_window *slot)
{
	if (rq && slot)
		copy_words(slot_value((struct xkv_slot *)slot, rq->key_len), &IN(rq, rq->value_off),
			   (rq->value_len + 7) / 8, VALUE_WORDS);
	return 0;
}

/* Copies the rq->keep bytes of the old value from the locked slot to another. */
__noinline int copy_kept(struct xkv_request *rq, __u64 ref)
{
	struct xkv_slot *to = slot_at(ref), *from;
	__u32 at;

	if (!rq || !to)
		return 0;
	from = slot_at(rq->ref);
	at = sizeof(*to) + XKV_PADDED(rq->key_len);
	for (__u32 i = 0; i < VALUE_WORDS && from; i++) {
		if (i * 8 >= rq->keep)
			break;
		SLOT(to, at + i * 8) = SLOT(from, at + i * 8);
	}
	return 0;
}

/* ---- access times and frequencies, for eviction --------------------------- */

/*
 * Records a use.  Stores only a new value: else the line of a hot entry would bounce between CPUs.
 */
static __always_inline void mark_access(struct xkv_config *cfg, struct xkv_slot *slot)
{
	__u16 old, new;

	if (cfg->track == XKV_TRACK_NOTHING)
		return;
	old = READ_ONCE(slot->access);
	new = xkv_access_used(cfg->track, old, cfg->access);
	if (new != old)
		WRITE_ONCE(slot->access, new);
}

/* ---- the lock of an entry ------------------------------------------------ */

/* Locks the slot that find() found; NULL if it was changed since. */
static __always_inline struct xkv_slot *lock_found(struct xkv_request *rq)
{
	struct xkv_slot *slot = slot_at(rq->ref);

	if (!slot || !EXCHANGE(slot, &slot->seq, rq->seq, rq->seq | 1))
		return NULL;
	return slot;
}

/* ---- GET, SCAN, TTL, TOUCH ------------------------------------------------ */

static __always_inline int op_miss(struct xkv_request *rq, __u8 opcode, int outcome)
{
	struct xkv_config *cfg = config();

	if (!ANSWERS_ALL(rq) && cfg && !cfg->miss_reply)
		return XKV_C_pass_miss;
	return answer(rq, opcode, XKV_MISS, outcome);
}

/* GET, SCAN; TTL, TOUCH: without the value. */
__noinline int op_get(struct xkv_request *rq, __u32 opcode)
{
	struct xkv_config *cfg = config();
	bool value = opcode == XKV_OP_GET || opcode == XKV_OP_SCAN;
	struct xkv_slot *slot;
	__u64 expire_ms;
	__u32 value_len;
	int found, room;

	if (!rq || !cfg)
		return XKV_C_pass_busy;
	for (int i = 0; i < TRIES; i++) {
		found = find(rq);
		if (found == ABSENT)
			return op_miss(rq, opcode, XKV_C_get_misses);
		if (found == BUSY)
			return XKV_C_pass_busy;
		slot = slot_at(rq->ref);
		if (!slot)
			continue;
		expire_ms = READ_ONCE(slot->expire_ms);
		value_len = value ? value_len_of(slot) : 0;
		smp_rmb();
		if (READ_ONCE(slot->seq) != rq->seq)
			continue;
		if (expired(rq, expire_ms))
			return op_miss(rq, opcode, XKV_C_get_misses);
		room = value_room(rq, opcode, value_len, rq->seq);
		if (room >= 0)
			return room;
		copy_out(rq, WINDOW(slot), value_len);
		smp_rmb();
		if (READ_ONCE(slot->seq) != rq->seq)
			continue;
		if (opcode == XKV_OP_TOUCH || (value && !(rq->flags & XKV_REQUEST_NO_TOUCH)))
			mark_access(cfg, slot);
		put_result(rq, opcode, XKV_OK, value ? XKV_HAS_VALUE : 0, value_len, expire_ms,
			   rq->seq);
		return XKV_C_get_hits;
	}
	return XKV_C_pass_busy;
}

/* ---- numbers, as text ---------------------------------------------------- */

#define DIGITS_MAX 20 /* -9223372036854775808 */
#define INT64_MAX_ (~0ULL >> 1)

/*
 * Parses a text of up to 24 bytes, in words with its first byte lowest, as Redis' string2ll() does:
 * canonical signed decimal.  -1: no number.
 */
static __always_inline int number_from(__u64 w0, __u64 w1, __u64 w2, __u32 len, __u64 *number)
{
	__u64 n = 0, digit;
	bool minus;

	if (!len || len > DIGITS_MAX)
		return -1;
	minus = (__u8)w0 == '-';
	if (minus) {
		w0 = (w0 >> 8) | (w1 << 56);
		w1 = (w1 >> 8) | (w2 << 56);
		w2 >>= 8;
		len--;
	}
	if (!len || ((__u8)w0 == '0' && (len > 1 || minus)))
		return -1;
	for (__u32 i = 0; i < DIGITS_MAX; i++) {
		if (i >= len)
			break;
		digit = (__u8)w0 - '0';
		w0 = (w0 >> 8) | (w1 << 56);
		w1 = (w1 >> 8) | (w2 << 56);
		w2 >>= 8;
		if (digit > 9 || n > (~0ULL - digit) / 10)
			return -1;
		n = n * 10 + digit;
	}
	if (n > INT64_MAX_ + minus)
		return -1;
	*number = minus ? -n : n;
	return 0;
}

/* The same of the value of the locked slot. */
__noinline int number_parse(struct xkv_request *rq)
{
	struct xkv_slot *slot;
	__u32 at;

	if (!rq)
		return -1;
	slot = slot_at(rq->ref);
	if (!slot)
		return -1;
	at = sizeof(*slot) + XKV_PADDED(rq->key_len);
	return number_from(LE64(SLOT(slot, at)), LE64(SLOT(slot, at + 8)),
			   LE64(SLOT(slot, at + 16)), slot->value_len, &rq->number);
}

/* Text of up to 24 bytes, built from its end. */
struct text {
	__u64 w0, w1, w2;
	__u32 len;
};

static __always_inline void put_before(struct text *t, __u8 c)
{
	t->w2 = (t->w2 << 8) | (t->w1 >> 56);
	t->w1 = (t->w1 << 8) | (t->w0 >> 56);
	t->w0 = (t->w0 << 8) | c;
	t->len++;
}

/* Makes the number, as text, the current value. */
__noinline int number_print(struct xkv_request *rq)
{
	struct text t = {};
	bool minus;
	__u64 n;

	if (!rq)
		return 0;
	minus = rq->number >> 63;
	n = minus ? -rq->number : rq->number;
	for (int i = 0; i < DIGITS_MAX; i++) {
		if (i && !n)
			break;
		put_before(&t, '0' + n % 10);
		n /= 10;
	}
	if (minus)
		put_before(&t, '-');
	IN(rq, SCRATCH) = LE64(t.w0);
	IN(rq, SCRATCH + 8) = LE64(t.w1);
	IN(rq, SCRATCH + 16) = LE64(t.w2);
	rq->value_off = SCRATCH;
	rq->value_len = t.len;
	return 0;
}

/*
 * Makes the sum of INCR's amount and the number in the locked slot (0 if there is none) the current
 * value.  XKV_OK, or the status with which the operation fails.
 */
static __always_inline int increment(struct xkv_request *rq, bool exists)
{
	__s64 amount = bpf_be64_to_cpu(IN(rq, rq->amount_off)), old = 0;

	if (exists) {
		if (number_parse(rq))
			return XKV_NOT_NUMBER;
		old = rq->number;
	}
	if ((amount < 0 && old < (__s64)~INT64_MAX_ - amount) ||
	    (amount > 0 && old > (__s64)INT64_MAX_ - amount))
		return XKV_OVERFLOW;
	rq->number = old + amount;
	number_print(rq);
	return XKV_OK;
}

/* ---- SET, INCR, APPEND --------------------------------------------------- */

/* The class for a number of words below CLASS_WORDS. */
#define CLASS_WORDS (XKV_SLOT_WINDOW / 8)

static __always_inline __u32 class_of(struct xkv_config *cfg, __u32 words)
{
	barrier_var(words);
	return cfg->class_of[words & (CLASS_WORDS - 1)];
}

/* Words that the current entry needs in a slot. */
static __always_inline __u32 words_needed(struct xkv_request *rq)
{
	return XKV_SLOT_NEED(rq->key_len, rq->keep + rq->value_len) / 8;
}

/* A free slot for the current entry: its reference, or 0 with *outcome. */
static __always_inline __u64 take_slot(struct xkv_request *rq, int *outcome)
{
	struct xkv_config *cfg = config();
	__u32 need = words_needed(rq);
	__u64 ref;

	if (rq->flags & XKV_REQUEST_PREFILL) {
		*outcome = XKV_C_pass_no_slot; /* if it is 0: xkvd found none */
		return rq->prefilled;
	}
	*outcome = XKV_C_pass_too_large;
	if (!cfg || need >= CLASS_WORDS)
		return 0;
	rq->need = class_of(cfg, need);
	ref = slot_take_for(rq);
	*outcome = ref == LIST_EMPTY ? XKV_C_pass_no_slot : XKV_C_pass_busy;
	return ref == LIST_BUSY ? 0 : ref;
}

/* Frees a slot of take_slot() that was not published. */
static __always_inline void untake_slot(struct xkv_request *rq, __u64 ref)
{
	if (!(rq->flags & XKV_REQUEST_PREFILL))
		slot_give(ref);
}

/* Writes the current entry, except `access`, into a slot that is not published yet. */
__noinline int fill_slot(struct xkv_request *rq, __u64 ref, __u64 expire_ms)
{
	struct xkv_slot *slot = slot_at(ref);

	if (!rq || !slot)
		return 0;
	slot->expire_ms = expire_ms;
	if (rq->flags & XKV_REQUEST_PREFILL)
		return 0;
	slot->key_len = rq->key_len;
	slot->db = rq->db;
	slot->value_len = rq->keep + rq->value_len;
	copy_key(rq, slot);
	if (rq->keep) {
		copy_kept(rq, ref);
		append_value(rq, ref);
	} else {
		copy_value(rq, WINDOW(slot));
	}
	return 0;
}

static __always_inline void published(struct xkv_request *rq)
{
	if (rq->flags & XKV_REQUEST_PREFILL)
		rq->prefilled = 0;
}

/* INCR and APPEND return a number as their value. */
static __always_inline void put_number(struct xkv_request *rq, __u64 number)
{
	OUT(rq, rq->out_len + sizeof(struct xkv_result)) = bpf_cpu_to_be64(number);
}

/* The result of a successful write; with XKV_HAS_VALUE the old value is already in place. */
static __always_inline int put_written(struct xkv_request *rq, __u32 flags, __u32 old_len,
				       __u64 expire_ms, __u64 version, int outcome)
{
	if (rq->opcode != XKV_OP_SET) {
		put_number(rq, rq->opcode == XKV_OP_INCR ? rq->number : rq->keep + rq->value_len);
		flags = XKV_HAS_VALUE;
		old_len = 8;
	}
	put_result(rq, rq->opcode, XKV_OK, flags, old_len, expire_ms, version);
	return outcome;
}

/*
 * Bytes of the old value to keep: all for APPEND, else none.  A slot that xkvd has prefilled with
 * the joined value is used only if the entry still has the version that it was made from.
 */
static __always_inline void keep_old(struct xkv_request *rq, bool exists, __u32 old_len)
{
	bool append = rq->opcode == XKV_OP_APPEND;

	rq->keep = append && exists ? old_len : 0;
	if (append && !(exists && rq->joined == rq->seq))
		rq->flags &= ~XKV_REQUEST_PREFILL;
}

/* Puts the entry that `change` is about into its locked chain.  -1, or why that failed. */
static __always_inline int entry_place(struct change *change, struct xkv_bucket *home, __u64 entry)
{
	struct xkv_request *rq = change->rq;
	int outcome = chain_add(rq, home, entry);

	if (outcome == -1)
		rq->version = change_commit(change);
	else
		change_cancel(change);
	return outcome;
}

/*
 * Inserts the current key with the slot `ref`, which holds the entry, and then publishes the slot,
 * as rq->version.  Not before the insertion succeeded: a reader with a stale reference to the slot
 * would see an entry that may never exist.  -1, AGAIN if the key exists by now, or the outcome that
 * stops the operation.
 */
__noinline int entry_add(struct xkv_request *rq, __u64 ref)
{
	struct xkv_bucket *home;
	struct xkv_slot *slot;
	struct change change;
	int outcome;

	if (!rq)
		return XKV_C_pass_busy;
	home = home_of(config(), rq->fingerprint);
	slot = slot_at(ref);
	if (!home || !slot || !bucket_lock(home))
		return XKV_C_pass_busy;
	if (!chain_lacks_key(rq, home))
		outcome = AGAIN;
	else if (!change_prepare(&change, rq, XKV_CHANGE_CREATE, ref, slot, 0, slot->value_len))
		outcome = XKV_C_pass_busy;
	else
		outcome = entry_place(&change, home, entry_of(rq, ref));
	bucket_unlock(home);
	return outcome;
}

/* The current key does not exist: inserts it. */
__noinline int write_absent(struct xkv_request *rq)
{
	int outcome = XKV_C_pass_busy, status;
	__u64 ref, expire_ms;

	if (!rq)
		return outcome;
	keep_old(rq, false, 0);
	if (rq->opcode == XKV_OP_INCR) {
		status = increment(rq, false);
		if (status != XKV_OK)
			return answer(rq, rq->opcode, status, XKV_C_not_number);
	}
	ref = take_slot(rq, &outcome);
	if (!ref)
		return outcome;
	expire_ms = expiry_asked(rq);
	fill_slot(rq, ref, expire_ms);
	outcome = entry_add(rq, ref);
	if (outcome != -1) {
		untake_slot(rq, ref);
		return outcome;
	}
	published(rq);
	return put_written(rq, 0, 0, expire_ms, rq->version, XKV_C_inserts);
}

/* The current entry needs another class: moves it from its locked slot, as rq->version. */
__noinline int write_moved(struct xkv_request *rq, __u64 expire_ms)
{
	struct xkv_config *cfg = config();
	int outcome = XKV_C_pass_busy;
	struct xkv_slot *old, *slot;
	struct change change;
	__u64 ref;

	if (!rq || !cfg)
		return outcome;
	ref = take_slot(rq, &outcome);
	slot = ref ? slot_at(ref) : NULL;
	old = slot_at(rq->ref);
	if (!slot || !old)
		return outcome;
	fill_slot(rq, ref, expire_ms);
	slot->access = old->access;
	mark_access(cfg, slot);
	if (!change_prepare(&change, rq, XKV_CHANGE_OVERWRITE, ref, slot, rq->ref,
			    slot->value_len)) {
		untake_slot(rq, ref);
		return XKV_C_pass_busy;
	}
	change_frees(&change, rq->ref, old);
	change_replaces(&change, old->expire_ms);
	if (entry_swap(rq, rq->ref, ref)) {
		change_cancel(&change);
		untake_slot(rq, ref);
		return XKV_C_pass_busy;
	}
	rq->version = change_commit(&change);
	published(rq);
	change_done(&change, rq->ref);
	return XKV_C_moves;
}

/* Do NX, XX and CAS permit the change?  XKV_OK, or the status with which it fails. */
static __always_inline int condition(struct xkv_request *rq, bool exists)
{
	return xkv_condition(rq->op_flags, exists, rq->seq, rq->version);
}

/* Must it stay unchanged?  An unread record of the feed may refer to its value. */
static __always_inline bool is_recorded(struct xkv_config *cfg, struct xkv_slot *slot)
{
	return cfg->feed && slot->value_len > XKV_FEED_INLINE;
}

static __always_inline bool stays_in_class(struct xkv_request *rq, struct xkv_slot *slot)
{
	struct xkv_config *cfg = config();
	__u32 need = words_needed(rq);

	return !(rq->flags & XKV_REQUEST_PREFILL) && cfg && need < CLASS_WORDS &&
	       class_of(cfg, need) == slot->class && !is_recorded(cfg, slot);
}

/* The slot of a huge value would keep all of its memory. */
static __always_inline bool fits_in_class(struct xkv_request *rq, struct xkv_slot *slot)
{
	struct xkv_class *c = class_at(slot->class);
	struct xkv_config *cfg = config();

	return !(rq->flags & XKV_REQUEST_PREFILL) && c && cfg &&
	       words_needed(rq) * 8 <= c->slot_bytes && slot->value_len != XKV_VALUE_HUGE &&
	       !is_recorded(cfg, slot);
}

/* Writes the current value into the locked slot of its entry, and commits that, as rq->version. */
static __always_inline void overwrite(struct xkv_request *rq, struct xkv_slot *slot,
				      __u64 expire_ms, struct change *change)
{
	struct xkv_config *cfg = config();

	change_replaces(change, slot->expire_ms);
	slot->expire_ms = expire_ms;
	slot->value_len = rq->keep + rq->value_len;
	if (rq->keep)
		append_value(rq, rq->ref);
	else
		copy_value(rq, WINDOW(slot));
	if (cfg)
		mark_access(cfg, slot);
	rq->version = change_commit(change);
}

/* Overwrites the entry in its locked slot, as rq->version.  If it cannot, the slot stays locked. */
__noinline int write_in_place(struct xkv_request *rq, __u64 expire_ms)
{
	struct xkv_slot *slot;
	struct change change;

	if (!rq)
		return XKV_C_pass_busy;
	slot = slot_at(rq->ref);
	if (!slot || !change_prepare(&change, rq, XKV_CHANGE_OVERWRITE, rq->ref, slot, rq->ref,
				     rq->keep + rq->value_len))
		return XKV_C_pass_busy;
	overwrite(rq, slot, expire_ms, &change);
	return XKV_C_overwrites;
}

/* Computes the new value from the current one and the old one.  XKV_OK or the failure. */
static __always_inline int combine(struct xkv_request *rq, bool exists)
{
	if (rq->keep + rq->value_len > XKV_VALUE_MAX)
		return XKV_TOO_LARGE;
	return rq->opcode == XKV_OP_INCR ? increment(rq, exists) : XKV_OK;
}

/* Must xkvd join the values?  Together they exceed what BPF programs access of a slot. */
static __always_inline bool has_to_be_joined(struct xkv_request *rq)
{
	return rq->keep && rq->keep + rq->value_len > VALUE_WORDS * 8 &&
	       !(rq->flags & XKV_REQUEST_PREFILL);
}

/* Unlocks the slot without a change, and answers with the status. */
static __always_inline int not_written(struct xkv_request *rq, struct xkv_slot *slot, int status)
{
	bool large = status == XKV_TOO_LARGE;

	unlock(slot, rq->seq);
	put_result(rq, rq->opcode, status, 0, large ? rq->keep + rq->value_len : 0, 0, 0);
	return large ? XKV_C_op_too_large : XKV_C_not_number;
}

/* Executes a write whose conditions hold, and unlocks the slot. */
static __always_inline int write_locked(struct xkv_request *rq, struct xkv_slot *slot,
					__u64 expire_ms)
{
	int outcome = XKV_C_overwrites;

	if (!stays_in_class(rq, slot)) {
		outcome = write_moved(rq, expire_ms);
		/* no slot of the right size, but the value fits this one */
		if (outcome == XKV_C_pass_no_slot && fits_in_class(rq, slot))
			outcome = XKV_C_overwrites;
	}
	if (outcome == XKV_C_overwrites)
		outcome = write_in_place(rq, expire_ms);
	if (STOPS(outcome))
		unlock(slot, rq->seq);
	return outcome;
}

/* XKV_HAS_VALUE if the result is to have the old value, else 0. */
static __always_inline __u32 returns_old(struct xkv_request *rq, bool exists)
{
	return (rq->op_flags & XKV_RETURN) && exists ? XKV_HAS_VALUE : 0;
}

/* The current key is in slot rq->ref: overwrites it if the conditions hold. */
__noinline int write_found(struct xkv_request *rq)
{
	__u32 old_len;
	struct xkv_slot *slot;
	int status, outcome;
	__u64 expire_ms;
	bool exists;

	if (!rq)
		return XKV_C_pass_busy;
	slot = lock_found(rq);
	if (!slot)
		return AGAIN;
	exists = !expired(rq, slot->expire_ms);
	old_len = slot->value_len;
	if (returns_old(rq, exists)) {
		outcome = value_room(rq, XKV_OP_SET, old_len, rq->seq);
		if (outcome >= 0) {
			unlock(slot, rq->seq);
			return outcome;
		}
		copy_old(rq);
	}
	expire_ms = slot->expire_ms;
	status = condition(rq, exists);
	if (status != XKV_OK) {
		unlock(slot, rq->seq);
		put_result(rq, rq->opcode, status, returns_old(rq, exists),
			   returns_old(rq, exists) ? old_len : 0, exists ? expire_ms : 0,
			   exists ? rq->seq : 0);
		return XKV_C_not_stored;
	}
	keep_old(rq, exists, old_len);
	status = combine(rq, exists);
	if (status != XKV_OK)
		return not_written(rq, slot, status);
	if (has_to_be_joined(rq)) {
		unlock(slot, rq->seq);
		return XKV_C_pass_too_large;
	}
	if ((rq->op_flags & XKV_KEEPTTL) && exists) {
		if (expire_ms)
			ttl_given(rq);
	} else {
		expire_ms = expiry_asked(rq);
	}
	outcome = write_locked(rq, slot, expire_ms);
	if (STOPS(outcome))
		return outcome;
	return put_written(rq, returns_old(rq, exists), returns_old(rq, exists) ? old_len : 0,
			   expire_ms, rq->version, outcome);
}

/*
 * xkvd has copied the entry into another slot: moves the entry there, unless it was changed since.
 * Version, expiry and access stay, so clients do not notice.  Only from a draining span: its slots
 * are not reused, so no slot ever has the same version twice.
 */
__noinline int relocate_found(struct xkv_request *rq)
{
	struct xkv_slot *old, *slot;
	struct change change;

	if (!rq)
		return XKV_C_pass_busy;
	slot = slot_at(rq->prefilled);
	old = NULL;
	if (is_draining(rq->ref) && rq->seq == rq->version)
		old = lock_found(rq);
	if (!slot || !old)
		return answer(rq, XKV_OP_SET, XKV_NOT_STORED, XKV_C_not_stored);
	if (!move_prepare(&change, rq, old)) {
		unlock(old, rq->seq);
		return XKV_C_pass_busy;
	}
	slot->expire_ms = old->expire_ms;
	slot->access = old->access;
	if (entry_swap(rq, rq->ref, rq->prefilled)) {
		move_cancel(&change);
		unlock(old, rq->seq);
		return XKV_C_pass_busy;
	}
	move_commit(&change, rq->seq);
	unlock(slot, rq->seq);
	published(rq);
	change_done(&change, rq->ref);
	return answer(rq, XKV_OP_SET, XKV_OK, XKV_C_relocations);
}

__noinline int op_write(struct xkv_request *rq)
{
	int found, outcome;

	if (!rq)
		return XKV_C_pass_busy;
	/* the result is a number: needs room like a value, and always fits as the first one */
	if (rq->opcode != XKV_OP_SET) {
		rq->op_flags |= XKV_KEEPTTL;
		rq->amount_off = rq->value_off;
		outcome = value_room(rq, rq->opcode, 8, 0);
		if (outcome >= 0)
			return outcome;
	}
	for (int i = 0; i < TRIES; i++) {
		found = find(rq);
		if (found == BUSY)
			return XKV_C_pass_busy;
		if (found == ABSENT && (rq->op_flags & XKV_CAS))
			return answer(rq, rq->opcode, XKV_MISS, XKV_C_not_stored);
		if (found == ABSENT && (rq->op_flags & XKV_XX))
			return answer(rq, rq->opcode, XKV_NOT_STORED, XKV_C_not_stored);
		if (rq->flags & XKV_REQUEST_RELOCATE)
			return found == FOUND ? relocate_found(rq) : XKV_C_pass_busy;
		outcome = found == FOUND ? write_found(rq) : write_absent(rq);
		if (outcome != AGAIN)
			return outcome;
	}
	return XKV_C_pass_busy;
}

/* ---- DELETE, EXPIRE ------------------------------------------------------ */

/* Does a DELETE apply to the entry?  Depends on whether it has expired. */
static __always_inline bool wanted(struct xkv_request *rq, __u64 expire_ms)
{
	if (rq->flags & XKV_REQUEST_EVICT)
		return true;
	return expired(rq, expire_ms) == !!(rq->flags & XKV_REQUEST_EXPIRED);
}

/* Locks the entry found, if DELETE or EXPIRE applies to it; else NULL, with the outcome. */
static __always_inline struct xkv_slot *lock_wanted(struct xkv_request *rq, int *outcome)
{
	struct xkv_slot *slot = lock_found(rq);

	*outcome = AGAIN;
	if (!slot)
		return NULL;
	if (!wanted(rq, slot->expire_ms))
		*outcome = answer(rq, rq->opcode, XKV_MISS, XKV_C_op_misses);
	else if ((rq->op_flags & XKV_CAS) && rq->seq != rq->version)
		*outcome = answer_entry(rq, rq->opcode, XKV_NOT_STORED, slot->expire_ms, rq->seq,
					XKV_C_not_stored);
	else
		return slot;
	unlock(slot, rq->seq);
	return NULL;
}

/* What becomes of an entry that a DELETE applies to? */
static __always_inline enum xkv_change removal(struct xkv_request *rq)
{
	if (rq->flags & XKV_REQUEST_EVICT)
		return XKV_CHANGE_EVICT;
	return rq->flags & XKV_REQUEST_EXPIRED ? XKV_CHANGE_EXPIRE : XKV_CHANGE_DELETE;
}

/* Removes the locked entry and frees its slot.  False: it stays as it is, locked. */
static __always_inline bool remove_locked(struct xkv_request *rq, struct xkv_slot *slot)
{
	struct change change;

	if (!change_prepare(&change, rq, removal(rq), rq->ref, slot, rq->ref, slot->value_len))
		return false;
	change_frees(&change, rq->ref, slot);
	if (entry_swap(rq, rq->ref, 0)) {
		change_cancel(&change);
		return false;
	}
	change_commit(&change);
	change_done(&change, rq->ref);
	return true;
}

__noinline int delete_found(struct xkv_request *rq)
{
	struct xkv_slot *slot;
	__u32 old_len, give = 0;
	int outcome;

	if (!rq)
		return XKV_C_pass_busy;
	slot = lock_wanted(rq, &outcome);
	if (!slot)
		return outcome;
	old_len = slot->value_len;
	if (rq->op_flags & XKV_RETURN) {
		outcome = value_room(rq, XKV_OP_DELETE, old_len, rq->seq);
		if (outcome >= 0) {
			unlock(slot, rq->seq);
			return outcome;
		}
		copy_old(rq);
		give = XKV_HAS_VALUE;
	}
	if (!remove_locked(rq, slot)) {
		unlock(slot, rq->seq);
		return XKV_C_pass_busy;
	}
	put_result(rq, XKV_OP_DELETE, XKV_OK, give, give ? old_len : 0, 0, 0);
	if (rq->flags & XKV_REQUEST_EVICT)
		return XKV_C_evictions;
	return rq->flags & XKV_REQUEST_EXPIRED ? XKV_C_expires : XKV_C_deletes;
}

__noinline int expire_found(struct xkv_request *rq)
{
	__u64 version, expire_ms;
	struct xkv_slot *slot;
	struct change change;
	int outcome;

	if (!rq)
		return XKV_C_pass_busy;
	slot = lock_wanted(rq, &outcome);
	if (!slot)
		return outcome;
	if (!change_prepare(&change, rq, XKV_CHANGE_EXPIRY, rq->ref, slot, rq->ref,
			    slot->value_len)) {
		unlock(slot, rq->seq);
		return XKV_C_pass_busy;
	}
	expire_ms = expiry_asked(rq);
	slot->expire_ms = expire_ms;
	version = change_commit(&change);
	return answer_entry(rq, XKV_OP_EXPIRE, XKV_OK, expire_ms, version, XKV_C_expiry_changes);
}

/* DELETE and EXPIRE. */
__noinline int op_change(struct xkv_request *rq, __u32 opcode)
{
	int found, outcome;

	if (!rq)
		return XKV_C_pass_busy;
	for (int i = 0; i < TRIES; i++) {
		found = find(rq);
		if (found == BUSY)
			return XKV_C_pass_busy;
		if (found == ABSENT)
			return answer(rq, opcode, XKV_MISS, XKV_C_op_misses);
		outcome = opcode == XKV_OP_DELETE ? delete_found(rq) : expire_found(rq);
		if (outcome != AGAIN)
			return outcome;
	}
	return XKV_C_pass_busy;
}

#endif

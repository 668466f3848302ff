/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the operations of the protocol mean, written once and run by both doors:
 * by XDP on the frame of its CPU, by xkvd's syscall program on the frames of a
 * batch.  A frame comes in with a request in `in` and goes out with the reply in `out`.
 *
 * Each operation returns what happened as the counter to raise (enum
 * xkv_counter).  Those up to XKV_C_pass_too_large mean that it could not be done
 * here and that nothing was changed: the engine stops before it, and whoever
 * takes over (xkvd, or the client with its next request) starts there.
 */
#ifndef XKV_OPS_BPF_H
#define XKV_OPS_BPF_H

#include "store.bpf.h"

#define STOPS(outcome) ((outcome) <= XKV_C_pass_too_large)
#define VALUE_WORDS (XKV_PAYLOAD_MAX4 / 8)
#define CLASSES_TRIED 4 /* for a slot, the right one included */

/* Unix time in milliseconds. */
static __always_inline __u64 now_ms(struct xkv_frame *f)
{
	struct xkv_config *cfg = config();

	if (!f->now_ms && cfg)
		f->now_ms = bpf_ktime_get_tai_ns() / 1000000 - cfg->tai_offset_ms;
	return f->now_ms;
}

static __always_inline bool expired(struct xkv_frame *f, __u64 expire_ms)
{
	return expire_ms && expire_ms <= now_ms(f);
}

/* An entry that expires is written: xkvd need not look for them where this never happened. */
static __always_inline void ttl_given(void)
{
	struct xkv_counters *c = counters();

	if (c)
		count(c, XKV_C_ttls_given);
}

/* The absolute time that the operation's ttl means, 0 = never. */
static __always_inline __u64 expiry_asked(struct xkv_frame *f)
{
	if (!f->ttl)
		return 0;
	ttl_given();
	if (!(f->op_flags & XKV_ABSTTL))
		return now_ms(f) + f->ttl;
	return f->ttl == XKV_TOMB ? XKV_TOMB + 1 : f->ttl; /* both are long past */
}

/* ---- results ------------------------------------------------------------- */

/* Appends a result without its value, whose value_len bytes the caller has put behind it. */
static __always_inline void put_result(struct xkv_frame *f, __u8 opcode, __u8 status, __u8 flags,
				       __u32 value_len, __u64 expire_ms, __u64 version)
{
	__u32 at = f->out_len, room = flags & XKV_HAS_VALUE ? XKV_PADDED(value_len) : 0;
	struct xkv_result *r;
	__u64 left = 0;

	if (at > XKV_FRAME_BYTES - sizeof(*r))
		return;
	if (expire_ms && expire_ms > now_ms(f))
		left = expire_ms - now_ms(f);
	r = (struct xkv_result *)&OUT(f, at);
	r->opcode = opcode;
	r->status = status;
	r->flags = flags;
	r->zero = 0;
	r->value_len = bpf_htonl(value_len);
	r->ttl = bpf_cpu_to_be64(left);
	r->version = bpf_cpu_to_be64(version);
	f->out_len = at + sizeof(*r) + room;
}

static __always_inline int answer(struct xkv_frame *f, __u8 opcode, __u8 status, int outcome)
{
	put_result(f, opcode, status, 0, 0, 0, 0);
	return outcome;
}

static __always_inline int answer_entry(struct xkv_frame *f, __u8 opcode, __u8 status,
					__u64 expire_ms, __u64 version, int outcome)
{
	put_result(f, opcode, status, 0, 0, expire_ms, version);
	return outcome;
}

/* May a value of this size be put into the reply?  -1 if so, else the outcome, with its result. */
__noinline int value_room(struct xkv_frame *f, __u32 opcode, __u32 value_len, __u64 version)
{
	__u32 need;

	if (!f)
		return XKV_C_pass_busy;
	need = f->out_len + sizeof(struct xkv_result) + XKV_PADDED(value_len);
	if (value_len <= VALUE_WORDS * 8 && need <= f->reply_room && need <= f->reply_allowed)
		return -1;
	if (f->done)
		return XKV_C_pass_too_large; /* the client asks again, with this one first */
	if (value_len <= VALUE_WORDS * 8 && need <= f->reply_max) {
		if (need > f->reply_allowed)
			need = XKV_PADDED((need + XKV_REPLY_FACTOR - 1) / XKV_REPLY_FACTOR);
		put_result(f, opcode, XKV_PAD, 0, need, 0, version);
		return XKV_C_op_pad;
	}
	if (!(f->flags & XKV_FRAME_XKVD))
		return XKV_C_pass_too_large;
	put_result(f, opcode, XKV_TOO_LARGE, 0, value_len, 0, version);
	return XKV_C_op_too_large;
}

/* Where the value is in a slot, for a key of key_len bytes. */
static __always_inline __u64 *slot_value(struct xkv_slot *slot, __u32 key_len)
{
	return (__u64 *)(slot + 1) + (((key_len + 7) >> 3) & (2 * KEY_WORDS - 1));
}

/* Copies the value of a slot behind the place of the next result. */
static __always_inline void copy_out(struct xkv_frame *f, struct xkv_slot *slot, __u32 key_len,
				     __u32 value_len)
{
	__u32 to = f->out_len + sizeof(struct xkv_result);
	__u64 *value = slot_value(slot, key_len);

	for (__u32 i = 0; i < VALUE_WORDS; i++) {
		if (i * 8 >= value_len)
			break;
		OUT(f, to + i * 8) = value[i];
	}
}

/* The same in a function of its own, for the slot that is locked. */
__noinline int copy_old(struct xkv_frame *f)
{
	struct xkv_slot *slot;

	if (!f)
		return 0;
	slot = slot_at(f->ref);
	if (slot)
		copy_out(f, slot, f->key_len, slot->value_len);
	return 0;
}

static __always_inline void copy_key(struct xkv_frame *f, struct xkv_slot *slot)
{
	__u32 from = f->key_off, len = f->key_len;
	__u64 *key = (__u64 *)(slot + 1);

	for (__u32 i = 0; i < KEY_WORDS; i++) {
		if (i * 8 >= len)
			break;
		key[i] = IN(f, from + i * 8);
	}
}

static __always_inline void copy_value(struct xkv_frame *f, struct xkv_slot *slot)
{
	__u32 from = f->value_off, len = f->value_len;
	__u64 *value = slot_value(slot, f->key_len);

	for (__u32 i = 0; i < VALUE_WORDS; i++) {
		if (i * 8 >= len)
			break;
		value[i] = IN(f, from + i * 8);
	}
}

/* ---- the lock of an entry ------------------------------------------------ */

/* Locks the slot that find() found; NULL if it has changed since. */
static __always_inline struct xkv_slot *lock_found(struct xkv_frame *f)
{
	struct xkv_slot *slot = slot_at(f->ref);

	if (!slot || __sync_val_compare_and_swap(&slot->seq, f->seq, f->seq | 1) != f->seq)
		return NULL;
	return slot;
}

/* Ends a lock: with the old seq if nothing was changed, else with a new version. */
static __always_inline void unlock(struct xkv_slot *slot, __u64 seq)
{
	smp_mb_writes();
	WRITE(slot->seq, seq);
}

/*
 * The index element of the locked slot f->ref, whose key goes to f->place; NULL
 * = could not tell, try again.  No other element has this reference, and it stays while the slot is locked.
 */
static __always_inline struct xkv_index *element_of_locked(struct xkv_frame *f)
{
	struct xkv_index *element;
	__u64 place;

	for (int i = 0; i < TRIES * XKV_PROBES; i++) {
		place = f->fingerprint + (i % XKV_PROBES) * XKV_PROBE_STEP;
		element = bpf_map_lookup_elem(&xkv_index, &place);
		if (element && READ(element->ref) == f->ref) {
			f->place = place;
			return element;
		}
	}
	return NULL;
}

/* ---- GET, PING ----------------------------------------------------------- */

static __always_inline int op_miss(struct xkv_frame *f, __u8 opcode, int outcome)
{
	struct xkv_config *cfg = config();

	if (!(f->flags & XKV_FRAME_XKVD) && cfg && !cfg->miss_reply)
		return XKV_C_pass_miss;
	return answer(f, opcode, XKV_MISS, outcome);
}

__noinline int op_get(struct xkv_frame *f)
{
	struct xkv_slot *slot;
	__u64 expire_ms;
	__u32 value_len;
	int found, room;

	if (!f)
		return XKV_C_pass_busy;
	for (int i = 0; i < TRIES; i++) {
		found = find(f, 0);
		if (found == ABSENT)
			return op_miss(f, XKV_OP_GET, XKV_C_get_misses);
		if (found == BUSY)
			return XKV_C_pass_busy;
		slot = slot_at(f->ref);
		if (!slot)
			continue;
		expire_ms = READ(slot->expire_ms);
		value_len = READ(slot->value_len);
		smp_mb_reads();
		if (READ(slot->seq) != f->seq)
			continue;
		if (expired(f, expire_ms))
			return op_miss(f, XKV_OP_GET, XKV_C_get_misses);
		room = value_room(f, XKV_OP_GET, value_len, f->seq);
		if (room >= 0)
			return room;
		copy_out(f, slot, f->key_len, value_len);
		smp_mb_reads();
		if (READ(slot->seq) != f->seq)
			continue;
		put_result(f, XKV_OP_GET, XKV_OK, XKV_HAS_VALUE, value_len, expire_ms, f->seq);
		return XKV_C_get_hits;
	}
	return XKV_C_pass_busy;
}

/* ---- SET ----------------------------------------------------------------- */

/*
 * A slot of the class or, if it has none, of the next few: the data plane goes
 * on while xkvd, which is told, adds pages (or is not there to do it).
 */
__noinline __u64 slot_take_near(__u32 class)
{
	struct xkv_class *c = class_at(class);
	__u64 ref = 0;

	for (__u32 i = 0; i < CLASSES_TRIED; i++) {
		ref = slot_take(class + i);
		if (ref)
			break;
		if (!i && c)
			__sync_fetch_and_add(&c->wanted, 1);
	}
	return ref;
}

/* A free slot for the entry at hand: its reference, or 0 with *outcome. */
static __always_inline __u64 take_slot(struct xkv_frame *f, int *outcome)
{
	struct xkv_config *cfg = config();
	__u32 need = XKV_SLOT_NEED(f->key_len, f->value_len) / 8;
	__u64 ref;

	if (f->flags & XKV_FRAME_PREFILL)
		return f->prefilled;
	*outcome = XKV_C_pass_too_large;
	if (!cfg || need >= sizeof(cfg->class_of))
		return 0;
	f->need = cfg->class_of[need];
	/* xkvd can add pages, and does that first */
	if ((f->flags & XKV_FRAME_XKVD) && !(f->flags & XKV_FRAME_LAST))
		ref = slot_take(f->need);
	else
		ref = slot_take_near(f->need);
	*outcome = ref ? XKV_C_pass_busy : XKV_C_pass_no_slot;
	return ref == ~0ULL ? 0 : ref;
}

/* Gives back what take_slot() gave and what was not published. */
static __always_inline void untake_slot(struct xkv_frame *f, __u64 ref)
{
	if (!(f->flags & XKV_FRAME_PREFILL))
		slot_give(ref);
}

/* Writes the entry at hand into a slot that is ours and that nobody can find yet. */
__noinline int fill_slot(struct xkv_frame *f, __u64 ref, __u32 flags, __u64 expire_ms)
{
	struct xkv_slot *slot = slot_at(ref);

	if (!f || !slot)
		return 0;
	slot->expire_ms = expire_ms;
	slot->flags = flags;
	if (f->flags & XKV_FRAME_PREFILL)
		return 0;
	slot->key_len = f->key_len;
	slot->value_len = f->value_len;
	copy_key(f, slot);
	copy_value(f, slot);
	return 0;
}

/* Makes index[place], where nothing stands, refer to `ref`. 0 or what bpf_map_update_elem() says. */
static __always_inline long index_insert(struct xkv_frame *f, __u64 ref)
{
	struct xkv_index element = { .ref = ref, .key_len = f->key_len };
	__u64 place = f->place, head[3];

	for (int i = 0; i < 3; i++)
		head[i] = i * 8 < (int)f->key_len ? IN(f, f->key_off + i * 8) : 0;
	__builtin_memcpy(element.key_head, head, sizeof(element.key_head));
	return bpf_map_update_elem(&xkv_index, &place, &element, BPF_NOEXIST);
}

/* Publishes a filled slot under a new version, which it returns. */
static __always_inline __u64 publish(struct xkv_frame *f, struct xkv_slot *slot, __u64 ref)
{
	struct xkv_config *cfg = config();
	struct xkv_near *near;
	__u64 version = new_version();

	unlock(slot, version);
	if (f->flags & XKV_FRAME_PREFILL)
		f->prefilled = 0;
	near = cfg ? near_at(cfg, f->fingerprint) : NULL;
	if (near)
		near_fill(near, f->fingerprint, ref);
	return version;
}

#define AGAIN (-1) /* somebody else was faster: look again */

/* The key at hand is not there: inserts it at f->place. */
__noinline int set_insert(struct xkv_frame *f)
{
	int outcome = XKV_C_pass_busy;
	struct xkv_slot *slot;
	__u64 ref, expire_ms, version;
	long err;

	if (!f)
		return outcome;
	ref = take_slot(f, &outcome);
	slot = ref ? slot_at(ref) : NULL;
	if (!slot)
		return outcome;
	expire_ms = expiry_asked(f);
	fill_slot(f, ref, 0, expire_ms);
	err = index_insert(f, ref);
	if (err) {
		untake_slot(f, ref);
		if (err == -EEXIST)
			return AGAIN;
		return err == -E2BIG ? XKV_C_pass_full : XKV_C_pass_busy;
	}
	version = publish(f, slot, ref);
	return answer_entry(f, XKV_OP_SET, XKV_OK, expire_ms, version, XKV_C_inserts);
}

/* The entry at hand does not fit the class of its locked slot: moves it to another slot. */
__noinline int set_move(struct xkv_frame *f, __u64 expire_ms)
{
	int outcome = XKV_C_pass_busy;
	struct xkv_slot *old, *slot;
	struct xkv_index *element;
	__u64 ref;

	if (!f)
		return outcome;
	ref = take_slot(f, &outcome);
	slot = ref ? slot_at(ref) : NULL;
	old = slot_at(f->ref);
	if (!slot || !old)
		return outcome;
	fill_slot(f, ref, old->flags, expire_ms);
	element = element_of_locked(f);
	if (!element) {
		untake_slot(f, ref);
		return XKV_C_pass_busy;
	}
	/*
	 * Not bpf_map_update_elem(): it puts a new element before the old one, and a
	 * look-up that is under way between the two finds neither.
	 */
	WRITE(element->ref, ref);
	f->version = publish(f, slot, ref);
	slot_give(f->ref);
	return XKV_C_moves;
}

/* Do NX, XX and CAS allow a change of the entry?  XKV_OK or the status that says why not. */
static __always_inline int condition(struct xkv_frame *f, bool exists)
{
	if (f->op_flags & XKV_CAS) {
		if (!exists)
			return XKV_MISS;
		return f->seq == f->version ? XKV_OK : XKV_NOT_STORED;
	}
	if (((f->op_flags & XKV_NX) && exists) || ((f->op_flags & XKV_XX) && !exists))
		return XKV_NOT_STORED;
	return XKV_OK;
}

static __always_inline bool stays_in_class(struct xkv_frame *f, struct xkv_slot *slot)
{
	struct xkv_config *cfg = config();
	__u32 need = XKV_SLOT_NEED(f->key_len, f->value_len) / 8;

	return !(f->flags & XKV_FRAME_PREFILL) && cfg && need < sizeof(cfg->class_of) &&
	       cfg->class_of[need] == slot->class;
}

static __always_inline bool fits_in_class(struct xkv_frame *f, struct xkv_slot *slot)
{
	struct xkv_class *c = class_at(slot->class);

	return !(f->flags & XKV_FRAME_PREFILL) && c &&
	       XKV_SLOT_NEED(f->key_len, f->value_len) <= c->slot_bytes;
}

/* The key at hand is in slot f->ref: overwrites it if the conditions hold. */
__noinline int set_found(struct xkv_frame *f)
{
	__u64 expire_ms, version;
	__u32 old_len, give = 0;
	struct xkv_slot *slot;
	bool exists, revived;
	int status, outcome;

	if (!f)
		return XKV_C_pass_busy;
	slot = lock_found(f);
	if (!slot)
		return AGAIN;
	revived = slot->expire_ms == XKV_TOMB;
	exists = !expired(f, slot->expire_ms);
	old_len = slot->value_len;
	if ((f->op_flags & XKV_RETURN) && exists) {
		outcome = value_room(f, XKV_OP_SET, old_len, f->seq);
		if (outcome >= 0) {
			unlock(slot, f->seq);
			return outcome;
		}
		copy_old(f);
		give = XKV_HAS_VALUE;
	}
	status = condition(f, exists);
	expire_ms = slot->expire_ms;
	if (status != XKV_OK) {
		unlock(slot, f->seq);
		put_result(f, XKV_OP_SET, status, give, give ? old_len : 0, exists ? expire_ms : 0,
			   exists ? f->seq : 0);
		return XKV_C_not_stored;
	}
	if (!(f->op_flags & XKV_KEEPTTL) || !exists)
		expire_ms = expiry_asked(f);
	else if (expire_ms)
		ttl_given();
	outcome = XKV_C_overwrites;
	version = 0;
	if (!stays_in_class(f, slot)) {
		outcome = set_move(f, expire_ms);
		version = f->version;
		/* no slot of the right size, but this one will do */
		if (outcome == XKV_C_pass_no_slot && fits_in_class(f, slot))
			outcome = XKV_C_overwrites;
	}
	if (STOPS(outcome)) {
		unlock(slot, f->seq);
		return outcome;
	}
	if (outcome == XKV_C_overwrites) {
		slot->expire_ms = expire_ms;
		slot->value_len = f->value_len;
		copy_value(f, slot);
		version = new_version();
		unlock(slot, version);
	}
	put_result(f, XKV_OP_SET, XKV_OK, give, give ? old_len : 0, expire_ms, version);
	return revived ? XKV_C_revived : outcome;
}

__noinline int op_set(struct xkv_frame *f)
{
	int found, outcome;

	if (!f)
		return XKV_C_pass_busy;
	for (int i = 0; i < TRIES; i++) {
		found = find(f, !(f->op_flags & (XKV_XX | XKV_CAS)));
		if (found == BUSY)
			return XKV_C_pass_busy;
		if (found == ABSENT && (f->op_flags & XKV_CAS))
			return answer(f, XKV_OP_SET, XKV_MISS, XKV_C_not_stored);
		if (found == ABSENT && (f->op_flags & XKV_XX))
			return answer(f, XKV_OP_SET, XKV_NOT_STORED, XKV_C_not_stored);
		outcome = found == FOUND ? set_found(f) : set_insert(f);
		if (outcome != AGAIN)
			return outcome;
	}
	return XKV_C_pass_busy;
}

/* ---- DELETE, EXPIRE ------------------------------------------------------ */

/* Takes the locked entry out of index and frees its slot, or leaves a tomb. */
static __always_inline int remove_locked(struct xkv_frame *f, struct xkv_slot *slot)
{
	__u64 place;

	if (slot->flags & XKV_SLOT_COLLIDED) {
		slot->expire_ms = XKV_TOMB;
		slot->value_len = 0;
		unlock(slot, new_version());
		return XKV_C_tombs;
	}
	if (!element_of_locked(f))
		return XKV_C_pass_busy;
	place = f->place;
	if (bpf_map_delete_elem(&xkv_index, &place))
		return XKV_C_pass_busy;
	slot_give(f->ref);
	return XKV_C_deletes;
}

__noinline int delete_found(struct xkv_frame *f)
{
	struct xkv_slot *slot;
	__u32 old_len, give = 0;
	__u64 expire_ms;
	bool want;
	int outcome;

	if (!f)
		return XKV_C_pass_busy;
	slot = lock_found(f);
	if (!slot)
		return AGAIN;
	expire_ms = slot->expire_ms;
	old_len = slot->value_len;
	want = !expired(f, expire_ms);
	if (f->flags & XKV_FRAME_EXPIRED)
		want = !want && expire_ms != XKV_TOMB;
	if (!want) {
		unlock(slot, f->seq);
		return answer(f, XKV_OP_DELETE, XKV_MISS, XKV_C_op_misses);
	}
	if ((f->op_flags & XKV_CAS) && f->seq != f->version) {
		unlock(slot, f->seq);
		return answer_entry(f, XKV_OP_DELETE, XKV_NOT_STORED, expire_ms, f->seq,
				    XKV_C_not_stored);
	}
	if (f->op_flags & XKV_RETURN) {
		outcome = value_room(f, XKV_OP_DELETE, old_len, f->seq);
		if (outcome >= 0) {
			unlock(slot, f->seq);
			return outcome;
		}
		copy_old(f);
		give = XKV_HAS_VALUE;
	}
	outcome = remove_locked(f, slot);
	if (STOPS(outcome)) {
		unlock(slot, f->seq);
		return outcome;
	}
	put_result(f, XKV_OP_DELETE, XKV_OK, give, give ? old_len : 0, 0, 0);
	return f->flags & XKV_FRAME_EXPIRED ? XKV_C_expires : outcome;
}

__noinline int expire_found(struct xkv_frame *f)
{
	__u64 version, expire_ms;
	struct xkv_slot *slot;

	if (!f)
		return XKV_C_pass_busy;
	slot = lock_found(f);
	if (!slot)
		return AGAIN;
	if (expired(f, slot->expire_ms)) {
		unlock(slot, f->seq);
		return answer(f, XKV_OP_EXPIRE, XKV_MISS, XKV_C_op_misses);
	}
	expire_ms = expiry_asked(f);
	slot->expire_ms = expire_ms;
	version = new_version();
	unlock(slot, version);
	return answer_entry(f, XKV_OP_EXPIRE, XKV_OK, expire_ms, version, XKV_C_expiry_changes);
}

/* DELETE and EXPIRE: nothing to do where the key is not. */
__noinline int op_change(struct xkv_frame *f, __u32 opcode)
{
	int found, outcome;

	if (!f)
		return XKV_C_pass_busy;
	for (int i = 0; i < TRIES; i++) {
		found = find(f, 0);
		if (found == BUSY)
			return XKV_C_pass_busy;
		if (found == ABSENT)
			return answer(f, opcode, XKV_MISS, XKV_C_op_misses);
		outcome = opcode == XKV_OP_DELETE ? delete_found(f) : expire_found(f);
		if (outcome != AGAIN)
			return outcome;
	}
	return XKV_C_pass_busy;
}

#endif

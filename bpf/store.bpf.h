/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The store's mechanism: slots, free lists, fingerprints and look-ups.  What an
 * operation means is in ops.bpf.h.
 *
 * Every function that is not inline is global, so that the verifier checks it
 * once and by itself; hence the work is handed over in a frame (memory of known
 * size) and not in pointers to places inside it.
 *
 * Rules that keep it right (docs/design.md has the reasons):
 *  - only who moved slot.seq from even to odd writes to the slot;
 *  - nothing but `ref` is taken from an index element, in one load;
 *  - nothing is believed of a slot unless seq was the same even number before
 *    and after it was read;
 *  - nothing waits: every loop has a bound, after which the caller gets `busy`.
 */
#ifndef XKV_STORE_BPF_H
#define XKV_STORE_BPF_H

#include <linux/errno.h>
#include <bpf/bpf_endian.h>

#include "maps.bpf.h"
#include "siphash.h"

#define READ(x) (*(const volatile typeof(x) *)&(x))
#define WRITE(x, value) (*(volatile typeof(x) *)&(x) = (value))
#define barrier() asm volatile("" ::: "memory")
/* Has the compiler forget what it knows of x, so that a check of it stands where the verifier needs it. */
#define OPAQUE(x) asm volatile("" : "+r"(x))

/*
 * Loads stay in order, and stores stay in order.  x86 keeps that by itself; elsewhere a
 * fetching atomic on the stack is a full barrier (BPF's fetching atomics are
 * fully ordered, Documentation/bpf/standardization/instruction-set.rst).
 */
#if defined(__TARGET_ARCH_x86)
#define smp_mb_reads() barrier()
#define smp_mb_writes() barrier()
#else
#define smp_mb_reads()                                                                             \
	do {                                                                                       \
		__u64 fence = 0;                                                                   \
		barrier();                                                                         \
		fence = __sync_fetch_and_add(&fence, 1);                                           \
		OPAQUE(fence); /* its result is used: else it is compiled to one that orders nothing */ \
		barrier();                                                                         \
	} while (0)
#define smp_mb_writes() smp_mb_reads()
#endif

/* Words of a frame, by byte offset (all are multiples of 8). */
#define IN(f, at) ((f)->in_word[((at) >> 3) & (XKV_FRAME_WORDS - 1)])
#define OUT(f, at) ((f)->out_word[((at) >> 3) & (XKV_FRAME_WORDS - 1)])

#define KEY_WORDS 32    /* of the longest key */
#define OTHER_KEY (XKV_FRAME_BYTES + 256) /* place in `in` for the key of another slot */

#define TRIES 4      /* of an operation, before it is passed on as busy */
#define LIST_TRIES 32 /* of a compare and exchange on a free list */

static __always_inline struct xkv_config *config(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&xkv_config, &zero);
}

static __always_inline struct xkv_counters *counters(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&xkv_counters, &zero);
}

/* Adds one to a counter of this CPU.  Atomic: softirq may interrupt a syscall program. */
static __always_inline void count(struct xkv_counters *c, __u32 which)
{
	if (which < XKV_COUNTER_COUNT)
		__sync_fetch_and_add(&((__u64 *)c)[which], 1);
}

/* A new version: even, never used before, for whatever slot and key. 0 if there is none. */
static __always_inline __u64 new_version(void)
{
	struct xkv_counters *c = counters();

	if (!c)
		return 0;
	return (__sync_fetch_and_add(&c->version, 1) * XKV_VERSION_CPUS +
		(bpf_get_smp_processor_id() & (XKV_VERSION_CPUS - 1))) * 2;
}

/* The slot behind a reference, with XKV_SLOT_WINDOW bytes that may be touched, or NULL. */
static __always_inline struct xkv_slot *slot_at(__u64 ref)
{
	__u32 page = XKV_REF_PAGE(ref), zero = 0;
	__u32 offset = XKV_REF_OFFSET(ref);
	void *inner = bpf_map_lookup_elem(&xkv_pages, &page);
	char *base;

	if (!inner)
		return NULL;
	base = bpf_map_lookup_elem(inner, &zero);
	if (!base || offset > XKV_PAGE_BYTES - XKV_SLOT_WINDOW)
		return NULL;
	return (struct xkv_slot *)(base + offset);
}

/* ---- free lists (Treiber stacks; the tag in the head guards against ABA) -- */

static __always_inline struct xkv_class *class_at(__u32 class)
{
	return bpf_map_lookup_elem(&xkv_classes, &class);
}

static __always_inline __u64 list_head(__u64 old, __u64 ref)
{
	return (((old >> XKV_REF_BITS) + 1) << XKV_REF_BITS) | (ref & XKV_REF_MASK);
}

/* Takes a free slot: its reference, 0 if there is none, ~0 if the list was contended. */
__noinline __u64 slot_take(__u32 class)
{
	struct xkv_class *c = class_at(class);
	struct xkv_slot *slot;
	__u64 head, ref;

	if (!c)
		return 0;
	for (int i = 0; i < LIST_TRIES; i++) {
		head = READ(c->head);
		ref = head & XKV_REF_MASK;
		if (!ref)
			return 0;
		slot = slot_at(ref);
		if (!slot)
			return 0;
		smp_mb_reads();
		if (__sync_val_compare_and_swap(&c->head, head, list_head(head, READ(slot->next))) ==
		    head) {
			__sync_fetch_and_add(&c->free, -1);
			return ref;
		}
	}
	return ~0ULL;
}

/* Puts the chain first..last of free slots into the list. 0, or -EBUSY. */
static __always_inline int list_push(struct xkv_class *c, __u64 first, struct xkv_slot *last,
				     __u32 slots)
{
	__u64 head;

	for (int i = 0; i < LIST_TRIES; i++) {
		head = READ(c->head);
		WRITE(last->next, head & XKV_REF_MASK);
		smp_mb_writes();
		if (__sync_val_compare_and_swap(&c->head, head, list_head(head, first)) == head) {
			__sync_fetch_and_add(&c->free, slots);
			return 0;
		}
	}
	return -EBUSY;
}

/* Gives back a slot whose seq is odd, by the one that made it so.  It is never lost. */
__noinline int slot_give(__u64 ref)
{
	struct xkv_slot *slot = slot_at(ref);
	struct xkv_class *c;
	struct xkv_counters *n;

	if (!slot)
		return -EINVAL;
	c = class_at(slot->class);
	if (!c)
		return -EINVAL;
	slot->flags = 0;
	if (!list_push(c, ref, slot, 1))
		return 0;
	WRITE(slot->flags, XKV_SLOT_ORPHAN);
	n = counters();
	if (n)
		count(n, XKV_C_orphans);
	return 0;
}

/* ---- keys ---------------------------------------------------------------- */

/*
 * The fingerprint of the key_len bytes at in[key_off]: a hash under a secret
 * that was drawn when the maps were made, so that nobody can make keys collide.
 */
__noinline __u64 key_fingerprint(struct xkv_frame *f, __u32 key_off, __u32 key_len)
{
	struct xkv_config *cfg = config();
	struct siphash s;

	if (!f || !cfg)
		return 0;
	siphash_init(&s, cfg->secret);
	for (__u32 i = 0; i < KEY_WORDS; i++) {
		if (i * 8 >= key_len)
			break;
		siphash_word(&s, IN(f, key_off + i * 8));
	}
	return siphash_end(&s, key_len) & cfg->fingerprint_mask;
}

enum match { MATCH_SAME, MATCH_OTHER, MATCH_UNSTABLE };

/* Is the key at hand the one in slot `ref`?  SAME leaves ref and its seq in the frame. */
__noinline int slot_match(struct xkv_frame *f, __u64 ref)
{
	struct xkv_slot *slot = slot_at(ref);
	__u64 seq, differ, *key;
	__u32 key_len, key_off;

	if (!f || !slot)
		return MATCH_UNSTABLE;
	seq = READ(slot->seq);
	if (seq & 1)
		return MATCH_UNSTABLE;
	smp_mb_reads();
	key = (__u64 *)(slot + 1);
	key_len = f->key_len;
	key_off = f->key_off;
	differ = slot->key_len ^ key_len;
	for (__u32 i = 0; i < KEY_WORDS; i++) {
		if (i * 8 >= key_len || differ)
			break;
		differ = key[i] ^ IN(f, key_off + i * 8);
	}
	smp_mb_reads();
	if (READ(slot->seq) != seq)
		return MATCH_UNSTABLE;
	f->ref = ref;
	f->seq = seq;
	return differ ? MATCH_OTHER : MATCH_SAME;
}

/* ---- near ---------------------------------------------------------------- */

static __always_inline struct xkv_near *near_at(struct xkv_config *cfg, __u64 fingerprint)
{
	__u32 bucket = fingerprint & cfg->near_mask;

	return bpf_map_lookup_elem(&xkv_near, &bucket);
}

static __always_inline __u64 near_tag(__u64 fingerprint)
{
	return fingerprint & ~XKV_REF_MASK;
}

static __always_inline bool near_find(struct xkv_frame *f, struct xkv_near *near)
{
	__u64 tag = near_tag(f->fingerprint), entry;

	for (int i = 0; i < XKV_NEAR_WAYS; i++) {
		entry = READ(near->entry[i]);
		if (entry && near_tag(entry) == tag &&
		    slot_match(f, entry & XKV_REF_MASK) == MATCH_SAME)
			return true;
	}
	return false;
}

/* Takes the place of the entry with the same tag, an empty one, or one by chance. */
static __always_inline void near_fill(struct xkv_near *near, __u64 fingerprint, __u64 ref)
{
	__u64 tag = near_tag(fingerprint), entry;
	__u32 way = (fingerprint >> 32) & (XKV_NEAR_WAYS - 1);

	for (int i = 0; i < XKV_NEAR_WAYS; i++) {
		entry = READ(near->entry[i]);
		if (!entry || near_tag(entry) == tag) {
			way = i;
			break;
		}
	}
	WRITE(near->entry[way & (XKV_NEAR_WAYS - 1)], tag | ref);
}

/* ---- look-up ------------------------------------------------------------- */

enum found { FOUND, ABSENT, BUSY };

/*
 * Does the key of slot f->ref (which differs from ours) belong at index key
 * `place`?  If not, the element was reused while we looked at it.
 */
__noinline int belongs(struct xkv_frame *f, __u64 place)
{
	struct xkv_slot *slot;
	__u64 fingerprint, *key;
	__u32 key_len;

	if (!f)
		return 0;
	slot = slot_at(f->ref);
	if (!slot)
		return 0;
	key_len = slot->key_len;
	key = (__u64 *)(slot + 1);
	for (__u32 i = 0; i < KEY_WORDS; i++)
		IN(f, OTHER_KEY + i * 8) = key[i];
	smp_mb_reads();
	if (READ(slot->seq) != f->seq)
		return 0;
	fingerprint = key_fingerprint(f, OTHER_KEY, key_len);
	for (int i = 0; i < XKV_PROBES; i++)
		if (fingerprint + i * XKV_PROBE_STEP == place)
			return 1;
	return 0;
}

/*
 * Marks the entry in slot f->ref as one that others stepped aside for, so that
 * it never leaves index and their places never move.  0, or -EBUSY.
 */
static __always_inline int slot_collide(struct xkv_frame *f)
{
	struct xkv_slot *slot = slot_at(f->ref);
	struct xkv_counters *c = counters();

	if (!slot || !c ||
	    __sync_val_compare_and_swap(&slot->seq, f->seq, f->seq | 1) != f->seq)
		return -EBUSY;
	slot->flags |= XKV_SLOT_COLLIDED;
	smp_mb_writes();
	WRITE(slot->seq, f->seq); /* what readers see of the entry did not change */
	count(c, XKV_C_collisions);
	return 0;
}

enum place { PLACE_MINE, PLACE_EMPTY, PLACE_OTHER, PLACE_BUSY };

/* Is slot f->ref, with what was read of it at f->seq, what index[place] refers to now? */
static __always_inline bool still_at_place(struct xkv_frame *f, __u64 place)
{
	struct xkv_index *element = bpf_map_lookup_elem(&xkv_index, &place);
	struct xkv_slot *slot = slot_at(f->ref);

	if (!element || !slot || READ(element->ref) != f->ref)
		return false;
	smp_mb_reads();
	return READ(slot->seq) == f->seq;
}

/* What stands at index key f->place? */
__noinline int look_at_place(struct xkv_frame *f)
{
	struct xkv_index *element;
	__u64 ref, place;
	int match;

	if (!f)
		return PLACE_BUSY;
	place = f->place;
	for (int i = 0; i < TRIES; i++) {
		element = bpf_map_lookup_elem(&xkv_index, &place);
		if (!element)
			return PLACE_EMPTY;
		ref = READ(element->ref);
		match = slot_match(f, ref);
		if (match == MATCH_SAME)
			return PLACE_MINE;
		/*
		 * A collision, unless the slot changed hands to a key of the same
		 * fingerprint after its reference was read.
		 */
		if (match == MATCH_OTHER && belongs(f, place) && still_at_place(f, place))
			return PLACE_OTHER;
	}
	return PLACE_BUSY;
}

enum collided { COLLIDED_NO, COLLIDED_YES, COLLIDED_GONE };

/* Was the entry in slot f->ref, read at f->seq, marked by slot_collide()?  GONE: it is not there any more. */
static __always_inline int has_collided(struct xkv_frame *f)
{
	struct xkv_slot *slot = slot_at(f->ref);
	__u8 flags;

	if (!slot)
		return COLLIDED_GONE;
	flags = READ(slot->flags);
	smp_mb_reads();
	if (READ(slot->seq) != f->seq)
		return COLLIDED_GONE;
	return flags & XKV_SLOT_COLLIDED ? COLLIDED_YES : COLLIDED_NO;
}

/*
 * Finds the slot of the key at hand.  FOUND: ref and seq are set.  ABSENT: place
 * is where it would have to be inserted; then, if `insert`, whoever stands before has been marked.
 */
__noinline int find(struct xkv_frame *f, int insert)
{
	struct xkv_config *cfg = config();
	struct xkv_near *near;
	__u64 fingerprint;

	if (!f || !cfg)
		return BUSY;
	fingerprint = f->fingerprint;
	near = near_at(cfg, fingerprint);
	if (near && near_find(f, near))
		return FOUND;
	for (int probe = 0; probe < XKV_PROBES; probe++) {
		f->place = fingerprint + probe * XKV_PROBE_STEP;
		switch (look_at_place(f)) {
		case PLACE_MINE:
			if (near)
				near_fill(near, fingerprint, f->ref);
			return FOUND;
		case PLACE_EMPTY:
			return ABSENT;
		case PLACE_BUSY:
			return BUSY;
		}
		switch (has_collided(f)) {
		case COLLIDED_GONE:
			return BUSY;
		case COLLIDED_NO:
			if (!insert)
				return ABSENT;
			if (slot_collide(f))
				return BUSY;
		}
	}
	return insert ? BUSY : ABSENT;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The mechanism of the store: slots, free lists, fingerprints, the index.  The operations are in
 * ops.bpf.h.
 *
 * Functions that are not inlined are global, so the verifier checks each once, on its own.  It
 * knows the size of their arguments but not what points into them: therefore they take the whole
 * request and offsets, not pointers into it.
 *
 * Invariants (docs/design.md has the reasons):
 *  - Writing to a slot requires having moved its seq from even to odd.
 *  - Writing to a bucket or its chain requires the lock of the first bucket.  A slot is locked
 *    before a bucket, and nothing is locked while a bucket is.
 *  - Data read from a slot is valid only if seq was the same even number before and after.
 *  - Nothing blocks: every loop is bounded, and its caller gets `busy` after that.
 */
#ifndef XKV_STORE_BPF_H
#define XKV_STORE_BPF_H

#include <linux/errno.h>
#include <bpf/bpf_endian.h>

#include "maps.bpf.h"

#define READ_ONCE(x)	     (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
/*
 * libbpf's barrier_var(x) makes the compiler forget what it knows of x, so that a mask or a
 * comparison stays where the verifier needs it, and a pointer that a loop advances stays one
 * register instead of a base and an index.
 */

/* Converts a word from or to little-endian byte order. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define LE64(word) (word)
#else
#define LE64(word) __builtin_bswap64(word)
#endif

/*
 * Order loads against loads and stores against stores.  x86 does so by itself; elsewhere a fetching
 * atomic on the stack is a full barrier (BPF's fetching atomics are fully ordered,
 * Documentation/bpf/standardization/instruction-set.rst).
 */
#if defined(__TARGET_ARCH_x86)
#define smp_rmb() barrier()
#define smp_wmb() barrier()
#else
#define smp_rmb()                                                                                  \
	do {                                                                                       \
		__u64 fence = 0;                                                                   \
		barrier();                                                                         \
		fence = __sync_fetch_and_add(&fence, 1);                                           \
		barrier_var(fence); /* a used result keeps it fetching, and so ordered */          \
		barrier();                                                                         \
	} while (0)
#define smp_wmb() smp_rmb()
#endif

/* Words of a request and of a slot, by byte offset (a multiple of 8). */
#define IN(rq, at)     ((rq)->in_word[((at) >> 3) & (XKV_REQUEST_WORDS - 1)])
#define OUT(rq, at)    ((rq)->out_word[((at) >> 3) & (XKV_REQUEST_WORDS - 1)])
#define SLOT(slot, at) (((__u64 *)(slot))[((at) >> 3) & (XKV_SLOT_WINDOW / 8 - 1)])

#define KEY_WORDS   XKV_HASH_WORDS
#define VALUE_WORDS (XKV_PAYLOAD_MAX4 / 8)
#define SCRATCH	    (XKV_REQUEST_BYTES + 256) /* offset in `in` of 256 bytes of scratch space */

#define TRIES	   4  /* of an operation, before it is passed on as busy */
#define LOCK_TRIES 32 /* to lock a bucket; locks are held for some tens of instructions */
#define LIST_TRIES 32 /* of a compare-and-exchange on a free list */

/*
 * Four words per iteration.  There are never more than `most`: a bound for the verifier, in the
 * register that counts, since that of 6.1 follows no copies of it.
 */
static __always_inline void copy_words(__u64 *to, const __u64 *from, __u32 words, __u32 most)
{
	barrier_var(words);
	if (words > most)
		return;
	for (; words >= 4; words -= 4) {
		to[0] = from[0];
		to[1] = from[1];
		to[2] = from[2];
		to[3] = from[3];
		to += 4;
		from += 4;
		barrier_var(to);
		barrier_var(from);
	}
	for (__u32 rest = 0; rest < 3; rest++) {
		if (rest >= words)
			break;
		*to++ = *from++;
	}
}

static __always_inline struct xkv_config *config(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&xkv_config, &zero);
}

static __always_inline struct xkv_rules *rules_of(struct xkv_config *cfg, __u32 current)
{
	return &cfg->rules[current & 1];
}

static __always_inline struct xkv_secrets *secrets(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&xkv_secret, &zero);
}

static __always_inline struct xkv_counters *counters(__u32 frontend)
{
	return bpf_map_lookup_elem(&xkv_counters, &frontend);
}

static __always_inline struct xkv_tally *tally(__u32 frontend)
{
	return bpf_map_lookup_elem(&xkv_tally, &frontend);
}

/* The front end of a request. */
#ifndef FRONTEND /* else there is one only in this object */
#define FRONTEND(rq) ((rq)->flags & XKV_REQUEST_XKVD)
#endif

/*
 * Increments a counter of this CPU and returns its old value.  xkvd's programs can preempt each
 * other; XDP programs cannot.
 */
static __always_inline __u64 add_one(__u64 *counter, __u32 frontend)
{
	if (frontend == XKV_FRONTEND_XKVD)
		return __sync_fetch_and_add(counter, 1);
	return (*counter)++;
}

/* A counter of this CPU. */
static __always_inline __u64 *counter_at(__u32 frontend, __u32 which)
{
	struct xkv_counters *c;
	struct xkv_tally *t;

	if (which < XKV_STATISTIC_COUNT) {
		c = counters(frontend);
		if (!c)
			return NULL;
		barrier_var(c); /* else newer compilers add before they compare */
		return (__u64 *)c + which;
	}
	t = which < XKV_COUNTER_COUNT ? tally(frontend) : NULL;
	if (!t)
		return NULL;
	barrier_var(t);
	return (__u64 *)t + (which - XKV_STATISTIC_COUNT);
}

/* Adds to a counter of XDP. */
static __always_inline void count_many(__u32 which, __u32 many)
{
	__u64 *counter = counter_at(XKV_FRONTEND_XDP, which);

	if (counter)
		*counter += many;
}

static __always_inline void count(struct xkv_request *rq, __u32 which)
{
	__u32 frontend = FRONTEND(rq);
	__u64 *counter = counter_at(frontend, which);

	if (counter)
		add_one(counter, frontend);
}

static __always_inline struct xkv_page *page_at(__u64 ref)
{
	__u32 page = XKV_REF_PAGE(ref), zero = 0;
	void *inner = bpf_map_lookup_elem(&xkv_pages, &page);

	return inner ? bpf_map_lookup_elem(inner, &zero) : NULL;
}

/* The stored number of a database, from the clients' number. */
static __always_inline __u32 database_of(const struct xkv_config *cfg, __u8 db)
{
	return cfg->stored[READ_ONCE(cfg->stored_current) & 1][db];
}

/* The clients' number of a database, from its stored number. */
static __always_inline __u32 number_of(const struct xkv_config *cfg, __u8 stored)
{
	return cfg->number[READ_ONCE(cfg->stored_current) & 1][stored];
}

/* The length of the value in a slot, read once: others may be writing it. */
static __always_inline __u32 value_len_of(const struct xkv_slot *slot)
{
	return ((const volatile struct xkv_slot *)slot)->value_len;
}

/* The slot of a reference, with XKV_SLOT_WINDOW accessible bytes, or NULL. */
static __always_inline struct xkv_slot *slot_at(__u64 ref)
{
	__u32 offset = XKV_REF_OFFSET(ref);
	char *slot = (char *)page_at(ref);

	barrier_var(offset);
	if (!slot || offset > XKV_PAGE_BYTES - XKV_SLOT_WINDOW)
		return NULL;
	slot += offset;
	/* else base and offset stay apart, and older verifiers lose the offset's bound */
	barrier_var(slot);
	return (struct xkv_slot *)slot;
}

/* What slot_at() made accessible, for global functions: the verifier knows its size by the type. */
struct slot_window {
	__u64 word[XKV_SLOT_WINDOW / 8];
};

#define WINDOW(slot) ((struct slot_window *)(slot))

/* ---- what several CPUs write ---------------------------------------------- */

/*
 * Was the word exchanged?  If not, another CPU was first.  `what` is for `make exchanges`, which
 * counts both (struct xkv_exchanges).
 */
#ifdef XKV_COUNT_EXCHANGES
#define EXCHANGE(what, word, old, new)                                                             \
	count_exchange(__builtin_offsetof(struct xkv_exchanges, what),                             \
		       __sync_val_compare_and_swap(word, old, new) == (old))

static __always_inline bool count_exchange(__u32 what, bool done)
{
	__u32 zero = 0;
	void *all = bpf_map_lookup_elem(&xkv_exchanges, &zero);
	struct xkv_exchange *x = all + what;

	if (all)
		__sync_fetch_and_add(done ? &x->done : &x->failed, 1);
	return done;
}
#else
#define EXCHANGE(what, word, old, new) (__sync_val_compare_and_swap(word, old, new) == (old))
#endif

/* ---- free lists (Treiber stacks; the tag in the head guards against ABA) -- */

static __always_inline struct xkv_class *class_at(__u32 class)
{
	return bpf_map_lookup_elem(&xkv_classes, &class);
}

/* The number of the list that this CPU pushes slots to. */
static __always_inline __u32 own_list(void)
{
	return bpf_get_smp_processor_id();
}

static __always_inline struct xkv_list *list_at(struct xkv_class *c, __u32 number)
{
	struct xkv_config *cfg = config();

	number &= cfg ? cfg->list_mask : 0;
	barrier_var(number);
	return &c->list[number & (XKV_LISTS - 1)];
}

/* Has any list a free slot?  Mostly this CPU's own has: others' cache lines are not touched. */
static __always_inline bool class_has_slot(struct xkv_class *c)
{
	return READ_ONCE(list_at(c, own_list())->free) || xkv_class_free(c);
}

static __always_inline __u64 list_head(__u64 old, __u64 ref)
{
	return (((old >> XKV_REF_BITS) + 1) << XKV_REF_BITS) | (ref & XKV_REF_MASK);
}

/* The first unit of the span that a slot is in: it describes the span. */
static __always_inline struct xkv_unit *span_of(__u64 ref)
{
	__u32 unit = XKV_REF_OFFSET(ref) >> XKV_UNIT_SHIFT, first;
	struct xkv_page *page = page_at(ref);

	if (!page)
		return NULL;
	barrier_var(unit);
	first = READ_ONCE(page->unit[unit & (XKV_UNITS - 1)].first);
	barrier_var(first);
	return &page->unit[first & (XKV_UNITS - 1)];
}

static __always_inline bool is_draining(__u64 ref)
{
	struct xkv_unit *span = span_of(ref);

	return span && READ_ONCE(span->state) == XKV_SPAN_DRAINING;
}

/*
 * Keeps a free slot of a draining span out of the free lists.  xkvd can still push a parked slot,
 * if the span does not drain.
 */
static __always_inline bool park(__u64 ref)
{
	struct xkv_unit *span = span_of(ref);
	struct xkv_slot *slot;

	if (!span || READ_ONCE(span->state) != XKV_SPAN_DRAINING)
		return false;
	slot = slot_at(ref);
	if (!slot)
		return false;
	WRITE_ONCE(slot->key_len, XKV_KEY_PARKED);
	__sync_fetch_and_add(&span->parked, 1);
	return true;
}

#define LIST_EMPTY 0ULL
#define LIST_BUSY  (~0ULL)

/* Pops the first slot of one of the two stacks: its reference, LIST_EMPTY or LIST_BUSY. */
static __always_inline __u64 list_pop(struct xkv_list *list, __u32 which)
{
	__u64 *top = &list->head[which & 1], head = READ_ONCE(*top), ref = head & XKV_REF_MASK;
	struct xkv_slot *slot;

	if (!ref)
		return LIST_EMPTY;
	slot = slot_at(ref);
	if (!slot)
		return LIST_BUSY;
	smp_rmb();
	if (!EXCHANGE(take, top, head, list_head(head, READ_ONCE(slot->next))))
		return LIST_BUSY;
	__sync_fetch_and_add(&list->free, -1);
	return ref;
}

/*
 * Takes a free slot from the first list that has one, beginning with this CPU's: its reference,
 * LIST_EMPTY or LIST_BUSY.  To the verifier `number` and `last` are any numbers; if it knew bounds,
 * it would follow each way through the lists.
 */
__noinline __u64 slot_take(__u32 class)
{
	struct xkv_class *c = class_at(class);
	struct xkv_config *cfg = config();
	__u32 which, number, last;
	struct xkv_list *list;
	__u64 ref;

	if (!c || !cfg)
		return LIST_EMPTY;
	number = c->first_list + own_list();
	last = number + READ_ONCE(cfg->list_mask);
	for (int i = 0; i < LIST_TRIES + XKV_LISTS; i++) {
		list = list_at(c, number);
		which = READ_ONCE(c->which);
		ref = list_pop(list, which);
		if (ref == LIST_EMPTY)
			ref = list_pop(list, which ^ 1);
		if (ref != LIST_EMPTY && ref != LIST_BUSY && !park(ref))
			return ref;
		if (ref != LIST_EMPTY)
			continue;
		if (number == last)
			return LIST_EMPTY;
		number++;
	}
	return LIST_BUSY;
}

/*
 * A slot of the class, or of the next larger ones, or from spare_class upwards.  So writes continue
 * while xkvd, notified by `wanted`, adds spans, or is not running.
 */
static __always_inline __u64 slot_take_near(__u32 class)
{
	struct xkv_class *c = class_at(class);
	struct xkv_config *cfg = config();
	__u32 spare = cfg ? READ_ONCE(cfg->spare_class) : 0; /* read once: xkvd may change it */
	__u64 ref = LIST_EMPTY;

	for (__u32 i = 0; i < XKV_CLASSES_TRIED; i++) {
		ref = slot_take(class + i);
		if (ref != LIST_EMPTY)
			return ref;
		if (!i && c)
			__sync_fetch_and_add(&c->wanted, 1);
	}
	/* and upwards: an entry and its chain bucket need two */
	for (; spare > class && spare < XKV_CLASS_LARGE && ref == LIST_EMPTY; spare++)
		ref = slot_take(spare);
	return ref;
}

/* A slot of class rq->need or, except for xkvd, which can add spans first, a larger one. */
static __always_inline __u64 slot_take_for(struct xkv_request *rq)
{
	if ((rq->flags & XKV_REQUEST_XKVD) && !(rq->flags & XKV_REQUEST_LAST))
		return slot_take(rq->need);
	return slot_take_near(rq->need);
}

/* Pushes the linked slots first..last to a list of their class.  0 or -EBUSY. */
static __always_inline int list_push(struct xkv_class *c, struct xkv_list *list, __u64 first,
				     struct xkv_slot *last, __u32 slots)
{
	__u64 head, *top;

	for (int i = 0; i < LIST_TRIES; i++) {
		top = &list->head[READ_ONCE(c->which) & 1];
		head = READ_ONCE(*top);
		WRITE_ONCE(last->next, head & XKV_REF_MASK);
		smp_wmb();
		if (EXCHANGE(give, top, head, list_head(head, first))) {
			__sync_fetch_and_add(&list->free, slots);
			return 0;
		}
	}
	return -EBUSY;
}

/*
 * Frees a slot that the caller has locked, or taken from a list, to the list of this number.  One
 * that cannot be pushed is marked as an orphan, for xkvd to free.
 */
__noinline int slot_give_to(__u64 ref, __u32 number)
{
	struct xkv_slot *slot = slot_at(ref);
	struct xkv_class *c;
	struct xkv_tally *n;

	if (!slot)
		return -EINVAL;
	c = class_at(slot->class & XKV_CLASS_MASK);
	if (!c)
		return -EINVAL;
	slot->class &= XKV_CLASS_MASK;
	slot->key_len = 0;
	if (park(ref) || !list_push(c, list_at(c, number), ref, slot, 1))
		return 0;
	barrier(); /* `class` has no address */
	slot->class |= XKV_CLASS_ORPHAN;
	barrier();
	n = tally(XKV_FRONTEND_XKVD);
	if (n)
		__sync_fetch_and_add(&n->orphans, 1);
	return 0;
}

static __always_inline int slot_give(__u64 ref)
{
	return slot_give_to(ref, own_list());
}

/* ---- keys ---------------------------------------------------------------- */

/*
 * The fingerprint of the current key: a hash under a secret that was drawn with the maps, so that
 * colliding keys cannot be constructed.
 */
static __always_inline __u64 fingerprint_of(struct xkv_request *rq, struct xkv_config *cfg,
					    const struct xkv_secret *s)
{
	__u64 hash = 0;

	hash_words(&IN(rq, rq->key_off), rq->key_len, rq->db, false, NULL, s, &hash);
	return hash & cfg->fingerprint_mask;
}

__noinline int key_fingerprint(struct xkv_request *rq)
{
	struct xkv_config *cfg = config();
	struct xkv_secrets *s = secrets();

	if (rq && cfg && s && rq->hashed != rq->key_off)
		rq->fingerprint = fingerprint_of(rq, cfg, &s->hash);
	if (rq)
		rq->hashed = 0;
	return 0;
}

/*
 * Loads the cache lines of an entry of some 128 bytes at once; copying would load one after the
 * other.
 */
static __always_inline void prefetch_slot(const struct xkv_slot *slot)
{
	(void)READ_ONCE(slot->seq);
	(void)READ_ONCE(((const __u64 *)slot)[8]);
	(void)READ_ONCE(((const __u64 *)slot)[16]);
}

#define SLOT_PREFETCHED 192 /* bytes of a slot that these lines cover */

/*
 * Half of the entries of 168 bytes reach into a fourth line.  The copy of a single GET gets to it
 * soon enough; in a batch the misses would come one after the other.
 */
#define FOURTH_LINE 20

/*
 * 0 if the slot holds this key of `db`; valid only if its seq is unchanged afterwards.
 *
 * One branch a word, on a value that the verifier knows nothing of: it follows what is behind the
 * loop once, not for each length that a key can have and each word that can differ.
 */
static __always_inline __u64 key_differs(const __u64 *ours, __u32 key_len, __u32 db,
					 const struct xkv_slot *slot)
{
	const __u64 *key = (const __u64 *)(slot + 1);
	__u64 differ = slot->id ^ XKV_KEY_ID(key_len, db), end;
	__s64 left = (__s64)key_len - 1; /* negative when no byte is left */

	if (differ)
		return differ;
	for (__u32 word = 0; word < KEY_WORDS; word++) {
		differ = *key++ ^ *ours++;
		left -= 8;
		end = differ | left >> 63;
		barrier_var(key);
		barrier_var(ours);
		barrier_var(end);
		if (end)
			break;
	}
	return differ;
}

/*
 * Does the slot hold this key of `db`?  Valid only if the caller re-reads *seq unchanged after its
 * last read.
 */
static __always_inline bool holds_key(const __u64 *key, __u32 key_len, __u32 db,
				      const struct xkv_slot *slot, __u64 *seq)
{
	*seq = READ_ONCE(slot->seq);
	smp_rmb();
	return !(*seq & 1) && !key_differs(key, key_len, db, slot);
}

enum match { MATCH_OTHER, MATCH_SAME, MATCH_UNSTABLE };

/*
 * Does the slot that the entry at `place` refers to hold the current key?  SAME sets rq->ref and
 * rq->seq.
 *
 * OTHER requires that the entry was still in place while the slot held the other key: otherwise
 * the current key may have moved since the entry was read, and its old slot been reused.
 */
static __always_inline int slot_match(struct xkv_request *rq, const __u64 *place, __u64 entry)
{
	__u64 seq, differ, ref = entry & XKV_REF_MASK;
	struct xkv_slot *slot = slot_at(ref);

	if (!slot)
		return MATCH_UNSTABLE;
	seq = READ_ONCE(slot->seq);
	prefetch_slot(slot);
	if (seq & 1)
		return MATCH_UNSTABLE;
	smp_rmb();
	differ = key_differs(&IN(rq, rq->key_off), rq->key_len, rq->db, slot);
	smp_rmb();
	if (differ && READ_ONCE(*place) != entry)
		return MATCH_UNSTABLE;
	smp_rmb();
	if (READ_ONCE(slot->seq) != seq)
		return MATCH_UNSTABLE;
	if (differ)
		return MATCH_OTHER;
	rq->ref = ref;
	rq->seq = seq;
	return MATCH_SAME;
}

/* ---- the index ----------------------------------------------------------- */

/* The first bucket for a fingerprint. */
static __always_inline struct xkv_bucket *home_of(struct xkv_config *cfg, __u64 fingerprint)
{
	__u32 bucket;

	if (!cfg)
		return NULL;
	bucket = fingerprint & cfg->bucket_mask;
	return bpf_map_lookup_elem(&xkv_index, &bucket);
}

/* Prefetches a bucket: nothing depends on the value, so the load does not stall. */
static __always_inline void prefetch_head(const struct xkv_bucket *b)
{
	if (b)
		(void)READ_ONCE(b->head);
}

/*
 * Probes a bucket: the reference with the tag of the fingerprint, 0 if none has it, or several.
 * Branch-free: the way that matches is unpredictable, and a mispredicted branch would have to wait
 * for the bucket before the load of the slot can start.
 */
static __always_inline __u64 probe_bucket(const struct xkv_bucket *b, __u64 fingerprint)
{
	__u64 entry, same, ref = 0, count = 0;

	for (int way = 0; way < XKV_WAYS; way++) {
		entry = READ_ONCE(b->entry[way]);
		same = ((entry ^ fingerprint) >> XKV_REF_BITS) - 1;
		same = (__s64)same >> 63; /* all ones if the tags were equal */
		barrier_var(same);	  /* else it is compiled to a branch */
		ref |= entry & same;
		count -= same;
	}
	return count == 1 ? ref & XKV_REF_MASK : 0;
}

/* The overflow bucket that a head refers to, or NULL. */
static __always_inline struct xkv_chain *next_of(__u64 head)
{
	return head & XKV_REF_MASK ? (struct xkv_chain *)slot_at(head) : NULL;
}

/*
 * Is the current key in this bucket?  UNSTABLE: not found, but a slot with its tag was being
 * written.
 */
static __always_inline int bucket_match(struct xkv_request *rq, struct xkv_bucket *b)
{
	__u64 fingerprint = rq->fingerprint, entry;
	int match, all = MATCH_OTHER;

	for (int way = 0; way < XKV_WAYS; way++) {
		entry = READ_ONCE(b->entry[way]);
		if ((entry ^ fingerprint) >> XKV_REF_BITS || !entry)
			continue;
		match = slot_match(rq, &b->entry[way], entry);
		if (match == MATCH_SAME)
			return match;
		if (match == MATCH_UNSTABLE)
			all = match;
	}
	return all;
}

__noinline int look_at_bucket(struct xkv_request *rq, struct xkv_bucket *b)
{
	return rq && b ? bucket_match(rq, b) : MATCH_UNSTABLE;
}

/* The same for the overflow buckets, from `ref` on. */
__noinline int look_at_chain(struct xkv_request *rq, __u64 ref)
{
	int match, all = MATCH_OTHER;
	struct xkv_chain *chain;

	if (!rq)
		return MATCH_UNSTABLE;
	for (int i = 0; i < XKV_CHAIN_MAX; i++) {
		chain = next_of(ref);
		if (!chain)
			return MATCH_UNSTABLE;
		ref = READ_ONCE(chain->bucket.head) & XKV_REF_MASK;
		match = look_at_bucket(rq, &chain->bucket);
		if (match == MATCH_SAME)
			return match;
		if (match == MATCH_UNSTABLE)
			all = match;
		if (!ref)
			break;
	}
	return all;
}

enum found { FOUND, ABSENT, BUSY };

/* Finds the slot of the current key.  FOUND sets rq->ref and rq->seq. */
__noinline int find(struct xkv_request *rq)
{
	struct xkv_bucket *home;
	int match, behind;
	__u64 head;

	if (!rq)
		return BUSY;
	home = home_of(config(), rq->fingerprint);
	if (!home)
		return BUSY;
	for (int i = 0; i < TRIES; i++) {
		head = READ_ONCE(home->head);
		smp_rmb();
		match = look_at_bucket(rq, home);
		if (match == MATCH_SAME)
			return FOUND;
		behind = head & XKV_REF_MASK ? look_at_chain(rq, head) : MATCH_OTHER;
		smp_rmb();
		/* data from a bucket that was unlinked meanwhile is invalid */
		if ((READ_ONCE(home->head) ^ head) & XKV_BUCKET_COUNT)
			continue;
		if (behind == MATCH_SAME)
			return FOUND;
		if (match == MATCH_OTHER && behind == MATCH_OTHER)
			return ABSENT;
	}
	return BUSY;
}

static __always_inline bool bucket_lock(struct xkv_bucket *home)
{
	__u64 head;

	for (int i = 0; i < LOCK_TRIES; i++) {
		head = READ_ONCE(home->head);
		if (!(head & XKV_BUCKET_LOCK) &&
		    EXCHANGE(bucket, &home->head, head, head | XKV_BUCKET_LOCK))
			return true;
	}
	return false;
}

/* The head of a locked bucket after one more change; nobody else writes it meanwhile. */
static __always_inline __u64 head_changed(const struct xkv_bucket *home)
{
	__u64 head = READ_ONCE(home->head);

	return (head & ~XKV_BUCKET_COUNT) | ((head + XKV_BUCKET_CHANGE) & XKV_BUCKET_COUNT);
}

/*
 * Counts a change, for look-ups that have found a key missing.
 *
 * A fetching atomic, hence a full barrier: the insertion is visible before any later read of the
 * same CPU, so two clients that each insert a key and then read the other's cannot both miss.
 */
static __always_inline void bucket_unlock(struct xkv_bucket *home)
{
	__u64 head = head_changed(home) & ~XKV_BUCKET_LOCK;

	head = __sync_lock_test_and_set(&home->head, head);
	barrier_var(head);
}

/* Replaces an entry of a bucket.  False if it is not there. */
static __always_inline bool bucket_replace(struct xkv_bucket *b, __u64 old, __u64 new)
{
	for (int way = 0; way < XKV_WAYS; way++) {
		if (b->entry[way] != old)
			continue;
		WRITE_ONCE(b->entry[way], new);
		return true;
	}
	return false;
}

/* The index entry of the current key with this reference; 0 for 0. */
static __always_inline __u64 entry_of(struct xkv_request *rq, __u64 ref)
{
	return ref ? XKV_TAG(rq->fingerprint) | ref : 0;
}

/* Makes a slot an overflow bucket for the current key, with one entry. */
static __always_inline void chain_init(struct xkv_request *rq, struct xkv_chain *chain, __u64 entry)
{
	struct xkv_config *cfg = config();

	chain->slot.key_len = XKV_KEY_CHAIN;
	chain->slot.value_len = 0;
	chain->slot.home = cfg ? rq->fingerprint & cfg->bucket_mask : 0;
	chain->bucket.head = 0;
	chain->bucket.entry[0] = entry;
	for (int way = 1; way < XKV_WAYS; way++)
		chain->bucket.entry[way] = 0;
	smp_wmb();
}

/* Appends an overflow bucket with this entry.  -1, or the outcome that stops the operation. */
__noinline int chain_extend(struct xkv_request *rq, struct xkv_bucket *last, __u64 entry)
{
	struct xkv_config *cfg = config();
	struct xkv_chain *chain;
	__u64 ref;

	if (!rq || !last || !cfg)
		return XKV_C_pass_busy;
	rq->need = cfg->class_of[sizeof(*chain) / 8];
	ref = slot_take_for(rq);
	if (ref == LIST_EMPTY)
		return XKV_C_pass_no_slot;
	chain = ref == LIST_BUSY ? NULL : next_of(ref);
	if (!chain)
		return XKV_C_pass_busy;
	chain_init(rq, chain, entry);
	WRITE_ONCE(last->head, (last->head & ~XKV_REF_MASK) | ref);
	count(rq, XKV_C_chained);
	return -1;
}

/* Is the current key missing in a locked chain?  All of it: the key may follow an empty way. */
static __always_inline bool chain_lacks_key(struct xkv_request *rq, struct xkv_bucket *home)
{
	int match = look_at_bucket(rq, home);

	if (match == MATCH_OTHER && (home->head & XKV_REF_MASK))
		match = look_at_chain(rq, home->head);
	return match == MATCH_OTHER;
}

/* Puts an entry into a locked chain.  -1, or the outcome that stops the operation. */
static __always_inline int chain_add(struct xkv_request *rq, struct xkv_bucket *home, __u64 entry)
{
	struct xkv_bucket *b = home;
	struct xkv_chain *chain;

	for (int i = 0; i <= XKV_CHAIN_MAX; i++) {
		if (bucket_replace(b, 0, entry))
			return -1;
		if (!(b->head & XKV_REF_MASK))
			return i == XKV_CHAIN_MAX ? XKV_C_pass_full : chain_extend(rq, b, entry);
		chain = next_of(b->head);
		if (!chain)
			return XKV_C_pass_busy;
		b = &chain->bucket;
	}
	return XKV_C_pass_full;
}

/* Unlocks a slot: with the old seq if nothing was changed, else with a new version. */
static __always_inline void unlock(struct xkv_slot *slot, __u64 seq)
{
	smp_wmb();
	WRITE_ONCE(slot->seq, seq);
}

/*
 * An overflow bucket was unlinked: makes concurrent look-ups of the chain retry.  At once, since
 * the bucket may be reused before the lock is given back.
 */
static __always_inline void chain_left(struct xkv_bucket *home)
{
	smp_wmb();
	WRITE_ONCE(home->head, head_changed(home));
}

/* Unlinks the empty overflow bucket `b`, which follows `before`. */
static __always_inline void chain_unlink(struct xkv_bucket *home, struct xkv_bucket *before,
					 struct xkv_bucket *b)
{
	WRITE_ONCE(before->head, (before->head & ~XKV_REF_MASK) | (b->head & XKV_REF_MASK));
	chain_left(home);
}

static __always_inline bool bucket_is_empty(const struct xkv_bucket *b)
{
	__u64 any = 0;

	for (int way = 0; way < XKV_WAYS; way++)
		any |= b->entry[way];
	return !any;
}

/*
 * entry_swap() in a locked chain.  0 = not found, 1 = done, else the reference of the overflow
 * bucket that became empty and was unlinked, for the caller to free.
 */
__noinline __u64 chain_swap(struct xkv_request *rq, struct xkv_bucket *home, __u64 old, __u64 new)
{
	struct xkv_bucket *b = home, *before = home;
	struct xkv_chain *chain;
	__u64 ref = 0;

	if (!rq || !home)
		return 0;
	for (int i = 0; i <= XKV_CHAIN_MAX; i++) {
		if (bucket_replace(b, old, new)) {
			if (new || !ref || !bucket_is_empty(b))
				return 1;
			chain_unlink(home, before, b);
			count(rq, XKV_C_unchained);
			return ref;
		}
		ref = b->head & XKV_REF_MASK;
		chain = next_of(ref);
		if (!chain)
			return 0;
		before = b;
		b = &chain->bucket;
	}
	return 0;
}

/*
 * Moves the index entry of the current key from slot `old`, which is locked, to `new`, or removes
 * it if `new` is 0.  0 or -EBUSY.
 */
__noinline int entry_swap(struct xkv_request *rq, __u64 old, __u64 new)
{
	struct xkv_bucket *home;
	__u64 left;

	if (!rq)
		return -EBUSY;
	home = home_of(config(), rq->fingerprint);
	if (!home || !bucket_lock(home))
		return -EBUSY;
	left = chain_swap(rq, home, entry_of(rq, old), entry_of(rq, new));
	bucket_unlock(home);
	if (left > 1)
		slot_give(left);
	return left ? 0 : -EBUSY;
}

#endif

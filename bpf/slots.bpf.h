/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Slots for xkvd: see enum xkv_slots_cmd.  Each command is one program run, and a slot that was
 * taken is recorded in the request, so none is lost when xkvd is killed.
 */
#ifndef XKV_SLOTS_BPF_H
#define XKV_SLOTS_BPF_H

#include "feed.bpf.h"

static __always_inline int slots_link(struct xkv_slots_args *args)
{
	struct xkv_unit *span = span_of(args->first);
	struct xkv_slot *last = slot_at(args->last);
	struct xkv_class *c = class_at(args->class);

	if (!last || !c || !span || span->state != XKV_SPAN_NEW)
		return -EINVAL;
	if (list_push(c, list_at(c, args->request), args->first, last, args->count))
		return -EBUSY;
	span->state = XKV_SPAN_LINKED;
	return 0;
}

/* Takes a slot, recorded in rq->prefilled. */
static __always_inline int slots_alloc(struct xkv_request *rq, __u32 class)
{
	__u64 ref;

	if (rq->prefilled)
		return -EBUSY;
	ref = slot_take(class);
	if (ref == LIST_EMPTY)
		return -ENOSPC;
	if (ref == LIST_BUSY)
		return -EBUSY;
	rq->prefilled = ref;
	return 0;
}

/* Counts look-ups of xkvd: args->first hits, args->last misses. */
static __always_inline int slots_count(const struct xkv_slots_args *args)
{
	struct xkv_counters *c = counters(XKV_FRONTEND_XKVD);

	if (!c)
		return -EINVAL;
	__sync_fetch_and_add(&c->get_hits, args->first);
	__sync_fetch_and_add(&c->get_misses, args->last);
	return 0;
}

#define FILTERED 512 /* slots examined in a run */

struct filter {
	__u32 class, moved, number, last; /* the lists number..last are still to be examined */
};

/*
 * Moves a slot from the retired stack of a list to the active one, or parks it if its span is
 * draining.
 */
static int filter_slot(__u32 i, struct filter *x)
{
	struct xkv_class *c = class_at(x->class);
	__u64 ref;

	if (!c)
		return 1;
	ref = list_pop(list_at(c, x->number), c->which ^ 1);
	if (ref == LIST_EMPTY)
		return x->number++ == x->last;
	if (ref == LIST_BUSY)
		return 0;
	slot_give_to(ref, x->number);
	x->moved++;
	return 0;
}

/* Parks free slots of draining spans.  No slot is held between two runs. */
static __always_inline int slots_filter(struct xkv_slots_args *args)
{
	struct xkv_class *c = class_at(args->class);
	struct xkv_config *cfg = config();
	struct filter x = { .class = args->class, .number = args->request };

	if (!c || !cfg)
		return -EINVAL;
	x.last = x.number + cfg->list_mask;
	if (args->count)
		c->which++;
	bpf_loop(FILTERED, filter_slot, &x, 0);
	args->count = x.moved;
	return 0;
}

/*
 * Replaces the overflow bucket `ref` of the locked chain by a copy in `chain`, whose slot is `to`.
 */
static __always_inline bool chain_replace(struct xkv_bucket *home, __u64 ref, __u64 to,
					  struct xkv_chain *chain)
{
	struct xkv_bucket *b = home;
	struct xkv_chain *next;

	for (int i = 0; i < XKV_CHAIN_MAX; i++) {
		next = next_of(b->head);
		if (!next)
			return false;
		if ((b->head & XKV_REF_MASK) == ref) {
			chain->bucket = next->bucket;
			smp_wmb();
			WRITE_ONCE(b->head, (b->head & ~XKV_REF_MASK) | to);
			return true;
		}
		b = &next->bucket;
	}
	return false;
}

/* Moves the overflow bucket args->first to the slot rq->prefilled. */
static __always_inline int slots_chain(struct xkv_slots_args *args, struct xkv_request *rq)
{
	struct xkv_chain *old = next_of(args->first), *chain = next_of(rq->prefilled);
	struct xkv_bucket *home;
	__u32 bucket;
	bool done;

	if (!old || !chain || old->slot.key_len != XKV_KEY_CHAIN)
		return -ENOENT;
	bucket = old->slot.home;
	home = bpf_map_lookup_elem(&xkv_index, &bucket);
	if (!home)
		return -ENOENT;
	if (!bucket_lock(home))
		return -EBUSY;
	chain->slot.key_len = XKV_KEY_CHAIN;
	chain->slot.value_len = 0;
	chain->slot.home = bucket;
	done = chain_replace(home, args->first, rq->prefilled, chain);
	if (done) {
		chain_left(home);
		rq->prefilled = 0;
	}
	bucket_unlock(home);
	if (done)
		slot_give(args->first);
	return done ? 0 : -ENOENT;
}

/* Frees the slot of the record at this position of the feed. */
static __always_inline int slots_feed(__u64 position)
{
	struct xkv_feed_record *rec;
	struct xkv_feed *f = feed();
	__u64 ref;

	if (!f)
		return -ENOENT;
	rec = (struct xkv_feed_record *)&f->data[feed_offset(position)];
	ref = rec->frees;
	rec->frees = 0;
	if (ref)
		slot_give(ref);
	return 0;
}

#endif

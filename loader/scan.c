// SPDX-License-Identifier: BSD-2-Clause
/*
 * Walks: over the keys by the buckets of `index` (SCAN, KEYS, snapshots, FLUSHALL),
 * and over the slots by pages (expiry).
 *
 * BPF_MAP_LOOKUP_BATCH reads a bucket of a hash map under its lock and goes from
 * bucket to bucket by number.  A key stays in its bucket for as long as it
 * exists, and the table is never resized; so a key that is there throughout is
 * met exactly once, and the number of the next bucket is a cursor without
 * state.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include <bpf/bpf.h>

#include "log.h"
#include "store_impl.h"

#define MIN_BATCH 64     /* elements; a bucket has to fit, and is retried with more */
#define MAX_BATCH 65536
#define COST_REMOVAL 32  /* of an expired entry, against ... */
#define COST_LOOK 1      /* ... a look at one that stays */
#define COPY_TRIES 100000 /* of reading an entry that changes all the time */


struct walk {
	uint64_t *place;
	struct xkv_index *index;
	void *value; /* XKV_VALUE_MAX bytes, if values are asked for */
};

static void walk_free(struct walk *w)
{
	free(w->place);
	free(w->index);
	free(w->value);
}

static int walk_alloc(struct walk *w, unsigned int batch, bool values)
{
	w->place = malloc(batch * sizeof(*w->place));
	w->index = malloc(batch * sizeof(*w->index));
	w->value = values ? malloc(XKV_VALUE_MAX) : NULL;
	if (w->place && w->index && (w->value || !values))
		return 0;
	walk_free(w);
	return -ENOMEM;
}

/* Does this key stand at this key of `index`? */
static bool at_place(const struct store *st, const struct slot_copy *key, uint64_t place)
{
	uint64_t first = fingerprint(st, key);

	for (uint64_t i = 0; i < XKV_PROBES; i++)
		if (first + i * XKV_PROBE_STEP == place)
			return true;
	return false;
}

/*
 * Reads the entry that was found at `place`, or whatever the key's entry has
 * become since.  False if there is none any more.
 */
static bool read_entry(const struct store *st, uint64_t place, struct xkv_index *index,
		       struct slot_copy *copy, void *value)
{
	for (int i = 0; i < COPY_TRIES; i++) {
		if (slot_copy(st, index->ref, copy, value) && at_place(st, copy, place))
			return true;
		if (i > 10)
			sched_yield();
		if (bpf_map_lookup_elem(st->bpf.map[BPF_INDEX], &place, index))
			return false;
	}
	log_warning("a key could not be read: it never stood still");
	return false;
}

/* One call of BPF_MAP_LOOKUP_BATCH: elements read, or -errno.  *cursor: 0 at the end. */
static int next_elements(const struct store *st, uint64_t *cursor, struct walk *w,
			 unsigned int batch)
{
	uint32_t in = *cursor, out = 0, count = batch;
	int ret = bpf_map_lookup_batch(st->bpf.map[BPF_INDEX], in ? &in : NULL, &out, w->place,
				       w->index, &count, NULL);

	if (ret && errno == ENOENT) {
		*cursor = 0;
		return count;
	}
	if (ret)
		return -errno;
	*cursor = out;
	return count;
}

static bool has_expired(const struct store *st, uint64_t expire_ms)
{
	return expire_ms && expire_ms <= store_now_ms(st);
}

static int report(const struct store *st, struct walk *w, unsigned int i, bool expired_too,
		  store_scan_fn *fn, void *arg)
{
	struct store_entry entry;
	struct slot_copy copy;

	if (!read_entry(st, w->place[i], &w->index[i], &copy, w->value))
		return 0;
	if (copy.expire_ms == XKV_TOMB || (!expired_too && has_expired(st, copy.expire_ms)))
		return 0;
	entry = (struct store_entry){
		.value = w->value,
		.value_len = copy.value_len,
		.expire_ms = copy.expire_ms,
		.version = copy.seq,
	};
	return fn(arg, copy.key, copy.key_len, &entry);
}

static int scan(struct store_lane *lane, uint64_t *cursor, unsigned int count, bool values,
		bool expired_too, store_scan_fn *fn, void *arg)
{
	unsigned int batch = count > MAX_BATCH ? MAX_BATCH : count ? count : 1;
	struct walk w;
	int found, ret;

	if (*cursor >= lane->st->index_buckets) {
		*cursor = 0; /* not one of ours */
		return 0;
	}
	for (;; batch = batch < MIN_BATCH ? MIN_BATCH : batch * 2) {
		ret = walk_alloc(&w, batch, values);
		if (ret)
			return ret;
		found = next_elements(lane->st, cursor, &w, batch);
		if (found != -ENOSPC)
			break;
		walk_free(&w); /* the next bucket alone has more */
	}
	ret = found < 0 ? found : 0;
	for (int i = 0; !ret && i < found; i++)
		ret = report(lane->st, &w, i, expired_too, fn, arg);
	walk_free(&w);
	return ret;
}

int store_scan(struct store_lane *lane, uint64_t *cursor, unsigned int count, bool values,
	       store_scan_fn *fn, void *arg)
{
	return scan(lane, cursor, count, values, false, fn, arg);
}

/* ---- FLUSHALL ------------------------------------------------------------ */

struct flush {
	struct store_lane *lane;
	unsigned int frames;
	int ret;
};

static void flush_run(struct flush *f)
{
	if (f->frames && !f->ret)
		f->ret = lane_run(f->lane, f->frames);
	for (unsigned int i = 0; i < f->frames && !f->ret; i++)
		if (frame_result(f->lane, i)->status == XKV_BUSY)
			f->ret = -EBUSY;
	f->frames = 0;
}

static int flush_one(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	struct flush *f = arg;

	frame_begin(f->lane, f->frames, XKV_OP_DELETE, key, key_len);
	if (has_expired(f->lane->st, entry->expire_ms))
		f->lane->frame[f->frames].flags |= XKV_FRAME_EXPIRED;
	f->frames++;
	if (f->frames == XKV_BATCH_FRAMES)
		flush_run(f);
	return f->ret;
}

int store_flush(struct store_lane *lane)
{
	struct flush f = { .lane = lane };
	uint64_t cursor = 0;
	int ret;

	do {
		/* the walk itself runs no operations, so that the frames are ours meanwhile */
		ret = scan(lane, &cursor, 4096, false, true, flush_one, &f);
		flush_run(&f);
		if (!ret)
			ret = f.ret;
	} while (!ret && cursor);
	return ret;
}

/* ---- expiry -------------------------------------------------------------- */

uint64_t store_expiring(const struct store *st)
{
	return st->expiring;
}

/* Moves when an entry got an expiry, or a slot was orphaned. */
static uint64_t sweep_news(const struct store *st)
{
	return store_counter(st, "ttls_given") + store_counter(st, "orphans");
}

/* Looks at one slot.  1 if its entry has expired and a request to delete it was written. */
static unsigned int sweep_slot(struct store_lane *lane, uint64_t ref, unsigned int frame,
			       uint64_t now)
{
	struct xkv_slot *slot = slot_of(lane->st, ref);
	uint64_t seq = __atomic_load_n(&slot->seq, __ATOMIC_RELAXED);
	struct slot_copy copy;

	if ((seq & 1) && (slot->flags & XKV_SLOT_ORPHAN)) {
		slot_free(lane->st, ref);
		return 0;
	}
	if ((seq & 1) || slot->expire_ms <= XKV_TOMB)
		return 0;
	lane->st->sweep_expiring++;
	if (slot->expire_ms > now || !slot_copy(lane->st, ref, &copy, NULL) ||
	    copy.expire_ms <= XKV_TOMB || copy.expire_ms > now)
		return 0;
	frame_begin(lane, frame, XKV_OP_DELETE, copy.key, copy.key_len);
	lane->frame[frame].flags |= XKV_FRAME_EXPIRED;
	return 1;
}

static unsigned int sweep_run(struct store_lane *lane, unsigned int frames)
{
	unsigned int removed = 0;

	if (!frames || lane_run(lane, frames))
		return 0;
	for (unsigned int i = 0; i < frames; i++)
		removed += frame_result(lane, i)->status == XKV_OK;
	return removed;
}

/* A turn over all pages ends and the next begins. */
static void sweep_turn(struct store *st)
{
	uint64_t news = sweep_news(st);

	st->expiring = st->sweep_expiring;
	st->sweep_idle = !st->sweep_expiring && news == st->sweep_given;
	st->sweep_given = news;
	st->sweep_expiring = 0;
	st->sweep_page = 0;
	st->sweep_slot = 0;
}

/* Looks at slots of one page, for no more than `budget`: what it spent.  Adds requests to the frames. */
static unsigned int sweep_page(struct store_lane *lane, unsigned int budget, uint64_t now,
			       unsigned int *frames)
{
	struct store *st = lane->st;
	struct xkv_page *page = st->page[st->sweep_page];
	unsigned int spent = 0, found;

	while (st->sweep_slot < page->slots && spent < budget && *frames < XKV_BATCH_FRAMES) {
		uint32_t offset = sizeof(*page) + st->sweep_slot++ * page->slot_bytes;

		found = sweep_slot(lane, XKV_REF(st->sweep_page, offset), *frames, now);
		*frames += found;
		spent += found ? COST_REMOVAL : COST_LOOK;
	}
	if (st->sweep_slot >= page->slots) {
		st->sweep_page++;
		st->sweep_slot = 0;
	}
	return spent;
}

unsigned int store_expire_cycle(struct store_lane *lane, unsigned int max_slots)
{
	unsigned int frames = 0, removed = 0, budget = max_slots * COST_REMOVAL, spent = 0;
	struct store *st = lane->st;
	uint64_t now = store_now_ms(st);

	if (st->sweep_idle && sweep_news(st) == st->sweep_given)
		return 0;
	st->sweep_idle = false;
	while (spent < budget) {
		if (st->sweep_page >= st->pages) {
			sweep_turn(st);
			break; /* a store of a few pages is not walked again and again in one call */
		}
		spent += sweep_page(lane, budget - spent, now, &frames);
		if (frames == XKV_BATCH_FRAMES) {
			removed += sweep_run(lane, frames);
			frames = 0;
		}
	}
	return removed + sweep_run(lane, frames);
}

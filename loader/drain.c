// SPDX-License-Identifier: BSD-2-Clause
/*
 * Emptying pages: gives memory back to the kernel, and so lets another size class have it, while
 * traffic runs.
 *
 * A page that is marked as draining gets no slot into the free lists any more (bpf/store.bpf.h: park).
 * Three things bring its slots together: entries are moved to slots of other pages, chain
 * buckets too, and the free lists are looked through.  When all are parked, nothing refers to
 * the page; it is taken out of `pages`, where the kernel waits for the programs that may
 * still look at it, and unmapped when nobody here does.
 *
 * xkvd may be killed at any time: the mark and the count stand in the page.
 */
#include <errno.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <bpf/bpf.h>

#include "log.h"
#include "store_impl.h"

#define DRAIN_MAX 16   /* pages at once: they share the look through the free lists */
#define SAMPLE_STEP 16 /* every so many slots are looked at to see how full a page is */
#define PASSES 8       /* over a page; what is then still in use is in somebody's hands: later */

static bool is_live(const struct xkv_slot *slot)
{
	return !(__atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) & 1);
}

/* ---- moving what is in a page -------------------------------------------- */

/* Takes a slot of a class into the lane's frame.  0, or -ENOSPC. */
static int take_slot_of(struct store_lane *lane, unsigned int class)
{
	struct xkv_slots_args args = {
		.cmd = XKV_SLOTS_ALLOC,
		.class = class,
		.frame = lane->first,
	};
	int ret;

	do
		ret = slots_run(lane->st, &args);
	while (ret == -EBUSY && !lane->frame->prefilled);
	return ret;
}

/* Takes a slot for `need` bytes: like the engine, of the next classes where the right one has none, or a page would never be empty. */
static int take_slot(struct store_lane *lane, size_t need)
{
	unsigned int class = class_for(lane->st, need), end = class + XKV_CLASSES_TRIED;
	int ret = -ENOSPC;

	for (; ret == -ENOSPC && class < end && class < lane->st->class_count; class++)
		ret = take_slot_of(lane, class);
	return ret;
}

static void give_slot(struct store_lane *lane)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_FREE, .frame = lane->first };

	if (lane->frame->prefilled)
		slots_run(lane->st, &args);
}

static void fill(struct store_lane *lane, const struct slot_copy *copy)
{
	struct xkv_slot *slot = slot_of(lane->st, lane->frame->prefilled);
	char *key = (char *)(slot + 1);

	slot->key_len = copy->key_len;
	slot->value_len = copy->value_len;
	memcpy(key, copy->key, XKV_PADDED(copy->key_len));
	if (copy->value_len)
		memset(key + XKV_PADDED(copy->key_len) + XKV_PADDED(copy->value_len) - 8, 0, 8);
	memcpy(key + XKV_PADDED(copy->key_len), lane->large, copy->value_len);
}

/* Moves the entry of a slot, if it stands still.  0, or -ENOSPC. */
static int move_entry(struct store_lane *lane, uint64_t ref)
{
	struct store *st = lane->st;
	struct slot_copy copy;
	struct xkv_op *op;
	bool read;
	int ret;

	pages_hold(st);
	read = slot_copy(st, ref, &copy, lane->large);
	pages_release(st);
	if (!read)
		return 0;
	ret = take_slot(lane, XKV_SLOT_NEED(copy.key_len, copy.value_len));
	if (ret)
		return ret;
	fill(lane, &copy);
	op = frame_begin(lane, 0, XKV_OP_SET, copy.key, copy.key_len);
	op->flags = XKV_CAS;
	op->version = htobe64(copy.seq);
	lane->frame->flags |= XKV_FRAME_PREFILL | XKV_FRAME_RELOCATE;
	ret = lane_run(lane, 1);
	give_slot(lane); /* if it was not used */
	return ret;
}

/* Moves a chain bucket.  0, or -ENOSPC. */
static int move_chain(struct store_lane *lane, uint64_t ref)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_CHAIN, .frame = lane->first, .first = ref };
	int ret = take_slot(lane, sizeof(struct xkv_chain));

	if (ret)
		return ret;
	ret = slots_run(lane->st, &args);
	give_slot(lane);
	return ret == -ENOENT || ret == -EBUSY ? 0 : ret;
}

static int move_all(struct store_lane *lane, unsigned int number)
{
	struct xkv_page *page = lane->st->page[number];
	int ret = 0;

	for (unsigned int i = 0; i < page->slots && !ret; i++) {
		struct xkv_slot *slot = slot_in(page, i);
		uint64_t ref = XKV_REF(number, (char *)slot - (char *)page);

		if (is_live(slot))
			ret = move_entry(lane, ref);
		else if (slot->key_len == XKV_KEY_CHAIN)
			ret = move_chain(lane, ref);
	}
	return ret;
}

static void free_orphans_of(struct store *st, unsigned int number)
{
	struct xkv_page *page = st->page[number];

	for (unsigned int i = 0; page && i < page->slots; i++) {
		struct xkv_slot *slot = slot_in(page, i);

		if (!is_live(slot) && (slot->class & XKV_CLASS_ORPHAN))
			slot_free(st, XKV_REF(number, (char *)slot - (char *)page));
	}
}

void free_orphans(struct store *st)
{
	uint64_t orphans = store_counter(st, "orphans");

	if (orphans == st->orphans_seen)
		return;
	st->orphans_seen = orphans;
	for (unsigned int number = 0; number < st->pages; number++)
		free_orphans_of(st, number);
}

/* Looks through the free slots of a class once. */
static int filter(struct store *st, unsigned int class)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_FILTER, .class = class, .count = 1 };
	int ret;

	do {
		ret = slots_run(st, &args);
		if (ret || !args.count)
			return ret;
		args.count = 0; /* the lists change places only once */
	} while (1);
}

/* ---- taking pages away --------------------------------------------------- */

static bool is_draining(const struct store *st, unsigned int number, unsigned int class)
{
	const struct xkv_page *page = st->page[number];

	return page && page->state == XKV_PAGE_DRAINING && page->class == class;
}

static bool is_empty(const struct store *st, unsigned int number)
{
	const struct xkv_page *page = st->page[number];

	return __atomic_load_n(&page->parked, __ATOMIC_ACQUIRE) == page->slots;
}

/*
 * Takes an empty page away.  The kernel returns when no XDP program can hold a reference from before; our
 * own runs and readers are waited for by the lock.
 */
static int page_remove(struct store *st, uint32_t number)
{
	struct xkv_page *page = st->page[number];
	unsigned int class = page->class;

	if (bpf_map_delete_elem(st->bpf.map[BPF_PAGES], &number))
		return -errno;
	pthread_mutex_lock(&st->grow_lock);
	pthread_rwlock_wrlock(&st->pages_lock);
	atomic_store(&st->page[number], NULL);
	pthread_rwlock_unlock(&st->pages_lock);
	munmap(page, XKV_PAGE_BYTES);
	st->class_pages[class]--;
	st->pages_used--;
	pthread_mutex_unlock(&st->grow_lock);
	return 0;
}

static unsigned int remove_empty(struct store *st, unsigned int class, unsigned int *left)
{
	unsigned int removed = 0;

	*left = 0;
	for (unsigned int number = 0; number < st->pages; number++) {
		if (!is_draining(st, number, class))
			continue;
		if (is_empty(st, number) && !page_remove(st, number))
			removed++;
		else
			++*left;
	}
	return removed;
}

static unsigned int drain_class(struct store_lane *lane, unsigned int class)
{
	struct store *st = lane->st;
	unsigned int removed = 0, left = 1;
	int ret = 0;

	for (int pass = 0; pass < PASSES && left && !ret; pass++) {
		ret = filter(st, class);
		for (unsigned int number = 0; number < st->pages && !ret; number++)
			if (is_draining(st, number, class) && !is_empty(st, number))
				ret = move_all(lane, number);
		removed += remove_empty(st, class, &left);
	}
	if (removed)
		log_debug("class of %u bytes: %u pages given back", st->classes[class].slot_bytes,
			  removed);
	return removed;
}

/* ---- which pages --------------------------------------------------------- */

/* How full a page is: live slots of those that were looked at, in 1/1024. */
static unsigned int fullness(const struct xkv_page *page)
{
	unsigned int live = 0, seen = 0;

	for (unsigned int i = 0; i < page->slots; i += SAMPLE_STEP, seen++)
		live += is_live(slot_in(page, i));
	return live * 1024 / seen;
}

static bool mark_emptiest(struct store *st, unsigned int class)
{
	unsigned int best = ~0U, least = ~0U;

	for (unsigned int number = 0; number < st->pages; number++) {
		const struct xkv_page *page = st->page[number];
		unsigned int full;

		if (!page || page->class != class || page->state != XKV_PAGE_LINKED)
			continue;
		full = fullness(page);
		if (full < least) {
			least = full;
			best = number;
		}
	}
	if (best == ~0U)
		return false;
	__atomic_store_n(&((struct xkv_page *)st->page[best])->state, XKV_PAGE_DRAINING,
			 __ATOMIC_SEQ_CST);
	return true;
}

unsigned int drain_pages(struct store_lane *lane, unsigned int class, unsigned int count)
{
	struct store *st = lane->st;
	unsigned int marked = 0;

	if (!lane->large)
		lane->large = malloc(XKV_VALUE_MAX);
	if (!lane->large)
		return 0;
	while (marked < count && marked < DRAIN_MAX && mark_emptiest(st, class))
		marked++;
	return drain_class(lane, class);
}

bool drain_is_pending(const struct store *st, unsigned int class)
{
	for (unsigned int number = 0; number < st->pages; number++)
		if (is_draining(st, number, class))
			return true;
	return false;
}

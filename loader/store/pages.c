// SPDX-License-Identifier: BSD-2-Clause
/*
 * Pages and their units, size classes, and reading slots through mapped memory under the same
 * rules as the BPF side (bpf/layout.h).  spans.c decides what units are used for.
 *
 * The headers of the pages record which units are free; the bitmaps here are a copy in which runs
 * of free units are found quickly.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "impl.h"
#include "util/grace.h"
#include "page_ids.h"
#include "page_map.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/machine.h"

#define SHORT_MS 100 /* how long a machine that was short of memory is taken to be */

/* ---- size classes -------------------------------------------------------- */

void classes_init(struct store *st)
{
	uint32_t size = XKV_CLASS_FIRST, class = 0, lists = 1;

	for (; size < XKV_LARGE; size = xkv_class_next(size))
		st->classes[class ++].slot_bytes = size;
	st->classes[class ++].slot_bytes = XKV_LARGE;
	st->classes[XKV_CLASS_LARGE].slot_bytes = XKV_SLOT_MAX; /* but of huge ones */
	st->class_count = class;
	while (lists < st->cpus && lists < XKV_LISTS)
		lists *= 2;
	st->cfg->list_mask = lists - 1;
	for (size_t unit = 0; unit < sizeof(st->cfg->class_of); unit++)
		st->cfg->class_of[unit] = class_for(st, unit * 8);
}

void classes_adopt(struct store *st)
{
	st->class_count = 0;
	while (st->class_count < XKV_CLASS_LARGE && st->classes[st->class_count].slot_bytes)
		st->class_count++;
}

unsigned int class_for(const struct store *st, size_t need)
{
	unsigned int class = 0;

	while (class < st->class_count && st->classes[class].slot_bytes < need)
		class ++;
	return class < st->class_count ? class : XKV_CLASS_LARGE;
}

/* ---- reading slots ------------------------------------------------------- */

/* Of a page with its tail. */
static size_t page_bytes(const struct store *st, uint64_t number)
{
	return (1 + (size_t)st->mem.tail[number]) * XKV_PAGE_BYTES;
}

struct xkv_slot *slot_of(const struct store *st, uint64_t ref)
{
	uint64_t number = XKV_REF_PAGE(ref);
	char *page;

	if (number >= XKV_PAGES_MAX || !(ref & XKV_REF_MASK) ||
	    XKV_REF_OFFSET(ref) > XKV_PAGE_BYTES - XKV_SLOT_WINDOW)
		return NULL;
	page = atomic_load_explicit(&st->mem.page[number], memory_order_acquire);
	return page ? (struct xkv_slot *)(page + XKV_REF_OFFSET(ref)) : NULL;
}

static uint64_t load_seq(const struct xkv_slot *slot)
{
	return __atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE);
}

bool slot_lengths_fit(const struct store *st, uint64_t ref, uint32_t class, uint32_t key_len,
		      uint32_t value_len)
{
	size_t need = XKV_SLOT_NEED(key_len, (size_t)value_len);

	return class < XKV_CLASSES && key_len <= XKV_KEY_LONG && value_len <= XKV_STORED_MAX &&
	       (class == XKV_CLASS_LARGE || need <= st->classes[class].slot_bytes) &&
	       XKV_REF_OFFSET(ref) + need <= page_bytes(st, XKV_REF_PAGE(ref));
}

char *large_room(struct large *l, size_t len)
{
	size_t room = len > XKV_SLOT_MAX ? len : XKV_SLOT_MAX;
	char *bytes;

	if (l->room >= len && (l->room == XKV_SLOT_MAX || len > XKV_SLOT_MAX))
		return l->bytes;
	bytes = realloc(l->bytes, room);
	if (bytes)
		*l = (struct large){ bytes, room };
	return bytes;
}

void large_free(struct large *l)
{
	free(l->bytes);
	*l = (struct large){ 0 };
}

uint32_t slot_value_len(const struct store *st, uint64_t ref, const struct xkv_slot *slot)
{
	if (slot->value_len == XKV_VALUE_HUGE &&
	    (!st->mem.tail[XKV_REF_PAGE(ref)] || XKV_REF_OFFSET(ref) != XKV_UNIT_BYTES))
		return UINT32_MAX;
	return xkv_value_len(slot);
}

/* Copies the value, or up to XKV_LONG_HEAD_MAX bytes of it to `head`. */
static bool copy_slot(const struct store *st, uint64_t ref, struct slot_copy *out,
		      struct large *value, void *head)
{
	const struct xkv_slot *slot = slot_of(st, ref);
	const char *key;
	size_t len;

	out->no_memory = false;
	if (!slot)
		return false;
	out->seq = load_seq(slot);
	if (out->seq & 1)
		return false;
	key = (const char *)(slot + 1);
	out->expire_ms = slot->expire_ms;
	out->value_len = slot_value_len(st, ref, slot);
	out->key_len = slot->key_len;
	out->db = slot->db;
	if (!slot_lengths_fit(st, ref, slot->class, out->key_len, out->value_len))
		return false;
	memset(out->key, 0, sizeof(out->key));
	memcpy(out->key, key, out->key_len);
	len = value || out->value_len < XKV_LONG_HEAD_MAX ? out->value_len : XKV_LONG_HEAD_MAX;
	if (value)
		head = large_room(value, len);
	out->no_memory = value && !head;
	if (out->no_memory)
		return false;
	if (head)
		memcpy(head, key + XKV_PADDED(out->key_len), len);
	atomic_thread_fence(memory_order_acquire);
	return __atomic_load_n(&slot->seq, __ATOMIC_RELAXED) == out->seq;
}

bool slot_copy(const struct store *st, uint64_t ref, struct slot_copy *out, struct large *value)
{
	return copy_slot(st, ref, out, value, NULL);
}

bool slot_copy_head(const struct store *st, uint64_t ref, struct slot_copy *out, void *head)
{
	return copy_slot(st, ref, out, NULL, head);
}

uint64_t key_hash(const struct store *st, const struct slot_copy *key)
{
	return hash_key(key->key, key->key_len, key->db, &st->secrets->hash);
}

int programs_wait(struct store *st)
{
	int ret = grace_wait();

	pthread_rwlock_wrlock(&st->mem.pages_lock); /* xkvd's own run with the pages held */
	pthread_rwlock_unlock(&st->mem.pages_lock);
	return ret;
}

int slot_free(struct store *st, uint64_t ref)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_FREE, .request = ~0U, .first = ref };

	return slots_run(st, &args);
}

/* ---- units --------------------------------------------------------------- */

bool unit_is_free(const struct store *st, uint32_t page, uint32_t unit)
{
	return st->mem.unit_map[page][unit / 64] >> unit % 64 & 1;
}

static void units_mark(struct store *st, uint32_t page, uint32_t first, unsigned int count,
		       bool free)
{
	for (uint32_t unit = first; unit < first + count; unit++) {
		uint64_t bit = 1ULL << unit % 64;

		if (free)
			st->mem.unit_map[page][unit / 64] |= bit;
		else
			st->mem.unit_map[page][unit / 64] &= ~bit;
	}
	st->mem.units_free[page] += free ? count : -count;
	if (free)
		/* unknown until the next find_run() */
		st->mem.longest_run[page] = XKV_UNITS;
}

/* The first unit from `unit` on that is free, or is used if !free; XKV_UNITS if there is none. */
static uint32_t next_unit(const struct store *st, uint32_t page, uint32_t unit, bool free)
{
	uint64_t background = ~0ULL << unit % 64;

	for (uint32_t i = unit / 64; i < XKV_UNITS / 64; i++, background = ~0ULL) {
		uint64_t bits = st->mem.unit_map[page][i];

		bits = (free ? bits : ~bits) & background;
		if (bits)
			return i * 64 + __builtin_ctzll(bits);
	}
	return XKV_UNITS;
}

/* The first of `count` neighbouring free units of a page, 0 if there are none. */
static uint32_t find_run(struct store *st, uint32_t page, unsigned int count)
{
	uint32_t first = next_unit(st, page, 1, true), end, longest = 0;

	for (; first < XKV_UNITS; first = next_unit(st, page, end, true)) {
		end = next_unit(st, page, first, false);
		if (end - first >= count)
			return first;
		if (end - first > longest)
			longest = end - first;
	}
	st->mem.longest_run[page] = longest;
	return 0;
}

bool units_take(struct store *st, unsigned int count, uint32_t *page, uint32_t *first)
{
	unsigned int least = XKV_UNITS, tail = xkv_tail_pages(count);
	uint32_t run;

	*first = 0;
	count = xkv_page_units(count);
	for (uint32_t number = 0; number < st->mem.pages; number++) {
		if (st->mem.units_free[number] < count || st->mem.units_free[number] >= least ||
		    st->mem.longest_run[number] < count || st->mem.tail[number] != tail)
			continue;
		run = find_run(st, number, count);
		if (!run)
			continue;
		least = st->mem.units_free[number];
		*page = number;
		*first = run;
	}
	if (*first)
		units_mark(st, *page, *first, count, false);
	return *first;
}

/* Puts the longest of `left` into a run of `units`; returns how many are left. */
static unsigned int fill_run(unsigned int units, unsigned int left[XKV_UNITS], unsigned int longest)
{
	unsigned int n = units < longest ? units : longest, taken, all = 0;

	for (; n && units; n = n - 1 < units ? n - 1 : units) {
		taken = units / n < left[n] ? units / n : left[n];
		left[n] -= taken;
		units -= taken * n;
		all += taken;
	}
	return all;
}

unsigned int units_lacking(struct store *st, const unsigned int runs[XKV_UNITS])
{
	unsigned int left[XKV_UNITS], longest = 0, shortest = XKV_UNITS, count = 0;
	uint32_t first, end;

	for (unsigned int n = 0; n < XKV_UNITS; n++) {
		left[n] = runs[n];
		count += runs[n];
		longest = runs[n] ? n : longest;
		shortest = runs[n] && n < shortest ? n : shortest;
	}
	pthread_mutex_lock(&st->mem.units_lock);
	for (uint32_t number = 0; number < st->mem.pages && count; number++)
		for (first = 1;
		     !st->mem.tail[number] && st->mem.units_free[number] >= shortest && count;
		     first = end) {
			first = next_unit(st, number, first, true);
			if (first == XKV_UNITS)
				break;
			end = next_unit(st, number, first, false);
			if (end - first >= shortest)
				count -= fill_run(end - first, left, longest);
		}
	pthread_mutex_unlock(&st->mem.units_lock);
	return count;
}

bool unit_take(struct store *st, uint32_t page, uint32_t unit)
{
	bool free = unit_is_free(st, page, unit);

	if (free)
		units_mark(st, page, unit, 1, false);
	return free;
}

void units_give(struct store *st, uint32_t page, uint32_t first, unsigned int count)
{
	units_mark(st, page, first, count, true);
}

uint64_t units_free(struct store *st)
{
	uint64_t units = 0;

	pthread_mutex_lock(&st->mem.units_lock);
	for (uint32_t number = 0; number < st->mem.pages; number++)
		units += st->mem.tail[number] ? 0 : st->mem.units_free[number];
	pthread_mutex_unlock(&st->mem.units_lock);
	return units;
}

/* ---- growth -------------------------------------------------------------- */

/* With a tail of so many pages, if tail_fd is not -1.  MAP_FAILED with errno. */
static void *map_writable(int fd, int tail_fd, unsigned int tail)
{
	return page_map(fd, XKV_PAGE_BYTES, tail_fd, (size_t)tail * XKV_PAGE_BYTES,
			PROT_READ | PROT_WRITE);
}

static void page_unmap(const struct store *st, uint32_t number, void *base)
{
	munmap(base, page_bytes(st, number));
}

/* A descriptor, or -1 with errno. */
static int map_make(const char *name, unsigned int pages, unsigned int flags)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE | flags);

	return bpf_map_create(BPF_MAP_TYPE_ARRAY, name, sizeof(uint32_t), XKV_PAGE_BYTES, pages,
			      &opts);
}

/*
 * Makes a page, not yet in the map of pages, and maps it at *base, with the tail that it may have.
 * A descriptor, or -errno.
 */
static int page_make(void **base, int tail_fd, unsigned int tail)
{
	int fd = map_make("xkv_page", 1, 0);

	if (fd < 0)
		return -errno;
	*base = map_writable(fd, tail_fd, tail);
	if (*base == MAP_FAILED) {
		int saved = -errno;

		close(fd);
		return saved;
	}
	((struct xkv_page *)*base)->magic = XKV_PAGE_MAGIC;
	((struct xkv_page *)*base)->huge = tail ? XKV_HUGE_UNUSED : 0;
	return fd;
}

/*
 * Makes a page that is in the map of pages visible to readers and walks of xkvd.  The caller holds
 * units_lock, or no other thread runs yet.
 */
static void page_publish(struct store *st, unsigned int number, void *base, unsigned int tail)
{
	st->mem.tail[number] = tail;
	st->mem.tail_pages += tail;
	atomic_store_explicit(&st->mem.page[number], base, memory_order_release);
	if (number >= st->mem.pages)
		st->mem.pages = number + 1;
	st->mem.pages_used++;
}

/* Advances *number to the first one that no page has. */
static bool free_number(const struct store *st, uint32_t *number)
{
	while (*number < XKV_PAGES_MAX && st->mem.page[*number])
		++*number;
	return *number < XKV_PAGES_MAX;
}

/*
 * Is the machine, or a cgroup, short of memory?  Looking takes some files of /proc and /sys, too
 * long for each write that is refused: a yes is believed for some time.
 */
static bool is_short(struct store *st, unsigned int pages)
{
	uint64_t now = monotonic_ms();

	if (now < __atomic_load_n(&st->mem.short_until_ms, __ATOMIC_RELAXED))
		return true;
	if (pages > PAGES_AT_ONCE) /* for one value: others may have room */
		return memory_is_short(pages * XKV_PAGE_COST);
	if (!memory_is_short(0))
		return false;
	__atomic_store_n(&st->mem.short_until_ms, now + SHORT_MS, __ATOMIC_RELAXED);
	return true;
}

/* How many of `want` pages maxmemory and the machine's memory allow to add. */
static unsigned int pages_allowed(struct store *st, unsigned int want)
{
	uint64_t limit = st->maxmemory, used = store_memory(st);

	if (limit && limit < used + (uint64_t)want * XKV_PAGE_COST)
		want = limit > used ? (limit - used) / XKV_PAGE_COST : 0;
	return want && !is_short(st, want) ? want : 0;
}

/* Puts new pages into the map of pages and publishes them.  Returns how many, or -errno. */
static int pages_put(struct store *st, uint32_t *number, int *fd, void **base, unsigned int made)
{
	unsigned int put = made;
	int ret = 0;

	if (bpf_map_update_batch(st->bpf.map[BPF_PAGES], number, fd, &put, NULL)) {
		ret = -errno;
		log_repeated("cannot add pages to the store: %s", strerror(-ret));
		if (put >= made)
			put = 0; /* libbpf did not set the number: none was put */
	}
	pthread_mutex_lock(&st->mem.units_lock);
	for (unsigned int i = 0; i < put; i++) {
		page_publish(st, number[i], base[i], 0);
		units_give(st, number[i], 1, XKV_UNITS - 1);
	}
	pthread_mutex_unlock(&st->mem.units_lock);
	for (unsigned int i = put; i < made; i++)
		munmap(base[i], XKV_PAGE_BYTES);
	return put ? (int)put : ret;
}

int pages_add(struct store *st, unsigned int want)
{
	uint32_t number[PAGES_AT_ONCE], free = 0;
	void *base[PAGES_AT_ONCE];
	unsigned int made = 0;
	int fd[PAGES_AT_ONCE], ret;

	want = pages_allowed(st, want < PAGES_AT_ONCE ? want : PAGES_AT_ONCE);
	for (; made < want && free_number(st, &free); made++, free++) {
		number[made] = free;
		fd[made] = page_make(&base[made], -1, 0);
		if (fd[made] < 0) {
			log_repeated("cannot make a page: %s", strerror(-fd[made]));
			break;
		}
	}
	if (!made)
		return -ENOSPC;
	ret = pages_put(st, number, fd, base, made);
	for (unsigned int i = 0; i < made; i++)
		close(fd[i]);
	log_debug("%d pages more", ret);
	return ret;
}

/*
 * Puts a page with a tail into the maps: the page first, so that no tail is without its page if
 * xkvd is killed.
 */
static int huge_put(struct store *st, uint32_t number, int fd, int tail_fd)
{
	int ret;

	if (bpf_map_update_elem(st->bpf.map[BPF_PAGES], &number, &fd, BPF_ANY))
		return -errno;
	if (!bpf_map_update_elem(st->bpf.map[BPF_TAILS], &number, &tail_fd, BPF_ANY))
		return 0;
	ret = -errno;
	bpf_map_delete_elem(st->bpf.map[BPF_PAGES], &number);
	return ret;
}

int page_add_huge(struct store *st, unsigned int units)
{
	unsigned int tail = xkv_tail_pages(units);
	int tail_fd, fd, ret = -ENOSPC;
	uint32_t number = 0;
	void *base;

	if (pages_allowed(st, 1 + tail) < 1 + tail || !free_number(st, &number))
		return -ENOSPC;
	tail_fd = map_make("xkv_tail", tail, BPF_F_INNER_MAP);
	if (tail_fd < 0)
		return -ENOSPC;
	fd = page_make(&base, tail_fd, tail);
	if (fd >= 0) {
		ret = huge_put(st, number, fd, tail_fd);
		close(fd);
		if (ret)
			munmap(base, (1 + (size_t)tail) * XKV_PAGE_BYTES);
	}
	close(tail_fd);
	if (ret)
		return ret;
	pthread_mutex_lock(&st->mem.units_lock);
	page_publish(st, number, base, tail);
	units_give(st, number, 1, XKV_UNITS - 1);
	pthread_mutex_unlock(&st->mem.units_lock);
	return 0;
}

/*
 * bpf_map_delete_elem() waits until no XDP program can hold a reference to the page; pages_lock
 * waits for xkvd's own programs and readers.
 */
int page_remove(struct store *st, uint32_t number)
{
	unsigned int tail = st->mem.tail[number];
	void *page = st->mem.page[number];
	bool empty;

	pthread_mutex_lock(&st->mem.units_lock);
	empty = st->mem.units_free[number] == XKV_UNITS - 1;
	if (empty) /* no thread can take units of this page any more */
		units_mark(st, number, 1, XKV_UNITS - 1, false);
	pthread_mutex_unlock(&st->mem.units_lock);
	if (!empty)
		return -EBUSY;
	if (tail)
		bpf_map_delete_elem(st->bpf.map[BPF_TAILS], &number);
	if (bpf_map_delete_elem(st->bpf.map[BPF_PAGES], &number)) {
		int ret = -errno;

		pthread_mutex_lock(&st->mem.units_lock);
		if (!tail)
			units_give(st, number, 1, XKV_UNITS - 1);
		pthread_mutex_unlock(&st->mem.units_lock);
		return ret;
	}
	pthread_rwlock_wrlock(&st->mem.pages_lock);
	atomic_store(&st->mem.page[number], NULL);
	st->mem.pages_used--;
	st->mem.tail_pages -= tail;
	pthread_rwlock_unlock(&st->mem.pages_lock);
	page_unmap(st, number, page);
	pthread_mutex_lock(&st->mem.units_lock);
	st->mem.tail[number] = 0;
	pthread_mutex_unlock(&st->mem.units_lock);
	return 0;
}

unsigned int pages_remove_huge(struct store *st)
{
	unsigned int removed = 0;

	for (uint32_t number = 0; number < st->mem.pages; number++)
		if (st->mem.tail[number] && st->mem.units_free[number] == XKV_UNITS - 1)
			removed += !page_remove(st, number);
	return removed;
}

/* ---- adopting ------------------------------------------------------------ */

/*
 * Opens the tail of a page.  Its descriptor and *pages; -ENOENT: an xkvd was killed when it made or
 * removed them; or -errno.
 */
static int tail_open(const struct store *st, uint32_t number, unsigned int *pages)
{
	struct bpf_map_info info = { 0 };
	uint32_t id, len = sizeof(info);
	int fd, ret;

	if (bpf_map_lookup_elem(st->bpf.map[BPF_TAILS], &number, &id))
		return -errno;
	fd = bpf_map_get_fd_by_id(id);
	if (fd < 0)
		return -errno;
	ret = bpf_obj_get_info_by_fd(fd, &info, &len) ? -errno : 0;
	if (ret)
		close(fd);
	*pages = info.max_entries;
	return ret ? ret : fd;
}

/* Maps a page with its tail in the place of the page alone.  0 and *tail: its pages; or -errno. */
static int tail_adopt(const struct store *st, uint32_t number, int page_fd, struct xkv_page **page,
		      unsigned int *tail)
{
	struct xkv_page *whole;
	unsigned int pages = 0;
	int fd = tail_open(st, number, &pages);

	if (fd == -ENOENT) {
		(*page)->huge = 0; /* no slot of it is in use: it is a page like others */
		return 0;
	}
	if (fd < 0)
		return fd;
	whole = map_writable(page_fd, fd, pages);
	close(fd);
	if (whole == MAP_FAILED)
		return -errno;
	munmap(*page, XKV_PAGE_BYTES);
	*page = whole;
	*tail = pages;
	return 0;
}

static int page_adopt(struct store *st, unsigned int number, uint32_t id)
{
	int fd = bpf_map_get_fd_by_id(id), ret = 0;
	struct xkv_page *page;
	unsigned int tail = 0;

	if (fd < 0)
		return -errno;
	page = map_writable(fd, -1, 0);
	if (page == MAP_FAILED)
		ret = -errno;
	else if (page->huge)
		ret = tail_adopt(st, number, fd, &page, &tail);
	close(fd);
	if (!ret && page->magic != XKV_PAGE_MAGIC)
		ret = -EINVAL;
	if (ret) {
		if (page != MAP_FAILED)
			munmap(page, (1 + (size_t)tail) * XKV_PAGE_BYTES);
		return ret;
	}
	page_publish(st, number, page, tail);
	return spans_adopt(st, number);
}

int pages_adopt(struct store *st)
{
	uint32_t id[XKV_PAGES_MAX];
	int ret = page_ids(st->bpf.map[BPF_PAGES], id, XKV_PAGES_MAX);

	for (uint32_t number = 0; !ret && number < XKV_PAGES_MAX; number++)
		if (id[number])
			ret = page_adopt(st, number, id[number]);
	return ret;
}

void pages_close(struct store *st)
{
	for (unsigned int number = 0; number < XKV_PAGES_MAX; number++)
		if (st->mem.page[number])
			page_unmap(st, number, st->mem.page[number]);
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * Each slot must be exactly one of: live and referred to by one element of
 * index, free and in one list, orphaned, or held by an xkvd.  Every slot gets a
 * mark when it is met; who meets a mark, and what has none in the end, is an error.
 */
#include "accounting.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "../bpf/layout.h"
#include "../bpf/siphash.h"

#define REPORTED_ERRORS 20
#define ATTEMPTS	50 /* to see the store without a page being added meanwhile */

enum mark { UNSEEN, INDEXED, FREE, HELD };

struct walk {
	FILE *report;
	const struct xkv_class *classes;
	const struct xkv_config *cfg;
	const struct xkv_frame *batch;
	int index, page_map, class_map, config_map, batch_map, counter_map;
	uint64_t now_ms; /* Unix time */
	uint32_t pages;
	char *page[XKV_PAGES_MAX];
	uint8_t *mark[XKV_PAGES_MAX]; /* enum mark of each slot */
	struct accounting found;
};

static void error(struct walk *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void error(struct walk *w, const char *format, ...)
{
	va_list args;

	if (++w->found.errors > REPORTED_ERRORS)
		return;
	va_start(args, format);
	fputs("accounting: ", w->report);
	vfprintf(w->report, format, args);
	fputc('\n', w->report);
	va_end(args);
}

/* ---- the maps ------------------------------------------------------------ */

static int open_pin(struct walk *w, const char *dir, const char *name)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = bpf_obj_get(path);
	if (fd < 0)
		fprintf(w->report, "accounting: cannot open %s: %s\n", path, strerror(errno));
	return fd;
}

static const void *map_shared(int fd, size_t size)
{
	void *at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);

	return at == MAP_FAILED ? NULL : at;
}

static int open_maps(struct walk *w, const char *dir)
{
	w->index = open_pin(w, dir, "xkv_index");
	w->page_map = open_pin(w, dir, "xkv_pages");
	w->class_map = open_pin(w, dir, "xkv_classes");
	w->config_map = open_pin(w, dir, "xkv_config");
	w->batch_map = open_pin(w, dir, "xkv_batch");
	w->counter_map = open_pin(w, dir, "xkv_counters");
	if (w->index < 0 || w->page_map < 0 || w->class_map < 0 || w->config_map < 0 ||
	    w->batch_map < 0 || w->counter_map < 0)
		return -ENOENT;
	w->classes = map_shared(w->class_map, XKV_CLASSES * sizeof(*w->classes));
	w->cfg = map_shared(w->config_map, sizeof(*w->cfg));
	w->batch = map_shared(w->batch_map, XKV_BATCH_LANES * XKV_BATCH_FRAMES * sizeof(*w->batch));
	if (w->classes && w->cfg && w->batch)
		return 0;
	fprintf(w->report, "accounting: cannot map the maps of %s: %s\n", dir, strerror(errno));
	return -ENOMEM;
}

static void close_maps(struct walk *w)
{
	const int fds[] = { w->index,	   w->page_map,	 w->class_map,
			    w->config_map, w->batch_map, w->counter_map };

	for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	if (w->classes)
		munmap((void *)w->classes, XKV_CLASSES * sizeof(*w->classes));
	if (w->cfg)
		munmap((void *)w->cfg, sizeof(*w->cfg));
	if (w->batch)
		munmap((void *)w->batch, XKV_BATCH_LANES * XKV_BATCH_FRAMES * sizeof(*w->batch));
}

/* ---- pages --------------------------------------------------------------- */

static bool page_is_sane(struct walk *w, uint32_t number)
{
	const struct xkv_page *page = (const struct xkv_page *)w->page[number];
	uint64_t end = sizeof(*page) + (uint64_t)page->slots * page->slot_bytes;

	if (page->magic != XKV_PAGE_MAGIC || page->class >= XKV_CLASSES || !page->slots ||
	    page->slot_bytes != w->classes[page->class].slot_bytes || end > XKV_PAGE_BYTES) {
		error(w, "page %u: its header is wrong (class %u, %u slots of %u bytes)", number,
		      page->class, page->slots, page->slot_bytes);
		return false;
	}
	if (!page->linked)
		error(w, "page %u (slots of %u bytes) was put in, but its slots are in no list",
		      number, page->slot_bytes);
	return true;
}

/* Maps page `number`. 0, -ENOENT if there is none, or another error. */
static int map_page(struct walk *w, uint32_t number)
{
	const struct xkv_page *page;
	uint32_t id;
	int fd;

	if (bpf_map_lookup_elem(w->page_map, &number, &id))
		return -errno;
	fd = bpf_map_get_fd_by_id(id);
	if (fd < 0)
		return -errno;
	w->page[number] = (char *)map_shared(fd, XKV_PAGE_BYTES);
	close(fd);
	if (!w->page[number])
		return -ENOMEM;
	w->pages = number + 1;
	if (!page_is_sane(w, number))
		return -EINVAL;
	page = (const struct xkv_page *)w->page[number];
	w->found.slots += page->slots;
	w->mark[number] = calloc(page->slots, 1);
	return w->mark[number] ? 0 : -ENOMEM;
}

static int map_pages(struct walk *w)
{
	int ret = 0;

	for (uint32_t number = 0; !ret && number < XKV_PAGES_MAX; number++)
		ret = map_page(w, number);
	w->found.pages = w->pages;
	return ret == -ENOENT ? 0 : ret;
}

static void unmap_pages(struct walk *w)
{
	for (uint32_t number = 0; number < w->pages; number++) {
		munmap(w->page[number], XKV_PAGE_BYTES);
		free(w->mark[number]);
	}
}

/* Was a page added since map_pages()? */
static bool has_grown(struct walk *w)
{
	uint32_t number = w->pages, id;

	return number < XKV_PAGES_MAX && !bpf_map_lookup_elem(w->page_map, &number, &id);
}

/* ---- slots --------------------------------------------------------------- */

static const struct xkv_page *page_of(struct walk *w, uint64_t ref)
{
	return (const struct xkv_page *)w->page[XKV_REF_PAGE(ref)];
}

/* The slot behind a reference that must be one, and marks it; NULL if that is not right. */
static const struct xkv_slot *visit(struct walk *w, uint64_t ref, enum mark mark, const char *who)
{
	static const char *const names[] = { "nowhere", "index", "a free list", "xkvd" };
	uint64_t number = XKV_REF_PAGE(ref), offset = XKV_REF_OFFSET(ref), slot;
	const struct xkv_page *page;
	uint8_t *seen;

	if (ref & ~XKV_REF_MASK || number >= w->pages) {
		error(w, "%s refers to %#" PRIx64 ", which is in no page", who, ref);
		return NULL;
	}
	page = page_of(w, ref);
	slot = (offset - sizeof(*page)) / page->slot_bytes;
	if (offset < sizeof(*page) || (offset - sizeof(*page)) % page->slot_bytes ||
	    slot >= page->slots) {
		error(w, "%s refers to %#" PRIx64 ", where no slot starts", who, ref);
		return NULL;
	}
	seen = &w->mark[number][slot];
	if (*seen != UNSEEN) {
		error(w, "%s refers to slot %#" PRIx64 ", which %s has already", who, ref,
		      names[*seen]);
		return NULL;
	}
	*seen = mark;
	return (const struct xkv_slot *)(w->page[number] + offset);
}

static uint64_t fingerprint(struct walk *w, const struct xkv_slot *slot)
{
	const uint64_t *key = (const uint64_t *)(slot + 1);
	struct siphash s;

	siphash_init(&s, w->cfg->secret);
	for (unsigned int i = 0; i * 8 < slot->key_len; i++)
		siphash_word(&s, key[i]);
	return siphash_end(&s, slot->key_len) & w->cfg->fingerprint_mask;
}

/* ---- index --------------------------------------------------------------- */

/* Can a look-up come to `place`?  All places before it must hold entries that say "go on". */
static void check_reachable(struct walk *w, uint64_t first, uint64_t place)
{
	const struct xkv_slot *slot;
	struct xkv_index before;

	for (uint64_t at = first; at != place; at += XKV_PROBE_STEP) {
		if (bpf_map_lookup_elem(w->index, &at, &before)) {
			error(w, "index[%016" PRIx64 "] cannot be reached: nothing at %016" PRIx64,
			      place, at);
			return;
		}
		if (XKV_REF_PAGE(before.ref) >= w->pages)
			return; /* an error of its own */
		slot = (const struct xkv_slot *)(w->page[XKV_REF_PAGE(before.ref)] +
						 XKV_REF_OFFSET(before.ref));
		if (!(slot->flags & XKV_SLOT_COLLIDED))
			error(w,
			      "index[%016" PRIx64 "] cannot be reached: %016" PRIx64 " is unmarked",
			      place, at);
	}
}

static void check_entry(struct walk *w, uint64_t place, const struct xkv_index *element)
{
	const struct xkv_slot *slot = visit(w, element->ref, INDEXED, "index");
	uint64_t first;
	int probe = 0;

	if (!slot)
		return;
	w->found.live++;
	w->found.tombs += slot->expire_ms == XKV_TOMB;
	w->found.expired += slot->expire_ms > XKV_TOMB && slot->expire_ms <= w->now_ms;
	if (slot->seq & 1)
		error(w, "index[%016" PRIx64 "]: its slot %#" PRIx64 " is locked or free", place,
		      (uint64_t)element->ref);
	if (slot->class != page_of(w, element->ref)->class || !slot->key_len ||
	    slot->key_len > XKV_KEY_MAX || slot->value_len > XKV_VALUE_MAX ||
	    XKV_SLOT_NEED(slot->key_len, slot->value_len) > w->classes[slot->class].slot_bytes) {
		error(w, "index[%016" PRIx64 "]: its slot does not hold key %u + value %u", place,
		      slot->key_len, slot->value_len);
		return;
	}
	if (slot->key_len != element->key_len ||
	    memcmp(slot + 1, element->key_head,
		   slot->key_len < sizeof(element->key_head) ? slot->key_len
							     : sizeof(element->key_head)))
		error(w, "index[%016" PRIx64 "]: its slot has another key", place);
	first = fingerprint(w, slot);
	while (probe < XKV_PROBES && first + probe * XKV_PROBE_STEP != place)
		probe++;
	if (probe == XKV_PROBES) {
		error(w, "index[%016" PRIx64 "]: its key belongs elsewhere", place);
		return;
	}
	w->found.moved_aside += probe > 0;
	check_reachable(w, first, place);
}

static int walk_index(struct walk *w)
{
	struct xkv_index element;
	uint64_t place, *last = NULL, previous;

	while (!bpf_map_get_next_key(w->index, last, &place)) {
		if (bpf_map_lookup_elem(w->index, &place, &element))
			error(w, "index[%016" PRIx64 "] went away meanwhile: is the store at rest?",
			      place);
		else
			check_entry(w, place, &element);
		previous = place;
		last = &previous;
	}
	return errno == ENOENT ? 0 : -errno;
}

/* ---- free lists, and what is left ---------------------------------------- */

static void walk_list(struct walk *w, unsigned int class)
{
	uint64_t ref = w->classes[class].head & XKV_REF_MASK, count = 0;
	const struct xkv_slot *slot;

	for (; ref; ref = slot->next & XKV_REF_MASK, count++) {
		slot = visit(w, ref, FREE, "a free list");
		if (!slot)
			return; /* a loop would not end */
		if (!(slot->seq & 1))
			error(w, "slot %#" PRIx64 " is in a free list, but live", ref);
		if (slot->class != class || page_of(w, ref)->class != class)
			error(w, "slot %#" PRIx64 " is in the list of another class", ref);
		if (slot->flags & XKV_SLOT_ORPHAN)
			error(w, "slot %#" PRIx64 " is in a free list, but marked as an orphan",
			      ref);
	}
	w->found.free += count;
	if (count != w->classes[class].free)
		error(w, "class of %u bytes: %" PRIu64 " slots are free, counted %" PRId64,
		      w->classes[class].slot_bytes, count, (int64_t)w->classes[class].free);
}

/* What an xkvd has taken and not yet published stands in the frames. */
static void walk_held(struct walk *w)
{
	for (int i = 0; i < XKV_BATCH_LANES * XKV_BATCH_FRAMES; i++) {
		if (!w->batch[i].prefilled)
			continue;
		visit(w, w->batch[i].prefilled, HELD, "a frame of xkvd");
		w->found.held++;
	}
}

static void walk_rest(struct walk *w)
{
	const struct xkv_page *page;
	const struct xkv_slot *slot;

	for (uint32_t number = 0; number < w->pages; number++) {
		page = (const struct xkv_page *)w->page[number];
		for (uint32_t i = 0; i < page->slots; i++) {
			if (w->mark[number][i] != UNSEEN)
				continue;
			slot = (const struct xkv_slot *)(w->page[number] + sizeof(*page) +
							 (size_t)i * page->slot_bytes);
			if ((slot->seq & 1) && (slot->flags & XKV_SLOT_ORPHAN))
				w->found.orphans++;
			else
				error(w,
				      "slot %u of page %u (%u bytes, seq %#" PRIx64 ") is lost: %s",
				      i, number, page->slot_bytes, (uint64_t)slot->seq,
				      slot->seq & 1 ? "in no list" : "live, but not in index");
		}
	}
}

/* DBSIZE is computed from counters. */
static int check_counters(struct walk *w)
{
	int cpus = libbpf_num_possible_cpus();
	struct xkv_counters *each = cpus > 0 ? calloc(cpus, sizeof(*each)) : NULL;
	uint64_t keys = 0;
	uint32_t zero = 0;

	if (!each)
		return -ENOMEM;
	if (bpf_map_lookup_elem(w->counter_map, &zero, each)) {
		free(each);
		return -errno;
	}
	for (int i = 0; i < cpus; i++)
		keys += each[i].inserts + each[i].revived - each[i].deletes - each[i].tombs -
			each[i].expires;
	free(each);
	if (keys != w->found.live - w->found.tombs)
		error(w, "the counters say %" PRId64 " keys, index has %" PRIu64, (int64_t)keys,
		      w->found.live - w->found.tombs);
	return 0;
}

static int walk_all(struct walk *w)
{
	int ret = map_pages(w);

	if (!ret)
		ret = walk_index(w);
	for (unsigned int class = 0; !ret && class < XKV_CLASSES; class ++)
		walk_list(w, class);
	if (ret)
		return ret;
	walk_held(w);
	walk_rest(w);
	return check_counters(w);
}

int accounting_read(const char *pin_dir, struct accounting *out, FILE *report)
{
	struct walk *w = calloc(1, sizeof(*w));
	struct timespec now;
	bool grown = true;
	FILE *null = NULL;
	char *text = NULL;
	size_t length;
	int ret;

	if (!w)
		return -ENOMEM;
	w->report = report;
	clock_gettime(CLOCK_REALTIME, &now);
	w->now_ms = now.tv_sec * 1000ULL + now.tv_nsec / 1000000;
	ret = open_maps(w, pin_dir);
	for (int i = 0; !ret && grown && i < ATTEMPTS; i++) {
		w->found = (struct accounting){};
		w->pages = 0;
		null = open_memstream(&text, &length);
		w->report = null ? null : report;
		ret = walk_all(w);
		grown = has_grown(w);
		unmap_pages(w);
		w->report = report;
		if (null && !fclose(null)) {
			if (!grown)
				fputs(text, report);
			free(text);
		}
	}
	if (ret)
		fprintf(report, "accounting: cannot walk the store in %s: %s\n", pin_dir,
			strerror(-ret));
	if (out)
		*out = w->found;
	if (!ret && w->found.errors)
		ret = 1;
	close_maps(w);
	free(w);
	return ret;
}

int accounting_check(const char *pin_dir, FILE *report)
{
	struct accounting a = {};
	int ret = accounting_read(pin_dir, &a, report);

	if (ret >= 0)
		fprintf(report,
			"accounting: %" PRIu64 " pages, %" PRIu64 " slots = %" PRIu64
			" live (%" PRIu64 " tombs, %" PRIu64 " expired, %" PRIu64
			" stepped aside) + %" PRIu64 " free + %" PRIu64 " orphans + %" PRIu64
			" held; %" PRIu64 " errors\n",
			a.pages, a.slots, a.live, a.tombs, a.expired, a.moved_aside, a.free,
			a.orphans, a.held, a.errors);
	return ret;
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * One walk over the store.  Every slot is marked when it is found in the index, a chain, a list or
 * a request of xkvd.  A slot that is found twice, or never, is an error.  The store may be in use:
 * reads follow the rules of bpf/layout.h, and every value is checked to be in bounds.
 */
#include "check.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bpf/layout.h"
#include "bpf/sizes.h"
#include "loader/store/page_ids.h"
#include "loader/store/page_map.h"

#define CHAIN_KEYS  ((XKV_CHAIN_MAX + 1) * XKV_WAYS)
#define STILL_TRIES 1000 /* to read some words consistently */
#define LIST_TRIES  50	 /* to read a list that changes */

enum mark { UNSEEN, INDEXED, CHAIN, FREE, HELD };

static const char *const holder[] = { "nobody", "index", "a chain", "a free list", "xkvd" };

enum map {
	INDEX,
	PAGES,
	TAILS,
	CLASSES,
	DEDUP,
	CONFIG,
	SECRET,
	TALLY,
	BATCH,
	TXN,
	TXN_MORE,
	FEED,
	DBS,
	MAPS
};

static const char *const map_names[MAPS] = { "xkv_index",    "xkv_pages",    "xkv_tails",
					     "xkv_classes",  "xkv_once",     "xkv_config",
					     "xkv_secret",   "xkv_tally",    "xkv_batch",
					     "xkv_txn",	     "xkv_txn_more", "xkv_feed",
					     "xkv_databases" };

/* A span, as described by the header of its page. */
struct span {
	const struct xkv_unit *head;
	uint32_t first, units, tail, class, slots, slot_bytes;
	uint8_t *mark; /* enum mark of each slot */
};

struct page {
	const char *base;
	uint32_t tail;		      /* pages behind it, of a huge entry */
	struct span *span[XKV_UNITS]; /* the span of each unit */
};

struct walk {
	FILE *report;
	struct findings *findings;
	struct check_sums *sums;
	int fd[MAPS];
	const void *at[MAPS]; /* mapped memory, of maps that allow it */
	size_t size[MAPS];
	const struct xkv_bucket *index;
	const struct xkv_class *classes;
	const struct xkv_config *cfg;
	const struct xkv_secrets *secrets;
	const struct xkv_database *databases;
	uint64_t keys_of[XKV_DATABASES]; /* in the index, by stored number */
	uint64_t buckets;
	uint64_t now_ms; /* Unix time */
	struct page *page[XKV_PAGES_MAX];
	uint64_t list_room;	/* number of slots before the lists were read */
	bool torn[XKV_CLASSES]; /* the lists of the class changed too fast to be read */
};

static uint64_t load(const __u64 *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

#define FOUND(...) found(w->findings, __VA_ARGS__)

/* ---- the maps ------------------------------------------------------------ */

/*
 * Opens a pinned map, checks its sizes, and maps it if its type allows that.  Older stores have no
 * xkv_txn, no xkv_txn_more and no xkv_feed.
 */
static int open_map(struct walk *w, const char *dir, enum map id, size_t value_size)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);
	char path[4200];
	void *at;

	snprintf(path, sizeof(path), "%s/%s", dir, map_names[id]);
	w->fd[id] = bpf_obj_get(path);
	if ((id == TXN || id == TXN_MORE || id == FEED) && w->fd[id] < 0 && errno == ENOENT)
		return 0;
	if (w->fd[id] < 0 || bpf_obj_get_info_by_fd(w->fd[id], &info, &len)) {
		int err = -errno;

		fprintf(w->report, "cannot open %s: %s%s\n", path, strerror(-err), pin_hint(err));
		return err;
	}
	if (info.value_size != value_size) {
		fprintf(w->report, "%s was made by another version of xkv\n", path);
		return -EPROTO;
	}
	if (id == INDEX)
		w->buckets = info.max_entries;
	if (!(info.map_flags & BPF_F_MMAPABLE))
		return 0;
	w->size[id] = (size_t)info.max_entries * ((info.value_size + 7) & ~7U);
	at = mmap(NULL, w->size[id], PROT_READ, MAP_SHARED, w->fd[id], 0);
	if (at == MAP_FAILED) {
		int err = -errno;

		fprintf(w->report, "cannot map %s: %s\n", path, strerror(-err));
		return err;
	}
	w->at[id] = at;
	return 0;
}

static int feed_failed(const struct walk *w)
{
	int err = -errno;

	fprintf(w->report, "cannot map the ring of the change feed: %s\n", strerror(-err));
	return err;
}

/* The ring of the change feed, if there is one: the element of a map of maps. */
static int map_feed(struct walk *w)
{
	uint32_t zero = 0, id;
	int fd, ret = 0;
	void *at;

	if (w->fd[FEED] < 0 || bpf_map_lookup_elem(w->fd[FEED], &zero, &id))
		return 0;
	fd = bpf_map_get_fd_by_id(id);
	if (fd < 0)
		return errno == ENOENT ? 0 : feed_failed(w); /* just removed */
	w->size[FEED] = sizeof(struct xkv_feed);
	at = mmap(NULL, w->size[FEED], PROT_READ, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		ret = feed_failed(w);
	else
		w->at[FEED] = at;
	close(fd);
	return ret;
}

static int open_maps(struct walk *w, const char *dir)
{
	static const size_t value_size[MAPS] = {
		[INDEX] = sizeof(struct xkv_bucket),
		[PAGES] = sizeof(uint32_t),
		[TAILS] = sizeof(uint32_t),
		[CLASSES] = sizeof(struct xkv_class),
		[DEDUP] = sizeof(struct xkv_dedup_set),
		[CONFIG] = sizeof(struct xkv_config),
		[TALLY] = sizeof(struct xkv_tally),
		[BATCH] = sizeof(struct xkv_request),
		[SECRET] = sizeof(struct xkv_secrets),
		[TXN] = sizeof(struct xkv_txn_key),
		[FEED] = sizeof(uint32_t),
		[DBS] = sizeof(struct xkv_database),
		[TXN_MORE] = sizeof(uint32_t),
	};
	int ret = 0;

	for (int id = 0; id < MAPS; id++)
		w->fd[id] = -1;
	for (int id = 0; !ret && id < MAPS; id++)
		ret = open_map(w, dir, id, value_size[id]);
	if (!ret)
		ret = map_feed(w);
	w->index = w->at[INDEX];
	w->classes = w->at[CLASSES];
	w->cfg = w->at[CONFIG];
	w->databases = w->at[DBS];
	w->secrets = w->at[SECRET];
	if (!ret && w->cfg->layout != XKV_DATA_VERSION) {
		fprintf(w->report, "the store in %s has layout %u, and this is for %u\n", dir,
			w->cfg->layout, XKV_DATA_VERSION);
		ret = -EPROTO;
	}
	return ret;
}

static void close_maps(struct walk *w)
{
	for (int id = 0; id < MAPS; id++) {
		if (w->at[id])
			munmap((void *)w->at[id], w->size[id]);
		if (w->fd[id] >= 0)
			close(w->fd[id]);
	}
}

/* ---- pages --------------------------------------------------------------- */

/*
 * Reads the description of the span that begins at `first`.  False if it is inconsistent.
 */
static bool span_read(struct walk *w, const struct page *page, uint32_t first, struct span *s)
{
	const struct xkv_unit *unit = (const struct xkv_unit *)page->base;
	uint32_t reach = XKV_PAGE_BYTES - XKV_SLOT_WINDOW - first * XKV_UNIT_BYTES, fit;

	*s = (struct span){ .head = &unit[first], .first = first, .class = unit[first].class };
	while (first + s->units < XKV_UNITS && unit[first + s->units].first == first)
		s->units++;
	if (!s->units || s->class >= XKV_CLASSES || unit[first].state > XKV_SPAN_DRAINING)
		return false;
	if (s->class == XKV_CLASS_LARGE) {
		s->tail = page->tail;
		s->slot_bytes = s->units * XKV_UNIT_BYTES + s->tail * XKV_PAGE_BYTES;
		s->slots = 1;
		return !s->tail || s->units == XKV_UNITS - 1;
	}
	s->slot_bytes = w->classes[s->class].slot_bytes;
	if (page->tail || s->slot_bytes < sizeof(struct xkv_slot))
		return false;
	fit = s->units * XKV_UNIT_BYTES / s->slot_bytes;
	s->slots = reach / s->slot_bytes + 1 < fit ? reach / s->slot_bytes + 1 : fit;
	return s->slots;
}

/*
 * The span of a unit, even if it was made after the page was read; NULL if the unit is free.
 */
static struct span *span_of(struct walk *w, uint32_t number, uint32_t unit)
{
	struct page *page = w->page[number];
	const struct xkv_unit *header = (const struct xkv_unit *)page->base;
	uint32_t first = __atomic_load_n(&header[unit].first, __ATOMIC_ACQUIRE);
	struct span s, *span;

	if (page->span[unit] || !unit || !first || first >= XKV_UNITS)
		return page->span[unit];
	if (first > unit || !span_read(w, page, first, &s) || unit >= first + s.units) {
		FOUND("page %u: unit %u: its span makes no sense (first %u, class %u, state %u)",
		      number, unit, first, header[first].class, header[first].state);
		return NULL;
	}
	for (uint32_t i = first; i < first + s.units; i++)
		if (page->span[i])
			/* some of its units belonged to another span: left for the next walk */
			return NULL;
	span = malloc(sizeof(*span));
	s.mark = calloc(s.slots, 1);
	if (!span || !s.mark) {
		free(span);
		free(s.mark);
		return NULL;
	}
	*span = s;
	for (uint32_t i = first; i < first + s.units; i++)
		page->span[i] = span;
	w->sums->slots += s.slots;
	w->sums->draining += s.head->state == XKV_SPAN_DRAINING;
	return span;
}

/* The tail of a page, and how many pages it has.  -ENOENT: there is none, or none any more. */
static int tail_open(const struct walk *w, uint32_t number, uint32_t *pages)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info), id;
	int fd;

	if (bpf_map_lookup_elem(w->fd[TAILS], &number, &id))
		return -errno;
	fd = bpf_map_get_fd_by_id(id);
	if (fd < 0 || bpf_obj_get_info_by_fd(fd, &info, &len))
		return -errno;
	*pages = info.max_entries;
	return fd;
}

/* Maps a page with its tail behind it. */
static int map_whole(const struct walk *w, uint32_t number, int fd, struct page *page)
{
	int tail_fd = tail_open(w, number, &page->tail), err;
	void *at;

	if (tail_fd < 0)
		return tail_fd;
	at = page_map(fd, XKV_PAGE_BYTES, tail_fd, (size_t)page->tail * XKV_PAGE_BYTES, PROT_READ);
	err = -errno;
	close(tail_fd);
	if (at == MAP_FAILED)
		return err;
	munmap((void *)page->base, XKV_PAGE_BYTES);
	page->base = at;
	return 0;
}

static int map_at(const struct walk *w, uint32_t number, int fd, struct page *page)
{
	void *at = page_map(fd, XKV_PAGE_BYTES, -1, 0, PROT_READ);

	if (at == MAP_FAILED)
		return -errno;
	page->base = at;
	return ((const struct xkv_page *)at)->huge ? map_whole(w, number, fd, page) : 0;
}

/* Maps page `number`, which is the map `id`. */
static int map_page(struct walk *w, uint32_t number, uint32_t id)
{
	struct page *page = calloc(1, sizeof(*page));
	int fd = bpf_map_get_fd_by_id(id), ret;

	if (!page || fd < 0) {
		ret = !page ? -ENOMEM : errno == ENOENT ? 0 : -errno; /* 0: just removed */
		free(page);
		return ret;
	}
	ret = map_at(w, number, fd, page);
	close(fd);
	if (ret) {
		free(page);
		return ret == -ENOENT ? 0 : ret; /* it is just being made, or removed */
	}
	w->page[number] = page;
	w->sums->pages++;
	if (((const struct xkv_page *)page->base)->magic != XKV_PAGE_MAGIC)
		FOUND("page %u: its header is not that of a page", number);
	for (uint32_t unit = 1; unit < XKV_UNITS; unit++)
		span_of(w, number, unit);
	return 0;
}

static int map_pages(struct walk *w)
{
	uint32_t id[XKV_PAGES_MAX];
	int ret = page_ids(w->fd[PAGES], id, XKV_PAGES_MAX);

	for (uint32_t number = 0; !ret && number < XKV_PAGES_MAX; number++)
		if (id[number])
			ret = map_page(w, number, id[number]);
	return ret;
}

/* From the last unit on: a span is freed at its first unit, after its other units were visited. */
static void unmap_page(struct page *page)
{
	for (uint32_t unit = XKV_UNITS - 1; unit; unit--) {
		struct span *span = page->span[unit];

		if (!span || span->first != unit)
			continue;
		free(span->mark);
		free(span);
	}
	munmap((void *)page->base, (1 + (size_t)page->tail) * XKV_PAGE_BYTES);
	free(page);
}

static void unmap_pages(struct walk *w)
{
	for (uint32_t number = 0; number < XKV_PAGES_MAX; number++)
		if (w->page[number])
			unmap_page(w->page[number]);
}

/* ---- slots --------------------------------------------------------------- */

/* The slot of a reference and its mark; NULL if no slot begins there. */
static const struct xkv_slot *slot_at(struct walk *w, uint64_t ref, uint8_t **mark)
{
	uint64_t number = XKV_REF_PAGE(ref), offset = XKV_REF_OFFSET(ref), inside;
	const struct page *page = number < XKV_PAGES_MAX ? w->page[number] : NULL;
	struct span *s;

	if (!page || ref & ~XKV_REF_MASK)
		return NULL;
	s = span_of(w, (uint32_t)number, (uint32_t)(offset / XKV_UNIT_BYTES));
	if (!s)
		return NULL;
	inside = offset - (uint64_t)s->first * XKV_UNIT_BYTES;
	if (inside % s->slot_bytes || inside / s->slot_bytes >= s->slots)
		return NULL;
	*mark = &s->mark[inside / s->slot_bytes];
	return (const struct xkv_slot *)(page->base + offset);
}

/* The span of a valid reference. */
static const struct span *span_of_ref(struct walk *w, uint64_t ref)
{
	return w->page[XKV_REF_PAGE(ref)]->span[XKV_REF_OFFSET(ref) / XKV_UNIT_BYTES];
}

/* ---- index --------------------------------------------------------------- */

/* A consistent copy of a bucket and its chain. */
struct chain {
	uint64_t number;
	uint64_t head;
	unsigned int entries, buckets;
	uint64_t entry[CHAIN_KEYS];
	uint64_t bucket[XKV_CHAIN_MAX + 1]; /* references, one more than allowed */
	/* keys that were found */
	unsigned int keys;
	uint64_t hash[CHAIN_KEYS];
	const struct xkv_slot *slot[CHAIN_KEYS];
};

static void chain_take(struct chain *c, const struct xkv_bucket *b)
{
	for (int way = 0; way < XKV_WAYS; way++) {
		c->entry[c->entries] = load(&b->entry[way]);
		c->entries += c->entry[c->entries] != 0;
	}
}

/* Reads the references of a bucket.  False: it was locked, or its chain changed meanwhile. */
static bool chain_read(struct walk *w, struct chain *c)
{
	const struct xkv_bucket *home = &w->index[c->number];
	const struct xkv_slot *slot;
	uint64_t next;
	uint8_t *mark;

	c->entries = c->buckets = 0;
	c->head = load(&home->head);
	chain_take(c, home);
	for (next = c->head & XKV_REF_MASK; next && c->buckets <= XKV_CHAIN_MAX;) {
		c->bucket[c->buckets++] = next;
		slot = slot_at(w, next, &mark);
		if (!slot || c->buckets > XKV_CHAIN_MAX)
			break;
		chain_take(c, &((const struct xkv_chain *)slot)->bucket);
		next = load(&((const struct xkv_chain *)slot)->bucket.head) & XKV_REF_MASK;
	}
	return !(c->head & XKV_BUCKET_LOCK) && !((load(&home->head) ^ c->head) & ~XKV_REF_MASK);
}

static void chain_read_still(struct walk *w, struct chain *c)
{
	bool still = false;

	for (int i = 0; i < STILL_TRIES && !still; i++) {
		still = chain_read(w, c);
		if (!still)
			sched_yield();
	}
	w->sums->unread += !still;
	if (c->head & XKV_BUCKET_LOCK)
		FOUND("bucket %" PRIu64 " is locked (head %#" PRIx64 ")", c->number, c->head);
}

static bool bucket_is_empty(const struct xkv_bucket *b)
{
	static const uint64_t none[XKV_WAYS];

	return !memcmp(b->entry, none, sizeof(none));
}

static void check_chain_bucket(struct walk *w, struct chain *c, uint64_t ref)
{
	const struct xkv_chain *chain;
	const struct xkv_slot *slot;
	const char *why = NULL;
	uint8_t *mark;

	slot = slot_at(w, ref, &mark);
	chain = (const struct xkv_chain *)slot;
	w->sums->unread += !slot; /* perhaps in a page that was added after the pages were read */
	if (!slot)
		why = "where no slot starts";
	else if (*mark != UNSEEN)
		why = holder[*mark];
	else if (slot->key_len != XKV_KEY_CHAIN)
		why = "which is no chain bucket";
	else if (!(load(&slot->seq) & 1))
		why = "which is live";
	else if (slot->class != span_of_ref(w, ref)->class ||
		 w->classes[slot->class].slot_bytes < sizeof(*chain))
		why = "which has the wrong class";
	else if (slot->home != c->number)
		why = "which belongs to another bucket";
	else if (chain->bucket.head & ~XKV_REF_MASK)
		why = "whose head is not only a reference";
	else if (bucket_is_empty(&chain->bucket))
		why = "which is empty";
	if (why)
		FOUND("bucket %" PRIu64 " (head %#" PRIx64 ") overflows into slot %#" PRIx64
		      ", %s%s",
		      c->number, c->head, ref,
		      slot && *mark != UNSEEN ? "which is met before in " : "", why);
	else
		*mark = CHAIN;
	w->sums->chain++;
}

static uint64_t hash_of(struct walk *w, const struct xkv_slot *slot, uint32_t key_len)
{
	return hash_key(slot + 1, key_len, slot->db, &w->secrets->hash);
}

static bool padded_with_zeros(const uint8_t *at, size_t len)
{
	for (; len & 7; len++)
		if (at[len])
			return false;
	return true;
}

/* Was the key found in this chain before? */
static bool key_is_double(struct chain *c, const struct xkv_slot *slot, uint64_t hash)
{
	for (unsigned int i = 0; i < c->keys; i++)
		if (c->hash[i] == hash && c->slot[i]->id == slot->id &&
		    !memcmp(c->slot[i] + 1, slot + 1, slot->key_len))
			return true;
	c->hash[c->keys] = hash;
	c->slot[c->keys++] = slot;
	return false;
}

/* Does the value begin with the head of a long key? */
static bool has_long_key(const uint8_t *stored, uint32_t value_len)
{
	const struct xkv_long_head *head = (const void *)(stored + XKV_PADDED(XKV_KEY_LONG));
	uint32_t key_len = value_len < sizeof(*head) ? 1 : le32toh(head->key_len);

	return xkv_is_long(key_len) && key_len <= XKV_LONG_KEY_MAX &&
	       xkv_long_head_bytes(key_len) <= value_len;
}

/* NULL if the slot holds a consistent entry that belongs to this bucket, else the error. */
static const char *entry_error(struct walk *w, struct chain *c, uint64_t entry,
			       const struct xkv_slot *slot)
{
	const struct span *span = span_of_ref(w, entry & XKV_REF_MASK);
	uint32_t value_len = xkv_value_len(slot), key_len = slot->key_len, class = slot->class;
	size_t need = XKV_SLOT_NEED(key_len, (size_t)value_len);
	const uint8_t *key = (const uint8_t *)(slot + 1);
	uint64_t hash, fingerprint;

	if (load(&slot->seq) & 1)
		return "is locked or free";
	if (!load(&slot->seq)) /* never drawn: a write to the slot before it ran past its end */
		return "has version 0";
	if (class != span->class)
		return "has the wrong class";
	if (!key_len || key_len > XKV_KEY_LONG || value_len > XKV_STORED_MAX ||
	    need > span->slot_bytes || xkv_tail_pages(xkv_units(need)) != span->tail)
		return "has lengths that do not fit its class";
	if (key_len == XKV_KEY_LONG && !has_long_key(key, value_len))
		return "has no head with its long key";
	if (!padded_with_zeros(key, key_len) ||
	    !padded_with_zeros(key + XKV_PADDED(key_len), value_len))
		return "is not padded with zeros";
	hash = hash_of(w, slot, key_len);
	fingerprint = hash & w->cfg->fingerprint_mask;
	if ((fingerprint & w->cfg->bucket_mask) != c->number)
		return "belongs to another bucket";
	if (XKV_TAG(fingerprint ^ entry))
		return "has another tag";
	if (key_is_double(c, slot, hash))
		return "has a key that stands in this bucket twice";
	return NULL;
}

static void check_entry(struct walk *w, struct chain *c, uint64_t entry)
{
	uint64_t ref = entry & XKV_REF_MASK, seq, expire_ms;
	const struct xkv_slot *slot;
	const char *why;
	uint8_t *mark;

	w->sums->keys++;
	slot = slot_at(w, ref, &mark);
	if (!slot) {
		FOUND("bucket %" PRIu64 ": entry %#" PRIx64 " refers to where no slot starts",
		      c->number, entry);
		return;
	}
	seq = load(&slot->seq);
	if (*mark != UNSEEN) {
		FOUND("bucket %" PRIu64 ": entry %#" PRIx64 " (seq %" PRIu64
		      ") refers to a slot that %s has already",
		      c->number, entry, seq, holder[*mark]);
		return;
	}
	*mark = INDEXED;
	w->keys_of[slot->db]++;
	expire_ms = slot->expire_ms;
	w->sums->expired += expire_ms && expire_ms <= w->now_ms;
	why = entry_error(w, c, entry, slot);
	if (why)
		FOUND("bucket %" PRIu64 ": entry %#" PRIx64 " (seq %" PRIu64 ") %s", c->number,
		      entry, seq, why);
}

static void walk_index(struct walk *w)
{
	struct chain c;

	for (c.number = 0; c.number < w->buckets; c.number++) {
		c.keys = 0;
		chain_read_still(w, &c);
		if (c.buckets > XKV_CHAIN_MAX)
			FOUND("the chain of bucket %" PRIu64 " (head %#" PRIx64 ") has no end",
			      c.number, c.head);
		for (unsigned int i = 0; i < c.buckets && i < XKV_CHAIN_MAX; i++)
			check_chain_bucket(w, &c, c.bucket[i]);
		for (unsigned int i = 0; i < c.entries; i++)
			check_entry(w, &c, c.entry[i]);
		if (c.buckets > w->sums->longest)
			w->sums->longest = c.buckets;
	}
}

/* ---- free lists ---------------------------------------------------------- */

/* How often a list changed between two reads of its head. */
static uint64_t changes(uint64_t from, uint64_t to)
{
	return ((to >> XKV_REF_BITS) - (from >> XKV_REF_BITS)) & ((1 << (64 - XKV_REF_BITS)) - 1);
}

#define STACKS (2 * XKV_LISTS)

static const __u64 *stack_of(const struct xkv_class *c, unsigned int i)
{
	return &c->list[i / 2].head[i % 2];
}

/* Reads heads and count of a class consistently.  False: they changed at each try. */
static bool class_read(const struct xkv_class *c, uint64_t head[STACKS], uint64_t *count)
{
	bool still = false;

	for (int try = 0; try < STILL_TRIES && !still; try++) {
		for (unsigned int i = 0; i < STACKS; i++)
			head[i] = load(stack_of(c, i));
		*count = xkv_class_free(c);
		still = true;
		for (unsigned int i = 0; i < STACKS; i++)
			still = still && load(stack_of(c, i)) == head[i];
	}
	return still;
}

/* NULL if a slot that is in a free list is free, else the error. */
static const char *free_error(struct walk *w, uint64_t ref, const struct xkv_slot *slot,
			      uint32_t class, uint8_t mark)
{
	static const char *const has_it[] = { NULL, "index has it", "a chain has it",
					      "a free list has it already", "xkvd has it" };

	if (mark != UNSEEN && !(mark == CHAIN && !slot->key_len)) /* was a chain bucket until now */
		return has_it[mark];
	if (slot->class & XKV_CLASS_ORPHAN)
		return "it is an orphan";
	if (slot->class != class || span_of_ref(w, ref)->class != class)
		return "its class is another";
	if (!(load(&slot->seq) & 1) || slot->key_len)
		return "it is in use";
	return NULL;
}

enum taken { TAKEN, TOO_FAST, BROKEN };

/*
 * Appends the slots of a list to `ref`, which has *n elements.  A slot was still in the list when
 * its `next` was read if the list changed at most as often as there are slots above it; else
 * TOO_FAST.
 */
static enum taken list_read(struct walk *w, const __u64 *list, uint64_t head, uint32_t class,
			    uint64_t *ref, uint64_t *n)
{
	uint64_t first = *n, next;
	const struct xkv_slot *slot;
	uint8_t *mark;

	for (uint64_t at = head & XKV_REF_MASK; at; at = next) {
		slot = slot_at(w, at, &mark);
		if (!slot || *n == w->list_room) {
			FOUND("class %u: a free list %s %#" PRIx64, class,
			      slot ? "has no end: it comes back to" : "has no slot at", at);
			return BROKEN;
		}
		next = load(&slot->next) & XKV_REF_MASK;
		if (changes(head, load(list)) > *n - first)
			return TOO_FAST;
		ref[(*n)++] = at;
	}
	return TAKEN;
}

static void check_free(struct walk *w, uint64_t ref, uint32_t class)
{
	const struct xkv_slot *slot;
	const char *why;
	uint8_t *mark;

	slot = slot_at(w, ref, &mark);
	why = free_error(w, ref, slot, class, *mark);
	if (why)
		FOUND("slot %#" PRIx64 " (seq %" PRIu64 ") is in a free list of class %u, but %s",
		      ref, (uint64_t)load(&slot->seq), class, why);
	if (*mark == UNSEEN || *mark == CHAIN)
		*mark = FREE;
	w->sums->free++;
}

/* Checks the lists of a class, if they can be read consistently. */
static enum taken class_take(struct walk *w, uint32_t class, uint64_t *ref)
{
	const struct xkv_class *c = &w->classes[class];
	uint64_t head[STACKS], count, n = 0;
	enum taken taken = TAKEN;

	if (!class_read(c, head, &count))
		return TOO_FAST;
	for (unsigned int i = 0; taken == TAKEN && i < STACKS; i++)
		taken = list_read(w, stack_of(c, i), head[i], class, ref, &n);
	if (taken != TAKEN)
		return taken;
	for (uint64_t i = 0; i < n; i++)
		check_free(w, ref[i], class);
	if (n != count)
		FOUND("class %u: its lists have %" PRId64 " slots more than it has counted", class,
		      (int64_t)(n - count));
	return TAKEN;
}

static int walk_lists(struct walk *w)
{
	uint64_t *ref = calloc(w->sums->slots + 1, sizeof(*ref));
	enum taken taken;

	w->list_room = w->sums->slots;
	if (!ref)
		return -ENOMEM;
	for (uint32_t class = 0; class < XKV_CLASSES; class ++) {
		taken = TOO_FAST;
		for (int i = 0; taken == TOO_FAST && i < LIST_TRIES; i++)
			taken = class_take(w, class, ref);
		w->torn[class] = taken != TAKEN;
		w->sums->unread += taken != TAKEN;
	}
	free(ref);
	return 0;
}

/* ---- slots that are in neither index nor lists --------------------------- */

static void found_held(struct walk *w, uint64_t ref, const char *what, int number)
{
	uint8_t *mark;

	if (!ref)
		return;
	if (!slot_at(w, ref, &mark))
		FOUND("%s %d of xkvd holds %#" PRIx64 ", where no slot starts", what, number, ref);
	else if (*mark != UNSEEN)
		FOUND("%s %d of xkvd holds slot %#" PRIx64 ", which %s has already", what, number,
		      ref, holder[*mark]);
	else
		*mark = HELD;
	w->sums->held++;
}

/* Slots that are free when records of the change feed have been read. */
static void walk_feed(struct walk *w)
{
	const struct xkv_feed *feed = w->at[FEED];
	const struct xkv_feed_record *rec;
	uint64_t at = feed ? load(&feed->tail) : 0, head = feed ? load(&feed->head) : 0;
	uint32_t bytes;

	for (; at < head; at += bytes) {
		rec = (const void *)(feed->data + (at & (XKV_FEED_BYTES - 1)));
		bytes = __atomic_load_n(&rec->bytes, __ATOMIC_ACQUIRE);
		if (bytes < sizeof(*rec) || bytes > head - at)
			return; /* it is being written, or was read meanwhile */
		found_held(w, load(&rec->frees), "record", 0);
	}
}

static void walk_keys(struct walk *w, const struct xkv_txn_key *key, int first, int count)
{
	for (int i = 0; i < count; i++)
		found_held(w, load(&key[i].prefilled), "transaction key", first + i);
}

/* The keys in a map of xkv_txn_more.  False: there is none, or it was just removed. */
static bool walk_chunk(struct walk *w, uint32_t number, int first)
{
	const struct xkv_txn_chunk *chunk;
	uint32_t id;
	int fd = -1;

	if (w->fd[TXN_MORE] >= 0 && !bpf_map_lookup_elem(w->fd[TXN_MORE], &number, &id))
		fd = bpf_map_get_fd_by_id(id);
	if (fd < 0)
		return false;
	chunk = mmap(NULL, sizeof(*chunk), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (chunk == MAP_FAILED)
		return false;
	walk_keys(w, chunk->key, first, XKV_TXN_CHUNK);
	munmap((void *)chunk, sizeof(*chunk));
	return true;
}

/*
 * Slots that an xkvd has taken and not yet published are recorded in its requests, and in the keys
 * of its transaction.
 */
static void walk_held(struct walk *w)
{
	const struct xkv_request *request = w->at[BATCH];
	const struct xkv_txn_key *key = w->at[TXN];
	int i, at;

	for (i = 0; i < XKV_CONTEXTS * XKV_CONTEXT_REQUESTS; i++)
		found_held(w, load(&request[i].prefilled), "request", i);
	if (key)
		walk_keys(w, key, 0, XKV_TXN_FIRST);
	for (i = 0, at = XKV_TXN_FIRST; i < XKV_TXN_CHUNKS; i++, at += XKV_TXN_CHUNK)
		if (!walk_chunk(w, i, at))
			break;
}

/* Checks a slot that was found nowhere.  True: it is parked. */
static bool check_unseen(struct walk *w, uint64_t ref, const struct span *s,
			 const struct xkv_slot *slot)
{
	uint64_t seq = load(&slot->seq), home;

	if ((seq & 1) && (slot->class & XKV_CLASS_ORPHAN)) {
		w->sums->orphans++;
		return false;
	}
	if (!(seq & 1)) {
		FOUND("slot %#" PRIx64 " (seq %" PRIu64 ") is live, but not in index", ref, seq);
		return false;
	}
	if (slot->key_len == XKV_KEY_CHAIN) {
		home = slot->home;
		FOUND("slot %#" PRIx64 " is a chain bucket of bucket %" PRIu64 " (head %#" PRIx64
		      "), but not in its chain",
		      ref, home, home < w->buckets ? load(&w->index[home].head) : 0);
		return false;
	}
	if (slot->key_len == XKV_KEY_PARKED)
		return true;
	if (s->head->state != XKV_SPAN_NEW && !w->torn[s->class])
		FOUND("slot %#" PRIx64 " (seq %" PRIu64
		      ") is lost: in use by nobody, and in no list",
		      ref, seq);
	return false;
}

/*
 * Does the number of parked slots match the span's counter?  When draining was given up, parked
 * slots are freed one by one, and the counter is set to 0 only at the end.
 */
static bool parked_fits(const struct span *s, uint64_t parked)
{
	uint64_t counted = __atomic_load_n(&s->head->parked, __ATOMIC_ACQUIRE);

	return s->head->state == XKV_SPAN_LINKED ? parked <= counted : parked == counted;
}

static void walk_span(struct walk *w, uint32_t number, const struct span *s)
{
	const char *base = w->page[number]->base;
	uint64_t parked = 0;

	if (s->head->state == XKV_SPAN_NEW)
		FOUND("page %u: the span at unit %u (slots of %u bytes) was made, but its slots "
		      "are in no list",
		      number, s->first, s->slot_bytes);
	for (uint32_t i = 0; i < s->slots; i++) {
		uint32_t offset = s->first * XKV_UNIT_BYTES + i * s->slot_bytes;

		if (s->mark[i] == UNSEEN)
			parked += check_unseen(w, XKV_REF(number, offset), s,
					       (const struct xkv_slot *)(base + offset));
	}
	w->sums->parked += parked;
	if (!w->torn[s->class] && !parked_fits(s, parked))
		FOUND("page %u: %" PRIu64 " slots of the span at unit %u are parked, but it has "
		      "counted %u",
		      number, parked, s->first, s->head->parked);
}

static void walk_page(struct walk *w, uint32_t number)
{
	for (uint32_t unit = 1; unit < XKV_UNITS; unit++) {
		const struct span *s = w->page[number]->span[unit];

		if (s && s->first == unit)
			walk_span(w, number, s);
	}
}

/* ---- dedup cache --------------------------------------------------------- */

static bool same_slot(const struct xkv_dedup *a, const struct xkv_dedup *b)
{
	return a->session && a->session == b->session && !((a->id ^ b->id) % XKV_DEDUP_SLOTS);
}

static void walk_dedup(struct walk *w)
{
	const struct xkv_dedup_set *set = w->at[DEDUP];

	for (unsigned int i = 0; i < XKV_DEDUP_SETS * XKV_DEDUP_WAYS; i++) {
		const struct xkv_dedup *way = set[i / XKV_DEDUP_WAYS].way;
		const struct xkv_dedup *o = &way[i % XKV_DEDUP_WAYS];

		w->sums->sessions += o->session != 0;
		if (load(&o->lock) & 1)
			FOUND("repetition %u is locked (%" PRIu64 " times)", i, (uint64_t)o->lock);
		for (const struct xkv_dedup *other = way; other < o; other++)
			if (same_slot(o, other))
				FOUND("repetition %u stands there twice (id %" PRIu64 ")", i,
				      (uint64_t)o->id);
	}
}

/* ---- counters ------------------------------------------------------------ */

/* Keys and chain buckets computed from the counters, and how often either number has changed. */
struct counted {
	uint64_t keys, chain, changes;
};

static int read_counters(struct walk *w, struct counted *sum)
{
	int cpus = libbpf_num_possible_cpus(), ret = 0;
	struct xkv_tally *each = cpus > 0 ? calloc((size_t)cpus, sizeof(*each)) : NULL;

	if (!each)
		return -ENOMEM;
	*sum = (struct counted){};
	for (uint32_t frontend = 0; !ret && frontend < XKV_FRONTENDS; frontend++) {
		ret = bpf_map_lookup_elem(w->fd[TALLY], &frontend, each) ? -errno : 0;
		for (int i = 0; !ret && i < cpus; i++) {
			const struct xkv_tally *c = &each[i];
			uint64_t out = c->deletes + c->expires + c->evictions;

			sum->keys += c->inserts - out;
			sum->chain += c->chained - c->unchained;
			sum->changes += c->inserts + out + c->chained + c->unchained;
		}
	}
	free(each);
	return ret;
}

/* Compares keys with the counters (from which DBSIZE is computed), if neither changed meanwhile. */
static int check_counters(struct walk *w, const struct counted *before)
{
	struct counted after;
	int ret = read_counters(w, &after);

	w->sums->counted = !ret && before->changes == after.changes;
	if (!w->sums->counted)
		return ret;
	if (after.keys != w->sums->keys)
		FOUND("the counters say %" PRId64 " keys, index has %" PRIu64, (int64_t)after.keys,
		      w->sums->keys);
	for (unsigned int db = 1; db < XKV_DATABASES; db++)
		if (w->databases[db].keys != w->keys_of[db])
			FOUND("database %u (its stored number) is said to have %" PRIu64
			      " keys, index has %" PRIu64,
			      db, (uint64_t)w->databases[db].keys, w->keys_of[db]);
	if (after.chain != w->sums->chain)
		FOUND("the counters say %" PRId64 " chain buckets, index has %" PRIu64,
		      (int64_t)after.chain, w->sums->chain);
	return 0;
}

/* ---- the whole walk ------------------------------------------------------ */

static int walk_all(struct walk *w)
{
	struct counted before;
	int ret = read_counters(w, &before);

	if (!ret)
		ret = map_pages(w);
	if (ret)
		return ret;
	walk_index(w);
	ret = walk_lists(w);
	if (ret)
		return ret;
	walk_held(w);
	walk_feed(w);
	for (uint32_t number = 0; number < XKV_PAGES_MAX; number++)
		if (w->page[number])
			walk_page(w, number);
	walk_dedup(w);
	return check_counters(w, &before);
}

int check_walk(const char *pin_dir, struct check_sums *sums, struct findings *f, FILE *report)
{
	struct walk *w = calloc(1, sizeof(*w));
	struct timespec now;
	int ret;

	if (!w)
		return -ENOMEM;
	*sums = (struct check_sums){};
	w->report = report;
	w->findings = f;
	w->sums = sums;
	clock_gettime(CLOCK_REALTIME, &now);
	w->now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	ret = open_maps(w, pin_dir);
	if (!ret) {
		ret = walk_all(w);
		if (ret)
			fprintf(report, "cannot walk the store in %s: %s\n", pin_dir,
				strerror(-ret));
	}
	unmap_pages(w);
	close_maps(w);
	free(w);
	return ret;
}

// SPDX-License-Identifier: BSD-2-Clause
#include "older.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>

#include "kernel/fields.h"
#include "store/page_ids.h"
#include "store/page_map.h"
#include "util/clock.h"

#define WAYS_MAX     32
#define BUCKET_KEYS  ((XKV_CHAIN_MAX + 1) * WAYS_MAX)
#define ONCE_TRIES   1000
#define READ_WAIT_MS 2000 /* for a writer that was preempted while it held a lock */

/* Where the fields are in the older layout. */
struct places {
	struct field head, entry;		  /* of a bucket */
	struct field seq, expire_ms, key_len, db; /* of a slot */
	struct field access, value_len;
	struct field chain; /* of a slot: the chain bucket in it */
	struct field huge;  /* of a page */
	struct field units;
	struct field bucket_mask, fingerprint_mask, read_only, held_until_ns; /* of the config */
	uint32_t bucket_bytes, slot_bytes, page_bytes, unit_bytes, guard_bytes, offset_bits;
	uint32_t ways;
};

struct page {
	char *at;
	size_t bytes; /* with its tail */
	uint32_t id;
};

struct older {
	const struct bpf *bpf;
	const struct btf *ours;
	struct btf *btf;
	struct places p;
	struct xkv_secrets secrets;
	char *index, *config;
	size_t index_bytes, config_bytes;
	uint32_t buckets;
	struct page *page; /* by number */
	uint32_t pages;
	uint64_t key[XKV_HASH_WORDS]; /* of the entry that is being reported */
	char *value;
	size_t value_room;
	uint64_t *digest; /* of the versions in each bucket, when it was reported; 0 = none */
	/* of the bucket that was read last */
	unsigned int entries;
	uint64_t entry[BUCKET_KEYS];
};

/* ---- the description ------------------------------------------------------- */

static bool find_places(const struct btf *btf, struct places *p)
{
	const struct {
		const char *type, *name;
		struct field *field;
		uint32_t bytes; /* 0 = any */
	} wanted[] = {
		{ "xkv_bucket", "head", &p->head, 8 },
		{ "xkv_bucket", "entry", &p->entry, 0 },
		{ "xkv_slot", "seq", &p->seq, 8 },
		{ "xkv_slot", "expire_ms", &p->expire_ms, 8 },
		{ "xkv_slot", "key_len", &p->key_len, 1 },
		{ "xkv_slot", "db", &p->db, 1 },
		{ "xkv_slot", "access", &p->access, 2 },
		{ "xkv_slot", "value_len", &p->value_len, 4 },
		{ "xkv_chain", "bucket", &p->chain, 0 },
		{ "xkv_page", "huge", &p->huge, 4 },
		{ "xkv_page", "unit", &p->units, 0 },
		{ "xkv_config", "bucket_mask", &p->bucket_mask, 8 },
		{ "xkv_config", "fingerprint_mask", &p->fingerprint_mask, 8 },
		{ "xkv_config", "read_only", &p->read_only, 1 },
		{ "xkv_config", "held_until_ns", &p->held_until_ns, 8 },
	};

	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
		if (fields_find(btf, wanted[i].type, wanted[i].name, wanted[i].field) ||
		    (wanted[i].bytes && wanted[i].field->bytes != wanted[i].bytes))
			return false;
	p->bucket_bytes = fields_size(btf, "xkv_bucket");
	p->slot_bytes = fields_size(btf, "xkv_slot");
	p->page_bytes = fields_size(btf, "xkv_page_content");
	p->guard_bytes = fields_size(btf, "xkv_chain") - p->slot_bytes - p->bucket_bytes;
	p->ways = p->entry.count;
	if (!p->bucket_bytes || !p->slot_bytes || !p->page_bytes || !p->units.count ||
	    p->ways > WAYS_MAX || p->page_bytes & (p->page_bytes - 1))
		return false;
	p->unit_bytes = p->page_bytes / p->units.count;
	p->offset_bits = (uint32_t)__builtin_ctz(p->page_bytes) - 3;
	return p->value_len.bits && p->value_len.bits <= 32 && p->slot_bytes % 8 == 0;
}

/* Do the older dedup cache and configuration fit our maps? */
static bool fits_ours(const struct older *o)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);

	return !bpf_obj_get_info_by_fd(o->bpf->older[BPF_ONCE], &info, &len) &&
	       info.max_entries == XKV_DEDUP_SETS &&
	       !fields_copy(o->btf, NULL, o->ours, NULL, "xkv_dedup_set") &&
	       !fields_copy(o->btf, NULL, o->ours, NULL, "xkv_secrets");
}

/* ---- opening --------------------------------------------------------------- */

/* Maps all elements of an array.  NULL: it cannot be mapped. */
static char *map_array(int fd, uint32_t value_bytes, size_t *bytes, uint32_t *elements)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info);
	void *at;

	if (bpf_obj_get_info_by_fd(fd, &info, &len) || info.type != BPF_MAP_TYPE_ARRAY ||
	    info.value_size != value_bytes)
		return NULL;
	*elements = info.max_entries;
	*bytes = (size_t)info.max_entries * ((info.value_size + 7) & ~7U);
	at = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return at == MAP_FAILED ? NULL : at;
}

/* The tail of a huge page, mapped behind it. */
static bool map_tail(const struct older *o, uint32_t number, struct page *page, int page_fd)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info), id;
	char *base = MAP_FAILED;
	size_t bytes = 0;
	int fd = -1;

	if (!bpf_map_lookup_elem(o->bpf->older[BPF_TAILS], &number, &id))
		fd = bpf_map_get_fd_by_id(id);
	if (fd >= 0 && !bpf_obj_get_info_by_fd(fd, &info, &len)) {
		bytes = (size_t)info.max_entries * info.value_size;
		base = page_map(page_fd, page->bytes, fd, bytes, PROT_READ);
	}
	if (fd >= 0)
		close(fd);
	if (base == MAP_FAILED)
		return false;
	munmap(page->at, page->bytes);
	*page = (struct page){ base, page->bytes + bytes, page->id };
	return true;
}

static void unmap_page(struct page *page)
{
	if (page->at)
		munmap(page->at, page->bytes);
	*page = (struct page){ 0 };
}

/* False: there is no such page. */
static bool map_page(struct older *o, uint32_t number, uint32_t id)
{
	struct page *page = &o->page[number];
	int fd = bpf_map_get_fd_by_id(id);
	uint32_t elements, huge;
	bool whole = true;

	if (fd < 0)
		return false;
	page->at = map_array(fd, o->p.page_bytes, &page->bytes, &elements);
	page->id = id;
	if (page->at) {
		memcpy(&huge, page->at + o->p.huge.at, sizeof(huge));
		whole = !huge || map_tail(o, number, page, fd);
	}
	close(fd);
	if (!whole)
		unmap_page(page);
	return page->at;
}

/* Maps the page that has this number now.  False: there is none. */
static bool look_up_page(struct older *o, uint32_t number)
{
	uint32_t id;

	if (bpf_map_lookup_elem(o->bpf->older[BPF_PAGES], &number, &id)) {
		unmap_page(&o->page[number]);
		return false;
	}
	if (o->page[number].at && o->page[number].id == id)
		return true;
	unmap_page(&o->page[number]);
	return map_page(o, number, id);
}

static int map_pages(struct older *o)
{
	struct bpf_map_info info = {};
	__u32 len = sizeof(info), *id;
	int ret;

	if (bpf_obj_get_info_by_fd(o->bpf->older[BPF_PAGES], &info, &len))
		return -errno;
	id = calloc(info.max_entries, sizeof(*id));
	o->page = calloc(info.max_entries, sizeof(*o->page));
	ret = id && o->page ? 0 : -ENOMEM;
	if (!ret) {
		o->pages = info.max_entries;
		ret = page_ids(o->bpf->older[BPF_PAGES], id, o->pages);
	}
	for (uint32_t number = 0; !ret && number < o->pages; number++)
		if (id[number])
			map_page(o, number, id[number]); /* fails if it was just removed */
	free(id);
	return ret;
}

static int open_all(struct older *o)
{
	uint32_t one;

	o->btf = fields_of(o->bpf->older[BPF_CONFIG]);
	if (!o->btf || !find_places(o->btf, &o->p) || !fits_ours(o))
		return -EPROTO;
	o->config = map_array(o->bpf->older[BPF_CONFIG], fields_size(o->btf, "xkv_config"),
			      &o->config_bytes, &one);
	o->index = map_array(o->bpf->older[BPF_INDEX], o->p.bucket_bytes, &o->index_bytes,
			     &o->buckets);
	if (!o->config || !o->index)
		return -EPROTO;
	o->digest = calloc(o->buckets, sizeof(*o->digest));
	return o->digest ? map_pages(o) : -ENOMEM;
}

struct older *older_open(const struct bpf *bpf, char *err, size_t err_len)
{
	struct older *o = calloc(1, sizeof(*o));
	int ret = -ENOMEM;

	if (o) {
		o->bpf = bpf;
		o->ours = bpf_object__btf(bpf->object);
		ret = open_all(o);
	}
	if (!ret)
		ret = older_secrets(o, &o->secrets);
	if (!ret)
		return o;
	older_close(o);
	snprintf(
		err, err_len,
		"the store has another layout and cannot be carried over: %s. Nothing was changed: "
		"start the version that made it again, `xkv save`, stop it, `xkvd --detach`, and "
		"start this one, which loads the snapshot",
		ret == -EPROTO ? "its maps do not say where things are, or have what this version "
				 "has no place for"
			       : strerror(-ret));
	return NULL;
}

void older_close(struct older *o)
{
	if (!o)
		return;
	for (uint32_t number = 0; number < o->pages; number++)
		unmap_page(&o->page[number]);
	if (o->index)
		munmap(o->index, o->index_bytes);
	if (o->config)
		munmap(o->config, o->config_bytes);
	btf__free(o->btf);
	free(o->page);
	free(o->digest);
	free(o->value);
	free(o);
}

uint64_t older_bytes(const struct older *o)
{
	uint64_t bytes = o->index_bytes;

	for (uint32_t number = 0; number < o->pages; number++)
		bytes += o->page[number].bytes;
	return bytes;
}

/* ---- words ----------------------------------------------------------------- */

static uint64_t load(const void *at)
{
	return __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
}

static uint64_t config_word(const struct older *o, const struct field *f)
{
	return load(o->config + f->at);
}

/* The slot of a reference, and its page as mapped now.  NULL: there is none. */
static const char *slot_at(const struct older *o, uint64_t ref, struct page *page)
{
	uint64_t number = (ref & XKV_REF_MASK) >> o->p.offset_bits;
	size_t offset = (ref & ((1ULL << o->p.offset_bits) - 1)) << 3;

	if (!(ref & XKV_REF_MASK) || number >= o->pages || offset < o->p.unit_bytes)
		return NULL;
	*page = o->page[number];
	return page->at && offset + o->p.slot_bytes + o->p.bucket_bytes <= page->bytes
		       ? page->at + offset
		       : NULL;
}

/* Maps the page of a reference again: its number may be that of another page by now. */
static void refresh(struct older *o, uint64_t ref)
{
	uint64_t number = (ref & XKV_REF_MASK) >> o->p.offset_bits;

	if (number < o->pages)
		look_up_page(o, (uint32_t)number);
}

static size_t value_len(const struct older *o, const char *slot, const struct page *page)
{
	uint32_t word, mask = (uint32_t)((1ULL << o->p.value_len.bits) - 1), len;

	memcpy(&word, slot + o->p.value_len.at, sizeof(word));
	len = word >> o->p.value_len.shift & mask;
	if (len != mask)
		return len;
	memcpy(&len, page->at + o->p.huge.at, sizeof(len));
	return page->bytes > o->p.page_bytes ? len : SIZE_MAX / 2;
}

/* ---- entries --------------------------------------------------------------- */

/* Reads the header and the key.  -EAGAIN: it is being changed. */
static int read_slot(struct older *o, uint64_t ref, struct carried *e)
{
	struct page page;
	const char *slot = slot_at(o, ref, &page), *key;
	size_t need;

	if (!slot)
		return -EAGAIN;
	e->version = load(slot + o->p.seq.at);
	memcpy(&e->expire_ms, slot + o->p.expire_ms.at, sizeof(e->expire_ms));
	memcpy(&e->key_len, slot + o->p.key_len.at, sizeof(e->key_len));
	memcpy(&e->db, slot + o->p.db.at, sizeof(e->db));
	memcpy(&e->access, slot + o->p.access.at, sizeof(e->access));
	e->value_len = value_len(o, slot, &page);
	e->value = NULL;
	need = o->p.slot_bytes + XKV_PADDED((size_t)e->key_len) + XKV_PADDED(e->value_len) +
	       o->p.guard_bytes;
	if (e->version & 1 || !e->key_len || e->key_len > XKV_KEY_LONG ||
	    need > (size_t)(page.at + page.bytes - slot))
		return -EAGAIN;
	key = slot + o->p.slot_bytes;
	memset(o->key, 0, sizeof(o->key));
	memcpy(o->key, key, e->key_len);
	e->key = o->key;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return load(slot + o->p.seq.at) == e->version ? 0 : -EAGAIN;
}

static uint64_t fingerprint_of(const struct older *o, const struct carried *e)
{
	return hash_key(e->key, e->key_len, e->db, &o->secrets.hash) &
	       config_word(o, &o->p.fingerprint_mask);
}

int older_value(struct older *o, struct carried *e, uint64_t ref)
{
	struct page page;
	const char *slot = slot_at(o, ref, &page);
	char *more;

	if (!slot)
		return -EAGAIN;
	if (o->value_room < e->value_len) {
		more = realloc(o->value, e->value_len);
		if (!more)
			return -ENOMEM;
		o->value = more;
		o->value_room = e->value_len;
	}
	if (e->value_len)
		memcpy(o->value, slot + o->p.slot_bytes + XKV_PADDED((size_t)e->key_len),
		       e->value_len);
	e->value = e->value_len ? o->value : "";
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return load(slot + o->p.seq.at) == e->version ? 0 : -EAGAIN;
}

/* ---- buckets --------------------------------------------------------------- */

static void read_entries(struct older *o, const char *bucket)
{
	for (uint32_t way = 0; way < o->p.ways && o->entries < BUCKET_KEYS; way++) {
		uint64_t entry = load(bucket + o->p.entry.at + way * sizeof(entry));

		if (entry)
			o->entry[o->entries++] = entry;
	}
}

static const char *home_of(const struct older *o, uint64_t number)
{
	return o->index + number * o->p.bucket_bytes;
}

/* Reads the references of a bucket and its chain.  False: it changed meanwhile. */
static bool read_bucket(struct older *o, uint64_t number)
{
	const char *home = home_of(o, number), *slot;
	uint64_t head = load(home + o->p.head.at), next = head & XKV_REF_MASK;
	struct page page;

	o->entries = 0;
	read_entries(o, home);
	for (int i = 0; next && i < XKV_CHAIN_MAX; i++) {
		slot = slot_at(o, next, &page);
		if (!slot) {
			refresh(o, next);
			return false;
		}
		read_entries(o, slot + o->p.chain.at);
		next = load(slot + o->p.chain.at + o->p.head.at) & XKV_REF_MASK;
	}
	return !((load(home + o->p.head.at) ^ head) & XKV_BUCKET_COUNT);
}

static bool has_changed(struct older *o, uint64_t number)
{
	uint64_t before[BUCKET_KEYS];
	unsigned int entries = o->entries;

	memcpy(before, o->entry, entries * sizeof(*before));
	return !read_bucket(o, number) || o->entries != entries ||
	       memcmp(before, o->entry, entries * sizeof(*before));
}

/* The digest of a bucket is the sum of these.  Versions are unique, so any change alters it. */
static uint64_t digest_of(uint64_t version)
{
	version *= 0x9e3779b97f4a7c15ULL;
	return version ^ version >> 32;
}

/* Reports the entry that `entry` refers to, if it belongs to this bucket. */
static int report(struct older *o, uint64_t number, uint64_t entry, older_fn *fn, void *arg,
		  uint64_t *digest)
{
	uint64_t mask = config_word(o, &o->p.bucket_mask), fingerprint;
	struct carried e;
	int ret = read_slot(o, entry, &e);

	if (ret) {
		refresh(o, entry);
		return ret;
	}
	fingerprint = fingerprint_of(o, &e);
	if ((fingerprint & mask) != number || XKV_TAG(fingerprint ^ entry))
		return -EAGAIN;
	*digest += digest_of(e.version);
	return fn(arg, &e, entry);
}

/* Has the bucket the same versions as when it was last reported? */
static bool is_known(struct older *o, uint64_t number)
{
	uint64_t digest = 0, version;
	struct page page;
	const char *slot;

	if (!o->digest[number] || !read_bucket(o, number))
		return false;
	for (unsigned int i = 0; i < o->entries; i++) {
		slot = slot_at(o, o->entry[i], &page);
		version = slot ? load(slot + o->p.seq.at) : 1;
		if (version & 1)
			return false;
		digest += digest_of(version);
	}
	return digest == o->digest[number] && !has_changed(o, number);
}

/* Reads the bucket again and again until nothing in it has changed meanwhile. */
static int walk_bucket(struct older *o, uint64_t number, older_fn *fn, void *arg)
{
	uint64_t until = 0, digest;
	bool again = !is_known(o, number);
	int ret;

	while (again) {
		digest = 0;
		again = !read_bucket(o, number);
		for (unsigned int i = 0; i < o->entries && !again; i++) {
			ret = report(o, number, o->entry[i], fn, arg, &digest);
			if (ret && ret != -EAGAIN)
				return ret;
			again = ret;
		}
		again = again || has_changed(o, number);
		o->digest[number] = again ? 0 : digest;
		if (!again)
			break;
		until = until ? until : monotonic_ms() + READ_WAIT_MS;
		if (monotonic_ms() > until)
			return -EBUSY;
		sched_yield();
	}
	return 0;
}

/* Has the CPU fetch the slots of a bucket's keys. */
static void prefetch(const struct older *o, uint64_t number)
{
	const char *home = home_of(o, number), *slot;
	struct page page;

	for (uint32_t way = 0; way < o->p.ways; way++) {
		slot = slot_at(o, load(home + o->p.entry.at + way * sizeof(uint64_t)), &page);
		if (slot)
			__builtin_prefetch(slot);
	}
}

int older_walk(struct older *o, older_fn *fn, void *arg, uint64_t *count)
{
	int ret = 0;

	for (uint64_t number = 0; !ret && number < o->buckets; number++) {
		if (number + 4 < o->buckets)
			prefetch(o, number + 4);
		ret = walk_bucket(o, number, fn, arg);
		*count += o->entries;
	}
	return ret;
}

bool older_has(struct older *o, const struct carried *key)
{
	uint64_t fingerprint = fingerprint_of(o, key);
	uint64_t number = fingerprint & config_word(o, &o->p.bucket_mask);
	uint64_t until = monotonic_ms() + READ_WAIT_MS;
	struct carried e;

	while (!read_bucket(o, number)) {
		if (monotonic_ms() > until)
			return true; /* the bucket is damaged: the next walk fails on it */
		sched_yield();
	}
	for (unsigned int i = 0; i < o->entries; i++) {
		if (XKV_TAG(o->entry[i] ^ fingerprint))
			continue;
		if (read_slot(o, o->entry[i], &e))
			return true; /* it is being changed: the next walk tells */
		if (e.key_len == key->key_len && e.db == key->db &&
		    !memcmp(e.key, key->key, e.key_len))
			return true;
	}
	return false;
}

/* ---- what is no entry ------------------------------------------------------ */

/* A field of the configuration, if it has this size. */
static bool setting(const struct older *o, const char *name, void *out, size_t bytes)
{
	struct field f;

	if (fields_find(o->btf, "xkv_config", name, &f) || f.bytes != bytes)
		return false;
	memcpy(out, o->config + f.at, bytes);
	return true;
}

bool older_has_data(const struct older *o)
{
	uint64_t lease = 0;
	uint32_t magic = 0;

	setting(o, "magic", &magic, sizeof(magic));
	setting(o, "lease_ns", &lease, sizeof(lease));
	return magic == XKV_LAYOUT_MAGIC && !lease;
}

uint32_t older_layout(const struct older *o)
{
	uint32_t layout = 0;

	setting(o, "layout", &layout, sizeof(layout));
	return layout;
}

void older_hold(struct older *o, uint64_t until_ns)
{
	uint8_t *read_only = (uint8_t *)o->config + o->p.read_only.at;

	__atomic_store_n((uint64_t *)(o->config + o->p.held_until_ns.at), until_ns,
			 __ATOMIC_RELEASE);
	if (until_ns)
		__atomic_fetch_or(read_only, XKV_WRITES_HELD, __ATOMIC_RELEASE);
	else
		__atomic_fetch_and(read_only, (uint8_t)~XKV_WRITES_HELD, __ATOMIC_RELEASE);
}

int older_secrets(const struct older *o, struct xkv_secrets *out)
{
	uint32_t zero = 0;
	char *value = calloc(1, fields_size(o->btf, "xkv_secrets"));
	int ret = value ? 0 : -ENOMEM;

	if (!ret && bpf_map_lookup_elem(o->bpf->older[BPF_SECRET], &zero, value))
		ret = -errno;
	memset(out, 0, sizeof(*out));
	if (!ret)
		ret = fields_copy(o->btf, value, o->ours, out, "xkv_secrets");
	free(value);
	return ret;
}

static bool is_zero(const char *at, size_t bytes)
{
	return !bytes || (!at[0] && !memcmp(at, at + 1, bytes - 1));
}

static bool is_locked(const struct xkv_dedup_set *set)
{
	uint64_t locks = 0;

	for (int way = 0; way < XKV_DEDUP_WAYS; way++)
		locks |= set->way[way].lock;
	return locks & 1;
}

/*
 * Reads a set of the dedup cache consistently.  One that stays locked is copied with its lock: the
 * older programs drop all requests of such a set, and so do ours.
 */
static int once_set(const struct older *o, uint32_t number, char *value, char *again,
		    struct xkv_dedup_set *out)
{
	size_t bytes = fields_size(o->btf, "xkv_dedup_set");
	int ret = 0;

	for (int i = 0; i < ONCE_TRIES; i++) {
		if (bpf_map_lookup_elem(o->bpf->older[BPF_ONCE], &number, value) ||
		    bpf_map_lookup_elem(o->bpf->older[BPF_ONCE], &number, again))
			return -errno;
		memset(out, 0, sizeof(*out));
		if (!is_zero(value, bytes))
			ret = fields_copy(o->btf, value, o->ours, out, "xkv_dedup_set");
		if (ret || (!memcmp(value, again, bytes) && !is_locked(out)))
			return ret;
		sched_yield();
	}
	return 0;
}

int older_once(const struct older *o, struct xkv_dedup_set *out)
{
	size_t bytes = (fields_size(o->btf, "xkv_dedup_set") + 7) & ~7UL;
	char *values = calloc(2, bytes);
	int ret = values ? 0 : -ENOMEM;

	for (uint32_t set = 0; !ret && set < XKV_DEDUP_SETS; set++)
		ret = once_set(o, set, values, values + bytes, &out[set]);
	free(values);
	return ret;
}

/* One more than the greatest number that was drawn for a version, of any CPU. */
static int next_version(const struct older *o, uint64_t *number)
{
	size_t each = (fields_size(o->btf, "xkv_tally") + 7) & ~7UL;
	int cpus = libbpf_num_possible_cpus();
	char *values = cpus > 0 ? calloc((size_t)cpus, each) : NULL;
	int ret = values ? 0 : -ENOMEM;
	struct field f;
	uint64_t next;

	if (!ret && (fields_find(o->btf, "xkv_tally", "version", &f) || f.bytes != sizeof(next)))
		ret = -EPROTO;
	for (uint32_t frontend = 0; !ret && frontend < XKV_FRONTENDS; frontend++) {
		if (bpf_map_lookup_elem(o->bpf->older[BPF_TALLY], &frontend, values))
			ret = -errno;
		for (int cpu = 0; !ret && cpu < cpus; cpu++) {
			memcpy(&next, values + (size_t)cpu * each + f.at, sizeof(next));
			*number = next > *number ? next : *number;
		}
	}
	free(values);
	return ret;
}

int older_settings(const struct older *o, struct carried_settings *out)
{
	*out = (struct carried_settings){ 0 };
	if (!setting(o, "stored", out->stored, sizeof(out->stored)) ||
	    !setting(o, "number", out->number, sizeof(out->number)) ||
	    !setting(o, "stored_current", &out->stored_current, 1) ||
	    !setting(o, "track", &out->track, 1) ||
	    !setting(o, "access", &out->access, sizeof(out->access)) ||
	    !setting(o, "access_spread", &out->access_spread, sizeof(out->access_spread)))
		return -EPROTO;
	return next_version(o, &out->version_least);
}

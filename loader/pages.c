// SPDX-License-Identifier: BSD-2-Clause
/*
 * Pages and slots: size classes, growth, and reading slots through mapped
 * memory under the same rules as the BPF side (bpf/layout.h).
 *
 * A page is made and its slots are chained while nobody can see it; then it is
 * put into `pages`, and one run of xkv_slots links the chain into its class and marks the
 * page.  xkvd may be killed between any two of these steps: pages_adopt()
 * links what was put in but not linked.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "../bpf/page_ids.h"
#include "log.h"
#include "store_impl.h"

#define RESERVE_SHARE 20     /* the machine keeps 1/20 of its memory free */

/* ---- size classes -------------------------------------------------------- */

/*
 * Small entries come in steps of 16 bytes (24 of header, key and value in
 * words: half a step is lost on average), larger ones in steps of an eighth.
 * Slots that XDP cannot write (over XKV_SLOT_WINDOW) grow by a quarter.
 */
static uint32_t next_size(uint32_t size)
{
	uint32_t step = 16;

	if (size >= XKV_SLOT_WINDOW)
		step = size / 4;
	else if (size >= 256)
		step = size / 8;
	return (size + step + 7) & ~7U;
}

void classes_init(struct store *st)
{
	uint32_t size = 40, class = 0;

	for (; class < XKV_CLASSES - 1 && size < XKV_SLOT_MAX; size = next_size(size))
		st->classes[class++].slot_bytes = size;
	st->classes[class++].slot_bytes = XKV_SLOT_MAX;
	st->class_count = class;
	for (size_t unit = 0; unit < sizeof(st->cfg->class_of); unit++)
		st->cfg->class_of[unit] = class_for(st, unit * 8);
}

void classes_adopt(struct store *st)
{
	st->class_count = 0;
	while (st->class_count < XKV_CLASSES && st->classes[st->class_count].slot_bytes)
		st->class_count++;
}

unsigned int class_for(const struct store *st, size_t need)
{
	unsigned int class = 0;

	while (class < st->class_count - 1 && st->classes[class].slot_bytes < need)
		class++;
	return class;
}

/* ---- reading slots ------------------------------------------------------- */

struct xkv_slot *slot_of(const struct store *st, uint64_t ref)
{
	uint64_t number = XKV_REF_PAGE(ref);
	char *page;

	if (number >= XKV_PAGES_MAX || !(ref & XKV_REF_MASK) ||
	    XKV_REF_OFFSET(ref) > XKV_PAGE_BYTES - XKV_SLOT_WINDOW)
		return NULL;
	page = atomic_load_explicit(&st->page[number], memory_order_acquire);
	return page ? (struct xkv_slot *)(page + XKV_REF_OFFSET(ref)) : NULL;
}

static uint64_t load_seq(const struct xkv_slot *slot)
{
	return __atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE);
}

/* Does an entry of these lengths fit a slot of this class?  While a slot changes its header may say anything. */
static bool lengths_fit(const struct store *st, uint32_t class, uint32_t key_len, uint32_t value_len)
{
	return class < st->class_count && key_len <= XKV_KEY_MAX && value_len <= XKV_VALUE_MAX &&
	       XKV_SLOT_NEED(key_len, value_len) <= st->classes[class].slot_bytes;
}

bool slot_copy(const struct store *st, uint64_t ref, struct slot_copy *out, void *value)
{
	const struct xkv_slot *slot = slot_of(st, ref);
	const char *key;

	if (!slot)
		return false;
	out->seq = load_seq(slot);
	if (out->seq & 1)
		return false;
	key = (const char *)(slot + 1);
	out->expire_ms = slot->expire_ms;
	out->value_len = slot->value_len;
	out->key_len = slot->key_len;
	if (!lengths_fit(st, slot->class, out->key_len, out->value_len) ||
	    XKV_REF_OFFSET(ref) + XKV_SLOT_NEED(out->key_len, out->value_len) > XKV_PAGE_BYTES)
		return false;
	memset(out->key, 0, sizeof(out->key));
	memcpy(out->key, key, out->key_len);
	if (value)
		memcpy(value, key + XKV_PADDED(out->key_len), out->value_len);
	atomic_thread_fence(memory_order_acquire);
	return __atomic_load_n(&slot->seq, __ATOMIC_RELAXED) == out->seq;
}

uint64_t key_hash(const struct store *st, const struct slot_copy *key)
{
	return hash_key(key->key, key->key_len, &st->secrets->hash);
}

int slot_free(struct store *st, uint64_t ref)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_FREE, .frame = ~0U, .first = ref };

	return slots_run(st, &args);
}

/* ---- growth -------------------------------------------------------------- */

/* Memory for the rest of the machine; what the kernel gives away for pages it cannot take back. */
static bool memory_is_short(void)
{
	unsigned long long total = 0, available = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	if (!f)
		return false;
	while (fgets(line, sizeof(line), f)) {
		sscanf(line, "MemTotal: %llu", &total);
		sscanf(line, "MemAvailable: %llu", &available);
	}
	fclose(f);
	return available && available < total / RESERVE_SHARE;
}

unsigned int page_slots(uint32_t slot_bytes)
{
	unsigned int whole = (XKV_PAGE_BYTES - sizeof(struct xkv_page)) / slot_bytes;
	unsigned int reachable =
		(XKV_PAGE_BYTES - XKV_SLOT_WINDOW - sizeof(struct xkv_page)) / slot_bytes + 1;

	return whole < reachable ? whole : reachable;
}

/* Writes the header and the chain of free slots into a page that nobody else can see. */
static void page_fill(struct store *st, char *base, unsigned int number, unsigned int class)
{
	struct xkv_page *page = (struct xkv_page *)base;
	struct xkv_slot *slot;

	page->magic = XKV_PAGE_MAGIC;
	page->class = class;
	page->slot_bytes = st->classes[class].slot_bytes;
	page->slots = page_slots(page->slot_bytes);
	for (unsigned int i = 0; i < page->slots; i++) {
		slot = slot_in(page, i);
		slot->seq = 1;
		slot->class = class;
		slot->next = XKV_REF(number, (char *)slot_in(page, i + 1) - base);
	}
}

/* Links the slots of a page that is in `pages` into the free list of its class. */
static int page_link(struct store *st, unsigned int number)
{
	struct xkv_page *page = st->page[number];
	uint32_t last = sizeof(*page) + (page->slots - 1) * page->slot_bytes;
	struct xkv_slots_args args = {
		.cmd = XKV_SLOTS_LINK,
		.class = page->class,
		.count = page->slots,
		.first = XKV_REF(number, sizeof(*page)),
		.last = XKV_REF(number, last),
	};
	int ret;

	do
		ret = slots_run(st, &args);
	while (ret == -EBUSY);
	if (!ret)
		st->class_pages[page->class]++;
	return ret;
}

/* Makes a page that nobody else can see, mapped at *base: its descriptor, or -errno. */
static int page_make(struct store *st, unsigned int number, unsigned int class, void **base)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE);
	int fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "xkv_page", sizeof(uint32_t), XKV_PAGE_BYTES, 1,
				&opts);

	if (fd < 0)
		return -errno;
	*base = mmap(NULL, XKV_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*base == MAP_FAILED) {
		int saved = -errno;

		close(fd);
		return saved;
	}
	page_fill(st, *base, number, class);
	return fd;
}

/* The page is in `pages`: whoever follows references finds it, and so do walks.  Then its slots may be given out. */
static int page_publish(struct store *st, unsigned int number, void *base)
{
	atomic_store_explicit(&st->page[number], base, memory_order_release);
	if (number >= st->pages)
		st->pages = number + 1;
	st->pages_used++;
	return page_link(st, number);
}

/* The first number from *number on that no page has. */
static bool free_number(const struct store *st, uint32_t *number)
{
	while (*number < XKV_PAGES_MAX && st->page[*number])
		++*number;
	return *number < XKV_PAGES_MAX;
}

/* How many of `want` pages there may be more: by maxmemory, and by what the machine has. */
static unsigned int pages_allowed(const struct store *st, unsigned int want)
{
	uint64_t limit = st->maxmemory, used = store_memory(st);

	if (memory_is_short())
		return 0;
	if (limit && limit < used + (uint64_t)want * XKV_PAGE_COST)
		return limit > used ? (limit - used) / XKV_PAGE_COST : 0;
	return want;
}

int pages_add(struct store *st, unsigned int class, unsigned int want)
{
	uint32_t number[PAGES_AT_ONCE], free = 0;
	unsigned int made = 0, put;
	int fd[PAGES_AT_ONCE], ret = 0;
	void *base[PAGES_AT_ONCE];

	want = pages_allowed(st, want < PAGES_AT_ONCE ? want : PAGES_AT_ONCE);
	for (; made < want && free_number(st, &free); made++, free++) {
		number[made] = free;
		fd[made] = page_make(st, free, class, &base[made]);
		if (fd[made] < 0) {
			log_warning("cannot make a page: %s", strerror(-fd[made]));
			break;
		}
	}
	if (!made)
		return -ENOSPC;
	put = made;
	if (bpf_map_update_batch(st->bpf.map[BPF_PAGES], number, fd, &put, NULL)) {
		ret = -errno;
		log_warning("cannot add pages to the store: %s", strerror(-ret));
		if (put >= made)
			put = 0; /* it did not even begin: libbpf left our number */
	}
	for (unsigned int i = 0; i < made; i++)
		close(fd[i]);
	for (unsigned int i = put; i < made; i++)
		munmap(base[i], XKV_PAGE_BYTES);
	if (put)
		ret = 0;
	for (unsigned int i = 0; i < put; i++) {
		int linked = page_publish(st, number[i], base[i]);

		ret = linked ? linked : ret;
	}
	log_debug("class of %u bytes: %u pages more", st->classes[class].slot_bytes, put);
	return ret;
}

/* ---- adopting ------------------------------------------------------------ */

static int page_adopt(struct store *st, unsigned int number, uint32_t id)
{
	int fd = bpf_map_get_fd_by_id(id);
	struct xkv_page *page;

	if (fd < 0)
		return -errno;
	page = mmap(NULL, XKV_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (page == MAP_FAILED)
		return -errno;
	st->page[number] = page;
	if (page->magic != XKV_PAGE_MAGIC || page->class >= st->class_count ||
	    page->slot_bytes != st->classes[page->class].slot_bytes)
		return -EINVAL;
	if (page->state == XKV_PAGE_NEW)
		return page_link(st, number);
	st->class_pages[page->class]++;
	return 0;
}

int pages_adopt(struct store *st)
{
	uint32_t id[XKV_PAGES_MAX];
	int ret = page_ids(st->bpf.map[BPF_PAGES], id);

	for (uint32_t number = 0; !ret && number < XKV_PAGES_MAX; number++) {
		if (!id[number])
			continue; /* given back */
		ret = page_adopt(st, number, id[number]);
		st->pages = number + 1;
		st->pages_used++;
	}
	return ret;
}

void pages_close(struct store *st)
{
	for (unsigned int number = 0; number < XKV_PAGES_MAX; number++)
		if (st->page[number])
			munmap(st->page[number], XKV_PAGE_BYTES);
}

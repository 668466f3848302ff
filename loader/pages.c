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
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "../bpf/siphash.h"
#include "log.h"
#include "store_impl.h"

#define GROW_MAX 8           /* pages at once: the kernel waits a grace period for each call */
#define GROWER_PERIOD_MS 20
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

	if (number >= XKV_PAGES_MAX || !(ref & XKV_REF_MASK))
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
	out->flags = slot->flags;
	if (!lengths_fit(st, slot->class, out->key_len, out->value_len))
		return false;
	memset(out->key, 0, sizeof(out->key));
	memcpy(out->key, key, out->key_len);
	if (value)
		memcpy(value, key + XKV_PADDED(out->key_len), out->value_len);
	atomic_thread_fence(memory_order_acquire);
	return __atomic_load_n(&slot->seq, __ATOMIC_RELAXED) == out->seq;
}

uint64_t fingerprint(const struct store *st, const struct slot_copy *key)
{
	struct siphash s;

	siphash_init(&s, st->cfg->secret);
	for (unsigned int i = 0; i * 8 < key->key_len; i++)
		siphash_word(&s, key->key[i]);
	return siphash_end(&s, key->key_len) & st->cfg->fingerprint_mask;
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

/* Writes the header and the chain of free slots into a page that nobody else can see. */
static void page_fill(struct store *st, char *base, unsigned int number, unsigned int class)
{
	struct xkv_page *page = (struct xkv_page *)base;
	uint32_t size = st->classes[class].slot_bytes, at = sizeof(*page), slots = 0;
	uint32_t end = XKV_PAGE_BYTES - XKV_SLOT_WINDOW;
	struct xkv_slot *slot;

	page->magic = XKV_PAGE_MAGIC;
	page->class = class;
	page->slot_bytes = size;
	for (; at <= end && at + size <= XKV_PAGE_BYTES; at += size, slots++) {
		slot = (struct xkv_slot *)(base + at);
		slot->seq = 1;
		slot->class = class;
		slot->next = XKV_REF(number, at + size);
	}
	page->slots = slots;
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

/* Makes a page: its descriptor, mapped at st->page[number], or -errno. */
static int page_make(struct store *st, unsigned int number, unsigned int class)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE);
	int fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "xkv_page", sizeof(uint32_t), XKV_PAGE_BYTES, 1,
				&opts);
	void *base;

	if (fd < 0)
		return -errno;
	base = mmap(NULL, XKV_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		int saved = -errno;

		close(fd);
		return saved;
	}
	page_fill(st, base, number, class);
	atomic_store_explicit(&st->page[number], base, memory_order_release);
	return fd;
}

static void page_drop(struct store *st, unsigned int number)
{
	munmap(st->page[number], XKV_PAGE_BYTES);
	st->page[number] = NULL;
}

/* Adds up to `want` pages to the class; at least one, or an error.  With grow_lock held. */
static int pages_add(struct store *st, unsigned int class, unsigned int want)
{
	uint32_t number[GROW_MAX], first = st->pages;
	int fd[GROW_MAX], ret = 0;
	unsigned int made = 0, put;

	if (memory_is_short())
		return -ENOSPC;
	for (; made < want && made < GROW_MAX && first + made < XKV_PAGES_MAX; made++) {
		number[made] = first + made;
		fd[made] = page_make(st, number[made], class);
		if (fd[made] < 0)
			break;
	}
	if (!made) {
		if (first < XKV_PAGES_MAX)
			log_warning("cannot make a page: %s", strerror(-fd[0]));
		return -ENOSPC;
	}
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
		page_drop(st, number[i]);
	st->pages = first + put;
	for (unsigned int i = 0; i < put; i++) {
		int linked = page_link(st, number[i]);

		if (linked)
			return linked;
	}
	log_debug("class of %u bytes: %u pages more", st->classes[class].slot_bytes, put);
	return put ? 0 : ret;
}

/* An eighth more than the class has, so that filling the store takes few waits and little is left over. */
static unsigned int pages_wanted(const struct store *st, unsigned int class)
{
	unsigned int more = st->class_pages[class] / 8;

	return more < 1 ? 1 : more > GROW_MAX ? GROW_MAX : more;
}

int pages_grow(struct store *st, unsigned int class)
{
	int ret = 0;

	if (class >= st->class_count)
		return -EINVAL;
	pthread_mutex_lock(&st->grow_lock);
	if (!__atomic_load_n(&st->classes[class].free, __ATOMIC_RELAXED))
		ret = pages_add(st, class, pages_wanted(st, class));
	pthread_mutex_unlock(&st->grow_lock);
	return ret;
}

/* ---- ahead of need ------------------------------------------------------- */

/*
 * Is a class that XDP uses about to run out?  An eighth of it is kept free, at
 * most two pages; and XDP says when it found one empty.
 */
static bool runs_low(struct store *st, unsigned int class)
{
	struct xkv_class *c = &st->classes[class];
	uint64_t per_page = XKV_PAGE_BYTES / c->slot_bytes;
	uint64_t low = per_page * st->class_pages[class] / 8;
	uint64_t wanted = __atomic_load_n(&c->wanted, __ATOMIC_RELAXED);
	uint64_t free = __atomic_load_n(&c->free, __ATOMIC_RELAXED);

	if (wanted != st->class_wanted[class]) {
		st->class_wanted[class] = wanted;
		return !free;
	}
	if (!st->class_pages[class] || c->slot_bytes > XKV_SLOT_WINDOW)
		return false;
	if (low < per_page / 4)
		low = per_page / 4;
	if (low > 2 * per_page)
		low = 2 * per_page;
	return free < low;
}

static void *grower(void *arg)
{
	struct store *st = arg;
	struct timespec until;

	pthread_mutex_lock(&st->grow_lock);
	while (!st->stopping) {
		for (unsigned int class = 0; class < st->class_count; class++)
			if (runs_low(st, class))
				pages_add(st, class, pages_wanted(st, class));
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += GROWER_PERIOD_MS * 1000000L;
		if (until.tv_nsec >= 1000000000L) {
			until.tv_sec++;
			until.tv_nsec -= 1000000000L;
		}
		pthread_cond_timedwait(&st->wake, &st->grow_lock, &until);
	}
	pthread_mutex_unlock(&st->grow_lock);
	return NULL;
}

int grower_start(struct store *st)
{
	int ret = -pthread_create(&st->grower, NULL, grower, st);

	st->grower_runs = !ret;
	return ret;
}

void grower_stop(struct store *st)
{
	if (!st->grower_runs)
		return;
	pthread_mutex_lock(&st->grow_lock);
	st->stopping = true;
	pthread_cond_signal(&st->wake);
	pthread_mutex_unlock(&st->grow_lock);
	pthread_join(st->grower, NULL);
	st->grower_runs = false;
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
	if (!page->linked)
		return page_link(st, number);
	st->class_pages[page->class]++;
	return 0;
}

int pages_adopt(struct store *st)
{
	uint32_t number, id;
	int ret;

	for (number = 0; number < XKV_PAGES_MAX; number++) {
		if (bpf_map_lookup_elem(st->bpf.map[BPF_PAGES], &number, &id))
			break;
		ret = page_adopt(st, number, id);
		if (ret)
			return ret;
		st->pages = number + 1;
	}
	return 0;
}

void pages_close(struct store *st)
{
	for (unsigned int number = 0; number < XKV_PAGES_MAX; number++)
		if (st->page[number])
			page_drop(st, number);
}

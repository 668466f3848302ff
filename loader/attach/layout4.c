// SPDX-License-Identifier: BSD-2-Clause
/*
 * Reading a store of layout 4, to carry it over to a newer one (upgrade.c).  It is not in service,
 * so it stands still; what is read is checked all the same.
 */
#include "layout4.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf_impl.h"
#include "store/page_ids.h"

_Static_assert(XKV_PAGES_MAX == LAYOUT4_PAGES, "page_ids() looks at as many as this layout has");

struct reader {
	const struct layout4_bucket *index;
	uint32_t buckets;
	__u32 id[LAYOUT4_PAGES];
	char *page[LAYOUT4_PAGES]; /* mapped when first needed */
	uint64_t now_ms;
	layout4_fn *fn;
	void *arg;
	struct layout4_sum *sum;
};

/* ---- maps ---------------------------------------------------------------- */

/* A descriptor, or -errno with a sentence. */
static int open_map(const struct config *cfg, int id, struct bpf_map_info *info, char *err,
		    size_t err_len)
{
	__u32 len = sizeof(*info);
	char path[512];
	int fd;

	bpf_map_path(path, sizeof(path), cfg, id);
	fd = bpf_obj_get(path);
	if (fd < 0)
		return fail(-errno, err, err_len, "cannot open %s: %s", path, strerror(errno));
	memset(info, 0, sizeof(*info));
	if (!bpf_obj_get_info_by_fd(fd, info, &len))
		return fd;
	close(fd);
	return fail(-EINVAL, err, err_len, "cannot look at %s: %s", path, strerror(errno));
}

static int open_index(struct reader *r, const struct config *cfg, char *err, size_t err_len)
{
	struct bpf_map_info info;
	int fd = open_map(cfg, BPF_INDEX, &info, err, err_len);
	void *index;

	if (fd < 0)
		return fd;
	if (info.type != BPF_MAP_TYPE_ARRAY || info.value_size != sizeof(*r->index)) {
		close(fd);
		return fail(-EINVAL, err, err_len, "the index in %s is not one of layout 4",
			    cfg->pin_dir);
	}
	index = mmap(NULL, info.max_entries * sizeof(*r->index), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (index == MAP_FAILED)
		return fail(-errno, err, err_len, "cannot map the index: %s", strerror(errno));
	r->index = index;
	r->buckets = info.max_entries;
	return 0;
}

static int open_pages(struct reader *r, const struct config *cfg, char *err, size_t err_len)
{
	struct bpf_map_info info;
	int fd = open_map(cfg, BPF_PAGES, &info, err, err_len), ret;

	if (fd < 0)
		return fd;
	if (info.type != BPF_MAP_TYPE_ARRAY_OF_MAPS || info.max_entries != LAYOUT4_PAGES)
		ret = fail(-EINVAL, err, err_len, "the pages in %s are not those of layout 4",
			   cfg->pin_dir);
	else if ((ret = page_ids(fd, r->id)))
		fail(ret, err, err_len, "cannot look at the pages: %s", strerror(-ret));
	close(fd);
	return ret;
}

static void reader_close(struct reader *r)
{
	if (r->index)
		munmap((void *)r->index, r->buckets * sizeof(*r->index));
	for (unsigned int i = 0; i < LAYOUT4_PAGES; i++)
		if (r->page[i])
			munmap(r->page[i], LAYOUT4_PAGE_BYTES);
	free(r);
}

/* NULL where there is no such page. */
static char *page_of(struct reader *r, uint64_t number)
{
	void *page;
	int fd;

	if (number >= LAYOUT4_PAGES || !r->id[number])
		return NULL;
	if (r->page[number])
		return r->page[number];
	fd = bpf_map_get_fd_by_id(r->id[number]);
	if (fd < 0)
		return NULL;
	page = mmap(NULL, LAYOUT4_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (page == MAP_FAILED)
		return NULL;
	return r->page[number] = page;
}

/* ---- entries ------------------------------------------------------------- */

/* `bytes` of a slot, NULL if it does not lie in a page. */
static const struct layout4_slot *slot_at(struct reader *r, uint64_t ref, uint64_t bytes)
{
	uint32_t offset = LAYOUT4_REF_OFFSET(ref);
	char *page = page_of(r, LAYOUT4_REF_PAGE(ref));

	if (!page || !offset || offset + bytes > LAYOUT4_PAGE_BYTES)
		return NULL;
	return (const struct layout4_slot *)(page + offset);
}

static int read_entry(struct reader *r, uint64_t ref)
{
	const struct layout4_slot *s = slot_at(r, ref, sizeof(*s));
	struct layout4_entry e;

	if (!s || s->seq & 1 || !s->key_len || s->key_len > LAYOUT4_KEY_MAX ||
	    s->value_len > LAYOUT4_VALUE_MAX ||
	    !slot_at(r, ref, sizeof(*s) + LAYOUT4_PADDED(s->key_len) + s->value_len)) {
		r->sum->unreadable++;
		return 0;
	}
	if (s->expire_ms && s->expire_ms <= r->now_ms) {
		r->sum->expired++;
		return 0;
	}
	e = (struct layout4_entry){
		.key = s + 1,
		.key_len = s->key_len,
		.value = (const char *)(s + 1) + LAYOUT4_PADDED(s->key_len),
		.value_len = s->value_len,
		.expire_ms = s->expire_ms,
	};
	r->sum->keys++;
	return r->fn(r->arg, &e);
}

static int read_bucket(struct reader *r, const struct layout4_bucket *b)
{
	int ret = 0;

	for (int way = 0; way < LAYOUT4_WAYS && !ret; way++)
		if (b->entry[way])
			ret = read_entry(r, b->entry[way]);
	return ret;
}

/* A bucket and those that it overflows into. */
static int read_chain(struct reader *r, uint32_t number)
{
	const struct layout4_bucket *b = &r->index[number];
	const struct layout4_chain *next;
	uint64_t ref;
	int ret = read_bucket(r, b);

	for (int i = 0; i < LAYOUT4_CHAIN_MAX && !ret; i++) {
		ref = b->head & LAYOUT4_REF_MASK;
		if (!ref)
			break;
		next = (const struct layout4_chain *)slot_at(r, ref, sizeof(*next));
		if (!next || next->slot.key_len != LAYOUT4_KEY_CHAIN) {
			r->sum->unreadable++;
			break;
		}
		b = &next->bucket;
		ret = read_bucket(r, b);
	}
	return ret;
}

int layout4_read(const struct config *cfg, layout4_fn *fn, void *arg, struct layout4_sum *sum,
		 char *err, size_t err_len)
{
	struct reader *r = calloc(1, sizeof(*r));
	struct timespec now;
	int ret;

	*sum = (struct layout4_sum){ 0 };
	if (!r)
		return fail(-ENOMEM, err, err_len, "not enough memory");
	clock_gettime(CLOCK_REALTIME, &now);
	r->now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	r->fn = fn;
	r->arg = arg;
	r->sum = sum;
	ret = open_index(r, cfg, err, err_len);
	if (!ret)
		ret = open_pages(r, cfg, err, err_len);
	for (uint32_t number = 0; !ret && number < r->buckets; number++)
		ret = read_chain(r, number);
	reader_close(r);
	return ret;
}

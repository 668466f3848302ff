// SPDX-License-Identifier: BSD-2-Clause
/*
 * Makes a store of layout 4, as an older xkvd has left it: maps pinned in a directory, and an XDP
 * program on an interface that drops everything, for "acknowledged it", until the store is closed.
 *
 *   layout4_make DIR IF COUNT [LAYOUT]
 *
 * key:0 .. key:COUNT-1 have their own names as values, in few buckets, so that those overflow.
 * Besides there are "large" (1 MiB of 'x'), "empty", "later" (expires in an hour), a binary key of
 * 250 bytes, one that has expired, and one that is unfinished.
 */
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>
#include <linux/if_link.h>

#include "loader/attach/layout4.h"

#define BUCKETS 64
#define MAGIC	0x584b5631

static struct layout4_bucket *bucket; /* the index, mapped */
static uint32_t *config;
static const char *dir;
static int pages_fd, index_fd, config_fd;
static char *page; /* that is being filled */
static uint32_t page_number, offset = LAYOUT4_PAGE_BYTES;

static void check(int failed, const char *what)
{
	if (!failed)
		return;
	fprintf(stderr, "layout4_make: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int make_map(const char *name, enum bpf_map_type type, uint32_t value, uint32_t entries,
		    uint32_t flags, int inner)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = flags);
	char path[256];
	int fd;

	if (inner >= 0)
		opts.inner_map_fd = (uint32_t)inner;
	fd = bpf_map_create(type, name, 4, value, entries, &opts);
	check(fd < 0, name);
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	check(dir && strcmp(name, "page") && bpf_obj_pin(fd, path), path);
	return fd;
}

static void *map(int fd, size_t len)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	check(at == MAP_FAILED, "mmap");
	return at;
}

/* Room for a slot, in a page of some number if the last one is full. */
static struct layout4_slot *new_slot(size_t bytes, uint64_t *ref)
{
	struct layout4_slot *slot;
	int fd;

	if (offset + bytes > LAYOUT4_PAGE_BYTES) {
		fd = make_map("page", BPF_MAP_TYPE_ARRAY, LAYOUT4_PAGE_BYTES, 1, BPF_F_MMAPABLE,
			      -1);
		page_number = page_number ? LAYOUT4_PAGES - page_number : 7;
		check(bpf_map_update_elem(pages_fd, &page_number, &fd, 0), "a page");
		page = map(fd, LAYOUT4_PAGE_BYTES);
		offset = 64;
	}
	*ref = LAYOUT4_REF(page_number, offset);
	slot = (struct layout4_slot *)(page + offset);
	offset += (uint32_t)LAYOUT4_PADDED(bytes);
	return slot;
}

/*
 * A free place in the bucket or its chain; the lock and the count in the head, and tags, have to be
 * looked through.
 */
static uint64_t *place_for(struct layout4_bucket *b)
{
	struct layout4_chain *chain;
	uint64_t ref;

	for (;;) {
		for (int way = LAYOUT4_WAYS - 1; way >= 0; way--)
			if (!b->entry[way])
				return &b->entry[way];
		if (!(b->head & LAYOUT4_REF_MASK)) {
			chain = (struct layout4_chain *)new_slot(sizeof(*chain), &ref);
			chain->slot.seq = 1;
			chain->slot.key_len = LAYOUT4_KEY_CHAIN;
			b->head = 5ULL << 40 | ref;
			b = &chain->bucket;
		} else {
			ref = b->head & LAYOUT4_REF_MASK;
			check(LAYOUT4_REF_PAGE(ref) != page_number, "a chain in an other page");
			b = &((struct layout4_chain *)(page + LAYOUT4_REF_OFFSET(ref)))->bucket;
		}
	}
}

static void set(const void *key, size_t key_len, const void *value, size_t value_len,
		uint64_t expire_ms, uint64_t seq)
{
	static uint32_t next;
	uint64_t *place = place_for(&bucket[next++ % BUCKETS]), ref;
	struct layout4_slot *slot =
		new_slot(sizeof(*slot) + LAYOUT4_PADDED(key_len) + LAYOUT4_PADDED(value_len), &ref);

	slot->seq = seq;
	slot->expire_ms = expire_ms;
	slot->key_len = (uint8_t)key_len;
	slot->value_len = (uint32_t)value_len;
	memcpy(slot + 1, key, key_len);
	memcpy((char *)(slot + 1) + LAYOUT4_PADDED(key_len), value, value_len);
	*place = 0xabcdefULL << 40 | ref;
}

static void fill(unsigned int count)
{
	uint64_t now = (uint64_t)time(NULL) * 1000;
	static char large[LAYOUT4_VALUE_MAX];
	char key[LAYOUT4_KEY_MAX];

	for (unsigned int i = 0; i < count; i++) {
		snprintf(key, sizeof(key), "key:%u", i);
		set(key, strlen(key), key, strlen(key), 0, 2 * i + 2);
	}
	set("empty", 5, "", 0, 0, 2);
	set("later", 5, "value", 5, now + 3600000, 2);
	set("expired", 7, "value", 5, now - 1000, 2);
	set("unfinished", 10, "value", 5, 0, 3);
	for (size_t i = 0; i < sizeof(key); i++)
		key[i] = (char)i;
	set(key, sizeof(key), key, sizeof(key), 0, 2);
	memset(large, 'x', sizeof(large));
	set("large", 5, large, sizeof(large), 0, 2);
}

/* Uses the index and the configuration, as the real one does. */
static void attach(const char *interface)
{
	const uint8_t load = BPF_LD | BPF_DW | BPF_IMM;
	const struct bpf_insn insns[] = {
		{ .code = load, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = index_fd },
		{ 0 },
		{ .code = load, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_VALUE, .imm = config_fd },
		{ 0 },
		{ .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 1, .src_reg = 1 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = XDP_DROP },
		{ .code = BPF_JMP | BPF_JEQ | BPF_K, .dst_reg = 1, .off = 1, .imm = MAGIC },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	int fd = bpf_prog_load(BPF_PROG_TYPE_XDP, "xkv_xdp", "GPL", insns,
			       sizeof(insns) / sizeof(insns[0]), NULL);

	check(fd < 0, "the program");
	check(bpf_xdp_attach((int)if_nametoindex(interface), fd, XDP_FLAGS_DRV_MODE, NULL) < 0,
	      interface);
}

int main(int argc, char *argv[])
{
	int inner;

	if (argc < 4)
		return 2;
	dir = argv[1];
	check(mkdir(dir, 0700) && errno != EEXIST, dir);
	index_fd = make_map("xkv_index", BPF_MAP_TYPE_ARRAY, 64, BUCKETS, BPF_F_MMAPABLE, -1);
	inner = make_map("page", BPF_MAP_TYPE_ARRAY, LAYOUT4_PAGE_BYTES, 1, BPF_F_MMAPABLE, -1);
	pages_fd = make_map("xkv_pages", BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, LAYOUT4_PAGES, 0, inner);
	make_map("xkv_classes", BPF_MAP_TYPE_ARRAY, 64, 96, BPF_F_MMAPABLE, -1);
	make_map("xkv_once", BPF_MAP_TYPE_ARRAY, 512, 4096, BPF_F_MMAPABLE, -1);
	config_fd = make_map("xkv_config", BPF_MAP_TYPE_ARRAY, 2048, 1, BPF_F_MMAPABLE, -1);
	make_map("xkv_counters", BPF_MAP_TYPE_PERCPU_ARRAY, 512, 2, 0, -1);
	make_map("xkv_frames", BPF_MAP_TYPE_PERCPU_ARRAY, 4384, 1, 0, -1);
	make_map("xkv_batch", BPF_MAP_TYPE_ARRAY, 4384, 512, BPF_F_MMAPABLE, -1);
	bucket = map(index_fd, BUCKETS * sizeof(*bucket));
	config = map(config_fd, 4096);
	fill((unsigned int)atoi(argv[3]));
	attach(argv[2]);
	config[1] = argc > 4 ? (uint32_t)atoi(argv[4]) : LAYOUT4;
	config[0] = MAGIC;
	return 0;
}

// SPDX-License-Identifier: BSD-2-Clause
/* A store with the XDP program and no NIC: see xdpbed.h. */
#include "xdpbed.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/magic.h>

#include "../bpf/siphash.h"

#define BPFFS "/sys/fs/bpf"

static char complaint[512];

/* A sentence that stays until the next one. */
__attribute__((format(printf, 1, 2))) static const char *say(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(complaint, sizeof(complaint), fmt, args);
	va_end(args);
	return complaint;
}

static const char *const counter_names[] = {
#define NAME(name) #name,
	XKV_COUNTERS(NAME)
};

const char *counter_name(unsigned int counter)
{
	return counter < XKV_COUNTER_COUNT ? counter_names[counter] : "none";
}

/* ---- opening ------------------------------------------------------------- */

const char *bed_cannot_run(void)
{
	struct statfs fs;

	if (geteuid())
		return say("needs root: it loads BPF programs");
	if (bpf_check_kernel(complaint, sizeof(complaint)))
		return complaint;
	if (statfs(BPFFS, &fs) || (unsigned long)fs.f_type != BPF_FS_MAGIC)
		return say("no BPF file system on " BPFFS ": mount -t bpf bpf " BPFFS);
	return NULL;
}

void bed_configure(struct bed *b)
{
	struct xkv_config *c = b->c;
	struct packet_spec s;

	packet_default(&s, false);
	memcpy(&c->local4[0], s.dst, 4);
	c->allow4[0] = (struct xkv_prefix4){ htonl(0x0a4d0000), htonl(0xffffff00) };
	packet_default(&s, true);
	memcpy(c->local6[0], s.dst, 16);
	memset(&c->allow6[0], 0, sizeof(c->allow6[0]));
	memcpy(c->allow6[0].net, s.dst, 8);
	c->allow6[0].mask[0] = ~0ULL;
	c->local4_count = c->local6_count = c->allow4_count = c->allow6_count = 1;
	c->port = htons(XKV_PORT);
	c->miss_reply = 0;
	c->foreign_drop = 0;
	c->trusted = 1;
	c->auth = XKV_AUTH_OPEN;
	c->payload4 = XKV_PAYLOAD_MAX4;
	c->payload6 = XKV_PAYLOAD_MAX6;
}

static const char *load_xdp(struct bed *b)
{
	struct bpf_program *prog;
	int ret;

	b->object = bpf_open_xdp(&b->bpf);
	if (!b->object)
		return say("cannot open the XDP program: %s", strerror(errno));
	ret = bpf_object__load(b->object);
	if (ret)
		return say("cannot load the XDP program: %s", strerror(-ret));
	prog = bpf_object__find_program_by_name(b->object, "xkv_xdp");
	b->prog = prog ? bpf_program__fd(prog) : -1;
	return b->prog < 0 ? say("there is no program xkv_xdp") : NULL;
}

static const char *open_store(struct bed *b)
{
	char err[512];
	bool fresh;

	b->st = store_open(&b->bpf, &fresh, err, sizeof(err));
	if (!b->st)
		return say("%s", err);
	b->lane = store_lane_get(b->st);
	b->c = store_config(b->st);
	b->cpus = libbpf_num_possible_cpus();
	b->each_cpu = calloc(b->cpus, sizeof(*b->each_cpu));
	b->classes = mmap(NULL, XKV_CLASSES * sizeof(*b->classes), PROT_READ, MAP_SHARED,
			  b->bpf.map[BPF_CLASSES], 0);
	if (!b->lane || !b->each_cpu || b->classes == MAP_FAILED)
		return say("cannot map the store: %s", strerror(errno));
	bed_configure(b);
	store_start(b->st);
	return fresh ? NULL : say("the store in %s is not new", b->pin_dir);
}

const char *bed_open(struct bed *b, unsigned int max_keys)
{
	const char *prefix = getenv("XKV_TEST_PREFIX"), *why = NULL;
	static unsigned int number;
	char err[400], keys[16], *argv[] = { keys };

	memset(b, 0, sizeof(*b));
	b->bpf.lock = -1;
	snprintf(keys, sizeof(keys), "%u", max_keys);
	snprintf(b->pin_dir, sizeof(b->pin_dir), BPFFS "/xkv-test-%s-packet-%d-%u",
		 prefix ? prefix : "own", (int)getpid(), number++);
	if (config_init(&b->config))
		return say("cannot make a configuration");
	if (config_set(&b->config, "max-keys", 1, argv, err, sizeof(err)))
		b->config.max_keys = max_keys; /* fewer than the option allows */
	free(b->config.pin_dir);
	b->config.pin_dir = strdup(b->pin_dir);
	if (bpf_open(&b->bpf, &b->config, err, sizeof(err)))
		why = say("%s", err);
	if (!why)
		why = load_xdp(b);
	if (!why)
		why = open_store(b);
	if (why)
		bed_close(b);
	return why;
}

void bed_close(struct bed *b)
{
	char err[400];

	for (unsigned int i = 0; i < XKV_PAGES_MAX; i++)
		if (b->page[i])
			munmap(b->page[i], XKV_PAGE_BYTES);
	if (b->classes && b->classes != MAP_FAILED)
		munmap(b->classes, XKV_CLASSES * sizeof(*b->classes));
	store_lane_put(b->lane);
	store_close(b->st);
	if (b->object)
		bpf_object__close(b->object);
	bpf_close(&b->bpf);
	if (b->config.pin_dir && bpf_detach(&b->config, err, sizeof(err)))
		fprintf(stderr, "%s\n", err);
	config_free(&b->config);
	free(b->each_cpu);
	memset(b, 0, sizeof(*b));
	b->bpf.lock = -1; /* 0 would be a descriptor */
}

/* ---- running ------------------------------------------------------------- */

bool bed_run(struct bed *b, const uint8_t *frame, size_t len, struct outcome *out)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = frame, .data_size_in = (uint32_t)len,
		    .data_out = out->frame, .data_size_out = sizeof(out->frame), .repeat = 1);

	if (bpf_prog_test_run_opts(b->prog, &opts))
		return false;
	out->verdict = (int)opts.retval;
	out->len = opts.data_size_out;
	return true;
}

void bed_counters(const struct bed *b, uint64_t sum[XKV_COUNTER_COUNT])
{
	uint32_t zero = 0;

	memset(sum, 0, XKV_COUNTER_COUNT * sizeof(*sum));
	if (bpf_map_lookup_elem(b->bpf.map[BPF_COUNTERS], &zero, b->each_cpu))
		return;
	for (unsigned int cpu = 0; cpu < b->cpus; cpu++)
		for (int i = 0; i < XKV_COUNTER_COUNT; i++)
			sum[i] += ((uint64_t *)&b->each_cpu[cpu])[i];
}

/* ---- slots --------------------------------------------------------------- */

static uint8_t *page_at(struct bed *b, uint32_t number)
{
	uint32_t id;
	void *at;
	int fd;

	if (number >= XKV_PAGES_MAX)
		return NULL;
	if (b->page[number])
		return b->page[number];
	if (bpf_map_lookup_elem(b->bpf.map[BPF_PAGES], &number, &id))
		return NULL;
	fd = bpf_map_get_fd_by_id(id);
	if (fd < 0)
		return NULL;
	at = mmap(NULL, XKV_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at != MAP_FAILED)
		b->page[number] = at;
	return b->page[number];
}

static struct xkv_slot *slot_at(struct bed *b, uint64_t ref)
{
	uint8_t *page = page_at(b, (uint32_t)XKV_REF_PAGE(ref));

	return page && XKV_REF_OFFSET(ref) ? (struct xkv_slot *)(page + XKV_REF_OFFSET(ref)) : NULL;
}

uint64_t bed_fingerprint(const struct bed *b, const void *key, size_t key_len)
{
	uint64_t word[32] = { 0 };
	struct siphash s;

	memcpy(word, key, key_len);
	siphash_init(&s, b->c->secret);
	for (size_t i = 0; i * 8 < key_len; i++)
		siphash_word(&s, word[i]);
	return siphash_end(&s, (__u32)key_len) & b->c->fingerprint_mask;
}

struct xkv_slot *bed_slot(struct bed *b, const void *key, size_t key_len)
{
	uint64_t place = bed_fingerprint(b, key, key_len);
	struct xkv_index element;
	struct xkv_slot *slot;

	for (int i = 0; i < XKV_PROBES; i++, place += XKV_PROBE_STEP) {
		if (bpf_map_lookup_elem(b->bpf.map[BPF_INDEX], &place, &element))
			return NULL;
		slot = slot_at(b, element.ref);
		if (slot && slot->key_len == key_len && !memcmp(slot + 1, key, key_len))
			return slot;
	}
	return NULL;
}

unsigned int bed_index_count(const struct bed *b)
{
	uint64_t key, next;
	unsigned int n = 0;
	int fd = b->bpf.map[BPF_INDEX];

	for (int ret = bpf_map_get_next_key(fd, NULL, &next); !ret;
	     ret = bpf_map_get_next_key(fd, &key, &next)) {
		key = next;
		n++;
	}
	return n;
}

/* ---- accounting ---------------------------------------------------------- */

/* Which slots were met: a bit for each 8 bytes of each page. */
struct account {
	struct bed *b;
	unsigned int pages;
	uint64_t slots, met, live;
	uint8_t *seen;
};

/* Marks a slot; false if it is none, or was met before. */
static bool meet(struct account *a, uint64_t ref)
{
	uint64_t page = XKV_REF_PAGE(ref), offset = XKV_REF_OFFSET(ref), bit;
	const struct xkv_page *head;

	if (page >= a->pages || ref >> XKV_REF_BITS || offset < sizeof(*head))
		return false;
	head = (const struct xkv_page *)a->b->page[page];
	if ((offset - sizeof(*head)) % head->slot_bytes ||
	    (offset - sizeof(*head)) / head->slot_bytes >= head->slots)
		return false;
	bit = page << XKV_OFFSET_BITS | offset >> 3;
	if (a->seen[bit >> 3] & 1 << (bit & 7))
		return false;
	a->seen[bit >> 3] |= (uint8_t)(1 << (bit & 7));
	a->met++;
	return true;
}

static const char *account_pages(struct account *a)
{
	const struct xkv_page *head;

	for (a->pages = 0; page_at(a->b, a->pages); a->pages++) {
		head = (const struct xkv_page *)a->b->page[a->pages];
		if (head->magic != XKV_PAGE_MAGIC || head->class >= XKV_CLASSES ||
		    head->slot_bytes != a->b->classes[head->class].slot_bytes)
			return say("page %u has a broken header", a->pages);
		a->slots += head->slots;
	}
	a->seen = calloc(a->pages + 1, (1U << XKV_OFFSET_BITS) / 8);
	return a->seen ? NULL : say("not enough memory");
}

static const char *account_list(struct account *a, unsigned int class)
{
	const struct xkv_class *c = &a->b->classes[class];
	uint64_t ref = c->head & XKV_REF_MASK, n = 0;
	const struct xkv_slot *slot;

	for (; ref; ref = slot->next, n++) {
		if (!meet(a, ref))
			return say("free list of class %u: slot %#lx is none, or is met twice",
				   class, (unsigned long)ref);
		slot = slot_at(a->b, ref);
		if (!(slot->seq & 1) || slot->class != class || slot->flags)
			return say(
				"free list of class %u: slot %#lx has seq %lu, class %u, flags %u",
				class, (unsigned long)ref, (unsigned long)slot->seq, slot->class,
				slot->flags);
	}
	if (n != c->free)
		return say("class %u says it has %lu free slots, and has %lu", class,
			   (unsigned long)c->free, (unsigned long)n);
	return NULL;
}

static bool zeros(const uint8_t *at, size_t from)
{
	for (; from & 7; from++)
		if (at[from])
			return false;
	return true;
}

/* Is what `slot` holds whole, in the right class, and described rightly in index? */
static const char *account_entry(struct account *a, const struct xkv_slot *slot,
				 const struct xkv_index *element)
{
	size_t need = XKV_SLOT_NEED(slot->key_len, slot->value_len);
	const uint8_t *key = (const uint8_t *)(slot + 1);
	size_t head = slot->key_len < sizeof(element->key_head) ? slot->key_len
								: sizeof(element->key_head);

	if (slot->seq & 1)
		return "is locked or free";
	if (!slot->key_len || slot->key_len > XKV_KEY_MAX ||
	    need > a->b->classes[slot->class].slot_bytes)
		return "has lengths that do not fit its class";
	if (!zeros(key, slot->key_len) || !zeros(key + XKV_PADDED(slot->key_len), slot->value_len))
		return "is not padded with zeros";
	if (slot->flags & ~XKV_SLOT_COLLIDED)
		return "has unknown flags";
	if (element->key_len != slot->key_len || memcmp(element->key_head, key, head))
		return "is described by another key in index";
	return NULL;
}

/* Does the key of a slot belong at this place, with a marked entry at each place before? */
static const char *account_place(struct account *a, const struct xkv_slot *slot, uint64_t place)
{
	uint64_t probe = bed_fingerprint(a->b, slot + 1, slot->key_len);
	const struct xkv_slot *other;
	struct xkv_index element;

	for (int i = 0; i < XKV_PROBES; i++, probe += XKV_PROBE_STEP) {
		if (probe == place)
			return NULL;
		if (bpf_map_lookup_elem(a->b->bpf.map[BPF_INDEX], &probe, &element))
			return "cannot be found: a place before its own is empty";
		other = slot_at(a->b, element.ref);
		if (!other || !(other->flags & XKV_SLOT_COLLIDED))
			return "cannot be found: an entry before it is not marked";
		if (other->key_len == slot->key_len && !memcmp(other + 1, slot + 1, slot->key_len))
			return "stands in index twice";
	}
	return "stands where its key does not belong";
}

static const char *account_index(struct account *a)
{
	int fd = a->b->bpf.map[BPF_INDEX];
	const struct xkv_slot *slot;
	struct xkv_index element;
	uint64_t place, next;
	const char *why;

	for (int ret = bpf_map_get_next_key(fd, NULL, &next); !ret;
	     ret = bpf_map_get_next_key(fd, &place, &next)) {
		place = next;
		if (bpf_map_lookup_elem(fd, &place, &element))
			return say("index[%#lx] went away", (unsigned long)place);
		if (!meet(a, element.ref))
			return say("index[%#lx]: slot %#lx is none, is free, or is met twice",
				   (unsigned long)place, (unsigned long)element.ref);
		slot = slot_at(a->b, element.ref);
		why = account_entry(a, slot, &element);
		if (!why)
			why = account_place(a, slot, place);
		if (why)
			return say("index[%#lx]: the entry (key of %u bytes, seq %lu, flags %u) %s",
				   (unsigned long)place, slot->key_len, (unsigned long)slot->seq,
				   slot->flags, why);
		a->live += slot->expire_ms != XKV_TOMB;
	}
	return NULL;
}

static const char *account_once(struct account *a)
{
	const char *why = account_pages(a);

	for (unsigned int class = 0; !why && class < XKV_CLASSES; class ++)
		why = account_list(a, class);
	if (!why)
		why = account_index(a);
	if (!why && a->met != a->slots)
		why = say("%ld of %lu slots are lost", (long)(a->slots - a->met),
			  (unsigned long)a->slots);
	if (!why && a->live != store_count(a->b->st))
		why = say("index has %lu keys, store_count() says %lu", (unsigned long)a->live,
			  (unsigned long)store_count(a->b->st));
	return why;
}

const char *bed_account(struct bed *b)
{
	const char *why = NULL;

	/* While we walk, the store's own thread may link a page: that is over in a moment. */
	for (int i = 0; i < 50; i++) {
		struct account a = { .b = b };

		why = account_once(&a);
		free(a.seen);
		if (!why)
			break;
		usleep(1000);
	}
	return why;
}

// SPDX-License-Identifier: BSD-2-Clause
/* A store with the XDP program and no NIC: see xdpbed.h. */
#include "xdpbed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/magic.h>

#include "client/check.h"
#include "loader/store/impl.h"

#define SKIPPED	   77 /* exit status, by which tests/run knows it */
#define BPFFS	   "/sys/fs/bpf"
#define FRAMES	   (XKV_CONTEXTS * XKV_CONTEXT_REQUESTS)
#define FRAME	   (FRAMES - 1) /* ours: the last of a context that nobody takes */
#define WARM_SLOTS 2000		/* of each class */
#define WALKS                                                                                      \
	4 /* while we walk, the store's own thread may link a page: that is over in a moment */

bool bed_batched;

static char complaint[512];

/* A sentence that stays until the next one. */
__attribute__((format(printf, 1, 2))) static const char *failure(const char *fmt, ...)
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
		return failure("needs root: it loads BPF programs");
	if (bpf_check_kernel(complaint, sizeof(complaint)))
		return complaint;
	if (statfs(BPFFS, &fs) || (unsigned long)fs.f_type != BPF_FS_MAGIC)
		return failure("no BPF file system on " BPFFS ": mount -t bpf bpf " BPFFS);
	return NULL;
}

int bed_begin(int argc, char *const argv[])
{
	const char *why = bed_cannot_run();

	if (why) {
		printf("SKIP: %s\n", why);
		return SKIPPED;
	}
	bed_batched = getenv("XKV_TEST_BATCH") != NULL;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return 0;
}

void bed_configure(struct bed *b)
{
	struct xkv_rules *r = b->rules = &b->c->rules[b->c->current & 1];
	struct packet_spec s;

	memset(r, 0, sizeof(*r));
	packet_default(&s, false);
	memcpy(&r->local4[0].addr, s.dst, 4);
	r->local4[0].network = htonl(0x0a4d0000);
	r->local4[0].broadcast = htonl(0x0a4d00ff);
	memcpy(r->local4[0].mac, s.dst_mac, 6);
	r->allow4[0] = (struct xkv_prefix4){ htonl(0x0a4d0000), htonl(0xffffff00) };
	packet_default(&s, true);
	memcpy(r->local6[0].addr, s.dst, 16);
	memcpy(r->local6[0].mac, s.dst_mac, 6);
	memcpy(r->allow6[0].net, s.dst, 8);
	r->allow6[0].mask[0] = ~0ULL;
	/* The same on the VLANs that packet.c makes: one, and one on it. */
	for (unsigned int tags = 1; tags <= 2; tags++) {
		r->local4[tags] = r->local4[0];
		r->local6[tags] = r->local6[0];
		r->local4[tags].link = r->local6[tags].link = packet_link(&s, tags);
	}
	r->local4_count = r->local6_count = 3;
	r->allow4_count = r->allow6_count = 1;
	r->port = htons(XKV_PORT);
	r->trusted = 1;
	r->auth = XKV_AUTH_OPEN;
	b->c->miss_reply = 0;
	b->c->read_only = b->c->logged = 0;
	b->c->batch = bed_batched ? XKV_BATCH_ON : XKV_BATCH_OFF;
	b->c->payload4 = XKV_PAYLOAD_MAX4;
	b->c->payload6 = XKV_PAYLOAD_MAX6;
}

/*
 * Batched mode: a test run ends where the packet is redirected, so bed_run() runs the DEVMAP's
 * program, too.  That is possible only for one that is loaded as a plain XDP program, which in turn
 * cannot be in the DEVMAP.
 */
static int open_bulk(struct bed *b)
{
	struct bpf_devmap_val lo = { .ifindex = 1, .bpf_prog.fd = -1 };
	__u32 zero = 0;

	b->bulk_prog = bpf_program__fd(bpf_object__find_program_by_name(b->object, "xkv_bulk_xdp"));
	return bpf_map_update_elem(bpf_object__find_map_fd_by_name(b->object, "xkv_self"), &zero,
				   &lo, BPF_ANY);
}

static const char *load_xdp(struct bed *b)
{
	struct bpf_program *prog;
	int ret;

	b->object = bpf_open_xdp(&b->bpf, bed_batched ? NULL : "xkv_xdp");
	if (!b->object)
		return failure("cannot open the XDP program: %s", strerror(errno));
	prog = bpf_object__find_program_by_name(b->object, "xkv_bulk_xdp");
	if (bed_batched)
		bpf_program__set_expected_attach_type(prog, 0);
	ret = bpf_object__load(b->object);
	if (ret)
		return failure("cannot load the XDP program: %s", strerror(-ret));
	prog = bpf_object__find_program_by_name(b->object, "xkv_xdp");
	b->prog = prog ? bpf_program__fd(prog) : -1;
	if (bed_batched && open_bulk(b))
		return failure("cannot fill the DEVMAP: %s", strerror(errno));
	return b->prog < 0 ? failure("there is no program xkv_xdp") : NULL;
}

int bed_xdp(struct bed *b)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	const char *why = NULL;

	pthread_mutex_lock(&lock);
	if (!b->object)
		why = load_xdp(b);
	if (why)
		fprintf(stderr, "%s\n", why);
	pthread_mutex_unlock(&lock);
	return b->prog;
}

static void *map_shared(int fd, size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return at == MAP_FAILED ? NULL : at;
}

static const char *open_store(struct bed *b, bool new)
{
	char err[512];
	bool fresh;

	b->st = store_open(&b->bpf, 0, STORE_NOEVICTION, &fresh, err, sizeof(err));
	if (!b->st)
		return failure("%s", err);
	b->ctx = store_ctx_get(b->st);
	b->c = store_config(b->st);
	b->secrets = store_secrets(b->st);
	b->cpus = libbpf_num_possible_cpus();
	b->each_cpu = calloc(b->cpus, sizeof(*b->each_cpu));
	b->each_tally = calloc(b->cpus, sizeof(*b->each_tally));
	b->classes = map_shared(b->bpf.map[BPF_CLASSES], XKV_CLASSES * sizeof(*b->classes));
	b->index = map_shared(b->bpf.map[BPF_INDEX], b->bpf.buckets * sizeof(*b->index));
	b->once = map_shared(b->bpf.map[BPF_ONCE], XKV_DEDUP_SETS * sizeof(*b->once));
	b->batch = map_shared(b->bpf.map[BPF_BATCH], FRAMES * sizeof(*b->batch));
	if (!b->ctx || !b->each_cpu || !b->each_tally || !b->classes || !b->index || !b->once ||
	    !b->batch)
		return failure("cannot map the store: %s", strerror(errno));
	bed_maintenance(b, false);
	if (new)
		b->c->list_mask = 0; /* so that it does not matter where a test runs */
	bed_configure(b);
	store_start(b->st);
	return fresh == new ? NULL
			    : failure("the store in %s is%s new", b->pin_dir, new ? " not" : "");
}

static void close_store(struct bed *b)
{
	if (b->classes)
		munmap(b->classes, XKV_CLASSES * sizeof(*b->classes));
	if (b->index)
		munmap(b->index, b->bpf.buckets * sizeof(*b->index));
	if (b->once)
		munmap(b->once, XKV_DEDUP_SETS * sizeof(*b->once));
	if (b->batch)
		munmap(b->batch, FRAMES * sizeof(*b->batch));
	store_ctx_put(b->ctx);
	store_close(b->st);
	free(b->each_cpu);
	free(b->each_tally);
}

const char *bed_adopt(struct bed *b)
{
	close_store(b);
	return open_store(b, false);
}

const char *bed_open(struct bed *b, unsigned int max_keys)
{
	const char *prefix = getenv("XKV_TEST_PREFIX"), *why = NULL;
	static unsigned int number;
	char err[400], keys[16], *argv[] = { "--max-keys", keys, "--pin-dir", b->pin_dir };
	struct config_builder builder;

	memset(b, 0, sizeof(*b));
	b->bpf.lock = b->prog = -1;
	snprintf(keys, sizeof(keys), "%u", max_keys);
	snprintf(b->pin_dir, sizeof(b->pin_dir), BPFFS "/xkv-test-%s-packet-%d-%u",
		 prefix ? prefix : "own", (int)getpid(), number++);
	if (config_begin(&builder, NULL) || config_read_args(&builder, 4, argv, err, sizeof(err)) ||
	    !(b->config = config_finish(&builder, err, sizeof(err))))
		return failure("cannot make a configuration");
	if (bpf_open(&b->bpf, b->config, err, sizeof(err)))
		why = failure("%s", err);
	if (!why)
		why = open_store(b, true);
	if (why)
		bed_close(b);
	return why;
}

void bed_maintenance(struct bed *b, bool runs)
{
	maintenance_stop(b->st);
	if (runs && maintenance_start(b->st))
		fprintf(stderr, "the store's thread does not start\n");
}

void bed_maintained(struct bed *b, bool on)
{
	pthread_mutex_lock(&b->st->maint.need_lock);
	b->st->maint.runs = on;
	b->st->maint.stopping = !on;
	pthread_cond_broadcast(&b->st->maint.need_served);
	pthread_mutex_unlock(&b->st->maint.need_lock);
}

void bed_impatient(struct bed *b, bool on)
{
	b->st->busy_tries = on ? 200 : BUSY_TRIES;
}

void bed_close(struct bed *b)
{
	char err[400];

	if (!b->config)
		return;
	close_store(b);
	if (b->object)
		bpf_object__close(b->object);
	bpf_close(&b->bpf);
	if (bpf_detach(b->config, err, sizeof(err)))
		fprintf(stderr, "%s\n", err);
	config_free(b->config);
	memset(b, 0, sizeof(*b));
	b->bpf.lock = -1; /* 0 would be a descriptor */
}

/* ---- running ------------------------------------------------------------- */

static bool run_xdp(int prog, const uint8_t *frame, size_t len, struct outcome *out)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = frame, .data_size_in = (uint32_t)len,
		    .data_out = out->frame, .data_size_out = sizeof(out->frame), .repeat = 1);

	if (bpf_prog_test_run_opts(prog, &opts))
		return false;
	out->verdict = (int)opts.retval;
	out->len = opts.data_size_out;
	return true;
}

bool bed_ingress(struct bed *b, const uint8_t *frame, size_t len, struct outcome *out)
{
	return run_xdp(bed_xdp(b), frame, len, out);
}

/* The verdict of a program in a DEVMAP: XDP_PASS sends. */
bool bed_queue(struct bed *b, const uint8_t *frame, size_t len, struct outcome *out)
{
	bool ok = run_xdp(b->bulk_prog, frame, len, out);

	if (out->verdict == XDP_PASS)
		out->verdict = XDP_TX;
	return ok;
}

bool bed_run(struct bed *b, const uint8_t *frame, size_t len, struct outcome *out)
{
	uint8_t queued[PACKET_MAX];
	cpu_set_t before, here;
	bool ok;

	if (!bed_batched)
		return bed_ingress(b, frame, len, out);
	/* notes are per CPU */
	pthread_getaffinity_np(pthread_self(), sizeof(before), &before);
	CPU_ZERO(&here);
	CPU_SET(sched_getcpu(), &here);
	pthread_setaffinity_np(pthread_self(), sizeof(here), &here);
	ok = bed_ingress(b, frame, len, out);
	if (ok && out->verdict == XDP_REDIRECT) {
		memcpy(queued, out->frame, out->len);
		ok = bed_queue(b, queued, out->len, out);
	}
	pthread_setaffinity_np(pthread_self(), sizeof(before), &before);
	return ok;
}

static int prog_run(struct bed *b, struct xkv_run_args *args)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts, .ctx_in = args, .ctx_size_in = sizeof(*args));

	return bpf_prog_test_run_opts(b->bpf.run, &opts) ? -errno : (int)opts.retval;
}

struct xkv_request *bed_frame(struct bed *b)
{
	return &b->batch[FRAME];
}

int bed_run_frame(struct bed *b)
{
	return prog_run(b, &(struct xkv_run_args){ .requests = { .first = FRAME, .count = 1 } });
}

int bed_slots(struct bed *b, struct xkv_slots_args *args)
{
	struct xkv_run_args run = { .what = XKV_RUN_SLOTS };
	int ret;

	args->request = FRAME;
	run.slots = *args;
	ret = prog_run(b, &run);
	*args = run.slots;
	return ret;
}

int bed_grow(struct bed *b, unsigned int class)
{
	uint64_t until_ms = 0;

	return slots_grow(b->st, class, 1, &until_ms);
}

bool bed_warm(struct bed *b)
{
	for (unsigned int class = 0; class < b->st->class_count; class ++)
		while (b->st->classes[class].slot_bytes <= XKV_SLOT_WINDOW &&
		       b->st->mem.class[class].slots < WARM_SLOTS)
			if (span_carve(b->st, class) && pages_add(b->st, 8) < 1)
				return false;
	return true;
}

/*
 * The emptiest span of a class that does not drain yet; one that has entries rather than one that
 * has none.
 */
static bool emptiest_span(struct bed *b, unsigned int class, struct span *best)
{
	unsigned int least = ~0U, full;
	struct slot_cursor hand = { 0 };
	struct span s;

	for (; cursor_span(b->st, &hand, &s); hand.unit += s.units, hand.slot = 0) {
		full = span_fullness(&s) ? span_fullness(&s) : 1025;
		if (s.class == class && span_head(&s)->state == XKV_SPAN_LINKED && full < least) {
			least = full;
			*best = s;
		}
	}
	return least != ~0U;
}

unsigned int bed_drain(struct bed *b, struct store_ctx *ctx, unsigned int class, unsigned int count)
{
	struct span s;

	for (; count && emptiest_span(b, class, &s); count--)
		drain_begin(b->st, &s);
	return drain_run(ctx);
}

void bed_counters(const struct bed *b, uint64_t sum[XKV_COUNTER_COUNT])
{
	memset(sum, 0, XKV_COUNTER_COUNT * sizeof(*sum));
	if (b->st)
		counters_settle(b->st);
	for (uint32_t frontend = 0; frontend < XKV_FRONTENDS; frontend++) {
		if (bpf_map_lookup_elem(b->bpf.map[BPF_COUNTERS], &frontend, b->each_cpu) ||
		    bpf_map_lookup_elem(b->bpf.map[BPF_TALLY], &frontend, b->each_tally))
			return;
		for (unsigned int cpu = 0; cpu < b->cpus; cpu++)
			for (int i = 0; i < XKV_COUNTER_COUNT; i++)
				sum[i] +=
					i < XKV_STATISTIC_COUNT
						? ((uint64_t *)&b->each_cpu[cpu])[i]
						: ((uint64_t *)&b
							   ->each_tally[cpu])[i -
									      XKV_STATISTIC_COUNT];
	}
}

/* ---- slots --------------------------------------------------------------- */

/* From the store's mappings: a look-up in the map of pages takes long on kernels before 6.7. */
struct xkv_slot *bed_slot_at(struct bed *b, uint64_t ref)
{
	return slot_of(b->st, ref);
}

static bool span_of(struct bed *b, const struct xkv_slot *slot, struct span *s)
{
	return span_of_ref(b->st, bed_ref(b, slot), s);
}

struct xkv_unit *bed_span_of(struct bed *b, const struct xkv_slot *slot)
{
	struct span s;

	return span_of(b, slot, &s) ? span_head(&s) : NULL;
}

unsigned int bed_span_slots(struct bed *b, const struct xkv_slot *slot)
{
	struct span s;

	return span_of(b, slot, &s) ? s.slots : 0;
}

uint64_t bed_ref(struct bed *b, const struct xkv_slot *slot)
{
	const uint8_t *page;

	for (unsigned int i = 0; i < XKV_PAGES_MAX; i++) {
		page = b->st->mem.page[i];
		if (page && (const uint8_t *)slot > page &&
		    (const uint8_t *)slot < page + XKV_PAGE_BYTES)
			return XKV_REF(i, (uint64_t)((const uint8_t *)slot - page));
	}
	return 0;
}

uint64_t bed_fingerprint(const struct bed *b, const void *key, size_t key_len)
{
	return hash_key(key, (__u32)key_len, 0, &b->secrets->hash) & b->c->fingerprint_mask;
}

struct xkv_bucket *bed_bucket(struct bed *b, const void *key, size_t key_len)
{
	return &b->index[bed_fingerprint(b, key, key_len) & b->c->bucket_mask];
}

/* The bucket behind this one, NULL if it is the last. */
static struct xkv_bucket *next_bucket(struct bed *b, const struct xkv_bucket *bucket)
{
	struct xkv_chain *chain = (struct xkv_chain *)bed_slot_at(b, bucket->head & XKV_REF_MASK);

	return chain ? &chain->bucket : NULL;
}

struct xkv_slot *bed_slot(struct bed *b, const void *key, size_t key_len)
{
	struct xkv_bucket *bucket = bed_bucket(b, key, key_len);
	struct xkv_slot *slot;

	for (; bucket; bucket = next_bucket(b, bucket))
		for (int way = 0; way < XKV_WAYS; way++) {
			slot = bed_slot_at(b, bucket->entry[way] & XKV_REF_MASK);
			if (slot && slot->key_len == key_len && !memcmp(slot + 1, key, key_len))
				return slot;
		}
	return NULL;
}

unsigned int bed_index_count(struct bed *b)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < b->bpf.buckets; i++)
		for (struct xkv_bucket *at = &b->index[i]; at; at = next_bucket(b, at))
			for (int way = 0; way < XKV_WAYS; way++)
				n += at->entry[way] != 0;
	return n;
}

unsigned int bed_chain_count(struct bed *b)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < b->bpf.buckets; i++)
		for (struct xkv_bucket *at = next_bucket(b, &b->index[i]); at;
		     at = next_bucket(b, at))
			n++;
	return n;
}

const char *bed_account(struct bed *b)
{
	struct check_sums sums;
	char *report = NULL;
	size_t len = 0;
	FILE *text = open_memstream(&report, &len);
	int ret;

	if (!text)
		return failure("not enough memory");
	ret = check_store(b->pin_dir, WALKS, &sums, text);
	check_print(&sums, text);
	fclose(text);
	if (ret)
		failure("%s", report);
	else if (sums.keys != store_count(b->st))
		failure("index has %lu keys, store_count() says %lu", (unsigned long)sums.keys,
			(unsigned long)store_count(b->st));
	free(report);
	return ret || sums.keys != store_count(b->st) ? complaint : NULL;
}

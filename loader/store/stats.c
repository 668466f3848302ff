// SPDX-License-Identifier: BSD-2-Clause
/* Counters, number of keys, and memory in use. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "impl.h"

static const char *const counter_names[] = {
#define COUNTER_NAME(name) #name,
	XKV_COUNTERS(COUNTER_NAME)
};

/* Hits and misses of lookup() that the map has not got yet.  The caller holds counts_lock. */
static void lookups_uncounted(const struct store *st, uint64_t *hits, uint64_t *misses)
{
	*hits = -st->counted.hits;
	*misses = -st->counted.misses;
	for (int i = 0; i < XKV_CONTEXTS; i++) {
		*hits += atomic_load_explicit(&st->ctx[i].hits, memory_order_relaxed);
		*misses += atomic_load_explicit(&st->ctx[i].misses, memory_order_relaxed);
	}
}

void counters_settle(struct store *st)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_COUNT };
	uint64_t hits, misses;

	pthread_mutex_lock(&st->counts_lock);
	lookups_uncounted(st, &hits, &misses);
	args.first = hits;
	args.last = misses;
	if ((hits || misses) && !slots_run(st, &args)) {
		st->counted.hits += hits;
		st->counted.misses += misses;
	}
	pthread_mutex_unlock(&st->counts_lock);
}

#define WORDS(type) (sizeof(type) / sizeof(uint64_t))
#define WORDS_MOST                                                                                 \
	(WORDS(struct xkv_tally) > WORDS(struct xkv_counters) ? WORDS(struct xkv_tally)            \
							      : WORDS(struct xkv_counters))

/* Adds up `count` of the `words` that each CPU has for a front end.  False: unreadable. */
static bool add_words(const struct store *st, enum bpf_map_id map, uint32_t frontend,
		      uint64_t *each, size_t words, uint64_t *sum, size_t count)
{
	if (bpf_map_lookup_elem(st->bpf.map[map], &frontend, each))
		return false;
	for (unsigned int cpu = 0; cpu < st->cpus; cpu++)
		for (size_t i = 0; i < count; i++)
			sum[i] += each[cpu * words + i];
	return true;
}

int versions_next(const struct store *st, uint64_t *number)
{
	struct xkv_tally *each = calloc(st->cpus, sizeof(*each));
	int ret = each ? 0 : -ENOMEM;

	*number = 0;
	for (uint32_t frontend = 0; !ret && frontend < XKV_FRONTENDS; frontend++) {
		if (bpf_map_lookup_elem(st->bpf.map[BPF_TALLY], &frontend, each))
			ret = -errno;
		for (unsigned int cpu = 0; !ret && cpu < st->cpus; cpu++)
			if (each[cpu].version > *number)
				*number = each[cpu].version;
	}
	free(each);
	return ret;
}

/* Adds up a front end's counters of all CPUs.  False if they cannot be read. */
static bool add_frontend(const struct store *st, uint32_t frontend, uint64_t *each,
			 uint64_t sum[XKV_COUNTER_COUNT])
{
	return add_words(st, BPF_COUNTERS, frontend, each, WORDS(struct xkv_counters), sum,
			 XKV_STATISTIC_COUNT) &&
	       add_words(st, BPF_TALLY, frontend, each, WORDS(struct xkv_tally),
			 sum + XKV_STATISTIC_COUNT, XKV_COUNTER_COUNT - XKV_STATISTIC_COUNT);
}

/* The counters of the front ends from `first` to `last`, of all CPUs.  0 if they are unreadable. */
static void read_frontends(const struct store *st, uint32_t first, uint32_t last,
			   uint64_t sum[XKV_COUNTER_COUNT])
{
	uint64_t *each = calloc(st->cpus, WORDS_MOST * sizeof(*each));
	uint64_t hits = 0, misses = 0;
	bool ok = each;

	memset(sum, 0, XKV_COUNTER_COUNT * sizeof(*sum));
	pthread_mutex_lock((pthread_mutex_t *)&st->counts_lock);
	for (uint32_t frontend = first; ok && frontend <= last; frontend++)
		ok = add_frontend(st, frontend, each, sum);
	if (last == XKV_FRONTEND_XKVD)
		lookups_uncounted(st, &hits, &misses);
	pthread_mutex_unlock((pthread_mutex_t *)&st->counts_lock);
	sum[XKV_C_get_hits] += hits;
	sum[XKV_C_get_misses] += misses;
	free(each);
}

static void read_counters(const struct store *st, uint64_t sum[XKV_COUNTER_COUNT])
{
	read_frontends(st, XKV_FRONTEND_XDP, XKV_FRONTEND_XKVD, sum);
}

/* Each operation with a result increments exactly one counter of the range that is summed here. */
void store_udp_operations(const struct store *st, uint64_t *driver, uint64_t *here)
{
	uint64_t sum[XKV_COUNTER_COUNT];

	read_frontends(st, XKV_FRONTEND_XDP, XKV_FRONTEND_XDP, sum);
	*driver = 0;
	for (int i = XKV_C_op_bad_request; i <= XKV_C_relocations; i++)
		*driver += sum[i];
	*here = st->datagram_ops;
}

uint64_t store_count(const struct store *st)
{
	uint64_t sum[XKV_COUNTER_COUNT], in, out;

	read_counters(st, sum);
	in = sum[XKV_C_inserts];
	out = sum[XKV_C_deletes] + sum[XKV_C_expires] + sum[XKV_C_evictions];
	return in > out ? in - out : 0;
}

uint64_t stored_keys(const struct store *st, uint8_t db)
{
	uint64_t others = 0, all;

	if (db)
		return __atomic_load_n(&st->databases[db].keys, __ATOMIC_RELAXED);
	for (unsigned int i = 1; i < XKV_DATABASES; i++)
		others += __atomic_load_n(&st->databases[i].keys, __ATOMIC_RELAXED);
	all = store_count(st);
	return all > others ? all - others : 0;
}

uint64_t store_counter(const struct store *st, const char *name)
{
	uint64_t sum[XKV_COUNTER_COUNT];

	read_counters(st, sum);
	for (int i = 0; i < XKV_COUNTER_COUNT; i++)
		if (!strcmp(counter_names[i], name))
			return sum[i];
	return 0;
}

void store_counters(const struct store *st, store_counter_fn *fn, void *arg)
{
	uint64_t driver[XKV_COUNTER_COUNT], xkvd[XKV_COUNTER_COUNT];

	read_frontends(st, XKV_FRONTEND_XDP, XKV_FRONTEND_XDP, driver);
	read_frontends(st, XKV_FRONTEND_XKVD, XKV_FRONTEND_XKVD, xkvd);
	for (unsigned int i = 0; i < XKV_COUNTER_COUNT; i++)
		fn(arg, i, counter_names[i], (uint64_t[]){ driver[i], xkvd[i] });
}

uint64_t store_max_keys(const struct store *st)
{
	return (uint64_t)st->bpf.buckets * XKV_KEYS_PER_BUCKET;
}

static uint64_t pages_memory(const struct store *st)
{
	return (st->mem.pages_used + st->mem.tail_pages) * XKV_PAGE_COST;
}

void store_parts(const struct store *st, struct store_part parts[STORE_PARTS])
{
	const struct store_part all[STORE_PARTS] = {
		{ "index", (uint64_t)st->bpf.buckets * sizeof(struct xkv_bucket) },
		{ "pages", pages_memory(st) },
		{ "dedup_cache", xkv_table_bytes(XKV_TABLE_DEDUP, st->cpus) },
		{ "requests", xkv_table_bytes(XKV_TABLE_REQUESTS, st->cpus) },
		{ "transactions", xkv_table_bytes(XKV_TABLE_TRANSACTIONS, st->cpus) },
		{ "hot_keys", xkv_table_bytes(XKV_TABLE_HOT_KEYS, st->cpus) },
		{ "counters", xkv_table_bytes(XKV_TABLE_COUNTERS, st->cpus) },
	};

	memcpy(parts, all, sizeof(all));
}

uint64_t store_memory(const struct store *st)
{
	struct store_part parts[STORE_PARTS];
	uint64_t sum = 0;

	store_parts(st, parts);
	for (unsigned int i = 0; i < STORE_PARTS; i++)
		sum += parts[i].bytes;
	return sum;
}

bool store_class(const struct store *st, unsigned int number, struct store_class *out)
{
	bool large = number == st->class_count;
	unsigned int class = large ? XKV_CLASS_LARGE : number;
	int64_t free;

	if (number > st->class_count)
		return false;
	free = (int64_t)xkv_class_free(&st->classes[class]);
	*out = (struct store_class){
		.slot_bytes = large ? 0 : st->classes[class].slot_bytes,
		.spans = st->mem.class[class].spans,
		.slots = st->mem.class[class].slots,
		.free = free > 0 ? (uint64_t)free : 0,
		.bytes = st->mem.class[class].units * XKV_UNIT_BYTES,
		.wanted = __atomic_load_n(&st->classes[class].wanted, __ATOMIC_RELAXED),
	};
	return true;
}

void store_replies(const struct store *st, void (*fn)(void *arg, unsigned int cpu, uint64_t count),
		   void *arg)
{
	struct xkv_counters *each = calloc(st->cpus, sizeof(*each));
	uint32_t driver = XKV_FRONTEND_XDP;

	if (each && !bpf_map_lookup_elem(st->bpf.map[BPF_COUNTERS], &driver, each))
		for (unsigned int cpu = 0; cpu < st->cpus; cpu++)
			if (each[cpu].replies)
				fn(arg, cpu, each[cpu].replies);
	free(each);
}

bool store_at_limit(const struct store *st)
{
	return st->maxmemory &&
	       (store_memory(st) + XKV_PAGE_COST > st->maxmemory || st->maint.huge_refused);
}

uint64_t store_memory_least(const struct store *st)
{
	return store_memory(st) - pages_memory(st) + XKV_PAGE_COST;
}

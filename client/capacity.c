// SPDX-License-Identifier: BSD-2-Clause
/*
 * The command capacity: memory, CPUs and queues for so many keys of such sizes, by the rules that
 * xkvd makes its store by (bpf/sizes.h).  Needs no server.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bpf/libbpf.h>

#include "bpf/sizes.h"
#include "cli.h"

#define KEYS_MOST  (1ULL << 30)
#define PAIRS_MOST 10000000 /* of sizes in words: more take seconds to go through */

/* Free slots and units of a store that does not grow: a share, and at most so many pages. */
#define FREE_SHARE 32
#define FREE_PAGES 1

/* Of maxmemory: room to grow into, so that nothing is refused or evicted before that is full. */
#define HEADROOM 0.125

/*
 * Nanoseconds of an operation in the driver, one by one, uniform keys of 16 bytes, values of 128:
 * `sudo make bench-quick`, docs/benchmarks.md, "The XDP program alone"; and of each further byte.
 * docs/capacity.md says how they were found, and what is not in them.
 */
#define NS_OPERATION  552
#define NS_KEY_BYTE   0.6
#define NS_VALUE_BYTE 0.67
#define CPU_BUSY      0.7 /* of a CPU that still has room for a burst */

/* Sizes that are equally likely. */
struct sizes {
	unsigned long long from, to;
};

struct plan {
	unsigned long long keys, max_keys, rate, cpus;
	struct sizes key, value;
	/* of an entry, on average */
	double need;  /* bytes in its slot */
	double cost;  /* share of the pages */
	double large; /* share of entries with a span of their own */
	/* bytes in all */
	double index, chains, pages, tables;
	double cores;
};

/* ---- one entry ------------------------------------------------------------ */

/* Bytes of an entry in its slot. */
static double need_of(unsigned long long key, unsigned long long value)
{
	if (xkv_is_long(key)) {
		value += xkv_long_head_bytes(key);
		key = XKV_KEY_LONG;
	}
	return (double)XKV_SLOT_NEED(key, value);
}

/* Bytes of pages for each unit: the first unit of a page has its header. */
static double unit_cost(void)
{
	return (double)XKV_PAGE_COST / (XKV_UNITS - 1);
}

/* The share of pages that a slot of a class takes, when the class has long spans. */
static double slot_cost(unsigned int slot_bytes)
{
	unsigned int units = xkv_span_units(XKV_SPAN_UNITS_MAX, slot_bytes);

	return units * unit_cost() / (units * XKV_UNIT_BYTES / slot_bytes);
}

/* The share of pages that an entry with a span of its own takes, if all have its size. */
static double large_cost(double need)
{
	unsigned int units = xkv_units((__u64)need);

	return (double)XKV_PAGE_COST / ((XKV_UNITS - 1) / units);
}

static void add_entry(struct plan *p, double need)
{
	unsigned int size = XKV_CLASS_FIRST;

	p->need += need;
	p->large += need > XKV_LARGE;
	if (need > XKV_LARGE) {
		p->cost += large_cost(need);
		return;
	}
	while (size < need)
		size = xkv_class_next(size);
	p->cost += slot_cost(size);
}

/* Sizes are rounded to words, so one of each word stands for all. */
static unsigned long long words_of(const struct sizes *s)
{
	return XKV_PADDED(s->to) / 8 - XKV_PADDED(s->from) / 8 + 1;
}

static void add_entries(struct plan *p)
{
	double count = (double)(words_of(&p->key) * words_of(&p->value));

	for (unsigned long long k = 0; k < words_of(&p->key); k++)
		for (unsigned long long v = 0; v < words_of(&p->value); v++) {
			unsigned long long key = p->key.from + 8 * k, value = p->value.from + 8 * v;

			add_entry(p, need_of(key < p->key.to ? key : p->key.to,
					     value < p->value.to ? value : p->value.to));
		}
	p->need /= count;
	p->cost /= count;
	p->large /= count;
}

/* ---- the store ------------------------------------------------------------ */

/* Buckets of chains, if keys are spread over the index at random. */
static double chain_buckets(double keys, double buckets)
{
	double mean = keys / buckets, share = exp(-mean), extra = 0;

	for (int n = 0; n <= XKV_WAYS * (XKV_CHAIN_MAX + 1); n++) {
		if (n > XKV_WAYS)
			extra += share * ceil((double)(n - XKV_WAYS) / XKV_WAYS);
		share *= mean / (n + 1);
	}
	return extra * buckets;
}

static void add_up(struct plan *p)
{
	double keys = (double)p->keys, buckets = xkv_buckets_for(p->max_keys), free_slots;
	unsigned int chain = XKV_CLASS_FIRST;

	add_entries(p);
	while (chain < sizeof(struct xkv_chain))
		chain = xkv_class_next(chain);
	p->index = buckets * sizeof(struct xkv_bucket);
	p->chains = chain_buckets(keys, buckets) * slot_cost(chain);
	free_slots = fmin(keys * (1 - p->large) * p->cost / FREE_SHARE,
			  (double)FREE_PAGES * XKV_PAGE_COST);
	p->pages = ceil((keys * p->cost + p->chains + free_slots) / (double)XKV_PAGE_COST) *
		   (double)XKV_PAGE_COST;
	for (int t = 0; t < XKV_TABLES; t++)
		p->tables += (double)xkv_table_bytes((enum xkv_table)t, p->cpus);
	p->cores = (double)p->rate * 1e-9 *
		   (NS_OPERATION + NS_KEY_BYTE * ((double)(p->key.from + p->key.to) / 2 - 16) +
		    NS_VALUE_BYTE * ((double)(p->value.from + p->value.to) / 2 - 128)) /
		   CPU_BUSY;
}

static double memory_of(const struct plan *p)
{
	return p->index + p->pages + p->tables;
}

/* ---- output --------------------------------------------------------------- */

static double mib(double bytes)
{
	return bytes / (1 << 20);
}

static void print_plan(const struct plan *p)
{
	double memory = memory_of(p);

	printf("index            %12.1f MiB   max-keys %llu: %u buckets of 64 bytes\n",
	       mib(p->index), p->max_keys, xkv_buckets_for(p->max_keys));
	printf("pages            %12.1f MiB   an entry takes %.1f bytes, of which %.1f are used\n",
	       mib(p->pages), p->cost, p->need);
	printf("tables           %12.1f MiB   request contexts, dedup cache, counters\n",
	       mib(p->tables));
	printf("memory           %12.1f MiB   %.1f bytes a key\n", mib(memory),
	       memory / (double)p->keys);
	printf("maxmemory        %12.0f       with an eighth to grow into\n",
	       memory * (1 + HEADROOM));
	if (p->large > 0)
		printf("%.1f %% of the entries have more than %d bytes, and pages of their own: at "
		       "most so much\n",
		       100 * p->large, XKV_LARGE);
	if (p->rate)
		printf("CPUs and queues  %12.0f       %llu operations/s, without the network "
		       "driver's own time\n",
		       ceil(p->cores), p->rate);
}

static void json_plan(const struct plan *p)
{
	double memory = memory_of(p);

	out_json(json_pack("{s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:o}", "keys",
			   (json_int_t)p->keys, "max_keys", (json_int_t)p->max_keys, "entry_bytes",
			   p->need, "entry_cost", p->cost, "index", (json_int_t)p->index, "pages",
			   (json_int_t)p->pages, "tables", (json_int_t)p->tables, "memory",
			   (json_int_t)memory, "maxmemory", (json_int_t)(memory * (1 + HEADROOM)),
			   "cpus",
			   p->rate ? json_integer((json_int_t)ceil(p->cores)) : json_null()));
}

/* ---- the command ---------------------------------------------------------- */

static bool take_number(const char *text, unsigned long long most, const char **end,
			unsigned long long *n)
{
	char *after;

	errno = 0;
	*n = strtoull(text, &after, 10);
	*end = after;
	return isdigit((unsigned char)*text) && !errno && *n <= most;
}

/* "128", or "100-200". */
static bool take_sizes(const char *text, unsigned long long most, struct sizes *s)
{
	const char *end;

	if (!take_number(text, most, &end, &s->from))
		return false;
	s->to = s->from;
	if (*end == '-' && !take_number(end + 1, most, &end, &s->to))
		return false;
	return !*end && s->from <= s->to;
}

static bool take_word(struct plan *p, const char *name, const char *text)
{
	unsigned long long *n = !strcmp(name, "--keys")	      ? &p->keys
				: !strcmp(name, "--max-keys") ? &p->max_keys
				: !strcmp(name, "--rate")     ? &p->rate
				: !strcmp(name, "--cpus")     ? &p->cpus
							      : NULL;
	const char *end;

	if (!strcmp(name, "--key-size"))
		return take_sizes(text, XKV_LONG_KEY_MAX, &p->key);
	if (!strcmp(name, "--value-size"))
		return take_sizes(text, XKV_VALUE_MAX, &p->value);
	return n && take_number(text, n == &p->rate ? ~0ULL : KEYS_MOST, &end, n) && !*end && *n;
}

int cmd_capacity(struct cli *c, int argc, struct word *argv)
{
	int cpus = libbpf_num_possible_cpus();
	struct plan p = { .key = { 16, 16 },
			  .value = { 128, 128 },
			  .cpus = cpus > 0 ? (unsigned long long)cpus : 1 };

	for (int i = 1; i < argc; i += 2)
		if (i + 1 == argc || !take_word(&p, argv[i].data, argv[i + 1].data))
			return usage_error(c, command_usage("capacity"));
	if (!p.keys)
		return fail(c, EXIT_USAGE, "capacity: --keys N is needed, from 1 to %llu",
			    KEYS_MOST);
	if (words_of(&p.key) * words_of(&p.value) > PAIRS_MOST)
		return fail(c, EXIT_USAGE, "capacity: these ranges have too many sizes together");
	if (!p.max_keys)
		p.max_keys = p.keys;
	add_up(&p);
	if (c->style == STYLE_JSON)
		json_plan(&p);
	else
		print_plan(&p);
	return EXIT_DONE;
}

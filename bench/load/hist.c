// SPDX-License-Identifier: BSD-2-Clause
/* See hist.h. */
#include "hist.h"

#include <math.h>

#define SUB (1U << HIST_SUB_BITS)

/* Read by other threads while the owner counts: whole words, in no particular order. */
static uint64_t load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static void add(uint64_t *word, uint64_t n)
{
	__atomic_store_n(word, *word + n, __ATOMIC_RELAXED);
}

static double load_sum(const double *sum)
{
	double value;

	__atomic_load(sum, &value, __ATOMIC_RELAXED);
	return value;
}

static void add_sum(double *sum, double ns)
{
	double value = *sum + ns;

	__atomic_store(sum, &value, __ATOMIC_RELAXED);
}

static void take_extremes(struct hist *h, uint64_t min, uint64_t max)
{
	if (!h->total || min < h->min)
		__atomic_store_n(&h->min, min, __ATOMIC_RELAXED);
	if (max > h->max)
		__atomic_store_n(&h->max, max, __ATOMIC_RELAXED);
}

/*
 * Below 2 * SUB a value is its own bucket.  Above, the top eight bits are the
 * bucket within the power of two, and each shift opens SUB buckets more.
 */
unsigned int hist_bucket(uint64_t ns)
{
	unsigned int shift;

	if (ns > HIST_MAX_NS)
		ns = HIST_MAX_NS;
	if (ns < 2 * SUB)
		return ns;
	shift = 63 - __builtin_clzll(ns) - HIST_SUB_BITS;
	return (shift << HIST_SUB_BITS) + (ns >> shift);
}

uint64_t hist_bucket_max(unsigned int bucket)
{
	unsigned int shift;

	if (bucket < 2 * SUB)
		return bucket;
	shift = (bucket >> HIST_SUB_BITS) - 1;
	return ((uint64_t)(bucket - (shift << HIST_SUB_BITS) + 1) << shift) - 1;
}

void hist_record_many(struct hist *h, uint64_t ns, uint64_t times)
{
	if (ns > HIST_MAX_NS)
		ns = HIST_MAX_NS;
	add(&h->count[hist_bucket(ns)], times);
	take_extremes(h, ns, ns);
	add_sum(&h->sum, (double)ns * times);
	add(&h->total, times);
}

void hist_record(struct hist *h, uint64_t ns)
{
	hist_record_many(h, ns, 1);
}

void hist_merge(struct hist *into, const struct hist *from)
{
	uint64_t total = 0;

	if (!load(&from->total))
		return;
	for (unsigned int i = 0; i < HIST_BUCKETS; i++) {
		uint64_t n = load(&from->count[i]);

		if (n)
			add(&into->count[i], n);
		total += n;
	}
	take_extremes(into, load(&from->min), load(&from->max));
	add_sum(&into->sum, load_sum(&from->sum));
	/* The buckets' own sum, so that percentiles of a moving histogram add up. */
	add(&into->total, total);
}

void hist_subtract(struct hist *h, const struct hist *earlier)
{
	for (unsigned int i = 0; i < HIST_BUCKETS; i++)
		h->count[i] -= earlier->count[i];
	h->sum -= earlier->sum;
	h->total -= earlier->total;
}

uint64_t hist_percentile(const struct hist *h, double percent)
{
	uint64_t want, seen = 0;

	if (!h->total)
		return 0;
	want = ceil(percent / 100 * h->total);
	if (want < 1)
		want = 1;
	for (unsigned int i = 0; i < HIST_BUCKETS; i++) {
		seen += h->count[i];
		if (seen >= want) {
			uint64_t top = hist_bucket_max(i);

			return top < h->max ? top : h->max;
		}
	}
	return h->max;
}

double hist_mean(const struct hist *h)
{
	return h->total ? h->sum / h->total : 0;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A latency histogram of fixed size with bounded relative error, log-linear like HdrHistogram: each
 * power of two is divided into 128 buckets of equal width.
 *
 * Values are nanoseconds; those above 60 s are counted as 60 s.  A percentile is reported as the
 * upper bound of its bucket (but never above the recorded maximum): it is never too small and at
 * most 1/128 (0.8 %) too large; below 256 ns it is exact.  Minimum, maximum and mean are exact.
 *
 * Only one thread may change a histogram.  Others may read it at the same time, or merge from it,
 * and get counts that may be slightly old.
 */
#ifndef BENCH_HIST_H
#define BENCH_HIST_H

#include <stdint.h>

#define HIST_SUB_BITS 7
#define HIST_MAX_NS   60000000000ULL /* < 2^36 */
#define HIST_BUCKETS  ((36 - HIST_SUB_BITS + 1) << HIST_SUB_BITS)

struct hist {
	uint64_t count[HIST_BUCKETS];
	uint64_t total; /* values recorded */
	double sum;	/* of the values, ns; may exceed 64 bits */
	uint64_t min;	/* ns; 0 if empty */
	uint64_t max;	/* ns; 0 if empty */
};

/* Records a value.  A histogram that is all zeros is empty. */
void hist_record(struct hist *h, uint64_t ns);

/* Records a value `times` times; at least once. */
void hist_record_many(struct hist *h, uint64_t ns, uint64_t times);

/* Adds the values of `from` to `into`. */
void hist_merge(struct hist *into, const struct hist *from);

/* Subtracts the values of `earlier`, an older copy of `h`.  Does not change min and max. */
void hist_subtract(struct hist *h, const struct hist *earlier);

/* The value that `percent` (0..100) of all values do not exceed, ns; 0 if empty. */
uint64_t hist_percentile(const struct hist *h, double percent);

/* The mean, ns; 0 if empty. */
double hist_mean(const struct hist *h);

/* The bucket of a value, and the largest value of a bucket, ns. */
unsigned int hist_bucket(uint64_t ns);
uint64_t hist_bucket_max(unsigned int bucket);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A latency histogram of fixed size with bounded relative error, log-linear as
 * HdrHistogram's: each power of two is cut into 128 buckets of equal width.
 *
 * Values are nanoseconds, 0 to 60 s; what is longer counts as 60 s.  A
 * percentile is reported as the upper end of its bucket (never above the
 * largest value that was recorded): it is never too small and at most 1/128
 * (0.8 %) too large, below 256 ns it is exact.  Minimum, maximum and mean are exact.
 *
 * One thread records; others may read or merge from it meanwhile and get a
 * count that is a moment old.
 */
#ifndef BENCH_HIST_H
#define BENCH_HIST_H

#include <stdint.h>

#define HIST_SUB_BITS 7
#define HIST_MAX_NS 60000000000ULL /* < 2^36 */
#define HIST_BUCKETS ((36 - HIST_SUB_BITS + 1) << HIST_SUB_BITS)

struct hist {
	uint64_t count[HIST_BUCKETS];
	uint64_t total; /* values recorded */
	double sum;     /* of them, ns: of many that were never sent it does not fit a word */
	uint64_t min;   /* ns; 0 if empty */
	uint64_t max;   /* ns; 0 if empty */
};

/* An all-zero histogram is an empty one. */
void hist_record(struct hist *h, uint64_t ns);

/* The same value, so many times; at least once. */
void hist_record_many(struct hist *h, uint64_t ns, uint64_t times);

/* Adds what `from` holds to `into`. */
void hist_merge(struct hist *into, const struct hist *from);

/* Takes from `h` what `earlier`, an older copy of it, held.  min and max stay those of `h`. */
void hist_subtract(struct hist *h, const struct hist *earlier);

/* The value that `percent` (0..100) of all values do not exceed, ns; 0 if empty. */
uint64_t hist_percentile(const struct hist *h, double percent);

/* ns; 0 if empty */
double hist_mean(const struct hist *h);

/* The bucket of a value, and the largest value that a bucket takes, ns. */
unsigned int hist_bucket(uint64_t ns);
uint64_t hist_bucket_max(unsigned int bucket);

#endif

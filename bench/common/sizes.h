/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Sizes of keys and values in bytes.  They are a function of the key's number, so that a GET asks
 * for the key that a SET stored.  Thread safe.
 */
#ifndef BENCH_SIZES_H
#define BENCH_SIZES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sizes_kind { SIZES_UNIFORM, SIZES_PARETO, SIZES_LOGNORMAL };

struct sizes {
	unsigned int min, max; /* inclusive; samples are limited to this range */
	enum sizes_kind kind;
	double scale, shape; /* Pareto: generalized, location 0; lognormal: median and sigma */
};

enum sizes_of_what { SIZES_KEY, SIZES_VALUE };

/*
 * Parses "16", "20-45" or the name of a measured workload into *s; sizes are min..max.  0, or
 * -EINVAL with a sentence in `err`.  The workloads:
 *
 * etc      Facebook's ETC pool: Atikoglu, Xu, Frachtenberg, Jiang and Paleczny, "Workload
 *          Analysis of a Large-Scale Key-Value Store", SIGMETRICS 2012.  Keys of 20 to 45 bytes,
 *          values generalized Pareto.
 * twitter  like Twitter's: Yang, Yue and Rashmi, "A large scale analysis of hundreds of in-memory
 *          cache clusters at Twitter", OSDI 2020.  Of their clusters the median has keys of 38
 *          bytes and objects of 230, and a quarter has objects below 100; here these are the
 *          quantiles of one cluster: keys of 20 to 56 bytes, uniformly, and lognormal values.
 *
 * Both have values of up to a megabyte; here values are limited to what a datagram can hold.
 */
int sizes_parse(struct sizes *s, const char *text, enum sizes_of_what what, unsigned int min,
		unsigned int max, char *err, size_t err_len);

/* Are large sizes rare, so that they may be limited to what a datagram can hold? */
static inline bool sizes_have_tail(const struct sizes *s)
{
	return s->kind != SIZES_UNIFORM;
}

/* Length of the operation of a SET with such a key and value in a datagram of xkv. */
unsigned int sizes_set_bytes(unsigned int key, unsigned int value);

/*
 * Do requests and replies of `batch` operations fit a datagram of `payload` bytes, with its header
 * and, if `token`, the client's token?  0, or -EINVAL after an error message.
 */
int sizes_check_batch(unsigned int key, unsigned int value, unsigned int batch,
		      unsigned int payload, bool token);

/* The size for the key `number`, which is hashed: numbers may be consecutive. */
unsigned int sizes_of(const struct sizes *s, uint64_t number);

#endif

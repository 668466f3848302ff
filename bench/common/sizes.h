/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How many bytes a key or a value has.  The size belongs to the key's number and
 * never changes, so that a GET finds what a SET stored.
 */
#ifndef BENCH_SIZES_H
#define BENCH_SIZES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sizes_kind { SIZES_UNIFORM, SIZES_PARETO, SIZES_LOGNORMAL };

struct sizes {
	unsigned int min, max; /* both included; what is drawn beyond them counts as them */
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
 * Both have values of up to a megabyte; these end where a datagram does.
 */
int sizes_parse(struct sizes *s, const char *text, enum sizes_of_what what, unsigned int min,
		unsigned int max, char *err, size_t err_len);

/* Whether the greatest size is a rare one, which may be cut to what a datagram holds. */
static inline bool sizes_have_tail(const struct sizes *s)
{
	return s->kind != SIZES_UNIFORM;
}

/* Bytes that a SET of such a key and value takes in a datagram of xkv, its head included. */
unsigned int sizes_set_bytes(unsigned int key, unsigned int value);

/*
 * Whether requests and replies of so many operations have room in a datagram of `payload` bytes,
 * beside its header and, if there is one, the client's token.  0, or -EINVAL after a sentence.
 */
int sizes_check_batch(unsigned int key, unsigned int value, unsigned int batch,
		      unsigned int payload, bool token);

/* The size that belongs to `number`, which need not look random. */
unsigned int sizes_of(const struct sizes *s, uint64_t number);

#endif

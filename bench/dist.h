/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which key comes next, and how many bytes keys and values have: a random
 * generator and the distributions over it.
 *
 * Random numbers are xoshiro256++ 1.0 (David Blackman and Sebastiano Vigna,
 * 2019), seeded through splitmix64, both public domain, from
 * https://prng.di.unimi.it.
 *
 * Zipf is the generator of YCSB: Gray, Sundaresan, Englert, Baclawski and
 * Weinberger, "Quickly Generating Billion-Record Synthetic Databases", SIGMOD
 * 1994.  It needs 0 < theta < 1 and the sum zeta(keys, theta), which is computed
 * once.  Ranks 1 and 2 come out exactly as often as they should; from there on it
 * inverts an approximation of the sum, so with theta 0.99 and a million keys
 * rank 3 is drawn 20 % too often, rank 10 4 %, and the first 2,000 ranks
 * together 55.8 % of the time instead of 55.1 %.  Kept, to compare with others'.
 *
 * A rank is spread over the key numbers by a permutation, so that popular keys
 * are not neighbours in the order in which they were loaded, and thus in
 * memory.  YCSB hashes instead, which lets ranks collide.
 */
#ifndef BENCH_DIST_H
#define BENCH_DIST_H

#include <stddef.h>
#include <stdint.h>

#define DIST_KEYS_MAX 1000000000U

struct rng {
	uint64_t s[4];
};

void rng_seed(struct rng *r, uint64_t seed);
uint64_t rng_next(struct rng *r);
/* Uniform in [0, 1). */
double rng_unit(struct rng *r);
/* Uniform in 0..bound-1; bound > 0, below 2^32. */
uint32_t rng_below(struct rng *r, uint32_t bound);

/* One step of splitmix64: a good mixer of 64 bits. */
uint64_t mix64(uint64_t x);

enum dist_kind { DIST_UNIFORM, DIST_ZIPF, DIST_HOT };

/* Constant after dist_init(); any number of threads may draw from it, each with its own rng. */
struct dist {
	enum dist_kind kind;
	double theta;    /* DIST_ZIPF: 0 < theta < 1 */
	uint32_t hot;    /* DIST_HOT: so many keys, uniformly */
	uint32_t keys;   /* key numbers are 0..keys-1 */
	uint64_t stride; /* coprime to keys */
	double zeta, alpha, eta, second;
};

/*
 * Parses "uniform", "zipf:THETA" or "hot:COUNT" into *d.  0, or -EINVAL with a
 * sentence in `err`.
 */
int dist_parse(struct dist *d, const char *text, char *err, size_t err_len);

/* Prepares a parsed distribution for `keys` keys, 1..DIST_KEYS_MAX.  Zipf takes ~20 ns a key. */
void dist_init(struct dist *d, uint32_t keys);

/* The next rank: 0 is the most popular. */
uint32_t dist_rank(const struct dist *d, struct rng *r);

/* The key number of a rank; a permutation of 0..keys-1. */
uint32_t dist_spread(const struct dist *d, uint32_t rank);

/* The next key number. */
static inline uint32_t dist_next(const struct dist *d, struct rng *r)
{
	return dist_spread(d, dist_rank(d, r));
}

/*
 * How many bytes a key or a value has.  The size belongs to the key's number and
 * never changes, so that a GET finds what a SET stored.
 */
struct sizes {
	unsigned int min, max; /* both included; uniform between them */
	double scale, shape;   /* scale > 0: generalized Pareto instead, rounded up, cut at max */
};

/*
 * Facebook's ETC pool: Atikoglu, Xu, Frachtenberg, Jiang and Paleczny, "Workload
 * Analysis of a Large-Scale Key-Value Store", SIGMETRICS 2012.  Its values go on to
 * a megabyte; these end where a datagram does.
 */
extern const struct sizes sizes_etc_key, sizes_etc_value;

/*
 * Parses "16", "20-45" or "etc" (which is *etc) into *s.  Sizes are min..max.  0, or
 * -EINVAL with a sentence in `err`.
 */
int sizes_parse(struct sizes *s, const char *text, unsigned int min, unsigned int max,
		const struct sizes *etc, char *err, size_t err_len);

/* The size that belongs to `number`, which need not look random. */
unsigned int sizes_of(const struct sizes *s, uint64_t number);

#endif

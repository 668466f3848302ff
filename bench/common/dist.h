/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Distributions of keys, and the random number generator for them.
 *
 * Random numbers are xoshiro256++ 1.0 (David Blackman and Sebastiano Vigna,
 * 2019), seeded through splitmix64, both public domain, from
 * https://prng.di.unimi.it.
 *
 * Zipf below 1 is the generator of YCSB: Gray, Sundaresan, Englert, Baclawski and
 * Weinberger, "Quickly Generating Billion-Record Synthetic Databases", SIGMOD
 * 1994.  It needs 0 < theta < 1 and the sum zeta(keys, theta), which is computed
 * once.  Ranks 1 and 2 have exactly the right probability; for the others it
 * inverts an approximation of the sum, so with theta 0.99 and a million keys
 * rank 3 is drawn 20 % too often, rank 10 4 %, and the first 2,000 ranks
 * together 55.8 % of the time instead of 55.1 %.  It is used anyway, because
 * published results use it.  For theta >= 1, which Gray's method does not allow,
 * rejection-inversion is used, which is exact: Hoermann and Derflinger,
 * "Rejection-inversion to generate variates from monotone discrete
 * distributions", ACM TOMACS 6(3), 1996.
 *
 * A permutation maps ranks to key numbers, so that popular keys were not loaded
 * one after the other and are not neighbours in memory.  YCSB hashes ranks
 * instead, so that several ranks may get the same key.
 */
#ifndef BENCH_DIST_H
#define BENCH_DIST_H

#include <stdbool.h>
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

/* One step of splitmix64, used as a hash of 64 bits. */
uint64_t mix64(uint64_t x);

enum dist_kind { DIST_UNIFORM, DIST_ZIPF, DIST_HOT, DIST_SEQUENTIAL, DIST_LATEST };

/* Constant after dist_init(): threads may share it, each with a random generator of its own. */
struct dist {
	const char *text; /* as given on the command line; NULL: nothing was parsed */
	enum dist_kind kind;
	double theta;	 /* DIST_ZIPF, DIST_LATEST: above 0 */
	uint32_t hot;	 /* DIST_HOT: number of hot keys, ... */
	double hot_keys; /* ... or, if above 0, their share of all keys; ... */
	double hot_ops;	 /* ... their share of the draws.  Uniform within hot and other keys. */
	uint32_t keys;	 /* key numbers are 0..keys-1 */
	uint64_t stride; /* coprime to keys */
	double zeta, alpha, eta, second; /* theta below 1 */
	double first, last, squeeze;	 /* theta of 1 and more */
};

/*
 * Parses "uniform", "zipf:THETA", "hot:COUNT", "hotspot:KEYS_PCT:OPS_PCT", "sequential" or
 * "latest" into *d, which points to it.  0, or -EINVAL with a sentence in `err`.
 */
int dist_parse(struct dist *d, const char *text, char *err, size_t err_len);

/* Does a draw depend on the random generator only?  Not so for sequential and latest keys. */
static inline bool dist_is_random(const struct dist *d)
{
	return d->kind != DIST_SEQUENTIAL && d->kind != DIST_LATEST;
}

/* Prepares a parsed distribution for `keys` keys, 1..DIST_KEYS_MAX.  Zipf takes ~20 ns a key. */
void dist_init(struct dist *d, uint32_t keys);

/* Draws a rank: 0 is the most popular; with DIST_LATEST the newest.  Not for DIST_SEQUENTIAL. */
uint32_t dist_rank(const struct dist *d, struct rng *r);

/* The key number of a rank; a permutation of 0..keys-1. */
uint32_t dist_spread(const struct dist *d, uint32_t rank);

/* Draws a key number; only if dist_is_random(). */
static inline uint32_t dist_next(const struct dist *d, struct rng *r)
{
	return dist_spread(d, dist_rank(d, r));
}

#endif

// SPDX-License-Identifier: BSD-2-Clause
/* See dist.h. */
#include "dist.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN	     0x9e3779b97f4a7c15ULL
#define THETA_MAX    10	  /* with this, nearly all draws give the same key */
#define LATEST_THETA 0.99 /* as in YCSB */

uint64_t mix64(uint64_t x)
{
	x += GOLDEN;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

void rng_seed(struct rng *r, uint64_t seed)
{
	for (int i = 0; i < 4; i++)
		r->s[i] = mix64(seed + i * GOLDEN);
}

static uint64_t rotate(uint64_t x, int k)
{
	return (x << k) | (x >> (64 - k));
}

uint64_t rng_next(struct rng *r)
{
	uint64_t *s = r->s;
	uint64_t result = rotate(s[0] + s[3], 23) + s[0];
	uint64_t t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotate(s[3], 45);
	return result;
}

double rng_unit(struct rng *r)
{
	return (rng_next(r) >> 11) * 0x1p-53;
}

/* The high word of a product; the bias is below bound / 2^64. */
uint32_t rng_below(struct rng *r, uint32_t bound)
{
	return ((unsigned __int128)rng_next(r) * bound) >> 64;
}

static int parse_zipf(struct dist *d, const char *text, char *err, size_t err_len)
{
	char *end;

	d->kind = DIST_ZIPF;
	d->theta = strtod(text, &end);
	if (end != text && !*end && d->theta > 0 && d->theta <= THETA_MAX)
		return 0;
	snprintf(err, err_len,
		 "zipf:%s: the exponent must be above 0 and at most %d, as in zipf:0.99", text,
		 THETA_MAX);
	return -EINVAL;
}

static int parse_hot(struct dist *d, const char *text, char *err, size_t err_len)
{
	char *end;
	unsigned long n;

	d->kind = DIST_HOT;
	d->hot_ops = 1;
	errno = 0;
	n = strtoul(text, &end, 10);
	if (*text >= '0' && *text <= '9' && !*end && !errno && n > 0 && n <= DIST_KEYS_MAX) {
		d->hot = n;
		return 0;
	}
	snprintf(err, err_len, "hot:%s: give the number of hot keys, as in hot:2000", text);
	return -EINVAL;
}

static int parse_hotspot(struct dist *d, const char *text, char *err, size_t err_len)
{
	double keys, ops;
	int used = 0;

	d->kind = DIST_HOT;
	if (sscanf(text, "%lf:%lf%n", &keys, &ops, &used) == 2 && !text[used] && keys > 0 &&
	    keys < 100 && ops >= 0 && ops <= 100) {
		d->hot_keys = keys / 100;
		d->hot_ops = ops / 100;
		return 0;
	}
	snprintf(err, err_len,
		 "hotspot:%s: give percent of the keys and of the operations, as in hotspot:20:80",
		 text);
	return -EINVAL;
}

int dist_parse(struct dist *d, const char *text, char *err, size_t err_len)
{
	*d = (struct dist){ .text = text };
	if (!strcmp(text, "uniform"))
		return 0;
	if (!strncmp(text, "zipf:", 5))
		return parse_zipf(d, text + 5, err, err_len);
	if (!strncmp(text, "hot:", 4))
		return parse_hot(d, text + 4, err, err_len);
	if (!strncmp(text, "hotspot:", 8))
		return parse_hotspot(d, text + 8, err, err_len);
	if (!strcmp(text, "sequential")) {
		d->kind = DIST_SEQUENTIAL;
		return 0;
	}
	if (!strcmp(text, "latest")) {
		d->kind = DIST_LATEST;
		d->theta = LATEST_THETA;
		return 0;
	}
	snprintf(err, err_len,
		 "%s is unknown: use uniform, zipf:0.99, hotspot:20:80, hot:2000, sequential or "
		 "latest",
		 text);
	return -EINVAL;
}

static uint32_t gcd(uint32_t a, uint32_t b)
{
	while (b) {
		uint32_t t = a % b;

		a = b;
		b = t;
	}
	return a;
}

/* Near the golden section of `keys`: neighbouring ranks get distant key numbers. */
static uint64_t coprime_stride(uint32_t keys)
{
	uint64_t stride = keys * 0.6180339887498949;

	while (stride > 1 && gcd(stride, keys) != 1)
		stride--;
	return stride ? stride : 1;
}

/* Gray's generator. */
static void init_below_one(struct dist *d)
{
	uint32_t keys = d->keys;
	double zeta2;

	d->zeta = 0;
	for (uint32_t i = keys; i > 0; i--) /* small terms first: less is rounded away */
		d->zeta += pow(i, -d->theta);
	d->second = 1 + pow(0.5, d->theta);
	zeta2 = d->second;
	d->alpha = 1 / (1 - d->theta);
	d->eta = keys > 2 ? (1 - pow(2.0 / keys, 1 - d->theta)) / (1 - zeta2 / d->zeta) : 1;
}

static uint32_t rank_below_one(const struct dist *d, struct rng *r)
{
	double u = rng_unit(r), uz = u * d->zeta, rank;

	if (uz < 1 || d->keys < 2)
		return 0;
	if (uz < d->second || d->keys < 3)
		return 1;
	rank = d->keys * pow(d->eta * u - d->eta + 1, d->alpha);
	return rank < d->keys ? rank : d->keys - 1;
}

/* The integral of x^-theta from 1, and its inverse.  For theta 1 these are log and exp. */
static double area(const struct dist *d, double x)
{
	double t = (1 - d->theta) * log(x);

	return log(x) * (fabs(t) > 1e-8 ? expm1(t) / t : 1 + t / 2);
}

static double area_inverse(const struct dist *d, double y)
{
	double t = y * (1 - d->theta);

	if (t < -1)
		t = -1; /* rounding */
	return exp(y * (fabs(t) > 1e-8 ? log1p(t) / t : 1 - t / 2));
}

/* Hoermann and Derflinger's. */
static void init_from_one(struct dist *d)
{
	d->first = area(d, 1.5) - 1;
	d->last = area(d, d->keys + 0.5);
	d->squeeze = 2 - area_inverse(d, area(d, 2.5) - pow(2, -d->theta));
}

static uint32_t rank_from_one(const struct dist *d, struct rng *r)
{
	for (;;) {
		double u = d->last + rng_unit(r) * (d->first - d->last);
		double x = area_inverse(d, u), k = floor(x + 0.5);

		k = k < 1 ? 1 : k > d->keys ? d->keys : k;
		if (k - x <= d->squeeze || u >= area(d, k + 0.5) - pow(k, -d->theta))
			return k - 1;
	}
}

void dist_init(struct dist *d, uint32_t keys)
{
	d->keys = keys;
	d->stride = coprime_stride(keys);
	if (d->hot_keys > 0)
		d->hot = ceil(d->hot_keys * keys);
	if (d->hot > keys)
		d->hot = keys;
	if (d->theta >= 1)
		init_from_one(d);
	else if (d->theta > 0)
		init_below_one(d);
}

static uint32_t hot_rank(const struct dist *d, struct rng *r)
{
	if (d->hot_ops < 1 && d->hot < d->keys && rng_unit(r) >= d->hot_ops)
		return d->hot + rng_below(r, d->keys - d->hot);
	return rng_below(r, d->hot);
}

uint32_t dist_rank(const struct dist *d, struct rng *r)
{
	switch (d->kind) {
	case DIST_ZIPF:
	case DIST_LATEST:
		return d->theta < 1 ? rank_below_one(d, r) : rank_from_one(d, r);
	case DIST_HOT:
		return hot_rank(d, r);
	default:
		return rng_below(r, d->keys);
	}
}

uint32_t dist_spread(const struct dist *d, uint32_t rank)
{
	return rank * d->stride % d->keys;
}

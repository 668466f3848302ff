// SPDX-License-Identifier: BSD-2-Clause
/* See dist.h. */
#include "dist.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN 0x9e3779b97f4a7c15ULL

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
	if (end != text && !*end && d->theta > 0 && d->theta < 1)
		return 0;
	snprintf(err, err_len, "zipf:%s: the exponent must be above 0 and below 1, as in zipf:0.99",
		 text);
	return -EINVAL;
}

static int parse_hot(struct dist *d, const char *text, char *err, size_t err_len)
{
	char *end;
	unsigned long n;

	d->kind = DIST_HOT;
	errno = 0;
	n = strtoul(text, &end, 10);
	if (*text >= '0' && *text <= '9' && !*end && !errno && n > 0 && n <= DIST_KEYS_MAX) {
		d->hot = n;
		return 0;
	}
	snprintf(err, err_len, "hot:%s: give the number of hot keys, as in hot:2000", text);
	return -EINVAL;
}

int dist_parse(struct dist *d, const char *text, char *err, size_t err_len)
{
	memset(d, 0, sizeof(*d));
	if (!strcmp(text, "uniform"))
		return 0;
	if (!strncmp(text, "zipf:", 5))
		return parse_zipf(d, text + 5, err, err_len);
	if (!strncmp(text, "hot:", 4))
		return parse_hot(d, text + 4, err, err_len);
	snprintf(err, err_len, "%s is unknown: use uniform, zipf:0.99 or hot:2000", text);
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

/* Near the golden section of `keys`, which keeps neighbouring ranks far apart. */
static uint64_t coprime_stride(uint32_t keys)
{
	uint64_t stride = keys * 0.6180339887498949;

	while (stride > 1 && gcd(stride, keys) != 1)
		stride--;
	return stride ? stride : 1;
}

void dist_init(struct dist *d, uint32_t keys)
{
	double zeta2;

	d->keys = keys;
	d->stride = coprime_stride(keys);
	if (d->hot > keys)
		d->hot = keys;
	if (d->kind != DIST_ZIPF)
		return;
	d->zeta = 0;
	for (uint32_t i = keys; i > 0; i--) /* small terms first: less is rounded away */
		d->zeta += pow(i, -d->theta);
	d->second = 1 + pow(0.5, d->theta);
	zeta2 = d->second;
	d->alpha = 1 / (1 - d->theta);
	d->eta = keys > 2 ? (1 - pow(2.0 / keys, 1 - d->theta)) / (1 - zeta2 / d->zeta) : 1;
}

static uint32_t zipf_rank(const struct dist *d, struct rng *r)
{
	double u = rng_unit(r), uz = u * d->zeta, rank;

	if (uz < 1 || d->keys < 2)
		return 0;
	if (uz < d->second || d->keys < 3)
		return 1;
	rank = d->keys * pow(d->eta * u - d->eta + 1, d->alpha);
	return rank < d->keys ? rank : d->keys - 1;
}

uint32_t dist_rank(const struct dist *d, struct rng *r)
{
	switch (d->kind) {
	case DIST_ZIPF:
		return zipf_rank(d, r);
	case DIST_HOT:
		return rng_below(r, d->hot);
	default:
		return rng_below(r, d->keys);
	}
}

uint32_t dist_spread(const struct dist *d, uint32_t rank)
{
	return rank * d->stride % d->keys;
}

const struct sizes sizes_etc_key = { .min = 20, .max = 45 };
const struct sizes sizes_etc_value = {
	.min = 1, .max = 1400, .scale = 214.476, .shape = 0.348238
};

int sizes_parse(struct sizes *s, const char *text, unsigned int min, unsigned int max,
		const struct sizes *etc, char *err, size_t err_len)
{
	int used = 0, fields;

	if (!strcmp(text, "etc")) {
		*s = *etc;
		return 0;
	}
	*s = (struct sizes){ 0 };
	fields = sscanf(text, "%4u%n-%4u%n", &s->min, &used, &s->max, &used);
	if (fields == 1)
		s->max = s->min;
	if (fields > 0 && !text[used] && strspn(text, "0123456789-") == strlen(text) &&
	    s->min >= min && s->min <= s->max && s->max <= max)
		return 0;
	snprintf(err, err_len, "%s: give a size of %u to %u bytes, a range such as %u-%u, or etc",
		 text, min, max, etc->min, etc->max);
	return -EINVAL;
}

/* The inverse of the distribution's function, for u in [0, 1). */
static double pareto(const struct sizes *s, double u)
{
	return s->scale / s->shape * (pow(1 - u, -s->shape) - 1);
}

unsigned int sizes_of(const struct sizes *s, uint64_t number)
{
	uint64_t random = mix64(number);
	double size;

	if (s->min == s->max)
		return s->min;
	if (s->scale <= 0)
		return s->min + (((unsigned __int128)random * (s->max - s->min + 1)) >> 64);
	size = ceil(pareto(s, (random >> 11) * 0x1p-53));
	return size < s->min ? s->min : size > s->max ? s->max : size;
}

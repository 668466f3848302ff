// SPDX-License-Identifier: BSD-2-Clause
/* See sizes.h. */
#include "sizes.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bpf/proto.h"
#include "dist.h"
#include "message.h"

static const struct {
	const char *name;
	struct sizes size[2]; /* by enum sizes_of_what */
} workloads[] = {
	{ "etc",
	  { { .min = 20, .max = 45 },
	    { .min = 1,
	      .max = 1400,
	      .kind = SIZES_PARETO,
	      .scale = 214.476,
	      .shape = 0.348238 } } },
	/* ln(230 / 100) / 0.6745: the lower quartile is 100. */
	{ "twitter",
	  { { .min = 20, .max = 56 },
	    { .min = 1, .max = 1400, .kind = SIZES_LOGNORMAL, .scale = 230, .shape = 1.235 } } },
};

int sizes_parse(struct sizes *s, const char *text, enum sizes_of_what what, unsigned int min,
		unsigned int max, char *err, size_t err_len)
{
	int used = 0, fields;

	for (size_t i = 0; i < sizeof(workloads) / sizeof(workloads[0]); i++) {
		if (!strcmp(text, workloads[i].name)) {
			*s = workloads[i].size[what];
			return 0;
		}
	}
	*s = (struct sizes){ 0 };
	fields = sscanf(text, "%7u%n-%7u%n", &s->min, &used, &s->max, &used);
	if (fields == 1)
		s->max = s->min;
	if (fields > 0 && !text[used] && strspn(text, "0123456789-") == strlen(text) &&
	    s->min >= min && s->min <= s->max && s->max <= max)
		return 0;
	snprintf(err, err_len,
		 "%s: give a size of %u to %u bytes, a range such as 20-45, etc or twitter", text,
		 min, max);
	return -EINVAL;
}

unsigned int sizes_set_bytes(unsigned int key, unsigned int value)
{
	return sizeof(struct xkv_op) + XKV_PADDED(key) + XKV_PADDED(value);
}

int sizes_check_batch(unsigned int key, unsigned int value, unsigned int batch,
		      unsigned int payload, bool token)
{
	unsigned int used = sizeof(struct xkv_hdr) + (token ? XKV_TOKEN_BYTES : 0);
	unsigned int room = (payload - used) / batch & ~7U; /* of an operation */
	unsigned int least = sizes_set_bytes(key, 0);
	char most[48] = "";

	if (sizes_set_bytes(key, value) <= room)
		return 0;
	if (room >= least)
		snprintf(most, sizeof(most), " to at most %u", room - least);
	return refuse("a batch of %u with keys of %u bytes and values of %u does not fit a "
		      "datagram of %u: lower --value-size%s, --key-size or --batch",
		      batch, key, value, payload, most);
}

/* The inverse of the distribution's function, for u in [0, 1). */
static double pareto(const struct sizes *s, double u)
{
	return s->scale / s->shape * (pow(1 - u, -s->shape) - 1);
}

/* A normal variate (Box and Muller) from two uniform numbers in [0, 1). */
static double lognormal(const struct sizes *s, double u, double v)
{
	return s->scale * exp(s->shape * sqrt(-2 * log(1 - u)) * cos(2 * M_PI * v));
}

static double unit(uint64_t random)
{
	return (random >> 11) * 0x1p-53;
}

unsigned int sizes_of(const struct sizes *s, uint64_t number)
{
	uint64_t random = mix64(number);
	double size;

	if (s->min == s->max)
		return s->min;
	if (s->kind == SIZES_UNIFORM)
		return s->min + (((unsigned __int128)random * (s->max - s->min + 1)) >> 64);
	size = ceil(s->kind == SIZES_PARETO ? pareto(s, unit(random))
					    : lognormal(s, unit(random), unit(mix64(random))));
	return size < s->min ? s->min : size > s->max ? s->max : size;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Values of options: 0 with *out, or -EINVAL after a sentence that names the option. */
#ifndef BENCH_PARSE_H
#define BENCH_PARSE_H

#include <stdint.h>

/* Whole numbers from min to max, decimal digits only. */
int parse_number(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out);
int parse_uint(const char *name, const char *text, unsigned int min, unsigned int max,
	       unsigned int *out);

/* A number from min to max. */
int parse_real(const char *name, const char *text, double min, double max, double *out);

/* One of `n` words: its index. */
int parse_choice(const char *name, const char *text, const char *const *choices, unsigned int n,
		 unsigned int *out);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* For tests of what is drawn by chance: sizes by their name, and how near a share has come. */
#ifndef XKV_TEST_DRAWS_H
#define XKV_TEST_DRAWS_H

#include <math.h>

#include "bench/common/sizes.h"

/* Fails a case if `got` is off by more than this share of `want`. */
static inline void near(double got, double want, double share)
{
	if (fabs(got - want) > share * want)
		fail_msg("%g is not within %g %% of %g", got, share * 100, want);
}

static inline struct sizes new_sizes(const char *text, enum sizes_of_what what)
{
	struct sizes s;
	char err[200];

	assert_int_equal(sizes_parse(&s, text, what, 0, 1400, err, sizeof(err)), 0);
	return s;
}

#endif

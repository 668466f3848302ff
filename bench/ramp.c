// SPDX-License-Identifier: BSD-2-Clause
/* See ramp.h. */
#include "ramp.h"

#include <math.h>
#include <string.h>

#define NEAR	   1.05 /* the lowest rate that does not hold over the highest that does */
#define TRIES	   2
#define RATE_LEAST 1
#define RATE_MOST  1e9

bool ramp_holds(const struct ramp_step *step)
{
	return step->answered >= 0.99 * step->offered && step->lost * 1000 <= step->requests;
}

/* Whether the rate holds; what measure() said if that was not 0. */
static int try_rate(struct ramp *r, double rate, ramp_measure *measure, void *context, bool *holds)
{
	*holds = false;
	for (int i = 0; i < TRIES && !*holds && r->steps < RAMP_STEPS_MAX; i++) {
		struct ramp_step *step = &r->step[r->steps];
		int err;

		*step = (struct ramp_step){ .offered = rate };
		err = measure(context, step);
		if (err)
			return err;
		r->steps++;
		*holds = ramp_holds(step);
	}
	if (*holds && rate > r->saturation)
		r->saturation = rate;
	return 0;
}

int ramp_find(struct ramp *r, double rate, ramp_measure *measure, void *context)
{
	double low = 0, high = INFINITY; /* hold, and do not */
	int err = 0;

	memset(r, 0, sizeof(*r));
	while (!err && r->steps < RAMP_STEPS_MAX && rate >= RATE_LEAST && rate <= RATE_MOST &&
	       (!(low > 0) || high / low > NEAR)) {
		bool holds;

		err = try_rate(r, rate, measure, context, &holds);
		if (holds)
			low = rate;
		else
			high = rate;
		rate = high == INFINITY ? 2 * low : low > 0 ? sqrt(low * high) : high / 2;
	}
	return err;
}

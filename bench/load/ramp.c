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

/* Measures a rate until it holds, at most `tries` times.  0, or the value of measure(). */
static int try_rate(struct ramp *r, double rate, int tries, ramp_measure *measure, void *context)
{
	for (int i = 0; i < tries && r->saturation < rate && r->steps < RAMP_STEPS_MAX; i++) {
		struct ramp_step *step = &r->step[r->steps];
		int err;

		*step = (struct ramp_step){ .offered = rate };
		err = measure(context, step);
		if (err)
			return err;
		r->steps++;
		if (ramp_holds(step))
			r->saturation = rate;
	}
	return 0;
}

/* The lowest failed rate above all sustained rates; INFINITY if there is none. */
static double lowest_failed(const struct ramp *r)
{
	double lowest = INFINITY;

	for (unsigned int i = 0; i < r->steps; i++) {
		if (r->step[i].offered > r->saturation && r->step[i].offered < lowest)
			lowest = r->step[i].offered;
	}
	return lowest;
}

static double next_rate(const struct ramp *r, double high)
{
	if (high == INFINITY)
		return 2 * r->saturation;
	return r->saturation > 0 ? sqrt(r->saturation * high) : high / 2;
}

int ramp_find(struct ramp *r, double rate, ramp_measure *measure, void *context)
{
	int err, tries = TRIES;

	memset(r, 0, sizeof(*r));
	do {
		double high;

		err = try_rate(r, rate, tries, measure, context);
		if (tries == 1 && r->saturation < rate)
			break; /* it failed for good */
		high = lowest_failed(r);
		/* once near enough, try the lowest failed rate again: a disturbance may be over */
		tries = high <= r->saturation * NEAR ? 1 : TRIES;
		rate = tries == 1 ? high : next_rate(r, high);
	} while (!err && r->steps < RAMP_STEPS_MAX && rate >= RATE_LEAST && rate <= RATE_MOST);
	return err;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds the saturation point of a server: the highest rate of an open loop that it
 * follows.  The rate doubles until a step does not hold, and the distance between the
 * highest that did and the lowest that did not is halved until it is 5 %.  A busy machine can
 * spoil steps: one that does not hold is tried once more at once, and the lowest that did not
 * once more at the end; if it holds then, it goes on from there.
 */
#ifndef BENCH_RAMP_H
#define BENCH_RAMP_H

#include <stdbool.h>
#include <stdint.h>

#define RAMP_STEPS_MAX 64

/* Rates in requests/s, as they are drawn: a GET with a SET behind it is one. */
struct ramp_step {
	double offered, answered; /* answered: before the step's end */
	uint64_t requests, lost; /* answered, and not answered or never sent */
	double p50_us, p99_us;
};

struct ramp {
	struct ramp_step step[RAMP_STEPS_MAX];
	unsigned int steps;
	double saturation; /* the highest rate that held, 0: none did */
};

/*
 * Whether a server follows a rate: it answers 99 % of it before the step's end, so that it is
 * behind by 1 % of the step at most, and all but one in a thousand at all.
 */
bool ramp_holds(const struct ramp_step *step);

/*
 * Measures one step at step->offered and fills in the rest.  Non-zero ends the ramp.
 */
typedef int ramp_measure(void *context, struct ramp_step *step);

/* Starts with `rate`.  What measure() returned if that was not 0; r->saturation is valid anyway. */
int ramp_find(struct ramp *r, double rate, ramp_measure *measure, void *context);

#endif

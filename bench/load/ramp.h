/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds the saturation point of a server: the highest rate of an open loop that it sustains.  The
 * rate is doubled until the server does not sustain it; then the interval between the highest
 * sustained and the lowest failed rate is halved until it is 5 %.  Since other load on the machine
 * may disturb a step, a failed step is repeated once immediately, and the lowest failed rate once
 * more at the end; if it is sustained then, the search continues from it.
 */
#ifndef BENCH_RAMP_H
#define BENCH_RAMP_H

#include <stdbool.h>
#include <stdint.h>

#define RAMP_STEPS_MAX 64

/* Rates in requests/s; a read-modify-write is one request. */
struct ramp_step {
	double offered, answered; /* answered: before the end of the step */
	uint64_t requests, lost;  /* requests: answered; lost: unanswered or never sent */
	double p50_us, p99_us;
};

struct ramp {
	struct ramp_step step[RAMP_STEPS_MAX];
	unsigned int steps;
	double saturation; /* the highest sustained rate, 0 = none */
};

/*
 * Does the server sustain the rate?  It must answer 99 % of the requests before the end of the
 * step, so that it is at most 1 % of the step behind, and lose at most one in a thousand.
 */
bool ramp_holds(const struct ramp_step *step);

/* Measures a step at step->offered and sets the other fields.  Non-zero ends the ramp. */
typedef int ramp_measure(void *context, struct ramp_step *step);

/*
 * Runs a ramp that starts with `rate`.  0, or the value of measure() if it was not 0; r->saturation
 * is valid in both cases.
 */
int ramp_find(struct ramp *r, double rate, ramp_measure *measure, void *context);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* Prints the results of a load: progress, table, JSON.  For one thread. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "options.h"
#include "ramp.h"
#include "stats.h"

struct result {
	struct stats stats;
	double offered;	  /* open loop: offered requests/s, else 0 */
	double seconds;	  /* duration of the measurement */
	const char *mode; /* of the transport, or NULL */
};

/* Requests that were answered before the end, per second. */
double result_requests_rate(const struct result *r);

/* Prints a line on standard error about an interval of `seconds` that ends `at` (seconds). */
void report_progress(const struct stats *interval, double seconds, double at, const char *phase);

/* Ends the progress line of a terminal. */
void report_progress_end(void);

/* Prints a step of a ramp, with a header before the first, unless --json. */
void report_step(const struct options *o, const struct ramp_step *step, bool first);

/*
 * Prints a table, or with --json an object, on standard output; `ramp` may be NULL.  False if that
 * failed.
 */
bool report_result(const struct options *o, const struct result *r, const struct ramp *ramp);

#endif

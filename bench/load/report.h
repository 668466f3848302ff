/* SPDX-License-Identifier: BSD-2-Clause */
/* How the results of a load are shown: progress, table, JSON, files for other tools. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "options.h"
#include "ramp.h"
#include "stats.h"

struct result {
	struct stats stats;
	double offered;	  /* requests/s of an open loop, or 0 */
	double seconds;	  /* that were measured */
	const char *mode; /* of the transport, or NULL */
};

/* Requests and operations per second that were answered before the end. */
double result_requests_rate(const struct result *r);
double result_ops_rate(const struct result *r);

/* One line about `seconds` that end `at` seconds after the start, to standard error. */
void report_progress(const struct stats *interval, double seconds, double at, const char *phase);

/* Ends a progress line that stands on a terminal. */
void report_progress_end(void);

/* One step of a ramp, with a head before the first, unless --json. */
void report_step(const struct options *o, const struct ramp_step *step, bool first);

/* A table, or with --json one object, on standard output; `ramp` may be NULL. */
void report_result(const struct options *o, const struct result *r, const struct ramp *ramp);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* The frame loop: per-core throughput of an XDP server without any socket in the way. */
#ifndef BENCH_FRAMES_H
#define BENCH_FRAMES_H

struct frames_options;

/*
 * Measures every server, distribution and ratio that the options name, prints
 * the medians, and leaves the test bed as it was.  Returns the exit code.
 */
int frames_run(struct frames_options *o);

#endif

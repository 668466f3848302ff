/* SPDX-License-Identifier: BSD-2-Clause */
/* The frame loop: measures the throughput per core of an XDP server, without sockets. */
#ifndef BENCH_FRAMES_H
#define BENCH_FRAMES_H

struct frames_options;

/*
 * Measures every combination of the options, prints the medians, and restores the test bed.
 * Returns the exit code.
 */
int frames_run(struct frames_options *o);

#endif

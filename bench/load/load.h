/* SPDX-License-Identifier: BSD-2-Clause */
/* A load over sockets or AF_XDP, as a closed or an open loop. */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

struct options;

/* Sets the keys if requested, runs the load and prints the results.  Returns the exit code. */
int load_run(struct options *o);

#endif

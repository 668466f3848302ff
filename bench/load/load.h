/* SPDX-License-Identifier: BSD-2-Clause */
/* A load over sockets or AF_XDP, in closed loops or an open one. */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

struct options;

/* Loads the keys if asked to, runs the load and prints the results.  Returns the exit code. */
int load_run(struct options *o);

#endif

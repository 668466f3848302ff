/* SPDX-License-Identifier: BSD-2-Clause */
/* The load over UDP sockets: closed loops, one outstanding request a client. */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

struct options;

/* Loads the keys if asked to, runs the load and prints the results.  Returns the exit code. */
int load_run(struct options *o);

#endif

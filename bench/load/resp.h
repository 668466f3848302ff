/* SPDX-License-Identifier: BSD-2-Clause */
/* The load as Redis commands, so that another server can hold the very same data. */
#ifndef BENCH_RESP_H
#define BENCH_RESP_H

struct options;

/* Writes the SET of each key to standard output.  Returns the exit code. */
int resp_print(const struct options *o);

#endif

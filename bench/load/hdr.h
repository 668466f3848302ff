/* SPDX-License-Identifier: BSD-2-Clause */
/* Writes a histogram as a percentile distribution, the text format of HdrHistogram's tools. */
#ifndef BENCH_HDR_H
#define BENCH_HDR_H

#include <stdio.h>

struct hist;

/* Writes `h`, in microseconds, to `to`, which stays open.  0, or -1 with errno set. */
int hdr_write(FILE *to, const struct hist *h);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* A histogram as text that the tools of HdrHistogram read: their percentile distribution. */
#ifndef BENCH_HDR_H
#define BENCH_HDR_H

#include <stdio.h>

struct hist;

/* Writes `h`, in microseconds.  0, or -1 with errno set if that failed. */
int hdr_write(FILE *to, const struct hist *h);

#endif

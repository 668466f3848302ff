/* SPDX-License-Identifier: BSD-2-Clause */
/* The servers that the store is measured beside: echo.bpf.c and thesis.bpf.c, loaded and filled. */
#ifndef BENCH_BASELINE_H
#define BENCH_BASELINE_H

#include <stdint.h>

#include "options.h"

struct echo_bpf;
struct thesis_bpf;

struct baseline {
	struct echo_bpf *echo;
	struct thesis_bpf *thesis;
	int prog_fd; /* valid while the baseline is open */
};

/*
 * Loads the program of `server` (before SERVER_ATTACHED) and, for the thesis-like
 * ones, `keys` entries.  `port` is in network byte order.  0, or -errno after a sentence.
 */
int baseline_open(struct baseline *b, enum server_kind server, uint32_t keys, uint16_t port);

/* Also for one that is all zeros. */
void baseline_close(struct baseline *b);

#endif

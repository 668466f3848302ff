/* SPDX-License-Identifier: BSD-2-Clause */
/* Loads the servers that the store is compared with, echo.bpf.c and thesis.bpf.c.  One thread. */
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
 * Loads the program of `server` (a kind before SERVER_ATTACHED) and, for the thesis-like ones,
 * inserts `keys` entries.  `port` is in network byte order.  0, or -errno after an error message.
 */
int baseline_open(struct baseline *b, enum server_kind server, uint32_t keys, uint16_t port);

/* Unloads the program; does nothing if *b is all zeros. */
void baseline_close(struct baseline *b);

#endif

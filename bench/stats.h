/* SPDX-License-Identifier: BSD-2-Clause */
/* What a load over sockets counts, and how it is shown. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include <stdint.h>

#include "hist.h"

struct options;

/* Name in JSON and in the table, what it counts, and whether it is an error. */
#define STATS_TABLE(ROW)                                                                   \
	ROW(OPS, "ops", "operations answered", 0)                                          \
	ROW(HITS, "hits", "GETs that found a value", 0)                                    \
	ROW(MISSES, "misses", "GETs without one", 0)                                       \
	ROW(SETS, "sets", "SETs done", 0)                                                  \
	ROW(PADDED, "padded", "requests repeated with padding", 0)                         \
	ROW(PARTIAL, "partial", "replies with fewer results than operations", 0)           \
	ROW(TIMEOUTS, "timeouts", "requests without a reply in time", 0)                   \
	ROW(LATE, "late", "replies after their timeout", 0)                                \
	ROW(FOREIGN, "foreign", "replies to requests that were never made", 0)             \
	ROW(BUSY, "busy", "operations refused for contention", 1)                          \
	ROW(NO_MEMORY, "no_memory", "SETs refused because the store is full", 1)           \
	ROW(TOO_LARGE, "too_large", "values that do not fit a datagram", 1)                \
	ROW(REFUSED, "refused", "operations with another error status", 1)                 \
	ROW(MALFORMED, "malformed", "datagrams that are no reply or contradict it", 1)     \
	ROW(CORRUPT, "corrupt", "values that are not what was set (--verify)", 1)          \
	ROW(SOCKET, "socket_errors", "failed system calls and refused connections", 1)

enum stat {
#define ROW(name, text, what, error) STAT_##name,
	STATS_TABLE(ROW)
#undef ROW
	STATS
};

/* One thread counts, others may read meanwhile. */
struct stats {
	uint64_t count[STATS];
	struct hist latency; /* of requests, each 1 to --batch operations */
};

static inline void stat_add(struct stats *s, enum stat which, uint64_t n)
{
	__atomic_store_n(&s->count[which], s->count[which] + n, __ATOMIC_RELAXED);
}

void stats_merge(struct stats *into, const struct stats *from);
void stats_subtract(struct stats *s, const struct stats *earlier);
uint64_t stats_errors(const struct stats *s);

/* One line about `interval` seconds, that end `at` seconds after the start, to standard error. */
void stats_progress(const struct stats *interval, double seconds, double at, const char *phase);

/* Ends a progress line that stands on a terminal. */
void stats_progress_end(void);

/* The results: a table, or with --json one object, on standard output. */
void stats_report(const struct options *o, const struct stats *s, double seconds);

#endif

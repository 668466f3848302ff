/* SPDX-License-Identifier: BSD-2-Clause */
/* Counters and latencies of a load. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "hist.h"
#include "request.h"

/* Name in JSON and in the table, what it counts, and whether it is an error. */
#define STATS_TABLE(ROW)                                                                           \
	ROW(REQUESTS, "requests", "requests answered, a GET with its SET (rmw) as one", 0)         \
	ROW(OPS, "ops", "operations answered, those of a batch one by one", 0)                     \
	ROW(OPS_AFTER_END, "ops_after_end", "of them after the end, counted in no rate", 0)        \
	ROW(AFTER_END, "after_end", "requests answered after the end, counted in no rate", 0)      \
	ROW(HITS, "hits", "values received, including those of scans", 0)                          \
	ROW(MISSES, "misses", "keys without a value", 0)                                           \
	ROW(SETS, "sets", "SETs done", 0)                                                          \
	ROW(DELETES, "deletes", "DELETEs done", 0)                                                 \
	ROW(SCANS, "scans", "scans done", 0)                                                       \
	ROW(PADDED, "padded", "operations repeated with padding", 0)                               \
	ROW(PARTIAL, "partial", "replies with fewer results than operations", 0)                   \
	ROW(TIMEOUTS, "timeouts", "requests without a reply in time", 0)                           \
	ROW(RETRIES, "retries", "of them sent again", 0)                                           \
	ROW(LOST, "lost", "requests given up without a reply", 0)                                  \
	ROW(UNSENT, "unsent", "requests that were due and never sent", 0)                          \
	ROW(LATE, "late", "replies after their timeout", 0)                                        \
	ROW(HANDED_OVER, "handed_over", "AF_XDP: replies that came to another thread", 0)          \
	ROW(OVERRUNS, "overruns", "AF_XDP: replies dropped by the client, for lack of space", 0)   \
	ROW(FOREIGN, "foreign", "replies to requests that were never made", 0)                     \
	ROW(BUSY, "busy", "operations refused for contention", 1)                                  \
	ROW(NO_MEMORY, "no_memory", "SETs refused because the store is full", 1)                   \
	ROW(TOO_LARGE, "too_large", "values that do not fit a datagram", 1)                        \
	ROW(REFUSED, "refused", "operations with another error status", 1)                         \
	ROW(MALFORMED, "malformed", "replies that contradict the protocol", 1)                     \
	ROW(CORRUPT, "corrupt", "values that are not what was set (--verify)", 1)                  \
	ROW(SOCKET, "socket_errors", "failed system calls and refused connections", 1)

enum stat_id {
#define ROW(name, text, what, error) STAT_##name,
	STATS_TABLE(ROW)
#undef ROW
		STATS
};

struct stat_row {
	const char *name, *what;
	bool error;
};

extern const struct stat_row stat_rows[STATS];

/*
 * One thread counts; others may read at the same time.  Latencies include requests that were given
 * up or never sent, with the time that was waited for them: else the percentiles would leave out
 * the slowest requests.
 */
struct stats {
	uint64_t count[STATS];
	struct hist latency; /* of requests; a read-modify-write is one */
	struct hist op[OPS]; /* by kind; OP_RMW: GET and SET together */
	struct hist lag;     /* open loop: from when a request was due until it was sent */
};

static inline void stat_add(struct stats *s, enum stat_id which, uint64_t n)
{
	__atomic_store_n(&s->count[which], s->count[which] + n, __ATOMIC_RELAXED);
}

/* Adds `from` to `into`. */
void stats_merge(struct stats *into, const struct stats *from);
/* Subtracts `earlier`, an older copy of `s`; as hist_subtract() does. */
void stats_subtract(struct stats *s, const struct stats *earlier);
/* Sum of the counters that are errors. */
uint64_t stats_errors(const struct stats *s);

#endif

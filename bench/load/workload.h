/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the load asks next: kinds of operations by their shares, keys by their
 * distribution, YCSB's workloads as presets of both.
 *
 * YCSB: Cooper, Silberstein, Tam, Ramakrishnan and Sears, "Benchmarking Cloud
 * Serving Systems with YCSB", SoCC 2010.
 */
#ifndef BENCH_WORKLOAD_H
#define BENCH_WORKLOAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "bench/common/dist.h"
#include "request.h"

struct options;

#define INSERTS_WINDOW (1U << 16) /* inserts that may be under way at a time */

/*
 * Keys that are added while the load runs: numbers from the first one that was
 * not loaded.  All threads share it.  A key is drawn by others ("latest") when it and all
 * before it were answered, or given up.
 */
struct inserts {
	uint32_t next;	/* atomic */
	uint32_t there; /* keys below are there; atomic */
	uint32_t room;	/* where `next` starts over: so many keys have a name */
	pthread_mutex_t lock;
	uint8_t done[INSERTS_WINDOW]; /* of the keys from `there` on; under the lock */
};

int inserts_init(struct inserts *in, uint32_t keys, uint64_t names);
void inserts_destroy(struct inserts *in);

/* One thread's. */
struct workload {
	const struct options *o;
	struct inserts *inserts;
	struct rng rng;
	uint32_t sequence; /* the next key of DIST_SEQUENTIAL */
};

/* `thread` of `threads`: sequential ones start in different places. */
void workload_init(struct workload *w, const struct options *o, struct inserts *inserts,
		   unsigned int thread, unsigned int threads);

/* Draws what a request is to do: op and flags of *r, and of how many keys (not of a scan). */
void workload_draw_kind(struct workload *w, struct request *r);

/* Draws its keys, `keys` of them (a scan has --scan-length). */
void workload_draw_keys(struct workload *w, struct request *r, unsigned int keys);

/* The keys of an insert were answered or given up. */
void workload_inserted(struct workload *w, uint32_t key);

/* Sets shares and, if none is set, the distribution as "ycsb-a" to "-f" do.  -EINVAL if unknown. */
int workload_preset(struct options *o, const char *name);

#endif

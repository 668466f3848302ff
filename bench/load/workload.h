/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The workload: chooses operations by their shares and keys by their distribution.  YCSB's
 * workloads are presets of both.
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

#define INSERTS_WINDOW (1U << 16) /* most outstanding inserts */

/*
 * Keys that are inserted while the load runs, numbered from the first key that was not loaded.
 * Shared by all threads.  A key is read by "latest" when it and all keys before it were answered or
 * given up.
 */
struct inserts {
	uint32_t next;	/* number of the next key to insert; atomic */
	uint32_t there; /* keys below this number were inserted; atomic */
	uint32_t room;	/* number of different keys, after which `next` starts again */
	pthread_mutex_t lock;
	uint8_t done[INSERTS_WINDOW]; /* of the keys from `there` on; under the lock */
};

/* `keys` were loaded, of `names` different keys.  0 or -errno. */
int inserts_init(struct inserts *in, uint32_t keys, uint64_t names);
void inserts_destroy(struct inserts *in);

/* The workload of one thread. */
struct workload {
	const struct options *o;
	struct inserts *inserts;
	struct rng rng;
	uint32_t sequence; /* the next key of DIST_SEQUENTIAL */
};

/* For thread number `thread` of `threads`: sequential keys start at different numbers. */
void workload_init(struct workload *w, const struct options *o, struct inserts *inserts,
		   unsigned int thread, unsigned int threads);

/* Draws the operation and flags of *r, and its number of keys (except for a scan). */
void workload_draw_kind(struct workload *w, struct request *r);

/* Draws `keys` keys of a request (a scan has --scan-length). */
void workload_draw_keys(struct workload *w, struct request *r, unsigned int keys);

/* Reports that the insert of a key was answered or given up. */
void workload_inserted(struct workload *w, uint32_t key);

/*
 * Sets the shares of the preset "ycsb-a" to "ycsb-f", and its distribution if none was given.  0,
 * or -EINVAL for an unknown name.
 */
int workload_preset(struct options *o, const char *name);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The user-space side of generator.bpf.c and sink.bpf.c: templates, the table of
 * keys, runs on one or more CPUs, and what came back.
 */
#ifndef BENCH_GENERATOR_H
#define BENCH_GENERATOR_H

#define GENERATOR_PORT 40000 /* that the requests come from */

#include <stdbool.h>
#include <stdint.h>

#include "bed.h"
#include "dist.h"
#include "frame.h"
#include "options.h"

struct generator_bpf;
struct sink_bpf;

/* What the datagrams carry, and from how many CPUs they come at once. */
struct shape {
	unsigned int key_size; /* at least FRAME_KEY_SIZE */
	unsigned int batch;    /* operations in a datagram, at most FRAME_OPS_MAX */
	unsigned int loops;    /* the first of the options' CPUs */
};

struct generator {
	struct generator_bpf *skel;
	struct sink_bpf *sink;
	uint64_t *table; /* the map, FRAME_TABLE_SIZE entries */
	const struct options *o;
	struct shape shape;
};

/* What a run sent and got back, in operations. */
struct frame_result {
	uint64_t requests;
	uint64_t count[SINK_COUNTS];
	uint64_t replies; /* sum of count[] */
	double seconds;   /* of CPU time, of the mean CPU */
	double wall;      /* seconds that the run took, of the mean CPU */
};

/* Loads the programs.  0, or -errno after a sentence. */
int generator_open(struct generator *g, const struct options *o);
void generator_close(struct generator *g);

/* Makes requests of this shape to the server of `bed`. */
void generator_shape(struct generator *g, const struct bed *bed, const struct shape *shape);

/* Puts the sink on the client side of `bed`.  0, or -errno after a sentence. */
int generator_listen(struct generator *g, struct bed *bed);

/* Fills the table with draws from `dist`, SETs and GETs in proportion. */
void generator_fill(struct generator *g, const struct dist *dist, struct ratio ratio);

/* Fills the table with the keys first .. first + count - 1, each once, to GET. */
void generator_sequence(struct generator *g, uint32_t first, uint32_t count);

/* Whether the sink sums up the checksum of every reply: for sweeps, not for measurements. */
void generator_check(struct generator *g, bool check);

/*
 * Sends `frames` frames from each of shape.loops CPUs, all at the same time, in the
 * namespace of `bed`.  0, -EINTR if interrupted, or -errno after a sentence.
 */
int generator_run(struct generator *g, const struct bed *bed, uint32_t frames,
		  struct frame_result *out);

/* What the sink has counted until now, of all CPUs. */
void generator_counts(const struct generator *g, uint64_t count[SINK_COUNTS]);

/* The programs, for tests that run them on one frame. */
int generator_fd(const struct generator *g);
int generator_sink_fd(const struct generator *g);

/* The eight digits of a key number, as they stand in a frame. */
uint64_t frame_digits(uint32_t key);

/* The value that the generator SETs for a key; `value` has FRAME_VALUE_SIZE bytes. */
void frame_value(void *value, uint32_t key);

#endif

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
#include "bench/bpf/frame.h"
#include "bench/common/dist.h"
#include "options.h"

struct generator_bpf;
struct sink_bpf;

/* What the datagrams carry, and from how many CPUs they come at once. */
struct shape {
	unsigned int key_size;	 /* at least FRAME_KEY_SIZE */
	unsigned int value_size; /* at least FRAME_VALUE_MIN */
	unsigned int range;	 /* of FRAME_KEYS_MAX keys each, which these are from */
	unsigned int batch;	 /* operations in a datagram, at most FRAME_OPS_MAX */
	unsigned int scan;	 /* keys of a SCAN, which is alone in its datagram; 0: GETs */
	unsigned int loops;	 /* the first of the options' CPUs */
};

/* The results that a request has in one reply, if nothing goes wrong. */
unsigned int shape_results(const struct shape *shape);

struct generator {
	struct generator_bpf *skel;
	struct sink_bpf *sink;
	uint64_t *table; /* the map, FRAME_TABLE_SIZE entries */
	const struct frames_options *o;
	struct shape shape;
};

/* What a run sent and got back, in operations; of a SCAN, in results that fit its reply. */
struct frame_result {
	uint64_t requests;
	uint64_t count[SINK_COUNTS];
	uint64_t replies; /* sum of count[] */
	double seconds;   /* of CPU time, of the mean CPU */
	double wall;      /* seconds that the run took, of the mean CPU */
};

/* Loads the programs.  0, or -errno after a sentence. */
int generator_open(struct generator *g, const struct frames_options *o);
void generator_close(struct generator *g);

/* Makes requests of this shape to the server of `bed`. */
void generator_shape(struct generator *g, const struct bed *bed, const struct shape *shape);

/* Puts the sink on the client side of `bed`.  0, or -errno after a sentence. */
int generator_listen(struct generator *g, struct bed *bed);

/* Fills the table with draws from `dist`, none above `last`, SETs and GETs in proportion. */
void generator_fill(struct generator *g, const struct dist *dist, struct ratio ratio,
		    uint32_t last);

/* Fills the table with `count` keys, each `step` behind the one before it, to GET or SCAN. */
void generator_sequence(struct generator *g, uint32_t first, uint32_t step, uint32_t count);

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

/* The value of `size` bytes that the generator SETs for a key of a range. */
void frame_value(void *value, unsigned int size, unsigned int range, uint32_t key);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The user-space side of generator.bpf.c and sink.bpf.c: makes the template of a request and the
 * table of keys, runs the generator on one or more CPUs, and reads the counters of the sink.  The
 * functions are for one thread; generator_run() starts and joins threads of its own.
 */
#ifndef BENCH_GENERATOR_H
#define BENCH_GENERATOR_H

#define GENERATOR_PORT 40000 /* source port of the requests */

#include <stdbool.h>
#include <stdint.h>

#include "bed.h"
#include "bench/bpf/frame.h"
#include "bench/common/dist.h"
#include "options.h"

struct generator_bpf;
struct sink_bpf;

/* The content of the datagrams, and the number of CPUs that send them. */
struct shape {
	unsigned int key_size;	 /* at least FRAME_KEY_SIZE */
	unsigned int value_size; /* at least FRAME_VALUE_MIN */
	unsigned int range;	 /* of the keys; each range has FRAME_KEYS_MAX keys */
	unsigned int batch;	 /* operations in a datagram, at most FRAME_OPS_MAX */
	bool atomic;		 /* a datagram is a transaction */
	unsigned int scan;	 /* keys of a SCAN, one per datagram; 0: GETs and SETs */
	unsigned int loops;	 /* number of CPUs, the first of the options' */
};

/* The number of results in a complete reply. */
unsigned int shape_results(const struct shape *shape);

struct generator {
	struct generator_bpf *skel;
	struct sink_bpf *sink;
	uint64_t *table; /* the map, FRAME_TABLE_SIZE entries */
	const struct frames_options *o;
	struct shape shape;
	bool distinct; /* no key is twice in a datagram that generator_fill() makes */
};

/* The result of a run, in operations; for SCANs, in results that fit a reply. */
struct frame_result {
	uint64_t requests;
	uint64_t count[SINK_COUNTS];
	uint64_t replies; /* sum of count[] */
	double seconds;	  /* CPU time, mean of the CPUs */
	double wall;	  /* duration in seconds, mean of the CPUs */
};

/* Loads the programs.  0, or -errno after an error message. */
int generator_open(struct generator *g, const struct frames_options *o);
void generator_close(struct generator *g);

/* Sets the shape of the requests, and their destination: the server of `bed`. */
void generator_shape(struct generator *g, const struct bed *bed, const struct shape *shape);

/* Attaches the sink on the client side of `bed`.  0, or -errno after an error message. */
int generator_listen(struct generator *g, struct bed *bed);

/* Fills the table with keys drawn from `dist`, none above `last`, as SETs and GETs by `ratio`. */
void generator_fill(struct generator *g, const struct dist *dist, struct ratio ratio,
		    uint32_t last);

/* Fills the table with `count` GETs or SCANs of keys first, first + step, ... */
void generator_sequence(struct generator *g, uint32_t first, uint32_t step, uint32_t count);

/* Makes the sink verify the checksum of every reply; not for measurements, as it takes time. */
void generator_check(struct generator *g, bool check);

/*
 * Sends `frames` frames from each of shape.loops CPUs at the same time, in the namespace of `bed`.
 * 0, -EINTR if interrupted, or -errno after an error message.
 */
int generator_run(struct generator *g, const struct bed *bed, uint32_t frames,
		  struct frame_result *out);

/* Reads the counters of the sink, summed over all CPUs. */
void generator_counts(const struct generator *g, uint64_t count[SINK_COUNTS]);

/* Descriptors of the programs, for tests; the generator owns them. */
int generator_fd(const struct generator *g);
int generator_sink_fd(const struct generator *g);

/* The eight digits of a key number, as in a frame. */
uint64_t frame_digits(uint32_t key);

/* Writes the value of `size` bytes that the generator SETs for a key of a range. */
void frame_value(void *value, unsigned int size, unsigned int range, uint32_t key);

#endif

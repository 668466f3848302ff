/* SPDX-License-Identifier: BSD-2-Clause */
/* Options of the frame loop: the command line of `xkv-bench frames`. */
#ifndef BENCH_FRAMES_OPTIONS_H
#define BENCH_FRAMES_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/bpf/frame.h"
#include "bench/common/dist.h"
#include "bench/common/option.h"

#define FRAMES_LIST_MAX	   12
#define FRAMES_SERVERS_MAX 16

/* Kinds before SERVER_ATTACHED are baselines and run on the base bed, others on the store's bed. */
enum server_kind {
	SERVER_ECHO,
	SERVER_THESIS,
	SERVER_THESIS_NOPRE,
	SERVER_ATTACHED,
	SERVER_PINNED, /* a pinned program; its name is the path */
};

struct frame_server {
	enum server_kind kind;
	const char *name;
};

/* All combinations of the elements of the lists are measured. */
struct frames_options {
	struct frame_server server[FRAMES_SERVERS_MAX];
	struct dist dist[FRAMES_LIST_MAX];
	struct ratio ratio[FRAMES_LIST_MAX];
	unsigned int key_size[FRAMES_LIST_MAX], value_size[FRAMES_LIST_MAX];
	unsigned int batch[FRAMES_LIST_MAX];	   /* operations in a datagram */
	unsigned int atomic[FRAMES_LIST_MAX];	   /* 1: ATOMIC datagrams; not of SCANs */
	unsigned int scans[FRAMES_LIST_MAX];	   /* 1: all requests are SCANs; 0: none */
	unsigned int scan_length[FRAMES_LIST_MAX]; /* keys */
	unsigned int cpu[FRAME_CPUS];
	unsigned int loops[FRAMES_LIST_MAX]; /* number of these CPUs to use at once */
	unsigned int mode[FRAMES_LIST_MAX];  /* of SERVER_ATTACHED: index in mode_names */
	unsigned int servers, dists, ratios, key_sizes, value_sizes, batches;
	unsigned int atomics, scan_shares, scan_lengths, cpus, loop_counts, modes;
	const char *bed, *base_bed; /* base_bed: where the baselines run, default: bed */
	unsigned int port;
	unsigned int keys;
	uint64_t seed;
	unsigned int rounds;
	double seconds;		  /* CPU time of one measurement */
	unsigned int frame_batch; /* frames in flight */
	bool json, quiet;
};

/*
 * Parses the command line into *o, whose strings point into argv.  0; 1 after printing --help or
 * --version; -EINVAL after an error message on standard error.
 */
int frames_options_parse(struct frames_options *o, int argc, char **argv);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* xkv-bench's command line: what it may say, its defaults, and their validation. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/common/dist.h"
#include "bench/common/sizes.h"
#include "bpf/proto.h"

#define OPTIONS_MAX_THREADS   256
#define OPTIONS_MAX_CLIENTS   20000
#define OPTIONS_MAX_LIST      12
#define OPTIONS_MAX_CPUS      64
#define OPTIONS_MAX_IN_FLIGHT (1U << 20)

/* Those before SERVER_ATTACHED are our own and run on the base bed, the others on the store's. */
enum frame_server {
	SERVER_ECHO,
	SERVER_THESIS,
	SERVER_THESIS_NOPRE,
	SERVER_ATTACHED,
	SERVER_PINNED, /* the first of options.pinned */
	SERVERS = SERVER_PINNED + OPTIONS_MAX_LIST,
};

enum protocol_kind {
	PROTOCOL_XKV,
	PROTOCOL_RESP,
	PROTOCOL_MEMCACHED,
	PROTOCOL_MEMCACHED_UDP,
	PROTOCOLS,
};

enum transport_kind { TRANSPORT_SOCKETS, TRANSPORT_XDP, TRANSPORTS };
enum xdp_mode { XDP_MODE_AUTO, XDP_MODE_COPY, XDP_MODE_ZEROCOPY, XDP_MODES };

/* SETs and GETs stand in the proportion set : get; not both are 0. */
struct ratio {
	unsigned int set, get;
};

struct options {
	const char *host;	/* default 127.0.0.1 */
	const char *port;	/* default 6379 */
	unsigned int protocol;	/* enum protocol_kind */
	unsigned int transport; /* enum transport_kind */
	/* AF_XDP */
	const char *interface;
	unsigned int queue[OPTIONS_MAX_CPUS], queues; /* 0: all that the interface has */
	unsigned int xdp_mode;			      /* enum xdp_mode */
	uint8_t mac[6];				      /* of the server or its gateway */
	bool mac_set;
	unsigned int clients, threads;
	unsigned int depth;		    /* requests that a client may have out */
	unsigned int pin[OPTIONS_MAX_CPUS]; /* CPUs of the threads, in turns */
	unsigned int pins;		    /* 0: the scheduler's choice */
	uint64_t requests;		    /* STAT_OPS to do, 0 = until `seconds` are over */
	double seconds;
	double warmup;	      /* seconds before them that do not count */
	double rate;	      /* open loop: requests/s of all threads; 0: closed loop */
	bool ramp;	      /* find the highest rate that holds, from this one on */
	unsigned int retries; /* of a datagram without a reply */
	bool retries_set;
	uint32_t keys;
	uint64_t first_key;			 /* number of the first of them */
	struct sizes key_size[OPTIONS_MAX_LIST]; /* bytes; more than one: frame loop only */
	struct sizes value_size[OPTIONS_MAX_LIST]; /* as above */
	unsigned int batch[OPTIONS_MAX_LIST];	   /* operations in a datagram; as above */
	unsigned int key_sizes, value_sizes, batches;
	unsigned int pad; /* bytes of payload that a request has at least */
	unsigned int timeout_ms;
	uint64_t seed;
	bool load;	/* set every key before the measurement */
	bool load_only; /* and do nothing else */
	bool resp;	/* write the load to standard output, as Redis commands */
	bool verify;	/* check every value that comes back */
	bool json, quiet;
	bool progress;	      /* a line each second on standard error */
	const char *hdr;      /* file for the latencies, or NULL */
	const char *workload; /* name of a preset, or NULL */
	/* Percent of all requests; what is left has the ratio.  Inserts are SETs of new keys,
	 * rmws GETs with a SET of the same keys behind them, mgets GETs of `batch` keys: if they
	 * have a share, though it be 0, all others are of one key. */
	double deletes, inserts, rmws, mgets;
	bool mgets_set;
	double scans[OPTIONS_MAX_LIST];		    /* more than one: frame loop only */
	bool shared;				    /* any of these is not 0 */
	unsigned int scan_length[OPTIONS_MAX_LIST]; /* keys; more than one: frame loop only */
	unsigned int scan_shares, scan_lengths;
	bool token_set;
	uint8_t token[XKV_TOKEN_BYTES];
	struct ratio ratio[OPTIONS_MAX_LIST]; /* more than one: frame loop only */
	struct dist dist[OPTIONS_MAX_LIST];
	char *dist_name[OPTIONS_MAX_LIST];
	unsigned int ratios, dists;

	/* the frame loop */
	bool frames;
	enum frame_server server[SERVERS];
	unsigned int servers;
	char *pinned[OPTIONS_MAX_LIST]; /* paths; the i-th is server SERVER_PINNED + i */
	unsigned int pinned_count;
	const char *bed, *base_bed; /* base_bed: where the baselines run, default: bed */
	unsigned int rounds;
	unsigned int frame_batch; /* frames in flight, at most 256 */
	unsigned int cpu[OPTIONS_MAX_CPUS];
	unsigned int cpus;
	unsigned int loops[OPTIONS_MAX_LIST]; /* so many of these CPUs at once */
	unsigned int loop_counts;
};

/*
 * Parses the command line.  0 with *o filled in; 1 if --help or --version was
 * answered; -EINVAL after one sentence on standard error.  What *o points to
 * lives as long as argv, dist_name and pinned until options_free().
 */
int options_parse(struct options *o, int argc, char **argv);
void options_free(struct options *o);

/* SETs of the largest entries that fit a datagram; at least 1. */
unsigned int options_load_batch(const struct options *o);

/* Appends a distribution.  -EINVAL after a sentence. */
int options_add_dist(struct options *o, const char *text);

/* options_check.c: contradictions, and defaults that follow from other options.  -EINVAL after a
 * sentence. */
int options_check(struct options *o);

/* "udp", "tcp" or "xdp". */
const char *options_transport_name(const struct options *o);
const char *protocol_name(unsigned int protocol);
const char *frame_server_name(const struct options *o, enum frame_server server);

#endif

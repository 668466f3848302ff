/* SPDX-License-Identifier: BSD-2-Clause */
/* What a load over sockets or AF_XDP is to do: xkv-bench's command line without `frames`. */
#ifndef BENCH_LOAD_OPTIONS_H
#define BENCH_LOAD_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/bpf/xsk.h"
#include "bench/common/dist.h"
#include "bench/common/option.h"
#include "bench/common/sizes.h"
#include "bpf/proto.h"

#define OPTIONS_MAX_THREADS   256
#define OPTIONS_MAX_CLIENTS   20000
#define OPTIONS_MAX_CPUS      64
#define OPTIONS_MAX_IN_FLIGHT (1U << 20)

enum protocol_kind {
	PROTOCOL_XKV,
	PROTOCOL_RESP,
	PROTOCOL_MEMCACHED,
	PROTOCOLS,
};

enum transport_kind { TRANSPORT_SOCKETS, TRANSPORT_XDP };
enum xdp_mode { XDP_MODE_AUTO, XDP_MODE_COPY, XDP_MODE_ZEROCOPY, XDP_MODES };
enum load_first { LOAD_NO, LOAD_YES, LOAD_IF_READ };

struct options {
	const char *host;
	const char *port;
	unsigned int protocol;	/* enum protocol_kind */
	unsigned int transport; /* enum transport_kind */
	/* AF_XDP */
	const char *interface;
	unsigned int queue[XSK_QUEUES_MAX], queues; /* 0: all that the interface has */
	unsigned int xdp_mode;			    /* enum xdp_mode */
	uint8_t mac[6];				    /* of the server or its gateway */
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
	unsigned int timeout_ms;
	unsigned int keys;
	uint64_t first_key; /* number of the first of them */
	struct sizes key_size, value_size;
	unsigned int batch; /* keys of a GET, SET or DELETE */
	unsigned int pad;   /* bytes of payload that a request has at least */
	uint64_t seed;
	unsigned int load; /* enum load_first: set every key before the measurement */
	bool load_only;	   /* and do nothing else */
	bool verify;	   /* check every value that comes back */
	bool json, quiet;
	bool progress;	      /* a line each second on standard error */
	const char *hdr;      /* file for the latencies, or NULL */
	const char *workload; /* name of a preset, or NULL */
	/* Percent of all requests; what is left has the ratio.  Inserts are SETs of new keys,
	 * rmws GETs with a SET of the same keys behind them, mgets GETs of `batch` keys: if they
	 * have a share, though it be 0, all others are of one key. */
	double deletes, inserts, rmws, mgets, scans;
	bool mgets_set;
	bool shared;		  /* any of these is not 0 */
	unsigned int scan_length; /* keys */
	bool token_set;
	uint8_t token[XKV_TOKEN_BYTES];
	struct ratio ratio;
	struct dist dist;
};

/*
 * Parses the command line.  0 with *o filled in, which points to argv; 1 if --help or --version
 * was answered; -EINVAL after one sentence on standard error.
 */
int options_parse(struct options *o, int argc, char **argv);

/* options_check.c: contradictions, and defaults that follow from other options.  -EINVAL after a
 * sentence. */
int options_check(struct options *o);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* Options of a load over sockets or AF_XDP: the command line of xkv-bench without `frames`. */
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
	bool ipv6;		/* IPv6 or unknown: datagrams have to be shorter */
	unsigned int protocol;	/* enum protocol_kind */
	unsigned int transport; /* enum transport_kind */
	/* AF_XDP */
	const char *interface;
	unsigned int queue[XSK_QUEUES_MAX], queues; /* 0 queues: all of the interface */
	unsigned int xdp_mode;			    /* enum xdp_mode */
	uint8_t mac[6];				    /* of the server or its gateway */
	bool mac_set;
	unsigned int clients, threads;
	unsigned int depth;		    /* outstanding requests of a client */
	unsigned int pin[OPTIONS_MAX_CPUS]; /* CPUs of the threads, assigned round robin */
	unsigned int pins;		    /* 0: not pinned */
	uint64_t requests;		    /* operations (STAT_OPS), 0 = limited by `seconds` */
	double seconds;
	double warmup;	      /* seconds before the measurement */
	double rate;	      /* open loop: requests/s of all threads; 0: closed loop */
	bool ramp;	      /* find the highest sustained rate, beginning with `rate` */
	unsigned int retries; /* of a datagram without a reply */
	unsigned int timeout_ms;
	unsigned int keys;
	uint64_t first_key; /* number of the first key */
	struct sizes key_size, value_size;
	unsigned int batch; /* keys of a GET, SET or DELETE */
	unsigned int pad;   /* minimum payload of a request, bytes */
	uint64_t seed;
	unsigned int load; /* enum load_first: set every key before the measurement */
	bool load_only;	   /* set the keys and exit */
	bool verify;	   /* check every value of a reply */
	bool json, quiet;
	bool progress;	      /* a line each second on standard error */
	const char *hdr;      /* file for the latencies, or NULL */
	const char *workload; /* name of a preset, or NULL */
	/*
	 * Percent of all requests; the others are divided by `ratio`.  Inserts are SETs of new
	 * keys, rmws GETs followed by a SET of the same keys, mgets GETs of `batch` keys.  If mgets
	 * are given, even as 0, all other requests have one key.
	 */
	double deletes, inserts, rmws, mgets, scans;
	bool mgets_set;
	bool shared;		  /* one of these shares is not 0 */
	unsigned int scan_length; /* keys */
	bool token_set;
	uint8_t token[XKV_TOKEN_BYTES];
	struct ratio ratio;
	struct dist dist;
};

/*
 * Parses the command line into *o, whose strings point into argv.  0; 1 after printing --help or
 * --version; -EINVAL after an error message on standard error.
 */
int options_parse(struct options *o, int argc, char **argv);

/*
 * options_check.c: checks for contradictions, and sets defaults that depend on other options.  0,
 * or -EINVAL after an error message.
 */
int options_check(struct options *o);

#endif

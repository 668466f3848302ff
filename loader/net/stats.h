/* SPDX-License-Identifier: BSD-2-Clause */
/* Counters of the RESP front end and of the store that INFO shows. */
#ifndef XKV_STATS_H
#define XKV_STATS_H

#include <stdint.h>

enum counter {
	/* counted by each worker */
	STAT_CONNECTIONS,
	STAT_REJECTED, /* connections, by maxclients or by address */
	STAT_REFUSED,  /* of these, by address */
	STAT_COMMANDS,
	STAT_PROTOCOL_ERRORS,
	STAT_OUTPUT_CLOSED, /* clients closed by client-output-buffer-limit */
	STAT_QUERY_CLOSED,  /* by client-query-buffer-limit */
	STAT_EVICTED_CLIENTS,
	STAT_TLS_HANDSHAKES, /* that were done */
	STAT_TLS_FAILED,     /* handshakes, also those that took too long */
	STAT_TLS_ERRORS,     /* connections that TLS has ended later */
	STAT_ACL_AUTH,	     /* denied by ACL rules: logins, commands, keys, channels */
	STAT_ACL_COMMAND,
	STAT_ACL_KEY,
	STAT_ACL_CHANNEL,
	STAT_CONFLICTS, /* repeated tries of transactions: another client changed a key */
	STAT_ALONE_NS,	/* in which all other workers had to wait */
	STAT_BYTES_IN,
	STAT_BYTES_OUT,
	STAT_UDP_LATE,	  /* datagrams that have waited too long */
	STAT_UDP_SOURCE,  /* datagrams with our own source address */
	STAT_UDP_CROWDED, /* changes that were dropped because too many replies wait for the disk */
	STAT_READS,	  /* calls that brought or sent something */
	STAT_WRITES,
	/* counted by the store, for both front ends */
	STAT_HITS,
	STAT_MISSES,
	STAT_EXPIRED,
	STAT_EVICTED,
	STAT_UDP_DRIVER,
	STAT_UDP_XKVD,
	STATS,
};

#define TIME_STEPS   8		       /* of an octave: a percentile is exact to 1/8 */
#define TIME_BUCKETS (40 * TIME_STEPS) /* up to 2^40 ns, 18 minutes */

/* Durations of one kind of event, since the start. */
struct durations {
	uint64_t count, ns;
	uint64_t times[TIME_BUCKETS]; /* by their duration: see time_bucket() */
};

/* Times of an octave are in TIME_STEPS buckets; below 8 ns in one each. */
static inline unsigned int time_bucket(uint64_t ns)
{
	unsigned int octave, bucket;

	if (ns < TIME_STEPS)
		return (unsigned int)ns;
	octave = 63 - (unsigned int)__builtin_clzll(ns);
	bucket = octave * TIME_STEPS + (unsigned int)(ns >> (octave - 3)) % TIME_STEPS;
	return bucket < TIME_BUCKETS ? bucket : TIME_BUCKETS - 1;
}

/* The upper bound of this bucket in ns, exclusive. */
static inline uint64_t time_bucket_end(unsigned int i)
{
	unsigned int octave = i / TIME_STEPS;

	return octave < 3 ? i + 1 : (uint64_t)(TIME_STEPS + i % TIME_STEPS + 1) << (octave - 3);
}

#endif

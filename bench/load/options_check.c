// SPDX-License-Identifier: BSD-2-Clause
/* Checks options for contradictions, and sets defaults that depend on other options. */
#include <arpa/inet.h>
#include <errno.h>
#include <unistd.h>

#include "bench/common/message.h"
#include "entry.h"
#include "options.h"
#include "workload.h"

#define DATAGRAM_VALUE_MAX 1400
#define STREAM_VALUES_MAX  (15U << 20) /* less than REPLY_MAX of transport_tcp.c */
#define RAMP_RATE	   10000       /* requests/s of the first step */
#define RAMP_SECONDS	   2
#define OPEN_DEPTH	   1024 /* default of outstanding requests of a client in an open loop */

/* True unless the server is given by an IPv4 address: a name may resolve to an IPv6 one. */
static bool maybe_ipv6(const struct options *o)
{
	struct in_addr address;

	return inet_pton(AF_INET, o->host, &address) != 1;
}

/* The values of one request over TCP, or of its reply, have to fit the memory for a reply. */
static int check_stream(const struct options *o)
{
	unsigned int keys = o->scans > 0 && o->scan_length > o->batch ? o->scan_length : o->batch;

	if (keys > REQUEST_KEYS_MAX)
		keys = REQUEST_KEYS_MAX;
	if ((uint64_t)keys * o->value_size.max <= STREAM_VALUES_MAX)
		return 0;
	return refuse("the %u values of a request have up to %llu bytes, more than %u MiB: lower "
		      "--value-size, --batch or --scan-length",
		      keys, (unsigned long long)keys * o->value_size.max, STREAM_VALUES_MAX >> 20);
}

static int check_datagram(struct options *o)
{
	unsigned int payload;

	o->ipv6 = maybe_ipv6(o);
	payload = o->ipv6 ? XKV_PAYLOAD_MAX6 : XKV_PAYLOAD_MAX4;
	if (o->protocol != PROTOCOL_XKV)
		return check_stream(o);
	if (o->value_size.max > DATAGRAM_VALUE_MAX)
		return refuse("--value-size: at most %d over UDP; larger ones with --protocol resp "
			      "or memcached",
			      DATAGRAM_VALUE_MAX);
	/* a single value of a distribution is limited to its datagram: entry_value_size() */
	if (o->batch == 1 && sizes_have_tail(&o->value_size))
		return 0;
	return sizes_check_batch(o->key_size.max, o->value_size.max, o->batch, payload,
				 o->token_set);
}

/* A SCAN increments the number at the end of a key, so keys must end in digits. */
static int check_scans(const struct options *o)
{
	if (o->scans <= 0)
		return 0;
	if (o->scan_length > o->keys)
		return refuse("--scan-length %u: there are only %u keys", o->scan_length, o->keys);
	if (o->protocol == PROTOCOL_XKV && o->key_size.max > ENTRY_DIGITS_MAX + 4)
		return refuse("--scans needs keys that end in digits: --key-size of at most %d",
			      ENTRY_DIGITS_MAX + 4);
	if (o->key_size.min != o->key_size.max)
		return refuse("--scans needs keys of one size");
	return 0;
}

static int check_shares(struct options *o)
{
	double sum = o->deletes + o->scans + o->inserts + o->rmws + o->mgets;

	o->shared = sum > 0;
	if (o->mgets_set && o->batch < 2)
		return refuse("--mgets needs a --batch of at least 2: the keys of an MGET");
	if (sum > 100)
		return refuse("--deletes, --scans and --mgets, together with the inserts and "
			      "read-modify-writes of --workload, must not exceed 100 percent");
	return check_scans(o);
}

static int check_keys(const struct options *o)
{
	uint64_t names = entry_names(o->key_size.min);

	if (o->keys > names || o->first_key > names - o->keys)
		return refuse("keys of %u bytes can name %llu keys only: raise --key-size%s",
			      o->key_size.min, (unsigned long long)names,
			      o->first_key ? " or lower --first-key" : "");
	if (o->inserts > 0 && names - o->first_key < UINT32_MAX)
		return refuse("a workload that inserts needs names for its keys: --key-size of at "
			      "least 14");
	return 0;
}

/* Limits outstanding requests.  In an open loop further ones wait, which counts as latency. */
static int check_depth(struct options *o)
{
	bool xdp = o->transport == TRANSPORT_XDP;
	unsigned int most = xdp ? XSK_OUT_MAX : OPTIONS_MAX_IN_FLIGHT;
	unsigned int most_open = xdp ? most : most / 8;

	if (!o->depth)
		o->depth = o->rate > 0 ? OPEN_DEPTH : 1;
	while (o->rate > 0 && o->depth > 1 && o->depth * o->clients > most_open)
		o->depth /= 2;
	if (o->depth > most / o->clients)
		return refuse("-c %u with --depth %u: at most %u requests may be outstanding%s",
			      o->clients, o->depth, most,
			      xdp ? " with --transport xdp, the size of a queue's ring" : "");
	return 0;
}

static int check_loop(struct options *o)
{
	if (o->threads > o->clients)
		return refuse("-t %u: each thread needs a client: raise -c to %u or lower -t",
			      o->threads, o->threads);
	if (o->ramp && o->requests)
		return refuse("--ramp runs for --seconds: it cannot be used with --requests");
	if (o->ramp && !(o->rate > 0))
		o->rate = RAMP_RATE;
	if (o->ramp && o->seconds == 0)
		o->seconds = RAMP_SECONDS;
	if (o->seconds == 0 && !o->requests)
		o->seconds = 10;
	return check_depth(o);
}

static int check_transport(const struct options *o)
{
	if (o->transport != TRANSPORT_XDP)
		return 0;
	if (o->protocol != PROTOCOL_XKV)
		return refuse("--transport xdp requires --protocol xkv");
	if (!o->interface)
		return refuse("--transport xdp needs an --interface");
	return 0;
}

/* A preset replaces --ratio, and sets the distribution unless --distribution is given. */
static int apply_workload(struct options *o)
{
	bool ratio = o->ratio.set || o->ratio.get;

	if (o->workload && ratio)
		return refuse("--workload and --ratio exclude each other");
	if (o->workload && workload_preset(o, o->workload))
		return refuse("--workload %s is unknown: use ycsb-a, -b, -c, -d or -f",
			      o->workload);
	if (!o->workload && !ratio)
		o->ratio.get = 1;
	return o->dist.text ? 0 : dist_parse(&o->dist, "uniform", NULL, 0);
}

int options_check(struct options *o)
{
	int err = apply_workload(o);

	if (!err)
		err = check_transport(o);
	if (!err)
		err = check_loop(o);
	if (!err)
		err = check_keys(o);
	if (!err)
		err = check_shares(o);
	if (!err)
		err = check_datagram(o);
	if (o->load == LOAD_IF_READ)
		o->load = o->ratio.get || o->shared;
	o->load = o->load || o->load_only;
	o->progress = !o->quiet && (o->progress || isatty(STDERR_FILENO));
	return err;
}

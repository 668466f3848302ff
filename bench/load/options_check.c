// SPDX-License-Identifier: BSD-2-Clause
/* What options may not say together, and the defaults that follow from others. */
#include "options.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/bpf/frame.h"
#include "bench/bpf/xsk.h"
#include "bench/common/say.h"
#include "entry.h"
#include "protocol.h"
#include "request.h"
#include "workload.h"

#define RAMP_RATE    10000 /* requests/s of the first step */
#define RAMP_SECONDS 2
#define OPEN_DEPTH   1024 /* requests that an open loop may have out a client, without --depth */

static int refuse(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int refuse(const char *fmt, ...)
{
	char line[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	say("%s", line);
	return -EINVAL;
}

/* Bytes that the largest SET takes in a datagram, its head included. */
static unsigned int op_bytes(const struct sizes *key, const struct sizes *value)
{
	return sizeof(struct xkv_op) + XKV_PADDED(key->max) + XKV_PADDED(value->max);
}

unsigned int options_load_batch(const struct options *o)
{
	unsigned int n = (XKV_PAYLOAD_MAX6 - sizeof(struct xkv_hdr) - XKV_TOKEN_BYTES) /
			 op_bytes(&o->key_size[0], &o->value_size[0]);

	return n > REQUEST_KEYS_MAX ? REQUEST_KEYS_MAX : n ? n : 1;
}

/* Payload that a datagram has: that of IPv6, unless the server's address is one of IPv4. */
static unsigned int payload_max(const struct options *o)
{
	struct in_addr address;

	return inet_pton(AF_INET, o->host, &address) == 1 ? XKV_PAYLOAD_MAX4 : XKV_PAYLOAD_MAX6;
}

/* Bytes that the larger of a batch's request and reply has for each of its operations. */
static unsigned int op_room(const struct options *o, unsigned int batch)
{
	unsigned int used = sizeof(struct xkv_hdr) + (o->token_set ? XKV_TOKEN_BYTES : 0);

	return (payload_max(o) - used) / batch & ~7U;
}

static int refuse_datagram(const struct options *o, const struct sizes *key,
			   const struct sizes *value, unsigned int batch)
{
	static const struct sizes none = { 0 };
	unsigned int least = op_bytes(key, &none), room = op_room(o, batch);
	char most[48] = "";

	if (room >= least)
		snprintf(most, sizeof(most), " to at most %u", room - least);
	return refuse("a batch of %u with keys of %u bytes and values of %u does not fit a "
		      "datagram of %u: lower --value-size%s, --key-size or --batch",
		      batch, key->max, value->max, payload_max(o), most);
}

static int check_datagram(const struct options *o, const struct sizes *key,
			  const struct sizes *value, unsigned int batch)
{
	if (o->protocol == PROTOCOL_MEMCACHED_UDP && batch > 1 && !o->mgets_set &&
	    (o->ratio[0].set || o->deletes > 0 || o->inserts > 0 || o->rmws > 0))
		return refuse("memcached takes one SET or DELETE in a datagram: --batch is for "
			      "GETs there");
	if (o->protocol != PROTOCOL_XKV)
		return 0;
	/* One value of a distribution is cut to what its datagram holds: entry_value_size(). */
	if (batch == 1 && sizes_have_tail(value))
		return 0;
	if (op_bytes(key, value) <= op_room(o, batch))
		return 0;
	return refuse_datagram(o, key, value, batch);
}

static void set_frame_defaults(struct options *o)
{
	if (!o->servers)
		o->server[o->servers++] = SERVER_ATTACHED;
	if (!o->cpus)
		o->cpu[o->cpus++] = 0;
	if (!o->loop_counts)
		o->loops[o->loop_counts++] = o->cpus;
	if (!o->base_bed)
		o->base_bed = o->bed;
	if (o->seconds == 0)
		o->seconds = 0.5;
}

/* Whether any of the frames are SCANs. */
static bool frames_scan(const struct options *o)
{
	for (unsigned int i = 0; i < o->scan_shares; i++) {
		if (o->scans[i] > 0)
			return true;
	}
	return false;
}

/* Whether all frames are of the one kind that the thesis-like program knows. */
static bool plain_frames(const struct options *o)
{
	return o->key_sizes == 1 && o->key_size[0].max == FRAME_KEY_SIZE && o->value_sizes == 1 &&
	       o->value_size[0].max == FRAME_VALUE_SIZE && o->batches == 1 && o->batch[0] == 1 &&
	       !frames_scan(o);
}

static int check_frame_servers(const struct options *o)
{
	bool ours = false, attached = false;

	for (unsigned int i = 0; i < o->servers; i++) {
		enum frame_server server = o->server[i];

		ours |= server < SERVER_ATTACHED;
		attached |= server >= SERVER_ATTACHED;
		if ((server == SERVER_THESIS || server == SERVER_THESIS_NOPRE) && !plain_frames(o))
			return refuse("--server %s knows one GET or SET in a datagram, keys of %d "
				      "bytes and values of %d only",
				      frame_server_name(o, server), FRAME_KEY_SIZE,
				      FRAME_VALUE_SIZE);
	}
	if (ours && attached && !strcmp(o->bed, o->base_bed))
		return refuse("--server attached, or a pinned program, beside others: give the "
			      "others a bed of their own with --base-bed");
	return 0;
}

/* Every batch of entries of these sizes has to make a frame. */
static int check_frame_entry(const struct options *o, const struct sizes *key,
			     const struct sizes *value)
{
	int err = 0;

	if (key->min < FRAME_KEY_SIZE || key->min != key->max)
		return refuse("--frames has keys of one size each, %d to %d bytes", FRAME_KEY_SIZE,
			      XKV_KEY_MAX);
	if (value->min < FRAME_VALUE_MIN || value->min != value->max)
		return refuse("--frames has values of one size each, %d to 1400 bytes",
			      FRAME_VALUE_MIN);
	for (unsigned int b = 0; b < o->batches && !err; b++) {
		if (o->batch[b] > FRAME_OPS_MAX)
			return refuse("--frames has a --batch of at most %d", FRAME_OPS_MAX);
		err = check_datagram(o, key, value, o->batch[b]);
	}
	return err;
}

static int check_frame_sizes(const struct options *o)
{
	int err = 0;

	for (unsigned int k = 0; k < o->key_sizes; k++) {
		for (unsigned int v = 0; v < o->value_sizes && !err; v++)
			err = check_frame_entry(o, &o->key_size[k], &o->value_size[v]);
	}
	return err;
}

/* Only the keys of the smallest size end in their digits, which a SCAN counts up. */
static int check_frame_scans(const struct options *o)
{
	for (unsigned int i = 0; i < o->scan_shares; i++) {
		if (o->scans[i] != 0 && o->scans[i] != 100)
			return refuse("--frames: all requests are SCANs or none: --scans 0 or 100");
	}
	if (!frames_scan(o))
		return 0;
	for (unsigned int i = 0; i < o->scan_lengths; i++) {
		if (o->scan_length[i] > XKV_SCAN_MAX || o->scan_length[i] > o->keys)
			return refuse("--frames: a SCAN reads at most %d keys, and those that "
				      "there are: lower --scan-length",
				      XKV_SCAN_MAX);
	}
	if (o->key_sizes > 1 || o->key_size[0].max != FRAME_KEY_SIZE)
		return refuse("--frames: --scans needs keys of %d bytes, which end in digits",
			      FRAME_KEY_SIZE);
	if (o->ratios > 1 || o->ratio[0].set)
		return refuse("--frames: SCANs read: --scans needs a --ratio of 0:1");
	return 0;
}

static int check_frames(struct options *o)
{
	int err;

	set_frame_defaults(o);
	if (o->keys > FRAME_KEYS_MAX)
		return refuse("--frames: at most %u keys", FRAME_KEYS_MAX);
	if (o->token_set)
		return refuse("--frames cannot send a token: run xkvd without udp-token");
	if (o->first_key)
		return refuse("--first-key is for loads over sockets: --frames has the keys from "
			      "0 on, and from %u on for each further --value-size",
			      FRAME_KEYS_MAX);
	for (unsigned int i = 0; i < o->dists; i++) {
		if (!dist_is_random(&o->dist[i]))
			return refuse("--frames draws its keys at random: no --distribution %s",
				      o->dist_name[i]);
	}
	for (unsigned int i = 0; i < o->loop_counts; i++) {
		if (o->loops[i] > o->cpus)
			return refuse("--loops %u: name as many CPUs with --cpus", o->loops[i]);
	}
	err = check_frame_servers(o);
	if (!err)
		err = check_frame_sizes(o);
	return err ? err : check_frame_scans(o);
}

/* A scan's keys are counted up at their end, so digits have to stand there. */
static int check_scans(const struct options *o)
{
	if (o->scans[0] <= 0)
		return 0;
	if (o->scan_length[0] > o->keys)
		return refuse("--scan-length %u: there are but %u keys", o->scan_length[0],
			      o->keys);
	if (o->protocol == PROTOCOL_XKV && o->key_size[0].max > ENTRY_DIGITS_MAX + 4)
		return refuse("--scans needs keys that end in digits: --key-size of at most %d",
			      ENTRY_DIGITS_MAX + 4);
	if (o->key_size[0].min != o->key_size[0].max)
		return refuse("--scans needs keys of one size");
	return 0;
}

static int check_mgets(const struct options *o)
{
	if (o->mgets_set && o->batch[0] < 2)
		return refuse("--mgets needs a --batch of at least 2: the keys of an MGET");
	return 0;
}

static int check_shares(struct options *o)
{
	int err = check_mgets(o);

	o->shared =
		o->deletes > 0 || o->scans[0] > 0 || o->inserts > 0 || o->rmws > 0 || o->mgets > 0;
	if (err)
		return err;
	if (o->deletes + o->scans[0] + o->inserts + o->rmws + o->mgets > 100)
		return refuse(
			"--deletes, --scans and --mgets leave less than nothing for the rest: "
			"together with the inserts and the like of --workload at most 100 percent");
	return check_scans(o);
}

static int check_keys(const struct options *o)
{
	uint64_t names = entry_names(o->key_size[0].min);

	if (o->keys > names || o->first_key > names - o->keys)
		return refuse("keys of %u bytes can name %llu keys only: raise --key-size%s",
			      o->key_size[0].min, (unsigned long long)names,
			      o->first_key ? " or lower --first-key" : "");
	if (o->inserts > 0 && names - o->first_key < UINT32_MAX)
		return refuse("a workload that inserts needs names for its keys: --key-size of at "
			      "least 14");
	return 0;
}

/* An open loop may have fewer out: what is due meanwhile waits, and its latency counts. */
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
		return refuse("-c %u with --depth %u: at most %u requests may be out at a time%s",
			      o->clients, o->depth, most,
			      xdp ? " with --transport xdp, which the ring of a queue has room for" : "");
	return 0;
}

static int check_loop(struct options *o)
{
	if (o->threads > o->clients)
		return refuse("-t %u: a thread needs a client: raise -c to %u or lower -t",
			      o->threads, o->threads);
	if (o->ramp && o->requests)
		return refuse("--ramp has steps of --seconds: no --requests");
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
	if (o->transport != TRANSPORT_XDP) {
		if (o->interface || o->queues || o->xdp_mode || o->mac_set)
			return refuse(
				"--interface, --queues, --xdp-mode and --mac need --transport xdp");
		return 0;
	}
	if (o->protocol != PROTOCOL_XKV && o->protocol != PROTOCOL_MEMCACHED_UDP)
		return refuse("--transport xdp sends datagrams: --protocol %s has none",
			      protocol_name(o->protocol));
	if (!o->interface)
		return refuse("--transport xdp needs an --interface");
	return 0;
}

static int check_sockets(struct options *o)
{
	int err;

	if (o->ratios > 1 || o->dists > 1 || o->key_sizes > 1 || o->value_sizes > 1 ||
	    o->batches > 1 || o->scan_shares > 1 || o->scan_lengths > 1)
		return refuse("lists of ratios, distributions, sizes, batches or scans are for "
			      "--frames only");
	if (o->protocol != PROTOCOL_XKV && (o->token_set || o->pad))
		return refuse("--token and --pad are for --protocol xkv");
	if (o->retries_set && protocol_of(o)->stream)
		return refuse("--retries is for datagrams: --protocol %s has connections",
			      protocol_name(o->protocol));
	if (o->hdr && (o->load_only || o->resp))
		return refuse("--hdr has the latencies of a load: --load-only and --resp have "
			      "none");
	err = check_transport(o);
	if (!err)
		err = check_loop(o);
	if (!err)
		err = check_keys(o);
	if (!err)
		err = check_shares(o);
	return err ? err : check_datagram(o, &o->key_size[0], &o->value_size[0], o->batch[0]);
}

/* A preset says what --ratio would, and which keys are asked for unless --distribution does. */
static int apply_workload(struct options *o)
{
	if (!o->workload)
		return 0;
	if (o->ratios)
		return refuse("--workload and --ratio say the same: give one of them");
	if (workload_preset(o, o->workload))
		return refuse("--workload %s is unknown: use ycsb-a, -b, -c, -d or -f",
			      o->workload);
	return 0;
}

int options_check(struct options *o)
{
	int err = apply_workload(o);

	if (!err && !o->ratios)
		o->ratio[o->ratios++] = (struct ratio){ .set = 0, .get = 1 };
	if (!err && !o->dists)
		err = options_add_dist(o, "uniform");
	if (!err)
		err = o->frames ? check_frames(o) : check_sockets(o);
	o->progress = !o->quiet && (o->progress || isatty(STDERR_FILENO));
	return err;
}

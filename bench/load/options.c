// SPDX-License-Identifier: BSD-2-Clause
/* See options.h: the table of the options, and readers of their special values. */
#include "options.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "bench/common/message.h"
#include "request.h"

static int read_token(const struct option_row *row, char *text, void *field)
{
	uint8_t *token = field;

	for (int i = 0; i < XKV_TOKEN_BYTES; i++) {
		if (strlen(text) != 2 * XKV_TOKEN_BYTES ||
		    strspn(text, "0123456789abcdefABCDEF") != 2 * XKV_TOKEN_BYTES ||
		    sscanf(text + 2 * i, "%2hhx", &token[i]) != 1)
			return refuse("--%s: give the %d hexadecimal digits of xkvd's udp-token",
				      row->name, 2 * XKV_TOKEN_BYTES);
	}
	return 0;
}

static int read_mac(const struct option_row *row, char *text, void *field)
{
	uint8_t *m = field;
	int used = 0;

	if (sscanf(text, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx%n", &m[0], &m[1], &m[2], &m[3], &m[4],
		   &m[5], &used) == 6 &&
	    !text[used])
		return 0;
	return refuse("--%s %s: give an address such as 02:00:00:77:00:01", row->name, text);
}

static int read_sizes(const struct option_row *row, const char *text, enum sizes_of_what what,
		      struct sizes *out)
{
	char err[160];

	if (sizes_parse(out, text, what, row->min, row->max, err, sizeof(err)))
		return refuse("--%s %s", row->name, err);
	return 0;
}

static int read_key_size(const struct option_row *row, char *text, void *field)
{
	return read_sizes(row, text, SIZES_KEY, field);
}

static int read_value_size(const struct option_row *row, char *text, void *field)
{
	return read_sizes(row, text, SIZES_VALUE, field);
}

/* Reads --queues: a single number is how many, from queue 0 on; a list names them. */
static int read_queues(const struct option_row *row, char *text, void *options)
{
	static const struct option_row list = { .name = "queues",
						.read = option_uint,
						.max = XSK_QUEUES_MAX - 1,
						OPTION_LIST(struct options, queue, queues) };
	struct options *o = options;

	if (strchr(text, ','))
		return option_list(&list, text, o);
	if (option_uint(row, text, &o->queues))
		return -EINVAL;
	for (unsigned int i = 0; i < o->queues; i++)
		o->queue[i] = i;
	return 0;
}

static bool over_xdp(const void *options)
{
	return ((const struct options *)options)->transport == TRANSPORT_XDP;
}

static bool speaks_xkv(const void *options)
{
	return ((const struct options *)options)->protocol == PROTOCOL_XKV;
}

static bool measures(const void *options)
{
	return !((const struct options *)options)->load_only;
}

static const struct option_need xdp = { over_xdp, "needs --transport xdp" };
static const struct option_need xkv = { speaks_xkv, "is for --protocol xkv" };
static const struct option_need load = { measures,
					 "has the latencies of a load: --load-only has none" };

static const char *const protocols[] = { "xkv", "resp", "memcached", NULL };
static const char *const transports[] = { "udp", "xdp", NULL };
static const char *const xdp_modes[] = { "auto", "copy", "zerocopy", NULL };

#define FIELD(member)	    .field = offsetof(struct options, member)
#define GIVEN(member)	    .given = offsetof(struct options, member)
#define LIST(list, counter) OPTION_LIST(struct options, list, counter)

/* clang-format off */
static const struct option_row rows[] = {
	{ .heading = "Server and connections" },
	{ "host", "HOST", 'h', option_text, FIELD(host),
	  .help = "address or name of the server, default 127.0.0.1" },
	{ "port", "PORT", 'p', option_port, FIELD(port),
	  .help = "port of the server, default 6379" },
	{ "protocol", "P", 0, option_choice, FIELD(protocol), .choices = protocols,
	  .help = "xkv (default, UDP), resp (TCP) or memcached (TCP)" },
	{ "transport", "T", 0, option_choice, FIELD(transport), .choices = transports,
	  .help = "for protocol xkv: udp (sockets, default) or xdp (AF_XDP)" },
	{ "interface", "DEV", 0, option_text, FIELD(interface), .need = &xdp,
	  .help = "network device for AF_XDP" },
	{ "queues", "N or LIST", 0, read_queues, .min = 1, .max = XSK_QUEUES_MAX, .need = &xdp,
	  .help = "receive queues of the device, default: all" },
	{ "xdp-mode", "M", 0, option_choice, FIELD(xdp_mode), .choices = xdp_modes, .need = &xdp,
	  .help = "AF_XDP mode: auto (default), copy or zerocopy" },
	{ "mac", "MAC", 0, read_mac, FIELD(mac), GIVEN(mac_set), .need = &xdp,
	  .help = "destination MAC address, default: from the kernel's tables" },
	{ "token", "HEX", 0, read_token, FIELD(token), GIVEN(token_set), .need = &xkv,
	  .help = "client token (xkvd's udp-token), 32 hex digits" },
	{ "clients", "N", 'c', option_uint, FIELD(clients), .min = 1, .max = OPTIONS_MAX_CLIENTS,
	  .help = "number of clients, a socket each, default 1" },
	{ "threads", "N", 't', option_uint, FIELD(threads), .min = 1, .max = OPTIONS_MAX_THREADS,
	  .help = "number of threads, at most one per client, default 1" },
	{ "pin", "LIST", 0, option_uint, LIST(pin, pins), .max = CPU_SETSIZE - 1,
	  .help = "CPUs for the threads, round robin; default: not pinned" },
	{ "depth", "N", 0, option_uint, FIELD(depth), .min = 1, .max = REQUEST_DEPTH_MAX,
	  .help = "outstanding requests per client, default 1; in an open\n"
		  "loop 1024, less if there are more than 128 clients" },
	{ "rate", "R", 0, option_real, FIELD(rate), .least = 0.001, .most = 1e9,
	  .help = "open loop: total requests per second; latency is measured\n"
		  "from when a request was due; default: closed loop" },
	{ "ramp", NULL, 0, option_flag, FIELD(ramp),
	  .help = "find the highest rate that the server sustains" },
	{ "requests", "N", 'n', option_u64, FIELD(requests), .min = 1, .max = UINT64_MAX,
	  .help = "number of operations (each key of a batch counts, a scan\n"
		  "is one, an rmw two); default: limited by --seconds" },
	{ "seconds", "S", 0, option_real, FIELD(seconds), .least = 0.001, .most = 1e6,
	  .help = "duration of the measurement, default 10; with -n no limit" },
	{ "warmup", "S", 0, option_real, FIELD(warmup), .most = 1e6,
	  .help = "duration of the warm-up, not measured; default 0" },
	{ "timeout", "MS", 0, option_uint, FIELD(timeout_ms), .min = 1, .max = 600000,
	  .help = "time to wait for a connection or a reply, default 1000" },
	{ "retries", "N", 0, option_uint, FIELD(retries), .max = 100, .need = &xkv,
	  .help = "how often a datagram without a reply is resent, default 3" },
	{ .heading = "Workload" },
	{ "keys", "N", 0, option_uint, FIELD(keys), .min = 1, .max = DIST_KEYS_MAX,
	  .help = "number of keys, default 1000000" },
	{ "first-key", "N", 0, option_u64, FIELD(first_key), .max = 999999999999,
	  .help = "number of the first key, default 0" },
	{ "key-size", "B", 0, read_key_size, FIELD(key_size), .min = 8, .max = XKV_KEY_MAX,
	  .help = "bytes, 8 to 250, default 16; a range (20-45), etc or twitter" },
	{ "value-size", "B", 0, read_value_size, FIELD(value_size), .max = XKV_VALUE_MAX,
	  .help = "bytes, 0 to 1400, over TCP to 1048576, default 128; a\n"
		  "range, etc or twitter" },
	{ "ratio", "SET:GET", 0, option_ratio, FIELD(ratio),
	  .help = "proportion of SETs and GETs, default 0:1" },
	{ "deletes", "PCT", 0, option_real, FIELD(deletes), .most = 100,
	  .help = "percent of requests that are DELETEs, default 0" },
	{ "scans", "PCT", 0, option_real, FIELD(scans), .most = 100,
	  .help = "percent of requests that are scans, default 0" },
	{ "scan-length", "N", 0, option_uint, FIELD(scan_length), .min = 1, .max = 10000,
	  .help = "keys per scan, default 100" },
	{ "workload", "W", 0, option_text, FIELD(workload),
	  .help = "ycsb-a, ycsb-b, ycsb-c, ycsb-d or ycsb-f" },
	{ "distribution", "D", 0, option_dist, FIELD(dist),
	  .help = "uniform (default), zipf:0.99, hotspot:20:80, hot:2000,\nsequential or latest" },
	{ "batch", "N", 0, option_uint, FIELD(batch), .min = 1, .max = REQUEST_KEYS_MAX,
	  .help = "keys per request, default 1" },
	{ "mgets", "PCT", 0, option_real, FIELD(mgets), GIVEN(mgets_set), .most = 100,
	  .help = "percent of requests that are GETs of --batch keys; the\n"
		  "others have one key" },
	{ "pad", "BYTES", 0, option_uint, FIELD(pad), .max = XKV_PAYLOAD_MAX6, .need = &xkv,
	  .help = "minimum size of a request; default 0: padded only if the\n"
		  "server requires it" },
	{ "load", NULL, 0, option_constant, FIELD(load), .min = LOAD_YES,
	  .help = "set all keys first; default: if any request reads" },
	{ "no-load", NULL, 0, option_constant, FIELD(load), .min = LOAD_NO,
	  .help = "do not set the keys first" },
	{ "load-only", NULL, 0, option_flag, FIELD(load_only), .help = "set all keys and exit" },
	{ "verify", NULL, 0, option_flag, FIELD(verify),
	  .help = "check the content of every value" },
	{ "seed", "N", 0, option_u64, FIELD(seed), .max = INT64_MAX, /* as JSON has it */
	  .help = "seed of the random numbers, default 1" },
	{ .heading = "Output" },
	{ "json", NULL, 0, option_flag, FIELD(json),
	  .help = "print the results as one JSON object" },
	{ "hdr", "FILE", 0, option_text, FIELD(hdr), .need = &load,
	  .help = "write the latencies in HdrHistogram's format to FILE" },
	{ "progress", NULL, 0, option_flag, FIELD(progress),
	  .help = "print a line per second; default: on a terminal" },
	{ "quiet", NULL, 0, option_flag, FIELD(quiet), .help = "do not print these lines" },
	{ 0 },
};
/* clang-format on */

static const char usage[] =
	"Usage: xkv-bench [OPTION]...\n"
	"       xkv-bench frames [OPTION]...   (the frame loop: xkv-bench frames --help)\n"
	"Measures throughput and latency of a key-value server over the network.\n"
	"See xkv-bench(1).\n";

int options_parse(struct options *o, int argc, char **argv)
{
	int ret;

	*o = (struct options){
		.host = "127.0.0.1",
		.port = "6379",
		.clients = 1,
		.threads = 1,
		.retries = 3,
		.timeout_ms = 1000,
		.keys = 1000000,
		.key_size = { .min = 16, .max = 16 },
		.value_size = { .min = 128, .max = 128 },
		.scan_length = 100,
		.batch = 1,
		.seed = 1,
		.load = LOAD_IF_READ,
	};
	ret = option_parse(rows, usage, o, argc, argv);
	return ret ? ret : options_check(o);
}

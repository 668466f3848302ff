// SPDX-License-Identifier: BSD-2-Clause
/* See options.h.  One row of `rows` per option; its function parses and validates the value. */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bpf/frame.h"
#include "bench/bpf/xsk.h"
#include "bench/common/parse.h"
#include "bench/common/say.h"
#include "options_help.h"
#include "request.h"
#include "transport.h"

static const char *const server_names[SERVER_PINNED] = {
	[SERVER_ECHO] = "echo",
	[SERVER_THESIS] = "thesis",
	[SERVER_THESIS_NOPRE] = "thesis-nopre",
	[SERVER_ATTACHED] = "attached",
};

static const char *const protocol_names[PROTOCOLS] = {
	[PROTOCOL_XKV] = "xkv",
	[PROTOCOL_RESP] = "resp",
	[PROTOCOL_MEMCACHED] = "memcached",
	[PROTOCOL_MEMCACHED_UDP] = "memcached-udp",
};

static const char *const transport_names[TRANSPORTS] = {
	[TRANSPORT_SOCKETS] = "udp",
	[TRANSPORT_XDP] = "xdp",
};

static const char *const xdp_modes[XDP_MODES] = {
	[XDP_MODE_AUTO] = "auto",
	[XDP_MODE_COPY] = "copy",
	[XDP_MODE_ZEROCOPY] = "zerocopy",
};

const char *options_transport_name(const struct options *o)
{
	return transport_of(o)->name;
}

const char *protocol_name(unsigned int protocol)
{
	return protocol_names[protocol];
}

const char *frame_server_name(const struct options *o, enum frame_server server)
{
	return server < SERVER_PINNED ? server_names[server] : o->pinned[server - SERVER_PINNED];
}

static int parse_token(struct options *o, const char *text)
{
	for (int i = 0; i < XKV_TOKEN_BYTES; i++) {
		if (strlen(text) != 2 * XKV_TOKEN_BYTES ||
		    strspn(text, "0123456789abcdefABCDEF") != 2 * XKV_TOKEN_BYTES ||
		    sscanf(text + 2 * i, "%2hhx", &o->token[i]) != 1) {
			say("--token: give the %d hexadecimal digits of xkvd's udp-token",
			    2 * XKV_TOKEN_BYTES);
			return -EINVAL;
		}
	}
	o->token_set = true;
	return 0;
}

static int add_ratio(struct options *o, const char *text)
{
	unsigned int set, get;
	int used = 0;

	if (sscanf(text, "%u:%u%n", &set, &get, &used) != 2 || text[used] || set > 1000000 ||
	    get > 1000000 || (!set && !get)) {
		say("--ratio %s: give SET:GET, two whole numbers such as 1:9", text);
		return -EINVAL;
	}
	o->ratio[o->ratios++] = (struct ratio){ .set = set, .get = get };
	return 0;
}

int options_add_dist(struct options *o, const char *text)
{
	char err[160];

	if (dist_parse(&o->dist[o->dists], text, err, sizeof(err))) {
		say("--distribution %s", err);
		return -EINVAL;
	}
	o->dist_name[o->dists] = strdup(text);
	if (!o->dist_name[o->dists]) {
		say("out of memory");
		return -EINVAL;
	}
	o->dists++;
	return 0;
}

static int parse_sizes(const char *name, const char *text, enum sizes_of_what what,
		       unsigned int min, unsigned int max, struct sizes *out)
{
	char err[160];

	if (!sizes_parse(out, text, what, min, max, err, sizeof(err)))
		return 0;
	say("%s %s", name, err);
	return -EINVAL;
}

static int add_key_size(struct options *o, const char *text)
{
	return parse_sizes("--key-size", text, SIZES_KEY, 8, XKV_KEY_MAX,
			   &o->key_size[o->key_sizes++]);
}

static int add_value_size(struct options *o, const char *text)
{
	return parse_sizes("--value-size", text, SIZES_VALUE, 0, 1400,
			   &o->value_size[o->value_sizes++]);
}

static int add_scans(struct options *o, const char *text)
{
	return parse_real("--scans", text, 0, 100, &o->scans[o->scan_shares++]);
}

static int add_scan_length(struct options *o, const char *text)
{
	return parse_uint("--scan-length", text, 1, 10000, &o->scan_length[o->scan_lengths++]);
}

static int add_batch(struct options *o, const char *text)
{
	return parse_uint("--batch", text, 1, REQUEST_KEYS_MAX, &o->batch[o->batches++]);
}

static int add_loops(struct options *o, const char *text)
{
	return parse_uint("--loops", text, 1, OPTIONS_MAX_CPUS, &o->loops[o->loop_counts++]);
}

static int add_pinned(struct options *o, const char *text, unsigned int *server)
{
	if (o->pinned_count == OPTIONS_MAX_LIST) {
		say("--server: at most %d pinned programs", OPTIONS_MAX_LIST);
		return -EINVAL;
	}
	o->pinned[o->pinned_count] = strdup(text);
	if (!o->pinned[o->pinned_count]) {
		say("out of memory");
		return -EINVAL;
	}
	*server = SERVER_PINNED + o->pinned_count++;
	return 0;
}

static int add_server(struct options *o, const char *text)
{
	unsigned int server;

	for (unsigned int i = 0; i < o->servers; i++) {
		if (!strcmp(frame_server_name(o, o->server[i]), text)) {
			say("--server names %s twice", text);
			return -EINVAL;
		}
	}
	if (text[0] == '/' ? add_pinned(o, text, &server)
			   : parse_choice("--server", text, server_names, SERVER_PINNED, &server))
		return -EINVAL;
	o->server[o->servers++] = server;
	return 0;
}

static int add_pin(struct options *o, const char *text)
{
	return parse_uint("--pin", text, 0, CPU_SETSIZE - 1, &o->pin[o->pins++]);
}

/* Two loops on one CPU would share its time, and each be taken for having had a CPU of its own. */
static int add_cpu(struct options *o, const char *text)
{
	unsigned int cpu;

	if (parse_uint("--cpus", text, 0, FRAME_CPUS - 1, &cpu))
		return -EINVAL;
	for (unsigned int i = 0; i < o->cpus; i++) {
		if (o->cpu[i] == cpu) {
			say("--cpus names CPU %u twice: a CPU has one loop", cpu);
			return -EINVAL;
		}
	}
	o->cpu[o->cpus++] = cpu;
	return 0;
}

/* Calls add() for each part of a comma-separated list of at most `max`. */
static int parse_list(struct options *o, const char *name, const char *text, unsigned int max,
		      unsigned int *count, int (*add)(struct options *o, const char *text))
{
	char *copy = strdup(text), *save = NULL;
	int err = copy ? 0 : -EINVAL;

	*count = 0;
	if (!copy)
		say("out of memory");
	for (char *part = copy ? strtok_r(copy, ",", &save) : NULL; part && !err;
	     part = strtok_r(NULL, ",", &save)) {
		if (*count == max) {
			say("%s: at most %u in a list", name, max);
			err = -EINVAL;
		} else {
			err = add(o, part);
		}
	}
	if (!err && !*count) {
		say("%s: the list is empty", name);
		err = -EINVAL;
	}
	free(copy);
	return err;
}

/* clang-format off */
enum {
	OPT_SECONDS = 256, OPT_KEYS, OPT_FIRST_KEY, OPT_KEY_SIZE, OPT_VALUE_SIZE, OPT_RATIO,
	OPT_DISTRIBUTION, OPT_SEED, OPT_LOAD, OPT_NO_LOAD, OPT_LOAD_ONLY, OPT_RESP, OPT_TOKEN, OPT_TIMEOUT,
	OPT_PROTOCOL, OPT_TRANSPORT, OPT_INTERFACE, OPT_QUEUES, OPT_XDP_MODE, OPT_MAC, OPT_RAMP,
	OPT_RATE, OPT_DEPTH, OPT_WARMUP, OPT_WORKLOAD, OPT_DELETES, OPT_SCANS, OPT_SCAN_LENGTH, OPT_MGETS,
	OPT_PIN, OPT_RETRIES, OPT_PROGRESS, OPT_HDR, OPT_BATCH, OPT_PAD, OPT_VERIFY, OPT_JSON,
	OPT_QUIET, OPT_FRAMES, OPT_SERVER, OPT_BED, OPT_BASE_BED, OPT_ROUNDS, OPT_FRAME_BATCH,
	OPT_CPUS, OPT_LOOPS, OPT_HELP, OPT_VERSION,
};
/* clang-format on */

static const struct option long_options[] = {
	{ "host", required_argument, NULL, 'h' },
	{ "port", required_argument, NULL, 'p' },
	{ "clients", required_argument, NULL, 'c' },
	{ "threads", required_argument, NULL, 't' },
	{ "requests", required_argument, NULL, 'n' },
	{ "seconds", required_argument, NULL, OPT_SECONDS },
	{ "protocol", required_argument, NULL, OPT_PROTOCOL },
	{ "transport", required_argument, NULL, OPT_TRANSPORT },
	{ "interface", required_argument, NULL, OPT_INTERFACE },
	{ "queues", required_argument, NULL, OPT_QUEUES },
	{ "xdp-mode", required_argument, NULL, OPT_XDP_MODE },
	{ "mac", required_argument, NULL, OPT_MAC },
	{ "ramp", no_argument, NULL, OPT_RAMP },
	{ "rate", required_argument, NULL, OPT_RATE },
	{ "depth", required_argument, NULL, OPT_DEPTH },
	{ "warmup", required_argument, NULL, OPT_WARMUP },
	{ "workload", required_argument, NULL, OPT_WORKLOAD },
	{ "deletes", required_argument, NULL, OPT_DELETES },
	{ "scans", required_argument, NULL, OPT_SCANS },
	{ "scan-length", required_argument, NULL, OPT_SCAN_LENGTH },
	{ "mgets", required_argument, NULL, OPT_MGETS },
	{ "pin", required_argument, NULL, OPT_PIN },
	{ "retries", required_argument, NULL, OPT_RETRIES },
	{ "hdr", required_argument, NULL, OPT_HDR },
	{ "progress", no_argument, NULL, OPT_PROGRESS },
	{ "keys", required_argument, NULL, OPT_KEYS },
	{ "first-key", required_argument, NULL, OPT_FIRST_KEY },
	{ "key-size", required_argument, NULL, OPT_KEY_SIZE },
	{ "value-size", required_argument, NULL, OPT_VALUE_SIZE },
	{ "ratio", required_argument, NULL, OPT_RATIO },
	{ "distribution", required_argument, NULL, OPT_DISTRIBUTION },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "load", no_argument, NULL, OPT_LOAD },
	{ "no-load", no_argument, NULL, OPT_NO_LOAD },
	{ "load-only", no_argument, NULL, OPT_LOAD_ONLY },
	{ "resp", no_argument, NULL, OPT_RESP },
	{ "token", required_argument, NULL, OPT_TOKEN },
	{ "timeout", required_argument, NULL, OPT_TIMEOUT },
	{ "batch", required_argument, NULL, OPT_BATCH },
	{ "pad", required_argument, NULL, OPT_PAD },
	{ "verify", no_argument, NULL, OPT_VERIFY },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "quiet", no_argument, NULL, OPT_QUIET },
	{ "frames", no_argument, NULL, OPT_FRAMES },
	{ "server", required_argument, NULL, OPT_SERVER },
	{ "bed", required_argument, NULL, OPT_BED },
	{ "base-bed", required_argument, NULL, OPT_BASE_BED },
	{ "rounds", required_argument, NULL, OPT_ROUNDS },
	{ "frame-batch", required_argument, NULL, OPT_FRAME_BATCH },
	{ "cpus", required_argument, NULL, OPT_CPUS },
	{ "loops", required_argument, NULL, OPT_LOOPS },
	{ "help", no_argument, NULL, OPT_HELP },
	{ "version", no_argument, NULL, OPT_VERSION },
	{ 0 },
};

/* Options that one of the two ways to measure has no use for; 0 is the end. */
/* clang-format off */
static const int sockets_only[] = {
	'h', 'c', 't', 'n', OPT_PROTOCOL, OPT_TRANSPORT, OPT_INTERFACE, OPT_QUEUES, OPT_XDP_MODE,
	OPT_MAC, OPT_RAMP, OPT_RATE, OPT_DEPTH, OPT_WARMUP, OPT_WORKLOAD, OPT_DELETES, OPT_MGETS,
	OPT_PIN, OPT_RETRIES, OPT_PROGRESS, OPT_HDR, OPT_PAD, OPT_VERIFY, OPT_TIMEOUT, OPT_LOAD,
	OPT_NO_LOAD, OPT_LOAD_ONLY, OPT_RESP, 0,
};
/* clang-format on */
static const int frames_only[] = {
	OPT_SERVER, OPT_BED, OPT_BASE_BED, OPT_ROUNDS, OPT_FRAME_BATCH, OPT_CPUS, OPT_LOOPS, 0,
};

static unsigned int row_of(int opt)
{
	unsigned int row = 0;

	while (long_options[row].val != opt)
		row++;
	return row;
}

/* What would have no effect is a mistake.  `given` has a bit for each row that was. */
static int check_scope(bool frames, uint64_t given)
{
	_Static_assert(sizeof(long_options) / sizeof(long_options[0]) <= 64,
		       "`given` is too small");

	for (const int *opt = frames ? sockets_only : frames_only; *opt; opt++) {
		unsigned int row = row_of(*opt);

		if (!(given >> row & 1))
			continue;
		say(frames ? "--%s is for loads over sockets: --frames has no use for it"
			   : "--%s needs --frames",
		    long_options[row].name);
		return -EINVAL;
	}
	return 0;
}

static void set_defaults(struct options *o)
{
	*o = (struct options){
		.host = "127.0.0.1",
		.port = "6379",
		.clients = 1,
		.retries = 3,
		.scan_shares = 1,
		.scan_length = { 100 },
		.scan_lengths = 1,
		.threads = 1,
		.keys = 1000000,
		.key_size = { { .min = 16, .max = 16 } },
		.key_sizes = 1,
		.value_size = { { .min = 128, .max = 128 } },
		.value_sizes = 1,
		.batch = { 1 },
		.batches = 1,
		.timeout_ms = 1000,
		.seed = 1,
		.bed = "xkv",
		.rounds = 5,
		.frame_batch = 64,
	};
}

/* What the command line says about --load: nothing, yes or no. */
enum load_wish { LOAD_DEFAULT, LOAD_YES, LOAD_NO };

static int parse_frame_option(struct options *o, int opt, const char *arg)
{
	switch (opt) {
	case OPT_FRAMES:
		o->frames = true;
		return 0;
	case OPT_SERVER:
		return parse_list(o, "--server", arg, SERVERS, &o->servers, add_server);
	case OPT_BED:
		o->bed = arg;
		return 0;
	case OPT_BASE_BED:
		o->base_bed = arg;
		return 0;
	case OPT_ROUNDS:
		return parse_uint("--rounds", arg, 1, 1000, &o->rounds);
	case OPT_FRAME_BATCH:
		return parse_uint("--frame-batch", arg, 1, 256, &o->frame_batch);
	case OPT_CPUS:
		return parse_list(o, "--cpus", arg, OPTIONS_MAX_CPUS, &o->cpus, add_cpu);
	case OPT_LOOPS:
		return parse_list(o, "--loops", arg, OPTIONS_MAX_LIST, &o->loop_counts, add_loops);
	default:
		return -EINVAL;
	}
}

static int parse_workload_option(struct options *o, int opt, const char *arg)
{
	uint64_t n;

	switch (opt) {
	case OPT_SECONDS:
		return parse_real("--seconds", arg, 0.001, 1e6, &o->seconds);
	case OPT_KEYS:
		if (parse_number("--keys", arg, 1, DIST_KEYS_MAX, &n))
			return -EINVAL;
		o->keys = n;
		return 0;
	case OPT_FIRST_KEY:
		return parse_number("--first-key", arg, 0, 999999999999, &o->first_key);
	case OPT_KEY_SIZE:
		return parse_list(o, "--key-size", arg, OPTIONS_MAX_LIST, &o->key_sizes,
				  add_key_size);
	case OPT_VALUE_SIZE:
		return parse_list(o, "--value-size", arg, OPTIONS_MAX_LIST, &o->value_sizes,
				  add_value_size);
	case OPT_WORKLOAD:
		o->workload = arg;
		return 0;
	case OPT_DELETES:
		return parse_real("--deletes", arg, 0, 100, &o->deletes);
	case OPT_SCANS:
		return parse_list(o, "--scans", arg, OPTIONS_MAX_LIST, &o->scan_shares, add_scans);
	case OPT_SCAN_LENGTH:
		return parse_list(o, "--scan-length", arg, OPTIONS_MAX_LIST, &o->scan_lengths,
				  add_scan_length);
	case OPT_MGETS:
		o->mgets_set = true;
		return parse_real("--mgets", arg, 0, 100, &o->mgets);
	case OPT_RATIO:
		return parse_list(o, "--ratio", arg, OPTIONS_MAX_LIST, &o->ratios, add_ratio);
	case OPT_DISTRIBUTION:
		return parse_list(o, "--distribution", arg, OPTIONS_MAX_LIST, &o->dists,
				  options_add_dist);
	case OPT_SEED:
		return parse_number("--seed", arg, 0, INT64_MAX, &o->seed); /* as JSON has it */
	case OPT_BATCH:
		return parse_list(o, "--batch", arg, OPTIONS_MAX_LIST, &o->batches, add_batch);
	case OPT_PAD:
		return parse_uint("--pad", arg, 0, XKV_PAYLOAD_MAX6, &o->pad);
	default:
		return parse_frame_option(o, opt, arg);
	}
}

static int parse_mac(struct options *o, const char *text)
{
	uint8_t *m = o->mac;
	int used = 0;

	if (sscanf(text, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx%n", &m[0], &m[1], &m[2], &m[3], &m[4],
		   &m[5], &used) == 6 &&
	    !text[used]) {
		o->mac_set = true;
		return 0;
	}
	say("--mac %s: give an address such as 02:00:00:77:00:01", text);
	return -EINVAL;
}

static int add_queue(struct options *o, const char *text)
{
	return parse_uint("--queues", text, 0, XSK_QUEUES_MAX - 1, &o->queue[o->queues++]);
}

/* A number alone is how many, from queue 0 on; a list names them. */
static int parse_queues(struct options *o, const char *text)
{
	if (strchr(text, ','))
		return parse_list(o, "--queues", text, XSK_QUEUES_MAX, &o->queues, add_queue);
	if (parse_uint("--queues", text, 1, XSK_QUEUES_MAX, &o->queues))
		return -EINVAL;
	for (unsigned int i = 0; i < o->queues; i++)
		o->queue[i] = i;
	return 0;
}

static int parse_transport_option(struct options *o, int opt, const char *arg)
{
	switch (opt) {
	case OPT_PROTOCOL:
		return parse_choice("--protocol", arg, protocol_names, PROTOCOLS, &o->protocol);
	case OPT_TRANSPORT:
		return parse_choice("--transport", arg, transport_names, TRANSPORTS, &o->transport);
	case OPT_INTERFACE:
		o->interface = arg;
		return 0;
	case OPT_QUEUES:
		return parse_queues(o, arg);
	case OPT_XDP_MODE:
		return parse_choice("--xdp-mode", arg, xdp_modes, XDP_MODES, &o->xdp_mode);
	case OPT_MAC:
		return parse_mac(o, arg);
	default:
		return parse_workload_option(o, opt, arg);
	}
}

static int parse_loop_option(struct options *o, int opt, const char *arg)
{
	switch (opt) {
	case OPT_RATE:
		return parse_real("--rate", arg, 0.001, 1e9, &o->rate);
	case OPT_RAMP:
		o->ramp = true;
		return 0;
	case OPT_DEPTH:
		return parse_uint("--depth", arg, 1, REQUEST_DEPTH_MAX, &o->depth);
	case OPT_WARMUP:
		return parse_real("--warmup", arg, 0, 1e6, &o->warmup);
	case OPT_PIN:
		return parse_list(o, "--pin", arg, OPTIONS_MAX_CPUS, &o->pins, add_pin);
	case OPT_RETRIES:
		o->retries_set = true;
		return parse_uint("--retries", arg, 0, 100, &o->retries);
	case OPT_HDR:
		o->hdr = arg;
		return 0;
	case OPT_PROGRESS:
		o->progress = true;
		return 0;
	default:
		return parse_transport_option(o, opt, arg);
	}
}

static int parse_option(struct options *o, int opt, const char *arg, enum load_wish *load)
{
	unsigned int port;

	switch (opt) {
	case 'h':
		o->host = arg;
		return 0;
	case 'p':
		o->port = arg;
		return parse_uint("--port", arg, 1, 65535, &port);
	case 'c':
		return parse_uint("--clients", arg, 1, OPTIONS_MAX_CLIENTS, &o->clients);
	case 't':
		return parse_uint("--threads", arg, 1, OPTIONS_MAX_THREADS, &o->threads);
	case 'n':
		return parse_number("--requests", arg, 1, UINT64_MAX, &o->requests);
	case OPT_LOAD:
	case OPT_NO_LOAD:
		*load = opt == OPT_LOAD ? LOAD_YES : LOAD_NO;
		return 0;
	case OPT_LOAD_ONLY:
		o->load_only = true;
		return 0;
	case OPT_RESP:
		o->resp = true;
		return 0;
	case OPT_TOKEN:
		return parse_token(o, arg);
	case OPT_TIMEOUT:
		return parse_uint("--timeout", arg, 1, 600000, &o->timeout_ms);
	case OPT_VERIFY:
		o->verify = true;
		return 0;
	case OPT_JSON:
		o->json = true;
		return 0;
	case OPT_QUIET:
		o->quiet = true;
		return 0;
	default:
		return parse_loop_option(o, opt, arg);
	}
}

int options_parse(struct options *o, int argc, char **argv)
{
	enum load_wish load = LOAD_DEFAULT;
	uint64_t given = 0;
	int opt, err = 0;

	set_defaults(o);
	while (!err && (opt = getopt_long(argc, argv, "h:p:c:t:n:", long_options, NULL)) != -1) {
		if (opt == '?') {
			say("try --help");
			err = -EINVAL;
		} else if (opt == OPT_HELP) {
			fputs(options_help, stdout);
			return 1;
		} else if (opt == OPT_VERSION) {
			puts("xkv-bench " XKV_RELEASE);
			return 1;
		} else {
			given |= 1ULL << row_of(opt);
			err = parse_option(o, opt, optarg, &load);
		}
	}
	if (!err && optind < argc) {
		say("%s: there are no arguments besides options; try --help", argv[optind]);
		err = -EINVAL;
	}
	if (!err)
		err = check_scope(o->frames, given);
	if (!err)
		err = options_check(o);
	o->load = load == LOAD_YES || (load == LOAD_DEFAULT && (o->ratio[0].get || o->shared)) ||
		  o->load_only;
	if (err)
		options_free(o);
	return err;
}

void options_free(struct options *o)
{
	for (unsigned int i = 0; i < OPTIONS_MAX_LIST; i++) {
		free(o->dist_name[i]);
		o->dist_name[i] = NULL;
	}
	while (o->pinned_count)
		free(o->pinned[--o->pinned_count]);
}

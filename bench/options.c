// SPDX-License-Identifier: BSD-2-Clause
/* See options.h.  One row of `rows` per option; its function parses and validates the value. */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frame.h"
#include "say.h"

static const char *const server_names[SERVERS] = {
	[SERVER_ECHO] = "echo",
	[SERVER_THESIS] = "thesis",
	[SERVER_THESIS_NOPRE] = "thesis-nopre",
	[SERVER_ATTACHED] = "attached",
};

const char *frame_server_name(enum frame_server server)
{
	return server_names[server];
}

static int parse_number(const char *name, const char *text, uint64_t min, uint64_t max,
			uint64_t *out)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || n < min || n > max) {
		say("%s %s: give a number from %llu to %llu", name, text, (unsigned long long)min,
		    (unsigned long long)max);
		return -EINVAL;
	}
	*out = n;
	return 0;
}

static int parse_uint(const char *name, const char *text, unsigned int min, unsigned int max,
		      unsigned int *out)
{
	uint64_t n;
	int err = parse_number(name, text, min, max, &n);

	if (!err)
		*out = n;
	return err;
}

static int parse_seconds(struct options *o, const char *text)
{
	char *end;

	o->seconds = strtod(text, &end);
	if (end != text && !*end && o->seconds > 0 && o->seconds <= 1e6)
		return 0;
	say("--seconds %s: give a number above 0", text);
	return -EINVAL;
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

static int add_dist(struct options *o, const char *text)
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

static int parse_sizes(const char *name, const char *text, unsigned int min, unsigned int max,
		       const struct sizes *etc, struct sizes *out)
{
	char err[160];

	if (!sizes_parse(out, text, min, max, etc, err, sizeof(err)))
		return 0;
	say("%s %s", name, err);
	return -EINVAL;
}

static int add_key_size(struct options *o, const char *text)
{
	return parse_sizes("--key-size", text, 8, XKV_KEY_MAX, &sizes_etc_key,
			   &o->key_size[o->key_sizes++]);
}

static int add_batch(struct options *o, const char *text)
{
	return parse_uint("--batch", text, 1, 60, &o->batch[o->batches++]);
}

static int add_loops(struct options *o, const char *text)
{
	return parse_uint("--loops", text, 1, OPTIONS_MAX_CPUS, &o->loops[o->loop_counts++]);
}

static int add_server(struct options *o, const char *text)
{
	for (int i = 0; i < SERVERS; i++) {
		if (strcmp(text, server_names[i]))
			continue;
		for (unsigned int j = 0; j < o->servers; j++) {
			if (o->server[j] == (enum frame_server)i) {
				say("--server names %s twice", text);
				return -EINVAL;
			}
		}
		o->server[o->servers++] = i;
		return 0;
	}
	say("--server %s is unknown: use echo, thesis, thesis-nopre or attached", text);
	return -EINVAL;
}

static int add_cpu(struct options *o, const char *text)
{
	return parse_uint("--cpus", text, 0, FRAME_CPUS - 1, &o->cpu[o->cpus++]);
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
	OPT_SECONDS = 256, OPT_KEYS, OPT_KEY_SIZE, OPT_VALUE_SIZE, OPT_RATIO, OPT_DISTRIBUTION,
	OPT_SEED, OPT_LOAD, OPT_NO_LOAD, OPT_LOAD_ONLY, OPT_RESP, OPT_TOKEN, OPT_TIMEOUT,
	OPT_BATCH, OPT_PAD, OPT_VERIFY, OPT_JSON, OPT_QUIET, OPT_FRAMES, OPT_SERVER, OPT_BED,
	OPT_BASE_BED, OPT_ROUNDS, OPT_FRAME_BATCH, OPT_CPUS, OPT_LOOPS, OPT_HELP, OPT_VERSION,
};
/* clang-format on */

static const struct option long_options[] = {
	{ "host", required_argument, NULL, 'h' },
	{ "port", required_argument, NULL, 'p' },
	{ "clients", required_argument, NULL, 'c' },
	{ "threads", required_argument, NULL, 't' },
	{ "requests", required_argument, NULL, 'n' },
	{ "seconds", required_argument, NULL, OPT_SECONDS },
	{ "keys", required_argument, NULL, OPT_KEYS },
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

static void print_help(void)
{
	puts("Usage: xkv-bench [OPTION]...\n"
	     "Closed loops over UDP sockets, one outstanding request a client:\n"
	     "  -h, --host HOST          default 127.0.0.1\n"
	     "  -p, --port PORT          default 6379\n"
	     "  -c, --clients N          default 1\n"
	     "  -t, --threads N          default 1, at most one a client\n"
	     "  -n, --requests N         operations; default: as many as --seconds allows\n"
	     "      --seconds S          default 10, or no limit with -n\n"
	     "      --keys N             default 1000000\n"
	     "      --key-size B         8 to 250 (16), a range as 20-45, or etc\n"
	     "      --value-size B       0 to 1400 (128), a range, or etc\n"
	     "      --ratio SET:GET      default 0:1\n"
	     "      --distribution D     uniform (default), zipf:0.99 or hot:2000\n"
	     "      --batch N            operations in a datagram, default 1\n"
	     "      --pad BYTES          pad requests to this size, default 0: as the server asks\n"
	     "      --load, --no-load    set every key first; default: if there are GETs\n"
	     "      --load-only          set every key and stop\n"
	     "      --resp               print these SETs instead, for redis-cli --pipe\n"
	     "      --verify             check the content of every value\n"
	     "      --timeout MS         wait for a reply, default 1000\n"
	     "      --token HEX          client token, 32 digits\n"
	     "      --seed N             default 1\n"
	     "      --json               results as one JSON object on standard output\n"
	     "      --quiet              no progress line\n"
	     "Frame loop: live frames through scripts/testbed.sh's bed, as root:\n"
	     "      --frames             ratio, distribution, batch, key-size may be lists\n"
	     "      --server LIST        echo, thesis, thesis-nopre, attached (default)\n"
	     "      --bed NAME           the bed, default xkv\n"
	     "      --base-bed NAME      bed for echo and thesis, default: the same\n"
	     "      --rounds N           alternating rounds, default 5\n"
	     "      --seconds S          per measurement, default 0.5\n"
	     "      --frame-batch N      frames in flight, 1 to 256, default 64\n"
	     "      --cpus LIST          one loop on each, default 0\n"
	     "      --loops LIST         so many of them at once, in turns; default: all\n"
	     "See xkv-bench(1).");
}

static void set_defaults(struct options *o)
{
	*o = (struct options){
		.host = "127.0.0.1",
		.port = "6379",
		.clients = 1,
		.threads = 1,
		.keys = 1000000,
		.key_size = { { .min = 16, .max = 16 } },
		.key_sizes = 1,
		.value_size = { .min = 128, .max = 128 },
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
		return parse_seconds(o, arg);
	case OPT_KEYS:
		if (parse_number("--keys", arg, 1, DIST_KEYS_MAX, &n))
			return -EINVAL;
		o->keys = n;
		return 0;
	case OPT_KEY_SIZE:
		return parse_list(o, "--key-size", arg, OPTIONS_MAX_LIST, &o->key_sizes,
				  add_key_size);
	case OPT_VALUE_SIZE:
		return parse_sizes("--value-size", arg, 0, 1400, &sizes_etc_value, &o->value_size);
	case OPT_RATIO:
		return parse_list(o, "--ratio", arg, OPTIONS_MAX_LIST, &o->ratios, add_ratio);
	case OPT_DISTRIBUTION:
		return parse_list(o, "--distribution", arg, OPTIONS_MAX_LIST, &o->dists, add_dist);
	case OPT_SEED:
		return parse_number("--seed", arg, 0, UINT64_MAX, &o->seed);
	case OPT_BATCH:
		return parse_list(o, "--batch", arg, OPTIONS_MAX_LIST, &o->batches, add_batch);
	case OPT_PAD:
		return parse_uint("--pad", arg, 0, XKV_PAYLOAD_MAX6, &o->pad);
	default:
		return parse_frame_option(o, opt, arg);
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
		return parse_workload_option(o, opt, arg);
	}
}

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

unsigned int options_op_bytes(const struct sizes *key, const struct sizes *value)
{
	return sizeof(struct xkv_op) + XKV_PADDED(key->max) + XKV_PADDED(value->max);
}

/* Bytes of the larger of a batch's request and reply. */
static unsigned int datagram_bytes(const struct options *o, const struct sizes *key,
				   unsigned int batch)
{
	return sizeof(struct xkv_hdr) + (o->token_set ? XKV_TOKEN_BYTES : 0) +
	       batch * options_op_bytes(key, &o->value_size);
}

static int check_datagram(const struct options *o, const struct sizes *key, unsigned int batch)
{
	/* One value of a distribution is cut to what its datagram holds: wire_value_size(). */
	if (batch == 1 && o->value_size.scale > 0)
		return 0;
	if (datagram_bytes(o, key, batch) <= XKV_PAYLOAD_MAX6)
		return 0;
	return refuse("%u operations of this size do not fit a datagram of %d bytes: "
		      "lower --batch, --value-size or --key-size",
		      batch, XKV_PAYLOAD_MAX6);
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

/* Whether all frames are of the one kind that the thesis-like program knows. */
static bool plain_frames(const struct options *o)
{
	return o->key_sizes == 1 && o->key_size[0].max == FRAME_KEY_SIZE && o->batches == 1 &&
	       o->batch[0] == 1;
}

static int check_frame_servers(const struct options *o)
{
	for (unsigned int i = 0; i < o->servers; i++) {
		enum frame_server server = o->server[i];

		if (server == SERVER_ATTACHED && o->servers > 1 && !strcmp(o->bed, o->base_bed))
			return refuse("--server attached beside others: give the others a bed of "
				      "their own with --base-bed");
		if ((server == SERVER_THESIS || server == SERVER_THESIS_NOPRE) && !plain_frames(o))
			return refuse("--server %s knows one operation in a datagram and keys of "
				      "%d bytes only",
				      frame_server_name(server), FRAME_KEY_SIZE);
	}
	return 0;
}

/* Every combination of --key-size and --batch has to make a frame. */
static int check_frame_sizes(const struct options *o)
{
	int err = 0;

	if (o->value_size.min != FRAME_VALUE_SIZE || o->value_size.max != FRAME_VALUE_SIZE)
		return refuse("--frames has values of %d bytes only", FRAME_VALUE_SIZE);
	for (unsigned int k = 0; k < o->key_sizes && !err; k++) {
		const struct sizes *key = &o->key_size[k];

		if (key->min < FRAME_KEY_SIZE || key->min != key->max)
			return refuse("--frames has keys of one size each, %d to %d bytes",
				      FRAME_KEY_SIZE, XKV_KEY_MAX);
		for (unsigned int b = 0; b < o->batches && !err; b++)
			err = check_datagram(o, key, o->batch[b]);
	}
	return err;
}

static int check_frames(struct options *o)
{
	int err;

	set_frame_defaults(o);
	if (o->keys > FRAME_KEYS_MAX)
		return refuse("--frames: at most %u keys", FRAME_KEYS_MAX);
	if (o->token_set)
		return refuse("--frames cannot send a token: run xkvd without udp-token");
	if (o->resp)
		return refuse("--resp is for loads over sockets, not for --frames");
	for (unsigned int i = 0; i < o->loop_counts; i++) {
		if (o->loops[i] > o->cpus)
			return refuse("--loops %u: name as many CPUs with --cpus", o->loops[i]);
	}
	err = check_frame_servers(o);
	return err ? err : check_frame_sizes(o);
}

static int check_sockets(struct options *o)
{
	unsigned int digits = o->key_size[0].min < 16 ? o->key_size[0].min - 4 : 12;
	uint64_t names = 1;

	if (o->ratios > 1 || o->dists > 1 || o->key_sizes > 1 || o->batches > 1)
		return refuse("lists of ratios, distributions, sizes or batches are for --frames "
			      "only");
	if (o->servers || o->cpus || o->loop_counts || o->base_bed)
		return refuse("--server, --cpus, --loops and --base-bed need --frames");
	if (o->threads > o->clients)
		return refuse("-t %u: a thread needs a client: raise -c to %u or lower -t",
			      o->threads, o->threads);
	while (digits--)
		names *= 10;
	if (o->keys > names)
		return refuse("keys of %u bytes can name %llu keys only: raise --key-size",
			      o->key_size[0].min, (unsigned long long)names);
	if (o->seconds == 0 && !o->requests)
		o->seconds = 10;
	return check_datagram(o, &o->key_size[0], o->batch[0]);
}

int options_parse(struct options *o, int argc, char **argv)
{
	enum load_wish load = LOAD_DEFAULT;
	int opt, err = 0;

	set_defaults(o);
	while (!err && (opt = getopt_long(argc, argv, "h:p:c:t:n:", long_options, NULL)) != -1) {
		if (opt == '?') {
			say("try --help");
			err = -EINVAL;
		} else if (opt == OPT_HELP) {
			print_help();
			return 1;
		} else if (opt == OPT_VERSION) {
			puts("xkv-bench " XKV_RELEASE);
			return 1;
		} else {
			err = parse_option(o, opt, optarg, &load);
		}
	}
	if (!err && optind < argc)
		err = refuse("%s: there are no arguments besides options; try --help",
			     argv[optind]);
	if (!err && !o->ratios)
		o->ratio[o->ratios++] = (struct ratio){ .set = 0, .get = 1 };
	if (!err && !o->dists)
		err = add_dist(o, "uniform");
	if (!err)
		err = o->frames ? check_frames(o) : check_sockets(o);
	o->load = load == LOAD_YES || (load == LOAD_DEFAULT && o->ratio[0].get) || o->load_only;
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
}

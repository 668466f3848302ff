// SPDX-License-Identifier: BSD-2-Clause
/* See options.h: the table of the options, checks for contradictions, and defaults. */
#include "options.h"

#include <errno.h>
#include <string.h>

#include "bench/common/message.h"
#include "bench/common/sizes.h"
#include "mode.h"

static const char *const scan_shares[] = { "0", "100", NULL };
static const char *const atomic_names[] = { "no", "yes", NULL };

static const char *const server_names[] = {
	[SERVER_ECHO] = "echo",
	[SERVER_THESIS] = "thesis",
	[SERVER_THESIS_NOPRE] = "thesis-nopre",
	[SERVER_ATTACHED] = "attached",
	NULL,
};

/* A path names a pinned program. */
static int read_server(const struct option_row *row, char *text, void *field)
{
	static const struct option_row kinds = { .name = "server", .choices = server_names };
	struct frame_server *server = field;
	unsigned int kind = SERVER_PINNED;

	if (text[0] != '/' && option_choice(&kinds, text, &kind))
		return -EINVAL;
	*server = (struct frame_server){ .kind = kind, .name = text };
	return 0;
}

static int read_random_dist(const struct option_row *row, char *text, void *field)
{
	if (option_dist(row, text, field))
		return -EINVAL;
	if (!dist_is_random(field))
		return refuse("the frame loop needs random keys: --%s %s has none", row->name,
			      text);
	return 0;
}

#define FIELD(member)	    .field = offsetof(struct frames_options, member)
#define LIST(list, counter) OPTION_LIST(struct frames_options, list, counter)

/* clang-format off */
static const struct option_row rows[] = {
	{ .heading = "Servers, CPUs and rounds" },
	{ "server", "LIST", 0, read_server, LIST(server, servers),
	  .help = "servers to measure: attached (default), echo, thesis,\n"
		  "thesis-nopre, or paths of pinned XDP programs" },
	{ "bed", "NAME", 0, option_text, FIELD(bed), .help = "test bed, default xkv" },
	{ "base-bed", "NAME", 0, option_text, FIELD(base_bed),
	  .help = "test bed for echo and thesis, default: the same" },
	{ "port", "PORT", 'p', option_uint, FIELD(port), .min = 1, .max = 65535,
	  .help = "default 6379" },
	{ "batch-mode", "LIST", 0, option_choice, LIST(mode, modes), .choices = mode_names,
	  .help = "off, on, auto: sets the attached server's `batch`, in\n"
		  "turns; default: leaves it" },
	{ "cpus", "LIST", 0, option_uint, LIST(cpu, cpus), .max = FRAME_CPUS - 1,
	  .help = "CPUs that run a loop each, default 0" },
	{ "loops", "LIST", 0, option_uint, LIST(loops, loop_counts), .min = 1, .max = FRAME_CPUS,
	  .help = "numbers of these CPUs to use, in turn; default: all" },
	{ "rounds", "N", 0, option_uint, FIELD(rounds), .min = 1, .max = 1000,
	  .help = "number of alternating rounds, default 5" },
	{ "seconds", "S", 0, option_real, FIELD(seconds), .least = 0.001, .most = 1e6,
	  .help = "CPU time of one measurement, default 0.5" },
	{ "frame-batch", "N", 0, option_uint, FIELD(frame_batch), .min = 1, .max = 256,
	  .help = "frames in flight, 1 to 256, default 64" },
	{ .heading = "Workload (all but --keys and --seed may be lists)" },
	{ "keys", "N", 0, option_uint, FIELD(keys), .min = 1, .max = FRAME_KEYS_MAX,
	  .help = "number of keys, default 1000000" },
	{ "key-size", "B", 0, option_uint, LIST(key_size, key_sizes), .min = FRAME_KEY_SIZE,
	  .max = XKV_KEY_MAX, .help = "bytes, 16 to 250, default 16" },
	{ "value-size", "B", 0, option_uint, LIST(value_size, value_sizes),
	  .min = FRAME_VALUE_MIN, .max = 1400, .help = "bytes, 32 to 1400, default 128" },
	{ "ratio", "SET:GET", 0, option_ratio, LIST(ratio, ratios),
	  .help = "proportion of SETs and GETs, default 0:1" },
	{ "distribution", "D", 0, read_random_dist, LIST(dist, dists),
	  .help = "uniform (default), zipf:0.99, hotspot:20:80 or hot:2000" },
	{ "batch", "N", 0, option_uint, LIST(batch, batches), .min = 1, .max = FRAME_OPS_MAX,
	  .help = "operations per datagram, 1 to 8, default 1" },
	{ "atomic", "LIST", 0, option_choice, LIST(atomic, atomics), .choices = atomic_names,
	  .help = "no (default), or yes for datagrams that are transactions" },
	{ "scans", "PCT", 0, option_choice, LIST(scans, scan_shares), .choices = scan_shares,
	  .help = "0 (default), or 100 for SCANs instead of GETs" },
	{ "scan-length", "N", 0, option_uint, LIST(scan_length, scan_lengths), .min = 1,
	  .max = XKV_SCAN_MAX, .help = "keys per SCAN, 1 to 100, default 100" },
	{ "seed", "N", 0, option_u64, FIELD(seed), .max = INT64_MAX,
	  .help = "seed of the random numbers, default 1" },
	{ .heading = "Output" },
	{ "json", NULL, 0, option_flag, FIELD(json),
	  .help = "print the results as one JSON object" },
	{ "quiet", NULL, 0, option_flag, FIELD(quiet), .help = "do not print a line per round" },
	{ 0 },
};
/* clang-format on */

static const char usage[] =
	"Usage: xkv-bench frames [OPTION]...\n"
	"Measures XDP programs with frames that the kernel sends through a test bed\n"
	"(scripts/testbed.sh).  Needs root.  See xkv-bench(1).\n";

/* Whether any of the frames are SCANs. */
static bool any_scans(const struct frames_options *o)
{
	for (unsigned int i = 0; i < o->scan_shares; i++) {
		if (o->scans[i])
			return true;
	}
	return false;
}

/* Can the thesis-like program answer all frames? */
static bool plain_frames(const struct frames_options *o)
{
	return o->key_sizes == 1 && o->key_size[0] == FRAME_KEY_SIZE && o->value_sizes == 1 &&
	       o->value_size[0] == FRAME_VALUE_SIZE && o->batches == 1 && o->batch[0] == 1 &&
	       !any_scans(o);
}

/* xkvd switches the mode of the program that it sees on the interface. */
static int check_modes(const struct frames_options *o)
{
	bool attached = false, pinned = false;

	for (unsigned int i = 0; i < o->servers; i++) {
		attached |= o->server[i].kind == SERVER_ATTACHED;
		pinned |= o->server[i].kind == SERVER_PINNED;
	}
	if (o->modes && (!attached || pinned))
		return refuse("--batch-mode needs --server attached, and no pinned programs "
			      "beside it");
	return 0;
}

static int check_servers(const struct frames_options *o)
{
	bool ours = false, attached = false;

	for (unsigned int i = 0; i < o->servers; i++) {
		const struct frame_server *s = &o->server[i];

		ours |= s->kind < SERVER_ATTACHED;
		attached |= s->kind >= SERVER_ATTACHED;
		if ((s->kind == SERVER_THESIS || s->kind == SERVER_THESIS_NOPRE) &&
		    !plain_frames(o))
			return refuse(
				"--server %s supports one GET or SET per datagram, with keys of %d "
				"bytes and values of %d",
				s->name, FRAME_KEY_SIZE, FRAME_VALUE_SIZE);
		for (unsigned int j = 0; j < i; j++) {
			if (!strcmp(o->server[j].name, s->name))
				return refuse("--server names %s twice", s->name);
		}
	}
	if (ours && attached && !strcmp(o->bed, o->base_bed))
		return refuse("--server attached, or a pinned program, beside others: give the "
			      "others a bed of their own with --base-bed");
	return 0;
}

/* No CPU twice: two loops would share its time, but each be counted as using all of it. */
static int check_cpus(const struct frames_options *o)
{
	for (unsigned int i = 0; i < o->cpus; i++) {
		for (unsigned int j = 0; j < i; j++) {
			if (o->cpu[j] == o->cpu[i])
				return refuse("--cpus names CPU %u twice: a CPU has one loop",
					      o->cpu[i]);
		}
	}
	for (unsigned int i = 0; i < o->loop_counts; i++) {
		if (o->loops[i] > o->cpus)
			return refuse("--loops %u: name as many CPUs with --cpus", o->loops[i]);
	}
	return 0;
}

/* Every batch of entries of these sizes has to make a frame. */
static int check_sizes(const struct frames_options *o)
{
	int err = 0;

	for (unsigned int k = 0; k < o->key_sizes; k++) {
		for (unsigned int v = 0; v < o->value_sizes; v++) {
			for (unsigned int b = 0; b < o->batches && !err; b++)
				err = sizes_check_batch(o->key_size[k], o->value_size[v],
							o->batch[b], XKV_PAYLOAD_MAX4, false);
		}
	}
	return err;
}

/* A SCAN increments the digits at the end of a key; only keys of the smallest size end in them. */
static int check_scans(const struct frames_options *o)
{
	if (!any_scans(o))
		return 0;
	for (unsigned int i = 0; i < o->scan_lengths; i++) {
		if (o->scan_length[i] > o->keys)
			return refuse("--scan-length %u: there are only %u keys", o->scan_length[i],
				      o->keys);
	}
	if (o->key_sizes > 1 || o->key_size[0] != FRAME_KEY_SIZE)
		return refuse("--scans needs keys of %d bytes, which end in digits",
			      FRAME_KEY_SIZE);
	if (o->ratios > 1 || o->ratio[0].set)
		return refuse("SCANs read: --scans needs a --ratio of 0:1");
	return 0;
}

int frames_options_parse(struct frames_options *o, int argc, char **argv)
{
	int ret;

	*o = (struct frames_options){
		.server = { { .kind = SERVER_ATTACHED, .name = "attached" } },
		.servers = 1,
		.dist = { { .text = "uniform" } },
		.dists = 1,
		.ratio = { { .get = 1 } },
		.ratios = 1,
		.key_size = { FRAME_KEY_SIZE },
		.key_sizes = 1,
		.value_size = { FRAME_VALUE_SIZE },
		.value_sizes = 1,
		.batch = { 1 },
		.batches = 1,
		.atomics = 1,
		.scan_shares = 1,
		.scan_length = { XKV_SCAN_MAX },
		.scan_lengths = 1,
		.cpus = 1,
		.bed = "xkv",
		.port = 6379,
		.keys = 1000000,
		.seed = 1,
		.rounds = 5,
		.seconds = 0.5,
		.frame_batch = 64,
	};
	ret = option_parse(rows, usage, o, argc, argv);
	if (ret)
		return ret;
	if (!o->loop_counts)
		o->loops[o->loop_counts++] = o->cpus;
	if (!o->base_bed)
		o->base_bed = o->bed;
	ret = check_servers(o);
	if (!ret)
		ret = check_modes(o);
	if (!ret)
		ret = check_cpus(o);
	if (!ret)
		ret = check_sizes(o);
	return ret ? ret : check_scans(o);
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * The frame loop: opens test beds and servers, checks that every key is found, measures the servers
 * in turn, and reports medians.  Each round measures all servers, so that changes of the machine's
 * speed over time affect them equally.
 */
#include "frames.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "baseline.h"
#include "bench/common/message.h"
#include "generator.h"
#include "mode.h"
#include "options.h"

#define WARM_UP_FRAMES (1U << 16)
#define MOST_FRAMES    (1U << 28) /* the kernel's limit is near */

/* A combination of server and requests, with its results. */
struct series {
	unsigned int server; /* its place in the options */
	const char *mode;    /* what `batch` is set to, or NULL */
	struct shape shape;
	double *mops; /* of a distribution and ratio, one a round */
	struct frame_result sum;
};

struct loop {
	const struct frames_options *o;
	struct generator generator;
	struct bed bed, base_bed; /* base_bed is open only if it is not `bed` */
	struct bed *bed_of[FRAMES_SERVERS_MAX];
	struct mode mode;
	const char *mode_now; /* NULL: as it was */
	struct baseline baseline[FRAMES_SERVERS_MAX];
	int prog_fd[FRAMES_SERVERS_MAX]; /* of SERVER_ATTACHED: unused */
	struct series *series;		 /* every combination of server and shape */
	unsigned int series_count;
	json_t *results;
};

static int out_of_memory(void)
{
	message("out of memory");
	return -ENOMEM;
}

static const char *server_name(const struct loop *l, const struct series *s)
{
	return l->o->server[s->server].name;
}

static struct bed *base_bed(struct loop *l)
{
	return strcmp(l->o->bed, l->o->base_bed) ? &l->base_bed : &l->bed;
}

/* Is anything measured on the store's bed? */
static bool needs_store(const struct frames_options *o)
{
	for (unsigned int i = 0; i < o->servers; i++) {
		if (o->server[i].kind >= SERVER_ATTACHED)
			return true;
	}
	return false;
}

static int open_beds(struct loop *l)
{
	bool attached = needs_store(l->o);
	int err = 0;

	if (attached || base_bed(l) == &l->bed)
		err = bed_open(&l->bed, l->o->bed);
	if (!err && base_bed(l) == &l->base_bed)
		err = bed_open(&l->base_bed, l->o->base_bed);
	if (err)
		return err;
	err = bed_program(&base_bed(l)->server);
	if (!attached && err > 0) {
		message("%s of bed %s carries an XDP program: measure it with --server attached, "
			"or detach it",
			BED_SERVER_DEVICE, l->o->base_bed);
		return -EBUSY;
	}
	if (!attached)
		return err;
	err = bed_program(&l->bed.server);
	if (!err) {
		message("no XDP program on %s of bed %s: start xkvd there first", BED_SERVER_DEVICE,
			l->o->bed);
		return -ENOENT;
	}
	return err < 0 ? err : 0;
}

static int open_pinned(struct loop *l, unsigned int server)
{
	const char *path = l->o->server[server].name;
	int err;

	l->prog_fd[server] = bpf_obj_get(path);
	if (l->prog_fd[server] >= 0)
		return 0;
	err = -errno;
	message("cannot open the pinned program %s: %s", path, strerror(-err));
	return err;
}

static int open_baseline(struct loop *l, unsigned int server)
{
	struct baseline *b = &l->baseline[server];
	int err = baseline_open(b, l->o->server[server].kind, l->o->keys, htons(l->o->port));

	l->prog_fd[server] = b->prog_fd;
	return err;
}

static int open_servers(struct loop *l)
{
	int err = 0;

	for (unsigned int i = 0; i < l->o->servers && !err; i++) {
		enum server_kind kind = l->o->server[i].kind;

		l->bed_of[i] = kind >= SERVER_ATTACHED ? &l->bed : base_bed(l);
		if (kind < SERVER_ATTACHED)
			err = open_baseline(l, i);
		else if (kind == SERVER_PINNED)
			err = open_pinned(l, i);
	}
	return err;
}

static void close_servers(struct loop *l)
{
	for (unsigned int i = 0; i < l->o->servers; i++) {
		if (l->o->server[i].kind == SERVER_PINNED && l->prog_fd[i] >= 0)
			close(l->prog_fd[i]);
		baseline_close(&l->baseline[i]);
	}
}

/* Adds the series of one server and one kind of request: one for each mode and number of loops. */
static void add_loops(struct loop *l, unsigned int server, struct shape shape)
{
	bool modes = l->o->modes && l->o->server[server].kind == SERVER_ATTACHED;

	for (unsigned int m = 0; m < (modes ? l->o->modes : 1); m++) {
		for (unsigned int i = 0; i < l->o->loop_counts; i++) {
			shape.loops = l->o->loops[i];
			l->series[l->series_count++] =
				(struct series){ .server = server,
						 .mode = modes ? mode_names[l->o->mode[m]] : NULL,
						 .shape = shape };
		}
	}
}

/* Adds what is asked for entries of the sizes in `shape`: batches, or SCANs one a datagram. */
static void add_requests(struct loop *l, unsigned int server, struct shape shape, bool scan)
{
	const struct frames_options *o = l->o;

	for (unsigned int i = 0; i < (scan ? o->scan_lengths : o->batches); i++) {
		shape.scan = scan ? o->scan_length[i] : 0;
		shape.batch = scan ? 1 : o->batch[i];
		for (unsigned int a = 0; a < (scan ? 1 : o->atomics); a++) {
			shape.atomic = !scan && o->atomic[a];
			l->generator.distinct |= shape.atomic;
			add_loops(l, server, shape);
		}
	}
}

/* Adds all series of one server. */
static void add_server(struct loop *l, unsigned int server)
{
	const struct frames_options *o = l->o;

	for (unsigned int k = 0; k < o->key_sizes; k++) {
		for (unsigned int v = 0; v < o->value_sizes; v++) {
			struct shape shape = { .key_size = o->key_size[k],
					       .value_size = o->value_size[v],
					       .range = v };

			for (unsigned int s = 0; s < o->scan_shares; s++)
				add_requests(l, server, shape, o->scans[s]);
		}
	}
}

static int make_series(struct loop *l)
{
	const struct frames_options *o = l->o;

	l->series = calloc((size_t)o->servers * o->key_sizes * o->value_sizes * o->scan_shares *
				   (o->batches * o->atomics + o->scan_lengths) * o->loop_counts *
				   (o->modes ? o->modes : 1),
			   sizeof(*l->series));
	if (!l->series)
		return out_of_memory();
	for (unsigned int s = 0; s < o->servers; s++)
		add_server(l, s);
	for (unsigned int i = 0; i < l->series_count; i++) {
		l->series[i].mops = calloc(o->rounds, sizeof(double));
		if (!l->series[i].mops)
			return out_of_memory();
	}
	return 0;
}

static void free_series(struct loop *l)
{
	for (unsigned int i = 0; i < l->series_count; i++)
		free(l->series[i].mops);
	free(l->series);
}

/* Makes the server of a series the one that answers, and the generator ask as the series does. */
static int select_series(struct loop *l, const struct series *s)
{
	struct bed *bed = l->bed_of[s->server];
	/* The attached one comes back if another has taken its place. */
	bool attached = l->o->server[s->server].kind == SERVER_ATTACHED;
	int fd = attached ? bed->server.replaced_fd : l->prog_fd[s->server];
	int err = fd >= 0 ? bed_attach(&bed->server, fd) : 0;

	if (!err && s->mode && s->mode != l->mode_now) {
		err = mode_set(&l->mode, s->mode);
		l->mode_now = s->mode;
	}
	if (!err)
		err = generator_listen(&l->generator, bed);
	if (!err)
		generator_shape(&l->generator, bed, &s->shape);
	return err;
}

/* The last key that a request may begin with, so that all keys of a SCAN exist. */
static uint32_t last_key(const struct loop *l, unsigned int scan)
{
	return l->o->keys - (scan ? scan : 1);
}

/*
 * Requests each key once (with SCANs up to last_key()) and checks values and checksums of all
 * replies.  *missing: the number of keys without a correct reply.
 */
static int sweep(struct loop *l, const struct series *s, uint64_t *missing)
{
	struct generator *g = &l->generator;
	struct frame_result result;
	uint32_t step = s->shape.scan ? shape_results(&s->shape) : 1;
	uint32_t left = last_key(l, s->shape.scan) / step + 1, first = 0;
	int err = 0;

	*missing = 0;
	generator_check(g, true);
	for (; left && !err; first += FRAME_TABLE_SIZE * step) {
		uint32_t count = left < FRAME_TABLE_SIZE ? left : FRAME_TABLE_SIZE;

		left -= count;
		generator_sequence(g, first, step, count);
		/* The last frame is filled up with the first keys again. */
		err = generator_run(g, l->bed_of[s->server],
				    (count + s->shape.batch - 1) / s->shape.batch, &result);
		*missing += result.requests - result.count[SINK_HIT];
		if (!err && result.count[SINK_WRONG]) {
			message("%s answered for %llu keys with a wrong value or checksum",
				server_name(l, s), (unsigned long long)result.count[SINK_WRONG]);
			err = -EBADMSG;
		}
	}
	generator_check(g, false);
	return err;
}

static int check_keys(struct loop *l, const struct series *s)
{
	uint64_t missing = 1;
	int err = select_series(l, s);

	/* frames may be lost on a busy machine, but not three times in a row */
	for (int i = 0; i < 3 && !err && missing; i++)
		err = sweep(l, s, &missing);
	if (err || !missing)
		return err;
	message("%s did not answer for %llu of %u keys: load them first, in the client's "
		"namespace, with xkv-bench --load-only --keys %u --first-key %llu --key-size %u "
		"--value-size %u",
		server_name(l, s), (unsigned long long)missing, l->o->keys, l->o->keys,
		(unsigned long long)s->shape.range * FRAME_KEYS_MAX, s->shape.key_size,
		s->shape.value_size);
	return -ENOENT;
}

/*
 * All keys of all shapes, of servers that are known to have keys; on one CPU, so that those that
 * differ in loops need but one.
 */
static int check_series(struct loop *l)
{
	int err = 0;

	for (unsigned int i = 0; i < l->series_count && !err; i += l->o->loop_counts) {
		struct series s = l->series[i];
		enum server_kind kind = l->o->server[s.server].kind;

		s.shape.loops = 1;
		if (kind != SERVER_ECHO && kind != SERVER_PINNED)
			err = check_keys(l, &s);
	}
	return err;
}

/* The number of frames that a CPU sends in --seconds, estimated from the warm-up. */
static uint32_t frames_to_send(const struct loop *l, const struct frame_result *warm_up)
{
	double frames = l->o->seconds / warm_up->seconds * WARM_UP_FRAMES;

	return frames < 1 ? 1 : frames < MOST_FRAMES ? frames : MOST_FRAMES;
}

static int measure(struct loop *l, struct series *s, unsigned int round)
{
	struct bed *bed = l->bed_of[s->server];
	struct frame_result r;
	int err = select_series(l, s);

	if (!err)
		err = generator_run(&l->generator, bed, WARM_UP_FRAMES, &r);
	if (!err)
		err = generator_run(&l->generator, bed, frames_to_send(l, &r), &r);
	if (err)
		return err;
	s->mops[round] = r.replies / r.seconds * 1e-6;
	s->sum.requests += r.requests;
	s->sum.replies += r.replies;
	s->sum.seconds += r.seconds;
	s->sum.wall += r.wall;
	for (int i = 0; i < SINK_COUNTS; i++)
		s->sum.count[i] += r.count[i];
	return 0;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static const char *ratio_name(struct ratio ratio, char *buf, size_t len)
{
	if (!ratio.set)
		return "get";
	if (!ratio.get)
		return "set";
	snprintf(buf, len, "%u:%u", ratio.set, ratio.get);
	return buf;
}

static double median(const double *sorted, unsigned int n)
{
	return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

static json_t *series_json(const struct series *s, unsigned int rounds, const double *sorted)
{
	const struct frame_result *sum = &s->sum;
	json_t *each = json_array();

	for (unsigned int i = 0; i < rounds; i++)
		json_array_append_new(each, json_real(s->mops[i]));
	return json_pack(
		"{s:f,s:f,s:f,s:o,s:f,s:f,s:I,s:I,s:I,s:I,s:I}", "mpps", median(sorted, rounds),
		"min", sorted[0], "max", sorted[rounds - 1], "rounds", each, "reply_share",
		(double)sum->replies / sum->requests, "cpu_share", sum->seconds / sum->wall, "hits",
		(json_int_t)sum->count[SINK_HIT], "misses", (json_int_t)sum->count[SINK_MISS],
		"other", (json_int_t)sum->count[SINK_OTHER], "echoed",
		(json_int_t)sum->count[SINK_ECHO], "wrong", (json_int_t)sum->count[SINK_WRONG]);
}

/* The JSON object of a series: its parameters and results. */
static json_t *row_json(const struct loop *l, const struct series *s, const char *dist,
			const char *op, json_t *found)
{
	json_t *row =
		json_pack("{s:s,s:s?,s:s,s:s,s:i,s:i,s:i,s:b,s:i,s:i}", "server", server_name(l, s),
			  "batch_mode", s->mode, "distribution", dist, "op", op, "key_size",
			  (int)s->shape.key_size, "value_size", (int)s->shape.value_size, "batch",
			  (int)s->shape.batch, "atomic", (int)s->shape.atomic, "scan",
			  (int)s->shape.scan, "cpus", (int)s->shape.loops);

	if (row && json_object_update(row, found)) {
		json_decref(row);
		row = NULL;
	}
	json_decref(found);
	return row;
}

static void print_row(const struct loop *l, const struct series *s, const char *dist,
		      const char *op, const double *sorted, unsigned int rounds)
{
	printf("%-13s %-4s %-10s %-5s %4u %5u %3u%c%4u %8.3f %8.3f %8.3f %8.2f %8.2f %8.2f\n",
	       server_name(l, s), s->mode ? s->mode : "", dist, op, s->shape.key_size,
	       s->shape.value_size, s->shape.scan ? s->shape.scan : s->shape.batch,
	       s->shape.atomic ? 'A' : ' ', s->shape.loops, median(sorted, rounds), sorted[0],
	       sorted[rounds - 1], 100.0 * s->sum.replies / s->sum.requests,
	       100.0 * s->sum.count[SINK_HIT] / s->sum.requests,
	       100.0 * s->sum.seconds / s->sum.wall);
	fflush(stdout);
}

static int report(struct loop *l, const struct series *s, const char *dist, struct ratio ratio)
{
	unsigned int rounds = l->o->rounds;
	double sorted[1000]; /* the limit of --rounds */
	char buf[32];
	const char *op = s->shape.scan ? "scan" : ratio_name(ratio, buf, sizeof(buf));
	json_t *row;

	memcpy(sorted, s->mops, rounds * sizeof(*sorted));
	qsort(sorted, rounds, sizeof(*sorted), compare);
	row = row_json(l, s, dist, op, series_json(s, rounds, sorted));
	if (!row || json_array_append_new(l->results, row))
		return out_of_memory();
	if (!l->o->json)
		print_row(l, s, dist, op, sorted, rounds);
	return 0;
}

/* One table is for all series. */
static unsigned int longest_scan(const struct loop *l)
{
	unsigned int longest = 0;

	for (unsigned int i = 0; i < l->series_count; i++) {
		if (l->series[i].shape.scan > longest)
			longest = l->series[i].shape.scan;
	}
	return longest;
}

/* All series, turn by turn, with one table. */
static int run_table(struct loop *l, unsigned int d, unsigned int ratio)
{
	const struct frames_options *o = l->o;
	int err = 0;

	generator_fill(&l->generator, &o->dist[d], o->ratio[ratio], last_key(l, longest_scan(l)));
	for (unsigned int i = 0; i < l->series_count; i++)
		l->series[i].sum = (struct frame_result){ 0 };
	for (unsigned int round = 0; round < o->rounds && !err; round++) {
		if (!o->quiet)
			fprintf(stderr, "%s, %u SET : %u GET, round %u of %u\n", o->dist[d].text,
				o->ratio[ratio].set, o->ratio[ratio].get, round + 1, o->rounds);
		for (unsigned int i = 0; i < l->series_count && !err; i++)
			err = measure(l, &l->series[i], round);
	}
	for (unsigned int i = 0; i < l->series_count && !err; i++)
		err = report(l, &l->series[i], o->dist[d].text, o->ratio[ratio]);
	return err;
}

static int run_all(struct loop *l)
{
	const struct frames_options *o = l->o;
	int err = check_series(l);

	if (!err && !o->json)
		printf("%-13s %-4s %-10s %-5s %4s %5s %3s %4s %8s %8s %8s %8s %8s %8s\n", "server",
		       "mode", "keys", "op", "key", "value", "ops", "cpus", "Mops", "min", "max",
		       "replies%", "hits%", "cpu%");
	for (unsigned int d = 0; d < o->dists && !err; d++) {
		for (unsigned int r = 0; r < o->ratios && !err; r++)
			err = run_table(l, d, r);
	}
	return err;
}

static int print_json(struct loop *l)
{
	json_t *all = json_pack("{s:I,s:i,s:i,s:f,s:O}", "keys", (json_int_t)l->o->keys, "cpus",
				(int)l->o->cpus, "frame_batch", (int)l->o->frame_batch, "seconds",
				l->o->seconds, "results", l->results);
	int err = all ? json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : -1;

	if (err)
		message("cannot write the results");
	else
		putchar('\n');
	json_decref(all);
	return err;
}

int frames_run(struct frames_options *o)
{
	struct loop l = { .o = o, .results = json_array() };
	int err;

	for (unsigned int i = 0; i < o->dists; i++)
		dist_init(&o->dist[i], o->keys);
	memset(l.prog_fd, -1, sizeof(l.prog_fd));
	l.bed.client.netns = l.bed.server.netns = -1;
	l.base_bed.client.netns = l.base_bed.server.netns = -1;
	libbpf_set_print(NULL);
	err = open_beds(&l);
	if (!err)
		err = generator_open(&l.generator, o);
	if (!err)
		err = open_servers(&l);
	if (!err && o->modes)
		err = mode_open(&l.mode, &l.bed.server, o->port);
	if (!err)
		err = make_series(&l);
	if (!err)
		err = run_all(&l);
	if (!err && o->json)
		err = print_json(&l);
	mode_close(&l.mode);
	bed_close(&l.bed);
	bed_close(&l.base_bed);
	close_servers(&l);
	generator_close(&l.generator);
	free_series(&l);
	json_decref(l.results);
	if (err == -EINTR)
		message("interrupted");
	return err ? 1 : 0;
}

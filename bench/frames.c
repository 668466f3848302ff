// SPDX-License-Identifier: BSD-2-Clause
/*
 * The frame loop's course: opens beds and servers, checks that every key is
 * there, measures each server in turn, round after round, so that whatever
 * drifts on the machine meets all of them alike, and reports medians.
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
#include "generator.h"
#include "options.h"
#include "say.h"

#define WARM_UP 0.2 /* of a measurement's time, before it */

/* What the rounds of one server, distribution and ratio found. */
struct series {
	double *mpps; /* one a round */
	struct frame_result sum;
};

struct loop {
	const struct options *o;
	struct generator generator;
	struct bed bed, base_bed; /* base_bed is open only if it is another one */
	struct bed *bed_of[SERVERS];
	struct baseline baseline[SERVERS];
	json_t *results;
};

static struct bed *base_bed(struct loop *l)
{
	return strcmp(l->o->bed, l->o->base_bed) ? &l->base_bed : &l->bed;
}

static bool has_server(const struct options *o, enum frame_server server)
{
	for (unsigned int i = 0; i < o->servers; i++) {
		if (o->server[i] == server)
			return true;
	}
	return false;
}

static int open_beds(struct loop *l)
{
	bool attached = has_server(l->o, SERVER_ATTACHED);
	int err = 0;

	if (attached || base_bed(l) == &l->bed)
		err = bed_open(&l->bed, l->o->bed);
	if (!err && base_bed(l) == &l->base_bed)
		err = bed_open(&l->base_bed, l->o->base_bed);
	if (err)
		return err;
	err = bed_program(&base_bed(l)->server);
	if (!attached && err > 0) {
		say("%s of bed %s carries an XDP program: measure it with --server attached, or "
		    "detach it",
		    BED_SERVER_DEVICE, l->o->base_bed);
		return -EBUSY;
	}
	if (!attached)
		return err;
	err = bed_program(&l->bed.server);
	if (!err) {
		say("no XDP program on %s of bed %s: start xkvd there first", BED_SERVER_DEVICE,
		    l->o->bed);
		return -ENOENT;
	}
	return err < 0 ? err : 0;
}

static int open_servers(struct loop *l)
{
	for (unsigned int i = 0; i < l->o->servers; i++) {
		enum frame_server server = l->o->server[i];
		int err;

		l->bed_of[server] = server == SERVER_ATTACHED ? &l->bed : base_bed(l);
		if (server == SERVER_ATTACHED)
			continue;
		err = baseline_open(&l->baseline[server], server, l->o->keys,
				    htons(atoi(l->o->port)));
		if (err)
			return err;
	}
	return 0;
}

/* Makes `server` the one that answers, and points the generator at it. */
static int select_server(struct loop *l, enum frame_server server)
{
	struct bed *bed = l->bed_of[server];
	int err = 0;

	if (server != SERVER_ATTACHED)
		err = bed_attach(&bed->server, l->baseline[server].prog_fd);
	return err ? err : generator_aim(&l->generator, bed);
}

/* Asks for each key once, checks value and checksum of every reply; *found is the keys that came.
 */
static int sweep(struct loop *l, enum frame_server server, uint64_t *found)
{
	struct generator *g = &l->generator;
	struct frame_result result;
	int err = 0;

	*found = 0;
	generator_check(g, true);
	for (uint32_t first = 0; first < l->o->keys && !err; first += FRAME_TABLE_SIZE) {
		uint32_t count = l->o->keys - first;

		if (count > FRAME_TABLE_SIZE)
			count = FRAME_TABLE_SIZE;
		generator_sequence(g, first, count, false);
		err = generator_run(g, l->bed_of[server], count, 0, &result);
		*found += result.count[SINK_HIT];
		if (!err && result.count[SINK_WRONG]) {
			say("%s answered %llu GETs with a wrong value or checksum",
			    frame_server_name(server),
			    (unsigned long long)result.count[SINK_WRONG]);
			err = -EBADMSG;
		}
	}
	generator_check(g, false);
	return err;
}

static int check_keys(struct loop *l, enum frame_server server)
{
	uint64_t found = 0;
	int err = select_server(l, server);

	/* A frame can be lost to a busy machine; three times in a row it is not that. */
	for (int i = 0; i < 3 && !err && found != l->o->keys; i++)
		err = sweep(l, server, &found);
	if (err || found == l->o->keys)
		return err;
	say("%s answered for %llu of %u keys: load them first, in the client's namespace, with "
	    "xkv-bench --load-only --keys %u",
	    frame_server_name(server), (unsigned long long)found, l->o->keys, l->o->keys);
	return -ENOENT;
}

static int measure(struct loop *l, enum frame_server server, unsigned int round,
		   struct series *series)
{
	struct bed *bed = l->bed_of[server];
	struct frame_result r;
	int err = select_server(l, server);

	if (!err)
		err = generator_run(&l->generator, bed, 0, l->o->seconds * WARM_UP, &r);
	if (!err)
		err = generator_run(&l->generator, bed, 0, l->o->seconds, &r);
	if (err)
		return err;
	series->mpps[round] = r.replies / r.seconds * 1e-6;
	series->sum.requests += r.requests;
	series->sum.replies += r.replies;
	series->sum.seconds += r.seconds;
	series->sum.wall += r.wall;
	for (int i = 0; i < SINK_COUNTS; i++)
		series->sum.count[i] += r.count[i];
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

static json_t *series_json(const struct series *s, unsigned int rounds, const double *sorted)
{
	const struct frame_result *sum = &s->sum;
	json_t *each = json_array();

	for (unsigned int i = 0; i < rounds; i++)
		json_array_append_new(each, json_real(s->mpps[i]));
	return json_pack(
		"{s:f,s:f,s:f,s:o,s:f,s:f,s:I,s:I,s:I,s:I,s:I}", "mpps",
		(sorted[(rounds - 1) / 2] + sorted[rounds / 2]) / 2, "min", sorted[0], "max",
		sorted[rounds - 1], "rounds", each, "reply_share",
		(double)sum->replies / sum->requests, "cpu_share", sum->seconds / sum->wall, "hits",
		(json_int_t)sum->count[SINK_HIT], "misses", (json_int_t)sum->count[SINK_MISS],
		"other", (json_int_t)sum->count[SINK_OTHER], "echoed",
		(json_int_t)sum->count[SINK_ECHO], "wrong", (json_int_t)sum->count[SINK_WRONG]);
}

static int report(struct loop *l, enum frame_server server, const char *dist, struct ratio ratio,
		  const struct series *s)
{
	unsigned int rounds = l->o->rounds;
	double sorted[1000]; /* the greatest --rounds */
	char buf[32];
	json_t *row;

	memcpy(sorted, s->mpps, rounds * sizeof(*sorted));
	qsort(sorted, rounds, sizeof(*sorted), compare);
	row = series_json(s, rounds, sorted);
	if (!row || json_object_set_new(row, "server", json_string(frame_server_name(server))) ||
	    json_object_set_new(row, "distribution", json_string(dist)) ||
	    json_object_set_new(row, "op", json_string(ratio_name(ratio, buf, sizeof(buf))))) {
		json_decref(row);
		say("out of memory");
		return -ENOMEM;
	}
	if (!l->o->json)
		printf("%-13s %-10s %-5s %7.3f %7.3f %7.3f %8.2f %8.2f %8.2f\n",
		       frame_server_name(server), dist, ratio_name(ratio, buf, sizeof(buf)),
		       json_real_value(json_object_get(row, "mpps")), sorted[0], sorted[rounds - 1],
		       100.0 * s->sum.replies / s->sum.requests,
		       100.0 * s->sum.count[SINK_HIT] / s->sum.requests,
		       100.0 * s->sum.seconds / s->sum.wall);
	fflush(stdout);
	return json_array_append_new(l->results, row) ? -ENOMEM : 0;
}

/* All servers, turn by turn, with one table. */
static int run_table(struct loop *l, unsigned int d, unsigned int ratio)
{
	struct series series[SERVERS] = { 0 };
	const struct options *o = l->o;
	int err = 0;

	generator_fill(&l->generator, &o->dist[d], o->ratio[ratio]);
	for (unsigned int i = 0; i < o->servers; i++) {
		series[i].mpps = calloc(o->rounds, sizeof(double));
		if (!series[i].mpps) {
			say("out of memory");
			err = -ENOMEM;
		}
	}
	for (unsigned int round = 0; round < o->rounds && !err; round++) {
		if (!o->quiet)
			fprintf(stderr, "%s, %u SET : %u GET, round %u of %u\n", o->dist_name[d],
				o->ratio[ratio].set, o->ratio[ratio].get, round + 1, o->rounds);
		for (unsigned int i = 0; i < o->servers && !err; i++)
			err = measure(l, o->server[i], round, &series[i]);
	}
	for (unsigned int i = 0; i < o->servers; i++) {
		if (!err)
			err = report(l, o->server[i], o->dist_name[d], o->ratio[ratio], &series[i]);
		free(series[i].mpps);
	}
	return err;
}

static int run_all(struct loop *l)
{
	const struct options *o = l->o;
	int err = 0;

	for (unsigned int i = 0; i < o->servers && !err; i++) {
		if (o->server[i] != SERVER_ECHO)
			err = check_keys(l, o->server[i]);
	}
	if (!err && !o->json)
		printf("%-13s %-10s %-5s %7s %7s %7s %8s %8s %8s\n", "server", "keys", "op", "Mpps",
		       "min", "max", "replies%", "hits%", "cpu%");
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
		say("cannot write the results");
	else
		putchar('\n');
	json_decref(all);
	return err;
}

int frames_run(struct options *o)
{
	struct loop l = { .o = o, .results = json_array() };
	int err;

	for (unsigned int i = 0; i < o->dists; i++)
		dist_init(&o->dist[i], o->keys);
	l.bed.client.netns = l.bed.server.netns = -1;
	l.base_bed.client.netns = l.base_bed.server.netns = -1;
	libbpf_set_print(NULL);
	err = open_beds(&l);
	if (!err)
		err = generator_open(&l.generator, o);
	if (!err)
		err = open_servers(&l);
	if (!err)
		err = run_all(&l);
	if (!err && o->json)
		err = print_json(&l);
	bed_close(&l.bed);
	bed_close(&l.base_bed);
	for (int i = 0; i < SERVERS; i++)
		baseline_close(&l.baseline[i]);
	generator_close(&l.generator);
	json_decref(l.results);
	if (err == -EINTR)
		say("interrupted");
	return err ? 1 : 0;
}

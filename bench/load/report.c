// SPDX-License-Identifier: BSD-2-Clause
/* See report.h. */
#include "report.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/common/message.h"
#include "protocol.h"
#include "transport.h"

static const struct {
	const char *name, *old_name; /* in latency_us; at the top level, as older versions did */
	double percent;
} percentiles[] = {
	{ "p50", "p50_us", 50 }, { "p90", "p90_us", 90 },	{ "p95", NULL, 95 },
	{ "p99", "p99_us", 99 }, { "p99.9", "p99_9_us", 99.9 }, { "max", "max_us", 100 },
};

#define PERCENTILES (sizeof(percentiles) / sizeof(percentiles[0]))

static const char *const op_names[OPS] = {
	[OP_GET] = "get",   [OP_SET] = "set", [OP_DELETE] = "delete",
	[OP_SCAN] = "scan", [OP_RMW] = "rmw",
};

double result_requests_rate(const struct result *r)
{
	return (r->stats.count[STAT_REQUESTS] - r->stats.count[STAT_AFTER_END]) / r->seconds;
}

/* Operations that were answered before the end, per second. */
static double result_ops_rate(const struct result *r)
{
	return (r->stats.count[STAT_OPS] - r->stats.count[STAT_OPS_AFTER_END]) / r->seconds;
}

void report_progress(const struct stats *interval, double seconds, double at, const char *phase)
{
	char ops[28];
	bool tty = isatty(STDERR_FILENO);

	thousands(interval->count[STAT_OPS] / seconds, ops);
	fprintf(stderr,
		"%s%s %3.0f s  %s ops/s  p50 %.1f us  p99 %.1f us  %llu errors  %llu timeouts%s",
		tty ? "\r\033[K" : "", phase, at, ops,
		hist_percentile(&interval->latency, 50) / 1e3,
		hist_percentile(&interval->latency, 99) / 1e3,
		(unsigned long long)stats_errors(interval),
		(unsigned long long)interval->count[STAT_TIMEOUTS], tty ? "" : "\n");
	fflush(stderr);
}

void report_progress_end(void)
{
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
}

static void set(json_t *object, const char *name, json_t *value)
{
	(void)json_object_set_new(object, name, value); /* out of memory: json_dumpf() will fail */
}

/* NULL if nothing was recorded. */
static json_t *latency_json(const struct hist *h)
{
	json_t *all = h->total ? json_object() : json_null();

	if (!h->total)
		return all;
	set(all, "count", json_integer(h->total));
	set(all, "min", json_real(h->min / 1e3));
	set(all, "mean", json_real(hist_mean(h) / 1e3));
	for (unsigned int i = 0; i < PERCENTILES; i++)
		set(all, percentiles[i].name,
		    json_real(hist_percentile(h, percentiles[i].percent) / 1e3));
	return all;
}

/* The upper end in us, and the count, of each bucket that holds something. */
static json_t *buckets_json(const struct hist *h)
{
	json_t *all = json_array();

	for (unsigned int i = 0; i < HIST_BUCKETS; i++) {
		if (h->count[i])
			(void)json_array_append_new(all,
						    json_pack("[f,I]", hist_bucket_max(i) / 1e3,
							      (json_int_t)h->count[i]));
	}
	return all;
}

static json_t *sizes_json(const struct sizes *s)
{
	static const char *const kinds[] = { "uniform", "pareto", "lognormal" };

	return json_pack("{s:i,s:i,s:s}", "min", (int)s->min, "max", (int)s->max, "kind",
			 s->min == s->max ? "fixed" : kinds[s->kind]);
}

static json_t *workload_json(const struct options *o)
{
	return json_pack(
		"{s:s?,s:I,s:o,s:o,s:s,s:{s:i,s:i},s:f,s:f,s:f,s:f,s:o,s:i,s:i,s:I}", "name",
		o->workload, "keys", (json_int_t)o->keys, "key_size", sizes_json(&o->key_size),
		"value_size", sizes_json(&o->value_size), "distribution", o->dist.text, "ratio",
		"set", (int)o->ratio.set, "get", (int)o->ratio.get, "deletes_percent", o->deletes,
		"scans_percent", o->scans, "inserts_percent", o->inserts, "rmws_percent", o->rmws,
		"mgets_percent", o->mgets_set ? json_real(o->mgets) : json_null(), "scan_length",
		(int)o->scan_length, "batch", (int)o->batch, "seed", (json_int_t)o->seed);
}

/* The options, as JSON. */
static void add_parameters(json_t *all, const struct options *o)
{
	set(all, "protocol", json_string(protocol_of(o)->name));
	set(all, "transport", json_string(transport_of(o)->name));
	set(all, "clients", json_integer(o->clients));
	set(all, "threads", json_integer(o->threads));
	set(all, "depth", json_integer(o->depth));
	set(all, "timeout_ms", json_integer(o->timeout_ms));
	set(all, "distribution", json_string(o->dist.text));
	set(all, "workload", workload_json(o));
}

static void add_latencies(json_t *all, const struct stats *s)
{
	json_t *latency = latency_json(&s->latency), *ops = json_object();

	if (s->latency.total)
		set(latency, "histogram", buckets_json(&s->latency));
	set(all, "latency_us", latency);
	for (int i = 0; i < OPS; i++)
		set(ops, op_names[i], latency_json(&s->op[i]));
	set(all, "operations_latency_us", ops);
	set(all, "send_lag_us", latency_json(&s->lag));
	set(all, "histogram",
	    json_pack("{s:s,s:i,s:f,s:I}", "unit", "ns", "buckets_per_power_of_two",
		      1 << HIST_SUB_BITS, "relative_error", 1.0 / (1 << HIST_SUB_BITS), "highest",
		      (json_int_t)HIST_MAX_NS));
}

/* Names that older versions used, when requests and operations were not distinguished. */
static void add_old_names(json_t *all, const struct stats *s)
{
	set(all, "mean_us", json_real(hist_mean(&s->latency) / 1e3));
	for (unsigned int i = 0; i < PERCENTILES; i++) {
		if (percentiles[i].old_name)
			set(all, percentiles[i].old_name,
			    json_real(hist_percentile(&s->latency, percentiles[i].percent) / 1e3));
	}
}

static json_t *result_json(const struct options *o, const struct result *r)
{
	const struct stats *s = &r->stats;
	json_t *all = json_object();

	add_parameters(all, o);
	if (r->mode)
		set(all, "transport_mode", json_string(r->mode));
	set(all, "seconds", json_real(r->seconds));
	set(all, "requests_per_second", json_real(result_requests_rate(r)));
	set(all, "ops_per_sec", json_real(result_ops_rate(r)));
	if (r->offered > 0)
		set(all, "offered_per_second", json_real(r->offered));
	set(all, "errors", json_integer(stats_errors(s)));
	set(all, "verify_failures", json_integer(s->count[STAT_CORRUPT]));
	for (int i = 0; i < STATS; i++)
		set(all, stat_rows[i].name, json_integer(s->count[i]));
	add_latencies(all, s);
	add_old_names(all, s);
	return all;
}

static json_t *ramp_json(const struct ramp *ramp)
{
	json_t *all = json_object(), *steps = json_array();

	for (unsigned int i = 0; i < ramp->steps; i++) {
		const struct ramp_step *s = &ramp->step[i];

		(void)json_array_append_new(
			steps, json_pack("{s:f,s:f,s:I,s:f,s:f,s:b}", "offered_per_second",
					 s->offered, "requests_per_second", s->answered, "lost",
					 (json_int_t)s->lost, "p50_us", s->p50_us, "p99_us",
					 s->p99_us, "holds", ramp_holds(s)));
	}
	set(all, "steps", steps);
	set(all, "saturation_per_second",
	    ramp->saturation > 0 ? json_real(ramp->saturation) : json_null());
	return all;
}

static bool report_json(const struct options *o, const struct result *r, const struct ramp *ramp)
{
	json_t *all = result_json(o, r);
	bool done;

	if (ramp)
		set(all, "ramp", ramp_json(ramp));
	done = all && !json_dumpf(all, stdout, JSON_REAL_PRECISION(9));
	if (done)
		putchar('\n');
	else if (!ferror(stdout)) /* main() reports errors of stdout */
		message("out of memory for the results");
	json_decref(all);
	return done;
}

/* Counters that are always shown; the others only if they are not zero. */
static bool always_shown(int stat)
{
	return stat == STAT_HITS || stat == STAT_MISSES || stat == STAT_SETS || stat == STAT_LOST;
}

static void print_latencies(const char *name, const struct hist *h)
{
	if (!h->total)
		return;
	printf("%-16s", name);
	for (unsigned int i = 0; i < PERCENTILES; i++)
		printf(" %10.1f", hist_percentile(h, percentiles[i].percent) / 1e3);
	putchar('\n');
}

/* With one kind of request, the figures of all requests are those of that kind. */
static bool one_kind(const struct stats *s)
{
	unsigned int kinds = 0;

	for (int i = 0; i < OPS; i++)
		kinds += s->op[i].total > 0;
	return kinds == 1;
}

static void print_latency_table(const struct options *o, const struct stats *s)
{
	printf("%-16s", "latency, us");
	for (unsigned int i = 0; i < PERCENTILES; i++)
		printf(" %10s", percentiles[i].name);
	putchar('\n');
	if (!one_kind(s)) {
		for (int i = 0; i < OPS; i++)
			print_latencies(op_names[i], &s->op[i]);
	}
	print_latencies("requests", &s->latency);
	if (o->rate > 0)
		print_latencies("sent late by", &s->lag);
}

static void report_table(const struct options *o, const struct result *r)
{
	const struct stats *s = &r->stats;
	char n[28];

	printf("%-16s %12s  in %.2f s, %s over %s%s%s, %u clients, %u threads, depth %u, %s\n",
	       "operations", thousands(s->count[STAT_OPS], n), r->seconds, protocol_of(o)->name,
	       transport_of(o)->name, r->mode ? " " : "", r->mode ? r->mode : "", o->clients,
	       o->threads, o->depth, o->dist.text);
	if (r->offered > 0)
		printf("%-16s %12s  requests per second\n", "offered", thousands(r->offered, n));
	printf("%-16s %12s  operations per second\n", "throughput",
	       thousands(result_ops_rate(r), n));
	if (s->count[STAT_OPS] != s->count[STAT_REQUESTS])
		printf("%-16s %12s  requests per second\n", "",
		       thousands(result_requests_rate(r), n));
	print_latency_table(o, s);
	for (int i = STAT_AFTER_END; i < STATS; i++) {
		if (s->count[i] || always_shown(i))
			printf("%-16s %12s  %s\n", stat_rows[i].name, thousands(s->count[i], n),
			       stat_rows[i].what);
	}
	printf("%-16s %12s  all of these together\n", "errors", thousands(stats_errors(s), n));
}

void report_step(const struct options *o, const struct ramp_step *step, bool first)
{
	char offered[28], answered[28], lost[28];

	if (o->json)
		return;
	if (first)
		printf("%14s %14s %10s %10s %10s\n", "offered/s", "answered/s", "lost", "p50, us",
		       "p99, us");
	printf("%14s %14s %10s %10.1f %10.1f  %s\n", thousands(step->offered, offered),
	       thousands(step->answered, answered), thousands(step->lost, lost), step->p50_us,
	       step->p99_us, ramp_holds(step) ? "holds" : "does not hold");
	fflush(stdout);
}

bool report_result(const struct options *o, const struct result *r, const struct ramp *ramp)
{
	char n[28];

	if (ramp && !o->json)
		printf("%-16s %12s  requests per second, and at that:\n", "saturation",
		       thousands(ramp->saturation, n));
	if (o->json)
		return report_json(o, r, ramp);
	report_table(o, r);
	return true;
}

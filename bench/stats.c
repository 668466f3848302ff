// SPDX-License-Identifier: BSD-2-Clause
/* See stats.h. */
#include "stats.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "options.h"
#include "say.h"

static const struct {
	const char *name, *what;
	bool error;
} rows[STATS] = {
#define ROW(name, text, what, error) { text, what, error },
	STATS_TABLE(ROW)
#undef ROW
};

static const struct {
	const char *name, *label;
	double percent;
} percentiles[] = {
	{ "p50_us", "p50", 50 },       { "p90_us", "p90", 90 },	 { "p99_us", "p99", 99 },
	{ "p99_9_us", "p99.9", 99.9 }, { "max_us", "max", 100 },
};

#define PERCENTILES (sizeof(percentiles) / sizeof(percentiles[0]))

void stats_merge(struct stats *into, const struct stats *from)
{
	for (int i = 0; i < STATS; i++)
		stat_add(into, i, __atomic_load_n(&from->count[i], __ATOMIC_RELAXED));
	hist_merge(&into->latency, &from->latency);
}

void stats_subtract(struct stats *s, const struct stats *earlier)
{
	for (int i = 0; i < STATS; i++)
		s->count[i] -= earlier->count[i];
	hist_subtract(&s->latency, &earlier->latency);
}

uint64_t stats_errors(const struct stats *s)
{
	uint64_t sum = 0;

	for (int i = 0; i < STATS; i++)
		sum += rows[i].error ? s->count[i] : 0;
	return sum;
}

void stats_progress(const struct stats *interval, double seconds, double at, const char *phase)
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

void stats_progress_end(void)
{
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
}

static void report_json(const struct options *o, const struct stats *s, double seconds)
{
	json_t *all = json_pack("{s:f,s:f,s:I,s:i,s:i,s:s,s:f}", "ops_per_sec",
				s->count[STAT_OPS] / seconds, "seconds", seconds, "errors",
				(json_int_t)stats_errors(s), "clients", (int)o->clients, "threads",
				(int)o->threads, "distribution", o->dist_name[0], "mean_us",
				hist_mean(&s->latency) / 1e3);

	for (unsigned int i = 0; i < PERCENTILES; i++)
		json_object_set_new(
			all, percentiles[i].name,
			json_real(hist_percentile(&s->latency, percentiles[i].percent) / 1e3));
	for (int i = 0; i < STATS; i++)
		json_object_set_new(all, rows[i].name, json_integer(s->count[i]));
	if (!all || json_dumpf(all, stdout, JSON_REAL_PRECISION(9)))
		say("cannot write the results");
	else
		putchar('\n');
	json_decref(all);
}

/* Counters that are always shown; the others only if they are not zero. */
static bool always_shown(int stat)
{
	return stat == STAT_HITS || stat == STAT_MISSES || stat == STAT_SETS ||
	       stat == STAT_TIMEOUTS;
}

static void report_table(const struct options *o, const struct stats *s, double seconds)
{
	char n[28];

	printf("%-16s %12s  in %.2f s, %u clients, %u threads, %s\n", "operations",
	       thousands(s->count[STAT_OPS], n), seconds, o->clients, o->threads, o->dist_name[0]);
	printf("%-16s %12s  operations per second\n", "throughput",
	       thousands(s->count[STAT_OPS] / seconds, n));
	for (unsigned int i = 0; i < PERCENTILES; i++)
		printf("%-16s %12.1f  us\n", percentiles[i].label,
		       hist_percentile(&s->latency, percentiles[i].percent) / 1e3);
	for (int i = STAT_OPS + 1; i < STATS; i++) {
		if (s->count[i] || always_shown(i))
			printf("%-16s %12s  %s\n", rows[i].name, thousands(s->count[i], n),
			       rows[i].what);
	}
	printf("%-16s %12s  all of these together\n", "errors", thousands(stats_errors(s), n));
}

void stats_report(const struct options *o, const struct stats *s, double seconds)
{
	if (o->json)
		report_json(o, s, seconds);
	else
		report_table(o, s, seconds);
}

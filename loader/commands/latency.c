/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * LATENCY: events that took latency-monitor-threshold or longer, and the histograms of all
 * commands.  Replies and graphs are those of Redis 7.0; DOCTOR's report has words of its own.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "database/database.h"
#include "util/metrics.h"

static const char *const event_names[LATENCY_EVENTS] = { "command", "fast-command" };

static struct latency_series *series_of(const struct caller *c, unsigned int event)
{
	return &shared_of(c->srv)->latency[event];
}

/* The series of a name, if it has samples. */
static struct latency_series *find_series(const struct caller *c, const struct resp_arg *name)
{
	for (unsigned int i = 0; i < LATENCY_EVENTS; i++)
		if (name->len == strlen(event_names[i]) && arg_is(name, event_names[i]))
			return series_of(c, i)->count ? series_of(c, i) : NULL;
	return NULL;
}

static unsigned int sample_count(const struct latency_series *s)
{
	return s->count < LATENCY_SAMPLES ? s->count : LATENCY_SAMPLES;
}

/* Sample `i` of those that are kept, the oldest first. */
static struct latency_sample *sample(struct latency_series *s, unsigned int i)
{
	return &s->sample[(s->count - sample_count(s) + i) % LATENCY_SAMPLES];
}

void latency_add(const struct measured *m)
{
	static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER; /* with a worker's own lock */
	struct latency_series *s = series_of(
		m->caller, m->cmd->flags & CMD_FAST ? LATENCY_FAST_COMMAND : LATENCY_COMMAND);
	struct latency_sample now = { time(NULL), (uint32_t)(m->ns / 1000000) }, *last;

	pthread_mutex_lock(&adding);
	if (now.ms > s->max_ms)
		s->max_ms = now.ms;
	last = s->count ? sample(s, sample_count(s) - 1) : NULL;
	if (last && last->time == now.time)
		last->ms = now.ms > last->ms ? now.ms : last->ms;
	else
		s->sample[s->count++ % LATENCY_SAMPLES] = now;
	pthread_mutex_unlock(&adding);
}

void cmd_latency_latest(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	size_t events = 0;

	for (unsigned int i = 0; i < LATENCY_EVENTS; i++)
		events += series_of(c, i)->count != 0;
	reply_array(reply_to(c), events);
	for (unsigned int i = 0; i < LATENCY_EVENTS; i++) {
		struct latency_series *s = series_of(c, i);

		if (!s->count)
			continue;
		reply_array(reply_to(c), 4);
		reply_text(reply_to(c), event_names[i]);
		reply_int(reply_to(c), sample(s, sample_count(s) - 1)->time);
		reply_int(reply_to(c), sample(s, sample_count(s) - 1)->ms);
		reply_int(reply_to(c), s->max_ms);
	}
}

void cmd_latency_history(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct latency_series *s = find_series(c, &argv[2]);
	unsigned int count = s ? sample_count(s) : 0;

	reply_array(reply_to(c), count);
	for (unsigned int i = 0; i < count; i++) {
		reply_array(reply_to(c), 2);
		reply_int(reply_to(c), sample(s, i)->time);
		reply_int(reply_to(c), sample(s, i)->ms);
	}
}

void cmd_latency_reset(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct latency_series *s;
	int64_t reset = 0;

	for (unsigned int i = 0; argc == 2 && i < LATENCY_EVENTS; i++) {
		reset += series_of(c, i)->count != 0;
		memset(series_of(c, i), 0, sizeof(*s));
	}
	for (unsigned int i = 2; i < argc; i++) {
		s = find_series(c, &argv[i]);
		reset += s != NULL;
		if (s)
			memset(s, 0, sizeof(*s));
	}
	reply_int(reply_to(c), reset);
}

/* --- GRAPH --- */

#define GRAPH_COLUMNS 80
#define GRAPH_ROWS    4
#define GRAPH_STEPS   3 /* of a row */

struct graph {
	unsigned int count;
	uint32_t min, max;
	struct {
		uint32_t ms;
		char label[24];
	} column[LATENCY_SAMPLES];
};

static void graph_label(char *label, size_t size, int64_t ago)
{
	if (ago < 60)
		snprintf(label, size, "%llds", (long long)ago);
	else if (ago < 3600)
		snprintf(label, size, "%lldm", (long long)ago / 60);
	else if (ago < 86400)
		snprintf(label, size, "%lldh", (long long)ago / 3600);
	else
		snprintf(label, size, "%lldd", (long long)ago / 86400);
}

static void graph_fill(struct graph *g, struct latency_series *s)
{
	g->count = sample_count(s);
	g->min = g->max = sample(s, 0)->ms;
	for (unsigned int i = 0; i < g->count; i++) {
		uint32_t ms = sample(s, i)->ms;

		g->column[i].ms = ms;
		graph_label(g->column[i].label, sizeof(g->column[i].label),
			    time(NULL) - sample(s, i)->time);
		g->min = ms < g->min ? ms : g->min;
		g->max = ms > g->max ? ms : g->max;
	}
}

/* The character of a column in a row: GRAPH_ROWS rows of bars, an empty one, then the label. */
static char graph_char(const struct graph *g, unsigned int column, unsigned int row)
{
	static const char bars[GRAPH_STEPS] = "_o#";
	uint32_t range = g->max > g->min ? g->max - g->min : 1;
	int steps = GRAPH_STEPS * GRAPH_ROWS, step, part;

	if (row > GRAPH_ROWS) {
		size_t at = row - GRAPH_ROWS - 1;

		return at < strlen(g->column[column].label) ? g->column[column].label[at] : ' ';
	}
	if (row == GRAPH_ROWS)
		return ' ';
	step = (int)((double)(g->column[column].ms - g->min) * steps / range);
	step = step < steps ? step : steps - 1;
	part = step - (int)(GRAPH_ROWS - 1 - row) * GRAPH_STEPS;
	return part < 0 ? ' ' : part < GRAPH_STEPS ? bars[part] : '|';
}

static void print_graph(FILE *out, const struct graph *g)
{
	for (unsigned int from = 0; from < g->count; from += GRAPH_COLUMNS) {
		unsigned int to = from + GRAPH_COLUMNS < g->count ? from + GRAPH_COLUMNS : g->count;
		size_t longest = 0;

		for (unsigned int i = from; i < to; i++)
			if (strlen(g->column[i].label) > longest)
				longest = strlen(g->column[i].label);
		if (from)
			fputc('\n', out);
		for (unsigned int row = 0; row <= GRAPH_ROWS + longest; row++) {
			for (unsigned int i = from; i < to; i++)
				fputc(graph_char(g, i, row), out);
			fputc('\n', out);
		}
	}
}

void cmd_latency_graph(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	struct latency_series *s = find_series(c, &argv[2]);
	struct graph g;
	char *text = NULL;
	size_t len;
	FILE *out;

	if (!s) {
		reply_error(reply_to(c), "ERR No samples available for event '%.*s'",
			    arg_shown(&argv[2], SIZE_MAX), argv[2].ptr);
		return;
	}
	out = reply_collect(c, &text, &len);
	if (!out)
		return;
	graph_fill(&g, s);
	fprintf(out, "%.*s - high %u ms, low %u ms (all time high %u ms)\n", (int)argv[2].len,
		argv[2].ptr, g.max, g.min, s->max_ms);
	for (int i = 0; i < GRAPH_COLUMNS; i++)
		fputc('-', out);
	fputc('\n', out);
	print_graph(out, &g);
	reply_collected(c, out, &text, &len);
}

/* --- DOCTOR --- */

static void print_event(FILE *out, unsigned int number, const char *name, struct latency_series *s)
{
	unsigned int count = sample_count(s);
	double sum = 0, deviation = 0, average;
	int64_t span = sample(s, count - 1)->time - sample(s, 0)->time;

	for (unsigned int i = 0; i < count; i++)
		sum += sample(s, i)->ms;
	average = sum / count;
	for (unsigned int i = 0; i < count; i++)
		deviation += fabs(sample(s, i)->ms - average);
	fprintf(out,
		"%u. %s: %u latency spikes (average %.0fms, mean deviation %.0fms, period %.2f "
		"sec). Worst all time event %ums.\n",
		number, name, count, average, deviation / count, (double)(span ? span : 1) / count,
		s->max_ms);
}

static void print_report(FILE *out, const struct caller *c)
{
	unsigned int number = 0;

	fprintf(out, "Commands took longer than latency-monitor-threshold:\n\n");
	for (unsigned int i = 0; i < LATENCY_EVENTS; i++)
		if (series_of(c, i)->count)
			print_event(out, ++number, event_names[i], series_of(c, i));
	fprintf(out, "\nSLOWLOG GET shows which commands with which arguments are slow.\n");
}

void cmd_latency_doctor(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	bool any =
		series_of(c, LATENCY_COMMAND)->count || series_of(c, LATENCY_FAST_COMMAND)->count;
	char *text = NULL;
	size_t len;
	FILE *out = reply_collect(c, &text, &len);

	if (!out)
		return;
	if (any)
		print_report(out, c);
	else if (c->srv->cfg->latency_threshold)
		fprintf(out, "No command took latency-monitor-threshold or longer.\n");
	else
		fprintf(out, "Latency monitoring is disabled: CONFIG SET latency-monitor-threshold "
			     "<milliseconds> enables it.\n");
	reply_collected(c, out, &text, &len);
}

/* --- HISTOGRAM --- */

#define FIRST_OCTAVE 10 /* the first bound is 2^10 ns */

/* Bounds in us, doubling, with the calls up to each; those that add none are left out. */
static void reply_histogram(struct reply *r, const struct command_stats *st)
{
	uint64_t seen = 0, before = 0, bound;
	size_t pairs = 0;
	struct reply part;

	reply_part(&part, r);
	for (unsigned int i = 0; i < TIME_BUCKETS; i++) {
		seen += st->times[i];
		if ((i + 1) % TIME_STEPS || (i + 1) / TIME_STEPS < FIRST_OCTAVE || seen == before)
			continue;
		bound = 1ULL << (i + 1) / TIME_STEPS;
		reply_int(&part, (int64_t)((bound + bound / 128 - 1) / 1000));
		reply_int(&part, (int64_t)seen);
		before = seen;
		pairs++;
	}
	reply_map(r, 2);
	reply_text(r, "calls");
	reply_int(r, (int64_t)st->calls);
	reply_text(r, "histogram_usec");
	reply_map(r, pairs);
	reply_splice(r, &part);
}

/* Is the command named?  A command with subcommands names all of them. */
static bool is_named(const char *full, unsigned int argc, const struct resp_arg *argv)
{
	for (unsigned int i = 2; i < argc; i++)
		if (arg_is(&argv[i], full) ||
		    (strlen(full) > argv[i].len && full[argv[i].len] == '|' &&
		     strncasecmp(full, argv[i].ptr, argv[i].len) == 0))
			return true;
	return argc == 2;
}

void cmd_latency_histogram(struct caller *c, unsigned int argc, const struct resp_arg *argv)
{
	const struct command *cmd;
	char full[COMMAND_NAME_MAX];
	struct command_stats st;
	struct reply part;
	size_t commands = 0;

	reply_part(&part, reply_to(c));
	for (unsigned int id = 0; (cmd = command_by_id(id)); id++) {
		command_stats_sum(c->srv, id, &st);
		if (!st.calls || !is_named(command_full_name(cmd, full), argc, argv))
			continue;
		reply_text(&part, command_full_name(cmd, full));
		reply_histogram(&part, &st);
		commands++;
	}
	reply_map(reply_to(c), commands);
	reply_splice(reply_to(c), &part);
}

/* clang-format off */
void latency_metrics(struct metrics *m, struct server *s)
{
	for (unsigned int i = 0; i < LATENCY_EVENTS; i++) {
		struct latency_series *series = &shared_of(s)->latency[i];
		const struct latency_sample *last =
			series->count ? sample(series, sample_count(series) - 1) : NULL;
		const struct label labels[] = { { "event_name", event_names[i] }, {} };
		const struct figure figures[] = {
			{ NULL, GAUGE(last ? last->time : 0), "redis_latency_spike_last", "Unix time of the latest slow command (latency-monitor-threshold)" },
			{ NULL, MSEC(last ? last->ms : 0), "redis_latency_spike_duration_seconds", "time that the latest slow command took (latency-monitor-threshold)" },
		};

		if (last)
			metrics_show(m, NULL, labels, figures);
	}
}

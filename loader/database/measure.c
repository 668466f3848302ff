/* SPDX-License-Identifier: BSD-2-Clause */
/* Counts and times of commands, and the sections of INFO that show them. */
#include "database/measure.h"

#include <stdio.h>
#include <string.h>

#include "database/database.h"
#include "util/clock.h"
#include "util/metrics.h"

static struct measure *measure_of(struct worker *w)
{
	return &((struct queue *)w->commands)->measure;
}

/* Does it have its time measured apart from others? */
static bool is_long(const struct command *cmd)
{
	return !(cmd->flags & (CMD_FAST | CMD_QUEUES));
}

/* --- measuring --- */

void measure_finish(const struct measured *m)
{
	struct command_stats *st = &measure_of(m->caller->worker)->stats[command_id(m->cmd)];
	const struct config *cfg = m->caller->srv->cfg;

	st->calls++;
	st->failed += m->failed;
	st->ns += m->ns;
	st->times[time_bucket(m->ns)]++;
	if (cfg->slowlog_slower_than >= 0 && m->ns / 1000 >= (uint64_t)cfg->slowlog_slower_than)
		slowlog_add(m);
	if (cfg->latency_threshold && m->ns / 1000000 >= cfg->latency_threshold)
		latency_add(m);
}

void measure_batch(struct worker *w)
{
	struct measure *m = measure_of(w);
	unsigned int weight = 0, done = m->count - m->running;
	uint64_t now, share;

	if (!m->count)
		return;
	now = monotonic_ns();
	for (unsigned int i = 0; i < m->count; i++)
		weight += m->batch[i].weight;
	share = (now - w->now_ns) / weight;
	w->now_ns = now;
	for (unsigned int i = 0; i < m->count; i++)
		m->batch[i].ns += share * m->batch[i].weight;
	for (unsigned int i = 0; i < done; i++)
		measure_finish(&m->batch[i]);
	m->count = m->running;
	if (!m->running)
		return;
	m->batch[0] = m->batch[done];
	m->batch[0].weight = 1;
}

void measure_others(struct worker *w)
{
	const struct measure *m = measure_of(w);

	if (m->count > m->running)
		measure_batch(w);
}

uint64_t measure_errors_total(const struct caller *c)
{
	const struct error_counts *counts = c->session.reply.errors, *all = &c->worker->errors;

	return all->total + (counts == all ? 0 : counts->total);
}

void measure_begin(struct caller *c, const struct command *cmd, uint64_t ns)
{
	struct measure *m = measure_of(c->worker);

	if (measure_is_full(c->worker) || is_long(cmd))
		measure_batch(c->worker);
	m->batch[m->count++] = (struct measured){
		.caller = c,
		.cmd = cmd,
		.start = c->call.bytes,
		.input = c->call.pending,
		.ns = ns,
		.weight = 1,
	};
	m->running = true;
	m->errors = c->worker->errors.total;
}

void measure_begin_text(struct caller *c, const struct command *cmd, const char *text)
{
	struct measure *m = measure_of(c->worker);

	measure_begin(c, cmd, 0);
	m->batch[m->count - 1].start = text;
	m->batch[m->count - 1].input = strlen(text);
}

bool measure_runs(struct worker *w)
{
	return measure_of(w)->running;
}

void measure_end(struct caller *c)
{
	struct measure *m = measure_of(c->worker);

	measure_errors(c, m->count - 1);
	if (is_long(m->batch[m->count - 1].cmd) || progress_of(c)->step) {
		measure_batch(c->worker); /* only this one is left in it */
		m->count = 0;
		if (progress_of(c)->step)
			progress_of(c)->ns = m->batch[0].ns;
		else
			measure_finish(&m->batch[0]);
	}
	m->running = false;
}

void measure_inner(struct caller *c, const struct command *cmd, uint64_t ns, bool failed)
{
	struct measure *m = measure_of(c->worker);
	struct measured inner = { .caller = c, .cmd = cmd, .ns = ns, .failed = failed };

	if (m->trying && m->tried_count < TRIED_COMMANDS)
		m->tried[m->tried_count++] = inner;
	else
		measure_finish(&inner);
	m->errors = measure_errors_total(c);
	m->batch[m->count - 1].failed = false; /* that of the outer command is its own */
}

struct measured measure_suspend(struct caller *c)
{
	struct measure *m = measure_of(c->worker);

	measure_batch(c->worker); /* only the one that runs is left in it */
	m->count = 0;
	m->running = false;
	return m->batch[0];
}

void measure_resume(struct caller *c, const struct measured *command)
{
	struct measure *m = measure_of(c->worker);

	measure_batch(c->worker);
	m->batch[0] = *command;
	m->count = 1;
	m->running = true;
	m->errors = measure_errors_total(c);
	c->worker->now_ns = monotonic_ns();
}

void measure_rejected(struct caller *c, const struct command *cmd)
{
	measure_of(c->worker)->stats[command_id(cmd)].rejected++;
}

unsigned int measure_operation(struct caller *c)
{
	struct measure *m = measure_of(c->worker);

	m->batch[m->count - 1].weight++;
	return m->count - 1;
}

void measure_errors(struct caller *c, unsigned int number)
{
	struct measure *m = measure_of(c->worker);

	m->batch[number].failed |= c->worker->errors.total != m->errors;
	m->errors = c->worker->errors.total;
}

void measure_try(struct worker *w)
{
	measure_of(w)->trying = true;
	measure_of(w)->tried_count = 0;
}

void measure_tried(struct caller *c, const struct error_counts *errors)
{
	struct measure *m = measure_of(c->worker);

	for (unsigned int i = 0; errors && i < m->tried_count; i++)
		measure_finish(&m->tried[i]);
	m->trying = false;
	if (errors)
		error_counts_add(&c->worker->errors, errors);
	else
		m->errors = c->worker->errors.total;
}

bool measure_is_full(struct worker *w)
{
	return measure_of(w)->count == BATCH_COMMANDS;
}

void measure_reset(struct worker *w)
{
	struct measure *m = measure_of(w);

	memset(m->stats, 0, sizeof(m->stats));
	memset(&w->errors, 0, sizeof(w->errors));
	m->errors = 0;
}

/* --- INFO --- */

/* What the driver has answered over TCP has no times of its own, but their mean. */
static void add_driver(const struct server *s, unsigned int id, struct command_stats *sum)
{
	struct xkv_tcp_calls driver = driver_calls(s, id);

	if (!driver.calls)
		return;
	sum->calls += driver.calls;
	sum->failed += driver.failed;
	sum->ns += driver.ns;
	sum->times[time_bucket(driver.ns / driver.calls)] += driver.calls;
}

void command_stats_sum(const struct server *s, unsigned int id, struct command_stats *sum)
{
	*sum = (struct command_stats){ 0 };
	add_driver(s, id, sum);
	for (unsigned int n = 0; n < s->worker_count; n++) {
		const struct queue *q = (const struct queue *)s->worker[n]->commands;
		const struct command_stats *st = &q->measure.stats[id];

		sum->calls += st->calls;
		sum->rejected += st->rejected;
		sum->failed += st->failed;
		sum->ns += st->ns;
		for (unsigned int i = 0; i < TIME_BUCKETS; i++)
			sum->times[i] += st->times[i];
	}
}

/* clang-format off */

static const char calls_help[] = "calls of each command over TCP, and operations over UDP";

void commandstats_udp(struct metrics *m, uint64_t driver, uint64_t xkvd)
{
	static const struct label by_driver[] = { { "cmd", "udp_driver" }, {} };
	static const struct label by_xkvd[] = { { "cmd", "udp_xkvd" }, {} };
	const struct figure of_driver[] = {
		{ NULL, COUNT(driver), "redis_commands_total", calls_help },
	};
	const struct figure of_xkvd[] = {
		{ NULL, COUNT(xkvd), "redis_commands_total", calls_help },
	};

	metrics_show(m, NULL, by_driver, of_driver);
	metrics_show(m, NULL, by_xkvd, of_xkvd);
}

/* Those over TCP; of operations over UDP no times are known. */
void commandstats_section(struct metrics *m, struct server *s)
{
	char text[COMMAND_NAME_MAX], name[COMMAND_NAME_MAX + 16];
	const struct command *cmd;
	struct command_stats st;

	for (unsigned int id = 0; (cmd = command_by_id(id)); id++) {
		const char *full = command_full_name(cmd, text);
		const struct label labels[] = { { "cmd", full }, {} };

		command_stats_sum(s, id, &st);
		if (!st.calls && !st.rejected)
			continue;
		snprintf(name, sizeof(name), "cmdstat_%s", full);
		const struct figure figures[] = {
			{ "calls", COUNT(st.calls), "redis_commands_total", calls_help },
			{ "usec", NSEC(st.ns), "redis_commands_duration_seconds_total", "time that the calls of each command took" },
			{ "usec_per_call", REAL(st.calls ? (double)st.ns / 1000 / (double)st.calls : 0, 2) },
			{ "rejected_calls", COUNT(st.rejected), "redis_commands_rejected_calls_total", "calls of each command that were refused before they began" },
			{ "failed_calls", COUNT(st.failed), "redis_commands_failed_calls_total", "calls of each command that replied an error" },
		};

		metrics_show(m, name, labels, figures);
	}
}

/* clang-format on */

/* The duration in us that so many percent of the calls did not exceed. */
static double percentile(const struct command_stats *st, double percent)
{
	uint64_t seen = 0;

	for (unsigned int i = 0; i < TIME_BUCKETS; i++) {
		seen += st->times[i];
		if (seen && (double)seen >= percent / 100 * (double)st->calls)
			return (double)time_bucket_end(i) / 1000;
	}
	return 0;
}

/* Octaves of ns that are buckets of a histogram: it begins with 0.256 us and ends with 8.6 s. */
#define FIRST_OCTAVE 8
#define LAST_OCTAVE  33

struct histogram histogram_of(uint64_t count, uint64_t ns, const uint64_t times[TIME_BUCKETS])
{
	struct histogram h = { .count = count, .sum = (double)ns / 1e9 };
	uint64_t upto = 0;

	for (unsigned int i = 0; i < LAST_OCTAVE * TIME_STEPS; i++) {
		upto += times[i];
		if ((i + 1) % TIME_STEPS || (i + 1) / TIME_STEPS < FIRST_OCTAVE)
			continue;
		h.bucket[h.buckets].end = (double)time_bucket_end(i) / 1e9;
		h.bucket[h.buckets++].upto = upto;
	}
	return h;
}

void latencystats_section(struct metrics *m, struct server *s)
{
	char text[COMMAND_NAME_MAX], name[COMMAND_NAME_MAX + 32];
	const struct command *cmd;
	struct command_stats st;

	for (unsigned int id = 0; (cmd = command_by_id(id)); id++) {
		const char *full = command_full_name(cmd, text);
		const struct label labels[] = { { "cmd", full }, {} };

		command_stats_sum(s, id, &st);
		if (!st.calls)
			continue;
		snprintf(name, sizeof(name), "latency_percentiles_usec_%s", full);
		const struct histogram h = histogram_of(st.calls, st.ns, st.times);
		const struct figure figures[] = {
			{ "p50", REAL(percentile(&st, 50), 3) },
			{ "p99", REAL(percentile(&st, 99), 3) },
			{ "p99.9", REAL(percentile(&st, 99.9), 3) },
			{ NULL, HISTOGRAM(&h), "xkv_command_duration_seconds",
			  "times of the calls of each command over TCP" },
		};

		metrics_show(m, name, labels, figures);
	}
}

struct error_counts measure_errors_of(const struct server *s)
{
	struct error_counts sum = { 0 }, driver = { .total = driver_errors(s) };

	if (driver.total) {
		strcpy(driver.each[0].code, "ERR");
		driver.each[0].count = driver.total;
		error_counts_add(&sum, &driver);
	}
	for (unsigned int n = 0; n < s->worker_count; n++)
		error_counts_add(&sum, &s->worker[n]->errors);
	return sum;
}

static void show_errors(struct metrics *m, const char *code, uint64_t count)
{
	const struct label labels[] = { { "err", code }, {} };
	const struct figure figures[] = {
		{ "count", COUNT(count), "redis_errors_total",
		  "errors that were replied over TCP" },
	};
	char name[64];

	snprintf(name, sizeof(name), "errorstat_%s", code);
	for (char *at = name; *(at += strcspn(at, "#:\r\n"));)
		*at = '_'; /* as Redis: it would end the name, or the line */
	metrics_show(m, name, labels, figures);
}

void errorstats_section(struct metrics *m, struct server *s)
{
	struct error_counts all = measure_errors_of(s);
	uint64_t others = all.total;

	for (unsigned int i = 0; i < ERROR_CODES && all.each[i].code[0]; i++) {
		show_errors(m, all.each[i].code, all.each[i].count);
		others -= all.each[i].count;
	}
	if (others)
		show_errors(m, "ERRORSTATS_OVERFLOW", others);
}

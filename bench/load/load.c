// SPDX-License-Identifier: BSD-2-Clause
/*
 * Runs a load over sockets or AF_XDP: finds the server, sets the keys, runs the workload, prints
 * progress and results.  worker.c has the code of the threads.
 */
#include "load.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "bench/common/message.h"
#include "entry.h"
#include "hdr.h"
#include "options.h"
#include "probe.h"
#include "report.h"
#include "worker.h"

#define START_NS 5000000 /* delay until which all threads run, to begin at the same time */

struct load {
	const struct options *o;
	struct server_address server;
	struct inserts inserts;
	void *shared; /* the transport's */
	FILE *hdr;    /* NULL without --hdr */
	struct worker *worker;
	pthread_t *thread;
	unsigned int workers; /* open */
};

/* Raises the limit of open files: one per client and some more, at most the hard limit. */
static void raise_file_limit(unsigned int clients)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= clients + 64)
		return;
	limit.rlim_cur = clients + 64 < limit.rlim_max ? clients + 64 : limit.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &limit); /* opening the sockets reports it if it failed */
}

static int open_workers(struct load *l)
{
	unsigned int threads = l->o->threads, first = 0;

	raise_file_limit(l->o->clients);
	l->worker = calloc(threads, sizeof(*l->worker));
	l->thread = calloc(threads, sizeof(*l->thread));
	if (!l->worker || !l->thread) {
		message("out of memory");
		return -ENOMEM;
	}
	while (l->workers < threads) {
		unsigned int i = l->workers++;
		unsigned int clients = l->o->clients / threads + (i < l->o->clients % threads);
		int err;

		l->worker[i].number = i;
		l->worker[i].workers = threads;
		l->worker[i].transport_shared = l->shared;
		err = worker_open(&l->worker[i], l->o, &l->server, first, clients);
		if (err)
			return err;
		first += clients;
	}
	return 0;
}

static void close_workers(struct load *l)
{
	for (unsigned int i = 0; i < l->workers; i++)
		worker_close(&l->worker[i]);
	free(l->worker);
	free(l->thread);
}

/* Sums up the statistics of all workers: of the measurement, or of the warm-up. */
static void sum_up(const struct load *l, struct stats *sum, bool warmup)
{
	memset(sum, 0, sizeof(*sum));
	for (unsigned int i = 0; i < l->workers; i++)
		stats_merge(sum, warmup ? &l->worker[i].ignored : &l->worker[i].stats);
}

/* Where the lines of progress stand. */
struct progress {
	const struct phase *phase;
	const char *name;
	uint64_t last;	     /* ns: end of the previous line's time */
	struct stats before; /* what had been counted then */
};

/* Prints the progress since the previous line. */
static void show_progress(const struct load *l, struct progress *p)
{
	static struct stats sum, interval;
	uint64_t now = now_ns(), from = p->phase->from_ns;
	bool warmup = now < from;

	if (!warmup && p->last < from) { /* no line covers both warm-up and measurement */
		memset(&p->before, 0, sizeof(p->before));
		p->last = from;
	}
	sum_up(l, &sum, warmup);
	interval = sum;
	stats_subtract(&interval, &p->before);
	report_progress(&interval, (now - p->last) / 1e9, (now - p->phase->start_ns) / 1e9,
			warmup ? "warm-up" : p->name);
	p->before = sum;
	p->last = now;
}

/* Waits for the threads, with a line of progress each second. */
static void wait_for_threads(struct load *l, unsigned int threads, const struct phase *phase,
			     const char *name)
{
	static struct progress progress;
	struct timespec tick;

	memset(&progress, 0, sizeof(progress));
	progress.phase = phase;
	progress.name = name;
	progress.last = phase->start_ns;
	clock_gettime(CLOCK_REALTIME, &tick);
	for (unsigned int i = 0; i < threads;) {
		tick.tv_sec++;
		while (i < threads && pthread_timedjoin_np(l->thread[i], NULL, &tick) == 0)
			i++;
		if (i < threads && l->o->progress)
			show_progress(l, &progress);
	}
	if (l->o->progress)
		report_progress_end();
}

/* Starts the threads and returns their number; if it is too low, the phase has failed. */
static unsigned int start_threads(struct load *l, struct phase *phase)
{
	phase->working = l->workers;
	for (unsigned int i = 0; i < l->workers; i++) {
		struct worker *w = &l->worker[i];
		int err;

		memset(&w->stats, 0, sizeof(w->stats));
		memset(&w->ignored, 0, sizeof(w->ignored));
		w->phase = phase;
		workload_init(&w->workload, l->o, &l->inserts, i, l->workers);
		err = pthread_create(&l->thread[i], NULL, worker_main, w);
		if (err) {
			message("cannot start thread %u: %s", i + 1, strerror(err));
			__atomic_store_n(&phase->failed, true, __ATOMIC_RELAXED);
			__atomic_sub_fetch(&phase->working, l->workers - i, __ATOMIC_RELAXED);
			return i;
		}
	}
	return l->workers;
}

/* Duration from the end of the warm-up to the end, or to the last reply if that was earlier. */
static double measured_seconds(const struct load *l, const struct phase *phase)
{
	bool ended = phase->end_ns && phase->end_ns < now_ns();
	uint64_t last = ended ? phase->end_ns : 0;

	for (unsigned int i = 0; i < l->workers && !ended; i++)
		last = l->worker[i].last > last ? l->worker[i].last : last;
	return last > phase->from_ns ? (last - phase->from_ns) / 1e9 : 1e-9;
}

/* Runs a phase on all workers.  0 with counters and duration, or -errno. */
static int run_phase(struct load *l, struct phase *phase, const char *name, struct result *result)
{
	uint64_t start = now_ns() + START_NS;

	phase->start_ns = phase->from_ns = phase->last_reply_ns = start;
	phase->inserts = &l->inserts;
	if (!phase->loading) {
		phase->from_ns += l->o->warmup * 1e9;
		if (l->o->seconds)
			phase->end_ns = phase->from_ns + l->o->seconds * 1e9;
	}
	wait_for_threads(l, start_threads(l, phase), phase, name);
	result->mode = transport_of(l->o)->mode ? transport_of(l->o)->mode(l->shared) : NULL;
	result->seconds = measured_seconds(l, phase);
	sum_up(l, &result->stats, false);
	return phase->failed ? -EIO : 0;
}

static int load_keys(struct load *l)
{
	static struct result result;
	struct phase phase = { .o = l->o, .loading = true, .total = l->o->keys };
	int err = run_phase(l, &phase, "load", &result);
	uint64_t stored = result.stats.count[STAT_SETS];
	char n[28];

	if (!interrupted && stored < l->o->keys) {
		message("only %llu of %u keys were stored%s", (unsigned long long)stored,
			l->o->keys, err ? "" : ": the server refused the others");
		err = -EIO;
	}
	if (!err && l->o->progress)
		fprintf(stderr, "loaded %s keys in %.1f s\n", thousands(stored, n), result.seconds);
	if (!err && l->o->load_only)
		report_result(l->o, &result, NULL);
	return err;
}

static int measure(struct load *l, double rate, struct result *result)
{
	struct phase phase = { .o = l->o, .total = l->o->requests, .rate = rate };

	result->offered = rate;
	return run_phase(l, &phase, "run", result);
}

/* Prints the result and writes the files.  Returns the exit code. */
static int conclude(struct load *l, const struct result *result, const struct ramp *ramp)
{
	const struct stats *s = &result->stats;

	if (!report_result(l->o, result, ramp))
		return 1;
	if (l->hdr && hdr_write(l->hdr, &s->latency)) {
		message("cannot write %s: %s", l->o->hdr, strerror(errno));
		return 1;
	}
	return stats_errors(s) || !s->count[STAT_OPS] ? 3 : 0;
}

static int run_workload(struct load *l)
{
	static struct result result;
	int err = measure(l, l->o->rate, &result), ret;

	if (err && !result.stats.count[STAT_OPS])
		return 1;
	ret = conclude(l, &result, NULL);
	return err ? 1 : ret;
}

/* A ramp while it is run. */
struct climb {
	struct load *l;
	struct result last, best; /* best: of the highest rate that held */
	bool first;
};

static int climb_step(void *context, struct ramp_step *step)
{
	struct climb *c = context;
	const struct stats *s = &c->last.stats;
	int err = measure(c->l, step->offered, &c->last);

	if (err || interrupted)
		return err ? err : -EINTR;
	step->answered = result_requests_rate(&c->last);
	step->requests = s->count[STAT_REQUESTS];
	step->lost = s->count[STAT_LOST] + s->count[STAT_UNSENT];
	step->p50_us = hist_percentile(&s->latency, 50) / 1e3;
	step->p99_us = hist_percentile(&s->latency, 99) / 1e3;
	if (ramp_holds(step) && step->offered > c->best.offered)
		c->best = c->last;
	report_step(c->l->o, step, c->first);
	c->first = false;
	return 0;
}

static int run_ramp(struct load *l)
{
	static struct climb climb;
	static struct ramp ramp;
	int err, ret;

	climb.l = l;
	climb.first = true;
	err = ramp_find(&ramp, l->o->rate, climb_step, &climb);
	if (!(ramp.saturation > 0)) {
		if (!err)
			message("no rate holds, however low: the server loses requests, or this "
				"machine is too busy");
		return 1;
	}
	ret = conclude(l, &climb.best, &ramp);
	return err && err != -EINTR ? 1 : ret;
}

/* Opens the file before the measurement, so that an error does not waste it. */
static int open_hdr(struct load *l)
{
	if (!l->o->hdr)
		return 0;
	l->hdr = fopen(l->o->hdr, "we");
	if (l->hdr)
		return 0;
	message("cannot write %s: %s", l->o->hdr, strerror(errno));
	return -errno;
}

int load_run(struct options *o)
{
	const struct transport *transport = transport_of(o);
	struct load l = { .o = o };
	int err = probe_server(o, protocol_of(o), &l.server), ret = 1;

	dist_init(&o->dist, o->keys);
	if (!err)
		err = inserts_init(&l.inserts, o->keys,
				   entry_names(o->key_size.min) - o->first_key);
	if (err)
		return ret;
	err = open_hdr(&l);
	if (!err && transport->start)
		err = transport->start(&l.shared, o, &l.server);
	if (!err)
		err = open_workers(&l);
	if (!err && transport->settle)
		err = transport->settle(l.worker, l.workers);
	if (!err && o->load)
		err = load_keys(&l);
	if (!err)
		ret = o->load_only || interrupted ? 0 : o->ramp ? run_ramp(&l) : run_workload(&l);
	close_workers(&l);
	if (transport->stop)
		transport->stop(l.shared);
	inserts_destroy(&l.inserts);
	if (l.hdr)
		fclose(l.hdr);
	return ret;
}

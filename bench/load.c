// SPDX-License-Identifier: BSD-2-Clause
/*
 * The course of a load over sockets: find the server, load the keys, run the
 * workload, show progress and results.  The threads' work is in worker.c.
 */
#include "load.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "options.h"
#include "say.h"
#include "stats.h"
#include "worker.h"

#define PINGS 3

struct load {
	const struct options *o;
	struct sockaddr_storage addr;
	socklen_t addr_len;
	struct worker *worker;
	pthread_t *thread;
	unsigned int workers; /* open */
};

static int resolve(struct load *l)
{
	struct addrinfo hints = { .ai_socktype = SOCK_DGRAM }, *list;
	int err = getaddrinfo(l->o->host, l->o->port, &hints, &list);

	if (err) {
		say("host %s: %s", l->o->host, gai_strerror(err));
		return -EINVAL;
	}
	memcpy(&l->addr, list->ai_addr, list->ai_addrlen);
	l->addr_len = list->ai_addrlen;
	freeaddrinfo(list);
	return 0;
}

/* 1 if the server answered, 0 if not, or -errno after a sentence. */
static int take_pong(const struct options *o, int fd, uint64_t id)
{
	uint8_t buf[WIRE_MAX];
	struct wire_reply r;
	ssize_t len = recv(fd, buf, sizeof(buf), 0);

	if (len < 0 && errno == ECONNREFUSED) {
		say("nothing listens on UDP port %s of %s: start xkvd, or give -h and -p", o->port,
		    o->host);
		return -ECONNREFUSED;
	}
	if (len < 0 || !wire_reply_open(&r, buf, len) || r.id != id)
		return 0;
	if (r.status == XKV_NOAUTH) {
		say("the server wants a token: give its udp-token with --token");
		return -EACCES;
	}
	return 1;
}

static int ping(const struct options *o, int fd)
{
	struct timeval wait = { .tv_sec = o->timeout_ms / 1000,
				.tv_usec = o->timeout_ms % 1000 * 1000 };
	uint8_t buf[WIRE_MAX];
	int answered = 0;

	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)))
		return -errno;
	for (uint64_t id = 1; id <= PINGS && !answered && !interrupted; id++) {
		size_t len = wire_ping(o, buf, id);

		/* A pending ICMP error is reported by whichever call comes first. */
		if (send(fd, buf, len, 0) < 0 && errno != ECONNREFUSED) {
			answered = -errno;
			say("cannot send to %s: %s", o->host, strerror(-answered));
			return answered;
		}
		answered = take_pong(o, fd, id);
	}
	if (!answered)
		say("no answer from UDP port %s of %s to %d PINGs: is xkvd running, and is this "
		    "address in its `allow`?",
		    o->port, o->host, PINGS);
	return answered > 0 ? 0 : answered ? answered : -ETIMEDOUT;
}

static int find_server(struct load *l)
{
	int fd, err = resolve(l);

	if (err)
		return err;
	fd = socket(l->addr.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&l->addr, l->addr_len)) {
		err = -errno;
		say("cannot connect to %s: %s", l->o->host, strerror(-err));
	} else {
		err = ping(l->o, fd);
	}
	if (fd >= 0)
		close(fd);
	return err;
}

/* A socket a client and some more; what the hard limit allows is what there is. */
static void raise_file_limit(unsigned int clients)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= clients + 64)
		return;
	limit.rlim_cur = clients + 64 < limit.rlim_max ? clients + 64 : limit.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &limit); /* opening the sockets says it if it failed */
}

static int open_workers(struct load *l)
{
	unsigned int threads = l->o->threads, first = 0;

	raise_file_limit(l->o->clients);
	l->worker = calloc(threads, sizeof(*l->worker));
	l->thread = calloc(threads, sizeof(*l->thread));
	if (!l->worker || !l->thread) {
		say("out of memory");
		return -ENOMEM;
	}
	while (l->workers < threads) {
		unsigned int i = l->workers++;
		unsigned int clients = l->o->clients / threads + (i < l->o->clients % threads);
		int err = worker_open(&l->worker[i], l->o, (struct sockaddr *)&l->addr, l->addr_len,
				      first, clients);

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

static void sum_up(const struct load *l, struct stats *sum)
{
	memset(sum, 0, sizeof(*sum));
	for (unsigned int i = 0; i < l->workers; i++)
		stats_merge(sum, &l->worker[i].stats);
}

/* Shows what happened since *before, and makes that the new *before. */
static void show_progress(const struct load *l, const char *name, uint64_t start, uint64_t *last,
			  struct stats *before)
{
	static struct stats sum, interval;
	uint64_t now = now_ns();

	sum_up(l, &sum);
	interval = sum;
	stats_subtract(&interval, before);
	stats_progress(&interval, (now - *last) / 1e9, (now - start) / 1e9, name);
	*before = sum;
	*last = now;
}

/* Waits for the threads, with a line of progress each second. */
static void wait_for_threads(struct load *l, unsigned int threads, const char *name, uint64_t start)
{
	static struct stats before;
	uint64_t last = start;
	struct timespec tick;

	memset(&before, 0, sizeof(before));
	clock_gettime(CLOCK_REALTIME, &tick);
	for (unsigned int i = 0; i < threads;) {
		tick.tv_sec++;
		while (i < threads && pthread_timedjoin_np(l->thread[i], NULL, &tick) == 0)
			i++;
		if (i < threads && !l->o->quiet)
			show_progress(l, name, start, &last, &before);
	}
	if (!l->o->quiet)
		stats_progress_end();
}

/* Runs a phase on all workers.  0 with what they counted and how long it took, or an error. */
static int run_phase(struct load *l, struct phase *phase, const char *name, struct stats *sum,
		     double *seconds)
{
	uint64_t start = now_ns();
	unsigned int threads = 0;
	int err = 0;

	if (l->o->seconds && !phase->loading)
		phase->end_ns = start + l->o->seconds * 1e9;
	for (; threads < l->workers && !err; threads++) {
		memset(&l->worker[threads].stats, 0, sizeof(struct stats));
		l->worker[threads].phase = phase;
		err = pthread_create(&l->thread[threads], NULL, worker_main, &l->worker[threads]);
		if (err) {
			say("cannot start thread %u: %s", threads + 1, strerror(err));
			__atomic_store_n(&phase->failed, true, __ATOMIC_RELAXED);
			break;
		}
	}
	wait_for_threads(l, threads, name, start);
	*seconds = (now_ns() - start) / 1e9;
	sum_up(l, sum);
	return phase->failed ? -EIO : 0;
}

static int load_keys(struct load *l)
{
	static struct stats sum;
	struct phase phase = { .o = l->o, .loading = true, .total = l->o->keys };
	double seconds;
	int err = run_phase(l, &phase, "load", &sum, &seconds);
	char n[28];

	if (!err && !interrupted && sum.count[STAT_SETS] < l->o->keys) {
		say("only %llu of %u keys were stored: the server refused the others",
		    (unsigned long long)sum.count[STAT_SETS], l->o->keys);
		err = -EIO;
	}
	if (!err && !l->o->quiet)
		fprintf(stderr, "loaded %s keys in %.1f s\n", thousands(sum.count[STAT_SETS], n),
			seconds);
	if (!err && l->o->load_only)
		stats_report(l->o, &sum, seconds);
	return err;
}

static int run_workload(struct load *l)
{
	static struct stats sum;
	struct phase phase = { .o = l->o, .total = l->o->requests };
	double seconds;
	int err = run_phase(l, &phase, "run", &sum, &seconds);

	if (err && !sum.count[STAT_OPS])
		return 1;
	stats_report(l->o, &sum, seconds);
	return err ? 1 : stats_errors(&sum) || !sum.count[STAT_OPS] ? 3 : 0;
}

int load_run(struct options *o)
{
	struct load l = { .o = o };
	int err = find_server(&l), ret = 1;

	dist_init(&o->dist[0], o->keys);
	if (!err)
		err = open_workers(&l);
	if (!err && o->load)
		err = load_keys(&l);
	if (!err)
		ret = o->load_only || interrupted ? 0 : run_workload(&l);
	close_workers(&l);
	return ret;
}

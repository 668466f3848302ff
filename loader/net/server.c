/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What there is once per process: listening sockets, timers, signals, `save` rules, active expiry,
 * and shutdown.
 */
#include "server.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "client.h"
#include "executor.h"
#include "flows.h"
#include "listen.h"
#include "tls.h"
#include "kernel/tcp.h"
#include "util/clock.h"
#include "util/files.h"
#include "util/log.h"
#include "util/machine.h"

#define FDS_RESERVE 32	/* snapshots, CONFIG REWRITE, programs: what is open at times */
#define FDS_UNKNOWN 128 /* open files where /proc does not tell */
#define FDS_LOADING 128 /* for what is opened when the data is loaded */

struct extra {
	struct extra *next;
	struct server *srv;
	union {
		ev_io io;
		ev_timer timer;
	} w;
	bool is_timer;
	enum extra_use use;
	ev_check again;	 /* while cb has more to do ... */
	ev_idle no_wait; /* ... so that the loop does not wait */
	bool (*cb)(void *arg);
	void *arg;
};

/* Is worker_yield() called in the middle of a command, which uses the store context? */
static bool server_is_busy(const struct server *s)
{
	return s->busy;
}

/* --- watchers that main() adds --- */

static void run_extra(struct extra *e)
{
	worker_take_all(e->srv->worker[0]);
	if (e->use == USES_CONTEXT && server_is_busy(e->srv))
		return;
	if (e->cb(e->arg)) {
		ev_check_start(e->srv->loop, &e->again);
		ev_idle_start(e->srv->loop, &e->no_wait);
	} else {
		ev_check_stop(e->srv->loop, &e->again);
		ev_idle_stop(e->srv->loop, &e->no_wait);
	}
}

static void on_extra_again(struct ev_loop *loop, ev_check *w, int events)
{
	run_extra(w->data);
}

static void on_extra_io(struct ev_loop *loop, ev_io *w, int events)
{
	struct extra *e = w->data;

	if (!ev_is_active(&e->again))
		run_extra(e);
}

static void on_extra_timer(struct ev_loop *loop, ev_timer *w, int events)
{
	run_extra(w->data);
}

static void on_no_wait(struct ev_loop *loop, ev_idle *w, int events)
{
}

static struct extra *extra_new(struct server *s, enum extra_use use, bool (*cb)(void *arg),
			       void *arg)
{
	struct extra *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	ev_check_init(&e->again, on_extra_again);
	ev_idle_init(&e->no_wait, on_no_wait);
	e->again.data = e;
	e->srv = s;
	e->use = use;
	e->cb = cb;
	e->arg = arg;
	e->next = s->extras;
	s->extras = e;
	return e;
}

int server_add_fd(struct server *s, int fd, enum extra_use use, bool (*cb)(void *arg), void *arg)
{
	struct extra *e = extra_new(s, use, cb, arg);

	if (!e)
		return -ENOMEM;
	ev_io_init(&e->w.io, on_extra_io, fd, EV_READ);
	e->w.io.data = e;
	ev_io_start(s->loop, &e->w.io);
	return 0;
}

int server_add_timer(struct server *s, double seconds, enum extra_use use, bool (*cb)(void *arg),
		     void *arg)
{
	struct extra *e = extra_new(s, use, cb, arg);

	if (!e)
		return -ENOMEM;
	e->is_timer = true;
	ev_timer_init(&e->w.timer, on_extra_timer, seconds, seconds);
	e->w.timer.data = e;
	ev_timer_start(s->loop, &e->w.timer);
	return 0;
}

struct store_ctx *server_ctx(struct server *s)
{
	return s->worker[0]->ctx;
}

uint64_t *server_stat(struct server *s)
{
	return s->worker[0]->stat;
}

struct durations *server_datagrams(struct server *s)
{
	return &s->worker[0]->datagrams;
}

/* --- sums over the workers --- */

void server_stats(const struct server *s, uint64_t stat[STATS])
{
	struct xkv_tcp_stats driver = { 0 };
	uint64_t extra = 0;

	if (s->flows) {
		tcp_path_stats(s->opt.tcp_path, &driver);
		extra = tcp_path_extra(s->opt.tcp_path, &driver);
	}
	for (unsigned int i = 0; i < STATS; i++) {
		stat[i] = 0;
		for (unsigned int n = 0; n < s->worker_count; n++)
			stat[i] += s->worker[n]->stat[i];
	}
	stat[STAT_HITS] = store_counter(s->store, "get_hits");
	stat[STAT_MISSES] = store_counter(s->store, "get_misses");
	stat[STAT_EXPIRED] = store_counter(s->store, "expires");
	stat[STAT_EVICTED] = store_counter(s->store, "evictions");
	store_udp_operations(s->store, &stat[STAT_UDP_DRIVER], &stat[STAT_UDP_XKVD]);
	stat[STAT_UDP_DRIVER] -= extra; /* each command over TCP counts once */
	stat[STAT_BYTES_IN] += driver.bytes_in;
	stat[STAT_BYTES_OUT] += driver.bytes_out;
}

unsigned int server_client_count(const struct server *s)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < s->worker_count; i++)
		count += s->worker[i]->client_count;
	return count;
}

size_t server_client_memory(const struct server *s)
{
	size_t bytes = 0;

	for (unsigned int i = 0; i < s->worker_count; i++)
		bytes += __atomic_load_n(&s->worker[i]->client_memory, __ATOMIC_RELAXED);
	return bytes;
}

/* --- life --- */

unsigned int server_handshake_count(const struct server *s)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < s->worker_count; i++)
		count += s->worker[i]->handshakes.count;
	return count;
}

/* Without clients: what is open, and may be opened while they are there. */
static unsigned int count_fds_besides(const struct server *s)
{
	int clients = (int)(server_client_count(s) + server_handshake_count(s));
	unsigned int more = sockets_follow(s) ? SERVER_SOCKETS_MAX - s->socket_count : 0;
	int open = directory_count("/proc/self/fd") - 1; /* that directory's own */

	open = open < clients ? FDS_UNKNOWN : open - clients;
	return (unsigned int)open + more + FDS_RESERVE + (s->cfg->http_port ? HTTP_CONNECTIONS : 0);
}

unsigned int server_clients_possible(const struct server *s, unsigned int wanted)
{
	rlim_t want = (rlim_t)wanted + s->fds_besides;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= want)
		return wanted;
	limit.rlim_max = limit.rlim_max > want ? limit.rlim_max : want;
	limit.rlim_cur = want;
	if (!setrlimit(RLIMIT_NOFILE, &limit))
		return wanted;
	/* Only root may raise the hard limit; every process may raise the soft one up to it. */
	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		if (setrlimit(RLIMIT_NOFILE, &limit) || getrlimit(RLIMIT_NOFILE, &limit))
			return wanted;
	}
	if (limit.rlim_cur >= want)
		return wanted;
	return limit.rlim_cur > s->fds_besides ? (unsigned int)limit.rlim_cur - s->fds_besides : 1;
}

unsigned int server_clients_max(const struct server *s)
{
	return s->loading && s->clients_first < s->cfg->maxclients ? s->clients_first
								   : s->cfg->maxclients;
}

int server_check(const struct config *cfg, char *err, size_t err_len)
{
	SSL_CTX *ctx = cfg->tls_port ? tls_context_new(cfg, err, err_len) : NULL;

	SSL_CTX_free(ctx);
	return cfg->tls_port && !ctx ? -EINVAL : 0;
}

/* Certificates are read before anything takes effect: the old ones stay if they are no good. */
static int prepare_tls(void *arg, const struct config *next, char *err, size_t err_len)
{
	struct server *s = arg;
	char why[512];

	if (!next->tls_port)
		return 0;
	s->tls_next = tls_context_new(next, why, sizeof(why));
	if (s->tls_next)
		return 0;
	log_warning("%s", why);
	snprintf(err, err_len, "Unable to update TLS configuration. Check server logs.");
	return -EINVAL;
}

static int apply(void *arg, const struct config *next, char *err, size_t err_len)
{
	struct server *s = arg;

	return s->opt.apply(s->opt.config_arg, next, err, err_len);
}

static void put_into_force(struct server *s, const struct config *next)
{
	s->cfg = next;
	store_append_limit(s->store, next->proto_max_bulk_len);
	clients_limit_arguments(s);
	s->opt.adopt(s->opt.config_arg, next); /* frees the one before */
}

int server_configure(struct server *s, const struct config_pair *pairs, unsigned int count,
		     unsigned int *failed, char *err, size_t err_len)
{
	const struct config_hooks hooks = { prepare_tls, s->opt.apply ? apply : NULL, s };
	const struct config *next;
	int ret = config_set_live(s->cfg, pairs, count, &hooks, &next, failed, err, err_len);

	if (ret) {
		SSL_CTX_free(s->tls_next);
		s->tls_next = NULL;
		return ret;
	}
	if (s->tls_next) {
		SSL_CTX_free(s->tls);
		s->tls = s->tls_next;
		s->tls_next = NULL;
		log_notice("new TLS connections get the certificate and settings as read now");
	}
	worker_wake(s->worker[0]); /* its loop may have other sockets and timers */
	put_into_force(s, next);
	log_set_level(next->loglevel);
	log_set_format(next->log_format);
	return 0;
}

/* An operator who has just added a user for a dashboard has to learn that, and how to undo it. */
static void say_udp(const char *user)
{
	if (!user)
		log_notice("UDP is open: no user closes it any more");
	else if (!strcmp(user, "default"))
		log_warning("UDP is closed for everybody: the user `default`, as which it acts, is "
			    "limited, and there is no udp-token");
	else
		log_warning(
			"UDP is closed for everybody: the user `%s` has rights to keys, and "
			"there is no udp-token (ACL SETUSER %s off, or resetkeys clearselectors, "
			"opens it)",
			user, user);
}

int server_close_udp(struct server *s, const char *user, char *err, size_t err_len)
{
	const struct config *next;
	int ret;

	if (!!user == s->cfg->closed_by_users)
		return 0;
	next = config_with_users(s->cfg, user, err, err_len);
	if (!next)
		return -EINVAL;
	ret = s->opt.apply ? s->opt.apply(s->opt.config_arg, next, err, err_len) : 0;
	if (ret) {
		config_free(next);
		return ret;
	}
	if (!next->udp_token_set && config_has_passwords(next) != config_has_passwords(s->cfg))
		say_udp(user);
	put_into_force(s, next);
	return 0;
}

/* When everything is open. */
static int fit_open_files(struct server *s, char *err, size_t err_len)
{
	unsigned int possible, failed;
	char text[16];
	const struct config_pair lower = { "maxclients", text };

	s->fds_besides = count_fds_besides(s);
	possible = server_clients_possible(s, s->cfg->maxclients);
	if (possible >= s->cfg->maxclients)
		return 0;
	log_warning("maxclients lowered to %u: too few files may be open (ulimit -n); %u are for "
		    "other things",
		    possible, s->fds_besides);
	snprintf(text, sizeof(text), "%u", possible);
	return server_configure(s, &lower, 1, &failed, err, err_len);
}

/*
 * Buffers of clients are allocated and freed often: large ones by mmap(), so that they are given
 * back at once.  Few threads allocate, so two arenas are enough.
 */
static void tune_allocator(void)
{
	if (!mallopt(M_MMAP_THRESHOLD, 4 << 20) || !mallopt(M_TRIM_THRESHOLD, 8 << 20) ||
	    !mallopt(M_ARENA_MAX, 2))
		log_debug("the allocator takes no options");
}

/* One CPU is left to what else the kernel and xkvd do: packets, maintenance, snapshots. */
static unsigned int default_threads(void)
{
	unsigned int cpus = cpus_usable();

	return cpus > 1 ? cpus - 1 : 1;
}

/* 0, or -ENOMEM with an error message. */
static int add_workers(struct server *s, unsigned int count, char *err, size_t err_len)
{
	while (s->worker_count < count && s->worker_count < WORKERS_MAX) {
		struct worker *w = worker_new(s);

		if (!w) {
			snprintf(err, err_len, "cannot make the event loop: %s", strerror(errno));
			return -ENOMEM;
		}
		s->worker[s->worker_count++] = w;
	}
	return 0;
}

static unsigned int threads_wanted(const struct server *s)
{
	if (s->cfg->io_threads > WORKERS_MAX)
		log_warning("io-threads: %u threads are used, not %u", WORKERS_MAX,
			    s->cfg->io_threads);
	return s->cfg->io_threads ?: default_threads();
}

bool server_serve_first(struct server *s)
{
	s->fds_besides = count_fds_besides(s) + FDS_LOADING;
	s->clients_first = server_clients_possible(s, s->cfg->maxclients);
	sockets_start(s);
	ev_run(s->loop, 0);
	return !s->ended;
}

static void on_first_end(struct ev_loop *loop, ev_async *w, int events)
{
	ev_break(loop, EVBREAK_ALL);
}

void server_end_first(struct server *s)
{
	ev_async_send(s->loop, &s->first_end);
}

int server_loaded(struct server *s, char *err, size_t err_len)
{
	int ret = add_workers(s, threads_wanted(s), err, err_len);

	if (ret)
		return ret;
	s->loading = false;
	workers_share(s);
	s->opt.executor->loaded(s);
	return 0;
}

void server_use_interfaces(struct server *s, unsigned int count)
{
	s->opt.attach_count = count;
}

void server_use_udp(struct server *s, struct udp *udp)
{
	s->udp = udp;
}

void server_use_flows(struct server *s, struct flows *flows)
{
	s->flows = flows;
}

void server_reset_answered(struct server *s)
{
	struct caller *next;

	if (!s->flows)
		return;
	flows_missed(s->flows);
	for (struct caller *c = client_next(s, NULL); c; c = next) {
		next = client_next(s, c);
		if (c->dead || !flow_requests(s->flows, &client_of(c)->flow))
			continue;
		connection_resets(&client_of(c)->stream.conn);
		if (c == s->busy)
			c->dead = true;
		else
			c->kind->close(c);
	}
}

struct server *server_new(const struct server_options *options, char *err, size_t err_len)
{
	struct server *s = calloc(1, sizeof(*s) + options->executor->server_bytes);

	if (!s) {
		snprintf(err, err_len, "out of memory");
		return NULL;
	}
	tune_allocator();
	s->opt = *options;
	s->cfg = options->cfg;
	s->store = options->store;
	store_append_limit(s->store, s->cfg->proto_max_bulk_len);
	s->lock = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
	s->loading = options->loads;
	if (add_workers(s, s->loading ? 1 : threads_wanted(s), err, err_len)) {
		server_free(s);
		return NULL;
	}
	s->running = s->worker[0];
	s->loop = s->worker[0]->loop;
	/* An xkvd that was killed may have left them held. */
	store_hold_writes(s->store, false, 0);
	sockets_init(s);
	ev_async_init(&s->first_end, on_first_end);
	if (s->loading)
		ev_async_start(s->loop, &s->first_end);
	s->opt.executor->start(s);
	s->started = monotonic_seconds();
	s->memory_whole = memory_whole();
	clients_limit_arguments(s);
	for (size_t i = 0; i < sizeof(s->run_id) - 1; i++)
		s->run_id[i] = "0123456789abcdef"[arc4random_uniform(16)];
	return s;
}

static void free_extras(struct server *s)
{
	while (s->extras) {
		struct extra *e = s->extras;

		s->extras = e->next;
		ev_check_stop(s->loop, &e->again);
		ev_idle_stop(s->loop, &e->no_wait);
		if (e->is_timer)
			ev_timer_stop(s->loop, &e->w.timer);
		else
			ev_io_stop(s->loop, &e->w.io);
		free(e);
	}
}

void server_free(struct server *s)
{
	if (!s)
		return;
	free_extras(s);
	sockets_close(s);
	SSL_CTX_free(s->tls);
	for (unsigned int i = 0; i < s->worker_count; i++)
		worker_close_clients(s->worker[i]);
	s->opt.executor->server_free(s);
	for (unsigned int i = 0; i < s->worker_count; i++)
		worker_free(s->worker[i]);
	hashtable_free(&s->ids);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

int server_run(struct server *s)
{
	char err[256];
	int ret;

	if (fit_open_files(s, err, sizeof(err))) {
		log_warning("%s", err);
		return 1;
	}
	ret = workers_start(s);
	if (ret)
		log_warning("cannot start all threads of io-threads: %s", strerror(ret));
	sockets_start(s);
	sd_notify(0, "READY=1\nSTATUS=Serving");
	if (s->cfg->port)
		log_notice("ready to accept connections on port %u", s->cfg->port);
	if (s->cfg->tls_port)
		log_notice("ready to accept TLS connections on port %u", s->cfg->tls_port);
	if (s->cfg->unixsocket[0])
		log_notice("The server is now ready to accept connections at %s",
			   s->cfg->unixsocket);
	if (!ret)
		ev_run(s->loop, 0);
	workers_end(s);
	if (s->cfg->unixsocket[0] && !s->succeeded)
		log_notice("Removing the unix socket file.");
	sockets_close(s);
	log_notice("xkvd is now ready to exit, bye bye...");
	return -ret;
}

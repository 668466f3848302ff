/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xkvd without BPF: the RESP front end, configuration, snapshots and log on the store of
 * userstore.c.  Takes xkvd's directives; needs no root.  RESPD_PAGES in the environment limits the
 * store's pages, so that it gets full.
 * SIGWINCH holds walks over the store, and lets them go on again, so that a
 * save lasts as long as a test wants.  RESPD_HOLD in the environment holds the load at the start,
 * which SIGWINCH then lets go on.
 * RESPD_AHEAD in the environment: seconds that its calendar is ahead of the clock.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "loader/database/commands.h"
#include "loader/housekeeping/housekeeping.h"
#include "loader/util/log.h"
#include "loader/net/server.h"
#include "loader/persist/snapshot.h"
#include "loader/proxy/proxy.h"
#include "engine.h"
#include "storefaults.h"
#include "userstore.h"

time_t __real_time(time_t *out);
time_t __wrap_time(time_t *out);

time_t __wrap_time(time_t *out)
{
	const char *ahead = getenv("RESPD_AHEAD");
	time_t now = __real_time(NULL) + (ahead ? atol(ahead) : 0);

	if (out)
		*out = now;
	return now;
}

static int fail(const char *text)
{
	fprintf(stderr, "respd: %s\n", text);
	return 1;
}

static int load(void *arg, const struct config *cfg, char *err, size_t err_len)
{
	uint64_t keys;
	int ret = snapshot_load(arg, cfg, &keys, err, (unsigned int)err_len);

	return ret == -ENOENT ? 0 : ret;
}

struct hold {
	int fd;
	bool held, load_held;
};

static bool on_hold_signal(void *arg)
{
	struct signalfd_siginfo info;
	struct hold *h = arg;

	if (read(h->fd, &info, sizeof(info)) != sizeof(info))
		return false;
	if (h->load_held) {
		h->load_held = false;
		faults_hold_loads(false);
		return false;
	}
	h->held = !h->held;
	faults_hold_scans(h->held);
	log_notice("walks are %s", h->held ? "held" : "released");
	return false;
}

/* Before any thread starts, so that every thread has the signal blocked. */
static int hold_fd(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGWINCH);
	if (sigprocmask(SIG_BLOCK, &set, NULL))
		return -1;
	return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

struct respd {
	struct store *store;
	struct server *server;
	const struct config **cfg;
	bool loads;
};

static void adopt(void *arg, const struct config *next)
{
	struct respd *d = arg;

	if (!d->loads)
		store_limit(d->store, next->maxmemory, next->maxmemory_policy);
	config_free(*d->cfg);
	*d->cfg = next;
	if (d->server && !d->loads)
		server_follow_saves(d->server);
}

/* As xkvd does; what is set meanwhile is in force afterwards. */
static int load_and_serve(struct respd *d)
{
	char err[512];
	int ret = server_load(d->server, load, d->store, err, sizeof(err));

	if (ret == -ECANCELED)
		return ret;
	if (ret)
		return fail(err);
	d->loads = false;
	store_limit(d->store, (*d->cfg)->maxmemory, (*d->cfg)->maxmemory_policy);
	return housekeeping_serve(d->server) ? fail("out of memory") : 0;
}

static int serve(struct store *st, const struct config **cfg, const char *file, int signal)
{
	struct respd d = { .store = st,
			   .cfg = cfg,
			   .loads = !(*cfg)->upstream[0] && snapshot_exists(*cfg) };
	struct server_options options = { .cfg = *cfg,
					  .store = st,
					  .executor = proxy_executor(commands_executor(), *cfg),
					  .config_file = file,
					  .loads = d.loads,
					  .adopt = adopt,
					  .config_arg = &d };
	char err[512];
	struct hold hold = { .fd = signal, .load_held = d.loads && getenv("RESPD_HOLD") };
	struct server *s = server_new(&options, err, sizeof(err));
	int ret;

	if (!s)
		return fail(err);
	d.server = s;
	faults_hold_loads(hold.load_held);
	proxy_start(s);
	if (d.loads) /* said before it listens: tests wait for both */
		log_notice("loading the data: until it is there, clients get LOADING");
	if (housekeeping_begin(s))
		ret = fail("out of memory");
	else if (hold.fd < 0 || server_add_fd(s, hold.fd, USES_CONTEXT, on_hold_signal, &hold))
		ret = fail("cannot catch SIGWINCH");
	else
		ret = server_listen(s, err, sizeof(err)) ? fail(err) : 0;
	if (!ret && d.loads)
		ret = load_and_serve(&d);
	if (!ret)
		ret = server_run(s);
	housekeeping_end(s);
	server_free(s);
	close(hold.fd);
	return ret == -ECANCELED ? 0 : ret;
}

int main(int argc, char *argv[])
{
	const char *file = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;
	int first = file ? 2 : 1, signal, ret;
	struct config_builder builder;
	const struct config *cfg;
	struct store *st;
	char err[512];

	if (config_begin(&builder, NULL))
		return fail("out of memory");
	if ((file && config_read_file(&builder, file, err, sizeof(err))) ||
	    config_read_args(&builder, argc - first, argv + first, err, sizeof(err)) ||
	    commands_rename(&builder, err, sizeof(err)) ||
	    commands_users(&builder, err, sizeof(err)) ||
	    proxy_check(builder.cfg, err, sizeof(err))) {
		config_abandon(&builder);
		return fail(err);
	}
	cfg = config_finish(&builder, err, sizeof(err));
	if (!cfg)
		return fail(err);
	log_set_level(cfg->loglevel);
	log_set_format(cfg->log_format);
	if (log_open(cfg->logfile))
		return fail("cannot open the log file");
	signal = hold_fd();
	st = userstore_new();
	if (!st)
		return fail("out of memory");
	if (getenv("RESPD_PAGES"))
		user_bpf_limit_pages(atoi(getenv("RESPD_PAGES")));
	store_limit(st, cfg->maxmemory, cfg->maxmemory_policy);
	ret = serve(st, &cfg, file, signal);
	userstore_free(st);
	config_free(cfg);
	return ret;
}

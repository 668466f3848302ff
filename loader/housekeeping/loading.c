/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Loading the data while clients are served: few of their commands are executed, and to the others
 * the reply is -LOADING (database/commands.c).
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "housekeeping_impl.h"
#include "persist/loading.h"
#include "persist/writelog.h"
#include "util/log.h"
#include "util/metrics.h"
#include "util/thread.h"

#define TELL_SECONDS 5 /* between lines of the log */

struct load {
	struct server *srv;
	const struct config *cfg; /* as it was at the beginning: CONFIG SET may replace it */
	load_fn *fn;
	void *arg;
	char *err;
	size_t err_len;
	int ret;
	pthread_t thread;
	ev_timer tell;
};

static void *load_main(void *arg)
{
	struct load *l = arg;

	l->ret = l->fn(l->arg, l->cfg, l->err, l->err_len);
	server_end_first(l->srv);
	return NULL;
}

static void on_tell(struct ev_loop *loop, ev_timer *w, int events)
{
	struct loading_info info;
	double percent;

	loading_status(&info);
	if (!info.bytes)
		return;
	percent = metrics_percent(info.loaded, info.bytes);
	log_notice("loading: %.0f %% of %" PRIu64 " MiB, about %.0f s are left", percent,
		   info.bytes >> 20, info.left);
	sd_notifyf(0, "STATUS=Loading, %.0f %%", percent);
}

/* Serves while the thread loads. */
static int serve_meanwhile(struct load *l)
{
	struct server *s = l->srv;
	int ret = thread_without_signals(&l->thread, load_main, l);

	if (ret) {
		snprintf(l->err, l->err_len, "no thread to load the data: %s", strerror(-ret));
		return ret;
	}
	ev_timer_init(&l->tell, on_tell, TELL_SECONDS, TELL_SECONDS);
	ev_timer_start(s->loop, &l->tell);
	if (!server_serve_first(s))
		writelog_end_load();
	pthread_join(l->thread, NULL);
	ev_timer_stop(s->loop, &l->tell);
	if (!s->ended)
		return l->ret;
	log_notice("ended before the data was loaded: it stays on the disk as it was");
	return -ECANCELED;
}

int server_load(struct server *s, load_fn *fn, void *arg, char *err, size_t err_len)
{
	struct load l = { .srv = s, .fn = fn, .arg = arg, .err = err, .err_len = err_len };
	int ret;

	l.cfg = config_with_users(s->cfg, s->cfg->closed_by_users, err, err_len);
	if (!l.cfg)
		return -ENOMEM;
	ret = serve_meanwhile(&l);
	config_free(l.cfg);
	return ret ? ret : server_loaded(s, err, err_len);
}

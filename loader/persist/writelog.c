// SPDX-License-Identifier: BSD-2-Clause
#include "writelog.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "events/consumer.h"
#include "loading.h"
#include "store/feed.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"
#include "writelog_impl.h"

#define LATE_NS 2000000000 /* not on the disk for longer: writes wait ... */

struct writelog writelog = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.syncing = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
	.sync_ends = PTHREAD_COND_INITIALIZER,
	.gathering.complete = PTHREAD_COND_INITIALIZER,
	.dir_fd = -1,
	.fd = -1,
};

bool writelog_wait_until(pthread_cond_t *cond, uint64_t until_ns)
{
	const struct timespec ts = { (time_t)(until_ns / 1000000000),
				     (long)(until_ns % 1000000000) };

	return !pthread_cond_clockwait(cond, &writelog.lock, CLOCK_MONOTONIC, &ts);
}

bool writelog_is_broken(void)
{
	return writelog.damages != writelog.mended;
}

void writelog_note_damage(void)
{
	writelog.damages++;
	if (writelog.consumer)
		feed_break(consumer_reader(writelog.consumer), true);
}

void writelog_tell(writelog_tell_fn *fn, void *arg)
{
	pthread_mutex_lock(&writelog.lock);
	writelog.tell = fn;
	writelog.tell_arg = arg;
	pthread_mutex_unlock(&writelog.lock);
}

void writelog_notify(bool only_replies)
{
	pthread_mutex_lock(&writelog.lock);
	if (writelog.tell)
		writelog.tell(writelog.tell_arg, only_replies);
	pthread_mutex_unlock(&writelog.lock);
}

__attribute__((format(printf, 1, 2))) void writelog_note_failure(const char *fmt, ...)
{
	char text[sizeof(writelog.info.error)];
	bool first;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&writelog.lock);
	first = writelog.info.write_ok;
	writelog.info.write_ok = false;
	memcpy(writelog.info.error, text, sizeof(text));
	pthread_mutex_unlock(&writelog.lock);
	if (first)
		writelog_notify(false);
	if (first)
		log_warning("write log: %s; writes are refused until it can be written", text);
}

void writelog_note_success(void)
{
	bool failed;

	pthread_mutex_lock(&writelog.lock);
	failed = !writelog.info.write_ok && !writelog_is_broken();
	if (failed) {
		writelog.info.write_ok = true;
		writelog.info.error[0] = '\0';
	}
	pthread_mutex_unlock(&writelog.lock);
	if (failed) {
		writelog_notify(false);
		log_notice("write log: it is written again");
	}
}

static uint64_t late_ns(void)
{
	uint64_t since = writelog.sync_ns ? writelog.sync_ns : writelog.unsynced_ns,
		 now = monotonic_ns();

	if (writelog.writing_ns && (!since || writelog.writing_ns < since))
		since = writelog.writing_ns;
	return since && now > since ? now - since : 0;
}

uint64_t writelog_too_late_ns(void)
{
	bool rests = writelog.no_sync_on_rewrite && writelog.rewrite_began_ns;
	uint64_t late = late_ns();

	return writelog.appendfsync != APPENDFSYNC_NO && !rests && late > LATE_NS ? late : 0;
}

bool writelog_is_late(void)
{
	bool late;

	pthread_mutex_lock(&writelog.lock);
	late = writelog.on && writelog_too_late_ns();
	pthread_mutex_unlock(&writelog.lock);
	return late;
}

void writelog_refuses(char text[256])
{
	text[0] = '\0';
	pthread_mutex_lock(&writelog.lock);
	if (writelog.on && !writelog.info.write_ok)
		snprintf(text, 256, "%s", writelog.info.error);
	else if (writelog.on && writelog_too_late_ns() > STUCK_NS)
		snprintf(text, 256, "the disk has not taken the write log for %.1f s",
			 (double)late_ns() / 1e9);
	pthread_mutex_unlock(&writelog.lock);
}

void writelog_status(struct writelog_info *out)
{
	pthread_mutex_lock(&writelog.lock);
	*out = writelog.info;
	out->on = writelog.on;
	out->rewriting = writelog.rewrite_began_ns;
	out->rewrite_seconds =
		out->rewriting ? (double)(monotonic_ns() - writelog.rewrite_began_ns) / 1e9 : -1;
	out->syncing = writelog.sync_ns;
	out->late_ns = writelog.on ? writelog_too_late_ns() : 0;
	pthread_mutex_unlock(&writelog.lock);
}

void writelog_functions(void)
{
	uint64_t until = monotonic_ns() + RETRY_NS, wanted;

	pthread_mutex_lock(&writelog.lock);
	wanted = ++writelog.functions;
	if (writelog.on && writelog.consumer) {
		consumer_wake(writelog.consumer);
		while (writelog.safe.functions < wanted && writelog.info.write_ok &&
		       writelog_wait_until(&writelog.changed, until))
			;
	}
	pthread_mutex_unlock(&writelog.lock);
}

static int start_threads(char *err, size_t err_len)
{
	int ret;

	writelog.closing = writelog.hurries = false;
	ret = thread_without_signals(&writelog.sync_thread, writelog_sync_main, NULL);
	writelog.sync_runs = !ret;
	if (!ret)
		ret = consumer_start(writelog.consumer);
	if (ret)
		snprintf(err, err_len, "no thread for the write log: %s", strerror(-ret));
	return ret;
}

/* A log that was loaded, or gone on with, has its base. */
static int begin_files(bool serving, char *err, size_t err_len)
{
	int ret = writelog.info.waits_for_base ? writelog_rewrite() : 0;

	pthread_mutex_lock(&writelog.lock);
	while (!ret && !serving && writelog.rewrite_began_ns)
		pthread_cond_wait(&writelog.changed, &writelog.lock);
	if (!ret && !serving)
		ret = writelog.info.rewrite_error;
	pthread_mutex_unlock(&writelog.lock);
	if (ret)
		snprintf(err, err_len, "the write log in %s cannot be begun: %s", writelog.path,
			 strerror(-ret));
	return ret;
}

/* Reads are served while the disk is full. */
static int begin_behind(char *err, size_t err_len)
{
	int ret;

	writelog.manifest.restored = false;
	ret = increment_go_on_behind();
	if (writelog_is_full(ret))
		return 0;
	if (ret)
		snprintf(err, err_len, "the write log in %s cannot be written: %s", writelog.path,
			 strerror(-ret));
	return ret;
}

static int writelog_begin(struct store *st, const struct config *cfg, bool serving, char *err,
			  size_t err_len)
{
	int ret = writelog.resumed ? 0 : writelog_begin_anew(st, cfg, err, err_len);

	writelog.st = st;
	if (writelog.loaded)
		writelog.others = writelog_size_without(0);
	pthread_mutex_lock(&writelog.lock); /* clients may look at it: INFO */
	writelog.info =
		(struct writelog_info){ .write_ok = true,
					.last_rewrite_seconds = -1,
					.waits_for_base = !writelog.resumed && !writelog.loaded,
					.written = writelog.now.position,
					.size = writelog.others + writelog.now.size };
	writelog.info.size_at_base = writelog.info.size;
	writelog.failed = writelog.in_txn = writelog.holds = false;
	writelog.switching = SWITCH_NONE;
	writelog.write_error = 0;
	writelog.damages = writelog.mended = 0;
	writelog.functions = writelog.safe.functions = writelog.now.functions = 0;
	writelog.bases = writelog.safe.bases = writelog.now.bases = 0;
	writelog.retry_ns = writelog.unsynced_ns = writelog.sync_ns = writelog.writing_ns = 0;
	pthread_mutex_unlock(&writelog.lock);
	atomic_store(&writelog.rewrite_stop, false);
	if (loading_is_stopped()) /* looked at after that: writelog_end_load() is not missed */
		atomic_store(&writelog.rewrite_stop, true);
	if (!ret && writelog.loaded)
		ret = begin_behind(err, err_len);
	if (!ret && writelog.fd >= 0)
		ret = writelog_sync_now();
	if (!ret)
		ret = start_threads(err, err_len);
	pthread_mutex_lock(&writelog.lock);
	writelog.on = !ret;
	pthread_mutex_unlock(&writelog.lock);
	if (!ret)
		ret = begin_files(serving, err, err_len);
	if (ret)
		writelog_close(false);
	return ret;
}

int writelog_configure(struct store *st, const struct config *cfg, bool serving, char *err,
		       size_t err_len)
{
	int ret = 0;

	pthread_mutex_lock(&writelog.lock);
	if (writelog.appendfsync != cfg->appendfsync && writelog.unsynced_ns)
		writelog.unsynced_ns = monotonic_ns();
	writelog.appendfsync = cfg->appendfsync;
	writelog.timestamps = cfg->aof_timestamps;
	atomic_store(&writelog.compress, cfg->rdbcompression);
	writelog.no_sync_on_rewrite = cfg->no_sync_on_rewrite;
	writelog.auto_percent = cfg->auto_rewrite_percent;
	writelog.auto_min = cfg->auto_rewrite_min;
	pthread_mutex_unlock(&writelog.lock);
	if (cfg->appendonly && !writelog.on)
		ret = writelog_begin(st, cfg, serving, err, err_len);
	if (!cfg->appendonly && writelog.on)
		writelog_close(false);
	atomic_store(&writelog.awaited, writelog.on && cfg->appendfsync == APPENDFSYNC_ALWAYS);
	writelog_notify(false); /* replies that wait may have nothing to wait for any more */
	return ret;
}

void writelog_end_load(void)
{
	loading_stop();
	atomic_store(&writelog.rewrite_stop, true);
}

/* Until what has changed so far is in the file. */
static void drain(void)
{
	uint64_t until = monotonic_ns() + CLOSE_NS, head = feed_head(writelog.st);

	consumer_wake(writelog.consumer);
	pthread_mutex_lock(&writelog.lock);
	while (writelog.info.written < head && writelog.info.write_ok &&
	       writelog_wait_until(&writelog.changed, until))
		;
	pthread_mutex_unlock(&writelog.lock);
}

void writelog_close(bool keep)
{
	if (writelog.on && keep)
		drain();
	atomic_store(&writelog.awaited, false);
	pthread_mutex_lock(&writelog.lock);
	writelog.on = false;
	writelog.closing = true;
	pthread_cond_broadcast(&writelog.changed);
	pthread_cond_broadcast(&writelog.sync_ends);
	pthread_mutex_unlock(&writelog.lock);
	atomic_store(&writelog.rewrite_stop, true);
	writelog_rewrite_reap();
	consumer_stop(writelog.consumer);
	if (writelog.sync_runs)
		pthread_join(writelog.sync_thread, NULL);
	writelog.sync_runs = writelog.resumed = writelog.loaded = false;
	if (writelog.fd >= 0)
		writelog_sync_now();
	consumer_close(writelog.consumer, keep);
	writelog.consumer = NULL;
	writelog_close_files();
}

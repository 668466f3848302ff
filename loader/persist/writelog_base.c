// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "events/consumer.h"
#include "image.h"
#include "snapshot.h"
#include "store/feed.h"
#include "store/store.h"
#include "util/clock.h"
#include "util/files.h"
#include "util/log.h"
#include "util/thread.h"
#include "writelog_impl.h"

#define REBASE_NS  5000000000  /* longest pause between two tries of a base that is needed */
#define REWRITE_NS 60000000000 /* the same, of one that is not */
#define TEMP_BASE  "temp-base.rdb"

static int write_image(struct image *im, int fd)
{
	struct store_ctx *ctx = store_ctx_get(writelog.st);
	int ret = ctx ? 0 : -errno;
	void *records = snapshot_functions(&im->functions_len);

	im->fd = fd;
	im->functions = records;
	if (!records)
		ret = -ENOMEM;
	if (!ret)
		ret = image_write(im, writelog.st, ctx);
	free(records);
	store_ctx_put(ctx);
	if (!ret && fsync(fd))
		ret = -errno;
	return ret;
}

/* As cut_user.moment. */
static uint64_t take_moment(void *image)
{
	struct image *im = image;

	store_numbers(writelog.st, im->number);
	memcpy(writelog.base_number, im->number, sizeof(im->number));
	writelog.base_position = feed_head(writelog.st);
	return writelog.base_position;
}

static int write_base(uint64_t (*moment)(void *image))
{
	struct image im = { .base = true,
			    .moment = moment,
			    .compress = atomic_load(&writelog.compress),
			    .stop = &writelog.rewrite_stop,
			    .keys = &writelog.rewrite_keys };
	int fd = file_openat(writelog.dir_fd, TEMP_BASE, O_WRONLY | O_CREAT | O_TRUNC);
	int ret = fd < 0 ? fd : 0;

	memcpy(im.number, writelog.base_number, sizeof(im.number));
	if (!ret)
		ret = write_image(&im, fd);
	if (fd >= 0 && close(fd) && !ret)
		ret = -errno;
	return ret;
}

/* The files of the log that begins with the new base; those before it are not needed any more. */
static int next_manifest(struct manifest *next, const char *base, uint64_t base_seq)
{
	const struct manifest *m = &writelog.manifest;
	int ret = manifest_add(next, base, base_seq, 'b');

	for (unsigned int i = 0; i < m->count && !ret; i++)
		if (m->file[i].type != 'i' || m->file[i].seq < writelog.base_incr)
			ret = manifest_add(next, m->file[i].name, m->file[i].seq, 'h');
	for (unsigned int i = 0; i < m->count && !ret; i++)
		if (m->file[i].type == 'i' && m->file[i].seq >= writelog.base_incr)
			ret = manifest_add(next, m->file[i].name, m->file[i].seq, 'i');
	return ret;
}

/* An increment that was waiting for the base gets its name. */
static int name_increment(struct manifest *next)
{
	char name[NAME_MAX + 1];

	if (manifest_find(next, 'i'))
		return 0;
	increment_name(name, writelog.base_incr);
	if (renameat(writelog.dir_fd, TEMP_INCR, writelog.dir_fd, name))
		return -errno;
	return manifest_add(next, name, writelog.base_incr, 'i');
}

/* Puts the base that was written into force, with the increments that follow it. */
static int use_base(void)
{
	uint64_t seq = manifest_last(&writelog.manifest, 'b') + 1;
	struct manifest next = { 0 };
	char name[NAME_MAX + 1];
	int ret;

	snprintf(name, sizeof(name), "%s.%" PRIu64 ".base.rdb", writelog.file, seq);
	if (renameat(writelog.dir_fd, TEMP_BASE, writelog.dir_fd, name))
		return -errno;
	ret = next_manifest(&next, name, seq);
	if (!ret)
		ret = name_increment(&next);
	if (!ret && (writelog_sync_now() || fsync(writelog.dir_fd)))
		ret = -EIO;
	if (!ret)
		ret = writelog_put_manifest(&next);
	if (ret) {
		unlinkat(writelog.dir_fd, name, 0);
		manifest_free(&next);
		return ret;
	}
	manifest_free(&writelog.manifest);
	writelog.manifest = next;
	writelog_forget_history();
	return 0;
}

static void conclude(int ret)
{
	struct writelog_info *info = &writelog.info;
	uint64_t now = monotonic_ns(), others = writelog_size_of_others();
	double seconds;
	bool known;

	pthread_mutex_lock(&writelog.lock);
	known = info->rewrite_error == ret;
	seconds = (double)(now - writelog.rewrite_began_ns) / 1e9;
	info->last_rewrite_seconds = seconds;
	info->rewrite_error = ret;
	info->rewrites++;
	info->rewrites_failed = ret ? info->rewrites_failed + 1 : 0;
	if (!ret) {
		info->waits_for_base = false;
		writelog.mended = writelog.mends;
		info->size += others - writelog.others;
		info->size_at_base = info->size;
		writelog.others = others;
		writelog.bases++;
		if (writelog.consumer) {
			feed_break(consumer_reader(writelog.consumer), writelog_is_broken());
			consumer_wake(writelog.consumer);
		}
	}
	writelog.rewrite_began_ns = 0;
	writelog.unsynced_ns = writelog.unsynced_ns ? now : 0;
	pthread_cond_broadcast(&writelog.changed);
	pthread_mutex_unlock(&writelog.lock);
	if (ret && ret != -ECANCELED && !known)
		log_warning("write log: no new base in %s: %s", writelog.path,
			    ret == -EEXIST ? ANOTHER_LOG : strerror(-ret));
	if (ret)
		return;
	writelog_notify(false);
	writelog_note_success();
	log_notice("write log: a base of %" PRIu64 " keys written to %s in %.3f s",
		   atomic_load(&writelog.rewrite_keys), writelog.path, seconds);
}

/* Has the consumer begin an increment, which the base is to be followed by, or rest. */
static int switch_and_wait(enum switching how)
{
	int ret;

	pthread_mutex_lock(&writelog.lock);
	writelog.switching = how;
	pthread_mutex_unlock(&writelog.lock);
	consumer_wake(writelog.consumer);
	pthread_mutex_lock(&writelog.lock);
	while (writelog.switching && !writelog.closing)
		pthread_cond_wait(&writelog.changed, &writelog.lock);
	ret = writelog.switching ? -ECANCELED : writelog.switch_ret;
	pthread_mutex_unlock(&writelog.lock);
	return ret;
}

/*
 * The walk has met changes, and one half of a transaction, perhaps, that the consumer has not
 * written yet: the base must not be in force before it has.  An error: it cannot.
 */
static int wait_for_changes(void)
{
	uint64_t head = feed_head(writelog.st);
	int ret;

	consumer_wake(writelog.consumer);
	pthread_mutex_lock(&writelog.lock);
	while (writelog.info.written < head && !writelog.write_error && !writelog.closing)
		writelog_wait_until(&writelog.changed, monotonic_ns() + RETRY_NS);
	ret = writelog.closing		     ? -ECANCELED
	      : writelog.info.written < head ? writelog.write_error
					     : 0;
	pthread_mutex_unlock(&writelog.lock);
	return ret;
}

static int rewrite_by_walk(void)
{
	bool pending;
	int ret;

	pthread_mutex_lock(&writelog.lock);
	pending = writelog.info.waits_for_base || writelog_is_broken();
	pthread_mutex_unlock(&writelog.lock);
	ret = switch_and_wait(pending ? SWITCH_PENDING : SWITCH_NEXT);
	if (!ret)
		ret = write_base(NULL);
	if (!ret)
		ret = wait_for_changes();
	return ret ? ret : use_base();
}

/* Puts a base of one moment into force, with an increment that begins there. */
static int use_base_of_moment(void)
{
	const struct replay_tail none = { 0 };
	char name[NAME_MAX + 1];
	uint64_t size;
	uint32_t sum;
	int fd, ret;

	memcpy(writelog.now.number, writelog.base_number, sizeof(writelog.now.number));
	fd = increment_make(TEMP_INCR, writelog.base_position, &none, &size, &sum);
	writelog.base_incr = manifest_last(&writelog.manifest, 'i') + 1;
	ret = fd < 0 ? fd : use_base();
	if (!ret) {
		increment_use(fd, size, sum, writelog.base_position);
		feed_seek(consumer_reader(writelog.consumer), writelog.base_position);
		writelog.retry_ns = 0;
		return 0;
	}
	writelog.now = writelog.safe;
	if (fd >= 0)
		close(fd);
	increment_name(name, writelog.base_incr);
	unlinkat(writelog.dir_fd, TEMP_INCR, 0);
	unlinkat(writelog.dir_fd, name, 0);
	return ret;
}

/*
 * What the consumer has read cannot be written, as on a full disk.  A base that makes room must not
 * depend on that: it is of one moment.  Until it is in force, nothing changes for the consumer,
 * which rests: it might take the room.
 */
static int rewrite_of_moment(void)
{
	int ret = switch_and_wait(SWITCH_HOLD);

	if (!ret)
		ret = write_base(take_moment);
	if (!ret)
		ret = use_base_of_moment();
	pthread_mutex_lock(&writelog.lock);
	writelog.holds = false;
	pthread_mutex_unlock(&writelog.lock);
	return ret;
}

/* The increment has to be where it was: a directory that is gone is made by rewrite_by_walk(). */
static bool cannot_write(void)
{
	bool failed;

	pthread_mutex_lock(&writelog.lock);
	failed = writelog.write_error;
	pthread_mutex_unlock(&writelog.lock);
	pthread_mutex_lock(&writelog.syncing);
	failed = failed && !writelog_find_files();
	pthread_mutex_unlock(&writelog.syncing);
	return failed;
}

static void *rewrite_main(void *arg)
{
	bool stuck = cannot_write();
	int ret = 0;

	if (!stuck) {
		thread_steps_back();
		ret = rewrite_by_walk();
	}
	if (stuck || (ret && ret != -ECANCELED && cannot_write()))
		ret = rewrite_of_moment();
	if (ret)
		unlinkat(writelog.dir_fd, TEMP_BASE, 0);
	conclude(ret);
	return NULL;
}

void writelog_rewrite_reap(void)
{
	if (!writelog.rewrite_joinable)
		return;
	pthread_join(writelog.rewrite_thread, NULL);
	writelog.rewrite_joinable = false;
}

int writelog_rewrite(void)
{
	int ret;

	if (!writelog.on)
		return -ENOENT;
	pthread_mutex_lock(&writelog.lock);
	if (writelog.rewrite_began_ns) {
		pthread_mutex_unlock(&writelog.lock);
		return -EINPROGRESS;
	}
	writelog.rewrite_began_ns = writelog.rewrite_tried_ns = monotonic_ns();
	pthread_mutex_unlock(&writelog.lock);
	writelog_rewrite_reap();
	atomic_store(&writelog.rewrite_keys, 0);
	ret = thread_without_signals(&writelog.rewrite_thread, rewrite_main, NULL);
	writelog.rewrite_joinable = !ret;
	if (!ret)
		return 0;
	log_repeated("write log: no thread for the rewrite can be started: %s", strerror(-ret));
	pthread_mutex_lock(&writelog.lock);
	writelog.rewrite_began_ns = 0;
	pthread_mutex_unlock(&writelog.lock);
	return ret;
}

/* With the lock.  On a disk that is full a small log is worth it, too. */
static bool has_grown(void)
{
	uint64_t base = writelog.info.size_at_base ? writelog.info.size_at_base : 1;
	uint64_t size = writelog.info.size,
		 least = writelog_is_full(writelog.write_error) ? 0 : writelog.auto_min;

	return writelog.auto_percent && size > least && size > base &&
	       (size - base) * 100 / base >= writelog.auto_percent;
}

/* Since the last base was begun: longer after each that has failed.  With the lock. */
static bool has_paused(uint64_t most_ns)
{
	uint64_t failed = writelog.info.rewrites_failed;
	uint64_t pause = (uint64_t)RETRY_NS << (failed < 6 ? failed : 6);

	return monotonic_ns() - writelog.rewrite_tried_ns > (pause < most_ns ? pause : most_ns);
}

void writelog_second(void)
{
	bool needed, grown;

	if (!writelog.on)
		return;
	pthread_mutex_lock(&writelog.lock);
	needed = (writelog.info.waits_for_base || writelog_is_broken()) && has_paused(REBASE_NS);
	grown = has_grown() && has_paused(REWRITE_NS);
	pthread_mutex_unlock(&writelog.lock);
	if (grown && !writelog.rewrite_began_ns)
		log_notice("write log: it has grown, and gets a new base");
	if (needed || grown)
		writelog_rewrite();
}

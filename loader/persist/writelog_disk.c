// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "events/consumer.h"
#include "store/feed.h"
#include "util/clock.h"
#include "writelog_impl.h"

bool writelog_is_wanted(void)
{
	return writelog.info.synced < writelog.wanted &&
	       writelog.info.synced < writelog.info.written && !writelog_is_broken();
}

int writelog_sync_now(void)
{
	uint64_t written, size, began = monotonic_ns();
	bool wanted;
	int ret;

	pthread_mutex_lock(&writelog.syncing);
	pthread_mutex_lock(&writelog.lock);
	written = writelog.info.written;
	size = writelog.safe.size;
	writelog.sync_ns = writelog.unsynced_ns;
	writelog.unsynced_ns = 0;
	pthread_mutex_unlock(&writelog.lock);
	ret = fdatasync(writelog.fd) ? -errno : 0;
	pthread_mutex_lock(&writelog.lock);
	writelog.sync_ns = 0;
	wanted = writelog_is_wanted(); /* maybe only since it began */
	if (!ret) {
		writelog.info.synced = written;
		writelog.synced_size = size;
	}
	if (ret)
		writelog_note_damage();
	writelog.info.delayed += monotonic_ns() - began > SYNC_NS;
	pthread_cond_broadcast(&writelog.changed);
	pthread_mutex_unlock(&writelog.lock);
	pthread_mutex_unlock(&writelog.syncing);
	if (ret)
		writelog_note_failure("syncing %s failed: %s; a new base is needed", writelog.path,
				      strerror(-ret));
	else if (wanted)
		writelog_notify(false);
	return ret;
}

/* Is what is on the disk a whole log, and as far as this position?  With the lock. */
static bool is_synced(uint64_t position)
{
	return writelog.info.synced >= position && !writelog.info.waits_for_base &&
	       !writelog_is_broken();
}

/* The consumer is not disturbed by each that comes.  With the lock. */
static void one_more_waits(unsigned int replies)
{
	struct gathering *g = &writelog.gathering;

	g->count += replies;
	if (g->waits && g->count >= g->enough)
		pthread_cond_signal(&g->complete);
	if (!g->waits && writelog.consumer)
		consumer_wake(writelog.consumer);
}

uint64_t writelog_awaits(unsigned int replies, bool *writers)
{
	uint64_t head;

	if (!atomic_load(&writelog.awaited))
		return 0;
	head = feed_head(writelog.st);
	pthread_mutex_lock(&writelog.lock);
	*writers = !writelog.info.write_ok || writelog_too_late_ns();
	if (is_synced(head))
		head = 0;
	else if (replies)
		one_more_waits(replies);
	pthread_mutex_unlock(&writelog.lock);
	return head;
}

bool writelog_is_synced(uint64_t position)
{
	bool synced;

	pthread_mutex_lock(&writelog.lock);
	synced = is_synced(position) || !atomic_load(&writelog.awaited);
	pthread_mutex_unlock(&writelog.lock);
	return synced;
}

uint64_t writelog_sync_soon(void)
{
	uint64_t head =
		writelog.st ? feed_head(writelog.st) : 0; /* NULL: there has never been a log */

	pthread_mutex_lock(&writelog.lock);
	writelog.wanted = head;
	if (writelog.consumer && !is_synced(head))
		consumer_wake(writelog.consumer);
	if (writelog_is_wanted())
		pthread_cond_signal(&writelog.sync_ends);
	pthread_cond_signal(&writelog.gathering.complete);
	pthread_mutex_unlock(&writelog.lock);
	return head;
}

bool writelog_has(uint64_t position)
{
	bool has;

	pthread_mutex_lock(&writelog.lock);
	has = writelog.on && is_synced(position);
	pthread_mutex_unlock(&writelog.lock);
	return has;
}

bool writelog_wait(void)
{
	uint64_t until = monotonic_ns() + CLOSE_NS, position;
	bool writers;

	position = writelog_awaits(1, &writers);
	pthread_mutex_lock(&writelog.lock);
	while (position && !is_synced(position) && writelog_wait_until(&writelog.changed, until))
		;
	if (is_synced(position))
		position = 0;
	pthread_mutex_unlock(&writelog.lock);
	return !position;
}

static bool sync_is_due(void)
{
	return writelog.unsynced_ns && writelog.appendfsync == APPENDFSYNC_EVERYSEC &&
	       !(writelog.no_sync_on_rewrite && writelog.rewrite_began_ns);
}

int writelog_find_files(void)
{
	struct stat there, ours;

	if (stat(writelog.path, &there) || fstat(writelog.dir_fd, &ours))
		return -errno;
	if (there.st_dev != ours.st_dev || there.st_ino != ours.st_ino)
		return -ENOENT;
	if (writelog.fd >= 0 && fstat(writelog.fd, &ours))
		return -errno;
	return writelog.fd >= 0 && !ours.st_nlink ? -ENOENT : 0;
}

static void look_for_files(void)
{
	bool known;
	int ret;

	pthread_mutex_lock(&writelog.syncing);
	ret = writelog_find_files();
	pthread_mutex_unlock(&writelog.syncing);
	pthread_mutex_lock(&writelog.lock);
	known = writelog_is_broken();
	if (ret && !known)
		writelog_note_damage();
	pthread_mutex_unlock(&writelog.lock);
	if (!ret || known)
		return;
	if (ret == -ENOENT)
		writelog_note_failure(
			"the directory %s, or a file in it, is gone; a new base is needed",
			writelog.path);
	else
		writelog_note_failure(
			"the directory %s cannot be looked at: %s; a new base is needed",
			writelog.path, strerror(-ret));
}

void *writelog_sync_main(void *arg)
{
	uint64_t next = monotonic_ns() + SYNC_NS;
	bool wanted, due;

	pthread_mutex_lock(&writelog.lock);
	while (!writelog.closing) {
		wanted = writelog_is_wanted();
		if (!wanted && monotonic_ns() < next) {
			writelog_wait_until(&writelog.sync_ends, next);
			continue;
		}
		next = monotonic_ns() + SYNC_NS;
		due = wanted || sync_is_due();
		pthread_mutex_unlock(&writelog.lock);
		if (due)
			writelog_sync_now();
		look_for_files();
		pthread_mutex_lock(&writelog.lock);
	}
	pthread_mutex_unlock(&writelog.lock);
	return NULL;
}

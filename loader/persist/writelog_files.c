// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "events/consumer.h"
#include "replay.h"
#include "store/feed.h"
#include "store/open.h"
#include "store/store.h"
#include "util/clock.h"
#include "util/files.h"
#include "util/log.h"
#include "writelog_impl.h"

bool writelog_is_full(int error)
{
	return error == -ENOSPC || error == -EDQUOT;
}

void increment_name(char name[NAME_MAX + 1], uint64_t seq)
{
	snprintf(name, NAME_MAX + 1, "%s.%" PRIu64 ".incr.aof", writelog.file, seq);
}

/* What another xkvd has to know to go on with the file. */
static void write_head(struct aof_text *t, uint64_t position, const struct replay_tail *before)
{
	aof_annotation(t, "XKV:log %s %016" PRIx64, writelog.id, store_identity(writelog.st));
	for (unsigned int db = 0; db < STORE_DATABASES; db++)
		if (writelog.now.number[db] != db)
			aof_annotation(t, "XKV:db %u %u", db, writelog.now.number[db]);
	if (before->size)
		aof_annotation(t, "XKV:follows %" PRIu64 " %08" PRIx32, before->size, before->sum);
	aof_annotation(t, "XKV:at %" PRIu64, position);
}

int increment_make(const char *name, uint64_t position, const struct replay_tail *before,
		   uint64_t *size, uint32_t *sum)
{
	int fd = file_openat(writelog.dir_fd, name, O_RDWR | O_CREAT | O_TRUNC), ret;
	struct aof_text head = { 0 };

	if (fd < 0)
		return fd;
	write_head(&head, position, before);
	*sum = 0;
	aof_seal(&head, sum);
	ret = head.failed ? -ENOMEM : file_write(fd, head.bytes, head.len, 0);
	*size = head.len;
	aof_free(&head);
	if (!ret && fsync(fd))
		ret = -errno;
	if (!ret)
		return fd;
	close(fd);
	unlinkat(writelog.dir_fd, name, 0);
	return ret;
}

void increment_use(int fd, uint64_t size, uint32_t sum, uint64_t position)
{
	if (writelog.fd >= 0) {
		pthread_mutex_lock(&writelog.syncing);
		close(writelog.fd);
		writelog.fd = fd;
		pthread_mutex_unlock(&writelog.syncing);
		writelog.others += writelog.now.size;
	}
	writelog.fd = fd; /* synced, with all before this position */
	writelog.now.size = writelog.begun = size;
	writelog.now.sum = sum;
	writelog.now.position = position;
	writelog.now.selected = NO_DB;
	writelog.now.stamped = writelog.now.synced_told = 0;
	memcpy(writelog.base_number, writelog.now.number, sizeof(writelog.base_number));
	pthread_mutex_lock(&writelog.lock);
	writelog.safe = writelog.now;
	writelog.synced_size = size;
	writelog.info.written = position;
	writelog.info.size = writelog.others + size;
	pthread_mutex_unlock(&writelog.lock);
}

int writelog_put_manifest(const struct manifest *m)
{
	bool unsynced;
	int ret = manifest_write(m, writelog.dir_fd, writelog.manifest_name, &unsynced);

	if (!unsynced)
		return ret;
	pthread_mutex_lock(&writelog.lock);
	writelog_note_damage();
	pthread_mutex_unlock(&writelog.lock);
	writelog_note_failure("syncing the directory %s failed; a new base is needed",
			      writelog.path);
	return 0;
}

/* Removes the files that the log does not need, and their lines.  What stays is tried next time. */
static int remove_history(void)
{
	struct manifest *m = &writelog.manifest;
	unsigned int kept = 0;

	for (unsigned int i = 0; i < m->count; i++) {
		if (m->file[i].type == 'h' &&
		    (!unlinkat(writelog.dir_fd, m->file[i].name, 0) || errno == ENOENT))
			continue;
		if (m->file[i].type == 'h')
			log_warning("%s/%s is not needed any more and cannot be removed: %s",
				    writelog.path, m->file[i].name, strerror(errno));
		m->file[kept++] = m->file[i];
	}
	if (kept == m->count)
		return 0;
	m->count = kept;
	return writelog_put_manifest(m);
}

void writelog_forget_history(void)
{
	int ret = remove_history();

	if (ret)
		log_warning("write log: %s/%s names files that are not needed: %s", writelog.path,
			    writelog.manifest_name, strerror(-ret));
}

static uint64_t file_size(const char *name)
{
	struct stat st;

	return fstatat(writelog.dir_fd, name, &st, 0) ? 0 : (uint64_t)st.st_size;
}

uint64_t writelog_size_without(uint64_t incr)
{
	const struct manifest *m = &writelog.manifest;
	uint64_t sum = 0;

	for (unsigned int i = 0; i < m->count; i++)
		if (m->file[i].type == 'b' || (m->file[i].type == 'i' && m->file[i].seq != incr))
			sum += file_size(m->file[i].name);
	return sum;
}

uint64_t writelog_size_of_others(void)
{
	return writelog_size_without(manifest_last(&writelog.manifest, 'i'));
}

/*
 * The log with an increment more.  Idle ones, which were loaded last, are not needed then: else
 * each start that loads would leave one.
 */
static int longer_manifest(struct manifest *next, const char *name, uint64_t seq)
{
	const struct manifest *m = &writelog.manifest;
	int ret = 0;

	for (unsigned int i = 0; i < m->count && !ret; i++) {
		const struct manifest_file *f = &m->file[i];
		bool idle = writelog.fd < 0 && f->type == 'i' && f->seq > writelog.tail.seq;

		ret = manifest_add(next, f->name, f->seq, idle ? 'h' : f->type);
	}
	return ret ? ret : manifest_add(next, name, seq, 'i');
}

/*
 * Adds an increment to the log: it is a whole one with that, and without.  The disk has to have the
 * one before, since only the end of the last may be missing.  One without changes serves as well:
 * bases that fail, one after the other, leave no files.
 */
static int switch_next(uint64_t position)
{
	bool loaded = writelog.fd < 0;
	const struct replay_tail before = {
		.size = loaded ? writelog.tail.size : writelog.now.size,
		.sum = loaded ? writelog.tail.sum : writelog.now.sum,
	};
	uint64_t seq = manifest_last(&writelog.manifest, 'i') + 1, size;
	struct manifest next = { 0 };
	char name[NAME_MAX + 1];
	uint32_t sum;
	int fd, ret;

	if (!loaded && writelog.now.size == writelog.begun)
		return 0;
	ret = loaded ? 0 : writelog_sync_now();
	if (ret)
		return ret;
	increment_name(name, seq);
	fd = increment_make(name, position, &before, &size, &sum);
	if (fd < 0)
		return fd;
	ret = longer_manifest(&next, name, seq);
	if (!ret)
		ret = writelog_put_manifest(&next);
	if (ret) {
		close(fd);
		unlinkat(writelog.dir_fd, name, 0);
		manifest_free(&next);
		return ret;
	}
	manifest_free(&writelog.manifest);
	writelog.manifest = next;
	if (loaded)
		writelog.others = writelog_size_of_others();
	writelog.base_incr = seq;
	increment_use(fd, size, sum, position);
	if (loaded)
		writelog_forget_history();
	return 0;
}

/* Makes the directory that is gone.  -EEXIST: there is another log where it was. */
static int remake_dir(void)
{
	int fd = writelog_make_dir(writelog.path);

	if (fd >= 0 && !faccessat(fd, writelog.manifest_name, F_OK, 0)) {
		close(fd);
		fd = -EEXIST;
	}
	if (fd < 0)
		return fd;
	pthread_mutex_lock(&writelog.syncing);
	close(writelog.dir_fd);
	writelog.dir_fd = fd;
	pthread_mutex_unlock(&writelog.syncing);
	manifest_free(&writelog.manifest);
	return 0;
}

/* Begins a log that is none before it has a base: until then the one before is in force. */
static int switch_pending(uint64_t position)
{
	const struct replay_tail none = { 0 };
	uint64_t size;
	uint32_t sum;
	int fd = writelog_find_files() ? remake_dir() : 0;

	if (!fd)
		fd = increment_make(TEMP_INCR, position, &none, &size, &sum);
	if (fd == -EEXIST)
		writelog_note_failure("the directory %s is gone; " ANOTHER_LOG, writelog.path);
	if (fd < 0)
		return fd;
	writelog.base_incr = manifest_last(&writelog.manifest, 'i') + 1;
	increment_use(fd, size, sum, position);
	return 0;
}

/* What became of making the first file: as long as there is none, changes go nowhere. */
static void note_first(int ret)
{
	if (ret)
		writelog_note_failure("a file in %s cannot be made: %s", writelog.path,
				      strerror(-ret));
	else
		writelog_note_success();
}

void increment_switch(void)
{
	uint64_t position = feed_reached(consumer_reader(writelog.consumer));
	bool first = writelog.fd < 0;
	int ret;

	pthread_mutex_lock(&writelog.lock);
	writelog.mends = writelog.damages;
	pthread_mutex_unlock(&writelog.lock);
	if (writelog.switching == SWITCH_HOLD)
		ret = 0;
	else if (writelog.switching == SWITCH_PENDING)
		ret = switch_pending(position);
	else
		ret = writelog.failed ? -EIO
				      : switch_next(position); /* half a command is at its end */
	if (first)
		note_first(ret);
	pthread_mutex_lock(&writelog.lock);
	writelog.holds = writelog.switching == SWITCH_HOLD;
	writelog.switching = SWITCH_NONE;
	writelog.switch_ret = ret;
	pthread_cond_broadcast(&writelog.changed);
	pthread_mutex_unlock(&writelog.lock);
}

int increment_go_on_behind(void)
{
	int ret = switch_next(feed_reached(consumer_reader(writelog.consumer)));

	note_first(ret);
	writelog.retry_ns = ret ? monotonic_ns() + RETRY_NS : 0;
	return ret;
}

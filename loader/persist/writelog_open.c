// SPDX-License-Identifier: BSD-2-Clause
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/config.h"
#include "events/consumer.h"
#include "fill.h"
#include "replay.h"
#include "store/feed.h"
#include "store/open.h"
#include "store/store.h"
#include "util/files.h"
#include "util/log.h"
#include "writelog_impl.h"

static int open_existing(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

int writelog_make_dir(const char *path)
{
	int ret = mkdir(path, 0750) && errno != EEXIST ? -errno : directory_sync_name(path);

	return ret ? ret : open_existing(path);
}

/* Opens the directory, and makes it if there is none.  0, or -errno with a sentence. */
static int open_dir(const struct config *cfg, bool make, char *err, size_t err_len)
{
	int ret;

	snprintf(writelog.path, sizeof(writelog.path), "%s/%s", cfg->dir, cfg->appenddirname);
	snprintf(writelog.file, sizeof(writelog.file), "%s", cfg->appendfilename);
	snprintf(writelog.manifest_name, sizeof(writelog.manifest_name), "%s.manifest",
		 writelog.file);
	ret = make ? writelog_make_dir(writelog.path) : open_existing(writelog.path);
	writelog.dir_fd = ret < 0 ? -1 : ret;
	if (ret >= 0)
		return 0;
	snprintf(err, err_len, "the directory %s cannot be %s: %s", writelog.path,
		 make ? "made" : "opened", strerror(-ret));
	return ret;
}

void writelog_close_files(void)
{
	if (writelog.fd >= 0)
		close(writelog.fd);
	if (writelog.dir_fd >= 0)
		close(writelog.dir_fd);
	writelog.fd = writelog.dir_fd = -1;
	manifest_free(&writelog.manifest);
	aof_free(&writelog.text);
}

static int read_manifest(char *err, size_t err_len)
{
	char path[PATH_MAX + NAME_MAX];

	snprintf(path, sizeof(path), "%s/%s", writelog.path, writelog.manifest_name);
	return manifest_read(&writelog.manifest, writelog.dir_fd, writelog.manifest_name, path, err,
			     err_len);
}

/* A Redis before 7 has one file, which is not read: it must not be passed over in silence. */
static int find_old(const struct config *cfg, char *err, size_t err_len)
{
	char path[PATH_MAX + NAME_MAX];

	snprintf(path, sizeof(path), "%s/%s", cfg->dir, cfg->appendfilename);
	if (access(path, F_OK))
		return -ENOENT;
	snprintf(err, err_len,
		 "%s is a log of a Redis before 7: start a Redis 7 with it once, which makes a "
		 "directory of it, or take it away",
		 path);
	return -ENOTSUP;
}

static bool has_manifest(const struct config *cfg)
{
	char path[PATH_MAX + 2 * NAME_MAX];

	snprintf(path, sizeof(path), "%s/%s/%s.manifest", cfg->dir, cfg->appenddirname,
		 cfg->appendfilename);
	return !access(path, F_OK);
}

bool writelog_exists(const struct config *cfg)
{
	return cfg->appendonly && has_manifest(cfg);
}

void writelog_warn_unread(const struct config *cfg)
{
	if (has_manifest(cfg))
		log_warning("%s/%s has a write log, which is not loaded: appendonly is no",
			    cfg->dir, cfg->appenddirname);
}

/* Files of a log whose manifest is gone: it was forgotten when they were copied back, perhaps. */
static void warn_of_files(const struct config *cfg)
{
	size_t len = strlen(cfg->appendfilename);
	DIR *dir = opendir(writelog.path);
	struct dirent *e;

	while (dir && (e = readdir(dir)))
		if (!strncmp(e->d_name, cfg->appendfilename, len) && e->d_name[len] == '.') {
			log_warning("%s/%s is a write log's, but %s is not there: it is not loaded",
				    writelog.path, e->d_name, writelog.manifest_name);
			break;
		}
	if (dir)
		closedir(dir);
}

/*
 * Names the reader of a log that goes on behind these files, as long as they are what they are now:
 * if there is such a reader, the store has what is in them, and they are what its log has so far.
 */
static void name_behind(const struct store *st, char name[17])
{
	const struct manifest *m = &writelog.manifest;
	uint64_t id = store_identity(st);

	for (unsigned int i = 0; i < m->count; i++) {
		struct stat sb = { 0 };

		fstatat(writelog.dir_fd, m->file[i].name, &sb, 0);
		id = store_identity_mix(id, sb.st_ino);
		id = store_identity_mix(id, (uint64_t)sb.st_size);
		id = store_identity_mix(id, (uint64_t)sb.st_mtim.tv_sec);
		id = store_identity_mix(id, (uint64_t)sb.st_mtim.tv_nsec);
	}
	snprintf(name, 17, "%016" PRIx64, id);
}

int writelog_load(struct store *st, const struct config *cfg, uint64_t *keys, char *err,
		  size_t err_len)
{
	struct replay_place place = { .path = writelog.path, .manifest = &writelog.manifest };
	int ret = open_dir(cfg, false, err, err_len);

	*keys = 0;
	if (ret == -ENOENT)
		return find_old(cfg, err, err_len);
	if (!ret) {
		ret = read_manifest(err, err_len);
		if (ret == -ENOENT)
			warn_of_files(cfg);
	}
	place.dir_fd = writelog.dir_fd;
	if (!ret)
		ret = fill_remove_rest(st, err, err_len);
	if (!ret)
		ret = replay_load(&place, st, cfg, keys, &writelog.tail, err, err_len);
	if (!ret)
		name_behind(st, writelog.behind);
	writelog_close_files();
	if (ret == -ENOENT)
		return find_old(cfg, err, err_len);
	writelog.loaded = !ret;
	if (!ret)
		log_notice("%s: %" PRIu64 " keys loaded", writelog.path, *keys);
	return ret;
}

#define NOT_REPLACED                                                                               \
	", and would be replaced: to load it, stop xkvd, `xkvd --detach` (this deletes the data "  \
	"in the kernel) and start with appendonly yes; to keep the data in the kernel, move the "  \
	"directory away"

/*
 * Is the log one of this store?  Then the store has everything that is in it, or had.  A log of
 * another one must not be replaced without a word: somebody may have put it there to be loaded.
 */
static int check_owner(const struct store *st, char *err, size_t err_len)
{
	const struct replay_place place = { writelog.dir_fd, writelog.path, &writelog.manifest };
	struct replay_owner owner;
	char mine[17], name[17];
	int ret;

	name_behind(st, name);
	if (!strcmp(name, writelog.behind))
		return 0;
	ret = replay_find_owner(&place, &owner, err, err_len);
	snprintf(mine, sizeof(mine), "%016" PRIx64, store_identity(st));
	if (ret || (!writelog.manifest.restored && !strcmp(owner.store, mine)))
		return ret;
	snprintf(err, err_len,
		 "the write log in %s is not of the store in the kernel (%s)" NOT_REPLACED,
		 writelog.path,
		 writelog.manifest.restored ? "it was made by --restore-until"
		 : owner.id[0]		    ? "it belonged to another one"
					    : "it is of another server");
	return -ENOTUNIQ;
}

static int open_reader(struct store *st, bool *resumed, char *err, size_t err_len)
{
	int ret = consumer_open(st, writelog.id, &writelog_consumer, NULL, &writelog.consumer,
				resumed);

	if (ret)
		snprintf(err, err_len, "the change feed cannot be read: %s", strerror(-ret));
	return ret;
}

/* Begins to read the feed, for a log that has no file for it yet. */
static int open_reader_alone(struct store *st, char *err, size_t err_len)
{
	bool resumed;

	memset(&writelog.now, 0, sizeof(writelog.now));
	store_numbers(st, writelog.now.number);
	writelog.safe = writelog.now;
	writelog.others = writelog.gathering.goal = 0;
	return open_reader(st, &resumed, err, err_len);
}

/* Goes on with the last increment at its last position, if the feed still has what comes next. */
static int writelog_try_resume(struct store *st, char *err, size_t err_len)
{
	const struct replay_place place = { writelog.dir_fd, writelog.path, &writelog.manifest };
	char name[NAME_MAX + 1];
	struct replay_end end;
	bool resumed = false;
	int ret = replay_find_end(&place, &end, err, err_len);

	if (ret)
		return ret;
	if (end.foreign) {
		snprintf(err, err_len,
			 "another server has added to the write log in %s, what the store in the "
			 "kernel does not have" NOT_REPLACED,
			 writelog.path);
		return -ENOTUNIQ;
	}
	if (!end.size) {
		snprintf(err, err_len, "its last file was only begun");
		return -ENOENT;
	}
	snprintf(writelog.id, sizeof(writelog.id), "%s", end.owner.id);
	ret = open_reader(st, &resumed, err, err_len);
	if (ret)
		return ret;
	if (resumed && feed_is_broken(consumer_reader(writelog.consumer))) {
		snprintf(err, err_len, "nobody knows what of it is on the disk, which has failed");
		return -EIO;
	}
	if (!resumed || !feed_seek(consumer_reader(writelog.consumer), end.position)) {
		snprintf(err, err_len, "changes were made that are not in it");
		return -ENOENT;
	}
	increment_name(name, manifest_last(&writelog.manifest, 'i'));
	writelog.fd = file_openat(writelog.dir_fd, name, O_RDWR);
	ret = writelog.fd < 0 ? writelog.fd : ftruncate(writelog.fd, (off_t)end.size) ? -errno : 0;
	if (ret) {
		snprintf(err, err_len, "%s cannot be opened: %s", name, file_error(-ret));
		return -EIO;
	}
	writelog.now = (struct point){
		.size = end.size, .sum = end.sum, .position = end.position, .selected = NO_DB
	};
	memcpy(writelog.now.number, end.number, sizeof(end.number));
	writelog.safe = writelog.now;
	writelog.others = writelog_size_of_others();
	writelog.info.written = end.position;
	return 0;
}

static void find_behind(void *found, const char *name, uint64_t unread)
{
	*(bool *)found |= !strcmp(name, writelog.behind);
}

/* Has an earlier xkvd loaded this log, and had no room for a file behind it? */
static bool was_loaded(const struct store *st)
{
	bool found = false;

	name_behind(st, writelog.behind);
	feed_readers(st, find_behind, &found);
	if (!found)
		writelog.behind[0] = '\0';
	return found;
}

static int resume_behind(struct store *st, char *err, size_t err_len)
{
	const struct replay_place place = { writelog.dir_fd, writelog.path, &writelog.manifest };
	struct replay_end end;
	int ret = replay_find_end(&place, &end, err, err_len);

	if (ret)
		return ret;
	memcpy(writelog.id, writelog.behind, sizeof(writelog.id));
	writelog.tail = end.tail;
	writelog.loaded = true;
	return open_reader_alone(st, err, err_len);
}

int writelog_resume(struct store *st, const struct config *cfg, bool *resumed, char *err,
		    size_t err_len)
{
	int ret = open_dir(cfg, false, err, err_len);

	if (!ret)
		ret = read_manifest(err, err_len);
	if (!ret && was_loaded(st))
		ret = resume_behind(st, err, err_len);
	else if (!ret)
		ret = check_owner(st, err, err_len);
	if (!ret && !writelog.loaded)
		ret = writelog_try_resume(st, err, err_len);
	*resumed = writelog.resumed = !ret;
	if (!ret)
		return 0;
	if (ret != -ENOTUNIQ && (ret != -ENOENT || writelog.consumer))
		log_warning("%s is not gone on with, the store gets a new log: %s", writelog.path,
			    err);
	consumer_close(writelog.consumer, false);
	writelog.consumer = NULL;
	writelog.loaded = false;
	writelog_close_files();
	return ret == -ENOTUNIQ ? ret : 0;
}

/* A name for the reader that no other log has had. */
static int draw_id(void)
{
	uint64_t id;

	if (getrandom(&id, sizeof(id), 0) != (ssize_t)sizeof(id))
		return -errno;
	snprintf(writelog.id, sizeof(writelog.id), "%016" PRIx64, id);
	return 0;
}

int writelog_begin_anew(struct store *st, const struct config *cfg, char *err, size_t err_len)
{
	int ret = open_dir(cfg, true, err, err_len);

	if (!ret)
		ret = read_manifest(err, err_len);
	if (!ret)
		ret = check_owner(st, err, err_len);
	if (ret && ret != -ENOENT)
		return ret;
	if (writelog.loaded)
		memcpy(writelog.id, writelog.behind, sizeof(writelog.id));
	else if (draw_id())
		return snprintf(err, err_len, "no random number for the write log"), -EIO;
	return open_reader_alone(st, err, err_len);
}

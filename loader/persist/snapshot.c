/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Snapshots: saving and loading RDB files, and messages for users when that fails.  rdb.c has the
 * format; this file has the file system and the store.
 *
 * A save does not touch the old file before the new one is complete and durable: it writes
 * dir/temp-<pid>.rdb (as Redis names it), fsyncs and closes it, renames it and fsyncs the
 * directory.  It runs in a thread that blocks all signals, so that the daemon's signals go to its
 * event loop, and exceeding a file size limit is an error of write(2) instead of a fatal SIGXFSZ.
 */
#include "snapshot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "aside.h"
#include "config/config.h"
#include "fill.h"
#include "image.h"
#include "loading.h"
#include "rdb.h"
#include "store/feed.h"
#include "store/store.h"
#include "util/clock.h"
#include "util/handed.h"
#include "util/log.h"
#include "util/thread.h"
#include "writelog.h"

#define SCAN_COUNT    1024
#define FILE_OVERHEAD 8192 /* bytes of a file without keys, rounded up */
#define TRIES	      5	   /* of a save, if transactions are too large to be left aside */
#define OTHERS_LOGGED 10
#define TEMP_PREFIX   "temp-"
#define TEMP_SUFFIX   ".rdb"
#define ORIGINAL      "original"   /* dump.rdb.original: a file of which a part was skipped */
#define UNREADABLE    "unreadable" /* dump.rdb.unreadable: see --start-empty */

static struct {
	pthread_mutex_t lock; /* for all but the last four */
	struct snapshot_info info;
	pthread_t thread;
	bool joinable; /* `thread` is a background save that was not joined yet */
	int event_fd;
	uint64_t changes_saved; /* count_changes() at the start of the last successful save */
	/* functions could not be read from the file, and it has no second name yet */
	bool keep_unreadable;
	_Atomic uint64_t changes; /* snapshot_changed() */
	atomic_bool stop;
	_Atomic uint64_t keys; /* that the save in progress has written */
} state = { .lock = PTHREAD_MUTEX_INITIALIZER, .event_fd = -1 };

/* One save. */
struct job {
	struct store *st;
	const char *dir;
	const char *name;
	char temp[NAME_MAX + 1];
	bool compress;
	bool background;
	bool waited_for; /* somebody is told of its failure, so that it need not stop writes */
	int ret;
	uint64_t keys;
	uint64_t changes; /* count_changes() at its start */
	double start;	  /* by monotonic_seconds() */
	char error[sizeof(state.info.last_error)];
};

static void init_state(void)
{
	state.info.last_ok = true;
	state.info.last_save = time(NULL);
	state.info.saved_at = monotonic_seconds();
	state.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (state.event_fd < 0)
		log_warning("eventfd failed: %s; ends of background saves are noticed late",
			    strerror(errno));
}

static void init_once(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, init_state);
}

static uint64_t count_changes(const struct store *st)
{
	static const char *const names[] = { "inserts", "overwrites", "expiry_changes", "deletes",
					     "moves",	"expires",    "evictions" };
	uint64_t sum = atomic_load(&state.changes);

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		sum += store_counter(st, names[i]);
	return sum;
}

void snapshot_changed(void)
{
	atomic_fetch_add(&state.changes, 1);
}

/* Sets the message of the job and returns `err`. */
__attribute__((format(printf, 3, 4))) static int snapshot_fail(struct job *job, int err,
							       const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(job->error, sizeof(job->error), fmt, ap);
	va_end(ap);
	return err;
}

/* The clause of a message that tells a user what to do about an error of the file system. */
static const char *remedy(int err)
{
	switch (-err) {
	case ENOSPC:
		return "free some space there or change `dir`";
	case EDQUOT:
		return "raise the disk quota or change `dir`";
	case EACCES:
	case EPERM:
		return "give xkvd's user the right to write there or change `dir`";
	case EROFS:
		return "mount it writable or change `dir`";
	case EFBIG:
		return "raise the process's file size limit (ulimit -f, LimitFSIZE)";
	case EIO:
		return "the disk is failing: change `dir`";
	default:
		return "see `dir` and `dbfilename`";
	}
}

static int fail_step(struct job *job, const char *step)
{
	int err = -errno;

	return snapshot_fail(job, err, "%s %s/%s failed: %s; %s", step, job->dir, job->temp,
			     strerror(-err), remedy(err));
}

/* ---- the directory ---- */

/* The process id in the name of a temporary file, 0 if the name has another form. */
static pid_t temp_pid(const char *name)
{
	char again[NAME_MAX + 1];
	long pid;

	if (strncmp(name, TEMP_PREFIX, strlen(TEMP_PREFIX)) != 0)
		return 0;
	pid = strtol(name + strlen(TEMP_PREFIX), NULL, 10);
	if (pid <= 0 || pid > INT_MAX)
		return 0;
	snprintf(again, sizeof(again), TEMP_PREFIX "%ld" TEMP_SUFFIX, pid);
	return strcmp(name, again) == 0 ? (pid_t)pid : 0;
}

/* Does the process have this file open?  True, too, if that cannot be found out. */
static bool holds_open(pid_t pid, const struct stat *file)
{
	char path[64];
	const struct dirent *entry;
	struct stat st;
	bool found = false;
	DIR *d;

	if (kill(pid, 0) < 0 && errno == ESRCH)
		return false;
	snprintf(path, sizeof(path), "/proc/%ld/fd", (long)pid);
	d = opendir(path);
	if (!d)
		return true;
	while (!found && (entry = readdir(d)))
		found = fstatat(dirfd(d), entry->d_name, &st, 0) == 0 &&
			st.st_dev == file->st_dev && st.st_ino == file->st_ino;
	closedir(d);
	return found;
}

/*
 * Removes temporary files of killed processes.  Whether a process with that id exists is not
 * enough: the id may have been reused, and in a container every xkvd is process 1.
 */
static void remove_stale(int dir_fd, const char *dir)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	if (!d) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while ((entry = readdir(d))) {
		pid_t pid = temp_pid(entry->d_name);
		struct stat st;

		if (!pid || fstatat(dir_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
		    !S_ISREG(st.st_mode) || holds_open(pid, &st))
			continue;
		if (unlinkat(dir_fd, entry->d_name, 0) == 0)
			log_notice("removed %s/%s, which a process that ended left behind", dir,
				   entry->d_name);
		else
			log_warning("%s/%s is left from a process that ended: %s: remove it", dir,
				    entry->d_name, strerror(errno));
	}
	closedir(d);
}

static int check_name(struct job *job)
{
	if (!*job->name || strchr(job->name, '/') || strcmp(job->name, ".") == 0 ||
	    strcmp(job->name, "..") == 0 || temp_pid(job->name))
		return snapshot_fail(job, -EINVAL,
				     "dbfilename \"%s\" is not the name of a file in `dir`",
				     job->name);
	return 0;
}

/* Opens the directory; a descriptor or an error. */
static int open_dir(struct job *job)
{
	int fd = open(job->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int err = -errno;

	if (fd >= 0)
		return fd;
	/* -ENOENT is reserved for a missing file */
	if (err == -ENOENT)
		return snapshot_fail(job, -ENOTDIR,
				     "the directory %s does not exist; make it or change `dir`",
				     job->dir);
	return snapshot_fail(job, err,
			     "the directory %s cannot be opened: %s; change its mode or `dir`",
			     job->dir, strerror(-err));
}

static int check_writable(struct job *job, int dir_fd)
{
	struct stat st;

	if (faccessat(dir_fd, ".", W_OK | X_OK, AT_EACCESS) < 0) {
		int err = -errno;

		return snapshot_fail(
			job, err, "the directory %s is not writable for user %u: %s; %s", job->dir,
			(unsigned int)geteuid(), strerror(-err), remedy(err));
	}
	if (fstatat(dir_fd, job->name, &st, 0) == 0 && !S_ISREG(st.st_mode))
		return snapshot_fail(job, -EEXIST,
				     "%s/%s is not a regular file; change `dbfilename`", job->dir,
				     job->name);
	return 0;
}

static int add_size(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	struct rdb_writer *w = arg;

	rdb_write_select(w, entry->db);
	rdb_write_key(w, key, key_len, entry->value, entry->value_len, entry->expire_ms);
	return atomic_load(&state.stop) ? -ECANCELED : 0;
}

/* Sets the message for an error of store_scan(). */
static int fail_walk(struct job *job, int err)
{
	if (err == -ECANCELED)
		return snapshot_fail(job, err, "the save was cancelled");
	if (err == -EBUSY)
		return snapshot_fail(job, err,
				     "a key could not be read, it is locked or changes all the "
				     "time; try again");
	if (err == -EAGAIN)
		return snapshot_fail(job, err,
				     "transactions of so many keys came again and again that what "
				     "they replace did not fit the change feed; try again");
	if (err == -EALREADY)
		return snapshot_fail(
			job, err,
			"the write log gets a base that makes room on the disk; try again");
	if (err == -ESTALE)
		return snapshot_fail(
			job, err, "xkvd stood still for so long that changes were lost; try again");
	return snapshot_fail(job, err, "reading the store failed: %s", strerror(-err));
}

/* Computes the size in bytes of a file with the current keys. */
static int measure(struct job *job, struct store_ctx *ctx, uint64_t *size)
{
	struct rdb_writer *w = rdb_writer_new(-1, job->compress);
	uint64_t cursor = 0;
	int ret;

	if (!w)
		return snapshot_fail(job, -ENOMEM, "out of memory");
	rdb_write_header(w, 0, 0);
	do {
		ret = store_scan(ctx, &cursor, SCAN_COUNT, true, add_size, w);
	} while (!ret && cursor);
	*size = rdb_written(w) + FILE_OVERHEAD;
	rdb_writer_free(w);
	return ret ? fail_walk(job, ret) : 0;
}

/*
 * Is there enough space on the disk?  A key needs less space in the file than in memory: only if
 * the disk has less space than the store's memory, the exact size is computed by a walk.
 */
static int check_space(struct job *job, int dir_fd, struct store_ctx *ctx)
{
	struct statvfs fs;
	uint64_t space, need = 0;
	int ret;

	if (fstatvfs(dir_fd, &fs) < 0) {
		ret = -errno;
		return snapshot_fail(job, ret, "the free space of %s is not known: %s", job->dir,
				     strerror(-ret));
	}
	space = (uint64_t)fs.f_bavail * fs.f_frsize;
	if (space >= store_memory(job->st) + FILE_OVERHEAD)
		return 0;
	ret = measure(job, ctx, &need);
	if (ret || need <= space)
		return ret;
	return snapshot_fail(job, -ENOSPC,
			     "%s has %" PRIu64 " kB free, but the snapshot takes %" PRIu64
			     " kB; free some space there or change `dir`",
			     job->dir, space >> 10, (need + 1023) >> 10);
}

/* ---- functions ---- */

/* Libraries, one behind the other, as rdb_function_record() writes them. */
struct records {
	uint8_t *bytes; /* owned */
	size_t len;
};

/* Adds a library.  0 or -ENOMEM. */
static int add_function(struct records *to, const void *text, size_t len)
{
	uint8_t *grown = realloc(to->bytes, to->len + RDB_DUMP_MAX(len));

	if (!grown)
		return -ENOMEM;
	to->bytes = grown;
	to->len += rdb_function_record(grown + to->len, text, len);
	return 0;
}

static struct {
	pthread_mutex_t lock;
	struct records all;
} functions = { .lock = PTHREAD_MUTEX_INITIALIZER };

int snapshot_add_function(const void *text, size_t len)
{
	int ret;

	pthread_mutex_lock(&functions.lock);
	ret = add_function(&functions.all, text, len);
	pthread_mutex_unlock(&functions.lock);
	if (!ret)
		writelog_functions();
	return ret;
}

void snapshot_set_functions(void *records, size_t len)
{
	pthread_mutex_lock(&functions.lock);
	free(functions.all.bytes);
	functions.all.bytes = records;
	functions.all.len = len;
	pthread_mutex_unlock(&functions.lock);
	writelog_functions();
}

/* With the lock. */
static void *copy_functions(size_t *len)
{
	uint8_t *copy = malloc(functions.all.len + RDB_DUMP_FRAME);

	*len = copy ? functions.all.len : 0;
	if (*len)
		memcpy(copy, functions.all.bytes, *len);
	return copy;
}

void *snapshot_functions(size_t *len)
{
	void *copy;

	pthread_mutex_lock(&functions.lock);
	copy = copy_functions(len);
	pthread_mutex_unlock(&functions.lock);
	return copy;
}

/* ---- saving ---- */

/* An image, and what belongs to its moment. */
struct saving {
	struct image im; /* first: `moment` gets it */
	struct store *st;
	void *functions; /* NULL: no memory for them */
};

/* No library is loaded or deleted meanwhile, nor is a SWAPDB half done. */
static uint64_t take_moment(void *image)
{
	struct saving *s = image;
	uint64_t position;

	pthread_mutex_lock(&functions.lock);
	position = feed_head(s->st);
	s->functions = copy_functions(&s->im.functions_len);
	pthread_mutex_unlock(&functions.lock);
	s->im.functions = s->functions;
	store_numbers(s->st, s->im.number);
	return position;
}

/* Once, from its beginning. */
static int write_image(struct job *job, struct store_ctx *ctx, int fd)
{
	struct saving s = { .im = { .fd = fd,
				    .compress = job->compress,
				    .moment = take_moment,
				    .stop = &state.stop,
				    .keys = &state.keys },
			    .st = job->st };
	int ret = ftruncate(fd, 0) || lseek(fd, 0, SEEK_SET) ? -errno : 0;

	if (ret)
		return fail_step(job, "writing");
	atomic_store(&state.keys, 0);
	ret = image_write(&s.im, job->st, ctx);
	if (!ret && !s.functions)
		ret = snapshot_fail(job, -ENOMEM, "out of memory");
	else if (ret && s.im.walk_failed)
		ret = fail_walk(job, ret);
	else if (ret) {
		errno = -ret;
		ret = fail_step(job, "writing");
	}
	free(s.functions);
	return ret;
}

static int write_keys(struct job *job, struct store_ctx *ctx, int fd)
{
	int ret = -EAGAIN;

	for (int tries = 0; ret == -EAGAIN && tries < TRIES; tries++) {
		job->error[0] = 0; /* of the try before */
		ret = write_image(job, ctx, fd);
	}
	job->keys = atomic_load(&state.keys);
	return ret;
}

/* Writes the temporary file; when this returns 0, it is on the disk. */
static int write_temp(struct job *job, int dir_fd, struct store_ctx *ctx)
{
	int fd = openat(dir_fd, job->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
	int ret;

	if (fd < 0)
		return fail_step(job, "creating");
	ret = write_keys(job, ctx, fd);
	if (!ret && fsync(fd) < 0)
		ret = fail_step(job, "syncing");
	if (close(fd) < 0 && !ret)
		ret = fail_step(job, "closing");
	return ret;
}

/*
 * The next save replaces a file from which functions could not be read, and would lose them: gives
 * it a second name.  This is done when it was not read, and if that failed, before the save.
 */
static int keep_unreadable(struct job *job, int dir_fd)
{
	char kept[NAME_MAX + 1];
	int ret;

	if (!state.keep_unreadable)
		return 0;
	ret = aside_keep(dir_fd, job->name, UNREADABLE, kept);
	if (ret && ret != -ENOENT)
		return snapshot_fail(
			job, ret, "functions in a damaged file cannot be kept: %s, for %s/%s; %s",
			strerror(-ret), job->dir, job->name, remedy(ret));
	state.keep_unreadable = false;
	if (!ret)
		log_notice("%s/%s is kept as %s, too: the next save replaces it", job->dir,
			   job->name, kept);
	return 0;
}

static int snapshot_publish(struct job *job, int dir_fd)
{
	if (renameat(dir_fd, job->temp, dir_fd, job->name) < 0)
		return fail_step(job, "renaming");
	if (fsync(dir_fd) < 0) {
		int err = -errno;

		return snapshot_fail(job, err, "syncing the directory %s failed: %s; %s", job->dir,
				     strerror(-err), remedy(err));
	}
	return 0;
}

static int save_in(struct job *job, int dir_fd, struct store_ctx *ctx)
{
	int ret = check_writable(job, dir_fd);

	if (ret)
		return ret;
	remove_stale(dir_fd, job->dir);
	ret = keep_unreadable(job, dir_fd);
	if (!ret)
		ret = check_space(job, dir_fd, ctx);
	if (ret)
		return ret;
	ret = write_temp(job, dir_fd, ctx);
	if (!ret)
		ret = snapshot_publish(job, dir_fd);
	if (ret)
		unlinkat(dir_fd, job->temp, 0);
	return ret;
}

static int save(struct job *job)
{
	struct store_ctx *ctx;
	int ret = check_name(job), dir_fd;

	if (ret)
		return ret;
	dir_fd = open_dir(job);
	if (dir_fd < 0)
		return dir_fd;
	ctx = store_ctx_get(job->st);
	if (ctx) {
		ret = save_in(job, dir_fd, ctx);
		store_ctx_put(ctx);
	} else {
		ret = -errno;
		snapshot_fail(job, ret, "the store has no context left for the save: %s",
			      strerror(-ret));
	}
	close(dir_fd);
	return ret;
}

/* ---- the thread ---- */

static void free_job(struct job *job)
{
	if (!job)
		return;
	free((void *)job->dir);
	free((void *)job->name);
	free(job);
}

/* Logs and records the result of a save, and notifies the event loop. */
static void conclude(struct job *job)
{
	struct snapshot_info *info = &state.info;
	double seconds = monotonic_seconds() - job->start;

	if (job->ret)
		log_warning("snapshot: %s", job->error);
	else
		log_notice("snapshot: %" PRIu64 " keys saved to %s/%s in %.3f s", job->keys,
			   job->dir, job->name, seconds);
	pthread_mutex_lock(&state.lock);
	info->in_progress = false;
	info->keys_total = 0;
	atomic_store(&state.keys, 0);
	info->last_ok = job->ret == 0;
	info->last_seconds = seconds;
	memcpy(info->last_error, job->error, sizeof(info->last_error));
	if (job->ret) {
		info->failures++;
		info->stop_writes |= job->background && !job->waited_for && job->ret != -ECANCELED;
	} else {
		info->saves++;
		info->stop_writes = false;
		info->last_save = time(NULL);
		info->saved_at = monotonic_seconds();
		info->last_keys = job->keys;
		state.changes_saved = job->changes;
	}
	pthread_mutex_unlock(&state.lock);
	if (job->background && state.event_fd >= 0 && eventfd_write(state.event_fd, 1) < 0)
		log_warning("eventfd_write failed: %s", strerror(errno));
}

static void *save_thread(void *arg)
{
	struct job *job = arg;

	if (job->background && !job->waited_for)
		thread_steps_back();
	job->ret = save(job);
	conclude(job);
	if (job->background)
		free_job(job);
	return NULL;
}

static struct job *new_job(struct store *st, const struct config *cfg, bool background)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->st = st;
	job->compress = cfg->rdbcompression;
	job->background = background;
	job->dir = strdup(cfg->dir);
	job->name = strdup(cfg->dbfilename);
	snprintf(job->temp, sizeof(job->temp), TEMP_PREFIX "%ld" TEMP_SUFFIX, (long)getpid());
	job->start = monotonic_seconds();
	job->changes = count_changes(st);
	if (!job->dir || !job->name) {
		free_job(job);
		return NULL;
	}
	return job;
}

/*
 * Starts the thread.  The caller holds the lock, so that the thread cannot record its end before
 * its start is recorded.
 */
static int start_thread(struct job *job, pthread_t *thread)
{
	int ret = thread_without_signals(thread, save_thread, job);

	state.info.tried_at = monotonic_seconds();
	if (ret) {
		state.info.last_ok = false;
		state.info.failures++;
		state.info.stop_writes |= job->background && !job->waited_for;
		snprintf(state.info.last_error, sizeof(state.info.last_error),
			 "no thread for the save: %s", strerror(-ret));
		return ret;
	}
	state.info.in_progress = true;
	state.info.keys_total = store_count(job->st);
	if (job->background) {
		state.thread = *thread;
		state.joinable = true;
	}
	return 0;
}

static int snapshot_job_begin(struct job *job, pthread_t *thread)
{
	int ret;

	pthread_mutex_lock(&state.lock);
	if (state.info.in_progress || state.joinable) {
		ret = -EINPROGRESS;
	} else {
		atomic_store(&state.stop, false);
		ret = start_thread(job, thread);
	}
	pthread_mutex_unlock(&state.lock);
	return ret;
}

/* Joins the background thread, if any.  Without `wait` only if it has ended. */
static void join(bool wait)
{
	pthread_t thread;
	bool mine;

	pthread_mutex_lock(&state.lock);
	mine = state.joinable && (wait || !state.info.in_progress);
	thread = state.thread;
	if (mine)
		state.joinable = false;
	pthread_mutex_unlock(&state.lock);
	if (mine)
		pthread_join(thread, NULL);
}

int snapshot_save(struct store *st, const struct config *cfg)
{
	struct job *job;
	pthread_t thread;
	int ret;

	init_once();
	join(false);
	job = new_job(st, cfg, false);
	if (!job)
		return -ENOMEM;
	ret = snapshot_job_begin(job, &thread);
	if (!ret) {
		pthread_join(thread, NULL);
		ret = job->ret;
	}
	free_job(job);
	return ret;
}

static int begin_background(struct store *st, const struct config *cfg, bool waited_for)
{
	struct job *job;
	pthread_t thread;
	int ret;

	init_once();
	join(false);
	job = new_job(st, cfg, true);
	if (!job)
		return -ENOMEM;
	job->waited_for = waited_for;
	ret = snapshot_job_begin(job, &thread);
	if (ret)
		free_job(job);
	return ret;
}

int snapshot_bgsave(struct store *st, const struct config *cfg)
{
	return begin_background(st, cfg, false);
}

int snapshot_begin(struct store *st, const struct config *cfg)
{
	return begin_background(st, cfg, true);
}

int snapshot_event_fd(void)
{
	init_once();
	return state.event_fd;
}

static void reset_event(void)
{
	eventfd_t ignored;

	if (state.event_fd >= 0)
		eventfd_read(state.event_fd, &ignored);
}

void snapshot_reap(void)
{
	reset_event();
	join(false);
}

void snapshot_wait(void)
{
	join(true);
	reset_event();
}

void snapshot_cancel(void)
{
	atomic_store(&state.stop, true);
}

void snapshot_status(struct snapshot_info *out)
{
	init_once();
	pthread_mutex_lock(&state.lock);
	*out = state.info;
	out->keys = atomic_load(&state.keys);
	pthread_mutex_unlock(&state.lock);
}

uint64_t snapshot_changes(const struct store *st)
{
	uint64_t now = count_changes(st), saved;

	pthread_mutex_lock(&state.lock);
	saved = state.changes_saved;
	pthread_mutex_unlock(&state.lock);
	return now > saved ? now - saved : 0;
}

void snapshot_count_from(const struct store *st)
{
	pthread_mutex_lock(&state.lock);
	state.changes_saved = count_changes(st);
	pthread_mutex_unlock(&state.lock);
}

/* ---- loading ---- */

/*
 * Most files are whole, and the first pass sets their keys.  Where it meets anything that is to be
 * refused or kept aside, what it has set is removed, and the file is read as if it had not been.
 */
enum load_pass { LOAD_FIRST, LOAD_CHECK, LOAD_SET };

/* The state of one pass over the file. */
struct load {
	struct store *st;
	const struct config *cfg;
	struct fill fill;
	enum load_pass pass;
	const char *path;
	int64_t now; /* Unix time in milliseconds */
	uint64_t keys;
	uint64_t expired;
	uint64_t twice;	   /* keys that the file has more than once */
	uint64_t others;   /* records that the store cannot hold; of the first of them: */
	uint64_t other_at; /* offset */
	char other[256];   /* reason */
	struct records functions;
	char *err;
	unsigned int err_len;
};

static bool is_past(const struct load *load, bool expires, int64_t expire_ms)
{
	return expires && expire_ms <= load->now;
}

static int fail_fill(const struct load *load)
{
	return fill_fail(&load->fill, load->path, load->err, load->err_len);
}

static int set_key(struct load *load, const struct rdb_key *k)
{
	uint64_t expire_ms = k->expires ? (uint64_t)k->expire_ms : 0;
	struct store_op op = {
		.opcode = XKV_OP_SET,
		.flags = XKV_NX,
		.key = k->key,
		.key_len = k->key_len,
		.value = k->value,
		.value_len = k->value_len,
		.expire_ms = expire_ms < XKV_TTL_MAX ? expire_ms : XKV_TTL_MAX,
	};
	int ret = fill_add(&load->fill, k->db, &op, k->offset);

	load->keys++;
	return ret ? fail_fill(load) : 0;
}

static int load_key(void *arg, const struct rdb_key *k)
{
	struct load *load = arg;

	if (is_past(load, k->expires, k->expire_ms)) {
		load->expired++;
		return 0;
	}
	if (load->pass != LOAD_CHECK)
		return set_key(load, k);
	load->keys++;
	return 0;
}

/*
 * Counts a record that the store cannot hold.  Continues even if rdb-other-types refuses it: damage
 * found later in the file is the more important message.
 */
static int load_other(void *arg, const struct rdb_misfit *o)
{
	struct load *load = arg;

	if (is_past(load, o->expires, o->expire_ms)) {
		load->expired++;
		return 0;
	}
	if (load->pass == LOAD_FIRST)
		return -ECANCELED;
	if (load->others++ == 0) {
		load->other_at = o->offset;
		snprintf(load->other, sizeof(load->other), "%s", o->what);
	}
	if (load->pass == LOAD_SET && load->others <= OTHERS_LOGGED)
		log_warning("%s, offset %" PRIu64 ": skipped: %s", load->path, o->offset, o->what);
	return 0;
}

static int load_function(void *arg, const void *text, size_t len)
{
	struct load *load = arg;

	return load->pass == LOAD_CHECK ? 0 : add_function(&load->functions, text, len);
}

static int snapshot_read_file(struct load *load, int fd)
{
	struct rdb_sink sink = {
		.key = load_key,
		.other = load_other,
		.function = load_function,
		.arg = load,
		.databases = load->cfg->databases,
	};
	struct rdb_report rep;
	int ret = rdb_read(fd, &sink, &rep);

	if (ret && *rep.text)
		snprintf(load->err, load->err_len,
			 "%s, offset %" PRIu64 ": %s; put a good copy in its place", load->path,
			 rep.offset, rep.text);
	if (!ret && load->pass != LOAD_SET && !rep.checksummed)
		log_notice("%s has no checksum: damage inside values would not be noticed",
			   load->path);
	return ret;
}

/*
 * Copies a file of which a part will be skipped: the next save replaces it, and would lose that
 * part.  Before the first key is set, since only a store that was not loaded is loaded again.
 */
static int keep_original(const struct load *load)
{
	struct job job = { .dir = load->cfg->dir, .name = load->cfg->dbfilename };
	void (*before)(int) = signal(SIGXFSZ, SIG_IGN); /* a limit is an error of write(2) */
	int dir_fd = open_dir(&job), ret = dir_fd;
	char kept[NAME_MAX + 1];

	if (dir_fd >= 0) {
		ret = aside_copy(dir_fd, job.name, ORIGINAL, kept);
		close(dir_fd);
	}
	signal(SIGXFSZ, before);
	if (ret)
		snprintf(load->err, load->err_len,
			 "%s: the next save would lose what is skipped, and the file cannot be "
			 "copied: %s; %s, with the file in it",
			 load->path, strerror(-ret), remedy(ret));
	else
		log_notice("%s is copied to %s: it holds what is skipped, and the next save "
			   "replaces it",
			   load->path, kept);
	return ret;
}

/* Reads the whole file without changing the store, and decides whether it may be loaded. */
static int check_file(const struct load *job, int fd, enum rdb_other policy)
{
	struct load load = *job;
	int ret;

	load.pass = LOAD_CHECK;
	ret = snapshot_read_file(&load, fd);
	if (ret)
		return ret;
	if (load.others && policy == RDB_OTHER_REFUSE) {
		snprintf(load.err, load.err_len,
			 "%s, offset %" PRIu64 ": %s (the first of %" PRIu64
			 "); set rdb-other-types to skip to load the rest",
			 load.path, load.other_at, load.other, load.others);
		return -ENOTSUP;
	}
	return load.others ? keep_original(&load) : 0;
}

static void log_loaded(const struct load *load)
{
	uint64_t limit = load->cfg->maxmemory, used = store_memory(load->st);
	uint64_t max = store_max_keys(load->st);

	log_notice("%s: %" PRIu64 " keys loaded, %" PRIu64 " had expired, %" PRIu64 " skipped",
		   load->path, load->keys, load->expired, load->others);
	if (load->others > OTHERS_LOGGED)
		log_warning("%s: %" PRIu64 " more were skipped than are listed above", load->path,
			    load->others - OTHERS_LOGGED);
	if (load->twice)
		log_warning("%s: %" PRIu64 " keys are there more than once: the first one counts",
			    load->path, load->twice);
	if (load->keys > max)
		log_warning("%s has %" PRIu64 " keys, and the index was made for %" PRIu64
			    ": look-ups in it take longer; raise max-keys",
			    load->path, load->keys, max);
	if (limit && used > limit)
		log_warning("%s takes %" PRIu64 " MiB, and maxmemory is %" PRIu64
			    " MiB: writes that need memory are refused, or evict; raise maxmemory",
			    load->path, used >> 20, limit >> 20);
}

/* One pass that sets keys. */
static int set_keys(struct load *load, int fd)
{
	int ret = fill_begin(&load->fill, load->st, load->cfg, load->err, load->err_len);
	if (ret)
		return ret;
	ret = snapshot_read_file(load, fd);
	if (!ret && fill_wait(&load->fill))
		ret = fail_fill(load);
	fill_end(&load->fill);
	load->twice = load->fill.refused;
	load->keys -= load->twice;
	return ret;
}

/* Sets no key before all of the file was read. */
static int check_and_set(struct load *load, int fd, enum rdb_other policy)
{
	int ret = fill_start_over(load->st, load->err, load->err_len);

	if (!ret)
		ret = check_file(load, fd, policy);
	if (ret)
		return ret;
	load->pass = LOAD_SET;
	return set_keys(load, fd);
}

static int load_file(struct load *load, int fd, enum rdb_other policy)
{
	struct load first = *load; /* with LOAD_FIRST */
	int ret = set_keys(&first, fd);

	if (!ret) {
		*load = first;
	} else {
		free(first.functions.bytes);
		if (!loading_is_stopped())
			ret = check_and_set(load, fd, policy);
	}
	if (ret)
		return ret;
	log_loaded(load);
	snapshot_count_from(load->st);
	return 0;
}

static const char *snapshot_path(const struct config *cfg, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "%s/%s", cfg->dir, cfg->dbfilename);
	return path;
}

bool snapshot_exists(const struct config *cfg)
{
	char path[PATH_MAX];

	return !access(snapshot_path(cfg, path), F_OK);
}

void snapshot_clean(const struct config *cfg)
{
	struct job job = { .dir = cfg->dir };
	int dir_fd = open_dir(&job);

	if (dir_fd < 0)
		return; /* saving and loading report this error */
	if (faccessat(dir_fd, ".", W_OK | X_OK, AT_EACCESS) == 0)
		remove_stale(dir_fd, job.dir);
	close(dir_fd);
}

/* Opens the file; a descriptor, -ENOENT, or an error with its sentence in job->error. */
static int open_file(struct job *job)
{
	int ret = check_name(job), dir_fd, fd;

	if (ret)
		return ret;
	dir_fd = open_dir(job);
	if (dir_fd < 0)
		return dir_fd;
	/* O_NONBLOCK: if it is a FIFO, do not wait for a writer */
	fd = openat(dir_fd, job->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	ret = -errno;
	close(dir_fd);
	if (fd >= 0)
		return fd;
	if (ret == -ENOENT)
		return snapshot_fail(job, ret, "%s/%s does not exist", job->dir, job->name);
	return snapshot_fail(job, ret, "%s/%s cannot be opened: %s; let xkvd's user read it",
			     job->dir, job->name, strerror(-ret));
}

int snapshot_set_aside(const struct config *cfg, char *err, unsigned int err_len)
{
	struct job job = { .dir = cfg->dir, .name = cfg->dbfilename };
	int dir_fd = open_dir(&job), ret = dir_fd;
	char kept[NAME_MAX + 1];

	if (dir_fd < 0) {
		snprintf(err, err_len, "%s", job.error);
		return ret;
	}
	ret = aside_move(dir_fd, job.name, UNREADABLE, kept);
	close(dir_fd);
	if (ret)
		snprintf(err, err_len, "%s/%s cannot be renamed to %s: %s; %s", job.dir, job.name,
			 kept, strerror(-ret), remedy(ret));
	else
		log_warning("%s/%s was set aside as %s; starting empty", job.dir, job.name, kept);
	return ret;
}

int snapshot_load(struct store *st, const struct config *cfg, uint64_t *keys, char *err,
		  unsigned int err_len)
{
	struct job job = { .st = st, .dir = cfg->dir, .name = cfg->dbfilename };
	struct load load = { .st = st, .cfg = cfg, .err = err, .err_len = err_len };
	char path[PATH_MAX];
	int fd, ret, left;
	struct stat sb;

	init_once();
	*keys = 0;
	ret = fill_remove_rest(st, err, err_len);
	if (ret)
		return ret;
	fd = open_file(&job);
	if (fd < 0) {
		snprintf(err, err_len, "%s", job.error);
		return fd;
	}
	load.path = snapshot_path(cfg, path);
	load.now = (int64_t)store_now_ms(st);
	if (!fstat(fd, &sb))
		loading_begin((uint64_t)sb.st_size);
	ret = load_file(&load, fd, cfg->rdb_other);
	close(fd);
	if (ret) {
		free(load.functions.bytes);
		/* one that was ended is followed by the end of xkvd */
		left = ret == -EINTR ? 0 : fill_remove_rest(st, err, err_len);
		return left ? left : ret;
	}
	snapshot_set_functions(load.functions.bytes, load.functions.len);
	pthread_mutex_lock(&state.lock);
	*keys = state.info.loaded = load.keys;
	state.info.expired = load.expired;
	pthread_mutex_unlock(&state.lock);
	return 0;
}

/*
 * The libraries are in front of the first key: without any, the rest of the file is of no interest.
 * Else its checksum is, which is at the end.
 */
static int meet_key(void *arg, const struct rdb_key *k)
{
	const struct records *found = arg;

	return found->len ? 0 : -ECANCELED;
}

static int pass_over(void *arg, const struct rdb_misfit *o)
{
	return 0;
}

static int take_function(void *arg, const void *text, size_t len)
{
	return add_function(arg, text, len);
}

/* Reads the libraries.  0, -ENOENT if there is no file, or an error with its sentence. */
static int read_functions(struct job *job, struct records *found)
{
	const struct rdb_sink sink = { .key = meet_key,
				       .other = pass_over,
				       .function = take_function,
				       .arg = found,
				       .databases = STORE_DATABASES };
	int fd = open_file(job), ret;
	struct rdb_report rep;

	if (fd < 0)
		return fd;
	ret = rdb_read(fd, &sink, &rep);
	close(fd);
	if (!ret || ret == -ECANCELED)
		return 0;
	return snapshot_fail(job, ret, "%s/%s, offset %" PRIu64 ": %s", job->dir, job->name,
			     rep.offset, *rep.text ? rep.text : strerror(-ret));
}

void snapshot_load_functions(const struct config *cfg)
{
	struct job job = { .dir = cfg->dir, .name = cfg->dbfilename };
	struct records found = { 0 };
	int ret, dir_fd;

	init_once();
	found.bytes = handed_given(&found.len);
	ret = found.bytes ? 0 : read_functions(&job, &found);
	if (!ret) {
		snapshot_set_functions(found.bytes, found.len);
		return;
	}
	free(found.bytes);
	if (ret == -ENOENT)
		return;
	log_warning("functions were not loaded: %s", job.error);
	state.keep_unreadable = true;
	dir_fd = open_dir(&job);
	if (dir_fd < 0 || keep_unreadable(&job, dir_fd))
		log_warning("%s", job.error);
	if (dir_fd >= 0)
		close(dir_fd);
}

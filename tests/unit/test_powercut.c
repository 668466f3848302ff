// SPDX-License-Identifier: BSD-2-Clause
/*
 * What the write log does to files is recorded, and then each moment is the one of a power cut: of
 * what the disk had not been told to take, any sector may be there or not.  Loaded, it must be the
 * store as it was after one of its transactions: of those whose sync was acknowledged, or a later
 * one.  The store is userstore, the functions of files are wrapped (tests.mk).
 */
/* tests/run: seconds 20 */
/* tests/run: firm */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/config/config.h"
#include "loader/persist/rdb.h"
#include "loader/persist/writelog.h"
#include "loader/store/txn.h"
#include "loader/util/clock.h"
#include "loader/util/log.h"
#include "random.h"
#include "userstore.h"

#define SECTOR	  512
#define FILES_MAX 64
#define BYTES_MAX (256U << 10) /* of a file */
#define EVENTS	  4096
#define KEYS	  12
#define OPS_MAX	  512

/* ---- the recorder ------------------------------------------------------------ */

enum what { CREATE, WRITE, TRUNCATE, SYNC, RENAME, UNLINK, SYNC_DIR, ACK, SYNC_FAILED };

struct event {
	enum what what;
	int file; /* by its number, whatever its name is */
	char name[64], to[64];
	uint64_t at, len; /* ACK: at is the operation */
	char *bytes;	  /* owned */
};

static struct {
	pthread_mutex_t lock;
	atomic_bool on;		  /* looked at by all threads, with and without the lock */
	atomic_int file_of[1024]; /* by descriptor, + 1 */
	char name[FILES_MAX][64];
	int files;
	struct event event[EVENTS];
	int count;
} rec = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* What the next calls come to. */
static struct fault {
	enum what what;
	int error;    /* 0: a short write, or a delay */
	int skip;     /* but not so many */
	int calls;    /* so many of them */
	int delay_ms; /* of each */
	size_t room;  /* bytes that a write to an increment may have, all others succeed */
	enum what also;
	int also_calls; /* these fail, too, */
	int also_skip;	/* but not so many */
	int done;
} fault;

static struct event *record(enum what what, int file)
{
	struct event *e = &rec.event[rec.count];

	assert_true(rec.count++ < EVENTS);
	*e = (struct event){ .what = what, .file = file };
	return e;
}

static int find_name(const char *name)
{
	for (int i = rec.files; i--;)
		if (!strcmp(rec.name[i], name))
			return i;
	return -1;
}

static int tracked(int fd)
{
	return fd >= 0 && fd < 1024 ? rec.file_of[fd] - 1 : -1;
}

/* An error that is due, or 0.  Without the lock: it may sleep. */
static int due(enum what what)
{
	int error = 0, delay = 0;

	pthread_mutex_lock(&rec.lock);
	if (fault.calls && fault.what == what && !fault.skip--) {
		fault.skip = 0;
		fault.calls--;
		fault.done++;
		error = fault.error;
		delay = fault.delay_ms;
	}
	if (fault.also_calls && fault.also == what && !fault.also_skip--) {
		fault.also_skip = 0;
		fault.also_calls--;
		error = EIO;
	}
	pthread_mutex_unlock(&rec.lock);
	usleep((useconds_t)delay * 1000);
	errno = error;
	return error;
}

int __real_openat(int dir, const char *name, int flags, ...);
ssize_t __real_write(int fd, const void *bytes, size_t len);
ssize_t __real_pwrite(int fd, const void *bytes, size_t len, off_t at);
int __real_fsync(int fd);
int __real_fdatasync(int fd);
int __real_ftruncate(int fd, off_t size);
int __real_renameat(int from, const char *name, int to, const char *other);
int __real_unlinkat(int dir, const char *name, int flags);
int __real_close(int fd);
int __wrap_openat(int dir, const char *name, int flags, ...);
ssize_t __wrap_write(int fd, const void *bytes, size_t len);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t len, off_t at);
int __wrap_fsync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_ftruncate(int fd, off_t size);
int __wrap_renameat(int from, const char *name, int to, const char *other);
int __wrap_unlinkat(int dir, const char *name, int flags);
int __wrap_close(int fd);

int __wrap_openat(int dir, const char *name, int flags, ...)
{
	int fd, file;

	if (rec.on && flags & O_CREAT && due(CREATE))
		return -1;
	fd = __real_openat(dir, name, flags, 0640);
	pthread_mutex_lock(&rec.lock);
	if (rec.on && fd >= 0 && fd < 1024 && flags & (O_RDWR | O_WRONLY)) {
		file = find_name(name);
		if (file < 0 && flags & O_CREAT) {
			file = rec.files++;
			assert_true(file < FILES_MAX);
			snprintf(rec.name[file], sizeof(rec.name[file]), "%s", name);
			snprintf(record(CREATE, file)->name, sizeof(rec.name[file]), "%s", name);
		} else if (file >= 0 && flags & O_TRUNC) {
			record(TRUNCATE, file);
		}
		rec.file_of[fd] = file + 1;
	}
	pthread_mutex_unlock(&rec.lock);
	return fd;
}

int __wrap_close(int fd)
{
	pthread_mutex_lock(&rec.lock);
	if (fd >= 0 && fd < 1024)
		rec.file_of[fd] = 0;
	pthread_mutex_unlock(&rec.lock);
	return __real_close(fd);
}

static void record_bytes(int fd, const void *bytes, size_t len, uint64_t at)
{
	struct event *e;

	pthread_mutex_lock(&rec.lock);
	if (rec.on && tracked(fd) >= 0) {
		e = record(WRITE, tracked(fd));
		e->at = at;
		e->len = len;
		e->bytes = malloc(len);
		assert_non_null(e->bytes);
		memcpy(e->bytes, bytes, len);
	}
	pthread_mutex_unlock(&rec.lock);
}

ssize_t __wrap_write(int fd, const void *bytes, size_t len)
{
	off_t at = rec.on && tracked(fd) >= 0 ? lseek(fd, 0, SEEK_CUR) : 0;
	ssize_t n;

	if (rec.on && tracked(fd) >= 0 && !fault.room && due(WRITE))
		return -1;
	n = __real_write(fd, bytes, len);
	if (n > 0)
		record_bytes(fd, bytes, (size_t)n, (uint64_t)at);
	return n;
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t len, off_t at)
{
	bool is_short;
	ssize_t n;

	pthread_mutex_lock(&rec.lock);
	is_short = fault.what == WRITE && fault.calls && !fault.error;
	pthread_mutex_unlock(&rec.lock);

	int error = rec.on && tracked(fd) >= 0 && len > fault.room ? due(WRITE) : 0;

	/* half of what fails is written nevertheless */
	n = __real_pwrite(fd, bytes, (is_short || error) && len > 1 ? len / 2 : len, at);
	if (n > 0)
		record_bytes(fd, bytes, (size_t)n, (uint64_t)at);
	errno = error;
	return error ? -1 : n;
}

static int sync_and_record(int fd, int (*sync)(int fd))
{
	int ret;

	if (rec.on && due(tracked(fd) < 0 ? SYNC_DIR : SYNC)) {
		pthread_mutex_lock(&rec.lock);
		if (tracked(fd) >= 0)
			record(SYNC_FAILED, tracked(fd));
		pthread_mutex_unlock(&rec.lock);
		errno = EIO;
		return -1;
	}
	ret = sync(fd);
	pthread_mutex_lock(&rec.lock);
	if (rec.on && !ret && tracked(fd) >= 0)
		record(SYNC, tracked(fd));
	else if (rec.on && !ret)
		record(SYNC_DIR, -1);
	pthread_mutex_unlock(&rec.lock);
	return ret;
}

int __wrap_fsync(int fd)
{
	return sync_and_record(fd, __real_fsync);
}

int __wrap_fdatasync(int fd)
{
	return sync_and_record(fd, __real_fdatasync);
}

int __wrap_ftruncate(int fd, off_t size)
{
	int ret;

	if (rec.on && tracked(fd) >= 0 && due(TRUNCATE))
		return -1;
	ret = __real_ftruncate(fd, size);
	pthread_mutex_lock(&rec.lock);
	if (rec.on && !ret && tracked(fd) >= 0)
		record(TRUNCATE, tracked(fd))->at = (uint64_t)size;
	pthread_mutex_unlock(&rec.lock);
	return ret;
}

int __wrap_renameat(int from, const char *name, int to, const char *other)
{
	int ret, file, gone;
	struct event *e;

	if (rec.on && due(RENAME))
		return -1;
	ret = __real_renameat(from, name, to, other);
	pthread_mutex_lock(&rec.lock);
	if (rec.on && !ret) {
		file = find_name(name);
		gone = find_name(other);
		assert_true(file >= 0);
		if (gone >= 0)
			rec.name[gone][0] = '\0';
		e = record(RENAME, file);
		snprintf(e->name, sizeof(e->name), "%s", name);
		snprintf(e->to, sizeof(e->to), "%s", other);
		snprintf(rec.name[file], sizeof(rec.name[file]), "%s", other);
	}
	pthread_mutex_unlock(&rec.lock);
	return ret;
}

int __wrap_unlinkat(int dir, const char *name, int flags)
{
	int ret = __real_unlinkat(dir, name, flags), file;

	pthread_mutex_lock(&rec.lock);
	file = rec.on && !ret ? find_name(name) : -1;
	if (file >= 0) {
		snprintf(record(UNLINK, file)->name, sizeof(rec.name[file]), "%s", name);
		rec.name[file][0] = '\0';
	}
	pthread_mutex_unlock(&rec.lock);
	return ret;
}

/* ---- what a power cut leaves ---------------------------------------------------- */

/* How much of what the disk had not been told to take is there. */
enum luck { NOTHING, EVERYTHING, ANYTHING };

struct disk_file {
	char *bytes, *cache; /* owned: what the disk certainly has; what the kernel has */
	uint64_t size, cache_size;
	uint64_t high; /* it has never had more bytes */
	int since;     /* the event of its last sync */
};

static struct disk_file disk[FILES_MAX];
static struct {
	char name[64];
	int file;
} entry[FILES_MAX]; /* of the directory */
static int entries;

static void apply_bytes(char *bytes, uint64_t *size, const struct event *e, uint64_t from,
			uint64_t to)
{
	uint64_t first = e->at > from ? e->at : from, last = e->at + e->len;

	if (e->what == TRUNCATE) {
		if (e->at < to)
			memset(bytes + (e->at > from ? e->at : from), 0,
			       to - (e->at > from ? e->at : from));
		*size = e->at;
		return;
	}
	assert_true(last <= BYTES_MAX);
	if (*size < last)
		*size = last;
	last = last < to ? last : to;
	if (first < last)
		memcpy(bytes + first, e->bytes + (first - e->at), last - first);
}

/* The changes of a file between two events, in one sector, up to the k-th of them. */
static void apply_some(int file, int from, int to, uint64_t k, uint64_t begin, uint64_t *size)
{
	for (int i = from; i < to && k; i++) {
		const struct event *e = &rec.event[i];

		if (e->file != file || (e->what != WRITE && e->what != TRUNCATE))
			continue;
		apply_bytes(disk[file].cache, size, e, begin, begin + SECTOR);
		k--;
	}
}

static int pending(int file, int from, int to)
{
	int n = 0;

	for (int i = from; i < to; i++)
		n += rec.event[i].file == file &&
		     (rec.event[i].what == WRITE || rec.event[i].what == TRUNCATE);
	return n;
}

static uint64_t draw(enum luck luck, int n)
{
	if (luck == ANYTHING && below(3)) /* mostly some are there, some are not */
		return below((uint64_t)n + 1);
	return luck == NOTHING ? 0 : (uint64_t)n;
}

/* disk[file].cache: as it is found after the cut at event `to`. */
static void cut_file(int file, int to, enum luck luck)
{
	struct disk_file *d = &disk[file];
	int n = pending(file, d->since, to);
	uint64_t unused = 0;

	memcpy(d->cache, d->bytes, d->high);
	d->cache_size = d->size;
	if (!n)
		return;
	for (uint64_t at = 0; at < d->high; at += SECTOR)
		apply_some(file, d->since, to, draw(luck, n), at, &unused);
	apply_some(file, d->since, to, draw(luck, n), BYTES_MAX - SECTOR, &d->cache_size);
	if (d->cache_size < d->high)
		memset(d->cache + d->cache_size, 0, d->high - d->cache_size);
}

static void link_name(const char *name, int file)
{
	int i = 0;

	while (i < entries && strcmp(entry[i].name, name) != 0)
		i++;
	assert_true(i < FILES_MAX);
	entries += i == entries;
	snprintf(entry[i].name, sizeof(entry[i].name), "%s", name);
	entry[i].file = file;
}

static void unlink_name(const char *name, int file)
{
	for (int i = 0; i < entries; i++)
		if (!strcmp(entry[i].name, name) && entry[i].file == file)
			entry[i] = entry[--entries];
}

static void apply_entry(const struct event *e)
{
	if (e->what == CREATE)
		link_name(e->name, e->file);
	if (e->what == UNLINK || e->what == RENAME)
		unlink_name(e->name, e->file);
	if (e->what == RENAME)
		link_name(e->to, e->file);
}

static bool is_entry(const struct event *e)
{
	return e->what == CREATE || e->what == UNLINK || e->what == RENAME;
}

static void put_bytes(const char *path, const char *bytes, uint64_t size)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0640);

	assert_true(fd >= 0);
	assert_int_equal(__real_pwrite(fd, bytes, size, 0), size);
	__real_close(fd);
}

/* ---- the store, and what it was -------------------------------------------------- */

struct op {
	int key; /* that it has set to its number, or, if that is divisible by 5, deleted */
};

static struct {
	char dir[64], crash[128];
	struct config cfg;
	struct store *st;
	struct store_ctx *ctx;
	struct op op[OPS_MAX];
	int ops;
	int acked; /* before what is recorded */
} bed;

static char error[1024];

static size_t value_of(int number, char value[2048])
{
	size_t len = (size_t)snprintf(value, 2048, "%d:", number);

	/* sometimes as pages look that have not been written */
	memset(value + len, number % 3 ? 'v' : 0, 2048 - len);
	return len + (size_t)(number * 97 % 1900);
}

/* A transaction: a key, and how many there were. */
static void do_op(void)
{
	struct op *op = &bed.op[++bed.ops];
	char key[16], value[2048];
	size_t len = value_of(bed.ops, value);

	op->key = (int)below(KEYS);
	snprintf(key, sizeof(key), "k%d", op->key);
	assert_int_equal(store_txn_begin(bed.ctx), 0);
	if (bed.ops % 5)
		store_set(bed.ctx, key, strlen(key), value, len, 0, 0, 0, NULL);
	else
		store_delete(bed.ctx, key, strlen(key), NULL);
	len = (size_t)snprintf(value, sizeof(value), "%d", bed.ops);
	store_set(bed.ctx, "n", 1, value, len, 0, 0, 0, NULL);
	assert_int_equal(store_txn_commit(bed.ctx), 0);
}

/* What happens while the next base is written. */
static struct {
	int ops;		    /* so many are done, each after a key */
	const struct fault *begins; /* after the first key, NULL = none */
	unsigned int then_ms;	    /* so long it takes until the second */
} walk;

static void begin_fault(struct fault next);

void __real_rdb_write_key(struct rdb_writer *w, const void *key, size_t key_len, const void *value,
			  size_t value_len, uint64_t expire_ms);
void __wrap_rdb_write_key(struct rdb_writer *w, const void *key, size_t key_len, const void *value,
			  size_t value_len, uint64_t expire_ms);

void __wrap_rdb_write_key(struct rdb_writer *w, const void *key, size_t key_len, const void *value,
			  size_t value_len, uint64_t expire_ms)
{
	__real_rdb_write_key(w, key, key_len, value, value_len, expire_ms);
	if (walk.begins)
		begin_fault(*walk.begins);
	if (walk.begins)
		usleep(walk.then_ms * 1000);
	walk.begins = NULL;
	if (walk.ops > 0 && walk.ops--)
		do_op();
}

static void ack(void)
{
	uint64_t position = writelog_sync_soon();

	while (!writelog_has(position))
		usleep(200);
	pthread_mutex_lock(&rec.lock);
	if (rec.on)
		record(ACK, -1)->at = (uint64_t)bed.ops;
	pthread_mutex_unlock(&rec.lock);
}

static void idle(void)
{
	struct writelog_info info;

	do {
		usleep(500);
		writelog_status(&info);
	} while (info.rewriting);
}

/* The number of the last operation that was loaded; all keys are as they were after it. */
static int check_loaded(void)
{
	struct store_entry e;
	char key[16], value[2048];
	int n = 0, last;

	if (!store_get(bed.ctx, "n", 1, &e)) {
		snprintf(value, sizeof(value), "%.*s", (int)e.value_len, (const char *)e.value);
		n = atoi(value);
	}
	assert_true(n <= bed.ops);
	for (int k = 0; k < KEYS; k++) {
		for (last = n; last && bed.op[last].key != k;)
			last--;
		snprintf(key, sizeof(key), "k%d", k);
		if (!last || last % 5 == 0) {
			assert_int_equal(store_get(bed.ctx, key, strlen(key), &e), -ENOENT);
			continue;
		}
		assert_int_equal(store_get(bed.ctx, key, strlen(key), &e), 0);
		assert_int_equal(e.value_len, value_of(last, value));
		assert_memory_equal(e.value, value, e.value_len);
	}
	return n;
}

static int load(const char *dir)
{
	struct config cfg = bed.cfg;
	uint64_t keys;
	int ret;

	cfg.dir = (char *)dir;
	error[0] = '\0';
	ret = writelog_load(bed.st, &cfg, &keys, error, sizeof(error));
	return ret;
}

/* ---- cases ------------------------------------------------------------------------ */

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
	return ftw->level ? remove(path) : 0;
}

static void empty(const char *dir)
{
	nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Makes the files of a power cut at this event. */
static void cut(int to, int dir_since, enum luck luck)
{
	char path[PATH_MAX];
	int kept = entries;
	__typeof__(entry[0]) before[FILES_MAX];

	memcpy(before, entry, sizeof(before));
	for (int i = dir_since; i < to; i++)
		if (is_entry(&rec.event[i]) && draw(luck, 1))
			apply_entry(&rec.event[i]);
	empty(bed.crash);
	snprintf(path, sizeof(path), "%s/log", bed.crash);
	assert_int_equal(mkdir(path, 0700), 0);
	for (int i = 0; i < entries; i++) {
		cut_file(entry[i].file, to, luck);
		snprintf(path, sizeof(path), "%s/log/%.63s", bed.crash, entry[i].name);
		put_bytes(path, disk[entry[i].file].cache, disk[entry[i].file].cache_size);
	}
	memcpy(entry, before, sizeof(before));
	entries = kept;
}

static void check_cut(int at, int acked)
{
	int ret = load(bed.crash), n;

	if (ret == -ENOENT && !acked)
		return;
	if (ret)
		fail_msg("event %d: %d: %s", at, ret, error);
	n = check_loaded();
	if (n < acked)
		fail_msg("event %d: %d of %d acknowledged operations", at, n, acked);
	assert_int_equal(load(bed.crash), 0); /* as it was mended */
	assert_int_equal(check_loaded(), n);
}

static void sync_file(int file, int to)
{
	struct disk_file *d = &disk[file];

	for (int i = d->since; i < to; i++)
		if (rec.event[i].file == file &&
		    (rec.event[i].what == WRITE || rec.event[i].what == TRUNCATE))
			apply_bytes(d->bytes, &d->size, &rec.event[i], 0, BYTES_MAX);
	d->since = to;
}

/* After an error of fsync the kernel does not write again what it had to: any of it is there. */
static void lose_file(int file, int to)
{
	struct disk_file *d = &disk[file];

	cut_file(file, to, ANYTHING);
	memcpy(d->bytes, d->cache, d->high);
	d->size = d->cache_size;
	d->since = to;
}

static void measure_files(void)
{
	for (int i = 0; i < rec.count; i++) {
		const struct event *e = &rec.event[i];

		if (e->what == WRITE && disk[e->file].high < e->at + e->len)
			disk[e->file].high = e->at + e->len;
	}
}

/*
 * Power cuts at all moments of what was recorded from event `from` on, and as many as `tries` in
 * which chance decides.  Returns how many operations were acknowledged.
 */
static int each_moment(int from, int tries)
{
	int dir_since = 0, acked = bed.acked;

	measure_files();
	for (int at = 0; at <= rec.count; at++) {
		for (int i = 0; at >= from && i < tries + 2; i++) {
			cut(at, dir_since, i == 0 ? NOTHING : i == 1 ? EVERYTHING : ANYTHING);
			check_cut(at, acked);
		}
		if (at == rec.count)
			break;
		if (rec.event[at].what == ACK)
			acked = (int)rec.event[at].at;
		if (rec.event[at].what == SYNC)
			sync_file(rec.event[at].file, at);
		if (rec.event[at].what == SYNC_FAILED)
			lose_file(rec.event[at].file, at);
		for (; rec.event[at].what == SYNC_DIR && dir_since < at; dir_since++)
			apply_entry(&rec.event[dir_since]);
	}
	return acked;
}

static void begin_recording(void)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/log", bed.dir);
	mkdir(path, 0700);
	rec.on = true;
}

static void run(int ops)
{
	assert_int_equal(writelog_configure(bed.st, &bed.cfg, true, error, sizeof(error)), 0);
	for (int i = 0; i < ops; i++) {
		do_op();
		if (below(4) == 0)
			ack();
		if (below(12) == 0)
			writelog_rewrite();
		if (below(8) == 0)
			idle();
		if (below(2))
			usleep((useconds_t)below(3000)); /* rounds of one, and of several */
	}
	idle();
	ack();
}

static void end_run(void)
{
	struct config off = bed.cfg;

	off.appendonly = false;
	assert_int_equal(writelog_configure(bed.st, &off, true, error, sizeof(error)), 0);
	rec.on = false;
}

static void forget_recorded(void)
{
	while (rec.count)
		free(rec.event[--rec.count].bytes);
	memset(rec.name, 0, sizeof(rec.name));
	rec.files = entries = 0;
	for (int i = 0; i < FILES_MAX; i++) {
		memset(disk[i].bytes, 0, disk[i].high);
		memset(disk[i].cache, 0, disk[i].high);
		disk[i].size = disk[i].cache_size = disk[i].high = 0;
		disk[i].since = 0;
	}
}

static int set_up(void **state)
{
	memset(&bed, 0, sizeof(bed));
	memset(&fault, 0, sizeof(fault));
	log_set_level(LOG_LEVEL_WARNING + 1);
	strcpy(bed.dir, "/tmp/xkv-test-cut-XXXXXX");
	if (!mkdtemp(bed.dir))
		return -1;
	snprintf(bed.crash, sizeof(bed.crash), "%s/crash", bed.dir);
	bed.cfg.dir = bed.dir;
	bed.cfg.appenddirname = "log";
	bed.cfg.appendfilename = "a.aof";
	bed.cfg.appendonly = true;
	bed.cfg.appendfsync = APPENDFSYNC_NO;
	bed.cfg.aof_load_truncated = true;
	bed.cfg.aof_timestamps = true;
	bed.cfg.databases = 16;
	bed.st = userstore_new();
	bed.ctx = bed.st ? store_ctx_get(bed.st) : NULL;
	for (int i = 0; i < FILES_MAX; i++) {
		disk[i] = (struct disk_file){ .bytes = calloc(1, BYTES_MAX),
					      .cache = calloc(1, BYTES_MAX) };
		if (!disk[i].bytes || !disk[i].cache)
			return -1;
	}
	return !bed.ctx || mkdir(bed.crash, 0700);
}

static int tear_down(void **state)
{
	end_run();
	store_ctx_put(bed.ctx);
	userstore_free(bed.st);
	forget_recorded();
	empty(bed.dir);
	rmdir(bed.dir);
	for (int i = 0; i < FILES_MAX; i++) {
		free(disk[i].bytes);
		free(disk[i].cache);
	}
	return 0;
}

static void test_each_moment(void **state)
{
	random_state = 1;
	begin_recording();
	run(60);
	end_run();
	each_moment(0, 6);
}

/* The files that the last power cut has left are those of the log now. */
static void begin_again(void)
{
	char from[160], to[128];
	struct dirent *e;
	struct stat st;
	DIR *dir;
	int fd;

	snprintf(to, sizeof(to), "%s/log", bed.dir);
	snprintf(from, sizeof(from), "%s/log", bed.crash);
	empty(to);
	assert_int_equal(rename(from, to), 0);
	forget_recorded();
	for (dir = opendir(to); dir && (e = readdir(dir));) {
		struct disk_file *d = &disk[rec.files];

		if (e->d_name[0] == '.')
			continue;
		fd = __real_openat(dirfd(dir), e->d_name, O_RDONLY);
		assert_true(fd >= 0 && !fstat(fd, &st) && st.st_size <= BYTES_MAX);
		d->high = d->size = (uint64_t)st.st_size;
		assert_int_equal(pread(fd, d->bytes, d->size, 0), st.st_size);
		__real_close(fd);
		snprintf(rec.name[rec.files], sizeof(rec.name[0]), "%.63s", e->d_name);
		link_name(rec.name[rec.files], rec.files);
		rec.files++;
	}
	closedir(dir);
}

/* Power cuts while an xkvd loads what a power cut has left, and goes on with it. */
static void test_one_after_the_other(void **state)
{
	random_state = 2;
	begin_recording();
	run(20);
	end_run();
	for (int i = 0; i < 8; i++) {
		for (uint64_t n = below(8); n; n--) /* the last moments, when not all is synced */
			free(rec.event[--rec.count].bytes);
		bed.acked = each_moment(0, 1);
		begin_again();
		rec.on = true;
		assert_int_equal(load(bed.dir), 0);
		bed.ops = check_loaded();
		run(6);
		end_run();
	}
	each_moment(0, 1);
}

/* How often it stands in the files behind the base. */
static int count_logged(const char *word)
{
	char path[PATH_MAX], *bytes = calloc(1, BYTES_MAX + 1), *at;
	struct dirent *e;
	int count = 0, fd;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/log", bed.dir);
	for (dir = opendir(path); dir && (e = readdir(dir));) {
		if (!strstr(e->d_name, ".incr."))
			continue;
		fd = openat(dirfd(dir), e->d_name, O_RDONLY);
		at = bytes;
		for (ssize_t left = read(fd, bytes, BYTES_MAX); left > 0; count++) {
			char *next = memmem(at, (size_t)left, word, strlen(word));

			if (!next)
				break;
			left -= next + strlen(word) - at;
			at = next + strlen(word);
		}
		close(fd);
	}
	closedir(dir);
	free(bytes);
	return count;
}

static int count_increments(void)
{
	struct dirent *e;
	int count = 0;
	char path[128];
	DIR *dir;

	snprintf(path, sizeof(path), "%s/log", bed.dir);
	for (dir = opendir(path); dir && (e = readdir(dir));)
		count += !!strstr(e->d_name, ".incr.");
	closedir(dir);
	return count;
}

/* A log that is loaded each night and seldom changed does not get more files from that. */
static void test_starts_without_a_change(void **state)
{
	int first = 0;

	random_state = 12;
	begin_recording();
	run(8);
	writelog_rewrite();
	idle();
	while (!count_logged("XKV:base")) /* with no change behind it */
		usleep(500);
	end_run();
	for (int i = 0; i < 6; i++) {
		assert_int_equal(load(bed.dir), 0);
		assert_int_equal(check_loaded(), bed.ops);
		run(i == 3);
		first = first ? first : count_increments();
		assert_int_equal(count_increments(), first + (i > 3));
		assert_int_equal(count_logged("XKV:base"), 1); /* --restore-until needs it */
		end_run();
	}
	each_moment(0, 2);
	assert_int_equal(load(bed.dir), 0);
	assert_int_equal(check_loaded(), bed.ops);
}

/* ---- faults ------------------------------------------------------------------------ */

static void begin_fault(struct fault next)
{
	pthread_mutex_lock(&rec.lock);
	fault = next;
	pthread_mutex_unlock(&rec.lock);
}

static int faults_done(void)
{
	int done;

	pthread_mutex_lock(&rec.lock);
	done = fault.done;
	pthread_mutex_unlock(&rec.lock);
	return done;
}

/* For so long: what is done each second is done, until `says` is (or is not) in what INFO says. */
static void wait_for_text(const char *says, bool wanted, struct writelog_info *info)
{
	uint64_t until = monotonic_ns() + 15000000000ULL;

	do {
		writelog_second();
		usleep(2000);
		writelog_status(info);
		if (monotonic_ns() > until)
			fail_msg("\"%s\" is %s \"%s\"", says, wanted ? "not in" : "in",
				 info->error);
	} while (!!strstr(info->error, says) != wanted || (!wanted && !info->write_ok));
}

/* It is said, writes are refused, and when the fault has ended it heals; nothing was lost. */
static void breaks_and_heals(const char *says)
{
	struct writelog_info info;
	char text[256];

	for (int i = 0; i < 3; i++)
		do_op();
	writelog_sync_soon();
	wait_for_text(says, true, &info);
	assert_true(faults_done() > 0 && !info.write_ok);
	writelog_refuses(text);
	assert_string_equal(text, info.error);
	begin_fault((struct fault){ 0 });
	wait_for_text(says, false, &info);
	writelog_refuses(text);
	assert_string_equal(text, "");
	do_op();
	ack();
}

static void loads_all(void)
{
	end_run();
	assert_int_equal(load(bed.dir), 0);
	assert_int_equal(check_loaded(), bed.ops);
}

static void test_writes_that_fail(void **state)
{
	struct writelog_info info;

	random_state = 3;
	begin_recording();
	run(4);
	begin_fault((struct fault){ .what = WRITE, .calls = 5 }); /* short ones */
	run(4);
	assert_true(faults_done() >= 5);
	writelog_status(&info);
	assert_true(info.write_ok);
	begin_fault((struct fault){ .what = WRITE, .error = EIO, .calls = 1 });
	breaks_and_heals("failed: Input/output error");
	begin_fault((struct fault){ .what = WRITE, .error = ENOSPC, .calls = 1000000 });
	breaks_and_heals("failed: No space left on device");
	run(4);
	/* of a base: writes go on, without it */
	begin_fault((struct fault){ .what = CREATE, .error = ENOSPC, .calls = 1 });
	writelog_rewrite();
	idle();
	writelog_status(&info);
	assert_true(info.write_ok && info.rewrite_error && faults_done() == 1);
	begin_fault((struct fault){ .what = RENAME, .error = EIO, .calls = 1 });
	writelog_rewrite();
	idle();
	writelog_status(&info);
	assert_true(info.write_ok && info.rewrite_error && faults_done() == 1);
	run(4);
	end_run();
	each_moment(0, 1);
	assert_int_equal(load(bed.dir), 0);
	assert_int_equal(check_loaded(), bed.ops);
}

#define OPS 8 /* of them, one at least is too large for the rest of a full disk */

/* A disk that has room for bases and manifests, not for what is changed. */
static const struct fault full = { .what = WRITE, .error = ENOSPC, .calls = 1000000, .room = 600 };

static void fill_disk(struct fault how)
{
	struct writelog_info info;

	begin_fault(how);
	for (int i = 0; i < OPS; i++)
		do_op();
	wait_for_text("No space left on device", true, &info);
}

/* Is the base in force?  The store changes while it is written. */
static bool rewrite_under_load(const struct fault *begins, unsigned int then_ms)
{
	struct writelog_info info;

	walk.begins = begins;
	walk.then_ms = then_ms;
	walk.ops = OPS;
	assert_int_equal(writelog_rewrite(), 0);
	idle();
	walk.ops = 0;
	writelog_status(&info);
	return !info.rewrite_error;
}

/*
 * A base makes room on a full disk.  The increment has no room for what is changed while it is
 * written: so the base must not have one half of that.
 */
static void test_a_base_on_a_full_disk(void **state)
{
	random_state = 9;
	begin_recording();
	run(8);
	fill_disk(full);
	for (int i = 0; i < 3; i++)
		assert_true(rewrite_under_load(NULL, 0));
	begin_fault((struct fault){ 0 });
	ack();
	assert_int_equal(count_logged("EXEC"), OPS); /* nothing from before its moment */
	run(4);
	end_run();
	each_moment(0, 2);
	assert_int_equal(load(bed.dir), 0);
	assert_int_equal(check_loaded(), bed.ops);
}

/* It gets full while a base is written; it has room before the next one is in force. */
static void test_a_disk_that_is_full_for_a_while(void **state)
{
	const struct fault none = { 0 };

	random_state = 11;
	begin_recording();
	run(4);
	assert_true(rewrite_under_load(&full, 0));
	fill_disk(full);
	assert_true(rewrite_under_load(&none, 1200)); /* longer than between two tries to write */
	ack();
	run(4);
	end_run();
	each_moment(0, 1);
	assert_int_equal(load(bed.dir), 0);
	assert_int_equal(check_loaded(), bed.ops);
}

/* Until it is in force, nothing has changed for the log. */
static void test_a_base_that_fails_on_a_full_disk(void **state)
{
	const struct {
		enum what what;
		int skip;
	} fails[] = { { CREATE, 0 }, { CREATE, 1 }, { RENAME, 0 },
		      { RENAME, 1 }, { RENAME, 2 }, { SYNC_DIR, 0 } };
	struct fault also;

	random_state = 10;
	begin_recording();
	for (size_t i = 0; i < sizeof(fails) / sizeof(fails[0]); i++) {
		run(3);
		also = full;
		also.also = fails[i].what;
		also.also_calls = 1;
		also.also_skip = fails[i].skip;
		fill_disk(also);
		assert_false(rewrite_under_load(NULL, 0));
		begin_fault((struct fault){ 0 });
		ack();
	}
	end_run();
	each_moment(0, 1);
	assert_int_equal(load(bed.dir), 0);
	assert_int_equal(check_loaded(), bed.ops);
}

/* It could not even be cut off; then there is a base; and then the power is cut. */
static void test_a_write_that_is_not_taken_back(void **state)
{
	struct writelog_info info;

	random_state = 4;
	begin_recording();
	run(4);
	begin_fault((struct fault){
		.what = WRITE, .error = EIO, .calls = 1, .also = TRUNCATE, .also_calls = 2 });
	breaks_and_heals("Input/output error");
	run(3);
	begin_fault((struct fault){
		.what = WRITE, .error = EIO, .calls = 1, .also = TRUNCATE, .also_calls = 1000000 });
	do_op();
	writelog_sync_soon();
	wait_for_text("Input/output error", true, &info);
	writelog_rewrite(); /* half a transaction must not get an increment behind it */
	idle();
	writelog_status(&info);
	assert_int_equal(info.rewrite_error, 0); /* a base that has no need of it */
	end_run();
	each_moment(0, 1);
}

static void test_syncs_that_fail(void **state)
{
	random_state = 5;
	begin_recording();
	run(4);
	begin_fault((struct fault){ .what = SYNC, .error = EIO, .calls = 1 });
	breaks_and_heals("a new base is needed");
	run(3);
	/* skipped: that of the new manifest's name */
	begin_fault((struct fault){ .what = SYNC_DIR, .error = EIO, .calls = 1, .skip = 1 });
	writelog_rewrite();
	idle();
	breaks_and_heals("a new base is needed");
	run(3);
	end_run();
	each_moment(0, 1);
	assert_int_equal(load(bed.dir), 0);
	assert_int_equal(check_loaded(), bed.ops);
}

/* xkvd is killed when a sync has failed: the kernel takes what was to be synced for synced. */
static void test_a_sync_that_failed_is_not_forgotten(void **state)
{
	struct writelog_info info;
	bool resumed;

	random_state = 8;
	begin_recording();
	for (int failed = 0; failed < 2; failed++) {
		run(4);
		begin_fault((struct fault){ .what = SYNC, .error = EIO, .calls = failed });
		do_op();
		writelog_sync_soon();
		do {
			usleep(500);
			writelog_status(&info);
		} while (info.write_ok && (failed || info.synced < info.written));
		begin_fault((struct fault){ 0 });
		writelog_close(true);
		assert_int_equal(writelog_resume(bed.st, &bed.cfg, &resumed, error, sizeof(error)),
				 0);
		assert_int_equal(resumed, !failed);
	}
	run(3); /* with a base that has all */
	end_run();
	each_moment(0, 1);
	assert_int_equal(load(bed.dir), 0);
	assert_int_equal(check_loaded(), bed.ops);
}

static void test_a_sync_that_is_stuck(void **state)
{
	struct writelog_info info;
	char text[256];

	random_state = 6;
	begin_recording();
	bed.cfg.appendfsync = APPENDFSYNC_EVERYSEC;
	run(2);
	begin_fault((struct fault){ .what = SYNC, .calls = 1, .delay_ms = 3500 });
	do_op();
	for (int i = 0; i < 1000 && !writelog_is_late(); i++)
		usleep(5000);
	writelog_status(&info);
	assert_true(info.late_ns >= 2000000000 && info.syncing && info.write_ok);
	writelog_refuses(text);
	assert_string_equal(text, ""); /* writes wait, and are refused after ten seconds only */
	ack();
	assert_false(writelog_is_late());
	writelog_refuses(text);
	assert_string_equal(text, "");
	loads_all();
}

static void test_a_directory_that_vanishes(void **state)
{
	char path[128], other[128], manifest[160];
	struct writelog_info info;

	random_state = 7;
	begin_recording();
	rec.on = false; /* renamed behind its back */
	run(4);
	snprintf(path, sizeof(path), "%s/log", bed.dir);
	snprintf(other, sizeof(other), "%s/other", bed.dir);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(rename(path, other), 0);
		if (i)
			empty(other);
		if (i)
			rmdir(other);
		do_op();
		wait_for_text("is gone; a new base is needed", true, &info);
		assert_false(info.write_ok);
		wait_for_text("is gone", false, &info);
		do_op();
		ack();
		empty(other);
		rmdir(other);
	}
	/* somebody puts another log there, which is not touched */
	assert_int_equal(rename(path, other), 0);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(manifest, sizeof(manifest), "%s/a.aof.manifest", path);
	put_bytes(manifest, "x", 1);
	wait_for_text("another log is there", true, &info);
	assert_int_equal(unlink(manifest), 0);
	wait_for_text("is gone", false, &info);
	ack();
	empty(other);
	rmdir(other);
	loads_all();
}

/*
 * As many clients do that send one command after the other, one of them sooner than the others.
 * Returns changes for each sync.
 */
static double changes_of_a_sync(int clients, int syncs)
{
	uint64_t position[32] = { 0 };
	int changes = 0;
	bool writers, first;

	begin_fault((struct fault){ .what = SYNC, .calls = 1000000, .delay_ms = 8 });
	while (faults_done() < syncs) {
		first = true;
		for (int i = 0; i < clients; i++) {
			if (position[i] && !writelog_is_synced(position[i]))
				continue;
			store_set(bed.ctx, "k", 1, &i, sizeof(i), 0, 0, 0, NULL);
			position[i] = writelog_awaits(1, &writers);
			changes++;
			if (first)
				usleep(200);
			first = false;
		}
		usleep(50);
	}
	begin_fault((struct fault){ 0 });
	return (double)changes / syncs;
}

/* What they change is synced together, and not with one half of them waiting for the other. */
static void test_clients_that_come_again(void **state)
{
	double changes = 0;

	begin_recording();
	bed.cfg.appendfsync = APPENDFSYNC_ALWAYS;
	run(1);
	for (int i = 0; i < 20 && changes < 11; i++) /* a busy machine: some come late */
		changes = changes_of_a_sync(16, 20);
	if (changes < 11)
		fail_msg("%.1f changes of 16 clients are synced together", changes);
}

int main(int argc, char *argv[])
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_each_moment),
		TEST(test_one_after_the_other),
		TEST(test_starts_without_a_change),
		TEST(test_writes_that_fail),
		TEST(test_a_base_on_a_full_disk),
		TEST(test_a_disk_that_is_full_for_a_while),
		TEST(test_a_base_that_fails_on_a_full_disk),
		TEST(test_a_write_that_is_not_taken_back),
		TEST(test_syncs_that_fail),
		TEST(test_a_sync_that_failed_is_not_forgotten),
		TEST(test_a_sync_that_is_stuck),
		TEST(test_a_directory_that_vanishes),
		TEST(test_clients_that_come_again),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: BSD-2-Clause
#include "writelog.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "aof.h"
#include "config/config.h"
#include "events/consumer.h"
#include "fill.h"
#include "image.h"
#include "loading.h"
#include "manifest.h"
#include "rdb.h"
#include "replay.h"
#include "snapshot.h"
#include "store/open.h"
#include "store/store.h"
#include "util/clock.h"
#include "util/files.h"
#include "util/log.h"
#include "util/thread.h"

#define PIECE	      (1U << 20)  /* bytes that are written at once */
#define RETRY_NS      1000000000  /* after a write that has failed */
#define SYNC_NS	      1000000000  /* everysec */
#define LATE_NS	      2000000000  /* not on the disk for longer: writes wait ... */
#define STUCK_NS      10000000000 /* ... and are refused */
#define REBASE_NS     5000000000  /* longest pause between two tries of a base that is needed */
#define REWRITE_NS    60000000000 /* the same, of one that is not */
#define CLOSE_NS      5000000000  /* at the end, for what is in the feed yet */
#define GATHER_MAX_NS 1000000	  /* always: for clients that come again (struct gathering) */
#define NO_DB	      (-1)
#define TEMP_INCR     "temp-increment.aof"
#define TEMP_BASE     "temp-base.rdb"

/* How the increment stands: what readers of the file know at this point. */
struct point {
	uint64_t size;			 /* of the file */
	uint64_t position;		 /* in the feed, that the file tells */
	int selected;			 /* database, NO_DB = none */
	uint8_t number[STORE_DATABASES]; /* how they call databases, by stored number */
	uint32_t sum;			 /* of the last block */
	time_t stamped;			 /* #TS */
	uint64_t synced;		 /* #XKV:synced, and the second when it was told */
	time_t synced_told;
	uint64_t functions, bases; /* state.functions, state.bases that are told */
};

/*
 * With `always`: clients that get their replies come with the next command at once.  What these
 * change is to go with one sync, and not with one while others wait for the next.
 */
struct gathering {
	pthread_cond_t complete;
	bool waits;	   /* the consumer, before it reads */
	uint64_t count;	   /* replies that have come to wait so far */
	uint64_t taken;	   /* ... before the consumer read last */
	uint64_t released; /* ... before it read for the last sync */
	uint64_t enough;   /* the next one begins when `count` is that, */
	uint64_t until_ns; /* and not later than that */
	uint64_t goal;	   /* position in the feed that it is to have */
};

enum switching { SWITCH_NONE, SWITCH_NEXT, SWITCH_PENDING, SWITCH_HOLD };

static struct {
	pthread_mutex_t lock; /* of what follows, but where it says otherwise */
	pthread_cond_t changed;
	bool on, closing;
	struct store *st;
	char id[17]; /* of the reader in the feed; names what the log goes on with */
	struct writelog_info info;
	int write_error; /* of the last write to an increment, 0 = none */
	enum appendfsync appendfsync;
	bool timestamps, no_sync_on_rewrite;
	unsigned int auto_percent;
	uint64_t auto_min;
	uint64_t functions; /* how often they have changed */
	uint64_t bases;	    /* how many became complete */
	writelog_tell_fn *tell;
	void *tell_arg;
	atomic_bool awaited; /* replies wait for the disk */
	uint64_t wanted;     /* position that writelog_sync_soon() has asked for */
	struct gathering gathering;
	unsigned int late; /* 1, 2: it has been told that writes have to wait, are refused */

	/* the directory; constant while the log is on */
	char path[PATH_MAX]; /* of the directory */
	char file[NAME_MAX - 32], manifest_name[NAME_MAX];
	int dir_fd;
	struct consumer *consumer;
	bool resumed, loaded; /* it goes on with an increment, or behind those that were loaded */
	char behind[17];      /* name_behind() of the latter, ... */
	struct replay_tail tail; /* ... and of the last of them */

	/* of the rewrite and, while that waits for it, of the consumer */
	struct manifest manifest;
	uint8_t base_number[STORE_DATABASES];
	uint64_t base_position; /* of a base that is of one moment */
	uint64_t base_incr;	/* number of the first increment behind the base */
	enum switching switching;
	bool holds; /* the consumer rests, and what is its is the rewrite's */
	int switch_ret;
	pthread_t rewrite_thread;
	bool rewrite_joinable;
	/*
	 * The log on the disk may be damaged or incomplete, so a new base is needed.  `damages`:
	 * how often that was found; `mended`: of these, repaired by a base; `mends`: of these, to
	 * be repaired by the base that is being written.
	 */
	unsigned int damages, mended, mends;
	uint64_t rewrite_began_ns, rewrite_tried_ns;
	atomic_bool rewrite_stop, compress;
	_Atomic uint64_t rewrite_keys;

	/* of the consumer */
	struct aof_text text;	/* not written yet */
	struct point now, safe; /* the latter: where a whole command ends that was written */
	bool in_txn, failed;
	bool hurries; /* thread_hurries() */
	uint64_t round_bytes, retry_ns;
	uint64_t others; /* bytes of all files but the current increment */
	uint64_t begun;	 /* bytes of that when it had no change */

	/* of the sync thread and the consumer; `syncing` is held while the disk syncs */
	int fd;
	pthread_mutex_t syncing;
	pthread_t sync_thread;
	pthread_cond_t sync_ends; /* of its own: `changed` comes often */
	bool sync_runs;
	uint64_t unsynced_ns, sync_ns, writing_ns; /* since when there is something ..., 0 = not */
	uint64_t synced_size;			   /* bytes of the increment that the disk has */
} state = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.syncing = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
	.sync_ends = PTHREAD_COND_INITIALIZER,
	.gathering.complete = PTHREAD_COND_INITIALIZER,
	.dir_fd = -1,
	.fd = -1,
};

/* With the lock.  False: it is that late. */
static bool wait_until(pthread_cond_t *cond, uint64_t until_ns)
{
	const struct timespec ts = { (time_t)(until_ns / 1000000000),
				     (long)(until_ns % 1000000000) };

	return !pthread_cond_clockwait(cond, &state.lock, CLOCK_MONOTONIC, &ts);
}

/* With the lock. */
static bool is_broken(void)
{
	return state.damages != state.mended;
}

/* With the lock.  An xkvd that is killed before there is a new base leaves word. */
static void note_damage(void)
{
	state.damages++;
	if (state.consumer)
		feed_break(consumer_reader(state.consumer), true);
}

/* ---- state that others see -------------------------------------------------- */

void writelog_tell(writelog_tell_fn *fn, void *arg)
{
	pthread_mutex_lock(&state.lock);
	state.tell = fn;
	state.tell_arg = arg;
	pthread_mutex_unlock(&state.lock);
}

static void tell(bool only_replies)
{
	pthread_mutex_lock(&state.lock);
	if (state.tell)
		state.tell(state.tell_arg, only_replies);
	pthread_mutex_unlock(&state.lock);
}

__attribute__((format(printf, 1, 2))) static void note_failure(const char *fmt, ...)
{
	char text[sizeof(state.info.error)];
	bool first;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&state.lock);
	first = state.info.write_ok;
	state.info.write_ok = false;
	memcpy(state.info.error, text, sizeof(text));
	pthread_mutex_unlock(&state.lock);
	if (first)
		tell(false);
	if (first)
		log_warning("write log: %s; writes are refused until it can be written", text);
}

/* What was written is a whole log, or the consumer can write again. */
static void note_success(void)
{
	bool failed;

	pthread_mutex_lock(&state.lock);
	failed = !state.info.write_ok && !is_broken();
	if (failed) {
		state.info.write_ok = true;
		state.info.error[0] = '\0';
	}
	pthread_mutex_unlock(&state.lock);
	if (failed) {
		tell(false);
		log_notice("write log: it is written again");
	}
}

static uint64_t late_ns(void)
{
	uint64_t since = state.sync_ns ? state.sync_ns : state.unsynced_ns, now = monotonic_ns();

	if (state.writing_ns && (!since || state.writing_ns < since))
		since = state.writing_ns;
	return since && now > since ? now - since : 0;
}

/* With the lock.  For how long, if that is too long; else 0. */
static uint64_t too_late_ns(void)
{
	bool rests = state.no_sync_on_rewrite && state.rewrite_began_ns;
	uint64_t late = late_ns();

	return state.appendfsync != APPENDFSYNC_NO && !rests && late > LATE_NS ? late : 0;
}

bool writelog_is_late(void)
{
	bool late;

	pthread_mutex_lock(&state.lock);
	late = state.on && too_late_ns();
	pthread_mutex_unlock(&state.lock);
	return late;
}

void writelog_refuses(char text[256])
{
	text[0] = '\0';
	pthread_mutex_lock(&state.lock);
	if (state.on && !state.info.write_ok)
		snprintf(text, 256, "%s", state.info.error);
	else if (state.on && too_late_ns() > STUCK_NS)
		snprintf(text, 256, "the disk has not taken the write log for %.1f s",
			 (double)late_ns() / 1e9);
	pthread_mutex_unlock(&state.lock);
}

void writelog_status(struct writelog_info *out)
{
	pthread_mutex_lock(&state.lock);
	*out = state.info;
	out->on = state.on;
	out->rewriting = state.rewrite_began_ns;
	out->rewrite_seconds =
		out->rewriting ? (double)(monotonic_ns() - state.rewrite_began_ns) / 1e9 : -1;
	out->syncing = state.sync_ns;
	out->late_ns = state.on ? too_late_ns() : 0;
	pthread_mutex_unlock(&state.lock);
}

static int open_existing(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/* Opens the directory, which is there after a power cut, too.  Its descriptor, or -errno. */
static int make_dir(const char *path)
{
	int ret = mkdir(path, 0750) && errno != EEXIST ? -errno : directory_sync_name(path);

	return ret ? ret : open_existing(path);
}

/* ---- the disk ---------------------------------------------------------------- */

/* Is there something to sync for those who have asked for it?  With the lock. */
static bool is_wanted(void)
{
	return state.info.synced < state.wanted && state.info.synced < state.info.written &&
	       !is_broken();
}

/*
 * Has the disk take what was written.  After an error nobody knows what of it is there, and the
 * kernel does not try again: then only a new base helps, for which the store has everything.
 */
static int sync_now(void)
{
	uint64_t written, size, began = monotonic_ns();
	bool wanted;
	int ret;

	pthread_mutex_lock(&state.syncing);
	pthread_mutex_lock(&state.lock);
	written = state.info.written;
	size = state.safe.size;
	state.sync_ns = state.unsynced_ns;
	state.unsynced_ns = 0;
	pthread_mutex_unlock(&state.lock);
	ret = fdatasync(state.fd) ? -errno : 0;
	pthread_mutex_lock(&state.lock);
	state.sync_ns = 0;
	wanted = is_wanted(); /* maybe only since it began */
	if (!ret) {
		state.info.synced = written;
		state.synced_size = size;
	}
	if (ret)
		note_damage();
	state.info.delayed += monotonic_ns() - began > SYNC_NS;
	pthread_cond_broadcast(&state.changed);
	pthread_mutex_unlock(&state.lock);
	pthread_mutex_unlock(&state.syncing);
	if (ret)
		note_failure("syncing %s failed: %s; a new base is needed", state.path,
			     strerror(-ret));
	else if (wanted)
		tell(false);
	return ret;
}

/* Is what is on the disk a whole log, and as far as this position?  With the lock. */
static bool is_synced(uint64_t position)
{
	return state.info.synced >= position && !state.info.waits_for_base && !is_broken();
}

/* The consumer is not disturbed by each that comes.  With the lock. */
static void one_more_waits(unsigned int replies)
{
	struct gathering *g = &state.gathering;

	g->count += replies;
	if (g->waits && g->count >= g->enough)
		pthread_cond_signal(&g->complete);
	if (!g->waits && state.consumer)
		consumer_wake(state.consumer);
}

uint64_t writelog_awaits(unsigned int replies, bool *writers)
{
	uint64_t head;

	if (!atomic_load(&state.awaited))
		return 0;
	head = feed_head(state.st);
	pthread_mutex_lock(&state.lock);
	*writers = !state.info.write_ok || too_late_ns();
	if (is_synced(head))
		head = 0;
	else if (replies)
		one_more_waits(replies);
	pthread_mutex_unlock(&state.lock);
	return head;
}

bool writelog_is_synced(uint64_t position)
{
	bool synced;

	pthread_mutex_lock(&state.lock);
	synced = is_synced(position) || !atomic_load(&state.awaited);
	pthread_mutex_unlock(&state.lock);
	return synced;
}

uint64_t writelog_sync_soon(void)
{
	uint64_t head = state.st ? feed_head(state.st) : 0; /* NULL: there has never been a log */

	pthread_mutex_lock(&state.lock);
	state.wanted = head;
	if (state.consumer && !is_synced(head))
		consumer_wake(state.consumer);
	if (is_wanted())
		pthread_cond_signal(&state.sync_ends);
	pthread_cond_signal(&state.gathering.complete);
	pthread_mutex_unlock(&state.lock);
	return head;
}

bool writelog_has(uint64_t position)
{
	bool has;

	pthread_mutex_lock(&state.lock);
	has = state.on && is_synced(position);
	pthread_mutex_unlock(&state.lock);
	return has;
}

bool writelog_wait(void)
{
	uint64_t until = monotonic_ns() + CLOSE_NS, position;
	bool writers;

	position = writelog_awaits(1, &writers);
	pthread_mutex_lock(&state.lock);
	while (position && !is_synced(position) && wait_until(&state.changed, until))
		;
	if (is_synced(position))
		position = 0;
	pthread_mutex_unlock(&state.lock);
	return !position;
}

static bool sync_is_due(void)
{
	return state.unsynced_ns && state.appendfsync == APPENDFSYNC_EVERYSEC &&
	       !(state.no_sync_on_rewrite && state.rewrite_began_ns);
}

/*
 * -ENOENT: somebody has moved the directory away, or removed it, or the file; what is written then
 * goes nowhere.  Another error: nobody can tell.  With `syncing`.
 */
static int find_files(void)
{
	struct stat there, ours;

	if (stat(state.path, &there) || fstat(state.dir_fd, &ours))
		return -errno;
	if (there.st_dev != ours.st_dev || there.st_ino != ours.st_ino)
		return -ENOENT;
	if (state.fd >= 0 && fstat(state.fd, &ours))
		return -errno;
	return state.fd >= 0 && !ours.st_nlink ? -ENOENT : 0;
}

static void look_for_files(void)
{
	bool known;
	int ret;

	pthread_mutex_lock(&state.syncing);
	ret = find_files();
	pthread_mutex_unlock(&state.syncing);
	pthread_mutex_lock(&state.lock);
	known = is_broken();
	if (ret && !known)
		note_damage();
	pthread_mutex_unlock(&state.lock);
	if (!ret || known)
		return;
	if (ret == -ENOENT)
		note_failure("the directory %s, or a file in it, is gone; a new base is needed",
			     state.path);
	else
		note_failure("the directory %s cannot be looked at: %s; a new base is needed",
			     state.path, strerror(-ret));
}

static void *sync_main(void *arg)
{
	uint64_t next = monotonic_ns() + SYNC_NS;
	bool wanted, due;

	pthread_mutex_lock(&state.lock);
	while (!state.closing) {
		wanted = is_wanted();
		if (!wanted && monotonic_ns() < next) {
			wait_until(&state.sync_ends, next);
			continue;
		}
		next = monotonic_ns() + SYNC_NS;
		due = wanted || sync_is_due();
		pthread_mutex_unlock(&state.lock);
		if (due)
			sync_now();
		look_for_files();
		pthread_mutex_lock(&state.lock);
	}
	pthread_mutex_unlock(&state.lock);
	return NULL;
}

/* ---- the consumer: an increment ---------------------------------------------- */

static bool is_full(int error)
{
	return error == -ENOSPC || error == -EDQUOT;
}

/* Writes what is in `text`, and goes on with the next. */
static void write_text(void)
{
	int ret;

	if ((!state.text.len && !state.text.failed) || state.failed)
		return;
	aof_seal(&state.text, &state.now.sum);
	pthread_mutex_lock(&state.lock);
	state.writing_ns = monotonic_ns();
	if (!state.unsynced_ns)
		state.unsynced_ns = state.writing_ns;
	pthread_mutex_unlock(&state.lock);
	ret = state.text.failed
		      ? -ENOMEM
		      : file_write(state.fd, state.text.bytes, state.text.len, state.now.size);
	pthread_mutex_lock(&state.lock);
	state.writing_ns = 0;
	state.write_error = ret;
	pthread_mutex_unlock(&state.lock);
	state.failed = ret;
	if (ret) {
		note_failure("writing to %s failed: %s", state.path, strerror(-ret));
		return;
	}
	state.now.size += state.text.len;
	state.round_bytes += state.text.len;
	aof_clear(&state.text);
}

/*
 * Takes back what was written of commands that are not complete.  The disk has to know that before
 * something else is written there: after a power cut bytes of both might be in the file, which
 * nobody could tell from damage.
 */
static void roll_back(void)
{
	aof_clear(&state.text);
	state.now = state.safe;
	state.in_txn = false;
	state.failed = ftruncate(state.fd, (off_t)state.safe.size);
	if (!state.failed && fdatasync(state.fd)) {
		state.failed = true;
		pthread_mutex_lock(&state.lock);
		state.damages++; /* as in sync_now() */
		pthread_mutex_unlock(&state.lock);
	}
	if (state.failed)
		note_failure("truncating a file in %s failed: %s", state.path, strerror(errno));
	state.retry_ns = monotonic_ns() + RETRY_NS;
}

static void select_db(unsigned int number)
{
	if (state.now.selected == (int)number)
		return;
	aof_command(&state.text, 2);
	aof_name(&state.text, "SELECT");
	aof_number(&state.text, number);
	state.now.selected = (int)number;
}

/*
 * SWAPDB leaves no record.  That it was executed shows in the numbers of the databases, and where
 * its command stands among changes of keys makes no difference for what is there in the end: keys
 * keep their stored numbers, and each command is about the number that those have at that point.
 */
static void follow_numbers(void)
{
	uint8_t number[STORE_DATABASES], *told = state.now.number;
	unsigned int other;

	store_numbers(state.st, number);
	for (unsigned int db = 0; db < STORE_DATABASES; db++) {
		if (told[db] == number[db])
			continue;
		for (other = db + 1; other < STORE_DATABASES && told[other] != number[db];)
			other++;
		if (other == STORE_DATABASES)
			return; /* read while it was changed: the next round has it */
		aof_command(&state.text, 3);
		aof_name(&state.text, "SWAPDB");
		aof_number(&state.text, told[db]);
		aof_number(&state.text, told[other]);
		told[other] = told[db];
		told[db] = number[db];
	}
}

/* As Redis reads it. */
static void write_time(uint64_t expire_ms)
{
	aof_number(&state.text, expire_ms < INT64_MAX ? expire_ms : INT64_MAX);
}

static void write_put(const struct feed_change *c)
{
	aof_command(&state.text, c->expire_ms ? 5 : 3);
	aof_name(&state.text, "SET");
	aof_word(&state.text, c->key, c->key_len);
	aof_word(&state.text, c->value, c->value_len);
	if (!c->expire_ms)
		return;
	aof_name(&state.text, "PXAT");
	write_time(c->expire_ms);
}

static void write_expiry(const struct feed_change *c)
{
	aof_command(&state.text, c->expire_ms ? 3 : 2);
	aof_name(&state.text, c->expire_ms ? "PEXPIREAT" : "PERSIST");
	aof_word(&state.text, c->key, c->key_len);
	if (c->expire_ms)
		write_time(c->expire_ms);
}

static void write_change(const struct feed_change *c)
{
	switch (c->what) {
	case XKV_CHANGE_CREATE:
	case XKV_CHANGE_OVERWRITE:
		write_put(c);
		break;
	case XKV_CHANGE_EXPIRY:
		write_expiry(c);
		break;
	case XKV_CHANGE_DELETE:
	case XKV_CHANGE_EVICT:
	case XKV_CHANGE_EXPIRE:
		aof_command(&state.text, 2);
		aof_name(&state.text, "DEL");
		aof_word(&state.text, c->key, c->key_len);
	}
}

/* time() may be some milliseconds behind: what others call the next second. */
static void stamp(void)
{
	struct timespec now;

	if (!state.timestamps)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	if (now.tv_sec == state.now.stamped)
		return;
	if (state.text.len)
		write_text(); /* a file can be cut off between blocks (restore.h) */
	aof_annotation(&state.text, "TS:%lld", (long long)now.tv_sec);
	state.now.stamped = now.tv_sec;
}

static bool on_change(void *arg, const struct feed_change *c)
{
	if (!state.in_txn) {
		if (c->number != state.now.number[c->db])
			follow_numbers();
		stamp();
	}
	select_db(state.now.number[c->db]);
	if (c->more && !state.in_txn) {
		aof_command(&state.text, 1);
		aof_name(&state.text, "MULTI");
	}
	write_change(c);
	if (!c->more && state.in_txn) {
		aof_command(&state.text, 1);
		aof_name(&state.text, "EXEC");
	}
	state.in_txn = c->more;
	if (state.text.len >= PIECE || state.text.failed)
		write_text();
	return !state.failed && state.round_bytes < PIECE;
}

/* The feed was given up, which it is not as long as this reader is there. */
static void on_gap(void *arg)
{
	pthread_mutex_lock(&state.lock);
	note_damage();
	pthread_mutex_unlock(&state.lock);
	note_failure("changes are missing; a new base is needed");
}

/* Libraries of functions, all of them, if they have changed. */
static void write_libraries(void)
{
	uint64_t functions;
	size_t len;
	void *dump;

	pthread_mutex_lock(&state.lock);
	functions = state.functions;
	pthread_mutex_unlock(&state.lock);
	if (functions == state.now.functions)
		return;
	dump = snapshot_functions(&len);
	if (!dump)
		return;
	aof_command(&state.text, len ? 4 : 2);
	aof_name(&state.text, "FUNCTION");
	aof_name(&state.text, len ? "RESTORE" : "FLUSH");
	if (len) {
		aof_word(&state.text, dump, rdb_functions_end(dump, len));
		aof_name(&state.text, "FLUSH");
	}
	free(dump);
	state.now.functions = functions;
}

/* With what stands before this line the base is of one moment (restore.h). */
static void write_based(void)
{
	uint64_t bases;

	pthread_mutex_lock(&state.lock);
	bases = state.bases;
	pthread_mutex_unlock(&state.lock);
	if (bases != state.now.bases)
		aof_annotation(&state.text, "XKV:base");
	state.now.bases = bases;
}

/*
 * How much of the file the disk has: what of that is not readable later was not lost in a power cut
 * (aof.h).  Once a second, and never alone: that would have to be synced again.
 */
static void write_synced(void)
{
	time_t second = (time_t)(monotonic_ns() / 1000000000);
	uint64_t size;

	pthread_mutex_lock(&state.lock);
	size = state.synced_size;
	pthread_mutex_unlock(&state.lock);
	if (size == state.now.synced || second == state.now.synced_told)
		return;
	aof_annotation(&state.text, "XKV:synced %" PRIu64, size);
	state.now.synced = size;
	state.now.synced_told = second;
}

/* Between commands: the file says where in the feed it stands. */
static void write_position(uint64_t position)
{
	write_libraries();
	write_based();
	follow_numbers();
	if (state.text.len || state.round_bytes)
		write_synced();
	if (state.text.len || state.round_bytes || position != state.now.position)
		aof_annotation(&state.text, "XKV:at %" PRIu64, position);
	state.now.position = position;
}

static void is_written(uint64_t position)
{
	pthread_mutex_lock(&state.lock);
	state.safe = state.now;
	state.info.written = position;
	state.info.size = state.others + state.now.size;
	pthread_cond_broadcast(&state.changed);
	if (is_wanted())
		pthread_cond_signal(&state.sync_ends);
	pthread_mutex_unlock(&state.lock);
	note_success();
}

/*
 * Do replies wait for what was written, by this round or before `appendfsync always` was set?  Also
 * what the log says of itself, which moves no position, has to get to the disk: nobody else syncs.
 */
static bool is_awaited(void)
{
	bool awaited;

	if (!atomic_load(&state.awaited))
		return false;
	pthread_mutex_lock(&state.lock);
	awaited = (state.info.synced < state.info.written || state.unsynced_ns) && !is_broken();
	pthread_mutex_unlock(&state.lock);
	return awaited;
}

/* A sync is several short waits, each for a CPU, too. */
static void hurry(void)
{
	bool awaited = atomic_load(&state.awaited);

	if (state.hurries != awaited)
		thread_hurries(awaited);
	state.hurries = awaited;
}

/* Waits until what comes is worth a sync. */
static void gather(void)
{
	struct gathering *g = &state.gathering;
	uint64_t reached = feed_reached(consumer_reader(state.consumer));

	pthread_mutex_lock(&state.lock);
	g->waits = true;
	while (g->count < g->enough && state.info.synced >= state.wanted &&
	       wait_until(&g->complete, g->until_ns))
		;
	g->waits = false;
	g->enough = 0;
	g->taken = g->count;
	pthread_mutex_unlock(&state.lock);
	if (reached >= g->goal)
		g->goal = feed_head(state.st);
}

/*
 * Those that are answered now come again, and others wait already.  There is a limit: clients may
 * do something else first, and if they are many, some are executed while the disk is busy.
 */
static void gather_again(uint64_t took_ns)
{
	struct gathering *g = &state.gathering;
	uint64_t now = monotonic_ns(), most = took_ns / 2;

	pthread_mutex_lock(&state.lock);
	g->enough = g->count + g->taken - g->released;
	g->released = g->taken;
	g->until_ns = now + (most < GATHER_MAX_NS ? most : GATHER_MAX_NS);
	pthread_mutex_unlock(&state.lock);
}

/* Has the disk take what replies wait for. */
static void sync_awaited(void)
{
	uint64_t took = monotonic_ns();

	if (sync_now())
		return;
	took = monotonic_ns() - took;
	gather_again(took);
	tell(took < SYNC_NS); /* else writes may wait, too */
}

static enum consumed on_end(void *arg, uint64_t position)
{
	bool wrote;

	if (!state.in_txn)
		write_position(position);
	write_text();
	state.round_bytes = 0;
	if (state.failed) {
		roll_back();
		return CONSUMED_AGAIN;
	}
	if (state.in_txn)
		return CONSUMED_PART;
	wrote = state.safe.size != state.now.size;
	if (wrote)
		is_written(position);
	if (is_awaited() && (!wrote || position >= state.gathering.goal))
		sync_awaited();
	return CONSUMED;
}

/* ---- the consumer: the next increment ----------------------------------------- */

static void increment_name(char name[NAME_MAX + 1], uint64_t seq)
{
	snprintf(name, NAME_MAX + 1, "%s.%" PRIu64 ".incr.aof", state.file, seq);
}

/* What another xkvd has to know to go on with the file. */
static void write_head(struct aof_text *t, uint64_t position, const struct replay_tail *before)
{
	aof_annotation(t, "XKV:log %s %016" PRIx64, state.id, store_identity(state.st));
	for (unsigned int db = 0; db < STORE_DATABASES; db++)
		if (state.now.number[db] != db)
			aof_annotation(t, "XKV:db %u %u", db, state.now.number[db]);
	if (before->size)
		aof_annotation(t, "XKV:follows %" PRIu64 " %08" PRIx32, before->size, before->sum);
	aof_annotation(t, "XKV:at %" PRIu64, position);
}

/* Makes a file for changes from this position on.  Its descriptor, or an error. */
static int increment_make(const char *name, uint64_t position, const struct replay_tail *before,
			  uint64_t *size, uint32_t *sum)
{
	int fd = file_openat(state.dir_fd, name, O_RDWR | O_CREAT | O_TRUNC), ret;
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
	unlinkat(state.dir_fd, name, 0);
	return ret;
}

/* From here on changes go to this file. */
static void increment_use(int fd, uint64_t size, uint32_t sum, uint64_t position)
{
	if (state.fd >= 0) {
		pthread_mutex_lock(&state.syncing);
		close(state.fd);
		state.fd = fd;
		pthread_mutex_unlock(&state.syncing);
		state.others += state.now.size;
	}
	state.fd = fd; /* synced, with all before this position */
	state.now.size = state.begun = size;
	state.now.sum = sum;
	state.now.position = position;
	state.now.selected = NO_DB;
	state.now.stamped = state.now.synced_told = 0;
	memcpy(state.base_number, state.now.number, sizeof(state.base_number));
	pthread_mutex_lock(&state.lock);
	state.safe = state.now;
	state.synced_size = size;
	state.info.written = position;
	state.info.size = state.others + size;
	pthread_mutex_unlock(&state.lock);
}

/* The manifest that is in force may be the old one again after a power cut. */
static int put_manifest(const struct manifest *m)
{
	bool unsynced;
	int ret = manifest_write(m, state.dir_fd, state.manifest_name, &unsynced);

	if (!unsynced)
		return ret;
	pthread_mutex_lock(&state.lock);
	note_damage();
	pthread_mutex_unlock(&state.lock);
	note_failure("syncing the directory %s failed; a new base is needed", state.path);
	return 0;
}

/* Removes the files that the log does not need, and their lines.  What stays is tried next time. */
static int remove_history(void)
{
	struct manifest *m = &state.manifest;
	unsigned int kept = 0;

	for (unsigned int i = 0; i < m->count; i++) {
		if (m->file[i].type == 'h' &&
		    (!unlinkat(state.dir_fd, m->file[i].name, 0) || errno == ENOENT))
			continue;
		if (m->file[i].type == 'h')
			log_warning("%s/%s is not needed any more and cannot be removed: %s",
				    state.path, m->file[i].name, strerror(errno));
		m->file[kept++] = m->file[i];
	}
	if (kept == m->count)
		return 0;
	m->count = kept;
	return put_manifest(m);
}

static void forget_history(void)
{
	int ret = remove_history();

	if (ret)
		log_warning("write log: %s/%s names files that are not needed: %s", state.path,
			    state.manifest_name, strerror(-ret));
}

static uint64_t file_size(const char *name)
{
	struct stat st;

	return fstatat(state.dir_fd, name, &st, 0) ? 0 : (uint64_t)st.st_size;
}

/* Bytes of all files but this increment. */
static uint64_t size_without(uint64_t incr)
{
	const struct manifest *m = &state.manifest;
	uint64_t sum = 0;

	for (unsigned int i = 0; i < m->count; i++)
		if (m->file[i].type == 'b' || (m->file[i].type == 'i' && m->file[i].seq != incr))
			sum += file_size(m->file[i].name);
	return sum;
}

static uint64_t size_of_others(void)
{
	return size_without(manifest_last(&state.manifest, 'i'));
}

/*
 * The log with an increment more.  Idle ones, which were loaded last, are not needed then: else
 * each start that loads would leave one.
 */
static int longer_manifest(struct manifest *next, const char *name, uint64_t seq)
{
	const struct manifest *m = &state.manifest;
	int ret = 0;

	for (unsigned int i = 0; i < m->count && !ret; i++) {
		const struct manifest_file *f = &m->file[i];
		bool idle = state.fd < 0 && f->type == 'i' && f->seq > state.tail.seq;

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
	bool loaded = state.fd < 0;
	const struct replay_tail before = {
		.size = loaded ? state.tail.size : state.now.size,
		.sum = loaded ? state.tail.sum : state.now.sum,
	};
	uint64_t seq = manifest_last(&state.manifest, 'i') + 1, size;
	struct manifest next = { 0 };
	char name[NAME_MAX + 1];
	uint32_t sum;
	int fd, ret;

	if (!loaded && state.now.size == state.begun)
		return 0;
	ret = loaded ? 0 : sync_now();
	if (ret)
		return ret;
	increment_name(name, seq);
	fd = increment_make(name, position, &before, &size, &sum);
	if (fd < 0)
		return fd;
	ret = longer_manifest(&next, name, seq);
	if (!ret)
		ret = put_manifest(&next);
	if (ret) {
		close(fd);
		unlinkat(state.dir_fd, name, 0);
		manifest_free(&next);
		return ret;
	}
	manifest_free(&state.manifest);
	state.manifest = next;
	if (loaded)
		state.others = size_of_others();
	state.base_incr = seq;
	increment_use(fd, size, sum, position);
	if (loaded)
		forget_history();
	return 0;
}

/* Makes the directory that is gone.  -EEXIST: there is another log where it was. */
static int remake_dir(void)
{
	int fd = make_dir(state.path);

	if (fd >= 0 && !faccessat(fd, state.manifest_name, F_OK, 0)) {
		close(fd);
		fd = -EEXIST;
	}
	if (fd < 0)
		return fd;
	pthread_mutex_lock(&state.syncing);
	close(state.dir_fd);
	state.dir_fd = fd;
	pthread_mutex_unlock(&state.syncing);
	manifest_free(&state.manifest);
	return 0;
}

#define ANOTHER_LOG "another log is there, and is not replaced: move it away"

/* Begins a log that is none before it has a base: until then the one before is in force. */
static int switch_pending(uint64_t position)
{
	const struct replay_tail none = { 0 };
	uint64_t size;
	uint32_t sum;
	int fd = find_files() ? remake_dir() : 0;

	if (!fd)
		fd = increment_make(TEMP_INCR, position, &none, &size, &sum);
	if (fd == -EEXIST)
		note_failure("the directory %s is gone; " ANOTHER_LOG, state.path);
	if (fd < 0)
		return fd;
	state.base_incr = manifest_last(&state.manifest, 'i') + 1;
	increment_use(fd, size, sum, position);
	return 0;
}

/* What became of making the first file: as long as there is none, changes go nowhere. */
static void note_first(int ret)
{
	if (ret)
		note_failure("a file in %s cannot be made: %s", state.path, strerror(-ret));
	else
		note_success();
}

/*
 * The next increment begins where the consumer stands: all changes before have taken effect, so the
 * walk that begins after this meets what they have left.
 */
static void switch_increment(void)
{
	uint64_t position = feed_reached(consumer_reader(state.consumer));
	bool first = state.fd < 0;
	int ret;

	pthread_mutex_lock(&state.lock);
	state.mends = state.damages;
	pthread_mutex_unlock(&state.lock);
	if (state.switching == SWITCH_HOLD)
		ret = 0;
	else if (state.switching == SWITCH_PENDING)
		ret = switch_pending(position);
	else
		ret = state.failed ? -EIO
				   : switch_next(position); /* half a command is at its end */
	if (first)
		note_first(ret);
	pthread_mutex_lock(&state.lock);
	state.holds = state.switching == SWITCH_HOLD;
	state.switching = SWITCH_NONE;
	state.switch_ret = ret;
	pthread_cond_broadcast(&state.changed);
	pthread_mutex_unlock(&state.lock);
}

/* The increments that were loaded, and one more, are the log.  -errno: it is tried again. */
static int go_on_behind(void)
{
	int ret = switch_next(feed_reached(consumer_reader(state.consumer)));

	note_first(ret);
	state.retry_ns = ret ? monotonic_ns() + RETRY_NS : 0;
	return ret;
}

static bool is_held(void)
{
	bool held;

	pthread_mutex_lock(&state.lock);
	held = state.holds;
	pthread_mutex_unlock(&state.lock);
	return held;
}

static bool on_begin(void *arg)
{
	enum switching switching;
	unsigned int late;
	bool told;

	pthread_mutex_lock(&state.lock);
	switching = state.switching;
	late = (too_late_ns() > 0) + (too_late_ns() > STUCK_NS);
	told = state.late == late;
	state.late = late;
	pthread_mutex_unlock(&state.lock);
	if (!told)
		tell(false);
	if (switching && !state.in_txn)
		switch_increment();
	if (is_held() || (state.retry_ns && monotonic_ns() < state.retry_ns))
		return false;
	if (state.fd < 0 && state.loaded)
		go_on_behind();
	if (state.fd < 0)
		return false;
	if (state.failed) {
		roll_back();
		return !state.failed;
	}
	state.retry_ns = 0;
	hurry();
	gather();
	return true;
}

static const struct consumer_type logging = {
	.begin = on_begin,
	.change = on_change,
	.gap = on_gap,
	.end = on_end,
};

/* ---- a base -------------------------------------------------------------------- */

static int write_image(struct image *im, int fd)
{
	struct store_ctx *ctx = store_ctx_get(state.st);
	int ret = ctx ? 0 : -errno;
	void *records = snapshot_functions(&im->functions_len);

	im->fd = fd;
	im->functions = records;
	if (!records)
		ret = -ENOMEM;
	if (!ret)
		ret = image_write(im, state.st, ctx);
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

	store_numbers(state.st, im->number);
	memcpy(state.base_number, im->number, sizeof(im->number));
	state.base_position = feed_head(state.st);
	return state.base_position;
}

static int write_base(uint64_t (*moment)(void *image))
{
	struct image im = { .base = true,
			    .moment = moment,
			    .compress = atomic_load(&state.compress),
			    .stop = &state.rewrite_stop,
			    .keys = &state.rewrite_keys };
	int fd = file_openat(state.dir_fd, TEMP_BASE, O_WRONLY | O_CREAT | O_TRUNC);
	int ret = fd < 0 ? fd : 0;

	memcpy(im.number, state.base_number, sizeof(im.number));
	if (!ret)
		ret = write_image(&im, fd);
	if (fd >= 0 && close(fd) && !ret)
		ret = -errno;
	return ret;
}

/* The files of the log that begins with the new base; those before it are not needed any more. */
static int next_manifest(struct manifest *next, const char *base, uint64_t base_seq)
{
	const struct manifest *m = &state.manifest;
	int ret = manifest_add(next, base, base_seq, 'b');

	for (unsigned int i = 0; i < m->count && !ret; i++)
		if (m->file[i].type != 'i' || m->file[i].seq < state.base_incr)
			ret = manifest_add(next, m->file[i].name, m->file[i].seq, 'h');
	for (unsigned int i = 0; i < m->count && !ret; i++)
		if (m->file[i].type == 'i' && m->file[i].seq >= state.base_incr)
			ret = manifest_add(next, m->file[i].name, m->file[i].seq, 'i');
	return ret;
}

/* An increment that was waiting for the base gets its name. */
static int name_increment(struct manifest *next)
{
	char name[NAME_MAX + 1];

	if (manifest_find(next, 'i'))
		return 0;
	increment_name(name, state.base_incr);
	if (renameat(state.dir_fd, TEMP_INCR, state.dir_fd, name))
		return -errno;
	return manifest_add(next, name, state.base_incr, 'i');
}

/* Puts the base that was written into force, with the increments that follow it. */
static int use_base(void)
{
	uint64_t seq = manifest_last(&state.manifest, 'b') + 1;
	struct manifest next = { 0 };
	char name[NAME_MAX + 1];
	int ret;

	snprintf(name, sizeof(name), "%s.%" PRIu64 ".base.rdb", state.file, seq);
	if (renameat(state.dir_fd, TEMP_BASE, state.dir_fd, name))
		return -errno;
	ret = next_manifest(&next, name, seq);
	if (!ret)
		ret = name_increment(&next);
	if (!ret && (sync_now() || fsync(state.dir_fd)))
		ret = -EIO;
	if (!ret)
		ret = put_manifest(&next);
	if (ret) {
		unlinkat(state.dir_fd, name, 0);
		manifest_free(&next);
		return ret;
	}
	manifest_free(&state.manifest);
	state.manifest = next;
	forget_history();
	return 0;
}

static void conclude(int ret)
{
	struct writelog_info *info = &state.info;
	uint64_t now = monotonic_ns(), others = size_of_others();
	double seconds;
	bool known;

	pthread_mutex_lock(&state.lock);
	known = info->rewrite_error == ret;
	seconds = (double)(now - state.rewrite_began_ns) / 1e9;
	info->last_rewrite_seconds = seconds;
	info->rewrite_error = ret;
	info->rewrites++;
	info->rewrites_failed = ret ? info->rewrites_failed + 1 : 0;
	if (!ret) {
		info->waits_for_base = false;
		state.mended = state.mends;
		info->size += others - state.others;
		info->size_at_base = info->size;
		state.others = others;
		state.bases++;
		if (state.consumer) {
			feed_break(consumer_reader(state.consumer), is_broken());
			consumer_wake(state.consumer);
		}
	}
	state.rewrite_began_ns = 0;
	state.unsynced_ns = state.unsynced_ns ? now : 0;
	pthread_cond_broadcast(&state.changed);
	pthread_mutex_unlock(&state.lock);
	if (ret && ret != -ECANCELED && !known)
		log_warning("write log: no new base in %s: %s", state.path,
			    ret == -EEXIST ? ANOTHER_LOG : strerror(-ret));
	if (ret)
		return;
	tell(false);
	note_success();
	log_notice("write log: a base of %" PRIu64 " keys written to %s in %.3f s",
		   atomic_load(&state.rewrite_keys), state.path, seconds);
}

/* Has the consumer begin an increment, which the base is to be followed by, or rest. */
static int switch_and_wait(enum switching how)
{
	int ret;

	pthread_mutex_lock(&state.lock);
	state.switching = how;
	pthread_mutex_unlock(&state.lock);
	consumer_wake(state.consumer);
	pthread_mutex_lock(&state.lock);
	while (state.switching && !state.closing)
		pthread_cond_wait(&state.changed, &state.lock);
	ret = state.switching ? -ECANCELED : state.switch_ret;
	pthread_mutex_unlock(&state.lock);
	return ret;
}

/*
 * The walk has met changes, and one half of a transaction, perhaps, that the consumer has not
 * written yet: the base must not be in force before it has.  An error: it cannot.
 */
static int wait_for_changes(void)
{
	uint64_t head = feed_head(state.st);
	int ret;

	consumer_wake(state.consumer);
	pthread_mutex_lock(&state.lock);
	while (state.info.written < head && !state.write_error && !state.closing)
		wait_until(&state.changed, monotonic_ns() + RETRY_NS);
	ret = state.closing ? -ECANCELED : state.info.written < head ? state.write_error : 0;
	pthread_mutex_unlock(&state.lock);
	return ret;
}

static int rewrite_by_walk(void)
{
	bool pending;
	int ret;

	pthread_mutex_lock(&state.lock);
	pending = state.info.waits_for_base || is_broken();
	pthread_mutex_unlock(&state.lock);
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

	memcpy(state.now.number, state.base_number, sizeof(state.now.number));
	fd = increment_make(TEMP_INCR, state.base_position, &none, &size, &sum);
	state.base_incr = manifest_last(&state.manifest, 'i') + 1;
	ret = fd < 0 ? fd : use_base();
	if (!ret) {
		increment_use(fd, size, sum, state.base_position);
		feed_seek(consumer_reader(state.consumer), state.base_position);
		state.retry_ns = 0;
		return 0;
	}
	state.now = state.safe;
	if (fd >= 0)
		close(fd);
	increment_name(name, state.base_incr);
	unlinkat(state.dir_fd, TEMP_INCR, 0);
	unlinkat(state.dir_fd, name, 0);
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
	pthread_mutex_lock(&state.lock);
	state.holds = false;
	pthread_mutex_unlock(&state.lock);
	return ret;
}

/* The increment has to be where it was: a directory that is gone is made by rewrite_by_walk(). */
static bool cannot_write(void)
{
	bool failed;

	pthread_mutex_lock(&state.lock);
	failed = state.write_error;
	pthread_mutex_unlock(&state.lock);
	pthread_mutex_lock(&state.syncing);
	failed = failed && !find_files();
	pthread_mutex_unlock(&state.syncing);
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
		unlinkat(state.dir_fd, TEMP_BASE, 0);
	conclude(ret);
	return NULL;
}

/* Joins the thread of a rewrite that has ended. */
static void rewrite_reap(void)
{
	if (!state.rewrite_joinable)
		return;
	pthread_join(state.rewrite_thread, NULL);
	state.rewrite_joinable = false;
}

int writelog_rewrite(void)
{
	int ret;

	if (!state.on)
		return -ENOENT;
	pthread_mutex_lock(&state.lock);
	if (state.rewrite_began_ns) {
		pthread_mutex_unlock(&state.lock);
		return -EINPROGRESS;
	}
	state.rewrite_began_ns = state.rewrite_tried_ns = monotonic_ns();
	pthread_mutex_unlock(&state.lock);
	rewrite_reap();
	atomic_store(&state.rewrite_keys, 0);
	ret = thread_without_signals(&state.rewrite_thread, rewrite_main, NULL);
	state.rewrite_joinable = !ret;
	if (!ret)
		return 0;
	log_repeated("write log: no thread for the rewrite can be started: %s", strerror(-ret));
	pthread_mutex_lock(&state.lock);
	state.rewrite_began_ns = 0;
	pthread_mutex_unlock(&state.lock);
	return ret;
}

/* With the lock.  On a disk that is full a small log is worth it, too. */
static bool has_grown(void)
{
	uint64_t base = state.info.size_at_base ? state.info.size_at_base : 1;
	uint64_t size = state.info.size, least = is_full(state.write_error) ? 0 : state.auto_min;

	return state.auto_percent && size > least && size > base &&
	       (size - base) * 100 / base >= state.auto_percent;
}

/* Since the last base was begun: longer after each that has failed.  With the lock. */
static bool has_paused(uint64_t most_ns)
{
	uint64_t failed = state.info.rewrites_failed;
	uint64_t pause = (uint64_t)RETRY_NS << (failed < 6 ? failed : 6);

	return monotonic_ns() - state.rewrite_tried_ns > (pause < most_ns ? pause : most_ns);
}

void writelog_second(void)
{
	bool needed, grown;

	if (!state.on)
		return;
	pthread_mutex_lock(&state.lock);
	needed = (state.info.waits_for_base || is_broken()) && has_paused(REBASE_NS);
	grown = has_grown() && has_paused(REWRITE_NS);
	pthread_mutex_unlock(&state.lock);
	if (grown && !state.rewrite_began_ns)
		log_notice("write log: it has grown, and gets a new base");
	if (needed || grown)
		writelog_rewrite();
}

void writelog_functions(void)
{
	uint64_t until = monotonic_ns() + RETRY_NS, wanted;

	pthread_mutex_lock(&state.lock);
	wanted = ++state.functions;
	if (state.on && state.consumer) {
		consumer_wake(state.consumer);
		while (state.safe.functions < wanted && state.info.write_ok &&
		       wait_until(&state.changed, until))
			;
	}
	pthread_mutex_unlock(&state.lock);
}

/* ---- beginning and ending ----------------------------------------------------------- */

/* Opens the directory, and makes it if there is none.  0, or -errno with a sentence. */
static int open_dir(const struct config *cfg, bool make, char *err, size_t err_len)
{
	int ret;

	snprintf(state.path, sizeof(state.path), "%s/%s", cfg->dir, cfg->appenddirname);
	snprintf(state.file, sizeof(state.file), "%s", cfg->appendfilename);
	snprintf(state.manifest_name, sizeof(state.manifest_name), "%s.manifest", state.file);
	ret = make ? make_dir(state.path) : open_existing(state.path);
	state.dir_fd = ret < 0 ? -1 : ret;
	if (ret >= 0)
		return 0;
	snprintf(err, err_len, "the directory %s cannot be %s: %s", state.path,
		 make ? "made" : "opened", strerror(-ret));
	return ret;
}

static void close_files(void)
{
	if (state.fd >= 0)
		close(state.fd);
	if (state.dir_fd >= 0)
		close(state.dir_fd);
	state.fd = state.dir_fd = -1;
	manifest_free(&state.manifest);
	aof_free(&state.text);
}

static int read_manifest(char *err, size_t err_len)
{
	char path[PATH_MAX + NAME_MAX];

	snprintf(path, sizeof(path), "%s/%s", state.path, state.manifest_name);
	return manifest_read(&state.manifest, state.dir_fd, state.manifest_name, path, err,
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
	DIR *dir = opendir(state.path);
	struct dirent *e;

	while (dir && (e = readdir(dir)))
		if (!strncmp(e->d_name, cfg->appendfilename, len) && e->d_name[len] == '.') {
			log_warning("%s/%s is a write log's, but %s is not there: it is not loaded",
				    state.path, e->d_name, state.manifest_name);
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
	const struct manifest *m = &state.manifest;
	uint64_t id = store_identity(st);

	for (unsigned int i = 0; i < m->count; i++) {
		struct stat sb = { 0 };

		fstatat(state.dir_fd, m->file[i].name, &sb, 0);
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
	struct replay_place place = { .path = state.path, .manifest = &state.manifest };
	int ret = open_dir(cfg, false, err, err_len);

	*keys = 0;
	if (ret == -ENOENT)
		return find_old(cfg, err, err_len);
	if (!ret) {
		ret = read_manifest(err, err_len);
		if (ret == -ENOENT)
			warn_of_files(cfg);
	}
	place.dir_fd = state.dir_fd;
	if (!ret)
		ret = fill_remove_rest(st, err, err_len);
	if (!ret)
		ret = replay_load(&place, st, cfg, keys, &state.tail, err, err_len);
	if (!ret)
		name_behind(st, state.behind);
	close_files();
	if (ret == -ENOENT)
		return find_old(cfg, err, err_len);
	state.loaded = !ret;
	if (!ret)
		log_notice("%s: %" PRIu64 " keys loaded", state.path, *keys);
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
	const struct replay_place place = { state.dir_fd, state.path, &state.manifest };
	struct replay_owner owner;
	char mine[17], name[17];
	int ret;

	name_behind(st, name);
	if (!strcmp(name, state.behind))
		return 0;
	ret = replay_find_owner(&place, &owner, err, err_len);
	snprintf(mine, sizeof(mine), "%016" PRIx64, store_identity(st));
	if (ret || (!state.manifest.restored && !strcmp(owner.store, mine)))
		return ret;
	snprintf(err, err_len,
		 "the write log in %s is not of the store in the kernel (%s)" NOT_REPLACED,
		 state.path,
		 state.manifest.restored ? "it was made by --restore-until"
		 : owner.id[0]		 ? "it belonged to another one"
					 : "it is of another server");
	return -ENOTUNIQ;
}

static int open_reader(struct store *st, bool *resumed, char *err, size_t err_len)
{
	int ret = consumer_open(st, state.id, &logging, NULL, &state.consumer, resumed);

	if (ret)
		snprintf(err, err_len, "the change feed cannot be read: %s", strerror(-ret));
	return ret;
}

/* Begins to read the feed, for a log that has no file for it yet. */
static int open_reader_alone(struct store *st, char *err, size_t err_len)
{
	bool resumed;

	memset(&state.now, 0, sizeof(state.now));
	store_numbers(st, state.now.number);
	state.safe = state.now;
	state.others = state.gathering.goal = 0;
	return open_reader(st, &resumed, err, err_len);
}

/* Goes on with the last increment at its last position, if the feed still has what comes next. */
static int writelog_try_resume(struct store *st, char *err, size_t err_len)
{
	const struct replay_place place = { state.dir_fd, state.path, &state.manifest };
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
			 state.path);
		return -ENOTUNIQ;
	}
	if (!end.size) {
		snprintf(err, err_len, "its last file was only begun");
		return -ENOENT;
	}
	snprintf(state.id, sizeof(state.id), "%s", end.owner.id);
	ret = open_reader(st, &resumed, err, err_len);
	if (ret)
		return ret;
	if (resumed && feed_is_broken(consumer_reader(state.consumer))) {
		snprintf(err, err_len, "nobody knows what of it is on the disk, which has failed");
		return -EIO;
	}
	if (!resumed || !feed_seek(consumer_reader(state.consumer), end.position)) {
		snprintf(err, err_len, "changes were made that are not in it");
		return -ENOENT;
	}
	increment_name(name, manifest_last(&state.manifest, 'i'));
	state.fd = file_openat(state.dir_fd, name, O_RDWR);
	ret = state.fd < 0 ? state.fd : ftruncate(state.fd, (off_t)end.size) ? -errno : 0;
	if (ret) {
		snprintf(err, err_len, "%s cannot be opened: %s", name, file_error(-ret));
		return -EIO;
	}
	state.now = (struct point){
		.size = end.size, .sum = end.sum, .position = end.position, .selected = NO_DB
	};
	memcpy(state.now.number, end.number, sizeof(end.number));
	state.safe = state.now;
	state.others = size_of_others();
	state.info.written = end.position;
	return 0;
}

static void find_behind(void *found, const char *name, uint64_t unread)
{
	*(bool *)found |= !strcmp(name, state.behind);
}

/* Has an earlier xkvd loaded this log, and had no room for a file behind it? */
static bool was_loaded(const struct store *st)
{
	bool found = false;

	name_behind(st, state.behind);
	feed_readers(st, find_behind, &found);
	if (!found)
		state.behind[0] = '\0';
	return found;
}

static int resume_behind(struct store *st, char *err, size_t err_len)
{
	const struct replay_place place = { state.dir_fd, state.path, &state.manifest };
	struct replay_end end;
	int ret = replay_find_end(&place, &end, err, err_len);

	if (ret)
		return ret;
	memcpy(state.id, state.behind, sizeof(state.id));
	state.tail = end.tail;
	state.loaded = true;
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
	if (!ret && !state.loaded)
		ret = writelog_try_resume(st, err, err_len);
	*resumed = state.resumed = !ret;
	if (!ret)
		return 0;
	if (ret != -ENOTUNIQ && (ret != -ENOENT || state.consumer))
		log_warning("%s is not gone on with, the store gets a new log: %s", state.path,
			    err);
	consumer_close(state.consumer, false);
	state.consumer = NULL;
	state.loaded = false;
	close_files();
	return ret == -ENOTUNIQ ? ret : 0;
}

/* A name for the reader that no other log has had. */
static int draw_id(void)
{
	uint64_t id;

	if (getrandom(&id, sizeof(id), 0) != (ssize_t)sizeof(id))
		return -errno;
	snprintf(state.id, sizeof(state.id), "%016" PRIx64, id);
	return 0;
}

/* Begins a log that no earlier xkvd has begun. */
static int begin_anew(struct store *st, const struct config *cfg, char *err, size_t err_len)
{
	int ret = open_dir(cfg, true, err, err_len);

	if (!ret)
		ret = read_manifest(err, err_len);
	if (!ret)
		ret = check_owner(st, err, err_len);
	if (ret && ret != -ENOENT)
		return ret;
	if (state.loaded)
		memcpy(state.id, state.behind, sizeof(state.id));
	else if (draw_id())
		return snprintf(err, err_len, "no random number for the write log"), -EIO;
	return open_reader_alone(st, err, err_len);
}

static int start_threads(char *err, size_t err_len)
{
	int ret;

	state.closing = state.hurries = false;
	ret = thread_without_signals(&state.sync_thread, sync_main, NULL);
	state.sync_runs = !ret;
	if (!ret)
		ret = consumer_start(state.consumer);
	if (ret)
		snprintf(err, err_len, "no thread for the write log: %s", strerror(-ret));
	return ret;
}

/* A log that was loaded, or gone on with, has its base. */
static int begin_files(bool serving, char *err, size_t err_len)
{
	int ret = state.info.waits_for_base ? writelog_rewrite() : 0;

	pthread_mutex_lock(&state.lock);
	while (!ret && !serving && state.rewrite_began_ns)
		pthread_cond_wait(&state.changed, &state.lock);
	if (!ret && !serving)
		ret = state.info.rewrite_error;
	pthread_mutex_unlock(&state.lock);
	if (ret)
		snprintf(err, err_len, "the write log in %s cannot be begun: %s", state.path,
			 strerror(-ret));
	return ret;
}

/* Reads are served while the disk is full. */
static int begin_behind(char *err, size_t err_len)
{
	int ret;

	state.manifest.restored = false;
	ret = go_on_behind();
	if (is_full(ret))
		return 0;
	if (ret)
		snprintf(err, err_len, "the write log in %s cannot be written: %s", state.path,
			 strerror(-ret));
	return ret;
}

static int writelog_begin(struct store *st, const struct config *cfg, bool serving, char *err,
			  size_t err_len)
{
	int ret = state.resumed ? 0 : begin_anew(st, cfg, err, err_len);

	state.st = st;
	if (state.loaded)
		state.others = size_without(0);
	pthread_mutex_lock(&state.lock); /* clients may look at it: INFO */
	state.info = (struct writelog_info){ .write_ok = true,
					     .last_rewrite_seconds = -1,
					     .waits_for_base = !state.resumed && !state.loaded,
					     .written = state.now.position,
					     .size = state.others + state.now.size };
	state.info.size_at_base = state.info.size;
	state.failed = state.in_txn = state.holds = false;
	state.switching = SWITCH_NONE;
	state.write_error = 0;
	state.damages = state.mended = 0;
	state.functions = state.safe.functions = state.now.functions = 0;
	state.bases = state.safe.bases = state.now.bases = 0;
	state.retry_ns = state.unsynced_ns = state.sync_ns = state.writing_ns = 0;
	pthread_mutex_unlock(&state.lock);
	atomic_store(&state.rewrite_stop, false);
	if (loading_is_stopped()) /* looked at after that: writelog_end_load() is not missed */
		atomic_store(&state.rewrite_stop, true);
	if (!ret && state.loaded)
		ret = begin_behind(err, err_len);
	if (!ret && state.fd >= 0)
		ret = sync_now();
	if (!ret)
		ret = start_threads(err, err_len);
	pthread_mutex_lock(&state.lock);
	state.on = !ret;
	pthread_mutex_unlock(&state.lock);
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

	pthread_mutex_lock(&state.lock);
	if (state.appendfsync != cfg->appendfsync && state.unsynced_ns)
		state.unsynced_ns = monotonic_ns();
	state.appendfsync = cfg->appendfsync;
	state.timestamps = cfg->aof_timestamps;
	atomic_store(&state.compress, cfg->rdbcompression);
	state.no_sync_on_rewrite = cfg->no_sync_on_rewrite;
	state.auto_percent = cfg->auto_rewrite_percent;
	state.auto_min = cfg->auto_rewrite_min;
	pthread_mutex_unlock(&state.lock);
	if (cfg->appendonly && !state.on)
		ret = writelog_begin(st, cfg, serving, err, err_len);
	if (!cfg->appendonly && state.on)
		writelog_close(false);
	atomic_store(&state.awaited, state.on && cfg->appendfsync == APPENDFSYNC_ALWAYS);
	tell(false); /* replies that wait may have nothing to wait for any more */
	return ret;
}

void writelog_end_load(void)
{
	loading_stop();
	atomic_store(&state.rewrite_stop, true);
}

/* Until what has changed so far is in the file. */
static void drain(void)
{
	uint64_t until = monotonic_ns() + CLOSE_NS, head = feed_head(state.st);

	consumer_wake(state.consumer);
	pthread_mutex_lock(&state.lock);
	while (state.info.written < head && state.info.write_ok &&
	       wait_until(&state.changed, until))
		;
	pthread_mutex_unlock(&state.lock);
}

void writelog_close(bool keep)
{
	if (state.on && keep)
		drain();
	atomic_store(&state.awaited, false);
	pthread_mutex_lock(&state.lock);
	state.on = false;
	state.closing = true;
	pthread_cond_broadcast(&state.changed);
	pthread_cond_broadcast(&state.sync_ends);
	pthread_mutex_unlock(&state.lock);
	atomic_store(&state.rewrite_stop, true);
	rewrite_reap();
	consumer_stop(state.consumer);
	if (state.sync_runs)
		pthread_join(state.sync_thread, NULL);
	state.sync_runs = state.resumed = state.loaded = false;
	if (state.fd >= 0)
		sync_now();
	consumer_close(state.consumer, keep);
	state.consumer = NULL;
	close_files();
}

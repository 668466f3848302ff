/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of the write log share: writelog.c (its state, beginning and ending),
 * writelog_open.c (loading it, or going on with it), writelog_files.c (increments and the
 * manifest), writelog_text.c (what a change is in the file), writelog_consumer.c (the thread that
 * reads the change feed), writelog_disk.c (the thread that syncs, who waits for the disk),
 * writelog_base.c (the rewrite).
 */
#ifndef XKV_WRITELOG_IMPL_H
#define XKV_WRITELOG_IMPL_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "aof.h"
#include "config/config.h"
#include "manifest.h"
#include "replay.h"
#include "store/store.h"
#include "writelog.h"

struct consumer;
struct consumer_type;
struct feed_change;

#define RETRY_NS    1000000000	/* after a write that has failed */
#define SYNC_NS	    1000000000	/* everysec */
#define STUCK_NS    10000000000 /* ... and are refused */
#define CLOSE_NS    5000000000	/* at the end, for what is in the feed yet */
#define NO_DB	    (-1)
#define TEMP_INCR   "temp-increment.aof"
#define ANOTHER_LOG "another log is there, and is not replaced: move it away"

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
	uint64_t functions, bases; /* functions, bases of the log that are told */
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

extern struct writelog {
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
} writelog;

extern const struct consumer_type writelog_consumer;

/* writelog.c */

/* With the lock.  False: it is that late. */
bool writelog_wait_until(pthread_cond_t *cond, uint64_t until_ns);
/* With the lock. */
bool writelog_is_broken(void);
/* With the lock.  An xkvd that is killed before there is a new base leaves word. */
void writelog_note_damage(void);
/* Calls whom writelog_tell() has named.  Without the lock. */
void writelog_notify(bool only_replies);
/* From now on writes are refused, for this reason.  Without the lock. */
__attribute__((format(printf, 1, 2))) void writelog_note_failure(const char *fmt, ...);
/* What was written is a whole log, or the consumer can write again. */
void writelog_note_success(void);
/* With the lock.  For how long, if that is too long; else 0. */
uint64_t writelog_too_late_ns(void);

/* writelog_open.c */

/* Opens the directory, which is there after a power cut, too.  Its descriptor, or -errno. */
int writelog_make_dir(const char *path);
/* Also of what was read of the manifest. */
void writelog_close_files(void);
/* Begins a log that no earlier xkvd has begun. */
int writelog_begin_anew(struct store *st, const struct config *cfg, char *err, size_t err_len);

/* writelog_files.c */

/* Is the disk, or a quota, full?  -errno. */
bool writelog_is_full(int error);
void increment_name(char name[NAME_MAX + 1], uint64_t seq);
/* Makes a file for changes from this position on.  Its descriptor, or an error. */
int increment_make(const char *name, uint64_t position, const struct replay_tail *before,
		   uint64_t *size, uint32_t *sum);
/* From here on changes go to this file. */
void increment_use(int fd, uint64_t size, uint32_t sum, uint64_t position);
/* The manifest that is in force may be the old one again after a power cut. */
int writelog_put_manifest(const struct manifest *m);
void writelog_forget_history(void);
/* Bytes of all files but this increment. */
uint64_t writelog_size_without(uint64_t incr);
uint64_t writelog_size_of_others(void);
/*
 * The next increment begins where the consumer stands: all changes before have taken effect, so the
 * walk that begins after this meets what they have left.
 */
void increment_switch(void);
/* The increments that were loaded, and one more, are the log.  -errno: it is tried again. */
int increment_go_on_behind(void);

/* writelog_text.c */

/* Writes what is in `text`, and goes on with the next. */
void writelog_write_text(void);
/*
 * Takes back what was written of commands that are not complete.  The disk has to know that before
 * something else is written there: after a power cut bytes of both might be in the file, which
 * nobody could tell from damage.
 */
void writelog_roll_back(void);
/* As consumer_type.change. */
bool writelog_on_change(void *arg, const struct feed_change *c);
/* Between commands: the file says where in the feed it stands. */
void writelog_write_position(uint64_t position);

/* writelog_disk.c */

/* Is there something to sync for those who have asked for it?  With the lock. */
bool writelog_is_wanted(void);
/*
 * Has the disk take what was written.  After an error nobody knows what of it is there, and the
 * kernel does not try again: then only a new base helps, for which the store has everything.
 */
int writelog_sync_now(void);
/*
 * -ENOENT: somebody has moved the directory away, or removed it, or the file; what is written then
 * goes nowhere.  Another error: nobody can tell.  With `syncing`.
 */
int writelog_find_files(void);
/* The thread that syncs. */
void *writelog_sync_main(void *arg);

/* writelog_base.c */

/* Joins the thread of a rewrite that has ended. */
void writelog_rewrite_reap(void);

#endif

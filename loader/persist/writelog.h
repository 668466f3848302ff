/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The write log: every change of the store, of both front ends, in files that Redis 7 can load, too
 * (`appendonly yes`).  docs/persistence.md says what it promises, and why it is right.
 *
 *   consumer   a thread that reads the change feed and writes to the current increment
 *   sync       a thread that has the disk take what was written, each second
 *   rewrite    a thread that writes a new base beside traffic (BGREWRITEAOF)
 *
 * There is one log in a process.  None of the functions keeps a reference to `cfg`.  Errors are
 * negative errno values; messages are one sentence without newline.  By the main thread, but for
 * those that say otherwise.
 */
#ifndef XKV_WRITELOG_H
#define XKV_WRITELOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config;
struct store;

/*
 * For a store that has served before, before feed_adopted(): goes on with the log of an earlier
 * xkvd, if that is what the changes are missing in that were made since, or behind the log that it
 * has loaded, if it had no room for a file there.  Else writelog_configure() begins anew: the store
 * has everything.  *resumed: functions were taken from the log, too.  0; or -EEXIST with a
 * sentence: the log is of another store, and would be replaced.
 */
int writelog_resume(struct store *st, const struct config *cfg, bool *resumed, char *err,
		    size_t err_len);

/* Warns of a log that is not loaded because of `appendonly no`: its data may be expected. */
void writelog_warn_unread(const struct config *cfg);
/* Is there a log to be loaded? */
bool writelog_exists(const struct config *cfg);

/*
 * Loads the log into a store that has never served.  0 and the number of keys that were set;
 * -ENOENT: there is no log; else an error with a sentence that names file and offset.
 */
int writelog_load(struct store *st, const struct config *cfg, uint64_t *keys, char *err,
		  size_t err_len);
/* Has a load end soon, and the first base that writelog_configure() waits for.  Any thread. */
void writelog_end_load(void);

/*
 * Begins or ends the log, as `appendonly` says, and does as the other directives say from now on.
 * `serving`: clients do not wait for the first base, which is written meanwhile.
 */
int writelog_configure(struct store *st, const struct config *cfg, bool serving, char *err,
		       size_t err_len);

/* Ends it.  With `keep` the next xkvd goes on with it, and misses nothing. */
void writelog_close(bool keep);

/* A new base in the background.  0, -EINPROGRESS, -ENOENT: there is no log, or -errno. */
int writelog_rewrite(void);

/* Once a second: begins what is due. */
void writelog_second(void);

/* Libraries of functions have changed: returns when that is in the log.  Any thread. */
void writelog_functions(void);

struct writelog_info {
	bool on;
	bool waits_for_base; /* what is on the disk is no whole log yet */
	bool write_ok;
	int rewrite_error; /* -errno of the last one; 0 = it succeeded, or there was none */
	bool rewriting;
	double rewrite_seconds, last_rewrite_seconds; /* of the one in progress; -1 = none */
	uint64_t rewrites, rewrites_failed;	      /* the latter in a row */
	uint64_t size, size_at_base; /* bytes of all files; when the base was new */
	uint64_t delayed;	     /* syncs that took longer than a second */
	bool syncing;
	uint64_t late_ns; /* the disk has not taken something for so long that writes wait; or 0 */
	uint64_t written, synced; /* positions in the change feed (store/feed.h) */
	char error[256];	  /* a sentence: why it is not written; "" = it is */
};
/* Any thread. */
void writelog_status(struct writelog_info *out);

/*
 * The disk is late: who wants to write has to wait, so that a power cut takes no more than two
 * seconds.  After ten seconds writes are refused.  Any thread.
 */
bool writelog_is_late(void);

/* Why writes have to be refused, "" = they have not. */
void writelog_refuses(char text[256]);

/*
 * With `appendfsync always`, a reply that tells of a change is sent when the disk has it: when
 * writelog_is_synced() says so of the position in the change feed that this returns, for all that
 * has changed so far.  0: nothing has to be waited for.  *writers: only clients that have changed
 * something wait; the disk takes nothing, or is late, and others read on.  `replies`: how many are
 * going to wait for it.
 */
uint64_t writelog_awaits(unsigned int replies, bool *writers);
bool writelog_is_synced(uint64_t position);
/* Waits for that, but not for ever.  False: it is not there. */
bool writelog_wait(void);

/*
 * Has the disk take all that has changed so far, soon, whatever `appendfsync` says.  Returns the
 * position in the change feed that writelog_has() will be true for; that is told (writelog_tell()).
 * Any thread.
 */
uint64_t writelog_sync_soon(void);
/* Is the log whole on the disk up to this position? */
bool writelog_has(uint64_t position);

/*
 * Calls `fn`, by any thread, when the functions above may say something else; NULL: no more.
 * `only_replies`: just writelog_is_synced(), as often as the disk syncs.
 */
typedef void writelog_tell_fn(void *arg, bool only_replies);
void writelog_tell(writelog_tell_fn *fn, void *arg);

#endif

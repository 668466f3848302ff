/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Snapshots: saves the store to an RDB file, and loads it.  A save walks the store in a thread of
 * its own while traffic runs; the file has the keys of one moment (image.h).
 *
 * Only one save runs at a time in a process.  The functions are thread safe unless noted.  None
 * keeps a reference to `cfg` (a background save copies dir and dbfilename); `st` must exist until
 * the save has ended.  Errors are negative errno values; messages are one sentence without newline.
 */
#ifndef XKV_SNAPSHOT_H
#define XKV_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct config;
struct store;

struct snapshot_info {
	bool in_progress;
	bool last_ok; /* of the last save that ended; true before the first */
	/* a background save failed, and no save has succeeded since; as in Redis */
	bool stop_writes;
	time_t last_save; /* of the last successful save; before that, of the start */
	/* the same moment, and the start of the last save, by monotonic_seconds() */
	double saved_at, tried_at;
	uint64_t last_keys;	   /* keys in the last successful save */
	uint64_t keys, keys_total; /* of the save in progress: written, and to be written */
	uint64_t loaded, expired;  /* keys of the file at the start; the latter were left out */
	uint64_t saves, failures;  /* successful and failed saves since the start */
	double last_seconds;	   /* duration of the last save */
	char last_error[256];	   /* a sentence, "" if last_ok */
};

/*
 * Saves and returns when the file is durable.  0, -EINPROGRESS if a save is running, or -errno with
 * a sentence in snapshot_info.last_error.
 */
int snapshot_save(struct store *st, const struct config *cfg);

/*
 * Starts a save in a thread.  0, -EINPROGRESS if a save is running, or -errno.  When it has ended,
 * snapshot_event_fd() becomes readable; then call snapshot_reap().
 */
int snapshot_bgsave(struct store *st, const struct config *cfg);
/* The same for somebody who waits for its end: a failure does not set `stop_writes`. */
int snapshot_begin(struct store *st, const struct config *cfg);
/* A descriptor for the event loop, which this module owns; -1 if there is none. */
int snapshot_event_fd(void);
/* Resets the descriptor, and joins the thread of a background save that has ended, if any. */
void snapshot_reap(void);
/* Waits for a running background save to end, and joins its thread. */
void snapshot_wait(void);
/* Makes a running save fail soon and remove its temporary file.  Then call snapshot_wait(). */
void snapshot_cancel(void);

/* Copies the state of saves. */
void snapshot_status(struct snapshot_info *out);

/*
 * Loads dir/dbfilename into the store.  0 and the number of keys that were set; -ENOENT if there is
 * no file; else a negative errno with a sentence in `err` that names file and offset.  Does not
 * write to the file; if a part of it is skipped, copies it first (dbfilename.original).  How far it
 * is says loading.h, which can also end it: -EINTR, and then the store may have a part of the file.
 * Checks the whole file, including its checksum, before it sets the first key.  To be called before
 * clients can reach the store, for one that has never served: keys that it has are the remains of a
 * load in which an xkvd was killed, and are removed first, also if there is no file.  If the store
 * fails during the load, it is empty again.
 */
int snapshot_load(struct store *st, const struct config *cfg, uint64_t *keys, char *err,
		  unsigned int err_len);
/* Is there a file to be loaded? */
bool snapshot_exists(const struct config *cfg);

/*
 * The libraries of functions that saves write, and that were found in a file that was read to its
 * end, as records (rdb.h).  snapshot_set_functions() takes `records`, which were allocated by
 * malloc(); snapshot_add_function() adds one more, 0 or -ENOMEM; snapshot_functions() returns a
 * copy with room for a footer (RDB_DUMP_FRAME), NULL without memory.
 */
void snapshot_set_functions(void *records, size_t len);
int snapshot_add_function(const void *text, size_t len);
void *snapshot_functions(size_t *len);

/*
 * For a store that has served before, and is newer than the file: takes only the libraries of
 * functions, as an xkvd has handed them over (util/handed.h), or else from dir/dbfilename, if it is
 * undamaged up to its checksum.  Errors are logged, and the file gets a second name
 * (dbfilename.unreadable); if that fails, saves fail until it has one.
 */
void snapshot_load_functions(const struct config *cfg);

/*
 * Renames a file that cannot be loaded to dbfilename.unreadable, or .unreadable.1 and so on, so
 * that neither a save nor the next such file replaces it.  0, or -errno with a sentence in `err`.
 */
int snapshot_set_aside(const struct config *cfg, char *err, unsigned int err_len);

/* Removes temporary files of killed processes from `dir`.  Each save does so, too. */
void snapshot_clean(const struct config *cfg);

/*
 * Number of changes (sets, deletes, expirations, and those of snapshot_changed()) since the last
 * successful save, for the `save` rules and INFO.
 */
uint64_t snapshot_changes(const struct store *st);
/* Does not count the changes so far: they were made by loading. */
void snapshot_count_from(const struct store *st);
/* Counts a change that is not of a key: of functions, or of the numbers of databases. */
void snapshot_changed(void);

#endif

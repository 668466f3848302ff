/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Snapshots: the store to an RDB file and back.  A save walks the store in a
 * thread of its own while traffic runs: every key's value is one that it had
 * during the save, and a key that is there for the whole save is in the file.
 */
#ifndef XKV_SNAPSHOT_H
#define XKV_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct config;
struct rdb_writer;
struct store;

struct snapshot_info {
	bool in_progress;
	bool last_ok;          /* of the last save that ended; true before the first */
	/*
	 * a background save failed, and none has succeeded since; as in Redis, SAVE does not count
	 */
	bool stop_writes;
	time_t last_save;      /* of the last good one; at start, the time of the start */
	/* the last good one, or the start; the last one: by monotonic_seconds() */
	double saved_at, tried_at;
	uint64_t last_keys;    /* keys in the last good one */
	uint64_t saves, failures; /* good ones, and others, since the start */
	double last_seconds;   /* how long the last one took */
	char last_error[256];  /* a sentence, "" if last_ok */
};

/*
 * One save at a time in a process; the functions are safe to call from any
 * thread.  None keeps `cfg` (a background save uses copies of dir and
 * dbfilename); `st` must stay until the save has ended.
 */

/*
 * Saves now and returns when the file is durable. 0, -EINPROGRESS, or -errno with a sentence in
 * info.last_error.
 */
int snapshot_save(struct store *st, const struct config *cfg);

/*
 * Writes what `source` says, in place of a store, as durably as a save.  A file that is there is
 * kept under its name with `aside` behind it.  `source` writes keys, and returns 0, or -errno with
 * a clause in `err`.  0, or -errno with a sentence.
 */
typedef int snapshot_source(void *arg, struct rdb_writer *w, char *err, size_t err_len);
int snapshot_write(const struct config *cfg, snapshot_source *source, void *arg, const char *aside,
		   char *err, size_t err_len);

/*
 * Starts a save in a thread. 0, -EINPROGRESS, or -errno. `done_fd` of
 * snapshot_event_fd() becomes readable when it has ended; then call snapshot_reap().
 */
int snapshot_bgsave(struct store *st, const struct config *cfg);
int snapshot_event_fd(void);
void snapshot_reap(void);
/* Waits for a running background save to end. */
void snapshot_wait(void);
/* Has a running save give up soon; its temporary file is removed. Then call snapshot_wait(). */
void snapshot_cancel(void);

void snapshot_status(struct snapshot_info *out);

/*
 * Loads dir/dbfilename into the store.  0 with *keys; -ENOENT if there is no
 * file; else a negative errno with one sentence that names file and offset.
 * Nothing is written to the file; where a part of it was skipped, it gets a second name
 * (dbfilename.original).  The whole file (checksum included) is checked before the first key is
 * set; if the store fails later, a store that was empty is empty again.  Keys that are in the store
 * already are newer than the file and stay.  Call it before clients can reach the store: a key that
 * is deleted during the load would come back.
 */
int snapshot_load(struct store *st, const struct config *cfg, uint64_t *keys, char *err,
		  unsigned int err_len);

/*
 * Renames a file that cannot be loaded to dbfilename.unreadable, or .unreadable.1 and so on:
 * neither the next save nor the next bad file may replace it.  0, or -errno with a sentence.
 */
int snapshot_set_aside(const struct config *cfg, char *err, unsigned int err_len);

/* Removes temporary files that killed processes left in `dir`.  Every save does so, too. */
void snapshot_clean(const struct config *cfg);

/* Changes (sets, deletes, expirations) since the last good save: for the `save` rules and INFO. */
uint64_t snapshot_changes(const struct store *st);

#endif

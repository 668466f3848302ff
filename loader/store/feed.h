/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The change feed, for the rest of xkvd: every change of the store, from both front ends, in the
 * order in which the changes of each key took effect, and those of a transaction together.
 *
 *   programs     reserve room in the ring, then change, then write the record (bpf/feed.bpf.h)
 *   readers      read, each at its own position
 *   feed_trim()  gives back what all readers have read
 *
 * No record is lost: without room in the ring a change waits.  So readers have to go on reading,
 * and a thread that reads must not change the store.  Only if xkvd is gone, and all its readers
 * serve its own clients, do changes go on without records: feed_ends_with_xkvd().
 *
 * The ring is pinned with the store.  A reader of an xkvd that was killed keeps its position, and
 * goes on there if the next xkvd opens one of the same name before feed_adopted().
 */
#ifndef XKV_FEED_H
#define XKV_FEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/layout.h"

struct store;
struct feed_reader;

/* A change.  Its pointers are valid until the next call of feed_next() with this reader. */
struct feed_change {
	enum xkv_change what;
	enum xkv_frontend frontend;
	const void *key;
	size_t key_len;
	const void *value; /* CREATE, OVERWRITE; else, and in a large transaction, NULL */
	size_t value_len;
	uint64_t expire_ms; /* Unix time in milliseconds, 0 = never */
	uint64_t version;   /* of an entry that is removed, its last one */
	uint64_t position;  /* grows from record to record */
	uint16_t origin;    /* store_origin(), 0 = unknown */
	uint8_t cause;	    /* opcode (bpf/proto.h), or XKV_CAUSE_... (bpf/layout.h) */
	uint8_t op_flags;   /* of the operation: XKV_KEEPTTL ... */
	uint8_t db, number; /* the stored number, and what clients called it at that time */
	bool more;	    /* the next change is of the same transaction */
	bool gone;	    /* the entry that was overwritten had expired */
	uint64_t bucket;    /* of FEED_BEFORE: where in the index the key is */
};

/*
 * `what` of a note, which is not a change but is reported in order with changes: store_txn_note().
 */
#define FEED_NOTE XKV_FEED_NOTHING

/*
 * Opens a reader.  `name` has at most 23 characters, and is not in use.  The reader gets every
 * change that begins after the call has returned.  *resumed: an earlier xkvd had a reader of this
 * name, and no change was lost since.  0; -ENOSPC: XKV_FEED_READERS are open; -EEXIST; -ENOMEM or
 * -errno.  Waits for grace periods, some ten milliseconds.  Thread safe.
 */
int feed_open(struct store *st, const char *name, struct feed_reader **out, bool *resumed);

/*
 * This reader serves clients of xkvd, and is not needed once xkvd has ended.  If that holds for all
 * readers, the ring is full, and xkvd has not trimmed it for XKV_FEED_ALIVE_NS, the programs stop
 * recording changes instead of refusing them.  With any other reader the ring is kept until the
 * next xkvd starts.
 */
void feed_ends_with_xkvd(struct feed_reader *r);

/* This reader needs no values: `value` is NULL and its length 0, except for FEED_BEFORE. */
void feed_keys_only(struct feed_reader *r);

/*
 * For snapshots (cut.h).  From now on this reader gets the previous entry after each change of an
 * entry that is old by the configuration; of the change itself only the key.  Waits for grace
 * periods.  0 or -errno.
 */
#define FEED_BEFORE XKV_FEED_BEFORE
int feed_before(struct feed_reader *r);
/* It no longer needs other changes. */
void feed_only_before(struct feed_reader *r);

/*
 * This reader acknowledges changes by feed_done(): until then they stay in the ring, and
 * feed_again() returns to them.  So they are not lost before the reader's results are safe.
 */
void feed_hold(struct feed_reader *r);
void feed_done(struct feed_reader *r);
void feed_again(struct feed_reader *r);

/*
 * Continues, with a resumed reader, at a position that feed_reached() returned in an earlier xkvd.
 * False: the position is no longer, or not yet, in the ring.
 */
bool feed_seek(struct feed_reader *r, uint64_t position);

/*
 * What this reader has made of the changes before is not to be relied on, say because the disk has
 * failed; or it is again.  The next xkvd is told, which knows nothing else of it.
 */
void feed_break(struct feed_reader *r, bool broken);
bool feed_is_broken(const struct feed_reader *r);

/*
 * The next change: 1, 0 if there is none at the moment, or -ENOMEM.  A change counts as read when
 * the next one is asked for: a reader that is killed gets it again.  One thread per reader.
 *
 * -ESTALE: xkvd was stopped for so long that the feed was given up.  Changes that took effect
 * before this call returned were lost; later ones will be read.
 */
int feed_next(struct feed_reader *r, struct feed_change *out);

/* All changes with a position below this have been read.  By the reader's thread. */
uint64_t feed_position(const struct feed_reader *r);
/*
 * The same, including changes that feed_next() has returned but feed_done() has not acknowledged.
 */
uint64_t feed_reached(const struct feed_reader *r);

/* All changes that have taken effect before this call have a lower position. */
uint64_t feed_head(const struct store *st);

/*
 * Calls `fn` (NULL: nothing) when a transaction was committed, in the committing thread, with its
 * operations in order; `count` may be 0.  (If it sets a key twice and deletes it, the feed itself
 * has at most one record, with XKV_CAUSE_TXN.)  Complete if the feed had readers when the
 * transaction began.  `recorded`: it has records.
 */
typedef void feed_commit_fn(void *arg, const struct feed_change *changes, unsigned int count,
			    bool recorded);
void feed_on_commit(struct store *st, feed_commit_fn *fn, void *arg);

/* Closes the reader.  Does nothing for NULL. */
void feed_close(struct feed_reader *r);
/* The same, but its changes are kept in the ring, for the next xkvd. */
void feed_leave(struct feed_reader *r);

/*
 * Frees the records that all readers have read.  To be called every millisecond or so while readers
 * are open, by any thread.  Returns the bytes that became free.
 */
uint64_t feed_trim(struct store *st);

/* Have all readers read the records before this position?  True if there are none.  Thread safe. */
bool feed_is_read(const struct store *st, uint64_t position);

/* Bytes in the ring that the slowest reader has not read, and changes that had to wait so far. */
void feed_load(struct store *st, uint64_t *unread, uint64_t *refused);

/* Calls fn(arg, name, bytes) for each reader, with the bytes that it has not read. */
void feed_readers(const struct store *st, void (*fn)(void *arg, const char *name, uint64_t unread),
		  void *arg);

/* How often the feed was given up, since the ring was made. */
uint64_t feed_given_up(const struct store *st);

/* How often a transaction left out FEED_BEFORE records because they did not fit. */
uint64_t feed_spoilt(const struct store *st);

/* Removes the readers of an earlier xkvd that were not opened again by feed_open(). */
void feed_adopted(struct store *st);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A cut: all keys as they were at one moment, while both front ends go on changing them.
 *
 * The moment is a position in the change feed (feed.h).  Each key that existed then is reported
 * once, by the first of two: a walk over the index, or the first change after the moment, which
 * copies the old entry into the feed.  So only entries that change are copied, each once, and no
 * client waits.  docs/design.md (Snapshots) says why no key is missed or met twice.
 */
#ifndef XKV_CUT_H
#define XKV_CUT_H

#include <stdint.h>

#include "store.h"

/* The user of a cut: functions that store_cut() calls in its caller's thread. */
struct cut_user {
	/*
	 * Chooses the moment: returns feed_head(), read while other state that belongs to the cut,
	 * such as functions, cannot change.  SWAPDB is already held off.
	 */
	uint64_t (*moment)(void *arg);
	/* The next key, in any order, valid during the call; a value other than 0 ends the cut. */
	store_scan_fn *key;
	void *arg;
	bool expired; /* keys that have expired by then are wanted, too */
};

/*
 * Reports the keys of the moment that user->moment() chooses.  `key` should not block: old entries
 * queue up in the feed meanwhile, and when it is full, clients wait.  0; the value of `key`;
 *
 *   -EAGAIN   a transaction's old entries did not fit the feed: start again
 *   -EBUSY    a key could not be read for seconds
 *   -EALREADY there is one in progress
 *   -ESTALE   xkvd was stopped for so long that changes were lost
 *   -EUSERS   the feed has no place for another reader; or -ENOMEM, -errno
 */
int store_cut(struct store_ctx *ctx, const struct cut_user *user);

#endif

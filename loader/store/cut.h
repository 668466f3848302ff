/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A cut: all keys as they were at one moment, while both front ends go on changing them.
 *
 * The moment is a position in the change feed (feed.h).  Each key that existed then is reported
 * once, by whoever comes first: a walk over the index, or the first change after it, which leaves
 * the entry as it was before in the feed.  So nothing is copied but what changes, once, and nobody
 * waits.  docs/design.md (Snapshots) says why no key is missed or met twice.
 */
#ifndef XKV_CUT_H
#define XKV_CUT_H

#include <stdint.h>

#include "store.h"

/* What is done with it, by the thread that calls store_cut(). */
struct cut_user {
	/*
	 * The moment: returns feed_head(), taken while what else belongs to it is held still, such
	 * as functions.  SWAPDB is.
	 */
	uint64_t (*moment)(void *arg);
	/* The next key, valid during the call; in any order; ends the cut by other than 0. */
	store_scan_fn *key;
	void *arg;
};

/*
 * Reports the keys of the moment that it chooses.  `key` should not block: what changes waits in
 * the feed, and no longer fits if that takes long; then clients wait.  0; the value of `key`;
 *
 *   -EAGAIN   a transaction was too large to leave what it replaced: from the beginning, please
 *   -EBUSY    a key could not be read for seconds
 *   -EALREADY there is one in progress
 *   -ESTALE   xkvd stood still for so long that changes were lost
 *   -EUSERS   the feed has no place for another reader; or -ENOMEM, -errno
 */
int store_cut(struct store_ctx *ctx, const struct cut_user *user);

#endif

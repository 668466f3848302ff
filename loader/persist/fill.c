// SPDX-License-Identifier: BSD-2-Clause
#include "fill.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "config/config.h"
#include "util/log.h"

#define BUSY_RETRIES 1000
#define BUSY_WAIT_NS 100000 /* between them: a tenth of a second in total */

/*
 * If entries may be evicted, they are, and the limit is lifted only when none can be evicted any
 * more.
 */
static void lift_limit(struct fill *f)
{
	store_limit_lift(f->st);
	f->lifted = true;
}

int fill_begin(struct fill *f, struct store *st, const struct config *cfg, char *err,
	       size_t err_len)
{
	int ret;

	*f = (struct fill){ .st = st, .cfg = cfg, .ctx = store_ctx_get(st) };
	if (!f->ctx) {
		ret = -errno;
		snprintf(err, err_len, "the store has no context left: %s", strerror(-ret));
		return ret;
	}
	if (cfg->maxmemory_policy == STORE_NOEVICTION)
		lift_limit(f); /* not when it is reached: each key would then wait for memory */
	return 0;
}

void fill_end(struct fill *f)
{
	if (f->lifted)
		store_limit(f->st, f->cfg->maxmemory, f->cfg->maxmemory_policy);
	store_ctx_put(f->ctx);
}

int fill_do(struct fill *f, const struct store_op *op, struct store_entry *out)
{
	const struct timespec wait = { .tv_nsec = BUSY_WAIT_NS };
	int ret = -EBUSY;

	for (int i = 0; i < BUSY_RETRIES; i++) {
		ret = store_do(f->ctx, op, out);
		if (ret == -ENOSPC && store_at_limit(f->st)) {
			lift_limit(f);
			continue;
		}
		if (ret != -EBUSY)
			break;
		nanosleep(&wait, NULL);
	}
	return ret;
}

const char *fill_remedy(int error)
{
	return error == -ENOSPC ? "; raise maxmemory or max-keys, or add memory" : "";
}

int fill_remove_rest(struct store *st, char *err, size_t err_len)
{
	uint64_t count = store_count(st);
	struct store_ctx *ctx;
	int ret;

	if (!count)
		return 0;
	log_notice("removing %" PRIu64 " keys of a snapshot that was not loaded to its end", count);
	ctx = store_ctx_get(st);
	ret = ctx ? store_flush(ctx) : -errno;
	store_ctx_put(ctx);
	if (ret)
		snprintf(err, err_len,
			 "a part of a snapshot cannot be removed from the store: %s; remove all of "
			 "it by xkvd --detach",
			 strerror(-ret));
	return ret;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Read, modify, write: commands that depend on what the key holds. */
#include "impl.h"

#include <errno.h>

#define TRIES 1000 /* while other clients change the key */

/* One try.  -ECANCELED or -ENOENT of the write: the entry was changed in between. */
static int try_update(struct client *c, const struct resp_arg *key, bool value,
		      command_update_fn *decide, void *arg, bool *written)
{
	struct store_ctx *ctx = c->worker->ctx;
	struct store_entry e, unused;
	struct store_op op = { 0 };
	int ret;

	*written = false;
	ret = value ? store_get(ctx, key->ptr, key->len, &e)
		    : store_touch(ctx, key->ptr, key->len, true, &e);
	if (ret)
		return ret;
	ret = decide(c, arg, &e, &op);
	if (ret <= 0)
		return ret;
	*written = true;
	op.flags |= XKV_CAS;
	op.version = e.version;
	op.key = key->ptr;
	op.key_len = key->len;
	return store_do(ctx, &op, &unused);
}

int command_update(struct client *c, const struct resp_arg *key, bool value,
		   command_update_fn *decide, void *arg)
{
	bool written;
	int ret;

	commands_flush(c);
	for (unsigned int i = 0; i < TRIES; i++) {
		ret = try_update(c, key, value, decide, arg, &written);
		if (!written || (ret != -ECANCELED && ret != -ENOENT))
			return ret;
	}
	return -EBUSY;
}

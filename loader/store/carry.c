// SPDX-License-Identifier: BSD-2-Clause
#include "carry.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "impl.h"
#include "lookup.h"

#define BUSY_RETRIES 1000
#define BUSY_WAIT_NS 100000
#define PRUNE_COUNT  128 /* keys that are looked at at a time */

bool carry_has(struct store *st, const struct carried *e)
{
	uint64_t version;

	return !lookup_version(st, e->db, e->key, e->key_len, &version) && version == e->version;
}

/* One operation on a stored key, tried again while it is busy: the maintenance may be at it. */
static int carry_do(struct store_ctx *ctx, uint8_t db, const struct store_op *op,
		    struct store_entry *out)
{
	const struct timespec wait = { .tv_nsec = BUSY_WAIT_NS };
	int ret = -EBUSY;

	store_reselect(ctx, db);
	for (int i = 0; i < BUSY_RETRIES && ret == -EBUSY; i++) {
		if (i)
			nanosleep(&wait, NULL);
		ret = entry_do(ctx, op, out);
	}
	return ret;
}

int carry_put(struct store_ctx *ctx, const struct carried *e)
{
	struct store_op op = {
		.opcode = XKV_OP_SET,
		.key = e->key,
		.key_len = e->key_len,
		.value = e->value,
		.value_len = e->value_len,
		.expire_ms = e->expire_ms,
	};
	struct store_entry out;
	int ret = carry_do(ctx, e->db, &op, &out);

	return ret ? ret : lookup_stamp(ctx->st, e, out.version);
}

/* ---- parts that no longer exist -------------------------------------------- */

struct prune {
	struct store_ctx *ctx; /* its requests are used while keys are reported: see flush_one() */
	carry_stays_fn *stays;
	void *arg;
};

static int prune_one(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	struct carried e = { .key = key, .key_len = (uint8_t)key_len, .db = entry->db };
	struct store_op op = { .opcode = XKV_OP_DELETE, .key = key, .key_len = key_len };
	struct prune *p = arg;
	struct store_entry out;
	int ret;

	if (p->stays(p->arg, &e))
		return 0;
	ret = carry_do(p->ctx, e.db, &op, &out);
	return ret == -ENOENT ? 0 : ret;
}

int carry_prune(struct store_ctx *ctx, carry_stays_fn *stays, void *arg)
{
	struct prune p = { ctx, stays, arg };
	uint64_t cursor = 0;
	int ret;

	do {
		ret = store_scan_stored(ctx, &cursor, PRUNE_COUNT, prune_one, &p);
	} while (!ret && cursor);
	return ret;
}

/* ---- what is no entry ------------------------------------------------------ */

void carry_settings(struct store *st, const struct carried_settings *other)
{
	struct xkv_config *cfg = st->cfg;

	memcpy(cfg->stored, other->stored, sizeof(cfg->stored));
	memcpy(cfg->number, other->number, sizeof(cfg->number));
	cfg->stored_current = other->stored_current;
	if (cfg->track == other->track) {
		cfg->access = other->access;
		cfg->access_spread = other->access_spread;
	}
	if (cfg->version_least < other->version_least)
		__atomic_store_n(&cfg->version_least, other->version_least, __ATOMIC_RELEASE);
}

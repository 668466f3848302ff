// SPDX-License-Identifier: BSD-2-Clause
#include "migrate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bpf/bpf.h>

#include "config/config.h"
#include "older.h"
#include "store/open.h"
#include "util/clock.h"
#include "util/grace.h"
#include "util/log.h"
#include "util/machine.h"

#define PASSES_MAX 8	      /* while the older programs make changes */
#define FEW	   1000	      /* changes in a pass: so few that writes are held for the next one */
#define HOLD_NS	   2000000000 /* a hold ends by itself, in case this xkvd is killed */
#define HOLD_FOR   4096	      /* entries that are visited before the hold is renewed */

struct migrate {
	struct bpf *bpf;
	struct store *st;
	struct store_ctx *ctx;
	const struct config *cfg;
	struct older *older;
	bool has_data;
	bool again; /* not the first pass */
	bool held, lapsed, replaced;
	uint64_t held_until_ns, held_since_ns, began_ns;
	uint64_t keys, changed; /* of the last pass: entries that it visited, and copied */
};

/* ---- the copy -------------------------------------------------------------- */

static void hold(struct migrate *m)
{
	uint64_t now = monotonic_ns();

	m->lapsed |= m->held && now >= m->held_until_ns;
	m->held = true;
	m->held_until_ns = now + HOLD_NS;
	older_hold(m->older, m->held_until_ns);
}

static void release(struct migrate *m)
{
	if (m->held)
		older_hold(m->older, 0);
	m->held = false;
}

static int copy_one(void *arg, struct carried *e, uint64_t ref)
{
	struct migrate *m = arg;
	int ret;

	if (m->held && ++m->keys % HOLD_FOR == 0)
		hold(m);
	if (m->again && carry_has(m->st, e))
		return 0;
	ret = older_value(m->older, e, ref);
	if (ret)
		return ret;
	m->changed++;
	ret = carry_put(m->ctx, e);
	return ret == -EAGAIN ? -EBUSY : ret;
}

static bool stays(void *arg, const struct carried *e)
{
	struct migrate *m = arg;

	return older_has(m->older, e);
}

/* Copies entries that are new or have changed, and removes those that were deleted meanwhile. */
static int pass(struct migrate *m)
{
	uint64_t count = 0;
	int ret;

	m->changed = m->keys = 0;
	ret = older_walk(m->older, copy_one, m, &count);
	m->again = true;
	if (!ret && count != store_count(m->st))
		ret = carry_prune(m->ctx, stays, m);
	return ret;
}

static int fail(int ret, char *err, size_t err_len)
{
	snprintf(err, err_len,
		 "the store cannot be carried over to this version's layout: %s%s. Nothing was "
		 "changed",
		 strerror(-ret),
		 ret == -ENOSPC || ret == -ENOMEM
			 ? ": it needs as much memory again as the data takes"
			 : "");
	return ret;
}

/* With the older store's secrets: tokens of clients stay valid, and keys have the same hashes. */
static int begin(struct migrate *m)
{
	struct xkv_secrets secrets;
	int ret = older_secrets(m->older, &secrets);

	if (ret)
		return ret;
	*store_secrets(m->st) = secrets;
	store_limit_lift(m->st);
	ret = pass(m);
	for (int i = 0; !ret && m->changed > FEW && i < PASSES_MAX; i++)
		ret = pass(m);
	return ret;
}

static int check_room(const struct older *o, char *err, size_t err_len)
{
	uint64_t bytes = older_bytes(o);

	if (!older_has_data(o) || !memory_is_short(bytes))
		return 0;
	snprintf(err, err_len,
		 "the store has another layout (%u, this version's is %u), and there is no memory "
		 "for a copy of its %" PRIu64 " MiB. Nothing was changed: start the version that "
		 "made it again, `xkv save`, stop it, `xkvd --detach`, and start this one",
		 older_layout(o), XKV_DATA_VERSION, bytes >> 20);
	return -ENOMEM;
}

int migrate_check(const struct bpf *bpf, char *err, size_t err_len)
{
	struct older *o = older_open(bpf, err, err_len);
	int ret = o ? check_room(o, err, err_len) : -EINVAL;

	older_close(o);
	return ret;
}

int migrate_begin(struct migrate **out, struct bpf *bpf, struct store *st, const struct config *cfg,
		  bool *empty, char *err, size_t err_len)
{
	struct older *o = older_open(bpf, err, err_len);
	int ret = o ? check_room(o, err, err_len) : -EINVAL;
	struct migrate *m = ret ? NULL : calloc(1, sizeof(*m));

	if (!m) {
		older_close(o);
		return ret ? ret : fail(-ENOMEM, err, err_len);
	}
	*m = (struct migrate){ .bpf = bpf, .st = st, .cfg = cfg, .older = o };
	*out = m;
	m->ctx = store_ctx_get(st);
	m->has_data = older_has_data(o);
	*empty = !m->has_data;
	m->began_ns = monotonic_ns();
	if (!m->has_data)
		return 0;
	log_notice("the store in %s has layout %u, this version's is %u: it is carried over",
		   cfg->pin_dir, older_layout(o), XKV_DATA_VERSION);
	ret = m->ctx ? begin(m) : -EAGAIN;
	return ret ? fail(ret, err, err_len) : 0;
}

/* ---- the end --------------------------------------------------------------- */

/* Copies the dedup cache, so that a change repeated after the switch is not executed again. */
static int carry_once(struct migrate *m)
{
	struct xkv_dedup_set *sets = calloc(XKV_DEDUP_SETS, sizeof(*sets));
	int ret = sets ? older_once(m->older, sets) : -ENOMEM;

	for (uint32_t set = 0; !ret && set < XKV_DEDUP_SETS; set++)
		if (bpf_map_update_elem(m->bpf->map[BPF_ONCE], &set, &sets[set], BPF_ANY))
			ret = -errno;
	free(sets);
	return ret;
}

/* While the hold lasts, so nobody changes the older store. */
static int last_pass(struct migrate *m)
{
	struct carried_settings settings;
	int ret;

	do {
		m->lapsed = false;
		hold(m);
		ret = grace_wait();
		if (!ret)
			ret = pass(m);
		hold(m);
	} while (!ret && m->lapsed);
	if (!ret)
		ret = carry_once(m);
	if (!ret)
		ret = older_settings(m->older, &settings);
	if (ret)
		return ret;
	store_limit(m->st, m->cfg->maxmemory, m->cfg->maxmemory_policy);
	carry_settings(m->st, &settings);
	return 0;
}

/* Does what takes long before the hold, to keep that short. */
static int end(struct migrate *m)
{
	int ret = bpf_pin_beside(m->bpf, m->cfg);

	if (!ret && m->has_data)
		ret = pass(m);
	m->held_since_ns = monotonic_ns();
	if (!ret && m->has_data)
		ret = last_pass(m);
	if (ret)
		return ret;
	older_hold(m->older, UINT64_MAX); /* for good: its programs must change nothing any more */
	m->held = true;
	return bpf_replace(m->cfg);
}

int migrate_end(struct migrate *m, char *err, size_t err_len)
{
	int ret = end(m);

	if (ret) {
		release(m);
		return fail(ret, err, err_len);
	}
	m->replaced = true;
	log_notice("carried %" PRIu64 " keys over in %" PRIu64 " ms; writes over UDP wait since "
		   "%" PRIu64 " ms",
		   store_count(m->st), (monotonic_ns() - m->began_ns) / 1000000,
		   (monotonic_ns() - m->held_since_ns) / 1000000);
	return 0;
}

void migrate_undo(struct migrate *m)
{
	int ret = m->replaced ? bpf_put_back(m->bpf, m->cfg) : 0;

	if (ret) {
		log_warning("the older store cannot be put back: %s", strerror(-ret));
		return;
	}
	m->replaced = false;
	release(m);
}

void migrate_free(struct migrate *m)
{
	if (!m)
		return;
	store_ctx_put(m->ctx);
	older_close(m->older);
	free(m);
}

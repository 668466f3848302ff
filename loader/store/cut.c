// SPDX-License-Identifier: BSD-2-Clause
/*
 *   begin     programs leave in the feed what they replace (feed_before())
 *   moment    a position in the feed: the change whose record is there is the first one after it
 *   settle    a thread waits until all earlier changes have ended, and has later ones draw greater
 *             versions than any before; from then on a version tells what is old
 *   walk      some buckets at a time; after each time the feed is read as far as it was then
 *
 * Until versions tell, the records of all changes do: `late` has the versions that were drawn after
 * the moment and are not greater.
 */
#include "cut.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "feed.h"
#include "impl.h"
#include "util/thread.h"

#define SCAN_COUNT    128     /* keys that are walked at a time */
#define TRIM_CHANGES  1024    /* that are read before room is made in the ring */
#define VERSIONS_MORE 4194304 /* more than a CPU draws while programs begin with greater ones */
#define VERSIONS_EACH (2ULL * XKV_VERSION_CPUS * XKV_FRONTENDS) /* of a number: see layout.h */
#define REST_US	      200

/* A set of versions; 0 is none. */
struct versions {
	uint64_t *place;
	size_t size, count;
};

/* An entry that the walk has met; key and value follow, padded to words. */
struct met {
	size_t key_len;
	struct store_entry entry;
};

struct cut {
	struct store *st;
	struct store_ctx *ctx;
	const struct cut_user *user;
	struct feed_reader *reader;
	uint64_t position; /* the moment */
	uint64_t now_ms;   /* what had expired then is not reported, 0 = all is */
	uint64_t spoilt;   /* feed_spoilt() at the moment */
	uint64_t walked;   /* buckets that all is done with */
	uint64_t end;	   /* buckets that were read: from `walked` on their keys are in `met` */
	char *met;
	size_t met_len, met_room;
	struct versions late;
	_Atomic uint64_t version; /* from this one on they are later; 0 = not known yet */
	pthread_t settling;
	atomic_bool settled;
	int settle_ret;
};

/* ---- versions -------------------------------------------------------------- */

/* Where the version is, or would be. */
static uint64_t *version_place(const struct versions *set, uint64_t version)
{
	size_t at = version * 0x9e3779b97f4a7c15ULL >> 32;

	while (set->place[at & (set->size - 1)] && set->place[at & (set->size - 1)] != version)
		at++;
	return &set->place[at & (set->size - 1)];
}

static bool version_has(const struct versions *set, uint64_t version)
{
	return set->count && *version_place(set, version);
}

static int versions_grow(struct versions *set)
{
	struct versions more = { .size = set->size ? 2 * set->size : 1024, .count = set->count };

	more.place = calloc(more.size, sizeof(*more.place));
	if (!more.place)
		return -ENOMEM;
	for (size_t i = 0; i < set->size; i++)
		if (set->place[i])
			*version_place(&more, set->place[i]) = set->place[i];
	free(set->place);
	*set = more;
	return 0;
}

static int version_add(struct versions *set, uint64_t version)
{
	int ret = 2 * set->count < set->size ? 0 : versions_grow(set);

	if (ret)
		return ret;
	*version_place(set, version) = version;
	set->count++;
	return 0;
}

/* Was the version drawn for a change after the moment? */
static bool is_later(const struct cut *c, uint64_t version)
{
	uint64_t greater = atomic_load(&c->version);

	return (greater && version >= greater) || version_has(&c->late, version);
}

/* ---- the feed -------------------------------------------------------------- */

static int cut_report(const struct cut *c, const void *key, size_t key_len,
		      const struct store_entry *entry)
{
	if (entry->expire_ms && entry->expire_ms <= c->now_ms)
		return 0;
	return c->user->key(c->user->arg, key, key_len, entry);
}

static const struct met *met_next(const struct met *m)
{
	return (const void *)((const char *)(m + 1) + XKV_PADDED(m->key_len) +
			      XKV_PADDED(m->entry.value_len));
}

#define FOR_EACH_MET(m, c)                                                                         \
	for (const struct met *m = (const void *)(c)->met;                                         \
	     (const char *)m < (c)->met + (c)->met_len; m = met_next(m))

static bool has_met(const struct cut *c, uint64_t version)
{
	FOR_EACH_MET(m, c)
	if (m->entry.version == version)
		return true;
	return false;
}

/*
 * An entry as it was before a change.  Of a bucket that all is done with the walk has met it: the
 * feed was read as far as it was when the bucket had been.
 */
static int take_before(struct cut *c, const struct feed_change *change)
{
	const struct store_entry entry = { .value = change->value,
					   .value_len = change->value_len,
					   .expire_ms = change->expire_ms,
					   .version = change->version,
					   .db = change->db };

	if (change->bucket < c->walked || is_later(c, change->version))
		return 0;
	if (change->bucket < c->end && has_met(c, change->version))
		return 0;
	return cut_report(c, change->key, change->key_len, &entry);
}

static int cut_take(struct cut *c, const struct feed_change *change)
{
	if (change->position < c->position)
		return 0;
	if ((int)change->what == FEED_BEFORE)
		return take_before(c, change);
	if (change->what > XKV_CHANGE_EXPIRY || is_later(c, change->version))
		return 0;
	return version_add(&c->late, change->version);
}

/* Reads the feed up to a position. */
static int drain(struct cut *c, uint64_t position)
{
	struct feed_change change;
	unsigned int changes = 0;
	int ret = 0;

	while (!ret && feed_reached(c->reader) < position) {
		ret = feed_next(c->reader, &change);
		if (!ret)
			sched_yield(); /* a record is being written */
		if (ret == 1)
			ret = cut_take(c, &change);
		if (++changes % TRIM_CHANGES == 0)
			feed_trim(c->st);
	}
	feed_trim(c->st);
	if (!ret && feed_spoilt(c->st) != c->spoilt)
		ret = -EAGAIN;
	return ret;
}

/* ---- settle ---------------------------------------------------------------- */

/*
 * Versions tell only when no program that has begun before the moment draws one any more, and then,
 * of all entries, when each program draws greater ones.
 */
static int cut_settle(struct cut *c)
{
	struct xkv_config *cfg = c->st->cfg;
	uint64_t number;
	int ret = programs_wait(c->st);

	if (!ret)
		ret = versions_next(c->st, &number);
	if (ret)
		return ret;
	number += VERSIONS_MORE;
	atomic_store(&c->version, number * VERSIONS_EACH); /* before any is drawn */
	__atomic_store_n(&cfg->version_least, number, __ATOMIC_RELEASE);
	ret = programs_wait(c->st);
	if (ret)
		return ret;
	__atomic_store_n(&cfg->cut_version, number * VERSIONS_EACH, __ATOMIC_RELEASE);
	feed_only_before(c->reader);
	return 0;
}

static void *settle_main(void *arg)
{
	struct cut *c = arg;

	c->settle_ret = cut_settle(c);
	atomic_store(&c->settled, true);
	return NULL;
}

/* Meanwhile the feed is read: the ring has room for some ten milliseconds. */
static int wait_for_versions(struct cut *c)
{
	int ret = thread_without_signals(&c->settling, settle_main, c), failed = 0;

	if (ret)
		return ret;
	while (!atomic_load(&c->settled)) {
		if (!failed)
			failed = drain(c, feed_head(c->st));
		usleep(REST_US);
	}
	pthread_join(c->settling, NULL);
	if (!failed)
		failed = drain(c, feed_head(c->st));
	return failed ? failed : c->settle_ret;
}

/* ---- the walk -------------------------------------------------------------- */

static int met_make_room(struct cut *c, size_t bytes)
{
	size_t room = c->met_len + bytes > 2 * c->met_room ? c->met_len + bytes : 2 * c->met_room;
	char *more;

	if (c->met_len + bytes <= c->met_room)
		return 0;
	more = realloc(c->met, room);
	if (!more)
		return -ENOMEM;
	c->met = more;
	c->met_room = room;
	return 0;
}

static int meet(void *arg, const void *key, size_t key_len, const struct store_entry *entry)
{
	size_t key_room = XKV_PADDED(key_len), value_room = XKV_PADDED(entry->value_len);
	struct cut *c = arg;
	struct met *m;
	int ret = met_make_room(c, sizeof(*m) + key_room + value_room);

	if (ret)
		return ret;
	m = (struct met *)(c->met + c->met_len);
	m->key_len = key_len;
	m->entry = *entry;
	memcpy(m + 1, key, key_len);
	memcpy((char *)(m + 1) + key_room, entry->value, entry->value_len);
	c->met_len += sizeof(*m) + key_room + value_room;
	return 0;
}

static int report_met(const struct cut *c)
{
	FOR_EACH_MET(m, c)
	{
		struct store_entry entry = m->entry;
		int ret;

		entry.value = (const char *)(m + 1) + XKV_PADDED(m->key_len);
		ret = is_later(c, entry.version) ? 0 : cut_report(c, m + 1, m->key_len, &entry);
		if (ret)
			return ret;
	}
	return 0;
}

/*
 * Some buckets: what the walk has met, and what it has not, since that had changed before.  Their
 * keys change without being recorded from here on.
 */
static int walk_some(struct cut *c)
{
	uint64_t cursor = c->end;
	int ret;

	c->met_len = 0;
	ret = store_scan_all(c->ctx, &cursor, SCAN_COUNT, meet, c);
	if (ret)
		return ret;
	c->end = cursor ? cursor : c->st->bpf.buckets;
	__atomic_store_n(&c->st->cfg->cut_bucket, c->end, __ATOMIC_RELEASE);
	ret = drain(c, feed_head(c->st));
	if (!ret)
		ret = report_met(c);
	c->walked = c->end;
	return ret;
}

/* ---- all of it ------------------------------------------------------------- */

static int cut_begin(struct cut *c)
{
	struct xkv_config *cfg = c->st->cfg;
	bool resumed;
	int ret = feed_open(c->st, "snapshot", &c->reader, &resumed);

	if (ret)
		return ret == -EEXIST ? -EALREADY : ret == -ENOSPC ? -EUSERS : ret;
	feed_ends_with_xkvd(c->reader);
	__atomic_store_n(&cfg->cut_bucket, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&cfg->cut_version, UINT64_MAX, __ATOMIC_RELAXED); /* all are old */
	return feed_before(c->reader);
}

/* A SWAPDB that has begun ends first: all before the moment have used the same numbers. */
static void choose_moment(struct cut *c)
{
	pthread_mutex_lock(&c->st->swap.lock);
	c->now_ms = c->user->expired ? 0 : store_now_ms(c->st);
	c->spoilt = feed_spoilt(c->st);
	c->position = c->user->moment(c->user->arg);
	pthread_mutex_unlock(&c->st->swap.lock);
}

int store_cut(struct store_ctx *ctx, const struct cut_user *user)
{
	struct cut c = { .st = ctx->st, .ctx = ctx, .user = user };
	int ret = cut_begin(&c);

	if (!ret) {
		choose_moment(&c);
		ret = wait_for_versions(&c);
	}
	while (!ret && c.walked < c.st->bpf.buckets)
		ret = walk_some(&c);
	feed_close(c.reader);
	free(c.late.place);
	free(c.met);
	return ret;
}

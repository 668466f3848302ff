/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An in-memory store behind the interface of loader/store.h: a chained hash
 * table with a fixed number of buckets and one mutex.  The table never grows,
 * which gives store_scan() the same promise as the BPF index: a walk by bucket
 * meets every key that stays exactly once.
 */
#include "memstore.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BUCKETS	  16384U
#define MAX_LANES 64U

enum counter { HITS, MISSES, INSERTS, OVERWRITES, DELETES, EXPIRES, EXPIRY_CHANGES, COUNTERS };

static const char *const counter_names[COUNTERS] = {
	"get_hits", "get_misses", "inserts", "overwrites", "deletes", "expires", "expiry_changes",
};

struct item {
	struct item *next;
	uint64_t expire_ms;
	uint64_t version;
	uint32_t value_len;
	uint8_t key_len;
	uint8_t data[]; /* key, then value */
};

struct store {
	pthread_mutex_t lock; /* over everything below */
	pthread_cond_t released;
	struct item *buckets[BUCKETS];
	uint64_t count;
	uint64_t bytes;
	uint64_t max_keys;
	uint64_t last_version;
	uint64_t advanced_ms;
	uint64_t counters[COUNTERS];
	unsigned int lanes;
	unsigned int sweep; /* bucket at which store_expire_cycle() goes on */
	bool hold;
	unsigned int fail_after, fail_count; /* calls of store_set(), see memstore_fail_sets() */
	int fail_err;
};

struct store_lane {
	struct store *st;
	void *value; /* what the last store_entry of this lane points to */
};

static void lock(const struct store *st)
{
	pthread_mutex_lock((pthread_mutex_t *)&st->lock);
}

static void unlock(const struct store *st)
{
	pthread_mutex_unlock((pthread_mutex_t *)&st->lock);
}

struct store *memstore_new(void)
{
	struct store *st = calloc(1, sizeof(*st));

	if (!st)
		return NULL;
	pthread_mutex_init(&st->lock, NULL);
	pthread_cond_init(&st->released, NULL);
	st->max_keys = 1U << 20;
	return st;
}

void memstore_free(struct store *st)
{
	if (!st)
		return;
	for (unsigned int i = 0; i < BUCKETS; i++) {
		for (struct item *it = st->buckets[i], *next; it; it = next) {
			next = it->next;
			free(it);
		}
	}
	pthread_cond_destroy(&st->released);
	pthread_mutex_destroy(&st->lock);
	free(st);
}

void memstore_set_max_keys(struct store *st, uint64_t max_keys)
{
	lock(st);
	st->max_keys = max_keys;
	unlock(st);
}

void memstore_advance(struct store *st, uint64_t ms)
{
	lock(st);
	st->advanced_ms += ms;
	unlock(st);
}

void memstore_hold_scans(struct store *st, bool hold)
{
	lock(st);
	st->hold = hold;
	pthread_cond_broadcast(&st->released);
	unlock(st);
}

void memstore_fail_sets(struct store *st, unsigned int after, unsigned int count, int err)
{
	lock(st);
	st->fail_after = after;
	st->fail_count = count;
	st->fail_err = err;
	unlock(st);
}

/* The error that a test has ordered for this call of store_set(), or 0. */
static int ordered_failure(struct store *st)
{
	if (!st->fail_count)
		return 0;
	if (st->fail_after) {
		st->fail_after--;
		return 0;
	}
	st->fail_count--;
	return st->fail_err;
}

struct store_lane *store_lane_get(struct store *st)
{
	struct store_lane *lane = calloc(1, sizeof(*lane));

	if (!lane)
		return NULL;
	lock(st);
	if (st->lanes == MAX_LANES) {
		unlock(st);
		free(lane);
		errno = EAGAIN;
		return NULL;
	}
	st->lanes++;
	unlock(st);
	lane->st = st;
	return lane;
}

void store_lane_put(struct store_lane *lane)
{
	if (!lane)
		return;
	lock(lane->st);
	lane->st->lanes--;
	unlock(lane->st);
	free(lane->value);
	free(lane);
}

static uint64_t now_ms_locked(const struct store *st)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000 + st->advanced_ms;
}

static bool expired(const struct item *it, uint64_t now)
{
	return it->expire_ms && it->expire_ms <= now;
}

static int check_key(size_t key_len)
{
	return key_len == 0 || key_len > XKV_KEY_MAX ? -EMSGSIZE : 0;
}

static unsigned int bucket_of(const void *key, size_t key_len)
{
	uint64_t h = 0xcbf29ce484222325; /* FNV-1a */

	for (size_t i = 0; i < key_len; i++)
		h = (h ^ ((const uint8_t *)key)[i]) * 0x100000001b3;
	return (unsigned int)((h ^ h >> 32) % BUCKETS);
}

static size_t item_size(const struct item *it)
{
	return sizeof(*it) + it->key_len + it->value_len;
}

static void unlink_item(struct store *st, struct item **link, enum counter why)
{
	struct item *it = *link;

	*link = it->next;
	st->count--;
	st->bytes -= item_size(it);
	st->counters[why]++;
	free(it);
}

/* The link that points to the live item of `key`, or to NULL; removes it if it has expired. */
static struct item **find(struct store *st, const void *key, size_t key_len)
{
	struct item **link = &st->buckets[bucket_of(key, key_len)];

	for (; *link; link = &(*link)->next) {
		if ((*link)->key_len != key_len || memcmp((*link)->data, key, key_len) != 0)
			continue;
		if (!expired(*link, now_ms_locked(st)))
			return link;
		unlink_item(st, link, EXPIRES);
		while (*link)
			link = &(*link)->next;
		return link;
	}
	return link;
}

/* Copies what `it` holds into the lane, so that it outlives the lock.  One byte more: malloc(0) may
 * be NULL. */
static int copy_out(struct store_lane *lane, const struct item *it, struct store_entry *out)
{
	void *copy = malloc(it->value_len + 1U);

	if (!copy)
		return -ENOMEM;
	memcpy(copy, it->data + it->key_len, it->value_len);
	free(lane->value);
	lane->value = copy;
	*out = (struct store_entry){
		.value = copy,
		.value_len = it->value_len,
		.expire_ms = it->expire_ms,
		.version = it->version,
	};
	return 0;
}

int store_get(struct store_lane *lane, const void *key, size_t key_len, struct store_entry *out)
{
	struct store *st = lane->st;
	int ret = check_key(key_len);
	struct item *it;

	if (ret)
		return ret;
	lock(st);
	it = *find(st, key, key_len);
	st->counters[it ? HITS : MISSES]++;
	ret = it ? copy_out(lane, it, out) : -ENOENT;
	unlock(st);
	return ret;
}

static struct item *item_new(const void *key, size_t key_len, const void *value, size_t value_len)
{
	struct item *it = malloc(sizeof(*it) + key_len + value_len);

	if (!it)
		return NULL;
	it->next = NULL;
	it->key_len = (uint8_t)key_len;
	it->value_len = (uint32_t)value_len;
	memcpy(it->data, key, key_len);
	if (value_len)
		memcpy(it->data + key_len, value, value_len);
	return it;
}

/* 0 if a SET with these flags may go on over `was` (NULL = no such key). */
static int check_condition(const struct item *was, unsigned int flags, uint64_t version)
{
	if (was && (flags & XKV_NX))
		return -ECANCELED;
	if (!was && (flags & (XKV_XX | XKV_CAS)))
		return -ECANCELED;
	if (was && (flags & XKV_CAS) && was->version != version)
		return -ECANCELED;
	return 0;
}

/* Puts `it` where `link` is; the caller holds the lock and has checked the conditions. */
static int place(struct store *st, struct item **link, struct item *it, bool keep_ttl)
{
	struct item *was = *link;

	if (!was && st->count >= st->max_keys)
		return -ENOSPC;
	if (was) {
		if (keep_ttl)
			it->expire_ms = was->expire_ms;
		it->next = was->next;
		st->bytes -= item_size(was);
		free(was);
	} else {
		st->count++;
	}
	st->counters[was ? OVERWRITES : INSERTS]++;
	it->version = ++st->last_version;
	st->bytes += item_size(it);
	*link = it;
	return 0;
}

int store_set(struct store_lane *lane, const void *key, size_t key_len, const void *value,
	      size_t value_len, unsigned int flags, uint64_t version, uint64_t expire_ms,
	      struct store_entry *old)
{
	struct store *st = lane->st;
	struct item *it, **link;
	int ret = check_key(key_len);

	if (ret)
		return ret;
	if (value_len > XKV_VALUE_MAX)
		return -EMSGSIZE;
	if (flags & ~(unsigned int)(XKV_NX | XKV_XX | XKV_KEEPTTL | XKV_CAS))
		return -EINVAL;
	it = item_new(key, key_len, value, value_len);
	if (!it)
		return -ENOMEM;
	it->expire_ms = expire_ms;
	if (old)
		*old = (struct store_entry){ 0 };
	lock(st);
	link = find(st, key, key_len);
	ret = ordered_failure(st);
	if (!ret && old && *link)
		ret = copy_out(lane, *link, old);
	if (!ret)
		ret = check_condition(*link, flags, version);
	if (!ret)
		ret = place(st, link, it, flags & XKV_KEEPTTL);
	unlock(st);
	if (ret)
		free(it);
	return ret;
}

int store_delete(struct store_lane *lane, const void *key, size_t key_len, struct store_entry *old)
{
	struct store *st = lane->st;
	int ret = check_key(key_len);
	struct item **link;

	if (ret)
		return ret;
	lock(st);
	link = find(st, key, key_len);
	if (!*link)
		ret = -ENOENT;
	else if (old)
		ret = copy_out(lane, *link, old);
	if (!ret)
		unlink_item(st, link, DELETES);
	unlock(st);
	return ret;
}

int store_expire(struct store_lane *lane, const void *key, size_t key_len, uint64_t expire_ms)
{
	struct store *st = lane->st;
	int ret = check_key(key_len);
	struct item *it;

	if (ret)
		return ret;
	lock(st);
	it = *find(st, key, key_len);
	if (it) {
		it->expire_ms = expire_ms;
		it->version = ++st->last_version;
		st->counters[EXPIRY_CHANGES]++;
	}
	unlock(st);
	return it ? 0 : -ENOENT;
}

/* Copies the live items of one bucket into a list at *out, which the caller frees, on -ENOMEM too.
 */
static int copy_bucket(struct store *st, unsigned int b, struct item **out)
{
	uint64_t now;
	int ret = 0;

	*out = NULL;
	lock(st);
	while (st->hold)
		pthread_cond_wait(&st->released, &st->lock);
	now = now_ms_locked(st);
	for (const struct item *it = st->buckets[b]; it && !ret; it = it->next) {
		struct item *copy;

		if (expired(it, now))
			continue;
		copy = malloc(item_size(it));
		if (!copy) {
			ret = -ENOMEM;
			break;
		}
		memcpy(copy, it, item_size(it));
		copy->next = *out;
		*out = copy;
	}
	unlock(st);
	return ret;
}

/* Calls fn for the copied items until it returns non-zero; frees them all.  Returns what fn did. */
static int report(struct item *items, bool values, store_scan_fn *fn, void *arg, unsigned int *seen)
{
	int ret = 0;

	for (struct item *it = items, *next; it; it = next) {
		struct store_entry entry = {
			.value = values ? it->data + it->key_len : NULL,
			.value_len = it->value_len,
			.expire_ms = it->expire_ms,
			.version = it->version,
		};

		next = it->next;
		if (!ret && fn) {
			ret = fn(arg, it->data, it->key_len, &entry);
			(*seen)++;
		}
		free(it);
	}
	return ret;
}

int store_scan(struct store_lane *lane, uint64_t *cursor, unsigned int count, bool values,
	       store_scan_fn *fn, void *arg)
{
	unsigned int seen = 0;

	if (*cursor >= BUCKETS) {
		*cursor = 0; /* not one of ours */
		return 0;
	}
	do {
		struct item *items;
		int ret = copy_bucket(lane->st, (unsigned int)*cursor, &items);

		if (ret) {
			report(items, false, NULL, NULL, &seen);
			return ret;
		}
		*cursor = (*cursor + 1) % BUCKETS;
		ret = report(items, values, fn, arg, &seen);
		if (ret)
			return ret;
	} while (*cursor && seen < count);
	return 0;
}

int store_flush(struct store_lane *lane)
{
	struct store *st = lane->st;

	lock(st);
	for (unsigned int i = 0; i < BUCKETS; i++) {
		while (st->buckets[i])
			unlink_item(st, &st->buckets[i], DELETES);
	}
	unlock(st);
	return 0;
}

unsigned int store_expire_cycle(struct store_lane *lane, unsigned int max_slots)
{
	struct store *st = lane->st;
	unsigned int removed = 0;

	lock(st);
	for (unsigned int b = 0, looked = 0; b < BUCKETS && looked < max_slots; b++) {
		struct item **link = &st->buckets[st->sweep];
		uint64_t now = now_ms_locked(st);

		while (*link) {
			looked++;
			if (expired(*link, now)) {
				unlink_item(st, link, EXPIRES);
				removed++;
			} else {
				link = &(*link)->next;
			}
		}
		st->sweep = (st->sweep + 1) % BUCKETS;
	}
	unlock(st);
	return removed;
}

uint64_t store_expiring(const struct store *st)
{
	uint64_t n = 0;

	lock(st);
	for (unsigned int b = 0; b < BUCKETS; b++)
		for (const struct item *item = st->buckets[b]; item; item = item->next)
			n += item->expire_ms != 0;
	unlock(st);
	return n;
}

/* Reads one 64-bit field under the lock. */
static uint64_t peek(const struct store *st, const uint64_t *field)
{
	uint64_t value;

	lock(st);
	value = *field;
	unlock(st);
	return value;
}

uint64_t store_count(const struct store *st)
{
	return peek(st, &st->count);
}

uint64_t store_max_keys(const struct store *st)
{
	return peek(st, &st->max_keys);
}

uint64_t store_memory(const struct store *st)
{
	return sizeof(*st) + peek(st, &st->bytes);
}

uint64_t store_counter(const struct store *st, const char *name)
{
	for (unsigned int i = 0; i < COUNTERS; i++) {
		if (strcmp(name, counter_names[i]) == 0)
			return peek(st, &st->counters[i]);
	}
	return 0;
}

void store_counters(const struct store *st, void (*fn)(void *arg, const char *name, uint64_t value),
		    void *arg)
{
	for (unsigned int i = 0; i < COUNTERS; i++)
		fn(arg, counter_names[i], peek(st, &st->counters[i]));
}

int store_datagram(struct store_lane *lane, const void *req, size_t req_len, void *reply,
		   size_t reply_max, size_t reply_allowed)
{
	(void)lane;
	(void)req;
	(void)req_len;
	(void)reply;
	(void)reply_max;
	(void)reply_allowed;
	return -ENOSYS;
}

uint64_t store_now_ms(const struct store *st)
{
	uint64_t now;

	lock(st);
	now = now_ms_locked(st);
	unlock(st);
	return now;
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * Opening the store in the kernel's maps: formats new maps, or adopts the store of an earlier xkvd.
 * Also the offset between the kernel's clock and Unix time.
 */
#include "open.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "guards.h"
#include "impl.h"
#include "util/log.h"

#define CLOCK_MS    100 /* a reading of the clocks that takes longer is repeated */
#define CLOCK_TRIES 100

/* ---- opening ------------------------------------------------------------- */

static void *map_memory(int fd, size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return at == MAP_FAILED ? NULL : at;
}

static uint64_t clock_ms(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000ULL + now.tv_nsec / 1000000;
}

uint64_t store_now_ms(const struct store *st)
{
	return clock_ms(CLOCK_REALTIME);
}

/*
 * BPF reads CLOCK_TAI, which leads Unix time by a whole number of seconds if the offset was set.
 * It is computed from two readings, and wrong if the thread was preempted between them; then the
 * clocks are read again.  (adjtimex() knows it, but xkvd.service does not allow that call.)
 */
void store_clock(struct store *st)
{
	uint64_t before, now, after;

	for (int i = 0; i < CLOCK_TRIES; i++) {
		before = clock_ms(CLOCK_TAI);
		now = clock_ms(CLOCK_REALTIME);
		after = clock_ms(CLOCK_TAI);
		if (after - before > CLOCK_MS)
			continue;
		st->cfg->tai_offset_ms = (after - now + 500) / 1000 * 1000;
		return;
	}
}

void store_clock_stop(struct store *st)
{
	st->cfg->tai_offset_ms = clock_ms(CLOCK_TAI) - 1;
}

/*
 * The number grows with time (XKV_VERSIONS_PER_US), so that maps that are made later have higher
 * versions.  With a clock that was not set, each start would begin at the same number: it is random
 * then.  Never 0, which is no version.
 */
int version_first(const struct timespec *now, uint64_t *number)
{
	const uint64_t numbers = 1ULL << XKV_VERSION_BITS, reserve = numbers / 16;
	uint64_t us = (now->tv_sec - XKV_VERSION_EPOCH) * 1000000ULL + now->tv_nsec / 1000;

	if (now->tv_sec >= XKV_VERSION_EPOCH && us < (numbers - reserve) / XKV_VERSIONS_PER_US) {
		*number = us * XKV_VERSIONS_PER_US + 1;
		return 0;
	}
	log_warning("the clock stands at %ld s since 1970: versions of entries start at a random "
		    "number",
		    (long)now->tv_sec);
	if (getrandom(number, sizeof(*number), 0) != (ssize_t)sizeof(*number))
		return -errno;
	*number = *number % (numbers - reserve) + 1;
	return 0;
}

/* Versions start at a number made from the time, so that none is used again in new maps. */
static int versions_init(struct store *st)
{
	struct xkv_tally *each = calloc(st->cpus, sizeof(*each));
	struct timespec now;
	uint64_t first;
	int ret;

	if (!each)
		return -ENOMEM;
	clock_gettime(CLOCK_REALTIME, &now);
	ret = version_first(&now, &first);
	for (unsigned int cpu = 0; cpu < st->cpus; cpu++)
		each[cpu].version = first;
	for (uint32_t frontend = 0; !ret && frontend < XKV_FRONTENDS; frontend++)
		ret = bpf_map_update_elem(st->bpf.map[BPF_TALLY], &frontend, each, BPF_ANY) ? -errno
											    : 0;
	free(each);
	return ret;
}

/* In a loop, because a signal may interrupt getrandom() of more than 256 bytes. */
static int draw_secret(struct xkv_secret *secret)
{
	char *to = (char *)secret, *end = (char *)(secret + 1);
	ssize_t drawn;

	while (to < end) {
		drawn = getrandom(to, end - to, 0);
		if (drawn < 0)
			return -errno;
		to += drawn;
	}
	secret->mix[0] |= 1;
	secret->mix[1] |= 1;
	return 0;
}

/* Formats new maps as an empty store.  XDP passes all packets up until `magic` is set. */
static int store_format(struct store *st)
{
	int ret = versions_init(st);

	if (!ret)
		ret = draw_secret(&st->secrets->hash);
	if (ret)
		return ret;
	st->cfg->fingerprint_mask = ~0ULL;
	st->cfg->bucket_mask = st->bpf.buckets - 1;
	st->cfg->payload4 = XKV_PAYLOAD_MAX4;
	st->cfg->payload6 = XKV_PAYLOAD_MAX6;
	databases_init(st);
	classes_init(st);
	st->cfg->layout_since = XKV_DATA_SINCE;
	st->cfg->layout = XKV_DATA_VERSION; /* last: the store is complete and can be adopted */
	return 0;
}

/* Adopts the store of an earlier xkvd, which may have been killed at any point. */
static int store_adopt(struct store *st)
{
	int ret;

	if (st->cfg->layout != XKV_DATA_VERSION)
		return -EPROTO;
	st->cfg->layout_since = XKV_DATA_SINCE;
	classes_adopt(st);
	ret = pages_adopt(st);
	if (!ret)
		ret = txn_keys_adopt(st);
	if (!ret)
		ret = txn_adopt(st);
	if (!ret)
		ret = feed_adopt(st);
	for (unsigned int ctx = 0; ctx < XKV_CONTEXTS; ctx++)
		for (unsigned int nr = 0; !ret && nr < XKV_CONTEXT_REQUESTS; nr++)
			ret = request_unprefill(&st->ctx[ctx], nr);
	if (!ret && st->bpf.lost)
		ret = slots_seek(st);
	return ret ? ret : drain_adopt(st);
}

static int store_map(struct store *st)
{
	size_t requests = XKV_CONTEXTS * XKV_CONTEXT_REQUESTS;

	st->cfg = map_memory(st->bpf.map[BPF_CONFIG], sizeof(*st->cfg));
	st->secrets = map_memory(st->bpf.map[BPF_SECRET], sizeof(*st->secrets));
	st->classes = map_memory(st->bpf.map[BPF_CLASSES], XKV_CLASSES * sizeof(*st->classes));
	st->requests = map_memory(st->bpf.map[BPF_BATCH], requests * sizeof(*st->requests));
	st->index = map_memory(st->bpf.map[BPF_INDEX], st->bpf.buckets * sizeof(*st->index));
	st->databases =
		map_memory(st->bpf.map[BPF_DATABASES], XKV_DATABASES * sizeof(*st->databases));
	if (!st->cfg || !st->secrets || !st->classes || !st->requests || !st->index ||
	    !st->databases)
		return -errno;
	for (int i = 0; i < XKV_CONTEXTS; i++) {
		st->ctx[i].st = st;
		st->ctx[i].first = i * XKV_CONTEXT_REQUESTS;
		st->ctx[i].request = st->requests + st->ctx[i].first;
	}
	return txn_keys_map(st);
}

static void store_locks(struct store *st)
{
	pthread_rwlockattr_t pages;
	pthread_condattr_t attr;

	pthread_mutex_init(&st->ctx_lock, NULL);
	pthread_mutex_init(&st->txn_lock, NULL);
	pthread_mutex_init(&st->txn_resize, NULL);
	pthread_mutex_init(&st->hold.lock, NULL);
	pthread_mutex_init(&st->feed.opening, NULL);
	pthread_mutex_init(&st->feed.trimming, NULL);
	pthread_mutex_init(&st->swap.lock, NULL);
	pthread_mutex_init(&st->counts_lock, NULL);
	pthread_mutex_init(&st->mem.units_lock, NULL);
	pthread_mutex_init(&st->maint.need_lock, NULL);
	pthread_rwlockattr_init(&pages);
	pthread_rwlockattr_setkind_np(&pages, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&st->mem.pages_lock, &pages);
	pthread_rwlockattr_destroy(&pages);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&st->maint.need_posted, &attr);
	pthread_cond_init(&st->maint.need_served, &attr);
	pthread_condattr_destroy(&attr);
}

struct store *store_open(const struct bpf *bpf, uint64_t maxmemory, enum store_policy policy,
			 bool *fresh, char *err, size_t err_len)
{
	struct store *st = calloc(1, sizeof(*st));
	int cpus = libbpf_num_possible_cpus(), ret;

	if (st && cpus > XKV_VERSION_CPUS)
		cpus = -E2BIG; /* versions would not be unique */
	if (!st || cpus < 0) {
		snprintf(err, err_len, "cannot open the store: %s", strerror(st ? -cpus : ENOMEM));
		free(st);
		return NULL;
	}
	st->bpf = *bpf;
	st->cpus = cpus;
	st->no_slot = slots_grow;
	st->busy_tries = BUSY_TRIES;
	st->append_most = XKV_HUGE_MAX;
	store_locks(st);
	ret = store_map(st);
	if (!ret) {
		*fresh = st->cfg->magic != XKV_LAYOUT_MAGIC;
		ret = st->cfg->layout ? store_adopt(st) : store_format(st);
	}
	if (!ret) {
		store_clock(st);
		store_limit(st, maxmemory, policy);
		/* so that the first inserts do not wait for a page */
		if (!st->mem.pages_used && pages_add(st, 1) < 0 && !store_at_limit(st))
			log_warning("no memory for entries yet");
		ret = maintenance_start(st);
	}
	if (!ret)
		return st;
	if (ret == -EPROTO)
		snprintf(err, err_len,
			 "the pinned store has layout version %u, this xkvd knows %u: save with "
			 "the xkvd that made it, stop it, then `xkvd --detach` and start again",
			 st->cfg->layout, XKV_DATA_VERSION);
	else
		snprintf(err, err_len, "cannot %s the store: %s", st->mem.pages ? "adopt" : "open",
			 strerror(-ret));
	store_close(st);
	return NULL;
}

void store_start(struct store *st)
{
	__atomic_store_n(&st->cfg->magic, XKV_LAYOUT_MAGIC, __ATOMIC_RELEASE);
}

void store_close(struct store *st)
{
	if (!st)
		return;
	maintenance_stop(st);
	feed_unmap(st);
	counters_settle(st);
	guards_drop_all(st);
	pages_close(st);
	free(st->drain.spans);
	for (int i = 0; i < XKV_CONTEXTS; i++) {
		large_free(&st->ctx[i].large);
		free(st->ctx[i].overlay);
	}
	if (st->cfg)
		munmap(st->cfg, sizeof(*st->cfg));
	if (st->secrets)
		munmap(st->secrets, sizeof(*st->secrets));
	if (st->classes)
		munmap(st->classes, XKV_CLASSES * sizeof(*st->classes));
	if (st->index)
		munmap(st->index, st->bpf.buckets * sizeof(*st->index));
	if (st->databases)
		munmap(st->databases, XKV_DATABASES * sizeof(*st->databases));
	txn_keys_unmap(st);
	if (st->requests)
		munmap(st->requests, XKV_CONTEXTS * XKV_CONTEXT_REQUESTS * sizeof(*st->requests));
	free(st);
}

uint64_t store_identity(const struct store *st)
{
	const struct xkv_secret *secret = &st->secrets->hash;
	uint64_t word, id = 1;

	for (size_t at = 0; at + sizeof(word) <= sizeof(*secret); at += sizeof(word)) {
		memcpy(&word, (const char *)secret + at, sizeof(word));
		id = store_identity_mix(id, word);
	}
	return id;
}

struct xkv_config *store_config(struct store *st)
{
	return st->cfg;
}

struct xkv_secrets *store_secrets(struct store *st)
{
	return st->secrets;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the samples of the most used keys (xkv_hot, bpf/hot.bpf.h), for xkvd and `xkv hot`.
 */
#ifndef XKV_HOT_SAMPLES_H
#define XKV_HOT_SAMPLES_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <bpf/bpf.h>

#include "bpf/layout.h"

struct hot_sample {
	struct xkv_hot_key key;
	unsigned int database; /* as clients call it; key.db is the stored number */
	struct xkv_hot use;    /* counts, halved for the time that has passed */
};

/* Nanoseconds of the clock whose periods counts are halved by. */
static inline uint64_t hot_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Halves counts for their age.  `half_ns` is the configuration's, 0: xkvd is still starting. */
static inline void hot_age(struct xkv_hot *use, uint64_t now_ns, uint64_t half_ns)
{
	uint64_t periods = now_ns / (half_ns ? half_ns : 1);

	xkv_hot_halve(use, periods > use->halved ? periods - use->halved : 0);
}

/* The most used first. */
static inline int hot_by_use(const void *a, const void *b)
{
	const struct hot_sample *one = a, *other = b;
	uint64_t uses = one->use.reads + one->use.writes;
	uint64_t others = other->use.reads + other->use.writes;

	if (uses != others)
		return uses < others ? 1 : -1;
	return memcmp(&one->key, &other->key, sizeof(one->key));
}

static inline struct hot_sample hot_sample(const struct xkv_config *cfg,
					   const struct xkv_hot_key *key, const struct xkv_hot *use,
					   uint64_t now_ns)
{
	__u8 current = __atomic_load_n(&cfg->stored_current, __ATOMIC_ACQUIRE);
	struct hot_sample s = { .key = *key, .use = *use };

	s.database = cfg->number[current & 1][key->db % XKV_DATABASES];
	hot_age(&s.use, now_ns, cfg->hot_half_ns);
	return s;
}

/*
 * The samples in the map `fd` of the store with this configuration, the most used first: how many,
 * and *samples, which the caller frees, or -errno.  All are read in one call: a walk key by key
 * would begin again if its key is evicted.
 */
static inline int hot_samples(int fd, const struct xkv_config *cfg, uint64_t now_ns,
			      struct hot_sample **samples)
{
	struct xkv_hot_key *key = calloc(XKV_HOT_KEYS, sizeof(*key));
	struct xkv_hot *use = calloc(XKV_HOT_KEYS, sizeof(*use));
	struct hot_sample *all = calloc(XKV_HOT_KEYS, sizeof(*all));
	__u32 batch = 0, count = XKV_HOT_KEYS;
	int ret = 0;

	if (!key || !use || !all)
		ret = -ENOMEM;
	else if (bpf_map_lookup_batch(fd, NULL, &batch, key, use, &count, NULL) && errno != ENOENT)
		ret = -errno; /* ENOENT: these were all */
	for (__u32 i = 0; !ret && i < count; i++)
		all[i] = hot_sample(cfg, &key[i], &use[i], now_ns);
	free(key);
	free(use);
	if (ret) {
		free(all);
		return ret;
	}
	qsort(all, count, sizeof(*all), hot_by_use);
	*samples = all;
	return (int)count;
}

/* How many were used at all, at most `most`. */
static inline size_t hot_used(const struct hot_sample *samples, size_t count, size_t most)
{
	size_t used = 0;

	while (used < count && used < most && samples[used].use.reads + samples[used].use.writes)
		used++;
	return used;
}

/* Bytes of the key that are in its text: nothing of the empty key. */
static inline size_t hot_text_len(const struct xkv_hot_key *key)
{
	if (key->len == XKV_KEY_LONG)
		return strnlen(key->text, XKV_HOT_BEGIN);
	return key->len < XKV_HOT_TEXT ? key->len : XKV_HOT_TEXT;
}

#endif

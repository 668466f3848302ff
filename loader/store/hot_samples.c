/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads the samples of the most used keys. */
#include "hot_samples.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <bpf/bpf.h>

uint64_t hot_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void hot_age(struct xkv_hot *use, uint64_t now_ns, uint64_t half_ns)
{
	uint64_t periods = now_ns / (half_ns ? half_ns : 1);

	xkv_hot_halve(use, periods > use->halved ? periods - use->halved : 0);
}

/* The most used first. */
static int hot_by_use(const void *a, const void *b)
{
	const struct hot_sample *one = a, *other = b;
	uint64_t uses = one->use.reads + one->use.writes;
	uint64_t others = other->use.reads + other->use.writes;

	if (uses != others)
		return uses < others ? 1 : -1;
	return memcmp(&one->key, &other->key, sizeof(one->key));
}

static struct hot_sample hot_sample(const struct xkv_config *cfg, const struct xkv_hot_key *key,
				    const struct xkv_hot *use, uint64_t now_ns)
{
	__u8 current = __atomic_load_n(&cfg->stored_current, __ATOMIC_ACQUIRE);
	struct hot_sample s = { .key = *key, .use = *use };

	s.database = cfg->number[current & 1][key->db % XKV_DATABASES];
	hot_age(&s.use, now_ns, cfg->hot_half_ns);
	return s;
}

/* All are read in one call: a walk key by key would begin again if its key is evicted. */
int hot_samples(int fd, const struct xkv_config *cfg, uint64_t now_ns, struct hot_sample **samples)
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

size_t hot_used(const struct hot_sample *samples, size_t count, size_t most)
{
	size_t used = 0;

	while (used < count && used < most && samples[used].use.reads + samples[used].use.writes)
		used++;
	return used;
}

size_t hot_text_len(const struct xkv_hot_key *key)
{
	if (key->len == XKV_KEY_LONG)
		return strnlen(key->text, XKV_HOT_BEGIN);
	return key->len < XKV_HOT_TEXT ? key->len : XKV_HOT_TEXT;
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * How often a key is used, for OBJECT FREQ.  Eviction needs to know which keys are used rarely, and
 * counts ticks of a clock that stands still while nothing is inserted; that tells nothing of the
 * keys that are used most.  Those are in the samples of xkv_hot (bpf/hot.bpf.h).
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <bpf/bpf.h>

#include "impl.h"

#define FREQUENCY_SAMPLED 8   /* the least of a key that was sampled; more than XKV_LFU_COUNT */
#define FREQUENCY_STEPS	  8   /* for each doubling of the uses */
#define FREQUENCY_MAX	  255 /* as in Redis */

/* As hot_note() of bpf/hot.bpf.h makes it. */
static struct xkv_hot_key hot_key(uint8_t db, const uint64_t *key, size_t key_len)
{
	struct xkv_hot_key k = { .len = (uint32_t)key_len, .db = db };
	const char *text = (const char *)key;

	memcpy(k.text, text, key_len < XKV_HOT_TEXT ? key_len : XKV_HOT_TEXT);
	if (key_len == XKV_KEY_LONG)
		memcpy(k.text + XKV_HOT_BEGIN, text + XKV_HOT_DIGEST, sizeof(uint64_t));
	return k;
}

/* Halves the uses for their age: the current period counts whole. */
static void make_recent(const struct store *st, struct xkv_hot *use)
{
	uint64_t half_ns = st->cfg->hot_half_ns ?: 1, now;
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	now = ((uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec) / half_ns;
	xkv_hot_halve(use, now > use->halved ? now - use->halved : 0);
}

static uint64_t recent_uses(const struct store *st, const struct xkv_hot_key *key)
{
	struct xkv_hot use;

	if (!st->cfg->hot_half_ns || bpf_map_lookup_elem(st->bpf.map[BPF_HOT], key, &use))
		return 0;
	make_recent(st, &use);
	return use.reads + use.writes;
}

int hot_frequency(const struct store *st, uint8_t db, const uint64_t *key, size_t key_len,
		  uint16_t access)
{
	struct xkv_hot_key k = hot_key(db, key, key_len);
	uint64_t uses;
	int steps;

	if (!evict_by_frequency(st) || (!st->maxmemory && !st->cfg->hot_step))
		return STORE_UNRECORDED;
	uses = recent_uses(st, &k);
	if (!uses)
		return (int)evict_frequency(st, access);
	steps = FREQUENCY_SAMPLED + (int)(FREQUENCY_STEPS * log2((double)uses));
	return steps < FREQUENCY_MAX ? steps : FREQUENCY_MAX;
}

/* ---- the most used keys ---- */

struct sample {
	struct xkv_hot_key key;
	struct xkv_hot use;
};

static int by_use(const void *a, const void *b)
{
	const struct sample *one = a, *other = b;
	uint64_t uses = one->use.reads + one->use.writes;
	uint64_t others = other->use.reads + other->use.writes;

	if (uses != others)
		return uses < others ? 1 : -1;
	return memcmp(&one->key, &other->key, sizeof(one->key));
}

/* All of them at once: a walk key by key would begin again when its key is evicted. */
static int read_samples(const struct store *st, struct sample *to)
{
	struct xkv_hot_key *key = calloc(XKV_HOT_KEYS, sizeof(*key));
	struct xkv_hot *use = calloc(XKV_HOT_KEYS, sizeof(*use));
	uint32_t batch = 0, count = XKV_HOT_KEYS;
	int ret = key && use ? 0 : -ENOMEM;

	if (!ret &&
	    bpf_map_lookup_batch(st->bpf.map[BPF_HOT], NULL, &batch, key, use, &count, NULL) &&
	    errno != ENOENT) /* these were all */
		ret = -errno;
	for (uint32_t i = 0; !ret && i < count; i++) {
		to[i] = (struct sample){ .key = key[i], .use = use[i] };
		make_recent(st, &to[i].use);
	}
	free(key);
	free(use);
	return ret ? ret : (int)count;
}

static void describe(const struct store *st, const struct sample *sample, struct store_hot *out)
{
	const struct xkv_hot_key *key = &sample->key;
	bool is_long = key->len == XKV_KEY_LONG;

	_Static_assert(sizeof(out->text) == XKV_HOT_TEXT, "holds what is kept of a key");
	*out = (struct store_hot){ .key_len = is_long ? -1 : (int)key->len,
				   .database = store_number(st, (uint8_t)key->db),
				   .reads = sample->use.reads,
				   .writes = sample->use.writes };
	out->text_len = is_long			  ? strnlen(key->text, XKV_HOT_BEGIN)
			: key->len < XKV_HOT_TEXT ? key->len
						  : XKV_HOT_TEXT;
	memcpy(out->text, key->text, out->text_len);
}

int store_hottest(const struct store *st, struct store_hot *out, unsigned int count)
{
	struct sample *all = calloc(XKV_HOT_KEYS, sizeof(*all));
	int have = all ? read_samples(st, all) : -ENOMEM, shown = 0;

	if (have > 0)
		qsort(all, (size_t)have, sizeof(*all), by_use);
	while (shown < have && shown < (int)count && all[shown].use.reads + all[shown].use.writes) {
		describe(st, &all[shown], &out[shown]);
		shown++;
	}
	free(all);
	return have < 0 ? have : shown;
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * How often a key is used, for OBJECT FREQ.  Eviction needs to know which keys are used rarely, and
 * counts ticks of a clock that stands still while nothing is inserted; that tells nothing of the
 * keys that are used most.  Those are in the samples of xkv_hot (bpf/hot.bpf.h).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <bpf/bpf.h>

#include "hot_samples.h"
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

static uint64_t recent_uses(const struct store *st, const struct xkv_hot_key *key)
{
	struct xkv_hot use;

	if (!st->cfg->hot_half_ns || bpf_map_lookup_elem(st->bpf.map[BPF_HOT], key, &use))
		return 0;
	hot_age(&use, hot_now_ns(), st->cfg->hot_half_ns);
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

static struct store_hot hot_describe(const struct hot_sample *sample)
{
	const struct xkv_hot_key *key = &sample->key;
	struct store_hot h = { .text_len = hot_text_len(key),
			       .key_len = key->len == XKV_KEY_LONG ? -1 : (int)key->len,
			       .database = sample->database,
			       .reads = sample->use.reads,
			       .writes = sample->use.writes };

	_Static_assert(sizeof(h.text) == XKV_HOT_TEXT, "holds what is kept of a key");
	memcpy(h.text, key->text, h.text_len);
	return h;
}

int store_hottest(const struct store *st, struct store_hot *out, unsigned int count)
{
	struct hot_sample *all = NULL;
	int have = hot_samples(st->bpf.map[BPF_HOT], st->cfg, hot_now_ns(), &all);
	size_t shown = have > 0 ? hot_used(all, (size_t)have, count) : 0;

	for (size_t i = 0; i < shown; i++)
		out[i] = hot_describe(&all[i]);
	free(all);
	return have < 0 ? have : (int)shown;
}

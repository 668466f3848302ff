// SPDX-License-Identifier: BSD-2-Clause
/*
 * How often a key is used, for OBJECT FREQ.  Eviction needs to know which keys are used rarely, and
 * counts ticks of a clock that stands still while nothing is inserted; that tells nothing of the
 * keys that are used most.  Those are in the samples of xkv_hot (bpf/hot.bpf.h).
 */
#include <math.h>
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

/* The uses of the current period and those before, each halved for its age. */
static uint64_t recent_uses(const struct store *st, const struct xkv_hot_key *key)
{
	uint64_t half_ns = st->cfg->hot_half_ns, now;
	struct timespec ts;
	struct xkv_hot use;

	if (!half_ns || bpf_map_lookup_elem(st->bpf.map[BPF_HOT], key, &use))
		return 0;
	clock_gettime(CLOCK_BOOTTIME, &ts);
	now = ((uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec) / half_ns;
	xkv_hot_halve(&use, now > use.halved ? now - use.halved : 0);
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

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the samples of the most used keys (xkv_hot, bpf/hot.bpf.h), for xkvd and `xkv hot`.  All
 * functions may be called by any thread.
 */
#ifndef XKV_HOT_SAMPLES_H
#define XKV_HOT_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

#include "bpf/layout.h"

struct hot_sample {
	struct xkv_hot_key key;
	unsigned int database; /* as clients call it; key.db is the stored number */
	struct xkv_hot use;    /* counts, halved for the time that has passed */
};

/* Nanoseconds of the clock whose periods counts are halved by. */
uint64_t hot_now_ns(void);
/* Halves counts for their age.  `half_ns` is the configuration's, 0: xkvd is still starting. */
void hot_age(struct xkv_hot *use, uint64_t now_ns, uint64_t half_ns);
/*
 * The samples in the map `fd` of the store with this configuration, the most used first: how many,
 * and *samples, which the caller frees, or -errno.
 */
int hot_samples(int fd, const struct xkv_config *cfg, uint64_t now_ns, struct hot_sample **samples);
/* How many were used at all, at most `most`. */
size_t hot_used(const struct hot_sample *samples, size_t count, size_t most);
/* Bytes of the key that are in its text: nothing of the empty key. */
size_t hot_text_len(const struct xkv_hot_key *key);

#endif

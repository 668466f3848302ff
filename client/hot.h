/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The keys that are used most, as the sampling of bpf/hot.bpf.h has them: read from the pinned
 * maps, so the server need not run.
 */
#ifndef XKV_HOT_H
#define XKV_HOT_H

#include <stddef.h>
#include <stdint.h>

#include "bpf/layout.h"

struct hot_entry {
	struct xkv_hot_key key;
	struct xkv_hot use; /* halved up to now */
};

struct hot_list {
	struct hot_entry *entry; /* the most used first */
	size_t count;
	uint64_t sample_rate; /* one use in so many is noted, 0 = none */
	double seconds; /* that the counts are of: a key's rate is its count by these */
};

/* Reads the maps pinned in pin_dir.  0, or a negative errno with a sentence in `err`. */
int hot_read(const char *pin_dir, struct hot_list *list, char *err, size_t err_len);
void hot_free(struct hot_list *list);

/* For how many seconds counts stand that began at `since_ns` and are halved each half_ns, not 0. */
double hot_seconds(uint64_t now_ns, uint64_t since_ns, uint64_t half_ns);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The most used keys, as sampled by bpf/hot.bpf.h.  Read from the pinned maps, so xkvd need not
 * run.
 */
#ifndef XKV_HOT_H
#define XKV_HOT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "loader/store/hot_samples.h"

struct hot_list {
	struct hot_sample *entry; /* the most used first */
	size_t count;
	uint64_t sample_rate; /* one use in so many is counted, 0 = none */
	double seconds;	      /* a key's rate per second is its count divided by this */
};

/*
 * Reads the maps pinned in pin_dir.  0, or a negative errno with a sentence in `err`.  The caller
 * frees the list.
 */
int hot_read(const char *pin_dir, struct hot_list *list, char *err, size_t err_len);
void hot_free(struct hot_list *list);
/* Those that were used at all, at most `count`. */
size_t hot_shown(const struct hot_list *list, size_t count);
/* Their rates, a row each; `hot_json`: an array. */
void hot_rows(const struct hot_list *list, size_t shown);
json_t *hot_json(const struct hot_list *list, size_t shown);

/*
 * Opens a map pinned in `dir`, with values of this size.  A descriptor, or a negative errno with a
 * sentence in `err`.
 */
int pinned_open(const char *dir, const char *name, size_t value_size, char *err, size_t err_len);

/*
 * The number of seconds of constant use that a count represents, if counting began at `since_ns`
 * and counts are halved every `half_ns` (not 0).
 */
double hot_seconds(uint64_t now_ns, uint64_t since_ns, uint64_t half_ns);

#endif

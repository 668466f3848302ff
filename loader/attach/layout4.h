/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What has to be known of the maps of layout 4 to read a store that an older xkvd has left: a copy,
 * as bpf/layout.h goes on.  There the fields are explained.
 */
#ifndef XKV_LAYOUT4_H
#define XKV_LAYOUT4_H

#include <stddef.h>
#include <stdint.h>

#include "config.h"

#define LAYOUT4 4 /* its number */

#define LAYOUT4_PAGE_BYTES	  (2U << 20)
#define LAYOUT4_PAGES		  16384
#define LAYOUT4_KEY_MAX		  250
#define LAYOUT4_VALUE_MAX	  (1U << 20)
#define LAYOUT4_WAYS		  7
#define LAYOUT4_CHAIN_MAX	  16 /* buckets behind the first */
#define LAYOUT4_KEY_CHAIN	  255
#define LAYOUT4_REF_MASK	  ((1ULL << 40) - 1)
#define LAYOUT4_REF(page, offset) (((uint64_t)(page) << 18) | ((offset) >> 3))
#define LAYOUT4_REF_PAGE(ref)	  ((LAYOUT4_REF_MASK & (ref)) >> 18)
#define LAYOUT4_REF_OFFSET(ref)	  ((uint32_t)((ref) & ((1U << 18) - 1)) << 3)
#define LAYOUT4_PADDED(n)	  (((n) + 7ULL) & ~7ULL)

struct layout4_slot {
	uint64_t seq; /* even: a live entry */
	uint64_t expire_ms;
	uint32_t value_len;
	uint8_t key_len;
	uint8_t class;
	uint16_t access;
	/* key, padded to 8; value, padded to 8 */
};

struct layout4_bucket {
	uint64_t head; /* the reference of the next bucket stands in its lower bits */
	uint64_t entry[LAYOUT4_WAYS];
};

struct layout4_chain {
	struct layout4_slot slot;
	struct layout4_bucket bucket;
};

_Static_assert(sizeof(struct layout4_slot) == 24 && sizeof(struct layout4_bucket) == 64,
	       "layout 4");

struct layout4_entry {
	const void *key, *value;
	size_t key_len, value_len;
	uint64_t expire_ms; /* Unix time in milliseconds, 0 = never */
};

/* Returns 0 to go on. */
typedef int layout4_fn(void *arg, const struct layout4_entry *entry);

struct layout4_sum {
	uint64_t keys, expired;
	uint64_t unreadable; /* references that lead to no live entry: there should be none */
};

/*
 * Reports each key of the store that is pinned in cfg->pin_dir and that nobody writes to any more;
 * those that have expired are only counted.  0; what `fn` returned; or -errno with a sentence,
 * -ENOENT where there is no index.
 */
int layout4_read(const struct config *cfg, layout4_fn *fn, void *arg, struct layout4_sum *sum,
		 char *err, size_t err_len);

#endif

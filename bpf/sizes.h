/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How much memory the store takes: xkvd makes it, and `xkv capacity` plans it, by the same rules.
 * For user space only.
 */
#ifndef XKV_SIZES_H
#define XKV_SIZES_H

#include "layout.h"

/* Kernel memory of a page: the array and a page for its struct bpf_array. */
#define XKV_PAGE_COST (XKV_PAGE_BYTES + 4096ULL)

#define XKV_CLASS_FIRST 40 /* bytes of a slot of the smallest class */

/*
 * Small sizes differ by 16 bytes: entries consist of words, so half a step is wasted on average.
 * Sizes from 256 bytes on differ by an eighth.  Those that XDP cannot write (above XKV_SLOT_WINDOW)
 * differ by a quarter, up to XKV_LARGE; above that each slot has a span of its own.
 */
static inline __u32 xkv_class_next(__u32 size)
{
	__u32 step = 16;

	if (size >= XKV_SLOT_WINDOW)
		step = size / 4;
	else if (size >= 256)
		step = size / 8;
	size = (size + step + 7) & ~7U;
	return size < XKV_LARGE ? size : XKV_LARGE;
}

/* Units of 4 KiB for so many bytes. */
static inline __u32 xkv_units(__u64 bytes)
{
	return (bytes + XKV_UNIT_BYTES - 1) / XKV_UNIT_BYTES;
}

/* Pages of the tail behind the first one that an entry of so many units has. */
static inline __u32 xkv_tail_pages(__u32 units)
{
	return units / XKV_UNITS; /* one unit is the header's */
}

/* Those of them that are in the first page. */
static inline __u32 xkv_page_units(__u32 units)
{
	return units < XKV_UNITS ? units : XKV_UNITS - 1;
}

/* Most units of a span of a class; a large value may have more. */
#define XKV_SPAN_UNITS_MAX 64

/* Of a span of at most so many units only those that its slots need. */
static inline __u32 xkv_span_units(__u32 units, __u32 slot_bytes)
{
	return xkv_units((__u64)units * XKV_UNIT_BYTES / slot_bytes * slot_bytes);
}

/* Buckets of the index for so many keys: a power of two. */
static inline __u32 xkv_buckets_for(__u64 max_keys)
{
	__u32 buckets = 1;

	while ((__u64)buckets * XKV_KEYS_PER_BUCKET < max_keys && buckets < (1U << 28))
		buckets *= 2;
	return buckets;
}

/* Memory beside index and pages, on a machine with so many CPUs. */
enum xkv_table {
	XKV_TABLE_DEDUP,
	XKV_TABLE_REQUESTS,
	XKV_TABLE_TRANSACTIONS,
	XKV_TABLE_HOT_KEYS,
	XKV_TABLE_COUNTERS,
	XKV_TABLES
};

#define XKV_HOT_COST (64 + sizeof(struct xkv_hot_key) + sizeof(struct xkv_hot)) /* htab_elem, too */

static inline __u64 xkv_table_bytes(enum xkv_table table, __u64 cpus)
{
	switch (table) {
	case XKV_TABLE_DEDUP:
		return (__u64)XKV_DEDUP_SETS * sizeof(struct xkv_dedup_set);
	case XKV_TABLE_REQUESTS:
		return (XKV_CONTEXTS * XKV_CONTEXT_REQUESTS + cpus) * sizeof(struct xkv_request);
	case XKV_TABLE_TRANSACTIONS:
		return (__u64)XKV_TXN_FIRST * sizeof(struct xkv_txn_key);
	case XKV_TABLE_HOT_KEYS:
		return XKV_HOT_KEYS * XKV_HOT_COST;
	case XKV_TABLE_COUNTERS:
		return cpus * XKV_FRONTENDS *
		       (sizeof(struct xkv_counters) + sizeof(struct xkv_tally));
	default:
		return 0;
	}
}

#endif

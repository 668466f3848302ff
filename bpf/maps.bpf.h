/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * All maps: their contents, their writers, and the meaning of a miss.
 */
#ifndef XKV_MAPS_BPF_H
#define XKV_MAPS_BPF_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "layout.h"

/* The keys that exist.  Written by the operations only, under the lock of a bucket. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, XKV_BUCKETS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct xkv_bucket);
} xkv_index SEC(".maps");

/* A page of slots: one element, created and mapped by xkvd. */
struct xkv_page_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, XKV_PAGE_BYTES);
};

/* The pages.  Written by xkvd; a miss means a stale reference. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, XKV_PAGES_MAX);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__array(values, struct xkv_page_map);
} xkv_pages SEC(".maps");

/* The rest of a huge value, mapped after its page: elements of XKV_PAGE_BYTES. */
struct xkv_tail_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP); /* of any number of elements */
	__uint(key_size, sizeof(__u32));
	__uint(value_size, XKV_PAGE_BYTES);
};

/* By the number of the page.  For xkvd only, which writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, XKV_PAGES_MAX);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__array(values, struct xkv_tail_map);
} xkv_tails SEC(".maps");

/* Size classes with their free lists.  Written by the operations, and by xkvd when it starts. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, XKV_CLASSES);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct xkv_class);
} xkv_classes SEC(".maps");

/* The dedup cache: the last replies of sessions.  Written by requests with XKV_F_ONCE. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, XKV_DEDUP_SETS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct xkv_dedup_set);
} xkv_once SEC(".maps");

/* By stored number of a database.  Written by the operations, at the commit point. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, XKV_DATABASES);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct xkv_database);
} xkv_databases SEC(".maps");

/* One element, written by xkvd. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct xkv_config);
} xkv_config SEC(".maps");

/* One element, written by xkvd. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct xkv_secrets);
} xkv_secret SEC(".maps");

/* The most used keys.  Written by samples; a miss means: not sampled lately. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, XKV_HOT_KEYS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct xkv_hot_key);
	__type(value, struct xkv_hot);
} xkv_hot SEC(".maps");

/* By enum xkv_frontend and CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, XKV_FRONTENDS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct xkv_counters);
} xkv_counters SEC(".maps");

/* The same, for counters that are data. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, XKV_FRONTENDS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct xkv_tally);
} xkv_tally SEC(".maps");

/* The request that a CPU is working on in XDP, which does not nest. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct xkv_request);
} xkv_frames SEC(".maps");

/* The lookup batch of a CPU in XDP.  Not pinned: it is not used after its packet. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, XKV_LOOKUPS_MAX);
	__type(key, __u32);
	__type(value, struct xkv_lookup);
} xkv_lookups SEC(".maps");

/*
 * Requests of xkvd, XKV_CONTEXT_REQUESTS per thread.  Written by xkvd and the operations that it
 * runs.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	/* clang-format off */
	__uint(max_entries, XKV_CONTEXTS * XKV_CONTEXT_REQUESTS);
	/* clang-format on */
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct xkv_request);
} xkv_batch SEC(".maps");

/* The first keys of the transaction that xkvd commits.  Written by it and by bpf/txn.bpf.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, XKV_TXN_FIRST);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct xkv_txn_key);
} xkv_txn SEC(".maps");

/* More of them: one element, created and mapped by xkvd. */
struct xkv_txn_chunk_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct xkv_txn_chunk));
};

/* Made for a large transaction, and removed when there was none for some time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, XKV_TXN_CHUNKS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__array(values, struct xkv_txn_chunk_map);
} xkv_txn_more SEC(".maps");

/* The change feed: one element, created and mapped by xkvd. */
struct xkv_feed_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct xkv_feed));
};

/* A miss means that it had no reader yet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__array(values, struct xkv_feed_map);
} xkv_feed SEC(".maps");

/*
 * Programs for packets that are not UDP, called by xkv_xdp: bpf/tcp.bpf.c, if xkvd has inserted it.
 * A miss means: the packet is passed up.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} xkv_doors SEC(".maps");

/* The keys of an ATOMIC datagram in XDP.  Not pinned: they are not used after its packet. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, XKV_ATOMIC_MAX);
	__type(key, __u32);
	__type(value, struct xkv_txn_key);
} xkv_atomic SEC(".maps");

/* The same for xkvd, XKV_ATOMIC_MAX per thread.  Not pinned: not used after a run. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, XKV_CONTEXTS *XKV_ATOMIC_MAX);
	__type(key, __u32);
	__type(value, struct xkv_txn_key);
} xkv_atomic_xkvd SEC(".maps");

#ifdef XKV_COUNT_EXCHANGES /* `make exchanges` */
struct xkv_exchange {
	__u64 done, failed;
};

/* By CPU: compare-and-exchanges of words that several CPUs write. */
struct xkv_exchanges {
	struct xkv_exchange take, give, bucket, slot, session;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct xkv_exchanges);
} xkv_exchanges SEC(".maps");
#endif

#endif

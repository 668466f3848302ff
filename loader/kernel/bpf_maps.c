// SPDX-License-Identifier: BSD-2-Clause
/* Apart from bpf.c, so that tests get these names without libbpf and the object. */
#include "bpf.h"

const char *const bpf_map_names[BPF_MAPS] = {
	[BPF_INDEX] = "xkv_index",     [BPF_PAGES] = "xkv_pages",
	[BPF_CLASSES] = "xkv_classes", [BPF_ONCE] = "xkv_once",
	[BPF_CONFIG] = "xkv_config",   [BPF_SECRET] = "xkv_secret",
	[BPF_HOT] = "xkv_hot",	       [BPF_COUNTERS] = "xkv_counters",
	[BPF_FRAMES] = "xkv_frames",   [BPF_BATCH] = "xkv_batch",
	[BPF_TXN] = "xkv_txn",	       [BPF_TXN_MORE] = "xkv_txn_more",
	[BPF_FEED] = "xkv_feed",       [BPF_DATABASES] = "xkv_databases",
	[BPF_TALLY] = "xkv_tally",     [BPF_TAILS] = "xkv_tails",
};

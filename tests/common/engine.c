/* SPDX-License-Identifier: BSD-2-Clause */
/* The BPF programs as functions: see engine.h.  Has flags of its own in tests/tests.mk. */
#include "bpf/xkv.bpf.c"

#define BYTES(member) (sizeof(*(member)) / sizeof(int)) /* of what __uint() declares */
#define HEAD(m)                                                                                    \
	.name = #m, .map = &(m), .type = BYTES((m).type), .entries = BYTES((m).max_entries),       \
	.key_size = sizeof(*(m).key)
#define MAP(m)                                                                                     \
	{                                                                                          \
		HEAD(m), .value_size = sizeof(*(m).value)                                          \
	}
#define OF_MAPS(m)                                                                                 \
	{                                                                                          \
		HEAD(m), .value_size = sizeof(__u32)                                               \
	}

const struct engine_map engine_maps[] = {
	MAP(xkv_index),	      OF_MAPS(xkv_pages),    MAP(xkv_classes),	 MAP(xkv_once),
	MAP(xkv_config),      MAP(xkv_secret),	     MAP(xkv_hot),	 MAP(xkv_counters),
	MAP(xkv_frames),      MAP(xkv_batch),	     MAP(xkv_txn),	 OF_MAPS(xkv_feed),
	MAP(xkv_databases),   MAP(xkv_tally),	     MAP(xkv_lookups),	 MAP(xkv_atomic),
	MAP(xkv_atomic_xkvd), OF_MAPS(xkv_txn_more), OF_MAPS(xkv_tails),
};
const unsigned int engine_map_count = sizeof(engine_maps) / sizeof(engine_maps[0]);

int engine_run(void *args)
{
	return xkv_run(args);
}

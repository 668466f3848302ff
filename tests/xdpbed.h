/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A store of its own with the XDP program loaded on it, and no NIC: frames go in
 * and come out through BPF_PROG_RUN.  Also looks into the maps behind the
 * store's back: counters, slots, and whether every slot is accounted for.
 */
#ifndef XKV_TEST_XDPBED_H
#define XKV_TEST_XDPBED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../bpf/layout.h"
#include "../loader/bpf.h"
#include "../loader/store.h"
#include "../loader/store_open.h"
#include "packet.h"

struct bed {
	struct config config;
	struct bpf bpf;
	struct bpf_object *object;
	int prog; /* the XDP program's descriptor */
	struct store *st;
	struct store_lane *lane;
	struct xkv_config *c;	   /* what BPF reads, mapped */
	struct xkv_class *classes; /* mapped */
	uint8_t *page[XKV_PAGES_MAX];
	unsigned int cpus;
	struct xkv_counters *each_cpu;
	char pin_dir[128];
};

/* Why nothing of this can run here, NULL if it can. To be told with exit status 77. */
const char *bed_cannot_run(void);

/*
 * Opens a store for so many keys, with 10.77.0.1 and fd77::1 as its addresses and
 * 10.77.0.0/24 and fd77::/64 allowed and trusted.  NULL, or what went wrong.
 */
const char *bed_open(struct bed *b, unsigned int max_keys);
void bed_close(struct bed *b);

/* The configuration that bed_open() made, `fingerprint_mask` excepted. */
void bed_configure(struct bed *b);

/* One frame through the program. */
struct outcome {
	int verdict; /* XDP_TX ... */
	size_t len;
	uint8_t frame[PACKET_MAX];
};

/* False if the kernel refused to run it (frames under 14 bytes). */
bool bed_run(struct bed *b, const uint8_t *frame, size_t len, struct outcome *out);

/* Sums over the CPUs. */
void bed_counters(const struct bed *b, uint64_t sum[XKV_COUNTER_COUNT]);

/* The name of a counter. */
const char *counter_name(unsigned int counter);

/* The slot in which a key stands (its tomb too), NULL if it is not in index. */
struct xkv_slot *bed_slot(struct bed *b, const void *key, size_t key_len);

/* What the engine makes of a key under this configuration. */
uint64_t bed_fingerprint(const struct bed *b, const void *key, size_t key_len);

/* Elements of index. */
unsigned int bed_index_count(const struct bed *b);

/*
 * Accounts for every slot: it is live and stands in index exactly once, where
 * its key belongs; or it is free and stands in one free list.  Nobody may change
 * the store meanwhile but the thread that adds pages.  NULL, or what is wrong.
 */
const char *bed_account(struct bed *b);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Batched mode (bpf/bulk.bpf.h) on the interface: fills the DEVMAP, finds out whether the device
 * can, and reads what was done.  One thread, the event loop's.
 */
#ifndef XKV_BULK_H
#define XKV_BULK_H

#include <stdbool.h>
#include <stdint.h>

struct bpf;

/* All zero: no program is attached natively. */
struct bulk {
	int self;   /* the DEVMAP of the attached program, a descriptor; 0 = none */
	int notes;  /* its xkv_bulk, the same */
	bool tried; /* bulk_start() was called, */
	bool works; /* and the device can */
};

/* Sums over all CPUs since the program was attached. */
struct bulk_stats {
	uint64_t packets; /* that were queued */
	uint64_t runs;	  /* of a queue: packets / runs is its mean length */
	uint64_t general; /* packets that the fast path left to the general one */
	uint64_t lost;	  /* packets that the kernel dropped before the queue ran */
	uint64_t probes;  /* frames of bulk_open() */
};

/* Finds the maps of the program that is attached natively.  bulk_close() before the next one. */
void bulk_open(struct bulk *b, int prog_fd);
void bulk_close(struct bulk *b);

/*
 * Loads the program that runs in the queue, which takes half a second, and puts it and the device
 * into the DEVMAP.  Then tries whether a frame that is redirected gets to the queue (drivers
 * without ndo_xdp_xmit drop it); nothing is sent.  Sets `tried` and `works`.
 */
void bulk_start(struct bulk *b, const struct bpf *bpf, int ifindex);

/* All zero if there are no maps. */
struct bulk_stats bulk_stats(const struct bulk *b);

#endif

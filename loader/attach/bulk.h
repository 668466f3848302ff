/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Batched mode (bpf/bulk.bpf.h) on the interface: fills the DEVMAP, finds out whether the device
 * can, and reads what was done.  One thread, the event loop's.
 */
#ifndef XKV_BULK_H
#define XKV_BULK_H

#include <stdbool.h>
#include <stdint.h>

struct bpf_object;

/* The maps of the attached program.  All zero: none is attached. */
struct bulk {
	int self;  /* the DEVMAP, a descriptor; 0 = none */
	int notes; /* xkv_bulk, the same */
	bool works;
};

/* Sums over all CPUs since the program was attached. */
struct bulk_stats {
	uint64_t packets; /* that were queued */
	uint64_t runs;	  /* of a queue: packets / runs is its mean length */
	uint64_t general; /* packets that the fast path left to the general one */
	uint64_t lost;	  /* packets that the kernel dropped before the queue ran */
	uint64_t probes;  /* frames of bulk_open() */
};

/*
 * Puts the device into the DEVMAP of an object that was loaded for it, with the program that runs
 * in the queue.  0, or -errno: then batched mode does not work, and everything else does.
 */
int bulk_fill(const struct bpf_object *object, int ifindex);

/*
 * Opens the maps of the program that is attached natively to the device, and tries whether a frame
 * that is redirected gets to the queue: drivers without ndo_xdp_xmit drop it.  Nothing is sent.
 * bulk_close() before the next one.
 */
void bulk_open(struct bulk *b, int prog_fd, int ifindex);
void bulk_close(struct bulk *b);

/* All zero if there are no maps. */
struct bulk_stats bulk_stats(const struct bulk *b);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Batched mode (bpf/bulk.bpf.h) on the interface: fills the DEVMAP, tests whether the device
 * supports it, and reads its counters.  Functions are called by the event loop's thread.
 */
#ifndef XKV_BULK_H
#define XKV_BULK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct bpf;

/* BULK_UNTRIED: bulk_start() was not called since bulk_open(). */
enum bulk_state { BULK_UNTRIED, BULK_LOADING, BULK_WORKS, BULK_FAILS };

/* All zero: no program is attached natively. */
struct bulk {
	int self;  /* the DEVMAP of the attached program, a descriptor; 0 = none */
	int notes; /* its xkv_bulk, the same */
	_Atomic enum bulk_state state;
	pthread_t loader;
	bool has_loader; /* the thread was started, and not joined yet */
	/* of bulk_start(), for the thread */
	const struct bpf *bpf;
	int ifindex;
};

/* Sums over all CPUs since the program was attached. */
struct bulk_stats {
	uint64_t packets; /* that were queued */
	uint64_t runs;	  /* of a queue: packets / runs is its mean length */
	uint64_t general; /* packets that took the slow path */
	uint64_t lost;	  /* packets that the kernel dropped before the queue ran */
	uint64_t probes;  /* frames of bulk_open() */
};

/* Finds the maps of the natively attached program.  bulk_close() before the next one. */
void bulk_open(struct bulk *b, int prog_fd);
/* Waits for bulk_start() to end. */
void bulk_close(struct bulk *b);

/*
 * Loads the program that runs in the queue, which takes half a second, and puts it and the device
 * into the DEVMAP.  Then tests whether a redirected frame gets to the queue (drivers without
 * ndo_xdp_xmit drop it); nothing is sent.  `state` is then BULK_WORKS or BULK_FAILS.  `beside`: in
 * a thread of its own; `state` is BULK_LOADING until it is done.
 */
void bulk_start(struct bulk *b, const struct bpf *bpf, int ifindex, bool beside);

/* All zero if there are no maps. */
struct bulk_stats bulk_stats(const struct bulk *b);

#endif

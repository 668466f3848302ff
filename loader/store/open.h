/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Opening the store in the kernel's maps, and access to its configuration for main() and the
 * network code.  These functions are for the main thread.
 */
#ifndef XKV_STORE_OPEN_H
#define XKV_STORE_OPEN_H

#include <stdbool.h>
#include <stddef.h>

#include "kernel/bpf.h"
#include "bpf/layout.h"
#include "store.h"

struct store;

/*
 * Opens the store in these maps, or makes an empty one, and starts the maintenance thread.  Sets
 * *fresh if it was never started: then the snapshot has to be loaded (again, if an xkvd was killed
 * while it loaded it).  `bpf` is copied; its descriptors must stay open.  `maxmemory` (bytes) and
 * `policy` are those of store_limit().  Returns NULL on failure, with one sentence in `err`.
 */
struct store *store_open(const struct bpf *bpf, uint64_t maxmemory, enum store_policy policy,
			 bool *fresh, char *err, size_t err_len);

/* Lets XDP answer requests; before that it passes all of them up. */
void store_start(struct store *st);

/* Stops the maintenance thread and frees the store, or does nothing for NULL.  The maps remain. */
void store_close(struct store *st);

/*
 * Updates the offset between the kernel's clock and Unix time, which BPF cannot read.  To be called
 * once a second, and when the clock is set.
 */
void store_clock(struct store *st);

/*
 * Sets the time to 1970 until the next store_clock(), so that nothing has expired: for replaying a
 * log, whose commands refer to entries as they were.
 */
void store_clock_stop(struct store *st);

/*
 * Identifies this store, also in files: a digest of its hash secret, which is drawn when a store is
 * made, and kept as long as its maps exist.
 */
uint64_t store_identity(const struct store *st);

/* That identity, or one made of it, with another word. */
static inline uint64_t store_identity_mix(uint64_t id, uint64_t word)
{
	id = (id ^ word) * 0x9e3779b97f4a7c15ULL;
	return id ^ id >> 32;
}

/* The mapped configuration of the BPF programs; changes take effect at once. */
struct xkv_config *store_config(struct store *st);
/* The mapped secrets, kept apart from the configuration because users dump and share that. */
struct xkv_secrets *store_secrets(struct store *st);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * loader/store/store.h in plain memory, for tests that run without root and without
 * BPF: link tests/common/memstore.c instead of loader/store/store.c.  Everything is there
 * but store_datagram(), which returns -ENOSYS.  Counters, named as in
 * bpf/layout.h: get_hits, get_misses, inserts, overwrites, deletes, expires,
 * expiry_changes.
 */
#ifndef XKV_MEMSTORE_H
#define XKV_MEMSTORE_H

#include <stdbool.h>
#include <stdint.h>

#include "loader/store/store.h"
#include "loader/store/txn.h"

/* An empty store, NULL with errno set. */
struct store *memstore_new(void);

/* No context may be out and no other thread inside.  NULL is allowed. */
void memstore_free(struct store *st);

/* Greatest number of keys, 1,048,576 unless told. */
void memstore_set_max_keys(struct store *st, uint64_t max_keys);

/* Moves the store's clock (store_now_ms) forward, so that no test has to wait for an expiry. */
void memstore_advance(struct store *st, uint64_t ms);

/* While held, store_scan() blocks at its next bucket: a save stays in progress as long as a test
 * needs. */
void memstore_hold_scans(struct store *st, bool hold);

/* After `after` more SETs, the next `count` of them change nothing and return `err`. */
void memstore_fail_sets(struct store *st, unsigned int after, unsigned int count, int err);

#endif

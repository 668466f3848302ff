/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One set of maps in the place of another, in the pin directory.
 *
 *   next/        the new ones, while they are pinned
 *   ready/       the same, from one rename(2) on: these are the store, whatever is beside them
 *   xkv_before0  the index of the old ones, until no program of theirs is on an interface; further
 *                numbers if that had not come true when the new ones were replaced, too
 *
 * Whoever is killed before the rename has left the old store as it was, and behind it the new one:
 * the next start goes on from there.
 */
#ifndef XKV_PINS_H
#define XKV_PINS_H

#include "bpf_impl.h"

/* Pins these maps beside those that are pinned (`before`: their index).  0 or -errno. */
int pins_prepare(const struct config *cfg, const int map[BPF_MAPS], int before);

/* Those maps are the store from now on.  0, or -errno: nothing has changed. */
int pins_exchange(const struct config *cfg);

/* Ends an exchange that another xkvd has begun, or undoes what it had not begun.  0 or -errno. */
int pins_finish(const struct config *cfg);

/* Adds the kernel's numbers of the indexes of stores before. */
void pins_add_before(const struct config *cfg, struct map_ids *ids);

/* No program uses a store before any more. */
void pins_forget_before(const struct config *cfg);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Scratch: maps that hold statistics and work in progress.  If their layout differs from that of
 * this xkvd, they are made anew, and the store, which is in the other maps, stays.  The version of
 * such a map is its type information (BTF), which the kernel keeps with it.
 */
#ifndef XKV_SCRATCH_H
#define XKV_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

#include <bpf/libbpf.h>

#include "bpf.h"

bool is_scratch(int id);

/* Has the pinned map (`fd`) the layout of `map`, which is not yet made? */
bool scratch_fits(const struct bpf_object *object, const struct bpf_map *map, int fd);

/*
 * Can the references in the pinned map be carried over?  Only some of these maps record the slots
 * that xkvd had taken and not published.  0, or -errno with a sentence.
 */
int scratch_check(int id, const struct bpf_map *map, int fd, char *err, size_t err_len);

/*
 * The same for xkv_txn_more.  The maps in it have no type information, but their keys are those of
 * xkv_txn (`txn_fits`, and its descriptor).  An empty one does not fit: the kernel does not say
 * which maps it would accept.  Slots in others are those of a large transaction whose xkvd was
 * killed, and are not carried over.
 */
bool scratch_more_fits(const struct bpf_map *map, int more_fd, bool txn_fits);
int scratch_more_check(const struct bpf_map *map, int more_fd, int txn_fd, char *err,
		       size_t err_len);

/*
 * Copies the references into the new map, and pins that at `path`, replacing the old one.  At each
 * moment exactly one pinned map has each slot.  0 or -errno.
 */
int scratch_replace(int id, int new_fd, int old_fd, const char *path);

/* Removes what a killed start may have left. */
void scratch_clean(const char *path);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Scratch: maps that hold statistics and what is being worked on.  Their layout may be another one
 * than that of the xkvd which made them: then they are made anew, and the store, which is in the
 * others, stays.  The version of such a map is its description by the compiler (BTF), which the
 * kernel keeps with it.
 */
#ifndef XKV_SCRATCH_H
#define XKV_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

#include <bpf/libbpf.h>

#include "bpf.h"

bool is_scratch(int id);

/* Is the map that is pinned (`fd`) as `map`, which is not made yet, would be? */
bool scratch_fits(const struct bpf_object *object, const struct bpf_map *map, int fd);

/*
 * Can what the pinned map holds of the store be taken over?  Slots that xkvd had taken and had not
 * published are recorded in some of these maps only.  0, or -errno with a sentence.
 */
int scratch_check(int id, const struct bpf_map *map, int fd, char *err, size_t err_len);

/*
 * The same for xkv_txn_more.  The maps in it have no description, but their keys are those of
 * xkv_txn (`txn_fits`, and its descriptor).  One without maps does not fit: the kernel does not say
 * which maps it would take.  Slots in others are those of a large transaction whose xkvd was
 * killed, and are not taken over.
 */
bool scratch_more_fits(const struct bpf_map *map, int more_fd, bool txn_fits);
int scratch_more_check(const struct bpf_map *map, int more_fd, int txn_fd, char *err,
		       size_t err_len);

/*
 * Takes it over into the new map, and pins that at `path`, in the place of the old one.  There is
 * no moment at which a slot is in none of the pinned maps, or in two.  0 or -errno.
 */
int scratch_replace(int id, int new_fd, int old_fd, const char *path);

/* What a start that was killed may have left. */
void scratch_clean(const char *path);

#endif

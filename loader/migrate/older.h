/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads a store of another layout, while its programs serve it and its xkvd may run.  It follows
 * the rules for all readers (docs/design.md, "Look-ups in user space"), and takes the offsets of
 * fields from the BTF of the maps (kernel/fields.h).  All other code of xkvd knows one layout only.
 *
 * One thread.
 */
#ifndef XKV_OLDER_H
#define XKV_OLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/layout.h"
#include "kernel/bpf.h"
#include "store/carry.h"

struct older;

/*
 * Opens the maps in bpf->older.  NULL with a sentence: they cannot be read, or have fields for
 * which our layout has no place.
 */
struct older *older_open(const struct bpf *bpf, char *err, size_t err_len);
void older_close(struct older *o);

/* False for a cache and for a store that was never served: nothing is worth carrying over. */
bool older_has_data(const struct older *o);
uint32_t older_layout(const struct older *o);
/* Bytes of memory that its entries and its index take. */
uint64_t older_bytes(const struct older *o);

/*
 * Walks the entries, expired ones included, one bucket of the index after the other.  `fn` gets
 * each without its value, which older_value() reads, and ends the walk by returning other than 0;
 * -EAGAIN: the bucket is read again, so an entry may come twice.  Adds their number to *count,
 * exact if nothing changes meanwhile.  0, what `fn` returned, -EBUSY or another error.
 */
typedef int older_fn(void *arg, struct carried *e, uint64_t ref);
int older_walk(struct older *o, older_fn *fn, void *arg, uint64_t *count);

/* Reads the value of the entry, into memory of `o`.  0, -ENOMEM, or -EAGAIN: it has changed. */
int older_value(struct older *o, struct carried *e, uint64_t ref);

/* Is there an entry of this key? */
bool older_has(struct older *o, const struct carried *key);

/*
 * Makes the older programs pass all changes up to xkvd until this time (ns since boot; 0: no
 * longer).  It is certain only after a grace period.
 */
void older_hold(struct older *o, uint64_t until_ns);

/* The secrets of its hashes of keys, and of clients' tokens. */
int older_secrets(const struct older *o, struct xkv_secrets *out);
/* The replies that are kept for repeated requests: XKV_DEDUP_SETS sets. */
int older_once(const struct older *o, struct xkv_dedup_set *out);
int older_settings(const struct older *o, struct carried_settings *out);

#endif

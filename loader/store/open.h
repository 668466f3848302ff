/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Opening the store on the kernel's maps, and what main() and the network side
 * (net.c, udp.c) need of it beyond the operations in store.h.
 */
#ifndef XKV_STORE_OPEN_H
#define XKV_STORE_OPEN_H

#include <stdbool.h>
#include <stddef.h>

#include "attach/bpf.h"
#include "bpf/layout.h"
#include "store.h"

struct store;

/*
 * Opens the store that is in these maps, or makes one.  *fresh: it was never
 * started, so that the snapshot has to be loaded (again, if an xkvd was killed
 * while it did that).  `bpf` is copied and must stay open.  The limit is as for store_limit().
 * NULL with one sentence.
 */
struct store *store_open(const struct bpf *bpf, uint64_t maxmemory, enum store_policy policy,
			 bool *fresh, char *err, size_t err_len);

/* Lets XDP serve from it: until then it passes everything. */
void store_start(struct store *st);

void store_close(struct store *st);

/* Renews what BPF knows of the wall clock.  Once a second, and when the clock is set. */
void store_clock(struct store *st);

/* The configuration as BPF sees it, mapped; changes take effect at once. */
struct xkv_config *store_config(struct store *st);
/* The same of what is kept apart from it, since nobody is to see it. */
struct xkv_secrets *store_secrets(struct store *st);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Carries a store over to maps of another layout (docs/design.md, "Another layout").
 *
 *	migrate_begin(...)	copies the entries, while the older programs serve and change them
 *	migrate_end(...)	stops changes, copies what has changed, and pins the new maps in the
 *				place of the older ones
 *
 * A kill before the new maps are pinned leaves the older store as it was, a later one the new
 * store.  One thread.
 */
#ifndef XKV_MIGRATE_H
#define XKV_MIGRATE_H

#include <stdbool.h>
#include <stddef.h>

struct bpf;
struct config;
struct migrate;
struct store;

/* Can the store be carried over?  Changes nothing.  0, or -errno with a sentence. */
int migrate_check(const struct bpf *bpf, char *err, size_t err_len);

/*
 * `st` is empty, made on the maps of `bpf`.  *empty: there was nothing worth carrying over (a
 * cache, or a store that was never served), so `st` stays empty.  0, or -errno with a sentence.
 */
int migrate_begin(struct migrate **m, struct bpf *bpf, struct store *st, const struct config *cfg,
		  bool *empty, char *err, size_t err_len);

/*
 * Afterwards nobody changes the data until migrate_undo() is called or a program of the new maps
 * serves.  0, or -errno with a sentence.
 */
int migrate_end(struct migrate *m, char *err, size_t err_len);

/* Lets the older programs go on, if no program of the new maps has served. */
void migrate_undo(struct migrate *m);

void migrate_free(struct migrate *m);

#endif

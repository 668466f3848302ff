/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Entries of another store, as they are in its slots: their keys in their stored form, with the
 * stored number of their database, their version and their use.  For loader/migrate/, while this
 * store is not served.
 */
#ifndef XKV_STORE_CARRY_H
#define XKV_STORE_CARRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store.h"

struct carried {
	const uint64_t *key; /* padded with zeros */
	uint8_t key_len, db;
	uint16_t access;
	const void *value;
	size_t value_len;
	uint64_t expire_ms, version;
};

/* Is this version of the entry in the store? */
bool carry_has(struct store *st, const struct carried *e);

/* Puts it there.  0, -ENOSPC, -ENOMEM or another error of store_do(). */
int carry_put(struct store_ctx *ctx, const struct carried *e);

/* Removes the entries for which `stays`, which gets key, key_len and db, says no.  0 or -errno. */
typedef bool carry_stays_fn(void *arg, const struct carried *e);
int carry_prune(struct store_ctx *ctx, carry_stays_fn *stays, void *arg);

/* What the other store knows of its keys, beside their entries. */
struct carried_settings {
	uint8_t stored[2][STORE_DATABASES], number[2][STORE_DATABASES], stored_current;
	uint8_t track; /* ... and the clock of their uses */
	uint16_t access, access_spread;
	uint64_t version_least; /* no smaller number is drawn for a version */
};
void carry_settings(struct store *st, const struct carried_settings *other);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The guard words of a checking build (XKV_GUARDS in bpf/layout.h): the last word of each slot,
 * which no entry reaches.  Sanitizers do not see BPF programs and kernel maps; a guard detects
 * writes beyond a slot.  With AddressSanitizer, xkvd's own access to a guard is reported at once.
 * In other builds these do nothing.
 */
#ifndef XKV_STORE_GUARDS_H
#define XKV_STORE_GUARDS_H

#include "impl.h"

#ifdef XKV_GUARDS

/* A function that may read guards: a reader that checks only afterwards whether it was a slot. */
#define NO_GUARD __attribute__((no_sanitize_address))

/* Writes the guards of a span that nothing refers to yet. */
void guards_set(const struct span *s);

/* Forbids this xkvd, too, to access the guards of a span that an earlier one has made. */
void guards_adopt(const struct span *s);

/* Ends the process if a guard was overwritten.  Afterwards the span's memory may be reused. */
void guards_drop(const struct span *s);

/* The same for all spans of the store. */
void guards_drop_all(const struct store *st);

#else

#define NO_GUARD

static inline void guards_set(const struct span *s)
{
}

static inline void guards_adopt(const struct span *s)
{
}

static inline void guards_drop(const struct span *s)
{
}

static inline void guards_drop_all(const struct store *st)
{
}

#endif
#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A store in plain memory, for tests that run without root and without BPF: loader/store/ as it is,
 * on the engine of engine.h.  One at a time in a process.
 */
#ifndef XKV_USERSTORE_H
#define XKV_USERSTORE_H

#include "loader/store/store.h"

/* An empty store without a limit, whose index is small enough to have chains.  NULL with errno. */
struct store *userstore_new(void);

/* No context may be out and no other thread inside.  NULL is allowed. */
void userstore_free(struct store *st);

#endif

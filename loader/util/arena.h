/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory of many small things that are freed together, a block at a time.  Zero at first. */
#ifndef XKV_ARENA_H
#define XKV_ARENA_H

#include <stddef.h>

struct arena {
	struct arena_block *last; /* owned */
	size_t used;		  /* bytes of the last block */
	size_t bytes;		  /* of all blocks */
};

/* Room for so many bytes, aligned for any type; NULL without memory. */
void *arena_take(struct arena *a, size_t bytes);
/* Frees all of it; the arena is as at first. */
void arena_free(struct arena *a);

#endif

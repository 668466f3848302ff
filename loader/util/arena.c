// SPDX-License-Identifier: BSD-2-Clause
#include "arena.h"

#include <stdlib.h>

#define FIRST	 1024
#define MOST	 (1 << 20) /* of a block of several things */
#define ALIGNED	 _Alignof(max_align_t)
#define ROUND(n) (((n) + ALIGNED - 1) / ALIGNED * ALIGNED)

struct arena_block {
	struct arena_block *before;
	size_t size; /* with this header */
};

/* Each block is as large as all before it, so that there are few, and little is left unused. */
static struct arena_block *block_new(struct arena *a, size_t bytes)
{
	size_t size = a->bytes < FIRST ? FIRST : a->bytes > MOST ? MOST : a->bytes;
	struct arena_block *b;

	if (size < ROUND(sizeof(*b)) + bytes)
		size = ROUND(sizeof(*b)) + bytes;
	b = malloc(size);
	if (!b)
		return NULL;
	*b = (struct arena_block){ a->last, size };
	a->last = b;
	a->used = ROUND(sizeof(*b));
	a->bytes += size;
	return b;
}

void *arena_take(struct arena *a, size_t bytes)
{
	void *at;

	bytes = ROUND(bytes);
	if ((!a->last || a->last->size - a->used < bytes) && !block_new(a, bytes))
		return NULL;
	at = (char *)a->last + a->used;
	a->used += bytes;
	return at;
}

void arena_free(struct arena *a)
{
	struct arena_block *b;

	while ((b = a->last)) {
		a->last = b->before;
		free(b);
	}
	*a = (struct arena){ 0 };
}

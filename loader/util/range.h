/* SPDX-License-Identifier: BSD-2-Clause */
/* Ranges of bytes or bits as commands of Redis name them: negative ones count from the end. */
#ifndef XKV_RANGE_H
#define XKV_RANGE_H

#include <stdbool.h>
#include <stdint.h>

/* Makes positions of what has `len` elements of both.  False: nothing is between them. */
static inline bool range_resolve(int64_t *first, int64_t *last, int64_t len)
{
	if (*first < 0)
		*first = *first < -len ? 0 : *first + len;
	if (*last < 0)
		*last = *last < -len ? 0 : *last + len;
	if (*last >= len)
		*last = len - 1;
	return *first <= *last;
}

/* Some commands take a range as empty if it is backward before it is resolved. */
static inline bool range_is_backward(int64_t first, int64_t last)
{
	return first < 0 && last < 0 && first > last;
}

#endif

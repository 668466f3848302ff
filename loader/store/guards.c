// SPDX-License-Identifier: BSD-2-Clause
#include "guards.h"

#ifdef XKV_GUARDS

#include <inttypes.h>
#include <stdlib.h>

#include "util/log.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#endif

static uint64_t *guard_of(const struct span *s, unsigned int slot)
{
	return (uint64_t *)((char *)span_slot(s, slot) + s->slot_bytes - XKV_GUARD_BYTES);
}

void guards_adopt(const struct span *s)
{
	for (unsigned int i = 0; i < s->slots; i++)
		ASAN_POISON_MEMORY_REGION(guard_of(s, i), XKV_GUARD_BYTES);
}

void guards_set(const struct span *s)
{
	for (unsigned int i = 0; i < s->slots; i++)
		*guard_of(s, i) = XKV_GUARD;
	guards_adopt(s);
}

void guards_drop(const struct span *s)
{
	ASAN_UNPOISON_MEMORY_REGION(span_slot(s, 0),
				    s->tail ? s->slot_bytes : s->units * XKV_UNIT_BYTES);
	if (span_head(s)->state == XKV_SPAN_NEW) /* they may not have been set */
		return;
	for (unsigned int i = 0; i < s->slots; i++) {
		if (*guard_of(s, i) == XKV_GUARD)
			continue;
		log_warning("slot %#" PRIx64 " of %u bytes was written beyond its end: %#" PRIx64,
			    span_ref(s, i), s->slot_bytes, *guard_of(s, i));
		abort();
	}
}

void guards_drop_all(const struct store *st)
{
	struct slot_cursor cursor = { 0 };
	struct span s;

	for (; cursor_span(st, &cursor, &s); cursor.unit += s.units, cursor.slot = 0)
		guards_drop(&s);
}

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* What a node of a cluster knows of it: its reply to CLUSTER NODES. */
#ifndef XKV_UPSTREAM_VIEW_H
#define XKV_UPSTREAM_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "address.h"

#define VIEW_SLOTS   16384
#define VIEW_MASTERS 4096
#define VIEW_ID	     40

struct view_master {
	char id[VIEW_ID + 1];
	char host[UPSTREAM_HOST_MAX + 1]; /* "" = the one that was asked does not know its own */
	char name[UPSTREAM_HOST_MAX + 1]; /* its announced host name; "" = none */
	char port[8];
	uint64_t epoch; /* of its configuration: of two claims to a slot the later one is true */
};

struct view {
	unsigned int count;
	struct view_master *master; /* that can be reached, or have slots; owned */
	uint16_t owner[VIEW_SLOTS]; /* their numbers + 1; 0 = nobody has this slot */
	/* bits of slots that the node that was asked is giving away or getting */
	uint8_t moving[VIEW_SLOTS / 8];
};

/* NULL = nobody. */
static inline struct view_master *view_owner(struct view *v, unsigned int slot)
{
	return v->owner[slot] ? &v->master[v->owner[slot] - 1] : NULL;
}

/*
 * A number that changes with all that matters: masters, their addresses and slots, and slots that
 * the node itself is giving away or getting.  Not 0.
 */
uint64_t view_mark(const char *text, size_t len);

/* NULL: no memory, or it is no such reply.  To be freed with view_free(). */
struct view *view_new(const char *text, size_t len);
void view_free(struct view *v);

#endif

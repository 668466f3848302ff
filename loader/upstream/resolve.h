/* SPDX-License-Identifier: BSD-2-Clause */
/* Looks up the host of an upstream without keeping the event loop waiting. */
#ifndef XKV_UPSTREAM_RESOLVE_H
#define XKV_UPSTREAM_RESOLVE_H

#include <ev.h>

#include "address.h"

struct lookup;

struct resolver {
	struct ev_loop *loop;
	struct upstream_address *address;
	/* a->at is what was found; else `why` there is nothing (not NULL), and it is as before. */
	void (*done)(struct resolver *r, const char *why);
	void *arg; /* of the owner */
	ev_async told;
	struct lookup *lookup; /* under way; NULL = none is */
};

void resolver_init(struct resolver *r, struct ev_loop *loop, struct upstream_address *address,
		   void (*done)(struct resolver *r, const char *why), void *arg);
/*
 * Calls done() when the host was looked up: before it returns, if it is an address or a path.  Not
 * while one is under way.
 */
void resolver_start(struct resolver *r);
/* done() is not called any more. */
void resolver_stop(struct resolver *r);

#endif

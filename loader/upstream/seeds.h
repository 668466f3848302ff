/* SPDX-License-Identifier: BSD-2-Clause */
/* Asks the seeds of a cluster, one after the other, what they know of it (CLUSTER NODES). */
#ifndef XKV_UPSTREAM_SEEDS_H
#define XKV_UPSTREAM_SEEDS_H

#include "address.h"
#include "link.h"
#include "resolve.h"

struct seeds;

/* What the one at `host` says; or (NULL) `why` it says nothing. */
typedef void seeds_told_fn(struct seeds *s, const char *text, size_t len, const char *host,
			   const char *why);

struct seeds {
	const struct upstream_address *of; /* has their addresses, user and password */
	seeds_told_fn *told;
	void *arg;			 /* of the owner */
	struct upstream_address address; /* of the one that is asked, */
	unsigned int turn;		 /* which has this number, modulo how many there are */
	struct resolver resolver;
	struct link link;
	bool asks;
};

void seeds_init(struct seeds *s, struct ev_loop *loop, const struct upstream_address *of,
		seeds_told_fn *told, void *arg);
/* told() is called once, not before this returns.  Nothing while that is still to come. */
void seeds_ask(struct seeds *s);
void seeds_stop(struct seeds *s);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Asks Sentinels, one after the other, for the master of this name, and stays connected to the one
 * that has answered: it announces when another server becomes the master (+switch-master).
 */
#ifndef XKV_UPSTREAM_SENTINEL_H
#define XKV_UPSTREAM_SENTINEL_H

#include <ev.h>
#include <stdbool.h>

#include "address.h"
#include "link.h"
#include "resolve.h"

struct sentinel;

/* Where it is; or `why` nobody knows. */
typedef void sentinel_found_fn(struct sentinel *s, const char *host, const char *port,
			       const char *why);
/* It is there now. */
typedef void sentinel_moved_fn(struct sentinel *s, const char *host, const char *port);

struct sentinel {
	const struct upstream_address *of; /* has the name and the Sentinels */
	const char *password_file;	   /* "" = they want no password */
	sentinel_found_fn *found;
	sentinel_moved_fn *moved;
	void *arg;			 /* of the owner */
	struct upstream_address address; /* of the one that is asked, */
	unsigned int turn;		 /* which has this number, modulo how many there are */
	struct resolver resolver;
	struct link link;
	ev_timer timer; /* ends the wait for an answer; or the rest between two Sentinels */
	bool owes;	/* found() */
	bool looking;	/* the resolver is at work */
};

void sentinel_init(struct sentinel *s, struct ev_loop *loop, const struct upstream_address *of,
		   sentinel_found_fn *found, sentinel_moved_fn *moved, void *arg);
/* They want this user ("" = default) with the first line of this file, read at each connect. */
void sentinel_sign_in(struct sentinel *s, const char *user, const char *password_file);
/* found() is called once, maybe before this returns; each time that nobody knows asks the next. */
void sentinel_ask(struct sentinel *s);
void sentinel_stop(struct sentinel *s);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `xkvd --upgrade`: this xkvd replaces the one that runs on the same pin directory.  That one may
 * be of any version, and only has to end when told to.
 *
 *	takeover_prepare(&t, bpf, cfg, ...);	refuses what cannot be done; nothing has changed
 *	takeover_begin(&t);			continues in a new process, without a terminal
 *	takeover_end_other(&t);			from here on the driver alone answers
 *	...					starts as ever; net/ and http/ get the sockets
 *	takeover_done(&t);			or takeover_back(&t), if it could not start
 */
#ifndef XKV_TAKEOVER_H
#define XKV_TAKEOVER_H

#include <stddef.h>
#include <sys/types.h>

#include "bpf.h"
#include "config/config.h"

struct takeover {
	pid_t pid; /* of the other one; 0: none is replaced */
	int pidfd;
	int signal;   /* that ends it */
	int exe, cwd; /* its program and its directory, ... */
	char **argv;  /* ... and its arguments; owned */
	int told;     /* a pipe to the process that the user started */
};

/*
 * Finds the process, and checks that it can be replaced: its rights, the layout of its maps, and
 * the verifier (bpf_prepare()).  Duplicates its sockets (util/handed.h).  0, or -errno with a
 * sentence.
 */
int takeover_prepare(struct takeover *t, struct bpf *bpf, const struct config *cfg, char *err,
		     size_t err_len);

/*
 * Forks.  Returns in the new process; the original one exits when the new one serves (0) or has
 * ended (1).
 */
void takeover_begin(struct takeover *t);

/*
 * Tells systemd, and the other one, and waits until that one has ended: it answers what it has
 * accepted, syncs its log, and leaves the store.  As long as it takes.
 */
void takeover_end_other(const struct takeover *t);

/* This one serves. */
void takeover_done(struct takeover *t);

/*
 * Executes the other program again, with its arguments, on the same store.  Returns if that fails,
 * or if a third process has the store.
 */
void takeover_back(const struct takeover *t, const struct config *cfg);

#endif

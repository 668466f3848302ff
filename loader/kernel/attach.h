/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The XDP program on an interface: put there, watched, and put back when the
 * place is free again.  One thread, the event loop's.
 */
#ifndef XKV_ATTACH_H
#define XKV_ATTACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <net/if.h>

#include "bpf.h"
#include "bulk.h"

/* What is where the program should be. */
enum attach_place {
	PLACE_NONE,    /* not looked at yet */
	PLACE_OURS,    /* the program that uses our maps */
	PLACE_FREE,    /* nothing */
	PLACE_TAKEN,   /* somebody else's program */
	PLACE_GONE,    /* there is no such interface */
	PLACE_RENAMED, /* nor that, but ours is on it under its new name */
};

struct attach {
	const struct bpf *bpf;
	const struct config *cfg;
	bool adopt;		/* `ip link` attaches, we only look */
	char name[IF_NAMESIZE]; /* of the interface */

	/* what INFO shows */
	bool attached;
	const char *mode;     /* native, generic, none */
	unsigned int program; /* the kernel's number, 0 = none */
	struct bulk bulk;
	bool tcp_failed;	  /* it cannot be made to call it */
	unsigned int tcp_program; /* the same one, if it calls that of tcp.h; 0 = it does not */

	/* the last look: each change is told once */
	enum attach_place place;
	int ifindex; /* where the program was last */
	bool alone;  /* not by libxdp's dispatcher */
	struct {
		int ifindex;
		unsigned int drv, skb, hw; /* programs */
	} seen;
	/* monotonic: when to try again; when it was attached last */
	uint64_t retry_ms, attached_ms;
	unsigned int wait_ms; /* between tries; grows */
};

/*
 * Attaches the XDP program to the interface `name`, native or generic as cfg->mode says, unless one
 * that uses these maps and is built alike is there already, in that mode.  With `adopt` it only
 * looks whether one is there.  An interface that is missing is waited for, if `wait`.  `bpf` and
 * `cfg` must stay.  0, or -errno with a sentence.
 */
int attach_open(struct attach *a, const struct bpf *bpf, const struct config *cfg, const char *name,
		bool adopt, bool wait, char *err, size_t err_len);

/*
 * Looks whether the program is still there: to be called when links have changed, and each second
 * (the kernel does not tell everything).  Logs what has changed, and attaches again where the place
 * is free.
 */
void attach_look(struct attach *a);
/*
 * Runs of what is on the interface, our program or the dispatcher that calls it, and their time;
 * of both the kernel takes note only while kernel.bpf_stats_enabled is 1.  0 without one.
 */
void attach_runs(const struct attach *a, uint64_t *runs, uint64_t *ns);
/* Frees what attach_open() has made in xkvd; the program stays attached. */
void attach_close(struct attach *a);

#endif

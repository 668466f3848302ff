/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The XDP program on an interface: attaches it, watches it, and attaches it again when the hook is
 * free.  Used by the event loop's thread.
 */
#ifndef XKV_ATTACH_H
#define XKV_ATTACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <net/if.h>

#include "bpf.h"
#include "bulk.h"

/* What is attached where the program should be. */
enum attach_place {
	PLACE_NONE,    /* not looked at yet */
	PLACE_OURS,    /* the program that uses our maps */
	PLACE_FREE,    /* nothing */
	PLACE_TAKEN,   /* another program */
	PLACE_GONE,    /* there is no such interface */
	PLACE_RENAMED, /* nor that, but our program is on it under its new name */
};

struct attach {
	const struct bpf *bpf;
	const struct config *cfg;
	bool adopt;		/* `ip link` attaches, xkvd only watches */
	char name[IF_NAMESIZE]; /* of the interface */

	/* what INFO shows */
	bool attached;
	const char *mode;     /* native, generic, none */
	unsigned int program; /* the kernel's number, 0 = none */
	struct bulk bulk;
	bool tcp_failed;	  /* it cannot be made to call ours */
	unsigned int tcp_program; /* the same one, if it calls that of tcp.h; 0 = it does not */

	/* the last state seen: each change is logged once */
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
 * of the same build that uses these maps is attached already, in that mode.  With `adopt` it only
 * looks for one.  With `wait`, a missing interface is not an error: it is waited for.  `bpf` and
 * `cfg` must stay.  0, or -errno with a sentence.
 */
int attach_open(struct attach *a, const struct bpf *bpf, const struct config *cfg, const char *name,
		bool adopt, bool wait, char *err, size_t err_len);

/*
 * Checks that the program is still attached: to be called when links have changed, and each second
 * (the kernel does not report everything).  Logs changes, and attaches again if the hook is free.
 */
void attach_look(struct attach *a);
/*
 * Number and time of the runs of our program, or of the dispatcher that calls it; the kernel counts
 * them only while kernel.bpf_stats_enabled is 1. 0 without a program.
 */
void attach_runs(const struct attach *a, uint64_t *runs, uint64_t *ns);
/* Frees what attach_open() has made in xkvd; the program stays attached. */
void attach_close(struct attach *a);

#endif

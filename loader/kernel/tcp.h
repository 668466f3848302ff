/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Requests over TCP that the driver answers (bpf/tcp.bpf.c): its programs on the interfaces, and
 * the maps that they share with xkvd.  One thread, the event loop's.
 *
 * The programs outlive xkvd, like that for UDP: the kernel does not know of their replies, so they
 * have to translate each such connection until its last segment.
 */
#ifndef XKV_ATTACH_TCP_H
#define XKV_ATTACH_TCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/tcp.h"
#include "config/config.h"

struct attach;
struct bpf;

struct tcp_path {
	int flows, owner_map, counters; /* descriptors of maps, 0 = none */
	int xdp, out, ack;		/* of the programs */
	int dispatched; /* `xdp` beside libxdp's dispatcher; 0: not needed so far, or -errno */
	struct xkv_owner *owners;    /* XKV_OWNERS_MAX, mapped; NULL = the path is off */
	struct xkv_tcp_stats before; /* left by an earlier xkvd */
};

/* The object with the programs, as this build has it in it. */
const void *tcp_object(size_t *size);
/* Is it a map of flows that is pinned beside those of the store?  By its name in the kernel. */
bool tcp_has_map(const char *name);

/*
 * Loads the programs, or takes those that an earlier start of this build has pinned.  Flows that an
 * earlier xkvd has left continue to be translated until they end.  0, or -errno with a sentence;
 * then the path is off.
 */
int tcp_path_open(struct tcp_path *t, const struct bpf *bpf, const struct config *cfg, char *err,
		  size_t err_len);
/*
 * At the start and every second, for each interface: attaches the programs beside an XDP program of
 * ours, also if another program has detached them.  True: the interface was served, and a program
 * is or was missing, so segments were not translated meanwhile, and connections that the driver has
 * answered are broken.
 */
bool tcp_path_look(struct tcp_path *t, struct attach *a);
/* Closes the descriptors.  The programs stay. */
void tcp_path_close(struct tcp_path *t);

/* Sums over all CPUs, since the path was opened.  All zero if it is off. */
void tcp_path_stats(const struct tcp_path *t, struct xkv_tcp_stats *stats);

/*
 * Operations that commands took beyond one each, also before the path was opened: the store has
 * counted them, too.  `stats` are those of now.
 */
uint64_t tcp_path_extra(const struct tcp_path *t, const struct xkv_tcp_stats *stats);

/*
 * For `xkvd --detach`, and a start without the path: detaches the programs and removes the pins, if
 * there are any.  Connections that were answered in the driver hang afterwards, so their xkvd must
 * have ended.
 */
void tcp_path_detach(const struct config *cfg);

#endif

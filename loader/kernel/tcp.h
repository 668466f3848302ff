/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Requests over TCP that the driver answers (bpf/tcp.bpf.c): its programs on the interfaces, and
 * the maps that they share with xkvd.  One thread, the event loop's.
 *
 * The programs outlive xkvd, as that of UDP does: what they have answered is not known to the
 * kernel, so each segment of such a connection has to be translated until its last one.
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
	struct xkv_tcp_stats before; /* what an earlier xkvd has left */
};

/*
 * Loads the programs.  Flows that an earlier xkvd has left are translated on, until they are gone.
 * 0, or -errno with a sentence; then the path is off.
 */
int tcp_path_open(struct tcp_path *t, const struct bpf *bpf, const struct config *cfg, char *err,
		  size_t err_len);
/*
 * At the start and every second, for each interface: attaches the programs beside an XDP program of
 * ours, also again what others have taken off.  True: the interface was served, and something is
 * missing or was, so what has passed since was not translated, and connections that the driver has
 * answered make no sense any more.
 */
bool tcp_path_look(struct tcp_path *t, struct attach *a);
/* Closes the descriptors.  The programs stay. */
void tcp_path_close(struct tcp_path *t);

/* Sums over all CPUs, since the path was opened.  All zero if it is off. */
void tcp_path_stats(const struct tcp_path *t, struct xkv_tcp_stats *stats);

/*
 * Operations that commands took beyond one for each, also before the path was opened: they are
 * among those that the store counts.
 */
uint64_t tcp_path_extra(const struct tcp_path *t);

/*
 * `xkvd --detach`, and a start without the path: takes the programs from the interfaces, and
 * removes the pins, if there are any.  Connections that were answered in the driver hang after
 * that, so their xkvd must have ended.
 */
void tcp_path_detach(const struct config *cfg);

#endif

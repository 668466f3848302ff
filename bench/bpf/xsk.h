/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What xsk.bpf.c and the AF_XDP transport have in common. */
#ifndef BENCH_XSK_H
#define BENCH_XSK_H

#define XSK_QUEUES_MAX 64

/*
 * Replies that a queue has room for, and frames to send from.  All threads together have half as
 * many requests out, so that none is lost here, even if the NIC steers all of them to one queue,
 * where some stay while they are looked at.
 */
#define XSK_RING    4096
#define XSK_OUT_MAX (XSK_RING / 2)

#endif

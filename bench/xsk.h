/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What xsk.bpf.c and the AF_XDP transport have in common. */
#ifndef BENCH_XSK_H
#define BENCH_XSK_H

#define XSK_QUEUES_MAX 64

/*
 * Replies that a queue has room for, and frames to send from.  A thread has no more requests out, so that
 * none is lost here, wherever the NIC steers them.
 */
#define XSK_RING 4096

#endif

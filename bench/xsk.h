/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What xsk.bpf.c and the AF_XDP transport have in common. */
#ifndef BENCH_XSK_H
#define BENCH_XSK_H

#define XSK_QUEUES_MAX 64

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * CPU time of the kernel's softirq threads.  When the frame loop keeps a core busy with softirqs,
 * the kernel moves part of them from the generator's thread to ksoftirqd: a rate per second of CPU
 * time has to count both.
 */
#ifndef BENCH_KSOFTIRQD_H
#define BENCH_KSOFTIRQD_H

/* CPU time of ksoftirqd of this CPU in seconds, 0 if unknown.  One thread at a time per CPU. */
double ksoftirqd_seconds(unsigned int cpu);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * CPU time of the kernel's softirq threads.  When a loop keeps a core's softirq
 * busy, the kernel moves part of the work from the generator's thread there; a
 * measurement per second of CPU time has to count both.
 */
#ifndef BENCH_KSOFTIRQD_H
#define BENCH_KSOFTIRQD_H

/* Seconds that ksoftirqd of this CPU has run; 0 if the kernel does not tell. */
double ksoftirqd_seconds(unsigned int cpu);

#endif

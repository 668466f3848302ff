/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads beside those that serve clients. */
#ifndef XKV_THREAD_H
#define XKV_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/*
 * Starts a thread that no signal interrupts: all of them are for the event loop.  0, or a negative
 * errno value; then *thread is undefined.  Thread safe.
 */
int thread_without_signals(pthread_t *thread, void *(*fn)(void *arg), void *arg);

/*
 * The calling thread is to get a CPU soon after each of its many waits, for a shorter time each:
 * Linux lets others, who just compute, have theirs for milliseconds.  Its share stays the same.
 */
void thread_hurries(bool hurries);

#endif

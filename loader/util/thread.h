/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads beside those that serve clients. */
#ifndef XKV_THREAD_H
#define XKV_THREAD_H

#include <pthread.h>

/*
 * Starts a thread that no signal interrupts: all of them are for the event loop.  0, or a negative
 * errno value; then *thread is undefined.  Thread safe.
 */
int thread_without_signals(pthread_t *thread, void *(*fn)(void *arg), void *arg);

#endif

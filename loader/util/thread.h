/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads beside those that serve clients. */
#ifndef XKV_THREAD_H
#define XKV_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/*
 * Starts a thread that no signal interrupts: signals go to the event loop.  0, or a negative errno
 * value; then *thread is undefined.  Thread safe.
 */
int thread_without_signals(pthread_t *thread, void *(*fn)(void *arg), void *arg);

/*
 * Shortens the calling thread's time slices, so that it gets a CPU soon after each of its many
 * waits: otherwise Linux lets CPU-bound programs finish theirs, which takes milliseconds.  Its
 * share of the CPU stays the same.
 */
void thread_hurries(bool hurries);

/*
 * For work that takes long and that no client waits for: threads that serve clients get the CPU
 * before the calling one, which gets a ninth of their share.  There is no way back.
 */
void thread_steps_back(void);

#endif

// SPDX-License-Identifier: BSD-2-Clause
#include "thread.h"

#include <signal.h>

/* It inherits the mask of the thread that starts it. */
int thread_without_signals(pthread_t *thread, void *(*fn)(void *arg), void *arg)
{
	sigset_t all, before;
	int ret;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	ret = -pthread_create(thread, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return ret;
}

// SPDX-License-Identifier: BSD-2-Clause
#include "thread.h"

#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHORT_NS  100000 /* the least that Linux takes */
#define STEP_BACK 10	 /* steps of nice: a ninth of the CPU time of a thread that does not */
#define NICE_MAX  19

/* sched_setattr(2): as much of it as the first version had.  Headers of it clash with sched.h. */
struct attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

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

/* Not of one that has a policy of its own (chrt(1)).  Linux before 6.12 ignores the slice. */
static void set_attributes(int more_nice, uint64_t slice_ns)
{
	struct attributes attr;

	if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) || attr.policy != SCHED_OTHER)
		return;
	attr.nice = attr.nice + more_nice < NICE_MAX ? attr.nice + more_nice : NICE_MAX;
	attr.runtime = slice_ns;
	syscall(SYS_sched_setattr, 0, &attr, 0);
}

void thread_hurries(bool hurries)
{
	set_attributes(0, hurries ? SHORT_NS : 0);
}

void thread_steps_back(void)
{
	set_attributes(STEP_BACK, 0);
}

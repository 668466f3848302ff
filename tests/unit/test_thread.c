/* SPDX-License-Identifier: BSD-2-Clause */
/* A thread that hurries has a short slice, and all else as before; one that steps back is nice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loader/util/thread.h"

#define SHORT_NS 100000

/* The slice of the calling thread in ns; 0: Linux before 6.12 does not say. */
static uint64_t slice(void)
{
	uint64_t attr[6]; /* struct sched_attr: sched_runtime is the fourth */

	memset(attr, 0, sizeof(attr));
	assert_int_equal(syscall(SYS_sched_getattr, 0, attr, sizeof(attr), 0), 0);
	return attr[3];
}

static void test_hurries(void **state)
{
	uint64_t before = slice();

	assert_int_equal(setpriority(PRIO_PROCESS, 0, 3), 0);
	thread_hurries(true);
	assert_int_equal(slice(), before ? SHORT_NS : 0);
	assert_int_equal(getpriority(PRIO_PROCESS, 0), 3);
	thread_hurries(false);
	assert_int_equal(slice(), before);
}

static void *step_back(void *arg)
{
	int *nice = arg;

	thread_steps_back();
	nice[0] = getpriority(PRIO_PROCESS, 0);
	for (int i = 0; i < 4; i++)
		thread_steps_back();
	nice[1] = getpriority(PRIO_PROCESS, 0);
	return NULL;
}

/* Of its thread only, and as far as that goes. */
static void test_steps_back(void **state)
{
	int before = getpriority(PRIO_PROCESS, 0), nice[2];
	uint64_t slice_before = slice();
	pthread_t thread;

	assert_int_equal(thread_without_signals(&thread, step_back, nice), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(nice[0], before + 10 < 19 ? before + 10 : 19);
	assert_int_equal(nice[1], 19);
	assert_int_equal(getpriority(PRIO_PROCESS, 0), before);
	assert_int_equal(slice(), slice_before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hurries),
		cmocka_unit_test(test_steps_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

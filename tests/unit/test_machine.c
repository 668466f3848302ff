// SPDX-License-Identifier: BSD-2-Clause
/* How much memory is left, by files of /proc and of cgroups that are made up here. */
#include <stdarg.h>
#include <sched.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "loader/util/machine.h"

#define MIB(n) ((unsigned long long)(n) << 20)

static char root[] = "/tmp/xkv-machine-XXXXXX";

/* Writes a file below the root, with its directories. */
__attribute__((format(printf, 2, 3))) static void put(const char *name, const char *fmt, ...)
{
	char path[4096];
	va_list args;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		mkdir(path, 0700);
		*slash = '/';
	}
	f = fopen(path, "w");
	assert_non_null(f);
	va_start(args, fmt);
	vfprintf(f, fmt, args);
	va_end(args);
	fclose(f);
}

static bool is_short(void)
{
	return memory_is_short_below(root, 0);
}

static int empty_tree(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s/*", root);
	if (system(command))
		return -1;
	put("proc/meminfo", "MemTotal: 8000000 kB\nMemFree: 1 kB\nMemAvailable: 4000000 kB\n");
	return 0;
}

static void test_machine(void **state)
{
	assert_false(is_short());
	put("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 399999 kB\n");
	assert_true(is_short());
	put("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 400000 kB\n");
	assert_false(is_short());
	put("proc/meminfo", "nonsense\n");
	assert_false(is_short());
}

static void v2(const char *dir, const char *max, const char *high, unsigned long long used,
	       unsigned long long cache)
{
	char name[512];

	snprintf(name, sizeof(name), "%s/memory.max", dir);
	put(name, "%s\n", max);
	snprintf(name, sizeof(name), "%s/memory.high", dir);
	put(name, "%s\n", high);
	snprintf(name, sizeof(name), "%s/memory.current", dir);
	put(name, "%llu\n", used);
	snprintf(name, sizeof(name), "%s/memory.stat", dir);
	put(name, "anon 4096\nfile %llu\ninactive_file %llu\nactive_file 0\n", cache, cache);
}

#define TOP  "sys/fs/cgroup"
#define OURS TOP "/system.slice/xkvd.service"

static void mount_v2(const char *top)
{
	put("proc/self/cgroup", "0::/system.slice/xkvd.service\n");
	put("proc/self/mountinfo",
	    "22 1 0:21 / /proc rw - proc proc rw\n"
	    "31 23 0:27 %s /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
	    top);
}

static void test_version_2(void **state)
{
	mount_v2("/");
	v2(OURS, "1073741824", "max", MIB(900), 0); /* a twentieth is 51 MiB */
	assert_false(is_short());
	v2(OURS, "1073741824", "max", MIB(980), 0);
	assert_true(is_short());
	v2(OURS, "1073741824", "max", MIB(980), MIB(100)); /* page cache goes first */
	assert_false(is_short());
	v2(OURS, "1073741824", "943718400", MIB(890), 0); /* above high it is throttled */
	assert_true(is_short());
	v2(OURS, "max", "max", MIB(5000), 0);
	assert_false(is_short());
	/* 128 MiB: a restart needs more than a twentieth */
	v2(OURS, "134217728", "max", MIB(100), 0);
	assert_true(is_short());
	v2(OURS, "134217728", "max", MIB(90), 0);
	assert_false(is_short());
	v2(OURS, "33554432", "max", MIB(15), 0); /* 32 MiB: half of it stays for use */
	assert_false(is_short());
	v2(OURS, "67108864", "max", MIB(80), 0); /* over it, since it was lowered */
	assert_true(is_short());
}

static void test_parents(void **state)
{
	mount_v2("/");
	v2(OURS, "max", "max", MIB(100), 0);
	v2(TOP "/system.slice", "1073741824", "max", MIB(1000), 0);
	assert_true(is_short());
	v2(TOP "/system.slice", "max", "max", MIB(1000), 0);
	assert_false(is_short());
	v2(TOP, "1073741824", "max", MIB(1000), 0); /* the top, as a container sees it */
	assert_true(is_short());
}

static void test_mounts_of_containers(void **state)
{
	mount_v2("/system.slice"); /* only a part is mounted */
	v2(TOP "/xkvd.service", "1073741824", "max", MIB(1000), 0);
	assert_true(is_short());
	mount_v2("/docker/1234"); /* ours is not in it: what is mounted is what we know */
	assert_false(is_short());
	v2(TOP, "1073741824", "max", MIB(1000), 0);
	assert_true(is_short());
}

static void v1(const char *dir, unsigned long long limit, unsigned long long used,
	       unsigned long long cache)
{
	char name[512];

	snprintf(name, sizeof(name), "%s/memory.limit_in_bytes", dir);
	put(name, "%llu\n", limit);
	snprintf(name, sizeof(name), "%s/memory.usage_in_bytes", dir);
	put(name, "%llu\n", used);
	snprintf(name, sizeof(name), "%s/memory.stat", dir);
	put(name, "cache %llu\ntotal_inactive_file %llu\ntotal_active_file %llu\n", cache, cache,
	    cache);
}

static void test_version_1(void **state)
{
	put("proc/self/cgroup", "9:name=systemd:/\n5:cpu,memory:/a/b\n4:memoryless:/x\n0::/\n");
	put("proc/self/mountinfo",
	    "35 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	    "36 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,cpu,memory\n"
	    "37 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
	v1(TOP "/memory/a/b", 9223372036854771712ULL, MIB(3000), 0); /* no limit */
	assert_false(is_short());
	v1(TOP "/memory/a/b", MIB(200), MIB(150), 0);
	assert_false(is_short());
	v1(TOP "/memory/a/b", MIB(200), MIB(190), 0);
	assert_true(is_short());
	v1(TOP "/memory/a/b", MIB(200), MIB(190), MIB(20)); /* that of use counts half */
	assert_false(is_short());
	v1(TOP "/memory/a", MIB(100), MIB(99), 0);
	assert_true(is_short());
}

static void test_real_files(void **state)
{
	memory_is_short(0); /* whatever it says */
}

static void test_cpus(void **state)
{
	cpu_set_t all, one;

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	assert_int_equal(cpus_usable(), CPU_COUNT(&all));
	CPU_ZERO(&one);
	for (unsigned int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
		if (CPU_ISSET(i, &all))
			CPU_SET(i, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(cpus_usable(), 1);
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_machine, empty_tree),
		cmocka_unit_test_setup(test_version_2, empty_tree),
		cmocka_unit_test_setup(test_parents, empty_tree),
		cmocka_unit_test_setup(test_mounts_of_containers, empty_tree),
		cmocka_unit_test_setup(test_version_1, empty_tree),
		cmocka_unit_test(test_real_files),
		cmocka_unit_test(test_cpus),
	};
	char command[128];
	int failed;

	if (!mkdtemp(root))
		return 1;
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	snprintf(command, sizeof(command), "rm -rf %s", root);
	return system(command) ? 1 : failed;
}

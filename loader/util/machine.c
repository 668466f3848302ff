// SPDX-License-Identifier: BSD-2-Clause
/*
 * How many CPUs there are, and how much memory is left.  Nothing is cached, since limits and the
 * cgroup of a process may change at any time.
 */
#include "machine.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * 1/20 is kept free; of a cgroup's limit also at least what the next xkvd needs to load its
 * programs (18 to 22 MiB) and to save, but not more than half the limit.
 */
#define RESERVE_SHARE	   20
#define RESERVE_LEAST	   (32ULL << 20)
#define RESERVE_MOST_SHARE 2

typedef unsigned long long bytes;

#define UNLIMITED (~0ULL)

/* Names of the files of a version of cgroups. */
struct version {
	const char *fstype, *controller; /* of the mount, and in its options; "" = version 2 */
	const char *limit[2], *usage;
	const char *inactive, *active; /* lines of memory.stat: page cache */
};

/* clang-format off */
static const struct version versions[] = {
	{ "cgroup2", "", { "memory.max", "memory.high" },
	  "memory.current", "inactive_file", "active_file" },
	{ "cgroup", "memory", { "memory.limit_in_bytes", NULL },
	  "memory.usage_in_bytes", "total_inactive_file", "total_active_file" },
};
/* clang-format on */

static FILE *open_in(const char *dir, const char *name)
{
	char path[2 * PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return fopen(path, "re");
}

/* Is `word` in this comma-separated list? */
static bool has_word(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (; list; list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL)
		if (!strncmp(list, word, len) && (!list[len] || list[len] == ','))
			return true;
	return false;
}

/* ---- the machine --------------------------------------------------------- */

static bool machine_is_short(const char *root, bytes more, bytes *least)
{
	bytes total = 0, available = 0;
	char line[128];
	FILE *f = open_in(root, "proc/meminfo");

	if (!f)
		return false;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "MemTotal: %llu", &total) == 1)
			*least = total * 1024;
		sscanf(line, "MemAvailable: %llu", &available);
	}
	fclose(f);
	return available && available < total / RESERVE_SHARE + more / 1024;
}

/* ---- one cgroup ---------------------------------------------------------- */

/* Reads a file with a number, or "max", which means UNLIMITED, as does a missing file. */
static bytes read_number(const char *dir, const char *name)
{
	FILE *f = name ? open_in(dir, name) : NULL;
	bytes n = UNLIMITED;

	if (!f)
		return UNLIMITED;
	if (fscanf(f, "%llu", &n) != 1)
		n = UNLIMITED;
	fclose(f);
	return n;
}

/* Page cache in bytes that the kernel would reclaim before it kills a process. */
static bytes reclaimable(const struct version *v, const char *dir)
{
	bytes n, sum = 0;
	char name[64];
	FILE *f = open_in(dir, "memory.stat");

	if (!f)
		return 0;
	while (fscanf(f, "%63s %llu", name, &n) == 2)
		if (!strcmp(name, v->inactive))
			sum += n;
		else if (!strcmp(name, v->active))
			sum += n / 2;
	fclose(f);
	return sum;
}

uint64_t memory_reserve(uint64_t whole)
{
	uint64_t share = whole / RESERVE_SHARE, most = whole / RESERVE_MOST_SHARE;

	if (share >= RESERVE_LEAST)
		return share;
	return most < RESERVE_LEAST ? most : RESERVE_LEAST;
}

/* Lowers *least to the limit if that is less. */
static bool cgroup_is_short(const struct version *v, const char *dir, bytes more, bytes *least)
{
	bytes limit = read_number(dir, v->limit[0]), high = read_number(dir, v->limit[1]), used,
	      cache;

	if (high < limit)
		limit = high;
	if (limit < *least)
		*least = limit;
	used = limit == UNLIMITED ? UNLIMITED : read_number(dir, v->usage);
	if (used == UNLIMITED)
		return false;
	used += more;
	if (used + memory_reserve(limit) <= limit)
		return false;
	cache = reclaimable(v, dir);
	return used - (cache < used ? cache : used) + memory_reserve(limit) > limit;
}

/* ---- all cgroups of this process ----------------------------------------- */

/* The path of this process in the hierarchy.  /proc/self/cgroup: number:controllers:path. */
static bool find_path(const char *root, const struct version *v, char *path, size_t len)
{
	char line[PATH_MAX + 256], *controllers, *end;
	FILE *f = open_in(root, "proc/self/cgroup");
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		controllers = strchr(line, ':');
		end = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!end)
			continue;
		*end = '\0';
		found = *v->controller ? has_word(controllers + 1, v->controller) : !controllers[1];
		if (found)
			snprintf(path, len, "%s", end + 1);
	}
	if (f)
		fclose(f);
	return found;
}

/* The mount point of the hierarchy and its root there, from /proc/self/mountinfo (proc(5)). */
static bool find_mount(const char *root, const struct version *v, char *top, char *at)
{
	char line[2 * PATH_MAX + 1024], fstype[64], options[512];
	FILE *f = open_in(root, "proc/self/mountinfo");
	const char *tail;
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f)) {
		tail = strstr(line, " - ");
		if (!tail || sscanf(tail, " - %63s %*s %511s", fstype, options) != 2 ||
		    sscanf(line, "%*s %*s %*s %4095s %4095s", top, at) != 2)
			continue;
		found = !strcmp(fstype, v->fstype) &&
			(!*v->controller || has_word(options, v->controller));
	}
	if (f)
		fclose(f);
	return found;
}

/* Checks the cgroup of this process and its parents up to the mounted root. */
static bool hierarchy_is_short(const char *root, const struct version *v, bytes more, bytes *least)
{
	char path[PATH_MAX] = "", top[PATH_MAX], at[PATH_MAX], dir[3 * PATH_MAX];
	bool is_short = false;
	size_t above, base;

	if (!find_path(root, v, path, sizeof(path)) || !find_mount(root, v, top, at))
		return false;
	above = strcmp(top, "/") ? strlen(top) : 0;
	if (strncmp(path, top, above) || strstr(path, "/.."))
		path[above = 0] = '\0'; /* the cgroup is outside of the mounted part */
	snprintf(dir, sizeof(dir), "%s%s", root, at);
	base = strlen(dir);
	snprintf(dir + base, sizeof(dir) - base, "%s", path + above);
	for (;;) {
		is_short |= cgroup_is_short(v, dir, more, least);
		if (!strrchr(dir + base, '/'))
			return is_short;
		*strrchr(dir + base, '/') = '\0';
	}
}

static bool look(const char *root, bytes more, bytes *least)
{
	bool is_short = machine_is_short(root, more, least);

	for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++)
		is_short |= hierarchy_is_short(root, &versions[i], more, least);
	return is_short;
}

bool memory_is_short_below(const char *root, uint64_t more)
{
	bytes least = UNLIMITED;

	return look(root, more, &least);
}

bool memory_is_short(uint64_t more)
{
	return memory_is_short_below("", more);
}

uint64_t memory_whole(void)
{
	bytes least = UNLIMITED;

	look("", 0, &least);
	return least;
}

/* A machine with more than 1,024 CPUs does not fit a cpu_set_t: then there are enough. */
unsigned int cpus_usable(void)
{
	cpu_set_t set;
	int count = sched_getaffinity(0, sizeof(set), &set) ? CPU_SETSIZE : CPU_COUNT(&set);

	return count > 0 ? (unsigned int)count : 1;
}

// SPDX-License-Identifier: BSD-2-Clause
/* See ksoftirqd.h. */
#include "ksoftirqd.h"

#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bpf/frame.h"

static bool comm_is(const char *pid, const char *want)
{
	char path[300], comm[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%s/comm", pid);
	f = fopen(path, "re");
	if (!f)
		return false;
	if (!fgets(comm, sizeof(comm), f))
		comm[0] = 0;
	fclose(f);
	comm[strcspn(comm, "\n")] = 0;
	return !strcmp(comm, want);
}

/* -1 if it cannot be seen, as in a container's /proc. */
static int find(unsigned int cpu)
{
	struct dirent *entry;
	DIR *proc = opendir("/proc");
	char want[32];
	int pid = -1;

	if (!proc)
		return -1;
	snprintf(want, sizeof(want), "ksoftirqd/%u", cpu);
	while (pid < 0 && (entry = readdir(proc))) {
		if (isdigit((unsigned char)entry->d_name[0]) && comm_is(entry->d_name, want))
			pid = atoi(entry->d_name);
	}
	closedir(proc);
	return pid;
}

double ksoftirqd_seconds(unsigned int cpu)
{
	static int pids[FRAME_CPUS]; /* 0: not looked for yet; each CPU has one thread that asks */
	unsigned long long ns = 0;
	char path[64];
	FILE *f;

	if (!pids[cpu])
		pids[cpu] = find(cpu);
	if (pids[cpu] < 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/schedstat", pids[cpu]);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%llu", &ns) != 1)
		ns = 0;
	fclose(f);
	return ns * 1e-9;
}

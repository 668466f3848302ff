// SPDX-License-Identifier: BSD-2-Clause
/* What `xkv doctor` checks of the machine; doctor.h. */
#include <ctype.h>
#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

#define KERNEL_MAJOR 6
#define KERNEL_MINOR 1

/* A file that only root can read. */
static bool unreadable(struct finding *f, const char *what)
{
	say(f, WARNING, "%s: %s", what, strerror(errno));
	return errno == EACCES || errno == EPERM ? mend(f, "sudo xkv doctor") : true;
}

/* ---- BPF ---------------------------------------------------------------- */

static bool check_kernel(const struct patient *p, struct finding *f)
{
	unsigned int major = 0, minor = 0;
	char release[128];

	if (!read_text(p, release, sizeof(release), "/proc/sys/kernel/osrelease"))
		return unreadable(f, "kernel.osrelease");
	sscanf(release, "%u.%u", &major, &minor);
	if (major > KERNEL_MAJOR || (major == KERNEL_MAJOR && minor >= KERNEL_MINOR))
		return say(f, GOOD, "Linux %s", release);
	say(f, BAD, "Linux %s, and %d.%d or newer is needed", release, KERNEL_MAJOR, KERNEL_MINOR);
	return mend(f, "apt-get install linux-image-amd64    # or what your distribution has");
}

static bool check_btf(const struct patient *p, struct finding *f)
{
	char byte[2];

	if (read_text(p, byte, sizeof(byte), "/sys/kernel/btf/vmlinux"))
		return say(f, GOOD, "/sys/kernel/btf/vmlinux is there");
	say(f, BAD, "/sys/kernel/btf/vmlinux: %s", strerror(errno));
	return mend(f,
		    "boot a kernel with CONFIG_DEBUG_INFO_BTF=y; those of distributions have it");
}

static bool check_bpffs(const struct patient *p, struct finding *f)
{
	static char mounts[1 << 16];
	char *save, *place, *type;

	if (!read_text(p, mounts, sizeof(mounts), "/proc/self/mounts"))
		return unreadable(f, "/proc/self/mounts");
	for (char *line = strtok_r(mounts, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *word;

		strtok_r(line, " ", &word);
		place = strtok_r(NULL, " ", &word);
		type = strtok_r(NULL, " ", &word);
		if (place && type && !strcmp(type, "bpf") && !strcmp(place, "/sys/fs/bpf"))
			return say(f, GOOD, "mounted on /sys/fs/bpf");
	}
	say(f, BAD, "no bpf file system on /sys/fs/bpf");
	return mend(f, "mount -t bpf bpf /sys/fs/bpf");
}

/* The two of net.core are shown in the first network namespace only. */
static bool check_jit(const struct patient *p, struct finding *f)
{
	long long on;

	if (!read_number(p, &on, "/proc/sys/net/core/bpf_jit_enable"))
		return errno != ENOENT && unreadable(f, "net.core.bpf_jit_enable");
	if (on == 1)
		return say(f, GOOD, "net.core.bpf_jit_enable is 1");
	say(f, on ? WARNING : BAD, "net.core.bpf_jit_enable is %lld%s", on,
	    on ? ": each program that is loaded is written to the log" : "");
	return mend(f, "sysctl -w net.core.bpf_jit_enable=1");
}

/* 1 hardens programs of users without rights only. */
static bool check_harden(const struct patient *p, struct finding *f)
{
	long long level;

	if (!read_number(p, &level, "/proc/sys/net/core/bpf_jit_harden"))
		return errno != ENOENT && unreadable(f, "net.core.bpf_jit_harden");
	if (level < 2)
		return say(f, GOOD, "net.core.bpf_jit_harden is %lld", level);
	say(f, WARNING, "net.core.bpf_jit_harden is %lld", level);
	return mend(f, "sysctl -w net.core.bpf_jit_harden=1, then restart xkvd");
}

static bool check_bpf_stats(const struct patient *p, struct finding *f)
{
	long long on;

	if (!read_number(p, &on, "/proc/sys/kernel/bpf_stats_enabled"))
		return false;
	say(f, on ? WARNING : GOOD, "kernel.bpf_stats_enabled is %lld", on);
	return mend(f, "sysctl -w kernel.bpf_stats_enabled=0");
}

/* ---- rights ------------------------------------------------------------- */

/* The text behind "NAME:" in a file of such lines. */
static bool machine_read_line(const struct patient *p, const char *file, const char *name,
			      char *text, size_t len)
{
	static char all[1 << 16];
	char *save;

	if (!read_text(p, all, sizeof(all), "%s", file))
		return false;
	for (char *line = strtok_r(all, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (strncmp(line, name, strlen(name)) != 0 || line[strlen(name)] != ':')
			continue;
		line += strlen(name) + 1;
		snprintf(text, len, "%s", line + strspn(line, " \t"));
		return true;
	}
	errno = ENOENT;
	return false;
}

static bool check_capabilities(const struct patient *p, struct finding *f)
{
	unsigned long long has, net = 1ULL << CAP_NET_ADMIN, sys = 1ULL << CAP_SYS_ADMIN;
	char text[64];

	if (!machine_read_line(p, "/proc/self/status", "CapEff", text, sizeof(text)))
		return unreadable(f, "/proc/self/status");
	has = strtoull(text, NULL, 16);
	if (has & net && has & sys)
		return say(f, GOOD, "CAP_NET_ADMIN and CAP_SYS_ADMIN are held");
	say(f, WARNING, "without%s%s", has & net ? "" : " CAP_NET_ADMIN",
	    has & sys ? "" : " CAP_SYS_ADMIN");
	return mend(f, "sudo xkv doctor; of a container: docs/operations.md, Without root");
}

/* Since Linux 5.11 memory of maps counts for the cgroup, and not for this limit. */
static bool check_memlock(const struct patient *p, struct finding *f)
{
	char text[128], soft[32];
	static char limits[4096];
	const char *line;

	if (!read_text(p, limits, sizeof(limits), "/proc/self/limits"))
		return false;
	line = strstr(limits, "Max locked memory");
	if (!line || sscanf(line, "Max locked memory %31s", soft) != 1)
		return false;
	snprintf(text, sizeof(text), "%s%s", soft, isdigit((unsigned char)*soft) ? " bytes" : "");
	return say(f, GOOD, "%s; maps do not count for it", text);
}

/* ---- the clock and the CPUs ---------------------------------------------- */

static bool check_clock(const struct patient *p, struct finding *f)
{
	static const char *const fast[] = { "tsc", "kvm-clock", "arch_sys_counter",
					    "hyperv_clocksource_tsc_page" };
	const char *dir = "/sys/devices/system/clocksource/clocksource0";
	char now[64], all[256];

	if (!read_text(p, now, sizeof(now), "%s/current_clocksource", dir))
		return false;
	for (size_t i = 0; i < sizeof(fast) / sizeof(fast[0]); i++)
		if (!strcmp(now, fast[i]))
			return say(f, GOOD, "%s", now);
	say(f, WARNING, "%s", now);
	if (read_text(p, all, sizeof(all), "%s/available_clocksource", dir) && strstr(all, "tsc"))
		return mend(f, "echo tsc > %s/current_clocksource", dir);
	return mend(f, "dmesg | grep -i clocksource    # says why the CPU's own was given up");
}

struct governors {
	unsigned int cpus, others;
	char other[32];
};

static void read_governors(const struct patient *p, struct governors *g)
{
	static struct cpus cpus;
	char text[1024];

	*g = (struct governors){};
	if (!read_text(p, text, sizeof(text), "/sys/devices/system/cpu/online"))
		return;
	cpus_parse(&cpus, text);
	for (int i = 0; i < CPUS_MAX; i++) {
		if (!cpus.has[i] ||
		    !read_text(p, text, sizeof(g->other),
			       "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor", i))
			continue;
		g->cpus++;
		if (!strcmp(text, "performance"))
			continue;
		g->others++;
		memcpy(g->other, text, sizeof(g->other));
	}
}

static bool check_governor(const struct patient *p, struct finding *f)
{
	struct governors g;

	read_governors(p, &g);
	if (!g.cpus)
		return say(f, GOOD, "the platform decides: no cpufreq here");
	if (!g.others)
		return say(f, GOOD, "performance");
	say(f, WARNING, "%s on %u of %u CPUs", g.other, g.others, g.cpus);
	return mend(f, "cpupower frequency-set -g performance");
}

/* ---- memory ------------------------------------------------------------- */

static bool check_overcommit(const struct patient *p, struct finding *f)
{
	long long mode;

	if (!read_number(p, &mode, "/proc/sys/vm/overcommit_memory"))
		return false;
	say(f, mode == 2 ? WARNING : GOOD, "vm.overcommit_memory is %lld", mode);
	return mend(f, "sysctl -w vm.overcommit_memory=0");
}

static bool kilobytes(const struct patient *p, const char *name, unsigned long long *n)
{
	char text[64];

	return machine_read_line(p, "/proc/meminfo", name, text, sizeof(text)) &&
	       sscanf(text, "%llu", n) == 1;
}

static bool check_swap(const struct patient *p, struct finding *f)
{
	unsigned long long total, free_kb;
	long long swappiness = 60;

	if (!kilobytes(p, "SwapTotal", &total) || !kilobytes(p, "SwapFree", &free_kb))
		return false;
	if (!total)
		return say(f, GOOD, "none");
	read_number(p, &swappiness, "/proc/sys/vm/swappiness");
	say(f, free_kb < total ? WARNING : GOOD, "%llu of %llu MiB in use, vm.swappiness is %lld",
	    (total - free_kb) >> 10, total >> 10, swappiness);
	return mend(f, "sysctl -w vm.swappiness=1 && swapoff -a && swapon -a");
}

const struct check machine_checks[] = {
	{ "kernel", check_kernel, "the BPF programs need what Linux 6.1 brought" },
	{ "btf", check_btf, "BPF programs are fitted to the kernel by its type information" },
	{ "bpffs", check_bpffs, "the store is pinned there, so that it outlives xkvd" },
	{ "jit", check_jit, "without it BPF programs are interpreted, at a fraction of the speed" },
	{ "jit-harden", check_harden,
	  "constants of all programs are blinded, which makes each packet slower" },
	{ "bpf-stats", check_bpf_stats, "the kernel reads the clock twice for each packet" },
	{ "capabilities", check_capabilities,
	  "xkvd needs them, and this command to see the XDP hook" },
	{ "memlock", check_memlock, "the memory of BPF maps is charged to the cgroup instead" },
	{ "clock", check_clock, "commands over TCP read the clock, and to read this one is slow" },
	{ "governor", check_governor,
	  "CPUs that change their frequency make latency uneven and lower the rate" },
	{ "overcommit", check_overcommit,
	  "allocations of xkvd fail although there is memory left" },
	{ "swap", check_swap,
	  "the store is never swapped out, but xkvd is: what it answers waits for the disk" },
	{},
};

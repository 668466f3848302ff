// SPDX-License-Identifier: BSD-2-Clause
/*
 * Linked into the coverage build, where the linker lets these functions take the place of others
 * (--wrap).
 */
#include <string.h>
#include <unistd.h>

#include <bpf/libbpf.h>

#define COUNTERS "/sys/fs/bpf/xkv-coverage"

void __gcov_dump(void);
_Noreturn void __real__exit(int status);
_Noreturn void __wrap__exit(int status);
int __real_bpf_map__set_pin_path(struct bpf_map *map, const char *path);
int __wrap_bpf_map__set_pin_path(struct bpf_map *map, const char *path);

/* Writes gcov's counts, as exit() does. */
_Noreturn void __wrap__exit(int status)
{
	__gcov_dump();
	__real__exit(status);
}

/*
 * All that load the BPF programs share one map of their counters, which outlives them.  Without its
 * pin each has its own.
 */
int __wrap_bpf_map__set_pin_path(struct bpf_map *map, const char *path)
{
	if (!strcmp(bpf_map__name(map), ".data.profc"))
		path = access(COUNTERS, F_OK) ? NULL : COUNTERS;
	return __real_bpf_map__set_pin_path(map, path);
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * Linked into the coverage build with --wrap=bpf_map__set_pin_path: all that load the BPF programs
 * share one map of their counters, which outlives them.  Without its pin each has its own.
 */
#include <string.h>
#include <unistd.h>

#include <bpf/libbpf.h>

#define COUNTERS "/sys/fs/bpf/xkv-coverage"

int __real_bpf_map__set_pin_path(struct bpf_map *map, const char *path);
int __wrap_bpf_map__set_pin_path(struct bpf_map *map, const char *path);

int __wrap_bpf_map__set_pin_path(struct bpf_map *map, const char *path)
{
	if (!strcmp(bpf_map__name(map), ".data.profc"))
		path = access(COUNTERS, F_OK) ? NULL : COUNTERS;
	return __real_bpf_map__set_pin_path(map, path);
}

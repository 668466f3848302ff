// SPDX-License-Identifier: BSD-2-Clause
#include "grace.h"

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

#include <bpf/bpf.h>

/*
 * Updating a map of maps makes the kernel wait for running programs, so that user space may reuse
 * the old inner map afterwards (maybe_wait_bpf_programs()).  The map serves only this purpose.
 * membarrier() would do the same, but not on a kernel that was started with nohz_full.
 */
int grace_wait(void)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts);
	int inner = bpf_map_create(BPF_MAP_TYPE_ARRAY, "xkv_wait_in", 4, 4, 1, NULL), outer, ret;
	uint32_t zero = 0;

	if (inner < 0)
		return inner;
	opts.inner_map_fd = (uint32_t)inner;
	outer = bpf_map_create(BPF_MAP_TYPE_ARRAY_OF_MAPS, "xkv_wait", 4, 4, 1, &opts);
	ret = outer < 0 ? outer : bpf_map_update_elem(outer, &zero, &inner, BPF_ANY);
	if (outer >= 0)
		close(outer);
	close(inner);
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The least that a kernel refuses if it refuses all programs that trace. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

SEC("iter/bpf_map_elem")
int trace(void *ctx)
{
	(void)ctx;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

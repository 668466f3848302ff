/* SPDX-License-Identifier: BSD-2-Clause */
#include "tracing.h"

#include <errno.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

bool kernel_traces(void)
{
	struct bpf_insn code[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	LIBBPF_OPTS(bpf_prog_load_opts, opts, .expected_attach_type = BPF_TRACE_ITER,
		    .attach_btf_id = libbpf_find_vmlinux_btf_id("bpf_map_elem", BPF_TRACE_ITER));
	int fd = bpf_prog_load(BPF_PROG_TYPE_TRACING, "trace", "GPL", code, 2, &opts);

	if (fd >= 0)
		close(fd);
	return fd != -EPERM;
}

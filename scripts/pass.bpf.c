// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Passes every frame.  The client side of the test bed carries it, because a
 * veth device transmits the frames of XDP_TX only to a peer that runs XDP too.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int xkv_pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

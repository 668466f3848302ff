// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Passes every frame.  It is attached on the client side of the test bed, because
 * a veth device sends frames of XDP_TX only to a peer that has an XDP program.
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

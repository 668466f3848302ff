// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The upper limit of the frame loop: a server that only sends every frame back.  The difference to
 * a store is the cost of the store.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "swap.h"

SEC("xdp")
int echo(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;

	if (data + FRAME_HDR > (void *)(long)ctx->data_end || !to_server(data))
		return XDP_PASS;
	swap_addresses(data);
	return XDP_TX;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

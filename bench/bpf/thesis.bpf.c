// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The store that the thesis describes, as a baseline: a BPF_MAP_TYPE_HASH with 16-byte keys and
 * 128-byte values, looked up in XDP and answered with XDP_TX.  It is as fast as that design can be:
 * fields at fixed offsets, only the checks that the verifier requires, a UDP checksum of 0 in
 * replies, and SETs that overwrite the value in place.  It is not correct: readers see torn values,
 * and the memory of a deleted element may belong to another key when it is read.  Requests and
 * replies have the same sizes as those of xkv.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "swap.h"

struct key {
	__u64 word[FRAME_KEY_SIZE / 8];
};

struct value {
	__u64 word[FRAME_VALUE_SIZE / 8];
};

/* The store.  baseline.c sets its size, and BPF_F_NO_PREALLOC for `thesis-nopre`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct key);
	__type(value, struct value);
} kv SEC(".maps");

static __always_inline int miss(struct xdp_md *ctx)
{
	void *data;

	if (bpf_xdp_adjust_tail(ctx, FRAME_SHORT_BYTES - FRAME_GET_BYTES))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	if (data + FRAME_SHORT_BYTES > (void *)(long)ctx->data_end)
		return XDP_DROP;
	return fixed_reply(data, FRAME_GET_BYTES, FRAME_SHORT_BYTES, XKV_MISS);
}

static __always_inline int get(struct xdp_md *ctx, void *data)
{
	struct value *value = bpf_map_lookup_elem(&kv, data + FRAME_KEY);

	if (!value)
		return miss(ctx);
	if (bpf_xdp_adjust_tail(ctx, FRAME_HIT_BYTES - FRAME_GET_BYTES))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	if (data + FRAME_HIT_BYTES > (void *)(long)ctx->data_end)
		return XDP_DROP;
#pragma unroll
	for (int i = 0; i < FRAME_VALUE_SIZE / 8; i++)
		FRAME_U64(data, FRAME_REPLY_VALUE + 8 * i) = value->word[i];
	return fixed_reply(data, FRAME_GET_BYTES, FRAME_HIT_BYTES, XKV_OK);
}

static __always_inline int set(struct xdp_md *ctx, void *data)
{
	struct value *value;
	__u8 status = XKV_OK;

	if (data + FRAME_SET_BYTES > (void *)(long)ctx->data_end)
		return XDP_PASS;
	value = bpf_map_lookup_elem(&kv, data + FRAME_KEY);
	if (value) {
#pragma unroll
		for (int i = 0; i < FRAME_VALUE_SIZE / 8; i++)
			value->word[i] = FRAME_U64(data, FRAME_REQUEST_VALUE + 8 * i);
	} else if (bpf_map_update_elem(&kv, data + FRAME_KEY, data + FRAME_REQUEST_VALUE,
				       BPF_ANY)) {
		status = XKV_NO_MEMORY;
	}
	fixed_reply(data, FRAME_SET_BYTES, FRAME_SHORT_BYTES, status);
	return bpf_xdp_adjust_tail(ctx, FRAME_SHORT_BYTES - FRAME_SET_BYTES) ? XDP_DROP : XDP_TX;
}

SEC("xdp")
int thesis(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;

	if (data + FRAME_GET_BYTES > (void *)(long)ctx->data_end || !to_server(data))
		return XDP_PASS;
	if (FRAME_U8(data, FRAME_OP) == XKV_OP_SET)
		return set(ctx, data);
	return get(ctx, data);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

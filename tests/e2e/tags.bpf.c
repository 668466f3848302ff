// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Makes an interface one of VLAN 100, where the kernel has no devices for these: tags what leaves
 * (egress), and takes the tag off what comes (ingress), behind all that looks at it before.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

SEC("push")
int push_tag(struct __sk_buff *skb)
{
	if (!skb->vlan_present) /* else it has been here */
		bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), 100);
	return TC_ACT_UNSPEC;
}

SEC("pop")
int pop_tag(struct __sk_buff *skb)
{
	bpf_skb_vlan_pop(skb);
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

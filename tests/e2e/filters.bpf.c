// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Filters of tc, behind all that looks at a packet before.  Two make an interface one of VLAN 100,
 * where the kernel has no devices for these: they tag what leaves (egress), and take the tag off
 * what comes (ingress).  One has the kernel miss bare acknowledgements.
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

SEC("drop_acks")
int drop_ack(struct __sk_buff *skb)
{
	/* IPv4 and TCP, with time stamps */
	return skb->len == ETH_HLEN + 20 + 32 ? TC_ACT_SHOT : TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

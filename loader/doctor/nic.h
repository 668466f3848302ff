/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernel's information about a network interface, except the files of sysfs. */
#ifndef XKV_NIC_H
#define XKV_NIC_H

#include <stdbool.h>
#include <stdint.h>

/* Offloads that matter to XDP. */
enum nic_feature { NIC_LRO, NIC_GRO_HW, NIC_RX_VLAN, NIC_TX_CHECKSUM, NIC_FEATURES };

enum nic_state { NIC_UNKNOWN, NIC_OFF, NIC_ON };

struct nic_queues {
	unsigned int rx, tx, combined;
};

/* `udp_hash`: fields that UDP packets are spread over the queues by. */
#define NIC_HASH_ADDRESSES 1
#define NIC_HASH_PORTS	   2

/* `xdp_features`: NETDEV_XDP_ACT_... of the kernel's netdev family. */
#define NIC_XDP_BASIC	 1
#define NIC_XDP_REDIRECT 2
#define NIC_XDP_XMIT	 4

struct nic {
	bool known; /* the interface is there */
	bool up;
	bool has_sysfs; /* /sys is of its network namespace */
	long mtu;
	char driver[32]; /* "" = unknown */
	enum nic_state feature[NIC_FEATURES];
	bool fixed[NIC_FEATURES];		       /* it cannot be changed */
	bool has_queues, has_rings, has_hash, has_xdp; /* the following fields are known */
	struct nic_queues queues, queues_max;
	unsigned int rx_ring, rx_ring_max;
	unsigned int udp_hash;
	uint64_t xdp_features;
	unsigned int program; /* on the XDP hook, 0 = none */
	char program_name[32];
	bool generic; /* that one is not in the driver */
	/* the counter of lost packets (ethtool -S) that is the highest, and how many it has */
	char loss[64];
	uint64_t lost;
};

/* Asks the kernel.  Unknown fields stay empty. */
void nic_read(struct nic *nic, const char *interface);
/* Calls fn for each receive queue whose packets ethtool -S counts, and their number so far. */
void nic_queues(const char *interface, void (*fn)(void *arg, unsigned int queue, uint64_t packets),
		void *arg);
/*
 * The same as nic_read() from files of `dir`/ethtool/INTERFACE, which hold what these commands have
 * printed: driver (ethtool -i), features (-k), channels (-l), rings (-g), statistics (-S), hash (-n
 * INTERFACE rx-flow-hash udp4), link (ip -d -o link show), xdp (the names of xdp-features).
 */
void nic_recorded(struct nic *nic, const char *dir, const char *interface);

#endif

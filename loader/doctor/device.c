// SPDX-License-Identifier: BSD-2-Clause
/*
 * What `xkv doctor` checks of an interface; doctor.h.  What drivers want is from their sources:
 * docs/tuning.md names for each where it stands.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

#define NET	    "/sys/class/net/"
#define UDP_MTU	    1500 /* of the longest datagrams that clients send */
#define RING_LEAST  1024
#define RING_ENOUGH 2048

/* ---- interrupts of the device ------------------------------------------- */

/* The interrupts of a device, and the CPUs that they go to. */
struct irqs {
	const struct patient *p;
	unsigned int count;
	struct cpus at;
};

static bool note_irq(void *arg, const char *number)
{
	static struct cpus one;
	struct irqs *irqs = arg;
	char list[1024];

	if (!read_text(irqs->p, list, sizeof(list), "/proc/irq/%s/effective_affinity_list", number))
		return true;
	cpus_parse(&one, list);
	irqs->count += one.count != 0;
	for (int i = 0; i < CPUS_MAX; i++) {
		irqs->at.count += one.has[i] && !irqs->at.has[i];
		irqs->at.has[i] |= one.has[i];
	}
	return true;
}

/* Those of a device on virtio are its parent's. */
static const struct irqs *irqs_of(const struct patient *p)
{
	static struct irqs irqs;
	char dir[256];

	irqs = (struct irqs){ .p = p };
	snprintf(dir, sizeof(dir), NET "%s/device/msi_irqs", p->interface);
	each_numbered(p, dir, note_irq, &irqs);
	snprintf(dir, sizeof(dir), NET "%s/device/../msi_irqs", p->interface);
	if (!irqs.count)
		each_numbered(p, dir, note_irq, &irqs);
	return &irqs;
}

/* ---- drivers ------------------------------------------------------------ */

/* What a driver makes of an offload when a program is attached. */
enum offload {
	MAY_STAY,      /* it turns the offload off itself, or has none */
	REFUSES,       /* the program */
	REFUSES_FIXED, /* the program, if the offload cannot be turned off */
};

struct driver {
	const char *name;
	long mtu; /* the largest with one buffer a frame */
	enum offload lro, gro_hw;
	/* What it wants of queues beside one for each CPU.  NULL: nothing. */
	bool (*queues)(const struct patient *p, struct finding *f);
};

static unsigned int rx_queues(const struct nic *nic)
{
	return nic->queues.rx + nic->queues.combined;
}

/* The queues that ethtool -L can set, or 0. */
static unsigned int queues_max(const struct nic *nic)
{
	return nic->queues_max.combined ? nic->queues_max.combined : nic->queues_max.rx;
}

/* The driver makes a transmit queue for XDP beside each of its queues. */
static bool ena_queues(const struct patient *p, struct finding *f)
{
	unsigned int now = rx_queues(&p->nic), max = queues_max(&p->nic);

	if (2 * now <= max)
		return false;
	if (max < 2)
		return say(f, BAD, "%u of at most %u: half of them, and there is no half", now,
			   max);
	say(f, BAD, "%u of at most %u: with more than half it refuses XDP", now, max);
	return mend(f, "ethtool -L %s combined %u", p->interface, max / 2);
}

static bool gve_queues(const struct patient *p, struct finding *f)
{
	const struct nic *nic = &p->nic;
	unsigned int rx = nic->queues.rx, tx = nic->queues.tx, max = nic->queues_max.tx;

	if (nic->queues.combined)
		return ena_queues(p, f);
	if (rx == tx && 2 * tx <= max)
		return false;
	say(f, BAD, "RX %u, TX %u of at most %u: it wants as many of both, and at most half", rx,
	    tx, max);
	return mend(f, "ethtool -L %s rx %u tx %u", p->interface, max / 2, max / 2);
}

/*
 * It redirects by the queue that has the number of the CPU, and drops what is redirected on a CPU
 * with a higher one.
 */
static bool numbered_queues(const struct patient *p, struct finding *f)
{
	unsigned int now = rx_queues(&p->nic), last = 0, cpus = cpus_online(p);
	const struct irqs *irqs = irqs_of(p);

	for (unsigned int i = 0; i < CPUS_MAX; i++)
		if (irqs->at.has[i])
			last = i;
	if (last < now)
		return false;
	say(f, WARNING,
	    "%u, and interrupts go to CPU %u: what batched mode redirects there is lost", now,
	    last);
	return mend(f, "ethtool -L %s combined %u, or `batch off`", p->interface,
		    last < cpus ? cpus : last + 1);
}

/* It takes as many transmit queues again. */
static bool bnxt_queues(const struct patient *p, struct finding *f)
{
	const struct nic_queues *now = &p->nic.queues, *most = &p->nic.queues_max;
	unsigned int cpus = cpus_online(p), max = most->combined;

	if (!now->combined || now->rx || now->tx) {
		say(f, BAD, "RX %u, TX %u: it refuses XDP unless they are combined", now->rx,
		    now->tx);
		return mend(f, "ethtool -L %s rx 0 tx 0 combined %u", p->interface,
			    max / 2 < cpus ? max / 2 : cpus);
	}
	if (most->tx > max)
		max = most->tx;
	if (2 * now->combined <= max)
		return false;
	say(f, WARNING, "%u of at most %u: it takes as many for XDP, or refuses", now->combined,
	    max);
	return mend(f, "ethtool -L %s combined %u", p->interface, max / 2);
}

static bool virtio_queues(const struct patient *p, struct finding *f)
{
	unsigned int now = rx_queues(&p->nic), max = queues_max(&p->nic), cpus = cpus_online(p);

	if (now + cpus <= max)
		return false;
	say(f, WARNING,
	    "%u of at most %u, %u CPUs: no transmit queue for each CPU is left, so XDP"
	    " shares those of the stack, under a lock",
	    now, max, cpus);
	if (max > cpus)
		return mend(f, "ethtool -L %s combined %u", p->interface, max - cpus);
	return mend(f, "give the virtual machine %u queue pairs (libvirt: <driver queues='%u'/>)",
		    2 * cpus, 2 * cpus);
}

#define IXGBE_XDP_QUEUES 64

static bool ixgbe_queues(const struct patient *p, struct finding *f)
{
	unsigned int cpus = cpus_online(p);

	if (cpus <= IXGBE_XDP_QUEUES)
		return false;
	say(f, cpus > 2 * IXGBE_XDP_QUEUES ? BAD : WARNING,
	    "%u CPUs: it has %d queues for XDP, shares them under a lock, and refuses more than %d CPUs",
	    cpus, IXGBE_XDP_QUEUES, 2 * IXGBE_XDP_QUEUES);
	return mend(f, "boot with nr_cpus=%d, or use another card", IXGBE_XDP_QUEUES);
}

/* It takes a transmit queue for each CPU beside those of the stack. */
static bool ice_queues(const struct patient *p, struct finding *f)
{
	unsigned int max = queues_max(&p->nic), cpus = cpus_online(p);

	if (max >= cpus)
		return false;
	return say(f, WARNING,
		   "at most %u for %u CPUs: with too few it locks those of XDP, and with"
		   " less than one for two CPUs it refuses XDP",
		   max, cpus);
}

static const struct driver drivers[] = {
	{ "veth", 3506, MAY_STAY, MAY_STAY, NULL },
	{ "virtio_net", 3506, REFUSES_FIXED, REFUSES_FIXED, virtio_queues },
	{ "mlx5_core", 3498, REFUSES, REFUSES, numbered_queues },
	{ "mlx4_en", 3498, MAY_STAY, MAY_STAY, NULL },
	{ "ena", 3498, MAY_STAY, MAY_STAY, ena_queues },
	{ "bnxt_en", 3502, MAY_STAY, MAY_STAY, bnxt_queues },
	{ "i40e", 3046, MAY_STAY, MAY_STAY, numbered_queues },
	{ "ice", 3046, MAY_STAY, MAY_STAY, ice_queues },
	{ "igb", 3046, MAY_STAY, MAY_STAY, NULL },
	{ "igc", 1500, MAY_STAY, MAY_STAY, NULL },
	{ "ixgbe", 3050, REFUSES, MAY_STAY, ixgbe_queues },
	{ "ixgbevf", 3050, MAY_STAY, MAY_STAY, NULL },
	{ "gve", 2032, REFUSES, REFUSES, gve_queues },
	{ "mana", 3506, MAY_STAY, MAY_STAY, NULL },
	{ "hv_netvsc", 3506, MAY_STAY, MAY_STAY, NULL },
};

static const struct driver *driver_of(const struct patient *p)
{
	for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
		if (!strcmp(drivers[i].name, p->nic.driver))
			return &drivers[i];
	return NULL;
}

/* Loopback has nothing of what the other checks look at. */
static bool is_nic(const struct patient *p)
{
	return p->interface && p->nic.known && strcmp(p->interface, "lo") != 0;
}

/* A number of its directory in sysfs. */
static bool net_number(const struct patient *p, long long *n, const char *name)
{
	return is_nic(p) && p->nic.has_sysfs && read_number(p, n, NET "%s/%s", p->interface, name);
}

/* ---- the interface ------------------------------------------------------ */

static bool check_interface(const struct patient *p, struct finding *f)
{
	if (!p->interface)
		return false;
	if (!p->nic.known) {
		say(f, BAD, "there is no interface %s", p->interface);
		return mend(f, "ip -br link    # lists them");
	}
	if (!is_nic(p))
		return say(f, GOOD, "loopback: xkvd answers there through the kernel's stack");
	if (!p->nic.up) {
		say(f, BAD, "%s is down", p->interface);
		return mend(f, "ip link set dev %s up", p->interface);
	}
	return say(f, GOOD, "%s is up", p->interface);
}

static bool check_driver(const struct patient *p, struct finding *f)
{
	const struct nic *nic = &p->nic;
	const struct driver *d = driver_of(p);
	const char *name = *nic->driver ? nic->driver : "unknown driver";

	if (!is_nic(p))
		return false;
	if (nic->has_xdp && !(nic->xdp_features & NIC_XDP_BASIC) && !d) {
		say(f, BAD, "%s has no native XDP, so that xkvd falls back to generic XDP", name);
		return mend(f, "use a card whose driver has it: docs/operations.md, Network cards");
	}
	/* of one that depends on settings: of gve on the format of its queues */
	if (nic->has_xdp && !(nic->xdp_features & NIC_XDP_BASIC))
		return say(f, BAD, "%s has no native XDP as it is set now", name);
	if (!strcmp(name, "veth"))
		return say(f, GOOD,
			   "veth has native XDP; replies arrive if its peer has a program, too");
	if (nic->has_xdp)
		return say(f, GOOD, "%s has native XDP%s", name,
			   nic->xdp_features & NIC_XDP_REDIRECT ? ", and can redirect" : "");
	if (d)
		return say(f, GOOD, "%s has native XDP, as far as is known", name);
	say(f, WARNING, "nothing is known of %s", name);
	return mend(f, "xkvd --interface %s --mode native    # ends with an error if it has none",
		    p->interface);
}

/* The id of the program that xkvd has on this interface, 0 = none.  False: it has not said so. */
static bool xkvds_program(const struct patient *p, unsigned int *program)
{
	char line[32], name[32];
	const char *value;

	*program = 0;
	if (!p->is_here)
		return false;
	if (!strcmp(fact(&p->info, "xkv_interface"), p->interface))
		return sscanf(fact(&p->info, "xkv_program_id"), "%u", program) == 1;
	for (unsigned int i = 0;; i++) {
		snprintf(line, sizeof(line), "xkv_interface%u", i);
		value = fact(&p->info, line);
		if (sscanf(value, "name=%31[^,]", name) != 1)
			return false;
		value = strstr(value, "program_id=");
		if (!strcmp(name, p->interface))
			return value && sscanf(value, "program_id=%u", program) == 1;
	}
}

static bool check_hook(const struct patient *p, struct finding *f)
{
	const struct nic *nic = &p->nic;
	unsigned int xkvds;

	if (!is_nic(p))
		return false;
	if (!nic->program)
		return say(f, GOOD, "free");
	if (!*nic->program_name) {
		say(f, WARNING, "program %u, whose name only root can see", nic->program);
		return mend(f, "sudo xkv doctor %s", p->interface);
	}
	if (!strcmp(nic->program_name, "xdp_dispatcher"))
		return say(f, GOOD, "libxdp's dispatcher (program %u), which shares it",
			   nic->program);
	if (strcmp(nic->program_name, "xkv_xdp") != 0) {
		say(f, BAD, "program %u, %s, is there", nic->program, nic->program_name);
		return mend(f, "ip link set dev %s xdp off    # ask its owner first", p->interface);
	}
	if (xkvds_program(p, &xkvds) && xkvds != nic->program) {
		say(f, BAD, "program %u, %s, is there, and not that of the xkvd that answers",
		    nic->program, nic->program_name);
		return mend(f, "ip link set dev %s xdp off    # see if another xkvd runs",
			    p->interface);
	}
	if (!nic->generic)
		return say(f, GOOD, "xkv's (program %u), in the driver", nic->program);
	say(f, WARNING, "xkv's (program %u), but in generic mode", nic->program);
	return mend(f, "mend what else is bad, and restart xkvd");
}

static bool check_mtu(const struct patient *p, struct finding *f)
{
	const struct driver *d = driver_of(p);
	long mtu = p->nic.mtu, limit = d ? d->mtu : 3498;

	if (!is_nic(p))
		return false;
	if (mtu > limit) {
		say(f, d ? BAD : WARNING, "%ld, and %s takes at most %ld", mtu,
		    d ? d->name : "a driver with one page for each frame", limit);
		return mend(f, "ip link set dev %s mtu %d", p->interface, UDP_MTU);
	}
	if (mtu >= UDP_MTU)
		return say(f, GOOD, "%ld", mtu);
	say(f, WARNING, "%ld: values that fill a datagram cannot be fetched over UDP", mtu);
	return mend(f, "ip link set dev %s mtu %d", p->interface, UDP_MTU);
}

/* ---- offloads ------------------------------------------------------------ */

static bool check_offload(const struct patient *p, struct finding *f, enum nic_feature feature,
			  enum offload rule, const char *option)
{
	enum nic_state state = p->nic.feature[feature];
	bool fixed = p->nic.fixed[feature];

	if (!is_nic(p) || state == NIC_UNKNOWN)
		return false;
	if (state == NIC_OFF)
		return say(f, GOOD, "off");
	if (rule == MAY_STAY || (rule == REFUSES_FIXED && !fixed))
		return say(f, GOOD, "on; the driver turns it off for XDP");
	if (fixed) {
		say(f, BAD, "on, and cannot be turned off here: the driver refuses XDP");
		return mend(f, "turn it off at the host (qemu: guest_tso4=off,guest_tso6=off,"
			       "guest_ecn=off,guest_ufo=off)");
	}
	say(f, BAD, "on: the driver refuses XDP");
	return mend(f, "ethtool -K %s %s off", p->interface, option);
}

static bool check_lro(const struct patient *p, struct finding *f)
{
	const struct driver *d = driver_of(p);

	return check_offload(p, f, NIC_LRO, d ? d->lro : REFUSES, "lro");
}

static bool check_gro_hw(const struct patient *p, struct finding *f)
{
	const struct driver *d = driver_of(p);

	return check_offload(p, f, NIC_GRO_HW, d ? d->gro_hw : MAY_STAY, "rx-gro-hw");
}

static bool check_vlan(const struct patient *p, struct finding *f)
{
	if (!is_nic(p) || p->nic.feature[NIC_RX_VLAN] == NIC_UNKNOWN)
		return false;
	/* a veth only hands on what is beside the packet already */
	if (p->nic.feature[NIC_RX_VLAN] == NIC_OFF || !strcmp(p->nic.driver, "veth"))
		return say(f, GOOD, "tags stay in the packet");
	say(f, WARNING, "the card strips tags; of no account where requests come without");
	return mend(f, "ethtool -K %s rxvlan off txvlan off", p->interface);
}

static bool check_checksum(const struct patient *p, struct finding *f)
{
	if (!is_nic(p) || strcmp(p->nic.driver, "veth") != 0)
		return false;
	if (p->nic.feature[NIC_TX_CHECKSUM] != NIC_ON)
		return say(f, GOOD, "this end of the veth completes checksums");
	say(f, WARNING, "this end of the veth leaves checksums unfinished, so the other may, too");
	return mend(f, "ethtool -K %s tx off    # and of its peer", p->interface);
}

/* ---- queues -------------------------------------------------------------- */

static bool check_queues(const struct patient *p, struct finding *f)
{
	const struct driver *d = driver_of(p);
	unsigned int cpus = cpus_online(p), now = rx_queues(&p->nic), max = queues_max(&p->nic);
	unsigned int want = max < cpus ? max : cpus;

	if (!is_nic(p) || !p->nic.has_queues || !now)
		return false;
	if (d && d->queues && d->queues(p, f))
		return true;
	if (d && (d->queues == ena_queues || d->queues == gve_queues))
		want = max / 2 < cpus ? max / 2 : cpus;
	if (d && d->queues == virtio_queues)
		want = max - cpus < cpus ? max - cpus : cpus;
	if (now >= cpus || now >= want)
		return say(f, GOOD, "%u of at most %u, %u CPUs", now, max, cpus);
	say(f, WARNING, "%u of at most %u, %u CPUs", now, max, cpus);
	return mend(f, "ethtool -L %s %s %u", p->interface,
		    p->nic.queues_max.combined ? "combined" : "rx", want);
}

static bool check_rings(const struct patient *p, struct finding *f)
{
	unsigned int now = p->nic.rx_ring, max = p->nic.rx_ring_max;

	if (!is_nic(p) || !p->nic.has_rings || !max)
		return false;
	if (now >= RING_LEAST || now >= max)
		return say(f, GOOD, "RX %u of at most %u", now, max);
	say(f, WARNING, "RX %u of at most %u", now, max);
	return mend(f, "ethtool -G %s rx %u", p->interface, max < RING_ENOUGH ? max : RING_ENOUGH);
}

static bool check_rss(const struct patient *p, struct finding *f)
{
	if (!is_nic(p) || !p->nic.has_hash || rx_queues(&p->nic) < 2)
		return false;
	if (p->nic.udp_hash & NIC_HASH_PORTS)
		return say(f, GOOD, "by addresses and ports");
	say(f, WARNING, p->nic.udp_hash ? "by addresses only" : "not at all");
	return mend(f, "ethtool -N %s rx-flow-hash udp4 sdfn    # and udp6", p->interface);
}

/* ---- interrupts ----------------------------------------------------------- */

struct search {
	const struct patient *p;
	const char *name;
	bool found;
};

static bool compare_name(void *arg, const char *pid)
{
	struct search *s = arg;
	char name[32];

	s->found =
		read_text(s->p, name, sizeof(name), "/proc/%s/comm", pid) && !strcmp(name, s->name);
	return !s->found;
}

static bool process_runs(const struct patient *p, const char *name)
{
	struct search s = { .p = p, .name = name };

	each_numbered(p, "/proc", compare_name, &s);
	return s.found;
}

static bool check_interrupts(const struct patient *p, struct finding *f)
{
	unsigned int cpus = cpus_online(p), want, queues = rx_queues(&p->nic);
	bool balanced = process_runs(p, "irqbalance");
	const struct irqs *irqs;

	if (!is_nic(p) || !p->nic.has_sysfs)
		return false;
	irqs = irqs_of(p);
	if (!irqs->count)
		return false;
	want = queues < cpus ? queues : cpus;
	if (irqs->at.count >= want)
		return say(f, GOOD, "%u on %u CPUs%s", irqs->count, irqs->at.count,
			   balanced ? ", irqbalance runs" : "");
	say(f, WARNING, "%u on %u CPUs, for %u queues%s", irqs->count, irqs->at.count, queues,
	    balanced ? ", although irqbalance runs" : "");
	if (!balanced)
		return mend(f, "systemctl enable --now irqbalance");
	return mend(
		f,
		"systemctl stop irqbalance; echo CPU > /proc/irq/N/smp_affinity_list for each N "
		"of " NET "%s/device/msi_irqs",
		p->interface);
}

static bool check_numa(const struct patient *p, struct finding *f)
{
	static struct cpus near;
	unsigned int away = 0;
	const struct irqs *irqs;
	long long node;
	char list[1024];

	if (!net_number(p, &node, "device/numa_node"))
		return false;
	if (node < 0 ||
	    !read_text(p, list, sizeof(list), "/sys/devices/system/node/node%lld/cpulist", node))
		return say(f, GOOD, "the machine has one node");
	cpus_parse(&near, list);
	irqs = irqs_of(p);
	for (int i = 0; i < CPUS_MAX; i++)
		away += irqs->at.has[i] && !near.has[i];
	if (!away)
		return say(f, GOOD, "node %lld, CPUs %s", node, list);
	say(f, WARNING, "node %lld, CPUs %s, and interrupts go to %u CPUs of others", node, list,
	    away);
	return mend(f,
		    "echo %s > /proc/irq/N/smp_affinity_list for each N of " NET
		    "%s/device/msi_irqs",
		    list, p->interface);
}

static bool check_napi(const struct patient *p, struct finding *f)
{
	long long defer, timeout;

	if (!net_number(p, &defer, "napi_defer_hard_irqs") ||
	    !net_number(p, &timeout, "gro_flush_timeout"))
		return false;
	if (!defer && !timeout)
		return say(f, GOOD, "off: each packet may raise an interrupt");
	if (defer && timeout && timeout <= 1000000)
		return say(f, GOOD, "%lld polls, %lld ns", defer, timeout);
	say(f, WARNING, "napi_defer_hard_irqs is %lld, gro_flush_timeout %lld ns%s", defer, timeout,
	    defer && timeout ? ", which is added to the latency" : ": one without the other");
	return mend(f,
		    "echo 2 > " NET "%s/napi_defer_hard_irqs; echo 20000 > " NET
		    "%s/gro_flush_timeout",
		    p->interface, p->interface);
}

static bool check_losses(const struct patient *p, struct finding *f)
{
	const struct nic *nic = &p->nic;
	long long packets = 0;

	if (!is_nic(p))
		return false;
	if (!nic->lost)
		return say(f, GOOD, "none is counted");
	net_number(p, &packets, "statistics/rx_packets");
	say(f, nic->lost > (unsigned long long)packets / 10000 ? WARNING : GOOD,
	    "%s is %llu, of %lld packets", nic->loss, (unsigned long long)nic->lost, packets);
	return mend(f, "watch -d 'ethtool -S %s | grep %s'    # does it grow? then rings, queues",
		    p->interface, nic->loss);
}

const struct check device_checks[] = {
	{ "interface", check_interface, "the driver answers on an interface that is up" },
	{ "driver", check_driver, "in generic mode a packet is answered after an skb was made" },
	{ "xdp-hook", check_hook,
	  "an interface takes one program: behind another's, xkvd answers through the stack" },
	{ "mtu", check_mtu,
	  "native XDP wants a frame in one buffer, and clients send datagrams of 1500 bytes" },
	{ "lro", check_lro, "XDP cannot see packets that the card has merged" },
	{ "hw-gro", check_gro_hw, "XDP cannot see packets that the card has merged" },
	{ "vlan-offload", check_vlan,
	  "XDP does not see a tag that was stripped: xkvd answers what comes tagged" },
	{ "checksums", check_checksum, "the driver checks the sum of each request" },
	{ "queues", check_queues, "a queue is served by one CPU, and XDP sends by one of its own" },
	{ "rings", check_rings, "a burst that does not fit the ring is lost" },
	{ "rss", check_rss, "all requests from one host arrive at one queue, and one CPU" },
	{ "interrupts", check_interrupts, "queues whose interrupts go to one CPU share it" },
	{ "numa", check_numa, "each packet then crosses from one node to another" },
	{ "napi", check_napi, "a poll that is put off makes larger batches, and adds latency" },
	{ "losses", check_losses, "clients repeat what was lost, after a timeout" },
	{},
};

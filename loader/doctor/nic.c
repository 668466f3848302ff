// SPDX-License-Identifier: BSD-2-Clause
/*
 * Facts of an interface, by ethtool's ioctl, the netdev family of generic netlink (since Linux 6.3)
 * and libbpf; or what the tools of these names have printed on another machine.
 */
#include "nic.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/genetlink.h>
#include <linux/if_link.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

/* ---- both ways ---------------------------------------------------------- */

/* Names of an offload: the kernel's, and what `ethtool -k` prints. */
static const struct {
	const char *kernel, *printed;
} features[NIC_FEATURES] = {
	[NIC_LRO] = { "rx-lro", "large-receive-offload" },
	[NIC_GRO_HW] = { "rx-gro-hw", "rx-gro-hw" },
	[NIC_RX_VLAN] = { "rx-vlan-hw-parse", "rx-vlan-offload" },
	[NIC_TX_CHECKSUM] = { "tx-checksum-ip-generic", "tx-checksum-ip-generic" },
};

static bool has_word(const char *name, const char *const *words)
{
	for (; *words; words++)
		if (strstr(name, *words))
			return true;
	return false;
}

/* Does a counter of this name tell of packets that were lost on the way to or from the program? */
static bool tells_of_loss(const char *name)
{
	static const char *const losses[] = { "out_of_buffer", "discard",   "missed",
					      "no_buf",	       "no_dma",    "dropped",
					      "_drops",	       "crc_error", "allowance_exceeded",
					      "xdp_tx_full",   "xdp_full",  "alloc_fail",
					      "drop_cnt",      NULL };
	/*
	 * What a program has dropped was not lost; of bnxt the bytes of what it has discarded, and
	 * interrupts; of mlx5 frames to others.
	 */
	static const char *const others[] = { "xdp_drop", "bytes", "missed_irqs", "steer_missed",
					      NULL };

	return has_word(name, losses) && !has_word(name, others);
}

static void note_statistic(void *arg, const char *name, uint64_t n)
{
	struct nic *nic = arg;

	if (n <= nic->lost || !tells_of_loss(name))
		return;
	nic->lost = n;
	snprintf(nic->loss, sizeof(nic->loss), "%s", name);
}

/* A number of the interface's directory in sysfs; -1: it is not there. */
static long sysfs_number(const char *root, const char *interface, const char *name)
{
	char path[4096];
	long n = -1;
	FILE *f;

	snprintf(path, sizeof(path), "%s/sys/class/net/%s/%s", root, interface, name);
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fscanf(f, "%li", &n) != 1)
		n = -1;
	fclose(f);
	return n;
}

/* ---- ioctls -------------------------------------------------------------- */

struct nic_ask {
	int fd;
	struct ifreq req;
};

static bool nic_ask(struct nic_ask *a, void *command)
{
	a->req.ifr_data = command;
	return !ioctl(a->fd, SIOCETHTOOL, &a->req);
}

static unsigned int set_size(struct nic_ask *a, unsigned int set)
{
	struct {
		struct ethtool_sset_info head;
		__u32 size;
	} info = { .head = { .cmd = ETHTOOL_GSSET_INFO, .sset_mask = 1ULL << set } };

	return nic_ask(a, &info) && info.head.sset_mask ? info.size : 0;
}

/* The names of a set.  The caller frees them; NULL if there are none. */
static struct ethtool_gstrings *names_of(struct nic_ask *a, unsigned int set, unsigned int *count)
{
	struct ethtool_gstrings *names;

	*count = set_size(a, set);
	names = *count ? calloc(1, sizeof(*names) + (size_t)*count * ETH_GSTRING_LEN) : NULL;
	if (!names)
		return NULL;
	names->cmd = ETHTOOL_GSTRINGS;
	names->string_set = set;
	names->len = *count;
	if (nic_ask(a, names) && names->len == *count)
		return names;
	free(names);
	return NULL;
}

static void name_at(const struct ethtool_gstrings *names, unsigned int i, char *name)
{
	memcpy(name, names->data + (size_t)i * ETH_GSTRING_LEN, ETH_GSTRING_LEN);
	name[ETH_GSTRING_LEN] = 0;
}

static void ask_features(struct nic_ask *a, struct nic *nic)
{
	unsigned int count, blocks;
	struct ethtool_gstrings *names = names_of(a, ETH_SS_FEATURES, &count);
	struct ethtool_gfeatures *all;
	char name[ETH_GSTRING_LEN + 1];

	if (!names)
		return;
	blocks = (count + 31) / 32;
	all = calloc(1, sizeof(*all) + blocks * sizeof(all->features[0]));
	if (all) {
		all->cmd = ETHTOOL_GFEATURES;
		all->size = blocks;
	}
	for (unsigned int i = 0; all && nic_ask(a, all) && i < count; i++) {
		const struct ethtool_get_features_block *block = &all->features[i / 32];
		__u32 bit = 1U << i % 32;

		name_at(names, i, name);
		for (int k = 0; k < NIC_FEATURES; k++) {
			if (strcmp(name, features[k].kernel) != 0)
				continue;
			nic->feature[k] = block->active & bit ? NIC_ON : NIC_OFF;
			nic->fixed[k] = block->never_changed & bit || !(block->available & bit);
		}
	}
	free(all);
	free(names);
}

/* Calls fn for each counter of ethtool -S. */
static void each_statistic(struct nic_ask *a, void (*fn)(void *arg, const char *name, uint64_t n),
			   void *arg)
{
	unsigned int count;
	struct ethtool_gstrings *names = names_of(a, ETH_SS_STATS, &count);
	struct ethtool_stats *stats;
	char name[ETH_GSTRING_LEN + 1];

	if (!names)
		return;
	stats = calloc(1, sizeof(*stats) + (size_t)count * sizeof(stats->data[0]));
	if (stats) {
		stats->cmd = ETHTOOL_GSTATS;
		stats->n_stats = count;
		if (!nic_ask(a, stats) || stats->n_stats > count)
			count = 0;
	}
	for (unsigned int i = 0; stats && i < count; i++) {
		name_at(names, i, name);
		fn(arg, name, stats->data[i]);
	}
	free(stats);
	free(names);
}

static void ask_queues(struct nic_ask *a, struct nic *nic)
{
	struct ethtool_channels ch = { .cmd = ETHTOOL_GCHANNELS };
	struct ethtool_ringparam ring = { .cmd = ETHTOOL_GRINGPARAM };
	struct ethtool_rxnfc hash = { .cmd = ETHTOOL_GRXFH, .flow_type = UDP_V4_FLOW };

	nic->has_queues = nic_ask(a, &ch);
	nic->queues = (struct nic_queues){ ch.rx_count, ch.tx_count, ch.combined_count };
	nic->queues_max = (struct nic_queues){ ch.max_rx, ch.max_tx, ch.max_combined };
	nic->has_rings = nic_ask(a, &ring);
	nic->rx_ring = ring.rx_pending;
	nic->rx_ring_max = ring.rx_max_pending;
	nic->has_hash = nic_ask(a, &hash);
	if (hash.data & (RXH_IP_SRC | RXH_IP_DST))
		nic->udp_hash |= NIC_HASH_ADDRESSES;
	if (hash.data & (RXH_L4_B_0_1 | RXH_L4_B_2_3))
		nic->udp_hash |= NIC_HASH_PORTS;
}

static void ask_ioctls(struct nic *nic, const char *interface)
{
	struct ethtool_drvinfo driver = { .cmd = ETHTOOL_GDRVINFO };
	struct nic_ask a = { .fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) };

	if (a.fd < 0)
		return;
	snprintf(a.req.ifr_name, sizeof(a.req.ifr_name), "%s", interface);
	if (!ioctl(a.fd, SIOCGIFMTU, &a.req))
		nic->mtu = a.req.ifr_mtu;
	if (!ioctl(a.fd, SIOCGIFFLAGS, &a.req))
		nic->up = a.req.ifr_flags & IFF_UP;
	if (nic_ask(&a, &driver))
		snprintf(nic->driver, sizeof(nic->driver), "%s", driver.driver);
	ask_features(&a, nic);
	ask_queues(&a, nic);
	each_statistic(&a, note_statistic, nic);
	close(a.fd);
}

/* ---- generic netlink: what XDP can do here ------------------------------ */

/* Of <linux/netdev.h>, which the headers of Linux 6.1 do not have. */
#define NETDEV_FAMILY	    "netdev"
#define NETDEV_CMD_DEV_GET  1
#define NETDEV_A_IFINDEX    1
#define NETDEV_A_XDP	    3
#define NETLINK_REPLY_BYTES 8192

struct message {
	struct nlmsghdr head;
	struct genlmsghdr command;
	char attributes[64];
};

static void add_attribute(struct message *m, unsigned short type, const void *bytes, size_t len)
{
	struct nlattr *a = (struct nlattr *)((char *)m + NLMSG_ALIGN(m->head.nlmsg_len));

	a->nla_type = type;
	a->nla_len = (unsigned short)(NLA_HDRLEN + len);
	memcpy((char *)a + NLA_HDRLEN, bytes, len);
	m->head.nlmsg_len = NLMSG_ALIGN(m->head.nlmsg_len) + NLA_ALIGN(a->nla_len);
}

/* Sends a request and looks for an attribute of the reply.  Its bytes in *out, or false. */
static bool ask_netlink(int fd, struct message *m, unsigned short type, void *out, size_t len)
{
	_Alignas(struct nlmsghdr) char reply[NETLINK_REPLY_BYTES];
	const struct nlmsghdr *head = (const struct nlmsghdr *)reply;
	size_t at = NLMSG_HDRLEN + GENL_HDRLEN;
	const struct nlattr *a;
	ssize_t got;

	if (send(fd, m, m->head.nlmsg_len, 0) < 0)
		return false;
	got = recv(fd, reply, sizeof(reply), 0);
	if (got < (ssize_t)at || head->nlmsg_type == NLMSG_ERROR || head->nlmsg_len > (size_t)got)
		return false;
	for (; at + NLA_HDRLEN <= head->nlmsg_len; at += NLA_ALIGN(a->nla_len)) {
		a = (const struct nlattr *)(reply + at);
		if (a->nla_len < NLA_HDRLEN || at + a->nla_len > head->nlmsg_len)
			return false;
		if ((a->nla_type & NLA_TYPE_MASK) != type || a->nla_len < NLA_HDRLEN + len)
			continue;
		memcpy(out, (const char *)a + NLA_HDRLEN, len);
		return true;
	}
	return false;
}

static struct message request(unsigned short family, unsigned char command)
{
	return (struct message){
		.head = { .nlmsg_len = NLMSG_HDRLEN + GENL_HDRLEN,
			  .nlmsg_type = family,
			  .nlmsg_flags = NLM_F_REQUEST },
		.command = { .cmd = command, .version = 1 },
	};
}

static void ask_xdp_features(struct nic *nic, unsigned int ifindex)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);
	struct message find = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY), get;
	unsigned short family;

	if (fd < 0)
		return;
	add_attribute(&find, CTRL_ATTR_FAMILY_NAME, NETDEV_FAMILY, sizeof(NETDEV_FAMILY));
	if (ask_netlink(fd, &find, CTRL_ATTR_FAMILY_ID, &family, sizeof(family))) {
		close(fd); /* of further messages to the first request */
		fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);
		get = request(family, NETDEV_CMD_DEV_GET);
		add_attribute(&get, NETDEV_A_IFINDEX, &ifindex, sizeof(ifindex));
		nic->has_xdp = fd >= 0 && ask_netlink(fd, &get, NETDEV_A_XDP, &nic->xdp_features,
						      sizeof(nic->xdp_features));
	}
	if (fd >= 0)
		close(fd);
}

/* ---- the XDP hook ------------------------------------------------------- */

static void ask_program(struct nic *nic, unsigned int ifindex)
{
	LIBBPF_OPTS(bpf_xdp_query_opts, opts);
	struct bpf_prog_info info = {};
	__u32 len = sizeof(info);
	int fd;

	if (bpf_xdp_query((int)ifindex, 0, &opts))
		return;
	nic->program = opts.drv_prog_id ? opts.drv_prog_id : opts.prog_id;
	if (!nic->program)
		nic->program = opts.skb_prog_id;
	nic->generic = nic->program && nic->program == opts.skb_prog_id;
	fd = nic->program ? bpf_prog_get_fd_by_id(nic->program) : -1;
	if (fd < 0)
		return;
	if (!bpf_obj_get_info_by_fd(fd, &info, &len))
		snprintf(nic->program_name, sizeof(nic->program_name), "%s", info.name);
	close(fd);
}

void nic_read(struct nic *nic, const char *interface)
{
	unsigned int ifindex = if_nametoindex(interface);

	*nic = (struct nic){ .known = ifindex != 0 };
	if (!ifindex)
		return;
	/* of another namespace, if only the network is this one's (nsenter --net) */
	nic->has_sysfs = sysfs_number("", interface, "ifindex") == (long)ifindex;
	ask_ioctls(nic, interface);
	ask_xdp_features(nic, ifindex);
	ask_program(nic, ifindex);
}

/* ---- receive queues ------------------------------------------------------ */

/* What drivers call the packets of a receive queue. */
static const char *const queue_names[] = {
	"rx%u_packets%n",	     /* mlx5 */
	"rx%u_xdp_packets%n",	     /* virtio_net */
	"rx_queue_%u_packets%n",     /* ice, ixgbe, igb */
	"rx_queue_%u_xdp_packets%n", /* veth */
	"rx-%u.packets%n",	     /* i40e */
	"rx-%u.rx_packets%n",	     /* the same, older */
	"queue_%u_rx_cnt%n",	     /* ena */
	"[%u]: rx_ucast_packets%n",  /* bnxt */
	"rx_packets[%u]%n",	     /* gve */
};

struct queue_call {
	void (*fn)(void *arg, unsigned int queue, uint64_t packets);
	void *arg;
};

static void tell_queue(void *arg, const char *name, uint64_t n)
{
	const struct queue_call *call = arg;
	unsigned int queue;
	int end;

	for (size_t i = 0; i < sizeof(queue_names) / sizeof(queue_names[0]); i++) {
		end = 0;
		if (sscanf(name, queue_names[i], &queue, &end) == 1 && end && !name[end]) {
			call->fn(call->arg, queue, n);
			return;
		}
	}
}

void nic_queues(const char *interface, void (*fn)(void *arg, unsigned int queue, uint64_t packets),
		void *arg)
{
	struct queue_call call = { .fn = fn, .arg = arg };
	struct nic_ask a = { .fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) };

	if (a.fd < 0)
		return;
	snprintf(a.req.ifr_name, sizeof(a.req.ifr_name), "%s", interface);
	each_statistic(&a, tell_queue, &call);
	close(a.fd);
}

/* ---- what the tools have printed ---------------------------------------- */

typedef void line_fn(struct nic *nic, char *line, unsigned int *part);

static void each_line(struct nic *nic, const char *dir, const char *interface, const char *file,
		      line_fn *fn)
{
	char path[4096], line[512];
	unsigned int part = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/ethtool/%s/%s", dir, interface, file);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		fn(nic, line + strspn(line, " \t"), &part);
	}
	if (f)
		fclose(f);
}

/* "NAME:  TEXT": the text, or NULL if the name is another. */
static const char *text_of(const char *line, const char *name)
{
	size_t len = strlen(name);

	if (strncmp(line, name, len) != 0 || line[len] != ':')
		return NULL;
	return line + len + 1 + strspn(line + len + 1, " \t");
}

static void take_driver(struct nic *nic, char *line, unsigned int *part)
{
	const char *text = text_of(line, "driver");

	if (text)
		snprintf(nic->driver, sizeof(nic->driver), "%s", text);
}

static void take_feature(struct nic *nic, char *line, unsigned int *part)
{
	const char *text;

	for (int k = 0; k < NIC_FEATURES; k++) {
		text = text_of(line, features[k].printed);
		if (!text)
			continue;
		nic->feature[k] = strncmp(text, "on", 2) ? NIC_OFF : NIC_ON;
		nic->fixed[k] = strstr(text, "[fixed]") != NULL;
	}
}

/* A line of the maximums (*part = 1), or of what is set (2); "n/a" is 0. */
static bool nic_take_number(const char *line, const char *name, unsigned int *max,
			    unsigned int *now, unsigned int part)
{
	const char *text = text_of(line, name);

	if (text)
		*(part == 1 ? max : now) = (unsigned int)strtoul(text, NULL, 10);
	return text != NULL;
}

static bool is_part(const char *line, unsigned int *part)
{
	*part += !strncmp(line, "Pre-set maximums", 16) || !strncmp(line, "Current hardware", 16);
	return *part != 0;
}

static void take_queues(struct nic *nic, char *line, unsigned int *part)
{
	struct nic_queues *max = &nic->queues_max, *now = &nic->queues;

	nic->has_queues |=
		is_part(line, part) &&
		(nic_take_number(line, "RX", &max->rx, &now->rx, *part) ||
		 nic_take_number(line, "TX", &max->tx, &now->tx, *part) ||
		 nic_take_number(line, "Combined", &max->combined, &now->combined, *part));
}

static void take_rings(struct nic *nic, char *line, unsigned int *part)
{
	nic->has_rings |= is_part(line, part) &&
			  nic_take_number(line, "RX", &nic->rx_ring_max, &nic->rx_ring, *part);
}

static void take_statistic(struct nic *nic, char *line, unsigned int *part)
{
	char *colon = strrchr(line, ':');

	if (!colon)
		return;
	*colon = 0;
	note_statistic(nic, line, strtoull(colon + 1, NULL, 10));
}

static void take_hash(struct nic *nic, char *line, unsigned int *part)
{
	nic->has_hash |= strstr(line, "use these fields") != NULL;
	if (!strncmp(line, "IP ", 3))
		nic->udp_hash |= NIC_HASH_ADDRESSES;
	if (!strncmp(line, "L4 ", 3))
		nic->udp_hash |= NIC_HASH_PORTS;
}

static void take_xdp(struct nic *nic, char *line, unsigned int *part)
{
	nic->has_xdp = true;
	nic->xdp_features |= (strstr(line, "basic") ? NIC_XDP_BASIC : 0) |
			     (strstr(line, "redirect") ? NIC_XDP_REDIRECT : 0) |
			     (strstr(line, "ndo-xmit") ? NIC_XDP_XMIT : 0);
}

static void take_link(struct nic *nic, char *line, unsigned int *part)
{
	const char *at = strstr(line, "prog/xdp id ");

	if (!at)
		return;
	nic->generic = strstr(line, " xdpgeneric ") != NULL;
	if (sscanf(at, "prog/xdp id %u name %31s", &nic->program, nic->program_name) < 2)
		nic->program_name[0] = 0;
}

void nic_recorded(struct nic *nic, const char *dir, const char *interface)
{
	static const struct {
		const char *file;
		line_fn *fn;
	} files[] = {
		{ "driver", take_driver },
		{ "features", take_feature },
		{ "channels", take_queues },
		{ "rings", take_rings },
		{ "statistics", take_statistic },
		{ "hash", take_hash },
		{ "xdp", take_xdp },
		{ "link", take_link },
	};
	long flags = sysfs_number(dir, interface, "flags");

	*nic = (struct nic){ .mtu = sysfs_number(dir, interface, "mtu") };
	nic->known = nic->has_sysfs = nic->mtu >= 0;
	nic->up = flags >= 0 && flags & IFF_UP;
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		each_line(nic, dir, interface, files[i].file, files[i].fn);
}

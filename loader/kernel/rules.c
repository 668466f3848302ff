// SPDX-License-Identifier: BSD-2-Clause
/*
 * Addresses, subnets and `allow`: from the interface and the configuration into
 * the config map.
 */
#include "rules.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <limits.h>
#include <linux/if_bridge.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "util/address.h"
#include "util/grace.h"

#define BOND_STATE_ACTIVE 0 /* of linux/if_bonding.h, which does not go with net/if.h */

/* What is found out about the interface, into a copy of the rules, and how far that has come. */
struct survey {
	struct rules *into;
	const struct config *cfg;
	struct xkv_rules *rules; /* into->seen */
	/* looks at the addresses that `bind` names, then at the others */
	bool bound;
};

/* ---- netlink ------------------------------------------------------------- */

typedef void look_fn(struct survey *v, const struct nlmsghdr *h);

static const struct rtattr *rules_find(const struct rtattr *a, int len, unsigned short type)
{
	for (; RTA_OK(a, len); a = RTA_NEXT(a, len))
		if ((a->rta_type & NLA_TYPE_MASK) == type)
			return a;
	return NULL;
}

static const struct rtattr *find_in(const struct rtattr *outer, unsigned short type)
{
	return outer ? rules_find(RTA_DATA(outer), RTA_PAYLOAD(outer), type) : NULL;
}

static const void *value(const struct rtattr *a)
{
	return a ? RTA_DATA(a) : NULL;
}

/* 1: there is more to come, 0: that was the last, or -errno. */
static int look_at_messages(struct survey *v, const void *buffer, ssize_t len, look_fn *look)
{
	const struct nlmsghdr *h = buffer;

	for (; NLMSG_OK(h, (size_t)len); h = NLMSG_NEXT(h, len)) {
		if (h->nlmsg_type == NLMSG_DONE)
			return 0;
		if (h->nlmsg_type == NLMSG_ERROR)
			return ((const struct nlmsgerr *)NLMSG_DATA(h))->error;
		look(v, h);
	}
	return 1;
}

/*
 * Has all links or addresses looked at.  What changes meanwhile may be missed here, and makes
 * rules.monitor readable: then all is read anew.
 */
static int dump(struct survey *v, uint16_t type, look_fn *look)
{
	struct {
		struct nlmsghdr head;
		struct ifinfomsg body;
	} request = { .head = { .nlmsg_len = sizeof(request),
				.nlmsg_type = type,
				.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP } };
	_Alignas(struct nlmsghdr) char buffer[32768];
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), ret = 1;
	ssize_t len;

	if (fd < 0)
		return -errno;
	if (send(fd, &request, sizeof(request), 0) < 0)
		ret = -errno;
	while (ret > 0) {
		len = recv(fd, buffer, sizeof(buffer), MSG_TRUNC);
		if (len < 0 && errno == EINTR)
			continue;
		if (len < 0)
			ret = -errno;
		else if (len > (ssize_t)sizeof(buffer))
			ret = -EMSGSIZE;
		else
			ret = look_at_messages(v, buffer, len, look);
	}
	close(fd);
	return ret;
}

/* ---- links --------------------------------------------------------------- */

static unsigned int interface_mtu(const char *interface)
{
	struct ifreq req = {};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	unsigned int mtu = 1500;

	snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", interface);
	if (fd >= 0 && !ioctl(fd, SIOCGIFMTU, &req))
		mtu = req.ifr_mtu;
	if (fd >= 0)
		close(fd);
	return mtu;
}

static const struct rules_link *find_link(const struct rules *rules, unsigned int ifindex)
{
	for (unsigned int i = 0; i < rules->links; i++)
		if (rules->link[i].ifindex == ifindex)
			return &rules->link[i];
	return NULL;
}

bool rules_has_link(const struct rules *rules, unsigned int ifindex)
{
	return find_link(rules, ifindex);
}

bool rules_listens(const struct rules *rules, unsigned int ifindex)
{
	const struct rules_link *link = find_link(rules, ifindex);

	return link && ifindex != rules->loopback &&
	       (!link->number || link->number == XKV_LINK_NONE);
}

/*
 * A frame without an Ethernet header must not be taken for one with: its link has a MAC that no
 * such frame is for.
 */
static void link_mac(struct rules_link *link, const struct ifinfomsg *info, const void *mac)
{
	if (mac && (info->ifi_type == ARPHRD_ETHER || info->ifi_type == ARPHRD_LOOPBACK))
		memcpy(link->mac, mac, ETH_ALEN);
	else
		memset(link->mac, 0xff, ETH_ALEN);
}

static const struct rtattr *link_attr(const struct nlmsghdr *h, unsigned short type)
{
	return rules_find(IFLA_RTA(NLMSG_DATA(h)), (int)IFLA_PAYLOAD(h), type);
}

/* 0 to 255, or -1: there is none. */
static int byte(const struct rtattr *a)
{
	return a ? *(const uint8_t *)RTA_DATA(a) : -1;
}

/*
 * The bridge, bond or team that takes in all frames of this link that no VLAN on it takes, by its
 * index.  0: there is none, or it drops them, since the port is blocked (by STP, or it is one that
 * a bond does not use now).  A team does not say which of its ports it uses.
 */
static unsigned int master_of(const struct nlmsghdr *h)
{
	const uint32_t *master = value(link_attr(h, IFLA_MASTER));
	const struct rtattr *info = link_attr(h, IFLA_LINKINFO);
	const char *kind = value(find_in(info, IFLA_INFO_SLAVE_KIND));
	const struct rtattr *data = find_in(info, IFLA_INFO_SLAVE_DATA);
	bool takes = false;

	if (!master || !kind)
		return 0;
	if (!strcmp(kind, "bridge"))
		takes = byte(find_in(data, IFLA_BRPORT_STATE)) == BR_STATE_FORWARDING;
	else if (!strcmp(kind, "bond"))
		takes = byte(find_in(data, IFLA_BOND_SLAVE_STATE)) == BOND_STATE_ACTIVE;
	else if (!strcmp(kind, "team"))
		takes = true;
	return takes ? *master : 0;
}

static struct rules_link *add_link(struct survey *v, const struct nlmsghdr *h, uint32_t number)
{
	const struct ifinfomsg *info = NLMSG_DATA(h);
	struct rules_link *link = &v->into->link[v->into->links];

	if (v->into->links == RULES_LINKS_MAX) {
		v->into->too_many = true;
		return NULL;
	}
	*link = (struct rules_link){
		.ifindex = (unsigned int)info->ifi_index,
		.master = master_of(h),
		.number = number,
	};
	link_mac(link, info, value(link_attr(h, IFLA_ADDRESS)));
	v->into->links++;
	return link;
}

/*
 * A VLAN on a link of ours; what lies below it in another namespace has nothing to do with us.  XDP
 * reads two tags.
 */
static void look_at_vlan(struct survey *v, const struct nlmsghdr *h, const struct rtattr *data)
{
	const uint32_t *lower = value(link_attr(h, IFLA_LINK));
	const uint16_t *id = value(find_in(data, IFLA_VLAN_ID));
	const __be16 *protocol = value(find_in(data, IFLA_VLAN_PROTOCOL));
	const struct rules_link *below = lower ? find_link(v->into, *lower) : NULL;
	uint32_t tag;

	if (!id || !below || link_attr(h, IFLA_LINK_NETNSID) || below->number >> 16)
		return;
	tag = XKV_LINK_TAG(protocol && *protocol == htons(ETH_P_8021AD), *id);
	/* VLAN 0 is left to the stack: the tag stands for none here. */
	add_link(v, h, tag ? XKV_LINK_IN(below->number, tag) : XKV_LINK_NONE);
}

static const struct rules_link *find_port(const struct rules *rules, unsigned int master)
{
	for (unsigned int i = 0; i < rules->links; i++)
		if (rules->link[i].master == master)
			return &rules->link[i];
	return NULL;
}

static bool has_mac(const struct rules *rules, unsigned int ifindex, const uint8_t *mac)
{
	for (unsigned int i = 0; i < rules->links; i++)
		if (rules->link[i].ifindex == ifindex && !memcmp(rules->link[i].mac, mac, ETH_ALEN))
			return true;
	return false;
}

/*
 * A bond or team once for each MAC of its ports: where each keeps its own (balance-alb), these are
 * the ones that frames are sent to.  Else they have one, which is that of the bond.  A port may
 * come behind it in the kernel's list, so it is looked at each time.
 */
static void add_ports(struct survey *v, const struct nlmsghdr *h)
{
	unsigned int master = (unsigned int)((const struct ifinfomsg *)NLMSG_DATA(h))->ifi_index;
	unsigned int below = v->into->links;
	const struct rules_link *port;
	struct rules_link *link;

	for (unsigned int i = 0; i < below; i++) {
		port = &v->into->link[i];
		if (port->master != master || has_mac(v->into, master, port->mac))
			continue;
		link = add_link(v, h, port->number);
		if (link)
			memcpy(link->mac, port->mac, ETH_ALEN);
	}
}

/* It has a MAC of its own. */
static void look_at_bridge(struct survey *v, const struct nlmsghdr *h, const struct rtattr *data)
{
	const struct ifinfomsg *info = NLMSG_DATA(h);
	const struct rules_link *port = find_port(v->into, (unsigned int)info->ifi_index);
	bool filters;

	if (!port)
		return;
	/* Which VLAN of such a bridge a frame is in is left to the stack. */
	filters = byte(find_in(data, IFLA_BR_VLAN_FILTERING)) > 0;
	add_link(v, h, filters ? XKV_LINK_NONE : port->number);
	if (filters)
		v->into->filtering = (unsigned int)info->ifi_index;
}

/* The interfaces themselves, and loopback. */
static void look_at_root(struct survey *v, const struct nlmsghdr *h)
{
	const char *name = value(link_attr(h, IFLA_IFNAME));

	/*
	 * On loopback both addresses are ours, and XDP drops what claims to come from us: all of it
	 * is left to the stack.
	 */
	if (name && !strcmp(name, "lo"))
		add_link(v, h, XKV_LINK_NONE);
	else if (name && config_has_interface(v->cfg, name))
		add_link(v, h, 0);
}

static void look_at_link(struct survey *v, const struct nlmsghdr *h)
{
	const struct ifinfomsg *info = NLMSG_DATA(h);
	const struct rtattr *linkinfo = link_attr(h, IFLA_LINKINFO);
	const struct rtattr *data = find_in(linkinfo, IFLA_INFO_DATA);
	const char *kind = value(find_in(linkinfo, IFLA_INFO_KIND));

	if (h->nlmsg_type != RTM_NEWLINK)
		return;
	if (!find_link(v->into, (unsigned int)info->ifi_index))
		look_at_root(v, h);
	if (kind && (!strcmp(kind, "bond") || !strcmp(kind, "team")))
		add_ports(v, h);
	if (!kind || find_link(v->into, (unsigned int)info->ifi_index))
		return;
	if (!strcmp(kind, "vlan"))
		look_at_vlan(v, h, data);
	else if (!strcmp(kind, "bridge"))
		look_at_bridge(v, h, data);
}

/* The interfaces and loopback, then what stands on them, what stands on that, ... */
static int look_at_links(struct survey *v)
{
	unsigned int before;
	int ret;

	v->into->links = 0;
	do {
		before = v->into->links;
		ret = dump(v, RTM_GETLINK, look_at_link);
	} while (!ret && v->into->links > before);
	return ret;
}

/* ---- lists --------------------------------------------------------------- */

static void add_prefix4(struct xkv_rules *r, __be32 addr, __be32 mask)
{
	if (r->allow4_count < XKV_ALLOW_MAX)
		r->allow4[r->allow4_count++] = (struct xkv_prefix4){ addr & mask, mask };
}

static void add_prefix6(struct xkv_rules *r, const void *addr, const void *mask)
{
	struct xkv_prefix6 *p = &r->allow6[r->allow6_count];

	if (r->allow6_count >= XKV_ALLOW_MAX)
		return;
	memcpy(p->net, addr, 16);
	memcpy(p->mask, mask, 16);
	for (int i = 0; i < 2; i++)
		p->net[i] &= p->mask[i];
	r->allow6_count++;
}

/* The sources of a prefix, IPv4 ones as ::ffff:a.b.c.d/96+n. */
static void add_allow(struct xkv_rules *r, const struct prefix *p)
{
	uint8_t mask[16] = {};
	__be32 addr4, mask4;

	for (unsigned int bit = 0; bit < p->len && bit < 128; bit++)
		mask[bit / 8] |= 0x80 >> (bit % 8);
	if (!IN6_IS_ADDR_V4MAPPED(&p->addr) || p->len < 96) {
		add_prefix6(r, &p->addr, mask);
		return;
	}
	memcpy(&addr4, p->addr.s6_addr + 12, 4);
	memcpy(&mask4, mask + 12, 4);
	add_prefix4(r, addr4, mask4);
}

static void remove_allow(struct xkv_rules *r)
{
	r->allow4_count = r->allow6_count = 0;
	memset(r->allow4, 0, sizeof(r->allow4));
	memset(r->allow6, 0, sizeof(r->allow6));
}

/* Should XDP answer for this address of ours?  With `bind`, only for those that it names. */
static bool is_bound(const struct config *cfg, int family, const void *addr)
{
	struct in6_addr want;
	const char *text;

	for (unsigned int i = 0; i < cfg->bind_count; i++) {
		text = cfg->bind[i] + (cfg->bind[i][0] == '-');
		if (!strcmp(text, family == AF_INET ? "*" : "::*") ||
		    !strcmp(text, family == AF_INET ? "0.0.0.0" : "::"))
			return true;
		if (inet_pton(family, text, &want) == 1 &&
		    !memcmp(&want, addr, family == AF_INET ? 4 : 16))
			return true;
	}
	return !cfg->bind_count;
}

/* An address that is not bound is ours, too, but no frame is for it. */
static void add_local4(struct survey *v, const struct rules_link *link, const void *own,
		       unsigned int len)
{
	/* RFC 3021: /31 has no broadcast */
	__be32 hosts = len < 31 ? htonl(0xffffffffU >> len) : 0;
	struct xkv_local4 *l = &v->rules->local4[v->rules->local4_count];

	if (v->rules->local4_count == XKV_LOCAL_MAX) {
		v->into->too_many = true;
		return;
	}
	memcpy(&l->addr, own, 4);
	l->network = hosts ? l->addr & ~hosts : l->addr;
	l->broadcast = l->addr | hosts;
	l->link = v->bound ? link->number : XKV_LINK_NONE;
	memcpy(l->mac, link->mac, sizeof(l->mac));
	v->rules->local4_count++;
}

static void add_local6(struct survey *v, const struct rules_link *link, const void *own)
{
	struct xkv_local6 *l = &v->rules->local6[v->rules->local6_count];

	if (v->rules->local6_count == XKV_LOCAL_MAX) {
		v->into->too_many = true;
		return;
	}
	memcpy(l->addr, own, 16);
	l->link = v->bound ? link->number : XKV_LINK_NONE;
	memcpy(l->mac, link->mac, sizeof(l->mac));
	v->rules->local6_count++;
}

static void add_subnet(struct survey *v, int family, const void *addr, unsigned int len)
{
	struct prefix p = { .len = len };

	if (family == AF_INET) {
		memset(p.addr.s6_addr + 10, 0xff, 2);
		memcpy(p.addr.s6_addr + 12, addr, 4);
		p.len += 96;
	} else {
		memcpy(&p.addr, addr, 16);
	}
	add_allow(v->rules, &p);
}

static void look_at_address(struct survey *v, const struct nlmsghdr *h)
{
	const struct ifaddrmsg *info = NLMSG_DATA(h);
	int len = (int)IFA_PAYLOAD(h);
	const void *addr = value(rules_find(IFA_RTA(info), len, IFA_ADDRESS));
	/* the other may be the peer's */
	const void *own = value(rules_find(IFA_RTA(info), len, IFA_LOCAL));

	own = own ? own : addr;
	if (h->nlmsg_type != RTM_NEWADDR || !find_link(v->into, info->ifa_index) || !own ||
	    info->ifa_index == v->into->loopback ||
	    (info->ifa_family != AF_INET && info->ifa_family != AF_INET6) ||
	    is_bound(v->cfg, info->ifa_family, own) != v->bound)
		return;
	for (unsigned int i = 0; i < v->into->links; i++) {
		const struct rules_link *link = &v->into->link[i];

		if (link->ifindex != info->ifa_index)
			continue;
		if (info->ifa_family == AF_INET)
			add_local4(v, link, own, info->ifa_prefixlen);
		else
			add_local6(v, link, own);
	}
	add_subnet(v, info->ifa_family, addr ? addr : own, info->ifa_prefixlen);
}

/* Those that are served come first: there is room for so many. */
static int look_at_addresses(struct survey *v)
{
	int ret;

	v->bound = true;
	ret = dump(v, RTM_GETADDR, look_at_address);
	v->bound = false;
	return ret || !v->cfg->bind_count ? ret : dump(v, RTM_GETADDR, look_at_address);
}

/* ---- publishing ---------------------------------------------------------- */

/*
 * A packet is judged by the old rules or by the new ones, never by a mixture, which might let
 * somebody in whom neither does:
 *
 *  - A program reads `current` once, and takes all of its rules from there.
 *  - The rules that hold are not written to.  The others are read only by programs that began before `current` was
 *    last stored; those have ended when grace_wait() returns, however long they were interrupted.  It is called
 *    before the writing and not after the store, so that nothing depends on what a predecessor that was killed came to:
 * one that was killed while writing left rules that are not in force.
 *  - `current` is one word, and stored with release order after all of what it stands for.
 *
 * xkvd's own look-ups (rules_allows(), store_datagram()) are made by the thread that publishes, so
 * never meanwhile.  Nothing is touched where nothing has changed: traffic does not notice.
 */
int rules_switch(struct xkv_config *s, struct xkv_secrets *secrets, const struct xkv_rules *next,
		 const uint8_t token[XKV_TOKEN_BYTES])
{
	uint32_t current = s->current, other = (current + 1) & 1;
	int ret;

	if (!memcmp(&s->rules[current & 1], next, sizeof(*next)) &&
	    !memcmp(secrets->token[current & 1], token, XKV_TOKEN_BYTES))
		return 0;
	ret = grace_wait();
	if (ret)
		return ret;
	s->rules[other] = *next;
	memcpy(secrets->token[other], token, XKV_TOKEN_BYTES);
	__atomic_store_n(&s->current, current + 1, __ATOMIC_RELEASE);
	return 0;
}

const struct xkv_rules *rules_in_force(const struct rules *rules)
{
	return &rules->shared->rules[rules->shared->current & 1];
}

static uint16_t smaller(unsigned int a, unsigned int b)
{
	return a < b ? a : b;
}

/*
 * A password, or users, without a token close the UDP front end: who sets them does not expect
 * anybody to get in without.
 */
static void add_policy(struct xkv_rules *r, const struct config *cfg)
{
	r->port = htons(cfg->port);
	r->trusted = cfg->allow_count > 0;
	r->foreign_drop = cfg->foreign == FOREIGN_DROP;
	r->auth = cfg->udp_token_set	      ? XKV_AUTH_TOKEN
		  : config_has_passwords(cfg) ? XKV_AUTH_CLOSED
					      : XKV_AUTH_OPEN;
	if (cfg->allow_count)
		remove_allow(r);
	for (unsigned int p = 0; p < cfg->allow_count; p++)
		add_allow(r, &cfg->allow[p]);
}

static unsigned int smallest_mtu(const struct config *cfg)
{
	unsigned int mtu = cfg->interface_count ? UINT_MAX : 1500;

	for (unsigned int i = 0; i < cfg->interface_count; i++) {
		unsigned int one = interface_mtu(cfg->interface_name[i]);

		mtu = one < mtu ? one : mtu;
	}
	return mtu;
}

/*
 * Looks at the interfaces.  What was known stays known where all are gone, so that who has access
 * can be changed meanwhile: -ENODEV.
 */
static int look_at_interface(struct rules *rules, const struct config *cfg)
{
	struct rules now = *rules;
	struct survey v = { .into = &now, .cfg = cfg, .rules = &now.seen };
	unsigned int there = config_interfaces_there(cfg);
	int ret;

	if (cfg->interface_count && !there)
		return -ENODEV;
	memset(&now.seen, 0, sizeof(now.seen));
	now.too_many = false;
	now.filtering = 0;
	now.mtu = smallest_mtu(cfg);
	now.loopback = config_has_interface(cfg, "lo") ? 0 : if_nametoindex("lo");
	ret = look_at_links(&v);
	if (!ret && there && config_interfaces_there(cfg) < there)
		return -ENODEV; /* one has gone since: that makes the monitor readable */
	if (!ret && cfg->interface_count)
		ret = look_at_addresses(&v);
	if (ret)
		return ret;
	now.was_seen = true;
	*rules = now;
	return 0;
}

/* Has the interface addresses, and names `bind` none of them?  Those that it names come first. */
static bool is_bound_elsewhere(const struct config *cfg, const struct xkv_rules *r)
{
	return cfg->bind_count && (r->local4_count || r->local6_count) &&
	       (!r->local4_count || r->local4[0].link == XKV_LINK_NONE) &&
	       (!r->local6_count || r->local6[0].link == XKV_LINK_NONE);
}

/* What the operator has to know of rules that are new. */
static void say_rules(const struct rules *rules, const struct config *cfg,
		      const struct xkv_rules *r)
{
	static const uint8_t no_mac[ETH_ALEN] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
	char bridge[IF_NAMESIZE];

	if (!cfg->interface[0])
		return;
	if (config_has_interface(cfg, "lo"))
		log_warning("XDP passes all frames of lo: UDP on this machine goes through the "
			    "kernel's stack");
	else if (!r->local4_count && !r->local6_count)
		log_warning("%s has no address yet: XDP passes everything until it has one",
			    cfg->interface);
	else if (!memcmp(r->local4_count ? r->local4[0].mac : r->local6[0].mac, no_mac, ETH_ALEN))
		log_warning("frames of %s have no Ethernet header: XDP passes all of them",
			    cfg->interface);
	else if (is_bound_elsewhere(cfg, r))
		log_warning("bind names no address of %s: nobody is answered there (bind * serves "
			    "all of them)",
			    cfg->interface);
	if (rules->filtering && if_indextoname(rules->filtering, bridge))
		log_warning("%s filters VLANs: XDP passes what is for its addresses", bridge);
	if (rules->too_many)
		log_warning(
			"%s has more than %d VLANs and bridges, or %d addresses of a kind: XDP passes what "
			"is for the others",
			cfg->interface, RULES_LINKS_MAX - 1 - (int)cfg->interface_count,
			XKV_LOCAL_MAX);
}

/* Which uses of keys are noted; rates are of the time since that began. */
static void publish_sampling(struct xkv_config *s, const struct config *cfg)
{
	uint64_t step = cfg->hot_sample_rate ? XKV_HOT_ONE / cfg->hot_sample_rate : 0;
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	s->hot_half_ns = XKV_HOT_HALF_NS;
	if (step && !s->hot_step)
		s->hot_since_ns = now.tv_sec * 1000000000ULL + now.tv_nsec;
	__atomic_store_n(&s->hot_step, step, __ATOMIC_RELEASE);
}

static void publish_sizes(struct xkv_config *s, const struct config *cfg, unsigned int mtu)
{
	s->miss_reply = cfg->miss == MISS_REPLY;
	s->payload4 = smaller(XKV_PAYLOAD_MAX4, (mtu - 28) & ~7U);
	s->payload6 = smaller(XKV_PAYLOAD_MAX6, (mtu - 48) & ~7U);
}

static int fail_to_look(const struct config *cfg, int ret, char *err, size_t err_len)
{
	if (ret == -ENODEV)
		snprintf(err, err_len, "there is no interface %s", cfg->interface);
	else
		snprintf(err, err_len, "cannot read the addresses of %s: %s", cfg->interface,
			 strerror(-ret));
	return ret;
}

int rules_publish(struct rules *rules, const struct config *cfg, char *err, size_t err_len)
{
	static const uint8_t no_token[XKV_TOKEN_BYTES];
	bool is_first = !rules->was_seen, is_gone;
	struct xkv_rules next;
	int ret = look_at_interface(rules, cfg);

	is_gone = ret == -ENODEV && rules->was_seen;
	if (ret && !is_gone)
		return fail_to_look(cfg, ret, err, err_len);
	next = rules->seen;
	add_policy(&next, cfg);
	if (!is_gone && (is_first || memcmp(rules_in_force(rules), &next, sizeof(next))))
		say_rules(rules, cfg, &next);
	ret = rules_switch(rules->shared, rules->secrets, &next,
			   cfg->udp_token_set ? cfg->udp_token : no_token);
	if (ret)
		snprintf(err, err_len, "cannot wait for the XDP programs: %s", strerror(-ret));
	else
		publish_sizes(rules->shared, cfg, rules->mtu);
	publish_sampling(rules->shared, cfg);
	return ret;
}

/* ---- following changes --------------------------------------------------- */

/* Who can do what is better read in the log than found out. */
static void say_access(const struct config *cfg, const struct xkv_rules *rules)
{
	if (config_is_protected(cfg))
		log_notice("protected mode: TCP from loopback only (set requirepass, allow or "
			   "bind, or --protected-mode no)");
	if (cfg->interface[0] && config_has_passwords(cfg) && !cfg->udp_token_set)
		log_warning("UDP is closed: there is a password, or there are users, and no "
			    "udp-token");
	else if (cfg->interface[0] && !config_has_passwords(cfg) && !is_bound_elsewhere(cfg, rules))
		log_notice("UDP: everybody in %s may read and change every key (requirepass with "
			   "udp-token limits that)",
			   cfg->allow_count ? "`allow`" : "the subnets of the interface");
}

int rules_open(struct rules *rules, const struct config *cfg, struct xkv_config *shared,
	       struct xkv_secrets *secrets, char *err, size_t err_len)
{
	struct sockaddr_nl addr = {
		.nl_family = AF_NETLINK,
		.nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR | RTMGRP_LINK,
	};
	int ret;

	*rules = (struct rules){ .cfg = cfg, .shared = shared, .secrets = secrets };
	rules->monitor = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (rules->monitor < 0 || bind(rules->monitor, (struct sockaddr *)&addr, sizeof(addr))) {
		snprintf(err, err_len, "cannot watch addresses: %s", strerror(errno));
		return -errno;
	}
	ret = rules_publish(rules, cfg, err, err_len);
	if (!ret)
		say_access(cfg, rules_in_force(rules));
	return ret;
}

void rules_close(struct rules *rules)
{
	if (rules->monitor >= 0)
		close(rules->monitor);
	rules->monitor = -1;
}

void rules_changed(void *arg)
{
	struct rules *rules = arg;
	char buffer[8192], err[256];
	int ret;

	/* What happened does not matter (and may have been lost, ENOBUFS): all is read anew. */
	while (recv(rules->monitor, buffer, sizeof(buffer), 0) > 0)
		;
	ret = rules_publish(rules, rules->cfg, err, sizeof(err));
	if (ret)
		log_warning("%s", err);
}

/* ---- asking -------------------------------------------------------------- */

static bool allows4(const struct xkv_rules *r, __be32 addr)
{
	for (unsigned int i = 0; i < r->allow4_count; i++)
		if ((addr & r->allow4[i].mask) == r->allow4[i].net)
			return true;
	return false;
}

static bool allows6(const struct xkv_rules *r, const struct in6_addr *addr)
{
	uint64_t half[2];

	memcpy(half, addr, sizeof(half));
	for (unsigned int i = 0; i < r->allow6_count; i++)
		if ((half[0] & r->allow6[i].mask[0]) == r->allow6[i].net[0] &&
		    (half[1] & r->allow6[i].mask[1]) == r->allow6[i].net[1])
			return true;
	return false;
}

/*
 * Our own address: a program on this machine, if the source is proven.  (The kernel does
 * not take such IPv4 sources from a wire, but IPv6 ones it does.)
 */
bool rules_is_own(const struct rules *rules, const struct sockaddr *source)
{
	const struct xkv_rules *r = rules_in_force(rules);

	for (unsigned int i = 0; source->sa_family == AF_INET && i < r->local4_count; i++)
		if (r->local4[i].addr == ((const struct sockaddr_in *)source)->sin_addr.s_addr)
			return true;
	for (unsigned int i = 0; source->sa_family == AF_INET6 && i < r->local6_count; i++)
		if (!memcmp(r->local6[i].addr, &((const struct sockaddr_in6 *)source)->sin6_addr,
			    16))
			return true;
	return false;
}

/* The network or broadcast address of a subnet of ours. */
static bool is_nobody(const struct xkv_rules *r, __be32 addr)
{
	for (unsigned int i = 0; i < r->local4_count; i++)
		if (addr == r->local4[i].network || addr == r->local4[i].broadcast)
			return true;
	return false;
}

bool rules_allows(const struct rules *rules, const struct sockaddr *source, bool connected)
{
	const struct xkv_rules *r = rules_in_force(rules);
	const struct in6_addr *six;
	__be32 four;

	if (source->sa_family == AF_UNIX || address_is_loopback(source))
		return true;
	if ((connected || source->sa_family == AF_INET) && rules_is_own(rules, source))
		return true;
	if (source->sa_family == AF_INET) {
		four = ((const struct sockaddr_in *)source)->sin_addr.s_addr;
		return allows4(r, four) && !is_nobody(r, four);
	}
	six = &((const struct sockaddr_in6 *)source)->sin6_addr;
	if (!IN6_IS_ADDR_V4MAPPED(six))
		return allows6(r, six);
	memcpy(&four, six->s6_addr + 12, 4);
	return allows4(r, four) && !is_nobody(r, four);
}

#define PROTECTED(why)                                                                             \
	"DENIED xkvd is running in protected mode because " why                                    \
	", and neither `allow` nor `bind` "                                                        \
	"says who may connect. In this mode connections are only accepted from the loopback "      \
	"interface. To connect from other computers, do one of the following and restart xkvd: "   \
	"1) set a password with `requirepass` (UDP then needs `udp-token`); 2) name the sources "  \
	"that may connect with `allow`; 3) name the addresses to listen on with `bind`; "          \
	"4) start it with '--protected-mode no', if everybody who can reach it may do everything."

/*
 * Protected mode is for loopback alone, as in Redis: our other addresses stand for remote clients,
 * too, where something translates theirs.
 */
const char *rules_refuses(const struct rules *rules, const struct sockaddr *peer)
{
	if (peer->sa_family == AF_UNIX || address_is_loopback(peer))
		return NULL;
	if (config_is_protected(rules->cfg))
		return config_has_passwords(rules->cfg)
			       ? PROTECTED("`requirepass` is not set (passwords of users do not "
					   "end this mode)")
			       : PROTECTED("no password is set for the user `default`");
	return rules_allows(rules, peer, true)
		       ? NULL
		       : "DENIED connections from this address are not allowed: `allow` in the "
			 "configuration of xkvd names the sources that are (by default the subnets "
			 "of its interface).";
}

size_t rules_reply_allowed(const struct rules *rules, const struct sockaddr *source, size_t len)
{
	if (rules_in_force(rules)->trusted || address_is_loopback(source))
		return XKV_PAYLOAD_MAX4;
	return len * XKV_REPLY_FACTOR;
}

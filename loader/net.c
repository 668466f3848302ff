// SPDX-License-Identifier: BSD-2-Clause
/*
 * Addresses, subnets and `allow`: from the interface and the configuration into
 * the config map.
 */
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/if_vlan.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* What net_publish() is about to write: a copy, so that XDP sees no half-made list. */
struct lists {
	uint32_t local4_count, local6_count, allow4_count, allow6_count;
	__be32 local4[XKV_LOCAL_MAX];
	__be64 local6[XKV_LOCAL_MAX][2];
	struct xkv_prefix4 allow4[XKV_ALLOW_MAX];
	struct xkv_prefix6 allow6[XKV_ALLOW_MAX];
};

/* ---- links --------------------------------------------------------------- */

/* Is `name` the interface, or a VLAN on it (on a VLAN on it)? */
static bool belongs_to(const char *name, const char *interface)
{
	struct vlan_ioctl_args args = { .cmd = GET_VLAN_REALDEV_NAME_CMD };
	char current[IF_NAMESIZE];
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool found = false;

	snprintf(current, sizeof(current), "%s", name);
	for (int depth = 0; fd >= 0 && depth < 3 && !found; depth++) {
		found = !strcmp(current, interface);
		snprintf(args.device1, sizeof(args.device1), "%s", current);
		if (ioctl(fd, SIOCGIFVLAN, &args))
			break;
		snprintf(current, sizeof(current), "%.*s", IF_NAMESIZE - 1, args.u.device2);
	}
	if (fd >= 0)
		close(fd);
	return found;
}

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

static void add_link(struct net *net, const char *name)
{
	unsigned int index = if_nametoindex(name);

	if (index && !net_has_link(net, index) && net->links < NET_LINKS_MAX)
		net->link[net->links++] = index;
}

bool net_has_link(const struct net *net, unsigned int ifindex)
{
	for (unsigned int i = 0; i < net->links; i++)
		if (net->link[i] == ifindex)
			return true;
	return false;
}

/* ---- lists --------------------------------------------------------------- */

static void add_local(struct lists *l, const struct sockaddr *addr)
{
	if (addr->sa_family == AF_INET && l->local4_count < XKV_LOCAL_MAX)
		l->local4[l->local4_count++] = ((const struct sockaddr_in *)addr)->sin_addr.s_addr;
	if (addr->sa_family == AF_INET6 && l->local6_count < XKV_LOCAL_MAX)
		memcpy(l->local6[l->local6_count++], &((const struct sockaddr_in6 *)addr)->sin6_addr,
		       16);
}

static void add_prefix4(struct lists *l, __be32 addr, __be32 mask)
{
	if (l->allow4_count < XKV_ALLOW_MAX)
		l->allow4[l->allow4_count++] = (struct xkv_prefix4){ addr & mask, mask };
}

static void add_prefix6(struct lists *l, const void *addr, const void *mask)
{
	struct xkv_prefix6 *p = &l->allow6[l->allow6_count];

	if (l->allow6_count >= XKV_ALLOW_MAX)
		return;
	memcpy(p->net, addr, 16);
	memcpy(p->mask, mask, 16);
	for (int i = 0; i < 2; i++)
		p->net[i] &= p->mask[i];
	l->allow6_count++;
}

/* The subnet of an address of the interface. */
static void add_subnet(struct lists *l, const struct ifaddrs *i)
{
	if (!i->ifa_netmask)
		return;
	if (i->ifa_addr->sa_family == AF_INET)
		add_prefix4(l, ((struct sockaddr_in *)i->ifa_addr)->sin_addr.s_addr,
			    ((struct sockaddr_in *)i->ifa_netmask)->sin_addr.s_addr);
	if (i->ifa_addr->sa_family == AF_INET6)
		add_prefix6(l, &((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr,
			    &((struct sockaddr_in6 *)i->ifa_netmask)->sin6_addr);
}

/* A prefix of `allow`; IPv4 ones stand as ::ffff:a.b.c.d/96+n. */
static void add_allow(struct lists *l, const struct prefix *p)
{
	uint8_t mask[16] = {};
	__be32 addr4, mask4;

	for (unsigned int bit = 0; bit < p->len && bit < 128; bit++)
		mask[bit / 8] |= 0x80 >> (bit % 8);
	if (!IN6_IS_ADDR_V4MAPPED(&p->addr) || p->len < 96) {
		add_prefix6(l, &p->addr, mask);
		return;
	}
	memcpy(&addr4, p->addr.s6_addr + 12, 4);
	memcpy(&mask4, mask + 12, 4);
	add_prefix4(l, addr4, mask4);
}

/* Should XDP answer for this address of ours?  With `bind`, only for those that it names. */
static bool is_bound(const struct config *cfg, const struct sockaddr *addr)
{
	struct in6_addr want;
	const char *text;

	for (unsigned int i = 0; i < cfg->bind_count; i++) {
		text = cfg->bind[i] + (cfg->bind[i][0] == '-');
		if (!strcmp(text, addr->sa_family == AF_INET ? "*" : "::*"))
			return true;
		if (inet_pton(addr->sa_family, text, &want) == 1 &&
		    !memcmp(&want,
			    addr->sa_family == AF_INET ?
				    (const void *)&((const struct sockaddr_in *)addr)->sin_addr :
				    (const void *)&((const struct sockaddr_in6 *)addr)->sin6_addr,
			    addr->sa_family == AF_INET ? 4 : 16))
			return true;
		if ((!strcmp(text, "0.0.0.0") && addr->sa_family == AF_INET) ||
		    (!strcmp(text, "::") && addr->sa_family == AF_INET6))
			return true;
	}
	return !cfg->bind_count;
}

static int collect(struct net *net, const struct config *cfg, struct lists *l)
{
	struct ifaddrs *all, *i;

	memset(l, 0, sizeof(*l));
	net->links = 0;
	add_link(net, "lo");
	for (unsigned int p = 0; p < cfg->allow_count; p++)
		add_allow(l, &cfg->allow[p]);
	if (!cfg->interface[0])
		return 0;
	add_link(net, cfg->interface);
	if (getifaddrs(&all))
		return -errno;
	for (i = all; i; i = i->ifa_next) {
		if (!i->ifa_addr || !belongs_to(i->ifa_name, cfg->interface))
			continue;
		add_link(net, i->ifa_name);
		if (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)
			continue;
		if (is_bound(cfg, i->ifa_addr))
			add_local(l, i->ifa_addr);
		if (!cfg->allow_count)
			add_subnet(l, i);
	}
	freeifaddrs(all);
	return 0;
}

/* ---- publishing ---------------------------------------------------------- */

static bool lists_differ(const struct xkv_config *s, const struct lists *l)
{
	return s->local4_count != l->local4_count || s->local6_count != l->local6_count ||
	       s->allow4_count != l->allow4_count || s->allow6_count != l->allow6_count ||
	       memcmp(s->local4, l->local4, sizeof(l->local4)) ||
	       memcmp(s->local6, l->local6, sizeof(l->local6)) ||
	       memcmp(s->allow4, l->allow4, sizeof(l->allow4)) ||
	       memcmp(s->allow6, l->allow6, sizeof(l->allow6));
}

/*
 * While a list changes its count is 0.  (A program that is in the middle of the
 * list may still compare a half-written entry: half old, half new, it matches at worst what
 * either matched.)  Nothing is touched where nothing changed: traffic does not notice.
 */
static void publish_lists(struct xkv_config *s, const struct lists *l)
{
	if (!lists_differ(s, l))
		return;
	__atomic_store_n(&s->local4_count, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&s->local6_count, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&s->allow4_count, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&s->allow6_count, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	memcpy(s->local4, l->local4, sizeof(l->local4));
	memcpy(s->local6, l->local6, sizeof(l->local6));
	memcpy(s->allow4, l->allow4, sizeof(l->allow4));
	memcpy(s->allow6, l->allow6, sizeof(l->allow6));
	__atomic_store_n(&s->allow4_count, l->allow4_count, __ATOMIC_RELEASE);
	__atomic_store_n(&s->allow6_count, l->allow6_count, __ATOMIC_RELEASE);
	__atomic_store_n(&s->local4_count, l->local4_count, __ATOMIC_RELEASE);
	__atomic_store_n(&s->local6_count, l->local6_count, __ATOMIC_RELEASE);
}

static uint16_t smaller(unsigned int a, unsigned int b)
{
	return a < b ? a : b;
}

/*
 * A password without a token closes the UDP door: a user who sets one does not
 * expect anybody to get in without.  While the token changes the door is closed
 * too, so that no half of one ever opens it.
 */
static void publish_token(struct xkv_config *s, struct xkv_secrets *secrets,
			  const struct config *cfg)
{
	uint8_t auth = cfg->udp_token_set  ? XKV_AUTH_TOKEN :
		       cfg->requirepass[0] ? XKV_AUTH_CLOSED :
					     XKV_AUTH_OPEN;

	if (auth == XKV_AUTH_TOKEN &&
	    memcmp(secrets->token, cfg->udp_token, sizeof(secrets->token))) {
		__atomic_store_n(&s->auth, XKV_AUTH_CLOSED, __ATOMIC_RELAXED);
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		memcpy(secrets->token, cfg->udp_token, sizeof(secrets->token));
	}
	__atomic_store_n(&s->auth, auth, __ATOMIC_RELEASE);
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

static void publish_policy(struct net *net, const struct config *cfg)
{
	unsigned int mtu = cfg->interface[0] ? interface_mtu(cfg->interface) : 1500;
	struct xkv_config *s = net->shared;

	publish_token(s, net->secrets, cfg);
	publish_sampling(s, cfg);
	s->trusted = cfg->allow_count > 0;
	s->miss_reply = cfg->miss == MISS_REPLY;
	s->foreign_drop = cfg->foreign == FOREIGN_DROP;
	s->port = htons(cfg->port);
	s->payload4 = smaller(XKV_PAYLOAD_MAX4, (mtu - 28) & ~7U);
	s->payload6 = smaller(XKV_PAYLOAD_MAX6, (mtu - 48) & ~7U);
}

int net_publish(struct net *net, const struct config *cfg, char *err, size_t err_len)
{
	struct lists l;
	int ret;

	if (cfg->interface[0] && !if_nametoindex(cfg->interface)) {
		snprintf(err, err_len, "there is no interface %s", cfg->interface);
		return -ENODEV;
	}
	ret = collect(net, cfg, &l);
	if (ret) {
		snprintf(err, err_len, "cannot read the addresses of %s: %s", cfg->interface,
			 strerror(-ret));
		return ret;
	}
	if (cfg->interface[0] && !l.local4_count && !l.local6_count)
		log_warning("%s has no address yet: XDP passes everything until it has one",
			    cfg->interface);
	publish_policy(net, cfg);
	publish_lists(net->shared, &l);
	return 0;
}

/* ---- following changes --------------------------------------------------- */

int net_open(struct net *net, const struct config *cfg, struct xkv_config *shared,
	     struct xkv_secrets *secrets, char *err, size_t err_len)
{
	struct sockaddr_nl addr = {
		.nl_family = AF_NETLINK,
		.nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR | RTMGRP_LINK,
	};

	*net = (struct net){ .cfg = cfg, .shared = shared, .secrets = secrets };
	net->monitor = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (net->monitor < 0 || bind(net->monitor, (struct sockaddr *)&addr, sizeof(addr))) {
		snprintf(err, err_len, "cannot watch addresses: %s", strerror(errno));
		return -errno;
	}
	return net_publish(net, cfg, err, err_len);
}

void net_close(struct net *net)
{
	if (net->monitor >= 0)
		close(net->monitor);
	net->monitor = -1;
}

void net_changed(void *arg)
{
	struct net *net = arg;
	char buffer[8192], err[256];

	/* What happened does not matter (and may have been lost, ENOBUFS): all is read anew. */
	while (recv(net->monitor, buffer, sizeof(buffer), 0) > 0)
		;
	if (net_publish(net, net->cfg, err, sizeof(err)))
		log_warning("%s", err);
}

/* ---- asking -------------------------------------------------------------- */

static bool is_loopback(const struct sockaddr *source)
{
	const struct in6_addr *six = &((const struct sockaddr_in6 *)source)->sin6_addr;

	if (source->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)source)->sin_addr.s_addr) >> 24 == 127;
	return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

static bool allows4(const struct xkv_config *s, __be32 addr)
{
	for (unsigned int i = 0; i < s->allow4_count; i++)
		if ((addr & s->allow4[i].mask) == s->allow4[i].net)
			return true;
	return false;
}

static bool allows6(const struct xkv_config *s, const struct in6_addr *addr)
{
	uint64_t half[2];

	memcpy(half, addr, sizeof(half));
	for (unsigned int i = 0; i < s->allow6_count; i++)
		if ((half[0] & s->allow6[i].mask[0]) == s->allow6[i].net[0] &&
		    (half[1] & s->allow6[i].mask[1]) == s->allow6[i].net[1])
			return true;
	return false;
}

/*
 * Our own address: a program on this machine, if the source is proven.  (The kernel does
 * not take such IPv4 sources from a wire, but IPv6 ones it does.)
 */
static bool is_local(const struct xkv_config *s, const struct sockaddr *source)
{
	for (unsigned int i = 0; source->sa_family == AF_INET && i < s->local4_count; i++)
		if (s->local4[i] == ((const struct sockaddr_in *)source)->sin_addr.s_addr)
			return true;
	for (unsigned int i = 0; source->sa_family == AF_INET6 && i < s->local6_count; i++)
		if (!memcmp(s->local6[i], &((const struct sockaddr_in6 *)source)->sin6_addr, 16))
			return true;
	return false;
}

bool net_allows(const struct net *net, const struct sockaddr *source, bool connected)
{
	const struct in6_addr *six;
	__be32 four;

	if (source->sa_family == AF_UNIX || is_loopback(source))
		return true;
	if ((connected || source->sa_family == AF_INET) && is_local(net->shared, source))
		return true;
	if (source->sa_family == AF_INET)
		return allows4(net->shared, ((const struct sockaddr_in *)source)->sin_addr.s_addr);
	six = &((const struct sockaddr_in6 *)source)->sin6_addr;
	if (!IN6_IS_ADDR_V4MAPPED(six))
		return allows6(net->shared, six);
	memcpy(&four, six->s6_addr + 12, 4);
	return allows4(net->shared, four);
}

size_t net_reply_allowed(const struct net *net, const struct sockaddr *source, size_t len)
{
	if (net->shared->trusted || is_loopback(source))
		return XKV_PAYLOAD_MAX4;
	return len * XKV_REPLY_FACTOR;
}

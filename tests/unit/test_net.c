// SPDX-License-Identifier: BSD-2-Clause
/*
 * What xkvd makes of an interface: addresses with their VLANs, MACs, network and broadcast
 * addresses, in a network namespace of its own.  The rules are published into memory that no
 * program reads.  VLANs, bonds, teams, and bridges that filter VLANs, which not every kernel has,
 * are put into what the kernel says of links and addresses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loader/util/log.h"
#include "loader/kernel/rules.h"

static const struct config *cfg;
static struct rules held;
static struct xkv_config shared;
static struct xkv_secrets secrets;

/* ---- what the kernel says ------------------------------------------------ */

#define VLAN(n)	  (1000 + (n)) /* index of a link */
#define MASTER(n) (2000 + (n))
#define D0	  1 /* the interface itself, in place of what the kernel says of it */
#define D1	  2 /* another one */

struct fake {
	unsigned int index, lower; /* lower: 0 is d0, 1 is d1 */
	uint16_t protocol, id;
	bool elsewhere; /* `lower` is an index in another namespace */
	const char *addr4, *addr6;
	const char *kind; /* NULL: a VLAN */
	/* what it is a port of, and whether that takes in what arrives */
	unsigned int master;
	const char *master_kind;
	bool blocked;
	bool filters; /* VLANs */
};

static const struct fake vlans[] = {
	/* An upper link may come before its lower one. */
	{ VLAN(69), VLAN(6), 0x8100, 9, false, .addr4 = "10.2.9.1" },
	{ VLAN(5), 0, 0x8100, 5, false, .addr4 = "10.2.5.1", .addr6 = "fd02:5::1" },
	{ VLAN(6), 0, 0x88a8, 6, false, .addr4 = "10.2.6.1" },
	{ VLAN(610), VLAN(69), 0x8100, 10, false, .addr4 = "10.2.10.1" },
	{ VLAN(0), 0, 0x8100, 0, false, .addr4 = "10.2.0.1" },
	{ VLAN(15), 1, 0x8100, 5, false, .addr4 = "10.3.5.1" },
	{ VLAN(7), 0, 0x8100, 7, true, .addr4 = "10.2.7.1" },
};

static const struct fake *fakes = vlans;
static unsigned int fake_count = sizeof(vlans) / sizeof(vlans[0]);
static uint16_t asked; /* RTM_GET... of the dump that has just begun */

static struct rtattr *put(struct nlmsghdr *h, unsigned short type, const void *data, size_t len)
{
	struct rtattr *a = (struct rtattr *)((char *)h + NLMSG_ALIGN(h->nlmsg_len));

	*a = (struct rtattr){ .rta_type = type, .rta_len = (unsigned short)RTA_LENGTH(len) };
	memcpy(RTA_DATA(a), data, len);
	h->nlmsg_len = (uint32_t)(NLMSG_ALIGN(h->nlmsg_len) + RTA_ALIGN(a->rta_len));
	return a;
}

/* What was put behind `outer` belongs into it. */
static void close_nest(struct nlmsghdr *h, struct rtattr *outer)
{
	outer->rta_len = (unsigned short)((char *)h + h->nlmsg_len - (char *)outer);
}

static void put_byte(struct nlmsghdr *h, unsigned short type, uint8_t byte)
{
	put(h, type, &byte, 1);
}

static void put_port(struct nlmsghdr *h, const struct fake *f)
{
	struct rtattr *data;

	if (!f->master)
		return;
	put(h, IFLA_INFO_SLAVE_KIND, f->master_kind, strlen(f->master_kind) + 1);
	if (!strcmp(f->master_kind, "team"))
		return; /* it says nothing of its ports */
	data = put(h, IFLA_INFO_SLAVE_DATA, "", 0);
	if (!strcmp(f->master_kind, "bridge"))
		put_byte(h, IFLA_BRPORT_STATE, f->blocked ? 4 : 3);
	else
		put_byte(h, IFLA_BOND_SLAVE_STATE, f->blocked);
	close_nest(h, data);
}

static const char *name_of(const struct fake *f)
{
	return f->index == D0 ? "d0" : f->index == D1 ? "d1" : NULL;
}

static void put_kind(struct nlmsghdr *h, const struct fake *f)
{
	const char *kind = name_of(f) ? "veth" : f->kind ? f->kind : "vlan";
	uint16_t protocol = htons(f->protocol);
	struct rtattr *data;

	put(h, IFLA_INFO_KIND, kind, strlen(kind) + 1);
	data = put(h, IFLA_INFO_DATA, "", 0);
	if (!strcmp(kind, "vlan")) {
		put(h, IFLA_VLAN_PROTOCOL, &protocol, sizeof(protocol));
		put(h, IFLA_VLAN_ID, &f->id, sizeof(f->id));
	} else if (!strcmp(kind, "bridge")) {
		put_byte(h, IFLA_BR_VLAN_FILTERING, f->filters);
	}
	close_nest(h, data);
}

static size_t fake_link(const struct fake *f, void *at)
{
	const uint8_t mac[6] = { 2, 0, 0, 0, f->kind ? 0xbb : 0x0d, (uint8_t)f->id };
	uint32_t lower = f->lower > 1 ? f->lower : if_nametoindex(f->lower ? "d1" : "d0");
	const char *name = name_of(f);
	int index = (int)(name ? if_nametoindex(name) : f->index);
	struct nlmsghdr *h = at;
	struct rtattr *info;

	*h = (struct nlmsghdr){ .nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg)),
				.nlmsg_type = RTM_NEWLINK };
	*(struct ifinfomsg *)NLMSG_DATA(h) =
		(struct ifinfomsg){ .ifi_type = ARPHRD_ETHER, .ifi_index = index };
	put(h, IFLA_ADDRESS, mac, sizeof(mac));
	if (name)
		put(h, IFLA_IFNAME, name, 3);
	if (!f->kind)
		put(h, IFLA_LINK, &lower, sizeof(lower));
	if (f->elsewhere)
		put(h, IFLA_LINK_NETNSID, &lower, sizeof(lower));
	if (f->master)
		put(h, IFLA_MASTER, &f->master, sizeof(f->master));
	info = put(h, IFLA_LINKINFO, "", 0);
	put_kind(h, f);
	put_port(h, f);
	close_nest(h, info);
	return h->nlmsg_len;
}

static size_t fake_addr(const struct fake *f, const char *addr, int family, void *at)
{
	struct nlmsghdr *h = at;
	uint8_t byte[16] = {};

	if (!addr)
		return 0;
	*h = (struct nlmsghdr){ .nlmsg_len = NLMSG_LENGTH(sizeof(struct ifaddrmsg)),
				.nlmsg_type = RTM_NEWADDR };
	*(struct ifaddrmsg *)NLMSG_DATA(h) =
		(struct ifaddrmsg){ .ifa_family = (uint8_t)family,
				    .ifa_prefixlen = family == AF_INET ? 24 : 64,
				    .ifa_index = f->index };
	inet_pton(family, addr, byte);
	put(h, IFA_ADDRESS, byte, family == AF_INET ? 4 : 16);
	return h->nlmsg_len;
}

/* In place of the C library's: a dump of ours begins with the fakes. */
ssize_t send(int fd, const void *data, size_t len, int flags)
{
	asked = ((const struct nlmsghdr *)data)->nlmsg_type;
	return syscall(SYS_sendto, fd, data, len, flags, NULL, 0);
}

ssize_t recv(int fd, void *to, size_t room, int flags)
{
	char *at = to;

	if (!(flags & MSG_TRUNC) || !asked || !fake_count)
		return syscall(SYS_recvfrom, fd, to, room, flags, NULL, NULL);
	for (unsigned int i = 0; i < fake_count; i++) {
		if (asked == RTM_GETLINK) {
			at += fake_link(&fakes[i], at);
			continue;
		}
		at += fake_addr(&fakes[i], fakes[i].addr4, AF_INET, at);
		at += fake_addr(&fakes[i], fakes[i].addr6, AF_INET6, at);
	}
	asked = 0;
	return at - (char *)to;
}

/* ---- looking at what is published ---------------------------------------- */

static bool shell(const char *command)
{
	return system(command) == 0;
}

static const struct xkv_rules *rules(void)
{
	return &shared.rules[shared.current & 1];
}

static void set_words(const char *name, unsigned int count, char **word)
{
	struct config_builder b;
	char err[256];

	assert_int_equal(config_begin(&b, cfg), 0);
	assert_int_equal(config_set(&b, name, count, word, err, sizeof(err)), 0);
	config_free(cfg);
	held.cfg = cfg = config_finish(&b, err, sizeof(err));
	assert_non_null(cfg);
}

static void set(const char *name, const char *value)
{
	set_words(name, 1, (char *[]){ (char *)(uintptr_t)value });
}

static void open_net(const char *interface)
{
	char err[256] = "";

	set("interface", interface);
	assert_int_equal(rules_open(&held, cfg, &shared, &secrets, err, sizeof(err)), 0);
}

static void close_net(void)
{
	rules_close(&held);
	config_free(cfg);
	cfg = NULL;
}

static void publish(void)
{
	char err[256] = "";

	assert_int_equal(rules_publish(&held, cfg, err, sizeof(err)), 0);
}

/* After a command that changes something. */
static void follow(const char *command)
{
	struct pollfd monitor = { .fd = held.monitor, .events = POLLIN };

	assert_true(shell(command));
	assert_int_equal(poll(&monitor, 1, 5000), 1);
	rules_changed(&held);
}

static __be32 four(const char *text)
{
	struct in_addr addr;

	assert_int_equal(inet_pton(AF_INET, text, &addr), 1);
	return addr.s_addr;
}

static const struct xkv_local4 *find4(const char *text)
{
	for (unsigned int i = 0; i < rules()->local4_count; i++)
		if (rules()->local4[i].addr == four(text))
			return &rules()->local4[i];
	return NULL;
}

static const struct xkv_local6 *find6(const char *text)
{
	struct in6_addr addr;

	assert_int_equal(inet_pton(AF_INET6, text, &addr), 1);
	for (unsigned int i = 0; i < rules()->local6_count; i++)
		if (!memcmp(rules()->local6[i].addr, &addr, 16))
			return &rules()->local6[i];
	return NULL;
}

static bool allows(const char *source)
{
	struct sockaddr_in six = { .sin_family = AF_INET, .sin_addr.s_addr = four(source) };

	return rules_allows(&held, (struct sockaddr *)&six, false);
}

static void test_subnets(void **state)
{
	static const struct {
		const char *addr, *network, *broadcast;
	} want[] = {
		{ "10.1.0.5", "10.1.0.0", "10.1.0.255" },
		{ "10.1.1.0", "10.1.1.0", "10.1.1.0" },
		{ "10.1.2.9", "10.1.2.9", "10.1.2.9" },
		{ "10.1.3.130", "10.1.3.128", "10.1.3.255" },
		{ "10.1.4.6", "10.1.4.4", "10.1.4.7" },
	};
	const struct xkv_local4 *l;

	open_net("d0");
	assert_int_equal(shared.current & 1, 1);
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		l = find4(want[i].addr);
		assert_non_null(l);
		assert_int_equal(l->network, four(want[i].network));
		assert_int_equal(l->broadcast, four(want[i].broadcast));
		assert_int_equal(l->link, 0);
		assert_memory_equal(l->mac, "\x02\0\0\0\x0d\0\0\0", 8);
	}
	assert_true(allows("10.1.0.6") && allows("10.1.1.1") && allows("10.1.3.129"));
	assert_false(allows("10.1.0.0") || allows("10.1.0.255") || allows("10.1.3.128") ||
		     allows("10.1.4.7") || allows("10.1.2.8"));
	close_net();
}

static void test_vlans(void **state)
{
	open_net("d0");
	assert_int_equal(find4("10.2.5.1")->link, 5);
	assert_memory_equal(find4("10.2.5.1")->mac, "\x02\0\0\0\x0d\x05", 6);
	assert_int_equal(find6("fd02:5::1")->link, 5);
	assert_int_equal(find4("10.2.6.1")->link, 0x1006);
	assert_int_equal(find4("10.2.9.1")->link, 0x10060009);
	assert_int_equal(find4("10.2.0.1")->link, XKV_LINK_NONE); /* VLAN 0 */
	assert_null(find4("10.2.10.1"));			  /* three tags */
	assert_null(find4("10.3.0.1"));				  /* another interface, */
	assert_null(find4("10.3.5.1"));				  /* and its VLAN 5 */
	assert_null(find4("10.2.7.1"));				  /* on a link elsewhere */
	assert_true(rules_has_link(&held, 1));			  /* loopback */
	assert_null(find4("127.0.0.1"));
	close_net();
}

static void test_changes(void **state)
{
	open_net("d0");
	follow("ip link set dev d0 address 02:00:00:00:0d:77");
	assert_memory_equal(find4("10.1.0.5")->mac, "\x02\0\0\0\x0d\x77", 6);
	assert_memory_equal(find4("10.2.5.1")->mac, "\x02\0\0\0\x0d\x05", 6);
	follow("ip link set dev d0 address 02:00:00:00:0d:00");
	fake_count = 2; /* 6, on which 69 is, has gone */
	publish();
	assert_null(find4("10.2.6.1"));
	assert_null(find4("10.2.9.1"));
	assert_non_null(find4("10.2.5.1"));
	fake_count = sizeof(vlans) / sizeof(vlans[0]);
	close_net();
}

/* Publishes with these links in place of the VLANs. */
static void with(const struct fake *table, unsigned int count)
{
	fakes = table;
	fake_count = count;
	publish();
}

#define WITH(...)                                                                                  \
	with((struct fake[]){ __VA_ARGS__ },                                                       \
	     sizeof((struct fake[]){ __VA_ARGS__ }) / sizeof(struct fake))

/*
 * Addresses of what the interface is a port of: with the MAC that frames to them have, in the VLANs
 * that stand on it, and while it takes in what arrives.
 */
static void test_masters(void **state)
{
	static const char *const kinds[] = { "bridge", "bond", "team" };

	open_net("d0");
	for (unsigned int i = 0; i < 3; i++) {
		struct fake port = { .index = D0, .master = MASTER(1), .master_kind = kinds[i] };
		struct fake master = { .index = MASTER(1),
				       .id = 9,
				       .kind = kinds[i],
				       .addr4 = "10.6.1.1",
				       .addr6 = "fd06::1" };
		struct fake vlan = { VLAN(5), MASTER(1), 0x8100, 5, .addr4 = "10.6.5.1" };
		struct fake bound = { .index = MASTER(1),
				      .kind = kinds[i],
				      .master = MASTER(2),
				      .master_kind = "bridge",
				      .addr4 = "10.6.1.1" };
		struct fake bridge = {
			.index = MASTER(2), .id = 7, .kind = "bridge", .addr4 = "10.6.2.1"
		};

		WITH(vlan, master, port); /* in any order */
		assert_int_equal(find4("10.6.1.1")->link, 0);
		assert_int_equal(find6("fd06::1")->link, 0);
		assert_memory_equal(find4("10.6.1.1")->mac,
				    i ? "\x02\0\0\0\x0d\0" : "\x02\0\0\0\xbb\x09", 6);
		assert_int_equal(find4("10.6.5.1")->link, 5);
		assert_true(rules_has_link(&held, MASTER(1)) && rules_listens(&held, MASTER(1)));
		assert_true(rules_has_link(&held, VLAN(5)) && !rules_listens(&held, VLAN(5)));
		assert_true(allows("10.6.1.2") && allows("10.6.5.2"));
		port.blocked = true;
		WITH(vlan, master, port);
		assert_int_equal(!find4("10.6.1.1") && !find4("10.6.5.1"), i < 2);
		port.blocked = false;
		WITH(bridge, bound, port); /* one in the other */
		assert_int_equal(find4("10.6.2.1")->link, 0);
		assert_memory_equal(find4("10.6.2.1")->mac, "\x02\0\0\0\xbb\x07", 6);
		WITH(master); /* of another */
		assert_null(find4("10.6.1.1"));
		port.master_kind = "vrf";
		WITH(port, master);
		assert_null(find4("10.6.1.1"));
	}
	with(vlans, sizeof(vlans) / sizeof(vlans[0]));
	close_net();
}

static bool has_mac4(const char *addr, const char *mac)
{
	for (unsigned int i = 0; i < rules()->local4_count; i++)
		if (rules()->local4[i].addr == four(addr) &&
		    !memcmp(rules()->local4[i].mac, mac, 6))
			return true;
	return false;
}

/* Each port may have its own MAC; the kernel lists links in the order in which they were made. */
static void test_ports_behind_their_master(void **state)
{
	static const char *const kinds[] = { "bond", "team" };

	open_net("d0");
	set_words("interface", 2, (char *[]){ "d0", "d1" });
	for (unsigned int i = 0; i < 2; i++) {
		struct fake first = { .index = D0, .master = MASTER(1), .master_kind = kinds[i] };
		struct fake master = {
			.index = MASTER(1), .id = 9, .kind = kinds[i], .addr4 = "10.6.1.1"
		};
		struct fake second = first;
		unsigned int count;

		second.index = D1;
		second.id = 1;
		WITH(first, master, second);
		assert_true(has_mac4("10.6.1.1", "\x02\0\0\0\x0d\0"));
		assert_true(has_mac4("10.6.1.1", "\x02\0\0\0\x0d\x01"));
		assert_false(has_mac4("10.6.1.1", "\x02\0\0\0\xbb\x09"));
		count = rules()->local4_count;
		second.id = 0; /* as in all other modes: listed once */
		WITH(first, master, second);
		assert_int_equal(rules()->local4_count, count - 1);
	}
	with(vlans, sizeof(vlans) / sizeof(vlans[0]));
	close_net();
}

/* In which VLAN frames are, such a bridge decides: its addresses are left to the stack. */
static void test_bridge_that_filters(void **state)
{
	const struct fake port = { .index = D0, .master = MASTER(1), .master_kind = "bridge" };
	struct fake bridge = {
		.index = MASTER(1), .kind = "bridge", .addr4 = "10.6.1.1", .filters = true
	};

	open_net("d0");
	WITH(port, bridge);
	assert_int_equal(find4("10.6.1.1")->link, XKV_LINK_NONE);
	assert_int_equal(find4("10.1.0.5")->link, 0);
	assert_true(allows("10.6.1.2") && rules_listens(&held, MASTER(1)));
	bridge.filters = false;
	WITH(port, bridge);
	assert_int_equal(find4("10.6.1.1")->link, 0);
	with(vlans, sizeof(vlans) / sizeof(vlans[0]));
	close_net();
}

/* What is not bound is ours, so nobody else's, but no frame is for it. */
static void test_bind(void **state)
{
	open_net("d0");
	set("bind", "10.2.5.1 fd02:5::1");
	publish();
	assert_int_equal(rules()->local4[0].addr, four("10.2.5.1"));
	assert_int_equal(rules()->local4[0].link, 5);
	assert_int_equal(find6("fd02:5::1")->link, 5);
	assert_int_equal(find4("10.1.0.5")->link, XKV_LINK_NONE);
	assert_int_equal(find6("fd01::1")->link, XKV_LINK_NONE);
	assert_false(allows("10.1.0.255"));
	close_net();
}

/*
 * Of loopback all is passed: it comes from ourselves.  A tunnel's frames have no Ethernet header,
 * and no frame is for its MAC.
 */
static void test_without_macs(void **state)
{
	open_net("lo");
	assert_int_equal(find4("127.0.0.1")->link, XKV_LINK_NONE);
	assert_memory_equal(find4("127.0.0.1")->mac, "\0\0\0\0\0\0", 6);
	close_net();
	if (!shell("ip tuntap add dev t0 mode tun 2>&- && ip addr add 10.4.0.1/24 dev t0"))
		return; /* no tunnels here */
	open_net("t0");
	assert_memory_equal(find4("10.4.0.1")->mac, "\xff\xff\xff\xff\xff\xff", 6);
	close_net();
}

static void test_many_addresses(void **state)
{
	open_net("d1");
	follow("for i in $(seq 60); do echo addr add 10.5.$i.1/24 dev d1; done | ip -batch -");
	assert_int_equal(rules()->local4_count, XKV_LOCAL_MAX);
	assert_int_equal(rules()->allow4_count, XKV_ALLOW_MAX);
	close_net();
}

/* Nothing is written where nothing has changed; a token and `allow` come and go as one. */
static void test_publishing(void **state)
{
	uint32_t current;

	open_net("d0");
	current = shared.current;
	publish();
	assert_int_equal(shared.current, current);
	assert_int_equal(rules()->trusted, 0);
	set("requirepass", "secret");
	publish();
	assert_int_equal(rules()->auth, XKV_AUTH_CLOSED);
	set("udp-token", "00112233445566778899aabbccddeeff");
	set("allow", "0.0.0.0/0");
	publish();
	assert_int_equal(shared.current, current + 2);
	assert_int_equal(rules()->auth, XKV_AUTH_TOKEN);
	assert_memory_equal(secrets.token[shared.current & 1], cfg->udp_token, 16);
	assert_int_equal(rules()->trusted, 1);
	assert_int_equal(rules()->allow4_count, 1);
	assert_int_equal(rules()->allow6_count, 0);
	assert_true(allows("203.0.113.1"));
	assert_false(allows("10.1.0.255")); /* still nobody's */
	close_net();
}

/* UDP knows no users: it is not open to everybody where RESP is not. */
static void test_users_close_udp(void **state)
{
	open_net("d0");
	assert_int_equal(rules()->auth, XKV_AUTH_OPEN);
	set("aclfile", "/etc/xkv/users.acl");
	publish();
	assert_int_equal(rules()->auth, XKV_AUTH_CLOSED);
	set("aclfile", "");
	publish();
	assert_int_equal(rules()->auth, XKV_AUTH_OPEN);
	set("user", "default");
	publish();
	assert_int_equal(rules()->auth, XKV_AUTH_CLOSED);
	set("udp-token", "00112233445566778899aabbccddeeff"); /* needs no requirepass then */
	publish();
	assert_int_equal(rules()->auth, XKV_AUTH_TOKEN);
	close_net();
}

static const char bed[] =
	"set -e; exec 2>&1; ip link set dev lo up\n"
	"ip link add d0 address 02:00:00:00:0d:00 type veth peer name p0; ip link add d1 type veth "
	"peer name p1\nfor d in d0 d1; do ip link set dev $d addrgenmode none up; done\n"
	"for a in 0.5/24 1.0/31 2.9/32 4.6/30; do ip addr add 10.1.$a dev d0; done\n"
	"ip addr add 10.1.3.130/25 dev d0 label d0:alias; ip addr add fd01::1/64 dev d0 nodad\n"
	"ip addr add 10.3.0.1/24 dev d1\n";

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_subnets),
		cmocka_unit_test(test_vlans),
		cmocka_unit_test(test_masters),
		cmocka_unit_test(test_ports_behind_their_master),
		cmocka_unit_test(test_bridge_that_filters),
		cmocka_unit_test(test_bind),
		cmocka_unit_test(test_changes),
		cmocka_unit_test(test_without_macs),
		cmocka_unit_test(test_many_addresses),
		cmocka_unit_test(test_publishing),
		cmocka_unit_test(test_users_close_udp),
	};

	if (geteuid() || unshare(CLONE_NEWNET) || !shell(bed)) {
		printf("needs root, network namespaces and veth\n");
		return 77;
	}
	log_set_level(LOG_LEVEL_WARNING);
	return cmocka_run_group_tests_name("net", tests, NULL, NULL);
}

// SPDX-License-Identifier: BSD-2-Clause
/* See neighbour.h: two rtnetlink requests, for the route and for the neighbour. */
#include "neighbour.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/common/message.h"

#define USABLE (NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT)

struct question {
	struct nlmsghdr head;
	union {
		struct rtmsg route;
		struct ndmsg neighbour;
	};
	struct rtattr to;
	struct in_addr ip;
};

_Static_assert(sizeof(struct rtmsg) == sizeof(struct ndmsg), "one place for the attribute");

/* Sends a request and receives the reply into `answer`.  Its length in bytes, or -errno. */
static ssize_t ask(struct question *q, void *answer, size_t room)
{
	struct nlmsghdr *head = answer;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	ssize_t len = -1;

	q->head.nlmsg_len = sizeof(*q);
	q->head.nlmsg_flags = NLM_F_REQUEST;
	q->to = (struct rtattr){ .rta_len = RTA_LENGTH(sizeof(q->ip)), .rta_type = RTA_DST };
	if (fd >= 0 && send(fd, q, sizeof(*q), 0) == sizeof(*q))
		len = recv(fd, answer, room, 0);
	if (len < 0)
		len = -errno;
	if (fd >= 0)
		close(fd);
	if (len < 0)
		return len;
	if (!NLMSG_OK(head, (size_t)len))
		return -EPROTO;
	return head->nlmsg_type == NLMSG_ERROR ? ((struct nlmsgerr *)NLMSG_DATA(head))->error : len;
}

/* The payload of an attribute of at least `bytes`, or NULL. */
static const void *find(const struct nlmsghdr *head, unsigned short type, size_t bytes)
{
	/* Both kinds of message start with as many bytes. */
	const struct rtattr *attr = RTM_RTA(NLMSG_DATA(head));
	int left = NLMSG_PAYLOAD(head, sizeof(struct rtmsg));

	for (; RTA_OK(attr, left); attr = RTA_NEXT(attr, left)) {
		if (attr->rta_type == type && RTA_PAYLOAD(attr) >= bytes)
			return RTA_DATA(attr);
	}
	return NULL;
}

/* Finds device and gateway of an address; *hop is the address itself if it is on the link. */
static int find_route(unsigned int ifindex, struct in_addr ip, struct in_addr *hop)
{
	struct question q = { .head.nlmsg_type = RTM_GETROUTE,
			      .route = { .rtm_family = AF_INET, .rtm_dst_len = 32 },
			      .ip = ip };
	_Alignas(struct nlmsghdr) char answer[4096];
	ssize_t len = ask(&q, answer, sizeof(answer));
	const void *gateway, *device;

	if (len <= 0) {
		message("there is no route to %s: %s", inet_ntoa(ip), strerror(-len));
		return len ? len : -ENETUNREACH;
	}
	device = find((void *)answer, RTA_OIF, sizeof(int));
	if (!device || memcmp(device, &ifindex, sizeof(ifindex))) {
		message("the route to %s does not go through that --interface: give its --mac if "
			"you know better",
			inet_ntoa(ip));
		return -ENETUNREACH;
	}
	gateway = find((void *)answer, RTA_GATEWAY, sizeof(*hop));
	memcpy(hop, gateway ? gateway : &ip, sizeof(*hop));
	return 0;
}

int neighbour_find(unsigned int ifindex, struct in_addr ip, uint8_t mac[6])
{
	struct question q = { .head.nlmsg_type = RTM_GETNEIGH,
			      .neighbour = { .ndm_family = AF_INET, .ndm_ifindex = ifindex } };
	_Alignas(struct nlmsghdr) char answer[4096];
	int err = find_route(ifindex, ip, &q.ip);
	const struct ndmsg *found = NLMSG_DATA((struct nlmsghdr *)answer);
	const void *address;
	ssize_t len;

	if (err)
		return err;
	len = ask(&q, answer, sizeof(answer));
	address = len > 0 ? find((void *)answer, NDA_LLADDR, 6) : NULL;
	if (!address || !(found->ndm_state & USABLE)) {
		message("no hardware address of %s is known: give it with --mac", inet_ntoa(q.ip));
		return -EHOSTUNREACH;
	}
	memcpy(mac, address, 6);
	return 0;
}

// SPDX-License-Identifier: BSD-2-Clause
/* See sock_diag.h. */
#include "sock_diag.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

struct request {
	struct nlmsghdr head;
	struct inet_diag_req_v2 of;
};

/* What comes behind is cut off. */
union reply {
	struct nlmsghdr head;
	struct {
		struct nlmsghdr head;
		struct nlmsgerr error;
	} failed;
	struct {
		struct nlmsghdr head;
		struct inet_diag_msg socket;
	} found;
};

int sock_diag_open(void)
{
	return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
}

static bool is_ip4(const struct xkv_flow_key *key)
{
	static const char zero[sizeof(key->server) - sizeof(struct in_addr)];

	return !memcmp((const char *)key->server + sizeof(struct in_addr), zero, sizeof(zero));
}

/* A socket that listens on the port is found if there is no other. */
static enum sock_found sock_read(const union reply *r, size_t len)
{
	if (r->head.nlmsg_type == NLMSG_ERROR && len >= sizeof(r->failed))
		return r->failed.error.error == -ENOENT ? SOCK_NONE : SOCK_UNKNOWN;
	if (r->head.nlmsg_type != SOCK_DIAG_BY_FAMILY || len < sizeof(r->found))
		return SOCK_UNKNOWN;
	return r->found.socket.idiag_state == TCP_LISTEN ? SOCK_NONE : SOCK_THERE;
}

/* About the socket with this cookie, or any. */
static struct request sock_request(const struct xkv_flow_key *key, uint16_t type,
				   const uint32_t cookie[2])
{
	static uint32_t last;
	struct request ask = {
		.head = { .nlmsg_len = sizeof(ask),
			  .nlmsg_type = type,
			  .nlmsg_flags = NLM_F_REQUEST,
			  .nlmsg_seq = ++last },
		.of = { .sdiag_family = is_ip4(key) ? AF_INET : AF_INET6,
			.sdiag_protocol = IPPROTO_TCP,
			.idiag_states = ~0U,
			.id = { .idiag_sport = key->server_port,
				.idiag_dport = key->client_port,
				.idiag_cookie = { cookie[0], cookie[1] } } },
	};

	memcpy(ask.of.id.idiag_src, key->server, sizeof(key->server));
	memcpy(ask.of.id.idiag_dst, key->client, sizeof(key->client));
	return ask;
}

static enum sock_found sock_look(int fd, const struct xkv_flow_key *key, union reply *r)
{
	static const uint32_t any[2] = { INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE };
	struct request ask = sock_request(key, SOCK_DIAG_BY_FAMILY, any);
	ssize_t len;

	if (send(fd, &ask, sizeof(ask), 0) != sizeof(ask))
		return SOCK_UNKNOWN;
	do
		len = recv(fd, r, sizeof(*r), MSG_DONTWAIT);
	while (len >= (ssize_t)sizeof(r->head) && r->head.nlmsg_seq != ask.head.nlmsg_seq);
	return len < (ssize_t)sizeof(r->head) ? SOCK_UNKNOWN : sock_read(r, (size_t)len);
}

enum sock_found sock_find(int fd, const struct xkv_flow_key *key)
{
	union reply r;

	return sock_look(fd, key, &r);
}

/* By its cookie: else it might be the socket that listens on the port. */
void sock_reset(int fd, const struct xkv_flow_key *key)
{
	struct request ask;
	union reply r;

	if (sock_look(fd, key, &r) != SOCK_THERE)
		return;
	ask = sock_request(key, SOCK_DESTROY, r.found.socket.id.idiag_cookie);
	(void)send(fd, &ask, sizeof(ask), 0);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Who is who on the network: the addresses that are ours, the sources that may
 * be answered, and how large a reply they may get.  Kept in the config map, so
 * that XDP and xkvd decide alike; follows the addresses of the interface.
 */
#ifndef XKV_NET_H
#define XKV_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "../bpf/layout.h"
#include "config.h"

#define NET_LINKS_MAX 64

struct net {
	const struct config *cfg;
	struct xkv_config *shared; /* the config map */
	struct xkv_secrets *secrets; /* the secret map */
	unsigned int link[NET_LINKS_MAX]; /* the interface, its VLANs, loopback */
	unsigned int links;
	int monitor; /* netlink socket: readable when addresses may have changed */
};

/* Opens the monitor and publishes the state of things.  0, or -errno with a sentence. */
int net_open(struct net *net, const struct config *cfg, struct xkv_config *shared,
	     struct xkv_secrets *secrets, char *err, size_t err_len);
void net_close(struct net *net);

/* Publishes policy and addresses as `cfg` has them now.  0, or -errno with a sentence. */
int net_publish(struct net *net, const struct config *cfg, char *err, size_t err_len);

/* To be called when `monitor` is readable. */
void net_changed(void *net);

/*
 * May this source be answered?  This machine itself always may; `connected` says
 * that the source is proven, by a TCP handshake, and so may be believed to be one
 * of our own addresses.
 */
bool net_allows(const struct net *net, const struct sockaddr *source, bool connected);

/* Bytes that a reply to a request of `len` bytes from this source may have: all, or 3 times the request. */
size_t net_reply_allowed(const struct net *net, const struct sockaddr *source, size_t len);

/* Is this the index of the interface, one of its VLANs, or loopback? */
bool net_has_link(const struct net *net, unsigned int ifindex);

#endif

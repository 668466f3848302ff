/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Access rules: our own addresses, the sources that may be answered, and how large a reply they may
 * get.  They are in the config map, so that XDP and xkvd decide alike, and follow the addresses of
 * the interfaces, and of the VLANs, bridges, bonds and teams that get their frames.
 */
#ifndef XKV_RULES_H
#define XKV_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "bpf/layout.h"
#include "config/config.h"

#define RULES_LINKS_MAX 73 /* loopback, eight interfaces, and 64 VLANs and masters */

struct rules_link {
	unsigned int ifindex;
	unsigned int master; /* index of the bridge, bond or team that receives its frames; or 0 */
	uint32_t number;     /* XKV_LINK_...: the tags that its frames have */
	uint8_t mac[8];	     /* 6 of it */
};

struct rules {
	const struct config *cfg;
	struct xkv_config *shared;   /* the config map */
	struct xkv_secrets *secrets; /* the secret map */
	/* loopback, the interfaces, their VLANs, what they are ports of, the VLANs on that, ... */
	struct rules_link link[RULES_LINKS_MAX];
	unsigned int links;
	bool too_many;		/* there were more */
	unsigned int filtering; /* index of a bridge of these that filters VLANs, or 0 */
	unsigned int loopback;	/* its index; 0 = it is the interface itself */
	unsigned int mtu;
	/* the last addresses of the interface, and its subnets as `allow` */
	struct xkv_rules seen;
	bool was_seen;
	int monitor; /* netlink socket: readable when addresses may have changed */
};

/* Opens the monitor and publishes the present rules.  0, or -errno with a sentence. */
int rules_open(struct rules *rules, const struct config *cfg, struct xkv_config *shared,
	       struct xkv_secrets *secrets, char *err, size_t err_len);
void rules_close(struct rules *rules);

/*
 * Publishes policy and addresses by `cfg`.  While the interface is gone, or has another name, the
 * addresses are the last ones.  0, or -errno with a sentence.
 */
int rules_publish(struct rules *rules, const struct config *cfg, char *err, size_t err_len);

/*
 * Puts these rules and this token in force: each packet sees either the old or the new ones, never
 * a mixture.  May wait some ten milliseconds for XDP programs.  0 or -errno, and then the old ones
 * stay in force.
 */
int rules_switch(struct xkv_config *shared, struct xkv_secrets *secrets,
		 const struct xkv_rules *next, const uint8_t token[XKV_TOKEN_BYTES]);

/* To be called when `monitor` is readable. */
void rules_changed(void *rules);

/*
 * May this source be answered?  Always if it is this machine; `connected`: a TCP handshake has
 * proven the source, so it may be one of our own addresses.
 */
bool rules_allows(const struct rules *rules, const struct sockaddr *source, bool connected);

/* Why this peer may not connect over TCP, as text of an error reply; NULL if it may. */
const char *rules_refuses(const struct rules *rules, const struct sockaddr *peer);

/*
 * Bytes that a reply to a request of `len` bytes from this source may have: no limit, or 3 times
 * the request.
 */
size_t rules_reply_allowed(const struct rules *rules, const struct sockaddr *source, size_t len);

/* The rules in force, until others are published. */
const struct xkv_rules *rules_in_force(const struct rules *rules);

/* Is this an address of the interface, its VLANs, or what it is a port of? */
bool rules_is_own(const struct rules *rules, const struct sockaddr *source);

/* Is this the index of one of these, or of loopback? */
bool rules_has_link(const struct rules *rules, unsigned int ifindex);

/* Does TCP listen on the addresses of this link, if `bind` names none?  Not in VLANs. */
bool rules_listens(const struct rules *rules, unsigned int ifindex);

#endif

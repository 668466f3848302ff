/* SPDX-License-Identifier: BSD-2-Clause */
/* Datagrams that the upstream has to be asked for: reads (datagram.c) and changes (change.c). */
#ifndef XKV_PROXY_DATAGRAM_H
#define XKV_PROXY_DATAGRAM_H

#include "bpf/proto.h"
#include "net/udp.h"

#define DATAGRAMS_MAX 4096 /* under way: reads beyond are lost, as packets are */

struct proxy;

/* The reply to a datagram's first operation. */
struct datagram_reply {
	struct xkv_hdr hdr;
	struct xkv_result result;
	uint64_t number; /* if the result has one */
};

/* Fills in a result of this status; returns its length, without the number. */
size_t datagram_reply(struct datagram_reply *r, const struct udp_kept *k, uint8_t status);

/* Has the upstream make the change that the datagram, owned now, asks for, and answers it. */
void change_send(struct proxy *x, struct udp_kept *k);

#endif

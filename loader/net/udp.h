/* SPDX-License-Identifier: BSD-2-Clause */
/* The UDP front end of xkvd: answers the datagrams that XDP passed up. */
#ifndef XKV_UDP_H
#define XKV_UDP_H

#include <stddef.h>

#include "kernel/rules.h"
#include "store/store.h"

#define UDP_SOCKETS_MAX (CONFIG_MAX_BIND + 2)

struct udp_socket {
	struct udp *udp;
	int fd, family;
	struct udp_batch *batch; /* owned */
};

struct udp {
	struct rules *rules;
	struct store_ctx *ctx;
	uint64_t *stat; /* by enum counter */
	struct durations *durations;
	bool check_link; /* the sockets are bound to all addresses: only our links count */
	unsigned int count;
	struct udp_socket socket[UDP_SOCKETS_MAX];
};

/*
 * Opens a socket for each address of `bind`; without one, for all addresses (with an interface) or
 * for loopback.  `ctx` belongs to the thread that will call udp_readable(); `stat` and
 * `durations` are what it counts.  0, or -errno with an error message.
 */
int udp_open(struct udp *udp, const struct config *cfg, struct rules *rules, struct store_ctx *ctx,
	     uint64_t *stat, struct durations *durations, char *err, size_t err_len);
void udp_close(struct udp *udp);

/* To be called when our addresses may have changed. */
void udp_follow_addresses(const struct udp *udp);

/*
 * Answers what has arrived on the struct udp_socket, for about a millisecond.  True: there is more,
 * which nothing tells of, so it has to be called again after others had their turn.
 */
bool udp_readable(void *socket);

#endif

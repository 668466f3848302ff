/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connections that the driver may answer on (bpf/tcp.h): which, at which position, and which
 * commands.
 *
 * A flow is made for a connection that has sent some commands that the driver could have answered.
 * From then on the position is published before each write that answers all that was read, and
 * withdrawn before a message is sent that is not a reply, or when state that the driver does not
 * know has changed.  A worker with its own lock (worker.h) may publish and withdraw its clients'
 * flows; the other functions need all locks.
 */
#ifndef XKV_FLOWS_H
#define XKV_FLOWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "bpf/tcp.h"

/* What the driver may do for a connection; all zero: nothing. */
struct flow_rights {
	uint32_t commands; /* bits by enum xkv_tcp_command */
	bool resp3, no_touch;
	bool asked; /* its last command is one that the driver knows */
	unsigned int db;
};

/* Of a client; all zero: there is no flow. */
struct flow {
	uint32_t read, written; /* bytes of the connection, modulo 2^32 */
	uint32_t owner;		/* its place among the owners; 0 = none */
	uint64_t id;
	unsigned int rounds;  /* in which it could have been answered there, before it is made */
	bool unfit;	      /* the driver does not see this connection */
	bool findable;	      /* the kernel finds its socket by its addresses */
	unsigned int checked; /* the count of flows_missed() when nothing was held out of order */
	struct xkv_flow_key key;
};

struct flows;

/*
 * `map` is the kernel's map of flows, `owners` its mapped XKV_OWNERS_MAX owners; both stay the
 * caller's.  `stamped`: only of connections with time stamps, whose clients refuse what reaches
 * them untranslated.  NULL without memory.
 */
struct flows *flows_new(int map, struct xkv_owner *owners, bool stamped);
void flows_free(struct flows *all);

/*
 * All commands of a connection are answered, by bytes of which `unsent` are about to be written:
 * the driver may answer it with these rights.
 */
void flow_publish(struct flows *all, struct flow *f, int fd, size_t unsent,
		  const struct flow_rights *rights);
/* From the next request on, xkvd answers this connection, or all of them. */
void flow_take_back(struct flows *all, struct flow *f);
void flows_take_back(struct flows *all);
/* The driver may have missed segments. */
void flows_missed(struct flows *all);
/*
 * Has xkvd read more than the driver has passed up?  Then segments went by it, as while the program
 * was off, and may be requests that it has answered.
 */
bool flow_bypassed(const struct flows *all, const struct flow *f);
/* The connection is closed. */
void flow_end(struct flows *all, struct flow *f);
/* When the driver last answered, monotonic ns, 0 = never; and how often. */
uint64_t flow_used_ns(const struct flows *all, const struct flow *f);
uint64_t flow_requests(const struct flows *all, const struct flow *f);
/* What it has answered then: enum xkv_tcp_command. */
uint32_t flow_last(const struct flows *all, const struct flow *f);

/* Every second: forgets flows of closed connections that the kernel has forgotten, too. */
void flows_tend(struct flows *all);
/* Connections that may be answered in the driver now, and flows that there are. */
unsigned int flows_armed(const struct flows *all);
unsigned int flows_count(const struct flows *all);

#endif

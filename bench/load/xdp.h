/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * State that the threads of an AF_XDP load share: the program on the device, the path to the
 * server, the owner of each port, and an inbox for each thread.  The NIC chooses the queue of a
 * reply, so another thread may receive it than the one that sent the request; it copies the reply
 * to the inbox of that thread.
 */
#ifndef BENCH_XDP_H
#define BENCH_XDP_H

#include <pthread.h>
#include <stdint.h>

#include "bench/bpf/xsk.h"
#include "datagram.h"
#include "options.h"
#include "protocol.h"
#include "transport.h"

#define INBOX_ROOM XSK_RING /* datagrams; as many as a ring has */

struct xsk_bpf;
struct client;

struct inbox {
	pthread_mutex_t lock;
	int event;	    /* eventfd, written when the inbox was empty */
	unsigned int count; /* under the lock, or read as a hint */
	struct {
		struct client *client;
		uint16_t len;
		uint8_t data[DATAGRAM_MAX];
	} item[INBOX_ROOM];
};

struct xdp {
	const struct options *o;
	struct server_address server;
	struct xsk_bpf *skel;
	struct bpf_link *link;
	unsigned int ifindex;
	int replaced_fd; /* the test bed's program, to be attached again at the end; -1 = none */
	struct datagram_path path;
	unsigned int queue[XSK_QUEUES_MAX], queues;
	const char *mode; /* "copy" or "zerocopy"; known when the first socket is open */
	struct {
		struct client *client;
		unsigned int worker;
	} port[65536]; /* by port in network byte order */
	struct inbox inbox[];
};

/* Attaches the program and finds the server.  0, or -errno after an error message. */
int xdp_open(struct xdp **xdp, const struct options *o, const struct server_address *server);
/* Detaches the program and frees the state, or does nothing for NULL. */
void xdp_close(struct xdp *xdp);

/* Assigns a port to a client of a worker, or releases it if the client is NULL.  0 or -errno. */
int xdp_claim_port(struct xdp *x, in_port_t port, struct client *c, unsigned int worker);

/* Copies a datagram into the inbox of another thread.  False: the inbox is full.  Thread safe. */
bool inbox_put(struct inbox *in, struct client *c, const uint8_t *data, size_t len);

#endif

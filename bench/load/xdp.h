/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the threads of an AF_XDP load share: the program on the device, the way to
 * the server, which port is whose, and an inbox for each thread.  The NIC decides which
 * queue a reply comes on, so it may come to another thread than the one that asked; that
 * thread copies it into the asker's inbox.
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

#define INBOX_ROOM XSK_RING /* datagrams; no more can come */

struct xsk_bpf;
struct client;

struct inbox {
	pthread_mutex_t lock;
	int event;	    /* eventfd: something came into the empty inbox */
	unsigned int count; /* under the lock, or as a hint */
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
	int replaced_fd; /* the test bed's program, which is put back; -1 if there was none */
	struct datagram_path path;
	unsigned int queue[XSK_QUEUES_MAX], queues;
	const char *mode; /* "copy" or "zerocopy", when the first socket is open */
	struct {
		struct client *client;
		unsigned int worker;
	} port[65536]; /* by port in network byte order */
	struct inbox inbox[];
};

/* Attaches the program and finds the server.  0, or -errno after a sentence. */
int xdp_open(struct xdp **xdp, const struct options *o, const struct server_address *server);
/* Also for NULL.  Takes the program off. */
void xdp_close(struct xdp *xdp);

/* Replies to a port are this client's, of that worker; with a NULL client nobody's. 0 or -errno. */
int xdp_claim_port(struct xdp *x, in_port_t port, struct client *c, unsigned int worker);

/* Gives a datagram to the thread that asked for it.  False: there is no room. */
bool inbox_put(struct inbox *in, struct client *c, const uint8_t *data, size_t len);

#endif

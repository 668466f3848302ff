/* SPDX-License-Identifier: BSD-2-Clause */
/* The UDP front end of xkvd: answers the datagrams that XDP passed up. */
#ifndef XKV_UDP_H
#define XKV_UDP_H

#include <stddef.h>
#include <sys/queue.h>

#include "kernel/rules.h"
#include "store/store.h"

#define UDP_SOCKETS_MAX (CONFIG_MAX_BIND + 2)

struct udp_socket {
	struct udp *udp;
	int fd, family;
	struct udp_received *received; /* owned */
};

/* A datagram whose reply is sent later, or that reply. */
struct udp_kept {
	STAILQ_ENTRY(udp_kept) next; /* of replies */
	bool durable;		     /* the request asked for it: whatever `appendfsync` says */
	uint64_t position;	     /* in the change feed: the log has to be on disk up to it */
	const struct udp *udp;
	int fd;
	struct sockaddr_in6 from;
	socklen_t from_len;
	_Alignas(struct cmsghdr) char control[128]; /* says which address the reply is sent from */
	size_t control_len, len;
	char bytes[];
};

struct udp {
	/*
	 * Does the reply to a request have to wait?  Then the datagram is passed to kept(), and
	 * answered later by udp_send().  NULL: no reply waits.  kept() also gets changes that the
	 * upstream makes (`up`), which must not be executed again.
	 */
	bool (*holds)(void *arg, const char *request, size_t len, const char *reply,
		      size_t reply_len);
	void (*kept)(void *arg, struct udp_kept *d, bool up);
	void *hold_arg; /* of both */
	struct rules *rules;
	struct store_ctx *ctx;
	uint64_t *stat; /* by enum counter */
	struct durations *durations;
	STAILQ_HEAD(udp_held, udp_kept) held; /* replies that wait for the disk; owned */
	unsigned int held_count;
	size_t held_bytes;
	bool check_link; /* the sockets are bound to all addresses: only our links are served */
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

/* Executes it: the length of the reply in `reply` (XKV_PAYLOAD_MAX4 bytes), 0 if there is none. */
size_t udp_execute(const struct udp_kept *d, char *reply);
/* The same for a change that the upstream has made: copies of it get this reply. */
void udp_record(const struct udp_kept *d, const char *reply, size_t len);
/* Sends a reply. */
void udp_send(const struct udp_kept *d, const char *reply, size_t len);

/*
 * Sends the replies that have waited for the disk (persist/writelog.h): with `appendfsync always`
 * those to changes, and those to requests with XKV_F_DURABLE.  True: there are more, for the next
 * round.
 */
bool udp_send_held(struct udp *udp);

/* The first operation of a request that the engine has checked. */
const struct xkv_op *udp_first_op(const char *request);
/* The result at *at of a reply; advances *at to the next one.  False: there is none. */
bool udp_next_result(const char *reply, size_t len, size_t *at, struct xkv_result *r);

/* Answers datagrams that were read and wait for their turn: before exiting. */
void udp_finish(const struct udp *udp);

/* To be called when our addresses may have changed. */
void udp_follow_addresses(const struct udp *udp);

/*
 * Answers what has arrived on the struct udp_socket, for about a millisecond.  True: there is more,
 * without an event, so it has to be called again after others had their turn.
 */
bool udp_readable(void *socket);

#endif

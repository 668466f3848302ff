/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Requests over TCP that the driver answers: what the programs of bpf/tcp.bpf.c and xkvd share.
 *
 * The kernel's TCP makes a connection and xkvd owns it, as ever.  A flow has for such a connection
 * how many bytes of requests the driver has eaten, which the kernel never saw, and how many bytes
 * of replies it has injected, which the kernel never sent.  So there are two views of the sequence
 * numbers, and the programs translate between them whatever passes: the client's, and the
 * kernel's, which lacks those bytes.
 */
#ifndef XKV_TCP_H
#define XKV_TCP_H

#include <linux/types.h>

/* A new number whenever a structure below changes: xkvd does not adopt other flows. */
#define XKV_TCP_VERSION 1

#define XKV_FLOWS_MAX	  16384
#define XKV_OWNERS_MAX	  (XKV_FLOWS_MAX + 1) /* the first is for what concerns all */
#define XKV_TCP_REPLY_MAX 1448		      /* bytes of an injected reply */
#define XKV_TCP_MARK	  0x786b7654	      /* of a clone on its way out (skb->mark) */

struct xkv_flow_key {
	__u64 client[2], server[2]; /* as on the wire; IPv4 in the first word */
	__be16 client_port, server_port;
	__u32 zero;
};

/* The commands that the driver answers; xkvd says for each connection which of them it may. */
enum xkv_tcp_command {
	XKV_TCP_GET,
	XKV_TCP_SET,  /* without options */
	XKV_TCP_DEL,  /* and UNLINK, of one key */
	XKV_TCP_INCR, /* and DECR */
	XKV_TCP_PING, /* without argument */
	XKV_TCP_COMMANDS,
};

/*
 * What xkvd says of one of its connections, mapped by it.  `position` is read and written by one
 * instruction each: bytes that xkvd has read of the connection, and bytes that it has written, each
 * modulo 2^32.  It is published when all commands that were read are answered, before the write()
 * that makes it true; so if the client acknowledges as many bytes and sends the next, nothing is
 * under way in either direction.  The connection is armed then.
 */
struct xkv_owner {
	__u64 id;	/* of the connection, the same as flow.id; 0 = none */
	__u64 position; /* read << 32 | written */
	__u32 armed;	/* bits by enum xkv_tcp_command; 0: no request is answered */
	__u32 epoch;	/* has to be that of the first owner: a new one disarms all connections */
	__u8 resp3, no_touch;
	__u8 db; /* that SELECT chose */
	__u8 zero;
	__u32 zero2;
	/* written by the program, for xkvd */
	__u64 used_ns;	/* monotonic: of the last request */
	__u64 requests; /* answered there */
	__u64 zero3;
};

/*
 * A flow.  Sequence numbers are the client's view unless it says kernel's.  Written by the programs
 * under `lock`, but for what xkvd sets when it makes the flow: owner, id, scales, mss, has_stamps.
 */
struct xkv_flow {
	__u32 lock;
	__u32 owner;
	__u64 id;
	__u32 ready;			  /* the kernel's numbers are known */
	__u32 client_first, server_first; /* sequence numbers of the first byte */
	__u32 eaten, injected;		  /* bytes, modulo 2^32 */
	__u32 client_next;		  /* behind the highest byte that the client has sent */
	__u32 server_next;		  /* behind the highest byte that was sent to it */
	/* the last request that was eaten, and its reply, which is kept until it is acknowledged */
	__u32 request_seq, request_len;
	__u32 reply_seq, reply_len;
	__u32 reply_sum;
	__u32 unacked;	     /* the reply is not acknowledged */
	__u32 repeated_ms;   /* when the reply was sent last */
	__u32 kernel_acked;  /* kernel's view: the highest acknowledgement that was passed up */
	__u32 window;	     /* bytes that the kernel advertises */
	__u32 client_window; /* as on the wire */
	__u16 mss;
	__u8 client_scale, server_scale; /* of windows */
	__u8 has_stamps;		 /* RFC 7323 */
	__u8 client_seen;		 /* client_next is set */
	__u8 ack_owed; /* the kernel gets the acknowledgement that came with the request */
	__u8 zero;
	__u32 stamp_offset, stamp_last; /* of what is sent to the client, host byte order */
	/* the acknowledgement that is owed, in the kernel's view */
	__u32 owed_seq, owed_ack;
	__be32 owed_stamp, owed_echo;
	__u64 reply[256];
};

/* Reasons, per CPU. */
#define XKV_TCP_COUNTERS(X)                                                                        \
	X(requests)	 /* answered in the driver */                                              \
	X(repeated)	 /* kept replies that were sent again */                                   \
	X(acks)		 /* acknowledgements that the kernel got beside an answer */               \
	X(pass_other)	 /* passed up: no single command that the driver knows */                  \
	X(pass_unarmed)	 /* xkvd has to answer this connection */                                  \
	X(pass_order)	 /* not the next byte, or something is not acknowledged */                 \
	X(pass_window)	 /* the reply does not fit the client's window or a segment */             \
	X(pass_store)	 /* the store could not do it there */                                     \
	X(pass_checksum) /* wrong; the kernel decides */                                           \
	X(drop_busy)	 /* another CPU has the flow for too long; TCP repeats */                  \
	X(drop_resize)	 /* no room for the reply; the request is repeated, and gets it */         \
	X(swallowed)	 /* duplicate acknowledgements of what only the driver has sent */         \
	X(self_acked)	 /* old data of the kernel that the client has: acknowledged at once */

#define XKV_TCP_ENUM(name) XKV_TCP_C_##name,
enum xkv_tcp_counter { XKV_TCP_COUNTERS(XKV_TCP_ENUM) XKV_TCP_COUNTER_COUNT };

#endif

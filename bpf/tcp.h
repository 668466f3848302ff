/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Requests over TCP that the driver answers: definitions shared by the programs of bpf/tcp.bpf.c
 * and xkvd.  The kernel's TCP makes a connection and xkvd owns it, as usual.  A flow counts for
 * such a connection how many bytes of requests the driver has eaten, which the kernel never saw,
 * and how many bytes of replies it has injected, which the kernel never sent.  So there are two
 * views of the sequence numbers, the client's, and the kernel's, which lacks those bytes; the
 * programs translate every segment between them.
 */
#ifndef XKV_TCP_H
#define XKV_TCP_H

#include <linux/types.h>

#include "proto.h"

/* A new number whenever a structure below changes: xkvd does not adopt other flows. */
#define XKV_TCP_VERSION 8

#define XKV_FLOWS_MAX	  16384
#define XKV_OWNERS_MAX	  (XKV_FLOWS_MAX + 1) /* the first is for all connections */
#define XKV_TCP_REPLY_MAX 1448		      /* bytes of an injected reply */
#define XKV_TCP_MARK	  0x786b7654	      /* of a clone on its way out (skb->mark) */
#define XKV_TCP_OWN	  0x786b /* urgent pointer, without the flag: from xkv_tcp_out */
#define XKV_TCP_FRAME_MAX 4096	 /* bytes of a segment that is verified: a page, as XDP has */
#define XKV_TCP_MSS_MIN	  64	 /* even if a router reports a smaller limit for packets */

struct xkv_flow_key {
	__u64 client[2], server[2]; /* as on the wire; IPv4 in the first word */
	__be16 client_port, server_port;
	__u32 zero;
};

/*
 * The commands that the driver answers: name, words, operation of the engine and its flags, what
 * the third word is if it is a number, what the reply is, and which options, or further keys, may
 * follow (bpf/resp.bpf.h).  A value is the last word.
 */
#define XKV_TCP_COMMANDS(X)                                                                        \
	X(GET, 2, GET, 0, NONE, VALUE, NO)                                                         \
	X(SET, 3, SET, 0, NONE, OK, SET)                                                           \
	X(SETNX, 3, SET, XKV_NX, NONE, YES_NO, NO)                                                 \
	X(SETEX, 4, SET, 0, SECONDS, OK, NO)                                                       \
	X(PSETEX, 4, SET, 0, MILLISECONDS, OK, NO)                                                 \
	X(GETSET, 3, SET, XKV_RETURN, NONE, VALUE, NO)                                             \
	X(GETDEL, 2, DELETE, XKV_RETURN, NONE, VALUE, NO)                                          \
	X(GETEX, 2, GET, 0, NONE, VALUE, GETEX)                                                    \
	X(DEL, 2, DELETE, 0, NONE, YES_NO, KEYS)                                                   \
	X(UNLINK, 2, DELETE, 0, NONE, YES_NO, KEYS)                                                \
	X(EXISTS, 2, TTL, 0, NONE, YES_NO, KEYS)                                                   \
	X(TOUCH, 2, TOUCH, 0, NONE, YES_NO, KEYS)                                                  \
	X(MGET, 2, GET, 0, NONE, VALUES, KEYS)                                                     \
	X(STRLEN, 2, GET, 0, NONE, LENGTH, NO)                                                     \
	X(TTL, 2, TTL, 0, NONE, SECONDS_LEFT, NO)                                                  \
	X(PTTL, 2, TTL, 0, NONE, MILLISECONDS_LEFT, NO)                                            \
	X(EXPIRE, 3, EXPIRE, 0, SECONDS, YES_NO, EXPIRE)                                           \
	X(PEXPIRE, 3, EXPIRE, 0, MILLISECONDS, YES_NO, EXPIRE)                                     \
	X(EXPIREAT, 3, EXPIRE, XKV_ABSTTL, SECONDS, YES_NO, EXPIRE)                                \
	X(PEXPIREAT, 3, EXPIRE, XKV_ABSTTL, MILLISECONDS, YES_NO, EXPIRE)                          \
	X(PERSIST, 2, EXPIRE, XKV_XX, NONE, YES_NO, NO)                                            \
	X(APPEND, 3, APPEND, 0, NONE, NUMBER, NO)                                                  \
	X(INCR, 2, INCR, 0, PLUS_ONE, NUMBER, NO)                                                  \
	X(DECR, 2, INCR, 0, MINUS_ONE, NUMBER, NO)                                                 \
	X(INCRBY, 3, INCR, 0, AMOUNT, NUMBER, NO)                                                  \
	X(DECRBY, 3, INCR, 0, MINUS_AMOUNT, NUMBER, NO)                                            \
	X(PING, 1, PING, 0, NONE, PONG, NO)

#define XKV_TCP_COMMAND_ENUM(name, ...) XKV_TCP_##name,
enum xkv_tcp_command { XKV_TCP_COMMANDS(XKV_TCP_COMMAND_ENUM) XKV_TCP_COMMAND_COUNT };

/*
 * xkvd's state of one of its connections, which it maps.  `position` is read and written by one
 * instruction each: bytes that xkvd has read from the connection, and bytes that it has written,
 * each modulo 2^32.  It is published when all commands that were read are answered, before the
 * write() that makes it true; so if the client acknowledges as many bytes and sends the next,
 * nothing is in flight in either direction.  The connection is armed then.
 */
struct xkv_owner {
	__u64 id;	/* of the connection, the same as flow.id; 0 = none */
	__u64 position; /* read << 32 | written */
	__u32 armed;	/* bits by enum xkv_tcp_command; 0: the driver answers none */
	__u32 epoch;	/* must equal that of the first owner: a new one disarms all connections */
	__u8 resp3, no_touch;
	__u8 db; /* that SELECT chose */
	__u8 zero;
	/* written by the program, for xkvd, once it has answered */
	__u32 last;	/* the last command that the driver answered */
	__u64 used_ns;	/* monotonic: when that was */
	__u64 requests; /* answered there */
	__u32 passed;	/* bytes that went up at most, modulo 2^32: xkvd cannot read more */
	__u32 in_parts; /* ... but in fragments, which are not counted */
};

/*
 * A flow.  Sequence numbers are the client's view unless it says kernel's.  Written by the programs
 * under `lock`, except for the fields that xkvd sets when it makes the flow: owner, id, scales,
 * mss, has_stamps.
 */
struct xkv_flow {
	__u32 lock;
	__u32 owner;
	__u64 id;
	__u32 ready;			  /* the kernel's numbers are known */
	__u32 client_first, server_first; /* sequence numbers of the first byte */
	__u32 eaten, injected;		  /* bytes, modulo 2^32 */
	__u32 client_next;		  /* after the highest byte that the client has sent */
	__u32 server_next;		  /* after the highest byte that was sent to it */
	/* the last request that was eaten, and its reply, which is kept until it is acknowledged */
	__u32 request_seq, request_len;
	__u32 reply_seq, reply_len;
	__u32 reply_sum;
	__u32 unacked;	     /* the reply is not acknowledged */
	__u32 repeated_ms;   /* when the reply was last sent */
	__u32 kernel_acked;  /* kernel's view: the highest acknowledgement that was passed up */
	__u32 window;	     /* bytes that the kernel advertises */
	__u32 client_window; /* as on the wire */
	__u16 mss;	     /* bytes of a reply at most */
	__u16 kernel_mss;    /* the kernel's last values */
	__u8 client_scale, server_scale; /* of windows */
	__u8 has_stamps;		 /* RFC 7323 */
	__u8 client_seen;		 /* client_next is set */
	__u8 ack_owed;	     /* the kernel gets the acknowledgement that came with the request */
	__u8 skipped;	     /* segments since ... */
	__u8 in_parts;	     /* fragments have arrived: the position of the next byte is unknown */
	__u8 kernel_sent;    /* something, since the client's last segment went up */
	__u16 kernel_window; /* of the client, that the kernel knows, as on the wire */
	__u8 answered;	     /* something, so segments are translated */
	__u8 zero;
	__u32 too_long; /* ... a pipeline of so many bytes had replies that did not fit; 0 = none */
	__u32 stamp_offset, stamp_last; /* of segments to the client, kernel's, host byte order */
	__u32 client_stamp;		/* the last of the client, host byte order */
	/* the acknowledgement that is owed, in the kernel's view; its echo in the client's */
	__u32 owed_seq, owed_ack;
	__be32 owed_stamp, owed_echo;
	__u64 reply[257]; /* the last is for longer ones */
};

/* Commands that were answered in the driver, and reasons. */
#define XKV_TCP_COUNTERS(X)                                                                        \
	X(requests)	 /* answered in the driver */                                              \
	X(extra)	 /* operations of the engine for them, beyond one for each */              \
	X(segments)	 /* that they came in */                                                   \
	X(repeated)	 /* kept replies that were sent again */                                   \
	X(acks)		 /* acknowledgements that the kernel got beside a reply */                 \
	X(grown)	 /* replies for which a packet had no room, so that tc made it */          \
	X(partial)	 /* segments of which only the first commands were answered */             \
	X(pass_other)	 /* passed up: not commands of the driver */                               \
	X(pass_unarmed)	 /* xkvd has to answer this connection */                                  \
	X(pass_order)	 /* not the next byte, or something is not acknowledged */                 \
	X(pass_window)	 /* the reply does not fit the client's window or a segment */             \
	X(pass_store)	 /* the driver could not execute it */                                     \
	X(pass_checksum) /* wrong; the kernel decides */                                           \
	X(drop_busy)	 /* another CPU has the flow for too long; TCP repeats */                  \
	X(drop_resize)	 /* no memory for the reply; the request is repeated, and gets it */       \
	X(swallowed)	 /* acknowledgements of what only the driver has sent */                   \
	X(self_acked)	 /* old data of the kernel that the client has: acknowledged at once */    \
	X(errors)	 /* ICMP errors about a connection, translated for the kernel */           \
	X(pieces)	 /* parts of kept replies that had become too long for the path */

#define XKV_TCP_ENUM(name) XKV_TCP_C_##name,
enum xkv_tcp_counter { XKV_TCP_COUNTERS(XKV_TCP_ENUM) XKV_TCP_COUNTER_COUNT };

/* Of a CPU; they only grow. */
struct xkv_tcp_stats {
	__u64 count[XKV_TCP_COUNTER_COUNT];
	__u64 bytes_in, bytes_out; /* of commands that were answered, and of their replies */
	struct xkv_tcp_calls {
		__u64 calls, failed, ns;
	} command[XKV_TCP_COMMAND_COUNT];
};

_Static_assert(XKV_TCP_COMMAND_COUNT <= 32, "owner.armed has a bit for each");
_Static_assert(sizeof(struct xkv_flow) <= 4096, "memory of a flow");

#endif

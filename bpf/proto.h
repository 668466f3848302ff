/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The wire format of xkv over UDP, version 1: the only definition, included by the XDP program,
 * xkvd, libxkv, the load generator and the tests.  docs/protocol.md draws it; tests/vectors.txt
 * holds examples of it.
 *
 * A datagram is a header, an optional 16-byte token, an optional 8-byte session, 1 to 255
 * operations, and optional padding, which counts as part of the request (XKV_PAD):
 *
 *      0       1       2       3       4       5       6       7
 *     +-------+-------+-------+-------+-------+-------+-------+-------+
 *   0 |  magic 58 4b  |version| flags | count |db/sta.|    length     |
 *     +-------+-------+-------+-------+-------+-------+-------+-------+
 *   8 |                          request id                           |
 *     +-------+-------+-------+-------+-------+-------+-------+-------+
 *
 * and one operation (in a request) or result (in a reply), each of which
 * starts at a multiple of 8 from the start of the header:
 *
 *     +-------+-------+-------+-------+-------+-------+-------+-------+
 *   0 |opcode | flags |key_len| keys  |           value_len           |  op
 *   0 |opcode |status | flags | index |           value_len           |  result
 *     +-------+-------+-------+-------+-------+-------+-------+-------+
 *   8 |                      ttl, milliseconds                        |
 *     +-------+-------+-------+-------+-------+-------+-------+-------+
 *  16 |                           version                             |
 *     +-------+-------+-------+-------+-------+-------+-------+-------+
 *  24 | key (op only), then value, each padded with zeros to 8 bytes  |
 *
 * All numbers are in network byte order.  Everything is a multiple of 8 bytes
 * so that the in-kernel store can hash, compare and copy words, and so that no
 * field ever straddles one.
 */
#ifndef XKV_PROTO_H
#define XKV_PROTO_H

#include <linux/types.h>

#define XKV_PORT 6379 /* that of Redis, for TCP and UDP */

#define XKV_MAGIC   0x584b /* "XK" */
#define XKV_VERSION 1

#define XKV_KEY_MAX	  250	       /* memcached's limit */
#define XKV_LONG_KEY_MAX  65536	       /* of keys over RESP: see bpf/layout.h */
#define XKV_VALUE_MAX	  (1U << 20)   /* of a value that APPEND makes */
#define XKV_HUGE_MAX	  (512U << 20) /* of a value that RESP can set, as in Redis */
#define XKV_TOKEN_BYTES	  16
#define XKV_SESSION_BYTES 8
#define XKV_SESSION_PROOF 3	       /* the last bytes of a session, set by XKV_OP_SESSION */
#define XKV_SCAN_MAX	  100	       /* keys of a SCAN */
#define XKV_ATOMIC_MAX	  48	       /* operations with XKV_F_ATOMIC; 45 fit a datagram */
#define XKV_TTL_MAX	  (1ULL << 53) /* ms, 285,000 years: adding it to a time cannot overflow */

/* A datagram on a 1,500-byte link: less 20 (IPv4) or 40 (IPv6), less 8 (UDP). */
#define XKV_PAYLOAD_MAX4 1472
#define XKV_PAYLOAD_MAX6 1452

/* struct xkv_hdr.flags */
#define XKV_F_REPLY   0x01 /* set in replies only; servers drop packets that have it */
#define XKV_F_TOKEN   0x02 /* XKV_TOKEN_BYTES of client token follow the header */
#define XKV_F_ONCE    0x04 /* then XKV_SESSION_BYTES of session: copies are executed once */
#define XKV_F_ATOMIC  0x08 /* the operations are one transaction: all or none */
#define XKV_F_DURABLE 0x10 /* the reply comes when all earlier changes are on disk */

struct xkv_hdr {
	__be16 magic;
	__u8 version;
	__u8 flags;
	__u8 count; /* operations; in a reply: results, possibly fewer */
	union {
		__u8 db;     /* in a request: the database of its keys */
		__u8 status; /* in a reply: why no operation was executed */
	};
	__be16 length; /* header, token, session and operations, without padding */
	__be64 id;     /* chosen by the client, echoed */
};

enum xkv_opcode {
	XKV_OP_PING = 1,
	XKV_OP_GET = 2,
	XKV_OP_SET = 3,
	XKV_OP_DELETE = 4,
	XKV_OP_EXPIRE = 5,   /* ttl 0: never expires */
	XKV_OP_INCR = 6,     /* value: the amount, 8 bytes, signed; so is the result's */
	XKV_OP_APPEND = 7,   /* the result's value: the new length, 8 bytes */
	XKV_OP_TTL = 8,	     /* GET without the value, and without being an access */
	XKV_OP_TOUCH = 9,    /* GET without the value */
	XKV_OP_SCAN = 10,    /* GET of `keys` keys with consecutive numbers at their ends */
	XKV_OP_SESSION = 11, /* with XKV_F_ONCE: returns the session with its proof */
	XKV_OP_CHECK = 12,   /* with XKV_F_ATOMIC: the key has this version, 0 = is missing */
};

/* Those that only read, and those that may change something. */
#define XKV_IS_READ(opcode)                                                                        \
	((opcode) == XKV_OP_GET || ((opcode) >= XKV_OP_TTL && (opcode) <= XKV_OP_SCAN))
#define XKV_IS_CHANGE(opcode) ((opcode) >= XKV_OP_SET && (opcode) <= XKV_OP_APPEND)

/* struct xkv_op.flags; docs/protocol.md lists which opcodes take which */
#define XKV_NX	    0x01 /* SET only if the key does not exist */
#define XKV_XX	    0x02 /* SET only if the key exists */
#define XKV_KEEPTTL 0x04 /* SET keeps the expiry of the key */
#define XKV_CAS	    0x08 /* only if the key's version is op.version */
#define XKV_RETURN  0x10 /* the result carries the value that was replaced or deleted */
#define XKV_ABSTTL  0x20 /* ttl is Unix time in milliseconds, not relative */

struct xkv_op {
	__u8 opcode;
	__u8 flags;
	__u8 key_len;	  /* 1..XKV_KEY_MAX; 0 for PING */
	__u8 keys;	  /* SCAN only, 1..XKV_SCAN_MAX; else 0 */
	__be32 value_len; /* SET, INCR, APPEND; else 0 */
	__be64 ttl;	  /* milliseconds, 0 = none (SET, EXPIRE; else 0) */
	__be64 version;	  /* with XKV_CAS, and of CHECK; else 0 */
};

enum xkv_status {
	XKV_OK = 0,
	XKV_MISS = 1,	     /* no such key */
	XKV_NOT_STORED = 2,  /* the NX, XX or CAS condition does not hold */
	XKV_TOO_LARGE = 3,   /* value of value_len bytes: use TCP.  APPEND: over the limit */
	XKV_PAD = 4,	     /* reply too long for this request: pad it to value_len bytes */
	XKV_NO_MEMORY = 5,   /* the store is full; nothing was changed */
	XKV_BUSY = 6,	     /* contended; nothing was changed: retry */
	XKV_BAD_REQUEST = 7, /* lengths, flags or padding that contradict each other */
	XKV_BAD_OPCODE = 8,
	XKV_BAD_KEY = 9,      /* key of 0 or more than XKV_KEY_MAX bytes */
	XKV_BAD_VERSION = 10, /* header only: the server speaks XKV_VERSION */
	XKV_NOAUTH = 11,      /* header only: token missing or wrong */
	XKV_NOT_NUMBER = 12,  /* INCR: the value is not an integer, or out of range */
	XKV_OVERFLOW = 13,    /* INCR: the sum would be out of range */
	XKV_REPEATED = 14,    /* header only: executed before; its reply was too long to be kept */
	XKV_NO_SESSION = 15,  /* header only: too many sessions; nothing was done */
	XKV_READ_ONLY = 16,   /* writes are refused; nothing was changed */
	XKV_ABORTED = 17, /* header only: XKV_F_ATOMIC, nothing was done; the one result says why */
	XKV_NO_LOG = 18,  /* header only: XKV_F_DURABLE without a write log; nothing was done */
};

/* struct xkv_result.flags */
#define XKV_HAS_VALUE 0x01 /* a value follows, possibly empty */

struct xkv_result {
	__u8 opcode; /* of the operation that this answers */
	__u8 status;
	__u8 flags;	  /* XKV_HAS_VALUE */
	__u8 index;	  /* with XKV_ABORTED: of the operation, from 0; else 0 */
	__be32 value_len; /* bytes of value that follow; else see XKV_TOO_LARGE, XKV_PAD */
	__be64 ttl;	  /* milliseconds left, 0 = does not expire */
	__be64 version;	  /* of the entry after the operation, 0 = none */
};

/* Bytes that `len` bytes of key or value take on the wire. */
#define XKV_PADDED(len) (((len) + 7U) & ~7U)

_Static_assert(sizeof(struct xkv_hdr) == 16, "wire format");
_Static_assert(sizeof(struct xkv_op) == 24, "wire format");
_Static_assert(sizeof(struct xkv_result) == 24, "wire format");

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libxkv: the C client of xkv over UDP.  docs/libxkv.3 is the manual,
 * docs/protocol.md the wire format.  Link with -lxkv.
 *
 *      int err;
 *      struct xkv *h = xkv_open("10.77.0.1", 6379, NULL, &err);
 *      struct xkv_reply r;
 *
 *      if (!h)
 *              errx(3, "%s", xkv_strerror(err));
 *      err = xkv_set(h, "greeting", 8, "hello", 5, 60000, 0, NULL);
 *      if (!err)
 *              err = xkv_get(h, "greeting", 8, &r);
 *      if (!err)
 *              printf("%.*s\n", (int)r.value_len, (const char *)r.value);
 *      xkv_close(h);
 *
 * Units: times are in milliseconds, lengths in bytes.  Keys and values are
 * binary: they may hold any byte, zeros included.
 *
 * Threads: a handle serves one thread at a time.  Threads with a handle each
 * need no locks; the library has no global state.
 *
 * Errors: calls return 0 or a negative `enum xkv_error`;
 * xkv_strerror() has a sentence for each.
 *
 * Ownership: arguments stay the caller's and are read during the call only.  A value that is
 * returned belongs to the handle and stays valid until the next call with that handle; a zero byte
 * that value_len does not count follows it, so that text can be used as a C string.
 *
 * Repeats: a request that is not answered is sent again.  The server recognises
 * copies of a change and executes it only once, however many arrive, and when.
 * docs/libxkv.3 describes what an older server, which cannot do so, does.
 */
#ifndef XKV_H
#define XKV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define XKV_API __attribute__((visibility("default")))

/*
 * The same names and numbers as in the wire format.  libxkv.c includes both
 * definitions, so the compiler finds differences.
 */
#define XKV_PORT	6379	     /* default port of servers */
#define XKV_KEY_MAX	250	     /* longest key */
#define XKV_TOKEN_BYTES 16	     /* length of a client token */
#define XKV_TTL_MAX	(1ULL << 53) /* longest time to live, milliseconds */
#define XKV_ATOMIC_MAX	48	     /* commands of a transaction */
/* highest number of a database; servers may have fewer, 16 by default */
#define XKV_DATABASE_MAX 255

/* Flags of commands. */
#define XKV_NX	    0x01 /* SET: only if the key does not exist; not with XX or CAS */
#define XKV_XX	    0x02 /* SET, INCR, APPEND: only if the key exists */
#define XKV_KEEPTTL 0x04 /* SET: keep the expiry of the key; ttl_ms must be 0 */
/* SET, DELETE, EXPIRE, INCR, APPEND: only if the entry's version is `version` */
#define XKV_CAS	   0x08
#define XKV_RETURN 0x10 /* SET, DELETE: return the previous value */
#define XKV_ABSTTL 0x20 /* SET, EXPIRE: ttl_ms is Unix time in milliseconds */

enum xkv_error {
	/* 0 is success.  The first seventeen are statuses from the server. */
	XKV_E_MISS = -1,       /* no such key */
	XKV_E_NOT_STORED = -2, /* the NX, XX or CAS condition does not hold */
	XKV_E_TOO_LARGE = -3, /* the value does not fit a datagram; its length is reply.value_len */
	XKV_E_PAD = -4,	      /* the server wants more padding than a datagram can hold */
	XKV_E_NO_MEMORY = -5, /* the server's store is full; nothing was changed */
	XKV_E_BUSY = -6,      /* contended, or no upstream; nothing was changed: try again */
	XKV_E_BAD_REQUEST = -7,	 /* the server found the request malformed */
	XKV_E_BAD_OPCODE = -8,	 /* the server does not know the command */
	XKV_E_BAD_KEY = -9,	 /* key of 0 or more than XKV_KEY_MAX bytes */
	XKV_E_BAD_VERSION = -10, /* the server speaks another version of the protocol */
	XKV_E_NOAUTH = -11,	 /* the token is missing or wrong */
	XKV_E_NOT_NUMBER = -12,	 /* INCR: the value is not an integer, or out of range */
	XKV_E_OVERFLOW = -13,	 /* INCR: the sum would be out of range */
	XKV_E_REPEATED = -14,	 /* executed before; its answer was lost, and too long to be kept */
	XKV_E_NO_SESSION = -15,	 /* the server has no room to recognise repeats of the change */
	XKV_E_READ_ONLY = -16,	 /* the server cannot save, see its log; nothing was changed */
	XKV_E_ABORTED = -17, /* xkv_atomic(): a command could not be done; nothing was changed */
	XKV_E_NO_LOG = -18,  /* xkv_set_durable(): the server has no log; nothing was changed */
	/* The others come from the library. */
	XKV_E_TIMEOUT = -32,	   /* no answer; the command may or may not have been executed */
	XKV_E_REFUSED = -33,	   /* no server listens on that port */
	XKV_E_UNREACHABLE = -34,   /* no route to the host */
	XKV_E_HOST = -35,	   /* the name cannot be resolved */
	XKV_E_PROTOCOL = -36,	   /* the answer violated the protocol */
	XKV_E_INVALID = -37,	   /* an argument is invalid; nothing was sent */
	XKV_E_OUT_OF_MEMORY = -38, /* malloc failed in the library */
	XKV_E_SYSTEM = -39,	   /* a system call failed: errno has the reason */
	XKV_E_NO_DATABASE = -40,   /* the server does not have the selected database */
};

/* Options of a handle.  Zero means the default of a member. */
struct xkv_options {
	unsigned int timeout_ms; /* for the answer to a datagram, including repeats; 1000 */
	unsigned int retry_ms;	 /* before the first repeat; doubles with each, +-25 %; 50 */
	int retries;		 /* most repeats of a datagram; 8; -1 = never repeat */
	/* Longest UDP payload to send, 512 up to the default: 1472 on IPv4, 1452 on IPv6. */
	unsigned int payload_max;
	const unsigned char *token; /* XKV_TOKEN_BYTES, copied; NULL = none */
	int once; /* -1 = the server need not recognise copies of a change: see "Repeats" */
	unsigned int database; /* of all keys, see xkv_select(); 0 */
};

/* The result of a command. */
struct xkv_reply {
	int status;	   /* 0 or a negative enum xkv_error */
	unsigned int sent; /* how often it was sent, without copies that were refused */
	const void *value; /* NULL = none; not NULL for an empty value */
	/* of `value`; with XKV_E_TOO_LARGE the length of the value that would not fit */
	size_t value_len;
	uint64_t ttl_ms;  /* remaining time to live, 0 = no expiry */
	uint64_t version; /* of the entry after the command, 0 = no entry */
	int64_t number;	  /* INCR: the new number; APPEND: the new length */
};

enum xkv_command {
	XKV_CMD_PING = 1,
	XKV_CMD_GET = 2,
	XKV_CMD_SET = 3,
	XKV_CMD_DELETE = 4,
	XKV_CMD_EXPIRE = 5, /* sets the time to live; ttl_ms 0: no expiry */
	XKV_CMD_INCR = 6,   /* adds `amount` to the value, which is a number as decimal text */
	XKV_CMD_APPEND = 7, /* appends `value` to the value */
	XKV_CMD_TTL = 8,    /* GET without the value; does not count as an access */
	XKV_CMD_TOUCH = 9,  /* GET without the value */
	/* xkv_atomic(): the key still has this version; 0: is missing */
	XKV_CMD_CHECK = 12,
};

/*
 * A command for xkv_batch() or xkv_atomic().  Members that the command does not use must be zero.
 */
struct xkv_cmd {
	enum xkv_command command;
	unsigned int flags;
	const void *key;
	size_t key_len; /* 1..XKV_KEY_MAX; 0 for PING */
	const void *value;
	size_t value_len;	/* 0..xkv_value_max() */
	uint64_t ttl_ms;	/* 0..XKV_TTL_MAX, or with XKV_ABSTTL a time; 0 = no expiry */
	uint64_t version;	/* with XKV_CAS, and of CHECK */
	int64_t amount;		/* INCR */
	struct xkv_reply reply; /* written by the library */
};

/* A handle. */
struct xkv;

/*
 * Opens a handle to a server.  `host` is an IPv4 or IPv6 address or a name,
 * `port` is 1..65535.  `opts` may be NULL.  Sends nothing: if a name has
 * several addresses, the first call tries them in order until one does not
 * refuse.  NULL on failure, with a code in *error (`error` may be NULL):
 * XKV_E_HOST, _UNREACHABLE, _INVALID, _OUT_OF_MEMORY or _SYSTEM.
 */
XKV_API struct xkv *xkv_open(const char *host, unsigned int port, const struct xkv_options *opts,
			     int *error);
/* Closes the handle and frees its values.  NULL is allowed. */
XKV_API void xkv_close(struct xkv *h);

/* Sets the token of later requests (XKV_TOKEN_BYTES, copied); NULL = none. */
XKV_API void xkv_set_token(struct xkv *h, const unsigned char *token);

/*
 * Whether later calls return only when all earlier changes, of any client, are on the server's
 * disk.  Without a write log they return XKV_E_NO_LOG, and nothing is changed; if the log was
 * switched off meanwhile, they return the same, but an earlier copy of the change may have been
 * made.  Waiting for a disk may take longer than timeout_ms.
 */
XKV_API void xkv_set_durable(struct xkv *h, int durable);

/*
 * Selects the database of the keys of later calls, 0..XKV_DATABASE_MAX.  Sends nothing: if the
 * server does not have it, those calls return XKV_E_NO_DATABASE, and nothing is changed.  0, or
 * XKV_E_INVALID, and the selected database does not change.
 */
XKV_API int xkv_select(struct xkv *h, unsigned int database);

/* Length of the longest value that can be SET with a key of this length, 0 if none can. */
XKV_API size_t xkv_value_max(const struct xkv *h, size_t key_len);

/* Sends a PING.  0 if the server answers, or an error. */
XKV_API int xkv_ping(struct xkv *h);

/* Reads a key.  0 with value, ttl_ms and version in *out, or XKV_E_MISS and others. */
XKV_API int xkv_get(struct xkv *h, const void *key, size_t key_len, struct xkv_reply *out);

/*
 * Sets a key.  `flags`: XKV_NX, XKV_XX, XKV_KEEPTTL, XKV_RETURN, XKV_ABSTTL.
 * `out` may be NULL; it gets the new version, or with XKV_E_NOT_STORED the
 * present version, and with XKV_RETURN the previous value.
 */
XKV_API int xkv_set(struct xkv *h, const void *key, size_t key_len, const void *value,
		    size_t value_len, uint64_t ttl_ms, unsigned int flags, struct xkv_reply *out);

/*
 * Sets a key only if its entry has `version`.  XKV_E_NOT_STORED: it has another
 * one, which is in out->version; XKV_E_MISS: there is no such key.  Other
 * arguments as in xkv_set().
 */
XKV_API int xkv_cas(struct xkv *h, const void *key, size_t key_len, const void *value,
		    size_t value_len, uint64_t ttl_ms, uint64_t version, unsigned int flags,
		    struct xkv_reply *out);

/* xkv_set() with XKV_NX: XKV_E_NOT_STORED if there is such a key. */
XKV_API int xkv_add(struct xkv *h, const void *key, size_t key_len, const void *value,
		    size_t value_len, uint64_t ttl_ms, struct xkv_reply *out);
/* xkv_set() with XKV_XX: XKV_E_NOT_STORED if there is no such key. */
XKV_API int xkv_replace(struct xkv *h, const void *key, size_t key_len, const void *value,
			size_t value_len, uint64_t ttl_ms, struct xkv_reply *out);

/*
 * Adds `amount`, which may be negative, to the value of a key: a signed 64-bit number as decimal
 * text.  A key that does not exist counts as 0.  The expiry does not change.  `flags`: 0 or
 * XKV_XX.  0 with out->number; or XKV_E_NOT_NUMBER or XKV_E_OVERFLOW, and nothing was changed.
 */
XKV_API int xkv_incr(struct xkv *h, const void *key, size_t key_len, int64_t amount,
		     unsigned int flags, struct xkv_reply *out);

/*
 * Appends bytes to a value; a key that does not exist is created.  The expiry does not change.
 * `flags`: 0 or XKV_XX.  0 with the new length in out->number; XKV_E_TOO_LARGE, and nothing
 * was changed, if that would be more than 1 MiB.
 */
XKV_API int xkv_append(struct xkv *h, const void *key, size_t key_len, const void *value,
		       size_t value_len, unsigned int flags, struct xkv_reply *out);

/* Deletes a key.  `flags`: 0 or XKV_RETURN.  `out` may be NULL.  XKV_E_MISS if there is none. */
XKV_API int xkv_delete(struct xkv *h, const void *key, size_t key_len, unsigned int flags,
		       struct xkv_reply *out);

/* xkv_delete() with XKV_RETURN: the deleted value is in *out. */
XKV_API int xkv_getdel(struct xkv *h, const void *key, size_t key_len, struct xkv_reply *out);

/*
 * Sets the time to live of a key, 0 = no expiry.  `flags`: 0 or XKV_ABSTTL.  XKV_E_MISS if there is
 * no such key.  To do so only for a given version, use xkv_batch() with XKV_CAS.
 */
XKV_API int xkv_expire(struct xkv *h, const void *key, size_t key_len, uint64_t ttl_ms,
		       unsigned int flags);
/* Removes the expiry: xkv_expire() with 0. */
XKV_API int xkv_persist(struct xkv *h, const void *key, size_t key_len);

/* Reads ttl_ms and version of a key, not its value, and does not count as an access to it. */
XKV_API int xkv_ttl(struct xkv *h, const void *key, size_t key_len, struct xkv_reply *out);
/* The same, but counts as an access, so that the key is evicted later. */
XKV_API int xkv_touch(struct xkv *h, const void *key, size_t key_len, struct xkv_reply *out);

/*
 * Called by xkv_scan() with a key, followed by a zero byte, and the reply that xkv_get() would
 * give.  Both are valid during the call only, in which the handle must not be used.  A return value
 * other than 0 ends the scan.
 */
typedef int xkv_scan_fn(void *arg, const char *key, size_t key_len, const struct xkv_reply *reply);

/*
 * Reads `n` consecutively numbered keys.  The first key ends in decimal digits, which are
 * incremented without changing their number: key:08, key:09, key:10.  After key:99 the scan ends,
 * even if fewer than n keys were read.  Returns 0, the value of `fn` if that was not 0, or an error
 * after the keys for which `fn` was called.  XKV_E_INVALID: the key does not end in a digit.
 */
XKV_API int xkv_scan(struct xkv *h, const void *key, size_t key_len, size_t n, xkv_scan_fn *fn,
		     void *arg);

/*
 * Runs `n` commands in order.  Reads are sent in as few datagrams as possible; each change has a
 * datagram of its own, so that the server can recognise its copies (with xkv_options.once -1
 * changes share datagrams, too).  A batch is not a transaction: commands of other clients may be
 * executed in between.  All commands are checked before the first is sent.
 *
 * 0 if every command was answered; cmds[i].reply.status has the result of each.  Else an error,
 * which is also the status of all commands without an answer; reply.sent is 0 for those that were
 * never sent.  The timeout is for each datagram.  The values of all replies are kept in memory
 * until the next call.
 */
XKV_API int xkv_batch(struct xkv *h, struct xkv_cmd *cmds, size_t n);

/*
 * Runs `n` commands as one transaction: all of them take effect at one point in time, or none does.
 * They have to fit one datagram, and a key that is changed may be in one command only.  PING is not
 * allowed, CHECK is.
 *
 * 0 if all were done; cmds[i].reply has their results (status XKV_E_MISS: a GET, TTL, TOUCH, DELETE
 * or EXPIRE of a key that does not exist, without a condition).  XKV_E_ABORTED: nothing was done;
 * cmds[*failed].reply.status says why (XKV_E_NOT_STORED or XKV_E_MISS: its condition does not hold;
 * XKV_E_TOO_LARGE, XKV_E_NOT_NUMBER and others), and the others have XKV_E_ABORTED as their status.
 * `failed` may be NULL.  XKV_E_REPEATED: it was done, but the answer was lost.  XKV_E_TOO_LARGE:
 * the commands do not fit one datagram.  XKV_E_TIMEOUT: it may or may not have been done.
 * XKV_E_BAD_REQUEST: the server is too old.  Values are valid until the next call.
 */
XKV_API int xkv_atomic(struct xkv *h, struct xkv_cmd *cmds, size_t n, size_t *failed);

/* A sentence for a code, in static storage. */
XKV_API const char *xkv_strerror(int error);

#ifdef __cplusplus
}
#endif

#endif

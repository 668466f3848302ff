/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * RESP, Redis' protocol: a resumable parser of requests (replies: reply.h).  Knows no sockets,
 * clients or commands.
 */
#ifndef XKV_RESP_H
#define XKV_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RESP_INLINE_MAX	 65536 /* bytes of one line: an inline command or a length */
#define RESP_UNAUTH_ARGS 10    /* what a client may send before AUTH, as in Redis 7 */
#define RESP_UNAUTH_BULK 16384
#define RESP_BULK_MAX	 UINT32_MAX /* longer is a protocol error; RESP_REFUSED up to that */

/* One argument; points into the buffer that was parsed.  Not NUL-terminated, may hold any byte. */
struct resp_arg {
	union {
		char *ptr;
		size_t off; /* only inside the parser, while a command is incomplete */
	};
	size_t len;
};

struct resp_limits {
	size_t max_bulk;      /* bytes of one argument; a command with more is RESP_REFUSED */
	bool unauthenticated; /* the RESP_UNAUTH_ limits hold */
};

/* A zero-filled parser is ready for use. */
struct resp_parser {
	struct resp_arg *argv; /* owned; valid after RESP_COMMAND until the next call */
	unsigned int argc;
	unsigned int cap;
	unsigned int left; /* arguments that are still to come */
	bool in_multibulk;
	bool in_bulk; /* the length `bulk` was read, its bytes are still to come */
	bool done;
	bool refused;	/* an argument is too long: the rest of the command is passed by */
	size_t bulk;	/* bytes of the argument, with its line end */
	size_t pos;	/* bytes from the start of the command that are parsed */
	size_t scanned; /* bytes behind pos that hold no end of line */
	char error[64]; /* after RESP_ERROR: text for the client */
};

enum resp_status {
	RESP_MORE,    /* the command is not complete: call again with more bytes */
	RESP_COMMAND, /* argc (perhaps 0: nothing to do) and argv are valid; it took `pos` bytes */
	RESP_REFUSED, /* an argument is too long; the command ends with RESP_COMMAND of none */
	RESP_ERROR,   /* not RESP: send `error` and close */
	RESP_NOMEM,
};

/*
 * Parses the command that starts at `buf`.  After RESP_MORE call again with the same bytes and more
 * after them; the buffer may have moved.  After RESP_COMMAND the next call starts the next command,
 * at buf + pos.  Quotes and escapes of inline commands are resolved in the buffer.
 *
 * RESP_REFUSED comes as soon as the length was read: who waits for a reply may send no more.  The
 * command is not kept: after that and after RESP_MORE, resp_forget() says how many of its bytes the
 * buffer need not hold any more.
 */
enum resp_status resp_parse(struct resp_parser *p, char *buf, size_t len,
			    const struct resp_limits *limits);

/* Is there no command of which a part was parsed, or passed by?  Bytes that come next begin one. */
bool resp_at_start(const struct resp_parser *p);

/* The bytes of a parsed command have moved: adjusts its arguments. */
void resp_moved(struct resp_parser *p, ptrdiff_t distance);

/* Bytes at the start of the command that the next call does not need again. */
size_t resp_forget(struct resp_parser *p);

/* Bytes missing of the argument being read, with `len` in the buffer; 0 if that is unknown. */
size_t resp_missing(const struct resp_parser *p, size_t len);
void resp_parser_free(struct resp_parser *p);

#endif

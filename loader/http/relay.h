/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Commands in an HTTP request.  They go to the server over a socket pair, like those of any client,
 * so that rights, limits and timeouts are the same:
 *
 *	relay_take(r, body, len)	for each part of the body
 *	fd = relay_begin(r, ...)	the server's end of the pair
 *	relay_read(r)			whenever r->fd is readable, until it is not RELAY_MORE
 *
 * Used by the thread of HTTP only.  Only http.c includes it.
 */
#ifndef XKV_HTTP_RELAY_H
#define XKV_HTTP_RELAY_H

#include <stdbool.h>
#include <stddef.h>

#define RELAY_COMMANDS 65536	 /* bytes of the commands of a request */
#define RELAY_REPLIES  (4 << 20) /* and of their replies */

struct relay {
	int fd;			  /* our end; -1 = not begun, or ended */
	char *commands, *replies; /* owned */
	size_t commands_len, replies_len, replies_room;
	bool refused; /* the commands are too long, or there is no memory for them */
};

/* NULL: no memory. */
struct relay *relay_new(void);
/* `r` may be NULL.  Commands in progress are cut off, as if their client had gone. */
void relay_free(struct relay *r);

/* Keeps a part of the body, unless it is refused. */
void relay_take(struct relay *r, const char *body, size_t len);

/*
 * Sends a HELLO for RESP3, with user and password unless `user` is NULL, the commands, and QUIT.
 * The other end of the pair, which becomes the caller's, or -errno.
 */
int relay_begin(struct relay *r, const char *user, const char *password);

enum relay_state {
	RELAY_MORE,
	RELAY_DONE,
	RELAY_TOO_LONG, /* the replies are */
	RELAY_NO_MEMORY,
};
/* Reads what has arrived.  If RELAY_DONE, all replies are in r->replies. */
enum relay_state relay_read(struct relay *r);

/*
 * NULL, or the error reply to HELLO, without its line end; valid as long as `r`.  Otherwise the
 * replies are those to HELLO, the commands, and QUIT.
 */
const char *relay_refused(struct relay *r);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
#include "relay.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_AT_ONCE 65536
#define HELLO_MAX    16384 /* with user and password */

#define QUIT "*1\r\n$4\r\nQUIT\r\n"

struct relay *relay_new(void)
{
	struct relay *r = calloc(1, sizeof(*r));

	if (r)
		r->fd = -1;
	return r;
}

static void relay_end(struct relay *r)
{
	if (r->fd >= 0)
		close(r->fd);
	r->fd = -1;
}

void relay_free(struct relay *r)
{
	if (!r)
		return;
	relay_end(r);
	free(r->commands);
	free(r->replies);
	free(r);
}

void relay_take(struct relay *r, const char *body, size_t len)
{
	char *commands = NULL;

	if (!r->refused && len <= RELAY_COMMANDS - r->commands_len)
		commands = realloc(r->commands, r->commands_len + len);
	if (!commands) {
		r->refused = true;
		return;
	}
	memcpy(commands + r->commands_len, body, len);
	r->commands = commands;
	r->commands_len += len;
}

/* The room of the socket is for all at once: it is the first that is sent. */
static int send_all(struct relay *r, const char *user, const char *password)
{
	char hello[HELLO_MAX];
	struct iovec parts[] = {
		{ .iov_base = hello },
		{ .iov_base = r->commands, .iov_len = r->commands_len },
		{ .iov_base = (void *)(uintptr_t)QUIT, .iov_len = strlen(QUIT) },
	};
	const struct msghdr message = { .msg_iov = parts, .msg_iovlen = 3 };
	size_t all;
	ssize_t sent;
	int len;

	if (user)
		len = snprintf(hello, sizeof(hello),
			       "*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$%zu\r\n%s\r\n$%zu"
			       "\r\n%s\r\n",
			       strlen(user), user, strlen(password), password);
	else
		len = snprintf(hello, sizeof(hello), "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n");
	if (len < 0 || (size_t)len >= sizeof(hello))
		return -EMSGSIZE;
	parts[0].iov_len = (size_t)len;
	all = parts[0].iov_len + parts[1].iov_len + parts[2].iov_len;
	sent = sendmsg(r->fd, &message, MSG_NOSIGNAL);
	explicit_bzero(hello, sizeof(hello));
	if (sent < 0)
		return -errno;
	/* shutting down ends incomplete commands, and a server without QUIT */
	return (size_t)sent == all && !shutdown(r->fd, SHUT_WR) ? 0 : -ENOBUFS;
}

int relay_begin(struct relay *r, const char *user, const char *password)
{
	int pair[2], ret;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair))
		return -errno;
	r->fd = pair[0];
	ret = send_all(r, user, password);
	free(r->commands);
	r->commands = NULL;
	if (!ret)
		return pair[1];
	relay_end(r);
	close(pair[1]);
	return ret;
}

enum relay_state relay_read(struct relay *r)
{
	ssize_t got;
	char *more;

	for (;;) {
		if (r->replies_len > RELAY_REPLIES)
			return RELAY_TOO_LONG;
		if (r->replies_room - r->replies_len <= READ_AT_ONCE) {
			more = realloc(r->replies, r->replies_room + 2 * READ_AT_ONCE);
			if (!more)
				return RELAY_NO_MEMORY;
			r->replies = more;
			r->replies_room += 2 * READ_AT_ONCE;
		}
		got = read(r->fd, r->replies + r->replies_len, READ_AT_ONCE);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return RELAY_MORE;
		if (got <= 0) { /* an error: the server has closed it with something unread */
			relay_end(r);
			return RELAY_DONE;
		}
		r->replies_len += (size_t)got;
	}
}

const char *relay_refused(struct relay *r)
{
	r->replies[r->replies_len] = '\0'; /* there is room */
	if (!r->replies_len)
		return "ERR the server has closed the connection";
	if (r->replies[0] != '-')
		return NULL;
	r->replies[strcspn(r->replies, "\r")] = '\0';
	return r->replies + 1;
}

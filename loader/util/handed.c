// SPDX-License-Identifier: BSD-2-Clause
#include "handed.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"
#include "process.h"

#define PLACE	   "xkv-handed"
#define HANDED_MAX 256 /* xkvd listens at 64 addresses at most, for TCP and UDP */

union address {
	struct sockaddr any;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_un un;
};

struct handed {
	int fd, type;
	union address at;
};

static struct handed handed[HANDED_MAX];
static unsigned int count;

/*
 * A file in memory: how many bytes there are and one more (0: it is not complete), then these.
 */
static int offered = -1, given = -1;

/* 0: it has none. */
static in_port_t port_of(const union address *a)
{
	if (a->any.sa_family == AF_INET)
		return a->in.sin_port;
	return a->any.sa_family == AF_INET6 ? a->in6.sin6_port : 0;
}

static bool is_for_all(const union address *a)
{
	return a->any.sa_family == AF_INET ? !a->in.sin_addr.s_addr
					   : IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr);
}

static bool handed_is_same(const union address *a, const union address *b)
{
	if (a->any.sa_family != b->any.sa_family || port_of(a) != port_of(b))
		return false;
	if (a->any.sa_family == AF_INET)
		return a->in.sin_addr.s_addr == b->in.sin_addr.s_addr;
	if (a->any.sa_family == AF_INET6)
		return IN6_ARE_ADDR_EQUAL(&a->in6.sin6_addr, &b->in6.sin6_addr) &&
		       a->in6.sin6_scope_id == b->in6.sin6_scope_id;
	return !strcmp(a->un.sun_path, b->un.sun_path);
}

/* One port is not bound for all addresses of a family and for one of them at the same time. */
static bool is_in_the_way(const struct handed *h, int type, const union address *a)
{
	return h->type == type && h->at.any.sa_family == a->any.sa_family && port_of(a) &&
	       port_of(&h->at) == port_of(a) && (is_for_all(&h->at) || is_for_all(a));
}

static bool has_path(const union address *a)
{
	return a->any.sa_family == AF_UNIX && a->un.sun_path[0];
}

static int option(int fd, int name)
{
	int value = 0;
	socklen_t len = sizeof(value);

	return getsockopt(fd, SOL_SOCKET, name, &value, &len) ? 0 : value;
}

/* Is it one that others connect to, or send to?  Fills in *h. */
static bool handed_is_wanted(struct handed *h)
{
	union address peer;
	socklen_t len = sizeof(h->at), peer_len = sizeof(peer);

	memset(&h->at, 0, sizeof(h->at));
	h->type = option(h->fd, SO_TYPE);
	if (getsockname(h->fd, &h->at.any, &len))
		return false;
	if (h->type == SOCK_STREAM)
		return option(h->fd, SO_ACCEPTCONN) && (port_of(&h->at) || has_path(&h->at));
	return h->type == SOCK_DGRAM && port_of(&h->at) &&
	       getpeername(h->fd, &peer.any, &peer_len) && errno == ENOTCONN;
}

struct taking {
	int pidfd, error;
};

static bool handed_take_file(void *arg, pid_t pid, const char *fd, const char *target)
{
	struct taking *t = arg;
	struct handed h;

	if (strncmp(target, "socket:", 7) && strcmp(target, "/memfd:" PLACE " (deleted)"))
		return false;
	h.fd = (int)syscall(SYS_pidfd_getfd, t->pidfd, atoi(fd), 0);
	if (h.fd < 0) {
		t->error = errno == EBADF ? 0 : errno; /* closed meanwhile */
		return t->error;
	}
	if (target[0] == '/')
		given = h.fd;
	else if (count < HANDED_MAX && handed_is_wanted(&h))
		handed[count++] = h;
	else
		close(h.fd);
	return false;
}

/* Closes one, and puts the last in its place. */
static void drop(struct handed *h)
{
	close(h->fd);
	*h = handed[--count];
}

void handed_drop(void)
{
	while (count)
		drop(handed);
}

int handed_take(pid_t pid, int pidfd, char *err, size_t err_len)
{
	struct taking t = { .pidfd = pidfd };

	process_has_file(pid, handed_take_file, &t);
	if (!t.error)
		return 0;
	handed_drop();
	snprintf(err, err_len, "cannot take the sockets of process %ld over: %s%s", (long)pid,
		 strerror(t.error),
		 t.error == EPERM ? ": run it as root, or as the user and with the capabilities of "
				    "that process, and with CAP_SYS_PTRACE where "
				    "kernel.yama.ptrace_scope is above 1"
		 : t.error == ENOSYS ? ": the kernel lacks pidfd_getfd(2)"
				     : "");
	return -t.error;
}

int handed_claim(int type, const struct sockaddr *address, socklen_t len)
{
	union address wanted = {};
	int fd;

	memcpy(&wanted, address, len < sizeof(wanted) ? len : sizeof(wanted));
	for (unsigned int i = 0; i < count; i++) {
		if (handed[i].type != type || !handed_is_same(&handed[i].at, &wanted))
			continue;
		fd = handed[i].fd;
		handed[i] = handed[--count];
		return fd;
	}
	for (unsigned int i = count; i--;)
		if (is_in_the_way(&handed[i], type, &wanted))
			drop(&handed[i]);
	return -1;
}

int handed_offer(void)
{
	offered = memfd_create(PLACE, MFD_CLOEXEC);
	return offered < 0 ? -errno : 0;
}

void handed_give(const void *bytes, size_t len)
{
	uint64_t more = (uint64_t)len + 1;

	if (offered >= 0 && pwrite(offered, bytes, len, sizeof(more)) == (ssize_t)len &&
	    pwrite(offered, &more, sizeof(more), 0) == sizeof(more))
		return;
	log_warning("what is in memory only cannot be handed over: %s", strerror(errno));
}

void *handed_given(size_t *len)
{
	uint64_t more = 0;
	void *bytes;

	if (given < 0 || pread(given, &more, sizeof(more), 0) != sizeof(more) || !more)
		return NULL;
	*len = more - 1;
	bytes = malloc(more);
	if (bytes && pread(given, bytes, *len, sizeof(more)) == (ssize_t)*len)
		return bytes;
	free(bytes);
	return NULL;
}

void handed_close(void)
{
	if (given >= 0)
		close(given);
	given = -1;
	while (count) {
		if (handed->at.any.sa_family == AF_UNIX && unlink(handed->at.un.sun_path) &&
		    errno != ENOENT)
			log_warning("cannot remove %s: %s", handed->at.un.sun_path,
				    strerror(errno));
		drop(handed);
	}
}

/* SPDX-License-Identifier: BSD-2-Clause */
#include "unix.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "util/handed.h"
#include "util/log.h"

/* Removes a socket file whose server has gone.  What is there otherwise makes bind() fail. */
static void remove_stale(int fd, const struct sockaddr_un *addr)
{
	struct stat st;

	if (lstat(addr->sun_path, &st) || !S_ISSOCK(st.st_mode))
		return;
	if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) && errno == ECONNREFUSED)
		unlink(addr->sun_path);
}

/*
 * The mode of the socket, less the umask, becomes that of the file: it is never wider than wanted,
 * not even before chmod() sets what the umask has taken away.
 */
static int bind_and_listen(int fd, const struct sockaddr_un *addr, unsigned int mode, int backlog)
{
	int ret;

	if (mode && fchmod(fd, mode))
		return -errno;
	if (bind(fd, (const struct sockaddr *)addr, sizeof(*addr)))
		return -errno;
	if (!(mode && chmod(addr->sun_path, mode)) && !listen(fd, backlog))
		return 0;
	ret = -errno;
	unlink(addr->sun_path);
	return ret;
}

/* That of an xkvd whose place this one takes, if its file is still there. */
static int claim(const struct sockaddr_un *addr, unsigned int mode, int backlog)
{
	int fd = handed_claim(SOCK_STREAM, (const struct sockaddr *)addr, sizeof(*addr));

	if (fd >= 0 && !(mode && chmod(addr->sun_path, mode)) && !access(addr->sun_path, F_OK) &&
	    !listen(fd, backlog))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static int open_socket(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	return fd < 0 ? -errno : fd;
}

int unix_listen(const char *path, unsigned int mode, int backlog, char *err, size_t err_len)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int probe, fd, ret;

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	fd = claim(&addr, mode, backlog);
	if (fd >= 0)
		return fd;
	probe = open_socket();
	fd = open_socket();
	if (probe >= 0)
		remove_stale(probe, &addr);
	ret = fd < 0 ? fd : bind_and_listen(fd, &addr, mode, backlog);
	if (probe >= 0)
		close(probe);
	if (!ret)
		return fd;
	snprintf(err, err_len, "Failed opening Unix socket %s: %s", path, strerror(-ret));
	if (fd >= 0)
		close(fd);
	return ret;
}

void unix_remove(const char *path)
{
	if (unlink(path))
		log_warning("Error removing the unix socket file: %s", strerror(errno));
}

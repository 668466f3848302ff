/* SPDX-License-Identifier: BSD-2-Clause */
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define COPY_BYTES 65536

/* Directories are opened, too: reading one fails with the right words. */
static bool file_ends(int fd)
{
	struct statfs fs;
	struct stat st;

	if (fstat(fd, &st))
		return false;
	if (S_ISFIFO(st.st_mode)) /* one without a name has, or had, somebody who writes */
		return fstatfs(fd, &fs) == 0 && fs.f_type == PIPEFS_MAGIC;
	if (S_ISCHR(st.st_mode)) /* a link to /dev/null is how a file is masked */
		return st.st_rdev == makedev(1, 3);
	return S_ISREG(st.st_mode) || S_ISDIR(st.st_mode);
}

FILE *file_open(const char *path)
{
	/* Without O_NONBLOCK a FIFO that nobody writes to would hold up the open() already. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	FILE *file = NULL;

	if (fd < 0)
		return NULL;
	errno = EINVAL;
	if (file_ends(fd) && fcntl(fd, F_SETFL, O_RDONLY) == 0)
		file = fdopen(fd, "r");
	if (!file)
		close(fd);
	return file;
}

int file_openat(int dir_fd, const char *name, int flags)
{
	int fd = openat(dir_fd, name, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0640), ret = 0;
	struct stat st;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st))
		ret = -errno;
	else if (!S_ISREG(st.st_mode))
		ret = -EINVAL;
	if (!ret)
		return fd;
	close(fd);
	return ret;
}

const char *file_error(int error)
{
	/* The numbers of a FIFO or a device, and of a socket. */
	return error == EINVAL || error == ENXIO ? "it is no regular file" : strerror(error);
}

int file_write(int fd, const char *bytes, size_t len, uint64_t at)
{
	ssize_t n;

	while (len) {
		n = pwrite(fd, bytes, len, (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		bytes += n;
		len -= (size_t)n;
		at += (uint64_t)n;
	}
	return 0;
}

static int copy_bytes(int from, int to, uint64_t bytes)
{
	char piece[COPY_BYTES];
	uint64_t at = 0;
	ssize_t n;
	int ret;

	while (at < bytes) {
		n = pread(from, piece, bytes - at < sizeof(piece) ? bytes - at : sizeof(piece),
			  (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			return bytes == FILE_WHOLE ? 0 : -EIO;
		ret = file_write(to, piece, (size_t)n, at);
		if (ret)
			return ret;
		at += (uint64_t)n;
	}
	return 0;
}

int file_copy(int from, uint64_t bytes, int dir_fd, const char *name, int flags)
{
	int to = file_openat(dir_fd, name, O_WRONLY | O_CREAT | flags), ret;

	if (to < 0)
		return to;
	/* on file systems that can, both files share their blocks until one is changed */
	if (bytes == FILE_WHOLE && !ioctl(to, FICLONE, from))
		ret = 0;
	else
		ret = copy_bytes(from, to, bytes);
	if (!ret && fsync(to))
		ret = -errno;
	if (close(to) && !ret)
		ret = -errno;
	return ret;
}

int directory_sync_name(const char *path)
{
	char copy[PATH_MAX];
	int fd, ret;

	snprintf(copy, sizeof(copy), "%s", path);
	fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ret = fd < 0 || fsync(fd) ? -errno : 0;
	if (fd >= 0)
		close(fd);
	return ret;
}

int directory_count(const char *path)
{
	DIR *dir = opendir(path);
	int count = 0;

	if (!dir)
		return -1;
	while (readdir(dir))
		count++;
	closedir(dir);
	return count - 2; /* "." and ".." */
}

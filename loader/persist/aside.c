/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The first name is removed only when the second is durable, so a crash never leaves the file
 * without a name.
 */
#include "aside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/files.h"

#define TRIES	   1000
#define COPY_BYTES 65536

static bool same_bytes(int one, int two)
{
	char a[COPY_BYTES], b[COPY_BYTES];
	off_t at = 0;
	ssize_t n;

	do {
		n = pread(one, a, sizeof(a), at);
		if (n < 0 || pread(two, b, sizeof(b), at) != n || memcmp(a, b, (size_t)n))
			return false;
		at += n;
	} while (n);
	return true;
}

/* Is the file `kept` the original, or a copy of it? */
static bool is_same(int dir_fd, const char *name, const struct stat *original, const char *kept,
		    const struct stat *other)
{
	int one, two;
	bool same;

	if (original->st_dev == other->st_dev && original->st_ino == other->st_ino)
		return true;
	if (!S_ISREG(original->st_mode) || !S_ISREG(other->st_mode) ||
	    original->st_size != other->st_size)
		return false;
	one = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
	two = openat(dir_fd, kept, O_RDONLY | O_CLOEXEC);
	same = one >= 0 && two >= 0 && same_bytes(one, two);
	if (one >= 0)
		close(one);
	if (two >= 0)
		close(two);
	return same;
}

/* Writes a temporary file and renames it, so that an incomplete copy never has the second name. */
static int copy(int dir_fd, const char *name, const char *copied)
{
	char temp[64];
	int from = openat(dir_fd, name, O_RDONLY | O_CLOEXEC), ret;

	if (from < 0)
		return -errno;
	snprintf(temp, sizeof(temp), "temp-%ld.rdb", (long)getpid());
	ret = file_copy(from, FILE_WHOLE, dir_fd, temp, O_TRUNC);
	if (!ret && renameat2(dir_fd, temp, dir_fd, copied, RENAME_NOREPLACE) &&
	    (errno != EINVAL || renameat(dir_fd, temp, dir_fd, copied)))
		ret = -errno;
	if (ret)
		unlinkat(dir_fd, temp, 0);
	close(from);
	return ret;
}

/*
 * A hard link fails on file systems that have none, and for files of other users where the sysctl
 * protected_hardlinks is set.
 */
static int link_or_copy(int dir_fd, const char *name, const struct stat *st, const char *second)
{
	if (linkat(dir_fd, name, dir_fd, second, 0) == 0)
		return 0;
	if (!S_ISREG(st->st_mode) || (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS &&
				      errno != EMLINK && errno != EINVAL))
		return -errno;
	return copy(dir_fd, name, second);
}

static int only_copy(int dir_fd, const char *name, const struct stat *st, const char *second)
{
	return copy(dir_fd, name, second);
}

/* Finds the second name, and makes it by `make` unless it is this file's already. */
static int keep(int dir_fd, const char *name, const char *suffix, char kept[NAME_MAX + 1],
		int (*make)(int dir_fd, const char *name, const struct stat *st,
			    const char *second))
{
	struct stat original, other;
	char number[16] = "";
	int ret;

	if (fstatat(dir_fd, name, &original, AT_SYMLINK_NOFOLLOW))
		return -errno;
	for (int i = 1; i <= TRIES; i++) {
		if (snprintf(kept, NAME_MAX + 1, "%s.%s%s", name, suffix, number) > NAME_MAX)
			return -ENAMETOOLONG;
		snprintf(number, sizeof(number), ".%d", i);
		ret = fstatat(dir_fd, kept, &other, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
		if (ret == -ENOENT)
			ret = make(dir_fd, name, &original, kept);
		else if (!ret && !is_same(dir_fd, name, &original, kept, &other))
			ret = -EEXIST;
		if (ret != -EEXIST)
			break;
	}
	return !ret && fsync(dir_fd) ? -errno : ret;
}

int aside_keep(int dir_fd, const char *name, const char *suffix, char kept[NAME_MAX + 1])
{
	return keep(dir_fd, name, suffix, kept, link_or_copy);
}

int aside_copy(int dir_fd, const char *name, const char *suffix, char kept[NAME_MAX + 1])
{
	return keep(dir_fd, name, suffix, kept, only_copy);
}

int aside_move(int dir_fd, const char *name, const char *suffix, char kept[NAME_MAX + 1])
{
	int ret = aside_keep(dir_fd, name, suffix, kept);

	if (!ret && (unlinkat(dir_fd, name, 0) || fsync(dir_fd)))
		ret = -errno;
	return ret;
}

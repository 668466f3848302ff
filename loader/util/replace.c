/* SPDX-License-Identifier: BSD-2-Clause */
#include "replace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

int replace_begin(struct replacement *r, const char *path)
{
	char *real = realpath(path, NULL); /* a symbolic link stays one */
	int fd, len;

	snprintf(r->path, sizeof(r->path), "%s", real ? real : path);
	free(real);
	len = snprintf(r->temporary, sizeof(r->temporary), "%s.XXXXXX", r->path);
	if (strlen(path) >= sizeof(r->path) || len >= (int)sizeof(r->temporary))
		return -ENAMETOOLONG;
	fd = mkostemp(r->temporary, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	r->out = fdopen(fd, "w");
	if (r->out)
		return 0;
	len = -errno;
	close(fd);
	unlink(r->temporary);
	return len;
}

static int copy_owner(const struct replacement *r)
{
	int fd = fileno(r->out);
	struct stat st;

	if (stat(r->path, &st))
		return errno == ENOENT ? 0 : -errno;
	if (fchmod(fd, st.st_mode & 07777) || (fchown(fd, st.st_uid, st.st_gid) && geteuid() == 0))
		return -errno;
	return 0;
}

static int put_into_place(const struct replacement *r)
{
	int ret = copy_owner(r);

	if (ret)
		return ret;
	if (fflush(r->out) || fsync(fileno(r->out)) || rename(r->temporary, r->path))
		return -errno;
	return directory_sync_name(r->path);
}

int replace_end(struct replacement *r, int error)
{
	if (!error)
		error = ferror(r->out) ? -EIO : put_into_place(r);
	fclose(r->out);
	if (error)
		unlink(r->temporary); /* if it is still there */
	return error;
}

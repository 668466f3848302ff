/* SPDX-License-Identifier: BSD-2-Clause */
/* Unix sockets that listen. */
#ifndef XKV_UNIX_H
#define XKV_UNIX_H

#include <stddef.h>

/*
 * Listens, without blocking, on a new socket file with these permissions (0: what the umask
 * leaves).  Replaces a socket file that nobody listens on, and nothing else.  Returns the file
 * descriptor, which is the caller's, or -errno with a sentence.
 */
int unix_listen(const char *path, unsigned int mode, int backlog, char *err, size_t err_len);

/* Removes the file at exit. */
void unix_remove(const char *path);

#endif

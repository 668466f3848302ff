/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Sockets of an xkvd that this one takes the place of: those that clients connect to, or send
 * datagrams to.  They are the same sockets, not others at the same address, so whoever connects
 * while neither serves waits in the queue of connections, and datagrams wait to be read.
 *
 *	handed_take(pid, pidfd, ...);			while the other one still has them
 *	fd = handed_claim(SOCK_STREAM, address, len);	in place of socket() and bind()
 *	handed_close();					what nobody has claimed
 *
 * And bytes that the other one has in its memory only.  It makes a place for them when it starts,
 * as it is asked for what it has before it ends, and fills it when it is told to end.
 *
 * One thread.
 */
#ifndef XKV_HANDED_H
#define XKV_HANDED_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

/*
 * Duplicates them (pidfd_getfd(2)), which the kernel lets those do who may trace the process.  0,
 * or -errno with a sentence; then there are none.
 */
int handed_take(pid_t pid, int pidfd, char *err, size_t err_len);

/* Closes them, for a process that goes on without. */
void handed_drop(void);

/*
 * The socket of this type that is bound to this address, which becomes the caller's; -1: there is
 * none, and none is left that would be in the way of one.
 */
int handed_claim(int type, const struct sockaddr *address, socklen_t len);

/* Makes the place.  0 or -errno; then there is nothing to give. */
int handed_offer(void);
void handed_give(const void *bytes, size_t len);
/* What was given, malloc()ed; NULL: nothing was, or not to its end. */
void *handed_given(size_t *len);

/* Closes the others, and removes the files of Unix sockets. */
void handed_close(void);

#endif

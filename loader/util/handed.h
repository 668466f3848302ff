/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Sockets of an xkvd that this one replaces: those that clients connect to, or send datagrams to.
 * They are the same sockets, not others at the same address, so while neither xkvd serves, new
 * connections wait in the backlog, and datagrams wait to be read.
 *
 *	handed_take(pid, pidfd, ...);			while the other one still has them
 *	fd = handed_claim(SOCK_STREAM, address, len);	in place of socket() and bind()
 *	handed_close();					those that were not claimed
 *
 * And bytes that exist only in the other one's memory: it makes a memory file for them when it
 * starts, and fills it when it is told to end.
 *
 * One thread.
 */
#ifndef XKV_HANDED_H
#define XKV_HANDED_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

/*
 * Duplicates them (pidfd_getfd(2)), which takes the right to trace the process.  0, or -errno with
 * a sentence; then there are none.
 */
int handed_take(pid_t pid, int pidfd, char *err, size_t err_len);

/* Closes them, for a process that continues without them. */
void handed_drop(void);

/*
 * The socket of this type that is bound to this address, which becomes the caller's; -1: there is
 * none, and none is left that would be in the way of one.
 */
int handed_claim(int type, const struct sockaddr *address, socklen_t len);

/* Makes the memory file.  0 or -errno; then nothing can be handed over. */
int handed_offer(void);
void handed_give(const void *bytes, size_t len);
/* The bytes handed over, malloc()ed; NULL: none, or incomplete. */
void *handed_given(size_t *len);

/* Closes the others, and removes the files of Unix sockets. */
void handed_close(void);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernel's TCP sockets, which outlive a close(), looked up by their addresses (sock_diag(7)).
 */
#ifndef XKV_SOCK_DIAG_H
#define XKV_SOCK_DIAG_H

#include "bpf/tcp.h"

enum sock_found {
	SOCK_UNKNOWN, /* the kernel did not say */
	SOCK_NONE,    /* or the kernel has no sock_diag at all */
	SOCK_THERE,   /* in any state, also TIME_WAIT */
};

/* A descriptor for the functions below, which one thread at a time may use; -1 without. */
int sock_diag_open(void);
enum sock_found sock_find(int fd, const struct xkv_flow_key *key);
/* Ends its connection, if there is one, with a reset (Linux: CONFIG_INET_DIAG_DESTROY). */
void sock_reset(int fd, const struct xkv_flow_key *key);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The sockets that clients connect to, and accepting them: server_listen() and
 * server_follow_addresses() of server.h.  In the loop of the first worker.
 */
#ifndef XKV_LISTEN_H
#define XKV_LISTEN_H

#include "server_state.h"

void sockets_init(struct server *s);

/* Starts or stops accepting clients. */
void sockets_start(struct server *s);
void sockets_stop(struct server *s);

/* Also removes the file of a Unix socket, unless another xkvd has taken it over. */
void sockets_close(struct server *s);

/* Does xkvd listen on every new address of the interface?  Not if `bind` names addresses. */
bool sockets_follow(const struct server *s);

#endif

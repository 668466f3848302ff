/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xkvd in front of a Redis (`upstream`): commands pass to it, and come back byte for byte.
 *
 *	executor = proxy_executor(commands_executor(), cfg);
 *	server_new() ...
 *	proxy_start(server, err, sizeof(err));
 *
 * Includes go main -> proxy -> upstream, net, acl, database.
 */
#ifndef XKV_PROXY_H
#define XKV_PROXY_H

#include <stdbool.h>
#include <stddef.h>

struct config;
struct executor;
struct server;

/* Is its `upstream` a URL?  0, or -EINVAL with a sentence. */
int proxy_check(const struct config *cfg, char *err, size_t err_len);

/* What executes commands with this configuration: `base` itself, if it has no upstream. */
const struct executor *proxy_executor(const struct executor *base, const struct config *cfg);

struct udp;
/* With an upstream: datagrams that ask for what is not cached wait until it has said. */
void proxy_udp(struct server *s, struct udp *udp);

/* Begins to connect to the upstream; nothing without one. */
void proxy_start(struct server *s);

#endif

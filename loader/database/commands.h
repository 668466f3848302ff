/* SPDX-License-Identifier: BSD-2-Clause */
/* The commands of the RESP front end, as net/ has them executed. */
#ifndef XKV_COMMANDS_H
#define XKV_COMMANDS_H

#include "net/executor.h"
#include "util/openmetrics.h"

struct config_builder;

/*
 * Gives commands the names that `rename-command` wants, for all clients; once, before
 * commands_executor().  0, or -EINVAL with a line for each error.
 */
int commands_rename(const struct config_builder *b, char *err, size_t err_len);

/*
 * Makes the users that `user` directives or `aclfile` describe; once, before commands_executor().
 * 0, or -EINVAL with a line for each error; then they are as before.
 */
int commands_users(struct config_builder *b, char *err, size_t err_len);

/* For server_options.executor; static. */
const struct executor *commands_executor(void);

/*
 * All figures of a `struct server`, malloc()ed; NULL: no memory.  By the thread of its event loop,
 * also in the middle of a command (http_text_fn).
 */
char *metrics_text(void *server, enum metrics_format format, size_t *len);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * HTTP for those who watch a server: a console, /metrics, /healthz and /readyz, in a thread of its
 * own, which takes no lock of the server.
 *
 *	h = http_open(cfg, err, sizeof(err));		/healthz is there, /readyz says "loading"
 *	...
 *	server_add_fd(s, http_fd(h), ..., http_make, h);
 *	http_serve(h, make_text, adopt, arg);
 *	http_ready(h, NULL);				every second
 *	...
 *	http_close(h);
 *
 * A text of figures is made by the thread that owns them, when somebody asks for it: one at a time,
 * whoever else asks meanwhile gets the same, and it is sent by the thread of HTTP.  Connections are
 * bounded in number, in time and in what they may send; of too many, the oldest gives way.
 *
 * What the console asks for that needs a user is commands, by POST to /command: they are executed
 * as those of a client that has connected by TCP (relay.h), with user and password by basic
 * authentication.
 */
#ifndef XKV_HTTP_H
#define XKV_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "config/config.h"
#include "util/openmetrics.h"

struct http;

/*
 * Listens at http-bind and http-port, and starts the thread.  *out is NULL without http-port.  0,
 * or -errno with a sentence.
 */
int http_open(const struct config *cfg, struct http **out, char *err, size_t err_len);
/* Does nothing for NULL, as the others. */
void http_close(struct http *h);

/* A text, malloc()ed; NULL: no memory. */
typedef char *http_text_fn(void *arg, enum metrics_format format, size_t *len);
/* Serves a client on `fd`, which becomes its own: server_adopt(). */
typedef void http_adopt_fn(void *arg, int fd, const struct sockaddr_storage *peer);
/* From now on /metrics and /command are answered, with what http_make() has from these. */
void http_serve(struct http *h, http_text_fn *text, http_adopt_fn *adopt, void *arg);
/* Readable when http_make() is to be called; it belongs to the server. */
int http_fd(const struct http *h);
/* Makes the text that was asked for, lets clients in.  False: there is nothing more to do. */
bool http_make(void *arg);

/*
 * Why the server is not ready, a static word or sentence; NULL: it is.  To be said every second: of
 * one who says nothing for longer it is known that he is not.
 */
void http_ready(struct http *h, const char *why_not);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * HTTP for monitoring: a console, /metrics, /healthz and /readyz, in its own thread, which takes no
 * lock of the server.
 *
 *	h = http_open(cfg, err, sizeof(err));		/healthz is there, /readyz says "loading"
 *	...
 *	server_add_fd(s, http_fd(h), ..., http_make, h);
 *	http_serve(h, make_text, adopt, arg);		/metrics is there, also while data is loaded
 *	http_ready(h, NULL);				every second
 *	...
 *	http_close(h);
 *
 * The thread that owns the figures makes their text on request, one at a time (requests that arrive
 * meanwhile get the same), and the HTTP thread sends it.  Connections are bounded in number, time
 * and input; if there are too many, the oldest is closed.
 *
 * For data that needs a user the console sends commands, by POST to /command: they are executed
 * like those of a TCP client (relay.h), with user and password by basic authentication.
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
/* Does nothing for NULL, like the others. */
void http_close(struct http *h);

/* A text, malloc()ed; NULL: no memory. */
typedef char *http_text_fn(void *arg, enum metrics_format format, size_t *len);
/* Serves a client on `fd`, which becomes its own: server_adopt(). */
typedef void http_adopt_fn(void *arg, int fd, const struct sockaddr_storage *peer);
/* From now on /metrics and /command are answered, by http_make() with these functions. */
void http_serve(struct http *h, http_text_fn *text, http_adopt_fn *adopt, void *arg);
/* Readable when http_make() is to be called; it belongs to the server. */
int http_fd(const struct http *h);
/* Makes a requested text, admits clients.  False: there is nothing more to do. */
bool http_make(void *arg);

/*
 * Why the server is not ready, a static word or sentence; NULL: it is.  To be called every second:
 * if the calls stop, /readyz reports that the event loop stands still.
 */
void http_ready(struct http *h, const char *why_not);

#endif

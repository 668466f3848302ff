/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * TLS by OpenSSL: contexts, which are made from a configuration, and connections, which encrypt
 * over a TCP connection.  Nothing here blocks except reading files.
 */
#ifndef XKV_TLS_H
#define XKV_TLS_H

#ifdef __GNUC__
#if !__has_include(<openssl/ssl.h>)
#error "OpenSSL is missing: install libssl-dev (sudo scripts/setup.sh build)"
#endif
#endif

#include <openssl/ssl.h>
#include <stddef.h>

#include "config/config.h"
#include "connection.h"

/*
 * Certificate, key, CAs and rules as a configuration has them, for new connections.  NULL with a
 * sentence.  To be freed with SSL_CTX_free(); connections keep what they need of it.
 */
SSL_CTX *tls_context_new(const struct config *cfg, char *err, size_t err_len);

/*
 * Turns a TCP connection into one with TLS, whose handshake is still to be done.  0 or -ENOMEM:
 * then it is unchanged.
 */
int tls_start(struct connection *conn, SSL_CTX *context);

/* The same for outgoing connections: to a server certified by one of these authorities. */
SSL_CTX *tls_client_context_new(const struct config *cfg, char *err, size_t err_len);
/* As tls_start(), for a TCP connection to this host, a name or an address. */
int tls_connect(struct connection *conn, SSL_CTX *context, const char *host);

enum tls_step { TLS_DONE, TLS_WANTS_READ, TLS_WANTS_WRITE, TLS_FAILED };
/* Continues the handshake.  After TLS_FAILED connection_error() says why. */
enum tls_step tls_handshake(struct connection *conn);

#endif

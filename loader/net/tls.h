/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * TLS by OpenSSL: contexts, which are made from a configuration, and connections, whose transport
 * encrypts what that of TCP carries.  Nothing here blocks but the reading of files.
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
 * Makes a TCP connection one with TLS, whose handshake is still to be done.  0 or -ENOMEM: then it
 * is as before.
 */
int tls_start(struct connection *conn, SSL_CTX *context);

/* The same for connections that we make: to a server that one of these authorities certifies. */
SSL_CTX *tls_client_context_new(const struct config *cfg, char *err, size_t err_len);
/* Makes a TCP connection to this host, a name or an address, one with TLS; as tls_start(). */
int tls_connect(struct connection *conn, SSL_CTX *context, const char *host);

enum tls_step { TLS_DONE, TLS_WANTS_READ, TLS_WANTS_WRITE, TLS_FAILED };
/* Goes on with the handshake.  After TLS_FAILED connection_error() says why. */
enum tls_step tls_handshake(struct connection *conn);

#endif

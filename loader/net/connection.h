/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A connection to one client, over any transport: read, writev, finish, close.  TCP, Unix sockets
 * and TLS (tls.h) are a table of these functions each.
 */
#ifndef XKV_CONNECTION_H
#define XKV_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#define ADDRESS_TEXT 112 /* a path of a Unix socket, or an IPv6 address with zone, and a port */

struct connection;

/* None of them blocks.  Errors are those of the system calls of these names: -1 and errno. */
struct transport {
	/* 0: the peer has closed its side.  EPROTO: the peer, or an attacker, violates TLS. */
	ssize_t (*read)(struct connection *conn, void *buffer, size_t len);
	ssize_t (*writev)(struct connection *conn, const struct iovec *iov, int count);
	/*
	 * Shuts down the sending side and drops what has arrived, because closing with unread
	 * input sends a reset, which may overtake the last reply.
	 */
	void (*finish)(struct connection *conn);
	/* Frees everything but the struct. */
	void (*close)(struct connection *conn);
};

/* Bytes that TLS has written but the socket has not accepted: bytes[sent..len). */
struct held {
	int fd;	     /* not owned */
	char *bytes; /* owned; NULL = there are none */
	size_t sent, len;
	size_t taken; /* bytes of writev() kept here; reported as written once sent */
};

/* Embedded in its owner. */
struct connection {
	const struct transport *transport;
	int fd; /* to poll; owned */

	/* Of TLS; else zero. */
	struct ssl_st *ssl;    /* owned */
	struct held *held;     /* owned */
	bool more;	       /* there may be more to read, which polling `fd` does not report */
	bool read_needs_write; /* the last read waits until fd is writable */
	bool write_needs_read; /* the last write waits until fd is readable */
	int broken;	       /* errno of a fatal error, 0 = none */
	const char *error;     /* what was wrong, if it was TLS (EPROTO); static */

	struct sockaddr_storage *peer; /* owned; NULL = the kernel knows it */
};

/* For transports that are made of it. */
extern const struct transport transport_tcp;

/* Takes over a connected, non-blocking TCP socket; `keepalive` is in seconds, 0 = off. */
void connection_tcp(struct connection *conn, int fd, unsigned int keepalive);

/* Takes over a connected, non-blocking Unix socket. */
void connection_unix(struct connection *conn, int fd);
bool connection_is_unix(const struct connection *conn);

/*
 * Takes over one end of a non-blocking socket pair, whose other end is xkvd's own, for a client at
 * this address.  False, and the socket is closed: no memory.
 */
bool connection_pair(struct connection *conn, int fd, const struct sockaddr_storage *peer);

/*
 * Over TCP a peer that has shut down its sending side looks like one that has closed the
 * connection: PEER_MAY_BE_GONE.
 */
enum peer_state { PEER_THERE, PEER_SENDS_NO_MORE, PEER_MAY_BE_GONE, PEER_GONE };
enum peer_state connection_peer(const struct connection *conn);

/* Why the last call failed, by errno and the connection. */
const char *connection_error(const struct connection *conn);

/* To close it will reset it: the peer gets nothing that is still under way. */
void connection_resets(struct connection *conn);

/* Bytes that the transport has allocated, about. */
size_t connection_memory(const struct connection *conn);

/* Is the peer on this machine, by loopback or a Unix socket? */
bool connection_is_local(const struct connection *conn);
/* Writes "address:port" of the peer, or of our side; of Unix sockets "path:0" for both. */
void connection_address(const struct connection *conn, bool peer, char text[ADDRESS_TEXT]);
void address_text(const struct sockaddr *addr, char text[ADDRESS_TEXT]);

#endif

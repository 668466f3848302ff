/* SPDX-License-Identifier: BSD-2-Clause */
/* UDP over IPv4 in Ethernet frames, for transports that send frames themselves. */
#ifndef BENCH_DATAGRAM_H
#define BENCH_DATAGRAM_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DATAGRAM_HEADERS 42 /* bytes before the payload: Ethernet, IPv4 without options, UDP */

/* Addresses and ports in network byte order. */
struct datagram_path {
	uint8_t source_mac[6], mac[6];
	struct in_addr source, ip;
	in_port_t port; /* of the server */
};

/* Writes headers with checksums before a payload of `len` bytes at frame + DATAGRAM_HEADERS. */
void datagram_write(const struct datagram_path *path, in_port_t source_port, uint8_t *frame,
		    size_t len);

/*
 * The payload of a frame of `len` bytes begins at DATAGRAM_HEADERS.  Returns its length in bytes,
 * or -1 if the frame is not UDP over IPv4 or its lengths are inconsistent.  Does not check
 * checksums: as for sockets, the NIC does.
 */
int datagram_read(const uint8_t *frame, size_t len, in_port_t *to_port);

#endif

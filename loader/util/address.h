/* SPDX-License-Identifier: BSD-2-Clause */
/* Properties of socket addresses. */
#ifndef XKV_ADDRESS_H
#define XKV_ADDRESS_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

/* Is it in 127.0.0.0/8, or ::1?  Such packets never were on a network.  Thread safe. */
static inline bool address_is_loopback(const struct sockaddr *addr)
{
	const struct in6_addr *six = &((const struct sockaddr_in6 *)addr)->sin6_addr;

	if (addr->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)addr)->sin_addr.s_addr) >> 24 == 127;
	return addr->sa_family == AF_INET6 &&
	       (IN6_IS_ADDR_LOOPBACK(six) ||
		(IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127));
}

#endif

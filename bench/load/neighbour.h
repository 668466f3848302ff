/* SPDX-License-Identifier: BSD-2-Clause */
/* The hardware address for frames to an IPv4 address. */
#ifndef BENCH_NEIGHBOUR_H
#define BENCH_NEIGHBOUR_H

#include <netinet/in.h>
#include <stdint.h>

/*
 * Finds the hardware address of the next hop to `ip` in the kernel's neighbour table.  The route to
 * `ip` must use the device `ifindex`, and packets must have been exchanged just before.  0, or
 * -errno after an error message.
 */
int neighbour_find(unsigned int ifindex, struct in_addr ip, uint8_t mac[6]);

#endif

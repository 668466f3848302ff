/* SPDX-License-Identifier: BSD-2-Clause */
/* Where frames to an address have to go. */
#ifndef BENCH_NEIGHBOUR_H
#define BENCH_NEIGHBOUR_H

#include <netinet/in.h>
#include <stdint.h>

/*
 * The hardware address of the next hop to `ip`, which has to be reached through the device
 * `ifindex` and to have been talked to a moment ago.  0, or -errno after a sentence.
 */
int neighbour_find(unsigned int ifindex, struct in_addr ip, uint8_t mac[6]);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* Redis commands: for protocol_resp.c, the load as a file, and tests. */
#ifndef BENCH_PROTOCOL_RESP_H
#define BENCH_PROTOCOL_RESP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct options;

/*
 * Writes the SET of a key into `buf` (DATAGRAM_MAX bytes), with a value made of `nonce`.
 * Returns its length.
 */
size_t resp_set(const struct options *o, uint8_t *buf, uint32_t key, uint64_t nonce);

#endif

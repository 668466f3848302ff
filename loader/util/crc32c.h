/* SPDX-License-Identifier: BSD-2-Clause */
/* CRC-32C (Castagnoli): what CPUs compute at several bytes a nanosecond. */
#ifndef XKV_CRC32C_H
#define XKV_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/*
 * The checksum of `len` more bytes after those that gave `crc` (0 at the start); that of
 * "123456789" is 0xe3069283.  Thread safe.
 */
uint32_t crc32c(uint32_t crc, const void *data, size_t len);
/* The same without the CPU's instruction, for machines that lack it, and tests. */
uint32_t crc32c_by_table(uint32_t crc, const void *data, size_t len);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* The checksum at the end of an RDB file: CRC-64 with Jones' polynomial, as Redis computes it. */
#ifndef XKV_CRC64_H
#define XKV_CRC64_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of `len` more bytes after those that gave `crc` (0 at the start).  Thread safe. */
uint64_t crc64(uint64_t crc, const void *data, size_t len);
/* What crc64() is where the CPU has no instruction for it. */
uint64_t crc64_by_table(uint64_t crc, const void *data, size_t len);

#endif

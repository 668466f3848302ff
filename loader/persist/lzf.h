/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XKV_LZF_H
#define XKV_LZF_H

#include <stddef.h>
#include <stdint.h>

/*
 * What lzf_decompress() of liblzf does, which copies byte by byte: that would take half of the time
 * of a load.  The number of bytes, or 0 if they are no LZF, or do not fit.
 */
size_t lzf_expand(const uint8_t *in, size_t in_len, uint8_t *out, size_t room);

#endif

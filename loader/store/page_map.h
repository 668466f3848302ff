/* SPDX-License-Identifier: BSD-2-Clause */
/* Maps a page, for xkvd, `xkv check`, and the reader of another layout. */
#ifndef XKV_PAGE_MAP_H
#define XKV_PAGE_MAP_H

#include <stddef.h>

/*
 * Maps `bytes` of a page, and behind them those of its tail if tail_fd is not -1.  `prot` is that
 * of mmap(2); munmap() of both together ends it.  MAP_FAILED with errno.  Thread safe.
 */
void *page_map(int fd, size_t bytes, int tail_fd, size_t tail_bytes, int prot);

#endif

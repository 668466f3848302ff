/* SPDX-License-Identifier: BSD-2-Clause */
#include "page_map.h"

#include <errno.h>
#include <sys/mman.h>

void *page_map(int fd, size_t bytes, int tail_fd, size_t tail_bytes, int prot)
{
	int flags = MAP_SHARED | MAP_FIXED, saved;
	size_t both = bytes + tail_bytes;
	char *base;

	if (tail_fd < 0)
		return mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
	base = mmap(NULL, both, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return base;
	if (mmap(base, bytes, prot, flags, fd, 0) != MAP_FAILED &&
	    mmap(base + bytes, tail_bytes, prot, flags, tail_fd, 0) != MAP_FAILED)
		return base;
	saved = errno;
	munmap(base, both);
	errno = saved;
	return MAP_FAILED;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds where replies end in a stream of RESP2 or RESP3.  It keeps nothing of them, so their bytes
 * can be passed on as they arrive.  A zero-filled `struct frames` is between two replies.
 */
#ifndef XKV_UPSTREAM_FRAMES_H
#define XKV_UPSTREAM_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct frames {
	uint64_t left; /* values of this reply that are still to come */
	uint64_t skip; /* bytes of a bulk string that are, with its line end */
	char line[24]; /* the first bytes of the line that is being read: type and number */
	size_t line_len;
};

/*
 * Reads on.  Returns how many of the bytes belong to this reply, and whether its last one is among
 * them; -1: this is no RESP.
 */
ssize_t frames_scan(struct frames *f, const char *bytes, size_t len, bool *end);

#endif

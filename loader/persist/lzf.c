// SPDX-License-Identifier: BSD-2-Clause
#include "lzf.h"

#include <string.h>

/* Copies bytes from `back` before, of which those that are copied may be a part. */
static void copy_run(uint8_t *to, size_t back, size_t len)
{
	const uint8_t *from = to - back;

	for (; len > back; back *= 2) {
		memcpy(to, from, back);
		to += back;
		len -= back;
	}
	memcpy(to, from, len);
}

/*
 * A literal has 1 to 32 bytes; a run has at least 3 of the bytes that were written, and says how
 * far before they are.
 */
size_t lzf_expand(const uint8_t *in, size_t in_len, uint8_t *out, size_t room)
{
	const uint8_t *end = in + in_len;
	size_t n = 0, len, back;

	while (in < end) {
		len = *in++;
		if (len < 32) {
			if (++len > (size_t)(end - in) || len > room - n)
				return 0;
			memcpy(out + n, in, len);
			in += len;
		} else {
			back = (len & 31) << 8;
			len = (len >> 5) + 2;
			if (len == 7 + 2 && in < end)
				len += *in++;
			if (in == end)
				return 0;
			back += *in++ + 1U;
			if (back > n || len > room - n)
				return 0;
			copy_run(out + n, back, len);
		}
		n += len;
	}
	return n;
}

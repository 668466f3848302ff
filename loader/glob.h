/* SPDX-License-Identifier: BSD-2-Clause */
/* Redis' glob patterns: * ? [abc] [^a-z] and \ to take the next character as it is. */
#ifndef XKV_GLOB_H
#define XKV_GLOB_H

#include <stdbool.h>
#include <stddef.h>

/* Whether the whole of `text` matches.  Takes at most pattern_len * text_len steps. */
bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t text_len,
		bool ignore_case);

#endif

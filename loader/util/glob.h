/* SPDX-License-Identifier: BSD-2-Clause */
/* Redis' glob patterns: * ? [abc] [^a-z] and \ to take the next character as it is. */
#ifndef XKV_GLOB_H
#define XKV_GLOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GLOB_TEXT_MAX 255 /* bytes of the longest text; keys, commands and directives are shorter */
#define GLOB_WORDS    ((GLOB_TEXT_MAX + 1) / 64)

/* A pattern made ready for many texts. */
struct glob {
	unsigned int elements;	   /* each matches one character */
	bool never;		   /* it has more of them than a text has characters */
	uint64_t star[GLOB_WORDS]; /* bit i: there is a star behind the first i elements */
	uint64_t element[GLOB_WORDS][256]; /* bit i: element i matches this character */
};

/* Takes one pass over the pattern. */
void glob_compile(struct glob *g, const char *pattern, size_t len, bool ignore_case);

/*
 * Whether the whole of `text`, of at most GLOB_TEXT_MAX bytes, matches.  Takes one pass over the
 * text.
 */
bool glob_test(const struct glob *g, const char *text, size_t len);

/* Whether every text matches. */
static inline bool glob_matches_all(const struct glob *g)
{
	return !g->elements && (g->star[0] & 1);
}

/* Both at once, for one text. */
bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t text_len,
		bool ignore_case);

#endif

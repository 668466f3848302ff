/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Redis' glob patterns: * ? [abc] [^a-z], and \ before a character that is matched literally.
 * Thread safe: a compiled pattern is only read.
 */
#ifndef XKV_GLOB_H
#define XKV_GLOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* characters that a pattern matches beside its stars; keys, commands and directives are shorter */
#define GLOB_TEXT_MAX 255
#define GLOB_WORDS    ((GLOB_TEXT_MAX + 1) / 64)

/* A compiled pattern. */
struct glob {
	unsigned int elements;		   /* each matches one character */
	bool never;			   /* more than GLOB_TEXT_MAX elements: matches no text */
	uint64_t star[GLOB_WORDS];	   /* bit i: a star follows the first i elements */
	uint64_t element[GLOB_WORDS][256]; /* bit i: element i matches this character */
};

/* Compiles a pattern of `len` bytes, in linear time.  Any bytes are a valid pattern. */
void glob_compile(struct glob *g, const char *pattern, size_t len, bool ignore_case);

/*
 * Does the whole text match?  In time linear in its length.
 */
bool glob_test(const struct glob *g, const char *text, size_t len);

/* The same for a pattern that is kept, in no more memory than it needs.  NULL: no memory. */
struct glob *glob_new(const char *pattern, size_t len, bool ignore_case);
/* Bytes that glob_new() has allocated, to be freed with free(). */
size_t glob_bytes(const struct glob *g);

/* Does every text match? */
static inline bool glob_matches_all(const struct glob *g)
{
	return !g->elements && (g->star[0] & 1);
}

/* Compiles a pattern and tests one text. */
bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t text_len,
		bool ignore_case);

#endif

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

/*
 * Characters that a pattern matches beside its stars, between its first and its last special one.
 * No limit if stars are its only special characters, and glob_new() compiles it.
 */
#define GLOB_TEXT_MAX 255
#define GLOB_WORDS    ((GLOB_TEXT_MAX + 1) / 64)
#define GLOB_TOO_LONG                                                                              \
	"a pattern with ? or [, or of names in any case, has at most 255 characters beside * "     \
	"between its first and its last special one"

/* Plain characters of a pattern, some escaped. */
struct glob_literal {
	const char *text;
	size_t bytes, chars;
};

/* A compiled pattern. */
struct glob {
	struct glob_literal prefix, suffix; /* in the pattern, or after the glob: glob_new() */
	bool ignore_case;
	bool too_long;			   /* more than GLOB_TEXT_MAX elements: matches no text */
	char *texts;			   /* to be found between the ends, behind the glob */
	size_t texts_bytes, texts_chars;   /* 0: the automaton decides */
	unsigned int elements;		   /* each matches one character */
	uint64_t star[GLOB_WORDS];	   /* bit i: a star follows the first i elements */
	uint64_t any[GLOB_WORDS];	   /* bit i: element i matches every character */
	uint64_t element[GLOB_WORDS][256]; /* bit i: it matches this one */
};

/*
 * Compiles a pattern of `len` bytes, which has to stay, in linear time.  Any bytes are a valid
 * pattern.  False: GLOB_TOO_LONG.
 */
bool glob_compile(struct glob *g, const char *pattern, size_t len, bool ignore_case);

/*
 * Does the whole text match?  In time linear in its length.  As in Redis, a star alone does not
 * match the empty text.
 */
bool glob_test(const struct glob *g, const char *text, size_t len);

/*
 * The same for a pattern that is kept, in no more memory than it needs, to be freed with free().
 * If case matters it may have texts of any length between stars.
 * NULL with errno: ENOMEM, or E2BIG for GLOB_TOO_LONG.
 */
struct glob *glob_new(const char *pattern, size_t len, bool ignore_case);
/* Bytes that glob_new() has allocated. */
size_t glob_bytes(const struct glob *g);

#endif

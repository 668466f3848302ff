/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Numbers and words in Redis' syntax, for RESP, inline commands and configuration.  Thread safe.
 * Texts have a length in bytes and need no final NUL.
 */
#ifndef XKV_TEXT_H
#define XKV_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TEXT_NUMBER_MAX 20 /* bytes of the longest 64-bit number, sign included */

/*
 * Reads a decimal number.  The text must contain nothing else: no blanks, no '+', no leading zeros,
 * so that every number has exactly one spelling.  False if it is not a number or overflows.
 */
bool text_to_i64(const char *s, size_t len, int64_t *out);

/*
 * Adds to the number that a text is; NULL counts as 0.  0 and *sum, -EDOM (it is no number) or
 * -ERANGE.
 */
int text_add_i64(const char *s, size_t len, int64_t amount, int64_t *sum);

/* Writes a number, at most TEXT_NUMBER_MAX bytes, no final NUL.  Returns the number of bytes. */
size_t text_from_u64(char *dst, uint64_t value);
size_t text_from_i64(char *dst, int64_t value);

/* Is the text equal to the NUL-terminated `word`, ignoring case? */
bool text_is(const char *s, size_t len, const char *word);

/*
 * Reads the next word between *cursor and `end`, and advances *cursor.  Blanks separate words;
 * "double quotes" allow the escapes \n \r \t \b \a \xHH \", 'single quotes' only \'.  Quotes and
 * escapes are resolved in place, so the text is modified; a NUL ends it.  Returns 1 with *word
 * (which points into the text) and *len, 0 if there is no further word, -1 if a quote is not closed
 * or is not followed by a blank.
 */
int text_next_word(char **cursor, char *end, char **word, size_t *len);

#endif

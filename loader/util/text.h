/* SPDX-License-Identifier: BSD-2-Clause */
/* Numbers and words as Redis reads and writes them: for RESP, inline commands and configuration. */
#ifndef XKV_TEXT_H
#define XKV_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TEXT_NUMBER_MAX 20 /* bytes of the longest 64-bit number, sign included */

/*
 * Reads a decimal number that fills the text: no blanks, no '+', no leading
 * zeros, so that every number has one spelling.  False if it is none or
 * overflows.
 */
bool text_to_i64(const char *s, size_t len, int64_t *out);

/* Write a number without a final NUL; at most TEXT_NUMBER_MAX bytes.  Return the bytes written. */
size_t text_from_u64(char *dst, uint64_t value);
size_t text_from_i64(char *dst, int64_t value);

/* Whether the text is the NUL-terminated word `word`, upper and lower case being the same. */
bool text_is(const char *s, size_t len, const char *word);

/*
 * Takes the next word from *cursor, which moves on, up to `end`.  Words stand
 * between blanks; "double quotes" know \n \r \t \b \a \xHH and \", 'single
 * quotes' only \'.  Quotes and escapes are resolved in place, so the text is
 * changed; a NUL ends it.  Returns 1 with *word and *len, 0 when there is no
 * more, -1 if a quote is not closed or something follows it directly.
 */
int text_next_word(char **cursor, char *end, char **word, size_t *len);

#endif

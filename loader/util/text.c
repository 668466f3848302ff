/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Numbers and words.  The rules are exactly those of Redis because clients rely on them: what is
 * not an integer for Redis must not be one here.
 */
#include "text.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <strings.h>

bool text_to_i64(const char *s, size_t len, int64_t *out)
{
	bool negative = len > 0 && s[0] == '-';
	size_t i = negative ? 1 : 0;
	uint64_t limit = negative ? (uint64_t)INT64_MAX + 1 : INT64_MAX;
	uint64_t value = 0;

	if (len == 1 && s[0] == '0') {
		*out = 0;
		return true;
	}
	if (i == len || len > TEXT_NUMBER_MAX || s[i] < '1' || s[i] > '9')
		return false;
	for (; i < len; i++) {
		unsigned int digit = (unsigned char)s[i] - '0';

		if (digit > 9 || value > (limit - digit) / 10)
			return false;
		value = value * 10 + digit;
	}
	*out = negative ? (int64_t)(0 - value) : (int64_t)value;
	return true;
}

int text_add_i64(const char *s, size_t len, int64_t amount, int64_t *sum)
{
	int64_t number = 0;

	if (s && !text_to_i64(s, len, &number))
		return -EDOM;
	return __builtin_add_overflow(number, amount, sum) ? -ERANGE : 0;
}

size_t text_from_u64(char *dst, uint64_t value)
{
	char digits[TEXT_NUMBER_MAX];
	size_t at = sizeof(digits);

	do {
		digits[--at] = (char)('0' + value % 10);
		value /= 10;
	} while (value);
	memcpy(dst, digits + at, sizeof(digits) - at);
	return sizeof(digits) - at;
}

size_t text_from_i64(char *dst, int64_t value)
{
	if (value >= 0)
		return text_from_u64(dst, (uint64_t)value);
	dst[0] = '-';
	return 1 + text_from_u64(dst + 1, 0 - (uint64_t)value);
}

bool text_is(const char *s, size_t len, const char *word)
{
	return strlen(word) == len && strncasecmp(s, word, len) == 0;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)tolower((unsigned char)c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads an escape after its backslash in double quotes; returns the position after it. */
static char *text_unescape(char *s, const char *end, char *out)
{
	static const char names[] = "nrtba", bytes[] = "\n\r\t\b\a";
	const char *name;

	if (*s == 'x' && end - s >= 3 && hex_digit(s[1]) >= 0 && hex_digit(s[2]) >= 0) {
		*out = (char)(hex_digit(s[1]) << 4 | hex_digit(s[2]));
		return s + 3;
	}
	name = memchr(names, *s, sizeof(names) - 1);
	*out = name ? bytes[name - names] : *s;
	return s + 1;
}

/*
 * Copies quoted text to *dst, from after the opening quote; returns the position after the closing
 * one, or NULL if that is missing or not followed by a blank.
 */
static char *unquote(char *s, char *end, char quote, char **dst)
{
	char c;

	while (s < end && *s) {
		if (*s == quote)
			return s + 1 == end || s[1] == '\0' || isspace((unsigned char)s[1]) ? s + 1
											    : NULL;
		if (*s == '\\' && s + 1 < end && s[1] && (quote == '"' || s[1] == '\''))
			s = text_unescape(s + 1, end, &c);
		else
			c = *s++;
		*(*dst)++ = c;
	}
	return NULL;
}

int text_next_word(char **cursor, char *end, char **word, size_t *len)
{
	char *s = *cursor, *dst;

	while (s < end && *s && isspace((unsigned char)*s))
		s++;
	*cursor = s;
	if (s == end || *s == '\0')
		return 0;
	*word = dst = s;
	while (s < end && *s && !is_blank(*s)) {
		if (*s != '"' && *s != '\'') {
			*dst++ = *s++;
			continue;
		}
		s = unquote(s + 1, end, *s, &dst);
		if (!s)
			return -1;
		break; /* a closing quote ends the word */
	}
	*len = (size_t)(dst - *word);
	*cursor = s;
	return 1;
}

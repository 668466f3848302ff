/* SPDX-License-Identifier: BSD-2-Clause */
#include "frames.h"

#include <stdlib.h>
#include <string.h>

#define VALUES_MAX (1ULL << 40) /* of a reply: more is a broken stream */

/* The whole line has been read: one value less is to come, and those that it announces more. */
static bool take_line(struct frames *f)
{
	bool counts = strchr("$=!*~>%|", f->line[0]);
	long long number = counts ? strtoll(f->line + 1, NULL, 10) : 0;
	uint64_t items = number > 0 ? (uint64_t)number : 0;

	if (items > VALUES_MAX || f->left > VALUES_MAX)
		return false;
	switch (f->line[0]) {
	case '$':
	case '=':
	case '!':
		if (number < 0)
			f->left--;
		else
			f->skip = items + 2;
		return true;
	case '*':
	case '~':
	case '>':
		f->left += items;
		break;
	case '%':
		f->left += 2 * items;
		break;
	case '|': /* attributes stand before the value that they are about */
		f->left += 2 * items + 1;
		break;
	case '+':
	case '-':
	case ':':
	case '_':
	case '#':
	case ',':
	case '(':
		break;
	default:
		return false;
	}
	f->left--;
	return true;
}

/* Bytes of a line: up to its end, or all.  False: no RESP. */
static bool read_line(struct frames *f, const char *bytes, size_t len, size_t *took)
{
	const char *end = memchr(bytes, '\n', len);
	size_t kept;

	*took = end ? (size_t)(end - bytes) + 1 : len;
	kept = sizeof(f->line) - 1 - f->line_len;
	kept = *took < kept ? *took : kept;
	memcpy(f->line + f->line_len, bytes, kept);
	f->line_len += kept;
	if (!end)
		return true;
	f->line[f->line_len] = '\0';
	f->line_len = 0;
	return take_line(f);
}

ssize_t frames_scan(struct frames *f, const char *bytes, size_t len, bool *end)
{
	size_t at = 0, took;

	*end = false;
	if (!f->left && !f->line_len)
		f->left = 1;
	while (at < len && !*end) {
		if (f->skip) {
			took = f->skip < len - at ? f->skip : len - at;
			f->skip -= took;
			f->left -= !f->skip;
		} else if (!read_line(f, bytes + at, len - at, &took)) {
			return -1;
		}
		at += took;
		*end = !f->left;
	}
	return (ssize_t)at;
}

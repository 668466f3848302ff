/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Glob matching without recursion: when something does not fit, only the last
 * star takes one more character, which is enough since an earlier star can
 * never win what a later one cannot.  So a*a*a*b costs a product, not a power,
 * and a client cannot stop the server with a pattern.
 */
#include "glob.h"

#include <ctype.h>

static int fold(char c, bool ignore_case)
{
	return (signed char)(ignore_case ? tolower((unsigned char)c) : c);
}

/*
 * Matches c against the class whose '[' is at *p, and moves *p behind it.  An
 * unclosed class ends with the pattern, as in Redis.
 */
static bool class_match(const char **p, const char *end, char c, bool ignore_case)
{
	const char *s = *p + 1;
	int want = fold(c, ignore_case), low, high;
	bool negated = s < end && *s == '^', found = false;

	if (negated)
		s++;
	for (; s < end && *s != ']'; s++) {
		if (*s == '\\' && end - s >= 2) {
			s++;
			found |= *s == c;
			continue;
		}
		low = high = fold(*s, ignore_case);
		if (end - s >= 3 && s[1] == '-') {
			s += 2;
			high = fold(*s, ignore_case);
		}
		found |= low <= high ? want >= low && want <= high : want >= high && want <= low;
	}
	*p = s < end ? s + 1 : s;
	return found != negated;
}

/* Matches c against the one element at *p (not a star) and moves *p behind it. */
static bool element_match(const char **p, const char *end, char c, bool ignore_case)
{
	if (**p == '[')
		return class_match(p, end, c, ignore_case);
	if (**p == '?') {
		(*p)++;
		return true;
	}
	if (**p == '\\' && end - *p >= 2)
		(*p)++;
	return fold(*(*p)++, ignore_case) == fold(c, ignore_case);
}

bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t text_len,
		bool ignore_case)
{
	const char *p = pattern, *p_end = pattern + pattern_len;
	const char *t = text, *t_end = text + text_len;
	const char *star = NULL, *star_text = NULL;

	while (t < t_end) {
		if (p < p_end && *p == '*') {
			star = ++p;
			star_text = t;
			if (p == p_end)
				return true;
		} else if (p < p_end && element_match(&p, p_end, *t, ignore_case)) {
			t++;
		} else if (star) {
			p = star;
			t = ++star_text;
		} else {
			return false;
		}
	}
	while (p < p_end && *p == '*')
		p++;
	return p == p_end;
}

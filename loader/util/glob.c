/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Glob matching without back-tracking, so that a client cannot keep the server busy with a pattern.
 * A pattern becomes a nondeterministic automaton whose state i means that its first i elements have
 * matched.  All states are advanced over a character at once, as bits of a few words.
 */
#include "glob.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A set of characters, one bit each. */
struct set {
	uint64_t bits[4];
};

static void set_add(struct set *set, unsigned int low, unsigned int high)
{
	for (unsigned int w = low / 64; w <= high / 64; w++) {
		uint64_t from = w == low / 64 ? ~0ULL << low % 64 : ~0ULL;
		uint64_t to = w == high / 64 ? ~0ULL >> (63 - high % 64) : ~0ULL;

		set->bits[w] |= from & to;
	}
}

static bool set_has(const struct set *set, unsigned int c)
{
	return set->bits[c / 64] >> c % 64 & 1;
}

/* The position of a character in Redis' order, which is that of signed characters. */
static unsigned int order(char c, bool ignore_case)
{
	return (unsigned char)(ignore_case ? tolower((unsigned char)c) : c) ^ 0x80U;
}

static void add_element(struct glob *g, const struct set *set)
{
	unsigned int word = g->elements / 64;
	uint64_t bit = 1ULL << g->elements % 64;

	if (g->elements == GLOB_TEXT_MAX) {
		g->never = true;
		return;
	}
	for (unsigned int c = 0; c < 256; c++)
		if (set_has(set, c))
			g->element[word][c] |= bit;
	g->elements++;
	if (g->elements % 64 == 0)
		memset(g->element[g->elements / 64], 0, sizeof(g->element[0]));
}

static void add_char(struct glob *g, char c, bool ignore_case)
{
	struct set set = { { 0 } };
	unsigned char lower = (unsigned char)tolower((unsigned char)c);

	if (ignore_case) {
		set_add(&set, lower, lower);
		set_add(&set, (unsigned char)toupper(lower), (unsigned char)toupper(lower));
	} else {
		set_add(&set, (unsigned char)c, (unsigned char)c);
	}
	add_element(g, &set);
}

/*
 * Adds the class whose first character after '[' is at `s`; returns the position after its ']'.  As
 * in Redis, a class without ']' ends at the end of the pattern, and escaped characters in a class
 * are always case-sensitive.
 */
static const char *add_class(struct glob *g, const char *s, const char *end, bool ignore_case)
{
	struct set exact = { { 0 } }, ordered = { { 0 } }, set = { { 0 } };
	bool negated = s < end && *s == '^';

	for (s += negated; s < end && *s != ']'; s++) {
		unsigned int low, high;

		if (*s == '\\' && end - s >= 2) {
			s++;
			set_add(&exact, (unsigned char)*s, (unsigned char)*s);
			continue;
		}
		low = high = order(*s, ignore_case);
		if (end - s >= 3 && s[1] == '-') {
			s += 2;
			high = order(*s, ignore_case);
		}
		set_add(&ordered, low < high ? low : high, low < high ? high : low);
	}
	for (unsigned int c = 0; c < 256; c++)
		if ((set_has(&exact, c) || set_has(&ordered, order((char)c, ignore_case))) !=
		    negated)
			set_add(&set, c, c);
	add_element(g, &set);
	return s < end ? s + 1 : s;
}

void glob_compile(struct glob *g, const char *pattern, size_t len, bool ignore_case)
{
	const char *p = pattern, *end = pattern + len;
	static const struct set all = { { ~0ULL, ~0ULL, ~0ULL, ~0ULL } };

	g->elements = 0;
	g->never = false;
	memset(g->star, 0, sizeof(g->star));
	memset(g->element[0], 0, sizeof(g->element[0]));
	while (p < end && !g->never) {
		char c = *p++;

		if (c == '*') {
			g->star[g->elements / 64] |= 1ULL << g->elements % 64;
		} else if (c == '?') {
			add_element(g, &all);
		} else if (c == '[') {
			p = add_class(g, p, end, ignore_case);
		} else {
			if (c == '\\' && p < end)
				c = *p++;
			add_char(g, c, ignore_case);
		}
	}
}

size_t glob_bytes(const struct glob *g)
{
	/* The words of elements that it does not have are never read. */
	return offsetof(struct glob, element) + (g->elements / 64 + 1) * sizeof(g->element[0]);
}

struct glob *glob_new(const char *pattern, size_t len, bool ignore_case)
{
	struct glob g, *copy;

	glob_compile(&g, pattern, len, ignore_case);
	copy = malloc(glob_bytes(&g));
	if (copy)
		memcpy(copy, &g, glob_bytes(&g));
	return copy;
}

bool glob_test(const struct glob *g, const char *text, size_t len)
{
	uint64_t state[GLOB_WORDS] = { 1 };
	unsigned int last = g->elements / 64;

	if (g->never || len < g->elements)
		return false;
	for (size_t i = 0; i < len; i++) {
		uint64_t carry = 0, any = 0;

		for (unsigned int w = 0; w <= last; w++) {
			uint64_t matched = state[w] & g->element[w][(unsigned char)text[i]];

			state[w] = matched << 1 | carry | (state[w] & g->star[w]);
			carry = matched >> 63;
			any |= state[w];
		}
		if (!any)
			return false;
	}
	return state[last] >> g->elements % 64 & 1;
}

bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t text_len,
		bool ignore_case)
{
	struct glob g;

	glob_compile(&g, pattern, pattern_len, ignore_case);
	return glob_test(&g, text, text_len);
}

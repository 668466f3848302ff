/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Glob matching without back-tracking, so that a client cannot keep the server busy with a pattern.
 * A pattern becomes a nondeterministic automaton whose state i means that its first i elements have
 * matched.  All states are advanced over a character at once, as bits of a few words.  The plain
 * characters at the pattern's ends are compared beside it, and may be as many as keys have.
 *
 * A pattern that is too long for that but has only plain characters and stars becomes a list of
 * texts, each of which is searched for behind the one before it: the first place leaves most of the
 * text to those that follow.
 */
#include "glob.h"

#include <ctype.h>
#include <errno.h>
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

/* The word and the bit of the next element; false: there are too many. */
static bool next_element(struct glob *g, unsigned int *word, unsigned int *bit)
{
	*word = g->elements / 64;
	*bit = g->elements % 64;
	g->too_long |= g->elements == GLOB_TEXT_MAX;
	if (g->too_long)
		return false;
	g->elements++;
	if (g->elements % 64 == 0)
		memset(g->element[g->elements / 64], 0, sizeof(g->element[0]));
	return true;
}

static void add_element(struct glob *g, const struct set *set)
{
	unsigned int word, bit;

	if (!next_element(g, &word, &bit))
		return;
	for (unsigned int w = 0; w < 4; w++)
		for (uint64_t rest = set->bits[w]; rest; rest &= rest - 1)
			g->element[word][64 * w + (unsigned int)__builtin_ctzll(rest)] |= 1ULL
											  << bit;
}

static void add_any(struct glob *g)
{
	unsigned int word, bit;

	if (next_element(g, &word, &bit))
		g->any[word] |= 1ULL << bit;
}

static void add_char(struct glob *g, char c, bool ignore_case)
{
	unsigned char lower = (unsigned char)tolower((unsigned char)c);
	unsigned int word, bit;

	if (!next_element(g, &word, &bit))
		return;
	g->element[word][ignore_case ? lower : (unsigned char)c] |= 1ULL << bit;
	if (ignore_case)
		g->element[word][toupper(lower)] |= 1ULL << bit;
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

/* The elements of plain characters, up to `end`. */
static void add_run(struct glob *g, const char *s, const char *end, bool ignore_case)
{
	for (; s < end && !g->too_long; s++) {
		if (*s == '\\' && s + 1 < end)
			s++;
		add_char(g, *s, ignore_case);
	}
}

static struct glob_literal literal(const char *s, const char *end)
{
	struct glob_literal l = { .text = s, .bytes = (size_t)(end - s) };

	for (; s < end; s++, l.chars++)
		if (*s == '\\' && s + 1 < end)
			s++;
	return l;
}

bool glob_compile(struct glob *g, const char *pattern, size_t len, bool ignore_case)
{
	const char *p = pattern, *end = pattern + len, *run = pattern;
	bool ends_known = false;

	g->elements = 0;
	g->too_long = false;
	g->ignore_case = ignore_case;
	g->texts_bytes = 0;
	memset(g->star, 0, sizeof(g->star));
	memset(g->any, 0, sizeof(g->any));
	memset(g->element[0], 0, sizeof(g->element[0]));
	while (p < end && !g->too_long) {
		char c = *p;

		if (c != '*' && c != '?' && c != '[') {
			p += c == '\\' && p + 1 < end ? 2 : 1;
			continue;
		}
		if (ends_known)
			add_run(g, run, p, ignore_case);
		else
			g->prefix = literal(run, p);
		ends_known = true;
		p++;
		if (c == '*')
			g->star[g->elements / 64] |= 1ULL << g->elements % 64;
		else if (c == '?')
			add_any(g);
		else
			p = add_class(g, p, end, ignore_case);
		run = p;
	}
	g->suffix = literal(run, end);
	if (!ends_known) {
		g->prefix = g->suffix;
		g->suffix = literal(end, end);
	}
	return !g->too_long;
}

/* The first star from `s` on, or `end`.  NULL: another special character comes before it. */
static const char *next_star(const char *s, const char *end)
{
	for (; s < end && *s != '*'; s++) {
		if (*s == '?' || *s == '[')
			return NULL;
		if (*s == '\\' && s + 1 < end)
			s++;
	}
	return s;
}

/*
 * Lists the texts between the first and the last star in `to`, if that is not NULL: each behind its
 * length, without what escapes characters.  False: the pattern has other special characters.
 */
static bool list_texts(struct glob *g, const char *pattern, const char *end, char *to)
{
	const char *s = pattern, *star = next_star(s, end);

	g->prefix = literal(s, star ? star : s);
	g->texts_bytes = g->texts_chars = 0;
	while (star && star < end) {
		uint32_t chars;

		s = star + 1;
		star = next_star(s, end);
		g->suffix = literal(s, star ? star : s);
		chars = (uint32_t)g->suffix.chars;
		if (star == end || !chars)
			continue;
		g->texts_bytes += sizeof(chars) + chars;
		g->texts_chars += chars;
		if (!to)
			continue;
		to = mempcpy(to, &chars, sizeof(chars));
		for (; chars; chars--, s++) {
			s += *s == '\\';
			*to++ = *s;
		}
	}
	return star;
}

/* The words of elements that it does not have are never read. */
static size_t automaton_bytes(const struct glob *g)
{
	size_t words = g->texts_bytes ? 0 : g->elements / 64 + 1;

	return offsetof(struct glob, element) + words * sizeof(g->element[0]);
}

size_t glob_bytes(const struct glob *g)
{
	return automaton_bytes(g) + g->prefix.bytes + g->suffix.bytes + g->texts_bytes;
}

struct glob *glob_new(const char *pattern, size_t len, bool ignore_case)
{
	struct glob g, *copy;
	char *text;

	if (!glob_compile(&g, pattern, len, ignore_case)) {
		if (ignore_case || !list_texts(&g, pattern, pattern + len, NULL)) {
			errno = E2BIG;
			return NULL;
		}
		g.too_long = false;
	}
	copy = malloc(glob_bytes(&g));
	if (!copy)
		return NULL;
	memcpy(copy, &g, automaton_bytes(&g));
	text = (char *)copy + automaton_bytes(&g);
	copy->prefix.text = text;
	copy->suffix.text = mempcpy(text, g.prefix.text, g.prefix.bytes);
	copy->texts = mempcpy(text + g.prefix.bytes, g.suffix.text, g.suffix.bytes);
	if (g.texts_bytes)
		list_texts(&g, pattern, pattern + len, copy->texts);
	return copy;
}

/* Is it the literal?  `text` has as many characters. */
static bool is_literal(const struct glob *g, const struct glob_literal *l, const char *text)
{
	const char *s = l->text, *end = s + l->bytes;

	if (l->chars == l->bytes && !g->ignore_case)
		return memcmp(s, text, l->bytes) == 0;
	for (; s < end; s++, text++) {
		if (*s == '\\' && s + 1 < end)
			s++;
		if (*s != *text && (!g->ignore_case ||
				    tolower((unsigned char)*s) != tolower((unsigned char)*text)))
			return false;
	}
	return true;
}

/* Does the automaton accept what is between the ends? */
static bool accepts(const struct glob *g, const char *text, size_t len)
{
	uint64_t state[GLOB_WORDS] = { 1 };
	unsigned int last = g->elements / 64;

	if (len < g->elements)
		return false;
	for (size_t i = 0; i < len; i++) {
		uint64_t carry = 0, any = 0;

		for (unsigned int w = 0; w <= last; w++) {
			uint64_t of = g->element[w][(unsigned char)text[i]] | g->any[w];
			uint64_t matched = state[w] & of;

			state[w] = matched << 1 | carry | (state[w] & g->star[w]);
			carry = matched >> 63;
			any |= state[w];
		}
		if (!any)
			return false;
	}
	return state[last] >> g->elements % 64 & 1;
}

/* Are the listed texts, one behind the other, in `text`? */
static bool has_texts(const struct glob *g, const char *text, size_t len)
{
	const char *t = g->texts, *end = text + len;

	if (len < g->texts_chars)
		return false;
	while (t < g->texts + g->texts_bytes) {
		uint32_t chars;

		memcpy(&chars, t, sizeof(chars));
		t += sizeof(chars);
		text = memmem(text, (size_t)(end - text), t, chars);
		if (!text)
			return false;
		text += chars;
		t += chars;
	}
	return true;
}

bool glob_test(const struct glob *g, const char *text, size_t len)
{
	size_t ends = g->prefix.chars + g->suffix.chars;

	if (!len && g->star[0] & 1)
		return false;
	return !g->too_long && len >= ends && is_literal(g, &g->prefix, text) &&
	       is_literal(g, &g->suffix, text + len - g->suffix.chars) &&
	       (g->texts_bytes ? has_texts : accepts)(g, text + g->prefix.chars, len - ends);
}

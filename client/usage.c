/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What may come next, by the usage of a command: "set KEY VALUE|-|-f FILE [EX s|PX ms] [NX|XX]".
 * A usage has slots.  Each has alternatives; the first word of an alternative is typed as it is, or
 * names what may stand there, and its other words are arguments.  Slots in brackets, and options
 * like "--keys N", are filled in any order; those with "..." again and again.
 */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "cli.h"

#define SLOTS_MAX 16

struct part {
	const char *at, *end;
};

struct slot {
	struct part text;
	bool free; /* filled in any order, or not at all */
	bool again, filled;
};

static const char *word_end(struct part p)
{
	while (p.at < p.end && *p.at != ' ')
		p.at++;
	return p.at;
}

static struct part after_word(struct part p)
{
	p.at = word_end(p);
	while (p.at < p.end && *p.at == ' ')
		p.at++;
	return p;
}

/* Takes the next alternative off `text`; false: there are no more. */
static bool next_alternative(struct part *text, struct part *one)
{
	const char *bar;

	if (text->at >= text->end)
		return false;
	bar = memchr(text->at, '|', (size_t)(text->end - text->at));
	*one = (struct part){ text->at, bar ? bar : text->end };
	text->at = bar ? bar + 1 : text->end;
	return true;
}

/* Is the first word typed as it is, like EX in "EX s"? */
static bool is_literal(struct part p)
{
	static const char *const names[] = { "KEY",	"VALUE",     "SECONDS", "MILLISECONDS",
					     "DB",	"BY",	     "COUNT",	"SECTION",
					     "PATTERN", "INTERFACE", "COMMAND", "'COMMAND'" };
	size_t len = (size_t)(word_end(p) - p.at);

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strlen(names[i]) == len && !strncmp(p.at, names[i], len))
			return false;
	return true;
}

static bool is_word(struct part p, const char *word)
{
	size_t len = (size_t)(word_end(p) - p.at);

	return strlen(word) == len &&
	       !(*word == '-' ? strncmp(p.at, word, len) : strncasecmp(p.at, word, len));
}

/* Reads the slot at `at`.  The text behind it. */
static const char *read_slot(const char *at, struct slot *s)
{
	const char *end, *last;

	*s = (struct slot){ .free = *at == '[' || !strncmp(at, "--", 2) };
	if (*at == '[') {
		end = strchr(++at, ']');
		s->text = (struct part){ at, end++ };
	} else {
		end = at + strcspn(at, " ");
		for (last = end; last > at && last[-1] != '|';)
			last--;
		if (*last == '-' && last + 1 < end && *end) /* "-f FILE" */
			end += 1 + strcspn(end + 1, " ");
		s->again = end - at > 3 && !strncmp(end - 3, "...", 3);
		s->text = (struct part){ at, end - (s->again ? 3 : 0) };
	}
	if (!strncmp(end, "...", 3)) {
		s->again = true;
		end += 3;
	}
	return end + strspn(end, " ");
}

static unsigned int read_slots(const char *usage, struct slot *slots)
{
	const char *at = usage + strcspn(usage, " ");
	unsigned int count = 0;

	for (at += strspn(at, " "); *at && count < SLOTS_MAX; count++)
		at = read_slot(at, &slots[count]);
	return count;
}

/* Does the word begin an alternative of the slot?  `rest` gets the arguments that follow. */
static bool fits(const struct slot *s, const char *word, bool literal, struct part *rest)
{
	struct part text = s->text, one;

	while (next_alternative(&text, &one))
		if (is_literal(one) == literal && (!literal || is_word(one, word))) {
			*rest = after_word(one);
			return true;
		}
	return false;
}

/* The first slot that has to be filled before any other; NULL: there is none. */
static struct slot *needed(struct slot *slots, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		if (!slots[i].free && !slots[i].filled)
			return &slots[i];
	return NULL;
}

static struct slot *slot_of(struct slot *slots, unsigned int count, const char *word,
			    struct part *rest)
{
	struct slot *only = needed(slots, count);

	for (int literal = 1; literal >= 0; literal--)
		for (struct slot *s = slots; s < slots + count; s++)
			if (!s->filled && (!only || s == only) && fits(s, word, literal, rest))
				return s;
	return NULL;
}

static void tell(const struct slot *s, may_fn *may)
{
	struct part text = s->text, one;

	while (next_alternative(&text, &one))
		may(one.at, (size_t)(word_end(one) - one.at), is_literal(one));
}

void usage_next(const char *usage, int n, const struct word *words, may_fn *may)
{
	struct slot slots[SLOTS_MAX], *s;
	unsigned int count = read_slots(usage, slots);
	struct part rest = { 0 };

	for (int i = 0; i < n; i++) {
		if (rest.at < rest.end) {
			rest = after_word(rest);
			continue;
		}
		s = slot_of(slots, count, words[i].data, &rest);
		if (!s)
			return;
		s->filled = !s->again;
	}
	if (rest.at < rest.end) {
		may(rest.at, (size_t)(word_end(rest) - rest.at), false);
		return;
	}
	s = needed(slots, count);
	for (unsigned int i = 0; i < count; i++)
		if (!slots[i].filled && (!s || s == &slots[i]))
			tell(&slots[i], may);
}

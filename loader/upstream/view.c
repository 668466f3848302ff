/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A line for each node:
 *
 *	ID HOST:PORT[@BUS][,NAME...] FLAGS MASTER PING PONG EPOCH LINK SLOTS...
 *
 * SLOTS are N, N-N, or in brackets: such a slot is on its way, and only the line of the node itself
 * has these.
 */
#include "view.h"

#include <stdlib.h>
#include <string.h>

#include "util/text.h"

#define FIELDS 8 /* before the slots */
#define HASH   0x9e3779b97f4a7c15ULL

struct field {
	const char *text;
	size_t len;
};

struct line {
	struct field field[FIELDS];
	struct field slots; /* all of them */
};

/* The next word, or one that is empty. */
static struct field word(struct field *rest)
{
	struct field w;

	while (rest->len && *rest->text == ' ')
		rest->text++, rest->len--;
	w.text = rest->text;
	while (rest->len && *rest->text != ' ')
		rest->text++, rest->len--;
	w.len = (size_t)(rest->text - w.text);
	return w;
}

/* False: that was the last one. */
static bool next_line(struct field *text, struct line *out)
{
	const char *end = memchr(text->text, '\n', text->len);
	size_t len = end ? (size_t)(end - text->text) : text->len;
	struct field rest = { text->text, len };

	if (!len)
		return false;
	if (rest.text[len - 1] == '\r')
		rest.len--;
	for (unsigned int i = 0; i < FIELDS; i++)
		out->field[i] = word(&rest);
	out->slots = rest;
	len += end != NULL;
	text->text += len;
	text->len -= len;
	return true;
}

/* Is it one of those in a list with commas? */
static bool has_flag(struct field flags, const char *flag)
{
	size_t len = strlen(flag), word_len;

	while (flags.len) {
		const char *comma = memchr(flags.text, ',', flags.len);

		word_len = comma ? (size_t)(comma - flags.text) : flags.len;
		if (word_len == len && !memcmp(flags.text, flag, len))
			return true;
		word_len += comma != NULL;
		flags.text += word_len;
		flags.len -= word_len;
	}
	return false;
}

/* Those without an address, or that do not answer and have nothing, are of no use. */
static bool is_master(const struct line *l)
{
	struct field flags = l->field[2];

	return has_flag(flags, "master") && !has_flag(flags, "noaddr") &&
	       !has_flag(flags, "handshake") && (l->slots.len || !has_flag(flags, "fail"));
}

static uint64_t mix(uint64_t hash, struct field f)
{
	for (size_t i = 0; i < f.len; i++)
		hash = (hash ^ (unsigned char)f.text[i]) * 0x100000001b3ULL;
	return (hash ^ ' ') * HASH;
}

uint64_t view_mark(const char *text, size_t len)
{
	struct field rest = { text, len };
	uint64_t mark = 0, hash;
	struct line l;

	while (next_line(&rest, &l)) {
		if (!is_master(&l))
			continue;
		hash = mix(mix(mix(HASH, l.field[0]), l.field[1]), l.slots);
		mark += hash ^ hash >> 29; /* whatever the order of the lines is */
	}
	return mark ?: 1;
}

static bool copy(char *to, size_t room, const char *from, size_t len)
{
	if (len >= room)
		return false;
	memcpy(to, from, len);
	to[len] = '\0';
	return true;
}

/* HOST:PORT@BUS,NAME,... whose host may be an IPv6 address, and empty. */
static bool read_address(struct view_master *m, struct field f)
{
	const char *comma = memchr(f.text, ',', f.len), *bus, *colon;
	size_t len = comma ? (size_t)(comma - f.text) : f.len, name = 0;

	bus = memchr(f.text, '@', len);
	len = bus ? (size_t)(bus - f.text) : len;
	colon = memrchr(f.text, ':', len);
	if (!colon)
		return false;
	while (comma && ++name < f.len - (size_t)(comma - f.text) && comma[name] != ',')
		;
	return copy(m->host, sizeof(m->host), f.text, (size_t)(colon - f.text)) &&
	       copy(m->port, sizeof(m->port), colon + 1, len - (size_t)(colon + 1 - f.text)) &&
	       (!comma || memchr(comma + 1, '=', name - 1) ||
		copy(m->name, sizeof(m->name), comma + 1, name - 1));
}

/* [N->-ID], [N-<-ID] */
static bool read_moving(struct view *v, struct field word)
{
	const char *dash = memchr(word.text, '-', word.len);
	int64_t slot;

	if (!dash || !text_to_i64(word.text + 1, (size_t)(dash - word.text) - 1, &slot) ||
	    slot < 0 || slot >= VIEW_SLOTS)
		return false;
	v->moving[slot / 8] |= (uint8_t)(1 << slot % 8);
	return true;
}

static bool read_slots(struct view *v, struct field slots)
{
	struct field range;

	for (range = word(&slots); range.len; range = word(&slots)) {
		const char *dash = memchr(range.text, '-', range.len);
		size_t len = dash ? (size_t)(dash - range.text) : range.len;
		int64_t first, last;

		if (*range.text == '[') {
			if (!read_moving(v, range))
				return false;
			continue;
		}
		if (!text_to_i64(range.text, len, &first))
			return false;
		last = first;
		if (dash && !text_to_i64(dash + 1, range.len - len - 1, &last))
			return false;
		if (first < 0 || last < first || last >= VIEW_SLOTS)
			return false;
		for (int64_t slot = first; slot <= last; slot++)
			v->owner[slot] = (uint16_t)v->count;
	}
	return true;
}

static bool add(struct view *v, const struct line *l)
{
	struct view_master *more = v->count == VIEW_MASTERS
					   ? NULL
					   : realloc(v->master, (v->count + 1) * sizeof(*more));
	int64_t epoch;

	if (!more)
		return false;
	v->master = more;
	more[v->count] = (struct view_master){ 0 };
	if (!copy(more[v->count].id, sizeof(more->id), l->field[0].text, l->field[0].len) ||
	    !read_address(&more[v->count], l->field[1]) ||
	    !text_to_i64(l->field[6].text, l->field[6].len, &epoch))
		return false;
	more[v->count++].epoch = (uint64_t)epoch;
	return read_slots(v, l->slots);
}

struct view *view_new(const char *text, size_t len)
{
	struct view *v = calloc(1, sizeof(*v));
	struct field rest = { text, len };
	bool ok = v;
	struct line l;

	while (ok && next_line(&rest, &l))
		ok = !is_master(&l) || add(v, &l);
	if (ok)
		return v;
	view_free(v);
	return NULL;
}

void view_free(struct view *v)
{
	if (v)
		free(v->master);
	free(v);
}

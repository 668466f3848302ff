/* SPDX-License-Identifier: BSD-2-Clause */
#include "value.h"

#include <stdlib.h>
#include <string.h>

#include "util/text.h"

#define DEPTH_MAX 16

static const struct resp_value nothing = { .type = '_' };

struct reader {
	const char *at, *end;
	struct resp_value *free; /* the next of those that were allocated */
	size_t left;
	size_t wanted; /* values, in the pass that only counts */
};

static struct resp_value *take(struct reader *r, size_t count)
{
	struct resp_value *v = r->free;

	r->wanted += count;
	if (!r->free)
		return NULL;
	r->free += count;
	return v;
}

static bool read_value(struct reader *r, struct resp_value *v, unsigned int depth);

static bool read_items(struct reader *r, struct resp_value *v, int64_t count, unsigned int depth)
{
	struct resp_value unused, *items;

	if (count > r->end - r->at) /* each takes a byte at least */
		return false;
	items = take(r, (size_t)count);
	v->items = items;
	v->count = (size_t)count;
	for (int64_t i = 0; i < count; i++)
		if (!read_value(r, items ? &items[i] : &unused, depth + 1))
			return false;
	return true;
}

static bool read_line(struct reader *r, struct resp_value *v)
{
	const char *end = memchr(r->at, '\r', (size_t)(r->end - r->at));

	if (!end || end == r->at || r->end - end < 2)
		return false;
	*v = (struct resp_value){ .type = *r->at, .text = r->at + 1 };
	v->len = (size_t)(end - v->text);
	r->at = end + 2;
	return true;
}

static bool read_value(struct reader *r, struct resp_value *v, unsigned int depth)
{
	int64_t number = 0;

	if (depth > DEPTH_MAX || !read_line(r, v))
		return false;
	if (strchr("$=!*~>%|:", v->type) && !text_to_i64(v->text, v->len, &number))
		return false;
	switch (v->type) {
	case '$':
	case '=':
	case '!':
		v->text = r->at;
		v->len = number < 0 ? 0 : (size_t)number;
		if (number < 0)
			v->type = '_';
		else if (r->end - r->at < number + 2)
			return false;
		else
			r->at += number + 2;
		return true;
	case '*':
	case '~':
	case '>':
		v->type = number < 0 ? '_' : v->type;
		return read_items(r, v, number < 0 ? 0 : number, depth);
	case '%':
		return number >= 0 && number < INT32_MAX && read_items(r, v, 2 * number, depth);
	case '|': /* no command that we send has attributes in its reply */
		return false;
	case ':':
		v->number = number;
	}
	return true;
}

/* Two passes: the first counts. */
const struct resp_value *value_parse(const char *bytes, size_t len)
{
	struct reader r = { .at = bytes, .end = bytes + len };
	struct resp_value *all, unused;

	if (!read_value(&r, &unused, 0))
		return NULL;
	all = calloc(r.wanted + 1, sizeof(*all));
	if (!all)
		return NULL;
	r = (struct reader){ .at = bytes, .end = bytes + len, .free = all + 1 };
	read_value(&r, all, 0);
	return all;
}

void value_free(const struct resp_value *v)
{
	free((struct resp_value *)(uintptr_t)v);
}

const struct resp_value *value_item(const struct resp_value *v, size_t number)
{
	return number < v->count ? &v->items[number] : &nothing;
}

bool value_is(const struct resp_value *v, const char *text)
{
	return v->text && text_is(v->text, v->len, text);
}

const struct resp_value *value_at(const struct resp_value *v, const char *key)
{
	for (size_t i = 0; i + 1 < v->count; i += 2)
		if (value_is(&v->items[i], key))
			return &v->items[i + 1];
	return &nothing;
}

bool value_has(const struct resp_value *v, const char *text)
{
	for (size_t i = 0; i < v->count; i++)
		if (value_is(&v->items[i], text))
			return true;
	return false;
}

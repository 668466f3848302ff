/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The RESP parser.  Arguments are never copied: they point into the query buffer.  While a command
 * is incomplete they are kept as offsets, because the buffer moves when it grows.
 */
#include "resp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/text.h"

#define ARGV_START 16
#define ARGV_KEEP  1024 /* a longer array is freed after its command */

static enum resp_status resp_fail(struct resp_parser *p, const char *text)
{
	snprintf(p->error, sizeof(p->error), "%s", text);
	return RESP_ERROR;
}

static void start_command(struct resp_parser *p)
{
	if (p->cap > ARGV_KEEP)
		resp_parser_free(p);
	p->argc = p->left = 0;
	p->pos = p->scanned = 0;
	p->in_multibulk = p->in_bulk = p->done = p->refused = false;
}

static bool add_arg(struct resp_parser *p, size_t off, size_t len)
{
	if (p->argc == p->cap) {
		unsigned int cap = p->cap ? p->cap * 2 : ARGV_START;
		struct resp_arg *argv = reallocarray(p->argv, cap, sizeof(*argv));

		if (!argv)
			return false;
		p->argv = argv;
		p->cap = cap;
	}
	p->argv[p->argc].off = off;
	p->argv[p->argc++].len = len;
	return true;
}

static enum resp_status finish(struct resp_parser *p, char *buf)
{
	for (unsigned int i = 0; i < p->argc; i++)
		p->argv[i].ptr = buf + p->argv[i].off;
	p->done = true;
	return RESP_COMMAND;
}

/*
 * Finds `mark` from pos on.  Bytes are searched once, so the cost of a line that arrives byte by
 * byte is linear in its length, not quadratic.
 */
static char *find_mark(struct resp_parser *p, char *buf, size_t len, char mark)
{
	size_t from = p->pos + p->scanned;
	char *at = from < len ? memchr(buf + from, mark, len - from) : NULL;

	p->scanned = at ? 0 : len - p->pos;
	return at;
}

/*
 * Reads the number of a `*3` or `$5` line at pos and advances pos behind the line.  Returns
 * RESP_COMMAND if there was a line; *ok tells whether it held a number.
 */
static enum resp_status length_line(struct resp_parser *p, char *buf, size_t len,
				    const char *too_big, int64_t *value, bool *ok)
{
	char *line = buf + p->pos, *end = find_mark(p, buf, len, '\r');

	if (!end)
		return len - p->pos > RESP_INLINE_MAX ? resp_fail(p, too_big) : RESP_MORE;
	if (end + 1 == buf + len)
		return RESP_MORE; /* the '\n' is not here yet */
	*ok = text_to_i64(line + 1, (size_t)(end - line) - 1, value);
	p->pos = (size_t)(end + 2 - buf);
	return RESP_COMMAND;
}

static enum resp_status multibulk_header(struct resp_parser *p, char *buf, size_t len,
					 const struct resp_limits *limits)
{
	int64_t count;
	bool ok;
	enum resp_status st = length_line(p, buf, len, "too big mbulk count string", &count, &ok);

	if (st != RESP_COMMAND)
		return st;
	if (!ok || count > INT32_MAX)
		return resp_fail(p, "invalid multibulk length");
	if (count > RESP_UNAUTH_ARGS && limits->unauthenticated)
		return resp_fail(p, "unauthenticated multibulk length");
	p->in_multibulk = true;
	p->left = count > 0 ? (unsigned int)count : 0;
	return RESP_COMMAND;
}

static enum resp_status bulk_header(struct resp_parser *p, char *buf, size_t len,
				    const struct resp_limits *limits)
{
	int64_t bulk;
	bool ok;
	char first = buf[p->pos];
	enum resp_status st = length_line(p, buf, len, "too big bulk count string", &bulk, &ok);

	if (st != RESP_COMMAND)
		return st;
	if (first != '$') {
		snprintf(p->error, sizeof(p->error), "expected '$', got '%c'", first);
		return RESP_ERROR;
	}
	if (!ok || bulk < 0 || bulk > RESP_BULK_MAX)
		return resp_fail(p, "invalid bulk length");
	if (bulk > RESP_UNAUTH_BULK && limits->unauthenticated)
		return resp_fail(p, "unauthenticated bulk length");
	p->bulk = (size_t)bulk + 2;
	p->in_bulk = true;
	if ((uint64_t)bulk <= limits->max_bulk || p->refused)
		return RESP_COMMAND;
	p->refused = true;
	p->argc = 0;
	return RESP_REFUSED;
}

/* Reads an argument and its line end, or passes by what there is of it. */
static enum resp_status parse_bulk(struct resp_parser *p, size_t len)
{
	size_t there = len - p->pos;

	if (there < p->bulk) {
		if (p->refused) {
			p->bulk -= there;
			p->pos = len;
		}
		return RESP_MORE;
	}
	if (!p->refused && !add_arg(p, p->pos, p->bulk - 2))
		return RESP_NOMEM;
	p->pos += p->bulk;
	p->in_bulk = false;
	return RESP_COMMAND;
}

static enum resp_status parse_multibulk(struct resp_parser *p, char *buf, size_t len,
					const struct resp_limits *limits)
{
	enum resp_status st;

	if (!p->in_multibulk) {
		st = multibulk_header(p, buf, len, limits);
		if (st != RESP_COMMAND)
			return st;
	}
	for (; p->left; p->left--) {
		if (!p->in_bulk) {
			if (p->pos >= len)
				return RESP_MORE;
			st = bulk_header(p, buf, len, limits);
			if (st != RESP_COMMAND)
				return st;
		}
		st = parse_bulk(p, len);
		if (st != RESP_COMMAND)
			return st;
	}
	return finish(p, buf);
}

static enum resp_status parse_inline(struct resp_parser *p, char *buf, size_t len)
{
	char *end = find_mark(p, buf, len, '\n'), *cursor = buf, *word;
	size_t word_len;
	int more;

	if (!end)
		return len > RESP_INLINE_MAX ? resp_fail(p, "too big inline request") : RESP_MORE;
	p->pos = (size_t)(end + 1 - buf);
	if (end > buf && end[-1] == '\r')
		end--;
	while ((more = text_next_word(&cursor, end, &word, &word_len)) > 0)
		if (!add_arg(p, (size_t)(word - buf), word_len))
			return RESP_NOMEM;
	if (more < 0)
		return resp_fail(p, "unbalanced quotes in request");
	return finish(p, buf);
}

enum resp_status resp_parse(struct resp_parser *p, char *buf, size_t len,
			    const struct resp_limits *limits)
{
	if (p->done)
		start_command(p);
	if (!len)
		return RESP_MORE;
	if (p->in_multibulk || buf[0] == '*')
		return parse_multibulk(p, buf, len, limits);
	return parse_inline(p, buf, len);
}

bool resp_at_start(const struct resp_parser *p)
{
	return p->done || (!p->pos && !p->scanned && !p->in_multibulk);
}

size_t resp_missing(const struct resp_parser *p, size_t len)
{
	size_t end = p->pos + p->bulk;

	return !p->done && !p->refused && p->in_bulk && end > len ? end - len : 0;
}

void resp_moved(struct resp_parser *p, ptrdiff_t distance)
{
	for (unsigned int i = 0; distance && i < p->argc; i++)
		p->argv[i].ptr += distance;
}

size_t resp_forget(struct resp_parser *p)
{
	size_t bytes = p->refused ? p->pos : 0;

	p->pos -= bytes;
	return bytes;
}

void resp_parser_free(struct resp_parser *p)
{
	free(p->argv);
	p->argv = NULL;
	p->cap = 0;
}

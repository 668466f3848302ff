/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The RESP parser and reply builder.  Arguments are never copied: they point
 * into the query buffer.  While a command is incomplete they are kept as
 * offsets, because the buffer moves when it grows.
 */
#include "resp.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/text.h"

#define ARGV_START 16
#define ARGV_KEEP  1024 /* a longer array is given back after its command */

static enum resp_status fail(struct resp_parser *p, const char *text)
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
	p->in_multibulk = p->in_bulk = p->done = false;
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
 * Finds `mark` from pos on.  What was searched before is not searched again,
 * so a line that comes a byte at a time costs its length, not the square.
 */
static char *find_mark(struct resp_parser *p, char *buf, size_t len, char mark)
{
	size_t from = p->pos + p->scanned;
	char *at = from < len ? memchr(buf + from, mark, len - from) : NULL;

	p->scanned = at ? 0 : len - p->pos;
	return at;
}

/*
 * Reads the number of a `*3` or `$5` line at pos and moves behind the line.
 * RESP_COMMAND stands for "read" here; a number that is none becomes -1 with *ok false.
 */
static enum resp_status length_line(struct resp_parser *p, char *buf, size_t len,
				    const char *too_big, int64_t *value, bool *ok)
{
	char *line = buf + p->pos, *end = find_mark(p, buf, len, '\r');

	if (!end)
		return len - p->pos > RESP_INLINE_MAX ? fail(p, too_big) : RESP_MORE;
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
		return fail(p, "invalid multibulk length");
	if (count > RESP_UNAUTH_ARGS && limits->unauthenticated)
		return fail(p, "unauthenticated multibulk length");
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
	if (!ok || bulk < 0 || (uint64_t)bulk > limits->max_bulk)
		return fail(p, "invalid bulk length");
	if (bulk > RESP_UNAUTH_BULK && limits->unauthenticated)
		return fail(p, "unauthenticated bulk length");
	p->bulk = (size_t)bulk;
	p->in_bulk = true;
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
		/* pos may be one behind len when the '\n' of the header is missing */
		if (p->pos > len || len - p->pos < p->bulk + 2)
			return RESP_MORE;
		if (!add_arg(p, p->pos, p->bulk))
			return RESP_NOMEM;
		p->pos += p->bulk + 2;
		p->in_bulk = false;
	}
	return finish(p, buf);
}

static enum resp_status parse_inline(struct resp_parser *p, char *buf, size_t len)
{
	char *end = find_mark(p, buf, len, '\n'), *cursor = buf, *word;
	size_t word_len;
	int more;

	if (!end)
		return len > RESP_INLINE_MAX ? fail(p, "too big inline request") : RESP_MORE;
	p->pos = (size_t)(end + 1 - buf);
	if (end > buf && end[-1] == '\r')
		end--;
	while ((more = text_next_word(&cursor, end, &word, &word_len)) > 0)
		if (!add_arg(p, (size_t)(word - buf), word_len))
			return RESP_NOMEM;
	if (more < 0)
		return fail(p, "unbalanced quotes in request");
	return finish(p, buf);
}

enum resp_status resp_parse(struct resp_parser *p, char *buf, size_t len,
			    const struct resp_limits *limits)
{
	if (p->done)
		start_command(p);
	if (!len)
		return RESP_MORE;
	return buf[0] == '*' ? parse_multibulk(p, buf, len, limits) : parse_inline(p, buf, len);
}

size_t resp_missing(const struct resp_parser *p, size_t len)
{
	size_t end = p->pos + p->bulk + 2;

	return !p->done && p->in_bulk && end > len ? end - len : 0;
}

void resp_parser_free(struct resp_parser *p)
{
	free(p->argv);
	p->argv = NULL;
	p->cap = 0;
}

/* --- replies --- */

#define CHUNK_BYTES  16384
#define CACHE_CHUNKS 64 /* up to 1 MiB is kept, so that busy clients cost no allocation */

struct reply_chunk {
	struct reply_chunk *next;
	size_t start, len, cap; /* data[start..len) is not yet sent */
	char data[];
};

static struct reply_chunk *cache;
static unsigned int cached;

static struct reply_chunk *chunk_new(size_t want)
{
	size_t cap = want > CHUNK_BYTES ? want : CHUNK_BYTES;
	struct reply_chunk *c;

	if (cap == CHUNK_BYTES && cache) {
		c = cache;
		cache = c->next;
		cached--;
	} else {
		c = malloc(sizeof(*c) + cap);
		if (!c)
			return NULL;
	}
	c->next = NULL;
	c->start = c->len = 0;
	c->cap = cap;
	return c;
}

static void chunk_free(struct reply_chunk *c)
{
	if (c->cap != CHUNK_BYTES || cached == CACHE_CHUNKS) {
		free(c);
		return;
	}
	c->next = cache;
	cache = c;
	cached++;
}

void reply_cache_free(void)
{
	while (cache) {
		struct reply_chunk *next = cache->next;

		free(cache);
		cache = next;
	}
	cached = 0;
}

void reply_init(struct reply *r, size_t limit)
{
	*r = (struct reply){ .limit = limit, .version = 2 };
}

void reply_free(struct reply *r)
{
	while (r->head) {
		struct reply_chunk *next = r->head->next;

		chunk_free(r->head);
		r->head = next;
	}
	r->tail = NULL;
	r->bytes = r->memory = 0;
}

static void give_up(struct reply *r)
{
	reply_free(r);
	r->failed = true;
}

/* Room for `n` bytes in one piece; the caller adds what it used with used(). */
static char *reserve(struct reply *r, size_t n)
{
	struct reply_chunk *c = r->tail;

	if (r->failed)
		return NULL;
	if (r->limit && r->bytes + n > r->limit) {
		give_up(r);
		return NULL;
	}
	if (c && c->cap - c->len >= n)
		return c->data + c->len;
	c = chunk_new(n);
	if (!c) {
		give_up(r);
		return NULL;
	}
	if (r->tail)
		r->tail->next = c;
	else
		r->head = c;
	r->tail = c;
	r->memory += sizeof(*c) + c->cap;
	return c->data;
}

static void used(struct reply *r, size_t n)
{
	r->tail->len += n;
	r->bytes += n;
}

void reply_raw(struct reply *r, const void *bytes, size_t len)
{
	char *at = reserve(r, len);

	if (!at)
		return;
	memcpy(at, bytes, len);
	used(r, len);
}

static char *end_line(char *at)
{
	at[0] = '\r';
	at[1] = '\n';
	return at + 2;
}

static void typed_number(struct reply *r, char type, int64_t value)
{
	char *start = reserve(r, TEXT_NUMBER_MAX + 3), *at = start;

	if (!at)
		return;
	*at++ = type;
	at += text_from_i64(at, value);
	used(r, (size_t)(end_line(at) - start));
}

void reply_status(struct reply *r, const char *text)
{
	size_t len = strlen(text);
	char *at = reserve(r, len + 3);

	if (!at)
		return;
	at[0] = '+';
	memcpy(at + 1, text, len);
	end_line(at + 1 + len);
	used(r, len + 3);
}

void reply_int(struct reply *r, int64_t value)
{
	typed_number(r, ':', value);
}

void reply_bulk(struct reply *r, const void *bytes, size_t len)
{
	char *start = reserve(r, len + TEXT_NUMBER_MAX + 5), *at = start;

	if (!at)
		return;
	*at++ = '$';
	at += text_from_u64(at, len);
	at = end_line(at);
	if (len)
		memcpy(at, bytes, len);
	used(r, (size_t)(end_line(at + len) - start));
}

void reply_text(struct reply *r, const char *text)
{
	reply_bulk(r, text, strlen(text));
}

void reply_verbatim(struct reply *r, const char *text, size_t len)
{
	if (r->version < 3) {
		reply_bulk(r, text, len);
		return;
	}
	typed_number(r, '=', (int64_t)len + 4);
	reply_raw(r, "txt:", 4);
	reply_raw(r, text, len);
	reply_raw(r, "\r\n", 2);
}

void reply_null(struct reply *r)
{
	if (r->version < 3)
		reply_raw(r, "$-1\r\n", 5);
	else
		reply_raw(r, "_\r\n", 3);
}

void reply_array(struct reply *r, size_t items)
{
	typed_number(r, '*', (int64_t)items);
}

void reply_map(struct reply *r, size_t pairs)
{
	if (r->version < 3)
		reply_array(r, pairs * 2);
	else
		typed_number(r, '%', (int64_t)pairs);
}

void reply_set(struct reply *r, size_t items)
{
	typed_number(r, r->version < 3 ? '*' : '~', (int64_t)items);
}

void reply_error(struct reply *r, const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	int n;

	text[0] = '-';
	va_start(ap, fmt);
	n = vsnprintf(text + 1, sizeof(text) - 3, fmt, ap);
	va_end(ap);
	if (n < 0)
		n = 0;
	if ((size_t)n > sizeof(text) - 4)
		n = (int)sizeof(text) - 4;
	for (int i = 1; i <= n; i++)
		if (text[i] == '\r' || text[i] == '\n')
			text[i] = ' ';
	end_line(text + 1 + n);
	reply_raw(r, text, (size_t)n + 3);
}

void reply_splice(struct reply *to, struct reply *from)
{
	if (from->failed || (to->limit && to->bytes + from->bytes > to->limit)) {
		reply_free(from);
		give_up(to);
		return;
	}
	if (to->failed || !from->head) {
		reply_free(from);
		return;
	}
	if (to->tail)
		to->tail->next = from->head;
	else
		to->head = from->head;
	to->tail = from->tail;
	to->bytes += from->bytes;
	to->memory += from->memory;
	from->head = from->tail = NULL;
	from->bytes = from->memory = 0;
}

int reply_iov(const struct reply *r, struct iovec *iov, int max)
{
	int n = 0;

	for (struct reply_chunk *c = r->head; c && n < max; c = c->next) {
		if (c->len == c->start)
			continue;
		iov[n].iov_base = c->data + c->start;
		iov[n++].iov_len = c->len - c->start;
	}
	return n;
}

void reply_sent(struct reply *r, size_t n)
{
	r->bytes -= n;
	while (r->head) {
		struct reply_chunk *c = r->head;
		size_t part = c->len - c->start < n ? c->len - c->start : n;

		c->start += part;
		n -= part;
		if (c->start < c->len)
			return;
		r->head = c->next;
		r->memory -= sizeof(*c) + c->cap;
		chunk_free(c);
	}
	r->tail = NULL;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Replies in RESP2 and RESP3. */
#include "reply.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/text.h"

#define GIVE_LEAST 65536 /* bytes that are not copied */

void reply_init(struct reply *r, enum protocol protocol, size_t limit)
{
	*r = (struct reply){ .out.limit = limit, .protocol = protocol };
}

void reply_part(struct reply *part, const struct reply *whole)
{
	reply_init(part, whole->protocol, whole->out.limit);
	part->errors = whole->errors;
	part->muted = whole->muted;
}

void reply_free(struct reply *r)
{
	outbox_free(&r->out);
}

void reply_splice(struct reply *whole, struct reply *part)
{
	outbox_splice(&whole->out, &part->out);
}

void reply_copy(struct reply *whole, const struct reply *part)
{
	outbox_copy(&whole->out, &part->out);
}

/* NULL if the outbox failed, or the reply is muted. */
static inline char *resp_reserve(struct reply *r, size_t len)
{
	return r->muted ? NULL : outbox_reserve(&r->out, len);
}

static void append(struct reply *r, const void *bytes, size_t len)
{
	char *at = resp_reserve(r, len);

	if (!at)
		return;
	memcpy(at, bytes, len);
	outbox_used(&r->out, len);
}

static char *end_line(char *at)
{
	at[0] = '\r';
	at[1] = '\n';
	return at + 2;
}

static void typed_number(struct reply *r, char type, int64_t value)
{
	char *start = resp_reserve(r, TEXT_NUMBER_MAX + 3), *at = start;

	if (!at)
		return;
	*at++ = type;
	at += text_from_i64(at, value);
	outbox_used(&r->out, (size_t)(end_line(at) - start));
}

void reply_ok(struct reply *r)
{
	append(r, "+OK\r\n", 5);
}

void reply_status(struct reply *r, const char *text)
{
	size_t len = strlen(text);
	char *at = resp_reserve(r, len + 3);

	if (!at)
		return;
	at[0] = '+';
	memcpy(at + 1, text, len);
	end_line(at + 1 + len);
	outbox_used(&r->out, len + 3);
}

void reply_int(struct reply *r, int64_t value)
{
	typed_number(r, ':', value);
}

void reply_bulk(struct reply *r, const void *bytes, size_t len)
{
	char *start = resp_reserve(r, len + TEXT_NUMBER_MAX + 5), *at = start;

	if (!at)
		return;
	*at++ = '$';
	at += text_from_u64(at, len);
	at = end_line(at);
	if (len)
		memcpy(at, bytes, len);
	outbox_used(&r->out, (size_t)(end_line(at + len) - start));
}

void reply_bulk_give(struct reply *r, char *bytes, size_t len)
{
	char *start = len < GIVE_LEAST ? NULL : resp_reserve(r, TEXT_NUMBER_MAX + 3), *at = start;

	if (!at) {
		if (len < GIVE_LEAST)
			reply_bulk(r, bytes, len);
		free(bytes);
		return;
	}
	*at++ = '$';
	at += text_from_u64(at, len);
	outbox_used(&r->out, (size_t)(end_line(at) - start));
	outbox_give(&r->out, bytes, len);
	append(r, "\r\n", 2);
}

void reply_bool(struct reply *r, bool value)
{
	if (r->protocol < PROTOCOL_RESP3)
		reply_int(r, value);
	else
		append(r, value ? "#t\r\n" : "#f\r\n", 4);
}

void reply_double(struct reply *r, double value)
{
	char text[40];
	int len = snprintf(text, sizeof(text), "%.17g", value);

	if (r->protocol < PROTOCOL_RESP3) {
		reply_bulk(r, text, (size_t)len);
		return;
	}
	append(r, ",", 1);
	append(r, text, (size_t)len);
	append(r, "\r\n", 2);
}

void reply_text(struct reply *r, const char *text)
{
	reply_bulk(r, text, strlen(text));
}

void reply_verbatim(struct reply *r, const char *text, size_t len)
{
	if (r->protocol < PROTOCOL_RESP3) {
		reply_bulk(r, text, len);
		return;
	}
	typed_number(r, '=', (int64_t)len + 4);
	append(r, "txt:", 4);
	append(r, text, len);
	append(r, "\r\n", 2);
}

void reply_big_number(struct reply *r, const char *text, size_t len)
{
	if (r->protocol < PROTOCOL_RESP3)
		typed_number(r, '$', (int64_t)len);
	else
		append(r, "(", 1);
	for (; len; text++, len--)
		append(r, *text == '\r' || *text == '\n' ? " " : text, 1);
	append(r, "\r\n", 2);
}

void reply_null(struct reply *r)
{
	if (r->protocol < PROTOCOL_RESP3)
		append(r, "$-1\r\n", 5);
	else
		append(r, "_\r\n", 3);
}

void reply_null_array(struct reply *r)
{
	if (r->protocol < PROTOCOL_RESP3)
		append(r, "*-1\r\n", 5);
	else
		append(r, "_\r\n", 3);
}

void reply_array(struct reply *r, size_t items)
{
	typed_number(r, '*', (int64_t)items);
}

void reply_map(struct reply *r, size_t pairs)
{
	if (r->protocol < PROTOCOL_RESP3)
		reply_array(r, pairs * 2);
	else
		typed_number(r, '%', (int64_t)pairs);
}

void reply_set(struct reply *r, size_t items)
{
	typed_number(r, r->protocol < PROTOCOL_RESP3 ? '*' : '~', (int64_t)items);
}

void reply_push(struct reply *r, size_t items)
{
	typed_number(r, r->protocol < PROTOCOL_RESP3 ? '*' : '>', (int64_t)items);
}

/* The code ends with a space, or the text. */
static void count_errors(struct error_counts *counts, const char *text, uint64_t count)
{
	size_t len = strcspn(text, " \r\n");

	counts->total += count;
	for (unsigned int i = 0; i < ERROR_CODES && len && len < ERROR_CODE_MAX; i++) {
		if (!counts->each[i].code[0])
			memcpy(counts->each[i].code, text, len);
		if (memcmp(counts->each[i].code, text, len) || counts->each[i].code[len])
			continue;
		counts->each[i].count += count;
		return;
	}
}

void error_counts_add(struct error_counts *to, const struct error_counts *more)
{
	uint64_t named = 0;

	for (unsigned int i = 0; i < ERROR_CODES && more->each[i].code[0]; i++) {
		count_errors(to, more->each[i].code, more->each[i].count);
		named += more->each[i].count;
	}
	to->total += more->total - named;
}

void reply_error(struct reply *r, const char *fmt, ...)
{
	char code[ERROR_CODE_MAX + 1], *at; /* the beginning of the text */
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(code, sizeof(code), fmt, ap);
	va_end(ap);
	if (n < 0) {
		n = 0;
		code[0] = '\0';
	}
	if (r->errors)
		count_errors(r->errors, code, 1);
	at = resp_reserve(r, (size_t)n + 4);
	if (!at)
		return;
	*at++ = '-';
	va_start(ap, fmt);
	vsnprintf(at, (size_t)n + 1, fmt, ap);
	va_end(ap);
	for (int i = 0; i < n; i++)
		if (at[i] == '\r' || at[i] == '\n')
			at[i] = ' ';
	end_line(at + n);
	outbox_used(&r->out, (size_t)n + 3);
}

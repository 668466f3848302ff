// SPDX-License-Identifier: BSD-2-Clause
/* RESP2, the protocol of redis-server and xkvd: pipelined commands; replies in the same order. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bench/common/message.h"
#include "entry.h"
#include "protocol.h"

#define LINE_MAX_BYTES 4096 /* of a reply without its value; the longest are error messages */

static size_t write_command(uint8_t *to, unsigned int words, const char *name)
{
	return sprintf((char *)to, "*%u\r\n$%zu\r\n%s\r\n", words, strlen(name), name);
}

static size_t write_length(uint8_t *to, unsigned int length)
{
	return sprintf((char *)to, "$%u\r\n", length);
}

static size_t write_end(uint8_t *to)
{
	memcpy(to, "\r\n", 2);
	return 2;
}

static size_t write_key(const struct options *o, uint8_t *to, uint32_t key)
{
	size_t len = write_length(to, entry_key_size(o, key));

	len += entry_write_key(o, to + len, key);
	return len + write_end(to + len);
}

static size_t write_value(const struct options *o, uint8_t *to, uint32_t key, uint64_t nonce)
{
	size_t len = write_length(to, entry_value_size(o, key));

	len += entry_write_value(o, to + len, key, nonce);
	return len + write_end(to + len);
}

static size_t write_set(const struct options *o, uint8_t *buf, uint32_t key, uint64_t nonce)
{
	size_t len = write_command(buf, 3, "SET");

	len += write_key(o, buf + len, key);
	return len + write_value(o, buf + len, key, nonce);
}

static size_t encode(const struct options *o, uint8_t *buf, struct request *r, uint64_t nonce)
{
	unsigned int n = r->keys < REQUEST_KEYS_MAX ? r->keys : REQUEST_KEYS_MAX;
	size_t len;

	r->asked = n;
	if (r->op == OP_SET && n == 1)
		return write_set(o, buf, request_key(r, 0), nonce);
	if (r->op == OP_SET)
		len = write_command(buf, 1 + 2 * n, "MSET");
	else if (r->op == OP_DELETE)
		len = write_command(buf, 1 + n, "DEL");
	else
		len = write_command(buf, 1 + n, r->op == OP_GET && n == 1 ? "GET" : "MGET");
	for (unsigned int i = 0; i < n; i++) {
		len += write_key(o, buf + len, request_key(r, i));
		if (r->op == OP_SET)
			len += write_value(o, buf + len, request_key(r, i), nonce + i);
	}
	return len;
}

/* A reply, or one of an array's: its type, its number or length, and where it ends. */
struct element {
	char type;	     /* + - : $ * */
	long number;	     /* of : $ and *; -1 for null */
	const uint8_t *text; /* of + - and $ */
	size_t len;	     /* of text */
};

/* Digits, a minus before them if they are below 0, nothing else. */
static bool read_number(const uint8_t *at, size_t len, long *out)
{
	bool minus = len && *at == '-';
	long n = 0;

	if (len == minus || len > 18)
		return false;
	for (size_t i = minus; i < len; i++) {
		if (at[i] < '0' || at[i] > '9')
			return false;
		n = n * 10 + at[i] - '0';
	}
	*out = minus ? -n : n;
	return true;
}

/* A bulk string's bytes, behind its line.  As read_element(). */
static ssize_t read_bulk(struct element *e, const uint8_t *buf, size_t line, size_t len)
{
	if (e->number < -1 || e->number > (long)XKV_VALUE_MAX)
		return -EBADMSG;
	if (e->number < 0)
		return line;
	e->text = buf + line;
	e->len = e->number;
	if (len - line < e->len + 2)
		return 0;
	return memcmp(e->text + e->len, "\r\n", 2) ? -EBADMSG : (ssize_t)(line + e->len + 2);
}

/* Reads the element that `buf` starts with; of an array its head.  Bytes, 0 or -EBADMSG. */
static ssize_t read_element(struct element *e, const uint8_t *buf, size_t len)
{
	size_t most = len < LINE_MAX_BYTES ? len : LINE_MAX_BYTES, line;
	const uint8_t *end = most ? memchr(buf, '\n', most) : NULL;

	if (len && !strchr("+-:$*", buf[0]))
		return -EBADMSG;
	if (!end)
		return len < LINE_MAX_BYTES ? 0 : -EBADMSG;
	line = end + 1 - buf;
	if (line < 3 || end[-1] != '\r')
		return -EBADMSG;
	*e = (struct element){ .type = buf[0], .text = buf + 1, .len = line - 3 };
	if (e->type == '+' || e->type == '-')
		return line;
	if (!read_number(e->text, e->len, &e->number))
		return -EBADMSG;
	if (e->type == '$')
		return read_bulk(e, buf, line, len);
	return e->type == '*' && (e->number < 0 || e->number > REQUEST_KEYS_MAX) ? -EBADMSG
										 : (ssize_t)line;
}

/* None of the commands used here has a reply with nested arrays. */
static ssize_t measure(const struct request *r, const uint8_t *buf, size_t len)
{
	struct element e, part;
	ssize_t used = read_element(&e, buf, len), n;

	if (used <= 0 || e.type != '*')
		return used;
	for (long i = 0; i < e.number; i++, used += n) {
		n = read_element(&part, buf + used, len - used);
		if (n <= 0)
			return n;
		if (part.type == '*')
			return -EBADMSG;
	}
	return used;
}

static bool starts_with(const struct element *e, const char *word)
{
	return e->len >= strlen(word) && !memcmp(e->text, word, strlen(word));
}

/* An error answers all keys of the request. */
static enum outcome take_error(struct stats *s, struct request *r, const struct element *e)
{
	enum stat_id which = starts_with(e, "OOM")				   ? STAT_NO_MEMORY
			     : starts_with(e, "BUSY") || starts_with(e, "LOADING") ? STAT_BUSY
										   : STAT_REFUSED;

	stat_add(s, which, r->asked);
	if (r->must && which == STAT_BUSY)
		return AGAIN;
	request_answered(r, r->keys);
	return REFUSED;
}

/* One value of a GET or MGET.  False if it is none. */
static bool take_value(const struct options *o, struct stats *s, uint32_t key,
		       const struct element *e)
{
	if (e->type != '$')
		return false;
	if (e->number < 0)
		stat_add(s, STAT_MISSES, 1);
	else
		protocol_value(o, s, key, e->text, e->len);
	return true;
}

static enum outcome take_values(const struct options *o, struct stats *s, struct request *r,
				const struct element *head, const uint8_t *at, const uint8_t *end)
{
	struct element e = *head;

	if (head->type == '*' && head->number != (long)r->asked)
		return protocol_broken(s);
	for (unsigned int i = 0; i < r->asked; i++) {
		if (head->type == '*')
			at += read_element(&e, at, end - at); /* complete: measure() saw to it */
		else if (r->asked != 1)
			return protocol_broken(s);
		if (!take_value(o, s, request_key(r, i), &e))
			return protocol_broken(s);
	}
	stat_add(s, STAT_OPS, r->op == OP_GET ? r->asked : 0);
	request_answered(r, r->asked);
	return r->keys ? AGAIN : DONE;
}

static enum outcome take(const struct options *o, struct stats *s, struct request *r,
			 const uint8_t *buf, size_t len)
{
	struct element e;
	ssize_t head = read_element(&e, buf, len);

	if (e.type == '-')
		return take_error(s, r, &e);
	if (r->op == OP_GET || r->op == OP_SCAN)
		return take_values(o, s, r, &e, buf + head, buf + len);
	if (r->op == OP_SET ? e.type != '+' || !starts_with(&e, "OK") : e.type != ':')
		return protocol_broken(s);
	stat_add(s, r->op == OP_SET ? STAT_SETS : STAT_DELETES, r->asked);
	stat_add(s, STAT_OPS, r->asked);
	request_answered(r, r->asked);
	return DONE;
}

static size_t ping(const struct options *o, uint8_t *buf, uint64_t id)
{
	return write_command(buf, 1, "PING");
}

static int pong(const uint8_t *buf, size_t len, uint64_t id)
{
	struct element e;
	ssize_t n = read_element(&e, buf, len);

	if (n == 0)
		return 0;
	if (n > 0 && e.type == '+' && starts_with(&e, "PONG"))
		return 1;
	if (n > 0 && e.type == '-')
		message("the server refuses a PING: %.*s", (int)e.len, (const char *)e.text);
	else
		message("what answers does not speak RESP");
	return -EPROTO;
}

const struct protocol protocol_resp = {
	.name = "resp",
	.stream = true,
	.encode = encode,
	.measure = measure,
	.take = take,
	.ping = ping,
	.pong = pong,
};

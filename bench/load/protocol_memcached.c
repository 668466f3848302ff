// SPDX-License-Identifier: BSD-2-Clause
/* memcached's text protocol over TCP: pipelined commands; replies have the same order. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/message.h"
#include "entry.h"
#include "protocol.h"

#define LINE_BYTES_MAX 2048

static size_t write_set(const struct options *o, uint8_t *to, uint32_t key, uint64_t nonce)
{
	size_t len = sprintf((char *)to, "set ");

	len += entry_write_key(o, to + len, key);
	len += sprintf((char *)to + len, " 0 0 %u\r\n", entry_value_size(o, key));
	len += entry_write_value(o, to + len, key, nonce);
	memcpy(to + len, "\r\n", 2);
	return len + 2;
}

static size_t write_delete(const struct options *o, uint8_t *to, uint32_t key)
{
	size_t len = sprintf((char *)to, "delete ");

	len += entry_write_key(o, to + len, key);
	memcpy(to + len, "\r\n", 2);
	return len + 2;
}

static size_t write_get(const struct options *o, uint8_t *to, struct request *r)
{
	size_t len = sprintf((char *)to, "get");

	r->asked = r->keys < REQUEST_KEYS_MAX ? r->keys : REQUEST_KEYS_MAX;
	for (unsigned int i = 0; i < r->asked; i++) {
		to[len++] = ' ';
		len += entry_write_key(o, to + len, request_key(r, i));
	}
	memcpy(to + len, "\r\n", 2);
	return len + 2;
}

static size_t encode(const struct options *o, uint8_t *buf, struct request *r, uint64_t nonce)
{
	size_t len = 0;

	if (r->op == OP_GET || r->op == OP_SCAN)
		return write_get(o, buf, r);
	r->asked = r->keys;
	for (unsigned int i = 0; i < r->keys; i++) {
		uint32_t key = request_key(r, i);

		len += r->op == OP_SET ? write_set(o, buf + len, key, nonce + i)
				       : write_delete(o, buf + len, key);
	}
	return len;
}

/* Length of the line at `at` including its end; 0 if it is not complete yet. */
static ssize_t read_line(const uint8_t *at, size_t len)
{
	size_t most = len < LINE_BYTES_MAX ? len : LINE_BYTES_MAX;
	const uint8_t *end = most ? memchr(at, '\n', most) : NULL;

	if (!end)
		return len < LINE_BYTES_MAX ? 0 : -EBADMSG;
	return end > at && end[-1] == '\r' ? end + 1 - at : -EBADMSG;
}

static bool starts_with(const uint8_t *at, size_t len, const char *word)
{
	return len >= strlen(word) && !memcmp(at, word, strlen(word));
}

struct value {
	const uint8_t *key, *data;
	size_t key_len, len;
};

/* "VALUE key flags bytes\r\n" of `line` bytes.  False if it is none. */
static bool read_value_line(struct value *v, const uint8_t *at, size_t line)
{
	char text[LINE_BYTES_MAX], *key_end, *end;
	unsigned long len;

	memcpy(text, at, line - 2);
	text[line - 2] = 0;
	key_end = strlen(text) == line - 2 && line > 8 ? strchr(text + 6, ' ') : NULL;
	if (!key_end || key_end == text + 6 || key_end[1] < '0' || key_end[1] > '9')
		return false;
	(void)strtoul(key_end + 1, &end, 10);
	if (end[0] != ' ' || end[1] < '0' || end[1] > '9')
		return false;
	len = strtoul(end + 1, &end, 10);
	if (*end || len > XKV_VALUE_MAX)
		return false;
	*v = (struct value){
		.key = at + 6, .key_len = key_end - text - 6, .data = at + line, .len = len
	};
	return true;
}

/* Reads a value with its line.  Bytes, 0 if it is not complete, -EBADMSG. */
static ssize_t read_value(struct value *v, const uint8_t *at, size_t len)
{
	ssize_t line = read_line(at, len);

	if (line <= 0)
		return line;
	if (!read_value_line(v, at, line))
		return -EBADMSG;
	if (len - line < v->len + 2)
		return 0;
	return memcmp(v->data + v->len, "\r\n", 2) ? -EBADMSG : (ssize_t)(line + v->len + 2);
}

/* Values and the line behind them: END, or an error. */
static ssize_t measure_get(const uint8_t *buf, size_t len)
{
	struct value v;
	size_t used = 0;
	ssize_t n;

	for (;; used += n) {
		n = read_line(buf + used, len - used);
		if (n <= 0)
			return n;
		if (!starts_with(buf + used, n, "VALUE "))
			return used + n;
		n = read_value(&v, buf + used, len - used);
		if (n <= 0)
			return n;
	}
}

static ssize_t measure(const struct request *r, const uint8_t *buf, size_t len)
{
	size_t used = 0;

	if (r->op == OP_GET || r->op == OP_SCAN)
		return measure_get(buf, len);
	for (unsigned int i = 0; i < r->asked; i++) {
		ssize_t n = read_line(buf + used, len - used);

		if (n <= 0)
			return n;
		used += n;
	}
	return used;
}

/* Counts an error line.  False if the line is not an error. */
static bool read_error(const uint8_t *line, size_t len, enum stat_id *which)
{
	if (starts_with(line, len, "SERVER_ERROR out of memory"))
		*which = STAT_NO_MEMORY;
	else if (starts_with(line, len, "SERVER_ERROR object too large"))
		*which = STAT_TOO_LARGE;
	else if (starts_with(line, len, "SERVER_ERROR") || starts_with(line, len, "CLIENT_ERROR") ||
		 starts_with(line, len, "ERROR") || starts_with(line, len, "NOT_STORED"))
		*which = STAT_REFUSED;
	else
		return false;
	return true;
}

/* Values come in the order of the keys that were asked for; keys without one are left out. */
static enum outcome take_values(const struct options *o, struct stats *s, struct request *r,
				const uint8_t *at, size_t len)
{
	unsigned int i = 0;
	struct value v;
	enum stat_id error;

	while (starts_with(at, len, "VALUE ")) {
		ssize_t n = read_value(&v, at, len); /* complete: measure() saw to it */

		while (i < r->asked && !entry_key_is(o, request_key(r, i), v.key, v.key_len)) {
			stat_add(s, STAT_MISSES, 1);
			i++;
		}
		if (i == r->asked)
			return protocol_broken(s);
		protocol_value(o, s, request_key(r, i++), v.data, v.len);
		at += n;
		len -= n;
	}
	if (read_error(at, len, &error)) {
		stat_add(s, error, r->asked - i);
		request_answered(r, r->keys);
		return REFUSED;
	}
	if (len != 5 || memcmp(at, "END\r\n", 5))
		return protocol_broken(s);
	stat_add(s, STAT_MISSES, r->asked - i);
	stat_add(s, STAT_OPS, r->op == OP_GET ? r->asked : 0);
	request_answered(r, r->asked);
	return r->keys ? AGAIN : DONE;
}

static enum outcome take(const struct options *o, struct stats *s, struct request *r,
			 const uint8_t *buf, size_t len)
{
	const char *done = r->op == OP_SET ? "STORED\r\n" : "DELETED\r\n";
	enum stat_id error;

	if (r->op == OP_GET || r->op == OP_SCAN)
		return take_values(o, s, r, buf, len);
	for (unsigned int i = 0; i < r->asked; i++) {
		ssize_t line = read_line(buf, len);

		if (starts_with(buf, line, done) ||
		    (r->op == OP_DELETE && starts_with(buf, line, "NOT_FOUND\r\n"))) {
			stat_add(s, r->op == OP_SET ? STAT_SETS : STAT_DELETES, 1);
			stat_add(s, STAT_OPS, 1);
		} else if (read_error(buf, line, &error)) {
			stat_add(s, error, 1);
		} else {
			return protocol_broken(s);
		}
		buf += line;
		len -= line;
	}
	request_answered(r, r->asked);
	return DONE;
}

static size_t ping(const struct options *o, uint8_t *buf, uint64_t id)
{
	return sprintf((char *)buf, "version\r\n");
}

static int pong(const uint8_t *buf, size_t len, uint64_t id)
{
	ssize_t line = read_line(buf, len);

	if (!line)
		return 0;
	if (line > 0 && starts_with(buf, line, "VERSION "))
		return 1;
	message("what answers does not speak memcached's text protocol");
	return -EPROTO;
}

const struct protocol protocol_memcached = {
	.name = "memcached",
	.stream = true,
	.encode = encode,
	.measure = measure,
	.take = take,
	.ping = ping,
	.pong = pong,
};

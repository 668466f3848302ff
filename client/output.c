/* SPDX-License-Identifier: BSD-2-Clause */
/* Prints results and errors: on a terminal, in a pipe, as JSON. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

void out_text(const struct cli *c, const char *text)
{
	puts(text);
}

void out_integer(const struct cli *c, long long n)
{
	printf(c->style == STYLE_QUOTED ? "(integer) %lld\n" : "%lld\n", n);
}

void out_nil(const struct cli *c)
{
	puts(c->style == STYLE_QUOTED ? "(nil)" : "");
}

static void put_escaped(unsigned char byte)
{
	static const char plain[] = "\n\r\t\a\b\\\"", letter[] = "nrtab\\\"";
	const char *found = byte ? strchr(plain, byte) : NULL;

	if (found)
		printf("\\%c", letter[found - plain]);
	else if (byte >= ' ' && byte <= '~') /* whatever the locale prints */
		putchar(byte);
	else
		printf("\\x%02x", byte);
}

void out_quoted(const void *bytes, size_t len)
{
	const unsigned char *p = bytes;

	putchar('"');
	for (size_t i = 0; i < len; i++)
		put_escaped(p[i]);
	putchar('"');
}

void out_key(const struct cli *c, const void *key, size_t len)
{
	if (c->style != STYLE_QUOTED)
		return;
	out_quoted(key, len);
	putchar(' ');
}

void out_value(const struct cli *c, const void *value, size_t len)
{
	if (c->style == STYLE_QUOTED)
		out_quoted(value, len);
	else
		fwrite(value, 1, len, stdout);
	putchar('\n');
}

#define DIGITS 15 /* a Unix time in seconds needs 13 to be one of milliseconds */

void out_json(json_t *object)
{
	if (!object || json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS))) {
		fputs("xkv: cannot write JSON: out of memory, or the output is closed\n", stderr);
		exit(EXIT_SERVER);
	}
	putchar('\n');
	json_decref(object);
}

static json_t *json_base64(const unsigned char *p, size_t len)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	char *text = malloc((len + 2) / 3 * 4 + 1), *to = text;
	json_t *object;

	if (!text)
		return NULL;
	for (size_t i = 0; i < len; i += 3) {
		uint32_t n = (uint32_t)p[i] << 16 | (i + 1 < len ? (uint32_t)p[i + 1] << 8 : 0) |
			     (i + 2 < len ? p[i + 2] : 0);

		*to++ = digits[n >> 18];
		*to++ = digits[n >> 12 & 63];
		*to++ = i + 1 < len ? digits[n >> 6 & 63] : '=';
		*to++ = i + 2 < len ? digits[n & 63] : '=';
	}
	*to = 0;
	object = json_pack("{s:s}", "base64", text);
	free(text);
	return object;
}

json_t *json_bytes(const void *bytes, size_t len)
{
	json_t *text = json_stringn(bytes, len);

	return text ? text : json_base64(bytes, len);
}

json_t *json_version(uint64_t version)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, version);
	return json_string(text);
}

#define FAIL_BYTES 512

/* The text, in which bytes are escaped if it is not UTF-8: it may quote what was typed. */
static json_t *json_error(const char *text)
{
	char safe[4 * FAIL_BYTES], *to = safe;
	json_t *string = json_string(text);

	if (string)
		return string;
	for (; *text; text++)
		to += sprintf(to, (unsigned char)*text < 0x80 ? "%c" : "\\x%02x",
			      (unsigned char)*text);
	return json_string(safe);
}

int fail(const struct cli *c, int code, const char *fmt, ...)
{
	char text[FAIL_BYTES];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (c->kept)
		snprintf(c->kept, c->kept_len, "%s", text);
	else if (c->style == STYLE_JSON && c->line)
		out_json(json_pack("{s:o, s:i, s:I}", "error", json_error(text), "code", code,
				   "line", (json_int_t)c->line));
	else if (c->style == STYLE_JSON)
		out_json(json_pack("{s:o, s:i}", "error", json_error(text), "code", code));
	else if (c->line)
		fprintf(stderr, "xkv: line %lu: %s\n", c->line, text);
	else
		fprintf(stderr, "xkv: %s\n", text);
	return code;
}

static int code_of(int error)
{
	switch (error) {
	case 0:
		return EXIT_DONE;
	case XKV_E_MISS:
	case XKV_E_NOT_STORED:
		return EXIT_MISS;
	case XKV_E_INVALID:
	case XKV_E_BAD_KEY:
		return EXIT_USAGE;
	case XKV_E_TIMEOUT:
	case XKV_E_REFUSED:
	case XKV_E_UNREACHABLE:
	case XKV_E_HOST:
		return EXIT_UNREACHABLE;
	default:
		return EXIT_SERVER;
	}
}

int fail_xkv(const struct cli *c, int error)
{
	const char *text = error == XKV_E_SYSTEM ? strerror(errno) : xkv_strerror(error);

	/* local errors: the message does not name the server */
	if (code_of(error) == EXIT_USAGE || error == XKV_E_OUT_OF_MEMORY || error == XKV_E_SYSTEM)
		return fail(c, code_of(error), "%s", text);
	return fail(c, code_of(error), "%s port %u: %s", c->host, c->port, text);
}

int usage_error(const struct cli *c, const char *usage)
{
	return fail(c, EXIT_USAGE, "usage: %s", usage);
}

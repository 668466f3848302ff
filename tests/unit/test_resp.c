/* SPDX-License-Identifier: BSD-2-Clause */
/* The RESP parser in every split of its input, replies, and the outbox. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "loader/protocol/reply.h"
#include "loader/protocol/resp.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define LITERAL(s)   (s), sizeof(s) - 1

static const struct resp_limits open_limits = { .max_bulk = 2 << 20 };
static const struct resp_limits locked_limits = { .max_bulk = 2 << 20, .unauthenticated = true };

/* Adds "[arg|arg]" to what was parsed. */
static size_t print_command(const struct resp_parser *p, char *out, size_t at)
{
	out[at++] = '[';
	for (unsigned int i = 0; i < p->argc; i++) {
		if (i)
			out[at++] = '|';
		memcpy(out + at, p->argv[i].ptr, p->argv[i].len);
		at += p->argv[i].len;
	}
	out[at++] = ']';
	return at;
}

/*
 * Parses `data` as it would come in pieces of `step` bytes, each time in a new
 * buffer of exactly that size, so that ASan sees every byte read beyond it.
 */
static size_t parse_steps(const char *data, size_t len, size_t step,
			  const struct resp_limits *limits, char *out)
{
	struct resp_parser p = { 0 };
	enum resp_status st = RESP_MORE;
	size_t start = 0, have = 0, at = 0;
	char *rest = NULL;

	while (st != RESP_ERROR && have < len) {
		size_t more = len - have < step ? len - have : step, old = have - start;
		char *buf = malloc(old + more);

		assert_non_null(buf);
		if (old)
			memcpy(buf, rest, old);
		memcpy(buf + old, data + have, more);
		free(rest);
		rest = buf;
		have += more;
		do {
			size_t shift = (size_t)(have - start), taken;

			st = resp_parse(&p, rest, shift, limits);
			taken = p.pos;
			if (st == RESP_COMMAND)
				at = print_command(&p, out, at);
			else if (st == RESP_REFUSED)
				out[at++] = '?';
			if (st == RESP_REFUSED || st == RESP_MORE)
				taken = resp_forget(&p);
			start += taken;
			memmove(rest, rest + taken, shift - taken);
			if (st != RESP_COMMAND && st != RESP_REFUSED)
				break;
		} while (have > start);
	}
	if (st == RESP_ERROR) {
		out[at++] = '!';
		memcpy(out + at, p.error, strlen(p.error));
		at += strlen(p.error);
	}
	free(rest);
	resp_parser_free(&p);
	return at;
}

static const struct {
	const char *data;
	size_t len;
	const char *parsed;
	size_t parsed_len;
	bool locked;
} cases[] = {
	{ LITERAL("*1\r\n$4\r\nPING\r\n"), LITERAL("[PING]"), false },
	{ LITERAL("*2\r\n$4\r\nECHO\r\n$3\r\na\0b\r\n"), LITERAL("[ECHO|a\0b]"), false },
	{ LITERAL("*2\r\n$3\r\nGET\r\n$0\r\n\r\n*1\r\n$1\r\nx\r\n"), LITERAL("[GET|][x]"), false },
	{ LITERAL("*0\r\n*-1\r\nPING\r\n"), LITERAL("[][][PING]"), false },
	{ LITERAL("*1\r\n$2\r\n\r\n\r\n"), LITERAL("[\r\n]"), false },
	{ LITERAL("*3\r\n$3\r\nSET\r\n$1\r\nk"), LITERAL(""), false },
	{ LITERAL("\r\n\n  \r\nPING\r\n"), LITERAL("[][][][PING]"), false },
	{ LITERAL("SET k \"a b\\x41\\n\" 'c\\'d'\r\nGET k\n"), LITERAL("[SET|k|a bA\n|c'd][GET|k]"),
	  false },
	{ LITERAL("ECHO \"\" ''\r\n"), LITERAL("[ECHO||]"), false },
	{ LITERAL("ECHO a\"b c\"\r\n"), LITERAL("[ECHO|ab c]"), false },
	{ LITERAL("ECHO \"a\"b\r\n"), LITERAL("!unbalanced quotes in request"), false },
	{ LITERAL("ECHO \"a\r\n"), LITERAL("!unbalanced quotes in request"), false },
	{ LITERAL("*x\r\n"), LITERAL("!invalid multibulk length"), false },
	{ LITERAL("*2147483648\r\n"), LITERAL("!invalid multibulk length"), false },
	{ LITERAL("*1\r\nPING\r\n"), LITERAL("!expected '$', got 'P'"), false },
	{ LITERAL("*1\r\n$x\r\n"), LITERAL("!invalid bulk length"), false },
	{ LITERAL("*1\r\n$-1\r\n"), LITERAL("!invalid bulk length"), false },
	{ LITERAL("*1\r\n$4294967296\r\n"), LITERAL("!invalid bulk length"), false },
	{ LITERAL("*1\r\n$2097153\r\n"), LITERAL("!unauthenticated bulk length"), true },
	{ LITERAL("*1\r\n$2097153\r\nx"), LITERAL("?"), false },
	{ LITERAL("*11\r\n"), LITERAL("!unauthenticated multibulk length"), true },
	{ LITERAL("*1\r\n$16385\r\n"), LITERAL("!unauthenticated bulk length"), true },
	{ LITERAL("*10\r\n$16384\r\n"), LITERAL(""), true },
};

static void test_parser(void **state)
{
	char out[256];

	for (size_t i = 0; i < COUNT(cases); i++)
		for (size_t step = 1; step <= cases[i].len; step++) {
			size_t n =
				parse_steps(cases[i].data, cases[i].len, step,
					    cases[i].locked ? &locked_limits : &open_limits, out);

			assert_int_equal(n, cases[i].parsed_len);
			assert_memory_equal(out, cases[i].parsed, n);
		}
}

/* A command with an argument beyond the limit is passed by, wherever its bytes are cut. */
static void test_refused(void **state)
{
	static const char data[] = "*3\r\n$3\r\nSET\r\n$9\r\n*1\r\n$4\r\nx\r\n$1\r\nv\r\n"
				   "*1\r\n$4\r\nPING\r\n*1\r\n$5\r\n12345\r\n*1\r\n$0\r\n\r\n";
	struct resp_limits limits = { .max_bulk = 4 };
	char out[64];

	for (size_t step = 1; step < sizeof(data); step++) {
		size_t n = parse_steps(data, sizeof(data) - 1, step, &limits, out);

		assert_int_equal(n, strlen("?[][PING]?[][]"));
		assert_memory_equal(out, "?[][PING]?[][]", n);
	}
}

static void expect_too_long(char first, char second, const char *error)
{
	size_t len = RESP_INLINE_MAX + 16;
	struct resp_parser p = { 0 };
	char *data = malloc(len);

	assert_non_null(data);
	memset(data, '1', len);
	data[0] = first;
	if (second)
		memcpy(data, "*1\r\n$", 5);
	assert_int_equal(resp_parse(&p, data, 100, &open_limits), RESP_MORE);
	assert_int_equal(resp_parse(&p, data, len, &open_limits), RESP_ERROR);
	assert_string_equal(p.error, error);
	free(data);
	resp_parser_free(&p);
}

static void test_long_lines(void **state)
{
	expect_too_long('x', 0, "too big inline request");
	expect_too_long('*', 0, "too big mbulk count string");
	expect_too_long('*', '$', "too big bulk count string");
}

static void test_many_arguments(void **state)
{
	static const char arg[] = "$1\r\nx\r\n";
	const unsigned int n = 5000;
	size_t len = 7 + n * 7;
	struct resp_parser p = { 0 };
	char *data = malloc(len);

	assert_non_null(data);
	memcpy(data, "*5000\r\n", 7);
	for (unsigned int i = 0; i < n; i++)
		memcpy(data + 7 + i * 7, arg, 7);
	assert_int_equal(resp_parse(&p, data, len, &open_limits), RESP_COMMAND);
	assert_int_equal(p.argc, n);
	assert_int_equal(p.pos, len);
	/* A long array is not kept for the next command. */
	assert_int_equal(resp_parse(&p, data, 9, &open_limits), RESP_MORE);
	assert_true(p.cap < n);
	free(data);
	resp_parser_free(&p);
}

static void test_missing(void **state)
{
	char data[] = "*1\r\n$1000\r\nabc";
	struct resp_parser p = { 0 };

	assert_int_equal(resp_missing(&p, 0), 0);
	assert_int_equal(resp_parse(&p, data, sizeof(data) - 1, &open_limits), RESP_MORE);
	assert_int_equal(resp_missing(&p, sizeof(data) - 1), 999);
	resp_parser_free(&p);
}

/* --- replies --- */

/* Takes all of a reply in pieces of `step` bytes, as a slow socket would. */
static char *take(struct outbox *o, size_t step, size_t *len)
{
	char *all = malloc(o->bytes + 1);
	size_t want = o->bytes;
	struct iovec iov[3];

	assert_non_null(all);
	for (*len = 0; o->bytes;) {
		int n = outbox_iov(o, iov, 3);
		size_t part;

		assert_true(n > 0);
		part = iov[0].iov_len < step ? iov[0].iov_len : step;
		memcpy(all + *len, iov[0].iov_base, part);
		*len += part;
		outbox_sent(o, part);
	}
	all[*len] = '\0';
	assert_int_equal(*len, want);
	assert_null(o->head);
	return all;
}

static void build(struct reply *r)
{
	reply_ok(r);
	reply_int(r, INT64_MIN);
	reply_bulk(r, "a\0b", 3);
	reply_bulk(r, NULL, 0);
	reply_null(r);
	reply_array(r, 0);
	reply_map(r, 1);
	reply_text(r, "k");
	reply_set(r, 2);
	reply_verbatim(r, "text", 4);
	reply_error(r, "ERR a\r\nb %d", 1);
}

static void test_reply_types(void **state)
{
	static const char v2[] =
		"+OK\r\n:-9223372036854775808\r\n$3\r\na\0b\r\n$0\r\n\r\n$-1\r\n*0\r\n"
		"*2\r\n$1\r\nk\r\n*2\r\n$4\r\ntext\r\n-ERR a  b 1\r\n";
	static const char v3[] =
		"+OK\r\n:-9223372036854775808\r\n$3\r\na\0b\r\n$0\r\n\r\n_\r\n*0\r\n"
		"%1\r\n$1\r\nk\r\n~2\r\n=8\r\ntxt:text\r\n-ERR a  b 1\r\n";
	struct reply r;
	size_t len;
	char *text;

	for (enum protocol p = PROTOCOL_RESP2; p <= PROTOCOL_RESP3; p++) {
		reply_init(&r, p, 0);
		build(&r);
		text = take(&r.out, 7, &len);
		assert_int_equal(len, p == PROTOCOL_RESP2 ? sizeof(v2) - 1 : sizeof(v3) - 1);
		assert_memory_equal(text, p == PROTOCOL_RESP2 ? v2 : v3, len);
		free(text);
	}
}

static void test_large_replies(void **state)
{
	const size_t large = 1 << 20;
	char *value = calloc(1, large), *text;
	struct reply r, rest;
	size_t len;

	assert_non_null(value);
	reply_init(&r, PROTOCOL_RESP2, 0);
	reply_part(&rest, &r);
	for (int i = 0; i < 20; i++)
		reply_bulk(&rest, value, i % 2 ? large : 100);
	reply_array(&r, 20);
	reply_splice(&r, &rest);
	assert_int_equal(rest.out.bytes, 0);
	reply_status(&r, "END");
	text = take(&r.out, 100000, &len);
	assert_int_equal(len, 5 + 10 * (10 + large + 2) + 10 * (6 + 100 + 2) + 6);
	assert_memory_equal(text, "*20\r\n$100\r\n", 11);
	assert_memory_equal(text + len - 6, "+END\r\n", 6);
	free(text);
	free(value);
}

static void test_limit(void **state)
{
	char value[1000] = "";
	struct reply r, rest;

	reply_init(&r, PROTOCOL_RESP2, 10000);
	for (int i = 0; i < 9; i++)
		reply_bulk(&r, value, sizeof(value));
	assert_false(r.out.failed);
	reply_bulk(&r, value, sizeof(value));
	assert_true(r.out.failed);
	assert_int_equal(r.out.bytes, 0);
	reply_status(&r, "OK"); /* nothing more is added */
	assert_int_equal(r.out.bytes, 0);
	reply_init(&r, PROTOCOL_RESP2, 1500);
	reply_init(&rest, PROTOCOL_RESP2, 0);
	reply_bulk(&r, value, sizeof(value));
	reply_bulk(&rest, value, sizeof(value));
	reply_splice(&r, &rest);
	assert_true(r.out.failed);
	assert_null(rest.out.head);
	reply_free(&r);
}

/* A copy shares large chunks: it stays when what it was made of is gone, and is sent by itself. */
static void test_copies(void **state)
{
	const size_t large = 100000;
	char *value = malloc(large), *first, *second;
	struct reply r, copy[2];
	size_t len;

	assert_non_null(value);
	memset(value, 'v', large);
	reply_init(&r, PROTOCOL_RESP2, 0);
	reply_init(&copy[0], PROTOCOL_RESP2, 0);
	reply_init(&copy[1], PROTOCOL_RESP2, large);
	reply_bulk(&r, value, large);
	reply_status(&copy[0], "BEGIN");
	reply_copy(&copy[0], &r);
	reply_copy(&copy[0], &r);
	reply_copy(&copy[1], &r);
	assert_true(copy[1].out.failed); /* beyond its limit */
	reply_init(&copy[1], PROTOCOL_RESP2, 0);
	reply_copy(&copy[1], &copy[0]); /* of a copy */
	reply_free(&r);
	reply_status(&copy[0], "END");
	first = take(&copy[0].out, 7777, &len);
	assert_int_equal(len, 8 + 2 * (9 + large + 2) + 6);
	assert_memory_equal(first + len - 9, "v\r\n+END\r\n", 9);
	second = take(&copy[1].out, 100, &len);
	assert_int_equal(len, 8 + 2 * (9 + large + 2));
	assert_memory_equal(second, first, len);
	free(first);
	free(second);
	free(value);
}

static int free_cache(void **state)
{
	outbox_cache_free();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parser),	      cmocka_unit_test(test_refused),
		cmocka_unit_test(test_long_lines),    cmocka_unit_test(test_many_arguments),
		cmocka_unit_test(test_missing),	      cmocka_unit_test(test_reply_types),
		cmocka_unit_test(test_large_replies), cmocka_unit_test(test_limit),
		cmocka_unit_test(test_copies),
	};

	return cmocka_run_group_tests(tests, NULL, free_cache);
}

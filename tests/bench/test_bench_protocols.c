/* SPDX-License-Identifier: BSD-2-Clause */
/* The load generator's other protocols: what it asks, and replies of servers good, slow and
 * hostile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/load/entry.h"
#include "bench/load/protocol.h"

static const struct options o = { .key_size = { .min = 16, .max = 16 },
				  .value_size = { .min = 8, .max = 8 },
				  .verify = true };

static uint32_t key[REQUEST_KEYS_MAX];
static struct client client;
static struct request r;
static struct stats stats;
static uint8_t buf[1 << 18];

/* Makes r a request of the keys 0, 1, 2 ... and encodes it.  Returns the text. */
static const char *ask(const struct protocol *p, enum op op, unsigned int keys)
{
	size_t len;

	for (unsigned int i = 0; i < REQUEST_KEYS_MAX; i++)
		key[i] = op == OP_SCAN ? 0 : i;
	r = (struct request){ .client = &client, .op = op, .id = 0xabcd, .keys = keys, .key = key };
	memset(&stats, 0, sizeof(stats));
	len = p->encode(&o, buf, &r, 7);
	assert_true(len <= protocol_room(p, &o, &r));
	buf[len] = 0;
	return (const char *)buf;
}

/* A value that verification takes for key number n. */
static const char *value(uint32_t n)
{
	static uint8_t v[16];

	v[entry_write_value(&o, v, n, 1)] = 0;
	assert_int_equal(strlen((char *)v), 8);
	return (const char *)v;
}

/* The whole reply is understood; no part of it is, and nothing is read behind a part's end. */
static enum outcome take(const struct protocol *p, const char *reply)
{
	size_t len = strlen(reply);

	for (size_t cut = 0; cut < len; cut++) {
		uint8_t *part = malloc(cut ? cut : 1); /* so that ASan sees a step too far */

		assert_non_null(part);
		memcpy(part, reply, cut);
		if (p->measure(&r, part, cut))
			fail_msg("%zu bytes of %s are a reply", cut, reply);
		free(part);
	}
	assert_int_equal(p->measure(&r, (const uint8_t *)reply, len), len);
	return p->take(&o, &stats, &r, (const uint8_t *)reply, len);
}

static void refused(const struct protocol *p, const char *reply)
{
	if (p->measure(&r, (const uint8_t *)reply, strlen(reply)) != -EBADMSG)
		fail_msg("accepted: %s", reply);
}

/* Any byte of a reply changed to any other: whatever comes of it stays inside the reply. */
static void change_every_byte(const struct protocol *p, enum op op, unsigned int keys,
			      const char *reply)
{
	size_t len = strlen(reply);

	for (size_t i = 0; i < len * 255; i++) {
		uint8_t *exact = malloc(len);
		ssize_t n;

		assert_non_null(exact);
		memcpy(exact, reply, len);
		exact[i / 255] ^= 1 + i % 255;
		ask(p, op, keys);
		n = p->measure(&r, exact, len);
		assert_true(n <= (ssize_t)len);
		if (n > 0)
			p->take(&o, &stats, &r, exact, n);
		free(exact);
	}
}

static void resp_commands(void **state)
{
	const char *set = ask(&protocol_resp, OP_SET, 2);

	assert_memory_equal(set, "*5\r\n$4\r\nMSET\r\n$16\r\nkey:000000000000\r\n$8\r\n", 41);
	assert_memory_equal(set + 41 + 8, "\r\n$16\r\nkey:000000000001\r\n$8\r\n", 29);
	set = ask(&protocol_resp, OP_SET, 1);
	assert_memory_equal(set, "*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000000\r\n$8\r\n", 40);
	assert_string_equal(set + 40 + 8, "\r\n");
	assert_string_equal(ask(&protocol_resp, OP_GET, 1),
			    "*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000000\r\n");
	assert_string_equal(
		ask(&protocol_resp, OP_DELETE, 2),
		"*3\r\n$3\r\nDEL\r\n$16\r\nkey:000000000000\r\n$16\r\nkey:000000000001\r\n");
	assert_string_equal(
		ask(&protocol_resp, OP_SCAN, 2),
		"*3\r\n$4\r\nMGET\r\n$16\r\nkey:000000000000\r\n$16\r\nkey:000000000001\r\n");
	ask(&protocol_resp, OP_SCAN, 250);
	assert_int_equal(r.asked, 100);
}

static void resp_replies(void **state)
{
	char reply[256];

	ask(&protocol_resp, OP_GET, 1);
	snprintf(reply, sizeof(reply), "$8\r\n%s\r\n", value(0));
	assert_int_equal(take(&protocol_resp, reply), DONE);
	assert_int_equal(stats.count[STAT_HITS], 1);
	assert_int_equal(stats.count[STAT_CORRUPT], 0);
	ask(&protocol_resp, OP_GET, 1);
	assert_int_equal(take(&protocol_resp, "$3\r\nbad\r\n"), DONE);
	assert_int_equal(stats.count[STAT_CORRUPT], 1);
	ask(&protocol_resp, OP_GET, 1);
	assert_int_equal(take(&protocol_resp, "$-1\r\n"), DONE);
	assert_int_equal(stats.count[STAT_MISSES], 1);
	ask(&protocol_resp, OP_GET, 3);
	snprintf(reply, sizeof(reply), "*3\r\n$-1\r\n$8\r\n%s\r\n$-1\r\n", value(1));
	assert_int_equal(take(&protocol_resp, reply), DONE);
	assert_int_equal(stats.count[STAT_MISSES], 2);
	assert_int_equal(stats.count[STAT_HITS], 1);
	assert_int_equal(stats.count[STAT_CORRUPT], 0);
	assert_int_equal(stats.count[STAT_OPS], 3);
	ask(&protocol_resp, OP_SET, 2);
	assert_int_equal(take(&protocol_resp, "+OK\r\n"), DONE);
	assert_int_equal(stats.count[STAT_SETS], 2);
	ask(&protocol_resp, OP_DELETE, 2);
	assert_int_equal(take(&protocol_resp, ":1\r\n"), DONE);
	assert_int_equal(stats.count[STAT_DELETES], 2);
}

static void resp_errors(void **state)
{
	ask(&protocol_resp, OP_SET, 2);
	assert_int_equal(take(&protocol_resp, "-OOM command not allowed\r\n"), REFUSED);
	assert_int_equal(stats.count[STAT_NO_MEMORY], 2);
	ask(&protocol_resp, OP_GET, 1);
	assert_int_equal(take(&protocol_resp, "-ERR no\r\n"), REFUSED);
	assert_int_equal(stats.count[STAT_REFUSED], 1);
	/* Replies to something else than was asked. */
	ask(&protocol_resp, OP_GET, 1);
	assert_int_equal(take(&protocol_resp, "+OK\r\n"), BROKEN);
	ask(&protocol_resp, OP_GET, 2);
	assert_int_equal(take(&protocol_resp, "$1\r\nx\r\n"), BROKEN);
	ask(&protocol_resp, OP_GET, 2);
	assert_int_equal(take(&protocol_resp, "*1\r\n$-1\r\n"), BROKEN);
	ask(&protocol_resp, OP_SET, 1);
	assert_int_equal(take(&protocol_resp, "+QUEUED\r\n"), BROKEN);
	assert_int_equal(stats.count[STAT_MALFORMED], 1);
}

static void hostile_resp(void **state)
{
	static const char *const bad[] = {
		"x",	    "$1\r\nxy\r\n", "$1048577\r\n", "$99999999999999999999\r\n",
		"$-2\r\n",  "$\r\n",	    "$ 1\r\n",	    "$+1\r\n",
		"$1\n",	    ":1x\r\n",	    ":\r\n",	    ":-\r\n",
		"*101\r\n", "*-1\r\n",	    "*1\r\n*1\r\n", "*1\r\n?\r\n",
		"\r\n",
	};

	ask(&protocol_resp, OP_GET, 1);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		refused(&protocol_resp, bad[i]);
	/* A line without end. */
	memset(buf, 'x', 5000);
	buf[0] = '+';
	buf[5000] = 0;
	refused(&protocol_resp, (char *)buf);
	change_every_byte(&protocol_resp, OP_GET, 2, "*2\r\n$4\r\nabcd\r\n$-1\r\n");
	change_every_byte(&protocol_resp, OP_GET, 1, "$4\r\nabcd\r\n");
	change_every_byte(&protocol_resp, OP_SET, 1, "+OK\r\n");
	change_every_byte(&protocol_resp, OP_DELETE, 1, ":1\r\n");
}

static void memcached_commands(void **state)
{
	const char *set = ask(&protocol_memcached, OP_SET, 2);

	assert_memory_equal(set, "set key:000000000000 0 0 8\r\n", 28);
	assert_memory_equal(set + 28 + 8, "\r\nset key:000000000001 0 0 8\r\n", 30);
	assert_string_equal(ask(&protocol_memcached, OP_GET, 2),
			    "get key:000000000000 key:000000000001\r\n");
	assert_string_equal(ask(&protocol_memcached, OP_DELETE, 2),
			    "delete key:000000000000\r\ndelete key:000000000001\r\n");
	ask(&protocol_memcached, OP_SCAN, 250);
	assert_int_equal(r.asked, 100);
}

static void memcached_replies(void **state)
{
	char reply[256];

	ask(&protocol_memcached, OP_GET, 4);
	snprintf(reply, sizeof(reply),
		 "VALUE key:000000000001 0 8\r\n%s\r\nVALUE key:000000000002 7 3\r\nbad\r\nEND\r\n",
		 value(1));
	assert_int_equal(take(&protocol_memcached, reply), DONE);
	assert_int_equal(stats.count[STAT_HITS], 2);
	assert_int_equal(stats.count[STAT_MISSES], 2);
	assert_int_equal(stats.count[STAT_CORRUPT], 1);
	assert_int_equal(stats.count[STAT_OPS], 4);
	ask(&protocol_memcached, OP_GET, 1);
	assert_int_equal(take(&protocol_memcached, "END\r\n"), DONE);
	assert_int_equal(stats.count[STAT_MISSES], 1);
	ask(&protocol_memcached, OP_SCAN, 150);
	assert_int_equal(take(&protocol_memcached, "END\r\n"), AGAIN);
	assert_int_equal(r.keys, 50);
	ask(&protocol_memcached, OP_SET, 3);
	assert_int_equal(take(&protocol_memcached, "STORED\r\nSERVER_ERROR out of memory storing "
						   "object\r\nNOT_STORED\r\n"),
			 DONE);
	assert_int_equal(stats.count[STAT_SETS], 1);
	assert_int_equal(stats.count[STAT_NO_MEMORY], 1);
	assert_int_equal(stats.count[STAT_REFUSED], 1);
	ask(&protocol_memcached, OP_DELETE, 2);
	assert_int_equal(take(&protocol_memcached, "DELETED\r\nNOT_FOUND\r\n"), DONE);
	assert_int_equal(stats.count[STAT_DELETES], 2);
}

static void hostile_memcached(void **state)
{
	static const char *const bad[] = {
		"VALUE \r\n",
		"VALUE  0 1\r\n",
		"VALUE k\r\n",
		"VALUE k 0\r\n",
		"VALUE k 0 \r\n",
		"VALUE k 0 -1\r\n",
		"VALUE k 0 1x\r\n",
		"VALUE k x 1\r\n",
		"VALUE k 0 1\r\nabc\r",
		"VALUE k 0 1048577\r\n",
		"VALUE k 0 1 1 1\r\n",
		"END\n",
		"VALUE k 0 99999999999999999999999\r\n",
	};

	ask(&protocol_memcached, OP_GET, 1);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		refused(&protocol_memcached, bad[i]);
	memset(buf, 'x', 3000);
	buf[3000] = 0;
	refused(&protocol_memcached, (char *)buf);
	/* Values that nobody asked for, or twice. */
	ask(&protocol_memcached, OP_GET, 1);
	assert_int_equal(take(&protocol_memcached, "VALUE k 0 1\r\na\r\nEND\r\n"), BROKEN);
	ask(&protocol_memcached, OP_GET, 1);
	assert_int_equal(take(&protocol_memcached, "VALUE key:000000000000 0 1\r\na\r\n"
						   "VALUE key:000000000000 0 1\r\na\r\nEND\r\n"),
			 BROKEN);
	ask(&protocol_memcached, OP_GET, 1);
	assert_int_equal(take(&protocol_memcached, "STORED\r\n"), BROKEN);
	ask(&protocol_memcached, OP_SET, 1);
	assert_int_equal(take(&protocol_memcached, "END\r\n"), BROKEN);
	change_every_byte(
		&protocol_memcached, OP_GET, 2,
		"VALUE key:000000000000 0 3\r\nabc\r\nVALUE key:000000000001 0 0\r\n\r\nEND\r\n");
	change_every_byte(&protocol_memcached, OP_SET, 2, "STORED\r\nSTORED\r\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(resp_commands),      cmocka_unit_test(resp_replies),
		cmocka_unit_test(resp_errors),	      cmocka_unit_test(hostile_resp),
		cmocka_unit_test(memcached_commands), cmocka_unit_test(memcached_replies),
		cmocka_unit_test(hostile_memcached),
	};

	return cmocka_run_group_tests_name("load generator, protocols", tests, NULL, NULL);
}

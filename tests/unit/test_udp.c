// SPDX-License-Identifier: BSD-2-Clause
/*
 * The UDP socket of xkvd, on loopback in a network namespace of its own.  In place of the store is
 * what each datagram costs, by a clock that only the test moves.  A reply is a copy of its request.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "loader/net/stats.h"
#include "loader/net/udp.h"
#include "loader/persist/writelog.h"

#define PORT 6379

static struct xkv_config shared = { .payload4 = 1472 };
static struct rules rules = { .shared = &shared };
static uint64_t stat[STATS];
static struct durations durations;
static struct udp udp;
static int client;

static uint64_t monotonic_ns = 1000000000; /* CLOCK_MONOTONIC, as everybody here sees it */
static time_t set_forward;		   /* of CLOCK_REALTIME: seconds */
static uint64_t cost_ns;		   /* of a datagram */
static char served[64];			   /* the first byte of each datagram; the first ones */
static size_t served_count;
static uint64_t changed, synced; /* positions in the change feed; the former 0: nobody waits */

static uint8_t flags; /* in the header of what send_one() sends */

/* ---- in place of the C library's and the store's -------------------------- */

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int ret = (int)syscall(SYS_clock_gettime, clock, now);

	if (clock == CLOCK_MONOTONIC) {
		now->tv_sec = (time_t)(monotonic_ns / 1000000000);
		now->tv_nsec = (long)(monotonic_ns % 1000000000);
	}
	if (clock == CLOCK_REALTIME)
		now->tv_sec += set_forward;
	return ret;
}

void store_sender(struct store_ctx *ctx, const struct sockaddr *from)
{
}

int store_datagram(struct store_ctx *ctx, const void *req, size_t req_len, void *reply,
		   size_t reply_max, size_t reply_allowed)
{
	monotonic_ns += cost_ns;
	if (served_count < sizeof(served) - 1)
		served[served_count] = *(const char *)req;
	served_count++;
	memcpy(reply, req, req_len);
	return (int)req_len;
}

bool store_goes_up(const struct store_ctx *ctx)
{
	return false;
}

void store_record(struct store_ctx *ctx, const void *req, size_t req_len, const void *reply,
		  size_t reply_len)
{
}

uint64_t writelog_sync_soon(void)
{
	return changed;
}

bool writelog_has(uint64_t position)
{
	return shared.logged && synced >= position;
}

uint64_t writelog_awaits(unsigned int replies, bool *writers)
{
	*writers = false;
	return changed > synced ? changed : 0;
}

bool writelog_is_synced(uint64_t position)
{
	return synced >= position;
}

/* ---- fixture -------------------------------------------------------------- */

static int open_udp(void **state)
{
	const struct config cfg = { .port = PORT, .interface = "" };
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_port = htons(PORT),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	char err[256] = "";

	memset(stat, 0, sizeof(stat));
	memset(&durations, 0, sizeof(durations));
	memset(served, 0, sizeof(served));
	served_count = 0;
	changed = synced = 0;
	shared.logged = flags = 0;
	cost_ns = 0;
	set_forward = 0;
	assert_int_equal(udp_open(&udp, &cfg, &rules, NULL, stat, &durations, err, sizeof(err)), 0);
	client = socket(AF_INET, SOCK_DGRAM, 0);
	assert_int_equal(connect(client, (struct sockaddr *)&to, sizeof(to)), 0);
	return 0;
}

static int close_udp(void **state)
{
	udp_close(&udp);
	close(client);
	return 0;
}

/* On loopback a datagram has arrived when send() returns. */
static void send_each(const char *bytes)
{
	for (; *bytes; bytes++)
		assert_int_equal(send(client, bytes, 1, 0), 1);
}

/* The bytes that the client has received. */
static const char *replies(void)
{
	static char got[64];
	size_t count = 0;

	while (recv(client, &got[count], 1, MSG_DONTWAIT) == 1)
		count++;
	got[count] = '\0';
	return got;
}

/* ---- cases ---------------------------------------------------------------- */

/* Datagrams that take long do not keep others from their turns; none is lost or overtaken. */
static void test_turns(void **state)
{
	static const char *const turns[] = { "abc", "abcdef", "abcdefghi", "abcdefghij" };

	cost_ns = 400000;
	send_each("abcdefghij");
	for (int i = 0; i < 4; i++) {
		assert_int_equal(udp_readable(&udp.socket[0]), i < 3);
		assert_string_equal(served, turns[i]);
	}
	assert_string_equal(replies(), "abcdefghij");
	assert_int_equal(durations.count, 10);
	assert_int_equal(durations.ns, 10 * 400000);
	assert_int_equal(durations.times[time_bucket(400000)], 10);
}

/* One that takes longer than a turn has one of its own; what came later waits behind the rest. */
static void test_long_ones(void **state)
{
	cost_ns = 5000000;
	send_each("ab");
	assert_true(udp_readable(&udp.socket[0]));
	assert_string_equal(served, "a");
	send_each("c");
	cost_ns = 0;
	assert_false(udp_readable(&udp.socket[0]));
	assert_string_equal(served, "abc");
}

/*
 * What has waited for more than 5 s is not done any more: the client has given up, or the record of
 * an earlier copy is about to end.  A clock that is set back is no reason to drop anything.
 */
static void test_late_ones(void **state)
{
	send_each("ab");
	set_forward = 6;
	assert_false(udp_readable(&udp.socket[0]));
	assert_int_equal(stat[STAT_UDP_LATE], 2);
	set_forward = 0;
	send_each("c");
	assert_false(udp_readable(&udp.socket[0]));
	send_each("d");
	set_forward = -3600;
	assert_false(udp_readable(&udp.socket[0]));
	assert_string_equal(served, "cd");
	assert_string_equal(replies(), "cd");
	assert_int_equal(stat[STAT_UDP_LATE], 2);
}

/* One that waits in xkvd for its turn becomes late as well. */
static void test_late_in_a_batch(void **state)
{
	cost_ns = 5000000;
	send_each("ab");
	assert_true(udp_readable(&udp.socket[0]));
	set_forward = 6;
	assert_false(udp_readable(&udp.socket[0]));
	assert_string_equal(served, "a");
	assert_int_equal(stat[STAT_UDP_LATE], 1);
}

/* One that begins with this byte, and is a request as well as a reply of one operation. */
static void send_one(char name, uint8_t opcode, uint8_t status, size_t len)
{
	char bytes[XKV_PAYLOAD_MAX4] = { 0 };
	struct xkv_hdr *hdr = (struct xkv_hdr *)bytes;
	struct xkv_result *r = (struct xkv_result *)(hdr + 1);

	hdr->count = 1;
	hdr->flags = flags;
	*r = (struct xkv_result){ .opcode = opcode, .status = status };
	bytes[0] = name;
	assert_int_equal(send(client, bytes, len, 0), len);
	assert_false(udp_readable(&udp.socket[0]));
}

#define ONE_RESULT (sizeof(struct xkv_hdr) + sizeof(struct xkv_result))

/* Replies to changes wait for the disk; to reads, and to changes that are refused, they do not. */
static void test_held(void **state)
{
	send_one('0', XKV_OP_SET, XKV_OK, ONE_RESULT); /* without `always` */
	assert_string_equal(replies(), "0");
	changed = 1;
	send_one('a', XKV_OP_SET, XKV_OK, ONE_RESULT);
	send_one('b', XKV_OP_DELETE, XKV_MISS, ONE_RESULT);
	changed = 2;
	send_one('c', XKV_OP_APPEND, XKV_OK, ONE_RESULT);
	send_one('d', XKV_OP_GET, XKV_OK, ONE_RESULT);
	send_one('e', XKV_OP_SET, XKV_READ_ONLY, ONE_RESULT);
	assert_false(udp_send_held(&udp));
	assert_string_equal(replies(), "de");
	assert_int_equal(udp.held_count, 3);
	synced = 1;
	assert_false(udp_send_held(&udp));
	assert_string_equal(replies(), "ab");
	synced = 2;
	send_one('f', XKV_OP_INCR, XKV_OK, ONE_RESULT);
	assert_string_equal(replies(), "f");
	assert_false(udp_send_held(&udp));
	assert_string_equal(replies(), "c");
	assert_int_equal(udp.held_bytes, 0);
}

/* Who asks for it waits, whatever `appendfsync` says; who still does when the log ends, in vain. */
static void test_held_durable(void **state)
{
	flags = XKV_F_DURABLE;
	shared.logged = 1;
	changed = 1;
	send_one('a', XKV_OP_GET, XKV_OK, ONE_RESULT);
	send_one('b', XKV_OP_SET, XKV_READ_ONLY, ONE_RESULT);
	assert_false(udp_send_held(&udp));
	assert_string_equal(replies(), "b");
	synced = 1;
	send_one('c', XKV_OP_SET, XKV_OK, ONE_RESULT);
	assert_string_equal(replies(), "c");
	assert_false(udp_send_held(&udp));
	assert_string_equal(replies(), "a");
	changed = 2;
	send_one('d', XKV_OP_SET, XKV_OK, ONE_RESULT);
	shared.logged = 0;
	assert_false(udp_send_held(&udp));
	assert_string_equal(replies(), "");
	assert_int_equal(udp.held_count, 0);
}

/* "REPEATED", without a result, says of a change that it was made. */
static void test_held_repeated(void **state)
{
	struct xkv_hdr hdr = { .magic = 'r', .status = XKV_REPEATED };

	changed = 1;
	assert_int_equal(send(client, &hdr, sizeof(hdr), 0), sizeof(hdr));
	assert_false(udp_readable(&udp.socket[0]));
	assert_string_equal(replies(), "");
	assert_int_equal(udp.held_count, 1); /* and is forgotten when the socket is closed */
}

/* Memory is limited: then changes are not made, as if they had not arrived; reads are answered. */
static void test_crowded(void **state)
{
	unsigned int held;

	changed = 1;
	while (!stat[STAT_UDP_CROWDED])
		send_one('a', XKV_OP_SET, XKV_OK, XKV_PAYLOAD_MAX4);
	held = udp.held_count;
	assert_in_range(udp.held_bytes, 32 << 20, (32 << 20) + 2048);
	assert_int_equal(served_count, held);
	send_one('a', XKV_OP_INCR, XKV_OK, ONE_RESULT);
	send_one('b', XKV_OP_GET, XKV_OK, ONE_RESULT);
	assert_int_equal(stat[STAT_UDP_CROWDED], 2);
	assert_int_equal(udp.held_count, held);
	assert_string_equal(replies(), "b");
	synced = 1;
	assert_true(udp_send_held(&udp)); /* not all at once */
	assert_int_equal(udp.held_count, held - 256);
	send_one('c', XKV_OP_INCR, XKV_OK, ONE_RESULT);
	assert_int_equal(stat[STAT_UDP_CROWDED], 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_turns, open_udp, close_udp),
		cmocka_unit_test_setup_teardown(test_long_ones, open_udp, close_udp),
		cmocka_unit_test_setup_teardown(test_late_ones, open_udp, close_udp),
		cmocka_unit_test_setup_teardown(test_late_in_a_batch, open_udp, close_udp),
		cmocka_unit_test_setup_teardown(test_held, open_udp, close_udp),
		cmocka_unit_test_setup_teardown(test_held_durable, open_udp, close_udp),
		cmocka_unit_test_setup_teardown(test_held_repeated, open_udp, close_udp),
		cmocka_unit_test_setup_teardown(test_crowded, open_udp, close_udp),
	};

	if (geteuid() || unshare(CLONE_NEWNET) || system("ip link set dev lo up")) {
		printf("needs root and network namespaces\n");
		return 77;
	}
	return cmocka_run_group_tests_name("udp", tests, NULL, NULL);
}

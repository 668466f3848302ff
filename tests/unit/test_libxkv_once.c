// SPDX-License-Identifier: BSD-2-Clause
/* libxkv: changes that are done only once, whatever is sent again, and the sessions for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <endian.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "bpf/proto.h"
#include "client/xkv.h"
#include "fakeserver.h"

/*
 * libxkv's clocks and its send(), by --wrap: after this many changes that it has sent the process
 * is stopped, or the machine suspended, for a minute.
 */
static struct {
	unsigned int sends_left;
	bool suspended, answered;   /* until an answer is there, it goes on */
	time_t boot_s, monotonic_s; /* that the clocks are ahead */
} stop_after;

int __wrap_clock_gettime(clockid_t clock, struct timespec *ts);
int __real_clock_gettime(clockid_t clock, struct timespec *ts);
ssize_t __wrap_send(int fd, const void *buf, size_t len, int flags);
ssize_t __real_send(int fd, const void *buf, size_t len, int flags);

int __wrap_clock_gettime(clockid_t clock, struct timespec *ts)
{
	int rc = __real_clock_gettime(clock, ts);

	ts->tv_sec += clock == CLOCK_BOOTTIME ? stop_after.boot_s : stop_after.monotonic_s;
	return rc;
}

ssize_t __wrap_send(int fd, const void *buf, size_t len, int flags)
{
	ssize_t rc = __real_send(fd, buf, len, flags);
	const uint8_t *request = buf;

	if (request[ops_at(request)] != XKV_OP_SESSION && stop_after.sends_left &&
	    !--stop_after.sends_left) {
		if (stop_after.answered)
			poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, 10000);
		stop_after.boot_s = 60;
		stop_after.monotonic_s = stop_after.suspended ? 0 : 60;
	}
	return rc;
}

/* What identifies the last changes that the server has seen: it keeps no more than that. */
#define CHANGES 64

struct once {
	uint64_t session[CHANGES], id[CHANGES];
	unsigned int seen;
	unsigned int status; /* of a header that refuses, for this many more requests: */
	unsigned int refusals;
};

static struct once once;

/* Notes the change; it has to be one that can be recognised. */
static void note_change(const struct datagram *req)
{
	unsigned int i = once.seen++;

	assert_true(i < CHANGES);
	assert_true(req->byte[3] & XKV_F_ONCE);
	assert_int_equal(1, req->byte[4]);
	memcpy(&once.session[i], req->byte + session_at(req->byte), sizeof(once.session[i]));
	memcpy(&once.id[i], req->byte + 8, sizeof(once.id[i]));
	once.id[i] = be64toh(once.id[i]);
	assert_int_equal(0, once.id[i] % 8);
	assert_true(once.session[i]);
}

static void refuse(struct fake *f, const struct datagram *req, unsigned int status)
{
	reply_begin(&f->reply, req);
	header(&f->reply)->status = (uint8_t)status;
	send_bytes(f, &f->reply);
}

/* Refuses as many requests as `once` says, then answers. */
static void handle_refusals(struct fake *f, const struct datagram *req)
{
	if (req->byte[3] & XKV_F_ONCE)
		note_change(req);
	if (once.refusals && once.refusals--)
		refuse(f, req, once.status);
	else
		answer(f, req);
}

static struct xkv *open_once(handler_fn *handler, const struct xkv_options *opts,
			     unsigned int status, unsigned int refusals)
{
	once = (struct once){ .status = status, .refusals = refusals };
	start(handler);
	return open_with(opts);
}

/* How many copies of the last change have come. */
static unsigned int copies_seen(void)
{
	unsigned int n = 0;

	while (n < once.seen && once.id[once.seen - n - 1] == once.id[once.seen - 1])
		n++;
	return n;
}

/* Only from the third copy on a change is answered. */
static void handle_third(struct fake *f, const struct datagram *req)
{
	note_change(req);
	if (copies_seen() >= 3)
		answer(f, req);
}

/*
 * Copies of a change are the same datagram, and changes follow each other in one slot.  A machine
 * that stalls makes more copies.
 */
static void test_once(void **state)
{
	struct xkv *h = open_once(handle_third, &eager, 0, 0), *other = open_with(&eager);
	unsigned int first[4] = { 0 }, changes = 0;
	struct xkv_reply r;

	assert_int_equal(0, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_true(r.sent >= 3);
	assert_int_equal(0, xkv_incr(h, "k", 1, -5, 0, &r));
	assert_int_equal(-5, r.number);
	assert_int_equal(0, xkv_persist(h, "k", 1));
	assert_int_equal(0, xkv_getdel(other, "k", 1, &r));
	xkv_close(other);
	close_once(h);
	for (unsigned int i = 0; i < once.seen; i++) {
		if (i && once.id[i] == once.id[i - 1]) {
			assert_true(once.session[i] == once.session[i - 1]);
			continue;
		}
		assert_true(changes < 4);
		first[changes++] = i;
	}
	assert_int_equal(4, changes);
	for (unsigned int i = 1; i < 4; i++) {
		assert_true(first[i] - first[i - 1] >= 3);
		assert_true((once.session[first[i]] == once.session[0]) == (i < 3));
	}
	assert_int_equal(once.id[first[1]], once.id[0] + 8);
	assert_int_equal(once.id[first[2]], once.id[first[1]] + 8);
}

static void drop(struct fake *f, const struct datagram *req)
{
	note_change(req);
}

/* The server has forgotten a change after a minute, and would execute a copy as another one. */
static void test_once_stopped(void **state)
{
	struct xkv_options opts = eager;
	struct xkv_reply r;
	struct xkv *h;

	for (int suspended = 0; suspended < 2; suspended++) {
		opts.timeout_ms = suspended ? 300 : 60300;
		h = open_once(drop, &opts, 0, 0);
		stop_after.sends_left = 2;
		stop_after.suspended = suspended;
		stop_after.answered = false;
		assert_int_equal(XKV_E_TIMEOUT, xkv_incr(h, "k", 1, 1, 0, &r));
		stop_after.boot_s = stop_after.monotonic_s = 0;
		assert_in_range(r.sent, 1, 2); /* 1 if this machine stalls */
		close_once(h);
	}
}

/* A server that does not know the flag: from then on without it, and with its room. */
static void handle_old(struct fake *f, const struct datagram *req)
{
	f->value++;
	if (req->byte[3] & XKV_F_ONCE)
		refuse(f, req, XKV_BAD_REQUEST);
	else
		answer(f, req);
}

static void test_once_old_server(void **state)
{
	struct xkv *h = open_once(handle_old, &patient, 0, 0);
	struct xkv_cmd sets[3];
	struct xkv_reply r;

	get_ok(h, "key", &r); /* reads do not tell */
	assert_int_equal(1416, xkv_value_max(h, 1));
	assert_int_equal(0, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_int_equal(1, r.sent);
	assert_int_equal(3, server.value);
	assert_int_equal(1424, xkv_value_max(h, 1));
	assert_int_equal(0, xkv_delete(h, "k", 1, 0, &r));
	assert_int_equal(4, server.value);
	for (int i = 0; i < 3; i++)
		sets[i] = (struct xkv_cmd){ .command = XKV_CMD_SET, .key = "k", .key_len = 1 };
	assert_int_equal(0, xkv_batch(h, sets, 3)); /* in one datagram */
	assert_int_equal(5, server.value);
	close_once(h);
}

static void test_once_off(void **state)
{
	struct xkv_options opts = patient;
	struct xkv *h;

	start(answer);
	opts.once = 1;
	assert_null(xkv_open("127.0.0.1", server.port, &opts, NULL));
	opts.once = -1;
	h = open_with(&opts);
	assert_int_equal(1424, xkv_value_max(h, 1));
	assert_int_equal(0, xkv_append(h, "k", 1, "v", 1, 0, NULL));
	assert_int_equal(0, server.last.byte[3]);
	close_once(h);
}

/* Notes which commands came together. */
static char datagrams[64];

static void handle_note(struct fake *f, const struct datagram *req)
{
	size_t at = ops_at(req->byte), end = be16toh(header((struct datagram *)req)->length);
	struct found o;

	while (read_op(req->byte, end, &at, &o))
		snprintf(datagrams + strlen(datagrams), sizeof(datagrams) - strlen(datagrams), "%u",
			 o.op.opcode);
	strcat(datagrams, req->byte[3] & XKV_F_ONCE ? "! " : " ");
	answer(f, req);
}

/* In a batch, reads share datagrams and changes do not. */
static void test_once_batch(void **state)
{
	static const int commands[] = { 2, 8, 3, 2, 2, 6, 5, 1, 9 };
	struct xkv_cmd cmds[9];
	struct xkv_options opts = patient;
	struct xkv *h;

	for (int i = 0; i < 9; i++)
		cmds[i] = (struct xkv_cmd){ .command = (enum xkv_command)commands[i],
					    .key = "k",
					    .key_len = commands[i] != XKV_CMD_PING };
	start(handle_note);
	h = open_with(&opts);
	assert_int_equal(0, xkv_batch(h, cmds, 9));
	assert_string_equal("28 3! 22 6! 5! 19 ", datagrams);
	xkv_close(h);
	*datagrams = 0;
	opts.once = -1;
	h = open_with(&opts);
	assert_int_equal(0, xkv_batch(h, cmds, 9));
	assert_string_equal("283226519 ", datagrams);
	close_once(h);
}

/* No room for this session: others may have some. */
static void test_no_session(void **state)
{
	struct xkv *h = open_once(handle_refusals, &patient, XKV_NO_SESSION, 7);
	struct xkv_reply r;

	assert_int_equal(0, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_int_equal(1, r.sent);
	assert_int_equal(8, once.seen);
	for (int i = 1; i < 8; i++) {
		assert_true(once.session[i] != once.session[i - 1]);
		assert_true(once.id[i] > once.id[i - 1]);
	}
	assert_int_equal(0, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_true(once.session[8] == once.session[7]); /* that one is good */
	close_once(h);
}

static unsigned int asked; /* for sessions */

/* The third copy of what asks for a session is answered. */
static void prove_third(struct fake *f, const struct datagram *req)
{
	if (++asked % 3 == 0)
		give_session(f, req);
}

/*
 * Before its first change a client has its session proven, and again when there is no room.  A
 * machine that stalls makes more copies of all requests.
 */
static void test_session(void **state)
{
	struct xkv *h = open_once(handle_refusals, &eager, XKV_NO_SESSION, 0);
	unsigned int first, last;
	struct xkv_reply r;

	asked = 0;
	server.prove = prove_third;
	assert_int_equal(0, xkv_get(h, "k", 1, &r));
	assert_int_equal(0, asked); /* reads need none */
	for (int i = 0; i < 3; i++)
		assert_int_equal(0, xkv_incr(h, "k", 1, 1, 0, &r));
	assert_true(asked >= 3 && once.seen >= 3);
	for (unsigned int i = 0; i < once.seen; i++) {
		assert_true(once.session[i] == once.session[0]);
		assert_memory_equal((char *)&once.session[i] + 5, "yes", 3);
	}
	first = asked;
	once.refusals = 1;
	assert_int_equal(0, xkv_incr(h, "k", 1, 1, 0, &r));
	assert_true(asked >= first + 3);
	last = once.seen - 1;
	assert_true(once.session[last] != once.session[0]);
	assert_memory_equal((char *)&once.session[last] + 5, "yes", 3);
	close_once(h);
}

/* What a server answers that knows nothing of proofs, or of less. */
static void refuse_session(struct fake *f, const struct datagram *req)
{
	asked++;
	if (f->limit) {
		refuse(f, req, f->limit);
		return;
	}
	reply_begin(&f->reply, req);
	reply_result(&f->reply, XKV_OP_SESSION, XKV_BAD_OPCODE, NULL, 0);
	send_bytes(f, &f->reply);
}

/* Then a client has the session that it has drawn, if any. */
static void test_session_of_old_server(void **state)
{
	static const struct {
		unsigned int status, seen;
		int err;
	} cases[] = { { 0, 2, 0 },
		      { XKV_NO_SESSION, 2, 0 },
		      { XKV_BAD_REQUEST, 0, 0 },
		      { XKV_NOAUTH, 0, XKV_E_NOAUTH } };
	struct xkv_reply r;
	struct xkv *h;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		h = open_once(handle_refusals, &patient, 0, 0);
		asked = 0;
		server.limit = cases[i].status;
		server.prove = refuse_session;
		assert_int_equal(cases[i].err, xkv_incr(h, "k", 1, 1, 0, &r));
		assert_int_equal(cases[i].err, r.status);
		assert_true(!r.sent == !!cases[i].err);
		assert_int_equal(cases[i].err, xkv_incr(h, "k", 1, 1, 0, &r));
		assert_int_equal(cases[i].seen, once.seen);
		if (once.seen)
			assert_true(once.session[0] == once.session[1]);
		assert_int_equal(cases[i].err ? 2 : 1, asked);
		close_once(h);
	}
}

static void prove_nothing(struct fake *f, const struct datagram *req)
{
	asked++;
}

/* Without an answer nothing was done, and the caller can see that. */
static void test_session_timeout(void **state)
{
	const struct xkv_options opts = { .timeout_ms = 30, .retry_ms = 5 };
	struct xkv *h = open_once(handle_refusals, &opts, 0, 0);
	struct xkv_reply r;

	asked = 0;
	server.prove = prove_nothing;
	assert_int_equal(XKV_E_TIMEOUT, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_int_equal(XKV_E_TIMEOUT, r.status);
	assert_int_equal(0, r.sent);
	assert_int_equal(0, once.seen);
	assert_true(asked >= 1);
	close_once(h);
}

/* No room for anybody: an error, unless a copy of the change would do no harm. */
static void test_no_session_left(void **state)
{
	struct xkv_cmd cas = {
		.command = XKV_CMD_DELETE, .key = "k", .key_len = 1, .flags = XKV_CAS, .version = 5
	};
	struct xkv *h = open_once(handle_refusals, &patient, XKV_NO_SESSION, 1000);
	struct xkv_reply r;

	assert_int_equal(XKV_E_NO_SESSION, xkv_incr(h, "k", 1, 1, 0, &r));
	assert_int_equal(XKV_E_NO_SESSION, r.status);
	assert_int_equal(8, once.seen);
	once.refusals = 8;
	once.seen = 0;
	assert_int_equal(0, xkv_cas(h, "k", 1, "v", 1, 0, 5, 0, &r));
	assert_int_equal(8, once.seen); /* the ninth was without a session */
	assert_int_equal(0, server.last.byte[3]);
	once.refusals = 8;
	once.seen = 0;
	assert_int_equal(XKV_E_NO_SESSION, xkv_atomic(h, &cas, 1, NULL));
	assert_int_equal(XKV_F_ONCE | XKV_F_ATOMIC, server.last.byte[3]);
	once.refusals = 0;
	once.seen = 8;
	assert_int_equal(0, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_int_equal(9, once.seen);
	close_once(h);
}

static void handle_second_refused(struct fake *f, const struct datagram *req)
{
	note_change(req);
	if (once.seen > 1)
		refuse(f, req, XKV_NO_SESSION);
}

/* The first copy may yet find room, and be done: nothing else must be sent in its place. */
static void test_no_session_late(void **state)
{
	struct xkv *h = open_once(handle_second_refused, &eager, 0, 0);
	struct xkv_reply r;

	assert_int_equal(XKV_E_NO_SESSION, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_true(r.sent > 1);
	for (unsigned int i = 1; i < once.seen; i++) {
		assert_true(once.session[i] == once.session[0]);
		assert_true(once.id[i] == once.id[0]);
	}
	close_once(h);
}

/* No room from the second copy on; another client, or the first copy, has changed the entry. */
static void handle_not_stored(struct fake *f, const struct datagram *req)
{
	if (req->byte[3] & XKV_F_ONCE) {
		handle_second_refused(f, req);
		return;
	}
	reply_begin(&f->reply, req);
	reply_result(&f->reply, XKV_OP_SET, XKV_NOT_STORED, NULL, 0);
	send_bytes(f, &f->reply);
}

/* The first copy may have been executed: the caller of XKV_CAS can see that. */
static void test_no_session_sent(void **state)
{
	struct xkv_options opts = { .timeout_ms = 20000, .retry_ms = 50 };
	struct xkv *h = open_once(handle_not_stored, &opts, 0, 0);
	struct xkv_reply r;

	assert_int_equal(XKV_E_NOT_STORED, xkv_cas(h, "k", 1, "v", 1, 0, 5, 0, &r));
	assert_true(r.sent >= 2);
	close_once(h);
	/* there is no time left to send it without session */
	h = open_once(handle_not_stored, &opts, 0, 0);
	stop_after.sends_left = 2;
	stop_after.suspended = false;
	stop_after.answered = true;
	assert_int_equal(XKV_E_TIMEOUT, xkv_cas(h, "k", 1, "v", 1, 0, 5, 0, &r));
	stop_after.boot_s = stop_after.monotonic_s = 0;
	assert_true(r.sent >= 1);
	close_once(h);
}

/* Done before, and what it returned is lost: an error for that command, and the others go on. */
static void test_repeated(void **state)
{
	struct xkv *h = open_once(handle_refusals, &patient, XKV_REPEATED, 1);
	struct xkv_cmd cmds[2] = {
		{ .command = XKV_CMD_DELETE, .flags = XKV_RETURN, .key = "k", .key_len = 1 },
		{ .command = XKV_CMD_GET, .key = "k", .key_len = 1 },
	};
	struct xkv_reply r;

	assert_int_equal(0, xkv_batch(h, cmds, 2));
	assert_int_equal(XKV_E_REPEATED, cmds[0].reply.status);
	assert_null(cmds[0].reply.value);
	assert_int_equal(0, cmds[1].reply.status);
	once.refusals = 1;
	assert_int_equal(XKV_E_REPEATED, xkv_getdel(h, "k", 1, &r));
	/* nobody can have done a read before */
	once.refusals = 1;
	assert_int_equal(XKV_E_REPEATED, xkv_get(h, "k", 1, &r));
	assert_int_equal(XKV_E_REPEATED, r.status);
	close_once(h);
}

/* BUSY as often as once.refusals says. */
static void handle_busy(struct fake *f, const struct datagram *req)
{
	unsigned int opcode = req->byte[ops_at(req->byte)];

	if (req->byte[3] & XKV_F_ONCE)
		note_change(req);
	if (!once.refusals || !once.refusals--) {
		answer(f, req);
		return;
	}
	reply_begin(&f->reply, req);
	reply_result(&f->reply, opcode, XKV_BUSY, NULL, 0);
	send_bytes(f, &f->reply);
}

/* That answer is the last for its id: the next try is a new request. */
static void test_busy(void **state)
{
	struct xkv_options hasty = { .timeout_ms = 100 };
	struct xkv *h = open_once(handle_busy, &patient, 0, 4);
	struct xkv_reply r;
	int err, tries = 0;

	assert_int_equal(0, xkv_set(h, "k", 1, "v", 1, 0, 0, &r));
	assert_int_equal(1, r.sent);
	assert_int_equal(5, once.seen);
	for (int i = 1; i < 5; i++)
		assert_int_equal(once.id[i], once.id[i - 1] + 8);
	once.refusals = 3;
	get_ok(h, "key", &r);
	xkv_close(h);
	h = open_with(&hasty);
	once.refusals = UINT32_MAX;
	do { /* a machine that stalls lets the last answer come too late */
		once.seen = 0;
		err = xkv_set(h, "k", 1, "v", 1, 0, 0, &r);
	} while ((err == XKV_E_TIMEOUT || once.seen < 2) && ++tries < 100);
	assert_int_equal(XKV_E_BUSY, err);
	assert_in_range(once.seen, 2, 10); /* 1 + 2 + 4 + ... ms */
	close_once(h);
}

/* The second copy of the first request is refused, and the first one may be done later. */
static void handle_second_busy(struct fake *f, const struct datagram *req)
{
	if (memcmp(f->first.byte + 8, req->byte + 8, 8) != 0) {
		answer(f, req);
	} else if (asked++) {
		reply_begin(&f->reply, req);
		reply_result(&f->reply, XKV_OP_INCR, XKV_BUSY, NULL, 0);
		send_bytes(f, &f->reply);
	}
}

/* Without ONCE: what was sent before another try counts, but not what was refused. */
static void test_busy_sent(void **state)
{
	struct xkv_options opts = { .timeout_ms = 20000, .retry_ms = 50, .once = -1 };
	struct xkv *h = open_once(handle_second_busy, &opts, 0, 0);
	struct xkv_reply r;

	asked = 0;
	assert_int_equal(0, xkv_incr(h, "k", 1, 1, 0, &r));
	assert_true(r.sent >= 2);
	close_once(h);
	opts.retry_ms = 20000;
	h = open_once(handle_second_busy, &opts, 0, 0);
	asked = 1;
	assert_int_equal(0, xkv_incr(h, "k", 1, 1, 0, &r));
	assert_int_equal(1, r.sent);
	close_once(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_once),
		cmocka_unit_test(test_once_stopped),
		cmocka_unit_test(test_once_old_server),
		cmocka_unit_test(test_once_off),
		cmocka_unit_test(test_once_batch),
		cmocka_unit_test(test_no_session),
		cmocka_unit_test(test_session),
		cmocka_unit_test(test_session_of_old_server),
		cmocka_unit_test(test_session_timeout),
		cmocka_unit_test(test_no_session_left),
		cmocka_unit_test(test_no_session_late),
		cmocka_unit_test(test_no_session_sent),
		cmocka_unit_test(test_repeated),
		cmocka_unit_test(test_busy),
		cmocka_unit_test(test_busy_sent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

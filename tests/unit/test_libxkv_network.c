// SPDX-License-Identifier: BSD-2-Clause
/*
 * libxkv on a network that loses, repeats, delays and breaks datagrams; with partial replies; and
 * with a server that does not answer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <endian.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bpf/proto.h"
#include "client/xkv.h"
#include "fakeserver.h"

/* ---- a network that is not kind --------------------------------------- */

static void handle_loss(struct fake *f, const struct datagram *req)
{
	if (atomic_load(&f->received) > 3) {
		/* The repeats are the same datagram, id included. */
		assert_int_equal(f->first.len, req->len);
		assert_memory_equal(f->first.byte, req->byte, req->len);
		answer(f, req);
	}
}

static void test_loss(void **state)
{
	struct xkv_reply r;
	struct xkv *h;

	start(handle_loss);
	h = open_with(&eager);
	get_ok(h, "key", &r);
	assert_true(r.sent >= 4);
	xkv_close(h);
	stop();
}

static void handle_twice(struct fake *f, const struct datagram *req)
{
	/* First the reply to the request before this one, again; then this one's, twice. */
	send_bytes(f, &f->held);
	answer(f, req);
	send_bytes(f, &f->reply);
	f->held = f->reply;
}

static void test_duplicates(void **state)
{
	struct xkv_reply r;
	struct xkv *h;
	char key[16];

	start(handle_twice);
	h = open_with(&patient);
	for (int i = 0; i < 200; i++) {
		snprintf(key, sizeof(key), "key%d", i);
		get_ok(h, key, &r);
		assert_int_equal(1, r.sent);
	}
	xkv_close(h);
	stop();
}

/* The first request is answered when the second has come, before that one's answer. */
static void handle_late(struct fake *f, const struct datagram *req)
{
	if (atomic_load(&f->received) == 1) {
		reply_to(&f->held, req, 255);
		return;
	}
	send_bytes(f, &f->held);
	answer(f, req);
}

static void test_late(void **state)
{
	struct xkv_options hasty = { .timeout_ms = 30, .retries = -1 };
	struct xkv_reply r;
	int err, tries = 0;
	struct xkv *h;

	start(handle_late);
	h = open_with(&hasty);
	assert_int_equal(XKV_E_TIMEOUT, xkv_get(h, "first", 5, &r));
	assert_int_equal(1, r.sent);
	assert_int_equal(XKV_E_TIMEOUT, r.status);
	/* The answer takes no time now; more tries cover a machine that stalls. */
	do {
		err = xkv_get(h, "second", 6, &r);
	} while (err == XKV_E_TIMEOUT && ++tries < 300);
	assert_int_equal(0, err);
	assert_value(&r, "secondsecond");
	xkv_close(h);
	stop();
}

/* A perfect reply, but from another port. */
static void send_from_elsewhere(struct fake *f, const struct datagram *req)
{
	struct datagram d;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	reply_begin(&d, req);
	reply_result(&d, XKV_OP_GET, XKV_OK, "forged", 6);
	assert_int_equal(
		d.len, sendto(fd, d.byte, d.len, 0, (struct sockaddr *)&f->client, f->client_len));
	close(fd);
}

/* The reply with one field changed, and with another value, by which it is seen if it is believed.
 */
static void send_changed(struct fake *f, size_t at, uint8_t xor)
{
	struct datagram d = f->reply;

	d.byte[40] ^= 0x20;
	d.byte[at] ^= xor;
	send_bytes(f, &d);
}

/* The reply with bytes behind its results, and with one result more than was asked for. */
static void send_extended(struct fake *f)
{
	struct datagram d = f->reply;

	d.byte[40] ^= 0x20;
	d.len += 8;
	header(&d)->length = htobe16((uint16_t)d.len);
	send_bytes(f, &d);
	d = f->reply;
	d.byte[40] ^= 0x20;
	reply_result(&d, XKV_OP_GET, XKV_OK, "more", 4);
	send_bytes(f, &d);
}

static void handle_foreign(struct fake *f, const struct datagram *req)
{
	static const struct {
		size_t at;
		uint8_t xor ;
	} changes[] = {
		{ 0, 1 },
		{ 1, 1 },
		{ 2, 3 },
		{ 3, XKV_F_REPLY }, /* magic, version, flags */
		{ 3, 0x80 },
		{ 4, 1 },
		{ 4, 2 }, /* flags, count 0, count 3 */
		{ 6, 1 },
		{ 7, 1 },
		{ 7, 8 },
		{ 7, 16 }, /* length */
		{ 8, 1 },
		{ 15, 1 }, /* id */
		{ 16, 1 },
		{ 19, 1 },
		{ 18, XKV_HAS_VALUE }, /* opcode, zero, flags */
		{ 20, 0xff },
		{ 22, 1 },
		{ 23, 0x20 }, /* value_len */
		{ 17, XKV_PAD },
		{ 17, XKV_MISS }, /* these have no value */
	};
	struct datagram empty = { .len = 0 };

	send_from_elsewhere(f, req);
	send_bytes(f, &empty);
	reply_to(&f->reply, req, 255);
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
		send_changed(f, changes[i].at, changes[i].xor);
	send_extended(f);
	send_bytes(f, req); /* the request itself, as an echo service would */
	send_bytes(f, &f->reply);
}

static void test_foreign(void **state)
{
	struct xkv_reply r;
	struct xkv *h;
	char key[16];

	start(handle_foreign);
	h = open_with(&patient);
	for (int i = 0; i < 50; i++) {
		snprintf(key, sizeof(key), "key%d", i);
		get_ok(h, key, &r);
		assert_int_equal(1, r.sent);
	}
	xkv_close(h);
	stop();
}

/* Every beginning of the reply, then the whole. */
static void handle_truncated(struct fake *f, const struct datagram *req)
{
	struct datagram d;

	reply_to(&f->reply, req, 255);
	for (d = f->reply, d.len = 0; d.len < f->reply.len; d.len++)
		send_bytes(f, &d);
	send_bytes(f, &f->reply);
}

static void test_truncated(void **state)
{
	struct xkv_reply r;
	struct xkv *h;

	start(handle_truncated);
	h = open_with(&patient);
	get_ok(h, "somekey", &r);
	assert_int_equal(1, r.sent);
	xkv_close(h);
	stop();
}

/* Only broken replies come: that is another error than silence. */
static void handle_broken(struct fake *f, const struct datagram *req)
{
	reply_to(&f->reply, req, 255);
	send_changed(f, 20, 0xff);
}

static void test_broken(void **state)
{
	struct xkv_options hasty = { .timeout_ms = 500 };
	struct xkv *h;

	start(handle_broken);
	h = open_with(&hasty);
	assert_int_equal(XKV_E_PROTOCOL, xkv_get(h, "key", 3, NULL));
	xkv_close(h);
	stop();
}

/* A few random changes of a good reply each; then the good one, so that no round has to wait. */
static void handle_fuzz(struct fake *f, const struct datagram *req)
{
	struct datagram d;

	reply_to(&f->reply, req, 255);
	for (int i = 0; i < 4; i++) {
		d = f->reply;
		for (unsigned int n = 0; n < 1 + f->value % 3; n++) {
			f->value = f->value * 6364136223846793005ULL + 1442695040888963407ULL;
			/* The id stays, else all of this would only be foreign. */
			if ((f->value >> 33) % d.len / 8 != 1)
				d.byte[(f->value >> 33) % d.len] = (uint8_t)(f->value >> 56);
		}
		if (f->value & 1)
			d.len = (f->value >> 40) % (d.len + 1);
		send_bytes(f, &d);
	}
	send_bytes(f, &f->reply);
}

/* What comes out is up to the changes; that nothing is read out of bounds is up to the sanitizers.
 */
static void test_fuzz(void **state)
{
	struct xkv_cmd cmds[4];
	unsigned int good = 0;
	struct xkv *h;
	size_t sum = 0;

	start(handle_fuzz);
	h = open_with(&eager);
	for (int i = 0; i < 5000; i++) {
		for (int j = 0; j < 4; j++)
			cmds[j] = (struct xkv_cmd){ .command = XKV_CMD_GET,
						    .key = "abcdefgh",
						    .key_len = (size_t)(1 + (i + j) % 8) };
		if (xkv_batch(h, cmds, 4))
			continue;
		for (int j = 0; j < 4; j++)
			for (size_t k = 0; cmds[j].reply.value && k < cmds[j].reply.value_len; k++)
				sum += ((const uint8_t *)cmds[j].reply.value)[k];
		good++;
	}
	print_message("fuzz: %u of 5000 batches went through, sum %zu\n", good, sum);
	assert_true(good > 1000);
	xkv_close(h);
	stop();
}

/* ---- partial replies, padding, datagrams ------------------------------ */

/* Counts the operations in f->value, and answers some of them. */
static void handle_partial(struct fake *f, const struct datagram *req)
{
	reply_to(&f->reply, req, f->limit);
	f->value += header(&f->reply)->count;
	send_bytes(f, &f->reply);
}

static void run_partial(unsigned int limit, unsigned int want)
{
	enum { N = 600 };
	static struct xkv_cmd cmds[N];
	static char keys[N][128];
	struct xkv *h = open_with(&patient);

	server.limit = limit;
	server.value = 0;
	atomic_store(&server.received, 0);
	for (int i = 0; i < N; i++) {
		/* Values of 210 bytes, more than a chunk of the library holds in all. */
		snprintf(keys[i], sizeof(keys[i]), "%0105d", i);
		cmds[i] =
			(struct xkv_cmd){ .command = XKV_CMD_GET, .key = keys[i], .key_len = 105 };
	}
	assert_int_equal(0, xkv_batch(h, cmds, N));
	for (int i = 0; i < N; i++) {
		assert_int_equal(0, cmds[i].reply.status);
		assert_int_equal(1, cmds[i].reply.sent);
		assert_int_equal(210, cmds[i].reply.value_len);
		assert_memory_equal(keys[i], cmds[i].reply.value, 105);
		assert_memory_equal(keys[i], (const char *)cmds[i].reply.value + 105, 105);
	}
	assert_int_equal(N, server.value); /* each was done once */
	assert_int_equal(want, atomic_load(&server.received));
	xkv_close(h);
}

static void test_partial(void **state)
{
	start(handle_partial);
	run_partial(1, 600);
	run_partial(4, 150);
	run_partial(255, 100); /* six values of 240 bytes fit a reply */
	stop();
}

/* Each datagram as full as it can be, and none longer than the path allows. */
static void handle_full(struct fake *f, const struct datagram *req)
{
	if (req->len > f->limit)
		f->value++;
	answer(f, req);
}

static void test_datagrams(void **state)
{
	static struct xkv_cmd cmds[600];
	struct xkv *h;

	start(handle_full);
	h = open_with(&patient);
	server.limit = 1472;
	for (int i = 0; i < 600; i++)
		cmds[i] = (struct xkv_cmd){ .command = XKV_CMD_PING };
	assert_int_equal(0, xkv_batch(h, cmds, 600));
	assert_int_equal(10, atomic_load(&server.received)); /* (1472 - 16) / 24 = 60 */
	xkv_close(h);

	h = open_with(&(struct xkv_options){ .timeout_ms = 20000, .payload_max = 600 });
	server.limit = 600;
	assert_int_equal(0, xkv_batch(h, cmds, 600));
	assert_int_equal(0, server.value);
	assert_int_equal(10 + 25, atomic_load(&server.received));
	assert_int_equal(0, xkv_batch(h, cmds, 0));
	xkv_close(h);
	stop();
}

/* xkvd's rule for sources that nobody allowed: at most three times the request. */
static void handle_pad(struct fake *f, const struct datagram *req)
{
	unsigned int n = 255;

	do
		reply_to(&f->reply, req, n);
	while (f->reply.len > 3 * req->len && n && (n = header(&f->reply)->count - 1));
	if (!n) {
		size_t want = XKV_PADDED((f->reply.len + 2) / 3);

		reply_begin(&f->reply, req);
		reply_result(&f->reply, XKV_OP_GET, XKV_PAD, NULL, want);
	}
	send_bytes(f, &f->reply);
}

static void test_pad(void **state)
{
	struct xkv_cmd cmds[20];
	struct xkv_reply r;
	struct xkv *h;
	char key[122];

	memset(key, 'k', sizeof(key));
	key[121] = 0;
	start(handle_pad);
	h = open_with(&patient);
	get_ok(h, "short", &r);
	assert_int_equal(1, atomic_load(&server.received));
	server.limit = 0;
	get_ok(h, key, &r); /* 16 + 24 + 248 = 288 <= 3 * 168: fits */
	assert_int_equal(2, atomic_load(&server.received));
	for (int i = 0; i < 20; i++)
		cmds[i] = (struct xkv_cmd){ .command = XKV_CMD_GET, .key = key, .key_len = 121 };
	assert_int_equal(0, xkv_batch(h, cmds, 20));
	for (int i = 0; i < 20; i++)
		assert_int_equal(242, cmds[i].reply.value_len);
	xkv_close(h);
	stop();
}

/* GETs that need `value` bytes of request, whatever they ask for. */
static void handle_want(struct fake *f, const struct datagram *req)
{
	char value[400] = "v";

	reply_begin(&f->reply, req);
	if (req->byte[ops_at(req->byte)] != XKV_OP_GET)
		reply_result(&f->reply, req->byte[ops_at(req->byte)], XKV_OK, NULL, 0);
	else if (req->len < f->value)
		reply_result(&f->reply, XKV_OP_GET, XKV_PAD, NULL, f->value);
	else
		reply_result(&f->reply, XKV_OP_GET, XKV_OK, value, sizeof(value));
	send_bytes(f, &f->reply);
}

static void test_pad_remembered(void **state)
{
	static char ones[1000];
	struct xkv_reply r;
	struct xkv *h;

	memset(ones, 0xff, sizeof(ones));
	start(handle_want);
	server.value = 152;
	h = open_with(&patient);
	/* Padding is zeros, whatever the datagram before held there. */
	assert_int_equal(0, xkv_set(h, "k", 1, ones, sizeof(ones), 0, 0, &r));
	atomic_store(&server.received, 0);
	assert_int_equal(0, xkv_get(h, "k", 1, &r));
	assert_int_equal(400, r.value_len);
	assert_int_equal(2, atomic_load(&server.received));
	assert_int_equal(152, server.last.len);
	assert_true(zeros(server.last.byte + 48, 152 - 48));
	assert_int_equal(0, xkv_get(h, "k", 1, &r));
	assert_int_equal(3, atomic_load(&server.received));
	server.value = 360; /* it wants more now */
	assert_int_equal(0, xkv_get(h, "k", 1, &r));
	assert_int_equal(5, atomic_load(&server.received));
	server.value = 1480; /* more than there can be */
	assert_int_equal(XKV_E_PAD, xkv_get(h, "k", 1, &r));
	xkv_close(h);
	stop();
}

/* A server that wants what it has got: the client must not ask for ever. */
static void handle_want_less(struct fake *f, const struct datagram *req)
{
	reply_begin(&f->reply, req);
	reply_result(&f->reply, XKV_OP_GET, XKV_PAD, NULL, req->len);
	send_bytes(f, &f->reply);
}

static void test_pad_endless(void **state)
{
	struct xkv *h;

	start(handle_want_less);
	h = open_with(&patient);
	assert_int_equal(XKV_E_PROTOCOL, xkv_get(h, "k", 1, NULL));
	assert_int_equal(1, atomic_load(&server.received));
	xkv_close(h);
	stop();
}

/* PAD where there is no value, and PAD that is not the last result: both break the protocol. */
static void handle_pad_nonsense(struct fake *f, const struct datagram *req)
{
	unsigned int opcode = req->byte[16];

	reply_begin(&f->reply, req);
	reply_result(&f->reply, opcode, XKV_PAD, NULL, req->len + 8);
	if (opcode == XKV_OP_GET)
		reply_result(&f->reply, opcode, XKV_OK, "v", 1);
	send_bytes(f, &f->reply);
}

static void test_pad_nonsense(void **state)
{
	struct xkv_cmd get = { .command = XKV_CMD_GET, .key = "k", .key_len = 1 };
	struct xkv_cmd gets[2] = { get, get };
	struct xkv_options hasty = { .timeout_ms = 500 };
	struct xkv *h;

	start(handle_pad_nonsense);
	h = open_with(&hasty);
	assert_int_equal(XKV_E_PROTOCOL, xkv_ping(h));
	assert_int_equal(XKV_E_PROTOCOL, xkv_batch(h, gets, 2));
	xkv_close(h);
	stop();
}

/* ---- nobody answers --------------------------------------------------- */

static void handle_silent(struct fake *f, const struct datagram *req)
{
	/* Noise must not keep a client waiting either. */
	for (int i = 0; i < 200; i++)
		send_bytes(f, req);
}

static void test_silent(void **state)
{
	struct xkv_options opts = { .timeout_ms = 1000, .retry_ms = 20, .retries = 3 };
	struct xkv_reply r;
	struct xkv *h;
	uint64_t began;

	start(handle_silent);
	h = open_with(&opts);
	began = now_ms();
	assert_int_equal(XKV_E_TIMEOUT, xkv_get(h, "key", 3, &r));
	assert_in_range(now_ms() - began, 990, 8000);
	assert_int_equal(4, r.sent);
	assert_int_equal(4, atomic_load(&server.received));
	xkv_close(h);
	stop();
}

static void handle_nothing(struct fake *f, const struct datagram *req)
{
}

/* The first wait of a handle, and less than a millisecond: its socket has no limit yet. */
static void test_silent_shortly(void **state)
{
	struct xkv_options opts = { .timeout_ms = 1, .retries = -1 };
	struct xkv_reply r;
	struct xkv *h;

	start(handle_nothing);
	h = open_with(&opts);
	alarm(20); /* it would wait for ever */
	assert_int_equal(XKV_E_TIMEOUT, xkv_get(h, "key", 3, &r));
	alarm(0);
	xkv_close(h);
	stop();
}

static pthread_t stopped;
static atomic_bool asleep, woken;

/* The client is kept from running, until more than its time is over. */
static void sleep_on(int signal)
{
	struct timespec ts = { 0, 1000000 };

	atomic_store(&asleep, true);
	while (!atomic_load(&woken))
		nanosleep(&ts, NULL);
}

/* Answers a client that does not run: with what others sent, and then its reply. */
static void handle_stopped(struct fake *f, const struct datagram *req)
{
	struct timespec ts = { 0, 1000000 }, over = { 0, 300000000 };

	nanosleep(&over, NULL); /* it waits by now */
	pthread_kill(stopped, SIGUSR1);
	while (!atomic_load(&asleep))
		nanosleep(&ts, NULL);
	for (int i = 0; i < 10; i++)
		send_bytes(f, req);
	answer(f, req);
	for (int i = 0; i < 4; i++)
		nanosleep(&over, NULL);
	atomic_store(&woken, true);
}

/* A client that is stopped while it waits, as by a debugger, and runs again when its time is up. */
static void test_stopped(void **state)
{
	struct xkv_options opts = { .timeout_ms = 1000, .retries = -1 };
	struct sigaction action = { .sa_handler = sleep_on }, old;
	struct xkv_reply r;
	struct xkv *h;

	stopped = pthread_self();
	assert_int_equal(0, sigaction(SIGUSR1, &action, &old));
	start(handle_stopped);
	h = open_with(&opts);
	get_ok(h, "key", &r);
	assert_int_equal(1, r.sent);
	xkv_close(h);
	stop();
	assert_int_equal(0, sigaction(SIGUSR1, &old, NULL));
}

static void test_refused(void **state)
{
	struct xkv_options opts = { .timeout_ms = 20000, .retry_ms = 10, .retries = 4 };
	struct xkv_reply r;
	struct xkv *h;
	uint64_t began;

	start(answer);
	h = open_with(&opts);
	get_ok(h, "key", &r);
	stop();
	began = now_ms();
	assert_int_equal(XKV_E_REFUSED, xkv_get(h, "key", 3, &r));
	assert_in_range(now_ms() - began, 100, 10000); /* 10 + 15 + 30 + 60 at least */
	assert_int_equal(5, r.sent);
	/* The handle outlives a restart of its server. */
	start_at(answer, AF_INET, server.port);
	get_ok(h, "key", &r);
	xkv_close(h);
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_loss),	       cmocka_unit_test(test_duplicates),
		cmocka_unit_test(test_late),	       cmocka_unit_test(test_foreign),
		cmocka_unit_test(test_truncated),      cmocka_unit_test(test_broken),
		cmocka_unit_test(test_fuzz),	       cmocka_unit_test(test_partial),
		cmocka_unit_test(test_datagrams),      cmocka_unit_test(test_pad),
		cmocka_unit_test(test_pad_remembered), cmocka_unit_test(test_pad_endless),
		cmocka_unit_test(test_pad_nonsense),   cmocka_unit_test(test_silent),
		cmocka_unit_test(test_silent_shortly), cmocka_unit_test(test_stopped),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

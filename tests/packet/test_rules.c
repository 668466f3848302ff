// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 3 */
/*
 * Who is answered, and with how much: addresses and prefixes, rules that change, the token, and
 * senders that have not proven their address.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf/layout.h"
#include "loader/kernel/rules.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "loader/util/clock.h"
#include "exchange.h"
#include "fixture.h"
#include "packet.h"
#include "xdpbed.h"

/* Results and operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define DRAWN_AT_ONCE 100
#define MS	      1000000ULL /* in ns */

/* In place of the C library's: draws no more than this, as it may where a signal comes. */
ssize_t getrandom(void *to, size_t len, unsigned int flags)
{
	return syscall(SYS_getrandom, to, len < DRAWN_AT_ONCE ? len : DRAWN_AT_ONCE, flags);
}

static void test_not_local(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	for (unsigned int v6 = 0; v6 < 2; v6++) {
		s = packet_plain(v6, &req);
		for (unsigned int i = 0; i < (v6 ? 16 : 4); i++) {
			s.dst[i] ^= 0x04;
			passes(&s, XKV_C_pass_not_local);
			s.dst[i] ^= 0x04;
		}
		bed.rules->local4_count = bed.rules->local6_count = 0;
		passes(&s, XKV_C_pass_not_local);
		bed_configure(&bed);
	}
}

/* The last of 32 addresses and prefixes counts as the first does. */
static void test_many_addresses(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	for (unsigned int v6 = 0; v6 < 2; v6++) {
		s = packet_plain(v6, &req);
		for (int i = 0; i < XKV_LOCAL_MAX; i++) {
			bed.rules->local4[i] = bed.rules->local4[0];
			bed.rules->local6[i] = bed.rules->local6[0];
			bed.rules->local4[i].addr = htonl(0x0a4d0100 + i);
			bed.rules->local6[i].addr[1] = i;
			bed.rules->allow4[i] = (struct xkv_prefix4){ htonl(0x0a630000 + i), ~0U };
			bed.rules->allow6[i].net[0] = i;
			bed.rules->allow6[i].mask[0] = bed.rules->allow6[i].mask[1] = ~0ULL;
		}
		bed.rules->local4_count = bed.rules->local6_count = XKV_LOCAL_MAX;
		bed.rules->allow4_count = bed.rules->allow6_count = XKV_ALLOW_MAX;
		passes(&s, XKV_C_pass_not_local);
		memcpy(&bed.rules->local4[XKV_LOCAL_MAX - 1].addr, s.dst, 4);
		memcpy(bed.rules->local6[XKV_LOCAL_MAX - 1].addr, s.dst, 16);
		passes(&s, XKV_C_pass_foreign);
		memcpy(&bed.rules->allow4[XKV_ALLOW_MAX - 1].net, s.src, 4);
		memcpy(bed.rules->allow6[XKV_ALLOW_MAX - 1].net, s.src, 16);
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		bed_configure(&bed);
	}
}

static void test_foreign(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	for (unsigned int v6 = 0; v6 < 2; v6++) {
		s = packet_plain(v6, &req);
		s.src[v6 ? 7 : 2] ^= 1; /* the last byte of the prefix */
		passes(&s, XKV_C_pass_foreign);
		bed.rules->foreign_drop = 1;
		drops(&s, XKV_C_drop_foreign);
		s.src[v6 ? 7 : 2] ^= 1;
		s.src[v6 ? 8 : 3] ^= 0xf0; /* the first behind it */
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		bed.rules->foreign_drop = 0;
		bed.rules->allow4_count = bed.rules->allow6_count = 0;
		passes(&s, XKV_C_pass_foreign);
		bed_configure(&bed);
	}
}

/* Addresses that nobody can have are not answered, whatever is allowed. */
static void test_impossible_sources(void **state)
{
	static const uint8_t bad4[][4] = { { 0, 0, 0, 0 },   { 0, 1, 2, 3 },
					   { 127, 0, 0, 1 }, { 127, 255, 1, 1 },
					   { 224, 0, 0, 1 }, { 239, 1, 2, 3 },
					   { 240, 0, 0, 1 }, { 255, 255, 255, 255 },
					   { 10, 77, 0, 1 } };
	static const uint8_t good4[][4] = {
		{ 1, 0, 0, 1 }, { 126, 1, 1, 1 }, { 128, 0, 0, 1 }, { 223, 255, 255, 1 }
	};
	static const uint8_t bad6[][16] = {
		{ 0 }, { [15] = 1 }, { 0xff, 2, [15] = 1 }, { 0xff, 0x0e }, { 0xfd, 0x77, [15] = 1 }
	};
	static const uint8_t good6[][16] = {
		{ [15] = 2 }, { 0xfe, 0x80, [15] = 1 }, { 0x20, 1 }, { [7] = 1, [15] = 1 }
	};
	struct payload req = ping();
	struct packet_spec s;

	memset(bed.rules->allow4, 0, sizeof(bed.rules->allow4)); /* everybody */
	memset(bed.rules->allow6, 0, sizeof(bed.rules->allow6));
	s = packet_plain(false, &req);
	for (size_t i = 0; i < sizeof(bad4) / 4; i++) {
		memcpy(s.src, bad4[i], 4);
		drops(&s, XKV_C_drop_source);
	}
	for (size_t i = 0; i < sizeof(good4) / 4; i++) {
		memcpy(s.src, good4[i], 4);
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
	}
	s.sport = 0;
	drops(&s, XKV_C_drop_source);
	s = packet_plain(true, &req);
	for (size_t i = 0; i < sizeof(bad6) / 16; i++) {
		memcpy(s.src, bad6[i], 16);
		drops(&s, XKV_C_drop_source);
	}
	for (size_t i = 0; i < sizeof(good6) / 16; i++) {
		memcpy(s.src, good6[i], 16);
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
	}
	s.sport = 0;
	drops(&s, XKV_C_drop_source);
}

/* Network and broadcast address of each subnet are nobody's; a /31 or /32 has none. */
static void test_subnet_sources(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	s = packet_plain(false, &req);
	bed.rules->allow4[0] = (struct xkv_prefix4){}; /* everybody */
	for (unsigned int last = 0; last < 256; last++) {
		s.src[3] = (uint8_t)last;
		if (last <= 1 || last == 255) /* 1 is ours */
			drops(&s, XKV_C_drop_source);
		else if (last < 4 || last > 252)
			spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
	}
	/* As of a /31: the other end has the lowest or the highest address. */
	for (unsigned int i = 0; i < 3; i++)
		bed.rules->local4[i].network = bed.rules->local4[i].broadcast =
			bed.rules->local4[i].addr;
	s.src[3] = 0;
	spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
	s.src[3] = 255;
	spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
}

#define SWITCH_SECONDS 1
#define SWITCH_REPEAT  20000

/*
 * Sets of rules follow each other as fast as rules_switch() lets them.  There are three of
 * them, since there are two places: each set comes to both.
 */
struct switcher {
	struct xkv_rules rules[3];
	uint8_t token[3][XKV_TOKEN_BYTES];
	bool stop, failed;
	unsigned int turns;
};

static void *switch_rules(void *arg)
{
	struct switcher *w = arg;

	for (; !__atomic_load_n(&w->stop, __ATOMIC_RELAXED); w->turns++)
		w->failed |= rules_switch(bed.c, bed.secrets, &w->rules[w->turns % 3],
					  w->token[w->turns % 3]) != 0;
	return NULL;
}

/*
 * Many sources with a token, or one without: 10.77.0.2 is allowed by the first and has no token, so
 * no set lets it do anything, nor a source that none names.
 */
static void three_sets(struct switcher *w)
{
	bed.rules->allow4[0] = (struct xkv_prefix4){ htonl(0x0a630000), ~0U };
	w->rules[0] = w->rules[1] = w->rules[2] = *bed.rules;
	w->rules[2].foreign_drop = 1;
	for (unsigned int i = 1; i < XKV_ALLOW_MAX; i++)
		w->rules[0].allow4[i] = (struct xkv_prefix4){ htonl(0x0a630000 + i), ~0U };
	w->rules[0].allow4[XKV_ALLOW_MAX - 1].net = htonl(0x0a4d0002);
	w->rules[0].allow4_count = XKV_ALLOW_MAX;
	w->rules[0].auth = XKV_AUTH_TOKEN;
	memset(w->token[0], 7, sizeof(w->token[0]));
}

static double seconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void run_frame_often(const struct packet_spec *s, unsigned int times)
{
	uint8_t frame[PACKET_MAX];
	LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = frame, .repeat = (int)times);

	opts.data_size_in = (uint32_t)packet_build(s, frame);
	assert_int_equal(bpf_prog_test_run_opts(bed_xdp(&bed), &opts), 0);
}

/*
 * While rules change, a packet is judged by the old set or the new one, never by a mixture of them
 * that admits a source which neither admits.
 */
static void test_rules_that_change(void **state)
{
	uint64_t before[XKV_COUNTER_COUNT], after[XKV_COUNTER_COUNT];
	struct packet_spec known, foreign;
	struct payload req = ping();
	struct switcher w = {};
	double end = seconds_now() + SWITCH_SECONDS;
	pthread_t thread;

	three_sets(&w);
	known = packet_plain(false, &req);
	foreign = known;
	foreign.src[0] = 192;
	bed_counters(&bed, before);
	assert_int_equal(pthread_create(&thread, NULL, switch_rules, &w), 0);
	do {
		run_frame_often(&foreign, SWITCH_REPEAT);
		for (int i = 0; i < 100; i++)
			run_frame_often(&known, 1);
		bed_counters(&bed, after);
	} while (seconds_now() < end ||
		 (after[XKV_C_replies] == before[XKV_C_replies] && seconds_now() < end + 20));
	__atomic_store_n(&w.stop, true, __ATOMIC_RELAXED);
	assert_int_equal(pthread_join(thread, NULL), 0);
	bed_counters(&bed, after);
	assert_false(w.failed);
	assert_true(w.turns > 4);
	assert_int_equal(after[XKV_C_pings], before[XKV_C_pings]);
	assert_true(after[XKV_C_pass_foreign] > before[XKV_C_pass_foreign]);
	/* Sources without a token were told so; no other was answered. */
	assert_int_equal(after[XKV_C_replies] - before[XKV_C_replies],
			 after[XKV_C_error_auth] - before[XKV_C_error_auth]);
	assert_true(after[XKV_C_replies] - before[XKV_C_replies] > 0);
	for (int i = XKV_C_pass_not_ready; i < XKV_C_pass_foreign; i++)
		assert_int_equal(after[i], before[i]);
}

/* All of the secret is drawn, however little is drawn at once. */
static void test_secret(void **state)
{
	const struct xkv_secret *s = &bed.secrets->hash;

	assert_int_equal(bed.c->layout, XKV_DATA_VERSION);
	for (unsigned int i = 0; i + 1 < XKV_HASH_WORDS; i++) /* two words of zeros: 2^-128 */
		assert_true(s->word[i].low | s->word[i].high | s->word[i + 1].low |
			    s->word[i + 1].high);
	assert_true((s->mix[0] & s->mix[1] & 1) && s->mix[0] > 1 && s->mix[1] > 1);
	/* neither the secret nor the token is in the map of the configuration */
	for (unsigned int i = 0; i < sizeof(*bed.secrets) / 8; i++)
		assert_true(!((uint64_t *)bed.secrets)[i] ||
			    !memmem(bed.c, sizeof(*bed.c), (uint64_t *)bed.secrets + i, 8));
}

static int count_key(void *arg, const void *key, size_t len, const struct store_entry *e)
{
	assert_int_equal(len, 9);
	assert_memory_equal((const char *)key + 1, "key high", 8);
	++*(unsigned int *)arg;
	return 0;
}

/* Keys whose hashes are equal in all bits are still told apart by each front end. */
static void test_same_hash(void **state)
{
	struct xkv_secret secret = bed.secrets->hash;
	char key[] = "-key high", other[] = "akey high";
	unsigned int keys = 0;
	struct payload req;
	uint64_t cursor = 0;

	bed.secrets->hash.mix[0] = 0; /* no secret that is drawn has it */
	for (key[0] = 'a'; key[0] <= 'z'; key[0]++) {
		assert_int_equal(bed_fingerprint(&bed, key, 9), bed_fingerprint(&bed, other, 9));
		put(key, key, 1, 0);
	}
	for (key[0] = 'a'; key[0] <= 'z'; key[0]++) {
		req = REQUEST(XKV_OP_SET, KEY(key), .value = key, .value_len = 1);
		answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
		req = REQUEST(XKV_OP_GET, KEY(key));
		answers(&req, RESULTS({ XKV_OP_GET, 0, key, 1, .version = ANY }),
			COUNTS(XKV_C_get_hits));
	}
	do
		assert_int_equal(store_scan(bed.ctx, &cursor, 1000, true, count_key, &keys), 0);
	while (cursor);
	assert_int_equal(keys, 26);
	account();
	assert_int_equal(store_flush(bed.ctx), 0);
	bed.secrets->hash = secret;
	assert_int_equal(store_count(bed.st), 0);
}

/* After a failed snapshot; in every shape of a packet. */
static void test_read_only(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("other"));
	struct payload del = REQUEST(XKV_OP_DELETE, KEY("hello"));
	struct payload get = REQUEST(XKV_OP_GET, KEY("hello"));

	put("hello", "world", 5, 0);
	store_refuse_writes(bed.st, true);
	for (int i = 0; i < 10; i++) {
		answers(&set, RESULTS({ XKV_OP_SET, XKV_READ_ONLY }), COUNTS(XKV_C_op_read_only));
		answers(&del, RESULTS({ XKV_OP_DELETE, XKV_READ_ONLY }),
			COUNTS(XKV_C_op_read_only));
		answers(&get, RESULTS({ XKV_OP_GET, 0, "world", 5, .version = ANY }),
			COUNTS(XKV_C_get_hits));
	}
	store_refuse_writes(bed.st, false);
}

/* For longer than xkvd would. */
static void hold_writes(void)
{
	store_hold_writes(bed.st, true, 0);
	bed.c->read_only |= XKV_WRITES_HELD;
	bed.c->held_until_ns = UINT64_MAX;
}

/* By a transaction of xkvd, which has to do them afterwards; in every shape of a packet. */
static void test_writes_held(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("other"));
	struct payload del = REQUEST(XKV_OP_DELETE, KEY("hello"));
	struct payload get = REQUEST(XKV_OP_GET, KEY("hello"));

	put("hello", "world", 5, 0);
	hold_writes();
	for (int i = 0; i < 10; i++) {
		goes_up(&set, XKV_C_pass_busy);
		goes_up(&del, XKV_C_pass_busy);
		answers(&get, RESULTS({ XKV_OP_GET, 0, "world", 5, .version = ANY }),
			COUNTS(XKV_C_get_hits));
	}
	store_refuse_writes(bed.st, true);
	answers(&set, RESULTS({ XKV_OP_SET, XKV_READ_ONLY }), COUNTS(XKV_C_op_read_only));
	store_refuse_writes(bed.st, false);
	goes_up(&set, XKV_C_pass_busy);
	bed.c->held_until_ns = 1; /* xkvd was killed, long ago */
	answers(&set, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	store_hold_writes(bed.st, false, 0);
	answers(&set, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
}

/* By an upstream; what only a store can do is refused, also in transactions. */
static void test_writes_up(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("other"));
	struct payload del = REQUEST(XKV_OP_DELETE, KEY("hello"));
	struct payload old = REQUEST(XKV_OP_DELETE, KEY("hello"), .flags = XKV_RETURN);
	struct payload incr = REQUEST(XKV_OP_INCR, KEY("hello"), .value = "\0\0\0\0\0\0\0\1",
				      .value_len = 8, .flags = XKV_XX);
	struct payload get = REQUEST(XKV_OP_GET, KEY("hello"));

	put("hello", "world", 5, 0);
	store_writes_up(bed.st, true);
	for (int i = 0; i < 10; i++) {
		goes_up(&set, XKV_C_pass_upstream);
		goes_up(&del, XKV_C_pass_upstream);
		answers(&old, RESULTS({ XKV_OP_DELETE, XKV_READ_ONLY }),
			COUNTS(XKV_C_op_read_only));
		answers(&incr, RESULTS({ XKV_OP_INCR, XKV_READ_ONLY }), COUNTS(XKV_C_op_read_only));
		answers(&get, RESULTS({ XKV_OP_GET, 0, "world", 5, .version = ANY }),
			COUNTS(XKV_C_get_hits));
	}
	store_writes_up(bed.st, false);
	answers(&set, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
}

/* Their replies wait for the disk: xkvd makes them, and refuses them if it has to. */
static void test_writes_durable(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("other"));
	struct payload del = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("hello"));
	struct payload get = REQUEST(XKV_OP_GET, KEY("hello")), several;

	put("hello", "world", 5, 0);
	store_writes_durable(bed.st, true);
	request_begin(&several, ID, NULL);
	request_add(&several, OP(XKV_OP_GET, KEY("hello")));
	request_add(&several, OP(XKV_OP_SET, KEY("hello"), VALUE("other")));
	for (int i = 0; i < 10; i++) {
		goes_up(&set, XKV_C_pass_durable);
		goes_up(&del, XKV_C_pass_durable);
		answers(&several, RESULTS({ XKV_OP_GET, 0, "world", 5, .version = ANY }),
			COUNTS(XKV_C_get_hits));
	}
	xkvd_answers(&set, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
		     COUNTS(XKV_C_overwrites));
	answers(&get, RESULTS({ XKV_OP_GET, 0, "other", 5, .version = ANY }),
		COUNTS(XKV_C_get_hits));
	hold_writes(); /* by a transaction as well, which xkvd would wait for */
	goes_up(&set, XKV_C_pass_durable);
	store_hold_writes(bed.st, false, 0);
	store_refuse_writes(bed.st, true);
	answers(&set, RESULTS({ XKV_OP_SET, XKV_READ_ONLY }), COUNTS(XKV_C_op_read_only));
	xkvd_answers(&set, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, XKV_READ_ONLY }),
		     COUNTS(XKV_C_op_read_only));
	store_refuse_writes(bed.st, false);
	store_writes_durable(bed.st, false);
	answers(&set, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
}

/* Does the driver leave a write to xkvd? */
static bool is_held(void)
{
	struct payload set = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("other"));
	struct packet_spec s = packet_plain(false, &set);
	uint8_t frame[PACKET_MAX];

	assert_true(bed_run(&bed, frame, packet_build(&s, frame), &out));
	return out.verdict == XDP_PASS;
}

/* By transactions that never end, and others that always begin: for a fifth of the time at most. */
static void test_hold_is_bounded(void **state)
{
	uint64_t begin, now, last, held = 0;
	unsigned int holds = 0;
	bool was = false, is;

	put("hello", "world", 5, 0);
	begin = now = monotonic_ns();
	for (unsigned int i = 0; now - begin < 300 * MS; i++) {
		if (i & 1)
			store_hold_writes(bed.st, true, 0);
		is = is_held();
		holds += is && !was;
		was = is;
		last = now;
		now = monotonic_ns();
		if (is) /* this thread may have had to wait */
			held += now - last < MS / 10 ? now - last : MS / 10;
	}
	store_hold_writes(bed.st, false, 0);
	assert_false(is_held());
	assert_in_range(holds, 2, 100000);
	assert_in_range(held, 1, 90 * MS);
}

static void test_not_ready(void **state)
{
	struct payload req = ping();

	bed.c->magic = 0;
	goes_up(&req, XKV_C_pass_not_ready);
	goes_up(&req, XKV_C_pass_not_ready);
	store_start(bed.st);
	answers(&req, RESULTS(PONG), COUNTS(XKV_C_pings));
}

static void test_other_port(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	bed.rules->port = htons(7777);
	goes_up(&req, XKV_C_pass_port);
	s = packet_plain(true, &req);
	s.dport = 7777;
	spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
}

/* ---- replies to unproven addresses --------------------------------------- */

static void pad_round(bool v6, size_t len)
{
	size_t most = v6 ? XKV_PAYLOAD_MAX6 : XKV_PAYLOAD_MAX4, need = 16 + 24 + XKV_PADDED(len),
	       ask;
	struct payload req = REQUEST(XKV_OP_GET, KEY("k")), padded;
	struct packet_spec s;

	s = packet_plain(v6, &req);
	if (need > most) {
		passes(&s, XKV_C_pass_too_large);
		return;
	}
	if (need <= 3 * req.len) {
		spec_answers(&s, 0, RESULTS({ XKV_OP_GET, 0, pattern(0), len, .version = ANY }),
			     COUNTS(XKV_C_get_hits));
		return;
	}
	ask = XKV_PADDED((need + 2) / 3);
	spec_answers(&s, 0, RESULTS({ XKV_OP_GET, XKV_PAD, NULL, ask, .version = ANY }),
		     COUNTS(XKV_C_op_pad));
	padded = req;
	request_pad(&padded, ask - req.len, 0x5a);
	s.payload = padded.byte;
	s.len = padded.len;
	spec_answers(&s, 0, RESULTS({ XKV_OP_GET, 0, pattern(0), len, .version = ANY }),
		     COUNTS(XKV_C_get_hits));
	s.len = (need - 1) / 3; /* a byte too few */
	spec_answers(&s, 0, RESULTS({ XKV_OP_GET, XKV_PAD, NULL, ask, .version = ANY }),
		     COUNTS(XKV_C_op_pad));
}

static void test_three_times(void **state)
{
	bed.rules->trusted = 0;
	for (size_t len = 0; len <= 1440; len += len < 200 || len > 1390 ? 1 : 13) {
		put("k", pattern(0), len, 0);
		pad_round(len & 1, len);
		pad_round(!(len & 1), len);
	}
}

static void test_three_times_return(void **state)
{
	struct payload req;
	uint64_t v;

	bed.rules->trusted = 0;
	put("k", pattern(0), 300, 0);
	v = version_of("k");
	req = REQUEST(XKV_OP_SET, XKV_RETURN, KEY("k"), VALUE("v"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_PAD, NULL, 120, .version = v }),
		COUNTS(XKV_C_op_pad));
	holds("k", pattern(0), 300);
	assert_int_equal(version_of("k"), v);
	req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("k"));
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_PAD, NULL, 120, .version = v }),
		COUNTS(XKV_C_op_pad));
	holds("k", pattern(0), 300);
	request_pad(&req, 120 - req.len, 0);
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, pattern(0), 300 }), COUNTS(XKV_C_deletes));
	put("k", pattern(0), 90, 0); /* the second would be the one too many */
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_GET, KEY("k")));
	request_add(&req, OP(XKV_OP_GET, KEY("k")));
	answers(&req, RESULTS({ XKV_OP_GET, 0, pattern(0), 90, .version = ANY }),
		COUNTS(XKV_C_get_hits));
}

/* PAD is the last result: the client repeats the request, so nothing behind it may be done already.
 */
static void test_pad_is_last(void **state)
{
	struct payload req;

	bed.rules->trusted = 0;
	put("k", pattern(0), 600, 0);
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_GET, KEY("k")));
	request_add(&req, OP(XKV_OP_DELETE, KEY("k")));
	answers(&req, RESULTS({ XKV_OP_GET, XKV_PAD, NULL, 216, .version = ANY }),
		COUNTS(XKV_C_op_pad));
	holds("k", pattern(0), 600);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_not_local),
		CASE(test_many_addresses),
		CASE(test_foreign),
		CASE(test_impossible_sources),
		CASE(test_subnet_sources),
		CASE(test_rules_that_change),
		CASE(test_secret),
		CASE(test_same_hash),
		CASE(test_not_ready),
		CASE(test_read_only),
		CASE(test_writes_held),
		CASE(test_writes_up),
		CASE(test_writes_durable),
		CASE(test_hold_is_bounded),
		CASE(test_other_port),
		CASE(test_three_times),
		CASE(test_three_times_return),
		CASE(test_pad_is_last),
	};

	return bed_begin(argc, argv) ?: BOTH_WAYS("rules", tests, exchange_begin);
}

// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 32 */
/*
 * Packet in, packet out: what the XDP program makes of each kind of frame, byte
 * for byte, and which counters say so.  Frames go in through BPF_PROG_RUN.
 *
 * Every exchange names the counters that have to go up, and no other may; the
 * last case fails if there is a counter that no case has named.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <linux/bpf.h>

#include "bpf/layout.h"
#include "bpf/siphash.h"
#include "loader/attach/rules.h"
#include "loader/store/store.h"
#include "loader/store/impl.h"
#include "packet.h"
#include "vectors.h"
#include "xdpbed.h"

/* Results and operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define ANY	 UINT64_MAX /* of a version or ttl in an expected result */
#define NOTHING	 (-1)
#define ID	 0x0102030405060708ULL
#define MAX_KEYS 4096

/* Expected results and counters, as arguments. */
#define RESULTS(...)                                                                               \
	(const struct result[]){ __VA_ARGS__ },                                                    \
		sizeof((const struct result[]){ __VA_ARGS__ }) / sizeof(struct result)
#define COUNTS(...)                                                                                \
	(const int[])                                                                              \
	{                                                                                          \
		__VA_ARGS__, NOTHING                                                               \
	}

static struct bed bed;
static bool exercised[XKV_COUNTER_COUNT];
static struct outcome out;	/* of the last frame */
static uint64_t version;	/* in the last result of the last reply */
static const char *now_running; /* the vector, for messages */
static unsigned int shape;	/* of the next frame: IPv4 and IPv6, tags and trailers take turns */

/* ---- running and comparing ----------------------------------------------- */

static void count_check(const uint64_t *before, const int *expected)
{
	uint64_t after[XKV_COUNTER_COUNT];
	int64_t want[XKV_COUNTER_COUNT] = { 0 };
	bool ok = true;

	bed_counters(&bed, after);
	for (; *expected != NOTHING; expected++) {
		want[*expected]++;
		exercised[*expected] = true;
	}
	for (int i = 0; i < XKV_COUNTER_COUNT; i++) {
		if ((int64_t)(after[i] - before[i]) == want[i])
			continue;
		print_error("counter %s went up by %ld, not by %ld\n", counter_name(i),
			    (long)(after[i] - before[i]), (long)want[i]);
		ok = false;
	}
	assert_true(ok);
}

static void hex(const char *what, const uint8_t *at, size_t len)
{
	print_error("%s, %zu bytes:", what, len);
	for (size_t i = 0; i < len && i < 256; i++)
		print_error("%s%02x", i % 32 ? i % 8 ? "" : " " : "\n    ", at[i]);
	print_error("\n");
}

static void same_bytes(const uint8_t *is, size_t is_len, const uint8_t *want, size_t want_len)
{
	if (is_len == want_len && !memcmp(is, want, want_len))
		return;
	if (now_running)
		print_error("vector %s\n", now_running);
	hex("expected", want, want_len);
	hex("but got", is, is_len);
	fail();
}

static void run_frame(const uint8_t *frame, size_t len, int verdict, const int *counters)
{
	uint64_t before[XKV_COUNTER_COUNT];

	bed_counters(&bed, before);
	assert_true(bed_run(&bed, frame, len, &out));
	if (out.verdict != verdict)
		print_error("verdict %d, not %d\n", out.verdict, verdict);
	count_check(before, counters);
	assert_int_equal(out.verdict, verdict);
}

/* The frame goes up as it came, for this reason. */
static void passes_frame(const uint8_t *frame, size_t len, int counter)
{
	run_frame(frame, len, XDP_PASS, COUNTS(counter));
	same_bytes(out.frame, out.len, frame, len);
}

static void passes(const struct packet_spec *s, int counter)
{
	uint8_t frame[PACKET_MAX];

	passes_frame(frame, packet_build(s, frame), counter);
}

static void drops(const struct packet_spec *s, int counter)
{
	uint8_t frame[PACKET_MAX];

	run_frame(frame, packet_build(s, frame), XDP_DROP, COUNTS(counter));
}

/* A frame of the next shape with this payload. */
static struct packet_spec next_shape(const struct payload *req)
{
	struct packet_spec s;

	packet_default(&s, shape & 1);
	s.tags = shape / 2 % 3;
	s.trailer = shape % 5 == 4 ? 11 : 0;
	s.udp_check = shape % 4 == 2 ? CHECK_ZERO : CHECK_RIGHT; /* IPv4 only */
	s.payload = req->byte;
	s.len = req->len;
	shape++;
	return s;
}

/* Builds the expected reply; what may be ANY is taken from `actual`, if it makes sense. */
static void expect(struct payload *p, uint64_t id, uint8_t status, const struct result *r, size_t n,
		   const uint8_t *actual, size_t actual_len)
{
	struct result one;

	reply_begin(p, id, status);
	for (size_t i = 0; i < n; i++) {
		one = r[i];
		if (p->len + sizeof(struct xkv_result) <= actual_len) {
			version = RESULT_VERSION(actual, p->len);
			if (one.version == ANY) {
				one.version = version;
				assert_true(version && !(version & 1));
			}
			if (one.ttl == ANY) {
				one.ttl = RESULT_TTL(actual, p->len);
				assert_true(one.ttl);
			}
		}
		reply_add(p, &one);
	}
}

/* The frame is answered like this; `replies` is counted in any case. */
static void spec_answers(const struct packet_spec *s, uint8_t status, const struct result *r,
			 size_t n, const int *counters)
{
	size_t at = packet_payload_at(s->v6, s->tags), count = 0;
	uint8_t frame[PACKET_MAX], want[PACKET_MAX];
	int all[XKV_COUNTER_COUNT * 2];
	struct packet_spec answer;
	struct payload reply;

	for (; counters[count] != NOTHING; count++)
		all[count] = counters[count];
	all[count++] = XKV_C_replies;
	all[count] = NOTHING;
	run_frame(frame, packet_build(s, frame), XDP_TX, all);
	expect(&reply, s->len >= 16 ? get_be((const uint8_t *)s->payload + 8, 8) : 0, status, r, n,
	       out.frame + at, out.len > at ? out.len - at : 0);
	answer = packet_answer(s, reply.byte, reply.len);
	same_bytes(out.frame, out.len, want, packet_build(&answer, want));
	assert_null(packet_complaint(out.frame, out.len));
}

static void answers(const struct payload *req, const struct result *r, size_t n,
		    const int *counters)
{
	struct packet_spec s = next_shape(req);

	spec_answers(&s, 0, r, n, counters);
}

static void header_answers(const struct payload *req, uint8_t status, int counter)
{
	struct packet_spec s = next_shape(req);

	spec_answers(&s, status, NULL, 0, COUNTS(counter));
}

static void goes_up(const struct payload *req, int counter)
{
	struct packet_spec s = next_shape(req);

	passes(&s, counter);
}

/* What xkvd makes of a request that went up. */
static void xkvd_answers(const struct payload *req, size_t allowed, const struct result *r,
			 size_t n, const int *counters)
{
	uint64_t before[XKV_COUNTER_COUNT];
	uint8_t reply[XKV_PAYLOAD_MAX4];
	struct payload want;
	int len;

	bed_counters(&bed, before);
	len = store_datagram(bed.ctx, req->byte, req->len, reply, sizeof(reply), allowed);
	count_check(before, counters);
	assert_true(len >= 0);
	expect(&want, get_be(req->byte + 8, 8), 0, r, n, reply, (size_t)len);
	same_bytes(reply, (size_t)len, want.byte, want.len);
}

/* ---- requests ------------------------------------------------------------ */

static struct payload request(const struct operation *op)
{
	struct payload p;

	request_begin(&p, ID, NULL);
	request_add(&p, op);
	return p;
}

#define OP(code, ...)	   (&(struct operation){ .opcode = (code), __VA_ARGS__ })
#define KEY(text)	   .key = (text), .key_len = strlen(text)
#define VALUE(text)	   .value = (text), .value_len = strlen(text)
#define REQUEST(code, ...) request(OP(code, __VA_ARGS__))

static struct payload ping(void)
{
	return REQUEST(XKV_OP_PING, 0);
}

#define PONG                                                                                       \
	{                                                                                          \
		.opcode = XKV_OP_PING                                                              \
	}

static void put(const char *key, const void *value, size_t len, uint64_t expire_ms)
{
	assert_int_equal(store_set(bed.ctx, key, strlen(key), value, len, 0, 0, expire_ms, NULL),
			 0);
}

static void put_text(const char *key, const char *text)
{
	put(key, text, strlen(text), 0);
}

static uint64_t version_of(const char *key)
{
	struct store_entry e;

	assert_int_equal(store_get(bed.ctx, key, strlen(key), &e), 0);
	return e.version;
}

static void holds(const char *key, const void *value, size_t len)
{
	struct store_entry e;

	assert_int_equal(store_get(bed.ctx, key, strlen(key), &e), 0);
	assert_int_equal(e.value_len, len);
	assert_memory_equal(e.value, value, len);
}

static void holds_text(const char *key, const char *text)
{
	holds(key, text, strlen(text));
}

static void is_gone(const char *key)
{
	struct store_entry e;

	assert_int_equal(store_get(bed.ctx, key, strlen(key), &e), -ENOENT);
}

/* Bytes that tell their place. */
static const uint8_t *pattern(void)
{
	static uint8_t byte[4096];

	for (size_t i = 0; i < sizeof(byte); i++)
		byte[i] = (uint8_t)(i * 7 + i / 256 + 1);
	return byte;
}

static void wait_until(uint64_t ms)
{
	while (store_now_ms(bed.st) <= ms + 1)
		sched_yield();
}

/* ---- set-up -------------------------------------------------------------- */

static void account(void)
{
	const char *why = bed_account(&bed);

	if (why)
		print_error("%s\n", why);
	assert_null(why);
}

static void open_bed(unsigned int max_keys)
{
	const char *why = bed_open(&bed, max_keys);

	if (why)
		print_error("%s\n", why);
	assert_null(why);
}

/* Slots for each size class that a datagram can fill, so that no SET goes up for want of one. */
static void warm(void)
{
	assert_true(bed_warm(&bed));
}

#define DRAWN_AT_ONCE 100

/* In place of the C library's: draws no more than this, as it may where a signal comes. */
ssize_t getrandom(void *to, size_t len, unsigned int flags)
{
	return syscall(SYS_getrandom, to, len < DRAWN_AT_ONCE ? len : DRAWN_AT_ONCE, flags);
}

static int group_setup(void **state)
{
	(void)state;
	open_bed(MAX_KEYS);
	warm();
	return 0;
}

static int group_teardown(void **state)
{
	(void)state;
	bed_close(&bed);
	return 0;
}

/* The class of an entry with such a value, and a key of up to 8 bytes. */
static unsigned int class_of(size_t value_len)
{
	return bed.c->class_of[XKV_SLOT_NEED(1, value_len) / 8];
}

/* Removes all that has expired: to the end of the turn that is under way, and a whole one. */
static unsigned int expire_all(void)
{
	unsigned int removed = store_expire_cycle(bed.ctx, UINT32_MAX / 64);

	return removed + store_expire_cycle(bed.ctx, UINT32_MAX / 64);
}

/* Each case begins with an empty store and the plain configuration, and leaves no slot unaccounted
 * for. */
static int setup(void **state)
{
	if (!bed.st)
		group_setup(state);
	bed_configure(&bed);
	store_start(bed.st);
	expire_all();
	assert_int_equal(store_flush(bed.ctx), 0);
	assert_int_equal(bed_index_count(&bed), 0);
	shape = 0;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	account();
	return 0;
}

/* ---- parsing ------------------------------------------------------------- */

static void test_shapes(void **state)
{
	static const size_t trailer[] = { 0, 1, 4, 18, 46 };
	struct payload req = ping();
	struct packet_spec s;

	(void)state;
	for (unsigned int i = 0; i < 2 * 3 * 5 * 2; i++) {
		packet_default(&s, i & 1);
		s.tags = i / 2 % 3;
		s.trailer = trailer[i / 6 % 5];
		s.udp_check = i / 30 && !s.v6 ? CHECK_ZERO : CHECK_RIGHT;
		s.frag = i / 30 ? 0x4000 : 0;
		s.hops = (uint8_t)(1 + i);
		s.payload = req.byte;
		s.len = req.len;
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
	}
}

/* A frame that was cut anywhere goes up as it is. */
static void test_truncated(void **state)
{
	struct payload req = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("world"));
	uint8_t frame[PACKET_MAX];
	struct packet_spec s;
	size_t len, payload;

	(void)state;
	for (unsigned int i = 0; i < 6; i++) {
		packet_default(&s, i & 1);
		s.tags = i / 2;
		s.payload = req.byte;
		s.len = req.len;
		len = packet_build(&s, frame);
		payload = packet_payload_at(s.v6, s.tags);
		for (size_t cut = 0; cut < len; cut++) {
			if (cut < 14)
				assert_false(bed_run(&bed, frame, cut, &out));
			else
				passes_frame(frame, cut,
					     cut < payload ? XKV_C_pass_short : XKV_C_pass_length);
		}
		assert_int_equal(store_count(bed.st), 0);
	}
	shape = 0;
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
}

/* The same with lengths that are right for what is left. */
static void test_truncated_payload(void **state)
{
	struct payload req = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("world")), cut;

	(void)state;
	for (size_t len = 0; len < req.len; len++) {
		cut = req;
		cut.len = len;
		if (len < 16)
			goes_up(&cut, XKV_C_pass_not_xkv);
		else
			header_answers(&cut, XKV_BAD_REQUEST, XKV_C_error_request);
	}
	is_gone("hello");
}

static void test_not_ours(void **state)
{
	struct payload req = ping();
	static const uint8_t next[] = { 6, 1, 58, 50, 59, 132, 255 };
	struct packet_spec s;

	(void)state;
	for (unsigned int v6 = 0; v6 < 2; v6++) {
		packet_default(&s, v6);
		s.payload = req.byte;
		s.len = req.len;
		s.ethertype = 0x0806;
		passes(&s, XKV_C_pass_ethertype);
		s.ethertype = 0;
		s.tags = 3;
		passes(&s, XKV_C_pass_vlan_depth);
		s.tags = 2;
		s.dport = XKV_PORT + 1;
		passes(&s, XKV_C_pass_port);
		s.dport = XKV_PORT;
		for (size_t i = 0; i < sizeof(next); i++) {
			s.protocol = next[i];
			passes(&s, XKV_C_pass_not_udp);
		}
	}
}

/* To all, to a group: a reply would have that as its source. */
static void test_groups(void **state)
{
	(void)state;
	passes_frame((uint8_t[PACKET_MAX]){ 0 }, 60, XKV_C_pass_ethertype);
	passes_frame((uint8_t[PACKET_MAX]){ 0xff, 0xff, 0xff, 0xff, 0xff, 0xff }, 60,
		     XKV_C_pass_group);
	passes_frame((uint8_t[PACKET_MAX]){ 0x01, 0, 0x5e, 0, 0, 0x01 }, 60, XKV_C_pass_group);
}

/* Has the second address of either family in bed.rules live on the VLAN of these tags. */
static void live_on(const struct packet_spec *s)
{
	bed.rules->local4[1].link = bed.rules->local6[1].link = packet_link(s, s->tags);
	bed.rules->local4_count = bed.rules->local6_count = 2;
}

/* Tags of all kinds in any order; a type that only looks like one is none. */
static void test_tags(void **state)
{
	static const uint16_t kinds[] = { 0x8100, 0x88a8, 0x9100 };
	struct payload req = ping();
	struct packet_spec s;

	(void)state;
	for (unsigned int i = 0; i < 9; i++) {
		packet_default(&s, i & 1);
		s.tags = 2;
		s.tag_proto[0] = kinds[i % 3];
		s.tag_proto[1] = kinds[i / 3];
		s.payload = req.byte;
		s.len = req.len;
		live_on(&s);
		if (i % 3 == 2 || i / 3 == 2)
			passes(&s, XKV_C_pass_ethertype);
		else
			spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
	}
}

/* Only VLANs that are configured, in that order and with those protocols. */
static void test_other_vlans(void **state)
{
	static const struct {
		unsigned int tags;
		uint16_t proto[2], tci[2];
	} others[] = {
		{ 1, { 0x8100 }, { 123 } },	       { 1, { 0x88a8 }, { 7 } },
		{ 1, { 0x8100 }, { 8 } },	       { 2, { 0x88a8, 0x8100 }, { 7, 9 } },
		{ 2, { 0x8100, 0x8100 }, { 7, 7 } },   { 1, { 0x8100 }, { 4095 } },
		{ 2, { 0x8100, 0x88a8 }, { 0, 7 } },   { 1, { 0x8100 }, { 0xe000 | 6 } },
		{ 2, { 0x8100, 0x8100 }, { 8, 7 } },   { 2, { 0x8100, 0x8100 }, { 7, 0x1fff } },
	};
	struct payload req = ping();
	struct packet_spec s;

	(void)state;
	for (unsigned int i = 0; i < 2 * sizeof(others) / sizeof(others[0]); i++) {
		packet_default(&s, i & 1);
		s.payload = req.byte;
		s.len = req.len;
		s.tags = 1;
		s.tag_proto[0] = 0x8100;
		s.tag_tci[0] = 0xe007; /* number 7, with a priority */
		live_on(&s);
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		s.tags = others[i / 2].tags;
		memcpy(s.tag_proto, others[i / 2].proto, sizeof(others[0].proto));
		memcpy(s.tag_tci, others[i / 2].tci, sizeof(others[0].tci));
		passes(&s, XKV_C_pass_vlan);
	}
}

/* An address belongs to its VLAN: it is not answered beside it, nor another one in it. */
static void test_addresses_of_vlans(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	(void)state;
	for (unsigned int v6 = 0; v6 < 2; v6++) {
		packet_default(&s, v6);
		s.payload = req.byte;
		s.len = req.len;
		s.dst[v6 ? 15 : 3] = 9;
		s.tags = 1;
		live_on(&s);
		memcpy(&bed.rules->local4[1].addr, s.dst, 4);
		memcpy(bed.rules->local6[1].addr, s.dst, 16);
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		s.tags = 0;
		passes(&s, XKV_C_pass_not_local);
		s.dst[v6 ? 15 : 3] = 1;
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		s.tags = 1;
		passes(&s, XKV_C_pass_vlan);
		bed_configure(&bed);
	}
}

/*
 * A tag with number 0 only carries a priority: wherever it stands the frame is where it is without.
 */
static void test_priority_tags(void **state)
{
	static const uint16_t kinds[] = { 0x8100, 0x88a8 };
	struct payload req = ping();
	struct packet_spec s;

	(void)state;
	for (unsigned int i = 0; i < 16; i++) {
		packet_default(&s, i & 1);
		s.payload = req.byte;
		s.len = req.len;
		s.tags = 1 + (i >> 1 & 1);
		s.tag_proto[0] = kinds[i >> 2 & 1];
		s.tag_tci[0] = s.tag_tci[1] = 0xa000;
		if (s.tags == 2 && i >> 3)
			s.tag_tci[1] = 0xa007;
		live_on(&s);
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
	}
}

/*
 * A bridge or a promiscuous NIC shows us frames to others: they are not ours, whatever their IP
 * address.
 */
static void test_other_macs(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	(void)state;
	for (unsigned int i = 0; i < 12; i++) {
		packet_default(&s, i & 1);
		s.payload = req.byte;
		s.len = req.len;
		s.dst_mac[i / 2] ^= 0x40;
		passes(&s, XKV_C_pass_mac);
		s.tags = i % 3;
		passes(&s, XKV_C_pass_mac);
		/*
		 * The address moves to that one (ip link set address), of all links or only of a
		 * VLAN.
		 */
		for (unsigned int l = s.tags; l <= 2; l++) {
			memcpy(bed.rules->local4[l].mac, s.dst_mac, 6);
			memcpy(bed.rules->local6[l].mac, s.dst_mac, 6);
		}
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		bed_configure(&bed);
	}
}

static void test_impossible_macs(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	(void)state;
	for (unsigned int v6 = 0; v6 < 2; v6++) {
		packet_default(&s, v6);
		s.payload = req.byte;
		s.len = req.len;
		s.src_mac[0] |= 1; /* a group */
		drops(&s, XKV_C_drop_source);
		memset(s.src_mac, 0xff, 6);
		drops(&s, XKV_C_drop_source);
		memset(s.src_mac, 0, 6);
		drops(&s, XKV_C_drop_source);
		memcpy(s.src_mac, s.dst_mac, 6); /* ourselves */
		drops(&s, XKV_C_drop_source);
		/* Loopback has no addresses: all are zero. */
		memset(bed.rules->local4[0].mac, 0, 6);
		memset(bed.rules->local6[0].mac, 0, 6);
		memset(s.dst_mac, 0, 6);
		memset(s.src_mac, 0, 6);
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		s.src_mac[0] = 1;
		drops(&s, XKV_C_drop_source);
		bed_configure(&bed);
	}
}

static void test_ip4_header(void **state)
{
	static const uint16_t fragments[] = { 0x2000, 0x0001, 0x1fff, 0x6000, 0x4001, 0x3fff };
	struct payload req = ping();
	struct packet_spec s;

	(void)state;
	packet_default(&s, false);
	s.payload = req.byte;
	s.len = req.len;
	s.bad_ip_check = true;
	passes(&s, XKV_C_pass_ip_header);
	s.bad_ip_check = false;
	for (s.version = 1; s.version < 16; s.version++)
		if (s.version != 4)
			passes(&s, XKV_C_pass_ip_header);
	s.version = 0;
	for (s.ihl = 0; s.ihl < 5; s.ihl++)
		passes(&s, XKV_C_pass_ip_header);
	for (s.ihl = 6; s.ihl < 16; s.ihl++)
		passes(&s, XKV_C_pass_ip_options);
	s.ihl = 5;
	s.ip_len_add = -(int)(8 + req.len + 1); /* less than its own header */
	passes(&s, XKV_C_pass_ip_header);
	s.ip_len_add = 0;
	for (size_t i = 0; i < 6; i++) {
		s.frag = fragments[i];
		passes(&s, XKV_C_pass_ip_fragment);
	}
}

static void test_ip6_header(void **state)
{
	static const uint8_t extensions[] = { 0, 43, 44, 60, 51 };
	struct payload req = ping();
	struct packet_spec s;
	uint8_t frame[PACKET_MAX];
	size_t len;

	(void)state;
	packet_default(&s, true);
	s.payload = req.byte;
	s.len = req.len;
	for (s.version = 1; s.version < 16; s.version++)
		if (s.version != 6)
			passes(&s, XKV_C_pass_ip_header);
	s.version = 0;
	for (size_t i = 0; i < sizeof(extensions); i++) {
		s.extension = 60;
		len = packet_build(&s, frame);
		frame[14 + 6] = extensions[i]; /* 0 cannot be said in the spec */
		passes_frame(frame, len, XKV_C_pass_ip6_extension);
	}
}

/* A frame of ours that goes up for another reason, before its sender would be looked at. */
static struct packet_spec unseen_frame(bool v6, unsigned int i)
{
	struct packet_spec s;

	packet_default(&s, v6);
	switch (i) {
	case 0:
		s.dst_mac[0] = 0x33; /* a group's */
		break;
	case 1:
		if (v6)
			s.extension = 60;
		else
			s.ihl = 6;
		break;
	case 2:
		if (v6)
			s.extension = 44;
		else
			s.frag = 0x2000;
		break;
	}
	return s;
}

/* Nobody can have our own address, nor that of loopback, in whatever packet. */
static void test_impossible_unseen(void **state)
{
	static const enum xkv_counter why[2][3] = {
		{ XKV_C_pass_group, XKV_C_pass_ip_options, XKV_C_pass_ip_fragment },
		{ XKV_C_pass_group, XKV_C_pass_ip6_extension, XKV_C_pass_ip6_extension },
	};
	static const uint8_t loopback[2][16] = { { 127, 0, 0, 1 }, { [15] = 1 } };
	struct payload req = ping();
	struct packet_spec s;

	(void)state;
	for (unsigned int i = 0; i < 18; i++) {
		bool v6 = i & 1;

		s = unseen_frame(v6, i / 2 % 3);
		s.payload = req.byte;
		s.len = req.len;
		s.tags = i / 6;
		passes(&s, why[v6][i / 2 % 3]);
		memcpy(s.src, s.dst, sizeof(s.src));
		drops(&s, XKV_C_drop_source);
		s.dst[2] ^= 1; /* to somebody else: none of our business */
		passes(&s, why[v6][i / 2 % 3]);
		s.dst[2] ^= 1;
		memcpy(s.src, loopback[v6], sizeof(s.src));
		drops(&s, XKV_C_drop_source);
	}
}

static void test_lengths(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	(void)state;
	request_pad(&req, 8, 0);
	for (unsigned int i = 0; i < 4; i++) {
		packet_default(&s, i & 1);
		s.trailer = i / 2 * 40;
		s.payload = req.byte;
		s.len = req.len;
		s.udp_len_add = 1; /* more than IP has */
		passes(&s, XKV_C_pass_length);
		s.udp_len_add = 0;
		s.ip_len_add = -1;
		passes(&s, XKV_C_pass_length);
		s.ip_len_add = -(int)req.len;
		passes(&s, XKV_C_pass_length);
		s.ip_len_add = 0;
		for (int len = 0; len < 8; len++) { /* less than UDP's header */
			s.udp_len_add = len - (int)(8 + req.len);
			passes(&s, XKV_C_pass_length);
		}
		s.udp_len_add = -8; /* IP has more than UDP: the reply has not */
		spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		s.udp_len_add = s.ip_len_add = 200; /* both say more than there is */
		s.udp_check = CHECK_WRONG;
		passes(&s, XKV_C_pass_length);
	}
}

/* Padding up to what the program can hold; datagrams beyond that go up. */
static void test_jumbo(void **state)
{
	static const size_t lens[] = { 1472, 1473, 1500, 1527, 1528 };
	struct payload req = ping();
	struct packet_spec s;

	(void)state;
	request_pad(&req, 2000 - req.len, 0xa5);
	for (unsigned int v6 = 0; v6 < 2; v6++) {
		packet_default(&s, v6);
		s.tags = 2;
		s.payload = req.byte;
		for (size_t i = 0; i < 5; i++) {
			s.len = lens[i];
			spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
		}
		for (s.len = 1529; s.len < 2000; s.len += 47)
			passes(&s, XKV_C_pass_length);
	}
}

static void test_checksums(void **state)
{
	struct payload req = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("world!!"));
	uint8_t frame[PACKET_MAX];
	struct packet_spec s;
	size_t len, at;

	(void)state;
	for (unsigned int i = 0; i < 6; i++) {
		packet_default(&s, i & 1);
		s.tags = i / 2;
		s.payload = req.byte;
		s.len = req.len;
		s.udp_check = CHECK_WRONG;
		passes(&s, XKV_C_pass_checksum);
		s.udp_check = CHECK_RIGHT;
		len = packet_build(&s, frame);
		at = packet_payload_at(s.v6, s.tags);
		for (size_t bit = at * 8; bit < len * 8; bit++) { /* each bit of the payload */
			frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
			passes_frame(frame, len, XKV_C_pass_checksum);
			frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
		}
		at = len - req.len - 8 -
		     (s.v6 ? 16 : 4); /* an address, IPv4's header made right again */
		frame[at + 3] ^= 0x55;
		if (!s.v6) {
			uint16_t udp = (uint16_t)get_be(frame + len - req.len - 2, 2);

			packet_fix(frame, len);
			put_be(frame + len - req.len - 2, 2, udp);
		}
		passes_frame(frame, len, s.tags ? XKV_C_pass_vlan : XKV_C_pass_not_local);
	}
	packet_default(&s, true); /* IPv6 has to have one */
	s.payload = req.byte;
	s.len = req.len;
	s.udp_check = CHECK_ZERO;
	passes(&s, XKV_C_pass_checksum);
	is_gone("hello");
}

/* A sum that comes out as 0 is sent as ffff (RFC 768): some request id makes it so. */
static void test_checksum_zero(void **state)
{
	uint8_t frame[PACKET_MAX];
	struct payload req, reply;
	struct packet_spec s, a;
	bool met;

	(void)state;
	for (unsigned int v6 = 0; v6 < 2; v6++) {
		met = false;
		for (uint64_t id = 0; id < 0x10000 && !met; id++) {
			request_begin(&req, id, NULL);
			request_add(&req, OP(XKV_OP_PING, 0));
			packet_default(&s, v6);
			s.payload = req.byte;
			s.len = req.len;
			reply_begin(&reply, id, 0);
			reply_add(&reply, &(struct result)PONG);
			a = packet_answer(&s, reply.byte, reply.len);
			packet_build(&a, frame);
			if (get_be(frame + packet_payload_at(v6, 0) - 2, 2) != 0xffff)
				continue;
			spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
			met = true;
		}
		assert_true(met);
	}
}

/* ---- admission ----------------------------------------------------------- */

static void test_not_local(void **state)
{
	struct payload req = ping();
	struct packet_spec s;

	(void)state;
	for (unsigned int v6 = 0; v6 < 2; v6++) {
		packet_default(&s, v6);
		s.payload = req.byte;
		s.len = req.len;
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

	(void)state;
	for (unsigned int v6 = 0; v6 < 2; v6++) {
		packet_default(&s, v6);
		s.payload = req.byte;
		s.len = req.len;
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

	(void)state;
	for (unsigned int v6 = 0; v6 < 2; v6++) {
		packet_default(&s, v6);
		s.payload = req.byte;
		s.len = req.len;
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

	(void)state;
	memset(bed.rules->allow4, 0, sizeof(bed.rules->allow4)); /* everybody */
	memset(bed.rules->allow6, 0, sizeof(bed.rules->allow6));
	packet_default(&s, false);
	s.payload = req.byte;
	s.len = req.len;
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
	packet_default(&s, true);
	s.payload = req.byte;
	s.len = req.len;
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

	(void)state;
	packet_default(&s, false);
	s.payload = req.byte;
	s.len = req.len;
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
 * Sets of rules follow each other as fast as net_switch_rules() lets them.  There are three of
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
		w->failed |= net_switch_rules(bed.c, bed.secrets, &w->rules[w->turns % 3],
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
	assert_int_equal(bpf_prog_test_run_opts(bed.prog, &opts), 0);
}

/*
 * While rules change a packet meets the old or the new ones, and never a mixture that lets in whom
 * neither does.
 */
static void test_rules_that_change(void **state)
{
	uint64_t before[XKV_COUNTER_COUNT], after[XKV_COUNTER_COUNT];
	struct packet_spec known, foreign;
	struct payload req = ping();
	struct switcher w = {};
	double end = seconds_now() + SWITCH_SECONDS;
	pthread_t thread;

	(void)state;
	three_sets(&w);
	packet_default(&known, false);
	known.payload = req.byte;
	known.len = req.len;
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
	/* Those who sent no token were told so, and nobody else was answered. */
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

	(void)state;
	assert_int_equal(bed.c->layout, XKV_LAYOUT_VERSION);
	for (unsigned int i = 0; i + 1 < XKV_HASH_WORDS; i++) /* two words of zeros: 2^-128 */
		assert_true(s->word[i].low | s->word[i].high | s->word[i + 1].low |
			    s->word[i + 1].high);
	assert_true((s->mix[0] & s->mix[1] & 1) && s->mix[0] > 1 && s->mix[1] > 1);
	/* nor does it, or the token, stand where people look */
	for (unsigned int i = 0; i < sizeof(*bed.secrets) / 8; i++)
		assert_true(!((uint64_t *)bed.secrets)[i] ||
			    !memmem(bed.c, sizeof(*bed.c), (uint64_t *)bed.secrets + i, 8));
}

static int count_key(void *arg, const void *key, size_t len, const struct store_entry *e)
{
	(void)e;
	assert_int_equal(len, 9);
	assert_memory_equal((const char *)key + 1, "key high", 8);
	++*(unsigned int *)arg;
	return 0;
}

/* Keys that have the same hash, all of it: everybody still tells them from each other. */
static void test_same_hash(void **state)
{
	struct xkv_secret secret = bed.secrets->hash;
	char key[] = "-key high", other[] = "akey high";
	unsigned int keys = 0;
	struct payload req;
	uint64_t cursor = 0;

	(void)state;
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
		assert_int_equal(
			store_scan(bed.ctx, &cursor, 1000, true, count_key, &keys), 0);
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

	(void)state;
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

static void test_not_ready(void **state)
{
	struct payload req = ping();

	(void)state;
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

	(void)state;
	bed.rules->port = htons(7777);
	goes_up(&req, XKV_C_pass_port);
	packet_default(&s, true);
	s.dport = 7777;
	s.payload = req.byte;
	s.len = req.len;
	spec_answers(&s, 0, RESULTS(PONG), COUNTS(XKV_C_pings));
}

/* ---- headers ------------------------------------------------------------- */

static void test_header(void **state)
{
	struct payload good = ping(), req;

	(void)state;
	for (unsigned int bit = 0; bit < 16; bit++) { /* another magic is not ours */
		req = good;
		req.byte[bit / 8] ^= (uint8_t)(1 << bit % 8);
		goes_up(&req, XKV_C_pass_not_xkv);
	}
	for (unsigned int v = 0; v < 256; v++) {
		req = good;
		req.byte[2] = (uint8_t)v;
		if (v != XKV_VERSION)
			header_answers(&req, XKV_BAD_VERSION, XKV_C_error_version);
	}
	for (unsigned int status = 1; status < 256; status++) {
		req = good;
		req.byte[5] = (uint8_t)status;
		header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
	}
	req = good;
	req.byte[4] = 0;
	header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
	req.byte[4] = 255; /* promises more than is there */
	answers(&req, RESULTS(PONG), COUNTS(XKV_C_pings));
}

static void test_header_flags(void **state)
{
	struct payload good = ping(), req;
	struct packet_spec s;

	(void)state;
	request_pad(&good, 16, 0);
	for (unsigned int flags = 1; flags < 256; flags++) {
		req = good;
		req.byte[3] = (uint8_t)flags;
		if (flags & XKV_F_REPLY) {
			s = next_shape(&req);
			drops(&s, XKV_C_drop_reply_flag);
		} else { /* a token there is, but no room for it in header.length */
			header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
		}
	}
}

/* header.length against what is there: shorter, longer, odd. */
static void test_header_length(void **state)
{
	struct payload good = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("world")), req;

	(void)state;
	request_pad(&good, 16, 0);
	for (unsigned int len = 0; len < 200; len++) {
		req = good;
		put_be(req.byte + 6, 2, len);
		if (len < 40 || len > good.len || len % 8)
			header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
		else if (len < 56)
			answers(&req, RESULTS({ XKV_OP_SET, XKV_BAD_REQUEST }),
				COUNTS(XKV_C_op_bad_request));
		else
			answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
				COUNTS(len == 56 ? XKV_C_inserts : XKV_C_overwrites));
	}
	put_be(req.byte + 6, 2, 0xfff8);
	header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
}

static void test_token(void **state)
{
	uint8_t token[XKV_TOKEN_BYTES] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
	struct payload with, without = ping(), req;

	(void)state;
	request_begin(&with, ID, token);
	request_add(&with, OP(XKV_OP_PING, 0));
	answers(&with, RESULTS(PONG), COUNTS(XKV_C_pings)); /* open: ignored */

	memcpy(bed_token(&bed), token, sizeof(token));
	bed.rules->auth = XKV_AUTH_TOKEN;
	answers(&with, RESULTS(PONG), COUNTS(XKV_C_pings));
	header_answers(&without, XKV_NOAUTH, XKV_C_error_auth);
	for (unsigned int bit = 0; bit < 128; bit++) {
		req = with;
		req.byte[16 + bit / 8] ^= (uint8_t)(1 << bit % 8);
		header_answers(&req, XKV_NOAUTH, XKV_C_error_auth);
	}
	req = with;
	put_be(req.byte + 6, 2, 48); /* cut short: no room for token and operation */
	header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);

	bed.rules->auth = XKV_AUTH_CLOSED;
	header_answers(&with, XKV_NOAUTH, XKV_C_error_auth);
	header_answers(&without, XKV_NOAUTH, XKV_C_error_auth);
	req = with;
	req.byte[2] = 9; /* the version comes first */
	header_answers(&req, XKV_BAD_VERSION, XKV_C_error_version);
}

/* ---- malformed operations ------------------------------------------------ */

static void refuses(const struct payload *req, uint8_t status)
{
	int counter = status == XKV_BAD_KEY	 ? XKV_C_op_bad_key
		      : status == XKV_BAD_OPCODE ? XKV_C_op_bad_opcode
						 : XKV_C_op_bad_request;

	answers(req, RESULTS({ req->byte[16], status }), COUNTS(counter));
}

static void test_opcodes(void **state)
{
	struct payload req;

	(void)state;
	for (unsigned int code = 0; code < 256; code++) {
		req = REQUEST((uint8_t)code, KEY("key"));
		if (!code || code > XKV_OP_SESSION)
			refuses(&req, XKV_BAD_OPCODE);
	}
}

/* An operation with nothing wrong about it. */
static struct payload plain_operation(uint8_t code)
{
	struct payload req = REQUEST(code, .key = "key7", .key_len = code == XKV_OP_PING ? 0 : 4,
				     .value = "12345678", .value_len = code == XKV_OP_INCR ? 8 : 0);

	if (code == XKV_OP_SCAN)
		req.byte[16 + 3] = 2;
	return req;
}

/* Every opcode with every byte of flags: taken or refused as the protocol says. */
static void test_flags(void **state)
{
	static const uint8_t known[] = {
		[XKV_OP_SET] = 0x3f,
		[XKV_OP_DELETE] = XKV_CAS | XKV_RETURN,
		[XKV_OP_EXPIRE] = XKV_CAS | XKV_ABSTTL,
		[XKV_OP_INCR] = XKV_XX | XKV_CAS,
		[XKV_OP_APPEND] = XKV_XX | XKV_CAS,
		[XKV_OP_SCAN] = 0,
	};
	struct payload req;
	bool bad;

	(void)state;
	for (unsigned int code = XKV_OP_PING; code <= XKV_OP_SCAN; code++) {
		for (unsigned int flags = 0; flags < 256; flags++) {
			bad = flags & ~(unsigned int)known[code];
			if ((flags & XKV_NX) && (flags & (XKV_XX | XKV_CAS)))
				bad = true;
			if (!bad)
				continue;
			req = plain_operation((uint8_t)code);
			req.byte[16 + 1] = (uint8_t)flags;
			refuses(&req, XKV_BAD_REQUEST);
		}
	}
	assert_int_equal(store_count(bed.st), 0);
}

/* A field of the operation set to something that it must not be. */
static void refuses_field(uint8_t code, unsigned int at, unsigned int bytes, uint64_t value)
{
	struct payload req = plain_operation(code);

	put_be(req.byte + 16 + at, bytes, value);
	refuses(&req, XKV_BAD_REQUEST);
}

static void test_bad_fields(void **state)
{
	struct payload req;

	(void)state;
	for (uint8_t code = XKV_OP_PING; code <= XKV_OP_SCAN; code++) {
		if (code == XKV_OP_SCAN) {
			refuses_field(code, 3, 1, 0);
			refuses_field(code, 3, 1, XKV_SCAN_MAX + 1);
			refuses_field(code, 3, 1, 255);
		} else {
			refuses_field(code, 3, 1, 1);
		}
		refuses_field(code, 16, 8, 2); /* a version, but no CAS */
		if (code == XKV_OP_INCR) {
			refuses_field(code, 4, 4, 0);
			refuses_field(code, 4, 4, 7);
			refuses_field(code, 4, 4, 9);
		} else if (code != XKV_OP_SET && code != XKV_OP_APPEND) {
			refuses_field(code, 4, 4, 1);
		}
		if (code == XKV_OP_SET || code == XKV_OP_EXPIRE) {
			refuses_field(code, 8, 8, XKV_TTL_MAX + 1);
			refuses_field(code, 8, 8, UINT64_MAX);
		} else {
			refuses_field(code, 8, 8, 1);
		}
	}
	req = REQUEST(XKV_OP_SCAN, KEY("nodigit")); /* of one key it needs none, of two it does */
	req.byte[16 + 3] = 2;
	refuses(&req, XKV_BAD_REQUEST);
	req = REQUEST(XKV_OP_SET, XKV_KEEPTTL, KEY("key"), .ttl = 1);
	refuses(&req, XKV_BAD_REQUEST);
	req = REQUEST(XKV_OP_PING, 0, KEY("key"));
	refuses(&req, XKV_BAD_REQUEST);
	assert_int_equal(store_count(bed.st), 0);
}

static void test_bad_keys(void **state)
{
	static const size_t lens[] = { 0, 251, 252, 253, 254, 255 };
	struct payload req;

	(void)state;
	for (uint8_t code = XKV_OP_GET; code <= XKV_OP_SCAN; code++) {
		for (size_t i = 0; i < 6; i++) {
			req = REQUEST(code, .key = pattern(), .key_len = lens[i]);
			refuses(&req, XKV_BAD_KEY);
		}
		req = REQUEST(code, KEY("0123456789")); /* one that header.length cuts off */
		put_be(req.byte + 6, 2, req.len - 8);
		refuses(&req, XKV_BAD_REQUEST);
	}
}

/* Any byte behind key or value that is not zero. */
static void test_dirty_padding(void **state)
{
	struct payload good, req;

	(void)state;
	for (size_t len = 1; len <= 24; len++) {
		good = REQUEST(XKV_OP_SET, .key = pattern(), .key_len = len, .value = pattern(),
			       .value_len = len);
		for (size_t i = len; i < XKV_PADDED(len); i++) {
			req = good;
			req.byte[40 + i] = 1;
			refuses(&req, XKV_BAD_REQUEST);
			req = good;
			req.byte[40 + XKV_PADDED(len) + i] = 0x80;
			refuses(&req, XKV_BAD_REQUEST);
		}
		answers(&good, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	}
}

static void test_bad_value_len(void **state)
{
	static const uint32_t lens[] = { 9,	     16,	 1472,	     1473,
					 1480,	     0xffff,	 0x10000000, 0x7fffffff,
					 0x80000000, 0xfffffff8, 0xffffffff };
	struct payload req;

	(void)state;
	for (size_t i = 0; i < sizeof(lens) / 4; i++) {
		req = REQUEST(XKV_OP_SET, KEY("hello"), VALUE("world"));
		put_be(req.byte + 16 + 4, 4, lens[i]);
		refuses(&req, XKV_BAD_REQUEST);
	}
	is_gone("hello");
}

/* ---- GET and SET --------------------------------------------------------- */

/* Every length of value that fits, in through one front end and out through both. */
static void test_value_lengths(void **state)
{
	size_t room = XKV_PAYLOAD_MAX4 - 16 - 24 - 8, last = 0;
	struct payload req;
	bool moved;

	(void)state;
	for (size_t len = 0; len <= room; len++) {
		req = REQUEST(XKV_OP_SET, KEY("k"), .value = pattern() + len % 7, .value_len = len);
		moved = class_of(len) != class_of(last);
		answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
			COUNTS(!len    ? XKV_C_inserts
			       : moved ? XKV_C_moves
				       : XKV_C_overwrites));
		last = len;
		holds("k", pattern() + len % 7, len);
		shape &= ~1U; /* IPv4: the larger of the two */
		req = REQUEST(XKV_OP_GET, KEY("k"));
		answers(&req,
			RESULTS({ XKV_OP_GET, 0, pattern() + len % 7, len, .version = version }),
			COUNTS(XKV_C_get_hits));
	}
	account();
	for (size_t len = room; len > 0; len = len * 3 / 4) { /* and back */
		req = REQUEST(XKV_OP_SET, KEY("k"), .value = pattern(), .value_len = len);
		moved = class_of(len) != class_of(last);
		answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
			COUNTS(moved ? XKV_C_moves : XKV_C_overwrites));
		last = len;
		holds("k", pattern(), len);
	}
}

/* Keys of every length, with every byte, each the beginning of the next. */
static void test_key_lengths(void **state)
{
	static const uint8_t zero[256];
	struct payload req;
	char value[16];

	(void)state;
	for (size_t len = 1; len <= XKV_KEY_MAX; len++) {
		snprintf(value, sizeof(value), "%zu", len);
		req = REQUEST(XKV_OP_SET, .key = pattern(), .key_len = len, VALUE(value));
		answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
		req = REQUEST(XKV_OP_SET, .key = zero, .key_len = len, VALUE(value));
		answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	}
	for (size_t len = 1; len <= XKV_KEY_MAX; len++) {
		snprintf(value, sizeof(value), "%zu", len);
		req = REQUEST(XKV_OP_GET, .key = pattern(), .key_len = len);
		answers(&req, RESULTS({ XKV_OP_GET, 0, value, strlen(value), .version = ANY }),
			COUNTS(XKV_C_get_hits));
		req = REQUEST(XKV_OP_GET, .key = zero, .key_len = len);
		answers(&req, RESULTS({ XKV_OP_GET, 0, value, strlen(value), .version = ANY }),
			COUNTS(XKV_C_get_hits));
	}
	assert_int_equal(store_count(bed.st), 2 * XKV_KEY_MAX);
}

/* A reply just fits, and with one byte more it does not. */
static void test_reply_limit(void **state)
{
	struct payload req = REQUEST(XKV_OP_GET, KEY("k"));
	struct packet_spec s;

	(void)state;
	for (unsigned int v6 = 0; v6 < 2; v6++) {
		size_t most = v6 ? 1408 : 1432;

		packet_default(&s, v6);
		s.payload = req.byte;
		s.len = req.len;
		put("k", pattern(), most, 0);
		spec_answers(&s, 0, RESULTS({ XKV_OP_GET, 0, pattern(), most, .version = ANY }),
			     COUNTS(XKV_C_get_hits));
		put("k", pattern(), most + 1, 0);
		passes(&s, XKV_C_pass_too_large);
	}
	for (size_t len = 1433; len < XKV_VALUE_MAX; len *= 3) {
		static uint8_t large[XKV_VALUE_MAX];

		put("k", large, len, 0);
		goes_up(&req, XKV_C_pass_too_large);
		xkvd_answers(&req, XKV_PAYLOAD_MAX4,
			     RESULTS({ XKV_OP_GET, XKV_TOO_LARGE, NULL, len, .version = ANY }),
			     COUNTS(XKV_C_op_too_large));
	}
}

/* The other front end knows no such limit: every length around it comes back whole. */
static void test_around_the_limit(void **state)
{
	struct payload req = REQUEST(XKV_OP_GET, KEY("k"));
	struct store_entry old;

	(void)state;
	for (size_t len = 1100; len < 2100; len++) {
		put("k", pattern(), len, 0);
		holds("k", pattern(), len);
		assert_int_equal(store_set(bed.ctx, "k", 1, "x", 1, 0, 0, 0, &old), 0);
		assert_int_equal(old.value_len, len);
		assert_memory_equal(old.value, pattern(), len);
		put("k", pattern(), len, 0);
		if (len > 1432)
			goes_up(&req, XKV_C_pass_too_large);
		assert_int_equal(store_delete(bed.ctx, "k", 1, &old), 0);
		assert_int_equal(old.value_len, len);
		assert_memory_equal(old.value, pattern(), len);
	}
}

static void test_misses(void **state)
{
	struct payload req = REQUEST(XKV_OP_GET, KEY("nobody"));

	(void)state;
	goes_up(&req, XKV_C_pass_miss);
	xkvd_answers(&req, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_GET, XKV_MISS }),
		     COUNTS(XKV_C_get_misses));
	bed.c->miss_reply = 1;
	answers(&req, RESULTS({ XKV_OP_GET, XKV_MISS }), COUNTS(XKV_C_get_misses));
	answers(&req, RESULTS({ XKV_OP_GET, XKV_MISS }), COUNTS(XKV_C_get_misses));
}

static void test_conditions(void **state)
{
	struct payload req;
	uint64_t v;

	(void)state;
	req = REQUEST(XKV_OP_SET, XKV_XX, KEY("a"), VALUE("1"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED }), COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_CAS, KEY("a"), VALUE("1"), .version = 2);
	answers(&req, RESULTS({ XKV_OP_SET, XKV_MISS }), COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_NX, KEY("a"), VALUE("1"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	v = version;
	req = REQUEST(XKV_OP_SET, XKV_NX, KEY("a"), VALUE("2"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED, .version = v }),
		COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_CAS, KEY("a"), VALUE("2"), .version = v + 2);
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED, .version = v }),
		COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_CAS, KEY("a"), VALUE("2")); /* version 0 is no wildcard */
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED, .version = v }),
		COUNTS(XKV_C_not_stored));
	holds_text("a", "1");
	req = REQUEST(XKV_OP_SET, XKV_CAS | XKV_XX, KEY("a"), VALUE("3"), .version = v);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	assert_int_not_equal(v, version);
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED, .version = version }),
		COUNTS(XKV_C_not_stored));
	holds_text("a", "3");
	req = REQUEST(XKV_OP_SET, XKV_XX, KEY("a"), VALUE("4"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	holds_text("a", "4");
}

static void test_delete(void **state)
{
	struct payload req = REQUEST(XKV_OP_DELETE, KEY("a"));
	uint64_t v;

	(void)state;
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	put_text("a", "1");
	answers(&req, RESULTS({ XKV_OP_DELETE }), COUNTS(XKV_C_deletes));
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	put_text("a", "1");
	v = version_of("a");
	req = REQUEST(XKV_OP_DELETE, XKV_CAS, KEY("a"), .version = v + 2);
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_NOT_STORED, .version = v }),
		COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_DELETE, XKV_CAS | XKV_RETURN, KEY("a"), .version = v + 2);
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_NOT_STORED, .version = v }),
		COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_DELETE, XKV_CAS | XKV_RETURN, KEY("a"), .version = v);
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, "1", 1 }), COUNTS(XKV_C_deletes));
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	put("a", "", 0, 0);
	req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("a"));
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, "", 0 }), COUNTS(XKV_C_deletes));
	assert_int_equal(store_count(bed.st), 0);
	assert_int_equal(bed_index_count(&bed), 0);
}

/* RETURN gives the old value of any length; one that does not fit leaves all as it was. */
static void test_return(void **state)
{
	size_t lens[] = { 0, 1, 7, 8, 9, 100, 1407, 1408 };
	struct payload req;

	(void)state;
	for (size_t i = 0; i < 8; i++) {
		put("a", pattern(), lens[i], 0);
		req = REQUEST(XKV_OP_SET, XKV_NX | XKV_RETURN, KEY("a"), VALUE("new"));
		answers(&req,
			RESULTS({ XKV_OP_SET, XKV_NOT_STORED, pattern(), lens[i], .version = ANY }),
			COUNTS(XKV_C_not_stored));
		req = REQUEST(XKV_OP_SET, XKV_RETURN, KEY("a"), VALUE("new"));
		answers(&req, RESULTS({ XKV_OP_SET, 0, pattern(), lens[i], .version = ANY }),
			COUNTS(class_of(3) == class_of(lens[i]) ? XKV_C_overwrites : XKV_C_moves));
		holds_text("a", "new");
		put("a", pattern(), lens[i], 0);
		req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("a"));
		answers(&req, RESULTS({ XKV_OP_DELETE, 0, pattern(), lens[i] }),
			COUNTS(XKV_C_deletes));
	}
	put("a", pattern(), 1433, 0);
	version = version_of("a");
	req = REQUEST(XKV_OP_SET, XKV_RETURN, KEY("a"), VALUE("new"));
	goes_up(&req, XKV_C_pass_too_large);
	xkvd_answers(&req, XKV_PAYLOAD_MAX4,
		     RESULTS({ XKV_OP_SET, XKV_TOO_LARGE, NULL, 1433, .version = version }),
		     COUNTS(XKV_C_op_too_large));
	req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("a"));
	goes_up(&req, XKV_C_pass_too_large);
	holds("a", pattern(), 1433);
	assert_int_equal(version_of("a"), version);
}

/* ---- time ---------------------------------------------------------------- */

static void test_ttl(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, KEY("a"), VALUE("1"), .ttl = 500), req;
	uint64_t begin = store_now_ms(bed.st);

	(void)state;
	answers(&set, RESULTS({ XKV_OP_SET, 0, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_inserts, XKV_C_ttls_given));
	assert_in_range(RESULT_TTL(out.frame + packet_payload_at(false, 0), 16), 1, 500);
	req = REQUEST(XKV_OP_GET, KEY("a"));
	for (uint64_t left = 501, now; store_now_ms(bed.st) < begin + 20; left = now) {
		shape = 0;
		answers(&req, RESULTS({ XKV_OP_GET, 0, "1", 1, .ttl = ANY, .version = ANY }),
			COUNTS(XKV_C_get_hits));
		now = RESULT_TTL(out.frame + packet_payload_at(false, 0), 16);
		assert_true(now <= left);
	}
	wait_until(store_now_ms(bed.st) + 500);
	goes_up(&req, XKV_C_pass_miss);
	is_gone("a");
	req = REQUEST(XKV_OP_DELETE, KEY("a"));
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("a"));
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	req = REQUEST(XKV_OP_EXPIRE, KEY("a"), .ttl = 1000);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, XKV_MISS }), COUNTS(XKV_C_op_misses));
}

/* An entry that has expired is none: for NX, XX, CAS, KEEPTTL and RETURN. */
static void test_expired_conditions(void **state)
{
	struct payload req;
	uint64_t v;

	(void)state;
	put("a", "1", 1, 1000);
	v = bed_slot(&bed, "a", 1)->seq;
	req = REQUEST(XKV_OP_SET, XKV_XX | XKV_RETURN, KEY("a"), VALUE("2"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED }), COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_CAS, KEY("a"), VALUE("2"), .version = v);
	answers(&req, RESULTS({ XKV_OP_SET, XKV_MISS }), COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_NX | XKV_KEEPTTL | XKV_RETURN, KEY("a"), VALUE("2"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	holds_text("a", "2");
	assert_int_equal(store_count(bed.st), 1);
}

static void test_expire(void **state)
{
	struct payload req, get = REQUEST(XKV_OP_GET, KEY("a"));
	uint64_t v;

	(void)state;
	req = REQUEST(XKV_OP_EXPIRE, KEY("a"), .ttl = 1000);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	put_text("a", "1");
	v = version_of("a");
	req = REQUEST(XKV_OP_EXPIRE, KEY("a"), .ttl = 100000);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .ttl = 100000, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	assert_int_not_equal(v, version);
	answers(&get, RESULTS({ XKV_OP_GET, 0, "1", 1, .ttl = ANY, .version = version }),
		COUNTS(XKV_C_get_hits));
	req = REQUEST(XKV_OP_SET, XKV_KEEPTTL, KEY("a"), VALUE("22"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_overwrites, XKV_C_ttls_given));
	req = REQUEST(XKV_OP_SET, XKV_KEEPTTL, KEY("a"), .value = pattern(), .value_len = 700);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_moves, XKV_C_ttls_given));
	req = REQUEST(XKV_OP_EXPIRE, KEY("a")); /* keep for ever */
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .version = ANY }), COUNTS(XKV_C_expiry_changes));
	answers(&get, RESULTS({ XKV_OP_GET, 0, pattern(), 700, .version = version }),
		COUNTS(XKV_C_get_hits));
	req = REQUEST(XKV_OP_EXPIRE, XKV_ABSTTL, KEY("a"), .ttl = store_now_ms(bed.st) - 1000);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	goes_up(&get, XKV_C_pass_miss);
	assert_int_equal(store_count(bed.st), 1);
}

/* With CAS it is for one version; another one is named, and stays as it is. */
static void test_expire_cas(void **state)
{
	uint64_t at = store_now_ms(bed.st) + 100000, v;
	struct payload req;

	(void)state;
	req = REQUEST(XKV_OP_EXPIRE, XKV_CAS, KEY("a"), .ttl = 1000, .version = 2);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	put("a", "1", 1, at);
	v = version_of("a");
	req = REQUEST(XKV_OP_EXPIRE, XKV_CAS, KEY("a"), .version = v + 2);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, XKV_NOT_STORED, .ttl = ANY, .version = v }),
		COUNTS(XKV_C_not_stored));
	assert_int_equal(bed_slot(&bed, "a", 1)->expire_ms, at);
	req = REQUEST(XKV_OP_EXPIRE, XKV_CAS, KEY("a"), .version = v);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .version = ANY }), COUNTS(XKV_C_expiry_changes));
	assert_true(version_of("a") != v && !bed_slot(&bed, "a", 1)->expire_ms);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, XKV_NOT_STORED, .version = version }),
		COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_EXPIRE, XKV_CAS | XKV_ABSTTL, KEY("a"), .ttl = at,
		      .version = version_of("a"));
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	assert_int_equal(bed_slot(&bed, "a", 1)->expire_ms, at);
	holds_text("a", "1");
	put("a", "1", 1, 1000); /* expired: there is no version of it */
	v = bed_slot(&bed, "a", 1)->seq;
	req = REQUEST(XKV_OP_EXPIRE, XKV_CAS, KEY("a"), .version = v);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, XKV_MISS }), COUNTS(XKV_C_op_misses));
}

/* The longest times, which must not wrap into the past. */
static void test_long_ttl(void **state)
{
	static const uint64_t beyond[] = { XKV_TTL_MAX + 1, 1ULL << 62, INT64_MAX, UINT64_MAX };
	struct payload req = REQUEST(XKV_OP_SET, KEY("a"), VALUE("1"), .ttl = XKV_TTL_MAX);

	(void)state;
	answers(&req, RESULTS({ XKV_OP_SET, 0, .ttl = XKV_TTL_MAX, .version = ANY }),
		COUNTS(XKV_C_inserts, XKV_C_ttls_given));
	holds_text("a", "1");
	req = REQUEST(XKV_OP_EXPIRE, KEY("a"), .ttl = XKV_TTL_MAX);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .ttl = XKV_TTL_MAX, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	req = REQUEST(XKV_OP_SET, XKV_ABSTTL, KEY("a"), VALUE("2"), .ttl = XKV_TTL_MAX);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_overwrites, XKV_C_ttls_given));
	holds_text("a", "2");
	for (size_t i = 0; i < 4; i++) {
		req = REQUEST(XKV_OP_SET, XKV_ABSTTL, KEY("a"), VALUE("3"), .ttl = beyond[i]);
		answers(&req, RESULTS({ XKV_OP_SET, XKV_BAD_REQUEST }),
			COUNTS(XKV_C_op_bad_request));
		holds_text("a", "2");
	}
}

static void test_expire_cycle(void **state)
{
	uint64_t before[XKV_COUNTER_COUNT];
	struct payload req = REQUEST(XKV_OP_SET, XKV_ABSTTL, KEY("a"), VALUE("1"), .ttl = 1000);

	(void)state;
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
		COUNTS(XKV_C_inserts, XKV_C_ttls_given));
	put_text("b", "2");
	bed_counters(&bed, before);
	assert_int_equal(expire_all(), 1);
	count_check(before, COUNTS(XKV_C_expires));
	assert_int_equal(store_count(bed.st), 1);
	assert_int_equal(bed_index_count(&bed), 1);
}

/* What has expired and was not yet removed goes with FLUSHALL too. */
static void test_flush(void **state)
{
	(void)state;
	put("a", "1", 1, 1000);
	put("b", "2", 1, 0);
	put("c", "3", 1, store_now_ms(bed.st) + 100000);
	assert_int_equal(store_flush(bed.ctx), 0);
	assert_int_equal(store_count(bed.st), 0);
	assert_int_equal(bed_index_count(&bed), 0);
}

/* The earliest times: 1 ms after the epoch is as expired as any other. */
static void test_earliest_time(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, XKV_ABSTTL, KEY("a"), VALUE("1"), .ttl = 1), req;

	(void)state;
	answers(&set, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
		COUNTS(XKV_C_inserts, XKV_C_ttls_given));
	req = REQUEST(XKV_OP_GET, KEY("a"));
	goes_up(&req, XKV_C_pass_miss);
	assert_int_equal(store_count(bed.st), 1);
	req = REQUEST(XKV_OP_SET, KEY("a"), VALUE("2"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	assert_int_equal(store_count(bed.st), 1);
	req = REQUEST(XKV_OP_EXPIRE, XKV_ABSTTL, KEY("a"), .ttl = 1);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	assert_int_equal(expire_all(), 1);
	assert_int_equal(store_count(bed.st), 0);
	assert_int_equal(bed_index_count(&bed), 0);
}

/* ---- INCR, APPEND, TTL, TOUCH, SCAN -------------------------------------- */

static struct payload incr(const char *key, int64_t amount, unsigned int flags, uint64_t v)
{
	uint8_t value[8];

	put_be(value, 8, (uint64_t)amount);
	return REQUEST(XKV_OP_INCR, (uint8_t)flags, KEY(key), .value = value, .value_len = 8,
		       .version = v);
}

static void answers_number(const struct payload *req, int64_t number, const int *counters)
{
	uint8_t value[8];

	put_be(value, 8, (uint64_t)number);
	answers(req, RESULTS({ req->byte[16], 0, value, 8, .version = ANY }), counters);
}

static void test_incr(void **state)
{
	static const struct {
		const char *value;
		int64_t amount;
		const char *sum; /* NULL: overflow, "": not a number */
	} t[] = {
		{ "0", 0, "0" },
		{ "9", 1, "10" },
		{ "-1", 1, "0" },
		{ "0", -1, "-1" },
		{ "99999999", 1, "100000000" },
		{ "9223372036854775806", 1, "9223372036854775807" },
		{ "-9223372036854775807", -1, "-9223372036854775808" },
		{ "-9223372036854775808", INT64_MAX, "-1" },
		{ "9223372036854775807", INT64_MIN, "-1" },
		{ "-9223372036854775808", 0, "-9223372036854775808" },
		{ "9223372036854775807", 1, NULL },
		{ "-9223372036854775808", -1, NULL },
		{ "1", INT64_MAX, NULL },
		{ "-1", INT64_MIN, NULL },
		{ "9223372036854775808", 0, "" },
		{ "-9223372036854775809", 0, "" },
		{ "18446744073709551616", 0, "" },
		{ "99999999999999999999", 0, "" },
		{ "100000000000000000000", 0, "" },
		{ "", 0, "" },
		{ "-", 0, "" },
		{ "-0", 0, "" },
		{ "00", 0, "" },
		{ "01", 0, "" },
		{ "+1", 0, "" },
		{ " 1", 0, "" },
		{ "1 ", 0, "" },
		{ "1.0", 0, "" },
		{ "0x1", 0, "" },
		{ "--1", 0, "" },
	};
	struct payload req;
	bool moved;

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		put_text("n", t[i].value);
		req = incr("n", t[i].amount, 0, 0);
		if (t[i].sum && *t[i].sum) {
			moved = class_of(strlen(t[i].value)) != class_of(strlen(t[i].sum));
			answers_number(&req, strtoll(t[i].sum, NULL, 10),
				       COUNTS(moved ? XKV_C_moves : XKV_C_overwrites));
			holds_text("n", t[i].sum);
			continue;
		}
		answers(&req, RESULTS({ XKV_OP_INCR, t[i].sum ? XKV_NOT_NUMBER : XKV_OVERFLOW }),
			COUNTS(XKV_C_not_number));
		holds_text("n", t[i].value);
	}
}

static void test_incr_conditions(void **state)
{
	struct payload req = incr("n", 5, XKV_XX, 0);
	uint64_t v;

	(void)state;
	answers(&req, RESULTS({ XKV_OP_INCR, XKV_NOT_STORED }), COUNTS(XKV_C_not_stored));
	req = incr("n", 5, XKV_CAS, 2);
	answers(&req, RESULTS({ XKV_OP_INCR, XKV_MISS }), COUNTS(XKV_C_not_stored));
	req = incr("n", -5, 0, 0);
	answers_number(&req, -5, COUNTS(XKV_C_inserts));
	v = version;
	req = incr("n", 7, XKV_CAS | XKV_XX, v + 2);
	answers(&req, RESULTS({ XKV_OP_INCR, XKV_NOT_STORED, .version = v }),
		COUNTS(XKV_C_not_stored));
	req = incr("n", 7, XKV_CAS | XKV_XX, v);
	answers_number(&req, 2, COUNTS(XKV_C_overwrites));
	put("n", "41", 2, store_now_ms(bed.st) + 100000); /* keeps the expiry */
	req = incr("n", 1, 0, 0);
	answers(&req, RESULTS({ XKV_OP_INCR, 0, "\0\0\0\0\0\0\0*", 8, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_overwrites, XKV_C_ttls_given));
	put("n", "41", 2, 1000); /* an expired one is none */
	req = incr("n", 1, 0, 0);
	answers_number(&req, 1, COUNTS(XKV_C_overwrites));
}

/* A value in every length is made out of two, in each position of a word, in place and by a move.
 */
static void test_append(void **state)
{
	struct payload req;
	size_t len = 0;
	bool moved;

	(void)state;
	for (size_t add = 1; len + add <= XKV_PAYLOAD_MAX4 - 16 - 24;
	     len += add, add = (add + 2) % 19) {
		req = REQUEST(XKV_OP_APPEND, KEY("k"), .value = pattern() + len, .value_len = add);
		moved = class_of(len) != class_of(len + add);
		answers_number(&req, (int64_t)(len + add),
			       COUNTS(!len    ? XKV_C_inserts
				      : moved ? XKV_C_moves
					      : XKV_C_overwrites));
		holds("k", pattern(), len + add);
		account();
	}
	req = REQUEST(XKV_OP_APPEND, XKV_XX, KEY("no"), VALUE("1"));
	answers(&req, RESULTS({ XKV_OP_APPEND, XKV_NOT_STORED }), COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_APPEND, XKV_CAS, KEY("no"), VALUE("1"), .version = 2);
	answers(&req, RESULTS({ XKV_OP_APPEND, XKV_MISS }), COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_APPEND, KEY("no"), VALUE(""));
	answers_number(&req, 0, COUNTS(XKV_C_inserts));
	holds_text("no", "");
}

/* Has xkvd append ten bytes, which make so many. */
static void xkvd_appends(const struct payload *req, int64_t number)
{
	uint8_t value[8];

	put_be(value, 8, (uint64_t)number);
	goes_up(req, XKV_C_pass_too_large);
	xkvd_answers(req, XKV_PAYLOAD_MAX4,
		     RESULTS({ XKV_OP_APPEND, 0, value, 8, .ttl = ANY, .version = ANY }),
		     COUNTS(XKV_C_moves, XKV_C_ttls_given));
}

/*
 * Beyond a datagram's worth of value it is a matter of xkvd, beyond what the store holds of nobody.
 */
static void test_append_too_large(void **state)
{
	static uint8_t large[XKV_VALUE_MAX];
	struct payload req = REQUEST(XKV_OP_APPEND, KEY("k"), VALUE("0123456789"));
	uint64_t at = store_now_ms(bed.st) + 100000;

	(void)state;
	put("k", pattern(), 1462, 0);
	answers_number(&req, 1472,
		       COUNTS(class_of(1462) == class_of(1472) ? XKV_C_overwrites : XKV_C_moves));
	memcpy(large, pattern(), 1472);
	memcpy(large + 1472, "0123456789", 10);
	put("k", large, 1472, at);
	xkvd_appends(&req, 1482);
	holds("k", large, 1482);
	assert_int_equal(bed_slot(&bed, "k", 1)->expire_ms, at);
	memset(large, 0, sizeof(large));
	put("k", large, sizeof(large) - 10, at);
	memcpy(large + sizeof(large) - 10, "0123456789", 10);
	xkvd_appends(&req, XKV_VALUE_MAX);
	holds("k", large, sizeof(large));
	answers(&req, RESULTS({ XKV_OP_APPEND, XKV_TOO_LARGE, NULL, XKV_VALUE_MAX + 10 }),
		COUNTS(XKV_C_op_too_large));
	req = REQUEST(XKV_OP_APPEND, XKV_CAS, KEY("k"), VALUE("0123456789"), .version = 2);
	answers(&req, RESULTS({ XKV_OP_APPEND, XKV_NOT_STORED, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_not_stored));
	holds("k", large, sizeof(large));
}

/* What there is without the value; only TOUCH is an access. */
static void test_ttl_touch(void **state)
{
	struct payload ttl = REQUEST(XKV_OP_TTL, KEY("k")), touch = REQUEST(XKV_OP_TOUCH, KEY("k"));
	struct xkv_slot *slot;

	(void)state;
	goes_up(&ttl, XKV_C_pass_miss);
	goes_up(&touch, XKV_C_pass_miss);
	xkvd_answers(&ttl, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_TTL, XKV_MISS }),
		     COUNTS(XKV_C_get_misses));
	put("k", pattern(), 4000, store_now_ms(bed.st) + 100000); /* of any size */
	slot = bed_slot(&bed, "k", 1);
	bed.c->track = XKV_TRACK_TIME;
	bed.c->access = 777;
	slot->access = 1;
	answers(&ttl, RESULTS({ XKV_OP_TTL, 0, .ttl = ANY, .version = slot->seq }),
		COUNTS(XKV_C_get_hits));
	assert_int_equal(slot->access, 1);
	answers(&touch, RESULTS({ XKV_OP_TOUCH, 0, .ttl = ANY, .version = slot->seq }),
		COUNTS(XKV_C_get_hits));
	assert_int_equal(slot->access, 777);
	bed.c->track = XKV_TRACK_NOTHING;
	bed.c->access = 0;
	assert_int_equal(store_expire(bed.ctx, "k", 1, 0), 0);
	answers(&ttl, RESULTS({ XKV_OP_TTL, 0, .version = slot->seq }), COUNTS(XKV_C_get_hits));
}

static struct payload scan(const char *key, unsigned int keys)
{
	struct payload req = REQUEST(XKV_OP_SCAN, KEY(key));

	req.byte[16 + 3] = (uint8_t)keys;
	return req;
}

static void test_scan(void **state)
{
	struct payload req = scan("k08", 5);

	(void)state;
	put_text("k08", "eight");
	put_text("k09", "");
	put_text("k11", "eleven");
	put_text("k100", "no");
	answers(&req,
		RESULTS({ XKV_OP_SCAN, 0, "eight", 5, .version = ANY },
			{ XKV_OP_SCAN, 0, "", 0, .version = ANY }),
		COUNTS(XKV_C_get_hits, XKV_C_get_hits)); /* the miss ends the reply */
	req = scan("k10", 3);
	goes_up(&req, XKV_C_pass_miss);
	xkvd_answers(&req, XKV_PAYLOAD_MAX4,
		     RESULTS({ XKV_OP_SCAN, XKV_MISS },
			     { XKV_OP_SCAN, 0, "eleven", 6, .version = ANY },
			     { XKV_OP_SCAN, XKV_MISS }),
		     COUNTS(XKV_C_get_misses, XKV_C_get_hits, XKV_C_get_misses));
	bed.c->miss_reply = 1;
	answers(&req,
		RESULTS({ XKV_OP_SCAN, XKV_MISS }, { XKV_OP_SCAN, 0, "eleven", 6, .version = ANY },
			{ XKV_OP_SCAN, XKV_MISS }),
		COUNTS(XKV_C_get_misses, XKV_C_get_hits, XKV_C_get_misses));
	req = scan("k98", 9); /* there is no key behind k99 */
	answers(&req, RESULTS({ XKV_OP_SCAN, XKV_MISS }, { XKV_OP_SCAN, XKV_MISS }),
		COUNTS(XKV_C_get_misses, XKV_C_get_misses));
	req = scan("nodigit", 1);
	answers(&req, RESULTS({ XKV_OP_SCAN, XKV_MISS }), COUNTS(XKV_C_get_misses));
	/* among others: what is asked for behind it comes behind it */
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_SET, KEY("k10"), VALUE("ten")));
	request_add(&req, OP(XKV_OP_SCAN, KEY("k09")));
	req.byte[16 + 24 + 8 + 8 + 3] = 3;
	request_add(&req, OP(XKV_OP_PING, 0));
	answers(&req,
		RESULTS({ XKV_OP_SET, 0, .version = ANY },
			{ XKV_OP_SCAN, 0, "", 0, .version = ANY },
			{ XKV_OP_SCAN, 0, "ten", 3, .version = ANY },
			{ XKV_OP_SCAN, 0, "eleven", 6, .version = ANY }, PONG),
		COUNTS(XKV_C_inserts, XKV_C_get_hits, XKV_C_get_hits, XKV_C_get_hits, XKV_C_pings));
}

/* ---- exactly once --------------------------------------------------------- */

#define SESSION 0x1122334455667788ULL

static struct payload once(uint64_t session, uint64_t id, const struct operation *op)
{
	struct payload req;

	request_begin(&req, id, NULL);
	req.byte[3] = XKV_F_ONCE;
	put_be(req.byte + req.len, 8, session);
	req.len += 8;
	request_add(&req, op);
	return req;
}

static void refuses_once(const struct payload *req)
{
	answers(req, RESULTS({ req->byte[24], XKV_BAD_REQUEST }), COUNTS(XKV_C_op_bad_request));
}

/* What the secret makes of a session for the sender of the next packet, said once more. */
static const uint8_t *session_for(uint64_t session)
{
	static uint8_t proven[8];
	__u64 word[3] = { 0, 0, session & ~0xffffffULL };
	struct packet_spec s;

	packet_default(&s, shape & 1);
	memcpy(word, s.src, s.v6 ? 16 : 4); /* (of a little-endian machine) */
	put_be(proven, 8, word[2] | (siphash(word, bed.secrets->hash.session) & 0xffffff));
	return proven;
}

/* A repetition gets the reply of the first time, whatever has happened since. */
static void test_once(void **state)
{
	uint8_t one[8] = { 0, 0, 0, 0, 0, 0, 0, 1 }, two[8] = { 0, 0, 0, 0, 0, 0, 0, 2 };
	const struct operation *op = OP(XKV_OP_INCR, KEY("n"), .value = one, .value_len = 8);
	struct payload first = once(SESSION, 101, op), req;
	struct packet_spec s;
	uint64_t v;

	(void)state;
	answers(&first, RESULTS({ XKV_OP_INCR, 0, one, 8, .version = ANY }), COUNTS(XKV_C_inserts));
	v = version;
	for (int i = 0; i < 3; i++)
		answers(&first, RESULTS({ XKV_OP_INCR, 0, one, 8, .version = v }),
			COUNTS(XKV_C_once_repeated));
	xkvd_answers(&first, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_INCR, 0, one, 8, .version = v }),
		     COUNTS(XKV_C_once_repeated)); /* by whichever front end */
	req = once(SESSION, 109, op);		   /* the next in this slot */
	answers(&req, RESULTS({ XKV_OP_INCR, 0, two, 8, .version = ANY }),
		COUNTS(XKV_C_overwrites));
	s = next_shape(&first); /* a copy that was on its way for long */
	drops(&s, XKV_C_drop_repeated);
	holds_text("n", "2");
	req = once(SESSION + 1, 101, OP(XKV_OP_SET, KEY("n"), VALUE("other")));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	req = once(0, 1, op); /* nobody's */
	header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
	req = once(SESSION, 117, op);
	req.byte[4] = 2;
	header_answers(&req, XKV_BAD_REQUEST, XKV_C_error_request);
}

/* A reply that is too long to be kept: the repetition at least does nothing. */
static void test_once_long(void **state)
{
	struct payload req = once(SESSION, 201, OP(XKV_OP_DELETE, XKV_RETURN, KEY("k")));

	(void)state;
	put("k", pattern(), 48, 0); /* 16 + 24 + 48 just is not */
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, pattern(), 48 }), COUNTS(XKV_C_deletes));
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, pattern(), 48 }), COUNTS(XKV_C_once_repeated));
	put("k", pattern(), 49, 0);
	req = once(SESSION, 209, OP(XKV_OP_DELETE, XKV_RETURN, KEY("k")));
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, pattern(), 49 }), COUNTS(XKV_C_deletes));
	put("k", pattern(), 49, 0);
	header_answers(&req, XKV_REPEATED, XKV_C_once_repeated);
	holds("k", pattern(), 49);
}

/* What goes up was not done: whoever gets it then does it, once. */
static void test_once_goes_up(void **state)
{
	struct payload req = once(SESSION, 301, OP(XKV_OP_APPEND, KEY("k"), VALUE("1")));
	struct xkv_slot *slot;

	(void)state;
	put_text("k", "0");
	slot = bed_slot(&bed, "k", 1);
	slot->seq |= 1;
	goes_up(&req, XKV_C_pass_busy);
	goes_up(&req, XKV_C_pass_busy);
	slot->seq &= ~1ULL;
	answers(&req, RESULTS({ XKV_OP_APPEND, 0, "\0\0\0\0\0\0\0\2", 8, .version = ANY }),
		COUNTS(XKV_C_overwrites));
	answers(&req, RESULTS({ XKV_OP_APPEND, 0, "\0\0\0\0\0\0\0\2", 8, .version = ANY }),
		COUNTS(XKV_C_once_repeated));
	holds_text("k", "01");
}

/* What changes nothing is done each time, and leaves no record. */
static void test_once_reads(void **state)
{
	static const struct xkv_dedup_set none[XKV_DEDUP_SETS];
	const struct operation *op = OP(XKV_OP_SESSION, 0);
	struct payload req = once(SESSION, 401, OP(XKV_OP_GET, KEY("k")));

	(void)state;
	memset(bed.once, 0, sizeof(none));
	goes_up(&req, XKV_C_pass_miss);
	for (int i = 0; i < 2; i++) {
		put_text("k", i ? "1" : "2");
		answers(&req, RESULTS({ XKV_OP_GET, 0, i ? "1" : "2", 1, .version = ANY }),
			COUNTS(XKV_C_get_hits));
	}
	req = once(SESSION, 401, OP(XKV_OP_PING, 0));
	answers(&req, RESULTS({ XKV_OP_PING, 0 }), COUNTS(XKV_C_pings));
	req = once(SESSION, 401, op);
	answers(&req, RESULTS({ XKV_OP_SESSION, 0, session_for(SESSION), 8 }),
		COUNTS(XKV_C_sessions));
	assert_memory_equal(bed.once, none, sizeof(none));
	req = REQUEST(XKV_OP_SESSION, 0); /* without a session there is nothing to prove */
	refuses(&req, XKV_BAD_REQUEST);
	req = once(0xffffff, 402, op); /* that is all proof */
	refuses_once(&req);
	req = once(SESSION, 403, OP(XKV_OP_SESSION, 0, KEY("k")));
	refuses_once(&req);
	req = once(SESSION, 404, op);
	req.byte[24 + 1] = XKV_NX;
	refuses_once(&req);
}

/* Sessions until a set has no room: then nothing is done. */
static void test_once_full(void **state)
{
	struct xkv_dedup_set *set = bed.once;
	uint8_t frame[PACKET_MAX];
	struct packet_spec s;
	struct payload req;
	int tries = 0;

	(void)state;
	do {
		assert_true(tries++ < XKV_DEDUP_SETS * XKV_DEDUP_WAYS);
		req = once(0xabc000 + (uint64_t)tries, 1, OP(XKV_OP_SET, KEY("k"), VALUE("1")));
		packet_default(&s, false);
		s.payload = req.byte;
		s.len = req.len;
		assert_true(bed_run(&bed, frame, packet_build(&s, frame), &out));
		assert_int_equal(out.verdict, XDP_TX);
	} while (out.frame[packet_payload_at(false, 0) + 5] != XKV_NO_SESSION);
	header_answers(&req, XKV_NO_SESSION, XKV_C_error_once);
	account();
	for (int i = 0; i < XKV_DEDUP_SETS; i++) /* a minute later */
		for (int way = 0; way < XKV_DEDUP_WAYS; way++)
			if (set[i].way[way].session)
				set[i].way[way].used_ms -= XKV_DEDUP_MS + 1000;
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = version }), COUNTS(XKV_C_once_repeated));
	memset(set, 0, XKV_DEDUP_SETS * sizeof(*set));
}

/* ---- several operations -------------------------------------------------- */

static void test_batch(void **state)
{
	struct payload req;

	(void)state;
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_SET, KEY("a"), VALUE("one")));
	request_add(&req, OP(XKV_OP_GET, KEY("a")));
	request_add(&req,
		    OP(XKV_OP_SET, XKV_RETURN, KEY("a"), VALUE("two two two two two two two")));
	request_add(&req, OP(XKV_OP_EXPIRE, KEY("a"), .ttl = 5000));
	request_add(&req, OP(XKV_OP_DELETE, XKV_RETURN, KEY("a")));
	request_add(&req, OP(XKV_OP_DELETE, KEY("a")));
	request_add(&req, OP(XKV_OP_PING, 0));
	for (int i = 0; i < 12; i++)
		answers(&req,
			RESULTS({ XKV_OP_SET, 0, .version = ANY },
				{ XKV_OP_GET, 0, "one", 3, .version = ANY },
				{ XKV_OP_SET, 0, "one", 3, .version = ANY },
				{ XKV_OP_EXPIRE, 0, .ttl = 5000, .version = ANY },
				{ XKV_OP_DELETE, 0, "two two two two two two two", 27 },
				{ XKV_OP_DELETE, XKV_MISS }, PONG),
			COUNTS(XKV_C_inserts, XKV_C_get_hits, XKV_C_moves, XKV_C_expiry_changes,
			       XKV_C_ttls_given, XKV_C_deletes, XKV_C_op_misses, XKV_C_pings));
	assert_int_equal(store_count(bed.st), 0);
}

/* As many as there is room for, also in a datagram that is larger than a reply may be. */
static void test_many_pings(void **state)
{
	static const struct {
		bool v6;
		unsigned int asked, answered;
	} t[] = { { false, 60, 60 }, { false, 63, 60 }, { true, 58, 58 },
		  { true, 59, 59 },  { true, 60, 59 },	{ true, 63, 59 } };
	struct result pong[63];
	int counters[64];
	struct packet_spec s;
	struct payload req;

	(void)state;
	for (size_t i = 0; i < 6; i++) {
		request_begin(&req, ID, NULL);
		for (unsigned int n = 0; n < t[i].asked; n++) {
			request_add(&req, OP(XKV_OP_PING, 0));
			pong[n] = (struct result)PONG;
			counters[n] = XKV_C_pings;
		}
		counters[t[i].answered] = NOTHING;
		packet_default(&s, t[i].v6);
		s.payload = req.byte;
		s.len = req.len;
		spec_answers(&s, 0, pong, t[i].answered, counters);
	}
}

/* An operation that XDP leaves to xkvd ends the reply before it; what follows is not done. */
static void test_partial_miss(void **state)
{
	struct payload req;

	(void)state;
	put_text("a", "1");
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_GET, KEY("a")));
	request_add(&req, OP(XKV_OP_GET, KEY("b")));
	request_add(&req, OP(XKV_OP_DELETE, KEY("a")));
	for (int i = 0; i < 12; i++)
		answers(&req, RESULTS({ XKV_OP_GET, 0, "1", 1, .version = ANY }),
			COUNTS(XKV_C_get_hits));
	holds_text("a", "1");
	bed.c->miss_reply = 1;
	answers(&req,
		RESULTS({ XKV_OP_GET, 0, "1", 1, .version = ANY }, { XKV_OP_GET, XKV_MISS },
			{ XKV_OP_DELETE }),
		COUNTS(XKV_C_get_hits, XKV_C_get_misses, XKV_C_deletes));
	bed.c->miss_reply = 0;
	request_begin(&req, ID, NULL); /* the first: all of it goes up, as it came */
	request_add(&req, OP(XKV_OP_GET, KEY("b")));
	request_add(&req, OP(XKV_OP_SET, KEY("b"), VALUE("2")));
	for (int i = 0; i < 12; i++)
		goes_up(&req, XKV_C_pass_miss);
	is_gone("b");
	xkvd_answers(&req, XKV_PAYLOAD_MAX4,
		     RESULTS({ XKV_OP_GET, XKV_MISS }, { XKV_OP_SET, 0, .version = ANY }),
		     COUNTS(XKV_C_get_misses, XKV_C_inserts));
}

/* A value that no longer fits ends the reply before it. */
static void test_partial_full(void **state)
{
	struct payload req;
	struct packet_spec s;

	(void)state;
	put("a", pattern(), 600, 0);
	put("b", pattern() + 1, 768, 0);
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_GET, KEY("a")));
	request_add(&req, OP(XKV_OP_GET, KEY("b")));
	request_add(&req, OP(XKV_OP_SET, KEY("a"), VALUE("never")));
	packet_default(&s, false);
	s.payload = req.byte;
	s.len = req.len;
	/* 16 + 24 + 600 + 24 + 768 + 24 is 1456: the third fits too */
	spec_answers(&s, 0,
		     RESULTS({ XKV_OP_GET, 0, pattern(), 600, .version = ANY },
			     { XKV_OP_GET, 0, pattern() + 1, 768, .version = ANY },
			     { XKV_OP_SET, 0, .version = ANY }),
		     COUNTS(XKV_C_get_hits, XKV_C_get_hits, XKV_C_moves));
	put("a", pattern(), 600, 0);
	put("b", pattern() + 1, 792, 0);
	spec_answers(&s, 0,
		     RESULTS({ XKV_OP_GET, 0, pattern(), 600, .version = ANY },
			     { XKV_OP_GET, 0, pattern() + 1, 792, .version = ANY }),
		     COUNTS(XKV_C_get_hits, XKV_C_get_hits));
	holds("a", pattern(), 600); /* no room for its result: not done */
	put("b", pattern() + 1, 817, 0);
	spec_answers(&s, 0, RESULTS({ XKV_OP_GET, 0, pattern(), 600, .version = ANY }),
		     COUNTS(XKV_C_get_hits));
	put("a", pattern(), 1433, 0); /* the first is too large for any: up */
	passes(&s, XKV_C_pass_too_large);
}

/* What is refused ends the reply; what came before it is done. */
static void test_partial_refused(void **state)
{
	struct payload req;

	(void)state;
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_SET, KEY("a"), VALUE("1")));
	request_add(&req, OP(99, 0));
	request_add(&req, OP(XKV_OP_SET, KEY("b"), VALUE("2")));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }, { 99, XKV_BAD_OPCODE }),
		COUNTS(XKV_C_inserts, XKV_C_op_bad_opcode));
	is_gone("b");
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_PING, 0));
	request_add(&req, OP(XKV_OP_SET, KEY("b"), VALUE("2")));
	for (size_t len = req.len - 8; len > 40; len -= 8) { /* the second is cut off */
		put_be(req.byte + 6, 2, len);
		if (len >= 64)
			answers(&req, RESULTS(PONG, { XKV_OP_SET, XKV_BAD_REQUEST }),
				COUNTS(XKV_C_pings, XKV_C_op_bad_request));
		else
			answers(&req, RESULTS(PONG), COUNTS(XKV_C_pings));
	}
	is_gone("b");
}

/* ---- replies to those who have not proven their address ------------------ */

static void pad_round(bool v6, size_t len)
{
	size_t most = v6 ? XKV_PAYLOAD_MAX6 : XKV_PAYLOAD_MAX4, need = 16 + 24 + XKV_PADDED(len),
	       ask;
	struct payload req = REQUEST(XKV_OP_GET, KEY("k")), padded;
	struct packet_spec s;

	packet_default(&s, v6);
	s.payload = req.byte;
	s.len = req.len;
	if (need > most) {
		passes(&s, XKV_C_pass_too_large);
		return;
	}
	if (need <= 3 * req.len) {
		spec_answers(&s, 0, RESULTS({ XKV_OP_GET, 0, pattern(), len, .version = ANY }),
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
	spec_answers(&s, 0, RESULTS({ XKV_OP_GET, 0, pattern(), len, .version = ANY }),
		     COUNTS(XKV_C_get_hits));
	s.len = (need - 1) / 3; /* a byte too few */
	spec_answers(&s, 0, RESULTS({ XKV_OP_GET, XKV_PAD, NULL, ask, .version = ANY }),
		     COUNTS(XKV_C_op_pad));
}

static void test_three_times(void **state)
{
	(void)state;
	bed.rules->trusted = 0;
	for (size_t len = 0; len <= 1440; len += len < 200 || len > 1390 ? 1 : 13) {
		put("k", pattern(), len, 0);
		pad_round(len & 1, len);
		pad_round(!(len & 1), len);
	}
}

static void test_three_times_return(void **state)
{
	struct payload req;
	uint64_t v;

	(void)state;
	bed.rules->trusted = 0;
	put("k", pattern(), 300, 0);
	v = version_of("k");
	req = REQUEST(XKV_OP_SET, XKV_RETURN, KEY("k"), VALUE("v"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_PAD, NULL, 120, .version = v }),
		COUNTS(XKV_C_op_pad));
	holds("k", pattern(), 300);
	assert_int_equal(version_of("k"), v);
	req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("k"));
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_PAD, NULL, 120, .version = v }),
		COUNTS(XKV_C_op_pad));
	holds("k", pattern(), 300);
	request_pad(&req, 120 - req.len, 0);
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, pattern(), 300 }), COUNTS(XKV_C_deletes));
	put("k", pattern(), 90, 0); /* the second would be the one too many */
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_GET, KEY("k")));
	request_add(&req, OP(XKV_OP_GET, KEY("k")));
	answers(&req, RESULTS({ XKV_OP_GET, 0, pattern(), 90, .version = ANY }),
		COUNTS(XKV_C_get_hits));
}

/* PAD is the last result: the client repeats the request, so nothing behind it may be done already.
 */
static void test_pad_is_last(void **state)
{
	struct payload req;

	(void)state;
	bed.rules->trusted = 0;
	put("k", pattern(), 600, 0);
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_GET, KEY("k")));
	request_add(&req, OP(XKV_OP_DELETE, KEY("k")));
	answers(&req, RESULTS({ XKV_OP_GET, XKV_PAD, NULL, 216, .version = ANY }),
		COUNTS(XKV_C_op_pad));
	holds("k", pattern(), 600);
}

/* ---- what cannot be done here -------------------------------------------- */

/* An entry that somebody else holds goes up, and comes through when it is let go. */
static void test_locked(void **state)
{
	struct payload reqs[] = { REQUEST(XKV_OP_GET, KEY("a")),
				  REQUEST(XKV_OP_EXPIRE, KEY("a"), .ttl = 9),
				  REQUEST(XKV_OP_SET, KEY("a"), VALUE("2")),
				  REQUEST(XKV_OP_SET, XKV_NX, KEY("a"), VALUE("2")),
				  REQUEST(XKV_OP_SET, KEY("a"), .value = pattern(),
					  .value_len = 900),
				  REQUEST(XKV_OP_DELETE, KEY("a")) },
		       req;
	uint64_t before[XKV_COUNTER_COUNT];
	struct xkv_slot *slot;
	struct store_entry e;

	(void)state;
	put_text("a", "1");
	slot = bed_slot(&bed, "a", 1);
	slot->seq |= 1;
	for (size_t i = 0; i < sizeof(reqs) / sizeof(reqs[0]); i++) {
		goes_up(&reqs[i], XKV_C_pass_busy);
		goes_up(&reqs[i], XKV_C_pass_busy);
	}
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_PING, 0));
	request_add(&req, OP(XKV_OP_GET, KEY("a")));
	answers(&req, RESULTS(PONG), COUNTS(XKV_C_pings));
	bed_counters(&bed, before);
	assert_int_equal(store_get(bed.ctx, "a", 1, &e), -EBUSY);
	count_check(before, COUNTS(XKV_C_op_busy));
	slot->seq &= ~1ULL;
	holds_text("a", "1");
	answers(&reqs[2], RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
}

/*
 * No room behind the packet for the largest reply: what fits the request's own
 * bytes is done; where not even the first result does, padding is asked for that makes
 * it fit.  (The room is there; we claim to need more.)
 */
static void test_no_room(void **state)
{
	struct payload req;

	(void)state;
	put("a", pattern(), 40, 0);
	bed.c->payload4 = bed.c->payload6 = 60000;
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_GET, KEY("a")));
	request_add(&req, OP(XKV_OP_DELETE, KEY("a")));
	for (int i = 0; i < 12; i++)
		answers(&req, RESULTS({ XKV_OP_GET, 0, pattern(), 40, .version = ANY }),
			COUNTS(XKV_C_get_hits));
	put("a", pattern(), 41, 0);
	for (int i = 0; i < 12; i++)
		answers(&req, RESULTS({ XKV_OP_GET, XKV_PAD, NULL, 88, .version = ANY }),
			COUNTS(XKV_C_op_pad));
	req = REQUEST(XKV_OP_SET, XKV_RETURN, KEY("a"), VALUE("v"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_PAD, NULL, 88, .version = ANY }),
		COUNTS(XKV_C_op_pad));
	holds("a", pattern(), 41);
	request_pad(&req, 88 - req.len, 0);
	answers(&req, RESULTS({ XKV_OP_SET, 0, pattern(), 41, .version = ANY }),
		COUNTS(XKV_C_moves));
	req = REQUEST(XKV_OP_GET, KEY("a")); /* asks for room when it knows how much */
	answers(&req, RESULTS({ XKV_OP_GET, 0, "v", 1, .version = ANY }), COUNTS(XKV_C_get_hits));
	req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY("a"));
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, "v", 1 }), COUNTS(XKV_C_deletes));
}

/* ---- stores of their own ------------------------------------------------- */

/*
 * A class that has no slot yet, nor any of the next three: SET goes up, and once
 * there is a page, comes through.  xkvd adds one when it answers, and soon
 * after by itself; so each class is met here for the first time.
 */
static void test_no_slot(void **state)
{
	struct payload req = REQUEST(XKV_OP_SET, KEY("a"), VALUE("1"));
	uint8_t frame[PACKET_MAX];
	struct packet_spec s;
	uint64_t begin;

	(void)state;
	bed_close(&bed);
	open_bed(MAX_KEYS);
	goes_up(&req, XKV_C_pass_no_slot);
	assert_int_equal(bed_index_count(&bed), 0);
	xkvd_answers(&req, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
		     COUNTS(XKV_C_inserts));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	/* a move that finds no slot changes nothing */
	req = REQUEST(XKV_OP_SET, KEY("a"), .value = pattern(), .value_len = 200);
	goes_up(&req, XKV_C_pass_no_slot);
	holds_text("a", "1");
	account();
	xkvd_answers(&req, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
		     COUNTS(XKV_C_moves));
	/* in the middle of a request it ends the reply */
	request_begin(&req, ID, NULL);
	request_add(&req, OP(XKV_OP_PING, 0));
	request_add(&req, OP(XKV_OP_SET, KEY("a"), .value = pattern(), .value_len = 500));
	answers(&req, RESULTS(PONG), COUNTS(XKV_C_pings));
	holds("a", pattern(), 200);
	/* nobody helps but the store's own thread */
	req = REQUEST(XKV_OP_SET, KEY("a"), .value = pattern(), .value_len = 1000);
	goes_up(&req, XKV_C_pass_no_slot);
	packet_default(&s, false);
	s.payload = req.byte;
	s.len = req.len;
	bed_maintenance(&bed, true);
	begin = store_now_ms(bed.st);
	do {
		assert_true(bed_run(&bed, frame, packet_build(&s, frame), &out));
		assert_true(store_now_ms(bed.st) < begin + 5000);
	} while (out.verdict == XDP_PASS);
	holds("a", pattern(), 1000);
}

/* Pages that the kernel does not take leave nothing behind, for walks and readers to meet. */
static void test_page_refused(void **state)
{
	static const uint8_t large[XKV_VALUE_MAX];
	int pages;

	(void)state;
	bed_close(&bed);
	open_bed(MAX_KEYS);
	put("a", large, sizeof(large), 0);
	assert_int_equal(bed.st->mem.pages_used, 1);
	pages = bed.st->bpf.map[BPF_PAGES];
	bed.st->bpf.map[BPF_PAGES] = -1;
	assert_int_equal(store_set(bed.ctx, "b", 1, large, sizeof(large), 0, 0, 0, NULL), -ENOSPC);
	bed.st->bpf.map[BPF_PAGES] = pages;
	assert_int_equal(bed.st->mem.pages, 1);
	assert_int_equal(bed.st->mem.pages_used, 1);
	assert_null(bed.st->mem.page[1]);
	account();
	put("b", large, sizeof(large), 0);
	assert_int_equal(bed.st->mem.pages_used, 2);
	holds("b", large, sizeof(large));
	account();
}

/*
 * A program was interrupted between taking the last slot and counting it: the class is empty all
 * the same, and gets a span.
 */
static void test_free_count_lags(void **state)
{
	static const uint8_t large[20000];
	unsigned int class;

	(void)state;
	bed_close(&bed);
	open_bed(MAX_KEYS);
	class = bed.c->class_of[XKV_SLOT_NEED(1, 100) / 8];
	bed.classes[class].free = 3;
	put("a", pattern(), 100, 0);
	holds("a", pattern(), 100);
	bed.classes[class].free -= 3;
	account();
	bed.classes[XKV_CLASS_LARGE].free = 3;
	put("b", large, sizeof(large), 0);
	bed.classes[XKV_CLASS_LARGE].free -= 3;
	account();
}

/* Who waits for memory that nobody makes waits no longer than was promised. */
static void test_wait_ends(void **state)
{
	uint64_t begin, until_ms = 0;
	unsigned int class = 0;

	(void)state;
	bed_close(&bed);
	open_bed(MAX_KEYS);
	pthread_mutex_lock(&bed.st->mem.units_lock);
	for (uint32_t page, first; units_take(bed.st, 1, &page, &first);)
		;
	pthread_mutex_unlock(&bed.st->mem.units_lock);
	bed_maintained(&bed, true); /* by nobody */
	begin = store_now_ms(bed.st);
	assert_int_equal(slots_grow(bed.st, class, 0, &until_ms), -ENOSPC);
	assert_in_range(store_now_ms(bed.st) - begin, GROW_WAIT_MS - 1, 20 * GROW_WAIT_MS);
	begin = store_now_ms(bed.st);
	assert_int_equal(slots_grow(bed.st, class, 0, &until_ms), -ENOSPC); /* the same request */
	assert_in_range(store_now_ms(bed.st) - begin, 0, GROW_WAIT_MS / 2);
	bed_maintained(&bed, false);
}

/* xkvd was killed while it made a span, or freed one: what nobody had been given is free again. */
static void test_adopt_spans(void **state)
{
	struct xkv_unit *unit;
	uint64_t before;

	(void)state;
	bed_close(&bed);
	open_bed(MAX_KEYS);
	put_text("key", "value");
	before = units_free(bed.st);
	unit = ((struct xkv_page *)bed.st->mem.page[0])->unit;
	unit[100] = (struct xkv_unit){ .first = 100, .class = 3, .state = XKV_SPAN_NEW };
	unit[101] = (struct xkv_unit){ .first = 100 };
	unit[203] = (struct xkv_unit){ .first = 200 }; /* not named to its end */
	unit[300] = (struct xkv_unit){ .first = 300, .class = XKV_CLASS_LARGE,
				       .state = XKV_SPAN_DRAINING, .parked = 1 };
	assert_null(bed_adopt(&bed));
	assert_int_equal(units_free(bed.st), before - 1);
	assert_int_equal(drain_run(bed.ctx), 1);
	assert_int_equal(units_free(bed.st), before);
	holds("key", "value", 5);
	account();
}

/* Where only a larger class has a slot, that one serves; a smaller value stays where it is. */
static void test_larger_class(void **state)
{
	struct payload req;

	(void)state;
	bed_close(&bed);
	open_bed(MAX_KEYS);
	put("b", pattern(), 100, 0); /* need: 24 + 8 + 104 */
	req = REQUEST(XKV_OP_SET, KEY("a"), .value = pattern(), .value_len = 80);
	assert_int_not_equal(class_of(80), class_of(100));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	assert_int_equal(bed_slot(&bed, "a", 1)->class, bed_slot(&bed, "b", 1)->class);
	holds("a", pattern(), 80);
	account();
	req = REQUEST(XKV_OP_SET, KEY("b"), VALUE("1"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	holds_text("b", "1");
	account();
	req = REQUEST(XKV_OP_DELETE, KEY("a"));
	answers(&req, RESULTS({ XKV_OP_DELETE }), COUNTS(XKV_C_deletes));
}

/*
 * The head of a free list never comes back: while somebody looked away, the same
 * slot may be first again, with another one behind it (the ABA problem).
 */
static void test_list_tag(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, KEY("a"), VALUE("1"));
	struct payload del = REQUEST(XKV_OP_DELETE, KEY("a"));
	const struct xkv_class *c = &bed.classes[bed.c->class_of[XKV_SLOT_NEED(1, 1) / 8]];
	const __u64 *head = &c->head[c->which & 1];
	uint64_t before, ref = *head & XKV_REF_MASK;

	(void)state;
	for (int i = 0; i < 100; i++) {
		before = *head;
		answers(&set, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
		answers(&del, RESULTS({ XKV_OP_DELETE }), COUNTS(XKV_C_deletes));
		assert_int_equal(*head & XKV_REF_MASK, ref);
		assert_true(*head != before);
	}
}

/* Makes one more key of a number, "k0", "k1" and so on, with its own name as its value. */
static struct payload set_numbered(char key[16], int number)
{
	snprintf(key, 16, "k%d", number);
	return REQUEST(XKV_OP_SET, KEY(key), VALUE(key));
}

/*
 * An index for 16 keys: many more fit, until a bucket has no room any more.  Then that key goes
 * up, is refused there, and all else still works.
 */
static void test_full(void **state)
{
	int keys = 0, most = 4 * (XKV_CHAIN_MAX + 1) * XKV_WAYS;
	uint8_t frame[PACKET_MAX];
	struct packet_spec s;
	struct payload req, more;
	char key[16];

	(void)state;
	bed_close(&bed);
	open_bed(16);
	warm();
	assert_int_equal(bed.bpf.buckets, 4);
	do {
		more = set_numbered(key, keys++);
		packet_default(&s, false);
		s.payload = more.byte;
		s.len = more.len;
		assert_true(bed_run(&bed, frame, packet_build(&s, frame), &out));
	} while (out.verdict == XDP_TX);
	assert_int_equal(out.verdict, XDP_PASS);
	assert_in_range(keys, most / 2, most); /* the buckets fill up evenly */
	goes_up(&more, XKV_C_pass_full);
	xkvd_answers(&more, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, XKV_NO_MEMORY }),
		     COUNTS(XKV_C_op_no_memory));
	assert_int_equal(store_set(bed.ctx, key, strlen(key), "1", 1, 0, 0, 0, NULL), -ENOSPC);
	assert_int_equal(bed_index_count(&bed), keys - 1);
	account();
	req = REQUEST(XKV_OP_SET, KEY("k3"), VALUE("2"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	req = REQUEST(XKV_OP_SET, KEY("k3"), .value = pattern(), .value_len = 1000);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_moves));
	holds("k3", pattern(), 1000);
	for (int i = 0; i < keys - 1; i++) { /* one of the same bucket makes room */
		snprintf(key, sizeof(key), "k%d", i);
		if (bed_bucket(&bed, key, strlen(key)) !=
		    bed_bucket(&bed, more.byte + 40, more.byte[18]))
			continue;
		req = REQUEST(XKV_OP_DELETE, KEY(key));
		answers(&req, RESULTS({ XKV_OP_DELETE }), COUNTS(XKV_C_deletes));
		break;
	}
	answers(&more, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	account();
}

/* ---- one bucket for all --------------------------------------------------- */

#define BUCKET_KEYS ((XKV_CHAIN_MAX + 1) * XKV_WAYS)

/* All keys have one fingerprint, and so one bucket and one tag. */
static void open_one_bucket(void)
{
	bed_close(&bed);
	open_bed(MAX_KEYS);
	warm();
	bed.c->fingerprint_mask = 0;
}

/* Inserts keys from..to - 1 into a chain that has `from` keys and no gaps. */
static void fill_bucket(int from, int to)
{
	struct payload req;
	char key[16];

	for (int i = from; i < to; i++) {
		req = set_numbered(key, i);
		answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
			i && i % XKV_WAYS == 0 ? COUNTS(XKV_C_inserts, XKV_C_chained)
					       : COUNTS(XKV_C_inserts));
		assert_int_equal(bed_chain_count(&bed), i / XKV_WAYS);
		if (i % XKV_WAYS == 0)
			account();
	}
}

static void delete_numbered(int number, bool unchains)
{
	struct payload req;
	char key[16];

	snprintf(key, sizeof(key), "k%d", number);
	req = REQUEST(XKV_OP_DELETE, XKV_RETURN, KEY(key));
	answers(&req, RESULTS({ XKV_OP_DELETE, 0, key, strlen(key) }),
		unchains ? COUNTS(XKV_C_deletes, XKV_C_unchained) : COUNTS(XKV_C_deletes));
}

static void numbered_hold(int from, int to)
{
	char key[16];

	for (int i = from; i < to; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		holds_text(key, key);
	}
}

/* Keys with one fingerprint live side by side, as many as a chain has room for; the next one is
 * refused. */
static void test_one_bucket(void **state)
{
	struct payload req;
	char key[16];

	(void)state;
	open_one_bucket();
	fill_bucket(0, BUCKET_KEYS);
	assert_int_equal(bed_index_count(&bed), BUCKET_KEYS);
	assert_int_equal(bed_chain_count(&bed), XKV_CHAIN_MAX);
	numbered_hold(0, BUCKET_KEYS);
	req = set_numbered(key, BUCKET_KEYS);
	goes_up(&req, XKV_C_pass_full);
	xkvd_answers(&req, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, XKV_NO_MEMORY }),
		     COUNTS(XKV_C_op_no_memory));
	assert_int_equal(store_set(bed.ctx, key, strlen(key), pattern(), 4096, 0, 0, 0, NULL),
			 -ENOSPC);
	account();
	req = REQUEST(XKV_OP_GET, KEY(key));
	goes_up(&req, XKV_C_pass_miss);
	req = REQUEST(XKV_OP_DELETE, KEY(key));
	answers(&req, RESULTS({ XKV_OP_DELETE, XKV_MISS }), COUNTS(XKV_C_op_misses));
	req = REQUEST(XKV_OP_SET, XKV_XX, KEY(key), VALUE("9"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED }), COUNTS(XKV_C_not_stored));
	/* the last one of the chain can all that the first one can */
	req = REQUEST(XKV_OP_GET, KEY("k118"));
	answers(&req, RESULTS({ XKV_OP_GET, 0, "k118", 4, .version = ANY }),
		COUNTS(XKV_C_get_hits));
	req = REQUEST(XKV_OP_SET, XKV_NX, KEY("k118"), VALUE("9"));
	answers(&req, RESULTS({ XKV_OP_SET, XKV_NOT_STORED, .version = ANY }),
		COUNTS(XKV_C_not_stored));
	req = REQUEST(XKV_OP_SET, XKV_XX | XKV_RETURN, KEY("k118"), VALUE("9"));
	answers(&req, RESULTS({ XKV_OP_SET, 0, "k118", 4, .version = ANY }),
		COUNTS(XKV_C_overwrites));
	req = REQUEST(XKV_OP_EXPIRE, KEY("k118"), .ttl = 100000);
	answers(&req, RESULTS({ XKV_OP_EXPIRE, 0, .ttl = 100000, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	req = REQUEST(XKV_OP_SET, XKV_KEEPTTL, KEY("k118"), .value = pattern(), .value_len = 500);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .ttl = ANY, .version = ANY }),
		COUNTS(XKV_C_moves, XKV_C_ttls_given));
	holds("k118", pattern(), 500);
	numbered_hold(0, BUCKET_KEYS - 1);
}

/* A place that became free is taken again; a bucket that became empty leaves the chain, wherever it
 * stands. */
static void test_chain_shrinks(void **state)
{
	static const int buckets[] = { 2, 1, 4,
				       3 }; /* in the middle, the first, the last, the only one */
	int left = 4;
	struct payload req;
	char key[16];

	(void)state;
	open_one_bucket();
	fill_bucket(0, 5 * XKV_WAYS);
	delete_numbered(3, false);
	delete_numbered(10, false);
	req = set_numbered(key, 100);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	req = set_numbered(key, 101);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	assert_int_equal(bed_chain_count(&bed), 4);
	delete_numbered(101, false); /* it took the place of k10 */
	req = set_numbered(key, 10);
	answers(&req, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	for (size_t i = 0; i < 4; i++) {
		for (int way = 0; way < XKV_WAYS; way++)
			delete_numbered(buckets[i] * XKV_WAYS + way, way == XKV_WAYS - 1);
		assert_int_equal(bed_chain_count(&bed), --left);
		account();
		for (size_t other = i + 1; other < 4; other++)
			numbered_hold(buckets[other] * XKV_WAYS, (buckets[other] + 1) * XKV_WAYS);
	}
	numbered_hold(0, 3);
	holds_text("k100", "k100");
	numbered_hold(4, 7);
	for (int i = 0; i < XKV_WAYS; i++) /* the first bucket is empty, and has no chain to lose */
		delete_numbered(i == 3 ? 100 : i, false);
	assert_int_equal(bed_index_count(&bed), 0);
	fill_bucket(0, 3 * XKV_WAYS); /* and all over again */
}

/* Expired entries leave the chain as deleted ones do. */
static void test_chain_expires(void **state)
{
	uint64_t before[XKV_COUNTER_COUNT], after[XKV_COUNTER_COUNT];
	char key[16];

	(void)state;
	open_one_bucket();
	for (int i = 0; i < 3 * XKV_WAYS; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		put(key, key, strlen(key), i / XKV_WAYS == 1 ? 1000 : 0);
	}
	bed_counters(&bed, before);
	assert_int_equal(expire_all(), XKV_WAYS);
	bed_counters(&bed, after);
	assert_int_equal(after[XKV_C_expires] - before[XKV_C_expires], XKV_WAYS);
	assert_int_equal(after[XKV_C_unchained] - before[XKV_C_unchained], 1);
	assert_int_equal(bed_chain_count(&bed), 1);
	numbered_hold(0, XKV_WAYS);
	numbered_hold(2 * XKV_WAYS, 3 * XKV_WAYS);
}

/* The slot for a further bucket may be what is missing: the SET goes up, and nothing is half done.
 */
static void test_chain_no_slot(void **state)
{
	struct payload req;
	char key[16];

	(void)state;
	bed_close(&bed);
	open_bed(MAX_KEYS);
	bed.c->fingerprint_mask = 0;
	put("warm", "1", 1, 0);
	assert_int_equal(store_delete(bed.ctx, "warm", 4, NULL), 0);
	fill_bucket(0, XKV_WAYS);
	req = set_numbered(key, XKV_WAYS);
	goes_up(&req, XKV_C_pass_no_slot);
	goes_up(&req, XKV_C_pass_no_slot);
	is_gone(key);
	account();
	xkvd_answers(&req, XKV_PAYLOAD_MAX4, RESULTS({ XKV_OP_SET, 0, .version = ANY }),
		     COUNTS(XKV_C_inserts, XKV_C_chained));
	numbered_hold(0, XKV_WAYS + 1);
}

/* Who comes while somebody else changes a bucket: only who has to change it too goes up. */
static void test_locked_bucket(void **state)
{
	struct payload set = REQUEST(XKV_OP_SET, KEY("a"), VALUE("2")),
		       get = REQUEST(XKV_OP_GET, KEY("a")),
		       expire = REQUEST(XKV_OP_EXPIRE, KEY("a"), .ttl = 100000),
		       insert = REQUEST(XKV_OP_SET, KEY("b"), VALUE("2")),
		       move = REQUEST(XKV_OP_SET, KEY("a"), .value = pattern(), .value_len = 900),
		       del = REQUEST(XKV_OP_DELETE, KEY("a"));
	uint64_t before[XKV_COUNTER_COUNT];
	struct xkv_bucket *bucket;

	(void)state;
	open_one_bucket();
	put_text("a", "1");
	bucket = bed_bucket(&bed, "a", 1);
	bucket->head |= XKV_BUCKET_LOCK;
	answers(&get, RESULTS({ XKV_OP_GET, 0, "1", 1, .version = ANY }), COUNTS(XKV_C_get_hits));
	answers(&set, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_overwrites));
	answers(&expire, RESULTS({ XKV_OP_EXPIRE, 0, .ttl = 100000, .version = ANY }),
		COUNTS(XKV_C_expiry_changes, XKV_C_ttls_given));
	goes_up(&insert, XKV_C_pass_busy);
	goes_up(&move, XKV_C_pass_busy);
	goes_up(&del, XKV_C_pass_busy);
	bed_counters(&bed, before);
	assert_int_equal(store_delete(bed.ctx, "a", 1, NULL), -EBUSY);
	count_check(before, COUNTS(XKV_C_op_busy));
	holds_text("a", "2");
	bucket->head &= ~XKV_BUCKET_LOCK;
	account();
	answers(&insert, RESULTS({ XKV_OP_SET, 0, .version = ANY }), COUNTS(XKV_C_inserts));
	answers(&move, RESULTS({ XKV_OP_SET, 0, .ttl = 0, .version = ANY }), COUNTS(XKV_C_moves));
	answers(&del, RESULTS({ XKV_OP_DELETE }), COUNTS(XKV_C_deletes));
	holds_text("b", "2");
}

/* ---- what only xkvd asks for ---------------------------------------------- */

/* Runs a request as xkvd does, with more flags for the frame; the result's status. */
static uint8_t engine(const struct payload *req, uint32_t flags, uint64_t prefilled)
{
	struct xkv_request *f = bed_frame(&bed);

	memset(f, 0, offsetof(struct xkv_request, in));
	f->flags = XKV_REQUEST_XKVD | XKV_REQUEST_TRUSTED | flags;
	f->reply_max = f->reply_allowed = f->reply_room = XKV_REQUEST_BYTES;
	f->req_len = (uint32_t)req->len;
	f->prefilled = prefilled;
	memcpy(f->in, req->byte, req->len);
	assert_int_equal(bed_run_frame(&bed), 0);
	assert_int_equal(f->verdict, VERDICT_REPLY);
	assert_int_equal(f->done, 1);
	return f->out[16 + 1];
}

static void test_eviction(void **state)
{
	struct payload req = REQUEST(XKV_OP_DELETE, KEY("a")), cas;
	uint64_t before[XKV_COUNTER_COUNT];

	(void)state;
	put_text("a", "1");
	bed_counters(&bed, before);
	assert_int_equal(engine(&req, XKV_REQUEST_EVICT, 0), XKV_OK);
	count_check(before, COUNTS(XKV_C_evictions));
	assert_int_equal(engine(&req, XKV_REQUEST_EVICT, 0), XKV_MISS);
	put("a", "1", 1, 1000); /* one that has expired may go that way too */
	cas = REQUEST(XKV_OP_DELETE, XKV_CAS, KEY("a"), .version = 2);
	assert_int_equal(engine(&cas, XKV_REQUEST_EVICT, 0), XKV_NOT_STORED);
	bed_counters(&bed, before);
	assert_int_equal(engine(&req, XKV_REQUEST_EVICT, 0), XKV_OK);
	count_check(before, COUNTS(XKV_C_evictions));
	assert_int_equal(store_count(bed.st), 0);
}

/* What an eviction of up to 256 entries costs, of which `there` are there to be found. */
static uint64_t eviction_us(unsigned int there)
{
	struct timespec begin, end;

	bed.st->evict.failed_ms = 0;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
	assert_int_equal(evict(bed.ctx, 256, true), there);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
	return (end.tv_sec - begin.tv_sec) * 1000000 + (end.tv_nsec - begin.tv_nsec) / 1000;
}

/*
 * Fewer than are wanted, among many slots: one look through all of them finds them, and others
 * none.
 */
static void test_eviction_of_few(void **state)
{
	uint64_t none, one;

	(void)state;
	bed_close(&bed);
	open_bed(MAX_KEYS);
	for (int i = 0; i < 16; i++)
		assert_int_equal(span_carve(bed.st, 0), 0);
	put("stays", "1", 1, 0);
	store_limit(bed.st, 1, STORE_VOLATILE_TTL);
	none = eviction_us(0);
	put("goes", "1", 1, 1000000);
	one = eviction_us(1);
	assert_in_range(one, 1, 10 * none + 1000);
	assert_int_equal(store_count(bed.st), 1);
	account();
}

/* A slot for the frame, of another page if all that are left are parked. */
static void take_slot(unsigned int class)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_ALLOC, .class = class };
	int ret = bed_slots(&bed, &args);

	if (ret == -ENOSPC) {
		assert_int_equal(bed_grow(&bed, class), 0);
		ret = bed_slots(&bed, &args);
	}
	assert_int_equal(ret, 0);
}

/* Copies the entry of a key into another slot and has it moved there. */
static uint8_t relocate(const char *key, uint64_t v)
{
	struct payload req = REQUEST(XKV_OP_SET, XKV_CAS, KEY(key), .version = v);
	const struct xkv_slot *old = bed_slot(&bed, key, strlen(key));
	struct xkv_slot *slot;
	uint64_t ref;

	take_slot(old->class);
	ref = bed_frame(&bed)->prefilled;
	slot = bed_slot_at(&bed, ref);
	slot->key_len = old->key_len;
	slot->value_len = old->value_len;
	memcpy(slot + 1, old + 1, XKV_SLOT_NEED(old->key_len, old->value_len) - sizeof(*slot));
	return engine(&req, XKV_REQUEST_PREFILL | XKV_REQUEST_RELOCATE, ref);
}

static void free_slot(void)
{
	assert_int_equal(bed_slots(&bed, &(struct xkv_slots_args){ .cmd = XKV_SLOTS_FREE }), 0);
}

/* Goes through the free lists of a class twice, so that none of a draining page stays in any. */
static void filter_lists(unsigned int class)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_FILTER, .class = class };

	for (int turn = 0; turn < 2; turn++) {
		args.count = 1; /* the lists change places */
		do {
			assert_int_equal(bed_slots(&bed, &args), 0);
		} while (args.count && !(args.count = 0));
	}
}

/* The entry is the same in another slot: version, expiry and access stay. */
static void test_relocate(void **state)
{
	struct payload req = REQUEST(XKV_OP_GET, KEY("a"));
	uint64_t before[XKV_COUNTER_COUNT], v;
	struct xkv_slot *old;

	(void)state;
	bed_close(&bed);
	open_bed(MAX_KEYS);
	warm();
	put("a", pattern(), 100, store_now_ms(bed.st) + 100000);
	v = version_of("a");
	old = bed_slot(&bed, "a", 1);
	old->access = 1234;
	assert_int_equal(relocate("a", v), XKV_NOT_STORED); /* its span stays */
	free_slot();
	account();
	bed_span_of(&bed, old)->state = XKV_SPAN_DRAINING;
	filter_lists(old->class);
	account();
	assert_int_equal(relocate("a", v + 2), XKV_NOT_STORED); /* somebody has written it since */
	free_slot();
	bed_counters(&bed, before);
	assert_int_equal(relocate("a", v), XKV_OK);
	count_check(before, COUNTS(XKV_C_relocations));
	assert_ptr_not_equal(bed_slot(&bed, "a", 1), old);
	assert_int_equal(bed_slot(&bed, "a", 1)->access, 1234);
	assert_int_equal(bed_span_of(&bed, old)->parked, bed_span_slots(&bed, old));
	answers(&req, RESULTS({ XKV_OP_GET, 0, pattern(), 100, .ttl = ANY, .version = v }),
		COUNTS(XKV_C_get_hits));
}

/* A span with live entries, chain buckets and free slots is emptied down to the last slot. */
static void test_drain(void **state)
{
	unsigned int class, slots;
	struct xkv_unit *span;
	struct xkv_slot *slot;
	struct span whole;
	char key[16];
	uint64_t ref;

	(void)state;
	open_one_bucket();
	class = bed.c->class_of[sizeof(struct xkv_chain) / 8];
	/* entries as large as a chain bucket, so that both stand in one span */
	for (int i = 0; i < 3 * XKV_WAYS; i++) {
		snprintf(key, sizeof(key), "k%02d", i);
		put(key, pattern(), sizeof(struct xkv_chain) - sizeof(*slot) - 8, 0);
	}
	assert_int_equal(bed_chain_count(&bed), 2);
	span = bed_span_of(&bed, bed_slot(&bed, "k00", 3));
	slots = bed_span_slots(&bed, bed_slot(&bed, "k00", 3));
	ref = bed_ref(&bed, bed_slot(&bed, "k00", 3));
	assert_true(span_of_ref(bed.st, ref, &whole));
	span->state = XKV_SPAN_DRAINING;
	filter_lists(class);
	account();
	assert_int_equal(span->parked, slots - 3 * XKV_WAYS - 2);
	for (int i = 0; i < 3 * XKV_WAYS; i += 2) {
		snprintf(key, sizeof(key), "k%02d", i);
		assert_int_equal(relocate(key, version_of(key)), XKV_OK);
	}
	for (int i = 1; i < 3 * XKV_WAYS; i += 2) { /* or goes by itself */
		snprintf(key, sizeof(key), "k%02d", i);
		assert_int_equal(store_delete(bed.ctx, key, 3, NULL), 0);
	}
	account();
	assert_int_equal(span->parked, slots - 2);
	for (uint32_t i = 0; i < slots; i++) {
		slot = bed_slot_at(&bed, span_ref(&whole, i));
		if (slot->key_len != XKV_KEY_CHAIN)
			continue;
		take_slot(class);
		assert_int_equal(
			bed_slots(&bed, &(struct xkv_slots_args){ .cmd = XKV_SLOTS_CHAIN,
								  .first = bed_ref(&bed, slot) }),
			0);
		account();
	}
	assert_int_equal(span->parked, slots);
	for (int i = 0; i < 3 * XKV_WAYS; i += 2) {
		snprintf(key, sizeof(key), "k%02d", i);
		holds(key, pattern(), sizeof(struct xkv_chain) - sizeof(*slot) - 8);
	}
}

/*
 * At the limit the class of a draining span has no other slot: its last entries, and a chain
 * bucket, go into slots of the next classes, and the span goes.
 */
static void test_drain_to_larger_class(void **state)
{
	const size_t len = sizeof(struct xkv_chain) - sizeof(struct xkv_slot) - 8;
	uint32_t page, first, last = 0;
	unsigned int class;
	char key[16];

	(void)state;
	bed_close(&bed);
	open_bed(MAX_KEYS);
	bed.c->fingerprint_mask = 0;
	class = bed.c->class_of[sizeof(struct xkv_chain) / 8];
	for (int i = 0; i <= XKV_WAYS; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		put(key, pattern(), len, 0);
	}
	assert_int_equal(bed_chain_count(&bed), 1);
	store_limit(bed.st, 1, STORE_NOEVICTION);
	while (units_take(bed.st, 1, &page, &first))
		last = first;
	assert_int_equal(bed_grow(&bed, class + 3), -ENOSPC);
	assert_int_equal(bed_drain(&bed, bed.ctx, class, 1), 0); /* nowhere to go */
	units_give(bed.st, 0, last, 1);
	assert_int_equal(bed_grow(&bed, class + 3), 0);
	assert_int_equal(bed_drain(&bed, bed.ctx, class, 1), 1);
	assert_int_equal(bed.st->mem.class[class].slots, 0);
	for (int i = 0; i <= XKV_WAYS; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		holds(key, pattern(), len);
	}
	account();
}

/* A case that opens a store of its own.  The common one comes back when a case wants it: loading the
 * programs takes a second. */
static int own_setup(void **state)
{
	(void)state;
	shape = 0;
	return 0;
}

static int own_teardown(void **state)
{
	int ret = teardown(state);

	bed_close(&bed);
	return ret;
}

/*
 * xkvd was killed when it held slots, in any requests of any contexts: the next one gives them
 * back.
 */
static void test_adopt_prefilled(void **state)
{
	static const unsigned int frames[] = { 1, XKV_BATCH_REQUESTS - 1, XKV_BATCH_REQUESTS + 3,
					       XKV_BATCH_CONTEXTS * XKV_BATCH_REQUESTS - 1 };
	const size_t n = sizeof(frames) / sizeof(frames[0]);
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_ALLOC };
	uint64_t free;

	(void)state;
	bed_close(&bed);
	open_bed(MAX_KEYS);
	put_text("key", "value");
	args.class = bed_slot(&bed, "key", 3)->class;
	free = bed.classes[args.class].free;
	for (size_t i = 0; i < n; i++) {
		args.request = frames[i];
		assert_int_equal(slots_run(bed.st, &args), 0);
	}
	assert_int_equal(bed.classes[args.class].free, free - n);
	assert_null(bed_adopt(&bed));
	assert_int_equal(bed.classes[args.class].free, free);
	for (size_t i = 0; i < n; i++)
		assert_true(!bed.batch[frames[i]].prefilled);
	holds_text("key", "value");
	account();
}

/*
 * Has xkvd's part of an APPEND done: its text behind the entry's value, in a slot that the frame
 * has.
 */
static void join_in_frame(const char *key, const char *text)
{
	struct xkv_request *f = bed_frame(&bed);
	const struct xkv_slot *old = bed_slot(&bed, key, strlen(key));
	size_t at = XKV_PADDED(strlen(key)), len = strlen(text);
	struct xkv_slot *slot;

	assert_int_equal(f->stop, XKV_C_pass_too_large + 1);
	take_slot(old->class + 1);
	slot = bed_slot_at(&bed, f->prefilled);
	slot->key_len = old->key_len;
	slot->value_len = (uint32_t)(old->value_len + len);
	memcpy(slot + 1, old + 1, at + old->value_len);
	memcpy((uint8_t *)(slot + 1) + at + old->value_len, text, XKV_PADDED(len));
	f->joined = f->seq;
	f->flags |= XKV_REQUEST_PREFILL;
}

/*
 * The entry expires when xkvd has joined the two parts of a large APPEND, and before they are
 * published: then there is no old part.  With time left the joined value is what is published.
 */
static void test_append_expires_while_joined(void **state)
{
	const char text[8] = "end", *const key = "key";
	struct payload req = REQUEST(XKV_OP_APPEND, KEY("key"), VALUE("end"));
	struct xkv_request *f = bed_frame(&bed);
	uint8_t whole[3003];

	(void)state;
	memcpy(whole, pattern(), 3000);
	memcpy(whole + 3000, "end", 3);
	for (int expires = 0; expires < 2; expires++) {
		put(key, pattern(), 3000, store_now_ms(bed.st) + 3600 * 1000);
		memset(f, 0, offsetof(struct xkv_request, in));
		f->flags = XKV_REQUEST_XKVD | XKV_REQUEST_TRUSTED;
		f->reply_max = f->reply_allowed = f->reply_room = XKV_REQUEST_BYTES;
		f->req_len = (uint32_t)req.len;
		memcpy(f->in, req.byte, req.len);
		assert_int_equal(bed_run_frame(&bed), 0);
		join_in_frame(key, text);
		bed.c->tai_offset_ms -= expires ? 7200 * 1000 : 0;
		assert_int_equal(bed_run_frame(&bed), 0);
		assert_int_equal(f->verdict, VERDICT_REPLY);
		assert_int_equal(f->out[16 + 1], XKV_OK);
		assert_int_equal(!!f->prefilled, expires);
		if (expires)
			holds(key, "end", 3);
		else
			holds(key, whole, sizeof(whole));
		bed.c->tai_offset_ms += expires ? 7200 * 1000 : 0;
		free_slot();
		assert_int_equal(store_delete(bed.ctx, key, 3, NULL), 0);
	}
}

/* ---- tests/vectors.txt --------------------------------------------------- */

static void vector_config(const char *word)
{
	if (strcmp(word, "miss=reply") == 0) {
		bed.c->miss_reply = 1;
	} else if (strcmp(word, "limited") == 0) {
		bed.rules->trusted = 0;
	} else if (strcmp(word, "closed") == 0) {
		bed.rules->auth = XKV_AUTH_CLOSED;
	} else {
		assert_true(strncmp(word, "token=", 6) == 0 && strlen(word) == 6 + 32);
		for (int i = 0; i < 16; i++) {
			char byte[3] = { word[6 + 2 * i], word[7 + 2 * i], 0 };

			((uint8_t *)bed_token(&bed))[i] = (uint8_t)strtoul(byte, NULL, 16);
		}
		bed.rules->auth = XKV_AUTH_TOKEN;
	}
}

/* Of the vector that is run: each run has one of its own. */
static uint64_t vector_session;

/* Puts the version, and into a reply what may be any byte, where the vector leaves it open. */
static void vector_fill(const struct vector_bytes *b, uint8_t *to, uint64_t v,
			const uint8_t *actual, size_t actual_len)
{
	unsigned int at = 0;

	memcpy(to, b->byte, b->len);
	for (size_t i = 0; i < b->len; i++) {
		if (b->kind[i] == VECTOR_VERSION)
			to[i] = (uint8_t)(v >> (56 - 8 * (at++ & 7)));
		else if (b->kind[i] == VECTOR_SESSION)
			to[i] = (uint8_t)(vector_session >> (56 - 8 * (at++ & 7)));
		else if (b->kind[i] == VECTOR_ANY && i < actual_len)
			to[i] = actual[i];
	}
}

static void vector_after(const struct vector *v)
{
	const struct vector_entry *e;
	struct store_entry got;
	int ret;

	for (unsigned int i = 0; i < v->afters; i++) {
		e = &v->after[i];
		ret = store_get(bed.ctx, e->key, e->key_len, &got);
		assert_int_equal(ret, e->has_value ? 0 : -ENOENT);
		if (!e->has_value)
			continue;
		assert_int_equal(got.value_len, e->value_len);
		assert_memory_equal(got.value, e->value, e->value_len);
	}
}

static uint64_t vector_given(const struct vector *v)
{
	struct store_entry got = { .version = 0 };
	const struct vector_entry *e;
	uint64_t ttl;

	expire_all();
	assert_int_equal(store_flush(bed.ctx), 0);
	bed_configure(&bed);
	for (unsigned int i = 0; i < v->configs; i++)
		vector_config(v->config[i]);
	for (unsigned int i = 0; i < v->givens; i++) {
		e = &v->given[i];
		ttl = e->ttl_ms ? store_now_ms(bed.st) + e->ttl_ms : 0;
		assert_int_equal(store_set(bed.ctx, e->key, e->key_len, e->value, e->value_len, 0,
					   0, ttl, NULL),
				 0);
	}
	if (v->givens)
		assert_int_equal(store_get(bed.ctx, v->given[0].key, v->given[0].key_len, &got),
				 0);
	return got.version;
}

/* What xkvd says to a request that went up: the vector's reply, or nothing. */
static void vector_xkvd(const struct vector *v, const uint8_t *req, uint64_t first)
{
	size_t allowed = bed.rules->trusted ? XKV_PAYLOAD_MAX4 : 3 * v->request.len;
	uint8_t reply[XKV_PAYLOAD_MAX4], want[VECTOR_BYTES];
	int len = store_datagram(bed.ctx, req, v->request.len, reply, sizeof(reply), allowed);

	assert_true(len >= 0);
	vector_fill(&v->reply, want, first, reply, (size_t)len);
	same_bytes(reply, (size_t)len, want, v->has_reply ? v->reply.len : 0);
}

/* One request of a vector; `first`: the version of its first entry. */
static void vector_request_run(const struct vector *v, uint64_t first, bool v6, unsigned int tags)
{
	static const int verdicts[] = {
		[VECTOR_TX] = XDP_TX, [VECTOR_PASS] = XDP_PASS, [VECTOR_DROP] = XDP_DROP
	};
	uint8_t frame[PACKET_MAX], want[PACKET_MAX], req[VECTOR_BYTES], reply[VECTOR_BYTES];
	size_t at = packet_payload_at(v6, tags), len;
	struct packet_spec s, answer;

	vector_fill(&v->request, req, first, NULL, 0);
	packet_default(&s, v6);
	s.tags = tags;
	s.payload = req;
	s.len = v->request.len;
	len = packet_build(&s, frame);
	assert_true(bed_run(&bed, frame, len, &out));
	if (out.verdict != verdicts[v->verdict])
		print_error("vector %s\n", v->name);
	assert_int_equal(out.verdict, verdicts[v->verdict]);
	if (v->verdict == VECTOR_PASS) {
		same_bytes(out.frame, out.len, frame, len);
		vector_xkvd(v, req, first);
	} else if (v->verdict == VECTOR_TX) {
		vector_fill(&v->reply, reply, first, out.frame + at,
			    out.len > at ? out.len - at : 0);
		answer = packet_answer(&s, reply, v->reply.len);
		same_bytes(out.frame, out.len, want, packet_build(&answer, want));
	}
	vector_after(v);
}

/* A vector of so many requests, over IPv4 and IPv6, with all numbers of tags. */
static void vector_run(const struct vector *v, unsigned int requests)
{
	size_t len = strlen(v->name);
	uint64_t first;

	now_running = v->name;
	for (unsigned int i = 0; i < 6; i++) {
		if (i % 2 && len > 3 && strcmp(v->name + len - 3, "-v4") == 0)
			continue;
		first = vector_given(v);
		vector_session++;
		for (unsigned int n = 0; n < requests; n++)
			vector_request_run(&v[n], first, i % 2, i / 2);
	}
	now_running = NULL;
}

static void test_vectors(void **state)
{
	static struct vector v[VECTOR_REQUESTS];
	unsigned int n = 0, requests;
	struct vector_file f;

	(void)state;
	vectors_open(&f);
	for (; (requests = vectors_read(&f, v)); n++)
		vector_run(v, requests);
	vectors_close(&f);
	assert_true(n > 50);
}

/* ---- all counters -------------------------------------------------------- */

/* What no frame can bring about here, and why. */
static const struct {
	int counter;
	const char *why;
} unreachable[] = {
	{ XKV_C_drop_internal, "the program contradicts itself: it cannot happen" },
	{ XKV_C_orphans, "a free list is contended 32 times in a row: needs many CPUs" },
};

static void test_every_counter(void **state)
{
	bool missing = false, excused;

	(void)state;
	for (int i = 0; i < XKV_COUNTER_COUNT; i++) {
		excused = false;
		for (size_t u = 0; u < sizeof(unreachable) / sizeof(unreachable[0]); u++)
			excused |= unreachable[u].counter == i;
		if (exercised[i] == !excused)
			continue;
		print_error("counter %s is %s\n", counter_name(i),
			    excused ? "named as unreachable, but is not" : "never exercised");
		missing = true;
	}
	assert_false(missing);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define OWN(name)  cmocka_unit_test_setup_teardown(name, own_setup, own_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_shapes),
		CASE(test_truncated),
		CASE(test_truncated_payload),
		CASE(test_not_ours),
		CASE(test_groups),
		CASE(test_tags),
		CASE(test_other_vlans),
		CASE(test_addresses_of_vlans),
		CASE(test_priority_tags),
		CASE(test_other_macs),
		CASE(test_impossible_macs),
		CASE(test_ip4_header),
		CASE(test_ip6_header),
		CASE(test_impossible_unseen),
		CASE(test_lengths),
		CASE(test_jumbo),
		CASE(test_checksums),
		CASE(test_checksum_zero),
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
		CASE(test_other_port),
		CASE(test_header),
		CASE(test_header_flags),
		CASE(test_header_length),
		CASE(test_token),
		CASE(test_opcodes),
		CASE(test_flags),
		CASE(test_bad_fields),
		CASE(test_bad_keys),
		CASE(test_dirty_padding),
		CASE(test_bad_value_len),
		CASE(test_value_lengths),
		CASE(test_key_lengths),
		CASE(test_reply_limit),
		CASE(test_around_the_limit),
		CASE(test_misses),
		CASE(test_conditions),
		CASE(test_delete),
		CASE(test_return),
		CASE(test_ttl),
		CASE(test_expired_conditions),
		CASE(test_expire),
		CASE(test_expire_cas),
		CASE(test_long_ttl),
		CASE(test_expire_cycle),
		CASE(test_flush),
		CASE(test_earliest_time),
		CASE(test_incr),
		CASE(test_incr_conditions),
		CASE(test_append),
		CASE(test_append_too_large),
		CASE(test_ttl_touch),
		CASE(test_scan),
		CASE(test_once),
		CASE(test_once_long),
		CASE(test_once_goes_up),
		CASE(test_once_reads),
		CASE(test_once_full),
		CASE(test_batch),
		CASE(test_many_pings),
		CASE(test_partial_miss),
		CASE(test_partial_full),
		CASE(test_partial_refused),
		CASE(test_three_times),
		CASE(test_three_times_return),
		CASE(test_pad_is_last),
		CASE(test_locked),
		CASE(test_no_room),
		CASE(test_list_tag),
		CASE(test_eviction),
		OWN(test_no_slot),
		OWN(test_page_refused),
		OWN(test_free_count_lags),
		OWN(test_wait_ends),
		OWN(test_adopt_spans),
		OWN(test_larger_class),
		OWN(test_full),
		OWN(test_one_bucket),
		OWN(test_chain_shrinks),
		OWN(test_chain_expires),
		OWN(test_chain_no_slot),
		OWN(test_locked_bucket),
		OWN(test_eviction_of_few),
		OWN(test_relocate),
		OWN(test_drain),
		OWN(test_drain_to_larger_class),
		OWN(test_adopt_prefilled),
		CASE(test_append_expires_while_joined),
		CASE(test_vectors),
		CASE(test_every_counter),
	};
	int status = bed_begin(argc, argv);

	return status ? status :
			cmocka_run_group_tests_name("packet", tests, group_setup, group_teardown);
}

// SPDX-License-Identifier: BSD-2-Clause
/* Frames through the XDP program, and what comes of them: see exchange.h. */
#include "exchange.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <linux/bpf.h>

/* Operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

struct outcome out;
uint64_t version;
const char *vector_running;
unsigned int shape;

/* ---- running and comparing ----------------------------------------------- */

void count_check(const uint64_t *before, const int *expected)
{
	uint64_t after[XKV_COUNTER_COUNT];
	int64_t want[XKV_COUNTER_COUNT] = { 0 };
	bool ok = true;

	bed_counters(&bed, after);
	for (; *expected != NOTHING; expected++)
		want[*expected]++;
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

void same_bytes(const uint8_t *is, size_t is_len, const uint8_t *want, size_t want_len)
{
	if (is_len == want_len && !memcmp(is, want, want_len))
		return;
	if (vector_running)
		print_error("vector %s\n", vector_running);
	hex("expected", want, want_len);
	hex("but got", is, is_len);
	fail();
}

void run_frame(const uint8_t *frame, size_t len, int verdict, const int *counters)
{
	uint64_t before[XKV_COUNTER_COUNT];

	bed_counters(&bed, before);
	assert_true(bed_run(&bed, frame, len, &out));
	if (out.verdict != verdict)
		print_error("verdict %d, not %d\n", out.verdict, verdict);
	count_check(before, counters);
	assert_int_equal(out.verdict, verdict);
}

void passes_frame(const uint8_t *frame, size_t len, int counter)
{
	run_frame(frame, len, XDP_PASS, COUNTS(counter));
	same_bytes(out.frame, out.len, frame, len);
}

/* In batched mode what is in a VLAN is served as ever: what else is noted cannot go up. */
void passes(const struct packet_spec *s, int counter)
{
	struct packet_spec tagged = *s;
	uint8_t frame[PACKET_MAX];

	if (bed_batched && counter <= XKV_C_pass_too_large && !s->v6 && !s->tags)
		tagged.tags = 1;
	passes_frame(frame, packet_build(&tagged, frame), counter);
}

void drops(const struct packet_spec *s, int counter)
{
	uint8_t frame[PACKET_MAX];

	run_frame(frame, packet_build(s, frame), XDP_DROP, COUNTS(counter));
}

struct packet_spec next_shape(const struct payload *req)
{
	struct packet_spec s = packet_plain(shape & 1, req);

	s.tags = shape / 2 % 3;
	s.trailer = shape % 5 == 4 ? 11 : 0;
	s.udp_check = shape % 4 == 2 ? CHECK_ZERO : CHECK_RIGHT; /* IPv4 only */
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

void spec_answers(const struct packet_spec *s, uint8_t status, const struct result *r, size_t n,
		  const int *counters)
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

void answers(const struct payload *req, const struct result *r, size_t n, const int *counters)
{
	struct packet_spec s = next_shape(req);

	spec_answers(&s, 0, r, n, counters);
}

void header_answers(const struct payload *req, uint8_t status, int counter)
{
	struct packet_spec s = next_shape(req);

	spec_answers(&s, status, NULL, 0, COUNTS(counter));
}

void goes_up(const struct payload *req, int counter)
{
	struct packet_spec s = next_shape(req);

	passes(&s, counter);
}

void xkvd_answers(const struct payload *req, size_t allowed, const struct result *r, size_t n,
		  const int *counters)
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

struct payload request(const struct operation *op)
{
	struct payload p;

	request_begin(&p, ID, NULL);
	request_add(&p, op);
	return p;
}

struct payload ping(void)
{
	return REQUEST(XKV_OP_PING, 0);
}

/* ---- set-up -------------------------------------------------------------- */

void warm(void)
{
	assert_true(bed_warm(&bed));
}

void open_one_bucket(void)
{
	open_masked_bed(0, ~0ULL);
}

int exchange_begin(void **state)
{
	open_bed(MAX_KEYS);
	warm();
	return 0;
}

int exchange_setup(void **state)
{
	if (!bed.st)
		exchange_begin(state);
	bed_configure(&bed);
	store_start(bed.st);
	expire_all();
	assert_int_equal(store_flush(bed.ctx), 0);
	assert_int_equal(bed_index_count(&bed), 0);
	shape = 0;
	return 0;
}

int exchange_teardown(void **state)
{
	account();
	return 0;
}

/* The shared store comes back when a case wants it: loading the programs takes a second. */
int own_setup(void **state)
{
	shape = 0;
	return 0;
}

int own_teardown(void **state)
{
	int ret = exchange_teardown(state);

	bed_close(&bed);
	return ret;
}

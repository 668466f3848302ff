// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 8 */
/*
 * Packets in bulks (bpf/bulk.bpf.h).  The kernel's queue is made here: ingress() runs the program
 * that redirects, queue() the one that the kernel runs on what was redirected.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>

#include "bpf/layout.h"
#include "loader/store/store.h"
#include "exchange.h"
#include "fixture.h"
#include "packet.h"
#include "random.h"
#include "xdpbed.h"

/* Operations are given by what matters in them. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define PAYLOAD_AT 42 /* of what is noted: IPv4 without a VLAN tag */
#define STATUS_AT  (PAYLOAD_AT + 17)

struct frame {
	size_t len;
	uint8_t byte[PACKET_MAX];
};

static int run(int prog, struct frame *f)
{
	uint8_t in[PACKET_MAX];
	LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = in, .data_size_in = (uint32_t)f->len,
		    .data_out = f->byte, .data_size_out = sizeof(f->byte), .repeat = 1);

	memcpy(in, f->byte, f->len);
	assert_int_equal(bpf_prog_test_run_opts(prog, &opts), 0);
	f->len = opts.data_size_out;
	return (int)opts.retval;
}

static int ingress(struct frame *f)
{
	return run(bed_xdp(&bed), f);
}

static int queue(struct frame *f)
{
	return run(bed.bulk_prog, f);
}

static struct frame frame_of(const struct packet_spec *s)
{
	struct frame f;

	f.len = packet_build(s, f.byte);
	return f;
}

static struct frame plain(const struct payload *req)
{
	struct packet_spec s = packet_plain(false, req);

	return frame_of(&s);
}

/* The state of this CPU. */
static struct xkv_bulk state(void)
{
	struct xkv_bulk *each = calloc(bed.cpus, sizeof(*each)), mine;
	__u32 zero = 0;

	assert_int_equal(
		bpf_map_lookup_elem(bpf_object__find_map_fd_by_name(bed.object, "xkv_bulk"), &zero,
				    each),
		0);
	mine = each[sched_getcpu()];
	free(each);
	return mine;
}

static bool same_frame(const struct frame *a, const struct frame *b)
{
	return a->len == b->len && !memcmp(a->byte, b->byte, a->len);
}

/* It is not noted, and goes up for this reason, as it came. */
static void stays_single(const struct frame *f, int counter)
{
	uint32_t noted = state().noted;

	passes_frame(f->byte, f->len, counter);
	assert_int_equal(state().noted, noted);
}

static struct payload get_of(const char *key)
{
	return REQUEST(XKV_OP_GET, KEY(key));
}

static struct payload set_of(const char *key, size_t value_len)
{
	return REQUEST(XKV_OP_SET, KEY(key), .value = pattern(0), .value_len = value_len);
}

/* ---- what is not noted ---------------------------------------------------- */

/*
 * UDP says that the payload reaches beyond the frame: without a checksum, only the length tells.
 * The value would be what the slot held before, and replies could be of any size.
 */
static void test_longer_than_frame(void **state_)
{
	struct payload req = set_of("a", 1000);
	struct packet_spec s;
	struct frame f;

	(void)state_;
	put("a", pattern(1), 1000, 0);
	s = packet_plain(false, &req);
	s.udp_check = CHECK_ZERO;
	f = frame_of(&s);
	f.len -= 500;
	stays_single(&f, XKV_C_pass_length);
	holds("a", pattern(1), 1000);
	req = get_of("a");
	s = packet_plain(false, &req);
	s.udp_check = CHECK_ZERO;
	s.udp_len_add = s.ip_len_add = 1000;
	bed.rules->trusted = 0;
	f = frame_of(&s);
	stays_single(&f, XKV_C_pass_length);
}

/* The padding of a value is stored, so APPEND and INCR rely on zeros there. */
static void test_value_padding(void **state_)
{
	struct payload req = set_of("a", 5);
	struct packet_spec s;

	(void)state_;
	put_text("a", "hello");
	s = packet_plain(false, &req);
	for (size_t i = req.len - 3; i < req.len; i++) {
		req.byte[i] = 1;
		spec_answers(&s, 0, RESULTS({ XKV_OP_SET, XKV_BAD_REQUEST }),
			     COUNTS(XKV_C_op_bad_request));
		req.byte[i] = 0;
	}
	holds_text("a", "hello");
}

/* A newer xkvd has closed the store to copy it. */
static void test_closed(void **state_)
{
	struct payload req = set_of("a", 5);
	struct frame f = plain(&req);

	(void)state_;
	put_text("a", "hello");
	bed.c->magic = XKV_LAYOUT_CLOSED;
	stays_single(&f, XKV_C_pass_not_ready);
	bed.c->magic = XKV_LAYOUT_MAGIC;
	holds_text("a", "hello");
}

/* The kernel drops what is redirected and longer than the device's MTU. */
static void test_longer_than_mtu(void **state_)
{
	struct payload req = get_of("a");
	struct packet_spec s;
	struct frame f;

	(void)state_;
	put_text("a", "hello");
	bed.c->payload4 = 1000;
	request_pad(&req, 1000 - req.len, 0);
	f = plain(&req);
	assert_int_equal(ingress(&f), XDP_REDIRECT);
	assert_int_equal(queue(&f), XDP_PASS);
	request_pad(&req, 8, 0);
	f = plain(&req);
	assert_int_equal(ingress(&f), XDP_TX);
	req.len -= 8;
	s = packet_plain(false, &req);
	s.trailer = 8;
	f = frame_of(&s);
	assert_int_equal(ingress(&f), XDP_TX);
}

/* ---- BUSY ------------------------------------------------------------------ */

/* Is this request, whose key is locked, answered BUSY?  Else it goes up. */
static bool is_busy(const struct payload *req)
{
	struct frame f = plain(req);

	if (ingress(&f) == XDP_PASS)
		return false;
	assert_int_equal(queue(&f), XDP_PASS);
	assert_int_equal(f.byte[STATUS_AT], XKV_BUSY);
	return true;
}

static void lock(const char *key, bool on)
{
	struct xkv_slot *slot = bed_slot(&bed, key, strlen(key));

	slot->seq += on ? 1 : -1;
}

/* A GET of the same key that comes in between does not go up in the place of a SET. */
static void test_refused_change(void **state_)
{
	struct payload set = set_of("a", 5), get = get_of("a");

	(void)state_;
	put_text("a", "hello");
	lock("a", true);
	assert_true(is_busy(&set));
	assert_true(is_busy(&get));
	assert_false(is_busy(&set));
	assert_false(is_busy(&get));
	assert_true(is_busy(&set));
	assert_false(is_busy(&set));
	lock("a", false);
}

/* Of many that are refused at the same time, most go up when they come again. */
static void test_refused_many(void **state_)
{
	unsigned int again = 0;
	struct payload set;
	char key[8];

	(void)state_;
	for (int turn = 0; turn < 2; turn++)
		for (int i = 0; i < 32; i++) {
			snprintf(key, sizeof(key), "k%d", i);
			if (!turn)
				put_text(key, "hello");
			lock(key, true);
			set = set_of(key, 5);
			again += is_busy(&set) && turn;
			lock(key, false);
		}
	assert_in_range(again, 0, 16);
}

/* ---- the queue -------------------------------------------------------------- */

#define QUEUED 17 /* the queue is full, and one more was noted */

static void key_name(char key[8], int i)
{
	snprintf(key, 8, "key%d", i);
}

static void note(struct frame *f, int i)
{
	struct payload req;
	char key[8];

	key_name(key, i);
	req = get_of(key);
	put_be(req.byte + 8, 8, (uint64_t)i);
	*f = plain(&req);
	assert_int_equal(ingress(f), XDP_REDIRECT);
}

static void is_reply(struct frame *f, int i)
{
	const uint8_t *payload = f->byte + PAYLOAD_AT;

	assert_int_equal(queue(f), XDP_PASS);
	assert_null(packet_complaint(f->byte, f->len));
	assert_int_equal(get_be(payload + 8, 8), i);
	assert_int_equal(f->byte[STATUS_AT], XKV_OK);
	assert_memory_equal(payload + 40, pattern((unsigned int)i) + i, 8);
}

static void fill(void)
{
	char key[8];

	for (int i = 0; i < 40; i++) {
		key_name(key, i);
		put(key, pattern((unsigned int)i) + i, (size_t)(8 + i * 30), 0);
	}
}

/* Many queues, one after the other: each packet gets its own reply. */
static void test_order(void **state_)
{
	struct frame f[40];
	struct xkv_bulk before, after;

	(void)state_;
	fill();
	bed_xdp(&bed);
	before = state();
	for (int turn = 0; turn < 5; turn++) {
		for (int i = 0; i < QUEUED; i++)
			note(&f[i], i);
		for (int i = 0; i < QUEUED - 1; i++)
			is_reply(&f[i], i);
		for (int i = QUEUED; i < 20; i++)
			note(&f[i], i);
		for (int i = QUEUED - 1; i < 20; i++)
			is_reply(&f[i], i);
	}
	after = state();
	assert_int_equal(after.packets - before.packets, 100);
	assert_int_equal(after.runs - before.runs, 10);
	assert_int_equal(after.lost, before.lost);
	assert_int_equal(after.general, before.general);
}

/* Some of the packets never come, others are another program's. */
static void test_lost_and_foreign(void **state_)
{
	struct payload req = get_of("key1");
	struct frame f[QUEUED], foreign = plain(&req), was = foreign;
	uint64_t lost;

	(void)state_;
	fill();
	bed_xdp(&bed);
	lost = state().lost;
	for (int turn = 0; turn < 20; turn++) {
		for (int i = 0; i < QUEUED; i++)
			note(&f[i], i);
		for (int i = turn % 7; i < QUEUED; i += 1 + turn % 3) {
			assert_int_equal(queue(&foreign), XDP_PASS);
			assert_true(same_frame(&foreign, &was));
			is_reply(&f[i], i);
			was = f[i]; /* its mark is of no use any more */
			assert_int_equal(queue(&f[i]), XDP_PASS);
			assert_true(same_frame(&f[i], &was));
			was = foreign;
		}
	}
	assert_true(state().lost > lost);
	assert_true(state().noted - state().served < QUEUED);
}

/* If no packet comes, notes are not reused for those that may still come. */
static void test_reset(void **state_)
{
	struct frame f[40], was;

	(void)state_;
	fill();
	for (int i = 0; i < 40; i++)
		note(&f[i], i);
	was = f[0];
	assert_int_equal(queue(&f[0]), XDP_PASS);
	assert_true(same_frame(&f[0], &was));
	for (int i = 40 - 8; i < 40; i++)
		is_reply(&f[i], i);
}

/* Nobody knows the marks, not even the first ones. */
static void test_marks(void **state_)
{
	uint64_t mark;
	struct frame f;

	(void)state_;
	put("key0", pattern(0), 8, 0);
	note(&f, 0);
	memcpy(&mark, f.byte + PAYLOAD_AT, 8);
	is_reply(&f, 0);
	for (uint64_t i = 1; i < 1000; i++)
		assert_int_not_equal(mark, i * 0x9e3779b97f4a7c15ULL);
}

/* Settings change while the packet waits. */
static void test_changed_meanwhile(void **state_)
{
	struct payload set = set_of("key0", 100), get = get_of("key3");
	struct frame f = plain(&set);

	(void)state_;
	fill();
	assert_int_equal(ingress(&f), XDP_REDIRECT);
	bed.c->read_only = 1;
	assert_int_equal(queue(&f), XDP_PASS);
	assert_int_equal(f.byte[STATUS_AT], XKV_READ_ONLY);
	holds("key0", pattern(0), 8);
	bed.c->read_only = 0;
	/* deleted, and written again in another class */
	f = plain(&get);
	assert_int_equal(ingress(&f), XDP_REDIRECT);
	assert_int_equal(store_delete(bed.ctx, "key3", 4, NULL), 0);
	assert_int_equal(queue(&f), XDP_PASS);
	assert_int_equal(f.byte[STATUS_AT], XKV_MISS);
	f = plain(&get);
	assert_int_equal(ingress(&f), XDP_REDIRECT);
	put("key3", pattern(0), 1400, 0);
	assert_int_equal(queue(&f), XDP_PASS);
	assert_int_equal(f.len, PAYLOAD_AT + 40 + 1400);
	assert_memory_equal(f.byte + PAYLOAD_AT + 40, pattern(0), 1400);
	assert_null(packet_complaint(f.byte, f.len));
}

static int bulk_begin(void **state_)
{
	exchange_begin(state_);
	return bed_xdp(&bed) < 0;
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_marks), /* first: the program is new */
		CASE(test_longer_than_frame),
		CASE(test_value_padding),
		CASE(test_closed),
		CASE(test_longer_than_mtu),
		CASE(test_refused_change),
		CASE(test_refused_many),
		CASE(test_order),
		CASE(test_lost_and_foreign),
		CASE(test_reset),
		CASE(test_changed_meanwhile),
	};
	int ret = bed_begin(argc, argv);
	cpu_set_t here;

	if (ret)
		return ret;
	CPU_ZERO(&here); /* notes are per CPU */
	CPU_SET(sched_getcpu(), &here);
	sched_setaffinity(0, sizeof(here), &here);
	bed_batched = true;
	return cmocka_run_group_tests(tests, bulk_begin, close_bed);
}

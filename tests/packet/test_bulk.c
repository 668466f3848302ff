// SPDX-License-Identifier: BSD-2-Clause
/* tests/run: seconds 6 */
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
#define NAME_BYTES 16 /* of a key */

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

/* As if the program were new. */
static void forget_state(void)
{
	struct xkv_bulk *each = calloc(bed.cpus, sizeof(*each));
	__u32 zero = 0;

	assert_int_equal(
		bpf_map_update_elem(bpf_object__find_map_fd_by_name(bed.object, "xkv_bulk"), &zero,
				    each, BPF_ANY),
		0);
	free(each);
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

/* An xkvd that loads the snapshot has not opened the store yet. */
static void test_not_open(void **state_)
{
	struct payload req = set_of("a", 5);
	struct frame f = plain(&req);

	put_text("a", "hello");
	bed.c->magic = 0;
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

/*
 * Of many that are refused at the same time, most go up when they come again.  32 keys at random in
 * XKV_BULK_REFUSED places: 7 share theirs, as a rule, and more than 23 once in two million runs.
 */
static void test_refused_many(void **state_)
{
	unsigned int again = 0;
	struct payload set;
	char key[NAME_BYTES];

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
	assert_in_range(again, 0, 23);
}

/* ---- the queue -------------------------------------------------------------- */

#define QUEUED 17 /* the queue is full, and one more was noted */

static void key_name(char key[NAME_BYTES], int i)
{
	snprintf(key, NAME_BYTES, "key%d", i);
}

static void note(struct frame *f, int i)
{
	struct payload req;
	char key[NAME_BYTES];

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
	char key[NAME_BYTES];

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

	fill();
	assert_int_equal(ingress(&f), XDP_REDIRECT);
	bed.c->read_only = 1;
	assert_int_equal(queue(&f), XDP_PASS);
	assert_int_equal(f.byte[STATUS_AT], XKV_READ_ONLY);
	holds("key0", pattern(0), 8);
	bed.c->read_only = 0;
	f = plain(&set);
	assert_int_equal(ingress(&f), XDP_REDIRECT);
	store_hold_writes(bed.st, true, 0);
	bed.c->held_until_ns = UINT64_MAX; /* longer than xkvd would */
	assert_int_equal(queue(&f), XDP_PASS);
	assert_int_equal(f.byte[STATUS_AT], XKV_BUSY);
	holds("key0", pattern(0), 8);
	f = plain(&set);
	assert_int_equal(ingress(&f), XDP_PASS); /* not kept */
	store_hold_writes(bed.st, false, 0);
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

/* ---- the same, both ways ------------------------------------------------------ */

#define RANDOM_FRAMES 12000
#define ONE_OF(...)                                                                                \
	((const size_t[]){                                                                         \
		__VA_ARGS__ })[below(sizeof((const size_t[]){ __VA_ARGS__ }) / sizeof(size_t))]

/* A request of a key and what the store has of that. */
struct trial {
	uint8_t key[256];
	size_t key_len, value_len; /* of the entry */
	bool exists, expired, locked;
	bool is_set;
	struct frame frame;
};

static size_t any_length(size_t max)
{
	size_t len = ONE_OF(0, 1, 7, 8, 9, 16, 128, 255, 256, 257, 1000, 1384, 1424, 1432, 1440,
			    1472, below(1473), max, max - 1, max - 8);

	return len < max ? len : max;
}

/* Things that are wrong with a frame, or unusual. */
static void spoil(struct packet_spec *s)
{
	static const uint8_t sources[][4] = {
		{ 10, 77, 0, 255 }, { 10, 77, 0, 1 }, { 0, 1, 1, 1 },
		{ 127, 0, 0, 1 },   { 224, 1, 1, 1 }, { 10, 78, 0, 2 }
	};

	switch (below(24)) {
	case 0:
		s->udp_check = CHECK_WRONG;
		break;
	case 1:
		s->udp_len_add = s->ip_len_add = (int)ONE_OF(8, 16, 1000);
		s->udp_check = CHECK_ZERO;
		break;
	case 2:
		s->udp_len_add = -(int)ONE_OF(1, 4, 8, 16);
		break;
	case 3:
		s->ip_len_add = (int)below(40) - 20;
		break;
	case 4:
		s->bad_ip_check = true;
		break;
	case 5:
		s->ihl = 6;
		break;
	case 6:
		s->frag = (uint16_t)ONE_OF(0x2000, 0x0001, 0x4000, 0x8000);
		break;
	case 7:
		memcpy(s->src, sources[below(6)], 4);
		break;
	case 8:
		s->dst_mac[below(6)] ^= 1 << below(8);
		break;
	case 9:
		memcpy(s->src_mac, s->dst_mac, 6);
		break;
	case 10:
		s->sport = 0;
		break;
	case 11:
		s->dst[below(4)] ^= 1;
		break;
	}
}

static void random_trial(struct trial *t)
{
	struct operation op = { 0 };
	struct packet_spec s;
	struct payload p;

	memset(t, 0, sizeof(*t));
	t->key_len = ONE_OF(1, 7, 8, 9, 16, 63, 64, 65, 128, 249, 250, 1 + below(250));
	memset(t->key, 'k', sizeof(t->key));
	t->key[t->key_len - 1] = (uint8_t)below(256);
	t->value_len = any_length(1472);
	t->exists = below(8);
	t->expired = !below(8);
	t->locked = !below(8);
	t->is_set = below(2);
	op.opcode = t->is_set ? XKV_OP_SET : XKV_OP_GET;
	op.key = t->key;
	op.key_len = t->key_len;
	op.value = noise((uint32_t)random_u64());
	if (t->is_set) /* often of the same class */
		op.value_len = below(3) ? t->value_len ^ below(8) : any_length(1472);
	if (op.value_len > XKV_PAYLOAD_MAX4 - 40 - XKV_PADDED(t->key_len))
		op.value_len = XKV_PAYLOAD_MAX4 - 40 - XKV_PADDED(t->key_len);
	request_begin(&p, random_u64(), NULL);
	request_add(&p, &op);
	if (!below(3))
		request_pad(&p, below(XKV_PAYLOAD_MAX4 - p.len + 9) & (below(8) ? ~7U : ~0U), 0);
	if (!below(8)) /* any byte of the request; the last are padding */
		p.byte[below(2) ? below(p.len) : p.len - 1 - below(7)] ^= 1 << below(8);
	s = packet_plain(false, &p);
	s.udp_check = below(4) ? CHECK_RIGHT : CHECK_ZERO;
	s.trailer = below(4) ? 0 : below(30);
	spoil(&s);
	t->frame = frame_of(&s);
	if (!below(16))
		t->frame.len -= below(t->frame.len - 14);
	if (!below(16)) {
		t->frame.byte[below(t->frame.len)] ^= 1 << below(8);
		if (below(2))
			packet_fix(t->frame.byte, t->frame.len);
	}
}

/* What is in the slot of the key, padding included. */
struct image {
	size_t len;
	uint64_t expire_ms;
	uint8_t value[XKV_SLOT_WINDOW];
};

static struct image image_of(const struct trial *t)
{
	struct xkv_slot *slot = bed_slot(&bed, t->key, t->key_len);
	struct image i;

	memset(&i, 0, sizeof(i));
	i.len = SIZE_MAX;
	if (!slot)
		return i;
	i.len = slot->value_len;
	i.expire_ms = slot->expire_ms;
	memcpy(i.value, (uint8_t *)(slot + 1) + XKV_PADDED(t->key_len), XKV_PADDED(i.len));
	return i;
}

static void prepare(const struct trial *t)
{
	struct store_entry e;

	if (t->exists)
		put_bytes(t->key, t->key_len, pattern(0), t->value_len, 0);
	else if (!store_get(bed.ctx, t->key, t->key_len, &e))
		assert_int_equal(store_delete(bed.ctx, t->key, t->key_len, NULL), 0);
	if (t->exists && t->expired)
		bed_slot(&bed, t->key, t->key_len)->expire_ms = 1;
	if (t->exists && t->locked)
		bed_slot(&bed, t->key, t->key_len)->seq |= 1;
}

static void unlock(const struct trial *t)
{
	struct xkv_slot *slot = bed_slot(&bed, t->key, t->key_len);

	if (t->exists && t->locked && slot)
		slot->seq &= ~1ULL;
}

static int one_by_one(struct frame *f)
{
	int verdict;

	bed.c->batch = XKV_BATCH_OFF;
	verdict = ingress(f);
	bed.c->batch = XKV_BATCH_ON;
	return verdict;
}

static unsigned int queued;

static int in_queue(struct frame *f)
{
	int verdict = ingress(f);

	if (verdict != XDP_REDIRECT)
		return verdict;
	queued++;
	return queue(f) == XDP_PASS ? XDP_TX : XDP_ABORTED;
}

/* Versions are never the same. */
static void forget_version(struct frame *f)
{
	assert_null(packet_complaint(f->byte, f->len));
	if (f->len >= PAYLOAD_AT + 40)
		memset(f->byte + PAYLOAD_AT + 32, 0, 8);
	memset(f->byte + 40, 0, 2);
}

static void compare(const struct trial *t, struct frame *a, int verdict_a, struct frame *b,
		    int verdict_b)
{
	uint8_t status = b->byte[STATUS_AT];

	if (verdict_a == XDP_TX && verdict_b == XDP_TX) {
		forget_version(a);
		forget_version(b);
	}
	if (verdict_a == verdict_b && (verdict_a == XDP_DROP || same_frame(a, b)))
		return;
	/* what would go up and cannot is answered */
	if (verdict_a == XDP_PASS && verdict_b == XDP_TX && same_frame(a, &t->frame) &&
	    b->len == PAYLOAD_AT + 40 &&
	    (status == XKV_MISS || status == XKV_BUSY || status == XKV_TOO_LARGE))
		return;
	print_error("%s, key of %zu, entry of %zu, %d %d %d: verdict %d, queued %d\n",
		    t->is_set ? "SET" : "GET", t->key_len, t->value_len, t->exists, t->expired,
		    t->locked, verdict_a, verdict_b);
	same_bytes(b->byte, b->len, a->byte, a->len);
	fail();
}

static void test_both_ways(void **state_)
{
	struct frame a, b;
	struct image image_a, image_b;
	int verdict_a, verdict_b;
	struct trial t;

	random_state = 1;
	queued = 0;
	for (int i = 0; i < RANDOM_FRAMES; i++) {
		random_trial(&t);
		bed.rules->trusted = below(2);
		bed.c->payload4 = (uint16_t)ONE_OF(1472, 1472, 1400, 400);
		bed.c->read_only = below(16) ? 0 : ONE_OF(XKV_WRITES_REFUSED, XKV_WRITES_HELD);
		bed.c->held_until_ns = below(4) ? UINT64_MAX : 0;
		prepare(&t);
		a = b = t.frame;
		verdict_a = one_by_one(&a);
		image_a = image_of(&t);
		unlock(&t);
		if (t.is_set)
			prepare(&t);
		else if (t.exists && t.locked)
			bed_slot(&bed, t.key, t.key_len)->seq |= 1;
		verdict_b = in_queue(&b);
		image_b = image_of(&t);
		unlock(&t);
		compare(&t, &a, verdict_a, &b, verdict_b);
		/* set at different times: a changed bit may be a ttl's */
		assert_true(image_b.expire_ms - image_a.expire_ms < 1000);
		image_a.expire_ms = image_b.expire_ms;
		assert_memory_equal(&image_a, &image_b, sizeof(image_a));
	}
	assert_in_range(queued, RANDOM_FRAMES / 4, RANDOM_FRAMES);
}

/* ---- which way? --------------------------------------------------------------- */

/* Packets that come one at a time are tried in the queue now and then, but not kept there. */
static void test_single_packets(void **state_)
{
	struct payload req = get_of("a");
	uint32_t noted;
	struct frame f;

	put_text("a", "hello");
	forget_state();
	for (int turn = 0; turn < 3; turn++) {
		bed.c->batch = XKV_BATCH_AUTO;
		noted = state().noted;
		for (int i = 0; i < 20000; i++) {
			f = plain(&req);
			assert_int_equal(in_queue(&f), XDP_TX);
			assert_int_equal(f.byte[STATUS_AT], XKV_OK);
		}
		assert_in_range(state().noted - noted, turn ? 0 : 32, 2 * 32);
		bed.c->batch = turn ? XKV_BATCH_OFF : XKV_BATCH_ON; /* by the operator */
		f = plain(&req);
		assert_int_equal(in_queue(&f), XDP_TX);
	}
}

/* A queue that takes packets and never runs gets only a few; some time later it is tried again. */
static void test_dead_queue(void **state_)
{
	struct payload req = get_of("a");
	unsigned int lost = 0;
	struct frame f;

	put_text("a", "hello");
	forget_state();
	bed.c->batch = XKV_BATCH_AUTO;
	for (int i = 0; i < 50000; i++) {
		f = plain(&req);
		lost += ingress(&f) != XDP_TX;
	}
	assert_in_range(lost, 1, 40);
	assert_in_range(state().left, 1, 1 << 24);
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
		CASE(test_not_open),
		CASE(test_longer_than_mtu),
		CASE(test_refused_change),
		CASE(test_refused_many),
		CASE(test_order),
		CASE(test_lost_and_foreign),
		CASE(test_reset),
		CASE(test_changed_meanwhile),
		CASE(test_both_ways),
		CASE(test_single_packets),
		CASE(test_dead_queue),
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

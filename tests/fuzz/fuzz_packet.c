// SPDX-License-Identifier: BSD-2-Clause
/*
 * Broken frames for the XDP program: valid ones with bits flipped, cut, spliced
 * and with their lengths and fields changed, half of them with checksums that are
 * made right again, so that the damage gets past the first checks.
 *
 *     fuzz_packet [FRAMES [SEED]]
 *
 * After each frame: it is passed as it came, dropped, or answered with a frame
 * that is whole and no larger than allowed.  Every so often, and at the end, each
 * slot of the store is accounted for.  The same seed makes the same frames
 * (versions and times that the store gives out differ); what fails is printed.
 *
 * With XKV_TEST_BATCH in the environment, half of the frames are made from requests that batched
 * mode takes.  Those that are queued wait for others; then some are lost, packets of nobody come in
 * between, keys change, and each other one has to become the reply to its own request.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <linux/bpf.h>

#include "loader/store/store.h"
#include "packet.h"
#include "random.h"
#include "xdpbed.h"

#define ACCOUNT_EVERY 20000
#define MAX_KEYS      16   /* few buckets, so that long chains and full ones are met too */
#define FRAME_SEEN    1600 /* bytes of a frame that are mutated */
#define QUEUED_MAX    16   /* as the kernel's queue */
#define PAYLOAD_AT    42   /* of what is queued: IPv4 without a VLAN tag */

struct frame {
	size_t len;
	uint8_t byte[PACKET_MAX];
};

/* A frame that was redirected, as it came and as it waits. */
struct waiting {
	uint64_t number;
	struct frame in, marked;
};

static struct bed bed;
static uint64_t reads_compared, answered_queued, lost_queued;
static struct waiting queue[QUEUED_MAX];
static unsigned int queued;

/* ---- valid frames -------------------------------------------------------- */

static const uint8_t token[XKV_TOKEN_BYTES] = "0123456789abcde";

static uint8_t random_flags(uint8_t opcode)
{
	static const uint8_t set[] = {
		0,	     0,	      0,	  XKV_NX,     XKV_XX,
		XKV_KEEPTTL, XKV_CAS, XKV_RETURN, XKV_ABSTTL, XKV_NX | XKV_RETURN
	};

	switch (opcode) {
	case XKV_OP_SET:
		return set[below(sizeof(set))];
	case XKV_OP_DELETE:
		return below(2) ? 0 : below(2) ? XKV_RETURN : XKV_CAS;
	case XKV_OP_INCR:
	case XKV_OP_APPEND:
		return below(4) ? 0 : below(2) ? XKV_XX : XKV_CAS;
	case XKV_OP_EXPIRE:
		return below(2) ? 0 : below(2) ? XKV_ABSTTL : XKV_CAS;
	}
	return 0;
}

/* Bytes of the value for each opcode that has one; half of what SET writes can be counted up. */
static void random_value(struct operation *op, const uint8_t *bytes)
{
	static char number[24];

	op->value = bytes + below(2000);
	switch (op->opcode) {
	case XKV_OP_SET:
		op->value_len = below(3) ? below(64) : below(1200);
		if (below(2))
			break;
		op->value = number;
		op->value_len = (size_t)snprintf(number, sizeof(number), "%" PRId64,
						 (int64_t)random_u64() >> below(64));
		break;
	case XKV_OP_INCR:
		op->value_len = 8;
		break;
	case XKV_OP_APPEND:
		op->value_len = below(64);
		break;
	default:
		op->value = NULL;
	}
}

static struct operation random_operation(void)
{
	static uint8_t bytes[4096], counted[] = "key00000";
	struct operation op = { .opcode = (uint8_t)(1 + below(XKV_OP_CHECK)) };

	if (!bytes[0])
		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (uint8_t)(random_u64() | !i);
	if (op.opcode == XKV_OP_PING)
		return op;
	op.key_len = below(4) ? 1 + below(12) : 1 + below(XKV_KEY_MAX);
	op.key = bytes + below(64); /* few keys, so that they are met again */
	if (op.opcode == XKV_OP_SCAN || !below(4)) {
		op.key = counted;
		op.key_len = 8;
		counted[7] = (uint8_t)('0' + below(10));
	}
	op.flags = random_flags(op.opcode);
	random_value(&op, bytes);
	if ((op.opcode == XKV_OP_SET && !(op.flags & XKV_KEEPTTL) && !below(4)) ||
	    op.opcode == XKV_OP_EXPIRE)
		op.ttl = below(2) ? 1 + below(10) : below(1000000);
	return op;
}

/* Has the request done only once: one of a few sessions, with an id that may have been there
 * before. */
static void make_once(struct payload *req)
{
	req->byte[3] |= XKV_F_ONCE;
	put_be(req->byte + 8, 8, 1 + below(64));
	put_be(req->byte + req->len, 8, 1 + below(8));
	req->len += XKV_SESSION_BYTES;
}

/* Puts a request into a frame. */
static size_t frame_of(const struct payload *req, uint8_t *frame)
{
	struct packet_spec s;

	s = packet_plain(below(2), req);
	s.tags = (unsigned int)below(3);
	s.trailer = below(4) ? 0 : below(64);
	return packet_build(&s, frame);
}

static size_t random_frame(uint8_t *frame)
{
	size_t ops = below(3) ? 1 : 1 + below(8), at;
	struct operation op;
	struct payload req;

	request_begin(&req, random_u64(), below(4) ? NULL : token);
	if (!below(4)) { /* a transaction, unless it has an operation that none may have */
		req.byte[3] |= XKV_F_ATOMIC;
		ops = 1 + below(8);
	}
	if ((ops == 1 || req.byte[3] & XKV_F_ATOMIC) && !below(4))
		make_once(&req);
	while (ops--) {
		op = random_operation();
		at = req.len;
		if (req.len + 24 + XKV_PADDED(op.key_len) + XKV_PADDED(op.value_len) >
		    XKV_PAYLOAD_MAX4)
			break;
		request_add(&req, &op);
		if (op.opcode == XKV_OP_SCAN)
			req.byte[at + 3] = (uint8_t)(1 + below(XKV_SCAN_MAX));
	}
	if (!below(4))
		request_pad(&req, below(XKV_PAYLOAD_MAX4 - req.len + 1), 0);
	return frame_of(&req, frame);
}

/* One that batched mode takes, unless it is mutated. */
static size_t queueable_frame(uint8_t *frame)
{
	struct operation op;
	struct packet_spec s;
	struct payload req;

	do
		op = random_operation();
	while (op.opcode != XKV_OP_GET && op.opcode != XKV_OP_SET);
	op.flags = 0;
	op.ttl = 0;
	request_begin(&req, random_u64(), NULL);
	request_add(&req, &op);
	if (req.len < XKV_PAYLOAD_MAX4 && !below(4)) /* the longest key and value exceed it */
		request_pad(&req, below(XKV_PAYLOAD_MAX4 - req.len + 1) & ~(size_t)7, 0);
	s = packet_plain(false, &req);
	s.trailer = below(4) ? 0 : below(64);
	return packet_build(&s, frame);
}

/* ---- many reads at once ---------------------------------------------------- */

/* Numbered keys of a length that each number has, some of which are there. */
static struct operation numbered(uint8_t opcode, size_t number)
{
	static const size_t lengths[] = { 5, 8, 16, 17, 64, 249, 250 };
	static char key[XKV_KEY_MAX + 1];
	struct operation op = { .opcode = opcode, .key = key };

	op.key_len = lengths[number / 100 % (sizeof(lengths) / sizeof(*lengths))];
	memset(key, 'r', op.key_len);
	snprintf(key + op.key_len - 3, 4, "%03zu", number);
	return op;
}

/* Writes one of them: mostly small, so that many fit a reply. */
static void write_numbered(void)
{
	static const uint8_t bytes[XKV_PAYLOAD_MAX4] = "what many reads find";
	struct operation key = numbered(0, below(700));
	struct store_op op = { .opcode = below(8) ? XKV_OP_SET : XKV_OP_DELETE,
			       .key = key.key,
			       .key_len = key.key_len };
	struct store_entry unused;

	if (op.opcode == XKV_OP_SET) {
		op.value = bytes;
		op.value_len = below(8) ? below(100) : below(sizeof(bytes));
		op.expire_ms = below(8) ? 0 : store_now_ms(bed.st) + 1 + below(2000000);
	}
	store_do(bed.ctx, &op, &unused);
}

/* A request of many GETs, or of a SCAN. */
static struct payload random_reads(void)
{
	bool scan = below(2);
	size_t ops = scan ? 1 : 2 + below(64), number = below(700);
	struct operation op;
	struct payload req;

	request_begin(&req, random_u64(), NULL);
	if (!scan && !below(3))
		req.byte[3] |= XKV_F_ATOMIC;
	while (ops--) {
		op = numbered(scan ? XKV_OP_SCAN : XKV_OP_GET, below(4) ? number : below(700));
		number = (number + 1) % 700;
		if (req.len + 24 + XKV_PADDED(op.key_len) > XKV_PAYLOAD_MAX4)
			break;
		request_add(&req, &op);
	}
	if (scan)
		req.byte[19] = (uint8_t)(1 + below(XKV_SCAN_MAX));
	if (!below(3))
		request_pad(&req, below(XKV_PAYLOAD_MAX4 - req.len + 1), 0);
	return req;
}

/*
 * Is it the reply of xkvd's side?  Not compared where time decides, or the two front ends may
 * differ.
 */
static bool same_reply(const uint8_t *reply, size_t len, const uint8_t *want, size_t want_len)
{
	for (size_t at = 16; at + 24 <= len; at += 24) {
		if (get_be(reply + at + 8, 8))
			return true; /* a time to live */
		if (reply[at + 2] & XKV_HAS_VALUE)
			at += XKV_PADDED(get_be(reply + at + 4, 4));
	}
	return len == want_len && !memcmp(reply, want, len);
}

/* ---- mutations ----------------------------------------------------------- */

/* A place in the headers or in the first operations, where most can go wrong. */
static size_t place(size_t len)
{
	return below(len < 128 || !below(4) ? len : 128);
}

static const uint16_t interesting[] = { 0,    1,    7,	  8,	9,	15,	16,	24,    40,
					250,  251,  255,  256,	0x5b,	0xff,	1452,	1472,  1473,
					1528, 1536, 2047, 2048, 0x7fff, 0x8000, 0xfff8, 0xffff };

static size_t mutate_once(uint8_t *frame, size_t len)
{
	size_t at = place(len), other, n;

	switch (below(8)) {
	case 0:
		frame[at] ^= (uint8_t)(1 << below(8));
		break;
	case 1:
		frame[at] = (uint8_t)random_u64();
		break;
	case 2:
	case 3:
		if (at + 2 <= len) /* lengths have 2 bytes, and the low ones of 4 */
			put_be(frame + (at & ~(size_t)1), 2,
			       interesting[below(sizeof(interesting) / 2)]);
		break;
	case 4:
		return 14 + below(len - 14); /* cut */
	case 5:
		n = below(64); /* grow */
		for (size_t i = 0; i < n && len < FRAME_SEEN; i++)
			frame[len++] = (uint8_t)random_u64();
		break;
	case 6:
		n = below(48); /* one part over another */
		other = place(len);
		if (at + n <= len && other + n <= len)
			memmove(frame + at, frame + other, n);
		break;
	case 7:
		n = 1 + below(8);
		for (size_t i = at; i < at + n && i < len; i++)
			frame[i] = below(2) ? 0 : 0xff;
		break;
	}
	return len;
}

/* Makes UDP's and IP's lengths fit the frame, as a sender's stack would. */
static void fix_lengths(uint8_t *frame, size_t len)
{
	size_t ip = 14;

	while (ip + 4 < len && (frame[ip - 2] == 0x81 || frame[ip - 2] == 0x88) && ip < 22)
		ip += 4;
	if (ip + 28 > len)
		return;
	if (frame[ip] >> 4 == 4) {
		put_be(frame + ip + 2, 2, len - ip);
		put_be(frame + ip + 24, 2, len - ip - 20);
	} else if (ip + 48 <= len) {
		put_be(frame + ip + 4, 2, len - ip - 40);
		put_be(frame + ip + 44, 2, len - ip - 40);
	}
}

static size_t mutate(uint8_t *frame, size_t len)
{
	size_t n = below(5);

	while (n-- && len > 14)
		len = mutate_once(frame, len);
	if (!below(2))
		fix_lengths(frame, len);
	if (below(4))
		packet_fix(frame, len);
	return len;
}

/* ---- judging ------------------------------------------------------------- */

/* Bytes of UDP payload in a frame whose headers were good enough to be answered. */
static size_t payload_of(const uint8_t *frame, size_t len)
{
	size_t at = 12;

	while (at + 2 < len && (get_be(frame + at, 2) == 0x8100 || get_be(frame + at, 2) == 0x88a8))
		at += 4;
	at += 2 + (get_be(frame + at, 2) == 0x0800 ? 20 : 40);
	return at + 8 <= len ? get_be(frame + at + 4, 2) - 8 : 0;
}

static bool is_v6(const uint8_t *frame)
{
	size_t at = 12;

	while (get_be(frame + at, 2) == 0x8100 || get_be(frame + at, 2) == 0x88a8)
		at += 4;
	return get_be(frame + at, 2) == 0x86dd;
}

static const char *judge(const uint8_t *in, size_t len, const struct outcome *out)
{
	size_t sent, got;

	if (out->verdict == XDP_DROP)
		return NULL;
	if (out->verdict == XDP_PASS)
		return out->len == len && !memcmp(out->frame, in, len) ? NULL
								       : "was passed, but changed";
	if (out->verdict != XDP_TX)
		return "got a verdict that is none of ours";
	if (!get_be(in, 6) || memcmp(in, bed.rules->local4[0].mac, 6) || in[6] & 1)
		return "was answered, but was for another, or from a group";
	sent = payload_of(in, len);
	got = payload_of(out->frame, out->len);
	if (got > (is_v6(in) ? XKV_PAYLOAD_MAX6 : XKV_PAYLOAD_MAX4))
		return "was answered with more than fits a datagram";
	if (!bed.rules->trusted && got > XKV_REPLY_FACTOR * sent)
		return "was answered with more than three times its bytes";
	return packet_complaint(out->frame, out->len);
}

static void show(const char *what, const uint8_t *frame, size_t len)
{
	printf("%s, %zu bytes:\n", what, len);
	for (size_t i = 0; i < len; i++)
		printf("%02x%s", frame[i], i % 32 == 31 || i + 1 == len ? "\n" : "");
}

/* ---- setting up and accounting ------------------------------------------- */

/* Every way in which the server can be set up, in turns. */
static void reconfigure(uint64_t turn)
{
	bed.rules->trusted = turn & 1;
	bed.c->miss_reply = turn >> 1 & 1;
	bed.rules->auth = turn % 7 == 6 ? XKV_AUTH_TOKEN : XKV_AUTH_OPEN;
	memcpy(bed_token(&bed), token, sizeof(token));
}

/* Is everything in its place, with what there is and after it was all deleted? */
static int account(uint64_t frames)
{
	const char *why;

	store_expire_cycle(bed.ctx, UINT32_MAX / 64);
	why = bed_account(&bed);
	if (!why && store_flush(bed.ctx))
		why = "FLUSHALL failed";
	if (!why)
		why = bed_account(&bed);
	if (!why && bed_chain_count(&bed))
		why = "chain buckets are left in an empty store";
	if (why)
		printf("after %" PRIu64 " frames: %s\n", frames, why);
	return why ? -1 : 0;
}

/* What goes up is answered by xkvd's side of the engine now and then, which also adds pages. */
static void go_up(const uint8_t *frame, size_t len)
{
	size_t payload = payload_of(frame, len);
	uint8_t reply[XKV_PAYLOAD_MAX4];

	if (payload >= 16 && payload <= XKV_PAYLOAD_MAX4 && payload < len)
		store_datagram(bed.ctx, frame + len - payload, payload, reply, sizeof(reply),
			       sizeof(reply));
}

static void complain(uint64_t number, const char *why, const uint8_t *frame, size_t len,
		     const struct outcome *got)
{
	printf("frame %" PRIu64 " %s\n", number, why);
	show("in", frame, len);
	show("out", got->frame, got->len);
}

/* What is wrong with what XDP answers to a request that xkvd's side answers now. */
static const char *judge_answer(const uint8_t *req, size_t req_len, const uint8_t *frame,
				const struct outcome *got)
{
	const uint8_t *reply = got->frame + got->len - payload_of(got->frame, got->len);
	size_t max = is_v6(frame) ? XKV_PAYLOAD_MAX6 : XKV_PAYLOAD_MAX4, allowed = max;
	uint8_t want[XKV_PAYLOAD_MAX4];
	int want_len;

	if (!bed.rules->trusted && XKV_REPLY_FACTOR * req_len < max)
		allowed = XKV_REPLY_FACTOR * req_len;
	want_len = store_datagram(bed.ctx, req, req_len, want, max, allowed);
	if (want_len < 0)
		return "is not done by xkvd's side";
	reads_compared++;
	return same_reply(reply, payload_of(got->frame, got->len), want, (size_t)want_len)
		       ? NULL
		       : "got another answer than xkvd's side gives";
}

/* What is wrong with how XDP does reads side by side. */
static const char *judge_reads(const struct payload *req, const uint8_t *frame, size_t len,
			       const struct outcome *got)
{
	const char *why = judge(frame, len, got);

	if (why || got->verdict != XDP_TX || bed.rules->auth || !bed.c->miss_reply)
		return why;
	return judge_answer(req->byte, req->len, frame, got);
}

/* ---- the queue ------------------------------------------------------------- */

/* What is wrong with a frame that came back from the queue. */
static const char *judge_queued(const struct frame *in, const struct outcome *got)
{
	const uint8_t *req = in->byte + PAYLOAD_AT, *reply = got->frame + PAYLOAD_AT;
	const char *why = judge(in->byte, in->len, got);

	if (why)
		return why;
	if (got->verdict != XDP_TX || got->len < PAYLOAD_AT + 40)
		return "was queued, and not answered";
	if (memcmp(req + 8, reply + 8, 8) || req[16] != reply[16])
		return "got the reply to another request";
	if (req[16] != XKV_OP_GET || reply[17] == XKV_BUSY)
		return NULL;
	return judge_answer(req, payload_of(in->byte, in->len), in->byte, got);
}

/* The queue sends what nobody has noted as it is. */
static int one_of_nobody(const struct waiting *w)
{
	static struct outcome out;

	if (bed_queue(&bed, w->in.byte, w->in.len, &out) && out.verdict == XDP_TX &&
	    out.len == w->in.len && !memcmp(out.frame, w->in.byte, out.len))
		return 0;
	complain(w->number, "was not noted, but changed", w->in.byte, w->in.len, &out);
	return -1;
}

/*
 * What another CPU does after the queue has probed the buckets of all that wait: one key goes, and
 * another one gets its slot, or a new one.
 */
static void change_meanwhile(void)
{
	static const uint8_t bytes[1000] = "written meanwhile";
	const uint8_t *gone = queue[below(queued)].in.byte + PAYLOAD_AT + 16;
	const uint8_t *set = queue[below(queued)].in.byte + PAYLOAD_AT + 16;

	store_delete(bed.ctx, gone + 24, gone[2], NULL);
	store_set(bed.ctx, set + 24, set[2], bytes, below(sizeof(bytes)), 0, 0, 0, NULL);
}

/* The kernel's queue is sent.  The last one is not lost: its note would wait for the next queue. */
static int run_queue(uint64_t verdicts[5])
{
	static struct outcome out;
	const char *why = NULL;
	int ret = 0;

	for (unsigned int i = 0; !ret && i < queued; i++) {
		struct waiting *w = &queue[i];

		if (i + 1 < queued && !below(16)) {
			lost_queued++;
			continue;
		}
		if (!below(16))
			ret = one_of_nobody(w);
		if (!below(4))
			change_meanwhile();
		why = bed_queue(&bed, w->marked.byte, w->marked.len, &out)
			      ? judge_queued(&w->in, &out)
			      : "was not run by the kernel";
		if (why)
			complain(w->number, why, w->in.byte, w->in.len, &out);
		verdicts[out.verdict <= XDP_REDIRECT ? out.verdict : 0]++;
		answered_queued++;
		ret = why ? -1 : ret;
	}
	queued = 0;
	return ret;
}

static void put_frame(struct frame *f, const uint8_t *from, size_t len)
{
	f->len = len;
	memcpy(f->byte, from, len);
}

static int wait_in_queue(uint64_t number, const uint8_t *frame, size_t len,
			 const struct outcome *marked, uint64_t verdicts[5])
{
	struct waiting *w = &queue[queued++];

	w->number = number;
	put_frame(&w->in, frame, len);
	put_frame(&w->marked, marked->frame, marked->len);
	return queued == QUEUED_MAX || !below(8) ? run_queue(verdicts) : 0;
}

/* ---- the run ------------------------------------------------------------- */

static int one_frame(uint64_t number, uint64_t verdicts[5])
{
	static struct outcome out;
	uint8_t frame[PACKET_MAX];
	bool queueable = bed_batched && below(2);
	size_t len = queueable ? queueable_frame(frame) : random_frame(frame);
	const char *why = NULL;

	if (!queueable || below(2))
		len = mutate(frame, len);
	if (!bed_ingress(&bed, frame, len, &out))
		why = errno == EINVAL && len < 14 ? NULL : "was not run by the kernel";
	else if (bed_batched && out.verdict == XDP_REDIRECT)
		return wait_in_queue(number, frame, len, &out, verdicts);
	else
		why = judge(frame, len, &out);
	if (why) {
		complain(number, why, frame, len, &out);
		return -1;
	}
	verdicts[out.verdict <= XDP_REDIRECT ? out.verdict : 0]++;
	if (out.verdict == XDP_PASS && !below(16))
		go_up(frame, len);
	return 0;
}

static int one_of_reads(uint64_t number, uint64_t verdicts[5])
{
	static struct outcome out;
	struct payload req = random_reads();
	uint8_t frame[PACKET_MAX];
	size_t len = frame_of(&req, frame);
	const char *why;

	for (int i = 0; i < 4; i++)
		write_numbered();
	why = bed_run(&bed, frame, len, &out) ? judge_reads(&req, frame, len, &out)
					      : "was not run by the kernel";
	verdicts[out.verdict <= XDP_REDIRECT ? out.verdict : 0]++;
	if (why)
		complain(number, why, frame, len, &out);
	return why ? -1 : 0;
}

static int run(uint64_t frames, uint64_t seed)
{
	uint64_t verdicts[5] = { 0 }, counters[XKV_COUNTER_COUNT];
	int ret = 0;

	random_state = seed;
	for (uint64_t i = 1; !ret && i <= frames; i++) {
		if (i % 1000 == 1)
			reconfigure(i / 1000);
		ret = i % 4 ? one_frame(i, verdicts) : one_of_reads(i, verdicts);
		if (!ret && (i % 1000 == 0 || i == frames))
			ret = run_queue(verdicts);
		if (!ret && (i % ACCOUNT_EVERY == 0 || i == frames))
			ret = account(i);
	}
	bed_counters(&bed, counters);
	printf("seed %" PRIu64 ": %" PRIu64 " answered, %" PRIu64 " passed, %" PRIu64
	       " dropped, %" PRIu64 " requests of reads compared, %" PRIu64
	       " chain buckets made, %" PRIu64 " times full, %" PRIu64 " transactions and %" PRIu64
	       " aborted%s\n",
	       seed, verdicts[XDP_TX], verdicts[XDP_PASS], verdicts[XDP_DROP], reads_compared,
	       counters[XKV_C_chained], counters[XKV_C_pass_full], counters[XKV_C_atomic_done],
	       counters[XKV_C_atomic_aborted], ret ? ": FAILED" : "");
	if (bed_batched)
		printf("in bulks: %" PRIu64 " answered, %" PRIu64 " lost\n", answered_queued,
		       lost_queued);
	if (!ret && bed_batched && answered_queued < frames / 10) {
		printf("batched mode did not serve\n");
		ret = -1;
	}
	return ret;
}

/* Notes are per CPU. */
static void stay_on_cpu(void)
{
	cpu_set_t here;

	CPU_ZERO(&here);
	CPU_SET(sched_getcpu(), &here);
	sched_setaffinity(0, sizeof(here), &here);
}

int main(int argc, char **argv)
{
	uint64_t frames = argc > 1 ? strtoull(argv[1], NULL, 0) : 300000;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	const char *why = bed_cannot_run();
	int ret;

	if (why) {
		printf("SKIP: %s\n", why);
		return 77;
	}
	bed_batched = getenv("XKV_TEST_BATCH") != NULL;
	why = bed_open(&bed, MAX_KEYS);
	if (why)
		printf("%s\n", why);
	if (!why)
		bed_maintenance(&bed, true);
	stay_on_cpu();
	ret = why ? -1 : run(frames, seed);
	bed_close(&bed);
	return ret ? 1 : 0;
}

// SPDX-License-Identifier: BSD-2-Clause
/* libxkv against a server with the replies of tests/vectors.txt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <endian.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "bpf/proto.h"
#include "client/xkv.h"
#include "fakeserver.h"
#include "vectors.h"

#define ANY_BYTE 0x11 /* what stands for `..` and `vv` */

static size_t fill(uint8_t *to, const struct vector_bytes *b)
{
	for (size_t i = 0; i < b->len; i++)
		to[i] = b->kind[i] == VECTOR_BYTE ? b->byte[i] : ANY_BYTE;
	return b->len;
}

/* The first request gets the vector's reply, all others a header that refuses them. */
static void handle_vector(struct fake *f, const struct datagram *req)
{
	uint64_t id = header((struct datagram *)req)->id;

	reply_begin(&f->reply, req);
	header(&f->reply)->status = XKV_BAD_REQUEST;
	if (atomic_load(&f->received) == 1)
		f->reply.len = fill(f->reply.byte, &f->vector->reply);
	header(&f->reply)->id = id;
	send_bytes(f, &f->reply);
}

/* The amount of an INCR is no value in the library's commands. */
static bool take_amount(struct xkv_cmd *cmd, const struct found *o)
{
	uint64_t amount;

	if (o->value_len != sizeof(amount))
		return false;
	memcpy(&amount, o->value, sizeof(amount));
	cmd->amount = (int64_t)be64toh(amount);
	cmd->value = NULL;
	cmd->value_len = 0;
	return true;
}

/* The commands that a request consists of; 0 if no caller of the library could ask for it. */
static size_t commands_of(const struct datagram *req, struct xkv_cmd *cmds)
{
	const struct xkv_hdr *hdr = (const void *)req->byte;
	size_t at, n = 0;
	struct found o;

	if (req->len < sizeof(*hdr) || be16toh(hdr->magic) != XKV_MAGIC ||
	    hdr->version != XKV_VERSION ||
	    (hdr->flags & ~(XKV_F_TOKEN | XKV_F_ONCE | XKV_F_ATOMIC | XKV_F_DURABLE)) ||
	    be16toh(hdr->length) != req->len)
		return 0;
	if ((hdr->flags & XKV_F_ONCE) &&
	    zeros(req->byte + session_at(req->byte), XKV_SESSION_BYTES))
		return 0;
	for (at = ops_at(req->byte); at < req->len; n++) {
		if (!read_op(req->byte, req->len, &at, &o) || o.op.opcode < XKV_OP_PING ||
		    (o.op.opcode > XKV_OP_TOUCH &&
		     !(o.op.opcode == XKV_OP_CHECK && hdr->flags & XKV_F_ATOMIC)))
			return 0;
		cmds[n] = (struct xkv_cmd){ .command = o.op.opcode,
					    .flags = o.op.flags,
					    .key = o.key,
					    .key_len = o.op.key_len,
					    .value = o.value,
					    .value_len = o.value_len,
					    .ttl_ms = o.ttl,
					    .version = o.version };
		if (o.op.opcode == XKV_OP_INCR && !take_amount(&cmds[n], &o))
			return 0;
		/* reads are repeated as they are */
		if ((hdr->flags & XKV_F_ONCE) && o.op.opcode == XKV_OP_GET)
			return 0;
	}
	return n == hdr->count ? n : 0;
}

/* Compares a result at *at with what the library made of it. */
static void check_result(const struct datagram *reply, size_t *at, const struct xkv_reply *r)
{
	struct xkv_result res;
	uint64_t number;
	size_t len;

	memcpy(&res, reply->byte + *at, sizeof(res));
	*at += sizeof(res);
	len = be32toh(res.value_len);
	assert_int_equal(-(int)res.status, r->status);
	assert_true(be64toh(res.ttl) == r->ttl_ms);
	assert_true(be64toh(res.version) == r->version);
	if ((res.opcode == XKV_OP_INCR || res.opcode == XKV_OP_APPEND) && res.status == XKV_OK) {
		memcpy(&number, reply->byte + *at, sizeof(number));
		assert_true((int64_t)be64toh(number) == r->number);
		assert_null(r->value);
	} else {
		assert_true(!r->number);
		assert_int_equal(len, r->value_len);
		assert_int_equal(!!(res.flags & XKV_HAS_VALUE), r->value != NULL);
		if (r->value)
			assert_memory_equal(reply->byte + *at, r->value, len);
	}
	*at += res.flags & XKV_HAS_VALUE ? XKV_PADDED(len) : 0;
}

/* Compares what the library made of the vector's reply with its bytes.  Returns how many results.
 */
static unsigned int check_results(const struct datagram *reply, const struct xkv_cmd *cmds)
{
	const struct xkv_hdr *hdr = (const void *)reply->byte;
	size_t at = sizeof(*hdr);

	for (unsigned int i = 0; i < hdr->count; i++) {
		if (reply->byte[at + 1] == XKV_PAD)
			return i;
		check_result(reply, &at, &cmds[i].reply);
	}
	assert_int_equal(at, reply->len);
	return hdr->count;
}

static struct xkv *open_for(const struct vector *v, const struct datagram *req)
{
	struct xkv_options opts = patient;
	struct xkv *h;

	server.vector = v;
	atomic_store(&server.received, 0);
	if (req->byte[3] & XKV_F_TOKEN)
		opts.token = req->byte + sizeof(struct xkv_hdr);
	opts.once = req->byte[3] & XKV_F_ONCE ? 0 : -1;
	opts.database = req->byte[5];
	h = open_with(&opts);
	xkv_set_durable(h, req->byte[3] & XKV_F_DURABLE);
	return h;
}

/* What the library makes of a header that refuses this request. */
static int refusal(const struct datagram *req, unsigned int status)
{
	return status == XKV_BAD_REQUEST && req->byte[5] ? XKV_E_NO_DATABASE : -(int)status;
}

/* Id and session are the library's choice. */
static void same_request(const struct datagram *want, const struct datagram *got)
{
	struct datagram d = *got;

	memcpy(d.byte + 8, want->byte + 8, 8);
	if (d.byte[3] & XKV_F_ONCE) {
		assert_int_equal(0, got->byte[15] % 8);
		assert_false(zeros(got->byte + session_at(got->byte), XKV_SESSION_BYTES));
		memcpy(d.byte + session_at(d.byte), want->byte + session_at(want->byte),
		       XKV_SESSION_BYTES);
	}
	assert_memory_equal(want->byte, d.byte, want->len);
}

/* A request that the library can be asked for: does it build just that, and understand the reply?
 */
static void run_whole(const struct vector *v, const struct datagram *req, struct xkv_cmd *cmds,
		      size_t n)
{
	struct xkv *h = open_for(v, req);
	struct datagram reply = { 0 };
	unsigned int results, got;
	int err;

	reply.len = fill(reply.byte, &v->reply);
	err = xkv_batch(h, cmds, n);
	got = atomic_load(&server.received);
	assert_int_equal(req->len, server.first.len);
	same_request(req, &server.first);
	results = check_results(&reply, cmds);
	if (header(&reply)->status == XKV_REPEATED) {
		assert_int_equal(0, err);
		assert_int_equal(XKV_E_REPEATED, cmds[0].reply.status);
	} else if (header(&reply)->status) {
		assert_int_equal(refusal(req, header(&reply)->status), err);
		assert_int_equal(1, got);
	} else if (results < n) {
		/* of the second request, see handle_vector() */
		assert_int_equal(refusal(req, XKV_BAD_REQUEST), err);
		assert_int_equal(2, got);
		assert_memory_not_equal(server.first.byte + 8, server.last.byte + 8, 8);
	} else {
		assert_int_equal(0, err);
		assert_int_equal(1, got);
	}
	if (reply.byte[17] == XKV_PAD) {
		assert_int_equal(be32toh(*(uint32_t *)(void *)(reply.byte + 20)), server.last.len);
		assert_memory_equal(req->byte + 16, server.last.byte + 16, req->len - 16);
		assert_true(zeros(server.last.byte + req->len, server.last.len - req->len));
	}
	xkv_close(h);
}

/* The same for a transaction: all is done, or the result tells which command was not. */
static void run_atomic(const struct vector *v, const struct datagram *req, struct xkv_cmd *cmds,
		       size_t n)
{
	struct xkv *h = open_for(v, req);
	struct datagram reply = { 0 };
	size_t failed = n, at = sizeof(struct xkv_hdr);
	int err;

	reply.len = fill(reply.byte, &v->reply);
	err = xkv_atomic(h, cmds, n, &failed);
	assert_int_equal(1, atomic_load(&server.received));
	assert_int_equal(req->len, server.first.len);
	same_request(req, &server.first);
	assert_int_equal(-(int)header(&reply)->status, err);
	if (!err) {
		assert_int_equal(n, check_results(&reply, cmds));
	} else {
		assert_int_equal(reply.byte[at + 3], failed);
		check_result(&reply, &at, &cmds[failed].reply);
		for (size_t i = 0; i < n; i++)
			assert_true(i == failed || cmds[i].reply.status == XKV_E_ABORTED);
	}
	xkv_close(h);
}

static bool refuses(const struct vector_bytes *reply)
{
	return reply->len == 40 &&
	       (reply->byte[17] == XKV_BAD_REQUEST || reply->byte[17] == XKV_BAD_KEY);
}

/* A request that the server refuses: the library does not even send it. */
static void run_refused(const struct vector *v, const struct datagram *req, struct xkv_cmd *cmds,
			size_t n)
{
	struct xkv *h = open_for(v, req);
	int err = xkv_batch(h, cmds, n);

	assert_int_equal(v->reply.byte[17] == XKV_BAD_KEY ? XKV_E_BAD_KEY : XKV_E_INVALID, err);
	assert_int_equal(0, atomic_load(&server.received));
	xkv_close(h);
}

/* Another request with the same opcode gets the vector's reply: is the error understood? */
static void run_error(const struct vector *v, const struct datagram *req)
{
	unsigned int opcode = v->reply.len > 16 ? v->reply.byte[16] : XKV_OP_PING;
	struct xkv_cmd cmd = { .command = opcode };
	struct xkv *h;
	int want, err;

	if (opcode == XKV_OP_SESSION)
		return; /* the library asks by itself: see test_session */
	h = open_for(v, req);
	if (opcode != XKV_OP_PING) {
		cmd.key = "k";
		cmd.key_len = 1;
	}
	err = xkv_batch(h, &cmd, 1);
	want = v->reply.len > 16 ? -(int)v->reply.byte[17] : refusal(req, v->reply.byte[5]);
	assert_int_equal(v->reply.len > 16 ? 0 : want, err);
	assert_int_equal(want, cmd.reply.status);
	xkv_close(h);
}

struct vector_sums {
	unsigned int whole, refused, errors, scans, atomic;
};

/* Keys that can be counted up to, the first included, if that are less than `most`. */
static unsigned int keys_left(const struct found *o, unsigned int most)
{
	unsigned int left = 0, weight = 1;

	for (size_t i = o->op.key_len; i && left < most; i--, weight *= 10) {
		if (o->key[i - 1] < '0' || o->key[i - 1] > '9')
			break;
		left += ('9' - o->key[i - 1]) * weight;
	}
	return left + 1 < most ? left + 1 : most;
}

/* A request that is one SCAN. */
static void run_scan(const struct vector *v, struct datagram *req, const struct found *o)
{
	struct xkv_cmd cmds[XKV_SCAN_MAX], *next = cmds;
	struct xkv *h = open_for(v, req);
	struct datagram reply;
	unsigned int results;
	int err;

	reply.len = fill(reply.byte, &v->reply);
	results = header(&reply)->count;
	/* The values of up to 100 keys are valid until the handle is used again. */
	err = xkv_scan(h, o->key, o->op.key_len, o->op.keys, take_scanned, &next);
	req->byte[19] = (uint8_t)keys_left(o, o->op.keys); /* it does not ask for what cannot be */
	same_request(req, &server.first);
	assert_int_equal(results, next - cmds);
	assert_int_equal(results, check_results(&reply, cmds));
	assert_true(err == 0 || err == XKV_E_BAD_REQUEST);
	xkv_close(h);
}

static bool is_scan(const struct datagram *req, struct found *o)
{
	size_t at = sizeof(struct xkv_hdr);

	return req->len > at && !req->byte[3] && req->byte[4] == 1 &&
	       be16toh(header((struct datagram *)req)->length) == req->len &&
	       read_op(req->byte, req->len, &at, o) && o->op.opcode == XKV_OP_SCAN &&
	       !o->op.flags && !o->value_len && o->op.keys > 1;
}

static void run_vector(const struct vector *v, struct vector_sums *sums)
{
	struct xkv_cmd cmds[64];
	struct datagram req;
	struct found o;
	size_t n;

	req.len = fill(req.byte, &v->request);
	n = commands_of(&req, cmds);
	if (n && req.byte[3] & XKV_F_ATOMIC) {
		run_atomic(v, &req, cmds, n);
		sums->atomic++;
		return;
	}
	if (n && refuses(&v->reply)) {
		run_refused(v, &req, cmds, n);
		sums->refused++;
	} else if (n) {
		run_whole(v, &req, cmds, n);
		sums->whole++;
	} else if (is_scan(&req, &o) && !refuses(&v->reply)) {
		run_scan(v, &req, &o);
		sums->scans++;
	}
	if (v->reply.byte[16] == XKV_OP_SCAN)
		return;
	if (v->reply.len == 16 || (refuses(&v->reply) && v->reply.byte[4] == 1)) {
		run_error(v, &req);
		sums->errors++;
	}
}

static void test_vectors(void **state)
{
	static struct vector v[VECTOR_REQUESTS];
	struct vector_sums sums = { 0 };
	struct vector_file f;
	unsigned int n;

	vectors_open(&f);
	start(handle_vector);
	while ((n = vectors_read(&f, v)))
		for (unsigned int i = 0; i < n; i++)
			if (v[i].has_reply)
				run_vector(&v[i], &sums);
	stop();
	vectors_close(&f);
	print_message("vectors: %u built and understood, %u refused before sending, %u errors, "
		      "%u scans, %u transactions\n",
		      sums.whole, sums.refused, sums.errors, sums.scans, sums.atomic);
	assert_true(sums.whole >= 110 && sums.refused >= 30 && sums.errors >= 40 &&
		    sums.scans >= 10 && sums.atomic >= 9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: BSD-2-Clause
/* Requests through either front end, and their replies: see ask.h. */
#include "ask.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <string.h>

#include <linux/bpf.h>

#include "loader/store/store.h"
#include "loader/store/impl.h"

_Thread_local in_addr_t source;
uint64_t next_id = 1;
const uint8_t zeros[XKV_VALUE_MAX];

/* Takes a reply apart, and insists on what the format promises. */
static void decode(struct reply *r, const struct payload *req)
{
	size_t at = sizeof(struct xkv_hdr);
	struct xkv_result *res;

	assert_true(r->len >= at && r->len <= DATAGRAM);
	assert_int_equal(get_be(r->byte, 4), 0x584b0101);
	assert_int_equal(get_be(r->byte + 6, 2), r->len);
	assert_memory_equal(r->byte + 8, req->byte + 8, 8);
	r->count = r->byte[4];
	r->status = r->byte[5];
	assert_true(r->count <= RESULTS_MAX);
	assert_int_equal(r->count, r->status == XKV_ABORTED ? 1 : r->status ? 0 : r->count);
	assert_true(r->count || r->status);
	for (unsigned int i = 0; i < r->count; i++) {
		res = &r->result[i];
		assert_true(at + sizeof(*res) <= r->len);
		memcpy(res, r->byte + at, sizeof(*res));
		res->value_len = (uint32_t)get_be(r->byte + at + 4, 4);
		res->ttl = get_be(r->byte + at + 8, 8);
		res->version = get_be(r->byte + at + 16, 8);
		at += sizeof(*res);
		r->value[i] = res->flags & XKV_HAS_VALUE ? r->byte + at : NULL;
		at += r->value[i] ? XKV_PADDED(res->value_len) : 0;
	}
	assert_int_equal(at, r->len);
}

/* Has xkvd's side answer. */
static void ask_daemon(struct store_ctx *ctx, const struct payload *req, struct reply *r)
{
	struct sockaddr_in from = { .sin_family = AF_INET, .sin_addr.s_addr = source };
	int len;

	store_sender(ctx, (struct sockaddr *)&from);
	len = store_datagram(ctx, req->byte, req->len, r->byte, DATAGRAM, DATAGRAM);

	assert_true(len >= 0);
	r->len = (size_t)len;
	r->dropped = !len;
}

/* Has the driver answer; what it passes on is passed on unchanged. */
static void ask_driver(struct store_ctx *ctx, const struct payload *req, struct reply *r)
{
	size_t at = packet_payload_at(false, 0), len;
	uint8_t frame[PACKET_MAX];
	struct packet_spec s = packet_plain(false, req);
	struct outcome out;

	memcpy(s.src, &source, sizeof(source));
	len = packet_build(&s, frame);
	assert_true(bed_run(&bed, frame, len, &out));
	r->passed = out.verdict == XDP_PASS;
	r->dropped = out.verdict == XDP_DROP;
	if (r->passed) {
		assert_int_equal(out.len, len);
		assert_memory_equal(out.frame, frame, len);
		ask_daemon(ctx, req, r);
	} else if (!r->dropped) {
		assert_int_equal(out.verdict, XDP_TX);
		assert_null(packet_complaint(out.frame, out.len));
		r->len = get_be(out.frame + at + 6, 2);
		memcpy(r->byte, out.frame + at, r->len);
	}
}

void ask_as(struct store_ctx *ctx, enum frontend frontend, const struct payload *req,
	    struct reply *r)
{
	memset(r, 0, offsetof(struct reply, byte));
	if (!source)
		source = htonl(CLIENT);
	if (frontend == DRIVER)
		ask_driver(ctx, req, r);
	else
		ask_daemon(ctx, req, r);
	if (!r->dropped)
		decode(r, req);
}

void ask(enum frontend frontend, const struct payload *req, struct reply *r)
{
	ask_as(bed.ctx, frontend, req, r);
}

void begin(struct payload *p, uint64_t id, uint64_t session)
{
	request_begin(p, id, NULL);
	if (!session)
		return;
	p->byte[3] |= XKV_F_ONCE;
	put_be(p->byte + p->len, 8, session);
	p->len += XKV_SESSION_BYTES;
}

struct payload once_request(uint64_t session, uint64_t id, const struct operation *op)
{
	struct payload p;

	begin(&p, id, session);
	request_add(&p, op);
	return p;
}

void ask_op(enum frontend frontend, const struct operation *op, struct reply *r)
{
	struct payload p = once_request(0, next_id++, op);

	ask(frontend, &p, r);
	assert_int_equal(r->count, 1);
	assert_int_equal(r->result[0].opcode, op->opcode);
}

struct operation op_on(uint8_t opcode, const void *key, size_t key_len)
{
	return (struct operation){ .opcode = opcode, .key = key, .key_len = key_len };
}

struct operation incr(const void *key, size_t key_len, int64_t amount)
{
	static uint8_t wire[8];
	struct operation op = op_on(XKV_OP_INCR, key, key_len);

	put_be(wire, 8, (uint64_t)amount);
	op.value = wire;
	op.value_len = sizeof(wire);
	return op;
}

struct operation append(const void *key, size_t key_len, const void *value, size_t value_len)
{
	struct operation op = op_on(XKV_OP_APPEND, key, key_len);

	op.value = value;
	op.value_len = value_len;
	return op;
}

struct payload scan(const char *key, unsigned int keys)
{
	struct operation op = op_on(XKV_OP_SCAN, key, strlen(key));
	struct payload p = once_request(0, next_id++, &op);

	p.byte[sizeof(struct xkv_hdr) + 3] = (uint8_t)keys;
	return p;
}

int64_t number(const struct reply *r)
{
	assert_int_equal(r->result[0].status, XKV_OK);
	assert_non_null(r->value[0]);
	assert_int_equal(r->result[0].value_len, 8);
	return (int64_t)get_be(r->value[0], 8);
}

void refused(const struct reply *r, uint8_t status)
{
	const struct xkv_result *res = &r->result[0];

	assert_int_equal(res->status, status);
	assert_null(r->value[0]);
	assert_true(!res->value_len && !res->ttl && !res->version);
}

/* ---- set-up --------------------------------------------------------------- */

static uint64_t offset_before;

void pass_time(int64_t ms)
{
	bed.c->tai_offset_ms -= (uint64_t)ms;
}

int ask_begin(void **state)
{
	open_bed(MAX_KEYS);
	maintenance_stop(bed.st);
	return 0;
}

int ask_setup(void **state)
{
	bed_configure(&bed);
	source = htonl(CLIENT);
	offset_before = bed.c->tai_offset_ms;
	memset(bed.once, 0, XKV_DEDUP_SETS * sizeof(*bed.once));
	return store_flush(bed.ctx);
}

int ask_teardown(void **state)
{
	bed.c->tai_offset_ms = offset_before;
	bed.c->track = XKV_TRACK_NOTHING;
	account();
	return 0;
}

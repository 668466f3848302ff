// SPDX-License-Identifier: BSD-2-Clause
/* Operations as function calls: translates them into UDP requests, which engine.c runs. */
#include "store.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "impl.h"
#include "longkey.h"
#include "lookup.h"
#include "overlay.h"
#include "util/clock.h"
#include "util/range.h"

/*
 * A hold ends after HOLD_NS and what the keys need, and is followed by HOLD_REST times as long
 * without: writes are held for a fifth of the time at most, whatever transactions do.
 */
#define HOLD_NS	    10000000
#define HOLD_KEY_NS 3000
#define HOLD_REST   4

#define RECORD_TRIES 8

/* ---- requests ------------------------------------------------------------ */

static bool is_valid(const struct store_op *op)
{
	return op->key_len <= XKV_LONG_KEY_MAX && op->value_len <= XKV_HUGE_MAX;
}

/* Can it be executed with the key as it is? */
static bool fits_entry(const struct store_op *op)
{
	return !xkv_is_long(op->key_len) && op->value_len <= XKV_HUGE_MAX;
}

/* Does the operation fit a request?  The slot of a larger value is filled by xkvd. */
static bool fits_request(const struct store_op *op)
{
	return sizeof(struct xkv_hdr) + sizeof(struct xkv_op) + XKV_PADDED(op->key_len) +
		       XKV_PADDED(op->value_len) <=
	       XKV_PAYLOAD_MAX4;
}

/* Appends a value to a request. */
static void request_value(struct store_ctx *ctx, unsigned int nr, const void *value, size_t len)
{
	struct xkv_request *rq = &ctx->request[nr];
	struct xkv_hdr *hdr = (struct xkv_hdr *)rq->in;
	uint8_t *at = rq->in + rq->req_len;

	*(uint64_t *)(at + (len & ~7UL)) = 0; /* padding */
	if (len)
		memcpy(at, value, len);
	((struct xkv_op *)(hdr + 1))->value_len = htonl(len);
	rq->req_len += XKV_PADDED(len);
	hdr->length = htons(rq->req_len);
}

static void put_op(struct store_ctx *ctx, unsigned int nr, const struct store_op *op)
{
	struct xkv_op *wire = request_make(ctx, nr, op->opcode, ctx->db, op->key, op->key_len);
	uint64_t amount = htobe64((uint64_t)op->amount);

	if (op->expired)
		ctx->request[nr].flags |= XKV_REQUEST_EXPIRED;
	ctx->request[nr].cause = op->cause;
	wire->flags = op->flags | (op->expire_ms ? XKV_ABSTTL : 0);
	wire->ttl = htobe64(expiry_limited(op->expire_ms));
	wire->version = htobe64(op->version);
	if (op->opcode == XKV_OP_INCR)
		request_value(ctx, nr, &amount, sizeof(amount));
	else if (fits_request(op))
		request_value(ctx, nr, op->value, op->value_len);
	else
		ctx->request[nr].flags |= XKV_REQUEST_PREFILL;
}

/* ---- large values -------------------------------------------------------- */

/*
 * Executes an operation with the context's first request.  -EFBIG if it or its result does not fit
 * a request; then nothing was changed.
 */
static int do_small(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out)
{
	bool prefilled = !fits_request(op);
	int ret = 0;

	*out = (struct store_entry){ 0 };
	if (prefilled && op->opcode != XKV_OP_SET)
		return -EFBIG;
	if (prefilled)
		ret = request_prefill(ctx, 0, ctx->db, op);
	if (ret)
		return ret;
	put_op(ctx, 0, op);
	ret = requests_run(ctx, 1);
	if (ret)
		return ret; /* the next use of the request frees its prefilled slot */
	ret = request_outcome(ctx, 0);
	*out = request_entry(ctx, 0, ret);
	return ret;
}

/* GET of a value that is too large for a reply; request 0 has just found its slot. */
static int get_large(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out)
{
	struct slot_copy copy;
	bool same;
	int ret;

	for (unsigned int i = 0; i < ctx->st->busy_tries; i++) {
		copy.no_memory = false;
		pages_hold(ctx->st);
		same = ctx->retired == ctx->st->mem.units_retired &&
		       slot_copy(ctx->st, ctx->request[0].ref, &copy, &ctx->large) &&
		       copy.seq == be64toh(request_result(ctx, 0)->version);
		pages_release(ctx->st);
		if (same) {
			*out = (struct store_entry){ .value = ctx->large.bytes,
						     .value_len = copy.value_len,
						     .expire_ms = copy.expire_ms,
						     .version = copy.seq };
			return 0;
		}
		if (copy.no_memory)
			return -ENOMEM;
		ret = do_small(ctx, op, out);
		if (ret != -EFBIG)
			return ret;
	}
	return -EBUSY;
}

size_t part_of(const struct store_op *op, size_t len, size_t *from)
{
	int64_t first = op->first, last = op->last;

	*from = 0;
	if (!op->part)
		return len;
	if (len < op->head || range_is_backward(first, last) ||
	    !range_resolve(&first, &last, (int64_t)(len - op->head)))
		return 0;
	*from = op->head + (size_t)first;
	return (size_t)(last - first + 1);
}

void entry_take_part(const struct store_op *op, struct store_entry *e)
{
	size_t from;

	if (!op->part || !e->value)
		return;
	e->number = (int64_t)e->value_len;
	e->value_len = part_of(op, e->value_len, &from);
	e->value = (const char *)e->value + from;
}

/* GET, of a value of any size; TTL, TOUCH. */
static int store_read_entry(struct store_ctx *ctx, const struct store_op *get,
			    struct store_entry *out)
{
	int ret = lookup(ctx, get, out);

	if (ret != -EAGAIN)
		return ret;
	ret = do_small(ctx, get, out);
	if (ret == -EFBIG)
		ret = get_large(ctx, get, out);
	if (!ret)
		entry_take_part(get, out);
	return ret;
}

/*
 * Reads the entry of an operation's key, with its value in ctx->large, where the next operations of
 * this context do not overwrite it.
 */
static int get_buffered(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out)
{
	struct store_op get = { .opcode = XKV_OP_GET, .key = op->key, .key_len = op->key_len };
	int ret;

	ctx->for_change = true;
	ret = store_read_entry(ctx, &get, out);
	ctx->for_change = false;
	if (ret || out->value == ctx->large.bytes)
		return ret;
	if (!large_room(&ctx->large, out->value_len))
		return -ENOMEM;
	memcpy(ctx->large.bytes, out->value, out->value_len);
	out->value = ctx->large.bytes;
	return 0;
}

/*
 * Turns an operation that the engine cannot execute with values of this size into a SET or DELETE
 * conditional on the version of `old`, the entry that was read into ctx->large (NULL = no such
 * key).  0, or the error of the operation.
 */
static int plan_change(struct store_ctx *ctx, const struct store_op *op,
		       const struct store_entry *old, struct store_op *change)
{
	bool append = op->opcode == XKV_OP_APPEND;
	int ret;

	*change = *op;
	change->cause = op->cause ? op->cause : op->opcode;
	if (append)
		change->opcode = XKV_OP_SET;
	ret = condition_error(op, old, old ? old->version : 0);
	if (!old) {
		change->flags = XKV_NX;
		return op->opcode == XKV_OP_DELETE ? -ENOENT : ret;
	}
	if (ret)
		return ret;
	change->flags = XKV_CAS | (append ? XKV_KEEPTTL : op->flags & XKV_KEEPTTL);
	change->version = old->version;
	if (!append)
		return 0;
	if (old->value_len + op->value_len > ctx->st->append_most)
		return -EMSGSIZE;
	if (!large_room(&ctx->large, old->value_len + op->value_len))
		return -ENOMEM;
	if (op->value_len)
		memcpy(ctx->large.bytes + old->value_len, op->value, op->value_len);
	change->value = ctx->large.bytes;
	change->value_len = old->value_len + op->value_len;
	return 0;
}

static int change_large(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out)
{
	struct store_entry now;
	struct store_op change;
	int ret;

	for (unsigned int i = 0; i < ctx->st->busy_tries; i++) {
		ret = get_buffered(ctx, op, out);
		if (ret && ret != -ENOENT)
			return ret;
		ret = plan_change(ctx, op, ret ? NULL : out, &change);
		if (ret)
			return ret;
		ret = do_small(ctx, &change, &now);
		if (ret == -ECANCELED || ret == -ENOENT)
			continue; /* changed since it was read */
		if (op->opcode == XKV_OP_APPEND) {
			*out = now;
			out->number = (int64_t)change.value_len;
			large_room(&ctx->large, 0); /* nobody reads what was joined there */
		}
		return ret;
	}
	return -EBUSY;
}

/* ---- operations ---------------------------------------------------------- */

int entry_do(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out)
{
	int ret;

	if (lookup_takes(op))
		return store_read_entry(ctx, op, out);
	ret = do_small(ctx, op, out);
	return ret == -EFBIG ? change_large(ctx, op, out) : ret;
}

int op_do(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out)
{
	*out = (struct store_entry){ 0 };
	if (fits_entry(op))
		return entry_do(ctx, op, out);
	return is_valid(op) ? long_do(ctx, op, entry_do, out) : -EMSGSIZE;
}

int store_do(struct store_ctx *ctx, const struct store_op *op, struct store_entry *out)
{
	if (!ctx->txn || !is_valid(op))
		return op_do(ctx, op, out);
	*out = (struct store_entry){ 0 };
	return overlay_do(ctx, ctx->txn, op, op_do, out);
}

/*
 * Writes operations as requests, up to the first that does not fit one.  Returns how many.  Reads
 * after the last change are left to lookup(); those before it have to be executed in their order.
 */
static unsigned int put_ops(struct store_ctx *ctx, const struct store_op *ops, unsigned int count)
{
	unsigned int n = 0;

	if (count > XKV_CONTEXT_REQUESTS)
		count = XKV_CONTEXT_REQUESTS;
	while (count > 1 && lookup_takes(&ops[count - 1]))
		count--;
	for (; n < count && fits_entry(&ops[n]) && fits_request(&ops[n]); n++)
		put_op(ctx, n, &ops[n]);
	return n;
}

static void run_ops(struct store_ctx *ctx, const struct store_op *ops, unsigned int count,
		    store_done_fn *done, void *arg)
{
	unsigned int at = 0, ahead = 0, first = 0;
	uint64_t fingerprint[LOOKUP_AHEAD];
	struct store_entry out;
	int ret, ran;

	while (at < count) {
		if (at >= ahead) {
			first = at;
			ahead = at + lookup_ahead(ctx, ops + at, count - at, fingerprint);
		}
		if (lookup_takes(&ops[at]) && fits_entry(&ops[at])) {
			ret = lookup_hashed(ctx, &ops[at], fingerprint[at - first], &out);
			if (ret != -EAGAIN) {
				done(arg, at++, ret, &out);
				continue;
			}
		}
		ran = (int)put_ops(ctx, ops + at, count - at);
		if (ran)
			ran = requests_run_some(ctx, 0, (unsigned int)ran);
		ret = -EFBIG;
		for (int i = 0; i < ran; i++) {
			ret = request_outcome(ctx, (unsigned int)i);
			if (ret == -EFBIG)
				break;
			out = request_entry(ctx, (unsigned int)i, ret);
			entry_take_part(&ops[at], &out);
			done(arg, at++, ret, &out);
		}
		if (ret == -EFBIG) { /* this one does not fit a request, or the call failed */
			ret = op_do(ctx, &ops[at], &out);
			done(arg, at++, ret, &out);
		}
	}
}

char *store_value_take(struct store_ctx *ctx, const struct store_entry *e, size_t *room)
{
	struct large taken = ctx->large;

	if (taken.room <= XKV_SLOT_MAX || e->value != taken.bytes)
		return NULL;
	ctx->large = (struct large){ 0 };
	*room = taken.room;
	return taken.bytes;
}

void store_append_limit(struct store *st, size_t most)
{
	st->append_most = most;
}

void store_prefetch(struct store_ctx *ctx, const struct store_op *ops, unsigned int count)
{
	uint64_t fingerprint[LOOKUP_AHEAD];

	if (count > 1)
		lookup_ahead(ctx, ops, count, fingerprint);
}

void store_run(struct store_ctx *ctx, const struct store_op *ops, unsigned int count,
	       store_done_fn *done, void *arg)
{
	struct store_entry out;
	int ret;

	if (!ctx->txn) {
		run_ops(ctx, ops, count, done, arg);
		return;
	}
	for (unsigned int i = 0; i < count; i++) {
		if (i % LOOKUP_AHEAD == 0)
			store_prefetch(ctx, ops + i, count - i);
		ret = store_do(ctx, &ops[i], &out);
		done(arg, i, ret, &out);
	}
}

int store_usage(struct store_ctx *ctx, const void *key, size_t key_len, struct store_usage *out)
{
	struct store_op op = { .opcode = XKV_OP_TTL, .key = key, .key_len = key_len };
	struct stored_key stored = { 0 };
	int ret = -EAGAIN;

	if (!is_valid(&op))
		return -EMSGSIZE;
	if (xkv_is_long(key_len)) {
		stored = long_key(key, key_len);
		key_len = XKV_KEY_LONG;
	} else {
		memcpy(stored.word, key, key_len);
	}
	for (unsigned int i = 0; i < ctx->st->busy_tries && ret == -EAGAIN; i++)
		ret = lookup_usage(ctx, stored.word, key_len, out);
	return ret == -EAGAIN ? -EBUSY : ret;
}

/* ---- datagrams ----------------------------------------------------------- */

void store_sender(struct store_ctx *ctx, const struct sockaddr *from)
{
	memset(ctx->sender, 0, sizeof(ctx->sender));
	if (from->sa_family == AF_INET)
		ctx->sender[0] = ((const struct sockaddr_in *)from)->sin_addr.s_addr;
	else
		memcpy(ctx->sender, &((const struct sockaddr_in6 *)from)->sin6_addr,
		       sizeof(ctx->sender));
}

static struct xkv_request *datagram_make(struct store_ctx *ctx, const void *req, size_t req_len)
{
	struct xkv_request *rq = &ctx->request[0];

	request_clear(rq);
	rq->flags = XKV_REQUEST_XKVD;
	rq->rules = ctx->st->cfg->current;
	rq->req_len = req_len;
	memcpy(rq->source, ctx->sender, sizeof(rq->source));
	*(uint64_t *)(rq->in + (req_len & ~7UL)) = 0;
	memcpy(rq->in, req, req_len);
	return rq;
}

int store_datagram(struct store_ctx *ctx, const void *req, size_t req_len, void *reply,
		   size_t reply_max, size_t reply_allowed)
{
	struct store *st = ctx->st;
	struct xkv_request *rq;
	int ret;

	if (req_len > XKV_REQUEST_BYTES - 8 || reply_max > XKV_PAYLOAD_MAX4)
		return -EMSGSIZE;
	rq = datagram_make(ctx, req, req_len);
	rq->reply_max = reply_max;
	rq->reply_allowed = reply_allowed < reply_max ? reply_allowed : reply_max;
	rq->reply_room = rq->reply_allowed;
	ret = requests_run(ctx, 1);
	if (ret)
		return ret;
	if (rq->verdict != VERDICT_REPLY || rq->out_len > reply_max)
		return 0;
	memcpy(reply, rq->out, rq->out_len);
	st->datagram_ops += rq->done;
	return (int)rq->out_len;
}

bool store_goes_up(const struct store_ctx *ctx)
{
	const struct xkv_request *rq = &ctx->request[0];

	return rq->verdict == VERDICT_PASS && rq->stop == XKV_C_pass_upstream + 1;
}

void store_record(struct store_ctx *ctx, const void *req, size_t req_len, const void *reply,
		  size_t reply_len)
{
	struct xkv_request *rq = datagram_make(ctx, req, req_len);

	rq->flags |= XKV_REQUEST_ANSWER;
	rq->out_len = reply_len;
	memcpy(rq->out, reply, reply_len);
	for (unsigned int i = 0; i < RECORD_TRIES; i++) {
		rq->stop = 0;
		if (requests_run(ctx, 1) || rq->verdict != VERDICT_PASS)
			break;
		sched_yield(); /* a copy has just locked it; or the client has gone on */
	}
}

static void set_read_only(struct store *st, uint8_t flag, bool on)
{
	if (on)
		__atomic_fetch_or(&st->cfg->read_only, flag, __ATOMIC_RELAXED);
	else
		__atomic_fetch_and(&st->cfg->read_only, (uint8_t)~flag, __ATOMIC_RELAXED);
}

void store_refuse_writes(struct store *st, bool refuse)
{
	set_read_only(st, XKV_WRITES_REFUSED, refuse);
}

void store_writes_up(struct store *st, bool up)
{
	set_read_only(st, XKV_WRITES_UP, up);
}

void store_writes_durable(struct store *st, bool durable)
{
	set_read_only(st, XKV_WRITES_DURABLE, durable);
}

void store_is_logged(struct store *st, bool logged)
{
	__atomic_store_n(&st->cfg->logged, logged, __ATOMIC_RELAXED);
}

void store_lease(struct store *st, uint64_t until_ns)
{
	__atomic_store_n(&st->cfg->lease_ns, until_ns, __ATOMIC_RELAXED);
}

bool store_is_cache(const struct store *st)
{
	return st->cfg->lease_ns;
}

static void hold_end(struct store *st, uint64_t now)
{
	uint64_t end = now < st->hold.until_ns ? now : st->hold.until_ns;

	if (st->cfg->read_only & XKV_WRITES_HELD) /* perhaps by an xkvd that was killed */
		set_read_only(st, XKV_WRITES_HELD, false);
	if (!st->hold.since_ns)
		return;
	st->hold.not_before_ns = end + HOLD_REST * (end - st->hold.since_ns);
	st->hold.since_ns = 0;
}

static void hold_begin(struct store *st, uint64_t now, unsigned int keys)
{
	if (now < st->hold.not_before_ns)
		return;
	st->hold.since_ns = now;
	st->hold.until_ns = now + HOLD_NS + (uint64_t)keys * HOLD_KEY_NS;
	__atomic_store_n(&st->cfg->held_until_ns, st->hold.until_ns, __ATOMIC_RELEASE);
	set_read_only(st, XKV_WRITES_HELD, true);
}

void store_hold_writes(struct store *st, bool hold, unsigned int keys)
{
	uint64_t now = monotonic_ns();

	pthread_mutex_lock(&st->hold.lock);
	hold_end(st, now);
	if (hold)
		hold_begin(st, now, keys);
	pthread_mutex_unlock(&st->hold.lock);
}

/* ---- contexts --------------------------------------------------------------- */

void store_no_touch(struct store_ctx *ctx, bool on)
{
	ctx->no_touch = on;
}

void store_origin(struct store_ctx *ctx, uint16_t origin)
{
	ctx->origin = origin;
}

struct store_ctx *store_ctx_get(struct store *st)
{
	struct store_ctx *ctx = NULL;

	pthread_mutex_lock(&st->ctx_lock);
	for (int i = 0; i < XKV_CONTEXTS && !ctx; i++)
		if (!st->ctx[i].taken)
			ctx = &st->ctx[i];
	if (ctx)
		ctx->taken = true;
	else
		errno = EAGAIN;
	pthread_mutex_unlock(&st->ctx_lock);
	if (ctx)
		store_select(ctx, 0);
	return ctx;
}

void store_ctx_put(struct store_ctx *ctx)
{
	if (!ctx)
		return;
	pthread_mutex_lock(&ctx->st->ctx_lock);
	large_free(&ctx->large);
	free(ctx->overlay);
	ctx->overlay = NULL;
	ctx->origin = 0;
	ctx->no_touch = false;
	ctx->taken = false;
	pthread_mutex_unlock(&ctx->st->ctx_lock);
}

// SPDX-License-Identifier: BSD-2-Clause
/* The operations, as calls: requests of the UDP protocol that engine.c runs. */
#include "store.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "impl.h"

/* ---- requests ------------------------------------------------------------ */

/* No expiry is later than the protocol can say: some 285,000 years hence. */
static uint64_t latest(uint64_t expire_ms)
{
	return expire_ms < XKV_TTL_MAX ? expire_ms : XKV_TTL_MAX;
}

static bool is_valid(const struct store_op *op)
{
	return op->key_len && op->key_len <= XKV_KEY_MAX && op->value_len <= XKV_VALUE_MAX;
}

/* Larger values are filled into their slot here. */
static bool fits_frame(const struct store_op *op)
{
	return sizeof(struct xkv_hdr) + sizeof(struct xkv_op) + XKV_PADDED(op->key_len) +
		       XKV_PADDED(op->value_len) <=
	       XKV_PAYLOAD_MAX4;
}

/* Puts a value behind the request in a frame. */
static void frame_value(struct store_lane *lane, unsigned int frame, const void *value, size_t len)
{
	struct xkv_frame *f = &lane->frame[frame];
	struct xkv_hdr *hdr = (struct xkv_hdr *)f->in;
	uint8_t *at = f->in + f->req_len;

	*(uint64_t *)(at + (len & ~7UL)) = 0; /* what pads it */
	if (len)
		memcpy(at, value, len);
	((struct xkv_op *)(hdr + 1))->value_len = htonl(len);
	f->req_len += XKV_PADDED(len);
	hdr->length = htons(f->req_len);
}

static void put_op(struct store_lane *lane, unsigned int frame, const struct store_op *op)
{
	struct xkv_op *wire = frame_begin(lane, frame, op->opcode, op->key, op->key_len);
	uint64_t amount = htobe64((uint64_t)op->amount);

	if (op->expired)
		lane->frame[frame].flags |= XKV_FRAME_EXPIRED;
	wire->flags = op->flags | (op->expire_ms ? XKV_ABSTTL : 0);
	wire->ttl = htobe64(latest(op->expire_ms));
	wire->version = htobe64(op->version);
	if (op->opcode == XKV_OP_INCR)
		frame_value(lane, frame, &amount, sizeof(amount));
	else if (fits_frame(op))
		frame_value(lane, frame, op->value, op->value_len);
	else
		lane->frame[frame].flags |= XKV_FRAME_PREFILL;
}

/* ---- large values -------------------------------------------------------- */

/* Does an operation in the lane's first frame, if what it returns fits there; else -EFBIG, and nothing was changed. */
static int do_once(struct store_lane *lane, const struct store_op *op, struct store_entry *out)
{
	bool prefilled = !fits_frame(op);
	int ret = 0;

	*out = (struct store_entry){ 0 };
	if (prefilled && op->opcode != XKV_OP_SET)
		return -EFBIG;
	if (prefilled)
		ret = frame_prefill(lane, 0, op);
	if (ret)
		return ret;
	put_op(lane, 0, op);
	ret = lane_run(lane, 1);
	if (ret)
		return ret; /* what was prefilled stands in the frame for the next time */
	ret = frame_outcome(lane, 0);
	*out = frame_entry(lane, 0, ret);
	return ret;
}

/* GET of a value too large for a frame, of which one was just found in frame 0. */
static int get_large(struct store_lane *lane, const struct store_op *op, struct store_entry *out)
{
	struct slot_copy copy;
	bool same;
	int ret;

	if (!large_buffer(lane))
		return -ENOMEM;
	for (int i = 0; i < BUSY_TRIES; i++) {
		pages_hold(lane->st);
		same = lane->retired == lane->st->units_retired &&
		       slot_copy(lane->st, lane->frame[0].ref, &copy, lane->large) &&
		       copy.seq == be64toh(frame_result(lane, 0)->version);
		pages_release(lane->st);
		if (same) {
			*out = (struct store_entry){ .value = lane->large,
						     .value_len = copy.value_len,
						     .expire_ms = copy.expire_ms,
						     .version = copy.seq };
			return 0;
		}
		ret = do_once(lane, op, out);
		if (ret != -EFBIG)
			return ret;
	}
	return -EBUSY;
}

/* The entry that an operation is about, with its value where the next operations of this lane leave it alone. */
static int get_kept(struct store_lane *lane, const struct store_op *op, struct store_entry *out)
{
	int ret = store_get(lane, op->key, op->key_len, out);

	if (ret || out->value == lane->large)
		return ret;
	if (!large_buffer(lane))
		return -ENOMEM;
	memcpy(lane->large, out->value, out->value_len);
	out->value = lane->large;
	return 0;
}

/*
 * What the engine cannot do with values of this size becomes a SET or DELETE of exactly the
 * version that was read, in lane->large (old; NULL = no such key).  0, or the operation's error.
 */
static int plan_change(struct store_lane *lane, const struct store_op *op,
		       const struct store_entry *old, struct store_op *change)
{
	bool append = op->opcode == XKV_OP_APPEND;

	*change = *op;
	if (append)
		change->opcode = XKV_OP_SET;
	if (!old) {
		if (op->opcode == XKV_OP_DELETE || (op->flags & XKV_CAS))
			return -ENOENT;
		change->flags = XKV_NX;
		return op->flags & XKV_XX ? -ECANCELED : 0;
	}
	if ((op->flags & XKV_NX) || ((op->flags & XKV_CAS) && old->version != op->version))
		return -ECANCELED;
	change->flags = XKV_CAS | (append ? XKV_KEEPTTL : op->flags & XKV_KEEPTTL);
	change->version = old->version;
	if (!append)
		return 0;
	if (old->value_len + op->value_len > XKV_VALUE_MAX)
		return -EMSGSIZE;
	if (op->value_len)
		memcpy((char *)lane->large + old->value_len, op->value, op->value_len);
	change->value = lane->large;
	change->value_len = old->value_len + op->value_len;
	return 0;
}

static int change_large(struct store_lane *lane, const struct store_op *op,
			struct store_entry *out)
{
	struct store_entry now;
	struct store_op change;
	int ret;

	for (int i = 0; i < BUSY_TRIES; i++) {
		ret = get_kept(lane, op, out);
		if (ret && ret != -ENOENT)
			return ret;
		ret = plan_change(lane, op, ret ? NULL : out, &change);
		if (ret)
			return ret;
		ret = do_once(lane, &change, &now);
		if (ret == -ECANCELED || ret == -ENOENT)
			continue; /* changed since it was read */
		if (op->opcode == XKV_OP_APPEND) {
			*out = now;
			out->number = (int64_t)change.value_len;
		}
		return ret;
	}
	return -EBUSY;
}

/* ---- operations ---------------------------------------------------------- */

int store_do(struct store_lane *lane, const struct store_op *op, struct store_entry *out)
{
	int ret;

	*out = (struct store_entry){ 0 };
	if (!is_valid(op))
		return -EMSGSIZE;
	ret = do_once(lane, op, out);
	if (ret != -EFBIG)
		return ret;
	return op->opcode == XKV_OP_GET ? get_large(lane, op, out) : change_large(lane, op, out);
}

/* Writes operations into frames, up to one that needs more than a frame. Returns how many. */
static unsigned int put_ops(struct store_lane *lane, const struct store_op *ops, unsigned int count)
{
	unsigned int n = 0;

	for (; n < count && n < XKV_BATCH_FRAMES && is_valid(&ops[n]) && fits_frame(&ops[n]); n++)
		put_op(lane, n, &ops[n]);
	return n;
}

void store_run(struct store_lane *lane, const struct store_op *ops, unsigned int count,
	       store_done_fn *done, void *arg)
{
	struct store_entry out;
	unsigned int at = 0;
	int ret, ran;

	while (at < count) {
		ran = (int)put_ops(lane, ops + at, count - at);
		if (ran)
			ran = lane_run_some(lane, 0, (unsigned int)ran);
		ret = -EFBIG;
		for (int i = 0; i < ran; i++) {
			ret = frame_outcome(lane, (unsigned int)i);
			if (ret == -EFBIG)
				break;
			out = frame_entry(lane, (unsigned int)i, ret);
			done(arg, at++, ret, &out);
		}
		if (ret == -EFBIG) { /* this one needs more than its frame, or none could be run */
			ret = store_do(lane, &ops[at], &out);
			done(arg, at++, ret, &out);
		}
	}
}

/* ---- datagrams ----------------------------------------------------------- */

void store_sender(struct store_lane *lane, const struct sockaddr *from)
{
	memset(lane->sender, 0, sizeof(lane->sender));
	if (from->sa_family == AF_INET)
		lane->sender[0] = ((const struct sockaddr_in *)from)->sin_addr.s_addr;
	else
		memcpy(lane->sender, &((const struct sockaddr_in6 *)from)->sin6_addr,
		       sizeof(lane->sender));
}

int store_datagram(struct store_lane *lane, const void *req, size_t req_len, void *reply,
		   size_t reply_max, size_t reply_allowed)
{
	struct xkv_frame *f = &lane->frame[0];
	struct store *st = lane->st;
	int ret;

	if (req_len > XKV_FRAME_BYTES - 8 || reply_max > XKV_PAYLOAD_MAX4)
		return -EMSGSIZE;
	frame_clear(f);
	f->flags = XKV_FRAME_XKVD;
	f->rules = lane->st->cfg->current;
	f->req_len = req_len;
	f->reply_max = reply_max;
	f->reply_allowed = reply_allowed < reply_max ? reply_allowed : reply_max;
	f->reply_room = f->reply_allowed;
	memcpy(f->source, lane->sender, sizeof(f->source));
	*(uint64_t *)(f->in + (req_len & ~7UL)) = 0;
	memcpy(f->in, req, req_len);
	ret = lane_run(lane, 1);
	if (ret)
		return ret;
	if (f->verdict != VERDICT_REPLY || f->out_len > reply_max)
		return 0;
	memcpy(reply, f->out, f->out_len);
	st->datagram_ops += f->done;
	return (int)f->out_len;
}

void store_refuse_writes(struct store *st, bool refuse)
{
	__atomic_store_n(&st->cfg->read_only, refuse, __ATOMIC_RELAXED);
}

/* ---- lanes --------------------------------------------------------------- */

struct store_lane *store_lane_get(struct store *st)
{
	struct store_lane *lane = NULL;

	pthread_mutex_lock(&st->lane_lock);
	for (int i = 0; i < XKV_BATCH_LANES && !lane; i++)
		if (!st->lane[i].taken)
			lane = &st->lane[i];
	if (lane)
		lane->taken = true;
	else
		errno = EAGAIN;
	pthread_mutex_unlock(&st->lane_lock);
	return lane;
}

void store_lane_put(struct store_lane *lane)
{
	if (!lane)
		return;
	pthread_mutex_lock(&lane->st->lane_lock);
	free(lane->large);
	lane->large = NULL;
	lane->taken = false;
	pthread_mutex_unlock(&lane->st->lane_lock);
}

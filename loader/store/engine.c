// SPDX-License-Identifier: BSD-2-Clause
/*
 * Runs requests.  Each has the form of a UDP request, is written into an element of the map
 * `xkv_batch`, and is run by the same BPF code that XDP runs.  What the BPF code cannot do alone
 * (get memory for a slot, join values that exceed a datagram) is done here; then the request
 * continues.
 */
#include <endian.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "impl.h"
#include "util/clock.h"

#define BUSY_YIELDS   5000 /* tries after which a retry sleeps instead of yielding the CPU */
#define BUSY_SLEEP_US 50
/* Calls of no_slot(): each operation of an ATOMIC datagram may need slots of two classes. */
#define ROOM_TRIES (16 + 2 * XKV_ATOMIC_MAX)
#define JOIN_COST  100 /* engine_join() counts as so many tries */

/* ---- running ------------------------------------------------------------- */

/* Holds the pages meanwhile: the program may follow references to them. */
static int prog_run(struct store *st, struct xkv_run_args *args)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts, .ctx_in = args, .ctx_size_in = sizeof(*args));
	int ret;

	pages_hold(st);
	ret = bpf_prog_test_run_opts(st->bpf.run, &opts) ? -errno : (int)opts.retval;
	pages_release(st);
	return ret;
}

int slots_run(struct store *st, struct xkv_slots_args *args)
{
	struct xkv_run_args run = { .what = XKV_RUN_SLOTS, .slots = *args };
	int ret = prog_run(st, &run);

	*args = run.slots;
	return ret;
}

int commit_run(struct store *st, struct xkv_txn_args *args)
{
	struct xkv_run_args run = { .what = XKV_RUN_TXN, .txn = *args };
	int ret = prog_run(st, &run);

	*args = run.txn;
	return ret;
}

int txn_free_slots(struct store_ctx *ctx, unsigned int first, unsigned int count)
{
	struct xkv_txn_args args = {
		.cmd = XKV_TXN_FREE, .first = first, .count = count, .request = ctx->first
	};

	return commit_run(ctx->st, &args);
}

bool txn_free_hand(struct store_ctx *ctx)
{
	struct store *st = ctx->st;
	bool any = false;

	if (pthread_mutex_trylock(&st->txn_lock))
		return false;
	for (unsigned int i = 0; i < XKV_TXN_HAND; i++)
		any |= st->txn_key[i].prefilled != 0;
	if (any)
		any = !txn_free_slots(ctx, 0, XKV_TXN_HAND);
	pthread_mutex_unlock(&st->txn_lock);
	return any;
}

/*
 * Does not touch `prefilled`, the only reference to that slot: if xkvd is killed, the next one
 * frees the slot by it.
 */
void request_clear(struct xkv_request *rq)
{
	size_t behind = offsetof(struct xkv_request, prefilled) + sizeof(rq->prefilled);

	memset(rq, 0, offsetof(struct xkv_request, prefilled));
	memset((char *)rq + behind, 0, offsetof(struct xkv_request, in) - behind);
}

struct xkv_op *request_make(struct store_ctx *ctx, unsigned int nr, uint8_t opcode, uint8_t db,
			    const void *key, size_t key_len)
{
	struct xkv_request *rq = &ctx->request[nr];
	struct xkv_hdr *hdr = (struct xkv_hdr *)rq->in;
	struct xkv_op *op = (struct xkv_op *)(hdr + 1);

	request_clear(rq);
	rq->flags = XKV_REQUEST_XKVD | XKV_REQUEST_TRUSTED;
	if (ctx->no_touch || ctx->for_change)
		rq->flags |= XKV_REQUEST_NO_TOUCH;
	rq->origin = ctx->origin;
	rq->db = db;
	rq->reply_max = rq->reply_allowed = rq->reply_room = XKV_REQUEST_BYTES;
	rq->req_len = sizeof(*hdr) + sizeof(*op) + XKV_PADDED(key_len);
	*hdr = (struct xkv_hdr){
		.magic = htons(XKV_MAGIC),
		.version = XKV_VERSION,
		.count = 1,
		.length = htons(rq->req_len),
	};
	*op = (struct xkv_op){ .opcode = opcode, .key_len = key_len };
	*(uint64_t *)((char *)(op + 1) + (key_len & ~7UL)) = 0; /* padding of the key */
	memcpy(op + 1, key, key_len);
	return op;
}

/*
 * The thread that holds the lock may not be running.  On a busy machine yielding does not give it
 * the CPU soon enough, so later tries sleep.
 */
int wait_for_others(const struct store *st, unsigned int tries)
{
	if (tries >= st->busy_tries)
		return -EBUSY;
	if (tries < BUSY_YIELDS)
		sched_yield();
	else
		usleep(BUSY_SLEEP_US);
	return 0;
}

/* ---- prefilled slots ----------------------------------------------------- */

int request_unprefill(struct store_ctx *ctx, unsigned int nr)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_FREE, .request = ctx->first + nr };

	return ctx->request[nr].prefilled ? slots_run(ctx->st, &args) : 0;
}

/* Is there a deadline that has not come yet? */
static bool is_before(uint64_t until_ms)
{
	return until_ms && monotonic_ms() < until_ms;
}

int request_take_slot(struct store_ctx *ctx, unsigned int nr, size_t need)
{
	struct store *st = ctx->st;
	unsigned int class = class_for(st, need), busy = 0;
	unsigned int count = class == XKV_CLASS_LARGE ? xkv_units(need) : 1; /* units, or slots */
	struct xkv_slots_args args = {
		.cmd = XKV_SLOTS_ALLOC,
		.class = class,
		.request = ctx->first + nr,
	};
	uint64_t until_ms = 0;
	int ret;

	/* at the limit other threads may be faster, again and again: then the time decides */
	for (unsigned int tries = 0; tries < ROOM_TRIES || is_before(until_ms);) {
		ret = class == XKV_CLASS_LARGE ? span_take_large(st, &ctx->request[nr], count)
					       : slots_run(st, &args);
		if (ret == -EBUSY && !wait_for_others(st, ++busy))
			continue;
		if (ret != -ENOSPC)
			return ret;
		if (++tries && st->no_slot(st, class, count, &until_ms))
			break;
	}
	return -ENOSPC;
}

/*
 * Writes zeros from the end of `len` bytes to the end of their last word, and no further: a slot
 * ends there if the entry fits exactly.
 */
static void pad_with_zeros(char *at, size_t len)
{
	memset(at + len, 0, XKV_PADDED(len) - len);
}

void *slot_fill(struct xkv_slot *slot, uint8_t db, const void *key, size_t key_len,
		const void *value, size_t value_len)
{
	bool is_huge = XKV_SLOT_NEED(key_len, value_len) > XKV_SLOT_MAX;
	char *at = (char *)(slot + 1);

	slot->key_len = key_len;
	slot->db = db;
	slot->value_len = is_huge ? XKV_VALUE_HUGE : value_len;
	if (is_huge)
		xkv_huge_page(slot)->huge = value_len;
	memcpy(at, key, key_len);
	pad_with_zeros(at, key_len);
	at += XKV_PADDED(key_len);
	if (value)
		memcpy(at, value, value_len);
	pad_with_zeros(at, value_len);
	return at;
}

int request_prefill(struct store_ctx *ctx, unsigned int nr, uint8_t db, const struct store_op *op)
{
	int ret = request_unprefill(ctx, nr); /* of an earlier failure */

	if (!ret)
		ret = request_take_slot(ctx, nr, XKV_SLOT_NEED(op->key_len, op->value_len));
	if (!ret)
		slot_fill(slot_of(ctx->st, ctx->request[nr].prefilled), db, op->key, op->key_len,
			  op->value, op->value_len);
	return ret;
}

/*
 * An APPEND stopped because the BPF code cannot join values of this size.  Joins them here, in a
 * slot that the next run publishes if the entry still has the version that was read.  So each run
 * is a complete attempt, as the dedup cache requires.  Returns 0 also if the entry changed
 * meanwhile: the next run detects that.
 */
static int engine_join(struct store_ctx *ctx, unsigned int nr)
{
	struct xkv_request *rq = &ctx->request[nr];
	struct store_op whole = { .key = rq->in + rq->key_off, .key_len = rq->key_len };
	struct slot_copy copy = { .no_memory = false };
	bool same;

	pages_hold(ctx->st);
	same = ctx->retired == ctx->st->mem.units_retired &&
	       slot_copy(ctx->st, rq->ref, &copy, &ctx->large) && copy.seq == rq->seq;
	pages_release(ctx->st);
	if (!same)
		return copy.no_memory ? -ENOMEM : 0;
	if (!large_room(&ctx->large, copy.value_len + rq->value_len))
		return -ENOMEM;
	memcpy(ctx->large.bytes + copy.value_len, rq->in + rq->value_off, rq->value_len);
	whole.value = ctx->large.bytes;
	whole.value_len = copy.value_len + rq->value_len;
	rq->joined = rq->seq;
	rq->flags |= XKV_REQUEST_PREFILL;
	return request_prefill(ctx, nr, rq->db, &whole);
}

/* ---- requests that stop ---------------------------------------------------- */

/* How often a request has stopped, by reason. */
struct stops {
	unsigned int busy, no_slot;
	unsigned int class, count; /* of the last no_slot() */
	uint64_t until_ms;	   /* of no_slot() */
	unsigned int done;	   /* operations of a datagram that were done before */
};

/*
 * Gets free slots of a class for a request that stopped: more each time that it stops there again,
 * since it may need several, for an entry and a chain bucket, or for the operations of an ATOMIC
 * datagram, and gives back what it took when it stops.  0 or -ENOSPC.
 */
static int make_room_for(struct store *st, const struct xkv_request *rq, struct stops *stops)
{
	unsigned int most = rq->flags & XKV_REQUEST_ATOMIC ? 2 * rq->count : 2;

	if (!stops->no_slot || stops->class != rq->need)
		stops->count = 1;
	else if (stops->count < most)
		stops->count *= 2;
	stops->class = rq->need;
	if (++stops->no_slot > ROOM_TRIES)
		return -ENOSPC;
	return st->no_slot(st, rq->need, stops->count, &stops->until_ms);
}

/* The next operation has its own tries to get slots; for others a datagram waits once. */
static void operation_done(const struct xkv_request *rq, struct stops *stops)
{
	if (rq->done == stops->done)
		return;
	stops->done = rq->done;
	stops->no_slot = 0;
}

/*
 * Does what a stopped request needs before it can continue.  True: run it again.  The tries are
 * limited: getting a slot of one class may use up the only free slot of another class that the
 * operation needs as well (for a chain bucket).  LAST makes the next run reply with an error.
 */
static bool request_unblock(struct store_ctx *ctx, unsigned int nr, struct stops *stops)
{
	struct xkv_request *rq = &ctx->request[nr];
	int why = (int)rq->stop - 1;

	if (rq->verdict == VERDICT_DROP || why < 0 || why > XKV_C_pass_too_large)
		return false;
	switch (why) {
	case XKV_C_pass_busy:
		if (wait_for_others(ctx->st, ++stops->busy))
			rq->flags |= XKV_REQUEST_LAST;
		return true;
	case XKV_C_pass_no_slot:
		if (make_room_for(ctx->st, rq, stops))
			rq->flags |= XKV_REQUEST_LAST;
		return true;
	case XKV_C_pass_full:
		rq->flags |= XKV_REQUEST_LAST;
		return true;
	case XKV_C_pass_too_large:
		if (!rq->keep)
			return false; /* its result does not fit behind the others */
		stops->busy += JOIN_COST;
		if (engine_join(ctx, nr) || stops->busy >= ctx->st->busy_tries)
			rq->flags |= XKV_REQUEST_LAST;
		return true;
	}
	return false;
}

int requests_run_some(struct store_ctx *ctx, unsigned int first, unsigned int requests)
{
	struct xkv_run_args args;
	unsigned int at = first, before;
	struct stops stops = { 0 };
	int ret;

	do {
		args = (struct xkv_run_args){ .requests = { ctx->first + at, requests - at } };
		ctx->retired = ctx->st->mem.units_retired;
		ret = prog_run(ctx->st, &args);
		if (ret)
			return at > first ? (int)at : ret;
		before = at;
		at += args.requests.count - 1; /* the last one that was run */
		if (at > before) {
			request_unprefill(ctx, before);
			stops = (struct stops){ 0 };
		}
		operation_done(&ctx->request[at], &stops);
	} while (request_unblock(ctx, at, &stops));
	request_unprefill(ctx, at);
	return (int)at + 1;
}

int requests_run(struct store_ctx *ctx, unsigned int requests)
{
	int done = 0;

	while (done >= 0 && (unsigned int)done < requests)
		done = requests_run_some(ctx, (unsigned int)done, requests);
	return done < 0 ? done : 0;
}

struct xkv_result *request_result(const struct store_ctx *ctx, unsigned int nr)
{
	return (struct xkv_result *)(ctx->request[nr].out + sizeof(struct xkv_hdr));
}

int status_error(uint8_t status)
{
	switch (status) {
	case XKV_OK:
		return 0;
	case XKV_MISS:
		return -ENOENT;
	case XKV_NOT_STORED:
		return -ECANCELED;
	case XKV_NO_MEMORY:
		return -ENOSPC;
	case XKV_BUSY:
		return -EBUSY;
	case XKV_NOT_NUMBER:
		return -EDOM;
	case XKV_OVERFLOW:
		return -ERANGE;
	case XKV_TOO_LARGE:
		return -EFBIG; /* never leaves loader/store: see store_do() */
	default:
		return -EINVAL;
	}
}

/* The exact expiry of the entry: the engine computed the TTL at rq->now_ms. */
static uint64_t expiry_of(const struct xkv_request *rq, const struct xkv_result *r)
{
	uint64_t left = be64toh(r->ttl);

	return left ? rq->now_ms + left : 0;
}

int request_outcome(const struct store_ctx *ctx, unsigned int nr)
{
	const struct xkv_request *rq = &ctx->request[nr];

	if (rq->verdict != VERDICT_REPLY || !rq->done)
		return -EIO; /* the BPF code refused our request: layouts differ, or a bug */
	return status_error(request_result(ctx, nr)->status);
}

struct store_entry request_entry(const struct store_ctx *ctx, unsigned int nr, int outcome)
{
	const struct xkv_result *r = request_result(ctx, nr);
	struct store_entry entry = { 0 };
	uint64_t number;

	if (outcome && outcome != -ECANCELED)
		return entry;
	entry.expire_ms = expiry_of(&ctx->request[nr], r);
	entry.version = be64toh(r->version);
	if (!(r->flags & XKV_HAS_VALUE))
		return entry;
	if (r->opcode == XKV_OP_INCR || r->opcode == XKV_OP_APPEND) {
		memcpy(&number, r + 1, sizeof(number));
		entry.number = (int64_t)be64toh(number);
	} else {
		entry.value = r + 1;
		entry.value_len = ntohl(r->value_len);
	}
	return entry;
}

// SPDX-License-Identifier: BSD-2-Clause
/*
 * Runs requests.  Each is one of the UDP protocol, written into a frame of the batch map and run by the
 * same BPF code that XDP runs; what that cannot do alone (no free slot, a value over a datagram) is
 * done here, and then the frame goes on where it stopped.
 */
#include <endian.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "impl.h"

#define BUSY_YIELDS   5000  /* tries; each yields the CPU, and from this one on sleeps */
#define BUSY_SLEEP_US 50
#define ROOM_TRIES    16  /* so often slots are got for an operation, which may need two at once */
#define JOIN_COST     100 /* of BUSY_TRIES, of a try to join a large value */

/* ---- running ------------------------------------------------------------- */

/* No page goes while a program may hold a reference to it. */
static int prog_run(struct store *st, int fd, void *args, size_t size)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts, .ctx_in = args, .ctx_size_in = size); /* and out */
	int ret;

	pages_hold(st);
	ret = bpf_prog_test_run_opts(fd, &opts) ? -errno : (int)opts.retval;
	pages_release(st);
	return ret;
}

int slots_run(struct store *st, struct xkv_slots_args *args)
{
	return prog_run(st, st->bpf.slots, args, sizeof(*args));
}

/*
 * Empties a frame for the next request.  Around `prefilled`, which nothing else knows: xkvd may be killed
 * between any two stores, and its successor gives that slot back.
 */
void frame_clear(struct xkv_frame *f)
{
	size_t behind = offsetof(struct xkv_frame, prefilled) + sizeof(f->prefilled);

	memset(f, 0, offsetof(struct xkv_frame, prefilled));
	memset((char *)f + behind, 0, offsetof(struct xkv_frame, in) - behind);
}

struct xkv_op *frame_begin(struct store_lane *lane, unsigned int frame, uint8_t opcode,
			   const void *key, size_t key_len)
{
	struct xkv_frame *f = &lane->frame[frame];
	struct xkv_hdr *hdr = (struct xkv_hdr *)f->in;
	struct xkv_op *op = (struct xkv_op *)(hdr + 1);

	frame_clear(f);
	f->flags = XKV_FRAME_XKVD | XKV_FRAME_TRUSTED;
	f->reply_max = f->reply_allowed = f->reply_room = XKV_FRAME_BYTES;
	f->req_len = sizeof(*hdr) + sizeof(*op) + XKV_PADDED(key_len);
	*hdr = (struct xkv_hdr){
		.magic = htons(XKV_MAGIC),
		.version = XKV_VERSION,
		.count = 1,
		.length = htons(f->req_len),
	};
	*op = (struct xkv_op){ .opcode = opcode, .key_len = key_len };
	*(uint64_t *)((char *)(op + 1) + (key_len & ~7UL)) = 0; /* what pads the key */
	memcpy(op + 1, key, key_len);
	return op;
}

/* Who holds a lock may have lost his CPU, and on a busy machine for longer than yielding takes. */
static void wait_for_others(unsigned int tries)
{
	if (tries < BUSY_YIELDS)
		sched_yield();
	else
		usleep(BUSY_SLEEP_US);
}

/* ---- slots that are filled here ------------------------------------------ */

int frame_unprefill(struct store_lane *lane, unsigned int frame)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_FREE, .frame = lane->first + frame };

	return lane->frame[frame].prefilled ? slots_run(lane->st, &args) : 0;
}

/* Takes a slot for `need` bytes, which then stands in the frame, so that it cannot be lost. 0, -ENOSPC, -EBUSY. */
static int take_slot(struct store_lane *lane, unsigned int frame, size_t need)
{
	struct store *st = lane->st;
	unsigned int class = class_for(st, need), units = large_units(need), busy = 0;
	struct xkv_slots_args args = {
		.cmd = XKV_SLOTS_ALLOC,
		.class = class,
		.frame = lane->first + frame,
	};
	uint64_t until_ms = 0;
	int ret;

	for (unsigned int tries = 0; tries < ROOM_TRIES;) {
		ret = class == XKV_CLASS_LARGE ? span_take_large(st, &lane->frame[frame], units) :
						 slots_run(st, &args);
		if (ret == -EBUSY && ++busy < BUSY_TRIES)
			wait_for_others(busy);
		else if (ret != -ENOSPC)
			return ret;
		else if (++tries && st->no_slot(st, class, units, &until_ms))
			break;
	}
	return -ENOSPC;
}

int frame_prefill(struct store_lane *lane, unsigned int frame, const struct store_op *op)
{
	struct store *st = lane->st;
	struct xkv_slot *slot;
	uint64_t pad = 0;
	char *at;
	int ret = frame_unprefill(lane, frame); /* what an earlier failure may have left */

	if (!ret)
		ret = take_slot(lane, frame, XKV_SLOT_NEED(op->key_len, op->value_len));
	if (ret)
		return ret;
	slot = slot_of(st, lane->frame[frame].prefilled);
	slot->key_len = op->key_len;
	slot->value_len = op->value_len;
	at = (char *)(slot + 1);
	memcpy(at + (op->key_len & ~7UL), &pad, sizeof(pad));
	memcpy(at, op->key, op->key_len);
	at += XKV_PADDED(op->key_len);
	memcpy(at, op->value, op->value_len);
	memcpy(at + op->value_len, &pad, XKV_PADDED(op->value_len) - op->value_len);
	return 0;
}

void *large_buffer(struct store_lane *lane)
{
	if (!lane->large)
		lane->large = malloc(XKV_VALUE_MAX);
	return lane->large;
}

/*
 * An APPEND has stopped whose result is more than the engine joins: joins it here, in a slot that the next run of the
 * frame publishes if the entry is still the version that was read.  So each run is a whole try of the request,
 * also of one that is to be done only once.  0 also if it has changed meanwhile; then the next run finds that out.
 */
static int join(struct store_lane *lane, unsigned int frame)
{
	struct xkv_frame *f = &lane->frame[frame];
	struct store_op whole = { .key = f->in + f->key_off, .key_len = f->key_len };
	struct slot_copy copy;
	bool same;

	if (!large_buffer(lane))
		return -ENOMEM;
	pages_hold(lane->st);
	same = lane->retired == lane->st->units_retired &&
	       slot_copy(lane->st, f->ref, &copy, lane->large) && copy.seq == f->seq;
	pages_release(lane->st);
	if (!same)
		return 0;
	memcpy((char *)lane->large + copy.value_len, f->in + f->value_off, f->value_len);
	whole.value = lane->large;
	whole.value_len = copy.value_len + f->value_len;
	f->joined = f->seq;
	f->flags |= XKV_FRAME_PREFILL;
	return frame_prefill(lane, frame, &whole);
}

/* ---- frames that stop ---------------------------------------------------- */

/* How often a frame was stopped. */
struct stops {
	unsigned int busy, no_slot;
	uint64_t until_ms; /* of no_slot() */
};

/*
 * Does what a stopped frame of the lane needs before it can go on.  True: run it again.  Not for ever: a slot of one
 * class may have cost the only free one of another that it needs, too (a chain bucket's).
 */
static bool frame_help(struct store_lane *lane, unsigned int frame, struct stops *stops)
{
	struct xkv_frame *f = &lane->frame[frame];
	int why = (int)f->stop - 1;

	if (f->verdict == VERDICT_DROP || why < 0 || why > XKV_C_pass_too_large)
		return false;
	switch (why) {
	case XKV_C_pass_busy:
		if (++stops->busy < BUSY_TRIES)
			wait_for_others(stops->busy);
		else
			f->flags |= XKV_FRAME_LAST;
		return true;
	case XKV_C_pass_no_slot:
		if (++stops->no_slot > ROOM_TRIES || lane->st->no_slot(lane->st, f->need, 0, &stops->until_ms))
			f->flags |= XKV_FRAME_LAST;
		return true;
	case XKV_C_pass_full:
		f->flags |= XKV_FRAME_LAST;
		return true;
	case XKV_C_pass_too_large:
		if (!f->keep)
			return false; /* its result does not fit behind the others */
		stops->busy += JOIN_COST;
		if (join(lane, frame) || stops->busy >= BUSY_TRIES)
			f->flags |= XKV_FRAME_LAST;
		return true;
	}
	return false;
}

/* Stops behind a frame that is TOO_LARGE. */
int lane_run_some(struct store_lane *lane, unsigned int first, unsigned int frames)
{
	struct xkv_batch_args args;
	unsigned int at = first, before;
	struct stops stops = { 0 };
	int ret;

	do {
		args = (struct xkv_batch_args){ lane->first + at, frames - at };
		lane->retired = lane->st->units_retired;
		ret = prog_run(lane->st, lane->st->bpf.run, &args, sizeof(args));
		if (ret)
			return at > first ? (int)at : ret;
		before = at;
		at += args.count - 1; /* the one that was run last */
		if (at > before) {
			frame_unprefill(lane, before);
			stops = (struct stops){ 0 };
		}
	} while (frame_help(lane, at, &stops));
	frame_unprefill(lane, at);
	return (int)at + 1;
}

int lane_run(struct store_lane *lane, unsigned int frames)
{
	int done = 0;

	while (done >= 0 && (unsigned int)done < frames)
		done = lane_run_some(lane, (unsigned int)done, frames);
	return done < 0 ? done : 0;
}

struct xkv_result *frame_result(const struct store_lane *lane, unsigned int frame)
{
	return (struct xkv_result *)(lane->frame[frame].out + sizeof(struct xkv_hdr));
}

static int status_error(uint8_t status)
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
		return -EFBIG; /* stays in this file: see store_do() */
	default:
		return -EINVAL;
	}
}

/* Exactly what the entry has: what was left is counted from the time that the engine saw. */
static uint64_t expiry_of(const struct xkv_frame *f, const struct xkv_result *r)
{
	uint64_t left = be64toh(r->ttl);

	return left ? f->now_ms + left : 0;
}

int frame_outcome(const struct store_lane *lane, unsigned int frame)
{
	const struct xkv_frame *f = &lane->frame[frame];

	if (f->verdict != VERDICT_REPLY || !f->done)
		return -EIO; /* our own request was not understood: layouts differ, or a bug */
	return status_error(frame_result(lane, frame)->status);
}

struct store_entry frame_entry(const struct store_lane *lane, unsigned int frame, int outcome)
{
	const struct xkv_result *r = frame_result(lane, frame);
	struct store_entry entry = { 0 };
	uint64_t number;

	if (outcome && outcome != -ECANCELED)
		return entry;
	entry.expire_ms = expiry_of(&lane->frame[frame], r);
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

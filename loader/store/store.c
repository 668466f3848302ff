// SPDX-License-Identifier: BSD-2-Clause
/*
 * The operations, as calls.  Each is a request of the UDP protocol, written into
 * a frame of the batch map and run by the same BPF code that XDP runs; what that
 * cannot do alone (no free slot, a value over a datagram) is done here, and then
 * the frame goes on where it stopped.
 */
#include "store.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "impl.h"
#include "open.h"
#include "util/log.h"

#define BUSY_TRIES    10000 /* then the caller hears of it; ... */
#define BUSY_YIELDS   5000  /* ... each yields the CPU, and from this one on sleeps */
#define BUSY_SLEEP_US 50
#define CLOCK_MS      100 /* that may pass while the clocks are looked at, ... */
#define CLOCK_TRIES   100 /* ... once in so many times */
#define ROOM_TRIES    16  /* so often slots are got for an operation, which may need two at once */
#define JOIN_COST     100 /* of BUSY_TRIES, of a try to join a large value */
#define HOT_COST      (64 + sizeof(struct xkv_hot_key) + sizeof(struct xkv_hot)) /* with htab_elem */

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
static void frame_clear(struct xkv_frame *f)
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

/* Gives back a slot that was taken for the frame and not published. */
static int unprefill(struct store_lane *lane, unsigned int frame)
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
		else if (++tries && slots_grow(st, class, units, &until_ms))
			break;
	}
	return -ENOSPC;
}

/* Takes a slot for the frame and fills it. */
static int prefill(struct store_lane *lane, unsigned int frame, const struct store_op *op)
{
	struct store *st = lane->st;
	struct xkv_slot *slot;
	uint64_t pad = 0;
	char *at;
	int ret = unprefill(lane, frame); /* what an earlier failure may have left */

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
	return prefill(lane, frame, &whole);
}

/* ---- frames that stop ---------------------------------------------------- */

/* How often a frame was stopped. */
struct stops {
	unsigned int busy, no_slot;
	uint64_t until_ms; /* slots_grow() */
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
		if (++stops->no_slot > ROOM_TRIES || slots_grow(lane->st, f->need, 0, &stops->until_ms))
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

/*
 * Runs frames from the `first` on, up to the last or to one that is TOO_LARGE: what is
 * behind that may be about the same key, and has to wait for it.  Returns how many of
 * the `frames` have been run now, or -errno if none has been by this call.
 */
static int run_some(struct store_lane *lane, unsigned int first, unsigned int frames)
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
			unprefill(lane, before);
			stops = (struct stops){ 0 };
		}
	} while (frame_help(lane, at, &stops));
	unprefill(lane, at);
	return (int)at + 1;
}

int lane_run(struct store_lane *lane, unsigned int frames)
{
	int done = 0;

	while (done >= 0 && (unsigned int)done < frames)
		done = run_some(lane, (unsigned int)done, frames);
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

/* What became of the operation in a frame that has run: 0 or what its status means. */
static int frame_outcome(const struct store_lane *lane, unsigned int frame)
{
	const struct xkv_frame *f = &lane->frame[frame];

	if (f->verdict != VERDICT_REPLY || !f->done)
		return -EIO; /* our own request was not understood: layouts differ, or a bug */
	return status_error(frame_result(lane, frame)->status);
}

/* What the operation in a frame, with this outcome, has given. */
static struct store_entry entry_of(const struct store_lane *lane, unsigned int frame, int outcome)
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
		ret = prefill(lane, 0, op);
	if (ret)
		return ret;
	put_op(lane, 0, op);
	ret = lane_run(lane, 1);
	if (ret)
		return ret; /* what was prefilled stands in the frame for the next time */
	ret = frame_outcome(lane, 0);
	*out = entry_of(lane, 0, ret);
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
			ran = run_some(lane, 0, (unsigned int)ran);
		ret = -EFBIG;
		for (int i = 0; i < ran; i++) {
			ret = frame_outcome(lane, (unsigned int)i);
			if (ret == -EFBIG)
				break;
			out = entry_of(lane, (unsigned int)i, ret);
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

/* ---- what there is ------------------------------------------------------- */

static const char *const counter_names[] = {
#define COUNTER_NAME(name) #name,
	XKV_COUNTERS(COUNTER_NAME)
};

/* Adds up the counters of the first `doors` doors and all CPUs. False if they cannot be read. */
static bool read_doors(const struct store *st, uint32_t doors, uint64_t sum[XKV_COUNTER_COUNT])
{
	struct xkv_counters *each = calloc(st->cpus, sizeof(*each));
	bool ok = each;

	memset(sum, 0, XKV_COUNTER_COUNT * sizeof(*sum));
	for (uint32_t door = 0; ok && door < doors; door++) {
		ok = !bpf_map_lookup_elem(st->bpf.map[BPF_COUNTERS], &door, each);
		for (unsigned int cpu = 0; ok && cpu < st->cpus; cpu++)
			for (int i = 0; i < XKV_COUNTER_COUNT; i++)
				sum[i] += ((uint64_t *)&each[cpu])[i];
	}
	free(each);
	return ok;
}

static bool read_counters(const struct store *st, uint64_t sum[XKV_COUNTER_COUNT])
{
	return read_doors(st, XKV_DOORS, sum);
}

/* Each operation that has a result raises one counter of this range. */
void store_udp_operations(const struct store *st, uint64_t *driver, uint64_t *here)
{
	uint64_t sum[XKV_COUNTER_COUNT];

	read_doors(st, XKV_DOOR_XDP + 1, sum);
	*driver = 0;
	for (int i = XKV_C_op_bad_request; i <= XKV_C_relocations; i++)
		*driver += sum[i];
	*here = st->datagram_ops;
}

uint64_t store_count(const struct store *st)
{
	uint64_t sum[XKV_COUNTER_COUNT], in, out;

	read_counters(st, sum);
	in = sum[XKV_C_inserts];
	out = sum[XKV_C_deletes] + sum[XKV_C_expires] + sum[XKV_C_evictions];
	return in > out ? in - out : 0;
}

uint64_t store_counter(const struct store *st, const char *name)
{
	uint64_t sum[XKV_COUNTER_COUNT];

	read_counters(st, sum);
	for (int i = 0; i < XKV_COUNTER_COUNT; i++)
		if (!strcmp(counter_names[i], name))
			return sum[i];
	return 0;
}

void store_counters(const struct store *st, void (*fn)(void *arg, const char *name, uint64_t value),
		    void *arg)
{
	uint64_t sum[XKV_COUNTER_COUNT];

	read_counters(st, sum);
	for (int i = 0; i < XKV_COUNTER_COUNT; i++)
		fn(arg, counter_names[i], sum[i]);
}

uint64_t store_max_keys(const struct store *st)
{
	return (uint64_t)st->bpf.buckets * XKV_KEYS_PER_BUCKET;
}

/* What the kernel holds for us. */
uint64_t store_memory(const struct store *st)
{
	return (uint64_t)st->bpf.buckets * sizeof(struct xkv_bucket) +
	       st->pages_used * XKV_PAGE_COST +
	       (uint64_t)XKV_ONCE_SETS * sizeof(struct xkv_once_set) +
	       (uint64_t)XKV_BATCH_LANES * XKV_BATCH_FRAMES * sizeof(struct xkv_frame) +
	       (uint64_t)XKV_HOT_KEYS * HOT_COST +
	       (uint64_t)st->cpus *
		       (sizeof(struct xkv_frame) + XKV_DOORS * sizeof(struct xkv_counters));
}

bool store_at_limit(const struct store *st)
{
	return st->maxmemory && store_memory(st) + XKV_PAGE_COST > st->maxmemory;
}

uint64_t store_memory_least(const struct store *st)
{
	return store_memory(st) - st->pages_used * XKV_PAGE_COST + XKV_PAGE_COST;
}

static uint64_t clock_ms(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000ULL + now.tv_nsec / 1000000;
}

uint64_t store_now_ms(const struct store *st)
{
	(void)st;
	return clock_ms(CLOCK_REALTIME);
}

/* ---- opening ------------------------------------------------------------- */

static void *map_memory(int fd, size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return at == MAP_FAILED ? NULL : at;
}

/*
 * The kernel's clock for expiry is CLOCK_TAI, which leads Unix time by some seconds where that was set.  What
 * two looks say is wrong by what comes between them: then it is looked again.  (adjtimex() would tell, but
 * xkvd's unit does not let it.)
 */
void store_clock(struct store *st)
{
	uint64_t before, now, after;

	for (int i = 0; i < CLOCK_TRIES; i++) {
		before = clock_ms(CLOCK_TAI);
		now = clock_ms(CLOCK_REALTIME);
		after = clock_ms(CLOCK_TAI);
		if (after - before > CLOCK_MS)
			continue;
		st->cfg->tai_offset_ms = (after - now + 500) / 1000 * 1000;
		return;
	}
}

/*
 * The first number of maps that are made at this time (XKV_VERSIONS_PER_US).  A clock that tells no
 * such time would have each start begin at the same number: one by chance then.  Not 0, which is no version.
 */
int version_first(const struct timespec *now, uint64_t *number)
{
	const uint64_t numbers = 1ULL << XKV_VERSION_BITS, reserve = numbers / 16;
	uint64_t us = (now->tv_sec - XKV_VERSION_EPOCH) * 1000000ULL + now->tv_nsec / 1000;

	if (now->tv_sec >= XKV_VERSION_EPOCH && us < (numbers - reserve) / XKV_VERSIONS_PER_US) {
		*number = us * XKV_VERSIONS_PER_US + 1;
		return 0;
	}
	log_warning("the clock stands at %ld s since 1970: versions of entries start at a random number",
		    (long)now->tv_sec);
	if (getrandom(number, sizeof(*number), 0) != (ssize_t)sizeof(*number))
		return -errno;
	*number = *number % (numbers - reserve) + 1;
	return 0;
}

/* Versions start at the time, so that none comes back when the maps are made anew. */
static int versions_init(struct store *st)
{
	struct xkv_counters *each = calloc(st->cpus, sizeof(*each));
	struct timespec now;
	uint64_t first;
	int ret;

	if (!each)
		return -ENOMEM;
	clock_gettime(CLOCK_REALTIME, &now);
	ret = version_first(&now, &first);
	for (unsigned int cpu = 0; cpu < st->cpus; cpu++)
		each[cpu].version = first;
	for (uint32_t door = 0; !ret && door < XKV_DOORS; door++)
		ret = bpf_map_update_elem(st->bpf.map[BPF_COUNTERS], &door, each, BPF_ANY) ? -errno : 0;
	free(each);
	return ret;
}

/* In pieces: signals may cut short what is more than 256 bytes. */
static int draw_secret(struct xkv_secret *secret)
{
	char *to = (char *)secret, *end = (char *)(secret + 1);
	ssize_t drawn;

	while (to < end) {
		drawn = getrandom(to, end - to, 0);
		if (drawn < 0)
			return -errno;
		to += drawn;
	}
	secret->mix[0] |= 1;
	secret->mix[1] |= 1;
	return 0;
}

/* Makes fresh maps into an empty store.  The program passes everything until `magic` is set. */
static int store_format(struct store *st)
{
	int ret = versions_init(st);

	if (!ret)
		ret = draw_secret(&st->secrets->hash);
	if (ret)
		return ret;
	st->cfg->fingerprint_mask = ~0ULL;
	st->cfg->bucket_mask = st->bpf.buckets - 1;
	st->cfg->payload4 = XKV_PAYLOAD_MAX4;
	st->cfg->payload6 = XKV_PAYLOAD_MAX6;
	classes_init(st);
	st->cfg->layout = XKV_LAYOUT_VERSION; /* last: from here on it can be adopted */
	return 0;
}

/* Takes over a store that an earlier xkvd has left, at whatever point it was killed. */
static int store_adopt(struct store *st)
{
	int ret;

	if (st->cfg->layout != XKV_LAYOUT_VERSION)
		return -EPROTO;
	classes_adopt(st);
	ret = pages_adopt(st);
	for (unsigned int lane = 0; lane < XKV_BATCH_LANES; lane++)
		for (unsigned int frame = 0; !ret && frame < XKV_BATCH_FRAMES; frame++)
			ret = unprefill(&st->lane[lane], frame);
	return ret ? ret : drain_adopt(st);
}

static int store_map(struct store *st)
{
	size_t frames = XKV_BATCH_LANES * XKV_BATCH_FRAMES;

	st->cfg = map_memory(st->bpf.map[BPF_CONFIG], sizeof(*st->cfg));
	st->secrets = map_memory(st->bpf.map[BPF_SECRET], sizeof(*st->secrets));
	st->classes = map_memory(st->bpf.map[BPF_CLASSES], XKV_CLASSES * sizeof(*st->classes));
	st->batch = map_memory(st->bpf.map[BPF_BATCH], frames * sizeof(*st->batch));
	st->index = map_memory(st->bpf.map[BPF_INDEX], st->bpf.buckets * sizeof(*st->index));
	if (!st->cfg || !st->secrets || !st->classes || !st->batch || !st->index)
		return -errno;
	for (int i = 0; i < XKV_BATCH_LANES; i++) {
		st->lane[i].st = st;
		st->lane[i].first = i * XKV_BATCH_FRAMES;
		st->lane[i].frame = st->batch + st->lane[i].first;
	}
	return 0;
}

static void store_locks(struct store *st)
{
	pthread_rwlockattr_t pages;
	pthread_condattr_t attr;

	pthread_mutex_init(&st->lane_lock, NULL);
	pthread_mutex_init(&st->units_lock, NULL);
	pthread_mutex_init(&st->need_lock, NULL);
	pthread_rwlockattr_init(&pages);
	pthread_rwlockattr_setkind_np(&pages, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&st->pages_lock, &pages);
	pthread_rwlockattr_destroy(&pages);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&st->need_posted, &attr);
	pthread_cond_init(&st->need_served, &attr);
	pthread_condattr_destroy(&attr);
}

struct store *store_open(const struct bpf *bpf, uint64_t maxmemory, enum store_policy policy,
			 bool *fresh, char *err, size_t err_len)
{
	struct store *st = calloc(1, sizeof(*st));
	int cpus = libbpf_num_possible_cpus(), ret;

	if (st && cpus > XKV_VERSION_CPUS)
		cpus = -E2BIG; /* versions would not be unique */
	if (!st || cpus < 0) {
		snprintf(err, err_len, "cannot open the store: %s", strerror(st ? -cpus : ENOMEM));
		free(st);
		return NULL;
	}
	st->bpf = *bpf;
	st->cpus = cpus;
	store_locks(st);
	ret = store_map(st);
	if (!ret) {
		*fresh = st->cfg->magic != XKV_LAYOUT_MAGIC && st->cfg->magic != XKV_LAYOUT_CLOSED;
		ret = st->cfg->layout ? store_adopt(st) : store_format(st);
	}
	if (!ret) {
		store_clock(st);
		store_limit(st, maxmemory, policy);
		/* the first inserts need not wait for it */
		if (!st->pages_used && pages_add(st, 1) < 0)
			log_warning("no memory for entries yet");
		ret = keeper_start(st);
	}
	if (!ret)
		return st;
	if (ret == -EPROTO)
		snprintf(err, err_len,
			 "the pinned store has layout version %u, this xkvd knows %u: save with the xkvd that "
			 "made it, stop it, then `xkvd --detach` and start again",
			 st->cfg->layout, XKV_LAYOUT_VERSION);
	else
		snprintf(err, err_len, "cannot %s the store: %s", st->pages ? "adopt" : "open",
			 strerror(-ret));
	store_close(st);
	return NULL;
}

void store_start(struct store *st)
{
	__atomic_store_n(&st->cfg->magic, XKV_LAYOUT_MAGIC, __ATOMIC_RELEASE);
}

void store_close(struct store *st)
{
	if (!st)
		return;
	keeper_stop(st);
	pages_close(st);
	free(st->draining);
	for (int i = 0; i < XKV_BATCH_LANES; i++)
		free(st->lane[i].large);
	if (st->cfg)
		munmap(st->cfg, sizeof(*st->cfg));
	if (st->secrets)
		munmap(st->secrets, sizeof(*st->secrets));
	if (st->classes)
		munmap(st->classes, XKV_CLASSES * sizeof(*st->classes));
	if (st->index)
		munmap(st->index, st->bpf.buckets * sizeof(*st->index));
	if (st->batch)
		munmap(st->batch, XKV_BATCH_LANES * XKV_BATCH_FRAMES * sizeof(*st->batch));
	free(st);
}

struct xkv_config *store_config(struct store *st)
{
	return st->cfg;
}

struct xkv_secrets *store_secrets(struct store *st)
{
	return st->secrets;
}

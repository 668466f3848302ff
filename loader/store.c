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

#include "log.h"
#include "store_impl.h"
#include "store_open.h"

#define BUSY_TRIES 10000 /* then the caller hears of it; each yields the CPU */

/* The largest value that an operation carries; larger ones are filled into their slot here. */
#define INLINE_VALUE (XKV_PAYLOAD_MAX4 - XKV_PADDED(XKV_KEY_MAX) - sizeof(struct xkv_op) - \
		      sizeof(struct xkv_hdr))

/* ---- running ------------------------------------------------------------- */

static int prog_run(int fd, void *args, size_t size)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts, .ctx_in = args, .ctx_size_in = size);

	if (bpf_prog_test_run_opts(fd, &opts))
		return -errno;
	return (int)opts.retval;
}

int slots_run(const struct store *st, struct xkv_slots_args *args)
{
	return prog_run(st->bpf.slots, args, sizeof(*args));
}

struct xkv_op *frame_begin(struct store_lane *lane, unsigned int frame, uint8_t opcode,
			   const void *key, size_t key_len)
{
	struct xkv_frame *f = &lane->frame[frame];
	struct xkv_hdr *hdr = (struct xkv_hdr *)f->in;
	struct xkv_op *op = (struct xkv_op *)(hdr + 1);
	uint64_t prefilled = f->prefilled;

	memset(f, 0, offsetof(struct xkv_frame, in));
	f->prefilled = prefilled;
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

/* Does what a stopped frame needs before it can go on.  True: run it again. */
static bool frame_help(struct store *st, struct xkv_frame *f, unsigned int *busy)
{
	int why = (int)f->stop - 1;

	if (f->verdict == VERDICT_DROP || why < 0 || why > XKV_C_pass_too_large)
		return false;
	switch (why) {
	case XKV_C_pass_busy:
		if (++*busy < BUSY_TRIES)
			sched_yield();
		else
			f->flags |= XKV_FRAME_LAST;
		return true;
	case XKV_C_pass_no_slot:
		if (pages_grow(st, f->need))
			f->flags |= XKV_FRAME_LAST;
		return true;
	case XKV_C_pass_full:
		f->flags |= XKV_FRAME_LAST;
		return true;
	}
	return false;
}

int lane_run(struct store_lane *lane, unsigned int frames)
{
	struct xkv_batch_args args = { .first = lane->first, .count = frames };
	unsigned int busy = 0;
	int ret = prog_run(lane->st->bpf.run, &args, sizeof(args));

	args.count = 1;
	for (unsigned int i = 0; !ret && i < frames; i++) {
		args.first = lane->first + i;
		while (!ret && frame_help(lane->st, &lane->frame[i], &busy))
			ret = prog_run(lane->st->bpf.run, &args, sizeof(args));
	}
	return ret;
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
	case XKV_TOO_LARGE:
		return -EFBIG; /* stays in this file: the value is read from its slot */
	default:
		return -EINVAL;
	}
}

static uint64_t left_to_expiry(const struct store *st, const struct xkv_result *r)
{
	uint64_t left = be64toh(r->ttl);

	return left ? store_now_ms(st) + left : 0;
}

/* Runs the lane's one operation. 0 or what its status means; the result in *out. */
static int run_one(struct store_lane *lane, struct xkv_result **out)
{
	const struct xkv_frame *f = &lane->frame[0];
	int ret = lane_run(lane, 1);

	*out = frame_result(lane, 0);
	if (!ret && (f->verdict != VERDICT_REPLY || !f->done))
		ret = -EIO; /* our own request was not understood: layouts differ, or a bug */
	return ret ? ret : status_error((*out)->status);
}

/* The value that came with a result; value NULL if none did. */
static void take_value(const struct store *st, struct xkv_result *r, struct store_entry *out)
{
	out->value = r->flags & XKV_HAS_VALUE ? r + 1 : NULL;
	out->value_len = out->value ? ntohl(r->value_len) : 0;
	out->version = be64toh(r->version);
	out->expire_ms = left_to_expiry(st, r);
}

/* ---- GET ----------------------------------------------------------------- */

static bool check_key(size_t key_len)
{
	return key_len && key_len <= XKV_KEY_MAX;
}

static void *large_buffer(struct store_lane *lane)
{
	if (!lane->large)
		lane->large = malloc(XKV_VALUE_MAX);
	return lane->large;
}

int store_get(struct store_lane *lane, const void *key, size_t key_len, struct store_entry *out)
{
	struct slot_copy copy;
	struct xkv_result *r;
	int ret;

	if (!check_key(key_len))
		return -EMSGSIZE;
	for (int i = 0; i < BUSY_TRIES; i++) {
		frame_begin(lane, 0, XKV_OP_GET, key, key_len);
		ret = run_one(lane, &r);
		if (ret != -EFBIG) {
			take_value(lane->st, r, out);
			return ret;
		}
		if (!large_buffer(lane))
			return -ENOMEM;
		if (slot_copy(lane->st, lane->frame[0].ref, &copy, lane->large) &&
		    copy.seq == be64toh(r->version)) {
			*out = (struct store_entry){ lane->large, copy.value_len, copy.expire_ms,
						     copy.seq };
			return 0;
		}
	}
	return -EBUSY;
}

/* No expiry is later than the protocol can say: some 285,000 years hence. */
static uint64_t latest(uint64_t expire_ms)
{
	return expire_ms < XKV_TTL_MAX ? expire_ms : XKV_TTL_MAX;
}

/* ---- SET ----------------------------------------------------------------- */

/* Gives back the slot that was taken for a large value and not published. */
static int unprefill(struct store_lane *lane)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_FREE, .frame = lane->first };

	return lane->frame[0].prefilled ? slots_run(lane->st, &args) : 0;
}

/* Takes a slot for a large value and fills it; it stands in the frame, so that it cannot be lost. */
static int prefill(struct store_lane *lane, const void *key, size_t key_len, const void *value,
		   size_t value_len)
{
	struct store *st = lane->st;
	struct xkv_slots_args args = {
		.cmd = XKV_SLOTS_ALLOC,
		.class = class_for(st, XKV_SLOT_NEED(key_len, value_len)),
		.frame = lane->first,
	};
	struct xkv_slot *slot;
	uint64_t pad = 0;
	char *at;
	int ret = unprefill(lane); /* what an earlier failure may have left */

	if (ret)
		return ret;
	while ((ret = slots_run(st, &args)) == -ENOSPC || ret == -EBUSY)
		if (ret == -ENOSPC && pages_grow(st, args.class))
			return -ENOSPC;
	if (ret)
		return ret;
	slot = slot_of(st, lane->frame[0].prefilled);
	slot->key_len = key_len;
	slot->value_len = value_len;
	at = (char *)(slot + 1);
	memcpy(at + (key_len & ~7UL), &pad, sizeof(pad));
	memcpy(at, key, key_len);
	memcpy(at + XKV_PADDED(key_len), value, value_len);
	memcpy(at + XKV_PADDED(key_len) + value_len, &pad, XKV_PADDED(value_len) - value_len);
	return 0;
}

static int set_once(struct store_lane *lane, const void *key, size_t key_len, const void *value,
		    size_t value_len, unsigned int flags, uint64_t version, uint64_t expire_ms,
		    struct xkv_result **r)
{
	bool inlined = value_len <= INLINE_VALUE;
	struct xkv_hdr *hdr = (struct xkv_hdr *)lane->frame[0].in;
	struct xkv_op *op;
	char *at;
	int ret = 0;

	if (!inlined)
		ret = prefill(lane, key, key_len, value, value_len);
	if (ret)
		return ret;
	op = frame_begin(lane, 0, XKV_OP_SET, key, key_len);
	op->flags = flags | (expire_ms ? XKV_ABSTTL : 0);
	op->ttl = htobe64(latest(expire_ms));
	op->version = htobe64(version);
	if (inlined) {
		at = (char *)(op + 1) + XKV_PADDED(key_len);
		*(uint64_t *)(at + (value_len & ~7UL)) = 0;
		memcpy(at, value, value_len);
		op->value_len = htonl(value_len);
		lane->frame[0].req_len += XKV_PADDED(value_len);
		hdr->length = htons(lane->frame[0].req_len);
	} else
		lane->frame[0].flags |= XKV_FRAME_PREFILL;
	ret = run_one(lane, r);
	if (!inlined)
		unprefill(lane);
	return ret;
}

/* store_get() with the value where the next operation of this lane leaves it alone. */
static int get_kept(struct store_lane *lane, const void *key, size_t key_len,
		    struct store_entry *out)
{
	int ret = store_get(lane, key, key_len, out);

	if (ret || out->value == lane->large)
		return ret;
	if (!large_buffer(lane))
		return -ENOMEM;
	memcpy(lane->large, out->value, out->value_len);
	out->value = lane->large;
	return 0;
}

/*
 * SET that returns an old value too large for a frame: reads it, then replaces
 * exactly that version.
 */
static int set_return_large(struct store_lane *lane, const void *key, size_t key_len,
			    const void *value, size_t value_len, unsigned int flags,
			    uint64_t expire_ms, struct store_entry *old)
{
	struct xkv_result *r;
	int ret;

	for (int i = 0; i < BUSY_TRIES; i++) {
		ret = get_kept(lane, key, key_len, old);
		if (ret == -ENOENT && (flags & XKV_XX))
			return -ECANCELED;
		if (ret == -ENOENT)
			ret = set_once(lane, key, key_len, value, value_len, XKV_NX, 0, expire_ms, &r);
		else if (ret || (flags & XKV_NX))
			return ret ? ret : -ECANCELED;
		else
			ret = set_once(lane, key, key_len, value, value_len,
				       (flags & XKV_KEEPTTL) | XKV_CAS, old->version, expire_ms, &r);
		if (ret != -ECANCELED && ret != -ENOENT)
			return ret;
	}
	return -EBUSY;
}

int store_set(struct store_lane *lane, const void *key, size_t key_len, const void *value,
	      size_t value_len, unsigned int flags, uint64_t version, uint64_t expire_ms,
	      struct store_entry *old)
{
	struct xkv_result *r;
	int ret;

	if (!check_key(key_len) || value_len > XKV_VALUE_MAX)
		return -EMSGSIZE;
	if (flags & ~(XKV_NX | XKV_XX | XKV_KEEPTTL | XKV_CAS))
		return -EINVAL;
	if (!old)
		return set_once(lane, key, key_len, value, value_len, flags, version, expire_ms, &r);
	*old = (struct store_entry){};
	ret = set_once(lane, key, key_len, value, value_len, flags | XKV_RETURN, version, expire_ms,
		       &r);
	if (ret == -EFBIG && (flags & XKV_CAS))
		return -EINVAL; /* the condition and the old value in one: only for values that fit */
	if (ret == -EFBIG)
		return set_return_large(lane, key, key_len, value, value_len, flags, expire_ms, old);
	if (!ret || ret == -ECANCELED)
		take_value(lane->st, r, old);
	return ret;
}

/* ---- DELETE, EXPIRE ------------------------------------------------------ */

static int delete_once(struct store_lane *lane, const void *key, size_t key_len,
		       unsigned int flags, uint64_t version, struct xkv_result **r)
{
	struct xkv_op *op = frame_begin(lane, 0, XKV_OP_DELETE, key, key_len);

	op->flags = flags;
	op->version = htobe64(version);
	return run_one(lane, r);
}

int store_delete(struct store_lane *lane, const void *key, size_t key_len, struct store_entry *old)
{
	struct xkv_result *r;
	int ret;

	if (!check_key(key_len))
		return -EMSGSIZE;
	ret = delete_once(lane, key, key_len, old ? XKV_RETURN : 0, 0, &r);
	if (ret != -EFBIG) {
		if (!ret && old)
			take_value(lane->st, r, old);
		return ret;
	}
	for (int i = 0; i < BUSY_TRIES; i++) {
		ret = get_kept(lane, key, key_len, old);
		if (ret)
			return ret;
		ret = delete_once(lane, key, key_len, XKV_CAS, old->version, &r);
		if (ret != -ECANCELED)
			return ret;
	}
	return -EBUSY;
}

int store_expire(struct store_lane *lane, const void *key, size_t key_len, uint64_t expire_ms)
{
	struct xkv_result *r;
	struct xkv_op *op;

	if (!check_key(key_len))
		return -EMSGSIZE;
	op = frame_begin(lane, 0, XKV_OP_EXPIRE, key, key_len);
	op->flags = expire_ms ? XKV_ABSTTL : 0;
	op->ttl = htobe64(latest(expire_ms));
	return run_one(lane, &r);
}

/* ---- datagrams ----------------------------------------------------------- */

int store_datagram(struct store_lane *lane, const void *req, size_t req_len, void *reply,
		   size_t reply_max, size_t reply_allowed)
{
	struct xkv_frame *f = &lane->frame[0];
	uint64_t prefilled = f->prefilled;
	int ret;

	if (req_len > XKV_FRAME_BYTES - 8 || reply_max > XKV_PAYLOAD_MAX4)
		return -EMSGSIZE;
	memset(f, 0, offsetof(struct xkv_frame, in));
	f->prefilled = prefilled;
	f->flags = XKV_FRAME_XKVD;
	f->req_len = req_len;
	f->reply_max = reply_max;
	f->reply_allowed = reply_allowed < reply_max ? reply_allowed : reply_max;
	f->reply_room = f->reply_allowed;
	*(uint64_t *)(f->in + (req_len & ~7UL)) = 0;
	memcpy(f->in, req, req_len);
	ret = lane_run(lane, 1);
	if (ret)
		return ret;
	if (f->verdict != VERDICT_REPLY || f->out_len > reply_max)
		return 0;
	memcpy(reply, f->out, f->out_len);
	return (int)f->out_len;
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

/* Adds up the counters of all CPUs. False if they cannot be read. */
static bool read_counters(const struct store *st, uint64_t sum[XKV_COUNTER_COUNT])
{
	struct xkv_counters *each = calloc(st->cpus, sizeof(*each));
	uint32_t zero = 0;
	bool ok = each && !bpf_map_lookup_elem(st->bpf.map[BPF_COUNTERS], &zero, each);

	memset(sum, 0, XKV_COUNTER_COUNT * sizeof(*sum));
	for (unsigned int cpu = 0; ok && cpu < st->cpus; cpu++)
		for (int i = 0; i < XKV_COUNTER_COUNT; i++)
			sum[i] += ((uint64_t *)&each[cpu])[i];
	free(each);
	return ok;
}

uint64_t store_count(const struct store *st)
{
	uint64_t sum[XKV_COUNTER_COUNT], in, out;

	read_counters(st, sum);
	in = sum[XKV_C_inserts] + sum[XKV_C_revived];
	out = sum[XKV_C_deletes] + sum[XKV_C_tombs] + sum[XKV_C_expires];
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
	return st->bpf.max_keys;
}

/*
 * What the kernel holds for us.  An element of index is 48 bytes of struct
 * htab_elem, 8 of key, 32 of value and 8 of list, in a kmalloc-96 object; its
 * bucket is 16 bytes.  A page is its 2 MiB and a page of struct bpf_array.
 */
uint64_t store_memory(const struct store *st)
{
	uint64_t near = (st->cfg->near_mask + 1) * sizeof(struct xkv_near);

	return store_count(st) * 96 + (uint64_t)st->index_buckets * 16 + near +
	       (uint64_t)st->pages * (XKV_PAGE_BYTES + 4096) +
	       (uint64_t)XKV_BATCH_LANES * XKV_BATCH_FRAMES * sizeof(struct xkv_frame) +
	       (uint64_t)st->cpus * (sizeof(struct xkv_frame) + sizeof(struct xkv_counters));
}

uint64_t store_now_ms(const struct store *st)
{
	struct timespec now;

	(void)st;
	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000ULL + now.tv_nsec / 1000000;
}

/* ---- opening ------------------------------------------------------------- */

static void *map_memory(int fd, size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return at == MAP_FAILED ? NULL : at;
}

/* The kernel's clock for expiry is CLOCK_TAI, which leads Unix time by some seconds where that was set. */
void store_clock(struct store *st)
{
	struct timespec tai, now;
	uint64_t lead;

	clock_gettime(CLOCK_TAI, &tai);
	clock_gettime(CLOCK_REALTIME, &now);
	lead = tai.tv_sec - now.tv_sec;
	if (tai.tv_nsec > now.tv_nsec + 500000000L)
		lead++;
	else if (now.tv_nsec > tai.tv_nsec + 500000000L)
		lead--;
	st->cfg->tai_offset_ms = lead * 1000;
}

/* Versions start at the time, so that none comes back when the maps are made anew. */
static int versions_init(struct store *st)
{
	struct xkv_counters *each = calloc(st->cpus, sizeof(*each));
	struct timespec now;
	uint32_t zero = 0;
	int ret;

	if (!each)
		return -ENOMEM;
	clock_gettime(CLOCK_REALTIME, &now);
	for (unsigned int cpu = 0; cpu < st->cpus; cpu++)
		each[cpu].version = now.tv_sec * 1000000ULL + now.tv_nsec / 1000;
	ret = bpf_map_update_elem(st->bpf.map[BPF_COUNTERS], &zero, each, BPF_ANY) ? -errno : 0;
	free(each);
	return ret;
}

/* Makes fresh maps into an empty store.  The program passes everything until `magic` is set. */
static int store_format(struct store *st, unsigned int near_buckets)
{
	int ret = versions_init(st);

	if (ret)
		return ret;
	if (getrandom(st->cfg->secret, sizeof(st->cfg->secret), 0) != sizeof(st->cfg->secret))
		return -errno;
	st->cfg->fingerprint_mask = ~0ULL;
	st->cfg->near_mask = near_buckets - 1;
	st->cfg->payload4 = XKV_PAYLOAD_MAX4;
	st->cfg->payload6 = XKV_PAYLOAD_MAX6;
	classes_init(st);
	st->cfg->layout = XKV_LAYOUT_VERSION; /* last: from here on it can be adopted */
	return 0;
}

/* Takes over a store that an earlier xkvd has left, at whatever point it was killed. */
static int store_adopt(struct store *st)
{
	struct xkv_slots_args args = { .cmd = XKV_SLOTS_FREE };
	int ret;

	if (st->cfg->layout != XKV_LAYOUT_VERSION)
		return -EPROTO;
	classes_adopt(st);
	ret = pages_adopt(st);
	for (unsigned int lane = 0; !ret && lane < XKV_BATCH_LANES; lane++) {
		args.frame = lane * XKV_BATCH_FRAMES;
		ret = slots_run(st, &args);
	}
	return ret;
}

static unsigned int map_entries(int fd)
{
	struct bpf_map_info info = {};
	uint32_t len = sizeof(info);

	return bpf_obj_get_info_by_fd(fd, &info, &len) ? 0 : info.max_entries;
}

static int store_map(struct store *st)
{
	size_t frames = XKV_BATCH_LANES * XKV_BATCH_FRAMES;

	st->cfg = map_memory(st->bpf.map[BPF_CONFIG], sizeof(*st->cfg));
	st->classes = map_memory(st->bpf.map[BPF_CLASSES], XKV_CLASSES * sizeof(*st->classes));
	st->batch = map_memory(st->bpf.map[BPF_BATCH], frames * sizeof(*st->batch));
	if (!st->cfg || !st->classes || !st->batch)
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
	pthread_condattr_t attr;

	pthread_mutex_init(&st->lane_lock, NULL);
	pthread_mutex_init(&st->grow_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&st->wake, &attr);
	pthread_condattr_destroy(&attr);
}

static unsigned int power_of_two(unsigned int n)
{
	unsigned int power = 1;

	while (power < n)
		power *= 2;
	return power;
}

struct store *store_open(const struct bpf *bpf, bool *fresh, char *err, size_t err_len)
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
	st->index_buckets = power_of_two(bpf->max_keys);
	store_locks(st);
	ret = store_map(st);
	if (!ret) {
		*fresh = st->cfg->magic != XKV_LAYOUT_MAGIC;
		ret = st->cfg->layout ? store_adopt(st) :
					store_format(st, map_entries(bpf->map[BPF_NEAR]));
	}
	if (!ret) {
		store_clock(st);
		ret = grower_start(st);
	}
	if (!ret)
		return st;
	if (ret == -EPROTO)
		snprintf(err, err_len,
			 "the pinned store has layout version %u, this xkvd knows %u: save with the xkvd that "
			 "made it, then `xkvd --detach` and start again",
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
	grower_stop(st);
	pages_close(st);
	for (int i = 0; i < XKV_BATCH_LANES; i++)
		free(st->lane[i].large);
	if (st->cfg)
		munmap(st->cfg, sizeof(*st->cfg));
	if (st->classes)
		munmap(st->classes, XKV_CLASSES * sizeof(*st->classes));
	if (st->batch)
		munmap(st->batch, XKV_BATCH_LANES * XKV_BATCH_FRAMES * sizeof(*st->batch));
	free(st);
}

struct xkv_config *store_config(struct store *st)
{
	return st->cfg;
}

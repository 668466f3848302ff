// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The cost of the stages of a packet's path (bench/experiments/stages.py, docs/performance.md).
 * All programs run on the maps of a running store, with the store's own functions.
 *
 * Truncated programs execute the store's code up to a stage, and then send the packet back like the
 * echo baseline.  The cost of a stage is the difference to the program before it.
 *
 *   stage_parse    checks headers, address, port, sender
 *   stage_copy     copies the request into the request context, and verifies its checksum
 *   stage_hash     before that, hashes the key and prefetches its bucket
 *   stage_bucket   probes the bucket for the key's tag
 *   stage_find     compares the key with that in the slot; includes a probe of its own
 *   stage_value    GET: copies the value into the packet; SET: into the slot
 *
 * The whole path is xkv_xdp itself.  Variants with less or more code:
 *
 *   whole          the fast path only; the others are compared with it
 *   less_verify    does not verify the request's checksum
 *   less_sum       sends replies with checksum 0, as the thesis-like program does
 *   less_lock      SET: takes no lock, makes no version; readers see torn values
 *   less_hot       does not sample the use of keys
 *   more_hash      hashes the key twice
 *   bare           all of the omissions together
 *   fixed          the thesis-like program on the store's maps: no checks, fixed sizes
 *   fixed_50, fixed_300   the same, and so many instructions without effect
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <stddef.h>

#include "bpf/multiget.bpf.h"
#include "swap.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

enum stage { STAGE_PARSE, STAGE_COPY, STAGE_HASH, STAGE_BUCKET, STAGE_FIND, STAGE_VALUE };

enum without { SUM = 1, LOCK = 2, HOT = 4 };

/* ---- truncated programs -------------------------------------------------- */

/* load() without hashing the key and prefetching its bucket. */
__noinline int copy_only(struct xdp_md *ctx, struct xkv_request *rq)
{
	struct packet p;

	if (!rq || locate(ctx, rq, &p) != CONTINUE)
		return XKV_C_pass_length;
	return copy_and_verify(&p, rq);
}

/* Does not find the few keys in chain buckets. */
static __always_inline int look_for_tag(struct xkv_request *rq)
{
	struct xkv_lookup *look = lookup_at(0);

	if (!look)
		return XKV_C_drop_internal;
	look->fingerprint = rq->fingerprint;
	return multiget_probe(0, 1) ? XKV_C_drop_internal : CONTINUE;
}

/* The slot of the key, or NULL if this is no GET or SET of the fast path. */
static __always_inline struct xkv_slot *fast_slot(struct xkv_request *rq, struct xkv_config *cfg)
{
	__u64 opcode = rq->in[FAST_OPCODE_OFF] == XKV_OP_SET ? XKV_OP_SET : XKV_OP_GET;

	return is_fast(rq, cfg, opcode) ? fast_find(rq, cfg) : NULL;
}

__noinline int find_only(struct xkv_request *rq)
{
	struct xkv_config *cfg = config();

	return rq && cfg && fast_slot(rq, cfg) ? CONTINUE : XKV_C_drop_internal;
}

__noinline int find_and_copy(struct xdp_md *ctx, struct xkv_request *rq)
{
	struct xkv_config *cfg = config();
	struct xkv_slot *slot;
	struct packet p;
	bool done;
	__u64 sum;

	slot = rq && cfg ? fast_slot(rq, cfg) : NULL;
	if (!slot)
		return XKV_C_drop_internal;
	if (rq->in[FAST_OPCODE_OFF] == XKV_OP_SET)
		done = write_slot(rq, cfg, slot);
	else
		done = read_slot(ctx, rq, cfg, slot, &p, &sum) != 0;
	return done ? CONTINUE : XKV_C_drop_internal;
}

/* Executes the stages after parsing, up to `last`. */
static __always_inline int run_frame(struct xdp_md *ctx, struct xkv_request *rq, enum stage last)
{
	int why = last == STAGE_COPY ? copy_only(ctx, rq) : load(ctx, rq);

	if (why != CONTINUE)
		return why;
	if (last == STAGE_BUCKET)
		return look_for_tag(rq);
	if (last == STAGE_FIND)
		return find_only(rq);
	return last == STAGE_VALUE ? find_and_copy(ctx, rq) : CONTINUE;
}

/* ---- variants with less or more code ------------------------------------- */

__noinline int load_unverified(struct xdp_md *ctx, struct xkv_request *rq)
{
	struct packet p;

	if (!rq || locate(ctx, rq, &p) != CONTINUE)
		return XKV_C_pass_length;
	prefetch_bucket(&p, rq);
	copy_payload(rq->in_word, (__u8 *)(p.udp + 1), p.end, rq->req_len);
	return CONTINUE;
}

static __always_inline __u64 hash_key16(const struct xkv_secret *s, const __u64 *key)
{
	__u64 products = hash_word(key[0], &s->word[0]) + hash_word(key[1], &s->word[1]);

	return hash_end(products, key[0] + key[1], FRAME_KEY_SIZE, 0, s);
}

/* Hashes a key of 16 bytes; the next hash depends on the result, as the bucket does. */
static __always_inline void hash_first(struct packet *p)
{
	__u64 *key = (__u64 *)(p->udp + 1) + FAST_KEY_OFF / 8, hash, same;
	struct xkv_secrets *s = secrets();

	if (!s || (void *)(key + 2) > p->end)
		return;
	hash = same = hash_key16(&s->hash, key);
	barrier_var(same);
	key[0] ^= hash ^ same;
}

__noinline int load_hashed_twice(struct xdp_md *ctx, struct xkv_request *rq)
{
	struct packet p;

	if (!rq || locate(ctx, rq, &p) != CONTINUE)
		return XKV_C_pass_length;
	hash_first(&p);
	prefetch_bucket(&p, rq);
	return copy_and_verify(&p, rq);
}

/* swap_headers() with 0, which means none, for the UDP checksum. */
static __always_inline void swap_unsummed(struct packet *p, __u32 len)
{
	__be16 port = p->udp->source;
	__u32 udp_len = sizeof(struct udphdr) + len;

	swap_link(p->eth);
	if (p->ip4)
		write_ip4(p->ip4, p->ip4->daddr, p->ip4->saddr, udp_len, IPPROTO_UDP);
	p->udp->source = p->udp->dest;
	p->udp->dest = port;
	p->udp->len = bpf_htons(udp_len);
	p->udp->check = 0;
}

static __always_inline void finish(struct packet *p, struct xkv_request *rq, __u32 len, __u64 sum,
				   enum without what)
{
	if (what & SUM)
		swap_unsummed(p, len);
	else
		swap_headers(p, rq->address_sum, len, sum);
	count_many(XKV_C_replies, 1);
}

/* write_slot() without protection against concurrent readers and writers. */
static __always_inline bool write_unlocked(struct xkv_request *rq, struct xkv_config *cfg,
					   struct xkv_slot *slot)
{
	rq->keep = 0;
	if (!stays_in_class(rq, slot))
		return false;
	slot->expire_ms = 0;
	slot->value_len = rq->value_len;
	copy_value(rq, WINDOW(slot));
	mark_access(cfg, slot);
	rq->version = rq->seq;
	return true;
}

static __always_inline int get_without(struct xdp_md *ctx, struct xkv_request *rq,
				       enum without what)
{
	struct xkv_config *cfg = config();
	struct xkv_slot *slot;
	struct packet p;
	__u64 sum = 0;
	__u32 length;

	slot = rq && cfg && is_fast(rq, cfg, XKV_OP_GET) ? fast_find(rq, cfg) : NULL;
	length = slot ? read_slot(ctx, rq, cfg, slot, &p, &sum) : 0;
	if (!length)
		return XKV_C_drop_internal;
	finish(&p, rq, length, sum, what);
	count(rq, XKV_C_get_hits);
	if (!(what & HOT))
		hot_used(rq, cfg, false, length - FAST_REPLY_LEN);
	return CONTINUE;
}

static __always_inline int set_without(struct xdp_md *ctx, struct xkv_request *rq,
				       enum without what)
{
	struct xkv_config *cfg = config();
	struct xkv_slot *slot;
	struct packet p;
	__u64 sum;

	slot = rq && cfg && is_fast(rq, cfg, XKV_OP_SET) ? fast_find(rq, cfg) : NULL;
	if (!slot || !(what & LOCK ? write_unlocked(rq, cfg, slot) : write_slot(rq, cfg, slot)))
		return XKV_C_drop_internal;
	count(rq, XKV_C_overwrites);
	if (!(what & HOT))
		hot_used(rq, cfg, true, XKV_PADDED(rq->value_len));
	if (resize(ctx, rq->payload_off, FAST_REPLY_LEN) || locate(ctx, rq, &p) != CONTINUE)
		return XKV_C_drop_internal;
	sum = write_header(&p, rq->in_word[1], 1, FAST_REPLY_LEN);
	sum += write_result((__u64 *)(p.udp + 1) + 2, p.end, XKV_OP_SET, XKV_OK, 0, 0, 0,
			    rq->version);
	finish(&p, rq, FAST_REPLY_LEN, sum, what);
	return CONTINUE;
}

/* ---- the programs -------------------------------------------------------- */

/* The same as in bpf/xkv.bpf.c, up to the request context. */
static __always_inline struct xkv_request *begin(struct xdp_md *ctx, struct packet *p)
{
	struct xkv_config *cfg = config();
	struct xkv_request *rq;
	__u32 zero = 0;

	p->data = (void *)(long)ctx->data;
	p->end = (void *)(long)ctx->data_end;
	if (!cfg || cfg->magic != XKV_LAYOUT_MAGIC || parse(p, cfg) != CONTINUE ||
	    admit(&p->hosts) != CONTINUE)
		return NULL;
	rq = bpf_map_lookup_elem(&xkv_frames, &zero);
	return rq && request_init(p, cfg, rq) == CONTINUE ? rq : NULL;
}

/* Checks the headers only. */
SEC("xdp")
int stage_parse(struct xdp_md *ctx)
{
	struct packet p = { .data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	struct xkv_config *cfg = config();

	if (!cfg || cfg->magic != XKV_LAYOUT_MAGIC || parse(&p, cfg) != CONTINUE ||
	    admit(&p.hosts) != CONTINUE)
		return XDP_PASS;
	return send_back(ctx);
}

#define STAGE(name, last)                                                                          \
	SEC("xdp")                                                                                 \
	int name(struct xdp_md *ctx)                                                               \
	{                                                                                          \
		struct packet p = {};                                                              \
		struct xkv_request *rq = begin(ctx, &p);                                           \
                                                                                                   \
		if (!rq)                                                                           \
			return XDP_PASS;                                                           \
		return run_frame(ctx, rq, last) == CONTINUE ? send_back(ctx) : XDP_DROP;           \
	}

STAGE(stage_copy, STAGE_COPY)
STAGE(stage_hash, STAGE_HASH)
STAGE(stage_bucket, STAGE_BUCKET)
STAGE(stage_find, STAGE_FIND)
STAGE(stage_value, STAGE_VALUE)

/* GET and SET are separate functions, as in the store. */
#define WITHOUT(name, load, what)                                                                  \
	__noinline int name##_get(struct xdp_md *ctx, struct xkv_request *rq)                      \
	{                                                                                          \
		return get_without(ctx, rq, what);                                                 \
	}                                                                                          \
                                                                                                   \
	__noinline int name##_set(struct xdp_md *ctx, struct xkv_request *rq)                      \
	{                                                                                          \
		return set_without(ctx, rq, what);                                                 \
	}                                                                                          \
                                                                                                   \
	SEC("xdp")                                                                                 \
	int name(struct xdp_md *ctx)                                                               \
	{                                                                                          \
		struct packet p = {};                                                              \
		struct xkv_request *rq = begin(ctx, &p);                                           \
		int why;                                                                           \
                                                                                                   \
		if (!rq || load(ctx, rq) != CONTINUE)                                              \
			return XDP_PASS;                                                           \
		if (rq->in[FAST_OPCODE_OFF] == XKV_OP_SET)                                         \
			why = name##_set(ctx, rq);                                                 \
		else                                                                               \
			why = name##_get(ctx, rq);                                                 \
		return why == CONTINUE ? XDP_TX : XDP_DROP;                                        \
	}

WITHOUT(whole, load, 0)
WITHOUT(less_verify, load_unverified, 0)
WITHOUT(less_sum, load, SUM)
WITHOUT(less_lock, load, LOCK)
WITHOUT(less_hot, load, HOT)
WITHOUT(more_hash, load_hashed_twice, 0)
WITHOUT(bare, load_unverified, SUM | LOCK | HOT)

/* ---- the thesis-like program on the store's index and slots ---------------- */

static __always_inline struct xkv_slot *fixed_find(struct xkv_config *cfg, const __u64 *key)
{
	struct xkv_secrets *s = secrets();
	struct xkv_bucket *home;
	struct xkv_slot *slot;
	__u64 hash, entry;

	if (!s)
		return NULL;
	hash = hash_key16(&s->hash, key) & cfg->fingerprint_mask;
	home = home_of(cfg, hash);
	for (int way = 0; home && way < XKV_WAYS; way++) {
		entry = home->entry[way];
		if ((entry ^ hash) >> XKV_REF_BITS || !entry)
			continue;
		slot = slot_at(entry & XKV_REF_MASK);
		if (slot && SLOT(slot, 24) == key[0] && SLOT(slot, 32) == key[1])
			return slot;
	}
	return NULL;
}

static __always_inline int fixed_get(struct xdp_md *ctx, const __u64 *value)
{
	void *data;

	if (bpf_xdp_adjust_tail(ctx, FRAME_HIT_BYTES - FRAME_GET_BYTES))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	if (data + FRAME_HIT_BYTES > (void *)(long)ctx->data_end)
		return XDP_DROP;
#pragma unroll
	for (int i = 0; i < FRAME_VALUE_SIZE / 8; i++)
		FRAME_U64(data, FRAME_REPLY_VALUE + 8 * i) = value[i];
	return fixed_reply(data, FRAME_GET_BYTES, FRAME_HIT_BYTES, XKV_OK);
}

static __always_inline int fixed_set(struct xdp_md *ctx, __u64 *value)
{
	void *data = (void *)(long)ctx->data;

	if (data + FRAME_SET_BYTES > (void *)(long)ctx->data_end)
		return XDP_PASS;
#pragma unroll
	for (int i = 0; i < FRAME_VALUE_SIZE / 8; i++)
		value[i] = FRAME_U64(data, FRAME_REQUEST_VALUE + 8 * i);
	fixed_reply(data, FRAME_SET_BYTES, FRAME_SHORT_BYTES, XKV_OK);
	return bpf_xdp_adjust_tail(ctx, FRAME_SHORT_BYTES - FRAME_SET_BYTES) ? XDP_DROP : XDP_TX;
}

/* Does not find the few keys in chain buckets. */
static __always_inline int fixed_run(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	struct xkv_config *cfg = config();
	struct xkv_slot *slot;

	if (!cfg || data + FRAME_GET_BYTES > (void *)(long)ctx->data_end ||
	    FRAME_U16(data, 12) != bpf_htons(ETH_P_IP) ||
	    FRAME_U16(data, FRAME_UDP + 2) != rules_of(cfg, cfg->current)->port)
		return XDP_PASS;
	slot = fixed_find(cfg, data + FRAME_KEY);
	if (!slot)
		return XDP_DROP;
	if (FRAME_U8(data, FRAME_OP) == XKV_OP_SET)
		return fixed_set(ctx, slot_value(slot, FRAME_KEY_SIZE));
	return fixed_get(ctx, slot_value(slot, FRAME_KEY_SIZE));
}

SEC("xdp")
int fixed(struct xdp_md *ctx)
{
	return fixed_run(ctx);
}

#define FIXED_AND(n)                                                                               \
	SEC("xdp")                                                                                 \
	int fixed_##n(struct xdp_md *ctx)                                                          \
	{                                                                                          \
		int verdict = fixed_run(ctx);                                                      \
                                                                                                   \
		asm volatile(".rept " #n "\n\tr0 = 0\n\t.endr" ::: "r0");                          \
		return verdict;                                                                    \
	}

FIXED_AND(50)
FIXED_AND(300)

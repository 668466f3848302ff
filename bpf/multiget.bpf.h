/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fast path of a multi-get: a datagram of GETs, or a SCAN.  The keys form a lookup batch: each
 * step is done for all of them before the next, and prefetches what the next one reads.  So the
 * cache misses of the keys overlap, where single look-ups would stall twice for each key.
 *
 *   multiget_key:               take the next key from the request
 *   multiget_prefetch_buckets:  prefetch the buckets
 *   multiget_probe:             probe the buckets
 *   multiget_prefetch_slots:    prefetch the slots
 *   multiget_match:             compare the key, check that the value fits the reply
 *   multiget_write:             copy the value into the packet
 *
 * Anything else falls back to request_run(); the request is still complete in `in` then.
 */
#ifndef XKV_MULTIGET_BPF_H
#define XKV_MULTIGET_BPF_H

#include "fast.bpf.h"

/* END: no more results fit.  NO_PLACE: `in` has no space for the key.  SLOW: falls back. */
enum multiget { MULTIGET_OK, MULTIGET_END, MULTIGET_NO_PLACE, MULTIGET_SLOW };

static __always_inline struct xkv_lookup *lookup_at(__u32 i)
{
	return bpf_map_lookup_elem(&xkv_lookups, &i);
}

/* Is this a request of GETs, ATOMIC or not, or of one SCAN, without other flags in its header? */
static __always_inline bool multiget_begin(struct xkv_request *rq, struct xkv_config *cfg)
{
	struct xkv_hdr *hdr = (struct xkv_hdr *)rq->in;
	struct xkv_op *op = (struct xkv_op *)(hdr + 1);
	__u32 length = bpf_ntohs(hdr->length);

	if (hdr->magic != bpf_htons(XKV_MAGIC) || hdr->version != XKV_VERSION ||
	    hdr->flags & ~XKV_F_ATOMIC || hdr->db || !hdr->count || length & 7 ||
	    length > rq->req_len || rules_of(cfg, rq->rules)->auth != XKV_AUTH_OPEN)
		return false;
	rq->opcode = op->opcode;
	rq->count = op->opcode == XKV_OP_SCAN ? op->keys : hdr->count;
	rq->end = length;
	rq->in_off = sizeof(*hdr);
	rq->out_len = sizeof(*hdr);
	rq->done = 0; /* misses, here */
	return rq->opcode != XKV_OP_SCAN ||
	       (hdr->count == 1 && !hdr->flags && rq->count && rq->count <= XKV_SCAN_MAX);
}

/* Makes the key of the operation at in_off the current one. */
static __always_inline bool multiget_parse(struct xkv_request *rq)
{
	__u32 at = rq->in_off, key_len, next;
	__u64 word = bpf_be64_to_cpu(IN(rq, at));

	key_len = (word >> 40) & 0xff;
	next = at + sizeof(struct xkv_op) + XKV_PADDED(key_len);
	if (next > rq->end || !key_len || key_len > XKV_KEY_MAX ||
	    word != ((__u64)rq->opcode << 56 | (__u64)key_len << 40 |
		     (rq->opcode == XKV_OP_SCAN ? (__u64)rq->count << 32 : 0)) ||
	    IN(rq, at + 8) | IN(rq, at + 16))
		return false;
	rq->key_off = at + sizeof(struct xkv_op);
	rq->key_len = key_len;
	rq->in_off = next;
	return padding_is_clean(rq, rq->key_off, key_len);
}

/*
 * Makes the next key of a SCAN the current one.  It is put after the request, which stays
 * unchanged.
 */
static __always_inline int multiget_next(struct xkv_request *rq, __u32 i)
{
	__u32 from = rq->key_off, size = XKV_PADDED(rq->key_len),
	      to = XKV_PADDED(rq->req_len) + 8 + size * i;

	if (to + size > XKV_REQUEST_WORDS * 8)
		return MULTIGET_NO_PLACE;
	for (__u32 at = 0; at < KEY_WORDS * 8; at += 8) {
		if (at >= size)
			break;
		IN(rq, to + at) = IN(rq, from + at);
	}
	rq->key_off = to;
	return next_key(rq) ? MULTIGET_OK : MULTIGET_END;
}

__noinline int multiget_key(struct xkv_request *rq, __u32 i)
{
	struct xkv_config *cfg = config();
	struct xkv_secrets *s = secrets();
	struct xkv_lookup *look = lookup_at(i);
	int step = MULTIGET_OK;

	if (!rq || !cfg || !s || !look)
		return MULTIGET_SLOW;
	if (i && rq->opcode == XKV_OP_SCAN)
		step = multiget_next(rq, i - 1);
	else if (!multiget_parse(rq) ||
		 (rq->opcode == XKV_OP_SCAN && rq->count > 1 && !is_digit(KEY_BYTE(rq, 0))))
		step = MULTIGET_SLOW;
	if (step != MULTIGET_OK)
		return step;
	if (rq->hashed != rq->key_off)
		rq->fingerprint = fingerprint_of(rq, cfg, &s->hash);
	rq->hashed = 0;
	look->fingerprint = rq->fingerprint;
	look->key_off = rq->key_off;
	look->key_len = rq->key_len;
	return MULTIGET_OK;
}

/* A loop over the keys first .. last - 1 of the batch. */
#define EACH_KEY(i, first, last)                                                                   \
	for (i = 0; i < XKV_LOOKUPS_MAX; i++)                                                      \
		if ((first) + i >= (last))                                                         \
			break;                                                                     \
		else

/* The loop is inside: a call per key would be half of the work, and fewer misses would overlap. */
__noinline int multiget_prefetch_buckets(__u32 first, __u32 last)
{
	struct xkv_config *cfg = config();
	struct xkv_lookup *look;
	__u32 i;

	EACH_KEY(i, first, last) {
		look = lookup_at(first + i);
		if (look)
			prefetch_head(home_of(cfg, look->fingerprint));
	}
	return 0;
}

__noinline int multiget_prefetch_slots(__u32 first, __u32 last)
{
	struct xkv_slot *slot;
	struct xkv_lookup *look;
	__u32 i;

	EACH_KEY(i, first, last) {
		look = lookup_at(first + i);
		slot = look ? slot_at(look->ref) : NULL;
		if (!slot)
			continue;
		prefetch_slot(slot);
		(void)READ_ONCE(((const __u64 *)slot)[FOURTH_LINE]);
	}
	return 0;
}

__noinline int multiget_probe(__u32 first, __u32 last)
{
	struct xkv_config *cfg = config();
	struct xkv_bucket *home;
	struct xkv_lookup *look;
	__u32 i;

	EACH_KEY(i, first, last) {
		look = lookup_at(first + i);
		home = look ? home_of(cfg, look->fingerprint) : NULL;
		if (home)
			look->ref = probe_bucket(home, look->fingerprint);
	}
	return 0;
}

/* The full look-up, if probing failed.  NULL: not found (look->ref is 0), or contended. */
static __always_inline struct xkv_slot *
multiget_search(struct xkv_request *rq, struct xkv_lookup *look, struct xkv_config *cfg, int *step)
{
	int found;

	rq->fingerprint = look->fingerprint;
	found = find(rq);
	look->ref = found == FOUND ? rq->ref : 0;
	look->seq = rq->seq;
	*step = found == FOUND || (found == ABSENT && cfg->miss_reply) ? MULTIGET_OK
								       : MULTIGET_SLOW;
	return look->ref ? slot_at(look->ref) : NULL;
}

/* Finds the slot of a key, and assigns the offset of its result. */
__noinline int multiget_match(struct xkv_request *rq, __u32 i)
{
	struct xkv_config *cfg = config();
	struct xkv_lookup *look = lookup_at(i);
	struct xkv_slot *slot;
	int step = MULTIGET_OK;
	__u32 end;

	if (!rq || !cfg || !look)
		return MULTIGET_SLOW;
	rq->key_off = look->key_off;
	rq->key_len = look->key_len;
	slot = look->ref ? slot_at(look->ref) : NULL;
	if (!slot || !holds_key(&IN(rq, look->key_off), look->key_len, rq->db, slot, &look->seq))
		slot = multiget_search(rq, look, cfg, &step);
	look->value_len = 0;
	if (slot) {
		look->expire_ms = READ_ONCE(slot->expire_ms);
		look->value_len = value_len_of(slot);
		if (look->value_len > VALUE_WORDS * 8 || expired(rq, look->expire_ms))
			step = MULTIGET_SLOW;
	}
	look->at = rq->out_len;
	end = look->at + sizeof(struct xkv_result) + XKV_PADDED(look->value_len);
	if (step == MULTIGET_OK && end > rq->reply_allowed)
		step = i ? MULTIGET_END : MULTIGET_SLOW;
	if (step == MULTIGET_OK) {
		rq->out_len = end;
		rq->done += !slot;
	}
	return step;
}

#define NO_PLACE (1U << 31) /* multiget_keys() stopped as there was no place for a key */

/*
 * Takes the keys first .. last - 1 from the request.  Returns the end of those that could be taken,
 * perhaps with NO_PLACE, or 0 to fall back.  A function of its own: the verifier would go through
 * what follows once for each number of keys.
 */
__noinline __u32 multiget_keys(struct xkv_request *rq, __u32 first, __u32 last)
{
	int step = MULTIGET_OK;
	__u32 i;

	EACH_KEY(i, first, last) {
		step = multiget_key(rq, first + i);
		if (step != MULTIGET_OK)
			break;
	}
	if (step == MULTIGET_SLOW)
		return 0;
	return (first + i) | (step == MULTIGET_NO_PLACE ? NO_PLACE : 0);
}

/* Looks up the keys first .. last - 1.  Returns the end of those that fit, or 0 to fall back. */
__noinline __u32 multiget_find(struct xkv_request *rq, __u32 first, __u32 last)
{
	__u32 i, taken = multiget_keys(rq, first, last);
	int step = MULTIGET_OK;

	if (!taken)
		return 0;
	last = taken & ~NO_PLACE;
	multiget_prefetch_buckets(first, last);
	multiget_probe(first, last);
	multiget_prefetch_slots(first, last);
	EACH_KEY(i, first, last) {
		step = multiget_match(rq, first + i);
		if (step != MULTIGET_OK)
			break;
	}
	/* all fit and there may be more: request_run() makes each key in place of the last one */
	if ((taken & NO_PLACE) && first + i == last)
		return 0;
	return step == MULTIGET_SLOW ? 0 : first + i;
}

/* Writes a result into the packet and returns the sum of its words, or GONE. */
__noinline __u64 multiget_write(struct xdp_md *ctx, struct xkv_request *rq, __u32 i)
{
	struct xkv_config *cfg = config();
	struct xkv_lookup *look = lookup_at(i);
	struct xkv_slot *slot;
	struct packet p;
	__u64 *to;
	__u32 at;

	if (!rq || !cfg || !look || locate(ctx, rq, &p) != CONTINUE)
		return GONE;
	at = look->at;
	barrier_var(at);
	to = (void *)(p.udp + 1) + (at & (XKV_REQUEST_WORDS * 8 - 1));
	if (hot_is_due(rq, cfg)) {
		rq->key_off = look->key_off;
		rq->key_len = look->key_len;
		hot_note(rq, false, look->ref ? XKV_PADDED(look->value_len) : 0);
	}
	if (!look->ref)
		return write_result(to, p.end, rq->opcode, XKV_MISS, 0, 0, 0, 0);
	slot = slot_at(look->ref);
	if (!slot)
		return GONE;
	return write_entry(to, p.end, rq, cfg, slot, look->key_len, look->value_len,
			   look->expire_ms, rq->opcode, look->seq);
}

/* CONTINUE: falls back; the packet may have been resized and overwritten (rq->overwritten). */
__noinline int fast_multiget(struct xdp_md *ctx, struct xkv_request *rq)
{
	struct xkv_config *cfg = config();
	__u32 limit, expected, found, i;
	__u64 sum = 0, one;
	bool atomic;
	struct packet p;

	if (!rq || !cfg || !multiget_begin(rq, cfg))
		return CONTINUE;
	limit = expected = rq->count < XKV_LOOKUPS_MAX ? rq->count : XKV_LOOKUPS_MAX;
	if (rq->opcode == XKV_OP_SCAN && rq->scan_fits + 1 < limit)
		expected = rq->scan_fits + 1;
	found = multiget_find(rq, 0, expected);
	if (found == expected && found < limit)
		found = multiget_find(rq, found, limit);
	/*
	 * All keys were found before the first value is copied, and each has the same version after
	 * its copy: at the moment between, all were in the store.  An absent key has no version.
	 */
	atomic = ((struct xkv_hdr *)rq->in)->flags & XKV_F_ATOMIC;
	if (atomic && (found != rq->count || rq->done))
		return CONTINUE;
	if (!found || grow_for_reply(ctx, rq, rq->out_len))
		return CONTINUE;
	rq->overwritten = 1;
	EACH_KEY(i, 0, found) {
		one = multiget_write(ctx, rq, i);
		if (one == GONE)
			return CONTINUE;
		sum += one;
	}
	rq->scan_fits = found;
	if (locate(ctx, rq, &p) != CONTINUE)
		return XKV_C_drop_internal;
	sum += write_header(&p, rq->in_word[1], found, rq->out_len);
	swap_headers(&p, rq->address_sum, rq->out_len, sum);
	count_many(XKV_C_get_hits, found - rq->done);
	count_many(XKV_C_get_misses, rq->done);
	count_many(XKV_C_atomic_done, atomic);
	return XKV_C_replies;
}

#endif

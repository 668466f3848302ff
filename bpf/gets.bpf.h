/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fast path of a multi-get: a datagram of GETs, or a SCAN.  The keys form a lookup batch: each
 * step is done for all of them before the next, and prefetches what the next one reads.  So the
 * cache misses of the keys overlap, where single look-ups would stall twice for each key.
 *
 *   gets_key:            take the next key from the request
 *   gets_touch_buckets:  prefetch the buckets
 *   gets_entries:        probe the buckets
 *   gets_touch_slots:    prefetch the slots
 *   gets_match:          compare the key, check that the value fits the reply
 *   gets_write:          copy the value into the packet
 *
 * Anything else falls back to request_run(); the request is still complete in `in` then.
 */
#ifndef XKV_GETS_BPF_H
#define XKV_GETS_BPF_H

#include "plain.bpf.h"

/* END: no more results fit.  NO_PLACE: `in` has no space for the key.  LONG: falls back. */
enum gets { GETS_OK, GETS_END, GETS_NO_PLACE, GETS_LONG };

static __always_inline struct xkv_ahead *ahead_at(__u32 i)
{
	return bpf_map_lookup_elem(&xkv_ahead, &i);
}

/* Is this a request of GETs, or of one SCAN, without flags in its header? */
static __always_inline bool gets_begin(struct xkv_frame *f, struct xkv_config *cfg)
{
	struct xkv_hdr *hdr = (struct xkv_hdr *)f->in;
	struct xkv_op *op = (struct xkv_op *)(hdr + 1);
	__u32 length = bpf_ntohs(hdr->length);

	if (hdr->magic != bpf_htons(XKV_MAGIC) || hdr->version != XKV_VERSION || hdr->flags ||
	    hdr->status || !hdr->count || length & 7 || length > f->req_len ||
	    rules_of(cfg, f->rules)->auth != XKV_AUTH_OPEN)
		return false;
	f->opcode = op->opcode;
	f->count = op->opcode == XKV_OP_SCAN ? op->keys : hdr->count;
	f->end = length;
	f->in_off = sizeof(*hdr);
	f->out_len = sizeof(*hdr);
	f->done = 0; /* misses, here */
	return f->opcode != XKV_OP_SCAN || (hdr->count == 1 && f->count && f->count <= XKV_SCAN_MAX);
}

/* Makes the key of the operation at in_off the current one. */
static __always_inline bool gets_parse(struct xkv_frame *f)
{
	__u32 at = f->in_off, key_len, next;
	__u64 word = bpf_be64_to_cpu(IN(f, at));

	key_len = (word >> 40) & 0xff;
	next = at + sizeof(struct xkv_op) + XKV_PADDED(key_len);
	if (next > f->end || !key_len || key_len > XKV_KEY_MAX ||
	    word != ((__u64)f->opcode << 56 | (__u64)key_len << 40 |
		     (f->opcode == XKV_OP_SCAN ? (__u64)f->count << 32 : 0)) ||
	    IN(f, at + 8) | IN(f, at + 16))
		return false;
	f->key_off = at + sizeof(struct xkv_op);
	f->key_len = key_len;
	f->in_off = next;
	return padding_is_clean(f, f->key_off, key_len);
}

/*
 * Makes the next key of a SCAN the current one.  It is put after the request, which stays
 * unchanged.
 */
static __always_inline int gets_next(struct xkv_frame *f, __u32 i)
{
	__u32 from = f->key_off, size = XKV_PADDED(f->key_len), to = XKV_PADDED(f->req_len) + 8 + size * i;

	if (to + size > XKV_FRAME_WORDS * 8)
		return GETS_NO_PLACE;
	for (__u32 at = 0; at < KEY_WORDS * 8; at += 8) {
		if (at >= size)
			break;
		IN(f, to + at) = IN(f, from + at);
	}
	f->key_off = to;
	return next_key(f) ? GETS_OK : GETS_END;
}

__noinline int gets_key(struct xkv_frame *f, __u32 i)
{
	struct xkv_config *cfg = config();
	struct xkv_secrets *s = secrets();
	struct xkv_ahead *a = ahead_at(i);
	int step = GETS_OK;

	if (!f || !cfg || !s || !a)
		return GETS_LONG;
	if (i && f->opcode == XKV_OP_SCAN)
		step = gets_next(f, i - 1);
	else if (!gets_parse(f) || (f->opcode == XKV_OP_SCAN && f->count > 1 && !is_digit(KEY_BYTE(f, 0))))
		step = GETS_LONG;
	if (step != GETS_OK)
		return step;
	if (f->hashed != f->key_off)
		f->fingerprint = fingerprint_of(f, cfg, &s->hash);
	f->hashed = 0;
	a->fingerprint = f->fingerprint;
	a->key_off = f->key_off;
	a->key_len = f->key_len;
	return GETS_OK;
}

/* A loop over the keys first .. last - 1 of the batch. */
#define EACH_KEY(i, first, last)                                                                   \
	for (i = 0; i < XKV_AHEAD; i++)                                                            \
		if ((first) + i >= (last))                                                         \
			break;                                                                     \
		else

/* The loop is inside: a call per key would be half of the work, and fewer misses would overlap. */
__noinline int gets_touch_buckets(__u32 first, __u32 last)
{
	struct xkv_config *cfg = config();
	struct xkv_ahead *a;
	__u32 i;

	EACH_KEY(i, first, last) {
		a = ahead_at(first + i);
		if (a)
			touch(home_of(cfg, a->fingerprint));
	}
	return 0;
}

/*
 * Half of the entries of 168 bytes reach into a fourth line.  The copy of a single GET gets to it
 * soon enough; in a batch the misses would come one after the other.
 */
#define FOURTH_LINE 20

__noinline int gets_touch_slots(__u32 first, __u32 last)
{
	struct xkv_slot *slot;
	struct xkv_ahead *a;
	__u32 i;

	EACH_KEY(i, first, last) {
		a = ahead_at(first + i);
		slot = a ? slot_at(a->ref) : NULL;
		if (!slot)
			continue;
		touch_slot(slot);
		(void)READ(((const __u64 *)slot)[FOURTH_LINE]);
	}
	return 0;
}

__noinline int gets_entries(__u32 first, __u32 last)
{
	struct xkv_config *cfg = config();
	struct xkv_bucket *home;
	struct xkv_ahead *a;
	__u32 i;

	EACH_KEY(i, first, last) {
		a = ahead_at(first + i);
		home = a ? home_of(cfg, a->fingerprint) : NULL;
		if (home)
			a->ref = likely_ref(home, a->fingerprint);
	}
	return 0;
}

/* The full look-up, if probing failed.  NULL: not found (a->ref is 0), or contended. */
static __always_inline struct xkv_slot *gets_search(struct xkv_frame *f, struct xkv_ahead *a,
						    struct xkv_config *cfg, int *step)
{
	int found;

	f->fingerprint = a->fingerprint;
	found = find(f);
	a->ref = found == FOUND ? f->ref : 0;
	a->seq = f->seq;
	*step = found == FOUND || (found == ABSENT && cfg->miss_reply) ? GETS_OK : GETS_LONG;
	return a->ref ? slot_at(a->ref) : NULL;
}

/* Finds the slot of a key, and assigns the offset of its result. */
__noinline int gets_match(struct xkv_frame *f, __u32 i)
{
	struct xkv_config *cfg = config();
	struct xkv_ahead *a = ahead_at(i);
	struct xkv_slot *slot;
	int step = GETS_OK;
	__u32 end;

	if (!f || !cfg || !a)
		return GETS_LONG;
	f->key_off = a->key_off;
	f->key_len = a->key_len;
	slot = a->ref ? slot_at(a->ref) : NULL;
	if (!slot || !holds_key(f, slot, &a->seq))
		slot = gets_search(f, a, cfg, &step);
	a->value_len = 0;
	if (slot) {
		a->expire_ms = READ(slot->expire_ms);
		a->value_len = READ(slot->value_len);
		if (a->value_len > VALUE_WORDS * 8 || expired(f, a->expire_ms))
			step = GETS_LONG;
	}
	a->at = f->out_len;
	end = a->at + sizeof(struct xkv_result) + XKV_PADDED(a->value_len);
	if (step == GETS_OK && end > f->reply_allowed)
		step = i ? GETS_END : GETS_LONG;
	if (step == GETS_OK) {
		f->out_len = end;
		f->done += !slot;
	}
	return step;
}

/* Looks up the keys first .. last - 1.  Returns the end of those that fit, or 0 to fall back. */
__noinline __u32 gets_find(struct xkv_frame *f, __u32 first, __u32 last)
{
	int step = GETS_OK;
	bool no_place;
	__u32 i;

	EACH_KEY(i, first, last) {
		step = gets_key(f, first + i);
		if (step != GETS_OK)
			break;
	}
	if (step == GETS_LONG)
		return 0;
	no_place = step == GETS_NO_PLACE;
	last = first + i;
	gets_touch_buckets(first, last);
	gets_entries(first, last);
	gets_touch_slots(first, last);
	EACH_KEY(i, first, last) {
		step = gets_match(f, first + i);
		if (step != GETS_OK)
			break;
	}
	/* all fit and there may be more: request_run() makes each key in place of the last one */
	if (no_place && first + i == last)
		return 0;
	return step == GETS_LONG ? 0 : first + i;
}

#define GONE (~0ULL)

/* Writes a result into the packet and returns the sum of its words, or GONE. */
__noinline __u64 gets_write(struct xdp_md *ctx, struct xkv_frame *f, __u32 i)
{
	struct xkv_config *cfg = config();
	struct xkv_ahead *a = ahead_at(i);
	struct xkv_slot *slot;
	__u64 sum, *to;
	struct packet p;
	__u32 at;

	if (!f || !cfg || !a || locate(ctx, f, &p) != CONTINUE)
		return GONE;
	at = a->at;
	OPAQUE(at);
	to = (void *)(p.udp + 1) + (at & (XKV_FRAME_WORDS * 8 - 1));
	if (hot_is_due(f, cfg)) {
		f->key_off = a->key_off;
		f->key_len = a->key_len;
		hot_note(f, false, a->ref ? XKV_PADDED(a->value_len) : 0);
	}
	if (!a->ref)
		return write_result(to, p.end, f->opcode, XKV_MISS, 0, 0, 0, 0);
	slot = slot_at(a->ref);
	if (!slot)
		return GONE;
	sum = write_result(to, p.end, f->opcode, XKV_OK, XKV_HAS_VALUE, a->value_len,
			   a->expire_ms ? a->expire_ms - now_ms(f) : 0, a->seq);
	sum += write_value(to + 3, p.end, slot_value(slot, a->key_len), a->value_len);
	smp_mb_reads();
	if (READ(slot->seq) != a->seq)
		return GONE;
	mark_access(cfg, slot);
	return sum;
}

/* CONTINUE: falls back; the packet may have been resized and overwritten (f->torn). */
__noinline int gets_plain(struct xdp_md *ctx, struct xkv_frame *f)
{
	struct xkv_config *cfg = config();
	__u32 limit, expected, found, i;
	__u64 sum = 0, one;
	struct packet p;

	if (!f || !cfg || !gets_begin(f, cfg))
		return CONTINUE;
	limit = expected = f->count < XKV_AHEAD ? f->count : XKV_AHEAD;
	if (f->opcode == XKV_OP_SCAN && f->scan_fits + 1 < limit)
		expected = f->scan_fits + 1;
	found = gets_find(f, 0, expected);
	if (found == expected && found < limit)
		found = gets_find(f, found, limit);
	if (!found || stretch(ctx, f, f->out_len))
		return CONTINUE;
	f->torn = 1;
	EACH_KEY(i, 0, found) {
		one = gets_write(ctx, f, i);
		if (one == GONE)
			return CONTINUE;
		sum += one;
	}
	f->scan_fits = found;
	if (locate(ctx, f, &p) != CONTINUE)
		return XKV_C_drop_internal;
	sum += write_header(&p, f, found, f->out_len);
	swap_headers(&p, f, f->out_len, sum);
	count_many(XKV_C_get_hits, found - f->done);
	count_many(XKV_C_get_misses, f->done);
	return XKV_C_replies;
}

#endif

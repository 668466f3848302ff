/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fast path: one GET that hits, or one SET that overwrites in place, without flags or other
 * options.  The reply is written directly into the packet, not into `out` first.  Anything else
 * falls back to request_run(); the request is still complete in `in` then.
 */
#ifndef XKV_FAST_BPF_H
#define XKV_FAST_BPF_H

#include "atomic.bpf.h"
#include "packet.bpf.h"

#define FAST_OPCODE_OFF 16
#define FAST_KEY_OFF	40  /* offset of the key, after header and operation */
#define LONG_VALUE	256 /* from here on prefetch_rest() pays off */
#define FAST_REPLY_LEN	(sizeof(struct xkv_hdr) + sizeof(struct xkv_result))

/*
 * Prefetches the bucket of the key of a request with one operation and no flags, so that the cache
 * miss overlaps with the checksum.  Leaves the fingerprint in the request.
 */
static __always_inline void prefetch_bucket(struct packet *p, struct xkv_request *rq)
{
	struct xkv_hdr *hdr = (struct xkv_hdr *)(p->udp + 1);
	struct xkv_op *op = (struct xkv_op *)(hdr + 1);
	struct xkv_config *cfg = config();
	struct xkv_secrets *s = secrets();
	__u32 key_len;
	__u64 hash;

	rq->hashed = 0;
	if ((void *)(op + 1) > p->end || !cfg || !s)
		return;
	rq->db = database_of(cfg, 0); /* request_begin() sets another one */
	key_len = op->key_len;
	if (hdr->flags || hdr->db || hdr->count != 1 || op->opcode == XKV_OP_SCAN ||
	    key_len > XKV_KEY_MAX ||
	    !hash_words((__u64 *)(op + 1), key_len, rq->db, true, p->end, &s->hash, &hash))
		return;
	rq->hashed = FAST_KEY_OFF;
	rq->fingerprint = hash & cfg->fingerprint_mask;
	prefetch_head(home_of(cfg, rq->fingerprint));
}

/* Loads the payload, while the bucket of the key is prefetched. */
__noinline int load(struct xdp_md *ctx, struct xkv_request *rq)
{
	struct packet p;

	if (!rq || locate(ctx, rq, &p) != CONTINUE)
		return XKV_C_pass_length;
	prefetch_bucket(&p, rq);
	return copy_and_verify(&p, rq);
}

/* The first word of a request of `length` bytes with one operation and no flags. */
static __always_inline __u64 fast_header(__u64 length)
{
	return bpf_cpu_to_be64((__u64)XKV_MAGIC << 48 | (__u64)XKV_VERSION << 40 | 1ULL << 24 |
			       length);
}

/*
 * Does the request qualify?  Header and operation are compared as whole words, for each of which
 * only one value qualifies.  Fills in the current operation.
 */
static __always_inline bool is_fast(struct xkv_request *rq, struct xkv_config *cfg, __u64 opcode)
{
	__u64 word = bpf_be64_to_cpu(rq->in_word[2]);
	__u32 key_len = (word >> 40) & 0xff, value_len = word;
	__u32 length = FAST_KEY_OFF + XKV_PADDED(key_len) + XKV_PADDED(value_len);

	if (rq->in_word[0] != fast_header(length) ||
	    word != (opcode << 56 | (__u64)key_len << 40 | value_len) ||
	    (rq->in_word[3] | rq->in_word[4]) ||
	    value_len > (opcode == XKV_OP_SET ? XKV_PAYLOAD_MAX4 : 0) || length > rq->req_len ||
	    rq->hashed != FAST_KEY_OFF || !key_len || key_len > XKV_KEY_MAX ||
	    rules_of(cfg, rq->rules)->auth != XKV_AUTH_OPEN)
		return false;
	rq->key_off = FAST_KEY_OFF;
	rq->key_len = key_len;
	rq->value_off = FAST_KEY_OFF + XKV_PADDED(key_len);
	rq->value_len = value_len;
	return padding_is_clean(rq, rq->key_off, key_len) &&
	       padding_is_clean(rq, rq->value_off, value_len);
}

/* The slot of the current key; sets rq->ref and rq->seq.  NULL if not found, or contended. */
static __always_inline struct xkv_slot *fast_find(struct xkv_request *rq, struct xkv_config *cfg)
{
	struct xkv_bucket *home = home_of(cfg, rq->fingerprint);
	struct xkv_slot *slot;

	if (!home)
		return NULL;
	rq->ref = probe_bucket(home, rq->fingerprint);
	slot = rq->ref ? slot_at(rq->ref) : NULL;
	if (slot) {
		prefetch_slot(slot);
		if (holds_key(&IN(rq, rq->key_off), rq->key_len, rq->db, slot, &rq->seq))
			return slot;
	}
	return find(rq) == FOUND ? slot_at(rq->ref) : NULL;
}

#define WORD_OUT(to, sum, word)                                                                    \
	do {                                                                                       \
		__u64 w = (word);                                                                  \
		*(to) = w;                                                                         \
		(sum) += HALVES(w);                                                                \
	} while (0)

/*
 * Writes the header of a reply of `length` bytes into the packet and returns the sum of its words.
 */
static __always_inline __u64 write_header(struct packet *p, __u64 id, __u64 results, __u32 length)
{
	__u64 *to = (__u64 *)(p->udp + 1), sum = 0;

	if ((void *)(to + 2) > p->end)
		return 0;
	WORD_OUT(to, sum,
		 bpf_cpu_to_be64((__u64)XKV_MAGIC << 48 | (__u64)XKV_VERSION << 40 |
				 (__u64)XKV_F_REPLY << 32 | results << 24 | length));
	WORD_OUT(to + 1, sum, id);
	return sum;
}

/* The same for a result, which value_len bytes of value will follow. */
static __always_inline __u64 write_result(__u64 *to, void *end, __u64 opcode, __u64 status,
					  __u64 flags, __u32 value_len, __u64 ttl, __u64 version)
{
	__u64 sum = 0;

	if ((void *)(to + 3) > end)
		return 0;
	WORD_OUT(to, sum, bpf_cpu_to_be64(opcode << 56 | status << 48 | flags << 40 | value_len));
	WORD_OUT(to + 1, sum, bpf_cpu_to_be64(ttl));
	WORD_OUT(to + 2, sum, bpf_cpu_to_be64(version));
	return sum;
}

/* As copy_from_packet(). */
static __noinline __u64 copy_to_packet(__u64 *to, const __u64 *from, const void *end, __u32 words)
{
	return copy_summed(to, from, true, end, words);
}

#define GONE (~0ULL)

/*
 * The same for the result of a read, with the value; GONE if the entry has changed since it had
 * the version `seq`.
 */
static __always_inline __u64 write_entry(__u64 *to, void *end, struct xkv_request *rq,
					 struct xkv_config *cfg, struct xkv_slot *slot,
					 __u32 key_len, __u32 value_len, __u64 expire_ms,
					 __u64 opcode, __u64 seq)
{
	__u64 sum = write_result(to, end, opcode, XKV_OK, XKV_HAS_VALUE, value_len,
				 expire_ms ? expire_ms - now_ms(rq) : 0, seq);

	sum += copy_to_packet(to + 3, slot_value(slot, key_len), end, value_words(value_len));
	smp_rmb();
	if (READ_ONCE(slot->seq) != seq)
		return GONE;
	mark_access(cfg, slot);
	return sum;
}

/*
 * Prefetches the lines of a long slot, of so many bytes, that prefetch_slot() has not loaded.  The
 * loop that copies a value fills the reorder window after a few lines, so without this the misses
 * would not overlap.  Not inlined: the verifier would explore what follows once for each loop
 * count.
 */
__noinline int prefetch_rest(struct xkv_request *rq, __u32 bytes)
{
	struct xkv_slot *slot = rq ? slot_at(rq->ref) : NULL;

	if (!slot)
		return 0;
	for (__u32 at = SLOT_PREFETCHED; at < SLOT_PREFETCHED + XKV_PAYLOAD_MAX4; at += 64) {
		if (at >= bytes)
			break;
		(void)READ_ONCE(((const __u64 *)slot)[at / 8]);
	}
	return 0;
}

/*
 * Turns the payload of the packet into the reply with the entry in the slot; *sum is its checksum.
 * Returns its length, or 0 to fall back: the packet may have been resized and overwritten by then.
 */
static __always_inline __u32 read_slot(struct xdp_md *ctx, struct xkv_request *rq,
				       struct xkv_config *cfg, struct xkv_slot *slot,
				       struct packet *p, __u64 *sum)
{
	__u64 expire_ms = READ_ONCE(slot->expire_ms), entry;
	__u32 value_len = value_len_of(slot), length = FAST_REPLY_LEN + XKV_PADDED(value_len);

	if (value_len > VALUE_WORDS * 8 || length > rq->reply_allowed || expired(rq, expire_ms))
		return 0;
	if (value_len > LONG_VALUE)
		prefetch_rest(rq, sizeof(*slot) + XKV_PADDED(rq->key_len) + value_len);
	if (grow_for_reply(ctx, rq, length))
		return 0;
	rq->overwritten = 1;
	if (locate(ctx, rq, p) != CONTINUE)
		return 0;
	*sum = write_header(p, rq->in_word[1], 1, length);
	entry = write_entry((__u64 *)(p->udp + 1) + 2, p->end, rq, cfg, slot, rq->key_len,
			    value_len, expire_ms, XKV_OP_GET, rq->seq);
	*sum += entry;
	return entry == GONE ? 0 : length;
}

/* CONTINUE: falls back; the packet may have been resized and overwritten (rq->overwritten). */
__noinline int fast_get(struct xdp_md *ctx, struct xkv_request *rq)
{
	struct xkv_config *cfg = config();
	struct xkv_slot *slot;
	struct packet p;
	__u32 length;
	__u64 sum;

	if (!rq || !cfg || !is_fast(rq, cfg, XKV_OP_GET))
		return CONTINUE;
	slot = fast_find(rq, cfg);
	length = slot ? read_slot(ctx, rq, cfg, slot, &p, &sum) : 0;
	if (!length || locate(ctx, rq, &p) != CONTINUE)
		return CONTINUE;
	swap_headers(&p, rq->address_sum, length, sum);
	count(rq, XKV_C_get_hits);
	hot_used(rq, cfg, false, length - FAST_REPLY_LEN);
	return XKV_C_replies;
}

/* Overwrites the entry in the slot.  False: falls back; nothing was changed. */
static __always_inline bool write_slot(struct xkv_request *rq, struct xkv_config *cfg,
				       struct xkv_slot *slot)
{
	struct change change;

	if (!lock_found(rq))
		return false;
	rq->keep = 0;
	if (!stays_in_class(rq, slot) || !change_prepare(&change, rq, XKV_CHANGE_OVERWRITE, rq->ref,
							 slot, rq->ref, rq->value_len)) {
		unlock(slot, rq->seq);
		return false;
	}
	change.opcode = XKV_OP_SET;
	change_replaces(&change, slot->expire_ms);
	slot->expire_ms = 0;
	slot->value_len = rq->value_len;
	copy_value(rq, WINDOW(slot));
	mark_access(cfg, slot);
	rq->version = change_commit(&change);
	return true;
}

/* CONTINUE: falls back; nothing was changed. */
__noinline int fast_set(struct xdp_md *ctx, struct xkv_request *rq)
{
	struct xkv_config *cfg = config();
	struct xkv_slot *slot;
	struct packet p;
	__u64 sum;

	if (!rq || !cfg || cfg->read_only || !is_fast(rq, cfg, XKV_OP_SET))
		return CONTINUE;
	slot = fast_find(rq, cfg);
	if (!slot || !write_slot(rq, cfg, slot))
		return CONTINUE;
	count(rq, XKV_C_overwrites);
	hot_used(rq, cfg, true, XKV_PADDED(rq->value_len));
	/* the reply is never longer than the request, so this cannot fail */
	if (resize(ctx, rq->payload_off, FAST_REPLY_LEN) || locate(ctx, rq, &p) != CONTINUE)
		return XKV_C_drop_internal;
	sum = write_header(&p, rq->in_word[1], 1, FAST_REPLY_LEN);
	sum += write_result((__u64 *)(p.udp + 1) + 2, p.end, XKV_OP_SET, XKV_OK, 0, 0, 0,
			    rq->version);
	swap_headers(&p, rq->address_sum, FAST_REPLY_LEN, sum);
	return XKV_C_replies;
}

#endif

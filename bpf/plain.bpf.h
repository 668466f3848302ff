/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fast path: one GET that hits, or one SET that overwrites in place, without flags or other
 * options.  The reply is written directly into the packet, not into `out` first.  Anything else
 * falls back to request_run(); the request is still complete in `in` then.
 */
#ifndef XKV_PLAIN_BPF_H
#define XKV_PLAIN_BPF_H

#include "request.bpf.h"
#include "packet.bpf.h"

#define PLAIN_OPCODE 16
#define PLAIN_KEY 40 /* offset of the key, after header and operation */
#define LONG_VALUE 256 /* from here on touch_rest() pays off */
#define PLAIN_RESULT (sizeof(struct xkv_hdr) + sizeof(struct xkv_result))

/*
 * Does the request qualify?  Header and operation are compared as whole words, for each of which
 * only one value qualifies.  Fills in the current operation.
 */
static __always_inline bool is_plain(struct xkv_frame *f, struct xkv_config *cfg, __u64 opcode)
{
	__u64 word = bpf_be64_to_cpu(f->in_word[2]);
	__u32 key_len = (word >> 40) & 0xff, value_len = word;
	__u32 length = PLAIN_KEY + XKV_PADDED(key_len) + XKV_PADDED(value_len);
	__u64 header = (__u64)XKV_MAGIC << 48 | (__u64)XKV_VERSION << 40 | 1ULL << 24 | length;

	if (f->in_word[0] != bpf_cpu_to_be64(header) ||
	    word != (opcode << 56 | (__u64)key_len << 40 | value_len) ||
	    (f->in_word[3] | f->in_word[4]) ||
	    value_len > (opcode == XKV_OP_SET ? XKV_PAYLOAD_MAX4 : 0) || length > f->req_len ||
	    f->hashed != PLAIN_KEY || !key_len || key_len > XKV_KEY_MAX ||
	    rules_of(cfg, f->rules)->auth != XKV_AUTH_OPEN)
		return false;
	f->key_off = PLAIN_KEY;
	f->key_len = key_len;
	f->value_off = PLAIN_KEY + XKV_PADDED(key_len);
	f->value_len = value_len;
	return padding_is_clean(f, f->key_off, key_len) &&
	       padding_is_clean(f, f->value_off, value_len);
}

/* The slot of the current key; sets f->ref and f->seq.  NULL if not found, or contended. */
static __always_inline struct xkv_slot *find_plain(struct xkv_frame *f, struct xkv_config *cfg)
{
	struct xkv_bucket *home = home_of(cfg, f->fingerprint);
	struct xkv_slot *slot;

	if (!home)
		return NULL;
	f->ref = likely_ref(home, f->fingerprint);
	slot = f->ref ? slot_at(f->ref) : NULL;
	if (slot) {
		touch_slot(slot);
		if (holds_key(f, slot, &f->seq))
			return slot;
	}
	return find(f) == FOUND ? slot_at(f->ref) : NULL;
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
static __always_inline __u64 write_header(struct packet *p, struct xkv_frame *f, __u64 results,
					  __u32 length)
{
	__u64 *to = (__u64 *)(p->udp + 1), sum = 0;

	if ((void *)(to + 2) > p->end)
		return 0;
	WORD_OUT(to, sum, bpf_cpu_to_be64((__u64)XKV_MAGIC << 48 | (__u64)XKV_VERSION << 40 |
					  (__u64)XKV_F_REPLY << 32 | results << 24 | length));
	WORD_OUT(to + 1, sum, f->in_word[1]);
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

/* The same for a value. */
static __always_inline __u64 write_value(__u64 *to, void *end, const __u64 *value, __u32 value_len)
{
	return copy_to_packet(to, value, end, value_words(value_len));
}

/*
 * Prefetches the lines of a long slot, of so many bytes, that touch_slot() has not loaded.  The
 * loop that copies a value fills the reorder window after a few lines, so without this the misses
 * would not overlap.  Not inlined: the verifier would explore what follows once for each loop
 * count.
 */
__noinline int touch_rest(struct xkv_frame *f, __u32 bytes)
{
	struct xkv_slot *slot = f ? slot_at(f->ref) : NULL;

	if (!slot)
		return 0;
	for (__u32 at = SLOT_TOUCHED; at < SLOT_TOUCHED + XKV_PAYLOAD_MAX4; at += 64) {
		if (at >= bytes)
			break;
		(void)READ(((const __u64 *)slot)[at / 8]);
	}
	return 0;
}

/*
 * Makes the payload of the packet the reply with the entry in the slot; *sum is its checksum.
 * Returns its length, or 0 to fall back: the packet may have been resized and overwritten by then.
 */
static __always_inline __u32 read_slot(struct xdp_md *ctx, struct xkv_frame *f, struct xkv_config *cfg,
				       struct xkv_slot *slot, struct packet *p, __u64 *sum)
{
	__u64 expire_ms = READ(slot->expire_ms), ttl = 0, *to;
	__u32 value_len = READ(slot->value_len), length = PLAIN_RESULT + XKV_PADDED(value_len);

	if (value_len > VALUE_WORDS * 8 || length > f->reply_allowed)
		return 0;
	if (expire_ms) {
		if (expire_ms <= now_ms(f))
			return 0;
		ttl = expire_ms - now_ms(f);
	}
	if (value_len > LONG_VALUE)
		touch_rest(f, sizeof(*slot) + XKV_PADDED(f->key_len) + value_len);
	if (stretch(ctx, f, length))
		return 0;
	f->torn = 1;
	if (locate(ctx, f, p) != CONTINUE)
		return 0;
	to = (__u64 *)(p->udp + 1) + 2;
	*sum = write_header(p, f, 1, length);
	*sum += write_result(to, p->end, XKV_OP_GET, XKV_OK, XKV_HAS_VALUE, value_len, ttl, f->seq);
	*sum += write_value(to + 3, p->end, slot_value(slot, f->key_len), value_len);
	smp_mb_reads();
	if (READ(slot->seq) != f->seq)
		return 0;
	mark_access(cfg, slot);
	return length;
}

/* CONTINUE: falls back; the packet may have been resized and overwritten (f->torn). */
__noinline int get_plain(struct xdp_md *ctx, struct xkv_frame *f)
{
	struct xkv_config *cfg = config();
	struct xkv_slot *slot;
	struct packet p;
	__u32 length;
	__u64 sum;

	if (!f || !cfg || !is_plain(f, cfg, XKV_OP_GET))
		return CONTINUE;
	slot = find_plain(f, cfg);
	length = slot ? read_slot(ctx, f, cfg, slot, &p, &sum) : 0;
	if (!length)
		return CONTINUE;
	swap_headers(&p, f, length, sum);
	count(f, XKV_C_get_hits);
	hot_used(f, cfg, false, length - PLAIN_RESULT);
	return XKV_C_replies;
}

/* Overwrites the entry in the slot.  False: falls back; nothing was changed. */
static __always_inline bool write_slot(struct xkv_frame *f, struct xkv_config *cfg, struct xkv_slot *slot)
{
	if (!lock_found(f))
		return false;
	f->keep = 0;
	if (!stays_in_class(f, slot)) {
		unlock(slot, f->seq);
		return false;
	}
	slot->expire_ms = 0;
	slot->value_len = f->value_len;
	copy_value(f, slot);
	mark_access(cfg, slot);
	f->version = new_version(f);
	unlock(slot, f->version);
	return true;
}

/* CONTINUE: falls back; nothing was changed. */
__noinline int set_plain(struct xdp_md *ctx, struct xkv_frame *f)
{
	struct xkv_config *cfg = config();
	struct xkv_slot *slot;
	struct packet p;
	__u64 sum;

	if (!f || !cfg || cfg->read_only || !is_plain(f, cfg, XKV_OP_SET))
		return CONTINUE;
	slot = find_plain(f, cfg);
	if (!slot || !write_slot(f, cfg, slot))
		return CONTINUE;
	count(f, XKV_C_overwrites);
	hot_used(f, cfg, true, XKV_PADDED(f->value_len));
	/* the reply is never longer than the request, so this cannot fail */
	if (resize(ctx, f->payload_off, PLAIN_RESULT) || locate(ctx, f, &p) != CONTINUE)
		return XKV_C_drop_internal;
	sum = write_header(&p, f, 1, PLAIN_RESULT);
	sum += write_result((__u64 *)(p.udp + 1) + 2, p.end, XKV_OP_SET, XKV_OK, 0, 0, 0, f->version);
	swap_headers(&p, f, PLAIN_RESULT, sum);
	return XKV_C_replies;
}

#endif

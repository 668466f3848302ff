/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A look inside: an iterator over `index` that prints every entry as a line of text, pinned by xkvd
 * beside the maps, so that `cat` is enough:
 *
 *   "user:1000" 128 bytes, 59990 ms left, version 17179869184
 *
 * Keys are quoted as redis-cli quotes them.
 */
#ifndef XKV_ENTRIES_BPF_H
#define XKV_ENTRIES_BPF_H

#include <bpf/bpf_tracing.h>

#include "ops.bpf.h"

/* What is used of the kernel's types; where in them it is, libbpf finds out when it loads the program. */
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));
struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	void *key;
} __attribute__((preserve_access_index));

struct shown {
	__u64 seq, expire_ms;
	__u32 value_len, key_len;
	union {
		__u64 word[KEY_WORDS];
		__u8 key[KEY_WORDS * 8];
	};
};

/* Copies what is shown of an entry.  False if it changes meanwhile; then it is left out. */
static __always_inline bool show_copy(struct shown *s, __u64 ref)
{
	struct xkv_slot *slot = slot_at(ref);
	__u64 *key;

	if (!slot)
		return false;
	s->seq = READ(slot->seq);
	smp_mb_reads();
	key = (__u64 *)(slot + 1);
	s->expire_ms = slot->expire_ms;
	s->value_len = slot->value_len;
	s->key_len = slot->key_len;
	for (int i = 0; i < KEY_WORDS; i++)
		s->word[i] = key[i];
	smp_mb_reads();
	return !(s->seq & 1) && READ(slot->seq) == s->seq;
}

/* What a loop's function is given: bpf_loop() has the verifier look at its body once. */
struct show {
	struct seq_file *seq;
	struct xkv_bucket *home;
	__u64 now;
	struct shown entry;
};

static __always_inline __u8 hex_digit(__u8 n)
{
	return n < 10 ? '0' + n : 'a' + n - 10;
}

static int show_byte(__u32 i, struct show *s)
{
	__u8 c = s->entry.key[i & (KEY_WORDS * 8 - 1)];
	char text[4] = { '\\', 'x', hex_digit(c >> 4), hex_digit(c & 15) };

	if (c < ' ' || c > '~')
		return bpf_seq_write(s->seq, text, 4) != 0;
	text[1] = c;
	if (c == '"' || c == '\\')
		return bpf_seq_write(s->seq, text, 2) != 0;
	return bpf_seq_write(s->seq, text + 1, 1) != 0;
}

static __always_inline void show(struct show *s, __u64 ref)
{
	struct shown *e = &s->entry;
	char quote = '"';

	if (!show_copy(e, ref) || (e->expire_ms && e->expire_ms <= s->now))
		return;
	bpf_seq_write(s->seq, &quote, 1);
	bpf_loop(e->key_len, show_byte, s, 0);
	if (e->expire_ms)
		BPF_SEQ_PRINTF(s->seq, "\" %u bytes, %llu ms left, version %llu\n", e->value_len,
			       e->expire_ms - s->now, e->seq);
	else
		BPF_SEQ_PRINTF(s->seq, "\" %u bytes, version %llu\n", e->value_len, e->seq);
}

static int show_in_chain(__u32 i, struct show *s)
{
	__u32 hop = i / XKV_WAYS, word = 1 + i % XKV_WAYS; /* behind the bucket's head */
	struct xkv_bucket *b = s->home;
	struct xkv_chain *chain;
	__u64 entry, next;

	next = READ(b->head);
	for (__u32 j = 0; j < XKV_CHAIN_MAX; j++) {
		if (j >= hop)
			break;
		chain = next_of(next);
		if (!chain)
			return 1;
		b = &chain->bucket;
		next = READ(b->head);
	}
	OPAQUE(word);
	entry = READ(((__u64 *)b)[word & XKV_WAYS]);
	if (entry)
		show(s, entry & XKV_REF_MASK);
	return 0;
}

SEC("iter/bpf_map_elem")
int xkv_entries(struct bpf_iter__bpf_map_elem *ctx)
{
	struct xkv_config *cfg = config();
	struct show s = { .seq = ctx->meta->seq };
	__u32 *key = ctx->key, number;

	if (!key || !cfg)
		return 0;
	number = *key;
	s.home = bpf_map_lookup_elem(&xkv_index, &number);
	s.now = bpf_ktime_get_tai_ns() / 1000000 - cfg->tai_offset_ms;
	if (s.home)
		bpf_loop(XKV_WAYS * (XKV_CHAIN_MAX + 1), show_in_chain, &s, 0);
	return 0;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Iterators over `index` that print every entry as a line.  xkvd pins them beside the maps, so
 * `cat` shows the store.  `entries` prints text, with keys quoted as in redis-cli:
 *
 *   "user:1000" 128 bytes, 59990 ms left, version 17179869184
 *
 * `dump` prints JSON objects, with the value:
 *
 *   {"key":"user:1000","value":"hello","value_len":5,"ttl_ms":59990,"version":"17179869184"}
 *
 * with {"base64":"..."} for strings that are not UTF-8.  A value that does not fit a datagram is
 * cut after SHOWN_VALUE bytes, with "value_truncated":true.
 *
 * The line of an entry in another database than 0 begins with `database 3 `, its object with
 * "database":3.
 *
 * The kernel buffers 32 KiB of output for a bucket and its chain.  What exceeds that is cut, or
 * left out and counted.
 */
#ifndef XKV_ENTRIES_BPF_H
#define XKV_ENTRIES_BPF_H

#include <bpf/bpf_tracing.h>

#include "ops.bpf.h"

/* The fields that are used of the kernel's types; libbpf relocates them (CO-RE). */
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));
struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	void *key;
} __attribute__((preserve_access_index));

#define SHOWN_VALUE   XKV_PAYLOAD_MAX4
#define SHOWN_WORDS   ((XKV_SLOT_WINDOW - sizeof(struct xkv_slot)) / 8)
#define SHOW_ROOM     32000 /* bytes for a bucket */
#define SHOW_LINE     200   /* greatest length of a line without key and value */
#define SHOW_READERS  8	    /* concurrent ones; others get EAGAIN */
#define CHAIN_ENTRIES (XKV_WAYS * (XKV_CHAIN_MAX + 1))

/*
 * State that is too large for the stack, or too complex for the verifier there: the entries of a
 * bucket and its chain, and a copy of the current one.
 */
struct shown {
	__u32 taken, count;
	__u64 entry[CHAIN_ENTRIES + 1];
	__u64 seq, expire_ms;
	__u32 value_len, key_len, db;
	__u32 room, left_out;
	__u32 at, len, escapes, binary, more, low, high; /* of the current bytes */
	union {
		__u64 word[320];
		__u8 byte[320 * 8];
	};
};

/* A program owns the element in which it has set `taken`: iterators can preempt each other. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SHOW_READERS);
	__type(key, __u32);
	__type(value, struct shown);
} xkv_shown SEC(".maps");

/* The context of loop bodies: with bpf_loop() the verifier checks a body once. */
struct show {
	struct seq_file *seq;
	struct shown *e;
	__u64 now;
	__u32 bucket, json;
	__u32 db; /* of the current entry, as clients call it */
};

/* ---- collecting entries -------------------------------------------------- */

/*
 * Collects the entries of a bucket.  A global function, and counted in memory: of a register the
 * verifier would follow every value.
 */
__noinline int take_bucket(struct shown *e, struct xkv_bucket *b)
{
	__u32 count;
	__u64 entry;

	if (!e || !b)
		return 0;
	for (int way = 0; way < XKV_WAYS; way++) {
		entry = READ_ONCE(b->entry[way]);
		count = READ_ONCE(e->count);
		if (!entry || count >= CHAIN_ENTRIES)
			continue;
		e->entry[count & 127] = entry;
		WRITE_ONCE(e->count, count + 1);
	}
	return 0;
}

/*
 * Collects the entries of a bucket and its chain.  False if a bucket of the chain was unlinked
 * meanwhile: what was read of it is invalid.
 */
static __always_inline bool take_chain(struct shown *e, struct xkv_bucket *home)
{
	__u64 head = READ_ONCE(home->head), next = head;
	struct xkv_chain *chain;

	smp_rmb();
	e->count = 0;
	take_bucket(e, home);
	for (int i = 0; i < XKV_CHAIN_MAX; i++) {
		chain = next_of(next);
		if (!chain)
			break;
		next = READ_ONCE(chain->bucket.head);
		take_bucket(e, &chain->bucket);
	}
	smp_rmb();
	return !((READ_ONCE(home->head) ^ head) & XKV_BUCKET_COUNT);
}

/* The length of a value, of a huge one that which its page tells. */
static __always_inline __u32 length_of(const struct xkv_slot *slot, __u64 ref)
{
	__u32 len = value_len_of(slot);
	struct xkv_page *page = len == XKV_VALUE_HUGE ? page_at(ref) : NULL;

	return page ? page->huge : len;
}

/* Copies an entry.  False if it was changed meanwhile: it is left out then. */
static __always_inline bool show_copy(struct shown *e, __u64 ref)
{
	struct xkv_slot *slot = slot_at(ref);
	__u32 need;
	__u64 *from;

	if (!slot)
		return false;
	e->seq = READ_ONCE(slot->seq);
	smp_rmb();
	e->expire_ms = slot->expire_ms;
	e->value_len = length_of(slot, ref);
	e->key_len = slot->key_len;
	e->db = slot->db;
	need = XKV_PADDED(e->key_len) + (e->value_len < SHOWN_VALUE ? e->value_len : SHOWN_VALUE);
	from = (__u64 *)(slot + 1);
	barrier_var(need); /* keeps the bound of the loop, which the verifier of 6.1 needs */
	for (__u32 i = 0; i < SHOWN_WORDS; i++) {
		if (i * 8 >= need)
			break;
		e->word[i] = from[i];
	}
	smp_rmb();
	return !(e->seq & 1) && READ_ONCE(slot->seq) == e->seq && e->key_len <= XKV_KEY_LONG;
}

/* Does the copy belong to this bucket?  The slot may have been reused since its entry was read. */
static __always_inline bool is_of_bucket(const struct show *s, struct xkv_config *cfg, __u64 entry)
{
	const struct xkv_secrets *secret = secrets();
	const struct shown *e = s->e;
	__u64 fingerprint = 0;

	if (!secret)
		return false;
	hash_words(e->word, e->key_len, e->db, false, NULL, &secret->hash, &fingerprint);
	fingerprint &= cfg->fingerprint_mask;
	return !((fingerprint ^ entry) >> XKV_REF_BITS) &&
	       (fingerprint & cfg->bucket_mask) == s->bucket;
}

/* ---- bytes ---------------------------------------------------------------- */

static __always_inline __u8 shown_byte(const struct show *s, __u32 i)
{
	__u32 at = s->e->at + i;

	barrier_var(at);
	return s->e->byte[at & 2047];
}

static __always_inline __u8 hex_digit(__u8 n)
{
	return n < 10 ? '0' + n : 'a' + n - 10;
}

/* A byte as redis-cli quotes it. */
static int put_quoted(__u32 i, struct show *s)
{
	__u8 c = shown_byte(s, i);
	char text[4] = { '\\', 'x', hex_digit(c >> 4), hex_digit(c & 15) };

	if (c < ' ' || c > '~')
		return bpf_seq_write(s->seq, text, 4) != 0;
	text[1] = c;
	if (c == '"' || c == '\\')
		return bpf_seq_write(s->seq, text, 2) != 0;
	return bpf_seq_write(s->seq, text + 1, 1) != 0;
}

/* The letter after the backslash of a JSON escape, 0 if none is needed. */
static __always_inline __u8 json_escape(__u8 c)
{
	return c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : c == '"' || c == '\\' ? c : 0;
}

/*
 * The first byte of a UTF-8 sequence: the number of bytes to follow, and the range of the next (RFC
 * 3629).
 */
static __always_inline void utf8_begin(struct show *s, __u8 c)
{
	s->e->more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
	s->e->low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
	s->e->high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
	if (c < 0xc2 || c > 0xf4)
		s->e->binary = 1;
}

/* Checks a byte: valid UTF-8, to be escaped, or binary? */
static int look_at_byte(__u32 i, struct show *s)
{
	__u8 c = shown_byte(s, i);

	if (s->e->more) {
		if (c < s->e->low || c > s->e->high)
			s->e->binary = 1;
		s->e->more--;
		s->e->low = 0x80;
		s->e->high = 0xbf;
	} else if (c >= 0x80) {
		utf8_begin(s, c);
	} else if (json_escape(c)) {
		s->e->escapes++;
	} else if (c < ' ') {
		s->e->binary = 1;
	}
	return s->e->binary != 0;
}

/* Selects bytes of the copy.  Returns their length in JSON. */
static __always_inline __u32 json_bytes(struct show *s, __u32 at, __u32 len)
{
	s->e->at = at;
	s->e->len = len;
	s->e->escapes = s->e->binary = s->e->more = 0;
	bpf_loop(len, look_at_byte, s, 0);
	s->e->binary |= s->e->more;
	return s->e->binary ? 16 + (len + 2) / 3 * 4 : 2 + len + s->e->escapes;
}

static int put_escaped(__u32 i, struct show *s)
{
	__u8 c = shown_byte(s, i), letter = json_escape(c);
	char text[2] = { letter ? '\\' : c, letter };

	return bpf_seq_write(s->seq, text, letter ? 2 : 1) != 0;
}

static __always_inline __u8 base64_digit(__u32 n)
{
	n &= 63;
	return n < 26	 ? 'A' + n
	       : n < 52	 ? 'a' + n - 26
	       : n < 62	 ? '0' + n - 52
	       : n == 62 ? '+'
			 : '/';
}

/* Three bytes, or the last one or two. */
static int put_base64(__u32 i, struct show *s)
{
	__u32 left = s->e->len - i * 3, three;
	char text[4];

	three = shown_byte(s, i * 3) << 16;
	if (left > 1)
		three |= shown_byte(s, i * 3 + 1) << 8;
	if (left > 2)
		three |= shown_byte(s, i * 3 + 2);
	text[0] = base64_digit(three >> 18);
	text[1] = base64_digit(three >> 12);
	text[2] = left > 1 ? base64_digit(three >> 6) : '=';
	text[3] = left > 2 ? base64_digit(three) : '=';
	return bpf_seq_write(s->seq, text, 4) != 0;
}

/* Prints the selected bytes. */
static __always_inline void put_json(struct show *s)
{
	__u32 at = s->e->at, len = s->e->len;

	if (s->e->binary) {
		BPF_SEQ_PRINTF(s->seq, "{\"base64\":\"");
		bpf_loop((len + 2) / 3, put_base64, s, 0);
		BPF_SEQ_PRINTF(s->seq, "\"}");
		return;
	}
	BPF_SEQ_PRINTF(s->seq, "\"");
	barrier_var(at);
	barrier_var(len);
	if (s->e->escapes)
		bpf_loop(len, put_escaped, s, 0);
	else
		bpf_seq_write(s->seq, &s->e->byte[at & 511], len & 2047);
	BPF_SEQ_PRINTF(s->seq, "\"");
}

/* ---- lines ---------------------------------------------------------------- */

/* Reserves room for output. */
static __always_inline bool take_room(struct show *s, __u32 bytes)
{
	if (bytes > s->e->room)
		return false;
	s->e->room -= bytes;
	return true;
}

static __always_inline void show_text(struct show *s)
{
	struct shown *e = s->e;

	if (!take_room(s, SHOW_LINE + 4 * e->key_len)) {
		s->e->left_out++;
		return;
	}
	s->e->at = 0;
	if (s->db)
		BPF_SEQ_PRINTF(s->seq, "database %u ", s->db);
	BPF_SEQ_PRINTF(s->seq, "\"");
	bpf_loop(e->key_len, put_quoted, s, 0);
	if (e->expire_ms)
		BPF_SEQ_PRINTF(s->seq, "\" %u bytes, %llu ms left, version %llu\n", e->value_len,
			       e->expire_ms - s->now, e->seq);
	else
		BPF_SEQ_PRINTF(s->seq, "\" %u bytes, version %llu\n", e->value_len, e->seq);
}

static __always_inline void show_json(struct show *s)
{
	struct shown *e = s->e;
	__u32 len = e->value_len < SHOWN_VALUE ? e->value_len : SHOWN_VALUE,
	      at = XKV_PADDED(e->key_len);

	if (!take_room(s, SHOW_LINE + json_bytes(s, 0, e->key_len))) {
		s->e->left_out++;
		return;
	}
	BPF_SEQ_PRINTF(s->seq, "{");
	if (s->db)
		BPF_SEQ_PRINTF(s->seq, "\"database\":%u,", s->db);
	BPF_SEQ_PRINTF(s->seq, "\"key\":");
	put_json(s);
	if (!take_room(s, json_bytes(s, at, len))) {
		len = s->e->room > 64 ? (s->e->room - 64) / 2 : 0;
		take_room(s, json_bytes(s, at, len));
	}
	BPF_SEQ_PRINTF(s->seq, ",\"value\":");
	put_json(s);
	BPF_SEQ_PRINTF(s->seq, ",\"value_len\":%u", e->value_len);
	if (len < e->value_len)
		BPF_SEQ_PRINTF(s->seq, ",\"value_truncated\":true");
	if (e->expire_ms)
		BPF_SEQ_PRINTF(s->seq, ",\"ttl_ms\":%llu", e->expire_ms - s->now);
	else
		BPF_SEQ_PRINTF(s->seq, ",\"ttl_ms\":null");
	BPF_SEQ_PRINTF(s->seq, ",\"version\":\"%llu\"}\n", e->seq);
}

static int show_entry(__u32 i, struct show *s)
{
	struct xkv_config *cfg = config();
	struct shown *e = s->e;
	__u64 entry;

	barrier_var(i);
	entry = e->entry[i < CHAIN_ENTRIES ? i & 127 : CHAIN_ENTRIES];
	if (!cfg || !show_copy(e, entry & XKV_REF_MASK) || !is_of_bucket(s, cfg, entry) ||
	    (e->expire_ms && e->expire_ms <= s->now))
		return 0;
	s->db = number_of(cfg, e->db);
	if (s->json)
		show_json(s);
	else
		show_text(s);
	return 0;
}

static __always_inline void show_left_out(struct show *s)
{
	if (!s->e->left_out)
		return;
	if (s->json)
		BPF_SEQ_PRINTF(s->seq, "{\"left_out\":%u}\n", s->e->left_out);
	else
		BPF_SEQ_PRINTF(s->seq, "(%u more in this bucket)\n", s->e->left_out);
}

/* Prints a bucket.  1: all elements of xkv_shown are in use; the read is to be repeated. */
static __always_inline int show_bucket(struct seq_file *seq, __u32 *key, bool json)
{
	struct xkv_config *cfg = config();
	struct show s = { .seq = seq, .json = json };
	struct xkv_bucket *home;
	struct shown *e = NULL;

	if (!key || !cfg)
		return 0;
	s.bucket = *key;
	s.now = bpf_ktime_get_tai_ns() / 1000000 - cfg->tai_offset_ms;
	home = bpf_map_lookup_elem(&xkv_index, &s.bucket);
	for (__u32 i = 0; home && i < SHOW_READERS; i++) {
		__u32 number = i;

		e = bpf_map_lookup_elem(&xkv_shown, &number);
		if (e && !__sync_val_compare_and_swap(&e->taken, 0, 1))
			break;
		e = NULL;
	}
	if (!home || !e)
		return home != NULL;
	s.e = e;
	e->room = SHOW_ROOM;
	e->left_out = 0;
	for (int i = 0; i < TRIES; i++)
		if (take_chain(e, home))
			break;
	bpf_loop(e->count, show_entry, &s, 0);
	show_left_out(&s);
	smp_wmb();
	WRITE_ONCE(e->taken, 0);
	return 0;
}

SEC("iter/bpf_map_elem")
int xkv_entries(struct bpf_iter__bpf_map_elem *ctx)
{
	return show_bucket(ctx->meta->seq, ctx->key, false);
}

SEC("iter/bpf_map_elem")
int xkv_dump(struct bpf_iter__bpf_map_elem *ctx)
{
	return show_bucket(ctx->meta->seq, ctx->key, true);
}

#endif

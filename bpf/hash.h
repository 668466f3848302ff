/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The hash of keys under a secret: NH as in UMAC (Black, Halevi, Krawczyk, Krovetz, Rogaway: "UMAC:
 * fast and secure message authentication", CRYPTO '99; RFC 4418) over the words of the zero-padded
 * key, then a permutation that diffuses all bits of the sum.
 *
 * NH adds a secret to each half of a word and sums up the products of the halves.  Two keys chosen
 * without knowledge of the secret collide with a probability of at most 2^-31 (2^-32 if they have
 * the same number of words); keys that differ only in zero padding differ in length.  Equal hashes
 * never imply equal keys.
 *
 * In NH alone, if one half of a word and its secret add up to 0, all values of the other half
 * collide.  Adding a multiple of each word prevents that and leaves the probabilities as they are.
 *
 * The permutation is a keyed variant of MurmurHash3's finalizer.  Only parts of its result are
 * visible, as the order of SCAN.  SipHash, secure even if hashes are known, takes several times the
 * instructions in BPF, which has no rotate.  The hash is a set of steps, not a function over a
 * buffer, since the verifier must see every load.
 */
#ifndef XKV_HASH_H
#define XKV_HASH_H

#include <linux/types.h>

#define XKV_HASH_WORDS 32 /* of the longest key */

struct xkv_secret_word {
	__u32 low, high;
};

/* Drawn when the maps are made. */
struct xkv_secret {
	struct xkv_secret_word word[XKV_HASH_WORDS];
	__u64 mix[2];	  /* odd */
	__u64 session[2]; /* key of session proofs (bpf/dedup.bpf.h), which clients see */
};

/* The product of a word and its secret. */
static inline __attribute__((always_inline)) __u64 hash_word(__u64 word,
							     const struct xkv_secret_word *s)
{
	__u32 low = (__u32)word + s->low, high = (__u32)(word >> 32) + s->high;

	return (__u64)low * high;
}

#define XKV_HASH_DB_SHIFT 60 /* the bits from here on are the lowest ones of the database */

/*
 * The hash of a key of `len` bytes in database `db`, from the sums of its products and of its
 * words.  The terms added to the sum distinguish lengths and databases.  The uppermost bits, which
 * are part of the tag in the index, let a walk over one database skip most keys of others.
 */
static inline __attribute__((always_inline)) __u64 hash_end(__u64 products, __u64 words, __u32 len,
							    __u32 db, const struct xkv_secret *s)
{
	__u64 sum = products + words * s->mix[0] + (len | db << 8);

	sum = (sum ^ sum >> 32) * s->mix[0];
	sum = (sum ^ sum >> 32) * s->mix[1];
	sum ^= sum >> 32;
	return (sum & ((1ULL << XKV_HASH_DB_SHIFT) - 1)) | (__u64)db << XKV_HASH_DB_SHIFT;
}

#ifdef __bpf__
/*
 * The hash of a key of `len` bytes, padded with zeros, in database `db`.  In a packet, which ends
 * at `end`, it is false if the key reaches beyond that.  `in_packet` is a constant.
 */
static __always_inline bool hash_words(const __u64 *key, __u32 len, __u32 db, bool in_packet,
				       const void *end, const struct xkv_secret *s, __u64 *hash)
{
	const struct xkv_secret_word *secret = s->word;
	__u64 products = 0, words = 0;
	const __u64 *next;

	for (__u32 at = 0; at < XKV_HASH_WORDS * 8; at += 8) {
		if (at >= len)
			break;
		next = key + 1;
		/* else it compares with end + 1, which the verifier does not allow */
		barrier_var(next);
		if (in_packet && (const void *)next > end)
			return false;
		products += hash_word(*key, secret++);
		words += *key;
		key = next;
		barrier_var(secret);
	}
	*hash = hash_end(products, words, len, db, s);
	return true;
}
#else
/* The hash of a whole key, 1 to 8 * XKV_HASH_WORDS bytes, in database `db`. */
static inline __u64 hash_key(const void *key, __u32 len, __u32 db, const struct xkv_secret *s)
{
	__u64 products = 0, words = 0, word;
	__u32 at = 0;

	for (; at + 8 <= len; at += 8) { /* of constant length, the copy is a load */
		__builtin_memcpy(&word, (const char *)key + at, 8);
		products += hash_word(word, &s->word[at / 8]);
		words += word;
	}
	if (at < len) {
		word = 0;
		__builtin_memcpy(&word, (const char *)key + at, len - at);
		products += hash_word(word, &s->word[at / 8]);
		words += word;
	}
	return hash_end(products, words, len, db, s);
}
#endif

#endif

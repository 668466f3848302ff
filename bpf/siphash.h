/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SipHash-1-3 over whole words: Aumasson and Bernstein, "SipHash: a fast
 * short-input PRF", with one and three rounds as in Linux' hsiphash and Rust's
 * HashMap.  xkv feeds it the words of the zero-padded key and then the length
 * of the key in the top byte of a last word.  Steps, not a function over a buffer, since
 * the verifier wants to see every load.
 */
#ifndef XKV_SIPHASH_H
#define XKV_SIPHASH_H

#include <linux/types.h>

struct siphash {
	__u64 v0, v1, v2, v3;
};

#define SIPHASH_ROTL(x, bits) (((x) << (bits)) | ((x) >> (64 - (bits))))

static inline __attribute__((always_inline)) void siphash_round(struct siphash *s)
{
	s->v0 += s->v1;
	s->v2 += s->v3;
	s->v1 = SIPHASH_ROTL(s->v1, 13) ^ s->v0;
	s->v3 = SIPHASH_ROTL(s->v3, 16) ^ s->v2;
	s->v0 = SIPHASH_ROTL(s->v0, 32) + s->v3;
	s->v2 += s->v1;
	s->v3 = SIPHASH_ROTL(s->v3, 21) ^ s->v0;
	s->v1 = SIPHASH_ROTL(s->v1, 17) ^ s->v2;
	s->v2 = SIPHASH_ROTL(s->v2, 32);
}

static inline __attribute__((always_inline)) void siphash_init(struct siphash *s,
							       const __u64 secret[2])
{
	s->v0 = secret[0] ^ 0x736f6d6570736575ULL;
	s->v1 = secret[1] ^ 0x646f72616e646f6dULL;
	s->v2 = secret[0] ^ 0x6c7967656e657261ULL;
	s->v3 = secret[1] ^ 0x7465646279746573ULL;
}

static inline __attribute__((always_inline)) void siphash_word(struct siphash *s, __u64 word)
{
	s->v3 ^= word;
	siphash_round(s);
	s->v0 ^= word;
}

static inline __attribute__((always_inline)) __u64 siphash_end(struct siphash *s, __u32 len)
{
	siphash_word(s, (__u64)len << 56);
	s->v2 ^= 0xff;
	siphash_round(s);
	siphash_round(s);
	siphash_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

#endif

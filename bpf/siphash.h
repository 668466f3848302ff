/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SipHash-2-4 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012) of three words, for
 * hashes that clients see.  bpf/hash.h is several times as fast, but known hashes reveal its
 * secret.
 */
#ifndef XKV_SIPHASH_H
#define XKV_SIPHASH_H

#include <linux/types.h>

#define SIPHASH_WORDS 3

static inline __attribute__((always_inline)) __u64 siphash_rotate(__u64 word, int bits)
{
	return word << bits | word >> (64 - bits);
}

static inline __attribute__((always_inline)) void siphash_rounds(__u64 v[4], int rounds)
{
	for (int i = 0; i < rounds; i++) {
		v[0] += v[1];
		v[1] = siphash_rotate(v[1], 13) ^ v[0];
		v[0] = siphash_rotate(v[0], 32);
		v[2] += v[3];
		v[3] = siphash_rotate(v[3], 16) ^ v[2];
		v[0] += v[3];
		v[3] = siphash_rotate(v[3], 21) ^ v[0];
		v[2] += v[1];
		v[1] = siphash_rotate(v[1], 17) ^ v[2];
		v[2] = siphash_rotate(v[2], 32);
	}
}

/* The hash of three words, as bytes in little-endian order. */
static inline __attribute__((always_inline)) __u64 siphash(const __u64 word[SIPHASH_WORDS],
							   const __u64 key[2])
{
	__u64 v[4] = { key[0] ^ 0x736f6d6570736575ULL, key[1] ^ 0x646f72616e646f6dULL,
		       key[0] ^ 0x6c7967656e657261ULL, key[1] ^ 0x7465646279746573ULL };
	__u64 last = (__u64)(SIPHASH_WORDS * 8) << 56;

	for (int i = 0; i <= SIPHASH_WORDS; i++) {
		__u64 w = i < SIPHASH_WORDS ? word[i] : last;

		v[3] ^= w;
		siphash_rounds(v, 2);
		v[0] ^= w;
	}
	v[2] ^= 0xff;
	siphash_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif

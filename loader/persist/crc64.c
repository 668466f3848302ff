/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * CRC-64/REDIS: polynomial 0xad93d23594c935a9 (David T. Jones, "An Improved
 * 64-bit Cyclic Redundancy Check for Protein Sequences", University College
 * London), bits reflected, start 0, no final XOR; the CRC of "123456789" is
 * 0xe9c6d914c4b8d9ca (Redis, src/crc64.c).
 *
 * Eight bytes a step with eight tables ("slicing-by-8": Kounavis and Berry, "A
 * Systematic Approach to Building High Performance Software-based CRC
 * Generators", ISCC 2005), where the CPU has no carry-less multiplication.
 * Where it has one, 64 bytes a step are folded into the next 64 (Gopal et al.,
 * "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
 * Intel 2009): a tenth of the time.
 */
#include "crc64.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>

#define POLY_REFLECTED 0x95ac9329ac4bc9b5ULL /* 0xad93d23594c935a9, lowest bit first */

/* table[k][b]: what byte b adds to the CRC after k further bytes of zeros. */
static uint64_t table[8][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void fill_table(void)
{
	for (unsigned int b = 0; b < 256; b++) {
		uint64_t crc = b;

		for (int bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ POLY_REFLECTED : crc >> 1;
		table[0][b] = crc;
	}
	for (unsigned int k = 1; k < 8; k++) {
		for (unsigned int b = 0; b < 256; b++)
			table[k][b] = table[0][table[k - 1][b] & 0xff] ^ table[k - 1][b] >> 8;
	}
}

static uint64_t eight_bytes(uint64_t crc, const uint8_t *p)
{
	uint64_t word;

	memcpy(&word, p, sizeof(word));
	word = le64toh(word) ^ crc;
	return table[7][word & 0xff] ^ table[6][word >> 8 & 0xff] ^ table[5][word >> 16 & 0xff] ^
	       table[4][word >> 24 & 0xff] ^ table[3][word >> 32 & 0xff] ^
	       table[2][word >> 40 & 0xff] ^ table[1][word >> 48 & 0xff] ^ table[0][word >> 56];
}

uint64_t crc64_by_table(uint64_t crc, const void *data, size_t len)
{
	const uint8_t *p = data;

	pthread_once(&table_once, fill_table);
	for (; len >= 8; len -= 8, p += 8)
		crc = eight_bytes(crc, p);
	for (; len; len--, p++)
		crc = table[0][(crc ^ *p) & 0xff] ^ crc >> 8;
	return crc;
}

#if defined(__x86_64__)
#define STEP	   64  /* bytes that are folded together: four lanes of 16 */
#define WORTH_FROM 256 /* bytes: below, what is at both ends costs as much */

typedef long long lane __attribute__((vector_size(16)));

/*
 * x^n modulo the polynomial, for both halves of a lane that moves by 16 bytes and by 64.  A product
 * of reflected words is a bit short of its place, so n is one less.
 */
static const lane by_16 = { (long long)0xd9d7be7d505da32cULL, 0x381d0015c96f4444LL }; /* 191, 127 */
static const lane by_64 = { (long long)0xaf86efb16d9ab4fbULL,
			    (long long)0xf49784a634f014e4ULL }; /* 575, 511 */

__attribute__((target("pclmul"))) static lane fold(lane from, lane by, lane into)
{
	return __builtin_ia32_pclmulqdq128(from, by, 0x00) ^
	       __builtin_ia32_pclmulqdq128(from, by, 0x11) ^ into;
}

static lane lane_at(const uint8_t *p, unsigned int n)
{
	lane l;

	memcpy(&l, p + n * sizeof(l), sizeof(l));
	return l;
}

__attribute__((target("pclmul"))) static uint64_t by_instruction(uint64_t crc, const uint8_t *p,
								 size_t len)
{
	lane sum[4] = { lane_at(p, 0) ^ (lane){ (long long)crc, 0 }, lane_at(p, 1), lane_at(p, 2),
			lane_at(p, 3) };
	uint8_t last[sizeof(lane)];

	for (p += STEP, len -= STEP; len >= STEP; p += STEP, len -= STEP) {
		for (unsigned int i = 0; i < 4; i++)
			sum[i] = fold(sum[i], by_64, lane_at(p, i));
	}
	for (unsigned int i = 1; i < 4; i++)
		sum[0] = fold(sum[0], by_16, sum[i]);
	memcpy(last, &sum[0], sizeof(last));
	return crc64_by_table(crc64_by_table(0, last, sizeof(last)), p, len);
}

uint64_t crc64(uint64_t crc, const void *data, size_t len)
{
	return len >= WORTH_FROM && __builtin_cpu_supports("pclmul")
		       ? by_instruction(crc, data, len)
		       : crc64_by_table(crc, data, len);
}
#else
uint64_t crc64(uint64_t crc, const void *data, size_t len)
{
	return crc64_by_table(crc, data, len);
}
#endif

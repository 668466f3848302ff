/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * CRC-64/REDIS: polynomial 0xad93d23594c935a9 (David T. Jones, "An Improved
 * 64-bit Cyclic Redundancy Check for Protein Sequences", University College
 * London), bits reflected, start 0, no final XOR; the CRC of "123456789" is
 * 0xe9c6d914c4b8d9ca (Redis, src/crc64.c).
 *
 * Eight bytes a step with eight tables ("slicing-by-8": Kounavis and Berry, "A
 * Systematic Approach to Building High Performance Software-based CRC
 * Generators", ISCC 2005): a snapshot is read twice at start, and byte by byte
 * the checksum would cost more than everything else.
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

uint64_t crc64(uint64_t crc, const void *data, size_t len)
{
	const uint8_t *p = data;

	pthread_once(&table_once, fill_table);
	for (; len >= 8; len -= 8, p += 8)
		crc = eight_bytes(crc, p);
	for (; len; len--, p++)
		crc = table[0][(crc ^ *p) & 0xff] ^ crc >> 8;
	return crc;
}

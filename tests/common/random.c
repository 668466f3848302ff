// SPDX-License-Identifier: BSD-2-Clause
/* Numbers drawn by a seed: splitmix64. */
#include "random.h"

#include <stddef.h>

uint64_t random_state = 1;

uint64_t random_u64(void)
{
	uint64_t z = (random_state += 0x9e3779b97f4a7c15ULL);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
	return z ^ z >> 31;
}

uint64_t below(uint64_t n)
{
	return n ? random_u64() % n : 0;
}

const uint8_t *noise(uint32_t n)
{
	static uint8_t byte[XKV_VALUE_MAX + 4096];

	if (!byte[0])
		for (size_t i = 0; i < sizeof(byte); i++)
			byte[i] = (uint8_t)(random_u64() | !i);
	return byte + n % 4096;
}

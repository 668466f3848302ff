/* SPDX-License-Identifier: BSD-2-Clause */
/* Numbers drawn by a seed, so that a run can be repeated.  Not for several threads. */
#ifndef XKV_TEST_RANDOM_H
#define XKV_TEST_RANDOM_H

#include <stdint.h>

#include "bpf/proto.h"

extern uint64_t random_state; /* the seed, before the first number */

uint64_t random_u64(void);

/* One of 0 to n - 1; 0 if n is 0. */
uint64_t below(uint64_t n);

/* XKV_VALUE_MAX bytes that are never twice the same; they depend on the seed, too. */
const uint8_t *noise(uint32_t n);

#endif

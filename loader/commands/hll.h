/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * HyperLogLog in Redis' encoding: a value that estimates how many different elements were added.
 *
 *	"HYLL" | encoding, 0 dense or 1 sparse | 3 bytes 0 | cache, 8 bytes | registers
 *
 * The cache is the last estimate, a little-endian number; its highest bit says that it is no longer
 * valid.  There are 16384 registers of 6 bits: the position of the lowest bit that is set in any of
 * the hashes that belong to the register, 0 = none.
 *
 * Dense: all registers, 12288 bytes; the first is in the lowest bits of the first byte.
 * Sparse: runs of registers that are the same, at most SPARSE_MAX bytes with the header:
 *
 *	00nnnnnn           n + 1 registers are 0
 *	01nnnnnn nnnnnnnn  n + 1 registers are 0 (the high bits of n are first)
 *	1vvvvvnn           n + 1 registers are v + 1
 *
 * Functions about a `struct value` return -EINVAL if its registers are damaged, or the errors of
 * value_resize(); then the value is undefined.  None of them keeps anything between calls.
 */
#ifndef XKV_COMMANDS_HLL_H
#define XKV_COMMANDS_HLL_H

#include "database/database.h"

#define HLL_REGISTERS 16384

enum hll_encoding { HLL_DENSE, HLL_SPARSE };

/* Is this such a value, as far as its header and length say? */
bool hll_is_one(const void *bytes, size_t len);
enum hll_encoding hll_encoding(const void *bytes);

/* Makes an empty one; its cache is valid. */
int hll_init(struct value *v);
/* Makes it dense, if it is not. */
int hll_to_dense(struct value *v);
/* Adds an element.  1 if a register has changed, 0 if none has. */
int hll_add(struct value *v, const void *element, size_t len);
/* Raises a register to `count`.  1 if it was lower, 0 if not. */
int hll_raise(struct value *v, unsigned int index, unsigned int count);

/* Raises registers to those of a value.  0 or -EINVAL. */
int hll_merge(uint8_t registers[HLL_REGISTERS], const void *bytes, size_t len);
/* The number of elements that registers stand for. */
uint64_t hll_estimate(const uint8_t registers[HLL_REGISTERS]);

/* The cached estimate, false if it is not valid. */
bool hll_cached(const void *bytes, uint64_t *estimate);
void hll_set_cache(void *bytes, uint64_t estimate);
void hll_invalidate_cache(void *bytes);

/* A run of a sparse one. */
struct hll_run {
	size_t bytes;	    /* that it takes */
	unsigned int len;   /* registers */
	unsigned int value; /* of each */
	bool is_long;	    /* the form of two bytes */
};

/*
 * Reads the run at *at and moves *at behind it; start with 0.  False at the end, or where bytes are
 * missing.
 */
bool hll_next_run(const void *bytes, size_t len, size_t *at, struct hll_run *run);

#endif

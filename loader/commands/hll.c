/* SPDX-License-Identifier: BSD-2-Clause */
/* The encoding of HyperLogLog values. */
#include "hll.h"

#include <endian.h>
#include <math.h>
#include <string.h>

#define INDEX_BITS    14 /* of a hash: which register */
#define RANK_BITS     50 /* the others */
#define REGISTER_BITS 6
#define REGISTER_MAX  63U

#define SPARSE_MAX     3000 /* bytes; Redis' default of hll-sparse-max-bytes */
#define RUN_VALUE_MAX  32   /* in a run; above it is dense */
#define RUN_VALUES_MAX 4    /* registers of a run that are not 0 */
#define RUN_ZEROS_MAX  64   /* registers of a run of 0 in one byte */

#define HASH_SEED 0xadc83b19ULL

struct header {
	char magic[4];
	uint8_t encoding;
	uint8_t unused[3];
	uint8_t cache[8];
	uint8_t registers[];
};

#define DENSE_BYTES (HLL_REGISTERS * REGISTER_BITS / 8)
#define INVALID	    0x80 /* in the last byte of the cache */

static const char magic[4] = "HYLL";

bool hll_is_one(const void *bytes, size_t len)
{
	const struct header *h = bytes;

	if (len < sizeof(*h) || memcmp(h->magic, magic, sizeof(magic)) != 0)
		return false;
	return h->encoding == HLL_SPARSE ||
	       (h->encoding == HLL_DENSE && len == sizeof(*h) + DENSE_BYTES);
}

enum hll_encoding hll_encoding(const void *bytes)
{
	return ((const struct header *)bytes)->encoding;
}

/* --- the cache --- */

bool hll_cached(const void *bytes, uint64_t *estimate)
{
	const struct header *h = bytes;

	memcpy(estimate, h->cache, sizeof(*estimate));
	*estimate = le64toh(*estimate);
	return !(h->cache[7] & INVALID);
}

void hll_set_cache(void *bytes, uint64_t estimate)
{
	estimate = htole64(estimate);
	memcpy(((struct header *)bytes)->cache, &estimate, sizeof(estimate));
}

void hll_invalidate_cache(void *bytes)
{
	((struct header *)bytes)->cache[7] |= INVALID;
}

/* --- dense --- */

static unsigned int dense_get(const uint8_t *registers, unsigned int index)
{
	unsigned int at = index * REGISTER_BITS / 8, shift = index * REGISTER_BITS % 8;
	unsigned int bits = registers[at];

	if (shift > 8 - REGISTER_BITS)
		bits |= (unsigned int)registers[at + 1] << 8;
	return bits >> shift & REGISTER_MAX;
}

static void dense_put(uint8_t *registers, unsigned int index, unsigned int value)
{
	unsigned int at = index * REGISTER_BITS / 8, shift = index * REGISTER_BITS % 8;

	registers[at] = (uint8_t)((registers[at] & ~(REGISTER_MAX << shift)) | value << shift);
	if (shift <= 8 - REGISTER_BITS)
		return;
	shift = 8 - shift;
	registers[at + 1] =
		(uint8_t)((registers[at + 1] & ~(REGISTER_MAX >> shift)) | value >> shift);
}

/* Makes it dense first, if it is not. */
static int dense_raise(struct value *v, unsigned int index, unsigned int count)
{
	int ret = hll_to_dense(v);
	struct header *h = (struct header *)v->bytes;

	if (ret)
		return ret;
	if (dense_get(h->registers, index) >= count)
		return 0;
	dense_put(h->registers, index, count);
	return 1;
}

/* --- sparse --- */

/* Reads the run at `at`, a position in the whole value. */
static bool run_at(const uint8_t *bytes, size_t len, size_t at, struct hll_run *run)
{
	unsigned int byte;

	if (at >= len)
		return false;
	byte = bytes[at];
	*run = (struct hll_run){ .bytes = 1, .len = (byte & 0x3f) + 1 };
	if (byte & 0x80) {
		run->value = (byte >> 2 & 0x1f) + 1;
		run->len = (byte & 3) + 1;
	} else if (byte & 0x40) {
		if (at + 1 == len)
			return false;
		run->bytes = 2;
		run->is_long = true;
		run->len = ((byte & 0x3f) << 8 | bytes[at + 1]) + 1;
	}
	return true;
}

bool hll_next_run(const void *bytes, size_t len, size_t *at, struct hll_run *run)
{
	if (!*at)
		*at = sizeof(struct header);
	if (!run_at(bytes, len, *at, run))
		return false;
	*at += run->bytes;
	return true;
}

/* Writes a run, nothing for one of no registers; returns its bytes. */
static size_t run_put(uint8_t *to, unsigned int value, unsigned int len)
{
	if (!len)
		return 0;
	len--;
	if (value) {
		to[0] = (uint8_t)(0x80 | (value - 1) << 2 | len);
		return 1;
	}
	if (len < RUN_ZEROS_MAX) {
		to[0] = (uint8_t)len;
		return 1;
	}
	to[0] = (uint8_t)(0x40 | len >> 8);
	to[1] = (uint8_t)len;
	return 2;
}

/* Replaces `was` bytes at `at` by others. */
static int splice(struct value *v, size_t at, size_t was, const uint8_t *bytes, size_t len)
{
	size_t behind = v->len - at - was;
	int ret = len > was ? value_resize(v, v->len + len - was) : 0;

	if (ret)
		return ret;
	memmove(v->bytes + at + len, v->bytes + at + was, behind);
	memcpy(v->bytes + at, bytes, len);
	return value_resize(v, at + len + behind);
}

/*
 * Joins runs of the same value from `at` on.  It looks at five of them, no more: so the bytes are
 * the same as in Redis.
 */
static int join_runs(struct value *v, size_t at)
{
	struct hll_run run, next;
	uint8_t joined;
	int ret;

	for (int looks = 5; looks && run_at(v->bytes, v->len, at, &run); looks--) {
		if (run.value && run_at(v->bytes, v->len, at + 1, &next) &&
		    next.value == run.value && run.len + next.len <= RUN_VALUES_MAX) {
			run_put(&joined, run.value, run.len + next.len);
			ret = splice(v, at, 2, &joined, 1);
			if (ret)
				return ret;
		} else {
			at += run.bytes;
		}
	}
	return 0;
}

static int sparse_raise(struct value *v, unsigned int index, unsigned int count)
{
	size_t at = sizeof(struct header), before = at, len;
	unsigned int first = 0;
	struct hll_run run;
	uint8_t runs[5];
	int ret;

	for (;; first += run.len, before = at, at += run.bytes) {
		if (!run_at(v->bytes, v->len, at, &run))
			return -EINVAL;
		if (index < first + run.len)
			break;
	}
	if (run.value >= count)
		return 0;
	len = run_put(runs, run.value, index - first);
	len += run_put(runs + len, count, 1);
	len += run_put(runs + len, run.value, first + run.len - 1 - index);
	if (count > RUN_VALUE_MAX || (len > run.bytes && v->len + len - run.bytes > SPARSE_MAX))
		return dense_raise(v, index, count);
	ret = splice(v, at, run.bytes, runs, len);
	if (!ret)
		ret = join_runs(v, before);
	return ret ? ret : 1;
}

/* --- either --- */

int hll_init(struct value *v)
{
	struct header h = { .encoding = HLL_SPARSE };
	int ret = value_resize(v, sizeof(h) + 2);

	if (ret)
		return ret;
	memcpy(h.magic, magic, sizeof(magic));
	memcpy(v->bytes, &h, sizeof(h));
	run_put(v->bytes + sizeof(h), 0, HLL_REGISTERS);
	return 0;
}

int hll_to_dense(struct value *v)
{
	uint8_t registers[HLL_REGISTERS] = { 0 };
	struct header *h;
	int ret;

	if (hll_encoding(v->bytes) == HLL_DENSE)
		return 0;
	ret = hll_merge(registers, v->bytes, v->len);
	if (!ret)
		ret = value_resize(v, sizeof(*h) + DENSE_BYTES);
	if (ret)
		return ret;
	h = (struct header *)v->bytes;
	h->encoding = HLL_DENSE;
	for (unsigned int i = 0; i < HLL_REGISTERS; i++)
		dense_put(h->registers, i, registers[i]);
	return 0;
}

int hll_raise(struct value *v, unsigned int index, unsigned int count)
{
	/* one that came from elsewhere may be so long that PFADD would walk over it for seconds */
	bool walk = hll_encoding(v->bytes) == HLL_SPARSE && v->len <= SPARSE_MAX;

	return walk ? sparse_raise(v, index, count) : dense_raise(v, index, count);
}

/* MurmurHash64A, by Austin Appleby, as it is on machines with little-endian words. */
static uint64_t hash_of(const uint8_t *bytes, size_t len)
{
	const uint64_t m = 0xc6a4a7935bd1e995ULL;
	uint64_t hash = HASH_SEED ^ len * m, word;

	for (; len >= 8; bytes += 8, len -= 8) {
		memcpy(&word, bytes, 8);
		word = le64toh(word) * m;
		word = (word ^ word >> 47) * m;
		hash = (hash ^ word) * m;
	}
	if (len) {
		word = 0;
		memcpy(&word, bytes, len);
		hash = (hash ^ le64toh(word)) * m;
	}
	hash = (hash ^ hash >> 47) * m;
	return hash ^ hash >> 47;
}

int hll_add(struct value *v, const void *element, size_t len)
{
	uint64_t hash = hash_of(element, len);
	uint64_t rank = hash >> INDEX_BITS | 1ULL << RANK_BITS; /* so that some bit is set */

	return hll_raise(v, hash % HLL_REGISTERS, (unsigned int)__builtin_ctzll(rank) + 1);
}

static int merge_sparse(uint8_t *registers, const void *bytes, size_t len)
{
	unsigned int first = 0;
	struct hll_run run;
	size_t at = 0;

	while (hll_next_run(bytes, len, &at, &run)) {
		if (run.len > HLL_REGISTERS - first)
			return -EINVAL;
		for (unsigned int i = first; i < first + run.len; i++)
			if (run.value > registers[i])
				registers[i] = (uint8_t)run.value;
		first += run.len;
	}
	/* nor may half a run be left */
	return first == HLL_REGISTERS && at == len ? 0 : -EINVAL;
}

int hll_merge(uint8_t registers[HLL_REGISTERS], const void *bytes, size_t len)
{
	const struct header *h = bytes;

	if (h->encoding == HLL_SPARSE)
		return merge_sparse(registers, bytes, len);
	for (unsigned int i = 0; i < HLL_REGISTERS; i++) {
		unsigned int value = dense_get(h->registers, i);

		if (value > registers[i])
			registers[i] = (uint8_t)value;
	}
	return 0;
}

/* --- the estimate --- */

/*
 * Otmar Ertl, New cardinality estimation algorithms for HyperLogLog sketches, arXiv:1702.01284,
 * algorithm 6, with his functions sigma and tau.
 */

static double sigma(double x)
{
	double y = 1, z = x, before;

	if (x == 1.)
		return INFINITY;
	do {
		x *= x;
		before = z;
		z += x * y;
		y += y;
	} while (before != z);
	return z;
}

static double tau(double x)
{
	double y = 1, z = 1 - x, before;

	if (x == 0. || x == 1.)
		return 0;
	do {
		x = sqrt(x);
		before = z;
		y *= 0.5;
		z -= (1 - x) * (1 - x) * y;
	} while (before != z);
	return z / 3;
}

uint64_t hll_estimate(const uint8_t registers[HLL_REGISTERS])
{
	const double m = HLL_REGISTERS, alpha = 0.721347520444481703680; /* 1 / (2 ln 2) */
	unsigned int count[REGISTER_MAX + 1] = { 0 };
	double z;

	for (unsigned int i = 0; i < HLL_REGISTERS; i++)
		count[registers[i]]++;
	z = m * tau((m - count[RANK_BITS + 1]) / m);
	for (unsigned int k = RANK_BITS; k >= 1; k--)
		z = (z + count[k]) * 0.5;
	z += m * sigma(count[0] / m);
	return (uint64_t)llround(alpha * m * m / z);
}

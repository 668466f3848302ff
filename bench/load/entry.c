// SPDX-License-Identifier: BSD-2-Clause
/* See entry.h. */
#include "entry.h"

#include <string.h>

#include "bench/common/dist.h"

#define KEY_PREFIX    4 /* "key:" */
#define KEY_HEAD      (KEY_PREFIX + ENTRY_DIGITS_MAX)
#define VALUE_CHECKED 32		    /* smallest value that carries key, nonce and sum */
#define VALUE_SALT    0x9e3779b97f4a7c15ULL /* makes the value size independent of the key size */

/* The number in a key: counted from --first-key. */
static uint64_t number_of(const struct options *o, uint32_t key)
{
	return o->first_key + key;
}

unsigned int entry_key_size(const struct options *o, uint32_t key)
{
	return sizes_of(&o->key_size, number_of(o, key));
}

unsigned int entry_value_size(const struct options *o, uint32_t key)
{
	unsigned int size = sizes_of(&o->value_size, number_of(o, key) ^ VALUE_SALT);
	unsigned int used = sizeof(struct xkv_hdr) + (o->token_set ? XKV_TOKEN_BYTES : 0) +
			    sizeof(struct xkv_op) + XKV_PADDED(entry_key_size(o, key));
	unsigned int room = ((o->ipv6 ? XKV_PAYLOAD_MAX6 : XKV_PAYLOAD_MAX4) - used) & ~7U;

	/* over TCP, too, so that UDP can read what TCP has loaded; sizes asked for stay */
	if (o->protocol != PROTOCOL_XKV && !sizes_have_tail(&o->value_size))
		return size;
	return size < room ? size : room;
}

uint64_t entry_names(unsigned int key_size)
{
	unsigned int digits = key_size < KEY_HEAD ? key_size - KEY_PREFIX : ENTRY_DIGITS_MAX;
	uint64_t names = 1;

	while (digits--)
		names *= 10;
	return names;
}

/* The first KEY_HEAD bytes of a key of `size` bytes, or all.  Returns how many it wrote. */
static unsigned int write_key_head(const struct options *o, uint8_t *to, unsigned int size,
				   uint32_t key)
{
	unsigned int head = size < KEY_HEAD ? size : KEY_HEAD;
	uint64_t number = number_of(o, key);

	memcpy(to, "key:", KEY_PREFIX);
	for (unsigned int i = head - 1; i >= KEY_PREFIX; i--, number /= 10)
		to[i] = '0' + number % 10;
	return head;
}

unsigned int entry_write_key(const struct options *o, uint8_t *to, uint32_t key)
{
	unsigned int size = entry_key_size(o, key), head = write_key_head(o, to, size, key);

	memset(to + head, '-', size - head);
	return size;
}

bool entry_key_is(const struct options *o, uint32_t key, const uint8_t *bytes, uint32_t len)
{
	uint8_t want[XKV_KEY_MAX];

	return len == entry_write_key(o, want, key) && !memcmp(bytes, want, len);
}

/* Words from `seed` on, those behind the first `skip` bytes; the last one cut as needed. */
static void write_words(uint8_t *to, size_t len, size_t skip, uint64_t seed)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = seed ^ ((skip + i) * 0x9e3779b97f4a7c15ULL);

		memcpy(to + i, &word, len - i < 8 ? len - i : 8);
	}
}

/* Does it have what write_words() writes? */
static bool words_are(const uint8_t *at, size_t len, uint64_t seed)
{
	uint8_t want[1024];

	for (size_t i = 0; i < len; i += sizeof(want)) {
		size_t n = len - i < sizeof(want) ? len - i : sizeof(want);

		write_words(want, n, i, seed);
		if (memcmp(at + i, want, n))
			return false;
	}
	return true;
}

/* A value from VALUE_CHECKED bytes on: its key's head, a nonce, words made of that, and a sum. */
static void write_head(const struct options *o, uint8_t to[KEY_HEAD], uint32_t key)
{
	memset(to, 0, KEY_HEAD);
	write_key_head(o, to, entry_key_size(o, key), key);
}

static uint64_t value_sum(const struct options *o, uint32_t key, uint64_t nonce)
{
	return mix64(number_of(o, key) ^ mix64(nonce));
}

unsigned int entry_write_value(const struct options *o, uint8_t *to, uint32_t key, uint64_t nonce)
{
	unsigned int size = entry_value_size(o, key);
	uint64_t sum = value_sum(o, key, nonce);

	if (size < VALUE_CHECKED) {
		write_words(to, size, 0, mix64(number_of(o, key)));
		return size;
	}
	write_head(o, to, key);
	memcpy(to + KEY_HEAD, &nonce, 8);
	write_words(to + KEY_HEAD + 8, size - VALUE_CHECKED, 0, nonce);
	memcpy(to + size - 8, &sum, 8);
	return size;
}

bool entry_value_ok(const struct options *o, uint32_t key, const uint8_t *value, uint32_t len)
{
	uint8_t head[KEY_HEAD];
	uint64_t nonce, sum;

	if (len != entry_value_size(o, key))
		return false;
	if (len < VALUE_CHECKED)
		return words_are(value, len, mix64(number_of(o, key)));
	write_head(o, head, key);
	memcpy(&nonce, value + KEY_HEAD, 8);
	sum = value_sum(o, key, nonce);
	return !memcmp(value, head, KEY_HEAD) && !memcmp(value + len - 8, &sum, 8) &&
	       words_are(value + KEY_HEAD + 8, len - VALUE_CHECKED, nonce);
}

// SPDX-License-Identifier: BSD-2-Clause
/* See wire.h. */
#include "wire.h"

#include <arpa/inet.h>
#include <endian.h>
#include <stdio.h>
#include <string.h>

#define KEY_HEAD      16
#define VALUE_CHECKED 32 /* smallest value that carries key, nonce and sum */
#define VALUE_SALT    0x9e3779b97f4a7c15ULL /* a key's value is not large because the key is */

unsigned int wire_key_size(const struct options *o, uint32_t key)
{
	return sizes_of(&o->key_size[0], key);
}

unsigned int wire_value_size(const struct options *o, uint32_t key)
{
	unsigned int size = sizes_of(&o->value_size, key ^ VALUE_SALT);
	unsigned int used = sizeof(struct xkv_hdr) + (o->token_set ? XKV_TOKEN_BYTES : 0) +
			    sizeof(struct xkv_op) + XKV_PADDED(wire_key_size(o, key));
	unsigned int room = (XKV_PAYLOAD_MAX4 - used) & ~7U;

	return size < room ? size : room;
}

/* The first KEY_HEAD bytes of a key of `size` bytes, or all.  Returns how many it wrote. */
static unsigned int write_key_head(uint8_t *to, unsigned int size, uint32_t key)
{
	unsigned int head = size < KEY_HEAD ? size : KEY_HEAD;

	memcpy(to, "key:", 4);
	for (unsigned int i = head - 1; i >= 4; i--, key /= 10)
		to[i] = '0' + key % 10;
	return head;
}

static void write_key(uint8_t *to, unsigned int size, uint32_t key)
{
	unsigned int head = write_key_head(to, size, key);

	memset(to + head, '-', size - head);
}

/* Words from `seed` on, the last one cut as needed. */
static void write_words(uint8_t *to, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = seed ^ (i * 0x9e3779b97f4a7c15ULL);

		memcpy(to + i, &word, len - i < 8 ? len - i : 8);
	}
}

static void write_value(const struct options *o, uint8_t *to, unsigned int size, uint32_t key,
			uint64_t nonce)
{
	uint64_t sum = mix64(key ^ mix64(nonce));

	if (size < VALUE_CHECKED) {
		write_words(to, size, mix64(key));
		return;
	}
	memset(to, 0, KEY_HEAD);
	write_key_head(to, wire_key_size(o, key), key);
	memcpy(to + KEY_HEAD, &nonce, 8);
	write_words(to + KEY_HEAD + 8, size - VALUE_CHECKED, nonce);
	memcpy(to + size - 8, &sum, 8);
}

bool wire_value_ok(const struct options *o, uint32_t key, const uint8_t *value, uint32_t len)
{
	uint8_t want[WIRE_MAX];
	uint64_t nonce = 0;

	if (len != wire_value_size(o, key))
		return false;
	if (len >= VALUE_CHECKED)
		memcpy(&nonce, value + KEY_HEAD, 8);
	write_value(o, want, len, key, nonce);
	return !memcmp(value, want, len);
}

size_t wire_resp_set(const struct options *o, uint8_t *buf, uint32_t key)
{
	unsigned int key_size = wire_key_size(o, key), value_size = wire_value_size(o, key);
	size_t len = sprintf((char *)buf, "*3\r\n$3\r\nSET\r\n$%u\r\n", key_size);

	write_key(buf + len, key_size, key);
	len += key_size;
	len += sprintf((char *)buf + len, "\r\n$%u\r\n", value_size);
	write_value(o, buf + len, value_size, key, mix64(key));
	memcpy(buf + len + value_size, "\r\n", 2);
	return len + value_size + 2;
}

static uint8_t *write_header(const struct options *o, uint8_t *buf, uint64_t id, unsigned int count)
{
	struct xkv_hdr hdr = { .magic = htons(XKV_MAGIC),
			       .version = XKV_VERSION,
			       .flags = o->token_set ? XKV_F_TOKEN : 0,
			       .count = count,
			       .id = htobe64(id) };

	memcpy(buf, &hdr, sizeof(hdr));
	buf += sizeof(hdr);
	if (!o->token_set)
		return buf;
	memcpy(buf, o->token, sizeof(o->token));
	return buf + sizeof(o->token);
}

/* Fills in the header's length; returns the bytes to send. */
static size_t finish(uint8_t *buf, uint8_t *end, unsigned int pad)
{
	__be16 length = htons(end - buf);

	memcpy(buf + offsetof(struct xkv_hdr, length), &length, sizeof(length));
	if (end - buf >= pad)
		return end - buf;
	memset(end, 0, buf + pad - end);
	return pad;
}

static uint8_t *write_op(const struct options *o, uint8_t *to, const struct wire_op *op,
			 uint64_t nonce)
{
	unsigned int key = wire_key_size(o, op->key);
	unsigned int value = op->set ? wire_value_size(o, op->key) : 0;
	struct xkv_op head = { .opcode = op->set ? XKV_OP_SET : XKV_OP_GET,
			       .key_len = key,
			       .value_len = htonl(value) };

	memcpy(to, &head, sizeof(head));
	to += sizeof(head);
	memset(to + XKV_PADDED(key) - 8, 0, 8);
	write_key(to, key, op->key);
	to += XKV_PADDED(key);
	if (!value)
		return to;
	memset(to + XKV_PADDED(value) - 8, 0, 8);
	write_value(o, to, value, op->key, nonce);
	return to + XKV_PADDED(value);
}

size_t wire_request(const struct options *o, uint8_t *buf, uint64_t id, const struct wire_op *op,
		    unsigned int n, uint64_t nonce, unsigned int pad)
{
	uint8_t *to = write_header(o, buf, id, n);

	for (unsigned int i = 0; i < n; i++)
		to = write_op(o, to, &op[i], nonce + i);
	return finish(buf, to, pad);
}

size_t wire_ping(const struct options *o, uint8_t *buf, uint64_t id)
{
	struct xkv_op op = { .opcode = XKV_OP_PING };
	uint8_t *to = write_header(o, buf, id, 1);

	memcpy(to, &op, sizeof(op));
	return finish(buf, to + sizeof(op), 0);
}

bool wire_reply_open(struct wire_reply *r, const uint8_t *buf, size_t len)
{
	struct xkv_hdr hdr;
	size_t used;

	if (len < sizeof(hdr))
		return false;
	memcpy(&hdr, buf, sizeof(hdr));
	used = ntohs(hdr.length);
	if (hdr.magic != htons(XKV_MAGIC) || hdr.version != XKV_VERSION ||
	    hdr.flags != XKV_F_REPLY || used < sizeof(hdr) || used > len)
		return false;
	*r = (struct wire_reply){ .at = buf + sizeof(hdr),
				  .end = buf + used,
				  .id = be64toh(hdr.id),
				  .count = hdr.count,
				  .status = hdr.status };
	return true;
}

/* With these two, value_len tells something else than the bytes that follow. */
static bool has_value(const struct xkv_result *head)
{
	return head->status != XKV_PAD && head->status != XKV_TOO_LARGE;
}

bool wire_reply_next(struct wire_reply *r, struct wire_result *out)
{
	struct xkv_result head;
	size_t left = r->end - r->at;

	if (left < sizeof(head))
		return false;
	memcpy(&head, r->at, sizeof(head));
	out->opcode = head.opcode;
	out->status = head.status;
	out->number = ntohl(head.value_len);
	out->value = r->at + sizeof(head);
	out->value_len = has_value(&head) ? out->number : 0;
	left -= sizeof(head);
	if (out->value_len > left || XKV_PADDED(out->value_len) > left)
		return false;
	r->at = out->value + XKV_PADDED(out->value_len);
	r->count--;
	return true;
}

// SPDX-License-Identifier: BSD-2-Clause
/* See wire.h. */
#include "wire.h"

#include <arpa/inet.h>
#include <endian.h>
#include <string.h>

#define KEY_HEAD      16
#define VALUE_CHECKED 32 /* smallest value that carries key, nonce and sum */

/* Returns the bytes that it wrote. */
static unsigned int write_key_head(const struct options *o, uint8_t *to, uint32_t key)
{
	unsigned int head = o->key_size < KEY_HEAD ? o->key_size : KEY_HEAD;

	memcpy(to, "key:", 4);
	for (unsigned int i = head - 1; i >= 4; i--, key /= 10)
		to[i] = '0' + key % 10;
	return head;
}

static void write_key(const struct options *o, uint8_t *to, uint32_t key)
{
	unsigned int head = write_key_head(o, to, key);

	memset(to + head, '-', o->key_size - head);
}

/* Words from `seed` on, the last one cut as needed. */
static void write_words(uint8_t *to, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = seed ^ (i * 0x9e3779b97f4a7c15ULL);

		memcpy(to + i, &word, len - i < 8 ? len - i : 8);
	}
}

static void write_value(const struct options *o, uint8_t *to, uint32_t key, uint64_t nonce)
{
	uint64_t sum = mix64(key ^ mix64(nonce));

	if (o->value_size < VALUE_CHECKED) {
		write_words(to, o->value_size, mix64(key));
		return;
	}
	memset(to, 0, KEY_HEAD);
	write_key_head(o, to, key);
	memcpy(to + KEY_HEAD, &nonce, 8);
	write_words(to + KEY_HEAD + 8, o->value_size - VALUE_CHECKED, nonce);
	memcpy(to + o->value_size - 8, &sum, 8);
}

bool wire_value_ok(const struct options *o, uint32_t key, const uint8_t *value, uint32_t len)
{
	uint8_t want[WIRE_MAX];
	uint64_t nonce = 0;

	if (len != o->value_size)
		return false;
	if (len >= VALUE_CHECKED)
		memcpy(&nonce, value + KEY_HEAD, 8);
	write_value(o, want, key, nonce);
	return !memcmp(value, want, len);
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
	unsigned int key = XKV_PADDED(o->key_size), value = XKV_PADDED(o->value_size);
	struct xkv_op head = { .opcode = op->set ? XKV_OP_SET : XKV_OP_GET,
			       .key_len = o->key_size,
			       .value_len = op->set ? htonl(o->value_size) : 0 };

	memcpy(to, &head, sizeof(head));
	to += sizeof(head);
	memset(to + key - 8, 0, 8);
	write_key(o, to, op->key);
	to += key;
	if (!op->set || !value)
		return to;
	memset(to + value - 8, 0, 8);
	write_value(o, to, op->key, nonce);
	return to + value;
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

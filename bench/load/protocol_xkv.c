// SPDX-License-Identifier: BSD-2-Clause
/*
 * xkv over UDP (docs/protocol.md): a datagram may have several operations, a reply may be partial.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "bench/common/message.h"
#include "entry.h"
#include "protocol.h"
#include "protocol_xkv.h"

static const uint8_t opcode[OPS] = {
	[OP_GET] = XKV_OP_GET,
	[OP_SET] = XKV_OP_SET,
	[OP_DELETE] = XKV_OP_DELETE,
	[OP_SCAN] = XKV_OP_SCAN,
};

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

/* Zeros up to the next multiple of 8. */
static uint8_t *pad_word(uint8_t *to, unsigned int len)
{
	memset(to + len, 0, XKV_PADDED(len) - len);
	return to + XKV_PADDED(len);
}

static uint8_t *write_op(const struct options *o, uint8_t *to, const struct request *r,
			 unsigned int i, uint64_t nonce)
{
	uint32_t key = request_key(r, i);
	unsigned int value = r->op == OP_SET ? entry_value_size(o, key) : 0;
	struct xkv_op head = { .opcode = opcode[r->op],
			       .key_len = entry_key_size(o, key),
			       .keys = r->op == OP_SCAN ? r->asked : 0,
			       .value_len = htonl(value) };

	memcpy(to, &head, sizeof(head));
	to += sizeof(head);
	to = pad_word(to, entry_write_key(o, to, key));
	return value ? pad_word(to, entry_write_value(o, to, key, nonce)) : to;
}

static size_t encode(const struct options *o, uint8_t *buf, struct request *r, uint64_t nonce)
{
	unsigned int ops = r->op == OP_SCAN ? 1 : r->keys, pad = 0;
	uint8_t *to = write_header(o, buf, r->id, ops);

	r->asked = r->keys < XKV_SCAN_MAX ? r->keys : XKV_SCAN_MAX;
	for (unsigned int i = 0; i < ops; i++)
		to = write_op(o, to, r, i, nonce + i);
	if (r->op == OP_GET)
		pad = r->client->pad;
	else if (r->op == OP_SCAN)
		pad = r->client->scan_pad;
	r->sent = finish(buf, to, pad > o->pad ? pad : o->pad);
	return r->sent;
}

bool xkv_reply_open(struct xkv_reply *r, const uint8_t *buf, size_t len)
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
	*r = (struct xkv_reply){ .at = buf + sizeof(hdr),
				 .end = buf + used,
				 .id = be64toh(hdr.id),
				 .count = hdr.count,
				 .status = hdr.status };
	return true;
}

/* With these two statuses value_len is not the number of bytes that follow. */
static bool has_value(const struct xkv_result *head)
{
	return head->status != XKV_PAD && head->status != XKV_TOO_LARGE;
}

bool xkv_reply_next(struct xkv_reply *r, struct xkv_answer *out)
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

static bool id(const uint8_t *buf, size_t len, uint64_t *out)
{
	struct xkv_reply r;

	if (!xkv_reply_open(&r, buf, len))
		return false;
	*out = r.id;
	return true;
}

/* What a status other than OK and PAD counts as. */
static enum stat_id stat_of(const struct request *r, unsigned int status)
{
	switch (status) {
	case XKV_MISS:
		return r->op == OP_SET	    ? STAT_REFUSED
		       : r->op == OP_DELETE ? STAT_DELETES
					    : STAT_MISSES;
	case XKV_BUSY:
		return STAT_BUSY;
	case XKV_NO_MEMORY:
		return STAT_NO_MEMORY;
	case XKV_TOO_LARGE:
		return STAT_TOO_LARGE;
	default:
		return STAT_REFUSED;
	}
}

/* Is the request padded?  Other operations have replies of a fixed length. */
static bool may_pad(const struct request *r)
{
	return r->op == OP_GET || r->op == OP_SCAN;
}

/* Raises the padding of the client; a reply to another request may already have done so. */
static bool take_pad(struct stats *s, struct request *r, uint32_t want)
{
	unsigned int *pad = r->op == OP_SCAN ? &r->client->scan_pad : &r->client->pad;

	if (want <= r->sent || want > XKV_PAYLOAD_MAX4)
		return false;
	if (want > *pad)
		*pad = want;
	stat_add(s, STAT_PADDED, 1);
	return true;
}

/* Counts the result of a key.  True if the key has to be asked for again. */
static bool take_result(const struct options *o, struct stats *s, struct request *r, uint32_t key,
			const struct xkv_answer *a)
{
	enum stat_id which;

	if (a->status == XKV_PAD && take_pad(s, r, a->number))
		return true;
	if (a->status == XKV_OK && (r->op == OP_GET || r->op == OP_SCAN)) {
		protocol_value(o, s, key, a->value, a->value_len);
		stat_add(s, STAT_OPS, r->op == OP_GET);
		return false;
	}
	which = a->status != XKV_OK ? stat_of(r, a->status)
		: r->op == OP_SET   ? STAT_SETS
				    : STAT_DELETES;
	stat_add(s, which, 1);
	stat_add(s, STAT_OPS,
		 r->op != OP_SCAN &&
			 (which == STAT_SETS || which == STAT_DELETES || which == STAT_MISSES));
	return r->must && which == STAT_BUSY;
}

/* a partial reply although the datagram has room: pad the next request more */
static void learn_scan_pad(struct request *r, unsigned int results, size_t len)
{
	if (r->op == OP_SCAN && results < r->asked && len < XKV_PAYLOAD_MAX6 / 2)
		r->client->scan_pad = XKV_PAYLOAD_MAX6;
}

static enum outcome take(const struct options *o, struct stats *s, struct request *r,
			 const uint8_t *buf, size_t len)
{
	unsigned int n, settled = 0;
	struct xkv_reply reply;
	struct xkv_answer a;

	if (!xkv_reply_open(&reply, buf, len))
		return protocol_broken(s);
	if (reply.status) {
		stat_add(s, STAT_REFUSED, r->keys);
		request_answered(r, r->keys);
		return REFUSED;
	}
	n = reply.count;
	if (!n || n > r->asked)
		return protocol_broken(s);
	learn_scan_pad(r, n, len);
	for (unsigned int i = 0; i < n; i++) {
		if (!xkv_reply_next(&reply, &a) || a.opcode != opcode[r->op] ||
		    (a.status == XKV_PAD && !may_pad(r)))
			return protocol_broken(s);
		if (!take_result(o, s, r, request_key(r, i), &a))
			request_settle(r, i, settled++);
	}
	if (r->op == OP_SCAN && settled < n - (a.status == XKV_PAD))
		return protocol_broken(s); /* only the last key may be without a result */
	stat_add(s, STAT_PARTIAL, n < r->asked);
	request_answered(r, settled);
	return r->keys ? AGAIN : DONE;
}

static size_t ping(const struct options *o, uint8_t *buf, uint64_t id_)
{
	struct xkv_op op = { .opcode = XKV_OP_PING };
	uint8_t *to = write_header(o, buf, id_, 1);

	memcpy(to, &op, sizeof(op));
	return finish(buf, to + sizeof(op), 0);
}

static int pong(const uint8_t *buf, size_t len, uint64_t id_)
{
	struct xkv_reply r;

	if (!xkv_reply_open(&r, buf, len) || r.id != id_)
		return 0;
	if (r.status != XKV_NOAUTH)
		return 1;
	message("the server wants a token: give its udp-token with --token");
	return -EACCES;
}

const struct protocol protocol_xkv = {
	.name = "xkv",
	.encode = encode,
	.id = id,
	.take = take,
	.ping = ping,
	.pong = pong,
};

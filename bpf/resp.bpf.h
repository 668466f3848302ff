/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * RESP in the driver: a command becomes an operation of the engine, its result a reply.
 *
 * The text of the command is in `out` of the request, from its beginning, followed by zeros; the
 * operation is made of it in `in`, and when it is executed its result takes the place of the text.
 */
#ifndef XKV_RESP_BPF_H
#define XKV_RESP_BPF_H

#include "request.bpf.h"
#include "tcp.h"

#define RESP_ARGS_MAX	 3
#define RESP_DIGITS	 4			/* of a length; no segment has more bytes */
#define RESP_OP		 sizeof(struct xkv_hdr) /* where the operation is in `in` */
#define RESP_RESULT	 sizeof(struct xkv_hdr) /* where its result is in `out` */
#define RESP_VALUE	 (RESP_RESULT + sizeof(struct xkv_result))
#define RESP_BULK_FRAME	 9 /* $1439\r\n, \r\n */
#define RESP_REPLY_ROOM	 (RESP_VALUE + XKV_PADDED(XKV_TCP_REPLY_MAX - RESP_BULK_FRAME))
#define RESP_SMALL_REPLY 24 /* no reply but that of GET is longer */

struct resp_args {
	__u32 count;
	struct {
		__u16 at, len;
	} arg[RESP_ARGS_MAX];
};

#define TEXT(rq, i) ((rq)->out[(i) & (XKV_REQUEST_WORDS * 8 - 1)])

static __always_inline struct resp_args *args_of(struct xkv_request *rq)
{
	return (struct resp_args *)&rq->in[SCRATCH];
}

/* Eight bytes of the text, the first one lowest. */
static __always_inline __u64 text_word(struct xkv_request *rq, __u32 at)
{
	__u64 *word;

	barrier_var(at);
	word = (__u64 *)&TEXT(rq, at);
	barrier_var(word); /* else it is loaded byte by byte */
	return LE64(*word);
}

/* The lowest `len` bytes of a word. */
static __always_inline __u64 low_bytes(__u64 word, __u32 len)
{
	return len < 8 ? word & ((1ULL << (len * 8)) - 1) : word;
}

/* ---- the command ------------------------------------------------------------ */

/*
 * A line of `type` and a length: the length << 16 | where the next line begins.  -1: something else
 * is there.
 */
__noinline int resp_length(struct xkv_request *rq, __u32 at, __u32 type)
{
	__u32 n = 0, digits = 0;
	__u8 c;

	if (!rq || TEXT(rq, at) != type)
		return -1;
	for (; digits < RESP_DIGITS; digits++) {
		c = TEXT(rq, at + 1 + digits);
		if (!is_digit(c))
			break;
		n = n * 10 + c - '0';
	}
	if (!digits || (digits > 1 && TEXT(rq, at + 1) == '0'))
		return -1;
	at += 1 + digits;
	if (TEXT(rq, at) != '\r' || TEXT(rq, at + 1) != '\n')
		return -1;
	return n << 16 | ((at + 2) & 0xffff);
}

/* Splits a text of `len` bytes.  0 if it is exactly one command of few arguments, else -1. */
__noinline int resp_split(struct xkv_request *rq, __u32 len)
{
	struct resp_args *a;
	__u32 at, count;
	int line;

	if (!rq)
		return -1;
	a = args_of(rq);
	line = resp_length(rq, 0, '*');
	if (line < 0)
		return -1;
	count = line >> 16;
	at = line & 0xffff;
	if (!count || count > RESP_ARGS_MAX)
		return -1;
	for (__u32 i = 0; i < RESP_ARGS_MAX; i++) {
		if (i >= count)
			break;
		line = resp_length(rq, at, '$');
		if (line < 0)
			return -1;
		a->arg[i].at = line & 0xffff;
		a->arg[i].len = line >> 16;
		at = (line & 0xffff) + (line >> 16);
		if (at + 2 > len || TEXT(rq, at) != '\r' || TEXT(rq, at + 1) != '\n')
			return -1;
		at += 2;
	}
	a->count = count;
	return at == len ? 0 : -1;
}

#define NAME4(a, b, c, d)	((__u64)(a) | (__u64)(b) << 8 | (__u64)(c) << 16 | (__u64)(d) << 24)
#define NAME6(a, b, c, d, e, f) (NAME4(a, b, c, d) | (__u64)(e) << 32 | (__u64)(f) << 40)
#define UPPERCASE		0xdfdfdfdfdfdfdfdfULL

/* How a command is executed. */
struct resp_command {
	__u32 command; /* enum xkv_tcp_command */
	__u32 args;
	__u32 opcode;
	__s64 amount; /* of INCR */
};

/* Finds the command that was split: false if it is not known, or has other arguments. */
static __always_inline bool resp_command(struct xkv_request *rq, struct resp_command *c)
{
	struct resp_args *a = args_of(rq);
	__u32 len = a->arg[0].len;
	__u64 name = low_bytes(text_word(rq, a->arg[0].at), len) & UPPERCASE;

	/* A blank or a zero byte at its end would look like the padding of a shorter name. */
	if (!len || len > 6 || !(TEXT(rq, a->arg[0].at + len - 1) & 0x40))
		return false;
	c->args = 2;
	c->amount = 1;
	if (name == NAME4('G', 'E', 'T', 0)) {
		c->command = XKV_TCP_GET;
		c->opcode = XKV_OP_GET;
	} else if (name == NAME4('S', 'E', 'T', 0)) {
		c->command = XKV_TCP_SET;
		c->opcode = XKV_OP_SET;
		c->args = 3;
	} else if (name == NAME4('D', 'E', 'L', 0) || name == NAME6('U', 'N', 'L', 'I', 'N', 'K')) {
		c->command = XKV_TCP_DEL;
		c->opcode = XKV_OP_DELETE;
	} else if (name == NAME4('I', 'N', 'C', 'R') || name == NAME4('D', 'E', 'C', 'R')) {
		c->command = XKV_TCP_INCR;
		c->opcode = XKV_OP_INCR;
		c->amount = name == NAME4('I', 'N', 'C', 'R') ? 1 : -1;
	} else if (name == NAME4('P', 'I', 'N', 'G')) {
		c->command = XKV_TCP_PING;
		c->opcode = XKV_OP_PING;
		c->args = 1;
	} else {
		return false;
	}
	return a->count == c->args;
}

/* May its reply be dropped without harm? */
static __always_inline bool resp_is_read(const struct resp_command *c)
{
	return c->command == XKV_TCP_GET || c->command == XKV_TCP_PING;
}

/* Copies an argument, padded with zeros, from the text to `in`; returns where it ends there. */
__noinline int resp_copy(struct xkv_request *rq, __u32 to, __u32 which)
{
	struct resp_args *a;
	__u32 from, len;

	if (!rq || which >= RESP_ARGS_MAX)
		return 0;
	a = args_of(rq);
	from = a->arg[which].at;
	len = a->arg[which].len;
	for (__u32 i = 0; i < XKV_REQUEST_BYTES; i += 8) {
		if (i >= len)
			break;
		IN(rq, to + i) = LE64(text_word(rq, from + i));
	}
	if (len & 7)
		IN(rq, to + len) = LE64(low_bytes(LE64(IN(rq, to + len)), len & 7));
	return to + XKV_PADDED(len);
}

/* Makes the operation.  -1: it cannot be executed here. */
static __always_inline int resp_operation(struct xkv_request *rq, const struct resp_command *c)
{
	struct xkv_op *op = (struct xkv_op *)&rq->in[RESP_OP];
	struct resp_args *a = args_of(rq);
	__u32 key_len = c->args > 1 ? a->arg[1].len : 0;
	__u32 value_len = c->opcode == XKV_OP_SET ? a->arg[2].len : 0;
	__u32 end = RESP_OP + sizeof(*op);

	if (key_len > XKV_KEY_MAX || (c->args > 1 && !key_len))
		return -1;
	rq->in_word[0] = rq->in_word[1] = 0;
	op->opcode = c->opcode;
	op->flags = 0;
	op->key_len = key_len;
	op->keys = 0;
	op->ttl = 0;
	op->version = 0;
	if (key_len)
		end = resp_copy(rq, end, 1);
	if (c->opcode == XKV_OP_SET)
		end = resp_copy(rq, end, 2);
	if (c->opcode == XKV_OP_INCR) {
		value_len = sizeof(__u64);
		IN(rq, end) = bpf_cpu_to_be64(c->amount);
		end += sizeof(__u64);
	}
	op->value_len = bpf_htonl(value_len);
	rq->end = rq->req_len = end;
	return 0;
}

/* ---- the reply -------------------------------------------------------------- */

#define RESP_TEXT(from, len) ((from) << 16 | (len)) /* where a reply is in `out` */

/* Writes a number with its line's type and end, in front of `end`; returns where it begins. */
static __always_inline __u32 put_line(struct xkv_request *rq, __u32 end, __u8 type, __u64 n,
				      bool minus)
{
	TEXT(rq, --end) = '\n';
	TEXT(rq, --end) = '\r';
	for (int i = 0; i < DIGITS_MAX; i++) {
		TEXT(rq, --end) = '0' + n % 10;
		n /= 10;
		if (!n)
			break;
	}
	if (minus)
		TEXT(rq, --end) = '-';
	TEXT(rq, --end) = type;
	return end;
}

/* A text of up to eight bytes. */
static __always_inline int put_short(struct xkv_request *rq, __u64 text, __u32 len)
{
	rq->out_word[0] = LE64(text);
	return RESP_TEXT(0, len);
}

static __always_inline int encode_get(struct xkv_request *rq, struct xkv_result *r, bool resp3)
{
	__u32 len = bpf_ntohl(r->value_len), from;

	if (r->status == XKV_MISS)
		return resp3 ? put_short(rq, NAME4('_', '\r', '\n', 0), 3)
			     : put_short(rq, NAME6('$', '-', '1', '\r', '\n', 0), 5);
	if (r->status != XKV_OK || len > XKV_TCP_REPLY_MAX - RESP_BULK_FRAME)
		return -1;
	from = put_line(rq, RESP_VALUE, '$', len, false);
	TEXT(rq, RESP_VALUE + len) = '\r';
	TEXT(rq, RESP_VALUE + len + 1) = '\n';
	return RESP_TEXT(from, RESP_VALUE + len + 2 - from);
}

static __always_inline int encode_number(struct xkv_request *rq)
{
	__s64 n = bpf_be64_to_cpu(OUT(rq, RESP_VALUE));
	bool minus = n < 0;
	__u32 from = put_line(rq, RESP_VALUE, ':', minus ? -(__u64)n : (__u64)n, minus);

	return RESP_TEXT(from, RESP_VALUE - from);
}

/*
 * Replies with the result: RESP_TEXT(); what lies behind it is garbage.  -1: xkvd has to execute
 * the command, nothing was changed.
 */
__noinline int resp_encode(struct xkv_request *rq, __u32 command, __u32 resp3)
{
	struct xkv_result *r;

	if (!rq)
		return -1;
	r = (struct xkv_result *)&rq->out[RESP_RESULT];
	if (command == XKV_TCP_GET)
		return encode_get(rq, r, resp3);
	if (command == XKV_TCP_DEL && r->status == XKV_MISS)
		return put_short(rq, NAME4(':', '0', '\r', '\n'), 4);
	if (r->status != XKV_OK)
		return -1;
	switch (command) {
	case XKV_TCP_DEL:
		return put_short(rq, NAME4(':', '1', '\r', '\n'), 4);
	case XKV_TCP_SET:
		return put_short(rq, NAME6('+', 'O', 'K', '\r', '\n', 0), 5);
	case XKV_TCP_INCR:
		return encode_number(rq);
	case XKV_TCP_PING:
		return put_short(rq, NAME6('+', 'P', 'O', 'N', 'G', '\r') | (__u64)'\n' << 48, 7);
	}
	return -1;
}

/* Executes the operation: its outcome, as for datagrams. */
static __always_inline int resp_execute(struct xkv_request *rq, struct xkv_config *cfg,
					const struct xkv_owner *owner)
{
	rq->flags = XKV_REQUEST_BULK | (owner->no_touch ? XKV_REQUEST_NO_TOUCH : 0);
	rq->db = database_of(cfg, owner->db);
	rq->reply_max = rq->reply_allowed = rq->reply_room = RESP_REPLY_ROOM;
	rq->in_off = RESP_OP;
	rq->out_len = RESP_RESULT;
	rq->done = 0;
	rq->count = 1;
	rq->stop = 0;
	rq->hashed = 0;
	rq->now_ms = 0;
	rq->dedup = 0;
	return op_run(rq);
}

#endif

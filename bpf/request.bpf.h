/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A request from its first byte to the last byte of its reply: header,
 * operations one after the other, reply header.  Knows nothing of packets.
 */
#ifndef XKV_REQUEST_BPF_H
#define XKV_REQUEST_BPF_H

#include "ops.bpf.h"

/* More operations than fit a datagram are never asked for. */
#define OPERATIONS_MAX 64

/* ---- one operation ------------------------------------------------------- */

/* The flags that an opcode knows, or -1 if nobody knows the opcode. */
static __always_inline int known_flags(__u8 opcode)
{
	switch (opcode) {
	case XKV_OP_PING:
	case XKV_OP_GET:
		return 0;
	case XKV_OP_SET:
		return XKV_NX | XKV_XX | XKV_KEEPTTL | XKV_CAS | XKV_RETURN | XKV_ABSTTL;
	case XKV_OP_DELETE:
		return XKV_CAS | XKV_RETURN;
	case XKV_OP_EXPIRE:
		return XKV_ABSTTL;
	}
	return -1;
}

/* Do the fields of an operation contradict its opcode or each other? */
static __always_inline bool op_is_bad(const struct xkv_op *op, int known)
{
	__u8 flags = op->flags, opcode = op->opcode;

	if (op->zero || (flags & ~known))
		return true;
	if (op->value_len && opcode != XKV_OP_SET)
		return true;
	if (op->version && !(flags & XKV_CAS))
		return true;
	if (op->ttl && opcode != XKV_OP_SET && opcode != XKV_OP_EXPIRE)
		return true;
	if ((flags & XKV_NX) && (flags & (XKV_XX | XKV_CAS)))
		return true;
	return (flags & XKV_KEEPTTL) && op->ttl;
}

/*
 * Zero bytes behind key and value make the next word.  (Behind the value it
 * does not matter what they are: only value_len bytes of it are ever given out,
 * but the padding travels along, so it has to be clean too.)
 */
static __always_inline bool padding_is_clean(struct xkv_frame *f, __u32 off, __u32 len)
{
	__u32 rest = len & 7, at = off + (len & ~7U);
	__u64 word;

	if (!rest)
		return true;
	word = bpf_be64_to_cpu(IN(f, at));
	return !(word << (rest * 8));
}

/* Fills in "the operation at hand". -1, or the outcome of one that is refused, with its result. */
__noinline int op_parse(struct xkv_frame *f)
{
	struct xkv_op *op;
	__u32 room, value_len;
	int known;

	if (!f)
		return XKV_C_op_bad_request;
	op = (struct xkv_op *)&IN(f, f->in_off);
	room = f->end - f->in_off - sizeof(*op);
	value_len = bpf_ntohl(op->value_len);
	known = known_flags(op->opcode);
	if (known < 0)
		return answer(f, op->opcode, XKV_BAD_OPCODE, XKV_C_op_bad_opcode);
	if (op->opcode != XKV_OP_PING && (!op->key_len || op->key_len > XKV_KEY_MAX))
		return answer(f, op->opcode, XKV_BAD_KEY, XKV_C_op_bad_key);
	f->key_off = f->in_off + sizeof(*op);
	f->key_len = op->key_len;
	f->value_off = f->key_off + XKV_PADDED(f->key_len);
	f->value_len = value_len;
	f->op_flags = op->flags;
	f->ttl = bpf_be64_to_cpu(op->ttl);
	f->version = bpf_be64_to_cpu(op->version);
	if (op_is_bad(op, known) || (op->opcode == XKV_OP_PING && op->key_len) ||
	    value_len > VALUE_WORDS * 8 ||
	    XKV_PADDED(f->key_len) + XKV_PADDED(value_len) > room ||
	    !padding_is_clean(f, f->key_off, f->key_len) ||
	    !padding_is_clean(f, f->value_off, value_len) ||
	    f->ttl > XKV_TTL_MAX)
		return answer(f, op->opcode, XKV_BAD_REQUEST, XKV_C_op_bad_request);
	return -1;
}

/* Nobody else will do it: the status that says why not. */
static __always_inline int answer_stopped(struct xkv_frame *f, __u8 opcode, int outcome)
{
	switch (outcome) {
	case XKV_C_pass_no_slot:
	case XKV_C_pass_full:
		return answer(f, opcode, XKV_NO_MEMORY, XKV_C_op_no_memory);
	case XKV_C_pass_busy:
		return answer(f, opcode, XKV_BUSY, XKV_C_op_busy);
	}
	return outcome;
}

/* Runs the operation at in_off, of which there are at least the fixed fields, and goes on to the next. */
__noinline int op_run(struct xkv_frame *f)
{
	int outcome = op_parse(f);
	__u8 opcode;

	if (outcome >= 0 || !f)
		return outcome;
	opcode = ((struct xkv_op *)&IN(f, f->in_off))->opcode;
	if (opcode != XKV_OP_PING)
		f->fingerprint = key_fingerprint(f, f->key_off, f->key_len);
	switch (opcode) {
	case XKV_OP_PING:
		outcome = answer(f, opcode, XKV_OK, XKV_C_pings);
		break;
	case XKV_OP_GET:
		outcome = op_get(f);
		break;
	case XKV_OP_SET:
		outcome = op_set(f);
		break;
	default:
		outcome = op_change(f, opcode);
	}
	if (STOPS(outcome) && (f->flags & XKV_FRAME_LAST))
		outcome = answer_stopped(f, opcode, outcome);
	if (!STOPS(outcome))
		f->in_off = f->value_off + XKV_PADDED(f->value_len);
	return outcome;
}

/* ---- the datagram -------------------------------------------------------- */

/* XKV_OK or why the header of a request is refused. */
static __always_inline __u8 header_check(struct xkv_frame *f, struct xkv_hdr *hdr, __u32 *ops)
{
	struct xkv_config *cfg = config();
	__u32 length = bpf_ntohs(hdr->length);
	bool token = hdr->flags & XKV_F_TOKEN;
	__u64 *sent = (__u64 *)(hdr + 1);

	if (hdr->version != XKV_VERSION)
		return XKV_BAD_VERSION;
	*ops = sizeof(*hdr) + (token ? XKV_TOKEN_BYTES : 0);
	if ((hdr->flags & ~XKV_F_TOKEN) || hdr->status || !hdr->count || (length & 7) ||
	    length < *ops + sizeof(struct xkv_op) || length > f->req_len)
		return XKV_BAD_REQUEST;
	if (!cfg || (f->flags & XKV_FRAME_TRUSTED) || cfg->auth == XKV_AUTH_OPEN)
		return XKV_OK;
	if (cfg->auth == XKV_AUTH_CLOSED || !token ||
	    ((sent[0] ^ cfg->token[0]) | (sent[1] ^ cfg->token[1])))
		return XKV_NOAUTH;
	return XKV_OK;
}

static __always_inline void reply_header(struct xkv_frame *f, __u8 status)
{
	struct xkv_hdr *in = (struct xkv_hdr *)f->in, *out = (struct xkv_hdr *)f->out;

	out->magic = bpf_htons(XKV_MAGIC);
	out->version = XKV_VERSION;
	out->flags = XKV_F_REPLY;
	out->count = f->done;
	out->status = status;
	out->length = bpf_htons(f->out_len);
	out->id = in->id;
}

/* Looks at the header of a new request.  True: go on with the operations. */
static __always_inline bool request_begin(struct xkv_frame *f, struct xkv_counters *c, int *verdict)
{
	struct xkv_hdr *hdr = (struct xkv_hdr *)f->in;
	__u32 ops = 0;
	__u8 status;

	*verdict = VERDICT_PASS;
	f->stop = XKV_C_pass_not_xkv + 1;
	if (f->req_len < sizeof(*hdr) || hdr->magic != bpf_htons(XKV_MAGIC))
		return false;
	*verdict = VERDICT_DROP;
	f->stop = XKV_C_drop_reply_flag + 1;
	if (hdr->flags & XKV_F_REPLY)
		return false;
	f->done = 0;
	f->out_len = sizeof(*hdr);
	status = header_check(f, hdr, &ops);
	f->in_off = ops;
	f->end = bpf_ntohs(hdr->length);
	f->count = hdr->count;
	if (status == XKV_OK)
		return true;
	*verdict = VERDICT_REPLY;
	reply_header(f, status);
	count(c, status == XKV_BAD_VERSION ? XKV_C_error_version :
		 status == XKV_NOAUTH	   ? XKV_C_error_auth :
					     XKV_C_error_request);
	return false;
}

/*
 * The reply to a single GET is there, but the packet cannot be made long enough
 * for it: has the client send one that is.
 */
static __always_inline void ask_for_padding(struct xkv_frame *f)
{
	struct xkv_counters *c = counters();
	__u32 need = f->out_len;

	f->out_len = sizeof(struct xkv_hdr);
	put_result(f, XKV_OP_GET, XKV_PAD, 0, need, 0, 0);
	reply_header(f, XKV_OK);
	if (c)
		count(c, XKV_C_op_pad);
}

/* Does this result end the reply?  The client will send what follows again, or has to mend it. */
static __always_inline bool ends_reply(int outcome)
{
	return outcome >= XKV_C_op_bad_request && outcome <= XKV_C_op_pad;
}

/*
 * Runs the operations of the request in `in`, in order, until one is refused,
 * cannot be done here (f->stop says why) or is cut off.  A frame that stopped
 * goes on where it stopped (done, in_off and out_len are kept) when it is run again.
 */
__noinline int request_run(struct xkv_frame *f, int again)
{
	struct xkv_counters *c = counters();
	int verdict = VERDICT_DROP, outcome;

	if (!f || !c)
		return VERDICT_DROP;
	f->now_ms = 0;
	if (!again && !request_begin(f, c, &verdict))
		return verdict;
	f->stop = 0;
	for (int i = 0; i < OPERATIONS_MAX; i++) {
		if (f->done >= f->count || f->in_off + sizeof(struct xkv_op) > f->end ||
		    f->out_len + sizeof(struct xkv_result) > f->reply_room)
			break;
		outcome = op_run(f);
		if (STOPS(outcome)) {
			f->stop = outcome + 1;
			if (!f->done)
				return VERDICT_PASS;
			break;
		}
		count(c, outcome);
		f->done++;
		if (ends_reply(outcome)) {
			f->count = f->done;
			break;
		}
	}
	reply_header(f, XKV_OK);
	return VERDICT_REPLY;
}

#endif

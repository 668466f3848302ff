/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Running a request: its header, its operations in order, the header of its reply.  Independent of
 * packets.
 */
#ifndef XKV_REQUEST_BPF_H
#define XKV_REQUEST_BPF_H

#include "hot.bpf.h"
#include "once.bpf.h"
#include "ops.bpf.h"

/* No datagram holds more operations. */
#define OPERATIONS_MAX 64

/* ---- one operation ------------------------------------------------------- */

/* The flags that are valid with an opcode, or -1 for an unknown opcode. */
static __always_inline int known_flags(__u8 opcode)
{
	switch (opcode) {
	case XKV_OP_PING:
	case XKV_OP_GET:
	case XKV_OP_TTL:
	case XKV_OP_TOUCH:
	case XKV_OP_SCAN:
	case XKV_OP_SESSION:
		return 0;
	case XKV_OP_SET:
		return XKV_NX | XKV_XX | XKV_KEEPTTL | XKV_CAS | XKV_RETURN | XKV_ABSTTL;
	case XKV_OP_DELETE:
		return XKV_CAS | XKV_RETURN;
	case XKV_OP_EXPIRE:
		return XKV_CAS | XKV_ABSTTL;
	case XKV_OP_INCR:
	case XKV_OP_APPEND:
		return XKV_XX | XKV_CAS;
	}
	return -1;
}

static __always_inline bool has_key(__u32 opcode)
{
	return opcode != XKV_OP_PING && opcode != XKV_OP_SESSION;
}

/* Is this value_len invalid for the opcode? */
static __always_inline bool value_is_wrong(__u8 opcode, __u32 value_len)
{
	switch (opcode) {
	case XKV_OP_SET:
	case XKV_OP_APPEND:
		return false;
	case XKV_OP_INCR:
		return value_len != bpf_htonl(8);
	}
	return value_len;
}

/* Do the fields of an operation contradict its opcode or each other? */
static __always_inline bool op_is_bad(const struct xkv_op *op, int known)
{
	__u8 flags = op->flags, opcode = op->opcode;

	if ((flags & ~known) || value_is_wrong(opcode, op->value_len))
		return true;
	if (opcode == XKV_OP_SCAN ? !op->keys || op->keys > XKV_SCAN_MAX : op->keys)
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
 * Is a key or value padded with zero bytes?  Keys are compared by words.  The padding of a value is
 * stored and sent along with it, so it must not carry data either.
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

/* Does this result end the reply?  The client has to send the rest again, or to correct it. */
static __always_inline bool ends_reply(int outcome)
{
	return outcome >= XKV_C_op_bad_request && outcome <= XKV_C_op_pad;
}

/* A byte of the current key, counted from its end. */
#define KEY_BYTE(f, before)                                                                        \
	((f)->in[((f)->key_off + (f)->key_len - 1 - (before)) & (XKV_FRAME_WORDS * 8 - 1)])

static __always_inline bool is_digit(__u8 c)
{
	return c >= '0' && c <= '9';
}

/* Parses the current operation.  -1, or the outcome if it is refused, with its result. */
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
	if (has_key(op->opcode) && (!op->key_len || op->key_len > XKV_KEY_MAX))
		return answer(f, op->opcode, XKV_BAD_KEY, XKV_C_op_bad_key);
	f->key_off = f->in_off + sizeof(*op);
	f->key_len = op->key_len;
	f->value_off = f->key_off + XKV_PADDED(f->key_len);
	f->value_len = value_len;
	f->next_off = f->value_off + XKV_PADDED(value_len);
	f->opcode = op->opcode;
	f->keep = 0;
	f->op_flags = op->flags;
	f->ttl = bpf_be64_to_cpu(op->ttl);
	f->version = bpf_be64_to_cpu(op->version);
	if (op_is_bad(op, known) || (!has_key(op->opcode) && op->key_len) ||
	    value_len > VALUE_WORDS * 8 ||
	    XKV_PADDED(f->key_len) + XKV_PADDED(value_len) > room ||
	    !padding_is_clean(f, f->key_off, f->key_len) ||
	    !padding_is_clean(f, f->value_off, value_len) ||
	    f->ttl > XKV_TTL_MAX || (op->keys > 1 && !is_digit(KEY_BYTE(f, 0))))
		return answer(f, op->opcode, XKV_BAD_REQUEST, XKV_C_op_bad_request);
	return -1;
}

/* Answers an operation that stopped at its last try. */
static __always_inline int answer_stopped(struct xkv_frame *f, __u8 opcode, int outcome)
{
	switch (outcome) {
	case XKV_C_pass_no_slot:
	case XKV_C_pass_full:
		return answer(f, opcode, XKV_NO_MEMORY, XKV_C_op_no_memory);
	case XKV_C_pass_too_large:
		if (!f->keep)
			break;
		/* fall through: an APPEND that xkvd could not complete in all its tries */
	case XKV_C_pass_busy:
		return answer(f, opcode, XKV_BUSY, XKV_C_op_busy);
	}
	return outcome;
}

#define COUNTED_DIGITS 32

/* Increments the number that the key of a SCAN ends with.  False after 9, 99, ... */
__noinline int next_key(struct xkv_frame *f)
{
	__u8 c;

	if (!f)
		return false;
	for (__u32 i = 0; i < COUNTED_DIGITS; i++) {
		if (i >= f->key_len)
			break;
		c = KEY_BYTE(f, i);
		if (!is_digit(c))
			break;
		KEY_BYTE(f, i) = c == '9' ? '0' : c + 1;
		if (c != '9')
			return true;
	}
	return false;
}

/*
 * Advances to the next operation.  A SCAN has read one key: it becomes the SCAN of the remaining
 * keys.  A prefilled slot is for one operation only.
 */
static __always_inline void op_end(struct xkv_frame *f)
{
	struct xkv_op *op = (struct xkv_op *)&IN(f, f->in_off);

	f->flags &= ~XKV_FRAME_PREFILL;
	if (f->opcode == XKV_OP_SCAN && op->keys > 1 && next_key(f)) {
		op = (struct xkv_op *)&IN(f, f->in_off);
		op->keys--;
		f->count++;
	} else {
		f->in_off = f->next_off;
	}
}

/*
 * Returns the session with a proof for its sender's address.  Stateless: the proof can be computed
 * again from session and address.
 */
static __always_inline int op_session(struct xkv_frame *f)
{
	struct xkv_secrets *s = secrets();
	bool once = ((struct xkv_hdr *)f->in)->flags & XKV_F_ONCE;
	__u64 drawn = session_of(f);
	__u32 at;

	if (!s || !once || !(drawn & ~PROOF_MASK))
		return answer(f, XKV_OP_SESSION, XKV_BAD_REQUEST, XKV_C_op_bad_request);
	put_result(f, XKV_OP_SESSION, XKV_OK, XKV_HAS_VALUE, XKV_SESSION_BYTES, 0, 0);
	at = f->out_len - XKV_SESSION_BYTES;
	OPAQUE(at); /* the mask has to stay */
	OUT(f, at) = bpf_cpu_to_be64(session_proven(f, &s->hash, drawn));
	return XKV_C_sessions;
}

/* After a failed snapshot clients can only read; xkvd's own changes (expiry, eviction) go on. */
static __always_inline bool refuses_write(struct xkv_frame *f, __u32 opcode)
{
	struct xkv_config *cfg = config();

	return opcode >= XKV_OP_SET && opcode <= XKV_OP_APPEND && cfg && cfg->read_only &&
	       !(f->flags & XKV_FRAME_TRUSTED);
}

/* Executes the current operation: its outcome. */
static __always_inline int op_do(struct xkv_frame *f, __u32 opcode)
{
	if (refuses_write(f, opcode))
		return answer(f, opcode, XKV_READ_ONLY, XKV_C_op_read_only);
	if (has_key(opcode))
		key_fingerprint(f);
	switch (opcode) {
	case XKV_OP_PING:
		return answer(f, opcode, XKV_OK, XKV_C_pings);
	case XKV_OP_SESSION:
		return op_session(f);
	case XKV_OP_SET:
	case XKV_OP_INCR:
	case XKV_OP_APPEND:
		return op_write(f);
	case XKV_OP_DELETE:
	case XKV_OP_EXPIRE:
		return op_change(f, opcode);
	}
	return op_get(f, opcode);
}

/* Length of the value in a slot that xkvd has prefilled; the operation itself carries none. */
static __always_inline __u32 prefilled_len(struct xkv_frame *f)
{
	struct xkv_slot *slot = f->flags & XKV_FRAME_PREFILL ? slot_at(f->prefilled) : NULL;

	return slot ? slot->value_len : 0;
}

/*
 * Was the operation done?  One that is too large is completed by xkvd, or by the client over TCP.
 */
static __always_inline bool is_done(int outcome)
{
	return !ends_reply(outcome) && outcome != XKV_C_op_no_memory && outcome != XKV_C_op_busy &&
	       outcome != XKV_C_op_read_only;
}

/*
 * Counts the current operation, whose result is at `at`, as a use of its key, if it was done and is
 * not xkvd's own.  A value too large for a datagram counts with its full length: xkvd transfers it.
 */
static __always_inline void op_used(struct xkv_frame *f, int outcome, __u32 at, __u32 prefilled)
{
	struct xkv_config *cfg = config();
	struct xkv_result *r = (struct xkv_result *)&OUT(f, at);
	__u32 opcode = f->opcode, bytes = f->out_len - at - sizeof(*r);
	bool written = opcode != XKV_OP_GET && opcode != XKV_OP_SCAN && opcode != XKV_OP_TTL &&
		       opcode != XKV_OP_TOUCH;

	if (!cfg || !f->key_len || !is_done(outcome) ||
	    f->flags & (XKV_FRAME_EXPIRED | XKV_FRAME_EVICT | XKV_FRAME_RELOCATE) ||
	    !hot_is_due(f, cfg))
		return;
	if (written)
		bytes = prefilled ? prefilled : f->value_len;
	else if (outcome == XKV_C_op_too_large)
		bytes = bpf_ntohl(r->value_len);
	hot_note(f, written, XKV_PADDED(bytes));
}

/* Runs the operation at in_off, whose fixed fields are inside the request, and advances. */
__noinline int op_run(struct xkv_frame *f)
{
	int outcome = op_parse(f);
	__u32 opcode, at, prefilled;

	if (outcome >= 0 || !f)
		return outcome;
	opcode = f->opcode;
	at = f->out_len;
	prefilled = prefilled_len(f);
	outcome = op_do(f, opcode);
	if (STOPS(outcome) && (f->flags & XKV_FRAME_LAST))
		outcome = answer_stopped(f, opcode, outcome);
	if (!STOPS(outcome)) {
		op_used(f, outcome, at, prefilled);
		op_end(f);
	}
	return outcome;
}

/* ---- the datagram -------------------------------------------------------- */

/* XKV_OK, or the status with which the header is refused. */
static __always_inline __u8 header_check(struct xkv_frame *f, struct xkv_hdr *hdr, __u32 *ops)
{
	struct xkv_config *cfg = config();
	struct xkv_secrets *s = secrets();
	__u32 length = bpf_ntohs(hdr->length);
	bool token = hdr->flags & XKV_F_TOKEN, once = hdr->flags & XKV_F_ONCE;
	__u64 *sent = (__u64 *)(hdr + 1);
	struct xkv_rules *rules;

	if (hdr->version != XKV_VERSION)
		return XKV_BAD_VERSION;
	*ops = session_off(f) + (once ? XKV_SESSION_BYTES : 0);
	if ((hdr->flags & ~(XKV_F_TOKEN | XKV_F_ONCE)) || hdr->status || !hdr->count ||
	    (once && (hdr->count != 1 || !IN(f, session_off(f)))) || (length & 7) ||
	    length < *ops + sizeof(struct xkv_op) || length > f->req_len)
		return XKV_BAD_REQUEST;
	if (!cfg || (f->flags & XKV_FRAME_TRUSTED))
		return XKV_OK;
	rules = rules_of(cfg, f->rules);
	if (rules->auth == XKV_AUTH_OPEN)
		return XKV_OK;
	if (rules->auth != XKV_AUTH_TOKEN || !token || !s ||
	    ((sent[0] ^ s->token[f->rules & 1][0]) | (sent[1] ^ s->token[f->rules & 1][1])))
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

/* A reply that is only a header. */
static __always_inline int refuse(struct xkv_frame *f, __u8 status, int counter)
{
	f->done = 0;
	f->out_len = sizeof(struct xkv_hdr);
	reply_header(f, status);
	count(f, counter);
	return VERDICT_REPLY;
}

static __always_inline int stop(struct xkv_frame *f, int why, int verdict)
{
	f->stop = why + 1;
	return verdict;
}

#define GO_ON (-1)

/* Checks the header of a new request. */
static __always_inline int request_begin(struct xkv_frame *f)
{
	struct xkv_hdr *hdr = (struct xkv_hdr *)f->in;
	__u32 ops = 0;
	__u8 status;

	if (f->req_len < sizeof(*hdr) || hdr->magic != bpf_htons(XKV_MAGIC))
		return stop(f, XKV_C_pass_not_xkv, VERDICT_PASS);
	if (hdr->flags & XKV_F_REPLY)
		return stop(f, XKV_C_drop_reply_flag, VERDICT_DROP);
	f->done = 0;
	f->out_len = sizeof(*hdr);
	status = header_check(f, hdr, &ops);
	f->in_off = ops;
	f->end = bpf_ntohs(hdr->length);
	f->count = hdr->count;
	if (status == XKV_OK)
		return GO_ON;
	return refuse(f, status, status == XKV_BAD_VERSION ? XKV_C_error_version :
				 status == XKV_NOAUTH	   ? XKV_C_error_auth :
							     XKV_C_error_request);
}

static __always_inline bool is_change(__u8 opcode)
{
	return opcode >= XKV_OP_SET && opcode <= XKV_OP_APPEND;
}

/* Looks up a change with XKV_F_ONCE in the dedup cache; reads need no record. */
static __always_inline int request_once(struct xkv_frame *f)
{
	if (!(((struct xkv_hdr *)f->in)->flags & XKV_F_ONCE) ||
	    !is_change(((struct xkv_op *)&IN(f, f->in_off))->opcode))
		return GO_ON;
	switch (once_begin(f)) {
	case ONCE_NEW:
		return GO_ON;
	case ONCE_REPEATED:
		count(f, XKV_C_once_repeated);
		return VERDICT_REPLY;
	case ONCE_UNKEPT:
		return refuse(f, XKV_REPEATED, XKV_C_once_repeated);
	case ONCE_FULL:
		return refuse(f, XKV_NO_SESSION, XKV_C_error_once);
	}
	return stop(f, XKV_C_drop_repeated, VERDICT_DROP);
}

/*
 * The packet cannot be made long enough for the reply to a single GET: asks the client to pad its
 * request.
 */
static __always_inline void ask_for_padding(struct xkv_frame *f)
{
	__u32 need = f->out_len;

	f->out_len = sizeof(struct xkv_hdr);
	put_result(f, f->opcode, XKV_PAD, 0, need, 0, 0);
	f->done = 1;
	reply_header(f, XKV_OK);
	count(f, XKV_C_op_pad);
}

/*
 * Runs the operations in order, until one is refused, cannot be done here (f->stop says why), or is
 * cut off.  Run again, a request continues where it stopped (done, in_off and out_len are kept).
 */
static __always_inline int operations_run(struct xkv_frame *f)
{
	int outcome;

	for (int i = 0; i < OPERATIONS_MAX; i++) {
		if (f->done >= f->count || f->in_off + sizeof(struct xkv_op) > f->end ||
		    f->out_len + sizeof(struct xkv_result) > f->reply_room)
			break;
		outcome = op_run(f);
		/* the compiler knows the range of op_run(), the verifier does not */
		OPAQUE(outcome);
		if (STOPS(outcome)) {
			f->stop = outcome + 1;
			if (!f->done)
				return VERDICT_PASS;
			break;
		}
		count(f, outcome);
		f->done++;
		if (ends_reply(outcome)) {
			f->count = f->done;
			break;
		}
	}
	reply_header(f, XKV_OK);
	return VERDICT_REPLY;
}

/* Runs a request: enum verdict.  `again`: continues one that stopped. */
__noinline int request_run(struct xkv_frame *f, int again)
{
	int verdict = GO_ON;

	if (!f)
		return VERDICT_DROP;
	f->now_ms = 0;
	f->once = 0;
	f->stop = 0;
	if (!again)
		verdict = request_begin(f);
	if (verdict == GO_ON)
		verdict = request_once(f);
	if (verdict != GO_ON)
		return verdict;
	verdict = operations_run(f);
	if (f->once)
		once_end(f, verdict == VERDICT_REPLY);
	return verdict;
}

#endif

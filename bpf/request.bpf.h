/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A request from its first byte to the last byte of its reply: header,
 * operations one after the other, reply header.  Knows nothing of packets.
 */
#ifndef XKV_REQUEST_BPF_H
#define XKV_REQUEST_BPF_H

#include "hot.bpf.h"
#include "once.bpf.h"
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

/* Does this value_len fit the opcode? */
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

/* Does this result end the reply?  The client will send what follows again, or has to mend it. */
static __always_inline bool ends_reply(int outcome)
{
	return outcome >= XKV_C_op_bad_request && outcome <= XKV_C_op_pad;
}

/* The last byte of the key at hand, or one before it. */
#define KEY_BYTE(f, before) ((f)->in[((f)->key_off + (f)->key_len - 1 - (before)) & (XKV_FRAME_WORDS * 8 - 1)])

static __always_inline bool is_digit(__u8 c)
{
	return c >= '0' && c <= '9';
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

/* Nobody else will do it: the status that says why not. */
static __always_inline int answer_stopped(struct xkv_frame *f, __u8 opcode, int outcome)
{
	switch (outcome) {
	case XKV_C_pass_no_slot:
	case XKV_C_pass_full:
		return answer(f, opcode, XKV_NO_MEMORY, XKV_C_op_no_memory);
	case XKV_C_pass_too_large:
		if (!f->keep)
			break;
		/* fall through: an APPEND that xkvd has not got done in all its tries */
	case XKV_C_pass_busy:
		return answer(f, opcode, XKV_BUSY, XKV_C_op_busy);
	}
	return outcome;
}

#define COUNTED_DIGITS 32

/* Makes the key of a SCAN the next one.  False behind the last: 9 or 99 or ... */
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
 * Goes on behind the operation that was done.  Of a SCAN one key was read: what
 * is left of it is the SCAN of the next one.  What xkvd has prefilled was for this operation alone.
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
 * Proves the session of the request for its sender.  Nothing is kept: who gets the reply has all
 * that the server knows of it.
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

/* After a failed snapshot clients may only read.  What xkvd asks for itself (expiry, eviction, a load) goes on. */
static __always_inline bool refuses_write(struct xkv_frame *f, __u32 opcode)
{
	struct xkv_config *cfg = config();

	return opcode >= XKV_OP_SET && opcode <= XKV_OP_APPEND && cfg && cfg->read_only &&
	       !(f->flags & XKV_FRAME_TRUSTED);
}

/* Does the operation at hand: its outcome. */
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

/* Bytes of the value that xkvd has filled a slot with: the operation at hand does not bring it. */
static __always_inline __u32 prefilled_len(struct xkv_frame *f)
{
	struct xkv_slot *slot = f->flags & XKV_FRAME_PREFILL ? slot_at(f->prefilled) : NULL;

	return slot ? slot->value_len : 0;
}

/* Was this done?  Of what is too large for a frame the rest is xkvd's, or the client's over TCP. */
static __always_inline bool is_done(int outcome)
{
	return !ends_reply(outcome) && outcome != XKV_C_op_no_memory && outcome != XKV_C_op_busy &&
	       outcome != XKV_C_op_read_only;
}

/*
 * The operation at hand has its result at `at`: counts it as a use of its key, if it was done and
 * is not xkvd's own.  A value that is too large for the frame xkvd reads or has written by itself.
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

/* Runs the operation at in_off, of which there are at least the fixed fields, and goes on to the next. */
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

/* XKV_OK or why the header of a request is refused. */
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

/* Looks at the header of a new request. */
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

/* A change that is to be done only once: has it been?  What changes nothing needs no record. */
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
 * The reply to a single GET is there, but the packet cannot be made long enough
 * for it: has the client send one that is.
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
 * Runs the operations of the request in `in`, in order, until one is refused,
 * cannot be done here (f->stop says why) or is cut off.  A frame that stopped
 * goes on where it stopped (done, in_off and out_len are kept) when it is run again.
 */
static __always_inline int operations_run(struct xkv_frame *f)
{
	int outcome;

	for (int i = 0; i < OPERATIONS_MAX; i++) {
		if (f->done >= f->count || f->in_off + sizeof(struct xkv_op) > f->end ||
		    f->out_len + sizeof(struct xkv_result) > f->reply_room)
			break;
		outcome = op_run(f);
		OPAQUE(outcome); /* compilers look into op_run(), the verifier does not */
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

/* A request from its first byte to its reply: enum verdict.  `again`: one that stopped. */
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

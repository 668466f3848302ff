/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Running a request: its header, its operations in order, the header of its reply.  Independent of
 * packets.
 */
#ifndef XKV_REQUEST_BPF_H
#define XKV_REQUEST_BPF_H

#include "hot.bpf.h"
#include "dedup.bpf.h"
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
	case XKV_OP_CHECK:
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

/* Is this an operation that only an ATOMIC datagram may have, or one that none may? */
static __always_inline bool is_misplaced(struct xkv_request *rq, __u8 opcode)
{
	if (!(rq->flags & XKV_REQUEST_ATOMIC))
		return opcode == XKV_OP_CHECK;
	return opcode == XKV_OP_SCAN || !has_key(opcode);
}

/* Do the fields of an operation contradict its opcode or each other? */
static __always_inline bool op_is_bad(const struct xkv_op *op, int known)
{
	__u8 flags = op->flags, opcode = op->opcode;

	if ((flags & ~known) || value_is_wrong(opcode, op->value_len))
		return true;
	if (opcode == XKV_OP_SCAN ? !op->keys || op->keys > XKV_SCAN_MAX : op->keys)
		return true;
	if (op->version && !(flags & XKV_CAS) && opcode != XKV_OP_CHECK)
		return true;
	if (op->ttl && opcode != XKV_OP_SET && opcode != XKV_OP_EXPIRE)
		return true;
	if ((flags & XKV_NX) && (flags & (XKV_XX | XKV_CAS)))
		return true;
	return (flags & XKV_KEEPTTL) && op->ttl;
}

/* Are all but the first `used` bytes of a word zero? */
static __always_inline bool rest_is_clean(__u64 word, __u32 used)
{
	return !(bpf_be64_to_cpu(word) << (used * 8));
}

/*
 * Is a key or value padded with zero bytes?  Keys are compared by words.  The padding of a value is
 * stored and sent along with it, so it must not carry data either.
 */
static __always_inline bool padding_is_clean(struct xkv_request *rq, __u32 off, __u32 len)
{
	return !(len & 7) || rest_is_clean(IN(rq, off + (len & ~7U)), len & 7);
}

/* Does this result end the reply?  The client has to send the rest again, or to correct it. */
static __always_inline bool ends_reply(int outcome)
{
	return outcome >= XKV_C_op_bad_request && outcome <= XKV_C_op_pad;
}

/* A byte of the current key, counted from its end. */
#define KEY_BYTE(rq, before)                                                                       \
	((rq)->in[((rq)->key_off + (rq)->key_len - 1 - (before)) & (XKV_REQUEST_WORDS * 8 - 1)])

static __always_inline bool is_digit(__u8 c)
{
	return c >= '0' && c <= '9';
}

/* Takes the fields of the operation at in_off. */
static __always_inline void op_fields(struct xkv_request *rq, const struct xkv_op *op)
{
	rq->key_off = rq->in_off + sizeof(*op);
	rq->key_len = op->key_len;
	rq->value_off = rq->key_off + XKV_PADDED(rq->key_len);
	rq->value_len = bpf_ntohl(op->value_len);
	rq->next_off = rq->value_off + XKV_PADDED(rq->value_len);
	rq->opcode = op->opcode;
	rq->keep = 0;
	rq->op_flags = op->flags;
	rq->ttl = bpf_be64_to_cpu(op->ttl);
	rq->version = bpf_be64_to_cpu(op->version);
}

/* Only xkvd can name a stored key of XKV_KEY_LONG bytes. */
static __always_inline __u32 key_max(const struct xkv_request *rq)
{
	return rq->flags & XKV_REQUEST_TRUSTED ? XKV_KEY_LONG : XKV_KEY_MAX;
}

/* Parses the current operation.  -1, or the outcome if it is refused, with its result. */
__noinline int op_parse(struct xkv_request *rq)
{
	struct xkv_op *op;
	__u32 room, value_len;
	int known;

	if (!rq)
		return XKV_C_op_bad_request;
	op = (struct xkv_op *)&IN(rq, rq->in_off);
	room = rq->end - rq->in_off - sizeof(*op);
	value_len = bpf_ntohl(op->value_len);
	known = known_flags(op->opcode);
	if (known < 0)
		return answer(rq, op->opcode, XKV_BAD_OPCODE, XKV_C_op_bad_opcode);
	if (has_key(op->opcode) && (!op->key_len || op->key_len > key_max(rq)))
		return answer(rq, op->opcode, XKV_BAD_KEY, XKV_C_op_bad_key);
	op_fields(rq, op);
	if (op_is_bad(op, known) || is_misplaced(rq, op->opcode) ||
	    (!has_key(op->opcode) && op->key_len) || value_len > VALUE_WORDS * 8 ||
	    XKV_PADDED(rq->key_len) + XKV_PADDED(value_len) > room ||
	    !padding_is_clean(rq, rq->key_off, rq->key_len) ||
	    !padding_is_clean(rq, rq->value_off, value_len) || rq->ttl > XKV_TTL_MAX ||
	    (op->keys > 1 && !is_digit(KEY_BYTE(rq, 0))))
		return answer(rq, op->opcode, XKV_BAD_REQUEST, XKV_C_op_bad_request);
	return -1;
}

/* Answers an operation that stopped at its last try. */
static __always_inline int answer_stopped(struct xkv_request *rq, __u8 opcode, int outcome)
{
	switch (outcome) {
	case XKV_C_pass_no_slot:
	case XKV_C_pass_full:
		return answer(rq, opcode, XKV_NO_MEMORY, XKV_C_op_no_memory);
	case XKV_C_pass_too_large:
		if (!rq->keep)
			break;
		/* fall through: an APPEND that xkvd could not complete in all its tries */
	case XKV_C_pass_busy:
		return answer(rq, opcode, XKV_BUSY, XKV_C_op_busy);
	}
	return outcome;
}

#define COUNTED_DIGITS 32

/* Increments the number that the key of a SCAN ends with.  False after 9, 99, ... */
__noinline int next_key(struct xkv_request *rq)
{
	__u8 c;

	if (!rq)
		return false;
	for (__u32 i = 0; i < COUNTED_DIGITS; i++) {
		if (i >= rq->key_len)
			break;
		c = KEY_BYTE(rq, i);
		if (!is_digit(c))
			break;
		KEY_BYTE(rq, i) = c == '9' ? '0' : c + 1;
		if (c != '9')
			return true;
	}
	return false;
}

/*
 * Advances to the next operation.  A SCAN has read one key: it becomes the SCAN of the remaining
 * keys.  A prefilled slot is for one operation only.
 */
static __always_inline void op_end(struct xkv_request *rq)
{
	struct xkv_op *op = (struct xkv_op *)&IN(rq, rq->in_off);

	rq->flags &= ~XKV_REQUEST_PREFILL;
	if (rq->opcode == XKV_OP_SCAN && op->keys > 1 && next_key(rq)) {
		op = (struct xkv_op *)&IN(rq, rq->in_off);
		op->keys--;
		rq->count++;
	} else {
		rq->in_off = rq->next_off;
	}
}

/*
 * Returns the session with a proof for its sender's address.  Stateless: the proof can be computed
 * again from session and address.
 */
static __always_inline int op_session(struct xkv_request *rq)
{
	struct xkv_secrets *s = secrets();
	bool once = ((struct xkv_hdr *)rq->in)->flags & XKV_F_ONCE;
	__u64 drawn = session_of(rq);
	__u32 at;

	if (!s || !once || !(drawn & ~PROOF_MASK))
		return answer(rq, XKV_OP_SESSION, XKV_BAD_REQUEST, XKV_C_op_bad_request);
	put_result(rq, XKV_OP_SESSION, XKV_OK, XKV_HAS_VALUE, XKV_SESSION_BYTES, 0, 0);
	at = rq->out_len - XKV_SESSION_BYTES;
	barrier_var(at); /* the mask has to stay */
	OUT(rq, at) = bpf_cpu_to_be64(session_proven(rq, &s->hash, drawn));
	return XKV_C_sessions;
}

/*
 * What stops the writes of this request, enum xkv_read_only; 0: nothing.  xkvd's own writes
 * (expiry, eviction) are never stopped, and a hold ends when it is not renewed, as xkvd may have
 * been killed.  xkvd executes those whose reply waits for the disk.
 */
static __always_inline __u8 writes_stopped(struct xkv_request *rq)
{
	struct xkv_config *cfg = config();
	__u8 stopped;

	if (!cfg || !cfg->read_only || rq->flags & XKV_REQUEST_TRUSTED)
		return 0;
	stopped = READ_ONCE(cfg->read_only);
	if (rq->flags & XKV_REQUEST_XKVD)
		stopped &= ~XKV_WRITES_DURABLE;
	if (stopped == XKV_WRITES_HELD && bpf_ktime_get_ns() >= cfg->held_until_ns)
		return 0;
	return stopped;
}

/* Does a change need a feature that an upstream does not have? */
static __always_inline bool is_for_store(const struct xkv_request *rq, __u32 opcode)
{
	__u32 flags = XKV_CAS | XKV_RETURN | (opcode == XKV_OP_SET ? 0 : XKV_XX);

	return rq->op_flags & flags;
}

/* Executes the current operation: its outcome. */
static __always_inline int op_do(struct xkv_request *rq, __u32 opcode)
{
	__u8 stopped = XKV_IS_CHANGE(opcode) ? writes_stopped(rq) : 0;

	if (stopped & XKV_WRITES_REFUSED || (stopped & XKV_WRITES_UP && is_for_store(rq, opcode)))
		return answer(rq, opcode, XKV_READ_ONLY, XKV_C_op_read_only);
	if (stopped & XKV_WRITES_UP)
		return XKV_C_pass_upstream;
	if (stopped & XKV_WRITES_DURABLE)
		return XKV_C_pass_durable;
	if (stopped)
		return XKV_C_pass_busy;
	if (has_key(opcode))
		key_fingerprint(rq);
	switch (opcode) {
	case XKV_OP_PING:
		return answer(rq, opcode, XKV_OK, XKV_C_pings);
	case XKV_OP_SESSION:
		return op_session(rq);
	case XKV_OP_SET:
	case XKV_OP_INCR:
	case XKV_OP_APPEND:
		return op_write(rq);
	case XKV_OP_DELETE:
	case XKV_OP_EXPIRE:
		return op_change(rq, opcode);
	}
	return XKV_IS_READ(opcode) ? op_get(rq, opcode)
				   : answer(rq, opcode, XKV_BAD_OPCODE, XKV_C_op_bad_opcode);
}

/* Length of the value in a slot that xkvd has prefilled; the operation itself carries none. */
static __always_inline __u32 prefilled_len(struct xkv_request *rq)
{
	struct xkv_slot *slot = rq->flags & XKV_REQUEST_PREFILL ? slot_at(rq->prefilled) : NULL;

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
static __always_inline void op_used(struct xkv_request *rq, int outcome, __u32 at, __u32 prefilled)
{
	struct xkv_config *cfg = config();
	struct xkv_result *r = (struct xkv_result *)&OUT(rq, at);
	__u32 opcode = rq->opcode, bytes = rq->out_len - at - sizeof(*r);
	bool written = !XKV_IS_READ(opcode);

	if (!cfg || !rq->key_len || !is_done(outcome) ||
	    rq->flags & (XKV_REQUEST_EXPIRED | XKV_REQUEST_EVICT | XKV_REQUEST_RELOCATE) ||
	    !hot_is_due(rq, cfg))
		return;
	if (written)
		bytes = prefilled ? prefilled : rq->value_len;
	else if (outcome == XKV_C_op_too_large)
		bytes = bpf_ntohl(r->value_len);
	hot_note(rq, written, XKV_PADDED(bytes));
}

/* Runs the operation at in_off, whose fixed fields are inside the request, and advances. */
__noinline int op_run(struct xkv_request *rq)
{
	int outcome = op_parse(rq);
	__u32 opcode, at, prefilled;

	if (outcome >= 0 || !rq)
		return outcome;
	opcode = rq->opcode;
	at = rq->out_len;
	prefilled = prefilled_len(rq);
	outcome = op_do(rq, opcode);
	if (STOPS(outcome) && (rq->flags & XKV_REQUEST_LAST))
		outcome = answer_stopped(rq, opcode, outcome);
	else if (STOPS(outcome) && (rq->flags & XKV_REQUEST_BULK))
		outcome = answer(rq, opcode, XKV_BUSY, XKV_C_op_busy);
	if (!STOPS(outcome)) {
		if (rq->flags & XKV_REQUEST_LAST)
			rq->flags &= ~XKV_REQUEST_LAST; /* the next operation has its own tries */
		op_used(rq, outcome, at, prefilled);
		op_end(rq);
	}
	return outcome;
}

/* ---- the datagram -------------------------------------------------------- */

/* XKV_OK, or the status with which the header is refused. */
static __always_inline __u8 header_check(struct xkv_request *rq, struct xkv_hdr *hdr, __u32 *ops)
{
	struct xkv_config *cfg = config();
	struct xkv_secrets *s = secrets();
	__u32 length = bpf_ntohs(hdr->length);
	bool token = hdr->flags & XKV_F_TOKEN, once = hdr->flags & XKV_F_ONCE,
	     atomic = hdr->flags & XKV_F_ATOMIC;
	__u64 *sent = (__u64 *)(hdr + 1);
	struct xkv_rules *rules;
	__u32 db;

	if (hdr->version != XKV_VERSION)
		return XKV_BAD_VERSION;
	*ops = session_off(rq) + (once ? XKV_SESSION_BYTES : 0);
	if ((hdr->flags & ~(XKV_F_TOKEN | XKV_F_ONCE | XKV_F_ATOMIC | XKV_F_DURABLE)) ||
	    !hdr->count || (atomic ? hdr->count > XKV_ATOMIC_MAX : once && hdr->count != 1) ||
	    (once && !IN(rq, session_off(rq))) || (length & 7) ||
	    length < *ops + sizeof(struct xkv_op) || length > rq->req_len)
		return XKV_BAD_REQUEST;
	if (!cfg || (rq->flags & XKV_REQUEST_TRUSTED))
		return XKV_OK;
	if (hdr->db >= cfg->databases)
		return XKV_BAD_REQUEST;
	db = database_of(cfg, hdr->db);
	if (db != rq->db)
		rq->hashed = 0;
	rq->db = db;
	rules = rules_of(cfg, rq->rules);
	if (rules->auth == XKV_AUTH_OPEN)
		return XKV_OK;
	if (rules->auth != XKV_AUTH_TOKEN || !token || !s ||
	    ((sent[0] ^ s->token[rq->rules & 1][0]) | (sent[1] ^ s->token[rq->rules & 1][1])))
		return XKV_NOAUTH;
	return XKV_OK;
}

static __always_inline void reply_header(struct xkv_request *rq, __u8 status)
{
	struct xkv_hdr *in = (struct xkv_hdr *)rq->in, *out = (struct xkv_hdr *)rq->out;

	out->magic = bpf_htons(XKV_MAGIC);
	out->version = XKV_VERSION;
	out->flags = XKV_F_REPLY;
	out->count = rq->done;
	out->status = status;
	out->length = bpf_htons(rq->out_len);
	out->id = in->id;
}

/* A reply that is only a header. */
static __always_inline int refuse(struct xkv_request *rq, __u8 status, int counter)
{
	rq->done = 0;
	rq->out_len = sizeof(struct xkv_hdr);
	reply_header(rq, status);
	count(rq, counter);
	return VERDICT_REPLY;
}

static __always_inline int stop(struct xkv_request *rq, int why, int verdict)
{
	rq->stop = why + 1;
	return verdict;
}

#define GO_ON (-1)

static __always_inline bool is_logged(void)
{
	struct xkv_config *cfg = config();

	return cfg && cfg->logged;
}

/* Checks the header of a new request. */
static __always_inline int request_begin(struct xkv_request *rq)
{
	struct xkv_hdr *hdr = (struct xkv_hdr *)rq->in;
	__u32 ops = 0;
	__u8 status;

	if (rq->req_len < sizeof(*hdr) || hdr->magic != bpf_htons(XKV_MAGIC))
		return stop(rq, XKV_C_pass_not_xkv, VERDICT_PASS);
	if (hdr->flags & XKV_F_REPLY)
		return stop(rq, XKV_C_drop_reply_flag, VERDICT_DROP);
	rq->done = 0;
	rq->out_len = sizeof(*hdr);
	status = header_check(rq, hdr, &ops);
	rq->in_off = ops;
	rq->end = bpf_ntohs(hdr->length);
	rq->count = hdr->count;
	if (hdr->flags & XKV_F_ATOMIC)
		rq->flags |= XKV_REQUEST_ATOMIC;
	if (status == XKV_OK && hdr->flags & XKV_F_DURABLE) {
		if (!is_logged())
			status = XKV_NO_LOG;
		else if (!(rq->flags & XKV_REQUEST_XKVD))
			return stop(rq, XKV_C_pass_durable, VERDICT_PASS);
	}
	if (status == XKV_OK)
		return GO_ON;
	return refuse(rq, status,
		      status == XKV_BAD_VERSION ? XKV_C_error_version
		      : status == XKV_NOAUTH	? XKV_C_error_auth
						: XKV_C_error_request);
}

/*
 * Looks up a change with XKV_F_ONCE in the dedup cache; reads need no record.  Not while replies
 * wait for the disk: the recorded reply may be of a change that is not yet on disk.
 */
static __always_inline int request_dedup(struct xkv_request *rq, bool change)
{
	if (!(((struct xkv_hdr *)rq->in)->flags & XKV_F_ONCE) || !change)
		return GO_ON;
	if (writes_stopped(rq) & XKV_WRITES_DURABLE)
		return stop(rq, XKV_C_pass_durable, VERDICT_PASS);
	switch (dedup_begin(rq)) {
	case DEDUP_NEW:
		return GO_ON;
	case DEDUP_REPEATED:
		count(rq, XKV_C_once_repeated);
		return VERDICT_REPLY;
	case DEDUP_UNKEPT:
		return refuse(rq, XKV_REPEATED, XKV_C_once_repeated);
	case DEDUP_FULL:
		return refuse(rq, XKV_NO_SESSION, XKV_C_error_once);
	}
	return stop(rq, XKV_C_drop_repeated, VERDICT_DROP);
}

/*
 * The packet cannot be made long enough for the reply to a single GET: asks the client to pad its
 * request.
 */
static __always_inline void ask_for_padding(struct xkv_request *rq)
{
	__u32 need = rq->out_len;

	rq->out_len = sizeof(struct xkv_hdr);
	put_result(rq, rq->opcode, XKV_PAD, 0, need, 0, 0);
	rq->done = 1;
	reply_header(rq, rq->flags & XKV_REQUEST_ATOMIC ? XKV_ABORTED : XKV_OK);
	count(rq, XKV_C_op_pad);
}

/*
 * Runs the operations in order, until one is refused, cannot be done here (rq->stop says why), or
 * is cut off.  Run again, a request continues where it stopped (done, in_off and out_len are kept).
 */
static __always_inline int operations_run(struct xkv_request *rq)
{
	int outcome;

	for (int i = 0; i < OPERATIONS_MAX; i++) {
		if (rq->done >= rq->count || rq->in_off + sizeof(struct xkv_op) > rq->end ||
		    rq->out_len + sizeof(struct xkv_result) > rq->reply_room)
			break;
		outcome = op_run(rq);
		/* the compiler knows the range of op_run(), the verifier does not */
		barrier_var(outcome);
		if (STOPS(outcome)) {
			rq->stop = outcome + 1;
			if (!rq->done)
				return VERDICT_PASS;
			break;
		}
		count(rq, outcome);
		rq->done++;
		if (ends_reply(outcome)) {
			rq->count = rq->done;
			break;
		}
	}
	reply_header(rq, XKV_OK);
	return VERDICT_REPLY;
}

/* Updates the record of a request that was run. */
static __always_inline int dedup_end_of(const struct xkv_request *rq, int verdict)
{
	if (verdict == VERDICT_REPLY)
		return DEDUP_DONE;
	return rq->flags & XKV_REQUEST_XKVD && rq->stop == XKV_C_pass_upstream + 1 ? DEDUP_OPEN
										   : DEDUP_UNDONE;
}

/* Records a reply.  VERDICT_PASS: another copy was in the way. */
static __always_inline int record_answer(struct xkv_request *rq)
{
	if (dedup_begin(rq) != DEDUP_NEW)
		return VERDICT_PASS;
	dedup_end(rq, DEDUP_DONE);
	return VERDICT_DROP;
}

__noinline int atomic_run(struct xkv_request *rq); /* atomic.bpf.h */

/* Runs a request: enum verdict.  `again`: continues one that stopped. */
__noinline int request_run(struct xkv_request *rq, int again)
{
	int verdict = GO_ON;

	if (!rq)
		return VERDICT_DROP;
	rq->now_ms = 0;
	rq->dedup = 0;
	rq->stop = 0;
	if (rq->flags & XKV_REQUEST_ANSWER)
		return record_answer(rq);
	if (!again)
		verdict = request_begin(rq);
	if (verdict == GO_ON && rq->flags & XKV_REQUEST_ATOMIC)
		return atomic_run(rq);
	if (verdict == GO_ON)
		verdict = request_dedup(
			rq, XKV_IS_CHANGE(((struct xkv_op *)&IN(rq, rq->in_off))->opcode));
	if (verdict != GO_ON)
		return verdict;
	verdict = operations_run(rq);
	if (rq->dedup)
		dedup_end(rq, dedup_end_of(rq, verdict));
	return verdict;
}

#endif

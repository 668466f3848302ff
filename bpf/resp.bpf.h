/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * RESP in the driver: the commands of a segment become operations of the engine, their results
 * replies.  First all commands are parsed, so that a segment with an unknown one has changed
 * nothing when it is passed up; then they are executed one by one.
 */
#ifndef XKV_RESP_BPF_H
#define XKV_RESP_BPF_H

#include "atomic.bpf.h"
#include "tcp.h"

#define RESP_COMMANDS_MAX 64 /* in a segment; a power of two */
#define RESP_WORDS_MAX	  16 /* of a command; a power of two */
#define RESP_DIGITS	  4  /* of a length; no segment has more bytes */
#define RESP_NAME_MAX	  9
#define RESP_OP		  sizeof(struct xkv_hdr) /* where the operation is in `in` */
#define RESP_RESULT	  sizeof(struct xkv_hdr) /* where its result is in `out` */
#define RESP_VALUE	  (RESP_RESULT + sizeof(struct xkv_result))
#define RESP_BULK_FRAME	  9  /* $1439\r\n, \r\n */
#define RESP_SMALL_REPLY  56 /* no reply without a value is longer */
#define RESP_ARRAY_LINE	  8  /* *15\r\n, a multiple of 8 */

enum resp_number {
	RESP_NONE,
	RESP_PLUS_ONE,
	RESP_MINUS_ONE,
	RESP_AMOUNT,
	RESP_MINUS_AMOUNT,
	RESP_SECONDS,
	RESP_MILLISECONDS,
};

enum resp_reply {
	RESP_VALUE_REPLY, /* or null */
	RESP_VALUES_REPLY,
	RESP_OK_REPLY, /* or null */
	RESP_YES_NO_REPLY,
	RESP_NUMBER_REPLY,
	RESP_LENGTH_REPLY,
	RESP_SECONDS_LEFT_REPLY,
	RESP_MILLISECONDS_LEFT_REPLY,
	RESP_PONG_REPLY,
};

/* Conditions of EXPIRE, among the flags of a command; operations do not have these. */
#define RESP_GT		0x40
#define RESP_LT		0x80
#define RESP_CONDITIONS (XKV_NX | XKV_XX | RESP_GT | RESP_LT)

/* Options that are not flags; further keys. */
#define RESP_PERSIST 0x100
#define RESP_TIMED   0x200
#define RESP_KEYS    0x400

#define RESP_TIMES	    (RESP_TIMED | XKV_ABSTTL)
#define RESP_NO_OPTIONS	    0
#define RESP_SET_OPTIONS    (XKV_NX | XKV_XX | XKV_RETURN | XKV_KEEPTTL | RESP_TIMES)
#define RESP_GETEX_OPTIONS  (RESP_PERSIST | RESP_TIMES)
#define RESP_EXPIRE_OPTIONS RESP_CONDITIONS
#define RESP_KEYS_OPTIONS   RESP_KEYS

/* A row of XKV_TCP_COMMANDS. */
struct resp_row {
	__u16 options;
	__u8 words, opcode, flags, number, reply;
	__u8 ninth; /* letter of the name, 0 = it has no more than eight */
};

#define RESP_LETTER(name, i) ((__u64)(sizeof(name) > (i) + 1 ? (name)[i] : 0))
#define RESP_BYTE(name, i)   (RESP_LETTER(name, i) << (8 * (i)))
#define RESP_NAME(name)                                                                            \
	(RESP_BYTE(name, 0) | RESP_BYTE(name, 1) | RESP_BYTE(name, 2) | RESP_BYTE(name, 3) |       \
	 RESP_BYTE(name, 4) | RESP_BYTE(name, 5) | RESP_BYTE(name, 6) | RESP_BYTE(name, 7))

#define RESP_ROW(name, words, opcode, flags, number, reply, options)                               \
	{ RESP_##options##_OPTIONS,                                                                \
	  words,                                                                                   \
	  XKV_OP_##opcode,                                                                         \
	  flags,                                                                                   \
	  RESP_##number,                                                                           \
	  RESP_##reply##_REPLY,                                                                    \
	  RESP_LETTER(#name, 8) },
static const struct resp_row resp_rows[] = { XKV_TCP_COMMANDS(RESP_ROW) };

/* A command, with the places of its words in the text. */
struct resp_command {
	__u64 number; /* amount, or milliseconds */
	__u16 key, key_len, value, value_len;
	__u16 begin, end; /* of the command */
	__u8 keys;	  /* of an ATOMIC datagram; 0: it is one operation */
	__u8 command;
	__u8 flags; /* of the operation, and conditions */
	__u8 opcode, reply;
	__u8 outcome; /* when it was executed: enum xkv_counter */
	__u8 extra;   /* operations beyond one */
	__u8 failed;  /* the reply is an error */
};

/* The commands of a segment. */
struct resp {
	__u32 len;   /* bytes of the text */
	__u32 count; /* commands */
	__u32 which; /* bits by enum xkv_tcp_command */
	__u8 changes, unbounded;
	__u8 resp3, no_touch;
	__u8 db;
	__u8 zero[3];
	__u32 most;  /* bytes of a pipeline that is not tried */
	__u32 room;  /* bytes that the replies may have */
	__u32 done;  /* commands that were executed */
	__u32 why;   /* the next one was not: enum xkv_tcp_counter */
	__u32 words; /* of the command that is being parsed */
	__u16 at[RESP_WORDS_MAX], word_len[RESP_WORDS_MAX];
	__u64 number;
	struct resp_command command[RESP_COMMANDS_MAX];
	/* followed by eight zeros at least; the last words absorb overruns */
	__u64 text[XKV_REQUEST_WORDS + 3];
};

#define TEXT_MASK	(XKV_REQUEST_WORDS * 8 - 1)
#define TEXT(r, i)	(((__u8 *)(r)->text)[(i)&TEXT_MASK])
#define OUT_BYTE(rq, i) ((rq)->out[(i)&TEXT_MASK])

/* Eight bytes from any place on, the first one lowest. */
static __always_inline __u64 word_at(const void *bytes, __u32 at)
{
	const __u64 *word;

	barrier_var(at);
	word = bytes + (at & TEXT_MASK);
	barrier_var(word); /* else it is loaded byte by byte */
	return LE64(*word);
}

/* The lowest `len` bytes of a word. */
static __always_inline __u64 low_bytes(__u64 word, __u32 len)
{
	return len < 8 ? word & ((1ULL << (len * 8)) - 1) : word;
}

/* ---- parsing ---------------------------------------------------------------- */

/*
 * A line of `type` and a length: the length << 16 | where the next line begins.  -1: something else
 * is there.
 */
__noinline int resp_length(struct resp *r, __u32 at, __u32 type)
{
	__u32 n = 0, digits = 0;
	__u8 c;

	if (!r || TEXT(r, at) != type)
		return -1;
	for (; digits < RESP_DIGITS; digits++) {
		c = TEXT(r, at + 1 + digits);
		if (!is_digit(c))
			break;
		n = n * 10 + c - '0';
	}
	if (!digits || (digits > 1 && TEXT(r, at + 1) == '0'))
		return -1;
	at += 1 + digits;
	if (TEXT(r, at) != '\r' || TEXT(r, at + 1) != '\n')
		return -1;
	return n << 16 | ((at + 2) & 0xffff);
}

/* Splits the command at `at` into words: where it ends, or -1. */
__noinline int resp_split(struct resp *r, __u32 at)
{
	__u32 count;
	int line;

	if (!r)
		return -1;
	line = resp_length(r, at, '*');
	if (line < 0)
		return -1;
	count = line >> 16;
	at = line & 0xffff;
	if (!count || count > RESP_WORDS_MAX)
		return -1;
	for (__u32 i = 0; i < RESP_WORDS_MAX; i++) {
		if (i >= count)
			break;
		line = resp_length(r, at, '$');
		if (line < 0)
			return -1;
		r->at[i] = line & 0xffff;
		r->word_len[i] = line >> 16;
		at = (line & 0xffff) + (line >> 16);
		if (at + 2 > r->len || TEXT(r, at) != '\r' || TEXT(r, at + 1) != '\n')
			return -1;
		at += 2;
	}
	r->words = count;
	return at;
}

#define UPPERCASE 0xdfdfdfdfdfdfdfdfULL

/*
 * The first eight letters of a word, as RESP_NAME() has them.  0: it has none, or is too long.  A
 * blank or a zero byte at its end would look like the padding of a shorter name.
 */
static __always_inline __u64 resp_word(struct resp *r, __u32 which)
{
	__u32 at = r->at[which], len = r->word_len[which];

	if (!len || len > RESP_NAME_MAX || !(TEXT(r, at + len - 1) & 0x40))
		return 0;
	return low_bytes(word_at(r->text, at), len) & UPPERCASE;
}

/* The command of the first word, enum xkv_tcp_command, or -1. */
static __always_inline int resp_find(struct resp *r)
{
	__u64 name = resp_word(r, 0);
	int found = -1;
	__u8 ninth;

#define RESP_CASE(command, ...)                                                                    \
	case RESP_NAME(#command):                                                                  \
		found = XKV_TCP_##command;                                                         \
		break;
	switch (name) {
		XKV_TCP_COMMANDS(RESP_CASE)
	}
	if (found < 0 || found >= XKV_TCP_COMMAND_COUNT)
		return -1;
	ninth = r->word_len[0] > 8 ? TEXT(r, r->at[0] + 8) & 0xdf : 0;
	return ninth == resp_rows[found].ninth ? found : -1;
}

/* Reads a word that has to be a number, as r->number.  -1: it is not. */
__noinline int resp_number(struct resp *r, __u32 which)
{
	__u32 at;

	if (!r || which >= RESP_WORDS_MAX)
		return -1;
	at = r->at[which];
	return number_from(word_at(r->text, at), word_at(r->text, at + 8),
			   word_at(r->text, at + 16), r->word_len[which], &r->number);
}

/*
 * A time, in milliseconds, as r->number.  -1: not a valid time, or so long that xkvd limits what it
 * ends at.
 */
static __always_inline int resp_time(struct resp *r, __u32 which, bool seconds)
{
	__u64 unit = seconds ? 1000 : 1;

	if (resp_number(r, which) || (__s64)r->number <= 0 || r->number > XKV_TTL_MAX / 2 / unit)
		return -1;
	r->number *= unit;
	return 0;
}

/* The meaning of the third word, or of the command's name. */
static __always_inline int resp_amount(struct resp *r, struct resp_command *c, __u32 number)
{
	int ret = 0;

	switch (number) {
	case RESP_SECONDS:
	case RESP_MILLISECONDS:
		ret = resp_time(r, 2, number == RESP_SECONDS);
		break;
	case RESP_AMOUNT:
	case RESP_MINUS_AMOUNT:
		ret = resp_number(r, 2);
		break;
	default:
		r->number = number == RESP_PLUS_ONE || number == RESP_MINUS_ONE;
	}
	if (number == RESP_MINUS_AMOUNT && r->number == 1ULL << 63)
		return -1;
	c->number = r->number;
	if (number == RESP_MINUS_AMOUNT || number == RESP_MINUS_ONE)
		c->number = -c->number;
	return ret;
}

/* The flag for an option, except times.  0: not an option. */
static __always_inline __u32 resp_flag(__u64 option)
{
	switch (option) {
	case RESP_NAME("NX"):
		return XKV_NX;
	case RESP_NAME("XX"):
		return XKV_XX;
	case RESP_NAME("GT"):
		return RESP_GT;
	case RESP_NAME("LT"):
		return RESP_LT;
	case RESP_NAME("GET"):
		return XKV_RETURN;
	case RESP_NAME("KEEPTTL"):
		return XKV_KEEPTTL;
	case RESP_NAME("PERSIST"):
		return RESP_PERSIST;
	case RESP_NAME("EX"):
	case RESP_NAME("PX"):
		return RESP_TIMED;
	case RESP_NAME("EXAT"):
	case RESP_NAME("PXAT"):
		return RESP_TIMES;
	}
	return 0;
}

/*
 * The flags for an option; if the next word is its time, as r->number.  0: not an option, or the
 * time is not valid.  A function of its own: the verifier would go through what follows once for
 * each option.
 */
__noinline __u32 resp_option(struct resp *r, __u32 which)
{
	__u64 option;
	__u32 flags;

	if (!r || which >= RESP_WORDS_MAX ||
	    r->word_len[which] > 8) /* else it is longer than all */
		return 0;
	option = resp_word(r, which);
	flags = resp_flag(option);
	if (flags & RESP_TIMED &&
	    (which + 1 >= r->words || resp_time(r, which + 1, (option & 0xff) == 'E')))
		return 0;
	return flags;
}

/* The options from the word `first` on: their flags, or -1: xkvd replies, if they make no sense. */
__noinline int resp_options(struct resp *r, __u32 first)
{
	__u32 flags = 0, flag = 0;

	if (!r)
		return -1;
	for (__u32 i = 2; i < RESP_WORDS_MAX; i++) {
		if (i >= r->words)
			break;
		if (i < first)
			continue;
		if (flag & RESP_TIMED) {
			flag = 0; /* this word is the time */
			continue;
		}
		flag = resp_option(r, i);
		if (!flag || flag & flags & RESP_TIMED)
			return -1;
		flags |= flag;
	}
	return flags;
}

/* Do options contradict each other? */
static __always_inline bool resp_contradict(__u32 flags, bool expire)
{
	if (flags & RESP_TIMED && flags & (XKV_KEEPTTL | RESP_PERSIST))
		return true;
	if (flags & XKV_NX && flags & (XKV_XX | (expire ? RESP_CONDITIONS & ~XKV_NX : 0)))
		return true;
	return flags & RESP_GT && flags & RESP_LT;
}

/*
 * Applies options to a command.  GETEX is an EXPIRE that returns the value; with PERSIST it does
 * nothing if there is no expiry.
 */
static __always_inline int resp_apply(struct resp *r, struct resp_command *c,
				      const struct resp_row *row)
{
	int flags = resp_options(r, row->words);

	if (flags < 0 || flags & ~row->options ||
	    resp_contradict(flags, c->opcode == XKV_OP_EXPIRE))
		return -1;
	c->flags |= flags & 0xff;
	if (flags & RESP_TIMED)
		c->number = r->number;
	if (flags & XKV_RETURN)
		c->reply = RESP_VALUE_REPLY;
	if (c->opcode == XKV_OP_GET)
		c->opcode = XKV_OP_EXPIRE;
	if (flags & RESP_PERSIST)
		c->flags |= XKV_XX;
	return 0;
}

/* Its key and its value.  -1: the store has no such key here. */
static __always_inline int resp_places(struct resp *r, struct resp_command *c, __u32 words)
{
	__u32 last = (words - 1) & (RESP_WORDS_MAX - 1);

	c->key = c->key_len = c->value = c->value_len = 0;
	if (words < 2)
		return 0;
	c->key = r->at[1];
	c->key_len = r->word_len[1];
	if (c->opcode == XKV_OP_SET || c->opcode == XKV_OP_APPEND) {
		c->value = r->at[last];
		c->value_len = r->word_len[last];
	}
	return c->key_len && c->key_len <= XKV_KEY_MAX ? 0 : -1;
}

/*
 * Notes how many keys a command has, whose places are found again when it is executed.  -1: the
 * store has no such keys here, or there is no room for their operations.
 */
__noinline int resp_keys(struct resp *r)
{
	__u32 size = RESP_OP, len;

	if (!r)
		return -1;
	for (__u32 i = 1; i < RESP_WORDS_MAX; i++) {
		if (i >= r->words)
			break;
		len = r->word_len[i];
		if (!len || len > XKV_KEY_MAX)
			return -1;
		size += sizeof(struct xkv_op) + XKV_PADDED(len);
	}
	return size <= XKV_REQUEST_BYTES ? 0 : -1;
}

/* The words after the command's minimum: keys, or options. */
static __always_inline int resp_more(struct resp *r, struct resp_command *c,
				     const struct resp_row *row)
{
	bool more = r->words > row->words;

	c->keys = 0;
	if (!(row->options & RESP_KEYS))
		return more ? resp_apply(r, c, row) : 0;
	if (!more && c->reply != RESP_VALUES_REPLY)
		return 0;
	c->keys = r->words - 1;
	return resp_keys(r);
}

/* Parses the command at `at`: where it ends, or -1. */
__noinline int resp_parse(struct resp *r, __u32 at)
{
	const struct resp_row *row;
	struct resp_command *c;
	int end, command;

	if (!r)
		return -1;
	end = resp_split(r, at);
	command = end < 0 ? -1 : resp_find(r);
	if (command < 0 || command >= XKV_TCP_COMMAND_COUNT)
		return -1;
	row = &resp_rows[command];
	c = &r->command[r->count & (RESP_COMMANDS_MAX - 1)];
	c->command = command;
	c->opcode = row->opcode;
	c->flags = row->flags;
	c->reply = row->reply;
	c->begin = at;
	c->end = end;
	if (r->words < row->words || (r->words > row->words && !row->options) ||
	    resp_places(r, c, row->words) || resp_amount(r, c, row->number) || resp_more(r, c, row))
		return -1;
	r->which |= 1U << command;
	r->changes |= XKV_IS_CHANGE(c->opcode);
	r->unbounded |= c->reply == RESP_VALUE_REPLY || c->reply == RESP_VALUES_REPLY ||
			c->opcode == XKV_OP_APPEND;
	return end;
}

/*
 * Parses all of the text: false unless it consists of whole, known commands.  A segment that
 * changes something may only have commands whose replies are certain to fit, else the first ones
 * might be answered and a later one not.
 */
static __always_inline bool resp_parse_all(struct resp *r)
{
	__u32 at = 0;
	int end;

	r->count = r->which = 0;
	r->changes = r->unbounded = 0;
	for (__u32 i = 0; i < RESP_COMMANDS_MAX; i++) {
		end = resp_parse(r, at);
		if (end < 0)
			return false;
		r->count++;
		at = end;
		if (!i && at < r->len && r->len >= r->most)
			return false;
		if (at == r->len)
			return r->count == 1 || !r->changes || !r->unbounded;
	}
	return false;
}

/* ---- executing -------------------------------------------------------------- */

/* Copies bytes of the text to `in`, padded with zeros; returns where they end there. */
__noinline int resp_copy(struct resp *r, struct xkv_request *rq, __u32 to, __u32 from, __u32 len)
{
	if (!rq || !r)
		return 0;
	for (__u32 i = 0; i < XKV_REQUEST_BYTES; i += 8) {
		if (i >= len)
			break;
		IN(rq, to + i) = LE64(word_at(r->text, from + i));
	}
	if (len & 7)
		IN(rq, to + len) = LE64(low_bytes(LE64(IN(rq, to + len)), len & 7));
	return to + XKV_PADDED(len);
}

/* Makes the operation of a command. */
static __always_inline void resp_operation(struct resp *r, struct xkv_request *rq,
					   const struct resp_command *c)
{
	struct xkv_op *op = (struct xkv_op *)&rq->in[RESP_OP];
	__u32 value_len = c->value_len, end = RESP_OP + sizeof(*op);
	bool timed = c->opcode == XKV_OP_SET || c->opcode == XKV_OP_EXPIRE;

	rq->in_word[0] = rq->in_word[1] = 0;
	op->opcode = c->opcode;
	op->flags = c->opcode == XKV_OP_EXPIRE ? c->flags & XKV_ABSTTL : c->flags;
	op->key_len = c->key_len;
	op->keys = 0;
	op->ttl = timed ? bpf_cpu_to_be64(c->number) : 0;
	op->version = 0;
	if (c->key_len)
		end = resp_copy(r, rq, end, c->key, c->key_len);
	if (c->value_len)
		end = resp_copy(r, rq, end, c->value, c->value_len);
	if (c->opcode == XKV_OP_INCR) {
		value_len = sizeof(__u64);
		IN(rq, end) = bpf_cpu_to_be64(c->number);
		end += sizeof(__u64);
	}
	op->value_len = bpf_htonl(value_len);
	rq->end = rq->req_len = end;
}

/* Prepares the request for `count` operations in `in`, whose results may have `room` bytes. */
static __always_inline bool resp_prepare(struct resp *r, struct xkv_request *rq, __u32 count,
					 __u32 room)
{
	struct xkv_config *cfg = config();

	if (!cfg)
		return false;
	rq->flags = XKV_REQUEST_BULK | (r->no_touch ? XKV_REQUEST_NO_TOUCH : 0);
	rq->db = database_of(cfg, r->db);
	rq->reply_room = rq->reply_max = rq->reply_allowed = room;
	rq->in_off = RESP_OP;
	rq->out_len = RESP_RESULT;
	rq->done = 0;
	rq->count = count;
	rq->stop = 0;
	rq->hashed = 0;
	rq->dedup = 0;
	return true;
}

/* Executes the operation in `in`, whose reply may have `room` bytes: its outcome. */
static __always_inline int resp_run(struct resp *r, struct xkv_request *rq, __u32 room)
{
	room = room < XKV_TCP_REPLY_MAX ? room : XKV_TCP_REPLY_MAX;
	if (!resp_prepare(r, rq, 1, RESP_VALUE + ((room - RESP_BULK_FRAME) & ~7U)))
		return -1;
	return op_run(rq);
}

static __always_inline struct xkv_result *resp_result(struct xkv_request *rq)
{
	return (struct xkv_result *)&rq->out[RESP_RESULT];
}

/*
 * Is a time of EXPIREAT over?  Redis deletes the key then.  (Time goes on meanwhile, too: an entry
 * that is given such a time is one that has expired.)
 */
static __always_inline bool resp_is_past(struct xkv_request *rq, const struct resp_command *c)
{
	return c->flags & XKV_ABSTTL && c->number <= now_ms(rq);
}

/* The operation that an EXPIRE has to read its key with before, or 0. */
static __always_inline __u8 resp_reads(const struct resp *r, const struct resp_command *c)
{
	if (c->opcode != XKV_OP_EXPIRE)
		return 0;
	if (c->reply == RESP_VALUE_REPLY)
		return XKV_OP_GET;
	if (c->flags & RESP_CONDITIONS)
		return r->no_touch ? XKV_OP_TTL : XKV_OP_TOUCH;
	return 0;
}

/* Do the conditions of an EXPIRE hold for a key that has so many milliseconds left, 0 = no end? */
static __always_inline bool resp_holds(struct xkv_request *rq, const struct resp_command *c,
				       __u64 left)
{
	__u64 wanted = c->flags & XKV_ABSTTL ? c->number - now_ms(rq) : c->number;

	if (c->flags & (left ? XKV_NX : XKV_XX | RESP_GT))
		return false;
	if (c->flags & RESP_GT && wanted <= left)
		return false;
	return !(c->flags & RESP_LT && left && wanted >= left);
}

/*
 * Executes an EXPIRE that depends on the entry, or returns its value: reads the entry first, and
 * sets the expiry if it is unchanged.
 */
static __always_inline int resp_update(struct resp *r, struct xkv_request *rq,
				       struct resp_command *c, __u8 reads, __u32 room)
{
	struct xkv_op *op = (struct xkv_op *)&rq->in[RESP_OP];
	struct xkv_result *found = resp_result(rq);
	__u64 ttl = op->ttl;
	__be32 value_len;
	__u8 flags;
	int outcome;

	op->opcode = reads;
	op->flags = 0;
	op->ttl = 0;
	outcome = resp_run(r, rq, room);
	if (outcome < 0 || found->status != XKV_OK)
		return outcome;
	if (!resp_holds(rq, c, bpf_be64_to_cpu(found->ttl))) {
		found->status = reads == XKV_OP_GET ? XKV_OK : XKV_NOT_STORED;
		return outcome;
	}
	value_len = found->value_len;
	flags = found->flags;
	op->opcode = XKV_OP_EXPIRE;
	op->flags = XKV_CAS | (c->flags & XKV_ABSTTL);
	op->ttl = ttl;
	op->version = found->version;
	outcome = resp_run(r, rq, RESP_SMALL_REPLY);
	if (outcome < 0 || found->status != XKV_OK)
		return -1;	      /* it has changed in between */
	found->value_len = value_len; /* which is where it was */
	found->flags = flags;
	count(rq, XKV_C_get_hits);
	c->extra = 1;
	return outcome;
}

/* Executes a command: its outcome, or -1. */
static __always_inline int resp_execute(struct resp *r, struct xkv_request *rq,
					struct resp_command *c, __u32 room)
{
	__u8 reads = resp_reads(r, c);

	rq->now_ms = 0;
	if (resp_is_past(rq, c))
		return -1;
	resp_operation(r, rq, c);
	return reads ? resp_update(r, rq, c, reads, room) : resp_run(r, rq, room);
}

/* Makes an operation of each key of a command, whose words have been looked at before: 0. */
__noinline int resp_operations(struct resp *r, struct xkv_request *rq, __u32 which)
{
	struct resp_command *c;
	__u32 end = RESP_OP;

	if (!r || !rq)
		return -1;
	c = &r->command[which & (RESP_COMMANDS_MAX - 1)];
	if (resp_split(r, c->begin) < 0)
		return -1;
	rq->in_word[0] = rq->in_word[1] = 0;
	for (__u32 i = 1; i < RESP_WORDS_MAX; i++) {
		if (i > c->keys)
			break;
		IN(rq, end) = bpf_cpu_to_be64((__u64)c->opcode << 56 | (__u64)r->word_len[i] << 40);
		IN(rq, end + 8) = IN(rq, end + 16) = 0;
		end = resp_copy(r, rq, end + sizeof(struct xkv_op), r->at[i], r->word_len[i]);
	}
	rq->end = rq->req_len = end;
	return 0;
}

/*
 * Executes a command about several keys as an ATOMIC datagram, whose results may have `room` bytes:
 * its outcome, or -1.  XKV_C_atomic_done: each result is OK or a miss, and all is counted.
 */
static __always_inline int resp_execute_many(struct resp *r, struct xkv_request *rq, __u32 which,
					     __u32 room)
{
	struct resp_command *c = &r->command[which & (RESP_COMMANDS_MAX - 1)];
	int outcome;

	/* a GET among several always counts as a use of its key */
	if ((r->no_touch && c->opcode == XKV_OP_GET) || resp_operations(r, rq, which) ||
	    !resp_prepare(r, rq, c->keys, room))
		return -1;
	rq->flags |= XKV_REQUEST_ATOMIC;
	rq->now_ms = 0;
	outcome = atomic_begin(rq);
	barrier_var(outcome);
	if (outcome == XKV_TXN_DONE)
		outcome = atomic_tries(rq);
	if (outcome == XKV_C_op_too_large)
		return outcome;
	return outcome == XKV_TXN_DONE ? XKV_C_atomic_done : -1;
}

/* ---- the reply -------------------------------------------------------------- */

#define RESP_TEXT(from, len) ((from) << 16 | (len)) /* where a reply is in `out` */

/* Writes a number with its line's type and end, in front of `end`; returns where it begins. */
static __always_inline __u32 put_line(struct xkv_request *rq, __u32 end, __u8 type, __u64 n,
				      bool minus)
{
	OUT_BYTE(rq, --end) = '\n';
	OUT_BYTE(rq, --end) = '\r';
	for (int i = 0; i < DIGITS_MAX; i++) {
		OUT_BYTE(rq, --end) = '0' + n % 10;
		n /= 10;
		if (!n)
			break;
	}
	if (minus)
		OUT_BYTE(rq, --end) = '-';
	OUT_BYTE(rq, --end) = type;
	return end;
}

static __always_inline int put_integer(struct xkv_request *rq, __s64 n)
{
	__u32 from = put_line(rq, RESP_VALUE, ':', n < 0 ? -(__u64)n : (__u64)n, n < 0);

	return RESP_TEXT(from, RESP_VALUE - from);
}

#define PUT_SHORT(rq, text)                                                                        \
	({                                                                                         \
		(rq)->out_word[0] = LE64(RESP_NAME(text));                                         \
		RESP_TEXT(0, sizeof(text) - 1);                                                    \
	})

static __always_inline int put_null(struct xkv_request *rq, bool resp3)
{
	return resp3 ? PUT_SHORT(rq, "_\r\n") : PUT_SHORT(rq, "$-1\r\n");
}

static __always_inline int put_yes_no(struct xkv_request *rq, bool yes)
{
	return yes ? PUT_SHORT(rq, ":1\r\n") : PUT_SHORT(rq, ":0\r\n");
}

#define RESP_ERROR_WORDS 6

struct resp_error {
	union {
		char text[RESP_ERROR_WORDS * 8];
		__u64 word[RESP_ERROR_WORDS];
	};
};

static const struct resp_error resp_not_number = {
	.text = "-ERR value is not an integer or out of range\r\n"
};
static const struct resp_error resp_overflow = {
	.text = "-ERR increment or decrement would overflow\r\n"
};

static __always_inline int put_error(struct xkv_request *rq, const struct resp_error *e, __u32 len)
{
	for (int i = 0; i < RESP_ERROR_WORDS; i++)
		rq->out_word[i] = e->word[i];
	return RESP_TEXT(0, len);
}

static __always_inline int put_value(struct xkv_request *rq, const struct xkv_result *r, bool resp3)
{
	__u32 len = bpf_ntohl(r->value_len), from;

	if (!(r->flags & XKV_HAS_VALUE))
		return put_null(rq, resp3);
	if (len > XKV_TCP_REPLY_MAX - RESP_BULK_FRAME)
		return -1;
	from = put_line(rq, RESP_VALUE, '$', len, false);
	OUT_BYTE(rq, RESP_VALUE + len) = '\r';
	OUT_BYTE(rq, RESP_VALUE + len + 1) = '\n';
	return RESP_TEXT(from, RESP_VALUE + len + 2 - from);
}

/* What INCR and APPEND reply. */
static __always_inline int encode_number(struct xkv_request *rq, struct resp_command *c,
					 __u8 status)
{
	c->failed = status != XKV_OK;
	if (status == XKV_OK)
		return put_integer(rq, bpf_be64_to_cpu(OUT(rq, RESP_VALUE)));
	if (status == XKV_NOT_NUMBER)
		return put_error(rq, &resp_not_number, 46);
	if (status == XKV_OVERFLOW)
		return put_error(rq, &resp_overflow, 44);
	return -1;
}

/* The remaining time, -1 without expiry, -2 if there is no key. */
static __always_inline int encode_left(struct xkv_request *rq, const struct xkv_result *r,
				       __u32 unit)
{
	__u64 left = bpf_be64_to_cpu(r->ttl);

	if (r->status != XKV_OK && r->status != XKV_MISS)
		return -1;
	return put_integer(rq, r->status == XKV_MISS ? -2
			       : left		     ? (__s64)((left + unit / 2) / unit)
						     : -1);
}

/*
 * Replies with the result: RESP_TEXT(); what lies behind it is garbage.  -1: xkvd has to execute
 * the command, nothing was changed.
 */
__noinline int resp_encode(struct xkv_request *rq, struct resp_command *c, __u32 resp3)
{
	struct xkv_result *r;
	bool done, refused;

	if (!rq || !c)
		return -1;
	r = resp_result(rq);
	done = r->status == XKV_OK;
	refused = r->status == XKV_MISS || r->status == XKV_NOT_STORED;
	switch (c->reply) {
	case RESP_NUMBER_REPLY:
		return encode_number(rq, c, r->status);
	case RESP_SECONDS_LEFT_REPLY:
		return encode_left(rq, r, 1000);
	case RESP_MILLISECONDS_LEFT_REPLY:
		return encode_left(rq, r, 1);
	case RESP_LENGTH_REPLY:
		if (done || refused ||
		    (r->status == XKV_TOO_LARGE && bpf_ntohl(r->value_len) != XKV_VALUE_HUGE))
			return put_integer(rq, bpf_ntohl(r->value_len));
		return -1;
	}
	if (!done && !refused)
		return -1;
	switch (c->reply) {
	case RESP_VALUE_REPLY:
		return put_value(rq, r, resp3);
	case RESP_OK_REPLY:
		return done ? PUT_SHORT(rq, "+OK\r\n") : put_null(rq, resp3);
	case RESP_YES_NO_REPLY:
		return put_yes_no(rq, done);
	case RESP_PONG_REPLY:
		return PUT_SHORT(rq, "+PONG\r\n");
	}
	return -1;
}

/* Writes two bytes in front of `end`: where they begin. */
static __always_inline __u32 put_two(struct xkv_request *rq, __u32 end, __u8 first, __u8 second)
{
	OUT_BYTE(rq, end - 1) = second;
	OUT_BYTE(rq, end - 2) = first;
	return end - 2;
}

/*
 * What RESP makes of one of several results, whose value is at `value`: RESP_TEXT().  The line of
 * its length takes the place of the result's header, after the end of the value before, if that is
 * `open`, and the line of the array, if this is the first of `keys` results.
 */
__noinline __u32 resp_piece(struct xkv_request *rq, __u32 value, __u32 keys, __u32 open,
			    __u32 resp3)
{
	__u32 from, bytes = 0;
	struct xkv_result *r;

	if (!rq)
		return 0;
	r = (struct xkv_result *)&OUT(rq, value - sizeof(*r));
	if (r->flags & XKV_HAS_VALUE) {
		bytes = bpf_ntohl(r->value_len);
		from = put_line(rq, value, '$', bytes, false);
	} else if (resp3) {
		from = put_two(rq, value, '\r', '\n');
		OUT_BYTE(rq, --from) = '_';
	} else {
		from = put_line(rq, value, '$', 1, true);
	}
	if (open)
		from = put_two(rq, from, '\r', '\n');
	if (keys)
		from = put_line(rq, from, '*', keys, false);
	return RESP_TEXT(from, value + bytes - from);
}

/* How many of `keys` results, which have no values, are OK. */
__noinline int resp_count(struct xkv_request *rq, __u32 keys)
{
	int done = 0;

	if (!rq)
		return 0;
	for (__u32 i = 0; i < RESP_WORDS_MAX; i++) {
		if (i >= keys)
			break;
		done += rq->out[RESP_RESULT + i * sizeof(struct xkv_result) +
				offsetof(struct xkv_result, status)] == XKV_OK;
	}
	return done;
}

#define RESP_VALUES 0 /* instead of RESP_TEXT(): append_values() makes it of the results */

/*
 * A command about several keys.  What RESP makes of a result is never longer than that: lengths
 * have their lines where results have their headers.
 */
static __always_inline int resp_serve_many(struct resp *r, struct xkv_request *rq, __u32 which,
					   __u32 room)
{
	struct resp_command *c = &r->command[which & (RESP_COMMANDS_MAX - 1)];
	bool values = c->reply == RESP_VALUES_REPLY;
	int outcome;

	room = room < XKV_TCP_REPLY_MAX ? room : XKV_TCP_REPLY_MAX;
	room = values ? RESP_RESULT + (room & ~7U) - RESP_ARRAY_LINE : XKV_REQUEST_BYTES;
	outcome = resp_execute_many(r, rq, which, room);
	if (outcome != XKV_C_op_too_large)
		r->why = XKV_TCP_C_pass_store;
	if (outcome != XKV_C_atomic_done)
		return -1;
	c->extra = c->keys - 1;
	return values ? RESP_VALUES : put_integer(rq, resp_count(rq, c->keys));
}

/* Executes a command and replies: RESP_TEXT(), or -1: xkvd has to do that, nothing was changed. */
__noinline int resp_serve(struct resp *r, struct xkv_request *rq, __u32 which, __u32 room)
{
	struct resp_command *c;
	int outcome, text;

	if (!r || !rq)
		return -1;
	c = &r->command[which & (RESP_COMMANDS_MAX - 1)];
	c->failed = c->extra = 0;
	r->why = XKV_TCP_C_pass_window;
	if (room < RESP_SMALL_REPLY)
		return -1;
	if (c->keys)
		return resp_serve_many(r, rq, which, room);
	outcome = resp_execute(r, rq, c, room);
	if (outcome != XKV_C_op_too_large)
		r->why = XKV_TCP_C_pass_store;
	if (outcome < 0)
		return -1;
	c->outcome = outcome;
	text = resp_encode(rq, c, r->resp3);
	return (text & 0xffff) > room ? -1 : text;
}

#endif

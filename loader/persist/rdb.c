/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Redis' snapshot format.  Redis' code is its only specification: src/rdb.h and src/rdb.c (5.0 to
 * 6.2 write version 9, 7.0 version 10, 7.2 version 11, 7.4 and 8.0 version 12).  A file is
 *
 *   +-------------+---------+---------+     +----------+----+----------+
 *   | "REDIS0009" | record  | record  | ... | 255, EOF |    | CRC-64   |
 *   +-------------+---------+---------+     +----------+----+----------+
 *
 * with the checksum (little-endian, over all bytes before it; 0 = not computed) from version 5 on.
 * A record is one byte, its opcode or type, followed by its fields:
 *
 *   +-----+--------+--------+        +-----+--------+        +-----+------+---------+
 *   | 250 | string | string |  AUX   | 254 | length |  DB    | 251 | keys | expires |  RESIZEDB
 *   +-----+--------+--------+        +-----+--------+        +-----+------+---------+
 *
 *   +-----+----------------------+   +------+--------+-------------------+
 *   | 252 | int64, little-endian |   | type |  key   | value by its type |
 *   +-----+----------------------+   +------+--------+-------------------+
 *     expiry (ms) of the next key; a string key has type 0, and its value is one string
 *
 * Lengths and strings by the top bits of their first byte:
 *
 *   00nnnnnn                      length of 6 bits       } then, if it is a
 *   01nnnnnn nnnnnnnn             length of 14 bits      } string, that many
 *   10000000 4 bytes, big-endian  length of 32 bits      } bytes
 *   10000001 8 bytes, big-endian  length of 64 bits      }
 *   11000000 .. 11000010          integer of 8, 16, 32 bits, little-endian: its decimal text
 *   11000011 length length bytes  LZF: compressed length, length, compressed bytes
 */
#include "rdb.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <liblzf/lzf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bpf/proto.h"
#include "crc64.h"
#include "loading.h"
#include "util/text.h"

#define MAGIC	      "REDIS"
#define MAGIC_LEN     5
#define VERSION_LEN   4
#define CHECKSUM_FROM 5 /* the first version with a checksum */

#define LEN_6BIT   0x00
#define LEN_14BIT  0x40
#define LEN_32BIT  0x80
#define LEN_64BIT  0x81
#define LEN_STRING 0xc0 /* not a length: a string in an encoding of its own */

enum encoding { ENC_INT8, ENC_INT16, ENC_INT32, ENC_LZF, ENC_NONE = -1 };

enum opcode {
	TYPE_STRING = 0,
	OP_SLOT_INFO = 244,
	OP_FUNCTION2 = 245,
	OP_FUNCTION_PRE_GA = 246,
	OP_MODULE_AUX = 247,
	OP_IDLE = 248,
	OP_FREQ = 249,
	OP_AUX = 250,
	OP_RESIZEDB = 251,
	OP_EXPIRETIME_MS = 252,
	OP_EXPIRETIME = 253,
	OP_SELECTDB = 254,
	OP_EOF = 255,
};

#define BUFFER_SIZE 65536U

#define INT_DIGITS  11		/* of an integer of 32 bits */
#define INT_ENCODED 5		/* bytes of such a one */
#define LZF_FROM    21		/* bytes of a string that Redis tries to compress */
#define PACKED_MAX  (32U << 20) /* of a compressed string in a file: what a writer takes for it */

/* ---- writing ---- */

/* The last Redis that writes version 9.  Readers only display it. */
#define COMPATIBLE_WITH "6.2.0"

/* Memory for a string, which grows.  Allocated apart, so that ASan checks the bounds. */
struct space {
	uint8_t *bytes;
	size_t room;
};

static bool space_grow(struct space *s, size_t len)
{
	uint8_t *bytes;

	if (s->room >= len && s->bytes)
		return true;
	bytes = realloc(s->bytes, len ? len : 1);
	if (!bytes)
		return false;
	s->bytes = bytes;
	s->room = len;
	return true;
}

struct rdb_writer {
	int fd; /* -1: only count */
	int err;
	bool compress;
	struct space packed;
	uint64_t crc;
	uint64_t flushed; /* bytes */
	size_t used;
	unsigned int db; /* of the last SELECTDB */
	uint8_t buf[BUFFER_SIZE];
};

struct rdb_writer *rdb_writer_new(int fd, bool compress)
{
	struct rdb_writer *w = malloc(sizeof(*w));

	if (!w)
		return NULL;
	w->fd = fd;
	w->err = 0;
	w->compress = compress;
	w->packed = (struct space){ 0 };
	w->crc = 0;
	w->flushed = 0;
	w->used = 0;
	return w;
}

void rdb_writer_free(struct rdb_writer *w)
{
	if (w)
		free(w->packed.bytes);
	free(w);
}

uint64_t rdb_written(const struct rdb_writer *w)
{
	return w->flushed + w->used;
}

int rdb_writer_error(const struct rdb_writer *w)
{
	return w->err;
}

static void flush(struct rdb_writer *w)
{
	size_t done = w->fd < 0 ? w->used : 0;

	if (w->fd >= 0)
		w->crc = crc64(w->crc, w->buf, w->used);
	while (!w->err && done < w->used) {
		ssize_t n = write(w->fd, w->buf + done, w->used - done);

		if (n >= 0)
			done += (size_t)n;
		else if (errno != EINTR)
			w->err = -errno;
	}
	w->flushed += done;
	w->used = 0;
}

static void rdb_put(struct rdb_writer *w, const void *data, size_t len)
{
	const uint8_t *p = data;

	while (len && !w->err) {
		size_t n = BUFFER_SIZE - w->used;

		if (n > len)
			n = len;
		memcpy(w->buf + w->used, p, n);
		w->used += n;
		p += n;
		len -= n;
		if (w->used == BUFFER_SIZE)
			flush(w);
	}
}

static void put_byte(struct rdb_writer *w, uint8_t byte)
{
	rdb_put(w, &byte, 1);
}

/* Encodes a length into `out` (9 bytes at most); returns the bytes that it takes. */
static size_t encode_length(uint8_t *out, uint64_t len)
{
	if (len < 1 << 6) {
		out[0] = LEN_6BIT | (uint8_t)len;
		return 1;
	}
	if (len < 1 << 14) {
		out[0] = LEN_14BIT | (uint8_t)(len >> 8);
		out[1] = (uint8_t)len;
		return 2;
	}
	if (len <= UINT32_MAX) {
		uint32_t be = htobe32((uint32_t)len);

		out[0] = LEN_32BIT;
		memcpy(out + 1, &be, sizeof(be));
		return 1 + sizeof(be);
	}
	len = htobe64(len);
	out[0] = LEN_64BIT;
	memcpy(out + 1, &len, sizeof(len));
	return 1 + sizeof(len);
}

/* Encodes a string that is an integer of up to 32 bits; 0 if it is none. */
static size_t encode_integer(uint8_t out[INT_ENCODED], const char *text, size_t len)
{
	int64_t value;
	uint32_t le;

	if (len > INT_DIGITS || !text_to_i64(text, len, &value) || value < INT32_MIN ||
	    value > INT32_MAX)
		return 0;
	le = htole32((uint32_t)value);
	memcpy(out + 1, &le, sizeof(le));
	out[0] = LEN_STRING | (value == (int8_t)value	 ? ENC_INT8
			       : value == (int16_t)value ? ENC_INT16
							 : ENC_INT32);
	return 1 + (1U << (out[0] & 0x3f));
}

/*
 * Compresses a string, of LZF_FROM bytes or more, if that makes it shorter, lengths included; 0 if
 * not.  Writes fewer than `len` + 9 bytes, and at most `room`.
 */
static size_t encode_lzf(uint8_t *out, size_t room, const void *data, size_t len)
{
	uint8_t lengths[1 + 2 * 9];
	size_t for_length = encode_length(lengths, len), head = 1 + 2 * for_length, n = 1, packed;

	if (room > len + for_length - 1)
		room = len + for_length - 1;
	/* to where it is, if the length of what is packed takes as much as that of the string */
	packed = lzf_compress(data, (unsigned int)len, out + head, (unsigned int)(room - head));
	if (!packed)
		return 0;
	lengths[0] = LEN_STRING | ENC_LZF;
	n += encode_length(lengths + n, packed);
	n += encode_length(lengths + n, len);
	memmove(out + n, out + head, packed);
	memcpy(out, lengths, n);
	return n + packed;
}

static void put_length(struct rdb_writer *w, uint64_t len)
{
	uint8_t buf[9];

	rdb_put(w, buf, encode_length(buf, len));
}

/*
 * Into memory of its own, of which only the pages that are written to are taken: a huge string that
 * packs well needs little.  0: it is to be written as it is, also if there is no memory.
 */
static size_t pack(struct rdb_writer *w, const void *data, size_t len)
{
	size_t room = len + 9 < PACKED_MAX ? len + 9 : PACKED_MAX;

	if (!w->compress || len < LZF_FROM || !space_grow(&w->packed, room))
		return 0;
	return encode_lzf(w->packed.bytes, room, data, len);
}

static void put_string(struct rdb_writer *w, const void *data, size_t len)
{
	uint8_t number[INT_ENCODED];
	size_t n = encode_integer(number, data, len);

	if (n) {
		rdb_put(w, number, n);
		return;
	}
	n = pack(w, data, len);
	if (n) {
		rdb_put(w, w->packed.bytes, n);
		return;
	}
	put_length(w, len);
	rdb_put(w, data, len);
}

static void put_aux(struct rdb_writer *w, const char *name, const char *value)
{
	put_byte(w, OP_AUX);
	put_string(w, name, strlen(name));
	put_string(w, value, strlen(value));
}

static void put_aux_number(struct rdb_writer *w, const char *name, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, value);
	put_aux(w, name, text);
}

static void put_select(struct rdb_writer *w, unsigned int db)
{
	put_byte(w, OP_SELECTDB);
	put_length(w, db);
	w->db = db;
}

void rdb_write_database(struct rdb_writer *w, unsigned int db, uint64_t keys, uint64_t expiring)
{
	put_select(w, db);
	put_byte(w, OP_RESIZEDB);
	put_length(w, keys);
	put_length(w, expiring);
}

void rdb_write_select(struct rdb_writer *w, unsigned int db)
{
	if (w->db != db)
		put_select(w, db);
}

void rdb_write_header(struct rdb_writer *w, uint64_t keys, uint64_t used_memory)
{
	char version[VERSION_LEN + 1];

	snprintf(version, sizeof(version), "%04d", RDB_VERSION_WRITTEN);
	rdb_put(w, MAGIC, MAGIC_LEN);
	rdb_put(w, version, VERSION_LEN);
	put_aux(w, "redis-ver", COMPATIBLE_WITH);
	put_aux_number(w, "redis-bits", 8 * sizeof(void *));
	put_aux_number(w, "ctime", (uint64_t)time(NULL));
	put_aux_number(w, "used-mem", used_memory);
	put_aux(w, "xkv-ver", XKV_RELEASE);
	rdb_write_database(w, 0, keys, 0);
}

void rdb_write_base_mark(struct rdb_writer *w)
{
	put_aux(w, "aof-base", "1");
}

void rdb_write_key(struct rdb_writer *w, const void *key, size_t key_len, const void *value,
		   size_t value_len, uint64_t expire_ms)
{
	if (expire_ms) {
		/* Redis reads a signed number: a larger one would be in the past there */
		uint64_t le = htole64(expire_ms > INT64_MAX ? INT64_MAX : expire_ms);

		put_byte(w, OP_EXPIRETIME_MS);
		rdb_put(w, &le, sizeof(le));
	}
	put_byte(w, TYPE_STRING);
	put_string(w, key, key_len);
	put_string(w, value, value_len);
}

int rdb_write_end(struct rdb_writer *w)
{
	uint64_t le;

	put_byte(w, OP_EOF);
	flush(w);
	le = htole64(w->crc);
	rdb_put(w, &le, sizeof(le));
	flush(w);
	return w->err;
}

/* ---- reading ---- */

/*
 * LZF needs at most two bytes for one byte of output (a run of one literal), and makes at most 264
 * of three.  A length that says something else is invalid, as is one of more than is left of the
 * file: so no length in a small file makes the reader allocate much.
 */
#define LZF_RATIO 88

struct reader {
	int fd; /* -1: the whole file is in memory, at `buf` */
	const uint8_t *buf;
	size_t pos, end; /* in buf: next byte, end of the data */
	size_t summed;	 /* in buf: end of the bytes that `crc` covers */
	uint64_t base;	 /* offset of buf[0] in the file */
	uint64_t size;	 /* of the file */
	uint64_t crc;
	uint64_t db; /* of the last SELECTDB */
	bool expires;
	int64_t expire_ms; /* for the next key */
	uint64_t record;   /* offset of the current record, or of its expiry if it has one */
	int err;
	const struct rdb_sink *sink;
	struct rdb_report *rep;
	struct space key, value, packed;
	uint8_t *own_buf; /* BUFFER_SIZE */
};

/* A string that was read.  `have` bytes of it are in `data`; fewer than `len` if it is too long. */
struct text {
	const uint8_t *data;
	uint64_t len;
	size_t have;
};

static uint64_t offset(const struct reader *r)
{
	return r->base + r->pos;
}

static uint64_t left(const struct reader *r)
{
	return r->size - offset(r);
}

/* Records the first error, with its offset.  Always false, so that it can be returned. */
__attribute__((format(printf, 4, 5))) static bool rdb_fail(struct reader *r, int err, uint64_t at,
							   const char *fmt, ...)
{
	va_list ap;

	r->err = err;
	r->rep->offset = at;
	va_start(ap, fmt);
	vsnprintf(r->rep->text, sizeof(r->rep->text), fmt, ap);
	va_end(ap);
	return false;
}

static bool truncated(struct reader *r, uint64_t wanted)
{
	return rdb_fail(r, -EBADMSG, offset(r),
			"the file is truncated or damaged: %" PRIu64
			" bytes are announced here, but only %" PRIu64 " are left",
			wanted, left(r));
}

static void sum(struct reader *r)
{
	r->crc = crc64(r->crc, r->buf + r->summed, r->pos - r->summed);
	r->summed = r->pos;
}

/* Reads at least one byte into the buffer; the caller has checked that the file has one. */
static bool refill(struct reader *r)
{
	ssize_t n;

	sum(r);
	r->base += r->end;
	r->pos = r->end = r->summed = 0;
	do {
		n = read(r->fd, r->own_buf, BUFFER_SIZE);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return rdb_fail(r, -errno, offset(r), "reading failed: %s", strerror(errno));
	if (n == 0)
		return rdb_fail(r, -EBADMSG, offset(r),
				"the file became shorter while it was read");
	r->end = (size_t)n;
	return loading_goes_on(r->end) || rdb_fail(r, -EINTR, offset(r), "the load was ended");
}

/* Consumes the next `len` bytes, and copies them to `dst` unless that is NULL. */
static bool take(struct reader *r, void *dst, uint64_t len)
{
	uint8_t *out = dst;

	if (len > left(r))
		return truncated(r, len);
	while (len) {
		size_t n;

		if (r->pos == r->end && !refill(r))
			return false;
		n = r->end - r->pos;
		if (n > len)
			n = (size_t)len;
		if (out) {
			memcpy(out, r->buf + r->pos, n);
			out += n;
		}
		r->pos += n;
		len -= n;
	}
	return true;
}

/* Reads a length, or the encoding of a string that is not stored as length and bytes. */
static bool get_length_or_encoding(struct reader *r, uint64_t *len, enum encoding *enc)
{
	uint64_t at = offset(r);
	uint8_t b[8];

	*enc = ENC_NONE;
	if (!take(r, b, 1))
		return false;
	if ((b[0] & 0xc0) == LEN_STRING) {
		*enc = b[0] & 0x3f;
		*len = 0;
		if (*enc > ENC_LZF)
			return rdb_fail(r, -EBADMSG, at, "unknown string encoding %d", (int)*enc);
	} else if ((b[0] & 0xc0) == LEN_6BIT) {
		*len = b[0];
	} else if ((b[0] & 0xc0) == LEN_14BIT) {
		if (!take(r, b + 1, 1))
			return false;
		*len = (b[0] & 0x3fU) << 8 | b[1];
	} else if (b[0] == LEN_32BIT) {
		if (!take(r, b, 4))
			return false;
		*len = (uint64_t)b[0] << 24 | (uint64_t)b[1] << 16 | (uint64_t)b[2] << 8 | b[3];
	} else if (b[0] == LEN_64BIT) {
		if (!take(r, b, 8))
			return false;
		memcpy(len, b, sizeof(*len));
		*len = be64toh(*len);
	} else {
		return rdb_fail(r, -EBADMSG, at, "0x%02x does not begin a length", b[0]);
	}
	return true;
}

static bool get_length(struct reader *r, uint64_t *len)
{
	uint64_t at = offset(r);
	enum encoding enc;

	if (!get_length_or_encoding(r, len, &enc))
		return false;
	return enc == ENC_NONE ||
	       rdb_fail(r, -EBADMSG, at, "an encoded string stands where a number is expected");
}

static bool get_integer(struct reader *r, enum encoding enc, int32_t *out)
{
	uint8_t b[4] = { 0 };

	if (!take(r, b, 1U << enc))
		return false;
	if (enc == ENC_INT8)
		*out = (int8_t)b[0];
	else if (enc == ENC_INT16)
		*out = (int16_t)(b[0] | b[1] << 8);
	else
		*out = (int32_t)(b[0] | b[1] << 8 | b[2] << 16 | (uint32_t)b[3] << 24);
	return true;
}

static bool get_lzf_lengths(struct reader *r, uint64_t *packed, uint64_t *plain)
{
	uint64_t at = offset(r);

	if (!get_length(r, packed) || !get_length(r, plain))
		return false;
	if (*packed > left(r))
		return truncated(r, *packed);
	if (*packed == 0 || *plain == 0 || *packed / 2 > *plain || *plain / LZF_RATIO > *packed)
		return rdb_fail(r, -EBADMSG, at,
				"%" PRIu64 " compressed bytes for a string of %" PRIu64
				" cannot be",
				*packed, *plain);
	return true;
}

/* Makes room for a string. */
static bool make_space(struct reader *r, struct space *s, size_t len)
{
	return space_grow(s, len) ||
	       rdb_fail(r, -ENOMEM, offset(r), "no memory for a string of %zu bytes", len);
}

static bool get_lzf(struct reader *r, struct space *dst, size_t max, struct text *out)
{
	uint64_t at = offset(r), packed;

	out->have = 0;
	if (!get_lzf_lengths(r, &packed, &out->len))
		return false;
	if (out->len > max)
		return take(r, NULL, packed);
	if (!make_space(r, &r->packed, packed) || !make_space(r, dst, out->len) ||
	    !take(r, r->packed.bytes, packed))
		return false;
	out->data = dst->bytes;
	if (lzf_decompress(r->packed.bytes, (unsigned int)packed, dst->bytes,
			   (unsigned int)out->len) != out->len)
		return rdb_fail(r, -EBADMSG, at,
				"a compressed string does not expand to its length");
	out->have = (size_t)out->len;
	return true;
}

/* Reads a string into `dst`.  Of one longer than `max` the rest is skipped. */
static bool get_string(struct reader *r, struct space *dst, size_t max, struct text *out)
{
	enum encoding enc;
	char digits[16];
	int32_t number;

	if (!get_length_or_encoding(r, &out->len, &enc))
		return false;
	if (enc == ENC_LZF)
		return get_lzf(r, dst, max, out);
	if (enc != ENC_NONE) {
		if (!get_integer(r, enc, &number))
			return false;
		out->have = (size_t)snprintf(digits, sizeof(digits), "%" PRId32, number);
		out->len = out->have;
		if (!make_space(r, dst, out->have))
			return false;
		out->data = memcpy(dst->bytes, digits, out->have);
		return true;
	}
	if (out->len > left(r))
		return truncated(r, out->len);
	out->have = out->len > max ? max : (size_t)out->len;
	if (!make_space(r, dst, out->have))
		return false;
	out->data = dst->bytes;
	return take(r, dst->bytes, out->have) && take(r, NULL, out->len - out->have);
}

static bool skip_string(struct reader *r)
{
	uint64_t len, plain;
	enum encoding enc;

	if (!get_length_or_encoding(r, &len, &enc))
		return false;
	if (enc == ENC_LZF && !get_lzf_lengths(r, &len, &plain))
		return false;
	if (enc != ENC_NONE && enc != ENC_LZF)
		len = 1U << enc;
	return take(r, NULL, len);
}

/* A module's value: numbered fields up to a zero. */
static bool skip_module_fields(struct reader *r)
{
	enum { FIELD_END, FIELD_SINT, FIELD_UINT, FIELD_FLOAT, FIELD_DOUBLE, FIELD_STRING };

	for (;;) {
		uint64_t at = offset(r), field, number;
		bool ok;

		if (!get_length(r, &field))
			return false;
		if (field == FIELD_END)
			return true;
		if (field == FIELD_SINT || field == FIELD_UINT)
			ok = get_length(r, &number);
		else if (field == FIELD_FLOAT || field == FIELD_DOUBLE)
			ok = take(r, NULL, field == FIELD_FLOAT ? 4 : 8);
		else if (field == FIELD_STRING)
			ok = skip_string(r);
		else
			ok = rdb_fail(r, -EBADMSG, at,
				      "unknown field %" PRIu64 " in a module's value", field);
		if (!ok)
			return false;
	}
}

/* A sorted set's score as text; 253 to 255 are the lengths of NaN and the infinities. */
static bool skip_text_double(struct reader *r)
{
	uint8_t len;

	return take(r, &len, 1) && (len >= 253 || take(r, NULL, len));
}

/*
 * Skips the parts of a record.  A string describes them in order:
 *   s string   l length   1, 4, 8 that many bytes   f score as text   m fields of a module
 *   *(...)     a count, then the parts in parentheses that many times
 */
static bool skip(struct reader *r, const char *parts, const char *end);

/* Each iteration consumes a byte or more, so a wrong count ends at the end of the file. */
static bool skip_repeated(struct reader *r, const char *body, const char *end)
{
	uint64_t count;

	if (!get_length(r, &count))
		return false;
	for (; count; count--) {
		if (!skip(r, body, end))
			return false;
	}
	return true;
}

static const char *closing(const char *open)
{
	for (int depth = 0;; open++) {
		if (*open == '(')
			depth++;
		else if (*open == ')' && --depth == 0)
			return open;
	}
}

static bool skip(struct reader *r, const char *parts, const char *end)
{
	uint64_t number;
	bool ok = true;

	for (const char *p = parts; ok && p < end; p++) {
		if (*p == 's') {
			ok = skip_string(r);
		} else if (*p == 'l') {
			ok = get_length(r, &number);
		} else if (*p == 'f') {
			ok = skip_text_double(r);
		} else if (*p == 'm') {
			ok = skip_module_fields(r);
		} else if (*p == '*') {
			const char *close = closing(p + 1);

			ok = skip_repeated(r, p + 2, close);
			p = close;
		} else {
			ok = take(r, NULL, (uint64_t)(*p - '0'));
		}
	}
	return ok;
}

static bool skip_parts(struct reader *r, const char *parts)
{
	return skip(r, parts, parts + strlen(parts));
}

/* Redis' types by number.  No parts: the end of the value cannot be found (nor does Redis try). */
static const struct {
	const char *name;
	const char *parts;
} types[] = {
	[TYPE_STRING] = { "a string", "s" },
	[1] = { "a list", "*(s)" },
	[2] = { "a set", "*(s)" },
	[3] = { "a sorted set", "*(sf)" },
	[4] = { "a hash", "*(ss)" },
	[5] = { "a sorted set", "*(s8)" },
	[6] = { "a value of a module in the format of Redis 4.0 RC", NULL },
	[7] = { "a value of a module", "lm" },
	[9] = { "a hash (zipmap)", "s" },
	[10] = { "a list (ziplist)", "s" },
	[11] = { "a set (intset)", "s" },
	[12] = { "a sorted set (ziplist)", "s" },
	[13] = { "a hash (ziplist)", "s" },
	[14] = { "a list (quicklist)", "*(s)" },
	[15] = { "a stream", "*(ss)lll*(sll*(888l)*(s8*(88)))" },
	[16] = { "a hash (listpack)", "s" },
	[17] = { "a sorted set (listpack)", "s" },
	[18] = { "a list (quicklist)", "*(ls)" },
	[19] = { "a stream", "*(ss)llllllll*(slll*(888l)*(s8*(88)))" },
	[20] = { "a set (listpack)", "s" },
	[21] = { "a stream", "*(ss)llllllll*(slll*(888l)*(s88*(88)))" },
	[22] = { "a hash with expiring fields in the format of Redis 7.4 RC", NULL },
	[23] = { "a hash with expiring fields in the format of Redis 7.4 RC", NULL },
	[24] = { "a hash with expiring fields", "8*(lss)" },
	[25] = { "a hash with expiring fields (listpack)", "8s" },
};

static const char *type_name(uint8_t type)
{
	return type < sizeof(types) / sizeof(types[0]) ? types[type].name : NULL;
}

/* Formats a key for a message: quoted, non-printable bytes escaped, at most 40 bytes of it. */
static void quote_key(char *out, size_t size, const struct text *key)
{
	size_t shown = key->have < 40 ? key->have : 40, n = 0;

	if (!shown && key->len) {
		snprintf(out, size, "a key");
		return;
	}
	n += (size_t)snprintf(out, size, "the key \"");
	for (size_t i = 0; i < shown && n + 8 < size; i++) {
		uint8_t c = key->data[i];
		bool plain = c >= ' ' && c < 0x7f && c != '"' && c != '\\';

		n += (size_t)snprintf(out + n, size - n, plain ? "%c" : "\\x%02x", c);
	}
	snprintf(out + n, size - n, shown < key->len ? "...\"" : "\"");
}

/* Records the result of a sink function.  True to continue. */
static bool sink_accepts(struct reader *r, int ret)
{
	if (ret) {
		r->err = ret;
		r->rep->offset = r->record;
	}
	return ret == 0;
}

__attribute__((format(printf, 2, 3))) static bool other(struct reader *r, const char *fmt, ...)
{
	struct rdb_misfit o = {
		.expires = r->expires,
		.expire_ms = r->expire_ms,
		.offset = r->record,
	};
	char what[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	o.what = what;
	return sink_accepts(r, r->sink->other(r->sink->arg, &o));
}

static unsigned int databases_of(const struct reader *r)
{
	return r->sink->databases ? r->sink->databases : 1;
}

/* Tells the sink why this store cannot hold a key. */
static bool deliver_misfit(struct reader *r, const struct text *key, const struct text *value)
{
	char name[200];

	quote_key(name, sizeof(name), key);
	if (key->len > XKV_LONG_KEY_MAX)
		return other(r, "%s has %" PRIu64 " bytes; xkv's keys have at most %d", name,
			     key->len, XKV_LONG_KEY_MAX);
	if (r->db >= databases_of(r))
		return other(r, "%s is in database %" PRIu64 ", and `databases` is %u", name, r->db,
			     databases_of(r));
	return other(r, "the value of %s has %" PRIu64 " bytes; xkv's have at most %u", name,
		     value->len, XKV_HUGE_MAX);
}

/* Passes a string key to the sink, or the reason why this store cannot hold it. */
static bool deliver(struct reader *r, const struct text *key, const struct text *value)
{
	struct rdb_key k = {
		.key = key->data,
		.key_len = (size_t)key->len,
		.value = value->data,
		.value_len = (size_t)value->len,
		.expires = r->expires,
		.expire_ms = r->expire_ms,
		.offset = r->record,
		.db = (unsigned int)r->db,
	};

	if (key->len > XKV_LONG_KEY_MAX || r->db >= databases_of(r) || value->len > XKV_HUGE_MAX)
		return deliver_misfit(r, key, value);
	return sink_accepts(r, r->sink->key(r->sink->arg, &k));
}

static bool read_entry(struct reader *r, uint8_t type)
{
	const char *type_is = type_name(type);
	struct text key, value;
	char name[200];
	bool ok;

	if (!type_is)
		return rdb_fail(r, -EBADMSG, offset(r) - 1,
				"unknown type %u: the file is damaged, or from a newer program",
				type);
	if (!get_string(r, &r->key, XKV_LONG_KEY_MAX, &key))
		return false;
	if (type == TYPE_STRING) {
		ok = get_string(r, &r->value, XKV_HUGE_MAX, &value) && deliver(r, &key, &value);
	} else {
		quote_key(name, sizeof(name), &key);
		if (!types[type].parts)
			return rdb_fail(r, -ENOTSUP, r->record, "%s is %s, which cannot be skipped",
					name, type_is);
		ok = skip_parts(r, types[type].parts) &&
		     other(r, "%s is %s; xkv holds strings only", name, type_is);
	}
	r->expires = false;
	return ok;
}

static bool read_expiry(struct reader *r, uint8_t op)
{
	uint64_t ms;
	int32_t seconds;

	if (op == OP_EXPIRETIME) {
		if (!get_integer(r, ENC_INT32, &seconds))
			return false;
		r->expire_ms = (int64_t)seconds * 1000;
	} else {
		if (!take(r, &ms, sizeof(ms)))
			return false;
		r->expire_ms = (int64_t)le64toh(ms);
	}
	r->expires = true;
	return true;
}

static bool read_library(struct reader *r)
{
	struct text text;

	if (!r->sink->function)
		return skip_parts(r, "s") && other(r, "a library of functions");
	if (!get_string(r, &r->value, XKV_VALUE_MAX, &text))
		return false;
	if (text.have != text.len)
		return other(r, "a library of functions has more than %u bytes", XKV_VALUE_MAX);
	return sink_accepts(r, r->sink->function(r->sink->arg, text.data, text.have));
}

/* Reads what follows the opcode or type `op`. */
static bool read_record(struct reader *r, uint8_t op)
{
	switch (op) {
	case OP_EXPIRETIME:
	case OP_EXPIRETIME_MS:
		return read_expiry(r, op);
	case OP_IDLE:
		return skip_parts(r, "l");
	case OP_FREQ:
		return skip_parts(r, "1");
	case OP_AUX:
		return skip_parts(r, "ss");
	case OP_SELECTDB:
		return get_length(r, &r->db);
	case OP_RESIZEDB:
		return skip_parts(r, "ll");
	case OP_SLOT_INFO:
		return skip_parts(r, "lll");
	case OP_FUNCTION2:
		return read_library(r);
	case OP_FUNCTION_PRE_GA:
		return rdb_fail(r, -ENOTSUP, r->record, "functions in the format of Redis 7.0 RC");
	case OP_MODULE_AUX:
		return skip_parts(r, "lllm") && other(r, "data of a module; xkv has none");
	default:
		return read_entry(r, op);
	}
}

static bool read_checksum(struct reader *r)
{
	uint64_t at = offset(r), stored, computed;

	sum(r);
	computed = r->crc;
	if (r->rep->version >= CHECKSUM_FROM) {
		if (!take(r, &stored, sizeof(stored)))
			return false;
		stored = le64toh(stored);
		if (stored && stored != computed)
			return rdb_fail(r, -EBADMSG, at,
					"wrong checksum: the file is damaged (it says %016" PRIx64
					", its bytes give %016" PRIx64 ")",
					stored, computed);
		r->rep->checksummed = stored != 0;
	}
	if (left(r))
		return rdb_fail(r, -EBADMSG, offset(r),
				"%" PRIu64 " bytes follow the end of the data", left(r));
	return true;
}

static bool read_magic(struct reader *r)
{
	char head[MAGIC_LEN + VERSION_LEN + 1] = "";
	unsigned int version = 0;

	if (r->size == 0)
		return rdb_fail(r, -EBADMSG, 0, "the file is empty");
	if (!take(r, head, r->size < sizeof(head) - 1 ? r->size : sizeof(head) - 1))
		return false;
	if (strncmp(head, MAGIC, MAGIC_LEN) != 0)
		return rdb_fail(r, -ENOTSUP, 0, "not an RDB file: it does not begin with " MAGIC);
	for (const char *p = head + MAGIC_LEN; p < head + sizeof(head) - 1; p++) {
		if (*p < '0' || *p > '9')
			return rdb_fail(r, -EBADMSG, MAGIC_LEN, "the version is not a number");
		version = version * 10 + (unsigned int)(*p - '0');
	}
	if (version < 1 || version > RDB_VERSION_MAX)
		return rdb_fail(r, -ENOTSUP, MAGIC_LEN,
				"RDB version %u is unknown: this program reads 1 to %d", version,
				RDB_VERSION_MAX);
	r->rep->version = version;
	return true;
}

static int read_all(struct reader *r)
{
	uint8_t op = 0;
	bool ok = read_magic(r);

	while (ok) {
		/* an expiry belongs to the record of the next key */
		if (!r->expires)
			r->record = offset(r);
		ok = take(r, &op, 1);
		if (ok && op == OP_EOF) {
			ok = read_checksum(r);
			break;
		}
		ok = ok && read_record(r, op);
	}
	return ok ? 0 : r->err;
}

static void reader_free(struct reader *r)
{
	if (!r)
		return;
	free(r->key.bytes);
	free(r->value.bytes);
	free(r->packed.bytes);
	free(r->own_buf);
	free(r);
}

static struct reader *reader_new(void)
{
	struct reader *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->own_buf = malloc(BUFFER_SIZE);
	if (!r->own_buf) {
		reader_free(r);
		return NULL;
	}
	return r;
}

static int read_from(int fd, const void *data, uint64_t size, const struct rdb_sink *sink,
		     struct rdb_report *rep)
{
	struct reader *r = reader_new();
	int ret;

	if (!r) {
		snprintf(rep->text, sizeof(rep->text), "out of memory");
		return -ENOMEM;
	}
	r->fd = fd;
	r->buf = data ? data : r->own_buf;
	r->end = data ? (size_t)size : 0;
	r->size = size;
	r->sink = sink;
	r->rep = rep;
	ret = read_all(r);
	reader_free(r);
	return ret;
}

int rdb_read_memory(const void *data, size_t len, const struct rdb_sink *sink,
		    struct rdb_report *rep)
{
	*rep = (struct rdb_report){ 0 };
	return read_from(-1, data, len, sink, rep);
}

static int unreadable(struct rdb_report *rep)
{
	int err = -errno;

	snprintf(rep->text, sizeof(rep->text), "not readable: %s", strerror(-err));
	return err;
}

int rdb_read(int fd, const struct rdb_sink *sink, struct rdb_report *rep)
{
	struct stat st;

	*rep = (struct rdb_report){ 0 };
	if (fstat(fd, &st) < 0)
		return unreadable(rep);
	if (!S_ISREG(st.st_mode)) {
		snprintf(rep->text, sizeof(rep->text), "not a regular file");
		return -EINVAL;
	}
	if (lseek(fd, 0, SEEK_SET) < 0)
		return unreadable(rep);
	return read_from(fd, NULL, (uint64_t)st.st_size, sink, rep);
}

/* ---- DUMP and RESTORE ---- */

/*
 *   +------+------------------+---------+--------+
 *   | type | value by its type | version | CRC-64 |  version: 16 bits; both little-endian
 *   +------+------------------+---------+--------+
 */
#define FOOTER 10

/* Adds version and checksum behind `len` bytes.  Returns the whole length. */
static size_t put_footer(uint8_t *dump, size_t len)
{
	uint16_t version = htole16(RDB_VERSION_WRITTEN);
	uint64_t crc;

	memcpy(dump + len, &version, sizeof(version));
	len += sizeof(version);
	crc = htole64(crc64(0, dump, len));
	memcpy(dump + len, &crc, sizeof(crc));
	return len + sizeof(crc);
}

size_t rdb_dump(void *out, const void *value, size_t len, bool compress)
{
	uint8_t *start = out, *at = start + 1;
	size_t n = encode_integer(at, value, len);

	*start = TYPE_STRING;
	if (!n && compress && len >= LZF_FROM)
		n = encode_lzf(at, len + 9, value, len);
	if (!n) {
		n = encode_length(at, len);
		if (len)
			memcpy(at + n, value, len);
		n += len;
	}
	return put_footer(start, 1 + n);
}

static bool footer_is_right(const uint8_t *dump, size_t len)
{
	uint16_t version;
	uint64_t crc;

	if (len < FOOTER)
		return false;
	memcpy(&version, dump + len - FOOTER, sizeof(version));
	memcpy(&crc, dump + len - sizeof(crc), sizeof(crc));
	return le16toh(version) <= RDB_VERSION_MAX &&
	       le64toh(crc) == crc64(0, dump, len - sizeof(crc));
}

/* The string of a dump, in the reader's memory. */
static int read_dump(struct reader *r, struct text *value)
{
	uint8_t type;

	if (!take(r, &type, 1) || !type_name(type)) {
		rdb_fail(r, -EINVAL, 0, "unknown type");
		return -EINVAL;
	}
	if (type != TYPE_STRING) {
		rdb_fail(r, -ENOTSUP, 0, "%s", type_name(type));
		return -ENOTSUP;
	}
	if (!get_string(r, &r->value, XKV_HUGE_MAX, value) || left(r))
		return r->err == -ENOMEM ? -ENOMEM : -EINVAL;
	return value->have == value->len ? 0 : -EMSGSIZE;
}

/* A reader of what is in a dump, in memory.  0, -EBADMSG, -ENOMEM. */
static int dump_open(const void *dump, size_t len, struct rdb_report *rep, struct reader **out)
{
	struct reader *r;

	if (!footer_is_right(dump, len))
		return -EBADMSG;
	r = reader_new();
	if (!r)
		return -ENOMEM;
	r->fd = -1;
	r->buf = dump;
	r->end = len - FOOTER;
	r->size = r->end;
	r->rep = rep;
	*out = r;
	return 0;
}

int rdb_restore(const void *dump, size_t len,
		int (*fn)(void *arg, const void *value, size_t value_len), void *arg,
		struct rdb_report *rep)
{
	struct text value;
	struct reader *r;
	int ret;

	*rep = (struct rdb_report){ 0 };
	ret = dump_open(dump, len, rep, &r);
	if (ret)
		return ret;
	ret = read_dump(r, &value);
	if (!ret)
		ret = fn(arg, value.data, value.have);
	reader_free(r);
	return ret;
}

/* ---- libraries of functions ---- */

size_t rdb_function_record(void *out, const void *text, size_t len)
{
	uint8_t *start = out;
	size_t used = 1;

	*start = OP_FUNCTION2;
	used += encode_length(start + used, len);
	memcpy(start + used, text, len);
	return used + len;
}

size_t rdb_functions_end(void *dump, size_t len)
{
	return put_footer(dump, len);
}

void rdb_write_functions(struct rdb_writer *w, const void *records, size_t len)
{
	rdb_put(w, records, len);
}

int rdb_functions_read(const void *dump, size_t len,
		       int (*fn)(void *arg, const void *text, size_t text_len), void *arg)
{
	struct rdb_report rep = { 0 };
	struct reader *r;
	struct text text;
	uint8_t op;
	int ret;

	ret = dump_open(dump, len, &rep, &r);
	if (ret)
		return ret;
	while (!ret && left(r)) {
		if (!take(r, &op, 1) || op != OP_FUNCTION2)
			ret = -ENOTSUP;
		else if (!get_string(r, &r->value, XKV_VALUE_MAX, &text))
			ret = -EINVAL;
		else
			ret = text.have == text.len ? fn(arg, text.data, text.have) : -EMSGSIZE;
	}
	reader_free(r);
	return ret;
}

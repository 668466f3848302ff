// SPDX-License-Identifier: BSD-2-Clause
#include "aof.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loading.h"
#include "util/crc32c.h"

#define TEXT_FIRST  65536	   /* bytes of memory that is allocated at first, ... */
#define TEXT_KEPT   (4U << 20)	   /* ... and kept */
#define READ_FIRST  (1U << 20)	   /* bytes that are read at once */
#define WORD_MAX    (512ULL << 20) /* as in Redis */
#define WORDS_MAX   (1U << 20)
#define LINE_LEN    1024 /* of an annotation, with its end */
#define NUMBER_LINE 16	 /* "*", "$", digits, CR LF */
#define SUM_WORD    "XKV:sum "
#define SYNCED	    "\n#XKV:synced " /* how much of the file the disk had at that point */
#define SECTOR	    512ULL	     /* what a disk writes whole, or not */

/* ---- writing --------------------------------------------------------------- */

static bool aof_make_room(struct aof_text *t, size_t bytes)
{
	size_t room = t->room ? t->room : TEXT_FIRST;
	char *more;

	if (t->failed || t->len + bytes <= t->room)
		return !t->failed;
	while (room < t->len + bytes)
		room *= 2;
	more = realloc(t->bytes, room);
	if (more) {
		t->bytes = more;
		t->room = room;
	}
	t->failed = !more;
	return more;
}

static void aof_add(struct aof_text *t, const void *bytes, size_t len)
{
	memcpy(t->bytes + t->len, bytes, len);
	t->len += len;
}

/* "*3 CR LF" */
static void add_count(struct aof_text *t, char sign, size_t count)
{
	char text[24], *at = text + sizeof(text);

	*--at = '\n';
	*--at = '\r';
	do
		*--at = (char)('0' + count % 10);
	while (count /= 10);
	*--at = sign;
	aof_add(t, at, (size_t)(text + sizeof(text) - at));
}

void aof_command(struct aof_text *t, unsigned int argc)
{
	if (aof_make_room(t, 24))
		add_count(t, '*', argc);
}

void aof_word(struct aof_text *t, const void *word, size_t len)
{
	if (!aof_make_room(t, len + 26))
		return;
	add_count(t, '$', len);
	if (len)
		aof_add(t, word, len);
	aof_add(t, "\r\n", 2);
}

void aof_name(struct aof_text *t, const char *word)
{
	aof_word(t, word, strlen(word));
}

void aof_number(struct aof_text *t, uint64_t number)
{
	char text[24];

	aof_word(t, text, (size_t)snprintf(text, sizeof(text), "%" PRIu64, number));
}

void aof_annotation(struct aof_text *t, const char *fmt, ...)
{
	char line[LINE_LEN] = "#";
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line + 1, sizeof(line) - 3, fmt, ap);
	va_end(ap);
	strcat(line, "\r\n");
	if (aof_make_room(t, strlen(line)))
		aof_add(t, line, strlen(line));
}

/* Of the two numbers of the line, which follow `sum`. */
static uint16_t sum_of_head(uint32_t sum, uint32_t len, uint32_t crc)
{
	const uint32_t numbers[] = { htole32(len), htole32(crc) };

	return (uint16_t)crc32c(sum, numbers, sizeof(numbers));
}

/* `before`: the sum of the block before. */
static void head_text(char text[AOF_SUM_LEN + 1], uint32_t before, uint32_t len, uint32_t sum)
{
	snprintf(text, AOF_SUM_LEN + 1, "#" SUM_WORD "%08" PRIx32 " %08" PRIx32 " %04x\r\n", len,
		 sum, sum_of_head(before, len, sum));
}

void aof_seal(struct aof_text *t, uint32_t *sum)
{
	char head[AOF_SUM_LEN + 1];
	uint32_t before = *sum;

	if (!t->len || !aof_make_room(t, AOF_SUM_LEN))
		return;
	*sum = crc32c(before, t->bytes, t->len);
	head_text(head, before, (uint32_t)t->len, *sum);
	memmove(t->bytes + AOF_SUM_LEN, t->bytes, t->len);
	memcpy(t->bytes, head, AOF_SUM_LEN);
	t->len += AOF_SUM_LEN;
}

bool aof_sum_line(const char *line, uint32_t *len, uint32_t *sum)
{
	return sscanf(line, SUM_WORD "%8" SCNx32 " %8" SCNx32, len, sum) == 2;
}

void aof_clear(struct aof_text *t)
{
	if (t->room > TEXT_KEPT)
		aof_free(t);
	t->len = 0;
	t->failed = false;
}

void aof_free(struct aof_text *t)
{
	free(t->bytes);
	*t = (struct aof_text){ 0 };
}

/* ---- reading --------------------------------------------------------------- */

struct reader {
	int fd;
	uint64_t base; /* offset in the file of buf[0] */
	uint64_t end;  /* read as far as this */
	char *buf;     /* owned */
	size_t pos;    /* in buf: where the command begins that is being read */
	size_t have, room;
	struct aof_arg *argv; /* owned; while a command is read, ptr is not set yet */
	size_t *at;	      /* owned; of each word, from `pos` on */
	unsigned int words;   /* that argv and at have room for */
	bool in_txn, at_end;
	/* What is read: a file without blocks; with; what another server has added to such. */
	enum { PLAIN, BLOCKS, FOREIGN } kind;
	uint64_t block_end; /* offset in the file */
	uint32_t sum;	    /* of the block */
	struct aof_report *rep;
};

__attribute__((format(printf, 4, 5))) static int aof_fail(struct reader *r, int error, size_t at,
							  const char *fmt, ...)
{
	va_list ap;

	r->rep->offset = r->base + r->pos + at;
	va_start(ap, fmt);
	vsnprintf(r->rep->text, sizeof(r->rep->text), fmt, ap);
	va_end(ap);
	return error;
}

static int no_memory(struct reader *r)
{
	return aof_fail(r, -ENOMEM, 0, "out of memory");
}

/* The command moves to the beginning of the buffer, and that grows, if need be. */
static bool buffer_room(struct reader *r, size_t bytes)
{
	size_t room = r->room ? r->room : READ_FIRST;
	char *more;

	if (r->pos + bytes <= r->room)
		return true;
	if (r->have > r->pos)
		memmove(r->buf, r->buf + r->pos, r->have - r->pos);
	r->base += r->pos;
	r->have -= r->pos;
	r->pos = 0;
	while (room < bytes)
		room *= 2;
	more = room > r->room ? realloc(r->buf, room) : r->buf;
	if (!more)
		return false;
	r->buf = more;
	r->room = room;
	return true;
}

/*
 * Has the buffer so many bytes from `pos` on?  1, 0 at the end of the file, or an error.  A length
 * that is wrong must not allocate: what the file does not have is not made room for.
 */
static int need(struct reader *r, size_t bytes)
{
	ssize_t n;

	while (r->have - r->pos < bytes) {
		if (r->at_end || r->base + r->pos + bytes > r->end)
			return 0;
		if (!buffer_room(r, bytes))
			return no_memory(r);
		n = pread(r->fd, r->buf + r->have, r->room - r->have, (off_t)(r->base + r->have));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return aof_fail(r, -errno, r->have - r->pos, "reading failed: %s",
					strerror(errno));
		r->at_end = !n;
		r->have += (size_t)n;
		if (!loading_goes_on((uint64_t)n))
			return aof_fail(r, -EINTR, r->have - r->pos, "the load was ended");
	}
	return 1;
}

static int ends(struct reader *r, size_t at)
{
	r->rep->truncated = true;
	return aof_fail(r, -EBADMSG, at, "the file ends in the middle of a %s",
			r->in_txn ? "transaction" : "command");
}

/* A line "*3" or "$3" from `at` on.  0, and the number and what is behind it. */
static int read_count(struct reader *r, char sign, size_t *at, uint64_t *number)
{
	size_t i = *at;
	int ret = need(r, i + 1);

	if (ret <= 0)
		return ret ? ret : ends(r, i);
	if (r->buf[r->pos + i] != sign)
		return aof_fail(r, -EBADMSG, i, "expected a \"%c\", found the byte 0x%02x", sign,
				(unsigned char)r->buf[r->pos + i]);
	*number = 0;
	for (i++; (ret = need(r, i + 1)) == 1; i++) {
		char c = r->buf[r->pos + i];

		if (c == '\r' && i > *at + 1)
			break;
		if (c < '0' || c > '9' || i > *at + NUMBER_LINE)
			return aof_fail(r, -EBADMSG, i, "a length is not a number");
		*number = *number * 10 + (uint64_t)(c - '0');
	}
	if (ret == 1)
		ret = need(r, i + 2);
	if (ret <= 0)
		return ret ? ret : ends(r, i);
	if (r->buf[r->pos + i + 1] != '\n')
		return aof_fail(r, -EBADMSG, i + 1, "the end of a line is missing");
	*at = i + 2;
	return 0;
}

static int read_word(struct reader *r, size_t *at, unsigned int word)
{
	const char *end;
	uint64_t len;
	int ret = read_count(r, '$', at, &len);

	if (ret)
		return ret;
	if (len > WORD_MAX)
		return aof_fail(r, -EBADMSG, *at, "a word of %" PRIu64 " bytes", len);
	ret = need(r, *at + len + 2);
	if (ret <= 0)
		return ret ? ret : ends(r, *at);
	end = r->buf + r->pos + *at + len;
	if (end[0] != '\r' || end[1] != '\n')
		return aof_fail(r, -EBADMSG, *at + len + (end[0] == '\r'),
				"the end of a word is not where its length says");
	r->at[word] = *at;
	r->argv[word].len = len;
	*at += len + 2;
	return 0;
}

static bool words_room(struct reader *r, unsigned int words)
{
	struct aof_arg *argv;
	size_t *at;

	if (words <= r->words)
		return true;
	argv = realloc(r->argv, words * sizeof(*argv));
	if (argv)
		r->argv = argv;
	at = realloc(r->at, words * sizeof(*at));
	if (at)
		r->at = at;
	if (!argv || !at)
		return false;
	r->words = words;
	return true;
}

/* Sets *bytes to its length. */
static int read_command(struct reader *r, unsigned int *argc, size_t *bytes)
{
	uint64_t words;
	int ret;

	*bytes = 0;
	ret = read_count(r, '*', bytes, &words);
	if (ret)
		return ret;
	if (!words || words > WORDS_MAX)
		return aof_fail(r, -EBADMSG, 0, "a command of %" PRIu64 " words", words);
	if (!words_room(r, (unsigned int)words))
		return no_memory(r);
	*argc = (unsigned int)words;
	for (unsigned int i = 0; i < *argc && !ret; i++)
		ret = read_word(r, bytes, i);
	for (unsigned int i = 0; i < *argc && !ret; i++)
		r->argv[i].ptr = r->buf + r->pos + r->at[i];
	return ret;
}

bool aof_is(const struct aof_arg *arg, const char *word)
{
	return arg->len == strlen(word) && !strncasecmp(arg->ptr, word, arg->len);
}

static int hand_on(struct reader *r, const struct aof_sink *sink, unsigned int argc)
{
	bool begins = aof_is(r->argv, "multi"), closes = aof_is(r->argv, "exec");
	int ret;

	if ((begins || closes) && argc != 1)
		return aof_fail(r, -EBADMSG, 0, "MULTI and EXEC have no arguments");
	if (begins == r->in_txn && (begins || closes))
		return aof_fail(r, -EBADMSG, 0,
				begins ? "MULTI inside a transaction" : "EXEC without MULTI");
	if (begins || closes) {
		r->in_txn = begins;
		return 0;
	}
	ret = sink->command(sink->arg, argc, r->argv, r->base + r->pos);
	if (ret)
		r->rep->offset = r->base + r->pos;
	return ret;
}

/* ---- blocks ----------------------------------------------------------------- */

/*
 * May a sector lack the end of what is written in it, or all?  A file grows, so what the disk has
 * not written of it yet is zero.
 */
static bool has_empty_sector(struct reader *r, uint64_t from, uint64_t end)
{
	char last = 1;

	for (uint64_t next; from < end && last; from = next) {
		next = (from / SECTOR + 1) * SECTOR;
		next = next < end ? next : end;
		if (pread(r->fd, &last, 1, (off_t)next - 1) != 1)
			return false;
	}
	return !last;
}

/* Does what follows say that the disk had what is at this offset? */
static bool was_synced(struct reader *r, uint64_t offset)
{
	const size_t more = sizeof(SYNCED) + 24;
	uint64_t at = offset, synced;
	char piece[65536], *found;
	ssize_t n;

	while ((n = pread(r->fd, piece, sizeof(piece) - 1, (off_t)at)) > (ssize_t)more) {
		piece[n] = '\0';
		for (char *from = piece;
		     (found = memmem(from, (size_t)(piece + n - from), SYNCED, strlen(SYNCED)));
		     from = found + 1)
			if (sscanf(found + strlen(SYNCED), "%" SCNu64, &synced) == 1 &&
			    synced > offset)
				return true;
		at += (uint64_t)n - more;
	}
	return false;
}

/*
 * A block whose bytes up to `end` are not as they were written.  After a power cut pages may be
 * missing that the disk has not been told to take; what it had taken, or has no such hole, has been
 * changed by something else.
 */
static int is_damaged(struct reader *r, uint64_t end, const char *what)
{
	uint64_t at = r->base + r->pos;

	r->rep->truncated = has_empty_sector(r, at, end) && !was_synced(r, at);
	r->rep->damaged = !r->rep->truncated;
	return aof_fail(r, -EBADMSG, 0, "%s", what);
}

static int block_ends(struct reader *r)
{
	r->rep->truncated = true;
	return aof_fail(r, -EBADMSG, 0, "the file ends in the middle of a block");
}

/* The line in front of a block. */
static int read_block_head(struct reader *r, uint32_t *len, uint32_t *sum)
{
	char again[AOF_SUM_LEN + 1];
	const char *line;
	int ret = need(r, AOF_SUM_LEN);

	if (ret <= 0)
		return ret ? ret : block_ends(r);
	line = r->buf + r->pos;
	memcpy(again, line, AOF_SUM_LEN);
	again[AOF_SUM_LEN - 1] = '\0';
	if (aof_sum_line(again + 1, len, sum)) {
		head_text(again, r->sum, *len, *sum);
		if (*len && !memcmp(again, line, AOF_SUM_LEN))
			return 0;
	}
	return is_damaged(r, r->base + r->pos + AOF_SUM_LEN,
			  "this is not the checksum that belongs here");
}

static int read_block(struct reader *r, const struct aof_sink *sink)
{
	uint32_t len, sum;
	int ret = read_block_head(r, &len, &sum);
	char *line;

	if (!ret)
		ret = need(r, AOF_SUM_LEN + (size_t)len);
	else
		return ret;
	if (ret <= 0)
		return ret ? ret : block_ends(r);
	line = r->buf + r->pos;
	if (crc32c(r->sum, line + AOF_SUM_LEN, len) != sum)
		return is_damaged(r, r->base + r->pos + AOF_SUM_LEN + len,
				  "the checksum does not fit what follows");
	r->sum = sum;
	r->pos += AOF_SUM_LEN;
	r->block_end = r->base + r->pos + len;
	line[AOF_SUM_LEN - 2] = '\0';
	return sink->annotation ? sink->annotation(sink->arg, line + 1, r->base + r->pos) : 0;
}

static bool at_mark(struct reader *r, const char *mark)
{
	return need(r, strlen(mark)) == 1 && !memcmp(r->buf + r->pos, mark, strlen(mark));
}

/* Where a block ends: another one, or what a Redis has added. */
static int next_block(struct reader *r, const struct aof_sink *sink)
{
	if (r->buf[r->pos] != '*' && !at_mark(r, "#TS:"))
		return read_block(r, sink);
	if (r->in_txn)
		return aof_fail(r, -EBADMSG, 0, "a block is missing in a transaction");
	r->kind = FOREIGN;
	r->rep->foreign = r->base + r->pos;
	return 0;
}

/* A line that begins with '#'. */
static int read_annotation(struct reader *r, const struct aof_sink *sink, size_t *bytes)
{
	size_t len = 1;
	int ret;

	while ((ret = need(r, len + 1)) == 1 && r->buf[r->pos + len] != '\n' && len < LINE_LEN)
		len++;
	if (ret <= 0)
		return ret ? ret : ends(r, len);
	if (len == LINE_LEN)
		return aof_fail(r, -EBADMSG, 0, "an annotation that is too long");
	*bytes = len + 1;
	if (r->kind != BLOCKS && at_mark(r, "#XKV:"))
		return aof_fail(r, -EBADMSG, 0, "a line of xkvd without a checksum before it");
	if (!sink->annotation)
		return 0;
	r->buf[r->pos + len - (r->buf[r->pos + len - 1] == '\r')] = '\0';
	ret = sink->annotation(sink->arg, r->buf + r->pos + 1, r->base + r->pos + *bytes);
	if (ret)
		r->rep->offset = r->base + r->pos;
	return ret;
}

/* 1, 0 at the end, or an error. */
static int read_next(struct reader *r, const struct aof_sink *sink)
{
	unsigned int argc = 0;
	size_t bytes;
	int ret = need(r, 1);

	if (ret <= 0)
		return ret ? ret : r->in_txn ? ends(r, 0) : 0;
	if (r->kind == BLOCKS && r->base + r->pos >= r->block_end) {
		ret = next_block(r, sink);
		if (ret || r->kind == BLOCKS)
			return ret ? ret : 1;
	}
	if (r->buf[r->pos] == '#') {
		ret = read_annotation(r, sink, &bytes);
	} else {
		ret = read_command(r, &argc, &bytes);
		if (!ret)
			ret = hand_on(r, sink, argc);
	}
	if (ret)
		return ret;
	r->pos += bytes;
	if (!r->in_txn && (r->kind != BLOCKS || r->base + r->pos == r->block_end))
		r->rep->valid = r->base + r->pos;
	return 1;
}

/*
 * After a power cut a file may have its new length, but not all of its bytes: is all behind what
 * was not understood zero?
 */
static bool ends_in_zeros(struct reader *r)
{
	uint64_t at = r->rep->offset;
	char piece[4096];
	ssize_t n;

	while ((n = pread(r->fd, piece, sizeof(piece), (off_t)at)) > 0) {
		for (ssize_t i = 0; i < n; i++)
			if (piece[i])
				return false;
		at += (uint64_t)n;
	}
	return !n && at > r->rep->offset;
}

int aof_read(int fd, uint64_t begin, uint64_t end, const struct aof_sink *sink,
	     struct aof_report *rep)
{
	struct reader r = { .fd = fd, .base = begin, .end = end, .rep = rep };
	struct stat st;
	int ret;

	*rep = (struct aof_report){ .valid = begin };
	if (!fstat(fd, &st) && (uint64_t)st.st_size < end)
		r.end = (uint64_t)st.st_size;
	r.kind = at_mark(&r, "#" SUM_WORD) ? BLOCKS : PLAIN;
	do
		ret = read_next(&r, sink);
	while (ret == 1);
	rep->beyond = r.base + r.pos != rep->valid;
	if (ret == -EBADMSG && *rep->text && !rep->truncated && r.kind != BLOCKS)
		rep->truncated = ends_in_zeros(&r);
	free(r.buf);
	free(r.argv);
	free(r.at);
	return ret;
}

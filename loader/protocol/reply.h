/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Functions by which commands reply.  They name results (a status, a number, a map, an error) and
 * write no wire format; the encoder of the client's protocol (reply_resp.c, RESP2 and RESP3)
 * appends them to an outbox.  A failed outbox swallows what is appended (outbox.h), so nothing here
 * returns errors.
 *
 * An array, a map or a set begins with its length, and its elements follow.  If the length is known
 * late, the elements go into a part (reply_part()) that is appended after it.
 */
#ifndef XKV_REPLY_H
#define XKV_REPLY_H

#include <stdbool.h>
#include <stdint.h>

#include "util/outbox.h"

enum protocol { PROTOCOL_RESP2 = 2, PROTOCOL_RESP3 = 3 }; /* the numbers of HELLO */

#define ERROR_CODES    32 /* more, longer and empty ones are counted in `total` only */
#define ERROR_CODE_MAX 16

/* Error replies by their code, the first word ("ERR", "WRONGTYPE"). */
struct error_counts {
	uint64_t total;
	struct {
		char code[ERROR_CODE_MAX];
		uint64_t count;
	} each[ERROR_CODES];
};

struct reply {
	struct outbox out;
	enum protocol protocol;
	bool muted;		     /* swallows what is appended: CLIENT REPLY OFF */
	struct error_counts *errors; /* where errors are counted, not owned; NULL = nowhere */
};

void error_counts_add(struct error_counts *to, const struct error_counts *more);

/* `limit` in bytes, 0 = none. */
void reply_init(struct reply *r, enum protocol protocol, size_t limit);
/* An empty reply that will be appended to `whole`: with its protocol and limit. */
void reply_part(struct reply *part, const struct reply *whole);
void reply_free(struct reply *r);
/* Moves all of `part` to the end of `whole`. */
void reply_splice(struct reply *whole, struct reply *part);

/* Appends a copy of `part`, of the same protocol, even if `whole` is muted; `part` stays. */
void reply_copy(struct reply *whole, const struct reply *part);

void reply_ok(struct reply *r);
void reply_status(struct reply *r, const char *text);
void reply_int(struct reply *r, int64_t value);
/* A boolean in RESP3, 1 or 0 in RESP2. */
void reply_bool(struct reply *r, bool value);
/* A double in RESP3, its text in RESP2. */
void reply_double(struct reply *r, double value);
void reply_bulk(struct reply *r, const void *bytes, size_t len);
/* The same for memory from malloc(), which is freed afterwards; a large block is not copied. */
void reply_bulk_give(struct reply *r, char *bytes, size_t len);
void reply_text(struct reply *r, const char *text);
/* Text for people: a verbatim string in RESP3, a bulk string in RESP2. */
void reply_verbatim(struct reply *r, const char *text, size_t len);
/* A big number in RESP3, its text in RESP2; line ends in the text become blanks. */
void reply_big_number(struct reply *r, const char *text, size_t len);
void reply_null(struct reply *r);
/* Instead of an array. */
void reply_null_array(struct reply *r);
void reply_array(struct reply *r, size_t items);
void reply_map(struct reply *r, size_t pairs);
void reply_set(struct reply *r, size_t items);
/* A message that is not a reply: out of band in RESP3, an array in RESP2. */
void reply_push(struct reply *r, size_t items);
/* The text begins with the error's code ("ERR ..."); line ends in it become blanks. */
void reply_error(struct reply *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Bytes that wait to be sent to one client: a list of chunks, so that appending and sending never
 * move bytes that are there.  Knows no protocol and no socket.
 *
 * An append that would exceed the limit, or finds no memory, drops everything and sets `failed`;
 * later appends do nothing.  Chunks are cached per thread.  Chunks of a message to many clients are
 * shared (outbox_copy()): outboxes with copies are used by one thread at a time, under one lock.
 */
#ifndef XKV_OUTBOX_H
#define XKV_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/uio.h>

struct outbox_chunk {
	struct outbox_chunk *next;
	size_t start, len, cap;	 /* data[start..len) is not yet sent */
	char *data;		 /* `bytes`, those of another chunk, or what outbox_give() took */
	struct outbox_chunk *of; /* that chunk, which it keeps; NULL: its own */
	unsigned int users;	 /* the list that it is in, and chunks that have its bytes */
	char bytes[];
};

struct outbox {
	struct outbox_chunk *head, *tail; /* owned */
	size_t bytes;			  /* not yet sent */
	size_t memory;			  /* bytes that the chunks take */
	size_t limit;			  /* of `bytes`, 0 = none */
	bool failed;
	bool sending; /* its chunks are being read without the lock: they stay */
};

/* Frees unsent bytes; the limit and `failed` stay. */
void outbox_free(struct outbox *o);

/* The same, but bytes that are being sent stay; sets `failed`. */
void outbox_give_up(struct outbox *o);

/* Frees the chunks that this thread keeps for reuse. */
void outbox_cache_free(void);

char *outbox_reserve_chunk(struct outbox *o, size_t n);

/* Room for `n` bytes in one piece, to be followed by outbox_used(); NULL if the outbox failed. */
static inline char *outbox_reserve(struct outbox *o, size_t n)
{
	struct outbox_chunk *c = o->tail; /* NULL after a failure */

	if (c && c->cap - c->len >= n && (!o->limit || o->bytes + n <= o->limit))
		return c->data + c->len;
	return outbox_reserve_chunk(o, n);
}

/* Appends the first `n` bytes of the reserved room. */
static inline void outbox_used(struct outbox *o, size_t n)
{
	o->tail->len += n;
	o->bytes += n;
}

static inline void outbox_append(struct outbox *o, const void *bytes, size_t len)
{
	char *at = outbox_reserve(o, len);

	if (!at)
		return;
	memcpy(at, bytes, len);
	outbox_used(o, len);
}

/* Appends memory from malloc(), and frees it once it was sent. */
void outbox_give(struct outbox *o, char *bytes, size_t len);

/*
 * Moves or copies all of `from` to the end of `to`, which empties `from`.  If `from` has failed,
 * `to` fails.
 */
void outbox_splice(struct outbox *to, struct outbox *from);

/* Copies all bytes to `to`, and returns the end of the copy. */
char *outbox_flatten(const struct outbox *o, char *to);

/* A copy of all bytes, for free().  NULL: no memory, also if it was missing before. */
char *outbox_whole(const struct outbox *o);

/*
 * Appends a copy of the bytes of `from`, which does not change.  Large chunks are not copied, but
 * shared.  If `from` has failed, `to` fails.
 */
void outbox_copy(struct outbox *to, const struct outbox *from);

/* Fills `iov` with the bytes to send next; returns the number of elements. */
int outbox_iov(const struct outbox *o, struct iovec *iov, int max);

/* Removes `n` bytes that were sent. */
void outbox_sent(struct outbox *o, size_t n);

#endif

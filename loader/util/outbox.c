/* SPDX-License-Identifier: BSD-2-Clause */
#include "outbox.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES  16384
#define COPY_BYTES   2048
#define SHARE_BYTES  8192 /* of a chunk that is not copied */
#define CACHE_CHUNKS 64	  /* up to 1 MiB is kept, so that busy clients cost no allocation */

static _Thread_local struct outbox_chunk *cache;
static _Thread_local unsigned int cached;

static struct outbox_chunk *chunk_new(size_t want)
{
	size_t cap = want > CHUNK_BYTES ? want : CHUNK_BYTES;
	struct outbox_chunk *c;

	if (cap == CHUNK_BYTES && cache) {
		c = cache;
		cache = c->next;
		cached--;
	} else {
		c = malloc(sizeof(*c) + cap);
		if (!c)
			return NULL;
	}
	c->next = c->of = NULL;
	c->start = c->len = 0;
	c->cap = cap;
	c->data = c->bytes;
	c->users = 1;
	return c;
}

/* What waits in another chunk, without room for more.  NULL: no memory. */
static struct outbox_chunk *chunk_share(struct outbox_chunk *of)
{
	struct outbox_chunk *c = malloc(sizeof(*c));

	if (!c)
		return NULL;
	*c = (struct outbox_chunk){ .start = of->start, .len = of->len, .data = of->data };
	c->of = of->of ? of->of : of;
	c->cap = c->len;
	c->users = 1;
	__atomic_fetch_add(&c->of->users, 1, __ATOMIC_RELAXED);
	return c;
}

static void chunk_free(struct outbox_chunk *c)
{
	/* one that is shared may be freed by several workers at a time */
	if (__atomic_load_n(&c->users, __ATOMIC_ACQUIRE) != 1 &&
	    __atomic_sub_fetch(&c->users, 1, __ATOMIC_ACQ_REL))
		return;
	if (c->of) {
		chunk_free(c->of);
		free(c);
		return;
	}
	if (c->data != c->bytes) {
		free(c->data);
		free(c);
		return;
	}
	if (c->cap != CHUNK_BYTES || cached == CACHE_CHUNKS) {
		free(c);
		return;
	}
	c->next = cache;
	cache = c;
	cached++;
}

void outbox_cache_free(void)
{
	while (cache) {
		struct outbox_chunk *next = cache->next;

		free(cache);
		cache = next;
	}
	cached = 0;
}

void outbox_free(struct outbox *o)
{
	while (o->head) {
		struct outbox_chunk *next = o->head->next;

		chunk_free(o->head);
		o->head = next;
	}
	o->tail = NULL;
	o->bytes = o->memory = 0;
}

void outbox_give_up(struct outbox *o)
{
	if (!o->sending)
		outbox_free(o);
	o->failed = true;
}

/* Are there `n` bytes that may be appended?  If not, it fails. */
static bool may_append(struct outbox *o, size_t n)
{
	if (!o->failed && o->limit && o->bytes + n > o->limit)
		outbox_give_up(o);
	return !o->failed;
}

/* False: there is no chunk, since memory is short. */
static bool add_chunk(struct outbox *o, struct outbox_chunk *c)
{
	if (!c) {
		outbox_give_up(o);
		return false;
	}
	if (o->tail)
		o->tail->next = c;
	else
		o->head = c;
	o->tail = c;
	o->memory += sizeof(*c) + c->cap;
	return true;
}

/* outbox_reserve() where the last chunk does not do. */
char *outbox_reserve_chunk(struct outbox *o, size_t n)
{
	struct outbox_chunk *c = o->tail;

	if (!may_append(o, n))
		return NULL;
	if (c && c->cap - c->len >= n)
		return c->data + c->len;
	c = chunk_new(n);
	return add_chunk(o, c) ? c->data : NULL;
}

void outbox_give(struct outbox *o, char *bytes, size_t len)
{
	struct outbox_chunk *c = may_append(o, len) ? malloc(sizeof(*c)) : NULL;

	if (c)
		*c = (struct outbox_chunk){ .len = len, .cap = len, .data = bytes, .users = 1 };
	else
		free(bytes);
	if (!o->failed && add_chunk(o, c))
		o->bytes += len;
}

/* Few bytes behind others need no chunk of their own.  False: they do. */
static bool append_copy(struct outbox *to, const struct outbox *from)
{
	const struct outbox_chunk *c = from->head;

	if (from->bytes > COPY_BYTES || !to->tail || c->next ||
	    to->tail->cap - to->tail->len < from->bytes)
		return false;
	memcpy(to->tail->data + to->tail->len, c->data + c->start, from->bytes);
	outbox_used(to, from->bytes);
	return true;
}

void outbox_splice(struct outbox *to, struct outbox *from)
{
	if (from->failed || (from->bytes && to->limit && to->bytes + from->bytes > to->limit)) {
		outbox_free(from);
		outbox_give_up(to);
		return;
	}
	if (to->failed || !from->head || append_copy(to, from)) {
		outbox_free(from);
		return;
	}
	if (to->tail)
		to->tail->next = from->head;
	else
		to->head = from->head;
	to->tail = from->tail;
	to->bytes += from->bytes;
	to->memory += from->memory;
	from->head = from->tail = NULL;
	from->bytes = from->memory = 0;
}

char *outbox_flatten(const struct outbox *o, char *to)
{
	for (const struct outbox_chunk *c = o->head; c; c = c->next) {
		memcpy(to, c->data + c->start, c->len - c->start);
		to += c->len - c->start;
	}
	return to;
}

char *outbox_whole(const struct outbox *o)
{
	char *whole = o->failed ? NULL : malloc(o->bytes);

	if (whole)
		outbox_flatten(o, whole);
	return whole;
}

void outbox_copy(struct outbox *to, const struct outbox *from)
{
	if (from->failed)
		outbox_give_up(to);
	for (struct outbox_chunk *c = from->head; c; c = c->next) {
		size_t n = c->len - c->start;

		if (n >= SHARE_BYTES) {
			if (!may_append(to, n) || !add_chunk(to, chunk_share(c)))
				return;
			to->bytes += n;
		} else {
			char *at = outbox_reserve(to, n);

			if (!at)
				return;
			memcpy(at, c->data + c->start, n);
			outbox_used(to, n);
		}
	}
}

int outbox_iov(const struct outbox *o, struct iovec *iov, int max)
{
	int n = 0;

	for (struct outbox_chunk *c = o->head; c && n < max; c = c->next) {
		if (c->len == c->start)
			continue;
		iov[n].iov_base = c->data + c->start;
		iov[n++].iov_len = c->len - c->start;
	}
	return n;
}

void outbox_sent(struct outbox *o, size_t n)
{
	if (o->failed) { /* meanwhile */
		outbox_free(o);
		return;
	}
	o->bytes -= n;
	while (o->head) {
		struct outbox_chunk *c = o->head;
		size_t part = c->len - c->start < n ? c->len - c->start : n;

		c->start += part;
		n -= part;
		if (c->start < c->len)
			return;
		o->head = c->next;
		o->memory -= sizeof(*c) + c->cap;
		chunk_free(c);
	}
	o->tail = NULL;
}

/* SPDX-License-Identifier: BSD-2-Clause */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_MIN      (16 << 10)
#define ROOM_HINT_MAX (2 << 20)	  /* a longer argument gets its memory as its bytes come */
#define SHRINK_ABOVE  (256 << 10) /* bytes of a buffer that is given back when most of it is free */
#define ARGV_KEEP     64	  /* arguments that a client at rest has room for */

static void release_buffer(struct stream *s)
{
	if (!s->in.shared)
		free(s->in.data);
	s->in = (struct input){ 0 };
}

/* Bytes to have room for, beyond the `rest` that is there. */
static size_t bytes_wanted(const struct stream *s, size_t rest)
{
	size_t missing = resp_missing(&s->parser, rest);

	return missing > ROOM_MIN && missing <= ROOM_HINT_MAX ? missing : ROOM_MIN;
}

/* Gives most of a large buffer back that holds little. */
static void shrink(struct stream *s, size_t rest)
{
	struct input *in = &s->in;
	size_t cap = rest + bytes_wanted(s, rest);
	char *data;

	if (in->cap <= SHRINK_ABOVE || in->cap / 4 < cap)
		return;
	memmove(in->data, in->data + in->pos, rest);
	in->pos = 0;
	in->len = rest;
	data = realloc(in->data, cap);
	if (data) {
		in->data = data;
		in->cap = cap;
	}
}

bool stream_keep_rest(struct stream *s)
{
	size_t rest = stream_pending(s), cap;
	char *own;

	if (!rest) {
		release_buffer(s);
		if (s->parser.cap > ARGV_KEEP)
			resp_parser_free(&s->parser);
		return true;
	}
	if (!s->in.shared) {
		shrink(s, rest);
		return true;
	}
	cap = rest + bytes_wanted(s, rest);
	own = malloc(cap);
	if (!own)
		return false;
	memcpy(own, stream_command(s), rest);
	s->in = (struct input){ .data = own, .len = rest, .cap = cap };
	return true;
}

/*
 * The rest moves to the front only if it is the smaller part, and the buffer at least doubles when
 * it grows, so every byte moves a bounded number of times.
 */
bool stream_make_room(struct stream *s, char *shared, size_t shared_bytes)
{
	struct input *in = &s->in;
	size_t rest = in->len - in->pos, want = bytes_wanted(s, rest), cap, end;
	char *data;

	if (!in->data) {
		*in = (struct input){ shared, 0, 0, shared_bytes, true };
		return true;
	}
	if (in->pos && in->pos >= rest) {
		memmove(in->data, in->data + in->pos, rest);
		in->pos = 0;
		in->len = rest;
	}
	if (in->cap - in->len >= want)
		return true;
	cap = in->len + want > in->cap * 2 ? in->len + want : in->cap * 2;
	end = in->len + resp_missing(&s->parser, rest);
	if (cap > end && end >= in->len + want) /* of an argument, behind which nothing may come */
		cap = end;
	data = realloc(in->data, cap);
	if (!data)
		return false;
	in->data = data;
	in->cap = cap;
	return true;
}

void stream_free_input(struct stream *s)
{
	release_buffer(s);
	resp_parser_free(&s->parser);
}

size_t stream_memory(const struct stream *s)
{
	return (s->in.shared ? 0 : s->in.cap) + s->parser.cap * sizeof(*s->parser.argv);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The byte stream of a client: its connection, the watchers of the event loop, and input that is
 * not yet executed.  An idle client has no buffer: all clients of a worker read into a shared one,
 * and only an incomplete command moves into the client's own buffer.
 */
#ifndef XKV_STREAM_H
#define XKV_STREAM_H

#include <ev.h>
#include <stdbool.h>
#include <stddef.h>

#include "connection.h"
#include "protocol/resp.h"

struct input {
	char *data;	      /* owned, unless `shared` */
	size_t pos, len, cap; /* data[pos..len) is not yet executed */
	bool shared;	      /* data is the worker's read buffer */
};

struct stream {
	struct connection conn;
	ev_io readable, writable;
	struct input in;
	struct resp_parser parser; /* of the command at in.pos */
};

/* Bytes that were read and not yet executed. */
static inline size_t stream_pending(const struct stream *s)
{
	return s->in.len - s->in.pos;
}

/* Where the next command is, or the unfinished one. */
static inline char *stream_command(const struct stream *s)
{
	return s->in.data + s->in.pos;
}

/* Makes room to read into, in `shared` (`shared_bytes`) if no input is left.  False: no memory. */
bool stream_make_room(struct stream *s, char *shared, size_t shared_bytes);
/*
 * After a round: moves input that is not yet executed out of the shared buffer, and frees memory
 * that is no longer needed.  False: no memory.
 */
bool stream_keep_rest(struct stream *s);
/* Frees the buffer and the parser; the connection and the watchers are the caller's. */
void stream_free_input(struct stream *s);
/* Bytes that the input has allocated. */
size_t stream_memory(const struct stream *s);

#endif

// SPDX-License-Identifier: BSD-2-Clause
/* See parts.h. */
#include "parts.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "protocol.h"

struct parts {
	uint64_t id;
	unsigned int total, have; /* pieces of the message that is not complete; 0: there is none */
	unsigned int room;	  /* pieces that `piece` has room for */
	uint16_t len[PARTS_PIECES_MAX]; /* of a piece; 0: not there */
	uint8_t *piece;			/* each at its number times DATAGRAM_MAX */
	uint8_t *text;
	size_t text_len, text_room;
};

const uint8_t *parts_text(const struct parts *p)
{
	return p->text;
}

void parts_free(struct parts *p)
{
	if (!p)
		return;
	free(p->piece);
	free(p->text);
	free(p);
}

static int append(struct parts *p, const uint8_t *text, size_t len)
{
	if (len > PARTS_TEXT_MAX - p->text_len)
		return -EBADMSG;
	if (len > p->text_room - p->text_len) {
		size_t room = 2 * (p->text_len + len);
		uint8_t *more = realloc(p->text, room);

		if (!more)
			return -ENOMEM;
		p->text = more;
		p->text_room = room;
	}
	memcpy(p->text + p->text_len, text, len);
	p->text_len += len;
	return 0;
}

static int start_message(struct parts *p, unsigned int total)
{
	if (total > p->room) {
		uint8_t *more = realloc(p->piece, (size_t)total * DATAGRAM_MAX);

		if (!more)
			return -ENOMEM;
		p->piece = more;
		p->room = total;
	}
	memset(p->len, 0, sizeof(p->len));
	p->total = total;
	p->have = 0;
	return 0;
}

/* 1 if the message is complete and was appended. */
static int add_piece(struct parts *p, unsigned int number, unsigned int total, const uint8_t *piece,
		     size_t len)
{
	int err = p->total ? 0 : start_message(p, total);

	if (err || p->total != total)
		return err ? err : -EBADMSG;
	if (p->len[number])
		return 0; /* came twice */
	memcpy(p->piece + (size_t)number * DATAGRAM_MAX, piece, len);
	p->len[number] = len;
	if (++p->have < total)
		return 0;
	for (unsigned int i = 0; i < total && !err; i++)
		err = append(p, p->piece + (size_t)i * DATAGRAM_MAX, p->len[i]);
	p->total = 0;
	return err ? err : 1;
}

ssize_t parts_add(struct parts **parts, uint64_t id, unsigned int number, unsigned int total,
		  const uint8_t *piece, size_t len)
{
	struct parts *p = *parts ? *parts : calloc(1, sizeof(*p));
	int ret;

	if (!p)
		return -ENOMEM;
	*parts = p;
	if (p->id != id) {
		p->id = id;
		p->total = p->text_len = 0;
	}
	if (number >= total || total > PARTS_PIECES_MAX || !len || len > DATAGRAM_MAX)
		return -EBADMSG;
	ret = add_piece(p, number, total, piece, len);
	return ret > 0 ? (ssize_t)p->text_len : ret;
}

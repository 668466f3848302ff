/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A reply that comes in several datagrams.  It is one or more messages one behind the other
 * (memcached 1.6 answers each key of a get with a message of its own), and each of
 * these is one or more numbered pieces, which may come in any order.
 */
#ifndef BENCH_PARTS_H
#define BENCH_PARTS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PARTS_PIECES_MAX 256	   /* of a message */
#define PARTS_TEXT_MAX	 (1 << 20) /* bytes of a reply */

struct parts;

/*
 * Adds a piece of the reply to request `id`, and makes *parts if it is NULL; what is there of
 * another id is forgotten.  Returns the bytes of all complete messages, which stand at
 * parts_text(), or 0 if none was completed by this piece; -EBADMSG if it contradicts
 * the ones before it or the reply is too long, -ENOMEM.
 */
ssize_t parts_add(struct parts **parts, uint64_t id, unsigned int number, unsigned int total,
		  const uint8_t *piece, size_t len);

const uint8_t *parts_text(const struct parts *p);

/* Also for NULL. */
void parts_free(struct parts *p);

#endif

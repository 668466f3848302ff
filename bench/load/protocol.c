// SPDX-License-Identifier: BSD-2-Clause
/* See protocol.h. */
#include "protocol.h"

#include "entry.h"

#define COMMAND_ROOM 64
#define ENTRY_ROOM   (XKV_KEY_MAX + 32) /* without the value */

const struct protocol *protocol_of(const struct options *o)
{
	static const struct protocol *const all[PROTOCOLS] = {
		[PROTOCOL_XKV] = &protocol_xkv,
		[PROTOCOL_RESP] = &protocol_resp,
		[PROTOCOL_MEMCACHED] = &protocol_memcached,
	};

	return all[o->protocol];
}

size_t protocol_room(const struct protocol *p, const struct options *o, const struct request *r)
{
	size_t keys = r->keys < REQUEST_KEYS_MAX ? r->keys : REQUEST_KEYS_MAX;
	size_t value = r->op == OP_SET ? o->value_size.max : 0;

	return p->stream ? COMMAND_ROOM + keys * (ENTRY_ROOM + value) : DATAGRAM_MAX;
}

void protocol_value(const struct options *o, struct stats *s, uint32_t key, const uint8_t *value,
		    uint32_t len)
{
	stat_add(s, STAT_HITS, 1);
	if (o->verify && !entry_value_ok(o, key, value, len))
		stat_add(s, STAT_CORRUPT, 1);
}

enum outcome protocol_broken(struct stats *s)
{
	stat_add(s, STAT_MALFORMED, 1);
	return BROKEN;
}

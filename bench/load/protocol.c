// SPDX-License-Identifier: BSD-2-Clause
/* See protocol.h. */
#include "protocol.h"

#include "entry.h"

const struct protocol *protocol_of(const struct options *o)
{
	static const struct protocol *const all[PROTOCOLS] = {
		[PROTOCOL_XKV] = &protocol_xkv,
		[PROTOCOL_RESP] = &protocol_resp,
		[PROTOCOL_MEMCACHED] = &protocol_memcached,
		[PROTOCOL_MEMCACHED_UDP] = &protocol_memcached_udp,
	};

	return all[o->protocol];
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

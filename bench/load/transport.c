// SPDX-License-Identifier: BSD-2-Clause
/* See transport.h. */
#include "transport.h"

#include "options.h"
#include "protocol.h"

const struct transport *transport_of(const struct options *o)
{
	if (o->transport == TRANSPORT_XDP)
		return &transport_xdp;
	return protocol_of(o)->stream ? &transport_tcp : &transport_udp;
}

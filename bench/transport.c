// SPDX-License-Identifier: BSD-2-Clause
/* See transport.h. */
#include "transport.h"

#include "options.h"
#include "protocol.h"

const struct transport *transport_of(const struct options *o)
{
	(void)o;
	return &transport_udp;
}

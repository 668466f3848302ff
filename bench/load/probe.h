/* SPDX-License-Identifier: BSD-2-Clause */
/* Contacts the server before a load starts, so that a failure gives one clear error message. */
#ifndef BENCH_PROBE_H
#define BENCH_PROBE_H

#include "options.h"
#include "protocol.h"
#include "transport.h"

/* Resolves host and port, and waits for a reply to a ping.  0, or -errno after an error message. */
int probe_server(const struct options *o, const struct protocol *p, struct server_address *server);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the server before a load starts, so that what is wrong can be said in one sentence. */
#ifndef BENCH_PROBE_H
#define BENCH_PROBE_H

#include "options.h"
#include "protocol.h"
#include "transport.h"

/* Resolves host and port, and waits for an answer to a ping.  0, or -errno after a sentence. */
int probe_server(const struct options *o, const struct protocol *p, struct server_address *server);

#endif

// SPDX-License-Identifier: BSD-2-Clause
/* See resp.h. */
#include "resp.h"

#include <stdio.h>

#include "bench/common/dist.h"
#include "bench/common/say.h"
#include "options.h"
#include "protocol.h"
#include "protocol_resp.h"

int resp_print(const struct options *o)
{
	uint8_t command[DATAGRAM_MAX];

	for (uint32_t key = 0; key < o->keys && !interrupted; key++) {
		size_t len = resp_set(o, command, key, mix64(key));

		if (fwrite(command, 1, len, stdout) != len) {
			say("cannot write the commands to standard output");
			return 1;
		}
	}
	return interrupted ? 1 : 0;
}
